//! A program that prints 100 MB: recorded, beside a bare pipe and beside `script -q`; and the memory that the
//! recorder takes meanwhile.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::measure::{Bar, Figure, Metric, Params, Row, now, rows};
use crate::place::Place;

/// What is printed, line by line.
const LINE: &str =
    "the quick brown fox jumps over the lazy dog, and nothing here is a secret at all\n";
/// More than this and what waits for the log is not bounded.
const MEMORY_MIB_MAX: f64 = 96.0;

pub fn bench(place: &Place) -> Result<Vec<Row>> {
    let Some(logreel) = binary()? else {
        eprintln!(
            "record: no `logreel` beside this program; `cargo build --release -p logreel-cli` makes one"
        );
        return Ok(Vec::new());
    };
    let lines = place.size(100 << 20, 1 << 20) / LINE.len();
    let printed = place.file("printed.txt");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&printed)?);
    for _ in 0..lines {
        file.write_all(LINE.as_bytes())?;
    }
    file.flush()?;
    let params = Params {
        runs: 1,
        events: 1,
        payload_bytes: lines * LINE.len(),
    };
    let figure = |case, metric| Figure::new("record", case, metric, params);
    let mut piped = figure("beside a pipe", Metric::Ms);
    let mut scripted = figure("beside script -q", Metric::Ms);
    let mut memory = figure("memory", Metric::Mib).bar(Bar::ValueAtMost(MEMORY_MIB_MAX));
    let has_script = Command::new("script").arg("--version").output().is_ok();
    for round in 0..place.rounds() {
        let bare = timed(Command::new("cat").arg(&printed))?;
        let store = place.file(&format!("record-{round}.db"));
        let mut record = Command::new(&logreel);
        record.args(["record", "--", "cat"]).arg(&printed);
        record
            .env("LOGREEL_STORE", &store)
            .current_dir(folder(&printed));
        let (took, peak) = timed(&mut record)?;
        let milliseconds = |took: Duration| took.as_secs_f64() * 1e3;
        piped.round(milliseconds(took), Some(milliseconds(bare.0)));
        memory.round(peak, None);
        if has_script {
            let mut script = Command::new("script");
            let command = format!("cat {}", printed.display());
            script
                .args(["-q", "-c", &command])
                .arg(place.file("typescript"));
            let beside = timed(&mut script)?;
            scripted.round(milliseconds(took), Some(milliseconds(beside.0)));
        }
    }
    if has_script {
        rows([piped, scripted, memory])
    } else {
        eprintln!("record: no `script` here to measure beside");
        rows([piped, memory])
    }
}

/// The program that users have: said by LOGREEL_BIN, or built beside this one.
fn binary() -> Result<Option<PathBuf>> {
    let said = std::env::var_os("LOGREEL_BIN").map(PathBuf::from);
    let beside = std::env::current_exe()?.with_file_name("logreel");
    Ok(said.or_else(|| beside.exists().then_some(beside)))
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// How long it takes until all that it printed was read through a pipe, and the most memory it had, in MiB.
fn timed(command: &mut Command) -> Result<(Duration, f64)> {
    let began = now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let mut reader = Command::new("cat");
    let mut reader = reader
        .stdin(child.stdout.take().context("it has no stdout")?)
        .stdout(Stdio::null())
        .spawn()?;
    // The peak only grows, so the last look before the end has it but for its last moments.
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0.0;
    let ended = loop {
        peak = std::fs::read_to_string(&status).map_or(peak, |status| peak_of(&status).max(peak));
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        nap();
    };
    reader.wait()?;
    let took = now().saturating_sub(began);
    ensure!(
        ended.success(),
        "{:?} ended with {ended}",
        command.get_program()
    );
    Ok((took, peak))
}

#[expect(clippy::disallowed_methods, reason = "another process is looked at")]
fn nap() {
    std::thread::sleep(Duration::from_millis(2));
}

fn peak_of(status: &str) -> f64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
