//! What only the SQLite store does; what every store does is in the contract suite.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail where the test would"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{
    Budget, Custom, Durability, Effect, MessageAdded, Parent, Provenance, Relation, RunKind,
    RunLimit, RunStarted, StepFinished,
};
use logreel_core::{
    AppendId, Blob, Digest, Draft, Epoch, FOLD_VERSION, Json, Outside, Payload, RunId, Seq,
    Session, Status, StepId,
};
use logreel_store::contract::TestEnv;
use logreel_store::sqlite::{Options, this_host};
use logreel_store::{
    Append, ClaimOutcome, Claimable, Entry, Env, Error, Filter, ForkAt, ForkError, NewFork, NewRun,
    Owner, OwnerId, RunStore, SqliteStore, SystemEnv,
};

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("runs.db")
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(self.path(), creating()).unwrap()
    }

    fn sql(&self, sql: &str) {
        rusqlite::Connection::open(self.path())
            .unwrap()
            .execute_batch(sql)
            .unwrap();
    }

    fn ask(&self, sql: &str) -> i64 {
        rusqlite::Connection::open(self.path())
            .unwrap()
            .query_row(sql, [], |row| row.get(0))
            .unwrap()
    }
}

fn creating() -> Options {
    Options {
        create: true,
        ..Options::default()
    }
}

fn started() -> RunStarted {
    RunStarted {
        agent: "agent".into(),
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
        spec_digest: Digest([7; 32]),
        spec_file: None,
    }
}

async fn create(store: &SqliteStore, owner: Option<OwnerId>) -> Entry {
    let run = SystemEnv.run_id();
    let new = NewRun {
        run,
        started: started(),
        blobs: Vec::new(),
        owner,
        then: Vec::new(),
    };
    store.create(new).await.unwrap().entry().clone()
}

async fn join(store: &SqliteStore) -> OwnerId {
    join_as(store, std::process::id()).await
}

async fn join_as(store: &SqliteStore, pid: u32) -> OwnerId {
    let (host, host_name) = this_host();
    let id = OwnerId(SystemEnv.random_u64());
    store
        .join(&Owner {
            id,
            host,
            host_name,
            pid,
        })
        .await
        .unwrap();
    id
}

async fn note(store: &SqliteStore, entry: &Entry, tag: u64) -> Entry {
    let data = Payload::Inline(Json::of(&tag).unwrap());
    let append = Append {
        run: entry.row.run,
        expect: entry.row.head,
        epoch: entry.epoch,
        id: AppendId::driver(tag),
        drafts: vec![Draft::new(Custom {
            data,
            name: "note".into(),
        })],
        blobs: Vec::new(),
    };
    store.append(&append).await.unwrap();
    store.entry(&entry.row.run).await.unwrap()
}

async fn cancel(store: &SqliteStore, run: &RunId) -> Entry {
    let id = AppendId::new("cancel").unwrap();
    let done = store
        .command(run, &id, &Outside::Cancel { reason: None }, Vec::new())
        .await
        .unwrap();
    assert_eq!(done.answer, Ok(()));
    done.entry
}

fn refused(path: &Path, options: Options) -> Error {
    SqliteStore::open(path, options).expect_err("this is no store")
}

fn says(error: &Error, words: &str) {
    assert!(
        error.to_string().contains(words),
        "`{error}` should say `{words}`"
    );
}

#[test]
fn what_cannot_be_a_store_is_refused_by_name() {
    let place = Place::new();
    let missing = refused(&place.path(), Options::default());
    assert!(matches!(missing, Error::Unavailable { .. }), "{missing:?}");
    says(&missing, place.path().to_str().unwrap());
    assert!(!place.path().exists(), "reading never creates");

    let folder = refused(place.0.path(), creating());
    assert!(matches!(folder, Error::Invalid { .. }), "{folder:?}");
    says(&folder, "is a folder");

    fs::write(place.path(), "x".repeat(10_000)).unwrap();
    let text = refused(&place.path(), creating());
    assert!(matches!(text, Error::Invalid { .. }), "{text:?}");
    says(&text, "not a SQLite database");
    assert_eq!(
        fs::read(place.path()).unwrap(),
        "x".repeat(10_000).as_bytes(),
        "it is untouched"
    );

    fs::remove_file(place.path()).unwrap();
    place.sql("CREATE TABLE theirs (x)");
    let theirs = refused(&place.path(), creating());
    assert!(matches!(theirs, Error::Invalid { .. }), "{theirs:?}");
    says(&theirs, "another application");
}

