//! The trait, verb by verb: what can be done before the database is asked, then a transaction or a read.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use logreel_core::{
    AppendId, Blob, Digest, Draft, Epoch, Event, Outside, RunId, RunKey, Seq, Session, Timestamp,
};

use super::append::Quick;
use super::open::PostgresStore;
use super::owners::Life;
use super::pulse::Beaten;
use super::{
    append, claimable, command, create, crew, delete, erase, fork, import, lease, list, news, read,
    rows, stage,
};
use crate::tip::prepare;
use crate::{
    Append, AppendError, Appended, Backlog, ClaimOutcome, Claimable, Commanded, CreateError,
    Created, Cursor, Deleted, Doorbell, Duty, Entry, EraseError, Error, EventPage, Filter,
    ForkError, Heirs, Import, ImportError, Lapsed, NewFork, NewRun, News, Owner, OwnerId,
    OwnerInfo, RunPage, RunStore, SessionInfo, Since, Stats,
};

/// Reads on a connection of the pool.
macro_rules! reading {
    ($store:expr, |$tx:ident| $work:expr) => {{
        let shared = $store.shared().clone();
        $store
            .run(async move { shared.reading(|$tx| async move { $work.await }).await })
            .await
    }};
}

/// Writes in a transaction, which may be done more than once: what it needs is named, and shared by all
/// attempts.
macro_rules! writing {
    ($store:expr, $work:ident = $value:expr, |$tx:ident| $body:expr) => {
        writing!($store, transact, $work = $value, |$tx| $body)
    };
    ($store:expr, $how:ident, $work:ident = $value:expr, |$tx:ident| $body:expr) => {{
        let shared = $store.shared().clone();
        let $work = Arc::new($value);
        $store
            .run(async move {
                shared
                    .$how(move |$tx| {
                        let $work = $work.clone();
                        async move { $body.await }
                    })
                    .await
            })
            .await
    }};
}

#[async_trait]
impl RunStore for PostgresStore {
    fn now(&self) -> Option<Timestamp> {
        Some(self.shared().clock.now())
    }

    async fn create(&self, new: NewRun) -> Result<Created, CreateError> {
        let has_ended = new.has_ended();
        let NewRun {
            run,
            started,
            then,
            blobs,
            owner,
        } = new;
        let max = self.shared().payload_bytes_max;
        let prepared = prepare(vec![Draft::new(started.clone())], &blobs, max)?.pop();
        let prepared = prepared.ok_or_else(|| Error::Bug("event 1 got lost".to_owned()))?;
        let then = prepare(then, &[], max)?;
        let mut key = RunKey([0; 32]);
        self.shared().env.random(&mut key.0);
        let work = create::Work {
            run,
            started,
            prepared,
            then,
            has_ended,
            key,
            blobs,
            owner,
        };
        writing!(self, work = work, |tx| create::create(&tx, &work))
    }

    async fn fork(&self, new: NewFork) -> Result<Created, ForkError> {
        let shared = self.shared().clone();
        let mut key = RunKey([0; 32]);
        shared.env.random(&mut key.0);
        self.run(async move { fork::make(&shared, new, key).await })
            .await
    }

    async fn import(&self, import: Import) -> Result<Entry, ImportError> {
        let shared = self.shared().clone();
        self.run(async move {
            let place = shared.imports.acquire().await;
            let _place = place.map_err(|error| Error::Bug(error.to_string()))?;
            let stamp = || shared.reading(|tx| async move { news::stamp_imports(&tx).await });
            // What was imported of the run before is told before.
            stamp().await.map_err(ImportError::Store)?;
            let entry = shared
                .transact_once(|tx| async move { import::import(&tx, import).await })
                .await?;
            let stamped: Result<(), Error> = stamp().await;
            if let Err(error) = stamped {
                // Whoever asks for news does it.
                tracing::debug!("an import is not stamped yet: {error}");
            }
            Ok(entry)
        })
        .await
    }

    async fn take_over(&self, run: &RunId) -> Result<Entry, ImportError> {
        writing!(self, run = *run, |tx| import::take_over(&tx, *run))
    }

    async fn append(&self, append: &Append) -> Result<Appended, AppendError> {
        // What follows a quick one that did not land is rare and large, so it is boxed.
        match append::quick(self.shared(), append).await? {
            Quick::Landed(appended) => Ok(appended),
            Quick::Look => {
                let (shared, append) = (self.shared().clone(), append.clone());
                let in_full = async move { append::in_full(&shared, append).await };
                Box::pin(self.run(in_full)).await
            }
            Quick::Lost(what) => {
                let (shared, append) = (self.shared().clone(), append.clone());
                let settle = async move { append::settle_lost(&shared, append, what).await };
                Box::pin(self.run(settle)).await
            }
        }
    }

