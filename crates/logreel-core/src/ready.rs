//! When a worker may take a run (SEMANTICS 18): the one place that knows, for every store and for
//! whoever keeps a run going.

use crate::event::{ClaimReason, RunKind, WaitKind};
use crate::row::{Row, Status};
use crate::{StepId, Timestamp};

/// From when a worker may take a run that nobody drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// It has ended, or only a person can act.
    Never,
    /// Whatever the clock says about its last event (SEMANTICS 10).
    Now,
    /// From a deadline of its waits on, on the wall clock.
    At(Timestamp),
}

impl Ready {
    /// `child_ended` says when the child that a step of the run is has ended; asked only for a run
    /// that waits for a child, whose end makes it ready.
    pub fn of<E>(
        row: &Row,
        mut child_ended: impl FnMut(Option<&StepId>) -> Result<Option<Timestamp>, E>,
    ) -> Result<Self, E> {
        match row.status() {
            Status::Completed | Status::Failed | Status::Cancelled => return Ok(Self::Never),
            Status::Created | Status::Planning | Status::Executing | Status::Verifying => {
                return Ok(Self::Now);
            }
            Status::Waiting => {}
        }
        let waits = &row.facts.waits;
        if waits.iter().any(|open| open.wait.kind.stops_everything()) {
            return Ok(Self::Never);
        }
        // Its client knows what it waits for, and may pick it up to say that it is over.
        if row.facts.kind == RunKind::External {
            return Ok(Self::At(row.updated_at));
        }
        let children = waits.iter().filter(|it| it.wait.kind == WaitKind::Child);
        for open in children {
            // It may have ended before its parent began to wait for it.
            if let Some(ended) = child_ended(open.wait.step.as_ref())? {
                return Ok(Self::At(ended.min(row.updated_at)));
            }
        }
        let deadline = waits.iter().filter_map(|open| open.wait.deadline).min();
        Ok(deadline.map_or(Self::Never, Self::At))
    }

    /// As it was shown by [`Ready::at`].
    pub fn shown(row: &Row, at: Option<Timestamp>) -> Self {
        match (row.status(), at) {
            (Status::Waiting, Some(at)) => Self::At(at),
            (Status::Completed | Status::Failed | Status::Cancelled | Status::Waiting, _) => {
                Self::Never
            }
            (Status::Created | Status::Planning | Status::Executing | Status::Verifying, _) => {
                Self::Now
            }
        }
    }

    /// As a time to show: that of the last event for a run that is ready now.
    pub fn at(self, row: &Row) -> Option<Timestamp> {
        match self {
            Self::Never => None,
            Self::Now => Some(row.updated_at),
            Self::At(at) => Some(at),
        }
    }

    /// Why a worker may claim the run now; `None` when it may not. `held` says that a dead owner's
    /// lease is still on it.
    pub fn claim_reason(self, held: bool, now: Timestamp) -> Option<ClaimReason> {
        match self {
            Self::Never => None,
            // A waiting run has nothing under way that an owner could have left behind.
            Self::At(at) => (at <= now).then_some(ClaimReason::Ready),
            Self::Now if held => Some(ClaimReason::Orphaned),
            Self::Now => Some(ClaimReason::Ready),
        }
    }
}
