//! Durable steps through the engine on PostgreSQL, beside a bare INSERT of the same payload on the same server.
//!
//! The reference is what a program would do that only wants its payload to be durable: one prepared
//! `INSERT` of one row in a transaction of its own, into a table with the key that a log needs. One run is
//! measured step by step, in turn with the INSERT, and then in turn by the block, where nothing that a step leaves to be
//! done after it is done beside an INSERT. Many runs take turns by the slice: with as many tasks on a pool of
//! as many connections as our store has, and with as many tasks that have a connection each.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use deadpool_postgres::{Manager, Pool};
use logreel::{Ctx, Engine, Outcome, RunHandle, TaskError};
use logreel_store::postgres::Options;
use logreel_store::{Env as _, SystemEnv};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls, Statement};

use crate::concurrent::SLICE;
use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, now, rows};
use crate::place::Place;
use crate::server::Server;
use crate::step::step;
use crate::work::{Note, PAYLOAD_BYTES};

const BARE: &str = "INSERT INTO bare (run, seq, body) VALUES ($1, $2, $3)";

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let Some(server) = Server::find(place).await? else {
        return Ok(Vec::new());
    };
    let sql = "CREATE TABLE bare (run int8, seq int8, body text NOT NULL, PRIMARY KEY (run, seq))";
    server.connect().await?.batch_execute(sql).await?;
    let engine = Engine::builder()
        .store(server.store().await?)
        .build()
        .await?;
    let mut rows = one(place, &server, &engine).await?;
    rows.extend(many(place, &server, &engine).await?);
    engine.close().await?;
    server.clear().await?;
    Ok(rows)
}

/// A connection for bare INSERTs.
struct Bare {
    client: Client,
    statement: Statement,
}

impl Bare {
    async fn new(server: &Server) -> Result<Self> {
        let client = server.connect().await?;
        let statement = client.prepare(BARE).await?;
        Ok(Self { client, statement })
    }

    async fn insert(&self, seq: u64) -> Result<()> {
        // Making the payload is part of both sides.
        let body = Note::new(seq).json()?;
        let seq = seq.cast_signed();
        let inserted = self
            .client
            .execute(&self.statement, &[&0_i64, &seq, &body.text()])
            .await?;
        ensure!(inserted == 1, "the bare row is not there");
        Ok(())
    }
}

/// So many steps, and then so many INSERTs, are a block; between them is time for what is left to be done.
const BLOCK: usize = 200;
const BETWEEN_BLOCKS: Duration = Duration::from_millis(10);

/// One run: a step, an INSERT, a step, …
async fn one(place: &Place, server: &Server, engine: &Engine) -> Result<Vec<Row>> {
    let steps = place.size(8000, 20);
    let warm_ups = place.size(500, 10);
    let rounds = place.rounds();
    let bare = Arc::new(Bare::new(server).await?);
    let measured: Arc<Mutex<Vec<(Samples, Samples)>>> = Arc::default();
    let in_blocks: Arc<Mutex<Vec<(Samples, Samples)>>> = Arc::default();
    let blocks = Arc::clone(&in_blocks);
    let seen = Arc::clone(&measured);
    // Whoever waits for a run looks at it after each event, which would be measured too.
    let (done, mut is_done) = watch::channel(());
    let task = engine.task("alternate", move |ctx: Ctx, (): ()| {
        let (bare, seen, done) = (Arc::clone(&bare), Arc::clone(&seen), done.clone());
        let blocks = Arc::clone(&blocks);
        async move {
            let mut n = 0;
            for round in 0..=rounds {
                let (mut ours, mut theirs) = (Samples::default(), Samples::default());
                for _ in 0..if round == 0 { warm_ups } else { steps } {
                    n += 1;
                    ours.time(step(&ctx, n)).await?;
                    let inserted = theirs.time(bare.insert(n)).await;
                    inserted.map_err(|error| TaskError::new(format!("{error:#}")))?;
                }
                if round > 0 {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.push((ours, theirs));
                }
            }
            for _ in 0..rounds {
                let (mut ours, mut theirs) = (Samples::default(), Samples::default());
                for _ in 0..steps.div_ceil(BLOCK) {
                    for _ in 0..BLOCK {
                        n += 1;
                        ours.time(step(&ctx, n)).await?;
                    }
                    SystemEnv.sleep(BETWEEN_BLOCKS).await;
                    for at in (n - BLOCK as u64)..n {
                        let inserted = theirs.time(bare.insert(at + 1)).await;
                        inserted.map_err(|error| TaskError::new(format!("{error:#}")))?;
                    }
                    SystemEnv.sleep(BETWEEN_BLOCKS).await;
                }
                let mut blocks = blocks.lock().unwrap_or_else(PoisonError::into_inner);
                blocks.push((ours, theirs));
            }
            done.send_replace(());
            Ok(())
        }
    });
    let run = task.start(&()).await?;
    is_done.changed().await?;
    let outcome = run.wait().await?;
    ensure!(outcome == Outcome::Completed(()), "{outcome:?}");
    let params = Params {
        runs: 1,
        events: steps,
        payload_bytes: PAYLOAD_BYTES,
    };
    let mut rate = Figure::new("postgres", "", Metric::PerS, params).bar(Bar::RatioAtLeast(0.8));
    let mut p50 = Figure::new("postgres", "", Metric::P50Us, params);
    let mut p99 = Figure::new("postgres", "", Metric::P99Us, params);
    for (ours, theirs) in &*measured.lock().unwrap_or_else(PoisonError::into_inner) {
        rate.round(per_second(ours), Some(per_second(theirs)));
        p50.round(ours.p50(), Some(theirs.p50()));
        p99.round(ours.p99(), Some(theirs.p99()));
    }
    let mut blocks =
        Figure::new("postgres", "in blocks", Metric::PerS, params).bar(Bar::RatioAtLeast(0.8));
    for (ours, theirs) in &*in_blocks.lock().unwrap_or_else(PoisonError::into_inner) {
        blocks.round(per_second(ours), Some(per_second(theirs)));
    }
    rows([rate, p50, p99, blocks])
}

