//! Workflows: named steps, what each needs and what each does; a file, or a Rust value.

pub(crate) mod command;
pub(crate) mod groups;
mod process;
mod spec;
pub(crate) mod supervise;

pub use spec::{
    BudgetSpec, Does, Limit, OnDeny, OnError, OnTimeout, RetrySpec, RunSpec, StepSpec, WaitSpec,
    WorkflowSpec,
};
