//! The loop, against scripted models and tools: what is asked, called and recorded, undisturbed and
//! crashed at every append.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use logreel::core::event::Effect;
use logreel::testing::{PointEnd, crash_everywhere_on};
use logreel::{Answer, Body, Engine, ForkPoint, Json, RunHandle, Seq, Status};
use logreel_agent::testing::ScriptedTool;
use logreel_agent::{AgentSpec, ToolError};
use serde_json::{Value, json};

#[path = "common/scripted.rs"]
mod scripted;

use scripted::{agents, call, engine, failure, kinds, look, output, spec, start, until_waiting};

#[tokio::test(start_paused = true)]
async fn a_turn_is_context_model_tools_results() {
    let spec = spec(&[
        json!({"tool_calls": [call("look", json!({"what": 1})), call("look", json!({"what": 2}))]}),
        json!({"text": "done", "expect": "seen 2"}),
    ]);
    let engine = engine(agents([look()])).await;
    let run = start(&engine, &spec, "go").await;
    assert_eq!(output(&run).await, json!("done"));
    insta::assert_snapshot!(kinds(&engine, &run).await.join("\n"), @r"
    run.started
    phase.entered
    message.added
    turn.started
    model.called
    model.answered
    message.added
    tool.called
    tool.returned
    tool.called
    tool.returned
    message.added
    turn.finished
    turn.started
    model.called
    model.answered
    message.added
    turn.finished
    run.completed
    ");
}

#[tokio::test(start_paused = true)]
async fn a_model_that_misbehaves_is_told_and_goes_on() {
    let failing = ScriptedTool::new("send", Effect::Read, |_| Err(ToolError::failed("no paper")));
    let strict = look().schema(json!({"type": "object", "required": ["what"]}));
    let spec = spec(&[
        json!({"error": {"kind": "rate_limited", "retry_after_ms": 10}}),
        json!({"error": {"kind": "unavailable"}}),
        json!({"text": ""}),
        json!({"tool_calls": [
            call("look", json!({})), call("nothing", json!({})), call("send", json!({})),
        ]}),
        json!({"text": "done", "expect": {"last": ["required", "there is no tool `nothing`", "no paper"]}}),
    ]);
    let engine = engine(agents([strict, failing])).await;
    let run = start(&engine, &spec, "go").await;
    assert_eq!(output(&run).await, json!("done"));
}

#[tokio::test(start_paused = true)]
async fn what_never_ends_is_ended_by_name() {
    let lines: Vec<Value> = (0..20)
        .map(|n| json!({"tool_calls": [call("look", json!({"what": n}))]}))
        .collect();
    let engine = engine(agents([look()])).await;
    let endless = AgentSpec {
        max_turns: Some(3),
        ..spec(&lines)
    };
    let run = start(&engine, &endless, "go").await;
    assert_eq!(failure(&run).await.kind, "max_turns");

    let same: Vec<Value> = (0..20)
        .map(|_| json!({"tool_calls": [call("look", json!({"what": 1}))]}))
        .collect();
    let run = start(&engine, &spec(&same), "go").await;
    assert_eq!(failure(&run).await.kind, "loop");

    let by_turns: Vec<Value> = (0..30)
        .map(|n| json!({"tool_calls": [call("look", json!({"what": n % 2}))]}))
        .collect();
    let run = start(&engine, &spec(&by_turns), "go").await;
    let cause = failure(&run).await;
    assert_eq!(cause.kind, "loop");
    assert!(
        cause.message.contains("2 calls by turns"),
        "{}",
        cause.message
    );
    let called = kinds(&engine, &run).await;
    assert_eq!(called.iter().filter(|it| *it == "tool.called").count(), 16);

    let run = start(&engine, &spec(&[]), "go").await;
    let cause = failure(&run).await;
    assert!(cause.message.contains("call 1"), "{}", cause.message);

    let auth = json!({"error": {"kind": "auth", "message": "no key"}});
    let run = start(&engine, &spec(&[auth]), "go").await;
    assert_eq!(failure(&run).await.kind, "auth");

    let down = json!({"error": {"kind": "unavailable", "message": "down"}});
    let run = start(&engine, &spec(&vec![down; 20]), "go").await;
    assert_eq!(failure(&run).await.kind, "model_unavailable");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_misses_its_schema_is_repaired_once() {
    let schema = json!({"type": "object", "required": ["n"]});
    let with = |lines: &[Value]| AgentSpec {
        output_schema: Some(schema.clone()),
        ..spec(lines)
    };
    let engine = engine(agents([])).await;
    let good = with(&[
        json!({"text": "no"}),
        json!({"text": "{\"n\": 1}", "expect": "not JSON"}),
    ]);
    let run = start(&engine, &good, "go").await;
    assert_eq!(output(&run).await, json!({"n": 1}));
    let bad = with(&[json!({"text": "{}"}), json!({"text": "{}"})]);
    let run = start(&engine, &bad, "go").await;
    assert_eq!(failure(&run).await.kind, "schema");
}

#[tokio::test(start_paused = true)]
async fn an_approval_given_before_a_crash_still_holds_after_it() {
    let send = ScriptedTool::new("send", Effect::Write, |_| Ok(json!("sent"))).asking();
    let driving = agents([send.clone()]);
    let spec = spec(&[
        json!({"tool_calls": [call("send", json!({"to": "ada"}))]}),
        json!({"text": "done", "expect": "sent"}),
    ]);
    let first = engine(driving.clone()).await;
    let run = start(&first, &spec, "go").await;
    until_waiting(&first, &run).await;
    let wait = first
        .store()
        .entry(&run.id())
        .await
        .unwrap()
        .row
        .facts
        .waits[0]
        .clone();
    assert_eq!(wait.wait.tool.as_deref(), Some("send"));
    assert!(send.calls().is_empty(), "not before the yes");
    first.crash().await.unwrap();
    let second = first.another().await.unwrap();
    second.answer(&run.id(), Answer::approve()).await.unwrap();
    second.crash().await.unwrap();
    let third = first.another().await.unwrap();
    assert!(third.drive_agents(Arc::new(driving)));
    third.resume(&run.id()).await.unwrap();
    assert_eq!(output(&third.run(run.id())).await, json!("done"));
    assert_eq!(send.calls().values().sum::<u32>(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_denial_goes_back_to_the_model_and_the_call_is_never_made() {
    let send = ScriptedTool::new("send", Effect::Write, |_| Ok(json!("sent"))).asking();
    let spec = spec(&[
        json!({"tool_calls": [call("send", json!({}))]}),
        json!({"text": "then not", "expect": "not today"}),
    ]);
    let engine = engine(agents([send.clone()])).await;
    let run = start(&engine, &spec, "go").await;
    until_waiting(&engine, &run).await;
    let no = Answer::deny().because("not today");
    engine.answer(&run.id(), no).await.unwrap();
    assert_eq!(output(&run).await, json!("then not"));
    assert!(send.calls().is_empty());
    let kinds = kinds(&engine, &run).await;
    assert!(!kinds.contains(&"tool.called".to_owned()), "{kinds:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_on_from_what_was_said() {
    let engine = engine(agents([])).await;
    let one = spec(&[json!({"text": "Ada"})]);
    let two = spec(&[json!({"text": "yes", "expect": {"any": "my name?", "messages": 3}})]);
    for (spec, input, expected) in [(one, "my name?", "Ada"), (two, "sure?", "yes")] {
        let agent = engine.agent(&spec.to_json()).unwrap();
        let run = agent.start(&input).session("s").await.unwrap();
        assert_eq!(output(&run).await, json!(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_conversation_goes_on_from_its_summary() {
    let usage = json!({"input_tokens": 1000});
    let spec = AgentSpec {
        context: Some(serde_json::from_value(json!({"compact_at": 500})).unwrap()),
        ..spec(&[
            json!({"tool_calls": [call("look", json!({"what": 1}))], "usage": usage}),
            json!({"text": "I saw one", "expect": "Summarise"}),
            json!({"text": "done", "expect": {"last": ["go", "I saw one"], "messages": 1}}),
        ])
    };
    let engine = engine(agents([look()])).await;
    let run = start(&engine, &spec, "go").await;
    assert_eq!(output(&run).await, json!("done"));
    assert!(
        kinds(&engine, &run)
            .await
            .contains(&"context.compacted".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn a_sub_agent_is_a_child_and_its_failure_is_a_message() {
    let helper = AgentSpec {
        name: "helper".to_owned(),
        ..spec(&[json!({"text": "42"})])
    };
    let broken = AgentSpec {
        name: "broken".to_owned(),
        ..spec(&[])
    };
    let sub = |spec: &AgentSpec| logreel_agent::SubAgent {
        description: "helps".to_owned(),
        spec: Box::new(spec.clone()),
    };
    let parent = AgentSpec {
        tools: vec!["helper".to_owned(), "broken".to_owned()],
        agents: [("helper", sub(&helper)), ("broken", sub(&broken))]
            .map(|(name, agent)| (name.to_owned(), agent))
            .into(),
        ..spec(&[
            json!({"tool_calls": [
                call("helper", json!({"input": "what?"})), call("broken", json!({"input": "what?"})),
            ]}),
            json!({"text": "done", "expect": {"last": ["42", "failed"]}}),
        ])
    };
    let engine = engine(agents([])).await;
    let run = start(&engine, &parent, "go").await;
    assert_eq!(output(&run).await, json!("done"));
    assert_eq!(engine.runs().newest(10).await.unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn policy_speaks_of_sub_agents_too() {
    let helper = AgentSpec {
        name: "helper".to_owned(),
        ..spec(&[json!({"text": "42"})])
    };
    let sub = logreel_agent::SubAgent {
        description: "helps".to_owned(),
        spec: Box::new(helper),
    };
    let parent = AgentSpec {
        tools: vec!["helper".to_owned()],
        agents: [("helper".to_owned(), sub)].into(),
        policy: serde_json::from_value(json!({"deny": ["helper"]})).unwrap(),
        ..spec(&[
            json!({"tool_calls": [call("helper", json!({"input": "what?"}))]}),
            json!({"text": "alone", "expect": "denied"}),
        ])
    };
    let engine = engine(agents([])).await;
    let run = start(&engine, &parent, "go").await;
    assert_eq!(output(&run).await, json!("alone"));
    assert_eq!(engine.runs().newest(10).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_arguments_hold_a_secret_is_not_made_with_something_else() {
    let secret = "sk-abcdefghijklmnopqrstuvwx";
    let send = ScriptedTool::new("send", Effect::Write, |_| Ok(json!("sent")));
    let spec = spec(&[
        json!({"tool_calls": [call("send", json!({"to": secret}))]}),
        json!({"tool_calls": [call("send", json!({"to": "Authorization: Bearer $TOKEN_OF_MINE"}))],
            "expect": "hold a secret"}),
        json!({"text": "done", "expect": "sent"}),
    ]);
    let engine = engine(agents([send.clone()])).await;
    let run = start(&engine, &spec, "go").await;
    assert_eq!(output(&run).await, json!("done"));
    assert_eq!(send.calls().values().sum::<u32>(), 1);
    let page = engine
        .store()
        .read(&run.id(), Seq::FIRST, 1000)
        .await
        .unwrap();
    let bodies = page
        .items
        .iter()
        .skip(1)
        .map(|record| format!("{record:?}"));
    assert!(
        bodies.into_iter().all(|body| !body.contains(secret)),
        "but for the script itself"
    );
}

#[tokio::test(start_paused = true)]
async fn a_retry_goes_on_after_a_limit_of_the_loop() {
    let spec = AgentSpec {
        max_turns: Some(2),
        ..spec(&[
            json!({"tool_calls": [call("look", json!({"what": 1}))]}),
            json!({"tool_calls": [call("look", json!({"what": 2}))]}),
            json!({"text": "done", "expect": {"any": ["seen 1", "seen 2"]}}),
        ])
    };
    let engine = engine(agents([look()])).await;
    let run = start(&engine, &spec, "go").await;
    assert_eq!(failure(&run).await.kind, "max_turns");
    let again = engine.retry(&run.id()).await.unwrap();
    assert_eq!(output(&again).await, json!("done"));
}

#[tokio::test(start_paused = true)]
async fn a_retry_under_another_input_begins_its_conversation_again() {
    let engine = engine(agents([])).await;
    let spec = spec(&[
        json!({"error": {"kind": "auth"}}),
        json!({"text": "done", "expect": {"last": "other", "messages": 1}}),
    ]);
    let run = start(&engine, &spec, "go").await;
    assert_eq!(failure(&run).await.kind, "auth");
    let again = engine.retry(&run.id()).input(&"other").await.unwrap();
    assert_eq!(output(&again).await, json!("done"));
}

#[tokio::test(start_paused = true)]
async fn a_summary_of_calls_alone_is_no_summary() {
    let usage = json!({"input_tokens": 1000});
    let spec = AgentSpec {
        context: Some(serde_json::from_value(json!({"compact_at": 500})).unwrap()),
        ..spec(&[
            json!({"tool_calls": [call("look", json!({"what": 1}))], "usage": usage}),
            json!({"tool_calls": [call("look", json!({"what": 2}))], "expect": "Summarise"}),
            json!({"text": "I saw one", "expect": "Summarise"}),
            json!({"text": "done", "expect": {"last": "I saw one"}}),
        ])
    };
    let engine = engine(agents([look()])).await;
    let run = start(&engine, &spec, "go").await;
    assert_eq!(output(&run).await, json!("done"));
}

#[tokio::test(start_paused = true)]
async fn what_a_person_says_is_taken_at_the_next_turn_once() {
    let send = ScriptedTool::new("send", Effect::Write, |_| Ok(json!("sent"))).asking();
    let spec = spec(&[
        json!({"tool_calls": [call("send", json!({}))]}),
        json!({"text": "well", "expect": {"any": ["sent", "and hurry"], "messages": 4}}),
    ]);
    let engine = engine(agents([send])).await;
    let run = start(&engine, &spec, "go").await;
    until_waiting(&engine, &run).await;
    let id = run.id();
    let say = || engine.say(&id, "and hurry", None).request("r1");
    let receipt = say().await.unwrap();
    assert_eq!(say().await.unwrap(), receipt, "the same request");
    engine.answer(&run.id(), Answer::approve()).await.unwrap();
    assert_eq!(output(&run).await, json!("well"));
    let kinds = kinds(&engine, &run).await;
    let queued = kinds.iter().filter(|kind| *kind == "message.queued");
    assert_eq!(queued.count(), 1);
}

/// Real commands: their time is real too.
#[tokio::test]
async fn checks_that_fail_feed_back_for_their_rounds_and_then_fail_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let mend = folder.path().join("mended");
    let look = ScriptedTool::new("look", Effect::Read, move |_| {
        std::fs::write(&mend, "").unwrap();
        Ok(json!("mended"))
    });
    let engine = Engine::memory().await.unwrap();
    assert!(engine.drive_agents(Arc::new(agents([look]))));
    let checked = |lines: &[Value]| AgentSpec {
        verify: serde_json::from_value(json!([
            {"name": "mended", "run": "echo looking; test -f mended", "required": true},
        ]))
        .unwrap(),
        verify_rounds: Some(1),
        ..spec(lines)
    };
    let in_folder = async |spec: AgentSpec| {
        let agent = engine.agent(&spec.to_json()).unwrap();
        let folder = folder.path().to_str().unwrap();
        agent.start("go").dir(folder).await.unwrap()
    };
    let never = checked(&[
        json!({"text": "done"}),
        json!({"text": "really", "expect": "looking"}),
    ]);
    let run = in_folder(never).await;
    let cause = failure(&run).await;
    assert_eq!(cause.kind, "verification");
    assert!(cause.message.contains("looking"), "{}", cause.message);

    let mended = checked(&[
        json!({"text": "done"}),
        json!({"tool_calls": [call("look", json!({}))], "expect": "mended"}),
        json!({"text": "now"}),
    ]);
    let run = in_folder(mended).await;
    assert_eq!(output(&run).await, json!("now"));
    let entry = engine.store().entry(&run.id()).await.unwrap();
    let report = entry.row.facts.verification.clone().unwrap();
    assert_eq!(report.verdict, logreel::core::event::Verdict::Passed);
    let phases = kinds(&engine, &run).await;
    assert_eq!(
        phases
            .iter()
            .filter(|kind| *kind == "verification.finished")
            .count(),
        2
    );
}

/// Every kind of call, a plan, a repair and a check: at every append the process is killed before or
/// after it, or its answer is lost.
#[tokio::test(start_paused = true)]
async fn a_run_crashed_at_every_append_ends_as_it_would_have() {
    // A run has the same keys at every point, so each point has a tool of its own.
    let sends: Arc<Mutex<HashMap<_, ScriptedTool>>> = Arc::default();
    let spec = AgentSpec {
        plan: true,
        output_schema: Some(json!({"type": "object"})),
        ..spec(&[
            json!({"text": "1. look 2. send"}),
            json!({"tool_calls": [call("look", json!({"what": 1})), call("look", json!({"what": 2}))]}),
            json!({"tool_calls": [call("send", json!({"to": "ada"}))]}),
            json!({"text": "not json"}),
            json!({"text": "{}"}),
        ])
    };
    let open = |env| -> Arc<dyn logreel::RunStore> { Arc::new(logreel::MemoryStore::new(env)) };
    let points = crash_everywhere_on(open, |point, engine| {
        let send = ScriptedTool::new("send", Effect::Write, |_| Ok(json!("sent"))).reconciling();
        let send = sends.lock().unwrap().entry(point).or_insert(send).clone();
        let (driving, spec) = (agents([look(), send]), spec.clone());
        async move {
            engine.drive_agents(Arc::new(driving));
            let agent = engine.agent(&spec.to_json())?;
            agent.start(&"go").key("k").await?.wait().await?;
            Ok(())
        }
    })
    .await;
    assert!(points.len() > 40, "{}", points.len());
    let in_doubt = points.iter().filter(|point| point.end == PointEnd::InDoubt);
    assert_eq!(in_doubt.count(), 0, "reconcile knows");
    for (point, send) in &*sends.lock().unwrap() {
        let calls = send.calls();
        assert_eq!(calls.values().sum::<u32>(), 1, "{point:?}: {calls:?}");
    }
}

/// What a model said is never asked for again; what it was asked when the process died is, and the log
/// says so.
#[tokio::test(start_paused = true)]
async fn a_call_in_flight_at_a_crash_is_issued_again_under_its_own_name() {
    let spec = spec(&[
        json!({"tool_calls": [call("look", json!({"what": 1}))]}),
        json!({"text": "done", "delay_ms": 60000}),
    ]);
    let driving = agents([look()]);
    let first = engine(driving.clone()).await;
    let run = start(&first, &spec, "go").await;
    let mut events = run.events(Seq::FIRST);
    while let Some(event) = events.next().await {
        if matches!(event.unwrap().body, Body::ModelCalled(called) if called.call.as_str() == "m2.turn")
        {
            break;
        }
    }
    first.crash().await.unwrap();
    let second = first.another().await.unwrap();
    assert!(second.drive_agents(Arc::new(driving)));
    second.resume(&run.id()).await.unwrap();
    assert_eq!(output(&second.run(run.id())).await, json!("done"));
    let page = second
        .store()
        .events(&run.id(), Seq::FIRST, 1000)
        .await
        .unwrap();
    let calls: Vec<_> = page
        .items
        .iter()
        .filter_map(|event| match &event.body {
            Body::ModelCalled(called) => Some((called.call.to_string(), called.attempt)),
            _ => None,
        })
        .collect();
    let expected = [("m1.turn", 1), ("m2.turn", 1), ("m2.turn", 2)];
    assert_eq!(
        calls,
        expected.map(|(call, attempt)| (call.to_owned(), attempt))
    );
}

/// A plan, a round of two calls, another call, an answer; `send` writes.
fn long_spec() -> AgentSpec {
    AgentSpec {
        plan: true,
        ..spec(&[
            json!({"text": "first look, then send"}),
            json!({"tool_calls": [
                {"id": "c1", "name": "look", "arguments": {"what": 1}},
                {"id": "c2", "name": "look", "arguments": {"what": 2}},
            ]}),
            json!({"text": "sending", "tool_calls": [{"id": "c3", "name": "send", "arguments": {}}]}),
            json!({"text": "done"}),
            json!({"text": "heard"}),
        ])
    }
}

async fn events(engine: &Engine, run: &RunHandle<Json>) -> Vec<logreel::Event> {
    let page = engine.store().events(&run.id(), Seq::FIRST, 1000).await;
    page.unwrap().items
}

/// Also at one that an append has in its middle: an answer that is recorded is not asked for again.
#[tokio::test(start_paused = true)]
async fn a_fork_at_any_event_goes_on_as_its_parent_did() {
    let send = ScriptedTool::new("send", Effect::Idempotent, |_| Ok(json!("sent")));
    let engine = engine(agents([look(), send])).await;
    let run = start(&engine, &long_spec(), "go").await;
    assert_eq!(output(&run).await, json!("done"));
    let whole = events(&engine, &run).await;
    let facts = engine.store().entry(&run.id()).await.unwrap().row;
    let answered = |events: &[logreel::Event]| {
        let answers = events.iter().filter_map(|event| match &event.body {
            Body::ModelAnswered(it) => Some(it.call.to_string()),
            _ => None,
        });
        answers.collect::<Vec<_>>()
    };
    for seq in 1..whole.len() as u64 {
        let fork = engine
            .fork(&run.id(), ForkPoint::At(Seq(seq)))
            .await
            .unwrap();
        assert_eq!(output(&fork).await, json!("done"), "from event {seq}");
        let own = events(&engine, &fork).await;
        assert_eq!(answered(&own), answered(&whole), "from event {seq}");
        let entry = engine.store().entry(&fork.id()).await.unwrap();
        assert_eq!(
            entry.row.pulse.context, facts.pulse.context,
            "from event {seq}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_fork_may_say_something_change_the_model_or_what_a_tool_said() {
    let send = ScriptedTool::new("send", Effect::Write, |_| Ok(json!("sent")));
    let engine = engine(agents([look(), send])).await;
    let spec = AgentSpec {
        policy: serde_json::from_value(json!({"ask": ["send"]})).unwrap(),
        ..long_spec()
    };
    let run = start(&engine, &spec, "go").await;
    until_asked(&engine, &run).await;
    engine.answer(&run.id(), Answer::approve()).await.unwrap();
    assert_eq!(output(&run).await, json!("done"));
    let whole = events(&engine, &run).await;
    let place = |holds: &dyn Fn(&Body) -> bool| {
        let found = whole.iter().find(|event| holds(&event.body));
        found.unwrap().seq
    };
    let returned = |call: &str| {
        let call = call.to_owned();
        place(&move |body| matches!(body, Body::ToolReturned(it) if it.call.as_str() == call))
    };
    let fork = |seq: Seq| engine.fork(&run.id(), ForkPoint::At(seq));

    // A message, after the answer that ended the parent.
    let steered = engine.fork(&run.id(), ForkPoint::Last).message("and now?");
    let steered = steered.await.unwrap();
    assert_eq!(output(&steered).await, json!("heard"));
    let last = events(&engine, &steered).await;
    let taken = last
        .iter()
        .any(|event| matches!(&event.body, Body::MessageAdded(it) if it.queued.is_some()));
    assert!(taken, "it joined the conversation");

    // Both outcomes of the first round are recorded and not used; one is replaced.
    let mut given = fork(returned("c2")).result("c1", "seen otherwise");
    let outlook = given.look().await.unwrap();
    assert_eq!(
        (outlook.again.len(), outlook.again[0].id.as_str()),
        (1, "c3")
    );
    let given = given.result("c3", "as if sent").await;
    let error = given.unwrap_err();
    assert_eq!(error.kind(), logreel::ErrorKind::NotApplicable, "{error}");
    let asked = place(&|body| matches!(body, Body::ToolCalled(it) if it.call.as_str() == "c3"));
    assert!(
        matches!(error, logreel::Error::NotAskedYet { seq, .. } if seq < asked),
        "{error}"
    );
    let given = fork(returned("c2"))
        .result("c1", "seen otherwise")
        .await
        .unwrap();
    until_asked(&engine, &given).await;
    let said = conversation(&engine, &given).await;
    assert!(
        said.contains("seen otherwise") && said.contains("seen 2"),
        "{said}"
    );
    assert!(!said.contains("seen 1"), "{said}");

    // The write is given: nobody is asked, nothing is sent.
    let before = ForkPoint::Before("c3".to_owned());
    let sent = engine
        .fork(&run.id(), before)
        .result("c3", "as if sent")
        .await
        .unwrap();
    assert_eq!(output(&sent).await, json!("done"));
    assert!(conversation(&engine, &sent).await.contains("as if sent"));

    // What joined the conversation is not replaced, and the event is named.
    let error = engine
        .fork(&run.id(), ForkPoint::Last)
        .result("c1", "too late");
    let error = error.await.unwrap_err();
    let logreel::Error::ResultUsed { seq, .. } = &error else {
        panic!("{error}")
    };
    let used = place(&|body| matches!(body, Body::MessageAdded(it) if it.role == "tool"));
    assert_eq!(*seq, used);
    fork(Seq(seq.0 - 1))
        .result("c1", "in time")
        .queue()
        .await
        .unwrap();
    let model = engine
        .fork(&run.id(), ForkPoint::Last)
        .result("m1.plan", "x")
        .await;
    assert!(
        model
            .unwrap_err()
            .to_string()
            .contains("it is a model call")
    );

    // Another model is another spec, recorded with the fork.
    let other = AgentSpec {
        script: Some(vec![json!({"text": "by another"}); 9]),
        plan: true,
        ..spec.clone()
    };
    let other = fork(returned("c2"))
        .under_agent(other.to_json())
        .model("scripted/other");
    let other = other.await.unwrap();
    assert_eq!(output(&other).await, json!("by another"));
    let entry = engine.store().entry(&other.id()).await.unwrap();
    assert_ne!(entry.row.facts.spec_digest, spec.digest());
}

async fn until_asked(engine: &Engine, run: &RunHandle<Json>) {
    let mut bell = engine.store().watch(&run.id());
    loop {
        let status = engine.store().entry(&run.id()).await.unwrap().row.status();
        assert!(!status.is_terminal(), "{status} without a question");
        if status == Status::Waiting {
            return;
        }
        bell.rung().await;
    }
}

/// All that was said, as it is stored.
async fn conversation(engine: &Engine, run: &RunHandle<Json>) -> String {
    let mut next = engine
        .store()
        .entry(&run.id())
        .await
        .unwrap()
        .row
        .pulse
        .context;
    let mut said = String::new();
    while let Some(node) = next {
        let bytes = engine.store().blob(&node).await.unwrap().unwrap();
        let node: Value = serde_json::from_slice(&bytes).unwrap();
        said.push_str(&node["message"].to_string());
        next = node["previous"].as_str().map(|it| it.parse().unwrap());
    }
    said
}
