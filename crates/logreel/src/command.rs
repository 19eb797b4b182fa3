//! Commands of a run, for whoever has a [`Ctx`]: a process group of its own that is noted before it
//! runs, stopped with the run, and gone before the lease is given back (SEMANTICS 21).

use std::path::PathBuf;
use std::time::Duration;

use logreel_store::tip::PAYLOAD_MAX_BYTES;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::oneshot;

use crate::ctx::Ctx;
use crate::error::TaskError;
use crate::live::Stream;
use crate::workflow::command::{Execution, to_its_end, trouble};
use crate::workflow::groups;
use crate::workflow::supervise::{Ended, Handle, How, OnLine, Start, Trouble};

/// A command to run.
pub struct Command {
    shell: String,
    input: Vec<u8>,
    env: Vec<(String, String)>,
    inherits: bool,
    dir: PathBuf,
    timeout: Option<Duration>,
    write: bool,
    output_bytes_max: u64,
    keeps_ends: bool,
    merged: bool,
    on_line: OnLine,
}

/// A command that has ended, with everything in its process group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// How.
    pub exit: Exit,
    /// What it printed; empty when that was [too large](Finished::too_large), or its beginning when
    /// [ends are kept](Command::keep_ends).
    pub stdout: Vec<u8>,
    /// The end of what it printed, when that was too large and ends are kept.
    pub stdout_end: Vec<u8>,
    /// How much it printed.
    pub stdout_bytes: u64,
    /// Whether it printed more than could be kept.
    pub too_large: bool,
    /// The end of what it said on stderr.
    pub stderr: String,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// It was stopped: it printed too much, or nobody wanted it any more.
    Stopped,
}

/// A command that runs until it is dropped or its run stops, and is talked to through its pipes.
pub struct Piped {
    handle: Handle,
    pipes: Option<(ChildStdin, ChildStdout)>,
}

impl Command {
    /// Shell text, for `sh -c`. It must never be made from data.
    pub fn shell(text: impl Into<String>) -> Self {
        Self {
            shell: text.into(),
            input: Vec::new(),
            env: Vec::new(),
            inherits: true,
            dir: PathBuf::from("."),
            timeout: None,
            write: false,
            output_bytes_max: PAYLOAD_MAX_BYTES,
            keeps_ends: false,
            merged: false,
            on_line: Box::new(|_, _| {}),
        }
    }

    /// A program and its arguments, as they are.
    pub fn argv<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> Self {
        let words = words.into_iter().map(|word| quoted(word.as_ref()));
        Self::shell(format!("exec {}", words.collect::<Vec<_>>().join(" ")))
    }

    /// Its stdin.
    #[must_use]
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// A variable of its environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// It inherits no variable: it has those given, `LOGREEL_RUN`, and inside a step or call
    /// `LOGREEL_STEP` and `LOGREEL_KEY`.
    #[must_use]
    pub fn clear_env(mut self) -> Self {
        self.inherits = false;
        self
    }

    /// Where it runs; here when nothing is said.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = dir.into();
        self
    }

    /// One that takes longer is stopped: an error of kind `timeout` once it is gone.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// It writes outside: when the run is paused it has time to finish, and it is heard to its end
    /// whatever it prints.
    #[must_use]
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// The most that is kept of what it prints; one that is no write and prints more is stopped.
    #[must_use]
    pub fn output_bytes_max(mut self, bytes: u64) -> Self {
        self.output_bytes_max = bytes;
        self
    }

    /// Of what is too large the beginning and the end are kept, half as much as is allowed of each. It
    /// is heard to its end then.
    #[must_use]
    pub fn keep_ends(mut self) -> Self {
        self.keeps_ends = true;
        self
    }

    /// What it says on stderr is part of what it prints, in the order in which it was said.
    #[must_use]
    pub fn merge_stderr(mut self) -> Self {
        self.merged = true;
        self
    }

    /// Is told every line while it runs. For live views only: it must be quick.
    #[must_use]
    pub fn on_line(mut self, tell: impl Fn(Stream, &str) + Send + Sync + 'static) -> Self {
        self.on_line = Box::new(tell);
        self
    }

    fn start(self, pipes: Option<oneshot::Sender<(ChildStdin, ChildStdout)>>) -> Start {
        Start {
            shell: self.shell,
            input: self.input,
            env: self.env,
            inherits: self.inherits,
            dir: self.dir,
            write: self.write,
            output_bytes_max: self.output_bytes_max,
            keeps_ends: self.keeps_ends,
            merged: self.merged,
            pipes,
            on_line: self.on_line,
        }
    }
}

