//! Random histories on the store under test and on the memory store side by side: after every
//! operation both must say the same.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::codec::StoredBody;
use logreel_core::event::{
    Budget, BudgetChanged, Change, Effect, ModelAnswered, ModelCalled, OnDeadline, Phase,
    PhaseEntered, Relation, Resolution, RunKind, RunLimit, RunStarted, Spend, StatePatched,
    StepFailed, StepInDoubt, ToolCalled, ToolReturned, WaitEnded, WaitKind, WaitOutcome,
    WaitStarted,
};
use logreel_core::state::{Doing, StepState};
use logreel_core::{
    Blob, Body, CallId, Command, Digest, Draft, Epoch, Event, Outside, Payload, Record, RunId,
    RunState, Seq, Timestamp, WaitId, decide,
};
use serde_json::json;

use super::env::mix;
use super::facts::{
    append_id, cause, from_parent, payload, session, step, step_body, step_id, task, wait,
};
use super::world::{list_all, owner, read_all};
use super::{Harness, TestEnv, World, check_run};
use crate::{
    Append, AppendError, ClaimOutcome, Claimable, CreateError, Created, Entry, Env, Error, Filter,
    ForkAt, ForkError, Lapsed, MemoryStore, NewFork, NewRun, OwnerId, RunStore, Stats,
};

const CHAPTERS: u64 = 6;
const OPERATIONS: u64 = 100;

/// Random histories of create, fork, append, command, claim, release, leave and delete have the same
/// answers, entries, logs and lists as on the memory store. `LOGREEL_SEED` chooses others.
pub async fn a_random_history_is_that_of_the_specification(harness: &dyn Harness) {
    let seed = std::env::var("LOGREEL_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    let world = World::new(harness).await;
    let spec_env = TestEnv::new();
    let spec: Arc<dyn RunStore> = Arc::new(MemoryStore::new(Arc::new(spec_env.clone())));
    let mut pair = Pair {
        world,
        spec,
        spec_env,
    };
    for chapter in 0..CHAPTERS {
        let seed = mix(seed) ^ chapter;
        let _shown = ShownOnPanic(seed);
        let mut story = Story::new(chapter, seed);
        for _ in 0..OPERATIONS {
            story.turn(&pair).await;
            pair.compare(&story.blobs).await;
        }
        pair.compare_logs().await;
        pair.world.reopen().await;
        pair.compare_logs().await;
        // The reopened store has not seen these owners beat yet; the next chapter has its own.
        for owner in story.owners {
            pair.leave(owner).await;
        }
    }
    pair.world.finish().await;
}

/// Names the chapter that failed.
struct ShownOnPanic(u64);

impl Drop for ShownOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the random history with the inner seed {} failed", self.0);
        }
    }
}

/// The store under test and the specification, with clocks in step.
struct Pair<'h> {
    world: World<'h>,
    spec: Arc<dyn RunStore>,
    spec_env: TestEnv,
}

