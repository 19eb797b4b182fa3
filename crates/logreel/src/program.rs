//! What a driver calls: a registered Rust function, or a workflow or an agent read from a run's own
//! log.

use std::sync::Arc;

use logreel_core::event::{Budget, Phase, RunKind, RunLimit};
use logreel_core::meaning::digest_of;
use logreel_core::{Digest, Json};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agents::{Agents, Driving};
use crate::ctx::Ctx;
use crate::error::TaskError;
use crate::workflow::Workflow;

pub(crate) type Call = Arc<dyn Fn(Ctx, Json) -> Driving + Send + Sync>;

/// A thing that can be run, whatever it is.
pub(crate) struct Program {
    pub(crate) name: Arc<str>,
    pub(crate) kind: RunKind,
    pub(crate) spec: Json,
    pub(crate) spec_digest: Digest,
    /// What it is, for a workflow; a task's code says it.
    pub(crate) workflow: Option<Workflow>,
    /// The limits it asks for.
    pub(crate) budget: Budget,
    /// How many runs of it, and of others with its key, are driven at once.
    pub(crate) limit: Option<RunLimit>,
    /// What its runs begin with.
    pub(crate) phase: Phase,
    pub(crate) call: Call,
}

/// What a task's spec is: the code itself cannot be digested, so its author says when it changed.
#[derive(Serialize)]
struct TaskSpec<'a> {
    name: &'a str,
    version: Option<&'a str>,
}

impl Program {
    /// A Rust function.
    pub(crate) fn of_task<I, O, F, Fut>(name: &str, function: F) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
        F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, TaskError>> + Send + 'static,
    {
        // The call is inside the future, so that a panic before the first await is the task's too.
        let function = Arc::new(function);
        let call = move |ctx: Ctx, input: Json| -> Driving {
            let function = Arc::clone(&function);
            Box::pin(async move {
                let input = input.decode().map_err(|error| {
                    let message = format!("the input does not fit the task: {error}");
                    TaskError::of_kind("input", message).permanent()
                })?;
                let output = function(ctx, input).await?;
                Ok(Json::of(&output)?)
            })
        };
        Self::of_version(name, None, Arc::new(call))
    }

    /// The same function, said to be of this version.
    pub(crate) fn of_version(name: &str, version: Option<&str>, call: Call) -> Self {
        let spec = TaskSpec { name, version };
        Self {
            name: Arc::from(name),
            kind: RunKind::Task,
            spec: Json::of(&spec).expect("two strings serialize"),
            spec_digest: digest_of(&spec).expect("two strings serialize"),
            workflow: None,
            budget: Budget::default(),
            limit: None,
            phase: Phase::Executing,
            call,
        }
    }

    /// A workflow.
    pub(crate) fn of_workflow(workflow: &Workflow) -> Self {
        let running = workflow.clone();
        let call = move |ctx: Ctx, input: Json| -> Driving {
            Box::pin(crate::workflow::run(ctx, running.clone(), input))
        };
        Self {
            name: Arc::from(workflow.name()),
            kind: RunKind::Workflow,
            spec: Json::from(workflow.json().clone()),
            spec_digest: workflow.digest(),
            workflow: Some(workflow.clone()),
            budget: workflow.budget(),
            limit: workflow.limit(),
            phase: Phase::Executing,
            call: Arc::new(call),
        }
    }

    /// An agent, by its spec.
    pub(crate) fn of_agent(agents: &Arc<dyn Agents>, spec: &Value) -> Self {
        let (agents, spec) = (Arc::clone(agents), Arc::new(spec.clone()));
        let name = spec.get("name").and_then(Value::as_str).unwrap_or("agent");
        Self {
            name: Arc::from(name),
            kind: RunKind::Agent,
            spec: Json::from((*spec).clone()),
            spec_digest: digest_of(&*spec).expect("a JSON tree serializes"),
            workflow: None,
            budget: agents.budget(&spec),
            limit: None,
            phase: match agents.plans(&spec) {
                true => Phase::Planning,
                false => Phase::Executing,
            },
            call: Arc::new(move |ctx, input| agents.drive(ctx, Arc::clone(&spec), input)),
        }
    }

    pub(crate) fn call(&self, ctx: Ctx, input: Json) -> Driving {
        (self.call)(ctx, input)
    }
}
