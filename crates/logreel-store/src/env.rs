//! The world outside: clock, randomness and waiting, behind one trait so that a host can supply its
//! own and a test can jump.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use logreel_core::{RunId, Timestamp};

/// Where time, ids and randomness come from. Every timestamp and every id goes through it.
pub trait Env: Send + Sync + 'static {
    /// The wall clock. It may jump; nothing is scheduled from it but deadlines of waiting runs.
    fn now(&self) -> Timestamp;

    /// A clock that never goes back and counts suspend. Leases, backoff and short timers use it.
    fn monotonic(&self) -> Duration;

    /// Fills a buffer with random bytes.
    fn random(&self, bytes: &mut [u8]);

    /// Waits on the monotonic clock.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// A new run id, which sorts by its time.
    fn run_id(&self) -> RunId {
        let mut random = [0; 10];
        self.random(&mut random);
        RunId::new(self.now(), random)
    }

    /// A random number.
    fn random_u64(&self) -> u64 {
        let mut random = [0; 8];
        self.random(&mut random);
        u64::from_le_bytes(random)
    }
}

/// As stores write it.
pub(crate) fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// As stores read it; what is less than nothing is nothing.
pub(crate) fn of_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// The machine's own clock and randomness, and tokio's timers.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEnv;

impl Env for SystemEnv {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clock"
    )]
    fn now(&self) -> Timestamp {
        let now = std::time::SystemTime::now();
        let micros = match now.duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
        };
        Timestamp::from_micros(micros)
    }

    fn monotonic(&self) -> Duration {
        // CLOCK_BOOTTIME, not Instant: a laptop that slept must find its lease expired.
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that draws randomness"
    )]
    fn random(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the operating system has randomness");
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that sleeps"
    )]
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep(duration))
    }
}
