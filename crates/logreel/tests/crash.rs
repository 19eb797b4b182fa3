//! Real processes, really killed: SIGKILL at any moment loses nothing that was acknowledged, and
//! nothing that was recorded happens again.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod process;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use logreel::core::{Verifier, replay};
use logreel::store::sqlite::Options;
use logreel::*;
use process::{Child, Random, again, die, is_killed, role, runtime, say};

const RUNS: u64 = 64;
const STEPS: u64 = 200;
const KILLS: u64 = 25;

/// A step, known by the run's number and its own.
type Counted = (u64, u64);

fn engine_on(folder: &Path) -> Builder {
    Engine::builder()
        .sqlite(folder.join("runs.db"))
        .on_event(|told| async move {
            // Told of an event = it was acknowledged.
            let Event { seq, digest, .. } = told.event;
            say(&format!("event {} {seq} {digest}", told.run));
            Ok(())
        })
}

/// Six steps one after the other, four at once, and so on; each step writes its line first.
fn counting(engine: &Engine, folder: &Path) -> Task<u64, u64> {
    let path = folder.join("effects");
    let effects = OpenOptions::new().create(true).append(true).open(path);
    let effects = Arc::new(effects.unwrap());
    engine.task("counting", move |ctx: Ctx, run: u64| {
        let effects = Arc::clone(&effects);
        async move {
            let mut sum = 0;
            for ten in (0..STEPS).step_by(10) {
                for step in ten..ten + 6 {
                    sum += count(&ctx, &effects, (run, step)).await?;
                }
                let four = (ten + 6..ten + 10).map(|step| count(&ctx, &effects, (run, step)));
                sum += ctx.all(four).await?.iter().sum::<u64>();
            }
            Ok(sum)
        }
    })
}

async fn count(ctx: &Ctx, effects: &File, (run, step): Counted) -> Result<u64, TaskError> {
    let worked = AtomicBool::new(false);
    let work = || async {
        worked.store(true, Ordering::SeqCst);
        let mut effects = effects;
        effects.write_all(format!("{run} {step}\n").as_bytes())?;
        // Others go first now and then, so that steps are under way when the kill comes.
        tokio::task::yield_now().await;
        Ok::<_, TaskError>(run * 1000 + step)
    };
    let value = ctx.step(("count", step)).run(work).await?;
    if worked.load(Ordering::SeqCst) {
        say(&format!("ack {run} {step}"));
    }
    assert_eq!(value, run * 1000 + step, "the recorded result came back");
    Ok(value)
}

fn expected_sum(run: u64) -> u64 {
    (0..STEPS).map(|step| run * 1000 + step).sum()
}

/// Drives runs 0, 1, 2, .. up to `last`, 64 at a time; those that exist already are driven on.
async fn worker(folder: &Path, last: u64) {
    let engine = engine_on(folder).build().await.unwrap();
    let task = counting(&engine, folder);
    say("open");
    let next = Arc::new(AtomicU64::new(0));
    let slots: Vec<_> = (0..RUNS)
        .map(|_| {
            let (task, next) = (task.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let run = next.fetch_add(1, Ordering::SeqCst);
                    if run >= last {
                        return;
                    }
                    let started = task.start(&run).key(format!("run-{run}")).await.unwrap();
                    let outcome = started.wait().await.unwrap();
                    assert_eq!(outcome, Outcome::Completed(expected_sum(run)));
                }
            })
        })
        .collect();
    for slot in slots {
        slot.await.unwrap();
    }
    engine.close().await.unwrap();
}

/// What a fresh process finds in the store, checked from the first byte to the last.
#[derive(Default)]
struct Found {
    /// Events by their run's id, as many as the log has, with their digests.
    digests: HashMap<String, Vec<String>>,
    finished: HashSet<Counted>,
    active: usize,
    ended: usize,
}

