//! What this process can drive: tasks by name, workflows by digest or all of them, agents.
//!
//! A task's code is here or it is not. A workflow or an agent is in the log of its run, so any process
//! that was told to drive them can, when it has what they ask for.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use logreel_core::event::RunKind;
use logreel_core::{Body, Digest, Json, Payload, RunId, Seq};
use logreel_store::{Claimable, Entry, RunStore};
use serde_json::Value;

use crate::Error;
use crate::agents::{Agents, Named};
use crate::engine::{Engine, Inner};
use crate::program::Program;
use crate::record::Recordings;
use crate::start::Start;
use crate::stream_step::{AGENTS, StreamSpec};
use crate::value;
use crate::workflow::{Does, StepSpec, Workflow};

/// A task or workflow that is registered here; made by [`Engine::registered`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Its name.
    pub name: Arc<str>,
    /// What it is.
    pub kind: RunKind,
    /// The digest of its spec.
    pub spec_digest: Digest,
}

/// Programs by how runs name them.
#[derive(Default)]
pub(crate) struct Registry {
    any_workflow: bool,
    agents: OnceLock<Arc<dyn Agents>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    tasks: HashMap<Arc<str>, Arc<Program>>,
    workflows: HashMap<Digest, Arc<Program>>,
    agents: HashMap<Digest, Arc<Program>>,
    recordings: Recordings,
}

impl Registry {
    pub(crate) fn new(any_workflow: bool, agents: Option<Arc<dyn Agents>>) -> Self {
        Self {
            any_workflow,
            agents: agents.map_or_else(OnceLock::new, OnceLock::from),
            ..Self::default()
        }
    }

