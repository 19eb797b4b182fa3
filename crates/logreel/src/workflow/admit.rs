//! What a run of a workflow needs to know about it before it starts.

use logreel_core::Json;
use logreel_core::event::{Budget, RunLimit};

use super::Workflow;
use crate::Error;

impl Workflow {
    /// Refuses an input that misses the workflow's schema.
    pub(crate) fn admit(&self, input: &Json) -> Result<(), Error> {
        let Some(schema) = self.input_schema() else {
            return Ok(());
        };
        schema
            .check(&input.to_value())
            .map_err(|misfit| Error::Input {
                name: self.name().to_owned(),
                misfit: misfit.to_string(),
            })
    }

    /// The limits it asks for, in the log's units.
    pub(crate) fn budget(&self) -> Budget {
        self.spec().budget.limits()
    }

    /// How many runs with the same key are driven at once.
    pub(crate) fn limit(&self) -> Option<RunLimit> {
        let limit = self.spec().limit.as_ref()?;
        Some(RunLimit {
            key: limit.key.clone(),
            max: limit.max,
        })
    }
}
