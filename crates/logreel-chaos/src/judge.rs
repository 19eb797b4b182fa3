//! Gathers what is left of an experiment: the logs, the ledger, what processes said. What must be true of it is
//! [`evidence`](crate::evidence)'s.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};

use crate::clock::millis;
use crate::database::Server;
use crate::errand::Chains;
use crate::evidence::{Event, Evidence, Expected, Logs};
use crate::fleet::Freeze;
use crate::ledger;
use crate::report::Report;
use crate::witness::Seen;
use crate::yard::Yard;

/// What a process says when it finds itself where it should never be, or that it was told of something which is there no
/// more: it heard far more acknowledgements than our witnesses.
const AMISS: [&str; 4] = [
    "bug in logreel",
    "panicked",
    "the store has lost",
    "the store is damaged",
];
/// What a worker says that gives back what it held and did not drive. One that could not do so when it let go, because the
/// database was away, does it then.
const FORGOTTEN: &str = "nobody here drives it";

pub struct Case<'c> {
    pub yard: &'c Yard,
    pub database: &'c Server,
    /// A way to the database for `logreel verify`.
    pub store: &'c str,
    pub seen: &'c Seen,
    pub freezes: &'c [Freeze],
    pub chains: &'c Chains,
    pub expected: Expected,
}

impl Case<'_> {
    pub fn judge(&self, report: &mut Report) -> Result<()> {
        let logs = self.logs()?;
        let (entries, asked) = ledger::read(&self.yard.book())?;
        self.runs(report)?;
        Evidence {
            logs: &logs,
            entries: &entries,
            seen: self.seen,
            freezes: self.freezes,
            lease: self.yard.lease,
            chains: self.chains,
            expected: self.expected,
        }
        .judge(report);
        let many = |is_it: fn(&Event) -> bool| {
            let events = logs.values().flatten();
            events.filter(|event| is_it(event)).count()
        };
        report.tell("events", logs.values().map(Vec::len).sum::<usize>());
        // One whose wait has ended is taken up as well, and shows nothing.
        let taken_up =
            many(|event| event.kind == "run.resumed" && event.body["reason"] == "orphaned");
        let settled =
            many(|event| event.kind == "step.resolved" && event.body["by"] == "reconcile");
        let expected = &self.expected;
        report.least(
            "times that a run was taken up from a worker that was lost",
            taken_up,
            expected.taken_up,
        );
        report.least(
            "writes in doubt, settled by reconcile",
            settled,
            expected.settled,
        );
        report.tell("effects in the ledger", entries.len());
        report.least("questions to the ledger", asked, expected.questions);
        report.none(
            "bugs, panics and losses that the logs tell of",
            &self.told(&AMISS)?,
        );
        let forgotten = self.told(&[FORGOTTEN])?;
        report.tell("leases that their worker had forgotten", forgotten.len());
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
            "SELECT r.run, e.seq, e.epoch, e.kind, encode(e.digest, 'hex'), e.stored_at, e.body \
             FROM events e JOIN runs r ON r.id = e.run ORDER BY r.id, e.seq",
        )?;
        let mut logs = Logs::new();
        for row in rows {
            let [run, seq, epoch, kind, digest, stored_at, body] = row.as_slice() else {
                anyhow::bail!("an event is not understood: {row:?}");
            };
            let event = Event {
                seq: seq.parse()?,
                epoch: epoch.parse()?,
                kind: kind.clone(),
                digest: digest.clone(),
                stored_at: stored_at.parse()?,
                body: serde_json::from_str(body)?,
            };
            logs.entry(run.clone()).or_default().push(event);
        }
        Ok(logs)
    }

    /// The lines of processes in which one of these is said.
    fn told(&self, phrases: &[&str]) -> Result<Vec<String>> {
        let mut told = Vec::new();
        for file in std::fs::read_dir(self.yard.path("logs"))?.flatten() {
            let name = file.file_name();
            let said = std::fs::read(file.path())?;
            let said = String::from_utf8_lossy(&said);
            let is_said = |line: &&str| phrases.iter().any(|phrase| line.contains(phrase));
            let lines = said.lines().filter(is_said);
            told.extend(lines.map(|line| format!("{}: {line}", name.display())));
        }
        Ok(told)
    }

    /// Every run has ended, and as if nothing had happened to it.
    fn runs(&self, report: &mut Report) -> Result<()> {
        let rows = self.database.ask(
            "SELECT r.run, r.agent, r.parent, r.status, encode(r.final_state_digest, 'hex'), \
               CASE WHEN l.run IS NOT NULL OR q.run IS NOT NULL THEN coalesce(q.owner::text, 'nobody') END \
             FROM runs r LEFT JOIN live l ON l.run = r.id LEFT JOIN queue q ON q.run = r.id",
        )?;
        let (mut unended, mut leased) = (Vec::new(), Vec::new());
        let mut ends: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut children: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let mut stored: BTreeSet<&String> = BTreeSet::new();
        for row in &rows {
            let [run, name, parent, status, end, held] = row.as_slice() else {
                anyhow::bail!("a run is not understood: {row:?}");
            };
            if status != "completed" {
                let shown = self.yard.call(self.store, &["show", run])?;
                unended.push(format!("{run} is {status}: {}", shown.out));
            } else {
                ends.entry(name).or_default().insert(end);
            }
            if !held.is_empty() {
                leased.push(format!("{run} by {held}"));
            }
            match parent.is_empty() {
                true => drop(stored.insert(run)),
                false => *children.entry((parent, name)).or_default() += 1,
            }
        }
        let asked: BTreeSet<&String> = self.seen.runs.values().collect();
        let lost: Vec<String> = asked.difference(&stored).map(ToString::to_string).collect();
        let extra: Vec<String> = stored.difference(&asked).map(ToString::to_string).collect();
        let twice = children.iter().filter(|(_, many)| **many != 1);
        let twice = twice.map(|((parent, name), many)| format!("{parent} has {many} of {name}"));
        let twice: Vec<String> = twice.collect();
        let version = self.database.ask("SHOW server_version")?;
        report.tell("PostgreSQL", version.concat().concat());
        report.tell("runs", stored.len());
        report.tell("children of theirs", children.len());
        report.none("runs that did not complete", &unended);
        report.none("acknowledged runs lost", &lost);
        report.none("runs that nobody was told of", &extra);
        report.none("children that were made twice", &twice);
        report.none("leases left behind", &leased);
        let different: Vec<String> = ends
            .iter()
            .filter(|(_, ends)| ends.len() > 1)
            .map(|(name, ends)| format!("{name} has ended in {} ways", ends.len()))
            .collect();
        report.none("different final states", &different);
        Ok(())
    }
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
