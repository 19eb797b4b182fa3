//! Who drives, and whether they live (SEMANTICS 20).
//!
//! An owner's beats are compared with the clock of the database, so that no machine's own clock matters, and with
//! the lease that the owner itself goes by, so that nobody's settings but its own do: one without a beat for that
//! time is silent, and others may take over; dead it is not known to be. On its
//! own host an owner also holds a lock on a file: the lock can be taken = the owner is dead. Its row says
//! where that file is, because two processes of one host need not have the same folder for such files. What an owner
//! left running is told beside its lock: whoever cannot see that folder treats it as one of another host.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logreel_core::row::Facts;
use tokio_postgres::Row;

use super::beside::make_private;
use super::clock::Clock;
use super::failure::{Halt, damaged};
use super::schema::CLOCK;
use super::writer::Tx;
use crate::env::to_micros;
use crate::locks::{Locks, has_process, is_free, place_of};
use crate::sqlite::this_host;
use crate::{Error, Owner, OwnerId};

/// What is known of an owner's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It beats.
    Beating,
    /// It has not beaten for its lease time: dead, frozen or cut off.
    Silent,
    /// It left, its lock is free, or its process is gone.
    Dead,
}

/// What this process knows about owners.
pub(super) struct Owners {
    lease: Duration,
    clock: Arc<Clock>,
    host: String,
    locks: Locks,
    /// Whoever opened the store said where they are.
    is_chosen: bool,
    /// Those that joined through this store.
    joined: Mutex<HashMap<OwnerId, Owner>>,
    /// Folders of this host that others keep their locks and notes in, as far as they can be seen.
    seen: Mutex<BTreeSet<PathBuf>>,
    /// When what dead owners left was looked for, on the monotonic clock.
    swept: Mutex<Option<Duration>>,
}

/// Where on its host an owner's lock and notes are; empty when it has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Home {
    pub folder: String,
    /// Which folder that is, whatever others call so; `None` of builds that did not say.
    pub place: Option<String>,
}

impl Owners {
    pub fn new(lease: Duration, clock: Arc<Clock>, locks: Option<PathBuf>) -> Result<Self, Error> {
        let is_chosen = locks.is_some();
        let folder = locks.unwrap_or_else(default_folder);
        let (host, locks) = (this_host().0, Locks::new(folder));
        Ok(Self {
            lease,
            clock,
            host,
            locks,
            is_chosen,
            joined: Mutex::default(),
            seen: Mutex::default(),
            swept: Mutex::default(),
        })
    }

    fn those_joined(&self) -> MutexGuard<'_, HashMap<OwnerId, Owner>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner joined through this store.
    pub fn joins(&self, owner: &Owner) {
        self.those_joined().insert(owner.id, owner.clone());
    }

    /// Whether it is time to look what dead owners left: when a process joins. Clients join with every run that
    /// they begin, and look for all of them once in a lease.
    pub fn may_sweep(&self, joins: &Owner) -> bool {
        let now = self.clock.monotonic();
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = swept.is_some_and(|at| now.saturating_sub(at) < self.lease);
        let may = !(joins.is_external() && lately);
        if may {
            *swept = Some(now);
        }
        may
    }

    /// The owner leaves.
    pub fn left(&self, owner: OwnerId) {
        self.those_joined().remove(&owner);
    }

    /// The owner, if it joined through this store and has not left.
    pub fn is_joined(&self, owner: OwnerId) -> Option<Owner> {
        self.those_joined().get(&owner).cloned()
    }

    /// Where the locks are, and what else owners leave for whoever takes over.
    pub fn folder(&self) -> &Path {
        self.locks.folder()
    }

