//! From files to specs: every key is known, every value has its type, every named file is inside.
//!
//! It goes on after a problem, so that a person sees all of them at once; a step that could not be read
//! whole keeps its id and needs, so that others are not told that it does not exist.

use std::path::Path;
use std::sync::Arc;

use logreel_core::event::Effect;
use serde_json::Value;

use super::graph::Workflow;
use super::spec::{
    Does, Limit, OnDeny, OnError, OnTimeout, RetrySpec, RunSpec, StepSpec, WaitSpec, WorkflowSpec,
};
use crate::agents::Agents;
use crate::spec_file::{
    Format, Is, Keys, Node, OpenFiles, Places, Problem, Problems, Sheet, parse_range,
};

impl Workflow {
    /// Reads a file, and every file it names; an `agent` step is refused.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Problems> {
        Files::default().workflow(path.as_ref())
    }

    /// Reads a file, and every file it names, agents with them.
    pub fn read_with(path: impl AsRef<Path>, agents: &dyn Agents) -> Result<Self, Problems> {
        let path = path.as_ref();
        let files = Files {
            agents: Some(agents),
            ..Files::default()
        };
        let workflow = files.workflow(path)?;
        match workflow.unpriced(agents) {
            None => Ok(workflow),
            Some(why) => Err(Problem {
                key: "budget.usd".to_owned(),
                ..Problem::of_file(path.display().to_string(), why)
            }
            .into()),
        }
    }

    /// Reads a text that names no files; `file_name` is what problems call it.
    pub fn parse(text: &str, format: Format, file_name: &str) -> Result<Self, Problems> {
        let node = Node::parse(text, format, file_name)?;
        let places = Places {
            file: Some(file_name.into()),
            lines: node.lines(),
            ..Places::default()
        };
        finish(read(&node, places, None, &mut Files::default()))
    }

    /// Reads a stored spec, as [`Workflow::json`] gave it.
    pub fn from_json(spec: &Value) -> Result<Self, Problems> {
        let node = Node::of(spec);
        finish(read(&node, Places::default(), None, &mut Files::default()))
    }
}

/// Workflows inside workflows: as many as fit what the graph accepts.
const DEPTH_MAX: usize = 32;

/// The files that are being read, each named by the one before it.
#[derive(Default)]
pub(super) struct Files<'a> {
    agents: Option<&'a dyn Agents>,
    open: OpenFiles,
    depth: usize,
}

impl Files<'_> {
    fn workflow(mut self, path: &Path) -> Result<Workflow, Problems> {
        let name = path.display().to_string();
        let document = self
            .read(path)
            .map_err(|message| Problem::of_file(name, message))??;
        finish(document)
    }

    /// Reads a workflow file. The outer error is for whoever named the file, the inner one is the file's.
    fn read(&mut self, path: &Path) -> Result<Result<Document, Problem>, String> {
        let name = path.display().to_string();
        let text = self.open.enter(path)?;
        let document = self.parsed(path, &text, name);
        self.open.leave();
        Ok(document)
    }

    fn parsed(&mut self, path: &Path, text: &str, name: String) -> Result<Document, Problem> {
        let node = Node::parse(text, Format::of(path), &name)?;
        let places = Places {
            file: Some(Arc::from(name.as_str())),
            lines: node.lines(),
            ..Places::default()
        };
        Ok(read(&node, places, path.parent(), self))
    }
}

/// A workflow as far as it could be read.
struct Document {
    spec: WorkflowSpec,
    places: Places,
    problems: Vec<Problem>,
}

/// Checks what was read, and tells the problems of both in the order of the files.
fn finish(document: Document) -> Result<Workflow, Problems> {
    let Document {
        spec,
        places,
        mut problems,
    } = document;
    let checked = Workflow::checked(spec, &places);
    if let Err(Problems(more)) = &checked {
        problems.extend(more.iter().cloned());
    }
    if problems.is_empty() {
        return checked;
    }
    Err(Problems::in_order(problems))
}

