//! Taking runs along, checking them, and taking them away: with the real binary, on real files.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers of tests may panic, as tests do; not all are used here"
)]

mod common;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use common::project::Project;
use common::{DONE, FAILED, Fixture, LARGE, QUEUED, Ran, WAITING, run_id};
use logreel::core::chain::Header;
use logreel::core::{Epoch, RunKey};
use logreel::{Digest, Seq, Timestamp};
use rusqlite::{Connection, params};
use serde_json::{Value, json};

/// A copy of the six runs, whose store nobody has open.
fn copy_of(fixture: &Fixture) -> Fixture {
    let copy = Fixture::empty();
    for suffix in ["", "-wal"] {
        let name = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
        if name(&fixture.store).exists() {
            std::fs::copy(name(&fixture.store), name(&copy.store)).unwrap();
        }
    }
    copy
}

fn id_of(conn: &Connection, n: u8) -> i64 {
    let sql = "SELECT id FROM runs WHERE run = ?1";
    conn.query_row(sql, [run_id(n).to_string()], |row| row.get(0))
        .unwrap()
}

fn head(fixture: &Fixture, n: u8) -> (u64, String) {
    let ran = fixture.run(&["show", &run_id(n).to_string(), "--json"]);
    let run: Value = serde_json::from_str(&ran.out).unwrap();
    let digest = run["head_digest"].as_str().unwrap().to_owned();
    (run["event_count"].as_u64().unwrap(), digest)
}

/// Every way in which someone with `sqlite3` can change a log, and the event that `verify` then names.
#[test]
fn verify_names_the_event_whatever_was_done_to_it() {
    let whole = Fixture::full();
    let (last, _) = head(&whole, DONE);
    assert!(last >= 6, "{last}");
    let of = format!("run = (SELECT id FROM runs WHERE run = '{}')", run_id(DONE));
    let log = whole.run(&["log", "00000001", "--json"]).out;
    let body_digests: Vec<String> = log
        .lines()
        .map(|line| {
            let event: Value = serde_json::from_str(line).unwrap();
            let digest = event["body_digest"].as_str().unwrap();
            digest.trim_start_matches("blake3:").to_owned()
        })
        .collect();
    let mut cases: Vec<(String, u64, String)> = Vec::new();
    for seq in 1..=last {
        let at = format!("WHERE seq = {seq} AND {of}");
        let mut case = |what: &str, sql: String| cases.push((what.to_owned(), seq, sql));
        case("kind", format!("UPDATE events SET kind = 'custom' {at}"));
        case(
            "body",
            format!("UPDATE events SET body = replace(body, '{{\"', '{{ \"') {at}"),
        );
        case("time", format!("UPDATE events SET at = at + 1 {at}"));
        case(
            "caller's time",
            format!("UPDATE events SET caller_at = 7 {at}"),
        );
        case("epoch", format!("UPDATE events SET epoch = epoch + 1 {at}"));
        case("late", format!("UPDATE events SET late = 1 - late {at}"));
        case("format", format!("UPDATE events SET format = 0 {at}"));
        case(
            "digest",
            format!("UPDATE events SET digest = zeroblob(32) {at}"),
        );
        case(
            "erased",
            format!("UPDATE events SET body = NULL, body_digest = zeroblob(32) {at}"),
        );
        // As `erase` does it, so that the chain holds; but the run was not erased.
        case(
            "body taken out",
            format!(
                "UPDATE events SET body = NULL, body_digest = X'{}' {at}",
                body_digests[seq as usize - 1]
            ),
        );
        case("deletion", format!("DELETE FROM events {at}"));
        // Whatever follows moves up by one, and an event like the one before it takes the place.
        case(
            "insertion",
            format!(
                "UPDATE events SET seq = -seq - 1 WHERE seq >= {seq} AND {of};
                 UPDATE events SET seq = -seq WHERE seq < 0 AND {of};
                 INSERT INTO events SELECT (SELECT max(pos) + 1 FROM events), run, {seq}, kind, at,
                   caller_at, epoch, late, format, NULL, NULL, digest, body_digest, body
                 FROM events WHERE seq = {other} AND {of}",
                other = if seq == 1 { 3 } else { seq - 1 }
            ),
        );
        if seq < last {
            let next = seq + 1;
            case(
                "order",
                format!(
                    "UPDATE events SET seq = -1 {at};
                     UPDATE events SET seq = {seq} WHERE seq = {next} AND {of};
                     UPDATE events SET seq = {next} WHERE seq = -1 AND {of}"
                ),
            );
        }
    }
    let mut tried = 0;
    for (what, seq, sql) in cases {
        let copy = copy_of(&whole);
        let conn = Connection::open(&copy.store).unwrap();
        conn.execute_batch(&sql)
            .unwrap_or_else(|error| panic!("{what} {seq}: {error}"));
        drop(conn);
        let ran = copy.run(&["verify", "00000001", "--json"]);
        let verdict: Value = serde_json::from_str(&ran.out)
            .unwrap_or_else(|_| panic!("{what} of {seq}: {}{}", ran.out, ran.err));
        assert_eq!(ran.code, 1, "{what} of event {seq}: {verdict}");
        assert_eq!(
            verdict["seq"],
            json!(seq),
            "{what} of event {seq}: {verdict}"
        );
        tried += 1;
    }
    assert!(tried > 60, "{tried}");

    // A blob, and a row that is not the fold of its log.
    for (sql, run, said) in [
        (
            "UPDATE blobs SET bytes = CAST('short' AS BLOB)",
            LARGE,
            "blob",
        ),
        ("DELETE FROM blobs", LARGE, "missing"),
        (
            "UPDATE runs SET facts = replace(facts, 'All good', 'All bad')",
            DONE,
            "fold",
        ),
        ("UPDATE runs SET status = 'failed'", DONE, "`status`"),
        ("UPDATE runs SET session = 'other'", DONE, "`session`"),
        ("UPDATE runs SET agent = 'someone'", DONE, "`agent`"),
        (
            "UPDATE runs SET final_state_digest = zeroblob(32)",
            DONE,
            "`final_state_digest`",
        ),
        // Behind the mark of an erasure nothing is left to compare with: so nothing else may be there.
        (
            "UPDATE runs SET erased = 1, facts = replace(facts, 'All good', 'All bad')",
            DONE,
            "event 1: its body is there",
        ),
    ] {
        let copy = copy_of(&whole);
        Connection::open(&copy.store)
            .unwrap()
            .execute(sql, [])
            .unwrap();
        let ran = copy.run(&["verify", &run_id(run).to_string()]);
        assert!(
            ran.code == 1 && ran.out.contains(said),
            "{sql}: {}",
            ran.out
        );
        let names_event = run == LARGE || sql.contains("erased");
        assert_eq!(ran.out.contains("event "), names_event, "{}", ran.out);
    }
    assert_eq!(whole.run(&["verify"]).code, 0, "the original holds");
}

