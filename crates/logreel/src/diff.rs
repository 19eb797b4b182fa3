//! What differs between two runs: specs, inputs, where they part, steps, calls, state and outcome. Ids and
//! times are no differences, and what a run cost or how long it took does not make it another one.
//!
//! [`Trace`], [`align`](align()) and [`compare`] are pure; this module reads the logs for them, each once, and then
//! only the events that are told of.

mod align;
mod describe;
mod file;
mod trace;
mod values;

use std::collections::HashMap;
use std::ops::ControlFlow;

use logreel_core::{Body, Digest, Event, Json, Payload, RunId, Seq};
use logreel_store::RunStore;
use serde::Serialize;

use crate::Error;
use crate::engine::Engine;
use crate::history::of_erased;
use crate::journal::PAGE;
use crate::value;

pub use align::{Alignment, How, Item, Pair, align};
pub use describe::{
    CallSide, Diff, Divergence, ModelChange, ModelSide, OtherChange, OtherSide, Place, Side,
    StepChange, StepSide, ToolChange,
};
pub use file::LogFile;
pub use trace::Trace;
pub use values::{ValueChange, ValueHow, compare};

/// How many differences of one sort are told one by one; the rest is counted.
pub const ITEMS_MAX: usize = 1000;

/// What became of a step, a call or a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Became {
    /// Only the second run has it.
    Added,
    /// Only the first run has it.
    Removed,
    /// It is elsewhere in the second run.
    Moved,
    /// It has something else in it.
    Changed,
}

/// The differences of one sort.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Section<T> {
    /// How many are the same.
    pub same: usize,
    /// How many only the second run has.
    pub added: usize,
    /// How many only the first run has.
    pub removed: usize,
    /// How many are elsewhere, those that changed too among them.
    pub moved: usize,
    /// How many have something else in them, those that moved too among them.
    pub changed: usize,
    /// The differences, in the order of the logs; the first [`ITEMS_MAX`] of them.
    pub items: Vec<T>,
    /// How many more there are.
    pub left_out: usize,
}

impl<T> Section<T> {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.left_out == 0
    }
}

/// Where a log is read from.
pub enum Source<'a> {
    /// A run of a store.
    Run(&'a dyn RunStore, RunId),
    /// A file of JSON Lines.
    File(LogFile),
}

impl Engine {
    /// What differs between two runs of this store.
    pub async fn diff(&self, a: &RunId, b: &RunId) -> Result<Diff, Error> {
        let store = &*self.0.store;
        between(&Source::Run(store, *a), &Source::Run(store, *b)).await
    }
}

/// What differs between two logs. Both are read event by event; what is kept of them is small.
pub async fn between(a: &Source<'_>, b: &Source<'_>) -> Result<Diff, Error> {
    let (from_a, from_b) = (a.goes_on_from().await?, b.goes_on_from().await?);
    // From the same node on they have the same before them, whether or not anyone can read it.
    let (said_a, said_b) = match from_a == from_b {
        true => (0, 0),
        false => (a.said(from_a).await?, b.said(from_b).await?),
    };
    let of_a = a.trace(said_a).await?;
    let of_b = b.trace(said_b).await?;
    let plan = describe::Plan::of(&of_a, &of_b);
    let (events_a, events_b) = (
        a.events(plan.wanted_of_a()).await?,
        b.events(plan.wanted_of_b()).await?,
    );
    let values_a = a.values(&of_a).await?;
    let values_b = b.values(&of_b).await?;
    Ok(plan.describe(
        describe::Known {
            trace: &of_a,
            events: &events_a,
            values: &values_a,
        },
        describe::Known {
            trace: &of_b,
            events: &events_b,
            values: &values_b,
        },
    ))
}

