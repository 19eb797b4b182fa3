//! Quick appends: what changes nothing but events and the narrow row is one statement, and what many runs have to
//! say at the same moment is one statement too. While one is on its way the next gather; only a crowd leaves beside it.
//!
//! Whoever finds nobody on the way sends its append itself: handing it to another task, another thread or another
//! runtime, and the answer back, costs up to half as much as the commit. Those who come meanwhile leave theirs to
//! the sender, a task on the runtime of its first caller, with connections of its own there. When that
//! runtime ends, whoever comes next starts it again.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, Sleep, timeout};
use tokio_postgres::Statement;

use super::clock::Clock;
use super::connect::{self, Connector};
use super::failure::{failed, was_answered};
use super::line::{Line, Lines};
use super::writer::{LONGEST, sleep, too_long};
use crate::Error;

/// Appends in one statement, and appends that wait for one.
const BATCH: usize = 128;
const QUEUE: usize = 1024;
/// A statement that is on its way for longer than this is not waited for before the next leaves, as long as
/// there are not too many: a row may be locked, or the database far away.
const LONG: Duration = Duration::from_millis(20);
/// So many that wait do not wait for the statement that is on its way, but leave beside it: the database does one while
/// the other's answer is read and its runs go on.
const CROWD: usize = 16;
/// Statements beside each other for that reason.
const ABREAST: usize = 2;
/// How long a crowd does without the second one when the database has no connection for it.
const SECOND_AGAIN: Duration = Duration::from_secs(1);
/// After so many turns for one append alone one sends for itself. Where many runs append, whoever came first would
/// always leave without the others.
const ALONE: u32 = 4;
/// Connections for quick appends.
pub(super) const FLIGHTS: usize = 3;

/// What became of a quick append.
#[derive(Debug)]
pub(super) enum Wrote {
    /// It is there.
    Landed,
    /// Head or epoch are others now; nothing was written.
    Refused,
    /// Nothing was written, for a reason that does not concern this append alone.
    NotWritten,
    /// The database cannot be reached; nothing was sent.
    Unavailable(Error),
    /// Nobody knows.
    Ambiguous(String),
}

pub(super) struct Batches {
    connector: Connector,
    clock: Arc<Clock>,
    turns: Arc<Turns>,
    queue: Mutex<Option<mpsc::Sender<Job>>>,
    /// The store's own runtime, for callers that have none, or one that reaches no network.
    shelter: Handle,
    sheltered: Arc<AtomicBool>,
}

/// An append on its way to the database.
struct Job {
    line: Line,
    answer: oneshot::Sender<Wrote>,
}

impl Batches {
    pub fn new(connector: Connector, clock: Arc<Clock>, shelter: Handle) -> Self {
        Self {
            connector,
            clock,
            turns: Arc::default(),
            queue: Mutex::default(),
            shelter,
            sheltered: Arc::default(),
        }
    }

    pub async fn submit(&self, line: Line) -> Wrote {
        if !self.sheltered.load(Ordering::SeqCst)
            && Handle::try_current().is_ok()
            && let Some((mut turn, wire)) = self.turns.take_ready()
        {
            return send(wire, &[&line], &mut turn).await.first;
        }
        let (answer, answered) = oneshot::channel();
        let mut job = Job { line, answer };
        loop {
            let queue = match self.queue() {
                Ok(queue) => queue,
                Err(error) => return Wrote::Unavailable(error),
            };
            match queue.send(job).await {
                Ok(()) => break,
                // It ended just now.
                Err(mpsc::error::SendError(back)) => job = back,
            }
        }
        match answered.await {
            Ok(wrote) => wrote,
            Err(_) => Wrote::Ambiguous("what wrote to the database ended meanwhile".to_owned()),
        }
    }

    /// Where appends wait for the sender, which is started when it is not there.
    fn queue(&self) -> Result<mpsc::Sender<Job>, Error> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queue.as_ref().filter(|queue| !queue.is_closed()) {
            return Ok(queue.clone());
        }
        let pool = self.connector.pool(FLIGHTS, self.clock.clone())?;
        let (sender, jobs) = mpsc::channel(QUEUE);
        let work = send_all(pool, jobs, self.turns.clone());
        let fell = Fell(self.sheltered.clone());
        let work = async move {
            let _fell = fell;
            work.await;
        };
        match Handle::try_current() {
            Ok(here) if !self.sheltered.load(Ordering::SeqCst) => here.spawn(work),
            _ => self.shelter.spawn(work),
        };
        Ok(queue.insert(sender).clone())
    }
}

