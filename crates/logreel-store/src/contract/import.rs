//! Imports: logs that were written elsewhere (SEMANTICS 34). Elsewhere is a memory store here.

use std::sync::Arc;

use logreel_core::codec::StoredBody;
use logreel_core::event::{Phase, Relation, RunKind, RunStarted, WaitKind};
use logreel_core::{Blob, Digest, Draft, Epoch, Head, Json, Outside, Payload, Record, RunId, Seq};
use serde_json::json;

use super::facts::{
    append_id, custom, in_session, late, phase, session, step, step_started, task, wait, with_key,
};
use super::world::{World, list_all, read_all};
use super::{Harness, check_run};
use crate::import::Fault;
use crate::{
    AppendError, ClaimOutcome, Claimable, CreateError, Created, Env, Error, Filter, ForkAt, Import,
    ImportError, ImportedBlob, MemoryStore, NewFork, NewRun, OwnerId, RunStore, Since, Source,
};

/// A log in memory.
struct Given {
    records: std::vec::IntoIter<Record>,
    blobs: std::vec::IntoIter<ImportedBlob>,
}

impl Source for Given {
    fn next_event(&mut self) -> Result<Option<Record>, Fault> {
        Ok(self.records.next())
    }

    fn next_blob(&mut self) -> Result<Option<ImportedBlob>, Fault> {
        Ok(self.blobs.next())
    }
}

/// Another store, in which runs are made that are imported.
pub(super) fn elsewhere<'h>(world: &World<'h>) -> World<'h> {
    World {
        harness: world.harness,
        env: world.env.clone(),
        store: Arc::new(MemoryStore::new(Arc::new(world.env.clone()))),
    }
}

/// What an import of the run takes, after what is known of it, with its events as `change` leaves them.
async fn changed(
    store: &dyn RunStore,
    run: &RunId,
    after: Option<Head>,
    blobs: &[Blob],
    change: impl FnOnce(&mut Vec<Record>),
) -> Import {
    let entry = store.entry(run).await.expect("the run is there");
    let mut records = read_all(store, run, 100).await;
    records.retain(|record| after.is_none_or(|head| record.seq > head.seq));
    change(&mut records);
    let keys = store.keys(run).await.expect("the run has keys");
    let blobs: Vec<_> = blobs
        .iter()
        .map(|blob| ImportedBlob {
            blob: blob.clone(),
            previous: None,
        })
        .collect();
    Import {
        row: entry.row,
        results: entry.results,
        keys: keys
            .into_iter()
            .filter_map(|(run, key)| Some((run, key?)))
            .collect(),
        after,
        source: Box::new(Given {
            records: records.into_iter(),
            blobs: blobs.into_iter(),
        }),
    }
}

pub(super) async fn packed(store: &dyn RunStore, run: &RunId, after: Option<Head>) -> Import {
    changed(store, run, after, &[], |_| {}).await
}

fn any_task() -> Vec<Claimable> {
    vec![Claimable {
        kind: RunKind::Task,
        agents: None,
        specs: None,
    }]
}

