//! Engines on a database that many machines share, on the server that `LOGREEL_TEST_POSTGRES` names; each
//! test has a schema of its own.
#![cfg(feature = "postgres")]
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::count;
use logreel::core::Limit;
use logreel::store::SystemEnv;
use logreel::store::postgres::Options;
use logreel::workflow::Workflow;
use logreel::*;
use serde_json::json;

/// A host whose wall clock is wrong by so many seconds.
struct Skewed(i64);

impl Env for Skewed {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(SystemEnv.now().as_micros() + self.0 * 1_000_000)
    }

    fn monotonic(&self) -> Duration {
        SystemEnv.monotonic()
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnv.random(bytes);
    }

    fn sleep(&self, duration: Duration) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        SystemEnv.sleep(duration)
    }
}

/// A workflow waits for so long that its lease is given back, and has a minute in all.
async fn check_timer_and_wall(skew: i64) {
    let server = std::env::var("LOGREEL_TEST_POSTGRES")
        .expect("LOGREEL_TEST_POSTGRES names a database to test on");
    let schema = format!("t{:016x}", SystemEnv.random_u64());
    let and = if server.contains('?') { '&' } else { '?' };
    let url = format!("{server}{and}options=-csearch_path%3D{schema}");
    let (locks, desk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let env: Arc<dyn Env> = Arc::new(Skewed(skew));
    let options = Options {
        create: true,
        locks: Some(locks.path().to_owned()),
        env: Arc::clone(&env),
        ..Options::default()
    };
    let store = PostgresStore::open(&url, options).await.unwrap();
    let builder = Engine::builder().store(Arc::new(store)).env(env);
    let engine = builder.build().await.unwrap();
    let spec = json!({
        "name": "late", "budget": {"wall": "1m"},
        "step": [
            {"id": "nap", "wait": "timer", "for": "6s"},
            {"id": "work", "needs": ["nap"], "run": "echo 1"},
        ],
    });
    let workflow = Workflow::from_json(&spec).unwrap();
    let began = SystemEnv.monotonic();
    let dir = desk.path().to_string_lossy().into_owned();
    let run = engine.workflow(&workflow).start(&()).dir(dir).await;
    let run = run.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), run.wait()).await;
    let took = SystemEnv.monotonic() - began;
    let mut events = Vec::new();
    let mut stream = run.events(Seq::FIRST);
    while ended.is_ok()
        && let Some(event) = stream.next().await
    {
        events.push(event.unwrap());
    }
    let Ok(Ok(Outcome::Completed(_))) = ended else {
        let entry = run.entry().await.unwrap();
        let (epoch, waits) = (entry.epoch, &entry.row.facts.waits);
        panic!("{skew}: {ended:?} in epoch {epoch}, waiting for {waits:?}")
    };
    assert!(took >= Duration::from_secs(6), "{skew}: {took:?}");
    assert_eq!(count(&events, "run.resumed"), 1, "{skew}: it spins");
    let used = run.entry().await.unwrap().row.used().get(Limit::Wall);
    assert!(used < 20_000, "{skew}: {used} ms");
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_and_driven_time_go_by_the_database_however_wrong_a_hosts_clock_is_on_postgres() {
    tokio::join!(check_timer_and_wall(-420), check_timer_and_wall(420));
}
