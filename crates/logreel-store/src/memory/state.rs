//! What a memory store holds, and the one way into a log.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use logreel_core::chain::Sealed;
use logreel_core::event::{Body, RunStarted};
use logreel_core::{
    AppendId, Blob, Digest, Epoch, Event, IllegalEvent, Record, Rejected, RunId, RunKey, StepId,
    Timestamp,
};

use crate::tip::{Prepared, Tip};
use crate::{Duty, Error, Owner, OwnerId, STAGED};

#[derive(Default)]
pub(super) struct State {
    /// By the order of creation; a place is never given twice (rule 11).
    pub runs: BTreeMap<u64, Run>,
    pub places: HashMap<RunId, u64>,
    pub last_place: u64,
    pub owners: HashMap<OwnerId, Member>,
    pub closed: BTreeSet<String>,
    /// Keys of deleted runs, whose they were and when they were deleted.
    pub old_keys: HashMap<String, (RunId, Timestamp)>,
    pub blobs: HashMap<Digest, Kept>,
    /// Rule 32: blobs that no event of their run names yet, and since when.
    pub staged: HashMap<(RunId, Digest), Timestamp>,
    /// The latest place that an event was given among all events.
    pub last_event: Arc<AtomicU64>,
}

/// Events of a run, each with its place among those of all runs.
pub(super) struct Log {
    records: Vec<Record>,
    places: Vec<u64>,
    last: Arc<AtomicU64>,
}

impl Log {
    pub fn new(last: &Arc<AtomicU64>, records: Vec<Record>) -> Self {
        let mut log = Self {
            records: Vec::new(),
            places: Vec::new(),
            last: Arc::clone(last),
        };
        log.extend(records);
        log
    }

    pub fn extend(&mut self, records: impl IntoIterator<Item = Record>) {
        for record in records {
            self.records.push(record);
            // The store is locked: nobody else takes one.
            let place = self.last.fetch_add(1, Ordering::Relaxed) + 1;
            self.places.push(place);
        }
    }

    /// The events after a place, with theirs.
    pub fn after(&self, place: u64) -> impl Iterator<Item = (u64, &Record)> {
        let known = self.places.partition_point(|it| *it <= place);
        let places = self.places[known..].iter().copied();
        places.zip(&self.records[known..])
    }
}

impl Deref for Log {
    type Target = [Record];

    fn deref(&self) -> &[Record] {
        &self.records
    }
}

impl DerefMut for Log {
    fn deref_mut(&mut self) -> &mut [Record] {
        &mut self.records
    }
}

pub(super) struct Kept {
    pub bytes: Arc<[u8]>,
    /// The context node before this one, when it is one.
    pub previous: Option<Digest>,
    /// Who refers to it.
    pub runs: HashSet<RunId>,
}

pub(super) struct Run {
    /// How it was started; its row may have moved on since.
    pub started: RunStarted,
    pub tip: Tip,
    /// How many events it shares with the run it was forked from; none when it was not.
    pub shared: u64,
    /// Its own events, which follow those.
    pub log: Log,
    /// The first answer to every append that landed (rule 2), by the [name](AppendId::name) of its id.
    pub receipts: HashMap<Box<str>, Receipt>,
    pub epoch: Epoch,
    pub lease: Option<(OwnerId, Timestamp)>,
    /// Rule 24: who lost its lease by silence, and when, on the monotonic clock.
    pub lapsed: Vec<(Epoch, OwnerId, Duration)>,
    /// Rule 34: it was imported and not taken over.
    pub read_only: bool,
    /// Rule 33: what it held is gone.
    pub erased: bool,
    /// Rule 31: the keys of the runs that a fork shares events with, when it was imported whole.
    pub origins: Vec<(RunId, Option<RunKey>)>,
}

#[derive(Clone)]
pub(super) struct Receipt {
    pub id: AppendId,
    pub events: Vec<Event>,
    pub answer: Result<(), Rejected>,
}

pub(super) struct Member {
    pub owner: Owner,
    /// The monotonic time of its latest beat.
    pub beat: Duration,
    pub duty: Option<Duty>,
    pub left: bool,
}

impl State {
    pub fn run(&self, run: &RunId) -> Result<&Run, Error> {
        let place = self.places.get(run).ok_or(Error::NotFound(*run))?;
        Ok(&self.runs[place])
    }

    pub fn run_mut(&mut self, run: &RunId) -> Result<&mut Run, Error> {
        let place = self.places.get(run).ok_or(Error::NotFound(*run))?;
        self.runs.get_mut(place).ok_or(Error::NotFound(*run))
    }

    pub fn owner(&self, owner: OwnerId) -> Result<&Owner, Error> {
        let member = self.owners.get(&owner).filter(|member| !member.left);
        let stranger = || Error::Bug(format!("owner {owner} drives runs but did not join"));
        member.map(|member| &member.owner).ok_or_else(stranger)
    }

    /// Whether the owner is known dead.
    pub fn has_left(&self, owner: OwnerId) -> bool {
        self.owners.get(&owner).is_none_or(|member| member.left)
    }

