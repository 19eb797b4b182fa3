//! Drives a recorded run again. Whenever nothing can go on by itself, it gives the next thing that came
//! from outside: so every decision is made with what was known when it was made, in the order of the
//! log, whatever ran side by side.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{WaitKind, WaitStarted};
use logreel_core::row::OpenWait;
use logreel_core::{AppendId, Body, Draft, Event, RunId, Seq, WaitId};
use logreel_store::{
    Append, AppendError, Env, ForkAt, MemoryStore, NewFork, NewRun, RunStore, memory,
};

use super::clock::Clock;
use super::lane::{self, Lane, Waits};
use super::recording::{Cue, Gives, Recording};
use super::stage::{Noted, Stage};
use crate::Error;
use crate::begin::Begin;
use crate::engine::{Engine, Inner};
use crate::journal::PAGE;
use crate::program::Program;

/// No lease runs out in a replay.
const LEASE: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// How far the clock may jump while nothing else happens. What takes longer in a run is a wait, whose
/// end is in the log.
const JUMP_MAX: Duration = Duration::from_secs(2);

/// A run that was driven again.
pub(crate) struct Performance {
    /// Its log, each event with how many cues had been given by then.
    pub(crate) log: Vec<(Event, usize)>,
    pub(crate) noted: Noted,
    /// How many cues were given in all.
    pub(crate) given: usize,
    pub(crate) store: MemoryStore,
}

/// Drives the run again as this program, on a thread of its own: whatever the caller's runtime does,
/// what is replayed is alone on its thread, so that it can be known when nothing goes on.
pub(crate) async fn perform(
    host: &Arc<Inner>,
    recording: &Arc<Recording>,
    program: &Arc<Program>,
) -> Result<Performance, Error> {
    let (host, recording, program) = (Arc::clone(host), Arc::clone(recording), Arc::clone(program));
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let performed = match runtime {
            Ok(runtime) => runtime.block_on(conduct(&host, &recording, &program)),
            Err(error) => Err(no_thread(&error)),
        };
        if sender.send(performed).is_err() {
            tracing::debug!("nobody waits for this replay any more");
        }
    };
    let spawned = std::thread::Builder::new()
        .name("logreel-replay".to_owned())
        .spawn(work);
    spawned.map_err(|error| no_thread(&error))?;
    receiver
        .await
        .unwrap_or_else(|_| Err(logreel_store::Error::Bug("a replay panicked".to_owned()).into()))
}

fn no_thread(error: &std::io::Error) -> Error {
    logreel_store::Error::unavailable(format!("no thread to replay on: {error}")).into()
}

async fn conduct(
    host: &Inner,
    recording: &Recording,
    program: &Arc<Program>,
) -> Result<Performance, Error> {
    let clock = Clock::new(recording.created_at);
    let env: Arc<dyn Env> = Arc::new(clock.clone());
    let options = memory::Options {
        payload_bytes_max: u64::MAX,
        lease: LEASE,
    };
    let store = MemoryStore::with_options(Arc::clone(&env), options);
    let stage = Arc::new(Stage::new(recording));
    let engine = Engine::builder()
        .store(Arc::new(store.clone()))
        .env(env)
        .lease(LEASE)
        .payload_bytes_max(u64::MAX)
        .on_stage(Arc::clone(&stage), host)
        .build()
        .await?;
    begin(&store, recording, program).await?;
    let run = recording.run;
    engine
        .0
        .spawn_driver(run, Arc::clone(program), Begin::Keep, true);
    let mut conductor = Conductor {
        recording,
        stage: &stage,
        store: &store,
        clock: &clock,
        log: Vec::new(),
        next: 0,
        waits: Waits::default(),
        recorded_waits: Waits::of(&recording.events),
        nth: numbered(&recording.cues),
        made: HashMap::new(),
    };
    conductor.conduct_all().await?;
    let (log, given) = (conductor.log, conductor.next);
    let noted = stage.noted();
    Ok(Performance {
        log,
        noted,
        given,
        store,
    })
}