/// An ended run is here as it was there: every byte of its log, its row, labels, words, key and blobs.
pub async fn an_imported_run_is_what_it_was(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let there = elsewhere(&world);
    let (input, blob) = Payload::of(Json::from(json!("x".repeat(70_000))));
    let blob = blob.expect("a long value is a blob");
    let started = RunStarted {
        input,
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        ..with_key("carried", "issue-7")
    };
    let owner = there.owner(1).await;
    let new = NewRun {
        run: world.env.run_id(),
        started: started.clone(),
        then: Vec::new(),
        blobs: vec![blob.clone()],
        owner: Some(owner),
    };
    let entry = there
        .store
        .create(new)
        .await
        .expect("it is made")
        .entry()
        .clone();
    let mut pen = there.pen(&entry);
    pen.write(vec![phase(Phase::Executing), step("one", json!(1))])
        .await;
    pen.complete(json!("the end")).await;
    pen.write(vec![late(custom("late", json!(0)))]).await;
    let there_now = pen.release().await;
    let import = changed(
        &*there.store,
        &pen.run,
        None,
        std::slice::from_ref(&blob),
        |_| {},
    )
    .await;
    let here = world.store.import(import).await.expect("it is taken in");
    assert_eq!(
        (&here.row, here.results),
        (&there_now.row, there_now.results)
    );
    assert!(!here.read_only && here.driver.is_none() && here.ready_at.is_none());
    assert_eq!(
        read_all(&*world.store, &pen.run, 3).await,
        read_all(&*there.store, &pen.run, 3).await
    );
    assert_eq!(
        world.store.blob(&blob.digest()).await.expect("a blob"),
        Some(blob.bytes().to_vec())
    );
    let filter = Filter {
        labels: vec![("team".to_owned(), "blue".to_owned())],
        search: Some("end".to_owned()),
        final_state_digest: there_now
            .row
            .facts
            .ended
            .as_ref()
            .map(|it| it.final_state_digest),
        ..Filter::default()
    };
    assert_eq!(list_all(&*world.store, &filter, 5).await.len(), 1);
    // The key and the id are its own, and nothing follows its end.
    let again = NewRun {
        run: world.env.run_id(),
        started,
        then: Vec::new(),
        blobs: vec![blob.clone()],
        owner: None,
    };
    let attached = world.store.create(again).await.expect("it attaches");
    assert!(matches!(&attached, Created::Attached(entry) if entry.row.run == pen.run));
    let other = there
        .create(with_key("other", "issue-8"), None)
        .await
        .row
        .run;
    world.create(with_key("mine", "issue-8"), None).await;
    let taken = world
        .store
        .import(packed(&*there.store, &other, None).await)
        .await;
    assert!(
        matches!(taken, Err(ImportError::KeyTaken { .. })),
        "{taken:?}"
    );
    world.store.delete(&pen.run).await.expect("it is deleted");
    assert_eq!(
        world.store.blob(&blob.digest()).await.expect("an answer"),
        None
    );
    let import = changed(&*there.store, &pen.run, None, &[blob], |_| {}).await;
    world
        .store
        .import(import)
        .await
        .expect("its own key is no hindrance");
    world.finish().await;
}

/// Nothing lands on a run that was imported before its end, and it keeps nobody from its session. Taken
/// over, it is a run like any other, under an epoch that no event has.
pub async fn an_import_is_read_only_until_it_is_taken_over(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let there = elsewhere(&world);
    let mut pen = there.driven(in_session("carried", "s")).await;
    pen.write(vec![phase(Phase::Executing), step("one", json!(1))])
        .await;
    let run = pen.run;
    let here = world
        .store
        .import(packed(&*there.store, &run, None).await)
        .await
        .expect("it is taken in");
    assert!(here.read_only && here.driver.is_none() && here.ready_at.is_none());
    assert!(!here.is_worth_a_claim(world.env.now()));
    let owner = world.owner(2).await;
    let is_refused = |refused: Result<(), Error>| {
        assert!(
            matches!(refused, Err(Error::ReadOnly(it)) if it == run),
            "{refused:?}"
        );
    };
    is_refused(world.store.claim(&run, owner).await.map(drop));
    for command in [
        Outside::Cancel { reason: None },
        Outside::Pause { reason: None },
        Outside::Say {
            text: "hello".to_owned(),
            by: None,
        },
    ] {
        let id = append_id("command");
        is_refused(
            world
                .store
                .command(&run, &id, &command, Vec::new())
                .await
                .map(drop),
        );
    }
    let mut mine = world.pen(&here);
    let append = mine.try_write(vec![step("two", json!(2))]).await;
    assert!(
        matches!(append, Err(AppendError::Store(Error::ReadOnly(_)))),
        "{append:?}"
    );
    let ready = world.store.claimable(&any_task(), &[], 9).await;
    assert_eq!(ready.expect("a list"), []);
    let busy = world.create(in_session("mine", "s"), None).await.row.run;
    let refused = world.store.take_over(&run).await;
    assert!(
        matches!(&refused, Err(ImportError::Busy { active, .. }) if *active == busy),
        "{refused:?}"
    );
    world.cancel(&busy).await;
    let own = world.store.take_over(&run).await.expect("it is taken over");
    assert!(!own.read_only && own.epoch > here.epoch && own.ready_at.is_some());
    assert_eq!(own.row, here.row, "nothing is written");
    let again = world
        .store
        .take_over(&run)
        .await
        .expect("twice is harmless");
    assert_eq!(again.epoch, own.epoch);
    let blocked = world.store.create(NewRun {
        run: world.env.run_id(),
        started: in_session("mine", "s"),
        then: Vec::new(),
        blobs: Vec::new(),
        owner: None,
    });
    assert!(matches!(blocked.await, Err(CreateError::Busy { active, .. }) if active == run));
    let ready = world.store.claimable(&any_task(), &[], 9).await;
    assert_eq!(ready.expect("a list"), [run]);
    let mut mine = world.claimed(&run, owner).await;
    assert!(mine.epoch > own.row.epoch);
    mine.write(vec![step("two", json!(2))]).await;
    mine.complete(json!(3)).await;
    mine.release().await;
    assert_eq!(
        world.store.sessions().await.expect("sessions")[0].session,
        session("s")
    );
    world.finish().await;
}