#[test]
fn a_read_only_place_is_refused() {
    let place = Place::new();
    drop(place.open());
    let mode =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&place.path(), 0o444);
    let file = refused(&place.path(), creating());
    assert!(matches!(file, Error::Unavailable { .. }), "{file:?}");
    says(&file, "read-only");
    mode(&place.path(), 0o644);
    mode(place.0.path(), 0o555);
    let folder = refused(&place.path(), creating());
    mode(place.0.path(), 0o755);
    assert!(matches!(folder, Error::Unavailable { .. }), "{folder:?}");
    says(&folder, "read-only");
    drop(place.open());
}

#[test]
fn a_newer_schema_is_refused_with_both_versions() {
    let place = Place::new();
    drop(place.open());
    place.sql("PRAGMA user_version = 99");
    let newer = refused(&place.path(), creating());
    assert!(
        matches!(
            newer,
            Error::NewerSchema {
                found: 99,
                known: 6,
                ..
            }
        ),
        "{newer:?}"
    );
}

#[tokio::test]
async fn a_truncated_file_is_damage() {
    let place = Place::new();
    let store = place.open();
    for _ in 0..50 {
        create(&store, None).await;
    }
    drop(store);
    let bytes = fs::read(place.path()).unwrap();
    assert!(bytes.len() > 20_000, "the log was written back on close");
    for keep in [bytes.len() / 2, bytes.len() - 4096, 4096] {
        fs::write(place.path(), &bytes[..keep]).unwrap();
        let cut = refused(&place.path(), creating());
        assert!(
            matches!(cut, Error::Corrupt { .. }),
            "{keep} bytes: {cut:?}"
        );
    }
    fs::write(place.path(), &bytes).unwrap();
    assert_eq!(
        place
            .open()
            .list(&Filter::default(), None, 100)
            .await
            .unwrap()
            .items
            .len(),
        50
    );
}

