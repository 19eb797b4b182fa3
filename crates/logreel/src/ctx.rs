//! What a task's function has in its hands: the run it is part of.

use std::any::{Any, TypeId};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logreel_core::event::{Custom, RunKind, StatePatched};
use logreel_core::meaning::effect_key;
use logreel_core::state::Set;
use logreel_core::{Body, Digest, RunId, StepId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::Inner;
use crate::error::TaskError;
use crate::journal::{Journal, RecordError, Stop};
use crate::owner::Pulse;
use crate::step::{Step, StepName};
use crate::value;
use crate::wait::{ApprovalWait, SignalWait};
use crate::workflow::supervise::Commands;
use crate::write_step::WriteStep;

/// Things the embedder provides to its tasks, by type.
pub(crate) type Provided = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

/// The run a task's function is part of. Cheap to clone.
#[derive(Clone)]
pub struct Ctx(pub(crate) Arc<Execution>);

/// One call of a task's function, from the top.
pub(crate) struct Execution {
    pub(crate) journal: Arc<Journal>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) engine: Arc<Inner>,
    pub(crate) activity: Activity,
    pub(crate) commands: Commands,
    /// How many reasons to look whether the lease is still ours were followed.
    looked: AtomicU64,
    /// When this execution began, on the monotonic clock; its lease is older.
    pub(crate) began: Duration,
    /// From when commands may be started: those of a driver on another host have until then.
    commands_from: Duration,
    /// Held while a kept signal is taken.
    pub(crate) taking: tokio::sync::Mutex<()>,
    asked: Mutex<Asked>,
}

/// What this execution has asked for so far.
#[derive(Default)]
struct Asked {
    steps: Set<StepId>,
    /// Facts without an id are known by their content: how often this execution made each, and how
    /// often the log has it.
    made: HashMap<Digest, u32>,
    logged: HashMap<Digest, u32>,
    /// The context as this execution has built it so far, and every node the log has.
    context: Option<Digest>,
    nodes: HashSet<Digest>,
    /// The document as this execution has made it so far: code that is called again must find what it
    /// found the first time.
    document: serde_json::Value,
}

/// What the function is doing, so that the driver can tell when nothing can go on.
#[derive(Default)]
pub(crate) struct Activity {
    /// Effects under way, and waits that are too short to give the lease back for.
    pub(crate) busy: AtomicUsize,
    /// Those of them that were interrupted for good: nobody need wait for them.
    pub(crate) given_up: AtomicUsize,
    /// Waits that can outlive the lease.
    pub(crate) waiting: AtomicUsize,
    /// Children that are about to start in this turn.
    pub(crate) starting: AtomicUsize,
    pub(crate) polls: AtomicU64,
    pub(crate) polling: AtomicBool,
    pub(crate) wait_began: tokio::sync::Notify,
}

/// Counts something as long as it lives.
pub(crate) struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    pub(crate) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

tokio::task_local! {
    /// The step whose work is running, for steps inside it.
    pub(crate) static OUTER: Outer;
}

/// A step whose work is running.
#[derive(Clone)]
pub(crate) struct Outer {
    pub(crate) step: StepId,
    pub(crate) key: Key,
    /// It says itself when its work is given up: what runs inside need not.
    pub(crate) gives_up: bool,
}

/// The idempotency key of a step's work.
#[derive(Clone)]
pub(crate) enum Key {
    Is(Digest),
    /// Computed when it is asked for, from the run, the step and the digest of its input.
    BoundTo(RunId, Option<Digest>),
}

impl Outer {
    /// The idempotency key of its work.
    pub(crate) fn key(&self) -> Digest {
        match &self.key {
            Key::Is(key) => *key,
            Key::BoundTo(run, input) => effect_key(run, &self.step.canonical(), input.as_ref()),
        }
    }
}

impl Execution {
    pub(crate) fn new(
        journal: Arc<Journal>,
        pulse: Arc<Pulse>,
        engine: Arc<Inner>,
        context: Option<Digest>,
        logged: Logged,
        commands_from: Duration,
        lapses: u64,
    ) -> Self {
        let asked = Asked {
            context,
            nodes: logged.nodes,
            logged: logged.facts,
            ..Asked::default()
        };
        let commands = Commands::new(
            journal.run,
            Arc::clone(&pulse.groups),
            Arc::clone(&journal.env),
        );
        let began = journal.env.monotonic();
        Self {
            journal,
            pulse,
            engine,
            activity: Activity::default(),
            commands,
            looked: AtomicU64::new(lapses),
            began,
            commands_from,
            taking: tokio::sync::Mutex::new(()),
            asked: Mutex::new(asked),
        }
    }

