//! What differs between two runs, on both stores; the pure parts have their own tests beside them.
#![allow(missing_docs, reason = "a test's name is its documentation")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

mod common;

use common::on_both;
use logreel::core::event::Effect;
use logreel::core::{CallId, Payload};
use logreel::diff::{Became, Diff, Trace};
use logreel::*;
use serde_json::{Value, json};

/// A task that does as its input says: `{"steps": {id: value}, "order": [..], "calls": [[name, arguments,
/// result]], "state": .., "facts": [..], "output": ..}`.
fn doing(engine: &Engine) -> Task<Value, Value> {
    engine.task("doing", |ctx: Ctx, what: Value| async move {
        for id in what["order"].as_array().into_iter().flatten() {
            let id = id.as_str().unwrap();
            let value = what["steps"][id].clone();
            let step = ctx.step(id).run(|| {
                let value = value.clone();
                async move {
                    match value.as_str() {
                        Some("fail") => Err(TaskError::new("it broke").permanent()),
                        _ => Ok(value),
                    }
                }
            });
            if let Err(error) = step.await {
                ctx.emit("failed", &error.to_string()).await?;
            }
        }
        for (n, call) in what["calls"].as_array().into_iter().flatten().enumerate() {
            let id = CallId::new(format!("call_{n}_{}", ctx.run_id().short())).unwrap();
            let (name, arguments, result) = (call[0].as_str().unwrap(), &call[1], call[2].clone());
            let made = ctx.tool_call(id, name, Json::from(arguments.clone()));
            let made = made.effect(Effect::Read).run(
                |_| {
                    let (output, blob) = Payload::of(Json::from(result.clone()));
                    let blobs = blob.into_iter().collect();
                    std::future::ready(Ok(Recorded {
                        output,
                        blobs,
                        redacted: 0,
                    }))
                },
                |_| std::future::ready(Ok(Reconciled::Unknown)),
            );
            made.await?;
        }
        for fact in what["facts"].as_array().into_iter().flatten() {
            ctx.emit("fact", fact).await?;
        }
        if !what["state"].is_null() {
            ctx.set_state(&what["state"]).await?;
        }
        Ok(what["output"].clone())
    })
}

