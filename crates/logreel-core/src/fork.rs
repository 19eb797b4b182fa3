//! Copies: the log of a fork is its parent's up to an event, then `run.forked`, then its own
//! (SEMANTICS 31).
//!
//! The fold reads the shared events under the fork's id like any others; `run.forked` then leaves
//! what finished and takes away what was under way. Nothing here copies an event.

use crate::budget::Driven;
use crate::event::{
    Body, Budget, Change, Effect, Event, Made, Parent, Relation, RunForked, Used, WaitEnded,
};
use crate::fold::Illegal;
use crate::id::{CallId, RunId, StepId};
use crate::meaning::ResultSet;
use crate::row::{Row, Usage};
use crate::state::{CallState, Doing, Map, OpenStep, RunState, Set, StepState};
use crate::{Payload, Rejected, Timestamp};

/// A copy someone wants of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Fork {
    /// The run it is made from.
    pub parent: RunId,
    /// `fork` or `retry`.
    pub relation: Relation,
    /// An input of its own; `None` = the parent's.
    pub input: Option<Payload>,
    /// Its limits, with nothing spent.
    pub budget: Budget,
    /// Steps that start again although they have finished.
    pub forgotten: Vec<StepId>,
    /// Tool calls that get another outcome than they had.
    pub forgotten_calls: Vec<CallId>,
    /// What is not as it was in the parent.
    pub changes: Vec<Change>,
    /// Where it is made.
    pub made: Option<Made>,
}

impl Fork {
    /// A copy with nothing changed and without limits.
    pub fn of(parent: RunId, relation: Relation) -> Self {
        Self {
            parent,
            relation,
            input: None,
            budget: Budget::default(),
            forgotten: Vec::new(),
            forgotten_calls: Vec::new(),
            changes: Vec::new(),
            made: None,
        }
    }
}

/// What a copy at the head of `state` begins with; `results` are those of the same events.
///
/// Beside the steps that were asked for it forgets those whose child has ended and that have no result
/// of their own yet: they start again, with another child.
pub fn decide_fork(state: &RunState, results: &Tally, fork: Fork) -> Result<RunForked, Rejected> {
    let row = &state.row;
    if row.facts.ended.is_some() {
        return Err(Rejected::Ended(row.status()));
    }
    if fork.relation == Relation::Child {
        return Err(Rejected::Illegal(Illegal::ForkIsNoChild));
    }
    let mut forgotten = fork.forgotten;
    forgotten.extend(
        results
            .by_step
            .keys()
            .filter(|step| !matches!(state.steps.get(*step), Some(StepState::Finished { .. })))
            .cloned(),
    );
    forgotten.sort();
    forgotten.dedup();
    Ok(RunForked {
        budget: fork.budget,
        changes: fork.changes,
        digest: row.head.digest,
        forgotten,
        forgotten_calls: fork.forgotten_calls,
        input: fork.input.unwrap_or_else(|| row.facts.input.clone()),
        made: fork.made,
        may_have_happened: open_writes(state),
        parent: Parent {
            relation: fork.relation,
            run: fork.parent,
            seq: row.head.seq,
        },
    })
}

/// Writes without a known outcome, as they are shown. One that someone told to run again is among
/// them: whether it had happened the first time was never recorded.
fn open_writes(state: &RunState) -> Vec<String> {
    let is_open_step = |open: &OpenStep| match open.doing {
        Doing::Running | Doing::InDoubt | Doing::Retrying { .. } | Doing::Waiting(_) => {
            open.effect == Effect::Write
        }
        Doing::Failed(_) | Doing::Skipped => false,
    };
    let steps = state.steps.iter().filter_map(|(step, is)| match is {
        StepState::Open(open) if is_open_step(open) => Some(step.to_string()),
        StepState::Open(_) | StepState::Finished { .. } | StepState::Answered { .. } => None,
    });
    let calls = state.tools.iter().filter_map(|(call, is)| match is {
        CallState::Open {
            effect: Effect::Write,
            ..
        }
        | CallState::InDoubt { .. }
        | CallState::Again { .. } => Some(call.to_string()),
        CallState::Open { .. } | CallState::Returned { .. } | CallState::Failed { .. } => None,
    });
    let mut open: Vec<String> = steps.chain(calls).collect();
    open.sort();
    open
}

impl Row {
    /// Becomes the row of a fork: created, with limits of its own and nothing under way.
    pub(crate) fn fork(&mut self, at: Timestamp, forked: &RunForked) -> Result<(), Illegal> {
        if forked.parent.relation == Relation::Child {
            return Err(Illegal::ForkIsNoChild);
        }
        if (forked.parent.seq, forked.digest) != (self.head.seq, self.head.digest) {
            return Err(Illegal::ForkElsewhere);
        }
        self.pulse.running = 0;
        self.pulse.stirred = false;
        self.pulse.models_open = 0;
        self.pulse.active_tools.clear();
        self.pulse.takeovers = 0;
        self.pulse.beside = Used::default();
        self.pulse.driven = Driven::default();
        self.pulse.reserved.clear();
        let usage = self.pulse.usage.clone();
        let facts = self.facts_mut();
        if let Some(made) = &forked.made {
            facts.git = made.git.clone();
            facts.provenance.host = made.host.clone();
            facts.provenance.logreel = made.logreel.clone();
        }
        facts.budget = forked.budget.clone();
        facts.created_at = at;
        facts.in_doubt.clear();
        facts.input = forked.input.clone();
        facts.key = None;
        facts.loans.clear();
        facts.parent = Some(forked.parent.clone());
        facts.phase = None;
        facts.session = None;
        facts.usage_before = usage;
        // What was checked was not what the fork will have made.
        facts.verification = None;
        facts.waits.clear();
        Ok(())
    }

