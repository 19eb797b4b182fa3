//! Agents whose every turn is in the log.
//!
//! An agent is a model, tools and checks. Its run is an ordinary run of [`logreel`]: this crate decides
//! from the folded log what comes next, and records what came of it.

mod agent;
mod agents;
mod ask;
mod context;
mod environment;
mod message;
mod model;
mod names;
mod next;
mod output;
mod policy;
mod price;
mod progress;
mod prompt;
mod recorded;
mod redact;
mod replay;
mod round;
mod spec;
mod stream;
mod told;
mod tool;
mod toolbox;
mod verify;

#[cfg(feature = "testing")]
pub mod testing;

pub use agents::Agents;
pub use environment::{Environment, EnvironmentError};
pub use logreel::cut;
pub use message::{Message, Opaque, Part, Role, ToolCall, ToolResult};
pub use model::{
    Answer, Delta, Finish, Model, ModelError, ReadVariable, Request, ScriptError, ScriptedModel,
    Timeouts, ToolSpec, connect, connect_within, key_variable,
};
pub use names::WireNames;
pub use policy::{BadPattern, Policy, Verdict as Judged};
pub use price::{PriceError, Prices};
pub use recorded::{RecordedText, WRITTEN_BYTES_MAX};
pub use redact::{REDACTED, RedactedStream, Redactor};
pub use spec::{
    AgentSpec, Beside, CommandTool, ContextSpec, ListedTool, ListedVerdict, McpSpec, Overrides,
    PolicyDefault, PolicySpec, Priced, SpecKind, SubAgent, VerifySpec,
};
pub use stream::{Format, Mapping, MappingError, Said, StreamLines, StreamReader, Understood};
pub use tool::{Call, Definition, Tool, ToolError};
pub use toolbox::{Remedy, Toolbox, ToolboxError, check_arguments};

/// What the guide shows must work.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/agents.md")]
struct Guide;
