//! What others leave in a store costs nobody who looks a round trip of its own.

use logreel_core::RunId;
use logreel_core::event::RunKind;
use logreel_store::{ClaimOutcome, Claimable, Owner, PostgresStore, RunStore};
use std::sync::Arc;

use tempfile::TempDir;

use crate::proxy::Proxy;
use crate::reach::Server;
use crate::world::{Pen, admin, admin_of, in_schema, options, queued, started, stranger};

/// A store behind a proxy that counts, with one run in its queue.
struct Crowd {
    proxy: Proxy,
    schema: String,
    store: PostgresStore,
    queued: RunId,
    _locks: TempDir,
}

impl Crowd {
    async fn new() -> Self {
        let proxy = Proxy::start().await;
        let (url, schema) = in_schema(&proxy.url);
        let locks = TempDir::new().unwrap();
        let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
        let queued = queued(&store, started()).await.row.run;
        Self {
            proxy,
            schema,
            store,
            queued,
            _locks: locks,
        }
    }

    /// So many more runs like the queued one, but for what is said of them.
    async fn copy(&self, many: usize, kind: &str, owner: &str) {
        let sql = format!(
            "SET search_path = {};
             WITH copied AS (
               INSERT INTO runs (run, short, status, agent, kind, spec_digest, created_at, key,
                 fold_version, needs, facts)
               SELECT run || n, short, status, agent, {kind}, spec_digest, created_at, key,
                 fold_version, needs, facts FROM runs, generate_series(1, {many}) n RETURNING id),
             heads AS (
               INSERT INTO live (run, epoch, event_epoch, head_seq, head_digest, updated_at, pulse)
               SELECT copied.id, epoch, event_epoch, head_seq, head_digest, updated_at, pulse
               FROM live, copied)
             INSERT INTO queue (run, owner, since, ready_at)
             SELECT id, {owner}, 0, CASE WHEN {owner} IS NULL THEN 0 END FROM copied;
             ANALYZE runs, live, queue, owners",
            self.schema
        );
        admin().await.batch_execute(&sql).await.unwrap();
    }

    /// How many round trips it took.
    async fn counted<T>(&self, work: impl Future<Output = T>) -> (T, u64) {
        let before = self.proxy.answers();
        let done = work.await;
        (done, self.proxy.answers() - before)
    }
}

