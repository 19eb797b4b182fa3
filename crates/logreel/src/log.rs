//! The run's log, for a program that goes on by the fold: it looks at what happened, decides what comes
//! next, and records what came of it. A Rust task needs none of this; its steps do it.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::decide::plain_wait;
use logreel_core::event::{Cause, WaitKind, WaitStarted};
use logreel_core::row::OpenWait;
use logreel_core::{
    Blob, Body, CallId, Digest, Epoch, Event, Json, Payload, RunState, Seq, Timestamp, WaitId,
};
use logreel_store::Env;

use crate::ctx::{Counted, Ctx};
use crate::error::TaskError;
use crate::journal::{NEW_WAIT, Stop};
use crate::live::LiveText;
use crate::replay::Stage;

/// The log of the run that a [`Ctx`] is part of; made by [`Ctx::log`].
#[derive(Clone, Copy)]
pub struct Log<'c>(&'c Ctx);

/// Work is under way as long as this lives: the run is not idle.
#[must_use = "dropped at once it says nothing"]
pub struct Busy<'c> {
    _counted: Counted<'c>,
}

impl Ctx {
    /// The run's log.
    pub fn log(&self) -> Log<'_> {
        Log(self)
    }
}

impl<'c> Log<'c> {
    pub(crate) fn ctx(&self) -> &'c Ctx {
        self.0
    }

    /// Looks at the folded state. Nothing may await while it is borrowed.
    pub fn with_state<T>(&self, look: impl FnOnce(&RunState) -> T) -> T {
        self.0.0.journal.with_state(look)
    }

    /// Under which driver this is.
    pub fn epoch(&self) -> Epoch {
        self.0.0.journal.epoch
    }

    /// Every event since the last call, oldest first; the first call gives the whole log. Whoever
    /// appended them, each comes once.
    pub fn unread(&self) -> Vec<Event> {
        self.0.0.journal.take_unread()
    }

    /// Records facts in one append, all or none, and returns when they are durable.
    ///
    /// The error says why a fact was refused; when the run was cancelled it
    /// [is so](TaskError::is_cancelled), and when the driver stops this never returns.
    pub async fn record(
        &self,
        bodies: Vec<Body>,
        blobs: Vec<Blob>,
    ) -> Result<Vec<Event>, TaskError> {
        let commands = bodies.into_iter().map(Into::into).collect();
        match self.0.0.journal.record(commands, blobs).await {
            Ok(events) => Ok(events),
            Err(error) => Err(self.0.0.refused(error).await),
        }
    }

    /// Waits until an effect may begin: nothing new starts once the driver was told to stop, or when
    /// its lease may be gone.
    pub async fn may_begin(&self) -> Result<(), TaskError> {
        let journal = &self.0.0.journal;
        if journal.is_stopped() {
            return Err(self.0.0.until_stopped().await);
        }
        if journal.with_state(|state| state.row.facts.ended.is_some()) {
            return Err(crate::ctx::cancelled());
        }
        crate::lease::check_lease(&self.0.0).await
    }

    /// Does something that may be given up when the driver stops: when the run was cancelled the error
    /// [says so](TaskError::is_cancelled), and otherwise this never returns.
    pub async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, TaskError> {
        let execution = &self.0.0;
        tokio::select! {
            biased;
            done = work => Ok(done),
            stop = execution.journal.told_to_stop() => {
                // The driver need not wait for what will never come.
                let _given_up = Counted::new(&execution.activity.given_up);
                match stop {
                    Stop::Cancelled => Err(crate::ctx::cancelled()),
                    Stop::Paused | Stop::Parked | Stop::Drained | Stop::Lost(_) => {
                        std::future::pending().await
                    }
                }
            }
        }
    }

    /// An event of the run.
    pub async fn event(&self, seq: Seq) -> Result<Event, TaskError> {
        Ok(self.0.0.journal.result(seq).await?)
    }

    /// The value of a body, read from its blob when it is in one.
    pub async fn value(&self, payload: &Payload) -> Result<Json, TaskError> {
        Ok(self.0.0.journal.value(payload).await?)
    }

    /// A blob; `None` when the store has none of that digest.
    pub async fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, TaskError> {
        Ok(self.0.0.journal.blob(digest).await?)
    }

    /// Says that work is under way.
    pub fn busy(&self) -> Busy<'c> {
        Busy {
            _counted: Counted::new(&self.0.0.activity.busy),
        }
    }

    /// Waits for the log to change until something holds. When nothing else goes on, the lease is
    /// given back and the program is dropped here, to be called again when the run is ready.
    pub async fn idle_until(&self, holds: impl Fn(&RunState) -> bool) -> Result<(), TaskError> {
        crate::wait::idle_until(self.0, || self.with_state(&holds)).await
    }

    /// Waits for a time; a short one keeps the driver, a long one is a wait of the run (`retry`).
    pub async fn back_off(&self, call: &CallId, delay: Duration) -> Result<(), TaskError> {
        crate::wait::back_off_call(self.0, call, delay).await
    }

    /// Records that something the run needs is away, and why, without secrets; [`Log::while_away`] waits
    /// until it may be tried again. Without a delay that is when a person resumes the run.
    pub async fn record_away(
        &self,
        name: impl Into<String>,
        why: impl Into<String>,
        delay: Option<Duration>,
    ) -> Result<(), TaskError> {
        crate::wait::record_away(self.0, name.into(), why.into(), delay).await
    }

    /// Waits as long as the log says that something is away, whoever said so. A short wait keeps the
    /// driver, a long one gives the lease back.
    pub async fn while_away(&self) -> Result<(), TaskError> {
        crate::wait::while_away(self.0).await
    }

    /// Asks a person about a call that is not announced yet, unless the log has the question already.
    /// The answer is in the log: [`Log::idle_until`] the wait is over.
    pub async fn ask(&self, question: Question) -> Result<WaitId, TaskError> {
        let Question {
            call,
            tool,
            arguments,
            prompt,
        } = question;
        let of_call = |open: &&OpenWait| {
            open.wait.kind == WaitKind::Approval && open.wait.call.as_ref() == Some(&call)
        };
        let open = self.with_state(|state| {
            let open = state.row.facts.waits.iter().find(of_call);
            open.map(|open| open.wait.wait)
        });
        if let Some(wait) = open {
            return Ok(wait);
        }
        let (arguments, blob) = Payload::of(arguments);
        let wait = WaitStarted {
            arguments: Some(arguments),
            call: Some(call),
            prompt: Some(prompt),
            tool: Some(tool),
            ..plain_wait(WaitKind::Approval, NEW_WAIT)
        };
        let events = self.record(vec![wait.into()], blob.into_iter().collect());
        match events.await?.first().map(|event| &event.body) {
            Some(Body::WaitStarted(wait)) => Ok(wait.wait),
            _ => Err(TaskError::of_kind(
                "bug",
                "a wait was recorded as something else",
            )),
        }
    }

    /// Shows a piece of text to whoever watches in this process. Provisional: it is in no log.
    pub fn show(&self, text: LiveText) {
        self.0.0.engine.live.tell_text(text);
    }

    /// What commands, tools and checks may come upon here beside what they were given, such as the store's password:
    /// whoever records what they print takes it out first. Not for anything else, which must be the same whoever
    /// drives the run. None in a replay.
    pub fn inherited_secrets(&self) -> Vec<String> {
        match self.replaying() {
            Some(_) => Vec::new(),
            None => self.0.0.engine.store.secrets(),
        }
    }

    /// The largest value that can be recorded, in bytes of JSON.
    pub fn payload_bytes_max(&self) -> u64 {
        self.0.0.engine.payload_bytes_max
    }

    /// What the log of a run that is replayed says, when this is a replay: effects are not to be made
    /// then, but to be taken from here.
    pub fn replaying(&self) -> Option<Replaying<'c>> {
        let stage = self.0.0.engine.stage.as_deref();
        stage.map(Replaying)
    }

    /// Time, ids and randomness of the host.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.0.0.journal.env
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.env().now()
    }

    /// The folder the run works in: the one recorded, unless this engine has another.
    pub fn dir(&self) -> Option<std::path::PathBuf> {
        let here = self.0.0.engine.dir.clone();
        here.or_else(|| {
            self.with_state(|state| state.row.facts.dir.as_ref().map(std::path::PathBuf::from))
        })
    }
}

/// The recorded answers of a run that is replayed; made by [`Log::replaying`]. Steps, tool calls and
/// children need none of this: they find their outcome by themselves.
#[derive(Clone, Copy)]
pub struct Replaying<'c>(&'c Stage);

impl Replaying<'_> {
    /// What came of a model call, as it was recorded: `model.answered` or `model.failed`. Never returns
    /// when the log has neither.
    pub async fn model(&self, call: &CallId) -> Body {
        self.0.model(call).await
    }

    /// Why a tool call was refused because of what was found where it led, if it was: nobody can look
    /// there again.
    pub fn refusal(&self, call: &CallId) -> Option<Cause> {
        self.0.refusal(call)
    }

    /// What the first model call of the run was told beside the conversation.
    pub fn first_request(&self) -> Option<serde_json::Value> {
        self.0.first_request()
    }
}

/// What a person is asked about a call.
#[derive(Debug, Clone)]
pub struct Question {
    /// The call.
    pub call: CallId,
    /// The tool.
    pub tool: String,
    /// Its arguments.
    pub arguments: Json,
    /// In words.
    pub prompt: String,
}
