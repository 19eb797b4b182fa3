//! A worker is frozen past its lease while its command is at work. Another, on another host, ends the run. When the first
//! is woken it appends nothing and stops its command (SEMANTICS 20 to 22).

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::Common;
use crate::clock;
use crate::database::Server;
use crate::door::Door;
use crate::fleet::{Host, Worker};
use crate::judge::duration;
use crate::proxy::Proxy;
use crate::report::Report;
use crate::storm::{ended, url};
use crate::witness::Witness;
use crate::yard::Yard;

#[derive(clap::Args)]
pub struct Args {
    /// Short, but not so short that a beat which is late on a busy machine lets someone else begin.
    #[arg(long, default_value = "1s", value_parser = duration)]
    lease: Duration,
}

/// The longest time after its first attempt at which a step is tried again: half of it is left to chance. That comes due
/// while its worker is frozen.
const BACKOFF: Duration = Duration::from_secs(4);

/// The first attempt at one step hangs, that at another fails; the write must happen once.
const SPEC: &str = r#"
name = "frozen"
[[step]]
id = "work"
run = "echo $LOGREEL_KEY >> worked; if [ -e again ]; then echo done; else touch again; exec sleep 1000; fi"
[[step]]
id = "retry"
run = "echo $CHAOS_WORKER >> tried; [ -e later ]"
retry = { attempts = 9, backoff = "4s..4s" }
[[step]]
id = "pay"
needs = ["work", "retry"]
effect = "write"
run = "exec $PAY pay write"
reconcile = "exec $PAY ask"
timeout = "5s"
"#;

pub fn run(common: &Common, args: &Args) -> Result<bool> {
    let yard = Yard::new(common, args.lease)?;
    let mut report = Report::default();
    freeze(&yard, &mut report)?;
    report.print();
    let is_well = report.is_well();
    yard.finish(is_well);
    Ok(is_well)
}

fn freeze(yard: &Yard, report: &mut Report) -> Result<()> {
    yard.write("w.toml", SPEC)?;
    let database = Server::make(&yard.path("pg"))?;
    database.start()?;
    let hosts = [Host::apart(yard, "a")?, Host::apart(yard, "b")?];
    let proxy = Proxy::start(database.socket())?;
    let store = url(&[&proxy]);
    let mut first = Worker::new("w1", 0, store.clone(), 2);
    let mut second = Worker::new("w2", 1, store.clone(), 2);
    let patience = Duration::from_secs(60);
    first.start(yard, &hosts)?;
    first.wait_until_ready(yard)?;
    let [host, _] = &hosts;
    let door = Door::Program {
        store: store.clone(),
        host,
    };
    let run = Witness::default().start_run(yard, &door, "frozen", "w")?;
    let mark = yard.work().join("again");
    clock::until("its command is at work", patience, || {
        Ok(mark.exists() && database.count("events WHERE kind = 'step.retrying'")? > 0)
    })?;
    first.freeze()?;
    let frozen_at = clock::now();
    let life = first.life();
    let tried = || -> Result<usize> {
        let tried = std::fs::read_to_string(yard.work().join("tried"))?;
        Ok(tried.lines().filter(|who| *who == life).count())
    };
    let tried_before = tried()?;
    ensure!(
        tried_before > 0,
        "{life} was to drive the run, and someone else did"
    );
    yard.write("later", "")?;
    second.start(yard, &hosts)?;
    clock::until("another ends the run", patience, || {
        Ok(ended(&database)? == 1)
    })?;
    report.tell(
        "from the freeze to the end by another",
        format!("{:.3?}", clock::now() - frozen_at),
    );
    // The command on the other host had one lease more (SEMANTICS 21).
    let waited = database.ask(
        "SELECT max(at) FILTER (WHERE kind = 'step.finished') - max(at) FILTER (WHERE kind = 'run.resumed') \
         FROM events WHERE kind = 'run.resumed' OR body LIKE '%\"work\"%'",
    )?;
    let waited = waited.iter().flatten().next().context("a time")?.parse()?;
    let waited = Duration::from_micros(waited);
    // The host of a worker that stands still ends its command before the next attempt.
    let is_apart = hosts.iter().all(Host::is_apart);
    report.check(
        "from the takeover to the end of its second attempt",
        format!("{waited:.3?}"),
        waited >= yard.lease || !is_apart,
    );
    let log =
        || database.ask("SELECT seq, epoch, kind, encode(digest, 'hex') FROM events ORDER BY seq");
    let sleeping = || -> Result<usize> {
        let alive = yard.alive()?;
        Ok(alive
            .iter()
            .filter(|line| line.contains("sleep 1000"))
            .count())
    };
    let before = log()?;
    let left = sleeping()?;
    report.check(
        "its command while it is frozen, on a host apart",
        format!("{left}, {is_apart}"),
        left == usize::from(is_apart),
    );
    clock::pause((frozen_at + BACKOFF + BACKOFF / 4).saturating_sub(clock::now()));
    first.thaw()?;
    let thawed = clock::now();
    clock::until("the woken one stops its command", patience, || {
        Ok(sleeping()? == 0)
    })?;
    let stopped = clock::now() - thawed;
    report.check(
        "woken, it stopped its command after",
        format!("{stopped:.3?}"),
        stopped < Duration::from_secs(3),
    );
    first.drain()?;
    second.drain()?;
    report.check(
        "attempts it began that came due while it was frozen",
        tried()? - tried_before,
        tried()? == tried_before,
    );
    report.check(
        "events it appended",
        log()?.len() - before.len(),
        log()? == before,
    );
    let worked = std::fs::read_to_string(yard.work().join("worked"))?;
    let keys: Vec<&str> = worked.lines().collect();
    let is_one = keys.len() == 2 && keys.first() == keys.last();
    report.check("attempts at its step, one key", keys.len(), is_one);
    let (paid, _) = crate::ledger::read(&yard.book())?;
    report.check("writes", paid.len(), paid.len() == 1);
    let shown = yard.call(&store, &["verify", &run])?;
    report.check("the log holds", &shown.out, shown.code == Some(0));
    Ok(())
}
