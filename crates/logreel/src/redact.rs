//! What people say to runs, without secrets: what they start with, say, answer, signal and give as a
//! reason. What agents and commands say is redacted where they are driven.

use logreel_core::event::{Resolution, RunKind};
use logreel_core::{Json, Payload, RunId};
use serde_json::Value;

use crate::agents::Agents;
use crate::engine::Inner;
use crate::program::Program;
use crate::workflow::Workflow;
use crate::workflow::secrets::Secrets;

/// Nothing shorter is a secret, with the quotes of its JSON.
const SECRET_BYTES_MIN: usize = 6;

/// Takes secrets out of what is about to be recorded in one run.
pub(crate) struct Redaction<'e> {
    agents: Option<&'e dyn Agents>,
    /// The spec of an agent.
    spec: Option<Value>,
    /// The variables of a workflow.
    secrets: Secrets,
}

impl Inner {
    /// For a run of this program that is about to start.
    pub(crate) fn redaction(&self, program: &Program) -> Redaction<'_> {
        let spec = program.spec.to_value();
        self.redaction_of(program.kind, Some(spec), program.workflow.as_ref())
    }

    /// For a run that is there. A spec that cannot be read does not keep anyone from cancelling it.
    pub(crate) async fn redaction_in(&self, run: &RunId) -> Redaction<'_> {
        let entry = match self.store.entry(run).await {
            Ok(entry) => entry,
            // The command itself will say so.
            Err(_) => return self.redaction_of(RunKind::Task, None, None),
        };
        let kind = entry.row.facts.kind;
        let spec = match kind {
            RunKind::Agent | RunKind::Workflow => self.stored_spec(&entry).await.ok(),
            RunKind::Task | RunKind::External | RunKind::Record => None,
        };
        let spec = spec.map(|spec| spec.to_value());
        let workflow = spec.as_ref().filter(|_| kind == RunKind::Workflow);
        let workflow = workflow.and_then(|spec| Workflow::from_json(spec).ok());
        self.redaction_of(kind, spec, workflow.as_ref())
    }

    pub(crate) fn redaction_of(
        &self,
        kind: RunKind,
        spec: Option<Value>,
        workflow: Option<&Workflow>,
    ) -> Redaction<'_> {
        // What a task records is its code's own business.
        let has_agents = kind != RunKind::Task;
        Redaction {
            agents: self.registry.agents().filter(|_| has_agents),
            spec: spec.filter(|_| kind == RunKind::Agent),
            secrets: workflow.map(Secrets::here).unwrap_or_default(),
        }
    }
}

impl Redaction<'_> {
    /// The value without secrets; as it was written when it has none.
    pub(crate) fn json(&self, json: Json) -> Json {
        self.counted(json).0
    }

    /// [`Redaction::json`], and how many secrets that are no workflow's were taken out.
    pub(crate) fn counted(&self, json: Json) -> (Json, u32) {
        if json.text().len() < SECRET_BYTES_MIN {
            return (json, 0);
        }
        let value = json.to_value();
        let without = self.secrets.redact(value.clone());
        let (without, count) = match self.agents {
            Some(agents) => agents.redact(self.spec.as_ref(), without),
            None => (without, 0),
        };
        match without == value {
            true => (json, 0),
            false => (Json::from(without), count),
        }
    }

    /// The text without secrets.
    pub(crate) fn text(&self, text: String) -> String {
        match self.json(Json::from(Value::from(text))).to_value() {
            Value::String(text) => text,
            other => other.to_string(),
        }
    }

    /// What someone said became of a write, without secrets, with the blobs it needs.
    pub(crate) fn resolution(&self, resolution: Resolution) -> Resolution {
        match resolution {
            Resolution::Returned(Payload::Inline(json)) => {
                // What was inline does not grow by much.
                Resolution::Returned(Payload::of(self.json(json)).0)
            }
            Resolution::Failed(message) => Resolution::Failed(self.text(message)),
            other @ (Resolution::Returned(Payload::Blob(_)) | Resolution::Retry) => other,
        }
    }
}
