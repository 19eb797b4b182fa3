//! Tools of MCP servers, over stdio or streamable HTTP.
//!
//! A server over stdio is a command of the run: it ends with the drive that started it. One that died is
//! started again for the next call. Of a write whose connection was lost while it was under way nobody
//! knows whether it happened; anything else is tried once more.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logreel::core::event::Effect;
use logreel::{Command, Ctx, Piped, TaskError};
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{CallToolRequestParams, CallToolResult, ContentBlock};
use rmcp::service::{ClientInitializeError, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{RoleClient, ServiceExt as _};
use serde_json::{Value, json};

use super::{Call, Definition, Tool, ToolError};
use crate::environment::Environment;
use crate::spec::{AgentSpec, McpSpec};
use crate::toolbox::{ToolboxError, matcher};

/// How long a call may take when the spec does not say.
const TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// A server may be fetched before it starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// How long one that did not begin to speak has to say why.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A server, connected when it is needed.
struct Server {
    name: String,
    reached: Reached,
    timeout: Duration,
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
}

/// How a server is reached.
enum Reached {
    Stdio {
        argv: Vec<String>,
        env: BTreeMap<String, String>,
        dir: PathBuf,
    },
    Http {
        url: String,
        headers: HashMap<HeaderName, HeaderValue>,
    },
}

struct Connection {
    client: RunningService<RoleClient, ()>,
    /// Stopped with it.
    _process: Option<Piped>,
}

/// A tool of a server.
struct ServerTool {
    definition: Definition,
    /// Its name there.
    name: String,
    server: Arc<Server>,
}

/// The tools of a server that the spec has, connected.
pub(crate) async fn open(
    ctx: &Ctx,
    spec: &AgentSpec,
    name: &str,
    dir: &Path,
    env: &Environment,
) -> Result<Vec<Arc<dyn Tool>>, ToolboxError> {
    let failed = |why: String| ToolboxError::Server {
        name: name.to_owned(),
        why,
    };
    let Some(server_spec) = spec.mcp.get(name) else {
        return Err(failed("the spec has no such server".to_owned()));
    };
    let server = Arc::new(Server {
        name: name.to_owned(),
        reached: Reached::new(spec, server_spec, dir, env).map_err(|error| match error {
            Unreachable::Environment(error) => error.into(),
            Unreachable::Spec(why) => failed(why),
        })?,
        timeout: server_spec.timeout.unwrap_or(TIMEOUT),
        connection: tokio::sync::Mutex::default(),
    });
    let listing = async {
        let connection = server.connected(ctx).await?;
        let tools = connection.client.peer().list_all_tools().await;
        tools.map_err(|error| error.to_string())
    };
    let log = ctx.log();
    let clock = log.env();
    let tools = tokio::select! {
        tools = listing => tools,
        () = clock.sleep(CONNECT_TIMEOUT) => {
            Err(format!("it did not list its tools within {CONNECT_TIMEOUT:?}"))
        }
    };
    let tools = tools.map_err(|why| ToolboxError::Away {
        name: name.to_owned(),
        why,
    })?;
    let effects = Effects::new(server_spec)?;
    let wanted = server_spec.tools.iter().map(|glob| matcher(glob));
    let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
    let is_wanted = |tool: &str| wanted.is_empty() || wanted.iter().any(|glob| glob.is_match(tool));
    let tools = tools.into_iter().filter(|tool| is_wanted(&tool.name));
    let tools = tools.map(|tool| {
        let (effect, declared) = effects.of(&tool);
        let definition = Definition {
            name: format!("{name}.{}", tool.name),
            description: tool.description.map(String::from).unwrap_or_default(),
            schema: Value::Object(Arc::unwrap_or_clone(tool.input_schema)),
            effect,
            declared,
            // Its own comes first, and says what it means.
            timeout: Some(server.timeout + CONNECT_TIMEOUT),
            asks: effect != Effect::Read,
        };
        let tool: Arc<dyn Tool> = Arc::new(ServerTool {
            definition,
            name: tool.name.into_owned(),
            server: Arc::clone(&server),
        });
        tool
    });
    Ok(tools.collect())
}

/// What an interruption of a server's tools means.
struct Effects {
    by_glob: Vec<(String, globset::GlobMatcher, Effect)>,
    believes: bool,
}

impl Effects {
    fn new(spec: &McpSpec) -> Result<Self, ToolboxError> {
        let mut by_glob = Vec::new();
        for (glob, effect) in &spec.effects {
            by_glob.push((glob.clone(), matcher(glob)?, *effect));
        }
        // What says more comes first.
        by_glob.sort_by_key(|(glob, ..)| (glob.contains('*'), std::cmp::Reverse(glob.len())));
        Ok(Self {
            by_glob,
            believes: spec.trust_annotations,
        })
    }

    /// The effect, and whether someone declared it.
    fn of(&self, tool: &rmcp::model::Tool) -> (Effect, bool) {
        let mut declared = self.by_glob.iter();
        if let Some((_, _, effect)) = declared.find(|(_, glob, _)| glob.is_match(&*tool.name)) {
            return (*effect, true);
        }
        let hints = tool.annotations.as_ref().filter(|_| self.believes);
        let hint = |it: fn(&rmcp::model::ToolAnnotations) -> Option<bool>| {
            hints.and_then(it).unwrap_or(false)
        };
        if hint(|it| it.read_only_hint) {
            (Effect::Read, true)
        } else if hint(|it| it.idempotent_hint) {
            (Effect::Idempotent, true)
        } else {
            (Effect::Write, false)
        }
    }
}

enum Unreachable {
    Environment(crate::environment::EnvironmentError),
    Spec(String),
}

impl Reached {
    fn new(
        spec: &AgentSpec,
        server: &McpSpec,
        dir: &Path,
        env: &Environment,
    ) -> Result<Self, Unreachable> {
        match (&server.url, server.command.as_slice()) {
            (None, [_, ..]) => Ok(Self::Stdio {
                argv: server.command.clone(),
                env: env
                    .of_server(spec, server)
                    .map_err(Unreachable::Environment)?,
                dir: dir.to_owned(),
            }),
            (Some(url), []) => {
                let mut headers = HashMap::new();
                for (name, value) in &server.headers {
                    let bad = || Unreachable::Spec(format!("the header `{name}` cannot be sent"));
                    let value = env.expand(value).map_err(Unreachable::Environment)?;
                    let name = HeaderName::try_from(name.as_str()).map_err(|_| bad())?;
                    let mut value = HeaderValue::try_from(value).map_err(|_| bad())?;
                    value.set_sensitive(true);
                    headers.insert(name, value);
                }
                Ok(Self::Http {
                    url: env.expand(url).map_err(Unreachable::Environment)?,
                    headers,
                })
            }
            _ => Err(Unreachable::Spec(
                "it needs a `command` or a `url`, and not both".to_owned(),
            )),
        }
    }

    async fn connect(&self, ctx: &Ctx) -> Result<Connection, String> {
        match self {
            Self::Stdio { argv, env, dir } => {
                let mut command = Command::argv(argv).clear_env().dir(dir);
                for (name, value) in env {
                    command = command.env(name, value);
                }
                let program = argv.first().cloned().unwrap_or_default();
                let command = command.on_line(move |_, line| {
                    tracing::debug!(program, line, "an MCP server says");
                });
                let told = |error: TaskError| error.to_string();
                let mut process = ctx.piped_command(command).await.map_err(told)?;
                let Some((stdin, stdout)) = process.pipes() else {
                    return Err("it has no pipes".to_owned());
                };
                match ().serve((stdout, stdin)).await {
                    Ok(client) => Ok(Connection {
                        client,
                        _process: Some(process),
                    }),
                    Err(error) => {
                        // Its pipes are closed: it ends, and what it said last is the reason.
                        let (log, said) = (ctx.log(), process.ended());
                        let said = tokio::select! {
                            said = said => said,
                            () = log.env().sleep(LAST_WORDS) => process.stop().await,
                        };
                        let said = said.map_or_else(told, |it| it.stderr);
                        Err(format!("{}: {}", not_begun(&error), said.trim_end()))
                    }
                }
            }
            Self::Http { url, headers } => {
                let config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                    .custom_headers(headers.clone());
                let client = super::http::client().map_err(|error| error.to_string())?;
                let transport = StreamableHttpClientTransport::with_client(client, config);
                let client = ().serve(transport).await;
                Ok(Connection {
                    client: client.map_err(|error| not_begun(&error))?,
                    _process: None,
                })
            }
        }
    }
}

fn not_begun(error: &ClientInitializeError) -> String {
    format!("it did not begin to speak MCP: {error}")
}

impl Connection {
    fn is_closed(&self) -> bool {
        self.client.is_closed() || self.client.peer().is_transport_closed()
    }
}

impl Server {
    /// The connection, made anew when there is none or it has ended.
    async fn connected(&self, ctx: &Ctx) -> Result<Arc<Connection>, String> {
        let mut connection = self.connection.lock().await;
        if let Some(open) = connection.as_ref().filter(|it| !it.is_closed()) {
            return Ok(Arc::clone(open));
        }
        if connection.take().is_some() {
            tracing::warn!(
                server = self.name,
                "an MCP server ended and is started again"
            );
        }
        let log = ctx.log();
        let clock = log.env();
        let made = tokio::select! {
            made = self.reached.connect(ctx) => made,
            () = clock.sleep(CONNECT_TIMEOUT) => Err(format!("no answer within {CONNECT_TIMEOUT:?}")),
        };
        let made = Arc::new(made?);
        *connection = Some(Arc::clone(&made));
        Ok(made)
    }

    /// This connection is of no use any more.
    async fn forget(&self, lost: &Arc<Connection>) {
        let mut connection = self.connection.lock().await;
        if connection.as_ref().is_some_and(|it| Arc::ptr_eq(it, lost)) {
            connection.take();
        }
    }
}

impl ServerTool {
    /// Surely not done: it was not even asked.
    fn unavailable(&self, why: &str) -> ToolError {
        let message = format!(
            "the MCP server `{}` cannot be used: {why}",
            self.server.name
        );
        ToolError::of_kind("unavailable", message)
    }
}

#[async_trait]
impl Tool for ServerTool {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    async fn call(&self, call: &Call<'_>) -> Result<Value, ToolError> {
        let arguments = call.arguments.as_object().cloned().unwrap_or_default();
        let params = CallToolRequestParams::new(self.name.clone()).with_arguments(arguments);
        let log = call.ctx.log();
        let (timeout, clock) = (self.server.timeout, log.env());
        let mut again = self.definition.effect != Effect::Write;
        loop {
            let connection = self.server.connected(call.ctx).await;
            let connection = connection.map_err(|why| self.unavailable(&why))?;
            let answer = tokio::select! {
                answer = connection.client.call_tool(params.clone()) => answer,
                () = clock.sleep(timeout) => {
                    let message = format!("`{}` took longer than {timeout:?}", self.definition.name);
                    return Err(ToolError::of_kind("timeout", message));
                }
            };
            let error = match answer {
                Ok(result) => return result_of(result),
                Err(error) => error,
            };
            if !is_lost(&error) {
                return Err(ToolError::failed(error.to_string()));
            }
            self.server.forget(&connection).await;
            if !std::mem::take(&mut again) {
                let server = &self.server.name;
                let message =
                    format!("the connection to the MCP server `{server}` was lost: {error}");
                return Err(ToolError::of_kind("lost", message));
            }
        }
    }
}

/// Whether nobody knows what became of the call.
fn is_lost(error: &ServiceError) -> bool {
    !matches!(
        error,
        ServiceError::McpError(_)
            | ServiceError::UnexpectedResponse
            | ServiceError::InputRequiredRoundsExceeded { .. }
    )
}

fn result_of(result: CallToolResult) -> Result<Value, ToolError> {
    let texts: Option<Vec<&str>> = result
        .content
        .iter()
        .map(|block| match block {
            ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        })
        .collect();
    let text = texts.map(|texts| texts.join("\n"));
    let content = || serde_json::to_value(&result.content).unwrap_or_else(|_| json!([]));
    if result.is_error == Some(true) {
        let told = text.unwrap_or_else(|| content().to_string());
        return Err(ToolError::failed(told));
    }
    if let Some(structured) = result.structured_content.filter(|it| !it.is_null()) {
        return Ok(structured);
    }
    Ok(match text {
        Some(text) => Value::from(text),
        None => content(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_are_the_specs_then_the_servers_word_if_believed_then_a_write() {
        let tool = |name: &str, hints: Value| -> rmcp::model::Tool {
            let tool =
                json!({"name": name, "inputSchema": {"type": "object"}, "annotations": hints});
            serde_json::from_value(tool).unwrap()
        };
        let reads = json!({"readOnlyHint": true});
        let spec = |text: &str| Effects::new(&toml::from_str(text).unwrap()).unwrap();
        let plain = spec(
            "effects = { \"get_*\" = \"read\", \"get_and_*\" = \"write\", x = \"idempotent\" }",
        );
        assert_eq!(
            plain.of(&tool("get_issue", json!({}))),
            (Effect::Read, true)
        );
        assert_eq!(
            plain.of(&tool("get_and_delete", reads.clone())),
            (Effect::Write, true)
        );
        assert_eq!(plain.of(&tool("x", json!({}))), (Effect::Idempotent, true));
        assert_eq!(
            plain.of(&tool("other", reads.clone())),
            (Effect::Write, false)
        );
        let believes = spec("trust_annotations = true");
        assert_eq!(believes.of(&tool("other", reads)), (Effect::Read, true));
        let idempotent = json!({"idempotentHint": true});
        assert_eq!(
            believes.of(&tool("other", idempotent)),
            (Effect::Idempotent, true)
        );
        assert_eq!(
            believes.of(&tool("other", json!({}))),
            (Effect::Write, false)
        );
    }
}
