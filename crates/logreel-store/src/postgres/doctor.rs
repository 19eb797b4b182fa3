//! Looking a store over, for `logreel doctor`.

use super::failure::{Halt, damaged, failed};
use super::open::PostgresStore;
use super::schema;
use super::writer::Tx;
use crate::Error;

/// What the server is asked about itself.
const SETTINGS: [&str; 6] = [
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "synchronous_standby_names",
    "max_connections",
    "TimeZone",
];

/// What a store is made of, for whoever looks it over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The version of PostgreSQL.
    pub server: String,
    /// Which of the hosts answered, as it knows itself; `None` on a socket of its machine.
    pub address: Option<String>,
    /// The version of the tables.
    pub schema: u32,
    /// The server's settings, as this connection has them.
    pub settings: Vec<(&'static str, String)>,
    /// The size of the whole database, which may hold more than the store.
    pub database_bytes: u64,
    /// Connections that the server has, of this store's processes and of all others.
    pub connections: u64,
    /// What is wrong.
    pub problems: Vec<String>,
}

impl PostgresStore {
    /// What the store is made of, and what is wrong with it.
    pub async fn describe(&self) -> Result<Description, Error> {
        let shared = self.shared().clone();
        self.run(async move {
            shared
                .reading(|tx| async move { describe(&tx).await })
                .await
        })
        .await
    }
}

async fn describe(tx: &Tx) -> Result<Description, Halt> {
    let sql = "SELECT current_setting('server_version'), pg_database_size(current_database()),
        (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
        host(inet_server_addr()), inet_server_port()";
    let row = tx.one(sql, &[]).await?;
    let (bytes, connections): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
    let (host, port): (Option<String>, Option<i32>) = (row.try_get(3)?, row.try_get(4)?);
    let mut settings = Vec::new();
    for name in SETTINGS {
        let sql = "SELECT coalesce(current_setting($1, true), '')";
        settings.push((name, tx.one(sql, &[&name]).await?.try_get(0)?));
    }
    let schema = schema::version(tx).await?;
    let schema = schema.ok_or_else(|| damaged("the store lost its tables"))?;
    let mut problems = Vec::new();
    for name in ["fsync", "full_page_writes"] {
        if settings.contains(&(name, "off".to_owned())) {
            problems.push(format!(
                "{name} is off on the server: a crash of its machine may lose or damage runs"
            ));
        }
    }
    Ok(Description {
        server: row.try_get(0).map_err(failed)?,
        address: host.zip(port).map(|(host, port)| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        }),
        schema,
        settings,
        database_bytes: bytes.unsigned_abs(),
        connections: connections.unsigned_abs(),
        problems,
    })
}