/// A log that goes on from what is here is taken in from there, when nobody drives the run; whoever drove
/// it is fenced. What has gone on itself meanwhile must be looked at again.
pub async fn an_import_goes_on_from_what_is_here(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let there = elsewhere(&world);
    let mut pen = world.driven(in_session("home", "s")).await;
    pen.write(vec![
        phase(Phase::Executing),
        step_started("open", logreel_core::event::Effect::Read),
    ])
    .await;
    let run = pen.run;
    let known = pen.head;
    let copy = there
        .store
        .import(packed(&*world.store, &run, None).await)
        .await;
    assert!(copy.expect("it is taken in").read_only);
    there.store.take_over(&run).await.expect("it is taken over");
    let owner = there.owner(7).await;
    let mut away = there.claimed(&run, owner).await;
    away.write(vec![
        step("one", json!(1)),
        Draft::new(wait(1, WaitKind::Approval)),
    ])
    .await;
    let driven = world
        .store
        .import(packed(&*there.store, &run, Some(known)).await)
        .await;
    assert!(
        matches!(driven, Err(ImportError::Driven { .. })),
        "{driven:?}"
    );
    let before = pen.release().await;
    let stale = Head {
        seq: Seq(2),
        digest: known.digest,
    };
    for after in [None, Some(stale)] {
        let changed = world
            .store
            .import(packed(&*there.store, &run, after).await)
            .await;
        assert!(
            matches!(changed, Err(ImportError::Changed { head }) if head == Some(known)),
            "{changed:?}"
        );
    }
    let mut bell = world.store.watch(&run);
    let forwarded = world
        .store
        .import(packed(&*there.store, &run, Some(known)).await)
        .await
        .expect("it goes on");
    assert!(bell.rung().await, "who watches hears of it");
    assert_eq!(forwarded.row, there.entry(&run).await.row);
    assert!(forwarded.read_only && forwarded.epoch > before.epoch);
    let late = pen.try_write(vec![step("mine", json!(0))]).await;
    assert!(late.is_err(), "{late:?}");
    // Its session is free while it is driven elsewhere.
    world.create(in_session("next", "s"), None).await;
    away.catch_up().await;
    there
        .command(&run, "cancel", Outside::Cancel { reason: None })
        .await;
    let ended = world
        .store
        .import(packed(&*there.store, &run, Some(forwarded.row.head)).await)
        .await
        .expect("its end comes too");
    assert!(!ended.read_only && ended.row.facts.ended.is_some());
    world.finish().await;
}

