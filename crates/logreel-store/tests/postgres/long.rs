//! What takes as long as a log is: nothing else has that much time.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{Custom, Relation};
use logreel_core::{AppendId, Draft, Epoch, Outside, Payload, RunId, Seq};
use logreel_store::{
    Append, Created, Env, ForkAt, Heirs, NewFork, NewRun, PostgresStore, RunStore, SystemEnv,
};
use tempfile::TempDir;

use crate::proxy::Proxy;
use crate::world::{Pen, admin, in_schema, options, started, wait_for_blocked};

/// A run that has ended, and that nobody holds.
async fn ended(store: &PostgresStore) -> RunId {
    let run = SystemEnv.run_id();
    let new = NewRun {
        run,
        started: started(),
        then: Vec::new(),
        blobs: Vec::new(),
        owner: None,
    };
    store.create(new).await.expect("it is created");
    let id = AppendId::new("cancel").unwrap();
    let cancel = Outside::Cancel { reason: None };
    let cancelled = store.command(&run, &id, &cancel, Vec::new()).await;
    cancelled.expect("it is cancelled");
    run
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_log_is_forked_erased_and_deleted_however_long_it_takes_on_postgres() {
    let proxy = Proxy::start().await;
    let (url, schema) = in_schema(&proxy.url);
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let store = Arc::new(store);
    let (erased, deleted) = (ended(&store).await, ended(&store).await);
    let mut pen = Pen::new(store.clone()).await;
    for tag in 1..=18 {
        let custom = Custom {
            name: "one of many".to_owned(),
            data: Payload::null(),
        };
        let append = Append {
            run: pen.run,
            expect: pen.head,
            epoch: Epoch(1),
            id: AppendId::driver(tag),
            drafts: vec![Draft::new(custom); 512],
            blobs: Vec::new(),
        };
        let appended = store.append(&append).await.expect("it lands");
        let last = appended.events.last().unwrap();
        (pen.head.seq, pen.head.digest) = (last.seq, last.digest);
    }

    // Two wait for a lock, and one for its pages, each for longer than any append may take.
    let admin = admin().await;
    let sql = format!(
        "BEGIN; SELECT 1 FROM {schema}.runs WHERE run = '{erased}' OR run = '{deleted}' FOR UPDATE"
    );
    admin.batch_execute(&sql).await.unwrap();
    let other = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let began = SystemEnv.monotonic();
    let erasing = {
        let store = store.clone();
        tokio::spawn(async move { store.erase(&erased, Heirs::default()).await })
    };
    let deleting = tokio::spawn(async move { other.delete(&deleted).await });
    wait_for_blocked(&admin, 2).await;
    proxy.slow_down(Duration::from_millis(500));
    let fork = SystemEnv.run_id();
    let new = NewFork::of(fork, pen.run, ForkAt::Last, Relation::Fork);
    let forked = store.fork(new).await.expect("it is forked");
    assert!(matches!(forked, Created::New(entry) if entry.row.head.seq == pen.head.seq.next()));
    let took = SystemEnv.monotonic() - began;
    assert!(
        took > Duration::from_millis(8_500),
        "it was too quick: {took:?}"
    );
    proxy.slow_down(Duration::ZERO);
    assert!(!erasing.is_finished() && !deleting.is_finished());
    admin.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(erasing.await.unwrap().expect("it is erased"), [erased]);
    deleting.await.unwrap().expect("it is deleted");
    let page = store.read(&fork, Seq(1), 1).await.expect("a page");
    assert_eq!(page.items.len(), 1, "it shares the log");
}
