//! Forking: a new run that shares another's log up to an event and goes its own way from there
//! (SEMANTICS 31), with what is changed recorded in its first append.

mod given;
mod point;
mod writes;

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;

use logreel_core::event::{Change, Git, Made, MessageQueued, Relation, RunKind, SpecChanged};
use logreel_core::{Draft, Json, Payload, RunId, RunState};
use logreel_store::{Created, Entry, ForkAt, ForkError, NewFork};
use serde::Serialize;
use serde_json::Value;

use crate::Error;
use crate::begin::Begin;
use crate::engine::{Engine, Inner};
use crate::handle::RunHandle;
use crate::program::Program;
use crate::request::Request;
use crate::start::{CREATE_PAUSE, CREATE_TRIES, first_own};
use crate::workflow::Workflow;
use given::{Given, Parting};

pub(crate) use point::find as find_point;
pub use point::{ForkPoint, NoPoint};
pub use writes::{GoneChild, Outlook, Write, WriteOutcome};
pub(crate) use writes::{Leaving, look};

/// A fork about to be made; made by [`Engine::fork`], awaited to make and drive it.
#[must_use = "a fork is made when this is awaited"]
pub struct ForkRun {
    engine: Arc<Inner>,
    parent: RunId,
    point: ForkPoint,
    run: Option<RunId>,
    input: Option<Result<Json, Error>>,
    messages: Vec<String>,
    by: Option<String>,
    results: Vec<(String, Result<Json, Error>)>,
    under: Under,
    model: Option<String>,
    spec_file: Option<String>,
    git: Option<Git>,
    queue: bool,
    request: Result<Request, Error>,
}

/// What the fork goes on under.
enum Under {
    /// What the parent had there.
    Stored,
    /// The task as it is registered here, whatever its version.
    Registered,
    /// Another workflow.
    Workflow(Box<Workflow>),
    /// Another spec of the agent.
    Agent(Value),
}

impl Engine {
    /// Makes a run that shares this one's log up to a point and goes its own way from there. What
    /// finished before it stays; what was open or comes after is done again, writes too, under keys
    /// of its own: [`ForkRun::look`] tells which. The parent may be driven, wait, or have ended.
    pub fn fork(&self, run: &RunId, at: ForkPoint) -> ForkRun {
        ForkRun {
            engine: Arc::clone(&self.0),
            parent: *run,
            point: at,
            run: None,
            input: None,
            messages: Vec::new(),
            by: None,
            results: Vec::new(),
            under: Under::Stored,
            model: None,
            spec_file: None,
            git: None,
            queue: false,
            request: Ok(Request::default()),
        }
    }
}

impl ForkRun {
    /// Another input. Finished steps keep their results; an agent's conversation begins again.
    pub fn input<T: Serialize + ?Sized>(mut self, input: &T) -> Self {
        self.input = Some(Json::of(input).map_err(|error| Error::value("the input", error)));
        self
    }

    /// Says something to the agent, which it hears at its next turn.
    pub fn message(mut self, text: impl Into<String>) -> Self {
        self.messages.push(text.into());
        self
    }

