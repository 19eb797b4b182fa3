//! `logreel check` of an agent: its model, tools, rules, limits, checks and the agents inside it.

use std::collections::BTreeSet;
use std::time::Duration;

use logreel::core::event::Budget;
use logreel_agent::{AgentSpec, Agents, ListedTool, McpSpec};
use serde_json::{Value, json};

use crate::output::{Output, Paint};
use crate::table::{self, Cell, Column, left};
use crate::text;

const COLUMNS: &[Column] = &[
    left("TOOL", 40),
    left("EFFECT", 20),
    left("POLICY", usize::MAX),
];

pub fn run(agent: &AgentSpec, agents: &Agents, out: &mut Output) -> anyhow::Result<u8> {
    if out.json {
        let mut shown = of_agent(agent, agents);
        shown["variables"] = variables(agent.variables())
            .map(|(name, set)| json!({"name": name, "set": set}))
            .collect();
        out.json_line(&shown)?;
        return Ok(0);
    }
    let name = out.paint(Paint::Strong, &text::one_line(&agent.name));
    out.line(format!("{name}  agent  {}", agent.digest()))?;
    print(agent, agents, "  ", out)?;
    for (name, set) in variables(agent.variables()) {
        out.line(variable(&name, set, out))?;
    }
    Ok(0)
}

/// Each variable, and whether it is set here.
pub fn variables(names: BTreeSet<String>) -> impl Iterator<Item = (String, bool)> {
    names.into_iter().map(|name| {
        let set = std::env::var_os(&name).is_some();
        (name, set)
    })
}

pub fn variable(name: &str, set: bool, out: &Output) -> String {
    let is = match set {
        true => "is set".to_owned(),
        false => out.paint(Paint::Bad, "is not set; it must be to run this"),
    };
    format!("${name} {is}")
}

fn print(agent: &AgentSpec, agents: &Agents, indent: &str, out: &mut Output) -> anyhow::Result<()> {
    for line in about(agent, agents) {
        let line = text::fit(&format!("{indent}{line}"), out.line_width());
        out.line(line)?;
    }
    print_tools(&agent.listed_tools(), indent, out)?;
    for (name, sub_agent) in &agent.agents {
        let spec = &sub_agent.spec;
        let line = format!(
            "{indent}agent {}  {}",
            text::one_line(name),
            text::one_line(&sub_agent.description)
        );
        out.line(text::fit(&line, out.line_width()))?;
        print(spec, agents, &format!("{indent}  "), out)?;
    }
    Ok(())
}

fn print_tools(tools: &[ListedTool], indent: &str, out: &mut Output) -> anyhow::Result<()> {
    if tools.is_empty() {
        out.line(format!("{indent}no tools"))?;
        return Ok(());
    }
    let row = |tool: &ListedTool| -> Vec<Cell> {
        let effect = match (tool.effect, tool.declared) {
            (None, _) => "a run of its own".to_owned(),
            (Some(effect), true) => effect.as_str().to_owned(),
            (Some(effect), false) => format!("{} (default)", effect.as_str()),
        };
        let verdict = tool.verdict.as_str();
        vec![
            text::one_line(&tool.name).into(),
            effect.into(),
            verdict.into(),
        ]
    };
    let rows: Vec<Vec<Cell>> = tools.iter().map(row).collect();
    let mut lines = table::lines(out, indent, COLUMNS, &rows).into_iter();
    out.line(lines.next().unwrap_or_default())?;
    for (line, tool) in lines.zip(tools) {
        out.line(line)?;
        for (verdict, pattern) in &tool.arguments {
            let line = format!(
                "{indent}    {} {}",
                verdict.as_str(),
                text::one_line(pattern)
            );
            let line = text::fit(&line, out.line_width());
            out.line(out.paint(Paint::Dim, &line))?;
        }
    }
    Ok(())
}

