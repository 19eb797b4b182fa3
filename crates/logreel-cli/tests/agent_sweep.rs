//! An agent of twelve turns and three tools is killed at every commit it makes, and between each effect
//! and its record, while it talks to a real HTTP server. Whoever goes on comes to the same end, and the
//! server's own count says that no recorded answer was asked for again.
//!
//! `LOGREEL_BIN=target/release/logreel` sweeps that one. One line is printed for each place.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;
#[path = "../../logreel-agent/tests/common/provider.rs"]
mod provider;

use std::collections::BTreeMap;
use std::process::{Command, Output};

use common::kill::{At, End, killed_at, marked, until};
use common::project::Project;
use common::run_id;
use provider::{Block, Format, Provider, Said};
use serde_json::Value;

const TURNS: usize = 12;
const ANSWER: &str = "All twelve turns are done.";

const SPEC: &str = r#"
name = "sweeper"
model = "MODEL"
base_url = "URL"
api_key_env = "SWEEP_KEY"
params = PARAMS
system = "You sweep."
tools = ["look", "note", "send"]
[policy]
allow = ["note", "send"]
[tool.look]
description = "Looks"
effect = "read"
run = 'echo $LOGREEL_KEY >> effects/look; grep -o "[0-9]*"'
[tool.note]
description = "Notes"
effect = "idempotent"
run = 'echo $LOGREEL_KEY >> effects/note; cat > noted; echo noted'
[tool.send]
description = "Sends"
effect = "write"
run = 'cat > /dev/null; echo $LOGREEL_KEY >> effects/send; echo sent'
reconcile = 'cat > /dev/null; grep -qx $LOGREEL_KEY effects/send || exit 10; echo sent'
"#;

/// What the model says, turn by turn.
fn script(format: Format) -> Vec<Said> {
    let call = |turn: usize, nth: usize, name: &str| {
        let id = format!("toolu_{turn:04}_{nth:04}");
        Block::call(&id, name, &format!("{{\"n\": {}}}", 10 * turn + nth))
    };
    let turn = |turn: usize| {
        let thought = Block::thinking(&format!("I think {turn}"), &format!("c2lnbmVk+/{turn}=="));
        let names: &[&str] = match (format, turn) {
            // In the middle: there is something before it and after it.
            (Format::OpenAi, 5) => &["send"],
            (Format::OpenAi, _) if turn.is_multiple_of(3) => &["look", "note"],
            (Format::OpenAi, _) if turn.is_multiple_of(2) => &["look"],
            (Format::OpenAi, _) => &["note"],
            (_, 5) => &["look", "send", "look"],
            (_, _) if turn.is_multiple_of(2) => &["look", "look", "note"],
            (_, _) => &["note", "look"],
        };
        let calls = names.iter().enumerate();
        let calls = calls.map(|(nth, name)| call(turn, nth, name));
        match format {
            Format::Anthropic => {
                let text = Block::Text(format!("Turn {turn}."));
                Said::of([thought, text].into_iter().chain(calls).collect())
            }
            Format::OpenAi | Format::Other => Said::of(calls.collect()),
        }
    };
    let turns = (0..TURNS - 1).map(turn);
    turns.chain([Said::text(ANSWER)]).collect()
}

struct Scene {
    format: Format,
    project: Project,
    provider: Provider,
    mark: String,
    digest: String,
    /// What each tool has noted: its key, once for each time it ran.
    effects: BTreeMap<String, Vec<String>>,
}

/// A model call as the log has it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Asked {
    attempts: Vec<u64>,
    answers: usize,
}

impl Scene {
    /// Plays it undisturbed.
    fn new(format: Format) -> Self {
        let script = script(format);
        let provider = Provider::by_turn(script.into_iter().map(|it| vec![it.into()]).collect());
        provider.expect_key("s3same-sweep-key");
        let project = Project::new("");
        let mark = format!("SWEEP={}", project.0.path().display());
        let mut scene = Self {
            format,
            project,
            provider,
            mark,
            digest: String::new(),
            effects: BTreeMap::new(),
        };
        scene.begin();
        scene.ends(&scene.run());
        assert_eq!(scene.provider.counts(), [1; TURNS]);
        let run = scene.show().unwrap();
        scene.digest = run["final_state_digest"].as_str().unwrap().to_owned();
        scene.effects = scene.read_effects();
        assert_eq!(scene.effects["send"].len(), 1);
        assert_eq!(scene.effects.len(), 3, "{:?}", scene.effects);
        scene
    }

