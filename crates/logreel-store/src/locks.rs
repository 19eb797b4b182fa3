//! The locks of owners on this host: each holds one on a file of its own, so that whoever can take it
//! knows that the owner is dead (SEMANTICS 20).

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::{Error, Owner, OwnerId};

/// The folder of the locks, and those that this process holds.
#[derive(Debug)]
pub(crate) struct Locks {
    folder: PathBuf,
    held: Mutex<HashMap<OwnerId, File>>,
}

impl Locks {
    pub fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            held: Mutex::default(),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn held(&self) -> MutexGuard<'_, HashMap<OwnerId, File>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, owner: OwnerId) -> PathBuf {
        self.folder.join(owner.to_string())
    }

    /// Whether this process holds the owner's lock.
    pub fn is_own(&self, owner: OwnerId) -> bool {
        self.held().contains_key(&owner)
    }

    /// Whether the owner, a process of this host, is known dead: its lock is free, or its process is gone.
    /// What it was about to start when it was killed can hold the lock for a moment longer.
    pub fn is_dead(&self, owner: &Owner) -> bool {
        if self.is_own(owner.id) {
            return false;
        }
        !(is_locked(&self.file(owner.id)) && has_process(owner.pid))
    }

    /// Takes the owner's own lock, which the system gives back when the process ends.
    pub fn hold(&self, owner: OwnerId) -> Result<(), Error> {
        let fail = |error: io::Error| Error::Unavailable {
            what: format!("{} cannot be locked: {error}", self.file(owner).display()),
            source: Some(Arc::new(error)),
        };
        if self.is_own(owner) {
            return Ok(());
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(fail)?;
        let path = self.file(owner);
        for _ in 0..1000 {
            let file = open(&path, true).map_err(fail)?;
            match file.try_lock() {
                // Whoever sweeps may have removed the file between our open and our lock.
                Ok(()) if is_still(&file, &path) => {
                    self.held().insert(owner, file);
                    return Ok(());
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => nap(Duration::from_millis(1)),
                Err(TryLockError::Error(error)) => return Err(fail(error)),
            }
        }
        Err(Error::unavailable(format!(
            "{} is locked by someone else",
            path.display()
        )))
    }

    /// Gives the owner's lock back and removes its file.
    pub fn let_go(&self, owner: OwnerId) {
        let mut held = self.held();
        if held.remove(&owner).is_some() {
            remove(&self.file(owner));
        }
    }

    /// Every owner that has a file here and no lock of this process.
    pub fn others(&self) -> Vec<OwnerId> {
        // No folder, nothing to sweep.
        let Ok(files) = fs::read_dir(&self.folder) else {
            return Vec::new();
        };
        let owner = |file: fs::DirEntry| {
            let name = file.file_name();
            u64::from_str_radix(name.to_str()?, 16).ok().map(OwnerId)
        };
        let owners = files.flatten().filter_map(owner);
        owners.filter(|owner| !self.is_own(*owner)).collect()
    }

    /// Removes the file of an owner that is dead. Only under its lock: an owner that is joining sees that
    /// its file is gone.
    pub fn remove_if_free(&self, owner: OwnerId) {
        let path = self.file(owner);
        if let Ok(lock) = open(&path, false)
            && lock.try_lock().is_ok()
        {
            remove(&path);
        }
    }
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    fs::OpenOptions::new()
        .write(true)
        .create(create)
        .truncate(false)
        .open(path)
}

fn is_still(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// A lock that cannot even be asked for counts as held: taking over from the living is worse.
fn is_locked(path: &Path) -> bool {
    match open(path, false) {
        Ok(file) => file.try_lock().is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Which folder this is, whatever it is called by whom.
#[cfg(feature = "postgres")]
pub(crate) fn place_of(folder: &Path) -> Option<String> {
    let found = fs::metadata(folder).ok()?;
    Some(format!("{}:{}", found.dev(), found.ino()))
}

/// Whether there is such a file and nobody has its lock. One that is not there, or cannot be asked, says nothing.
#[cfg(feature = "postgres")]
pub(crate) fn is_free(path: &Path) -> bool {
    open(path, false).is_ok_and(|file| file.try_lock().is_ok())
}

/// Whether there is a process of this number that can still do something. One that cannot be seen counts.
pub(crate) fn has_process(pid: u32) -> bool {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(number) = number else {
        return true;
    };
    if let Err(Errno::SRCH) = test_kill_process(number) {
        return false;
    }
    // A zombie answers too. Its state is that of its first thread; others may run on.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, after_name)) = stat.rsplit_once(')') else {
        return true;
    };
    let mut fields = after_name.split_ascii_whitespace();
    let is_zombie = fields
        .next()
        .is_some_and(|state| matches!(state, "Z" | "X"));
    let threads = fields.nth(16).and_then(|threads| threads.parse().ok());
    !is_zombie || threads.unwrap_or(0) > 1
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!("the lock file {} was not removed: {error}", path.display());
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the lock of a file belongs to the operating system, whose time it takes"
)]
fn nap(pause: Duration) {
    std::thread::sleep(pause);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_that_no_process_has_says_that_there_is_none() {
        assert!(has_process(std::process::id()));
        assert!(!has_process(i32::MAX.cast_unsigned()));
        for none in [0, u32::MAX, 1 << 31] {
            assert!(has_process(none), "{none} is no number of a process");
        }
    }
}
