//! A command step's command: `sh -c RUN`, its input, and its output as the step's result.
//!
//! The process itself is [`super::supervise`]'s. Here is what its end means, and what a stop of the run
//! means for it.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;

use super::groups;
use super::supervise::{Ended, Handle, How, Start, Trouble};
use crate::Reconciled;
use crate::ctx::{Counted, Ctx, OUTER};
use crate::error::TaskError;
use crate::journal::Stop;

pub(crate) use super::supervise::Stream;

/// What `reconcile` exits with when the write surely did not happen.
const NOT_DONE: i32 = 10;

/// A command to run.
#[derive(Debug, Clone)]
pub(crate) struct CommandSpec {
    /// Shell text; never made from data.
    pub(crate) run: String,
    /// Its stdin.
    pub(crate) input: Vec<u8>,
    /// Added to what it inherits. `LOGREEL_RUN`, `LOGREEL_STEP` and `LOGREEL_KEY` are set here.
    pub(crate) env: Vec<(String, String)>,
    /// The working folder.
    pub(crate) dir: PathBuf,
    /// It writes outside: once begun it is given time to finish, and heard to its end.
    pub(crate) write: bool,
    /// The largest output that can be recorded.
    pub(crate) output_bytes_max: u64,
    /// One that takes longer is stopped, and gone when this returns; a timeout around [`run`] would
    /// not wait for that.
    pub(crate) timeout: Option<Duration>,
}

/// Runs a command and gives its stdout: as JSON when it is JSON, else as text without its last line
/// end, else as `{"base64": ".."}`.
///
/// Kinds of failure: `exit`, `signal`, `too_large`, `timeout`, `not_started`, and for what should not
/// happen `lost` and `panic`. When the driver stops, this returns only for a cancel; what was
/// interrupted otherwise runs again on resume, or is in doubt.
#[allow(dead_code, reason = "the scheduler of workflows calls it")]
pub(crate) async fn run(
    ctx: &Ctx,
    spec: CommandSpec,
    on_line: impl Fn(Stream, &str) + Send + Sync + 'static,
) -> Result<Value, TaskError> {
    let (write, bytes_max) = (spec.write, spec.output_bytes_max);
    let ended = execute(ctx, spec, on_line).await?;
    judge(ended, write, bytes_max)
}

/// Asks a command what became of an interrupted write: exit 0 says that it happened and stdout is its
/// result, 10 that it surely did not, anything else that nobody can tell.
#[allow(dead_code, reason = "the scheduler of workflows calls it")]
pub(crate) async fn reconcile(
    ctx: &Ctx,
    spec: CommandSpec,
) -> Result<Reconciled<Value>, TaskError> {
    let spec = CommandSpec {
        write: false,
        ..spec
    };
    let bytes_max = spec.output_bytes_max;
    let ended = execute(ctx, spec, |_, _| {}).await?;
    Ok(match ended.how {
        How::Exited(0) => Reconciled::Done(judge(ended, false, bytes_max)?),
        How::Exited(NOT_DONE) => Reconciled::NotDone,
        How::Exited(_) | How::Signalled(_) | How::Stopped => Reconciled::Unknown,
    })
}

