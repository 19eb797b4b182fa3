//! Requests: what a driver or someone outside wants to happen. [`crate::decide()`] answers them with
//! drafts of events.

use crate::event::{Body, Budget, Cause, ChildStarted, Resolution};
use crate::id::{Head, RunId, WaitId};
use crate::{Payload, Timestamp};

/// An event before it has its place in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// What happened.
    pub body: Body,
    /// The caller's own time for it.
    pub caller_at: Option<Timestamp>,
    /// Recorded after the end.
    pub late: bool,
}

impl Draft {
    /// A fact of a run that has not ended.
    pub fn new(body: impl Into<Body>) -> Self {
        Self {
            body: body.into(),
            caller_at: None,
            late: false,
        }
    }
}

/// What a driver, who holds the lease, wants recorded.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// A fact about the run's work.
    Record {
        /// The fact.
        body: Body,
        /// The caller's own time for it.
        caller_at: Option<Timestamp>,
    },
    /// A child is about to exist. Recorded as any fact, it is the only one that starts.
    StartChild {
        /// The fact, with the limits that the child asks for; what is recorded is what it gets.
        started: ChildStarted,
        /// How many children start in this turn, itself among them and without those that were
        /// recorded already: they share what is left.
        together: u64,
    },
    /// The work is done.
    Complete {
        /// The result.
        output: Payload,
    },
    /// The work cannot be done.
    Fail {
        /// Why.
        cause: Cause,
    },
}

impl From<Body> for Command {
    fn from(body: Body) -> Self {
        Self::Record {
            body,
            caller_at: None,
        }
    }
}

/// What someone without the lease wants. Decided from the row alone, inside one transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum Outside {
    /// End the run now.
    Cancel {
        /// Why.
        reason: Option<String>,
    },
    /// End the run here, because it goes on elsewhere from where it stands.
    Move {
        /// Where it stood when it was taken along; when it went on since, it stays.
        expect: Head,
    },
    /// Stop its work until someone resumes it.
    Pause {
        /// Why.
        reason: Option<String>,
    },
    /// End `paused` and `crash_loop`.
    Resume {
        /// Who.
        by: Option<String>,
    },
    /// Answer an open wait.
    Answer {
        /// Which; may be left out when exactly one is open.
        wait: Option<WaitId>,
        /// Yes or no.
        approved: Option<bool>,
        /// A value.
        value: Payload,
        /// Why.
        reason: Option<String>,
        /// Who.
        by: Option<String>,
    },
    /// Send a signal; kept when nobody awaits it.
    Signal {
        /// Its name.
        name: String,
        /// Its value.
        value: Payload,
    },
    /// Steer the run.
    Say {
        /// What to say.
        text: String,
        /// Who.
        by: Option<String>,
    },
    /// Say what became of a write in doubt.
    Resolve {
        /// The call id, or the step id as shown.
        call: String,
        /// What became of it.
        resolution: Resolution,
        /// Who.
        by: String,
    },
    /// Raise limits by this much.
    AddBudget {
        /// What to add to each limit; one that the run does not have is refused.
        add: Budget,
        /// Who.
        by: Option<String>,
        /// The child that it is for: it is set aside for that child at once.
        child: Option<RunId>,
        /// The wait for budget that it answers; when that is over, nothing is raised.
        wait: Option<WaitId>,
    },
}
