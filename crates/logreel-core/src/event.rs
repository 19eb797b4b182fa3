//! Every fact a log may hold, each with a typed body. Fields are in alphabetical order, because a
//! body is stored as serde writes it and its keys are sorted.

mod vocabulary;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{CallId, Epoch, RunId, Seq, Session, StepId, WaitId};
use crate::json::{Json, Payload};
use crate::{Digest, Timestamp};

pub use vocabulary::{
    Budget, Cause, Change, Check, ClaimReason, Durability, Effect, Git, Made, OnDeadline, Parent,
    Phase, Provenance, Relation, Resolution, RunKind, RunLimit, Spend, TerminalStatus, Used,
    Verdict, WaitKind, WaitOutcome,
};

/// A fact of a run, decoded. How it is stored is [`crate::Record`].
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its position in the run.
    pub seq: Seq,
    /// When it was appended; never decreases within a run.
    pub at: Timestamp,
    /// The caller's own time for it.
    pub caller_at: Option<Timestamp>,
    /// The driver's epoch when it was appended.
    pub epoch: Epoch,
    /// Recorded after the run had ended; changes no status.
    pub late: bool,
    /// The chain's digest up to and including this event.
    pub digest: Digest,
    /// What happened.
    pub body: Body,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident($body:ty) = $kind:literal,)*) => {
        /// What happened. One variant per kind; [`Body::Unknown`] is a kind of a newer build, which
        /// can be read and verified but not folded.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Body {
            $($(#[$doc])* $variant($body),)*
            /// Written by a newer build.
            Unknown(Unknown),
        }

        impl Body {
            /// Every kind this build knows, in the order of the documentation.
            pub const KINDS: &[&str] = &[$($kind),*];

            /// The kind's name, such as `step.finished`.
            pub fn kind(&self) -> &str {
                match self {
                    $(Self::$variant(_) => $kind,)*
                    Self::Unknown(unknown) => &unknown.kind,
                }
            }

            pub(crate) fn write(&self) -> Result<String, serde_json::Error> {
                match self {
                    $(Self::$variant(body) => to_text(body),)*
                    Self::Unknown(unknown) => Ok(unknown.raw.text().to_owned()),
                }
            }

            /// `None` when the kind is not one of ours.
            pub(crate) fn read(kind: &str, text: &str) -> Option<Result<Self, serde_json::Error>> {
                match kind {
                    $($kind => Some(serde_json::from_str(text).map(Self::$variant)),)*
                    _ => None,
                }
            }
        }

        $(impl From<$body> for Body {
            fn from(body: $body) -> Self {
                Self::$variant(body)
            }
        })*
    };
}

/// Most bodies are shorter than what is set aside at first: growing a text step by step costs as much as writing it.
fn to_text<T: Serialize>(body: &T) -> Result<String, serde_json::Error> {
    let mut text = Vec::with_capacity(1024);
    serde_json::to_writer(&mut text, body)?;
    String::from_utf8(text).map_err(serde::ser::Error::custom)
}

