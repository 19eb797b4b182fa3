//! Going back: forks with what they list first, runs as they were, and what differs between two runs.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use common::Ran;
use common::project::Project;
use serde_json::{Value, json};

/// Builds, publishes, which is a write, and tells of it.
const RELEASE: &str = r#"
name = "release"
[[step]]
id = "build"
run = "echo built"
[[step]]
id = "publish"
needs = ["build"]
effect = "write"
run = "echo once >> published; echo published"
[[step]]
id = "tell"
needs = ["publish"]
input = "{{ steps.publish.output }} {{ input }}"
run = "cat"
"#;

fn check(name: &str, ran: &Ran) {
    let filters = vec![
        (r"\brun_[0-9a-f-]{36}\b", "[run]"),
        (r"\b[0-9a-f]{64}\b", "[digest]"),
        (r"\b[0-9a-f]{8}\b", "[short]"),
        (r"\b\d+(\.\d+)?(ms|s)\b", "[time]"),
        // A step that takes 20 ms, on a busy machine, has an event more.
        (r"\b\d+ events\b", "[n] events"),
        (r"\bevent \d+", "event [seq]"),
    ];
    insta::with_settings!({ filters => filters }, {
        let text = format!("exit {}\n--- stdout\n{}--- stderr\n{}", ran.code, ran.out, ran.err);
        insta::assert_snapshot!(name, text);
    });
}

fn published(project: &Project) -> usize {
    project.read("published").lines().count()
}

#[test]
fn a_fork_lists_the_writes_it_would_do_again_and_asks() {
    let project = Project::new(RELEASE);
    let ran = project.run(&["run", "w.toml", "1.0"]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "published 1.0\n"),
        "{}",
        ran.err
    );
    let run = project.json(&["show", "@last"])["id"]
        .as_str()
        .unwrap()
        .to_owned();

    // Off a terminal nobody can be asked: refused, and nothing was made.
    check(
        "fork_refused",
        &project.run(&["fork", &run, "--at", "step:publish"]),
    );
    let error = project.run(&["fork", &run, "--at", "1", "--json"]);
    let said: Value = serde_json::from_str(&error.err).unwrap();
    assert_eq!(
        (error.code, &said["error"]["kind"]),
        (5, &json!("not_applicable"))
    );
    assert_eq!(project.json(&["ls"])["items"].as_array().unwrap().len(), 1);
    assert_eq!(published(&project), 1);

    let forked = project.run(&[
        "fork",
        &run,
        "--at",
        "step:publish",
        "--yes",
        "--input",
        "2.0",
    ]);
    check("fork_made", &forked);
    assert_eq!(published(&project), 2);
    let fork = project.json(&["show", "@last"]);
    assert_eq!(fork["parent"]["run"], json!(run));
    assert_eq!(fork["parent"]["relation"], "fork");
    assert_eq!(fork["provenance"]["logreel"], env!("CARGO_PKG_VERSION"));
    assert!(fork["provenance"]["host"].is_string());

    // Nothing is done twice: nobody is asked.
    let given = project.run(&[
        "fork",
        &run,
        "--at",
        "step:publish",
        "--result",
        "publish=\"by hand\"",
    ]);
    assert_eq!(
        (given.code, given.out.as_str()),
        (0, "by hand 1.0\n"),
        "{}",
        given.err
    );
    assert!(!given.err.contains("again"), "{}", given.err);
    assert_eq!(published(&project), 2);
    let log = project.run(&["log", "@last"]).out;
    assert!(log.contains("with another: result of publish"), "{log}");
    let verified = project.run(&["verify"]);
    assert_eq!((verified.code, verified.err.as_str()), (0, "3 runs hold\n"));

    // Too late for that, and past the end: each names the event.
    check(
        "fork_result_used",
        &project.run(&["fork", &run, "--at", "last", "--result", "publish=1"]),
    );
    check("fork_past_end", &project.run(&["fork", &run, "--at", "99"]));
    for (args, says) in [
        (&["--at", "0"][..], "no place in a log"),
        (&["--at", "step:other"], "no step that is shown as `other`"),
        (
            &["--at", "1", "--model", "openai/x"],
            "--model is for agents",
        ),
        (&["--at", "1", "--message", "hello"], "nobody would hear it"),
        (
            &["--at", "1", "--result", "publish=words"],
            "a text is JSON in quotes",
        ),
        (
            &["--at", "1", "--result", "other=1"],
            "no step or tool call `other`",
        ),
    ] {
        let ran = project.run(&[&["fork", &run, "--yes"], args].concat());
        assert!(matches!(ran.code, 2 | 5), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(says), "{args:?}: {}", ran.err);
    }
}

