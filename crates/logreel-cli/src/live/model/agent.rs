//! An agent at work: where it is, the tools it calls, and what its model says.

use std::collections::HashSet;

use logreel::core::CallId;
use logreel::core::event::{
    Effect, Phase, Resolution, RunKind, RunStarted, Spend, Verdict, WaitKind, WaitOutcome,
};
use logreel::{Body, Event, LiveText, RunId, Shown, StepId, Timestamp};

use super::{Line, Mark, Model};
use crate::said::{self, Effects, Part};
use crate::text;

/// What is kept of an answer that comes in: more than any terminal shows of it.
const SPEECH_CHARS_MAX: usize = 4000;

/// The key of the line that says what is away.
const AWAY: &str = "away";

/// Where an agent is.
#[derive(Debug, Clone)]
pub struct Agent {
    pub name: String,
    pub phase: Option<&'static str>,
    pub turn: u32,
    pub tokens: u64,
    /// What it cost, in micro-dollars; `None` when a price is not known.
    pub usd_micros: Option<u64>,
    effects: Effects,
    /// Model calls that are over: pieces of their answers may still be on their way here.
    over: HashSet<CallId>,
}

/// What a model says.
#[derive(Debug, Clone)]
pub struct Speech {
    run: RunId,
    call: CallId,
    /// Whose, when it is not the run's own.
    pub agent: Option<String>,
    pub since: Timestamp,
    /// More is to come.
    pub is_open: bool,
    /// It thinks, and has said nothing yet.
    pub thinks: bool,
    pub words: String,
}

impl Agent {
    fn spend(&mut self, spent: &Spend) {
        self.tokens += spent.input_tokens + spent.output_tokens;
        let sum = self.usd_micros.zip(spent.usd_micros);
        self.usd_micros = sum.map(|(before, more)| before + more);
    }
}

impl Model {
    /// A piece of an answer came in.
    pub fn spoke(&mut self, text: &LiveText, now: Timestamp) {
        let agent = self.agents.get(&text.run);
        if agent.is_none_or(|agent| agent.over.contains(&text.call)) {
            return;
        }
        // The words may be here before the event that announces them.
        self.begins(text.run, &text.call, now);
        let Some(speech) = &mut self.speech else {
            return;
        };
        match &text.shown {
            Shown::Reset => speech.words.clear(),
            Shown::Text(words) => {
                speech.thinks = false;
                speech.words.push_str(words);
                let over = speech
                    .words
                    .chars()
                    .count()
                    .saturating_sub(SPEECH_CHARS_MAX);
                if over > 0 {
                    speech.words = speech.words.chars().skip(over).collect();
                }
            }
            Shown::Thinking(_) => speech.thinks = speech.words.is_empty(),
            Shown::ToolCall(name) => {
                let words = speech.words.trim_end();
                speech.words = format!("{words}\n→ {name}");
            }
        }
    }

    pub(super) fn know_agent(&mut self, run: RunId, started: &RunStarted) {
        let is_shown = run == self.run || self.children.contains_key(&run);
        if started.kind != RunKind::Agent || !is_shown {
            return;
        }
        let agent = Agent {
            name: text::one_line(&started.agent),
            phase: None,
            turn: 0,
            tokens: 0,
            usd_micros: Some(0),
            effects: Effects::of(&started.spec),
            over: HashSet::new(),
        };
        self.agents.insert(run, agent);
    }

