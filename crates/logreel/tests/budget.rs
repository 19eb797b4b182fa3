//! Limits, through the public API on both stores: what would go over one waits, and goes on once it was
//! raised; what a tree uses is counted at its root, also when its drivers die.
#![allow(
    clippy::unwrap_used,
    reason = "a test may unwrap, and so may what it shares"
)]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Virtual, count, on_both, until_entry};
use logreel::core::event::{Budget, Effect, ModelAnswered, ModelCalled, Spend, Used, WaitKind};
use logreel::core::state::CallState;
use logreel::core::{CallId, Limit, Payload, Rejected};
use logreel::testing::{PointEnd, TestEngine, crash_everywhere_on};
use logreel::workflow::{Problems, Workflow};
use logreel::*;
use serde_json::{Value, json};

/// An agent that asks its model as often as its spec says; each answer costs what was reserved.
struct Asking {
    env: Arc<dyn Env>,
}

const CALL: u64 = 20;
/// How often its tool was used.
static LOOKED: AtomicU32 = AtomicU32::new(0);

impl Agents for Asking {
    fn load(&self, _: &Path) -> Result<Value, Problems> {
        unreachable!("the specs here name no files")
    }

    fn lacks(&self, _: &Value) -> Option<String> {
        None
    }

    fn budget(&self, spec: &Value) -> Budget {
        Budget {
            tokens: spec["tokens"].as_u64(),
            tool_calls: spec["tool_calls"].as_u64(),
            ..Budget::default()
        }
    }

    fn plans(&self, _: &Value) -> bool {
        false
    }

    fn drive(&self, ctx: Ctx, spec: Arc<Value>, _: Json) -> Driving {
        let env = Arc::clone(&self.env);
        Box::pin(async move {
            let log = ctx.log();
            let looks = (0..spec["looks"].as_u64().unwrap_or(0)).map(|n| {
                let call = CallId::new(format!("t{n}")).unwrap();
                let look = ctx.tool_call(call, "look", Json::null());
                let work = |_| {
                    LOOKED.fetch_add(1, Ordering::SeqCst);
                    let output = Payload::null();
                    let (blobs, redacted) = (Vec::new(), 0);
                    std::future::ready(Ok(Recorded {
                        output,
                        blobs,
                        redacted,
                    }))
                };
                let ask = |_| std::future::ready(Ok(Reconciled::Unknown));
                look.effect(Effect::Read).run(work, ask)
            });
            ctx.all(looks).await?;
            for n in 0..spec["calls"].as_u64().unwrap_or(0) {
                let call = CallId::new(format!("m{n}")).unwrap();
                let known = log.with_state(|state| state.models.get(&call).cloned());
                if let Some(CallState::Returned { .. }) = known {
                    continue;
                }
                let spend = Spend {
                    input_tokens: CALL / 2,
                    output_tokens: CALL / 2,
                    ..Spend::default()
                };
                let called = ModelCalled {
                    attempt: 1,
                    call: call.clone(),
                    context: None,
                    model: "scripted".into(),
                    request: None,
                    reserved: spend.clone(),
                };
                log.record_in_budget(vec![called.into()], Vec::new())
                    .await?;
                let busy = log.busy();
                env.sleep(Duration::from_secs(1)).await;
                let answered = ModelAnswered {
                    call,
                    finish_reason: None,
                    message: Payload::null(),
                    redacted: 0,
                    spent: spend,
                };
                log.record(vec![answered.into()], Vec::new()).await?;
                drop(busy);
            }
            Ok(Json::of(&"done")?)
        })
    }
}

/// Another process on the same store, which drives agents.
async fn with_agents(engine: &TestEngine) -> TestEngine {
    let env: Arc<dyn Env> = Arc::clone(engine.env()) as Arc<dyn Env>;
    let agents = Arc::new(Asking { env });
    let with = |builder: Builder| builder.agents(agents).any_workflow();
    engine.another_with(with).await.unwrap()
}

fn tokens(tokens: u64) -> Budget {
    Budget {
        tokens: Some(tokens),
        ..Budget::default()
    }
}

