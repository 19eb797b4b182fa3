//! Lines of other agents: what becomes of files of real shape, and of lines that nobody has seen before.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use logreel::core::event::{Budget, Durability, OutputWritten, Provenance, RunKind, RunStarted};
use logreel::core::meaning::ResultSet;
use logreel::core::{Batch, Command, Epoch, Payload, RunState};
use logreel::{Body, Digest, Event, RunId, Seq, Timestamp};
use logreel_agent::{Format, Mapping, Prices, Redactor, StreamLines, StreamReader};
use proptest::prelude::*;
use serde_json::{Value, json};

const CLAUDE_CODE: &str = include_str!("streams/claude-code.jsonl");
const CLAUDE_CODE_SESSION: &str = include_str!("streams/claude-code-session.jsonl");
const CODEX: &str = include_str!("streams/codex.jsonl");
const CODEX_SESSION: &str = include_str!("streams/codex-session.jsonl");
const EXAMPLE: &str = include_str!("streams/example.jsonl");
const MAPPING: &str = include_str!("streams/example.toml");

static REDACTOR: LazyLock<Redactor> =
    LazyLock::new(|| Redactor::new(&[], Vec::<String>::new()).unwrap());

struct Read {
    bodies: Vec<Body>,
    reader: StreamReader,
    state: RunState,
    unknown: Vec<String>,
}

fn mapped() -> Format {
    Format::Mapped(Mapping::parse(MAPPING).unwrap())
}

fn started() -> RunState {
    let started = RunStarted {
        agent: "claude".into(),
        budget: Budget::default(),
        context: None,
        dir: None,
        durability: Durability::Full,
        git: None,
        input: Payload::null(),
        key: None,
        kind: RunKind::Record,
        labels: BTreeMap::new(),
        limit: None,
        parent: None,
        provenance: Provenance::default(),
        session: None,
        spec: Payload::null(),
        spec_digest: Digest::of(b""),
        spec_file: None,
    };
    let first = event(Seq::FIRST, started.into());
    RunState::begin(RunId::from_bytes([7; 16]), &first).unwrap()
}

fn event(seq: Seq, body: Body) -> Event {
    Event {
        seq,
        at: Timestamp::from_micros(0),
        caller_at: None,
        epoch: Epoch(1),
        late: false,
        digest: Digest::of(b""),
        body,
    }
}

/// Reads lines and folds what they say: a fact that the fold refuses fails the test.
fn read<'a>(format: &Format, lines: impl IntoIterator<Item = &'a str>) -> Read {
    read_on(format, started(), lines)
}

/// The same in a run that has a log already.
fn read_on<'a>(
    format: &Format,
    mut state: RunState,
    lines: impl IntoIterator<Item = &'a str>,
) -> Read {
    let mut reader = StreamReader::new(format, REDACTOR.clone(), Prices::built_in());
    reader.go_on(&state);
    let (mut bodies, mut unknown) = (Vec::new(), Vec::new());
    let mut take = |said: logreel_agent::Understood| {
        if !said.known {
            let text = said.bodies.iter().map(|body| match body {
                Body::OutputWritten(OutputWritten {
                    text: Some(text), ..
                }) => text.clone(),
                other => panic!("{other:?}"),
            });
            unknown.push(text.collect::<String>());
        }
        for body in said.bodies {
            let mut batch = Batch::new(&state, &ResultSet::default(), Epoch(1));
            let draft = batch.decide(Command::from(body)).unwrap();
            let next = event(state.row.head.seq.next(), draft.body.clone());
            state.apply(&next).unwrap();
            bodies.push(draft.body);
        }
    };
    for line in lines {
        take(reader.line(line));
    }
    take(reader.finish());
    Read {
        bodies,
        reader,
        state,
        unknown,
    }
}

impl Read {
    fn count(&self, kind: &str) -> usize {
        self.bodies
            .iter()
            .filter(|body| body.kind() == kind)
            .count()
    }

    fn usage(&self) -> Value {
        let usage = &self.state.row.pulse.usage;
        json!({
            "input": usage.spent.input_tokens,
            "output": usage.spent.output_tokens,
            "cache_read": usage.spent.cache_read_tokens,
            "cache_write": usage.spent.cache_write_tokens,
            "reasoning": usage.spent.reasoning_tokens,
            "usd_micros": usage.usd_micros(),
            "models": usage.model_calls,
            "tools": usage.tool_calls,
        })
    }

