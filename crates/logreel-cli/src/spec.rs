//! Spec files: a workflow or an agent, or a clear word about what is wrong with it.

use std::path::{Path, PathBuf};

use logreel::workflow::{Problems, Workflow};
use logreel::{Ask, Digest, Engine, ErrorKind, Json, ResumeOutcome, RunId};
use logreel_agent::{AgentSpec, Agents, Overrides, SpecKind};

use crate::error::Failure;

/// What a spec file specifies.
pub enum Spec {
    Workflow(Workflow),
    Agent(Box<AgentSpec>),
}

impl Spec {
    pub fn digest(&self) -> Digest {
        match self {
            Self::Workflow(workflow) => workflow.digest(),
            Self::Agent(agent) => agent.digest(),
        }
    }

    /// Drives a run on under this instead of what it was started with.
    pub fn resume(&self, engine: &Engine, run: &RunId) -> Ask<ResumeOutcome> {
        match self {
            Self::Workflow(workflow) => engine.resume_under(run, workflow),
            Self::Agent(agent) => engine.resume_under_agent(run, &agent.to_json()),
        }
    }
}

/// What is in this file, with what was said beside it; only an agent takes that.
pub fn read(path: &Path, overrides: &Overrides, agents: &Agents) -> Result<Spec, Failure> {
    let kind = SpecKind::of_file(path).map_err(|problem| {
        let hint = "`logreel init` writes an example";
        Failure::new(ErrorKind::Invalid, problem.to_string()).hint(hint)
    })?;
    match kind {
        SpecKind::Workflow => {
            if let Some(flag) = flag_of(overrides) {
                let message = format!("{flag} is for agents; {} is a workflow", path.display());
                return Err(Failure::new(ErrorKind::Usage, message)
                    .hint("say it in the files of the agents that its steps name"));
            }
            Workflow::read_with(path, agents)
                .map(Spec::Workflow)
                .map_err(|problems| invalid(&problems))
        }
        SpecKind::Agent => agents
            .read(path, overrides)
            .map(|agent| Spec::Agent(Box::new(agent)))
            .map_err(|problems| invalid(&problems)),
    }
}

/// What is in this file now, read as it was when a run was started with `stored`.
pub fn read_again(path: &Path, stored: &AgentSpec, agents: &Agents) -> Result<Spec, Failure> {
    match SpecKind::of_file(path) {
        Ok(SpecKind::Agent) => agents
            .read_again(stored, path)
            .map(|agent| Spec::Agent(Box::new(agent)))
            .map_err(|problems| invalid(&problems)),
        Ok(SpecKind::Workflow) => {
            let message = format!("{} was an agent and is a workflow now", path.display());
            Err(Failure::new(ErrorKind::Invalid, message))
        }
        Err(problem) => Err(invalid(&problem.into())),
    }
}

/// Refuses an input that is not what the agent takes.
pub fn admit(agent: &AgentSpec, input: &Json) -> Result<(), Failure> {
    agent.admit(&input.to_value()).map_err(|misfit| {
        let message = format!("the input does not fit `{}`: {misfit}", agent.name);
        Failure::new(ErrorKind::Invalid, message)
    })
}

pub fn invalid(problems: &Problems) -> Failure {
    Failure::new(ErrorKind::Invalid, problems.to_string())
}

fn flag_of(overrides: &Overrides) -> Option<&'static str> {
    if overrides.model.is_some() {
        Some("--model")
    } else if !overrides.allow.is_empty() {
        Some("--allow")
    } else if overrides.no_ask {
        Some("--no-ask")
    } else {
        None
    }
}

/// The file and its folder, both absolute: they are recorded, and used from elsewhere.
pub fn place(path: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let refuse = |error: std::io::Error| {
        let message = format!("{} cannot be read: {error}", path.display());
        Failure::new(ErrorKind::Invalid, message)
    };
    let file = path.canonicalize().map_err(refuse)?;
    let folder = file.parent().unwrap_or(Path::new("/")).to_owned();
    Ok((file, folder))
}

/// The folder to run in instead, absolute.
pub fn folder(said: &Path) -> Result<PathBuf, Failure> {
    let is_folder = |path: &PathBuf| path.is_dir();
    said.canonicalize().ok().filter(is_folder).ok_or_else(|| {
        let message = format!("--dir {} is not a folder", said.display());
        Failure::new(ErrorKind::Usage, message)
    })
}
