//! Workflows whose steps are Rust functions that do nothing: what the graph, the templates and the log
//! cost. Each function appends to the bare file, so that product and reference take turns; a step's time
//! is from one function's return to the call of the next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use logreel::workflow::{Step, Workflow};
use logreel::{Ctx, Engine, Outcome};

use crate::bare::{BareFile, GroupFile};
use crate::concurrent;
use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, now, rows};
use crate::place::Place;
use crate::work::{Note, PAYLOAD_BYTES};

/// What the steps of a run saw.
#[derive(Default)]
struct Seen {
    returned: Option<Duration>,
    ours: Samples,
    theirs: Samples,
}

#[derive(Clone)]
struct Bench {
    engine: Engine,
    seen: Arc<Mutex<Seen>>,
}

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let mut figures = alone(place).await?;
    figures.extend(together(place).await?);
    rows(figures)
}

/// One run at a time, beside the bare file.
async fn alone(place: &Place) -> Result<Vec<Figure>> {
    let (short, long) = (place.size(100, 10), place.size(10_000, 50));
    let steps = place.size(1000, 20);
    let bare = Arc::new(Mutex::new(BareFile::create(&place.file("flow.bare"), 16)?));
    let engine = Engine::open(place.file("flow.db")).await?;
    let bench = Bench {
        engine,
        seen: Arc::default(),
    };
    let seen = Arc::clone(&bench.seen);
    bench.engine.task("nothing", move |_: Ctx, n: u64| {
        let (seen, bare) = (Arc::clone(&seen), Arc::clone(&bare));
        async move {
            let called = now();
            let note = Note::new(n);
            let json = note.json()?;
            let mut seen = lock(&seen);
            if let Some(returned) = seen.returned {
                seen.ours.add(called.saturating_sub(returned));
            }
            let append = || lock(&bare).append(json.text().as_bytes());
            seen.theirs.time_blocking(append)?;
            seen.returned = Some(now());
            Ok(note)
        }
    });
    bench.run(&chain(steps)?).await?;

    let params = |events| Params {
        runs: 1,
        events,
        payload_bytes: PAYLOAD_BYTES,
    };
    let mut p50 =
        Figure::new("workflow", "", Metric::P50Us, params(steps)).bar(Bar::RatioAtMost(1.8));
    let mut p99 = Figure::new("workflow", "", Metric::P99Us, params(steps));
    let mut growth = Figure::new("workflow", "last of many", Metric::P50Us, params(long))
        .bar(Bar::RatioAtMost(1.2));
    for _ in 0..place.rounds() {
        let seen = bench.run(&chain(steps)?).await?;
        p50.round(seen.ours.p50(), Some(seen.theirs.p50()));
        p99.round(seen.ours.p99(), Some(seen.theirs.p99()));
        let first = bench.run(&chain(short)?).await?;
        let whole = bench.run(&chain(long)?).await?;
        growth.round(whole.ours.last(short).p50(), Some(first.ours.p50()));
    }
    bench.engine.close().await?;
    Ok(vec![p50, p99, growth])
}

/// Many runs at once, beside as many tasks that append to one group-committed bare file.
async fn together(place: &Place) -> Result<Vec<Figure>> {
    let (runs, steps) = (place.size(64, 4), place.size(100, 5));
    let engine = Engine::open(place.file("flows.db")).await?;
    engine.task("nothing", |_: Ctx, n: u64| async move { Ok(Note::new(n)) });
    let flow = engine.workflow(&chain(steps)?);
    let (group, _helper) = GroupFile::create(&place.file("flows.bare"), 64)?;
    let params = Params {
        runs,
        events: runs * steps,
        payload_bytes: PAYLOAD_BYTES,
    };
    let mut rate = Figure::new("workflow", "at once", Metric::PerS, params);
    for round in 0..=place.rounds() {
        let began = now();
        let mut started = Vec::with_capacity(runs);
        for _ in 0..runs {
            started.push(flow.start(&()).await?);
        }
        for run in started {
            let outcome = run.wait().await?;
            ensure!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        }
        let took = now().saturating_sub(began);
        let reference = concurrent::theirs(&group, runs, took).await?;
        // The first round only warms up.
        if round > 0 {
            rate.round((runs * steps) as f64 / took.as_secs_f64(), Some(reference));
        }
    }
    engine.close().await?;
    Ok(vec![rate])
}

/// Steps that each need the one before.
fn chain(steps: usize) -> Result<Workflow> {
    let mut chain = Workflow::builder("chain");
    for n in 0..steps {
        let step = Step::task(format!("s{n}"), "nothing").input(n as u64);
        chain = chain.step(match n {
            0 => step,
            _ => step.needs([format!("s{}", n - 1)]),
        });
    }
    Ok(chain.build()?)
}

impl Bench {
    async fn run(&self, workflow: &Workflow) -> Result<Seen> {
        *lock(&self.seen) = Seen::default();
        let run = self.engine.workflow(workflow).start(&()).await?;
        let outcome = run.wait().await?;
        ensure!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        Ok(std::mem::take(&mut *lock(&self.seen)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
