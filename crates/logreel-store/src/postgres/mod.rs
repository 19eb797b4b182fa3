//! The store for many machines: one PostgreSQL database that any number of processes share.
//!
//! It has the files of `sqlite` under the same names. Nearly all of it runs on a small runtime of its own, so that
//! whoever calls may have any runtime or none, and a call that is dropped leaves no transaction half done.
//! Quick appends are sent by whoever makes them, those of many runs as one statement (`line`, `batch`);
//! everything else locks the run's row, decides, and writes in a transaction of its own. Nothing is hidden in the
//! server: no functions, triggers or advisory locks, and notifications only as a doorbell that may be
//! missing, so that what speaks PostgreSQL's protocol may serve.
//!
//! Reading order: `schema`, `connect`, `open`, `writer`, `columns`, `line`, `batch`, `append`, `rows`, then one file per verb.

mod append;
mod batch;
mod bell;
mod beside;
mod claimable;
mod clock;
mod columns;
mod command;
mod connect;
mod create;
mod crew;
mod delete;
mod doctor;
mod erase;
mod failure;
#[cfg(feature = "bench")]
mod fill;
mod fork;
mod hosts;
mod import;
mod lease;
mod limit;
mod line;
mod list;
mod news;
mod open;
mod owners;
mod pulse;
mod read;
mod rows;
mod schema;
mod stage;
mod store;
mod tail;
mod tokens;
mod writer;

pub use beside::{is_url, notes_of, shown};
pub use clock::Times;
pub use doctor::Description;
pub use open::{Found, Options, PostgresStore};
