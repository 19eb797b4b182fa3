//! The words that bodies share: kinds, effects, limits, causes, reasons and outcomes. Fields are in
//! alphabetical order here too, because these are written inside of bodies.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Payload;
use crate::id::{RunId, Seq, StepId};

/// What is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// An agent spec.
    Agent,
    /// A workflow spec.
    Workflow,
    /// A registered Rust task.
    Task,
    /// Driven by a client over HTTP.
    External,
    /// A recorded program.
    Record,
}

impl RunKind {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Workflow => "workflow",
            Self::Task => "task",
            Self::External => "external",
            Self::Record => "record",
        }
    }
}

impl fmt::Display for RunKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happens when work is interrupted: run again, run again with the same key, or ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Changes nothing outside.
    Read,
    /// Doing it twice with the same key is doing it once.
    Idempotent,
    /// Must never be repeated blind.
    Write,
}

impl Effect {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Idempotent => "idempotent",
            Self::Write => "write",
        }
    }
}

/// How losing power is guarded against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// An acknowledged append survives a power cut.
    #[default]
    Full,
    /// An acknowledged append survives the process, not a power cut.
    Relaxed,
}

impl Durability {
    /// The name in JSON and settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Relaxed => "relaxed",
        }
    }
}

/// The checkout a run was started in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Git {
    /// The branch, when one was checked out.
    pub branch: Option<String>,
    /// The commit.
    pub commit: String,
    /// Whether there were uncommitted changes.
    pub dirty: bool,
}

/// How a run came from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Started by it.
    Child,
    /// Shares its log up to a point.
    Fork,
    /// A fork that goes on where it failed.
    Retry,
}

/// The run another came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// How.
    pub relation: Relation,
    /// Which run.
    pub run: RunId,
    /// At which event of it.
    pub seq: Seq,
}

/// How many runs with the same key may be driven at once. Each run keeps to its own `max`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLimit {
    /// What is counted together, in the whole store.
    pub key: String,
    /// How many at once.
    pub max: u32,
}

/// Limits; `None` = no limit. Money is in integer micro-dollars.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Child runs.
    pub children: Option<u64>,
    /// Tokens, input and output together.
    pub tokens: Option<u64>,
    /// Tool calls.
    pub tool_calls: Option<u64>,
    /// Micro-dollars.
    pub usd_micros: Option<u64>,
    /// Milliseconds of driven time.
    pub wall_ms: Option<u64>,
}

/// What a run and everyone below it used of their limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Child runs.
    pub children: u64,
    /// Tokens, input and output together.
    pub tokens: u64,
    /// Tool calls.
    pub tool_calls: u64,
    /// Micro-dollars.
    pub usd_micros: u64,
    /// Milliseconds of driven time, along the longest chain; 0 when it was not limited.
    pub wall_ms: u64,
}

/// Who and what made a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The host's name.
    pub host: Option<String>,
    /// Our version.
    pub logreel: Option<String>,
    /// Models that were used.
    pub models: Vec<String>,
    /// Tools that were used.
    pub tools: Vec<String>,
}

/// Where a fork was made, which need not be where its parent was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The checkout.
    pub git: Option<Git>,
    /// The host's name.
    pub host: Option<String>,
    /// Our version.
    pub logreel: Option<String>,
}

/// What is changed in a fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The input.
    Input,
    /// A message was said to the agent: the `message.queued` that follows.
    Message,
    /// The agent's model, by its name: in the `spec.changed` that follows.
    Model(String),
    /// The outcome of a step or a tool call, which follows.
    Result(String),
    /// The spec: the `spec.changed` that follows.
    Spec,
}

/// Why something failed, as people and programs read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The exit status, when it was a command that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// A short name, such as `error`, `panic`, `timeout`.
    pub kind: String,
    /// What happened, in words.
    pub message: String,
    /// Whether trying again may help.
    pub retryable: bool,
    /// The step it happened in.
    pub step: Option<StepId>,
}