    /// Who says it.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.by = Some(who.into());
        self
    }

    /// Another result of a step, by its id as it is shown or as an array, or of a tool call. Refused
    /// when something was made of its result before the point.
    pub fn result<T: Serialize + ?Sized>(mut self, call: impl Into<String>, result: &T) -> Self {
        let call = call.into();
        let json = Json::of(result)
            .map_err(|error| Error::value(format!("the result of `{call}`"), error));
        self.results.push((call, json));
        self
    }

    /// Goes on under another workflow; recorded. What has finished keeps its result, whatever the new
    /// workflow says about it.
    pub fn under(mut self, workflow: &Workflow) -> Self {
        self.under = Under::Workflow(Box::new(workflow.clone()));
        self
    }

    /// Goes on under another spec of the agent; recorded. What was said and done stays as it is.
    pub fn under_agent(mut self, spec: Value) -> Self {
        self.under = Under::Agent(spec);
        self
    }

    /// Goes on under the task as it is registered, whatever its version; recorded.
    pub fn accept_spec_change(mut self) -> Self {
        self.under = Under::Registered;
        self
    }

    /// Says that another model is what is changed in the agent's spec.
    pub fn model(mut self, name: impl Into<String>) -> Self {
        self.model = Some(name.into());
        self
    }

    /// The file that the other spec was read from.
    pub fn spec_file(mut self, path: impl Into<String>) -> Self {
        self.spec_file = Some(path.into());
        self
    }

    /// The checkout it is made in.
    pub fn git(mut self, git: Git) -> Self {
        self.git = Some(git);
        self
    }

    /// The fork's id. The same fork under the same id attaches.
    pub fn id(mut self, run: RunId) -> Self {
        self.run = Some(run);
        self
    }

    /// Only records the fork; a worker ([`Engine::work`]) drives it.
    pub fn queue(mut self) -> Self {
        self.queue = true;
        self
    }

    /// Your own name for this request: the same again gives the same fork, wherever a parent that is driven
    /// has got to. With other arguments it is a conflict.
    pub fn request(mut self, id: impl AsRef<str>) -> Self {
        self.request = Request::new(id);
        self
    }

    /// All that was said.
    fn asked(&self) -> impl Serialize + use<> {
        let said = |json: &Result<Json, Error>| json.as_ref().ok().cloned();
        let results = self.results.iter();
        let results: Vec<_> = results
            .map(|(call, json)| (call.clone(), said(json)))
            .collect();
        let under = match &self.under {
            Under::Stored => (None, false),
            Under::Registered => (None, true),
            Under::Workflow(workflow) => (Some(workflow.json().clone()), true),
            Under::Agent(spec) => (Some(spec.clone()), true),
        };
        let (point, input) = (format!("{:?}", self.point), self.input.as_ref().map(said));
        let (messages, model) = (self.messages.clone(), self.model.clone());
        ("fork", point, input, results, messages, under, model)
    }

    /// Which event it leaves its parent at, and which writes it would do again. Makes nothing. From then
    /// on the point is that event, wherever a parent that is driven has got to. What making it would refuse is
    /// refused.
    pub async fn look(&mut self) -> Result<Outlook, Error> {
        let at = point::find(&self.engine, &self.parent, &self.point).await?;
        self.point = ForkPoint::At(at);
        let given: Vec<String> = self.results.iter().map(|(call, _)| call.clone()).collect();
        let plan = self.plan(self.parent).await?;
        let leaving = Leaving {
            run: self.parent,
            at,
            given: &given,
            forgotten: &[],
            anew: begins_anew(&plan.entry, self.input.as_ref()),
        };
        look(&self.engine, &leaving).await
    }

    async fn fork(self) -> Result<RunHandle<Json>, Error> {
        let engine = Arc::clone(&self.engine);
        engine.check_open()?;
        let asked = self.asked();
        let request = self.request.clone()?;
        let named = match request.run(&engine, &self.parent, &asked).await? {
            Some((_, Some(made))) => return engine.take_up(made, self.queue).await,
            Some((run, None)) => Some(run),
            None => None,
        };
        let run = self.run.or(named).unwrap_or_else(|| engine.env.run_id());
        let plan = self.plan(run).await?;
        let queue = self.queue || plan.entry.row.facts.kind == RunKind::External;
        engine
            .make_and_drive(plan.new, plan.program, self.git, queue)
            .await
    }

    /// The fork that is to be made, under this id, or why there is none.
    async fn plan(&self, run: RunId) -> Result<Plan, Error> {
        let engine = &self.engine;
        let entry = engine.store.entry(&self.parent).await?;
        if entry.erased {
            return Err(ForkError::Erased(self.parent).into());
        }
        if entry.row.facts.kind == RunKind::Record {
            return Err(Error::OnlyRecorded(self.parent));
        }
        let at = point::find(engine, &self.parent, &self.point).await?;
        let state = engine.at(&self.parent, at).await?;
        if !self.messages.is_empty() && state.row.facts.kind != RunKind::Agent {
            return Err(Error::NotSteered(self.parent));
        }
        let def = self.program(&entry, &state).await?;
        let changed = def
            .as_ref()
            .filter(|def| def.spec_digest != state.row.facts.spec_digest);
        if changed.is_some() && matches!(self.under, Under::Stored) {
            return Err(Error::SpecChanged {
                run: self.parent,
                name: state.row.facts.agent.to_string(),
            });
        }
        let mut new = NewFork::of(run, self.parent, ForkAt::Seq(at), Relation::Fork);
        let redaction = engine.redaction_in(&self.parent).await;
        if let Some(input) = &self.input {
            let input = redaction.json(input.clone()?);
            let agent = match &self.under {
                Under::Agent(spec) => Some(spec),
                Under::Stored | Under::Registered | Under::Workflow(_) => None,
            };
            let admitted = engine.admit(&entry, def.as_deref(), agent, &input);
            admitted.await?;
            let (input, blob) = Payload::of(input);
            new.input = Some(input);
            new.blobs.extend(blob);
            new.changes.push(Change::Input);
        }
        if let Some(def) = changed {
            // The new spec's limits, as a run that starts with it has them.
            new.budget = Some(def.budget.clone());
            new.changes.push(match &self.model {
                Some(model) => Change::Model(model.clone()),
                None => Change::Spec,
            });
            change_spec(&mut new, def, self.spec_file.clone());
        }
        let mut given = Given::default();
        for (call, result) in &self.results {
            let parting = Parting {
                run: self.parent,
                at,
                state: &state,
                workflow: def.as_ref().and_then(|def| def.workflow.as_ref()),
                now: engine.env.now(),
            };
            let result = redaction.json(result.clone()?);
            given.add(engine, &parting, call, &result).await?;
        }
        // The store folds the same again; one of them is enough at a time.
        drop(state);
        new.forgotten.extend(given.forgotten);
        new.forgotten_calls.extend(given.forgotten_calls);
        new.changes.extend(given.changes);
        new.then.extend(given.then);
        new.blobs.extend(given.blobs);
        for text in &self.messages {
            let (by, text) = (self.by.clone(), redaction.text(text.clone()));
            new.changes.push(Change::Message);
            new.then.push(Draft::new(MessageQueued { by, text }));
        }
        drop(redaction);
        Ok(Plan {
            entry,
            new,
            program: def,
        })
    }

    /// What drives it; `None` when that is left to whoever takes it from the queue.
    async fn program(
        &self,
        entry: &Entry,
        state: &RunState,
    ) -> Result<Option<Arc<Program>>, Error> {
        let engine = &self.engine;
        let program = match &self.under {
            // The one of the point: the parent may have gone on under another since.
            Under::Stored | Under::Registered => {
                let entry = Entry {
                    row: state.row.clone(),
                    ..entry.clone()
                };
                engine.program_of(&entry).await
            }
            Under::Workflow(workflow) => Ok(engine.registry.add_workflow(workflow)),
            Under::Agent(spec) => engine.agent_to_drive(spec),
        };
        match program {
            Ok(program) if program.kind != state.row.facts.kind => Err(Error::OtherKind {
                run: self.parent,
                kind: state.row.facts.kind,
                other: program.kind,
            }),
            Ok(program) => Ok(Some(program)),
            // Its client claims it.
            Err(Error::UnknownTask { .. }) if state.row.facts.kind == RunKind::External => Ok(None),
            Err(Error::UnknownTask { .. } | Error::Lacks { .. }) if self.queue => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A fork that nothing speaks against.
struct Plan {
    /// Its parent.
    entry: Entry,
    new: NewFork,
    /// What drives it; `None` when that is left to whoever takes it from the queue, or claims it.
    program: Option<Arc<Program>>,
}

impl IntoFuture for ForkRun {
    type Output = Result<RunHandle<Json>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.fork())
    }
}

