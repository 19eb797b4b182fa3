//! The tools of an agent: the names in its spec, resolved.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use globset::Glob;
use logreel::Ctx;
use serde_json::Value;

use crate::environment::{Environment, EnvironmentError};
use crate::policy::{BadPattern, Policy};
use crate::replay::{FsOnPaper, KnownTool};
use crate::spec::AgentSpec;
use crate::told::tools_of_servers;
use crate::tool::{Definition, Fs, HttpGet, OwnTool, Shell, Tool};

/// Errors of one value that are told.
const ERRORS_MAX: usize = 5;

/// The tools of one drive of an agent's run, but for the agents it calls.
pub struct Toolbox {
    tools: Vec<Arc<dyn Tool>>,
    policy: Arc<Policy>,
}

/// Why an agent's tools cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ToolboxError {
    /// The spec names a tool that is none.
    #[error("there is no tool `{name}`{}", hint.as_ref().map(|it| format!("; did you mean `{it}`?")).unwrap_or_default())]
    Unknown {
        /// What the spec says.
        name: String,
        /// What may have been meant.
        hint: Option<String>,
    },
    /// Two things have the same name.
    #[error("`{0}` is the name of more than one tool")]
    Twice(String),
    /// A schema of an own tool is none.
    #[error("the schema of `{name}` is no JSON Schema: {why}")]
    Schema {
        /// Whose.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A filter or an effect of a server is given for what is no glob.
    #[error("`{0}` is no glob")]
    Glob(String),
    /// A pattern of the policy is none.
    #[error(transparent)]
    Policy(#[from] BadPattern),
    /// A variable cannot be had.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The folder cannot be opened.
    #[error("the working folder cannot be used: {0}")]
    Folder(#[source] std::io::Error),
    /// A server is described in a way that cannot be used.
    #[error("the MCP server `{name}` cannot be used: {why}")]
    Server {
        /// Which.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A server does not answer.
    #[error("the MCP server `{name}` cannot be used: {why}")]
    Away {
        /// Which.
        name: String,
        /// What happened.
        why: String,
    },
    /// A server does not have a tool that the spec names.
    #[error("the MCP server `{server}` has no tool `{tool}`{}; it has {}",
        hint.as_ref().map(|it| format!("; did you mean `{it}`?")).unwrap_or_default(),
        if has.is_empty() { "none".to_owned() } else { has.join(", ") })]
    Gone {
        /// Which.
        server: String,
        /// What the spec says.
        tool: String,
        /// What may have been meant.
        hint: Option<String>,
        /// What there is.
        has: Vec<String>,
    },
}

/// What can be done about tools that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// To try again: it may come back by itself. In a word, what.
    Wait(String),
    /// Someone may bring back what was there before. In a word, what.
    Person(String),
    /// Another spec.
    None,
}

impl ToolboxError {
    /// What can be done about it.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Folder(_) => Remedy::Wait("folder".to_owned()),
            Self::Away { name, .. } => Remedy::Wait(format!("mcp.{name}")),
            Self::Gone { tool, .. } => Remedy::Person(tool.clone()),
            Self::Unknown { .. }
            | Self::Twice(_)
            | Self::Schema { .. }
            | Self::Glob(_)
            | Self::Policy(_)
            | Self::Environment(_)
            | Self::Server { .. } => Remedy::None,
        }
    }
}

impl Toolbox {
    /// The tools that the spec names, ready to be called in the agent's folder; the embedder may have
    /// `provided` some. MCP servers are started
    /// as part of the run, and end with the drive.
    pub async fn open(
        ctx: &Ctx,
        spec: &AgentSpec,
        dir: &Path,
        env: &Environment,
        provided: &[Arc<dyn Tool>],
    ) -> Result<Self, ToolboxError> {
        // Whatever it calls works there.
        let there = std::fs::metadata(dir).map_err(ToolboxError::Folder)?;
        if !there.is_dir() {
            return Err(ToolboxError::Folder(
                std::io::ErrorKind::NotADirectory.into(),
            ));
        }
        let mut toolbox = Self::here(spec, dir, env, provided)?;
        let servers = named_servers(spec);
        toolbox.connect(ctx, spec, dir, env, &servers).await?;
        Ok(toolbox)
    }

