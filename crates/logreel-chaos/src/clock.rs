//! The machine's own clocks. An experiment on real processes has no other time than theirs.

use std::time::Duration;

use anyhow::{Result, bail};
use rustix::time::{ClockId, clock_gettime};

/// Since the machine started: the same for every process on it, whatever it thinks the date is.
pub fn now() -> Duration {
    read(ClockId::Monotonic)
}

/// Microseconds since 1970, as the database writes them.
pub fn wall_micros() -> i64 {
    i64::try_from(read(ClockId::Realtime).as_micros()).unwrap_or(i64::MAX)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[expect(
    clippy::disallowed_methods,
    reason = "faults come at real times, and nothing rings when a process dies"
)]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Looks until it holds.
pub fn until(
    what: &str,
    patience: Duration,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let begun = now();
    while !holds()? {
        if now() - begun > patience {
            bail!("not within {patience:.0?}: {what}");
        }
        pause(millis(20));
    }
    Ok(())
}
