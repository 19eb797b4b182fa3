//! The binary on a store that many machines share: real processes on the server that `LOGREEL_TEST_POSTGRES`
//! names, each test in a schema of its own.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::kill::marked;
use common::project::{Project, Running};
use common::{Ran, ran};
use logreel::Env as _;
use logreel::store::SystemEnv;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

const PASSWORD: &str = "hunter2";

const SPEC: &str = r#"
name = "three"
[[step]]
id = "first"
run = "echo $LOGREEL_KEY >> effects-first; echo 1"
[[step]]
id = "middle"
needs = ["first"]
run = "echo $LOGREEL_KEY >> effects-middle; [ -e go ] || { echo here > began; sleep 600; }; echo 2"
[[step]]
id = "last"
needs = ["middle"]
effect = "write"
run = "echo $LOGREEL_KEY >> effects-last; echo done"
"#;

/// A server of a test's own, which it may stop.
struct Server {
    folder: tempfile::TempDir,
    programs: std::path::PathBuf,
}

impl Server {
    fn start() -> Self {
        let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed");
        let programs = versions
            .map(|it| it.unwrap().path().join("bin"))
            .max()
            .unwrap();
        let folder = tempfile::Builder::new()
            .prefix("pg")
            .tempdir_in("/tmp")
            .unwrap();
        let server = Self { folder, programs };
        if rustix::process::getuid().is_root() {
            let mut chown = Command::new("chown");
            assert!(
                chown
                    .arg("postgres")
                    .arg(server.folder.path())
                    .status()
                    .unwrap()
                    .success()
            );
        }
        server.run(
            "initdb",
            &["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"],
        );
        server.up();
        server
    }

    fn url(&self) -> String {
        let folder = self.folder.path().to_str().unwrap().replace('/', "%2F");
        format!("postgres://postgres@{folder}/postgres")
    }

    fn up(&self) {
        let folder = self.folder.path().display();
        let options = format!("-c listen_addresses='' -c unix_socket_directories={folder}");
        let log = self.folder.path().join("log");
        self.run(
            "pg_ctl",
            &["-w", "-l", log.to_str().unwrap(), "-o", &options, "start"],
        );
    }

    /// As when its machine loses power.
    fn down(&self) {
        self.run("pg_ctl", &["-m", "immediate", "stop"]);
    }

    fn run(&self, program: &str, args: &[&str]) {
        let mut command = match rustix::process::getuid().is_root() {
            true => {
                let mut command = Command::new("runuser");
                command
                    .args(["-u", "postgres", "--"])
                    .arg(self.programs.join(program));
                command
            }
            false => Command::new(self.programs.join(program)),
        };
        let data = self.folder.path().join("data");
        command.current_dir("/").arg("-D").arg(data).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        assert!(command.status().unwrap().success(), "{program} {args:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.down();
        } else if let Ok(pid) =
            std::fs::read_to_string(self.folder.path().join("data/postmaster.pid"))
        {
            let pid = pid.lines().next().and_then(|pid| pid.parse().ok());
            let pid = pid.and_then(rustix::process::Pid::from_raw);
            if let Some(Err(error)) = pid.map(|pid| kill_process(pid, Signal::QUIT)) {
                eprintln!("the server was not stopped: {error}");
            }
        }
    }
}

/// A project whose store is a schema of its own.
struct Yard {
    project: Project,
    url: String,
    notes: tempfile::TempDir,
}

impl Yard {
    fn new(spec: &str) -> Self {
        let server = std::env::var("LOGREEL_TEST_POSTGRES")
            .expect("LOGREEL_TEST_POSTGRES names a database to test on");
        Self::on(&server, spec)
    }

    fn on(server: &str, spec: &str) -> Self {
        let schema = format!("t{:016x}", SystemEnv.random_u64());
        let and = if server.contains('?') { '&' } else { '?' };
        // Whoever is trusted is not asked for the password; it must not be seen all the same.
        let server = server.replacen("postgres@", &format!("postgres:{PASSWORD}@"), 1);
        assert!(
            server.contains(PASSWORD),
            "the user of {server} is postgres"
        );
        Self {
            project: Project::new(spec),
            url: format!("{server}{and}options=-csearch_path%3D{schema}"),
            notes: tempfile::tempdir().unwrap(),
        }
    }

