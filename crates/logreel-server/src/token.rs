//! Tokens: what callers from elsewhere are known by.
//!
//! They are in a file of their own beside the store, for its owner alone, and not in a table: the store's
//! tables are public for reading, and copies of the store are made to be carried away. Servers that share a
//! database find them there, because each must know what any of them made or revoked. Kept are
//! digests. A token is 256 random bits, which no dictionary has, so one pass of BLAKE3 is enough: a slow
//! hash is for passwords that people think of. Two digests are compared in the same time wherever they
//! differ.

#[cfg(feature = "postgres")]
mod database;
mod file;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use logreel::{Env, ErrorKind, Timestamp};
use serde::{Deserialize, Serialize};

use self::file::InFile;
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

/// The tokens cannot be used.
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
    /// The database that they are in cannot be used.
    #[error(transparent)]
    Store(#[from] logreel::store::Error),
}

impl TokenError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } => ErrorKind::Unavailable,
            Self::Damaged { .. } => ErrorKind::Corrupt,
            Self::Store(error) => logreel::Error::from(error.clone()).kind(),
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

/// The tokens of a store.
pub struct Tokens(Kept);

enum Kept {
    File(InFile),
    #[cfg(feature = "postgres")]
    Database(database::InDatabase),
}

impl Tokens {
    /// Those of the store in this file.
    pub fn beside(store: &Path) -> Self {
        Self(Kept::File(InFile::beside(store)))
    }

    /// Those of all servers on this database.
    #[cfg(feature = "postgres")]
    pub fn of_database(store: Arc<logreel::PostgresStore>) -> Self {
        Self(Kept::Database(database::InDatabase::new(store)))
    }

    /// Makes a token.
    pub async fn create(
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
        match &self.0 {
            Kept::File(file) => file.change(|tokens| tokens.push(stored))?,
            #[cfg(feature = "postgres")]
            Kept::Database(database) => database.add(&stored).await?,
        }
        Ok(NewToken { secret, token })
    }

    /// All of them, oldest first.
    pub async fn list(&self) -> Result<Vec<Token>, TokenError> {
        let stored = self.current().await?;
        Ok(stored.iter().map(|it| it.token.clone()).collect())
    }

    /// Makes a token worthless; `false` when there is none of that id.
    pub async fn revoke(&self, id: &str) -> Result<bool, TokenError> {
        #[cfg_attr(
            not(feature = "postgres"),
            expect(
                clippy::infallible_destructuring_match,
                reason = "with the feature there are two kinds"
            )
        )]
        let file = match &self.0 {
            Kept::File(file) => file,
            #[cfg(feature = "postgres")]
            Kept::Database(database) => return database.revoke(id).await,
        };
        let mut found = false;
        file.change(|tokens| {
            let before = tokens.len();
            tokens.retain(|it| it.token.id != id);
            found = tokens.len() < before;
        })?;
        Ok(found)
    }

    /// The token that this secret is, when it is one that holds now.
    pub(crate) async fn known(
        &self,
        secret: &str,
        now: Timestamp,
    ) -> Result<Option<Token>, TokenError> {
        let said = digest(secret);
        let mut known = None;
        // All of them, so that the time says nothing about which one it was.
        for stored in self.current().await?.iter() {
            let holds = blake3::Hash::from_hex(&stored.digest).is_ok_and(|it| it == said);
            if holds && stored.token.expires_at.is_none_or(|until| now < until) {
                known = Some(stored.token.clone());
            }
        }
        Ok(known)
    }

    /// What is kept now.
    async fn current(&self) -> Result<Arc<Vec<Stored>>, TokenError> {
        match &self.0 {
            Kept::File(file) => file.current(),
            #[cfg(feature = "postgres")]
            Kept::Database(database) => database.current().await,
        }
    }
}

fn digest(secret: &str) -> blake3::Hash {
    blake3::hash(secret.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use logreel::store::SystemEnv;

    use super::*;

    #[tokio::test]
    async fn a_token_is_known_until_it_expires_or_is_revoked_and_is_never_stored() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = Tokens::beside(&folder.path().join("runs.db"));
        let path = folder.path().join("runs.db.tokens.json");
        assert!(tokens.list().await.unwrap().is_empty());
        let make = async |name: &str, lasts| {
            let made = tokens.create(&SystemEnv, name.to_owned(), Role::Operate, lasts);
            made.await.unwrap()
        };
        let (ada, bob) = (
            make("ada", None).await,
            make("bob", Some(Duration::from_secs(60))).await,
        );
        let now = SystemEnv.now();
        assert_eq!(
            tokens.known(&ada.secret, now).await.unwrap(),
            Some(ada.token.clone())
        );
        assert_eq!(
            tokens.known(&bob.secret, now).await.unwrap(),
            Some(bob.token.clone())
        );
        let later = now + Duration::from_secs(61);
        assert_eq!(tokens.known(&bob.secret, later).await.unwrap(), None);
        let cut = &ada.secret[..ada.secret.len() - 1];
        assert_eq!(tokens.known(cut, now).await.unwrap(), None);
        assert_eq!(tokens.known("", now).await.unwrap(), None);

        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            !text.contains(&ada.secret) && !text.contains(&bob.secret),
            "{text}"
        );
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);

        // Another process revokes it.
        let elsewhere = Tokens::beside(&folder.path().join("runs.db"));
        assert!(elsewhere.revoke(&ada.token.id).await.unwrap());
        assert!(!elsewhere.revoke(&ada.token.id).await.unwrap());
        assert_eq!(tokens.known(&ada.secret, now).await.unwrap(), None);
        assert_eq!(tokens.list().await.unwrap(), [bob.token]);
    }
}