fn read(node: &Node, places: Places, folder: Option<&Path>, files: &mut Files<'_>) -> Document {
    let mut reader = Reader {
        sheet: Sheet::new(places, folder),
        of_children: Vec::new(),
        files,
    };
    let spec = reader.workflow(node);
    let Reader {
        sheet, of_children, ..
    } = reader;
    let (places, mut problems) = (sheet.places, sheet.problems);
    problems.extend(of_children);
    Document {
        spec,
        places,
        problems,
    }
}

const KINDS: [&str; 5] = ["run", "agent", "workflow", "task", "wait"];

/// What a key of a step belongs to, when it does not belong to all.
const OWNERS: [(&str, &str); 8] = [
    ("reconcile", "a step with `run`"),
    ("stream", "a step with `run`"),
    ("prompt", "`wait = \"approval\"`"),
    ("on_timeout", "`wait = \"approval\"`"),
    ("on_deny", "`wait = \"approval\"`"),
    ("name", "`wait = \"signal\"`"),
    ("for", "`wait = \"timer\"`"),
    ("until", "`wait = \"timer\"`"),
];
struct Reader<'a, 'f> {
    sheet: Sheet,
    /// Problems inside a child do not make the step that holds it unreadable.
    of_children: Vec<Problem>,
    files: &'a mut Files<'f>,
}

impl Reader<'_, '_> {
    fn workflow(&mut self, node: &Node) -> WorkflowSpec {
        if !matches!(node.is, Is::Table(_)) {
            self.sheet.places.unreadable.extend(["name", "step"]);
        }
        let mut keys = self.sheet.table(None, "", node);
        let before = self.sheet.problems.len();
        let name = self.sheet.text(&mut keys, "name").unwrap_or_default();
        if self.sheet.problems.len() > before {
            self.sheet.places.unreadable.insert("name");
        }
        let spec = WorkflowSpec {
            name,
            input_schema: self
                .sheet
                .json_or_file(&mut keys, "input_schema", "input_schema_file"),
            output: keys.take("output").map(Node::to_json),
            budget: self.sheet.budget(&mut keys),
            concurrency: self.sheet.whole(&mut keys, "concurrency"),
            limit: self.limit(&mut keys),
            steps: self.steps(&mut keys),
        };
        self.sheet.no_others(keys);
        spec
    }

    fn limit(&mut self, keys: &mut Keys<'_>) -> Option<Limit> {
        let node = keys.take("limit")?;
        let mut keys = self.sheet.table(None, "limit", node);
        let (key, max) = (
            self.sheet.text(&mut keys, "key"),
            self.sheet.whole(&mut keys, "max"),
        );
        for name in ["key", "max"] {
            if !keys.has(name) {
                self.sheet.problem(
                    None,
                    &format!("limit.{name}"),
                    "is missing; a limit needs `key` and `max`",
                );
            }
        }
        self.sheet.no_others(keys);
        Some(Limit {
            key: key?,
            max: max?,
        })
    }

    fn steps(&mut self, keys: &mut Keys<'_>) -> Vec<StepSpec> {
        let Some(node) = keys.take("step") else {
            return Vec::new();
        };
        let Is::List(nodes) = &node.is else {
            self.sheet.places.unreadable.insert("step");
            let message = format!("expected a list of steps (`[[step]]`), got {}", node.kind());
            self.sheet.problem(None, "step", message);
            return Vec::new();
        };
        let nodes = nodes.iter().enumerate();
        nodes.map(|(at, node)| self.step(at, node)).collect()
    }

