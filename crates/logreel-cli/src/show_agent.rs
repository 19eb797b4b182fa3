//! What `show` tells of an agent's run beside what it tells of every run: its plan, its turns with the
//! tools they called, and the report of its checks.

use std::collections::HashMap;

use logreel::core::event::{Effect, RunKind, Verdict, Verification, WaitKind};
use logreel::core::{CallId, Payload, Record};
use logreel::{Body, Event, RunStore, StepId, Timestamp};

use crate::output::{Output, Paint};
use crate::plain::verdict;
use crate::said::{self, Effects, Part};
use crate::show::{Tail, decode};
use crate::table::{self, Cell, Column, left, right};
use crate::{summary, text};

/// What of a check's words a person is shown: the end, where the news is.
const CHECK_LINES: usize = 12;

/// Behind a call that someone is asked about.
const WAITS: &str = " (waits for approval)";

const TURNS: &[Column] = &[
    left("WHAT", 18),
    right("TOOK", 6),
    left("TOKENS, EFFECT", 20),
    left("SAID", usize::MAX),
];

/// A model call, a tool call, or something a person said.
struct Row {
    what: String,
    since: Timestamp,
    took: Option<String>,
    measure: String,
    said: String,
    paint: Option<Paint>,
}

/// Who a row is of.
#[derive(PartialEq, Eq, Hash)]
enum Who {
    Call(CallId),
    Step(StepId),
}

/// What an agent did, gathered while its log is read.
pub struct Work {
    plan: Option<Payload>,
    turn: u32,
    rows: Tail<Row>,
    places: HashMap<Who, usize>,
    effects: Effects,
    report: Option<Verification>,
}

impl Work {
    /// Nothing yet, of an agent that was started with this; `None` for other kinds of runs.
    pub fn of(kind: RunKind, spec: &Payload) -> Option<Self> {
        (kind == RunKind::Agent).then(|| Self {
            plan: None,
            turn: 0,
            rows: Tail::new(),
            places: HashMap::new(),
            effects: Effects::of(spec),
            report: None,
        })
    }

    /// Takes a record in.
    pub fn take(&mut self, record: &Record) -> anyhow::Result<()> {
        let group = record.kind.split('.').next().unwrap_or_default();
        let is_told = matches!(
            group,
            "plan"
                | "turn"
                | "model"
                | "tool"
                | "message"
                | "wait"
                | "child"
                | "step"
                | "context"
                | "verification"
        );
        if is_told {
            self.apply(&decode(record)?);
        }
        Ok(())
    }

    fn apply(&mut self, event: &Event) {
        let at = event.at;
        match &event.body {
            Body::PlanMade(plan) => self.plan = Some(plan.plan.clone()),
            Body::TurnStarted(turn) => self.turn = turn.turn,
            Body::ModelCalled(called) => {
                let purpose = called.call.as_str().split_once('.').map_or("", |it| it.1);
                let what = match purpose {
                    "turn" | "" => format!("turn {}", self.turn),
                    purpose => purpose.to_owned(),
                };
                let row = self.row(Who::Call(called.call.clone()), &what, at);
                row.said = match called.attempt {
                    1 => String::new(),
                    attempt => format!("(attempt {attempt})"),
                };
            }
            Body::ModelAnswered(answered) => {
                let (spent, words) = (&answered.spent, said::message(&answered.message).0);
                let row = self.row(Who::Call(answered.call.clone()), "model", at);
                row.end(at);
                row.measure = format!("{}+{}", spent.input_tokens, spent.output_tokens);
                row.said = format!("{} {words}", row.said).trim().to_owned();
            }
            Body::ModelFailed(failed) => {
                let row = self.row(Who::Call(failed.call.clone()), "model", at);
                row.end(at);
                row.fail(summary::cause(&failed.error));
            }
            Body::WaitStarted(wait) if wait.kind == WaitKind::Approval => {
                if let (Some(call), Some(tool)) = (&wait.call, &wait.tool) {
                    let about = wait.arguments.as_ref().map(|it| said::about(tool, it));
                    let row = self.row(Who::Call(call.clone()), &format!("  {tool}"), at);
                    row.said = format!("{}{WAITS}", about.unwrap_or_default());
                    row.paint = Some(Paint::Waits);
                }
            }
            Body::ToolCalled(called) => {
                let effect = match called.effect {
                    Effect::Read => Effect::Read.as_str().to_owned(),
                    effect => self.effects.shown(&called.name, effect),
                };
                let about = said::about(&called.name, &called.arguments);
                let who = Who::Call(called.call.clone());
                let row = self.row(who, &format!("  {}", called.name), at);
                (row.since, row.measure, row.paint) = (at, effect, None);
                row.said = match called.attempt {
                    1 => about,
                    attempt => format!("(attempt {attempt}) {about}"),
                };
            }
            Body::ToolReturned(returned) => {
                let row = self.row(Who::Call(returned.call.clone()), "  tool", at);
                row.end(at);
                row.result(&returned.output);
            }
            Body::ToolFailed(failed) => {
                let row = self.row(Who::Call(failed.call.clone()), "  tool", at);
                row.end(at);
                row.fail(summary::cause(&failed.error));
            }
            Body::ToolInDoubt(doubt) => {
                let row = self.row(Who::Call(doubt.call.clone()), "  tool", at);
                row.fail(format!("in doubt: {}", text::one_line(&doubt.reason)));
            }
            Body::ToolResolved(resolved) => {
                let row = self.row(Who::Call(resolved.call.clone()), "  tool", at);
                let how = summary::resolution(&resolved.resolution);
                row.said = format!("{}, by {}: {how}", row.said, text::one_line(&resolved.by));
                row.paint = None;
            }
            Body::ChildStarted(child) => {
                if let Some(Part::Agent(name)) = Part::of(&child.step) {
                    let row = self.row(Who::Step(child.step.clone()), &format!("  {name}"), at);
                    row.measure = child.child.short().to_string();
                }
            }
            Body::StepFinished(step) if is_agent(&step.step) => {
                let row = self.row(Who::Step(step.step.clone()), "  agent", at);
                row.end(at);
                row.result(&step.output);
            }
            Body::StepFailed(step) if is_agent(&step.step) => {
                let row = self.row(Who::Step(step.step.clone()), "  agent", at);
                row.end(at);
                row.fail(summary::cause(&step.error));
            }
            Body::MessageQueued(queued) => {
                let by = queued.by.as_deref().unwrap_or("someone");
                let row = Row::new(by, at);
                self.rows.push(Row {
                    said: text::one_line(&queued.text),
                    ..row
                });
            }
            Body::ContextCompacted(_) => {
                let row = Row::new("compaction", at);
                let said = "the conversation goes on from a summary".to_owned();
                self.rows.push(Row { said, ..row });
            }
            Body::VerificationFinished(report) => self.report = Some(report.clone()),
            _ => {}
        }
    }

