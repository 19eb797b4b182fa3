//! Retrying: a run that failed or was cancelled goes on as a new one that shares what it finished.
//!
//! The new run is a fork right before the end (SEMANTICS 31): finished steps return their results, failed
//! and open ones start again, under keys of their own.

use std::collections::{HashMap, HashSet};
use std::future::IntoFuture;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{Git, Relation, RunKind};
use logreel_core::{Event, Json, Payload, RunId, RunState, Status, StepId};
use logreel_store::{Entry, ForkAt, ForkError, NewFork};
use serde::Serialize;
use serde_json::Value;

use crate::Error;
use crate::engine::{Engine, Inner};
use crate::fork::{self, ForkPoint, Leaving, Outlook, begins_anew, change_spec, find_point};
use crate::handle::RunHandle;
use crate::program::Program;
use crate::record::is_with_recorder;
use crate::request::Request;
use crate::workflow::Workflow;

/// How long the driver of a run that was just cancelled may take to let go of it.
const LET_GO: Duration = Duration::from_secs(3);

/// A run about to be retried; made by [`Engine::retry`], awaited to begin.
#[must_use = "a run is retried when this is awaited"]
pub struct RetryRun {
    engine: Arc<Inner>,
    parent: RunId,
    run: Option<RunId>,
    from: Option<String>,
    input: Option<Result<Json, Error>>,
    queue: bool,
    accept_spec_change: bool,
    under: Option<Value>,
    git: Option<Git>,
    request: Result<Request, Error>,
}

impl Engine {
    /// Goes on with a failed or cancelled run as a new one: what finished is shared, what failed or was
    /// open starts again. Awaited, gives the new run's handle.
    pub fn retry(&self, run: &RunId) -> RetryRun {
        RetryRun {
            engine: Arc::clone(&self.0),
            parent: *run,
            run: None,
            from: None,
            input: None,
            queue: false,
            accept_spec_change: false,
            under: None,
            git: None,
            request: Ok(Request::default()),
        }
    }
}

impl RetryRun {
    /// Forgets this step, by its id as it is shown or as an array, and all that need it, though they
    /// finished. Of a task only the steps inside it and around it are known to.
    pub fn from(mut self, step: impl Into<String>) -> Self {
        self.from = Some(step.into());
        self
    }

    /// Another input. Finished steps keep their results; one that is bound to its input refuses to
    /// go on with another.
    pub fn input<T: Serialize + ?Sized>(mut self, input: &T) -> Self {
        let input = Json::of(input).map_err(|error| Error::value("the input", error));
        self.input = Some(input);
        self
    }

    /// The new run's id. The same retry under the same id attaches.
    pub fn id(mut self, run: RunId) -> Self {
        self.run = Some(run);
        self
    }

    /// Only records the new run; a worker ([`Engine::work`]) drives it.
    pub fn queue(mut self) -> Self {
        self.queue = true;
        self
    }

    /// Goes on under another version of the task than the run was started with; recorded.
    pub fn accept_spec_change(mut self) -> Self {
        self.accept_spec_change = true;
        self
    }

    /// Goes on under another spec of the agent than the run was started with; recorded.
    pub fn under_agent(mut self, spec: Value) -> Self {
        self.under = Some(spec);
        self.accept_spec_change = true;
        self
    }

    /// The checkout it goes on in.
    pub fn git(mut self, git: Git) -> Self {
        self.git = Some(git);
        self
    }

    /// Your own name for this request: the same again gives the same new run. With other arguments it is a
    /// conflict.
    pub fn request(mut self, id: impl AsRef<str>) -> Self {
        self.request = Request::new(id);
        self
    }

    /// All that was said.
    fn asked(&self) -> impl Serialize + use<> {
        let input = self.input.as_ref().and_then(|input| input.as_ref().ok());
        let (from, under) = (self.from.clone(), self.under.clone());
        (
            "retry",
            from,
            input.cloned(),
            under,
            self.accept_spec_change,
        )
    }

    /// Which writes it would do again: those that were under way, those of children that start again, and
    /// those that it forgets. Makes nothing.
    pub async fn look(&self) -> Result<Outlook, Error> {
        let plan = self.plan().await?;
        let at = find_point(&self.engine, &self.parent, &ForkPoint::Last).await?;
        let leaving = Leaving {
            run: self.parent,
            at,
            given: &[],
            forgotten: &plan.forgotten,
            anew: begins_anew(&plan.entry, self.input.as_ref()),
        };
        fork::look(&self.engine, &leaving).await
    }

