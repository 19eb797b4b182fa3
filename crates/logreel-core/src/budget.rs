//! Limits (SEMANTICS 27): what a run used of them, what it has set aside, and whether there is room
//! for more. Everything is read from the row, so that it is known wherever a decision is made.
//!
//! A limit is about the run and everyone below it. What a child may use is set aside when it starts
//! and settled with what it used when it has ended. Time is the exception: children that run side by
//! side pass the same time together, so it is neither divided nor set aside, and what counts is the
//! longest chain of driven time.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::event::{Body, Budget, BudgetChanged, ChildFinished, ChildStarted, Event, Spend, Used};
use crate::id::{CallId, Epoch, RunId};
use crate::row::{Row, Status};

/// One of the limits a run may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Tokens, input and output together.
    Tokens,
    /// Money.
    Usd,
    /// Driven time.
    Wall,
    /// Tool calls.
    ToolCalls,
    /// Child runs.
    Children,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Tokens,
        Self::Usd,
        Self::Wall,
        Self::ToolCalls,
        Self::Children,
    ];

    /// The name in specs, flags and waits.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Usd => "usd",
            Self::Wall => "wall",
            Self::ToolCalls => "tool_calls",
            Self::Children => "children",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A limit that leaves no room. Amounts are in the log's units: micro-dollars, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverBudget {
    /// Which limit.
    pub limit: Limit,
    /// What was used or set aside.
    pub used: u64,
    /// What may be.
    pub allowed: u64,
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, allowed) = (self.used, self.allowed);
        match self.limit {
            Limit::Tokens => write!(f, "{used} of {allowed} tokens are used"),
            Limit::Usd => {
                let dollars = |micros: u64| micros as f64 / 1e6;
                let (used, allowed) = (dollars(used), dollars(allowed));
                write!(f, "{used:.4} of {allowed:.4} dollars are used")
            }
            Limit::Wall => {
                let seconds = |ms: u64| ms as f64 / 1e3;
                let (used, allowed) = (seconds(used), seconds(allowed));
                write!(f, "{used:.1}s of {allowed:.1}s are used")
            }
            Limit::ToolCalls => write!(f, "{used} of {allowed} tool calls are used"),
            Limit::Children => write!(f, "{used} of {allowed} children are used"),
        }
    }
}

impl Budget {
    /// The limit; `None` = there is none.
    pub fn get(&self, limit: Limit) -> Option<u64> {
        match limit {
            Limit::Tokens => self.tokens,
            Limit::Usd => self.usd_micros,
            Limit::Wall => self.wall_ms,
            Limit::ToolCalls => self.tool_calls,
            Limit::Children => self.children,
        }
    }

    /// The limit, to be changed.
    pub fn get_mut(&mut self, limit: Limit) -> &mut Option<u64> {
        match limit {
            Limit::Tokens => &mut self.tokens,
            Limit::Usd => &mut self.usd_micros,
            Limit::Wall => &mut self.wall_ms,
            Limit::ToolCalls => &mut self.tool_calls,
            Limit::Children => &mut self.children,
        }
    }

    /// Whether it limits nothing.
    pub fn is_empty(&self) -> bool {
        Limit::ALL.iter().all(|limit| self.get(*limit).is_none())
    }

    /// What is left of it: each limit without what was used.
    fn minus(&self, used: Used) -> Self {
        let mut left = self.clone();
        for limit in Limit::ALL {
            if let Some(amount) = left.get_mut(limit) {
                *amount = amount.saturating_sub(used.get(limit));
            }
        }
        left
    }

    /// As an amount: a limit that is not there counts as nothing.
    pub fn amount(&self) -> Used {
        Used {
            children: self.children.unwrap_or(0),
            tokens: self.tokens.unwrap_or(0),
            tool_calls: self.tool_calls.unwrap_or(0),
            usd_micros: self.usd_micros.unwrap_or(0),
            wall_ms: self.wall_ms.unwrap_or(0),
        }
    }
}