impl Found {
    /// Adds what the store holds now. Ended runs that were checked before do not change.
    async fn look(&mut self, folder: &Path) {
        let store = SqliteStore::open(folder.join("runs.db"), Options::default()).unwrap();
        (self.active, self.ended) = (0, 0);
        let mut cursor = None;
        loop {
            let filter = Filter::default();
            let page = store.list(&filter, cursor.as_ref(), 50).await.unwrap();
            for entry in &page.items {
                let run = entry.row.run.to_string();
                let ended = entry.row.status().is_terminal();
                *(if ended {
                    &mut self.ended
                } else {
                    &mut self.active
                }) += 1;
                let known = self.digests.get(&run).map_or(0, Vec::len) as u64;
                if !ended || known < entry.row.head.seq.0 {
                    let digests = self.check(&store, entry).await;
                    let before = self.digests.insert(run, digests.clone());
                    assert!(
                        digests.starts_with(&before.unwrap_or_default()),
                        "a log only grows"
                    );
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                return;
            }
        }
    }

    /// No gap, a chain that verifies, and a row that is the replay.
    async fn check(&mut self, store: &SqliteStore, entry: &Entry) -> Vec<String> {
        let run = entry.row.run;
        let number: u64 = entry.row.facts.input.inline().unwrap().decode().unwrap();
        let mut verifier = Verifier::new(&run, store.key(&run).await.unwrap());
        let mut events = Vec::new();
        let mut from = Seq::FIRST;
        loop {
            let page = store.read(&run, from, 500).await.unwrap();
            for record in &page.items {
                verifier.check(record).unwrap();
                events.push(record.decode().unwrap());
            }
            from = page.next;
            if !page.has_more {
                break;
            }
        }
        verifier.finish(&entry.row.head).unwrap();
        let state = replay(run, &events).unwrap().unwrap();
        assert_eq!(state.row, entry.row, "the row is the fold of the log");
        let mut steps = HashSet::new();
        for event in &events {
            if let Body::StepFinished(finished) = &event.body {
                let step = finished.step.to_string();
                let step = step
                    .strip_prefix("count[")
                    .and_then(|it| it.strip_suffix(']'));
                let step = step.unwrap().parse().unwrap();
                assert!(
                    steps.insert((number, step)),
                    "{number} {step} was recorded twice"
                );
            }
        }
        self.finished.extend(steps);
        events
            .iter()
            .map(|event| event.digest.to_string())
            .collect()
    }

    /// How many acknowledged events are not where they were said to be, each once.
    fn lost(&self, said: &[String]) -> usize {
        let is_there = |line: &&String| {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["event", run, seq, digest] => {
                    let log = self.digests.get(*run);
                    let at = seq.parse::<usize>().unwrap() - 1;
                    log.and_then(|log| log.get(at))
                        .is_some_and(|it| it == digest)
                }
                ["ack", run, step] => {
                    let step = (run.parse().unwrap(), step.parse().unwrap());
                    self.finished.contains(&step)
                }
                _ => true,
            }
        };
        said.iter().filter(|line| !is_there(line)).count()
    }
}

/// The file that only steps write, read on from where the last look ended.
#[derive(Default)]
struct Effects {
    bytes_read: usize,
    counts: BTreeMap<Counted, u32>,
    /// Under way at some kill: their line is there, their result was not recorded.
    ever_in_flight: HashSet<Counted>,
}

impl Effects {
    /// The lines of one process: no step twice, and none that was recorded when it started.
    fn look(&mut self, folder: &Path, recorded_before: &HashSet<Counted>) -> usize {
        let text = std::fs::read_to_string(folder.join("effects")).unwrap_or_default();
        let fresh = &text[self.bytes_read..];
        assert!(fresh.is_empty() || fresh.ends_with('\n'), "a torn line");
        self.bytes_read = text.len();
        let mut own = HashSet::new();
        let mut repeated = 0;
        for line in fresh.lines() {
            let (run, step) = line.split_once(' ').unwrap();
            let step: Counted = (run.parse().unwrap(), step.parse().unwrap());
            assert!(own.insert(step), "{step:?} ran twice in one process");
            assert!(
                !recorded_before.contains(&step),
                "{step:?} was recorded and ran again"
            );
            let count = self.counts.entry(step).or_default();
            *count += 1;
            if *count > 1 {
                repeated += 1;
                assert!(
                    self.ever_in_flight.contains(&step),
                    "{step:?} was not in flight"
                );
            }
        }
        repeated
    }

    fn in_flight(&mut self, finished: &HashSet<Counted>) -> usize {
        assert!(
            finished.iter().all(|step| self.counts.contains_key(step)),
            "a result without its effect"
        );
        let in_flight: Vec<_> = self
            .counts
            .keys()
            .filter(|step| !finished.contains(step))
            .collect();
        self.ever_in_flight
            .extend(in_flight.iter().copied().copied());
        in_flight.len()
    }
}

