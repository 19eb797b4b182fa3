//! The pure domain of Logreel: what a run's log may say and what follows from it.
//!
//! A run is an append-only log of [`Event`]s. [`decide()`] turns a [`Command`] into drafts of events,
//! [`fold()`] turns events into a [`RunState`]; nothing else produces state. The crate has no async,
//! no I/O, no clock and no randomness: time and ids come in as arguments.
//!
//! Reading order: [`id`], [`json`], [`event`], [`codec`], [`chain`], [`row`], [`state`], [`mod@fold`],
//! [`mod@decide`], [`fork`].

pub mod batch;
pub mod budget;
pub mod chain;
pub mod codec;
pub mod command;
pub mod decide;
pub mod digest;
pub mod event;
pub mod fold;
pub mod fork;
pub mod id;
pub mod json;
pub mod meaning;
pub mod ready;
pub mod row;
pub mod state;
pub mod time;

pub use batch::Batch;
pub use budget::{Limit, OverBudget};
pub use chain::{ChainError, Header, RunKey, Verifier};
pub use codec::{DecodeError, FORMAT, Record};
pub use command::{Command, Draft, Outside};
pub use decide::{Rejected, decide, decide_claim, decide_outside};
pub use digest::{Digest, Digester};
pub use event::{Body, Event};
pub use fold::{IllegalEvent, fold, replay};
pub use fork::{Fork, Tally, decide_fork};
pub use id::{
    AppendId, CallId, Epoch, Head, IdError, RequestId, RunId, Seq, Session, StepId, WaitId,
};
pub use json::{Blob, BlobRef, INLINE_MAX, Json, Payload};
pub use ready::Ready;
pub use row::{FOLD_VERSION, Row, Status};
pub use state::{RunState, StepState};
pub use time::Timestamp;
