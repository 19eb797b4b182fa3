//! Workflows: named steps, what each needs and what each does; a file, or a Rust value.

mod spec;

pub use spec::{
    BudgetSpec, Does, Limit, OnDeny, OnError, OnTimeout, RetrySpec, RunSpec, StepSpec, WaitSpec,
    WorkflowSpec,
};
