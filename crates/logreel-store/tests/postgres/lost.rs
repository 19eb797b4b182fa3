//! Answers that do not come, and transactions that must give way.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::{AppendId, Blob, Outside, Seq};
use logreel_store::{
    AppendError, CreateError, Created, Env, Error, NewRun, PostgresStore, RunStore, SystemEnv,
};
use tempfile::TempDir;

use crate::proxy::{CUT, LOSE, LOSE_COMMIT, OPEN, Proxy, STOP_COMMIT};
use crate::world::{Pen, admin, in_schema, options, server, started, wait_for_blocked};

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
async fn what_was_committed_when_the_answer_was_lost_is_there_once_on_postgres() {
    let proxy = Proxy::start().await;
    let (url, _) = in_schema(&proxy.url);
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let mut pen = Pen::new(store).await;
    // With a blob it is a transaction of several statements.
    for (mode, name) in [(LOSE_COMMIT, "landed"), (STOP_COMMIT, "did not land")] {
        pen.write(&format!("before it {name}"))
            .await
            .expect("it lands");
        proxy.set(mode);
        let blob = Blob::new(name.as_bytes().to_vec());
        let error = pen.write_with(name, vec![blob.clone()]).await;
        let Err(AppendError::Store(Error::Ambiguous { .. })) = error else {
            panic!("nobody knows, not {error:?}")
        };
        let repeated = pen.write_with(name, vec![blob]).await.expect("sent again");
        assert_eq!(repeated, mode == LOSE_COMMIT, "{name}");
    }
    let written = [
        "before it landed",
        "landed",
        "before it did not land",
        "did not land",
    ];
    assert_eq!(pen.names().await, written);
    // A command and a new run too.
    for mode in [LOSE_COMMIT, STOP_COMMIT] {
        let new = NewRun {
            run: SystemEnv.run_id(),
            started: started(),
            then: Vec::new(),
            blobs: Vec::new(),
            owner: None,
        };
        proxy.set(mode);
        let lost = pen.store.create(new.clone()).await;
        assert!(
            matches!(lost, Err(CreateError::Store(Error::Ambiguous { .. }))),
            "{lost:?}"
        );
        let created = pen.store.create(new.clone()).await.expect("sent again");
        assert_eq!(matches!(created, Created::Attached(_)), mode == LOSE_COMMIT);
        let cancel = Outside::Cancel { reason: None };
        let id = AppendId::new("cancel").unwrap();
        proxy.set(mode);
        let lost = pen.store.command(&new.run, &id, &cancel, Vec::new()).await;
        assert!(matches!(lost, Err(Error::Ambiguous { .. })), "{lost:?}");
        let again = pen.store.command(&new.run, &id, &cancel, Vec::new()).await;
        assert_eq!(again.expect("sent again").repeated, mode == LOSE_COMMIT);
        let head = pen
            .store
            .entry(&new.run)
            .await
            .expect("it is there")
            .row
            .head;
        assert_eq!(head.seq, Seq(2), "it was cancelled once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_told_to_give_way_tries_again_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let url = format!("{url}%20-cdeadlock_timeout%3D4s");
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let pen = Arc::new(Pen::new(store).await);
    let admin = admin().await;
    // Someone else holds what the second statement needs, and then wants what the first one took.
    let sql = format!(
        "SET search_path = {schema}; SET deadlock_timeout = '1min'; BEGIN; SELECT 1 FROM runs FOR UPDATE"
    );
    admin.batch_execute(&sql).await.unwrap();
    let cancelling = {
        let pen = pen.clone();
        tokio::spawn(async move {
            let cancel = Outside::Cancel { reason: None };
            let id = AppendId::new("cancel").unwrap();
            pen.store.command(&pen.run, &id, &cancel, Vec::new()).await
        })
    };
    wait_for_blocked(&admin, 1).await;
    // The store's side notices first, after its four seconds, and gives way.
    admin
        .batch_execute("SELECT 1 FROM live FOR UPDATE")
        .await
        .unwrap();
    admin.batch_execute("COMMIT").await.unwrap();
    let commanded = cancelling.await.unwrap().expect("it lands all the same");
    assert_eq!(commanded.entry.row.head.seq, Seq(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_database_could_not_serialize_is_done_again_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let mut pen = Pen::new(store).await;
    let admin = admin().await;
    // It finds out at the commit: twice of a driver's append, and twice of a command.
    let sql = format!(
        "SET search_path = {schema};
         CREATE SEQUENCE tries;
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF nextval('{schema}.tries') IN (1, 2, 4, 5) THEN
             RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';
           END IF;
           RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON events
           DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()"
    );
    admin.batch_execute(&sql).await.unwrap();
    pen.write("one").await.expect("it lands all the same");
    let (cancel, id) = (
        Outside::Cancel { reason: None },
        AppendId::new("cancel").unwrap(),
    );
    let commanded = pen.store.command(&pen.run, &id, &cancel, Vec::new()).await;
    let head = commanded.expect("so does this").entry.row.head;
    let events = pen.store.events(&pen.run, Seq(1), 10).await.unwrap().items;
    assert_eq!(events.last().unwrap().seq, head.seq, "each of them once");
    let tries = admin.query_one("SELECT last_value FROM tries", &[]).await;
    assert_eq!(tries.unwrap().get::<_, i64>(0), 6);
}
