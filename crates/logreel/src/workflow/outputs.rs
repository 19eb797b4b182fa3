//! What steps gave, read from the log when a template asks for it. Outputs are not kept in memory
//! beyond a bounded cache: a workflow of ten thousand steps needs no more of it than one of ten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use logreel_core::event::{Resolution, StepResolved, WaitEnded};
use logreel_core::{Body, Json, Payload, Seq, StepId, StepState};
use serde_json::{Value, json};

use super::run::{Ended, Running};
use super::spec::{Does, StepSpec, WaitSpec};
use super::template::Scope;
use crate::error::TaskError;

/// Bytes of JSON kept.
const CACHE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Outputs that were read lately.
#[derive(Default)]
pub(super) struct Outputs(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    outputs: HashMap<usize, Arc<Value>>,
    bytes: usize,
}

impl Outputs {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, step: usize) -> Option<Arc<Value>> {
        self.cache().outputs.get(&step).cloned()
    }

    fn put(&self, step: usize, bytes: usize, value: &Arc<Value>) {
        let mut cache = self.cache();
        if cache.bytes + bytes > CACHE_BYTES_MAX {
            *cache = Cache::default();
        }
        if bytes <= CACHE_BYTES_MAX && cache.outputs.insert(step, Arc::clone(value)).is_none() {
            cache.bytes += bytes;
        }
    }
}

impl Running<'_> {
    /// What templates may see when they look at the results of these steps.
    pub(super) async fn scope(&self, looked_at: &[usize]) -> Result<Scope, TaskError> {
        let mut scope = Scope::new(&self.ctx.run_id().to_string(), &self.input);
        for step in looked_at {
            let Some(ended) = self.end_of(*step) else {
                // `needs` says otherwise, and the check of the graph that templates keep to it.
                let id = &self.workflow.step(*step).id;
                let message = format!("step `{id}` is looked at before it has ended");
                return Err(TaskError::of_kind("bug", message).permanent());
            };
            let exit_code = match &ended {
                Ended::Finished => Some(0),
                Ended::Failed { exit_code } => *exit_code,
                Ended::Mapped(_) | Ended::Skipped => None,
            };
            let output = self.output_of(*step).await?;
            let id = &self.workflow.step(*step).id;
            scope.add_step(id, &output, exit_code, ended.status());
        }
        Ok(scope)
    }

    /// The output of a step that has ended; null when it failed or was skipped.
    pub(super) async fn output_of(&self, step: usize) -> Result<Arc<Value>, TaskError> {
        if let Some(known) = self.outputs.get(step) {
            return Ok(known);
        }
        let written = self.written_output(step).await?;
        let value = Arc::new(written.to_value());
        self.outputs.put(step, written.text().len(), &value);
        Ok(value)
    }

    /// [`Running::output_of`] as it was written, to the last digit of a number that no value holds.
    pub(super) async fn written_output(&self, step: usize) -> Result<Json, TaskError> {
        let spec = self.workflow.step(step);
        match self.end_of(step) {
            Some(Ended::Finished) => {
                let id = super::run::step_id([&spec.id])?;
                self.recorded(spec, &id).await
            }
            Some(Ended::Mapped(items)) => {
                let mut outputs = Vec::with_capacity(items.len());
                for item in &items {
                    outputs.push(self.recorded(spec, item).await?);
                }
                Ok(Json::of(&outputs)?)
            }
            Some(Ended::Failed { .. } | Ended::Skipped) | None => Ok(Json::null()),
        }
    }

    /// The result the log has for a step or an item; null when it has none.
    async fn recorded(&self, spec: &StepSpec, step: &StepId) -> Result<Json, TaskError> {
        let journal = &self.ctx.0.journal;
        let at = journal.with_state(|state| match state.steps.get(step) {
            Some(StepState::Finished { seq, .. } | StepState::Answered { seq }) => Some(*seq),
            Some(StepState::Open(_)) | None => None,
        });
        let Some(seq) = at else {
            return Ok(Json::null());
        };
        match journal.result(seq).await?.body {
            Body::StepFinished(finished) => self.resolve(&finished.output).await,
            Body::StepResolved(StepResolved {
                resolution: Resolution::Returned(output),
                ..
            }) => self.resolve(&output).await,
            Body::WaitEnded(ended) => self.answer(spec, &ended).await,
            other => Err(no_result(seq, other.kind())),
        }
    }

    /// What the end of a wait gives.
    async fn answer(&self, spec: &StepSpec, ended: &WaitEnded) -> Result<Json, TaskError> {
        let value = self.resolve(&ended.value).await?;
        Ok(match &spec.does {
            Does::Wait(WaitSpec::Approval { .. }) => {
                let answer = json!({ "approved": ended.approved, "by": ended.by, "value": value });
                Json::from(answer)
            }
            _ => value,
        })
    }

    async fn resolve(&self, payload: &Payload) -> Result<Json, TaskError> {
        Ok(self.ctx.0.journal.value(payload).await?)
    }
}

fn no_result(seq: Seq, kind: &str) -> TaskError {
    let message = format!("event {seq} should hold a result but is {kind}");
    TaskError::of_kind("bug", message).permanent()
}
