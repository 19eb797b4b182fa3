//! A command step's command: `sh -c RUN`, its input, and its output as the step's result.
//!
//! The process itself is [`super::supervise`]'s. Here is what its end means, and what a stop of the run
//! means for it.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use logreel_core::Json;

use super::groups;
use super::secrets::Secrets;
use super::supervise::{Ended, Handle, How, Start, TAIL_BYTES, Trouble};
use crate::Reconciled;
use crate::command::Finished;
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
    /// What must not be in its output.
    pub(crate) secrets: Secrets,
}

/// How a command is run, whoever asks for it.
pub(crate) struct Execution {
    pub(crate) start: Start,
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
) -> Result<Json, TaskError> {
    let (write, bytes_max) = (spec.write, spec.output_bytes_max);
    let secrets = spec.secrets.clone();
    let ended = redacted(execute(ctx, spec, on_line).await?, &secrets);
    judge(ended, write, bytes_max)
}

/// Asks a command what became of an interrupted write: exit 0 says that it happened and stdout is its
/// result, 10 that it surely did not, anything else that nobody can tell.
#[allow(dead_code, reason = "the scheduler of workflows calls it")]
pub(crate) async fn reconcile(ctx: &Ctx, spec: CommandSpec) -> Result<Reconciled<Json>, TaskError> {
    let spec = CommandSpec {
        write: false,
        ..spec
    };
    let (bytes_max, secrets) = (spec.output_bytes_max, spec.secrets.clone());
    let ended = redacted(execute(ctx, spec, |_, _| {}).await?, &secrets);
    Ok(match ended.how {
        How::Exited(0) => Reconciled::Done(judge(ended, false, bytes_max)?),
        How::Exited(NOT_DONE) => Reconciled::NotDone,
        How::Exited(_) | How::Signalled(_) | How::Stopped => Reconciled::Unknown,
    })
}

/// Runs a step's command to its end, or to the run's.
async fn execute(
    ctx: &Ctx,
    spec: CommandSpec,
    on_line: impl Fn(Stream, &str) + Send + Sync + 'static,
) -> Result<Ended, TaskError> {
    let start = Start {
        shell: spec.run,
        input: spec.input,
        env: spec.env,
        inherits: true,
        dir: spec.dir,
        write: spec.write,
        output_bytes_max: spec.output_bytes_max,
        // What a write says can be cut; that it ran cannot be undone.
        keeps_ends: spec.write,
        merged: false,
        pipes: None,
        on_line: Box::new(on_line),
    };
    let timeout = spec.timeout;
    to_its_end(ctx, Execution { start, timeout }).await
}