#[test]
fn a_store_folder_of_its_own_is_private_and_ignored_by_git() {
    let place = Place::new();
    let folder = place.0.path().join("repo/.logreel");
    drop(SqliteStore::open(folder.join("runs.db"), creating()).unwrap());
    assert_eq!(
        fs::metadata(&folder).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert_eq!(
        fs::read_to_string(folder.join(".gitignore")).unwrap(),
        "*\n"
    );
}

#[tokio::test]
async fn the_pragmas_are_those_that_keep_commits() {
    let place = Place::new();
    let store = place.open();
    create(&store, None).await;
    assert_eq!(store.check(), Vec::<String>::new());
    assert_eq!(store.durability(), Durability::Full);
    let conn = rusqlite::Connection::open(place.path()).unwrap();
    let mode: String = conn
        .query_row("PRAGMA journal_mode", [], |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "wal");
}

#[tokio::test]
async fn two_instances_hear_each_other() {
    let place = Place::new();
    let (here, there) = (place.open(), place.open());
    let owner = join(&here).await;
    let entry = create(&here, Some(owner)).await;
    let (mut bell, mut any) = (there.watch(&entry.row.run), there.watch_all());
    let entry = note(&here, &entry, 1).await;
    for bell in [&mut bell, &mut any] {
        let heard = async {
            loop {
                assert!(bell.rung().await);
                let page = there.read(&entry.row.run, Seq(2), 10).await.unwrap();
                if let [event] = page.items.as_slice() {
                    return event.digest;
                }
            }
        };
        let heard = tokio::time::timeout(Duration::from_secs(20), heard)
            .await
            .unwrap();
        assert_eq!(heard, entry.row.head.digest);
    }
}

#[tokio::test]
async fn a_lock_that_another_keeps_makes_the_store_unavailable_after_ten_seconds_and_nothing_more()
{
    let place = Place::new();
    let store = place.open();
    let other = rusqlite::Connection::open(place.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = SystemEnv.monotonic();
    let refused = store
        .close_session(&Session::new("kept").unwrap())
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    assert!(SystemEnv.monotonic() - began >= Duration::from_secs(10));
    other.execute_batch("ROLLBACK").unwrap();
    create(&store, None).await;
}

#[tokio::test]
async fn a_dead_process_of_this_host_is_taken_over_at_once() {
    let place = Place::new();
    let dying = place.open();
    let dead = join(&dying).await;
    let entry = create(&dying, Some(dead)).await;
    let living = place.open();
    let owner = join(&living).await;
    let run = entry.row.run;
    let driven = living.claim(&run, owner).await.unwrap();
    assert!(
        matches!(driven, ClaimOutcome::Driven(_)),
        "it lives: {driven:?}"
    );
    // The system drops the lock of a process that dies; so does this.
    drop(dying);
    let orphan = living.entry(&run).await.unwrap();
    assert_eq!(orphan.driver.map(|driver| driver.alive), Some(false));
    let tasks = [Claimable {
        kind: RunKind::Task,
        agents: None,
        specs: None,
    }];
    assert_eq!(living.claimable(&tasks, &[], 10).await.unwrap(), [run]);
    let ClaimOutcome::Claimed(entry) = living.claim(&run, owner).await.unwrap() else {
        panic!("a dead owner holds nothing")
    };
    assert_eq!(entry.epoch, Epoch(2));
    note(&living, &entry, 1).await;
    // The next to join clears away what the dead one left.
    join(&living).await;
    assert_eq!(place.ask("SELECT count(*) FROM owners"), 2);
    let locks = fs::read_dir(place.0.path().join("runs.db.owners"))
        .unwrap()
        .count();
    assert_eq!(locks, 2, "one for each owner that lives");
}

/// A process that is killed while it starts another: the new one has the lock until it is a program of its
/// own, and does not own what the dead one did.
#[tokio::test]
async fn a_process_that_is_gone_is_taken_over_from_though_something_holds_its_lock() {
    let place = Place::new();
    let dying = place.open();
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    let dead = join_as(&dying, gone.id()).await;
    let run = create(&dying, Some(dead)).await.row.run;
    // Nobody has collected it yet; then it is gone altogether.
    let living = place.open();
    let owner = join(&living).await;
    let is_alive = async || {
        let entry = living.entry(&run).await.unwrap();
        entry.driver.is_some_and(|driver| driver.alive)
    };
    while is_alive().await {
        std::thread::yield_now();
    }
    gone.wait().unwrap();
    assert!(!is_alive().await);
    let claimed = living.claim(&run, owner).await.unwrap();
    assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
    drop(dying);
}

#[tokio::test]
async fn a_frozen_process_of_this_host_is_taken_over_after_its_lease() {
    let place = Place::new();
    let env = Arc::new(TestEnv::new());
    let open = || {
        let options = Options {
            env: env.clone(),
            ..creating()
        };
        SqliteStore::open(place.path(), options).unwrap()
    };
    let (frozen, here) = (open(), open());
    let owner = join(&frozen).await;
    let entry = create(&frozen, Some(owner)).await;
    let next = join(&here).await;
    let claim = async || here.claim(&entry.row.run, next).await.unwrap();
    assert!(matches!(claim().await, ClaimOutcome::Driven(_)));
    env.advance(Duration::from_secs(9));
    frozen.beat(owner).await.unwrap();
    assert!(matches!(claim().await, ClaimOutcome::Driven(_)));
    env.advance(Duration::from_secs(9));
    assert!(
        matches!(claim().await, ClaimOutcome::Driven(_)),
        "a beat renews"
    );
    // It still holds its lock, but it beats no more.
    env.advance(Duration::from_secs(2));
    assert!(matches!(claim().await, ClaimOutcome::Claimed(_)));
    let lapsed = async || here.lapsed(&entry.row.run).await.unwrap();
    assert_eq!(lapsed().await.len(), 1, "nobody knows that it is dead");
    // Others join and clear away what is dead; when it wakes it finds itself.
    join(&here).await;
    frozen.beat(owner).await.unwrap();
    assert_eq!(lapsed().await.len(), 1);
    // The system drops the lock of a process that dies; so does this.
    drop(frozen);
    assert_eq!(lapsed().await, [], "now it is known dead");
}

#[tokio::test]
async fn a_place_in_the_order_of_all_events_is_never_given_twice() {
    let place = Place::new();
    let store = place.open();
    create(&store, None).await;
    let last = create(&store, None).await;
    cancel(&store, &last.row.run).await;
    let before = place.ask("SELECT max(pos) FROM events");
    store.delete(&last.row.run).await.unwrap();
    assert!(
        place.ask("SELECT max(pos) FROM events") < before,
        "the last ones are gone"
    );
    drop(store);
    create(&place.open(), None).await;
    assert_eq!(place.ask("SELECT max(pos) FROM events"), before + 1);
}

#[tokio::test]
async fn a_backup_is_a_store_and_replaces_nothing() {
    let place = Place::new();
    let store = place.open();
    let entry = create(&store, None).await;
    let to = place.0.path().join("backup.db");
    store.backup(&to).unwrap();
    let again = store.backup(&to).expect_err("it exists");
    assert!(matches!(again, Error::Invalid { .. }), "{again:?}");
    let copy = SqliteStore::open(&to, Options::default()).unwrap();
    assert_eq!(copy.entry(&entry.row.run).await.unwrap(), entry);
    assert_eq!(copy.check(), Vec::<String>::new());
}

#[tokio::test]
async fn a_projection_of_another_build_is_made_anew() {
    let place = Place::new();
    let store = place.open();
    let owner = join(&store).await;
    let entry = note(&store, &create(&store, Some(owner)).await, 1).await;
    place.sql("UPDATE runs SET fold_version = 0, facts = json_set(facts, '$.agent', 'wrong')");
    assert_eq!(store.entry(&entry.row.run).await.unwrap(), entry);
    // A driver elsewhere goes on from it, and writes it anew.
    drop(store);
    let store = place.open();
    let after = note(&store, &entry, 2).await;
    assert_eq!(&*after.row.facts.agent, "agent");
    assert_eq!(
        place.ask("SELECT fold_version FROM runs"),
        i64::from(FOLD_VERSION)
    );
    assert_eq!(store.check(), Vec::<String>::new());
}

#[tokio::test]
async fn a_run_of_a_newer_build_can_be_read_and_cancelled_and_nothing_else() {
    let place = Place::new();
    let store = place.open();
    let owner = join(&store).await;
    let run = create(&store, None).await.row.run;
    place.sql("UPDATE runs SET needs = 99");
    assert_eq!(
        store.read(&run, Seq::FIRST, 10).await.unwrap().items.len(),
        1
    );
    let id = AppendId::new("say").unwrap();
    let say = Outside::Say {
        text: "hello".into(),
        by: None,
    };
    for refused in [
        store
            .command(&run, &id, &say, Vec::new())
            .await
            .expect_err("not foldable"),
        store.claim(&run, owner).await.expect_err("not foldable"),
    ] {
        assert!(matches!(refused, Error::NewerFormat(_)), "{refused:?}");
    }
    assert_eq!(cancel(&store, &run).await.row.status(), Status::Cancelled);
    let refused = store.fork(fork(run)).await;
    let newer = matches!(refused, Err(ForkError::Store(Error::NewerFormat(_))));
    assert!(newer, "{refused:?}");
}

fn fork(parent: RunId) -> NewFork {
    NewFork::of(SystemEnv.run_id(), parent, ForkAt::Last, Relation::Fork)
}

/// The log of a fork is in two places; all that reads a whole log must find both.
#[tokio::test]
async fn the_projection_of_a_fork_is_made_anew_from_all_it_shares() {
    let place = Place::new();
    let store = place.open();
    let owner = join(&store).await;
    let parent = note(&store, &create(&store, Some(owner)).await, 1).await;
    let made = NewFork {
        owner: Some(owner),
        ..fork(parent.row.run)
    };
    let made = store.fork(made).await.unwrap().entry().clone();
    let entry = note(&store, &made, 2).await;
    assert_eq!(place.ask("SELECT count(*) FROM events"), 4);
    assert_eq!(store.check(), Vec::<String>::new());
    place.sql("UPDATE runs SET fold_version = 0, facts = json_set(facts, '$.agent', 'wrong')");
    assert_eq!(store.entry(&entry.row.run).await.unwrap(), entry);
    place.sql(&format!("UPDATE runs SET fold_version = {FOLD_VERSION}"));
    assert_eq!(store.check().len(), 2, "both rows are wrong");
}

#[tokio::test]
async fn a_run_whose_bodies_were_erased_is_not_forked() {
    let place = Place::new();
    let store = place.open();
    let run = create(&store, None).await.row.run;
    place.sql("UPDATE runs SET erased = 1");
    let refused = store.fork(fork(run)).await;
    assert!(
        matches!(refused, Err(ForkError::Erased(of)) if of == run),
        "{refused:?}"
    );
}

/// A node whose text is in an event, and the append of both.
fn spoken(entry: &Entry) -> (Blob, Append) {
    let words = "it was said ".repeat(200);
    let node = format!("{{\"message\":\"{words}\",\"previous\":null}}");
    let node = Blob::new(node.into_bytes());
    let data = Payload::Inline(Json::of(&words).unwrap());
    let added = MessageAdded {
        length: words.len() as u64,
        node: node.digest(),
        previous: None,
        queued: None,
        redacted: 0,
        role: "user".into(),
    };
    let name = "said".into();
    let drafts = vec![Draft::new(Custom { data, name }), Draft::new(added)];
    let append = Append {
        run: entry.row.run,
        expect: entry.row.head,
        epoch: entry.epoch,
        id: AppendId::driver(1),
        drafts,
        blobs: vec![node.clone()],
    };
    (node, append)
}

#[tokio::test]
async fn what_a_context_node_says_is_stored_once() {
    let place = Place::new();
    let store = place.open();
    let owner = join(&store).await;
    let entry = create(&store, Some(owner)).await;
    let (node, append) = spoken(&entry);
    store.append(&append).await.unwrap();
    let own = "SELECT sum(length(bytes)) FROM blobs";
    assert!(place.ask(own) < 50, "{}", place.ask(own));
    let read = store.blob(&node.digest()).await.unwrap().unwrap();
    assert_eq!(read, **node.bytes());
    let next = RunStarted {
        context: Some(node.digest()),
        ..started()
    };
    let next = NewRun {
        run: SystemEnv.run_id(),
        started: next,
        blobs: Vec::new(),
        owner: None,
        then: Vec::new(),
    };
    store.create(next).await.unwrap();
    cancel(&store, &entry.row.run).await;
    store
        .release(&entry.row.run, entry.epoch, owner)
        .await
        .unwrap();

    // What is damaged is named, and not given up before someone has seen to it.
    let swap = |one: &str, other: &str| {
        let sql = "UPDATE events SET body = replace(body, 'X', 'Y') WHERE kind = 'custom'";
        place.sql(&sql.replace('X', one).replace('Y', other));
    };
    swap("was", "is");
    let damaged = store.blob(&node.digest()).await;
    assert!(matches!(damaged, Err(Error::Corrupt { .. })), "{damaged:?}");
    let before = place.ask("SELECT count(*) FROM events");
    let refused = store.delete(&entry.row.run).await;
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    assert_eq!(place.ask("SELECT count(*) FROM events"), before);
    assert_eq!(place.ask("SELECT count(*) FROM blob_refs"), 2);

    swap("is", "was");
    store.delete(&entry.row.run).await.unwrap();
    let read = store.blob(&node.digest()).await.unwrap().unwrap();
    assert_eq!(read, **node.bytes());
    assert_eq!(place.ask(own), i64::try_from(read.len()).unwrap());
}

#[tokio::test]
async fn a_store_of_the_first_schema_is_brought_up_to_date() {
    let place = Place::new();
    let store = place.open();
    let owner = join(&store).await;
    let worked = create(&store, Some(owner)).await;
    let finished = StepFinished {
        attempt: 1,
        effect: Effect::Idempotent,
        input_digest: None,
        output: Payload::null(),
        started_at: Some(SystemEnv.now()),
        step: StepId::from_parts(["a".to_owned()]).unwrap(),
    };
    let append = Append {
        run: worked.row.run,
        expect: worked.row.head,
        epoch: worked.epoch,
        id: AppendId::driver(1),
        drafts: vec![Draft::new(finished)],
        blobs: Vec::new(),
    };
    store.append(&append).await.unwrap();
    drop(store);
    place.sql(
        "UPDATE live SET results = lower(hex(results)) WHERE results IS NOT NULL;
         DROP TABLE staged; DROP TABLE origins; DROP INDEX live_limit;
         ALTER TABLE owners DROP COLUMN duty; ALTER TABLE owners DROP COLUMN beat_at;
         ALTER TABLE live DROP COLUMN limit_max;
         ALTER TABLE live DROP COLUMN limit_key; ALTER TABLE blobs DROP COLUMN shares;
         PRAGMA user_version = 1",
    );
    let store = place.open();
    assert_eq!(store.check(), Vec::<String>::new());
    let owner = join(&store).await;
    let (node, append) = spoken(&create(&store, Some(owner)).await);
    store.append(&append).await.unwrap();
    let read = place.open().blob(&node.digest()).await.unwrap().unwrap();
    assert_eq!(read, **node.bytes());
}

/// A plain thread has no runtime: its beat must land all the same.
#[test]
fn verbs_work_without_a_runtime() {
    let place = Place::new();
    let store = place.open();
    let block_on = |future| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(future)
    };
    let owner = block_on(async { join(&store).await });
    let mut beat = store.beat(owner);
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    let done = (0..10_000).find_map(|_| match beat.as_mut().poll(&mut context) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => {
            std::thread::park_timeout(Duration::from_millis(1));
            None
        }
    });
    assert!(matches!(done, Some(Ok(()))), "{done:?}");
}

