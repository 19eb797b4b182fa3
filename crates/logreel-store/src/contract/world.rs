//! What a rule is checked in: a store, its clocks, drivers, and the laws that hold after anything.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use logreel_core::event::{Body, RunStarted};
use logreel_core::{
    AppendId, Command, Digest, Draft, Epoch, Event, Head, Outside, Payload, Record, RunId,
    RunState, Seq, Tally, Verifier, decide, replay,
};

use super::TestEnv;
use super::facts::append_id;
use crate::{
    Append, AppendError, Appended, ClaimOutcome, Commanded, Created, Entry, Env, Filter, NewRun,
    Owner, OwnerId, RunStore, SessionInfo, Stats,
};

/// How the suite makes the store under test. One harness holds one set of data, fresh for each rule.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens the harness's data: empty the first time, and from then on whatever is in it. The suite
    /// opens a second instance beside the first, and one more after all others were dropped; so give
    /// out a new `Arc` each time and keep none. Every time, deadline and lease of the store must come
    /// from `env`.
    async fn open(&self, env: TestEnv) -> Arc<dyn RunStore>;

    /// How long an owner may be silent before others may take its runs.
    fn lease(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// The largest payload the store takes.
    fn payload_bytes_max(&self) -> u64 {
        crate::tip::PAYLOAD_MAX_BYTES
    }
}

/// Checks what is always true of a run, whatever happened to it: `seq` is dense, pages join without a
/// gap, the chain holds, and the row and the sum of results are those of a fold of the whole log.
///
/// # Panics
///
/// When one of them does not hold; the message says which.
pub async fn check_run(store: &dyn RunStore, run: &RunId) -> Vec<Event> {
    let entry = store.entry(run).await.expect("a listed run has an entry");
    let records = read_all(store, run, 7).await;
    let key = store.key(run).await.expect("a listed run has a key");
    let mut verifier = Verifier::new(run, key);
    let keys = store.keys(run).await.expect("a listed run has keys");
    assert!(keys.contains(&(*run, key)), "its own key is among them");
    for (origin, key) in keys.into_iter().filter(|(origin, _)| origin != run) {
        verifier.add_key(origin, key);
    }
    for record in &records {
        verifier
            .check(record)
            .unwrap_or_else(|error| panic!("the chain of {run}: {error}"));
    }
    verifier
        .finish(&entry.row.head)
        .unwrap_or_else(|error| panic!("the chain of {run}: {error}"));
    if entry.erased {
        // Only the chain is left.
        return Vec::new();
    }
    let decode = |record: &Record| record.decode().expect("what was appended decodes");
    let events: Vec<Event> = records.iter().map(decode).collect();
    let state = replay(*run, &events).unwrap_or_else(|error| panic!("the log of {run}: {error}"));
    let state = state.expect("a run has at least event 1");
    assert_eq!(
        entry.row, state.row,
        "the row of {run} is the fold of its log"
    );
    let mut tally = Tally::default();
    events.iter().for_each(|event| tally.add(event));
    assert_eq!(
        entry.results,
        tally.sum(),
        "the results of {run} are those of its log"
    );
    // The drivers of a fork are counted anew.
    let own = events
        .iter()
        .rposition(|event| matches!(event.body, Body::RunForked(_)));
    let own = &events[own.unwrap_or_default()..];
    let epochs: Vec<Epoch> = own.iter().map(|event| event.epoch).collect();
    assert!(
        epochs.is_sorted(),
        "no event of {run} is of an epoch before the last: {epochs:?}"
    );
    assert!(
        epochs.last() <= Some(&entry.epoch),
        "{run} has events of an epoch nobody was given"
    );
    events
}

/// The whole log in pages of at most `limit`.
pub(super) async fn read_all(store: &dyn RunStore, run: &RunId, limit: usize) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    loop {
        let from = Seq(records.len() as u64 + 1);
        let page = store
            .read(run, from, limit)
            .await
            .expect("a page of a known run");
        assert!(
            page.items.len() <= limit,
            "a page has at most `limit` events"
        );
        let seqs: Vec<u64> = page.items.iter().map(|record| record.seq.0).collect();
        let dense: Vec<u64> = (from.0..from.0 + page.items.len() as u64).collect();
        assert_eq!(seqs, dense, "seq is dense from {from}");
        assert_eq!(
            page.next.0,
            from.0 + page.items.len() as u64,
            "`next` follows the last item"
        );
        assert!(
            !page.has_more || !page.items.is_empty(),
            "a page that has more is not empty"
        );
        records.extend(page.items);
        if !page.has_more {
            return records;
        }
    }
}

