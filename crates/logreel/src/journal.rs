//! One driver's way into the log: decide, append, fold, in that order, one append at a time.
//!
//! What finishes while an append is in flight goes into the next one. Whoever wants something recorded
//! pushes it and then queues for the writer; the first in line appends for all. A future that is
//! dropped half-way strands nobody: its append stays where the next in line finds it and sends it
//! again under the same id, which gets the first answer.

mod next;

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use logreel_core::event::{Resolution, StepStarted, WaitKind};
use logreel_core::meaning::ResultSet;
use logreel_core::row::End;
use logreel_core::state::Map;
use logreel_core::{
    AppendId, Blob, Body, Command, Digest, Epoch, Event, Json, Payload, Record, Rejected, RunId,
    RunState, Seq, Session, StepId,
};
use logreel_store::{Append, AppendError, Appended, Entry, Env, EventPage, OwnerId, RunStore};
use tokio::sync::watch;

use self::next::Decided;
pub(crate) use self::next::NEW_WAIT;
use crate::ctx::Counted;
use crate::hook::Hooks;
use crate::lease::Lease;
use crate::outage::{Outage, Patience};
use crate::owner::LOOK_EVERY;
use crate::{Error, ErrorKind, value};

/// Events per page when a log is read.
pub(crate) const PAGE: usize = 1000;
/// How many bytes of recorded results are kept from the first fold; the rest is read again.
const CACHE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How many milliseconds a look waits for an append that is under way.
const LOOK_TRIES: u32 = 100;

/// Why a driver must stop what it is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The run was cancelled.
    Cancelled,
    /// The run was paused.
    Paused,
    /// Nothing can go on until a wait ends.
    Parked,
    /// The engine closes.
    Drained,
    /// Another driver took over, or the log cannot be written.
    Lost(String),
}

/// What a look at the log came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looked {
    /// What there was, or what could be read.
    Read,
    /// Nothing: an append is in the way whose sender was dropped. What came before it is read once it has an answer, and
    /// nobody may ever come who sends it again: whoever looked must [`Journal::flush`].
    LeftBehind,
}

/// Why something was not recorded.
#[derive(Debug, Clone)]
pub(crate) enum RecordError {
    Rejected(Rejected),
    /// The signal this wait is for came before it; it must be taken with the wait.
    SignalIsKept,
    /// This one is too large or does not fit; others may.
    Refused(Error),
    /// The writer is dead; this is what killed it.
    Dead(Error),
}

type Answer = Result<Vec<Event>, RecordError>;

/// Where an answer is put. Nobody waits here: whoever asked waits for the writer, and finds it then. Only the one who
/// has the writer answers, and lets go of the slot before the writer is free.
type Slot = Arc<OnceLock<Answer>>;

struct Pending {
    commands: Vec<Command>,
    blobs: Vec<Blob>,
    answer: Slot,
}

struct InFlight {
    append: Append,
    /// Each with how many of the append's events are its own.
    members: Vec<(Pending, usize)>,
    patience: Patience,
}

struct Folded {
    state: RunState,
    results: ResultSet,
    outbox: VecDeque<Pending>,
    /// Steps under way that may still end without a `step.started` of their own. One stays here until
    /// its outcome is folded, so that a wait that is decided meanwhile announces it.
    quiet: Map<StepId, StepStarted>,
    /// The append in flight starts a wait.
    wait_in_flight: bool,
    /// Batches of one, after a batch was refused because of one of its members.
    alone: usize,
    dead: Option<Error>,
    recorded: HashMap<Seq, Event>,
    recorded_bytes: usize,
    /// Events that a program that goes on by the fold has not read yet; `None` for the others.
    unread: Option<Vec<Event>>,
}

pub(crate) struct Journal {
    pub(crate) run: RunId,
    pub(crate) epoch: Epoch,
    /// Whose lease it is.
    owner: OwnerId,
    pub(crate) session: Option<Session>,
    pub(crate) store: Arc<dyn RunStore>,
    pub(crate) env: Arc<dyn Env>,
    hooks: Hooks,
    folded: Mutex<Folded>,
    writer: tokio::sync::Mutex<Option<InFlight>>,
    changed: watch::Sender<u64>,
    stop: watch::Sender<Option<Stop>>,
    /// The tag of the next append. Drawn once: the kernel is asked for every random number.
    tag: AtomicU64,
    /// Appends that had landed before they were answered.
    answered_again: AtomicU64,
    /// Who waits for an answer of the store: the run has more to do than to wait.
    asking: AtomicUsize,
}

