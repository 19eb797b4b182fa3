//! What a person says beside a spec file: `--model`, `--allow`, `--no-ask`. It is stored with the spec, so
//! that a resume can tell a file that changed from one that was only overridden.

use std::path::Path;

use logreel::spec_file::{Problem, Problems};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::beside::Beside;
use super::read::{Unread, script_of};
use super::{AgentSpec, check, is_default};

/// What replaces or adds to what a file says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overrides {
    /// Another model; `scripted/FILE` is relative to the current folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// More patterns of what it may do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Asks are denials.
    #[serde(skip_serializing_if = "is_default")]
    pub no_ask: bool,
}

/// [`Overrides`], with the file they name.
pub(super) struct Replaced<'a> {
    said: &'a Overrides,
    script: Option<Vec<Value>>,
}

impl Overrides {
    /// Whether nothing was said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn read(&self, beside: Beside<'_>) -> Result<Replaced<'_>, Problems> {
        let mut problems = Vec::new();
        let mut script = None;
        if let Some(model) = &self.model {
            match check::model(model, beside.models) {
                Err(message) => problems.push(of_flag("--model", message)),
                Ok(()) => match read_script(model) {
                    Ok(read) => script = read,
                    Err(Problems(more)) => problems.extend(more),
                },
            }
        }
        let bad = |pattern: &String| check::pattern(pattern).err();
        let bad = self.allow.iter().filter_map(bad);
        problems.extend(bad.map(|message| of_flag("--allow", message)));
        match problems.is_empty() {
            true => Ok(Replaced { said: self, script }),
            false => Err(Problems(problems)),
        }
    }
}

impl Replaced<'_> {
    pub(super) fn has_model(&self) -> bool {
        self.said.model.is_some()
    }

    pub(super) fn apply(&self, spec: &mut AgentSpec) {
        if let Some(model) = &self.said.model {
            spec.replace_model(model.clone(), self.script.clone());
        }
        spec.apply_rules(self.said);
    }
}

impl AgentSpec {
    /// The file as it is now, with what was said beside it when `self` was read from it: equal to
    /// `self` when nothing changed.
    pub fn read_again(&self, path: impl AsRef<Path>, beside: Beside<'_>) -> Result<Self, Problems> {
        let replaced = Replaced {
            said: &self.overrides,
            // The answers of another model are no part of the file.
            script: self.overrides.model.as_ref().and(self.script.clone()),
        };
        // A file that names none goes on with what it was started with, whatever the settings say now.
        let beside = Beside {
            model: Some(&self.model),
            ..beside
        };
        Self::read_replaced(path.as_ref(), &replaced, beside)
    }

    /// The same agent on another model, `scripted/FILE` relative to the current folder.
    pub fn on_model(&self, model: &str, beside: Beside<'_>) -> Result<Self, Problems> {
        check::model(model, beside.models).map_err(|message| of_flag("--model", message))?;
        let mut spec = self.clone();
        spec.replace_model(model.to_owned(), read_script(model)?);
        spec.overrides.model = Some(model.to_owned());
        if spec.budget.usd_micros.is_some() && !check::is_priced(model, beside.priced) {
            return Err(of_flag("--model", check::unpriced(model)).into());
        }
        Ok(spec)
    }

    /// Where the old provider was and what its key was called means nothing to another.
    fn replace_model(&mut self, model: String, script: Option<Vec<Value>>) {
        if check::provider(&model) != check::provider(&self.model) {
            self.base_url = None;
            self.api_key_env = None;
        }
        self.model = model;
        self.script = script;
    }

    /// Nobody is asked for the agents inside it either. What it may do is its own: theirs stays.
    fn ask_nobody(&mut self, no_ask: bool) {
        self.policy.no_ask |= no_ask;
        for agent in self.agents.values_mut() {
            agent.spec.ask_nobody(no_ask);
        }
    }

    fn apply_rules(&mut self, said: &Overrides) {
        self.policy.allow.extend(said.allow.iter().cloned());
        self.ask_nobody(said.no_ask);
        self.overrides = said.clone();
    }
}

fn read_script(model: &str) -> Result<Option<Vec<Value>>, Problems> {
    let Some(file) = model.strip_prefix("scripted/") else {
        return Ok(None);
    };
    match script_of(Path::new(file)) {
        Ok(script) => Ok(Some(script)),
        Err(Unread::File(message)) => Err(of_flag("--model", message).into()),
        Err(Unread::Lines(problems)) => Err(Problems(problems)),
    }
}

fn of_flag(flag: &str, message: impl Into<String>) -> Problem {
    Problem {
        file: None,
        line: None,
        column: None,
        key: flag.to_owned(),
        message: message.into(),
    }
}
