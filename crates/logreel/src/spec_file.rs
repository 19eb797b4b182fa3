//! Spec files, whatever they specify: TOML or JSON, keys that are taken with their type, and problems
//! that say where they are. What a key means is the business of whoever takes it: `workflow` here, the
//! crate of agents elsewhere.

mod files;
mod node;
mod problem;
mod sheet;
mod span;
mod variable;

pub use files::OpenFiles;
pub use node::{Field, Format, Is, Node};
pub(crate) use problem::{InStep, Places};
pub use problem::{Problem, Problems};
pub use sheet::{Keys, Sheet};
pub use span::SPAN_MAX;
pub(crate) use span::parse_range;
pub use variable::{is_variable, variables};