/// Thousands of tasks on few workers: each append is acknowledged, none is stranded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_stranded_behind_a_leader() {
    let place = Place::new();
    let store = Arc::new(place.open());
    let owner = join(&store).await;
    let mut tasks = Vec::new();
    for _ in 0..64 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            let mut entry = create(&store, Some(owner)).await;
            for tag in 1..=20 {
                // A future that is dropped half-way is one that someone stopped waiting for.
                let dropped = tokio::time::timeout(Duration::ZERO, store.beat(owner)).await;
                drop(dropped);
                entry = note(&store, &entry, tag).await;
            }
            entry.row.head.seq
        }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), Seq(21));
    }
    assert_eq!(place.ask("SELECT count(*) FROM events"), 64 * 21);
}

/// Who stops its process there keeps nobody from writing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_writes_the_file_is_everyone_elses() {
    let place = Place::new();
    let store = Arc::new(place.open());
    let owner = join(&store).await;
    let mut entry = create(&store, Some(owner)).await;
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let busy = {
        let (store, is_over) = (Arc::clone(&store), Arc::clone(&is_over));
        tokio::spawn(async move {
            for tag in 1.. {
                entry = note(&store, &entry, tag).await;
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    return tag;
                }
            }
            0
        })
    };
    let other = rusqlite::Connection::open(place.path()).unwrap();
    other.busy_timeout(Duration::ZERO).unwrap();
    let refused = std::thread::spawn(move || {
        let look = |_: &u32| {
            let mut written = Ok(());
            store
                .between_writes(&mut || written = other.execute_batch("BEGIN IMMEDIATE; ROLLBACK"));
            // Not in step with whoever writes.
            std::thread::park_timeout(Duration::from_micros(SystemEnv.random_u64() % 500));
            written.is_err()
        };
        (0..200).filter(look).count()
    });
    assert_eq!(refused.join().unwrap(), 0);
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    let written = busy.await.unwrap();
    assert!(written > 10, "{written} writes went on meanwhile");
}