    /// One that drives the same things.
    pub(crate) fn for_replay(&self) -> Self {
        let known = self.known();
        let known = Known {
            tasks: known.tasks.clone(),
            workflows: known.workflows.clone(),
            agents: known.agents.clone(),
            // What a program did is not decided again.
            recordings: Recordings::default(),
        };
        Self {
            any_workflow: true,
            agents: self.agents.clone(),
            known: Mutex::new(known),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, program: &Arc<Program>) {
        let program = Arc::clone(program);
        let mut known = self.known();
        match program.kind {
            RunKind::Workflow => known.workflows.insert(program.spec_digest, program),
            RunKind::Agent => known.agents.insert(program.spec_digest, program),
            RunKind::Record => known.recordings.insert(program.spec_digest, program),
            RunKind::Task | RunKind::External => {
                known.tasks.insert(Arc::clone(&program.name), program)
            }
        };
    }

    /// A workflow, and those that run as children of it.
    pub(crate) fn add_workflow(&self, workflow: &Workflow) -> Arc<Program> {
        let program = Arc::new(Program::of_workflow(workflow));
        self.add(&program);
        for child in workflow.children() {
            self.add_workflow(child);
        }
        program
    }

    /// Whoever drives agents; the first one stays.
    pub(crate) fn set_agents(&self, agents: Arc<dyn Agents>) -> bool {
        self.agents.set(agents).is_ok()
    }

    /// Whoever drives agents here.
    pub(crate) fn agents(&self) -> Option<&dyn Agents> {
        self.agents.get().map(|agents| &**agents)
    }

    /// An agent by its spec.
    pub(crate) fn add_agent(&self, spec: &Value) -> Result<Arc<Program>, Error> {
        let agents = self.agents.get().ok_or_else(|| Error::Lacks {
            name: spec["name"].as_str().unwrap_or("agent").to_owned(),
            what: "this program drives no agents".to_owned(),
        })?;
        let program = Arc::new(Program::of_agent(agents, spec));
        self.add(&program);
        Ok(program)
    }

    fn agent(&self, digest: &Digest) -> Option<Arc<Program>> {
        self.known().agents.get(digest).cloned()
    }

    pub(crate) fn task(&self, name: &str) -> Option<Arc<Program>> {
        self.known().tasks.get(name).cloned()
    }

    /// Tasks and workflows, by name.
    fn startable(&self) -> Vec<Arc<Program>> {
        let known = self.known();
        let programs = known.tasks.values().chain(known.workflows.values());
        let mut programs: Vec<_> = programs.cloned().collect();
        programs.sort_by(|a, b| (&a.name, a.spec_digest.0).cmp(&(&b.name, b.spec_digest.0)));
        programs
    }

    /// The command of a step whose output is understood; `None` when nobody here does.
    pub(crate) fn stream(&self, spec: &StreamSpec) -> Option<Arc<Program>> {
        let program = Arc::new(Program::of_stream(self.agents.get()?, spec));
        self.add(&program);
        Some(program)
    }

    pub(crate) fn recording(&self, digest: &Digest) -> Option<Arc<Program>> {
        self.known().recordings.get(digest).cloned()
    }

    fn workflow(&self, digest: &Digest) -> Option<Arc<Program>> {
        self.known().workflows.get(digest).cloned()
    }

    /// What a worker of this process may claim.
    pub(crate) fn claimable(&self) -> Vec<Claimable> {
        let known = self.known();
        let digests = |programs: &mut dyn Iterator<Item = &Arc<Program>>| {
            Some(programs.map(|program| program.spec_digest).collect())
        };
        let workflows = match self.any_workflow {
            true => None,
            false => digests(&mut known.workflows.values()),
        };
        [
            Claimable {
                kind: RunKind::Task,
                agents: None,
                specs: digests(&mut known.tasks.values()),
            },
            Claimable {
                kind: RunKind::Workflow,
                agents: None,
                specs: workflows,
            },
        ]
        .into_iter()
        .chain(self.agents.get().map(|_| Claimable {
            kind: RunKind::Agent,
            agents: None,
            specs: None,
        }))
        .chain(self.agents.get().map(|_| Claimable {
            kind: RunKind::Record,
            agents: Some(AGENTS.map(Arc::from).to_vec()),
            specs: None,
        }))
        .collect()
    }
}

impl Inner {
    /// The program a run is driven with; an error that says what this process lacks.
    pub(crate) async fn program_of(&self, entry: &Entry) -> Result<Arc<Program>, Error> {
        let facts = &entry.row.facts;
        let program = match facts.kind {
            RunKind::Task => self.registry.task(&facts.agent),
            RunKind::Workflow => match self.registry.workflow(&facts.spec_digest) {
                Some(program) => Some(program),
                None if self.registry.any_workflow => {
                    let workflow = self.stored_workflow(entry).await?;
                    Some(self.registry.add_workflow(&workflow))
                }
                None => None,
            },
            RunKind::Agent => match self.registry.agent(&facts.spec_digest) {
                Some(program) => Some(program),
                None => {
                    let spec = self.stored_spec(entry).await?;
                    Some(self.registry.add_agent(&spec.to_value())?)
                }
            },
            RunKind::Record => match self.registry.recording(&facts.spec_digest) {
                Some(program) => Some(program),
                None => Some(Arc::new(self.recorded_program(entry).await?)),
            },
            RunKind::External => None,
        };
        let name = || facts.agent.to_string();
        let program = program.ok_or_else(|| Error::UnknownTask { name: name() })?;
        let lacks = self.lacks(&program);
        match lacks.or_else(|| self.lacks_folder(entry, &program)) {
            None => Ok(program),
            Some(what) => Err(Error::Lacks { name: name(), what }),
        }
    }

    /// The folder that its commands run in, when that is not here: whoever has it drives the run.
    fn lacks_folder(&self, entry: &Entry, program: &Program) -> Option<String> {
        let workflow = program.workflow.as_ref()?;
        if self.stage.is_some() || !workflow.needs_folder() {
            return None;
        }
        let recorded = || entry.row.facts.dir.as_ref().map(PathBuf::from);
        let dir = self.dir.clone().or_else(recorded)?;
        let missing = || {
            let dir = dir.display();
            format!(
                "the working folder {dir} does not exist here; `--dir` (`Builder::dir`) names another"
            )
        };
        (!dir.is_dir()).then(missing)
    }

    /// The command of a workflow's step, or what ends a run that lost its recorder.
    async fn recorded_program(&self, entry: &Entry) -> Result<Program, Error> {
        if crate::record::is_with_recorder(&entry.row.facts) {
            return Ok(Program::of_lost(entry));
        }
        let spec: Option<StreamSpec> = self.stored_spec(entry).await?.decode().ok();
        Ok(match (spec, self.registry.agents.get()) {
            (Some(spec), Some(agents)) => Program::of_stream(agents, &spec),
            _ => Program::of_lost(entry),
        })
    }

