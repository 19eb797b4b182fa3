//! Workflows written in Rust: the same spec, checked the same way.

use std::ops::Range;
use std::time::Duration;

use logreel_core::event::Effect;
use serde_json::Value;

use super::graph::Workflow;
use super::spec::{
    BudgetSpec, Does, Limit, OnDeny, OnError, OnTimeout, RetrySpec, RunSpec, StepSpec, WaitSpec,
    WorkflowSpec,
};
use crate::spec_file::{Places, Problem, Problems};

impl Workflow {
    /// Begins a workflow.
    ///
    /// ```
    /// use std::time::Duration;
    /// use logreel::workflow::{Effect, Step, Workflow};
    ///
    /// let audit = Workflow::builder("audit")
    ///     .step(Step::run("files", "git ls-files").effect(Effect::Read))
    ///     .step(
    ///         Step::run("report", "./report.sh")
    ///             .needs(["files"])
    ///             .input("{{ steps.files.output }}")
    ///             .retry(3, Duration::from_secs(1)..Duration::from_secs(30)),
    ///     )
    ///     .build()?;
    /// assert_eq!(audit.order(), [0, 1]);
    /// # Ok::<_, logreel::workflow::Problems>(())
    /// ```
    pub fn builder(name: impl Into<String>) -> WorkflowBuilder {
        WorkflowBuilder {
            spec: WorkflowSpec {
                name: name.into(),
                input_schema: None,
                output: None,
                budget: BudgetSpec::default(),
                concurrency: None,
                limit: None,
                steps: Vec::new(),
            },
            misplaced: Vec::new(),
        }
    }
}

/// A workflow that is being written.
#[derive(Debug, Clone)]
#[must_use]
pub struct WorkflowBuilder {
    spec: WorkflowSpec,
    misplaced: Vec<(usize, Misplaced)>,
}

impl WorkflowBuilder {
    /// The JSON Schema its input must fit.
    pub fn input_schema(mut self, schema: impl Into<Value>) -> Self {
        self.spec.input_schema = Some(schema.into());
        self
    }

    /// Its output, with templates.
    pub fn output(mut self, output: impl Into<Value>) -> Self {
        self.spec.output = Some(output.into());
        self
    }

    /// Its limits.
    pub fn budget(mut self, budget: BudgetSpec) -> Self {
        self.spec.budget = budget;
        self
    }

    /// How many steps may run at once.
    pub fn concurrency(mut self, steps: u32) -> Self {
        self.spec.concurrency = Some(steps);
        self
    }

    /// How many runs with the same key may be driven at once.
    pub fn limit(mut self, key: impl Into<String>, max: u32) -> Self {
        let key = key.into();
        self.spec.limit = Some(Limit { key, max });
        self
    }

    /// Adds a step.
    pub fn step(mut self, step: Step) -> Self {
        let at = self.spec.steps.len();
        self.misplaced
            .extend(step.misplaced.into_iter().map(|misplaced| (at, misplaced)));
        self.spec.steps.push(step.spec);
        self
    }

    /// Checks what was written.
    pub fn build(self) -> Result<Workflow, Problems> {
        let places = Places::default();
        let misplaced = |(at, misplaced): &(usize, Misplaced)| -> Problem {
            let in_step = Some((*at, self.spec.steps[*at].id.as_str()));
            places.problem(
                in_step,
                misplaced.key,
                format!("belongs to {}", misplaced.owner),
            )
        };
        let mut problems: Vec<Problem> = self.misplaced.iter().map(misplaced).collect();
        match Workflow::checked(self.spec, &places) {
            Ok(workflow) if problems.is_empty() => Ok(workflow),
            Ok(_) => Err(Problems(problems)),
            Err(Problems(more)) => {
                problems.extend(more);
                Err(Problems(problems))
            }
        }
    }
}

/// A step that is being written.
#[derive(Debug, Clone)]
#[must_use]
pub struct Step {
    spec: StepSpec,
    misplaced: Vec<Misplaced>,
}

/// A key that was given to a step of another kind; told when the workflow is built.
#[derive(Debug, Clone)]
struct Misplaced {
    key: &'static str,
    owner: &'static str,
}

impl Step {
    /// A command, given to `sh -c`.
    pub fn run(id: impl Into<String>, command: impl Into<String>) -> Self {
        let run = command.into();
        let (reconcile, stream) = (None, None);
        Self::of(
            id,
            Does::Run(RunSpec {
                run,
                reconcile,
                stream,
            }),
        )
    }

    /// A child run of an agent, given as its whole spec.
    pub fn agent(id: impl Into<String>, agent: impl Into<Value>) -> Self {
        let agent = agent.into();
        Self::of(id, Does::Agent { agent })
    }

    /// A child run of another workflow.
    pub fn workflow(id: impl Into<String>, workflow: &Workflow) -> Self {
        let workflow = Box::new(workflow.spec().clone());
        Self::of(id, Does::Workflow { workflow })
    }

    /// A registered Rust function.
    pub fn task(id: impl Into<String>, task: impl Into<String>) -> Self {
        let task = task.into();
        Self::of(id, Does::Task { task })
    }

    /// Waits until someone says yes or no.
    pub fn approval(id: impl Into<String>) -> Self {
        let approval = WaitSpec::Approval {
            prompt: None,
            on_timeout: OnTimeout::default(),
            on_deny: OnDeny::default(),
        };
        Self::of(id, Does::Wait(approval))
    }

