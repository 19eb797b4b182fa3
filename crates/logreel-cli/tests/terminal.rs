//! The live view on a real (pseudo) terminal, its bytes read back into a screen.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use common::project::Project;
use common::screen::Screen;
use rustix::process::Signal;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

const VIEW: &str = r#"
name = "view"
[[step]]
id = "first"
run = "echo 1"
effect = "read"
[[step]]
id = "each"
needs = ["first"]
map = ["a", "b", "c"]
map_key = "{{ item }}"
concurrency = 1
input = "{{ item }}"
run = "read -r item; [ $item = a ] || until [ -e open ]; do sleep 0.1; done"
effect = "read"
[[step]]
id = "翻訳"
needs = ["first"]
run = "printf '\\033[2J\\033]0;x\\007 日本語の長い行はここで切られます。端末の幅より長いからです。まだ続きます。もっと続きます。\\n'; until [ -e open ]; do sleep 0.1; done"
effect = "read"
[[step]]
id = "last"
needs = ["each", "翻訳"]
run = "echo bye"
effect = "read"
"#;

/// The binary with a terminal as stdin and stderr; its stdout is a file.
struct OnTerminal {
    child: Child,
    terminal: File,
    screen: Screen,
    pending: Vec<u8>,
    raw: String,
}

impl OnTerminal {
    fn start(project: &Project, args: &[&str], width: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&ours).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap();
        let name = name.into_string().unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        rustix::termios::tcsetwinsize(&theirs, size).unwrap();
        let mut command = project.std_command();
        command.args(args).env("TERM", "xterm").env("NO_COLOR", "1");
        let child = command
            .stdin(Stdio::from(OwnedFd::from(theirs.try_clone().unwrap())))
            .stderr(Stdio::from(OwnedFd::from(theirs)))
            .stdout(File::create(project.path("out")).unwrap())
            .spawn()
            .unwrap();
        Self {
            child,
            terminal: File::from(ours),
            screen: Screen::new(width.into()),
            pending: Vec::new(),
            raw: String::new(),
        }
    }

    /// Reads once; false when nobody holds the other end any more.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let count = self.terminal.read(&mut bytes).unwrap_or(0);
        self.pending.extend(&bytes[..count]);
        let valid = match std::str::from_utf8(&self.pending) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text: Vec<u8> = self.pending.drain(..valid).collect();
        let text = String::from_utf8(text).unwrap();
        self.raw.push_str(&text);
        self.screen.feed(&text);
        count > 0
    }

    fn until(&mut self, holds: impl Fn(&str) -> bool) {
        // In the middle of a frame the screen is neither the old one nor the new one.
        let is_torn = |it: &Self| it.screen.cursor_hidden && !it.raw.ends_with("\x1b[J");
        while is_torn(self) || !holds(&self.screen.text()) {
            assert!(self.read(), "it ended with\n{}", self.screen.text());
        }
    }

    fn say(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).unwrap();
    }

    fn end(mut self) -> (i32, Screen, String) {
        while self.read() {}
        let code = self.child.wait().unwrap().code().unwrap();
        (code, self.screen, self.raw)
    }
}