impl Pair<'_> {
    fn stores(&self) -> [&dyn RunStore; 2] {
        [&*self.spec, &*self.world.store]
    }

    fn pass(&self, duration: Duration) {
        for env in [&self.spec_env, &self.world.env] {
            env.set_now(env.now() + duration);
        }
    }

    fn set_back(&self, duration: Duration) {
        for env in [&self.spec_env, &self.world.env] {
            env.set_now(env.now() - duration);
        }
    }

    async fn leave(&self, owner: OwnerId) {
        for store in self.stores() {
            store.leave(owner).await.expect("an owner leaves");
        }
    }

    async fn compare(&self, blobs: &[Blob]) {
        let mut views = Vec::new();
        for store in self.stores() {
            let entries = list_all(store, &Filter::default(), 50).await;
            let entries: Vec<Entry> = entries.into_iter().map(masked).collect();
            let sessions = store.sessions().await.expect("sessions");
            let tasks = [Claimable {
                kind: RunKind::Task,
                agents: None,
                specs: None,
            }];
            let claimable = store
                .claimable(&tasks, &[], 100)
                .await
                .expect("claimable runs");
            let stats = store.stats().await.expect("stats");
            let mut stats = Stats {
                disk_bytes: None,
                ..stats
            };
            stats.runs.retain(|(_, runs)| *runs > 0);
            let mut kept = Vec::new();
            for blob in blobs {
                kept.push(
                    store
                        .blob(&blob.digest())
                        .await
                        .expect("a blob is looked up")
                        .is_some(),
                );
            }
            views.push((entries, sessions, claimable, stats, kept));
        }
        let (Some(under), Some(spec)) = (views.pop(), views.pop()) else {
            unreachable!("two stores")
        };
        // Piece by piece, so that a failure shows what differs and not all there is.
        let names = |entries: &[Entry]| entries.iter().map(|it| it.row.run).collect::<Vec<_>>();
        assert_eq!(
            names(&under.0),
            names(&spec.0),
            "the list; left: under test, right: specified"
        );
        for (under, spec) in under.0.iter().zip(&spec.0) {
            assert_eq!(under, spec, "left: under test, right: specified");
        }
        assert_eq!(
            under.1, spec.1,
            "sessions; left: under test, right: specified"
        );
        assert_eq!(
            under.2, spec.2,
            "claimable; left: under test, right: specified"
        );
        assert_eq!(under.3, spec.3, "stats; left: under test, right: specified");
        assert_eq!(under.4, spec.4, "blobs; left: under test, right: specified");
    }

    async fn compare_logs(&self) {
        for entry in list_all(&*self.spec, &Filter::default(), 50).await {
            let mut logs = Vec::new();
            for store in self.stores() {
                check_run(store, &entry.row.run).await;
                let records = read_all(store, &entry.row.run, 9).await;
                logs.push(records.into_iter().map(masked_record).collect::<Vec<_>>());
            }
            let (under, spec) = (logs.pop(), logs.pop());
            assert_eq!(under, spec, "the log of {}", entry.row.run);
        }
    }
}

/// Without the chain's digest, which depends on the run's random key.
fn masked(mut entry: Entry) -> Entry {
    entry.row.head.digest = Digest([0; 32]);
    entry
}

/// Without the digests of the chain, of which `run.forked` names one.
fn masked_record(mut record: Record) -> Record {
    record.digest = Digest([0; 32]);
    if let (true, StoredBody::Text(text)) = (record.kind == "run.forked", &mut record.body) {
        let mut body: serde_json::Value = serde_json::from_str(text).expect("a body is JSON");
        body["digest"] = serde_json::Value::Null;
        *text = body.to_string();
    }
    record
}

fn shown(events: &[Event]) -> Vec<Event> {
    events
        .iter()
        .map(|event| Event {
            digest: Digest([0; 32]),
            ..event.clone()
        })
        .collect()
}

fn shown_error(error: &Error) -> String {
    match error {
        Error::NotFound(run) => format!("not found {run}"),
        Error::StillNeeded { run, .. } => format!("still needed {run}"),
        other => format!("{other:?}"),
    }
}

/// What is random about one chapter, and what it may refer to.
struct Story {
    chapter: u64,
    draws: u64,
    seed: u64,
    runs: Vec<RunId>,
    owners: Vec<OwnerId>,
    blobs: Vec<Blob>,
    /// Appends that were sent, as the specification and the store under test got them.
    sent: Vec<[Append; 2]>,
    commands: Vec<(RunId, String, Outside)>,
    count: u64,
}

impl Story {
    fn new(chapter: u64, seed: u64) -> Self {
        let blobs = (0..3)
            .map(|n| Blob::new(format!("blob {chapter} {n}").into_bytes()))
            .collect();
        let (runs, owners, sent, commands) = (vec![], vec![], vec![], vec![]);
        Self {
            chapter,
            draws: 0,
            seed,
            runs,
            owners,
            blobs,
            sent,
            commands,
            count: 0,
        }
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.draws += 1;
        mix(self.seed ^ mix(self.draws)) % sides
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.roll(one_in) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let index = self.roll(from.len().max(1) as u64);
        from.get(usize::try_from(index).expect("an index")).cloned()
    }