#[test]
fn a_fork_under_another_file_resumes_under_it_and_the_old_one_stays() {
    let project = Project::new(RELEASE);
    assert_eq!(project.run(&["run", "w.toml", "1.0"]).code, 0);
    let run = project.json(&["show", "@last"])["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let waits = RELEASE.replace("run = \"cat\"", "wait = \"approval\"\nprompt = \"tell?\"");
    let waits = waits.replace("input = \"{{ steps.publish.output }} {{ input }}\"\n", "");
    project.write("other.toml", &waits);
    let fork = project.run(&["fork", &run, "--at", "step:tell", "--spec", "other.toml"]);
    assert_eq!(fork.code, 3, "{}", fork.err);
    assert_eq!(published(&project), 1, "what finished is kept");
    // The file it goes on under is the one that is looked at.
    project.write("w.toml", "name = \"something else\"\n");
    let answered = project.run(&["answer", "@last", "--approve", "--resume"]);
    assert_eq!(answered.code, 0, "{}", answered.err);
    let workflow = project.run(&["fork", &run, "--at", "1", "--yes", "--spec", "w.toml"]);
    assert_eq!(workflow.code, 2, "{}", workflow.err);
    assert_eq!(project.json(&["show", &run])["output"], "published 1.0");
}

#[test]
fn a_run_is_shown_as_it_was_after_any_event() {
    let project = Project::new(RELEASE);
    assert_eq!(project.run(&["run", "w.toml", "1.0"]).code, 0);
    assert_eq!(project.run(&["fork", "@last", "--at", "step:tell"]).code, 0);
    for run in ["@last-1", "@last"] {
        let events = project.json(&["show", run])["event_count"]
            .as_u64()
            .unwrap();
        for seq in 1..=events {
            let past = project.json(&["show", run, "--at", &seq.to_string()]);
            assert_eq!(past["event_count"], seq);
            let is_end = seq == events;
            assert_eq!(past["status"] == "completed", is_end, "{past}");
            assert_eq!(past["finished_at"].is_null(), !is_end);
        }
        for wrong in ["0".to_owned(), (events + 1).to_string()] {
            let ran = project.run(&["show", run, "--at", &wrong]);
            assert_eq!(ran.code, 2, "{}", ran.err);
            let says = format!("no event {wrong}; it has 1 to {events}");
            assert!(ran.err.contains(&says), "{}", ran.err);
        }
    }
}

#[test]
fn a_diff_tells_what_differs_and_exits_by_it() {
    let project = Project::new(RELEASE);
    for input in ["1.0", "1.0", "2.0"] {
        assert_eq!(project.run(&["run", "w.toml", input]).code, 0);
    }
    check("diff_equal", &project.run(&["diff", "@last-2", "@last-1"]));
    check("diff_input", &project.run(&["diff", "@last-1", "@last"]));
    let fork = [
        "fork",
        "@last",
        "--at",
        "step:publish",
        "--result",
        "publish={\"n\": 1}",
    ];
    assert_eq!(project.run(&fork).code, 0);
    check("diff_result", &project.run(&["diff", "@last-1", "@last"]));
    let ran = project.run(&["diff", "@last-1", "@last", "--json"]);
    let diff: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &diff["equal"]), (1, &json!(false)));
    assert_eq!(diff["steps"]["changed"], 2);
    assert_eq!(diff["steps"]["items"][0]["id"], "publish");
    assert_eq!(diff["steps"]["items"][0]["changes"], json!(["changed"]));
    assert_eq!(diff["steps"]["items"][0]["b"]["output"], json!({"n": 1}));
    assert_eq!(diff["divergence"]["a"]["what"], "publish");
    assert_eq!(diff["outcome"][0]["pointer"], "/output");
    // A log in a file is as good as a run, on either side or on both.
    let log = project.run(&["log", "@last", "--json"]).out;
    project.write("last.jsonl", &log);
    assert_eq!(project.run(&["diff", "last.jsonl", "@last"]).code, 0);
    assert_eq!(project.run(&["diff", "last.jsonl", "last.jsonl"]).code, 0);
    let of_file = project.run(&["diff", "@last-1", "last.jsonl", "--json"]);
    assert_eq!((of_file.code, &of_file.out), (1, &ran.out));
    project.write("last.jsonl", &log.replacen("\"seq\":2", "\"seq\":7", 1));
    let broken = project.run(&["diff", "last.jsonl", "@last"]);
    assert_eq!(broken.code, 2, "{}", broken.err);
    assert!(broken.err.contains("last.jsonl"), "{}", broken.err);
    let quiet = project.run(&["diff", "@last", "@last", "-q"]);
    assert_eq!(
        (quiet.code, quiet.out.as_str(), quiet.err.as_str()),
        (0, "", "")
    );
    assert_eq!(project.run(&["diff", "@last", "nothing"]).code, 2);
}

