//! What a long conversation takes on disk beside what was said in it (DESIGN 7).
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use logreel::core::event::{Effect, Spend};
use logreel::{Durability, Engine, Json, Outcome};
use logreel_agent::testing::ScriptedTool;
use logreel_agent::{
    AgentSpec, Agents, Answer, Delta, Finish, Message, Model, ModelError, Part, Request, Role,
    ToolCall,
};
use serde_json::json;

const TURNS: u64 = 200;
const MESSAGE_BYTES: usize = 2000;

/// Text that no layer can make smaller: hexadecimal digits of a digest, for ever.
fn text(seed: u64) -> String {
    let mut text = String::new();
    for n in 0.. {
        if text.len() >= MESSAGE_BYTES {
            break;
        }
        let digest = logreel::Digest::of(format!("{seed} {n}").as_bytes());
        digest
            .as_bytes()
            .iter()
            .for_each(|byte| text += &format!("{byte:02x}"));
    }
    text.truncate(MESSAGE_BYTES);
    text
}

/// Says something new and calls the tool, until the last turn.
struct Talker;

#[async_trait]
impl Model for Talker {
    fn name(&self) -> &'static str {
        "own/talker"
    }

    async fn answer(
        &self,
        request: &Request,
        _: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, ModelError> {
        let mut parts = vec![Part::Text(text(request.number))];
        let is_last = request.number == TURNS;
        if !is_last {
            parts.push(Part::ToolCall(ToolCall {
                arguments: Json::from(json!({"n": request.number})),
                call: format!("call_{}", request.number),
                name: "look".to_owned(),
            }));
        }
        Ok(Answer {
            message: Message {
                parts,
                role: Role::Assistant,
            },
            finish: if is_last {
                Finish::Stop
            } else {
                Finish::ToolCalls
            },
            spent: Spend::default(),
        })
    }
}

/// Bytes of the file once everything is in it, without the pages that are free.
fn on_disk(path: &Path) -> u64 {
    let db = rusqlite::Connection::open(path).unwrap();
    let busy: i64 = db
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
        .unwrap();
    assert_eq!(busy, 0);
    let pragma = |name: &str| -> u32 {
        db.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
            .unwrap()
    };
    u64::from(pragma("page_count") - pragma("freelist_count")) * u64::from(pragma("page_size"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_conversation_takes_at_most_twice_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let look = ScriptedTool::new("look", Effect::Read, |arguments| {
        Ok(json!(text(
            1000 + arguments["n"].as_u64().unwrap_or_default()
        )))
    });
    let engine = Engine::builder()
        .durability(Durability::Relaxed)
        .sqlite(&path)
        .agents(Arc::new(Agents::new().tool(look).model(Talker)))
        .build()
        .await
        .unwrap();
    let spec = AgentSpec {
        name: "talk".to_owned(),
        model: "own/talker".to_owned(),
        tools: vec!["look".to_owned()],
        max_turns: Some(u32::try_from(TURNS).unwrap()),
        ..AgentSpec::default()
    };
    let run = engine.agent(&spec.to_json()).unwrap();
    let run = run.start("talk").await.unwrap();
    let outcome = run.wait().await.unwrap();
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    engine.close().await.unwrap();
    let said = (2 * TURNS - 1) * MESSAGE_BYTES as u64;
    let ratio = on_disk(&path) as f64 / said as f64;
    assert!(ratio <= 2.0, "{ratio:.2} times what was said");
}