    /// Waits for a signal.
    pub fn signal(id: impl Into<String>, name: impl Into<String>) -> Self {
        let name = name.into();
        Self::of(id, Does::Wait(WaitSpec::Signal { name }))
    }

    /// Waits this long.
    pub fn timer(id: impl Into<String>, lasts: Duration) -> Self {
        let lasts = Some(lasts);
        Self::of(id, Does::Wait(WaitSpec::Timer { lasts, until: None }))
    }

    /// Waits until a time (RFC 3339), which may be a template.
    pub fn timer_until(id: impl Into<String>, until: impl Into<String>) -> Self {
        let until = Some(until.into());
        Self::of(id, Does::Wait(WaitSpec::Timer { lasts: None, until }))
    }

    /// Steps that must have ended before it starts.
    pub fn needs<I>(mut self, ids: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.spec.needs.extend(ids.into_iter().map(Into::into));
        self
    }

    /// A template; when it comes out false, null, 0 or empty, the step is skipped.
    pub fn when(mut self, template: impl Into<String>) -> Self {
        self.spec.when = Some(template.into());
        self
    }

    /// What it works on, with templates.
    pub fn input(mut self, input: impl Into<Value>) -> Self {
        self.spec.input = Some(input.into());
        self
    }

    /// A variable for its command, with templates and `${VAR}`.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.env.insert(name.into(), value.into());
        self
    }

    /// Variables that must be set and whose values are never recorded.
    pub fn env_from<I>(mut self, names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.spec.env_from.extend(names.into_iter().map(Into::into));
        self
    }

    /// Its folder, relative to the run's.
    pub fn dir(mut self, dir: impl Into<String>) -> Self {
        self.spec.dir = Some(dir.into());
        self
    }

    /// What an interruption means.
    pub fn effect(mut self, effect: Effect) -> Self {
        self.spec.effect = Some(effect);
        self
    }

    /// How many attempts in all; between them the first wait, doubled each time up to the longest.
    pub fn retry(mut self, attempts: u32, backoff: Range<Duration>) -> Self {
        let backoff = Some((backoff.start, backoff.end));
        self.spec.retry = Some(RetrySpec { attempts, backoff });
        self
    }

    /// How many attempts in all, with the usual waits between them.
    pub fn attempts(mut self, attempts: u32) -> Self {
        let backoff = None;
        self.spec.retry = Some(RetrySpec { attempts, backoff });
        self
    }

    /// How long an attempt, or a wait, may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.spec.timeout = Some(timeout);
        self
    }

    /// What its failure means for the run.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.spec.on_error = on_error;
        self
    }

    /// The JSON Schema its output must fit.
    pub fn output_schema(mut self, schema: impl Into<Value>) -> Self {
        self.spec.output_schema = Some(schema.into());
        self
    }

    /// A list, or a template that gives one: the step runs once for each of its items.
    pub fn map(mut self, items: impl Into<Value>) -> Self {
        self.spec.map = Some(items.into());
        self
    }

    /// A template that names an item of the map.
    pub fn map_key(mut self, template: impl Into<String>) -> Self {
        self.spec.map_key = Some(template.into());
        self
    }

    /// How many items of the map run at once.
    pub fn concurrency(mut self, items: u32) -> Self {
        self.spec.concurrency = Some(items);
        self
    }

    /// The command that tells whether an interrupted write happened.
    pub fn reconcile(self, command: impl Into<String>) -> Self {
        self.command("reconcile", |run| run.reconcile = Some(command.into()))
    }

    /// How to understand the command's output while it runs.
    pub fn stream(self, name: impl Into<String>) -> Self {
        self.command("stream", |run| run.stream = Some(name.into()))
    }

    /// What is asked, a template.
    pub fn prompt(mut self, template: impl Into<String>) -> Self {
        match &mut self.spec.does {
            Does::Wait(WaitSpec::Approval { prompt, .. }) => *prompt = Some(template.into()),
            _ => self.misplaced("prompt", "an approval"),
        }
        self
    }

    /// What happens without an answer in time.
    pub fn on_timeout(mut self, answer: OnTimeout) -> Self {
        match &mut self.spec.does {
            Does::Wait(WaitSpec::Approval { on_timeout, .. }) => *on_timeout = answer,
            _ => self.misplaced("on_timeout", "an approval"),
        }
        self
    }

    /// What a no means.
    pub fn on_deny(mut self, answer: OnDeny) -> Self {
        match &mut self.spec.does {
            Does::Wait(WaitSpec::Approval { on_deny, .. }) => *on_deny = answer,
            _ => self.misplaced("on_deny", "an approval"),
        }
        self
    }

    fn of(id: impl Into<String>, does: Does) -> Self {
        Self {
            spec: StepSpec::new(id, does),
            misplaced: Vec::new(),
        }
    }

    fn command(mut self, key: &'static str, set: impl FnOnce(&mut RunSpec)) -> Self {
        match &mut self.spec.does {
            Does::Run(run) => set(run),
            _ => self.misplaced(key, "a step with a command"),
        }
        self
    }

    fn misplaced(&mut self, key: &'static str, owner: &'static str) {
        self.misplaced.push(Misplaced { key, owner });
    }
}
