//! What an agent needs is away when someone begins to drive its run.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use common::project::Project;
use common::run_id;

/// A server that speaks just enough. It says its token when it is asked to start without its list of
/// tools, which is a file of their names.
const SERVER: &str = r#"
import json, os, sys
try:
    names = open("tools").read().split()
except OSError:
    sys.exit("no list for " + os.environ["TOKEN"])
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        continue
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "tiny", "version": "1.2"}}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    else:
        result = {"content": [{"type": "text", "text": "echoed"}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

#[test]
fn a_server_that_is_away_is_waited_for_and_a_run_that_began_is_not_lost_with_its_tool() {
    let project = Project::new("");
    project.pipe("pipe");
    let lines = [
        r#"{"tool_calls": [{"name": "look", "arguments": {}}]}"#,
        r#"{"tool_calls": [{"name": "tiny.echo", "arguments": {}}], "expect": "seen"}"#,
        r#"{"text": "done", "expect": "echoed"}"#,
    ];
    project.write("a.jsonl", &lines.join("\n"));
    project.write("server.py", SERVER);
    project.write(
        "a.toml",
        r#"
        name = "a"
        model = "scripted/a.jsonl"
        tools = ["look", "tiny.echo"]
        policy = { default = "allow" }
        [tool.look]
        description = "Looks"
        effect = "read"
        run = 'cat >/dev/null; [ -e held ] && echo seen && exit; touch held; echo > pipe; sleep 600'
        [mcp.tiny]
        command = ["python3", "server.py"]
        env = { TOKEN = "${AWAY_TOKEN}" }
        "#,
    );
    let run = run_id(1).to_string();
    let mut command = project.std_command();
    command.env("AWAY_TOKEN", "s3cret-of-the-server");
    let mut running = project.start_with(command, &["run", "a.toml", "go", "--id", &run]);
    running.until("trying again");
    project.write("tools", "echo other");
    // It came back: the first tool is called.
    std::fs::read_to_string(project.path("pipe")).unwrap();
    running.kill();

    project.write("tools", "other");
    let resume = || {
        let mut command = project.command();
        command.env("AWAY_TOKEN", "s3cret-of-the-server");
        common::ran(command.args(["resume", &run]))
    };
    let ran = resume();
    assert_eq!(ran.code, 3, "{}", ran.err);
    let told = "the MCP server `tiny` has no tool `tiny.echo`; it has tiny.other";
    assert!(ran.err.contains(told), "{}", ran.err);
    let short = "00000001";
    assert!(
        ran.err.contains(&format!("logreel resume {short}")),
        "{}",
        ran.err
    );
    let shown = project.json(&["show", &run]);
    assert_eq!(shown["status"], "waiting");
    assert_eq!(shown["waiting"][0]["kind"], "retry");
    assert_eq!(shown["waiting"][0]["name"], "tiny.echo");

    project.write("tools", "echo");
    let ran = resume();
    assert_eq!((ran.code, ran.out.trim_end()), (0, "done"), "{}", ran.err);
    let log = project.run(&["log", &run, "--json"]);
    assert!(log.out.contains("no list for [redacted]"), "{}", log.out);
    let stored = std::fs::read(project.path(".logreel/runs.db")).unwrap();
    let secret = b"s3cret-of-the-server";
    assert!(!stored.windows(secret.len()).any(|it| it == secret));
}
