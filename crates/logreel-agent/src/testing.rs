//! For tests of agents: tools that do as they are told and count what they did.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use logreel::core::event::Effect;
use logreel::{Digest, Reconciled};
use serde_json::{Value, json};

use crate::tool::{Call, Definition, Tool, ToolError};

type Does = dyn Fn(&Value) -> Result<Value, ToolError> + Send + Sync;

/// A tool that is a function. Cheap to clone; clones count together.
#[derive(Clone)]
pub struct ScriptedTool {
    definition: Definition,
    does: Arc<Does>,
    reconciles: bool,
    done: Arc<Mutex<HashMap<Digest, (u32, Value)>>>,
}

impl ScriptedTool {
    /// A tool with this effect that takes any object. It is allowed without asking.
    pub fn new(
        name: &str,
        effect: Effect,
        does: impl Fn(&Value) -> Result<Value, ToolError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            definition: Definition {
                name: name.to_owned(),
                description: format!("Does {name}"),
                schema: json!({"type": "object"}),
                effect,
                declared: true,
                timeout: None,
                asks: false,
            },
            does: Arc::new(does),
            reconciles: false,
            done: Arc::default(),
        }
    }

    /// It is asked about before it is called.
    #[must_use]
    pub fn asking(mut self) -> Self {
        self.definition.asks = true;
        self
    }

    /// It knows what it did, by the key.
    #[must_use]
    pub fn reconciling(mut self) -> Self {
        self.reconciles = true;
        self
    }

    /// The arguments must fit this schema.
    #[must_use]
    pub fn schema(mut self, schema: Value) -> Self {
        self.definition.schema = schema;
        self
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.definition.name.clone()
    }

    /// How often it was called, by key.
    pub fn calls(&self) -> HashMap<Digest, u32> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.iter()
            .map(|(key, (times, _))| (*key, *times))
            .collect()
    }
}

#[async_trait]
impl Tool for ScriptedTool {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    async fn call(&self, call: &Call<'_>) -> Result<Value, ToolError> {
        let result = (self.does)(call.arguments)?;
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let known = done.entry(call.key).or_insert((0, result.clone()));
        known.0 += 1;
        Ok(result)
    }

    fn reconciles(&self) -> bool {
        self.reconciles
    }

    async fn reconcile(&self, call: &Call<'_>) -> Result<Reconciled<Value>, ToolError> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match done.get(&call.key) {
            Some((_, result)) => Reconciled::Done(result.clone()),
            None => Reconciled::NotDone,
        })
    }
}
