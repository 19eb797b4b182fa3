//! `shell`: a command line in the agent's folder. It is no sandbox.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logreel::core::event::Effect;
use logreel::{Command, Exit, cut};
use serde_json::{Value, json};

use super::parts::subjects;
use super::{Call, Definition, Tool, ToolError, bounded, from_task};

/// How long a command may take when the call does not say.
const TIMEOUT: Duration = Duration::from_secs(10 * 60);
const TIMEOUT_MAX: Duration = Duration::from_secs(60 * 60);

/// The tool.
pub(crate) struct Shell {
    definition: Definition,
    dir: PathBuf,
    env: Arc<BTreeMap<String, String>>,
}

impl Shell {
    pub(crate) fn new(dir: PathBuf, env: Arc<BTreeMap<String, String>>) -> Self {
        let definition = Definition {
            name: "shell".to_owned(),
            description:
                "Runs a shell command in the working folder and returns its exit code and \
                          what it printed on stdout and stderr. A non-zero exit code is a normal \
                          result. The command gets no input and must end by itself."
                    .to_owned(),
            schema: json!({
                "type": "object",
                "properties": {
                    "command": {
                        "type": "string",
                        "minLength": 1,
                        "description": "Shell text for sh -c",
                    },
                    "timeout_ms": {
                        "type": "integer",
                        "minimum": 1,
                        "description": "How long it may take; 10 minutes when nothing is said, \
                                        an hour at most",
                    },
                },
                "required": ["command"],
                "additionalProperties": false,
            }),
            effect: Effect::Write,
            declared: false,
            // Its own comes first, and waits until the command is gone.
            timeout: Some(TIMEOUT_MAX + Duration::from_secs(60)),
            asks: true,
        };
        Self {
            definition,
            dir,
            env,
        }
    }
}

#[async_trait]
impl Tool for Shell {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn subjects(&self, arguments: &Value) -> Result<Vec<String>, ToolError> {
        Ok(subjects(command_of(arguments)?))
    }

    async fn call(&self, call: &Call<'_>) -> Result<Value, ToolError> {
        let shell = command_of(call.arguments)?;
        let recorded_max = call.ctx.log().payload_bytes_max();
        let timeout = call.arguments.get("timeout_ms").and_then(Value::as_u64);
        let timeout = timeout.map_or(TIMEOUT, Duration::from_millis);
        let command = in_environment(Command::shell(shell), call, &self.env)
            .dir(&self.dir)
            .timeout(Some(timeout.min(TIMEOUT_MAX)))
            .write(true)
            .merge_stderr()
            .output_bytes_max(recorded_max)
            .keep_ends();
        let done = call.ctx.command(command).await.map_err(from_task)?;
        let output = done.printed();
        match done.exit {
            Exit::Code(code) => {
                let output = bounded(output, recorded_max);
                Ok(json!({"exit_code": code, "output": output}))
            }
            Exit::Signal(signal) => {
                let said = cut(&output, 4096);
                let message = format!("the command was killed by signal {signal}: {said}");
                Err(ToolError::of_kind("signal", message))
            }
            Exit::Stopped => Err(ToolError::of_kind("lost", "the command was stopped")),
        }
    }
}

fn command_of(arguments: &Value) -> Result<&str, ToolError> {
    let command = arguments.get("command").and_then(Value::as_str);
    let command = command.ok_or_else(|| ToolError::failed("`command` must be a string"))?;
    if command.contains('\0') {
        return Err(ToolError::failed("a command cannot hold a NUL character"));
    }
    Ok(command)
}

/// A command of a call with what it may see of the environment, and nothing else.
pub(super) fn in_environment(
    command: Command,
    call: &Call<'_>,
    env: &BTreeMap<String, String>,
) -> Command {
    let mut command = command.clear_env();
    for (name, value) in env {
        command = command.env(name, value);
    }
    command
        .env("LOGREEL_CALL", call.call.as_str())
        .env("LOGREEL_KEY", call.key.to_string())
}