    /// The folder as it was at first.
    fn begin(&self) {
        std::fs::remove_dir_all(self.project.0.path()).unwrap();
        std::fs::create_dir_all(self.project.path("effects")).unwrap();
        std::fs::create_dir(self.project.path(".git")).unwrap();
        let (model, url, params) = match self.format {
            Format::Anthropic => (
                "anthropic/claude-test",
                self.provider.anthropic_url(),
                "{ max_output_tokens = 4000, reasoning = \"low\" }",
            ),
            Format::OpenAi | Format::Other => ("openai/gpt-test", self.provider.openai_url(), "{}"),
        };
        let spec = SPEC.replace("MODEL", model).replace("URL", &url);
        let spec = spec.replace("PARAMS", params);
        self.project.write("a.toml", &spec);
        self.provider.forget();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.project.std_command();
        let (name, value) = self.mark.split_once('=').unwrap();
        command.args(args).env(name, value);
        command.env("SWEEP_KEY", "s3same-sweep-key");
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn run(&self) -> Output {
        let run = run_id(1).to_string();
        self.output(&["run", "a.toml", "go", "--id", &run, "-q"])
    }

    fn ends(&self, ran: &Output) {
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(0), "{said}");
        let out = String::from_utf8_lossy(&ran.stdout);
        assert_eq!(out.trim_end(), ANSWER, "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }

    /// What a verb says in JSON, when the run is there by now.
    fn said(&self, verb: &str) -> Option<Vec<Value>> {
        let ran = self.output(&[verb, &run_id(1).to_string(), "--json"]);
        match ran.status.code() {
            Some(0) => {
                let text = String::from_utf8(ran.stdout).unwrap();
                let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
                Some(lines.collect())
            }
            // No such run, no store.
            Some(2 | 4) => None,
            _ => panic!("{}", String::from_utf8_lossy(&ran.stderr)),
        }
    }

    fn show(&self) -> Option<Value> {
        self.said("show").map(|mut lines| lines.remove(0))
    }

    fn log(&self) -> Vec<Value> {
        self.said("log").unwrap_or_default()
    }

    fn read_effects(&self) -> BTreeMap<String, Vec<String>> {
        let files = std::fs::read_dir(self.project.path("effects")).unwrap();
        let read = files.map(|file| {
            let file = file.unwrap();
            let text = std::fs::read_to_string(file.path()).unwrap();
            let name = file.file_name().into_string().unwrap();
            (name, text.lines().map(Into::into).collect())
        });
        read.collect()
    }

    /// Kills it at its nth commit, goes on, and looks at everything. `None` when there are fewer.
    fn at(&self, at: At, nth: usize) -> Option<Found> {
        self.begin();
        let run = run_id(1).to_string();
        let wal = self.project.path(".logreel/runs.db-wal");
        let command = self.command(&["run", "a.toml", "go", "--id", &run, "-q"]);
        if let End::Ended(code) = killed_at(&command, &wal, at, nth) {
            assert_eq!(code, 0, "undisturbed");
            return None;
        }
        let before = self.log();
        let last = before.last().map_or("nothing".to_owned(), name_of);
        let (asked_before, counts_before) = (asked(&before), self.provider.counts());
        match before.is_empty() {
            true => self.ends(&self.run()),
            false => self.ends(&self.output(&["resume", &run, "-q"])),
        }

        let shown = self.show().unwrap();
        assert_eq!(shown["status"], "completed", "after {last}: {shown}");
        assert_eq!(shown["output"], ANSWER, "after {last}");
        assert_eq!(
            shown["final_state_digest"], self.digest,
            "after {last}: {shown}"
        );
        self.provider.assert_no_faults();
        let repeated = self.compare(at, &last, &asked_before, &counts_before);

        let (effects, mut again) = (self.read_effects(), 0);
        assert!(effects.keys().eq(self.effects.keys()), "{effects:?}");
        for (tool, keys) in &effects {
            let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
            assert_eq!(distinct.len(), self.effects[tool].len(), "{tool}: {keys:?}");
            again += keys.len() - distinct.len();
        }
        assert_eq!(effects["send"].len(), 1, "after {last}");
        let verified = self.output(&["verify", &run]);
        assert_eq!(verified.status.code(), Some(0), "after {last}");
        until("no process is left", || marked(&self.mark).is_empty());
        let kill = match at {
            At::Synced => "after",
            At::Unwritten => "before what follows",
        };
        let calls = match &repeated {
            Some(call) => format!("{call} issued again and named so"),
            None => "no call repeated".to_owned(),
        };
        println!(
            "{:?} boundary {nth}: killed {kill} {last}; resumed: completed, digest and output equal, \
             writes 1/1, {} requests, {calls}, {again} tools again with the same key, no process left",
            self.format,
            self.provider.counts().iter().sum::<usize>(),
        );
        Some(Found {
            last,
            repeated: repeated.is_some(),
            again,
        })
    }

    /// The server's own count beside the log, call by call. Names the one that was issued again.
    fn compare(
        &self,
        at: At,
        last: &str,
        before: &BTreeMap<String, Asked>,
        counts_before: &[usize],
    ) -> Option<String> {
        let (after, counts) = (asked(&self.log()), self.provider.counts());
        assert_eq!((after.len(), counts.len()), (TURNS, TURNS), "after {last}");
        let mut repeated = None;
        for (turn, count) in counts.iter().enumerate() {
            let call = format!("m{}.turn", turn + 1);
            let now = &after[&call];
            assert_eq!(now.answers, 1, "after {last}: {call}");
            let numbers = 1..=now.attempts.len() as u64;
            assert!(numbers.eq(now.attempts.iter().copied()), "{now:?}");
            // Announced and then killed at once: it never left, as the server says too.
            let unsent = at == At::Synced
                && last == format!("model.called({call})")
                && counts_before.len() <= turn;
            let expected = now.attempts.len() - usize::from(unsent);
            assert_eq!(*count, expected, "after {last}: {call}: {now:?}");
            let was = before.get(&call).cloned().unwrap_or_default();
            if was.answers == 1 {
                assert_eq!(*now, was, "after {last}: {call} was answered");
                assert_eq!(counts_before[turn], *count, "after {last}: {call}");
            }
            if now.attempts.len() > 1 {
                assert_eq!(now.attempts.len(), 2, "it was killed once");
                assert_eq!(repeated, None, "only one can have been in flight");
                repeated = Some(call);
            }
        }
        repeated
    }
}

struct Found {
    last: String,
    repeated: bool,
    again: usize,
}

fn name_of(event: &Value) -> String {
    let body = &event["body"];
    let what = body["call"].as_str().or(body["node"].as_str());
    let what = what.map(|it| format!("({})", &it[..it.len().min(20)]));
    let kind = event["kind"].as_str().unwrap();
    format!("{kind}{}", what.unwrap_or_default())
}

/// How often each call of a model was announced and answered.
fn asked(log: &[Value]) -> BTreeMap<String, Asked> {
    let mut asked: BTreeMap<String, Asked> = BTreeMap::new();
    for event in log {
        let of = || event["body"]["call"].as_str().unwrap().to_owned();
        match event["kind"].as_str().unwrap() {
            "model.called" => {
                let attempt = event["body"]["attempt"].as_u64().unwrap();
                asked.entry(of()).or_default().attempts.push(attempt);
            }
            "model.answered" => asked.entry(of()).or_default().answers += 1,
            _ => {}
        }
    }
    asked
}

fn sweep(format: Format, at: At) {
    // Every other one, because a kill takes longer than the work.
    let half = |first: usize| {
        let scene = Scene::new(format);
        let places = (first..).step_by(2);
        places
            .map_while(|nth| scene.at(at, nth))
            .collect::<Vec<_>>()
    };
    let found: Vec<Found> = std::thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        let even = scope.spawn(|| half(2));
        let even = even.join().unwrap();
        odd.join().unwrap().into_iter().chain(even).collect()
    });
    let repeated = found.iter().filter(|it| it.repeated).count();
    let again: usize = found.iter().map(|it| it.again).sum();
    println!(
        "{format:?} {at:?}: {} boundaries, {repeated} calls in flight issued again and named so, no recorded \
         answer asked for again, no write twice, {again} repeats of what may be",
        found.len()
    );
    assert!(found.len() >= 40, "{} boundaries", found.len());
    // Each turn is in flight at some boundary; how much goes into one commit depends on how long a
    // tool takes, so the nth of one run may not be the nth of the next, and some are never met.
    assert!(repeated >= TURNS / 4, "{repeated} calls in flight");
    for kind in [
        "model.called",
        "tool.called",
        "tool.returned",
        "turn.finished",
    ] {
        let has = |it: &Found| it.last.starts_with(kind);
        assert!(found.iter().any(has), "never killed after {kind}");
    }
}

