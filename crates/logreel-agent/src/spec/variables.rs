//! Variables of the environment that an agent needs. Only their names: values are read by whoever drives.

use std::collections::{BTreeMap, BTreeSet};

use logreel::spec_file::variables;

use super::{AgentSpec, check};

impl AgentSpec {
    /// The variables that must be set to drive it, those of the agents inside it with them: `${NAME}` in
    /// `env`, `headers` and `url`, `env_from`, and the keys of its models.
    pub fn variables(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        names.extend(self.key_variable().map(str::to_owned));
        of_env(&mut names, &self.env, &self.env_from);
        for server in self.mcp.values() {
            of_env(&mut names, &server.env, &server.env_from);
            of_env(&mut names, &server.headers, &[]);
            of_text(&mut names, server.url.as_deref().unwrap_or_default());
        }
        for agent in self.agents.values() {
            names.extend(agent.spec.variables());
        }
        names
    }

    /// The variable that holds the model's key. A provider that was pointed elsewhere has one only when
    /// it was said.
    pub fn key_variable(&self) -> Option<&str> {
        if let Some(name) = &self.api_key_env {
            return Some(name);
        }
        match self.base_url {
            Some(_) => None,
            None => self.usual_key_variable(),
        }
    }

    /// The variables that hold keys of its model and of the models of the agents inside it, said or by
    /// custom: no command of any of them gets one.
    pub(crate) fn keys(&self) -> BTreeSet<String> {
        let usual = || self.usual_key_variable().map(str::to_owned);
        let own = self.api_key_env.clone().or_else(usual);
        let mut keys: BTreeSet<String> = own.into_iter().collect();
        for agent in self.agents.values() {
            keys.extend(agent.spec.keys());
        }
        keys
    }

    /// One of these keys that a command of it, or of an agent inside it, is to get.
    pub(crate) fn gives_away(&self, keys: &BTreeSet<String>) -> Option<String> {
        let mut given = BTreeSet::new();
        given.extend(self.env.keys().cloned());
        of_env(&mut given, &self.env, &self.env_from);
        for server in self.mcp.values() {
            given.extend(server.env.keys().cloned());
            of_env(&mut given, &server.env, &server.env_from);
        }
        let own = given.intersection(keys).next().cloned();
        let mut agents = self.agents.values();
        own.or_else(|| agents.find_map(|agent| agent.spec.gives_away(keys)))
    }

    /// The variable in which the provider's keys usually are.
    pub(crate) fn usual_key_variable(&self) -> Option<&'static str> {
        match check::provider(&self.model) {
            "anthropic" => Some("ANTHROPIC_API_KEY"),
            "gemini" => Some("GEMINI_API_KEY"),
            "openai" | "openai-responses" => Some("OPENAI_API_KEY"),
            _ => None,
        }
    }
}

fn of_env(names: &mut BTreeSet<String>, env: &BTreeMap<String, String>, from: &[String]) {
    for value in env.values() {
        of_text(names, value);
    }
    names.extend(from.iter().cloned());
}

fn of_text(names: &mut BTreeSet<String>, text: &str) {
    let found = variables(text).unwrap_or_default();
    names.extend(found.into_iter().map(|(_, name)| name.to_owned()));
}