kinds! {
    /// Event 1 of every run that is not a fork.
    RunStarted(Box<RunStarted>) = "run.started",
    /// Another driver took the run over.
    RunResumed(RunResumed) = "run.resumed",
    /// The run ended with a result.
    RunCompleted(RunCompleted) = "run.completed",
    /// The run ended with an error.
    RunFailed(RunFailed) = "run.failed",
    /// The run was ended by someone.
    RunCancelled(RunCancelled) = "run.cancelled",
    /// The log before this event is another run's.
    RunForked(Box<RunForked>) = "run.forked",
    /// The run entered a phase.
    PhaseEntered(PhaseEntered) = "phase.entered",
    /// A plan was made or revised.
    PlanMade(PlanMade) = "plan.made",
    /// A step began; a short one has only its end.
    StepStarted(StepStarted) = "step.started",
    /// A step has its result.
    StepFinished(StepFinished) = "step.finished",
    /// An attempt of a step failed.
    StepFailed(StepFailed) = "step.failed",
    /// A failed step will be tried again.
    StepRetrying(StepRetrying) = "step.retrying",
    /// A step will not run.
    StepSkipped(StepSkipped) = "step.skipped",
    /// Nobody knows whether a write step happened.
    StepInDoubt(StepInDoubt) = "step.in_doubt",
    /// Someone said what became of a write step in doubt.
    StepResolved(StepResolved) = "step.resolved",
    /// An agent's turn began.
    TurnStarted(Turn) = "turn.started",
    /// An agent's turn ended.
    TurnFinished(TurnFinished) = "turn.finished",
    /// A model was asked.
    ModelCalled(ModelCalled) = "model.called",
    /// A model answered.
    ModelAnswered(ModelAnswered) = "model.answered",
    /// A model call failed.
    ModelFailed(ModelFailed) = "model.failed",
    /// A tool was called.
    ToolCalled(ToolCalled) = "tool.called",
    /// A tool returned.
    ToolReturned(ToolReturned) = "tool.returned",
    /// A tool failed, or was denied.
    ToolFailed(ToolFailed) = "tool.failed",
    /// Nobody knows whether a tool's write happened.
    ToolInDoubt(ToolInDoubt) = "tool.in_doubt",
    /// Someone said what became of a tool call in doubt.
    ToolResolved(ToolResolved) = "tool.resolved",
    /// A message joined the context.
    MessageAdded(MessageAdded) = "message.added",
    /// Someone steers the run; taken at the next turn.
    MessageQueued(MessageQueued) = "message.queued",
    /// The context goes on from a shorter chain.
    ContextCompacted(ContextCompacted) = "context.compacted",
    /// The run's document changed (RFC 6902).
    StatePatched(StatePatched) = "state.patched",
    /// An external run can be picked up from here.
    CheckpointSaved(Checkpoint) = "checkpoint.saved",
    /// An external run went back to a checkpoint.
    CheckpointRestored(CheckpointRestored) = "checkpoint.restored",
    /// A checkpoint is gone.
    CheckpointDeleted(CheckpointDeleted) = "checkpoint.deleted",
    /// The run waits for something.
    WaitStarted(WaitStarted) = "wait.started",
    /// A wait is over.
    WaitEnded(WaitEnded) = "wait.ended",
    /// A signal came, awaited or not.
    SignalReceived(SignalReceived) = "signal.received",
    /// A child run is about to exist.
    ChildStarted(ChildStarted) = "child.started",
    /// A child run ended.
    ChildFinished(ChildFinished) = "child.finished",
    /// The limits changed.
    BudgetChanged(BudgetChanged) = "budget.changed",
    /// The run goes on under another spec.
    SpecChanged(SpecChanged) = "spec.changed",
    /// The checks were made.
    VerificationFinished(Verification) = "verification.finished",
    /// A recorded program wrote something.
    OutputWritten(OutputWritten) = "output.written",
    /// A fact of the embedder's own.
    Custom(Custom) = "custom",
}

// These two are boxed: they are many times larger than the others and come once per log, and every
// event is as large as the largest of them.

impl From<RunStarted> for Body {
    fn from(body: RunStarted) -> Self {
        Self::RunStarted(Box::new(body))
    }
}

impl From<RunForked> for Body {
    fn from(body: RunForked) -> Self {
        Self::RunForked(Box::new(body))
    }
}

impl Body {
    /// Whether this ends a run.
    pub fn is_terminal(&self) -> bool {
        matches!(
            self,
            Self::RunCompleted(_) | Self::RunFailed(_) | Self::RunCancelled(_)
        )
    }

    /// Whether this is a new recorded result, which shows that a driver got somewhere.
    pub fn is_progress(&self) -> bool {
        matches!(
            self,
            Self::StepFinished(_)
                | Self::ModelAnswered(_)
                | Self::ToolReturned(_)
                | Self::ChildFinished(_)
                | Self::WaitEnded(_)
        )
    }
}

/// Whether a count is not worth a field.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A kind this build does not know, with its body as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Unknown {
    /// The kind's name.
    pub kind: String,
    /// The body as stored.
    pub raw: Json,
}

/// Body of `run.started`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    /// The name of the agent, workflow, task or program.
    pub agent: Arc<str>,
    /// Limits.
    pub budget: Budget,
    /// The context node a session goes on from.
    pub context: Option<Digest>,
    /// The working folder.
    pub dir: Option<String>,
    /// How the store guards against power loss.
    pub durability: Durability,
    /// The checkout.
    pub git: Option<Git>,
    /// What it runs on.
    pub input: Payload,
    /// The caller's own name for it, unique in the namespace.
    pub key: Option<String>,
    /// What kind of spec.
    pub kind: RunKind,
    /// Labels to list by.
    pub labels: BTreeMap<String, String>,
    /// How many runs of its kind may be driven at once; `None` = as many as there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<RunLimit>,
    /// The run that started it.
    pub parent: Option<Parent>,
    /// Who made it.
    pub provenance: Provenance,
    /// The conversation it belongs to.
    pub session: Option<Session>,
    /// What to run.
    pub spec: Payload,
    /// The digest of the spec's meaning.
    pub spec_digest: Digest,
    /// The file the spec was read from, to see later whether it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_file: Option<String>,
}

