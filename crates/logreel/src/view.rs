//! Runs and events as JSON: the shapes people and programs read (`show --json`, `log --json`, HTTP).
//!
//! No value is null, never absent. New fields may appear, none changes its type.

mod whole;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use logreel_core::codec::StoredBody;
use logreel_core::event::{
    Budget, Cause, Effect, Git, OnDeadline, Parent, Provenance, Used, Verification, WaitKind,
};
use logreel_core::row::{End, Row, Usage};
use logreel_core::state::Doing;
use logreel_core::{
    Body, CallId, Digest, Epoch, INLINE_MAX, Json, Payload, Record, RunId, RunKey, RunState, Seq,
    Session, StepId, StepState, Timestamp, WaitId,
};
use logreel_store::Entry;
use serde::Serialize;

pub use whole::WholeRun;

/// A run as JSON.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the fields are those of INTERFACES C, by name")]
pub struct RunView {
    pub id: RunId,
    pub session: Option<Session>,
    pub kind: &'static str,
    pub agent: String,
    pub status: &'static str,
    pub spec_digest: Digest,
    pub git: Option<Git>,
    pub dir: Option<String>,
    pub input: Payload,
    pub output: Option<Payload>,
    pub error: Option<CauseView>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub event_count: u64,
    pub head_digest: Digest,
    pub final_state_digest: Option<Digest>,
    pub verification: Option<Verification>,
    pub labels: BTreeMap<String, String>,
    pub parent: Option<Parent>,
    pub usage: UsageView,
    pub state: serde_json::Value,
    pub reason: Option<String>,
    pub erased: bool,
    pub read_only: bool,
    pub provenance: Provenance,
    pub budget: BudgetView,
    pub waiting: Vec<WaitView>,
    pub active_tools: Vec<ToolView>,
    pub driver: Option<DriverView>,
    pub orphaned: bool,
    pub ready_at: Option<Timestamp>,
    pub durability: &'static str,
}

/// Why a run or step failed, as JSON: the step as it is shown.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the fields are those of INTERFACES C, by name")]
pub struct CauseView {
    pub kind: String,
    pub message: String,
    pub step: Option<String>,
    pub retryable: bool,
}

/// What was spent, as JSON: money in dollars.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the fields are those of INTERFACES C, by name")]
pub struct UsageView {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    pub reasoning_tokens: u64,
    pub usd: Option<f64>,
    pub model_calls: u64,
    pub tool_calls: u64,
}

/// The limits, as JSON: money in dollars.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the fields are those of INTERFACES A, by name")]
pub struct BudgetView {
    pub tokens: Option<u64>,
    pub usd: Option<f64>,
    pub wall_ms: Option<u64>,
    pub tool_calls: Option<u64>,
    pub children: Option<u64>,
    /// What was used of them, by the run and everyone below it.
    pub used: UsedView,
    /// What is set aside: for open model calls, and for children that have not ended.
    pub set_aside: UsedView,
}

/// What was used of limits, as JSON: money in dollars; time is null where it is not limited.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the fields are those of INTERFACES A, by name")]
pub struct UsedView {
    pub tokens: u64,
    pub usd: f64,
    pub wall_ms: Option<u64>,
    pub tool_calls: u64,
    pub children: u64,
}

/// An open wait, as JSON.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the fields are those of INTERFACES C, by name")]
pub struct WaitView {
    pub id: WaitId,
    pub kind: WaitKind,
    pub step: Option<String>,
    pub call: Option<CallId>,
    pub name: Option<String>,
    pub prompt: Option<String>,
    pub tool: Option<String>,
    pub arguments: Option<Payload>,
    pub since: Timestamp,
    pub deadline: Option<Timestamp>,
    pub on_deadline: Option<OnDeadline>,
}

/// A tool call under way, as JSON.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the fields are those of INTERFACES C, by name")]
pub struct ToolView {
    pub call: CallId,
    pub name: String,
    pub since: Timestamp,
}

/// Who drives a run, as JSON.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the fields are those of INTERFACES C, by name")]
pub struct DriverView {
    pub host: String,
    pub pid: u32,
    pub since: Timestamp,
}

impl RunView {
    /// The run as one of many: a document over 64 KiB is left to whoever asks for the run itself, and only its
    /// size is told. It is no blob: the log has it in patches.
    pub fn listed(entry: &Entry) -> Self {
        let mut view = Self::of(entry);
        let bytes = serde_json::to_vec(&view.state).map_or(0, |text| text.len());
        if bytes > INLINE_MAX {
            let media_type = "application/json";
            view.state =
                serde_json::json!({"blob": null, "bytes": bytes, "media_type": media_type});
        }
        view
    }

