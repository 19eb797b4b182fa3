//! Where a fork leaves its parent, as people say it, and which event that is.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::str::FromStr;

use logreel_core::{Body, Record, RunId, Seq, StepId};
use logreel_store::ForkError;

use crate::Error;
use crate::engine::Inner;
use crate::moment::decode;

/// The last event that a fork shares with its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForkPoint {
    /// This one, which comes before the parent's end.
    At(Seq),
    /// The one right before this step, or tool call, began. Of a mapped step by its id, the first of its
    /// items.
    Before(String),
    /// The last one before the parent's end, or the last there is.
    Last,
}

/// A point that nobody understands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no place in a log; say an event's number, step:ID, or last")]
pub struct NoPoint(pub String);

impl FromStr for ForkPoint {
    type Err = NoPoint;

    fn from_str(said: &str) -> Result<Self, NoPoint> {
        let unknown = || NoPoint(said.to_owned());
        match said.strip_prefix("step:") {
            _ if said == "last" => Ok(Self::Last),
            Some("") => Err(unknown()),
            Some(step) => Ok(Self::Before(step.to_owned())),
            None => match said.parse() {
                Ok(0) | Err(_) => Err(unknown()),
                Ok(seq) => Ok(Self::At(Seq(seq))),
            },
        }
    }
}

/// The event that a point is, which comes before the run's end.
pub(crate) async fn find(engine: &Inner, run: &RunId, point: &ForkPoint) -> Result<Seq, Error> {
    let mut starts = match point {
        ForkPoint::Before(name) => Some(Starts::of(name)),
        ForkPoint::At(_) | ForkPoint::Last => None,
    };
    let mut last = Seq::NONE;
    let mut end = None;
    engine
        .each_record(run, Seq::FIRST, |record| {
            if is_end(record) {
                end = Some(record.seq);
                return Ok(ControlFlow::Break(()));
            }
            last = record.seq;
            if let Some(starts) = &mut starts {
                starts.take(record)?;
            }
            Ok(ControlFlow::Continue(()))
        })
        .await?;
    let run = *run;
    match (point, starts) {
        (ForkPoint::Before(name), Some(starts)) => {
            let first = starts.first().map_err(|several| Error::NoSuchStep {
                run,
                step: name.clone(),
                several,
            })?;
            Ok(Seq(first.0.saturating_sub(1)))
        }
        (ForkPoint::At(at), _) => match end {
            Some(end) if *at >= end => Err(ForkError::PastEnd { run, at: *at, end }.into()),
            _ if *at == Seq::NONE || *at > last => Err(Error::NoSuchEvent {
                run,
                at: *at,
                head: last,
            }),
            _ => Ok(*at),
        },
        (ForkPoint::Last | ForkPoint::Before(_), _) => Ok(last),
    }
}

/// Whether the record ends a run.
pub(super) fn is_end(record: &Record) -> bool {
    matches!(
        record.kind.as_str(),
        "run.completed" | "run.failed" | "run.cancelled"
    )
}

/// Whether a step is meant by this name: as it is shown, or as an array.
pub(super) fn is_named(step: &StepId, name: &str) -> bool {
    step.to_string() == name || step.canonical() == name
}

/// Whether a step is what a call of a sub-agent is: `["agent", NAME, CALL]`.
pub(super) fn is_call(step: &StepId, call: &str) -> bool {
    let parts: Option<Vec<String>> = serde_json::from_str(&step.canonical()).ok();
    matches!(parts.as_deref(), Some([kind, _, of]) if kind == "agent" && of == call)
}

/// Finds where what has a name began. What a fork in the log made begin again began there.
pub(super) struct Starts<'a> {
    name: &'a str,
    /// Steps of that name and items of it, with where they began and whether they have a result.
    steps: HashMap<StepId, (Seq, bool)>,
    call: Option<Seq>,
}

impl<'a> Starts<'a> {
    pub(super) fn of(name: &'a str) -> Self {
        Self {
            name,
            steps: HashMap::new(),
            call: None,
        }
    }

    pub(super) fn take(&mut self, record: &Record) -> Result<(), Error> {
        let group = record.kind.split('.').next().unwrap_or_default();
        if !matches!(group, "step" | "wait" | "child" | "tool") && record.kind != "run.forked" {
            return Ok(());
        }
        let event = decode(record)?;
        let name = self.name;
        let is_call = |call: &logreel_core::CallId| call.as_str() == name;
        match &event.body {
            Body::StepStarted(it) => self.begin(&it.step, event.seq, false),
            Body::StepFinished(it) => self.begin(&it.step, event.seq, true),
            Body::StepResolved(it) => self.begin(&it.step, event.seq, true),
            Body::StepFailed(it) => self.begin(&it.step, event.seq, false),
            Body::StepSkipped(it) => self.begin(&it.step, event.seq, false),
            Body::ChildStarted(it) => self.begin(&it.step, event.seq, false),
            Body::WaitStarted(it) => {
                if let Some(step) = &it.step {
                    self.begin(step, event.seq, false);
                }
                if it.call.as_ref().is_some_and(is_call) {
                    self.call = self.call.or(Some(event.seq));
                }
            }
            Body::WaitEnded(it) => {
                if let Some(step) = &it.step {
                    self.begin(step, event.seq, true);
                }
            }
            Body::ToolCalled(it) if is_call(&it.call) => {
                self.call = self.call.or(Some(event.seq));
            }
            Body::RunForked(it) => {
                self.steps
                    .retain(|step, (_, has_result)| *has_result && !it.forgotten.contains(step));
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, step: &StepId, seq: Seq, has_result: bool) {
        if let Some((_, known)) = self.steps.get_mut(step) {
            *known |= has_result;
        } else if is_named(step, self.name) || step.name() == self.name {
            self.steps.insert(step.clone(), (seq, has_result));
        }
    }

    /// Where it began; an error says whether the name fits several.
    pub(super) fn first(&self) -> Result<Seq, bool> {
        let exact = self.steps.iter().filter(|(it, _)| is_named(it, self.name));
        let exact: Vec<Seq> = exact.map(|(_, (seq, _))| *seq).collect();
        match (exact.as_slice(), self.call) {
            ([one], None) => Ok(*one),
            ([], Some(call)) => Ok(call),
            ([], None) => {
                let items = self.steps.values().map(|(seq, _)| *seq);
                items.min().ok_or(false)
            }
            _ => Err(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_a_number_a_step_or_the_last() {
        assert_eq!("12".parse(), Ok(ForkPoint::At(Seq(12))));
        assert_eq!("last".parse(), Ok(ForkPoint::Last));
        let step = ForkPoint::Before("read[a.txt]".to_owned());
        assert_eq!("step:read[a.txt]".parse(), Ok(step));
        for wrong in ["", "0", "-1", "step:", "first", "1.5"] {
            assert!(wrong.parse::<ForkPoint>().is_err(), "{wrong:?}");
        }
    }
}
