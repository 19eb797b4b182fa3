//! Tokens in a file beside the store, for its owner alone.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{Stored, TokenError};

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    version: u32,
    tokens: Vec<Stored>,
}

/// The file.
pub(super) struct InFile {
    path: PathBuf,
    read: Mutex<Option<Read>>,
}

/// What was read, and of which state of the file.
struct Read {
    stamp: (SystemTime, u64, u64),
    tokens: Arc<Vec<Stored>>,
}

impl InFile {
    pub fn beside(store: &Path) -> Self {
        let mut path = store.as_os_str().to_owned();
        path.push(".tokens.json");
        Self {
            path: path.into(),
            read: Mutex::default(),
        }
    }

    /// What the file holds now: it is looked at each time, so that a token that was revoked is worthless
    /// at once.
    pub fn current(&self) -> Result<Arc<Vec<Stored>>, TokenError> {
        let stamp = match std::fs::metadata(&self.path) {
            Ok(found) => {
                let changed = found.modified().map_err(|error| self.io(error))?;
                (changed, found.len(), found.ino())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Arc::default()),
            Err(error) => return Err(self.io(error)),
        };
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = read.as_ref().filter(|read| read.stamp == stamp) {
            return Ok(Arc::clone(&read.tokens));
        }
        let mut file = File::open(&self.path).map_err(|error| self.io(error))?;
        let tokens = Arc::new(self.parse(&mut file)?.tokens);
        *read = Some(Read {
            stamp,
            tokens: Arc::clone(&tokens),
        });
        Ok(tokens)
    }

    /// Changes the file, alone: another takes its place when it is whole and on disk, so that neither a crash
    /// nor a full disk takes a token away.
    pub fn change(&self, change: impl FnOnce(&mut Vec<Stored>)) -> Result<(), TokenError> {
        let io = |error| self.io(error);
        let mut file = self.locked().map_err(io)?;
        let mut contents = self.parse(&mut file)?;
        change(&mut contents.tokens);
        contents.version = 1;
        let text = serde_json::to_string_pretty(&contents).expect("texts always serialize");
        let mut beside = self.path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        // What a crash left is nobody's: whoever writes it holds the lock.
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
            _ => {}
        }
        let mut options = File::options();
        let options = options.write(true).create_new(true).mode(0o600);
        let mut new = options.open(&beside).map_err(io)?;
        // Whoever runs this with `sudo` must not take it from the server that reads it.
        let (was, is) = (file.metadata().map_err(io)?, new.metadata().map_err(io)?);
        if was.uid() != is.uid() {
            std::os::unix::fs::fchown(&new, Some(was.uid()), Some(was.gid())).map_err(io)?;
        }
        writeln!(new, "{text}").map_err(io)?;
        new.sync_all().map_err(io)?;
        std::fs::rename(&beside, &self.path).map_err(io)?;
        let folder = self.path.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(io)?;
        folder.sync_all().map_err(io)
    }

    /// The file that is there now, locked: while one waited, another may have taken its place.
    fn locked(&self) -> io::Result<File> {
        loop {
            let mut options = File::options();
            let options = options.read(true).write(true).create(true).truncate(false);
            let file = options.mode(0o600).open(&self.path)?;
            file.lock()?;
            let (held, there) = (file.metadata()?, std::fs::metadata(&self.path));
            let is_there =
                |it: &std::fs::Metadata| (it.dev(), it.ino()) == (held.dev(), held.ino());
            match there {
                Ok(there) if is_there(&there) => return Ok(file),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn parse(&self, file: &mut File) -> Result<Contents, TokenError> {
        let mut text = String::new();
        file.read_to_string(&mut text)
            .map_err(|error| self.io(error))?;
        if text.is_empty() {
            return Ok(Contents::default());
        }
        serde_json::from_str(&text).map_err(|error| TokenError::Damaged {
            path: self.path.clone(),
            why: error.to_string(),
        })
    }

    fn io(&self, source: io::Error) -> TokenError {
        let path = self.path.clone();
        TokenError::Io { path, source }
    }
}

#[cfg(test)]
mod tests {
    use logreel::Env as _;
    use logreel::store::SystemEnv;

    use super::*;
    use crate::{Role, Token};

    #[test]
    fn a_change_replaces_the_file_and_what_was_there_stays_whole() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("runs.db");
        let tokens = InFile::beside(&store);
        let make = |name: &str| {
            let token = Token {
                id: name.to_owned(),
                name: name.to_owned(),
                role: Role::Read,
                created_at: SystemEnv.now(),
                expires_at: None,
            };
            let digest = String::new();
            tokens.change(|all| all.push(Stored { token, digest }))
        };
        make("ada").unwrap();
        let before = std::fs::read_to_string(&tokens.path).unwrap();
        let mut held = File::open(&tokens.path).unwrap();
        // What a crash in the middle of a change leaves is in nobody's way.
        let left = folder.path().join("runs.db.tokens.json.new");
        std::fs::write(&left, "half of").unwrap();
        make("bob").unwrap();
        let mut seen = String::new();
        held.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, before, "nobody sees half of it");
        assert!(!left.exists());

        // It stays whose it is, when root may give files away.
        let owner = std::fs::metadata(&tokens.path).unwrap().uid() + 1;
        let is_given = std::os::unix::fs::chown(&tokens.path, Some(owner), Some(owner)).is_ok();
        make("kay").unwrap();
        let is_kept = std::fs::metadata(&tokens.path).unwrap().uid() == owner;
        assert_eq!(is_kept, is_given);

        // Many at once: none is lost.
        std::thread::scope(|scope| {
            for n in 0..8 {
                let make = &make;
                scope.spawn(move || make(&format!("n{n}")).unwrap());
            }
        });
        assert_eq!(tokens.current().unwrap().len(), 11);
        // Where nothing can be written, what was there holds.
        std::fs::create_dir(&left).unwrap();
        assert!(make("eve").is_err());
        assert_eq!(tokens.current().unwrap().len(), 11);
    }
}