fn any(kind: RunKind) -> [Claimable; 1] {
    let (agents, specs) = (None, None);
    [Claimable {
        kind,
        agents,
        specs,
    }]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_finds_its_few_runs_behind_a_long_queue_in_few_round_trips_on_postgres() {
    let crowd = Crowd::new().await;
    crowd.copy(2_000, "kind", "NULL::int8").await;
    let label = ("pool".to_owned(), "gpu".to_owned());
    let mut started = started();
    started.labels.insert(label.0.clone(), label.1.clone());
    let labelled = queued(&crowd.store, started).await.row.run;
    let labels = [label];
    let what = any(RunKind::Task);
    let look = crowd.store.claimable(&what, &labels, 8);
    let (found, took) = crowd.counted(look).await;
    assert_eq!(found.expect("a list"), [labelled]);
    assert!(took <= 6, "{took} round trips for labels");
    let what = any(RunKind::Task);
    let look = crowd.store.claimable(&what, &[], 1);
    let (found, took) = crowd.counted(look).await;
    assert_eq!(found.expect("a list"), [crowd.queued]);
    assert!(took <= 6, "{took} round trips for the first");
    let what = any(RunKind::Agent);
    let look = crowd.store.claimable(&what, &[], 8);
    let (found, took) = crowd.counted(look).await;
    assert_eq!(found.expect("a list"), []);
    assert!(took <= 6, "{took} round trips for kinds");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_fell_silent_cost_nobody_who_looks_or_joins_on_postgres() {
    let crowd = Crowd::new().await;
    let silent = format!(
        "INSERT INTO {}.owners (id, host, host_name, pid, beat_at, gone, folder)
         SELECT n, 'external:' || n, '', 0, 0, false, '' FROM generate_series(1, 500) n",
        crowd.schema
    );
    admin().await.batch_execute(&silent).await.unwrap();
    crowd.copy(500, "'external'", "copied.id % 500 + 1").await;
    let what = any(RunKind::Task);
    let look = crowd.store.claimable(&what, &[], 8);
    let (found, took) = crowd.counted(look).await;
    assert_eq!(found.expect("a list"), [crowd.queued]);
    assert!(took <= 8, "{took} round trips to look");
    let process = stranger();
    let client = Owner {
        host: format!("{}another", Owner::EXTERNAL),
        ..stranger()
    };
    for (owner, most) in [(process, 12), (client, 8)] {
        let (joined, took) = crowd.counted(crowd.store.join(&owner)).await;
        joined.expect("it joins");
        assert!(took <= most, "{took} round trips to join as {owner}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn children_that_wait_cost_nobody_who_looks_for_forsaken_ones_on_postgres() {
    let crowd = Crowd::new().await;
    crowd.copy(2_000, "kind", "NULL::int8").await;
    let wait = format!(
        "UPDATE {}.runs SET status = 'waiting', relation = 'child', parent = '{queued}'
         WHERE run <> '{queued}'",
        crowd.schema,
        queued = crowd.queued
    );
    admin().await.batch_execute(&wait).await.unwrap();
    let (found, took) = crowd.counted(crowd.store.forsaken(100)).await;
    assert_eq!(found.expect("a list"), []);
    assert!(took <= 3, "{took} round trips");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_goes_on_to_another_run_while_someone_is_at_this_one_on_postgres() {
    let crowd = Crowd::new().await;
    let owner = stranger();
    crowd.store.join(&owner).await.expect("it joins");
    let other = admin().await;
    let sql = format!(
        "SET search_path = {}; BEGIN; SELECT 1 FROM live FOR UPDATE",
        crowd.schema
    );
    other.batch_execute(&sql).await.unwrap();
    let claimed = crowd.store.try_claim(&crowd.queued, owner.id).await;
    assert!(matches!(claimed, Ok(None)), "{claimed:?}");
    other.batch_execute("ROLLBACK").await.unwrap();
    let claimed = crowd.store.try_claim(&crowd.queued, owner.id).await;
    assert!(matches!(claimed, Ok(Some(ClaimOutcome::Claimed(_)))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_gets_no_second_connection_waits_for_the_first_on_postgres() {
    let server = Server::start();
    let admin = admin_of(&server.url()).await;
    let sql =
        "CREATE ROLE crowd LOGIN PASSWORD 'crowd'; GRANT CREATE ON DATABASE postgres TO crowd";
    admin.batch_execute(sql).await.unwrap();
    let url = server.url();
    let (_, place) = url.split_once('@').unwrap();
    let (url, _) = in_schema(&format!("postgres://crowd:crowd@{place}"));
    let locks = TempDir::new().unwrap();
    let store = Arc::new(PostgresStore::open(&url, options(&locks)).await.unwrap());
    let mut pens = Vec::new();
    for _ in 0..40 {
        pens.push(Pen::new(store.clone()).await);
    }
    pens[0].write("first").await.expect("it lands");
    // The database has no more connections for them than they have already.
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'crowd'";
    let open: i64 = admin.query_one(sql, &[]).await.unwrap().get(0);
    let limit = format!("ALTER ROLE crowd CONNECTION LIMIT {open}");
    admin.batch_execute(&limit).await.unwrap();
    let (mut rounds, mut bad) = (0, Vec::new());
    while rounds < 30 {
        rounds += 1;
        let mut writing = tokio::task::JoinSet::new();
        for mut pen in pens.drain(..) {
            writing.spawn(async move {
                let written = pen.write("one of many").await;
                (pen, written)
            });
        }
        for (pen, written) in writing.join_all().await {
            bad.extend(written.err().map(|error| (rounds, error)));
            pens.push(pen);
        }
    }
    // One that is on its way for long, on a busy machine, is not waited for.
    bad.dedup_by_key(|(round, _)| *round);
    assert!(2 * bad.len() < rounds, "{bad:?}");
}
