//! Recorded programs on a real (pseudo) terminal: every byte as without us.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

use common::project::Project;
use rustix::pty::OpenptFlags;
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

/// A program with a terminal of its own, and whoever sits at it.
struct OnTerminal {
    child: Child,
    ours: File,
    theirs: File,
    seen: Vec<u8>,
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl OnTerminal {
    /// `setsid --ctty` makes the terminal the program's own, as a shell or an emulator would.
    fn start(project: &Project, words: &[OsString]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&ours).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options()
            .read(true)
            .write(true)
            .open(name.into_string().unwrap())
            .unwrap();
        tcsetwinsize(&theirs, size(24, 80)).unwrap();
        let stream = || Stdio::from(theirs.as_fd().try_clone_to_owned().unwrap());
        let like = project.std_command();
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .args(words)
            .current_dir(project.0.path());
        for (name, value) in like.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let child = command
            .env("TERM", "xterm-256color")
            .env("PS1", "shell \\#> ")
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .spawn()
            .unwrap();
        Self {
            child,
            ours: File::from(ours),
            theirs,
            seen: Vec::new(),
        }
    }

    /// Reads until this was shown.
    fn until(&mut self, what: &str) {
        self.until_times(what, 1);
    }

    fn until_times(&mut self, what: &str, times: usize) {
        let mut bytes = [0; 4096];
        while String::from_utf8_lossy(&self.seen).matches(what).count() < times {
            let count = self.ours.read(&mut bytes).unwrap();
            self.seen.extend(&bytes[..count]);
        }
    }

    fn say(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    fn modes(&self) -> Termios {
        tcgetattr(&self.theirs).unwrap()
    }

    /// Its status, what was shown, and how the terminal was left.
    fn end(mut self) -> (i32, Vec<u8>, String) {
        let status = self.child.wait().unwrap();
        let modes = format!("{:?}", self.modes());
        // With our end of it closed, what is left is read up to its end.
        drop(self.theirs);
        let mut bytes = [0; 4096];
        while let Ok(count) = self.ours.read(&mut bytes) {
            self.seen.extend(&bytes[..count]);
        }
        (status.code().unwrap_or(-1), self.seen, modes)
    }
}

fn own(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// The same program, recorded.
fn recorded(project: &Project, words: &[&str]) -> Vec<OsString> {
    let mut all = vec![project.std_command().get_program().to_owned()];
    all.extend(own(&["record", "--"]));
    all.extend(own(words));
    all
}

/// What someone sees who does the same at both.
fn both(words: &[&str], act: impl Fn(&mut OnTerminal)) -> (Project, i32, Vec<u8>) {
    let project = Project::new("");
    assert_eq!(project.run(&["init"]).code, 0);
    let mut bare = OnTerminal::start(&project, &own(words));
    act(&mut bare);
    let (bare_code, bare_bytes, _) = bare.end();
    let mut ours = OnTerminal::start(&project, &recorded(&project, words));
    let before = format!("{:?}", ours.modes());
    act(&mut ours);
    let (code, bytes, after) = ours.end();
    assert_eq!(
        String::from_utf8_lossy(&bytes),
        String::from_utf8_lossy(&bare_bytes)
    );
    assert_eq!(bytes, bare_bytes);
    assert_eq!(code, bare_code);
    assert_eq!(after, before, "the terminal is not as it was");
    (project, code, bytes)
}

const FULL_SCREEN: &str = r#"
[ -t 0 ] && [ -t 1 ] && [ -t 2 ] || exit 99
printf '\033[?1049h\033[2J\033[H\033[1;31mfull screen %s\033[0m' "$(stty size)"
saved=$(stty -g)
trap 'printf "\033[2;1Hresized %s" "$(stty size)"' WINCH
stty -icanon -echo
printf '\033[24;1H日本語 ready'
key=$(dd bs=1 count=1 2>/dev/null)
printf '\033[3;1Hkey %s' "$key"
until [ "$(stty size)" = "30 100" ]; do sleep 0.01; done
sleep 0.05
printf '\033[4;1Hagain'
key=$(dd bs=1 count=1 2>/dev/null)
stty "$saved"
printf '\033[?1049l'
tty >/dev/null && echo "to stderr" >&2
exit 3
"#;

const READS_LINES: &str = r#"
trap 'echo interrupted; exit 42' INT
printf 'name? '
read -r name
echo "hello $name"
printf 'password? '
stty -echo
read -r secret
stty echo
echo "${#secret} letters"
echo waiting
while :; do sleep 0.01; done
"#;

#[test]
fn a_full_screen_program_is_shown_as_without_us() {
    let (project, code, bytes) = both(&["sh", "-c", FULL_SCREEN], |terminal| {
        terminal.until("ready");
        terminal.say("x");
        terminal.until("key x");
        tcsetwinsize(&terminal.ours, size(30, 100)).unwrap();
        terminal.until("again");
        terminal.say("q");
    });
    assert_eq!(code, 3);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.contains("full screen 24 80"), "{text}");
    assert!(text.contains("resized 30 100"), "{text}");
    let shown = project.json(&["show", "@last"]);
    assert_eq!(shown["error"]["kind"], "exit");
    let log = project.run(&["log", "@last", "--json"]).out;
    let events = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let printed = events.filter(|event| event["body"]["stream"] == "terminal");
    let printed: String = printed
        .map(|event| event["body"]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(printed, text);
}

#[test]
fn a_program_that_reads_the_keyboard_has_every_key() {
    let (_, code, bytes) = both(&["sh", "-c", READS_LINES], |terminal| {
        terminal.until("name? ");
        // Edited as a terminal lets one: the last letter is taken back.
        terminal.say("adaX\x7f\r");
        terminal.until("password? ");
        until_no_echo(terminal);
        terminal.say("secret\r");
        terminal.until("waiting");
        terminal.say("\x03");
        terminal.until("interrupted");
    });
    assert_eq!(code, 42);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(
        text.contains("hello ada\r\n") && text.contains("6 letters\r\n"),
        "{text}"
    );
    assert!(text.contains("^C"), "{text}");
}

/// Bare, the program's terminal is the one we hold; recorded, it is one that we cannot look at. What is
/// typed a moment later is typed after `stty -echo` in both.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing says when another's terminal has changed"
)]
fn until_no_echo(_: &OnTerminal) {
    std::thread::sleep(std::time::Duration::from_millis(300));
}

