//! Forks: runs that share another's log (SEMANTICS 31).

use std::collections::BTreeMap;

use logreel_core::event::{
    Body, Change, Effect, Made, Phase, Relation, RunForked, RunStarted, SpecChanged, WaitKind,
};
use logreel_core::{
    Blob, Command, Digest, Draft, Epoch, Event, Head, Outside, Payload, Record, RunId, Seq, Status,
};
use serde_json::json;

use super::facts::{
    append_id, cause, custom, in_session, payload, phase, step, step_id, step_started, task, wait,
    with_key,
};
use super::world::{Pen, World, list_all, read_all};
use super::{Harness, check_run};
use crate::{
    ClaimOutcome, Claimable, CreateError, Created, Entry, Env, Error, Filter, ForkAt, ForkError,
    NewFork, NewRun, OwnerId,
};

fn fork_of(world: &World<'_>, parent: RunId, at: ForkAt) -> NewFork {
    NewFork::of(world.env.run_id(), parent, at, Relation::Fork)
}

async fn made(world: &World<'_>, new: NewFork) -> Entry {
    match world.store.fork(new).await.expect("a fork is made") {
        Created::New(entry) => entry,
        Created::Attached(entry) => panic!("{} was there already", entry.row.run),
    }
}

async fn fork(world: &World<'_>, parent: RunId, at: u64) -> Entry {
    made(world, fork_of(world, parent, ForkAt::Seq(Seq(at)))).await
}

/// A run that failed: created, executing, two steps, the end as event 5, and a late fact.
async fn failed(world: &World<'_>) -> Pen {
    let mut pen = world.driven(with_key("task", "issue-7")).await;
    pen.write(vec![phase(Phase::Executing), step("one", json!(1))])
        .await;
    pen.write(vec![step("two", json!(2))]).await;
    let cause = cause("it broke");
    let draft = pen.decide(Command::Fail { cause }).await;
    pen.write(vec![draft]).await;
    pen.write(vec![super::facts::late(custom("late", json!(0)))])
        .await;
    pen.release().await;
    pen
}

fn forked(event: &Event) -> &RunForked {
    match &event.body {
        Body::RunForked(forked) => forked,
        other => panic!("run.forked, not {}", other.kind()),
    }
}

fn origins(records: &[Record]) -> Vec<Option<RunId>> {
    records.iter().map(|record| record.origin).collect()
}

/// The log is the parent's up to an event and then `run.forked`, in pages of any size; each event says
/// whose it is. The parent does not change, and what it gets later is not the fork's.
pub async fn a_fork_shares_its_parents_log_up_to_an_event(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut parent = world.driven(task("parent")).await;
    parent
        .write(vec![phase(Phase::Executing), step("one", json!(1))])
        .await;
    let before = read_all(&*world.store, &parent.run, 100).await;
    let entry = fork(&world, parent.run, 2).await;
    let run = entry.row.run;
    assert_eq!((entry.row.head.seq, entry.epoch), (Seq(3), Epoch::NONE));
    parent.write(vec![step("two", json!(2))]).await;
    let whole = read_all(&*world.store, &run, 100).await;
    assert_eq!(origins(&whole), [Some(parent.run), Some(parent.run), None]);
    for (shared, original) in whole[..2].iter().zip(&before) {
        let shared = Record {
            origin: None,
            ..shared.clone()
        };
        assert_eq!(shared, *original, "byte for byte");
    }
    for limit in 1..5 {
        assert_eq!(
            read_all(&*world.store, &run, limit).await,
            whole,
            "in pages of {limit}"
        );
    }
    let past = world.store.read(&run, Seq(9), 5).await.expect("a page");
    assert!(past.items.is_empty() && !past.has_more, "{past:?}");
    let events = check_run(&*world.store, &run).await;
    let named = forked(&events[2]);
    assert_eq!(
        (named.parent.run, named.parent.seq, named.digest),
        (parent.run, Seq(2), before[1].digest)
    );
    let of_parent = read_all(&*world.store, &parent.run, 100).await;
    assert_eq!(of_parent[..3], before, "the parent's log is its own");
    assert_eq!(origins(&of_parent), [None; 4]);
    world.finish().await;
}