/// Whether a copy with this input begins its conversation again.
pub(crate) fn begins_anew(parent: &Entry, input: Option<&Result<Json, Error>>) -> bool {
    let Some(Ok(input)) = input else {
        return false;
    };
    let is_other = Payload::of(input.clone()).0 != parent.row.facts.input;
    parent.row.facts.kind == RunKind::Agent && is_other
}

/// Lets the fork go on under this program.
pub(crate) fn change_spec(new: &mut NewFork, def: &Program, spec_file: Option<String>) {
    let (spec, blob) = Payload::of(def.spec.clone());
    new.blobs.extend(blob);
    new.then.push(Draft::new(SpecChanged {
        spec,
        spec_digest: def.spec_digest,
        spec_file,
    }));
}

impl Inner {
    /// Makes a fork and drives it here, unless it is left to a worker.
    pub(crate) async fn make_and_drive(
        self: &Arc<Self>,
        new: NewFork,
        def: Option<Arc<Program>>,
        git: Option<Git>,
        queue: bool,
    ) -> Result<RunHandle<Json>, Error> {
        let _open = self.hold_open().await?;
        let owner = match queue {
            true => None,
            false => Some(self.owner().await?.id()),
        };
        let provenance = self.provenance();
        let made = Some(Made {
            git,
            host: provenance.host,
            logreel: provenance.logreel,
        });
        let run = new.run;
        let created = match self.make_fork(NewFork { owner, made, ..new }).await {
            Err(error @ Error::Store(logreel_store::Error::Ambiguous { .. })) => {
                // If it is there its lease is ours, and nobody else takes it while we live.
                if let (Some(_), Some(def)) = (owner, def) {
                    self.spawn_driver(run, def, Begin::Keep, true);
                }
                return Err(error);
            }
            other => other?,
        };
        let run = created.entry().row.run;
        match def {
            Some(def) => Ok(self.adopt(created, owner, &def).await),
            None => {
                if let Created::New(entry) = &created {
                    self.tell_up_to(entry, first_own(entry), |_| true).await;
                }
                Ok(RunHandle::new(Arc::clone(self), run))
            }
        }
    }

