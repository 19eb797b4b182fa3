//! Doorbells: they say that something may have changed, never what. Whoever hears one reads the log,
//! so nothing is queued for a subscriber that does not read.

use std::sync::Mutex;

use logreel_core::state::Map;
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

impl Rings {
    fn reaches(&mut self, head: Seq) {
        self.head = self.head.max(head.0);
    }

    fn something_else(&mut self) {
        self.others += 1;
    }
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

/// What is told of a run once it is committed.
#[derive(Debug, Clone, Copy)]
pub enum Ring {
    /// Its driver appended, and the log now reaches so far.
    Driven(RunId, Seq),
    /// Someone else did; nothing but the log changed.
    Appended(RunId, Seq),
    /// Something else may have changed.
    Changed(RunId),
}

impl Ring {
    /// Whose bells ring.
    pub fn run(&self) -> RunId {
        let (Self::Driven(run, _) | Self::Appended(run, _) | Self::Changed(run)) = self;
        *run
    }
}

/// The doorbells of a store.
#[derive(Debug, Default)]
pub struct Doorbells {
    runs: Mutex<Map<RunId, Bells>>,
    any: watch::Sender<Rings>,
}

/// The bells of one run.
#[derive(Debug, Default)]
struct Bells {
    all: watch::Sender<Rings>,
    /// All but the appends of its driver in this process: it would be woken by each of its own.
    others: watch::Sender<Rings>,
}

impl Bells {
    fn has_listeners(&self) -> bool {
        self.all.receiver_count() + self.others.receiver_count() > 0
    }

    fn ring(&self, change: impl Fn(&mut Rings)) {
        ring(&self.all, &change);
        ring(&self.others, &change);
    }
}

/// Whoever comes later hears of what comes then, so that nobody is looked for when there is nobody.
fn ring(bell: &watch::Sender<Rings>, change: impl FnOnce(&mut Rings)) {
    if bell.receiver_count() > 0 {
        bell.send_modify(change);
    }
}

impl Doorbells {
    /// The doorbell of one run.
    pub fn watch(&self, run: RunId) -> Doorbell {
        self.listen(run, |bells| &bells.all)
    }

    /// The same for the run's driver, which knows what it appends.
    pub fn watch_others(&self, run: RunId) -> Doorbell {
        self.listen(run, |bells| &bells.others)
    }

    fn listen(&self, run: RunId, which: impl Fn(&Bells) -> &watch::Sender<Rings>) -> Doorbell {
        let mut runs = self.lock();
        // Forget the bells nobody listens to, when there are many.
        if runs.len() >= 1024 && runs.len().is_power_of_two() {
            runs.retain(|_, bells| bells.has_listeners());
        }
        Doorbell::new(which(runs.entry(run).or_default()))
    }

    /// The doorbell of all runs.
    pub fn watch_all(&self) -> Doorbell {
        Doorbell::new(&self.any)
    }

    /// Something about this run may have changed.
    pub fn ring(&self, run: &RunId) {
        self.tell(Ring::Changed(*run));
    }

    /// Rings for whom it concerns.
    pub fn tell(&self, told: Ring) {
        let mut runs = self.lock();
        if let Some(bells) = runs.get(&told.run()) {
            if bells.has_listeners() {
                match told {
                    Ring::Driven(_, head) => ring(&bells.all, |rings| rings.reaches(head)),
                    Ring::Appended(_, head) => bells.ring(|rings| rings.reaches(head)),
                    Ring::Changed(_) => bells.ring(Rings::something_else),
                }
            } else {
                runs.remove(&told.run());
            }
        }
        drop(runs);
        ring(&self.any, Rings::something_else);
    }

    /// Rings every bell: after a gap in what was seen.
    pub fn ring_all(&self) {
        self.lock().retain(|_, bells| {
            bells.ring(Rings::something_else);
            bells.has_listeners()
        });
        self.any.send_modify(Rings::something_else);
    }

    /// The runs that someone listens for.
    #[cfg(feature = "postgres")]
    pub(crate) fn listened(&self) -> Vec<RunId> {
        let runs = self.lock();
        let listened = runs.iter().filter(|(_, bells)| bells.has_listeners());
        listened.map(|(run, _)| *run).collect()
    }

    /// Rings for whoever listens to all runs.
    #[cfg(feature = "postgres")]
    pub(crate) fn ring_any(&self) {
        self.any.send_modify(Rings::something_else);
    }

    /// Whether anyone listens.
    pub fn has_listeners(&self) -> bool {
        self.any.receiver_count() > 0 || self.lock().values().any(Bells::has_listeners)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Map<RunId, Bells>> {
        // Nothing panics while the map is locked.
        self.runs
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