    /// When the child that `step` of the run is has ended. One that was announced and is not there has
    /// its driver yet to make it, as when the one that announced it was killed: since then.
    pub fn child_ended(&self, run: &Run, step: Option<&StepId>) -> Option<Timestamp> {
        let starts = run
            .log
            .iter()
            .rev()
            .filter(|record| record.kind == "child.started");
        let (child, announced_at) =
            starts
                .filter_map(|record| record.decode().ok())
                .find_map(|it| match it.body {
                    Body::ChildStarted(started)
                        if step.is_none_or(|step| *step == started.step) =>
                    {
                        Some((started.child, it.at))
                    }
                    _ => None,
                })?;
        match self.run(&child) {
            Ok(child) => child.tip.row.facts.ended.as_ref().map(|ended| ended.at),
            Err(_) => Some(announced_at),
        }
    }

    /// Rule 32: blobs are stored with a reference of their run.
    pub fn keep_blobs(&mut self, run: RunId, blobs: Vec<Blob>, events: &[Event]) {
        for blob in blobs {
            let previous = events.iter().find_map(|event| match &event.body {
                Body::MessageAdded(added) if added.node == blob.digest() => added.previous,
                _ => None,
            });
            let (bytes, runs) = (blob.bytes().clone(), HashSet::new());
            let kept = self.blobs.entry(blob.digest()).or_insert(Kept {
                bytes,
                previous,
                runs,
            });
            // One that came ahead of its event did not say what it follows.
            kept.previous = kept.previous.or(previous);
            kept.runs.insert(run);
            self.staged.remove(&(run, blob.digest()));
        }
    }

    /// Rule 32: a blob PUT ahead of its append has a reference of its run for an hour.
    pub fn stage(&mut self, run: RunId, blob: &Blob, now: Timestamp) {
        let staged = std::mem::take(&mut self.staged);
        let is_old = |since: &Timestamp| now.since(*since) >= STAGED;
        let (old, staged): (HashMap<_, _>, _) =
            staged.into_iter().partition(|(_, since)| is_old(since));
        self.staged = staged;
        for (run, digest) in old.keys() {
            if let Some(kept) = self.blobs.get_mut(digest) {
                kept.runs.remove(run);
            }
        }
        self.drop_unreferred();
        let kept = self.blobs.entry(blob.digest()).or_insert_with(|| Kept {
            bytes: blob.bytes().clone(),
            previous: None,
            runs: HashSet::new(),
        });
        let place = (run, blob.digest());
        // One that an event names already stays whatever happens.
        if kept.runs.insert(run) || self.staged.contains_key(&place) {
            self.staged.insert(place, now);
        }
    }

    /// Rule 32: a blob goes with its last reference, unless a context node that stays follows it.
    /// Gives how many bytes went.
    pub fn drop_blobs(&mut self, run: &RunId) -> u64 {
        let bytes = |state: &Self| -> u64 {
            let kept = state.blobs.values();
            kept.map(|kept| kept.bytes.len() as u64).sum()
        };
        let before = bytes(self);
        self.blobs.values_mut().for_each(|kept| {
            kept.runs.remove(run);
        });
        self.staged.retain(|(of, _), _| of != run);
        self.drop_unreferred();
        before - bytes(self)
    }

    fn drop_unreferred(&mut self) {
        loop {
            let followed: HashSet<_> = self.blobs.values().filter_map(|it| it.previous).collect();
            let before = self.blobs.len();
            self.blobs
                .retain(|digest, it| !it.runs.is_empty() || followed.contains(digest));
            if self.blobs.len() == before {
                return;
            }
        }
    }
}

impl Run {
    /// What its own bodies are hashed with.
    pub fn key(&self) -> Option<RunKey> {
        (!self.erased).then_some(self.tip.key)
    }

    /// Whether its log begins with another run's events, here or where it was imported from.
    pub fn is_fork(&self) -> bool {
        self.shared > 0 || !self.origins.is_empty()
    }

    /// Rule 2: the first answer to an append that landed. The name of a request is used once.
    pub fn receipt(&self, id: &AppendId) -> Result<Option<&Receipt>, Error> {
        match self.receipts.get(id.name()) {
            Some(first) if first.id != *id => Err(Error::RequestIdTaken(self.tip.row.run)),
            first => Ok(first),
        }
    }

    /// Keeps the first answer to an append.
    pub fn keep_receipt(&mut self, id: AppendId, events: Vec<Event>, answer: Result<(), Rejected>) {
        let name = Box::from(id.name());
        self.receipts.insert(name, Receipt { id, events, answer });
    }

    /// The one way into a log: all events or, when one is illegal, none (rule 1).
    pub fn extend(
        &mut self,
        prepared: Vec<Prepared>,
        epoch: Epoch,
        now: Timestamp,
    ) -> Result<Vec<Event>, IllegalEvent> {
        let sealed = self.tip.extend(prepared, epoch, now)?;
        self.log.extend(sealed.iter().map(Sealed::record));
        Ok(sealed.into_iter().map(|sealed| sealed.event).collect())
    }
}
