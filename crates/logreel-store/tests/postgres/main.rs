//! What only a database elsewhere can do to a store: it is started by many at once, is newer than we are, goes
//! away, loses answers, and asks who is there. On the server that `LOGREEL_TEST_POSTGRES` names, like the contract
//! suite; those that need another way in start one of their own.
#![cfg(feature = "postgres")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail where the test would"
)]

mod append;
mod builds;
mod crowd;
mod long;
mod lost;
mod migrations;
mod news;
mod owners;
mod proxy;
mod races;
mod reach;
mod standby;
mod start;
mod world;
