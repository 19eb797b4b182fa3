//! Doorbells: they say that something may have changed, never what. Whoever hears one reads the log,
//! so nothing is queued for a subscriber that does not read.

use std::collections::HashMap;
use std::sync::Mutex;

use logreel_core::{RunId, Seq};
use tokio::sync::watch;

/// Rings when a run may have changed. Rings are coalesced; one that rang before it was asked for is
/// not lost.
#[derive(Debug, Clone)]
pub struct Doorbell {
    receiver: watch::Receiver<Rings>,
    heard: u64,
}

/// What has rung so far: how far the log is known to reach, and how often something else changed.
#[derive(Debug, Clone, Copy, Default)]
struct Rings {
    head: u64,
    others: u64,
}

impl Doorbell {
    fn new(bell: &watch::Sender<Rings>) -> Self {
        let receiver = bell.subscribe();
        let heard = receiver.borrow().others;
        Self { receiver, heard }
    }

    /// Waits for the next ring. `false` when the store is gone.
    pub async fn rung(&mut self) -> bool {
        self.receiver.changed().await.is_ok()
    }

    /// How far the log reaches, when that is all the rings since the last call said. Whoever has
    /// read that far need not look.
    pub fn head(&mut self) -> Option<Seq> {
        let rings = *self.receiver.borrow_and_update();
        let only_appends = rings.others == self.heard;
        self.heard = rings.others;
        only_appends.then_some(Seq(rings.head))
    }
}

/// The doorbells of a store.
#[derive(Debug, Default)]
pub struct Doorbells {
    runs: Mutex<HashMap<RunId, watch::Sender<Rings>>>,
    any: watch::Sender<Rings>,
}

impl Doorbells {
    /// The doorbell of one run.
    pub fn watch(&self, run: RunId) -> Doorbell {
        let mut runs = self.lock();
        // Forget the bells nobody listens to, when there are many.
        if runs.len() >= 1024 && runs.len().is_power_of_two() {
            runs.retain(|_, bell| bell.receiver_count() > 0);
        }
        Doorbell::new(runs.entry(run).or_default())
    }

    /// The doorbell of all runs.
    pub fn watch_all(&self) -> Doorbell {
        Doorbell::new(&self.any)
    }

    /// The run's log was appended to and now reaches `head`; nothing else changed.
    pub fn ring_appended(&self, run: &RunId, head: Seq) {
        self.ring_with(run, |rings| rings.head = rings.head.max(head.0));
    }

    /// Something about this run may have changed.
    pub fn ring(&self, run: &RunId) {
        self.ring_with(run, |rings| rings.others += 1);
    }

    fn ring_with(&self, run: &RunId, change: impl FnOnce(&mut Rings)) {
        let mut runs = self.lock();
        if let Some(bell) = runs.get(run) {
            if bell.receiver_count() == 0 {
                runs.remove(run);
            } else {
                bell.send_modify(change);
            }
        }
        drop(runs);
        self.any.send_modify(|rings| rings.others += 1);
    }

    /// Rings every bell: after a gap in what was seen.
    pub fn ring_all(&self) {
        self.lock().retain(|_, bell| {
            bell.send_modify(|rings| rings.others += 1);
            bell.receiver_count() > 0
        });
        self.any.send_modify(|rings| rings.others += 1);
    }

    /// The runs that someone listens for.
    #[cfg(feature = "postgres")]
    pub(crate) fn listened(&self) -> Vec<RunId> {
        let runs = self.lock();
        let listened = runs.iter().filter(|(_, bell)| bell.receiver_count() > 0);
        listened.map(|(run, _)| *run).collect()
    }

    /// Rings for whoever listens to all runs.
    #[cfg(feature = "postgres")]
    pub(crate) fn ring_any(&self) {
        self.any.send_modify(|rings| rings.others += 1);
    }

    /// Whether anyone listens.
    pub fn has_listeners(&self) -> bool {
        self.any.receiver_count() > 0 || self.lock().values().any(|bell| bell.receiver_count() > 0)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, watch::Sender<Rings>>> {
        // Nothing panics while the map is locked.
        self.runs
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
