//! `logreel check`: reads a workflow or an agent with all it names and prints what it would do; runs nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use logreel::workflow::{Does, OnDeny, OnError, OnTimeout, StepSpec, WaitSpec, Workflow};
use logreel_agent::{AgentSpec, Overrides};
use serde_json::{Value, json};

use crate::output::{Output, Paint};
use crate::spec::Spec;
use crate::store::Place;
use crate::table::{self, Cell, Column, left};
use crate::{agents, check_agent, spec, text};

const COLUMNS: &[Column] = &[
    left("STEP", 28),
    left("DOES", 16),
    left("EFFECT", 20),
    left("NEEDS", usize::MAX),
];

#[derive(clap::Args)]
pub struct Args {
    /// A workflow's or an agent's file, .toml or .json
    #[arg(value_name = "SPEC")]
    spec: PathBuf,
}

pub fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let agents = agents::agents(&place.settings()?);
    let workflow = match spec::read(&args.spec, &Overrides::default(), &agents)? {
        Spec::Workflow(workflow) => workflow,
        Spec::Agent(agent) => return check_agent::run(&agent, &agents, out),
    };
    if out.json {
        let mut shown = of_workflow(&workflow);
        shown["variables"] = check_agent::variables(variables(&workflow))
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
    let (mut rows, mut details) = (Vec::new(), Vec::new());
    add_rows(&workflow, 0, &mut rows, &mut details);
    let mut lines = table::lines(out, "  ", COLUMNS, &rows).into_iter();
    out.line(lines.next().unwrap_or_default())?;
    for (line, details) in lines.zip(details) {
        out.line(line)?;
        for detail in details {
            let line = text::fit(&format!("      {detail}"), out.line_width());
            out.line(out.paint(Paint::Dim, &line))?;
        }
    }
    for (name, set) in check_agent::variables(variables(&workflow)) {
        out.line(check_agent::variable(&name, set, out))?;
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

/// What must be set, for the workflow and for the agents in it.
fn variables(workflow: &Workflow) -> BTreeSet<String> {
    let mut names = workflow.variables();
    add_variables_of_agents(workflow, &mut names);
    names
}

fn add_variables_of_agents(workflow: &Workflow, names: &mut BTreeSet<String>) {
    for &index in workflow.order() {
        if let Some(agent) = agent_of(workflow.step(index)) {
            names.extend(agent.variables());
        }
        if let Some(child) = workflow.child(index) {
            add_variables_of_agents(child, names);
        }
    }
}

fn agent_of(step: &StepSpec) -> Option<AgentSpec> {
    match &step.does {
        Does::Agent { agent } => AgentSpec::from_json(agent).ok(),
        _ => None,
    }
}

fn add_rows(
    workflow: &Workflow,
    depth: usize,
    rows: &mut Vec<Vec<Cell>>,
    details: &mut Vec<Vec<String>>,
) {
    for &index in workflow.order() {
        let step = workflow.step(index);
        let effect = workflow.effect(index);
        let effect = match (&step.does, effect.is_declared) {
            (Does::Wait(_), _) => String::new(),
            (_, true) => effect.effect.as_str().to_owned(),
            (_, false) => text::default_effect(),
        };
        rows.push(vec![
            format!("{}{}", "  ".repeat(depth), text::one_line(&step.id)).into(),
            does(step).into(),
            effect.into(),
            needs(workflow, index).join(" ").into(),
        ]);
        let indent = "  ".repeat(depth);
        let lines = how(step).into_iter().map(|line| format!("{indent}{line}"));
        details.push(lines.collect());
        if let Some(child) = workflow.child(index) {
            add_rows(child, depth + 1, rows, details);
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
        Does::Agent { agent } => {
            let name = agent.get("name").and_then(Value::as_str);
            format!("agent {}", text::one_line(name.unwrap_or_default()))
        }
        Does::Workflow { workflow } => format!("workflow {}", text::one_line(&workflow.name)),
        Does::Task { task } => format!("task {}", text::one_line(task)),
        Does::Wait(WaitSpec::Approval { .. }) => "wait approval".to_owned(),
        Does::Wait(WaitSpec::Signal { .. }) => "wait signal".to_owned(),
        Does::Wait(WaitSpec::Timer { .. }) => "wait timer".to_owned(),
    }
}

/// Everything else about a step, a line each.
fn how(step: &StepSpec) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(when) = &step.when {
        lines.push(format!("when {}", text::one_line(when)));
    }
    if let Some(map) = &step.map {
        let items = match map {
            Value::String(template) => text::one_line(template),
            list => text::one_line(&list.to_string()),
        };
        let at_once = step.concurrency.map(|n| format!(", {n} at once"));
        lines.push(format!("map {items}{}", at_once.unwrap_or_default()));
    }
    match &step.does {
        Does::Run(run) => {
            lines.push(format!("run {}", text::one_line(&run.run)));
            let reconcile = run.reconcile.as_deref().map(text::one_line);
            lines.extend(reconcile.map(|command| format!("reconcile {command}")));
        }
        Does::Wait(WaitSpec::Approval { prompt, .. }) => {
            lines.extend(
                prompt
                    .as_deref()
                    .map(|it| format!("prompt {}", text::one_line(it))),
            );
        }
        Does::Wait(WaitSpec::Signal { name }) => {
            lines.push(format!("name {}", text::one_line(name)))
        }
        Does::Wait(WaitSpec::Timer { lasts, until }) => {
            lines.extend(lasts.map(|lasts| format!("for {}", text::span(lasts))));
            lines.extend(
                until
                    .as_deref()
                    .map(|it| format!("until {}", text::one_line(it))),
            );
        }
        Does::Agent { .. } | Does::Workflow { .. } | Does::Task { .. } => {}
    }
    if let Some(retry) = &step.retry {
        let backoff = retry.backoff.map(|(first, longest)| {
            format!(", {}..{} apart", text::span(first), text::span(longest))
        });
        let times = text::count(retry.attempts.max(1).into(), "attempt");
        lines.push(format!("{times}{}", backoff.unwrap_or_default()));
    }
    if let Some(timeout) = step.timeout {
        let then = match &step.does {
            Does::Wait(WaitSpec::Approval {
                on_timeout: OnTimeout::Approve,
                ..
            }) => ", then approved",
            Does::Wait(WaitSpec::Approval {
                on_timeout: OnTimeout::Deny,
                ..
            }) => ", then denied",
            _ => "",
        };
        lines.push(format!("timeout {}{then}", text::span(timeout)));
    }
    if let Does::Wait(WaitSpec::Approval {
        on_deny: OnDeny::Continue,
        ..
    }) = &step.does
    {
        lines.push("goes on when denied".to_owned());
    }
    if step.on_error == OnError::Continue {
        lines.push("goes on when it fails".to_owned());
    }
    lines
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