/// Everything but the tools, a line each.
fn about(agent: &AgentSpec, agents: &Agents) -> Vec<String> {
    let price = match (agent.script.as_ref(), agents.is_priced(&agent.model)) {
        (Some(script), _) => text::count(script.len() as u64, "answer"),
        (None, true) => "price known".to_owned(),
        (None, false) => "price unknown".to_owned(),
    };
    let mut lines = vec![format!("model {} ({price})", text::one_line(&agent.model))];
    let at = agent.base_url.as_deref().map(text::one_line);
    lines.extend(at.map(|url| format!("at {url}")));
    lines.extend(limits(&agent.budget).map(|limits| format!("budget {limits}")));
    let mut turns = Vec::new();
    turns.extend(agent.plan.then(|| "plans first".to_owned()));
    turns.push(format!(
        "up to {}",
        text::count(agent.turns_max().into(), "turn")
    ));
    if !agent.verify.is_empty() {
        let rounds = text::count(agent.verify_rounds_max().into(), "round");
        turns.push(format!("{rounds} of checks"));
    }
    lines.push(turns.join(", "));
    for check in &agent.verify {
        let timeout = check
            .timeout
            .map(|it| format!(", {} at most", text::span(it)));
        let required = if check.required { "" } else { ", not required" };
        lines.push(format!(
            "verify {}: {}{}{required}",
            text::one_line(&check.name),
            text::one_line(&check.run),
            timeout.unwrap_or_default()
        ));
    }
    if agent.policy.no_ask {
        lines.push("asks are denials".to_owned());
    }
    for (name, server) in &agent.mcp {
        lines.push(format!("mcp {}: {}", text::one_line(name), reached(server)));
    }
    lines
}

fn reached(server: &McpSpec) -> String {
    match &server.url {
        Some(url) => text::one_line(url),
        None => text::one_line(&server.command.join(" ")),
    }
}

/// The limits there are, in words.
fn limits(budget: &Budget) -> Option<String> {
    let dollars = |micros: u64| format!("${}.{:02}", micros / 1_000_000, micros / 10_000 % 100);
    let limits: Vec<String> = [
        budget.tokens.map(|n| text::count(n, "token")),
        budget.usd_micros.map(dollars),
        budget
            .wall_ms
            .map(|ms| text::span(Duration::from_millis(ms))),
        budget.tool_calls.map(|n| text::count(n, "tool call")),
        budget.children.map(|n| match n {
            1 => "1 child".to_owned(),
            n => format!("{n} children"),
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!limits.is_empty()).then(|| limits.join(", "))
}

fn of_agent(agent: &AgentSpec, agents: &Agents) -> Value {
    let tools = agent.listed_tools().into_iter().map(|tool| {
        let arguments = tool.arguments.iter();
        let arguments = arguments.map(|(policy, it)| json!({"pattern": it, "policy": policy}));
        json!({
            "name": tool.name,
            "effect": tool.effect.map(|effect| effect.as_str()),
            "effect_declared": tool.declared,
            "policy": tool.verdict,
            "arguments": arguments.collect::<Vec<_>>(),
        })
    });
    let verify = agent.verify.iter().map(|check| {
        json!({
            "name": check.name,
            "run": check.run,
            "timeout_ms": check.timeout.map(millis),
            "required": check.required,
        })
    });
    let mcp = agent.mcp.iter().map(|(name, server)| {
        let command = (!server.command.is_empty()).then_some(&server.command);
        json!({"name": name, "command": command, "url": server.url})
    });
    let inside = agent.agents.iter().map(|(name, inside)| {
        json!({"name": name, "description": inside.description, "agent": of_agent(&inside.spec, agents)})
    });
    json!({
        "name": agent.name,
        "spec_digest": agent.digest(),
        "model": agent.model,
        "price_known": agent.is_priced(&|model| agents.is_priced(model)),
        "plan": agent.plan,
        "max_turns": agent.turns_max(),
        "verify_rounds": agent.verify_rounds_max(),
        "tools": tools.collect::<Vec<_>>(),
        "budget": {
            "tokens": agent.budget.tokens,
            "usd": agent.budget.usd_micros.map(|micros| micros as f64 / 1e6),
            "wall_ms": agent.budget.wall_ms,
            "tool_calls": agent.budget.tool_calls,
            "children": agent.budget.children,
        },
        "verify": verify.collect::<Vec<_>>(),
        "mcp": mcp.collect::<Vec<_>>(),
        "agents": inside.collect::<Vec<_>>(),
        "no_ask": agent.policy.no_ask,
    })
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
