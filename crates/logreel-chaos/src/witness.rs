//! What was acknowledged, and to whom: runs to those who started them, events to those who followed them and to
//! whoever looked at the database. All of it must be in the logs in the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::clock::{millis, now, pause};
use crate::database::Server;
use crate::door::{self, Answer, Door, Unexpected};
use crate::errand::{Errand, Telling};
use crate::fleet::UNAVAILABLE;
use crate::yard::Yard;

/// What runs wait for, as a path below their own.
const GO: &str = "signals/go";
/// How a follower says that it leaves because the database is away: other reasons have the same exit code.
const IS_AWAY: &str = "\"kind\":\"unavailable\"";
/// What followers may still have to say once all is over.
const LAST_WORDS: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Seen {
    /// Runs whose start was acknowledged, by key.
    pub runs: BTreeMap<String, String>,
    /// How often a start had to be asked for again.
    pub starts_again: usize,
    /// Digests of events that someone was shown.
    pub events: BTreeMap<(String, u64), String>,
    /// Who held the lease of which epoch of a run.
    pub owners: BTreeMap<(String, u64), BTreeSet<String>>,
    /// Runs that were followed to their end, and how often that had to be begun anew.
    pub followed: usize,
    pub follows_again: usize,
    /// Runs that are to be told something from outside.
    pub to_tell: BTreeMap<String, Telling>,
    /// What runs were told and acknowledged, as the event that says so.
    pub told: BTreeSet<(String, Told)>,
    /// How often a run had to be told again.
    pub told_again: usize,
    /// Runs that waited for a person and were resumed by one, each with the event at which they did.
    pub helped: BTreeSet<(String, String)>,
    /// What no witness should have seen.
    pub wrong: Vec<String>,
    /// Runs that nobody has followed yet.
    unfollowed: VecDeque<String>,
    /// Those that nobody has told anything yet, and from when on someone may.
    untold: Vec<(Duration, String, Telling)>,
}

/// What a run is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// The signal that one of its steps waits for.
    Signal,
    /// To stop until it is resumed, which follows.
    Pause,
}

#[derive(Debug, Default)]
pub struct Witness {
    seen: Mutex<Seen>,
    /// From now on nothing more is begun.
    pub is_over: AtomicBool,
}

impl Witness {
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn saw(&self, run: &str, seq: u64, digest: &str) {
        let digest = digest.trim_start_matches("blake3:");
        let mut seen = self.seen();
        let before = seen.events.insert((run.to_owned(), seq), digest.to_owned());
        if before.is_some_and(|before| before != digest) {
            seen.wrong
                .push(format!("{run} has had two events {seq} that were shown"));
        }
    }

    /// Starts runs, spread over this time.
    pub fn start_runs(&self, yard: &Yard, door: &Door, runs: usize, over: Duration) -> Result<()> {
        let begun = now();
        for n in 0..runs {
            let share = u32::try_from(n).unwrap_or(0);
            let due = begun + over * share / u32::try_from(runs.max(1)).unwrap_or(1);
            pause(due.saturating_sub(now()));
            self.start_errand(yard, door, n)?;
        }
        Ok(())
    }

    /// Starts one run of each sort, before anything is disturbed. How many.
    pub fn start_calm(&self, yard: &Yard, port: u16) -> Result<usize> {
        for errand in Errand::ALL {
            let (name, door) = (errand.name(), Door::Server(port));
            let run = self.start_run(yard, &door, &format!("calm-{name}"), name)?;
            if errand == Errand::Waits {
                door::tell(port, &run, GO, GO)?;
                self.seen().told.insert((run, Told::Signal));
            }
        }
        Ok(Errand::ALL.len())
    }

    /// Starts the nth run, which is told what it waits for.
    fn start_errand(&self, yard: &Yard, door: &Door, n: usize) -> Result<()> {
        let run = self.start_run(yard, door, &format!("chaos-{n}"), Errand::of(n).name())?;
        let mut seen = self.seen();
        seen.unfollowed.push_back(run.clone());
        if let Some(telling) = Telling::of(n) {
            seen.to_tell.insert(run.clone(), telling);
            seen.untold.push((now() + telling.after, run, telling));
        }
        Ok(())
    }

