//! What can go wrong, for whoever embeds the library, and how a task says that it failed.

use std::borrow::Cow;
use std::fmt;

use logreel_core::event::{Cause, RunKind};
use logreel_core::{Epoch, Rejected, RunId, Seq, Session, Status, StepId};
use logreel_store::{AppendError, CreateError, EraseError, ForkError, ImportError};

use crate::carry::FileError;
use crate::external::HeadMoved;

/// What to do about an error; the same closed list on the command line and over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request is not one. Correct it.
    Usage,
    /// The request's content does not hold. Correct it.
    Invalid,
    /// No such thing.
    NotFound,
    /// The name fits several.
    Ambiguous,
    /// Over the ceiling; sending it again will not help.
    TooLarge,
    /// The session has an active run. Wait, or interrupt it.
    Busy,
    /// It contradicts what is there.
    Conflict,
    /// Someone else drives the run.
    Driven,
    /// The run has ended.
    Terminal,
    /// The spec is not the one the run was started with.
    SpecChanged,
    /// Another driver took over.
    Fenced,
    /// It does not apply to the run as it is.
    NotApplicable,
    /// Nobody knows who asks. Send a token that is valid.
    Unauthorized,
    /// Whoever asks may not.
    Forbidden,
    /// The store cannot be reached. Try again later.
    Unavailable,
    /// Stored bytes are not what was stored.
    Corrupt,
    /// A newer build wrote it.
    NewerFormat,
    /// A mistake of ours.
    Bug,
}

impl ErrorKind {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Usage,
        Self::Invalid,
        Self::NotFound,
        Self::Ambiguous,
        Self::TooLarge,
        Self::Busy,
        Self::Conflict,
        Self::Driven,
        Self::Terminal,
        Self::SpecChanged,
        Self::Fenced,
        Self::NotApplicable,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Unavailable,
        Self::Corrupt,
        Self::NewerFormat,
        Self::Bug,
    ];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::Ambiguous => "ambiguous",
            Self::TooLarge => "too_large",
            Self::Busy => "busy",
            Self::Conflict => "conflict",
            Self::Driven => "driven",
            Self::Terminal => "terminal",
            Self::SpecChanged => "spec_changed",
            Self::Fenced => "fenced",
            Self::NotApplicable => "not_applicable",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Unavailable => "unavailable",
            Self::Corrupt => "corrupt",
            Self::NewerFormat => "newer_format",
            Self::Bug => "bug",
        }
    }

    /// The exit code of the command line.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usage | Self::Invalid | Self::NotFound | Self::Ambiguous | Self::TooLarge => 2,
            Self::Busy
            | Self::Conflict
            | Self::Driven
            | Self::Terminal
            | Self::SpecChanged
            | Self::Fenced
            | Self::NotApplicable
            | Self::Forbidden => 5,
            Self::Unauthorized
            | Self::Unavailable
            | Self::Corrupt
            | Self::NewerFormat
            | Self::Bug => 4,
        }
    }

    /// The status over HTTP.
    pub fn http_status(self) -> u16 {
        match self {
            Self::Usage | Self::Ambiguous => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Busy
            | Self::Conflict
            | Self::Driven
            | Self::Terminal
            | Self::SpecChanged
            | Self::Fenced
            | Self::NotApplicable => 409,
            Self::TooLarge => 413,
            Self::Invalid => 422,
            Self::Corrupt | Self::NewerFormat | Self::Bug => 500,
            Self::Unavailable => 503,
        }
    }
}

