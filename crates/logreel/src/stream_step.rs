//! Command steps that say `stream`: the command is a run of its own, nested in the workflow's, and what it
//! prints becomes that run's messages, tool calls and spend.
//!
//! The child's spec and input hold all that is needed to run the command, so that anyone who understands
//! the stream can go on with it. What lines mean is another crate's; this one only hands them over.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use logreel_core::event::{Budget, Phase, RunKind, ToolFailed};
use logreel_core::meaning::digest_of;
use logreel_core::{Blob, Body, Json, RunState};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, ChildStdout};

use crate::agents::{Agents, Driving};
use crate::command::{Command, Exit};
use crate::ctx::Ctx;
use crate::error::TaskError;
use crate::program::Program;
use crate::spec_file::variables;
use crate::workflow::secrets::Secrets;

const CHUNK_BYTES: usize = 64 * 1024;
/// A longer line is handed over in pieces.
const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What the runs of such steps are called, by their stream.
pub(crate) const AGENTS: [&str; 3] = ["claude-code stream", "codex stream", "mapped stream"];

/// Understands what an agent prints. Given by [`Agents::stream`].
pub trait Understands: Send {
    /// The run has a log already: an earlier driver of it began, or it is a copy. What is told now comes
    /// after that, and its calls are others.
    fn go_on(&mut self, state: &RunState);

    /// Bytes came, in any pieces; gives what can be recorded now.
    fn push(&mut self, bytes: &[u8]) -> Heard;

    /// Nothing more comes.
    fn finish(&mut self) -> Heard;

    /// What the agent said in the end.
    fn answer(&self) -> Option<Json>;

    /// What it says went wrong.
    fn failure(&self) -> Option<String>;

    /// How many lines came, and how many of them were not understood.
    fn counts(&self) -> (u64, u64);
}

/// What something that was printed says.
#[derive(Debug, Default)]
pub struct Heard {
    /// The facts.
    pub bodies: Vec<Body>,
    /// What they need beside them.
    pub blobs: Vec<Blob>,
}

/// What is run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamSpec {
    pub(crate) run: String,
    pub(crate) stream: String,
    /// It is never repeated blind.
    pub(crate) write: bool,
}

/// What it is run on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StreamInput {
    pub(crate) dir: Option<String>,
    /// With `${VAR}` as it is written.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) input: Option<Value>,
    pub(crate) key: String,
    pub(crate) step: String,
}

impl Program {
    /// The command of a step, as a run of its own.
    pub(crate) fn of_stream(agents: &Arc<dyn Agents>, spec: &StreamSpec) -> Self {
        let json = Json::of(spec).expect("texts and a flag serialize");
        let (agents, spec) = (Arc::clone(agents), Arc::new(spec.clone()));
        let named = AGENTS
            .iter()
            .find(|name| name.strip_suffix(" stream") == Some(&spec.stream));
        Self {
            name: Arc::from(*named.unwrap_or(&AGENTS[2])),
            kind: RunKind::Record,
            spec_digest: digest_of(&json).expect("a JSON text serializes"),
            spec: json,
            workflow: None,
            budget: Budget::default(),
            limit: None,
            phase: Phase::Executing,
            call: Arc::new(move |ctx, input| -> Driving {
                Box::pin(drive(ctx, Arc::clone(&agents), Arc::clone(&spec), input))
            }),
        }
    }
}