    /// What the new run begins with, or why there is none.
    async fn plan(&self) -> Result<Plan, Error> {
        let engine = &self.engine;
        engine.check_open()?;
        let entry = engine.store.entry(&self.parent).await?;
        match entry.row.status() {
            Status::Failed | Status::Cancelled => {}
            status => {
                let run = self.parent;
                return Err(Error::NotRetried { run, status });
            }
        }
        if entry.erased {
            return Err(ForkError::Erased(self.parent).into());
        }
        let facts = &entry.row.facts;
        // Only its recorder starts the program again.
        if is_with_recorder(facts) && engine.registry.recording(&facts.spec_digest).is_none() {
            return Err(Error::OnlyRecorded(self.parent));
        }
        let queue = self.queue || facts.kind == RunKind::External;
        let name = &facts.agent;
        let program = match &self.under {
            Some(spec) => engine.agent_to_drive(spec),
            None => engine.program_of(&entry).await,
        };
        let program = match program {
            Ok(program) => Some(program),
            // Whoever takes it from the queue must know it.
            Err(Error::UnknownTask { .. } | Error::Lacks { .. }) if queue => None,
            Err(error) => return Err(error),
        };
        let spec = entry.row.facts.spec_digest;
        let changed = program.as_ref().is_some_and(|it| it.spec_digest != spec);
        if changed && !self.queue && !self.accept_spec_change {
            return Err(Error::SpecChanged {
                run: self.parent,
                name: name.to_string(),
            });
        }
        let workflow = program.as_ref().and_then(|it| it.workflow.as_ref());
        let forgotten = match &self.from {
            None => Vec::new(),
            Some(from) => {
                let state = engine.state_before_end(&self.parent).await?;
                let steps: Vec<StepId> = state.steps.into_keys().collect();
                match workflow {
                    Some(workflow) => forgotten_in_graph(&steps, self.parent, from, workflow)?,
                    None => forgotten(&steps, self.parent, from, &|_| Vec::new())?,
                }
            }
        };
        let input = match &self.input {
            None => None,
            Some(input) => {
                let redaction = engine.redaction_in(&self.parent).await;
                let input = redaction.json(input.clone()?);
                let program = program.as_deref();
                engine
                    .admit(&entry, program, self.under.as_ref(), &input)
                    .await?;
                Some(input)
            }
        };
        Ok(Plan {
            entry,
            queue,
            program,
            changed,
            forgotten,
            input,
        })
    }

    async fn retry(self) -> Result<RunHandle<Json>, Error> {
        let engine = Arc::clone(&self.engine);
        engine.check_open()?;
        let asked = self.asked();
        let request = self.request.clone()?;
        let named = match request.run(&engine, &self.parent, &asked).await? {
            Some((_, Some(made))) => return engine.take_up(made, self.queue).await,
            Some((run, None)) => Some(run),
            None => None,
        };
        let plan = self.plan().await?;
        engine.until_let_go(&self.parent).await?;
        let (input, blob) = plan.input.map(Payload::of).unzip();
        let run = self.run.or(named).unwrap_or_else(|| engine.env.run_id());
        let mut new = NewFork {
            input,
            forgotten: plan.forgotten,
            blobs: Vec::from_iter(blob.flatten()),
            ..NewFork::of(run, self.parent, ForkAt::Last, Relation::Retry)
        };
        let accepted = plan.changed && self.accept_spec_change;
        if let Some(program) = plan.program.as_ref().filter(|_| accepted) {
            change_spec(&mut new, program, None);
        }
        engine
            .make_and_drive(new, plan.program, self.git, plan.queue)
            .await
    }
}

/// What a retry begins with.
struct Plan {
    entry: Entry,
    /// Somebody else drives it: a worker, or the client of an external run.
    queue: bool,
    /// What drives it; `None` when that is left to whoever takes it from the queue.
    program: Option<Arc<Program>>,
    /// It is not what the run was started with.
    changed: bool,
    forgotten: Vec<StepId>,
    input: Option<Json>,
}

impl IntoFuture for RetryRun {
    type Output = Result<RunHandle<Json>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.retry())
    }
}

impl Inner {
    /// Waits a moment for the driver of an ended run: what it still does must not be done by two.
    async fn until_let_go(&self, run: &RunId) -> Result<(), Error> {
        let mut doorbell = self.store.watch(run);
        let began = self.env.monotonic();
        while self.store.entry(run).await?.is_driven()
            && self.env.monotonic().saturating_sub(began) < LET_GO
        {
            // A lease given back in another process may not ring here.
            tokio::select! {
                _ = doorbell.rung() => {}
                () = self.env.sleep(Duration::from_millis(50)) => {}
            }
        }
        Ok(())
    }

    /// The state of a run right before it ended.
    async fn state_before_end(&self, run: &RunId) -> Result<RunState, Error> {
        let until_end = |event: &Event| match event.body.is_terminal() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        self.history(run, until_end).await
    }
}