/// Who rewrites the end of a log and recomputes every digest is found by the head that someone noted.
#[test]
fn a_rewritten_end_is_found_by_a_head_that_was_kept_elsewhere() {
    let fixture = Fixture::full();
    let (last, kept) = head(&fixture, DONE);
    let conn = Connection::open(&fixture.store).unwrap();
    let id = id_of(&conn, DONE);
    let key: Vec<u8> = conn
        .query_row("SELECT key FROM runs WHERE id = ?1", [id], |row| row.get(0))
        .unwrap();
    let key = RunKey(key.try_into().unwrap());
    let previous: Vec<u8> = conn
        .query_row(
            "SELECT digest FROM events WHERE run = ?1 AND seq = ?2",
            params![id, last.cast_signed() - 1],
            |row| row.get(0),
        )
        .unwrap();
    let (kind, at, epoch, body): (String, i64, i64, String) = conn
        .query_row(
            "SELECT kind, at, epoch, body FROM events WHERE run = ?1 AND seq = ?2",
            params![id, last.cast_signed()],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )
        .unwrap();
    let (was, moved) = (
        Timestamp::from_micros(at),
        Timestamp::from_micros(at + 1_000_000),
    );
    let header = Header {
        format: 1,
        seq: Seq(last),
        at: moved,
        caller_at: None,
        epoch: Epoch(epoch.cast_unsigned()),
        kind: &kind,
        late: false,
        body_digest: key.body_digest(&body),
    };
    let digest = header.digest(&Digest::from_slice(&previous).unwrap());
    conn.execute(
        "UPDATE events SET at = ?3, digest = ?4 WHERE run = ?1 AND seq = ?2",
        params![
            id,
            last.cast_signed(),
            moved.as_micros(),
            digest.as_bytes().as_slice()
        ],
    )
    .unwrap();
    conn.execute(
        "UPDATE runs SET updated_at = ?2, head_digest = ?3, facts = replace(facts, ?4, ?5)
         WHERE id = ?1",
        params![
            id,
            moved.as_micros(),
            digest.as_bytes().as_slice(),
            format!("\"at\":\"{was}\""),
            format!("\"at\":\"{moved}\"")
        ],
    )
    .unwrap();
    drop(conn);
    let ran = fixture.run(&["verify", "00000001"]);
    assert_eq!(ran.code, 0, "by itself it holds: {}", ran.out);
    let ran = fixture.run(&["verify", "00000001", "--head", &kept]);
    assert!(ran.code == 1 && ran.out.contains(&kept), "{}", ran.out);
    let file = fixture.folder.path().join("run.jsonl");
    let file = file.to_str().unwrap();
    assert_eq!(fixture.run(&["export", "00000001", "-o", file]).code, 0);
    assert_eq!(fixture.run(&["verify", file]).code, 0);
    assert_eq!(fixture.run(&["verify", file, "--head", &kept]).code, 1);
}

/// Whatever a run is, out of one store, into another and out again it is the same to the byte; each file
/// holds by itself, and a second import has nothing to do.
#[test]
fn a_log_is_the_same_to_the_byte_after_a_trip() {
    let fixture = Fixture::full();
    let other = Fixture::empty();
    for format in ["jsonl", "reel"] {
        for n in [DONE, FAILED, WAITING, LARGE, QUEUED] {
            let run = run_id(n).to_string();
            let file = other.folder.path().join(format!("{n}.{format}"));
            let name = file.to_str().unwrap();
            let ran = fixture.run(&["export", &run, "--format", format, "-o", name]);
            assert_eq!(ran.code, 0, "{}", ran.err);
            let ran = ran_without_store(&["verify", name, "--json"]);
            let verdict: Value = serde_json::from_str(&ran.out).unwrap();
            let (events, digest) = head(&fixture, n);
            assert_eq!(
                (ran.code, &verdict["events"], &verdict["head_digest"]),
                (0, &json!(events), &json!(digest)),
                "{}",
                ran.out
            );
            let ran = other.run(&["import", name]);
            assert_eq!((ran.code, ran.out.trim()), (0, run.as_str()), "{}", ran.err);
            let again = other.run(&["import", name]);
            assert!(
                again.code == 0 && again.err.contains("nothing to do"),
                "{}",
                again.err
            );
            let out = |fixture: &Fixture| {
                let mut command = fixture.command();
                let output = command
                    .args(["export", &run, "--format", format])
                    .output()
                    .unwrap();
                assert_eq!(output.status.code(), Some(0));
                output.stdout
            };
            assert!(out(&fixture) == out(&other), "{format} of {n} differs");
            assert!(out(&other) == std::fs::read(&file).unwrap());
        }
    }
    let ran = other.run(&["verify"]);
    assert_eq!(ran.code, 0, "{}", ran.out);
    let show = |fixture: &Fixture| {
        let ran = fixture.run(&["show", "00000001", "--json"]);
        serde_json::from_str::<Value>(&ran.out).unwrap()
    };
    assert_eq!(show(&fixture), show(&other));
    // Nothing is written over, and what comes on stdin is as good as a file.
    let file = other.folder.path().join("1.jsonl");
    let name = file.to_str().unwrap();
    assert_eq!(fixture.run(&["export", "00000001", "-o", name]).code, 5);
    let third = Fixture::empty();
    let bytes = std::fs::read(&file).unwrap();
    let mut command = third.command();
    let ran = common::ran(command.args(["import", "-"]).write_stdin(bytes));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(third.run(&["verify"]).code, 0);
}

fn ran_without_store(args: &[&str]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_logreel"));
    common::ran(
        command
            .current_dir(folder.path())
            .env_remove("LOGREEL_STORE")
            .env("HOME", "/nowhere")
            .args(args),
    )
}

/// A workflow that stops in its second step until someone writes to `gate`, once it has told so.
const GATED: &str = r#"
name = "trip"
[[step]]
id = "first"
run = "echo '[1,\n 2]'"
[[step]]
id = "second"
needs = ["first"]
run = "if [ ! -e go ]; then touch go; echo x > told; read line < gate; fi; echo 2"
[[step]]
id = "big"
needs = ["second"]
run = "head -c 100000 /dev/zero | tr '\\0' 'b'"
[[step]]
id = "third"
needs = ["big"]
effect = "write"
run = "echo ran >> third.txt; echo 3"
input = "{{ steps.second.output }}"
"#;