    /// How many reasons there were to look whether the lease is still ours: renewals that came late, and appends
    /// whose answer is an earlier one's, which is given to a driver that was fenced as well.
    pub(crate) fn reasons_to_look(&self) -> u64 {
        self.pulse.lapses() + self.journal.answered_again()
    }

    /// Whether the lease surely still holds, without asking: it was renewed in time, and there is no reason to
    /// look that was not followed.
    pub(crate) fn surely_holds(&self) -> bool {
        // In this order: a renewal that came late counts as a reason before it counts as a renewal.
        self.pulse.is_fresh() && self.looked.load(Ordering::SeqCst) == self.reasons_to_look()
    }

    /// The run was looked at after so many reasons, and its lease is ours.
    pub(crate) fn has_looked(&self, reasons: u64) {
        self.looked.fetch_max(reasons, Ordering::SeqCst);
    }

    /// Returns when a command may be started (SEMANTICS 21), with a lease that surely still holds (22).
    pub(crate) async fn until_commands_may_start(&self) -> Result<(), TaskError> {
        let env = &self.journal.env;
        let left = self.commands_from.saturating_sub(env.monotonic());
        if left.is_zero() {
            return Ok(());
        }
        tracing::warn!(run = %self.journal.run, ?left, "a command may still run on another host; waiting");
        tokio::select! {
            () = env.sleep(left) => {}
            stopped = self.until_stopped() => return Err(stopped),
        }
        crate::lease::check_lease(self).await
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step by its full id; the same one twice in one execution is an error that names it.
    pub(crate) fn ask(
        &self,
        name: Result<StepId, logreel_core::IdError>,
    ) -> Result<StepId, TaskError> {
        let name = name.map_err(|error| TaskError::from(error).permanent())?;
        let step = OUTER
            .try_with(|outer| name.inside(&outer.step))
            .unwrap_or(name);
        if !self.asked().steps.insert(step.clone()) {
            let message = format!("step `{step}` was asked for twice in one execution");
            return Err(TaskError::of_kind("duplicate_step", message)
                .permanent()
                .in_step(&step));
        }
        Ok(step)
    }

    /// A step is tried again: its code asks for the steps inside it once more.
    pub(crate) fn forget_inside(&self, outer: &StepId) {
        self.asked().steps.retain(|step| !step.is_inside(outer));
    }

    /// A recorded write this execution has not asked for: the code is not the one that made it.
    pub(crate) fn unasked_write(&self) -> Option<StepId> {
        // A workflow goes on by the fold: it asks for what is left, in the order of its graph.
        if self
            .journal
            .with_state(|state| state.row.facts.kind != RunKind::Task)
        {
            return None;
        }
        let asked = self.asked();
        self.journal.with_state(|state| {
            let mut unasked: Vec<&StepId> = state
                .writes
                .iter()
                .filter(|step| !asked.steps.contains(step))
                .collect();
            unasked.sort();
            unasked.first().map(|step| (*step).clone())
        })
    }

    /// Steps the log has and this execution never asked for.
    pub(crate) fn steps_never_asked_for(&self) -> Vec<StepId> {
        if self
            .journal
            .with_state(|state| state.row.facts.kind != RunKind::Task)
        {
            return Vec::new();
        }
        let asked = self.asked();
        self.journal.with_state(|state| {
            let unasked = state
                .steps
                .keys()
                .filter(|step| !asked.steps.contains(step));
            let mut unasked: Vec<StepId> = unasked.take(20).cloned().collect();
            unasked.sort();
            unasked
        })
    }

    /// Whether a fact with this content is new; one the log has already is not made again.
    fn is_new_fact(&self, content: Digest) -> bool {
        let mut asked = self.asked();
        let made = asked.made.entry(content).or_insert(0);
        *made += 1;
        let made = *made;
        made > asked.logged.get(&content).copied().unwrap_or(0)
    }

    /// The node a message gets after what this execution has said so far, and whether it is new.
    pub(crate) fn next_node(
        &self,
        node_after: impl FnOnce(Option<Digest>) -> Digest,
    ) -> (Option<Digest>, Digest, bool) {
        let mut asked = self.asked();
        let previous = asked.context;
        let node = node_after(previous);
        asked.context = Some(node);
        let new = asked.nodes.insert(node);
        (previous, node, new)
    }

    /// Ends a future when the run is cancelled; never returns when the driver stops otherwise, since
    /// the function is about to be dropped.
    pub(crate) async fn until_stopped(&self) -> TaskError {
        match self.journal.told_to_stop().await {
            Stop::Cancelled => cancelled(),
            Stop::Paused | Stop::Parked | Stop::Drained | Stop::Lost(_) => {
                std::future::pending().await
            }
        }
    }

    /// Why a record was refused, as the task sees it.
    pub(crate) async fn refused(&self, error: RecordError) -> TaskError {
        match error {
            RecordError::Rejected(logreel_core::Rejected::Ended(_)) => cancelled(),
            RecordError::Rejected(why) => TaskError::from(why).permanent(),
            RecordError::SignalIsKept => TaskError::of_kind("bug", "a kept signal was not taken"),
            RecordError::Refused(why) => TaskError::from(why).permanent(),
            // The driver is stopping; the function must not see it as its own failure.
            RecordError::Dead(_) => std::future::pending().await,
        }
    }

    pub(crate) async fn record(
        &self,
        body: Body,
        blobs: Vec<logreel_core::Blob>,
    ) -> Result<Vec<logreel_core::Event>, TaskError> {
        match self.journal.record(vec![body.into()], blobs).await {
            Ok(events) => Ok(events),
            Err(error) => Err(self.refused(error).await),
        }
    }
}

pub(crate) fn cancelled() -> TaskError {
    TaskError::of_kind(TaskError::CANCELLED, "the run was cancelled").permanent()
}

/// What a log holds of the facts that have no id of their own.
#[derive(Default)]
pub(crate) struct Logged {
    facts: HashMap<Digest, u32>,
    nodes: HashSet<Digest>,
}

impl Logged {
    pub(crate) fn note(&mut self, body: &Body) {
        match body {
            Body::Custom(custom) => *self.facts.entry(custom_content(custom)).or_insert(0) += 1,
            Body::StatePatched(patched) => {
                *self.facts.entry(patch_content(patched)).or_insert(0) += 1;
            }
            Body::MessageAdded(added) => {
                self.nodes.insert(added.node);
            }
            _ => {}
        }
    }
}

fn custom_content(custom: &Custom) -> Digest {
    Digest::of(format!("custom\0{}\0{}", custom.name, custom.data.to_json()).as_bytes())
}

fn patch_content(patched: &StatePatched) -> Digest {
    let patch = serde_json::to_string(&patched.patch).unwrap_or_default();
    Digest::of(format!("patch\0{patch}").as_bytes())
}

impl Ctx {
    /// Which run this is.
    pub fn run_id(&self) -> RunId {
        self.0.journal.run
    }

