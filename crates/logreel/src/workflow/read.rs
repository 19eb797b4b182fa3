//! From files to specs: every key is known, every value has its type, every named file is inside.
//!
//! It goes on after a problem, so that a person sees all of them at once; a step that could not be read
//! whole keeps its id and needs, so that others are not told that it does not exist.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use logreel_core::event::Effect;
use serde_json::Value;

use super::graph::Workflow;
use super::keys::{Keys, OWNERS};
use super::node::{Format, Is, Node};
use super::problem::{InStep, Places, Problem, Problems};
use super::span;
use super::spec::{
    BudgetSpec, Does, Limit, OnDeny, OnError, OnTimeout, RetrySpec, RunSpec, StepSpec, WaitSpec,
    WorkflowSpec,
};
use crate::agents::Agents;

impl Workflow {
    /// Reads a file, and every file it names; an `agent` step is refused.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Problems> {
        Files::default().workflow(path.as_ref())
    }

    /// Reads a file, and every file it names, agents with them.
    pub fn read_with(path: impl AsRef<Path>, agents: &dyn Agents) -> Result<Self, Problems> {
        let agents = Some(agents);
        Files {
            agents,
            ..Files::default()
        }
        .workflow(path.as_ref())
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
    open: Vec<(PathBuf, String)>,
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
        let text = text_of(path)?;
        let canonical = path
            .canonicalize()
            .map_err(|error| cannot_read(path, &error))?;
        if let Some(first) = self.open.iter().position(|(open, _)| *open == canonical) {
            let circle = self.open[first..].iter().map(|(_, name)| name.as_str());
            let circle: Vec<&str> = circle.chain([name.as_str()]).collect();
            return Err(format!(
                "files name each other in a circle: {}",
                circle.join(" -> ")
            ));
        }
        let node = match Node::parse(&text, Format::of(path), &name) {
            Ok(node) => node,
            Err(problem) => return Ok(Err(problem)),
        };
        let places = Places {
            file: Some(Arc::from(name.as_str())),
            lines: node.lines(),
            ..Places::default()
        };
        self.open.push((canonical, name));
        let document = read(&node, places, path.parent(), self);
        self.open.pop();
        Ok(Ok(document))
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| cannot_read(path, &error))
}

fn cannot_read(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
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
    let mut files: Vec<Option<String>> = Vec::new();
    for problem in &problems {
        if !files.contains(&problem.file) {
            files.push(problem.file.clone());
        }
    }
    problems.sort_by_key(|problem| {
        let file = files.iter().position(|file| *file == problem.file);
        (file, problem.line)
    });
    Err(Problems(problems))
}

fn read(node: &Node, places: Places, folder: Option<&Path>, files: &mut Files<'_>) -> Document {
    let mut reader = Reader {
        places,
        problems: Vec::new(),
        of_children: Vec::new(),
        folder,
        files,
    };
    let spec = reader.workflow(node);
    let Reader {
        places,
        mut problems,
        of_children,
        ..
    } = reader;
    problems.extend(of_children);
    Document {
        spec,
        places,
        problems,
    }
}

const KINDS: [&str; 5] = ["run", "agent", "workflow", "task", "wait"];

pub(super) struct Reader<'a, 'f> {
    pub places: Places,
    pub problems: Vec<Problem>,
    /// Problems inside a child do not make the step that holds it unreadable.
    of_children: Vec<Problem>,
    /// Where named files are; `None` for a spec that stands alone.
    folder: Option<&'a Path>,
    files: &'a mut Files<'f>,
}

impl Reader<'_, '_> {
    fn workflow(&mut self, node: &Node) -> WorkflowSpec {
        if !matches!(node.is, Is::Table(_)) {
            self.places.unreadable.extend(["name", "step"]);
        }
        let mut keys = self.table(None, "", node);
        let before = self.problems.len();
        let name = self.text(&mut keys, "name").unwrap_or_default();
        if self.problems.len() > before {
            self.places.unreadable.insert("name");
        }
        let spec = WorkflowSpec {
            name,
            input_schema: self.schema(&mut keys, "input_schema", "input_schema_file"),
            output: keys.take("output").map(Node::to_json),
            budget: self.budget(&mut keys),
            concurrency: self.whole(&mut keys, "concurrency"),
            limit: self.limit(&mut keys),
            steps: self.steps(&mut keys),
        };
        self.no_others(keys);
        spec
    }