    fn command(&self) -> Command {
        let mut command = self.project.std_command();
        command
            .env("LOGREEL_STORE", &self.url)
            .env("XDG_RUNTIME_DIR", self.notes.path());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        let ran = ran(assert_cmd::Command::from_std(self.command())
            .timeout(Duration::from_secs(60))
            .args(args));
        for said in [&ran.out, &ran.err] {
            assert!(!said.contains(PASSWORD), "{args:?} told it: {said}");
        }
        ran
    }

    /// What a verb that must succeed prints.
    fn said(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
        ran.out.trim_end().to_owned()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.said(&[args, &["--json"]].concat())).unwrap()
    }

    fn start(&self, args: &[&str], until: &str) -> Running {
        let mut running = self.project.start_with(self.command(), args);
        running.until(until);
        running
    }

    /// A statement in the yard's own schema, by PostgreSQL's own client.
    fn sql(&self, sql: &str) -> String {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql]);
        let ran = psql.arg(&self.url).output().expect("psql is there");
        let err = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{sql}: {err}");
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    }

    fn lines(&self, name: &str) -> usize {
        self.project.read(name).lines().count()
    }
}

#[test]
fn a_command_on_postgres_that_prints_its_environment_does_not_tell_the_password() {
    let yard = Yard::new(
        r#"
name = "tells"
[[step]]
id = "out"
run = "env | grep -e ^LOGREEL_STORE= -e ^PGPASSWORD="
[[step]]
id = "err"
needs = ["out"]
run = "env | grep -e ^LOGREEL_STORE= -e ^PGPASSWORD= >&2; exit 1"
"#,
    );
    let mut command = yard.command();
    command.env("PGPASSWORD", PASSWORD).args(["run", "w.toml"]);
    let ran = command.output().unwrap();
    let told = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{told}");
    assert!(!told.contains(PASSWORD), "{told}");
    let log = yard.said(&["log", "@last", "--json"]);
    assert!(log.contains("postgres://postgres[redacted]"), "{log}");
    let shown = yard.said(&["show", "@last", "--json"]);
    assert!(shown.contains("postgres://postgres[redacted]"), "{shown}");
    let mut command = yard.command();
    command.env("PGPASSWORD", PASSWORD);
    let prints = "env | grep -e ^LOGREEL_STORE= -e ^PGPASSWORD=";
    let recorded = command.args(["record", "--", "sh", "-c", prints]).output();
    assert!(recorded.unwrap().status.success());
    let log = yard.said(&["log", "@last", "--kind", "output.written", "--json"]);
    assert!(log.contains("postgres://postgres[redacted]"), "{log}");
    assert!(log.contains(r#""redacted":2"#), "{log}");
    // Neither in bodies that no verb shows.
    let stored = yard.sql("SELECT string_agg(body, ' ') FROM events");
    assert!(stored.contains("[redacted]") && !stored.contains(PASSWORD));
}

/// One that is no word of other texts: it is hidden by itself, too. JSON has other forms of it.
const LONG_PASSWORD: &str = "hunter2&hunter2";

#[test]
fn whatever_comes_upon_a_long_password_of_postgres_does_not_tell_it() {
    let yard = Yard::new(
        r#"
name = "tells"
[[step]]
id = "bare"
run = 'echo "$PGPASSWORD"'
[[step]]
id = "json"
run = """printf '{"is": "%s"}' "$PGPASSWORD" | sed 's/&/\\\\u0026/'"""
"#,
    );
    let project = &yard.project;
    project.write("password", LONG_PASSWORD);
    project.write(
        "agent.toml",
        r#"
name = "reads"
model = "scripted/answers.jsonl"
tools = ["shell"]
verify_rounds = 0
[policy]
allow = ["shell"]
[[verify]]
name = "tells"
run = 'echo "$PGPASSWORD"; exit 1'
"#,
    );
    project.write(
        "answers.jsonl",
        r#"{"tool_calls": [{"name": "shell", "arguments": {"command": "cat password"}}]}
{"text": "read"}
"#,
    );
    std::fs::create_dir_all(project.path(".logreel")).unwrap();
    project.write(
        ".logreel/config.toml",
        r#"
[[hook]]
name = "tells"
on = ["run.completed", "run.failed"]
run = 'echo "it is $PGPASSWORD" >&2; exit 1'
"#,
    );
    let url = yard.url.replacen(&format!(":{PASSWORD}@"), "@", 1);
    for (spec, code) in [("w.toml", 0), ("agent.toml", 1)] {
        let mut command = yard.command();
        command.env("LOGREEL_STORE", &url);
        command.env("PGPASSWORD", LONG_PASSWORD);
        let ran = command.args(["run", spec]).output().unwrap();
        let told = String::from_utf8([ran.stdout, ran.stderr].concat()).unwrap();
        assert_eq!(ran.status.code(), Some(code), "{told}");
        assert!(told.contains("it is [redacted]"), "the hook ran: {told}");
        assert!(!told.contains(PASSWORD), "{told}");
        let events = yard.said(&["log", "@last", "--json"]);
        let least = if code == 0 { 2 } else { 3 };
        assert!(events.matches("[redacted]").count() >= least, "{events}");
    }
    let stored = yard.sql(
        "SELECT string_agg(body, ' ') || (SELECT string_agg(encode(bytes, 'escape'), ' ') FROM blobs)
         FROM events",
    );
    assert!(stored.contains("cat password") && !stored.contains(PASSWORD));
}

#[test]
fn a_worker_on_postgres_prunes_what_the_retention_lets_go() {
    let yard = Yard::new("name = \"w\"\n[[step]]\nid = \"one\"\nrun = \"echo done\"\n");
    for _ in 0..3 {
        assert_eq!(yard.said(&["run", "w.toml", "-q"]), "done");
    }
    let last = yard.json(&["show", "@last"])["id"].clone();
    std::fs::create_dir_all(yard.project.path(".logreel")).unwrap();
    let keep = "retention = { keep_last = 1 }\n";
    yard.project.write(".logreel/config.toml", keep);
    let worker = yard.start(&["worker"], "pruned 2 runs by `retention`");
    let left = yard.json(&["ls"])["items"].clone();
    assert_eq!((left.as_array().unwrap().len(), &left[0]["id"]), (1, &last));
    let stored = yard.sql("SELECT count(DISTINCT run) FROM events");
    assert_eq!(stored, "1", "the events of the others are gone too");
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code, 143);
}

#[test]
fn a_folder_of_locks_that_others_may_write_to_is_refused_on_postgres() {
    let yard = Yard::new(SPEC);
    let user = rustix::process::getuid().as_raw();
    let folder = yard.notes.path().join(format!("logreel-{user}"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let run = || {
        let mut command = yard.command();
        command.env_remove("XDG_RUNTIME_DIR");
        command.env("TMPDIR", yard.notes.path());
        yard.project.write("go", "");
        command.args(["run", "w.toml"]).output().unwrap()
    };
    let refused = run();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(4), "{told}");
    assert!(told.contains("others may write in it"), "{told}");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(run().status.code(), Some(0));
}

#[test]
fn a_worker_that_is_killed_on_postgres_is_followed_by_another_and_every_verb_finds_the_run() {
    let yard = Yard::new(SPEC);
    yard.project.pipe("began");
    let none = yard.run(&["ls"]);
    assert_eq!(none.code, 4, "a reader makes no store: {}", none.err);
    assert!(none.err.contains("there is no store at postgres://"));

    let worker = yard.start(&["worker"], "driving up to 8 runs of postgres://");
    let mut listed = Value::Null;
    common::kill::until("the worker is listed", || {
        listed = yard.json(&["workers"])["items"][0].take();
        listed["kind"] == "worker"
    });
    let heard = listed["last_heartbeat_at"].as_str().expect("it was heard");
    let heard: logreel::Timestamp = heard.parse().expect("a time");
    let ago = SystemEnv.now().as_micros() - heard.as_micros();
    assert!((0..60_000_000).contains(&ago), "it beats: {listed}");
    assert_eq!(listed["version"], env!("CARGO_PKG_VERSION"));
    assert!(listed["host"].as_str().is_some_and(|host| !host.is_empty()));
    let queued = yard.run(&["run", "w.toml", "--detach", "--label", "ci=yes"]);
    assert_eq!(queued.code, 0, "{}", queued.err);
    assert!(queued.err.contains("left to the worker"), "{}", queued.err);
    let run = queued.out.trim();
    // A pipe: reading it waits for the step.
    assert_eq!(yard.project.read("began"), "here\n");
    let shown = yard.json(&["show", run]);
    assert_eq!(shown["status"], "executing");
    assert_eq!(shown["orphaned"], false);
    worker.kill();
    let shown = yard.json(&["show", run]);
    assert_eq!(shown["orphaned"], true, "known at once on its host");
    let stats = yard.json(&["stats"]);
    assert_eq!(stats["oldest_orphan"], run);
    assert!(stats["oldest_orphan_ms"].is_u64());
    yard.project.write("go", "");
    let next = yard.start(&["worker", "--concurrency", "2"], "taken again");
    assert_eq!(yard.said(&["wait", run]), "done");
    next.signal(Signal::TERM);
    assert_eq!(next.end().code, 143);
    assert_eq!(
        (
            yard.lines("effects-first"),
            yard.lines("effects-middle"),
            yard.lines("effects-last")
        ),
        (1, 2, 1)
    );
    let keys = yard.project.read("effects-middle");
    let keys: Vec<&str> = keys.lines().collect();
    assert_eq!(keys[0], keys[1]);

    let listed = yard.json(&["ls", "--label", "ci=yes"]);
    assert_eq!(listed["items"][0]["id"], run);
    assert_eq!(listed["items"][0]["status"], "completed");
    assert_eq!(yard.said(&["show", "@last", "--output"]), "done");
    assert!(yard.said(&["log", run]).contains("run.completed"));
    yard.said(&["verify"]);
    assert_eq!(yard.json(&["stats"])["runs"], 1);
    let looked = yard.json(&["doctor"]);
    assert_eq!(looked["problems"], serde_json::json!([]));
    assert!(looked["postgresql"].is_string());
    let refused = yard.run(&["backup", "copy.db"]);
    assert_eq!(refused.code, 5, "{}", refused.err);
    assert!(refused.err.contains("pg_dump"), "{}", refused.err);

    // To a file and back, in another store of the same server.
    yard.said(&["export", run, "--format", "reel", "-o", "run.reel"]);
    let other = Yard::new(SPEC);
    let file = yard.project.path("run.reel");
    assert_eq!(
        other
            .said(&["import", file.to_str().unwrap()])
            .lines()
            .next(),
        Some(run)
    );
    assert_eq!(other.said(&["show", run, "--output"]), "done");
    yard.said(&["prune", "--keep-last", "0"]);
    assert_eq!(yard.json(&["stats"])["runs"], 0);
}

#[test]
fn a_detached_run_on_postgres_has_a_process_of_its_own_that_cancel_ends() {
    let yard = Yard::new(SPEC);
    yard.project.pipe("began");
    let run = yard.said(&["run", "w.toml", "--detach"]);
    assert_eq!(yard.project.read("began"), "here\n");
    let pid = yard.json(&["show", &run])["driver"]["pid"].to_string();
    let seen = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(
        seen.contains("drive-detached") && !seen.contains(PASSWORD),
        "{seen:?}"
    );
    let following = yard.project.start_with(yard.command(), &["wait", &run]);
    yard.said(&["cancel", &run, "--reason", "enough"]);
    assert_eq!(following.end().code, 130);
    common::kill::until("it left", || {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    });
    let shown = yard.json(&["show", &run]);
    assert_eq!(
        (&shown["status"], &shown["reason"]),
        (&"cancelled".into(), &"enough".into())
    );
    assert!(!yard.project.path("effects-last").exists());
    for file in std::fs::read_dir(yard.notes.path().join("logreel")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

#[test]
fn ten_processes_that_migrate_an_empty_database_at_once_on_postgres_all_find_it_whole() {
    let yard = Yard::new(SPEC);
    let would = yard.json(&["migrate", "--dry-run"]);
    let (known, pending) = (would["known"].as_u64().unwrap(), &would["migrations"]);
    assert_eq!(would["found"], Value::Null);
    assert_eq!(pending.as_array().unwrap().len() as u64, known);
    assert_eq!(pending[0]["number"], 1);
    assert_eq!(yard.run(&["ls"]).code, 4, "a dry run makes nothing");
    let start = |n: usize| {
        // Half of them come with a run, half only to migrate.
        let queued = [
            "run",
            "w.toml",
            "--label",
            "none=here",
            "--key",
            &n.to_string(),
        ];
        let args: &[&str] = if n < 5 { &["migrate"] } else { &queued };
        yard.project.start_with(yard.command(), args)
    };
    yard.project.write("go", "");
    let all: Vec<Running> = (0..10).map(start).collect();
    for (n, process) in all.into_iter().enumerate() {
        let ended = process.end();
        assert_eq!(ended.code, 0, "process {n}: {}", ended.err);
    }
    assert_eq!(yard.json(&["stats"])["runs"], 5);
    let done = yard.json(&["migrate"]);
    assert_eq!(
        (&done["found"], &done["migrations"]),
        (&known.into(), &serde_json::json!([]))
    );

    // A newer build was here.
    let newer = known + 7;
    yard.sql(&format!(
        "INSERT INTO logreel_migrations (version) VALUES ({newer})"
    ));
    for args in [
        &["migrate", "--dry-run"][..],
        &["migrate"],
        &["ls"],
        &["worker"],
        &["run", "w.toml"],
    ] {
        let refused = yard.run(args);
        assert_eq!(refused.code, 4, "{args:?}: {}", refused.err);
        let both = format!("has store schema {newer}, this build knows up to {known}");
        assert!(refused.err.contains(&both), "{args:?}: {}", refused.err);
    }
}

const GATED: &str = r#"
name = "gated"
[[step]]
id = "first"
run = "echo 1"
[[step]]
id = "middle"
needs = ["first"]
run = "echo $LOGREEL_KEY >> effects-middle; echo here > began; cat gate; echo 2"
[[step]]
id = "last"
needs = ["middle"]
effect = "write"
run = "echo $LOGREEL_KEY >> effects-last; echo done"
"#;

/// The processor time that a process has had so far.
fn worked(pid: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn get(address: &str, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn while_a_postgres_server_is_down_drivers_wait_without_an_event_and_nothing_spins() {
    let server = Server::start();
    let yard = Yard::on(&server.url(), GATED);
    yard.project.pipe("began");
    yard.project.pipe("gate");
    let mut serving = yard
        .project
        .start_with(yard.command(), &["serve", "--listen", "127.0.0.1:0"]);
    let said = serving.until("serving postgres://");
    let address = said
        .rsplit_once("http://")
        .unwrap()
        .1
        .trim()
        .trim_end_matches('/')
        .to_owned();
    let run = yard.said(&["run", "w.toml", "--detach"]);
    assert_eq!(yard.project.read("began"), "here\n");
    let pid = yard.json(&["show", &run])["driver"]["pid"].to_string();

    server.down();
    // The step ends while nobody can record it.
    yard.project.write("gate", "");
    for args in [
        &["ls"][..],
        &["show", &run],
        &["cancel", &run],
        &["run", "w.toml"],
    ] {
        let began = SystemEnv.monotonic();
        let refused = yard.run(&[args, &["--json"]].concat());
        let took = SystemEnv.monotonic() - began;
        assert_eq!(refused.code, 4, "{args:?}: {}", refused.err);
        assert!(
            refused.err.contains(r#""kind":"unavailable""#),
            "{args:?}: {}",
            refused.err
        );
        assert!(took < Duration::from_secs(3), "{args:?} took {took:?}");
    }
    let answer = get(&address, "/v1/runs");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let (before, window) = (worked(&pid), Duration::from_secs(3));
    common::runtime().block_on(async { SystemEnv.sleep(window).await });
    let spent = worked(&pid) - before;
    println!("with the server down: {spent:?} of processor time in {window:?}");
    assert!(spent < window / 10, "it spins: {spent:?} in {window:?}");

    server.up();
    assert_eq!(yard.said(&["wait", &run]), "done");
    assert!(get(&address, "/v1/runs").starts_with("HTTP/1.1 200 "));
    let events = yard.said(&["log", &run, "--json"]);
    assert!(!events.contains("run.resumed"), "{events}");
    assert_eq!(
        (yard.lines("effects-middle"), yard.lines("effects-last")),
        (1, 1)
    );
    serving.signal(Signal::TERM);
    let served = serving.end();
    assert_eq!(served.code, 143);
    let told = served.err.matches("other processes are not heard").count();
    assert!(told <= 1, "an outage is told of once: {}", served.err);
}

#[test]
fn whoever_drives_a_run_alone_or_waits_for_it_outlives_a_postgres_server_that_is_down() {
    let server = Server::start();
    let yards = [(); 3].map(|()| Yard::on(&server.url(), GATED));
    let [here, behind, again] = &yards;
    for yard in &yards {
        yard.project.pipe("began");
        yard.project.pipe("gate");
    }
    let mut running = here.project.start_with(here.command(), &["run", "w.toml"]);
    assert_eq!(here.project.read("began"), "here\n");
    let detached = behind.said(&["run", "w.toml", "--detach"]);
    assert_eq!(behind.project.read("began"), "here\n");
    // What was left behind, by everyone's `resume`.
    let killed = again
        .project
        .start_with(again.command(), &["run", "w.toml"]);
    assert_eq!(again.project.read("began"), "here\n");
    killed.kill();
    let mut waiting = again
        .project
        .start_with(again.command(), &["wait", "@last"]);
    // Both are that one: the second is only looked at once the time is up.
    let for_a_while = ["wait", "@last", "@last", "--timeout", "20s"];
    let mut impatient = again.project.start_with(again.command(), &for_a_while);
    for process in [&mut waiting, &mut impatient] {
        process.until("nobody drives");
    }
    let mut following = again
        .project
        .start_with(again.command(), &["log", "@last", "--follow"]);
    following.until_told();
    let mut resuming = again.project.start_with(again.command(), &["resume"]);
    assert_eq!(again.project.read("began"), "here\n");

    server.down();
    let away = "the store cannot be reached; trying again until it can";
    for process in [&mut running, &mut resuming, &mut waiting, &mut impatient] {
        process.until(away);
    }
    let unheard = "other processes are not heard for now";
    following.until(unheard);
    let waited = impatient.end();
    assert_eq!(waited.code, 124, "its time is over: {}", waited.err);
    let shown: Vec<&str> = waited
        .out
        .lines()
        .filter_map(|it| it.split(' ').nth(1))
        .collect();
    assert_eq!(
        shown, ["executing"; 2],
        "as it was seen last: {}",
        waited.out
    );
    let said = behind.notes.path().join("logreel");
    common::kill::until("the process in the background knows", || {
        let files = std::fs::read_dir(&said).unwrap().flatten();
        let mut texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
        texts.any(|text| text.contains(away))
    });
    for yard in &yards {
        yard.project.write("gate", "");
    }
    server.up();
    let ran = running.end();
    assert_eq!((ran.code, &*ran.out), (0, "done\n"), "{}", ran.err);
    assert_eq!(behind.said(&["wait", &detached]), "done");
    let resumed = resuming.end();
    assert_eq!(resumed.code, 0, "{}", resumed.err);
    assert!(resumed.out.contains(" completed"), "{}", resumed.out);
    let waited = waiting.end();
    assert_eq!((waited.code, &*waited.out), (0, "done\n"), "{}", waited.err);
    let followed = following.end();
    assert_eq!(followed.code, 0, "{}", followed.err);
    assert_eq!(followed.err.matches(unheard).count(), 1, "{}", followed.err);
    let all = again.said(&["log", "@last"]);
    assert_eq!(followed.out.trim_end(), all, "each event, once, in order");
    for (yard, attempts) in [(here, 1), (behind, 1), (again, 2)] {
        let events = yard.said(&["log", "@last", "--json"]);
        assert_eq!(
            events.matches("run.resumed").count(),
            attempts - 1,
            "{events}"
        );
        let effects = ["effects-middle", "effects-last"].map(|name| yard.lines(name));
        assert_eq!(effects, [attempts, 1]);
    }
}

#[test]
fn a_worker_that_is_told_to_leave_while_a_postgres_server_is_down_leaves_and_its_run_goes_on() {
    let server = Server::start();
    let yards = [(); 3].map(|()| Yard::on(&server.url(), GATED));
    let [stopped, finished, alone] = &yards;
    let start = |yard: &Yard, args: &[&str], verb: &[&str]| {
        yard.project.pipe("began");
        yard.project.pipe("gate");
        let running = yard.project.start_with(yard.command(), args);
        if !verb.is_empty() {
            common::kill::until("the worker is there", || {
                yard.run(&["workers"]).out.contains("worker")
            });
            yard.said(verb);
        }
        assert_eq!(yard.project.read("began"), "here\n");
        // What is on its way when the server goes down is sent again for a while.
        common::kill::until("its start is recorded", || {
            let log = yard.said(&["log", "@last", "--kind", "step.started"]);
            log.contains("middle")
        });
        running
    };
    let detach = ["run", "w.toml", "--detach"];
    let worker = start(stopped, &["worker"], &detach);
    let mut with_result = start(finished, &["worker"], &detach);
    let run = start(alone, &["run", "w.toml"], &[]);

    server.down();
    // The step of one ends while nobody can record it.
    finished.project.write("gate", "");
    with_result.until("appending again until it lands");
    let began = SystemEnv.monotonic();
    for process in [&worker, &with_result, &run] {
        process.signal(Signal::TERM);
    }
    for process in [worker, run] {
        let ended = process.end();
        assert_eq!(ended.code, 143, "{}", ended.err);
    }
    let took = SystemEnv.monotonic() - began;
    println!("told to leave with the server down: left after {took:?}");
    assert!(took < Duration::from_secs(15), "it took {took:?}");
    server.up();
    // What had finished is recorded all the same.
    assert_eq!(with_result.end().code, 143);
    for (yard, attempts) in [(stopped, 2), (finished, 1), (alone, 2)] {
        let resuming = yard.project.start_with(yard.command(), &["resume"]);
        if attempts == 2 {
            assert_eq!(yard.project.read("began"), "here\n");
            yard.project.write("gate", "");
        }
        let resumed = resuming.end();
        assert_eq!(resumed.code, 0, "{}", resumed.err);
        assert_eq!(yard.said(&["show", "@last", "--output"]), "done");
        let effects = ["effects-middle", "effects-last"].map(|name| yard.lines(name));
        assert_eq!(effects, [attempts, 1]);
    }
}

const PARENT: &str = r#"
name = "parent"
[[step]]
id = "sub"
workflow = "child.toml"
[[step]]
id = "after"
needs = ["sub"]
env = { N = "{{ input }}" }
run = "echo $LOGREEL_KEY >> effects-$N; echo $N"
"#;

#[test]
fn workers_on_postgres_share_what_is_queued_and_parents_hold_no_place_of_theirs() {
    const RUNS: u64 = 12;
    let yard = Yard::new(PARENT);
    let child = "name = \"child\"\n[[step]]\nid = \"one\"\nrun = \"echo 1\"\n";
    yard.project.write("child.toml", child);
    let engine = async || logreel::Engine::open(&yard.url).await.unwrap();
    let queued: Vec<logreel::RunId> = common::runtime().block_on(async {
        let engine = engine().await;
        let workflow = logreel::workflow::Workflow::read(yard.project.path("w.toml")).unwrap();
        let workflow = engine.workflow(&workflow);
        let mut queued = Vec::new();
        for n in 0..RUNS {
            let start = workflow
                .start(&n)
                .dir(yard.project.0.path().to_string_lossy());
            queued.push(start.queue().await.unwrap().id());
        }
        engine.close().await.unwrap();
        queued
    });
    let waits = yard.json(&["stats"]);
    assert_eq!(waits["ready"], RUNS);
    assert!(waits["lag_ms"].is_u64() && waits["oldest_ready"] == queued[0].to_string());
    // With a label it takes what has it, and leaves alone what has none.
    let labelled = yard.start(
        &["worker", "--label", "gpu=true"],
        "with gpu=true of postgres://",
    );
    common::kill::until("it is listed", || {
        yard.json(&["workers"])["items"][0]["labels"]["gpu"] == "true"
    });
    let its = yard.run(&["run", "w.toml", "its", "--detach", "--label", "gpu=true"]);
    assert!(its.err.contains("left to the worker"), "{}", its.err);
    assert_eq!(yard.said(&["wait", its.out.trim()]), "its");
    assert_eq!(yard.json(&["stats"])["ready"], RUNS);
    // One place each: a parent that kept its own while it waits would keep its child from ever beginning.
    let one = ["worker", "--concurrency", "1"];
    let workers = [
        labelled,
        yard.start(&one, "driving up to 1 runs of"),
        yard.start(&one, "driving up to 1 runs of"),
    ];
    common::kill::until("all three are listed", || {
        let listed = yard.json(&["workers"])["items"].as_array().unwrap().clone();
        let mut said: Vec<String> = listed
            .iter()
            .map(|it| {
                format!(
                    "{} {} {} {}",
                    it["kind"], it["concurrency"], it["labels"], it["state"]
                )
            })
            .collect();
        said.sort();
        said == [
            r#""worker" 1 {} "alive""#,
            r#""worker" 1 {} "alive""#,
            r#""worker" 8 {"gpu":"true"} "alive""#,
        ]
    });
    for (n, run) in queued.iter().enumerate() {
        assert_eq!(yard.said(&["wait", &run.to_string()]), n.to_string());
        assert_eq!(yard.lines(&format!("effects-{n}")), 1);
    }
    // A lease is given back after the end that `wait` waits for.
    let held = "SELECT count(*) FROM live FULL JOIN queue USING (run)";
    common::kill::until("nobody holds anything any more", || yard.sql(held) == "0");
    let after = yard.json(&["stats"]);
    assert_eq!((&after["ready"], &after["orphans"]), (&0.into(), &0.into()));
    assert_eq!(
        after["claim_latency"]["runs"],
        2 * (RUNS + 1),
        "parents and children"
    );
    for worker in &workers {
        worker.signal(Signal::TERM);
    }
    for worker in workers {
        assert_eq!(worker.end().code, 143);
    }
    assert_eq!(yard.json(&["workers"])["items"], serde_json::json!([]));
}

/// Each attempt tells its process by a pipe and waits for another one.
const SLOW_WRITE: &str = r#"
name = "slow"
[[step]]
id = "pay"
effect = "write"
timeout = "100s"
reconcile = "grep $LOGREEL_KEY paid || exit 10"
run = "echo $$ > began; cat go; echo $LOGREEL_KEY >> paid; echo paid"
"#;

#[test]
fn a_worker_with_another_folder_for_notes_ends_on_postgres_what_a_killed_one_left_running() {
    let yard = Yard::new(SLOW_WRITE);
    yard.project.pipe("began");
    yard.project.pipe("go");
    // One as a service, one from a login shell.
    let worker = yard.start(&["worker"], "driving up to 8 runs of postgres://");
    // Until then a detached run begins a process of its own.
    common::kill::until("the worker is there", || {
        yard.run(&["workers"]).out.contains("worker")
    });
    let run = yard.said(&["run", "w.toml", "--detach"]);
    let first = yard.project.read("began");
    let mark = format!("LOGREEL_RUN={run}");
    let left = |pid: &str| {
        let pid = format!("{}:", pid.trim());
        marked(&mark).iter().any(|it| it.starts_with(&pid))
    };
    assert!(left(&first), "it is known by its environment");
    worker.kill();
    let other = tempfile::tempdir().unwrap();
    let mut command = yard.command();
    command.env("XDG_RUNTIME_DIR", other.path());
    let mut next = yard.project.start_with(command, &["worker"]);
    next.until("taken again");
    let second = yard.project.read("began");
    assert_ne!(first, second);
    assert!(!left(&first), "it ran beside the next attempt");
    yard.project.write("go", "on");
    assert_eq!(yard.said(&["wait", &run]), "onpaid");
    assert_eq!(yard.lines("paid"), 1);
    next.signal(Signal::TERM);
    assert_eq!(next.end().code, 143);
}
