//! Tools through a real engine: real processes, real servers.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use logreel::core::CallId;
use logreel::core::event::{Budget, Effect};
use logreel::workflow::Problems;
use logreel::{
    Agents, CallOutcome, Ctx, Digest, Driving, Engine, Json, Outcome, Reconciled, Recorded,
    RunHandle, TaskError,
};
use logreel_agent::{AgentSpec, Call, Environment, ToolError, Toolbox, check_arguments};
use serde_json::{Value, json};

/// An agent without a model: its input is the calls to make, one after the other or `{"parallel": ..}`,
/// its output what came of them. `"recorded": true` makes a call through the log.
struct Caller {
    env: Environment,
}

impl Agents for Caller {
    fn load(&self, _path: &Path) -> Result<Value, Problems> {
        Ok(json!({}))
    }

    fn lacks(&self, _spec: &Value) -> Option<String> {
        None
    }

    fn budget(&self, _spec: &Value) -> Budget {
        Budget::default()
    }

    fn plans(&self, _spec: &Value) -> bool {
        false
    }

    fn drive(&self, ctx: Ctx, spec: Arc<Value>, input: Json) -> Driving {
        let env = self.env.clone();
        Box::pin(async move {
            let spec = AgentSpec::from_json(&spec)?;
            let dir = ctx.log().dir().unwrap();
            let toolbox = Toolbox::open(&ctx, &spec, &dir, &env, &[]).await?;
            let input = input.to_value();
            let calls = input.get("parallel").unwrap_or(&input).as_array().unwrap();
            let calls = calls.iter().enumerate();
            let calls = calls.map(|(n, call)| {
                let id = CallId::new(format!("call-{n}")).unwrap();
                made(&ctx, &toolbox, id, call)
            });
            let mut all = Vec::new();
            if input.is_object() {
                all = futures_util::future::try_join_all(calls).await?;
            } else {
                for call in calls {
                    all.push(call.await?);
                }
            }
            Ok(Json::of(&all)?)
        })
    }
}

async fn made(ctx: &Ctx, toolbox: &Toolbox, id: CallId, call: &Value) -> Result<Value, TaskError> {
    let tool = toolbox.get(call["tool"].as_str().unwrap()).unwrap();
    let (definition, arguments) = (tool.definition(), &call["arguments"]);
    check_arguments(definition, arguments).unwrap();
    let told = |result: Result<Value, ToolError>| match result {
        Ok(value) => json!({"ok": value}),
        Err(error) => json!({"kind": error.kind, "message": error.message}),
    };
    let with = |key: Digest| Call {
        ctx,
        call: &id,
        arguments,
        key,
    };
    if call["recorded"] != json!(true) {
        let key = Digest::of(id.as_str().as_bytes());
        return Ok(told(tool.call(&with(key)).await));
    }
    let recorded = |value: Value| {
        let (output, blob) = logreel::core::Payload::of(Json::from(value));
        Recorded {
            output,
            blobs: blob.into_iter().collect(),
            redacted: 0,
        }
    };
    let failed = |error: ToolError| TaskError::of_kind(error.kind, error.message).permanent();
    let outcome = ctx
        .tool_call(id.clone(), &definition.name, Json::from(arguments.clone()))
        .effect(definition.effect)
        .timeout(definition.timeout)
        .reconciles(tool.reconciles())
        .run(
            async |key| {
                let call = with(key);
                tool.call(&call).await.map(recorded).map_err(failed)
            },
            async |key| {
                let call = with(key);
                let said = tool.reconcile(&call).await.map_err(failed)?;
                Ok(match said {
                    Reconciled::Done(value) => Reconciled::Done(recorded(value)),
                    Reconciled::NotDone => Reconciled::NotDone,
                    Reconciled::Unknown => Reconciled::Unknown,
                })
            },
        )
        .await?;
    Ok(match outcome {
        CallOutcome::Returned(output) => json!({"ok": ctx.log().value(&output).await?}),
        CallOutcome::Failed(cause) => json!({"kind": cause.kind, "message": cause.message}),
    })
}

