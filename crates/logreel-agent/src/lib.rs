//! Agents whose every turn is in the log.
//!
//! An agent is a model, tools and checks. Its run is an ordinary run of [`logreel`]: this crate decides
//! from the folded log what comes next, and records what came of it.

mod cut;
mod environment;
mod message;
mod model;
mod names;
mod policy;
mod redact;
mod spec;
mod tool;
mod toolbox;

pub use cut::cut;
pub use environment::{Environment, EnvironmentError, variables};
pub use message::{Message, Opaque, Part, Role, ToolCall, ToolResult};
pub use model::{Answer, Delta, Finish, Model, ModelError, Request, ToolSpec};
pub use names::WireNames;
pub use policy::{BadPattern, Policy, Verdict};
pub use redact::{REDACTED, RedactedStream, Redactor};
pub use spec::{
    AgentSpec, CommandTool, ContextSpec, McpSpec, PolicyDefault, PolicySpec, SubAgent, VerifySpec,
};
pub use tool::{Call, Definition, Tool, ToolError};
pub use toolbox::{Toolbox, ToolboxError, check_arguments};