/// Rule 24: an import proves no more than a takeover that a driver which fell silent is dead.
pub async fn an_import_does_not_take_a_silent_driver_for_dead(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let there = elsewhere(&world);
    let mut silent = world.driven(task("carried")).await;
    silent
        .write(vec![
            phase(Phase::Executing),
            step_started("open", logreel_core::event::Effect::Write),
        ])
        .await;
    let (run, known) = (silent.run, silent.head);
    let copy = there
        .store
        .import(packed(&*world.store, &run, None).await)
        .await;
    copy.expect("it is taken in");
    there.store.take_over(&run).await.expect("it is taken over");
    let owner = there.owner(7).await;
    let mut away = there.claimed(&run, owner).await;
    away.write(vec![step("one", json!(1))]).await;
    // Others of this store are heard, and see that this one is not.
    let two = world.owner(2).await;
    let claimed = world.store.claim(&run, two).await;
    assert!(matches!(claimed, Ok(ClaimOutcome::Driven(_))));
    world.env.advance(harness.lease());
    world
        .store
        .import(packed(&*there.store, &run, Some(known)).await)
        .await
        .expect("nobody drives it");
    let lapsed = async || {
        let lapsed = world.store.lapsed(&run).await.expect("lapsed drivers");
        let known = lapsed.into_iter().map(|it| (it.epoch, it.owner.id));
        known.collect::<Vec<_>>()
    };
    assert_eq!(lapsed().await, [(Epoch(1), OwnerId(1))]);
    away.complete(json!("done")).await;
    let head = world.entry(&run).await.row.head;
    let ended = world
        .store
        .import(packed(&*there.store, &run, Some(head)).await)
        .await;
    assert!(ended.is_ok_and(|ended| ended.row.facts.ended.is_some()));
    assert_eq!(lapsed().await, [], "an ended run has nothing to settle");
    world.finish().await;
}

/// Of a log that is not what was folded nothing is stored: neither events, nor blobs, nor a name.
pub async fn an_import_that_does_not_hold_writes_nothing(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let there = elsewhere(&world);
    let mut pen = there.driven(with_key("carried", "issue-7")).await;
    pen.write(vec![
        phase(Phase::Executing),
        step("one", json!(1)),
        step("two", json!(2)),
    ])
    .await;
    let (run, blob) = (pen.run, Blob::new(b"loose".to_vec()));
    let text = |record: &mut Record| match &mut record.body {
        StoredBody::Text(text) => std::mem::take(text),
        StoredBody::Erased(_) => panic!("nothing was erased"),
    };
    type Change = Box<dyn FnOnce(&mut Vec<Record>)>;
    let changes: Vec<(&str, Change)> = vec![
        (
            "another body",
            Box::new(move |log| {
                let body = text(&mut log[2]).replace('1', "9");
                log[2].body = StoredBody::Text(body);
            }),
        ),
        (
            "another kind",
            Box::new(|log| log[2].kind = "step.failed".to_owned()),
        ),
        (
            "another time",
            Box::new(|log| log[3].at = log[3].at + std::time::Duration::from_secs(1)),
        ),
        ("a missing event", Box::new(|log| drop(log.remove(1)))),
        ("a missing end", Box::new(|log| drop(log.pop()))),
        (
            "a double event",
            Box::new(|log| log.insert(2, log[2].clone())),
        ),
        ("events in another order", Box::new(|log| log.swap(2, 3))),
        ("nothing", Box::new(Vec::clear)),
        (
            "an event of nobody",
            Box::new(|log| log[3].origin = Some(log_id())),
        ),
        (
            "an erased body",
            Box::new(|log| log[3].body = StoredBody::Erased(Digest([7; 32]))),
        ),
    ];
    for (what, change) in changes {
        let import = changed(
            &*there.store,
            &run,
            None,
            std::slice::from_ref(&blob),
            change,
        )
        .await;
        let refused = world.store.import(import).await;
        assert!(refused.is_err(), "{what}: {refused:?}");
        let entry = world.store.entry(&run).await;
        assert!(matches!(entry, Err(Error::NotFound(_))), "{what}");
        assert_eq!(
            world.store.blob(&blob.digest()).await.expect("an answer"),
            None,
            "{what}"
        );
    }
    let stats = world.store.stats().await.expect("stats");
    assert_eq!((stats.events, stats.blobs), (0, 0));
    // The key was not taken either.
    world.create(with_key("mine", "issue-7"), None).await;
    world.finish().await;
}

fn log_id() -> RunId {
    "run_00000000-0000-7000-8000-00000000dead"
        .parse()
        .expect("an id")
}