struct World {
    dir: tempfile::TempDir,
    engine: Engine,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = std::env::var("PATH").unwrap();
        let home = std::env::var("HOME").unwrap_or_default();
        let variables = [
            ("PATH", path.as_str()),
            ("HOME", &home),
            ("EXTRA", "an extra"),
            ("MODEL_KEY", "the key"),
            ("OTHER", "something else"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let env = variables.into_iter().collect();
        let engine = Engine::builder()
            .agents(Arc::new(Caller { env }))
            .dir(dir.path());
        let engine = engine.build().await.unwrap();
        Self { dir, engine }
    }

    async fn start(&self, spec: &str, calls: Value) -> RunHandle<Json> {
        let mut spec: AgentSpec = toml::from_str(spec).unwrap();
        spec.name = "caller".to_owned();
        let runs = self.engine.agent(&spec.to_json()).unwrap();
        runs.start(&calls).await.unwrap()
    }

    async fn calls(&self, spec: &str, calls: Value) -> Vec<Value> {
        let run = self.start(spec, calls).await;
        match run.wait().await.unwrap() {
            Outcome::Completed(output) => output.to_value().as_array().unwrap().clone(),
            other => panic!("{other:?}"),
        }
    }

    fn holds(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(file)).unwrap_or_default()
    }

    fn put(&self, file: &str, text: &str) {
        std::fs::write(self.dir.path().join(file), text).unwrap();
    }
}

