//! Time of a replay: it stands still while anything can go on, and jumps when nothing can. Ids and
//! randomness are counted, so that a replay is the same every time.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use logreel_core::{Digest, Timestamp};
use logreel_store::Env;

/// The clock of one replay, on one thread. A clone is the same clock.
#[derive(Clone)]
pub(crate) struct Clock(Arc<Mutex<Hands>>);

struct Hands {
    began: Timestamp,
    passed: Duration,
    drawn: u64,
    /// How often anyone looked at it, drew from it or waited for it: whoever works does.
    looks: u64,
    timers: BTreeMap<(Duration, u64), Option<Waker>>,
}

impl Clock {
    pub(crate) fn new(began: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(Hands {
            began,
            passed: Duration::ZERO,
            drawn: 0,
            looks: 0,
            timers: BTreeMap::new(),
        })))
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        let mut hands = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hands.looks += 1;
        hands
    }

    /// Lets everything that can go on do so. All of it is on this thread and none of it waits for the
    /// world, so whoever has not looked at the clock for this long has nothing to do.
    pub(crate) async fn settle(&self) {
        const QUIET: u32 = 48;
        let looks = || self.0.lock().unwrap_or_else(PoisonError::into_inner).looks;
        let (mut quiet, mut last) = (0, looks());
        while quiet < QUIET {
            tokio::task::yield_now().await;
            let now = looks();
            quiet = if now == last { quiet + 1 } else { 0 };
            last = now;
        }
    }

    /// Jumps to the next timer, unless that is after `until`.
    pub(crate) fn jump(&self, until: Duration) -> bool {
        let mut hands = self.hands();
        let Some(((at, _), _)) = hands.timers.first_key_value() else {
            return false;
        };
        let at = *at;
        if at > until {
            return false;
        }
        hands.passed = hands.passed.max(at);
        let due = hands.timers.range_mut(..=(at, u64::MAX));
        let wakers: Vec<Waker> = due.filter_map(|(_, waker)| waker.take()).collect();
        hands.timers.retain(|(deadline, _), _| *deadline > at);
        drop(hands);
        wakers.into_iter().for_each(Waker::wake);
        true
    }
}

impl Env for Clock {
    fn now(&self) -> Timestamp {
        let hands = self.hands();
        hands.began + hands.passed
    }

    fn monotonic(&self) -> Duration {
        self.hands().passed
    }

    fn random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(32) {
            let mut hands = self.hands();
            hands.drawn += 1;
            let drawn = Digest::of(&hands.drawn.to_le_bytes());
            chunk.copy_from_slice(&drawn.as_bytes()[..chunk.len()]);
        }
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut hands = self.hands();
        let key = (hands.passed.saturating_add(duration), hands.looks);
        hands.timers.insert(key, None);
        let clock = self.clone();
        Box::pin(Timer { clock, key })
    }
}

struct Timer {
    clock: Clock,
    key: (Duration, u64),
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut hands = self.clock.hands();
        if hands.passed >= self.key.0 {
            return Poll::Ready(());
        }
        hands.timers.insert(self.key, Some(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.clock.hands().timers.remove(&self.key);
    }
}
