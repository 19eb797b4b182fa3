//! What an append costs: round trips, and who waits for whom.

use std::sync::Arc;

use logreel_store::PostgresStore;
use tempfile::TempDir;

use crate::proxy::Proxy;
use crate::world::{Pen, admin, in_schema, options, server, wait_for_blocked};

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
    wait_for_blocked(&admin, 1).await;
    for _ in 0..10 {
        other.write("meanwhile").await.expect("it lands");
    }
    assert!(!waiting.is_finished());
    admin.batch_execute("COMMIT").await.unwrap();
    assert_eq!(waiting.await.unwrap(), ["after the lock"]);
}

#[test]
fn appends_go_on_when_the_runtime_that_they_began_in_has_ended_on_postgres() {
    let runtime = |reaches_a_network| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_time();
        if reaches_a_network {
            builder.enable_io();
        }
        builder.build().unwrap()
    };
    let (url, _) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let first = runtime(true);
    let mut pen = first.block_on(async {
        let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
        Pen::new(store).await
    });
    for name in ["a", "b"] {
        first.block_on(pen.write(name)).expect("it lands");
    }
    drop(first);
    let second = runtime(true);
    second.block_on(pen.write("c")).expect("it lands");
    drop(second);
    let deaf = runtime(false);
    // What became of the first is not known: it is sent again, as a driver does.
    let tries = (0..3).map(|_| deaf.block_on(pen.write("d")));
    let refused = tries.take_while(Result::is_err).count();
    assert!(refused < 3, "it lands in the end");
    assert_eq!(deaf.block_on(pen.names()), ["a", "b", "c", "d"]);
}
