//! The run's row: the bounded part of its state, kept beside the log by every append.
//!
//! Outside commands decide from it, lists show it, and it is always equal to what a fold of the whole
//! log gives. It has two parts: `facts` change rarely and are behind an `Arc`, so that a store sees
//! by the pointer whether it must write them again; the `pulse` changes with every event.

mod apply;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::budget::{Driven, Loan, Reserved};
use crate::event::{
    Body, Budget, Cause, Durability, Event, Git, Parent, Phase, Provenance, Relation, RunKind,
    RunLimit, Spend, TerminalStatus, Used, Verification, WaitStarted,
};
use crate::fold::{Illegal, IllegalEvent};
use crate::id::{CallId, Epoch, Head, RunId, Session, StepId, WaitId};
use crate::meaning::{FinalState, ResultSet};
use crate::{Digest, Payload, Timestamp};

pub(crate) use apply::patch;

/// Changes when `fold` gives another result for the same log; rows of another version are rebuilt.
pub const FOLD_VERSION: u32 = 3;

/// A run's status, derived from its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Recorded; nobody began yet.
    Created,
    /// Making a plan.
    Planning,
    /// Doing the work.
    Executing,
    /// Checking the work.
    Verifying,
    /// Nothing can go on until something happens.
    Waiting,
    /// Ended with a result.
    Completed,
    /// Ended with an error.
    Failed,
    /// Ended by someone.
    Cancelled,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Created,
        Self::Planning,
        Self::Executing,
        Self::Verifying,
        Self::Waiting,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Planning => "planning",
            Self::Executing => "executing",
            Self::Verifying => "verifying",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing can follow but late facts.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a status; expected one of created, planning, executing, verifying, waiting, \
     completed, failed, cancelled"
)]
pub struct InvalidStatus(String);

impl FromStr for Status {
    type Err = InvalidStatus;

    fn from_str(text: &str) -> Result<Self, InvalidStatus> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or_else(|| InvalidStatus(text.chars().take(80).collect()))
    }
}

/// How a run ended. Only a completed run has an output, only a failed one a cause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// With a result.
    Completed {
        /// The result.
        output: Payload,
    },
    /// With an error.
    Failed {
        /// Why.
        cause: Cause,
    },
    /// By someone.
    Cancelled {
        /// Why.
        reason: Option<String>,
    },
}

/// How and when a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// When.
    pub at: Timestamp,
    /// How.
    pub end: End,
    /// The digest of the final state's meaning.
    pub final_state_digest: Digest,
}

impl End {
    /// The status it gives.
    pub fn status(&self) -> TerminalStatus {
        match self {
            Self::Completed { .. } => TerminalStatus::Completed,
            Self::Failed { .. } => TerminalStatus::Failed,
            Self::Cancelled { .. } => TerminalStatus::Cancelled,
        }
    }
}

impl From<TerminalStatus> for Status {
    fn from(status: TerminalStatus) -> Self {
        match status {
            TerminalStatus::Completed => Self::Completed,
            TerminalStatus::Failed => Self::Failed,
            TerminalStatus::Cancelled => Self::Cancelled,
        }
    }
}

/// An open wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenWait {
    /// When it began.
    pub since: Timestamp,
    /// What it is for.
    pub wait: WaitStarted,
}

/// A write nobody knows the outcome of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Doubt {
    /// A tool call.
    Call(CallId),
    /// A step.
    Step(StepId),
}

impl Doubt {
    /// Whether someone means this by `name`: the call id, or the step id as shown or as an array.
    pub fn is_named(&self, name: &str) -> bool {
        match self {
            Self::Call(call) => call.as_str() == name,
            Self::Step(step) => step.to_string() == name || step.canonical() == name,
        }
    }
}

/// A tool call under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActiveTool {
    /// Which call.
    pub call: CallId,
    /// Under which driver it was called last.
    pub epoch: Epoch,
    /// The tool.
    pub name: String,
    /// Since when.
    pub since: Timestamp,
}

/// What was spent so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// The sum over the model's answers and failures; `usd_micros` of those with a known price.
    #[serde(skip_serializing_if = "is_default")]
    pub spent: Spend,
    /// Model calls that were issued.
    #[serde(skip_serializing_if = "is_default")]
    pub model_calls: u64,
    /// Model calls whose price is unknown; with any, the total cost is unknown.
    #[serde(skip_serializing_if = "is_default")]
    pub unpriced_calls: u64,
    /// Tool calls that were issued.
    #[serde(skip_serializing_if = "is_default")]
    pub tool_calls: u64,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Usage {
    pub(crate) fn add(&mut self, spent: &Spend) {
        let total = &mut self.spent;
        // Saturating: the figures come from outside, and usage never falls.
        for (sum, more) in [
            (&mut total.cache_read_tokens, spent.cache_read_tokens),
            (&mut total.cache_write_tokens, spent.cache_write_tokens),
            (&mut total.input_tokens, spent.input_tokens),
            (&mut total.output_tokens, spent.output_tokens),
            (&mut total.reasoning_tokens, spent.reasoning_tokens),
        ] {
            *sum = sum.saturating_add(more);
        }
        match spent.usd_micros {
            Some(usd) => {
                total.usd_micros = Some(total.usd_micros.unwrap_or(0).saturating_add(usd));
            }
            None => self.unpriced_calls += 1,
        }
    }

    /// The cost in micro-dollars; `None` when any price is unknown.
    pub fn usd_micros(&self) -> Option<u64> {
        match self.unpriced_calls {
            0 => Some(self.spent.usd_micros.unwrap_or(0)),
            _ => None,
        }
    }
}

