//! What callers of servers on this database are known by. Each server must know what any of them made or revoked,
//! so it is here and not beside one of them. What a token is, only the server knows: here it is a text.

use super::open::PostgresStore;
use crate::Error;

impl PostgresStore {
    /// All of them, oldest first.
    pub async fn tokens(&self) -> Result<Vec<String>, Error> {
        let shared = self.shared().clone();
        self.run(async move {
            let read = shared.reading(|tx| async move {
                let rows = tx.query("SELECT token FROM tokens ORDER BY made", &[]);
                let rows = rows.await?;
                let texts = rows.iter().map(|row| row.try_get(0));
                Ok(texts.collect::<Result<_, _>>()?)
            });
            read.await
        })
        .await
    }

    /// Keeps one.
    pub async fn keep_token(&self, id: &str, token: &str) -> Result<(), Error> {
        let (shared, id, token) = (self.shared().clone(), id.to_owned(), token.to_owned());
        self.run(async move {
            let written = shared.reading(|tx| async move {
                let sql = "INSERT INTO tokens (id, token) VALUES ($1, $2)
                    ON CONFLICT (id) DO UPDATE SET token = excluded.token";
                tx.exec(sql, &[&id, &token]).await?;
                Ok(())
            });
            written.await
        })
        .await
    }

    /// Forgets one; `false` when there was none of that id.
    pub async fn forget_token(&self, id: &str) -> Result<bool, Error> {
        let (shared, id) = (self.shared().clone(), id.to_owned());
        self.run(async move {
            let written = shared.reading(|tx| async move {
                let count = tx.exec("DELETE FROM tokens WHERE id = $1", &[&id]).await?;
                Ok(count > 0)
            });
            written.await
        })
        .await
    }
}
