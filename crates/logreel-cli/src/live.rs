//! The live view of a run on a terminal: a model folded from events and printed lines, a pure
//! renderer from model to lines, and the one place that writes to the terminal.

mod model;
mod render;
pub mod terminal;

pub use model::Model;
pub use render::{Size, render};