#[test]
fn killed_25_times_64_runs_lose_nothing_and_repeat_only_what_was_in_flight() {
    const NAME: &str = "killed_25_times_64_runs_lose_nothing_and_repeat_only_what_was_in_flight";
    if let Some((last, folder)) = role() {
        return runtime().block_on(worker(&folder, last.parse().unwrap()));
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let runtime = runtime();
    let mut random = Random::seeded();
    let (mut found, mut effects) = (Found::default(), Effects::default());
    let (mut acknowledged, mut repeated, mut most_active) = (0, 0, 0);
    for kill in 1..=KILLS {
        let mut child = Child::spawn(&mut again(&[], NAME, &u64::MAX.to_string(), folder));
        assert_eq!(child.next().as_deref(), Some("open"));
        // Every fifth dies while it takes the runs over, the others in the midst of the work.
        let (acks, micros) = match kill % 5 {
            0 => (0, random.below(200_000)),
            _ => (1 + random.below(1500), random.below(5_000)),
        };
        let mut said = Vec::new();
        let mut acked = 0;
        while acked < acks {
            let line = child.next().expect("it works until it is killed");
            acked += u64::from(line.starts_with("ack "));
            said.push(line);
        }
        said.extend(child.during(Duration::from_micros(micros)));
        said.extend(child.kill());

        let recorded_before = found.finished.clone();
        runtime.block_on(found.look(folder));
        let lost = found.lost(&said);
        let again = effects.look(folder, &recorded_before);
        let in_flight = effects.in_flight(&found.finished);
        println!(
            "kill {kill:2} after {:5} acknowledgements: lost {lost}, gaps 0, chains valid; {} runs \
             active, {} ended; {} steps recorded, {in_flight} in flight, {again} had been before",
            said.len(),
            found.active,
            found.ended,
            found.finished.len() - recorded_before.len(),
        );
        assert_eq!(lost, 0, "an acknowledged event is not in the log");
        acknowledged += said.len();
        repeated += again;
        most_active = most_active.max(found.active);
    }
    assert_eq!(most_active as u64, RUNS);

    let runs = found.active + found.ended;
    let recorded_before = found.finished.clone();
    let said = Child::spawn(&mut again(&[], NAME, &runs.to_string(), folder)).finish();
    runtime.block_on(found.look(folder));
    repeated += effects.look(folder, &recorded_before);
    assert_eq!(found.lost(&said), 0);
    assert_eq!(
        (found.active, found.ended),
        (0, runs),
        "every run was driven to its end"
    );
    assert_eq!(found.finished.len() as u64, runs as u64 * STEPS);
    assert_eq!(effects.in_flight(&found.finished), 0);
    let lines: u32 = effects.counts.values().sum();
    assert_eq!(lines as usize, found.finished.len() + repeated);
    println!(
        "{KILLS} kills: {} events acknowledged, 0 lost; {runs} runs of {STEPS} steps resumed and \
         finished; {} steps counted once, {repeated} repeats, all of steps in flight at a kill",
        acknowledged + said.len(),
        effects.counts.values().filter(|count| **count == 1).count(),
    );
}

#[test]
fn an_acknowledged_event_survives_kill_9_right_after_the_acknowledgement() {
    const NAME: &str = "an_acknowledged_event_survives_kill_9_right_after_the_acknowledgement";
    const LIVES: u64 = 12;
    if let Some((life, folder)) = role() {
        return runtime().block_on(one_life(&folder, life.parse().unwrap()));
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (mut found, mut effects) = (Found::default(), Effects::default());
    // Each life gets one step further and dies with the word still in its mouth.
    for life in 0..LIVES {
        let mut child = Child::spawn(&mut again(&[], NAME, &life.to_string(), folder));
        let (said, status) = child.rest();
        assert!(is_killed(status), "{status}");
        assert!(said.contains(&format!("ack 0 {life}")), "{said:?}");
        let recorded_before = found.finished.clone();
        runtime().block_on(found.look(folder));
        assert_eq!(found.lost(&said), 0);
        assert_eq!(found.finished.len() as u64, life + 1);
        assert_eq!(effects.look(folder, &recorded_before), 0);
        assert_eq!(
            effects.in_flight(&found.finished),
            0,
            "it died between two steps"
        );
    }
    assert!(effects.counts.values().all(|count| *count == 1));
    println!("{LIVES} lives, each ended by SIGKILL right after its acknowledgement: 0 lost");
}

/// One step more than the life before, then death.
async fn one_life(folder: &Path, life: u64) {
    let engine = engine_on(folder).build().await.unwrap();
    let path = folder.join("effects");
    let effects = OpenOptions::new().create(true).append(true).open(path);
    let effects = Arc::new(effects.unwrap());
    let task = engine.task("lives", move |ctx: Ctx, run: u64| {
        let effects = Arc::clone(&effects);
        async move {
            for step in 0..=life {
                count(&ctx, &effects, (run, step)).await?;
            }
            die()
        }
    });
    let run = task.start(&0).key("run-0").await.unwrap();
    let outcome: Outcome<()> = run.wait().await.unwrap();
    panic!("it should be dead: {outcome:?}");
}
