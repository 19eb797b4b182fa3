//! A workflow that makes sense: its spec, and the graph of its steps.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use logreel_core::event::Effect;
use logreel_core::{Digest, meaning};
use serde_json::Value;

use super::check::{self, Checked};
use super::scan;
use super::schema::Schema;
use super::spec::{Does, StepSpec, WorkflowSpec};
use crate::spec_file::{Places, Problems};

/// A checked workflow. Its steps are known by their place in the spec; cloning it is cheap.
#[derive(Clone)]
pub struct Workflow(Arc<Graph>);

struct Graph {
    spec: WorkflowSpec,
    json: Value,
    digest: Digest,
    index: HashMap<String, usize>,
    checked: Checked,
}

/// How deep a stored spec may be: readers of JSON stop at 128.
const DEPTH_MAX: usize = 100;

/// What an interruption of a step means, and whether its spec says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepEffect {
    /// The effect.
    pub effect: Effect,
    /// Whether it was declared; if not, it is the default of the step's kind.
    pub is_declared: bool,
}

impl Workflow {
    /// Checks a spec.
    pub fn from_spec(spec: WorkflowSpec) -> Result<Self, Problems> {
        Self::checked(spec, &Places::default())
    }

    /// Checks a spec whose keys have places in files.
    pub(super) fn checked(spec: WorkflowSpec, places: &Places) -> Result<Self, Problems> {
        let checked = check::check(&spec, places)?;
        let refuse = |error: serde_json::Error| places.problem(None, "", error.to_string());
        let json = serde_json::to_value(&spec).map_err(refuse)?;
        if is_deeper_than(DEPTH_MAX, &json) {
            let message = format!("nested deeper than {DEPTH_MAX}; JSON readers would refuse it");
            return Err(places.problem(None, "", message).into());
        }
        let canonical = meaning::canonical(&json).map_err(refuse)?;
        let index = spec.steps.iter().enumerate();
        let index = index.map(|(at, step)| (step.id.clone(), at)).collect();
        Ok(Self(Arc::new(Graph {
            digest: Digest::of(canonical.as_bytes()),
            json,
            index,
            checked,
            spec,
        })))
    }

    /// What was written.
    pub fn spec(&self) -> &WorkflowSpec {
        &self.0.spec
    }

    /// The spec with everything in it, to be stored with a run; [`Workflow::from_json`] reads it.
    pub fn json(&self) -> &Value {
        &self.0.json
    }

