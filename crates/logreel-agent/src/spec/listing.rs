//! The tools of an agent before any server is asked: what an interruption of each means, and whether
//! it may be called.

use std::path::Path;

use globset::Glob;
use logreel::core::event::Effect;
use serde::Serialize;
use serde_json::Value;

use super::AgentSpec;
use super::check::split;
use crate::policy::{Policy, Verdict};
use crate::tool::Definition;

/// Tools that every agent may be given. `plan.update` touches nothing but the run itself.
pub(super) const BUILT_IN: [(&str, Effect); 8] = [
    ("fs.edit", Effect::Idempotent),
    ("fs.list", Effect::Read),
    ("fs.read", Effect::Read),
    ("fs.search", Effect::Read),
    ("fs.write", Effect::Idempotent),
    ("http.get", Effect::Read),
    ("plan.update", Effect::Read),
    ("shell", Effect::Write),
];

/// Whether a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ListedVerdict {
    /// It is.
    Allow,
    /// Someone is asked.
    Ask,
    /// It is not.
    Deny,
}

impl ListedVerdict {
    /// As policies write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// An entry of `tools`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedTool {
    /// Its name, or a pattern over those of a server.
    pub name: String,
    /// What an interruption means; `None` for an agent, which is a run of its own.
    pub effect: Option<Effect>,
    /// Whether the file says so; a built-in tool's is known.
    pub declared: bool,
    /// What becomes of a call that no pattern with an argument speaks of.
    pub verdict: ListedVerdict,
    /// What becomes of those that one speaks of, by the pattern of the argument.
    pub arguments: Vec<(ListedVerdict, String)>,
}

impl AgentSpec {
    /// Its tools, in the order of the file.
    pub fn listed_tools(&self) -> Vec<ListedTool> {
        self.tools.iter().map(|name| self.listed(name)).collect()
    }

    fn listed(&self, name: &str) -> ListedTool {
        let built_in = BUILT_IN.iter().find(|(built_in, _)| *built_in == name);
        let (effect, declared) = if let Some((_, effect)) = built_in {
            // A shell may do anything, so that its effect is only our assumption.
            (Some(*effect), name != "shell")
        } else if let Some(tool) = self.tool.get(name) {
            (
                Some(tool.effect.unwrap_or(Effect::Write)),
                tool.effect.is_some(),
            )
        } else if self.agents.contains_key(name) {
            (None, true)
        } else {
            let effect = self.server_effect(name);
            (Some(effect.unwrap_or(Effect::Write)), effect.is_some())
        };
        // Reads, files inside the folder, and agents, whose own policy speaks of what they do.
        let is_harmless = effect.is_none_or(|it| it == Effect::Read) || name.starts_with("fs.");
        ListedTool {
            name: name.to_owned(),
            effect,
            declared,
            verdict: self.verdict(name, is_harmless),
            arguments: self.by_argument(name),
        }
    }

    /// The effect that the file declares for `SERVER.TOOL`; the longest pattern says most.
    fn server_effect(&self, name: &str) -> Option<Effect> {
        let (server, tool) = name.split_once('.')?;
        let effects = self.mcp.get(server)?.effects.iter();
        effects
            .filter(|(pattern, _)| fits(pattern, tool))
            .max_by_key(|(pattern, _)| pattern.len())
            .map(|(_, effect)| *effect)
    }

    /// As it is judged before a call of which nothing is known.
    fn verdict(&self, name: &str, is_harmless: bool) -> ListedVerdict {
        let tool = Definition {
            name: name.to_owned(),
            description: String::new(),
            schema: Value::Null,
            effect: Effect::Write,
            declared: false,
            timeout: None,
            asks: !is_harmless,
        };
        let judged = Policy::new(&self.policy, Path::new("/"));
        // A pattern that is none was refused where it was read.
        match judged.map(|policy| policy.judge::<&str>(&tool, &[])) {
            Ok(Verdict::Allow) => ListedVerdict::Allow,
            Ok(Verdict::Ask(_)) => ListedVerdict::Ask,
            Ok(Verdict::Deny(_)) | Err(_) => ListedVerdict::Deny,
        }
    }

    fn by_argument(&self, name: &str) -> Vec<(ListedVerdict, String)> {
        let policy = &self.policy;
        let mut found = Vec::new();
        for (verdict, patterns) in [
            (ListedVerdict::Deny, &policy.deny),
            (ListedVerdict::Allow, &policy.allow),
            (ListedVerdict::Ask, &policy.ask),
        ] {
            for pattern in patterns {
                if let (tool, Some(argument)) = split(pattern)
                    && fits(tool, name)
                {
                    found.push((self.asked(verdict), argument.to_owned()));
                }
            }
        }
        found
    }

    fn asked(&self, verdict: ListedVerdict) -> ListedVerdict {
        match verdict {
            ListedVerdict::Ask if self.policy.no_ask => ListedVerdict::Deny,
            verdict => verdict,
        }
    }
}

/// Whether a name fits a glob.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    // A pattern that is none was refused where it was read.
    Glob::new(pattern).is_ok_and(|glob| glob.compile_matcher().is_match(name))
}
