//! The trait, verb by verb: what can be done before the lock, then a job for the writer or a reader.

use std::path::PathBuf;

use async_trait::async_trait;
use logreel_core::{
    AppendId, Blob, Digest, Draft, Epoch, Event, Outside, RunId, RunKey, Seq, Session,
};
use rusqlite::params;

use super::open::SqliteStore;
use super::{
    append, command, create, crew, delete, erase, fork, import, lease, list, news, read, rows,
    scan, stage,
};
use crate::tip::prepare;
use crate::{
    Append, AppendError, Appended, Backlog, ClaimOutcome, Claimable, Commanded, CreateError,
    Created, Cursor, Deleted, Doorbell, Duty, Each, Entry, EraseError, Error, EventPage, Filter,
    ForkError, Heirs, Import, ImportError, Lapsed, NewFork, NewRun, News, Owner, OwnerId,
    OwnerInfo, RunPage, RunStore, SessionInfo, Since, Stats,
};

#[async_trait]
impl RunStore for SqliteStore {
    fn between_writes(&self, act: &mut dyn FnMut()) {
        self.writer().rest(act);
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
        let drafts = vec![Draft::new(started.clone())];
        let prepared = prepare(drafts, &blobs, self.shared().payload_bytes_max)?.pop();
        let prepared = prepared.ok_or_else(|| Error::Bug("event 1 got lost".to_owned()))?;
        let then = prepare(then, &[], self.shared().payload_bytes_max)?;
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
        self.writer()
            .submit(move |tx| create::create(tx, work))
            .await
    }

    async fn fork(&self, new: NewFork) -> Result<Created, ForkError> {
        // Outside of the lock: what is shared never changes, and it may be long.
        let shared = self.shared();
        let decided = self.reading(|conn| fork::decide(conn, &new, shared.payload_bytes_max))??;
        let mut key = RunKey([0; 32]);
        shared.env.random(&mut key.0);
        self.writer()
            .submit(move |tx| fork::fork(tx, &new, decided, key))
            .await
    }

    async fn import(&self, import: Import) -> Result<Entry, ImportError> {
        self.writer()
            .submit(move |tx| import::import(tx, import))
            .await
    }

    async fn take_over(&self, run: &RunId) -> Result<Entry, ImportError> {
        let run = *run;
        self.writer()
            .submit(move |tx| import::take_over(tx, run))
            .await
    }

    async fn append(&self, append: &Append) -> Result<Appended, AppendError> {
        let Append {
            run,
            expect,
            epoch,
            id,
            drafts,
            blobs,
        } = append.clone();
        let prepared = prepare(drafts, &blobs, self.shared().payload_bytes_max)?;
        let work = append::Work {
            run,
            expect,
            epoch,
            id,
            prepared,
            blobs,
        };
        self.writer()
            .submit(move |tx| append::append(tx, work))
            .await
    }

    async fn command(
        &self,
        run: &RunId,
        id: &AppendId,
        command: &Outside,
        blobs: Vec<Blob>,
    ) -> Result<Commanded, Error> {
        let (run, id, outside) = (*run, id.clone(), command.clone());
        self.writer()
            .submit(move |tx| command::command(tx, run, &id, &outside, &blobs))
            .await
    }

    async fn landed(&self, run: &RunId, id: &AppendId) -> Result<Option<Vec<Event>>, Error> {
        self.reading(|conn| {
            rows::load(conn, run)?;
            append::first_answer(conn, run, id)
        })
    }

    async fn read(&self, run: &RunId, from: Seq, limit: usize) -> Result<EventPage, Error> {
        self.reading(|conn| read::page(conn, run, from, limit))
    }

    async fn events(
        &self,
        run: &RunId,
        from: Seq,
        limit: usize,
    ) -> Result<EventPage<Event>, Error> {
        self.reading(|conn| read::page(conn, run, from, limit))
    }

    async fn scan(&self, run: &RunId, from: Seq, each: &mut Each<'_>) -> Result<Seq, Error> {
        scan::scan(self, run, from, each)
    }

    async fn entry(&self, run: &RunId) -> Result<Entry, Error> {
        self.reading(|conn| Ok(rows::load(conn, run)?.entry(conn, self.shared())?))
    }

    async fn key(&self, run: &RunId) -> Result<Option<RunKey>, Error> {
        self.reading(|conn| read::key(conn, run))
    }

    async fn keys(&self, run: &RunId) -> Result<Vec<(RunId, Option<RunKey>)>, Error> {
        self.reading(|conn| fork::keys(conn, run))
    }

    async fn misfiled(&self, run: &RunId) -> Result<Option<String>, Error> {
        self.reading(|conn| read::misfiled(conn, run))
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<RunPage, Error> {
        self.reading(|conn| list::list(conn, self.shared(), filter, cursor, limit))
    }

    async fn find(&self, prefix: &str, limit: usize) -> Result<Vec<RunId>, Error> {
        self.reading(|conn| read::find(conn, prefix, limit))
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
        self.reading(|conn| news::news(conn, since, limit))
    }

    async fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        self.reading(|conn| read::blob(conn, digest))
    }

