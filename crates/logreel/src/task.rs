//! Tasks: Rust functions whose runs are durable.

use std::marker::PhantomData;
use std::sync::Arc;

use logreel_core::Json;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::Inner;
use crate::program::Program;
use crate::start::Start;

/// A registered task: starts runs of it.
pub struct Task<I, O> {
    engine: Arc<Inner>,
    def: Arc<Program>,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O> Clone for Task<I, O> {
    fn clone(&self) -> Self {
        Self {
            engine: Arc::clone(&self.engine),
            def: Arc::clone(&self.def),
            types: PhantomData,
        }
    }
}

impl<I: Serialize, O: DeserializeOwned> Task<I, O> {
    pub(crate) fn new(engine: Arc<Inner>, def: Arc<Program>) -> Self {
        Self {
            engine,
            def,
            types: PhantomData,
        }
    }

    /// Says which version of the code this is. A run started with another one is not driven on until
    /// someone accepts the change.
    #[must_use]
    pub fn version(self, version: &str) -> Self {
        let def = Program::of_version(&self.def.name, Some(version), Arc::clone(&self.def.call));
        let def = Arc::new(def);
        self.engine.registry.add(&def);
        Self::new(self.engine, def)
    }

    pub(crate) fn program(&self) -> &Arc<Program> {
        &self.def
    }

    /// The name it was registered under.
    pub fn name(&self) -> &str {
        &self.def.name
    }

    /// Starts a run; awaited, gives its handle.
    pub fn start(&self, input: &I) -> Start<O> {
        Start::new(
            Arc::clone(&self.engine),
            Arc::clone(&self.def),
            Json::of(input),
        )
    }
}