    /// The run without its steps.
    pub fn of(entry: &Entry) -> Self {
        let row = &entry.row;
        let facts = &*row.facts;
        let ended = facts.ended.as_ref();
        let (mut output, mut error, mut reason) = (None, None, None);
        match ended.map(|ended| &ended.end) {
            Some(End::Completed { output: value }) => output = Some(value.clone()),
            Some(End::Failed { cause }) => error = Some(CauseView::of(cause)),
            Some(End::Cancelled { reason: why }) => reason = why.clone(),
            None => {}
        }
        Self {
            id: row.run,
            session: facts.session.clone(),
            kind: facts.kind.as_str(),
            agent: facts.agent.to_string(),
            status: row.status().as_str(),
            spec_digest: facts.spec_digest,
            git: facts.git.clone(),
            dir: facts.dir.clone(),
            input: facts.input.clone(),
            output,
            error,
            created_at: facts.created_at,
            updated_at: row.updated_at,
            finished_at: ended.map(|ended| ended.at),
            event_count: row.head.seq.0,
            head_digest: row.head.digest,
            final_state_digest: ended.map(|ended| ended.final_state_digest),
            verification: facts.verification.clone(),
            labels: facts.labels.clone(),
            parent: facts.parent.clone(),
            usage: UsageView::of(&row.pulse.usage),
            state: facts.document.clone(),
            reason,
            erased: entry.erased,
            read_only: entry.read_only,
            provenance: facts.provenance.clone(),
            budget: BudgetView::of(row),
            waiting: facts
                .waits
                .iter()
                .map(|open| WaitView {
                    id: open.wait.wait,
                    kind: open.wait.kind,
                    step: open.wait.step.as_ref().map(ToString::to_string),
                    call: open.wait.call.clone(),
                    name: open.wait.name.clone(),
                    prompt: open.wait.prompt.clone(),
                    tool: open.wait.tool.clone(),
                    arguments: open.wait.arguments.clone(),
                    since: open.since,
                    deadline: open.wait.deadline,
                    on_deadline: open.wait.on_deadline,
                })
                .collect(),
            active_tools: row
                .pulse
                .active_tools
                .iter()
                .map(|tool| ToolView {
                    call: tool.call.clone(),
                    name: tool.name.clone(),
                    since: tool.since,
                })
                .collect(),
            driver: entry
                .driver
                .as_ref()
                .filter(|driver| driver.alive)
                .map(|driver| DriverView {
                    host: driver.owner.host_name.clone(),
                    pid: driver.owner.pid,
                    since: driver.since,
                }),
            orphaned: entry.is_orphaned(),
            ready_at: entry.ready_at,
            durability: facts.durability.as_str(),
        }
    }
}

impl CauseView {
    /// The cause with its step as shown.
    pub fn of(cause: &Cause) -> Self {
        Self {
            kind: cause.kind.clone(),
            message: cause.message.clone(),
            step: cause.step.as_ref().map(ToString::to_string),
            retryable: cause.retryable,
        }
    }
}

impl CauseView {
    /// Of a step that the end of its run stopped.
    fn interrupted(step: &StepId) -> Self {
        Self {
            kind: "interrupted".to_owned(),
            message: "the run ended before the step did".to_owned(),
            step: Some(step.to_string()),
            retryable: true,
        }
    }
}

fn dollars(micros: u64) -> f64 {
    micros as f64 / 1e6
}

impl UsageView {
    fn of(usage: &Usage) -> Self {
        Self {
            input_tokens: usage.spent.input_tokens,
            output_tokens: usage.spent.output_tokens,
            cache_read_tokens: usage.spent.cache_read_tokens,
            cache_write_tokens: usage.spent.cache_write_tokens,
            reasoning_tokens: usage.spent.reasoning_tokens,
            usd: usage.usd_micros().map(dollars),
            model_calls: usage.model_calls,
            tool_calls: usage.tool_calls,
        }
    }
}

impl BudgetView {
    fn of(row: &Row) -> Self {
        let budget = &row.facts.budget;
        Self {
            tokens: budget.tokens,
            usd: budget.usd_micros.map(dollars),
            wall_ms: budget.wall_ms,
            tool_calls: budget.tool_calls,
            children: budget.children,
            used: UsedView::of(row.used(), budget),
            set_aside: UsedView::of(row.set_aside(), budget),
        }
    }
}

