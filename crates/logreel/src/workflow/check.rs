//! Whether a spec makes sense: ids and needs, templates and what they may see, schemas.
//!
//! It does not stop at the first problem, and it does not tell what only follows from another one.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use logreel_core::event::Effect;
use logreel_core::{StepId, Timestamp};
use serde_json::Value;

use super::graph::Workflow;
use super::schema::Schema;
use super::spec::{Does, StepSpec, WaitSpec, WorkflowSpec};
use super::{reach, scan, template};
use crate::spec_file::{InStep, Places, Problem, Problems, SPAN_MAX, is_variable};

/// What was found out on the way.
pub(super) struct Checked {
    pub needs: Vec<Vec<usize>>,
    pub dependents: Vec<Vec<usize>>,
    pub order: Vec<usize>,
    pub references: Vec<Vec<usize>>,
    pub output_references: Vec<usize>,
    pub children: HashMap<usize, Workflow>,
    pub input_schema: Option<Schema>,
    pub output_schemas: HashMap<usize, Schema>,
}

pub(super) fn check(spec: &WorkflowSpec, places: &Places) -> Result<Checked, Problems> {
    let mut checker = Checker {
        spec,
        places,
        index: HashMap::new(),
        problems: Vec::new(),
        distant: Vec::new(),
    };
    let checked = checker.check();
    match checked {
        Some(checked) if checker.problems.is_empty() => Ok(checked),
        _ => Err(Problems(checker.problems)),
    }
}

struct Checker<'a> {
    spec: &'a WorkflowSpec,
    places: &'a Places,
    index: HashMap<&'a str, usize>,
    problems: Vec<Problem>,
    /// A template's look at a step that its own step does not need directly.
    distant: Vec<Distant>,
}

struct Distant {
    step: usize,
    key: String,
    seen: usize,
}

/// What the templates of a key may see.
#[derive(Clone, Copy)]
struct Sees<'a> {
    in_step: InStep<'a>,
    /// `item` and `index`; `Err` says why not.
    item: Result<(), &'static str>,
    needs: Option<&'a HashSet<usize>>,
}

const NO_MAP: &str = "only a step with `map` has items";
const BEFORE_ITEMS: &str = "it is decided once, before there are items";
const AFTER_ITEMS: &str = "the output is made when all steps have ended";

impl<'a> Checker<'a> {
    fn check(&mut self) -> Option<Checked> {
        let spec = self.spec;
        self.top_level();
        self.ids();
        let needs = self.needs();
        let mut dependents = vec![Vec::new(); needs.len()];
        for (step, needs) in needs.iter().enumerate() {
            for need in needs {
                dependents[*need].push(step);
            }
        }
        let order = match reach::order(&needs, &dependents) {
            Ok(order) => Some(order),
            Err(circle) => {
                self.circle(&circle);
                None
            }
        };

        let mut references = Vec::with_capacity(spec.steps.len());
        let mut output_schemas = HashMap::new();
        let mut children = HashMap::new();
        for (at, step) in spec.steps.iter().enumerate() {
            if self.places.broken.contains(&at) {
                references.push(Vec::new());
                continue;
            }
            let in_step = Some((at, step.id.as_str()));
            self.plain_keys(in_step, step);
            self.spans(in_step, step);
            references.push(self.templates(in_step, step, &needs[at]));
            if let Some(schema) = &step.output_schema {
                output_schemas.extend(
                    self.schema(in_step, "output_schema", schema)
                        .map(|s| (at, s)),
                );
            }
            if let Does::Workflow { workflow } = &step.does {
                let places = self.places.child(at, &step.id);
                match Workflow::checked((**workflow).clone(), &places) {
                    Ok(child) => drop(children.insert(at, child)),
                    Err(Problems(problems)) => self.problems.extend(problems),
                }
            }
        }
        let sees = Sees {
            in_step: None,
            item: Err(AFTER_ITEMS),
            needs: None,
        };
        let mut output_references = Vec::new();
        if let Some(output) = &spec.output {
            self.template_value("output", output, sees, &mut output_references);
        }
        let order = order?;
        self.distant(&needs, &order);
        Some(Checked {
            input_schema: spec
                .input_schema
                .as_ref()
                .and_then(|schema| self.schema(None, "input_schema", schema)),
            needs,
            dependents,
            order,
            references,
            output_references: sorted(output_references),
            children,
            output_schemas,
        })
    }

    fn problem(&mut self, step: InStep<'_>, key: &str, message: impl Into<String>) {
        self.problems.push(self.places.problem(step, key, message));
    }

