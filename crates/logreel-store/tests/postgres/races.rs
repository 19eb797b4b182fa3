//! Two transactions at the same rows, in each order: someone else holds the rows until both wait for them.

use std::future::Future;
use std::sync::Arc;

use logreel_core::event::{Parent, Relation, RunStarted};
use logreel_core::{AppendId, Blob, Outside, RunId, Seq, Session, Status};
use logreel_store::{
    CreateError, Created, Env, EraseError, Error, ForkAt, ForkError, Heirs, NewFork, NewRun,
    PostgresStore, RunStore, SystemEnv,
};
use tempfile::TempDir;

use crate::world::{Pen, admin, in_schema, options, server, started, wait_for_blocked};

struct World {
    store: Arc<PostgresStore>,
    schema: String,
    _locks: TempDir,
}

impl World {
    async fn new() -> Self {
        let (url, schema) = in_schema(&server());
        let locks = TempDir::new().unwrap();
        let store = PostgresStore::open(&url, options(&locks)).await.unwrap();
        Self {
            store: Arc::new(store),
            schema,
            _locks: locks,
        }
    }

    async fn create(&self, started: RunStarted, blobs: Vec<Blob>) -> Result<Created, CreateError> {
        let new = NewRun {
            run: SystemEnv.run_id(),
            started,
            then: Vec::new(),
            blobs,
            owner: None,
        };
        self.store.create(new).await
    }

    async fn cancel(&self, run: RunId) -> Result<Status, Error> {
        let id = AppendId::new("cancel").unwrap();
        let cancel = Outside::Cancel { reason: None };
        let commanded = self.store.command(&run, &id, &cancel, Vec::new()).await?;
        Ok(commanded.entry.row.status())
    }

    /// A run that has ended, and that nobody holds.
    async fn ended(&self, blobs: Vec<Blob>) -> RunId {
        let created = self.create(started(), blobs).await.expect("it is created");
        let run = created.entry().row.run;
        self.cancel(run).await.expect("it is cancelled");
        run
    }