impl Ctx {
    /// Runs a command as part of the run. Dropping this stops it, and the lease is not given back
    /// before its whole group is gone.
    ///
    /// Kinds of failure: `timeout`, `not_started`, and for what should not happen `lost` and `panic`.
    /// When the driver stops this does not return, unless the run was cancelled.
    pub async fn command(&self, command: Command) -> Result<Finished, TaskError> {
        let timeout = command.timeout;
        let start = command.start(None);
        to_its_end(self, Execution { start, timeout })
            .await
            .map(Finished::from)
    }

    /// Starts a command that is talked to through its pipes. Its input, timeout and limit are not
    /// looked at.
    pub async fn piped_command(&self, command: Command) -> Result<Piped, TaskError> {
        let (sender, pipes) = oneshot::channel();
        let mut start = command.start(Some(sender));
        let run = (groups::RUN.to_owned(), self.run_id().to_string());
        start.env.push(run);
        self.0.until_commands_may_start().await?;
        let mut handle = match self.0.commands.start(None, start).await {
            Ok(handle) => handle,
            // The driver is stopping; the function must not see it as its own failure.
            Err(Trouble::Closed) => return std::future::pending().await,
            Err(error) => return Err(trouble(error)),
        };
        match pipes.await {
            Ok(pipes) => Ok(Piped {
                handle,
                pipes: Some(pipes),
            }),
            Err(_) => Err(match handle.ended().await {
                Ok(_) => TaskError::of_kind("not_started", "the command was stopped at its start"),
                Err(error) => trouble(error),
            }),
        }
    }
}

impl Piped {
    /// Its stdin and stdout, once.
    pub fn pipes(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        self.pipes.take()
    }

    /// How it ended. Dropping this future stops nothing.
    pub async fn ended(&mut self) -> Result<Finished, TaskError> {
        self.handle
            .ended()
            .await
            .map(Finished::from)
            .map_err(trouble)
    }

    /// Stops it: TERM, KILL after a second; returns when nothing of its group is left.
    pub async fn stop(mut self) -> Result<Finished, TaskError> {
        drop(self.pipes.take());
        self.handle.stop();
        self.ended().await
    }
}

impl Finished {
    /// What it printed, as text. Of what was too large both ends, when they were kept, and between them
    /// how much was left out.
    pub fn printed(&self) -> String {
        let text = String::from_utf8_lossy(&self.stdout);
        if !self.too_large {
            return text.into_owned();
        }
        let kept = (self.stdout.len() + self.stdout_end.len()) as u64;
        let end = String::from_utf8_lossy(&self.stdout_end);
        crate::cut_between(&text, &end, self.stdout_bytes.saturating_sub(kept))
    }
}

impl From<Ended> for Finished {
    fn from(ended: Ended) -> Self {
        Self {
            exit: match ended.how {
                How::Exited(code) => Exit::Code(code),
                How::Signalled(signal) => Exit::Signal(signal),
                How::Stopped => Exit::Stopped,
            },
            stdout: ended.stdout,
            stdout_end: ended.end,
            stdout_bytes: ended.printed,
            too_large: ended.too_large,
            stderr: ended.stderr,
        }
    }
}