/// Puts the run where the replay begins: at its start, or where it last changed hands. What it shares with
/// others is made as theirs, and it is forked from them as it was: so it forgets what it forgot.
async fn begin(store: &MemoryStore, recording: &Recording, program: &Program) -> Result<(), Error> {
    let (started, blobs) = recording.begins(&program.spec, program.spec_digest);
    let given = recording.given(&program.spec, program.spec_digest);
    let mut runs = writers(&given, recording.run).into_iter();
    let mut run = runs.next().unwrap_or(recording.run);
    let new = NewRun {
        run,
        started,
        then: Vec::new(),
        blobs,
        owner: None,
    };
    store.create(new).await?;
    for (n, draft) in given.into_iter().enumerate() {
        if let Body::RunForked(forked) = draft.body {
            let fork = runs.next().unwrap_or(recording.run);
            let new = NewFork {
                input: Some(forked.input),
                budget: Some(forked.budget),
                forgotten: forked.forgotten,
                forgotten_calls: forked.forgotten_calls,
                changes: forked.changes,
                ..NewFork::of(fork, run, ForkAt::Last, forked.parent.relation)
            };
            store.fork(new).await?;
            run = fork;
            continue;
        }
        append(store, run, vec![draft], &format!("given-{n}")).await??;
    }
    Ok(())
}

/// The runs that a log was written by, in order; the last is the run itself.
fn writers(given: &[Draft], run: RunId) -> Vec<RunId> {
    let forks = given.iter().filter_map(|draft| match &draft.body {
        Body::RunForked(forked) => Some(forked.parent.run),
        _ => None,
    });
    forks.chain([run]).collect()
}

/// Appends what nobody here decided. The inner error says that it does not fit.
async fn append(
    store: &MemoryStore,
    run: RunId,
    drafts: Vec<Draft>,
    id: &str,
) -> Result<Result<(), Error>, Error> {
    let entry = store.entry(&run).await?;
    let append = Append {
        run,
        expect: entry.row.head,
        epoch: entry.epoch,
        id: AppendId::new(id)?,
        drafts,
        blobs: Vec::new(),
    };
    match store.append(&append).await {
        Ok(_) => Ok(Ok(())),
        Err(error @ (AppendError::Illegal(_) | AppendError::Ended(_))) => Ok(Err(error.into())),
        Err(error) => Err(error.into()),
    }
}

struct Conductor<'a> {
    recording: &'a Recording,
    stage: &'a Stage,
    store: &'a MemoryStore,
    clock: &'a Clock,
    log: Vec<(Event, usize)>,
    /// The cue to be given next.
    next: usize,
    waits: Waits,
    recorded_waits: Waits,
    /// Of each cue, how many of its lane and sort came before it.
    nth: Vec<usize>,
    /// How many facts of each lane came about that a cue could have been for.
    made: HashMap<(Lane, Sort), usize>,
}

/// Cues of one lane that do not stand for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Sort {
    Answer,
    Wait,
    Word,
}