    fn top_level(&mut self) {
        let spec = self.spec;
        let is_readable = |key| !self.places.unreadable.contains(key);
        let (name_read, steps_read) = (is_readable("name"), is_readable("step"));
        if spec.name.trim().is_empty() && name_read {
            self.problem(None, "name", "expected a name");
        }
        self.no_template(None, "name", &spec.name);
        if spec.steps.is_empty() && steps_read {
            self.problem(None, "step", "expected at least one step");
        }
        if let Some(limit) = &spec.limit {
            self.no_template(None, "limit.key", &limit.key);
            if limit.key.is_empty() {
                self.problem(
                    None,
                    "limit.key",
                    "expected a name for what is counted together",
                );
            }
            if limit.max == 0 {
                self.problem(
                    None,
                    "limit.max",
                    "expected at least 1: with 0, no run could ever start",
                );
            }
        }
        if spec
            .budget
            .usd
            .is_some_and(|usd| !usd.is_finite() || usd < 0.0)
        {
            self.problem(None, "budget.usd", "expected dollars, 0 or more");
        }
        if let Some(wall) = spec.budget.wall {
            self.span(None, "budget.wall", wall);
        }
    }

    fn ids(&mut self) {
        let spec = self.spec;
        for (at, step) in spec.steps.iter().enumerate() {
            let in_step = Some((at, step.id.as_str()));
            if step.id.is_empty() {
                if !self.places.broken.contains(&at) {
                    self.problem(in_step, "id", "expected a name");
                }
                continue;
            }
            if let Some(first) = self.index.get(step.id.as_str()) {
                let message = format!(
                    "{} is the id of two steps, the {} and the {}",
                    step.id,
                    ordinal(first + 1),
                    ordinal(at + 1)
                );
                self.problem(in_step, "id", message);
                continue;
            }
            self.index.insert(&step.id, at);
            self.no_template(in_step, "id", &step.id);
            if let Some(bad) = step.id.chars().find(|c| matches!(c, '/' | '[' | ']')) {
                let message =
                    format!("`{bad}` is not allowed in an id: items are shown as ID[KEY]");
                self.problem(in_step, "id", message);
            } else if let Err(error) = StepId::from_parts([&step.id]) {
                self.problem(in_step, "id", error.to_string());
            }
        }
    }

    fn needs(&mut self) -> Vec<Vec<usize>> {
        let spec = self.spec;
        let mut all = Vec::with_capacity(spec.steps.len());
        for (at, step) in spec.steps.iter().enumerate() {
            let in_step = Some((at, step.id.as_str()));
            let mut seen = HashSet::new();
            let mut needs = Vec::with_capacity(step.needs.len());
            for (nth, need) in step.needs.iter().enumerate() {
                let key = || format!("needs[{nth}]");
                match self.index.get(need.as_str()) {
                    None => self.problem(in_step, &key(), self.unknown_step(need)),
                    Some(_) if *need == step.id => {
                        self.problem(in_step, &key(), "a step cannot need itself");
                    }
                    Some(other) if seen.insert(*other) => needs.push(*other),
                    Some(_) => self.problem(in_step, &key(), format!("{need} is named twice")),
                }
            }
            all.push(needs);
        }
        all
    }

    fn unknown_step(&self, id: &str) -> String {
        const NAMED_MAX: usize = 10;
        let ids = self.spec.steps.iter().map(|step| step.id.as_str());
        let named: Vec<&str> = ids.filter(|id| !id.is_empty()).take(NAMED_MAX).collect();
        let more = if self.spec.steps.len() > NAMED_MAX {
            ", …"
        } else {
            ""
        };
        format!(
            "there is no step {id}; expected one of {}{more}",
            named.join(", ")
        )
    }

    fn circle(&mut self, circle: &[usize]) {
        let id = |at: &usize| self.spec.steps[*at].id.as_str();
        let Some(first) = circle.first() else { return };
        let path: Vec<&str> = circle.iter().chain([first]).map(id).collect();
        let message = format!("steps need each other in a circle: {}", path.join(" -> "));
        self.problem(Some((*first, id(first))), "needs", message);
    }