/// The row and the results are those of a fold of the whole log: created, with its own input and
/// limits, without session and key; finished steps stay, forgotten, failed and open ones do not.
pub async fn the_row_of_a_fork_is_the_fold_of_the_whole_log(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let labels = BTreeMap::from([("team".to_owned(), "blue".to_owned())]);
    let mut started = RunStarted {
        labels,
        key: Some("k".to_owned()),
        ..in_session("task", "s")
    };
    started.budget.tokens = Some(100);
    let mut parent = world.driven(started.clone()).await;
    parent.write(vec![step("kept", json!(1))]).await;
    let only_kept = world.entry(&parent.run).await.results;
    parent
        .write(vec![
            step("again", json!(2)),
            step_started("open", Effect::Write),
            step_started("read", Effect::Read),
            Draft::new(wait(1, WaitKind::Approval)),
        ])
        .await;
    let new = NewFork {
        relation: Relation::Retry,
        input: Some(payload(json!("its own"))),
        forgotten: vec![step_id("again")],
        ..fork_of(&world, parent.run, ForkAt::Last)
    };
    let entry = made(&world, new).await;
    let (row, facts) = (&entry.row, &entry.row.facts);
    assert_eq!((row.status(), row.head.seq), (Status::Created, Seq(7)));
    assert_eq!(entry.results, only_kept);
    assert_eq!(facts.input, payload(json!("its own")));
    assert_eq!((&facts.session, &facts.key), (&None, &None));
    assert_eq!((&facts.budget, &facts.waits), (&started.budget, &vec![]));
    assert_eq!(facts.labels["team"], "blue");
    let parted = facts.parent.as_ref().expect("a fork has a parent");
    assert_eq!(
        (parted.run, parted.seq, parted.relation),
        (parent.run, Seq(6), Relation::Retry)
    );
    let events = check_run(&*world.store, &row.run).await;
    assert_eq!(forked(&events[6]).may_have_happened, ["open"]);
    let by_label = Filter {
        labels: vec![("team".to_owned(), "blue".to_owned())],
        search: Some("own".to_owned()),
        ..Filter::default()
    };
    let found = list_all(&*world.store, &by_label, 5).await;
    let found: Vec<RunId> = found.iter().map(|entry| entry.row.run).collect();
    assert_eq!(found, [row.run]);
    world.finish().await;
}

/// A driver's appends and anyone's commands go on after what is shared, under epochs and append ids of
/// the fork's own; the parent notices nothing.
pub async fn appends_to_a_fork_land_after_what_it_shares(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let mut parent = world.driven(task("parent")).await;
    let draft = vec![step("one", json!(1))];
    let append = parent.append_as(append_id("same"), draft);
    parent.send(append).await.expect("it lands");
    let owner = world.owner(2).await;
    let new = NewFork {
        owner: Some(owner),
        ..fork_of(&world, parent.run, ForkAt::Last)
    };
    let entry = made(&world, new).await;
    assert_eq!(entry.epoch, Epoch(1));
    assert!(entry.is_driven());
    let mut pen = world.pen(&entry);
    let draft = vec![step("two", json!(2))];
    let append = pen.append_as(append_id("same"), draft.clone());
    let appended = pen.send(append.clone()).await.expect("it lands");
    assert!(!appended.repeated, "the other run's append is another");
    assert_eq!(appended.events[0].seq, Seq(4));
    assert!(pen.send(append).await.expect("an answer").repeated);
    let stale = Head {
        seq: Seq(2),
        digest: world.entry(&parent.run).await.row.head.digest,
    };
    let mut wrong = pen.append(draft);
    wrong.expect = stale;
    assert!(pen.send(wrong).await.is_err(), "the head is the fork's");
    pen.release().await;
    let mut pen = world.claimed(&pen.run, owner).await;
    assert_eq!(pen.epoch, Epoch(2));
    pen.write(vec![step("three", json!(3))]).await;
    let run = pen.run;
    world.reopen().await;
    let mut pen = pen.moved_to(&world);
    pen.write(vec![step("four", json!(4))]).await;
    let cancelled = world.cancel(&run).await;
    assert_eq!(cancelled.events[0].seq, Seq(8));
    assert_eq!(world.entry(&run).await.row.status(), Status::Cancelled);
    assert_eq!(world.entry(&parent.run).await.row.head.seq, Seq(2));
    let resumed = check_run(&*world.store, &run).await;
    assert_eq!(resumed[4].body.kind(), "run.resumed");
    world.finish().await;
}