impl Used {
    /// What was used of this.
    pub fn get(&self, limit: Limit) -> u64 {
        match limit {
            Limit::Tokens => self.tokens,
            Limit::Usd => self.usd_micros,
            Limit::Wall => self.wall_ms,
            Limit::ToolCalls => self.tool_calls,
            Limit::Children => self.children,
        }
    }

    /// Both together, the time too. Saturating: the figures come from outside, and use never falls.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            children: self.children.saturating_add(other.children),
            tokens: self.tokens.saturating_add(other.tokens),
            tool_calls: self.tool_calls.saturating_add(other.tool_calls),
            usd_micros: self.usd_micros.saturating_add(other.usd_micros),
            wall_ms: self.wall_ms.saturating_add(other.wall_ms),
        }
    }

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            children: self.children.max(other.children),
            tokens: self.tokens.max(other.tokens),
            tool_calls: self.tool_calls.max(other.tool_calls),
            usd_micros: self.usd_micros.max(other.usd_micros),
            wall_ms: self.wall_ms.max(other.wall_ms),
        }
    }

    fn of(spend: &Spend) -> Self {
        Self {
            tokens: spend.input_tokens.saturating_add(spend.output_tokens),
            usd_micros: spend.usd_micros.unwrap_or(0),
            ..Self::default()
        }
    }

    fn without_wall(self) -> Self {
        Self { wall_ms: 0, ..self }
    }
}

/// What an open model call may cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// Which call.
    pub call: CallId,
    /// Tokens, input and output together.
    pub tokens: u64,
    /// Micro-dollars.
    pub usd_micros: u64,
}

impl Reserved {
    fn used(&self) -> Used {
        Used {
            tokens: self.tokens,
            usd_micros: self.usd_micros,
            ..Used::default()
        }
    }
}

/// What a child that has not ended may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loan {
    /// Which child.
    pub child: RunId,
    /// The driven time when it started, in microseconds.
    pub driven_us: u64,
    /// What was moved to it.
    pub moved: Budget,
}

/// Driven time. Kept for runs with a limit on it only: it changes with every event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Driven {
    /// From here on it is not counted yet; `None` while nobody drives or the run waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Microseconds so far.
    pub us: u64,
}

impl Row {
    /// What was used of the limits: by the run itself, by its children that ended, and by model calls
    /// whose driver died before their answer came.
    pub fn used(&self) -> Used {
        let own = self.own_usage();
        let calls = Used {
            tool_calls: own.tool_calls,
            wall_ms: self.pulse.driven.us / 1000,
            ..Used::of(&own.spent)
        };
        calls.plus(self.pulse.beside)
    }

    /// What open model calls may cost.
    pub fn reserved(&self) -> Used {
        let calls = self.pulse.reserved.iter().map(Reserved::used);
        calls.fold(Used::default(), Used::plus)
    }

    /// What is set aside beside what was used: for open model calls, and for children that have not
    /// ended.
    pub fn set_aside(&self) -> Used {
        let loans = self.facts.loans.iter();
        let loans = loans.map(|loan| loan.moved.amount().without_wall());
        loans.fold(self.reserved(), Used::plus)
    }

    /// What is left of each limit.
    pub fn left(&self) -> Budget {
        let used = self.used().plus(self.set_aside());
        self.facts.budget.minus(used)
    }

    /// Refuses when one of these limits leaves no room.
    pub fn check_limits(&self, limits: &[Limit]) -> Result<(), OverBudget> {
        // Most runs have no limits at all.
        let kept = |limit: &&Limit| self.facts.budget.get(**limit).is_some();
        if !limits.iter().any(|limit| kept(&limit)) {
            return Ok(());
        }
        let used = self.used().plus(self.set_aside());
        for limit in limits.iter().filter(kept) {
            let (used, allowed) = (used.get(*limit), self.facts.budget.get(*limit));
            if let Some(allowed) = allowed.filter(|allowed| used >= *allowed) {
                let limit = *limit;
                return Err(OverBudget {
                    limit,
                    used,
                    allowed,
                });
            }
        }
        Ok(())
    }