impl UsedView {
    fn of(used: Used, budget: &Budget) -> Self {
        Self {
            tokens: used.tokens,
            usd: dollars(used.usd_micros),
            wall_ms: budget.wall_ms.map(|_| used.wall_ms),
            tool_calls: used.tool_calls,
            children: used.children,
        }
    }
}

/// A step as JSON.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the fields are those of INTERFACES C, by name")]
pub struct StepView {
    pub id: String,
    pub status: &'static str,
    pub attempts: u32,
    pub effect: Option<Effect>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub output: Option<Payload>,
    pub error: Option<CauseView>,
}

/// Tells the steps of a run while its log is read once more: each comes out with the event that holds
/// its end, so that a run of a million steps needs no memory for their outputs. The steps without an
/// end follow from [`StepsView::open`].
pub struct StepsView {
    state: Arc<RunState>,
    started: HashMap<StepId, Timestamp>,
    /// Those whose latest attempt failed.
    failed: HashMap<StepId, Timestamp>,
    /// What became known after the run's end; the state does not move any more.
    late: HashMap<StepId, Late>,
}

/// How a step ended after its run had.
enum Late {
    Finished,
    Failed(Cause),
}

impl StepsView {
    /// The steps of the run in this state.
    pub fn new(state: &Arc<RunState>) -> Self {
        Self {
            state: Arc::clone(state),
            started: HashMap::new(),
            failed: HashMap::new(),
            late: HashMap::new(),
        }
    }

    /// Whether [`StepsView::next`] looks at events like this one; the others need not be decoded.
    pub fn looks_at(record: &Record) -> bool {
        record.kind.starts_with("step.") || record.kind == "wait.ended"
    }

    /// The step that this event ends, if any.
    pub fn next(&mut self, event: &logreel_core::Event) -> Option<StepView> {
        let (step, effect, started_at, output) = match &event.body {
            Body::StepStarted(started) => {
                self.started.insert(started.step.clone(), event.at);
                self.failed.remove(&started.step);
                return None;
            }
            Body::StepFailed(failed) => {
                self.failed.insert(failed.step.clone(), event.at);
                if event.late {
                    let late = Late::Failed(failed.error.clone());
                    self.late.insert(failed.step.clone(), late);
                }
                return None;
            }
            Body::StepResolved(logreel_core::event::StepResolved {
                step,
                resolution: logreel_core::event::Resolution::Failed(_),
                ..
            }) => {
                self.failed.insert(step.clone(), event.at);
                return None;
            }
            Body::StepFinished(finished) => (
                &finished.step,
                Some(finished.effect),
                finished.started_at,
                finished.output.clone(),
            ),
            Body::StepResolved(logreel_core::event::StepResolved {
                step,
                resolution: logreel_core::event::Resolution::Returned(output),
                ..
            }) => (step, Some(Effect::Write), None, output.clone()),
            Body::WaitEnded(ended) => {
                let step = ended.step.as_ref()?;
                // As templates see it: an approval with who gave it, anything else as the value alone.
                let output = match ended.approved {
                    None => ended.value.clone(),
                    Some(_) => Payload::Inline(Json::from(serde_json::json!({
                        "approved": ended.approved, "by": ended.by, "value": ended.value,
                    }))),
                };
                (step, None, None, output)
            }
            _ => return None,
        };
        let attempts = match (self.state.steps.get(step), &event.body) {
            (Some(StepState::Finished { seq, attempt }), _) if *seq == event.seq => *attempt,
            (Some(StepState::Answered { seq }), _) if *seq == event.seq => 1,
            (_, Body::StepFinished(finished)) if event.late => {
                self.late.insert(step.clone(), Late::Finished);
                finished.attempt
            }
            _ => return None,
        };
        Some(StepView {
            id: step.to_string(),
            status: "finished",
            attempts,
            effect,
            started_at: started_at.or_else(|| self.started.remove(step)),
            finished_at: Some(event.at),
            output: Some(output),
            error: None,
        })
    }

