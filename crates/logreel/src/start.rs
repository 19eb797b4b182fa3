//! Starting a run: created with its event 1, then driven here unless it is left to a worker.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{Git, Provenance, Relation, RunKind, RunStarted};
use logreel_core::{Digest, Json, Payload, RunId, Seq, Session, Status};
use logreel_store::{CreateError, Created, Entry, Filter, NewRun, OwnerId};
use serde::de::DeserializeOwned;

use crate::Error;
use crate::begin::Begin;
use crate::engine::Inner;
use crate::handle::RunHandle;
use crate::lease::Lease;
use crate::program::Program;

/// A commit whose outcome is not known is settled by sending it again; a disk that fails every one of
/// them must not keep the caller forever.
pub(crate) const CREATE_TRIES: u32 = 10;
pub(crate) const CREATE_PAUSE: Duration = Duration::from_millis(20);

/// What to do when the session has an active run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfBusy {
    /// Refuse, naming the active run.
    #[default]
    Reject,
    /// Wait until it has ended.
    Wait,
    /// Cancel it.
    Interrupt,
}

/// A run about to start; made by [`crate::Task::start`], awaited to start it.
#[must_use = "a run starts when this is awaited"]
pub struct Start<O> {
    engine: Arc<Inner>,
    def: Arc<Program>,
    input: Result<Json, serde_json::Error>,
    run: Option<RunId>,
    session: Option<String>,
    key: Option<String>,
    labels: BTreeMap<String, String>,
    git: Option<Git>,
    dir: Option<String>,
    spec_file: Option<String>,
    if_busy: IfBusy,
    queue: bool,
    output: PhantomData<fn() -> O>,
}

/// A run that was started, or found; made by [`Start::begin`].
#[derive(Debug, Clone)]
pub struct Started<O> {
    /// The run.
    pub run: RunHandle<O>,
    /// It was there already: the same id or key, with the same spec, session and input.
    pub attached: bool,
}

impl<O: DeserializeOwned> Start<O> {
    pub(crate) fn new(
        engine: Arc<Inner>,
        def: Arc<Program>,
        input: Result<Json, serde_json::Error>,
    ) -> Self {
        Self {
            engine,
            def,
            input,
            run: None,
            session: None,
            key: None,
            labels: BTreeMap::new(),
            git: None,
            dir: None,
            spec_file: None,
            if_busy: IfBusy::default(),
            queue: false,
            output: PhantomData,
        }
    }

    /// The run's id. The same id with the same task, session and input attaches.
    pub fn id(mut self, run: RunId) -> Self {
        self.run = Some(run);
        self
    }

    /// The conversation it belongs to; one run is active in it at a time.
    pub fn session(mut self, session: impl Into<String>) -> Self {
        self.session = Some(session.into());
        self
    }

    /// Your own name for it: starting with the same key again attaches.
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

    /// The file its spec was read from, for the record: a resume can then see that it changed.
    pub fn spec_file(mut self, file: impl Into<String>) -> Self {
        self.spec_file = Some(file.into());
        self
    }

    /// What to do when the session is busy.
    pub fn if_busy(mut self, if_busy: IfBusy) -> Self {
        self.if_busy = if_busy;
        self
    }

    /// Only records the run; a worker ([`crate::Engine::work`]) drives it.
    pub fn queue(mut self) -> Self {
        self.queue = true;
        self
    }

    /// Starts it, and says whether it was there already.
    pub async fn begin(self) -> Result<Started<O>, Error> {
        let engine = Arc::clone(&self.engine);
        engine.check_open()?;
        let session = self.session.as_deref().map(Session::new).transpose()?;
        let input = self
            .input
            .map_err(|error| Error::value("the input", error))?;
        if let Some(workflow) = &self.def.workflow {
            workflow.admit(&input)?;
        }
        if let Some(what) = engine.lacks(&self.def) {
            let name = self.def.name.to_string();
            return Err(Error::Lacks { name, what });
        }
        let input = engine.redaction(&self.def).json(input);
        let named = engine.named_in(&self.def);
        let (input, input_blob) = Payload::of(input);
        let (spec, spec_blob) = Payload::of(self.def.spec.clone());
        let started = RunStarted {
            agent: Arc::clone(&self.def.name),
            budget: self.def.budget.clone(),
            context: None,
            dir: self.dir,
            durability: engine.durability,
            git: self.git,
            input,
            key: self.key,
            kind: self.def.kind,
            labels: self.labels,
            limit: self.def.limit.clone(),
            parent: None,
            provenance: Provenance {
                models: named.models,
                tools: named.tools,
                ..engine.provenance()
            },
            session: session.clone(),
            spec,
            spec_digest: self.def.spec_digest,
            spec_file: self.spec_file,
        };
        let run = self.run.unwrap_or_else(|| engine.env.run_id());
        let blobs: Vec<_> = input_blob.into_iter().chain(spec_blob).collect();
        loop {
            let open = engine.hold_open().await?;
            let owner = if self.queue {
                None
            } else {
                Some(engine.owner().await?.id())
            };
            let context = engine.session_context(session.as_ref()).await?;
            let new = NewRun {
                run,
                started: RunStarted {
                    context,
                    ..started.clone()
                },
                blobs: blobs.clone(),
                owner,
                then: Vec::new(),
            };
            match engine.create(new).await {
                Ok(created) => {
                    let attached = matches!(created, Created::Attached(_));
                    let run = engine.adopt(created, owner, &self.def).await;
                    return Ok(Started { run, attached });
                }
                Err(Error::Create(CreateError::Busy { session, active })) => {
                    drop(open);
                    engine.make_way(self.if_busy, session, active).await?;
                }
                Err(error) => {
                    // If it is there its lease is ours, and nobody else takes it while we live.
                    if owner.is_some() && is_ambiguous(&error) {
                        engine.spawn_driver(run, self.def, Begin::Keep, true);
                    }
                    return Err(error);
                }
            }
        }
    }
}