/// One word of shell text, whatever is in it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

    use super::*;
    use crate::workflow::process;
    use crate::{Engine, Outcome};
    use rustix::process::Pid;

    async fn finished(make: fn() -> Command) -> Result<Finished, TaskError> {
        let engine = Engine::memory().await.unwrap();
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let task = engine.task("it", move |ctx: Ctx, (): ()| {
            let sender = sender.clone();
            async move {
                sender.send(ctx.command(make()).await).unwrap();
                Ok(())
            }
        });
        task.start(&()).await.unwrap().wait().await.unwrap();
        engine.close().await.unwrap();
        receiver.recv().await.unwrap()
    }

    #[tokio::test]
    async fn a_command_has_the_environment_it_is_given_and_nothing_else() {
        let done = finished(|| Command::shell("env").clear_env().env("A", "b c").dir("/")).await;
        let text = String::from_utf8(done.unwrap().stdout).unwrap();
        let mut names: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split('=').next())
            .collect();
        names.sort_unstable();
        // The last two are the shell's own.
        let own = ["OLDPWD", "PWD", "SHLVL", "_"];
        names.retain(|name| !own.contains(name));
        assert_eq!(names, ["A", "LOGREEL_RUN"]);
        assert!(text.contains("A=b c\n"), "{text}");
    }

    #[tokio::test]
    async fn arguments_are_no_shell_text_and_what_is_said_keeps_its_order() {
        let made = || Command::argv(["printf", "%s|", "it's", "$HOME", "a  b\n;ls"]);
        let done = finished(made).await.unwrap();
        assert_eq!(done.stdout, b"it's|$HOME|a  b\n;ls|");
        let made = || Command::shell("echo 1; echo 2 >&2; echo 3; exit 4").merge_stderr();
        let done = finished(made).await.unwrap();
        assert_eq!(
            (done.exit, &*done.stdout),
            (Exit::Code(4), &b"1\n2\n3\n"[..])
        );
    }

    #[tokio::test]
    async fn the_ends_of_what_is_too_large_are_kept() {
        let made = || {
            Command::shell("echo first; seq 1 400000; echo last")
                .output_bytes_max(1000)
                .keep_ends()
        };
        let done = finished(made).await.unwrap();
        assert!(done.too_large);
        assert_eq!((done.stdout.len(), done.stdout_end.len()), (500, 500));
        assert!(done.stdout.starts_with(b"first\n1\n2\n"));
        assert!(done.stdout_end.ends_with(b"\n400000\nlast\n"));
        assert_eq!(done.exit, Exit::Code(0));
        assert_eq!(done.stdout_bytes, 2_688_895 + 11);
    }

    #[tokio::test]
    async fn one_that_takes_too_long_is_stopped() {
        let made = || Command::shell("sleep 1000").timeout(Some(Duration::from_millis(50)));
        let error = finished(made).await.unwrap_err();
        assert_eq!(error.cause().kind, "timeout");
    }

    #[tokio::test]
    async fn a_piped_command_is_talked_to_and_is_gone_with_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path().join("runs.db")).await.unwrap();
        let task = engine.task("piped", |ctx: Ctx, (): ()| async move {
            let shell = "echo $$; trap '' TERM; while read -r line; do echo \"got $line\"; done; \
                         sleep 1000";
            let mut piped = ctx.piped_command(Command::shell(shell)).await?;
            let (mut stdin, stdout) = piped.pipes().expect("they were not taken");
            let mut lines = BufReader::new(stdout).lines();
            let group = lines.next_line().await?.unwrap_or_default();
            stdin.write_all(b"one\ntwo\n").await?;
            let answers = [lines.next_line().await?, lines.next_line().await?];
            assert_eq!(answers.map(Option::unwrap), ["got one", "got two"]);
            // It is neither stopped nor awaited here.
            Ok(group)
        });
        let run = task.start(&()).await.unwrap();
        let Outcome::Completed(group) = run.wait().await.unwrap() else {
            panic!("it should complete");
        };
        let group = Pid::from_raw(group.parse().unwrap()).unwrap();
        assert!(!process::is_running(group));
        engine.close().await.unwrap();
        let left = std::fs::read_dir(folder.path().join("runs.db.owners")).unwrap();
        assert_eq!(left.count(), 0, "neither a lock nor a note is left");
    }
}
