//! From files to specs: every key is known, every value has its type, every named file is inside.
//!
//! It goes on after a problem, so that a person sees all of them at once. What a file says about keys
//! and types is told by its [`Sheet`]; what does not fit together is told by `check`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use logreel::core::event::Effect;
use logreel::spec_file::{Format, Is, Keys, Node, OpenFiles, Problem, Problems, SPAN_MAX, Sheet};
use logreel::workflow::BudgetSpec;
use serde_json::{Map, Value};

use super::beside::Beside;
use super::check;
use super::overrides::{Overrides, Replaced};
use super::{
    AgentSpec, CommandTool, ContextSpec, McpSpec, PolicyDefault, PolicySpec, SubAgent, VerifySpec,
};

/// Agents inside agents: what is stored must be readable again.
const DEPTH_MAX: usize = 16;

const EFFECTS: [(&str, Effect); 3] = [
    ("read", Effect::Read),
    ("idempotent", Effect::Idempotent),
    ("write", Effect::Write),
];

impl AgentSpec {
    /// Reads a file, and every file it names.
    pub fn read(path: impl AsRef<Path>, beside: Beside<'_>) -> Result<Self, Problems> {
        Self::read_with_overrides(path, &Overrides::default(), beside)
    }

    /// Reads a file, and every file it names, with what a person said beside it.
    pub fn read_with_overrides(
        path: impl AsRef<Path>,
        overrides: &Overrides,
        beside: Beside<'_>,
    ) -> Result<Self, Problems> {
        let replaced = overrides.read(beside)?;
        Self::read_replaced(path.as_ref(), &replaced, beside)
    }

    pub(super) fn read_replaced(
        path: &Path,
        replaced: &Replaced<'_>,
        beside: Beside<'_>,
    ) -> Result<Self, Problems> {
        let mut files = Files {
            open: OpenFiles::default(),
            beside,
        };
        let document = files.agent(path, Some(replaced));
        let document =
            document.map_err(|message| Problem::of_file(path.display().to_string(), message))?;
        if document.problems.is_empty() {
            Ok(document.spec)
        } else {
            Err(Problems::in_order(document.problems))
        }
    }
}

/// An agent as far as it could be read.
struct Document {
    spec: AgentSpec,
    problems: Vec<Problem>,
}

struct Files<'a> {
    open: OpenFiles,
    beside: Beside<'a>,
}

impl Files<'_> {
    /// Reads the file of an agent; the error is for whoever named it.
    fn agent(&mut self, path: &Path, replaced: Option<&Replaced<'_>>) -> Result<Document, String> {
        if self.open.depth() == DEPTH_MAX {
            return Err(format!("agents inside agents, deeper than {DEPTH_MAX}"));
        }
        let text = self.open.enter(path)?;
        let document = self.parsed(path, &text, replaced);
        self.open.leave();
        Ok(document)
    }

    fn parsed(&mut self, path: &Path, text: &str, replaced: Option<&Replaced<'_>>) -> Document {
        let name = path.display().to_string();
        let node = match Node::parse(text, Format::of(path), &name) {
            Ok(node) => node,
            Err(problem) => {
                return Document {
                    spec: AgentSpec::default(),
                    problems: vec![problem],
                };
            }
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut reader = Reader {
            sheet: Sheet::of_file(&name, &node, folder),
            of_others: Vec::new(),
            files: self,
            has_other_model: replaced.is_some_and(Replaced::has_model),
        };
        let mut spec = reader.agent(&node);
        if let Some(replaced) = replaced {
            replaced.apply(&mut spec);
        }
        let Reader {
            mut sheet,
            of_others,
            ..
        } = reader;
        check::check(&spec, &mut sheet, self.beside);
        let mut problems = sheet.problems;
        problems.extend(of_others);
        Document { spec, problems }
    }
}

struct Reader<'a, 'f> {
    sheet: Sheet,
    /// Problems inside files that this one names.
    of_others: Vec<Problem>,
    files: &'a mut Files<'f>,
    /// Whether the model is replaced: the answers of the file's own are then not ours to read.
    has_other_model: bool,
}

