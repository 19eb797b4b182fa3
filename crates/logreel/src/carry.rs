//! Taking runs along: logs as files that can be checked alone, and the way back into a store.

mod check;
mod error;
mod export;
mod file;
mod import;
mod jsonl;
mod lines;
mod reel;

pub use check::{LogCheck, Problem, SpecInBlob, Unfolded};
pub use error::FileError;
pub use export::Exported;
pub use file::{CheckedRun, FileReading, RunFile, previous_node};
pub use import::{ImportOutcome, ImportedRun};
pub(crate) use reel::MAGIC as REEL_MAGIC;