    fn step(&mut self, at: usize, node: &Node) -> StepSpec {
        let unread = Does::Task {
            task: String::new(),
        };
        let before = self.sheet.problems.len();
        let Is::Table(fields) = &node.is else {
            self.sheet.places.broken.insert(at);
            let message = format!("expected a table, got {}", node.kind());
            self.sheet.problem(Some((at, "")), "", message);
            return StepSpec::new("", unread);
        };
        let id = fields.iter().find(|field| field.name == "id");
        let id = match id.map(|field| &field.node.is) {
            Some(Is::Text(id)) => id.as_str(),
            _ => "",
        };
        let mut keys = self.sheet.table(Some((at, id)), "", node);
        keys.owners = &OWNERS;
        let spec = StepSpec {
            id: self.sheet.text(&mut keys, "id").unwrap_or_default(),
            needs: self.sheet.texts(&mut keys, "needs"),
            when: self.sheet.text(&mut keys, "when"),
            input: keys.take("input").map(Node::to_json),
            env: self.sheet.text_table(&mut keys, "env"),
            env_from: self.sheet.texts(&mut keys, "env_from"),
            dir: self.sheet.text(&mut keys, "dir"),
            effect: self.sheet.choice(
                &mut keys,
                "effect",
                &[Effect::Read, Effect::Idempotent, Effect::Write].map(|e| (e.as_str(), e)),
            ),
            retry: self.retry(&mut keys),
            timeout: self.sheet.span(&mut keys, "timeout"),
            on_error: {
                let choices = [("fail", OnError::Fail), ("continue", OnError::Continue)];
                self.sheet
                    .choice(&mut keys, "on_error", &choices)
                    .unwrap_or_default()
            },
            output_schema: self.sheet.json_or_file(
                &mut keys,
                "output_schema",
                "output_schema_file",
            ),
            map: keys.take("map").map(Node::to_json),
            map_key: self.sheet.text(&mut keys, "map_key"),
            concurrency: self.sheet.whole(&mut keys, "concurrency"),
            does: self.does(&mut keys).unwrap_or(unread),
        };
        self.sheet.no_others(keys);
        if self.sheet.problems.len() > before {
            self.sheet.places.broken.insert(at);
        }
        spec
    }

    fn retry(&mut self, keys: &mut Keys<'_>) -> Option<RetrySpec> {
        let step = keys.step;
        let node = keys.take("retry")?;
        let mut keys = self.sheet.table(step, "retry", node);
        let attempts = self.sheet.whole(&mut keys, "attempts");
        if !keys.has("attempts") && matches!(node.is, Is::Table(_)) {
            let message = "is missing; expected how many attempts in all";
            self.sheet.problem(step, "retry.attempts", message);
        }
        let text = self.sheet.text(&mut keys, "backoff");
        let backoff = text.and_then(|text| match parse_range(&text) {
            Ok(backoff) => Some(backoff),
            Err(message) => {
                self.sheet.problem(step, "retry.backoff", message);
                None
            }
        });
        self.sheet.no_others(keys);
        Some(RetrySpec {
            attempts: attempts?,
            backoff,
        })
    }

    /// What a step does; `None` after a problem.
    fn does(&mut self, keys: &mut Keys<'_>) -> Option<Does> {
        let kinds: Vec<&str> = KINDS.into_iter().filter(|kind| keys.has(kind)).collect();
        let [kind] = kinds.as_slice() else {
            for name in KINDS {
                keys.take(name);
            }
            for (name, _) in OWNERS {
                keys.take(name);
            }
            let got = if kinds.is_empty() {
                "none".to_owned()
            } else {
                kinds.join(" and ")
            };
            let message = format!("expected exactly one of {}; got {got}", KINDS.join(", "));
            self.sheet.problem(keys.step, "", message);
            return None;
        };
        match *kind {
            "run" => Some(Does::Run(RunSpec {
                run: self.sheet.text(keys, "run")?,
                reconcile: self.sheet.text(keys, "reconcile"),
                stream: self.stream(keys),
            })),
            "task" => Some(Does::Task {
                task: self.sheet.text(keys, "task")?,
            }),
            "agent" => self.agent(keys),
            "workflow" => self.child(keys),
            _ => self.wait(keys).map(Does::Wait),
        }
    }

