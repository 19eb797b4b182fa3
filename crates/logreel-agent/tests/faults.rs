//! What goes wrong around the loop: what it needs is away, a model is cut off, someone speaks at the last
//! moment.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/scripted.rs"]
mod scripted;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use logreel::core::event::{
    Budget, Effect, MessageAdded, Resolution, Spend, WaitKind, WaitStarted,
};
use logreel::core::{Blob, Payload};
use logreel::spec_file::Problems;
use logreel::testing::TestEngine;
use logreel::{Answer, Body, Cause, Ctx, Driving, Engine, Entry, Json, Outcome, RunHandle, Seq};
use logreel_agent::testing::ScriptedTool;
use logreel_agent::{
    AgentSpec, Delta, Finish, Message, Model, ModelError, Request, Role, ToolError,
};
use scripted::{agents, call, engine, failure, output, spec, start};
use serde_json::{Value, json};

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
            () = tick() => {}
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock of the test jumps")]
async fn tick() {
    tokio::time::sleep(Duration::from_millis(10)).await;
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

/// Waits for what happens outside, in real time, and lets the test's clock go on beside it.
#[expect(
    clippy::disallowed_methods,
    reason = "processes come and go in real time, while the clock of the test stands still"
)]
async fn really_until(holds: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if holds() {
            return;
        }
        let moment = || std::thread::sleep(Duration::from_millis(3));
        tokio::task::spawn_blocking(moment).await.unwrap();
        tick().await;
    }
    panic!("it never held");
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

/// An agent to which someone speaks at the very end, after it has looked for the last time.
#[derive(Default)]
struct Late(OnceLock<Engine>);

impl logreel::Agents for Late {
    fn load(&self, _: &Path) -> Result<Value, Problems> {
        unreachable!("its spec names no file")
    }

    fn lacks(&self, _: &Value) -> Option<String> {
        None
    }

    fn budget(&self, _: &Value) -> Budget {
        Budget::default()
    }

    fn plans(&self, _: &Value) -> bool {
        false
    }

