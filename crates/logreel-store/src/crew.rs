//! Who drives the runs of a store, what they are there for, and what waits for them.

use std::collections::BTreeMap;
use std::time::Duration;

use logreel_core::RunId;
use serde::{Deserialize, Serialize};

use crate::Owner;

/// What a process that drives runs is there for, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duty {
    /// As what it was started.
    pub kind: DutyKind,
    /// Of which build it is.
    pub version: String,
    /// How many runs it drives at once; `None` when it drives only those that were started in it.
    pub concurrency: Option<u64>,
    /// It takes runs with all these labels, and no others.
    pub labels: Vec<(String, String)>,
    /// It takes no more runs: it is about to leave.
    pub leaving: bool,
}

impl Duty {
    /// Whether a queued run with these labels will be driven by it.
    pub fn takes(&self, labels: &BTreeMap<String, String>) -> bool {
        let mut asked = self.labels.iter();
        let has_all = asked.all(|(name, value)| labels.get(name) == Some(value));
        self.concurrency.is_some() && has_all && !self.leaving
    }
}

/// As what a process that drives runs was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DutyKind {
    /// It drives the runs that were started in it.
    Run,
    /// It drives whatever is ready.
    Worker,
    /// It serves the API, and drives whatever is ready.
    Serve,
}

impl DutyKind {
    /// The name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Worker => "worker",
            Self::Serve => "serve",
        }
    }
}

/// A process that drives runs, as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerInfo {
    /// The process.
    pub owner: Owner,
    /// What it is there for; `None` when it never said.
    pub duty: Option<Duty>,
    /// How many runs it holds.
    pub running: u64,
    /// Whether it lives, as far as is known here.
    pub alive: bool,
    /// How long ago its latest beat was; `None` when that is not known.
    pub silent: Option<Duration>,
}

/// What waits for someone to drive it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Runs that are ready and that nobody has taken.
    pub ready: u64,
    /// The one that is ready longest, and for how long. One that was handed back counts from its last event.
    pub oldest_ready: Option<(RunId, Duration)>,
    /// Runs whose driver is gone.
    pub orphans: u64,
    /// The one whose driver has been silent longest, and for how long.
    pub oldest_orphan: Option<(RunId, Duration)>,
    /// How long the newest runs that were queued waited for the first event of a driver, shortest first.
    pub claims: Vec<Duration>,
}

impl Backlog {
    /// How many of the newest runs are looked at for `claims`.
    pub const NEWEST: usize = 1000;

    /// The claim that this share of them was faster than.
    pub fn claim_at(&self, share: f64) -> Option<Duration> {
        let last = self.claims.len().checked_sub(1)?;
        let at = (share * last as f64).round() as usize;
        self.claims.get(at.min(last)).copied()
    }
}
