//! Opening a store that is not there, or newer.

use logreel_store::postgres::Options;
use logreel_store::{Error, PostgresStore, RunStore};
use tempfile::TempDir;

use crate::world::{admin, in_schema, options, server};

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
