//! What only a database elsewhere can do to a store: it is started by many at once, is newer than we are, goes
//! away, and loses answers. On the server that `LOGREEL_TEST_POSTGRES` names, like the contract suite.
#![cfg(feature = "postgres")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail where the test would"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use logreel_core::event::{Budget, Custom, Durability, Provenance, RunKind, RunStarted};
use logreel_core::{AppendId, Digest, Draft, Epoch, Payload, Seq};
use logreel_store::postgres::Options;
use logreel_store::{
    Append, AppendError, Created, Env, Error, NewRun, Owner, OwnerId, PostgresStore, RunStore,
    SystemEnv,
};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_postgres::config::Host;

fn server() -> String {
    std::env::var("LOGREEL_TEST_POSTGRES")
        .expect("LOGREEL_TEST_POSTGRES names a database to test on")
}

/// The URL with a schema of its own.
fn in_schema(server: &str) -> (String, String) {
    let schema = format!("t{:016x}", SystemEnv.random_u64());
    let and = if server.contains('?') { '&' } else { '?' };
    let url = format!("{server}{and}options=-csearch_path%3D{schema}");
    (url, schema)
}

fn options(locks: &TempDir) -> Options {
    Options {
        create: true,
        locks: Some(locks.path().to_owned()),
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_that_start_at_once_make_the_tables_once_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let open = || {
        let (url, options) = (url.clone(), options(&locks));
        tokio::spawn(async move { PostgresStore::open(&url, options).await })
    };
    let opening: Vec<_> = (0..10).map(|_| open()).collect();
    for opened in opening {
        let store = opened.await.unwrap().expect("each of them opens it");
        assert_eq!(store.stats().await.expect("it can be read").events, 0);
    }
    let admin = admin().await;
    let sql = format!("SELECT count(*) FROM {schema}.logreel_migrations");
    let migrations: i64 = admin.query_one(&sql, &[]).await.unwrap().get(0);
    assert!(migrations > 1, "{migrations}");

    // A newer build was here.
    let sql = format!("INSERT INTO {schema}.logreel_migrations (version) VALUES (99)");
    admin.batch_execute(&sql).await.unwrap();
    let refused = PostgresStore::open(&url, options(&locks)).await;
    let Err(Error::NewerSchema { found: 99, .. }) = refused else {
        panic!("a newer schema is refused, not {refused:?}")
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_reads_makes_no_tables_on_postgres() {
    let (url, _) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let reader = Options {
        create: false,
        ..options(&locks)
    };
    let refused = PostgresStore::open(&url, reader).await;
    let Err(Error::Unavailable { what, .. }) = refused else {
        panic!("there is no store, not {refused:?}")
    };
    assert!(
        what.starts_with("there is no store at postgres://"),
        "{what}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_is_unavailable_until_it_returns_on_postgres() {
    let proxy = Proxy::start().await;
    let (url, _) = in_schema(&proxy.url);
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let mut pen = Pen::new(store).await;
    pen.write("before").await.expect("it lands");
    proxy.set(CUT);
    let began = SystemEnv.monotonic();
    let error = pen.store.entry(&pen.run).await.expect_err("it is away");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = pen.write("while it is away").await.expect_err("it is away");
    let AppendError::Store(Error::Unavailable { .. } | Error::Ambiguous { .. }) = error else {
        panic!("unavailable or ambiguous, not {error:?}")
    };
    let took = SystemEnv.monotonic() - began;
    assert!(
        took < Duration::from_secs(10),
        "and says so at once: {took:?}"
    );
    proxy.set(OPEN);
    // The same append again, as after any outcome that is not known.
    pen.write("while it is away").await.expect("it is back");
    pen.write("after").await.expect("it lands");
    assert_eq!(pen.names().await, ["before", "while it is away", "after"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_whose_answer_is_lost_landed_once_on_postgres() {
    let proxy = Proxy::start().await;
    let (url, _) = in_schema(&proxy.url);
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let mut pen = Pen::new(store).await;
    // Twice, so that the tip is known and the statement prepared: one statement is all that is sent.
    pen.write("one").await.expect("it lands");
    pen.write("two").await.expect("it lands");
    proxy.set(LOSE);
    let repeated = pen.write("three").await.expect("it is found by its id");
    assert!(repeated, "it had landed before it was looked for");
    pen.write("four").await.expect("the log goes on");
    assert_eq!(pen.names().await, ["one", "two", "three", "four"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_is_one_round_trip_and_many_runs_share_one_on_postgres() {
    let proxy = Proxy::start().await;
    let (url, _) = in_schema(&proxy.url);
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let store = Arc::new(store);
    let mut pen = Pen::new(store.clone()).await;
    // The first prepares the statement.
    pen.write("first").await.expect("it lands");
    let before = proxy.answers();
    for _ in 0..20 {
        pen.write("alone").await.expect("it lands");
    }
    assert_eq!(
        proxy.answers() - before,
        20,
        "each is one question and one answer"
    );

    let mut pens = Vec::new();
    for _ in 0..40 {
        pens.push(Pen::new(store.clone()).await);
    }
    let before = proxy.answers();
    let writing: Vec<_> = pens
        .into_iter()
        .map(|mut pen| {
            tokio::spawn(async move {
                for _ in 0..5 {
                    pen.write("beside others").await.expect("it lands");
                }
                pen
            })
        })
        .collect();
    let mut pens = Vec::new();
    for written in writing {
        pens.push(written.await.unwrap());
    }
    let answers = proxy.answers() - before;
    assert!(
        answers < 100,
        "of 200 appends too few shared one: {answers}"
    );
    for pen in pens {
        assert_eq!(pen.names().await, ["beside others"; 5]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_locked_holds_up_no_other_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let store = Arc::new(store);
    let (mut locked, mut other) = (Pen::new(store.clone()).await, Pen::new(store).await);
    let admin = admin().await;
    let sql = format!(
        "BEGIN; SELECT 1 FROM {schema}.live JOIN {schema}.runs ON id = live.run
         WHERE runs.run = '{}' FOR UPDATE",
        locked.run
    );
    admin.batch_execute(&sql).await.unwrap();
    let waiting = tokio::spawn(async move {
        locked.write("after the lock").await.expect("it lands");
        locked.names().await
    });
    let sql = "SELECT count(*) FROM pg_stat_activity
        WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))";
    while admin.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..10 {
        other.write("meanwhile").await.expect("it lands");
    }
    assert!(!waiting.is_finished());
    admin.batch_execute("COMMIT").await.unwrap();
    assert_eq!(waiting.await.unwrap(), ["after the lock"]);
}

async fn admin() -> tokio_postgres::Client {
    let connected = tokio_postgres::connect(&server(), tokio_postgres::NoTls).await;
    let (client, connection) = connected.expect("the server answers");
    tokio::spawn(connection);
    client
}

/// A driver of one run.
struct Pen {
    store: Arc<PostgresStore>,
    run: logreel_core::RunId,
    head: logreel_core::Head,
    sent: u64,
}

impl Pen {
    async fn new(store: impl Into<Arc<PostgresStore>>) -> Self {
        let store = store.into();
        let owner = Owner {
            id: OwnerId(SystemEnv.random_u64()),
            host: "elsewhere".to_owned(),
            host_name: "elsewhere".to_owned(),
            pid: 1,
        };
        store.join(&owner).await.expect("it joins");
        let new = NewRun {
            run: SystemEnv.run_id(),
            started: RunStarted {
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
            },
            then: Vec::new(),
            blobs: Vec::new(),
            owner: Some(owner.id),
        };
        let Created::New(entry) = store.create(new).await.expect("it is created") else {
            panic!("it is new")
        };
        Self {
            store,
            run: entry.row.run,
            head: entry.row.head,
            sent: 0,
        }
    }

    /// Appends an event; says whether it had landed before. After a failure the next call sends the same.
    async fn write(&mut self, name: &str) -> Result<bool, AppendError> {
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
            blobs: Vec::new(),
        };
        let appended = self.store.append(append).await?;
        self.sent += 1;
        let last = appended.events.last().expect("one event");
        (self.head.seq, self.head.digest) = (last.seq, last.digest);
        Ok(appended.repeated)
    }

    async fn names(&self) -> Vec<String> {
        let page = self.store.events(&self.run, Seq(2), 100).await;
        let events = page.expect("a page").items.into_iter();
        let name = |event: logreel_core::Event| match event.body {
            logreel_core::Body::Custom(custom) => custom.name,
            other => panic!("{other:?}"),
        };
        events.map(name).collect()
    }
}

const OPEN: u8 = 0;
/// Every connection ends, and new ones do too.
const CUT: u8 = 1;
/// The next answer does not come through: its connection ends instead.
const LOSE: u8 = 2;

/// Between a store and the server.
struct Proxy {
    url: String,
    mode: Arc<tokio::sync::watch::Sender<u8>>,
    lose: Arc<AtomicU8>,
    answers: Arc<AtomicU64>,
}

impl Proxy {
    /// How often the server was ready for the next question: every round trip ends so.
    fn answers(&self) -> u64 {
        self.answers.load(Ordering::SeqCst)
    }

    async fn start() -> Self {
        let config: tokio_postgres::Config = server().parse().expect("a URL");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (user, database) = (config.get_user(), config.get_dbname());
        let url = format!(
            "postgres://{}@127.0.0.1:{port}/{}?sslmode=disable",
            user.unwrap_or("postgres"),
            database.unwrap_or("postgres"),
        );
        let mode = Arc::new(tokio::sync::watch::Sender::new(OPEN));
        let lose = Arc::new(AtomicU8::new(OPEN));
        let answers = Arc::new(AtomicU64::new(0));
        let (modes, losing, answered) = (mode.clone(), lose.clone(), answers.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *modes.borrow() == CUT {
                    continue;
                }
                let (modes, losing, config) = (modes.subscribe(), losing.clone(), config.clone());
                let answered = answered.clone();
                tokio::spawn(async move {
                    let port = config.get_ports().first().copied().unwrap_or(5432);
                    match &config.get_hosts()[0] {
                        Host::Tcp(host) => {
                            let server = TcpStream::connect((host.as_str(), port)).await.unwrap();
                            pass(client, server, modes, losing, answered).await;
                        }
                        Host::Unix(folder) => {
                            let socket: PathBuf = folder.join(format!(".s.PGSQL.{port}"));
                            let server = UnixStream::connect(socket).await.unwrap();
                            pass(client, server, modes, losing, answered).await;
                        }
                    }
                });
            }
        });
        Self {
            url,
            mode,
            lose,
            answers,
        }
    }

    fn set(&self, mode: u8) {
        match mode {
            LOSE => self.lose.store(LOSE, Ordering::SeqCst),
            mode => drop(self.mode.send_replace(mode)),
        }
    }
}

/// Takes whole messages out, and counts those that end an answer.
fn ready_for_query(messages: &mut Vec<u8>) -> u64 {
    let mut found = 0;
    // A letter, and the length of itself and what follows.
    while let [kind, a, b, c, d, ..] = messages[..] {
        let whole = 1 + u32::from_be_bytes([a, b, c, d]) as usize;
        if messages.len() < whole {
            break;
        }
        found += u64::from(kind == b'Z');
        messages.drain(..whole);
    }
    found
}

async fn pass(
    client: TcpStream,
    server: impl AsyncRead + AsyncWrite + Send,
    mut modes: tokio::sync::watch::Receiver<u8>,
    losing: Arc<AtomicU8>,
    answered: Arc<AtomicU64>,
) {
    let (mut client_read, mut client_write) = client.into_split();
    let (mut server_read, mut server_write) = tokio::io::split(server);
    let there = async { tokio::io::copy(&mut client_read, &mut server_write).await };
    let back = async {
        let mut buffer = [0; 8192];
        let mut messages = Vec::new();
        loop {
            let read = server_read.read(&mut buffer).await.unwrap_or(0);
            if read == 0 || losing.swap(OPEN, Ordering::SeqCst) == LOSE {
                return;
            }
            messages.extend_from_slice(&buffer[..read]);
            answered.fetch_add(ready_for_query(&mut messages), Ordering::SeqCst);
            if client_write.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    let cut = async { modes.wait_for(|mode| *mode == CUT).await.is_ok() };
    tokio::select! {
        _ = there => {}
        () = back => {}
        _ = cut => {}
    }
}
