//! Writing: transactions, and quick appends of many runs sent as one.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use futures_util::stream::{FuturesUnordered, StreamExt};
use logreel_core::{RunId, Seq};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Row;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};

use super::connect;
use super::failure::{Halt, failed, may_retry, was_answered};
use super::line::{Line, Lines};
use super::open::Shared;
use crate::Error;

/// How often a transaction that had to give way is done again.
const TRIES: u32 = 12;
/// The longest that a transaction, or a read, may take before its connection is given up. With its commit, and
/// with what a server still does that has not noticed, it stays below half of `news::GUARD`.
pub(super) const LONGEST: Duration = Duration::from_secs(8);
/// How a transaction begins, whatever the database's default is.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// Appends in one statement, and appends that wait for one.
const BATCH: usize = 128;
const QUEUE: usize = 1024;
/// A statement that is on its way for longer than this is not waited for before the next leaves, as long as
/// there are not too many: a row may be locked, or the database far away.
const LONG: Duration = Duration::from_millis(20);
const FLIGHTS: usize = 4;

pub(super) type Params<'a> = [&'a (dyn ToSql + Sync)];

/// A connection at work, inside a transaction or for reading.
pub(super) struct Tx {
    /// Gone only while it is dropped.
    client: Option<Object>,
    pub shared: Arc<Shared>,
    rings: Mutex<Vec<Ring>>,
    /// The connection is in the middle of something. Whoever panics or is dropped there leaves it so, and the
    /// connection is closed instead of given to the next.
    busy: AtomicBool,
}

impl Drop for Tx {
    fn drop(&mut self) {
        if self.busy.load(Ordering::SeqCst)
            && let Some(client) = self.client.take()
        {
            drop(Object::take(client));
        }
    }
}

/// What is told to those who listen once it is committed.
#[derive(Debug, Clone, Copy)]
enum Ring {
    Appended(RunId, Seq),
    Changed(RunId),
}

impl Tx {
    pub fn new(client: Object, shared: Arc<Shared>) -> Self {
        Self {
            client: Some(client),
            shared,
            rings: Mutex::default(),
            busy: AtomicBool::new(false),
        }
    }

    fn client(&self) -> &Object {
        let client = self.client.as_ref();
        client.expect("a connection is there until it is dropped")
    }

    /// Whether the connection is in the middle of something from now on.
    fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::SeqCst);
    }

    pub async fn query(
        &self,
        sql: &str,
        params: &Params<'_>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let statement = self.client().prepare_cached(sql).await?;
        self.client().query(&statement, params).await
    }

    /// The same, planned anew for these values: which index is the right one may depend on them.
    pub async fn plan_and_query(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.client().query_typed(sql, params).await
    }

    pub async fn opt(
        &self,
        sql: &str,
        params: &Params<'_>,
    ) -> Result<Option<Row>, tokio_postgres::Error> {
        let statement = self.client().prepare_cached(sql).await?;
        self.client().query_opt(&statement, params).await
    }

    pub async fn one(&self, sql: &str, params: &Params<'_>) -> Result<Row, tokio_postgres::Error> {
        let statement = self.client().prepare_cached(sql).await?;
        self.client().query_one(&statement, params).await
    }

    pub async fn exec(&self, sql: &str, params: &Params<'_>) -> Result<u64, tokio_postgres::Error> {
        let statement = self.client().prepare_cached(sql).await?;
        self.client().execute(&statement, params).await
    }

    /// Rows that stream into a table, in the binary form. One that is dropped before its end is taken back.
    pub async fn copy_in(
        &self,
        sql: &str,
        types: &[Type],
    ) -> Result<Pin<Box<BinaryCopyInWriter>>, tokio_postgres::Error> {
        let sink = self.client().copy_in(sql).await?;
        Ok(Box::pin(BinaryCopyInWriter::new(sink, types)))
    }

    /// Statements without parameters.
    pub async fn batch(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.client().batch_execute(sql).await
    }

    /// The run's log will reach `head`.
    pub fn ring(&self, run: RunId, head: Seq) {
        self.rings().push(Ring::Appended(run, head));
    }

    /// Something else about the run will have changed.
    pub fn ring_everywhere(&self, run: RunId) {
        self.rings().push(Ring::Changed(run));
    }

    fn rings(&self) -> std::sync::MutexGuard<'_, Vec<Ring>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it would have written is not there, or may not be: nobody may guess from it.
    fn take_back(&self) {
        for ring in self.rings().drain(..) {
            let (Ring::Appended(run, _) | Ring::Changed(run)) = ring;
            self.shared.tips().forget(&run);
        }
    }

    fn tell(&self) {
        for ring in self.rings().drain(..) {
            match ring {
                Ring::Appended(run, head) => self.shared.ring_appended(run, head),
                Ring::Changed(run) => {
                    self.shared.bells.ring(&run);
                    self.shared.bell.ring(run);
                }
            }
        }
    }
}

