//! What a person or a program sees of a run while it goes on: a live view on a terminal, plain lines
//! elsewhere, events under `--json`, nothing under `-q`.

use std::io::IsTerminal as _;

use logreel::core::event::RunKind;
use logreel::core::{Record, RunKey};
use logreel::store::SystemEnv;
use logreel::view::EventView;
use logreel::{Entry, Env as _, Event, LiveText, RunId, Seq, StepId};
use unicode_width::UnicodeWidthStr as _;

use crate::live::{Model, render, terminal};
use crate::outcome::{self, Line};
use crate::output::{self, Output, Paint};
use crate::plain::Plain;
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
    plain: Plain,
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
            plain: Plain::default(),
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
        let line = (run == self.run).then(|| self.plain.line(event)).flatten();
        if run == self.run && record.seq >= self.from {
            if out.json {
                let event = EventView::of(run, record, self.key.as_ref());
                out.json_line(&Line::event(&event))?;
                out.flush()?;
            }
            if self.mode == Mode::Plain
                && let Some(line) = line
            {
                out.note(format!("{} {line}", run.short()));
            }
        }
        Ok(child.filter(|_| self.is_live()))
    }

    pub fn printed(&mut self, run: RunId, step: &StepId, line: &str) {
        self.model.printed(run, step, line);
    }

    /// A piece of a model's answer came in.
    pub fn spoke(&mut self, text: &LiveText) {
        self.model.spoke(text, SystemEnv.now());
    }

    /// What a model said last, in rows that fit: who is asked about a call wants to know why.
    pub fn last_words(&self) -> Vec<String> {
        let width = terminal::size().map_or(80, |size| size.width.saturating_sub(1));
        let speech = self.model.speech.as_ref();
        speech.map_or_else(Vec::new, |it| text::wrapped(&it.words, width))
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
        let work = work(entry, &self.model);
        let summary = match facts.kind {
            RunKind::Agent => format!("{short} {name} {how} ({took}, {work})"),
            _ => format!("{short} {name} {how} ({took})"),
        };
        match self.mode {
            Mode::Quiet => {}
            Mode::Plain => out.note(summary),
            Mode::Live => {
                let longer = format!("{short} {name} {how} ({took}, {work})");
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
}

/// What was done, in figures: an agent's calls and what they cost, or the steps.
fn work(entry: &Entry, model: &Model) -> String {
    if entry.row.facts.kind != RunKind::Agent {
        return text::count(model.steps_over() as u64, "step");
    }
    let usage = &entry.row.pulse.usage;
    let tokens = usage.spent.input_tokens + usage.spent.output_tokens;
    let calls = text::count(usage.tool_calls, "tool call");
    let mut work = format!("{calls}, {} tokens", text::thousands(tokens));
    if let Some(cost) = usage.usd_micros().filter(|cost| *cost > 0) {
        work.push_str(&format!(", {}", text::dollars(cost)));
    }
    work
}