    /// The tools that need no server, and whether the rest of the spec makes sense. Starts nothing.
    pub fn here(
        spec: &AgentSpec,
        dir: &Path,
        env: &Environment,
        provided: &[Arc<dyn Tool>],
    ) -> Result<Self, ToolboxError> {
        let open = |policy: &Arc<Policy>| {
            let all = Fs::all(dir, policy).map_err(ToolboxError::Folder)?;
            let all = all.into_iter().map(|it| Arc::new(it) as Arc<dyn Tool>);
            Ok(all.collect())
        };
        Self::with_files(spec, dir, env, provided, open)
    }

    /// The tools of a run that is replayed: to be known, and never called. Nothing outside is looked at;
    /// of servers there are the tools that the recorded run's model was `told` of.
    pub(crate) fn on_paper(
        spec: &AgentSpec,
        dir: &Path,
        env: &Environment,
        provided: &[Arc<dyn Tool>],
        told: &Value,
    ) -> Result<Self, ToolboxError> {
        let files = |_: &Arc<Policy>| {
            let all = FsOnPaper::all(dir).into_iter();
            Ok(all.map(|it| Arc::new(it) as Arc<dyn Tool>).collect())
        };
        let mut toolbox = Self::with_files(spec, dir, env, provided, files)?;
        let servers = named_servers(spec);
        let wanted = spec.tools.iter().map(|pattern| matcher(pattern));
        let wanted = wanted.collect::<Result<Vec<_>, ToolboxError>>()?;
        for tool in tools_of_servers(told, &servers) {
            if wanted.iter().any(|glob| glob.is_match(&tool.name)) {
                toolbox.tools.push(Arc::new(KnownTool(tool)));
            }
        }
        Ok(toolbox)
    }

    fn with_files(
        spec: &AgentSpec,
        dir: &Path,
        env: &Environment,
        provided: &[Arc<dyn Tool>],
        files: impl FnOnce(&Arc<Policy>) -> Result<Vec<Arc<dyn Tool>>, ToolboxError>,
    ) -> Result<Self, ToolboxError> {
        check_names(spec, provided)?;
        let policy = Arc::new(Policy::new(&spec.policy, dir)?);
        let of_commands = Arc::new(env.of_commands(spec)?);
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        let mut fs: BTreeMap<String, Arc<dyn Tool>> = BTreeMap::new();
        if spec.tools.iter().any(|name| name.starts_with("fs.")) {
            let all = files(&policy)?.into_iter();
            fs.extend(all.map(|it| (it.definition().name.clone(), it)));
        }
        let mut seen = Vec::new();
        for name in &spec.tools {
            if seen.contains(&name) {
                continue;
            }
            seen.push(name);
            if let Some(own) = spec.tool.get(name) {
                let tool = OwnTool::new(name, own, dir.to_owned(), Arc::clone(&of_commands));
                check_schema(tool.definition())?;
                tools.push(Arc::new(tool));
            } else if let Some(tool) = fs.remove(name) {
                tools.push(tool);
            } else if name == "shell" {
                let shell = Shell::new(dir.to_owned(), Arc::clone(&of_commands));
                tools.push(Arc::new(shell));
            } else if name == "http.get" {
                tools.push(Arc::new(HttpGet::new()));
            } else if let Some(tool) = provided.iter().find(|it| it.definition().name == *name) {
                check_schema(tool.definition())?;
                tools.push(Arc::clone(tool));
            }
        }
        Ok(Self { tools, policy })
    }

    #[cfg(feature = "mcp")]
    async fn connect(
        &mut self,
        ctx: &Ctx,
        spec: &AgentSpec,
        dir: &Path,
        env: &Environment,
        servers: &[&str],
    ) -> Result<(), ToolboxError> {
        for name in servers {
            let tools = crate::tool::mcp::open(ctx, spec, name, dir, env).await?;
            let wanted = spec.tools.iter();
            let wanted = wanted.map(|pattern| Ok((pattern, matcher(pattern)?)));
            let wanted = wanted.collect::<Result<Vec<_>, ToolboxError>>()?;
            let is_wanted = |tool: &Arc<dyn Tool>| {
                let name = &tool.definition().name;
                wanted.iter().any(|(_, glob)| glob.is_match(name))
            };
            // A name without a star that the server does not have is a mistake, not an empty filter.
            for pattern in spec.tools.iter().filter(|it| is_of(it, name)) {
                let has = tools.iter().any(|tool| tool.definition().name == *pattern);
                if !has && !is_glob(pattern) {
                    let names = tools.iter().map(|tool| tool.definition().name.clone());
                    let has: Vec<String> = names.collect();
                    return Err(ToolboxError::Gone {
                        server: (*name).to_owned(),
                        tool: pattern.clone(),
                        hint: nearest(pattern, has.iter().cloned()),
                        has,
                    });
                }
            }
            self.tools.extend(tools.into_iter().filter(is_wanted));
        }
        Ok(())
    }

