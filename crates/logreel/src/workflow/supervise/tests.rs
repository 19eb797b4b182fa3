//! Commands at work, each a real process.

use std::io::{Read as _, Write as _};

use logreel_store::{OwnerId, SystemEnv};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;

const OWNER: OwnerId = OwnerId(7);

struct World {
    folder: tempfile::TempDir,
    commands: Commands,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let notes = Some(folder.path().to_owned());
        let groups = Arc::new(Groups::new(notes, OWNER));
        let run = SystemEnv.run_id();
        let commands = Commands::new(run, groups, Arc::new(SystemEnv));
        Self { folder, commands }
    }

    fn command(&self, shell: &str) -> Start {
        Start {
            shell: shell.to_owned(),
            input: Vec::new(),
            env: Vec::new(),
            inherits: true,
            dir: self.folder.path().to_owned(),
            write: false,
            output_bytes_max: 1024 * 1024,
            keeps_ends: false,
            merged: false,
            pipes: None,
            on_line: Box::new(|_, _| {}),
        }
    }

    async fn run(&self, start: Start) -> Ended {
        let mut handle = self.commands.start(None, start).await.unwrap();
        handle.ended().await.unwrap()
    }

    /// One that says its group's number, and then does what it is told.
    async fn begun(&self, step: Option<StepId>, shell: &str) -> (Handle, Pid) {
        let start = self.command(&format!("echo $$; {shell}"));
        let (start, mut lines) = listened(start);
        let handle = self.commands.start(step, start).await.unwrap();
        let (_, group) = lines.recv().await.unwrap();
        (handle, pid(&group))
    }

    fn notes(&self) -> PathBuf {
        self.folder.path().join(format!("{OWNER}.groups"))
    }
}

