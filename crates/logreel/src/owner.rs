//! This process as a driver of runs: who it is, and the thread that says it is alive.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use logreel_store::{Env, Owner, OwnerId, RunStore};

use crate::workflow::groups::Groups;

/// How long a lease holds without a renewal, when nothing else is said.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// How often something outside is looked at by whoever waits for it, whatever the doorbells do.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The owner's pulse: when the last confirmed renewal was *sent*, and how often that was too long ago.
pub(crate) struct Pulse {
    pub(crate) owner: Owner,
    /// What its commands run in.
    pub(crate) groups: Arc<Groups>,
    sent_ms: AtomicU64,
    /// How often a renewal was confirmed so late that others may have taken runs before it: it is fresh again
    /// and says nothing of them.
    lapses: AtomicU64,
    /// When the latest of these renewals was sent; 0 when there was none.
    late_ms: AtomicU64,
    env: Arc<dyn Env>,
    lease: Duration,
}

impl Pulse {
    /// Of an owner that joined; `sent` is when it asked to.
    pub(crate) fn new(
        owner: Owner,
        notes: Option<PathBuf>,
        env: Arc<dyn Env>,
        lease: Duration,
        sent: Duration,
    ) -> Self {
        let groups = Arc::new(Groups::new(notes, owner.id));
        let sent_ms = AtomicU64::new(millis(sent));
        Self {
            owner,
            groups,
            sent_ms,
            lapses: AtomicU64::new(0),
            late_ms: AtomicU64::new(0),
            env,
            lease,
        }
    }

    pub(crate) fn id(&self) -> OwnerId {
        self.owner.id
    }

    /// Renews once.
    pub(crate) async fn beat(&self, store: &dyn RunStore) -> Result<(), logreel_store::Error> {
        let sent = millis(self.env.monotonic());
        store.beat(self.owner.id).await?;
        // Until it was confirmed: nobody here knows when it was written down.
        if !self.is_fresh() {
            // Before it counts as fresh again, so that whoever sees that sees this too.
            self.lapses.fetch_add(1, Ordering::SeqCst);
            self.late_ms.fetch_max(sent, Ordering::SeqCst);
        }
        self.sent_ms.fetch_max(sent, Ordering::SeqCst);
        Ok(())
    }

    /// Whether the lease surely still holds: a worker that was frozen must look before it acts. A
    /// freeze between this check and the effect remains; the docs name it.
    pub(crate) fn is_fresh(&self) -> bool {
        let sent = self.sent_ms.load(Ordering::SeqCst);
        let margin = self.lease / 5;
        millis(self.env.monotonic()).saturating_sub(sent) < millis(self.lease - margin)
    }

    /// How often others may have taken runs of this owner although its pulse is fresh by now: after each, a run
    /// must be looked at before it is acted for.
    pub(crate) fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::SeqCst)
    }

    /// Whether the silence of others says anything: when this process could not be heard itself, they may not
    /// have been either, and have two beats to be heard again.
    pub(crate) fn may_judge(&self) -> bool {
        let now = millis(self.env.monotonic());
        let late = self.late_ms.load(Ordering::SeqCst);
        self.is_fresh() && (late == 0 || now.saturating_sub(late) >= 2 * millis(self.period()))
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    pub(crate) fn period(&self) -> Duration {
        self.lease / 4
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The thread that renews. It has a thread of its own, so that a busy runtime does not lose leases.
pub(crate) struct Renewal {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Renewal {
    pub(crate) fn spawn(pulse: Arc<Pulse>, store: Arc<dyn RunStore>) -> std::io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("logreel-lease".to_owned())
            .spawn(move || {
                let (flag, wake) = &*stopped;
                let mut guard = flag.lock().unwrap_or_else(PoisonError::into_inner);
                let mut away = false;
                while !*guard {
                    let (next, timeout) = wake
                        .wait_timeout(guard, pulse.period())
                        .unwrap_or_else(PoisonError::into_inner);
                    guard = next;
                    if timeout.timed_out() && !*guard {
                        drop(guard);
                        match block_on(pulse.beat(&*store)) {
                            Ok(()) => away = false,
                            Err(error) if !std::mem::replace(&mut away, true) => {
                                tracing::warn!(%error, "the lease was not renewed; trying again");
                            }
                            Err(error) => tracing::debug!(%error, "the lease was not renewed"),
                        }
                        guard = flag.lock().unwrap_or_else(PoisonError::into_inner);
                    }
                }
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the renewal thread panicked");
        }
    }
}

/// Waits for a future on a thread without a runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use logreel_store::MemoryStore;

    use super::*;
    use crate::testing::TestEnv;

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_renewed_too_late_says_nothing_about_what_happened_before() {
        let env: Arc<dyn Env> = Arc::new(TestEnv::default());
        let store = MemoryStore::new(Arc::clone(&env));
        let owner = Owner {
            id: OwnerId(1),
            host: "here".to_owned(),
            host_name: "here".to_owned(),
            pid: 1,
        };
        store.join(&owner).await.expect("it joins");
        let pulse = Pulse::new(owner, None, Arc::clone(&env), LEASE, env.monotonic());
        for _ in 0..8 {
            env.sleep(pulse.period()).await;
            pulse.beat(&store).await.expect("a beat");
            assert!(pulse.is_fresh() && pulse.may_judge());
        }
        assert_eq!(pulse.lapses(), 0);
        // Frozen, or cut off; then the thread of beats is the first to do something.
        env.sleep(LEASE).await;
        assert!(!pulse.is_fresh() && !pulse.may_judge());
        pulse.beat(&store).await.expect("a beat");
        assert!(pulse.is_fresh());
        assert_eq!(pulse.lapses(), 1, "someone may have taken a run");
        for heard in [false, true] {
            assert!(!pulse.may_judge(), "others were silent for the same reason");
            env.sleep(pulse.period()).await;
            pulse.beat(&store).await.expect("a beat");
            assert_eq!(pulse.may_judge(), heard);
        }
    }
}
