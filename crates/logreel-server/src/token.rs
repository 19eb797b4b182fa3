//! Tokens: what callers from elsewhere are known by.
//!
//! They are in a file of their own beside the store, for its owner alone, and not in a table: the store's
//! tables are public for reading, and copies of the store are made to be carried away. The file holds
//! digests. A token is 256 random bits, which no dictionary has, so one pass of BLAKE3 is enough: a slow
//! hash is for passwords that people think of. Two digests are compared in the same time wherever they
//! differ.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use logreel::{Env, ErrorKind, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Problem;

/// How a token begins, so that scanners for leaked secrets can find it.
const PREFIX: &str = "logreel_";

/// What a caller may do; each may also do what the ones before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look.
    Read,
    /// Start runs and act on them.
    Operate,
    /// Send specs of one's own, which is running any program.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Operate, Self::Admin];

    /// The name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

/// What is known of a token. Not the token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Token {
    /// Names it, for `revoke`.
    pub id: String,
    /// Whose it is; recorded with what is done by it.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Since when.
    pub created_at: Timestamp,
    /// Until when; null = until it is revoked.
    pub expires_at: Option<Timestamp>,
}

/// A token that was just made: the only time that it is shown.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// What callers send.
    pub secret: String,
    /// What is known of it.
    pub token: Token,
}

/// The file of tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read or written.
    #[error("{} cannot be used: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not what was written.
    #[error("{} holds no tokens: {why}; restore it, or remove it and make new ones", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

impl TokenError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } => ErrorKind::Unavailable,
            Self::Damaged { .. } => ErrorKind::Corrupt,
        }
    }
}

impl From<TokenError> for Problem {
    fn from(error: TokenError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    #[serde(flatten)]
    token: Token,
    digest: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    version: u32,
    tokens: Vec<Stored>,
}

/// The tokens of a store.
pub struct Tokens {
    path: PathBuf,
    read: Mutex<Option<Read>>,
}

/// What was read, and of which state of the file.
struct Read {
    stamp: (SystemTime, u64, u64),
    tokens: Arc<Vec<Stored>>,
}

impl Tokens {
    /// Those of the store in this file.
    pub fn beside(store: &Path) -> Self {
        let mut path = store.as_os_str().to_owned();
        path.push(".tokens.json");
        Self {
            path: path.into(),
            read: Mutex::default(),
        }
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a token.
    pub fn create(
        &self,
        env: &dyn Env,
        name: String,
        role: Role,
        lasts: Option<Duration>,
    ) -> Result<NewToken, TokenError> {
        let (mut secret, mut id) = ([0; 32], [0; 4]);
        env.random(&mut secret);
        env.random(&mut id);
        let secret = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(secret));
        let now = env.now();
        let token = Token {
            id: id.map(|byte| format!("{byte:02x}")).concat(),
            name,
            role,
            created_at: now,
            expires_at: lasts.map(|lasts| now + lasts),
        };
        let stored = Stored {
            token: token.clone(),
            digest: digest(&secret).to_hex().to_string(),
        };
        self.change(|tokens| tokens.push(stored))?;
        Ok(NewToken { secret, token })
    }

    /// All of them, oldest first.
    pub fn list(&self) -> Result<Vec<Token>, TokenError> {
        let stored = self.current()?;
        Ok(stored.iter().map(|it| it.token.clone()).collect())
    }

    /// Makes a token worthless; `false` when there is none of that id.
    pub fn revoke(&self, id: &str) -> Result<bool, TokenError> {
        let mut found = false;
        self.change(|tokens| {
            let before = tokens.len();
            tokens.retain(|it| it.token.id != id);
            found = tokens.len() < before;
        })?;
        Ok(found)
    }

    /// The token that this secret is, when it is one that holds now.
    pub(crate) fn known(&self, secret: &str, now: Timestamp) -> Result<Option<Token>, TokenError> {
        let said = digest(secret);
        let mut known = None;
        // All of them, so that the time says nothing about which one it was.
        for stored in self.current()?.iter() {
            let holds = blake3::Hash::from_hex(&stored.digest).is_ok_and(|it| it == said);
            if holds && stored.token.expires_at.is_none_or(|until| now < until) {
                known = Some(stored.token.clone());
            }
        }
        Ok(known)
    }

    /// What the file holds now: it is looked at each time, so that a token that was revoked is worthless
    /// at once.
    fn current(&self) -> Result<Arc<Vec<Stored>>, TokenError> {
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
    fn change(&self, change: impl FnOnce(&mut Vec<Stored>)) -> Result<(), TokenError> {
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

fn digest(secret: &str) -> blake3::Hash {
    blake3::hash(secret.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use logreel::store::SystemEnv;

    #[test]
    fn a_token_is_known_until_it_expires_or_is_revoked_and_is_never_stored() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = Tokens::beside(&folder.path().join("runs.db"));
        assert!(tokens.list().unwrap().is_empty());
        let make = |name: &str, lasts| {
            tokens
                .create(&SystemEnv, name.to_owned(), Role::Operate, lasts)
                .unwrap()
        };
        let (ada, bob) = (
            make("ada", None),
            make("bob", Some(Duration::from_secs(60))),
        );
        let now = SystemEnv.now();
        assert_eq!(
            tokens.known(&ada.secret, now).unwrap(),
            Some(ada.token.clone())
        );
        assert_eq!(
            tokens.known(&bob.secret, now).unwrap(),
            Some(bob.token.clone())
        );
        let later = now + Duration::from_secs(61);
        assert_eq!(tokens.known(&bob.secret, later).unwrap(), None);
        let cut = &ada.secret[..ada.secret.len() - 1];
        assert_eq!(tokens.known(cut, now).unwrap(), None);
        assert_eq!(tokens.known("", now).unwrap(), None);

        let text = std::fs::read_to_string(tokens.path()).unwrap();
        assert!(
            !text.contains(&ada.secret) && !text.contains(&bob.secret),
            "{text}"
        );
        let mode = std::fs::metadata(tokens.path()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);

        // Another process revokes it.
        let elsewhere = Tokens::beside(&folder.path().join("runs.db"));
        assert!(elsewhere.revoke(&ada.token.id).unwrap());
        assert!(!elsewhere.revoke(&ada.token.id).unwrap());
        assert_eq!(tokens.known(&ada.secret, now).unwrap(), None);
        assert_eq!(tokens.list().unwrap(), [bob.token]);
    }

    #[test]
    fn a_change_replaces_the_file_and_what_was_there_stays_whole() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("runs.db");
        let tokens = Tokens::beside(&store);
        let make = |name: &str| {
            let name = name.to_owned();
            tokens.create(&SystemEnv, name, Role::Read, None)
        };
        make("ada").unwrap();
        let before = std::fs::read_to_string(tokens.path()).unwrap();
        let mut held = File::open(tokens.path()).unwrap();
        // What a crash in the middle of a change leaves is in nobody's way.
        let left = folder.path().join("runs.db.tokens.json.new");
        std::fs::write(&left, "half of").unwrap();
        make("bob").unwrap();
        let mut seen = String::new();
        held.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, before, "nobody sees half of it");
        assert!(!left.exists());

        // Many at once: none is lost.
        std::thread::scope(|scope| {
            for n in 0..8 {
                let make = &make;
                scope.spawn(move || make(&format!("n{n}")).unwrap());
            }
        });
        assert_eq!(tokens.list().unwrap().len(), 10);
        // Where nothing can be written, what was there holds.
        std::fs::create_dir(&left).unwrap();
        assert!(make("eve").is_err());
        assert_eq!(tokens.list().unwrap().len(), 10);
    }
}
