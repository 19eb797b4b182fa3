//! `answer`: says to a run what it waits to hear.

use logreel_core::{AppendId, Digest, Json, Outside, Payload, RunId, WaitId};
use logreel_store::Entry;

use crate::Error;
use crate::engine::{Engine, Inner};

/// What someone says to a run that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    wait: Option<WaitId>,
    approved: Option<bool>,
    value: Json,
    reason: Option<String>,
    by: Option<String>,
}

impl Answer {
    /// Yes.
    pub fn approve() -> Self {
        Self::of(Some(true))
    }

    /// No.
    pub fn deny() -> Self {
        Self::of(Some(false))
    }

    /// A value, for a wait that is no approval.
    pub fn value(value: Json) -> Self {
        Self::of(None).with(value)
    }

    fn of(approved: Option<bool>) -> Self {
        Self {
            wait: None,
            approved,
            value: Json::null(),
            reason: None,
            by: None,
        }
    }

    /// Which wait is meant; it may be left out when one is open.
    #[must_use]
    pub fn to(mut self, wait: WaitId) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Adds a value.
    #[must_use]
    pub fn with(mut self, value: Json) -> Self {
        self.value = value;
        self
    }

    /// Says why.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Says who.
    #[must_use]
    pub fn by(mut self, by: impl Into<String>) -> Self {
        self.by = Some(by.into());
        self
    }
}

impl Engine {
    /// Answers an approval or a signal. The same answer again gets the same receipt.
    pub async fn answer(&self, run: &RunId, answer: Answer) -> Result<Entry, Error> {
        let Answer {
            wait,
            approved,
            value,
            reason,
            by,
        } = answer;
        let wait = match wait {
            Some(wait) => Some(wait),
            None => self.0.only_question(run).await?,
        };
        // With the wait known the id is computed, so that a repeated answer finds its receipt.
        let id = match wait {
            Some(wait) => {
                let said = Digest::of(format!("{approved:?} {value}").as_bytes()).hex();
                AppendId::new(format!("answer:{wait}:{}", &said[..16]))?
            }
            None => self.0.draw_append_id(),
        };
        let redaction = self.0.redaction_in(run).await;
        let (value, blob) = Payload::of(redaction.json(value));
        let reason = reason.map(|reason| redaction.text(reason));
        let command = Outside::Answer {
            wait,
            approved,
            value,
            reason,
            by,
        };
        self.0
            .command(run, id, command, blob.into_iter().collect())
            .await
            .map(|done| done.entry)
    }
}

impl Inner {
    /// The one wait that an answer can mean when it names none.
    async fn only_question(&self, run: &RunId) -> Result<Option<WaitId>, Error> {
        let entry = self.store.entry(run).await?;
        let mut open = entry
            .row
            .facts
            .waits
            .iter()
            .filter(|open| open.wait.kind.is_answerable());
        Ok(open
            .next()
            .filter(|_| open.next().is_none())
            .map(|open| open.wait.wait))
    }
}