    /// What the run itself spent, without the events it shares: what its limits are about.
    pub fn own_usage(&self) -> Usage {
        let (all, before) = (&self.pulse.usage, &self.facts.usage_before);
        let mut own = all.clone();
        own.model_calls -= before.model_calls.min(all.model_calls);
        own.tool_calls -= before.tool_calls.min(all.tool_calls);
        own.unpriced_calls -= before.unpriced_calls.min(all.unpriced_calls);
        for (own, before) in [
            (
                &mut own.spent.cache_read_tokens,
                before.spent.cache_read_tokens,
            ),
            (
                &mut own.spent.cache_write_tokens,
                before.spent.cache_write_tokens,
            ),
            (&mut own.spent.input_tokens, before.spent.input_tokens),
            (&mut own.spent.output_tokens, before.spent.output_tokens),
            (
                &mut own.spent.reasoning_tokens,
                before.spent.reasoning_tokens,
            ),
        ] {
            *own = own.saturating_sub(before);
        }
        own.spent.usd_micros = match (own.spent.usd_micros, before.spent.usd_micros) {
            (Some(all), Some(before)) => Some(all.saturating_sub(before)),
            (all, _) => all,
        };
        own
    }
}

impl RunState {
    /// What finished stays; open and failed work starts again, and so does what is forgotten.
    /// Signals and messages that nobody took yet stay.
    pub(crate) fn fork(&mut self, forked: &RunForked) {
        let forgotten: Set<&StepId> = forked.forgotten.iter().collect();
        self.steps
            .retain(|step, is| !forgotten.contains(step) && !matches!(is, StepState::Open(_)));
        let has_ended = |is: &CallState| match is {
            CallState::Returned { .. } | CallState::Failed { .. } => true,
            CallState::Open { .. } | CallState::InDoubt { .. } | CallState::Again { .. } => false,
        };
        let is_kept = |call: &CallId| !forked.forgotten_calls.contains(call);
        self.tools.retain(|call, is| is_kept(call) && has_ended(is));
        self.models.retain(|_, is| has_ended(is));
        self.writes.retain(|step| self.steps.contains_key(step));
        self.children.clear();
        self.signalled.clear();
    }
}

/// The sum of a log's results, with what each step has in it: a fork takes away the results of the
/// steps that it forgets. A log without forks needs only the sum.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    sum: ResultSet,
    by_step: Map<StepId, ResultSet>,
    watched: Option<Set<StepId>>,
    missed: bool,
}

impl Tally {
    /// One that knows the shares of these steps and of those with children only, which is little to
    /// keep. A fork that forgets others in the log makes it miss them: see [`Tally::missed`].
    pub fn watching(steps: impl IntoIterator<Item = StepId>) -> Self {
        Self {
            watched: Some(steps.into_iter().collect()),
            ..Self::default()
        }
    }

    /// Whether the sum is wrong, because the log forgets a step that was not watched.
    pub fn missed(&self) -> bool {
        self.missed
    }

    /// Counts the next event.
    pub fn add(&mut self, event: &Event) {
        if event.late {
            return;
        }
        let is_watched = |watched: &Option<Set<StepId>>, step: &StepId| {
            watched
                .as_ref()
                .is_none_or(|watched| watched.contains(step))
        };
        if let Body::RunForked(forked) = &event.body {
            for step in &forked.forgotten {
                self.missed |= !is_watched(&self.watched, step);
                if let Some(result) = self.by_step.remove(step) {
                    self.sum = self.sum.minus(result);
                }
            }
        }
        let result = ResultSet::of(&event.body);
        let (step, is_child) = match &event.body {
            Body::StepFinished(finished) => (&finished.step, false),
            Body::StepResolved(resolved) => (&resolved.step, false),
            Body::WaitEnded(WaitEnded {
                step: Some(step), ..
            }) => (step, false),
            Body::ChildFinished(child) => (&child.step, true),
            _ => return,
        };
        if result == ResultSet::default() {
            return;
        }
        self.sum = self.sum.plus(result);
        if is_child || is_watched(&self.watched, step) || self.by_step.contains_key(step) {
            let of_step = self.by_step.entry(step.clone()).or_default();
            *of_step = of_step.plus(result);
        }
    }

    /// The sum so far.
    pub fn sum(&self) -> ResultSet {
        self.sum
    }
}
