//! Runs as OpenTelemetry traces: to a file, to a collector, and live while they are driven here.

mod endpoint;
mod live;
mod tree;

pub use endpoint::{Endpoint, resource};
pub use live::{finish, watch};
pub use tree::{Sink, export};
