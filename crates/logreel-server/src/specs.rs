//! What can be started over HTTP, and by whom it is read: files of a folder for the command line,
//! registered tasks and workflows for an embedder.

use std::collections::BTreeMap;

use async_trait::async_trait;
use logreel::{Digest, Engine, IfBusy, Json, RunId, Session};
use serde::Serialize;
use serde_json::Value;

use crate::Problem;

/// Something that can be started by its name.
#[derive(Debug, Clone, Serialize)]
pub struct Spec {
    /// What `POST /v1/runs` calls it.
    pub name: String,
    /// `agent`, `workflow` or `task`; null when it cannot be read.
    pub kind: Option<&'static str>,
    /// The digest of what it says.
    pub spec_digest: Option<Digest>,
    /// What is wrong with it; it cannot be started then.
    pub error: Option<String>,
}

/// What to run.
#[derive(Debug, Clone)]
pub enum What {
    /// Something that [`Specs::list`] has.
    Named(String),
    /// This, which comes with the request: whoever may send it may run programs here.
    Inline(Value),
}

/// How to run it.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// On what.
    pub input: Json,
    /// In which conversation.
    pub session: Option<Session>,
    /// Labels to list it by.
    pub labels: BTreeMap<String, String>,
    /// The caller's own name for it.
    pub key: Option<String>,
    /// Its id.
    pub id: Option<RunId>,
    /// When the session has an active run.
    pub if_busy: IfBusy,
}

/// A run that was started, or found by its id or key.
#[derive(Debug, Clone, Copy)]
pub struct Begun {
    /// Which.
    pub run: RunId,
    /// It was there already.
    pub attached: bool,
}

/// Reads specs and starts runs of them.
#[async_trait]
pub trait Specs: Send + Sync + 'static {
    /// What can be started by name.
    async fn list(&self) -> Result<Vec<Spec>, Problem>;

    /// Starts a run, or finds the one that has its id or key.
    async fn start(&self, what: What, new: NewRun) -> Result<Begun, Problem>;

    /// Refuses what [`Specs::resume`] would refuse because of what the spec says now; changes nothing.
    async fn check_resume(&self, run: &RunId, accept_spec_change: bool) -> Result<(), Problem>;

    /// Drives a run on, under what its spec says now when that is accepted. One that waits for a person
    /// stays as it is. The same request again is not done again.
    async fn resume(
        &self,
        run: &RunId,
        accept_spec_change: bool,
        request: Option<String>,
    ) -> Result<(), Problem>;

    /// The spec of an agent's run on another model.
    async fn on_model(&self, run: &RunId, model: &str) -> Result<Value, Problem>;
}

/// What the engine has registered.
pub(crate) struct Registered(pub(crate) Engine);

#[async_trait]
impl Specs for Registered {
    async fn list(&self) -> Result<Vec<Spec>, Problem> {
        let registered = self.0.registered().into_iter();
        let specs = registered.map(|it| Spec {
            name: it.name.to_string(),
            kind: Some(it.kind.as_str()),
            spec_digest: Some(it.spec_digest),
            error: None,
        });
        Ok(specs.collect())
    }

    async fn start(&self, what: What, new: NewRun) -> Result<Begun, Problem> {
        let What::Named(name) = what else {
            return Err(Problem::invalid(
                "this server starts registered tasks and workflows only",
            ));
        };
        let start = self.0.start(&name, &new.input).map_err(|_| {
            Problem::not_found(format!("there is no spec {name:?}"))
                .hint("GET /v1/specs lists them")
        })?;
        let mut start = start.if_busy(new.if_busy);
        if let Some(session) = &new.session {
            start = start.session(session.as_str());
        }
        if let Some(key) = new.key {
            start = start.key(key);
        }
        if let Some(id) = new.id {
            start = start.id(id);
        }
        for (name, value) in new.labels {
            start = start.label(name, value);
        }
        // A worker keeps to its limit; without one nobody else would drive it.
        if self.0.is_worker() {
            start = start.queue();
        }
        let started = start.begin().await?;
        Ok(Begun {
            run: started.run.id(),
            attached: started.attached,
        })
    }

    async fn check_resume(&self, run: &RunId, accept_spec_change: bool) -> Result<(), Problem> {
        match self.0.check_resume(run).await {
            Err(logreel::Error::SpecChanged { .. }) if accept_spec_change => Ok(()),
            checked => Ok(checked?),
        }
    }

    async fn resume(
        &self,
        run: &RunId,
        accept_spec_change: bool,
        request: Option<String>,
    ) -> Result<(), Problem> {
        let mut resume = match accept_spec_change {
            true => self.0.resume_accepting_spec_change(run),
            false => self.0.resume(run),
        };
        if let Some(request) = request {
            resume = resume.request(request);
        }
        match resume.await {
            Ok(_) | Err(logreel::Error::Waiting { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn on_model(&self, run: &RunId, _model: &str) -> Result<Value, Problem> {
        let detail = format!("this server cannot give {run} another model");
        Err(Problem::new(logreel::ErrorKind::NotApplicable, detail))
    }
}