impl Reader<'_, '_> {
    fn agent(&mut self, node: &Node) -> AgentSpec {
        let mut top = self.sheet.keys("", node);
        let keys = &mut top;
        let name = self.required(keys, "name", "what its runs are listed by");
        let description = self.sheet.text(keys, "description");
        let model = match self.files.beside.model {
            Some(model) if !keys.has("model") => model.to_owned(),
            _ => {
                let expected = "PROVIDER/MODEL or scripted/FILE, or `model` in the settings";
                self.required(keys, "model", expected)
            }
        };
        let script = self.script(keys, &model);
        let spec = AgentSpec {
            name,
            description,
            script,
            model,
            base_url: self.sheet.text(keys, "base_url"),
            api_key_env: self.sheet.text(keys, "api_key_env"),
            params: self.params(keys),
            system: self.system(keys),
            dir: self.sheet.text(keys, "dir"),
            tools: self.sheet.texts(keys, "tools"),
            agents: self.each(keys, "agents", Self::sub_agent),
            tool: self.each(keys, "tool", Self::command_tool),
            input_schema: self
                .sheet
                .json_or_file(keys, "input_schema", "input_schema_file"),
            output_schema: self
                .sheet
                .json_or_file(keys, "output_schema", "output_schema_file"),
            plan: self.sheet.yes(keys, "plan").unwrap_or(false),
            max_turns: self.sheet.whole(keys, "max_turns"),
            verify_rounds: self.sheet.whole(keys, "verify_rounds"),
            context: self.context(keys),
            budget: self.budget(keys).limits(),
            policy: self.policy(keys),
            verify: self.verify(keys),
            mcp: self.each(keys, "mcp", Self::mcp),
            env: self.sheet.text_table(keys, "env"),
            env_from: self.sheet.texts(keys, "env_from"),
            redact: self.sheet.texts(keys, "redact"),
            overrides: Overrides::default(),
        };
        self.sheet.no_others(top);
        spec
    }

    /// A text that must be there.
    fn required(&mut self, keys: &mut Keys<'_>, name: &'static str, expected: &str) -> String {
        if !keys.has(name) {
            let message = format!("is missing; expected {expected}");
            self.sheet.complain_of(keys, name, message);
        }
        let text = self.sheet.text(keys, name).unwrap_or_default();
        if text.trim().is_empty() && keys.has(name) && !self.told(keys, name) {
            let message = format!("is empty; expected {expected}");
            self.sheet.complain_of(keys, name, message);
        }
        text
    }

    /// Whether something was wrong with this key just now.
    fn told(&self, keys: &Keys<'_>, name: &str) -> bool {
        let key = keys.path(name);
        self.sheet.problems.last().is_some_and(|it| it.key == key)
    }

    /// The answers of a scripted model.
    fn script(&mut self, keys: &Keys<'_>, model: &str) -> Option<Vec<Value>> {
        let file = model.strip_prefix("scripted/")?;
        if self.has_other_model || file.is_empty() {
            return None;
        }
        let path = self.sheet.path(keys, "model", file)?;
        match script_of(&path) {
            Ok(script) => Some(script),
            Err(Unread::File(message)) => {
                self.sheet.complain_of(keys, "model", message);
                None
            }
            Err(Unread::Lines(problems)) => {
                self.of_others.extend(problems);
                None
            }
        }
    }

    fn params(&mut self, keys: &mut Keys<'_>) -> Map<String, Value> {
        let Some(node) = keys.take("params") else {
            return Map::new();
        };
        match node.to_json() {
            Value::Object(params) => params,
            _ => {
                let message = format!("expected a table, got {}", node.kind());
                self.sheet.complain("params", message);
                Map::new()
            }
        }
    }

    fn system(&mut self, keys: &mut Keys<'_>) -> Option<String> {
        let inside = self.sheet.text(keys, "system");
        let from_file = self.sheet.text_file(keys, "system_file");
        if keys.has("system") && keys.has("system_file") {
            let message = "expected `system` or `system_file`, not both";
            self.sheet.complain("system_file", message);
        }
        inside.or(from_file)
    }