/// Body of `run.resumed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResumed {
    /// Who drives it now.
    pub owner: String,
    /// Why.
    pub reason: ClaimReason,
}

/// Body of `run.completed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunCompleted {
    /// The digest of the final state's meaning.
    pub final_state_digest: Digest,
    /// The result.
    pub output: Payload,
}

/// Body of `run.failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFailed {
    /// Why.
    pub error: Cause,
    /// The digest of the final state's meaning.
    pub final_state_digest: Digest,
}

/// Body of `run.cancelled`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunCancelled {
    /// The digest of the final state's meaning.
    pub final_state_digest: Digest,
    /// Why.
    pub reason: Option<String>,
}

/// Body of `run.forked`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunForked {
    /// The fork's limits, with nothing spent.
    pub budget: Budget,
    /// What is not as it was in the parent. Only tells: what follows from a change is in the events
    /// after this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// The parent's digest at `parent.seq`.
    pub digest: Digest,
    /// Steps that start again.
    pub forgotten: Vec<StepId>,
    /// Tool calls whose outcome does not count any more: another one follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forgotten_calls: Vec<CallId>,
    /// The fork's own input.
    pub input: Payload,
    /// Where the fork was made; `None` in logs of builds that did not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<Made>,
    /// Writes that were open at the fork.
    pub may_have_happened: Vec<String>,
    /// The run it came from.
    pub parent: Parent,
}

/// Body of `phase.entered`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseEntered {
    /// Which.
    pub phase: Phase,
}

/// Body of `plan.made`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanMade {
    /// The plan.
    pub plan: Payload,
}

/// Body of `step.started`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepStarted {
    /// Counts from 1.
    pub attempt: u32,
    /// What an interruption means.
    pub effect: Effect,
    /// The digest of definition and inputs that the result is bound to.
    pub input_digest: Option<Digest>,
    /// The idempotency key.
    pub key: Option<Digest>,
    /// Which step.
    pub step: StepId,
}

/// Body of `step.finished`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepFinished {
    /// Counts from 1.
    pub attempt: u32,
    /// What an interruption would have meant.
    pub effect: Effect,
    /// The digest of definition and inputs that the result is bound to.
    pub input_digest: Option<Digest>,
    /// The result.
    pub output: Payload,
    /// When it began, for a step that was not announced; `None` when `step.started` says it.
    pub started_at: Option<Timestamp>,
    /// Which step.
    pub step: StepId,
}

/// Body of `step.failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepFailed {
    /// Counts from 1.
    pub attempt: u32,
    /// Why.
    pub error: Cause,
    /// When it began, for a step that was not announced.
    pub started_at: Option<Timestamp>,
    /// Which step.
    pub step: StepId,
}

/// Body of `step.retrying`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRetrying {
    /// The attempt to come.
    pub attempt: u32,
    /// How long it waits first.
    pub delay_ms: u64,
    /// Which step.
    pub step: StepId,
}

/// Body of `step.skipped`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepSkipped {
    /// Why.
    pub reason: String,
    /// Which step.
    pub step: StepId,
}

/// Body of `step.in_doubt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepInDoubt {
    /// Under which driver it was announced.
    pub epoch: Epoch,
    /// The idempotency key it ran with.
    pub key: Option<Digest>,
    /// Why nobody knows.
    pub reason: String,
    /// Which step.
    pub step: StepId,
}

/// Body of `step.resolved`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepResolved {
    /// Who said so: a person or `reconcile`.
    pub by: String,
    /// What became of it.
    pub resolution: Resolution,
    /// Which step.
    pub step: StepId,
}

/// Body of `turn.started`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Counts from 1.
    pub turn: u32,
}

/// Body of `turn.finished`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnFinished {
    /// Counts from 1.
    pub turn: u32,
}

/// Body of `model.called`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelCalled {
    /// Counts from 1; above 1 the call is issued again.
    pub attempt: u32,
    /// Which call.
    pub call: CallId,
    /// The one context node the request is made from.
    pub context: Option<Digest>,
    /// The model's name.
    pub model: String,
    /// What the model is told beside the conversation: a blob with its system text, tools, parameters
    /// and schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Digest>,
    /// What the call may cost at most.
    pub reserved: Spend,
}