async fn diff(engine: &Engine, a: Value, b: Value) -> Diff {
    let task = doing(engine);
    let mut runs = Vec::new();
    for what in [a, b] {
        let run = task.start(&what).await.unwrap();
        run.wait().await.unwrap();
        runs.push(run.id());
    }
    let there = engine.diff(&runs[0], &runs[1]).await.unwrap();
    let back = engine.diff(&runs[1], &runs[0]).await.unwrap();
    assert_eq!(there.equal, back.equal);
    assert_eq!(
        (there.steps.added, there.tool_calls.removed),
        (back.steps.removed, back.tool_calls.added)
    );
    assert_eq!(
        (there.steps.changed, there.tool_calls.moved),
        (back.steps.changed, back.tool_calls.moved)
    );
    there
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_times_and_the_order_of_steps_are_no_differences() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let what = |order: Value| json!({
            "steps": {"one": 1, "two": {"b": 1, "a": [2]}}, "order": order,
            "calls": [["look", {"x": 1, "y": 2}, "seen"]], "facts": [1], "state": {"a": 1}, "output": "done",
        });
        let same = diff(&engine, what(json!(["one", "two"])), what(json!(["one", "two"]))).await;
        assert!(same.equal, "{same:?}");
        assert_eq!(same.divergence, None);
        assert_eq!((same.steps.same, same.tool_calls.same), (2, 1));
        let other = diff(&engine, what(json!(["one", "two"])), what(json!(["two", "one"]))).await;
        assert!(other.steps.is_empty() && other.divergence.is_none(), "{other:?}");
        let pointers: Vec<&str> = other.input.iter().map(|it| it.pointer.as_str()).collect();
        assert_eq!(pointers, ["/order/0", "/order/1"]);
        // A fork that changes nothing comes to the same, and so does a run with itself.
        let fork = engine.fork(&same.a.run, ForkPoint::Before("two".to_owned())).await.unwrap();
        fork.wait().await.unwrap();
        assert!(engine.diff(&same.a.run, &fork.id()).await.unwrap().equal);
        assert!(engine.diff(&fork.id(), &fork.id()).await.unwrap().equal);
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn path_diff_names_the_first_divergence() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let what = |two: Value| json!({"steps": {"one": 1, "two": two, "three": 3}, "order": ["one", "two", "three"]});
        let found = diff(&engine, what(json!(2)), what(json!("fail"))).await;
        assert!(!found.equal);
        assert_eq!((found.steps.same, found.steps.changed), (2, 1));
        let two = &found.steps.items[0];
        assert_eq!((two.id.as_str(), &two.changes[..]), ("two", &[Became::Changed][..]));
        assert_eq!(two.a.as_ref().unwrap().status, "finished");
        assert_eq!(two.b.as_ref().unwrap().error.as_deref(), Some("error: it broke"));
        let parted = found.divergence.unwrap();
        let (a, b) = (parted.a.unwrap(), parted.b.unwrap());
        assert_eq!((a.kind.as_str(), a.what.as_str()), ("step.finished", "two"));
        assert_eq!((b.kind.as_str(), b.what.as_str(), b.seq), ("step.failed", "two", a.seq));
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_diff_aligns_and_says_moved_and_changed() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let calls = |calls: Value| json!({"calls": calls});
        let a = json!([
            ["look", 1, "x"],
            ["send", 2, "y"],
            ["read", 3, "z"],
            ["list", 4, "w"]
        ]);
        // An insertion is no reorder.
        let b = json!([
            ["new", 0, "n"],
            ["look", 1, "x"],
            ["send", 2, "y"],
            ["read", 3, "z"],
            ["list", 4, "w"]
        ]);
        let found = diff(&engine, calls(a.clone()), calls(b)).await.tool_calls;
        assert_eq!(
            (found.same, found.added, found.moved, found.changed),
            (4, 1, 0, 0)
        );
        // The first goes to the end with another result; one has other arguments, one is gone.
        let b = json!([["send", 9, "y"], ["read", 3, "z"], ["look", 1, "other"]]);
        let found = diff(&engine, calls(a), calls(b)).await.tool_calls;
        let told: Vec<(String, Vec<Became>, Vec<&str>)> = found
            .items
            .into_iter()
            .map(|it| (it.name, it.changes, it.what))
            .collect();
        use Became::{Changed, Moved, Removed};
        assert_eq!(
            told,
            [
                ("look".to_owned(), vec![Moved, Changed], vec!["result"]),
                ("send".to_owned(), vec![Changed], vec!["arguments"]),
                ("list".to_owned(), vec![Removed], vec![]),
            ]
        );
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn state_diff_is_by_pointer_and_tells_absent_from_null() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let a = json!({"state": {"a": null, "b": {"c": 1}}, "output": {"n": 1}, "facts": [1, 2]});
        let b = json!({"state": {"b": {"c": null}}, "output": {"n": 2}, "facts": [1, 3]});
        let found = diff(&engine, a, b).await;
        let told: Vec<String> = [&found.state, &found.outcome]
            .into_iter()
            .flatten()
            .map(|it| format!("{} {:?} {} {}", it.pointer, it.change, it.a, it.b))
            .collect();
        assert_eq!(
            told,
            [
                "/a Removed null null",
                "/b/c Changed 1 null",
                "/output/n Changed 1 2"
            ]
        );
        let facts = found.events;
        assert_eq!(
            (facts.same, facts.changed),
            (1, 2),
            "the patch and one fact"
        );
        engine.close().await.unwrap();
    })
    .await;
}

/// Events in, marks out: whatever a store does with them.
#[tokio::test]
async fn a_trace_needs_nothing_but_events() {
    let engine = Engine::memory().await.unwrap();
    let run = doing(&engine)
        .start(&json!({"steps": {"a": 1}, "order": ["a"]}))
        .await
        .unwrap();
    run.wait().await.unwrap();
    let events = engine
        .store()
        .events(&run.id(), Seq::FIRST, 100)
        .await
        .unwrap()
        .items;
    let mut trace = Trace::begin(run.id(), &events[0]).unwrap();
    for event in &events[1..] {
        trace.take(event).unwrap();
    }
    let entry = run.entry().await.unwrap();
    assert_eq!(trace.finish().row, entry.row);
    engine.close().await.unwrap();
}