    /// Keys that are taken as they are.
    fn plain_keys(&mut self, in_step: InStep<'_>, step: &StepSpec) {
        for (nth, name) in step.env_from.iter().enumerate() {
            if !is_variable(name) {
                let message = format!("expected the name of a variable, got {name:?}");
                self.problem(in_step, &format!("env_from[{nth}]"), message);
            }
        }
        for (name, value) in &step.env {
            let key = format!("env.{name}");
            if !is_variable(name) {
                self.problem(in_step, &key, "expected the name of a variable");
            }
            if let Err(rest) = scan::variables(value) {
                let message = format!("expected `${{NAME}}`, got {rest:?}");
                self.problem(in_step, &key, message);
            }
        }
        if let Some(dir) = &step.dir {
            self.no_template(in_step, "dir", dir);
        }
        if step.map.is_none() {
            for (key, is_set) in [
                ("map_key", step.map_key.is_some()),
                ("concurrency", step.concurrency.is_some()),
            ] {
                if is_set {
                    self.problem(in_step, key, "belongs to a step with `map`");
                }
            }
        }
        match &step.does {
            Does::Run(command) => {
                self.command(in_step, "run", &command.run);
                if let Some(reconcile) = &command.reconcile {
                    self.command(in_step, "reconcile", reconcile);
                    if step.effect != Some(Effect::Write) {
                        let message =
                            "needs `effect = \"write\"`: only an interrupted write is asked about";
                        self.problem(in_step, "reconcile", message);
                    }
                }
                if let Some(stream) = &command.stream {
                    self.no_template(in_step, "stream", stream);
                }
            }
            Does::Task { task } => self.name(in_step, "task", task),
            Does::Wait(WaitSpec::Signal { name }) => self.name(in_step, "name", name),
            Does::Wait(WaitSpec::Timer { lasts, until }) => {
                if lasts.is_some() == until.is_some() {
                    let message = "a timer needs exactly one of `for` and `until`";
                    self.problem(in_step, "wait", message);
                }
                let plain = until.as_ref().filter(|until| !scan::has_tags(until));
                if let Some(until) = plain
                    && until.parse::<Timestamp>().is_err()
                {
                    let message =
                        format!("expected a time like 2030-01-31T08:00:00Z, got {until:?}");
                    self.problem(in_step, "until", message);
                }
            }
            Does::Wait(WaitSpec::Approval { .. }) | Does::Agent { .. } | Does::Workflow { .. } => {}
        }
    }

    fn command(&mut self, in_step: InStep<'_>, key: &str, command: &str) {
        if command.trim().is_empty() {
            self.problem(in_step, key, "expected a command");
        }
        if command.contains("{{") || command.contains("{%") {
            let message = "takes no templates, so that data cannot become shell text: pass it as stdin \
                           (`input`) or in `env`; braces that the command itself needs go into a script";
            self.problem(in_step, key, message);
        }
    }

    fn name(&mut self, in_step: InStep<'_>, key: &str, name: &str) {
        if name.is_empty() {
            self.problem(in_step, key, "expected a name");
        }
        self.no_template(in_step, key, name);
    }

    fn no_template(&mut self, in_step: InStep<'_>, key: &str, text: &str) {
        if text.contains("{{") || text.contains("{%") {
            let takes = "input, env, prompt, when, map, map_key, until and output do";
            self.problem(in_step, key, format!("takes no templates; {takes}"));
        }
    }

    fn spans(&mut self, in_step: InStep<'_>, step: &StepSpec) {
        if let Some(timeout) = step.timeout {
            if timeout.is_zero() {
                self.problem(in_step, "timeout", "expected more than 0");
            }
            self.span(in_step, "timeout", timeout);
        }
        if let Some((first, longest)) = step.retry.as_ref().and_then(|retry| retry.backoff) {
            if first > longest {
                let message = "the first wait is longer than the longest one";
                self.problem(in_step, "retry.backoff", message);
            }
            self.span(in_step, "retry.backoff", first);
            self.span(in_step, "retry.backoff", longest);
        }
        if let Does::Wait(WaitSpec::Timer {
            lasts: Some(lasts), ..
        }) = step.does
        {
            self.span(in_step, "for", lasts);
        }
    }

    fn span(&mut self, in_step: InStep<'_>, key: &str, span: Duration) {
        if span > SPAN_MAX {
            self.problem(in_step, key, "expected at most 100 years");
        } else if !span.subsec_nanos().is_multiple_of(1_000_000) {
            self.problem(in_step, key, "expected whole milliseconds");
        }
    }

    fn schema(&mut self, in_step: InStep<'_>, key: &str, schema: &Value) -> Option<Schema> {
        Schema::compile(schema)
            .map_err(|error| self.problem(in_step, key, error.to_string()))
            .ok()
    }

