//! Running a workflow: start what is ready, wait for what is under way, until nothing is left.
//!
//! What is ready follows from the folded log, so a resume is nothing special: steps that ended are
//! passed over, the rest goes on. A failure stops what has not begun; work under way comes to its
//! end, so that the same failure leaves the same results, whatever the timing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use logreel_core::state::Doing;
use logreel_core::{Digest, Json, StepId, StepState};
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use super::outputs::Outputs;
use super::secrets::Secrets;
use super::spec::{Does, OnError, StepSpec};
use super::{Workflow, template};
use crate::ctx::Ctx;
use crate::error::TaskError;

/// Steps that work at once when the workflow does not say.
const CONCURRENCY: u32 = 8;

/// Drives the workflow to its end and gives its output.
pub(crate) async fn run(ctx: Ctx, workflow: Workflow, input: Json) -> Result<Json, TaskError> {
    let limit = workflow.spec().concurrency.unwrap_or(CONCURRENCY).max(1) as usize;
    let running = Running {
        input: input.to_value(),
        secrets: match &ctx.0.engine.stage {
            Some(_) => Secrets::unknown(&workflow),
            None => Secrets::of(&workflow)?.hiding(&ctx.log().inherited_secrets()),
        },
        limit,
        slots: Semaphore::new(limit),
        failing: watch::Sender::new(false),
        ended: Mutex::new(vec![None; workflow.steps().len()]),
        definitions: vec![OnceLock::new(); workflow.steps().len()],
        outputs: Outputs::default(),
        ctx: &ctx,
        workflow: &workflow,
    };
    running.all().await?;
    running.output().await
}

/// One call of a workflow.
pub(super) struct Running<'a> {
    pub(super) ctx: &'a Ctx,
    pub(super) workflow: &'a Workflow,
    pub(super) input: Value,
    pub(super) secrets: Secrets,
    /// How many commands and tasks work at once; those that wait take no slot.
    pub(super) limit: usize,
    pub(super) slots: Semaphore,
    /// A step failed and the run will: nothing new begins, waits are given up.
    pub(super) failing: watch::Sender<bool>,
    ended: Mutex<Vec<Option<Ended>>>,
    pub(super) definitions: Vec<OnceLock<Digest>>,
    pub(super) outputs: Outputs,
}

/// How a step ended.
#[derive(Debug, Clone)]
pub(super) enum Ended {
    /// Its result is in the log.
    Finished,
    /// Each of its items ended.
    Mapped(Vec<StepId>),
    /// It failed, and the run goes on.
    Failed { exit_code: Option<i32> },
    /// It did not run.
    Skipped,
}

impl Ended {
    /// As templates see it.
    pub(super) fn status(&self) -> &'static str {
        match self {
            Self::Finished | Self::Mapped(_) => "finished",
            Self::Failed { .. } => "failed",
            Self::Skipped => "skipped",
        }
    }
}

type UnderWay<'a> = FuturesUnordered<BoxFuture<'a, (usize, Result<Ended, TaskError>)>>;

