//! What a run of a workflow needs to know about it before it starts.

use logreel_core::Json;
use logreel_core::event::Budget;

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
        let spec = &self.spec().budget;
        Budget {
            children: spec.children,
            tokens: spec.tokens,
            tool_calls: spec.tool_calls,
            usd_micros: spec.usd.map(|usd| (usd * 1e6).round() as u64),
            wall_ms: spec
                .wall
                .map(|wall| u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}
