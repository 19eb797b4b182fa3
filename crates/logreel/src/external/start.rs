//! Starting a run that its client drives.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;

use logreel_core::event::{Budget, Git, RunKind, RunStarted};
use logreel_core::meaning::digest_of;
use logreel_core::{Json, Payload, RunId, Seq, Session};
use logreel_store::{CreateError, Created, Entry, NewRun};
use serde::Serialize;
use serde_json::{Value, json};

use super::secret::LeaseSecret;
use super::{External, ExternalLease, Inner};
use crate::Error;
use crate::start::IfBusy;

/// A run about to be started for its client; made by [`External::start`], awaited to start it.
#[must_use = "a run starts when this is awaited"]
pub struct ExternalStart {
    engine: Arc<Inner>,
    agent: String,
    spec: Value,
    input: Result<Json, Error>,
    run: Option<RunId>,
    session: Option<String>,
    key: Option<String>,
    labels: BTreeMap<String, String>,
    git: Option<Git>,
    dir: Option<String>,
    if_busy: IfBusy,
}

/// A run that was started, or found.
#[derive(Debug, Clone)]
pub struct ExternalStarted {
    /// The run as it is.
    pub entry: Entry,
    /// The client's lease; `None` when the run was there already: [claim](External::claim) it.
    pub lease: Option<ExternalLease>,
}

impl External {
    /// A run of something that goes by this name.
    pub fn start(&self, agent: impl Into<String>) -> ExternalStart {
        let agent = agent.into();
        ExternalStart {
            engine: Arc::clone(&self.engine),
            spec: json!({"name": agent}),
            agent,
            input: Ok(Json::null()),
            run: None,
            session: None,
            key: None,
            labels: BTreeMap::new(),
            git: None,
            dir: None,
            if_busy: IfBusy::default(),
        }
    }
}

impl ExternalStart {
    /// What it is, for the record: two runs with equal specs are runs of the same thing.
    pub fn spec(mut self, spec: Value) -> Self {
        self.spec = spec;
        self
    }

    /// What it runs on.
    pub fn input<T: Serialize + ?Sized>(mut self, input: &T) -> Self {
        self.input = Json::of(input).map_err(|error| Error::value("the input", error));
        self
    }

    /// The run's id. The same id with the same spec, session and input attaches.
    pub fn id(mut self, run: RunId) -> Self {
        self.run = Some(run);
        self
    }

    /// The conversation it belongs to; one run is active in it at a time.
    pub fn session(mut self, session: impl Into<String>) -> Self {
        self.session = Some(session.into());
        self
    }

    /// The client's own name for it: starting with the same key again attaches.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// A label to list by.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// The checkout it runs on, for the record.
    pub fn git(mut self, git: Git) -> Self {
        self.git = Some(git);
        self
    }

    /// The folder it runs in, for the record.
    pub fn dir(mut self, dir: impl Into<String>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// What to do when the session is busy.
    pub fn if_busy(mut self, if_busy: IfBusy) -> Self {
        self.if_busy = if_busy;
        self
    }

    async fn start(self) -> Result<ExternalStarted, Error> {
        let engine = self.engine;
        engine.check_open()?;
        let session = self.session.as_deref().map(Session::new).transpose()?;
        let redaction = engine.redaction_of(RunKind::External, None, None);
        let (input, input_blob) = Payload::of(redaction.json(self.input?));
        drop(redaction);
        let spec_digest = digest_of(&self.spec).map_err(|error| Error::value("the spec", error))?;
        let (spec, spec_blob) = Payload::of(Json::from(self.spec));
        let started = RunStarted {
            agent: Arc::from(self.agent),
            budget: Budget::default(),
            context: None,
            dir: self.dir,
            durability: engine.durability,
            git: self.git,
            input,
            key: self.key,
            kind: RunKind::External,
            labels: self.labels,
            limit: None,
            parent: None,
            provenance: engine.provenance(),
            session: session.clone(),
            spec,
            spec_digest,
            spec_file: None,
        };
        let run = self.run.unwrap_or_else(|| engine.env.run_id());
        let blobs: Vec<_> = input_blob.into_iter().chain(spec_blob).collect();
        loop {
            let context = engine.session_context(session.as_ref()).await?;
            let secret = LeaseSecret::draw(&*engine.env);
            let owner = secret.owner(&*engine.env);
            engine.store.join(&owner).await?;
            let new = NewRun {
                run,
                started: RunStarted {
                    context,
                    ..started.clone()
                },
                then: Vec::new(),
                blobs: blobs.clone(),
                owner: Some(owner.id),
            };
            let created = engine.create(new).await;
            // Also when the answer to its creation was lost and it was found.
            if let Ok(created) = &created
                && secret.holder(created.entry()).is_some()
            {
                let entry = created.entry().clone();
                engine.tell_up_to(&entry, Seq::FIRST, |_| true).await;
                let lease = Some(engine.lease_of(&entry, secret));
                return Ok(ExternalStarted { entry, lease });
            }
            engine.store.leave(owner.id).await?;
            match created {
                Ok(Created::New(entry) | Created::Attached(entry)) => {
                    if entry.row.facts.kind != RunKind::External {
                        return Err(Error::NotExternal(entry.row.run));
                    }
                    return Ok(ExternalStarted { entry, lease: None });
                }
                Err(Error::Create(CreateError::Busy { session, active })) => {
                    engine.make_way(self.if_busy, session, active).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl IntoFuture for ExternalStart {
    type Output = Result<ExternalStarted, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.start())
    }
}