/// A fork of a fork shares what the fork shares, also when they part before the fork's own events.
pub async fn forks_of_forks_go_back_to_whoever_wrote_each_event(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let root = failed(&world).await.run;
    let owner = world.owner(2).await;
    let first = fork(&world, root, 4).await.row.run;
    let mut pen = world.claimed(&first, owner).await;
    pen.write(vec![step("three", json!(3))]).await;
    let second = fork(&world, first, 6).await.row.run;
    let third = fork(&world, second, 7).await.row.run;
    let early = fork(&world, second, 3).await.row.run;
    let of = async |run: RunId| origins(&read_all(&*world.store, &run, 2).await);
    let (r, f, s) = (Some(root), Some(first), Some(second));
    assert_eq!(of(first).await, [r, r, r, r, None, None]);
    assert_eq!(of(second).await, [r, r, r, r, f, f, None]);
    assert_eq!(of(third).await, [r, r, r, r, f, f, s, None]);
    assert_eq!(of(early).await, [r, r, r, None]);
    let page = world.store.read(&third, Seq(4), 4).await.expect("a page");
    assert_eq!(origins(&page.items), [r, f, f, s]);
    assert_eq!((page.next, page.has_more), (Seq(8), true));
    let parent = world.entry(&early).await.row.facts.parent.clone();
    assert_eq!(parent.map(|it| (it.run, it.seq)), Some((second, Seq(3))));
    let mut pen = world.claimed(&third, owner).await;
    pen.complete(json!("done")).await;
    pen.release().await;
    world.finish().await;
}

/// Refused: at the end or after it, past the last event, of an unknown run, as a child.
pub async fn a_fork_is_made_before_the_end_of_a_known_run_only(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let run = failed(&world).await.run;
    let runs = world.store.stats().await.expect("stats").runs;
    for at in [5, 6, 70] {
        let refused = world
            .store
            .fork(fork_of(&world, run, ForkAt::Seq(Seq(at))))
            .await;
        let end_of = match refused {
            Err(ForkError::PastEnd { end, .. }) => end,
            other => panic!("at {at}: {other:?}"),
        };
        assert_eq!(end_of, Seq(5));
    }
    let live = world.create(task("live"), None).await.row.run;
    for at in [0, 2] {
        let refused = world
            .store
            .fork(fork_of(&world, live, ForkAt::Seq(Seq(at))))
            .await;
        assert!(
            matches!(refused, Err(ForkError::NoSuchEvent { .. })),
            "at {at}: {refused:?}"
        );
    }
    let unknown = world.env.run_id();
    let refused = world
        .store
        .fork(fork_of(&world, unknown, ForkAt::Last))
        .await;
    assert!(
        matches!(refused, Err(ForkError::Store(Error::NotFound(run))) if run == unknown),
        "{refused:?}"
    );
    let child = NewFork {
        relation: Relation::Child,
        ..fork_of(&world, run, ForkAt::Last)
    };
    assert!(world.store.fork(child).await.is_err());
    let stranger = NewFork {
        owner: Some(OwnerId(99)),
        ..fork_of(&world, run, ForkAt::Last)
    };
    assert!(world.store.fork(stranger).await.is_err());
    let now = world.store.stats().await.expect("stats").runs;
    let count = |runs: &[(Status, u64)]| runs.iter().map(|(_, runs)| runs).sum::<u64>();
    assert_eq!(count(&now), count(&runs) + 1, "nothing was made");
    let last = made(&world, fork_of(&world, run, ForkAt::Last)).await;
    assert_eq!(last.row.head.seq, Seq(5), "right before the end");
    world.finish().await;
}

