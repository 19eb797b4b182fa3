//! A world that moves only when a test says so.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logreel_core::Timestamp;
use tokio::sync::watch;

use crate::Env;

/// An [`Env`] whose clocks stand still until they are moved, and whose randomness counts. A clone is
/// the same world.
#[derive(Debug, Clone)]
pub struct TestEnv(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Mutex<Clock>,
    monotonic: watch::Sender<Duration>,
}

#[derive(Debug)]
struct Clock {
    now: Timestamp,
    monotonic: Duration,
    draws: u64,
}

impl TestEnv {
    /// 2026-01-01T00:00:00Z.
    pub const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

    /// A world at [`TestEnv::START`].
    pub fn new() -> Self {
        let monotonic = Duration::from_secs(1000);
        let clock = Mutex::new(Clock {
            now: Self::START,
            monotonic,
            draws: 0,
        });
        Self(Arc::new(Shared {
            clock,
            monotonic: watch::Sender::new(monotonic),
        }))
    }

    /// Time passes: both clocks move.
    pub fn advance(&self, duration: Duration) {
        let mut clock = self.clock();
        clock.now = clock.now + duration;
        self.move_monotonic(clock, duration);
    }

    /// Someone sets the wall clock; no time passes.
    pub fn set_now(&self, now: Timestamp) {
        self.clock().now = now;
    }

    /// Time passes while the wall clock is stuck.
    pub fn advance_monotonic(&self, duration: Duration) {
        self.move_monotonic(self.clock(), duration);
    }

    fn move_monotonic(&self, mut clock: MutexGuard<'_, Clock>, duration: Duration) {
        clock.monotonic += duration;
        let monotonic = clock.monotonic;
        drop(clock);
        self.0.monotonic.send_replace(monotonic);
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        // Nothing panics while the clock is locked.
        self.0.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for TestEnv {
    fn default() -> Self {
        Self::new()
    }
}

impl Env for TestEnv {
    fn now(&self) -> Timestamp {
        self.clock().now
    }

    fn monotonic(&self) -> Duration {
        self.clock().monotonic
    }

    fn random(&self, bytes: &mut [u8]) {
        let mut clock = self.clock();
        for chunk in bytes.chunks_mut(8) {
            clock.draws += 1;
            chunk.copy_from_slice(&mix(clock.draws).to_le_bytes()[..chunk.len()]);
        }
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut clock = self.0.monotonic.subscribe();
        let until = self.monotonic() + duration;
        let world = self.clone();
        Box::pin(async move {
            // `world` keeps the sender, so the clock cannot be gone.
            clock
                .wait_for(|now| *now >= until)
                .await
                .expect("the clock is kept by the sleeper");
            drop(world);
        })
    }
}

/// SplitMix64: neighbours in, strangers out.
pub(super) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
