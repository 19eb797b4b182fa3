//! Workflows: named steps, what each needs and what each does; a file, or a Rust value.

mod build;
mod check;
mod graph;
mod keys;
mod node;
mod problem;
mod reach;
mod read;
mod scan;
mod span;
mod spec;
pub(crate) mod supervise;

pub mod schema;
pub mod template;

pub use logreel_core::event::Effect;

pub use build::{Step, WorkflowBuilder};
pub use graph::{StepEffect, Workflow};
pub use node::Format;
pub use problem::{Problem, Problems};
pub use read::Agents;
pub use spec::{
    BudgetSpec, Does, Limit, OnDeny, OnError, OnTimeout, RetrySpec, RunSpec, StepSpec, WaitSpec,
    WorkflowSpec,
};