impl Journal {
    /// Folds the run's log as it is and gets ready to extend it by this owner's lease. `read_by`: the program
    /// reads every event itself.
    pub(crate) async fn load(
        &Lease { run, epoch, .. }: &Lease,
        owner: OwnerId,
        store: Arc<dyn RunStore>,
        env: Arc<dyn Env>,
        hooks: Hooks,
        read_by: bool,
        mut seen: impl FnMut(&Event) + Send,
    ) -> Result<Self, Error> {
        let mut state: Option<RunState> = None;
        let mut recorded = HashMap::new();
        let mut recorded_bytes = 0;
        let mut unread = read_by.then(Vec::new);
        let mut from = Seq::FIRST;
        let (state, entry) = loop {
            let mut folded = Ok(());
            let mut each = |event: Event| {
                folded = match &mut state {
                    None => RunState::begin(run, &event).map(|first| state = Some(first)),
                    Some(state) => state.apply(&event),
                };
                if folded.is_err() {
                    return ControlFlow::Break(());
                }
                seen(&event);
                if let Some(unread) = &mut unread {
                    unread.push(event.clone());
                }
                if let Some(bytes) = result_bytes(&event.body)
                    && recorded_bytes < CACHE_BYTES_MAX
                {
                    recorded_bytes += bytes;
                    recorded.insert(event.seq, event);
                }
                ControlFlow::Continue(())
            };
            from = store.scan(&run, from, &mut each).await?;
            folded.map_err(logreel_store::Error::from)?;
            let Some(folded) = state.take() else {
                return Err(logreel_store::Error::corrupt(format!("{run} has no events")).into());
            };
            // The sum of results is kept beside the head and is only as good as that head; someone
            // outside may have appended since the last page.
            let entry = store.entry(&run).await?;
            if entry.row.head == folded.row.head {
                break (folded, entry);
            }
            state = Some(folded);
        };
        let session = state.row.facts.session.clone();
        let folded = Folded {
            state,
            results: entry.results,
            outbox: VecDeque::new(),
            quiet: Map::default(),
            wait_in_flight: false,
            alone: 0,
            dead: None,
            recorded,
            recorded_bytes,
            unread,
        };
        let tag = env.random_u64();
        let journal = Self {
            run,
            epoch,
            owner,
            session,
            store,
            env,
            hooks,
            folded: Mutex::new(folded),
            writer: tokio::sync::Mutex::new(None),
            changed: watch::Sender::new(0),
            stop: watch::Sender::new(None),
            tag: AtomicU64::new(tag),
            answered_again: AtomicU64::new(0),
            asking: AtomicUsize::new(0),
        };
        // First: that the run is another's matters more than what it is told to do.
        journal.still_holds(&entry);
        journal.notice_stops();
        Ok(journal)
    }

    /// Whether the run's lease is this driver's own, which appends nothing more when it is not: whoever takes the place of a
    /// silent driver leaves no event that says so, and a store that was replaced by a copy may give the same epoch to another.
    pub(crate) fn still_holds(&self, entry: &Entry) -> bool {
        let why = match &entry.driver {
            _ if entry.epoch != self.epoch => {
                format!("another driver took over (epoch {})", entry.epoch)
            }
            Some(driver) if driver.owner.id == self.owner => return true,
            Some(_) => "another driver has the same epoch".to_owned(),
            // A run that was taken from silent drivers often enough is left to a person, under the same epoch.
            None => "its lease was taken away or given back".to_owned(),
        };
        self.die(&Error::DriverStopped(why));
        false
    }

    /// Looks at the state. Nothing may await while it is borrowed.
    pub(crate) fn with_state<T>(&self, look: impl FnOnce(&RunState) -> T) -> T {
        look(&self.folded().state)
    }