/// Whether the run may have been made all the same.
fn is_ambiguous(error: &Error) -> bool {
    use logreel_store::Error as Store;
    matches!(
        error,
        Error::Create(CreateError::Store(Store::Ambiguous { .. }))
    )
}

impl<O: DeserializeOwned + 'static> IntoFuture for Start<O> {
    type Output = Result<RunHandle<O>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { Ok(self.begin().await?.run) })
    }
}

impl Inner {
    /// Creates a run. One whose commit has no known outcome is sent again: it attaches to what
    /// landed.
    pub(crate) async fn create(&self, new: NewRun) -> Result<Created, Error> {
        use logreel_store::Error as Store;
        let mut tries = 1;
        let mut lost = None;
        loop {
            match self.store.create(new.clone()).await {
                Err(CreateError::Store(error @ Store::Ambiguous { .. })) => {
                    tracing::warn!(run = %new.run, %error, "creating the run again");
                    lost = Some(error);
                }
                Err(CreateError::Store(Store::Unavailable { .. })) if lost.is_some() => {}
                // Whoever attaches wants to see it through, and nobody can here.
                Ok(Created::Attached(entry)) if entry.read_only => {
                    return Err(logreel_store::Error::ReadOnly(entry.row.run).into());
                }
                other => return Ok(other?),
            }
            if tries == CREATE_TRIES
                && let Some(error) = lost.take()
            {
                return Err(CreateError::Store(error).into());
            }
            tries += 1;
            self.env.sleep(CREATE_PAUSE).await;
        }
    }

    /// Where a session's next run goes on: the context its last completed run left.
    pub(crate) async fn session_context(
        &self,
        session: Option<&Session>,
    ) -> Result<Option<Digest>, Error> {
        let Some(session) = session else {
            return Ok(None);
        };
        let filter = Filter {
            session: Some(session.clone()),
            status: vec![Status::Completed],
            ..Filter::default()
        };
        let page = self.store.list(&filter, None, 1).await?;
        Ok(page.items.first().and_then(|entry| entry.row.pulse.context))
    }

    /// Drives a run that was just created here, or one that was attached to and that nobody drives.
    pub(crate) async fn adopt<O: DeserializeOwned>(
        self: &Arc<Self>,
        created: Created,
        owner: Option<OwnerId>,
        def: &Arc<Program>,
    ) -> RunHandle<O> {
        let run = created.entry().row.run;
        let def = Arc::clone(def);
        // The command of a worker's run takes a place of it. Once it has given its lease back it waits in line
        // like any other.
        let takes_place = self.is_worker() && def.kind == RunKind::Record;
        match created {
            Created::New(entry) if entry.driver.is_some() => {
                self.spawn_driver(run, def, Begin::Created(Lease::of(&entry)), !takes_place);
            }
            // Nobody drives it, so whoever appended it tells of it.
            Created::New(entry) => {
                self.tell_up_to(&entry, first_own(&entry), |_| true).await;
                // Its limit had no place: it waits in line, and this process with it.
                if owner.is_some() {
                    self.spawn_driver(run, def, Begin::Keep, true);
                }
            }
            Created::Attached(entry) => {
                // Also when the lease is ours already because the answer to its creation was lost:
                // the keeper gives it back and claims it anew.
                let is_ours = entry.driver.as_ref().map(|driver| driver.owner.id) == owner;
                let keeps = owner.is_some() && (is_ours || !takes_place);
                if keeps && !entry.row.status().is_terminal() {
                    self.spawn_driver(run, def, Begin::Keep, true);
                }
            }
        }
        if takes_place {
            self.commands().push(run);
        }
        RunHandle::new(Arc::clone(self), run)
    }

    pub(crate) async fn make_way(
        self: &Arc<Self>,
        if_busy: IfBusy,
        session: Session,
        active: RunId,
    ) -> Result<(), Error> {
        match if_busy {
            IfBusy::Reject => return Err(CreateError::Busy { session, active }.into()),
            IfBusy::Wait => {}
            IfBusy::Interrupt => {
                self.cancel(&active, Some("interrupted by a new run".to_owned()))
                    .await?;
            }
        }
        self.until_session_free(&active).await
    }
}

/// The first event that was written for this run: a fork shares the ones before.
pub(crate) fn first_own(entry: &Entry) -> Seq {
    match &entry.row.facts.parent {
        Some(parent) if parent.relation != Relation::Child => parent.seq.next(),
        Some(_) | None => Seq::FIRST,
    }
}
