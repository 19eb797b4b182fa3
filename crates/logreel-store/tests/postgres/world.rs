//! A store in a schema of its own, and a driver of one run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{Budget, Custom, Durability, Provenance, RunKind, RunStarted};
use logreel_core::{AppendId, Blob, Body, Digest, Draft, Epoch, Event, Head, Payload, RunId, Seq};
use logreel_store::postgres::Options;
use logreel_store::{
    Append, AppendError, Created, Entry, Env, NewRun, Owner, OwnerId, PostgresStore, RunStore,
    SystemEnv,
};
use tempfile::TempDir;

pub fn server() -> String {
    std::env::var("LOGREEL_TEST_POSTGRES")
        .expect("LOGREEL_TEST_POSTGRES names a database to test on")
}

/// The URL with a schema of its own.
pub fn in_schema(server: &str) -> (String, String) {
    let schema = format!("t{:016x}", SystemEnv.random_u64());
    let and = if server.contains('?') { '&' } else { '?' };
    let url = format!("{server}{and}options=-csearch_path%3D{schema}");
    (url, schema)
}

pub fn options(locks: &TempDir) -> Options {
    Options {
        create: true,
        locks: Some(locks.path().to_owned()),
        // Those that are about it put it up: it has a connection of its own.
        doorbell: false,
        ..Options::default()
    }
}

pub async fn admin() -> tokio_postgres::Client {
    admin_of(&server()).await
}

pub async fn admin_of(server: &str) -> tokio_postgres::Client {
    let connected = tokio_postgres::connect(server, tokio_postgres::NoTls).await;
    let (client, connection) = connected.expect("the server answers");
    tokio::spawn(connection);
    client
}

/// A driver of one run.
pub struct Pen {
    pub store: Arc<PostgresStore>,
    pub run: RunId,
    pub head: Head,
    pub owner: OwnerId,
    sent: u64,
}

impl Pen {
    pub async fn new(store: impl Into<Arc<PostgresStore>>) -> Self {
        Self::of(store, stranger()).await
    }

    pub async fn of(store: impl Into<Arc<PostgresStore>>, owner: Owner) -> Self {
        let store = store.into();
        store.join(&owner).await.expect("it joins");
        let entry = created(&store, started(), Some(owner.id)).await;
        Self {
            store,
            run: entry.row.run,
            head: entry.row.head,
            owner: owner.id,
            sent: 0,
        }
    }

    /// Appends an event; says whether it had landed before. After a failure the next call sends the same.
    pub async fn write(&mut self, name: &str) -> Result<bool, AppendError> {
        self.write_with(name, Vec::new()).await
    }

    pub async fn write_with(&mut self, name: &str, blobs: Vec<Blob>) -> Result<bool, AppendError> {
        let custom = Custom {
            name: name.to_owned(),
            data: Payload::null(),
        };
        let append = Append {
            run: self.run,
            expect: self.head,
            epoch: Epoch(1),
            id: AppendId::driver(self.sent + 1),
            drafts: vec![Draft::new(custom)],
            blobs,
        };
        let appended = self.store.append(&append).await?;
        self.sent += 1;
        let last = appended.events.last().expect("one event");
        (self.head.seq, self.head.digest) = (last.seq, last.digest);
        Ok(appended.repeated)
    }

    pub async fn names(&self) -> Vec<String> {
        let page = self.store.events(&self.run, Seq(2), 100).await;
        let events = page.expect("a page").items.into_iter();
        let name = |event: Event| match event.body {
            Body::Custom(custom) => custom.name,
            other => panic!("{other:?}"),
        };
        events.map(name).collect()
    }
}

pub fn started() -> RunStarted {
    RunStarted {
        agent: "driven".into(),
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
        spec_digest: Digest::of(b"driven"),
        spec_file: None,
    }
}

/// A new run that nobody holds.
pub async fn queued(store: &PostgresStore, started: RunStarted) -> Entry {
    created(store, started, None).await
}

/// A new run.
pub async fn created(store: &PostgresStore, started: RunStarted, owner: Option<OwnerId>) -> Entry {
    let new = NewRun {
        run: SystemEnv.run_id(),
        started,
        then: Vec::new(),
        blobs: Vec::new(),
        owner,
    };
    match store.create(new).await.expect("it is created") {
        Created::New(entry) => entry,
        Created::Attached(_) => panic!("it is new"),
    }
}

/// An owner of another host.
pub fn stranger() -> Owner {
    Owner {
        id: OwnerId(SystemEnv.random_u64()),
        host: "elsewhere".to_owned(),
        host_name: "elsewhere".to_owned(),
        pid: 1,
    }
}

/// Waits until so many wait for what `holder` has locked, or for one who does. Another connection looks: within a
/// transaction the server shows the connections that were there when it was first asked.
pub async fn wait_for_blocked(holder: &tokio_postgres::Client, many: i64) {
    let pid = holder.query_one("SELECT pg_backend_pid()", &[]).await;
    let pid: i32 = pid.unwrap().get(0);
    let watcher = admin().await;
    let sql = "WITH RECURSIVE waiting AS (
          SELECT $1::int4 AS pid
          UNION SELECT a.pid FROM waiting w JOIN pg_stat_activity a ON w.pid = ANY(pg_blocking_pids(a.pid)))
        SELECT count(*) - 1 FROM waiting";
    let began = SystemEnv.monotonic();
    loop {
        let blocked: i64 = watcher.query_one(sql, &[&pid]).await.unwrap().get(0);
        if blocked >= many {
            return;
        }
        let waited = SystemEnv.monotonic() - began;
        assert!(
            waited < Duration::from_secs(20),
            "{blocked} wait, not {many}"
        );
    }
}