/// Body of `model.answered`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswered {
    /// Which call.
    pub call: CallId,
    /// Why the model stopped.
    pub finish_reason: Option<String>,
    /// The answer.
    pub message: Payload,
    /// Secrets that were taken out of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redacted: u32,
    /// What it cost.
    pub spent: Spend,
}

/// Body of `model.failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelFailed {
    /// Which call.
    pub call: CallId,
    /// Why.
    pub error: Cause,
    /// Secrets that were taken out of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redacted: u32,
    /// How long the provider wants to be left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What it cost all the same.
    pub spent: Spend,
}

/// Body of `tool.called`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCalled {
    /// The arguments.
    pub arguments: Payload,
    /// Counts from 1; above 1 the call is issued again.
    pub attempt: u32,
    /// Which call.
    pub call: CallId,
    /// What an interruption means.
    pub effect: Effect,
    /// The idempotency key.
    pub key: Option<Digest>,
    /// The tool's name.
    pub name: String,
    /// Secrets that were taken out of the arguments.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redacted: u32,
}

/// Body of `tool.returned`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolReturned {
    /// Which call.
    pub call: CallId,
    /// The result.
    pub output: Payload,
    /// Secrets that were taken out of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redacted: u32,
}

/// Body of `tool.failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolFailed {
    /// Which call.
    pub call: CallId,
    /// Why; of kind `denied` when it was never called.
    pub error: Cause,
    /// Secrets that were taken out of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redacted: u32,
}

/// Body of `tool.in_doubt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolInDoubt {
    /// Which call.
    pub call: CallId,
    /// Why nobody knows.
    pub reason: String,
}

/// Body of `tool.resolved`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResolved {
    /// Who said so.
    pub by: String,
    /// Which call.
    pub call: CallId,
    /// What became of it.
    pub resolution: Resolution,
}

/// Body of `message.added`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageAdded {
    /// The length of the message's text in bytes.
    pub length: u64,
    /// The context node: a blob of {message, previous}.
    pub node: Digest,
    /// The node before it.
    pub previous: Option<Digest>,
    /// The `message.queued` that it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<Seq>,
    /// Secrets that were taken out of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redacted: u32,
    /// `system`, `user`, `assistant`, `tool`.
    pub role: String,
}

/// Body of `message.queued`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageQueued {
    /// Who said it.
    pub by: Option<String>,
    /// What was said.
    pub text: String,
}

/// Body of `context.compacted`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextCompacted {
    /// The new end of the context.
    pub node: Digest,
    /// The old one.
    pub previous: Option<Digest>,
}

/// Body of `state.patched`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatePatched {
    /// The operations (RFC 6902).
    pub patch: json_patch::Patch,
}

/// Body of `checkpoint.saved`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The checkpoint's name.
    pub checkpoint: String,
    /// What it holds.
    pub data: Payload,
    /// The node it was saved at.
    pub step: Option<StepId>,
}

/// Body of `checkpoint.restored`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRestored {
    /// The checkpoint's name.
    pub checkpoint: String,
}

/// Body of `checkpoint.deleted`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointDeleted {
    /// The checkpoint's name.
    pub checkpoint: String,
}

/// Body of `wait.started`: also how an open wait is kept in the row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitStarted {
    /// The arguments of the tool call that is asked about.
    pub arguments: Option<Payload>,
    /// The call it is about.
    pub call: Option<CallId>,
    /// When it ends by itself; absolute.
    pub deadline: Option<Timestamp>,
    /// Why.
    pub kind: WaitKind,
    /// The signal's name, or who paused and why.
    pub name: Option<String>,
    /// What happens then.
    pub on_deadline: Option<OnDeadline>,
    /// What a person is asked.
    pub prompt: Option<String>,
    /// The step that waits.
    pub step: Option<StepId>,
    /// Whether the step was announced under this driver and stops running here; `decide` fills it
    /// in, so that the row, which only counts what runs, knows it.
    #[serde(default)]
    pub suspends: bool,
    /// The tool that is asked about.
    pub tool: Option<String>,
    /// Which wait.
    pub wait: WaitId,
}

impl WaitStarted {
    /// Whether it is for something outside the run that was away, which is no step's or call's own.
    pub fn is_for_what_is_away(&self) -> bool {
        self.kind == WaitKind::Retry && self.step.is_none() && self.call.is_none()
    }

