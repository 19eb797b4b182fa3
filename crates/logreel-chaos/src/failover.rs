//! How long a run stands still when its worker is killed: until another has taken it up, and, where a command
//! was at work on a host that nobody can look at, until that command is started again.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::Common;
use crate::clock::{self, millis, now, pause, wall_micros};
use crate::database::{Database, Server};
use crate::dice::Dice;
use crate::door::Door;
use crate::fleet::{Host, Worker};
use crate::judge::duration;
use crate::ledger;
use crate::proxy::Proxy;
use crate::report::Report;
use crate::storm::url;
use crate::witness::Witness;
use crate::yard::Yard;

/// Runs that are under way when their worker is killed.
const RUNS: usize = 3;

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value = "2s", value_parser = duration)]
    lease: Duration,
    /// Kills of a worker that waits for an answer.
    #[arg(long, default_value_t = 50, value_parser = at_least_one)]
    kills: usize,
    /// Kills of a worker with a command at work.
    #[arg(long, default_value_t = 50, value_parser = at_least_one)]
    others: usize,
    /// Kills of one with a command at work, beside whom another works on the same host.
    #[arg(long, default_value_t = 20, value_parser = at_least_one)]
    beside: usize,
}

/// What was never tried shows nothing.
fn at_least_one(text: &str) -> Result<usize> {
    let many: usize = text.parse()?;
    ensure!(many > 0, "at least one");
    Ok(many)
}

/// An agent that waits for its model: at work, and no command is.
const AGENT: &str = "name = \"talk\"\nmodel = \"scripted/answers.jsonl\"\nsystem = \"You wait.\"\n";
const ANSWERS: &str = "{\"text\": \"done\", \"delay_ms\": 600000}\n";
/// A command that says when it begins.
const COMMAND: &str =
    "name = \"nap\"\n[[step]]\nid = \"nap\"\nrun = \"$PAY pay idempotent; exec sleep 600\"\n";

/// What is measured.
struct Kind {
    what: &'static str,
    spec: &'static str,
    /// The event that says that it is at work.
    at_work: &'static str,
    goes_on: GoesOn,
    /// Sooner nobody may: the worker that was killed could be alive.
    least: Duration,
    most: Duration,
}

/// What says that it goes on.
#[derive(Clone, Copy)]
enum GoesOn {
    /// Another has taken it up.
    TakenUp,
    /// Its command was started again.
    Command,
}

pub fn run(common: &Common, args: &Args) -> Result<bool> {
    let yard = Yard::new(common, args.lease)?;
    yard.write("talk.toml", AGENT)?;
    yard.write("answers.jsonl", ANSWERS)?;
    yard.write("nap.toml", COMMAND)?;
    let mut report = Report::default();
    let (lease, second) = (args.lease, millis(1000));
    let talk = Kind {
        what: "another host, waiting for a model",
        spec: "talk",
        at_work: "model.called",
        goes_on: GoesOn::TakenUp,
        least: lease / 2,
        most: lease + second,
    };
    let nap = Kind {
        what: "another host, a command in flight",
        spec: "nap",
        at_work: "step.started",
        goes_on: GoesOn::Command,
        // The lease, and one more for the command that may still be at work.
        least: lease + lease / 2,
        most: 2 * lease + second,
    };
    let beside = Kind {
        what: "the same host, a command in flight",
        least: Duration::ZERO,
        most: second,
        ..nap
    };
    {
        let mut apart = Fleet::new(&yard, [0, 1, 2])?;
        apart.measure(&talk, args.kills, &mut report)?;
        apart.measure(&nap, args.others, &mut report)?;
        apart.same_host()?;
        apart.measure(&beside, args.beside, &mut report)?;
    }
    report.print();
    let is_well = report.is_well();
    yard.finish(is_well);
    Ok(is_well)
}

struct Fleet<'y> {
    yard: &'y Yard,
    workers: Vec<Worker>,
    hosts: Vec<Host>,
    store: String,
    _proxy: Proxy,
    database: Database,
    dice: Dice,
    rounds: usize,
}

/// A run at work: in which epoch, and by which worker.
struct AtWork {
    run: String,
    epoch: u64,
    worker: usize,
}