    fn templates(&mut self, in_step: InStep<'_>, step: &StepSpec, needs: &[usize]) -> Vec<usize> {
        let needs = needs.iter().copied().collect();
        let item = if step.map.is_some() {
            Ok(())
        } else {
            Err(NO_MAP)
        };
        let sees = Sees {
            in_step,
            item,
            needs: Some(&needs),
        };
        let before_items = Sees {
            item: item.and(Err(BEFORE_ITEMS)),
            ..sees
        };
        let mut seen = Vec::new();
        if let Some(when) = &step.when {
            if !scan::has_tags(when) && !matches!(when.trim(), "true" | "false") {
                let message = format!("expected a template like \"{{{{ {} }}}}\"", when.trim());
                self.problem(in_step, "when", message);
            }
            self.template("when", when, before_items, &mut seen);
        }
        if let Some(map) = &step.map {
            let gives_list = match map {
                Value::Array(_) => true,
                Value::String(text) => scan::only_expression(text).is_some(),
                _ => false,
            };
            if !gives_list {
                let message = "expected a list, or one \"{{ expression }}\" that gives a list";
                self.problem(in_step, "map", message);
            }
            self.template_value("map", map, before_items, &mut seen);
        }
        if let Some(map_key) = &step.map_key {
            self.template("map_key", map_key, sees, &mut seen);
        }
        if let Some(input) = &step.input {
            self.template_value("input", input, sees, &mut seen);
        }
        for (name, value) in &step.env {
            self.template(&format!("env.{name}"), value, sees, &mut seen);
        }
        match &step.does {
            Does::Wait(WaitSpec::Approval {
                prompt: Some(prompt),
                ..
            }) => {
                self.template("prompt", prompt, sees, &mut seen);
            }
            Does::Wait(WaitSpec::Timer {
                until: Some(until), ..
            }) => {
                self.template("until", until, sees, &mut seen);
            }
            _ => {}
        }
        sorted(seen)
    }

    fn template_value(&mut self, key: &str, value: &Value, sees: Sees<'_>, seen: &mut Vec<usize>) {
        match value {
            Value::String(text) => self.template(key, text, sees, seen),
            Value::Array(items) => {
                for (nth, item) in items.iter().enumerate() {
                    self.template_value(&format!("{key}[{nth}]"), item, sees, seen);
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    self.template_value(&format!("{key}.{name}"), field, sees, seen);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn template(&mut self, key: &str, text: &str, sees: Sees<'_>, seen: &mut Vec<usize>) {
        if !scan::has_tags(text) {
            return;
        }
        if let Err(message) = template::parse(text) {
            self.problem(sees.in_step, key, message);
            return;
        }
        for look in scan::looks(text) {
            let path: Vec<&str> = look.path.iter().map(String::as_str).collect();
            match (look.root.as_str(), path.as_slice()) {
                ("input", _) | ("run", ["id", ..]) => {}
                ("run", _) => self.problem(sees.in_step, key, "of the run, only `run.id` is known"),
                ("item" | "index", _) => {
                    if let Err(why) = sees.item {
                        let message = format!("`{}` is not known here: {why}", look.root);
                        self.problem(sees.in_step, key, message);
                    }
                }
                ("steps", []) => {
                    let message =
                        "expected `steps.ID` or `steps[\"ID\"]`, so that it is known which step";
                    self.problem(sees.in_step, key, message);
                }
                ("steps", [id, rest @ ..]) => {
                    if let Some(field) = rest.first()
                        && !template::OF_A_STEP.contains(field)
                    {
                        let known = template::OF_A_STEP.join(", ");
                        let message = format!("a step has no `{field}`; expected one of {known}");
                        self.problem(sees.in_step, key, message);
                    }
                    self.look_at_step(key, id, sees, seen);
                }
                (other, _) => {
                    let known = template::ROOTS.join(", ");
                    let message = format!("`{other}` is not known; expected one of {known}");
                    self.problem(sees.in_step, key, message);
                }
            }
        }
    }

    fn look_at_step(&mut self, key: &str, id: &str, sees: Sees<'_>, seen: &mut Vec<usize>) {
        let Some(other) = self.index.get(id).copied() else {
            self.problem(sees.in_step, key, self.unknown_step(id));
            return;
        };
        seen.push(other);
        if let (Some((step, _)), Some(needs)) = (sees.in_step, sees.needs)
            && !needs.contains(&other)
        {
            let key = key.to_owned();
            self.distant.push(Distant {
                step,
                key,
                seen: other,
            });
        }
    }

    /// A template sees what its step needs, or what that needs: all else might not have ended.
    fn distant(&mut self, needs: &[Vec<usize>], order: &[usize]) {
        let distant = std::mem::take(&mut self.distant);
        let questions: Vec<_> = distant.iter().map(|look| (look.step, look.seen)).collect();
        let missing: HashSet<_> = reach::not_behind(&questions, needs, order)
            .into_iter()
            .collect();
        for Distant { step, key, seen } in distant {
            if !missing.contains(&(step, seen)) {
                continue;
            }
            let id = &self.spec.steps[seen].id;
            let message = if step == seen {
                "a step cannot see its own output".to_owned()
            } else {
                format!("{id} may not have ended when this step starts: add it to needs")
            };
            self.problem(Some((step, &self.spec.steps[step].id)), &key, message);
        }
    }
}

fn sorted(mut indexes: Vec<usize>) -> Vec<usize> {
    indexes.sort_unstable();
    indexes.dedup();
    indexes
}

fn ordinal(number: usize) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}
