//! The memory store: the specification of [`RunStore`], plain enough to be read beside SEMANTICS.md.
//!
//! It owns one state behind one mutex; every operation is one critical section, which is what a
//! transaction is elsewhere. It keeps nothing when the process ends, so "durable" means nothing here.

mod crew;
mod erase;
mod fork;
mod import;
mod limit;
mod list;
mod state;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use logreel_core::decide::{ClaimDecision, decide_claim};
use logreel_core::event::{ClaimReason, Relation};
use logreel_core::{
    AppendId, Blob, Digest, Draft, Epoch, Event, Outside, Ready, Row, RunId, RunKey, Seq, Session,
    Status, StepId, decide_outside,
};

use self::state::{Log, Member, Receipt, Run, State};
use crate::doorbell::{Doorbells, Ring};
use crate::tip::{PAYLOAD_MAX_BYTES, Prepared, Tip, prepare};
use crate::{
    Append, AppendError, Appended, Backlog, ClaimOutcome, Claimable, Commanded, CreateError,
    Created, Cursor, Deleted, Doorbell, Driver, Duty, Entry, Env, EraseError, Error, EventPage,
    Filter, ForkError, Heirs, Import, ImportError, Lapsed, NewFork, NewRun, News, Owner, OwnerId,
    OwnerInfo, RunPage, RunStore, SessionInfo, Since, Stats, SystemEnv,
};

/// How long the key of a deleted run is kept (rule 6).
const KEY_KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What can be chosen about a memory store.
#[derive(Debug, Clone)]
pub struct Options {
    /// The largest body or blob.
    pub payload_bytes_max: u64,
    /// How long an owner may be silent before others may take its runs.
    pub lease: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            payload_bytes_max: PAYLOAD_MAX_BYTES,
            lease: Duration::from_secs(10),
        }
    }
}

/// A store in memory. A clone is the same store.
#[derive(Clone)]
pub struct MemoryStore(Arc<Inner>);

struct Inner {
    env: Arc<dyn Env>,
    options: Options,
    bells: Doorbells,
    state: Mutex<State>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Arc::new(SystemEnv))
    }
}

impl MemoryStore {
    /// An empty store that takes time and randomness from `env`.
    pub fn new(env: Arc<dyn Env>) -> Self {
        Self::with_options(env, Options::default())
    }