    /// An agent by its spec, when this process has what it asks for.
    pub(crate) fn agent_to_drive(&self, spec: &Value) -> Result<Arc<Program>, Error> {
        let program = self.registry.add_agent(spec)?;
        match self.lacks(&program) {
            None => Ok(program),
            Some(what) => Err(Error::Lacks {
                name: program.name.to_string(),
                what,
            }),
        }
    }

    /// Refuses an input that is not what a run's program takes: of its workflow, of its agent under this spec, or of
    /// the agent that it was started with.
    pub(crate) async fn admit(
        &self,
        entry: &Entry,
        program: Option<&Program>,
        agent: Option<&Value>,
        input: &Json,
    ) -> Result<(), Error> {
        if let Some(workflow) = program.and_then(|program| program.workflow.as_ref()) {
            return workflow.admit(input);
        }
        let Some(agents) = self.registry.agents.get() else {
            return Ok(());
        };
        if entry.row.facts.kind != RunKind::Agent {
            return Ok(());
        }
        let spec = match (agent, program) {
            (Some(agent), _) => agent.clone(),
            (None, Some(program)) => program.spec.to_value(),
            (None, None) => self.stored_spec(entry).await?.to_value(),
        };
        match agents.misfit(&spec, &input.to_value()) {
            None => Ok(()),
            Some(misfit) => Err(Error::Input {
                name: entry.row.facts.agent.to_string(),
                misfit,
            }),
        }
    }

    /// What the program asks for and this process does not have.
    pub(crate) fn lacks(&self, program: &Program) -> Option<String> {
        // A replay has no use for what it asks for.
        if self.stage.is_some() {
            return None;
        }
        match (&program.workflow, program.kind) {
            (Some(workflow), _) => {
                let unpriced = || workflow.unpriced(self.registry.agents()?);
                self.workflow_lacks(workflow).or_else(unpriced)
            }
            (None, RunKind::Agent) => {
                let spec = program.spec.to_value();
                let is_limited = program.budget.usd_micros.is_some();
                let agents = self.registry.agents().filter(|_| is_limited);
                let unpriced = || agents.and_then(|agents| agents.unpriced(&spec));
                let lacks = self.agent_lacks(&spec);
                lacks.or_else(|| unpriced().map(|model| no_price(&model)))
            }
            (None, _) => None,
        }
    }

    /// What the program names, for the record.
    pub(crate) fn named_in(&self, program: &Program) -> Named {
        let mut named = Named::default();
        let Some(agents) = self.registry.agents() else {
            return named;
        };
        let mut add = |spec: &Value| {
            let more = agents.named(spec);
            for (all, more) in [
                (&mut named.models, more.models),
                (&mut named.tools, more.tools),
            ] {
                let new = more.into_iter().filter(|it| !all.contains(it));
                let new: Vec<String> = new.collect();
                all.extend(new);
            }
        };
        match (&program.workflow, program.kind) {
            (Some(workflow), _) => workflow.each_agent(&mut |_, spec| add(spec)),
            (None, RunKind::Agent) => add(&program.spec.to_value()),
            (None, _) => {}
        }
        named
    }

    fn agent_lacks(&self, spec: &Value) -> Option<String> {
        match self.registry.agents.get() {
            Some(agents) => agents.lacks(spec),
            None => Some("this program drives no agents".to_owned()),
        }
    }

    fn workflow_lacks(&self, workflow: &Workflow) -> Option<String> {
        let variables = workflow.variables();
        let is_unset = |name: &&String| std::env::var_os(name).is_none();
        if let Some(name) = variables.iter().find(is_unset) {
            return Some(format!("the variable {name} is not set"));
        }
        let tasks = workflow.tasks();
        let unknown = tasks.iter().find(|name| self.registry.task(name).is_none());
        if let Some(name) = unknown {
            return Some(format!("no task `{name}` is registered"));
        }
        let agents = workflow.steps().iter().filter_map(|step| match &step.does {
            Does::Agent { agent } => Some((&step.id, agent)),
            _ => None,
        });
        for (step, agent) in agents {
            if let Some(what) = self.agent_lacks(agent) {
                return Some(format!("step `{step}`: {what}"));
            }
        }
        let children = workflow.children();
        let misread = self.misread_stream(workflow);
        misread.or_else(|| children.into_iter().find_map(|it| self.workflow_lacks(it)))
    }

