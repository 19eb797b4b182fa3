//! What an AG-UI client sends: `RunAgentInput`. What newer ones add is left aside.

use serde::Deserialize;
use serde_json::Value;

use crate::Problem;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunAgentInput {
    pub(crate) thread_id: String,
    pub(crate) run_id: String,
    pub(crate) messages: Vec<Value>,
    #[serde(default)]
    pub(crate) forwarded_props: Value,
    #[serde(default)]
    pub(crate) resume: Option<Vec<ResumeEntry>>,
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
    /// Refuses what no client may send.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        if self.run_id.is_empty() {
            return Err(Problem::invalid("`runId` is empty"));
        }
        for (place, message) in self.messages.iter().enumerate() {
            if !message["id"].is_string() || !message["role"].is_string() {
                let detail = format!("`messages[{place}]` has no `id` and `role`");
                return Err(Problem::invalid(detail));
            }
        }
        Ok(())
    }

    /// The answers that came with it.
    pub(crate) fn answers(&self) -> &[ResumeEntry] {
        self.resume.as_deref().unwrap_or_default()
    }

    fn last_user_message(&self) -> Option<(usize, &Value)> {
        let mut messages = self.messages.iter().enumerate().rev();
        messages.find(|(_, message)| message["role"] == "user")
    }

    /// The id of the message that is to be answered.
    pub(crate) fn last_message_id(&self) -> Option<&str> {
        self.last_user_message()?.1["id"].as_str()
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
