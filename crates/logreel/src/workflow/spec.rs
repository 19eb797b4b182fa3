//! What a workflow file says, as data: named steps, what each needs, what each does.
//!
//! Serialized, this is again a spec, with every file it named inside it: what is stored with a run
//! is what `check` reads. Reading one is [`super::read`]; whether it makes sense is
//! [`super::graph`]'s to say.

use std::collections::BTreeMap;
use std::time::Duration;

use logreel_core::event::{Budget, Effect};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A workflow as written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkflowSpec {
    /// Its name; runs are listed by it.
    pub name: String,
    /// The JSON Schema its input must fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Value>,
    /// Its output, with templates; without it, that of the only step nothing needs, else an object by
    /// id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Limits.
    #[serde(skip_serializing_if = "BudgetSpec::is_empty")]
    pub budget: BudgetSpec,
    /// How many steps may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How many runs with the same key may be driven at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// The steps, in the order of the file.
    #[serde(rename = "step")]
    pub steps: Vec<StepSpec>,
}

/// `[budget]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct BudgetSpec {
    /// Tokens, input and output together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
    /// Driven time.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "span")]
    pub wall: Option<Duration>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
    /// Child runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<u64>,
}

impl BudgetSpec {
    /// The limits in the log's units.
    pub fn limits(&self) -> Budget {
        Budget {
            children: self.children,
            tokens: self.tokens,
            tool_calls: self.tool_calls,
            usd_micros: self.usd.map(|usd| (usd * 1e6).round() as u64),
            wall_ms: self
                .wall
                .map(|wall| u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `limit`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// What is counted together.
    pub key: String,
    /// How many at once.
    pub max: u32,
}

/// `[[step]]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepSpec {
    /// Its name in the workflow.
    pub id: String,
    /// Steps that must have ended before it starts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// A template; when it comes out false, null, 0 or empty, the step is skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// What it works on, with templates: a command's stdin, a child's input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// Variables for its command, with templates and `${VAR}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Variables that must be set and whose values are never recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<String>,
    /// Its folder, relative to the run's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// What an interruption means; `None` = nobody said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// How often it is tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySpec>,
    /// How long an attempt, or a wait, may take.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "span")]
    pub timeout: Option<Duration>,
    /// What its failure means for the run.
    #[serde(skip_serializing_if = "OnError::is_default")]
    pub on_error: OnError,
    /// The JSON Schema its output must fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// A template that gives a list: the step runs once for each of its items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map: Option<Value>,
    /// A template that names an item; without it, the digest of the item does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map_key: Option<String>,
    /// How many items run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// What it does.
    #[serde(flatten)]
    pub does: Does,
}

impl StepSpec {
    /// A step that says nothing but what it does.
    pub fn new(id: impl Into<String>, does: Does) -> Self {
        Self {
            id: id.into(),
            needs: Vec::new(),
            when: None,
            input: None,
            env: BTreeMap::new(),
            env_from: Vec::new(),
            dir: None,
            effect: None,
            retry: None,
            timeout: None,
            on_error: OnError::default(),
            output_schema: None,
            map: None,
            map_key: None,
            concurrency: None,
            does,
        }
    }
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Does {
    /// `run`: a command, given to `sh -c`.
    Run(RunSpec),
    /// `agent`: a child run of an agent.
    Agent {
        /// The agent's own spec, with the files it names.
        agent: Value,
    },
    /// `workflow`: a child run of another workflow.
    Workflow {
        /// That workflow.
        workflow: Box<WorkflowSpec>,
    },
    /// `task`: a registered Rust function, called as a step of this run.
    Task {
        /// The name it was registered under.
        task: String,
    },
    /// `wait`: for a person, a signal or a time.
    Wait(WaitSpec),
}

/// A command.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunSpec {
    /// Given to `sh -c` as it is; never a template.
    pub run: String,
    /// The command that tells whether an interrupted write happened: 0 = done, stdout is the result;
    /// 10 = surely not done; anything else = unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconcile: Option<String>,
    /// How to understand its output while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
}

/// A wait.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "wait", rename_all = "snake_case")]
pub enum WaitSpec {
    /// Someone must say yes or no.
    Approval {
        /// What they are asked, a template.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt: Option<String>,
        /// What happens without an answer in time.
        #[serde(skip_serializing_if = "OnTimeout::is_default")]
        on_timeout: OnTimeout,
        /// What a no means.
        #[serde(skip_serializing_if = "OnDeny::is_default")]
        on_deny: OnDeny,
    },
    /// A signal must come.
    Signal {
        /// Its name.
        name: String,
    },
    /// Time must pass.
    Timer {
        /// This long from when the step starts.
        #[serde(
            rename = "for",
            skip_serializing_if = "Option::is_none",
            serialize_with = "span"
        )]
        lasts: Option<Duration>,
        /// Until this time (RFC 3339), a template.
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<String>,
    },
}

/// `retry`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RetrySpec {
    /// How many attempts in all; 0 means 1.
    pub attempts: u32,
    /// `"1s..30s"`: the first wait and the longest; it doubles in between.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "spans")]
    pub backoff: Option<(Duration, Duration)>,
}

/// What a failed step means for the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The run fails.
    #[default]
    Fail,
    /// The run goes on; the step's output is null.
    Continue,
}

impl OnError {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What an approval without an answer in time means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// The step fails.
    #[default]
    Fail,
    /// As if someone had said yes.
    Approve,
    /// As if someone had said no.
    Deny,
}

impl OnTimeout {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What a no means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDeny {
    /// The step fails.
    #[default]
    Fail,
    /// The run goes on; `approved` is false.
    Continue,
}

impl OnDeny {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

fn span<S: Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    match span {
        Some(span) => to.serialize_str(&format!("{}ms", span.as_millis())),
        None => to.serialize_none(),
    }
}

fn spans<S: Serializer>(spans: &Option<(Duration, Duration)>, to: S) -> Result<S::Ok, S::Error> {
    match spans {
        Some((first, longest)) => {
            let text = format!("{}ms..{}ms", first.as_millis(), longest.as_millis());
            to.serialize_str(&text)
        }
        None => to.serialize_none(),
    }
}