fn waits_for_budget(entry: &Entry) -> bool {
    let mut waits = entry.row.facts.waits.iter();
    entry.driver.is_none() && waits.any(|open| open.wait.kind == WaitKind::Budget)
}

/// The run and everyone below it, oldest first.
async fn tree(engine: &Engine) -> Vec<Entry> {
    let page = engine.store().list(&Filter::default(), None, 100).await;
    page.unwrap().items.into_iter().rev().collect()
}

fn spent(entries: &[Entry]) -> u64 {
    let all = entries.iter().map(|entry| &entry.row.pulse.usage.spent);
    all.map(|spent| spent.input_tokens + spent.output_tokens)
        .sum()
}

/// A workflow of agents two levels down, whose limit does not suffice; killed while a model is asked.
#[tokio::test(start_paused = true)]
async fn a_tree_stays_within_its_budget_over_crashes_and_goes_on_when_it_is_raised() {
    for world in Virtual::both() {
        let first = world.engine().await;
        let mut engine = with_agents(&first).await;
        let agent = |calls: u64| json!({"name": "asks", "calls": calls});
        let inner = json!({"name": "inner", "step": [{"id": "deep", "agent": agent(3)}]});
        let spec = json!({
            "name": "outer", "budget": {"tokens": 200, "children": 9},
            "step": [
                {"id": "a", "agent": agent(3)},
                {"id": "b", "agent": {"name": "frugal", "calls": 3, "tokens": 30}},
                {"id": "c", "workflow": inner},
            ],
        });
        let workflow = Workflow::from_json(&spec).unwrap();
        let root = engine.workflow(&workflow).start(&()).await.unwrap().id();
        // Killed in the middle of the first calls: what they reserved is gone.
        engine.env().sleep(Duration::from_millis(500)).await;
        let entries = tree(&engine).await;
        assert_eq!(entries.len(), 5, "all are at work");
        let set_aside = entries[0].row.set_aside().tokens;
        assert_eq!(
            set_aside,
            50 + 30 + 60,
            "a share, what it asked for, a share of the rest"
        );
        engine.crash().await.unwrap();
        engine = with_agents(&engine).await;
        engine.resume(&root).await.unwrap();
        let lost = 3 * CALL;
        let mut raised = 0;
        let mut rounds = 0;
        loop {
            engine.env().sleep(Duration::from_secs(20)).await;
            let entries = tree(&engine).await;
            let used = spent(&entries) + lost;
            let most = 200 + raised + 3 * CALL;
            assert!(used <= most, "{used} of {most}");
            if entries[0].row.status().is_terminal() {
                break;
            }
            rounds += 1;
            assert!(rounds < 20, "it gets nowhere");
            // Everyone who waits for tokens gets one call more; another process drives it on.
            for entry in entries.iter().filter(|entry| waits_for_budget(entry)) {
                let wait = &entry.row.facts.waits[0].wait;
                assert_eq!(wait.name.as_deref(), Some("tokens"));
                let before = engine.store().entry(&root).await.unwrap().row.left().tokens;
                let run = entry.row.run;
                engine.add_budget(&run, tokens(CALL), "ann").await.unwrap();
                raised += CALL;
                let row = engine.store().entry(&root).await.unwrap().row;
                assert_eq!(row.facts.budget.tokens, Some(200 + raised));
                assert_eq!(row.left().tokens, before, "it is for that child only");
            }
            engine.crash().await.unwrap();
            engine = with_agents(&engine).await;
            engine.resume(&root).await.unwrap();
        }
        assert!(raised > 0, "nobody ever had to wait");
        let entries = tree(&engine).await;
        let ended = |entry: &Entry| entry.row.status() == Status::Completed;
        assert!(entries.iter().all(ended), "{entries:?}");
        let row = &entries[0].row;
        assert_eq!(spent(&entries), 9 * CALL);
        // Calls that were cut off by later crashes count, too.
        let used = row.used();
        assert!(used.tokens >= 9 * CALL + lost, "{used:?}");
        assert_eq!((used.children, row.set_aside()), (4, Used::default()));
        engine.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_call_over_the_limit_is_not_made_until_it_is_raised() {
    for world in Virtual::both() {
        let engine = with_agents(&world.engine().await).await;
        LOOKED.store(0, Ordering::SeqCst);
        let spec = json!({"name": "looks", "looks": 4, "tool_calls": 2});
        let run = engine.agent(&spec).unwrap().start(&()).await.unwrap();
        let entry = until_entry(&engine, run.id(), waits_for_budget).await;
        assert_eq!(LOOKED.load(Ordering::SeqCst), 2);
        assert_eq!(entry.row.used().tool_calls, 2);
        let waits = &entry.row.facts.waits;
        let about = |n: usize| (waits[n].wait.name.as_deref(), waits[n].wait.tool.as_deref());
        let each = (Some("tool_calls"), Some("look"));
        assert_eq!((waits.len(), about(0), about(1)), (2, each, each));
        // One more lets one of them go on; the other waits again.
        for made in [3, 4] {
            let more = Budget {
                tool_calls: Some(1),
                ..Budget::default()
            };
            engine.add_budget(&run.id(), more, "ann").await.unwrap();
            engine.env().sleep(Duration::from_secs(1)).await;
            assert_eq!(LOOKED.load(Ordering::SeqCst), made);
        }
        assert!(matches!(run.wait().await.unwrap(), Outcome::Completed(_)));
        engine.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_over_the_limit_is_not_started_until_it_is_raised() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = world.builder().any_workflow().build().await.unwrap();
        let child = json!({"name": "child", "step": [{"id": "one", "run": "echo x >> ran; echo 1"}]});
        let spec = json!({
            "name": "parent", "budget": {"children": 2, "wall": "1h"},
            "step": [{"id": "each", "map": ["a", "b", "c"], "map_key": "{{ item }}", "workflow": child}],
        });
        let workflow = Workflow::from_json(&spec).unwrap();
        let dir = desk.path().to_string_lossy().into_owned();
        let run = engine.workflow(&workflow).start(&()).dir(dir).await.unwrap();
        let is_parked = |entry: &Entry| {
            let only = waits_for_budget(entry) && entry.row.facts.waits.len() == 1;
            only && entry.row.status() == Status::Waiting
        };
        let entry = until_entry(&engine, run.id(), is_parked).await;
        let wait = &entry.row.facts.waits[0].wait;
        assert_eq!(wait.name.as_deref(), Some("children"));
        assert_eq!(wait.prompt.as_deref(), Some("2 of 2 children are used"));
        assert_eq!(entry.row.used().children, 2);
        let view = serde_json::to_value(view::RunView::of(&entry)).unwrap();
        assert_eq!(view["budget"]["children"], json!(2));
        assert_eq!(view["budget"]["used"]["children"], json!(2));
        assert!(view["budget"]["used"]["wall_ms"].is_u64());

        let none = engine.add_budget(&run.id(), tokens(5), "ann").await;
        let Err(Error::Rejected { why, .. }) = none else { panic!("{none:?}") };
        assert_eq!(why, Rejected::NoSuchLimit(Limit::Tokens));
        let more = Budget { children: Some(1), ..Budget::default() };
        engine.add_budget(&run.id(), more, "ann").await.unwrap();
        assert!(matches!(run.wait().await.unwrap(), Outcome::Completed(_)));
        let ran = std::fs::read_to_string(desk.path().join("ran")).unwrap();
        assert_eq!(ran.lines().count(), 3, "each once");
        engine.close().await.unwrap();
        let (_, events) = world.reopened(run.id()).await;
        assert_eq!(count(&events, "child.started"), 3);
        assert_eq!(count(&events, "budget.changed"), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_waits_when_the_time_is_used_up() {
    on_both(|world| async move {
        let desk = tempfile::tempdir().unwrap();
        let engine = world.builder().any_workflow().build().await.unwrap();
        let spec = json!({
            "name": "slow", "budget": {"wall": "200ms"},
            "step": [
                {"id": "long", "run": "sleep 0.4; echo 1"},
                {"id": "read", "needs": ["long"], "run": "echo 2"},
                {"id": "write", "needs": ["long"], "effect": "write", "run": "echo x >> wrote"},
            ],
        });
        let workflow = Workflow::from_json(&spec).unwrap();
        let dir = desk.path().to_string_lossy().into_owned();
        let run = engine
            .workflow(&workflow)
            .start(&())
            .dir(dir)
            .await
            .unwrap();
        let both_wait = |entry: &Entry| waits_for_budget(entry) && entry.row.facts.waits.len() == 2;
        let entry = until_entry(&engine, run.id(), both_wait).await;
        let limits = entry
            .row
            .facts
            .waits
            .iter()
            .map(|open| open.wait.name.as_deref());
        assert_eq!(limits.collect::<Vec<_>>(), [Some("wall"); 2]);
        assert!(!desk.path().join("wrote").exists());
        let used = entry.row.used().wall_ms;
        engine.close().await.unwrap();

        // Nobody drives it, so no time passes. Another process goes on when there is more.
        let engine = world.builder().any_workflow().build().await.unwrap();
        let refused = engine.resume(&run.id()).await.unwrap_err();
        assert!(matches!(refused, Error::Waiting { .. }), "{refused}");
        let more = Budget {
            wall_ms: Some(60_000),
            ..Budget::default()
        };
        let entry = engine.add_budget(&run.id(), more, "ann").await.unwrap();
        assert_eq!(entry.row.used().wall_ms, used);
        engine.resume(&run.id()).await.unwrap();
        let outcome = engine.run(run.id()).wait().await.unwrap();
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        assert!(desk.path().join("wrote").exists());
        engine.close().await.unwrap();
        world.reopened(run.id()).await;
    })
    .await;
}

/// Two levels down there is no child left to start; whoever waits for one gets it, and the runs above
/// with it. Killed at every write, also between the two raises, it ends as it would have.
#[tokio::test(start_paused = true)]
async fn a_tree_that_was_raised_ends_the_same_wherever_it_is_killed() {
    for world in Virtual::both() {
        let clock: Mutex<Option<Arc<dyn Env>>> = Mutex::new(None);
        let open = |env: Arc<dyn Env>| {
            *clock.lock().unwrap() = Some(Arc::clone(&env));
            world.open(env)
        };
        let points = crash_everywhere_on(open, |_, engine| {
            let env = clock.lock().unwrap().clone().unwrap();
            async move {
                let _: Task<Value, u32> = engine.task("work", |ctx: Ctx, _: Value| async move {
                    let work = || async { Ok::<_, TaskError>(7) };
                    ctx.step("in it").run(work).await
                });
                let inner = json!({"name": "inner", "step": [{"id": "work", "task": "work"}]});
                let outer = json!({"name": "outer", "step": [{"id": "in", "workflow": inner}]});
                let root = json!({
                    "name": "root", "budget": {"children": 1, "wall": "1h"},
                    "step": [{"id": "out", "workflow": outer}],
                });
                // Each is driven by whoever knows it.
                for below in [&inner, &outer] {
                    engine.workflow(&Workflow::from_json(below).unwrap());
                }
                let root = engine.workflow(&Workflow::from_json(&root).unwrap());
                let run = root.start(&()).key("tree").await?;
                while !run.entry().await?.row.status().is_terminal() {
                    env.sleep(Duration::from_secs(1)).await;
                    let page = engine.store().list(&Filter::default(), None, 100).await?;
                    for entry in page.items.iter().filter(|entry| waits_for_budget(entry)) {
                        let more = Budget {
                            children: Some(1),
                            ..Budget::default()
                        };
                        engine.add_budget(&entry.row.run, more, "ann").await?;
                    }
                }
                run.wait().await?;
                Ok(())
            }
        })
        .await;
        assert!(points.len() > 40, "{}", points.len());
        assert!(points.iter().all(|point| point.end == PointEnd::Same));
    }
}
