//! Where the effects of a replayed run ask for what they came to, and what is noted of that.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use logreel_core::event::Cause;
use logreel_core::{Body, CallId, Json, Payload, RunId, StepId};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::oneshot;

use super::lane::Lane;
use super::recording::{Answer, Cue, Gives, Recording};
use crate::call::Recorded;
use crate::child::ChildEnd;
use crate::error::TaskError;
use crate::program::Program;
use crate::write_step::Reconciled;

/// The world of a replayed run.
pub(crate) struct Stage {
    /// What each lane is given, in order: whether it is the word of a `reconcile`.
    reconciles: HashMap<Lane, Vec<bool>>,
    refusals: BTreeMap<String, Cause>,
    first_request: Option<Value>,
    scene: Mutex<Scene>,
}

#[derive(Default)]
struct Scene {
    /// Who asks for what, and has not got it.
    waiting: HashMap<Lane, oneshot::Sender<Answer>>,
    given: HashMap<Lane, usize>,
    /// How many cues were given when each lane first asked for something.
    began: HashMap<Lane, usize>,
    cue: usize,
    /// What steps work on.
    notes: HashMap<Lane, Value>,
    child_ids: HashMap<StepId, VecDeque<RunId>>,
    children: Vec<ChildCall>,
}

/// A child that was started.
#[derive(Clone)]
pub(crate) struct ChildCall {
    pub(crate) step: StepId,
    pub(crate) child: RunId,
    pub(crate) program: Arc<Program>,
    pub(crate) input: Json,
}

/// What a replay leaves behind beside its log.
pub(crate) struct Noted {
    pub(crate) began: HashMap<Lane, usize>,
    pub(crate) notes: HashMap<Lane, Value>,
    pub(crate) children: Vec<ChildCall>,
    /// What asked for something that was never given.
    pub(crate) waiting: Vec<Lane>,
}

impl Stage {
    pub(crate) fn new(recording: &Recording) -> Self {
        let mut reconciles: HashMap<Lane, Vec<bool>> = HashMap::new();
        for cue in &recording.cues {
            let is_reconcile = matches!(cue.gives, Gives::Answer(Answer::Reconciled(_)));
            let lane = reconciles.entry(cue.lane.clone()).or_default();
            lane.push(is_reconcile);
        }
        let scene = Scene {
            child_ids: recording.child_ids(),
            ..Scene::default()
        };
        Self {
            reconciles,
            refusals: recording.refusals(),
            first_request: recording.first_request().cloned(),
            scene: Mutex::new(scene),
        }
    }

    fn scene(&self) -> MutexGuard<'_, Scene> {
        self.scene.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the effect came to, when its turn has come.
    async fn ask(&self, lane: Lane) -> Answer {
        let (sender, receiver) = oneshot::channel();
        {
            let mut scene = self.scene();
            let cue = scene.cue;
            scene.began.entry(lane.clone()).or_insert(cue);
            scene.waiting.insert(lane, sender);
        }
        match receiver.await {
            Ok(answer) => answer,
            // Asked for again by whoever came after.
            Err(_) => std::future::pending().await,
        }
    }

    /// The outcome of a step's work.
    pub(crate) async fn step<T: DeserializeOwned>(&self, step: &StepId) -> Result<T, TaskError> {
        match self.ask(Lane::Step(step.clone())).await {
            Answer::Returned(json) => Ok(json.decode()?),
            Answer::Failed(cause) => Err(TaskError::from_cause(&cause)),
            Answer::Interrupted => Err(interrupted()),
            Answer::Reconciled(_) | Answer::Model(_) | Answer::Child(_) => {
                Err(misplaced(&format!("step `{step}`")))
            }
        }
    }

    /// What became of an interrupted write step.
    pub(crate) async fn reconciled_step<T: DeserializeOwned>(
        &self,
        step: &StepId,
    ) -> Result<Reconciled<T>, TaskError> {
        Ok(match self.reconciled(Lane::Step(step.clone())).await? {
            Reconciled::Done(json) => Reconciled::Done(json.decode()?),
            Reconciled::NotDone => Reconciled::NotDone,
            Reconciled::Unknown => Reconciled::Unknown,
        })
    }

    /// The outcome of a tool call.
    pub(crate) async fn call(&self, call: &CallId) -> Result<Recorded, TaskError> {
        match self.ask(Lane::Call(call.clone())).await {
            Answer::Returned(json) => Ok(recorded(json)),
            Answer::Failed(cause) => Err(TaskError::from_cause(&cause)),
            Answer::Interrupted => Err(interrupted()),
            Answer::Reconciled(_) | Answer::Model(_) | Answer::Child(_) => {
                Err(misplaced(&format!("call `{call}`")))
            }
        }
    }

