//! The stored format: a committed log of every kind must verify, decode and fold as it always did.
//!
//! `LOGREEL_WRITE_GOLDEN=1 cargo test -p logreel-core --test golden` writes the file. Once a format
//! is released its file never changes; a new format gets a new one.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use common::*;
use logreel_core::chain::{Sealer, origin};
use logreel_core::codec::StoredBody;
use logreel_core::event::*;
use logreel_core::*;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The first line of a `jsonl` export.
#[derive(Serialize, Deserialize)]
struct Opening {
    r#type: String,
    format: u16,
    run: RunId,
    keys: BTreeMap<RunId, String>,
    head: Head,
}

/// An event of a `jsonl` export; the body is embedded exactly as stored.
#[derive(Serialize, Deserialize)]
struct Line {
    run: RunId,
    seq: Seq,
    at: Timestamp,
    caller_at: Option<Timestamp>,
    epoch: Epoch,
    kind: String,
    late: bool,
    format: u16,
    body: Box<RawValue>,
    body_digest: Digest,
    digest: Digest,
    origin: Option<RunId>,
}

impl Line {
    fn record(&self) -> Record {
        Record {
            seq: self.seq,
            at: self.at,
            caller_at: self.caller_at,
            epoch: self.epoch,
            late: self.late,
            format: self.format,
            kind: self.kind.clone(),
            body: StoredBody::Text(self.body.get().to_owned()),
            digest: self.digest,
            origin: self.origin,
        }
    }
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-1.jsonl")
}

