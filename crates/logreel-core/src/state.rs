//! Everything a driver needs to know about a run, folded from its log.
//!
//! Results are not kept here, only where they are: a run of a million steps must fold in bounded
//! memory, and whoever wants a result reads its event.

use std::collections::VecDeque;

use foldhash::fast::FixedState;

use crate::event::{Cause, Effect, Event};
use crate::fold::IllegalEvent;
use crate::id::{CallId, Epoch, RunId, Seq, StepId, WaitId};
use crate::row::Row;
use crate::{Body, Digest, Payload, Timestamp};

/// A map whose hasher is fast and the same in every process.
pub type Map<K, V> = std::collections::HashMap<K, V, FixedState>;
/// A set with the same hasher.
pub type Set<K> = std::collections::HashSet<K, FixedState>;

/// A run's whole state. Only [`crate::fold()`] makes one.
#[derive(Debug, Clone, PartialEq)]
pub struct RunState {
    /// The bounded part, equal to the stored row.
    pub row: Row,
    /// What to run.
    pub spec: Payload,
    /// The context node it began from.
    pub started_context: Option<Digest>,
    /// Every step the log speaks of.
    pub steps: Map<StepId, StepState>,
    /// The write steps among them that were announced under the spec as it is.
    pub writes: Set<StepId>,
    /// Every tool call the log speaks of.
    pub tools: Map<CallId, CallState>,
    /// Every model call the log speaks of.
    pub models: Map<CallId, CallState>,
    /// Children that have not ended.
    pub children: Map<RunId, OpenChild>,
    /// Signals nobody awaited yet: name and where they are.
    pub signals: VecDeque<(String, Seq)>,
    /// Waits whose signal has come and whose end comes next.
    pub signalled: Vec<WaitId>,
    /// Steering messages that were not taken yet.
    pub queued: VecDeque<Seq>,
    /// The last turn that began.
    pub turn: u32,
    /// Where an external run can be picked up: its last saved checkpoint.
    pub checkpoint: Option<Seq>,
}

/// What the log says about a step. Small, because there may be a million.
#[derive(Debug, Clone, PartialEq)]
pub enum StepState {
    /// Its result is in this event (`step.finished` or `step.resolved`).
    Finished {
        /// Where.
        seq: Seq,
        /// After how many attempts.
        attempt: u32,
    },
    /// It was a wait, and its outcome is in this event (`wait.ended`).
    Answered {
        /// Where.
        seq: Seq,
    },
    /// It has no result yet.
    Open(Box<OpenStep>),
}

/// A step without a result.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenStep {
    /// What it is doing.
    pub doing: Doing,
    /// The latest attempt.
    pub attempt: u32,
    /// What an interruption means.
    pub effect: Effect,
    /// Under which driver it was last spoken of.
    pub epoch: Epoch,
    /// When the latest attempt began.
    pub started_at: Timestamp,
    /// What its result will be bound to.
    pub input_digest: Option<Digest>,
    /// The idempotency key.
    pub key: Option<Digest>,
}

/// What a step without a result is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum Doing {
    /// Running since its `step.started`.
    Running,
    /// The latest attempt failed.
    Failed(Cause),
    /// It will be tried again.
    Retrying {
        /// After the event's time plus this.
        delay_ms: u64,
        /// When that was said.
        since: Timestamp,
    },
    /// It will not run.
    Skipped,
    /// Nobody knows whether it happened.
    InDoubt,
    /// It waits.
    Waiting(WaitId),
}

/// A child run that has not ended.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenChild {
    /// The step it is the work of.
    pub step: StepId,
    /// Where it was announced.
    pub seq: Seq,
}

/// What the log says about a call.
#[derive(Debug, Clone, PartialEq)]
pub enum CallState {
    /// Under way since this event.
    Open {
        /// Where.
        seq: Seq,
        /// Counts from 1.
        attempt: u32,
        /// What an interruption means.
        effect: Effect,
        /// Under which driver.
        epoch: Epoch,
    },
    /// Its result is in this event.
    Returned {
        /// Where.
        seq: Seq,
    },
    /// It failed, as this event says.
    Failed {
        /// Where.
        seq: Seq,
    },
    /// Nobody knows whether it happened.
    InDoubt {
        /// Where that is said.
        seq: Seq,
        /// The attempts so far.
        attempt: u32,
    },
    /// Someone said to run it again.
    Again {
        /// Where that is said.
        seq: Seq,
        /// The attempts so far.
        attempt: u32,
    },
}

impl CallState {
    /// How often it was called, as far as that still matters.
    fn attempts(&self) -> u32 {
        match self {
            Self::Open { attempt, .. }
            | Self::InDoubt { attempt, .. }
            | Self::Again { attempt, .. } => *attempt,
            Self::Returned { .. } | Self::Failed { .. } => 1,
        }
    }
}

impl RunState {
    /// How often a tool call was made so far.
    pub(crate) fn tool_attempts(&self, call: &CallId) -> u32 {
        self.tools.get(call).map_or(0, CallState::attempts)
    }

    pub(crate) fn start(run: RunId, event: &Event) -> Result<Self, IllegalEvent> {
        let row = Row::start(run, event)?;
        let (spec, started_context) = match &event.body {
            Body::RunStarted(started) => (started.spec.clone(), started.context),
            other => unreachable!("Row::start refuses {}", other.kind()),
        };
        Ok(Self {
            spec,
            started_context,
            ..Self::around(row)
        })
    }

    /// A row with nothing beside it.
    pub(crate) fn around(row: Row) -> Self {
        Self {
            row,
            spec: Payload::null(),
            started_context: None,
            steps: Map::default(),
            writes: Set::default(),
            tools: Map::default(),
            models: Map::default(),
            children: Map::default(),
            signals: VecDeque::new(),
            signalled: Vec::new(),
            queued: VecDeque::new(),
            turn: 0,
            checkpoint: None,
        }
    }

    /// The open step with this id.
    pub fn open_step(&self, step: &StepId) -> Option<&OpenStep> {
        match self.steps.get(step)? {
            StepState::Open(open) => Some(open),
            StepState::Finished { .. } | StepState::Answered { .. } => None,
        }
    }

    /// The wait that `step` is, when it is open.
    pub fn wait_of(&self, step: &StepId) -> Option<WaitId> {
        match self.open_step(step)?.doing {
            Doing::Waiting(wait) => Some(wait),
            _ => None,
        }
    }

    /// Tool calls that write, were announced under an earlier driver and have no outcome.
    pub fn unsettled_calls(&self, epoch: Epoch) -> Vec<CallId> {
        let mut calls: Vec<CallId> = self
            .tools
            .iter()
            .filter_map(|(call, state)| match state {
                CallState::Open {
                    effect: Effect::Write,
                    epoch: announced,
                    ..
                } if *announced < epoch => Some(call.clone()),
                _ => None,
            })
            .collect();
        calls.sort();
        calls
    }

    /// Write steps that were announced under an earlier driver and have no outcome.
    pub fn unsettled_writes(&self, epoch: Epoch) -> Vec<StepId> {
        let mut steps: Vec<StepId> = self
            .steps
            .iter()
            .filter_map(|(step, state)| match state {
                StepState::Open(open)
                    if open.effect == Effect::Write
                        && open.doing == Doing::Running
                        && open.epoch < epoch =>
                {
                    Some(step.clone())
                }
                _ => None,
            })
            .collect();
        steps.sort();
        steps
    }
}
