//! The seam to agents, which are another crate's: this one knows what an agent's spec is called and
//! who drives it, and nothing of models.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use logreel_core::Json;
use logreel_core::event::Budget;
use logreel_core::meaning::digest_of;
use serde::Serialize;
use serde_json::Value;

use crate::child::Child;
use crate::ctx::Ctx;
use crate::engine::{Engine, Inner};
use crate::error::{Error, TaskError};
use crate::program::Program;
use crate::spec_file::Problems;
use crate::start::Start;
use crate::step::Retry;
use crate::stream_step::Understands;

/// A drive of an agent's run, until it has an output, fails or is dropped.
pub type Driving = Pin<Box<dyn Future<Output = Result<Json, TaskError>> + Send>>;

/// Models and tools that a spec names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// Models, each once.
    pub models: Vec<String>,
    /// Tools, each once.
    pub tools: Vec<String>,
}

/// Reads and drives agents. Given to [`crate::Builder::agents`].
pub trait Agents: Send + Sync {
    /// The spec of the agent in a file, with every file it names inside it: a JSON object with a
    /// `name`.
    fn load(&self, path: &Path) -> Result<Value, Problems>;

    /// What the agent asks for and this process does not have, such as a variable.
    fn lacks(&self, spec: &Value) -> Option<String>;

    /// The limits it asks for.
    fn budget(&self, spec: &Value) -> Budget;

    /// Why an input is not what the agent takes, if it is not.
    fn misfit(&self, _spec: &Value, _input: &Value) -> Option<String> {
        None
    }

    /// A model of it, or of the agents inside it, whose price is not known: no limit in dollars can be
    /// kept then.
    fn unpriced(&self, _spec: &Value) -> Option<String> {
        None
    }

    /// What it and the agents inside it name, for the record.
    fn named(&self, _spec: &Value) -> Named {
        Named::default()
    }

    /// Takes secrets out of what a person says to a run, of an agent with this spec or of something else,
    /// and counts them.
    fn redact(&self, _spec: Option<&Value>, value: Value) -> (Value, u32) {
        (value, 0)
    }

    /// Whether its runs begin with a plan.
    fn plans(&self, spec: &Value) -> bool;

    /// What in such a stream has no price, if something has none: no limit in dollars can be kept then.
    fn unpriced_stream(&self, _format: &str) -> Option<String> {
        None
    }

    /// Whoever understands what another agent prints: a name such as `claude-code`, or the text of a
    /// mapping. None of the secrets is in what it makes of that. `None` when nobody here does.
    fn stream(&self, _format: &str, _secrets: &[String]) -> Option<Box<dyn Understands>> {
        None
    }

    /// Drives a run of it. An agent goes on by the fold: called again after a crash, it looks at
    /// [`Ctx::log`] and does what is left.
    fn drive(&self, ctx: Ctx, spec: Arc<Value>, input: Json) -> Driving;
}

/// A registered agent: starts runs of it. Made by [`Engine::agent`].
#[derive(Clone)]
pub struct AgentRuns {
    engine: Arc<Inner>,
    program: Arc<Program>,
}

impl AgentRuns {
    /// Starts a run; awaited, gives its handle.
    pub fn start<T: Serialize + ?Sized>(&self, input: &T) -> Start<Json> {
        let (engine, program) = (Arc::clone(&self.engine), Arc::clone(&self.program));
        Start::new(engine, program, Json::of(input))
    }
}

impl Ctx {
    /// Runs an agent as a child run of this one, and gives its output. A cancel of this run cancels the
    /// child; while nothing but the child goes on, this run holds no lease.
    pub async fn agent(
        &self,
        name: impl crate::StepName,
        spec: &Value,
        input: Json,
    ) -> Result<Json, TaskError> {
        let step = self.0.ask(name.step_id())?;
        let program = self.0.engine.registry.add_agent(spec)?;
        let child = Child {
            program: &program,
            input_digest: Some(digest_of(&input)?),
            input,
            retry: Retry::attempts(1),
            timeout: None,
            check: &|_| Ok(()),
        };
        crate::child::run(self, &step, child).await
    }
}

impl Engine {
    /// Lets this engine drive agents, like [`crate::Builder::agents`]; `false` when it does already.
    pub fn drive_agents(&self, agents: Arc<dyn Agents>) -> bool {
        self.0.registry.set_agents(agents)
    }

    /// Registers an agent by its spec, as [`Agents::load`] gave it.
    pub fn agent(&self, spec: &Value) -> Result<AgentRuns, Error> {
        Ok(AgentRuns {
            program: self.0.registry.add_agent(spec)?,
            engine: Arc::clone(&self.0),
        })
    }
}
