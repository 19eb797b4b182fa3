//! What must be true in the end, whatever was done to the fleet: looked up in the logs, the ledger, and what
//! the witnesses saw.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::clock::millis;
use crate::database::Server;
use crate::fleet::Freeze;
use crate::ledger::{self, Entry};
use crate::report::Report;
use crate::witness::Seen;
use crate::yard::Yard;

struct Event {
    seq: u64,
    epoch: u64,
    kind: String,
    digest: String,
    body: Value,
}

type Logs = BTreeMap<String, Vec<Event>>;

/// How soon after it was woken a worker does what it was about to do.
const AFTER_WAKING: std::time::Duration = millis_const(3000);

const fn millis_const(millis: u64) -> std::time::Duration {
    std::time::Duration::from_millis(millis)
}

pub struct Case<'c> {
    pub yard: &'c Yard,
    pub database: &'c Server,
    /// A way to the database for `logreel verify`.
    pub store: &'c str,
    pub seen: &'c Seen,
    pub freezes: &'c [Freeze],
    /// Every write of a run, by its step.
    pub writes: &'c [String],
}

impl Case<'_> {
    pub fn judge(&self, report: &mut Report) -> Result<()> {
        let logs = self.logs()?;
        let (entries, asked) = ledger::read(&self.yard.book())?;
        self.runs(report)?;
        self.acknowledged(&logs, report);
        one_line(&logs, report);
        self.drivers(&logs, &entries, report);
        self.effects(&logs, &entries, report);
        let of = |kind: &str| {
            let events = logs.values().flatten();
            events.filter(|event| event.kind == kind).count()
        };
        report.tell("events", logs.values().map(Vec::len).sum::<usize>());
        report.tell("taken up again by a worker", of("run.resumed"));
        report.tell("writes in doubt, settled by reconcile", of("step.resolved"));
        report.tell("effects in the ledger", entries.len());
        report.tell("questions to the ledger", asked);
        report.none("bugs and panics that the logs tell of", &self.told()?);
        let verified = self.yard.call(self.store, &["verify"])?;
        report.check(
            "chains and folds verified",
            verified.out.lines().last().unwrap_or(&verified.err),
            verified.code == Some(0),
        );
        Ok(())
    }

    fn logs(&self) -> Result<Logs> {
        let rows = self.database.ask(
            "SELECT r.run, e.seq, e.epoch, e.kind, encode(e.digest, 'hex'), e.body \
             FROM events e JOIN runs r ON r.id = e.run ORDER BY r.id, e.seq",
        )?;
        let mut logs = Logs::new();
        for row in rows {
            let [run, seq, epoch, kind, digest, body] = row.as_slice() else {
                anyhow::bail!("an event is not understood: {row:?}");
            };
            let event = Event {
                seq: seq.parse()?,
                epoch: epoch.parse()?,
                kind: kind.clone(),
                digest: digest.clone(),
                body: serde_json::from_str(body)?,
            };
            logs.entry(run.clone()).or_default().push(event);
        }
        Ok(logs)
    }

    /// What a process says when it finds itself where it should never be.
    fn told(&self) -> Result<Vec<String>> {
        let mut told = Vec::new();
        for file in std::fs::read_dir(self.yard.path("logs"))?.flatten() {
            let name = file.file_name();
            let said = std::fs::read(file.path())?;
            let said = String::from_utf8_lossy(&said);
            let wrong = |line: &&str| line.contains("bug in logreel") || line.contains("panicked");
            let lines = said.lines().filter(wrong);
            told.extend(lines.map(|line| format!("{}: {line}", name.display())));
        }
        Ok(told)
    }

    /// Every run has ended, and as if nothing had happened to it.
    fn runs(&self, report: &mut Report) -> Result<()> {
        let rows = self.database.ask(
            "SELECT r.run, r.status, encode(r.final_state_digest, 'hex'), l.owner \
             FROM runs r LEFT JOIN live l ON l.run = r.id",
        )?;
        let (mut unended, mut leased, mut ends) = (Vec::new(), Vec::new(), BTreeSet::new());
        for row in &rows {
            let [run, status, end, owner] = row.as_slice() else {
                anyhow::bail!("a run is not understood: {row:?}");
            };
            if status != "completed" {
                let shown = self.yard.call(self.store, &["show", run])?;
                unended.push(format!("{run} is {status}: {}", shown.out));
            } else {
                ends.insert(end.clone());
            }
            if !owner.is_empty() {
                leased.push(run.clone());
            }
        }
        let asked: BTreeSet<&String> = self.seen.runs.values().collect();
        let stored: BTreeSet<&String> = rows.iter().filter_map(|row| row.first()).collect();
        let lost: Vec<String> = asked.difference(&stored).map(ToString::to_string).collect();
        let extra: Vec<String> = stored.difference(&asked).map(ToString::to_string).collect();
        report.tell("runs", rows.len());
        report.none("runs that did not complete", &unended);
        report.none("acknowledged runs lost", &lost);
        report.none("runs that nobody was told of", &extra);
        report.none("leases left behind", &leased);
        report.check("different final states", ends.len(), ends.len() == 1);
        Ok(())
    }

    /// Whatever anyone was shown is there.
    fn acknowledged(&self, logs: &Logs, report: &mut Report) {
        let mut lost = Vec::new();
        for ((run, seq), digest) in &self.seen.events {
            let events = logs.get(run).map(Vec::as_slice).unwrap_or_default();
            let there = events.iter().find(|event| event.seq == *seq);
            if there.is_none_or(|event| event.digest != *digest) {
                lost.push(format!("event {seq} of {run}"));
            }
        }
        report.tell(
            "acknowledged events that were kept in mind",
            self.seen.events.len(),
        );
        report.none("of them lost or changed", &lost);
        report.tell(
            "runs followed to their end, begun anew",
            format!("{}, {}", self.seen.followed, self.seen.follows_again),
        );
        report.tell("starts asked for again", self.seen.starts_again);
        report.none("what no witness should have seen", &self.seen.wrong);
    }

    /// Nobody shares an epoch.
    fn drivers(&self, logs: &Logs, entries: &[Entry], report: &mut Report) {
        let mut shared = Vec::new();
        for ((run, epoch), owners) in &self.seen.owners {
            if owners.len() > 1 {
                shared.push(format!("epoch {epoch} of {run} has the owners {owners:?}"));
            }
        }
        // Whose command paid a key that was announced once, that one drove the epoch of its announcement.
        let mut paid: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in entries.iter().filter(|entry| entry.effect == "write") {
            paid.entry(&entry.key).or_default().push(entry);
        }
        let mut by_epoch: BTreeMap<(&str, u64), BTreeSet<&str>> = BTreeMap::new();
        for (run, events) in logs {
            let mut announced: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
            for event in events.iter().filter(|event| event.kind == "step.started") {
                if let Some(key) = event.body["key"].as_str() {
                    announced.entry(key).or_default().push(event.epoch);
                }
            }
            for (key, epochs) in announced {
                if let ([epoch], Some([entry])) = (&*epochs, paid.get(key).map(Vec::as_slice)) {
                    let drivers = by_epoch.entry((run, *epoch)).or_default();
                    drivers.insert(&entry.worker);
                }
            }
        }
        for ((run, epoch), drivers) in &by_epoch {
            if drivers.len() > 1 {
                shared.push(format!("epoch {epoch} of {run} was driven by {drivers:?}"));
            }
        }
        let known: BTreeSet<(&str, u64)> = self
            .seen
            .owners
            .keys()
            .map(|(run, epoch)| (run.as_str(), *epoch))
            .chain(by_epoch.keys().copied())
            .collect();
        report.tell("epochs whose driver is known", known.len());
        report.none("epochs with two drivers", &shared);
    }

    /// Every write happened once, after it was announced.
    fn effects(&self, logs: &Logs, entries: &[Entry], report: &mut Report) {
        let (mut by_key, mut unannounced) = (BTreeMap::<&str, Vec<&Entry>>::new(), Vec::new());
        let mut paid: BTreeSet<(&str, &str)> = BTreeSet::new();
        for entry in entries.iter().filter(|entry| entry.effect == "write") {
            by_key.entry(&entry.key).or_default().push(entry);
            paid.insert((&entry.run, &entry.step));
            let events = logs.get(&entry.run).map(Vec::as_slice).unwrap_or_default();
            let is_announced = events.iter().any(|event| {
                event.kind == "step.started" && event.body["key"].as_str() == Some(&entry.key)
            });
            if !is_announced {
                unannounced.push(format!("{} of {}", entry.step, entry.run));
            }
        }
        let mut missing = Vec::new();
        for (run, events) in logs {
            if events.iter().any(|event| event.kind == "run.completed") {
                let unpaid = self
                    .writes
                    .iter()
                    .filter(|step| !paid.contains(&(run, step.as_str())));
                missing.extend(unpaid.map(|step| format!("{step} of {run}")));
            }
        }
        let (mut twice, mut traced) = (Vec::new(), Vec::new());
        for entries in by_key.values() {
            for pair in entries.windows(2) {
                let [before, again] = pair else { continue };
                let told = format!(
                    "{} of {}: by {} at {:.3?}, again by {} at {:.3?}",
                    again.step, again.run, before.worker, before.at, again.worker, again.at
                );
                let frozen = self
                    .freezes
                    .iter()
                    .find(|it| self.explains(it, before, again));
                match frozen {
                    Some(it) => traced.push(format!(
                        "{told}, which stood still from {:.3?} to {:.3?}",
                        it.from, it.until
                    )),
                    None => twice.push(told),
                }
            }
        }
        report.tell("keys of writes in the ledger", by_key.len());
        report.none("keys twice in the ledger", &twice);
        report.tell("of them right after a freeze (SEMANTICS 22)", traced.len());
        for told in traced {
            println!("a repeat by a frozen worker: {told}");
        }
        report.none("writes that were not announced", &unannounced);
        report.none("writes of completed runs that did not happen", &missing);
    }

    /// The worker stood still longer than its lease, someone else went on meanwhile, and what it was about to
    /// do came right after it was woken.
    fn explains(&self, freeze: &Freeze, before: &Entry, again: &Entry) -> bool {
        freeze.worker == again.worker
            && freeze.until - freeze.from >= self.yard.lease
            && before.at > freeze.from
            && again.at >= freeze.until
            && again.at - freeze.until < AFTER_WAKING
    }
}

/// Events are numbered without a gap, and epochs never go back.
fn one_line(logs: &Logs, report: &mut Report) {
    let (mut gaps, mut backwards) = (Vec::new(), Vec::new());
    for (run, events) in logs {
        for (event, seq) in events.iter().zip(1..) {
            if event.seq != seq {
                gaps.push(format!(
                    "{run} has event {} where {seq} should be",
                    event.seq
                ));
                break;
            }
        }
        for pair in events.windows(2) {
            if let [before, after] = pair
                && after.epoch < before.epoch
            {
                backwards.push(format!("{run} at event {}", after.seq));
            }
        }
    }
    report.none("logs with a gap", &gaps);
    report.none("events of an epoch that was over", &backwards);
}

/// The value of a flag like `2s` or `500ms`.
pub fn duration(text: &str) -> Result<std::time::Duration> {
    let millis_of = |number: &str, unit: u64| -> Result<u64> { Ok(number.parse::<u64>()? * unit) };
    let found = match text.strip_suffix("ms") {
        Some(number) => millis_of(number, 1)?,
        None => {
            let number = text.strip_suffix('s').context("write 500ms or 2s")?;
            millis_of(number, 1000)?
        }
    };
    Ok(millis(found))
}
