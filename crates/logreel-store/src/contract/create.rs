//! Rules of creating and deleting: SEMANTICS 6, 15 and 32.

use std::time::Duration;

use logreel_core::event::{Relation, RunLimit, RunStarted, SpecChanged};
use logreel_core::{Blob, Body, Digest, Draft, Epoch, RunId, Seq, Status};
use serde_json::json;

use super::facts::{from_parent, in_session, late, payload, session, step, task, with_key};
use super::{Harness, World};
use crate::{ClaimOutcome, CreateError, Created, Env, Error, NewRun, OwnerId};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn try_create(
    world: &World<'_>,
    run: RunId,
    started: RunStarted,
) -> Result<Created, CreateError> {
    world
        .store
        .create(NewRun {
            run,
            started,
            blobs: vec![],
            owner: None,
            then: Vec::new(),
        })
        .await
}

/// Rule 6: event 1 is written there; who will drive the run has its lease from the start.
pub async fn create_writes_event_1_and_may_take_the_lease(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let queued = world.create(task("queued"), None).await;
    assert_eq!(
        (queued.row.status(), queued.row.head.seq),
        (Status::Created, Seq::FIRST)
    );
    assert_eq!((queued.epoch, queued.driver.clone()), (Epoch::NONE, None));
    assert_eq!(
        queued.ready_at,
        Some(world.env.now()),
        "a queued run is ready now"
    );
    assert!(!queued.erased && !queued.read_only && !queued.is_orphaned());

    let owner = world.owner(1).await;
    world.env.advance(Duration::from_secs(1));
    let driven = world.create(task("driven"), Some(owner)).await;
    assert_eq!(
        (driven.epoch, driven.row.epoch),
        (Epoch(1), Epoch(1)),
        "the first driver's epoch"
    );
    let driver = driven.driver.as_ref().expect("its creator drives it");
    assert_eq!(
        (&driver.owner, driver.since),
        (&super::world::owner(1), world.env.now())
    );
    assert!(driver.alive);
    assert_eq!(driven.ready_at, None, "nobody may claim it");

    let page = world
        .store
        .read(&driven.row.run, Seq::FIRST, 10)
        .await
        .expect("a page");
    let event = page.items[0].decode().expect("event 1 decodes");
    assert_eq!(event.body, Body::from(task("driven")));
    world.finish().await;
}

/// Rule 6: the blobs of event 1 are stored with it.
pub async fn create_stores_the_blobs_of_event_1(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let (input, blob) = logreel_core::Payload::of(json!("i".repeat(70_000)).into());
    let blob: Blob = blob.expect("it is over 64 KiB");
    let started = RunStarted {
        input,
        ..task("blob")
    };
    let new = NewRun {
        run: world.env.run_id(),
        started,
        blobs: vec![blob.clone()],
        owner: None,
        then: Vec::new(),
    };
    world.store.create(new).await.expect("a run is created");
    let bytes = world
        .store
        .blob(&blob.digest())
        .await
        .expect("a blob is looked up");
    assert!(bytes.as_deref() == Some(&**blob.bytes()));
    world.finish().await;
}

/// Rule 6: the same id or key attaches; with another spec, session or input it is a conflict.
pub async fn create_with_the_same_id_or_key_attaches_or_conflicts(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let started = RunStarted {
        key: Some("key-1".into()),
        ..in_session("attach", "s")
    };
    let first = world.create(started.clone(), None).await.row.run;
    let other_spec = RunStarted {
        spec_digest: Digest::of(b"other"),
        ..started.clone()
    };
    let other_session = RunStarted {
        session: Some(session("other")),
        ..started.clone()
    };
    let other_input = RunStarted {
        input: payload(json!("other")),
        ..started.clone()
    };
    for stage in ["live", "reopened", "ended"] {
        if stage == "reopened" {
            world.reopen().await;
        }
        if stage == "ended" {
            world.cancel(&first).await;
        }
        let head = world.entry(&first).await.row.head;
        let labelled = RunStarted {
            labels: [("a".into(), "b".into())].into(),
            ..started.clone()
        };
        for (how, run, started) in [
            ("the same id", first, started.clone()),
            ("the same key", world.env.run_id(), started.clone()),
            ("other labels", world.env.run_id(), labelled),
        ] {
            let created = try_create(&world, run, started).await;
            let created = created.unwrap_or_else(|error| panic!("{stage}, {how}: {error:?}"));
            assert!(
                matches!(&created, Created::Attached(entry) if entry.row.run == first),
                "{stage}, {how}: {created:?}"
            );
        }
        for (expected, started) in [
            ("spec", &other_spec),
            ("session", &other_session),
            ("input", &other_input),
        ] {
            for run in [first, world.env.run_id()] {
                let error = try_create(&world, run, started.clone())
                    .await
                    .expect_err(expected);
                assert!(
                    matches!(&error, CreateError::Conflict { run, differs, .. }
                        if *run == first && *differs == expected),
                    "{stage}, another {expected}: {error:?}"
                );
            }
        }
        assert_eq!(
            world.entry(&first).await.row.head,
            head,
            "{stage}: nothing was written"
        );
    }
    let all = world
        .store
        .list(&crate::Filter::default(), None, 10)
        .await
        .expect("a page of runs");
    assert_eq!(all.items.len(), 1, "attaching creates nothing");
    world.finish().await;
}

