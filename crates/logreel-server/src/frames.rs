//! A run's latest events as they are sent, for whoever watches it.
//!
//! A watcher pulls: it asks for what follows the event it has, and nothing is queued for one that does not
//! read. What is new is read and written out once, however many watch; whoever is further behind than
//! what is kept of it reads the store by itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use logreel::core::codec::StoredBody;
use logreel::core::{Record, RunKey};
use logreel::store::Error;
use logreel::view::EventView;
use logreel::{RunId, RunStore, Seq};
use tokio::sync::OnceCell;

use crate::said::Mark;

/// Events that are read at a time.
const PAGE: usize = 128;
/// What is kept of a run that is watched.
const KEPT_BYTES: usize = 256 * 1024;

/// An event as it is sent.
#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) seq: Seq,
    pub(crate) text: Bytes,
    /// It is the run's first terminal event.
    pub(crate) ends: bool,
    /// It came after the end.
    pub(crate) late: bool,
    /// What it says of an answer that may be shown live.
    pub(crate) mark: Option<Mark>,
}

/// The frames of every run that is watched.
pub(crate) struct Frames {
    store: Arc<dyn RunStore>,
    runs: Mutex<HashMap<RunId, Weak<RunFrames>>>,
}

impl Frames {
    pub(crate) fn new(store: Arc<dyn RunStore>) -> Self {
        Self {
            store,
            runs: Mutex::default(),
        }
    }

    /// Those of one run, for as long as someone has them.
    pub(crate) fn of(&self, run: RunId) -> Arc<RunFrames> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(frames) = runs.get(&run).and_then(Weak::upgrade) {
            return frames;
        }
        runs.retain(|_, frames| frames.strong_count() > 0);
        let frames = Arc::new(self.fresh(run));
        runs.insert(run, Arc::downgrade(&frames));
        frames
    }

    /// Those of one run, with nothing that was read before: of one that was erased, others may still have
    /// what it held.
    pub(crate) fn fresh(&self, run: RunId) -> RunFrames {
        RunFrames {
            store: Arc::clone(&self.store),
            run,
            keys: OnceCell::new(),
            ring: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }
}

/// The frames of one run.
pub(crate) struct RunFrames {
    store: Arc<dyn RunStore>,
    run: RunId,
    keys: OnceCell<HashMap<RunId, Option<RunKey>>>,
    ring: Mutex<Ring>,
    /// Held by whoever reads what is new.
    reading: tokio::sync::Mutex<()>,
}

/// The latest frames, without a gap.
#[derive(Default)]
struct Ring {
    frames: VecDeque<Frame>,
    bytes: usize,
}

/// What the ring knows of an event.
enum Known {
    Here(Vec<Frame>),
    /// It is the next one.
    Next,
    /// It is older than what is kept.
    Older,
    /// It is further on than anyone has read.
    Beyond,
}

impl Ring {
    fn from(&self, next: Seq) -> Known {
        let (Some(first), Some(last)) = (self.frames.front(), self.frames.back()) else {
            return Known::Beyond;
        };
        if next < first.seq {
            Known::Older
        } else if next <= last.seq {
            let behind = usize::try_from(next.0 - first.seq.0).unwrap_or(usize::MAX);
            Known::Here(self.frames.iter().skip(behind).cloned().collect())
        } else if next == last.seq.next() {
            Known::Next
        } else {
            Known::Beyond
        }
    }

    fn push(&mut self, frame: Frame) {
        self.bytes += frame.text.len();
        self.frames.push_back(frame);
        while self.bytes > KEPT_BYTES && self.frames.len() > 1 {
            let gone = self.frames.pop_front();
            self.bytes -= gone.map_or(0, |gone| gone.text.len());
        }
    }
}

impl RunFrames {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Events from this one on, as many as there are in a page; none when there are none yet.
    pub(crate) async fn from(&self, next: Seq) -> Result<Vec<Frame>, Error> {
        let known = self.ring().from(next);
        match known {
            Known::Here(frames) => Ok(frames),
            Known::Older => self.read(next).await,
            Known::Next | Known::Beyond => self.read_new(next).await,
        }
    }

    /// Reads what nobody has read yet; of several who want it, one does.
    async fn read_new(&self, next: Seq) -> Result<Vec<Frame>, Error> {
        let _reading = self.reading.lock().await;
        let known = self.ring().from(next);
        match known {
            Known::Here(frames) => return Ok(frames),
            Known::Older => return self.read(next).await,
            Known::Next | Known::Beyond => {}
        }
        let frames = self.read(next).await?;
        if !frames.is_empty() {
            let mut ring = self.ring();
            // Whoever is furthest leads.
            if matches!(known, Known::Beyond) {
                *ring = Ring::default();
            }
            for frame in &frames {
                ring.push(frame.clone());
            }
        }
        Ok(frames)
    }

    async fn read(&self, next: Seq) -> Result<Vec<Frame>, Error> {
        let page = self.store.read(&self.run, next, PAGE).await?;
        let keys = self.keys().await?;
        let frames = page.items.iter();
        Ok(frames.map(|record| self.frame(record, keys)).collect())
    }

    async fn keys(&self) -> Result<&HashMap<RunId, Option<RunKey>>, Error> {
        let read = || async { Ok(self.store.keys(&self.run).await?.into_iter().collect()) };
        self.keys.get_or_try_init(read).await
    }

    fn frame(&self, record: &Record, keys: &HashMap<RunId, Option<RunKey>>) -> Frame {
        let writer = record.origin.unwrap_or(self.run);
        let key = keys.get(&writer).copied().flatten();
        let view = EventView::of(self.run, record, key.as_ref());
        let json = serde_json::to_string(&view).expect("what was stored serializes");
        Frame {
            seq: record.seq,
            text: Bytes::from(format!("id: {}\ndata: {json}\n\n", record.seq)),
            ends: !record.late && ends(&record.kind),
            late: record.late,
            mark: match &record.body {
                StoredBody::Text(body) => Mark::of_stored(&record.kind, body),
                StoredBody::Erased(_) => None,
            },
        }
    }
}

fn ends(kind: &str) -> bool {
    matches!(kind, "run.completed" | "run.failed" | "run.cancelled")
}
