//! Who drives, and whether they live (SEMANTICS 20).
//!
//! On this host an owner holds a lock on a file of its own beside the store: the lock can be taken =
//! the owner is dead. So is one whose process is gone: what it was about to start when it was killed can hold
//! the lock for a moment longer. Beyond that its beat is observed: the same beat for the lease time on our own
//! monotonic clock = silent, so that others may take over; dead it is not known to be. No wall clock is compared, so a jump changes nothing.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logreel_core::Digest;
use logreel_core::row::Facts;
use rusqlite::{Connection, OptionalExtension};

use super::failure::Halt;
use crate::locks::Locks;
use crate::{Env, Error, Owner, OwnerId};

/// This host's id and its name: (machine id, boot id, pid namespace), where a pid means something.
pub fn this_host() -> (String, String) {
    let read = |path: &str| {
        fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let parts = [
        read("/etc/machine-id"),
        read("/proc/sys/kernel/random/boot_id"),
        namespace.to_string_lossy().into_owned(),
    ];
    let host = Digest::of(parts.join("\n").as_bytes()).hex()[..32].to_owned();
    let name = read("/proc/sys/kernel/hostname");
    (
        host,
        if name.is_empty() {
            "localhost".to_owned()
        } else {
            name
        },
    )
}

/// What is known of an owner's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It beats.
    Beating,
    /// It has not beaten for the lease time: dead, frozen or cut off.
    Silent,
    /// It left, its lock is free, or its process is gone.
    Dead,
}

/// What this process knows about owners.
pub(super) struct Owners {
    env: Arc<dyn Env>,
    lease: Duration,
    host: String,
    /// Those of owners that joined through this store are held.
    locks: Locks,
    /// The beats of owners, and when each was first seen.
    seen: Mutex<HashMap<OwnerId, (i64, Duration)>>,
}

impl Owners {
    pub fn new(store: &Path, env: Arc<dyn Env>, lease: Duration) -> Self {
        let mut folder = store.as_os_str().to_owned();
        folder.push(".owners");
        Self {
            env,
            lease,
            host: this_host().0,
            locks: Locks::new(folder.into()),
            seen: Mutex::default(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<OwnerId, (i64, Duration)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the locks are, and what else owners leave beside the store.
    pub fn folder(&self) -> &Path {
        self.locks.folder()
    }

    /// Whether the owner is a process of this host.
    pub fn is_here(&self, owner: &Owner) -> bool {
        owner.host == self.host
    }

    /// Takes the owner's own lock. One of another host has its lock there.
    pub fn hold(&self, owner: &Owner) -> Result<(), Error> {
        match self.is_here(owner) {
            true => self.locks.hold(owner.id),
            false => Ok(()),
        }
    }

    /// Gives the owner's lock back and removes its file.
    pub fn let_go(&self, owner: OwnerId) {
        self.seen().remove(&owner);
        self.locks.let_go(owner);
    }

    /// The owner gave a sign of life through this store.
    pub fn heard(&self, owner: OwnerId, beat: i64) {
        let now = self.env.monotonic();
        self.seen().insert(owner, (beat, now));
    }

    /// Whether the owner lives, as far as is known here.
    pub fn is_alive(&self, conn: &Connection, owner: OwnerId) -> rusqlite::Result<bool> {
        Ok(self.life(conn, owner)? == Life::Beating)
    }

    /// Whether the holder of a run's lease still has it.
    pub fn holds(
        &self,
        conn: &Connection,
        holder: OwnerId,
        facts: &Facts,
    ) -> rusqlite::Result<bool> {
        let found = self.look_up(conn, holder)?;
        Ok(found.is_some_and(|(owner, life)| self.is_held(&owner, life, facts)))
    }

    /// The same, of an owner that was looked up: as long as it beats. Nobody else can go on with a program
    /// that is recorded, so whoever records one has it for as long as it exists, stopped or not.
    pub fn is_held(&self, owner: &Owner, life: Life, facts: &Facts) -> bool {
        match life {
            Life::Beating => true,
            Life::Silent => facts.is_with_recorder() && self.is_here(owner),
            Life::Dead => false,
        }
    }

    /// What is known of the owner's life. One that was forgotten is dead.
    pub fn life(&self, conn: &Connection, owner: OwnerId) -> rusqlite::Result<Life> {
        Ok(self
            .look_up(conn, owner)?
            .map_or(Life::Dead, |(_, life)| life))
    }

    /// The owner and what is known of its life; `None` when nobody of that id joined.
    pub fn look_up(
        &self,
        conn: &Connection,
        id: OwnerId,
    ) -> rusqlite::Result<Option<(Owner, Life)>> {
        let sql = "SELECT host, host_name, pid, beat, gone FROM owners WHERE id = ?1";
        let found = conn
            .prepare_cached(sql)?
            .query_row([id.0.cast_signed()], |row| {
                let owner = Owner {
                    id,
                    host: row.get(0)?,
                    host_name: row.get(1)?,
                    pid: row.get(2)?,
                };
                Ok((owner, row.get::<_, i64>(3)?, row.get::<_, bool>(4)?))
            })
            .optional()?;
        Ok(found.map(|(owner, beat, gone)| {
            let life = if gone {
                Life::Dead
            } else {
                self.judge(&owner, beat)
            };
            (owner, life)
        }))
    }

    /// The owner, if it joined and has not left.
    pub fn joined(&self, conn: &Connection, id: OwnerId) -> Result<Owner, Halt> {
        let gone = conn
            .prepare_cached("SELECT gone FROM owners WHERE id = ?1")?
            .query_row([id.0.cast_signed()], |row| row.get::<_, bool>(0))
            .optional()?;
        match (gone, self.look_up(conn, id)?) {
            (Some(false), Some((owner, _))) => Ok(owner),
            _ => Err(Error::Bug(format!("owner {id} drives runs but did not join")).into()),
        }
    }

    fn judge(&self, owner: &Owner, beat: i64) -> Life {
        // On this host a free lock says at once that the owner is dead. A held one says only that it
        // exists: frozen past its lease, it beats no more.
        if self.is_here(owner) && self.locks.is_dead(owner) {
            return Life::Dead;
        }
        let now = self.env.monotonic();
        let mut known = self.seen();
        let seen = known.entry(owner.id).or_insert((beat, now));
        if seen.0 != beat {
            *seen = (beat, now);
        }
        if now.saturating_sub(seen.1) < self.lease {
            Life::Beating
        } else {
            Life::Silent
        }
    }

    /// Removes the files of owners that are dead and that the store no longer knows.
    pub fn sweep(
        &self,
        is_known: impl Fn(OwnerId) -> rusqlite::Result<bool>,
    ) -> rusqlite::Result<()> {
        for owner in self.locks.others() {
            if !is_known(owner)? {
                self.locks.remove_if_free(owner);
            }
        }
        Ok(())
    }
}