    /// Starts a run; asks until it is acknowledged, always with the same key.
    pub fn start_run(&self, yard: &Yard, door: &Door, key: &str, spec: &str) -> Result<String> {
        let begun = now();
        loop {
            let error = match door.start(yard, key, spec) {
                Ok(run) => {
                    self.seen().runs.insert(key.to_owned(), run.clone());
                    return Ok(run);
                }
                Err(error) => error,
            };
            self.seen().starts_again += 1;
            let told = format!("{key}: {error:#}\n");
            self.wonder(&error, &format!("the start of {key}"));
            yard.log("starts.log")?.write_all(told.as_bytes())?;
            ensure!(
                now() - begun < Duration::from_secs(120),
                "{key} could not be started for two minutes: {error:#}"
            );
            pause(millis(100));
        }
    }

    /// What was answered to whom, when no weather explains it.
    fn wonder(&self, error: &anyhow::Error, what: &str) {
        if error.is::<Unexpected>() {
            let wrong = format!("{what} was answered with {error}");
            self.seen().wrong.push(wrong);
        }
    }

    /// Follows one run after the other, always the one that was started last.
    pub fn follow_runs(&self, yard: &Yard, store: &str) -> Result<()> {
        while !self.is_over() {
            let run = self.seen().unfollowed.pop_back();
            match run {
                Some(run) => self.follow(yard, store, &run)?,
                None => pause(millis(50)),
            }
        }
        Ok(())
    }

    fn follow(&self, yard: &Yard, store: &str, run: &str) -> Result<()> {
        let mut next = 1;
        loop {
            let from = next.to_string();
            let args = ["log", run, "--follow", "--json", "--from", &from];
            let log = format!("follow-{run}.log");
            let said_before = yard.log(&log)?.metadata()?.len();
            let mut child = yard
                .command(store, &args)
                .stdout(Stdio::piped())
                .stderr(yard.log(&log)?)
                .spawn()?;
            let lines = BufReader::new(child.stdout.take().context("it has a stdout")?);
            let heard = AtomicBool::new(false);
            let (began_with, began_late) = (next, self.is_over());
            let has_ended = std::thread::scope(|scope| {
                scope.spawn(|| self.end_when_over(&mut child, &heard));
                let has_ended = self.hear(run, &mut next, lines);
                heard.store(true, Ordering::SeqCst);
                has_ended
            })?;
            let ended = child.wait()?;
            let mut seen = self.seen();
            if has_ended {
                seen.followed += 1;
                return Ok(());
            }
            let said = std::fs::read(yard.path("logs").join(&log))?;
            let said = said
                .get(usize::try_from(said_before)?..)
                .unwrap_or_default();
            let found_no_database = ended.code() == Some(UNAVAILABLE)
                && String::from_utf8_lossy(said).contains(IS_AWAY);
            // It may find no database when it begins, as long as there are faults. Once it has said something it stays,
            // whatever happens, and hears of the end.
            if !found_no_database || next > began_with || began_late {
                let wrong =
                    format!("a follower of {run} left at event {next}, before its end: {ended}");
                seen.wrong.push(wrong);
                return Ok(());
            }
            seen.follows_again += 1;
            drop(seen);
            pause(millis(100));
        }
    }

    /// Keeps in mind what a follower prints; says whether the run has ended.
    fn hear(&self, run: &str, next: &mut u64, lines: impl BufRead) -> Result<bool> {
        let mut has_ended = false;
        for line in lines.lines() {
            let event: Value = serde_json::from_str(&line?)?;
            let seq = event["seq"].as_u64().unwrap_or(0);
            if seq != *next {
                let wrong = format!("a follower of {run} saw event {seq} after {}", *next - 1);
                self.seen().wrong.push(wrong);
            }
            *next = seq + 1;
            self.saw(run, seq, event["digest"].as_str().unwrap_or_default());
            let kind = event["kind"].as_str().unwrap_or_default();
            has_ended |= matches!(kind, "run.completed" | "run.failed" | "run.cancelled");
        }
        Ok(has_ended)
    }

