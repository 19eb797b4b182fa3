//! Forks: a log that begins with another run's events.

use std::collections::HashMap;

use logreel_core::event::{Body, Relation, RunStarted};
use logreel_core::{Epoch, Payload, Record, RunId, RunKey, Seq};

use super::MemoryStore;
use super::state::{Log, Run, State};
use crate::fork::{Prefix, difference};
use crate::{Created, Error, ForkError, NewFork};

impl MemoryStore {
    pub(super) fn make_fork(&self, new: &NewFork) -> Result<Created, ForkError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let now = self.0.env.now();
        // The same id attaches when it is the same fork.
        if let Ok(known) = state.run(&new.run) {
            let first = known.log.first().and_then(|record| record.decode().ok());
            let differs = match first.map(|event| event.body) {
                Some(Body::RunForked(forked)) => difference(new, &forked),
                _ => Some("parent"),
            };
            return match differs {
                Some(differs) => Err(ForkError::Conflict {
                    run: new.run,
                    differs,
                }),
                None => Ok(Created::Attached(self.entry_of(state, known))),
            };
        }
        let owner = new.owner.map(|owner| state.owner(owner).map(|it| it.id));
        let owner = owner.transpose()?;
        if state.run(&new.parent)?.erased {
            return Err(ForkError::Erased(new.parent));
        }
        let mut prefix = state.shared(Prefix::new(new), new)?;
        if prefix.missed() {
            prefix = state.shared(Prefix::of_all_steps(new), new)?;
        }
        let decided = prefix.decide(new, self.0.options.payload_bytes_max)?;
        let (epoch, lease) = match owner {
            Some(owner) if self.take_place(state, decided.limit(), &new.run) => {
                (Epoch::NONE.next(), Some((owner, now)))
            }
            Some(_) | None => (Epoch::NONE, None),
        };
        let mut key = RunKey([0; 32]);
        self.0.env.random(&mut key.0);
        let (shared, input) = (decided.parting().seq.0, decided.input.clone());
        let (tip, sealed) = decided.seal(key, epoch, now)?;
        let log = sealed.iter().map(|sealed| sealed.record()).collect();
        let started = RunStarted {
            key: None,
            session: None,
            ..state.run(&new.parent)?.started.clone()
        };
        state.last_place += 1;
        state.places.insert(new.run, state.last_place);
        let forked = Run {
            started,
            tip,
            shared,
            log: Log::new(&state.last_event, log),
            receipts: HashMap::new(),
            epoch,
            lease,
            lapsed: Vec::new(),
            read_only: false,
            erased: false,
            origins: Vec::new(),
        };
        state.runs.insert(state.last_place, forked);
        state.keep_blobs(new.run, new.blobs.clone(), &[]);
        // Rule 32: `run.forked` refers to the input, also when it is the parent's.
        if let Payload::Blob(reference) = input
            && let Some(kept) = state.blobs.get_mut(&reference.blob)
        {
            kept.runs.insert(new.run);
        }
        let entry = self.entry_of(state, state.run(&new.run)?);
        drop(guard);
        self.0.bells.ring(&new.run);
        Ok(Created::New(entry))
    }
}

impl State {
    /// Folds what the fork shares.
    fn shared(&self, mut prefix: Prefix, new: &NewFork) -> Result<Prefix, ForkError> {
        let head = self.run(&new.parent)?.tip.row.head.seq;
        for seq in 1..=head.0 {
            let taken = prefix.take(&self.record(&new.parent, Seq(seq))?)?;
            if taken.is_break() {
                break;
            }
        }
        Ok(prefix)
    }

    /// The event at `seq` of a run's log, whoever it was written for.
    pub fn record(&self, run: &RunId, seq: Seq) -> Result<Record, Error> {
        let mut writer = self.run(run)?;
        while seq.0 <= writer.shared {
            let parent = writer.tip.row.facts.parent.as_ref();
            let parent = parent.ok_or_else(|| Error::Bug("a fork without a parent".to_owned()))?;
            writer = self.run(&parent.run)?;
        }
        let place = usize::try_from(seq.0 - writer.shared - 1).unwrap_or(usize::MAX);
        let missing = || Error::Bug(format!("{run} has no event {seq}"));
        let record = writer.log.get(place).ok_or_else(missing)?.clone();
        // A fork that was imported whole has the events of others in its own log.
        let writer = record.origin.unwrap_or(writer.tip.row.run);
        Ok(Record {
            origin: (writer != *run).then_some(writer),
            ..record
        })
    }

    /// The keys of everyone whose events the run's log has.
    pub fn keys_of(&self, run: &RunId) -> Result<Vec<(RunId, Option<RunKey>)>, Error> {
        let mut keys: Vec<(RunId, Option<RunKey>)> = Vec::new();
        let mut writer = self.run(run)?;
        loop {
            keys.push((writer.tip.row.run, writer.key()));
            keys.extend(writer.origins.iter().copied());
            let parent = writer.tip.row.facts.parent.as_ref();
            match parent.filter(|_| writer.shared > 0) {
                Some(parent) => writer = self.run(&parent.run)?,
                None => return Ok(keys),
            }
        }
    }

    /// The runs that share its events.
    pub fn forks_of(&self, run: &RunId) -> Vec<RunId> {
        let heirs = self.heirs_of(run);
        // One that was imported whole has all of its log itself.
        let forks =
            heirs.filter(|(heir, relation)| *relation != Relation::Child && heir.shared > 0);
        forks.map(|(heir, _)| heir.tip.row.run).collect()
    }

    pub fn live_child_of(&self, run: &RunId) -> Option<RunId> {
        self.heirs_of(run)
            .filter(|(_, relation)| *relation == Relation::Child)
            .map(|(heir, _)| &heir.tip.row)
            .find(|row| !row.status().is_terminal())
            .map(|row| row.run)
    }

    pub fn heirs_of(&self, run: &RunId) -> impl Iterator<Item = (&Run, Relation)> {
        self.runs.values().filter_map(|heir| {
            let parent = heir.tip.row.facts.parent.as_ref();
            let parent = parent.filter(|parent| parent.run == *run)?;
            Some((heir, parent.relation))
        })
    }
}