    fn answer(&self) -> Value {
        self.reader.answer().unwrap().to_value()
    }
}

#[test]
fn a_stream_of_claude_code_is_messages_tools_and_the_cost_it_says() {
    let read = read(&Format::ClaudeCode, CLAUDE_CODE.lines());
    assert_eq!(read.answer(), "Fixed: `add` subtracted.");
    let expected = json!({
        "input": 15 + 1600 + 47_700, "output": 260, "cache_read": 47_700, "cache_write": 1600,
        "reasoning": 0, "usd_micros": 21_542, "models": 3, "tools": 2,
    });
    assert_eq!(read.usage(), expected);
    let counts = [
        "model.called",
        "model.answered",
        "tool.called",
        "tool.failed",
        "tool.returned",
    ];
    assert_eq!(counts.map(|kind| read.count(kind)), [3, 3, 2, 1, 1]);
    assert_eq!(read.count("message.added"), 7);
    assert!(read.state.row.pulse.active_tools.is_empty());
    assert_eq!(read.state.row.facts.provenance.tools, ["Bash", "Edit"]);
    assert_eq!(
        read.reader.session(),
        Some("5f6c1a9e-0d53-4a32-8f0e-2b5a6f1f7c11")
    );
    assert_eq!(read.reader.failure(), None);
    // A line of a kind that this build does not know is kept as it is.
    let strange = CLAUDE_CODE
        .lines()
        .find(|line| line.contains("rate_limit_event"));
    assert_eq!(read.unknown, [format!("{}\n", strange.unwrap())]);
    assert_eq!(read.reader.counts(), (11, 1));
}

