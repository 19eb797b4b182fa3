//! Whether what an agent's file says fits together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Component, Path};

use globset::Glob;
use logreel::core::event::Effect;
use logreel::spec_file::{Sheet, is_variable, variables};
use logreel::workflow::schema::Schema;
use regex::Regex;
use serde_json::Value;

use super::beside::{Beside, Priced};
use super::listing::{BUILT_IN, fits};
use super::{AgentSpec, McpSpec};

/// Who answers.
const PROVIDERS: [&str; 6] = [
    "anthropic",
    "gemini",
    "ollama",
    "openai",
    "openai-responses",
    "scripted",
];

/// What is before the dot of a built-in tool; a server of that name would hide it.
const TAKEN: [&str; 3] = ["fs", "http", "plan"];

/// Tells what is wrong with a spec that was read from this sheet. What could not be read is not told
/// again.
pub(super) fn check(spec: &AgentSpec, sheet: &mut Sheet, beside: Beside<'_>) {
    let mut check = Check {
        spec,
        sheet,
        beside,
    };
    check.model();
    check.plain();
    check.names();
    check.tools();
    check.policy();
    check.verify();
    check.own_tools();
    check.servers();
    check.keys();
    check.environment("", &spec.env, &spec.env_from);
    check.prices();
}

/// The provider of a model.
pub(super) fn provider(model: &str) -> &str {
    model.split_once('/').map_or("", |(provider, _)| provider)
}

/// Refuses what is no `PROVIDER/MODEL` and no model of the program's own.
pub(super) fn model(model: &str, own: &[String]) -> Result<(), String> {
    match model.split_once('/') {
        _ if own.iter().any(|own| own == model) => Ok(()),
        Some((provider, name)) if PROVIDERS.contains(&provider) && !name.trim().is_empty() => {
            Ok(())
        }
        _ => Err(format!(
            "expected PROVIDER/MODEL with a provider of {}{}, got {model:?}",
            PROVIDERS.join(", "),
            own.iter()
                .map(|own| format!(", or {own}"))
                .collect::<String>()
        )),
    }
}

/// A pattern `TOOL[:ARG]`, both globs.
pub(super) fn pattern(pattern: &str) -> Result<(), String> {
    let (tool, argument) = split(pattern);
    if tool.is_empty() {
        return Err(format!("expected TOOL or TOOL:ARG, got {pattern:?}"));
    }
    for part in [Some(tool), argument].into_iter().flatten() {
        glob(part)?;
    }
    Ok(())
}

/// The tool and the argument of a pattern.
pub(super) fn split(pattern: &str) -> (&str, Option<&str>) {
    match pattern.split_once(':') {
        Some((tool, argument)) => (tool, Some(argument)),
        None => (pattern, None),
    }
}

fn glob(pattern: &str) -> Result<(), String> {
    let message = |error: globset::Error| format!("no pattern: {}: {pattern:?}", error.kind());
    Glob::new(pattern).map(drop).map_err(message)
}

/// Answers from a file cost nothing.
pub(super) fn is_priced(model: &str, priced: Priced<'_>) -> bool {
    provider(model) == "scripted" || priced(model)
}

pub(super) fn unpriced(model: &str) -> String {
    format!("{model} has no known price, so a limit in dollars cannot be kept; set one in `prices`")
}

struct Check<'a> {
    spec: &'a AgentSpec,
    sheet: &'a mut Sheet,
    beside: Beside<'a>,
}