/// Why an operation of the engine did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The run was not created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The store said no.
    #[error(transparent)]
    Store(#[from] logreel_store::Error),
    /// The request does not fit the run as it is.
    #[error("{run}: {why}")]
    Rejected {
        /// Which run.
        run: RunId,
        /// Why.
        why: Rejected,
    },
    /// Someone else drives the run.
    #[error("{run} is driven by {by}")]
    Driven {
        /// Which run.
        run: RunId,
        /// By whom.
        by: String,
    },
    /// The run has ended; `retry` starts a new one from it.
    #[error("{run} has {status}; start a new run, or retry it")]
    Ended {
        /// Which run.
        run: RunId,
        /// How.
        status: Status,
    },
    /// Only what ended badly is retried.
    #[error("{run} is {status}; only a failed or cancelled run is retried ({})", instead_of_retry(*status))]
    NotRetried {
        /// Which run.
        run: RunId,
        /// What it is.
        status: Status,
    },
    /// The run has no such step, or several that are shown alike.
    #[error("{run} has {} step that is shown as `{step}`{}", if *several { "more than one" } else { "no" }, if *several { "; name it by its array" } else { "" })]
    NoSuchStep {
        /// Which run.
        run: RunId,
        /// What was asked for.
        step: String,
        /// Several steps are shown like that.
        several: bool,
    },
    /// The run has no such event.
    #[error("{run} has no event {at}; it has 1 to {head}")]
    NoSuchEvent {
        /// Which run.
        run: RunId,
        /// What was asked for.
        at: Seq,
        /// Its last event.
        head: Seq,
    },
    /// Nothing in the log has the name that a fork should have another result of.
    #[error("{run} has no step or tool call `{call}` that a result could be given for")]
    NoSuchCall {
        /// Which run.
        run: RunId,
        /// What was asked for.
        call: String,
    },
    /// No result can be given for it.
    #[error("no result of `{call}` can be given to a fork of {run}: {why}")]
    NotGiven {
        /// Which run.
        run: RunId,
        /// What was asked for.
        call: String,
        /// Why not, and what to do instead.
        why: String,
    },
    /// The result that a fork should replace was used before the point where they part.
    #[error("the result of `{call}` {how} with event {seq} of {run}; fork it at event {} at the latest to give another", seq.0 - 1)]
    ResultUsed {
        /// Which run.
        run: RunId,
        /// The step or call.
        call: String,
        /// What was made of it.
        how: String,
        /// Where.
        seq: Seq,
    },
    /// The model had not asked for the call yet.
    #[error(
        "call `{call}` of {run} is asked for with event {seq}; fork it there or later to give its result"
    )]
    NotAskedYet {
        /// Which run.
        run: RunId,
        /// The call.
        call: String,
        /// Where it is.
        seq: Seq,
    },
    /// A run goes on under a spec of its own kind only.
    #[error("{run} is of kind {kind}, and cannot go on as {other}")]
    OtherKind {
        /// Which run.
        run: RunId,
        /// Its kind.
        kind: RunKind,
        /// The kind of the spec.
        other: RunKind,
    },
    /// A file that should hold a log as JSON Lines does not.
    #[error("{path}{}: {why}", if *line == 0 { String::new() } else { format!(", line {line}") })]
    LogFile {
        /// Which file.
        path: String,
        /// Which line; 0 when it is none of them.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// The fork was not made.
    #[error(transparent)]
    Fork(ForkError),
    /// The run waits for someone.
    #[error("{run} waits ({waits}); nothing can go on until that ends")]
    Waiting {
        /// Which run.
        run: RunId,
        /// For what.
        waits: String,
    },
    /// The task is registered under another version than the run was started with.
    #[error("{run} was started with another version of `{name}`; accept the change to go on")]
    SpecChanged {
        /// Which run.
        run: RunId,
        /// The task.
        name: String,
    },
    /// No task of that name is registered here.
    #[error("no task named `{name}` is registered in this process")]
    UnknownTask {
        /// The name.
        name: String,
    },
    /// The run's program is known, but this process lacks something it asks for.
    #[error("`{name}` cannot be driven here: {what}")]
    Lacks {
        /// The program's name.
        name: String,
        /// What is missing.
        what: String,
    },
    /// The run cannot be driven again offline.
    #[error("{run} cannot be replayed: {why}")]
    CannotReplay {
        /// Which run.
        run: RunId,
        /// Why.
        why: String,
    },
    /// The input misses the schema of the workflow or agent.
    #[error("the input does not fit `{name}`: {misfit}")]
    Input {
        /// The name of the workflow or agent.
        name: String,
        /// What was expected.
        misfit: String,
    },
    /// A checkpoint's run is in this store already.
    #[error("{0} is in this store already")]
    AlreadyHere(RunId),
    /// A checkpoint's spec is not the one it says it has.
    #[error("the checkpoint of {0} was changed: its spec does not have its spec_digest")]
    DamagedCheckpoint(RunId),
    /// The log that is imported and the one that is here are two that went their own ways.
    #[error("{run} has gone another way here: event {seq} is the first that differs{}", if *moved { " (it was moved away from here)" } else { "" })]
    Diverged {
        /// Which run.
        run: RunId,
        /// The first event that differs.
        seq: Seq,
        /// What is here ends where the run was moved away.
        moved: bool,
    },
    /// The log was not taken in.
    #[error(transparent)]
    Import(ImportError),
    /// The run was not erased.
    #[error(transparent)]
    Erase(EraseError),
    /// A file of runs cannot be read or written, or does not hold.
    #[error(transparent)]
    File(#[from] FileError),
    /// A child alone cannot go on.
    #[error(
        "{run} is part of {parent} and goes on only with it; export that one, with everything below it"
    )]
    PartOf {
        /// Which run.
        run: RunId,
        /// Whose child it is.
        parent: RunId,
    },
    /// What the run has done is not in steps, which is all that a checkpoint carries.
    #[error(
        "{run} is of kind {kind}; a checkpoint holds finished steps only, and would do again what the run \
         has done otherwise"
    )]
    NoCheckpoint {
        /// Which run.
        run: RunId,
        /// Its kind.
        kind: RunKind,
    },
    /// The run went on while it was moved away.
    #[error("{0} went on while it was exported; it stays here, and what was written is a copy")]
    WentOn(RunId),
    /// Only an agent hears what is said to it.
    #[error("{0} is no agent's run, so nobody would hear it")]
    NotSteered(RunId),
    /// Only the client that drives the run can go on with it.
    #[error(
        "{0} is driven from outside; its client goes on with it, once it has claimed its lease"
    )]
    DrivenOutside(RunId),
    /// What was watched of another program is no work that can go on.
    #[error("{0} is the record of another program, which no copy of it can go on with")]
    OnlyRecorded(RunId),
    /// Only runs that were started for a client are driven by one.
    #[error(
        "{0} is not driven from outside; only a run that was started for an external driver is"
    )]
    NotExternal(RunId),
    /// The client's lease is over: it was taken or given back.
    #[error("the lease of {run} is over (its epoch is {current} now); claim a new one")]
    LeaseLost {
        /// Which run.
        run: RunId,
        /// The epoch of the latest lease.
        current: Epoch,
    },
    /// The secret is not that of the run's lease.
    #[error("this is not the secret of the lease of {0}")]
    WrongSecret(RunId),
    /// The log does not end where a client believes.
    #[error("the log of {} ends with event {}; read what came, and append again", .0.run, .0.head.seq)]
    HeadMoved(Box<HeadMoved>),
    /// A client's fact cannot be recorded; nothing of its append was.
    #[error("event {index} ({kind}): {why}")]
    Fact {
        /// Which of the append's events, from 0.
        index: usize,
        /// Its kind.
        kind: String,
        /// What is wrong.
        why: String,
    },
    /// An append without an event.
    #[error("there is nothing to append to {0}")]
    NothingToAppend(RunId),
    /// The run's children go on without it.
    #[error("{run} has live children ({child}); wait for them, or cancel them")]
    HasChildren {
        /// Which run.
        run: RunId,
        /// One of them.
        child: RunId,
    },
    /// The session is closed.
    #[error("session {0} is closed")]
    SessionClosed(Session),
    /// A value does not serialize, or a recorded one does not decode into the asked type.
    #[error("{what} does not fit its type: {source}")]
    Value {
        /// Which value.
        what: String,
        /// What the codec said.
        source: std::sync::Arc<serde_json::Error>,
    },
    /// An id that is not one.
    #[error(transparent)]
    Id(#[from] logreel_core::IdError),
    /// The driver of this run is gone, and why.
    #[error("the run's driver has stopped: {0}")]
    DriverStopped(String),
    /// No run has this name.
    #[error("there is no run {0:?}")]
    NoSuchRun(String),
    /// The name fits several runs.
    #[error("{name:?} fits several runs: {}{}", listed(runs), if *more { " and more" } else { "" })]
    SeveralRuns {
        /// What was asked for.
        name: String,
        /// Some of them.
        runs: Vec<RunId>,
        /// There are more.
        more: bool,
    },
    /// Nothing is named like that.
    #[error("{name:?} cannot name a run: {why}")]
    NotAName {
        /// What was asked for.
        name: String,
        /// Why not.
        why: &'static str,
    },
    /// The engine was closed.
    #[error("the engine is closed")]
    Closed,
}

