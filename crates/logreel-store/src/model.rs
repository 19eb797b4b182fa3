//! What goes into a store and what comes out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use logreel_core::codec::StoredBody;
use logreel_core::event::{RunKind, RunStarted};
use logreel_core::meaning::ResultSet;
use logreel_core::{
    AppendId, Blob, Digest, Draft, Epoch, Event, Head, Ready, Record, Rejected, Row, RunId, Seq,
    Session, Status, Timestamp,
};

/// How long a blob that no event names yet is kept (SEMANTICS 32).
pub(crate) const STAGED: Duration = Duration::from_secs(60 * 60);

/// A run to be created.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Its id.
    pub run: RunId,
    /// Event 1. Key, session and parent are in it.
    pub started: RunStarted,
    /// What follows event 1 at once, for a run whose work began elsewhere.
    pub then: Vec<Draft>,
    /// Blobs that these events refer to.
    pub blobs: Vec<Blob>,
    /// Who drives it from the start, with epoch 1; `None` leaves it to whoever claims it, and so does a
    /// limit without a place: then the entry has no driver.
    pub owner: Option<OwnerId>,
}

impl NewRun {
    /// Whether it is over when it is created: it is kept from someone else's record, and takes no session's
    /// place.
    pub fn has_ended(&self) -> bool {
        self.then.iter().any(|draft| draft.body.is_terminal())
    }
}

/// The answer to a create.
#[derive(Debug, Clone)]
pub enum Created {
    /// It is new.
    New(Entry),
    /// The same id or key, with the same spec, session and input, was there already.
    Attached(Entry),
}

impl Created {
    /// The run as it is.
    pub fn entry(&self) -> &Entry {
        match self {
            Self::New(entry) | Self::Attached(entry) => entry,
        }
    }
}

/// A driver's append: all of it, or nothing.
#[derive(Debug, Clone)]
pub struct Append {
    /// Which run.
    pub run: RunId,
    /// The head it was decided on.
    pub expect: Head,
    /// The driver's epoch.
    pub epoch: Epoch,
    /// Names this append.
    pub id: AppendId,
    /// What happened.
    pub drafts: Vec<Draft>,
    /// Blobs that the events refer to.
    pub blobs: Vec<Blob>,
}

/// What an append became.
#[derive(Debug, Clone, PartialEq)]
pub struct Appended {
    /// The events, in their places.
    pub events: Vec<Event>,
    /// What they add to the sum of results. The store has hashed them; its callers need not.
    pub results: ResultSet,
    /// The append had landed before; this is its first answer.
    pub repeated: bool,
}

impl Appended {
    /// The first answer to an append that had landed before.
    pub fn again(events: Vec<Event>) -> Self {
        Self {
            results: ResultSet::of_events(&events),
            events,
            repeated: true,
        }
    }
}

/// What an outside command led to.
#[derive(Debug, Clone)]
pub struct Commanded {
    /// What to tell the caller.
    pub answer: Result<(), Rejected>,
    /// What was appended; empty when there was nothing to do.
    pub events: Vec<Event>,
    /// The run as it is now.
    pub entry: Entry,
    /// The command had landed before; this is its first answer.
    pub repeated: bool,
}

/// A run as the store knows it: the row, and who drives it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The projection of its log.
    pub row: Row,
    /// The sum of its results.
    pub results: ResultSet,
    /// The latest driver's epoch.
    pub epoch: Epoch,
    /// Who holds the lease.
    pub driver: Option<Driver>,
    /// From when a worker may claim it, when nobody drives it.
    pub ready_at: Option<Timestamp>,
    /// As many runs as its limit allows are driven, and it is not one of them: it must wait in line.
    pub over_limit: bool,
    /// Its bodies were erased.
    pub erased: bool,
    /// It was imported and not taken over.
    pub read_only: bool,
}

impl Entry {
    /// Whether someone alive holds the lease.
    pub fn is_driven(&self) -> bool {
        self.driver.as_ref().is_some_and(|driver| driver.alive)
    }

    /// Whether a claim at `now` may succeed: nobody alive drives it, it is ready, and its limit has a
    /// place. What a dead owner held is worth a claim also when it waits, which takes its lease away.
    pub fn is_worth_a_claim(&self, now: Timestamp) -> bool {
        !self.over_limit && self.is_unattended(now)
    }