/// The part of the row that changes rarely.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The name of the agent, workflow, task or program.
    pub agent: Arc<str>,
    /// Limits.
    pub budget: Budget,
    /// When the run was created.
    pub created_at: Timestamp,
    /// The working folder.
    pub dir: Option<String>,
    /// The document that `state.patched` changes.
    pub document: serde_json::Value,
    /// How the store guards against power loss.
    pub durability: Durability,
    /// How it ended, once it has.
    pub ended: Option<Ended>,
    /// The checkout.
    pub git: Option<Git>,
    /// Writes in doubt.
    pub in_doubt: Vec<Doubt>,
    /// What it runs on.
    pub input: Payload,
    /// The caller's own name for it.
    pub key: Option<String>,
    /// What kind of spec.
    pub kind: RunKind,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// How many runs of its kind may be driven at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<RunLimit>,
    /// What children that have not ended may use, for those with limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loans: Vec<Loan>,
    /// The run it came from.
    pub parent: Option<Parent>,
    /// Where it is; `None` before it began.
    pub phase: Option<Phase>,
    /// Who made it.
    pub provenance: Provenance,
    /// The conversation.
    pub session: Option<Session>,
    /// The digest of the spec's meaning.
    pub spec_digest: Digest,
    /// What had been spent where a fork began: its limits do not count that.
    #[serde(default, skip_serializing_if = "is_default")]
    pub usage_before: Usage,
    /// What the checks said.
    pub verification: Option<Verification>,
    /// Open waits, oldest first.
    pub waits: Vec<OpenWait>,
    /// How many waits there ever were; the next is `w` + this + 1.
    pub waits_started: u32,
}

/// The part of the row that changes with every event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pulse {
    /// Tool calls under way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub active_tools: Vec<ActiveTool>,
    /// What counts against the limits beside `usage`: children, what those that ended used, and model
    /// calls whose driver died. Its time is in `driven`.
    #[serde(skip_serializing_if = "is_default")]
    pub beside: Used,
    /// The end of the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Digest>,
    /// Driven time, of a run whose time is limited.
    #[serde(skip_serializing_if = "is_default")]
    pub driven: Driven,
    /// Model calls under way.
    #[serde(skip_serializing_if = "is_default")]
    pub models_open: u32,
    /// What those of them may cost that said so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Reserved>,
    /// Announced steps under way in this epoch.
    #[serde(skip_serializing_if = "is_default")]
    pub running: u32,
    /// A wait ended beside another, and no driver has gone on since: what follows from it may not have
    /// started, so the run does not count as waiting.
    #[serde(skip_serializing_if = "is_default")]
    pub stirred: bool,
    /// Takeovers of a dead driver's run since the last recorded result.
    #[serde(skip_serializing_if = "is_default")]
    pub takeovers: u32,
    /// What was spent.
    #[serde(skip_serializing_if = "is_default")]
    pub usage: Usage,
}

/// The bounded projection of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Which run.
    pub run: RunId,
    /// The end of its log; `head.seq` is the number of events.
    pub head: Head,
    /// The last event's time.
    pub updated_at: Timestamp,
    /// The last event's epoch.
    pub epoch: Epoch,
    /// What changes rarely.
    pub facts: Arc<Facts>,
    /// What changes with every event.
    pub pulse: Pulse,
}

impl Facts {
    /// Whether only its recorder can go on with the run. The command of a workflow's step is not such a
    /// run: it is started again like any command.
    pub fn is_with_recorder(&self) -> bool {
        let parent = self.parent.as_ref();
        let of_step = parent.is_some_and(|parent| parent.relation == Relation::Child);
        self.kind == RunKind::Record && !of_step
    }
}

