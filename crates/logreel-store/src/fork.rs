//! Making a copy of a run, as far as it is the same in every store: which events it shares, and what
//! follows from them (SEMANTICS 31).

use std::ops::ControlFlow;

use logreel_core::chain::Sealed;
use logreel_core::event::{Body, Budget, Change, Made, Relation, RunForked, RunLimit};
use logreel_core::{
    Blob, CallId, Draft, Epoch, Event, Fork, Head, IllegalEvent, Payload, Record, RunId, RunKey,
    RunState, Seq, StepId, Tally, Timestamp, decide_fork,
};

use crate::tip::{Prepared, Tip, prepare};
use crate::{Error, ForkError, OwnerId};

/// A copy to be made of a run.
#[derive(Debug, Clone)]
pub struct NewFork {
    /// Its id.
    pub run: RunId,
    /// The run it is made from.
    pub parent: RunId,
    /// Up to where it shares the parent's log.
    pub at: ForkAt,
    /// [`Relation::Fork`] or [`Relation::Retry`].
    pub relation: Relation,
    /// An input of its own; `None` = the one the parent had there.
    pub input: Option<Payload>,
    /// Its limits; `None` = those the parent began with.
    pub budget: Option<Budget>,
    /// Steps that start again although they have finished.
    pub forgotten: Vec<StepId>,
    /// Tool calls that get another outcome than they had.
    pub forgotten_calls: Vec<CallId>,
    /// What is not as it was in the parent; `then` has what follows from it.
    pub changes: Vec<Change>,
    /// Where it is made.
    pub made: Option<Made>,
    /// What follows `run.forked` at once, in the same transaction.
    pub then: Vec<Draft>,
    /// Blobs that the input and these events refer to.
    pub blobs: Vec<Blob>,
    /// Who drives it from the start, with epoch 1; `None` leaves it to whoever claims it, and so does a
    /// limit without a place: then the entry has no driver.
    pub owner: Option<OwnerId>,
}

impl NewFork {
    /// A fork with nothing changed, which nobody drives yet.
    pub fn of(run: RunId, parent: RunId, at: ForkAt, relation: Relation) -> Self {
        Self {
            run,
            parent,
            at,
            relation,
            input: None,
            budget: None,
            forgotten: Vec::new(),
            forgotten_calls: Vec::new(),
            changes: Vec::new(),
            made: None,
            then: Vec::new(),
            blobs: Vec::new(),
            owner: None,
        }
    }
}

/// The last event that a fork shares with its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkAt {
    /// This one, which must come before the parent's end.
    Seq(Seq),
    /// The last one before the parent's end, or the last there is.
    Last,
}

/// The parent's events up to the fork, folded under the fork's id. They never change, so that a store
/// may fold them before it begins its transaction.
#[derive(Debug)]
pub(crate) struct Prefix {
    run: RunId,
    parent: RunId,
    at: ForkAt,
    state: Option<RunState>,
    tally: Tally,
    budget: Budget,
}

impl Prefix {
    pub fn new(new: &NewFork) -> Self {
        Self {
            run: new.run,
            parent: new.parent,
            at: new.at,
            state: None,
            tally: Tally::watching(new.forgotten.iter().cloned()),
            budget: Budget::default(),
        }
    }

    /// One that also fits a log in which other steps were forgotten before.
    pub fn of_all_steps(new: &NewFork) -> Self {
        Self {
            tally: Tally::default(),
            ..Self::new(new)
        }
    }

    /// Whether the log forgets steps before, so that [`Prefix::of_all_steps`] is needed.
    pub fn missed(&self) -> bool {
        self.tally.missed()
    }

    /// Takes the parent's next event; breaks when the fork shares no more.
    pub fn take(&mut self, record: &Record) -> Result<ControlFlow<()>, ForkError> {
        let event = record.decode().map_err(Error::from)?;
        if event.body.is_terminal() {
            return match self.at {
                ForkAt::Last => Ok(ControlFlow::Break(())),
                ForkAt::Seq(at) => Err(ForkError::PastEnd {
                    run: self.parent,
                    at,
                    end: event.seq,
                }),
            };
        }
        self.fold(&event).map_err(Error::from)?;
        Ok(match self.at {
            ForkAt::Seq(at) if event.seq >= at => ControlFlow::Break(()),
            ForkAt::Seq(_) | ForkAt::Last => ControlFlow::Continue(()),
        })
    }

