//! The binary as people meet it: what it prints, how it exits, what it never does.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests may panic, as tests do"
)]

mod common;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};

use common::{
    CANCELLED, Clock, DONE, FAILED, Fixture, LARGE, QUEUED, Ran, WAITING, ran, run_id, runtime,
    until,
};
use logreel::{Ctx, Entry, TaskError};
use serde_json::Value;

/// For tests that only read.
static FULL: LazyLock<Fixture> = LazyLock::new(Fixture::full);

fn check(name: &str, args: &[&str]) {
    let Ran { code, out, err } = FULL.run(args);
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
    insta::with_settings!({filters => vec![
        (r#""host":"[^"]+""#, r#""host":"[host]""#),
        ("[0-9a-f]{64}", "[digest]"),
        ("#2 in [0-9]+ms", "#2 in [delay]"),
        (r#""delay_ms":[0-9]+"#, r#""delay_ms":0"#),
    ]}, {
        insta::assert_snapshot!(name, out);
    });
}

#[test]
fn ls_lists_the_newest_first() {
    check("ls", &["ls"]);
    assert!(
        FULL.run(&["ls"])
            .out
            .lines()
            .all(|line| line.chars().count() <= 80)
    );
    check(
        "ls_filtered",
        &[
            "ls",
            "--json",
            "--label",
            "team=core",
            "--search",
            "good two",
        ],
    );
}

#[test]
fn show_tells_the_whole_run() {
    check("show_done", &["show", "00000001"]);
    check("show_failed", &["show", "@last-4"]);
    check("show_waiting", &["show", "run_0197b0a0-0003"]);
    check("show_json", &["show", "00000001", "--json"]);
    check("show_at", &["show", "00000001", "--at", "3", "--json"]);
}

#[test]
fn log_has_a_line_for_each_event() {
    check("log", &["log", "00000001"]);
    check("log_failed", &["log", "00000002"]);
    check("log_json", &["log", "00000003", "--json", "--from", "2"]);
    let only = FULL.run(&["log", "00000001", "--kind", "step", "--json"]);
    let kinds: Vec<Value> = only
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(
        kinds.len() >= 4
            && kinds
                .iter()
                .all(|it| it["kind"].as_str().unwrap().starts_with("step."))
    );
}

/// Every filter leaves what it should.
#[test]
fn ls_filters_and_pages() {
    let ids = |args: &[&str]| -> Vec<String> {
        let ran = FULL.run(&[&["ls", "--json"], args].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        let page: Value = serde_json::from_str(&ran.out).unwrap();
        let items = page["items"].as_array().unwrap().iter();
        items
            .map(|run| run["id"].as_str().unwrap()[39..].to_owned())
            .collect()
    };
    assert_eq!(ids(&["--status", "failed,waiting"]), ["3", "2"]);
    assert_eq!(ids(&["--session", "repo-42"]), ["1"]);
    assert_eq!(ids(&["--agent", "idle"]), ["6", "5", "4"]);
    assert_eq!(ids(&["--since", "2100-01-01T00:00:07.120Z"]), ["6", "5"]);
    assert_eq!(ids(&["--since", "1h"]).len(), 6);
    assert_eq!(ids(&["--search", "invalid"]), ["1"]);
    assert_eq!(ids(&["--same-spec", "00000004"]), ["6", "5", "4"]);
    assert_eq!(ids(&["--same-state", "00000001"]), ["1"]);
    let ran = FULL.run(&["ls", "--json", "--limit", "4"]);
    let page: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (page["items"].as_array().unwrap().len(), &page["has_more"]),
        (4, &Value::Bool(true))
    );
    assert_eq!(
        ids(&["--cursor", page["next"].as_str().unwrap()]),
        ["2", "1"]
    );
}

/// Each way to go wrong: kind, exit code, and the same in JSON.
#[test]
fn errors_have_a_kind_an_exit_code_and_a_hint() {
    let odd = ["a b", "a\nb", "", "x\u{7}"];
    let mut cases: Vec<(Vec<&str>, &str, i32)> = odd
        .iter()
        .map(|name| (vec!["show", name], "invalid", 2))
        .collect();
    cases.extend([
        (vec!["show", "zzz"], "not_found", 2),
        (
            vec!["show", "run_0197b0a0-0009-7000-8000-000000000009"],
            "not_found",
            2,
        ),
        (vec!["show", "@last-6"], "not_found", 2),
        (vec!["show", "@last+1"], "invalid", 2),
        (vec!["show", "run_0197"], "ambiguous", 2),
        (vec!["show", "00000001", "--at", "999"], "not_found", 2),
        (vec!["show", "00000003", "--output"], "not_applicable", 5),
        (vec!["cancel", "00000001"], "terminal", 5),
        (vec!["cancel", "00000002"], "terminal", 5),
        (vec!["pause", "00000001"], "terminal", 5),
        (vec!["cancel", "--session", "nobody"], "not_found", 2),
        (vec!["cancel", "--session", "repo-42"], "not_applicable", 5),
        (vec!["sessions", "close", "nobody"], "not_found", 2),
        (vec!["ls", "--same-state", "00000006"], "not_applicable", 5),
        (vec!["ls", "--status", "done"], "usage", 2),
        (vec!["ls", "--since", "yesterday"], "usage", 2),
        (vec!["ls", "--label", "x"], "usage", 2),
        (vec!["ls", "--cursor", "nonsense"], "usage", 2),
        (vec!["log", "@last", "--kind", "nonsense"], "usage", 2),
        (vec!["wait"], "usage", 2),
        (vec!["nonsense"], "usage", 2),
        (vec!["say", "@last"], "usage", 2),
        (vec!["ls", "--store", "memory:"], "usage", 2),
        (
            vec!["ls", "--store", "postgres://localhost/x"],
            "unavailable",
            4,
        ),
        (
            vec!["ls", "--store", "sqlite:/nowhere/runs.db"],
            "unavailable",
            4,
        ),
        (vec!["ls", "--store", "/tmp"], "unavailable", 4),
        (vec!["ls", "--store", "Cargo.toml"], "unavailable", 4),
        (
            vec!["doctor", "--store", "/nowhere/runs.db"],
            "unavailable",
            4,
        ),
    ]);
    for (args, kind, code) in cases {
        let human = FULL.run(&args);
        assert_eq!(
            (human.code, human.out.as_str()),
            (code, ""),
            "{args:?}: {}",
            human.err
        );
        assert!(human.err.starts_with("error: "), "{args:?}: {}", human.err);
        let json = FULL.run(&[&args[..], &["--json"]].concat());
        assert_eq!((json.code, json.out.as_str()), (code, ""), "{args:?}");
        let error: Value =
            serde_json::from_str(&json.err).unwrap_or_else(|_| panic!("{}", json.err));
        assert_eq!(error["error"]["kind"], kind, "{args:?}: {}", json.err);
        assert!(error["error"].as_object().unwrap().contains_key("hint"));
    }
    let several = FULL.run(&["show", "run_0197"]).err;
    assert!(
        (1..=6).all(|n| several.contains(&run_id(n).to_string())),
        "{several}"
    );
}

#[test]
fn no_store_is_made_and_the_message_says_where_it_looked() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("repo/a");
    std::fs::create_dir_all(deep.join("../.git")).unwrap();
    for verb in ["ls", "stats", "doctor", "verify", "sessions"] {
        let mut command = FULL.command();
        let ran = ran(command
            .env_remove("LOGREEL_STORE")
            .current_dir(&deep)
            .arg(verb));
        assert_eq!(ran.code, 4, "{verb}: {}", ran.err);
        assert!(
            ran.err.contains("from ") && ran.err.contains("the git root"),
            "{}",
            ran.err
        );
    }
    let there = std::fs::read_dir(folder.path().join("repo"))
        .unwrap()
        .count();
    assert_eq!(there, 2, "only .git and a");

    // And one that is there is found from below.
    std::fs::create_dir(folder.path().join("repo/.logreel")).unwrap();
    let backup = folder.path().join("repo/.logreel/runs.db");
    assert_eq!(FULL.run(&["backup", backup.to_str().unwrap()]).code, 0);
    let mut command = FULL.command();
    let found = ran(command
        .env_remove("LOGREEL_STORE")
        .current_dir(&deep)
        .args(["stats", "--json"]));
    assert!(found.out.contains(r#""runs":6"#), "{}", found.out);
}

#[test]
fn the_output_is_printed_as_it_is() {
    assert_eq!(
        FULL.run(&["show", "00000001", "--output"]).out,
        "All good.\nTwo files.\n"
    );
    let json = FULL.run(&["show", "00000001", "--output", "--json"]).out;
    assert_eq!(json, "\"All good.\\nTwo files.\"\n");
    let large = FULL
        .run(&["show", &run_id(LARGE).to_string(), "--output"])
        .out;
    assert_eq!(large.len(), 100_001);
}

#[test]
fn wait_exits_by_the_outcome() {
    let short = |n: u8| run_id(n).short();
    let done = FULL.run(&["wait", &short(DONE)]);
    assert_eq!(
        (done.code, done.out.as_str()),
        (0, "All good.\nTwo files.\n")
    );
    let failed = FULL.run(&["wait", &short(FAILED)]);
    assert_eq!((failed.code, failed.out.as_str()), (1, ""));
    assert!(failed.err.contains("no route to host"), "{}", failed.err);
    assert_eq!(FULL.run(&["wait", &short(CANCELLED)]).code, 130);
    let waits = FULL.run(&["wait", "-q", &short(WAITING)]);
    assert_eq!(
        (waits.code, waits.out.as_str(), waits.err.as_str()),
        (3, "", "")
    );
    let late = FULL.run(&["wait", &short(QUEUED), "--timeout", "50ms"]);
    assert_eq!((late.code, late.out.as_str()), (124, ""));
    let several = FULL.run(&["wait", &short(DONE), &short(WAITING), &short(CANCELLED)]);
    let (done, waiting, cancelled) = (run_id(DONE), run_id(WAITING), run_id(CANCELLED));
    let lines = format!("{done} completed\n{waiting} waiting\n{cancelled} cancelled\n");
    assert_eq!((several.code, several.out), (130, lines));
    let json = FULL.run(&["wait", "--json", &short(FAILED)]);
    let line: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (json.code, &line["type"], &line["status"]),
        (1, &"run".into(), &"failed".into())
    );
}

#[test]
fn cancel_pause_and_close_change_the_store() {
    let fixture = Fixture::full();
    let status = |n: u8| -> Value {
        let ran = fixture.run(&["show", "--json", &run_id(n).to_string()]);
        serde_json::from_str(&ran.out).unwrap()
    };
    let paused = fixture.run(&["pause", "00000006", "--reason", "lunch", "--json"]);
    assert_eq!(
        (paused.code, paused.err.as_str()),
        (0, "00000006 is paused\n")
    );
    assert_eq!(status(QUEUED)["waiting"][0]["kind"], "paused");
    assert_eq!(fixture.run(&["pause", "00000006"]).code, 0);
    assert_eq!(fixture.run(&["wait", "00000006"]).code, 3);
    let cancelled = fixture.run(&["cancel", "@last", "--reason", "enough", "--json"]);
    let run: Value = serde_json::from_str(&cancelled.out).unwrap();
    assert_eq!(
        (&run["status"], &run["reason"]),
        (&"cancelled".into(), &"enough".into())
    );
    assert_eq!(
        fixture.run(&["cancel", "@last"]).code,
        0,
        "twice is harmless"
    );

    assert_eq!(fixture.run(&["cancel", "--session", "repo-43"]).code, 0);
    assert_eq!(status(WAITING)["status"], "cancelled");
    assert_eq!(fixture.run(&["sessions", "close", "repo-43"]).code, 0);
    assert_eq!(
        fixture.run(&["sessions", "close", "repo-43"]).code,
        0,
        "twice is harmless"
    );
    let sessions = fixture.run(&["sessions"]).out;
    let closed = sessions
        .lines()
        .find(|line| line.starts_with("repo-43"))
        .unwrap();
    assert!(closed.ends_with("closed"), "{sessions}");
    let verified = fixture.run(&["verify"]);
    assert_eq!(
        (verified.code, verified.out.lines().count()),
        (0, 6),
        "{}",
        verified.out
    );
}

#[test]
fn verify_names_the_event_that_does_not_hold() {
    let fixture = Fixture::full();
    let whole = fixture.run(&["verify", "00000001", "--json"]);
    let verdict: Value = serde_json::from_str(&whole.out).unwrap();
    let head = verdict["head_digest"].as_str().unwrap();
    assert_eq!(fixture.run(&["verify", "00000001", "--head", head]).code, 0);
    assert_eq!(fixture.run(&["verify", "00000002", "--head", head]).code, 1);

    let sqlite = rusqlite::Connection::open(&fixture.store).unwrap();
    let tamper = |sql: &str| assert!(sqlite.execute(sql, []).unwrap() > 0, "{sql}");
    let of = |n: u8| format!("(SELECT id FROM runs WHERE run = '{}')", run_id(n));
    tamper(&format!(
        "UPDATE events SET body = replace(body, 'a.rs', 'c.rs') WHERE seq = 3 AND run = {}",
        of(DONE)
    ));
    tamper(&format!(
        "DELETE FROM events WHERE seq = 2 AND run = {}",
        of(FAILED)
    ));
    tamper("UPDATE blobs SET bytes = CAST('short' AS BLOB)");
    let bad = fixture.run(&["verify"]);
    assert_eq!(
        (bad.code, bad.err.as_str()),
        (1, "3 of 6 runs do not hold\n")
    );
    let line = |n: u8| {
        let id = run_id(n).to_string();
        bad.out
            .lines()
            .find(|line| line.contains(&id))
            .unwrap()
            .to_owned()
    };
    assert!(
        line(DONE).starts_with("BAD") && line(DONE).contains("event 3"),
        "{}",
        line(DONE)
    );
    assert!(
        line(FAILED).starts_with("BAD") && line(FAILED).contains("event 2"),
        "{}",
        line(FAILED)
    );
    assert!(
        line(LARGE).starts_with("BAD") && line(LARGE).contains("blob"),
        "{}",
        line(LARGE)
    );
    assert!(line(WAITING).starts_with("ok"));
}

#[test]
fn doctor_stats_and_backup() {
    let doctor = FULL.run(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&doctor.out).unwrap();
    assert_eq!(
        (doctor.code, &report["problems"]),
        (0, &Value::Array(Vec::new())),
        "{}",
        doctor.out
    );
    for field in [
        "store", "schema", "sqlite", "free", "drivers", "orphans", "size", "pragmas",
    ] {
        assert!(!report[field].is_null(), "{field}");
    }
    let copy = FULL.folder.path().join("copy.db");
    let copy = copy.to_str().unwrap();
    assert_eq!(FULL.run(&["backup", copy]).code, 0);
    assert_eq!(
        FULL.run(&["backup", copy, "--json"]).code,
        5,
        "nothing is written over"
    );
    assert_eq!(
        FULL.run(&["ls", "--store", copy]).out,
        FULL.run(&["ls"]).out
    );
    assert_eq!(FULL.run(&["verify", "--store", copy]).code, 0);
    let stats: Value = serde_json::from_str(&FULL.run(&["stats", "--json"]).out).unwrap();
    assert_eq!(
        (&stats["runs"], &stats["runs_by_status"]["failed"]),
        (&6.into(), &1.into())
    );

    let broken = Fixture::empty();
    std::fs::write(
        &broken.store,
        "this is no database, and long enough to look like one",
    )
    .unwrap();
    let doctor = broken.run(&["doctor"]);
    assert!(
        doctor.code == 1 && doctor.out.contains("WRONG"),
        "{}",
        doctor.out
    );
}

#[test]
fn colour_and_help_behave() {
    let plain = FULL.run(&["ls"]).out;
    assert!(!plain.contains('\x1b'), "no colour into a pipe");
    let forced = ran(FULL.command().env("CLICOLOR_FORCE", "1").arg("ls"));
    assert!(forced.out.contains("\x1b[32m"));
    let none = ran(FULL
        .command()
        .env("CLICOLOR_FORCE", "1")
        .env("NO_COLOR", "1")
        .arg("ls"));
    assert!(!none.out.contains('\x1b'), "NO_COLOR wins");
    let help = FULL.run(&["--help"]);
    assert!(help.code == 0 && help.out.contains("Examples:") && help.err.is_empty());
    assert_eq!(
        FULL.run(&["--version"]).out,
        format!("logreel {}\n", env!("CARGO_PKG_VERSION"))
    );
    assert!(FULL.run(&["completions", "bash"]).out.contains("_logreel"));
}

/// `logreel log | head -1` ends quietly, also when much more would follow.
#[test]
fn a_reader_that_leaves_is_no_error() {
    let fixture = Fixture::empty();
    runtime().block_on(many_steps(&fixture, 3000));
    let mut child = Command::new(env!("CARGO_BIN_EXE_logreel"))
        .args(["log", "@last", "--json"])
        .env("LOGREEL_STORE", &fixture.store)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::with_capacity(64, child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(0), ""));
}

async fn many_steps(fixture: &Fixture, steps: u32) {
    let engine = fixture.engine(Clock::new()).await;
    let task = engine.task("many", |ctx: Ctx, steps: u32| async move {
        ctx.all((0..steps).map(|n| {
            ctx.step(("step", n.to_string()))
                .run(move || async move { Ok::<_, TaskError>(n) })
        }))
        .await?;
        Ok(())
    });
    task.start(&steps)
        .id(run_id(9))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();
    engine.close().await.unwrap();
}

/// All events arrive in another process, in order, once, while the run is being written, and the
/// stream ends with the run.
#[test]
fn follow_sees_what_another_process_writes() {
    let fixture = Fixture::full();
    let (clock, run) = (Clock::new(), run_id(8));
    let runtime = runtime();
    let engine = runtime.block_on(fixture.engine(Arc::clone(&clock)));
    let task = engine.task("slow", |ctx: Ctx, (): ()| async move {
        ctx.signal("go").await?;
        for n in 0..300_u32 {
            ctx.step(("step", n.to_string()))
                .run(move || async move { Ok::<_, TaskError>(n) })
                .await?;
        }
        Ok(())
    });
    runtime.block_on(async { task.start(&()).id(run).await.unwrap() });
    let mut child = Command::new(env!("CARGO_BIN_EXE_logreel"))
        .args(["log", &run.to_string(), "--follow", "--json"])
        .env("LOGREEL_STORE", &fixture.store)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // It is watching once its first line is here.
    let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(
        (&first["seq"], &first["kind"]),
        (&1.into(), &"run.started".into())
    );
    let reader = std::thread::spawn(move || {
        lines
            .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap())
            .collect::<Vec<_>>()
    });
    runtime.block_on(async {
        let waits = |entry: &Entry| entry.row.facts.waits.len() == 1;
        until(&engine, run, waits).await;
        engine.signal(&run, "go", &()).await.unwrap();
        // The driver may have given its lease back meanwhile.
        engine.resume(&run).await.unwrap();
        engine.run(run).wait().await.unwrap();
        engine.close().await.unwrap();
    });
    let rest = reader.join().unwrap();
    let seqs: Vec<u64> = rest
        .iter()
        .map(|event| event["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, (2..2 + seqs.len() as u64).collect::<Vec<_>>());
    assert_eq!(rest.last().unwrap()["kind"], "run.completed");
    assert!(rest.len() > 300);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