impl Running<'_> {
    fn ended(&self) -> MutexGuard<'_, Vec<Option<Ended>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the step ended, if it did.
    pub(super) fn end_of(&self, step: usize) -> Option<Ended> {
        self.ended()[step].clone()
    }

    /// Runs every step whose needs have ended; an error is the first failure in the workflow's order.
    async fn all(&self) -> Result<(), TaskError> {
        let graph = self.workflow;
        let count = self.workflow.steps().len();
        let mut missing: Vec<usize> = (0..count).map(|step| graph.needs(step).len()).collect();
        let mut ready: VecDeque<usize> = (0..count).filter(|step| missing[*step] == 0).collect();
        // Ready, but every slot is taken. Only a few futures exist at a time, however wide the graph.
        let mut held: VecDeque<usize> = VecDeque::new();
        let mut under_way: UnderWay<'_> = FuturesUnordered::new();
        let mut working = 0;
        let mut failures: Vec<(usize, TaskError)> = Vec::new();
        loop {
            while failures.is_empty() {
                let next = match held.front() {
                    Some(_) if working < self.limit => held.pop_front(),
                    _ => ready.pop_front(),
                };
                let Some(step) = next else { break };
                if let Some(ended) = self.known_end(step)? {
                    self.end(step, ended, &mut missing, &mut ready);
                } else if is_work(self.workflow.step(step)) && working >= self.limit {
                    held.push_back(step);
                } else {
                    working += usize::from(is_work(self.workflow.step(step)));
                    under_way.push(Box::pin(async move { (step, self.step(step).await) }));
                }
            }
            let Some((step, outcome)) = under_way.next().await else {
                break;
            };
            working -= usize::from(is_work(self.workflow.step(step)));
            match outcome {
                Ok(ended) => self.end(step, ended, &mut missing, &mut ready),
                Err(error) if error.is_cancelled() => return Err(error),
                Err(error) => {
                    self.failing.send_replace(true);
                    failures.push((step, error));
                }
            }
        }
        // Which one came first is chance; which one is first in the file is not. A wait that was
        // given up failed because of another.
        failures.sort_by_key(|(step, error)| (error.is_abandoned(), *step));
        match failures.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    fn end(&self, step: usize, ended: Ended, missing: &mut [usize], ready: &mut VecDeque<usize>) {
        self.ended()[step] = Some(ended);
        for next in self.workflow.dependents(step) {
            missing[*next] -= 1;
            if missing[*next] == 0 {
                ready.push_back(*next);
            }
        }
    }

    /// The end that the log has. A finished step needs no rendering: under the spec that is pinned,
    /// its inputs are what they were.
    fn known_end(&self, step: usize) -> Result<Option<Ended>, TaskError> {
        let spec = self.workflow.step(step);
        if spec.map.is_some() {
            return Ok(None);
        }
        let id = step_id([&spec.id])?;
        let known = self
            .ctx
            .0
            .journal
            .with_state(|state| match state.steps.get(&id) {
                Some(StepState::Finished { .. }) => Some(Ended::Finished),
                Some(StepState::Open(open)) if open.doing == Doing::Skipped => Some(Ended::Skipped),
                Some(StepState::Answered { .. } | StepState::Open(_)) | None => None,
            });
        Ok(known)
    }

    /// Runs one step of the graph, whatever it is.
    async fn step(&self, step: usize) -> Result<Ended, TaskError> {
        let spec = self.workflow.step(step);
        let id = step_id([&spec.id])?;
        let looked_at = self.workflow.references(step);
        let applies = async {
            let scope = self.scope(looked_at).await?;
            Ok(match &spec.when {
                Some(when) => template::truthy("when", when, &scope)?.then_some(scope),
                None => Some(scope),
            })
        };
        let scope = match applies.await {
            Ok(Some(scope)) => scope,
            Ok(None) => return self.skip(&id).await,
            Err(error) => return self.fail_early(&id, error).await,
        };
        let ended = match &spec.map {
            Some(items) => self.map(step, &id, items, &scope).await,
            None => self.one(step, &id, &scope).await,
        };
        match ended {
            Err(error) if goes_on(spec, &error) => Ok(Ended::Failed {
                exit_code: error.exit_code(),
            }),
            other => other,
        }
    }

    /// The workflow's output: what it says, else that of the only step nothing needs, else all of
    /// those by id.
    async fn output(&self) -> Result<Json, TaskError> {
        if let Some(output) = &self.workflow.spec().output {
            let scope = self.scope(self.workflow.output_references()).await?;
            return Ok(Json::from(template::render("output", output, &scope)?));
        }
        let last: Vec<usize> = (0..self.workflow.steps().len())
            .filter(|step| self.workflow.dependents(*step).is_empty())
            .collect();
        if let [only] = last.as_slice() {
            return self.written_output(*only).await;
        }
        let mut output = BTreeMap::new();
        for step in last {
            let id = self.workflow.step(step).id.as_str();
            output.insert(id, self.written_output(step).await?);
        }
        Ok(Json::of(&output)?)
    }
}

/// Whether the run goes on after this failure of the step.
pub(super) fn goes_on(spec: &StepSpec, error: &TaskError) -> bool {
    spec.on_error == OnError::Continue && !error.is_cancelled() && !error.is_abandoned()
}

/// Whether the step works in this process, and so takes a slot. A map's items do, the map does not.
fn is_work(spec: &StepSpec) -> bool {
    match spec.does {
        Does::Run(_) | Does::Task { .. } => spec.map.is_none(),
        Does::Agent { .. } | Does::Workflow { .. } | Does::Wait(_) => false,
    }
}

/// A step's id from its parts.
pub(super) fn step_id<I>(parts: I) -> Result<StepId, TaskError>
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    StepId::from_parts(parts).map_err(|error| TaskError::from(error).permanent())
}