/// Rule 6: what counts is how the run was started, not what became of it.
pub async fn attaching_compares_with_how_the_run_was_started(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let started = with_key("attach", "k");
    let mut pen = world.driven(started.clone()).await;
    let spec_digest = Digest::of(b"an accepted change");
    pen.write(vec![Draft::new(SpecChanged {
        spec: payload(json!({})),
        spec_digest,
        spec_file: None,
    })])
    .await;
    assert_eq!(
        world.entry(&pen.run).await.row.facts.spec_digest,
        spec_digest
    );
    let attached = try_create(&world, world.env.run_id(), started.clone()).await;
    assert!(matches!(attached, Ok(Created::Attached(_))), "{attached:?}");
    let changed = RunStarted {
        spec_digest,
        ..started
    };
    let error = try_create(&world, world.env.run_id(), changed).await;
    assert!(
        matches!(
            error,
            Err(CreateError::Conflict {
                differs: "spec",
                ..
            })
        ),
        "{error:?}"
    );
    world.finish().await;
}

/// Rule 6: one active run per session; ended and released, it is free.
pub async fn create_in_a_busy_session_names_the_active_run(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let mut pen = world.driven(in_session("first", "s")).await;
    let busy = async |world: &World<'_>, stage: &str| {
        let error = try_create(world, world.env.run_id(), in_session("second", "s")).await;
        let error = error.expect_err(stage);
        let expected = session("s");
        assert!(
            matches!(&error, CreateError::Busy { session, active }
                if *session == expected && *active == pen.run),
            "{stage}: {error:?}"
        );
    };
    busy(&world, "while it is driven").await;
    world.reopen().await;
    pen = pen.moved_to(&world);
    let elsewhere = world.create(in_session("elsewhere", "other"), None).await;
    assert_eq!(
        elsewhere.row.status(),
        Status::Created,
        "another session is not busy"
    );
    world.create(task("none"), None).await;
    let busy = async |world: &World<'_>, stage: &str| {
        let error = try_create(world, world.env.run_id(), in_session("second", "s")).await;
        assert!(
            matches!(error, Err(CreateError::Busy { .. })),
            "{stage}: {error:?}"
        );
    };
    busy(&world, "after a reopen").await;
    world.cancel(&pen.run).await;
    busy(&world, "ended, but its driver still holds the lease").await;
    pen.catch_up().await;
    pen.write(vec![late(step("under way", json!(1)))]).await;
    pen.release().await;
    let second = world.create(in_session("second", "s"), None).await;
    busy(&world, "a queued run is active too").await;
    world.cancel(&second.row.run).await;
    world.create(in_session("third", "s"), None).await;
    world.finish().await;
}

/// What is kept of a run that ended elsewhere: it takes no session's place, whoever has it, and is over
/// from its first transaction on.
pub async fn a_run_that_is_over_when_it_is_created_takes_no_sessions_place(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut model = world.driven(in_session("model", "s")).await;
    let end = model.complete(json!("done")).await.pop().expect("its end");
    model.release().await;
    let active = world.driven(in_session("active", "s")).await;
    let past = NewRun {
        run: world.env.run_id(),
        started: in_session("past", "s"),
        blobs: vec![],
        owner: None,
        then: vec![Draft::new(end.body)],
    };
    let created = world
        .store
        .create(past)
        .await
        .expect("nobody is in its way");
    let past = created.entry().clone();
    assert_eq!(past.row.status(), Status::Completed);
    let digest = |entry: &crate::Entry| {
        entry
            .row
            .facts
            .ended
            .as_ref()
            .map(|it| it.final_state_digest)
    };
    let (model, active) = (
        world.entry(&model.run).await,
        world.entry(&active.run).await,
    );
    assert_eq!(digest(&past), digest(&model));
    let same = crate::Filter {
        final_state_digest: digest(&model),
        ..crate::Filter::default()
    };
    let found = world.store.list(&same, None, 9).await.expect("a list");
    let found: Vec<RunId> = found.items.iter().map(|it| it.row.run).collect();
    assert_eq!(found, [past.row.run, model.row.run]);
    let error = try_create(&world, world.env.run_id(), in_session("second", "s")).await;
    assert!(
        matches!(&error, Err(CreateError::Busy { active: run, .. }) if *run == active.row.run),
        "{error:?}"
    );
    world.finish().await;
}

