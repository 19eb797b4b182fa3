//! What a run is doing, a line for each step and each call of a tool: folded from its events, those of
//! its children, and what its commands print and its models say.

mod agent;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use logreel::core::Payload;
use logreel::core::event::{Resolution, WaitKind, WaitOutcome};
use logreel::{Body, Event, RunId, StepId, Timestamp};
use serde_json::Value;

pub use self::agent::{Agent, Speech};
use crate::text;

/// How a step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Pending,
    Running,
    Waiting,
    Finished,
    Failed,
    Skipped,
    InDoubt,
}

impl Mark {
    /// Whether nothing more is to come of it.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Skipped)
    }

    /// Whether a run that goes on with it need not do it again.
    fn is_kept(self) -> bool {
        matches!(self, Self::Finished | Self::Skipped)
    }
}

/// A step, all items of a mapped one, or a call of a tool.
#[derive(Debug, Clone)]
pub struct Line {
    run: RunId,
    /// What finds it among those of its run.
    key: String,
    pub id: String,
    pub depth: usize,
    pub mark: Mark,
    pub since: Option<Timestamp>,
    pub took: Option<Duration>,
    /// What it last printed, waits for or failed of.
    pub note: String,
    /// What an interruption would mean, and whether anybody said so.
    pub effect: Option<String>,
    pub items: Option<Items>,
}

impl Line {
    fn pending(run: RunId, id: &str, depth: usize) -> Self {
        Self {
            run,
            key: id.to_owned(),
            id: id.to_owned(),
            depth,
            mark: Mark::Pending,
            since: None,
            took: None,
            note: String::new(),
            effect: None,
            items: None,
        }
    }

    /// Whether it is an agent's doing, and no step of a workflow.
    pub fn is_of_agent(&self) -> bool {
        self.key != self.id
    }

    /// As if it had not begun; items that are over stay so.
    fn fresh(&self) -> Self {
        Self {
            mark: Mark::Pending,
            since: None,
            took: None,
            note: String::new(),
            ..self.clone()
        }
    }
}

/// The items of a mapped step.
#[derive(Debug, Clone, Default)]
pub struct Items {
    marks: BTreeMap<String, Mark>,
    /// Where the list comes from, such as `steps.files.output`.
    source: Option<String>,
    total: Option<usize>,
}

impl Items {
    pub fn over(&self) -> usize {
        self.marks.values().filter(|mark| mark.is_over()).count()
    }

    /// How many there are; `None` while only the started ones are known.
    pub fn total(&self) -> Option<usize> {
        self.total
    }

    fn mark(&self) -> Mark {
        let any = |mark| self.marks.values().any(|it| *it == mark);
        if any(Mark::InDoubt) {
            Mark::InDoubt
        } else if any(Mark::Running) {
            Mark::Running
        } else if any(Mark::Waiting) {
            Mark::Waiting
        } else if self.total.is_some_and(|total| self.over() < total) {
            Mark::Running
        } else if any(Mark::Failed) {
            Mark::Failed
        } else {
            Mark::Finished
        }
    }
}

/// The run and its steps.
#[derive(Debug, Clone)]
pub struct Model {
    pub run: RunId,
    pub name: String,
    pub began: Option<Timestamp>,
    /// Why everything stands still: paused, or its drivers keep dying.
    pub stopped: Option<&'static str>,
    pub lines: Vec<Line>,
    /// Child runs that are shown, with the place of their step: run and key.
    children: HashMap<RunId, (RunId, String)>,
    /// The runs among them that are an agent's.
    agents: HashMap<RunId, Agent>,
    /// What a model said last, or says.
    pub speech: Option<Speech>,
}

impl Model {
    pub fn new(run: RunId) -> Self {
        Self {
            run,
            name: String::new(),
            began: None,
            stopped: None,
            lines: Vec::new(),
            children: HashMap::new(),
            agents: HashMap::new(),
            speech: None,
        }
    }

    /// Where the run is, when it is an agent's.
    pub fn agent(&self) -> Option<&Agent> {
        self.agents.get(&self.run)
    }

