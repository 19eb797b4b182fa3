//! Opening a store that is not there, or newer.

use std::time::Duration;

use logreel_store::postgres::Options;
use logreel_store::{Env, Error, PostgresStore, RunStore, SystemEnv};
use tempfile::TempDir;

use crate::world::{admin, in_schema, options, server, wait_for_blocked};

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
async fn a_migration_takes_as_long_as_it_needs_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    // Another process is at the first migration, for longer than any other transaction may take.
    let admin = admin().await;
    let sql = format!(
        "CREATE SCHEMA {schema}; CREATE TABLE {schema}.logreel_migrations (
           version int8 PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
    );
    admin.batch_execute(&sql).await.unwrap();
    let sql = format!("BEGIN; INSERT INTO {schema}.logreel_migrations (version) VALUES (1)");
    admin.batch_execute(&sql).await.unwrap();
    let opening = {
        let (url, options) = (url.clone(), options(&locks));
        tokio::spawn(async move { PostgresStore::open(&url, options).await })
    };
    wait_for_blocked(&admin, 1).await;
    SystemEnv.sleep(Duration::from_millis(8_500)).await;
    // And dies of it.
    admin.batch_execute("ROLLBACK").await.unwrap();
    let store = opening.await.unwrap().expect("it waited, and migrates");
    assert_eq!(store.stats().await.expect("it can be read").events, 0);
}
