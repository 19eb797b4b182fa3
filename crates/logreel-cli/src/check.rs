//! `logreel check`: reads a workflow with all it names and prints what it would do; runs nothing.

use std::path::PathBuf;
use std::time::Duration;

use logreel::workflow::{Does, OnDeny, OnError, OnTimeout, StepSpec, WaitSpec, Workflow};
use serde_json::{Value, json};

use crate::output::{Output, Paint};
use crate::table::{self, Cell, Column, left};
use crate::{spec, text};

const COLUMNS: &[Column] = &[
    left("STEP", 28),
    left("DOES", 16),
    left("EFFECT", 20),
    left("NEEDS", 24),
    left("HOW", usize::MAX),
];

#[derive(clap::Args)]
pub struct Args {
    /// A workflow file, .toml or .json
    #[arg(value_name = "SPEC")]
    spec: PathBuf,
}

pub fn run(args: Args, out: &mut Output) -> anyhow::Result<u8> {
    let workflow = spec::read(&args.spec)?;
    if out.json {
        let mut shown = of_workflow(&workflow);
        shown["variables"] = variables(&workflow)
            .map(|(name, set)| json!({"name": name, "set": set}))
            .collect();
        // Only a program of one's own registers Rust tasks.
        shown["tasks"] = workflow
            .tasks()
            .into_iter()
            .map(|name| json!({"name": name, "registered": false}))
            .collect();
        out.json_line(&shown)?;
        return Ok(0);
    }
    let name = out.paint(Paint::Strong, &text::one_line(workflow.name()));
    let steps = text::count(workflow.steps().len() as u64, "step");
    out.line(format!("{name}  {steps}  {}", workflow.digest()))?;
    let mut rows = Vec::new();
    add_rows(&workflow, 0, &mut rows);
    table::print(out, "  ", COLUMNS, &rows)?;
    for (name, set) in variables(&workflow) {
        let is = match set {
            true => "is set".to_owned(),
            false => out.paint(Paint::Bad, "is not set; it must be to run this"),
        };
        out.line(format!("${name} {is}"))?;
    }
    for task in workflow.tasks() {
        let missing = out.paint(
            Paint::Bad,
            "is a Rust task; only a program that registers it runs it",
        );
        out.line(format!("{} {missing}", text::one_line(&task)))?;
    }
    Ok(0)
}

fn variables(workflow: &Workflow) -> impl Iterator<Item = (String, bool)> {
    let names = workflow.variables().into_iter();
    names.map(|name| {
        let set = std::env::var_os(&name).is_some();
        (name, set)
    })
}

fn add_rows(workflow: &Workflow, depth: usize, rows: &mut Vec<Vec<Cell>>) {
    for &index in workflow.order() {
        let step = workflow.step(index);
        let effect = workflow.effect(index);
        let effect = match (&step.does, effect.is_declared) {
            (Does::Wait(_), _) => String::new(),
            (_, true) => effect.effect.as_str().to_owned(),
            (_, false) => format!("{} (default)", effect.effect.as_str()),
        };
        rows.push(vec![
            format!("{}{}", "  ".repeat(depth), text::one_line(&step.id)).into(),
            does(step).into(),
            effect.into(),
            needs(workflow, index).join(" ").into(),
            how(step).into(),
        ]);
        if let Some(child) = workflow.child(index) {
            add_rows(child, depth + 1, rows);
        }
    }
}

fn needs(workflow: &Workflow, index: usize) -> Vec<String> {
    let needs = workflow.needs(index).iter();
    needs
        .map(|need| text::one_line(&workflow.step(*need).id))
        .collect()
}

fn does(step: &StepSpec) -> String {
    match &step.does {
        Does::Run(_) => "run".to_owned(),
        Does::Agent { .. } => "agent".to_owned(),
        Does::Workflow { workflow } => format!("workflow {}", text::one_line(&workflow.name)),
        Does::Task { task } => format!("task {}", text::one_line(task)),
        Does::Wait(WaitSpec::Approval { .. }) => "wait approval".to_owned(),
        Does::Wait(WaitSpec::Signal { .. }) => "wait signal".to_owned(),
        Does::Wait(WaitSpec::Timer { .. }) => "wait timer".to_owned(),
    }
}

/// Everything else about a step, in a few words.
fn how(step: &StepSpec) -> String {
    let mut words = Vec::new();
    if let Some(when) = &step.when {
        words.push(format!("when {}", text::one_line(when)));
    }
    if let Some(map) = &step.map {
        let items = match map {
            Value::String(template) => text::one_line(template),
            list => text::one_line(&list.to_string()),
        };
        let at_once = step.concurrency.map(|n| format!(", {n} at once"));
        words.push(format!("map {items}{}", at_once.unwrap_or_default()));
    }
    if let Some(retry) = &step.retry {
        let backoff = retry.backoff.map(|(first, longest)| {
            format!(", {}..{}", text::duration(first), text::duration(longest))
        });
        let times = text::count(retry.attempts.max(1).into(), "attempt");
        words.push(format!("{times}{}", backoff.unwrap_or_default()));
    }
    if let Some(timeout) = step.timeout {
        words.push(format!("timeout {}", text::duration(timeout)));
    }
    match &step.does {
        Does::Run(run) => {
            if run.reconcile.is_some() {
                words.push("reconciled".to_owned());
            }
            words.push(text::one_line(&run.run));
        }
        Does::Wait(WaitSpec::Approval {
            prompt,
            on_timeout,
            on_deny,
        }) => {
            match on_timeout {
                OnTimeout::Fail => {}
                OnTimeout::Approve => words.push("then approved".to_owned()),
                OnTimeout::Deny => words.push("then denied".to_owned()),
            }
            if *on_deny == OnDeny::Continue {
                words.push("goes on when denied".to_owned());
            }
            words.extend(prompt.as_deref().map(text::one_line));
        }
        Does::Wait(WaitSpec::Signal { name }) => words.push(text::one_line(name)),
        Does::Wait(WaitSpec::Timer { lasts, until }) => {
            words.extend(lasts.map(text::duration));
            words.extend(until.as_deref().map(text::one_line));
        }
        Does::Agent { .. } | Does::Workflow { .. } | Does::Task { .. } => {}
    }
    if step.on_error == OnError::Continue {
        words.push("goes on when it fails".to_owned());
    }
    words.join("; ")
}

fn of_workflow(workflow: &Workflow) -> Value {
    let steps = workflow.order().iter().map(|index| {
        let step = workflow.step(*index);
        let effect = workflow.effect(*index);
        let wait = match &step.does {
            Does::Wait(WaitSpec::Approval { .. }) => Some("approval"),
            Does::Wait(WaitSpec::Signal { .. }) => Some("signal"),
            Does::Wait(WaitSpec::Timer { .. }) => Some("timer"),
            _ => None,
        };
        json!({
            "id": step.id,
            "kind": does(step).split(' ').next(),
            "needs": needs(workflow, *index),
            "effect": effect.effect.as_str(),
            "effect_declared": effect.is_declared,
            "when": step.when,
            "map": step.map,
            "concurrency": step.concurrency,
            "attempts": step.retry.as_ref().map_or(1, |retry| retry.attempts.max(1)),
            "timeout_ms": step.timeout.map(millis),
            "on_error": step.on_error,
            "wait": wait,
            "workflow": workflow.child(*index).map(of_workflow),
        })
    });
    json!({
        "name": workflow.name(),
        "spec_digest": workflow.digest(),
        "steps": steps.collect::<Vec<_>>(),
    })
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
