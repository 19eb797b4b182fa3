//! `[tool.NAME]`: a command as a tool. Its arguments come as JSON on stdin, what it prints is the
//! result, parsed when it is JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use logreel::core::event::Effect;
use logreel::{Command, Exit, Finished, Reconciled};
use serde_json::{Value, json};

use super::shell::in_environment;
use super::{Call, Definition, Tool, ToolError, from_task};
use crate::spec::CommandTool;

/// How long it may take when the spec does not say.
const TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// What `reconcile` exits with when the write surely did not happen.
const NOT_DONE: i32 = 10;

/// The tool.
pub(crate) struct OwnTool {
    definition: Definition,
    run: String,
    reconcile: Option<String>,
    timeout: Duration,
    dir: PathBuf,
    env: Arc<BTreeMap<String, String>>,
}

impl OwnTool {
    pub(crate) fn new(
        name: &str,
        spec: &CommandTool,
        dir: PathBuf,
        env: Arc<BTreeMap<String, String>>,
    ) -> Self {
        let effect = spec.effect.unwrap_or(Effect::Write);
        let any_object = || json!({"type": "object"});
        let timeout = spec.timeout.unwrap_or(TIMEOUT);
        let definition = Definition {
            name: name.to_owned(),
            description: spec.description.clone(),
            schema: spec.schema.clone().unwrap_or_else(any_object),
            effect,
            declared: spec.effect.is_some(),
            // Its own comes first, and waits until the command is gone.
            timeout: Some(timeout + Duration::from_secs(10)),
            asks: effect != Effect::Read,
        };
        Self {
            definition,
            run: spec.run.clone(),
            reconcile: spec.reconcile.clone(),
            timeout,
            dir,
            env,
        }
    }

    async fn run(&self, shell: &str, call: &Call<'_>, write: bool) -> Result<Finished, ToolError> {
        let command = in_environment(Command::shell(shell), call, &self.env)
            .input(call.arguments.to_string())
            .dir(&self.dir)
            .timeout(Some(self.timeout))
            .write(write)
            .output_bytes_max(call.ctx.log().payload_bytes_max())
            .keep_ends();
        call.ctx.command(command).await.map_err(from_task)
    }
}

#[async_trait]
impl Tool for OwnTool {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    async fn call(&self, call: &Call<'_>) -> Result<Value, ToolError> {
        let write = self.definition.effect == Effect::Write;
        result_of(self.run(&self.run, call, write).await?, write)
    }

    fn reconciles(&self) -> bool {
        self.reconcile.is_some()
    }

    async fn reconcile(&self, call: &Call<'_>) -> Result<Reconciled<Value>, ToolError> {
        let Some(reconcile) = &self.reconcile else {
            return Ok(Reconciled::Unknown);
        };
        let done = self.run(reconcile, call, false).await?;
        Ok(match done.exit {
            Exit::Code(0) => Reconciled::Done(result_of(done, false)?),
            Exit::Code(NOT_DONE) => Reconciled::NotDone,
            Exit::Code(_) | Exit::Signal(_) | Exit::Stopped => Reconciled::Unknown,
        })
    }
}

fn result_of(done: Finished, write: bool) -> Result<Value, ToolError> {
    let said = match done.stderr.trim_end() {
        "" => String::new(),
        stderr => format!(": {stderr}"),
    };
    match done.exit {
        // What it says can be cut; that it ran cannot be undone.
        Exit::Code(0) if done.too_large => Ok(Value::from(done.printed())),
        Exit::Code(0) => Ok(value_of(done.stdout)),
        // The shell's word for a program of it that was killed: nobody knows how far a write came.
        Exit::Code(code @ 129..=159) if write => {
            let message = format!("exit status {code} (128 + signal){said}");
            Err(ToolError::of_kind("signal", message))
        }
        Exit::Code(code) => {
            let message = format!("exit status {code}{said}");
            Err(ToolError::of_kind("exit", message))
        }
        Exit::Signal(signal) => {
            let message = format!("it was killed by signal {signal}{said}");
            Err(ToolError::of_kind("signal", message))
        }
        Exit::Stopped => Err(ToolError::of_kind("lost", "it was stopped")),
    }
}

fn value_of(stdout: Vec<u8>) -> Value {
    match String::from_utf8(stdout) {
        Ok(mut text) => serde_json::from_str(&text).unwrap_or_else(|_| {
            if text.ends_with('\n') {
                text.pop();
            }
            Value::from(text)
        }),
        Err(error) => {
            let text = base64::engine::general_purpose::STANDARD.encode(error.as_bytes());
            json!({ "base64": text })
        }
    }
}