/// What a fork shares stays, with its blobs, and the refusal lists the forks. The fork itself can go.
pub async fn a_run_that_is_forked_from_cannot_be_deleted(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let owner = world.owner(1).await;
    let text = json!("x".repeat(70_000));
    let (input, blob) = Payload::of(text.into());
    let started = RunStarted {
        input,
        ..task("parent")
    };
    let run = world.env.run_id();
    let blobs: Vec<Blob> = blob.into_iter().collect();
    let digest = blobs[0].digest();
    let new = NewRun {
        run,
        started,
        blobs,
        owner: Some(owner),
        then: Vec::new(),
    };
    let created = world.store.create(new).await.expect("a run is created");
    let mut parent = world.pen(created.entry());
    parent.complete(json!("done")).await;
    parent.release().await;
    let forks = [fork(&world, run, 1).await, fork(&world, run, 1).await];
    let [one, two] = forks.map(|entry| entry.row.run);
    let refused = world.store.delete(&run).await;
    let Err(Error::ForkedFrom { run: of, forks }) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!((*of, forks.as_slice()), (run, [one, two].as_slice()));
    world.cancel(&one).await;
    world.store.delete(&one).await.expect("a fork goes");
    assert!(world.store.read(&one, Seq::FIRST, 1).await.is_err());
    assert!(world.store.delete(&run).await.is_err(), "one is left");
    let kept = world.store.blob(&digest).await.expect("a look");
    assert!(kept.is_some(), "its input is shared");
    check_run(&*world.store, &two).await;
    world.cancel(&two).await;
    world.store.delete(&two).await.expect("the other goes");
    check_run(&*world.store, &run).await;
    world.store.delete(&run).await.expect("nobody is left");
    assert_eq!(world.store.blob(&digest).await.expect("a look"), None);
    assert_eq!(world.store.stats().await.expect("stats").events, 0);
    world.finish().await;
}

