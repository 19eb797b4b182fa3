//! Starting runs of a workflow.

use std::sync::Arc;

use logreel_core::Json;
use serde::Serialize;

use crate::engine::Inner;
use crate::program::Program;
use crate::start::Start;

/// A registered workflow: starts runs of it. Made by [`crate::Engine::workflow`].
#[derive(Clone)]
pub struct WorkflowRuns {
    engine: Arc<Inner>,
    program: Arc<Program>,
}

impl WorkflowRuns {
    pub(crate) fn new(engine: Arc<Inner>, program: Arc<Program>) -> Self {
        Self { engine, program }
    }

    /// Starts a run; awaited, gives its handle.
    pub fn start<T: Serialize + ?Sized>(&self, input: &T) -> Start<Json> {
        let (engine, program) = (Arc::clone(&self.engine), Arc::clone(&self.program));
        Start::new(engine, program, Json::of(input))
    }
}
