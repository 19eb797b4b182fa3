//! The default store: one SQLite file that several processes may open.
//!
//! Appends lead their own batches (`writer`), readers have connections of their own, and a poller
//! (`tail`) rings for what other processes write. The tables `runs`, `events` and `blobs` are
//! public for reading (see `schema`).
//!
//! Reading order: `schema`, `open`, `writer`, `append`, `rows`, then one file per verb.

mod append;
mod backup;
mod checkpoint;
mod command;
mod connect;
mod create;
mod crew;
mod delete;
mod doctor;
mod erase;
mod failure;
mod fork;
mod import;
mod lease;
mod limit;
mod list;
mod news;
mod open;
mod owners;
mod place;
mod read;
mod rows;
mod scan;
mod schema;
mod search;
mod share;
mod stage;
mod store;
mod tail;
mod writer;

pub use doctor::Description;
#[cfg(feature = "bench")]
pub use open::Rows;
pub use open::{Options, SqliteStore};
pub use owners::this_host;