/// Runs the command to its end, or to the run's.
async fn execute(
    ctx: &Ctx,
    spec: CommandSpec,
    on_line: impl Fn(Stream, &str) + Send + Sync + 'static,
) -> Result<Ended, TaskError> {
    let CommandSpec {
        run,
        input,
        mut env,
        dir,
        write,
        output_bytes_max,
        timeout,
    } = spec;
    env.push((groups::RUN.to_owned(), ctx.run_id().to_string()));
    let outer = OUTER.try_with(Clone::clone).ok();
    if let Some(outer) = &outer {
        env.push(("LOGREEL_STEP".to_owned(), outer.step.to_string()));
        env.push(("LOGREEL_KEY".to_owned(), outer.key.to_string()));
    }
    let start = Start {
        shell: run,
        input,
        env,
        dir,
        write,
        output_bytes_max,
        on_line: Box::new(on_line),
    };
    let execution = &ctx.0;
    let started = execution
        .commands
        .start(outer.map(|outer| outer.step), start);
    let mut handle = match started.await {
        Ok(handle) => handle,
        // The driver is stopping; the function must not see it as its own failure.
        Err(Trouble::Closed) => return std::future::pending().await,
        Err(error) => return Err(trouble(error)),
    };
    let clock = &execution.journal.env;
    let too_long = async {
        match timeout {
            Some(timeout) => clock.sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        ended = handle.ended() => return ended.map_err(trouble),
        stop = execution.journal.told_to_stop() => match stop {
            Stop::Cancelled => {
                stopped(&mut handle).await;
                return Err(crate::ctx::cancelled());
            }
            Stop::Paused | Stop::Drained | Stop::Parked if write => {}
            Stop::Paused | Stop::Drained | Stop::Parked | Stop::Lost(_) => {
                // The driver need not wait for what will never come.
                let _given_up = Counted::new(&execution.activity.given_up);
                stopped(&mut handle).await;
                return std::future::pending().await;
            }
        },
        () = too_long => {
            stopped(&mut handle).await;
            let message = format!("the command took longer than {:?}", timeout.unwrap_or_default());
            return Err(TaskError::of_kind("timeout", message));
        }
    }
    // A write has the driver's grace time; then this future is dropped.
    handle.ended().await.map_err(trouble)
}

/// Stops a command whose outcome no longer matters, and waits until it is gone.
async fn stopped(handle: &mut Handle) {
    handle.stop();
    if let Err(error) = handle.ended().await {
        tracing::warn!(%error, "a command was to be stopped");
    }
}

fn trouble(error: Trouble) -> TaskError {
    let kind = match &error {
        Trouble::Lost(_) => "lost",
        Trouble::Broken(_) => "panic",
        Trouble::NoFolder(_)
        | Trouble::TooLong
        | Trouble::Spawn(_)
        | Trouble::Note(_)
        | Trouble::Closed => "not_started",
    };
    let failed = TaskError::of_kind(kind, error.to_string());
    match error {
        Trouble::NoFolder(_) | Trouble::TooLong => failed.permanent(),
        _ => failed,
    }
}

/// What the end of a command means for its step.
fn judge(ended: Ended, write: bool, bytes_max: u64) -> Result<Value, TaskError> {
    let Ended {
        how,
        stdout,
        too_large,
        stderr,
    } = ended;
    let said = match stderr.trim_end() {
        "" => String::new(),
        stderr => format!(": {stderr}"),
    };
    match how {
        How::Exited(0) | How::Stopped if too_large => Err(over(bytes_max)),
        How::Exited(0) => value_of(stdout, bytes_max),
        How::Exited(code) => {
            let kind = match code {
                // The shell's word for a command of it that was killed: of a write nobody knows then
                // how far it came.
                129..=159 if write => "signal",
                _ => "exit",
            };
            let what = match code {
                127 => "a program was not found (exit status 127)".to_owned(),
                126 => "a program could not be executed (exit status 126)".to_owned(),
                129..=159 => match signal_name(code - 128) {
                    Some(name) => format!("exit status {code} (128 + {name})"),
                    None => format!("exit status {code}"),
                },
                code => format!("exit status {code}"),
            };
            Err(TaskError::of_kind(kind, what + &said).with_exit_code(code))
        }
        How::Signalled(signal) => {
            let name = signal_name(signal).unwrap_or("unknown");
            let message = format!("the command was killed by signal {signal} ({name}){said}");
            Err(TaskError::of_kind("signal", message))
        }
        How::Stopped => Err(TaskError::of_kind("lost", "the command was stopped")),
    }
}

fn over(bytes_max: u64) -> TaskError {
    let message = format!(
        "the command printed more than {bytes_max} bytes; write them to a file and print its name"
    );
    TaskError::of_kind("too_large", message).permanent()
}

fn signal_name(signal: i32) -> Option<&'static str> {
    let names = [
        "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE",
        "SIGKILL", "SIGUSR1", "SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM",
    ];
    let at = usize::try_from(signal).ok()?.checked_sub(1)?;
    names.get(at).copied()
}

/// What was printed, as it will be recorded.
fn value_of(stdout: Vec<u8>, bytes_max: u64) -> Result<Value, TaskError> {
    let value = match serde_json::from_slice(&stdout) {
        Ok(json) => json,
        Err(_) => match String::from_utf8(stdout) {
            Ok(mut text) => {
                if text.ends_with('\n') {
                    text.pop();
                }
                Value::String(text)
            }
            Err(error) => {
                let text = base64::engine::general_purpose::STANDARD.encode(error.as_bytes());
                serde_json::json!({ "base64": text })
            }
        },
    };
    // Escapes and base64 take more room than what was printed.
    let mut count = Count(0);
    serde_json::to_writer(&mut count, &value)?;
    if count.0 > bytes_max {
        return Err(over(bytes_max));
    }
    Ok(value)
}

struct Count(u64);

impl std::io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