    #[cfg(not(feature = "mcp"))]
    #[expect(
        clippy::unused_async,
        reason = "the same signature as with the feature"
    )]
    async fn connect(
        &mut self,
        _ctx: &Ctx,
        _spec: &AgentSpec,
        _dir: &Path,
        _env: &Environment,
        servers: &[&str],
    ) -> Result<(), ToolboxError> {
        match servers.first() {
            None => Ok(()),
            Some(name) => Err(ToolboxError::Server {
                name: (*name).to_owned(),
                why: "this build has no MCP (feature `mcp`)".to_owned(),
            }),
        }
    }

    /// The tools, in the order of the spec; those of servers last.
    pub fn tools(&self) -> &[Arc<dyn Tool>] {
        &self.tools
    }

    /// A tool by its name in the log.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools
            .iter()
            .find(|tool| tool.definition().name == name)
    }

    /// The policy that calls are judged by.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
}

/// Checks arguments against the tool's schema; the error is for the model.
pub fn check_arguments(tool: &Definition, arguments: &Value) -> Result<(), String> {
    check_fit(&tool.name, &tool.schema, arguments)
}

/// [`check_arguments`] for what is called like a tool.
pub(crate) fn check_fit(name: &str, schema: &Value, arguments: &Value) -> Result<(), String> {
    let validator = match jsonschema::options().offline().build(schema) {
        Ok(validator) => validator,
        Err(error) => {
            // A server's: its own check will have to do.
            tracing::warn!(tool = name, %error, "the schema of a tool is none");
            return Ok(());
        }
    };
    let errors = validator.iter_errors(arguments);
    let told: Vec<String> = errors
        .take(ERRORS_MAX)
        .map(|error| {
            let at = error.instance_path().to_string();
            match at.is_empty() {
                true => error.to_string(),
                false => format!("{at}: {error}"),
            }
        })
        .collect();
    match told.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "the arguments do not fit the schema of `{}`: {}",
            name,
            told.join("; ")
        )),
    }
}

/// `plan.update` is the loop's own.
const BUILT_IN: [&str; 8] = [
    "fs.read",
    "fs.list",
    "fs.search",
    "fs.write",
    "fs.edit",
    "shell",
    "http.get",
    "plan.update",
];

/// Whether every name can mean something, and only one thing.
fn check_names(spec: &AgentSpec, provided: &[Arc<dyn Tool>]) -> Result<(), ToolboxError> {
    let own = spec.tool.keys().map(String::as_str);
    let agents = spec.agents.keys().map(String::as_str);
    let provided = provided.iter().map(|tool| tool.definition().name.as_str());
    let all = BUILT_IN.into_iter().chain(own).chain(agents);
    let mut known: Vec<&str> = all.chain(provided).collect();
    known.sort_unstable();
    if let Some(twice) = known.windows(2).find(|it| it[0] == it[1]) {
        return Err(ToolboxError::Twice(twice[0].to_owned()));
    }
    if let Some(fs) = spec
        .mcp
        .keys()
        .find(|name| matches!(name.as_str(), "fs" | "http"))
    {
        return Err(ToolboxError::Twice(fs.clone()));
    }
    for name in &spec.tools {
        let of_server = spec.mcp.keys().any(|server| is_of(name, server));
        if !known.contains(&name.as_str()) && !of_server {
            let servers = spec.mcp.keys().map(|server| format!("{server}.*"));
            let known = known.iter().map(|it| (*it).to_owned());
            return Err(unknown(name, known.chain(servers)));
        }
    }
    for server in spec.mcp.values() {
        for glob in server.tools.iter().chain(server.effects.keys()) {
            matcher(glob)?;
        }
    }
    for name in &spec.tools {
        matcher(name)?;
    }
    Ok(())
}