#[test]
fn a_stream_that_fails_or_breaks_off_says_so() {
    let failed = r#"{"type":"result","subtype":"error_max_turns","is_error":true,"session_id":"s","total_cost_usd":0.5,"usage":{"input_tokens":1,"output_tokens":2}}"#;
    let failed_read = read(&Format::ClaudeCode, [failed]);
    assert_eq!(failed_read.reader.failure(), Some("error_max_turns"));
    assert_eq!(failed_read.usage()["usd_micros"], 500_000);
    // What it cost is not known then, which is not zero.
    let broken = CLAUDE_CODE.lines().take(8);
    assert_eq!(
        read(&Format::ClaudeCode, broken).usage()["usd_micros"],
        Value::Null
    );
    let failed = r#"{"type":"turn.failed","error":{"message":"model is unavailable"}}"#;
    let failed = read(&Format::Codex, [r#"{"type":"turn.started"}"#, failed]);
    assert_eq!(failed.reader.failure(), Some("model is unavailable"));
    assert_eq!(failed.count("model.failed"), 1);
}

#[test]
fn a_stream_of_codex_is_messages_tools_and_tokens() {
    let read = read(&Format::Codex, CODEX.lines());
    assert_eq!(read.answer(), "Fixed: `add` subtracted.");
    let expected = json!({
        "input": 24_763, "output": 122, "cache_read": 24_448, "cache_write": 0,
        "reasoning": 64, "usd_micros": null, "models": 1, "tools": 4,
    });
    assert_eq!(read.usage(), expected);
    let counts = [
        "turn.started",
        "turn.finished",
        "plan.made",
        "tool.called",
        "tool.returned",
    ];
    assert_eq!(counts.map(|kind| read.count(kind)), [1, 1, 2, 4, 4]);
    let tools = &read.state.row.facts.provenance.tools;
    assert_eq!(
        tools,
        &[
            "command_execution",
            "github.get_issue",
            "file_change",
            "web_search"
        ]
    );
    assert_eq!(read.reader.counts(), (15, 1), "{:?}", read.unknown);
    assert!(read.unknown[0].contains("hologram"));
}

#[test]
fn session_files_are_understood_to_the_last_line() {
    let claude = read(&Format::ClaudeCode, CLAUDE_CODE_SESSION.lines());
    assert_eq!(claude.answer(), "`add` subtracts; change the sign.");
    assert_eq!(claude.reader.counts(), (6, 0), "{:?}", claude.unknown);
    let usage = claude.usage();
    assert_eq!(
        (&usage["input"], &usage["output"]),
        (&(2010 + 2112).into(), &70.into())
    );
    // By the table of prices: a session file does not say it.
    assert!(
        usage["usd_micros"].as_u64().is_some_and(|usd| usd > 0),
        "{usage}"
    );

    let codex = read(&Format::Codex, CODEX_SESSION.lines());
    assert_eq!(codex.answer(), "Fixed: `add` subtracted.");
    assert_eq!(codex.reader.counts(), (16, 0), "{:?}", codex.unknown);
    let usage = codex.usage();
    assert_eq!(
        (&usage["input"], &usage["output"]),
        (&11_000.into(), &180.into())
    );
    assert_eq!((&usage["models"], &usage["tools"]), (&2.into(), &2.into()));
    assert_eq!(
        codex.reader.session(),
        Some("019a4c00-1234-7abc-8def-0123456789ab")
    );
}

#[test]
fn any_lines_are_understood_by_a_mapping() {
    let read = read(&mapped(), EXAMPLE.lines());
    assert_eq!(read.answer(), "found it");
    let usage = read.usage();
    assert_eq!(
        (&usage["input"], &usage["usd_micros"]),
        (&100.into(), &250_000.into())
    );
    let counts = ["tool.called", "tool.returned", "tool.failed"];
    assert_eq!(counts.map(|kind| read.count(kind)), [2, 1, 1]);
    assert_eq!(read.unknown, ["progress: 50%\n"]);
    let again = Format::from_json(&mapped().to_json()).unwrap();
    assert_eq!(again, mapped(), "a spec keeps it");
    for (bad, why) in [
        ("", "line"),
        ("[[line]]\nwhen = { a = 1 }", "number 1"),
        (
            "[[line]]\nmesage = { role = \"user\", text = \"t\" }",
            "mesage",
        ),
        (
            "[[line]]\nmessage = { role = \"owner\", text = \"t\" }",
            "owner",
        ),
    ] {
        let error = Mapping::parse(bad).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn keys_in_lines_do_not_reach_the_log() {
    let key = format!("sk-ant-{}", "a1B2c3D4e5F6g7H8i9J0");
    let lines = CLAUDE_CODE
        .replace("cargo test", &key)
        .replace("FAILED", &key);
    let read = read(&Format::ClaudeCode, lines.lines().chain([key.as_str()]));
    let all = format!("{:?}", read.bodies);
    assert!(!all.contains(&key), "{all}");
    assert!(all.contains("[redacted]"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z_.]{0,12}".prop_map(Value::from),
        Just(json!("tool_use")),
        Just(json!("\u{0}")),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z]{1,6}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Every value of a tree, by its pointer.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, &format!("{at}/{index}"), all);
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                let key = key.replace('~', "~0").replace('/', "~1");
                pointers(field, &format!("{at}/{key}"), all);
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn lines_that_nobody_has_seen_before_are_kept_and_never_fatal(
        which in 0_usize..5,
        changes in proptest::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any_json(), 0_u8..5),
            1..12,
        ),
    ) {
        let (format, text) = [
            (Format::ClaudeCode, CLAUDE_CODE),
            (Format::ClaudeCode, CLAUDE_CODE_SESSION),
            (Format::Codex, CODEX),
            (Format::Codex, CODEX_SESSION),
            (mapped(), EXAMPLE),
        ][which].clone();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (line, place, value, how) in changes {
            let at = line.index(lines.len());
            match how {
                0 => lines.insert(at, value.to_string()),
                1 => {
                    let copy = lines[place.index(lines.len())].clone();
                    lines.insert(at, copy);
                }
                2 => {
                    let cut = lines[at].floor_char_boundary(place.index(lines[at].len() + 1));
                    lines[at].truncate(cut);
                }
                _ => {
                    if let Ok(mut tree) = serde_json::from_str::<Value>(&lines[at]) {
                        let mut all = Vec::new();
                        pointers(&tree, "", &mut all);
                        *tree.pointer_mut(&all[place.index(all.len())]).unwrap() = value;
                        lines[at] = tree.to_string();
                    }
                }
            }
        }
        let there = lines.iter().filter(|line| !line.trim().is_empty()).count() as u64;
        let read = read(&format, lines.iter().map(String::as_str));
        let (all, unknown) = read.reader.counts();
        prop_assert_eq!((all, unknown), (there, read.unknown.len() as u64));
    }
}

#[test]
fn lines_that_are_told_again_go_on_from_the_log() {
    for (format, text) in [
        (Format::ClaudeCode, CLAUDE_CODE),
        (Format::Codex, CODEX),
        (mapped(), EXAMPLE),
    ] {
        let first = read(&format, text.lines());
        let (usage, turn) = (first.usage(), first.state.turn);
        let (models, tools) = (first.state.models.len(), first.state.tools.len());
        assert!(models > 0);
        let end = first.state.row.pulse.context;
        // A stream that stopped half-way, and then a whole one.
        let second = read_on(&format, first.state, text.lines().take(4));
        let node = |body: &Body| match body {
            Body::MessageAdded(added) => Some(added.previous),
            _ => None,
        };
        assert_eq!(second.bodies.iter().find_map(node), Some(end), "{format:?}");
        let (more_models, more_tools) = (second.state.models.len(), second.state.tools.len());
        let third = read_on(&format, second.state, text.lines());
        assert_eq!(third.state.models.len(), more_models + models, "{format:?}");
        assert_eq!(third.state.tools.len(), more_tools + tools, "{format:?}");
        assert!(third.state.turn >= 2 * turn, "{format:?}");
        assert!(
            third.usage()["input"].as_u64() >= usage["input"].as_u64().map(|it| 2 * it),
            "{format:?}"
        );
        assert_eq!(third.answer(), first.reader.answer().unwrap().to_value());
    }
}

#[test]
fn a_sum_that_is_said_again_is_counted_once() {
    let message = |id: &str, tokens: u64| {
        json!({"type": "assistant", "message": {"id": id, "model": "claude-x",
            "content": [{"type": "text", "text": "well"}],
            "usage": {"input_tokens": tokens, "output_tokens": tokens}}})
        .to_string()
    };
    let result = |usd: f64, tokens: u64| {
        json!({"type": "result", "subtype": "success", "result": "done", "total_cost_usd": usd,
            "usage": {"input_tokens": tokens, "output_tokens": tokens}})
        .to_string()
    };
    // The second result's tokens are those of all, or of what came since.
    for second in [30, 20] {
        let lines = [
            message("m1", 10),
            result(0.25, 10),
            message("m2", 20),
            result(0.75, second),
            result(1.0, second),
        ];
        let usage = read(&Format::ClaudeCode, lines.iter().map(String::as_str)).usage();
        assert_eq!(usage["usd_micros"], 1_000_000, "{usage}");
        assert!(usage["input"].as_u64() >= Some(30), "{usage}");
    }
}

#[test]
fn a_line_that_is_no_text_is_counted_as_not_understood() {
    let mut lines = StreamLines::new(&Format::Codex, &REDACTOR, &Prices::built_in());
    let said = lines.push(b"\xff\xfe bad\n{\"type\":\"turn.started\"}\n");
    assert_eq!(lines.counts(), (2, 1));
    let kept = said.bodies.iter();
    let kept = kept.filter(|body| matches!(body, Body::OutputWritten(it) if it.base64.is_some()));
    assert_eq!(kept.count(), 1);
}

#[test]
fn a_failure_that_was_made_up_for_is_none() {
    let codex = [
        r#"{"type":"turn.started"}"#,
        r#"{"type":"turn.failed","error":{"message":"overloaded"}}"#,
        r#"{"type":"turn.started"}"#,
        r#"{"type":"turn.completed","usage":{"input_tokens":1,"output_tokens":1}}"#,
    ];
    assert_eq!(read(&Format::Codex, codex).reader.failure(), None);
    assert!(
        read(&Format::Codex, codex[..2].iter().copied())
            .reader
            .failure()
            .is_some()
    );
    let claude = [
        r#"{"type":"result","subtype":"error_during_execution","is_error":true}"#,
        r#"{"type":"result","subtype":"success","result":"done"}"#,
    ];
    assert_eq!(read(&Format::ClaudeCode, claude).reader.failure(), None);
}