impl Row {
    /// The row after event 1.
    pub fn start(run: RunId, event: &Event) -> Result<Self, IllegalEvent> {
        let illegal = |why| IllegalEvent::new(event, why);
        let Body::RunStarted(started) = &event.body else {
            return Err(illegal(Illegal::NotStarted));
        };
        if event.seq != crate::Seq::FIRST {
            return Err(illegal(Illegal::OutOfOrder {
                expected: crate::Seq::FIRST,
            }));
        }
        if event.late {
            return Err(illegal(Illegal::LateBeforeEnd));
        }
        Ok(Self {
            run,
            head: Head {
                seq: event.seq,
                digest: event.digest,
            },
            updated_at: event.at,
            epoch: event.epoch,
            facts: Arc::new(Facts {
                agent: started.agent.clone(),
                budget: started.budget.clone(),
                created_at: event.at,
                dir: started.dir.clone(),
                document: serde_json::Value::Null,
                durability: started.durability,
                ended: None,
                git: started.git.clone(),
                in_doubt: Vec::new(),
                input: started.input.clone(),
                key: started.key.clone(),
                kind: started.kind,
                labels: started.labels.clone(),
                limit: started.limit.clone(),
                loans: Vec::new(),
                parent: started.parent.clone(),
                phase: None,
                provenance: started.provenance.clone(),
                session: started.session.clone(),
                spec_digest: started.spec_digest,
                usage_before: Usage::default(),
                verification: None,
                waits: Vec::new(),
                waits_started: 0,
            }),
            pulse: Pulse {
                context: started.context,
                driven: Driven {
                    from: (started.budget.wall_ms.is_some() && event.epoch > Epoch::NONE)
                        .then_some(event.at),
                    us: 0,
                },
                ..Pulse::default()
            },
        })
    }

    /// The status.
    pub fn status(&self) -> Status {
        if let Some(ended) = &self.facts.ended {
            return ended.end.status().into();
        }
        let stopped = self
            .facts
            .waits
            .iter()
            .any(|open| open.wait.kind.stops_everything());
        if stopped || (!self.facts.waits.is_empty() && !self.has_work_under_way()) {
            return Status::Waiting;
        }
        match self.facts.phase {
            None => Status::Created,
            Some(Phase::Planning) => Status::Planning,
            Some(Phase::Executing) => Status::Executing,
            Some(Phase::Verifying) => Status::Verifying,
        }
    }

    fn has_work_under_way(&self) -> bool {
        self.pulse.running > 0
            || self.pulse.stirred
            || self.pulse.models_open > 0
            || self
                .pulse
                .active_tools
                .iter()
                .any(|tool| tool.epoch == self.epoch)
    }

    /// When a worker may take a run that nobody drives: `updated_at` when it is queued or its wait
    /// has ended, the first deadline when it waits for one, `None` when only a person can act. The
    /// row does not know of children that ended; [`crate::Ready`] does.
    pub fn ready_at(&self) -> Option<Timestamp> {
        let no_child = |_: Option<&StepId>| Ok::<_, std::convert::Infallible>(None);
        let Ok(ready) = crate::Ready::of(self, no_child);
        ready.at(self)
    }

    /// What may stay of it once its run is erased: who it was, how and when it ended, what it cost.
    pub fn erased(&self) -> Self {
        let mut row = self.clone();
        row.pulse.active_tools.clear();
        row.pulse.context = None;
        row.pulse.reserved.clear();
        let facts = Arc::make_mut(&mut row.facts);
        facts.dir = None;
        facts.document = serde_json::Value::Null;
        facts.git = None;
        facts.in_doubt.clear();
        facts.input = Payload::null();
        facts.labels.clear();
        facts.limit = None;
        facts.loans.clear();
        facts.provenance = Provenance::default();
        facts.verification = None;
        facts.waits.clear();
        if let Some(ended) = &mut facts.ended {
            ended.end = match &ended.end {
                End::Completed { .. } => End::Completed {
                    output: Payload::null(),
                },
                End::Failed { cause } => End::Failed {
                    cause: Cause {
                        exit_code: None,
                        kind: "erased".to_owned(),
                        message: "the run was erased".to_owned(),
                        retryable: cause.retryable,
                        step: None,
                    },
                },
                End::Cancelled { .. } => End::Cancelled { reason: None },
            };
        }
        row
    }

    /// The open wait with this id.
    pub fn wait(&self, id: WaitId) -> Option<&OpenWait> {
        self.facts.waits.iter().find(|open| open.wait.wait == id)
    }

    /// The id the next wait gets.
    pub fn next_wait(&self) -> WaitId {
        WaitId(self.facts.waits_started + 1)
    }

    /// The digest of the final state, were the run to end like this now.
    pub fn final_state_digest(&self, results: &ResultSet, end: &End) -> Digest {
        let output = match end {
            End::Completed { output } => Some(output.to_json().to_value()),
            End::Failed { .. } | End::Cancelled { .. } => None,
        };
        let cause = match end {
            End::Failed { cause } => Some(cause.kind.as_str()),
            End::Completed { .. } | End::Cancelled { .. } => None,
        };
        FinalState {
            status: end.status(),
            output,
            cause,
            state: &self.facts.document,
            results: results.to_hex(),
            verification: self.facts.verification.as_ref(),
        }
        .digest()
    }
}