    /// The name of a stream, or the text of the file that maps it: a run needs no file later.
    fn stream(&mut self, keys: &mut Keys<'_>) -> Option<String> {
        let said = self.sheet.text(keys, "stream")?;
        if !said.ends_with(".toml") {
            return Some(said);
        }
        let path = self.sheet.path(keys, "stream", &said)?;
        match std::fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) => {
                let message = format!("cannot read {}: {error}", path.display());
                self.sheet.problem(keys.step, "stream", message);
                None
            }
        }
    }

    fn wait(&mut self, keys: &mut Keys<'_>) -> Option<WaitSpec> {
        let waits = [("approval", 0), ("signal", 1), ("timer", 2)];
        let Some(wait) = self.sheet.choice(keys, "wait", &waits) else {
            for (name, _) in OWNERS {
                keys.take(name);
            }
            return None;
        };
        Some(match wait {
            0 => WaitSpec::Approval {
                prompt: self.sheet.text(keys, "prompt"),
                on_timeout: {
                    let choices = [
                        ("fail", OnTimeout::Fail),
                        ("approve", OnTimeout::Approve),
                        ("deny", OnTimeout::Deny),
                    ];
                    self.sheet
                        .choice(keys, "on_timeout", &choices)
                        .unwrap_or_default()
                },
                on_deny: {
                    let choices = [("fail", OnDeny::Fail), ("continue", OnDeny::Continue)];
                    self.sheet
                        .choice(keys, "on_deny", &choices)
                        .unwrap_or_default()
                },
            },
            1 => WaitSpec::Signal {
                name: self.sheet.text(keys, "name").unwrap_or_default(),
            },
            _ => WaitSpec::Timer {
                lasts: self.sheet.span(keys, "for"),
                until: self.sheet.text(keys, "until"),
            },
        })
    }

    fn agent(&mut self, keys: &mut Keys<'_>) -> Option<Does> {
        let (step, node) = (keys.step, keys.take("agent")?);
        let file = match &node.is {
            // A stored spec has it inside; in a file nobody would have checked it.
            Is::Table(_) if self.sheet.folder().is_none() => {
                return Some(Does::Agent {
                    agent: node.to_json(),
                });
            }
            Is::Text(file) => file,
            _ => {
                self.sheet.problem(
                    step,
                    "agent",
                    format!("expected a file, got {}", node.kind()),
                );
                return None;
            }
        };
        let path = self.sheet.path(keys, "agent", file)?;
        let Some(agents) = self.files.agents else {
            self.sheet
                .problem(step, "agent", "this program has no agents");
            return None;
        };
        match agents.load(&path) {
            Ok(agent) => Some(Does::Agent { agent }),
            Err(Problems(problems)) => {
                // A file that is not there is a problem of whoever named it.
                match std::fs::metadata(&path) {
                    Ok(_) => self.sheet.problems.extend(problems),
                    Err(error) => {
                        let message = format!("cannot read {}: {error}", path.display());
                        self.sheet.problem(step, "agent", message);
                    }
                }
                None
            }
        }
    }

    fn child(&mut self, keys: &mut Keys<'_>) -> Option<Does> {
        let (step, node) = (keys.step, keys.take("workflow")?);
        let (at, id) = step?;
        if self.files.depth == DEPTH_MAX {
            let message = format!("workflows inside workflows, deeper than {DEPTH_MAX}");
            self.sheet.problem(step, "workflow", message);
            return None;
        }
        self.files.depth += 1;
        let document = match &node.is {
            Is::Table(_) => Some(self.inline(at, id, node)),
            Is::Text(file) => self.sheet.path(keys, "workflow", file).and_then(|path| {
                match self.files.read(&path) {
                    Ok(Ok(document)) => Some(document),
                    Ok(Err(problem)) => {
                        self.sheet.problems.push(problem);
                        None
                    }
                    Err(message) => {
                        self.sheet.problem(step, "workflow", message);
                        None
                    }
                }
            }),
            _ => {
                let message = format!("expected a file or a table, got {}", node.kind());
                self.sheet.problem(step, "workflow", message);
                None
            }
        };
        self.files.depth -= 1;
        let Document {
            spec,
            places,
            problems,
        } = document?;
        self.of_children.extend(problems);
        self.sheet.places.children.insert(at, places);
        Some(Does::Workflow {
            workflow: Box::new(spec),
        })
    }

    /// A workflow that is written inside this one.
    fn inline(&mut self, at: usize, id: &str, node: &Node) -> Document {
        let places = Places {
            lines: node.lines(),
            ..self.sheet.places.child(at, id)
        };
        read(node, places, self.sheet.folder(), self.files)
    }
}
