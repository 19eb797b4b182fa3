//! Rows that another build wrote (SEMANTICS 12).

use logreel_core::event::Relation;
use logreel_core::{AppendId, FOLD_VERSION, Outside, RunId, Seq, Status};
use logreel_store::{
    ClaimOutcome, Env, Error, ForkAt, ForkError, NewFork, PostgresStore, RunStore, SystemEnv,
};
use tempfile::TempDir;

use crate::world::{Pen, admin, in_schema, options, queued, server, started, stranger};

#[tokio::test(flavor = "multi_thread")]
async fn a_projection_of_another_build_is_made_anew_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let open = async || PostgresStore::open(&url, options(&locks)).await.unwrap();
    let (store, admin) = (open().await, admin().await);
    let (claimed, mut pen) = (queued(&store, started()).await, Pen::new(store).await);
    pen.write("before").await.expect("it lands");
    let driven = pen.store.entry(&pen.run).await.expect("an entry");
    // Another build kept other things, in both of its rows.
    let sql = format!(
        "UPDATE {schema}.runs SET fold_version = 0,
           facts = jsonb_set(facts::jsonb, '{{agent}}', '\"wrong\"')::text;
         UPDATE {schema}.live SET results = decode(repeat('07', 32), 'hex'), updated_at = 5"
    );
    admin.batch_execute(&sql).await.unwrap();
    let store = open().await;
    for entry in [&driven, &claimed] {
        let read = store.entry(&entry.row.run).await.expect("an entry");
        assert_eq!((&read.row, read.results), (&entry.row, entry.results));
    }
    // Whoever goes on writes it anew: a driver with its next event, and a first claim without one.
    pen.store = store.into();
    pen.write("after").await.expect("it lands");
    let ours = stranger();
    pen.store.join(&ours).await.expect("it joins");
    let claim = pen.store.claim(&claimed.row.run, ours.id).await;
    assert!(matches!(claim, Ok(ClaimOutcome::Claimed(_))), "{claim:?}");
    let sql = format!("SELECT count(*) FROM {schema}.runs WHERE fold_version = $1");
    let version = i64::from(FOLD_VERSION);
    let anew: i64 = admin.query_one(&sql, &[&version]).await.unwrap().get(0);
    assert_eq!(anew, 2, "both are this build's");
    let store = open().await;
    let read = store.entry(&claimed.row.run).await.expect("an entry");
    assert_eq!(read.row, claimed.row, "no part of it is another build's");
    assert_eq!(read.results, claimed.results);
    let read = store.entry(&pen.run).await.expect("an entry");
    assert_eq!((read.row.head, read.results), (pen.head, driven.results));
    assert_eq!(&*read.row.facts.agent, "driven");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_a_newer_build_can_be_read_and_cancelled_and_nothing_else_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
    let owner = stranger();
    store.join(&owner).await.expect("it joins");
    let run: RunId = queued(&store, started()).await.row.run;
    let sql = format!("UPDATE {schema}.runs SET needs = 99");
    admin().await.batch_execute(&sql).await.unwrap();
    let page = store.read(&run, Seq::FIRST, 10).await.expect("a page");
    assert_eq!(page.items.len(), 1);
    let say = Outside::Say {
        text: "hello".into(),
        by: None,
    };
    let id = AppendId::new("say").unwrap();
    let said = store.command(&run, &id, &say, Vec::new()).await;
    let claimed = store.claim(&run, owner.id).await;
    for refused in [said.expect_err("said"), claimed.expect_err("claimed")] {
        assert!(matches!(refused, Error::NewerFormat(_)), "{refused:?}");
    }
    let id = AppendId::new("cancel").unwrap();
    let cancel = Outside::Cancel { reason: None };
    let cancelled = store.command(&run, &id, &cancel, Vec::new()).await;
    let status = cancelled.expect("it is cancelled").entry.row.status();
    assert_eq!(status, Status::Cancelled);
    let new = NewFork::of(SystemEnv.run_id(), run, ForkAt::Last, Relation::Fork);
    let refused = store.fork(new).await;
    let newer = matches!(refused, Err(ForkError::Store(Error::NewerFormat(_))));
    assert!(newer, "{refused:?}");
}