#[tokio::test]
async fn what_cannot_be_read_keeps_no_place_and_no_child_from_its_end() {
    let place = Place::new();
    let env = Arc::new(TestEnv::new());
    let options = Options {
        env: env.clone(),
        ..creating()
    };
    let store = SqliteStore::open(place.path(), options).unwrap();
    let [silent, here] = [join(&store).await, join(&store).await];
    let create = async |started, owner| {
        let new = NewRun {
            run: SystemEnv.run_id(),
            started,
            blobs: Vec::new(),
            owner,
            then: Vec::new(),
        };
        store.create(new).await.unwrap().entry().row.run
    };
    let limited = |key: &str| RunStarted {
        limit: Some(RunLimit {
            key: key.into(),
            max: 1,
        }),
        ..started()
    };
    let damaged = create(limited("gpu"), Some(silent)).await;
    let next = create(limited("gpu"), None).await;
    let ended = create(limited("cpu"), Some(silent)).await;
    let beside = create(limited("cpu"), None).await;
    let parent = Parent {
        relation: Relation::Child,
        run: damaged,
        seq: Seq::FIRST,
    };
    let child = RunStarted {
        parent: Some(parent),
        ..started()
    };
    let child = create(child, None).await;
    place.sql(&format!(
        "UPDATE runs SET facts = '{{' WHERE run IN ('{damaged}', '{ended}')"
    ));
    place.sql(&format!(
        "UPDATE runs SET status = 'completed' WHERE run = '{ended}'"
    ));
    assert!(matches!(
        store.claim(&next, here).await.unwrap(),
        ClaimOutcome::Limited(_)
    ));
    env.advance(Duration::from_secs(9));
    store.beat(here).await.unwrap();
    env.advance(Duration::from_secs(2));
    let claimed = store.claim(&next, here).await.unwrap();
    assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
    // One that has ended is for nobody to go for.
    let claimed = store.claim(&beside, here).await.unwrap();
    assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
    store.release(&beside, Epoch(1), here).await.unwrap();
    let all = [Claimable {
        kind: RunKind::Task,
        agents: None,
        specs: None,
    }];
    let found = store.claimable(&all, &[], 10).await.unwrap();
    assert_eq!(found, [beside, child]);
    cancel(&store, &child).await;
    let ended = store.entry(&child).await.unwrap();
    assert_eq!(ended.row.status(), Status::Cancelled);
    // Nor of a driver that lives: it is told what is wrong when it gives it back, which it has done then.
    let third = create(limited("gpu"), None).await;
    place.sql(&format!(
        "UPDATE runs SET facts = '{{' WHERE run = '{next}'"
    ));
    let [(_, epoch)] = store.held(here).await.unwrap()[..] else {
        panic!("one run is held");
    };
    assert!(store.release(&next, epoch.next(), here).await.is_err());
    let full = store.claim(&third, here).await.unwrap();
    assert!(matches!(full, ClaimOutcome::Limited(_)), "{full:?}");
    let given = store.release(&next, epoch, here).await;
    assert!(matches!(given, Err(Error::Corrupt { .. })), "{given:?}");
    let claimed = store.claim(&third, here).await.unwrap();
    assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
}