    /// Refuses when no time is left to begin work in `now`: also counts what the log does not yet.
    pub fn check_wall(&self, now: Timestamp) -> Result<(), OverBudget> {
        let Some(allowed) = self.facts.budget.wall_ms else {
            return Ok(());
        };
        let driven = &self.pulse.driven;
        let uncounted = driven.from.map_or(0, |from| micros_since(from, now));
        let used = driven.us.saturating_add(uncounted) / 1000;
        match used >= allowed {
            true => Err(OverBudget {
                limit: Limit::Wall,
                used,
                allowed,
            }),
            false => Ok(()),
        }
    }

    /// Refuses a fact that would use more of a limit that is used up. What the fact itself needs is not
    /// asked: a call may overshoot, the next one waits.
    pub(crate) fn check_budget(&self, body: &Body) -> Result<(), OverBudget> {
        match body {
            Body::ModelCalled(_) => self.check_limits(&[Limit::Tokens, Limit::Usd, Limit::Wall]),
            Body::ToolCalled(_) => self.check_limits(&[Limit::ToolCalls, Limit::Wall]),
            Body::ChildStarted(_) => self.check_limits(&[Limit::Children, Limit::Wall]),
            _ => Ok(()),
        }
    }

    /// What a child gets that asks for this much while `together` children, itself among them, are
    /// about to start: what it asks for, as far as it is there; else its share, with one more for the
    /// run itself.
    pub fn lend(&self, asked: &Budget, together: u64) -> Budget {
        let left = self.left();
        let mut moved = asked.clone();
        for limit in Limit::ALL {
            let Some(left) = left.get(limit) else {
                continue;
            };
            let left = match limit {
                // Itself.
                Limit::Children => left.saturating_sub(1),
                _ => left,
            };
            let moved = moved.get_mut(limit);
            let shares = together.max(1).saturating_add(1);
            *moved = Some(match (*moved, limit) {
                (Some(asked), _) => asked.min(left),
                (None, Limit::Wall) => left,
                // Most children have none of their own; what is set aside for them would hold up the
                // others.
                (None, Limit::Children) => left / shares,
                // Rounded up: a small rest is of use to someone.
                (None, Limit::Tokens | Limit::Usd | Limit::ToolCalls) => left.div_ceil(shares),
            });
        }
        moved
    }
}

/// The fold of what limits are about.
impl Row {
    pub(crate) fn reserve(&mut self, call: &CallId, spend: &Spend) {
        let Used {
            tokens, usd_micros, ..
        } = Used::of(spend);
        if (tokens, usd_micros) != (0, 0) {
            self.pulse.reserved.push(Reserved {
                call: call.clone(),
                tokens,
                usd_micros,
            });
        }
    }

    /// A model call has its outcome. One whose price is not known may have cost what was reserved.
    pub(crate) fn settle(&mut self, call: &CallId, spent: &Spend) {
        self.pulse.usage.add(spent);
        let reserved = &mut self.pulse.reserved;
        if let Some(at) = reserved.iter().position(|open| open.call == *call) {
            let open = reserved.remove(at);
            if spent.usd_micros.is_none() {
                let usd_micros = open.usd_micros;
                self.pulse.beside = self.pulse.beside.plus(Used {
                    usd_micros,
                    ..Used::default()
                });
            }
        }
    }

    /// A driver died: what its open model calls may have cost counts as spent.
    pub(crate) fn write_off(&mut self, reserved: &[Reserved]) {
        let lost = reserved.iter().map(Reserved::used);
        self.pulse.beside = lost.fold(self.pulse.beside, Used::plus);
    }

    pub(crate) fn child_started(&mut self, started: &ChildStarted) {
        self.pulse.beside.children = self.pulse.beside.children.saturating_add(1);
        if !started.budget.is_empty() {
            let loan = Loan {
                child: started.child,
                // `count_driven`, which comes after, says it.
                driven_us: 0,
                moved: started.budget.clone(),
            };
            self.facts_mut().loans.push(loan);
        }
    }

