//! AG-UI 1.0: an agent's run as the stream of events that chat front ends understand.
//!
//! One run of ours may span several of theirs: each ends when ours waits for a person, and the next one
//! brings the answer.

mod endpoint;
mod follow;
mod input;
mod messages;
mod past;
mod resume;
mod sent;
mod translate;
mod waits;

#[cfg(test)]
mod client;

pub(crate) use endpoint::{RUN, run};