/// Every run, newest first, in pages of at most `limit`.
pub(super) async fn list_all(store: &dyn RunStore, filter: &Filter, limit: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut cursor = None;
    loop {
        let page = store
            .list(filter, cursor.as_ref(), limit)
            .await
            .expect("a page of runs");
        assert!(page.items.len() <= limit, "a page has at most `limit` runs");
        entries.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return entries;
        }
    }
}

/// The entry without what two stores, or two instances of one, may see differently: digests of runs
/// with different keys, and whether an owner lives.
pub(super) fn comparable(mut entry: Entry) -> Entry {
    entry.row.head.digest = Digest([0; 32]);
    if let Some(driver) = &mut entry.driver {
        driver.alive = true;
    }
    entry
}

/// A store in which one rule is checked.
pub(super) struct World<'h> {
    pub harness: &'h dyn Harness,
    pub env: TestEnv,
    pub store: Arc<dyn RunStore>,
}

/// All there is to see in a store.
#[derive(Debug, PartialEq)]
struct View {
    entries: Vec<Entry>,
    logs: Vec<Vec<Event>>,
    sessions: Vec<SessionInfo>,
    stats: Stats,
    blobs: Vec<(Digest, Option<Vec<u8>>)>,
}

impl<'h> World<'h> {
    pub async fn new(harness: &'h dyn Harness) -> Self {
        let env = TestEnv::new();
        let store = harness.open(env.clone()).await;
        Self {
            harness,
            env,
            store,
        }
    }

    /// Another instance on the same data, as another process would have it.
    pub async fn second(&self) -> Arc<dyn RunStore> {
        self.harness.open(self.env.clone()).await
    }

    /// Closes the store and opens its data again.
    pub async fn reopen(&mut self) {
        assert_eq!(
            Arc::strong_count(&self.store),
            1,
            "a rule that reopens its store holds it alone"
        );
        // A stand-in, so that no instance is open in between.
        self.store = Arc::new(crate::MemoryStore::new(Arc::new(self.env.clone())));
        self.store = self.harness.open(self.env.clone()).await;
    }

    /// The end of every rule: the laws hold, and all there is to see is there after a reopen.
    pub async fn finish(mut self) {
        let before = self.view().await;
        self.reopen().await;
        assert_eq!(
            self.view().await,
            before,
            "a reopened store shows what it showed before"
        );
    }

    async fn view(&self) -> View {
        let entries = list_all(&*self.store, &Filter::default(), 5).await;
        let mut logs = Vec::new();
        let mut blobs = Vec::new();
        for entry in &entries {
            let events = check_run(&*self.store, &entry.row.run).await;
            assert_eq!(
                comparable(
                    self.store
                        .entry(&entry.row.run)
                        .await
                        .expect("a listed run")
                ),
                comparable(entry.clone()),
                "a list shows the run as it is"
            );
            if let Payload::Blob(reference) = &entry.row.facts.input {
                let bytes = self
                    .store
                    .blob(&reference.blob)
                    .await
                    .expect("a blob is looked up");
                blobs.push((reference.blob, bytes));
            }
            logs.push(events);
        }
        let stats = self.store.stats().await.expect("a store has stats");
        let mut stats = Stats {
            disk_bytes: None,
            ..stats
        };
        stats.runs.retain(|(_, runs)| *runs > 0);
        View {
            entries: entries
                .into_iter()
                .map(|mut entry| {
                    if let Some(driver) = &mut entry.driver {
                        driver.alive = true;
                    }
                    // Whoever opens a store has not seen its owners fall silent.
                    entry.over_limit = false;
                    entry
                })
                .collect(),
            logs,
            sessions: self.store.sessions().await.expect("a store has sessions"),
            stats,
            blobs,
        }
    }

    /// A process on a host that is not this one, so that only its beats say that it lives.
    pub async fn owner(&self, number: u64) -> OwnerId {
        let id = OwnerId(number);
        self.store
            .join(&owner(number))
            .await
            .expect("an owner joins");
        id
    }

    pub async fn create(&self, started: RunStarted, owner: Option<OwnerId>) -> Entry {
        let run = self.env.run_id();
        let new = NewRun {
            run,
            started,
            blobs: Vec::new(),
            owner,
            then: Vec::new(),
        };
        match self.store.create(new).await.expect("a run is created") {
            Created::New(entry) => entry,
            Created::Attached(entry) => panic!("{} was there already", entry.row.run),
        }
    }

    /// A run that owner 1 drives from the start.
    pub async fn driven(&self, started: RunStarted) -> Pen {
        let owner = self.owner(1).await;
        self.pen(&self.create(started, Some(owner)).await)
    }