    /// Takes an event in. Gives the child that is worth following too, when it starts one.
    pub fn apply(&mut self, run: RunId, event: &Event) -> Option<RunId> {
        let at = event.at;
        if let Some(applied) = self.apply_of_agent(run, event) {
            return applied;
        }
        match &event.body {
            Body::RunStarted(started) => {
                self.know_agent(run, started);
                if run == self.run {
                    self.name = text::one_line(&started.agent);
                    self.began = Some(at);
                }
                self.list_steps(run, &started.spec);
                self.know_list(run, "input", &started.input);
            }
            Body::RunForked(forked) if run == self.run => {
                self.began = Some(at);
                self.start_again(&forked.forgotten);
            }
            Body::StepStarted(started) => {
                // A command may have printed something before its start was told.
                let note = match started.attempt {
                    1 => None,
                    attempt => Some(format!("attempt {attempt}")),
                };
                self.set(run, &started.step, Mark::Running, at, note);
            }
            Body::StepFinished(finished) => {
                self.end(run, &finished.step, Mark::Finished, finished.started_at, at);
                let path = format!("steps.{}.output", finished.step);
                self.know_list(run, &path, &finished.output);
            }
            Body::StepFailed(failed) => {
                self.end(run, &failed.step, Mark::Failed, failed.started_at, at);
                self.note(run, &failed.step, &failed.error.message);
            }
            Body::StepRetrying(retrying) => {
                let delay = text::duration(Duration::from_millis(retrying.delay_ms));
                let note = format!("attempt {} in {delay}", retrying.attempt);
                self.set(run, &retrying.step, Mark::Running, at, Some(note));
            }
            Body::StepSkipped(skipped) => {
                self.set(run, &skipped.step, Mark::Skipped, at, None);
                self.note(run, &skipped.step, &skipped.reason);
            }
            Body::StepInDoubt(doubt) => {
                let note = Some(text::one_line(&doubt.reason));
                self.set(run, &doubt.step, Mark::InDoubt, at, note);
            }
            Body::StepResolved(resolved) => {
                let mark = match resolved.resolution {
                    Resolution::Returned(_) => Mark::Finished,
                    Resolution::Failed(_) => Mark::Failed,
                    Resolution::Retry => Mark::Running,
                };
                self.set(run, &resolved.step, mark, at, Some(String::new()));
            }
            Body::WaitStarted(wait) => match (&wait.step, wait.kind) {
                (
                    Some(step),
                    WaitKind::Approval | WaitKind::Signal | WaitKind::Timer | WaitKind::Budget,
                ) => {
                    let what = wait.prompt.as_deref().or(wait.name.as_deref());
                    let until = wait
                        .deadline
                        .map(|at| format!("until {}", text::moment(at)));
                    let what = what.map(text::one_line).or(until).unwrap_or_default();
                    let note = format!("{}: {what}", wait.kind);
                    self.set(run, step, Mark::Waiting, at, Some(note));
                }
                (None, WaitKind::Paused) if run == self.run => self.stopped = Some("paused"),
                (None, WaitKind::CrashLoop) if run == self.run => {
                    self.stopped = Some("keeps crashing");
                }
                _ => {}
            },
            Body::WaitEnded(ended) => match (&ended.step, ended.outcome) {
                (None, WaitOutcome::Resumed) if run == self.run => self.stopped = None,
                (
                    Some(step),
                    WaitOutcome::Answered
                    | WaitOutcome::Signalled
                    | WaitOutcome::TimedOut
                    | WaitOutcome::Elapsed,
                ) if self.is_waiting(run, step) => {
                    self.end(run, step, Mark::Finished, None, at);
                    let note = match (ended.outcome, ended.approved) {
                        (WaitOutcome::TimedOut, _) => "out of time",
                        (_, Some(true)) => "approved",
                        (_, Some(false)) => "denied",
                        (_, None) => "",
                    };
                    self.note(run, step, note);
                }
                // What it waited for budget with comes next.
                (Some(step), WaitOutcome::Raised | WaitOutcome::Finished)
                    if self.is_waiting(run, step) =>
                {
                    self.set(run, step, Mark::Running, at, Some(String::new()));
                }
                _ => {}
            },
            Body::ChildStarted(child) => {
                self.set(run, &child.step, Mark::Running, at, None);
                let place = self.place(run, &child.step)?;
                // The children of a mapped step are one line: its count.
                if self.lines[place].items.is_none() {
                    let key = self.lines[place].key.clone();
                    self.forget_children(run, Some(&key));
                    self.children.insert(child.child, (run, key));
                    return Some(child.child);
                }
            }
            _ => {}
        }
        None
    }

