//! The time of the database, without asking for it at every append.
//!
//! An event's time is hashed by whoever appends it, before the database sees it. So the database's clock
//! is looked at now and then, and what has passed since is counted on the monotonic clock here.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use logreel_core::Timestamp;

use crate::Env;
use crate::env::to_micros;

/// Whose time events and leases have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Times {
    /// The database's, so that the clocks of machines do not matter.
    #[default]
    Database,
    /// The `Env`'s: for tests whose clocks stand still.
    Env,
}

/// A clock that is further behind than this was set back; less is how clocks run.
const STEP: i64 = 1_000_000;
/// How long the database's time is counted here without having asked for it.
const COUNTED: Duration = Duration::from_secs(10);

pub(super) struct Clock {
    env: Arc<dyn Env>,
    times: Times,
    /// What the database's clock said, and the monotonic clock then.
    seen: Mutex<Option<(i64, Duration)>>,
    /// The same, of a clock that nobody sets back.
    floor: Mutex<(i64, Duration)>,
}

impl Clock {
    pub fn new(env: Arc<dyn Env>, times: Times) -> Self {
        Self {
            env,
            times,
            seen: Mutex::default(),
            floor: Mutex::default(),
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

    /// What has passed here, whatever clocks say.
    pub fn monotonic(&self) -> Duration {
        self.env.monotonic()
    }

    /// The database's clock said so.
    pub fn set(&self, micros: i64) {
        let seen = (micros, self.env.monotonic());
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        self.raise(micros);
    }

    /// Events were stamped with this time, by whomever.
    pub fn raise(&self, micros: i64) {
        let floor = self.floor();
        let kept = if floor > micros.saturating_add(STEP) {
            floor
        } else {
            micros
        };
        let mut floor = self.floor.lock().unwrap_or_else(PoisonError::into_inner);
        *floor = (kept, self.env.monotonic());
    }

    /// What no stamp falls below: the database's time, as one knows it here who has not seen its clock set
    /// back, or another server with another clock take its place (SEMANTICS 11).
    pub fn floor(&self) -> i64 {
        let (micros, at) = *self.floor.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = match self.times {
            Times::Database => self.env.monotonic().saturating_sub(at).min(COUNTED),
            Times::Env => Duration::ZERO,
        };
        micros.saturating_add(to_micros(passed))
    }

    /// What leases are compared with instead of the database's clock; `None` in earnest.
    pub fn lease_now(&self) -> Option<i64> {
        match self.times {
            Times::Database => None,
            Times::Env => Some(to_micros(self.env.monotonic())),
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::contract::TestEnv;

    #[test]
    fn stamps_do_not_follow_a_clock_that_is_set_back() {
        let env = TestEnv::new();
        let clock = Clock::new(Arc::new(env.clone()), Times::Database);
        let second = 1_000_000;
        let start = 5_000 * second;
        clock.set(start);
        env.advance(Duration::from_secs(3));
        assert_eq!(clock.floor(), start + 3 * second);
        // An hour back, and seen again with every beat.
        let mut database = start + 3 * second - 3_600 * second;
        for beat in 1..=10 {
            clock.set(database);
            env.advance(Duration::from_secs(3));
            database += 3 * second;
            assert_eq!(clock.floor(), start + (3 + 3 * beat) * second);
        }
        // What only drifts is followed, or two processes would drift apart.
        let clock = Clock::new(Arc::new(env.clone()), Times::Database);
        clock.set(start);
        env.advance(Duration::from_secs(3));
        clock.set(start + 3 * second - 500);
        assert_eq!(clock.floor(), start + 3 * second - 500);
        // Nobody counts for long without having asked.
        env.advance(Duration::from_secs(1_000_000));
        assert!(clock.floor() < start + 20 * second);
    }
}