/// When a worker was, on the clock of the database and on that of the ledger.
struct Killed {
    /// Which of its lives ended.
    life: String,
    wall_micros: i64,
    at: Duration,
}

impl<'y> Fleet<'y> {
    fn new(yard: &'y Yard, places: [usize; 3]) -> Result<Self> {
        let database = Server::make(&yard.path("pg"))?;
        database.start()?;
        let hosts = vec![
            Host::apart(yard, "a")?,
            Host::apart(yard, "b")?,
            Host::apart(yard, "c")?,
            Host::here(yard, "d")?,
        ];
        anyhow::ensure!(
            hosts.iter().take(3).all(Host::is_apart),
            "it measures other hosts, which are process namespaces: run it as root, with CAP_SYS_ADMIN"
        );
        let proxy = Proxy::start(database.socket())?;
        let store = url(&[&proxy]);
        let mut workers = Vec::new();
        for (name, host) in ["w1", "w2", "w3"].iter().zip(places) {
            let mut worker = Worker::new(name, host, store.clone(), 8);
            worker.start(yard, &hosts)?;
            worker.wait_until_ready(yard)?;
            workers.push(worker);
        }
        Ok(Self {
            yard,
            workers,
            hosts,
            store,
            _proxy: proxy,
            database,
            dice: Dice::new(yard.seed),
            rounds: 0,
        })
    }