    /// The steps that have no result, by id.
    pub fn open(&self) -> Vec<StepView> {
        let mut open: Vec<_> = self
            .state
            .steps
            .iter()
            .filter_map(|(step, state)| match state {
                StepState::Open(open) => Some((step, open)),
                StepState::Finished { .. } | StepState::Answered { .. } => None,
            })
            .filter(|(step, _)| !matches!(self.late.get(step), Some(Late::Finished)))
            .collect();
        let ended = self.state.row.facts.ended.as_ref();
        open.sort_by_key(|(step, _)| (*step).clone());
        let children = self.state.children.values().map(|open| &open.step);
        let children: std::collections::HashSet<_> = children.collect();
        let mut views: Vec<StepView> = open
            .into_iter()
            .filter(|(step, _)| !children.contains(step))
            .map(|(step, open)| {
                let late = self.late.get(step);
                // After the run's end nothing runs and nothing waits.
                let (status, error) = match (&open.doing, late) {
                    (Doing::Running, Some(Late::Failed(cause))) | (Doing::Failed(cause), _) => {
                        ("failed", Some(CauseView::of(cause)))
                    }
                    (Doing::Running, _) if ended.is_none() => ("running", None),
                    (Doing::Running, _) if open.effect == Effect::Write => ("in_doubt", None),
                    (Doing::Running, _) => ("failed", Some(CauseView::interrupted(step))),
                    (Doing::Retrying { .. }, _) => ("pending", None),
                    (Doing::Skipped, _) => ("skipped", None),
                    (Doing::InDoubt, _) => ("in_doubt", None),
                    (Doing::Waiting(_), _) if ended.is_none() => ("waiting", None),
                    (Doing::Waiting(_), _) => ("skipped", None),
                };
                let failed_at = self.failed.get(step).copied();
                let failed_at = failed_at.or_else(|| ended.map(|ended| ended.at));
                StepView {
                    id: step.to_string(),
                    status,
                    attempts: open.attempt,
                    effect: Some(open.effect),
                    started_at: Some(open.started_at),
                    finished_at: failed_at.filter(|_| status == "failed"),
                    output: None,
                    error,
                }
            })
            .collect();
        views.extend(children.into_iter().map(|step| {
            let view = StepView::pending(step.to_string());
            match ended {
                None => StepView {
                    status: "waiting",
                    ..view
                },
                // Its child was cancelled.
                Some(ended) => StepView {
                    status: "failed",
                    finished_at: Some(ended.at),
                    error: Some(CauseView::interrupted(step)),
                    ..view
                },
            }
        }));
        views.sort_by(|a, b| a.id.cmp(&b.id));
        views
    }

    /// The steps of a workflow that the log does not speak of yet, in its order.
    pub fn pending(&self, workflow: &crate::workflow::Workflow) -> Vec<StepView> {
        let known = self.state.steps.keys();
        let known = known.chain(self.state.children.values().map(|open| &open.step));
        // Of a mapped step the log knows only the items.
        let known: std::collections::HashSet<String> = known.map(|step| step.name()).collect();
        let steps = workflow.spec().steps.iter();
        steps
            .filter(|step| !known.contains(&step.id))
            .map(|step| StepView::pending(step.id.clone()))
            .collect()
    }
}

impl StepView {
    fn pending(id: String) -> Self {
        Self {
            id,
            status: "pending",
            attempts: 0,
            effect: None,
            started_at: None,
            finished_at: None,
            output: None,
            error: None,
        }
    }
}

/// An event as JSON, with its body as stored.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the fields are those of INTERFACES C, by name")]
pub struct EventView<'a> {
    pub run: RunId,
    pub seq: Seq,
    pub at: Timestamp,
    pub caller_at: Option<Timestamp>,
    pub epoch: Epoch,
    pub kind: &'a str,
    pub late: bool,
    pub format: u16,
    pub body: Option<Json>,
    pub body_digest: Option<Digest>,
    pub digest: Digest,
    pub origin: Option<RunId>,
}

impl<'a> EventView<'a> {
    /// An event of a run's log; the key, of the run that it was written for, is needed for the digest
    /// of a body that was not erased.
    pub fn of(run: RunId, record: &'a Record, key: Option<&RunKey>) -> Self {
        let (body, body_digest) = match &record.body {
            StoredBody::Text(text) => (
                Some(Json::parse(text.clone()).unwrap_or_else(|_| Json::null())),
                key.map(|key| key.body_digest(text)),
            ),
            StoredBody::Erased(digest) => (None, Some(*digest)),
        };
        Self {
            run,
            seq: record.seq,
            at: record.at,
            caller_at: record.caller_at,
            epoch: record.epoch,
            kind: &record.kind,
            late: record.late,
            format: record.format,
            body,
            body_digest,
            digest: record.digest,
            origin: record.origin,
        }
    }
}
