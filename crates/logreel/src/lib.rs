//! Durable runs for AI agents.
//!
//! A run is an append-only log; its status, its results and what to do next are folded from it. A
//! [`Task`] is a Rust function whose steps are recorded: kill the process, start it again, and what
//! finished is not computed twice.
//!
//! ```
//! use logreel::{Ctx, Engine, Outcome, TaskError};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::memory().await?;                  // or Engine::open("runs.db").await?
//! let hello = engine.task("hello", |ctx: Ctx, name: String| async move {
//!     let greeting = ctx.step("greet").input(&name).run(|| async {
//!         Ok::<_, TaskError>(format!("Hello, {name}!"))
//!     }).await?;
//!     Ok(greeting)
//! });
//! let run = hello.start(&"Ada".to_string()).key("greet-ada").await?;
//! match run.wait().await? {
//!     Outcome::Completed(greeting) => assert_eq!(greeting, "Hello, Ada!"),
//!     other => panic!("{other:?}"),
//! }
//! # engine.close().await?; Ok(()) }
//! ```

mod agents;
mod answer;
mod begin;
mod budget;
mod call;
mod cancel;
mod carry;
mod checkpoint;
mod child;
mod clock;
mod command;
mod ctx;
mod cut;
mod driver;
mod engine;
mod erase;
mod error;
mod external;
mod fork;
mod handle;
mod history;
mod hook;
mod journal;
mod lease;
mod live;
mod log;
mod message;
mod moment;
mod outage;
mod outside;
mod owner;
mod past;
mod pause;
mod program;
mod prune;
mod query;
mod record;
mod redact;
mod registry;
mod replay;
mod request;
mod resolve;
mod resume;
mod retry;
mod say;
mod session;
mod signal;
mod start;
mod step;
mod stream_step;
mod subscribe;
mod task;
mod wait;
mod work;
mod write_step;

pub mod diff;
pub mod name;
pub mod otlp;
pub mod spec_file;
pub mod tree;
pub mod value;
pub mod view;
pub mod when;
pub mod workflow;

#[cfg(feature = "testing")]
pub mod testing;

pub use agents::{AgentRuns, Agents, Driving, Named};
pub use answer::Answer;
pub use call::{CallOutcome, Recorded, ToolCall};
pub use cancel::CancelOutcome;
pub use carry::{
    CheckedRun, Exported, FileError, FileReading, ImportOutcome, ImportedRun, LogCheck, Problem,
    RunFile, SpecInBlob, Unfolded, previous_node,
};
pub use checkpoint::{Checkpoint, CheckpointError};
pub use command::{Command, Exit, Finished, Piped};
pub use ctx::Ctx;
pub use cut::{cut, cut_between};
pub use engine::{Builder, Engine};
pub use error::{Error, ErrorKind, TaskError};
pub use external::{
    External, ExternalAppend, ExternalAppended, ExternalClaim, ExternalFact, ExternalLease,
    ExternalStart, ExternalStarted, HeadMoved, LeaseSecret, SavedCheckpoint,
};
pub use fork::{ForkPoint, ForkRun, GoneChild, NoPoint, Outlook, Write, WriteOutcome};
pub use handle::{Outcome, RunHandle};
pub use hook::{Hook, HookEvent};
pub use live::{LiveLine, LiveLines, LiveText, LiveTexts, Missed, Shown, Stream};
pub use log::{Busy, Log, Question, Replaying};
pub use past::{PastOutcome, PastRun};
pub use pause::PauseOutcome;
pub use prune::{Prune, Pruned};
pub use query::Runs;
pub use record::{NotedGroup, RECORDER_LOST, RUN_VARIABLE, Recorder, is_with_recorder};
pub use registry::Registered;
pub use replay::{Difference, Replay, Replayed, ReplayedSpec};
pub use request::Ask;
pub use resolve::Resolved;
pub use resume::ResumeOutcome;
pub use retry::RetryRun;
pub use session::SessionHandle;
pub use start::{IfBusy, Start, Started};
pub use step::{Retry, Step, StepName};
pub use stream_step::{Heard, Understands};
pub use subscribe::{EventStream, RecordStream};
pub use task::Task;
pub use wait::{Approval, ApprovalWait, SignalWait, hours, minutes, seconds};
pub use write_step::{Reconciled, WriteStep};

pub use logreel_core::event::{Cause, Durability};
pub use logreel_core::{
    self as core, Body, Digest, Event, Head, Json, Record, RunId, Seq, Session, Status, StepId,
    Timestamp, WaitId,
};
#[cfg(feature = "postgres")]
pub use logreel_store::PostgresStore;
pub use logreel_store::{self as store, Entry, Env, Filter, MemoryStore, RunStore, SqliteStore};

/// What the README shows must compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
