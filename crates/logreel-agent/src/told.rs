//! What a model is told beside the conversation: the system text, the tools, the parameters. The log
//! keeps it once for all calls that are told the same, so that it can be known later what a model saw, and
//! so that a replay notices what it would see now.

use std::time::Duration;

use logreel::core::Blob;
use logreel::core::event::Effect;
use logreel::core::meaning::canonical;
use logreel::{Digest, TaskError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::agent::Agent;
use crate::model::{Request, ToolSpec};
use crate::progress::Purpose;
use crate::prompt;
use crate::tool::Definition;

/// What is stored.
#[derive(Serialize)]
struct Told<'a> {
    /// What follows the conversation without becoming part of it.
    closing: Option<String>,
    output_schema: Option<&'a Value>,
    params: &'a Map<String, Value>,
    system: Option<&'a str>,
    tools: Vec<ToldTool<'a>>,
}

/// A tool: what the model is told of it, and for our own the rest of its definition.
#[derive(Serialize)]
struct ToldTool<'a> {
    #[serde(flatten)]
    told: Option<Kept>,
    description: &'a str,
    name: &'a str,
    schema: &'a Value,
}

/// What a tool is, beside what models are told of it.
#[derive(Serialize, Deserialize)]
struct Kept {
    asks: bool,
    declared: bool,
    effect: Effect,
    timeout_ms: Option<u64>,
}

impl Agent<'_> {
    /// What calls for this purpose are told, and its bytes when this drive has not stored them yet.
    pub(crate) fn told(
        &self,
        purpose: Purpose,
        request: &Request,
    ) -> Result<(Digest, Option<Blob>), TaskError> {
        let mut known = self.told.lock().unwrap_or_else(|it| it.into_inner());
        if let Some(digest) = known.get(&purpose) {
            return Ok((*digest, None));
        }
        let tool = |tool: &'_ ToolSpec| {
            let own = self.toolbox.get(&tool.name);
            own.map(|own| Kept::of(own.definition()))
        };
        let tools = request.tools.iter().map(|it| ToldTool {
            told: tool(it),
            description: &it.description,
            name: &it.name,
            schema: &it.schema,
        });
        let told = Told {
            closing: prompt::closing(purpose).map(|closing| closing.words()),
            output_schema: request.output_schema.as_deref(),
            params: &request.params,
            system: request.system.as_deref(),
            tools: tools.collect(),
        };
        let (told, _) = self.redactor.value(serde_json::to_value(&told)?);
        let blob = Blob::new(canonical(&told)?.into_bytes());
        let digest = blob.digest();
        let is_new = !known.values().any(|it| *it == digest);
        known.insert(purpose, digest);
        Ok((digest, is_new.then_some(blob)))
    }
}

impl Kept {
    fn of(definition: &Definition) -> Self {
        let timeout_ms = |timeout: Duration| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        Self {
            asks: definition.asks,
            declared: definition.declared,
            effect: definition.effect,
            timeout_ms: definition.timeout.map(timeout_ms),
        }
    }
}

/// The tools of servers that a model was told of: in a replay there is nobody to ask for them.
pub(crate) fn tools_of_servers(told: &Value, servers: &[&str]) -> Vec<Definition> {
    let tools = told["tools"].as_array().into_iter().flatten();
    let definition = |tool: &Value| {
        let name = tool["name"].as_str()?;
        let (server, _) = name.split_once('.')?;
        let kept = Kept::deserialize(tool).ok()?;
        servers.contains(&server).then(|| Definition {
            name: name.to_owned(),
            description: tool["description"].as_str().unwrap_or_default().to_owned(),
            schema: tool["schema"].clone(),
            effect: kept.effect,
            declared: kept.declared,
            timeout: kept.timeout_ms.map(Duration::from_millis),
            asks: kept.asks,
        })
    };
    tools.filter_map(definition).collect()
}
