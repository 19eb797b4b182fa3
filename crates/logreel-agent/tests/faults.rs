//! What goes wrong around the loop: what it needs is away, a model is cut off, someone speaks at the last
//! moment.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/scripted.rs"]
mod scripted;

use std::time::Duration;

use logreel::core::event::{WaitKind, WaitStarted};
use logreel::{Body, Engine, Entry, Json, RunHandle, Seq};
use logreel_agent::AgentSpec;
use scripted::{agents, engine, output, spec, start};
use serde_json::json;

async fn until(engine: &Engine, run: &RunHandle<Json>, holds: impl Fn(&Entry) -> bool) -> Entry {
    let mut doorbell = engine.store().watch(&run.id());
    loop {
        let entry = engine.store().entry(&run.id()).await.unwrap();
        if holds(&entry) {
            return entry;
        }
        // A lease that is given back does not ring.
        tokio::select! {
            _ = doorbell.rung() => {}
            () = engine_sleep() => {}
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock of the test jumps")]
async fn engine_sleep() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

fn waits(entry: &Entry) -> Vec<&WaitStarted> {
    entry
        .row
        .facts
        .waits
        .iter()
        .map(|open| &open.wait)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_away_is_looked_for_and_then_waits_for_a_person() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("away");
    let spec = AgentSpec {
        dir: Some(folder.to_str().unwrap().to_owned()),
        ..spec(&[json!({"text": "done"})])
    };
    let engine = engine(agents([])).await;
    let begun = engine.env().clone();
    let begun = logreel::Env::now(&*begun);
    let run = start(&engine, &spec, "go").await;
    let needs_person = |entry: &Entry| {
        let waits = waits(entry);
        !entry.is_driven() && waits.iter().any(|wait| wait.needs_person())
    };
    let entry = until(&engine, &run, needs_person).await;
    let waiting = waits(&entry);
    assert_eq!((waiting.len(), waiting[0].kind), (1, WaitKind::Retry));
    assert_eq!(waiting[0].name.as_deref(), Some("folder"));
    let why = waiting[0].prompt.as_deref().unwrap();
    assert!(why.contains("working folder"), "{why}");
    assert_eq!(entry.ready_at, None);
    let looked_for = entry.row.updated_at.since(begun);
    let minutes = Duration::from_secs(600)..Duration::from_secs(700);
    assert!(minutes.contains(&looked_for), "{looked_for:?}");
    let events = engine
        .store()
        .events(&run.id(), Seq::FIRST, 1000)
        .await
        .unwrap();
    assert!(events.items.len() < 100, "{}", events.items.len());

    // Resumed while it is still away, it is looked for again.
    engine.resume(&run.id()).await.unwrap();
    let looks = |entry: &Entry| waits(entry).iter().any(|wait| wait.deadline.is_some());
    until(&engine, &run, looks).await;
    std::fs::create_dir(&folder).unwrap();
    assert_eq!(output(&run).await, json!("done"));
}

#[tokio::test(start_paused = true)]
async fn a_person_who_resumes_does_not_wait_for_the_provider() {
    let hour = 3_600_000;
    let limited = json!({"error": {"kind": "rate_limited", "retry_after_ms": hour}});
    let spec = spec(&[limited, json!({"text": "done"})]);
    let engine = engine(agents([])).await;
    let run = start(&engine, &spec, "go").await;
    let waits_for_retry = |entry: &Entry| {
        let waits = waits(entry);
        !entry.is_driven() && waits.iter().any(|wait| wait.kind == WaitKind::Retry)
    };
    let entry = until(&engine, &run, waits_for_retry).await;
    engine.resume(&run.id()).await.unwrap();
    assert_eq!(output(&run).await, json!("done"));
    let ended = engine.store().entry(&run.id()).await.unwrap();
    let took = ended.row.updated_at.since(entry.row.updated_at);
    assert!(took < Duration::from_secs(60), "{took:?}");
    let events = engine
        .store()
        .events(&run.id(), Seq::FIRST, 1000)
        .await
        .unwrap();
    let started = events.items.iter();
    let started = started.filter(|event| matches!(event.body, Body::WaitStarted(_)));
    assert_eq!(started.count(), 1);
}

/// Waits outside of the test's clock, which stands still meanwhile.
async fn really_until(holds: impl Fn() -> bool + Send + 'static) {
    #[expect(
        clippy::disallowed_methods,
        reason = "processes come and go in real time"
    )]
    let looking = move || {
        let begun = std::time::Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never held");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    tokio::task::spawn_blocking(looking).await.unwrap();
}

#[cfg(feature = "mcp")]
#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_stopped_and_leaves_no_process() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("pid");
    let hangs = "trap '' TERM; echo $$ > pid.new; mv pid.new pid; while :; do sleep 1; done";
    let spec = AgentSpec {
        dir: Some(home.path().to_str().unwrap().to_owned()),
        tools: vec!["hung.*".to_owned()],
        mcp: serde_json::from_value(json!({"hung": {"command": ["sh", "-c", hangs]}})).unwrap(),
        ..spec(&[json!({"text": "done"})])
    };
    let engine = engine(agents([])).await;
    let run = start(&engine, &spec, "go").await;
    let is_there = file.clone();
    really_until(move || is_there.exists()).await;
    let pid = std::fs::read_to_string(&file).unwrap();
    let entry = until(&engine, &run, |entry| !waits(entry).is_empty()).await;
    let why = waits(&entry)[0].prompt.clone().unwrap();
    assert!(why.contains("`hung`") && why.contains("120s"), "{why}");
    engine.cancel(&run.id(), "enough").await.unwrap();
    let is_gone = move || !std::path::Path::new(&format!("/proc/{}", pid.trim())).exists();
    really_until(is_gone).await;
}
