//! What is written: a payload of 400 bytes of JSON, as a step's result, by a driver on a bare store
//! or through the engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use logreel_core::event::{
    Budget, Durability, Effect, Provenance, RunKind, RunStarted, StepFinished,
};
use logreel_core::{AppendId, Digest, Draft, Epoch, Head, Json, Payload, RunId, StepId};
use logreel_store::sqlite::{Options, Rows, this_host};
use logreel_store::{Append, Env, NewRun, Owner, OwnerId, RunStore, SqliteStore, SystemEnv};
use serde::{Deserialize, Serialize};

/// How long the payload's JSON is.
pub const PAYLOAD_BYTES: usize = 400;

/// The payload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Note {
    n: u64,
    text: String,
}

impl Note {
    pub fn new(n: u64) -> Self {
        let around = format!(r#"{{"n":{n},"text":""}}"#).len();
        let text = "the quick brown fox jumps over the lazy dog; "
            .chars()
            .cycle()
            .take(PAYLOAD_BYTES - around)
            .collect();
        Self { n, text }
    }

    pub fn json(&self) -> serde_json::Result<Json> {
        Json::of(self)
    }
}

/// A short step's only event.
pub fn finished(n: u64) -> Result<StepFinished> {
    Ok(StepFinished {
        attempt: 1,
        effect: Effect::Idempotent,
        input_digest: None,
        output: Payload::of(Note::new(n).json()?).0,
        started_at: Some(SystemEnv.now()),
        step: StepId::from_parts(["step".to_owned(), n.to_string()])?,
    })
}

pub fn started(agent: &str) -> RunStarted {
    RunStarted {
        agent: agent.into(),
        budget: Budget::default(),
        context: None,
        dir: None,
        durability: Durability::Full,
        git: None,
        input: Payload::null(),
        key: None,
        kind: RunKind::Task,
        labels: BTreeMap::new(),
        limit: None,
        parent: None,
        provenance: Provenance::default(),
        session: None,
        spec: Payload::null(),
        spec_digest: Digest::of(agent.as_bytes()),
        spec_file: None,
    }
}

/// Opens a store, made when there is none.
pub fn open(path: &Path, durability: Durability) -> Result<Arc<SqliteStore>> {
    open_with(path, durability, Rows::Kept)
}

/// The same, perhaps one that leaves the rows of runs behind.
pub fn open_with(path: &Path, durability: Durability, rows: Rows) -> Result<Arc<SqliteStore>> {
    let options = Options {
        create: true,
        durability,
        ..Options::default()
    };
    Ok(Arc::new(SqliteStore::open_with(path, options, rows)?))
}

/// This process as an owner of leases.
pub async fn join(store: &SqliteStore) -> Result<OwnerId> {
    let (host, host_name) = this_host();
    let id = OwnerId(SystemEnv.random_u64());
    let owner = Owner {
        id,
        host,
        host_name,
        pid: std::process::id(),
    };
    store.join(&owner).await?;
    Ok(id)
}

/// A run id that sorts anywhere, as those of many hosts do.
pub fn scattered_id() -> RunId {
    let mut bytes = [0; 16];
    SystemEnv.random(&mut bytes);
    // Version 7 and the RFC's variant, as every run id.
    bytes[6] = bytes[6] & 0x0f | 0x70;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    RunId::from_bytes(bytes)
}

/// A driver without an engine: appends to one run.
pub struct Pen {
    store: Arc<SqliteStore>,
    pub run: RunId,
    head: Head,
    epoch: Epoch,
    written: u64,
}

impl Pen {
    pub async fn new(store: &Arc<SqliteStore>, owner: OwnerId, run: RunId) -> Result<Self> {
        let new = NewRun {
            run,
            started: started("bench"),
            blobs: Vec::new(),
            owner: Some(owner),
            then: Vec::new(),
        };
        let created = store.create(new).await?;
        let entry = created.entry();
        Ok(Self {
            store: Arc::clone(store),
            run,
            head: entry.row.head,
            epoch: entry.epoch,
            written: 0,
        })
    }

    /// The next append, ready to be sent.
    pub fn next(&mut self, events: usize) -> Result<Append> {
        let mut drafts = Vec::with_capacity(events);
        for _ in 0..events {
            self.written += 1;
            drafts.push(Draft::new(finished(self.written)?));
        }
        Ok(Append {
            run: self.run,
            expect: self.head,
            epoch: self.epoch,
            id: AppendId::driver(self.written),
            drafts,
            blobs: Vec::new(),
        })
    }

    /// Sends it and waits until it is durable.
    pub async fn send(&mut self, append: Append) -> Result<()> {
        let appended = self.store.append(&append).await?;
        let last = appended.events.last().context("an append has events")?;
        self.head = Head {
            seq: last.seq,
            digest: last.digest,
        };
        Ok(())
    }

    pub async fn write(&mut self, events: usize) -> Result<()> {
        let append = self.next(events)?;
        self.send(append).await
    }

    pub fn head(&self) -> Head {
        self.head
    }
}