    /// Takes a printed line in.
    pub fn printed(&mut self, run: RunId, step: &StepId, line: &str) {
        let line = text::printed(line);
        if !line.is_empty() {
            self.note(run, step, &line);
        }
    }

    pub fn steps_over(&self) -> usize {
        let lines = self.lines.iter();
        lines
            .filter(|line| line.mark.is_over() && !line.is_of_agent())
            .count()
    }

    /// The steps of a spec, each a line, those of a child below the step that it is the work of.
    fn list_steps(&mut self, run: RunId, spec: &Payload) {
        let Some(spec) = spec.inline().map(|json| json.to_value()) else {
            return;
        };
        let Some(steps) = spec.get("step").and_then(Value::as_array) else {
            return;
        };
        let Some((mut place, depth)) = self.bottom(run) else {
            return;
        };
        for step in steps {
            let Some(id) = step.get("id").and_then(Value::as_str) else {
                continue;
            };
            let items = step.get("map").map(|map| Items {
                total: map.as_array().map(Vec::len),
                source: map.as_str().and_then(only_expression),
                ..Items::default()
            });
            let line = Line {
                effect: effect_of(step),
                items,
                ..Line::pending(run, &text::one_line(id), depth)
            };
            self.lines.insert(place, line);
            place += 1;
        }
    }

    /// Where the next line of a run goes, and how deep; `None` for a run that is not shown.
    fn bottom(&self, run: RunId) -> Option<(usize, usize)> {
        if run == self.run {
            return Some((self.lines.len(), 0));
        }
        let (parent, key) = self.children.get(&run)?;
        let of = |line: &Line| line.run == *parent && line.key == *key;
        let place = self.lines.iter().position(of)?;
        let depth = self.lines[place].depth;
        let below = self.lines[place + 1..].iter();
        let below = below.take_while(|line| line.depth > depth).count();
        Some((place + 1 + below, depth + 1))
    }

    /// A run that goes on with what another finished: the rest is to come again.
    fn start_again(&mut self, forgotten: &[StepId]) {
        self.stopped = None;
        self.forget_children(self.run, None);
        for line in &mut self.lines {
            if let Some(items) = &mut line.items {
                items.marks.retain(|_, mark| mark.is_kept());
            }
            if !line.mark.is_kept() {
                *line = line.fresh();
            }
        }
        for step in forgotten {
            let (id, key) = base_and_key(step);
            let Some(line) = self.lines.iter_mut().find(|line| line.key == id) else {
                continue;
            };
            if let (Some(items), Some(key)) = (&mut line.items, key) {
                items.marks.remove(&key);
            }
            *line = line.fresh();
        }
    }

    /// Takes away the steps of the children of a step, or of every step, of a run.
    fn forget_children(&mut self, parent: RunId, step: Option<&str>) {
        let is_meant = |of: &(RunId, String)| of.0 == parent && step.is_none_or(|it| of.1 == it);
        let gone = self.children.extract_if(|_, of| is_meant(of));
        let gone: Vec<RunId> = gone.map(|(child, _)| child).collect();
        for child in gone {
            self.forget_children(child, None);
            self.lines.retain(|line| line.run != child);
            self.agents.remove(&child);
        }
    }