#[test]
fn a_killed_recorder_gives_the_terminal_back() {
    let project = Project::new("");
    assert_eq!(project.run(&["init"]).code, 0);
    let words = recorded(
        &project,
        &["sh", "-c", "stty raw; echo ready; read -r never"],
    );
    let mut terminal = OnTerminal::start(&project, &words);
    let before = format!("{:?}", terminal.modes());
    terminal.until("ready");
    assert_ne!(
        format!("{:?}", terminal.modes()),
        before,
        "it is ours meanwhile"
    );
    terminal.child.kill().unwrap();
    common::kill::until("the terminal is as it was", || {
        format!("{:?}", terminal.modes()) == before
    });
    terminal.child.wait().unwrap();
}

#[test]
fn streams_that_are_no_terminal_stay_what_they_are() {
    let project = Project::new("");
    assert_eq!(project.run(&["init"]).code, 0);
    let test =
        r#"[ -t 0 ] && printf '0'; [ -t 1 ] && printf '1'; [ -t 2 ] && printf '2' >&2; exit 0"#;
    project.write("test.sh", test);
    let program = project.std_command().get_program().to_owned();
    let program = program.to_str().unwrap();
    let shell = format!(
        "{program} record -- sh test.sh </dev/null; echo; {program} record -- sh test.sh | cat"
    );
    let terminal = OnTerminal::start(&project, &own(&["sh", "-c", &shell]));
    let (code, bytes, _) = terminal.end();
    assert_eq!(code, 0);
    let seen = String::from_utf8(bytes).unwrap();
    let mut lines: Vec<String> = seen
        .lines()
        .map(|line| {
            let mut letters: Vec<char> = line.trim().chars().collect();
            letters.sort_unstable();
            letters.into_iter().collect()
        })
        .collect();
    lines.truncate(2);
    assert_eq!(lines, ["12", "02"]);
}

const STOPS: &str = r#"echo ready; while read -r x; do echo "got $x"; done"#;

#[test]
fn after_ctrl_z_the_shell_has_its_terminal_and_fg_goes_on() {
    let project = Project::new("");
    assert_eq!(project.run(&["init"]).code, 0);
    let mut terminal = OnTerminal::start(&project, &own(&["bash", "--norc", "-i"]));
    terminal.until("shell 1> ");
    project.write("stops.sh", STOPS);
    let program = project.std_command().get_program().to_owned();
    let program = program.to_str().unwrap().to_owned();
    terminal.say(&format!("{program} record -- sh stops.sh\n"));
    terminal.until("ready");
    terminal.say("one\n");
    terminal.until("got one");
    terminal.say("\x1a");
    terminal.until("Stopped");
    terminal.say("echo is$((40+2))\n");
    terminal.until("is42");
    terminal.say("fg\n");
    // Typed, told of as stopped, and gone on with.
    terminal.until_times("record -- sh stops.sh", 3);
    terminal.say("two\n");
    terminal.until("got two");
    terminal.say("\x04");
    terminal.until("shell 4> ");
    terminal.say("echo code$?\n");
    terminal.until("code0");
    terminal.say("exit\n");
    assert_eq!(terminal.end().0, 0);
    assert_eq!(project.json(&["show", "@last"])["status"], "completed");
}