    /// One of the runs, most likely one for which this holds.
    async fn pick_where(
        &mut self,
        pair: &Pair<'_>,
        holds: impl Fn(&Entry) -> bool,
    ) -> Option<RunId> {
        let mut run = self.pick(&self.runs.clone())?;
        for _ in 0..4 {
            if pair.spec.entry(&run).await.is_ok_and(|entry| holds(&entry)) {
                break;
            }
            run = self.pick(&self.runs.clone())?;
        }
        Some(run)
    }

    fn number(&mut self) -> u64 {
        self.count += 1;
        self.chapter * 10_000 + self.count
    }

    async fn turn(&mut self, pair: &Pair<'_>) {
        while self.owners.len() < 3 {
            let id = self.number() + 1_000_000;
            for store in pair.stores() {
                store.join(&owner(id)).await.expect("an owner joins");
            }
            self.owners.push(OwnerId(id));
        }
        match self.roll(100) {
            0..7 => self.create(pair).await,
            7..10 => self.fork(pair).await,
            10..58 => self.append(pair).await,
            58..63 => self.send_again(pair).await,
            63..75 => self.command(pair).await,
            75..85 => self.claim(pair).await,
            85..90 => self.release(pair).await,
            90..93 => {
                let owner = self.owners.remove(0);
                pair.leave(owner).await;
            }
            93..96 => self.delete(pair).await,
            96 if self.chance(3) => {
                let session = session(&format!("session-{}-0", self.chapter));
                for store in pair.stores() {
                    store
                        .close_session(&session)
                        .await
                        .expect("a session is closed");
                }
            }
            97 => pair.set_back(Duration::from_secs(self.roll(40))),
            _ => pair.pass(Duration::from_millis(self.roll(30_000))),
        }
    }

    async fn create(&mut self, pair: &Pair<'_>) {
        let chapter = self.chapter;
        let mut started: RunStarted = task(&format!("agent-{}", self.roll(2)));
        if let (true, Some(parent)) = (self.chance(4), self.pick(&self.runs.clone())) {
            started = from_parent("agent-0", parent, Relation::Child);
        }
        if self.chance(3) {
            started.key = Some(format!("key-{chapter}-{}", self.roll(3)));
        }
        if self.chance(3) {
            started.session = Some(session(&format!("session-{chapter}-{}", self.roll(2))));
        }
        if self.chance(3) {
            let key = format!("limit-{chapter}-{}", self.roll(2));
            let max = if self.chance(2) { 1 } else { 2 };
            started.limit = Some(RunLimit { key, max });
        }
        started.input = payload(json!(self.roll(2)));
        started.budget.tokens = Some(100);
        let known = if self.chance(6) {
            self.pick(&self.runs.clone())
        } else {
            None
        };
        let run = known.unwrap_or_else(|| self.run_id());
        let owner = if self.chance(2) {
            self.pick(&self.owners.clone())
        } else {
            None
        };
        let blobs = if self.chance(4) {
            self.pick(&self.blobs.clone())
        } else {
            None
        };
        let new = NewRun {
            run,
            started,
            blobs: blobs.into_iter().collect(),
            owner,
            then: Vec::new(),
        };
        let mut answers = Vec::new();
        for store in pair.stores() {
            answers.push(match store.create(new.clone()).await {
                Ok(Created::New(entry)) => ("new".to_owned(), Some(masked(entry))),
                Ok(Created::Attached(entry)) => ("attached".to_owned(), Some(masked(entry))),
                Err(CreateError::Conflict { run, differs, .. }) => {
                    (format!("conflict {run} {differs}"), None)
                }
                Err(CreateError::Store(error)) => (shown_error(&error), None),
                Err(error) => (format!("{error:?}"), None),
            });
        }
        let (under, spec) = (answers.pop(), answers.pop());
        assert_eq!(under, spec, "create {new:?}");
        if spec.is_some_and(|(what, _)| what == "new") {
            self.runs.push(run);
        }
    }