    /// Whether only a person can end it (a deadline may still pass). Of what is away that is so once
    /// nobody looks for it any more.
    pub fn needs_person(&self) -> bool {
        self.kind.needs_person() || self.is_for_what_is_away() && self.deadline.is_none()
    }

    /// Whether a person's `resume` ends it. A step's retry has its own time.
    pub fn ends_with_resume(&self, now: Timestamp) -> bool {
        let is_retry = self.kind == WaitKind::Retry && self.step.is_none();
        // What is due ends by itself.
        let is_due = self.deadline.is_some_and(|deadline| deadline <= now);
        self.kind.stops_everything() || is_retry && !is_due
    }
}

/// Body of `wait.ended`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitEnded {
    /// Yes or no, for an approval.
    pub approved: Option<bool>,
    /// Who ended it.
    pub by: Option<String>,
    /// How.
    pub outcome: WaitOutcome,
    /// What they said.
    pub reason: Option<String>,
    /// The step that waited.
    pub step: Option<StepId>,
    /// The answer's or signal's value.
    pub value: Payload,
    /// Which wait.
    pub wait: WaitId,
}

/// Body of `signal.received`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SignalReceived {
    /// The signal's name.
    pub name: String,
    /// Its value.
    pub value: Payload,
    /// The wait it ended; `None` when it is kept.
    pub wait: Option<WaitId>,
}

/// Body of `child.started`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildStarted {
    /// What was moved to it.
    pub budget: Budget,
    /// The child's id; durable before the child exists.
    pub child: RunId,
    /// Whether it outlives this run.
    pub detached: bool,
    /// The step it is the work of.
    pub step: StepId,
}

/// Body of `child.finished`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildFinished {
    /// Which child.
    pub child: RunId,
    /// Its final state's digest.
    pub final_state_digest: Digest,
    /// How it ended.
    pub status: TerminalStatus,
    /// The step it was the work of.
    pub step: StepId,
    /// What it used, with everyone below it; the rest of what was moved to it returns. Without it
    /// nothing returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Used>,
}

/// Body of `budget.changed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BudgetChanged {
    /// The limits from now on.
    pub budget: Budget,
    /// Who changed them.
    pub by: Option<String>,
    /// The child that what was added is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<RunId>,
}

/// Body of `spec.changed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpecChanged {
    /// The spec from now on.
    pub spec: Payload,
    /// The digest of its meaning.
    pub spec_digest: Digest,
    /// The file it was read from, when that is another one than before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_file: Option<String>,
}

/// Body of `verification.finished`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// Each check.
    pub checks: Vec<Check>,
    /// The whole: any failed → failed; a required one pending or skipped → needs review.
    pub verdict: Verdict,
}

impl Verification {
    /// Draws the verdict from the checks.
    pub fn of(checks: Vec<Check>) -> Self {
        let verdict = if checks.iter().any(|check| check.verdict == Verdict::Failed) {
            Verdict::Failed
        } else if checks
            .iter()
            .any(|check| check.required && check.verdict != Verdict::Passed)
        {
            Verdict::NeedsReview
        } else if checks.is_empty() {
            Verdict::Skipped
        } else {
            Verdict::Passed
        };
        Self { checks, verdict }
    }
}

/// Body of `output.written`: text when the bytes are UTF-8, else base64.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputWritten {
    /// The bytes in base64 when they are not text.
    pub base64: Option<String>,
    /// Secrets that were taken out of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redacted: u32,
    /// The step that wrote it.
    pub step: Option<StepId>,
    /// `stdout` or `stderr`.
    pub stream: String,
    /// The text.
    pub text: Option<String>,
}

/// Body of `custom`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Custom {
    /// The value.
    pub data: Payload,
    /// The embedder's own kind.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_follows_from_the_checks() {
        let check = |verdict, required| Check {
            message: None,
            name: "tests".into(),
            required,
            verdict,
        };
        let verdict = |checks: &[Check]| Verification::of(checks.to_vec()).verdict;
        assert_eq!(verdict(&[]), Verdict::Skipped);
        assert_eq!(verdict(&[check(Verdict::Passed, true)]), Verdict::Passed);
        assert_eq!(
            verdict(&[check(Verdict::Failed, false), check(Verdict::Passed, true)]),
            Verdict::Failed
        );
        assert_eq!(
            verdict(&[check(Verdict::Skipped, true)]),
            Verdict::NeedsReview
        );
        assert_eq!(verdict(&[check(Verdict::Skipped, false)]), Verdict::Passed);
    }
}