/// Rule 15: the session is free when the lease is over, and a dead driver of an ended run has none.
pub async fn a_dead_driver_of_an_ended_run_does_not_block_its_session(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let pen = world.driven(in_session("first", "s")).await;
    world.cancel(&pen.run).await;
    world
        .store
        .leave(OwnerId(1))
        .await
        .expect("the owner leaves");
    world.create(in_session("second", "s"), None).await;
    world
        .store
        .delete(&pen.run)
        .await
        .expect("nor does it keep the run from being deleted");
    world.finish().await;
}

/// Rule 6: a closed session is a row; it takes no new runs, and attaching still works.
pub async fn a_closed_session_refuses_new_runs(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let started = RunStarted {
        key: Some("k".into()),
        ..in_session("first", "s")
    };
    let first = world.create(started.clone(), None).await.row.run;
    world
        .store
        .close_session(&session("s"))
        .await
        .expect("a session is closed");
    world
        .store
        .close_session(&session("s"))
        .await
        .expect("twice is harmless");
    world
        .store
        .close_session(&session("empty"))
        .await
        .expect("an unused one too");
    world.cancel(&first).await;
    for stage in ["closed", "reopened"] {
        for name in ["s", "empty"] {
            let error = try_create(&world, world.env.run_id(), in_session("second", name)).await;
            let error = error.expect_err(stage);
            assert!(
                matches!(&error, CreateError::SessionClosed(closed) if closed.as_str() == name),
                "{stage}: {error:?}"
            );
        }
        let attached = try_create(&world, world.env.run_id(), started.clone()).await;
        assert!(
            matches!(attached, Ok(Created::Attached(_))),
            "{stage}: {attached:?}"
        );
        let sessions = world.store.sessions().await.expect("sessions");
        assert!(
            sessions.iter().all(|info| info.closed),
            "{stage}: {sessions:?}"
        );
        assert_eq!(sessions.len(), 2, "{stage}: {sessions:?}");
        world.reopen().await;
    }
    world.finish().await;
}

/// Rule 15: creating a child checks in the same transaction that its parent is there and has not ended.
pub async fn a_child_is_created_only_while_its_parent_lives(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let parent = world.create(task("parent"), None).await.row.run;
    let child = |relation| from_parent("child", parent, relation);
    world.create(child(Relation::Child), None).await;
    world.cancel(&parent).await;
    let error = try_create(&world, world.env.run_id(), child(Relation::Child)).await;
    assert!(
        matches!(error, Err(CreateError::ParentEnded(run)) if run == parent),
        "{error:?}"
    );
    let nobody = world.env.run_id();
    let orphan = from_parent("child", nobody, Relation::Child);
    let error = try_create(&world, world.env.run_id(), orphan).await;
    assert!(
        matches!(error, Err(CreateError::Store(Error::NotFound(run))) if run == nobody),
        "{error:?}"
    );
    let filter = crate::Filter {
        parent: Some(parent),
        ..crate::Filter::default()
    };
    let children = world
        .store
        .list(&filter, None, 10)
        .await
        .expect("a page of runs")
        .items;
    assert_eq!(
        children.len(),
        1,
        "nothing was created for a parent that ended"
    );
    world.finish().await;
}

/// Rule 6: keys outlive pruning by 30 days.
pub async fn the_key_of_a_deleted_run_is_kept_for_30_days(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let first = world.create(with_key("first", "k"), None).await.row.run;
    world.cancel(&first).await;
    world
        .store
        .delete(&first)
        .await
        .expect("an ended run is deleted");
    for stage in ["deleted", "reopened"] {
        let error = try_create(&world, world.env.run_id(), with_key("first", "k")).await;
        assert!(
            matches!(&error, Err(CreateError::KeyOfDeleted { key, run }) if key == "k" && *run == first),
            "{stage}: {error:?}"
        );
        world.reopen().await;
        world.env.advance(15 * DAY - Duration::from_secs(1));
    }
    let error = try_create(&world, world.env.run_id(), with_key("first", "k")).await;
    assert!(
        matches!(error, Err(CreateError::KeyOfDeleted { .. })),
        "the 30th day: {error:?}"
    );
    world.env.advance(Duration::from_secs(3));
    let created = try_create(&world, world.env.run_id(), with_key("first", "k")).await;
    assert!(
        matches!(created, Ok(Created::New(_))),
        "after 30 days: {created:?}"
    );
    world.finish().await;
}

