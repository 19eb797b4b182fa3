//! Workflows: named steps, what each needs and what each does; a file, or a Rust value.
//!
//! Reading (`read`, `build`) gives a `spec`; checking (`check`, `reach`, `scan`) makes it a
//! `graph`; running it (`run`, `step`, `map`) goes through the same durable steps as a Rust task, and
//! `command` with what is under it keeps processes from outliving their run.

mod admit;
mod build;
mod check;
pub(crate) mod command;
mod graph;
pub(crate) mod groups;
mod map;
mod outputs;
pub(crate) mod process;
mod reach;
mod read;
mod run;
mod scan;
pub(crate) mod secrets;
mod spec;
mod start;
mod step;
pub(crate) mod supervise;

pub mod schema;
pub mod template;

pub use crate::spec_file::{Format, Problem, Problems};
pub use logreel_core::event::Effect;

pub use build::{Step, WorkflowBuilder};
pub use graph::{StepEffect, Workflow};
pub(crate) use run::run;
pub use spec::{
    BudgetSpec, Does, Limit, OnDeny, OnError, OnTimeout, RetrySpec, RunSpec, StepSpec, WaitSpec,
    WorkflowSpec,
};
pub use start::WorkflowRuns;
