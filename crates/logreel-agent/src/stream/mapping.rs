//! Any lines of JSON, by a small mapping in a TOML file: which lines say what, and where in them.

use std::collections::BTreeMap;

use logreel::core::event::Spend;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::facts::{Facts, micros, words};
use crate::message::{Part, Role, ToolCall};

/// What lines mean. A line is understood when a `[[line]]` of the mapping fits it; the first counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    line: Vec<Line>,
}

/// Why a mapping is none.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// It is no TOML, or a key is not known.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// It maps nothing.
    #[error("it has no [[line]] that says what a line means")]
    Empty,
    /// A line that says nothing.
    #[error(
        "[[line]] number {0} says nothing: give it `message`, `tool_call`, `tool_result`, `usage`, \
         `answer`, `failed` or `ignore = true`"
    )]
    Nothing(usize),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// What a line must have at each path.
    #[serde(default)]
    when: BTreeMap<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<MessageAt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool_call: Option<CallAt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool_result: Option<ResultAt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<UsageAt>,
    /// Where the final answer is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
    /// Where it says that it failed, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    /// Known, and of no interest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    ignore: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageAt {
    role: Role,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallAt {
    call: String,
    name: String,
    arguments: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResultAt {
    call: String,
    output: Option<String>,
    error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageAt {
    model: Option<String>,
    input_tokens: Option<String>,
    output_tokens: Option<String>,
    cache_read_tokens: Option<String>,
    cache_write_tokens: Option<String>,
    reasoning_tokens: Option<String>,
    usd: Option<String>,
}

impl Mapping {
    /// From a TOML file's text.
    pub fn parse(text: &str) -> Result<Self, MappingError> {
        let mapping: Self = toml::from_str(text)?;
        if mapping.line.is_empty() {
            return Err(MappingError::Empty);
        }
        match mapping.line.iter().position(Line::says_nothing) {
            Some(index) => Err(MappingError::Nothing(index + 1)),
            None => Ok(mapping),
        }
    }

    /// Whether some line says what was paid.
    pub(crate) fn says_usd(&self) -> bool {
        let mut usage = self.line.iter().filter_map(|line| line.usage.as_ref());
        usage.any(|usage| usage.usd.is_some())
    }

    pub(super) fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("texts and flags serialize")
    }

    pub(super) fn from_json(json: &Value) -> Option<Self> {
        serde_json::from_value(json.clone()).ok()
    }

    /// Whether a line of the mapping fits.
    pub(super) fn line(&self, line: &Value, facts: &mut Facts) -> bool {
        let fits = |mapped: &&Line| {
            let mut when = mapped.when.iter();
            when.all(|(path, value)| at(line, path) == Some(value))
        };
        match self.line.iter().find(fits) {
            Some(mapped) => mapped.say(line, facts),
            None => false,
        }
    }
}

impl Line {
    fn says_nothing(&self) -> bool {
        self.message.is_none()
            && self.tool_call.is_none()
            && self.tool_result.is_none()
            && self.usage.is_none()
            && self.answer.is_none()
            && self.failed.is_none()
            && !self.ignore
    }

    /// False when what it needs is not there.
    fn say(&self, line: &Value, facts: &mut Facts) -> bool {
        let mut said = self.ignore;
        if let Some(message) = &self.message
            && let Some(text) = at(line, &message.text)
        {
            facts.message(message.role, vec![Part::Text(words(text))]);
            said = true;
        }
        if let Some(called) = &self.tool_call
            && let (Some(call), Some(name)) = (at(line, &called.call), at(line, &called.name))
        {
            let (call, name) = (words(call), words(name));
            let arguments = called.arguments.as_ref().and_then(|path| at(line, path));
            let arguments = arguments.cloned().unwrap_or_default();
            if !facts.has_called(&call) {
                let part = Part::ToolCall(ToolCall {
                    arguments: arguments.clone().into(),
                    call: call.clone(),
                    name: name.clone(),
                });
                facts.message(Role::Assistant, vec![part]);
            }
            facts.call_tool(&call, &name, arguments);
            said = true;
        }
        if let Some(returned) = &self.tool_result
            && let Some(call) = at(line, &returned.call)
        {
            let call = words(call);
            let found = |path: &Option<String>| {
                let found = path.as_ref().and_then(|path| at(line, path));
                found.filter(|it| !it.is_null()).cloned()
            };
            let (output, error) = (found(&returned.output), found(&returned.error));
            let text = words(error.as_ref().or(output.as_ref()).unwrap_or(&Value::Null));
            let part = facts.result(&call, error.is_some(), text.clone());
            match error {
                Some(_) => facts.tool_failed(&call, &text),
                None => facts.tool_returned(&call, output.unwrap_or_default()),
            }
            facts.message(Role::Tool, vec![part]);
            said = true;
        }
        if let Some(usage) = &self.usage {
            usage.count(line, facts);
            said = true;
        }
        if let Some(answer) = self.answer.as_ref().and_then(|path| at(line, path)) {
            facts.answer(answer.clone());
            facts.succeed();
            said = true;
        }
        if let Some(failed) = self.failed.as_ref().and_then(|path| at(line, path))
            && !failed.is_null()
        {
            facts.fail(&words(failed));
            said = true;
        }
        said
    }
}

impl UsageAt {
    /// What is said to have been used is one call of a model.
    fn count(&self, line: &Value, facts: &mut Facts) {
        let tokens = |path: &Option<String>| {
            let found = path.as_ref().and_then(|path| at(line, path));
            found.and_then(Value::as_u64).unwrap_or(0)
        };
        let model = self.model.as_ref().and_then(|path| at(line, path));
        let model = model.map_or_else(|| "unknown".to_owned(), words);
        let usd = self.usd.as_ref().and_then(|path| at(line, path));
        facts.next_call(&model);
        if let Some(open) = facts.open_model() {
            open.spent = Spend {
                cache_read_tokens: tokens(&self.cache_read_tokens),
                cache_write_tokens: tokens(&self.cache_write_tokens),
                input_tokens: tokens(&self.input_tokens),
                output_tokens: tokens(&self.output_tokens),
                reasoning_tokens: tokens(&self.reasoning_tokens),
                usd_micros: None,
            };
        }
        facts.answer_model(usd.and_then(micros));
    }
}

/// What is at a path of keys and numbers with dots between them.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let mut value = value;
    for key in path.split('.') {
        value = match value {
            Value::Array(items) => items.get(key.parse::<usize>().ok()?)?,
            Value::Object(fields) => fields.get(key)?,
            _ => return None,
        };
    }
    Some(value)
}
