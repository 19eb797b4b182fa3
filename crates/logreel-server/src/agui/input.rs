//! What an AG-UI client sends: `RunAgentInput`. What newer ones add is left aside.

use logreel::ErrorKind;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Problem;
use crate::call::Call;

/// What a client may send of its conversation: it is told back as long as the stream goes on, beside
/// up to 6 MiB of ours, and clients give up on blocks of 10 MiB.
const MESSAGES_BYTES_MAX: usize = 3 * 1024 * 1024;
const MESSAGES_MAX: usize = 10_000;

pub(crate) struct RunAgentInput {
    pub(crate) thread_id: String,
    pub(crate) run_id: String,
    pub(crate) messages: Vec<Value>,
    pub(crate) forwarded_props: Value,
    pub(crate) resume: Vec<ResumeEntry>,
}

/// As it comes: messages are looked at once it is known that they are not too many.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Given {
    thread_id: String,
    run_id: String,
    messages: Box<RawValue>,
    #[serde(default)]
    forwarded_props: Value,
    #[serde(default)]
    resume: Option<Vec<ResumeEntry>>,
}

/// An answer to something that a run waits for.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResumeEntry {
    pub(crate) interrupt_id: String,
    pub(crate) status: ResumeStatus,
    #[serde(default)]
    pub(crate) payload: Value,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ResumeStatus {
    Resolved,
    Cancelled,
}

impl RunAgentInput {
    /// What a request says; refused when no client may say it.
    pub(crate) fn of(call: &Call) -> Result<Self, Problem> {
        let given: Given = call.required_json()?;
        if given.run_id.is_empty() {
            return Err(Problem::invalid("`runId` is empty"));
        }
        Ok(Self {
            thread_id: given.thread_id,
            run_id: given.run_id,
            messages: messages(given.messages.get())?,
            forwarded_props: given.forwarded_props,
            resume: given.resume.unwrap_or_default(),
        })
    }

    fn last_user_message(&self) -> Option<(usize, &Value)> {
        let mut messages = self.messages.iter().enumerate().rev();
        messages.find(|(_, message)| message["role"] == "user")
    }

    /// The id of the message that is to be answered.
    pub(crate) fn last_message_id(&self) -> Option<&str> {
        self.last_user_message()?.1["id"].as_str()
    }

    /// Whether it brings an input beside the messages.
    pub(crate) fn has_input(&self) -> bool {
        self.forwarded_props.get("input").is_some()
    }

    /// What a run is started on: `forwardedProps.input` when it is there, else the last words of the user.
    pub(crate) fn input(&self) -> Result<Value, Problem> {
        if let Some(input) = self.forwarded_props.get("input") {
            return Ok(input.clone());
        }
        let Some((place, message)) = self.last_user_message() else {
            let detail = "`messages` has no message of the user, and `forwardedProps` no `input`";
            return Err(Problem::invalid(detail));
        };
        match &message["content"] {
            Value::String(text) => Ok(Value::String(text.clone())),
            Value::Array(parts) => {
                let texts = parts.iter().map(|part| match part["text"].as_str() {
                    Some(text) if part["type"] == "text" => Ok(text),
                    _ => Err(Problem::invalid(format!(
                        "`messages[{place}]` has a part of type {}; only text is understood",
                        part["type"]
                    ))),
                });
                let texts: Vec<&str> = texts.collect::<Result<_, _>>()?;
                Ok(Value::String(texts.join("\n")))
            }
            _ => {
                let detail = format!("`messages[{place}].content` is neither text nor parts");
                Err(Problem::invalid(detail))
            }
        }
    }
}

fn messages(text: &str) -> Result<Vec<Value>, Problem> {
    let bytes = text.len();
    if bytes > MESSAGES_BYTES_MAX {
        let what = format!("`messages` has {bytes} bytes, and at most {MESSAGES_BYTES_MAX}");
        return Err(too_many(&what));
    }
    let messages: Vec<Value> = serde_json::from_str(text)
        .map_err(|error| Problem::invalid(format!("`messages` does not fit: {error}")))?;
    let count = messages.len();
    if count > MESSAGES_MAX {
        let what = format!("`messages` has {count} of them, and at most {MESSAGES_MAX}");
        return Err(too_many(&what));
    }
    for (place, message) in messages.iter().enumerate() {
        if !message["id"].is_string() || !message["role"].is_string() {
            let detail = format!("`messages[{place}]` has no `id` and `role`");
            return Err(Problem::invalid(detail));
        }
    }
    Ok(messages)
}

fn too_many(what: &str) -> Problem {
    let detail = format!("{what} are taken");
    let hint = "send the latest messages: the server has the thread's conversation";
    Problem::new(ErrorKind::TooLarge, detail).hint(hint)
}