/// Notices a panic: a runtime that was built without a network panics when it is asked for one.
struct Fell(Arc<AtomicBool>);

impl Drop for Fell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

/// Whose turn it is to send.
#[derive(Default)]
struct Turns {
    now: Mutex<Now>,
    /// Rings when nobody has it.
    free: Notify,
}

#[derive(Default)]
struct Now {
    number: u64,
    taken: bool,
    /// How many turns in a row were for one append alone.
    alone: u32,
    /// Waits for the next who sends.
    wire: Option<Box<Wire>>,
}

/// A turn to send; over when it is dropped.
struct Turn {
    turns: Arc<Turns>,
    number: u64,
    /// More than one append is sent.
    shared: bool,
    /// For the next.
    wire: Option<Box<Wire>>,
}

impl Turns {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When nobody has it, a connection is there, and nobody else is likely to come meanwhile.
    fn take_ready(self: &Arc<Self>) -> Option<(Turn, Box<Wire>)> {
        let mut now = self.now();
        let crowded = now.alone < ALONE;
        if now.taken || crowded || now.wire.as_ref().is_none_or(|wire| wire.is_closed()) {
            return None;
        }
        let wire = now.wire.take()?;
        Some((self.begin(&mut now), wire))
    }

    /// When nobody has it.
    fn take(self: &Arc<Self>) -> Option<(Turn, Option<Box<Wire>>)> {
        let mut now = self.now();
        if now.taken {
            return None;
        }
        let wire = now.wire.take().filter(|wire| !wire.is_closed());
        Some((self.begin(&mut now), wire))
    }

    /// From one who is on its way still.
    fn seize(self: &Arc<Self>) -> (Turn, Option<Box<Wire>>) {
        let mut now = self.now();
        // Who was on its way may have come back a moment ago.
        let wire = now.wire.take().filter(|wire| !wire.is_closed());
        (self.begin(&mut now), wire)
    }