    /// The tables in a table, by their names.
    fn each<T>(
        &mut self,
        keys: &mut Keys<'_>,
        name: &'static str,
        read: fn(&mut Self, &mut Keys<'_>) -> Option<T>,
    ) -> BTreeMap<String, T> {
        let mut found = BTreeMap::new();
        let Some(node) = keys.take(name) else {
            return found;
        };
        let Is::Table(fields) = &node.is else {
            let message = format!("expected tables (`[{name}.NAME]`), got {}", node.kind());
            self.sheet.complain(name, message);
            return found;
        };
        for field in fields {
            let path = format!("{name}.{}", field.name);
            let mut keys = self.sheet.keys(&path, &field.node);
            if !matches!(field.node.is, Is::Table(_)) {
                continue;
            }
            if let Some(value) = read(self, &mut keys) {
                found.insert(field.name.clone(), value);
            }
            self.sheet.no_others(keys);
        }
        found
    }

    fn sub_agent(&mut self, keys: &mut Keys<'_>) -> Option<SubAgent> {
        let description = self.sheet.text(keys, "description");
        if !keys.has("spec") {
            let message = "is missing; expected the agent's file";
            self.sheet.complain_of(keys, "spec", message);
        }
        let file = self.sheet.text(keys, "spec")?;
        let path = self.sheet.path(keys, "spec", &file)?;
        let Document { spec, problems } = self
            .files
            .agent(&path, None)
            .map_err(|message| self.sheet.complain_of(keys, "spec", message))
            .ok()?;
        let is_read = problems.is_empty();
        self.of_others.extend(problems);
        let description = description.or_else(|| spec.description.clone());
        if description.is_none() && is_read {
            let message = "is missing, here and in its file; expected what it is for";
            self.sheet.complain_of(keys, "description", message);
        }
        Some(SubAgent {
            description: description.unwrap_or_default(),
            spec: Box::new(spec),
        })
    }

    fn command_tool(&mut self, keys: &mut Keys<'_>) -> Option<CommandTool> {
        Some(CommandTool {
            run: self.required(keys, "run", "a command"),
            description: self.required(keys, "description", "what it does, for the model"),
            effect: self.sheet.choice(keys, "effect", &EFFECTS),
            schema: self.sheet.json_or_file(keys, "schema", "schema_file"),
            timeout: self.span(keys, "timeout"),
            reconcile: self.sheet.text(keys, "reconcile"),
        })
    }

    fn context(&mut self, keys: &mut Keys<'_>) -> Option<ContextSpec> {
        let node = keys.take("context")?;
        let mut keys = self.sheet.keys("context", node);
        let compact_at = self.sheet.whole(&mut keys, "compact_at");
        if !keys.has("compact_at") && matches!(node.is, Is::Table(_)) {
            let message = "is missing; expected a number of input tokens";
            self.sheet.complain("context.compact_at", message);
        }
        self.sheet.no_others(keys);
        Some(ContextSpec {
            compact_at: compact_at?,
        })
    }

    fn budget(&mut self, keys: &mut Keys<'_>) -> BudgetSpec {
        let mut budget = self.sheet.budget(keys);
        if budget.usd.is_some_and(|usd| !usd.is_finite() || usd < 0.0) {
            let message = "expected dollars, 0 or more";
            self.sheet.complain("budget.usd", message);
            budget.usd = None;
        }
        if budget.wall.is_some_and(|wall| wall > SPAN_MAX) {
            let message = "expected at most 100 years";
            self.sheet.complain("budget.wall", message);
        }
        budget
    }

    fn policy(&mut self, keys: &mut Keys<'_>) -> PolicySpec {
        let Some(node) = keys.take("policy") else {
            return PolicySpec::default();
        };
        let mut keys = self.sheet.keys("policy", node);
        let choices = [
            ("ask", PolicyDefault::Ask),
            ("allow", PolicyDefault::Allow),
            ("deny", PolicyDefault::Deny),
        ];
        let policy = PolicySpec {
            default: self.sheet.choice(&mut keys, "default", &choices),
            ask: self.sheet.texts(&mut keys, "ask"),
            allow: self.sheet.texts(&mut keys, "allow"),
            deny: self.sheet.texts(&mut keys, "deny"),
            no_ask: false,
        };
        self.sheet.no_others(keys);
        policy
    }

    fn verify(&mut self, keys: &mut Keys<'_>) -> Vec<VerifySpec> {
        let Some(node) = keys.take("verify") else {
            return Vec::new();
        };
        let Is::List(items) = &node.is else {
            let message = format!("expected a list (`[[verify]]`), got {}", node.kind());
            self.sheet.complain("verify", message);
            return Vec::new();
        };
        let mut checks = Vec::with_capacity(items.len());
        for (nth, item) in items.iter().enumerate() {
            let mut keys = self.sheet.keys(&format!("verify[{nth}]"), item);
            if !matches!(item.is, Is::Table(_)) {
                continue;
            }
            checks.push(VerifySpec {
                name: self.required(&mut keys, "name", "what the report calls it"),
                run: self.required(&mut keys, "run", "a command"),
                timeout: self.span(&mut keys, "timeout"),
                required: self.sheet.yes(&mut keys, "required").unwrap_or(true),
            });
            self.sheet.no_others(keys);
        }
        checks
    }

    fn mcp(&mut self, keys: &mut Keys<'_>) -> Option<McpSpec> {
        let (has_command, has_url) = (keys.has("command"), keys.has("url"));
        if has_command == has_url {
            let got = if has_url { "both" } else { "none" };
            let message = format!("expected exactly one of `command` and `url`; got {got}");
            self.sheet.complain_of(keys, "", message);
        }
        for (name, owner, there) in [
            ("headers", "`url`", has_url),
            ("env", "`command`", has_command),
            ("env_from", "`command`", has_command),
        ] {
            if keys.has(name) && !there && has_command != has_url {
                self.sheet
                    .complain_of(keys, name, format!("belongs to {owner}"));
            }
        }
        let command = self.sheet.texts(keys, "command");
        if has_command && command.is_empty() && !self.told(keys, "command") {
            let message = "is empty; expected a program and its arguments";
            self.sheet.complain_of(keys, "command", message);
        }
        Some(McpSpec {
            command,
            url: self.sheet.text(keys, "url"),
            headers: self.sheet.text_table(keys, "headers"),
            env: self.sheet.text_table(keys, "env"),
            env_from: self.sheet.texts(keys, "env_from"),
            timeout: self.span(keys, "timeout"),
            tools: self.sheet.texts(keys, "tools"),
            effects: self.effects(keys),
            trust_annotations: self.sheet.yes(keys, "trust_annotations").unwrap_or(false),
        })
    }

    fn effects(&mut self, keys: &mut Keys<'_>) -> BTreeMap<String, Effect> {
        let mut effects = BTreeMap::new();
        let said = self.sheet.text_table(keys, "effects");
        for (pattern, effect) in said {
            match EFFECTS.iter().find(|(name, _)| *name == effect) {
                Some((_, effect)) => drop(effects.insert(pattern, *effect)),
                None => {
                    let key = format!("effects.{pattern}");
                    let message =
                        format!("expected one of read, idempotent, write, got {effect:?}");
                    self.sheet.complain_of(keys, &key, message);
                }
            }
        }
        effects
    }

    fn span(&mut self, keys: &mut Keys<'_>, name: &'static str) -> Option<Duration> {
        let span = self.sheet.span(keys, name)?;
        let problem = match span {
            Duration::ZERO => "expected more than no time",
            span if span > SPAN_MAX => "expected at most 100 years",
            _ => return Some(span),
        };
        self.sheet.complain_of(keys, name, problem);
        None
    }
}

/// Why there are no answers.
pub(super) enum Unread {
    /// The file cannot be read.
    File(String),
    /// What is in it.
    Lines(Vec<Problem>),
}

/// The answers in a file, a JSON object a line.
pub(super) fn script_of(path: &Path) -> Result<Vec<Value>, Unread> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Unread::File(format!("cannot read {name}: {error}")))?;
    let (mut script, mut problems) = (Vec::new(), Vec::new());
    for (nth, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let message = match serde_json::from_str::<Value>(line) {
            Ok(answer) if answer.is_object() => {
                script.push(answer);
                continue;
            }
            Ok(_) => "expected a JSON object: an answer, or an error".to_owned(),
            Err(error) => {
                let message = error.to_string();
                let what = message.split(" at line").next().unwrap_or_default();
                format!("expected a JSON object: {what}")
            }
        };
        problems.push(Problem {
            file: Some(name.clone()),
            line: Some(nth + 1),
            column: None,
            key: String::new(),
            message,
        });
    }
    match problems.is_empty() {
        true => Ok(script),
        false => Err(Unread::Lines(problems)),
    }
}
