//! Whether a log is what was appended, event by event: its chain, and what it folds to. The same for a
//! store, a file, and an import.

use std::fmt;

use logreel_core::codec::StoredBody;
use logreel_core::meaning::{ResultSet, digest_of_json};
use logreel_core::{
    Body, DecodeError, Digest, Event, Head, Json, Payload, Record, Row, RunId, RunKey, RunState,
    Seq, Tally, Verifier,
};

/// The last epoch that a log may have: whoever takes a run over begins the next one, and stores keep them in
/// 63 bits. No run has so many drivers.
const EPOCH_MAX: u64 = 1 << 62;

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
    /// Whose bodies were not erased: those whose key is known.
    kept: Vec<RunId>,
    /// The run itself is known to be erased.
    is_erased: bool,
    specs: Vec<SpecInBlob>,
}

/// A spec that is too large for its event, whose digest is checked once its bytes are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecInBlob {
    /// The event that has it.
    pub seq: Seq,
    /// Where it is.
    pub blob: Digest,
    /// The digest that it must have.
    pub spec_digest: Digest,
}

impl SpecInBlob {
    /// Whether these bytes, which are the blob's, are the spec that the event says.
    pub fn check(&self, bytes: &[u8]) -> Result<(), Problem> {
        let text = std::str::from_utf8(bytes).ok();
        let spec = text.and_then(|text| Json::parse(text).ok());
        check_spec(self.seq, spec.as_ref(), self.spec_digest)
    }
}

fn check_spec(seq: Seq, spec: Option<&Json>, spec_digest: Digest) -> Result<(), Problem> {
    match spec.map(digest_of_json) {
        Some(digest) if digest == spec_digest => Ok(()),
        _ => Err(Problem::at(seq, "its spec_digest is not that of its spec")),
    }
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
            kept: keys
                .iter()
                .filter_map(|(of, key)| key.map(|_| *of))
                .collect(),
            is_erased: false,
            specs: Vec::new(),
        }
    }

    /// Specs of the events so far whose bytes must be [looked at](SpecInBlob::check) by whoever has them.
    pub fn take_specs(&mut self) -> Vec<SpecInBlob> {
        std::mem::take(&mut self.specs)
    }

    /// Checks the next event.
    pub fn check(&mut self, record: &Record) -> Result<(), Problem> {
        let seq = record.seq;
        let expected = self.verifier.head().seq.next();
        self.verifier
            .check(record)
            .map_err(|error| Problem::at(expected, error.to_string()))?;
        if record.epoch.0 > EPOCH_MAX {
            let what = format!("no run has an epoch {}", record.epoch.0);
            return Err(Problem::at(seq, what));
        }
        self.check_erased(record)?;
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

    /// A run is erased as a whole, with the key of its bodies. One body that is gone beside others that are
    /// not was taken out.
    fn check_erased(&self, record: &Record) -> Result<(), Problem> {
        let writer = record.origin.unwrap_or(self.run);
        match &record.body {
            StoredBody::Erased(_) if self.kept.contains(&writer) => {
                let what = format!("its body was taken out, but {writer} was not erased");
                Err(Problem::at(record.seq, what))
            }
            StoredBody::Text(_) if self.is_erased && writer == self.run => {
                let what = "its body is there, but the run is said to be erased";
                Err(Problem::at(record.seq, what))
            }
            StoredBody::Erased(_) | StoredBody::Text(_) => Ok(()),
        }
    }

    /// The spec that a run goes on under has the digest that it is known by.
    fn check_spec(&mut self, event: &Event) -> Result<(), Problem> {
        let (spec, spec_digest) = match &event.body {
            Body::RunStarted(started) => (&started.spec, started.spec_digest),
            Body::SpecChanged(changed) => (&changed.spec, changed.spec_digest),
            _ => return Ok(()),
        };
        match spec {
            Payload::Inline(spec) => check_spec(event.seq, Some(spec), spec_digest),
            Payload::Blob(reference) => {
                self.specs.push(SpecInBlob {
                    seq: event.seq,
                    blob: reference.blob,
                    spec_digest,
                });
                Ok(())
            }
        }
    }

    fn fold(&mut self, record: &Record, event: &Event) -> Result<(), Problem> {
        let seq = record.seq;
        self.check_spec(event)?;
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

    /// Says that the run was erased, when that is known beforehand.
    #[must_use]
    pub fn erased(mut self, is_erased: bool) -> Self {
        self.is_erased = is_erased;
        self.unfolded = is_erased.then_some(Unfolded::Erased);
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
