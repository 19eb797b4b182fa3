//! A retried run as people meet it: its log is its own and its parent's, and both are checked.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers of tests may panic, as tests do; not all are used here"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Clock, Fixture, Ran, run_id, runtime};
use logreel::{Ctx, TaskError};
use serde_json::Value;

/// Run 1 fails at its second step; run 2 is its retry.
fn retried() -> Fixture {
    let fixture = Fixture::empty();
    runtime().block_on(async {
        let clock = Clock::new();
        let engine = fixture.engine(Arc::clone(&clock)).await;
        let broken = Arc::new(AtomicBool::new(true));
        let is_broken = Arc::clone(&broken);
        let task = engine.task("twice", move |ctx: Ctx, n: u32| {
            let broken = Arc::clone(&is_broken);
            async move {
                let one = ctx.step("one").run(|| async { Ok::<_, TaskError>(n + 1) });
                let one = one.await?;
                let two = ctx.step("two").run(|| async {
                    match broken.load(Ordering::SeqCst) {
                        true => Err(TaskError::new("no route").permanent()),
                        false => Ok(one + 1),
                    }
                });
                two.await
            }
        });
        let failed = task.start(&5).id(run_id(1)).await.unwrap();
        failed.wait().await.unwrap();
        clock.advance(60_000);
        broken.store(false, Ordering::SeqCst);
        let retry = engine.retry(&failed.id()).from("one").id(run_id(2));
        retry.await.unwrap().wait().await.unwrap();
        engine.close().await.unwrap();
    });
    fixture
}

fn ok(fixture: &Fixture, args: &[&str]) -> String {
    let Ran { code, out, err } = fixture.run(args);
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
    out
}

#[test]
fn a_retry_is_shown_with_what_it_shares_and_verified_across_the_boundary() {
    let fixture = retried();
    let (parent, run) = (run_id(1).to_string(), run_id(2).to_string());

    let lines: Vec<Value> = ok(&fixture, &["log", "00000002", "--json"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let forked = lines.iter().position(|line| line["kind"] == "run.forked");
    let forked = forked.unwrap();
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line["run"], run.as_str());
        assert_eq!(line["seq"], index + 1);
        let origin = if index < forked {
            Value::from(parent.as_str())
        } else {
            Value::Null
        };
        assert_eq!(line["origin"], origin, "{line}");
        assert!(line["body_digest"].is_string());
    }
    let own: Vec<Value> = ok(&fixture, &["log", "00000001", "--json"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (shared, own) in lines[..forked].iter().zip(&own) {
        for field in ["seq", "at", "kind", "body", "body_digest", "digest"] {
            assert_eq!(shared[field], own[field]);
        }
    }

    let text = ok(&fixture, &["log", "00000002"]);
    assert!(text.contains(&format!("shared with {parent}")), "{text}");
    assert!(text.contains("again: one"), "{text}");
    let show = ok(&fixture, &["show", "00000002"]);
    assert!(
        show.contains(&format!("{parent} (retry at event")),
        "{show}"
    );
    assert!(show.contains("-1m"), "before it began: {show}");
    let show: Value = serde_json::from_str(&ok(&fixture, &["show", "00000002", "--json"])).unwrap();
    assert_eq!(show["parent"]["relation"], "retry");
    assert_eq!(show["event_count"], lines.len());
    assert_eq!(show["steps"].as_array().unwrap().len(), 2);
    assert_eq!(show["output"], 7);

    let verified = fixture.run(&["verify"]);
    assert_eq!((verified.code, verified.err.as_str()), (0, "2 runs hold\n"));
    // Something in what is shared is changed: neither run holds, and the event is named.
    let conn = rusqlite::Connection::open(&fixture.store).unwrap();
    let sql = "UPDATE events SET body = replace(body, 'twice', 'thrice') WHERE seq = 1";
    assert_eq!(conn.execute(sql, []).unwrap(), 1);
    for run in ["00000001", "00000002"] {
        let ran = fixture.run(&["verify", run]);
        assert_eq!(ran.code, 1, "{}", ran.out);
        assert!(ran.out.contains("event 1: "), "{}", ran.out);
    }
}