    fn seen(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The folders of this host that owners are known to have, the own one first.
    pub fn folders(&self) -> Vec<PathBuf> {
        let others = self.seen().iter().cloned().collect::<Vec<_>>();
        std::iter::once(self.folder().to_owned())
            .chain(others)
            .collect()
    }

    /// The lease of those that join through this store.
    pub fn lease_micros(&self) -> i64 {
        to_micros(self.lease)
    }

    /// This host's id.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether the owner is a process of this host.
    pub fn is_here(&self, owner: &Owner) -> bool {
        owner.host == self.host
    }

    /// Takes the owner's own lock, and says where it is. One of another host has its lock there.
    pub fn hold(&self, owner: &Owner) -> Result<Home, Error> {
        if !self.is_here(owner) {
            return Ok(Home::default());
        }
        if !self.is_chosen {
            make_private(self.folder())?;
        }
        self.locks.hold(owner.id)?;
        Ok(Home {
            folder: self.folder().display().to_string(),
            place: place_of(self.folder()),
        })
    }

    /// Gives the owner's lock back and removes its file.
    pub fn let_go(&self, owner: OwnerId) {
        self.locks.let_go(owner);
    }

    /// Whether the holder of a run's lease still has it: as long as it beats. Nobody else can go on with a
    /// program that is recorded, so whoever records one has it for as long as it exists, stopped or not.
    pub fn is_held(&self, owner: &Owner, life: Life, facts: &Facts) -> bool {
        match life {
            Life::Beating => true,
            Life::Silent => facts.is_with_recorder() && self.exists(owner),
            Life::Dead => false,
        }
    }

    /// Whether the owner is a process of this host that has not ended.
    pub fn exists(&self, owner: &Owner) -> bool {
        self.is_here(owner) && (self.locks.is_own(owner.id) || has_process(owner.pid))
    }

    /// Whether what an owner of this host left running cannot be seen from here.
    pub async fn is_out_of_sight(&self, tx: &Tx, owner: &Owner) -> Result<bool, Halt> {
        if !self.is_here(owner) || self.locks.is_own(owner.id) {
            return Ok(false);
        }
        let sql = "SELECT folder, place FROM owners WHERE id = $1";
        let Some(row) = tx.opt(sql, &[&owner.id.0.cast_signed()]).await? else {
            return Ok(true);
        };
        Ok(!sees(owner.id, row.try_get(0)?, row.try_get(1)?))
    }

    /// The owner and what is known of its life; `None` when nobody of that id joined.
    pub async fn look_up(&self, tx: &Tx, id: OwnerId) -> Result<Option<(Owner, Life)>, Halt> {
        let sql = format!("SELECT {OWNER} FROM owners o WHERE o.id = $1");
        let silent_now = self.clock.lease_now();
        let found = tx.opt(&sql, &[&id.0.cast_signed(), &silent_now]).await?;
        found.map(|row| self.read(&row, 0)).transpose()
    }

    /// Whether an owner that was found silent is so, and stays so until the transaction ends, which is about to take
    /// something from it: its next beat waits, so that whoever is heard again finds what it has lost. One whose
    /// row someone else has is about to be heard, or leaves.
    pub async fn stays_silent(&self, tx: &Tx, id: OwnerId) -> Result<bool, Halt> {
        let sql =
            format!("SELECT {OWNER} FROM owners o WHERE o.id = $1 FOR SHARE OF o SKIP LOCKED");
        let now = self.clock.lease_now();
        match tx.opt(&sql, &[&id.0.cast_signed(), &now]).await? {
            Some(row) => Ok(self.read(&row, 0)?.1 != Life::Beating),
            None => Ok(false),
        }
    }

    /// The owner, if it joined and has not left. Nobody forgets it before the transaction ends, which is
    /// about to write its name.
    pub async fn joined(&self, tx: &Tx, id: OwnerId) -> Result<Owner, Halt> {
        let sql = "SELECT gone FROM owners WHERE id = $1 FOR KEY SHARE";
        let found = tx.opt(sql, &[&id.0.cast_signed()]).await?;
        let gone = found.map(|row| row.try_get::<_, bool>(0)).transpose()?;
        match (gone, self.look_up(tx, id).await?) {
            (Some(false), Some((owner, _))) => Ok(owner),
            _ => Err(Error::Bug(format!("owner {id} drives runs but did not join")).into()),
        }
    }

    /// From the columns [`OWNER`], the first of which is `at`.
    pub fn read(&self, row: &Row, at: usize) -> Result<(Owner, Life), Halt> {
        let pid: i64 = row.try_get(at + 3)?;
        let owner = Owner {
            id: OwnerId(row.try_get::<_, i64>(at)?.cast_unsigned()),
            host: row.try_get(at + 1)?,
            host_name: row.try_get(at + 2)?,
            pid: u32::try_from(pid).map_err(|_| damaged("the pid of an owner"))?,
        };
        let (gone, folder): (bool, &str) = (row.try_get(at + 4)?, row.try_get(at + 5)?);
        let silent: i64 = row.try_get(at + 6)?;
        // Its own: by ours a living one might look silent, and be sure of its lease all the while.
        let lease: Option<i64> = row.try_get(at + 7)?;
        let lease = lease.unwrap_or_else(|| self.lease_micros());
        let place: Option<&str> = row.try_get(at + 8)?;
        self.notice(&owner, folder, place);
        let life = if gone || self.is_known_dead(&owner, folder, place) {
            Life::Dead
        } else if silent < lease {
            Life::Beating
        } else {
            Life::Silent
        };
        Ok((owner, life))
    }

    /// On this host a free lock says at once that the owner is dead. A held one says only that it exists:
    /// frozen past its lease, it beats no more. A file that is not there says nothing: temporary folders are
    /// cleaned, and a service may have one of its own. Then the beats decide. So they do when its folder cannot be
    /// seen, also of one whose process is gone: nobody here can tell, or end, what it left running.
    fn is_known_dead(&self, owner: &Owner, folder: &str, place: Option<&str>) -> bool {
        let lock = Path::new(folder).join(owner.id.to_string());
        self.is_here(owner)
            && !self.locks.is_own(owner.id)
            && (!has_process(owner.pid) || !folder.is_empty() && is_free(&lock))
            && (folder.is_empty() || sees(owner.id, folder, place))
    }

    /// Remembers the folder of an owner of this host, for whoever takes over from it: the owner may be forgotten
    /// by then.
    fn notice(&self, owner: &Owner, folder: &str, place: Option<&str>) {
        let path = Path::new(folder);
        if self.is_here(owner)
            && !folder.is_empty()
            && path != self.folder()
            && !self.seen().contains(path)
            && sees(owner.id, folder, place)
        {
            self.seen().insert(path.to_owned());
        }
    }

    /// Removes the files of owners that are dead and that the store no longer knows. Those of other stores
    /// are in the same folder: without their file it is their process, or their silence, that tells.
    pub async fn sweep(&self, tx: &Tx) -> Result<(), Halt> {
        let others = self.locks.others();
        let ids: Vec<i64> = others.iter().map(|owner| owner.0.cast_signed()).collect();
        let sql = "SELECT id FROM owners WHERE id = ANY($1)";
        let known = tx.query(sql, &[&ids]).await?;
        let known = known.iter().map(|row| row.try_get(0));
        let known: BTreeSet<i64> = known.collect::<Result<_, _>>()?;
        for owner in others {
            if !known.contains(&owner.0.cast_signed()) {
                self.locks.remove_if_free(owner);
            }
        }
        Ok(())
    }
}

/// Whether the folder that an owner of this host named is the one that this process finds there, and can be read.
fn sees(owner: OwnerId, folder: &str, place: Option<&str>) -> bool {
    let folder = Path::new(folder);
    let is_it = match place {
        Some(place) => place_of(folder).as_deref() == Some(place),
        None => folder.join(owner.to_string()).exists(),
    };
    is_it && std::fs::read_dir(folder).is_ok()
}

/// The columns of [`Owners::read`]; `$2` is what leases are compared with, when it is not the database's
/// clock.
pub(super) const OWNER: &str = "o.id, o.host, o.host_name, o.pid, o.gone, o.folder, \
    coalesce($2::int8, (date_part('epoch', clock_timestamp()) * 1000000)::int8) - o.beat_at, o.lease, o.place";
/// How many they are: what follows them begins there.
pub(super) const OWNER_COLUMNS: usize = 9;

/// What a beat is written as; `$1` as `$2` above.
pub(super) fn beat_now() -> String {
    now_or("$1")
}

/// What leases are compared with: this parameter, or the database's clock.
pub(super) fn now_or(parameter: &str) -> String {
    format!("coalesce({parameter}::int8, {CLOCK})")
}

/// SEMANTICS 20: in the user's runtime folder, else in a folder of the user under the temporary one.
pub(super) fn default_folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|it| !it.is_empty()) {
        Some(folder) => PathBuf::from(folder).join("logreel"),
        None => {
            let user = rustix::process::getuid().as_raw();
            std::env::temp_dir().join(format!("logreel-{user}"))
        }
    }
}
