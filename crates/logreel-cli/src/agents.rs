//! Who reads and drives agents for this program.

use std::path::Path;
use std::sync::Arc;

use logreel::core::event::Budget;
use logreel::spec_file::Problems;
use logreel::{Agents, Ctx, Driving, Json, TaskError};
use logreel_agent::AgentSpec;
use serde_json::Value;

/// Reads and drives agents.
pub fn agents() -> Arc<dyn Agents> {
    Arc::new(OnlyReads)
}

/// Whether the price of a model is known.
pub fn is_priced(_model: &str) -> bool {
    false
}

/// Stands in until the driver is here: reads agents, and fails their runs.
struct OnlyReads;

impl Agents for OnlyReads {
    fn load(&self, path: &Path) -> Result<Value, Problems> {
        Ok(AgentSpec::read(path, &is_priced)?.to_json())
    }

    fn lacks(&self, spec: &Value) -> Option<String> {
        let spec = match AgentSpec::from_json(spec) {
            Ok(spec) => spec,
            Err(error) => return Some(format!("its spec is not one this build reads: {error}")),
        };
        let mut names = spec.variables().into_iter();
        let unset = names.find(|name| std::env::var_os(name).is_none());
        unset.map(|name| format!("the variable {name} is not set"))
    }

    fn budget(&self, spec: &Value) -> Budget {
        AgentSpec::from_json(spec).unwrap_or_default().budget
    }

    fn plans(&self, spec: &Value) -> bool {
        AgentSpec::from_json(spec).unwrap_or_default().plan
    }

    fn drive(&self, _: Ctx, _: Arc<Value>, _: Json) -> Driving {
        Box::pin(async {
            let message = "agents are not driven by this build yet";
            Err(TaskError::of_kind("unbuilt", message).permanent())
        })
    }
}