fn listed(runs: &[RunId]) -> String {
    let runs: Vec<String> = runs.iter().map(ToString::to_string).collect();
    runs.join(", ")
}

fn instead_of_retry(status: Status) -> &'static str {
    match status {
        Status::Completed => "start it again instead",
        _ => "resume drives it on",
    }
}

impl From<ForkError> for Error {
    fn from(error: ForkError) -> Self {
        match error {
            ForkError::Store(error) => Self::Store(error),
            other => Self::Fork(other),
        }
    }
}

impl From<EraseError> for Error {
    fn from(error: EraseError) -> Self {
        match error {
            EraseError::Store(error) => Self::Store(error),
            other => Self::Erase(other),
        }
    }
}

impl From<ImportError> for Error {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Store(error) => Self::Store(error),
            other => Self::Import(other),
        }
    }
}

impl Error {
    pub(crate) fn value(what: impl Into<String>, source: serde_json::Error) -> Self {
        Self::Value {
            what: what.into(),
            source: std::sync::Arc::new(source),
        }
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        use logreel_store::Error as Store;
        match self {
            Self::Create(CreateError::Busy { .. }) => ErrorKind::Busy,
            Self::Create(CreateError::Conflict { .. } | CreateError::KeyOfDeleted { .. }) => {
                ErrorKind::Conflict
            }
            Self::Create(CreateError::SessionClosed(_)) | Self::SessionClosed(_) => {
                ErrorKind::NotApplicable
            }
            Self::Create(CreateError::ParentEnded(_)) | Self::Ended { .. } => ErrorKind::Terminal,
            Self::Create(CreateError::Store(error)) | Self::Store(error) => match error {
                Store::NotFound(_) => ErrorKind::NotFound,
                Store::Unavailable { .. } | Store::Ambiguous { .. } => ErrorKind::Unavailable,
                Store::Invalid { .. } => ErrorKind::Unavailable,
                Store::NewerSchema { .. } | Store::NewerFormat(_) => ErrorKind::NewerFormat,
                Store::Corrupt { .. } => ErrorKind::Corrupt,
                Store::TooLarge { .. } => ErrorKind::TooLarge,
                Store::TooLong { .. } => ErrorKind::Invalid,
                Store::RequestIdTaken(_) => ErrorKind::Conflict,
                Store::StillNeeded { .. }
                | Store::ForkedFrom { .. }
                | Store::ReadOnly(_)
                | Store::ErasedRun(_)
                | Store::Erased(_) => ErrorKind::NotApplicable,
                Store::InvalidCursor(_) => ErrorKind::Usage,
                Store::Bug(_) => ErrorKind::Bug,
            },
            Self::Rejected { why, .. } => match why {
                Rejected::Ended(_) => ErrorKind::Terminal,
                Rejected::WaitHasEnded(_) | Rejected::WentOn => ErrorKind::Conflict,
                Rejected::UnknownWait(_) => ErrorKind::NotFound,
                Rejected::NameTheWait(_) => ErrorKind::Ambiguous,
                Rejected::Illegal(_)
                | Rejected::NotWaiting
                | Rejected::TooLate { .. }
                | Rejected::WrongAnswer { .. }
                | Rejected::NotInDoubt(_)
                | Rejected::NoSuchLimit(_)
                | Rejected::Unheard
                | Rejected::OverBudget(_) => ErrorKind::NotApplicable,
                Rejected::NothingToAdd => ErrorKind::Usage,
            },
            Self::NotRetried { status, .. } if status.is_terminal() => ErrorKind::Terminal,
            Self::NotRetried { .. } => ErrorKind::NotApplicable,
            Self::NoSuchStep { several, .. } => match several {
                true => ErrorKind::Ambiguous,
                false => ErrorKind::NotFound,
            },
            Self::Fork(error) => match error {
                ForkError::PastEnd { .. } => ErrorKind::Terminal,
                ForkError::NoSuchEvent { .. } => ErrorKind::NotFound,
                ForkError::Conflict { .. } => ErrorKind::Conflict,
                ForkError::Erased(_) | ForkError::Illegal(_) => ErrorKind::NotApplicable,
                // `From` leaves none.
                ForkError::Store(_) => ErrorKind::Bug,
            },
            Self::NoSuchEvent { .. } | Self::NoSuchCall { .. } => ErrorKind::NotFound,
            Self::NotGiven { .. } | Self::OtherKind { .. } | Self::LogFile { .. } => {
                ErrorKind::Invalid
            }
            Self::ResultUsed { .. } | Self::NotAskedYet { .. } => ErrorKind::NotApplicable,
            Self::Import(error) => match error {
                ImportError::Changed { .. } | ImportError::KeyTaken { .. } => ErrorKind::Conflict,
                ImportError::Driven { .. } => ErrorKind::Driven,
                ImportError::Busy { .. } => ErrorKind::Busy,
                ImportError::Chain(_) | ImportError::Source(_) => ErrorKind::Invalid,
                // `From` leaves none.
                ImportError::Store(_) => ErrorKind::Bug,
            },
            Self::Erase(error) => match error {
                EraseError::NotEnded { .. } | EraseError::Needed { .. } => ErrorKind::NotApplicable,
                EraseError::Driven(_) => ErrorKind::Driven,
                EraseError::Traces(_) => ErrorKind::Unavailable,
                // `From` leaves none.
                EraseError::Store(_) => ErrorKind::Bug,
            },
            Self::Diverged { .. } | Self::WentOn(_) => ErrorKind::Conflict,
            Self::File(error) => error.kind(),
            Self::PartOf { .. } | Self::NoCheckpoint { .. } => ErrorKind::NotApplicable,
            Self::CannotReplay { .. } => ErrorKind::NotApplicable,
            Self::Driven { .. } => ErrorKind::Driven,
            Self::Waiting { .. } => ErrorKind::NotApplicable,
            Self::SpecChanged { .. } => ErrorKind::SpecChanged,
            Self::UnknownTask { .. } => ErrorKind::NotFound,
            Self::AlreadyHere(_) => ErrorKind::Conflict,
            Self::DamagedCheckpoint(_) => ErrorKind::Invalid,
            Self::HasChildren { .. } | Self::NotSteered(_) => ErrorKind::NotApplicable,
            Self::DrivenOutside(_) | Self::NotExternal(_) | Self::OnlyRecorded(_) => {
                ErrorKind::NotApplicable
            }
            Self::LeaseLost { .. } => ErrorKind::Fenced,
            Self::WrongSecret(_) => ErrorKind::Forbidden,
            Self::HeadMoved(_) => ErrorKind::Conflict,
            Self::Fact { .. } | Self::NothingToAppend(_) => ErrorKind::Invalid,
            Self::Lacks { .. } | Self::Input { .. } => ErrorKind::Invalid,
            Self::Value { .. } | Self::Id(_) => ErrorKind::Invalid,
            Self::NoSuchRun(_) => ErrorKind::NotFound,
            Self::SeveralRuns { .. } => ErrorKind::Ambiguous,
            Self::NotAName { .. } => ErrorKind::Invalid,
            Self::DriverStopped(_) => ErrorKind::Fenced,
            Self::Closed => ErrorKind::Unavailable,
        }
    }
}

