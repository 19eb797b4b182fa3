//! `answer`: says to a run what it waits to hear.

use std::ops::ControlFlow;
use std::sync::Arc;

use logreel_core::event::WaitOutcome;
use logreel_core::{
    AppendId, Body, Digest, Event, Json, Outside, Payload, Rejected, RunId, Seq, WaitId,
};
use logreel_store::Entry;

use crate::Error;
use crate::engine::{Engine, Inner};
use crate::request::Ask;

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

    /// All that is said.
    fn asked(&self) -> impl serde::Serialize + use<> {
        let (wait, approved) = (self.wait, self.approved);
        let (reason, by) = (self.reason.clone(), self.by.clone());
        ("answer", wait, approved, self.value.clone(), reason, by)
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
    /// Answers an approval or a signal. The same answer again gets the same receipt, also when someone
    /// else gives it.
    pub fn answer(&self, run: &RunId, answer: Answer) -> Ask<Entry> {
        let (engine, run) = (Arc::clone(&self.0), *run);
        Ask::new(async move |request| {
            let redaction = engine.redaction_in(&run).await;
            let answer = Answer {
                value: redaction.json(answer.value),
                reason: answer.reason.map(|reason| redaction.text(reason)),
                ..answer
            };
            let named = request.named(&answer.asked());
            engine.answer(&run, answer, named).await
        })
    }
}

impl Inner {
    async fn answer(
        &self,
        run: &RunId,
        answer: Answer,
        named: Option<AppendId>,
    ) -> Result<Entry, Error> {
        let Answer {
            wait,
            approved,
            value,
            reason,
            by,
        } = answer;
        let wait = match wait {
            Some(wait) => Some(wait),
            None => self.only_question(run).await?,
        };
        let id = match (named, wait) {
            (Some(id), _) => id,
            // With the wait known the id is computed, so that a repeated answer finds its receipt.
            (None, Some(wait)) => {
                let said = Digest::of(format!("{approved:?} {value}").as_bytes()).hex();
                AppendId::new(format!("answer:{wait}:{}", &said[..16]))?
            }
            (None, None) => self.draw_append_id(),
        };
        let (value, blob) = Payload::of(value);
        let command = Outside::Answer {
            wait,
            approved,
            value: value.clone(),
            reason,
            by,
        };
        let blobs = blob.into_iter().collect();
        match self.command(run, id, command, blobs).await {
            Ok(done) => Ok(done.entry),
            // Someone else may have given this very answer, under a name of their own.
            Err(error) => match &error {
                Error::Rejected {
                    why: Rejected::WaitHasEnded(wait),
                    ..
                } if self.was_answered(run, *wait, approved, &value).await? => {
                    Ok(self.store.entry(run).await?)
                }
                _ => Err(error),
            },
        }
    }

    /// Whether the wait ended with this answer.
    async fn was_answered(
        &self,
        run: &RunId,
        wait: WaitId,
        approved: Option<bool>,
        value: &Payload,
    ) -> Result<bool, Error> {
        let mut same = false;
        let mut each = |event: Event| match event.body {
            Body::WaitEnded(ended) if ended.wait == wait => {
                same = ended.outcome == WaitOutcome::Answered
                    && (ended.approved, &ended.value) == (approved, value);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        };
        self.store.scan(run, Seq::FIRST, &mut each).await?;
        Ok(same)
    }

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
