//! Agents whose every turn is in the log.
//!
//! An agent is a model, tools and checks. Its run is an ordinary run of [`logreel`]: this crate decides
//! from the folded log what comes next, and records what came of it.

mod message;
mod model;
mod names;
mod spec;
mod tool;

pub use message::{Message, Opaque, Part, Role, ToolCall, ToolResult};
pub use model::{Answer, Delta, Finish, Model, ModelError, Request, ToolSpec};
pub use names::WireNames;
pub use spec::{
    AgentSpec, CommandTool, ContextSpec, ListedTool, ListedVerdict, McpSpec, Overrides,
    PolicyDefault, PolicySpec, Priced, SpecKind, SubAgent, VerifySpec,
};
pub use tool::{Call, Definition, Tool, ToolError};
