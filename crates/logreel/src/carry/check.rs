//! Whether a log is what was appended, event by event: its chain, and what it folds to. The same for a
//! store, a file, and an import.

use std::fmt;

use logreel_core::meaning::ResultSet;
use logreel_core::{
    Body, DecodeError, Event, Head, Record, Row, RunId, RunKey, RunState, Seq, Tally, Verifier,
};

/// Why a log does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The event that does not hold, when one can be named.
    pub seq: Option<Seq>,
    /// What is wrong with it.
    pub what: String,
}

impl Problem {
    /// Of an event.
    pub fn at(seq: Seq, what: impl Into<String>) -> Self {
        Self {
            seq: Some(seq),
            what: what.into(),
        }
    }

    /// Of the run as a whole.
    pub fn of_run(what: impl Into<String>) -> Self {
        Self {
            seq: None,
            what: what.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seq) = self.seq {
            write!(f, "event {seq}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// Why only the chain of a log could be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfolded {
    /// Bodies were erased.
    Erased,
    /// A newer build wrote it.
    Newer,
}

impl fmt::Display for Unfolded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Erased => "erased: the chain holds, the fold is gone",
            Self::Newer => "a newer logreel wrote it: only the chain was checked",
        })
    }
}

/// Checks a log from its first event on.
pub struct LogCheck {
    run: RunId,
    verifier: Verifier,
    state: Option<RunState>,
    results: Results,
    unfolded: Option<Unfolded>,
}

/// A fork may take results away again, and must know whose they are. Any other log needs the sum alone,
/// which is all the memory that a million steps may take.
enum Results {
    Sum(ResultSet),
    Tally(Box<Tally>),
}

impl Results {
    fn add(&mut self, event: &Event) {
        match self {
            Self::Sum(sum) if !event.late => *sum = sum.plus(ResultSet::of(&event.body)),
            Self::Sum(_) => {}
            Self::Tally(tally) => tally.add(event),
        }
    }

    fn sum(&self) -> ResultSet {
        match self {
            Self::Sum(sum) => *sum,
            Self::Tally(tally) => tally.sum(),
        }
    }
}

impl LogCheck {
    /// Begins before event 1, with the keys of everyone whose events the log has.
    pub fn new(run: RunId, keys: &[(RunId, Option<RunKey>)]) -> Self {
        let own = keys.iter().find(|(of, _)| *of == run);
        let mut verifier = Verifier::new(&run, own.and_then(|(_, key)| *key));
        for (of, key) in keys.iter().filter(|(of, _)| *of != run) {
            verifier.add_key(*of, *key);
        }
        Self {
            run,
            verifier,
            state: None,
            results: Results::Sum(ResultSet::default()),
            unfolded: None,
        }
    }

    /// Checks the next event.
    pub fn check(&mut self, record: &Record) -> Result<(), Problem> {
        let seq = record.seq;
        let expected = self.verifier.head().seq.next();
        self.verifier
            .check(record)
            .map_err(|error| Problem::at(expected, error.to_string()))?;
        if self.unfolded.is_some() {
            return Ok(());
        }
        let event = match record.decode() {
            Ok(event) => event,
            Err(DecodeError::NewerFormat { .. }) => {
                self.unfold(Unfolded::Newer);
                return Ok(());
            }
            Err(DecodeError::Erased(_)) => {
                self.unfold(Unfolded::Erased);
                return Ok(());
            }
            Err(error @ DecodeError::Body { .. }) => {
                let source = std::error::Error::source(&error);
                let why = source.map(|why| format!(": {why}")).unwrap_or_default();
                return Err(Problem::at(seq, format!("{error}{why}")));
            }
        };
        if let Body::Unknown(_) = event.body {
            self.unfold(Unfolded::Newer);
            return Ok(());
        }
        self.fold(record, &event)
    }

    fn fold(&mut self, record: &Record, event: &Event) -> Result<(), Problem> {
        let seq = record.seq;
        let has_ended = |state: &RunState| state.row.facts.ended.is_some();
        let before_end = !self.state.as_ref().is_some_and(has_ended);
        let folded = match &mut self.state {
            None => {
                if record.origin.is_some() {
                    self.results = Results::Tally(Box::default());
                }
                RunState::begin(self.run, event).map(|state| self.state = Some(state))
            }
            Some(state) => state.apply(event),
        };
        folded.map_err(|error| Problem::at(seq, error.to_string()))?;
        if let (Results::Sum(_), Body::RunForked(forked)) = (&self.results, &event.body)
            && !forked.forgotten.is_empty()
        {
            let what = "it forgets steps, and the events before it are not another run's";
            return Err(Problem::at(seq, what));
        }
        self.results.add(event);
        let row = self.state.as_ref().map(|state| &state.row);
        if before_end
            && let Some(row) = row
            && let Some(ended) = &row.facts.ended
            && row.final_state_digest(&self.results.sum(), &ended.end) != ended.final_state_digest
        {
            let what = "its final_state_digest is not that of the state before it";
            return Err(Problem::at(seq, what));
        }
        Ok(())
    }

    /// From here on only the chain is checked.
    fn unfold(&mut self, why: Unfolded) {
        self.unfolded = Some(why);
        self.state = None;
    }

    /// Says that the fold is gone, when that is known beforehand.
    #[must_use]
    pub fn unfolded(mut self, why: Option<Unfolded>) -> Self {
        self.unfolded = why;
        self
    }

    /// The end of what was checked so far.
    pub fn head(&self) -> Head {
        self.verifier.head()
    }

    /// Checks that the log ends where its head says, and gives what it folds to.
    pub fn finish(self, head: &Head) -> Result<Result<(Row, ResultSet), Unfolded>, Problem> {
        let next = self.verifier.head().seq.next();
        self.verifier
            .finish(head)
            .map_err(|error| Problem::at(next.min(head.seq), error.to_string()))?;
        match (self.unfolded, self.state) {
            (Some(why), _) => Ok(Err(why)),
            (None, Some(state)) => Ok(Ok((state.row, self.results.sum()))),
            (None, None) => Err(Problem::of_run("the log has no events")),
        }
    }
}
