//! The rules of workflows, by name, with real commands, on memory and on SQLite.
#![allow(
    clippy::unwrap_used,
    reason = "a test may unwrap, and so may what it shares"
)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::desk::{Desk, completed, parse};
use common::{World, count, on_both, until, until_entry};
use logreel::core::event::WaitKind;
use logreel::{Answer, Ctx, Engine, Event, Json, Outcome, RunHandle, RunId, Status, TaskError};
use serde_json::{Value, json};

async fn start(engine: &Engine, desk: &Desk, text: &str, input: Value) -> RunHandle<Json> {
    common::desk::start(engine, desk.path(), text, input).await
}

/// Runs a workflow that completes.
async fn output(engine: &Engine, desk: &Desk, text: &str, input: Value) -> Value {
    completed(&start(engine, desk, text, input).await).await
}

/// Runs a workflow that fails; gives the kind of the cause, the step and the log.
async fn failure(world: &World, desk: &Desk, text: &str) -> (String, Option<String>, Vec<Event>) {
    let engine = world.engine().await;
    let run = start(&engine, desk, text, Value::Null).await;
    let cause = match run.wait().await.unwrap() {
        Outcome::Failed(cause) => cause,
        other => panic!("{other:?}"),
    };
    engine.close().await.unwrap();
    let (_, events) = world.reopened(run.id()).await;
    (cause.kind, cause.step.map(|step| step.to_string()), events)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_is_one_expression_keeps_its_type_and_a_command_gets_data_as_stdin_or_env()
{
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let text = r#"
            name = "types"
            [[step]]
            id = "list"
            run = "cat"
            input = "{{ input.numbers }}"
            [[step]]
            id = "text"
            needs = ["list"]
            run = 'printf %s "$WORD"'
            env = { WORD = "{{ steps.list.output | length }} of {{ input.word }}" }
            [[step]]
            id = "last"
            needs = ["text"]
            run = "cat"
            input = { list = "{{ steps.list.output }}", text = "<{{ steps.text.output }}>", run = "{{ run.id }}" }
        "#;
        let input = json!({"numbers": [1, 2.5, 9007199254740993_u64], "word": "$(rm -rf /)"});
        let run = start(&engine, &desk, text, input).await;
        let Outcome::Completed(output) = run.wait().await.unwrap() else { panic!() };
        let expected = json!({
            "list": [1, 2.5, 9007199254740993_u64],
            "text": "<3 of $(rm -rf /)>",
            "run": run.id().to_string(),
        });
        assert_eq!(output.to_value(), expected);
        engine.close().await.unwrap();
        world.reopened(run.id()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_complete_as_a_set_keyed_by_id_and_a_resume_runs_the_rest() {
    on_both(|world| async move {
        let desk = Desk::new();
        // `c` fails until the file `go` is there; its two siblings finish whatever happens to it.
        let text = r#"
            name = "set"
            [[step]]
            id = "c"
            run = 'echo c >> ran; echo up; while [ ! -e go ]; do sleep 0.01; done; echo 3 >&2'
            [[step]]
            id = "b"
            run = "echo b >> ran; echo 2"
            [[step]]
            id = "a"
            run = "echo a >> ran; echo 1"
            [[step]]
            id = "sum"
            needs = ["a", "b", "c"]
            run = "cat"
            input = "{{ [steps.a.output, steps.b.output, steps.c.output] }}"
        "#;
        let engine = world.engine().await;
        let mut lines = engine.live();
        let run = start(&engine, &desk, text, Value::Null).await;
        while &*lines.next().await.unwrap().text != "up" {}
        let mut finished = engine.run(run.id()).events(logreel::Seq::FIRST);
        for _ in 0..2 {
            while finished.next().await.unwrap().unwrap().body.kind() != "step.finished" {}
        }
        // The process hands its runs back: `c` is stopped and runs again elsewhere.
        engine.close().await.unwrap();
        assert_eq!(
            desk.lines("ran").iter().filter(|line| *line != "c").count(),
            2
        );
        std::fs::write(desk.path().join("go"), "").unwrap();
        let engine = world.builder().any_workflow().build().await.unwrap();
        engine.resume(&run.id()).await.unwrap();
        let outcome = engine.run(run.id()).wait().await.unwrap();
        let Outcome::Completed(output) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(output.to_value(), json!([1, 2, "up"]));
        let mut ran = desk.lines("ran");
        ran.sort();
        assert_eq!(ran, ["a", "b", "c", "c"]);
        engine.close().await.unwrap();
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "step.finished"), 4);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_of_a_map_come_back_in_input_order_and_items_are_known_by_key() {
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let text = r#"
            name = "map"
            output = { twice = "{{ steps.twice.output }}", named = "{{ steps.named.output }}", none = "{{ steps.none.output }}" }
            [[step]]
            id = "twice"
            map = "{{ input }}"
            concurrency = 2
            run = 'read n; echo "$n" >> ran; echo $((n * 2))'
            input = "{{ item }}"
            [[step]]
            id = "named"
            map = "{{ input[:2] }}"
            map_key = "n{{ item }}"
            run = "cat"
            input = "{{ index }}:{{ item }}"
            [[step]]
            id = "none"
            map = []
            concurrency = 0
            run = "false"
        "#;
        let run = start(&engine, &desk, text, json!([3, 1, 3, 2])).await;
        let Outcome::Completed(output) = run.wait().await.unwrap() else { panic!() };
        let expected = json!({"twice": [6, 2, 6, 4], "named": ["0:3", "1:1"], "none": []});
        assert_eq!(output.to_value(), expected);
        assert_eq!(desk.lines("ran").len(), 4);
        engine.close().await.unwrap();
        let (_, events) = world.reopened(run.id()).await;
        let ids = events.iter().filter_map(|event| match &event.body {
            logreel::Body::StepFinished(finished) => Some(finished.step.to_string()),
            _ => None,
        });
        let ids: Vec<String> = ids.collect();
        let key = &logreel::core::meaning::digest_of(&3).unwrap().hex()[..16];
        assert!(ids.contains(&format!("twice[{key}]")), "{ids:?}");
        assert!(ids.contains(&format!("twice[{key}.2]")), "{ids:?}");
        assert!(ids.contains(&"named[n3]".to_owned()), "{ids:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explicit_map_key_that_comes_twice_fails_the_map_before_its_first_item() {
    on_both(|world| async move {
        let desk = Desk::new();
        let text = r#"
            name = "twice"
            [[step]]
            id = "m"
            map = ["a", "b", "a"]
            map_key = "{{ item }}"
            run = "echo x >> ran"
        "#;
        let (kind, step, _) = failure(&world, &desk, text).await;
        assert_eq!((kind.as_str(), step.as_deref()), ("map_key", Some("m")));
        assert!(desk.lines("ran").is_empty());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_step_fails_the_run_once_what_was_under_way_has_ended() {
    on_both(|world| async move {
        let desk = Desk::new();
        // `slow` ends only after `bad` has failed; `after` never begins; the wait is given up.
        let text = r#"
            name = "fails"
            [[step]]
            id = "slow"
            run = 'while [ ! -e failed ]; do sleep 0.01; done; echo done'
            [[step]]
            id = "ask"
            wait = "approval"
            [[step]]
            id = "bad"
            run = "echo why >&2; exit 3"
            [[step]]
            id = "after"
            needs = ["slow"]
            run = "echo after >> ran"
        "#;
        let engine = world.engine().await;
        let run = start(&engine, &desk, text, Value::Null).await;
        until(&engine, run.id(), "step.failed").await;
        std::fs::write(desk.path().join("failed"), "").unwrap();
        let Outcome::Failed(cause) = run.wait().await.unwrap() else {
            panic!()
        };
        assert_eq!(cause.kind, "exit");
        assert_eq!(cause.exit_code, Some(3));
        assert_eq!(cause.step.unwrap().to_string(), "bad");
        assert!(cause.message.contains("why"), "{}", cause.message);
        engine.close().await.unwrap();
        let (_, events) = world.reopened(run.id()).await;
        assert!(desk.lines("ran").is_empty());
        assert_eq!(count(&events, "step.finished"), 1);
        // Nothing waits after the end, and what failed says when.
        assert_eq!(
            shown(run.id(), &events),
            ["slow finished true", "ask skipped false", "bad failed true"]
        );
    })
    .await;
}

/// The steps as they are shown: id, status, and whether they say when they finished.
fn shown(run: RunId, events: &[Event]) -> Vec<String> {
    let state = logreel::core::replay(run, events).unwrap().unwrap();
    let mut view = logreel::view::StepsView::new(&std::sync::Arc::new(state));
    let mut steps: Vec<_> = events.iter().filter_map(|event| view.next(event)).collect();
    steps.extend(view.open());
    let line = |step: &logreel::view::StepView| {
        let (id, status) = (&step.id, step.status);
        format!("{id} {status} {}", step.finished_at.is_some())
    };
    steps.iter().map(line).collect()
}

/// What a cancel interrupted did not run on: a write may have happened, the rest did not finish.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_cancel_no_step_is_shown_as_running() {
    on_both(|world| async move {
        let desk = Desk::new();
        let text = r#"
            name = "cancelled"
            [[step]]
            id = "look"
            run = "echo look >> began; exec sleep 60"
            [[step]]
            id = "pay"
            effect = "write"
            run = "echo pay >> began; exec sleep 60"
        "#;
        let engine = world.engine().await;
        let run = start(&engine, &desk, text, Value::Null).await;
        while desk.lines("began").len() < 2 {
            tokio::task::yield_now().await;
        }
        until(&engine, run.id(), "step.started").await;
        run.cancel("enough").await.unwrap();
        engine.close().await.unwrap();
        let (_, events) = world.reopened(run.id()).await;
        let shown = shown(run.id(), &events);
        assert!(
            shown
                .iter()
                .all(|step| step == "pay in_doubt false" || step == "look failed true"),
            "{shown:?}"
        );
        assert!(
            shown.contains(&"pay in_doubt false".to_owned()),
            "{shown:?}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_may_fail_gives_null_and_templates_see_how_it_ended() {
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let text = r#"
            name = "continues"
            output = { how = "{{ steps.bad.status }} {{ steps.bad.exit_code }}", items = "{{ steps.items.output }}", skipped = "{{ steps.never.status }}", ran = "{{ steps.after.output }}" }
            [[step]]
            id = "bad"
            run = "exit 7"
            on_error = "continue"
            [[step]]
            id = "items"
            map = [1, 2, 3]
            run = 'read n; [ "$n" != 2 ] && echo "$n"'
            input = "{{ item }}"
            on_error = "continue"
            [[step]]
            id = "never"
            needs = ["bad"]
            when = "{{ steps.bad.status == 'finished' }}"
            run = "echo never >> ran"
            [[step]]
            id = "after"
            needs = ["never"]
            run = "echo yes"
        "#;
        let output = output(&engine, &desk, text, Value::Null).await;
        let expected = json!({
            "how": "failed 7", "items": [1, null, 3], "skipped": "skipped", "ran": "yes",
        });
        assert_eq!(output, expected);
        assert!(desk.lines("ran").is_empty());
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn success_is_journalled_and_failure_is_retried() {
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let text = r#"
            name = "retries"
            [[step]]
            id = "flaky"
            run = 'echo x >> tries; [ "$(wc -l < tries)" -ge 3 ] && echo ok'
            retry = { attempts = 5, backoff = "1ms..2ms" }
            [[step]]
            id = "pay"
            needs = ["flaky"]
            effect = "write"
            run = 'echo "$LOGREEL_KEY" >> paid; [ "$(wc -l < paid)" -ge 2 ] && echo paid'
            retry = { attempts = 2, backoff = "1ms..1ms" }
        "#;
        let run = start(&engine, &desk, text, Value::Null).await;
        let Outcome::Completed(output) = run.wait().await.unwrap() else {
            panic!()
        };
        assert_eq!(output.to_value(), json!("paid"));
        assert_eq!(desk.lines("tries").len(), 3);
        let paid = desk.lines("paid");
        assert_eq!((paid.len(), &paid[0]), (2, &paid[1]), "the same key again");
        engine.close().await.unwrap();
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "step.retrying"), 3);
        assert_eq!(count(&events, "step.failed"), 3);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_gives_its_answer_and_a_no_fails_unless_it_may_go_on() {
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let text = |on_deny: &str| {
            format!(
                r#"
                name = "asks"
                [[step]]
                id = "count"
                run = "echo 3"
                [[step]]
                id = "ask"
                needs = ["count"]
                wait = "approval"
                prompt = "Publish {{{{ steps.count.output }}}}?"
                on_deny = "{on_deny}"
                "#
            )
        };
        for (on_deny, approve) in [("fail", true), ("fail", false), ("continue", false)] {
            let run = start(&engine, &desk, &text(on_deny), Value::Null).await;
            let entry = until_entry(&engine, run.id(), |entry| {
                entry.row.status() == Status::Waiting && entry.driver.is_none()
            })
            .await;
            let wait = &entry.row.facts.waits[0].wait;
            assert_eq!(wait.kind, WaitKind::Approval);
            assert_eq!(wait.prompt.as_deref(), Some("Publish 3?"));
            let answer = if approve {
                Answer::approve()
            } else {
                Answer::deny()
            };
            let answer = answer.with(Json::from(json!({"n": 1}))).by("ada");
            engine.answer(&run.id(), answer).await.unwrap();
            let expected = json!({"approved": approve, "by": "ada", "value": {"n": 1}});
            match run.wait().await.unwrap() {
                Outcome::Completed(output) => assert_eq!(output.to_value(), expected),
                Outcome::Failed(cause) => {
                    assert!(!approve && on_deny == "fail");
                    assert_eq!(cause.kind, "denied");
                }
                other => panic!("{other:?}"),
            }
        }
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_and_a_timer_are_waited_for() {
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let text = r#"
            name = "waits"
            [[step]]
            id = "nap"
            wait = "timer"
            for = "10ms"
            [[step]]
            id = "past"
            wait = "timer"
            until = "2020-01-01T00:00:00Z"
            [[step]]
            id = "word"
            needs = ["nap", "past"]
            wait = "signal"
            name = "go"
        "#;
        let run = start(&engine, &desk, text, Value::Null).await;
        until(&engine, run.id(), "wait.started").await;
        // A yes is no signal.
        let yes = engine.answer(&run.id(), Answer::approve()).await;
        assert!(yes.is_err(), "{yes:?}");
        engine
            .signal(&run.id(), "go", &json!({"ready": true}))
            .await
            .unwrap();
        let Outcome::Completed(output) = run.wait().await.unwrap() else {
            panic!()
        };
        assert_eq!(output.to_value(), json!({"ready": true}));
        engine.close().await.unwrap();
        world.reopened(run.id()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconcile_is_asked_about_a_write_that_took_too_long() {
    on_both(|world| async move {
        let desk = Desk::new();
        // `reconcile` waits one lease after the timeout.
        let lease = std::time::Duration::from_millis(500);
        let engine = world.builder().lease(lease).build().await.unwrap();
        let text = r#"
            name = "slow"
            [[step]]
            id = "pay"
            effect = "write"
            timeout = "200ms"
            run = 'echo "$LOGREEL_KEY" >> paid; sleep 1000'
            reconcile = 'grep -q "$LOGREEL_KEY" paid && echo found'
        "#;
        assert_eq!(
            output(&engine, &desk, text, Value::Null).await,
            json!("found")
        );
        assert_eq!(desk.lines("paid").len(), 1);
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconcile_is_asked_after_every_attempt_and_attempts_are_counted() {
    on_both(|world| async move {
        let desk = Desk::new();
        let lease = std::time::Duration::from_millis(200);
        let engine = world.builder().lease(lease).build().await.unwrap();
        let text = r#"
            name = "slow"
            [[step]]
            id = "pay"
            effect = "write"
            timeout = "100ms"
            retry = { attempts = 2 }
            run = 'echo x >> tried; sleep 1000'
            reconcile = 'echo x >> asked; exit 10'
        "#;
        let run = start(&engine, &desk, text, Value::Null).await;
        let Outcome::Failed(cause) = run.wait().await.unwrap() else {
            panic!("it surely was not done")
        };
        assert!(
            cause
                .message
                .contains("`reconcile` says that it was not done"),
            "{}",
            cause.message
        );
        assert_eq!(
            (desk.lines("tried").len(), desk.lines("asked").len()),
            (2, 2)
        );
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_is_what_the_step_printed_to_the_last_digit() {
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let one = r#"{"n":12345678901234567890123,"e":12345e6}"#;
        let text = format!("name = 'one'\n[[step]]\nid = 'a'\nrun = '''echo '{one}' '''");
        let two = format!("{text}\n[[step]]\nid = 'b'\nrun = 'echo 1e2'");
        let both = format!(r#"{{"a":{one},"b":1e2}}"#);
        for (text, expected) in [(&text, one), (&two, &both)] {
            let run = start(&engine, &desk, text, Value::Null).await;
            let Outcome::Completed(output) = run.wait().await.unwrap() else {
                panic!()
            };
            assert_eq!(output.text(), expected);
        }
        engine.close().await.unwrap();
    })
    .await;
}

const PARENT: &str = r#"
    name = "parent"
    [[step]]
    id = "each"
    map = [1, 2]
    map_key = "{{ item }}"
    input = { n = "{{ item }}" }
    [step.workflow]
    name = "child"
    [[step.workflow.step]]
    id = "work"
    run = "cat"
    input = "{{ input.n * 10 }}"
    [[step]]
    id = "sum"
    needs = ["each"]
    run = "cat"
    input = "{{ steps.each.output }}"
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_workflow_is_a_run_of_its_own_whose_output_is_the_steps() {
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let run = start(&engine, &desk, PARENT, Value::Null).await;
        let Outcome::Completed(output) = run.wait().await.unwrap() else {
            panic!()
        };
        assert_eq!(output.to_value(), json!([10, 20]));
        engine.close().await.unwrap();
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "child.started"), 2);
        assert_eq!(count(&events, "child.finished"), 2);
        for event in &events {
            let logreel::Body::ChildStarted(started) = &event.body else {
                continue;
            };
            let (child, _) = world.reopened(started.child).await;
            assert_eq!(child.row.status(), Status::Completed);
            let parent = child.row.facts.parent.as_ref().unwrap();
            assert_eq!((parent.run, parent.seq), (run.id(), event.seq));
            assert_eq!(child.row.facts.session, None);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_one_slot_drives_a_parent_and_its_children() {
    on_both(|world| async move {
        let (desk, engine) = (
            Desk::new(),
            world.builder().any_workflow().build().await.unwrap(),
        );
        let dir = desk.path().to_string_lossy().into_owned();
        let queued = engine
            .workflow(&parse(PARENT))
            .start(&Value::Null)
            .dir(dir)
            .queue();
        let run = queued.await.unwrap();
        let worker = engine.clone();
        let working = tokio::spawn(async move { worker.work(1).await });
        let Outcome::Completed(output) = run.wait().await.unwrap() else {
            panic!()
        };
        assert_eq!(output.to_value(), json!([10, 20]));
        engine.close().await.unwrap();
        working.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_for_a_label_drives_runs_that_carry_it_with_their_children_and_no_others() {
    on_both(|world| async move {
        let (desk, engine) = (
            Desk::new(),
            world.builder().any_workflow().build().await.unwrap(),
        );
        let dir = desk.path().to_string_lossy().into_owned();
        let parents = engine.workflow(&parse(PARENT));
        let queue = |labels: &[(&str, &str)]| {
            let start = parents.start(&Value::Null).dir(dir.clone());
            let start = labels.iter().fold(start, |it, (k, v)| it.label(*k, *v));
            start.queue()
        };
        let other = queue(&[("pool", "cpu")]).await.unwrap();
        let ours = queue(&[("pool", "gpu"), ("team", "a")]).await.unwrap();
        let worker = engine.clone();
        let gpu = [("pool".to_owned(), "gpu".to_owned())];
        let working = tokio::spawn(async move { worker.work_on(&gpu, 1).await });
        let Outcome::Completed(output) = ours.wait().await.unwrap() else {
            panic!()
        };
        assert_eq!(output.to_value(), json!([10, 20]));
        engine.close().await.unwrap();
        working.await.unwrap().unwrap();
        let (left, _) = world.reopened(other.id()).await;
        assert_eq!(left.row.status(), Status::Created, "nobody took it");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_child_fails_its_step_and_is_retried_as_a_new_run() {
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let text = r#"
            name = "parent"
            [[step]]
            id = "child"
            retry = { attempts = 3, backoff = "1ms..1ms" }
            [step.workflow]
            name = "child"
            [[step.workflow.step]]
            id = "work"
            run = 'echo x >> tries; [ "$(wc -l < tries)" -ge 2 ] && echo ok'
        "#;
        let run = start(&engine, &desk, text, Value::Null).await;
        let Outcome::Completed(output) = run.wait().await.unwrap() else {
            panic!()
        };
        assert_eq!(output.to_value(), json!("ok"));
        engine.close().await.unwrap();
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "child.started"), 2);
        assert_eq!(count(&events, "step.failed"), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_reaches_every_descendant_and_their_processes() {
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let text = r#"
            name = "top"
            [[step]]
            id = "middle"
            [step.workflow]
            name = "middle"
            [[step.workflow.step]]
            id = "bottom"
            [step.workflow.step.workflow]
            name = "bottom"
            [[step.workflow.step.workflow.step]]
            id = "sleep"
            run = 'echo $$; sleep 1000'
        "#;
        let mut lines = engine.live();
        let run = start(&engine, &desk, text, Value::Null).await;
        let pid = lines.next().await.unwrap().text;
        run.cancel("enough").await.unwrap();
        assert!(matches!(run.wait().await.unwrap(), Outcome::Cancelled(_)));
        // Closing waits until the drivers have stopped what they started.
        engine.close().await.unwrap();
        assert!(
            !Path::new(&format!("/proc/{pid}")).exists(),
            "process {pid} is left"
        );
        let runs = world.engine().await.runs().newest(10).await.unwrap();
        assert_eq!(runs.len(), 3);
        assert!(
            runs.iter()
                .all(|entry| entry.row.status() == Status::Cancelled)
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_that_misses_its_schema_fails_the_step_and_input_is_refused_before_anything_runs() {
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let text = r#"
            name = "schemas"
            input_schema = { type = "object", required = ["n"] }
            [[step]]
            id = "list"
            run = 'echo "{}"'
            output_schema = { type = "array" }
        "#;
        let refused = engine
            .workflow(&parse(text))
            .start(&json!({"m": 1}))
            .await
            .unwrap_err();
        assert_eq!(refused.kind().as_str(), "invalid");
        assert!(engine.runs().newest(1).await.unwrap().is_empty());
        let run = start(&engine, &desk, text, json!({"n": 1})).await;
        let Outcome::Failed(cause) = run.wait().await.unwrap() else {
            panic!()
        };
        assert_eq!(cause.kind, "schema");
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_step_is_a_step_of_the_run_and_its_own_steps_are_inside_it() {
    on_both(|world| async move {
        let (engine, desk) = (world.engine().await, Desk::new());
        let tries = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counted = Arc::clone(&tries);
        engine.task("double", move |ctx: Ctx, n: u64| {
            let tries = Arc::clone(&counted);
            async move {
                let inner = || async { Ok::<_, TaskError>(n * 2) };
                let twice = ctx.step("inner").run(inner).await?;
                // The second attempt finds the inner step finished.
                match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                    0 => Err(TaskError::new("not yet")),
                    _ => Ok(twice),
                }
            }
        });
        let text = r#"
            name = "tasks"
            [[step]]
            id = "d"
            task = "double"
            input = "{{ input }}"
            retry = { attempts = 2, backoff = "1ms..1ms" }
        "#;
        let run = start(&engine, &desk, text, json!(21)).await;
        let Outcome::Completed(output) = run.wait().await.unwrap() else {
            panic!()
        };
        assert_eq!(output.to_value(), json!(42));
        engine.close().await.unwrap();
        let (_, events) = world.reopened(run.id()).await;
        let finished = events.iter().filter_map(|event| match &event.body {
            logreel::Body::StepFinished(finished) => Some(finished.step.to_string()),
            _ => None,
        });
        assert_eq!(finished.collect::<Vec<_>>(), ["d/inner", "d"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_this_process_lacks_is_named_and_a_worker_leaves_the_run_alone() {
    on_both(|world| async move {
        let (engine, desk) = (
            world.builder().any_workflow().build().await.unwrap(),
            Desk::new(),
        );
        let lacking = r#"
            name = "lacking"
            [[step]]
            id = "a"
            run = "true"
            env = { TOKEN = "${LOGREEL_TEST_SURELY_UNSET}" }
        "#;
        let refused = engine
            .workflow(&parse(lacking))
            .start(&Value::Null)
            .await
            .unwrap_err();
        assert!(
            refused.to_string().contains("LOGREEL_TEST_SURELY_UNSET"),
            "{refused}"
        );
        let unbuilt = "name='s'\n[[step]]\nid='a'\nrun='true'\nstream='claude-code'";
        let refused = engine.workflow(&parse(unbuilt)).start(&Value::Null);
        let refused = refused.await.unwrap_err().to_string();
        assert!(
            refused.contains("nobody here understands `stream`"),
            "{refused}"
        );
        let text = r#"
            name = "task"
            [[step]]
            id = "a"
            task = "elsewhere"
        "#;
        // Another process that has the task queues the run.
        let other = world.engine().await;
        other.task("elsewhere", |_: Ctx, (): ()| async { Ok(()) });
        let queued = other
            .workflow(&parse(text))
            .start(&Value::Null)
            .queue()
            .await
            .unwrap();
        let worker = engine.clone();
        let working = tokio::spawn(async move { worker.work(2).await });
        // It drives what it can, though the other run is older.
        let can = start(
            &other,
            &desk,
            "name='can'\n[[step]]\nid='a'\nrun='echo 1'",
            Value::Null,
        );
        let can = can.await;
        assert!(matches!(can.wait().await.unwrap(), Outcome::Completed(_)));
        let entry = queued.entry().await.unwrap();
        assert_eq!((entry.row.status(), entry.epoch.0), (Status::Created, 0));
        engine.close().await.unwrap();
        working.await.unwrap().unwrap();
        other.close().await.unwrap();
    })
    .await;
}