    /// Returns what the child did not use.
    pub(crate) fn child_finished(&mut self, finished: &ChildFinished) {
        let mut loans = self.facts.loans.iter();
        let at = loans.position(|loan| loan.child == finished.child);
        let loan = at.map(|at| self.facts_mut().loans.remove(at));
        // Who does not say what was used may have used it all.
        let most = || {
            loan.as_ref()
                .map_or(Used::default(), |it| it.moved.amount())
        };
        let used = finished.used.unwrap_or_else(most);
        self.pulse.beside = self.pulse.beside.plus(used.without_wall());
        if let Some(loan) = loan.filter(|_| self.facts.budget.wall_ms.is_some()) {
            let chain = loan
                .driven_us
                .saturating_add(used.wall_ms.saturating_mul(1000));
            self.pulse.driven.us = self.pulse.driven.us.max(chain);
        }
    }

    /// What was added may have been added for a child.
    pub(crate) fn budget_changed(&mut self, changed: &BudgetChanged) {
        let old = std::mem::replace(&mut self.facts_mut().budget, changed.budget.clone());
        let Some(child) = changed.child else { return };
        let mut loans = self.facts_mut().loans.iter_mut();
        let Some(loan) = loans.find(|loan| loan.child == child) else {
            return;
        };
        for limit in Limit::ALL {
            let (old, new) = (old.get(limit), changed.budget.get(limit));
            if let (Some(old), Some(new), Some(moved)) = (old, new, loan.moved.get_mut(limit)) {
                *moved = moved.saturating_add(new.saturating_sub(old));
            }
        }
    }

    /// Counts the time up to this event, which was just applied; `before` is how the run was before.
    pub(crate) fn count_driven(&mut self, event: &Event, before: Before) {
        if self.facts.budget.wall_ms.is_none() {
            return;
        }
        let waits = self.status() == Status::Waiting;
        let stops = waits || self.facts.ended.is_some();
        let same_driver = event.epoch == before.epoch && !before.waited;
        // Someone else's fact does not show that the driver lives. It leaves the time to the driver's
        // next, unless there will be none because the run stops here.
        let is_ours = !is_from_outside(&event.body) || stops;
        let driven = &mut self.pulse.driven;
        match driven.from {
            Some(from) if same_driver && is_ours => {
                driven.us = driven.us.saturating_add(micros_since(from, event.at));
                driven.from = Some(event.at);
            }
            Some(_) if same_driver => {}
            Some(_) | None => driven.from = Some(event.at),
        }
        if stops || event.epoch == Epoch::NONE {
            driven.from = None;
        }
        // A child's time goes on from what this run's is now.
        if let Body::ChildStarted(started) = &event.body {
            let us = driven.us;
            let mut loans = self.facts_mut().loans.iter_mut();
            if let Some(loan) = loans.find(|loan| loan.child == started.child) {
                loan.driven_us = us;
            }
        }
    }
}

/// What the count of driven time must know of the row before an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    epoch: Epoch,
    waited: bool,
}

impl Before {
    pub(crate) fn of(row: &Row) -> Self {
        let counts = row.facts.budget.wall_ms.is_some();
        Self {
            epoch: row.epoch,
            waited: counts && row.status() == Status::Waiting,
        }
    }
}

/// Whether someone without the lease may have recorded it.
fn is_from_outside(body: &Body) -> bool {
    matches!(
        body,
        Body::RunCancelled(_)
            | Body::StepResolved(_)
            | Body::ToolResolved(_)
            | Body::MessageQueued(_)
            | Body::WaitEnded(_)
            | Body::SignalReceived(_)
            | Body::BudgetChanged(_)
    )
}

fn micros_since(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.as_micros().saturating_sub(from.as_micros())).unwrap_or(0)
}
