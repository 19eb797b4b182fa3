//! Tasks: Rust functions whose runs are durable.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use logreel_core::meaning::digest_of;
use logreel_core::{Digest, Json};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ctx::Ctx;
use crate::engine::Inner;
use crate::error::TaskError;
use crate::start::Start;

type Called = Pin<Box<dyn Future<Output = Result<Json, TaskError>> + Send>>;

/// A registered function, whatever its types.
pub(crate) struct TaskDef {
    pub(crate) name: Arc<str>,
    pub(crate) spec: Json,
    pub(crate) spec_digest: Digest,
    call: Arc<dyn Fn(Ctx, Json) -> Called + Send + Sync>,
}

/// What a task's spec is: the code itself cannot be digested, so its author says when it changed.
#[derive(Serialize)]
struct Spec<'a> {
    name: &'a str,
    version: Option<&'a str>,
}

impl TaskDef {
    pub(crate) fn new<I, O, F, Fut>(name: &str, function: F) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
        F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, TaskError>> + Send + 'static,
    {
        // The call is inside the future, so that a panic before the first await is the task's too.
        let function = Arc::new(function);
        let call = move |ctx: Ctx, input: Json| -> Called {
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
        Self::with_version(name, None, Arc::new(call))
    }

    fn with_version(
        name: &str,
        version: Option<&str>,
        call: Arc<dyn Fn(Ctx, Json) -> Called + Send + Sync>,
    ) -> Self {
        let spec = Spec { name, version };
        Self {
            name: Arc::from(name),
            spec: Json::of(&spec).expect("two strings serialize"),
            spec_digest: digest_of(&spec).expect("two strings serialize"),
            call,
        }
    }

    pub(crate) fn call(&self, ctx: Ctx, input: Json) -> Called {
        (self.call)(ctx, input)
    }
}

/// A registered task: starts runs of it.
pub struct Task<I, O> {
    engine: Arc<Inner>,
    def: Arc<TaskDef>,
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
    pub(crate) fn new(engine: Arc<Inner>, def: Arc<TaskDef>) -> Self {
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
        let def = TaskDef::with_version(&self.def.name, Some(version), Arc::clone(&self.def.call));
        let def = Arc::new(def);
        self.engine.register(Arc::clone(&def));
        Self::new(self.engine, def)
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
