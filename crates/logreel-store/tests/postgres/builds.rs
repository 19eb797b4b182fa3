//! Rows that another build wrote (SEMANTICS 12).

use logreel_core::event::Relation;
use logreel_core::{AppendId, FOLD_VERSION, Outside, RunId, Seq, Status};
use logreel_store::{
    ClaimOutcome, Created, Entry, Env, Error, ForkAt, ForkError, NewFork, NewRun, PostgresStore,
    RunStore, SystemEnv,
};
use tempfile::TempDir;

use crate::world::{Pen, admin, in_schema, options, server, started, stranger};

async fn queued(store: &PostgresStore) -> Entry {
    let new = NewRun {
        run: SystemEnv.run_id(),
        started: started(),
        then: Vec::new(),
        blobs: Vec::new(),
        owner: None,
    };
    match store.create(new).await.expect("it is created") {
        Created::New(entry) => entry,
        Created::Attached(_) => panic!("it is new"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_projection_of_another_build_is_made_anew_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let open = async || PostgresStore::open(&url, options(&locks)).await.unwrap();
    let (store, admin) = (open().await, admin().await);
    let (claimed, mut pen) = (queued(&store).await, Pen::new(store).await);
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
    let run: RunId = queued(&store).await.row.run;
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

#[tokio::test(flavor = "multi_thread")]
async fn an_append_that_was_named_before_a_migration_gets_its_first_answer_after_it_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let open = async || PostgresStore::open(&url, options(&locks)).await.unwrap();
    let store = open().await;
    let run = queued(&store).await.row.run;
    let say = |text: &str| Outside::Say {
        text: text.into(),
        by: None,
    };
    let ids = ["first", "second"].map(|id| AppendId::new(id).unwrap());
    let mut said = Vec::new();
    for id in &ids {
        let done = store.command(&run, id, &say(id.as_str()), Vec::new()).await;
        said.push(done.expect("it is said").events);
    }
    drop(store);
    // As the fifth migration left it.
    let sql = format!(
        "SET search_path = {schema};
         ALTER TABLE events ADD append_id text COLLATE \"C\";
         UPDATE events e SET append_id = a.append_id, tag = NULL FROM appends a
           WHERE a.run = e.run AND a.seq = e.seq;
         CREATE UNIQUE INDEX events_append ON events (run, append_id) WHERE append_id IS NOT NULL;
         DROP TABLE appends;
         DELETE FROM logreel_migrations WHERE version > 5"
    );
    admin().await.batch_execute(&sql).await.unwrap();
    let store = open().await;
    for (id, said) in ids.iter().zip(&said) {
        let again = store.command(&run, id, &say(id.as_str()), Vec::new()).await;
        let again = again.expect("it was said");
        assert!(again.repeated, "{id}");
        assert_eq!(
            &again.events, said,
            "{id}: those of this append and no others"
        );
    }
    let third = AppendId::new("third").unwrap();
    let done = store.command(&run, &third, &say("more"), Vec::new()).await;
    let done = done.expect("it is said");
    assert!(!done.repeated);
    assert_eq!(done.entry.row.head.seq, Seq(4), "each was said once");
}