    async fn stage(&self, run: &RunId, blob: Blob) -> Result<(), Error> {
        let run = *run;
        prepare(
            Vec::new(),
            std::slice::from_ref(&blob),
            self.shared().payload_bytes_max,
        )?;
        self.writer()
            .submit(move |tx| stage::stage(tx, run, &blob))
            .await
    }

    async fn join(&self, owner: &Owner) -> Result<(), Error> {
        self.shared().owners.hold(owner)?;
        let joining = owner.clone();
        self.writer()
            .submit(move |tx| lease::join(tx, &joining))
            .await?;
        self.shared().owners.heard(owner.id, 0);
        Ok(())
    }

    async fn beat(&self, owner: OwnerId) -> Result<(), Error> {
        let beat = self
            .writer()
            .submit(move |tx| lease::beat(tx, owner))
            .await?;
        self.shared().owners.heard(owner, beat);
        Ok(())
    }

    async fn leave(&self, owner: OwnerId) -> Result<(), Error> {
        self.writer()
            .submit(move |tx| lease::leave(tx, owner))
            .await?;
        self.shared().owners.let_go(owner);
        Ok(())
    }

    async fn assign(&self, owner: OwnerId, duty: &Duty) -> Result<(), Error> {
        let duty = duty.clone();
        self.writer()
            .submit(move |tx| crew::assign(tx, owner, &duty))
            .await
    }

    async fn owners(&self) -> Result<Vec<OwnerInfo>, Error> {
        self.reading(|conn| crew::owners(conn, self.shared()))
    }

    async fn backlog(&self) -> Result<Backlog, Error> {
        self.reading(|conn| crew::backlog(conn, self.shared()))
    }

    fn notes(&self) -> Option<PathBuf> {
        Some(self.shared().owners.folder().to_owned())
    }

    async fn claim(&self, run: &RunId, owner: OwnerId) -> Result<ClaimOutcome, Error> {
        let run = *run;
        self.writer()
            .submit(move |tx| lease::claim(tx, run, owner))
            .await
    }

    async fn lapsed(&self, run: &RunId) -> Result<Vec<Lapsed>, Error> {
        self.reading(|conn| lease::lapsed(conn, self.shared(), run))
    }

    async fn release(&self, run: &RunId, epoch: Epoch, owner: OwnerId) -> Result<Entry, Error> {
        let run = *run;
        let writer = self.writer();
        let released = writer
            .submit(move |tx| lease::release(tx, run, epoch, owner))
            .await;
        if matches!(released, Err(Error::Corrupt { .. })) {
            // One that cannot be read is told of, and leaves its hands all the same.
            writer
                .submit(move |tx| lease::let_go(tx, run, epoch, owner))
                .await?;
        }
        released
    }

    async fn held(&self, owner: OwnerId) -> Result<Vec<(RunId, Epoch)>, Error> {
        self.reading(|conn| lease::held(conn, owner))
    }

    async fn claimable(
        &self,
        what: &[Claimable],
        labels: &[(String, String)],
        limit: usize,
    ) -> Result<Vec<RunId>, Error> {
        self.reading(|conn| lease::claimable(conn, self.shared(), what, labels, limit))
    }

    async fn sessions(&self) -> Result<Vec<SessionInfo>, Error> {
        self.reading(|conn| list::sessions(conn, self.shared(), None))
    }

    async fn session(&self, session: &Session) -> Result<Option<SessionInfo>, Error> {
        let found = self.reading(|conn| list::sessions(conn, self.shared(), Some(session)))?;
        Ok(found.into_iter().next())
    }

    async fn close_session(&self, session: &Session) -> Result<(), Error> {
        let session = session.clone();
        self.writer()
            .submit(move |tx| {
                tx.conn
                    .prepare_cached(
                        "INSERT INTO closed (session) VALUES (?1) ON CONFLICT DO NOTHING",
                    )?
                    .execute(params![session.as_str()])?;
                Ok(())
            })
            .await
    }

    async fn delete(&self, run: &RunId) -> Result<Deleted, Error> {
        let run = *run;
        self.writer()
            .submit(move |tx| delete::delete(tx, run))
            .await
    }

    async fn erase(&self, run: &RunId, with: Heirs) -> Result<Vec<RunId>, EraseError> {
        let run = *run;
        let runs = self
            .writer()
            .submit(move |tx| erase::erase(tx, run, with))
            .await?;
        erase::leave_no_trace(self.shared()).map_err(EraseError::Traces)?;
        Ok(runs)
    }

    async fn stats(&self) -> Result<Stats, Error> {
        self.reading(|conn| list::stats(conn, self.shared()))
    }
}