    /// The row of a call, at the end when it is new.
    fn row(&mut self, who: Who, what: &str, at: Timestamp) -> &mut Row {
        let place = match self.places.get(&who) {
            Some(place) if self.rows.get_mut(*place).is_some() => *place,
            _ => {
                let place = self.rows.push(Row::new(what, at));
                self.places.insert(who, place);
                place
            }
        };
        self.rows.get_mut(place).expect("it is one of the last")
    }

    /// Prints all of it.
    pub async fn print(&self, store: &dyn RunStore, out: &mut Output) -> anyhow::Result<()> {
        if let Some(plan) = &self.plan {
            let plan = logreel::value::resolve(store, plan).await?;
            let plan = plan
                .decode::<String>()
                .unwrap_or_else(|_| plan.text().to_owned());
            out.line("")?;
            out.line(out.paint(Paint::Strong, "Plan"))?;
            for row in text::wrapped(&plan, out.width().saturating_sub(2)) {
                out.line(format!("  {row}"))?;
            }
        }
        self.print_turns(out)?;
        match &self.report {
            Some(report) => print_report(report, out),
            None => Ok(()),
        }
    }

    fn print_turns(&self, out: &mut Output) -> anyhow::Result<()> {
        if self.rows.count() == 0 {
            return Ok(());
        }
        out.line("")?;
        out.line(out.paint(Paint::Strong, &format!("Turns ({})", self.turn)))?;
        if self.rows.left_out() > 0 {
            let more = self.rows.left_out();
            out.line(format!("  … {more} lines more; `logreel log` has them all"))?;
        }
        let rows = self.rows.iter().map(|row| {
            let said = match row.paint {
                Some(paint) => Cell::painted(row.said.clone(), paint),
                None => row.said.clone().into(),
            };
            let took = row.took.clone().unwrap_or_default();
            vec![
                row.what.clone().into(),
                took.into(),
                row.measure.clone().into(),
                said,
            ]
        });
        let rows: Vec<Vec<Cell>> = rows.collect();
        Ok(table::print(out, "  ", TURNS, &rows)?)
    }
}

impl Row {
    fn new(what: &str, since: Timestamp) -> Self {
        // Two blanks in front of what a turn called.
        let indent = if what.starts_with("  ") { "  " } else { "" };
        Self {
            what: format!("{indent}{}", text::one_line(what)),
            since,
            took: None,
            measure: String::new(),
            said: String::new(),
            paint: None,
        }
    }

    fn end(&mut self, at: Timestamp) {
        self.took = Some(text::duration(at.since(self.since)));
    }

    fn result(&mut self, output: &Payload) {
        let result = said::result(output);
        self.said = match self.said.is_empty() {
            true => format!("→ {result}"),
            false => format!("{} → {result}", self.said),
        };
    }

    fn fail(&mut self, why: String) {
        let about = self.said.strip_suffix(WAITS).unwrap_or(&self.said);
        self.said = match about.is_empty() {
            true => why,
            false => format!("{about}: {why}"),
        };
        self.paint = Some(Paint::Bad);
    }
}

fn is_agent(step: &StepId) -> bool {
    matches!(Part::of(step), Some(Part::Agent(_)))
}

fn print_report(report: &Verification, out: &mut Output) -> anyhow::Result<()> {
    out.line("")?;
    out.line(out.paint(
        Paint::Strong,
        &format!("Checks: {}", verdict(report.verdict)),
    ))?;
    for check in &report.checks {
        let (sign, paint) = match check.verdict {
            Verdict::Passed => ("✓", Paint::Good),
            Verdict::Failed => ("✗", Paint::Bad),
            Verdict::NeedsReview => ("?", Paint::Waits),
            Verdict::Skipped => ("-", Paint::Dim),
        };
        let optional = if check.required {
            ""
        } else {
            " (not required)"
        };
        let (name, how) = (text::one_line(&check.name), verdict(check.verdict));
        out.line(format!(
            "  {} {name} {how}{optional}",
            out.paint(paint, sign)
        ))?;
        let said: Vec<&str> = check
            .message
            .as_deref()
            .unwrap_or_default()
            .lines()
            .collect();
        for line in &said[said.len().saturating_sub(CHECK_LINES)..] {
            let line = text::fit(&text::visible(line), out.line_width().saturating_sub(6));
            out.line(format!("      {line}").trim_end())?;
        }
    }
    Ok(())
}