    /// The digest of what the spec means: the same for TOML, JSON and Rust.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.spec.name
    }

    /// The steps, in the order of the spec.
    pub fn steps(&self) -> &[StepSpec] {
        &self.0.spec.steps
    }

    /// One step.
    pub fn step(&self, index: usize) -> &StepSpec {
        &self.0.spec.steps[index]
    }

    /// The place of a step.
    pub fn index_of(&self, id: &str) -> Option<usize> {
        self.0.index.get(id).copied()
    }

    /// The steps that must have ended before this one starts, in the order it names them.
    pub fn needs(&self, index: usize) -> &[usize] {
        &self.0.checked.needs[index]
    }

    /// The steps that need this one, in the order of the spec.
    pub fn dependents(&self, index: usize) -> &[usize] {
        &self.0.checked.dependents[index]
    }

    /// All steps, each after those it needs.
    pub fn order(&self) -> &[usize] {
        &self.0.checked.order
    }

    /// The steps whose results the templates of this one look at.
    pub fn references(&self, index: usize) -> &[usize] {
        &self.0.checked.references[index]
    }

    /// The steps whose results `output` looks at.
    pub fn output_references(&self) -> &[usize] {
        &self.0.checked.output_references
    }

    /// The workflow that a `workflow` step starts.
    pub fn child(&self, index: usize) -> Option<&Workflow> {
        self.0.checked.children.get(&index)
    }

    /// The workflows that its steps start.
    pub fn children(&self) -> impl Iterator<Item = &Workflow> {
        self.0.checked.children.values()
    }

    /// Every agent that a step of it is, or of a workflow inside it, with that step.
    pub(crate) fn each_agent(&self, look: &mut dyn FnMut(&str, &serde_json::Value)) {
        for step in self.steps() {
            if let super::Does::Agent { agent } = &step.does {
                look(&step.id, agent);
            }
        }
        for child in self.children() {
            child.each_agent(look);
        }
    }

    /// Every stream that a step of it says, or of a workflow inside it, with that step.
    fn each_stream(&self, look: &mut dyn FnMut(&str, &str)) {
        for step in self.steps() {
            if let super::Does::Run(run) = &step.does
                && let Some(stream) = &run.stream
            {
                look(&step.id, stream);
            }
        }
        for child in self.children() {
            child.each_stream(look);
        }
    }

    /// Why a limit in dollars, its own or of a workflow inside it, cannot be kept.
    pub(crate) fn unpriced(&self, agents: &dyn crate::agents::Agents) -> Option<String> {
        let mut found = None;
        if self.budget().usd_micros.is_some() {
            self.each_agent(&mut |step, spec| {
                let unpriced = agents.unpriced(spec);
                let told = unpriced.map(|model| crate::registry::no_price(&model));
                found = found
                    .take()
                    .or(told.map(|why| format!("step `{step}`: {why}")));
            });
            self.each_stream(&mut |step, stream| {
                let unpriced = agents.unpriced_stream(stream);
                let told = unpriced.map(|what| crate::registry::no_price(&what));
                found = found
                    .take()
                    .or(told.map(|why| format!("step `{step}`: {why}")));
            });
        }
        let mut children = self.children();
        found.or_else(|| children.find_map(|child| child.unpriced(agents)))
    }

    /// What the input must fit.
    pub fn input_schema(&self) -> Option<&Schema> {
        self.0.checked.input_schema.as_ref()
    }

    /// What a step's output must fit.
    pub fn output_schema(&self, index: usize) -> Option<&Schema> {
        self.0.checked.output_schemas.get(&index)
    }

    /// What an interruption of a step means. Undeclared, a step that only waits reads, and the others are
    /// idempotent.
    pub fn effect(&self, index: usize) -> StepEffect {
        let step = self.step(index);
        let default = match step.does {
            Does::Wait(_) => Effect::Read,
            Does::Run(_) | Does::Agent { .. } | Does::Workflow { .. } | Does::Task { .. } => {
                Effect::Idempotent
            }
        };
        StepEffect {
            effect: step.effect.unwrap_or(default),
            is_declared: step.effect.is_some(),
        }
    }

    /// The registered Rust functions it calls, those of its children with them.
    pub fn tasks(&self) -> BTreeSet<String> {
        self.collect(&|step, names| {
            if let Does::Task { task } = &step.does {
                names.insert(task.clone());
            }
        })
    }

    /// The environment variables that must be set to drive it, those of its children with them: `${NAME}`
    /// in `env`, and `env_from`. What an agent needs is the agent's to say.
    pub fn variables(&self) -> BTreeSet<String> {
        self.collect(&|step, names| {
            names.extend(step.env_from.iter().cloned());
            for value in step.env.values() {
                let found = scan::variables(value).unwrap_or_default();
                names.extend(found.into_iter().map(|(_, name)| name.to_owned()));
            }
        })
    }

    /// Whether a command of it, not of a child, runs in the run's folder or below it.
    pub(crate) fn needs_folder(&self) -> bool {
        let is_elsewhere = |dir: &String| Path::new(dir).is_absolute();
        self.steps().iter().any(|step| {
            matches!(step.does, Does::Run(_)) && !step.dir.as_ref().is_some_and(is_elsewhere)
        })
    }

    fn collect(&self, of_step: &dyn Fn(&StepSpec, &mut BTreeSet<String>)) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut open = vec![self];
        while let Some(workflow) = open.pop() {
            for step in workflow.steps() {
                of_step(step, &mut names);
            }
            open.extend(workflow.0.checked.children.values());
        }
        names
    }
}

impl PartialEq for Workflow {
    fn eq(&self, other: &Self) -> bool {
        self.spec() == other.spec()
    }
}

impl std::fmt::Debug for Workflow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.spec().fmt(f)
    }
}

fn is_deeper_than(depth: usize, value: &Value) -> bool {
    let deeper = |value| depth == 0 || is_deeper_than(depth - 1, value);
    match value {
        Value::Array(items) => items.iter().any(deeper),
        Value::Object(fields) => fields.values().any(deeper),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