fn check(name: &str, text: &str) {
    insta::with_settings!({filters => vec![
        (r"\b[0-9a-f]{8}\b", "[shortid]"),
        (r" *\b([0-9]+ms|[0-9.]+s)\b", " [time]"),
        ("[⠋⠙⠸⠴⠦⠧⠇⠏]", "⠋"),
    ]}, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn the_view_shows_what_runs_and_leaves_a_summary() {
    for (width, name) in [(80, "live_80"), (40, "live_40")] {
        let project = Project::new(VIEW);
        // The store is there: its note is not part of this.
        assert_eq!(project.run(&["init", "-q"]).code, 0);
        let mut run = OnTerminal::start(&project, &["run", "w.toml"], width);
        run.until(|text| {
            let begun = text.contains("日本") && !text.contains("· 翻訳");
            begun && text.contains("1/3") && text.contains("✓ first")
        });
        assert!(run.screen.cursor_hidden);
        check(name, &run.screen.text());
        project.write("open", "");
        let (code, screen, raw) = run.end();
        assert_eq!(
            (code, project.read("out").as_str()),
            (0, "bye\n"),
            "{}",
            screen.text()
        );
        check(&format!("{name}_end"), &screen.text());
        assert!(!screen.cursor_hidden);
        assert!(
            !raw.contains("\x1b[2J") && !raw.contains("\x1b]"),
            "{raw:?}"
        );
    }
}

#[test]
fn ctrl_c_gives_the_terminal_back() {
    let project = Project::new(VIEW);
    let mut run = OnTerminal::start(&project, &["run", "w.toml"], 80);
    run.until(|text| text.contains("日本"));
    let pid = rustix::process::Pid::from_child(&run.child);
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    let (code, screen, _) = run.end();
    assert_eq!(
        (code, screen.cursor_hidden),
        (130, false),
        "{}",
        screen.text()
    );
    assert!(
        screen.text().contains("is paused: `logreel resume "),
        "{}",
        screen.text()
    );
}

#[test]
fn a_person_at_the_terminal_is_asked() {
    let project = Project::new(
        "name = 'p'\n[[step]]\nid = 'ok'\nwait = 'approval'\nprompt = 'Publish it?'\n",
    );
    let mut run = OnTerminal::start(&project, &["run", "w.toml"], 80);
    run.until(|text| text.contains("Publish it? [y/n"));
    run.say("what\n");
    run.until(|text| text.matches("Publish it? [y/n").count() == 2);
    run.say("y looks good\n");
    let (code, screen, _) = run.end();
    assert_eq!(code, 0, "{}", screen.text());
    let log = project
        .run(&["log", "@last", "--json", "--kind", "wait.ended"])
        .out;
    assert!(
        log.contains("\"reason\":\"looks good\"") && log.contains("\"by\":\"ada\""),
        "{log}"
    );
}

const AGENT: &str = r#"
name = "fixer"
model = "scripted/answers.jsonl"
tools = ["fs.read", "fs.edit", "gate", "researcher"]
plan = true
[policy]
ask = ["fs.edit"]
allow = ["gate"]
[tool.gate]
description = "Wait until the gate is open"
run = "until [ -e open ]; do sleep 0.05; done; echo opened"
[agents.researcher]
spec = "researcher.toml"
[[verify]]
name = "mended"
run = "grep good notes.txt"
"#;

const AGENT_ANSWERS: &str = r#"
{"text": "1. Look at \u001b[2J the notes.\n2. Mend them.", "usage": {"input_tokens": 900, "output_tokens": 50}}
{"text": "I look at them, and wait.", "tool_calls": [{"id": "look", "name": "fs.read", "arguments": {"path": "notes.txt"}}, {"id": "wait", "name": "gate", "arguments": {"why": "a long reason that does not fit the eighty columns of a terminal of the usual width"}}], "usage": {"input_tokens": 1000, "output_tokens": 60}}
{"text": "The words come in one after the other, until there are so many of them that they need another row. Then I ask.", "chunks": ["The words come in one after the other, until there are so many of them that they need another ", "row. Then I ask."], "delay_ms": 3000, "tool_calls": [{"id": "ask", "name": "researcher", "arguments": {"input": "what is it?"}}], "usage": {"input_tokens": 1100, "output_tokens": 70}}
{"text": "It must be good.", "tool_calls": [{"id": "mend", "name": "fs.edit", "arguments": {"path": "notes.txt", "old": "bad", "new": "good"}}], "usage": {"input_tokens": 1200, "output_tokens": 80}}
{"text": "It is good now.", "usage": {"input_tokens": 1300, "output_tokens": 90}}
"#;

const RESEARCHER: &str = r#"
name = "researcher"
description = "Looks things up"
model = "scripted/found.jsonl"
tools = ["door"]
policy = { allow = ["door"] }
[tool.door]
description = "Wait until the door is open"
run = "until [ -e door ]; do sleep 0.05; done; echo opened"
effect = "read"
"#;

const FOUND: &str = r#"
{"text": "I knock.", "tool_calls": [{"id": "knock", "name": "door", "arguments": {}}], "usage": {"input_tokens": 100, "output_tokens": 10}}
{"text": "good", "usage": {"input_tokens": 120, "output_tokens": 2}}
"#;

#[test]
fn the_view_of_an_agent_shows_its_tools_its_words_and_whom_it_calls() {
    let project = Project::new(AGENT);
    project.write("answers.jsonl", AGENT_ANSWERS.trim_start());
    project.write("researcher.toml", RESEARCHER);
    project.write("found.jsonl", FOUND.trim_start());
    project.write("notes.txt", "this is bad\n");
    assert_eq!(project.run(&["init", "-q"]).code, 0);
    let mut run = OnTerminal::start(&project, &["run", "w.toml", "mend it"], 80);
    run.until(|text| text.contains("gate ") && text.contains("✓ fs.read"));
    assert!(run.screen.cursor_hidden);
    check("agent_tool", &run.screen.text());
    project.write("open", "");
    run.until(|text| text.contains("The words come in one") && text.contains("need another"));
    check("agent_words", &run.screen.text());
    run.until(|text| text.contains("  door ") && text.contains("I knock."));
    check("agent_child", &run.screen.text());
    project.write("door", "");
    run.until(|text| text.contains("Allow it? [y/n"));
    assert!(!run.screen.cursor_hidden);
    check("agent_asks", &run.screen.text());
    run.say("y\n");
    let (code, screen, raw) = run.end();
    check("agent_end", &screen.text());
    assert_eq!(
        (code, project.read("out").as_str()),
        (0, "It is good now.\n")
    );
    assert!(!screen.cursor_hidden && !raw.contains("\x1b[2J"), "{raw:?}");
    assert_eq!(project.read("notes.txt"), "this is good\n");
}

#[test]
fn keys_that_are_typed_leave_nothing_in_the_view() {
    let project = Project::new(VIEW);
    let mut terminal = OnTerminal::start(&project, &["run", "w.toml"], 80);
    terminal.until(|text| text.contains("翻訳"));
    let frames = |terminal: &OnTerminal| terminal.raw.matches("\x1b[J").count();
    let before = frames(&terminal);
    terminal.say("\nabc\n\n");
    while frames(&terminal) < before + 5 {
        assert!(terminal.read());
    }
    terminal.until(|_| true);
    let text = terminal.screen.text();
    assert_eq!(text.matches("first").count(), 1, "{text}");
    assert!(!text.contains("abc"), "{text}");
    project.write("open", "");
    let (code, _, _) = terminal.end();
    assert_eq!(code, 0);
}