    /// What writes a run under the epoch it has now.
    pub fn pen(&self, entry: &Entry) -> Pen {
        let (store, run) = (Arc::downgrade(&self.store), entry.row.run);
        Pen {
            store,
            run,
            epoch: entry.epoch,
            owner: entry
                .driver
                .as_ref()
                .map_or(OwnerId(1), |driver| driver.owner.id),
            head: entry.row.head,
            appends: 0,
        }
    }

    pub async fn claimed(&self, run: &RunId, owner: OwnerId) -> Pen {
        match self
            .store
            .claim(run, owner)
            .await
            .expect("a claim is answered")
        {
            ClaimOutcome::Claimed(entry) => self.pen(&entry),
            other => panic!("{run} should be claimed, not {other:?}"),
        }
    }

    pub async fn entry(&self, run: &RunId) -> Entry {
        self.store.entry(run).await.expect("the run is known")
    }

    pub async fn command(&self, run: &RunId, id: &str, command: Outside) -> Commanded {
        self.store
            .command(run, &append_id(id), &command, Vec::new())
            .await
            .expect("a command is answered")
    }

    pub async fn cancel(&self, run: &RunId) -> Commanded {
        self.command(run, "cancel", Outside::Cancel { reason: None })
            .await
    }
}

pub(super) fn owner(number: u64) -> Owner {
    let host = format!("contract-host-{number}");
    Owner {
        id: OwnerId(number),
        host_name: host.clone(),
        host,
        pid: 1,
    }
}

/// A driver's pen: it knows the head it decides on and the epoch it writes under. It does not keep
/// its store open, so that a reopen is one.
#[derive(Clone)]
pub(super) struct Pen {
    store: Weak<dyn RunStore>,
    pub run: RunId,
    pub epoch: Epoch,
    pub owner: OwnerId,
    pub head: Head,
    appends: u64,
}

impl Pen {
    fn store(&self) -> Arc<dyn RunStore> {
        self.store
            .upgrade()
            .expect("a pen writes to a store that is open")
    }

    /// Goes on in another instance.
    pub fn moved_to(self, world: &World<'_>) -> Self {
        Self {
            store: Arc::downgrade(&world.store),
            ..self
        }
    }

    /// The next append, under an id of its own.
    pub fn append(&mut self, drafts: Vec<Draft>) -> Append {
        self.appends += 1;
        let tag = super::env::mix(self.epoch.0 << 32 | self.appends);
        self.append_as(AppendId::driver(tag), drafts)
    }

    pub fn append_as(&self, id: AppendId, drafts: Vec<Draft>) -> Append {
        let Self {
            run, head, epoch, ..
        } = *self;
        Append {
            run,
            expect: head,
            epoch,
            id,
            drafts,
            blobs: Vec::new(),
        }
    }

    pub async fn try_write(&mut self, drafts: Vec<Draft>) -> Result<Appended, AppendError> {
        let append = self.append(drafts);
        self.send(append).await
    }

    pub async fn send(&mut self, append: Append) -> Result<Appended, AppendError> {
        let appended = self.store().append(&append).await?;
        if let Some(last) = appended.events.last() {
            self.head = Head {
                seq: last.seq,
                digest: last.digest,
            };
        }
        Ok(appended)
    }

    pub async fn write(&mut self, drafts: Vec<Draft>) -> Vec<Event> {
        let appended = self.try_write(drafts).await.expect("an append lands");
        assert!(!appended.repeated, "a new append is not a repetition");
        appended.events
    }

    /// Reads what came.
    pub async fn catch_up(&mut self) {
        self.head = self
            .store()
            .entry(&self.run)
            .await
            .expect("the run is known")
            .row
            .head;
    }

    pub async fn state(&self) -> RunState {
        let records = read_all(&*self.store(), &self.run, 1000).await;
        let decode = |record: &Record| record.decode().expect("what was appended decodes");
        let events: Vec<Event> = records.iter().map(decode).collect();
        replay(self.run, &events)
            .expect("a log folds")
            .expect("a run has event 1")
    }

    /// Decides as an engine does.
    pub async fn decide(&self, command: Command) -> Draft {
        let results = self
            .store()
            .entry(&self.run)
            .await
            .expect("the run is known")
            .results;
        decide(&self.state().await, &results, self.epoch, command).expect("the command is legal")
    }

    pub async fn complete(&mut self, output: serde_json::Value) -> Vec<Event> {
        let output = super::facts::payload(output);
        let draft = self.decide(Command::Complete { output }).await;
        self.write(vec![draft]).await
    }

    pub async fn release(&self) -> Entry {
        self.store()
            .release(&self.run, self.epoch, self.owner)
            .await
            .expect("a lease is given back")
    }
}