    /// Takes in what is told of an agent in another way than of others; `None` for the rest. Gives the
    /// child that is worth following too.
    pub(super) fn apply_of_agent(&mut self, run: RunId, event: &Event) -> Option<Option<RunId>> {
        let at = event.at;
        let agent = self.agents.get_mut(&run)?;
        match &event.body {
            Body::PhaseEntered(entered) => {
                agent.phase = Some(match entered.phase {
                    Phase::Planning => "planning",
                    Phase::Executing => "executing",
                    Phase::Verifying => "verifying",
                });
            }
            Body::TurnStarted(turn) => agent.turn = turn.turn,
            Body::PlanMade(plan) => {
                let note = text::preview(&plan.plan);
                let line = self.own_line(run, "the plan", "plan")?;
                (line.mark, line.note) = (Mark::Finished, note);
            }
            Body::ModelCalled(called) => self.begins(run, &called.call, at),
            Body::ModelAnswered(answered) => {
                agent.spend(&answered.spent);
                agent.over.insert(answered.call.clone());
                self.ends(run, said::message(&answered.message).0);
            }
            Body::ModelFailed(failed) => {
                agent.spend(&failed.spent);
                agent.over.insert(failed.call.clone());
                let message = text::one_line(&failed.error.message);
                self.ends(run, format!("the model failed: {message}"));
            }
            Body::ToolCalled(called) => {
                let effect = match called.effect {
                    Effect::Read => None,
                    effect => Some(agent.effects.shown(&called.name, effect)),
                };
                let note = said::about(&called.name, &called.arguments);
                let line = self.tool_line(run, &called.call, &called.name)?;
                (line.mark, line.note, line.effect) = (Mark::Running, note, effect);
                (line.since, line.took) = (Some(at), None);
            }
            Body::ToolReturned(returned) => {
                let line = self.tool_line(run, &returned.call, "tool")?;
                line.mark = Mark::Finished;
                line.took = line.since.map(|since| at.since(since));
                if let Some((code, printed)) = said::exit_code(&returned.output)
                    && code != 0
                {
                    line.note = format!("{} → exit {code} {printed}", line.note);
                }
            }
            Body::ToolFailed(failed) => {
                let message = text::one_line(&failed.error.message);
                let line = self.tool_line(run, &failed.call, "tool")?;
                line.mark = Mark::Failed;
                line.took = line.since.map(|since| at.since(since));
                line.note = message;
            }
            Body::ToolInDoubt(doubt) => {
                let line = self.tool_line(run, &doubt.call, "tool")?;
                line.mark = Mark::InDoubt;
                line.note = format!("{}: {}", line.note, text::one_line(&doubt.reason));
            }
            Body::ToolResolved(resolved) => {
                let line = self.tool_line(run, &resolved.call, "tool")?;
                line.mark = match resolved.resolution {
                    Resolution::Returned(_) => Mark::Finished,
                    Resolution::Failed(_) => Mark::Failed,
                    Resolution::Retry => Mark::Running,
                };
            }
            Body::MessageQueued(queued) => {
                let note = text::one_line(&queued.text);
                let by = queued
                    .by
                    .as_deref()
                    .map_or_else(|| "someone".to_owned(), text::one_line);
                let line = self.own_line(run, &format!("said {}", event.seq), &by)?;
                (line.mark, line.note) = (Mark::Finished, note);
            }
            Body::WaitStarted(wait) => match (&wait.call, &wait.tool, wait.kind) {
                (Some(call), Some(tool), WaitKind::Approval) => {
                    let about = wait.arguments.as_ref().map(|it| said::about(tool, it));
                    let line = self.tool_line(run, call, tool)?;
                    (line.mark, line.note) = (Mark::Waiting, about.unwrap_or_default());
                    line.since = Some(at);
                }
                (None, _, WaitKind::Retry) if wait.is_for_what_is_away() => {
                    let name = wait.name.as_deref().map(text::one_line);
                    let note = wait.prompt.as_deref().map(text::one_line);
                    let line = self.own_line(run, AWAY, "away")?;
                    (line.mark, line.since) = (Mark::Waiting, Some(at));
                    (line.id, line.note) = (name.unwrap_or_default(), note.unwrap_or_default());
                }
                (_, _, WaitKind::Budget) if wait.step.is_none() && run == self.run => {
                    self.stopped = Some("waits for budget");
                }
                _ => return None,
            },
            Body::WaitEnded(ended) => match ended.outcome {
                WaitOutcome::Elapsed | WaitOutcome::Resumed if ended.step.is_none() => {
                    // It is tried again; the line stays only when that fails.
                    self.lines
                        .retain(|line| line.run != run || line.key != AWAY);
                    return None;
                }
                WaitOutcome::Raised if ended.step.is_none() && run == self.run => {
                    self.stopped = None;
                }
                _ => return None,
            },
            Body::VerificationFinished(report) => {
                for check in &report.checks {
                    let id = format!("check {}", text::one_line(&check.name));
                    let of = |line: &&mut Line| line.run == run && line.id == id;
                    let Some(line) = self.lines.iter_mut().rev().find(of) else {
                        continue;
                    };
                    let message = check.message.as_deref().unwrap_or_default();
                    let last = message.lines().rev().find(|line| !line.trim().is_empty());
                    line.note = text::printed(last.unwrap_or_default());
                    line.mark = match check.verdict {
                        Verdict::Passed => Mark::Finished,
                        Verdict::Failed => Mark::Failed,
                        Verdict::NeedsReview => Mark::Waiting,
                        Verdict::Skipped => Mark::Skipped,
                    };
                }
            }
            Body::StepStarted(step) => {
                let line = self.step_line(run, &step.step)?;
                (line.mark, line.since) = (Mark::Running, Some(at));
            }
            Body::StepFinished(step) => {
                let line = self.step_line(run, &step.step)?;
                line.mark = Mark::Finished;
                line.since = step.started_at.or(line.since);
                line.took = line.since.map(|since| at.since(since));
                self.forget_children(run, Some(&step.step.to_string()));
            }
            Body::StepFailed(step) => {
                let line = self.step_line(run, &step.step)?;
                (line.mark, line.note) = (Mark::Failed, text::one_line(&step.error.message));
                line.took = line.since.map(|since| at.since(since));
                self.forget_children(run, Some(&step.step.to_string()));
            }
            Body::ChildStarted(child) => {
                let key = child.step.to_string();
                let line = self.step_line(run, &child.step)?;
                (line.mark, line.since) = (Mark::Running, line.since.or(Some(at)));
                self.forget_children(run, Some(&key));
                self.children.insert(child.child, (run, key));
                return Some(Some(child.child));
            }
            _ => return None,
        }
        self.tell_parent(run);
        Some(None)
    }