fn read() -> (Opening, RunKey, Vec<Line>) {
    if std::env::var_os("LOGREEL_WRITE_GOLDEN").is_some() {
        std::fs::write(path(), written(&every_kind())).unwrap();
    }
    let text = std::fs::read_to_string(path()).unwrap();
    let mut lines = text.lines();
    let opening: Opening = serde_json::from_str(lines.next().unwrap()).unwrap();
    let hex = format!("blake3:{}", opening.keys[&opening.run]);
    let key = RunKey(hex.parse::<Digest>().unwrap().0);
    (
        opening,
        key,
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
}

fn written(log: &Log) -> String {
    let key = Digest(KEY.0).hex();
    let opening = Opening {
        r#type: "log".into(),
        format: FORMAT,
        run: log.run,
        keys: [(log.run, key)].into(),
        head: log.head(),
    };
    let mut text = serde_json::to_string(&opening).unwrap() + "\n";
    for sealed in &log.sealed {
        let event = &sealed.event;
        let line = Line {
            run: log.run,
            seq: event.seq,
            at: event.at,
            caller_at: event.caller_at,
            epoch: event.epoch,
            kind: event.body.kind().to_owned(),
            late: event.late,
            format: FORMAT,
            body: RawValue::from_string(sealed.text.clone()).unwrap(),
            body_digest: KEY.body_digest(&sealed.text),
            digest: event.digest,
            origin: None,
        };
        text += &(serde_json::to_string(&line).unwrap() + "\n");
    }
    text
}

/// One run that says everything a log can say.
fn every_kind() -> Log {
    let full = RunStarted {
        context: Some(Digest::of(b"earlier")),
        dir: Some("/repo".into()),
        git: Some(Git {
            branch: Some("main".into()),
            commit: "c0ffee".into(),
            dirty: true,
        }),
        key: Some("issue-7".into()),
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        parent: Some(Parent {
            relation: Relation::Child,
            run: child(1),
            seq: Seq(4),
        }),
        provenance: Provenance {
            host: Some("box".into()),
            logreel: Some("0.1.0".into()),
            ..Provenance::default()
        },
        session: Some(Session::new("repo-42").unwrap()),
        ..started()
    };
    let mut log = Log::of(full, Epoch(1));
    let (node, key) = (Digest::of(b"node"), Some(Digest::of(b"key")));
    let keyed = StepId::from_parts(["read", "a/\"b\""])
        .unwrap()
        .inside(&step_id("fetch"));
    let large = Json::of(&"x".repeat(INLINE_MAX)).unwrap();

    log.record(phase(Phase::Planning));
    log.record(PlanMade {
        plan: payload(json!(["fetch", "pay"])),
    });
    log.at(1).record(phase(Phase::Executing));
    log.record(Turn { turn: 1 });
    log.record(MessageAdded {
        length: 2,
        node,
        previous: None,
        role: "user".into(),
        queued: None,
        redacted: 0,
    });
    log.record(asked("m1")).record(answered("m1", 40));
    log.record(asked("m2"));
    let spent = Spend {
        usd_micros: None,
        ..spend(1)
    };
    log.record(ModelFailed {
        call: call_id("m2"),
        error: cause("rate_limited"),
        spent,
        redacted: 0,
        retry_after_ms: None,
    });
    log.record(ContextCompacted {
        node: Digest::of(b"shorter"),
        previous: Some(node),
    });
    log.record(TurnFinished { turn: 1 });
    log.record(ToolCalled {
        key,
        ..called("t1", Effect::Read)
    })
    .record(returned("t1"));
    log.record(tool_failed("t2", "denied"));
    log.record(called("t3", Effect::Write))
        .record(tool_in_doubt("t3"));
    log.resolve("t3", Resolution::Failed("the page is empty".into()))
        .unwrap();
    log.at(2).record(StepStarted {
        key,
        input_digest: key,
        ..begun("fetch", Effect::Idempotent)
    });
    log.record(broke("fetch")).record(retrying("fetch"));
    let caller_at = Some(time(-60));
    let body = StepFinished {
        input_digest: key,
        attempt: 2,
        ..short("fetch", json!({"n": 1.0}))
    };
    log.command(Command::Record {
        body: body.into(),
        caller_at,
    })
    .unwrap();
    log.record(StepFinished {
        step: keyed,
        output: Payload::of(large).0,
        ..short("x", json!(0))
    });
    log.record(StepSkipped {
        reason: "nothing to do".into(),
        step: step_id("lint"),
    });
    log.record(begun("pay", Effect::Write))
        .at(1)
        .take_over()
        .record(doubtful("pay", 1));
    log.wait(waiting_in(WaitKind::InDoubt, "pay"));
    log.resolve("pay", Resolution::Returned(payload(json!("receipt"))))
        .unwrap();
    log.record(patched(
        json!([{ "op": "add", "path": "", "value": { "seen": 1 } }]),
    ));
    let data = payload(json!({ "cursor": 3 }));
    log.record(Checkpoint {
        checkpoint: "k1".into(),
        data,
        step: Some(step_id("fetch")),
    });
    log.record(CheckpointRestored {
        checkpoint: "k1".into(),
    });
    log.record(CheckpointDeleted {
        checkpoint: "k1".into(),
    });
    log.at(3).wait(WaitStarted {
        arguments: Some(payload(json!({ "cmd": "git push" }))),
        call: Some(call_id("t4")),
        deadline: Some(time(90)),
        on_deadline: Some(OnDeadline::Deny),
        prompt: Some("push?".into()),
        tool: Some("shell".into()),
        ..waiting_in(WaitKind::Approval, "publish?")
    });
    log.answer(None, true).unwrap();
    log.signal("go");
    log.outside(Outside::Say {
        text: "hurry\u{2028}\u{7f}".into(),
        by: Some("ann".into()),
    })
    .unwrap();
    log.record(ChildStarted {
        budget: Budget {
            usd_micros: Some(10),
            ..Budget::default()
        },
        child: child(2),
        detached: false,
        step: step_id("review"),
    });
    log.record(ChildFinished {
        child: child(2),
        final_state_digest: Digest::of(b"child"),
        status: TerminalStatus::Completed,
        step: step_id("review"),
        used: None,
    });
    log.outside(Outside::AddBudget {
        add: Budget {
            tokens: Some(24),
            ..Budget::default()
        },
        by: Some("ann".into()),
        child: None,
        wait: None,
    })
    .unwrap();
    let spec = payload(json!({ "name": "tester", "version": "2" }));
    log.record(SpecChanged {
        spec,
        spec_digest: Digest::of(b"spec 2"),
        spec_file: None,
    });
    let parent = Parent {
        relation: Relation::Fork,
        run: log.run,
        seq: log.head().seq,
    };
    log.push(Draft::new(RunForked {
        budget: Budget {
            wall_ms: Some(60_000),
            ..Budget::default()
        },
        changes: Vec::new(),
        digest: log.head().digest,
        forgotten: vec![step_id("fetch")],
        forgotten_calls: Vec::new(),
        input: payload(json!("again")),
        made: None,
        may_have_happened: vec!["t3".into()],
        parent,
    }))
    .unwrap();
    log.record(phase(Phase::Verifying));
    log.record(Verification::of(vec![checked(Verdict::Passed, true)]));
    log.record(OutputWritten {
        base64: Some("/w==".into()),
        redacted: 0,
        step: None,
        stream: "stdout".into(),
        text: None,
    });
    log.record(Custom {
        data: payload(json!(18_446_744_073_709_551_615_u64)),
        name: "tick".into(),
    });
    log.complete(json!({ "ok": true }));
    // Late facts: the other two ends.
    log.fail("too late");
    let final_state_digest = Digest::of(b"stamped anew");
    log.record(RunCancelled {
        final_state_digest,
        reason: Some("too late".into()),
    });
    log
}

#[test]
fn the_golden_log_of_format_1_verifies_decodes_and_folds_as_ever() {
    let (opening, key, lines) = read();
    let mut verifier = Verifier::new(&opening.run, Some(key));
    let mut events = Vec::new();
    for line in &lines {
        let record = line.record();
        verifier.check(&record).unwrap();
        assert_eq!(key.body_digest(line.body.get()), line.body_digest);
        events.push(record.decode().unwrap());
    }
    assert_eq!(verifier.finish(&opening.head), Ok(opening.head));
    let covered: BTreeSet<&str> = events.iter().map(|event| event.body.kind()).collect();
    assert_eq!(
        covered,
        Body::KINDS.iter().copied().collect(),
        "every kind is in the golden log"
    );

    let state = replay(opening.run, &events).unwrap().unwrap();
    let row = &state.row;
    let mut steps: Vec<String> = state
        .steps
        .iter()
        .map(|(step, state)| format!("{step}: {state:?}"))
        .collect();
    steps.sort();
    // A dependency of another crate may keep the order of maps as they were written.
    let mut settings = insta::Settings::clone_current();
    settings.set_sort_maps(true);
    let _sorted = settings.bind_to_scope();
    insta::assert_json_snapshot!(
        "format-1-folded",
        json!({
            "status": row.status().as_str(),
            "head": row.head,
            "epoch": row.epoch,
            "updated_at": row.updated_at,
            "ready_at": row.ready_at(),
            "facts": serde_json::to_value(&*row.facts).unwrap(),
            "pulse": row.pulse,
            "steps": steps,
        })
    );
}

/// What this build writes is still what the golden log holds, byte for byte.
#[test]
fn bodies_are_written_as_in_the_golden_log() {
    let (_, _, lines) = read();
    for line in &lines {
        let event = line.record().decode().unwrap();
        assert_eq!(
            codec::encode_body(&event.body).unwrap(),
            line.body.get(),
            "{}",
            line.kind
        );
    }
    let bodies: Vec<String> = Body::KINDS
        .iter()
        .map(|kind| {
            let line = lines.iter().find(|line| line.kind == *kind).unwrap();
            format!("{kind} {}", line.body.get())
        })
        .collect();
    insta::assert_snapshot!("bodies", bodies.join("\n"));
}

#[test]
fn keys_of_every_body_are_sorted() {
    struct Keys(Vec<String>);
    impl<'de> Deserialize<'de> for Keys {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Names;
            impl<'de> Visitor<'de> for Names {
                type Value = Keys;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("a body")
                }
                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                    let mut keys = Vec::new();
                    while let Some((key, IgnoredAny)) = map.next_entry()? {
                        keys.push(key);
                    }
                    Ok(Keys(keys))
                }
            }
            deserializer.deserialize_map(Names)
        }
    }
    for line in read().2 {
        let Keys(keys) = serde_json::from_str(line.body.get()).unwrap();
        assert!(keys.is_sorted(), "{}: {keys:?}", line.kind);
    }
}