/// Runs a command to its end, or to the run's.
pub(crate) async fn to_its_end(ctx: &Ctx, execution: Execution) -> Result<Ended, TaskError> {
    let Execution { mut start, timeout } = execution;
    let write = start.write;
    start
        .env
        .push((groups::RUN.to_owned(), ctx.run_id().to_string()));
    let outer = OUTER.try_with(Clone::clone).ok();
    if let Some(outer) = &outer {
        start
            .env
            .push(("LOGREEL_STEP".to_owned(), outer.step.to_string()));
        let key = outer.key().to_string();
        start.env.push(("LOGREEL_KEY".to_owned(), key));
    }
    let tells_itself = outer.as_ref().is_some_and(|outer| outer.gives_up);
    let execution = &ctx.0;
    execution.until_commands_may_start().await?;
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
                // The driver need not wait for what will never come; said once for each effect.
                let given_up = &execution.activity.given_up;
                let _given_up = (!tells_itself).then(|| Counted::new(given_up));
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

/// What a command printed, without secrets. Of stderr only the end was kept: a secret may have been cut
/// in two at its beginning.
fn redacted(mut ended: Ended, secrets: &Secrets) -> Ended {
    if secrets.longest() == 0 {
        return ended;
    }
    if ended.too_large {
        // So it may have been where the middle was left out.
        let longest = secrets.longest();
        let kept = ended.stdout.len().saturating_sub(longest);
        ended.stdout.truncate(kept);
        ended.end.drain(..longest.min(ended.end.len()));
        ended.end = secrets.redact_bytes(ended.end);
    }
    ended.stdout = secrets.redact_bytes(ended.stdout);
    let was_cut = ended.stderr.len() + 4 > TAIL_BYTES;
    ended.stderr = secrets.redact_printed(ended.stderr);
    if was_cut {
        let mut from = secrets.longest().min(ended.stderr.len());
        while !ended.stderr.is_char_boundary(from) {
            from += 1;
        }
        ended.stderr.drain(..from);
    }
    ended
}

pub(crate) fn trouble(error: Trouble) -> TaskError {
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
fn judge(ended: Ended, write: bool, bytes_max: u64) -> Result<Json, TaskError> {
    let said = match ended.stderr.trim_end() {
        "" => String::new(),
        stderr => format!(": {stderr}"),
    };
    match ended.how {
        How::Exited(0) if write => {
            let ended = Finished::from(ended);
            // JSON takes up to six bytes for one that was printed.
            let cut = || Json::of(&crate::cut(&ended.printed(), (bytes_max / 7) as usize));
            match ended.too_large {
                true => Ok(cut()?),
                false => value_of(ended.stdout.clone(), bytes_max).or_else(|_| Ok(cut()?)),
            }
        }
        How::Exited(0) | How::Stopped if ended.too_large => Err(over(bytes_max)),
        How::Exited(0) => value_of(ended.stdout, bytes_max),
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

/// What was printed, as it will be recorded. JSON is kept as it was written: a number of many digits
/// stays that number.
fn value_of(stdout: Vec<u8>, bytes_max: u64) -> Result<Json, TaskError> {
    let json = match String::from_utf8(stdout) {
        Ok(mut text) => match Json::parse(text.trim().to_owned()) {
            Ok(json) => json,
            Err(_) => {
                if text.ends_with('\n') {
                    text.pop();
                }
                Json::of(&text)?
            }
        },
        Err(error) => {
            let text = base64::engine::general_purpose::STANDARD.encode(error.as_bytes());
            Json::from(serde_json::json!({ "base64": text }))
        }
    };
    // Escapes and base64 take more room than what was printed.
    if json.text().len() as u64 > bytes_max {
        return Err(over(bytes_max));
    }
    Ok(json)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use logreel_core::event::WaitKind;
    use logreel_store::tip::PAYLOAD_MAX_BYTES;
    use rustix::process::Pid;
    use tokio::sync::Mutex;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use serde_json::Value;

    use super::*;
    use crate::workflow::process;
    use crate::{Body, Engine, Entry, Event, Outcome, ResumeOutcome, RunHandle, Seq};

    fn printed(bytes: &[u8]) -> Value {
        value_of(bytes.to_vec(), 1000).unwrap().to_value()
    }

    #[test]
    fn output_is_json_or_text_or_base64() {
        use serde_json::json;
        assert_eq!(printed(b"{\"a\": [1, 2.5]}\n"), json!({"a": [1, 2.5]}));
        assert_eq!(printed(b" 12\n"), json!(12));
        let digits = value_of(b"12345678901234567890123\n".to_vec(), 1000).unwrap();
        assert_eq!(digits.text(), "12345678901234567890123");
        assert_eq!(printed(b"null\n"), json!(null));
        assert_eq!(printed(b"two words\n\n"), json!("two words\n"));
        assert_eq!(printed(b"\"a\"\n\"b\"\n"), json!("\"a\"\n\"b\""));
        assert_eq!(printed(b""), json!(""));
        assert_eq!(printed(b"\xff\xfe\n"), json!({"base64": "//4K"}));
        // 400 bytes that take six each to record.
        let error = value_of(vec![1; 400], 1000).unwrap_err();
        assert_eq!(error.cause().kind, "too_large");
        assert!(!error.is_retryable());
    }

    fn failed(how: How, stderr: &str, write: bool) -> (String, String, Option<i32>) {
        let ended = Ended {
            how,
            stdout: Vec::new(),
            too_large: false,
            end: Vec::new(),
            printed: 0,
            stderr: stderr.to_owned(),
        };
        let cause = judge(ended, write, 1000).unwrap_err().cause();
        (cause.kind, cause.message, cause.exit_code)
    }

    #[test]
    fn a_failure_says_how_it_ended_and_what_was_said_last() {
        let (kind, message, code) = failed(How::Exited(2), "no such branch\n", false);
        assert_eq!((kind.as_str(), code), ("exit", Some(2)));
        assert_eq!(message, "exit status 2: no such branch");
        let (_, message, _) = failed(How::Exited(127), "sh: 1: jq: not found\n", false);
        assert_eq!(
            message,
            "a program was not found (exit status 127): sh: 1: jq: not found"
        );
        let (kind, message, code) = failed(How::Signalled(9), "", false);
        assert_eq!((kind.as_str(), code), ("signal", None));
        assert_eq!(message, "the command was killed by signal 9 (SIGKILL)");
        // A shell whose command was killed; of a write nobody knows how far it came.
        assert_eq!(failed(How::Exited(137), "", false).0, "exit");
        let (kind, message, code) = failed(How::Exited(137), "", true);
        assert_eq!((kind.as_str(), code), ("signal", Some(137)));
        assert_eq!(message, "exit status 137 (128 + SIGKILL)");
    }

    #[test]
    fn a_write_does_not_fail_because_it_talks() {
        let ended = |too_large| Ended {
            how: How::Exited(0),
            stdout: vec![1; 400],
            too_large,
            end: b"end".to_vec(),
            printed: 5000,
            stderr: String::new(),
        };
        let said = judge(ended(true), true, 1000).unwrap().to_value();
        let said = said.as_str().unwrap().to_owned();
        assert!(said.ends_with("bytes left out ...]\nend"), "{said}");
        // 400 bytes that take six each to record.
        let said = judge(ended(false), true, 1000).unwrap();
        assert!(said.text().len() <= 1000 && said.text().contains("left out"));
        for too_large in [true, false] {
            let error = judge(ended(too_large), false, 1000).unwrap_err();
            assert_eq!(error.cause().kind, "too_large");
        }
    }

    /// A run of one command on a store in a file.
    struct World {
        folder: tempfile::TempDir,
        engine: Engine,
        run: RunHandle<Value>,
        lines: UnboundedReceiver<String>,
    }

    fn spec(dir: &Path, run: &str, write: bool) -> CommandSpec {
        CommandSpec {
            run: run.to_owned(),
            input: Vec::new(),
            env: Vec::new(),
            dir: dir.to_owned(),
            write,
            output_bytes_max: PAYLOAD_MAX_BYTES,
            timeout: None,
            secrets: Secrets::default(),
        }
    }

    impl World {
        async fn start(shell: &str, write: bool) -> Self {
            Self::start_with(|dir| spec(dir, shell, write)).await
        }

        async fn start_with(spec: impl FnOnce(&Path) -> CommandSpec) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let engine = Engine::open(folder.path().join("runs.db")).await.unwrap();
            let (sender, lines) = unbounded_channel();
            let spec = spec(folder.path());
            let task = engine.task("command", move |ctx: Ctx, (): ()| {
                let (sender, spec) = (sender.clone(), spec.clone());
                async move {
                    let work = || {
                        let sender = sender.clone();
                        let tell = move |_, line: &str| {
                            sender.send(line.to_owned()).unwrap_or(());
                        };
                        super::run(&ctx, spec.clone(), tell)
                    };
                    if spec.write {
                        ctx.write_step("it").run(|_key| work()).await
                    } else {
                        ctx.step("it").run(work).await
                    }
                }
            });
            let run = task.start(&()).await.unwrap();
            Self {
                folder,
                engine,
                run: run.typed(),
                lines,
            }
        }

        /// The group's number, which the command says first.
        async fn group(&mut self) -> Pid {
            let line = self.lines.recv().await.unwrap();
            Pid::from_raw(line.parse().unwrap()).unwrap()
        }

        async fn events(&self) -> Vec<Event> {
            let store = self.engine.store();
            let page = store.read(&self.run.id(), Seq::FIRST, 100).await.unwrap();
            let events = page.items.iter().map(|record| record.decode().unwrap());
            events.collect()
        }

        async fn kinds(&self) -> Vec<String> {
            let events = self.events().await;
            let kinds = events.iter().map(|event| event.body.kind().to_owned());
            kinds.collect()
        }

        async fn until(&self, holds: impl Fn(&Entry) -> bool) -> Entry {
            let store = self.engine.store();
            let mut bell = store.watch(&self.run.id());
            loop {
                let entry = store.entry(&self.run.id()).await.unwrap();
                if holds(&entry) {
                    return entry;
                }
                assert!(bell.rung().await);
            }
        }

        fn has(&self, file: &str) -> bool {
            self.folder.path().join(file).exists()
        }

        fn touch(&self, file: &str) {
            std::fs::write(self.folder.path().join(file), "").unwrap();
        }
    }

    /// Says its group's number, and does not listen to TERM.
    const STUBBORN: &str = "trap '' TERM; echo $$; while :; do sleep 0.05; done";

    #[tokio::test]
    async fn the_output_of_a_command_is_its_steps_result() {
        let shell = "printf '{\"run\": \"%s\", \"step\": \"%s\", \"key\": \"%s\"}' \
                     $LOGREEL_RUN $LOGREEL_STEP $LOGREEL_KEY";
        let world = World::start(shell, false).await;
        let Outcome::Completed(value) = world.run.wait().await.unwrap() else {
            panic!("it should complete");
        };
        assert_eq!(value["run"], world.run.id().to_string());
        assert_eq!(value["step"], "it");
        assert!(value["key"].as_str().unwrap().starts_with("blake3:"));
        world.engine.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_failed_exit_is_in_the_log_with_its_status() {
        let world = World::start("echo why >&2; exit 4", false).await;
        let outcome = world.run.wait().await.unwrap();
        assert!(matches!(outcome, Outcome::Failed(_)));
        let events = world.events().await;
        let failed = events.iter().find_map(|event| match &event.body {
            Body::StepFailed(failed) => Some(failed.error.clone()),
            _ => None,
        });
        let failed = failed.unwrap();
        assert_eq!(failed.kind, "exit");
        assert_eq!(failed.exit_code, Some(4));
        assert_eq!(failed.message, "exit status 4: why");
        world.engine.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_is_gone_when_its_step_has_failed() {
        let with_timeout = |dir: &Path| CommandSpec {
            timeout: Some(Duration::from_millis(300)),
            ..spec(dir, STUBBORN, false)
        };
        let mut world = World::start_with(with_timeout).await;
        let group = world.group().await;
        let Outcome::Failed(cause) = world.run.wait().await.unwrap() else {
            panic!("it should fail");
        };
        assert_eq!(cause.kind, "timeout");
        assert!(!process::is_running(group));
        world.engine.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_cancel_stops_the_command_before_the_lease_is_given_back() {
        for write in [false, true] {
            let mut world = World::start(STUBBORN, write).await;
            let group = world.group().await;
            world.run.cancel("enough").await.unwrap();
            world.until(|entry| entry.driver.is_none()).await;
            assert!(!process::is_running(group));
            let kinds = world.kinds().await;
            assert!(!kinds.contains(&"step.failed".to_owned()), "{kinds:?}");
            world.engine.close().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_paused_command_is_stopped_and_runs_again_on_resume() {
        let shell = "if [ -e go ]; then echo done; else echo $$; exec sleep 1000; fi";
        let mut world = World::start(shell, false).await;
        let group = world.group().await;
        world.run.pause("lunch").await.unwrap();
        world.until(|entry| entry.driver.is_none()).await;
        assert!(!process::is_running(group));
        world.touch("go");
        let resumed = world.engine.resume(&world.run.id()).await.unwrap();
        assert!(matches!(resumed, ResumeOutcome::Driving(_)));
        let outcome = world.run.wait().await.unwrap();
        assert_eq!(outcome, Outcome::Completed("done".into()));
        let kinds = world.kinds().await;
        assert!(!kinds.contains(&"step.failed".to_owned()), "{kinds:?}");
        world.engine.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_paused_write_may_finish_in_its_grace_time() {
        let shell = "echo $$; while [ ! -e go ]; do sleep 0.01; done; echo written";
        let mut world = World::start(shell, true).await;
        let group = world.group().await;
        world.run.pause("lunch").await.unwrap();
        world.touch("go");
        world.until(|entry| entry.driver.is_none()).await;
        assert!(!process::is_running(group));
        let kinds = world.kinds().await;
        assert!(kinds.contains(&"step.finished".to_owned()), "{kinds:?}");
        world.engine.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_paused_write_that_does_not_finish_is_stopped_and_in_doubt() {
        let shell = "echo $$; sleep 1000; touch written";
        let mut world = World::start(shell, true).await;
        let group = world.group().await;
        world.run.pause("lunch").await.unwrap();
        world.until(|entry| entry.driver.is_none()).await;
        assert!(!process::is_running(group));
        world.engine.resume(&world.run.id()).await.unwrap();
        let in_doubt = |entry: &Entry| {
            let waits = &entry.row.facts.waits;
            let doubt = waits.iter().any(|open| open.wait.kind == WaitKind::InDoubt);
            doubt && entry.driver.is_none()
        };
        world.until(in_doubt).await;
        let kinds = world.kinds().await;
        assert!(!kinds.contains(&"step.failed".to_owned()), "{kinds:?}");
        assert!(!world.has("written"));
        world.engine.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_killed_write_is_in_doubt() {
        let world = World::start("kill -KILL $$", true).await;
        world
            .until(|entry| !entry.row.facts.in_doubt.is_empty())
            .await;
        world.engine.close().await.unwrap();
    }

    #[tokio::test]
    async fn closing_the_engine_leaves_no_process() {
        for write in [false, true] {
            let mut world = World::start(STUBBORN, write).await;
            let group = world.group().await;
            world.engine.close().await.unwrap();
            assert!(!process::is_running(group));
            let notes = world.folder.path().join("runs.db.owners");
            let left = std::fs::read_dir(notes).unwrap().count();
            assert_eq!(left, 0, "neither a lock nor a note is left");
            let entry = world.run.entry().await.unwrap();
            assert!(entry.driver.is_none(), "the lease was given back");
        }
    }

    #[tokio::test]
    async fn a_dropped_step_takes_its_command_along_before_the_run_ends() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path().join("runs.db")).await.unwrap();
        let (sender, lines) = unbounded_channel();
        let lines = Arc::new(Mutex::new(lines));
        let dir = folder.path().to_owned();
        let task = engine.task("dropped", move |ctx: Ctx, (): ()| {
            let (sender, lines, dir) = (sender.clone(), Arc::clone(&lines), dir.clone());
            async move {
                let work = || {
                    let sender = sender.clone();
                    let tell = move |_, line: &str| sender.send(line.to_owned()).unwrap();
                    super::run(&ctx, spec(&dir, STUBBORN, false), tell)
                };
                let mut lines = lines.lock().await;
                tokio::select! {
                    ended = ctx.step("it").run(work) => panic!("{ended:?}"),
                    group = lines.recv() => Ok(group.unwrap()),
                }
            }
        });
        let run = task.start(&()).await.unwrap();
        let Outcome::Completed(group) = run.wait().await.unwrap() else {
            panic!("it should complete");
        };
        let group = Pid::from_raw(group.parse().unwrap()).unwrap();
        assert!(!process::is_running(group));
        engine.close().await.unwrap();
    }

    #[tokio::test]
    async fn reconcile_says_done_not_done_or_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::memory().await.unwrap();
        let dir = folder.path().to_owned();
        let task = engine.task("reconcile", move |ctx: Ctx, shell: String| {
            let dir = dir.clone();
            async move {
                Ok(match reconcile(&ctx, spec(&dir, &shell, true)).await? {
                    Reconciled::Done(value) => format!("done: {value}"),
                    Reconciled::NotDone => "not done".to_owned(),
                    Reconciled::Unknown => "unknown".to_owned(),
                })
            }
        });
        for (shell, expected) in [
            ("echo '{\"id\": 7}'", "done: {\"id\": 7}"),
            ("exit 10", "not done"),
            ("exit 1", "unknown"),
            ("no-such-program", "unknown"),
            ("kill -KILL $$", "unknown"),
            ("yes", "unknown"),
        ] {
            let run = task.start(&shell.to_owned()).await.unwrap();
            let outcome = run.wait().await.unwrap();
            assert_eq!(outcome, Outcome::Completed(expected.to_owned()), "{shell}");
        }
        engine.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_store_in_memory_needs_no_notes() {
        let engine = Engine::memory().await.unwrap();
        assert_eq!(engine.store().notes(), None);
        let task = engine.task("here", |ctx: Ctx, (): ()| async move {
            super::run(&ctx, spec(Path::new("/"), "pwd", false), |_, _| {}).await
        });
        let run: RunHandle<Json> = task.start(&()).await.unwrap();
        let root = Json::of("/").unwrap();
        assert_eq!(run.wait().await.unwrap(), Outcome::Completed(root));
        engine.close().await.unwrap();
    }
}