    /// What the program has not read yet.
    pub(crate) fn take_unread(&self) -> Vec<Event> {
        let mut folded = self.folded();
        folded
            .unread
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Rings after the state changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Resolves when it is time to stop, with the first reason.
    pub(crate) async fn told_to_stop(&self) -> Stop {
        let mut stops = self.stop.subscribe();
        let stop = stops
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|stop| stop.clone());
        stop.unwrap_or_else(|| Stop::Lost("the journal is gone".to_owned()))
    }

    /// How often an append got the answer of the first time that it was sent. That one is given whoever
    /// drives the run by now (SEMANTICS 2).
    pub(crate) fn answered_again(&self) -> u64 {
        self.answered_again.load(Ordering::SeqCst)
    }

    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.stop.borrow().clone()
    }

    /// Whether this driver appends nothing more, also when it had been told to stop for another reason before.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(*self.stop.borrow(), Some(Stop::Lost(_))) || self.folded().dead.is_some()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// Asks the driver to stop; the first reason stays.
    pub(crate) fn stop(&self, why: Stop) {
        self.stop.send_if_modified(|stop| {
            let first = stop.is_none();
            if first {
                *stop = Some(why);
            }
            first
        });
    }

    /// A step begins. As long as the answer says so, and the guard lives, it may go unannounced: a
    /// wait that starts meanwhile announces it in the same append (SEMANTICS 18).
    pub(crate) fn begin_step(&self, started: StepStarted) -> (Quiet<'_>, Announce) {
        let step = started.step.clone();
        let mut folded = self.folded();
        let waits = folded.wait_in_flight || !folded.state.row.facts.waits.is_empty();
        folded.quiet.insert(step.clone(), started);
        let journal = self;
        let announce = if waits {
            Announce::Now
        } else {
            Announce::Later
        };
        (Quiet { journal, step }, announce)
    }

    /// Records what the commands decide to; returns when it is durable, with the events.
    pub(crate) async fn record(&self, commands: Vec<Command>, blobs: Vec<Blob>) -> Answer {
        let answer = self.submit(commands, blobs)?;
        self.flush().await;
        // `flush` answers everything that was in the outbox before it began.
        let answer = Arc::into_inner(answer).and_then(OnceLock::into_inner);
        answer.unwrap_or_else(|| {
            let why = "no answer came to what was to be recorded".to_owned();
            tracing::error!(run = %self.run, "{why}");
            self.stop(Stop::Lost(why.clone()));
            Err(RecordError::Dead(Error::DriverStopped(why)))
        })
    }

    /// Puts commands in the outbox, to go out with the next append.
    pub(crate) fn submit(
        &self,
        commands: Vec<Command>,
        blobs: Vec<Blob>,
    ) -> Result<Slot, RecordError> {
        let mut folded = self.folded();
        if let Some(error) = &folded.dead {
            return Err(RecordError::Dead(error.clone()));
        }
        let answer = Slot::default();
        folded.outbox.push_back(Pending {
            commands,
            blobs,
            answer: answer.clone(),
        });
        Ok(answer)
    }

    /// Appends until the outbox is empty.
    pub(crate) async fn flush(&self) {
        let mut writer = self.writer.lock().await;
        loop {
            // What was on its way is not sent again either: it could land in what is another's by now.
            let dead = self.folded().dead.clone();
            if let Some(error) = dead {
                self.give_up(writer.take(), &error);
                return;
            }
            if writer.is_none() {
                *writer = self.next_batch();
            }
            let Some(in_flight) = writer.as_mut() else {
                return;
            };
            match self.store.append(&in_flight.append).await {
                Ok(appended) => {
                    if let Some(InFlight { members, .. }) = writer.take() {
                        self.landed(members, appended).await;
                    }
                }
                Err(AppendError::Conflict { .. }) => {
                    if let Some(in_flight) = writer.take() {
                        self.put_back(in_flight, false);
                    }
                    if let Err(error) = self.surely_catch_up().await {
                        self.die(&error);
                    }
                }
                Err(AppendError::Store(
                    error @ (logreel_store::Error::Ambiguous { .. }
                    | logreel_store::Error::Unavailable { .. }),
                )) => {
                    let error = error.into();
                    if self
                        .wait_out(&mut in_flight.patience, &error)
                        .await
                        .is_break()
                    {
                        self.give_up(writer.take(), &error);
                        return;
                    }
                }
                Err(
                    error @ (AppendError::Illegal(_)
                    | AppendError::Store(logreel_store::Error::TooLarge { .. })),
                ) => {
                    if let Some(mut in_flight) = writer.take() {
                        if in_flight.members.len() > 1 {
                            self.put_back(in_flight, true);
                        } else if let Some((member, _)) = in_flight.members.pop() {
                            reply(member, Err(RecordError::Refused(error.into())));
                        }
                    }
                }
                Err(error) => {
                    self.give_up(writer.take(), &error.into());
                    return;
                }
            }
        }
    }

    /// Waits before a store is asked again that cannot be reached. Breaks off when this driver was told to stop
    /// and has waited long enough.
    async fn wait_out(&self, patience: &mut Patience, error: &Error) -> ControlFlow<()> {
        let is_stopped = self.is_stopped();
        patience
            .wait(&*self.env, &self.run, error, is_stopped)
            .await
    }

    /// Reads what others appended, when the run's doorbell rings. `head` is how far the log is known
    /// to reach; after an append of our own there is nothing to read.
    pub(crate) async fn look(&self, head: Option<Seq>) -> Result<Looked, Error> {
        for _ in 0..LOOK_TRIES {
            if head.is_some_and(|head| head <= self.with_state(|state| state.row.head.seq)) {
                return Ok(Looked::Read);
            }
            // Never in line before the next append: a step would wait for a look.
            match self.writer.try_lock() {
                Ok(writer) if writer.is_none() => {
                    return self.catch_up().await.map(|()| Looked::Read);
                }
                Ok(_) => return Ok(Looked::LeftBehind),
                Err(_) => self.env.sleep(Duration::from_millis(1)).await,
            }
        }
        // An append that takes so long waits for its store. Whoever looks must hear of other things meanwhile,
        // and looks again.
        Ok(Looked::Read)
    }

    /// The event at `seq`, which holds a result.
    pub(crate) async fn result(&self, seq: Seq) -> Result<Event, Error> {
        let cached = {
            let mut folded = self.folded();
            let event = folded.recorded.remove(&seq);
            if folded.recorded.is_empty() {
                folded.recorded_bytes = 0;
            }
            event
        };
        if let Some(event) = cached {
            return Ok(event);
        }
        let read = || async { Ok(self.store.events(&self.run, seq, 1).await?) };
        let mut page = self.patiently(read).await?;
        let missing =
            || logreel_store::Error::corrupt(format!("event {seq} of {} is missing", self.run));
        Ok(page.items.pop().ok_or_else(missing)?)
    }

    /// The value of a body, read from its blob when it is in one.
    pub(crate) async fn value(&self, payload: &Payload) -> Result<Json, Error> {
        self.patiently(|| value::resolve(&*self.store, payload))
            .await
    }

    /// A blob; `None` when the store has none of that digest.
    pub(crate) async fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        let read = || async { Ok(self.store.blob(digest).await?) };
        self.patiently(read).await
    }

    /// Whether someone waits for an answer of the store.
    pub(crate) fn is_asking(&self) -> bool {
        self.asking.load(Ordering::SeqCst) > 0
    }

    /// Asks again and again while the store cannot be reached: its bad moment is no failure of the run. It is
    /// one only for a run that was cancelled.
    pub(crate) async fn patiently<T, F>(&self, ask: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let _asking = Counted::new(&self.asking);
        let mut outage = Outage::default();
        loop {
            let error = match ask().await {
                Err(error) if error.kind() == ErrorKind::Unavailable => error,
                answer => return answer,
            };
            outage.tell(&self.run, &error, "the store did not answer");
            tokio::select! {
                () = self.env.sleep(LOOK_EVERY) => {}
                stop = self.told_to_stop() => match stop {
                    Stop::Cancelled => return Err(error),
                    // The function is about to be dropped, and must not see it as its own failure.
                    Stop::Paused | Stop::Parked | Stop::Drained | Stop::Lost(_) => {
                        std::future::pending().await
                    }
                },
            }
        }
    }

    fn folded(&self) -> MutexGuard<'_, Folded> {
        // A panic while the state is borrowed would be ours; the state itself is changed by `apply`,
        // which changes nothing when it fails.
        self.folded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_batch(&self) -> Option<InFlight> {
        let mut folded = self.folded();
        let expect = folded.state.row.head;
        let Decided {
            drafts,
            blobs,
            members,
        } = folded.decide_next(&self.run, self.epoch)?;
        let append = Append {
            run: self.run,
            expect,
            epoch: self.epoch,
            id: AppendId::driver(self.next_tag()),
            drafts,
            blobs,
        };
        Some(InFlight {
            append,
            members,
            patience: Patience::default(),
        })
    }

    /// A tag that no other append has at this place of the log. 0 is the store's own.
    fn next_tag(&self) -> u64 {
        self.tag.fetch_add(1, Ordering::Relaxed).max(1)
    }

    /// Folds what landed and answers its members, then tells the hooks: a slow hook delays neither a
    /// cancel nor a step.
    async fn landed(&self, members: Vec<(Pending, usize)>, appended: Appended) {
        let Appended {
            events,
            results,
            repeated,
        } = appended;
        if repeated {
            // Before anyone acts on it.
            self.answered_again.fetch_add(1, Ordering::SeqCst);
        }
        if let Err(error) = self.fold_all(&events, results) {
            self.die(&error);
        }
        self.folded().wait_in_flight = false;
        self.notice_stops();
        let told = self.hooks.wanted().then(|| events.clone());
        match <[_; 1]>::try_from(members) {
            Ok([(member, count)]) => {
                debug_assert_eq!(
                    events.len(),
                    count,
                    "an append has the events it was sent with"
                );
                reply(member, Ok(events));
            }
            Err(members) => {
                let mut own = events.into_iter();
                for (member, count) in members {
                    reply(member, Ok(own.by_ref().take(count).collect()));
                }
            }
        }
        if let Some(events) = told {
            let session = self.session.as_ref();
            self.hooks.tell(self.run, session, &events).await;
        }
    }

    /// [`Journal::catch_up`] for an append that conflicts: what it holds was done, and would be done again
    /// if it were given up because a read failed (SEMANTICS 3).
    async fn surely_catch_up(&self) -> Result<(), Error> {
        let mut patience = Patience::default();
        loop {
            let error = match self.catch_up().await {
                Err(error) if error.kind() == ErrorKind::Unavailable => error,
                caught_up => return caught_up,
            };
            if self.wait_out(&mut patience, &error).await.is_break() {
                return Err(error);
            }
        }
    }

    /// Reads what others appended.
    async fn catch_up(&self) -> Result<(), Error> {
        let head = self.with_state(|state| state.row.head);
        let found = match self.store.read(&self.run, head.seq, PAGE).await {
            Err(logreel_store::Error::NotFound(_)) => None,
            read => Some(read?),
        };
        // The last event that was folded comes first. A store that was replaced by a copy which had not got all of it,
        // or nothing of the run, has it no more: this driver would ask for ever for what comes behind it, or build on
        // what never was.
        let has_head = |page: &EventPage| {
            let last = page.items.first();
            last.is_some_and(|last| (last.seq, last.digest) == (head.seq, head.digest))
        };
        let Some(mut page) = found.filter(has_head) else {
            let what = format!(
                "the store has lost event {} of {}, which it acknowledged (was it replaced by a copy that had not got \
                 everything?)",
                head.seq, self.run
            );
            let error = logreel_store::Error::corrupt(what).into();
            self.die(&error);
            return Err(error);
        };
        page.items.remove(0);
        if !page.items.is_empty() || page.has_more {
            // Whoever appended may be another who drives.
            let entry = self.store.entry(&self.run).await?;
            if !self.still_holds(&entry) {
                return Ok(());
            }
        }
        loop {
            let events = page.items.iter().map(Record::decode);
            let events: Vec<Event> = events
                .collect::<Result<_, _>>()
                .map_err(logreel_store::Error::from)?;
            if !events.is_empty() {
                self.fold_all(&events, ResultSet::of_events(&events))?;
                self.notice_stops();
                let session = self.session.as_ref();
                self.hooks.tell(self.run, session, &events).await;
            }
            if !page.has_more {
                return Ok(());
            }
            page = self.store.read(&self.run, page.next, PAGE).await?;
        }
    }

    /// `results` is what the events add to the sum of results.
    fn fold_all(&self, events: &[Event], results: ResultSet) -> Result<(), Error> {
        let mut folded = self.folded();
        for event in events {
            folded
                .state
                .apply(event)
                .map_err(logreel_store::Error::from)?;
            if let Some(step) = ended_step(&event.body) {
                folded.quiet.remove(step);
            }
        }
        if let Some(unread) = &mut folded.unread {
            unread.extend_from_slice(events);
        }
        folded.results = folded.results.plus(results);
        drop(folded);
        if self.changed.receiver_count() > 0 {
            self.changed.send_modify(|changes| *changes += 1);
        }
        Ok(())
    }

    fn notice_stops(&self) {
        let stop = self.with_state(|state| {
            if state.row.epoch > self.epoch {
                // Noticed in what others append, so that also a step that appends nothing stops.
                let epoch = state.row.epoch;
                return Some(Stop::Lost(format!(
                    "another driver took over (epoch {epoch})"
                )));
            }
            // A recorder stops its program itself and stays: nobody else could go on with it.
            let heeds = !crate::record::is_with_recorder(&state.row.facts);
            let paused = || {
                let mut waits = state.row.facts.waits.iter();
                heeds && waits.any(|open| open.wait.kind == WaitKind::Paused)
            };
            match &state.row.facts.ended {
                Some(ended) => {
                    matches!(ended.end, End::Cancelled { .. }).then_some(Stop::Cancelled)
                }
                None => paused().then_some(Stop::Paused),
            }
        });
        if let Some(stop) = stop {
            self.stop(stop);
        }
    }

    fn put_back(&self, in_flight: InFlight, one_by_one: bool) {
        let mut folded = self.folded();
        folded.wait_in_flight = false;
        if one_by_one {
            folded.alone = in_flight.members.len();
        }
        for (member, _) in in_flight.members.into_iter().rev() {
            folded.outbox.push_front(member);
        }
    }

    fn give_up(&self, in_flight: Option<InFlight>, error: &Error) {
        if let Some(in_flight) = in_flight {
            self.put_back(in_flight, false);
        }
        self.die(error);
    }

    /// The writer is dead: everyone in line is told, and so is whoever comes next.
    fn die(&self, error: &Error) {
        let outbox = {
            let mut folded = self.folded();
            folded.dead.get_or_insert_with(|| error.clone());
            std::mem::take(&mut folded.outbox)
        };
        for pending in outbox {
            reply(pending, Err(RecordError::Dead(error.clone())));
        }
        self.stop(Stop::Lost(error.to_string()));
    }
}