    /// [`MemoryStore::new`] with limits of one's own.
    pub fn with_options(env: Arc<dyn Env>, options: Options) -> Self {
        let (bells, state) = (Doorbells::default(), Mutex::default());
        Self(Arc::new(Inner {
            env,
            options,
            bells,
            state,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0
            .state
            .lock()
            .expect("nothing panics while the state is locked")
    }

    fn prepare(&self, drafts: Vec<Draft>, blobs: &[Blob]) -> Result<Vec<Prepared>, Error> {
        prepare(drafts, blobs, self.0.options.payload_bytes_max)
    }

    fn alive(&self, state: &State, owner: OwnerId) -> bool {
        let silent = |member: &Member| self.0.env.monotonic().saturating_sub(member.beat);
        // Rule 20: by the monotonic clock alone, so that a jump of the wall clock changes nothing.
        state
            .owners
            .get(&owner)
            .is_some_and(|it| !it.left && silent(it) < self.0.options.lease)
    }

    /// Whether a live owner holds it. A dead one's lease is as good as released.
    fn is_driven(&self, state: &State, run: &Run) -> bool {
        run.lease.is_some_and(|(owner, _)| self.alive(state, owner))
    }

    /// Rule 6: a session is busy while a run of it has not ended or is still driven.
    fn active(&self, state: &State, session: &Session) -> Option<RunId> {
        let mut runs = state.runs.values().rev();
        let of_session = |run: &Run| run.tip.row.facts.session.as_ref() == Some(session);
        let ended = |run: &Run| run.tip.row.status().is_terminal() || run.read_only;
        runs.find(|run| of_session(run) && (!ended(run) || self.is_driven(state, run)))
            .map(|run| run.tip.row.run)
    }

    /// From when a worker may take a run that nobody drives (rule 18).
    fn ready(state: &State, run: &Run) -> Ready {
        if run.read_only {
            return Ready::Never;
        }
        let child_ended = |step: Option<&StepId>| Ok::<_, Infallible>(state.child_ended(run, step));
        let Ok(ready) = Ready::of(&run.tip.row, child_ended);
        ready
    }

    /// Why a worker may claim the run now; `None` when it may not (rule 18).
    fn claim_reason(&self, state: &State, run: &Run) -> Option<ClaimReason> {
        if self.is_driven(state, run) {
            return None;
        }
        Self::ready(state, run).claim_reason(run.lease.is_some(), self.0.env.now())
    }

    fn ring(&self, row: &Row) {
        self.0.bells.tell(Ring::Appended(row.run, row.head.seq));
        let parent = row
            .facts
            .parent
            .as_ref()
            .filter(|it| it.relation == Relation::Child);
        if let (Some(parent), true) = (parent, row.status().is_terminal()) {
            self.0.bells.ring(&parent.run);
        }
    }

    fn entry_of(&self, state: &State, run: &Run) -> Entry {
        let driver = run.lease.and_then(|(id, since)| {
            let owner = state.owners.get(&id)?.owner.clone();
            Some(Driver {
                owner,
                since,
                alive: self.alive(state, id),
            })
        });
        let row = &run.tip.row;
        let limit = row.facts.limit.as_ref();
        let over_limit = !row.status().is_terminal()
            && !self.is_driven(state, run)
            && limit.is_some_and(|limit| self.is_full(state, limit, &row.run));
        Entry {
            row: run.tip.row.clone(),
            results: run.tip.results,
            epoch: run.epoch,
            // Rule 18: from when it may be claimed is known only once nobody holds it.
            ready_at: if driver.is_some() {
                None
            } else {
                Self::ready(state, run).at(&run.tip.row)
            },
            driver,
            over_limit,
            erased: run.erased,
            read_only: run.read_only,
        }
    }
}

#[async_trait]
impl RunStore for MemoryStore {
    async fn create(&self, new: NewRun) -> Result<Created, CreateError> {
        let has_ended = new.has_ended();
        let NewRun {
            run,
            started,
            then,
            blobs,
            owner,
        } = new;
        let mut prepared = self.prepare(vec![Draft::new(started.clone())], &blobs)?;
        let then = self.prepare(then, &[])?;
        let mut guard = self.lock();
        let state = &mut *guard;
        let now = self.0.env.now();

        // Rule 6: the same id or key attaches when spec, session and input are the same.
        let key = started.key.as_deref();
        let by_key = |other: &&Run| key.is_some() && other.started.key.as_deref() == key;
        let known = match state.run(&run) {
            Ok(same_id) => Some((run.to_string(), same_id)),
            Err(_) => state
                .runs
                .values()
                .find(by_key)
                .map(|same_key| (format!("key {}", key.unwrap_or_default()), same_key)),
        };
        if let Some((what, known)) = known {
            let first = &known.started;
            let differs = match () {
                () if known.is_fork() => "parent",
                () if first.spec_digest != started.spec_digest => "spec",
                () if first.session != started.session => "session",
                () if first.input != started.input => "input",
                () => return Ok(Created::Attached(self.entry_of(state, known))),
            };
            return Err(CreateError::Conflict {
                what,
                run: known.tip.row.run,
                differs,
            });
        }
        // Rule 6: keys outlive their runs by 30 days.
        state
            .old_keys
            .retain(|_, (_, deleted_at)| now.since(*deleted_at) < KEY_KEPT);
        if let Some((key, (run, _))) = key.and_then(|key| state.old_keys.get_key_value(key)) {
            return Err(CreateError::KeyOfDeleted {
                key: key.clone(),
                run: *run,
            });
        }
        let owner = owner.map(|owner| state.owner(owner).map(|it| it.id));
        let owner = owner.transpose()?;
        // Rule 15: a child is created in the same transaction that sees its parent live.
        if let Some(parent) = started
            .parent
            .as_ref()
            .filter(|it| it.relation == Relation::Child)
            && state.run(&parent.run)?.tip.row.status().is_terminal()
        {
            return Err(CreateError::ParentEnded(parent.run));
        }
        if let Some(session) = started.session.as_ref().filter(|_| !has_ended) {
            if state.closed.contains(session.as_str()) {
                return Err(CreateError::SessionClosed(session.clone()));
            }
            if let Some(active) = self.active(state, session) {
                return Err(CreateError::Busy {
                    session: session.clone(),
                    active,
                });
            }
        }
        let (epoch, lease) = match owner {
            Some(owner) if self.take_place(state, started.limit.as_ref(), &run) => {
                (Epoch::NONE.next(), Some((owner, now)))
            }
            Some(_) | None => (Epoch::NONE, None),
        };
        let mut key = RunKey([0; 32]);
        self.0.env.random(&mut key.0);
        let event = prepared
            .pop()
            .ok_or_else(|| Error::Bug("event 1 got lost".to_owned()))?;
        let (mut tip, sealed) = Tip::start(run, key, event, epoch, now).map_err(Error::from)?;
        let then = tip.extend(then, epoch, now).map_err(Error::from)?;
        state.last_place += 1;
        state.places.insert(run, state.last_place);
        let log = std::iter::once(&sealed)
            .chain(&then)
            .map(|event| event.record())
            .collect();
        // Rule 32: event 1 pins the node that its session goes on from.
        if let Some(node) = started.context.and_then(|node| state.blobs.get_mut(&node)) {
            node.runs.insert(run);
        }
        let created = Run {
            started,
            tip,
            shared: 0,
            log: Log::new(&state.last_event, log),
            receipts: HashMap::new(),
            epoch,
            lease,
            lapsed: Vec::new(),
            read_only: false,
            erased: false,
            origins: Vec::new(),
        };
        state.runs.insert(state.last_place, created);
        state.keep_blobs(run, blobs, &[]);
        let entry = self.entry_of(state, state.run(&run)?);
        drop(guard);
        self.0.bells.ring(&run);
        Ok(Created::New(entry))
    }

    async fn fork(&self, new: NewFork) -> Result<Created, ForkError> {
        self.make_fork(&new)
    }

    async fn import(&self, import: Import) -> Result<Entry, ImportError> {
        self.take_in(import)
    }

    async fn take_over(&self, run: &RunId) -> Result<Entry, ImportError> {
        self.make_own(run)
    }

    async fn append(&self, append: &Append) -> Result<Appended, AppendError> {
        let Append {
            run,
            expect,
            epoch,
            id,
            drafts,
            blobs,
        } = append.clone();
        let prepared = self.prepare(drafts, &blobs)?;
        let mut guard = self.lock();
        let now = self.0.env.now();
        let it = guard.run_mut(&run)?;
        // Rule 2: the append id first; the same id again gets the first answer.
        if let Some(first) = it.receipt(&id)? {
            return Ok(Appended::again(first.events.clone()));
        }
        // Rule 3: a stale epoch is fenced before anything else is looked at.
        if epoch != it.epoch {
            return Err(AppendError::Fenced { current: it.epoch });
        }
        // Rule 34: nobody drives it here.
        if it.read_only {
            return Err(Error::ReadOnly(run).into());
        }
        // Rule 14: late facts only while the last driver still holds its lease.
        let status = it.tip.row.status();
        if status.is_terminal() && it.lease.is_none() {
            return Err(AppendError::Ended(status));
        }
        // Rule 1: it lands on the very head it was decided on, seq and digest.
        if expect != it.tip.row.head {
            return Err(AppendError::Conflict {
                head: it.tip.row.head,
            });
        }
        let before = it.tip.results;
        let events = it.extend(prepared, epoch, now)?;
        let results = it.tip.results.minus(before);
        it.keep_receipt(id, events.clone(), Ok(()));
        let row = it.tip.row.clone();
        guard.keep_blobs(run, blobs, &events);
        drop(guard);
        self.ring(&row);
        Ok(Appended {
            events,
            results,
            repeated: false,
        })
    }

    async fn command(
        &self,
        run: &RunId,
        id: &AppendId,
        command: &Outside,
        blobs: Vec<Blob>,
    ) -> Result<Commanded, Error> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let now = self.0.env.now();
        let it = state.run_mut(run)?;
        // Rule 2 again: receipts of commands are found by the same id.
        if let Some(Receipt { events, answer, .. }) = it.receipt(id)?.cloned() {
            let entry = self.entry_of(state, state.run(run)?);
            return Ok(Commanded {
                answer,
                events,
                entry,
                repeated: true,
            });
        }
        // Rule 34: what is driven elsewhere is not decided here.
        if it.read_only {
            return Err(Error::ReadOnly(*run));
        }
        // Rule 4: read, decide from the row and append, with no epoch of its own.
        let decision = decide_outside(&it.tip.row, &it.tip.results, command, now);
        let answer = decision.answer;
        let mut events = Vec::new();
        // Rule 19: a refusal may leave a fact, the timeout that nobody had recorded.
        if !decision.drafts.is_empty() {
            let prepared = self.prepare(decision.drafts, &blobs)?;
            events = it.extend(prepared, it.tip.row.epoch, now)?;
            it.keep_receipt(id.clone(), events.clone(), answer.clone());
            state.keep_blobs(*run, blobs, &events);
        }
        let entry = self.entry_of(state, state.run(run)?);
        drop(guard);
        if !events.is_empty() {
            self.ring(&entry.row);
        }
        Ok(Commanded {
            answer,
            events,
            entry,
            repeated: false,
        })
    }

    async fn landed(&self, run: &RunId, id: &AppendId) -> Result<Option<Vec<Event>>, Error> {
        let state = self.lock();
        let first = state.run(run)?.receipt(id)?;
        let first = first.filter(|_| id.driver_tag().is_none());
        Ok(first.map(|first| first.events.clone()))
    }

    async fn read(&self, run: &RunId, from: Seq, limit: usize) -> Result<EventPage, Error> {
        let state = self.lock();
        let head = state.run(run)?.tip.row.head.seq;
        let from = from.max(Seq::FIRST);
        let mut next = from;
        let mut items = Vec::new();
        while next <= head && items.len() < limit.max(1) {
            items.push(state.record(run, next)?);
            next = next.next();
        }
        Ok(EventPage {
            items,
            next,
            has_more: next <= head,
        })
    }

    async fn entry(&self, run: &RunId) -> Result<Entry, Error> {
        let state = self.lock();
        Ok(self.entry_of(&state, state.run(run)?))
    }

    async fn key(&self, run: &RunId) -> Result<Option<RunKey>, Error> {
        Ok(self.lock().run(run)?.key())
    }

    async fn keys(&self, run: &RunId) -> Result<Vec<(RunId, Option<RunKey>)>, Error> {
        self.lock().keys_of(run)
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<RunPage, Error> {
        self.list_page(filter, cursor, limit)
    }

    async fn find(&self, prefix: &str, limit: usize) -> Result<Vec<RunId>, Error> {
        Ok(self.find_runs(prefix, limit))
    }

    fn watch(&self, run: &RunId) -> Doorbell {
        self.0.bells.watch(*run)
    }

    fn watch_all(&self) -> Doorbell {
        self.0.bells.watch_all()
    }

    async fn news(&self, since: &Since, limit: usize) -> Result<News, Error> {
        self.news_since(since, limit)
    }

    async fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        Ok(self
            .lock()
            .blobs
            .get(digest)
            .map(|kept| kept.bytes.to_vec()))
    }

    async fn stage(&self, run: &RunId, blob: Blob) -> Result<(), Error> {
        self.prepare(Vec::new(), std::slice::from_ref(&blob))?;
        let mut state = self.lock();
        if state.run(run)?.erased {
            return Err(Error::ErasedRun(*run));
        }
        let now = self.0.env.now();
        state.stage(*run, &blob, now);
        Ok(())
    }

    async fn join(&self, owner: &Owner) -> Result<(), Error> {
        let beat = self.0.env.monotonic();
        let member = Member {
            owner: owner.clone(),
            beat,
            duty: None,
            left: false,
        };
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut ended = Vec::new();
        for run in state.runs.values_mut() {
            let left = |holder| state.owners.get(&holder).is_none_or(|member| member.left);
            // Rule 14: whoever held it will record no late fact any more.
            if run.tip.row.status().is_terminal() && run.lease.is_some_and(|(it, _)| left(it)) {
                run.lease = None;
                ended.push(run.tip.row.run);
            }
        }
        state.owners.insert(owner.id, member);
        drop(guard);
        ended.iter().for_each(|run| self.0.bells.ring(run));
        Ok(())
    }

    async fn beat(&self, owner: OwnerId) -> Result<(), Error> {
        let beat = self.0.env.monotonic();
        let mut state = self.lock();
        state.owner(owner)?;
        if let Some(member) = state.owners.get_mut(&owner) {
            member.beat = beat;
        }
        Ok(())
    }

    async fn leave(&self, owner: OwnerId) -> Result<(), Error> {
        let mut state = self.lock();
        if let Some(member) = state.owners.get_mut(&owner) {
            member.left = true;
        }
        let mut orphans = Vec::new();
        for run in state.runs.values_mut() {
            if run.lease.is_some_and(|(holder, _)| holder == owner) {
                orphans.push(run.tip.row.run);
                // Rule 14: it will record no late fact any more.
                if run.tip.row.status().is_terminal() {
                    run.lease = None;
                }
            }
        }
        let next: Vec<RunId> = orphans
            .iter()
            .flat_map(|run| self.next_in_line(&state, run))
            .collect();
        drop(state);
        orphans.iter().for_each(|run| self.0.bells.ring(run));
        next.iter().for_each(|run| self.0.bells.ring(run));
        Ok(())
    }

    async fn assign(&self, owner: OwnerId, duty: &Duty) -> Result<(), Error> {
        let mut state = self.lock();
        state.owner(owner)?;
        if let Some(member) = state.owners.get_mut(&owner) {
            member.duty = Some(duty.clone());
        }
        Ok(())
    }

    async fn owners(&self) -> Result<Vec<OwnerInfo>, Error> {
        Ok(self.list_owners())
    }

    async fn backlog(&self) -> Result<Backlog, Error> {
        Ok(self.count_backlog())
    }

    async fn claim(&self, run: &RunId, owner: OwnerId) -> Result<ClaimOutcome, Error> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let now = self.0.env.now();
        let claimer = state.owner(owner)?.to_string();
        let it = state.run(run)?;
        if it.read_only {
            return Err(Error::ReadOnly(*run));
        }
        if self.is_driven(state, it) {
            return Ok(ClaimOutcome::Driven(self.entry_of(state, it)));
        }
        let reason = self.claim_reason(state, it);
        let decision = reason.map(|why| decide_claim(&it.tip.row, it.epoch, why, &claimer));
        if let Some(ClaimDecision::Drive(_)) = decision {
            let limit = it.tip.row.facts.limit.clone();
            if !self.take_place(state, limit.as_ref(), run) {
                let entry = self.entry_of(state, state.run(run)?);
                return Ok(ClaimOutcome::Limited(entry));
            }
        }
        let it = state.run(run)?;
        // Rule 24: silence is no proof of death; only an owner that left is known dead.
        let lapsed = it.lease.filter(|(holder, _)| !state.has_left(*holder));
        let it = state.run_mut(run)?;
        let epoch = it.epoch;
        let taken = self.0.env.monotonic();
        it.lapsed
            .extend(lapsed.map(|(holder, _)| (epoch, holder, taken)));
        // Whatever follows, the dead holder's lease is over (rules 14, 15 and 18).
        it.lease = None;
        let mut claimed = false;
        if let Some(decision) = decision {
            let (drafts, epoch) = match decision {
                ClaimDecision::Drive(drafts) => {
                    claimed = true;
                    (drafts, it.epoch.next())
                }
                // Rule 17: nobody drives it, so no new epoch begins.
                ClaimDecision::CrashLoop(drafts) => (drafts, it.epoch),
            };
            it.extend(self.prepare(drafts, &[])?, epoch, now)?;
            it.epoch = epoch;
            it.lease = claimed.then_some((owner, now));
        }
        let entry = self.entry_of(state, state.run(run)?);
        drop(guard);
        self.0.bells.ring(run);
        Ok(match reason {
            Some(_) if claimed => ClaimOutcome::Claimed(entry),
            Some(_) => ClaimOutcome::CrashLoop(entry),
            None => ClaimOutcome::NotReady(entry),
        })
    }

    async fn lapsed(&self, run: &RunId) -> Result<Vec<Lapsed>, Error> {
        let state = self.lock();
        let it = state.run(run)?;
        if it.tip.row.status().is_terminal() {
            return Ok(Vec::new());
        }
        let silent = it.lapsed.iter().filter(|it| !state.has_left(it.1));
        let now = self.0.env.monotonic();
        let lapsed = silent.filter_map(|(epoch, id, taken)| {
            let owner = state.owners.get(id)?.owner.clone();
            Some(Lapsed {
                epoch: *epoch,
                owner,
                taken_ago: Some(now.saturating_sub(*taken)),
                unseen: false,
            })
        });
        Ok(lapsed.collect())
    }

    async fn release(&self, run: &RunId, epoch: Epoch, owner: OwnerId) -> Result<Entry, Error> {
        let mut state = self.lock();
        let it = state.run_mut(run)?;
        // Only the current driver can give its lease back; a fenced one has none.
        if it.epoch == epoch && it.lease.is_some_and(|(holder, _)| holder == owner) {
            it.lease = None;
        }
        let entry = self.entry_of(&state, state.run(run)?);
        let next = self.next_in_line(&state, run);
        drop(state);
        self.0.bells.ring(run);
        next.iter().for_each(|run| self.0.bells.ring(run));
        Ok(entry)
    }

    async fn held(&self, owner: OwnerId) -> Result<Vec<(RunId, Epoch)>, Error> {
        let state = self.lock();
        let its = |run: &&Run| run.lease.is_some_and(|(holder, _)| holder == owner);
        let held = state.runs.values().filter(its);
        let mut held: Vec<_> = held.map(|run| (run.tip.row.run, run.epoch)).collect();
        held.sort();
        Ok(held)
    }

    async fn claimable(
        &self,
        what: &[Claimable],
        labels: &[(String, String)],
        limit: usize,
    ) -> Result<Vec<RunId>, Error> {
        let state = self.lock();
        let drivable = |row: &Row| {
            let facts = &row.facts;
            what.iter()
                .any(|what| what.fits(facts.kind, &facts.agent, &facts.spec_digest))
                && labels
                    .iter()
                    .all(|(name, value)| facts.labels.get(name) == Some(value))
        };
        let runs = state.runs.values().filter(|run| drivable(&run.tip.row));
        let runs = runs.filter(|run| self.claim_reason(&state, run).is_some());
        let has_place = |run: &&Run| {
            let row = &run.tip.row;
            let limit = row.facts.limit.as_ref();
            !limit.is_some_and(|limit| self.is_full(&state, limit, &row.run))
        };
        let runs = runs.filter(has_place);
        Ok(runs.take(limit).map(|run| run.tip.row.run).collect())
    }

    async fn sessions(&self) -> Result<Vec<SessionInfo>, Error> {
        Ok(self.list_sessions())
    }

    async fn close_session(&self, session: &Session) -> Result<(), Error> {
        self.lock().closed.insert(session.as_str().to_owned());
        Ok(())
    }

    async fn delete(&self, run: &RunId) -> Result<Deleted, Error> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let it = state.run(run)?;
        let still = |why: String| Err(Error::StillNeeded { run: *run, why });
        if !it.tip.row.status().is_terminal() {
            return still(format!("it is {}; cancel it first", it.tip.row.status()));
        }
        if self.is_driven(state, it) {
            return still("its driver has not given its lease back yet".to_owned());
        }
        // Rule 31: a fork shares its log.
        let forks = state.forks_of(run);
        if !forks.is_empty() {
            return Err(Error::ForkedFrom { run: *run, forks });
        }
        // Rule 15: a live child's fate is decided from it.
        if let Some(child) = state.live_child_of(run) {
            return still(format!("its child {child} has not ended"));
        }
        if let Some(key) = it.started.key.clone() {
            state.old_keys.insert(key, (*run, self.0.env.now()));
        }
        let mut deleted = Deleted::default();
        if let Some(place) = state.places.remove(run)
            && let Some(gone) = state.runs.remove(&place)
        {
            deleted = Deleted::of(gone.log.iter());
        }
        deleted.bytes += state.drop_blobs(run);
        drop(guard);
        self.0.bells.ring(run);
        Ok(deleted)
    }

    async fn erase(&self, run: &RunId, with: Heirs) -> Result<Vec<RunId>, EraseError> {
        self.erase_runs(*run, with)
    }

    async fn stats(&self) -> Result<Stats, Error> {
        let state = self.lock();
        let with = |status| {
            state
                .runs
                .values()
                .filter(move |run| run.tip.row.status() == status)
        };
        let count = |status| (status, with(status).count() as u64);
        Ok(Stats {
            runs: Status::ALL.into_iter().map(count).collect(),
            events: state.runs.values().map(|run| run.log.len() as u64).sum(),
            blobs: state.blobs.len() as u64,
            blob_bytes: state
                .blobs
                .values()
                .map(|kept| kept.bytes.len() as u64)
                .sum(),
            disk_bytes: None,
        })
    }
}