impl From<AppendError> for Error {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Store(error) => Self::Store(error),
            AppendError::Conflict { .. }
            | AppendError::Fenced { .. }
            | AppendError::Ended(_)
            | AppendError::Illegal(_) => Self::DriverStopped(error.to_string()),
        }
    }
}

/// How a task or a step says that it failed. Made from any error; [`TaskError::permanent`] stops
/// retries.
pub struct TaskError {
    kind: Cow<'static, str>,
    message: String,
    retryable: bool,
    step: Option<StepId>,
    exit_code: Option<i32>,
}

impl TaskError {
    /// A failure in words; trying again may help.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            kind: Cow::Borrowed("error"),
            message: message.into(),
            retryable: true,
            step: None,
            exit_code: None,
        }
    }

    /// A failure that programs know by its kind.
    pub fn of_kind(kind: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            ..Self::new(message)
        }
    }

    /// A recorded failure.
    pub fn from_cause(cause: &Cause) -> Self {
        Self {
            kind: Cow::Owned(cause.kind.clone()),
            message: cause.message.clone(),
            retryable: cause.retryable,
            step: cause.step.clone(),
            exit_code: cause.exit_code,
        }
    }

    /// Trying again will not help.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.retryable = false;
        self
    }

    /// Whether trying again may help.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// Whether the run was cancelled while this was under way.
    pub fn is_cancelled(&self) -> bool {
        self.kind == Self::CANCELLED
    }

    /// The exit status, when it was a command that failed.
    pub fn exit_code(&self) -> Option<i32> {
        self.exit_code
    }

    /// Another step failed, and this one was given up because of it.
    pub(crate) fn abandoned() -> Self {
        Self::of_kind(Self::ABANDONED, "given up because another step failed").permanent()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.kind == Self::ABANDONED
    }

    /// The same failure in other words.
    pub(crate) fn map_message(mut self, change: impl FnOnce(String) -> String) -> Self {
        self.message = change(self.message);
        self
    }

    const ABANDONED: &str = "abandoned";
    pub(crate) fn with_exit_code(mut self, exit_code: i32) -> Self {
        self.exit_code = Some(exit_code);
        self
    }

    pub(crate) const CANCELLED: &str = "cancelled";

    pub(crate) fn in_step(mut self, step: &StepId) -> Self {
        self.step.get_or_insert_with(|| step.clone());
        self
    }

    /// As the log keeps it.
    pub fn cause(&self) -> Cause {
        Cause {
            exit_code: self.exit_code,
            kind: self.kind.to_string(),
            message: self.message.clone(),
            retryable: self.retryable,
            step: self.step.clone(),
        }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskError({}: {})", self.kind, self.message)
    }
}

/// `TaskError` itself implements no `Error`, like `anyhow::Error`, so that every error converts.
impl<E: std::error::Error> From<E> for TaskError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            let text = inner.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            source = inner.source();
        }
        Self::new(message)
    }
}
