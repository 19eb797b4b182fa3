//! Starting a run of a spec, for whoever asked for it: `run` on the command line, `serve` over HTTP.

use std::path::PathBuf;

use logreel::{IfBusy, Json, RunId, Session, Started};

use crate::error::Failure;
use crate::spec::Spec;
use crate::store::Acting;
use crate::{git, spec};

/// What to run, on what, where.
pub struct Launch {
    pub spec: Spec,
    pub input: Json,
    /// The file it was read from.
    pub file: Option<PathBuf>,
    pub folder: PathBuf,
}

/// Under which names, and when.
pub struct Asked {
    pub id: Option<RunId>,
    pub session: Option<Session>,
    pub key: Option<String>,
    pub labels: Vec<(String, String)>,
    pub if_busy: IfBusy,
    /// Leave it to a worker.
    pub queue: bool,
}

/// Refuses an input that the spec does not take; a workflow's is looked at when it starts.
pub fn admit(spec: &Spec, input: &Json) -> Result<(), Failure> {
    let Spec::Agent(agent) = spec else {
        return Ok(());
    };
    spec::admit(agent, input)
}

pub async fn start(
    acting: &Acting,
    launch: &Launch,
    asked: Asked,
) -> anyhow::Result<Started<Json>> {
    let start = match &launch.spec {
        Spec::Workflow(workflow) => acting.engine.workflow(workflow).start(&launch.input),
        Spec::Agent(agent) => acting.engine.agent(&agent.to_json())?.start(&launch.input),
    };
    let mut start = start
        .dir(launch.folder.to_string_lossy())
        .if_busy(asked.if_busy);
    if let Some(file) = &launch.file {
        start = start.spec_file(file.to_string_lossy());
    }
    if let Some(git) = git::look(&launch.folder) {
        start = start.git(git);
    }
    if let Some(id) = asked.id {
        start = start.id(id);
    }
    if let Some(session) = &asked.session {
        start = start.session(session.as_str());
    }
    if let Some(key) = asked.key {
        start = start.key(key);
    }
    for (name, value) in asked.labels {
        start = start.label(name, value);
    }
    if asked.queue {
        start = start.queue();
    }
    Ok(start.begin().await?)
}