fn shell(command: &str) -> Value {
    json!({"tool": "shell", "arguments": {"command": command}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_command_runs_in_the_folder_with_what_it_may_see() {
    let world = World::new().await;
    let spec = r#"
        tools = ["shell"]
        env_from = ["EXTRA"]
        env = { GIVEN = "<${EXTRA}>" }
        api_key_env = "MODEL_KEY"
    "#;
    let results = world
        .calls(
            spec,
            json!([
                shell("pwd; echo out; echo err >&2; echo out again; exit 3"),
                shell("env | cut -d= -f1 | sort | tr '\\n' ' '; echo \"$GIVEN\""),
                shell("echo $LOGREEL_CALL; cat"),
                shell("kill -KILL $$"),
                {"tool": "shell", "arguments": {"command": "sleep 100", "timeout_ms": 50}},
                shell("head -c 30000000 /dev/zero | tr '\\0' 'x'; echo; echo the end"),
            ]),
        )
        .await;
    let folder = world.dir.path().canonicalize().unwrap();
    let expected = format!("{}\nout\nerr\nout again\n", folder.display());
    assert_eq!(
        results[0]["ok"],
        json!({"exit_code": 3, "output": expected})
    );
    let seen = results[1]["ok"]["output"].as_str().unwrap();
    for hidden in ["MODEL_KEY", "OTHER"] {
        assert!(!seen.contains(hidden), "{seen}");
    }
    for there in [
        "EXTRA ",
        "GIVEN ",
        "HOME ",
        "LOGREEL_RUN ",
        "LOGREEL_KEY ",
        "PATH ",
    ] {
        assert!(seen.contains(there), "{there} is not in {seen}");
    }
    assert!(seen.ends_with("<an extra>\n"), "{seen}");
    assert_eq!(results[2]["ok"]["output"], "call-2\n");
    assert_eq!(results[3]["kind"], "signal");
    assert_eq!(results[4]["kind"], "timeout");
    let long = results[5]["ok"]["output"].as_str().unwrap();
    assert!(long.len() < 14_000_000 && long.ends_with("x\nthe end\n"));
    assert!(long.contains("bytes left out"));
    world.engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_tool_gets_its_arguments_and_gives_what_it_prints() {
    let world = World::new().await;
    let spec = r#"
        tools = ["double", "say", "fail", "binary"]
        [tool.double]
        run = "python3 -c 'import json, sys; print(json.dumps({\"n\": json.load(sys.stdin)[\"n\"] * 2}))'"
        effect = "read"
        schema = { type = "object", properties = { n = { type = "integer" } }, required = ["n"] }
        [tool.say]
        run = "echo two words"
        [tool.fail]
        run = "echo why >&2; exit 4"
        [tool.binary]
        run = "printf '\\377'"
    "#;
    let call = |tool: &str| json!({"tool": tool, "arguments": {}, "recorded": true});
    let double = json!({"tool": "double", "arguments": {"n": 21}, "recorded": true});
    let calls = json!([double, call("say"), call("fail"), call("binary")]);
    let results = world.calls(spec, calls).await;
    assert_eq!(results[0], json!({"ok": {"n": 42}}));
    assert_eq!(results[1], json!({"ok": "two words"}));
    assert_eq!(
        results[2],
        json!({"kind": "exit", "message": "exit status 4: why"})
    );
    assert_eq!(results[3], json!({"ok": {"base64": "/w=="}}));
    world.engine.close().await.unwrap();
}

/// A write is interrupted by a pause; `reconcile` then says what became of it.
#[tokio::test(flavor = "multi_thread")]
async fn reconcile_says_what_became_of_an_interrupted_own_tool() {
    for (exit, runs, result) in [(0, "x", json!("found")), (10, "xx", json!("done"))] {
        let world = World::new().await;
        world.put("reconcile.sh", &format!("echo found; exit {exit}"));
        let spec = r#"
            tools = ["publish"]
            [tool.publish]
            run = "printf x >> runs; if [ -e go ]; then echo done; else sleep 1000; fi"
            reconcile = "sh reconcile.sh"
        "#;
        let call = json!({"tool": "publish", "arguments": {}, "recorded": true});
        let run = world.start(spec, json!([call])).await;
        let mut watch = world.engine.store().watch(&run.id());
        while world.holds("runs").is_empty() {
            tokio::task::yield_now().await;
        }
        run.pause("lunch").await.unwrap();
        while run.entry().await.unwrap().driver.is_some() {
            watch.rung().await;
        }
        world.put("go", "");
        world.engine.resume(&run.id()).await.unwrap();
        let Outcome::Completed(output) = run.wait().await.unwrap() else {
            panic!("it should complete");
        };
        assert_eq!(output.to_value(), json!([{"ok": result}]));
        assert_eq!(world.holds("runs"), runs);
        world.engine.close().await.unwrap();
    }
}

/// A read beside it that is given up at once does not take a write's time to finish away.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_has_its_grace_time_whatever_runs_beside_it() {
    let world = World::new().await;
    let spec = r#"
        tools = ["look", "publish"]
        [tool.look]
        run = "echo $$ > looking; exec sleep 1000"
        effect = "read"
        [tool.publish]
        run = "echo > begun; while [ ! -e go ]; do sleep 0.01; done; sleep 0.2; echo > written"
    "#;
    let call = |tool: &str| json!({"tool": tool, "arguments": {}, "recorded": true});
    let calls = json!({"parallel": [call("look"), call("publish")]});
    let run = world.start(spec, calls).await;
    while world.holds("begun").is_empty() || !world.holds("looking").ends_with('\n') {
        tokio::task::yield_now().await;
    }
    let looking = format!("/proc/{}", world.holds("looking").trim());
    run.pause("lunch").await.unwrap();
    while Path::new(&looking).exists() {
        tokio::task::yield_now().await;
    }
    world.put("go", "");
    let mut watch = world.engine.store().watch(&run.id());
    while run.entry().await.unwrap().driver.is_some() {
        watch.rung().await;
    }
    assert_eq!(world.holds("written"), "\n");
    let entry = run.entry().await.unwrap();
    assert!(entry.row.facts.in_doubt.is_empty());
    world.engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_written_and_edited_through_the_log() {
    let world = World::new().await;
    world.put("a.txt", "one two three\n");
    let call = |tool: &str, arguments: Value| json!({"tool": tool, "arguments": arguments, "recorded": true});
    let calls = json!([
        call(
            "fs.edit",
            json!({"path": "a.txt", "old": "two", "new": "2"})
        ),
        call("fs.read", json!({"path": "a.txt"})),
        call("fs.write", json!({"path": "new/b.txt", "content": "b"})),
        call("fs.read", json!({"path": "../outside"})),
        call("fs.search", json!({"pattern": "th.ee"})),
        call("fs.list", json!({"depth": 2})),
    ]);
    let spec = "tools = [\"fs.read\", \"fs.write\", \"fs.edit\", \"fs.search\", \"fs.list\"]";
    let results = world.calls(spec, calls).await;
    assert_eq!(results[1], json!({"ok": "one 2 three\n"}));
    assert_eq!(results[2], json!({"ok": {"path": "new/b.txt", "bytes": 1}}));
    assert_eq!(results[3]["kind"], "refused");
    assert_eq!(results[4], json!({"ok": "a.txt:1: one 2 three"}));
    assert_eq!(results[5], json!({"ok": "a.txt\nnew/\nnew/b.txt"}));
    world.engine.close().await.unwrap();
}

/// Answers one request per connection, and tells the requests.
fn http_server(answers: Vec<Vec<u8>>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            requests.push(String::from_utf8(request).unwrap().to_lowercase());
            // The other side may have read enough.
            stream.write_all(&answer).unwrap_or(());
        }
        requests
    });
    (url, thread)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_got_and_a_redirect_is_told() {
    let world = World::new().await;
    let large = 9_000_000;
    let mut body =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {large}\r\nConnection: close\r\n\r\n")
            .into_bytes();
    body.resize(body.len() + large, b'y');
    let (url, server) = http_server(vec![
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello".to_vec(),
        b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n\xff\xfe".to_vec(),
        body,
    ]);
    let get = |path: &str| json!({"tool": "http.get", "arguments": {"url": format!("{url}{path}"), "headers": {"X-Test": "yes"}}});
    let calls = json!([get("/a"), get("/b"), get("/c"), get("/d")]);
    let results = world.calls("tools = [\"http.get\"]", calls).await;
    let page = json!({"status": 200, "content_type": "text/plain", "body": "hello"});
    assert_eq!(results[0]["ok"], page);
    let location = format!("{url}/elsewhere");
    assert_eq!(
        results[1]["ok"],
        json!({"status": 302, "location": location, "body": ""})
    );
    assert_eq!(results[2]["ok"], json!({"status": 200, "base64": "//4="}));
    assert_eq!(results[3]["ok"]["cut_at_bytes"], 4 * 1024 * 1024);
    let requests = server.join().unwrap();
    assert!(
        requests
            .iter()
            .all(|request| request.contains("x-test: yes"))
    );
    world.engine.close().await.unwrap();
}

/// A server that speaks just enough.
#[cfg(feature = "mcp")]
const SERVER: &str = r#"
import json, os, sys, time
open("starts", "a").write("s")
def tool(name, **hints):
    return {"name": name, "description": name, "inputSchema": {"type": "object"}, "annotations": hints}
def text(text, **more):
    return {"content": [{"type": "text", "text": text}], **more}
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        continue
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "tiny", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [tool("echo", readOnlyHint=True), tool("die", readOnlyHint=True),
                            tool("write_and_die"), tool("fail"), tool("slow"), tool("hidden")]}
    elif method == "tools/call":
        name = params["name"]
        if name == "echo":
            result = text(os.environ.get("TOKEN", "") + json.dumps(params["arguments"]))
        elif name == "fail":
            result = text("it did not work", isError=True)
        elif name == "slow":
            time.sleep(1000)
        else:
            open(name, "a").write("x")
            if name == "die" and len(open(name).read()) > 1:
                result = text("survived", structuredContent={"survived": True})
            else:
                os._exit(1)
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"],
                          "error": {"code": -32601, "message": "what?"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

#[cfg(feature = "mcp")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_listed_called_and_started_again_when_it_died() {
    let world = World::new().await;
    world.put("server.py", SERVER);
    let spec = r#"
        tools = ["tiny.*"]
        [mcp.tiny]
        command = ["python3", "server.py"]
        env = { TOKEN = "${EXTRA}:" }
        tools = ["echo", "*die", "fail", "slow"]
        effects = { slow = "idempotent" }
        trust_annotations = true
        timeout = 2000
    "#;
    let call = |tool: &str| json!({"tool": tool, "arguments": {"a": [1]}});
    let calls = json!([
        call("tiny.echo"),
        call("tiny.fail"),
        call("tiny.die"),
        call("tiny.write_and_die"),
        call("tiny.echo"),
        call("tiny.slow"),
    ]);
    let results = world.calls(spec, calls).await;
    assert_eq!(results[0], json!({"ok": "an extra:{\"a\": [1]}"}));
    assert_eq!(
        results[1],
        json!({"kind": "error", "message": "it did not work"})
    );
    // A read is tried again; of a write nobody knows.
    assert_eq!(results[2], json!({"ok": {"survived": true}}));
    assert_eq!(world.holds("die"), "xx");
    assert_eq!(results[3]["kind"], "lost");
    assert_eq!(world.holds("write_and_die"), "x");
    assert_eq!(results[4], results[0]);
    assert_eq!(results[5]["kind"], "timeout");
    assert_eq!(world.holds("starts"), "sss");
    world.engine.close().await.unwrap();
}

#[cfg(feature = "mcp")]
const HTTP_SERVER: &str = r#"
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(405)
    do_DELETE = do_GET
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != "Bearer an extra":
            return self.answer(401)
        if "id" not in message:
            return self.answer(202)
        results = {
            "initialize": lambda p: {"protocolVersion": p["protocolVersion"], "capabilities": {"tools": {}},
                                     "serverInfo": {"name": "tiny", "version": "1"}},
            "tools/list": lambda p: {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]},
            "tools/call": lambda p: {"content": [{"type": "text", "text": str(sum(p["arguments"]["n"]))}]},
        }
        result = results[message["method"]](message.get("params"))
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

