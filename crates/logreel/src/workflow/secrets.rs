//! Variables that a workflow takes from the environment of whoever drives it. Their values are read
//! when a process begins to drive the run, never recorded, and blotted out of what is.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::Workflow;
use crate::error::TaskError;

/// A value that is shorter would blot out half the output.
const SECRET_BYTES_MIN: usize = 4;
const REDACTED: &str = "[redacted]";

/// The variables by name. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Secrets(Arc<Variables>);

struct Variables {
    values: BTreeMap<String, String>,
    /// Each as `${NAME}`: what stands for it where it is digested.
    names: BTreeMap<String, String>,
}

impl Secrets {
    /// Reads what the workflow names; one that is not set is an error that says which.
    pub(crate) fn of(workflow: &Workflow) -> Result<Self, TaskError> {
        let (mut values, mut names) = (BTreeMap::new(), BTreeMap::new());
        for name in workflow.variables() {
            let value = std::env::var(&name).map_err(|_| {
                let message = format!("the variable {name} is not set, or is no text");
                TaskError::of_kind("variable", message).permanent()
            })?;
            names.insert(name.clone(), format!("${{{name}}}"));
            values.insert(name, value);
        }
        Ok(Self(Arc::new(Variables { values, names })))
    }

    /// The values by name.
    pub(crate) fn values(&self) -> &BTreeMap<String, String> {
        &self.0.values
    }

    /// What is shown instead of the values, by name.
    pub(crate) fn names(&self) -> &BTreeMap<String, String> {
        &self.0.names
    }

    /// The text without any of the values.
    pub(crate) fn redact_text(&self, text: String) -> String {
        let mut text = text;
        for secret in self.0.values.values() {
            if secret.len() >= SECRET_BYTES_MIN && text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), REDACTED);
            }
        }
        text
    }

    /// The value without any of the values, in texts and in keys.
    pub(crate) fn redact(&self, value: Value) -> Value {
        if self.0.values.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.redact_text(text)),
            Value::Array(items) => items.into_iter().map(|item| self.redact(item)).collect(),
            Value::Object(fields) => {
                let redacted = fields.into_iter();
                redacted
                    .map(|(key, value)| (self.redact_text(key), self.redact(value)))
                    .collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }
}
