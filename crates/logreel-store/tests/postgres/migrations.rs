//! Tables that an earlier build made, and what it had written there.

use std::time::Duration;

use logreel_core::event::{RunKind, RunLimit};
use logreel_core::{AppendId, Outside, Seq};
use logreel_store::postgres::Options;
use logreel_store::{ClaimOutcome, Claimable, PostgresStore, RunStore};
use tempfile::TempDir;

use crate::world::{Pen, admin, in_schema, options, queued, server, started, stranger};

/// Makes the tables what the fifth migration left.
async fn go_back(schema: &str) {
    let sql = format!(
        "SET search_path = {schema};
         ALTER TABLE live ADD owner int8, ADD since int8, ADD ready_at int8,
           ADD limit_key text COLLATE \"C\", ADD limit_max int8;
         UPDATE live l SET owner = q.owner, since = q.since, ready_at = q.ready_at,
           limit_key = q.limit_key, limit_max = q.limit_max FROM queue q WHERE q.run = l.run;
         DROP TABLE queue;
         CREATE INDEX live_ready ON live (ready_at, run) WHERE owner IS NULL AND ready_at IS NOT NULL;
         CREATE INDEX live_owner ON live (owner, run) WHERE owner IS NOT NULL;
         CREATE INDEX live_limit ON live (limit_key, owner, run) WHERE limit_key IS NOT NULL;
         ALTER TABLE events ADD append_id text COLLATE \"C\";
         UPDATE events e SET append_id = a.append_id, tag = NULL FROM appends a
           WHERE a.run = e.run AND a.seq = e.seq;
         CREATE UNIQUE INDEX events_append ON events (run, append_id) WHERE append_id IS NOT NULL;
         DROP TABLE appends;
         ALTER TABLE lapsed DROP taken_at;
         DELETE FROM logreel_migrations WHERE version > 5"
    );
    admin().await.batch_execute(&sql).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_that_was_named_before_a_migration_gets_its_first_answer_after_it_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let open = async || PostgresStore::open(&url, options(&locks)).await.unwrap();
    let store = open().await;
    let run = queued(&store, started()).await.row.run;
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
    go_back(&schema).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn who_drives_and_who_waits_stays_so_over_a_migration_on_postgres() {
    let (url, schema) = in_schema(&server());
    let locks = TempDir::new().unwrap();
    let open = async || {
        let options = Options {
            // Nobody beats here.
            lease: Duration::from_secs(600),
            ..options(&locks)
        };
        PostgresStore::open(&url, options).await.unwrap()
    };
    let store = open().await;
    let mut limited = started();
    limited.limit = Some(RunLimit {
        key: "one".to_owned(),
        max: 1,
    });
    let [first, second] = [limited.clone(), limited];
    let (first, second) = (
        queued(&store, first).await.row.run,
        queued(&store, second).await.row.run,
    );
    let free = queued(&store, started()).await.row.run;
    let later = queued(&store, started()).await.row.run;
    let mut pen = Pen::new(store).await;
    pen.write("before").await.expect("it lands");
    let claimed = pen.store.claim(&first, pen.owner).await;
    assert!(matches!(claimed, Ok(ClaimOutcome::Claimed(_))));
    let admin = admin().await;
    let sql = format!(
        "SET search_path = {schema}; UPDATE queue SET ready_at = 9000000000000000
         WHERE run = (SELECT id FROM runs WHERE run = '{later}')"
    );
    admin.batch_execute(&sql).await.unwrap();
    let runs = [first, second, free, pen.run, later];
    // What the tables hold and how they are made, also what only later appends depend on.
    let tables = async || {
        let sql = "SELECT array(SELECT live::text FROM live ORDER BY run),
             array(SELECT queue::text FROM queue ORDER BY run),
             array(SELECT indexdef FROM pg_indexes WHERE schemaname = $1 ORDER BY indexname),
             array(SELECT reloptions::text FROM pg_class WHERE relname IN ('live', 'queue')
               AND relnamespace = $1::text::regnamespace ORDER BY relname)";
        let row = admin.query_one(sql, &[&schema]).await.unwrap();
        let column = |at| -> Vec<String> { row.get(at) };
        [column(0), column(1), column(2), column(3)]
    };
    let look = async |store: &PostgresStore| {
        let mut seen = Vec::new();
        for run in &runs {
            let entry = store.entry(run).await.expect("an entry");
            seen.push(format!("{entry:?}"));
        }
        let task = Claimable {
            kind: RunKind::Task,
            agents: None,
            specs: None,
        };
        let ready = store.claimable(&[task], &[], 8).await;
        (seen, ready.expect("a list"))
    };
    let before = look(&pen.store).await;
    let made = tables().await;
    assert_eq!(before.1, [free], "the place of the limit is taken");
    go_back(&schema).await;
    pen.store = open().await.into();
    assert_eq!(look(&pen.store).await, before);
    assert_eq!(tables().await, made);
    pen.write("after").await.expect("it is still this driver's");
    let other = stranger();
    pen.store.join(&other).await.expect("it joins");
    let refused = pen.store.claim(&second, other.id).await;
    assert!(matches!(refused, Ok(ClaimOutcome::Limited(_))));
}