#[cfg(feature = "mcp")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_called_over_http_with_its_headers() {
    let world = World::new().await;
    let mut server = std::process::Command::new("python3")
        .args(["-c", HTTP_SERVER])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = String::new();
    let stdout = server.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut port).unwrap();
    let spec = format!(
        "tools = [\"tiny.add\"]\n[mcp.tiny]\nurl = \"http://127.0.0.1:{}/mcp\"\n\
         headers = {{ Authorization = \"Bearer ${{EXTRA}}\" }}",
        port.trim()
    );
    let call = json!({"tool": "tiny.add", "arguments": {"n": [1, 2, 3]}});
    let results = world.calls(&spec, json!([call])).await;
    assert_eq!(results, [json!({"ok": "6"})]);
    server.kill().unwrap();
    server.wait().unwrap();
    world.engine.close().await.unwrap();
}

#[cfg(feature = "mcp")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_used_says_why() {
    let world = World::new().await;
    world.put("server.py", SERVER);
    for (spec, expected) in [
        (
            "command = [\"sh\", \"-c\", \"echo no such module >&2; exit 1\"]",
            "no such module",
        ),
        ("command = [\"no-such-program\"]", "no-such-program"),
        ("url = \"http://127.0.0.1:1/mcp\"", "tiny"),
        ("env = {}", "`command` or a `url`"),
    ] {
        let spec = format!("tools = [\"tiny.*\"]\n[mcp.tiny]\n{spec}");
        let run = world.start(&spec, json!([])).await;
        let Outcome::Failed(cause) = run.wait().await.unwrap() else {
            panic!("it should fail");
        };
        assert!(cause.message.contains(expected), "{}", cause.message);
    }
    let spec = "tools = [\"tiny.ecko\"]\n[mcp.tiny]\ncommand = [\"python3\", \"server.py\"]";
    let run = world.start(spec, json!([])).await;
    let Outcome::Failed(cause) = run.wait().await.unwrap() else {
        panic!("it should fail");
    };
    assert!(
        cause.message.contains("did you mean `tiny.echo`?"),
        "{}",
        cause.message
    );
    world.engine.close().await.unwrap();
}

#[test]
fn what_tools_say_of_themselves() {
    let spec = r#"
        tools = ["fs.read", "fs.list", "fs.search", "fs.write", "fs.edit", "shell", "http.get", "own"]
        [tool.own]
        run = "true"
    "#;
    let spec: AgentSpec = toml::from_str(spec).unwrap();
    let toolbox = Toolbox::here(&spec, Path::new("/"), &Environment::default(), &[]).unwrap();
    let said = toolbox.tools().iter().map(|tool| {
        let it = tool.definition();
        (it.name.as_str(), it.effect, it.declared, it.asks)
    });
    use Effect::{Idempotent, Read, Write};
    let expected = [
        ("fs.read", Read, true, false),
        ("fs.list", Read, true, false),
        ("fs.search", Read, true, false),
        ("fs.write", Idempotent, true, false),
        ("fs.edit", Idempotent, true, false),
        ("shell", Write, false, true),
        ("http.get", Read, true, false),
        ("own", Write, false, true),
    ];
    assert_eq!(said.collect::<Vec<_>>(), expected);
}
