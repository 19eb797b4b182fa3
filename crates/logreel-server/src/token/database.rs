//! Tokens in the database that several servers share: one that is made or revoked at any of them is at all.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use logreel::store::SystemEnv;
use logreel::{Env as _, PostgresStore};

use super::{Stored, TokenError};

/// How long what was read is used: so long a token that was revoked may still be taken.
const FRESH: Duration = Duration::from_millis(500);

/// A table of them.
pub(super) struct InDatabase {
    store: Arc<PostgresStore>,
    read: Mutex<Option<(Duration, Arc<Vec<Stored>>)>>,
}

impl InDatabase {
    pub fn new(store: Arc<PostgresStore>) -> Self {
        Self {
            store,
            read: Mutex::default(),
        }
    }

    pub async fn current(&self) -> Result<Arc<Vec<Stored>>, TokenError> {
        let now = SystemEnv.monotonic();
        if let Some((at, tokens)) = &*self.read()
            && now.saturating_sub(*at) < FRESH
        {
            return Ok(Arc::clone(tokens));
        }
        let texts = self.store.tokens().await?;
        let parse = |text: &String| {
            serde_json::from_str(text).map_err(|error| TokenError::Damaged {
                path: self.store.shown().into(),
                why: error.to_string(),
            })
        };
        let tokens = Arc::new(
            texts
                .iter()
                .map(parse)
                .collect::<Result<Vec<Stored>, _>>()?,
        );
        *self.read() = Some((now, Arc::clone(&tokens)));
        Ok(tokens)
    }

    pub async fn add(&self, stored: &Stored) -> Result<(), TokenError> {
        let text = serde_json::to_string(stored).expect("texts always serialize");
        self.store.keep_token(&stored.token.id, &text).await?;
        *self.read() = None;
        Ok(())
    }

    pub async fn revoke(&self, id: &str) -> Result<bool, TokenError> {
        let found = self.store.forget_token(id).await?;
        *self.read() = None;
        Ok(found)
    }

    fn read(&self) -> std::sync::MutexGuard<'_, Option<(Duration, Arc<Vec<Stored>>)>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