/// The same fork again is the one that is there; another under its id is a conflict, and so is a run
/// that is no fork.
pub async fn a_fork_with_the_same_id_attaches_or_conflicts(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let parent = failed(&world).await.run;
    let new = NewFork {
        forgotten: vec![step_id("two")],
        ..fork_of(&world, parent, ForkAt::Last)
    };
    let entry = made(&world, new.clone()).await;
    let owner = world.owner(2).await;
    world.claimed(&new.run, owner).await;
    for at in [ForkAt::Last, ForkAt::Seq(Seq(4))] {
        let again = NewFork { at, ..new.clone() };
        match world.store.fork(again).await {
            Ok(Created::Attached(there)) => assert_eq!(there.row.run, entry.row.run),
            other => panic!("{other:?}"),
        }
    }
    let others = [
        (
            "seq",
            NewFork {
                at: ForkAt::Seq(Seq(3)),
                ..new.clone()
            },
        ),
        (
            "parent",
            NewFork {
                relation: Relation::Retry,
                ..new.clone()
            },
        ),
        (
            "input",
            NewFork {
                input: Some(payload(json!(7))),
                ..new.clone()
            },
        ),
        (
            "list of forgotten steps",
            NewFork {
                forgotten: vec![step_id("one")],
                ..new.clone()
            },
        ),
        (
            "parent",
            NewFork {
                run: parent,
                ..new.clone()
            },
        ),
    ];
    for (expected, other) in others {
        match world.store.fork(other).await {
            Err(ForkError::Conflict { differs, .. }) => assert_eq!(differs, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    let no_fork = NewRun {
        run: new.run,
        started: task("task"),
        then: Vec::new(),
        blobs: Vec::new(),
        owner: None,
    };
    let created = world.store.create(no_fork).await;
    assert!(
        matches!(&created, Err(CreateError::Conflict { differs, .. }) if *differs == "parent"),
        "{created:?}"
    );
    world.finish().await;
}

/// What follows from the changes of a fork is in its log with `run.forked`, or nothing is: other results,
/// another spec. The row is the fold of all of it.
pub async fn what_is_changed_in_a_fork_follows_it_in_the_same_transaction(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let mut parent = world.driven(task("parent")).await;
    parent
        .write(vec![step("one", json!(1)), step("two", json!(2))])
        .await;
    let spec_digest = Digest::of(b"another spec");
    let (spec, blob) = Payload::of(json!("s".repeat(70_000)).into());
    let blobs: Vec<Blob> = blob.into_iter().collect();
    let spec_blob = blobs[0].digest();
    let changed = SpecChanged {
        spec,
        spec_digest,
        spec_file: None,
    };
    let new = NewFork {
        forgotten: vec![step_id("two")],
        changes: vec![Change::Result("two".to_owned()), Change::Spec],
        made: Some(Made {
            host: Some("here".to_owned()),
            ..Made::default()
        }),
        then: vec![step("two", json!("given")), Draft::new(changed)],
        blobs,
        ..fork_of(&world, parent.run, ForkAt::Last)
    };
    let runs = world.store.stats().await.expect("stats").runs;
    let twice = NewFork {
        then: vec![step("one", json!("a second result"))],
        ..new.clone()
    };
    let refused = world.store.fork(twice).await;
    assert!(matches!(refused, Err(ForkError::Illegal(_))), "{refused:?}");
    let now = world.store.stats().await.expect("stats").runs;
    assert_eq!(now, runs, "nothing was made");
    let entry = made(&world, new.clone()).await;
    assert_eq!(entry.row.head.seq, Seq(6));
    assert_eq!(entry.row.facts.spec_digest, spec_digest);
    assert_eq!(entry.row.facts.provenance.host.as_deref(), Some("here"));
    let events = check_run(&*world.store, &entry.row.run).await;
    let kinds: Vec<&str> = events[3..].iter().map(|event| event.body.kind()).collect();
    assert_eq!(kinds, ["run.forked", "step.finished", "spec.changed"]);
    assert_eq!(forked(&events[3]).changes, new.changes);
    let kept = world.store.blob(&spec_blob).await.expect("a look");
    assert!(kept.is_some(), "with what it refers to");
    let again = world.store.fork(new.clone()).await;
    assert!(matches!(again, Ok(Created::Attached(_))), "{again:?}");
    let other = NewFork {
        changes: vec![Change::Spec],
        ..new
    };
    let refused = world.store.fork(other).await;
    let conflict = matches!(refused, Err(ForkError::Conflict { .. }));
    assert!(conflict, "{refused:?}");
    world.reopen().await;
    assert_eq!(world.entry(&entry.row.run).await, entry);
    world.finish().await;
}

/// A fork is listed, found, watched, claimed and counted like any run; its events are counted once.
pub async fn a_queued_fork_is_found_and_claimed_like_any_run(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let parent = failed(&world).await.run;
    let events = world.store.stats().await.expect("stats").events;
    let new = fork_of(&world, parent, ForkAt::Last);
    let run = new.run;
    let mut bell = world.store.watch(&run);
    made(&world, new).await;
    assert!(bell.rung().await, "whoever watches hears of it");
    let stats = world.store.stats().await.expect("stats");
    assert_eq!(stats.events, events + 1, "only `run.forked` is new");
    let of_parent = Filter {
        parent: Some(parent),
        ..Filter::default()
    };
    let listed = list_all(&*world.store, &of_parent, 3).await;
    let listed: Vec<RunId> = listed.iter().map(|entry| entry.row.run).collect();
    assert_eq!(listed, [run]);
    let found = world.store.find(&run.short(), 3).await.expect("a search");
    assert_eq!(found, [run]);
    let tasks = [Claimable {
        kind: logreel_core::event::RunKind::Task,
        agents: None,
        specs: None,
    }];
    let claimable = world.store.claimable(&tasks, &[], 5).await;
    assert_eq!(claimable.expect("claimable runs"), [run]);
    let owner = world.owner(3).await;
    let claim = world.store.claim(&run, owner).await.expect("an answer");
    let ClaimOutcome::Claimed(entry) = claim else {
        panic!("{claim:?}")
    };
    // Never driven before, so nobody is taken over from.
    assert_eq!((entry.epoch, entry.row.head.seq), (Epoch(1), Seq(5)));
    let paused = world
        .command(&run, "pause", Outside::Pause { reason: None })
        .await;
    assert_eq!(paused.entry.row.status(), Status::Waiting);
    let log = check_run(&*world.store, &run).await;
    assert!(matches!(&log[5].body, Body::WaitStarted(_)));
    world.finish().await;
}
