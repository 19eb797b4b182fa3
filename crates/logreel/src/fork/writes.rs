//! Which writes a fork would do again: what its parent did after the point where they part, and what was
//! under way there.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use logreel_core::event::{Effect, Resolution};
use logreel_core::{Body, CallId, Event, Payload, Record, RunId, Seq, StepId};
use logreel_store::ForkError;

use super::point::{is_call, is_named};
use crate::Error;
use crate::engine::Inner;
use crate::moment::decode;
use WriteOutcome::{Failed, Finished};

/// What making a fork, or retrying, means for the world outside.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    /// The last event that it shares.
    pub at: Seq,
    /// Writes that the parent did later, in the order of its log, those of its children with them. The
    /// fork does them again when it comes to them, under keys of its own.
    pub again: Vec<Write>,
    /// Writes that were under way there: they may have happened, and are done again.
    pub may_have_happened: Vec<Write>,
    /// Writes that had finished there, and whose results the fork does not keep: because they are
    /// forgotten, or because the conversation that asked for them begins again.
    pub forgotten: Vec<Write>,
    /// Children that start again, and of whose writes nothing is known any more.
    pub gone: Vec<GoneChild>,
}

impl Outlook {
    /// Whether nothing is done twice, for all that is known.
    pub fn is_harmless(&self) -> bool {
        self.writes().next().is_none() && self.gone.is_empty()
    }

    /// Whether something that was done for certain, or that nobody can tell of, may be done again. What
    /// was merely under way may not have happened.
    pub fn repeats(&self) -> bool {
        let is_done = |write: &Write| matches!(write.outcome, Finished(_));
        self.writes().any(is_done) || !self.gone.is_empty()
    }

    /// All that may be written again.
    pub fn writes(&self) -> impl Iterator<Item = &Write> {
        let later = self.forgotten.iter().chain(&self.may_have_happened);
        later.chain(&self.again)
    }
}

/// A child whose log nobody can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoneChild {
    /// Which run.
    pub child: RunId,
    /// The step of its parent that it was the work of.
    pub step: StepId,
    /// It was erased; otherwise it was deleted.
    pub erased: bool,
}

/// A write, as a log tells of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The run that did it: the parent, or a child of it.
    pub run: RunId,
    /// The step as it is shown, or the tool call's id.
    pub id: String,
    /// What was called; `None` for a step.
    pub tool: Option<String>,
    /// With what; `None` for a step.
    pub arguments: Option<Payload>,
    /// Where it was announced.
    pub seq: Seq,
    /// What became of it.
    pub outcome: WriteOutcome,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// This event has its result.
    Finished(Seq),
    /// This event says that it failed.
    Failed(Seq),
    /// Nobody knows yet, or ever will.
    Unknown,
}

/// Where a copy leaves its parent, and what it does not take from it.
pub(crate) struct Leaving<'a> {
    pub(crate) run: RunId,
    pub(crate) at: Seq,
    /// Names of steps and calls whose results are given: they are not done again.
    pub(crate) given: &'a [String],
    /// Steps that start again although they have finished.
    pub(crate) forgotten: &'a [StepId],
    /// The conversation begins again, and with it whatever it asked for.
    pub(crate) anew: bool,
}

impl Leaving<'_> {
    /// Whether a step has its result from elsewhere, or is inside one that has.
    fn is_given(&self, step: &StepId) -> bool {
        let around = std::iter::successors(Some(step.clone()), StepId::outer);
        let is_meant = |step: &StepId, name: &String| is_named(step, name) || is_call(step, name);
        around
            .into_iter()
            .any(|step| self.given.iter().any(|name| is_meant(&step, name)))
    }

    fn is_forgotten(&self, which: &Which) -> bool {
        match which {
            Which::Step(step) => self.anew || self.forgotten.contains(step),
            Which::Call(_) => self.anew,
        }
    }
}

/// Which writes come again.
pub(crate) async fn look(engine: &Inner, leaving: &Leaving<'_>) -> Result<Outlook, Error> {
    let (run, at) = (leaving.run, leaving.at);
    if engine.store.entry(&run).await?.erased {
        return Err(ForkError::Erased(run).into());
    }
    let mut outlook = Outlook {
        at,
        again: Vec::new(),
        may_have_happened: Vec::new(),
        forgotten: Vec::new(),
        gone: Vec::new(),
    };
    let mut seen = Seen::new(run, leaving);
    read(engine, &mut seen).await?;
    seen.children.retain(|_, step| !leaving.is_given(step));
    let mut found: Vec<(Which, Found)> = seen.found.into_iter().collect();
    found.retain(|(which, _)| match which {
        Which::Step(step) => !leaving.is_given(step),
        Which::Call(call) => !leaving.given.contains(call),
    });
    found.sort_by_key(|(_, it)| it.write.seq);
    for (_, it) in found {
        match (it.early, it.write.outcome) {
            (true, Finished(seq)) if seq <= at => outlook.forgotten.push(it.write),
            (true, _) => outlook.may_have_happened.push(it.write),
            (false, _) => outlook.again.push(it.write),
        }
    }
    // A child of a step without a result starts again as another one, from its beginning.
    let from_the_start = Leaving {
        at: Seq::NONE,
        given: &[],
        forgotten: &[],
        ..*leaving
    };
    let mut left: Vec<(RunId, StepId)> = seen.children.into_iter().collect();
    while let Some((child, step)) = left.pop() {
        let erased = match engine.store.entry(&child).await {
            Ok(entry) if !entry.erased => None,
            Ok(_) => Some(true),
            Err(logreel_store::Error::NotFound(_)) => Some(false),
            Err(error) => return Err(error.into()),
        };
        if let Some(erased) = erased {
            outlook.gone.push(GoneChild {
                child,
                step,
                erased,
            });
            continue;
        }
        let mut seen = Seen::new(child, &from_the_start);
        read(engine, &mut seen).await?;
        let mut found: Vec<Write> = seen.found.into_values().map(|it| it.write).collect();
        found.sort_by_key(|write| write.seq);
        outlook.again.extend(found);
        left.extend(seen.children);
    }
    Ok(outlook)
}

