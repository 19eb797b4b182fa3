//! What a tool's process finds in its environment, and what must not be seen of it.
//!
//! Values are read by the process that drives the run, when it begins to; they are in no spec and no
//! log.

use std::collections::BTreeMap;

use crate::spec::{AgentSpec, McpSpec};

/// What every command gets, when it is set.
const INHERITED: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TERM", "TMPDIR"];
/// Where providers' keys are by custom: no tool gets them unasked, and no log their values.
const USUAL_KEYS: [&str; 5] = [
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "OLLAMA_API_KEY",
];

/// The variables of the process that drives the run.
#[derive(Clone, Default)]
pub struct Environment {
    values: BTreeMap<String, String>,
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.values.keys()).finish()
    }
}

/// Why a variable cannot be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// It is not there.
    #[error("the variable {0} is not set, or is no text")]
    Missing(String),
    /// It is the model's key.
    #[error("the variable {0} holds a model's key and is given to no tool")]
    ModelKey(String),
    /// `${` without a name and a `}`.
    #[error("`{0}` should be ${{NAME}}")]
    Malformed(String),
}

impl Environment {
    /// This process's own.
    pub fn of_process() -> Self {
        let texts = std::env::vars_os();
        texts
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// A variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The same, where each of these that is not set is its own name.
    pub(crate) fn with_missing(mut self, names: impl Iterator<Item = String>) -> Self {
        for name in names {
            let value = format!("${{{name}}}");
            self.values.entry(name).or_insert(value);
        }
        self
    }

    /// The text with every `${NAME}` as the value of that variable.
    pub fn expand(&self, text: &str) -> Result<String, EnvironmentError> {
        let mut out = String::new();
        for piece in pieces(text) {
            match piece? {
                Piece::Text(text) => out.push_str(text),
                Piece::Variable(name) => out.push_str(self.needed(name)?),
            }
        }
        Ok(out)
    }

    fn needed(&self, name: &str) -> Result<&str, EnvironmentError> {
        let missing = || EnvironmentError::Missing(name.to_owned());
        self.get(name).ok_or_else(missing)
    }

    /// The whole environment of the agent's commands.
    pub fn of_commands(
        &self,
        spec: &AgentSpec,
    ) -> Result<BTreeMap<String, String>, EnvironmentError> {
        let mut all = BTreeMap::new();
        for name in INHERITED {
            if let Some(value) = self.get(name) {
                all.insert(name.to_owned(), value.to_owned());
            }
        }
        self.add(spec, &spec.env_from, &spec.env, &mut all)?;
        Ok(all)
    }

    /// The whole environment of a check: what whoever drives the run has, but for keys of models, and the
    /// variables of the agent's commands.
    pub fn of_checks(
        &self,
        spec: &AgentSpec,
    ) -> Result<BTreeMap<String, String>, EnvironmentError> {
        let mut all = self.values.clone();
        let keys = spec.keys();
        all.retain(|name, _| !USUAL_KEYS.contains(&name.as_str()) && !keys.contains(name));
        self.add(spec, &spec.env_from, &spec.env, &mut all)?;
        Ok(all)
    }

    /// The whole environment of an MCP server's program.
    pub fn of_server(
        &self,
        spec: &AgentSpec,
        server: &McpSpec,
    ) -> Result<BTreeMap<String, String>, EnvironmentError> {
        let mut all = self.of_commands(spec)?;
        self.add(spec, &server.env_from, &server.env, &mut all)?;
        Ok(all)
    }

    fn add(
        &self,
        spec: &AgentSpec,
        from: &[String],
        set: &BTreeMap<String, String>,
        all: &mut BTreeMap<String, String>,
    ) -> Result<(), EnvironmentError> {
        let keys = spec.keys();
        let refuse_key = |name: &str| match keys.contains(name) {
            true => Err(EnvironmentError::ModelKey(name.to_owned())),
            false => Ok(()),
        };
        for name in from {
            refuse_key(name)?;
            all.insert(name.clone(), self.needed(name)?.to_owned());
        }
        for (name, text) in set {
            refuse_key(name)?;
            for variable in names(text)? {
                refuse_key(variable)?;
            }
            all.insert(name.clone(), self.expand(text)?);
        }
        // Inherited by custom, but named as the key: it is the key.
        all.retain(|name, _| !keys.contains(name));
        Ok(())
    }

    /// What the agent and those it calls need and is not here, or cannot be given.
    pub fn lacks(&self, spec: &AgentSpec) -> Option<EnvironmentError> {
        let missing = spec
            .variables()
            .into_iter()
            .find(|name| self.get(name).is_none())
            .map(EnvironmentError::Missing);
        let given_away = || {
            spec.gives_away(&spec.keys())
                .map(EnvironmentError::ModelKey)
        };
        missing.or_else(given_away).or_else(|| {
            let servers = spec.mcp.values();
            let of_servers = servers.map(|server| self.of_server(spec, server).map(drop));
            let all = std::iter::once(self.of_commands(spec).map(drop)).chain(of_servers);
            all.filter_map(Result::err).next()
        })
    }

    /// The values that must not be recorded, streamed or shown.
    pub fn secrets(&self, spec: &AgentSpec) -> Vec<String> {
        let mut names = spec.variables();
        names.extend(USUAL_KEYS.map(str::to_owned));
        names.extend(spec.keys());
        let public = |name: &String| INHERITED.contains(&name.as_str());
        let values = names.iter().filter(|name| !public(name));
        values
            .filter_map(|name| self.get(name).map(str::to_owned))
            .collect()
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(variables: T) -> Self {
        Self {
            values: variables.into_iter().collect(),
        }
    }
}

enum Piece<'a> {
    Text(&'a str),
    Variable(&'a str),
}

/// The variables that a text names.
pub(crate) fn names(text: &str) -> Result<Vec<&str>, EnvironmentError> {
    let named = pieces(text).filter_map(|piece| match piece {
        Ok(Piece::Text(_)) => None,
        Ok(Piece::Variable(name)) => Some(Ok(name)),
        Err(error) => Some(Err(error)),
    });
    named.collect()
}

fn pieces(text: &str) -> impl Iterator<Item = Result<Piece<'_>, EnvironmentError>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(after) = rest.strip_prefix("${") else {
            let (text, others) = rest.split_at(rest.find("${").unwrap_or(rest.len()));
            rest = others;
            return Some(Ok(Piece::Text(text)));
        };
        let name = after.split('}').next().unwrap_or_default();
        if name.len() == after.len() || !is_variable(name) {
            let malformed = std::mem::take(&mut rest);
            return Some(Err(EnvironmentError::Malformed(malformed.to_owned())));
        }
        rest = &after[name.len() + 1..];
        Some(Ok(Piece::Variable(name)))
    })
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        [
            ("PATH", "/bin"),
            ("HOME", "/home/ada"),
            ("SECRET", "s3cret"),
            ("EXTRA", "extra"),
            ("MODEL_KEY", "key"),
            ("UNRELATED", "x"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
        .collect()
    }

    fn spec(text: &str) -> AgentSpec {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_command_gets_the_usual_ones_and_what_the_spec_names() {
        let spec = spec(
            r#"
            env_from = ["EXTRA"]
            env = { TOKEN = "Bearer ${SECRET}!", MODE = "test" }
            api_key_env = "MODEL_KEY"
            [mcp.one]
            env = { ONLY_HERE = "1" }
            headers = { Authorization = "${HEADER}" }
            url = "https://${HOST}/mcp"
            "#,
        );
        let of_commands = environment().of_commands(&spec).unwrap();
        let expected = [
            ("EXTRA", "extra"),
            ("HOME", "/home/ada"),
            ("MODE", "test"),
            ("PATH", "/bin"),
            ("TOKEN", "Bearer s3cret!"),
        ];
        let all: Vec<(&str, &str)> = of_commands.iter().map(|(n, v)| (&**n, &**v)).collect();
        assert_eq!(all, expected);
        let of_server = environment().of_server(&spec, &spec.mcp["one"]).unwrap();
        assert_eq!(of_server.len(), 6);
        let needed: Vec<String> = spec.variables().into_iter().collect();
        assert_eq!(needed, ["EXTRA", "HEADER", "HOST", "MODEL_KEY", "SECRET"]);
        let lacks = environment().lacks(&spec).unwrap();
        assert_eq!(lacks, EnvironmentError::Missing("HEADER".to_owned()));
        let secrets = environment().secrets(&spec);
        assert_eq!(secrets, ["extra", "key", "s3cret"]);
    }

    #[test]
    fn the_models_key_reaches_no_tool() {
        for text in [
            "env_from = [\"MODEL_KEY\"]",
            "env = { MODEL_KEY = \"x\" }",
            "env = { OTHER = \"${MODEL_KEY}\" }",
            "[mcp.one]\nenv = { OTHER = \"${MODEL_KEY}\" }",
        ] {
            let spec = spec(&format!("api_key_env = \"MODEL_KEY\"\n{text}"));
            let lacks = environment().lacks(&spec);
            let key = EnvironmentError::ModelKey("MODEL_KEY".to_owned());
            assert_eq!(lacks, Some(key), "{text}");
        }
        // A key that nobody named is one by custom, and an agent inside has one too.
        for text in [
            "model = \"anthropic/x\"\nenv_from = [\"ANTHROPIC_API_KEY\"]",
            "model = \"openai/x\"\nbase_url = \"http://h\"\nenv = { A = \"${OPENAI_API_KEY}\" }",
            "env_from = [\"MODEL_KEY\"]\n[agents.in]\ndescription = \"\"\nspec = { api_key_env = \"MODEL_KEY\" }",
            "api_key_env = \"MODEL_KEY\"\n[agents.in]\ndescription = \"\"\nspec = { env_from = [\"MODEL_KEY\"] }",
        ] {
            let keys =
                ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"].map(|key| (key.to_owned(), "k".to_owned()));
            let mut environment = environment();
            environment.values.extend(keys);
            let lacks = environment.lacks(&spec(text));
            assert!(
                matches!(lacks, Some(EnvironmentError::ModelKey(_))),
                "{text}: {lacks:?}"
            );
        }
        let spec = spec("api_key_env = \"HOME\"");
        let of_commands = environment().of_commands(&spec).unwrap();
        assert_eq!(of_commands.keys().collect::<Vec<_>>(), ["PATH"]);
    }

    #[test]
    fn what_looks_like_a_variable_must_be_one() {
        let expand = |text| environment().expand(text);
        assert_eq!(expand("$HOME ${HOME}$").unwrap(), "$HOME /home/ada$");
        for text in ["${", "a ${HOME", "${}", "${A-B}"] {
            let error = expand(text).unwrap_err();
            assert!(matches!(error, EnvironmentError::Malformed(_)), "{text}");
        }
    }
}