    async fn command(
        &self,
        run: &RunId,
        id: &AppendId,
        command: &Outside,
        blobs: Vec<Blob>,
    ) -> Result<Commanded, Error> {
        let work = (*run, id.clone(), command.clone(), blobs);
        writing!(self, work = work, |tx| command::command(
            &tx, work.0, &work.1, &work.2, &work.3
        ))
    }

    async fn landed(&self, run: &RunId, id: &AppendId) -> Result<Option<Vec<Event>>, Error> {
        let work = (*run, id.clone());
        let asked = work.clone();
        let found: Option<Vec<Event>> = reading!(self, |tx| async {
            rows::load(&tx, &asked.0).await?;
            append::first_answer(&tx, &asked.0, &asked.1).await
        })?;
        // Mostly it is not there.
        if found.is_none() {
            return Ok(None);
        }
        writing!(self, work = work, |tx| append::surely_answered(
            &tx, &work.0, &work.1
        ))
    }

    async fn read(&self, run: &RunId, from: Seq, limit: usize) -> Result<EventPage, Error> {
        let run = *run;
        reading!(self, |tx| read::page(&tx, &run, from, limit))
    }

    async fn entry(&self, run: &RunId) -> Result<Entry, Error> {
        let run = *run;
        reading!(self, |tx| async {
            rows::load(&tx, &run).await?.entry(&tx).await
        })
    }

    async fn key(&self, run: &RunId) -> Result<Option<RunKey>, Error> {
        let run = *run;
        reading!(self, |tx| read::key(&tx, &run))
    }

    async fn keys(&self, run: &RunId) -> Result<Vec<(RunId, Option<RunKey>)>, Error> {
        let run = *run;
        reading!(self, |tx| fork::keys(&tx, &run))
    }

    async fn misfiled(&self, run: &RunId) -> Result<Option<String>, Error> {
        writing!(self, run = *run, |tx| read::misfiled(&tx, &run))
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<RunPage, Error> {
        let (filter, cursor) = (filter.clone(), cursor.cloned());
        reading!(self, |tx| list::list(&tx, &filter, cursor.as_ref(), limit))
    }

    async fn find(&self, prefix: &str, limit: usize) -> Result<Vec<RunId>, Error> {
        let prefix = prefix.to_owned();
        reading!(self, |tx| read::find(&tx, &prefix, limit))
    }

    fn watch(&self, run: &RunId) -> Doorbell {
        let bell = self.shared().bells.watch(*run);
        self.tail().wake();
        bell
    }

    fn watch_others(&self, run: &RunId) -> Doorbell {
        let bell = self.shared().bells.watch_others(*run);
        self.tail().wake();
        bell
    }

    fn watch_all(&self) -> Doorbell {
        let bell = self.shared().bells.watch_all();
        self.tail().wake();
        bell
    }

    async fn news(&self, since: &Since, limit: usize) -> Result<News, Error> {
        let since = since.clone();
        reading!(self, |tx| news::news(&tx, &since, limit))
    }

    async fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        let digest = *digest;
        reading!(self, |tx| read::blob(&tx, &digest))
    }

    async fn stage(&self, run: &RunId, blob: Blob) -> Result<(), Error> {
        prepare(
            Vec::new(),
            std::slice::from_ref(&blob),
            self.shared().payload_bytes_max,
        )?;
        let work = (*run, blob);
        writing!(self, work = work, |tx| stage::stage(&tx, work.0, &work.1))
    }

    async fn join(&self, owner: &Owner) -> Result<(), Error> {
        let home = self.shared().owners.hold(owner)?;
        let work = (owner.clone(), home);
        writing!(self, work = work, |tx| lease::join(&tx, &work.0, &work.1))?;
        self.shared().owners.joins(owner);
        if !self.shared().owners.may_sweep(owner) {
            return Ok(());
        }
        // Each in a transaction of its own, so that nobody waits for all that dead owners held.
        let owners: Vec<(Owner, Life)> = reading!(self, |tx| lease::owners(&tx))?;
        for found in owners {
            if found.1 != Life::Beating {
                writing!(self, found = found, |tx| lease::sweep_one(
                    &tx, &found.0, found.1
                ))?;
            }
        }
        reading!(self, |tx| async { tx.shared.owners.sweep(&tx).await })
    }