/// Whether a step that begins is announced before or after it has taken a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announce {
    /// Something waits: the log must show what runs, or the run would look idle.
    Now,
    Later,
}

/// A step under way that may not be announced yet.
pub(crate) struct Quiet<'a> {
    journal: &'a Journal,
    step: StepId,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.journal.folded().quiet.remove(&self.step);
    }
}

/// The step whose attempt this ends.
fn ended_step(body: &Body) -> Option<&StepId> {
    match body {
        Body::StepFinished(finished) => Some(&finished.step),
        Body::StepFailed(failed) => Some(&failed.step),
        _ => None,
    }
}

fn reply(pending: Pending, answer: Answer) {
    if pending.answer.set(answer).is_err() {
        tracing::error!("a record was answered twice: the first answer stays");
    }
}

/// How long a recorded result's text is; `None` when the event holds none.
fn result_bytes(body: &Body) -> Option<usize> {
    let value = match body {
        Body::StepFinished(finished) => Some(&finished.output),
        Body::StepResolved(resolved) => match &resolved.resolution {
            Resolution::Returned(output) => Some(output),
            Resolution::Failed(_) | Resolution::Retry => None,
        },
        Body::WaitEnded(ended) => Some(&ended.value),
        _ => return None,
    };
    let text = value.and_then(Payload::inline).map(Json::text);
    Some(text.map_or(0, str::len))
}