    /// Whether it would be driven at `now`, were it not for its limit.
    pub fn is_in_line(&self, now: Timestamp) -> bool {
        self.over_limit && self.is_unattended(now)
    }

    fn is_unattended(&self, now: Timestamp) -> bool {
        match &self.driver {
            _ if self.read_only => false,
            Some(driver) => !driver.alive,
            None => {
                let ready = Ready::shown(&self.row, self.ready_at);
                ready.claim_reason(false, now).is_some()
            }
        }
    }

    /// Planning, executing or verifying, and its owner is gone.
    pub fn is_orphaned(&self) -> bool {
        self.is_at_work() && self.driver.as_ref().is_some_and(|driver| !driver.alive)
    }

    /// Planning, executing or verifying, and nobody's: it was handed back, and goes on when it is taken.
    pub fn is_handed_back(&self) -> bool {
        self.is_at_work() && self.driver.is_none()
    }

    fn is_at_work(&self) -> bool {
        matches!(
            self.row.status(),
            Status::Planning | Status::Executing | Status::Verifying
        )
    }
}

/// Who holds a run's lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Driver {
    /// The process.
    pub owner: Owner,
    /// Since when.
    pub since: Timestamp,
    /// Whether the owner lives, as far as is known here.
    pub alive: bool,
}

/// An earlier driver that fell silent: its lease ran out and was taken, but nobody knows that it is
/// dead. It may be frozen or cut off, and about to go on with what it had begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lapsed {
    /// What it drove under.
    pub epoch: Epoch,
    /// The process.
    pub owner: Owner,
    /// How long ago the run was taken from it, by the store's own clock, which leases are compared with; `None` when the
    /// store has none, or it says nothing of that time. Whoever waits then counts for itself.
    pub taken_ago: Option<Duration>,
    /// It is of this host, and what it left running cannot be seen from here all the same: its notes are in a
    /// folder that is not this process's to read. Like one of another host.
    pub unseen: bool,
}

/// A process that drives runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its id in the store.
    pub id: OwnerId,
    /// (machine id, boot id, pid namespace): where its pid means something.
    pub host: String,
    /// The host's name, for people.
    pub host_name: String,
    /// Its pid there.
    pub pid: u32,
}

impl Owner {
    /// How the host of one begins that is no process known here: a client that holds one lease, known by
    /// what follows. Nothing but its silence tells that it is gone.
    pub const EXTERNAL: &str = "external:";

    /// Whether it is a client that drives from outside.
    pub fn is_external(&self) -> bool {
        self.host.starts_with(Self::EXTERNAL)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_external() {
            true => f.write_str("an external client"),
            false => write!(f, "process {} on {}", self.pid, self.host_name),
        }
    }
}

/// A process that drives runs, drawn anew for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId(pub u64);

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The answer to a claim.
#[derive(Debug, Clone)]
pub enum ClaimOutcome {
    /// The claimer drives it, under `entry.epoch`.
    Claimed(Entry),
    /// Someone else does.
    Driven(Entry),
    /// It has ended, or waits for someone.
    NotReady(Entry),
    /// As many runs with its limit's key as may be are driven. Nothing was changed; it stays in line.
    Limited(Entry),
    /// Its drivers keep dying: the claim made it wait for a person. That is the log's last event.
    CrashLoop(Entry),
}

/// What a worker can drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimable {
    /// The kind.
    pub kind: RunKind,
    /// The names; `None` = any.
    pub agents: Option<Vec<Arc<str>>>,
    /// The specs, by digest; `None` = any. A run of another version of a task is left alone.
    pub specs: Option<Vec<Digest>>,
}

impl Claimable {
    /// Whether a run of this kind, name and spec is among them.
    pub fn fits(&self, kind: RunKind, agent: &str, spec: &Digest) -> bool {
        let named = |agents: &Vec<Arc<str>>| agents.iter().any(|it| **it == *agent);
        self.kind == kind
            && self.agents.as_ref().is_none_or(named)
            && self.specs.as_ref().is_none_or(|specs| specs.contains(spec))
    }
}