    async fn beat(&self, owner: OwnerId) -> Result<(), Error> {
        match self.shared().pulse.beat(owner).await? {
            Beaten::Heard => Ok(()),
            // Forgotten by others while it was asleep: it is there again.
            Beaten::Unknown => match self.shared().owners.is_joined(owner) {
                Some(owner) => self.join(&owner).await,
                None => {
                    let what = format!("owner {owner} drives runs but did not join");
                    Err(Error::Bug(what))
                }
            },
        }
    }

    async fn leave(&self, owner: OwnerId) -> Result<(), Error> {
        self.shared().owners.left(owner);
        writing!(self, owner = owner, |tx| lease::leave(&tx, *owner))?;
        self.shared().owners.let_go(owner);
        Ok(())
    }

    async fn assign(&self, owner: OwnerId, duty: &Duty) -> Result<(), Error> {
        let duty = duty.clone();
        reading!(self, |tx| crew::assign(&tx, owner, &duty))
    }

    async fn owners(&self) -> Result<Vec<OwnerInfo>, Error> {
        reading!(self, |tx| crew::owners(&tx))
    }

    async fn backlog(&self) -> Result<Backlog, Error> {
        reading!(self, |tx| crew::backlog(&tx))
    }

    async fn try_claim(&self, run: &RunId, owner: OwnerId) -> Result<Option<ClaimOutcome>, Error> {
        writing!(self, run = *run, |tx| lease::try_claim(&tx, *run, owner))
    }

    fn secrets(&self) -> Vec<String> {
        self.shared().secrets.clone()
    }

    fn notes(&self) -> Option<PathBuf> {
        Some(self.shared().owners.folder().to_owned())
    }

    fn all_notes(&self) -> Vec<PathBuf> {
        self.shared().owners.folders()
    }

    async fn claim(&self, run: &RunId, owner: OwnerId) -> Result<ClaimOutcome, Error> {
        writing!(self, run = *run, |tx| lease::claim(&tx, *run, owner))
    }

    async fn lapsed(&self, run: &RunId) -> Result<Vec<Lapsed>, Error> {
        let run = *run;
        reading!(self, |tx| lease::lapsed(&tx, &run))
    }

    async fn release(&self, run: &RunId, epoch: Epoch, owner: OwnerId) -> Result<Entry, Error> {
        let released = writing!(self, run = *run, |tx| lease::release(
            &tx, *run, epoch, owner
        ));
        if matches!(released, Err(Error::Corrupt { .. })) {
            // One that cannot be read is told of, and leaves its hands all the same.
            writing!(self, run = *run, |tx| lease::let_go(
                &tx, *run, epoch, owner
            ))?;
        }
        released
    }

    async fn held(&self, owner: OwnerId) -> Result<Vec<(RunId, Epoch)>, Error> {
        reading!(self, |tx| lease::held(&tx, owner))
    }

    async fn claimable(
        &self,
        what: &[Claimable],
        labels: &[(String, String)],
        limit: usize,
    ) -> Result<Vec<RunId>, Error> {
        let (what, labels) = (what.to_vec(), labels.to_vec());
        reading!(self, |tx| claimable::claimable(&tx, &what, &labels, limit))
    }

    async fn forsaken(&self, limit: usize) -> Result<Vec<RunId>, Error> {
        reading!(self, |tx| claimable::forsaken(&tx, limit))
    }

    async fn sessions(&self) -> Result<Vec<SessionInfo>, Error> {
        reading!(self, |tx| list::sessions(&tx, None))
    }

    async fn session(&self, session: &Session) -> Result<Option<SessionInfo>, Error> {
        let session = session.clone();
        let found: Vec<SessionInfo> = reading!(self, |tx| list::sessions(&tx, Some(&session)))?;
        Ok(found.into_iter().next())
    }

    async fn close_session(&self, session: &Session) -> Result<(), Error> {
        let session = rows::plain(session.as_str());
        // No run's number.
        let place = -1 - (self.shared().env.random_u64() >> 1).cast_signed();
        let work = (session, place);
        writing!(self, work = work, |tx| create::close(&tx, &work.0, work.1))
    }

    async fn delete(&self, run: &RunId) -> Result<Deleted, Error> {
        writing!(self, transact_long, run = *run, |tx| delete::delete(
            &tx, *run
        ))
    }

    async fn erase(&self, run: &RunId, with: Heirs) -> Result<Vec<RunId>, EraseError> {
        writing!(self, transact_long, run = *run, |tx| erase::erase(
            &tx, *run, with
        ))
    }

    async fn stats(&self) -> Result<Stats, Error> {
        // All runs and blobs are counted.
        writing!(self, transact_slow, _nothing = (), |tx| list::stats(&tx))
    }
}
