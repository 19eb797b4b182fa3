//! Beats, on a thread and a connection of their own: whatever holds the others up, an owner that lives is heard
//! in time (SEMANTICS 20).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Client;

use super::clock::Clock;
use super::connect::Connector;
use super::failure::failed;
use super::owners::beat_now;
use super::schema::CLOCK;
use crate::{Error, OwnerId};

/// What became of a beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beaten {
    /// It is written down.
    Heard,
    /// There is no such owner, or it has left.
    Unknown,
}

/// Beats that wait: whoever beats waits for its answer, so that there are hardly ever two.
const QUEUE: usize = 64;

type Asked = (OwnerId, oneshot::Sender<Result<Beaten, Error>>);

pub(super) struct Pulse {
    connector: Connector,
    clock: Arc<Clock>,
    /// The longest that a beat may take.
    longest: Duration,
    /// To the thread, which is started by the first beat and ends with the store.
    asks: Mutex<Option<mpsc::Sender<Asked>>>,
}

impl Pulse {
    pub fn new(connector: Connector, clock: Arc<Clock>, lease: Duration) -> Self {
        let longest = lease / 4;
        Self {
            connector: connector.within(longest),
            clock,
            longest,
            asks: Mutex::default(),
        }
    }

    pub async fn beat(&self, owner: OwnerId) -> Result<Beaten, Error> {
        let asks = self.thread()?;
        let (answer, answered) = oneshot::channel();
        let gone = || Error::Bug("the thread of beats is gone".to_owned());
        asks.send((owner, answer)).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    fn thread(&self) -> Result<mpsc::Sender<Asked>, Error> {
        let mut asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asks) = asks.as_ref().filter(|asks| !asks.is_closed()) {
            return Ok(asks.clone());
        }
        let fail = |error| Error::unavailable(format!("no thread for beats: {error}"));
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().map_err(fail)?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let work = answer(
            self.connector.clone(),
            self.clock.clone(),
            self.longest,
            receiver,
        );
        std::thread::Builder::new()
            .name("logreel-beats".to_owned())
            .spawn(move || runtime.block_on(work))
            .map_err(fail)?;
        *asks = Some(sender.clone());
        Ok(sender)
    }
}

async fn answer(
    connector: Connector,
    clock: Arc<Clock>,
    longest: Duration,
    mut asks: mpsc::Receiver<Asked>,
) {
    let mut client = None;
    while let Some((owner, answer)) = asks.recv().await {
        let beaten = beat(&connector, &clock, &mut client, owner);
        let beaten = match tokio::time::timeout(longest, beaten).await {
            Ok(beaten) => beaten,
            Err(_) => Err(Error::unavailable(
                "the database did not answer a beat in time",
            )),
        };
        if beaten.is_err() {
            client = None;
        }
        // Whoever asked may have stopped waiting.
        drop(answer.send(beaten));
    }
}

/// A beat that is further ahead of the clock than this was written by another clock.
const AHEAD_MICROS: i64 = 1_000_000;

/// The owner lives. The answer also says what time it is there.
async fn beat(
    connector: &Connector,
    clock: &Clock,
    kept: &mut Option<Client>,
    owner: OwnerId,
) -> Result<Beaten, Error> {
    let now = beat_now();
    let sql = format!(
        "UPDATE owners SET beat_at = {now} WHERE id = $2 AND NOT gone RETURNING {CLOCK},
           EXISTS (SELECT 1 FROM owners o WHERE o.beat_at > {now} + {AHEAD_MICROS} AND NOT o.gone)"
    );
    // Once more when the connection was lost since the last beat.
    let mut tries = [false, true].into_iter();
    loop {
        let is_last = tries.next().unwrap_or(true);
        let client = match kept.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => {
                let (client, driver) = connector.connect(None).await?;
                tokio::spawn(driver);
                client
            }
        };
        let (now, id) = (clock.lease_now(), owner.0.cast_signed());
        match client.query_opt(sql.as_str(), &[&now, &id]).await {
            Ok(Some(row)) => {
                clock.set(row.try_get(0).map_err(failed)?);
                // The beat is written, whatever becomes of this; the next one looks again.
                if row.try_get(1).map_err(failed)?
                    && let Err(error) = count_from_now(&client, now).await
                {
                    tracing::warn!(%error, "owners that are ahead of the clock stay so for now");
                }
                *kept = Some(client);
                return Ok(Beaten::Heard);
            }
            Ok(None) => {
                *kept = Some(client);
                return Ok(Beaten::Unknown);
            }
            Err(error) if error.code().is_none() && !is_last => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// The clock was set back, or another server with another clock took its place: owners that beat before that would seem to
/// live until it is where it was. They are taken as heard now: one that lives beats again, and one that died is silent
/// a lease later. One whose row someone has beats at this moment, or is looked at again by the next beat.
async fn count_from_now(client: &Client, now: Option<i64>) -> Result<(), Error> {
    let clock = beat_now();
    let sql = format!(
        "UPDATE owners SET beat_at = {clock} WHERE id IN (
           SELECT id FROM owners WHERE beat_at > {clock} + {AHEAD_MICROS} AND NOT gone ORDER BY id FOR UPDATE SKIP LOCKED)"
    );
    client
        .execute(sql.as_str(), &[&now])
        .await
        .map_err(failed)?;
    Ok(())
}