#[test]
fn openai_killed_at_every_commit_with_strace() {
    sweep(Format::OpenAi, At::Synced);
}

#[test]
fn openai_killed_between_each_effect_and_its_record_with_strace() {
    sweep(Format::OpenAi, At::Unwritten);
}

#[test]
fn anthropic_killed_at_every_commit_with_strace() {
    sweep(Format::Anthropic, At::Synced);
}

#[test]
fn anthropic_killed_between_each_effect_and_its_record_with_strace() {
    sweep(Format::Anthropic, At::Unwritten);
}

const EVERYTHING: &str = r#"
name = "everything"
model = "scripted/a.jsonl"
tools = ["look", "fix", "helper"]
plan = true
context = { compact_at = 500 }
output_schema = { type = "object" }
[policy]
allow = ["fix"]
[[verify]]
name = "fixed"
run = "test -e fixed"
[agents.helper]
spec = "helper.toml"
description = "Helps"
[tool.look]
description = "Looks"
effect = "read"
run = "cat > /dev/null; echo seen"
[tool.fix]
description = "Fixes"
effect = "idempotent"
run = "cat > /dev/null; touch fixed; echo is fixed"
"#;

const HELPER: &str = r#"
name = "helper"
model = "scripted/helper.jsonl"
tools = ["send"]
[policy]
allow = ["send"]
[tool.send]
description = "Sends"
effect = "write"
run = 'cat > /dev/null; echo $LOGREEL_KEY >> sent; echo sent'
reconcile = 'cat > /dev/null; grep -qx $LOGREEL_KEY sent || exit 10; echo sent'
"#;