/// A fork comes whole: its parent need not be here, and may be deleted when it is. It goes on, and is forked
/// again, with every event still said to be of whoever wrote it.
pub async fn a_fork_is_imported_whole(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let there = elsewhere(&world);
    let mut root = there.driven(task("root")).await;
    root.write(vec![
        phase(Phase::Executing),
        step("one", json!(1)),
        step("two", json!(2)),
    ])
    .await;
    let fork = |parent: RunId, at: u64, forgotten: Vec<_>| NewFork {
        forgotten,
        ..NewFork::of(
            world.env.run_id(),
            parent,
            ForkAt::Seq(Seq(at)),
            Relation::Fork,
        )
    };
    let first = there
        .store
        .fork(fork(root.run, 3, Vec::new()))
        .await
        .expect("a fork");
    let first = first.entry().row.run;
    let again = vec![super::facts::step_id("one")];
    let second = there
        .store
        .fork(fork(first, 4, again))
        .await
        .expect("a fork of it");
    let second = second.entry().row.run;
    let here = world
        .store
        .import(packed(&*there.store, &second, None).await)
        .await;
    let here = here.expect("it is taken in");
    assert_eq!(here.row, there.entry(&second).await.row);
    let log = read_all(&*world.store, &second, 2).await;
    assert_eq!(log, read_all(&*there.store, &second, 100).await);
    let origins: Vec<_> = log.iter().map(|record| record.origin).collect();
    let (root, first) = (Some(root.run), Some(first));
    assert_eq!(origins, [root, root, root, first, None]);
    let stats = world.store.stats().await.expect("stats");
    assert_eq!(stats.events, 5, "they are here, and counted");
    // A fork within what is not its own, and one after it.
    for (at, whose) in [
        (2, vec![root, root, None]),
        (4, vec![root, root, root, first, None]),
    ] {
        let third = world
            .store
            .fork(fork(second, at, Vec::new()))
            .await
            .expect("a third");
        let third = third.entry().row.run;
        let log = read_all(&*world.store, &third, 2).await;
        assert_eq!(log.iter().map(|it| it.origin).collect::<Vec<_>>(), whose);
        check_run(&*world.store, &third).await;
        world.cancel(&third).await;
        world.store.delete(&third).await.expect("it is deleted");
    }
    world
        .store
        .take_over(&second)
        .await
        .expect("it is taken over");
    let owner = world.owner(3).await;
    let mut pen = world.claimed(&second, owner).await;
    pen.write(vec![step("one", json!(11))]).await;
    pen.complete(json!(0)).await;
    pen.release().await;
    // Its parent comes later and goes first.
    let parent = first.expect("there is one");
    there.cancel(&parent).await;
    world
        .store
        .import(packed(&*there.store, &parent, None).await)
        .await
        .expect("the parent");
    world
        .store
        .delete(&parent)
        .await
        .expect("nobody shares its events here");
    check_run(&*world.store, &second).await;
    world.finish().await;
}

/// What was imported is told of like what was written here: every event once, in the order of its run, also
/// when its log goes on later.
pub async fn news_tell_of_an_import_once_in_its_order(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let other = elsewhere(&world);
    let mut there = other.driven(task("there")).await;
    let mut here = world.driven(task("here")).await;
    let now = world.store.news(&Since::Now, 10).await.expect("the end");
    let mut told: Vec<(RunId, u64)> = Vec::new();
    let mut after = None;
    for round in 0..2 {
        here.write(vec![custom("e", json!(round))]).await;
        for index in 0..9 {
            there.write(vec![custom("e", json!(index))]).await;
        }
        let import = changed(&*other.store, &there.run, after, &[], |_| {}).await;
        let last = import.row.head.seq.0;
        let first = after.map_or(1, |head: Head| head.seq.0 + 1);
        let imported = world.store.import(import).await.expect("it is taken in");
        after = Some(imported.row.head);
        told.push((here.run, round + 2));
        told.extend((first..=last).map(|seq| (there.run, seq)));
    }
    here.write(vec![custom("e", json!("last"))]).await;
    told.push((here.run, 4));
    for limit in [1, 4, 100] {
        let (mut since, mut seen) = (Since::After(now.next.clone()), Vec::new());
        loop {
            let page = world.store.news(&since, limit).await.expect("a page");
            seen.extend(page.items.iter().map(|it| (it.run, it.seq.0)));
            since = Since::After(page.next);
            if !page.has_more {
                break;
            }
        }
        assert_eq!(seen, told, "pages of {limit}");
    }
    world.finish().await;
}
