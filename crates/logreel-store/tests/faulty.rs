//! The fault-injecting wrapper does what it says, so that tests on it mean something.
#![allow(clippy::unwrap_used, reason = "a test may unwrap")]

use std::sync::Arc;

use logreel_core::event::{Budget, Custom, Durability, Provenance, RunKind, RunStarted};
use logreel_core::{AppendId, Digest, Draft, Payload, RunId, Seq};
use logreel_store::contract::TestEnv;
use logreel_store::faulty::{Fault, Faults, FaultyStore};
use logreel_store::{
    Append, AppendError, Env, Error, MemoryStore, NewRun, Owner, OwnerId, RunStore,
};

fn started() -> RunStarted {
    RunStarted {
        agent: "faulty".into(),
        budget: Budget::default(),
        context: None,
        dir: None,
        durability: Durability::Full,
        git: None,
        input: Payload::null(),
        key: None,
        kind: RunKind::Task,
        labels: Default::default(),
        limit: None,
        parent: None,
        provenance: Provenance::default(),
        session: None,
        spec: Payload::null(),
        spec_digest: Digest::of(b"spec"),
        spec_file: None,
    }
}

/// A run behind a faulty store, one write old, and what looks past the faults.
async fn run_behind_faults() -> (FaultyStore, Faults, Arc<dyn RunStore>, RunId) {
    let env = TestEnv::new();
    let inner: Arc<dyn RunStore> = Arc::new(MemoryStore::new(Arc::new(env.clone())));
    let faults = Faults::new();
    let store = FaultyStore::new(inner.clone(), faults.clone());
    let owner = Owner {
        id: OwnerId(1),
        host: "h".into(),
        host_name: "h".into(),
        pid: 1,
    };
    store.join(&owner).await.unwrap();
    let run = env.run_id();
    let new = NewRun {
        run,
        started: started(),
        blobs: vec![],
        owner: Some(owner.id),
        then: Vec::new(),
    };
    store.create(new).await.unwrap();
    assert_eq!(faults.writes(), 1, "a create is a write, a join is none");
    (store, faults, inner, run)
}

async fn append_to(store: &dyn RunStore, run: &RunId) -> Append {
    let entry = store.entry(run).await.unwrap();
    let fact = Custom {
        data: Payload::null(),
        name: "fact".into(),
    };
    Append {
        run: *run,
        expect: entry.row.head,
        epoch: entry.epoch,
        id: AppendId::driver(7),
        drafts: vec![Draft::new(fact)],
        blobs: vec![],
    }
}

#[tokio::test]
async fn a_fault_loses_the_write_or_its_answer_and_the_same_append_settles_it() {
    for (fault, written) in [
        (Fault::Refused, false),
        (Fault::Lost, false),
        (Fault::Landed, true),
    ] {
        let (store, faults, inner, run) = run_behind_faults().await;
        let append = append_to(&store, &run).await;
        faults.fail(2, fault);
        let error = store.append(&append).await.unwrap_err();
        match fault {
            Fault::Refused => {
                assert!(
                    matches!(error, AppendError::Store(Error::Unavailable { .. })),
                    "{error:?}"
                );
            }
            _ => assert!(
                matches!(error, AppendError::Store(Error::Ambiguous { .. })),
                "{error:?}"
            ),
        }
        let head = inner.entry(&run).await.unwrap().row.head.seq;
        assert_eq!(head, if written { Seq(2) } else { Seq(1) }, "{fault:?}");
        let again = store.append(&append).await.unwrap();
        assert_eq!(
            again.repeated, written,
            "{fault:?}: sending it again settles it"
        );
        assert_eq!(
            inner.entry(&run).await.unwrap().row.head.seq,
            Seq(2),
            "{fault:?}: it is there once"
        );
        assert_eq!(faults.writes(), 3);
    }
}

#[tokio::test]
async fn after_a_crash_every_call_fails_and_the_store_lives_on() {
    for (fault, written) in [(Fault::CrashBefore, false), (Fault::CrashAfter, true)] {
        let (store, faults, inner, run) = run_behind_faults().await;
        let append = append_to(&store, &run).await;
        faults.fail_next(fault);
        let error = store.append(&append).await.unwrap_err();
        assert!(
            matches!(error, AppendError::Store(Error::Unavailable { .. })),
            "{error:?}"
        );
        assert!(faults.crashed());
        let dead = |error: Error| matches!(error, Error::Unavailable { .. });
        assert!(dead(store.entry(&run).await.unwrap_err()));
        assert!(dead(store.beat(OwnerId(1)).await.unwrap_err()));
        assert!(dead(store.leave(OwnerId(1)).await.unwrap_err()));
        assert!(dead(store.claim(&run, OwnerId(1)).await.unwrap_err()));
        assert_eq!(faults.writes(), 2, "a dead process writes nothing");
        let entry = inner.entry(&run).await.unwrap();
        assert_eq!(
            entry.row.head.seq,
            if written { Seq(2) } else { Seq(1) },
            "{fault:?}"
        );
        assert!(entry.driver.unwrap().alive, "nobody has noticed yet");
    }
}
