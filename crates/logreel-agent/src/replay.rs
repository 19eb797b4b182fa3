//! An agent that is replayed: its model says what it said, its tools are there to be known and never
//! called, and nothing outside is looked at.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use logreel::core::event::ModelFailed;
use logreel::core::{CallId, Payload};
use logreel::{Body, Log, TaskError};
use serde_json::Value;

use crate::environment::Environment;
use crate::message::Message;
use crate::model::{Answer, Delta, Finish, Model, ModelError, Request};
use crate::spec::AgentSpec;
use crate::tool::{Call, Definition, Tool, ToolError};

/// What came of a recorded model call.
pub(crate) enum Said {
    Answered(Answer),
    Failed(Box<ModelFailed>),
}

/// What the log has of a model call.
pub(crate) async fn said(log: Log<'_>, call: &CallId) -> Option<Result<Said, TaskError>> {
    let body = log.replaying()?.model(call).await;
    Some(match body {
        Body::ModelAnswered(answered) => {
            let message = match &answered.message {
                Payload::Inline(json) => Ok(json.clone()),
                reference @ Payload::Blob(_) => log.value(reference).await,
            };
            message.and_then(|message| {
                Ok(Said::Answered(Answer {
                    message: message.decode::<Message>()?,
                    finish: finish(answered.finish_reason.as_deref()),
                    spent: answered.spent,
                }))
            })
        }
        Body::ModelFailed(failed) => Ok(Said::Failed(Box::new(failed))),
        other => {
            let message = format!("`{}` should end a model call", other.kind());
            Err(TaskError::of_kind("bug", message).permanent())
        }
    })
}

fn finish(reason: Option<&str>) -> Finish {
    let known = [
        Finish::Stop,
        Finish::ToolCalls,
        Finish::Length,
        Finish::Refused,
    ];
    let reason = reason.unwrap_or_default();
    let found = known.into_iter().find(|it| it.as_str() == reason);
    found.unwrap_or_else(|| Finish::Other(reason.to_owned()))
}

/// A model by its name only.
pub(crate) struct NamedModel(pub(crate) String);

#[async_trait]
impl Model for NamedModel {
    fn name(&self) -> &str {
        &self.0
    }

    async fn answer(
        &self,
        _request: &Request,
        _live: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, ModelError> {
        let message = "a replay asks no model".to_owned();
        Err(ModelError::Invalid { message })
    }
}

/// A tool that is known and cannot be called: in a replay its outcome is in the log.
pub(crate) struct KnownTool(pub(crate) Definition);

#[async_trait]
impl Tool for KnownTool {
    fn definition(&self) -> &Definition {
        &self.0
    }

    async fn call(&self, _call: &Call<'_>) -> Result<Value, ToolError> {
        Err(ToolError::failed("a replay calls no tool"))
    }
}

/// A file tool by what its path says, wherever that would lead.
pub(crate) struct FsOnPaper {
    definition: Definition,
    folder: Arc<Path>,
}

impl FsOnPaper {
    pub(crate) fn all(folder: &Path) -> Vec<Self> {
        // As policies read their patterns.
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let folder: Arc<Path> = folder.into();
        let tool = |definition| Self {
            definition,
            folder: Arc::clone(&folder),
        };
        crate::tool::fs_definitions()
            .into_iter()
            .map(tool)
            .collect()
    }
}

#[async_trait]
impl Tool for FsOnPaper {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn subjects(&self, arguments: &Value) -> Result<Vec<String>, ToolError> {
        crate::tool::fs_subject(&self.folder, arguments).map(|subject| vec![subject])
    }

    async fn call(&self, _call: &Call<'_>) -> Result<Value, ToolError> {
        Err(ToolError::failed("a replay calls no tool"))
    }
}

/// The environment with something for every variable that the spec names: nobody is given it.
pub(crate) fn environment(spec: &AgentSpec) -> Environment {
    let env = Environment::of_process();
    env.with_missing(spec.variables().into_iter())
}