fn listened(start: Start) -> (Start, UnboundedReceiver<(Stream, String)>) {
    let (sender, lines) = unbounded_channel();
    let on_line: OnLine = Box::new(move |stream, line| {
        let told = sender.send((stream, line.to_owned()));
        told.unwrap_or(());
    });
    (Start { on_line, ..start }, lines)
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

fn text(ended: &Ended) -> &str {
    std::str::from_utf8(&ended.stdout).unwrap()
}

#[test]
fn what_follows_the_go_is_the_commands_own_input_in_every_shell() {
    let input: Vec<u8> = (0..500_000)
        .flat_map(|n| format!("{n}\n").into_bytes())
        .collect();
    for shell in ["/bin/sh", "/bin/dash", "/bin/bash"] {
        if !std::path::Path::new(shell).exists() {
            continue;
        }
        let mut child = std::process::Command::new(shell)
            .args(["-c", WAIT_FOR_GO, shell, "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let given = input.clone();
        let feeding = std::thread::spawn(move || {
            stdin.write_all(b"\n").unwrap();
            stdin.write_all(&given).unwrap();
        });
        let mut printed = Vec::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut printed)
            .unwrap();
        feeding.join().unwrap();
        assert!(
            printed == input,
            "{shell}: the input was not passed on whole"
        );
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn without_a_go_the_command_does_not_run() {
    let output = std::process::Command::new(SHELL)
        .args(["-c", WAIT_FOR_GO, SHELL, "echo it ran"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(output.stdout.is_empty());
}

#[tokio::test]
async fn a_command_gets_its_input_environment_and_folder() {
    let world = World::new();
    let input = vec![b'x'; 900_000];
    let start = Start {
        input: input.clone(),
        ..world.command("cat")
    };
    let ended = world.run(start).await;
    assert_eq!(ended.how, How::Exited(0));
    assert!(ended.stdout == input);

    let start = Start {
        env: vec![("NAME".to_owned(), "a \"b\" $(c)".to_owned())],
        ..world.command("echo \"$NAME\"; pwd; cat")
    };
    let ended = world.run(start).await;
    let folder = world.folder.path().canonicalize().unwrap();
    assert_eq!(
        text(&ended),
        format!("a \"b\" $(c)\n{}\n", folder.display())
    );
}

#[tokio::test]
async fn a_command_may_ignore_its_input_and_close_its_output() {
    let world = World::new();
    let input = vec![b'x'; 4_000_000];
    let start = Start {
        input: input.clone(),
        ..world.command("echo no thanks; exit 3")
    };
    let ended = world.run(start).await;
    assert_eq!((ended.how, text(&ended)), (How::Exited(3), "no thanks\n"));

    let start = Start {
        input: input.clone(),
        ..world.command("exec >&- 2>&-; cat > kept")
    };
    assert_eq!(world.run(start).await.how, How::Exited(0));
    assert!(std::fs::read(world.folder.path().join("kept")).unwrap() == input);
}

#[tokio::test]
async fn the_group_is_noted_before_the_command_runs_and_until_it_ended() {
    let world = World::new();
    let shell = format!("cat {OWNER}.groups; echo $$; cut -d' ' -f5,22 /proc/$$/stat");
    let ended = world.run(world.command(&shell)).await;
    let lines: Vec<&str> = text(&ended).lines().collect();
    let [noted, own, group_and_start] = lines[..] else {
        panic!("{lines:?}");
    };
    let words: Vec<&str> = noted.split(' ').collect();
    assert_eq!(words[0], world.commands.run.to_string());
    assert_eq!(words[1], own);
    assert_eq!(words[1..3].join(" "), group_and_start);
    assert!(!world.notes().exists(), "nothing runs any more");
}

#[tokio::test]
async fn a_command_that_cannot_be_noted_does_not_run() {
    let world = World::new();
    std::fs::create_dir(world.notes()).unwrap();
    let mut handle = world
        .commands
        .start(None, world.command("touch ran"))
        .await
        .unwrap();
    assert!(matches!(handle.ended().await, Err(Trouble::Note(_))));
    assert!(!world.folder.path().join("ran").exists());
}

#[tokio::test]
async fn ends_are_told_apart() {
    let world = World::new();
    assert_eq!(world.run(world.command("true")).await.how, How::Exited(0));
    assert_eq!(world.run(world.command("exit 9")).await.how, How::Exited(9));
    let ended = world.run(world.command("kill -KILL $$")).await;
    assert_eq!(ended.how, How::Signalled(9));
    let ended = world.run(world.command("no-such-program")).await;
    assert_eq!(ended.how, How::Exited(127));
    assert!(ended.stderr.contains("no-such-program"), "{}", ended.stderr);

    let start = Start {
        dir: "/no/such/folder".into(),
        ..world.command("true")
    };
    let mut handle = world.commands.start(None, start).await.unwrap();
    let error = handle.ended().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the working folder /no/such/folder does not exist"
    );
    let start = world.command(&"x".repeat(300_000));
    let mut handle = world.commands.start(None, start).await.unwrap();
    assert!(matches!(handle.ended().await, Err(Trouble::TooLong)));
}

#[tokio::test]
async fn lines_are_told_while_the_command_runs() {
    let world = World::new();
    let shell = "echo one; echo two >&2; cat fifo; printf last";
    let made = std::process::Command::new("mkfifo")
        .arg(world.folder.path().join("fifo"))
        .status();
    assert!(made.unwrap().success());
    let (start, mut lines) = listened(world.command(shell));
    let mut handle = world.commands.start(None, start).await.unwrap();
    let mut first = [lines.recv().await.unwrap(), lines.recv().await.unwrap()];
    first.sort_by_key(|(_, line)| line.clone());
    assert_eq!(first[0], (Stream::Stdout, "one".to_owned()));
    assert_eq!(first[1], (Stream::Stderr, "two".to_owned()));
    // It runs until someone writes here.
    std::fs::write(world.folder.path().join("fifo"), "three\n").unwrap();
    assert_eq!(lines.recv().await.unwrap().1, "three");
    assert_eq!(lines.recv().await.unwrap().1, "last");
    assert_eq!(text(&handle.ended().await.unwrap()), "one\nthree\nlast");
}

#[tokio::test]
async fn what_a_command_leaves_in_its_group_does_not_outlive_it() {
    let world = World::new();
    // One holds the output open, one does not.
    for redirected in ["", ">/dev/null 2>&1 </dev/null"] {
        let shell = format!("sleep 1000 {redirected} & echo $!");
        let ended = world.run(world.command(&shell)).await;
        assert_eq!(ended.how, How::Exited(0));
        let left = pid(text(&ended));
        assert!(!process::runs(left), "{left:?} is still there");
    }
}

#[tokio::test]
async fn a_dropped_handle_stops_the_whole_group_whatever_it_does_about_it() {
    let world = World::new();
    for shell in [
        "sleep 1000 & sleep 1000",
        "trap '' TERM; sleep 1000 & while :; do sleep 0.05; done",
        "kill -STOP $$",
        "trap '' TERM; kill -STOP 0; sleep 1000",
        "yes",
        "yes >&2",
    ] {
        let (handle, group) = world.begun(None, shell).await;
        assert!(process::is_running(group));
        drop(handle);
        // Not the first to be waited for: the place is taken until the end.
        let mut at_work = world.commands.at_work.subscribe();
        at_work.wait_for(|it| it.running.is_empty()).await.unwrap();
        assert!(!process::is_running(group), "{shell}");
        assert!(!world.notes().exists());
    }
}

#[tokio::test]
async fn a_stopped_command_may_clean_up_and_is_awaited() {
    let world = World::new();
    let shell =
        "trap 'echo cleaned > cleaned; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let (start, mut lines) = listened(world.command(shell));
    let mut handle = world.commands.start(None, start).await.unwrap();
    lines.recv().await.unwrap();
    handle.stop();
    assert_eq!(handle.ended().await.unwrap().how, How::Stopped);
    let cleaned = std::fs::read_to_string(world.folder.path().join("cleaned"));
    assert_eq!(cleaned.unwrap(), "cleaned\n");
}

#[tokio::test]
async fn a_step_begins_again_only_when_its_last_command_is_gone() {
    let world = World::new();
    let step = Some(StepId::from_parts(["step"]).unwrap());
    let ignores = "trap '' TERM; while :; do sleep 0.05; done";
    let (handle, first) = world.begun(step.clone(), ignores).await;
    drop(handle);
    let (_handle, second) = world.begun(step, "sleep 1000").await;
    assert!(!process::is_running(first));
    assert!(process::is_running(second));
    world.commands.all_stopped().await;
    assert!(!process::is_running(second));
    let refused = world.commands.start(None, world.command("true")).await;
    assert!(matches!(refused, Err(Trouble::Closed)));
}

#[test]
fn a_runtime_that_shuts_down_takes_its_commands_along() {
    let world = World::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (_handle, group) = runtime.block_on(world.begun(None, "trap '' TERM; sleep 1000"));
    drop(runtime);
    // Killed, but nobody waited for it.
    let deadline = SystemEnv.monotonic() + Duration::from_secs(20);
    while process::is_running(group) {
        assert!(SystemEnv.monotonic() < deadline, "{group:?} is still there");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn too_much_output_stops_a_command_but_not_a_write() {
    let world = World::new();
    let ended = world.run(world.command("yes; touch went_on")).await;
    assert_eq!(ended.how, How::Stopped);
    assert!(ended.too_large && ended.stdout.is_empty());
    assert!(!world.folder.path().join("went_on").exists());

    let before = peak_kib();
    let start = Start {
        write: true,
        ..world
            .command("head -c 1073741824 /dev/zero; head -c 10485760 /dev/zero >&2; touch went_on")
    };
    let ended = world.run(start).await;
    assert_eq!(ended.how, How::Exited(0));
    assert!(ended.too_large && ended.stdout.is_empty());
    assert!(world.folder.path().join("went_on").exists());
    let grown = peak_kib() - before;
    assert!(grown < 256 * 1024, "{grown} KiB more for 1 GiB of output");
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let words = line.unwrap().split_whitespace().next();
    words.unwrap().parse().unwrap()
}

#[test]
fn the_end_of_stderr_is_kept_from_a_whole_character_on() {
    let mut tail = Tail::default();
    tail.take(b"short");
    assert_eq!(tail.text(), "short");
    for _ in 0..1000 {
        tail.take("lang: äöü ".as_bytes());
    }
    assert_eq!(tail.bytes.len(), TAIL_BYTES);
    let long = "ü".repeat(TAIL_BYTES) + "x";
    tail.take(long.as_bytes());
    assert_eq!(tail.text(), "ü".repeat(TAIL_BYTES / 2 - 1) + "x");
}

#[test]
fn lines_are_whole_and_bounded() {
    let mut told = Vec::new();
    let mut lines = Lines::default();
    let long = "y".repeat(LINE_BYTES * 2 + 5);
    for chunk in ["a", "b\n\nc", "\n", &long, "\nend"] {
        lines.take(chunk.as_bytes(), |line| told.push(line.to_owned()));
    }
    lines.end(|line| told.push(line.to_owned()));
    let full = "y".repeat(LINE_BYTES);
    assert_eq!(told, ["ab", "", "c", &full, &full, "yyyyy", "end"]);
}