    /// Both wait for what `locked` holds, `first` ahead of `second`, and go on when both do.
    async fn in_turn<A: Send + 'static, B: Send + 'static>(
        &self,
        locked: &str,
        first: impl Future<Output = A> + Send + 'static,
        second: impl Future<Output = B> + Send + 'static,
    ) -> (A, B) {
        let admin = admin().await;
        let schema = &self.schema;
        let sql = format!("SET search_path = {schema}; BEGIN; {locked}");
        admin.batch_execute(&sql).await.unwrap();
        let first = tokio::spawn(first);
        wait_for_blocked(&admin, 1).await;
        let second = tokio::spawn(second);
        wait_for_blocked(&admin, 2).await;
        admin.batch_execute("ROLLBACK").await.unwrap();
        (first.await.unwrap(), second.await.unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_stays_for_whoever_refers_to_it_while_its_last_run_goes_on_postgres() {
    for is_deleted_first in [true, false] {
        let world = World::new().await;
        let blob = Blob::new(*b"held by both");
        let old = world.ended(vec![blob.clone()]).await;
        let mut pen = Pen::new(world.store.clone()).await;
        let deleting = {
            let store = world.store.clone();
            async move { store.delete(&old).await }
        };
        let held = blob.clone();
        let writing = async move { pen.write_with("refers to it", vec![held]).await };
        let rows = "SELECT 1 FROM blobs FOR UPDATE";
        let (deleted, written) = match is_deleted_first {
            true => world.in_turn(rows, deleting, writing).await,
            false => {
                let (written, deleted) = world.in_turn(rows, writing, deleting).await;
                (deleted, written)
            }
        };
        deleted.expect("it is deleted");
        assert!(!written.expect("it lands"));
        let kept = world.store.blob(&blob.digest()).await.expect("an answer");
        assert_eq!(
            kept.as_deref(),
            Some(&b"held by both"[..]),
            "{is_deleted_first}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_there_before_its_parent_ends_or_never_on_postgres() {
    for ends_first in [true, false] {
        let world = Arc::new(World::new().await);
        let parent = world.create(started(), Vec::new()).await;
        let parent = parent.expect("it is created").entry().row.run;
        let child = RunStarted {
            parent: Some(Parent {
                relation: Relation::Child,
                run: parent,
                seq: Seq(1),
            }),
            ..started()
        };
        let (ender, creator) = (world.clone(), world.clone());
        let ending = async move { ender.cancel(parent).await };
        let creating = async move { creator.create(child, Vec::new()).await };
        let row = format!("SELECT 1 FROM runs WHERE run = '{parent}' FOR UPDATE");
        let (ended, created) = match ends_first {
            true => world.in_turn(&row, ending, creating).await,
            false => {
                let (created, ended) = world.in_turn(&row, creating, ending).await;
                (ended, created)
            }
        };
        assert_eq!(ended.expect("it ends"), Status::Cancelled);
        match (ends_first, created) {
            (true, Err(CreateError::ParentEnded(of))) => assert_eq!(of, parent),
            (false, Ok(Created::New(_))) => {}
            (_, other) => panic!("ended first: {ends_first}, and {other:?}"),
        }
        let runs = world.store.list(&Default::default(), None, 10).await;
        let runs = runs.expect("a list").items.len();
        assert_eq!(runs, if ends_first { 1 } else { 2 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_fork_shares_is_neither_deleted_nor_erased_beside_it_on_postgres() {
    for (forks_first, is_erased) in [(true, true), (true, false), (false, true), (false, false)] {
        let world = World::new().await;
        let parent = world.ended(Vec::new()).await;
        let (forker, other) = (world.store.clone(), world.store.clone());
        let new = NewFork::of(SystemEnv.run_id(), parent, ForkAt::Last, Relation::Fork);
        let forking = async move { forker.fork(new).await };
        let going = async move {
            match is_erased {
                true => other.erase(&parent, Heirs::default()).await.map(drop),
                false => Ok(other.delete(&parent).await.map(drop)?),
            }
        };
        let row = format!("SELECT 1 FROM runs WHERE run = '{parent}' FOR UPDATE");
        let (forked, gone) = match forks_first {
            true => world.in_turn(&row, forking, going).await,
            false => {
                let (gone, forked) = world.in_turn(&row, going, forking).await;
                (forked, gone)
            }
        };
        let told = format!("{forked:?}, {gone:?}");
        let is_right = match (forks_first, is_erased) {
            (true, true) => forked.is_ok() && matches!(gone, Err(EraseError::Needed { .. })),
            (true, false) => {
                let needed = matches!(gone, Err(EraseError::Store(Error::ForkedFrom { .. })));
                forked.is_ok() && needed
            }
            (false, true) => gone.is_ok() && matches!(forked, Err(ForkError::Erased(_))),
            (false, false) => {
                let unknown = matches!(forked, Err(ForkError::Store(Error::NotFound(_))));
                gone.is_ok() && unknown
            }
        };
        assert!(
            is_right,
            "forked first: {forks_first}, erased: {is_erased}: {told}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_closed_a_session_sees_the_run_that_was_faster_on_postgres() {
    for closes_first in [true, false] {
        let world = Arc::new(World::new().await);
        let session = Session::new("shared").unwrap();
        let asked = RunStarted {
            session: Some(session.clone()),
            ..started()
        };
        let creator = world.clone();
        let creating = async move { creator.create(asked, Vec::new()).await };
        let store = world.store.clone();
        let closing = async move {
            store.close_session(&session).await?;
            store.session(&session).await
        };
        // Someone is about to have the session, and is not in the end: which of them is first then is chance.
        let place = "INSERT INTO active (session, run) VALUES ('shared', -7)";
        let (closed, created) = match closes_first {
            true => world.in_turn(place, closing, creating).await,
            false => {
                let (created, closed) = world.in_turn(place, creating, closing).await;
                (closed, created)
            }
        };
        let closed = closed.expect("it is closed").expect("it is there");
        assert!(closed.closed);
        match created {
            Ok(created) => assert_eq!(closed.active, Some(created.entry().row.run)),
            Err(CreateError::SessionClosed(_)) => assert_eq!(closed.active, None),
            Err(other) => panic!("{other:?}"),
        }
    }
}
