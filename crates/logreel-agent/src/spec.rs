//! What an agent is: its file resolved, with every file it names inside. This is what a run stores and
//! what `spec_digest` covers; nothing here is a secret, only the names of variables that hold one.

use std::collections::BTreeMap;
use std::time::Duration;

use logreel::Digest;
use logreel::core::event::{Budget, Effect};
use logreel::core::meaning::digest_of;
use logreel::workflow::schema::{Misfit, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod beside;
mod check;
mod kind;
mod listing;
mod overrides;
mod read;
mod variables;

pub use beside::{Beside, Priced};
pub use kind::SpecKind;
pub use listing::{ListedTool, ListedVerdict};
pub use overrides::Overrides;

/// Turns before a run fails, when the spec says nothing.
pub const MAX_TURNS: u32 = 50;
/// Rounds of checks, when the spec says nothing.
pub const VERIFY_ROUNDS: u32 = 2;

/// An agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentSpec {
    /// Its name.
    pub name: String,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `PROVIDER/MODEL`, or `scripted/FILE`.
    pub model: String,
    /// The answers of a scripted model, line by line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<Vec<Value>>,
    /// Where the provider is, when it is elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The variable that holds the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Passed on to the model.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// The system text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The folder it works in, beneath the run's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// The tools it may call: names, or globs over those of MCP servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Agents it may call as tools, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, SubAgent>,
    /// Commands it may call as tools, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tool: BTreeMap<String, CommandTool>,
    /// What the input must fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Value>,
    /// What the output must fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Whether it makes a plan first.
    pub plan: bool,
    /// Turns before the run fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
    /// Rounds of checks before the run fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify_rounds: Option<u32>,
    /// When the context is made shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextSpec>,
    /// Limits.
    #[serde(skip_serializing_if = "is_default")]
    pub budget: Budget,
    /// What it may do.
    #[serde(skip_serializing_if = "is_default")]
    pub policy: PolicySpec,
    /// What must hold at the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verify: Vec<VerifySpec>,
    /// MCP servers, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp: BTreeMap<String, McpSpec>,
    /// Variables of its commands; `${VAR}` is read by whoever drives the run.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Variables that its commands inherit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<String>,
    /// Patterns of what must not be recorded, beside the usual key shapes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub redact: Vec<String>,
    /// What was said beside the file when it was read.
    #[serde(skip_serializing_if = "is_default")]
    pub overrides: Overrides,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An agent that another calls as a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubAgent {
    /// What it is for, as the caller is told.
    pub description: String,
    /// The agent.
    pub spec: Box<AgentSpec>,
}

/// A command as a tool: its arguments come as JSON on stdin.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommandTool {
    /// Shell text.
    pub run: String,
    /// What it does, for the model.
    pub description: String,
    /// What an interruption means; a write when nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// The JSON Schema of its arguments; any object when nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// How long it may take.
    #[serde(skip_serializing_if = "Option::is_none", with = "millis")]
    pub timeout: Option<Duration>,
    /// Finds out what became of an interrupted write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconcile: Option<String>,
}

/// When the context is made shorter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextSpec {
    /// Once a request took more input tokens than this.
    pub compact_at: u64,
}

/// What happens to a call that no pattern speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyDefault {
    /// Someone is asked.
    Ask,
    /// It is made.
    Allow,
    /// It is not.
    Deny,
}

/// Patterns `TOOL[:ARG]`, both globs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySpec {
    /// Without any pattern; when nothing is said, reads and file writes inside the folder are allowed
    /// and the rest asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<PolicyDefault>,
    /// Calls that are asked about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ask: Vec<String>,
    /// Calls that are made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Calls that are not made, whatever else is said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Whether asks are denials (`run --no-ask`).
    #[serde(skip_serializing_if = "is_default")]
    pub no_ask: bool,
}

/// A check at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifySpec {
    /// Its name.
    pub name: String,
    /// Shell text; exit 0 = it holds.
    pub run: String,
    /// How long it may take.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "millis")]
    pub timeout: Option<Duration>,
    /// Whether the whole depends on it.
    pub required: bool,
}

/// An MCP server: a command, or a URL.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpSpec {
    /// The program and its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Where it listens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Sent with every request; `${VAR}` is read by whoever drives the run.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Variables of its program.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Variables that its program inherits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<String>,
    /// How long a call may take.
    #[serde(skip_serializing_if = "Option::is_none", with = "millis")]
    pub timeout: Option<Duration>,
    /// Globs over its tools; all of them when nothing is said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Effects by globs over its tools.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub effects: BTreeMap<String, Effect>,
    /// Whether what the server says of its tools' effects is believed.
    #[serde(skip_serializing_if = "is_default")]
    pub trust_annotations: bool,
}

impl AgentSpec {
    /// A stored spec.
    pub fn from_json(spec: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(spec)
    }

    /// Whether it is known what its model costs; answers from a file cost nothing.
    pub fn is_priced(&self, priced: Priced<'_>) -> bool {
        check::is_priced(&self.model, priced)
    }

    /// Turns before the run fails.
    pub fn turns_max(&self) -> u32 {
        self.max_turns.unwrap_or(MAX_TURNS)
    }

    /// Rounds of checks before the run fails.
    pub fn verify_rounds_max(&self) -> u32 {
        self.verify_rounds.unwrap_or(VERIFY_ROUNDS)
    }

    /// The digest of its meaning: another whenever a file it names is.
    pub fn digest(&self) -> Digest {
        digest_of(&self.to_json()).expect("a JSON tree serializes")
    }

    /// Whether an input fits its schema.
    pub fn admit(&self, input: &Value) -> Result<(), Misfit> {
        let schema = self.input_schema.as_ref();
        // What was read compiles; what was stored was read.
        match schema.map(Schema::compile) {
            Some(Ok(schema)) => schema.check(input),
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// As it is stored.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("a spec of strings and numbers serializes")
    }
}

/// Durations as whole milliseconds.
mod millis {
    use super::{Deserialize, Duration};

    #[expect(clippy::ref_option, reason = "serde calls it")]
    pub(super) fn serialize<S: serde::Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let millis = duration.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
        serde::Serialize::serialize(&millis, serializer)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let millis = Option::<u64>::deserialize(deserializer)?;
        Ok(millis.map(Duration::from_millis))
    }
}