impl Shared {
    /// Reads on a connection of the pool, each statement of its own moment.
    pub async fn reading<T, E, F>(self: &Arc<Self>, work: impl FnOnce(Arc<Tx>) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, Halt<E>>>,
        E: From<Error>,
    {
        let client = connect::get(&self.pool).await?;
        let tx = Arc::new(Tx::new(client, self.clone()));
        tx.set_busy(true);
        match tokio::time::timeout(LONGEST, work(tx.clone())).await {
            Ok(answer) => {
                tx.set_busy(false);
                answer.map_err(Halt::told)
            }
            Err(_) => Err(too_long().into()),
        }
    }

    /// Does all of it in one transaction, or nothing; again when the database asks for it.
    pub async fn transact<T, E, F>(self: &Arc<Self>, work: impl Fn(Arc<Tx>) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, Halt<E>>>,
        E: From<Error>,
    {
        let mut tries = 0;
        loop {
            tries += 1;
            let halt = match self.attempt(&work, Some(LONGEST)).await {
                Ok(done) => return Ok(done),
                Err(halt) => halt,
            };
            let again = match &halt {
                Halt::Again => true,
                Halt::Database(error) => may_retry(error),
                Halt::Refused(_) => false,
            };
            if !again || tries >= TRIES {
                return Err(halt.told());
            }
            self.pause(tries).await;
        }
    }

    /// One transaction, tried once: for work that cannot be done again.
    pub async fn transact_once<T, E, F>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Tx>) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, Halt<E>>>,
        E: From<Error>,
    {
        self.attempt(work, None).await.map_err(Halt::told)
    }

    async fn attempt<T, E, F>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Tx>) -> F,
        longest: Option<Duration>,
    ) -> Result<T, Halt<E>>
    where
        F: Future<Output = Result<T, Halt<E>>>,
        E: From<Error>,
    {
        let client = connect::get(&self.pool).await?;
        let tx = Arc::new(Tx::new(client, self.clone()));
        // Until the transaction is known to be over.
        tx.set_busy(true);
        let worked = async {
            tx.batch(BEGIN).await?;
            work(tx.clone()).await
        };
        let worked = match longest {
            Some(longest) => tokio::time::timeout(longest, worked).await,
            None => Ok(worked.await),
        };
        let Ok(worked) = worked else {
            tx.take_back();
            return Err(too_long().into());
        };
        match worked {
            Ok(done) => {
                let commit = tokio::time::timeout(LONGEST, tx.batch("COMMIT")).await;
                match commit {
                    Ok(Ok(())) => tx.set_busy(false),
                    Ok(Err(error)) if was_answered(&error) => {
                        tx.take_back();
                        return Err(Halt::Database(error));
                    }
                    lost => {
                        tx.take_back();
                        let what = match lost {
                            Ok(Err(error)) => failed(error).to_string(),
                            _ => "the database did not answer in time".to_owned(),
                        };
                        return Err(Error::Ambiguous { what }.into());
                    }
                }
                tx.tell();
                Ok(done)
            }
            Err(halt) => {
                tx.take_back();
                let back = tokio::time::timeout(LONGEST, tx.batch("ROLLBACK")).await;
                if matches!(back, Ok(Ok(()))) {
                    tx.set_busy(false);
                }
                Err(halt)
            }
        }
    }

    /// A moment that grows with every try, and is never the same for two who collided.
    async fn pause(&self, tries: u32) {
        let most = 2_000 * u64::from(tries);
        let micros = 200 + self.env.random_u64() % most;
        pause(Duration::from_micros(micros)).await;
    }

    /// The run's log was appended to and now reaches `head`, and it is committed.
    pub fn ring_appended(&self, run: RunId, head: Seq) {
        self.bells.ring_appended(&run, head);
        self.bell.ring(run);
    }

    pub fn tips(&self) -> std::sync::MutexGuard<'_, crate::tips::Tips> {
        self.tips.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_long() -> Error {
    Error::unavailable("the database did not answer in time; try again")
}

