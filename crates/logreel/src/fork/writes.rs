//! Which writes a fork would do again: what its parent did after the point where they part, and what was
//! under way there.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use logreel_core::event::{Effect, Resolution};
use logreel_core::{Body, Event, Payload, Record, RunId, Seq, StepId};

use super::point::is_named;
use crate::Error;
use crate::engine::Inner;
use crate::moment::decode;
use WriteOutcome::{Failed, Finished};

/// What making a fork means for the world outside.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    /// The last event that it shares.
    pub at: Seq,
    /// Writes that the parent did later, in the order of its log, those of its children with them. The
    /// fork does them again when it comes to them, under keys of its own.
    pub again: Vec<Write>,
    /// Writes that were under way there: they may have happened, and are done again.
    pub may_have_happened: Vec<Write>,
}

impl Outlook {
    /// Whether nothing is done twice.
    pub fn is_harmless(&self) -> bool {
        self.again.is_empty() && self.may_have_happened.is_empty()
    }
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

/// Looks at a run after an event; what has one of these names is not done again.
pub(super) async fn look(
    engine: &Inner,
    run: &RunId,
    at: Seq,
    given: &[String],
) -> Result<Outlook, Error> {
    let mut outlook = Outlook {
        at,
        again: Vec::new(),
        may_have_happened: Vec::new(),
    };
    let mut seen = Seen::new(*run, at);
    read(engine, &mut seen).await?;
    let is_given = |id: &str| given.iter().any(|name| name == id);
    seen.children
        .retain(|_, step| !given.iter().any(|name| is_named(step, name)));
    let mut found: Vec<Found> = seen.found.into_values().collect();
    found.retain(|it| !is_given(&it.write.id));
    found.sort_by_key(|it| it.write.seq);
    for it in found {
        match it.early {
            true => outlook.may_have_happened.push(it.write),
            false => outlook.again.push(it.write),
        }
    }
    // A child that had not ended starts again as another one, from its beginning.
    let mut left: Vec<RunId> = seen.children.into_keys().collect();
    while let Some(child) = left.pop() {
        let mut seen = Seen::new(child, Seq::NONE);
        match read(engine, &mut seen).await {
            // It was announced and never made, or deleted since.
            Err(Error::Store(logreel_store::Error::NotFound(_))) => continue,
            other => other?,
        }
        let mut found: Vec<Write> = seen.found.into_values().map(|it| it.write).collect();
        found.sort_by_key(|write| write.seq);
        outlook.again.extend(found);
        left.extend(seen.children.into_keys());
    }
    Ok(outlook)
}

async fn read(engine: &Inner, seen: &mut Seen) -> Result<(), Error> {
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

/// What a log tells of writes and children.
struct Seen {
    run: RunId,
    at: Seq,
    found: BTreeMap<String, Found>,
    /// Children that started later, or had not ended, each with its step.
    children: BTreeMap<RunId, StepId>,
}

struct Found {
    write: Write,
    /// It was under way at the point.
    early: bool,
}

impl Seen {
    fn new(run: RunId, at: Seq) -> Self {
        Self {
            run,
            at,
            found: BTreeMap::new(),
            children: BTreeMap::new(),
        }
    }

    fn take(&mut self, event: &Event) {
        let seq = event.seq;
        match &event.body {
            Body::StepStarted(it) if it.effect == Effect::Write => {
                self.announced(it.step.to_string(), None, seq);
            }
            Body::ToolCalled(it) if it.effect == Effect::Write => {
                let called = (it.name.clone(), it.arguments.clone());
                self.announced(it.call.to_string(), Some(called), seq);
            }
            Body::StepFinished(it) => self.ended(&it.step.to_string(), Finished(seq)),
            Body::StepFailed(it) => self.ended(&it.step.to_string(), Failed(seq)),
            Body::StepResolved(it) => {
                self.resolved(&it.step.to_string(), &it.resolution, seq);
            }
            Body::ToolReturned(it) => self.ended(it.call.as_str(), Finished(seq)),
            Body::ToolFailed(it) => self.ended(it.call.as_str(), Failed(seq)),
            Body::ToolResolved(it) => self.resolved(it.call.as_str(), &it.resolution, seq),
            Body::ChildStarted(it) => {
                self.children.insert(it.child, it.step.clone());
            }
            Body::ChildFinished(it) if seq <= self.at => {
                self.children.remove(&it.child);
            }
            // What was under way in its prefix is not any more: its own log has what it did.
            Body::RunForked(_) => {
                self.found.clear();
                self.children.clear();
            }
            _ => {}
        }
    }

    fn announced(&mut self, id: String, called: Option<(String, Payload)>, seq: Seq) {
        let (tool, arguments) = called.unzip();
        let write = Write {
            run: self.run,
            id: id.clone(),
            tool,
            arguments,
            seq,
            outcome: WriteOutcome::Unknown,
        };
        let early = seq <= self.at;
        match self.found.get_mut(&id) {
            // Tried again later: it is the same write.
            Some(known) if known.early && !early => known.write.outcome = WriteOutcome::Unknown,
            _ => {
                self.found.insert(id, Found { write, early });
            }
        }
    }

    fn resolved(&mut self, id: &str, resolution: &Resolution, seq: Seq) {
        match resolution {
            Resolution::Returned(_) => self.ended(id, Finished(seq)),
            Resolution::Failed(_) => self.ended(id, Failed(seq)),
            Resolution::Retry => {}
        }
    }

    /// What had its outcome at the point keeps it, or failed for certain.
    fn ended(&mut self, id: &str, outcome: WriteOutcome) {
        let (Finished(seq) | Failed(seq)) = outcome else {
            return;
        };
        if seq <= self.at {
            self.found.remove(id);
        } else if let Some(known) = self.found.get_mut(id) {
            known.write.outcome = outcome;
        }
    }
}