impl Source<'_> {
    /// The context node that the run began with.
    async fn goes_on_from(&self) -> Result<Option<Digest>, Error> {
        let first = match self {
            Self::Run(store, run) => {
                let page = store.events(run, Seq::FIRST, 1).await;
                let page = page.map_err(|error| of_erased(*run, error.into()))?;
                page.items.into_iter().next()
            }
            Self::File(file) => file.first()?,
        };
        Ok(first.and_then(|event| match event.body {
            Body::RunStarted(started) => started.context,
            _ => None,
        }))
    }

    /// What was said in the conversation up to a node, as a hash; nothing for none. A node that is not at hand
    /// stands for itself.
    async fn said(&self, node: Option<Digest>) -> Result<u64, Error> {
        let in_file = match self {
            Self::Run(..) => HashMap::new(),
            Self::File(file) => file.nodes()?,
        };
        let (mut said, mut next) = (Vec::new(), node);
        while let Some(node) = next.take() {
            let found = match self {
                Self::Run(store, _) => {
                    let bytes = store.blob(&node).await?;
                    bytes.and_then(|bytes| trace::of_node(&bytes))
                }
                Self::File(_) => in_file.get(&node).copied(),
            };
            let (message, previous) = found.unwrap_or_else(|| (trace::of_digest(&node), None));
            said.push(message);
            next = previous;
        }
        Ok(trace::of_said(&said))
    }

    async fn trace(&self, said: u64) -> Result<Trace, Error> {
        match self {
            Self::Run(store, run) => {
                let mut trace: Option<Trace> = None;
                let mut from = Seq::FIRST;
                loop {
                    let page = store.events(run, from, PAGE).await;
                    let page = page.map_err(|error| of_erased(*run, error.into()))?;
                    for event in &page.items {
                        match &mut trace {
                            None => {
                                let begun = Trace::begin_after(*run, event, said);
                                trace = Some(begun.map_err(logreel_store::Error::from)?);
                            }
                            Some(trace) => trace.take(event).map_err(logreel_store::Error::from)?,
                        }
                    }
                    if !page.has_more {
                        break;
                    }
                    from = page.next;
                }
                let empty = || logreel_store::Error::corrupt(format!("{run} has no events"));
                Ok(trace.ok_or_else(empty)?.finish())
            }
            Self::File(file) => {
                let mut trace: Option<Trace> = None;
                file.each_event(|run, event| {
                    let taken = match &mut trace {
                        None => {
                            let begun = Trace::begin_after(run, &event, said);
                            begun.map(|begun| trace = Some(begun))
                        }
                        Some(trace) => trace.take(&event),
                    };
                    taken.map_err(|illegal| file.error(0, illegal))?;
                    Ok(ControlFlow::Continue(()))
                })?;
                let empty = || file.error(0, "it holds no events of a run");
                Ok(trace.ok_or_else(empty)?.finish())
            }
        }
    }

    async fn events(&self, wanted: Vec<Seq>) -> Result<HashMap<Seq, Event>, Error> {
        let mut events = HashMap::new();
        match self {
            Self::Run(store, run) => {
                for seq in wanted {
                    let page = store.events(run, seq, 1).await?;
                    events.extend(page.items.into_iter().map(|event| (event.seq, event)));
                }
            }
            Self::File(file) => events = file.events(&wanted)?,
        }
        Ok(events)
    }

    async fn value(&self, payload: &Payload) -> Result<Json, Error> {
        match self {
            Self::Run(store, _) => value::resolve(*store, payload).await,
            Self::File(file) => file.value(payload),
        }
    }

    /// What is compared as values: the spec, the input, and the output when there is one.
    async fn values(&self, trace: &Trace) -> Result<describe::Values, Error> {
        let facts = &trace.row.facts;
        let output = match facts.ended.as_ref().map(|ended| &ended.end) {
            Some(logreel_core::row::End::Completed { output }) => {
                Some(self.value(output).await?.to_value())
            }
            _ => None,
        };
        Ok(describe::Values {
            spec: self.value(&trace.spec).await?.to_value(),
            input: self.value(&facts.input).await?.to_value(),
            output,
        })
    }
}