    /// A run that never ends is followed for ever, and the judge must hear of it.
    fn end_when_over(&self, follower: &mut Child, heard: &AtomicBool) {
        let mut over_since = None;
        while !heard.load(Ordering::SeqCst) {
            if self.is_over() {
                let since = *over_since.get_or_insert_with(now);
                if now() - since > LAST_WORDS {
                    // Unless it ended at this moment.
                    drop(follower.kill());
                    return;
                }
            }
            pause(millis(20));
        }
    }

    /// Tells runs what they wait for, and some to pause and to go on before, until each is acknowledged.
    pub fn tell_runs(&self, port: u16) {
        while !self.is_over() {
            let mut seen = self.seen();
            let due = seen.untold.iter().position(|(due, ..)| *due <= now());
            let next = due.map(|index| seen.untold.remove(index));
            drop(seen);
            let Some((_, run, telling)) = next else {
                pause(millis(20));
                continue;
            };
            if telling.pauses {
                self.tell_waiting(port, &run, "pause", Told::Pause);
                // Refused where a worker was sooner to take it up again; whether it goes on, its end shows.
                self.tell(port, &run, "resume");
            }
            self.tell_waiting(port, &run, GO, Told::Signal);
        }
    }

    /// Tells something to a run that was not told yet what it waits for: it cannot have ended, and has to take it.
    fn tell_waiting(&self, port: u16, run: &str, what: &str, told: Told) {
        match self.tell(port, run, what) {
            Some(Answer::Done) => drop(self.seen().told.insert((run.to_owned(), told))),
            Some(Answer::Refused) => {
                let wrong = format!("{run} waits for a signal and refused a {told:?}");
                self.seen().wrong.push(wrong);
            }
            None => {}
        }
    }

    /// Tells a run something until that is answered, always under the same key; `None` when all is over before.
    fn tell(&self, port: u16, run: &str, what: &str) -> Option<Answer> {
        while !self.is_over() {
            match door::tell(port, run, what, what) {
                Ok(answer) => return Some(answer),
                Err(error) => {
                    self.wonder(&error, &format!("{what} of {run}"));
                    self.seen().told_again += 1;
                }
            }
            pause(millis(100));
        }
        None
    }

    /// The person for whom a run waits that was taken over five times without a new result (SEMANTICS 17): in such weather
    /// that may come by chance where writes in doubt follow each other, because one that is made again is no new result.
    pub fn help_runs(&self, database: &Server, port: u16) {
        let sql = "SELECT r.run, l.head_seq FROM runs r JOIN live l ON l.run = r.id \
                   WHERE r.status = 'waiting' AND r.facts LIKE '%crash_loop%'";
        while !self.is_over() {
            // A database that is down is asked again.
            for row in database.ask(sql).unwrap_or_default() {
                let [run, seq] = row.as_slice() else {
                    continue;
                };
                match door::tell(port, run, "resume", &format!("resume at {seq}")) {
                    Ok(Answer::Done) => drop(self.seen().helped.insert((run.clone(), seq.clone()))),
                    // It goes on, or is told once more at the next look.
                    Ok(Answer::Refused) => {}
                    Err(error) => self.wonder(&error, &format!("a resume of {run}")),
                }
            }
            pause(millis(1000));
        }
    }

    /// Looks at all runs that have not ended, now and then. A database that is down is not looked at.
    pub fn look(&self, database: &Server) {
        let sql = "SELECT r.run, l.epoch, l.head_seq, encode(l.head_digest, 'hex'), q.owner \
                   FROM live l LEFT JOIN queue q ON q.run = l.run JOIN runs r ON r.id = l.run";
        let rows = match database.ask(sql) {
            Ok(rows) => rows,
            // One that answers and does not know what is asked is not down.
            Err(error) if error.to_string().contains("ERROR:") => {
                self.seen().wrong.push(error.to_string());
                return;
            }
            Err(_) => return,
        };
        for row in rows {
            let [run, epoch, seq, digest, owner] = row.as_slice() else {
                continue;
            };
            self.saw(run, seq.parse().unwrap_or(0), digest);
            if !owner.is_empty() {
                let epoch = epoch.parse().unwrap_or(0);
                let mut seen = self.seen();
                let owners = seen.owners.entry((run.clone(), epoch)).or_default();
                owners.insert(owner.clone());
            }
        }
    }

    pub fn keep_looking(&self, database: &Server) {
        while !self.is_over() {
            self.look(database);
            pause(millis(400));
        }
    }
}