impl Conductor<'_> {
    async fn conduct_all(&mut self) -> Result<(), Error> {
        let cues = &self.recording.cues;
        let mut since = self.clock.monotonic();
        loop {
            self.clock.settle().await;
            if self.look().await? {
                return Ok(());
            }
            while let Some(cue) = cues.get(self.next)
                && self.has_come_about(cue)
            {
                self.stage.passed(cue);
                self.next += 1;
            }
            self.stage.at(self.next);
            let given = match cues.get(self.next) {
                Some(cue) => self.give(cue).await?,
                None if !self.recording.ended => return Ok(()),
                None => false,
            };
            if given {
                self.next += 1;
                self.stage.at(self.next);
                since = self.clock.monotonic();
            } else if !self.clock.jump(since + JUMP_MAX) {
                return Ok(());
            }
        }
    }

    /// Takes in what was appended; says whether the run has ended.
    async fn look(&mut self) -> Result<bool, Error> {
        let run = self.recording.run;
        loop {
            let from = self.log.last().map_or(Seq::FIRST, |(it, _)| it.seq.next());
            let page = self.store.events(&run, from, PAGE).await?;
            for event in page.items {
                self.waits.note(&event.body);
                if event.seq > self.recording.given
                    && let Some(about) = self.about(&event.body)
                {
                    *self.made.entry(about).or_default() += 1;
                }
                if let Body::WaitStarted(_) | Body::StepSkipped(_) = &event.body {
                    self.stage.begins(lane::of(&event.body, &self.waits));
                }
                let is_end = event.body.is_terminal();
                self.log.push((event, self.next));
                if is_end {
                    return Ok(true);
                }
            }
            if !page.has_more {
                return Ok(false);
            }
        }
    }

    /// What a cue would have been for, had this fact been one's.
    fn about(&self, body: &Body) -> Option<(Lane, Sort)> {
        let lane = lane::of(body, &self.waits);
        let sort = match body {
            Body::StepFinished(_)
            | Body::StepFailed(_)
            | Body::StepInDoubt(_)
            | Body::ToolReturned(_)
            | Body::ToolFailed(_)
            | Body::ToolInDoubt(_) => Sort::Answer,
            Body::StepResolved(it) if it.by == "reconcile" => Sort::Answer,
            Body::ToolResolved(it) if it.by == "reconcile" => Sort::Answer,
            Body::WaitEnded(_) => Sort::Wait,
            _ => return None,
        };
        Some((lane, sort))
    }

    /// Whether the code came to this by itself: a denial, a template that failed, a kept signal.
    fn has_come_about(&self, cue: &Cue) -> bool {
        let sort = sort(cue);
        let made = self.made.get(&(cue.lane.clone(), sort));
        sort != Sort::Word && made.is_some_and(|made| *made > self.nth[self.next])
    }

    async fn give(&self, cue: &Cue) -> Result<bool, Error> {
        let bodies = match &cue.gives {
            Gives::Answer(answer) => return Ok(self.stage.give(cue, answer)),
            Gives::Outside(bodies) => bodies,
        };
        let run = self.recording.run;
        let entry = self.store.entry(&run).await?;
        let mut drafts = Vec::new();
        for body in bodies {
            let mut body = body.clone();
            let wait = match &mut body {
                Body::WaitEnded(ended) => Some(&mut ended.wait),
                Body::SignalReceived(signal) => signal.wait.as_mut(),
                _ => None,
            };
            if let Some(wait) = wait {
                match self.wait_here(*wait, &entry.row.facts.waits) {
                    Some(here) => *wait = here,
                    None => return Ok(false),
                }
            }
            drafts.push(Draft::new(body));
        }
        let id = format!("cue-{}", cue.seq);
        Ok(append(self.store, run, drafts, &id).await?.is_ok())
    }

    /// The open wait here that a recorded one is.
    fn wait_here(&self, recorded: WaitId, open: &[OpenWait]) -> Option<WaitId> {
        let recorded = self.recorded_waits.get(recorded)?;
        let is_same = |it: &WaitStarted| {
            let named = it.kind == WaitKind::Child || it.name == recorded.name;
            (it.kind, &it.step, &it.call) == (recorded.kind, &recorded.step, &recorded.call)
                && named
        };
        let mut same = open.iter().filter(|open| is_same(&open.wait));
        same.next().map(|open| open.wait.wait)
    }
}

fn sort(cue: &Cue) -> Sort {
    match &cue.gives {
        Gives::Answer(_) => Sort::Answer,
        Gives::Outside(bodies) => match bodies.as_slice() {
            [Body::WaitEnded(_)] => Sort::Wait,
            _ => Sort::Word,
        },
    }
}

/// Of each cue, how many of its lane and sort come before it.
fn numbered(cues: &[Cue]) -> Vec<usize> {
    let mut counts: HashMap<(&Lane, Sort), usize> = HashMap::new();
    let mut numbers = Vec::with_capacity(cues.len());
    for cue in cues {
        let count = counts.entry((&cue.lane, sort(cue))).or_default();
        numbers.push(*count);
        *count += 1;
    }
    numbers
}