/// The plan, a turn with a sub-agent, a summary, an answer that misses its schema and its repair, checks
/// that fail, what mends it, and the end.
const EVERYTHING_SAID: &str = r#"
{"text": "1. look 2. help", "expect": {"last": "go", "messages": 1}}
{"tool_calls": [{"name": "helper", "arguments": {"input": "send"}}, {"name": "look", "arguments": {}}], "usage": {"input_tokens": 1000}, "expect": {"messages": 3}}
{"text": "It was sent.", "expect": {"last": "Summarise", "any": ["42", "seen"], "messages": 6}}
{"text": "not JSON", "expect": {"last": ["go", "It was sent."], "messages": 1}}
{"text": "{}", "expect": {"last": "does not fit the schema", "messages": 3}}
{"tool_calls": [{"name": "fix", "arguments": {}}], "expect": {"last": "does not pass its checks", "messages": 5}}
{"text": "{\"ok\": true}", "expect": {"last": "is fixed", "messages": 7}}
"#;

const HELPER_SAID: &str = r#"
{"tool_calls": [{"name": "send", "arguments": {}}], "expect": {"last": "send", "messages": 1}}
{"text": "42", "expect": {"last": "sent", "messages": 3}}
"#;

/// Kills it at its nth commit and goes on; gives the digest it ended with. `None` when there are fewer.
fn everything(at: At, nth: usize) -> (String, Option<String>) {
    let project = Project::new("");
    project.write("a.toml", EVERYTHING);
    project.write("a.jsonl", EVERYTHING_SAID);
    project.write("helper.toml", HELPER);
    project.write("helper.jsonl", HELPER_SAID);
    let run = run_id(1).to_string();
    let begin = ["run", "a.toml", "go", "--id", &run, "-q"];
    let wal = project.path(".logreel/runs.db-wal");
    let end = killed_at(project.std_command().args(begin), &wal, at, nth);
    let log = || {
        let said = project.run(&["log", &run, "--json"]).out;
        let lines = said.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<Value>>()
    };
    let before = log();
    let last = before.last().map_or("nothing".to_owned(), name_of);
    let ran = match before.is_empty() {
        true => project.run(&begin),
        false => project.run(&["resume", &run, "-q"]),
    };
    let is = (ran.code, ran.out.trim_end());
    assert_eq!(is, (0, "{\"ok\":true}"), "after {last}: {}", ran.err);
    let sent = project.read("sent").lines().count();
    assert_eq!(sent, 1, "after {last}");
    let after = log();
    let (was, is) = (asked(&before), asked(&after));
    assert_eq!(is.len(), 7, "after {last}: {is:?}");
    for (call, now) in &is {
        assert_eq!(now.answers, 1, "after {last}: {call}");
        if was.get(call).is_some_and(|it| it.answers == 1) {
            assert_eq!(was[call], *now, "after {last}: {call} was answered");
        }
    }
    for kind in ["context.compacted", "plan.made", "child.started"] {
        let count = after.iter().filter(|it| it["kind"] == kind).count();
        assert_eq!(count, 1, "after {last}: {kind}");
    }
    assert_eq!(project.run(&["verify"]).code, 0, "after {last}");
    let shown = project.json(&["show", &run]);
    assert_eq!(shown["verification"]["verdict"], "passed", "{shown}");
    let digest = shown["final_state_digest"].as_str().unwrap().to_owned();
    (digest, (end == End::Killed).then_some(last))
}

fn sweep_everything(at: At) {
    let (undisturbed, none) = everything(at, usize::MAX);
    assert_eq!(none, None);
    let mut boundaries = 0;
    for nth in 1.. {
        let (digest, Some(last)) = everything(at, nth) else {
            break;
        };
        assert_eq!(digest, undisturbed, "after {last}");
        println!(
            "everything {at:?} boundary {nth}: killed at {last}; resumed: completed, digest equal"
        );
        boundaries = nth;
    }
    println!("everything {at:?}: {boundaries} boundaries");
    assert!(boundaries >= 30, "{boundaries} boundaries");
}

#[test]
fn every_phase_killed_at_every_commit_with_strace() {
    sweep_everything(At::Synced);
}

#[test]
fn every_phase_killed_between_each_effect_and_its_record_with_strace() {
    sweep_everything(At::Unwritten);
}