async fn read(engine: &Inner, seen: &mut Seen<'_>) -> Result<(), Error> {
    let run = seen.run;
    let look = |record: &Record| {
        let group = record.kind.split('.').next().unwrap_or_default();
        if matches!(group, "step" | "tool" | "child") || record.kind == "run.forked" {
            seen.take(&decode(record)?);
        }
        Ok(ControlFlow::Continue(()))
    };
    engine.each_record(&run, Seq::FIRST, look).await
}

/// What wrote.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    Step(StepId),
    Call(String),
}

impl Which {
    fn shown(&self) -> String {
        match self {
            Self::Step(step) => step.to_string(),
            Self::Call(call) => call.clone(),
        }
    }
}

/// What a log tells of writes and children. What has a result at the point, and keeps it, is not kept.
struct Seen<'a> {
    run: RunId,
    leaving: &'a Leaving<'a>,
    found: BTreeMap<Which, Found>,
    /// Children of steps that have no result at the point, or lose it, each with its step.
    children: BTreeMap<RunId, StepId>,
}

struct Found {
    write: Write,
    /// It was announced at the point or before.
    early: bool,
}

impl<'a> Seen<'a> {
    fn new(run: RunId, leaving: &'a Leaving<'a>) -> Self {
        Self {
            run,
            leaving,
            found: BTreeMap::new(),
            children: BTreeMap::new(),
        }
    }

    fn take(&mut self, event: &Event) {
        let seq = event.seq;
        let of_step = |step: &StepId| Which::Step(step.clone());
        let of_call = |call: &CallId| Which::Call(call.to_string());
        match &event.body {
            Body::StepStarted(it) if it.effect == Effect::Write => {
                self.announced(of_step(&it.step), None, seq);
            }
            Body::ToolCalled(it) if it.effect == Effect::Write => {
                let called = (it.name.clone(), it.arguments.clone());
                self.announced(of_call(&it.call), Some(called), seq);
            }
            Body::StepFinished(it) => {
                self.has_result(&it.step, seq);
                self.ended(&of_step(&it.step), Finished(seq));
            }
            Body::StepFailed(it) => self.ended(&of_step(&it.step), Failed(seq)),
            Body::StepResolved(it) => {
                if matches!(it.resolution, Resolution::Returned(_)) {
                    self.has_result(&it.step, seq);
                }
                self.resolved(&of_step(&it.step), &it.resolution, seq);
            }
            Body::ToolReturned(it) => self.ended(&of_call(&it.call), Finished(seq)),
            Body::ToolFailed(it) => self.ended(&of_call(&it.call), Failed(seq)),
            Body::ToolResolved(it) => self.resolved(&of_call(&it.call), &it.resolution, seq),
            Body::ChildStarted(it) => {
                self.children.insert(it.child, it.step.clone());
            }
            // What was under way in its prefix is not any more: its own log has what it did. A fork
            // further on in the log has not happened yet where this one leaves.
            Body::RunForked(_) if seq <= self.leaving.at => {
                let is_done = |it: &mut Found| matches!(it.write.outcome, Finished(_));
                self.found.retain(|_, it| is_done(it));
                let leaving = self.leaving;
                let is_forgotten = |step: &StepId| leaving.is_forgotten(&Which::Step(step.clone()));
                self.children.retain(|_, step| is_forgotten(step));
            }
            _ => {}
        }
    }

    /// The end of a child is not that of its step: only with a result of its own does the step not start
    /// again.
    fn has_result(&mut self, step: &StepId, seq: Seq) {
        let is_kept =
            seq <= self.leaving.at && !self.leaving.is_forgotten(&Which::Step(step.clone()));
        if is_kept {
            self.children.retain(|_, of| of != step);
        }
    }

    fn announced(&mut self, which: Which, called: Option<(String, Payload)>, seq: Seq) {
        let (tool, arguments) = called.unzip();
        let write = Write {
            run: self.run,
            id: which.shown(),
            tool,
            arguments,
            seq,
            outcome: WriteOutcome::Unknown,
        };
        let early = seq <= self.leaving.at;
        match self.found.get_mut(&which) {
            // Tried again later: it is the same write.
            Some(known) if known.early && !early => {
                if !matches!(known.write.outcome, Finished(_)) {
                    known.write.outcome = WriteOutcome::Unknown;
                }
            }
            _ => {
                self.found.insert(which, Found { write, early });
            }
        }
    }

    fn resolved(&mut self, which: &Which, resolution: &Resolution, seq: Seq) {
        match resolution {
            Resolution::Returned(_) => self.ended(which, Finished(seq)),
            Resolution::Failed(_) => self.ended(which, Failed(seq)),
            Resolution::Retry => {}
        }
    }

    /// What had its outcome at the point keeps it, unless it is forgotten, or failed for certain.
    fn ended(&mut self, which: &Which, outcome: WriteOutcome) {
        let (Finished(seq) | Failed(seq)) = outcome else {
            return;
        };
        let is_done = matches!(outcome, Finished(_));
        if seq <= self.leaving.at && !(is_done && self.leaving.is_forgotten(which)) {
            self.found.remove(which);
        } else if let Some(known) = self.found.get_mut(which) {
            known.write.outcome = outcome;
        }
    }
}
