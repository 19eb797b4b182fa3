//! What several processes do to one run, and what is left of them: seen in the process table.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::kill::{marked, until, within};
use common::project::Project;
use common::run_id;
use serde_json::Value;

/// A project whose processes are known by a mark in their environment.
struct Marked {
    project: Project,
    mark: String,
}

impl Marked {
    fn new(spec: &str) -> Self {
        let project = Project::new(spec);
        let mark = format!("MARK={}", project.0.path().display());
        Self { project, mark }
    }

    fn command(&self, args: &[&str]) -> Command {
        let (name, value) = self.mark.split_once('=').unwrap();
        let mut command = self.project.std_command();
        command.args(args).env(name, value).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn lines(&self, file: &str) -> usize {
        let text = std::fs::read_to_string(self.project.path(file)).unwrap_or_default();
        text.lines().count()
    }
}

fn ended(child: Child) -> (i32, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().expect("no signal ended it");
    (code, text(output.stdout), text(output.stderr))
}

/// Three levels: one run, two below it, four below those. Each has a command with a process of its own,
/// and those at the bottom do not listen to TERM.
fn tree() -> Marked {
    let level = |name: &str, below: &str| {
        format!(
            "name = '{name}'\n[[step]]\nid = 'below'\nmap = ['a', 'b']\nworkflow = '{below}'\n\
             [[step]]\nid = 'busy'\nrun = 'sleep 1000 & echo $$ >> busy; wait'\n"
        )
    };
    let tree = Marked::new(&level("root", "middle.toml"));
    let leaf = "name = 'leaf'\n[[step]]\nid = 'busy'\n\
                run = '''trap '' TERM; sleep 1000 & echo $$ >> busy; while :; do sleep 1; done'''\n";
    tree.project
        .write("middle.toml", &level("middle", "leaf.toml"));
    tree.project.write("leaf.toml", leaf);
    tree
}

#[test]
fn a_tree_cancelled_at_its_root_leaves_no_process_within_three_seconds() {
    let tree = tree();
    let root = run_id(1).to_string();
    let run = tree
        .command(&["run", "w.toml", "--id", &root, "-q"])
        .spawn();
    let run = run.unwrap();
    until("seven commands are at work", || tree.lines("busy") == 7);
    assert!(marked(&tree.mark).len() > 14);
    assert_eq!(tree.project.run(&["cancel", &root]).code, 0);
    let three_seconds = Duration::from_secs(3);
    // Its zombie waits for us and counts as gone.
    within(three_seconds, "no process is left", || {
        marked(&tree.mark).is_empty()
    });
    assert_eq!(ended(run).0, 130);
    let listed = tree.project.json(&["ls"]);
    let runs = listed["items"].as_array().unwrap();
    assert_eq!(runs.len(), 7);
    for run in runs {
        assert_eq!(
            (&run["status"], &run["driver"]),
            (&"cancelled".into(), &Value::Null)
        );
    }
}

/// Steps of all runs that the log says have begun.
fn announced(tree: &Marked) -> i64 {
    let store = tree.project.path(".logreel/runs.db");
    let sql = "SELECT count(*) FROM events WHERE kind = 'step.started'";
    let store = rusqlite::Connection::open(store).unwrap();
    store.busy_timeout(Duration::from_secs(10)).unwrap();
    store.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn a_tree_whose_driver_was_killed_leaves_no_process_once_it_is_resumed_and_cancelled() {
    let tree = tree();
    let root = run_id(1).to_string();
    let mut run = tree
        .command(&["run", "w.toml", "--id", &root, "-q"])
        .spawn()
        .unwrap();
    // Announced, too: a step that is younger than its announcement starts again only when the wait
    // beside it has ended.
    until("seven commands are at work", || {
        tree.lines("busy") == 7 && announced(&tree) == 7
    });
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(
        marked(&tree.mark).len() >= 14,
        "SIGKILL reaches the driver alone"
    );
    let resumed = tree.command(&["resume", &root, "-q"]).spawn().unwrap();
    until("seven commands are at work again", || {
        tree.lines("busy") == 14
    });
    assert_eq!(tree.project.run(&["cancel", &root]).code, 0);
    let three_seconds = Duration::from_secs(3);
    within(three_seconds, "no process is left", || {
        marked(&tree.mark).is_empty()
    });
    assert_eq!(ended(resumed).0, 130);
}

#[test]
fn a_cancel_stops_the_commands_of_a_tree_whose_driver_was_killed() {
    let tree = tree();
    let root = run_id(1).to_string();
    let mut run = tree
        .command(&["run", "w.toml", "--id", &root, "-q"])
        .spawn()
        .unwrap();
    until("seven commands are at work", || tree.lines("busy") == 7);
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(marked(&tree.mark).len() >= 14, "they are left behind");
    assert_eq!(tree.project.run(&["cancel", &root]).code, 0);
    let left = marked(&tree.mark);
    assert!(left.is_empty(), "nobody else will stop {left:?}");
}

#[test]
fn of_two_that_resume_a_run_at_once_one_drives_it_and_the_other_says_who() {
    let spec = "name = 'x'\n[[step]]\nid = 'hold'\nrun = 'echo x >> held; cat gate; echo done'\n";
    for _ in 0..5 {
        let marked_project = Marked::new(spec);
        let project = &marked_project.project;
        project.pipe("gate");
        let run = run_id(1).to_string();
        let mut first = marked_project
            .command(&["run", "w.toml", "--id", &run, "-q"])
            .spawn()
            .unwrap();
        until("it holds", || marked_project.lines("held") == 1);
        first.kill().unwrap();
        first.wait().unwrap();

        let resume = ["resume", &run, "-q", "--json"];
        let mut both = [(); 2].map(|()| marked_project.command(&resume).spawn().unwrap());
        let mut refused = None;
        until("one is refused", || {
            refused = (0..2).find(|n| both[*n].try_wait().unwrap().is_some());
            refused.is_some()
        });
        until("the other holds", || marked_project.lines("held") == 2);
        let [one, other] = both;
        let (loser, winner) = match refused {
            Some(0) => (one, other),
            _ => (other, one),
        };
        let driver = winner.id();
        let (code, out, err) = ended(loser);
        assert_eq!((code, out.as_str()), (5, ""), "{err}");
        let error: Value = serde_json::from_str(&err).unwrap();
        assert_eq!(error["error"]["kind"], "driven");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(
            message.contains(&driver.to_string()),
            "{message}: not {driver}"
        );

        let mut gate = std::fs::OpenOptions::new();
        let mut gate = gate.write(true).open(project.path("gate")).unwrap();
        gate.write_all(b"").unwrap();
        drop(gate);
        let (code, _, err) = ended(winner);
        assert_eq!(code, 0, "{err}");
        assert_eq!(marked_project.lines("held"), 2, "nobody else ran it");
        assert!(marked(&marked_project.mark).is_empty());
    }
}

/// Everything on a small file system of its own, which a step of the workflow fills.
const FULL_DISK: &str = r#"
set -e
mount -t tmpfs -o size=4m none "$DISK"
cp w.toml "$DISK"
cd "$DISK"
mkdir .git
fill() {
    rm -f emptied "$OUT/err"
    touch "$OUT/err"
    "$BIN" run w.toml > "$OUT/out" 2> "$OUT/err" &
    until grep -q "the disk is full" "$OUT/err"; do sleep 0.02; done
}
fill
code=0
"$BIN" run w.toml --json -q 2>&1 || code=$?
echo "another: $code"
rm ballast
code=0
wait $! || code=$?
echo "freed: $code, $(cat "$OUT/out")"
fill
kill -9 $!
wait $! || true
rm ballast
touch emptied
code=0
out=$("$BIN" resume @last -q) || code=$?
echo "resumed: $code, $out"
"$BIN" verify >&2
echo "once $(wc -l < once), written $(wc -l < written)"
"#;

#[test]
fn on_a_full_disk_a_start_is_refused_and_a_run_goes_on_once_there_is_space() {
    let spec = r#"
        name = "full"
        [[step]]
        id = "once"
        run = "echo x >> once"
        [[step]]
        id = "write"
        needs = ["once"]
        effect = "write"
        run = "echo x >> written"
        [[step]]
        id = "fill"
        needs = ["write"]
        run = "[ -e emptied ] || cat /dev/zero > ballast 2>&-; echo filled"
        [[step]]
        id = "last"
        needs = ["fill"]
        run = "echo all is well"
    "#;
    let full = Marked::new(spec);
    std::fs::create_dir(full.project.path("disk")).unwrap();
    let mut script = Command::new("unshare");
    script
        .args(["--user", "--map-root-user", "--mount"])
        .args(["timeout", "60", "sh", "-c", FULL_DISK])
        .current_dir(full.project.0.path())
        .env("DISK", full.project.path("disk"))
        .env("OUT", full.project.0.path())
        .env("BIN", full.project.std_command().get_program())
        .env_remove("LOGREEL_STORE");
    let output = script.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let [error, another, freed, resumed, counts] = lines[..] else {
        panic!("{said}{err}");
    };
    let error: Value = serde_json::from_str(error).unwrap();
    assert_eq!(error["error"]["kind"], "unavailable", "{error}");
    assert_eq!(another, "another: 4");
    assert_eq!(freed, "freed: 0, all is well");
    assert_eq!(resumed, "resumed: 0, all is well");
    assert_eq!(counts, "once 2, written 2", "each once in each run");
}
