//! Recorded programs and signals, kills and keys: what happens at any moment is what would without us, or is
//! in the log.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::io::BufRead as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use common::kill::{until, within};
use common::project::Project;
use common::recorder::{Recorder, events, last, of_kind, project, recorded, state_of};
use rustix::process::{Pid, Signal, kill_process};

/// The one thing that this file measures is time.
#[expect(clippy::disallowed_methods, reason = "a moment is what is tested")]
fn sleep(time: Duration) {
    std::thread::sleep(time);
}

#[expect(clippy::disallowed_methods, reason = "a moment is what is tested")]
fn now() -> Instant {
    Instant::now()
}

#[test]
fn a_signal_ends_the_program_whenever_it_comes() {
    let project = project();
    let mut seen = Vec::new();
    for moment in (0..160).step_by(8) {
        let mut child = project
            .std_command()
            .args(["record", "--", "sleep", "20"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        sleep(Duration::from_millis(moment));
        let begun = now();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let status = child.wait().unwrap();
        // Before we hear signals there is nobody to hear them but the system.
        let ended = status.code() == Some(143) || status.signal() == Some(15);
        assert!(ended, "after {moment} ms: {status}");
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "after {moment} ms"
        );
        seen.push(status.code());
    }
    assert!(seen.contains(&Some(143)), "{seen:?}");
    let runs = project.json(&["ls", "--limit", "100"]);
    for run in runs["items"].as_array().unwrap() {
        assert_eq!(
            (&run["status"], &run["orphaned"]),
            (&"failed".into(), &false.into()),
            "{run}"
        );
        assert_eq!(run["error"]["kind"], "signal", "{run}");
    }
}

/// `nohup` is a shell that ignores the signal and becomes the program.
fn ignoring(project: &Project, signals: &str, words: &[&str]) -> Command {
    let like = project.std_command();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' {signals}; exec \"$0\" \"$@\"")]);
    command.arg(like.get_program()).arg("record").args(words);
    command.current_dir(project.0.path());
    for (name, value) in like.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let project = project();
    project.pipe("go");
    let shell = "kill -HUP $$; kill -INT $$; echo ready; cat go; echo survived";
    let mut recorder = Recorder::of(ignoring(&project, "HUP INT", &["--", "sh", "-c", shell]));
    assert_eq!(recorder.line(), "ready", "the program ignores it too");
    recorder.signal(Signal::HUP);
    recorder.signal(Signal::INT);
    project.write("go", "went\n");
    assert_eq!([recorder.line(), recorder.line()], ["went", "survived"]);
    assert_eq!(recorder.code(), 0);
}

#[test]
fn nothing_outlives_a_recorder_whose_keeper_was_killed() {
    let project = project();
    // With job control each job has a group of its own.
    let shell = "set -m; trap '' TERM HUP; sleep 1000 & echo $!; while :; do wait; done";
    let mut recorder = Recorder::start(&project, &["--", "bash", "-c", shell]);
    let job = recorder.line();
    let pid = recorder.child.id();
    let children = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let children = children.flatten().flat_map(|thread| {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    let is_keeper = |pid: &String| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("record-keeper")
    };
    let keeper = children.into_iter().find(is_keeper).unwrap();
    kill_process(
        Pid::from_raw(keeper.parse().unwrap()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    assert_eq!(recorder.code(), 4);
    assert!(
        state_of(&job).is_none_or(|state| state == 'Z'),
        "a job outlived its recorder"
    );
    assert_eq!(last(&project)["error"]["kind"], "lost");
}

#[test]
fn the_same_key_exits_as_the_program_did() {
    let project = project();
    let killed = [
        "record",
        "--key",
        "killed",
        "--",
        "sh",
        "-c",
        "echo x >> ran; kill -TERM $$",
    ];
    for _ in 0..2 {
        assert_eq!(project.run(&killed).code, 128 + 15);
    }
    assert_eq!(project.read("ran"), "x\n");

    let shell = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done";
    let words = ["--key", "cancelled", "--", "sh", "-c", shell];
    let mut recorder = Recorder::start(&project, &words);
    assert_eq!(recorder.line(), "ready");
    assert_eq!(project.run(&["cancel", "@last"]).code, 0);
    assert_eq!(recorder.code(), 7);
    assert_eq!(project.run(&[&["record"], &words[..]].concat()).code, 7);

    let words = [
        "--key",
        "lost",
        "--",
        "sh",
        "-c",
        "echo ready; exec sleep 1000",
    ];
    let mut recorder = Recorder::start(&project, &words);
    assert_eq!(recorder.line(), "ready");
    recorder.signal(Signal::KILL);
    recorder.child.wait().unwrap();
    until("it is known to be gone", || {
        last(&project)["driver"].is_null()
    });
    let refused = project.run(&[&["record"], &words[..]].concat());
    assert_eq!(refused.code, 5);
    assert!(
        refused.err.contains("is gone") && refused.err.contains("logreel resume"),
        "{}",
        refused.err
    );
}

#[test]
fn a_program_that_is_not_there_is_told_of_also_quietly_and_as_json() {
    let project = project();
    let quiet = project.run(&["-q", "record", "--", "no-such-program"]);
    assert_eq!(quiet.code, 127);
    assert!(
        quiet.err.contains("no-such-program: not found"),
        "{}",
        quiet.err
    );
    let json = project.run(&["--json", "record", "--", "no-such-program"]);
    assert_eq!(json.code, 127);
    let said: serde_json::Value = serde_json::from_str(&json.err).unwrap();
    assert_eq!(said["error"]["message"], "no-such-program: not found");
}

/// What a killed recorder has: everything up to a tenth of a second before. A machine that does other things
/// at that moment is late now and then, so the best of some tries counts, and no try may be late by much.
#[test]
fn a_killed_recorder_has_all_but_the_last_tenth_of_a_second() {
    const TRIES: usize = 5;
    let project = project();
    let since_epoch = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let mut missing = Vec::new();
    for _ in 0..TRIES {
        let shell = "while :; do date +%s%N; done";
        let mut recorder = Recorder::start(&project, &["--", "sh", "-c", shell]);
        let printed = |line: &str| Duration::from_nanos(line.trim().parse().unwrap());
        let begun = printed(&recorder.line());
        let mut line = String::new();
        loop {
            line.clear();
            recorder.out().read_line(&mut line).unwrap();
            if printed(&line) > begun + Duration::from_millis(500) {
                break;
            }
        }
        let run = last(&project)["id"].as_str().unwrap().to_owned();
        #[expect(
            clippy::disallowed_methods,
            reason = "the moment of the kill is what is tested"
        )]
        let killed = since_epoch(SystemTime::now());
        recorder.signal(Signal::KILL);
        // What was on its way to us is what was printed.
        let mut rest = String::new();
        std::io::Read::read_to_string(recorder.out(), &mut rest).unwrap();
        recorder.child.wait().unwrap();
        let log = String::from_utf8(recorded(&events(&project, &run), "stdout")).unwrap();
        let mut kept = log.lines().filter(|line| line.len() == 19).map(printed);
        let kept = kept.next_back().unwrap();
        missing.push(killed.saturating_sub(kept));
        within(Duration::from_secs(10), "the program is gone", || {
            common::kill::marked(&format!("LOGREEL_RUN={run}")).is_empty()
        });
    }
    missing.sort_unstable();
    assert!(missing[0] <= Duration::from_millis(100), "{missing:?}");
    assert!(
        missing[TRIES - 1] <= Duration::from_millis(1500),
        "{missing:?}"
    );
}

#[test]
fn in_a_folder_of_a_checkout_all_new_files_are_named_and_no_commit_is_needed() {
    let project = Project(tempfile::tempdir().unwrap());
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(project.0.path());
        git.args([
            "-c",
            "user.name=Ada",
            "-c",
            "user.email=ada@example.invalid",
        ]);
        assert!(git.args(words).status().unwrap().success());
    };
    git(&["init", "-q"]);
    std::fs::create_dir(project.path("sub")).unwrap();
    let record = |shell: &str| {
        let mut command = project.std_command();
        command.current_dir(project.path("sub"));
        let status = command
            .args(["record", "--", "sh", "-c", shell])
            .status()
            .unwrap();
        assert!(status.success());
        let events = events(&project, "@last");
        let ended = of_kind(&events, "custom");
        let ended = ended.iter().find(|body| body["name"] == "program.ended");
        ended.unwrap()["data"]["git"].clone()
    };
    let first = record("echo a > ../added; git add ../added; echo b > ../new; echo c > here");
    assert_eq!(first["before"], serde_json::Value::Null);
    assert!(first["diff"]["blob"].is_string(), "{first}");
    assert_eq!(first["untracked"], serde_json::json!(["new", "sub/here"]));
    git(&["commit", "-q", "-m", "first"]);
    let second = record("true");
    assert!(second["before"]["commit"].is_string(), "{second}");
    assert_eq!(second["untracked"], serde_json::json!(["new", "sub/here"]));
}
