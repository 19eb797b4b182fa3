//! What a primary shows that its standby has not got: it would be gone if the standby took its place.

use std::pin::Pin;

use logreel_core::event::Relation;
use logreel_core::{AppendId, Outside};
use logreel_store::{
    AppendError, CreateError, Created, Env, Error, ForkAt, ForkError, NewFork, NewRun,
    PostgresStore, RunStore, SystemEnv,
};
use tempfile::TempDir;

use crate::reach::Server;
use crate::world::{Pen, admin_of, options, queued, started};

/// Commits wait for this standby from now on; for nobody when it is empty.
async fn set_standby(server: &Server, name: &str) {
    let admin = admin_of(&server.url()).await;
    let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
    for sql in [&*set, "SELECT pg_reload_conf()"] {
        admin.batch_execute(sql).await.unwrap();
    }
}

/// Drives the call until someone waits for a standby; gives its answer when it came before.
async fn until_waiting<T>(
    server: &Server,
    mut call: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let admin = admin_of(&server.url()).await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    loop {
        tokio::select! {
            answer = call.as_mut() => return Some(answer),
            looked = admin.query_one(sql, &[]) => {
                if looked.unwrap().get::<_, i64>(0) > 0 {
                    return None;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_standby_has_is_not_acknowledged_after_a_restart_on_postgres() {
    let server = Server::start();
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&server.url(), options(&locks)).await;
    let mut pen = Pen::new(store.unwrap()).await;
    let store = pen.store.clone();
    pen.write("before").await.expect("it lands");
    let made = queued(&store, started()).await.row.run;
    let commanded = queued(&store, started()).await.row.run;
    let (id, cancel) = (
        AppendId::new("cancel").unwrap(),
        Outside::Cancel { reason: None },
    );
    let answer = store.command(&commanded, &id, &cancel, Vec::new()).await;
    answer.expect("it is cancelled");
    let forked = SystemEnv.run_id();
    let fork = || store.fork(NewFork::of(forked, commanded, ForkAt::Last, Relation::Fork));
    fork().await.expect("a fork is made");
    let make_again = || {
        store.create(NewRun {
            run: made,
            started: started(),
            then: Vec::new(),
            blobs: Vec::new(),
            owner: None,
        })
    };

    set_standby(&server, "nobody").await;
    let mut sent = 0;
    loop {
        // The server takes a moment to know of its standby: until then they land.
        sent += 1;
        let name = format!("write {sent}");
        let mut writing = Box::pin(pen.write(&name));
        if let Some(landed) = until_waiting(&server, writing.as_mut()).await {
            assert!(!landed.expect("it lands"));
            continue;
        }
        server.crash_and_start();
        let landed = store.landed(&commanded, &id);
        let (written, created, landed, forked) =
            tokio::join!(writing, make_again(), landed, fork());
        let Err(AppendError::Store(Error::Ambiguous { .. })) = written else {
            panic!("ambiguous, not {written:?}")
        };
        let Err(CreateError::Store(Error::Ambiguous { .. })) = created else {
            panic!("ambiguous, not {created:?}")
        };
        let Err(Error::Ambiguous { .. }) = landed else {
            panic!("ambiguous, not {landed:?}")
        };
        let Err(ForkError::Store(Error::Ambiguous { .. })) = forked else {
            panic!("ambiguous, not {forked:?}")
        };
        break;
    }
    let name = format!("write {sent}");
    let shown = pen.names().await;
    assert_eq!(shown.last(), Some(&name), "whoever only reads is shown it");

    set_standby(&server, "").await;
    assert!(
        pen.write(&name).await.expect("it is settled"),
        "it had landed"
    );
    let created = make_again().await.expect("it is settled");
    assert!(matches!(created, Created::Attached(_)), "{created:?}");
    let forked = fork().await.expect("it is settled");
    assert!(matches!(forked, Created::Attached(_)), "{forked:?}");
    let landed = store.landed(&commanded, &id).await.expect("it is settled");
    assert_eq!(landed.map(|events| events.len()), Some(1));
}