/// [`forgotten`] of a workflow, whose graph says what needs a step. A mapped step is named by its id, or
/// one item of it by `ID[KEY]`.
fn forgotten_in_graph(
    steps: &[StepId],
    run: RunId,
    from: &str,
    workflow: &Workflow,
) -> Result<Vec<StepId>, Error> {
    let behind = |id: &str| -> HashSet<&str> {
        let mut found = HashSet::new();
        let mut left: Vec<usize> = workflow.index_of(id).into_iter().collect();
        while let Some(step) = left.pop() {
            for next in workflow.dependents(step) {
                if found.insert(workflow.step(*next).id.as_str()) {
                    left.push(*next);
                }
            }
        }
        found
    };
    let of_names = |names: &HashSet<&str>| -> Vec<StepId> {
        let named = steps.iter().filter(|step| names.contains(&*step.name()));
        named.cloned().collect()
    };
    if workflow.index_of(from).is_none() {
        return forgotten(steps, run, from, &|step| of_names(&behind(&step.name())));
    }
    let mut names = behind(from);
    names.insert(from);
    let mut forgotten = of_names(&names);
    forgotten.sort();
    Ok(forgotten)
}

/// The steps that start again when a run goes on from `from`: the step itself and what `dependents`
/// says needs it, each with the steps inside it; and the steps around it, whose results were made of
/// its, with what needs those. Only those among `steps`, which the log has.
fn forgotten(
    steps: &[StepId],
    run: RunId,
    from: &str,
    dependents: &dyn Fn(&StepId) -> Vec<StepId>,
) -> Result<Vec<StepId>, Error> {
    let is_named = |step: &&StepId| step.to_string() == from || step.canonical() == from;
    let mut named = steps.iter().filter(is_named);
    let step = match (named.next(), named.next()) {
        (Some(step), None) => step.clone(),
        (found, _) => {
            return Err(Error::NoSuchStep {
                run,
                step: from.to_owned(),
                several: found.is_some(),
            });
        }
    };
    // Whether what is inside it is forgotten too.
    let mut seen: HashMap<StepId, bool> = HashMap::new();
    let mut left = vec![(step, true)];
    while let Some((step, whole)) = left.pop() {
        if seen.get(&step).is_some_and(|known| *known || !whole) {
            continue;
        }
        left.extend(dependents(&step).into_iter().map(|step| (step, true)));
        left.extend(step.outer().map(|outer| (outer, false)));
        seen.insert(step, whole);
    }
    let is_inside = |step: &StepId| {
        let around = std::iter::successors(step.outer(), StepId::outer);
        around
            .into_iter()
            .any(|outer| seen.get(&outer) == Some(&true))
    };
    let starts_again = |step: &&StepId| seen.contains_key(*step) || is_inside(step);
    let mut forgotten: Vec<StepId> = steps.iter().filter(starts_again).cloned().collect();
    forgotten.sort();
    Ok(forgotten)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_forgotten_with_what_needs_it_and_what_is_inside_and_around_it() {
        let name = |name: &str| StepId::from_parts([name]).unwrap();
        let inside = |outer: &str, inner: &str| name(inner).inside(&name(outer));
        let steps = [
            name("fetch"),
            name("build"),
            inside("build", "compile"),
            inside("build", "link"),
            name("test"),
            inside("test", "unit"),
            name("lint"),
            name("a/b"),
            inside("a", "b"),
        ];
        let run = RunId::from_bytes([1; 16]);
        // fetch <- build <- test, and what was never run.
        let dependents = |step: &StepId| match step.to_string().as_str() {
            "fetch" => vec![name("build")],
            "build" => vec![name("test"), name("deploy")],
            _ => Vec::new(),
        };
        let check = |from: &str, expected: &[&str]| {
            let forgotten = forgotten(&steps, run, from, &dependents).unwrap();
            let mut shown: Vec<String> = forgotten.iter().map(ToString::to_string).collect();
            shown.sort();
            assert_eq!(shown, expected, "from {from}");
        };
        check("lint", &["lint"]);
        check("test", &["test", "test/unit"]);
        let all_built = ["build", "build/compile", "build/link", "test", "test/unit"];
        check("build", &all_built);
        // The other step inside `build` keeps its result; what needs `build` does not.
        check("build/link", &["build", "build/link", "test", "test/unit"]);
        check(
            "fetch",
            &[&all_built[..3], &["fetch"], &all_built[3..]].concat(),
        );
        check(r#"[["a"],"b"]"#, &["a/b"]);
        for (from, is_several) in [("nothing", false), ("a/b", true)] {
            let error = forgotten(&steps, run, from, &dependents).unwrap_err();
            assert!(
                matches!(error, Error::NoSuchStep { several, .. } if several == is_several),
                "{error}"
            );
        }
    }
}
