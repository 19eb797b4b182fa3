//! Running one step, or one item of a mapped one: resolve what it works on, then do what its kind
//! says through the same durable steps, waits and children that a Rust task uses.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{Effect, StepFailed, StepSkipped};
use logreel_core::meaning::{digest_of, effect_key};
use logreel_core::state::Doing;
use logreel_core::{Digest, Json, StepId, Timestamp};
use serde::Serialize;
use serde_json::Value;

use super::command::{self, CommandSpec};
use super::run::{Ended, Running};
use super::spec::{Does, OnDeny, OnTimeout, RunSpec, StepSpec, WaitSpec};
use super::template::{self, Scope};
use crate::child::{self, Child};
use crate::error::TaskError;
use crate::live::{LiveLine, Stream};
use crate::program::Program;
use crate::step::Retry;
use crate::stream_step::{StreamInput, StreamSpec};
use crate::write_step::Reconciled;

/// How long a command that is stopped may take to be gone.
const STOPPING: Duration = Duration::from_secs(5);

/// What a step works on, resolved.
struct Prepared {
    input: Option<Value>,
    env: BTreeMap<String, String>,
    /// The same with `${VAR}` as it is written.
    shown: BTreeMap<String, String>,
    /// The digest of the step's definition and of its inputs.
    bound: Digest,
}

/// What a result is bound to: the same id with another definition or input is another step.
#[derive(Serialize)]
struct Bound<'a> {
    definition: Digest,
    /// With `${VAR}` as it is written: the values are nobody's business.
    env: &'a BTreeMap<String, String>,
    input: Option<&'a Value>,
}

/// What a step does, whatever it works on.
#[derive(Serialize)]
struct Definition<'a> {
    dir: Option<&'a str>,
    does: &'a Does,
    output_schema: Option<&'a Value>,
}

