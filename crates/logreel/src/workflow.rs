//! Workflows: named steps, what each needs and what each does; a file, or a Rust value.

mod check;
mod graph;
mod problem;
mod reach;
mod scan;
mod spec;

pub mod schema;
pub mod template;

pub use graph::{StepEffect, Workflow};
pub use problem::{Problem, Problems};
pub use spec::{
    BudgetSpec, Does, Limit, OnDeny, OnError, OnTimeout, RetrySpec, RunSpec, StepSpec, WaitSpec,
    WorkflowSpec,
};
