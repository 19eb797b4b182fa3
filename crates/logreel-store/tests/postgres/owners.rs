//! Who lives: by beats, by the database's clock, and by locks.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{Parent, Relation, RunKind, RunLimit, RunStarted};
use logreel_core::{AppendId, Epoch, Outside, Record, Seq, Timestamp};
use logreel_store::import::Fault;
use logreel_store::postgres::Options;
use logreel_store::sqlite::this_host;
use logreel_store::{
    ClaimOutcome, Claimable, Env, Error, Import, ImportError, ImportedBlob, Owner, OwnerId,
    PostgresStore, RunStore, Source, SystemEnv,
};
use tempfile::TempDir;

use crate::world::{
    Pen, admin, created, in_schema, options, queued, server, started, stranger, wait_for_blocked,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_lives_without_its_lock_file_on_postgres() {
    let (url, _) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let other = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let (host, host_name) = this_host();
    let owner = Owner {
        id: OwnerId(SystemEnv.random_u64()),
        host,
        host_name,
        pid: std::process::id(),
    };
    let lock = locks.path().join(owner.id.to_string());
    let pen = Pen::of(store, owner).await;
    let is_alive = async || {
        let entry = other.entry(&pen.run).await.expect("an entry");
        entry.driver.expect("it is driven").alive
    };
    assert!(is_alive().await);
    // Someone cleans the temporary folder: that says nothing about its process.
    std::fs::remove_file(&lock).unwrap();
    assert!(is_alive().await, "it beats");
    // A file whose lock can be taken does.
    std::fs::write(&lock, "").unwrap();
    assert!(!is_alive().await, "its lock is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_of_the_database_that_was_ahead_keeps_nobody_alive_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let lease = Duration::from_secs(6);
    let open = async || {
        let options = Options {
            lease,
            ..options(&locks)
        };
        PostgresStore::open(&url, options).await.unwrap()
    };
    let (lost, living) = (
        Pen::of(open().await, stranger()).await,
        Pen::of(open().await, stranger()).await,
    );
    // As the server that was there before had it: one of them died with it.
    let sql = format!("UPDATE {schema}.owners SET beat_at = beat_at + 600 * 1000000");
    admin().await.execute(&sql, &[]).await.unwrap();
    let began = SystemEnv.monotonic();
    let is_alive = async |pen: &Pen| {
        let entry = living.store.entry(&pen.run).await.expect("an entry");
        entry.driver.expect("it is driven").alive
    };
    while is_alive(&lost).await {
        // One that takes longer than a quarter of the lease, because the machine is busy, is made up for by the next.
        if let Err(error) = living.store.beat(living.owner).await {
            println!("a beat: {error}");
        }
        let waited = SystemEnv.monotonic() - began;
        assert!(waited < Duration::from_secs(60), "it never ends");
        SystemEnv.sleep(Duration::from_millis(100)).await;
    }
    let waited = SystemEnv.monotonic() - began;
    assert!(waited >= lease, "it had its lease to be heard: {waited:?}");
    assert!(is_alive(&living).await);
}

/// A host whose clocks are wrong.
struct Skewed(i64);

impl Env for Skewed {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(SystemEnv.now().as_micros() + self.0 * 1_000_000)
    }

    fn monotonic(&self) -> Duration {
        let days = Duration::from_secs(1_000_000);
        let moved = (SystemEnv.monotonic() + days).as_micros() as i64 + self.0 * 1_000_000;
        Duration::from_micros(moved.unsigned_abs())
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnv.random(bytes);
    }

    fn sleep(
        &self,
        duration: Duration,
    ) -> std::pin::Pin<Box<dyn std::future::Future<Output = ()> + Send>> {
        SystemEnv.sleep(duration)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_by_the_clock_of_the_database_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let lease = Duration::from_secs(3);
    let open = async |seconds: i64| {
        let options = Options {
            env: Arc::new(Skewed(seconds)),
            lease,
            ..options(&locks)
        };
        PostgresStore::open(&url, options).await.unwrap()
    };
    // Minutes off, each to its side.
    let (early, late) = (open(-600).await, open(600).await);
    let mut pen = Pen::new(open(300).await).await;
    pen.store.beat(pen.owner).await.expect("a beat");
    let is_alive = async |store: &PostgresStore| {
        let entry = store.entry(&pen.run).await.expect("an entry");
        entry.driver.expect("it is driven").alive
    };
    assert!(is_alive(&early).await && is_alive(&late).await, "it beats");
    let began = SystemEnv.monotonic();
    while is_alive(&early).await || is_alive(&late).await {
        let waited = SystemEnv.monotonic() - began;
        assert!(waited < Duration::from_secs(20), "it never ends");
        SystemEnv.sleep(Duration::from_millis(5)).await;
    }
    let sql = format!(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 - max(beat_at)
         FROM {schema}.owners"
    );
    let silent: i64 = admin().await.query_one(&sql, &[]).await.unwrap().get(0);
    let lease = lease.as_micros() as i64;
    assert!((lease..4 * lease).contains(&silent), "{silent} of {lease}");
    // One that ran out and was not taken still appends, at the database's time.
    pen.write("later").await.expect("it lands");
    let page = pen.store.events(&pen.run, Seq(2), 1).await.expect("a page");
    let off = page.items[0].at.as_micros() - SystemEnv.now().as_micros();
    assert!(off.abs() < 30_000_000, "{off}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_is_heard_while_all_connections_wait_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let few = Options {
        connections: 2,
        lease: Duration::from_secs(12),
        ..options(&locks)
    };
    let store = PostgresStore::open(&url, few).await.unwrap();
    let pen = Arc::new(Pen::new(store).await);
    let admin = admin().await;
    let lock = format!("BEGIN; LOCK TABLE {schema}.live IN ACCESS EXCLUSIVE MODE");
    admin.batch_execute(&lock).await.unwrap();
    let reading = (0..8).map(|_| {
        let pen = pen.clone();
        tokio::spawn(async move { pen.store.entry(&pen.run).await })
    });
    let reading: Vec<_> = reading.collect();
    wait_for_blocked(&admin, 2).await;
    let began = SystemEnv.monotonic();
    pen.store.beat(pen.owner).await.expect("it is heard");
    let took = SystemEnv.monotonic() - began;
    assert!(
        took < Duration::from_secs(3),
        "a quarter of the lease: {took:?}"
    );
    admin.batch_execute("ROLLBACK").await.unwrap();
    for read in reading {
        read.await.unwrap().expect("it is read");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_forgotten_is_there_again_with_its_next_beat_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let pen = Pen::new(store).await;
    pen.store
        .release(&pen.run, Epoch(1), pen.owner)
        .await
        .expect("a release");
    let admin = admin().await;
    let away = async |hours: i64| {
        let sql =
            format!("UPDATE {schema}.owners SET beat_at = beat_at - {hours} * 3600000000::int8");
        admin.batch_execute(&sql).await.unwrap();
        let other = PostgresStore::open(&url, options(&locks)).await.unwrap();
        let owner = stranger();
        other.join(&owner).await.expect("it joins, and sweeps");
        other.leave(owner.id).await.expect("it leaves");
    };
    // Cut off for some hours it is only silent.
    away(20).await;
    let claimed = pen.store.claim(&pen.run, pen.owner).await;
    assert!(
        matches!(claimed, Ok(ClaimOutcome::Claimed(_))),
        "{claimed:?}"
    );
    pen.store
        .release(&pen.run, Epoch(2), pen.owner)
        .await
        .expect("a release");
    away(20).await;
    let count = format!("SELECT count(*) FROM {schema}.owners");
    let known: i64 = admin.query_one(&count, &[]).await.unwrap().get(0);
    assert_eq!(known, 0, "after a day it is forgotten");
    pen.store.beat(pen.owner).await.expect("it is there again");
    let claimed = pen.store.claim(&pen.run, pen.owner).await;
    assert!(
        matches!(claimed, Ok(ClaimOutcome::Claimed(_))),
        "{claimed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_owner_is_not_heard_while_someone_takes_its_run_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let open = async || {
        let options = Options {
            lease: Duration::from_secs(4),
            ..options(&locks)
        };
        PostgresStore::open(&url, options).await.unwrap()
    };
    let pen = Pen::new(open().await).await;
    let (other, claimer) = (Arc::new(open().await), stranger());
    other.join(&claimer).await.expect("it joins");
    let admin = admin().await;
    let silence = format!("UPDATE {schema}.owners SET beat_at = beat_at - 5000000 WHERE id = $1");
    let silenced = admin.execute(&silence, &[&pen.owner.0.cast_signed()]).await;
    assert_eq!(silenced.unwrap(), 1);
    // Whoever takes it has seen the silence, and waits before it has written that down.
    let hold = format!("BEGIN; LOCK TABLE {schema}.lapsed IN EXCLUSIVE MODE");
    admin.batch_execute(&hold).await.unwrap();
    let claiming = {
        let (other, run) = (other.clone(), pen.run);
        tokio::spawn(async move { other.claim(&run, claimer.id).await })
    };
    wait_for_blocked(&admin, 1).await;
    let heard = pen.store.beat(pen.owner).await;
    assert!(matches!(heard, Err(Error::Unavailable { .. })), "{heard:?}");
    admin.batch_execute("ROLLBACK").await.unwrap();
    let claimed = claiming.await.unwrap();
    assert!(
        matches!(claimed, Ok(ClaimOutcome::Claimed(_))),
        "{claimed:?}"
    );
    pen.store.beat(pen.owner).await.expect("it is heard again");
    let entry = pen.store.entry(&pen.run).await.expect("an entry");
    assert_eq!(entry.epoch, Epoch(2), "and finds what it has lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_is_judged_by_its_own_lease_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let open = async |lease: Duration| {
        let options = Options {
            lease,
            ..options(&locks)
        };
        PostgresStore::open(&url, options).await.unwrap()
    };
    let pen = Pen::new(open(Duration::from_secs(1000)).await).await;
    // Someone whose settings say another one.
    let (hasty, claimer) = (open(Duration::from_millis(500)).await, stranger());
    hasty.join(&claimer).await.expect("it joins");
    let admin = admin().await;
    let silent = async |seconds: i64| {
        let sql = format!(
            "UPDATE {schema}.owners SET beat_at = beat_at - {seconds} * 1000000 WHERE id = $1"
        );
        let silenced = admin.execute(&sql, &[&pen.owner.0.cast_signed()]).await;
        assert_eq!(silenced.unwrap(), 1);
    };
    silent(500).await;
    let claimed = hasty.claim(&pen.run, claimer.id).await;
    assert!(
        matches!(claimed, Ok(ClaimOutcome::Driven(_))),
        "{claimed:?}"
    );
    let any = Claimable {
        kind: RunKind::Task,
        agents: None,
        specs: None,
    };
    let found = async || {
        let found = hasty.claimable(std::slice::from_ref(&any), &[], 10).await;
        found.expect("a list")
    };
    assert_eq!(found().await, []);
    silent(600).await;
    assert_eq!(found().await, [pen.run]);
    let claimed = hasty.claim(&pen.run, claimer.id).await;
    assert!(
        matches!(claimed, Ok(ClaimOutcome::Claimed(_))),
        "{claimed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_owner_whose_notes_cannot_be_seen_is_like_one_of_another_host_on_postgres() {
    let (url, schema) = in_schema(&server());
    let [theirs, ours] = [(); 2].map(|()| TempDir::new().unwrap());
    let (store, other) = (
        PostgresStore::open(&url, options(&theirs)).await.unwrap(),
        PostgresStore::open(&url, options(&ours)).await.unwrap(),
    );
    let (host, host_name) = this_host();
    let owner = |pid| Owner {
        id: OwnerId(SystemEnv.random_u64()),
        host: host.clone(),
        host_name: host_name.clone(),
        pid,
    };
    // No process has that number.
    let pen = Pen::of(store, owner(i32::MAX.cast_unsigned())).await;
    let claimer = owner(std::process::id());
    other.join(&claimer).await.expect("it joins");
    let entry = other.entry(&pen.run).await.expect("an entry");
    assert!(
        !entry.is_driven(),
        "its process is gone, and its folder there"
    );
    assert_eq!(other.all_notes(), [ours.path(), theirs.path()]);
    // A folder of its own by the same name, as services have.
    let admin = admin().await;
    let moved = format!("UPDATE {schema}.owners SET place = 'elsewhere' WHERE id = $1");
    let id = pen.owner.0.cast_signed();
    assert_eq!(admin.execute(&moved, &[&id]).await.unwrap(), 1);
    let claimed = other.claim(&pen.run, claimer.id).await;
    assert!(
        matches!(claimed, Ok(ClaimOutcome::Driven(_))),
        "{claimed:?}"
    );
    let silent = format!("UPDATE {schema}.owners SET beat_at = 0 WHERE id = $1");
    assert_eq!(admin.execute(&silent, &[&id]).await.unwrap(), 1);
    let claimed = other.claim(&pen.run, claimer.id).await;
    assert!(
        matches!(claimed, Ok(ClaimOutcome::Claimed(_))),
        "{claimed:?}"
    );
    let lapsed = other.lapsed(&pen.run).await.expect("a list");
    let lapsed: Vec<_> = lapsed.iter().map(|it| (it.owner.id, it.unseen)).collect();
    assert_eq!(
        lapsed,
        [(pen.owner, true)],
        "it may have left something running"
    );
}

/// What adds nothing to a log.
struct Nothing;

impl Source for Nothing {
    fn next_event(&mut self) -> Result<Option<Record>, Fault> {
        Ok(None)
    }

    fn next_blob(&mut self) -> Result<Option<ImportedBlob>, Fault> {
        Ok(None)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_takes_nothing_from_a_driver_that_is_heard_at_this_moment_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let pen = Pen::new(PostgresStore::open(&url, options(&locks)).await.unwrap()).await;
    let import = async || {
        let entry = pen.store.entry(&pen.run).await.expect("an entry");
        let import = Import {
            after: Some(entry.row.head),
            row: entry.row,
            results: entry.results,
            keys: pen
                .store
                .keys(&pen.run)
                .await
                .unwrap()
                .into_iter()
                .filter_map(|(run, key)| Some((run, key?)))
                .collect(),
            source: Box::new(Nothing),
        };
        pen.store.import(import).await
    };
    let admin = admin().await;
    let id = pen.owner.0.cast_signed();
    let sql = format!("UPDATE {schema}.owners SET beat_at = 0 WHERE id = {id}");
    admin.batch_execute(&sql).await.unwrap();
    // Its beat is on its way.
    let sql = format!("BEGIN; SELECT 1 FROM {schema}.owners WHERE id = {id} FOR UPDATE");
    admin.batch_execute(&sql).await.unwrap();
    let refused = import().await;
    assert!(
        matches!(refused, Err(ImportError::Driven { .. })),
        "{refused:?}"
    );
    admin.batch_execute("ROLLBACK").await.unwrap();
    import().await.expect("it stays silent");
    let lapsed = pen.store.lapsed(&pen.run).await.expect("a list");
    let lapsed: Vec<_> = lapsed.iter().map(|it| it.owner.id).collect();
    assert_eq!(lapsed, [pen.owner]);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_run_was_taken_from_a_silent_driver_is_on_the_databases_clock_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let pen = Pen::new(store).await;
    let claimer = stranger();
    pen.store.join(&claimer).await.expect("it joins");
    let admin = admin().await;
    let sql = format!("UPDATE {schema}.owners SET beat_at = 0 WHERE id = $1");
    let silent = admin.execute(&sql, &[&pen.owner.0.cast_signed()]).await;
    assert_eq!(silent.unwrap(), 1);
    let claimed = pen.store.claim(&pen.run, claimer.id).await;
    assert!(
        matches!(claimed, Ok(ClaimOutcome::Claimed(_))),
        "{claimed:?}"
    );
    let taken_ago = async || {
        let lapsed = pen.store.lapsed(&pen.run).await.expect("a list");
        lapsed[0].taken_ago
    };
    let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
    for (taken_at, least) in [
        ("taken_at", Some(Duration::ZERO)),
        ("taken_at - 3600000000", Some(hour)),
        // The clock was set back, or another server's is behind.
        ("taken_at + 7200000000", None),
        // Another build did not say.
        ("NULL", None),
    ] {
        let sql = format!("UPDATE {schema}.lapsed SET taken_at = {taken_at}");
        assert_eq!(admin.execute(&sql, &[]).await.unwrap(), 1);
        let ago = taken_ago().await;
        assert_eq!(ago.is_some(), least.is_some(), "{taken_at}: {ago:?}");
        let (ago, least) = (ago.unwrap_or_default(), least.unwrap_or_default());
        assert!(least <= ago && ago < least + minute, "{taken_at}: {ago:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_that_cannot_be_read_hides_no_other_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let damaged = Pen::new(store).await;
    let orphan = Pen::new(damaged.store.clone()).await;
    let sql = format!("UPDATE {schema}.runs SET facts = '{{' WHERE run = $1");
    let written = admin()
        .await
        .execute(&sql, &[&damaged.run.to_string()])
        .await;
    assert_eq!(written.unwrap(), 1);
    for pen in [&damaged, &orphan] {
        pen.store.leave(pen.owner).await.expect("it leaves");
    }
    // Whoever comes looks after what the ones before left.
    let next = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let next = Pen::new(next).await;
    let all = [Claimable {
        kind: RunKind::Task,
        agents: None,
        specs: None,
    }];
    let found = next.store.claimable(&all, &[], 10).await;
    assert_eq!(found.expect("a list"), [damaged.run, orphan.run]);
    let claimed = next.store.claim(&orphan.run, next.owner).await;
    assert!(
        matches!(claimed, Ok(ClaimOutcome::Claimed(_))),
        "{claimed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_keeps_no_place_and_no_child_from_its_end_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let [silent, here] = [stranger(), stranger()];
    for owner in [&silent, &here] {
        store.join(owner).await.expect("it joins");
    }
    let limited = |key: &str| RunStarted {
        limit: Some(RunLimit {
            key: key.into(),
            max: 1,
        }),
        ..started()
    };
    let damaged = created(&store, limited("gpu"), Some(silent.id))
        .await
        .row
        .run;
    let next = queued(&store, limited("gpu")).await.row.run;
    let ended = created(&store, limited("cpu"), Some(silent.id))
        .await
        .row
        .run;
    let beside = queued(&store, limited("cpu")).await.row.run;
    let parent = Parent {
        relation: Relation::Child,
        run: damaged,
        seq: Seq::FIRST,
    };
    let child = RunStarted {
        parent: Some(parent),
        ..started()
    };
    let child = queued(&store, child).await.row.run;
    let sql = format!(
        "UPDATE {schema}.runs SET facts = '{{' WHERE run IN ('{damaged}', '{ended}');
         UPDATE {schema}.runs SET status = 'completed' WHERE run = '{ended}';
         UPDATE {schema}.owners SET beat_at = beat_at - 60000000 WHERE id = {}",
        silent.id.0.cast_signed()
    );
    admin().await.batch_execute(&sql).await.unwrap();
    let claimed = store.claim(&next, here.id).await;
    assert!(
        matches!(claimed, Ok(ClaimOutcome::Claimed(_))),
        "{claimed:?}"
    );
    // One that has ended is for nobody to go for.
    let claimed = store.claim(&beside, here.id).await.unwrap();
    assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
    store.release(&beside, Epoch(1), here.id).await.unwrap();
    let all = [Claimable {
        kind: RunKind::Task,
        agents: None,
        specs: None,
    }];
    let found = store.claimable(&all, &[], 10).await.unwrap();
    assert_eq!(found, [beside, child]);
    let (id, cancel) = (
        AppendId::new("cancel").unwrap(),
        Outside::Cancel { reason: None },
    );
    let answer = store.command(&child, &id, &cancel, Vec::new()).await;
    answer.expect("it is cancelled");
    // Nor of a driver that lives: it is told what is wrong when it gives it back, which it has done then.
    let third = queued(&store, limited("gpu")).await.row.run;
    let sql = format!("UPDATE {schema}.runs SET facts = '{{' WHERE run = '{next}'");
    admin().await.batch_execute(&sql).await.unwrap();
    let [(_, epoch)] = store.held(here.id).await.unwrap()[..] else {
        panic!("one run is held");
    };
    assert!(store.release(&next, epoch.next(), here.id).await.is_err());
    let full = store.claim(&third, here.id).await.unwrap();
    assert!(matches!(full, ClaimOutcome::Limited(_)), "{full:?}");
    let given = store.release(&next, epoch, here.id).await;
    assert!(matches!(given, Err(Error::Corrupt { .. })), "{given:?}");
    let claimed = store.claim(&third, here.id).await.unwrap();
    assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
}