    fn begin(self: &Arc<Self>, now: &mut Now) -> Turn {
        now.number += 1;
        now.taken = true;
        Turn {
            turns: self.clone(),
            number: now.number,
            shared: false,
            wire: None,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let wire = self.wire.take();
        let mut now = self.turns.now();
        now.alone = if self.shared {
            0
        } else {
            now.alone.saturating_add(1)
        };
        if now.number == self.number {
            now.taken = false;
            now.wire = wire;
            drop(now);
            self.turns.free.notify_one();
        } else if let Some(mut wire) = wire {
            // Another has its turn meanwhile: the pool has the connection again.
            drop(wire.client.take());
        }
    }
}

/// What became of each append of a batch. Most have one, which needs no list.
struct Answers {
    first: Wrote,
    others: Vec<Wrote>,
}

impl Answers {
    /// The same for all.
    fn all(batch: usize, wrote: impl Fn() -> Wrote) -> Self {
        Self {
            first: wrote(),
            others: (1..batch).map(|_| wrote()).collect(),
        }
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut Wrote> {
        match index {
            0 => Some(&mut self.first),
            _ => self.others.get_mut(index - 1),
        }
    }
}

/// Sends what waits, batch by batch, until nobody is left who could ask for it.
async fn send_all(pool: Pool, mut jobs: mpsc::Receiver<Job>, turns: Arc<Turns>) {
    let mut flights = FuturesUnordered::new();
    let mut second_from = Instant::now();
    loop {
        let first = tokio::select! {
            biased;
            Some(()) = flights.next() => continue,
            job = jobs.recv() => job,
        };
        let Some(first) = first else { break };
        let mut batch = vec![first];
        let mut long = pin!(sleep(LONG));
        let (turn, wire) = loop {
            if let Some(taken) = turns.take() {
                break taken;
            }
            if batch.len() >= CROWD && flights.len() < ABREAST && Instant::now() >= second_from {
                // The first one works: a database that gives no second one is no reason to fail anybody.
                match timeout(LONG, connect::get(&pool)).await {
                    Ok(Ok(client)) => {
                        let (turn, wire) = turns.seize();
                        break (turn, wire.or_else(|| Some(Wire::new(client))));
                    }
                    Ok(Err(_)) | Err(_) => second_from = Instant::now() + SECOND_AGAIN,
                }
            }
            tokio::select! {
                biased;
                Some(()) = flights.next() => {}
                () = turns.free.notified() => {}
                () = &mut long, if flights.len() < FLIGHTS => break turns.seize(),
                Some(job) = jobs.recv(), if batch.len() < BATCH => batch.push(job),
            }
        };
        gather(&mut batch, &mut jobs);
        flights.push(fly(&pool, batch, turn, wire));
    }
    while let Some(()) = flights.next().await {}
    // A connection that waits for the next belongs to this pool, and to this runtime.
    drop(turns.now().wire.take());
}

/// Takes along whoever waits by now.
fn gather(batch: &mut Vec<Job>, jobs: &mut mpsc::Receiver<Job>) {
    while batch.len() < BATCH
        && let Ok(job) = jobs.try_recv()
    {
        batch.push(job);
    }
}

async fn fly(pool: &Pool, batch: Vec<Job>, mut turn: Turn, wire: Option<Box<Wire>>) {
    let wire = match wire {
        Some(wire) => Ok(wire),
        None => connect::get(pool).await.map(Wire::new),
    };
    let wrote = match wire {
        Ok(wire) => {
            let lines: Vec<&Line> = batch.iter().map(|job| &job.line).collect();
            send(wire, &lines, &mut turn).await
        }
        Err(error) => Answers::all(batch.len(), || Wrote::Unavailable(error.clone())),
    };
    drop(turn);
    let wrote = std::iter::once(wrote.first).chain(wrote.others);
    for (job, wrote) in batch.into_iter().zip(wrote) {
        // Whoever asked may have stopped waiting.
        drop(job.answer.send(wrote));
    }
}

/// Sends the batch, and leaves the connection to the next turn when it is still good. One that is dropped on the
/// way takes its connection with it: nobody waits behind what it sent.
async fn send(mut wire: Box<Wire>, batch: &[&Line], turn: &mut Turn) -> Answers {
    turn.shared = batch.len() > 1;
    let Wire { client, one, late } = &mut *wire;
    late.as_mut().reset(Instant::now() + LONGEST);
    let Some(client) = client else {
        return Answers::all(batch.len(), || Wrote::NotWritten);
    };
    let sent = {
        let mut sending = pin!(send_on(client, one, batch));
        tokio::select! {
            biased;
            sent = &mut sending => sent.map_err(Some),
            () = late.as_mut() => Err(None),
        }
    };
    match sent {
        Ok(wrote) => {
            turn.wire = Some(wire);
            wrote
        }
        // The database has said no to all of it.
        Err(Some(error)) if was_answered(&error) => {
            tracing::debug!("appends are looked at one by one: {error}");
            turn.wire = Some(wire);
            Answers::all(batch.len(), || Wrote::NotWritten)
        }
        Err(lost) => {
            let what = lost.map_or_else(too_long, failed).to_string();
            Answers::all(batch.len(), || Wrote::Ambiguous(what.clone()))
        }
    }
}

/// A connection that is closed when it is dropped, and the timer of what is sent on it: one that is made anew each
/// time may wake another thread. It goes from hand to hand with each turn, so it is boxed.
struct Wire {
    /// Gone only while it is dropped.
    client: Option<Object>,
    /// What writes one event, once it was needed: looking it up by its text costs as much as filling it in.
    one: Option<Statement>,
    late: Pin<Box<Sleep>>,
}

impl Wire {
    fn new(client: Object) -> Box<Self> {
        Box::new(Self {
            client: Some(client),
            one: None,
            late: Box::pin(sleep(LONGEST)),
        })
    }

    fn is_closed(&self) -> bool {
        self.client.as_ref().is_none_or(|client| client.is_closed())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}

async fn send_on(
    client: &Object,
    one: &mut Option<Statement>,
    batch: &[&Line],
) -> Result<Answers, tokio_postgres::Error> {
    if let [alone] = batch
        && alone.is_one()
    {
        let statement = match one {
            Some(statement) => statement,
            None => one.insert(Box::pin(client.prepare_cached(Line::SQL)).await?),
        };
        let written = alone.execute(client, statement).await?;
        return Ok(Answers::all(1, || match written {
            0 => Wrote::Refused,
            _ => Wrote::Landed,
        }));
    }
    // An append alone has its future in place, and need not carry the room that this takes.
    Box::pin(send_together(client, batch)).await
}

async fn send_together(client: &Object, batch: &[&Line]) -> Result<Answers, tokio_postgres::Error> {
    let statement = client.prepare_cached(Lines::SQL).await?;
    let lines = Lines::of(batch.iter().copied());
    let mut wrote = Answers::all(batch.len(), || Wrote::Refused);
    for landed in client.query(&statement, &lines.params()).await? {
        let line: i64 = landed.try_get(0)?;
        if let Some(wrote) = usize::try_from(line)
            .ok()
            .and_then(|line| wrote.get_mut(line))
        {
            *wrote = Wrote::Landed;
        }
    }
    Ok(wrote)
}