/// Two conversations, of which the second hears something else from its tool.
#[test]
fn a_diff_of_agents_tells_calls_answers_and_contexts() {
    let project = Project::new(
        "name = \"reader\"\nmodel = \"scripted/a.jsonl\"\ntools = [\"fs.read\", \"fs.list\"]\n",
    );
    project.write("notes.txt", "first\n");
    let answers = |id: &str, last: &str| {
        let call = json!({"tool_calls": [{"id": id, "name": "fs.read", "arguments": {"path": "notes.txt"}}]});
        format!("{call}\n{}\n", json!({"text": last}))
    };
    project.write("a.jsonl", &answers("x1", "it says first"));
    assert_eq!(project.run(&["run", "w.toml", "read"]).code, 0);
    // Another id is no difference.
    project.write("a.jsonl", &answers("y2", "it says first"));
    assert_eq!(project.run(&["run", "w.toml", "read"]).code, 0);
    let same = project.json(&["diff", "@last-1", "@last"]);
    assert_eq!(same["tool_calls"]["same"], 1, "{same}");
    assert!(
        same["model_calls"]["items"].as_array().unwrap().is_empty(),
        "{same}"
    );
    project.write("notes.txt", "second\n");
    project.write("a.jsonl", &answers("y2", "it says second"));
    assert_eq!(project.run(&["run", "w.toml", "read"]).code, 0);
    check("diff_agents", &project.run(&["diff", "@last-1", "@last"]));
}

/// An agent that publishes with a tool, twice in its script.
fn publisher() -> Project {
    let project = Project::new(
        "name = \"publisher\"\nmodel = \"scripted/a.jsonl\"\ntools = [\"pub\"]\n[policy]\n\
         allow = [\"pub\"]\n[tool.pub]\ndescription = \"publishes\"\n\
         run = \"cat >> published; echo >> published; echo done\"\n",
    );
    let call = |id: &str| json!({"tool_calls": [{"id": id, "name": "pub", "arguments": {"n": 1}}]});
    let text = |text: &str| json!({"text": text});
    let lines = [call("c1"), text("first"), call("c2"), text("second")];
    project.write(
        "a.jsonl",
        &lines.map(|line| line.to_string() + "\n").concat(),
    );
    project
}