    /// Which driver of the run this is, from 1. It grows with every takeover.
    pub fn attempt(&self) -> u64 {
        self.0.journal.epoch.0
    }

    /// A durable step: at least once until it has finished, never again after that.
    pub fn step(&self, name: impl StepName) -> Step<'_> {
        Step::new(self, name.step_id())
    }

    /// A step that writes outside and must never be repeated blind.
    pub fn write_step(&self, name: impl StepName) -> WriteStep<'_> {
        WriteStep::new(self, name.step_id())
    }

    /// Runs steps concurrently and gives their results in input order. A barrier: all have ended when
    /// it returns, with the first error in input order if there is one.
    pub async fn all<F, T>(&self, steps: impl IntoIterator<Item = F>) -> Result<Vec<T>, TaskError>
    where
        F: Future<Output = Result<T, TaskError>>,
    {
        futures_util::future::join_all(steps)
            .await
            .into_iter()
            .collect()
    }

    /// Waits for someone to say yes or no.
    pub fn approval(&self, prompt: impl Into<String>) -> ApprovalWait<'_> {
        ApprovalWait::new(self, prompt.into())
    }

    /// Waits for a signal; one that came before is taken.
    pub fn signal(&self, name: impl Into<String>) -> SignalWait<'_> {
        SignalWait::new(self, name.into())
    }

    /// Waits until the time is over, also when that is after a restart.
    pub async fn sleep(&self, name: impl StepName, duration: Duration) -> Result<(), TaskError> {
        crate::wait::sleep(self, name.step_id(), duration).await
    }

    /// Resolves when the run is cancelled, so that work can be given up in good order.
    pub async fn cancelled(&self) {
        self.0.until_stopped().await;
    }

    /// The time, recorded under this name: the same one when the function is called again.
    pub async fn now(&self, name: impl StepName) -> Result<logreel_core::Timestamp, TaskError> {
        let env = Arc::clone(&self.0.journal.env);
        let take = || std::future::ready(Ok::<_, TaskError>(env.now()));
        Step::new(self, drawn("now", name)).run(take).await
    }

    /// A random number, recorded under this name.
    pub async fn random(&self, name: impl StepName) -> Result<u64, TaskError> {
        let env = Arc::clone(&self.0.journal.env);
        let draw = || std::future::ready(Ok::<_, TaskError>(env.random_u64()));
        Step::new(self, drawn("random", name)).run(draw).await
    }

    /// A random UUID (version 4), recorded under this name.
    pub async fn uuid(&self, name: impl StepName) -> Result<String, TaskError> {
        let env = Arc::clone(&self.0.journal.env);
        let draw = || {
            let mut bytes = [0; 16];
            env.random(&mut bytes);
            let uuid = uuid::Builder::from_random_bytes(bytes).into_uuid();
            std::future::ready(Ok::<_, TaskError>(uuid.to_string()))
        };
        Step::new(self, drawn("uuid", name)).run(draw).await
    }

    /// Inside a step: its idempotency key, the same over attempts and drivers, different in a fork.
    /// Give it to whatever the step calls.
    pub fn key(&self) -> Result<Digest, TaskError> {
        let key = OUTER.try_with(Outer::key);
        key.map_err(|_| {
            TaskError::new("ctx.key() is the key of a step; ask for it inside one").permanent()
        })
    }

    /// The run's document, as this code has made it so far.
    pub fn state<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        Ok(serde_json::from_value(self.0.asked().document.clone())?)
    }

    /// Replaces the run's document; recorded as the patch from the old one.
    pub async fn set_state<T: Serialize>(&self, document: &T) -> Result<(), TaskError> {
        let new = serde_json::to_value(document)?;
        let patch = serde_json::json!([{"op": "replace", "path": "", "value": new}]);
        self.patch_state(serde_json::from_value(patch)?).await
    }

    /// Changes the run's document (RFC 6902). The same patch made again by a later call of the
    /// function is not applied again.
    pub async fn patch_state(&self, patch: json_patch::Patch) -> Result<(), TaskError> {
        json_patch::patch(&mut self.0.asked().document, &patch)
            .map_err(|error| TaskError::from(error).permanent())?;
        let patched = StatePatched { patch };
        if self.0.is_new_fact(patch_content(&patched)) {
            self.0.record(patched.into(), Vec::new()).await?;
        }
        Ok(())
    }

    /// Records a fact of your own. The same fact made again by a later call of the function is not
    /// recorded again.
    pub async fn emit<T: Serialize + ?Sized>(
        &self,
        name: impl Into<String>,
        data: &T,
    ) -> Result<(), TaskError> {
        let name = name.into();
        let (data, blobs) = value::payload(&name, data)?;
        let custom = Custom { data, name };
        if self.0.is_new_fact(custom_content(&custom)) {
            self.0.record(custom.into(), blobs).await?;
        }
        Ok(())
    }

    /// Adds a message to the run's context; returns its node.
    pub async fn message<T: Serialize + ?Sized>(
        &self,
        role: impl Into<String>,
        content: &T,
    ) -> Result<Digest, TaskError> {
        crate::message::add(self, role.into(), content).await
    }

    /// Something the embedder provided with [`crate::Builder::provide`].
    ///
    /// # Panics
    /// When nothing of the type was provided: a mistake in the program, not in the run.
    pub fn get<T: Send + Sync + 'static>(&self) -> Arc<T> {
        self.0
            .engine
            .provided
            .get(&TypeId::of::<T>())
            .and_then(|provided| Arc::clone(provided).downcast().ok())
            .unwrap_or_else(|| {
                panic!(
                    "no {} was provided to the engine",
                    std::any::type_name::<T>()
                )
            })
    }
}

fn drawn(what: &str, name: impl StepName) -> Result<StepId, logreel_core::IdError> {
    let name = name.step_id()?;
    StepId::from_parts([what, &name.to_string()])
}
