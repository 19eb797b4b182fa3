//! The time of the database, without asking for it at every append.
//!
//! An event's time is hashed by whoever appends it, before the database sees it. So the database's clock
//! is looked at now and then, and what has passed since is counted on the monotonic clock here.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use logreel_core::Timestamp;

use crate::Env;

/// Whose time events and leases have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Times {
    /// The database's, so that the clocks of machines do not matter.
    #[default]
    Database,
    /// The `Env`'s: for tests whose clocks stand still.
    Env,
}

pub(super) struct Clock {
    env: Arc<dyn Env>,
    times: Times,
    /// What the database's clock said, and the monotonic clock then.
    seen: Mutex<Option<(i64, Duration)>>,
}

impl Clock {
    pub fn new(env: Arc<dyn Env>, times: Times) -> Self {
        Self {
            env,
            times,
            seen: Mutex::default(),
        }
    }

    /// The time of what is appended now.
    pub fn now(&self) -> Timestamp {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match (self.times, seen) {
            (Times::Database, Some((micros, at))) => {
                let passed = self.env.monotonic().saturating_sub(at);
                Timestamp::from_micros(micros) + passed
            }
            (Times::Database, None) | (Times::Env, _) => self.env.now(),
        }
    }

    /// The database's clock said so.
    pub fn set(&self, micros: i64) {
        let seen = (micros, self.env.monotonic());
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
    }

    /// What leases are compared with instead of the database's clock; `None` in earnest.
    pub fn lease_now(&self) -> Option<i64> {
        match self.times {
            Times::Database => None,
            Times::Env => Some(i64::try_from(self.env.monotonic().as_micros()).unwrap_or(i64::MAX)),
        }
    }
}