fn record(format: u16, kind: &str, body: &str) -> Record {
    let run = RunId::from_bytes([1; 16]);
    let header = Header {
        format,
        seq: Seq::FIRST,
        at: time(0),
        caller_at: None,
        epoch: Epoch(1),
        kind,
        late: false,
        body_digest: KEY.body_digest(body),
    };
    let record = Record {
        seq: Seq::FIRST,
        at: time(0),
        caller_at: None,
        epoch: Epoch(1),
        late: false,
        format,
        kind: kind.to_owned(),
        body: StoredBody::Text(body.to_owned()),
        digest: header.digest(&origin(&run).digest),
        origin: None,
    };
    Verifier::new(&run, Some(KEY))
        .check(&record)
        .expect("the chain holds in every format");
    record
}

#[test]
fn an_older_format_is_upcast_on_reading_and_its_chain_holds() {
    let digest = Digest::of(b"x");
    let text = format!(r#"{{"final_state_digest":"{digest}","message":"enough"}}"#);
    let old = record(0, "run.cancelled", &text);
    let Body::RunCancelled(cancelled) = old.decode().unwrap().body else {
        panic!("{old:?}")
    };
    assert_eq!(cancelled.reason.as_deref(), Some("enough"));
    assert_eq!(old.body, StoredBody::Text(text), "never written back");
}

#[test]
fn a_newer_format_is_refused_by_name_with_both_versions() {
    let newer = record(FORMAT + 1, "custom", r#"{"data":null,"name":"x"}"#);
    let error = newer.decode().unwrap_err().to_string();
    assert!(
        error.contains("format 2") && error.contains("up to 1"),
        "{error}"
    );
    let error = codec::decode_body(FORMAT + 1, "custom", "{}")
        .unwrap_err()
        .to_string();
    assert!(error.contains('2') && error.contains('1'), "{error}");
}

#[test]
fn a_body_that_is_not_what_its_kind_says_is_named() {
    let wrong = record(FORMAT, "custom", r#"{"data":null}"#);
    let error = wrong.decode().unwrap_err();
    assert!(
        matches!(&error, DecodeError::Body { kind, .. } if kind == "custom"),
        "{error}"
    );
}

/// The header's text is what an implementation in another language must write.
#[test]
fn the_header_is_canonical() {
    let log = every_kind();
    for (sealed, record) in log.sealed.iter().zip(log.records()) {
        let header = Header {
            format: record.format,
            seq: record.seq,
            at: record.at,
            caller_at: record.caller_at,
            epoch: record.epoch,
            kind: &record.kind,
            late: record.late,
            body_digest: KEY.body_digest(&sealed.text),
        };
        let text = header.canonical();
        let value = serde_json::from_str(&text).unwrap();
        assert_eq!(meaning::canonical(&value).unwrap(), text);
    }
    let strange = Header {
        format: 1,
        seq: Seq(1),
        at: time(0),
        caller_at: Some(time(1)),
        epoch: Epoch(0),
        kind: "odd \"kind\"\n\u{1f}é",
        late: true,
        body_digest: Digest::of(b""),
    };
    let value = serde_json::from_str(&strange.canonical()).unwrap();
    assert_eq!(meaning::canonical(&value).unwrap(), strange.canonical());
    let again = Sealer::start(&log.run, KEY);
    assert_eq!(again.head, origin(&log.run));
}

/// docs/log-format.md, followed to the letter with nothing but BLAKE3 and a JSON parser.
#[test]
fn a_verifier_written_from_the_page_agrees() {
    #[derive(Deserialize)]
    struct Stored<'a> {
        #[serde(borrow)]
        body: &'a RawValue,
    }
    let text = std::fs::read_to_string(path()).unwrap();
    let mut lines = text.lines();
    let opening: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    let run = opening["run"].as_str().unwrap();
    let key: [u8; 32] = *blake3::Hash::from_hex(opening["keys"][run].as_str().unwrap())
        .unwrap()
        .as_bytes();
    let shown = |hash: blake3::Hash| format!("blake3:{}", hash.to_hex());
    let raw = |text: &Value| {
        *blake3::Hash::from_hex(&text.as_str().unwrap()[7..])
            .unwrap()
            .as_bytes()
    };

    let mut previous = blake3::hash(format!("logreel.run.v1\0{run}").as_bytes());
    let mut results: Vec<(&str, String, [u8; 32])> = Vec::new();
    let (mut state, mut verification) = (Value::Null, Value::Null);
    let mut ended = None;
    for line in lines {
        let event: Value = serde_json::from_str(line).unwrap();
        let Stored { body: stored } = serde_json::from_str(line).unwrap();
        let body_digest = shown(blake3::keyed_hash(&key, stored.get().as_bytes()));
        let header = format!(
            r#"{{"at":{},"body_digest":"{body_digest}","caller_at":{},"epoch":{},"format":{},"kind":{},"late":{},"seq":{}}}"#,
            event["at"],
            event["caller_at"],
            event["epoch"],
            event["format"],
            event["kind"],
            event["late"],
            event["seq"],
        );
        previous = blake3::hash(&[previous.as_bytes().as_slice(), header.as_bytes()].concat());
        assert_eq!(
            shown(previous),
            event["digest"].as_str().unwrap(),
            "event {}",
            event["seq"]
        );

        let body = &event["body"];
        let step = || match &body["step"] {
            Value::String(name) => json!([name]).to_string(),
            parts => parts.to_string(),
        };
        let meaning = |value: &Value| match value.get("blob") {
            Some(blob) => raw(blob),
            None => *blake3::hash(meaning::canonical(value).unwrap().as_bytes()).as_bytes(),
        };
        match event["kind"].as_str().unwrap() {
            _ if ended.is_some() => {}
            "step.finished" => results.push(("step", step(), meaning(&body["output"]))),
            "step.resolved" => {
                if let Some(output) = body["resolution"].get("returned") {
                    results.push(("step", step(), meaning(output)));
                }
            }
            "child.finished" if body["status"] == "completed" => {
                results.push(("child", step(), raw(&body["final_state_digest"])));
            }
            "wait.ended" => {
                let said = ["answered", "signalled", "timed_out"].map(Value::from);
                if !body["step"].is_null() && said.contains(&body["outcome"]) {
                    let what = match body["approved"].as_bool() {
                        None => "wait",
                        Some(true) => "approved",
                        Some(false) => "denied",
                    };
                    results.push((what, step(), meaning(&body["value"])));
                }
            }
            "run.forked" => {
                let forgotten: Vec<String> = body["forgotten"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|step| json!([step]).to_string())
                    .collect();
                results.retain(|(_, step, _)| !forgotten.contains(step));
            }
            "state.patched" => state = body["patch"][0]["value"].clone(),
            "verification.finished" => verification = body.clone(),
            "run.completed" => ended = Some(body.clone()),
            _ => {}
        }
    }
    assert_eq!(shown(previous), opening["head"]["digest"].as_str().unwrap());

    let mut lanes = [0_u64; 4];
    for (what, step, digest) in results {
        let bytes = [what.as_bytes(), b"\0", step.as_bytes(), b"\0", &digest].concat();
        let hash = blake3::hash(&bytes);
        for (lane, word) in lanes.iter_mut().zip(hash.as_bytes().chunks_exact(8)) {
            *lane = lane.wrapping_add(u64::from_le_bytes(word.try_into().unwrap()));
        }
    }
    let results: String = lanes.iter().map(|lane| format!("{lane:016x}")).collect();
    let ended = ended.unwrap();
    let meaning = json!({
        "cause": null,
        "output": ended["output"],
        "results": results,
        "state": state,
        "status": "completed",
        "verification": verification,
    });
    let digest = blake3::hash(meaning::canonical(&meaning).unwrap().as_bytes());
    assert_eq!(shown(digest), ended["final_state_digest"].as_str().unwrap());
}