/// The servers that the spec's tools speak of.
fn named_servers(spec: &AgentSpec) -> Vec<&str> {
    let servers = spec.mcp.keys().map(String::as_str);
    servers
        .filter(|server| spec.tools.iter().any(|name| is_of(name, server)))
        .collect()
}

/// Whether a name or glob speaks of a server's tools.
fn is_of(name: &str, server: &str) -> bool {
    match name.split_once('.') {
        Some((first, _)) => first == server || matcher(first).is_ok_and(|it| it.is_match(server)),
        None => is_glob(name) && matcher(name).is_ok_and(|it| it.is_match(format!("{server}.x"))),
    }
}

fn is_glob(name: &str) -> bool {
    name.contains(['*', '?', '[', '{'])
}

pub(crate) fn matcher(glob: &str) -> Result<globset::GlobMatcher, ToolboxError> {
    let glob = Glob::new(glob).map_err(|_| ToolboxError::Glob(glob.to_owned()))?;
    Ok(glob.compile_matcher())
}

fn check_schema(tool: &Definition) -> Result<(), ToolboxError> {
    let wrong = |why: String| ToolboxError::Schema {
        name: tool.name.clone(),
        why,
    };
    match jsonschema::options().offline().build(&tool.schema) {
        Ok(_) => Ok(()),
        Err(error) => Err(wrong(error.to_string())),
    }
}

fn unknown(name: &str, known: impl Iterator<Item = String>) -> ToolboxError {
    ToolboxError::Unknown {
        name: name.to_owned(),
        hint: nearest(name, known),
    }
}

/// What may have been meant.
fn nearest(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let near = known.map(|known| (distance(name, &known), known));
    let nearest = near.filter(|(distance, _)| *distance <= 1 + name.len() / 4);
    nearest.min().map(|(_, known)| known)
}

/// How many letters must change to make one of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn here(spec: &str) -> Result<Toolbox, ToolboxError> {
        let spec = toml::from_str(spec).unwrap();
        Toolbox::here(&spec, Path::new("/"), &Environment::default(), &[])
    }

    #[test]
    fn names_are_resolved_and_mistakes_are_named() {
        let toolbox = here(
            r#"
            tools = ["shell", "fs.read", "lint", "helper", "github.get_*", "shell"]
            [tool.lint]
            run = "true"
            [mcp.github]
            url = "https://example.invalid"
            [agents.helper]
            description = "helps"
            spec = { name = "helper" }
            "#,
        );
        let toolbox = toolbox.unwrap();
        let names: Vec<&str> = toolbox
            .tools()
            .iter()
            .map(|it| it.definition().name.as_str())
            .collect();
        assert_eq!(names, ["shell", "fs.read", "lint"]);
        let told = |spec: &str| here(spec).err().unwrap().to_string();
        assert_eq!(
            told("tools = [\"fs.raed\"]"),
            "there is no tool `fs.raed`; did you mean `fs.read`?"
        );
        assert_eq!(told("tools = [\"xyzzy\"]"), "there is no tool `xyzzy`");
        assert!(told("[tool.shell]\nrun = \"x\"").contains("more than one"));
        let schema = "tools = [\"a\"]\n[tool.a]\nrun = \"x\"\nschema = { type = 3 }";
        assert!(told(schema).contains("no JSON Schema"), "{}", told(schema));
        assert!(told("policy = { deny = [\"shell:[\"] }").contains("`shell:[`"));
    }

    #[test]
    fn arguments_are_checked_against_the_schema() {
        let toolbox = here("tools = [\"shell\"]").unwrap();
        let shell = toolbox.get("shell").unwrap().definition();
        assert_eq!(check_arguments(shell, &json!({"command": "ls"})), Ok(()));
        let told = check_arguments(shell, &json!({"command": 3, "more": 1})).unwrap_err();
        assert!(
            told.contains("/command: 3 is not of type \"string\""),
            "{told}"
        );
        assert!(check_arguments(shell, &json!("ls")).is_err());
    }
}