/// A project whose run was killed in its second step; gives the run.
fn killed() -> (Project, String) {
    let project = Project::new(GATED);
    for pipe in ["told", "gate"] {
        project.pipe(pipe);
    }
    let run = run_id(9).to_string();
    let running = project.start(
        &["run", "w.toml", "hello", "--id", &run, "--session", "s"],
        "first",
    );
    assert_eq!(project.read("told"), "x\n");
    running.kill();
    (project, run)
}

/// What was left behind of the killed step goes.
fn let_go(project: &Project) {
    std::fs::write(project.path("gate"), "x\n").unwrap();
}

fn wipe(project: &Project) {
    std::fs::remove_dir_all(project.path(".logreel")).unwrap();
}

/// The undisturbed run's final state.
fn undisturbed() -> Value {
    let project = Project::new(GATED);
    project.write("go", "");
    let ran = project.run(&["run", "w.toml", "hello", "-q"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    project.json(&["show", "@last"])["final_state_digest"].clone()
}

#[test]
fn a_killed_run_goes_on_from_a_file_after_its_store_is_gone() {
    let digest = undisturbed();
    for format in ["jsonl", "reel"] {
        let (project, run) = killed();
        let file = format!("run.{format}");
        let ran = project.run(&["export", &run, "--format", format, "-o", &file]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        wipe(&project);
        let ran = project.run(&["import", &file]);
        assert!(
            ran.code == 0 && ran.err.contains("--take-over"),
            "{}",
            ran.err
        );
        assert_eq!(project.run(&["verify"]).code, 0);

        // Nobody touches it before it is taken over.
        let shown = project.json(&["show", &run]);
        assert_eq!(
            (&shown["read_only"], &shown["status"]),
            (&json!(true), &json!("executing"))
        );
        assert_eq!(project.json(&["ls"])["items"][0]["read_only"], json!(true));
        assert!(project.run(&["ls"]).out.contains("read-only"));
        for args in [
            vec!["resume", &run],
            vec!["cancel", &run],
            vec!["pause", &run],
            vec!["signal", &run, "go"],
            vec!["answer", &run, "--approve"],
        ] {
            let ran = project.run(&[args.clone(), vec!["--json"]].concat());
            let error: Value = serde_json::from_str(&ran.err).unwrap();
            assert_eq!(
                (ran.code, &error["error"]["kind"]),
                (5, &json!("not_applicable")),
                "{args:?}: {}",
                ran.err
            );
            assert!(ran.err.contains("--take-over"), "{args:?}: {}", ran.err);
        }
        let ran = project.run(&["resume"]);
        assert!(ran.err.contains("no run is ready"), "{}", ran.err);

        let ran = project.run(&["resume", &run, "--take-over"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let shown = project.json(&["show", &run]);
        assert_eq!(shown["final_state_digest"], digest, "{format}");
        assert_eq!(
            (&shown["status"], &shown["read_only"]),
            (&json!("completed"), &json!(false))
        );
        assert_eq!(shown["session"], json!("s"));
        assert_eq!(project.read("third.txt"), "ran\n");
        assert_eq!(project.run(&["verify"]).code, 0);
        let_go(&project);
    }
}

/// A store elsewhere, in the same folder, so that the steps find their files.
fn elsewhere(project: &Project, args: &[&str]) -> Ran {
    let mut command = project.command();
    common::ran(command.args(args).args(["--store", "elsewhere.db"]))
}

#[test]
fn a_moved_run_ends_here_and_goes_on_there() {
    let (project, run) = killed();
    let ran = project.run(&["export", &run, "--move"]);
    assert_eq!(ran.code, 2, "a move needs a file: {}", ran.err);
    let ran = project.run(&[
        "export", &run, "--format", "reel", "-o", "run.reel", "--move",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let shown = project.json(&["show", &run]);
    assert_eq!(
        (&shown["status"], &shown["reason"]),
        (&json!("cancelled"), &json!("moved"))
    );
    let ran = elsewhere(&project, &["import", "run.reel"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = elsewhere(&project, &["resume", &run, "--take-over"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = elsewhere(&project, &["log", &run, "--kind", "run.cancelled"]);
    assert_eq!(ran.out, "", "the end here is not in the file");
    // It cannot come home to what ended: both are told apart at the end of the one here.
    let ran = elsewhere(&project, &["export", &run, "-o", "back.jsonl"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = project.run(&["import", "back.jsonl", "--json"]);
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    let seq = shown["event_count"].as_u64().unwrap();
    assert_eq!(
        (ran.code, &error["error"]["kind"]),
        (5, &json!("conflict")),
        "{}",
        ran.err
    );
    assert!(
        ran.err.contains(&format!("event {seq}")) && ran.err.contains("moved"),
        "{}",
        ran.err
    );
    // Once what is left of it here is gone, it can.
    let ran = project.run(&["prune", "--status", "cancelled"]);
    assert_eq!((ran.code, ran.out.trim()), (0, run.as_str()), "{}", ran.err);
    let ran = project.run(&["import", "back.jsonl"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(project.json(&["show", &run])["status"], json!("completed"));
    let ran = project.run(&["export", &run, "-o", "again.jsonl", "--move"]);
    assert_eq!(ran.code, 5, "it has ended: {}", ran.err);
    assert!(!project.path("again.jsonl").exists());
    let_go(&project);
}

/// What was moved goes on elsewhere, and everyone who asks here is told so. A part of a run is not moved.
#[test]
fn a_moved_run_says_where_it_goes_on_and_a_child_is_not_moved() {
    let project = Project::new(
        "name = \"parent\"\n[[step]]\nid = \"below\"\nworkflow = \"child.toml\"\ninput = \"x\"\n",
    );
    project.write(
        "child.toml",
        "name = \"child\"\n[[step]]\nid = \"ask\"\nwait = \"approval\"\nprompt = \"go on?\"\n",
    );
    assert_eq!(project.run(&["run", "w.toml", "-q"]).code, 3);
    let id = |agent: &str| {
        let listed = project.json(&["ls", "--agent", agent]);
        listed["items"][0]["id"].as_str().unwrap().to_owned()
    };
    let (parent, child) = (id("parent"), id("child"));
    let export = [
        "export", &child, "--format", "reel", "-o", "c.reel", "--move",
    ];
    let ran = project.run(&export);
    assert_eq!(ran.code, 5, "{}", ran.err);
    assert!(ran.err.contains(&parent), "{}", ran.err);
    assert!(!project.path("c.reel").exists());
    let ran = project.run(&["answer", &child, "--approve", "--resume", "-q"]);
    assert_eq!(ran.code, 0, "it can still go on here: {}", ran.err);

    let ran = project.run(&["run", "child.toml", "-q"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    let run = id("child");
    let export = ["export", &run, "--format", "reel", "-o", "r.reel", "--move"];
    assert_eq!(project.run(&export).code, 0);
    for verb in ["resume", "retry"] {
        let ran = project.run(&[verb, &run]);
        assert_eq!(ran.code, 5, "{}", ran.err);
        assert!(ran.err.contains("moved to another store"), "{}", ran.err);
    }
    let retried = project.run(&["retry", &run, "--yes", "-q"]);
    assert_eq!(retried.code, 3, "{}", retried.err);
}

/// Tool calls are in no checkpoint, so an agent has none: what it wrote would be written again.
#[test]
fn an_agent_has_no_checkpoint() {
    let project = Project::new(
        "name = \"asker\"\nmodel = \"scripted/a.jsonl\"\ntools = [\"pub\", \"ask\"]\n[policy]\n\
         allow = [\"pub\"]\nask = [\"ask\"]\n[tool.pub]\ndescription = \"publishes\"\n\
         run = \"cat >> published; echo >> published\"\n[tool.ask]\ndescription = \"asks\"\nrun = \"echo\"\n",
    );
    let call = |name: &str| json!({"tool_calls": [{"name": name, "arguments": {}}]});
    let answers = format!(
        "{}\n{}\n{}\n",
        call("pub"),
        call("ask"),
        json!({"text": "done"})
    );
    project.write("a.jsonl", &answers);
    let ran = project.run(&["run", "w.toml", "go", "-q"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    let run = project.json(&["show", "@last"])["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let ran = project.run(&[
        "export",
        &run,
        "--format",
        "checkpoint",
        "-o",
        "c.json",
        "--json",
    ]);
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(
        (ran.code, &error["error"]["kind"]),
        (5, &json!("not_applicable"))
    );
    assert!(ran.err.contains("--format reel"), "{}", ran.err);
    assert!(!project.path("c.json").exists());
    // A reel has the calls, and goes on without the write.
    let reel = ["export", &run, "--format", "reel", "-o", "r.reel", "--move"];
    assert_eq!(project.run(&reel).code, 0);
    assert_eq!(elsewhere(&project, &["import", "r.reel"]).code, 0);
    assert_eq!(
        elsewhere(&project, &["resume", &run, "--take-over", "-q"]).code,
        3
    );
    let ran = elsewhere(&project, &["answer", &run, "--approve", "--resume", "-q"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(project.read("published").lines().count(), 1);
}

#[test]
fn an_import_forwards_what_is_behind_and_refuses_what_went_another_way() {
    let (project, run) = killed();
    let ran = project.run(&["export", &run, "-o", "early.jsonl"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(elsewhere(&project, &["import", "early.jsonl"]).code, 0);
    assert_eq!(
        elsewhere(&project, &["resume", &run, "--take-over", "-q"]).code,
        0
    );
    let ran = elsewhere(&project, &["export", &run, "-o", "late.jsonl"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let before = project.json(&["show", &run]);
    let ran = project.run(&["import", "late.jsonl", "--json"]);
    let line: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (ran.code, &line["outcome"]),
        (0, &json!("forwarded")),
        "{}",
        ran.err
    );
    assert_eq!(project.json(&["show", &run])["status"], json!("completed"));
    let ran = project.run(&["import", "early.jsonl"]);
    assert!(
        ran.code == 0 && ran.err.contains("nothing to do"),
        "{}",
        ran.err
    );
    assert_eq!(project.run(&["verify"]).code, 0);

    // A third store goes its own way from the same place.
    let third = |args: &[&str]| {
        let mut command = project.command();
        common::ran(command.args(args).args(["--store", "third.db"]))
    };
    assert_eq!(third(&["import", "early.jsonl"]).code, 0);
    assert_eq!(third(&["resume", &run, "--take-over", "-q"]).code, 0);
    let ran = third(&["import", "late.jsonl", "--json"]);
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    let seq = before["event_count"].as_u64().unwrap() + 1;
    assert_eq!(
        (ran.code, &error["error"]["kind"]),
        (5, &json!("conflict")),
        "{}",
        ran.err
    );
    assert!(ran.err.contains(&format!("event {seq} ")), "{}", ran.err);
    let_go(&project);
}

/// A parent comes with its children, goes on with them, and is not moved while they live.
#[test]
fn a_reel_has_the_children_that_a_run_waits_for() {
    let project = Project::new(
        "name = \"parent\"\n[[step]]\nid = \"below\"\nworkflow = \"child.toml\"\ninput = \"x\"\n",
    );
    project.write(
        "child.toml",
        "name = \"child\"\n[[step]]\nid = \"ask\"\nwait = \"approval\"\nprompt = \"go on?\"\n\
         [[step]]\nid = \"done\"\nneeds = [\"ask\"]\nrun = \"echo 7\"\n",
    );
    let ran = project.run(&["run", "w.toml", "-q"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    let run = project.json(&["ls"])["items"][1]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(project.json(&["show", &run])["parent"].is_null());
    let ran = project.run(&[
        "export", &run, "--format", "reel", "-o", "no.reel", "--move",
    ]);
    assert!(
        ran.code == 5 && !project.path("no.reel").exists(),
        "{}",
        ran.err
    );
    let ran = project.run(&["export", &run, "--format", "reel", "-o", "run.reel"]);
    assert!(ran.code == 0 && ran.err.contains("2 runs"), "{}", ran.err);
    let verified = project.run(&["verify", "run.reel"]);
    assert_eq!(
        (verified.code, verified.out.lines().count()),
        (0, 2),
        "{}",
        verified.out
    );
    wipe(&project);
    let ran = project.run(&["import", "run.reel"]);
    assert_eq!((ran.code, ran.out.lines().count()), (0, 2), "{}", ran.err);
    let ran = project.run(&["resume", &run, "--take-over", "-q"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    let ran = project.run(&["answer", &run, "--approve", "--resume", "-q"]);
    assert_eq!((ran.code, ran.out.trim()), (0, "7"), "{}", ran.err);
}

/// No byte of what an erased run held is in any file beside the store, and what is left still holds.
#[test]
fn after_an_erase_no_file_of_the_store_has_a_byte_of_it() {
    let spec = r#"
name = "leaky"
[[step]]
id = "small"
run = "cat; echo ' and zebrafish-small'"
input = "{{ input }}"
[[step]]
id = "large"
needs = ["small"]
run = "i=0; while [ $i -lt 9000 ]; do echo zebrafish-large-$i; i=$((i+1)); done"
[[step]]
id = "fails"
needs = ["large"]
run = "echo zebrafish-error >&2; [ -e fine ]"
"#;
    let project = Project::new(spec);
    let start = |key: &str, input: &str| {
        let ran = project.run(&[
            "run",
            "w.toml",
            input,
            "-q",
            "--key",
            key,
            "--label",
            "zebrafish-label=x",
        ]);
        (
            ran.code,
            project.json(&["ls"])["items"][0]["id"]
                .as_str()
                .unwrap()
                .to_owned(),
        )
    };
    // Others before, between and after, and some of them deleted: SQLite moves rows for that.
    let mut others = Vec::new();
    for n in 0..3 {
        others.push(start(&format!("before-{n}"), &format!("ordinary {n}")).1);
    }
    let (code, run) = start("mine", "a zebrafish-input");
    assert_eq!(code, 1);
    let ran = project.run(&["retry", &run, "-q"]);
    assert_eq!(ran.code, 1);
    let retry = project.json(&["ls"])["items"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    project.write("fine", "");
    let (code, other) = start("other", "unrelated");
    assert_eq!(code, 0);
    let found = |what: &str| -> Vec<String> {
        let mut names = Vec::new();
        let mut folders = vec![project.path(".logreel")];
        while let Some(folder) = folders.pop() {
            for file in std::fs::read_dir(folder).unwrap().flatten() {
                if file.path().is_dir() {
                    folders.push(file.path());
                    continue;
                }
                let bytes = std::fs::read(file.path()).unwrap();
                if bytes.windows(what.len()).any(|it| it == what.as_bytes()) {
                    names.push(file.path().display().to_string());
                }
            }
        }
        names
    };
    assert!(!found("zebrafish-input").is_empty() && !found("zebrafish-large-77").is_empty());
    let ran = project.run(&["erase", &run, "--json"]);
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(
        (ran.code, &error["error"]["kind"]),
        (5, &json!("not_applicable"))
    );
    assert!(
        ran.err.contains(&retry) && ran.err.contains("--with-forks"),
        "{}",
        ran.err
    );
    let ran = project.run(&["erase", &run, "--with-forks"]);
    assert_eq!((ran.code, ran.out.lines().count()), (0, 2), "{}", ran.err);
    // The large output and the label are what the others have too; they go next.
    assert_eq!(found("zebrafish-input"), Vec::<String>::new());
    for kept in ["zebrafish-small", "zebrafish-large-77", "zebrafish-label"] {
        assert!(!found(kept).is_empty(), "{kept}: others have it too");
    }
    for run in others.iter().chain([&other]) {
        let log = project.run(&["log", run, "--json"]).out;
        assert!(
            log.contains("zebrafish-small"),
            "what others said is theirs"
        );
        assert_eq!(project.run(&["verify", run]).code, 0);
    }
    for run in others.iter().chain([&other]) {
        let ran = project.run(&["erase", run, "-q"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    for word in ["zebrafish", "ordinary", "unrelated"] {
        assert_eq!(found(word), Vec::<String>::new(), "{word}");
    }
    let ran = project.run(&["verify"]);
    assert!(
        ran.code == 0 && ran.out.contains("fold is gone"),
        "{}",
        ran.out
    );
    let shown = project.json(&["show", &run]);
    assert_eq!(
        (&shown["erased"], &shown["status"]),
        (&json!(true), &json!("failed"))
    );
    assert_eq!(
        (&shown["input"], &shown["labels"]),
        (&Value::Null, &json!({}))
    );
    assert!(shown["event_count"].as_u64().unwrap() > 3);
    for args in [&["show", &run][..], &["log", &run], &["ls"], &["doctor"]] {
        assert_eq!(project.run(args).code, 0, "{args:?}");
    }
    // What is left can be taken along and checked, and not more.
    assert_eq!(project.run(&["export", &run, "-o", "erased.jsonl"]).code, 0);
    let ran = project.run(&["verify", "erased.jsonl"]);
    assert!(
        ran.code == 0 && ran.out.contains("fold is gone"),
        "{}",
        ran.out
    );
    assert_eq!(elsewhere(&project, &["import", "erased.jsonl"]).code, 5);
    for args in [&["retry", &run][..], &["resume", &run]] {
        assert_eq!(project.run(args).code, 5, "{args:?}");
    }
}

#[test]
fn prune_takes_what_fits_and_nobody_needs() {
    let project = Project::new("name = \"w\"\n[[step]]\nid = \"one\"\nrun = \"[ -e fine ]\"\n");
    let start = |label: &str| {
        let ran = project.run(&["run", "w.toml", "-q", "--label", label]);
        assert!(ran.code == 0 || ran.code == 1, "{}", ran.err);
        project.json(&["ls"])["items"][0]["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let failed = start("kind=a");
    project.write("fine", "");
    let ran = project.run(&["retry", &failed, "-q"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let retried = project.json(&["ls"])["items"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let (done, newest) = (start("kind=b"), start("kind=b"));
    let ids = |ran: &Ran| ran.out.lines().map(str::to_owned).collect::<Vec<_>>();
    for (args, code) in [
        (&["prune"][..], 2),
        (&["prune", "--status", "waiting"], 2),
        (&["prune", "--older-than", "1h"], 0),
    ] {
        let ran = project.run(args);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (code, ""),
            "{args:?}: {}",
            ran.err
        );
    }
    let ran = project.run(&["prune", "--status", "failed"]);
    assert!(
        ran.out.is_empty() && ran.err.contains("1 run kept"),
        "{}{}",
        ran.out,
        ran.err
    );
    let ran = project.run(&[
        "prune",
        "--label",
        "kind=b",
        "--keep-last",
        "1",
        "--dry-run",
    ]);
    assert_eq!(ids(&ran), std::slice::from_ref(&done));
    let ran = project.run(&["prune", "--label", "kind=b", "--keep-last", "1", "--json"]);
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (&said["runs"], &said["dry_run"]),
        (&json!([done]), &json!(false))
    );
    assert!(said["bytes"].as_u64().unwrap() > 100 && said["events"].as_u64().unwrap() >= 3);
    // A fork goes before what it was made from.
    let ran = project.run(&["prune", "--keep-last", "1"]);
    assert_eq!(ids(&ran), [retried, failed], "{}", ran.err);
    assert_eq!(project.json(&["ls"])["items"].as_array().unwrap().len(), 1);
    assert_eq!(project.json(&["ls"])["items"][0]["id"], json!(newest));
    assert_eq!(project.run(&["verify"]).code, 0);
}

/// What is written into a reel, line by line.
fn packed(lines: &[String]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    for line in lines {
        writeln!(encoder, "{line}").unwrap();
    }
    encoder.finish().unwrap()
}

fn unpacked(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8(zstd::decode_all(bytes).unwrap()).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// A reel of these lines after its manifest, which is made to fit them again.
fn repacked(manifest: &Value, lines: &[String]) -> Vec<String> {
    let mut manifest = manifest.clone();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    manifest["runs"][0]["bytes"] = json!(text.len());
    manifest["runs"][0]["digest"] = json!(Digest::of(text.as_bytes()).to_string());
    let mut all = vec![manifest.to_string()];
    all.extend(lines.iter().cloned());
    all
}

/// A file is nobody's word: whatever is wrong with it, it is refused by name, and nothing is written.
#[test]
fn a_hostile_file_is_refused_and_nothing_is_written() {
    let fixture = Fixture::full();
    let large = run_id(LARGE).to_string();
    let export = |format: &str| {
        let mut command = fixture.command();
        command
            .args(["export", &large, "--format", format])
            .output()
            .unwrap()
            .stdout
    };
    let reel = export("reel");
    let lines = unpacked(&reel);
    let manifest: Value = serde_json::from_str(&lines[0]).unwrap();
    let section = lines[1..].to_vec();
    let blob = section.len() - 1;
    assert!(
        section[blob].starts_with("{\"type\":\"blob\""),
        "{}",
        section[blob]
    );
    let with = |change: &dyn Fn(&mut Value)| {
        let mut manifest = manifest.clone();
        change(&mut manifest);
        let mut all = lines.clone();
        all[0] = manifest.to_string();
        packed(&all)
    };
    let changed = |change: &dyn Fn(&mut Vec<String>)| {
        let mut section = section.clone();
        change(&mut section);
        packed(&repacked(&manifest, &section))
    };
    let text = |lines: &[String]| lines.join("\n").into_bytes();
    let mut bomb = zstd::Encoder::new(Vec::new(), 3).unwrap();
    writeln!(bomb, "{}", lines[0]).unwrap();
    let zeros = vec![b'0'; 1 << 20];
    (0..2000).for_each(|_| bomb.write_all(&zeros).unwrap());
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 1_000_000, "{}", bomb.len());
    let mut trailing = reel.clone();
    trailing.extend_from_slice(b"more");
    let two_frames = [reel.clone(), reel.clone()].concat();
    let newer = |section: &mut Vec<String>| {
        section[0] = section[0].replace("\"format\":1", "\"format\":99")
    };
    let cases: Vec<(&str, Vec<u8>, i32)> = vec![
        ("empty", Vec::new(), 2),
        ("not ours", b"hello\n".to_vec(), 2),
        (
            "a JSON of someone else",
            b"{\"type\":\"tar\"}\n".to_vec(),
            2,
        ),
        ("cut in the middle", reel[..reel.len() / 2].to_vec(), 2),
        ("cut at the end", reel[..reel.len() - 3].to_vec(), 2),
        ("something follows", trailing, 2),
        ("a second frame", two_frames, 2),
        ("a bomb", bomb, 2),
        ("only a manifest", packed(&lines[..1]), 2),
        ("newer version", with(&|it| it["version"] = json!(2)), 4),
        ("no runs", with(&|it| it["runs"] = json!([])), 2),
        (
            "a run twice",
            with(&|it| it["runs"] = json!([it["runs"][0], it["runs"][0]])),
            2,
        ),
        (
            "a path for a run",
            with(&|it| it["runs"][0]["run"] = json!("../../etc/passwd")),
            2,
        ),
        (
            "another run",
            with(&|it| it["runs"][0]["run"] = json!(run_id(7))),
            2,
        ),
        (
            "more events",
            with(&|it| it["runs"][0]["events"] = json!(99)),
            2,
        ),
        (
            "more blobs",
            with(&|it| it["runs"][0]["blobs"] = json!(9)),
            2,
        ),
        (
            "fewer blobs",
            with(&|it| it["runs"][0]["blobs"] = json!(0)),
            2,
        ),
        (
            "more bytes",
            with(&|it| it["runs"][0]["bytes"] = json!(1)),
            2,
        ),
        (
            "another digest",
            with(&|it| it["runs"][0]["digest"] = it["runs"][0]["head"]["digest"].clone()),
            2,
        ),
        (
            "another head",
            with(&|it| it["runs"][0]["head"]["digest"] = it["runs"][0]["digest"].clone()),
            2,
        ),
        (
            "a changed body",
            changed(&|it| it[2] = it[2].replacen("\"body\":{", "\"body\":{ ", 1)),
            2,
        ),
        ("a dropped event", changed(&|it| drop(it.remove(2))), 2),
        (
            "a doubled event",
            changed(&|it| it.insert(2, it[2].clone())),
            2,
        ),
        ("swapped events", changed(&|it| it.swap(1, 2)), 2),
        (
            "a blob twice",
            {
                let mut section = section.clone();
                section.push(section[blob].clone());
                let mut all = repacked(&manifest, &section);
                let mut first: Value = serde_json::from_str(&all[0]).unwrap();
                first["runs"][0]["blobs"] = json!(2);
                all[0] = first.to_string();
                packed(&all)
            },
            2,
        ),
        (
            "another blob",
            changed(&|it| it[blob] = it[blob].replacen("base64\":\"I", "base64\":\"J", 1)),
            2,
        ),
        (
            "a blob of nobody",
            changed(&|it| {
                it[blob] = json!({"type": "blob", "digest": Digest::of(b"x"), "base64": "eA=="})
                    .to_string()
            }),
            2,
        ),
        (
            "a blob that is no base64",
            changed(&|it| it[blob] = it[blob].replacen("base64\":\"", "base64\":\"!!", 1)),
            2,
        ),
        (
            "a line of another type",
            changed(&|it| it.push("{\"type\":\"note\"}".to_owned())),
            2,
        ),
        ("newer format", changed(&newer), 4),
        (
            "jsonl: newer format",
            {
                let mut section = section.clone();
                newer(&mut section);
                text(&section)
            },
            4,
        ),
        ("jsonl: no events", text(&section[..1]), 2),
        ("jsonl: no blob", text(&section[..blob]), 2),
        (
            "jsonl: two logs",
            text(&[section.clone(), section.clone()].concat()),
            2,
        ),
        (
            "jsonl: no key",
            text(
                &[
                    &[section[0].replacen("\"keys\":{\"run_", "\"keys\":{\"run_1", 1)],
                    &section[1..],
                ]
                .concat(),
            ),
            2,
        ),
        (
            "jsonl: without its key",
            {
                let mut header: Value = serde_json::from_str(&section[0]).unwrap();
                header["keys"] = json!({});
                text(&[&[header.to_string()], &section[1..]].concat())
            },
            2,
        ),
        (
            "jsonl: not UTF-8",
            [text(&section[..1]), b"\n{\"run\":\"\xff\xfe\"}\n".to_vec()].concat(),
            2,
        ),
    ];
    let target = Fixture::empty();
    assert_eq!(
        target
            .run(&[
                "import",
                fixture_file(&target, "ok", &export("jsonl")).as_str()
            ])
            .code,
        0
    );
    let listed = target.run(&["ls", "--json"]).out;
    for (what, bytes, code) in cases {
        let name = fixture_file(&target, "hostile", &bytes);
        // With a store, and without one: then none is made.
        let ran = target.run(&["import", &name]);
        assert_eq!(ran.code, code, "{what}: {}", ran.err);
        assert_eq!(target.run(&["ls", "--json"]).out, listed, "{what}");
        let fresh = Fixture::empty();
        let ran = fresh.run(&["import", &name]);
        assert_eq!(ran.code, code, "{what}: {}", ran.err);
        let is_empty = !fresh.store.exists() || fresh.run(&["ls"]).out.is_empty();
        assert!(is_empty, "{what}");
        let ran = ran_without_store(&["verify", &name]);
        assert!(
            [1, 2, 4].contains(&ran.code),
            "{what}: {} {}",
            ran.code,
            ran.out
        );
    }
}

fn fixture_file(fixture: &Fixture, name: &str, bytes: &[u8]) -> String {
    let path = fixture.folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A conversation goes along whole, also what it goes on from; and nobody keeps what was said in an erased
/// one, not even as parts that events and messages share.
#[test]
fn a_conversation_is_carried_and_erased_whole() {
    let project = Project::new("");
    project.write(
        "a.toml",
        "name = \"talker\"\nmodel = \"scripted/answers.jsonl\"\ntools = [\"fs.read\"]\n\
         system = \"You talk of wombats, at length, so that it is worth sharing, every time anew.\"\n",
    );
    let long = "which is long enough to be shared by its event and the node that repeats it";
    let call = json!({"text": format!("the platypus, {long}"),
        "tool_calls": [{"name": "fs.read", "arguments": {"path": "note.txt"}}]});
    let end = json!({"text": format!("the echidna, {long}")});
    project.write("answers.jsonl", &format!("{call}\n{end}\n"));
    project.write("note.txt", &format!("a kookaburra, {long}"));
    let say = |text: &str| {
        let ran = project.run(&["run", "a.toml", text, "--session", "talk", "-q"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        project.json(&["ls"])["items"][0]["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (first, second) = (say("numbats, at length"), say("and bilbies"));
    // The second alone: what it goes on from comes with it.
    // Nodes, and what was asked beside the conversation.
    for (run, blobs) in [(&second, 9), (&first, 5)] {
        let out = project.run(&["export", run]).out;
        let found = out
            .lines()
            .filter(|line| line.contains("\"type\":\"blob\""))
            .count();
        assert_eq!(found, blobs);
        project.write("run.jsonl", &out);
        let ran = elsewhere(&project, &["import", "run.jsonl"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(elsewhere(&project, &["export", run]).out, out);
    }
    assert_eq!(elsewhere(&project, &["verify"]).code, 0);
    let ran = project.run(&["erase", &first]);
    assert!(ran.code == 5 && ran.err.contains(&second), "{}", ran.err);
    let ran = project.run(&["erase", &first, "--with-continuations"]);
    assert_eq!((ran.code, ran.out.lines().count()), (0, 2), "{}", ran.err);
    let bytes = std::fs::read(project.path(".logreel/runs.db")).unwrap();
    for word in [
        "platypus",
        "echidna",
        "kookaburra",
        "numbats",
        "bilbies",
        "wombats",
    ] {
        let found = bytes.windows(word.len()).any(|it| it == word.as_bytes());
        assert!(!found, "{word}");
    }
    say("from the beginning");
    assert_eq!(project.run(&["verify"]).code, 0);
}

/// A log as a file, with its events changed and every digest computed anew: it holds as far as digests go.
fn forged(text: &str, change: impl Fn(&mut Value, &mut String)) -> String {
    let mut lines = text.lines();
    let mut header: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    let run = header["run"].as_str().unwrap().to_owned();
    let key = RunKey::from_hex(header["keys"][&run].as_str().unwrap()).unwrap();
    let mut previous = Digest::of(&[b"logreel.run.v1\0", run.as_bytes()].concat());
    let (mut out, mut seq) = (Vec::new(), 0);
    for line in lines {
        let mut event: Value = serde_json::from_str(line).unwrap();
        if event["type"] == "blob" {
            out.push(line.to_owned());
            continue;
        }
        let (start, end) = (
            line.find("\"body\":").unwrap() + 7,
            line.rfind(",\"body_digest\"").unwrap(),
        );
        let mut body = line[start..end].to_owned();
        change(&mut event, &mut body);
        seq = event["seq"].as_u64().unwrap();
        let header = Header {
            format: 1,
            seq: Seq(seq),
            at: event["at"].as_str().unwrap().parse().unwrap(),
            caller_at: None,
            epoch: Epoch(event["epoch"].as_u64().unwrap()),
            kind: event["kind"].as_str().unwrap(),
            late: false,
            body_digest: key.body_digest(&body),
        };
        previous = header.digest(&previous);
        event["body_digest"] = json!(header.body_digest);
        event["digest"] = json!(previous);
        event["body"] = json!("BODY");
        out.push(event.to_string().replace("\"BODY\"", &body));
    }
    header["head"] = json!({"seq": seq, "digest": previous});
    out.insert(0, header.to_string());
    out.join("\n") + "\n"
}

/// What a digest says of a spec, and what a number may be, is checked beside the chain, which anyone can compute.
#[test]
fn a_forged_log_whose_chain_holds_is_refused_by_what_it_says() {
    let spec = "name = \"w\"\n[[step]]\nid = \"a\"\nrun = \"echo tame\"\n[[step]]\nid = \"ask\"\n\
                needs = [\"a\"]\nwait = \"approval\"\nprompt = \"ok?\"\n";
    // The second has a spec that is a blob.
    let large = format!(
        "{spec}[[step]]\nid = \"large\"\nneeds = [\"ask\"]\nrun = \"true {}\"\n",
        "x".repeat(70_000)
    );
    for (spec, is_large) in [(spec, false), (large.as_str(), true)] {
        let project = Project::new(spec);
        let ran = project.run(&["run", "w.toml", "x", "-q"]);
        assert_eq!(ran.code, 3, "{}", ran.err);
        let run = project.json(&["show", "@last"])["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let text = project.run(&["export", &run]).out;
        let changed_epoch = |epoch: u64| {
            forged(&text, |event, _| {
                if event["seq"] != 1 {
                    event["epoch"] = json!(epoch);
                }
            })
        };
        let lie = match is_large {
            // Another run's spec_digest; the blob is what its own digest says.
            true => forged(&text, |event, body| {
                if event["seq"] == 1 {
                    let (before, _) = body.split_once("\"spec_digest\":\"blake3:").unwrap();
                    let (_, after) = body.split_at(before.len() + 22 + 64);
                    let zeros = "0".repeat(64);
                    *body = format!("{before}\"spec_digest\":\"blake3:{zeros}{after}");
                }
            }),
            false => forged(&text, |_, body| {
                *body = body.replace("echo tame", "echo EVIL")
            }),
        };
        project.write("same.jsonl", &forged(&text, |_, _| {}));
        let ran = project.run(&["verify", "same.jsonl"]);
        assert_eq!(ran.code, 0, "the forger knows the format: {}", ran.out);
        for (file, seq, says) in [
            (lie, 1, "spec_digest"),
            (changed_epoch((1 << 62) + 1), 2, "epoch"),
            (changed_epoch((1 << 63) - 1), 2, "epoch"),
            (changed_epoch(u64::MAX), 2, "epoch"),
        ] {
            project.write("forged.jsonl", &file);
            let ran = project.run(&["verify", "forged.jsonl", "--json"]);
            let verdict: Value = serde_json::from_str(&ran.out).unwrap();
            assert_eq!(
                (ran.code, &verdict["seq"]),
                (1, &json!(seq)),
                "{says}: {verdict}"
            );
            assert!(
                verdict["problem"].as_str().unwrap().contains(says),
                "{verdict}"
            );
            let ran = elsewhere(&project, &["import", "forged.jsonl"]);
            assert_eq!(ran.code, 2, "{}", ran.err);
        }
        // A body taken out of a file, whose key is there.
        let taken = forged(&text, |_, _| {});
        let taken: Vec<String> = taken
            .lines()
            .map(
                |line| match line.contains("\"seq\":3,") || line.contains("\"seq\":3}") {
                    true => {
                        let mut event: Value = serde_json::from_str(line).unwrap();
                        event["body"] = Value::Null;
                        event.to_string()
                    }
                    false => line.to_owned(),
                },
            )
            .collect();
        project.write("forged.jsonl", &(taken.join("\n") + "\n"));
        let ran = project.run(&["verify", "forged.jsonl", "--json"]);
        let verdict: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!((ran.code, &verdict["seq"]), (1, &json!(3)), "{verdict}");
    }
}

/// The conversation that a run goes on from is part of it, also when the run that said it is gone.
#[test]
fn verify_looks_at_the_conversation_before_the_run() {
    let project = Project::new("name = \"talker\"\nmodel = \"scripted/a.jsonl\"\n");
    project.write(
        "a.jsonl",
        &format!("{}\n", json!({"text": "a long answer, of many words"})),
    );
    for (input, label) in [
        ("the first input", "old=1"),
        ("second", "old=2"),
        ("third", "new=1"),
    ] {
        let ran = project.run(&[
            "run",
            "w.toml",
            input,
            "--session",
            "s",
            "-q",
            "--label",
            label,
        ]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    for label in ["old=1", "old=2"] {
        assert_eq!(project.run(&["prune", "--label", label]).code, 0);
    }
    assert_eq!(project.run(&["verify", "@last"]).code, 0);
    let store = project.path(".logreel/runs.db");
    let of = "WHERE instr(CAST(bytes AS TEXT), 'the first input') > 0";
    for (sql, says) in [
        (
            format!(
                "UPDATE blobs SET bytes = CAST(replace(CAST(bytes AS TEXT), 'first input', 'other input') \
                 AS BLOB) {of}"
            ),
            "is not what was stored",
        ),
        (
            "DELETE FROM blobs WHERE instr(CAST(bytes AS TEXT), 'the other input') > 0".to_owned(),
            "is missing",
        ),
    ] {
        let changed = Connection::open(&store).unwrap().execute(&sql, []).unwrap();
        assert_eq!(changed, 1, "{sql}");
        let ran = project.run(&["verify", "@last"]);
        assert!(
            ran.code == 1 && ran.out.contains("event 1: blob"),
            "{}",
            ran.out
        );
        assert!(ran.out.contains(says), "{}", ran.out);
    }
}

/// What was imported and is not wanted is erased; a file of it then says so, and brings nothing back.
#[test]
fn an_unwanted_import_is_erased_and_stays_so() {
    let (project, run) = killed();
    assert_eq!(project.run(&["export", &run, "-o", "run.jsonl"]).code, 0);
    assert_eq!(elsewhere(&project, &["import", "run.jsonl"]).code, 0);
    let ran = elsewhere(&project, &["cancel", &run]);
    assert!(ran.code == 5 && ran.err.contains("`erase`"), "{}", ran.err);
    let ran = elsewhere(&project, &["erase", &run]);
    assert_eq!((ran.code, ran.out.trim()), (0, run.as_str()), "{}", ran.err);
    let ran = elsewhere(&project, &["verify"]);
    assert!(
        ran.code == 0 && ran.out.contains("fold is gone"),
        "{}",
        ran.out
    );
    let ran = elsewhere(&project, &["import", "run.jsonl"]);
    assert!(
        ran.code == 0 && ran.err.contains("was erased here"),
        "{}",
        ran.err
    );
    let ran = elsewhere(&project, &["resume", &run, "--take-over"]);
    assert!(
        ran.code == 5 && ran.err.contains("was erased"),
        "{}",
        ran.err
    );
    for args in [
        &["show", &run, "--at", "2"][..],
        &["fork", &run, "--at", "last"],
        &["replay", &run],
        &["diff", &run, &run],
        &["export", &run, "--format", "otlp", "-o", "x.pb"],
        &["export", &run, "--format", "checkpoint"],
    ] {
        let ran = elsewhere(&project, args);
        assert!(
            ran.code != 0 && ran.err.contains(&run),
            "{args:?}: {}",
            ran.err
        );
    }
    let_go(&project);
}
