//! A scripted agent on an engine whose time jumps, and what tests ask of its runs.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;

use logreel::core::event::Effect;
use logreel::testing::TestEngine;
use logreel::{Engine, Json, Outcome, RunHandle, Seq, Status};
use logreel_agent::testing::ScriptedTool;
use logreel_agent::{AgentSpec, Agents};
use serde_json::{Value, json};

pub fn spec(lines: &[Value]) -> AgentSpec {
    AgentSpec {
        name: "test".to_owned(),
        model: "scripted/answers.jsonl".to_owned(),
        script: Some(lines.to_vec()),
        tools: ["look", "send", "ask"].map(str::to_owned).to_vec(),
        ..AgentSpec::default()
    }
}

pub fn call(name: &str, arguments: Value) -> Value {
    json!({"name": name, "arguments": arguments})
}

pub fn look() -> ScriptedTool {
    ScriptedTool::new("look", Effect::Read, |arguments| {
        Ok(json!(format!("seen {}", arguments["what"])))
    })
}

/// Agents with these tools, and with stand-ins for the others that [`spec`] names.
pub fn agents<const N: usize>(tools: [ScriptedTool; N]) -> Agents {
    let own: Vec<String> = tools.iter().map(ScriptedTool::name).collect();
    let others = ["look", "send", "ask"]
        .into_iter()
        .filter(|it| !own.iter().any(|own| own == it));
    let others = others.map(|name| ScriptedTool::new(name, Effect::Read, |_| Ok(json!(null))));
    let all: Vec<ScriptedTool> = tools.into_iter().chain(others).collect();
    all.into_iter().fold(Agents::new(), Agents::tool)
}

pub async fn engine(agents: Agents) -> TestEngine {
    let engine = TestEngine::new().await.unwrap();
    assert!(engine.drive_agents(Arc::new(agents)));
    engine
}

pub async fn start(engine: &Engine, spec: &AgentSpec, input: &str) -> RunHandle<Json> {
    let agent = engine.agent(&spec.to_json()).unwrap();
    agent.start(&input).await.unwrap()
}

pub async fn output(run: &RunHandle<Json>) -> Value {
    match run.wait().await.unwrap() {
        Outcome::Completed(output) => output.to_value(),
        other => panic!("{other:?}"),
    }
}

pub async fn failure(run: &RunHandle<Json>) -> logreel::Cause {
    match run.wait().await.unwrap() {
        Outcome::Failed(cause) => cause,
        other => panic!("{other:?}"),
    }
}

pub async fn kinds(engine: &Engine, run: &RunHandle<Json>) -> Vec<String> {
    let page = engine
        .store()
        .events(&run.id(), Seq::FIRST, 1000)
        .await
        .unwrap();
    let kinds = page.items.iter().map(|event| event.body.kind().to_owned());
    kinds.collect()
}

pub async fn until_waiting(engine: &Engine, run: &RunHandle<Json>) {
    let mut doorbell = engine.store().watch(&run.id());
    while engine.store().entry(&run.id()).await.unwrap().row.status() != Status::Waiting {
        doorbell.rung().await;
    }
}