#[test]
fn lines_that_go_past_the_programs_terminal_end_as_lines() {
    let project = Project::new("");
    assert_eq!(project.run(&["init"]).code, 0);
    project.write("lines.sh", "echo one; echo two; read -r key </dev/tty");
    project.write(
        "turns.sh",
        "echo '{\"type\":\"turn.started\"}'; echo two; read -r key </dev/tty",
    );
    let program = project.std_command().get_program().to_owned();
    let program = program.to_str().unwrap();
    for (shell, seen) in [
        (
            format!("{program} record -- sh lines.sh | cat"),
            "one\r\ntwo\r\n",
        ),
        (
            format!("{program} record --stream codex -- sh turns.sh"),
            "{\"type\":\"turn.started\"}\r\ntwo\r\n",
        ),
    ] {
        let mut terminal = OnTerminal::start(&project, &own(&["sh", "-c", &shell]));
        terminal.until("two");
        terminal.say("\r");
        let (code, bytes, _) = terminal.end();
        let shown = String::from_utf8(bytes).unwrap();
        assert_eq!(code, 0, "{shown}");
        assert!(shown.starts_with(seen), "{shown:?}");
    }
}

#[test]
fn a_program_in_the_background_takes_no_keys_until_it_is_in_front() {
    let project = Project::new("");
    assert_eq!(project.run(&["init"]).code, 0);
    let mut terminal = OnTerminal::start(&project, &own(&["bash", "--norc", "-i"]));
    terminal.until("shell 1> ");
    let program = project.std_command().get_program().to_owned();
    let program = program.to_str().unwrap().to_owned();
    project.write(
        "reads.sh",
        "echo began > began; read -r line; echo \"$line\" > line",
    );
    terminal.say(&format!("{program} record -- sh reads.sh &\n"));
    common::kill::until("the program reads", || project.path("began").exists());
    for number in 0..5 {
        terminal.say(&format!("echo is$((40+{number}))\n"));
        terminal.until(&format!("is4{number}"));
    }
    assert!(!project.path("line").exists(), "{}", project.read("line"));
    terminal.say("fg\n");
    terminal.until_times("record -- sh reads.sh", 2);
    terminal.say("for the program\r");
    common::kill::until("it has its line", || project.path("line").exists());
    terminal.until("shell 8> ");
    terminal.say("exit\n");
    assert_eq!(terminal.end().0, 0);
    assert_eq!(project.read("line"), "for the program\n");
    assert_eq!(project.json(&["show", "@last"])["status"], "completed");
}

#[test]
fn a_program_that_its_user_stopped_is_nobody_elses() {
    let project = Project::new("");
    assert_eq!(project.run(&["init"]).code, 0);
    project.write(".logreel/config.toml", "lease = \"1s\"\n");
    let mut terminal = OnTerminal::start(&project, &own(&["bash", "--norc", "-i"]));
    terminal.until("shell 1> ");
    project.write("stops.sh", STOPS);
    let program = project.std_command().get_program().to_owned();
    let program = program.to_str().unwrap().to_owned();
    terminal.say(&format!("{program} record -- sh stops.sh\n"));
    terminal.until("ready");
    terminal.say("\x1a");
    terminal.until("Stopped");
    let worker = project.start(&["worker"], "");
    // Longer than its lease.
    assert_eq!(project.run(&["wait", "@last", "--timeout", "3s"]).code, 124);
    let refused = project.run(&["resume", "@last"]);
    assert_eq!(refused.code, 5, "{}", refused.err);
    assert!(refused.err.contains("`fg`"), "{}", refused.err);
    worker.kill();
    terminal.say("fg\n");
    terminal.until_times("record -- sh stops.sh", 3);
    terminal.say("two\n");
    terminal.until("got two");
    terminal.say("\x04");
    terminal.until("shell 3> ");
    terminal.say("exit\n");
    assert_eq!(terminal.end().0, 0);
    assert_eq!(project.json(&["show", "@last"])["status"], "completed");
}
