//! Replaying a run: its spec is driven again, by the same code as when it was live, while everything
//! that came from outside is given from its log. What is decided must be what was decided.
//!
//! [`recording`] says what came from outside, in which order; [`stage`] is where effects of the replayed
//! run ask for it; [`conductor`] gives it, one at a time; [`facts`] says what of two logs must be equal, and
//! [`compare`] finds the first place where it is not. Nothing is executed and nothing is stored.

mod clock;
mod compare;
mod conductor;
mod explain;
mod facts;
mod lane;
mod perform;
mod recording;
mod report;
mod stage;

pub(crate) use stage::{ChildCall, Stage};

pub use perform::Replay;
pub use report::{Difference, Replayed, ReplayedSpec};