    async fn fork(&mut self, pair: &Pair<'_>) {
        let Some(parent) = self.pick(&self.runs.clone()) else {
            return;
        };
        let head = pair.spec.entry(&parent).await;
        let head = head.map_or(1, |entry| entry.row.head.seq.0);
        let at = if self.chance(2) {
            ForkAt::Last
        } else {
            ForkAt::Seq(Seq(self.roll(head + 2)))
        };
        let known = if self.chance(6) {
            self.pick(&self.runs.clone())
        } else {
            None
        };
        let run = known.unwrap_or_else(|| self.run_id());
        let relation = if self.chance(2) {
            Relation::Fork
        } else {
            Relation::Retry
        };
        let input = if self.chance(2) {
            Some(payload(json!(self.roll(2))))
        } else {
            None
        };
        let forgotten = (0..self.roll(3)).map(|_| step_id(&format!("step-{}", self.roll(6))));
        let forgotten = forgotten.collect();
        let owner = if self.chance(2) {
            self.pick(&self.owners.clone())
        } else {
            None
        };
        let blobs = if self.chance(4) {
            self.pick(&self.blobs.clone())
        } else {
            None
        };
        // Sometimes with results of its own, which fit only when the step has none there.
        let then =
            (0..self.roll(2)).map(|_| step(&format!("step-{}", self.roll(6)), json!("given")));
        let then: Vec<Draft> = then.collect();
        let given = |_: &Draft| Change::Result("given".to_owned());
        let new = NewFork {
            input,
            forgotten,
            changes: then.iter().map(given).collect(),
            then,
            blobs: blobs.into_iter().collect(),
            owner,
            ..NewFork::of(run, parent, at, relation)
        };
        let mut answers = Vec::new();
        for store in pair.stores() {
            answers.push(match store.fork(new.clone()).await {
                Ok(Created::New(entry)) => ("new".to_owned(), Some(masked(entry))),
                Ok(Created::Attached(entry)) => ("attached".to_owned(), Some(masked(entry))),
                Err(ForkError::Store(error)) => (shown_error(&error), None),
                Err(error) => (format!("{error:?}"), None),
            });
        }
        let (under, spec) = (answers.pop(), answers.pop());
        assert_eq!(under, spec, "{new:?}");
        if spec.is_some_and(|(what, _)| what == "new") {
            self.runs.push(run);
        }
    }

