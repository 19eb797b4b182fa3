//! Reading and writing: what is asked on a connection of the pool, and transactions.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::Object;
use logreel_core::{RunId, Seq};
use tokio_postgres::Row;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};

use super::connect;
use super::failure::{Halt, failed, may_retry, was_answered};
use super::open::Shared;
use crate::Error;
use crate::doorbell::Ring;

/// How often a transaction that had to give way is done again.
const TRIES: u32 = 12;
/// The longest that a transaction, or a read, may take before its connection is given up. With its commit, and
/// with what a server still does that has not noticed, it stays below half of `news::GUARD`.
pub(super) const LONGEST: Duration = Duration::from_secs(8);
/// How a transaction begins, whatever the database's default is.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

pub(super) type Params<'a> = [&'a (dyn ToSql + Sync)];

/// A connection at work, inside a transaction or for reading.
pub(super) struct Tx {
    /// Gone only while it is dropped.
    client: Option<Object>,
    pub shared: Arc<Shared>,
    /// What is told to those who listen once it is committed.
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

    /// This transaction may take as long as it needs. Only for what stamps no event: whoever reads all runs does
    /// not wait for it (`news`).
    pub async fn take_time(&self) -> Result<(), tokio_postgres::Error> {
        let sql =
            "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0;
            SET LOCAL application_name = 'logreel long'";
        self.batch(sql).await
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
            self.shared.tips().forget(&ring.run());
        }
    }

    fn tell(&self) {
        for ring in self.rings().drain(..) {
            self.shared.tell(ring);
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
        self.read_within(Some(LONGEST), work).await
    }

    /// The same for what takes as long as a log is: only its statements have a limit each.
    pub async fn reading_long<T, E, F>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Tx>) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, Halt<E>>>,
        E: From<Error>,
    {
        self.read_within(None, work).await
    }

    async fn read_within<T, E, F>(
        self: &Arc<Self>,
        longest: Option<Duration>,
        work: impl FnOnce(Arc<Tx>) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, Halt<E>>>,
        E: From<Error>,
    {
        let client = connect::get(&self.pool).await?;
        let tx = Arc::new(Tx::new(client, self.clone()));
        tx.set_busy(true);
        let work = work(tx.clone());
        let answer = match longest {
            Some(longest) => tokio::time::timeout(longest, work).await,
            None => Ok(work.await),
        };
        match answer {
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
        self.transact_within(Some(LONGEST), work).await
    }

    /// The same for what stamps no event and takes as long as a log is. One at a time: others need connections
    /// too.
    pub async fn transact_long<T, E, F>(
        self: &Arc<Self>,
        work: impl Fn(Arc<Tx>) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, Halt<E>>>,
        E: From<Error>,
    {
        let place = self.long.acquire().await;
        let _place = place.map_err(|error| Error::Bug(error.to_string()))?;
        self.transact_slow(work).await
    }

    /// The same beside others that take long: for what only reads.
    pub async fn transact_slow<T, E, F>(
        self: &Arc<Self>,
        work: impl Fn(Arc<Tx>) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, Halt<E>>>,
        E: From<Error>,
    {
        let work = &work;
        let taking_time = |tx: Arc<Tx>| async move {
            tx.take_time().await?;
            work(tx).await
        };
        self.transact_within(None, taking_time).await
    }

    async fn transact_within<T, E, F>(
        self: &Arc<Self>,
        longest: Option<Duration>,
        work: impl Fn(Arc<Tx>) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, Halt<E>>>,
        E: From<Error>,
    {
        let mut tries = 0;
        loop {
            tries += 1;
            let halt = match self.attempt(&work, longest).await {
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

    /// Rings here and in other processes: it is committed.
    pub fn tell(&self, ring: Ring) {
        self.bells.tell(ring);
        self.bell.ring(ring.run());
    }

    pub fn tips(&self) -> std::sync::MutexGuard<'_, crate::tips::Tips> {
        self.tips.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn too_long() -> Error {
    Error::unavailable("the database did not answer in time; try again")
}

#[expect(
    clippy::disallowed_methods,
    reason = "a database is real time, whatever clock the host supplies"
)]
pub(super) fn sleep(duration: Duration) -> tokio::time::Sleep {
    tokio::time::sleep(duration)
}

pub(super) async fn pause(duration: Duration) {
    sleep(duration).await;
}
