//! Each rule is run on memory and on SQLite, through the public API, and looked at again after the
//! store was reopened.
#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    reason = "shared by several test binaries, each uses a part; a test may unwrap"
)]

pub mod desk;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use logreel::store::SystemEnv;
use logreel::store::sqlite::Options;
use logreel::testing::TestEngine;
use logreel::{Builder, Engine, Entry, Env, Event, MemoryStore, RunId, RunStore, Seq, SqliteStore};

/// A store that outlives the engines on it.
pub struct World {
    sqlite: Option<(tempfile::TempDir, PathBuf)>,
    memory: Arc<dyn RunStore>,
}

impl World {
    fn memory() -> Self {
        Self {
            sqlite: None,
            memory: Arc::new(MemoryStore::new(Arc::new(SystemEnv))),
        }
    }

    pub fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.db");
        Self {
            sqlite: Some((folder, path)),
            ..Self::memory()
        }
    }

    /// The store as another process sees it.
    pub fn open(&self) -> Arc<dyn RunStore> {
        match &self.sqlite {
            None => Arc::clone(&self.memory),
            Some((_, path)) => {
                let options = Options {
                    create: true,
                    ..Options::default()
                };
                Arc::new(SqliteStore::open(path, options).unwrap())
            }
        }
    }

    pub fn builder(&self) -> Builder {
        Engine::builder().store(self.open())
    }

    pub async fn engine(&self) -> Engine {
        self.builder().build().await.unwrap()
    }

    /// What a fresh process finds: the log verifies, and its fold is the row.
    pub async fn reopened(&self, run: RunId) -> (Entry, Vec<Event>) {
        let store = self.open();
        let entry = store.entry(&run).await.unwrap();
        let mut verifier = logreel::core::Verifier::new(&run, store.key(&run).await.unwrap());
        let mut events = Vec::new();
        let mut from = Seq::FIRST;
        loop {
            let page = store.read(&run, from, 7).await.unwrap();
            for record in &page.items {
                if let Some(origin) = verifier.needs_key_of(record) {
                    verifier.add_key(origin, store.key(&origin).await.unwrap());
                }
                verifier.check(record).unwrap();
                events.push(record.decode().unwrap());
            }
            from = page.next;
            if !page.has_more {
                break;
            }
        }
        verifier.finish(&entry.row.head).unwrap();
        let state = logreel::core::replay(run, &events).unwrap().unwrap();
        assert_eq!(state.row, entry.row, "the row is the fold of the log");
        (entry, events)
    }
}

/// Runs a rule on both stores.
pub async fn on_both<F, Fut>(rule: F)
where
    F: Fn(Arc<World>) -> Fut,
    Fut: Future<Output = ()>,
{
    for world in [World::memory(), World::sqlite()] {
        let name = if world.sqlite.is_some() {
            "sqlite"
        } else {
            "memory"
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), rule(Arc::new(world))).await;
        ended.unwrap_or_else(|_| panic!("on {name}: the rule did not come to an end"));
    }
}

pub fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.body.kind()).collect()
}

pub fn count(events: &[Event], kind: &str) -> usize {
    events
        .iter()
        .filter(|event| event.body.kind() == kind)
        .count()
}

/// Waits until the log has an event of this kind.
pub async fn until(engine: &Engine, run: RunId, kind: &str) {
    let mut events = engine.run(run).events(Seq::FIRST);
    while let Some(event) = events.next().await {
        if event.unwrap().body.kind() == kind {
            return;
        }
    }
    panic!("{run} ended without {kind}");
}

/// Waits until the run is as asked.
pub async fn until_entry(engine: &Engine, run: RunId, holds: impl Fn(&Entry) -> bool) -> Entry {
    let mut bell = engine.store().watch(&run);
    loop {
        let entry = engine.store().entry(&run).await.unwrap();
        if holds(&entry) {
            return entry;
        }
        assert!(bell.rung().await);
    }
}

/// Where stores for engines with virtual time are made: in memory, or on SQLite.
pub struct Virtual {
    folder: Option<tempfile::TempDir>,
    opened: AtomicU32,
}

impl Virtual {
    /// One of each kind.
    pub fn both() -> [Self; 2] {
        [None, Some(tempfile::tempdir().unwrap())].map(|folder| Self {
            folder,
            opened: AtomicU32::new(0),
        })
    }

    /// A new store.
    pub fn open(&self, env: Arc<dyn Env>) -> Arc<dyn RunStore> {
        let Some(folder) = &self.folder else {
            return Arc::new(MemoryStore::new(env));
        };
        let n = self.opened.fetch_add(1, Ordering::SeqCst);
        let path = folder.path().join(format!("{n}.db"));
        let options = Options {
            create: true,
            env,
            ..Options::default()
        };
        Arc::new(SqliteStore::open(path, options).unwrap())
    }

    /// An engine on a new store.
    pub async fn engine(&self) -> TestEngine {
        TestEngine::on(|env| self.open(env)).await.unwrap()
    }
}