impl Running<'_> {
    /// Runs a step, or one item of it, to its end, which the log then has.
    pub(super) async fn one(
        &self,
        step: usize,
        id: &StepId,
        scope: &Scope,
    ) -> Result<Ended, TaskError> {
        let spec = self.workflow.step(step);
        let prepared = match self.prepare(step, scope) {
            Ok(prepared) => prepared,
            Err(error) => return self.fail_early(id, error).await,
        };
        if let Some(stage) = &self.ctx.0.engine.stage {
            stage.note(id, || works_on(spec, &prepared));
        }
        let ended = match &spec.does {
            Does::Run(run) => match &run.stream {
                Some(stream) => self.streamed(step, id, run, stream, &prepared).await,
                None => self.command(step, id, run, &prepared).await,
            },
            Does::Task { task } => self.task(step, id, task, &prepared).await,
            Does::Workflow { .. } | Does::Agent { .. } => self.child(step, id, &prepared).await,
            Does::Wait(wait) => self.wait(step, id, wait, scope).await,
        };
        let ended = ended.map(|()| Ended::Finished);
        ended.map_err(|error| error.in_step(id))
    }

    /// Records that the step does not run.
    pub(super) async fn skip(&self, id: &StepId) -> Result<Ended, TaskError> {
        let skipped = StepSkipped {
            reason: "`when` is false".to_owned(),
            step: id.clone(),
        };
        self.ctx.0.record(skipped.into(), Vec::new()).await?;
        Ok(Ended::Skipped)
    }

    /// Records a failure that came before or after the step's own work, unless the log has it.
    pub(super) async fn fail_early<T>(
        &self,
        id: &StepId,
        error: TaskError,
    ) -> Result<T, TaskError> {
        let error = error.in_step(id);
        if self.known_failure(id).is_none() {
            let failed = StepFailed {
                attempt: 1,
                error: error.cause(),
                started_at: Some(self.ctx.0.journal.env.now()),
                step: id.clone(),
            };
            self.ctx.0.record(failed.into(), Vec::new()).await?;
        }
        Err(error)
    }

    fn known_failure(&self, id: &StepId) -> Option<TaskError> {
        self.ctx
            .0
            .journal
            .with_state(|state| match &state.open_step(id)?.doing {
                Doing::Failed(cause) => Some(TaskError::from_cause(cause)),
                _ => None,
            })
    }

    fn prepare(&self, step: usize, scope: &Scope) -> Result<Prepared, TaskError> {
        let spec = self.workflow.step(step);
        let input = match &spec.input {
            Some(input) => Some(template::render("input", input, scope)?),
            None => None,
        };
        let (mut env, mut shown) = (BTreeMap::new(), BTreeMap::new());
        for (name, text) in &spec.env {
            let key = format!("env.{name}");
            let render = |variables| template::render_env(&key, text, scope, variables);
            env.insert(name.clone(), render(self.secrets.values())?);
            shown.insert(name.clone(), render(self.secrets.names())?);
        }
        let bound = digest_of(&Bound {
            definition: self.definition(step)?,
            env: &shown,
            input: input.as_ref(),
        })?;
        Ok(Prepared {
            input,
            env,
            shown,
            bound,
        })
    }

    /// The digest of what the step does, made once: a child's whole spec is in it, and each item of a
    /// map asks for it.
    fn definition(&self, step: usize) -> Result<Digest, TaskError> {
        let known = &self.definitions[step];
        if let Some(digest) = known.get() {
            return Ok(*digest);
        }
        let spec = self.workflow.step(step);
        let digest = digest_of(&Definition {
            dir: spec.dir.as_deref(),
            does: &spec.does,
            output_schema: spec.output_schema.as_ref(),
        })?;
        Ok(*known.get_or_init(|| digest))
    }

    /// The step's folder.
    fn dir(&self, step: usize) -> PathBuf {
        let journal = &self.ctx.0.journal;
        let recorded = || journal.with_state(|state| state.row.facts.dir.clone());
        let base = match &self.ctx.0.engine.dir {
            Some(dir) => dir.clone(),
            None => recorded().map_or_else(|| PathBuf::from("."), PathBuf::from),
        };
        match &self.workflow.step(step).dir {
            Some(dir) => base.join(dir),
            None => base,
        }
    }

    async fn command(
        &self,
        step: usize,
        id: &StepId,
        run: &RunSpec,
        prepared: &Prepared,
    ) -> Result<(), TaskError> {
        let _slot = self.slot().await;
        let spec = self.workflow.step(step);
        let effect = self.workflow.effect(step).effect;
        if effect != Effect::Write {
            let mut durable = self.ctx.step(id.clone()).bound_to(prepared.bound);
            durable = durable.retry(retry(spec));
            if effect == Effect::Read {
                durable = durable.reads();
            }
            let work = || self.execute(step, id, &run.run, prepared, false);
            return durable.run(work).await.map(|_: Json| ());
        }
        let mut durable = self.ctx.write_step(id.clone()).bound_to(prepared.bound);
        durable = durable.retry(retry(spec));
        if let Some(timeout) = spec.timeout {
            // The command keeps its own time; this is for whoever takes over and must know how long
            // it may still be at work.
            durable = durable.timeout(timeout + STOPPING);
        }
        let work = |_key| self.execute(step, id, &run.run, prepared, true);
        match &run.reconcile {
            None => durable.run(work).await.map(|_: Json| ()),
            Some(reconcile) => {
                let ask = |_key| self.reconcile(step, reconcile, prepared);
                durable.reconcile(ask).run(work).await.map(|_: Json| ())
            }
        }
    }

    /// Runs the command of a step; inside the step, which has a key by then.
    async fn execute(
        &self,
        step: usize,
        id: &StepId,
        run: &str,
        prepared: &Prepared,
        write: bool,
    ) -> Result<Json, TaskError> {
        let command = self.command_spec(step, run, prepared, write);
        let outcome = command::run(self.ctx, command, self.lines_of(id)).await;
        self.printed(step, outcome)
    }

    async fn reconcile(
        &self,
        step: usize,
        run: &str,
        prepared: &Prepared,
    ) -> Result<Reconciled<Json>, TaskError> {
        let command = self.command_spec(step, run, prepared, false);
        Ok(match command::reconcile(self.ctx, command).await? {
            Reconciled::Done(value) => Reconciled::Done(self.printed(step, Ok(value))?),
            Reconciled::NotDone => Reconciled::NotDone,
            Reconciled::Unknown => Reconciled::Unknown,
        })
    }

    fn command_spec(
        &self,
        step: usize,
        run: &str,
        prepared: &Prepared,
        write: bool,
    ) -> CommandSpec {
        let input = match &prepared.input {
            None => Vec::new(),
            Some(input) => template::as_text(input.clone()).into_bytes(),
        };
        CommandSpec {
            run: run.to_owned(),
            input,
            env: prepared.env.clone().into_iter().collect(),
            dir: self.dir(step),
            write,
            output_bytes_max: self.ctx.0.engine.payload_bytes_max,
            timeout: self.workflow.step(step).timeout,
            secrets: self.secrets.clone(),
        }
    }

    /// Tells watchers what the command prints.
    fn lines_of(&self, id: &StepId) -> impl Fn(Stream, &str) + Send + Sync + 'static {
        let (engine, run, step) = (
            Arc::clone(&self.ctx.0.engine),
            self.ctx.run_id(),
            id.clone(),
        );
        let secrets = self.secrets.clone();
        move |stream, text| {
            engine.live.tell(LiveLine {
                run,
                step: step.clone(),
                stream,
                text: secrets.redact_printed(text.to_owned()).into(),
            });
        }
    }

    /// What a step's command printed, without secrets, if it fits its schema.
    fn printed(&self, step: usize, outcome: Result<Json, TaskError>) -> Result<Json, TaskError> {
        let printed = outcome.map(|output| self.secrets.redact_escapes(output));
        self.fits(step, printed)
    }

    /// What a step gave, without secrets, if it fits its schema.
    fn checked(&self, step: usize, outcome: Result<Json, TaskError>) -> Result<Json, TaskError> {
        let output = outcome.map(|output| self.secrets.redact_output(output));
        self.fits(step, output)
    }

    fn fits(&self, step: usize, outcome: Result<Json, TaskError>) -> Result<Json, TaskError> {
        let output =
            outcome.map_err(|error| error.map_message(|it| self.secrets.redact_text(it)))?;
        if let Some(schema) = self.workflow.output_schema(step) {
            schema.check(&output.to_value()).map_err(|misses| {
                let message = format!("the output misses its schema: {misses}");
                let error = TaskError::of_kind("schema", message);
                // A write has happened, whatever it printed.
                match self.workflow.effect(step).effect {
                    Effect::Write => error.permanent(),
                    Effect::Read | Effect::Idempotent => error,
                }
            })?;
        }
        Ok(output)
    }

    /// A registered Rust function, as a step of this run: its own steps are inside it.
    async fn task(
        &self,
        step: usize,
        id: &StepId,
        name: &str,
        prepared: &Prepared,
    ) -> Result<(), TaskError> {
        let _slot = self.slot().await;
        let spec = self.workflow.step(step);
        let engine = &self.ctx.0.engine;
        let task = engine.registry.task(name);
        let unknown = || {
            let message = format!("no task `{name}` is registered in this process");
            TaskError::of_kind("task", message).permanent()
        };
        // A replay gives what it came to, and needs no code of it.
        if task.is_none() && engine.stage.is_none() {
            return Err(unknown());
        }
        let input = Json::from(prepared.input.clone().unwrap_or(Value::Null));
        let call = || {
            let called = task.as_ref();
            let called = called.map(|task| task.call(self.ctx.clone(), input.clone()));
            async move {
                match called {
                    Some(called) => self.checked(step, called.await),
                    None => Err(unknown()),
                }
            }
        };
        if spec.effect == Some(Effect::Write) {
            let mut durable = self.ctx.write_step(id.clone()).bound_to(prepared.bound);
            durable = durable.retry(retry(spec));
            if let Some(timeout) = spec.timeout {
                durable = durable.timeout(timeout);
            }
            return durable.run(|_key| call()).await.map(|_: Json| ());
        }
        let mut durable = self.ctx.step(id.clone()).bound_to(prepared.bound);
        durable = durable.retry(retry(spec));
        if spec.effect == Some(Effect::Read) {
            durable = durable.reads();
        }
        if let Some(timeout) = spec.timeout {
            durable = durable.timeout(timeout);
        }
        durable.run(call).await.map(|_: Json| ())
    }

    /// A command whose output is understood, as a child run.
    async fn streamed(
        &self,
        step: usize,
        id: &StepId,
        run: &RunSpec,
        stream: &str,
        prepared: &Prepared,
    ) -> Result<(), TaskError> {
        let registry = &self.ctx.0.engine.registry;
        let spec = StreamSpec {
            run: run.run.clone(),
            stream: stream.to_owned(),
            write: self.workflow.effect(step).effect == Effect::Write,
        };
        let program = registry.stream(&spec).ok_or_else(|| {
            let message = "this program does not understand streams";
            TaskError::of_kind("stream", message).permanent()
        })?;
        let key = effect_key(&self.ctx.run_id(), &id.canonical(), Some(&prepared.bound));
        let input = StreamInput {
            dir: self.workflow.step(step).dir.clone(),
            env: prepared.shown.clone(),
            input: prepared.input.clone(),
            key: key.to_string(),
            step: id.to_string(),
        };
        self.as_child(step, id, &program, Json::of(&input)?, prepared.bound)
            .await
    }

    /// Another workflow or an agent, as a child run.
    async fn child(&self, step: usize, id: &StepId, prepared: &Prepared) -> Result<(), TaskError> {
        let (engine, spec) = (&self.ctx.0.engine, self.workflow.step(step));
        let program = match (&spec.does, self.workflow.child(step)) {
            (Does::Agent { agent }, _) => engine.registry.add_agent(agent)?,
            (_, Some(workflow)) => engine.registry.add_workflow(workflow),
            (_, None) => {
                let message = format!("the workflow of `{id}` is not in the spec");
                return Err(TaskError::of_kind("bug", message).permanent());
            }
        };
        let input = Json::from(prepared.input.clone().unwrap_or(Value::Null));
        self.as_child(step, id, &program, input, prepared.bound)
            .await
    }

    async fn as_child(
        &self,
        step: usize,
        id: &StepId,
        program: &Arc<Program>,
        input: Json,
        bound: Digest,
    ) -> Result<(), TaskError> {
        let spec = self.workflow.step(step);
        let asked = self.ctx.0.ask(Ok(id.clone()))?;
        let check = |output: &Value| match self.workflow.output_schema(step) {
            Some(schema) => schema.check(output).map_err(|misses| misses.to_string()),
            None => Ok(()),
        };
        let child = Child {
            program,
            input,
            input_digest: Some(bound),
            retry: retry(spec),
            timeout: spec.timeout,
            check: &check,
        };
        tokio::select! {
            output = child::run(self.ctx, &asked, child) => output.map(|_| ()),
            () = self.until_failing() => {
                child::cancel_open(self.ctx, &asked, "another step of its parent failed").await?;
                Err(TaskError::abandoned())
            }
        }
    }

    async fn wait(
        &self,
        step: usize,
        id: &StepId,
        wait: &WaitSpec,
        scope: &Scope,
    ) -> Result<(), TaskError> {
        if let Some(error) = self.known_failure(id) {
            return Err(error);
        }
        let spec = self.workflow.step(step);
        let waited = async {
            match wait {
                WaitSpec::Approval {
                    prompt,
                    on_timeout,
                    on_deny,
                } => {
                    let prompt = match prompt {
                        Some(prompt) => {
                            let prompt = template::render_text("prompt", prompt, scope)?;
                            self.secrets.redact_text(prompt)
                        }
                        None => format!("Approve `{id}`?"),
                    };
                    self.approval(spec, id, prompt, *on_timeout, *on_deny).await
                }
                WaitSpec::Signal { name } => {
                    let mut signal = self.ctx.signal(name.clone()).id(id.clone());
                    if let Some(timeout) = spec.timeout {
                        signal = signal.deadline(timeout);
                    }
                    let value = signal.await?;
                    self.checked(step, Ok(value)).map(|_| ())
                }
                WaitSpec::Timer {
                    lasts: Some(lasts), ..
                } => self.ctx.sleep(id.clone(), *lasts).await,
                WaitSpec::Timer { until, .. } => {
                    let until = until.as_deref().unwrap_or_default();
                    let until = template::render_text("until", until, scope)?;
                    let until: Timestamp = until.trim().parse().map_err(|_| {
                        let message = format!("`until` is no time (RFC 3339): {until:?}");
                        TaskError::of_kind("template", message).permanent()
                    })?;
                    crate::wait::sleep_until(self.ctx, Ok(id.clone()), until).await
                }
            }
        };
        let outcome = tokio::select! {
            outcome = waited => outcome,
            () = self.until_failing() => return Err(TaskError::abandoned()),
        };
        match outcome {
            Err(error) if !error.is_cancelled() => self.fail_early(id, error).await,
            other => other,
        }
    }

    async fn approval(
        &self,
        spec: &StepSpec,
        id: &StepId,
        prompt: String,
        on_timeout: OnTimeout,
        on_deny: OnDeny,
    ) -> Result<(), TaskError> {
        let mut wait = self.ctx.approval(prompt).id(id.clone());
        if let Some(timeout) = spec.timeout {
            wait = wait.deadline(timeout);
        }
        wait = match on_timeout {
            OnTimeout::Fail => wait,
            OnTimeout::Approve => wait.else_approve(),
            OnTimeout::Deny => wait.else_deny(),
        };
        let answer = wait.into_future().await?;
        if answer.approved || on_deny == OnDeny::Continue {
            return Ok(());
        }
        let by = match answer.by {
            Some(by) => format!("denied by {by}"),
            None if answer.in_time => "denied".to_owned(),
            None => "denied: nobody answered in time".to_owned(),
        };
        let why = answer.reason.map(|why| format!(": {why}"));
        let message = by + &why.unwrap_or_default();
        Err(TaskError::of_kind("denied", message).permanent())
    }

    async fn slot(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.slots.acquire().await.ok()
    }

    async fn until_failing(&self) {
        let mut failing = self.failing.subscribe();
        if failing.wait_for(|failing| *failing).await.is_err() {
            std::future::pending().await
        }
    }
}

/// What a step does and works on, for whoever wants to know what changed of it.
fn works_on(spec: &StepSpec, prepared: &Prepared) -> Value {
    serde_json::json!({
        "dir": spec.dir,
        "does": spec.does,
        "env": prepared.env,
        "input": prepared.input,
        "output_schema": spec.output_schema,
    })
}

fn retry(spec: &StepSpec) -> Retry {
    match &spec.retry {
        None => Retry::attempts(1),
        Some(retry) => match retry.backoff {
            None => Retry::attempts(retry.attempts),
            Some((first, longest)) => Retry::attempts(retry.attempts).backoff(first, longest),
        },
    }
}
