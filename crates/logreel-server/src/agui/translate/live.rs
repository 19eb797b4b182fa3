//! An answer that comes in: words and thoughts as they are said, before they are sealed.

use logreel::core::CallId;
use logreel::{LiveText, RunId};

use super::super::sent::Sent;
use super::words::{message_id, pieces, say};

pub(super) struct Live {
    pub(super) call: CallId,
    pub(super) attempt: u32,
    pub(super) message: String,
    /// What was sent of it.
    pub(super) text: Option<String>,
    /// The reasoning that is open, and how many there were.
    reasoning: Option<String>,
    reasonings: u32,
}

impl Live {
    /// One that begins with this.
    pub(super) fn new(run: &RunId, text: &LiveText) -> Self {
        Self {
            call: text.call.clone(),
            attempt: text.attempt,
            message: message_id(run, &text.call, text.attempt),
            text: None,
            reasoning: None,
            reasonings: 0,
        }
    }

    /// Whether this is a piece of it.
    pub(super) fn has(&self, text: &LiveText) -> bool {
        self.call == text.call && self.attempt == text.attempt
    }

    pub(super) fn say(&mut self, words: &str, out: &mut Vec<Sent>) {
        self.end_reasoning(out);
        let (message_id, role) = (self.message.clone(), "assistant");
        let text = self.text.get_or_insert_with(|| {
            out.push(Sent::TextMessageStart { message_id, role });
            String::new()
        });
        text.push_str(words);
        say(&self.message, words, out);
    }

    pub(super) fn think(&mut self, words: &str, out: &mut Vec<Sent>) {
        if self.reasoning.is_none() {
            self.reasonings += 1;
            let id = format!("{}/thinking/{}", self.message, self.reasonings);
            let (message_id, role) = (id.clone(), "reasoning");
            out.push(Sent::ReasoningStart {
                message_id: id.clone(),
            });
            out.push(Sent::ReasoningMessageStart { message_id, role });
            self.reasoning = Some(id);
        }
        let id = self.reasoning.as_deref().unwrap_or_default();
        out.extend(pieces(words).map(|delta| Sent::ReasoningMessageContent {
            message_id: id.to_owned(),
            delta: delta.to_owned(),
        }));
    }

    pub(super) fn end_reasoning(&mut self, out: &mut Vec<Sent>) {
        if let Some(id) = self.reasoning.take() {
            let message_id = id.clone();
            out.push(Sent::ReasoningMessageEnd { message_id });
            out.push(Sent::ReasoningEnd { message_id: id });
        }
    }
}