#[expect(
    clippy::disallowed_methods,
    reason = "a database is real time, whatever clock the host supplies"
)]
pub(super) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// An append that changes nothing but events and the narrow row, on its way to the database.
struct Job {
    line: Line,
    answer: oneshot::Sender<Wrote>,
}

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

/// Takes quick appends and sends those that wait together as one statement: while one is on its way the
/// next gather.
pub(super) struct Writer(mpsc::Sender<Job>);

impl Writer {
    pub fn start(handle: &Handle, pool: Pool) -> Self {
        let (sender, jobs) = mpsc::channel(QUEUE);
        handle.spawn(write(pool, jobs));
        Self(sender)
    }

    pub async fn submit(&self, line: Line) -> Wrote {
        let (answer, answered) = oneshot::channel();
        let gone = || Wrote::Unavailable(Error::unavailable("the store is closed"));
        if self.0.send(Job { line, answer }).await.is_err() {
            return gone();
        }
        match answered.await {
            Ok(wrote) => wrote,
            Err(_) => Wrote::Ambiguous("the store was closed meanwhile".to_owned()),
        }
    }
}

async fn write(pool: Pool, mut jobs: mpsc::Receiver<Job>) {
    let mut flights = FuturesUnordered::new();
    // One that takes long does not hold up the others for ever.
    let mut waits_for_answer = false;
    loop {
        tokio::select! {
            biased;
            Some(()) = flights.next() => waits_for_answer = false,
            job = jobs.recv(), if !waits_for_answer => {
                let Some(first) = job else { break };
                flights.push(fly(&pool, gather(first, &mut jobs)));
                waits_for_answer = true;
            }
            () = pause(LONG), if waits_for_answer && flights.len() < FLIGHTS => {
                waits_for_answer = false;
            }
        }
    }
    while let Some(()) = flights.next().await {}
}

fn gather(first: Job, jobs: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    let mut batch = vec![first];
    while batch.len() < BATCH {
        match jobs.try_recv() {
            Ok(job) => batch.push(job),
            Err(_) => break,
        }
    }
    batch
}

async fn fly(pool: &Pool, batch: Vec<Job>) {
    let wrote = send(pool, &batch).await;
    for (job, wrote) in batch.into_iter().zip(wrote) {
        // Whoever asked may have stopped waiting.
        drop(job.answer.send(wrote));
    }
}

async fn send(pool: &Pool, batch: &[Job]) -> Vec<Wrote> {
    let all = |what: &dyn Fn() -> Wrote| batch.iter().map(|_| what()).collect();
    let client = match connect::get(pool).await {
        Ok(client) => client,
        Err(error) => return all(&|| Wrote::Unavailable(error.clone())),
    };
    match tokio::time::timeout(LONGEST, send_on(&client, batch)).await {
        Ok(Ok(wrote)) => wrote,
        // The database has said no to all of it.
        Ok(Err(error)) if was_answered(&error) => {
            tracing::debug!("appends are looked at one by one: {error}");
            all(&|| Wrote::NotWritten)
        }
        lost => {
            drop(Object::take(client));
            let what = match lost {
                Ok(Err(error)) => failed(error).to_string(),
                _ => too_long().to_string(),
            };
            all(&|| Wrote::Ambiguous(what.clone()))
        }
    }
}

async fn send_on(client: &Object, batch: &[Job]) -> Result<Vec<Wrote>, tokio_postgres::Error> {
    if let [alone] = batch
        && let Some(params) = alone.line.params()
    {
        let statement = client.prepare_cached(Line::SQL).await?;
        return Ok(match client.execute(&statement, &params).await? {
            0 => vec![Wrote::Refused],
            _ => vec![Wrote::Landed],
        });
    }
    let statement = client.prepare_cached(Lines::SQL).await?;
    let lines = Lines::of(batch.iter().map(|job| &job.line));
    let mut wrote: Vec<Wrote> = batch.iter().map(|_| Wrote::Refused).collect();
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
