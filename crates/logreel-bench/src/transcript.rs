//! A conversation of 200 turns, through the agent's own loop: the bytes that it takes beside those that
//! were said, and what its last turns cost beside its first.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use logreel::{Digest, Engine, Json, Outcome};
use logreel_agent::{
    AgentSpec, Agents, Answer, Call, Definition, Delta, Finish, Message, Model, ModelError, Part,
    Request, Role, Tool, ToolCall, ToolError,
};
use logreel_core::event::{Effect, Spend};
use serde_json::{Value, json};

use crate::growth::on_disk;
use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, now, rows};
use crate::place::Place;

/// How long what the model says and what the tool returns is.
const MESSAGE_BYTES: usize = 2000;
const MODEL: &str = "bench/talker";
const TOOL: &str = "look";
/// Turns that are compared: from this one on, and the last ones.
const EARLY: usize = 10;
const WINDOW: usize = 10;

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let turns = place.size(200, 40);
    let params = Params {
        runs: 1,
        events: turns,
        payload_bytes: MESSAGE_BYTES,
    };
    let mut turn =
        Figure::new("transcript", "turn", Metric::P50Us, params).bar(Bar::RatioAtMost(1.2));
    let mut disk = Figure::new("transcript", "disk / said", Metric::BytesRatio, params)
        .bar(Bar::ValueAtMost(2.0));
    for round in 0..place.rounds() {
        let path = place.file(&format!("transcript-{round}.db"));
        let began = converse(&path, turns).await?;
        let took = |from: usize| {
            let mut samples = Samples::default();
            let turns = began.windows(2).skip(from).take(WINDOW);
            turns.for_each(|turn| samples.add(turn[1].saturating_sub(turn[0])));
            samples.p50()
        };
        turn.round(took(turns - 1 - WINDOW), Some(took(EARLY)));
        // What the model said each turn, and what the tool returned each turn but the last.
        let said = (2 * turns - 1) * MESSAGE_BYTES;
        disk.round(on_disk(&path)? as f64 / said as f64, None);
    }
    rows(vec![turn, disk])
}

/// Makes a store with one conversation in it. Gives when each turn's model was asked.
async fn converse(path: &Path, turns: usize) -> Result<Vec<Duration>> {
    let began = Arc::default();
    let talker = Talker {
        turns: turns as u64,
        began: Arc::clone(&began),
    };
    let engine = Engine::builder()
        .sqlite(path)
        .agents(Arc::new(Agents::new().tool(Look::new()).model(talker)))
        .build()
        .await?;
    let spec = AgentSpec {
        name: "talk".to_owned(),
        model: MODEL.to_owned(),
        tools: vec![TOOL.to_owned()],
        max_turns: Some(u32::try_from(turns)?),
        ..AgentSpec::default()
    };
    let run = engine.agent(&spec.to_json())?.start("talk").await?;
    let outcome = run.wait().await?;
    ensure!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    engine.close().await?;
    drop((run, engine));
    let began = began.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(began)
}

/// Text that no layer can take for another: the digits of digests.
fn text(about: &str) -> String {
    let digests = (0_u32..).map(|n| Digest::of(format!("{about} {n}").as_bytes()));
    let digits = digests.flat_map(|digest| digest.as_bytes().to_owned());
    let digits = digits.flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = digits.filter_map(|digit| char::from_digit(u32::from(digit), 16));
    digits.take(MESSAGE_BYTES).collect()
}

/// Says something new and calls the tool, until the last turn.
struct Talker {
    turns: u64,
    began: Arc<Mutex<Vec<Duration>>>,
}

#[async_trait]
impl Model for Talker {
    fn name(&self) -> &str {
        MODEL
    }

    async fn answer(
        &self,
        request: &Request,
        _: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, ModelError> {
        let mut began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        began.push(now());
        let n = request.number;
        let mut parts = vec![Part::Text(text(&format!("said {n}")))];
        let mut finish = Finish::Stop;
        if n < self.turns {
            finish = Finish::ToolCalls;
            parts.push(Part::ToolCall(ToolCall {
                arguments: Json::from(json!({"n": n})),
                call: format!("call_{n}"),
                name: TOOL.to_owned(),
            }));
        }
        let role = Role::Assistant;
        Ok(Answer {
            message: Message { parts, role },
            finish,
            spent: Spend::default(),
        })
    }
}

/// Returns something new.
struct Look(Definition);

impl Look {
    fn new() -> Self {
        Self(Definition {
            name: TOOL.to_owned(),
            description: "Looks".to_owned(),
            schema: json!({"type": "object"}),
            effect: Effect::Read,
            declared: true,
            timeout: None,
            asks: false,
        })
    }
}

#[async_trait]
impl Tool for Look {
    fn definition(&self) -> &Definition {
        &self.0
    }

    async fn call(&self, call: &Call<'_>) -> Result<Value, ToolError> {
        Ok(json!(text(&format!("seen {}", call.arguments["n"]))))
    }
}