impl Check<'_> {
    fn tell(&mut self, key: &str, problem: Result<(), String>) {
        if let Err(message) = problem {
            self.sheet.complain(key, message);
        }
    }

    fn model(&mut self) {
        let spec = self.spec;
        if !spec.model.trim().is_empty() {
            self.tell("model", model(&spec.model, self.beside.models));
        }
        let is_scripted = provider(&spec.model) == "scripted";
        if let Some(url) = &spec.base_url {
            let is_url = url.starts_with("http://") || url.starts_with("https://");
            if is_scripted {
                let message = "belongs to a model that is asked over HTTP";
                self.sheet.complain("base_url", message);
            } else if !is_url || url.contains("${") {
                let message =
                    format!("expected http://… or https://…, without variables, got {url:?}");
                self.sheet.complain("base_url", message);
            }
        }
        if let Some(name) = &spec.api_key_env
            && !is_variable(name)
        {
            // What looks like a key and no name may be one.
            let message = "expected the name of an environment variable, not what is in it";
            self.sheet.complain("api_key_env", message);
        }
    }

    fn plain(&mut self) {
        let spec = self.spec;
        if spec.name.chars().any(char::is_control) {
            let message = "expected a name without control characters";
            self.sheet.complain("name", message);
        }
        if let Some(dir) = &spec.dir {
            let is_below =
                |it: Component<'_>| matches!(it, Component::Normal(_) | Component::CurDir);
            if !Path::new(dir).components().all(is_below) {
                let message = format!("expected a folder beneath the run's, got {dir:?}");
                self.sheet.complain("dir", message);
            }
        }
        for (key, number) in [
            ("max_turns", spec.max_turns.map(u64::from)),
            (
                "context.compact_at",
                spec.context.as_ref().map(|it| it.compact_at),
            ),
        ] {
            if number == Some(0) {
                self.sheet.complain(key, "expected at least 1");
            }
        }
        self.schema("input_schema", spec.input_schema.as_ref());
        self.schema("output_schema", spec.output_schema.as_ref());
        for (nth, pattern) in spec.redact.iter().enumerate() {
            if Regex::new(pattern).is_err() {
                let message = format!("expected a regular expression, got {pattern:?}");
                self.sheet.complain(&format!("redact[{nth}]"), message);
            }
        }
    }

    fn schema(&mut self, key: &str, schema: Option<&Value>) {
        if let Some(Err(error)) = schema.map(Schema::compile) {
            let key = self.sheet.key_or_file(key);
            self.sheet.complain(&key, error.to_string());
        }
    }

    /// Names of tools, agents and servers stand beside each other before the model.
    fn names(&mut self) {
        let spec = self.spec;
        let mut seen: HashMap<&str, &str> = HashMap::new();
        let tools = spec.tool.keys().map(|name| ("tool", name));
        let agents = spec.agents.keys().map(|name| ("agents", name));
        let servers = spec.mcp.keys().map(|name| ("mcp", name));
        for (kind, name) in tools.chain(agents).chain(servers) {
            let key = format!("{kind}.{name}");
            let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if name.is_empty() || name.len() > 64 || !name.chars().all(is_legal) {
                let message = "expected a name of up to 64 letters, digits, `_` and `-`";
                self.sheet.complain(&key, message);
            }
            let is_built_in = BUILT_IN.iter().any(|(built_in, _)| built_in == name);
            if is_built_in || TAKEN.contains(&name.as_str()) {
                let message = "is the name of a built-in tool; expected another";
                self.sheet.complain(&key, message);
            }
            if self.beside.tools.contains(name) {
                let message = "is the name of a tool of this program; expected another";
                self.sheet.complain(&key, message);
            }
            if let Some(other) = seen.insert(name, kind) {
                let message = format!("there is `[{other}.{name}]` too; expected another name");
                self.sheet.complain(&key, message);
            }
        }
    }

    fn tools(&mut self) {
        let spec = self.spec;
        let mut seen = HashSet::new();
        for (nth, name) in spec.tools.iter().enumerate() {
            let key = format!("tools[{nth}]");
            if !seen.insert(name) {
                self.sheet.complain(&key, format!("{name} is there twice"));
                continue;
            }
            let is_built_in = BUILT_IN.iter().any(|(built_in, _)| built_in == name);
            let is_own = self.beside.tools.contains(name);
            let is_named = spec.tool.contains_key(name) || spec.agents.contains_key(name);
            if is_built_in || is_own || is_named {
                continue;
            }
            match name.split_once('.') {
                Some((server, pattern)) if spec.mcp.contains_key(server) => {
                    self.tell(&key, glob(pattern));
                }
                _ => {
                    let message =
                        format!("there is no tool {name}; expected one of {}", self.known());
                    self.sheet.complain(&key, message);
                }
            }
        }
    }

    /// Every name that `tools` may have.
    fn known(&self) -> String {
        let spec = self.spec;
        let mut known: Vec<String> = BUILT_IN.iter().map(|(name, _)| (*name).into()).collect();
        known.extend(self.beside.tools.iter().cloned());
        known.extend(spec.tool.keys().chain(spec.agents.keys()).cloned());
        known.extend(spec.mcp.keys().map(|server| format!("{server}.TOOL")));
        known.join(", ")
    }

    fn policy(&mut self) {
        let policy = &self.spec.policy;
        for (name, patterns) in [
            ("ask", &policy.ask),
            ("allow", &policy.allow),
            ("deny", &policy.deny),
        ] {
            for (nth, it) in patterns.iter().enumerate() {
                let fits = pattern(it).and_then(|()| self.speaks_of_something(it));
                self.tell(&format!("policy.{name}[{nth}]"), fits);
            }
        }
    }

    /// Refuses a pattern whose tool cannot exist: a denial with a typo would deny nothing.
    fn speaks_of_something(&self, pattern: &str) -> Result<(), String> {
        let spec = self.spec;
        let (tool, _) = split(pattern);
        let server = tool.split_once('.').map_or(tool, |(server, _)| server);
        let is_known = BUILT_IN.iter().any(|(name, _)| fits(tool, name))
            || self.beside.tools.iter().any(|name| fits(tool, name))
            || spec.tool.keys().any(|name| fits(tool, name))
            || spec.agents.keys().any(|name| fits(tool, name))
            || spec.mcp.keys().any(|name| fits(server, name));
        match is_known {
            true => Ok(()),
            false => Err(format!(
                "there is no tool {tool}; expected one of {}, or a pattern that fits one",
                self.known()
            )),
        }
    }

    fn verify(&mut self) {
        let mut seen = HashSet::new();
        for (nth, check) in self.spec.verify.iter().enumerate() {
            if !seen.insert(&check.name) && !check.name.is_empty() {
                let message = format!("there is another check {}", check.name);
                self.sheet.complain(&format!("verify[{nth}].name"), message);
            }
        }
    }

    fn own_tools(&mut self) {
        for (name, tool) in &self.spec.tool {
            let key = format!("tool.{name}.schema");
            self.schema(&key, tool.schema.as_ref());
            let is_object = |schema: &Value| {
                let kind = schema.get("type");
                kind.is_none_or(|kind| kind == "object")
            };
            if tool.schema.as_ref().is_some_and(|it| !is_object(it)) {
                let key = self.sheet.key_or_file(&key);
                let message = "arguments are an object; expected `type = \"object\"`";
                self.sheet.complain(&key, message);
            }
            let is_write = tool.effect.is_none_or(|effect| effect == Effect::Write);
            if tool.reconcile.is_some() && !is_write {
                let message = "belongs to `effect = \"write\"`";
                self.sheet
                    .complain(&format!("tool.{name}.reconcile"), message);
            }
        }
    }

    /// A key of this agent's model is not for the commands of the agents inside it either.
    fn keys(&mut self) {
        let keys = self.spec.keys();
        for (name, agent) in &self.spec.agents {
            if let Some(key) = agent.spec.gives_away(&keys) {
                let message = format!("gives its commands {key}, which {KEY_OF_MODEL}");
                self.sheet.complain(&format!("agents.{name}.spec"), message);
            }
        }
    }

    fn servers(&mut self) {
        for (name, server) in &self.spec.mcp {
            self.server(&format!("mcp.{name}."), server);
        }
    }

    fn server(&mut self, prefix: &str, server: &McpSpec) {
        for (nth, pattern) in server.tools.iter().enumerate() {
            self.tell(&format!("{prefix}tools[{nth}]"), glob(pattern));
        }
        for pattern in server.effects.keys() {
            self.tell(&format!("{prefix}effects.{pattern}"), glob(pattern));
        }
        if let Some(url) = &server.url {
            let starts = ["http://", "https://", "${"];
            if !starts.iter().any(|start| url.starts_with(start)) {
                let message = format!("expected http://… or https://…, got {url:?}");
                self.sheet.complain(&format!("{prefix}url"), message);
            }
            self.value(&format!("{prefix}url"), url);
        }
        for (name, value) in &server.headers {
            self.value(&format!("{prefix}headers.{name}"), value);
        }
        self.environment(prefix, &server.env, &server.env_from);
    }

    fn environment(&mut self, prefix: &str, env: &BTreeMap<String, String>, from: &[String]) {
        let keys = self.spec.keys();
        for (name, value) in env {
            let key = format!("{prefix}env.{name}");
            if !is_variable(name) {
                let message = "expected a name of letters, digits and `_`";
                self.sheet.complain(&key, message);
            }
            self.value(&key, value);
            let named = variables(value).unwrap_or_default();
            if named.iter().any(|(_, name)| keys.contains(*name)) {
                self.sheet.complain(&key, KEY_OF_MODEL);
            }
        }
        for (nth, name) in from.iter().enumerate() {
            let key = format!("{prefix}env_from[{nth}]");
            if !is_variable(name) {
                let message = format!("expected the name of a variable, got {name:?}");
                self.sheet.complain(&key, message);
            }
            if keys.contains(name) {
                self.sheet.complain(&key, KEY_OF_MODEL);
            }
        }
    }

    /// A text that may name variables.
    fn value(&mut self, key: &str, value: &str) {
        if let Err(rest) = variables(value) {
            let message = format!("`{rest}`: expected `${{NAME}}`");
            self.sheet.complain(key, message);
        }
    }

    /// A limit in dollars counts for the agents inside too.
    fn prices(&mut self) {
        let (spec, priced) = (self.spec, self.beside.priced);
        if spec.budget.usd_micros.is_none() {
            return;
        }
        let is_model = model(&spec.model, self.beside.models).is_ok();
        if is_model && !is_priced(&spec.model, priced) {
            self.sheet.complain("budget.usd", unpriced(&spec.model));
        }
        for (name, agent) in &spec.agents {
            if let Some(model) = agent.spec.unpriced_model(priced) {
                let key = format!("agents.{name}.spec");
                self.sheet.complain(&key, unpriced(model));
            }
        }
    }
}

const KEY_OF_MODEL: &str = "holds a model's key, which commands of agents never get";

impl AgentSpec {
    /// A model of it, or of the agents inside it, whose price is not known.
    pub fn unpriced_model(&self, priced: Priced<'_>) -> Option<&str> {
        // What is no model at all was told of.
        if !self.model.trim().is_empty() && !is_priced(&self.model, priced) {
            return Some(&self.model);
        }
        let mut agents = self.agents.values();
        agents.find_map(|agent| agent.spec.unpriced_model(priced))
    }

    /// The models of it and of the agents inside it, each once, its own first.
    pub fn models(&self) -> Vec<String> {
        let mut all = vec![self.model.clone()];
        for agent in self.agents.values() {
            all.extend(agent.spec.models());
        }
        each_once(all)
    }

    /// The tools that it and the agents inside it may call, as their files name them, each once.
    pub fn named_tools(&self) -> Vec<String> {
        let mut all = self.tools.clone();
        for agent in self.agents.values() {
            all.extend(agent.spec.named_tools());
        }
        each_once(all)
    }
}

fn each_once(mut all: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    all.retain(|it| seen.insert(it.clone()));
    all
}