    /// A line of the step, when it is one of an agent's own kinds.
    fn step_line(&mut self, run: RunId, step: &StepId) -> Option<&mut Line> {
        let id = match Part::of(step)? {
            Part::Agent(name) => name,
            Part::Check(name) => format!("check {name}"),
        };
        self.own_line(run, &step.to_string(), &id)
    }

    fn tool_line(&mut self, run: RunId, call: &CallId, name: &str) -> Option<&mut Line> {
        self.own_line(run, &format!("call {call}"), &text::one_line(name))
    }

    /// The line with this key, at the end of those of its run when it is new.
    fn own_line(&mut self, run: RunId, key: &str, id: &str) -> Option<&mut Line> {
        let of = |line: &Line| line.run == run && line.key == key;
        let place = match self.lines.iter().rposition(of) {
            Some(place) => place,
            None => {
                let (place, depth) = self.bottom(run)?;
                let line = Line {
                    key: key.to_owned(),
                    ..Line::pending(run, id, depth)
                };
                self.lines.insert(place, line);
                place
            }
        };
        self.lines.get_mut(place)
    }

    fn begins(&mut self, run: RunId, call: &CallId, since: Timestamp) {
        let known = self.speech.as_ref();
        if known.is_some_and(|it| it.is_open && it.run == run && it.call == *call) {
            return;
        }
        let is_own = run == self.run;
        let name = self.agents.get(&run).map(|agent| agent.name.clone());
        self.speech = Some(Speech {
            run,
            call: call.clone(),
            agent: name.filter(|_| !is_own),
            since,
            is_open: true,
            thinks: false,
            words: String::new(),
        });
    }

    /// What was recorded stands, whatever was shown of it before.
    fn ends(&mut self, run: RunId, words: String) {
        if let Some(speech) = self.speech.as_mut().filter(|speech| speech.run == run) {
            speech.is_open = false;
            speech.words = words;
        }
    }

    /// The line that a child is the work of says where the child is.
    fn tell_parent(&mut self, run: RunId) {
        let (Some(agent), Some((parent, key))) = (self.agents.get(&run), self.children.get(&run))
        else {
            return;
        };
        let note = format!(
            "turn {}, {} tokens",
            agent.turn,
            text::thousands(agent.tokens)
        );
        let of = |line: &&mut Line| line.run == *parent && line.key == *key;
        if let Some(line) = self.lines.iter_mut().find(of) {
            line.note = note;
        }
    }
}