/// How many there would be in a second, one after the other.
fn per_second(samples: &Samples) -> f64 {
    let total: Duration = samples.iter().sum();
    samples.len() as f64 / total.as_secs_f64()
}

async fn many(place: &Place, server: &Server, engine: &Engine) -> Result<Vec<Row>> {
    let runs = place.size(64, 8);
    let slices = place.size(4, 1);
    let slice = if place.quick { SLICE / 10 } else { SLICE };
    let mut working = Working::start(engine, runs).await?;
    let shared = pool(server, Options::default().connections)?;
    let own = pool(server, runs)?;
    let mut next = 0;
    // Connections are made, and statements prepared.
    working.slice(slice).await?;
    theirs(&shared, runs, slice, &mut next).await?;
    theirs(&own, runs, slice, &mut next).await?;

    let params = Params {
        runs,
        events: 0,
        payload_bytes: PAYLOAD_BYTES,
    };
    let case = |case, metric| Figure::new("postgres", case, metric, params);
    let mut rate = case("many, on as many connections", Metric::PerS).bar(Bar::RatioAtLeast(1.0));
    let mut beside_own = case("many, a connection each", Metric::PerS).bar(Bar::RatioAtLeast(1.0));
    let mut p50 = case("many", Metric::P50Us);
    let mut p99 = case("many", Metric::P99Us);
    for _ in 0..place.rounds() {
        let mut latencies = Samples::default();
        let (mut ours, mut pooled, mut alone) = (0.0, 0.0, 0.0);
        for _ in 0..slices {
            let (samples, rate) = working.slice(slice).await?;
            latencies.append(samples);
            ours += rate / slices as f64;
            pooled += theirs(&shared, runs, slice, &mut next).await? / slices as f64;
            alone += theirs(&own, runs, slice, &mut next).await? / slices as f64;
        }
        rate.round(ours, Some(pooled));
        beside_own.round(ours, Some(alone));
        p50.round(latencies.p50(), None);
        p99.round(latencies.p99(), None);
    }
    working.end().await?;
    rows([rate, beside_own, p50, p99])
}

/// Runs that take steps while a slice lasts.
struct Working {
    /// Until when.
    slices: watch::Sender<Duration>,
    took: mpsc::Receiver<Samples>,
    runs: Vec<RunHandle<()>>,
}

impl Working {
    async fn start(engine: &Engine, runs: usize) -> Result<Self> {
        let (slices, asked) = watch::channel(Duration::ZERO);
        let (tell, took) = mpsc::channel(runs);
        let task = engine.task("many", move |ctx: Ctx, (): ()| {
            let (mut asked, tell) = (asked.clone(), tell.clone());
            async move {
                let mut n = 0;
                while asked.changed().await.is_ok() {
                    let until = *asked.borrow_and_update();
                    let mut samples = Samples::default();
                    while now() < until {
                        n += 1;
                        samples.time(step(&ctx, n)).await?;
                    }
                    tell.send(samples).await?;
                }
                Ok(())
            }
        });
        let mut handles = Vec::new();
        for _ in 0..runs {
            handles.push(task.start(&()).await?);
        }
        Ok(Self {
            slices,
            took,
            runs: handles,
        })
    }

    /// The latencies, and steps per second.
    async fn slice(&mut self, slice: Duration) -> Result<(Samples, f64)> {
        let began = now();
        self.slices.send(began + slice)?;
        let mut all = Samples::default();
        for _ in &self.runs {
            all.append(self.took.recv().await.context("a run ended early")?);
        }
        let rate = all.len() as f64 / (now() - began).as_secs_f64();
        Ok((all, rate))
    }

    async fn end(self) -> Result<()> {
        drop(self.slices);
        for run in self.runs {
            let outcome = run.wait().await?;
            ensure!(outcome == Outcome::Completed(()), "{outcome:?}");
        }
        Ok(())
    }
}

fn pool(server: &Server, connections: usize) -> Result<Pool> {
    let manager = Manager::new(server.url.parse()?, NoTls);
    Ok(Pool::builder(manager).max_size(connections).build()?)
}

/// A slice of bare INSERTs, each acknowledged before the task goes on: how many per second.
async fn theirs(pool: &Pool, tasks: usize, slice: Duration, next: &mut i64) -> Result<f64> {
    let mut working = JoinSet::new();
    let began = now();
    let until = began + slice;
    for _ in 0..tasks {
        *next += 1;
        let (pool, run) = (pool.clone(), *next);
        working.spawn(async move {
            let mut written = 0_u64;
            while now() < until {
                written += 1;
                let body = Note::new(written).json()?;
                let client = pool.get().await?;
                let statement = client.prepare_cached(BARE).await?;
                let seq = written.cast_signed();
                let inserted = client
                    .execute(&statement, &[&run, &seq, &body.text()])
                    .await?;
                ensure!(inserted == 1, "the bare row is not there");
            }
            anyhow::Ok(written)
        });
    }
    let mut all = 0;
    while let Some(done) = working.join_next().await {
        all += done??;
    }
    Ok(all as f64 / (now() - began).as_secs_f64())
}