    /// A run that the same request made before: driven here, unless it has ended or is left to a worker.
    pub(crate) async fn take_up(
        self: &Arc<Self>,
        made: Entry,
        queue: bool,
    ) -> Result<RunHandle<Json>, Error> {
        let run = made.row.run;
        let queue = queue || made.row.facts.kind == RunKind::External;
        if !queue && !made.row.status().is_terminal() && !made.is_driven() {
            let program = self.program_of(&made).await?;
            self.spawn_driver(run, program, Begin::Keep, true);
        }
        Ok(RunHandle::new(Arc::clone(self), run))
    }

    /// Makes a fork; a commit whose outcome is not known is settled by asking for the same again.
    async fn make_fork(&self, new: NewFork) -> Result<Created, Error> {
        use logreel_store::Error as Store;
        let mut tries = 1;
        let mut lost = None;
        loop {
            match self.store.fork(new.clone()).await {
                Err(ForkError::Store(error @ Store::Ambiguous { .. })) => {
                    tracing::warn!(run = %new.run, %error, "making the fork again");
                    lost = Some(error);
                }
                Err(ForkError::Store(Store::Unavailable { .. })) if lost.is_some() => {}
                other => return Ok(other?),
            }
            if tries == CREATE_TRIES
                && let Some(error) = lost.take()
            {
                return Err(error.into());
            }
            tries += 1;
            self.env.sleep(CREATE_PAUSE).await;
        }
    }
}
