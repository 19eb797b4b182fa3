//! The news of all runs beside slow writers and imports, and who hears of them.

use std::collections::BTreeSet;
use std::time::Duration;

use logreel_core::{Blob, Record, RunId, Seq};
use logreel_store::import::Fault;
use logreel_store::postgres::Options;
use logreel_store::{
    Cursor, Env, Import, ImportedBlob, PostgresStore, RunStore, Since, Source, SystemEnv,
};
use tempfile::TempDir;

use crate::reach::Server;
use crate::world::{Pen, admin, admin_of, in_schema, options, server, wait_for_blocked};

/// The events of a run, on their way into another store.
struct Given(std::vec::IntoIter<Record>);

impl Source for Given {
    fn next_event(&mut self) -> Result<Option<Record>, Fault> {
        Ok(self.0.next())
    }

    fn next_blob(&mut self) -> Result<Option<ImportedBlob>, Fault> {
        Ok(None)
    }
}

/// Follows the news from a cursor until nothing more comes; gives what it was told, with the cursors after each.
async fn follow(store: &PostgresStore, since: &Since, limit: usize) -> Vec<((RunId, u64), Cursor)> {
    let (mut since, mut told) = (since.clone(), Vec::new());
    loop {
        let page = store.news(&since, limit).await.expect("a page");
        let items = page.items.into_iter();
        told.extend(items.map(|it| ((it.run, it.seq.0), it.next)));
        since = Since::After(page.next);
        if !page.has_more {
            return told;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_follows_all_runs_is_told_of_each_event_once_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let open = async || PostgresStore::open(&url, options(&locks)).await.unwrap();
    let follower = open().await;
    let mut slow = Pen::new(open().await).await;
    let mut quick = Vec::new();
    for _ in 0..3 {
        quick.push(Pen::new(open().await).await);
    }
    // Another store, whose log will be imported.
    let (elsewhere, _) = in_schema(&server());
    let elsewhere = PostgresStore::open(&elsewhere, options(&locks))
        .await
        .unwrap();
    let mut there = Pen::new(elsewhere).await;
    for index in 0..40 {
        there.write(&format!("{index}")).await.expect("it lands");
    }

    let now = follower.news(&Since::Now, 1).await.expect("the end");
    let mut since = Since::After(now.next.clone());
    let mut told: Vec<((RunId, u64), Cursor)> = Vec::new();
    // An append that has its stamp, and stands still before it can be seen.
    let admin = admin().await;
    let lock = format!("BEGIN; LOCK TABLE {schema}.blobs IN SHARE ROW EXCLUSIVE MODE");
    admin.batch_execute(&lock).await.unwrap();
    let standing = tokio::spawn(async move {
        let blob = Blob::new(*b"slow");
        slow.write_with("slow", vec![blob]).await.expect("it lands");
        slow
    });
    wait_for_blocked(&admin, 1).await;
    // The others go on for longer than a reader goes back each time, and the reader with them.
    let (began, mut rounds) = (SystemEnv.monotonic(), 0);
    while rounds < 12 || SystemEnv.monotonic() - began < Duration::from_millis(1_500) {
        for pen in &mut quick {
            pen.write("quick").await.expect("it lands");
        }
        rounds += 1;
        if rounds == 5 {
            let entry = there.store.entry(&there.run).await.expect("an entry");
            let keys = there.store.keys(&there.run).await.expect("its keys");
            let page = there.store.read(&there.run, Seq(1), 1000).await;
            let import = Import {
                row: entry.row,
                results: entry.results,
                keys: keys
                    .into_iter()
                    .filter_map(|(run, key)| Some((run, key?)))
                    .collect(),
                after: None,
                source: Box::new(Given(page.expect("a page").items.into_iter())),
            };
            follower.import(import).await.expect("it is taken in");
        }
        let page = follower.news(&since, 7).await.expect("a page");
        told.extend(
            page.items
                .into_iter()
                .map(|it| ((it.run, it.seq.0), it.next)),
        );
        since = Since::After(page.next);
    }
    admin.batch_execute("ROLLBACK").await.unwrap();
    let slow = standing.await.unwrap();
    quick[0].write("last").await.expect("it lands");

    let mut expected: BTreeSet<(RunId, u64)> = BTreeSet::new();
    expected.insert((slow.run, 2));
    expected.extend((1..=there.head.seq.0).map(|seq| (there.run, seq)));
    for pen in &quick {
        expected.extend((2..=pen.head.seq.0).map(|seq| (pen.run, seq)));
    }
    let began = SystemEnv.monotonic();
    while told.len() < expected.len() {
        let page = follower.news(&since, 100).await.expect("a page");
        told.extend(
            page.items
                .into_iter()
                .map(|it| ((it.run, it.seq.0), it.next)),
        );
        since = Since::After(page.next);
        let waited = SystemEnv.monotonic() - began;
        assert!(waited < Duration::from_secs(20), "{} are told", told.len());
    }
    let names = |told: &[((RunId, u64), Cursor)]| {
        let names: Vec<(RunId, u64)> = told.iter().map(|(name, _)| *name).collect();
        let unique: BTreeSet<(RunId, u64)> = names.iter().copied().collect();
        assert_eq!(unique.len(), names.len(), "nothing is told twice");
        for run in unique.iter().map(|(run, _)| run).collect::<BTreeSet<_>>() {
            let of_run: Vec<u64> = names
                .iter()
                .filter(|it| it.0 == *run)
                .map(|it| it.1)
                .collect();
            assert!(of_run.is_sorted(), "in the order of its run: {of_run:?}");
        }
        unique
    };
    assert_eq!(names(&told), expected);
    let late = told.iter().position(|(name, _)| *name == (slow.run, 2));
    let late = late.expect("it is told");
    assert!(late > 10, "it was passed before it could be seen");

    // From any cursor, in another process, what was not told before it, and nothing else.
    let other = open().await;
    for index in (0..told.len())
        .step_by(told.len() / 12)
        .chain([late - 1, late])
    {
        let (before, cursor) = (&told[..=index], &told[index].1);
        assert!(cursor.0.len() < 200, "{cursor:?}");
        let rest = follow(&other, &Since::After(cursor.clone()), 11).await;
        let rest = names(&rest);
        let had = names(before);
        let missing: BTreeSet<_> = expected.difference(&had).copied().collect();
        assert_eq!(rest, missing, "after {index} of {}", told.len());
    }
    let all = names(&follow(&other, &Since::Beginning, 50).await);
    assert!(all.is_superset(&expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_hears_by_the_doorbell_and_without_it_on_postgres() {
    let locks = TempDir::new().unwrap();
    for doorbell in [true, false] {
        let (url, _) = in_schema(&server());
        let open = async || {
            let options = Options {
                doorbell,
                ..options(&locks)
            };
            PostgresStore::open(&url, options).await.unwrap()
        };
        let (store, other) = (open().await, open().await);
        let mut pen = Pen::new(store).await;
        let mut bell = other.watch(&pen.run);
        let mut took = Vec::new();
        // The first ones come while the doorbell is put up.
        let up = SystemEnv.monotonic() + Duration::from_millis(1_500);
        while took.len() < 15 {
            let head = pen.head.seq;
            pen.write("ring").await.expect("it lands");
            let began = SystemEnv.monotonic();
            loop {
                assert!(bell.rung().await, "the store is there");
                bell.head();
                if other.entry(&pen.run).await.unwrap().row.head.seq > head {
                    break;
                }
            }
            if began > up {
                took.push(SystemEnv.monotonic() - began);
            }
        }
        took.sort_unstable();
        let median = took[took.len() / 2];
        println!(
            "doorbell {doorbell}: median {median:?}, most {:?}",
            took[took.len() - 1]
        );
        // Without a ring whoever has the doorbell looks every 100 ms.
        let most = if doorbell { 60 } else { 200 };
        assert!(median < Duration::from_millis(most), "{doorbell}: {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_for_its_standby_past_the_guard_is_told_on_postgres() {
    let server = Server::start();
    let (url, _) = in_schema(&server.url());
    let locks = TempDir::new().unwrap();
    let options = || Options {
        guard: Duration::from_millis(500),
        ..options(&locks)
    };
    let waits = PostgresStore::open(&url, options()).await.unwrap();
    // One that has its answer before the standby has it, so that there are news meanwhile.
    let url = format!("{url}%20-csynchronous_commit%3Dlocal");
    let follower = PostgresStore::open(&url, options()).await.unwrap();
    let mut slow = Pen::new(waits).await;
    slow.write("before").await.expect("it lands");
    let mut quick = Pen::new(PostgresStore::open(&url, options()).await.unwrap()).await;
    let now = follower.news(&Since::Now, 1).await.expect("the end");
    let (mut since, mut told) = (Since::After(now.next), Vec::new());

    let admin = admin_of(&server.url()).await;
    for sql in [
        "SET synchronous_commit = local",
        "ALTER SYSTEM SET synchronous_standby_names = 'away'",
        "SELECT pg_reload_conf()",
    ] {
        admin.batch_execute(sql).await.unwrap();
    }
    // A server takes a moment to know it. The one that waits stays there, whoever waits for its answer.
    let moment = Duration::from_millis(500);
    while let Ok(written) = tokio::time::timeout(moment, slow.write("for the standby")).await {
        written.expect("it lands");
    }
    let late = (slow.run, slow.head.seq.0 + 1);
    let began = SystemEnv.monotonic();
    let mut look = async |told: &mut Vec<(RunId, u64)>| {
        let page = follower.news(&since, 100).await.expect("a page");
        told.extend(page.items.iter().map(|it| (it.run, it.seq.0)));
        since = Since::After(page.next);
    };
    // Longer than the guard, and than a reader goes back however often it looked.
    while SystemEnv.monotonic() - began < Duration::from_secs(4) {
        quick.write("quick").await.expect("it lands");
        look(&mut told).await;
    }
    assert!(!told.contains(&late), "nobody can see it yet");
    for sql in [
        "ALTER SYSTEM RESET synchronous_standby_names",
        "SELECT pg_reload_conf()",
    ] {
        admin.batch_execute(sql).await.unwrap();
    }
    let again = slow.write("for the standby").await;
    assert!(again.expect("it is found"), "it had landed");
    let began = SystemEnv.monotonic();
    while !told.contains(&late) {
        look(&mut told).await;
        let waited = SystemEnv.monotonic() - began;
        assert!(waited < Duration::from_secs(10), "it is not told");
    }
    let unique: BTreeSet<_> = told.iter().collect();
    assert_eq!(unique.len(), told.len(), "nothing is told twice");
    let quick_ones = (2..=quick.head.seq.0).map(|seq| (quick.run, seq));
    assert!(quick_ones.into_iter().all(|it| told.contains(&it)));
}