    /// What became of an interrupted tool call.
    pub(crate) async fn reconciled_call(
        &self,
        call: &CallId,
    ) -> Result<Reconciled<Recorded>, TaskError> {
        Ok(match self.reconciled(Lane::Call(call.clone())).await? {
            Reconciled::Done(json) => Reconciled::Done(recorded(json)),
            Reconciled::NotDone => Reconciled::NotDone,
            Reconciled::Unknown => Reconciled::Unknown,
        })
    }

    async fn reconciled(&self, lane: Lane) -> Result<Reconciled<Json>, TaskError> {
        let comes_next = {
            let given = self.scene().given.get(&lane).copied().unwrap_or_default();
            let of_lane = self.reconciles.get(&lane);
            of_lane.and_then(|it| it.get(given)).copied() == Some(true)
        };
        if !comes_next {
            return Ok(Reconciled::Unknown);
        }
        Ok(match self.ask(lane.clone()).await {
            Answer::Reconciled(Some(json)) => Reconciled::Done(json),
            Answer::Reconciled(None) => Reconciled::NotDone,
            _ => return Err(misplaced(&lane.to_string())),
        })
    }

    /// What a model said, as it was recorded: `model.answered` or `model.failed`.
    pub(crate) async fn model(&self, call: &CallId) -> Body {
        match self.ask(Lane::Call(call.clone())).await {
            Answer::Model(body) => *body,
            _ => std::future::pending().await,
        }
    }

    /// How a child ended.
    pub(crate) async fn child(&self, started: ChildCall) -> Result<ChildEnd, TaskError> {
        let step = started.step.clone();
        self.scene().children.push(started);
        match self.ask(Lane::Step(step.clone())).await {
            Answer::Child(end) => Ok(*end),
            _ => Err(misplaced(&format!("step `{step}`"))),
        }
    }

    /// The id of the child that the step starts now.
    pub(crate) fn child_id(&self, step: &StepId) -> Option<RunId> {
        self.scene().child_ids.get_mut(step)?.pop_front()
    }

    /// Why the call was refused because of what was found where it led, if it was.
    pub(crate) fn refusal(&self, call: &CallId) -> Option<Cause> {
        self.refusals.get(call.as_str()).cloned()
    }

    pub(crate) fn first_request(&self) -> Option<Value> {
        self.first_request.clone()
    }

    /// Notes what a step works on.
    pub(crate) fn note(&self, step: &StepId, works_on: impl FnOnce() -> Value) {
        let lane = Lane::Step(step.clone());
        let mut scene = self.scene();
        scene.notes.entry(lane).or_insert_with(works_on);
    }

    /// Gives the cue to whoever asks for it.
    pub(crate) fn give(&self, cue: &Cue, answer: &Answer) -> bool {
        let mut scene = self.scene();
        let Some(asked) = scene.waiting.remove(&cue.lane) else {
            return false;
        };
        let given = asked.send(answer.clone()).is_ok();
        if given {
            *scene.given.entry(cue.lane.clone()).or_default() += 1;
        }
        given
    }

    /// A cue came about without anyone asking.
    pub(crate) fn passed(&self, cue: &Cue) {
        *self.scene().given.entry(cue.lane.clone()).or_default() += 1;
    }

    /// Something began without asking for anything.
    pub(crate) fn begins(&self, lane: Lane) {
        let mut scene = self.scene();
        let cue = scene.cue;
        scene.began.entry(lane).or_insert(cue);
    }

    /// So many cues were given.
    pub(crate) fn at(&self, cue: usize) {
        self.scene().cue = cue;
    }

    pub(crate) fn noted(&self) -> Noted {
        let mut scene = self.scene();
        let mut waiting: Vec<Lane> = scene.waiting.drain().map(|(lane, _)| lane).collect();
        waiting.sort_by_key(Lane::to_string);
        Noted {
            began: std::mem::take(&mut scene.began),
            notes: std::mem::take(&mut scene.notes),
            children: std::mem::take(&mut scene.children),
            waiting,
        }
    }
}

fn recorded(json: Json) -> Recorded {
    let (output, blob) = Payload::of(json);
    Recorded {
        output,
        blobs: Vec::from_iter(blob),
        redacted: 0,
    }
}

/// Of a write: nobody knows whether it happened.
fn interrupted() -> TaskError {
    TaskError::of_kind("lost", "it was interrupted")
}

fn misplaced(what: &str) -> TaskError {
    let message = format!("the log has something else at this place of {what}");
    TaskError::of_kind("replay", message).permanent()
}
