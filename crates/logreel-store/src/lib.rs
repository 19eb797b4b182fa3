//! Where Logreel keeps runs.
//!
//! [`RunStore`] is the one seam: [`memory`] is short enough to be the specification, [`sqlite`] is
//! the default, `postgres` (a feature) is for many machines, and the contract suite (feature `testing`) proves a store, ours or a third party's.
//! Nothing above this crate knows SQL.

pub mod crew;
pub mod doorbell;
pub mod env;
pub mod erase;
pub mod error;
pub mod fork;
pub mod import;
mod locks;
pub mod memory;
pub mod migration;
pub mod model;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod sqlite;
pub mod store;
pub mod tip;
mod tips;
mod words;

#[cfg(feature = "testing")]
pub mod contract;
#[cfg(feature = "testing")]
pub mod faulty;

pub use crew::{Backlog, Duty, DutyKind, OwnerInfo};
pub use doorbell::Doorbell;
pub use env::{Env, SystemEnv};
pub use erase::{EraseError, Heirs};
pub use error::{AppendError, CreateError, Error, ForkError};
pub use fork::{ForkAt, NewFork};
pub use import::{Import, ImportError, ImportedBlob, Source};
pub use memory::MemoryStore;
pub use migration::{Migration, Migrations};
pub(crate) use model::STAGED;
pub use model::{
    Append, Appended, ClaimOutcome, Claimable, Commanded, Created, Cursor, Deleted, Driver, Entry,
    EventPage, Filter, Lapsed, NewRun, News, Owner, OwnerId, RunPage, SessionInfo, Since, Stats,
    Told,
};
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
pub use sqlite::SqliteStore;
pub use store::{Each, RunStore};