/// What was spent. Never falls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spend {
    /// Tokens read from a cache.
    pub cache_read_tokens: u64,
    /// Tokens written to a cache.
    pub cache_write_tokens: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Output tokens spent on reasoning.
    pub reasoning_tokens: u64,
    /// Micro-dollars; `None` when the price is not known, which is not zero.
    pub usd_micros: Option<u64>,
}

/// Why a driver took a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimReason {
    /// Its owner was gone. Five of these without a result are a crash loop.
    Orphaned,
    /// It was queued, or its wait had ended.
    Ready,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Making a plan.
    Planning,
    /// Doing the work.
    Executing,
    /// Checking the work.
    Verifying,
}

/// What became of a write in doubt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// It happened, with this result.
    Returned(Payload),
    /// It failed, with this message.
    Failed(String),
    /// Run it again, with the same key.
    Retry,
}

/// Why a run waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    /// Someone must say yes or no.
    Approval,
    /// Something must be signalled.
    Signal,
    /// Time must pass.
    Timer,
    /// A failed step or call waits for its next attempt, or the run for something that is away.
    Retry,
    /// A child must end.
    Child,
    /// Someone paused it.
    Paused,
    /// Someone must say what became of a write.
    InDoubt,
    /// A limit was reached.
    Budget,
    /// Its drivers keep dying.
    CrashLoop,
}

impl WaitKind {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Signal => "signal",
            Self::Timer => "timer",
            Self::Retry => "retry",
            Self::Child => "child",
            Self::Paused => "paused",
            Self::InDoubt => "in_doubt",
            Self::Budget => "budget",
            Self::CrashLoop => "crash_loop",
        }
    }

    /// Whether the run stops at once, whatever else could go on.
    pub fn stops_everything(self) -> bool {
        matches!(self, Self::Paused | Self::CrashLoop)
    }

    /// Whether the wait is the work of the step that it names, and its end that step's outcome.
    pub fn is_work_of_step(self) -> bool {
        matches!(self, Self::Approval | Self::Signal | Self::Timer)
    }

    /// Whether the step that it names can be one that runs and now stops. One in doubt has stopped
    /// already, and what stops everything is about no step.
    pub fn can_suspend(self) -> bool {
        !self.stops_everything() && self != Self::InDoubt
    }

    /// Whether an answer ends it.
    pub fn is_answerable(self) -> bool {
        matches!(self, Self::Approval | Self::Signal)
    }

    /// Whether only a person can end it (a deadline may still pass).
    pub fn needs_person(self) -> bool {
        matches!(
            self,
            Self::Approval
                | Self::Signal
                | Self::Paused
                | Self::InDoubt
                | Self::Budget
                | Self::CrashLoop
        )
    }
}

impl fmt::Display for WaitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happens when a wait's deadline passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDeadline {
    /// The waiting step fails.
    Fail,
    /// As if someone had said yes.
    Approve,
    /// As if someone had said no.
    Deny,
    /// The wait was for just this.
    Continue,
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitOutcome {
    /// Someone answered.
    Answered,
    /// The signal came.
    Signalled,
    /// The deadline passed.
    TimedOut,
    /// The time it waited for came.
    Elapsed,
    /// Someone resumed the run.
    Resumed,
    /// Someone said what became of the write.
    Resolved,
    /// The limit was raised.
    Raised,
    /// The child ended.
    Finished,
}

/// How a run can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminalStatus {
    /// With a result.
    Completed,
    /// With an error.
    Failed,
    /// By someone.
    Cancelled,
}

/// The outcome of one check or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds.
    Passed,
    /// It does not hold.
    Failed,
    /// Someone must look.
    NeedsReview,
    /// It was not made.
    Skipped,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What it said.
    pub message: Option<String>,
    /// Its name.
    pub name: String,
    /// Whether the whole depends on it.
    pub required: bool,
    /// Its outcome.
    pub verdict: Verdict,
}