    /// From now on all of them are on one.
    fn same_host(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            worker.drain()?;
            worker.host = 3;
            worker.start(self.yard, &self.hosts)?;
            worker.wait_until_ready(self.yard)?;
        }
        Ok(())
    }

    fn measure(&mut self, kind: &Kind, kills: usize, report: &mut Report) -> Result<()> {
        let (mut took, mut runs, mut least) = (Vec::new(), Vec::new(), Duration::MAX);
        for n in 0..kills {
            let stood = self.round(kind, &mut runs)?;
            let worst = stood.iter().max().copied().context("a run of its")?;
            least = stood.into_iter().fold(least, Duration::min);
            eprintln!("{} {}/{kills}: {worst:.3?}", kind.what, n + 1);
            took.push(worst);
        }
        took.sort();
        let at = |share: f64| {
            let index = (share * f64::from(u32::try_from(took.len()).unwrap_or(0))).ceil();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of a length is a place in it"
            )]
            let index = (index as usize).saturating_sub(1);
            took.get(index).copied().unwrap_or_default()
        };
        report.check(
            kind.what,
            format!(
                "{kills} kills: least {least:.3?}, p50 {:.3?}, p99 {:.3?}, from {:.1?} to {:.1?}",
                at(0.5),
                at(0.99),
                kind.least,
                kind.most
            ),
            least >= kind.least && at(0.99) <= kind.most,
        );
        report.none("runs taken up by two", &self.taken_up_twice(&runs)?);
        Ok(())
    }

    /// Runs that were not left to whoever took them up, with how often they were: asked when all is over.
    fn taken_up_twice(&self, runs: &[String]) -> Result<Vec<String>> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let twice = self.database.ask(&format!(
            "SELECT r.run, count(*) FROM events e JOIN runs r ON r.id = e.run \
             WHERE e.kind = 'run.resumed' AND r.run IN ({}) GROUP BY 1 HAVING count(*) > 1",
            quoted(runs)
        ))?;
        Ok(twice.into_iter().map(|row| row.join(" ")).collect())
    }

    /// Starts some runs, kills a worker that drives one, and waits until all of its runs go on. How long each of
    /// them stood still.
    fn round(&mut self, kind: &Kind, all_runs: &mut Vec<String>) -> Result<Vec<Duration>> {
        self.rounds += 1;
        let witness = Witness::default();
        let mut runs = Vec::new();
        let beside = self.workers.first().context("no worker")?.host;
        let door = Door::Program {
            store: self.store.clone(),
            host: self.hosts.get(beside).context("no such host")?,
        };
        for n in 0..RUNS {
            let key = format!("{}-{n}", self.rounds);
            runs.push(witness.start_run(self.yard, &door, &key, kind.spec)?);
        }
        let mut found = Vec::new();
        clock::until("runs are at work", Duration::from_secs(60), || {
            found = self.at_work(&runs, kind)?;
            Ok(found.len() == runs.len())
        })?;
        // At any moment between two beats.
        let moment = self.dice.between(Duration::ZERO, self.yard.lease);
        pause(moment);
        let victim = found
            .get(self.dice.below(found.len()))
            .context("some run is at work")?
            .worker;
        let worker = self.workers.get_mut(victim).context("no such worker")?;
        let killed = Killed {
            life: worker.life(),
            wall_micros: wall_micros(),
            at: now(),
        };
        worker.kill()?;
        let mut all = Vec::new();
        for at_work in found.iter().filter(|it| it.worker == victim) {
            let mut stood = None;
            clock::until("its runs go on", Duration::from_secs(60), || {
                stood = self.stood_still(kind.goes_on, at_work, &killed)?;
                Ok(stood.is_some())
            })?;
            all.push(stood.context("it goes on")?);
        }
        for run in &runs {
            let said = self.yard.call(&self.store, &["-q", "cancel", run])?;
            anyhow::ensure!(said.code == Some(0), "cancel {run}: {}", said.err);
        }
        let worker = self.workers.get_mut(victim).context("no such worker")?;
        worker.start(self.yard, &self.hosts)?;
        worker.wait_until_ready(self.yard)?;
        all_runs.append(&mut runs);
        Ok(all)
    }

    /// For how long, once it goes on.
    fn stood_still(
        &self,
        how: GoesOn,
        at_work: &AtWork,
        killed: &Killed,
    ) -> Result<Option<Duration>> {
        let AtWork { run, epoch, .. } = at_work;
        match how {
            GoesOn::TakenUp => {
                let times = self.database.ask(&format!(
                    "SELECT e.at FROM events e JOIN runs r ON r.id = e.run \
                     WHERE r.run = '{run}' AND e.kind = 'run.resumed' AND e.epoch > {epoch} ORDER BY e.seq"
                ))?;
                let Some(first) = times.iter().flatten().next() else {
                    return Ok(None);
                };
                let stood = first.parse::<i64>()? - killed.wall_micros;
                Ok(Some(Duration::from_micros(
                    u64::try_from(stood).unwrap_or(0),
                )))
            }
            GoesOn::Command => {
                let (entries, _) = ledger::read(&self.yard.book())?;
                // What it had begun itself goes on without it.
                let again = entries.iter().find(|entry| {
                    entry.run == *run && entry.at > killed.at && entry.worker != killed.life
                });
                Ok(again.map(|entry| entry.at - killed.at))
            }
        }
    }

    fn at_work(&self, runs: &[String], kind: &Kind) -> Result<Vec<AtWork>> {
        let rows = self.database.ask(&format!(
            "SELECT DISTINCT r.run, l.epoch, o.folder, o.pid FROM live l JOIN queue q ON q.run = l.run \
             JOIN runs r ON r.id = l.run JOIN owners o ON o.id = q.owner JOIN events e ON e.run = r.id \
             WHERE e.kind = '{}' AND r.run IN ({})",
            kind.at_work,
            quoted(runs)
        ))?;
        let mut by_place = BTreeMap::new();
        for (index, worker) in self.workers.iter().enumerate() {
            let host = self.hosts.get(worker.host).context("no such host")?;
            // Within a namespace of its own a worker has another number, and is the only one there.
            let pid = match host.is_apart() {
                true => String::new(),
                false => worker.pid().unwrap_or_default(),
            };
            by_place.insert((host.locks().display().to_string(), pid), index);
        }
        let mut found = Vec::new();
        for row in rows {
            let [run, epoch, folder, pid] = row.as_slice() else {
                continue;
            };
            let place = |pid: &str| by_place.get(&(folder.clone(), pid.to_owned()));
            if let Some(worker) = place("").or_else(|| place(pid)) {
                found.push(AtWork {
                    run: run.clone(),
                    epoch: epoch.parse()?,
                    worker: *worker,
                });
            }
        }
        Ok(found)
    }
}

fn quoted(runs: &[String]) -> String {
    let quoted: Vec<String> = runs.iter().map(|run| format!("'{run}'")).collect();
    quoted.join(", ")
}