    fn drive(&self, ctx: Ctx, _: Arc<Value>, _: Json) -> Driving {
        let engine = self.0.get().unwrap().clone();
        Box::pin(async move {
            let (log, run) = (ctx.log(), ctx.run_id());
            let queued = log.with_state(|state| state.queued.front().copied());
            let Some(queued) = queued else {
                engine.say(&run, "wait, also this", None).await?;
                return Ok(Json::of("not heard")?);
            };
            let node = Blob::new(b"{}".to_vec());
            let heard = MessageAdded {
                length: 0,
                node: node.digest(),
                previous: None,
                queued: Some(queued),
                redacted: 0,
                role: "user".to_owned(),
            };
            log.record(vec![heard.into()], vec![node]).await?;
            Ok(Json::of("heard")?)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_given_a_receipt_is_heard_before_the_run_completes() {
    let engine = TestEngine::new().await.unwrap();
    let late = Arc::new(Late::default());
    assert!(late.0.set((*engine).clone()).is_ok());
    assert!(engine.drive_agents(late));
    let run = engine.agent(&json!({"name": "late"})).unwrap();
    let run = run.start("go").await.unwrap();
    assert_eq!(output(&run).await, json!("heard"));
    let said = engine.say(&run.id(), "too late", None).await;
    assert_eq!(said.unwrap_err().kind(), logreel::ErrorKind::Terminal);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_is_away_for_ten_minutes_does_not_fail_the_run() {
    let down = json!({"error": {"kind": "unavailable", "message": "down"}});
    let mut lines = vec![down.clone(); 15];
    lines.push(json!({"text": "done"}));
    let engine = engine(agents([])).await;
    let run = start(&engine, &spec(&lines), "go").await;
    assert_eq!(output(&run).await, json!("done"));
    let row = engine.store().entry(&run.id()).await.unwrap().row;
    let took = row.updated_at.since(row.facts.created_at);
    assert!(took > Duration::from_secs(600), "{took:?}");

    let run = start(&engine, &spec(&vec![down; 16]), "go").await;
    assert_eq!(failure(&run).await.kind, "model_unavailable");

    let asks = |hours: u64| {
        let wait = json!({"kind": "rate_limited", "retry_after_ms": hours * 3_600_000});
        spec(&[json!({ "error": wait }), json!({"text": "done"})])
    };
    let run = start(&engine, &asks(20), "go").await;
    assert_eq!(output(&run).await, json!("done"));
    let run = start(&engine, &asks(24 * 365 * 1000), "go").await;
    let cause = failure(&run).await;
    assert_eq!(cause.kind, "rate_limited");
    assert!(
        cause.message.contains("longer than a run waits"),
        "{}",
        cause.message
    );
}

const KEY: &str = "sk-abcdefghijklmnopqrstuvwx";

/// Everything that people say to runs, with a key in it.
#[tokio::test(start_paused = true)]
async fn what_people_say_to_runs_is_recorded_without_secrets() {
    let said = format!("take {KEY}");
    let failing = ScriptedTool::new("look", Effect::Read, move |_| {
        Err(ToolError::failed(format!("no entry with {KEY}")))
    });
    let send = ScriptedTool::new("send", Effect::Write, |_| {
        Err(ToolError::of_kind("lost", "the line was cut"))
    });
    let ask = ScriptedTool::new("ask", Effect::Write, |_| Ok(json!("asked"))).asking();
    let spec = AgentSpec {
        redact: vec!["hush-[0-9]+".to_owned()],
        ..spec(&[
            json!({"tool_calls": [call("look", json!({}))]}),
            json!({"tool_calls": [call("send", json!({}))]}),
            json!({"tool_calls": [call("ask", json!({}))]}),
            json!({"text": "never", "delay_ms": 3_600_000}),
        ])
    };
    let engine = engine(agents([failing, send, ask])).await;
    let runs = engine.agent(&spec.to_json()).unwrap();
    let input = json!({"text": said, "password": "correct-horse"});
    let run = runs.start(&input).await.unwrap();
    let id = run.id();
    let is_waiting = |kind| {
        move |entry: &Entry| !entry.is_driven() && waits(entry).iter().any(|it| it.kind == kind)
    };
    until(&engine, &run, is_waiting(WaitKind::InDoubt)).await;
    engine
        .say(&id, format!("{said} hush-12"), None)
        .await
        .unwrap();
    let returned = Json::from(json!({ "sent": said, "access_token": "correct-horse" }));
    let returned = Resolution::Returned(Payload::of(returned).0);
    let doubt = engine.store().entry(&id).await.unwrap();
    let in_doubt = waits(&doubt)[0].call.clone().unwrap();
    engine
        .resolve(&id, in_doubt.as_str(), returned, "me")
        .await
        .unwrap();
    until(&engine, &run, is_waiting(WaitKind::Approval)).await;
    let yes = Answer::approve().because(said.clone());
    engine
        .answer(&id, yes.with(Json::of(&said).unwrap()))
        .await
        .unwrap();
    until(&engine, &run, |entry| entry.is_driven()).await;
    engine.pause(&id, said.clone()).await.unwrap();
    engine.cancel(&id, said.clone()).await.unwrap();
    let page = engine.store().events(&id, Seq::FIRST, 1000).await.unwrap();
    let mut redactions = 0;
    for event in &page.items {
        let body = format!("{:?}", event.body);
        for secret in [KEY, "hush-12", "correct-horse"] {
            assert!(!body.contains(secret), "{body}");
        }
        redactions += body.matches("[redacted]").count();
        if let Body::ToolFailed(failed) = &event.body {
            assert_eq!(failed.redacted, 1, "{body}");
        }
    }
    // The input twice, a failure, what was said, resolved and answered, and two reasons.
    assert!(redactions >= 9, "{redactions}");
    // The same start again attaches to it: what is compared is what was recorded.
    let again = runs.start(&input).id(id).await.unwrap();
    assert_eq!(again.id(), id);
}

type Said = Result<(Finish, &'static str), ModelError>;

/// A model that is a function of the number of the request.
struct Own {
    says: fn(u64) -> Said,
    asked: Arc<Mutex<Vec<Request>>>,
}

#[async_trait::async_trait]
impl Model for Own {
    fn name(&self) -> &'static str {
        "own/model"
    }

    async fn answer(
        &self,
        request: &Request,
        _: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<logreel_agent::Answer, ModelError> {
        self.asked.lock().unwrap().push(request.clone());
        let (finish, text) = (self.says)(request.number)?;
        Ok(logreel_agent::Answer {
            message: Message::text(Role::Assistant, text),
            finish,
            spent: Spend::default(),
        })
    }
}

async fn asked_of(says: fn(u64) -> Said, input: &str) -> (Result<Value, Cause>, Vec<Request>) {
    let asked: Arc<Mutex<Vec<Request>>> = Arc::default();
    let model = Own {
        says,
        asked: Arc::clone(&asked),
    };
    let engine = engine(agents([]).model(model)).await;
    let spec = AgentSpec {
        model: "own/model".to_owned(),
        script: None,
        ..spec(&[])
    };
    let run = start(&engine, &spec, input).await;
    let ended = match run.wait().await.unwrap() {
        Outcome::Completed(output) => Ok(output.to_value()),
        Outcome::Failed(cause) => Err(cause),
        Outcome::Cancelled(_) => panic!("nobody cancelled it"),
    };
    let asked = asked.lock().unwrap().clone();
    (ended, asked)
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_cut_at_its_longest_is_no_answer() {
    let (ended, asked) = asked_of(|_| Ok((Finish::Length, "It begins like th")), "go").await;
    let cause = ended.unwrap_err();
    assert_eq!((cause.kind.as_str(), asked.len()), ("length", 1));
    let said = &cause.message;
    assert!(
        said.contains("max_output_tokens") && said.contains("It begins like th"),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_is_too_long_is_cut_before_it_is_summarised() {
    let input = format!("{}the end", "a long story ".repeat(1000));
    let says = |number| match number {
        1 => Err(ModelError::TooLong {
            message: "no room".to_owned(),
        }),
        2 => Ok((Finish::Stop, "It was a long story.")),
        _ => Ok((Finish::Stop, "done")),
    };
    let (ended, asked) = asked_of(says, &input).await;
    assert_eq!(ended.unwrap(), json!("done"));
    let words = |request: &Request| {
        let messages = request.messages.iter();
        messages.map(|message| message.words()).collect::<Vec<_>>()
    };
    let whole = words(&asked[0]);
    assert_eq!(whole, [input.as_str()]);
    let shortened = words(&asked[1]);
    assert!(shortened[0].len() < 1200, "{}", shortened[0].len());
    assert!(shortened[0].contains("bytes left out") && shortened[0].ends_with("the end"));
    assert!(words(&asked[2]).concat().contains("It was a long story."));
    assert_eq!(asked.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_refused_waits_for_a_limit_like_any_other() {
    let looks = call("look", json!({"what": 1}));
    let others = [
        call("nothing", json!({})),
        call("look", json!("no object")),
        call("plan.update", json!({"plan": "another"})),
    ];
    for other in others {
        let plans = other["name"] == "plan.update";
        let mut lines = vec![
            json!({"tool_calls": [looks.clone(), other]}),
            json!({"text": "done"}),
        ];
        if plans {
            lines.insert(0, json!({"text": "a plan"}));
        }
        let spec = AgentSpec {
            plan: plans,
            budget: Budget {
                tool_calls: Some(1),
                ..Budget::default()
            },
            ..spec(&lines)
        };
        let engine = engine(agents([])).await;
        let run = start(&engine, &spec, "go").await;
        let is_over = |entry: &Entry| {
            let waits = waits(entry);
            waits.iter().any(|wait| wait.kind == WaitKind::Budget)
                || entry.row.status().is_terminal()
        };
        let entry = until(&engine, &run, is_over).await;
        assert_eq!(entry.row.status(), logreel::Status::Waiting);
        let more = Budget {
            tool_calls: Some(5),
            ..Budget::default()
        };
        engine.add_budget(&run.id(), more, "ann").await.unwrap();
        match engine.resume(&run.id()).await {
            Ok(_) | Err(logreel::Error::Driven { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert_eq!(output(&run).await, json!("done"));
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_denied_and_sub_agents_make_a_loop_too() {
    let helper = AgentSpec {
        name: "helper".to_owned(),
        ..spec(&[json!({"text": "the same"})])
    };
    let sub = logreel_agent::SubAgent {
        description: "helps".to_owned(),
        spec: Box::new(helper),
    };
    for (tool, arguments) in [
        ("look", json!({"what": 1})),
        ("helper", json!({"input": "what?"})),
    ] {
        let again = json!({"tool_calls": [call(tool, arguments)]});
        let mut lines = vec![again; 12];
        lines.push(json!({"text": "gave up"}));
        let looping = AgentSpec {
            tools: vec!["look".to_owned(), "helper".to_owned()],
            agents: [("helper".to_owned(), sub.clone())].into(),
            policy: serde_json::from_value(json!({"deny": ["look"]})).unwrap(),
            ..spec(&lines)
        };
        let engine = engine(agents([])).await;
        let run = start(&engine, &looping, "go").await;
        assert_eq!(failure(&run).await.kind, "loop", "{tool}");
    }
}

/// A model whose stream breaks off twice.
struct BreaksOff;

#[async_trait::async_trait]
impl Model for BreaksOff {
    fn name(&self) -> &'static str {
        "own/model"
    }

    async fn answer(
        &self,
        request: &Request,
        live: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<logreel_agent::Answer, ModelError> {
        let unavailable = |message: &str| ModelError::Retryable {
            message: message.to_owned(),
        };
        match request.number {
            1 => Err(unavailable("nobody is there")),
            2 | 3 => {
                live(Delta::Text("x".repeat(400)));
                Err(unavailable("the stream broke off"))
            }
            _ => Ok(logreel_agent::Answer {
                message: Message::text(Role::Assistant, "done"),
                finish: Finish::Stop,
                spent: Spend::default(),
            }),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_is_not_free() {
    let engine = engine(agents([]).model(BreaksOff)).await;
    let spec = AgentSpec {
        model: "own/model".to_owned(),
        script: None,
        ..spec(&[])
    };
    let run = start(&engine, &spec, &"a word ".repeat(100)).await;
    assert_eq!(output(&run).await, json!("done"));
    let entry = engine.store().entry(&run.id()).await.unwrap();
    let spent = &entry.row.pulse.usage.spent;
    assert_eq!(spent.output_tokens, 200, "two times 400 bytes");
    assert!(spent.input_tokens >= 2 * 700 / 4, "{spent:?}");
}
