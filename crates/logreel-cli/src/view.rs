//! What a person or a program sees of a run while it goes on: a live view on a terminal, plain lines
//! elsewhere, events under `--json`, nothing under `-q`.

use std::collections::HashMap;
use std::io::IsTerminal as _;

use logreel::core::event::WaitKind;
use logreel::core::{Record, RunKey};
use logreel::store::SystemEnv;
use logreel::view::EventView;
use logreel::{Body, Entry, Env as _, Event, RunId, Seq, StepId, Timestamp};
use unicode_width::UnicodeWidthStr as _;

use crate::live::{Model, render, terminal};
use crate::outcome::{self, Line};
use crate::output::{self, Output, Paint};
use crate::text;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Live,
    Plain,
    Quiet,
}

/// The view of one run.
pub struct View {
    mode: Mode,
    colour: bool,
    run: RunId,
    key: Option<RunKey>,
    model: Model,
    /// What came before is folded, and told to nobody.
    from: Seq,
    /// When the steps under way were announced.
    began: HashMap<StepId, Timestamp>,
}

impl View {
    /// The view of a run whose events before `from` are history.
    pub fn new(run: RunId, key: Option<RunKey>, from: Seq, out: &Output) -> Self {
        let mode = if out.quiet {
            Mode::Quiet
        } else if std::io::stderr().is_terminal() && !out.json {
            Mode::Live
        } else {
            Mode::Plain
        };
        Self {
            mode,
            colour: output::stderr_has_colour(),
            run,
            key,
            model: Model::new(run),
            from,
            began: HashMap::new(),
        }
    }

    /// Whether it changes while nothing happens.
    pub fn is_live(&self) -> bool {
        self.mode == Mode::Live
    }

    /// Takes an event in. Gives the child that is worth following too, when it starts one.
    pub fn event(
        &mut self,
        run: RunId,
        record: &Record,
        event: &Event,
        out: &mut Output,
    ) -> anyhow::Result<Option<RunId>> {
        let child = self.model.apply(run, event);
        if run == self.run && record.seq >= self.from {
            if out.json {
                let event = EventView::of(run, record, self.key.as_ref());
                out.json_line(&Line::event(&event))?;
                out.flush()?;
            }
            if self.mode == Mode::Plain
                && let Some(line) = self.progress(event)
            {
                out.note(format!("{} {line}", run.short()));
            }
        }
        Ok(child.filter(|_| self.is_live()))
    }

    pub fn printed(&mut self, run: RunId, step: &StepId, line: &str) {
        self.model.printed(run, step, line);
    }

    /// Draws what there is, on a terminal.
    pub fn draw(&self) {
        if self.mode == Mode::Live
            && let Some(size) = terminal::size()
        {
            terminal::draw(
                &render(&self.model, SystemEnv.now(), size, self.colour),
                size,
            );
        }
    }

    /// Takes the view away and says what became of the run.
    pub fn finish(&self, entry: &Entry, out: &Output) {
        terminal::clear();
        let facts = &entry.row.facts;
        let until = facts
            .ended
            .as_ref()
            .map_or(entry.row.updated_at, |it| it.at);
        let took = text::duration(until.since(facts.created_at));
        let (sign, paint, how) = match &facts.ended {
            None => ("?", Paint::Waits, text::status(entry)),
            Some(_) => {
                let sign = if Paint::of(entry) == Paint::Good {
                    "✓"
                } else {
                    "✗"
                };
                (sign, Paint::of(entry), outcome::ended(entry))
            }
        };
        let (name, short) = (text::one_line(&facts.agent), entry.row.run.short());
        let summary = format!("{short} {name} {how} ({took})");
        match self.mode {
            Mode::Quiet => {}
            Mode::Plain => out.note(summary),
            Mode::Live => {
                let steps = text::count(self.model.steps_over() as u64, "step");
                let longer = format!("{short} {name} {how} ({took}, {steps})");
                let room = terminal::size().map_or(0, |size| size.width.saturating_sub(3));
                let summary = match longer.width() <= room {
                    true => longer,
                    false => summary,
                };
                let sign = match self.colour {
                    true => paint.on(sign),
                    false => sign.to_owned(),
                };
                out.note(format!("{sign} {summary}"));
            }
        }
    }

    /// A line for what a person waits for: steps and waits.
    fn progress(&mut self, event: &Event) -> Option<String> {
        if let Body::StepStarted(started) = &event.body {
            self.began.insert(started.step.clone(), event.at);
        }
        Some(match &event.body {
            Body::RunStarted(started) => format!("{} started", text::one_line(&started.agent)),
            Body::StepStarted(it) if it.attempt > 1 => {
                format!("{} started, attempt {}", shown(&it.step), it.attempt)
            }
            Body::StepStarted(it) => format!("{} started", shown(&it.step)),
            Body::StepFinished(it) => {
                let began = it.started_at.or_else(|| self.began.remove(&it.step));
                let took = began.map(|began| event.at.since(began));
                let took = took.map(|took| format!(" in {}", text::duration(took)));
                format!("{} finished{}", shown(&it.step), took.unwrap_or_default())
            }
            Body::StepFailed(it) => {
                format!(
                    "{} failed: {}",
                    shown(&it.step),
                    text::one_line(&it.error.message)
                )
            }
            Body::StepRetrying(it) => {
                let delay = text::duration(std::time::Duration::from_millis(it.delay_ms));
                format!("{} is tried again in {delay}", shown(&it.step))
            }
            Body::StepSkipped(it) => format!(
                "{} skipped: {}",
                shown(&it.step),
                text::one_line(&it.reason)
            ),
            Body::StepInDoubt(it) => {
                format!(
                    "{} is in doubt: {}",
                    shown(&it.step),
                    text::one_line(&it.reason)
                )
            }
            Body::WaitStarted(wait) => match wait.kind {
                WaitKind::Approval | WaitKind::Signal | WaitKind::Timer => {
                    let what = wait.prompt.as_deref().or(wait.name.as_deref());
                    let until = wait
                        .deadline
                        .map(|at| format!("until {}", text::moment(at)));
                    let what = what.map(text::one_line).or(until).unwrap_or_default();
                    let step = wait.step.as_ref().map(|step| format!("{} ", shown(step)));
                    format!(
                        "{}waits for {}: {what}",
                        step.unwrap_or_default(),
                        wait.kind
                    )
                }
                WaitKind::Paused => "paused".to_owned(),
                WaitKind::Budget => {
                    let step = wait.step.as_ref().map(|step| format!("{} ", shown(step)));
                    let used = wait.prompt.as_deref().or(wait.name.as_deref());
                    let used = used.map(text::one_line).unwrap_or_default();
                    format!("{}waits for budget: {used}", step.unwrap_or_default())
                }
                WaitKind::CrashLoop => "waits: its drivers keep dying".to_owned(),
                // The step's own line says it.
                WaitKind::Retry | WaitKind::Child | WaitKind::InDoubt => return None,
            },
            Body::ChildStarted(it) => {
                format!("{} started as {}", shown(&it.step), it.child.short())
            }
            _ => return None,
        })
    }
}

fn shown(step: &StepId) -> String {
    text::one_line(&step.to_string())
}