    fn budget(&mut self, keys: &mut Keys<'_>) -> BudgetSpec {
        let Some(node) = keys.take("budget") else {
            return BudgetSpec::default();
        };
        let mut keys = self.table(None, "budget", node);
        let budget = BudgetSpec {
            tokens: self.whole(&mut keys, "tokens"),
            usd: self.number(&mut keys, "usd"),
            wall: self.span(&mut keys, "wall"),
            tool_calls: self.whole(&mut keys, "tool_calls"),
            children: self.whole(&mut keys, "children"),
        };
        self.no_others(keys);
        budget
    }

    fn limit(&mut self, keys: &mut Keys<'_>) -> Option<Limit> {
        let node = keys.take("limit")?;
        let mut keys = self.table(None, "limit", node);
        let (key, max) = (self.text(&mut keys, "key"), self.whole(&mut keys, "max"));
        for name in ["key", "max"] {
            if !keys.has(name) {
                self.problem(
                    None,
                    &format!("limit.{name}"),
                    "is missing; a limit needs `key` and `max`",
                );
            }
        }
        self.no_others(keys);
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
            self.places.unreadable.insert("step");
            let message = format!("expected a list of steps (`[[step]]`), got {}", node.kind());
            self.problem(None, "step", message);
            return Vec::new();
        };
        let nodes = nodes.iter().enumerate();
        nodes.map(|(at, node)| self.step(at, node)).collect()
    }

    fn step(&mut self, at: usize, node: &Node) -> StepSpec {
        let unread = Does::Task {
            task: String::new(),
        };
        let before = self.problems.len();
        let Is::Table(fields) = &node.is else {
            self.places.broken.insert(at);
            let message = format!("expected a table, got {}", node.kind());
            self.problem(Some((at, "")), "", message);
            return StepSpec::new("", unread);
        };
        let id = fields.iter().find(|field| field.name == "id");
        let id = match id.map(|field| &field.node.is) {
            Some(Is::Text(id)) => id.as_str(),
            _ => "",
        };
        let mut keys = self.table(Some((at, id)), "", node);
        let spec = StepSpec {
            id: self.text(&mut keys, "id").unwrap_or_default(),
            needs: self.texts(&mut keys, "needs"),
            when: self.text(&mut keys, "when"),
            input: keys.take("input").map(Node::to_json),
            env: self.text_table(&mut keys, "env"),
            env_from: self.texts(&mut keys, "env_from"),
            dir: self.text(&mut keys, "dir"),
            effect: self.choice(
                &mut keys,
                "effect",
                &[Effect::Read, Effect::Idempotent, Effect::Write].map(|e| (e.as_str(), e)),
            ),
            retry: self.retry(&mut keys),
            timeout: self.span(&mut keys, "timeout"),
            on_error: {
                let choices = [("fail", OnError::Fail), ("continue", OnError::Continue)];
                self.choice(&mut keys, "on_error", &choices)
                    .unwrap_or_default()
            },
            output_schema: self.schema(&mut keys, "output_schema", "output_schema_file"),
            map: keys.take("map").map(Node::to_json),
            map_key: self.text(&mut keys, "map_key"),
            concurrency: self.whole(&mut keys, "concurrency"),
            does: self.does(&mut keys).unwrap_or(unread),
        };
        self.no_others(keys);
        if self.problems.len() > before {
            self.places.broken.insert(at);
        }
        spec
    }

    fn retry(&mut self, keys: &mut Keys<'_>) -> Option<RetrySpec> {
        let step = keys.step;
        let node = keys.take("retry")?;
        let mut keys = self.table(step, "retry", node);
        let attempts = self.whole(&mut keys, "attempts");
        if !keys.has("attempts") && matches!(node.is, Is::Table(_)) {
            let message = "is missing; expected how many attempts in all";
            self.problem(step, "retry.attempts", message);
        }
        let text = self.text(&mut keys, "backoff");
        let backoff = text.and_then(|text| match span::parse_range(&text) {
            Ok(backoff) => Some(backoff),
            Err(message) => {
                self.problem(step, "retry.backoff", message);
                None
            }
        });
        self.no_others(keys);
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
            self.problem(keys.step, "", message);
            return None;
        };
        match *kind {
            "run" => Some(Does::Run(RunSpec {
                run: self.text(keys, "run")?,
                reconcile: self.text(keys, "reconcile"),
                stream: self.text(keys, "stream"),
            })),
            "task" => Some(Does::Task {
                task: self.text(keys, "task")?,
            }),
            "agent" => self.agent(keys),
            "workflow" => self.child(keys),
            _ => self.wait(keys).map(Does::Wait),
        }
    }

    fn wait(&mut self, keys: &mut Keys<'_>) -> Option<WaitSpec> {
        let waits = [("approval", 0), ("signal", 1), ("timer", 2)];
        let Some(wait) = self.choice(keys, "wait", &waits) else {
            for (name, _) in OWNERS {
                keys.take(name);
            }
            return None;
        };
        Some(match wait {
            0 => WaitSpec::Approval {
                prompt: self.text(keys, "prompt"),
                on_timeout: {
                    let choices = [
                        ("fail", OnTimeout::Fail),
                        ("approve", OnTimeout::Approve),
                        ("deny", OnTimeout::Deny),
                    ];
                    self.choice(keys, "on_timeout", &choices)
                        .unwrap_or_default()
                },
                on_deny: {
                    let choices = [("fail", OnDeny::Fail), ("continue", OnDeny::Continue)];
                    self.choice(keys, "on_deny", &choices).unwrap_or_default()
                },
            },
            1 => WaitSpec::Signal {
                name: self.text(keys, "name").unwrap_or_default(),
            },
            _ => WaitSpec::Timer {
                lasts: self.span(keys, "for"),
                until: self.text(keys, "until"),
            },
        })
    }

    fn agent(&mut self, keys: &mut Keys<'_>) -> Option<Does> {
        let (step, node) = (keys.step, keys.take("agent")?);
        let file = match &node.is {
            Is::Table(_) => {
                return Some(Does::Agent {
                    agent: node.to_json(),
                });
            }
            Is::Text(file) => file,
            _ => {
                self.problem(
                    step,
                    "agent",
                    format!("expected a file, got {}", node.kind()),
                );
                return None;
            }
        };
        let path = self.path(step, "agent", file)?;
        let Some(agents) = self.files.agents else {
            self.problem(step, "agent", "this program has no agents");
            return None;
        };
        match agents.load(&path) {
            Ok(agent) => Some(Does::Agent { agent }),
            Err(Problems(problems)) => {
                self.problems.extend(problems);
                None
            }
        }
    }

    fn child(&mut self, keys: &mut Keys<'_>) -> Option<Does> {
        let (step, node) = (keys.step, keys.take("workflow")?);
        let (at, id) = step?;
        if self.files.depth == DEPTH_MAX {
            let message = format!("workflows inside workflows, deeper than {DEPTH_MAX}");
            self.problem(step, "workflow", message);
            return None;
        }
        self.files.depth += 1;
        let document = match &node.is {
            Is::Table(_) => Some(self.inline(at, id, node)),
            Is::Text(file) => {
                self.path(step, "workflow", file)
                    .and_then(|path| match self.files.read(&path) {
                        Ok(Ok(document)) => Some(document),
                        Ok(Err(problem)) => {
                            self.problems.push(problem);
                            None
                        }
                        Err(message) => {
                            self.problem(step, "workflow", message);
                            None
                        }
                    })
            }
            _ => {
                let message = format!("expected a file or a table, got {}", node.kind());
                self.problem(step, "workflow", message);
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
        self.places.children.insert(at, places);
        Some(Does::Workflow {
            workflow: Box::new(spec),
        })
    }

    /// A workflow that is written inside this one.
    fn inline(&mut self, at: usize, id: &str, node: &Node) -> Document {
        let places = Places {
            lines: node.lines(),
            ..self.places.child(at, id)
        };
        read(node, places, self.folder, self.files)
    }

    /// The path of a named file.
    fn path(&mut self, step: InStep<'_>, key: &str, file: &str) -> Option<PathBuf> {
        let path = self.folder.map(|folder| folder.join(file));
        if path.is_none() {
            self.problem(
                step,
                key,
                "this spec stands alone and cannot name files: write it inside",
            );
        }
        path
    }

    /// A schema, or the file that holds it.
    fn schema(
        &mut self,
        keys: &mut Keys<'_>,
        name: &'static str,
        file_name: &'static str,
    ) -> Option<Value> {
        let inside = keys.take(name).map(Node::to_json);
        let Some(file) = self.text(keys, file_name) else {
            return inside;
        };
        if inside.is_some() {
            let message = format!("expected `{name}` or `{file_name}`, not both");
            self.problem(keys.step, file_name, message);
            return None;
        }
        let path = self.path(keys.step, file_name, &file)?;
        let text = match text_of(&path) {
            Ok(text) => text,
            Err(message) => {
                self.problem(keys.step, file_name, message);
                return None;
            }
        };
        match Node::parse(&text, Format::of(&path), &path.display().to_string()) {
            Ok(node) => Some(node.to_json()),
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }
}