    /// A stream that nobody here understands.
    fn misread_stream(&self, workflow: &Workflow) -> Option<String> {
        let understands = |stream: &str| {
            let agents = self.registry.agents.get();
            agents.is_some_and(|agents| agents.stream(stream, &[]).is_some())
        };
        let of_step = |step: &StepSpec| match &step.does {
            Does::Run(run) => {
                let stream = run.stream.as_deref()?;
                let name = stream.lines().next().unwrap_or_default();
                let step = &step.id;
                (!understands(stream))
                    .then(|| format!("step `{step}`: nobody here understands `stream` {name:?}"))
            }
            Does::Agent { .. } | Does::Workflow { .. } | Does::Task { .. } | Does::Wait(_) => None,
        };
        workflow.steps().iter().find_map(of_step)
    }

    /// The workflow a run was started with, or goes on with since someone accepted another.
    pub(crate) async fn stored_workflow(&self, entry: &Entry) -> Result<Workflow, Error> {
        let (run, spec) = (entry.row.run, self.stored_spec(entry).await?);
        Workflow::from_json(&spec.to_value()).map_err(|problems| {
            let what =
                format!("the spec stored with {run} is not one this build reads: {problems}");
            logreel_store::Error::corrupt(what).into()
        })
    }
}

impl Engine {
    /// The tasks and workflows that are registered here, by name.
    pub fn registered(&self) -> Vec<Registered> {
        let programs = self.0.registry.startable().into_iter();
        let registered = programs.map(|program| Registered {
            name: Arc::clone(&program.name),
            kind: program.kind,
            spec_digest: program.spec_digest,
        });
        registered.collect()
    }

    /// Starts a run of the task or workflow that is registered under this name.
    pub fn start(&self, name: &str, input: &Json) -> Result<Start<Json>, Error> {
        let mut programs = self.0.registry.startable().into_iter();
        let program = programs.find(|program| *program.name == *name);
        let unknown = || Error::UnknownTask {
            name: name.to_owned(),
        };
        let program = program.ok_or_else(unknown)?;
        Ok(Start::new(Arc::clone(&self.0), program, Ok(input.clone())))
    }

    /// The spec a run was started with, or goes on with since someone accepted another.
    pub async fn stored_spec(&self, run: &RunId) -> Result<Json, Error> {
        let entry = self.0.store.entry(run).await?;
        self.0.stored_spec(&entry).await
    }
}

impl Inner {
    pub(crate) async fn stored_spec(&self, entry: &Entry) -> Result<Json, Error> {
        stored_spec(&*self.store, entry.row.run, entry.row.facts.spec_digest).await
    }
}

pub(crate) fn no_price(model: &str) -> String {
    format!("{model} has no known price, so a limit in dollars cannot be kept; set one in `prices`")
}

/// The spec with this digest, from the run's log.
async fn stored_spec(store: &dyn RunStore, run: RunId, digest: Digest) -> Result<Json, Error> {
    let mut from = Seq::FIRST;
    // Nearly always in event 1.
    let mut limit = 1;
    loop {
        let page = store.read(&run, from, limit).await?;
        for record in &page.items {
            let event = record.decode().map_err(logreel_store::Error::from)?;
            if let Some(spec) = spec_in(&event.body, digest) {
                return value::resolve(store, spec).await;
            }
        }
        if !page.has_more {
            let what = format!("the log of {run} does not hold the spec {digest}");
            return Err(logreel_store::Error::corrupt(what).into());
        }
        from = page.next;
        limit = 1000;
    }
}

fn spec_in(body: &Body, digest: Digest) -> Option<&Payload> {
    match body {
        Body::RunStarted(started) if started.spec_digest == digest => Some(&started.spec),
        Body::SpecChanged(changed) if changed.spec_digest == digest => Some(&changed.spec),
        _ => None,
    }
}