async fn drive(
    ctx: Ctx,
    agents: Arc<dyn Agents>,
    spec: Arc<StreamSpec>,
    input: Json,
) -> Result<Json, TaskError> {
    if spec.write && ctx.attempt() > 1 {
        return Err(crate::record::lost());
    }
    let given: StreamInput = input.decode()?;
    let log = ctx.log();
    let inherited = log.inherited_secrets();
    let secrets = Secrets::of_texts(given.env.values())?.hiding(&inherited);
    let hidden = [secrets.values().values().cloned().collect(), inherited].concat();
    let understands = agents.stream(&spec.stream, &hidden);
    let mut understands = understands.ok_or_else(|| {
        let message = format!(
            "this program does not understand the stream `{}`",
            spec.stream
        );
        TaskError::of_kind("stream", message).permanent()
    })?;
    let base = log.dir().unwrap_or_else(|| PathBuf::from("."));
    let folder = given
        .dir
        .as_ref()
        .map_or_else(|| base.clone(), |dir| base.join(dir));
    let mut command = Command::shell(spec.run.clone())
        .dir(folder)
        .write(spec.write)
        .env("LOGREEL_STEP", &given.step)
        .env("LOGREEL_KEY", &given.key);
    for (name, text) in &given.env {
        command = command.env(name, secrets.resolve(text));
    }
    let stdin = given.input.map(crate::workflow::template::as_text);
    let stdin = stdin.unwrap_or_default().into_bytes();
    let _busy = log.busy();
    log.may_begin().await?;
    give_up_calls(&ctx).await?;
    log.with_state(|state| understands.go_on(state));
    let mut piped = ctx.piped_command(command).await?;
    let Some((to, from)) = piped.pipes() else {
        return Err(TaskError::of_kind("bug", "a command's pipes were taken"));
    };
    let work = async {
        let mut listener = Listener {
            ctx: &ctx,
            understands,
            secrets: &secrets,
            begun: Vec::new(),
        };
        let (heard, ()) = tokio::join!(listener.hear(from), feed(to, &stdin));
        heard?;
        let finished = piped.ended().await?;
        Ok::<_, TaskError>((finished, listener.understands))
    };
    let (finished, understands) = log.unless_stopped(work).await??;
    let (lines, unknown) = understands.counts();
    if unknown > 0 {
        tracing::warn!(run = %ctx.run_id(), lines, unknown, "lines were not understood; they are kept");
    }
    let said = match (understands.failure(), finished.stderr.trim_end()) {
        (Some(why), _) => format!(": {why}"),
        (None, "") => String::new(),
        (None, stderr) => format!(": {}", secrets.redact_printed(stderr.to_owned())),
    };
    match (finished.exit, understands.failure()) {
        (Exit::Code(0), None) => Ok(understands.answer().unwrap_or_else(Json::null)),
        (Exit::Code(0), Some(why)) => Err(TaskError::of_kind("agent", why)),
        (Exit::Code(code), _) => {
            let failed = TaskError::of_kind("exit", format!("exit status {code}{said}"));
            Err(failed.with_exit_code(code))
        }
        (Exit::Signal(number), _) => {
            let message = format!("the command was killed by signal {number}{said}");
            Err(TaskError::of_kind("signal", message))
        }
        (Exit::Stopped, _) => Err(TaskError::of_kind("lost", "the command was stopped")),
    }
}

/// What the agent had under way when its last driver died ended with it: the agent is started again, which
/// its step says is no harm.
async fn give_up_calls(ctx: &Ctx) -> Result<(), TaskError> {
    let log = ctx.log();
    let open = log.with_state(|state| state.unsettled_calls(log.epoch()));
    let failed = open.into_iter().map(|call| {
        let message = "the agent was stopped before the call returned";
        let error = TaskError::of_kind("interrupted", message).cause();
        let redacted = 0;
        Body::from(ToolFailed {
            call,
            error,
            redacted,
        })
    });
    let bodies: Vec<Body> = failed.collect();
    if !bodies.is_empty() {
        log.record(bodies, Vec::new()).await?;
    }
    Ok(())
}

/// Records what a command prints.
struct Listener<'c> {
    ctx: &'c Ctx,
    understands: Box<dyn Understands>,
    secrets: &'c Secrets,
    begun: Vec<u8>,
}

impl Listener<'_> {
    async fn hear(&mut self, mut from: ChildStdout) -> Result<(), TaskError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let count = from.read(&mut chunk).await?;
            if count == 0 {
                break;
            }
            self.begun.extend_from_slice(&chunk[..count]);
            // Whole lines: a value that must not be seen is not cut in two.
            let whole = match self.begun.iter().rposition(|byte| *byte == b'\n') {
                Some(at) => at + 1,
                None if self.begun.len() > LINE_BYTES_MAX => self.begun.len(),
                None => continue,
            };
            let rest = self.begun.split_off(whole);
            let lines = std::mem::replace(&mut self.begun, rest);
            let heard = self.understands.push(&self.secrets.redact_bytes(lines));
            record(self.ctx, heard).await?;
        }
        let rest = self.secrets.redact_bytes(std::mem::take(&mut self.begun));
        let heard = self.understands.push(&rest);
        record(self.ctx, heard).await?;
        let heard = self.understands.finish();
        record(self.ctx, heard).await
    }
}

async fn record(ctx: &Ctx, heard: Heard) -> Result<(), TaskError> {
    if !heard.bodies.is_empty() {
        ctx.log().record(heard.bodies, heard.blobs).await?;
    }
    Ok(())
}

async fn feed(mut to: ChildStdin, input: &[u8]) {
    match to.write_all(input).await {
        Ok(()) => {}
        // A command may ignore its input, or stop half-way.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        Err(error) => tracing::warn!(%error, "a command's input was not written"),
    }
}

impl Secrets {
    /// The variables that these texts name.
    fn of_texts<'t>(texts: impl Iterator<Item = &'t String>) -> Result<Self, TaskError> {
        let mut names = Vec::new();
        for text in texts {
            let found = variables(text).unwrap_or_default();
            names.extend(found.into_iter().map(|(_, name)| name.to_owned()));
        }
        Self::of_names(names)
    }

    /// A text with the values of the variables it names.
    fn resolve(&self, text: &str) -> String {
        let mut resolved = String::new();
        let mut from = 0;
        for (place, name) in variables(text).unwrap_or_default() {
            resolved.push_str(&text[from..place.start]);
            resolved.push_str(self.values().get(name).map_or("", String::as_str));
            from = place.end;
        }
        resolved + &text[from..]
    }
}