/// With another input the conversation begins again, and what it wrote comes again with it.
#[test]
fn a_fork_of_an_agent_with_another_input_lists_what_it_wrote_before() {
    let project = publisher();
    let ran = project.run(&["run", "w.toml", "one", "-q"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let fork = ["fork", "@last", "--at", "last", "--input", "two"];
    let ran = project.run(&fork);
    assert_eq!((ran.code, published(&project)), (5, 1), "{}", ran.err);
    assert!(
        ran.err.contains("1 write that") && ran.err.contains("c1  pub"),
        "{}",
        ran.err
    );
    let same = project.run(&["fork", "@last", "--at", "last", "-q"]);
    assert_eq!((same.code, published(&project)), (0, 1), "{}", same.err);
    let ran = project.run(&[&fork[..], &["--yes", "-q"]].concat());
    assert_eq!((ran.code, published(&project)), (0, 2), "{}", ran.err);
}

/// A retry tells of a write that may have happened, and asks about one that did.
#[test]
fn a_retry_says_which_writes_come_again() {
    let failing = RELEASE.replace("run = \"cat\"", "run = \"test -e fine && cat\"");
    let project = Project::new(&failing);
    assert_eq!(project.run(&["run", "w.toml", "1", "-q"]).code, 1);
    let run = project.json(&["show", "@last"])["id"].clone();
    let run = run.as_str().unwrap();
    project.write("fine", "");
    for args in [
        &["retry", run, "--from", "build"][..],
        &["retry", run, "--from", "publish", "-q"],
    ] {
        let ran = project.run(args);
        assert_eq!((ran.code, published(&project)), (5, 1), "{}", ran.err);
        assert!(ran.err.contains("  publish  (finished with"), "{}", ran.err);
        assert!(ran.err.contains("--yes"), "{}", ran.err);
    }
    assert_eq!(project.json(&["ls"])["items"].as_array().unwrap().len(), 1);
    // What finished is kept: nothing to say.
    let plain = project.run(&["retry", run]);
    assert_eq!((plain.code, published(&project)), (0, 1), "{}", plain.err);
    assert!(!plain.err.contains("again"), "{}", plain.err);
    let ran = project.run(&["retry", run, "--from", "build", "--yes"]);
    assert_eq!((ran.code, published(&project)), (0, 2), "{}", ran.err);
    assert!(ran.err.contains("  publish  (finished with"), "{}", ran.err);

    // Cancelled while it wrote: nobody knows, so it is told and done again.
    let slow = RELEASE.replace(
        "echo published\"",
        "test -e go || read x < gate; echo published\"",
    );
    let project = Project::new(&slow);
    project.pipe("gate");
    let running = project.start(&["run", "w.toml", "1"], "publish");
    let run = project.json(&["show", "@last"])["id"].clone();
    let run = run.as_str().unwrap();
    assert_eq!(project.run(&["cancel", run]).code, 0);
    assert_eq!(running.end().code, 130);
    project.write("go", "");
    let ran = project.run(&["retry", run]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("may have happened"), "{}", ran.err);
}

/// The input of a retry is held against the schema like any other.
#[test]
fn a_retry_takes_only_an_input_that_fits() {
    let project = Project::new(
        "name = \"w\"\ninput_schema = { type = \"object\", required = [\"n\"] }\n[[step]]\n\
         id = \"a\"\nrun = \"test -e fine\"\n",
    );
    assert_eq!(project.run(&["run", "w.toml", "{\"n\":1}", "-q"]).code, 1);
    project.write("fine", "");
    let ran = project.run(&["retry", "@last", "--input", "hello"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("does not fit `w`"), "{}", ran.err);
    let ran = project.run(&["retry", "@last", "--input", "{\"n\":2}", "-q"]);
    assert_eq!(ran.code, 0, "{}", ran.err);

    project.write(
        "a.toml",
        "name = \"agent\"\nmodel = \"scripted/b.jsonl\"\ninput_schema = { type = \"object\" }\n",
    );
    project.write("b.jsonl", "{\"error\":{\"kind\":\"invalid\"}}\n");
    assert_eq!(project.run(&["run", "a.toml", "{}", "-q"]).code, 1);
    let ran = project.run(&["retry", "@last", "--input", "hello"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
}

/// What was said before a run began is part of what its models were asked, whoever said it.
#[test]
fn a_diff_counts_the_conversation_that_a_run_goes_on_from() {
    let project = Project::new("name = \"a\"\nmodel = \"scripted/a.jsonl\"\n");
    project.write("a.jsonl", "{\"text\":\"same\"}\n");
    for session in ["one", "one", "two", "two"] {
        let ran = project.run(&["run", "w.toml", "hi", "--session", session, "-q"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    // The first of a session and the second; and the second of two, which heard the same.
    let differs = project.run(&["diff", "@last-1", "@last", "--json"]);
    let diff: Value = serde_json::from_str(&differs.out).unwrap();
    assert_eq!(
        (differs.code, &diff["model_calls"]["changed"]),
        (1, &json!(1)),
        "{diff:#}"
    );
    assert_eq!(project.run(&["diff", "@last-2", "@last"]).code, 0);
    // The same as files; one without the nodes knows them by their names.
    for (run, file) in [("@last-1", "1.jsonl"), ("@last", "2.jsonl")] {
        assert_eq!(project.run(&["export", run, "-o", file]).code, 0);
    }
    assert_eq!(project.run(&["diff", "1.jsonl", "2.jsonl"]).code, 1);
    assert_eq!(project.run(&["diff", "@last-2", "2.jsonl"]).code, 0);
    project.write("log.jsonl", &project.run(&["log", "@last", "--json"]).out);
    assert_eq!(project.run(&["diff", "log.jsonl", "@last"]).code, 0);
    let reel = ["export", "@last", "--format", "reel", "-o", "r.reel"];
    assert_eq!(project.run(&reel).code, 0);
    let ran = project.run(&["diff", "r.reel", "@last"]);
    assert!(
        ran.code == 2 && ran.err.contains("it is a reel"),
        "{}",
        ran.err
    );
}