/// A page of a log: events as stored, or decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct EventPage<T = Record> {
    /// The events.
    pub items: Vec<T>,
    /// Where the next page begins.
    pub next: Seq,
    /// Whether there is more now.
    pub has_more: bool,
}

impl<T> EventPage<T> {
    /// The same page of something else.
    pub(crate) fn try_map<U, E>(
        self,
        change: impl FnMut(T) -> Result<U, E>,
    ) -> Result<EventPage<U>, E> {
        Ok(EventPage {
            items: self
                .items
                .into_iter()
                .map(change)
                .collect::<Result<_, _>>()?,
            next: self.next,
            has_more: self.has_more,
        })
    }
}

/// A place in a list of runs; opaque.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub String);

/// From where the news of all runs are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Since {
    /// From the first event that is still there.
    Beginning,
    /// From now on: there is nothing yet, and the page says where to go on.
    Now,
    /// From the end of an earlier page.
    After(Cursor),
}

/// An event that was stored, of whichever run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Which run.
    pub run: RunId,
    /// Which event of it.
    pub seq: Seq,
    /// Where whoever has it goes on.
    pub next: Cursor,
}

/// What was stored, whoever's it is, in the order in which it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// Which events.
    pub items: Vec<Told>,
    /// Where the next page begins.
    pub next: Cursor,
    /// Whether there is more now.
    pub has_more: bool,
}

/// A page of runs, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct RunPage {
    /// The runs.
    pub items: Vec<Entry>,
    /// Where the next page begins; `None` when there is no more.
    pub next: Option<Cursor>,
}

/// Which runs to list. All conditions must hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// Any of these; empty = all, or those that `orphaned` means.
    pub status: Vec<Status>,
    /// Also those that are orphaned, whatever their status.
    pub orphaned: bool,
    /// In this session.
    pub session: Option<Session>,
    /// Of this agent, workflow or task.
    pub agent: Option<String>,
    /// With all these labels.
    pub labels: Vec<(String, String)>,
    /// Created at or after.
    pub since: Option<Timestamp>,
    /// Created before.
    pub before: Option<Timestamp>,
    /// With all these words in input, output, agent or labels.
    pub search: Option<String>,
    /// Of this spec.
    pub spec_digest: Option<Digest>,
    /// With this final state.
    pub final_state_digest: Option<Digest>,
    /// Started by this run.
    pub parent: Option<RunId>,
}

impl Filter {
    /// Whether the run is of a status that is asked for, or orphaned when that is.
    pub(crate) fn has_status(&self, entry: &Entry) -> bool {
        self.has(entry.row.status()) || self.orphaned && entry.is_orphaned()
    }

    /// Whether runs of this status are asked for, orphaned or not.
    pub(crate) fn has(&self, status: Status) -> bool {
        let any = self.status.is_empty() && !self.orphaned;
        any || self.status.contains(&status)
    }
}

/// A session as the store knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionInfo {
    /// Its name.
    pub session: Session,
    /// How many runs it has.
    pub runs: u64,
    /// The run that is active in it.
    pub active: Option<RunId>,
    /// When its latest run was created.
    pub last_created_at: Option<Timestamp>,
    /// Whether new runs are refused.
    pub closed: bool,
}

/// What went with a run that was deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Its own events.
    pub events: u64,
    /// The bytes of their bodies, and of the blobs that only it needed, as the store kept them.
    pub bytes: u64,
}

impl Deleted {
    /// What events weigh.
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut weight = Self::default();
        for event in events {
            weight.events += 1;
            if let StoredBody::Text(text) = &event.body {
                weight.bytes += text.len() as u64;
            }
        }
        weight
    }
}

/// How much there is.
#[derive(Debug, Clone, PartialEq)]
pub struct Stats {
    /// Runs by status.
    pub runs: Vec<(Status, u64)>,
    /// Events of all runs.
    pub events: u64,
    /// Blobs.
    pub blobs: u64,
    /// Bytes in blobs.
    pub blob_bytes: u64,
    /// Bytes on disk; `None` when not on disk.
    pub disk_bytes: Option<u64>,
}
