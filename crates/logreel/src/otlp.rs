//! Runs as OpenTelemetry traces, by the GenAI conventions: an agent's run is an `invoke_agent` span, with a
//! `chat` for each model call and an `execute_tool` for each tool call below it, and child runs nested.
//!
//! Span ids are computed from run and event, never drawn, so that the same run exported twice is the same
//! trace. Nothing of what was said is in a span unless it is asked for.

mod content;
mod span;
mod spans;
mod tree;
mod wire;

pub use content::fill;
pub use span::{Attribute, Span, SpanKind};
pub use spans::{RunSpans, trace_of};
pub use tree::Trace;
pub use wire::{Resource, encode};