/// What a run is looked up by has a length that every store can index, and is refused by name beyond it.
pub async fn a_name_that_is_too_long_is_refused_by_name(harness: &dyn Harness) {
    let world = World::new(harness).await;
    // Nothing that could be compressed: what an index takes depends on it.
    let long = |bytes: usize| -> String {
        let digest = |nth: usize| Digest::of(&nth.to_le_bytes()).hex();
        let text: String = (0..=bytes / 64).map(digest).collect();
        text[..bytes].to_owned()
    };
    let labelled = |name: String, value: String| RunStarted {
        labels: [(name, value)].into(),
        ..task("labelled")
    };
    let limited = |key: String| RunStarted {
        limit: Some(RunLimit { key, max: 1 }),
        ..task("limited")
    };
    let named = |bytes: usize| {
        [
            ("the agent's name", task(&long(bytes))),
            ("the key", with_key("keyed", &long(bytes))),
            ("the key of the limit", limited(long(bytes))),
            ("the name of a label", labelled(long(bytes), "v".to_owned())),
            ("label `note`", labelled("note".to_owned(), long(bytes))),
        ]
    };
    for (what, started) in named(1025) {
        let refused = try_create(&world, world.env.run_id(), started).await;
        let Err(CreateError::Store(error @ Error::TooLong { .. })) = refused else {
            panic!("{what} is refused, not {refused:?}")
        };
        assert!(error.to_string().contains(what), "{error}");
    }
    assert_eq!(world.store.stats().await.expect("stats").events, 0);
    for (what, started) in named(1024) {
        let created = try_create(&world, world.env.run_id(), started).await;
        assert!(
            matches!(created, Ok(Created::New(_))),
            "{what}: {created:?}"
        );
    }
    let both = labelled(long(1024), long(1024));
    let created = try_create(&world, world.env.run_id(), both).await;
    assert!(matches!(created, Ok(Created::New(_))), "{created:?}");
    world.finish().await;
}

/// Only an ended run that nobody drives and no child needs is deleted, and then all of it.
pub async fn delete_takes_ended_runs_that_nobody_needs(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let mut pen = world.driven(in_session("run", "s")).await;
    let needed = async |world: &World<'_>, run: &RunId, stage: &str| {
        let error = world.store.delete(run).await.expect_err(stage);
        assert!(
            matches!(error, Error::StillNeeded { run: id, .. } if id == *run),
            "{stage}: {error:?}"
        );
        assert_eq!(
            super::check_run(&*world.store, run).await[0].seq,
            Seq::FIRST,
            "{stage}"
        );
    };
    needed(&world, &pen.run, "it is live").await;
    pen.complete(json!("done")).await;
    needed(&world, &pen.run, "its driver holds the lease").await;
    pen.release().await;
    let mut parent = world.driven(task("parent")).await;
    let child = world
        .create(from_parent("child", parent.run, Relation::Child), None)
        .await
        .row
        .run;
    parent.complete(json!("done")).await;
    parent.release().await;
    needed(&world, &parent.run, "its child lives").await;
    world.cancel(&child).await;
    for run in [&parent.run, &child] {
        world
            .store
            .delete(run)
            .await
            .expect("a child that ended needs nothing");
    }
    let child_of = world.create(task("kept"), None).await.row.run;
    let bodies = world.store.read(&pen.run, Seq::FIRST, 100).await;
    let bodies = bodies.expect("its events").items;
    let weight = crate::Deleted::of(&bodies);
    let deleted = world
        .store
        .delete(&pen.run)
        .await
        .expect("nobody needs it any more");
    assert_eq!(deleted, weight, "it says what went");
    for stage in ["deleted", "reopened"] {
        let gone = world.store.entry(&pen.run).await;
        assert!(
            matches!(gone, Err(Error::NotFound(run)) if run == pen.run),
            "{stage}: {gone:?}"
        );
        assert!(
            world.store.read(&pen.run, Seq::FIRST, 1).await.is_err(),
            "{stage}: no events"
        );
        let listed = world
            .store
            .list(&crate::Filter::default(), None, 10)
            .await
            .expect("runs");
        let listed: Vec<RunId> = listed.items.iter().map(|entry| entry.row.run).collect();
        assert_eq!(listed, [child_of], "{stage}");
        assert_eq!(
            world.store.stats().await.expect("stats").events,
            1,
            "{stage}"
        );
        assert_eq!(
            world.store.sessions().await.expect("sessions"),
            [],
            "{stage}"
        );
        let found = world
            .store
            .find(&pen.run.short(), 5)
            .await
            .expect("a search by name");
        assert_eq!(found, [], "{stage}");
        world.reopen().await;
    }
    let owner = world.owner(2).await;
    let claim = world
        .store
        .claim(&child_of, owner)
        .await
        .expect("a claim is answered");
    assert!(
        matches!(claim, ClaimOutcome::Claimed(_)),
        "the others go on"
    );
    world.finish().await;
}
