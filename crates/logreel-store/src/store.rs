//! The one seam between Logreel and where runs are kept.

use std::ops::ControlFlow;
use std::path::PathBuf;

use async_trait::async_trait;
use logreel_core::event::Relation;
use logreel_core::{
    AppendId, Blob, Digest, Epoch, Event, Outside, RunId, RunKey, Seq, Session, Status, Timestamp,
};

use crate::{
    Append, AppendError, Appended, Backlog, ClaimOutcome, Claimable, Commanded, CreateError,
    Created, Cursor, Deleted, Doorbell, Duty, Entry, EraseError, Error, EventPage, Filter,
    ForkError, Heirs, Import, ImportError, Lapsed, NewFork, NewRun, News, Owner, OwnerId,
    OwnerInfo, RunPage, SessionInfo, Since, Stats,
};

/// Whoever is handed the events of a [scan](RunStore::scan).
pub type Each<'a> = dyn FnMut(Event) -> ControlFlow<()> + Send + 'a;

/// Events per page of a scan: enough that asking costs nothing, and few in memory.
pub(crate) const SCANNED_AT_ONCE: usize = 512;
/// Runs per page of a list that is read to its end.
const LISTED_AT_ONCE: usize = 100;

/// Where runs are kept.
///
/// Guarantees, each proven by the contract suite:
/// - **Atomic**: an append's events, blobs, row and chain head are stored together or not at all.
/// - **Durable**: what was acknowledged survives a crash (in the store's durability mode).
/// - **Linear**: an append lands only on the head (seq *and* digest) it was decided on, under the
///   current epoch; `seq` is dense from 1 and times never decrease.
/// - **Idempotent**: the same append id again gets the first answer and writes nothing. A request id
///   ([`AppendId::request`]) that comes with another request is refused.
/// - **Outside commands cannot conflict**: they read, decide and append in one transaction.
/// - **The row is the fold**: [`Entry::row`] always equals the fold of the whole log.
/// - **Fenced**: after a claim no append of an earlier epoch lands.
/// - **Limited**: of the runs with one limit's key at most as many as it says are held by live owners,
///   whoever creates, forks and claims at once. Dead owners, and those whose lease ran out, hold no
///   place.
/// - **Forks share**: a fork's log is its parent's up to where they part, then its own, as one log: one
///   `seq`, one chain, one fold. What it shares cannot be deleted while it is there.
/// - **Imports are whole**: a log that comes in is chained to the head it was folded at, and is stored with
///   its events, blobs, row and keys, or not at all. One that has not ended is read-only: no append, command
///   or claim lands on it before it is taken over.
/// - **Erased is gone**: no call gives anything that an erased run held, and no file of the store has a byte
///   of it. Its headers, status and counts stay, and its chain holds.
/// - **Complete reads**: a page of an unknown run is an error, never an empty list; a reader that
///   follows a [`Doorbell`] sees every event once, in order; so does one that follows the news of all runs.
#[async_trait]
pub trait RunStore: Send + Sync + 'static {
    /// What time it is where the runs are kept, when that has a clock of its own: events are stamped with it
    /// and deadlines compared with it. `None` when the store takes its time from an [`Env`](crate::Env).
    fn now(&self) -> Option<Timestamp> {
        None
    }

    /// Calls `act` while this process keeps no other from writing for longer than a moment, whatever becomes of it
    /// then. A file is locked as long as whoever writes to it is stopped in the middle of that; a database has an end
    /// to what it waits for, and so by default this is at once.
    fn between_writes(&self, act: &mut dyn FnMut()) {
        act();
    }

    /// Creates a run with its event 1, or attaches to the one with the same id or key. One whose limit
    /// has no place is created without its owner. One that has ended takes no place in its session, and is
    /// created also while another run is active there.
    async fn create(&self, new: NewRun) -> Result<Created, CreateError>;

    /// Makes a run that shares another's log up to an event and goes on with `run.forked`, or attaches
    /// to the fork that has the same id. Nothing is copied.
    async fn fork(&self, new: NewFork) -> Result<Created, ForkError>;

    /// Stores a log that was written elsewhere, or goes on with one that is here (SEMANTICS 34). A fork is
    /// stored whole, with the events that it shares.
    async fn import(&self, import: Import) -> Result<Entry, ImportError>;

    /// Makes an imported run this store's own, under a new epoch. Of a run that is not read-only nothing
    /// changes.
    async fn take_over(&self, run: &RunId) -> Result<Entry, ImportError>;

    /// Appends under a lease. An ambiguous outcome ([`Error::Ambiguous`]) is settled by sending the
    /// same append again, which is why it is lent.
    async fn append(&self, append: &Append) -> Result<Appended, AppendError>;

    /// Decides an outside command from the row and appends what follows, in one transaction that
    /// needs no lease and no epoch.
    async fn command(
        &self,
        run: &RunId,
        id: &AppendId,
        command: &Outside,
        blobs: Vec<Blob>,
    ) -> Result<Commanded, Error>;

    /// The events of the append with this id; `None` when it has not landed. A driver's own id, which is
    /// only ever sent again with the same head, is not found.
    async fn landed(&self, run: &RunId, id: &AppendId) -> Result<Option<Vec<Event>>, Error>;

    /// A page of the log from `from`, inclusive. At most `limit` events, at least one when there is
    /// one; a page may be shorter to bound its memory. The log of a fork begins with the events that
    /// it shares, each with its [`origin`](logreel_core::Record::origin).
    async fn read(&self, run: &RunId, from: Seq, limit: usize) -> Result<EventPage, Error>;

    /// The same page, decoded: for whoever folds and needs no stored text. An event that does not
    /// decode is an error of the whole page.
    async fn events(
        &self,
        run: &RunId,
        from: Seq,
        limit: usize,
    ) -> Result<EventPage<Event>, Error> {
        let page = self.read(run, from, limit).await?;
        Ok(page.try_map(|record| record.decode())?)
    }

    /// Hands the events from `from` on to `each`, in order, until it breaks or the log ends, and says
    /// which seq comes next. The same as page after page, without asking for them one by one: a store
    /// may read ahead. What is appended meanwhile may be seen or not.
    async fn scan(&self, run: &RunId, from: Seq, each: &mut Each<'_>) -> Result<Seq, Error> {
        let mut next = from.max(Seq::FIRST);
        loop {
            let page = self.events(run, next, SCANNED_AT_ONCE).await?;
            for event in page.items {
                next = event.seq.next();
                if each(event).is_break() {
                    return Ok(next);
                }
            }
            if !page.has_more {
                return Ok(next);
            }
            next = page.next;
        }
    }

    /// The run as it is now.
    async fn entry(&self, run: &RunId) -> Result<Entry, Error>;

    /// The key that the run's own bodies are hashed with; `None` once it was erased.
    async fn key(&self, run: &RunId) -> Result<Option<RunKey>, Error>;

    /// The keys that the bodies of a run's whole log are hashed with: the run's own, and those of the runs
    /// that it shares events with.
    async fn keys(&self, run: &RunId) -> Result<Vec<(RunId, Option<RunKey>)>, Error>;

    /// What the run is listed by that is not what its row says, in words. A store that lists from rows alone
    /// has nothing to tell.
    async fn misfiled(&self, run: &RunId) -> Result<Option<String>, Error> {
        self.entry(run).await.map(|_| None)
    }

    /// Runs, newest first in the order of creation in this store.
    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<RunPage, Error>;

    /// Runs whose id begins with `prefix` (with or without `run_`) or whose last 8 hex digits are
    /// it; at most `limit`.
    async fn find(&self, prefix: &str, limit: usize) -> Result<Vec<RunId>, Error>;

    /// Rings when the run may have changed, whoever changed it.
    fn watch(&self, run: &RunId) -> Doorbell;

    /// The same for whoever drives the run: it need not ring for what was appended with a lease in this process.
    fn watch_others(&self, run: &RunId) -> Doorbell {
        self.watch(run)
    }

    /// Rings when any run may have changed.
    fn watch_all(&self) -> Doorbell;

    /// Which events were stored since, whoever's they are, in the order in which they were stored here; at
    /// most `limit`. What a fork shares is not among them: it was stored with its parent. Whoever goes on
    /// from page to page sees each event of every run once, but for runs that are deleted meanwhile.
    async fn news(&self, since: &Since, limit: usize) -> Result<News, Error>;

    /// A blob's bytes, when some run refers to it.
    async fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Error>;

    /// Keeps a blob for a run before an event names it (SEMANTICS 32): it is dropped an hour later, unless
    /// an append of the run has brought it by then.
    async fn stage(&self, run: &RunId, blob: Blob) -> Result<(), Error>;

    /// This process will drive runs. The owner counts as alive while it beats, or on the same host
    /// while it exists.
    async fn join(&self, owner: &Owner) -> Result<(), Error>;

    /// The owner is alive. Called from a thread of its own, well within the lease.
    async fn beat(&self, owner: OwnerId) -> Result<(), Error>;

    /// The owner is gone; what it still held is orphaned at once.
    async fn leave(&self, owner: OwnerId) -> Result<(), Error>;

    /// What an owner that joined is there for, for whoever looks. It may say so again.
    async fn assign(&self, owner: OwnerId, duty: &Duty) -> Result<(), Error>;

    /// The processes that drive runs or would, in the order of their ids; those that are gone only while they
    /// hold something. Clients with a lease of their own are not among them.
    async fn owners(&self) -> Result<Vec<OwnerInfo>, Error>;

    /// What waits for someone to drive it, and how long it takes until someone does.
    async fn backlog(&self) -> Result<Backlog, Error>;

    /// What the store was opened with that nobody may see, such as a password. What a driver starts may have it from
    /// its environment, so it is taken out of what commands and recorded programs print.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// The folder on this host where owners leave notes for whoever takes over from them; a file in
    /// it begins with its owner's id. `None` when nobody else can take over. It exists once an owner
    /// has joined.
    fn notes(&self) -> Option<PathBuf> {
        None
    }

    /// Every folder of this host where owners of this store are known to leave such notes, [`RunStore::notes`] among
    /// them: two processes of one host need not have the same one.
    fn all_notes(&self) -> Vec<PathBuf> {
        self.notes().into_iter().collect()
    }

    /// Takes over a run that is ready or orphaned and whose limit has a place, under the next epoch. A
    /// recorded program is nobody else's for as long as its recorder is known to exist.
    async fn claim(&self, run: &RunId, owner: OwnerId) -> Result<ClaimOutcome, Error>;

    /// [`RunStore::claim`] for a worker, which has others to go to: `None` at once when someone else is at the
    /// run at this moment.
    async fn try_claim(&self, run: &RunId, owner: OwnerId) -> Result<Option<ClaimOutcome>, Error> {
        self.claim(run, owner).await.map(Some)
    }

    /// Drivers of a run that has not ended whose lease ran out and was taken, oldest first, without
    /// those that are known dead by now. One that gave its lease back or left is not among them.
    async fn lapsed(&self, run: &RunId) -> Result<Vec<Lapsed>, Error>;

    /// Gives a lease back, if it is still this owner's under this epoch. A run that is not waiting is ready for the next
    /// worker. The epoch alone would not do: a store that was replaced by a copy may have given it out twice. One that cannot
    /// be read is given back too, and the answer is what is wrong with it.
    async fn release(&self, run: &RunId, epoch: Epoch, owner: OwnerId) -> Result<Entry, Error>;

    /// The runs whose lease is this owner's, in the order of their ids, each with the epoch that it holds: ended ones too, whose
    /// late facts it may still record.
    async fn held(&self, owner: OwnerId) -> Result<Vec<(RunId, Epoch)>, Error>;

    /// Runs that are ready or orphaned, that a worker can drive and that carry all these labels, oldest
    /// first. Those whose limit has no place are left out, so that they hide nobody.
    async fn claimable(
        &self,
        what: &[Claimable],
        labels: &[(String, String)],
        limit: usize,
    ) -> Result<Vec<RunId>, Error>;

    /// Children that wait and whose parent has ended or is gone, oldest first, at most `limit`: nobody drives
    /// them, so whoever sweeps must find them (SEMANTICS 15).
    async fn forsaken(&self, limit: usize) -> Result<Vec<RunId>, Error> {
        let filter = Filter {
            status: vec![Status::Waiting],
            ..Filter::default()
        };
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.list(&filter, cursor.as_ref(), LISTED_AT_ONCE).await?;
            for entry in page.items {
                let parent = entry.row.facts.parent.as_ref();
                let parent = parent.filter(|it| it.relation == Relation::Child);
                let Some(parent) = parent.filter(|_| !entry.read_only) else {
                    continue;
                };
                let has_ended = match self.entry(&parent.run).await {
                    Ok(parent) => parent.row.status().is_terminal(),
                    // A pruned parent had ended.
                    Err(Error::NotFound(_)) => true,
                    Err(error) => return Err(error),
                };
                if has_ended {
                    found.push(entry.row.run);
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        // They are listed newest first.
        found.reverse();
        found.truncate(limit);
        Ok(found)
    }

    /// Every session, latest first.
    async fn sessions(&self) -> Result<Vec<SessionInfo>, Error>;

    /// One session; `None` when it has no runs and was not closed.
    async fn session(&self, session: &Session) -> Result<Option<SessionInfo>, Error> {
        let all = self.sessions().await?;
        Ok(all.into_iter().find(|info| info.session == *session))
    }

    /// Refuses new runs in a session from now on. Idempotent.
    async fn close_session(&self, session: &Session) -> Result<(), Error>;

    /// Removes an ended run, its events, references and search rows. Its key is kept for 30 days. A
    /// run that others share events of stays ([`Error::ForkedFrom`]).
    async fn delete(&self, run: &RunId) -> Result<Deleted, Error>;

    /// Erases an ended run, and those that go with it: bodies, key, blobs that no other run needs, words to
    /// be found by, and what its row says beside status and counts (SEMANTICS 33). Headers stay, and the
    /// chain holds. Gives the runs that were erased.
    async fn erase(&self, run: &RunId, with: Heirs) -> Result<Vec<RunId>, EraseError>;

    /// How much there is.
    async fn stats(&self) -> Result<Stats, Error>;
}