    fn run_id(&mut self) -> RunId {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&mix(self.number()).to_le_bytes());
        RunId::new(TestEnv::START, random)
    }

    async fn append(&mut self, pair: &Pair<'_>) {
        let Some(run) = self
            .pick_where(pair, |entry| entry.epoch > Epoch::NONE)
            .await
        else {
            return;
        };
        let [Ok(spec), Ok(under)] = [
            pair.spec.entry(&run).await,
            pair.world.store.entry(&run).await,
        ] else {
            return;
        };
        let records = read_all(&*pair.spec, &run, 1000).await;
        let events: Vec<Event> = records
            .iter()
            .map(|record| record.decode().expect("it decodes"))
            .collect();
        let mut state = logreel_core::replay(run, &events)
            .expect("a log folds")
            .expect("it has event 1");
        let epoch = match self.roll(12) {
            0 => Epoch(spec.epoch.0 + 1),
            1 => Epoch(spec.epoch.0.saturating_sub(1)),
            _ => spec.epoch,
        };
        // Nobody drives under epoch 0, so nobody appends under it.
        let epoch = epoch.max(Epoch(1));
        let mut drafts = Vec::new();
        let mut results = spec.results;
        for _ in 0..=self.roll(3) {
            let command = self.fact(&state, epoch);
            let Ok(draft) = decide(&state, &results, epoch.max(state.row.epoch), command) else {
                continue;
            };
            let event = Event {
                seq: state.row.head.seq.next(),
                at: state.row.updated_at.max(pair.spec_env.now()),
                caller_at: draft.caller_at,
                epoch: epoch.max(state.row.epoch),
                late: draft.late,
                digest: Digest([0; 32]),
                body: draft.body.clone(),
            };
            if state.apply(&event).is_ok() {
                results = results.plus(logreel_core::meaning::ResultSet::of(&draft.body));
                drafts.push(draft);
            }
        }
        if self.chance(15) {
            drafts.push(Draft::new(wait(1000, WaitKind::Timer)));
        }
        if drafts.is_empty() {
            return;
        }
        let name = format!("append {}", self.number());
        let id = if self.chance(3) {
            append_id(&name)
        } else {
            logreel_core::AppendId::driver(mix(self.number()))
        };
        let blobs = if self.chance(5) {
            self.pick(&self.blobs.clone())
        } else {
            None
        };
        let blobs: Vec<Blob> = blobs.into_iter().collect();
        let skew = self.roll(15);
        let appends = [spec, under].map(|entry| {
            let mut expect = entry.row.head;
            match skew {
                0 => expect.seq = expect.seq.next(),
                1 => expect.digest = Digest::of(expect.digest.as_bytes()),
                2 => expect = logreel_core::chain::origin(&run),
                _ => {}
            }
            let (id, drafts, blobs) = (id.clone(), drafts.clone(), blobs.clone());
            Append {
                run,
                expect,
                epoch,
                id,
                drafts,
                blobs,
            }
        });
        self.send(pair, appends).await;
    }

    async fn send(&mut self, pair: &Pair<'_>, appends: [Append; 2]) {
        let mut answers = Vec::new();
        for (store, append) in pair.stores().into_iter().zip(&appends) {
            answers.push(match store.append(append).await {
                Ok(appended) => Ok((shown(&appended.events), appended.repeated)),
                Err(AppendError::Conflict { head }) => Err(format!("conflict {}", head.seq)),
                Err(AppendError::Store(error)) => Err(shown_error(&error)),
                Err(error) => Err(format!("{error:?}")),
            });
        }
        let (under, spec) = (answers.pop(), answers.pop());
        assert_eq!(under, spec, "append {:?}", appends[0]);
        if spec.is_some_and(|spec| spec.is_ok()) {
            self.sent.push(appends);
        }
    }

    async fn send_again(&mut self, pair: &Pair<'_>) {
        if let Some(appends) = self.pick(&self.sent.clone()) {
            self.send(pair, appends).await;
        }
    }

    async fn command(&mut self, pair: &Pair<'_>) {
        let again = if self.chance(4) {
            self.pick(&self.commands.clone())
        } else {
            None
        };
        let fresh = |story: &mut Self| {
            let run = story.pick(&story.runs.clone())?;
            let command = story.outside();
            Some((run, format!("command {}", story.number()), command))
        };
        let Some((run, id, command)) = again.or_else(|| fresh(self)) else {
            return;
        };
        let mut answers = Vec::new();
        for store in pair.stores() {
            answers.push(
                match store.command(&run, &append_id(&id), &command, vec![]).await {
                    Ok(done) => Ok((
                        done.answer,
                        shown(&done.events),
                        masked(done.entry),
                        done.repeated,
                    )),
                    Err(error) => Err(shown_error(&error)),
                },
            );
        }
        let (under, spec) = (answers.pop(), answers.pop());
        assert_eq!(under, spec, "{command:?} as {id} on {run}");
        self.commands.push((run, id, command));
    }

    async fn claim(&mut self, pair: &Pair<'_>) {
        let Some(run) = self.pick(&self.runs.clone()) else {
            return;
        };
        let Some(owner) = self.pick(&self.owners.clone()) else {
            return;
        };
        let mut answers = Vec::new();
        for store in pair.stores() {
            answers.push(match store.claim(&run, owner).await {
                Ok(ClaimOutcome::Claimed(entry)) => ("claimed".to_owned(), Some(masked(entry))),
                Ok(ClaimOutcome::Driven(entry)) => ("driven".to_owned(), Some(masked(entry))),
                Ok(ClaimOutcome::Limited(entry)) => ("limited".to_owned(), Some(masked(entry))),
                Ok(ClaimOutcome::CrashLoop(entry)) => {
                    ("crash loop".to_owned(), Some(masked(entry)))
                }
                Ok(ClaimOutcome::NotReady(entry)) => ("not ready".to_owned(), Some(masked(entry))),
                Err(error) => (shown_error(&error), None),
            });
        }
        let (under, spec) = (answers.pop(), answers.pop());
        assert_eq!(under, spec, "claim {run} for {owner}");
        let mut answers = Vec::new();
        for store in pair.stores() {
            let lapsed = store.lapsed(&run).await;
            let lapsed = lapsed.map(|lapsed| {
                let plain = lapsed.into_iter().map(|it| Lapsed {
                    // Not every store tells.
                    taken_ago: None,
                    ..it
                });
                plain.collect::<Vec<_>>()
            });
            answers.push(lapsed.map_err(|error| shown_error(&error)));
        }
        let (under, spec) = (answers.pop(), answers.pop());
        assert_eq!(under, spec, "lapsed drivers of {run}");
    }

    async fn release(&mut self, pair: &Pair<'_>) {
        let Some(run) = self.pick(&self.runs.clone()) else {
            return;
        };
        let entry = pair.spec.entry(&run).await.ok();
        let current = entry.as_ref().map_or(Epoch(1), |entry| entry.epoch);
        let driver = entry.and_then(|entry| entry.driver);
        let holder = driver.map_or(OwnerId(1), |driver| driver.owner.id);
        let owner = match self.chance(4) {
            true => OwnerId(holder.0 + 1),
            false => holder,
        };
        let stale = self.chance(4);
        let epoch = if stale {
            Epoch(current.0.saturating_sub(1))
        } else {
            current
        };
        let mut answers = Vec::new();
        for store in pair.stores() {
            let released = store.release(&run, epoch, owner).await;
            answers.push(released.map(masked).map_err(|error| shown_error(&error)));
        }
        let (under, spec) = (answers.pop(), answers.pop());
        assert_eq!(under, spec, "release {run} by {owner:?} under {epoch}");
    }

    async fn delete(&mut self, pair: &Pair<'_>) {
        let ended = |entry: &Entry| entry.row.status().is_terminal();
        let Some(run) = self.pick_where(pair, ended).await else {
            return;
        };
        let mut answers = Vec::new();
        for store in pair.stores() {
            answers.push(
                store
                    .delete(&run)
                    .await
                    .map(|deleted| deleted.events)
                    .map_err(|error| shown_error(&error)),
            );
        }
        let (under, spec) = (answers.pop(), answers.pop());
        assert_eq!(under, spec, "delete {run}");
    }

    fn outside(&mut self) -> Outside {
        let wait = if self.chance(2) {
            None
        } else {
            Some(WaitId(self.roll(4) as u32))
        };
        match self.roll(14) {
            0 => Outside::Cancel {
                reason: Some("at random".into()),
            },
            1 | 2 => Outside::Pause { reason: None },
            3..6 => Outside::Resume {
                by: Some("dice".into()),
            },
            6..9 => Outside::Answer {
                wait,
                approved: if self.chance(5) { None } else { Some(true) },
                value: payload(json!(self.roll(9))),
                reason: None,
                by: None,
            },
            9 => Outside::Signal {
                name: "go".into(),
                value: payload(json!(self.roll(9))),
            },
            10 => Outside::Say {
                text: "left".into(),
                by: None,
            },
            11 | 12 => Outside::Resolve {
                call: format!("step-{}", self.roll(6)),
                resolution: match self.roll(3) {
                    0 => Resolution::Returned(payload(json!("it happened"))),
                    1 => Resolution::Failed("it failed".into()),
                    _ => Resolution::Retry,
                },
                by: "dice".into(),
            },
            _ => Outside::AddBudget {
                add: Budget {
                    tokens: Some(self.roll(9)),
                    ..Budget::default()
                },
                by: None,
                child: None,
                wait: None,
            },
        }
    }

    /// Something a driver may want to record; often not what it may.
    fn fact(&mut self, state: &RunState, epoch: Epoch) -> Command {
        let name = format!("step-{}", self.roll(6));
        let call = CallId::new(format!("call-{}", self.roll(4))).expect("a call id");
        let spent = Spend {
            output_tokens: self.roll(50),
            ..Spend::default()
        };
        let waits = &state.row.facts.waits;
        let body: Body = match self.roll(22) {
            0 => PhaseEntered {
                phase: Phase::Executing,
            }
            .into(),
            1 => PhaseEntered {
                phase: Phase::Verifying,
            }
            .into(),
            2..5 => step(&format!("short-{}", self.number()), json!(self.roll(100))).body,
            5 => step(&name, json!("again")).body,
            6 | 7 => {
                let effect = if self.chance(2) {
                    Effect::Write
                } else {
                    Effect::Idempotent
                };
                super::facts::step_started(&name, effect).body
            }
            8 => step_body(&name, json!({ "n": self.roll(9) }), None),
            9 => StepFailed {
                attempt: 1,
                error: cause("dice"),
                started_at: None,
                step: step_id(&name),
            }
            .into(),
            10 | 11 => match open_write(state) {
                Some((step, epoch)) => StepInDoubt {
                    epoch,
                    key: None,
                    reason: "dice".into(),
                    step,
                }
                .into(),
                None => super::facts::custom("nothing in doubt", json!(epoch.0)).body,
            },
            12 => ToolCalled {
                arguments: Payload::null(),
                attempt: 1,
                call,
                effect: Effect::Read,
                key: None,
                name: "tool".into(),
                redacted: 0,
            }
            .into(),
            13 => ToolReturned {
                call,
                output: payload(json!([1, 2])),
                redacted: 0,
            }
            .into(),
            14 => ModelCalled {
                attempt: 1,
                call,
                context: None,
                model: "scripted".into(),
                request: None,
                reserved: spent,
            }
            .into(),
            15 => ModelAnswered {
                call,
                finish_reason: None,
                message: Payload::null(),
                spent,
                redacted: 0,
            }
            .into(),
            16 | 17 => {
                let kinds = [
                    WaitKind::Approval,
                    WaitKind::Signal,
                    WaitKind::Timer,
                    WaitKind::Budget,
                ];
                let kind = self.pick(&kinds).expect("there are kinds");
                let deadline = Timestamp::from_micros(TestEnv::START.as_micros())
                    + Duration::from_secs(self.roll(600));
                let deadline = if self.chance(2) { Some(deadline) } else { None };
                let on_deadline = deadline.map(|_| OnDeadline::Deny);
                let name = (kind == WaitKind::Signal).then(|| "go".to_owned());
                let next = wait(state.row.next_wait().0, kind);
                WaitStarted {
                    deadline,
                    on_deadline,
                    name,
                    ..next
                }
                .into()
            }
            18 if !waits.is_empty() => WaitEnded {
                approved: None,
                by: None,
                outcome: WaitOutcome::Elapsed,
                reason: None,
                step: None,
                value: Payload::null(),
                wait: waits[0].wait.wait,
            }
            .into(),
            19 => {
                let patch = json!([{ "op": "add", "path": "", "value": { "n": self.roll(9) } }]);
                StatePatched {
                    patch: serde_json::from_value(patch).expect("a patch"),
                }
                .into()
            }
            20 => {
                let budget = Budget {
                    tokens: Some(self.roll(100)),
                    ..Budget::default()
                };
                BudgetChanged {
                    budget,
                    by: None,
                    child: None,
                }
                .into()
            }
            21 if self.chance(2) => {
                return Command::Complete {
                    output: payload(json!("done")),
                };
            }
            21 => {
                return Command::Fail {
                    cause: cause("dice"),
                };
            }
            _ => super::facts::custom("filler", json!(self.roll(1000))).body,
        };
        let caller_at = if self.chance(5) {
            Some(TestEnv::START)
        } else {
            None
        };
        Command::Record { body, caller_at }
    }
}

fn open_write(state: &RunState) -> Option<(logreel_core::StepId, Epoch)> {
    let mut open: Vec<_> = state
        .steps
        .iter()
        .filter_map(|(step, is)| match is {
            StepState::Open(open)
                if open.effect == Effect::Write && open.doing == Doing::Running =>
            {
                Some((step.clone(), open.epoch))
            }
            _ => None,
        })
        .collect();
    open.sort();
    open.into_iter().next()
}