    fn fold(&mut self, event: &Event) -> Result<(), IllegalEvent> {
        match &mut self.state {
            None => self.state = Some(RunState::begin(self.run, event)?),
            Some(state) => state.apply(event)?,
        }
        self.tally.add(event);
        match &event.body {
            Body::RunStarted(started) if event.seq == Seq::FIRST => {
                self.budget = started.budget.clone();
            }
            Body::RunForked(forked) => self.budget = forked.budget.clone(),
            _ => {}
        }
        Ok(())
    }

    /// What the fork begins with, once all it shares was taken.
    pub fn decide(self, new: &NewFork, payload_bytes_max: u64) -> Result<Decided, ForkError> {
        let head = self.state.as_ref().map_or(Seq::NONE, |it| it.row.head.seq);
        let at = match self.at {
            ForkAt::Seq(at) => at,
            ForkAt::Last => head,
        };
        let Some(state) = self.state.filter(|_| at == head) else {
            let run = self.parent;
            return Err(ForkError::NoSuchEvent { run, at, head });
        };
        let fork = Fork {
            parent: new.parent,
            relation: new.relation,
            input: new.input.clone(),
            budget: new.budget.clone().unwrap_or(self.budget),
            forgotten: new.forgotten.clone(),
            forgotten_calls: new.forgotten_calls.clone(),
            changes: new.changes.clone(),
            made: new.made.clone(),
        };
        let forked = decide_fork(&state, &self.tally, fork)
            .map_err(|why| Error::Bug(format!("a fork was refused: {why}")))?;
        let input = forked.input.clone();
        let then = new.then.iter().cloned();
        let drafts = std::iter::once(Draft::new(forked)).chain(then);
        let prepared = prepare(drafts, &new.blobs, payload_bytes_max)?;
        Ok(Decided {
            state,
            tally: self.tally,
            prepared,
            input,
        })
    }
}

/// A fork before it has its place in a store.
#[derive(Debug)]
pub(crate) struct Decided {
    /// The parent's state where they part, under the fork's id.
    state: RunState,
    tally: Tally,
    prepared: Vec<Prepared>,
    /// What it runs on.
    pub input: Payload,
}

impl Decided {
    /// How many runs like it may be driven at once.
    pub fn limit(&self) -> Option<&RunLimit> {
        self.state.row.facts.limit.as_ref()
    }

    /// The last event that is shared.
    pub fn parting(&self) -> Head {
        self.state.row.head
    }

    /// The fork's tip after its own first events, and those.
    pub fn seal(
        self,
        key: RunKey,
        epoch: Epoch,
        now: Timestamp,
    ) -> Result<(Tip, Vec<Sealed>), ForkError> {
        let Self {
            mut state,
            mut tally,
            prepared,
            ..
        } = self;
        let (row, results) = (state.row.clone(), tally.sum());
        let mut tip = Tip { row, results, key };
        let sealed = tip.extend(prepared, epoch, now)?;
        for sealed in &sealed {
            // The row alone would take a second result of a step.
            state.apply(&sealed.event)?;
            tally.add(&sealed.event);
        }
        tip.results = tally.sum();
        Ok((tip, sealed))
    }
}

/// What differs between a fork that is asked for and the one that has its id.
pub(crate) fn difference(new: &NewFork, forked: &RunForked) -> Option<&'static str> {
    let NewFork {
        input,
        budget,
        forgotten,
        ..
    } = new;
    let asked_for = |step| forked.forgotten.contains(step);
    match () {
        () if (new.parent, new.relation) != (forked.parent.run, forked.parent.relation) => {
            Some("parent")
        }
        () if matches!(new.at, ForkAt::Seq(at) if at != forked.parent.seq) => Some("seq"),
        () if input.as_ref().is_some_and(|input| *input != forked.input) => Some("input"),
        () if budget
            .as_ref()
            .is_some_and(|budget| *budget != forked.budget) =>
        {
            Some("budget")
        }
        // It may forget more than was asked for.
        () if !forgotten.iter().all(asked_for) => Some("list of forgotten steps"),
        () if new.changes != forked.changes => Some("list of changes"),
        () => None,
    }
}
