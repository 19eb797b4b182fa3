//! Hooks of the settings: a command that gets an event as JSON on its stdin.
//!
//! It is told at most once of each event, in the process that drives the run, or when nobody does in
//! the one that appended the event (SEMANTICS 29). One that fails or hangs is logged; the run goes on.

use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use logreel::core::codec::encode_body;
use logreel::store::SystemEnv;
use logreel::{Env as _, Hook, HookEvent, Json, TaskError};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::settings::HookSetting;
use crate::text;

/// Events wait in line for a hook, and runs for a line that is full.
const TAKES_MAX: Duration = Duration::from_secs(30);

pub struct CommandHook(HookSetting);

impl CommandHook {
    pub fn new(setting: HookSetting) -> Self {
        Self(setting)
    }

    async fn run(&self, input: String) -> Result<(), TaskError> {
        let mut child = Command::new("sh")
            .args(["-c", &self.0.run])
            .current_dir(&self.0.dir)
            .env("LOGREEL_HOOK", &self.0.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Neither a Ctrl-C for us nor our end is meant for what it has begun.
            .process_group(0)
            .spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let stdin = child.stdin.take();
        let told = async move {
            if let Some(mut stdin) = stdin {
                // A command that does not read its input is none the worse for it.
                stdin.write_all(input.as_bytes()).await.unwrap_or_default();
            }
        };
        let ended = async { tokio::join!(told, child.wait_with_output()).1 };
        let ended = tokio::select! {
            ended = ended => ended?,
            () = SystemEnv.sleep(TAKES_MAX) => {
                if let Some(group) = group
                    && let Err(error) = kill_process_group(group, Signal::KILL)
                {
                    return Err(TaskError::new(format!("it hangs: {error}")));
                }
                return Err(TaskError::new("it took too long and was stopped"));
            }
        };
        if ended.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ended.stderr);
        let last = said.trim_end().lines().next_back().unwrap_or_default();
        let message = format!("{}: {}", ended.status, text::one_line(last));
        Err(TaskError::new(message))
    }
}

#[async_trait]
impl Hook for CommandHook {
    async fn fire(&self, told: &HookEvent) -> Result<(), TaskError> {
        let kind = told.event.body.kind();
        if !self.0.on.iter().any(|on| on == kind) {
            return Ok(());
        }
        self.run(line(told)?).await.map_err(|error| {
            let message = format!("hook {:?}: {error}", self.0.name);
            TaskError::new(message)
        })
    }
}

/// The event as `log --json` prints it, as far as a hook is told, and the run's session.
fn line(told: &HookEvent) -> Result<String, TaskError> {
    let HookEvent {
        run,
        session,
        event,
    } = told;
    let body = Json::parse(encode_body(&event.body)?)?;
    let line = json!({
        "run": run,
        "session": session,
        "seq": event.seq,
        "at": event.at,
        "caller_at": event.caller_at,
        "epoch": event.epoch,
        "kind": event.body.kind(),
        "late": event.late,
        "body": body,
        "digest": event.digest,
    });
    Ok(format!("{line}\n"))
}