    /// Learns how many items a map has whose list is in this value.
    fn know_list(&mut self, run: RunId, path: &str, value: &Payload) {
        let wanted = |items: &Items| {
            let source = items.source.as_deref()?;
            let rest = source.strip_prefix(path)?;
            (rest.is_empty() || rest.starts_with('.')).then(|| rest.replace('.', "/"))
        };
        let mut decoded: Option<Value> = None;
        for line in self.lines.iter_mut().filter(|line| line.run == run) {
            let Some(pointer) = line.items.as_ref().and_then(wanted) else {
                continue;
            };
            let Some(json) = value.inline() else { continue };
            let decoded = decoded.get_or_insert_with(|| json.to_value());
            let list = decoded.pointer(&pointer).and_then(Value::as_array);
            if let (Some(items), Some(list)) = (&mut line.items, list) {
                items.total = Some(list.len());
                if list.is_empty() {
                    line.mark = Mark::Finished;
                }
            }
        }
    }

    /// The line of a step; a step that the spec does not name gets one, a step inside a step is part
    /// of the outer one.
    fn place(&mut self, run: RunId, step: &StepId) -> Option<usize> {
        let (id, _) = base_and_key(step);
        let found = self
            .lines
            .iter()
            .position(|line| line.run == run && line.key == id);
        if found.is_some() {
            return found;
        }
        if run != self.run || step.to_string().contains('/') {
            return None;
        }
        self.lines.push(Line::pending(run, &id, 0));
        Some(self.lines.len() - 1)
    }

    fn is_waiting(&mut self, run: RunId, step: &StepId) -> bool {
        let place = self.place(run, step);
        place.is_some_and(|place| {
            let line = &self.lines[place];
            line.mark == Mark::Waiting || line.items.is_some()
        })
    }

    fn set(&mut self, run: RunId, step: &StepId, mark: Mark, at: Timestamp, note: Option<String>) {
        let Some(place) = self.place(run, step) else {
            return;
        };
        let line = &mut self.lines[place];
        let began = line.mark == Mark::Pending;
        match base_and_key(step).1 {
            None => line.mark = mark,
            Some(key) => {
                let items = line.items.get_or_insert_default();
                items.marks.insert(key, mark);
                line.mark = items.mark();
            }
        }
        if began {
            line.since = Some(at);
        }
        if line.mark.is_over() {
            line.took = line.since.map(|since| at.since(since));
        } else {
            line.took = None;
        }
        if let Some(note) = note {
            line.note = note;
        }
    }

    fn end(
        &mut self,
        run: RunId,
        step: &StepId,
        mark: Mark,
        began: Option<Timestamp>,
        at: Timestamp,
    ) {
        self.set(run, step, mark, began.unwrap_or(at), None);
        let Some(place) = self.place(run, step) else {
            return;
        };
        let line = &mut self.lines[place];
        if line.mark.is_over() {
            line.took = line.since.map(|since| at.since(since));
            if mark == Mark::Finished && line.items.is_none() {
                line.note.clear();
            }
        }
    }

    fn note(&mut self, run: RunId, step: &StepId, note: &str) {
        if let Some(place) = self.place(run, step) {
            self.lines[place].note = text::one_line(note);
        }
    }
}

/// The effect of a step as `check` shows it; a wait has none.
fn effect_of(step: &Value) -> Option<String> {
    match step.get("effect").and_then(Value::as_str) {
        Some(declared) => Some(text::one_line(declared)),
        None if step.get("wait").is_some() => None,
        None => Some(text::default_effect()),
    }
}

/// A step's name, and the key of the item when it is one of a mapped step.
fn base_and_key(step: &StepId) -> (String, Option<String>) {
    let shown = step.to_string();
    match shown.strip_suffix(']').and_then(|it| it.split_once('[')) {
        Some((base, key)) if !base.contains('/') => (text::one_line(base), Some(key.to_owned())),
        _ => (text::one_line(&shown), None),
    }
}

/// The expression of a template that is nothing else: `{{ steps.files.output }}`.
fn only_expression(template: &str) -> Option<String> {
    let inner = template.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
    let inner = inner.trim();
    inner.chars().all(plain).then(|| inner.to_owned())
}
