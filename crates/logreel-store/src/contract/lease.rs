//! Rules of driving: SEMANTICS 17, 18 and 20.

use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{
    Budget, ChildStarted, ClaimReason, OnDeadline, Phase, Relation, RunKind, RunStarted, WaitKind,
    WaitStarted,
};
use logreel_core::{Body, Draft, Epoch, Outside, RunId, Status};
use serde_json::json;

use super::facts::{from_parent, late, phase, step, step_id, task, wait};
use super::{Harness, TestEnv, World};
use crate::{Backlog, ClaimOutcome, Claimable, Duty, DutyKind, Entry, Env, NewRun, OwnerId};

const ANY_TASK: Claimable = Claimable {
    kind: RunKind::Task,
    agents: None,
    specs: None,
};

async fn claim(world: &World<'_>, run: &RunId, owner: OwnerId) -> ClaimOutcome {
    world
        .store
        .claim(run, owner)
        .await
        .expect("a claim is answered")
}

async fn claimable(world: &World<'_>) -> Vec<RunId> {
    world
        .store
        .claimable(&[ANY_TASK], &[], 100)
        .await
        .expect("claimable runs")
}

fn driven(outcome: ClaimOutcome) -> Entry {
    match outcome {
        ClaimOutcome::Driven(entry) => entry,
        other => panic!("someone else drives it, so not {other:?}"),
    }
}

fn not_ready(outcome: ClaimOutcome) -> Entry {
    match outcome {
        ClaimOutcome::NotReady(entry) => entry,
        other => panic!("it is not ready, so not {other:?}"),
    }
}

/// Rule 18: a queued run is claimed once, under the next epoch; while it is driven nobody else gets it.
pub async fn a_queued_run_is_claimed_by_one(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let queued = world.create(task("queued"), None).await;
    let run = queued.row.run;
    assert_eq!(claimable(&world).await, [run]);
    let (one, two) = (world.owner(1).await, world.owner(2).await);
    let mut pen = world.claimed(&run, one).await;
    assert_eq!(
        (pen.epoch, pen.head),
        (Epoch(1), queued.row.head),
        "the first claim adds no event"
    );
    assert_eq!(claimable(&world).await, [], "nobody else gets it");
    let entry = driven(claim(&world, &run, two).await);
    assert_eq!(
        entry.driver.map(|driver| driver.owner.id),
        Some(one),
        "and it says who drives it"
    );
    driven(claim(&world, &run, one).await);
    pen.write(vec![phase(Phase::Executing)]).await;
    world.finish().await;
}

/// Rule 20: an owner that leaves is dead at once; the next driver begins with `run.resumed`.
pub async fn what_a_dead_owner_held_is_orphaned_at_once(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("orphan")).await;
    pen.write(vec![phase(Phase::Executing), step("a", json!(1))])
        .await;
    assert!(!world.entry(&pen.run).await.is_orphaned());
    world
        .store
        .leave(OwnerId(1))
        .await
        .expect("the owner leaves");
    let orphan = world.entry(&pen.run).await;
    assert!(orphan.is_orphaned(), "{orphan:?}");
    assert_eq!(
        orphan.driver.map(|driver| driver.alive),
        Some(false),
        "it still says whose it was"
    );
    assert_eq!(claimable(&world).await, [pen.run]);

    let two = world.owner(2).await;
    let taken = world.claimed(&pen.run, two).await;
    assert_eq!(taken.epoch, Epoch(2));
    let entry = world.entry(&pen.run).await;
    assert!(!entry.is_orphaned());
    assert_eq!(entry.row.pulse.takeovers, 1);
    let events = super::check_run(&*world.store, &pen.run).await;
    let last = events.last().expect("a last event");
    let Body::RunResumed(resumed) = &last.body else {
        panic!("run.resumed, not {last:?}")
    };
    assert_eq!(
        (last.epoch, resumed.reason),
        (Epoch(2), ClaimReason::Orphaned)
    );
    world.finish().await;
}

/// Rule 20: an owner that is silent for the lease time, on the monotonic clock, is dead; one that
/// beats lives, and a jump of the wall clock changes nothing.
pub async fn a_silent_owner_is_dead_after_the_lease(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("silent")).await;
    pen.write(vec![phase(Phase::Executing)]).await;
    let two = world.owner(2).await;
    let most = harness.lease() * 2 / 3;
    driven(claim(&world, &pen.run, two).await);
    world.env.set_now(world.env.now() + harness.lease() * 1000);
    driven(claim(&world, &pen.run, two).await);
    for _ in 0..4 {
        world.env.advance(most);
        for owner in [OwnerId(1), two] {
            world.store.beat(owner).await.expect("an owner beats");
        }
        driven(claim(&world, &pen.run, two).await);
    }
    world.env.set_now(TestEnv::START);
    world.env.advance_monotonic(most);
    world.store.beat(two).await.expect("an owner beats");
    driven(claim(&world, &pen.run, two).await);
    world.env.advance_monotonic(harness.lease() - most);
    assert_eq!(
        claimable(&world).await,
        [pen.run],
        "it was silent for the whole lease"
    );
    assert!(world.entry(&pen.run).await.is_orphaned());
    let taken = world.claimed(&pen.run, two).await;
    assert_eq!(taken.epoch, Epoch(2));
    let error = pen
        .try_write(vec![step("a", json!(1))])
        .await
        .expect_err("the old one is fenced");
    assert!(
        matches!(error, crate::AppendError::Fenced { current: Epoch(2) }),
        "{error:?}"
    );
    world.finish().await;
}

/// Rule 24: a lease that was taken because its owner fell silent proves no death; an owner that left,
/// or that gave its lease back, is at work no more. A store that tells how long ago it was taken tells it to whoever drives
/// next, and to whoever comes after that one.
pub async fn a_silent_owner_that_lost_its_lease_is_not_known_dead_until_it_leaves(
    harness: &dyn Harness,
) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("taken over")).await;
    pen.write(vec![phase(Phase::Executing)]).await;
    let run = pen.run;
    let two = world.owner(2).await;
    driven(claim(&world, &run, two).await);
    let lapsed = async || {
        let lapsed = world.store.lapsed(&run).await.expect("lapsed drivers");
        let known = lapsed.into_iter().map(|it| (it.epoch, it.owner.id));
        known.collect::<Vec<_>>()
    };
    let taken_ago = async || {
        let lapsed = world.store.lapsed(&run).await.expect("lapsed drivers");
        lapsed[0].taken_ago
    };
    world.env.advance(harness.lease());
    assert_eq!(lapsed().await, [], "nobody took it yet");
    world.store.beat(two).await.expect("an owner beats");
    world.claimed(&run, two).await;
    assert_eq!(lapsed().await, [(Epoch(1), OwnerId(1))]);
    let tells = taken_ago().await.is_some();
    assert_eq!(taken_ago().await, tells.then_some(Duration::ZERO));
    world.store.beat(OwnerId(1)).await.expect("it wakes up");
    assert_eq!(lapsed().await, [(Epoch(1), OwnerId(1))], "it lives");
    let passed = harness.lease() / 4;
    world.env.advance(passed);
    assert_eq!(taken_ago().await, tells.then_some(passed));

    // The next one leaves: it is known dead, the first one still is not.
    world.store.leave(two).await.expect("the owner leaves");
    let three = world.owner(3).await;
    let third = world.claimed(&run, three).await;
    assert_eq!(lapsed().await, [(Epoch(1), OwnerId(1))]);
    assert_eq!(
        taken_ago().await,
        tells.then_some(passed),
        "it is taken again"
    );
    third.release().await;
    let mut last = world.claimed(&run, three).await;
    last.write(vec![step("a", json!(1))]).await;
    assert_eq!(lapsed().await, [(Epoch(1), OwnerId(1))]);
    world
        .store
        .leave(OwnerId(1))
        .await
        .expect("the owner leaves");
    assert_eq!(lapsed().await, []);

    world.env.advance(harness.lease());
    let four = world.owner(4).await;
    last = world.claimed(&run, four).await;
    assert_eq!(lapsed().await, [(Epoch(4), three)]);
    last.complete(json!("done")).await;
    assert_eq!(lapsed().await, [], "an ended run has nothing to settle");
    world.finish().await;
}

/// Rule 20: a lease that expired and was not taken still appends, and a late beat revives it.
pub async fn an_expired_lease_that_was_not_taken_still_appends(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("slow")).await;
    let two = world.owner(2).await;
    driven(claim(&world, &pen.run, two).await);
    world.env.advance(harness.lease() * 3);
    pen.write(vec![phase(Phase::Executing)]).await;
    world.store.beat(OwnerId(1)).await.expect("it wakes up");
    world.store.beat(two).await.expect("an owner beats");
    driven(claim(&world, &pen.run, two).await);
    pen.write(vec![step("a", json!(1))]).await;
    world.finish().await;
}

/// Rule 18: a lease given back makes the run ready; only the current epoch can give it back.
pub async fn a_released_run_is_ready_for_the_next_worker(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut first = world.driven(task("handed back")).await;
    first.write(vec![phase(Phase::Executing)]).await;
    world.env.advance(Duration::from_secs(5));
    let released = first.release().await;
    assert_eq!((released.driver.clone(), released.epoch), (None, Epoch(1)));
    assert_eq!(
        released.ready_at,
        Some(released.row.updated_at),
        "it is ready now"
    );
    assert!(
        !released.is_orphaned(),
        "a run that was handed back is not an orphan"
    );
    assert_eq!(first.release().await, released, "twice is harmless");
    assert_eq!(claimable(&world).await, [first.run]);
    let held = async |owner| world.store.held(owner).await.expect("what it holds");
    assert_eq!(held(OwnerId(1)).await, [], "it holds nothing any more");

    let two = world.owner(2).await;
    let second = world.claimed(&first.run, two).await;
    let events = super::check_run(&*world.store, &first.run).await;
    let reason = events.iter().find_map(|event| match &event.body {
        Body::RunResumed(resumed) => Some(resumed.reason),
        _ => None,
    });
    assert_eq!(
        reason,
        Some(ClaimReason::Ready),
        "no crash, so no takeover is counted"
    );
    assert_eq!(held(two).await, [(second.run, Epoch(2))]);
    let stale = first.release().await;
    assert_eq!(stale.epoch, Epoch(2));
    assert!(
        stale.driver.is_some_and(|driver| driver.owner.id == two),
        "a fenced driver has no lease"
    );
    // A store that was replaced by a copy may have given the same epoch to two.
    let other = world.store.release(&second.run, Epoch(2), OwnerId(1)).await;
    let other = other.expect("an answer").driver;
    assert!(
        other.is_some_and(|driver| driver.owner.id == two),
        "nobody gives back what is another's"
    );
    assert_eq!(held(two).await, [(second.run, Epoch(2))]);
    driven(claim(&world, &second.run, OwnerId(1)).await);
    world.finish().await;
}

/// Rule 18: a waiting run is ready at its deadline on the wall clock, never when only a person can act.
pub async fn a_waiting_run_is_ready_at_its_deadline_only(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let deadline = TestEnv::START + Duration::from_secs(3600);
    let mut timer = world.driven(task("timer")).await;
    let timed = WaitStarted {
        deadline: Some(deadline),
        on_deadline: Some(OnDeadline::Continue),
        ..wait(1, WaitKind::Timer)
    };
    timer
        .write(vec![phase(Phase::Executing), Draft::new(timed)])
        .await;
    let mut person = world.driven(task("person")).await;
    person
        .write(vec![
            phase(Phase::Executing),
            Draft::new(wait(1, WaitKind::Approval)),
        ])
        .await;
    let released = timer.release().await;
    assert_eq!(
        (released.row.status(), released.ready_at),
        (Status::Waiting, Some(deadline))
    );
    assert_eq!(
        person.release().await.ready_at,
        None,
        "only a person can act"
    );
    for stage in ["released", "reopened"] {
        let owner = world.owner(2).await;
        assert_eq!(claimable(&world).await, [], "{stage}");
        for run in [&timer.run, &person.run] {
            let entry = not_ready(claim(&world, run, owner).await);
            assert_eq!((entry.epoch, entry.driver), (Epoch(1), None), "{stage}");
        }
        world.reopen().await;
    }
    let owner = world.owner(3).await;
    world.env.set_now(deadline - Duration::from_micros(1));
    assert_eq!(claimable(&world).await, []);
    world.env.set_now(deadline);
    assert_eq!(claimable(&world).await, [timer.run]);
    let pen = world.claimed(&timer.run, owner).await;
    assert_eq!(pen.epoch, Epoch(2));
    let approve = Outside::Answer {
        wait: None,
        approved: Some(true),
        value: logreel_core::Payload::null(),
        reason: None,
        by: None,
    };
    let answered = world.command(&person.run, "yes", approve).await;
    assert_eq!(
        answered.entry.ready_at,
        Some(answered.entry.row.updated_at),
        "its wait has ended"
    );
    assert_eq!(claimable(&world).await, [person.run]);
    world.finish().await;
}

/// Rule 18: an answer makes a run ready although it waits for something else too; once a worker has looked
/// and given it back, it waits on.
pub async fn a_wait_that_ended_makes_its_run_ready_beside_another(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let mut pen = world.driven(task("two")).await;
    let (run, deadline) = (pen.run, TestEnv::START + Duration::from_secs(3600));
    let timer = WaitStarted {
        deadline: Some(deadline),
        on_deadline: Some(OnDeadline::Continue),
        ..wait(2, WaitKind::Timer)
    };
    pen.write(vec![
        phase(Phase::Executing),
        Draft::new(wait(1, WaitKind::Approval)),
        Draft::new(timer),
    ])
    .await;
    assert_eq!(pen.release().await.ready_at, Some(deadline));
    assert_eq!(claimable(&world).await, []);
    let approve = Outside::Answer {
        wait: Some(logreel_core::WaitId(1)),
        approved: Some(true),
        value: logreel_core::Payload::null(),
        reason: None,
        by: None,
    };
    let answered = world.command(&run, "yes", approve).await.entry;
    assert_eq!(answered.row.status(), Status::Executing);
    assert!(!answered.is_orphaned());
    assert_eq!(claimable(&world).await, [run]);
    world.reopen().await;
    assert_eq!(claimable(&world).await, [run]);
    let owner = world.owner(2).await;
    let pen = world.claimed(&run, owner).await;
    let looked = pen.release().await;
    assert_eq!(
        (looked.row.status(), looked.ready_at),
        (Status::Waiting, Some(deadline))
    );
    assert_eq!(claimable(&world).await, []);
    world.finish().await;
}

/// Rule 18: a waiting run whose driver died is no orphan: the lease is dropped, and its wait decides.
pub async fn a_waiting_run_of_a_dead_owner_waits_on(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("waits")).await;
    pen.write(vec![
        phase(Phase::Executing),
        Draft::new(wait(1, WaitKind::Approval)),
    ])
    .await;
    world
        .store
        .leave(OwnerId(1))
        .await
        .expect("the owner leaves");
    assert!(!world.entry(&pen.run).await.is_orphaned());
    assert_eq!(claimable(&world).await, []);
    let two = world.owner(2).await;
    let entry = not_ready(claim(&world, &pen.run, two).await);
    assert_eq!((entry.epoch, entry.driver), (Epoch(1), None));
    assert_eq!(
        world.entry(&pen.run).await.driver,
        None,
        "a dead owner's lease is dropped"
    );
    world.finish().await;
}

/// Rule 15: a driver that was killed between announcing a child and making it leaves a parent that waits
/// for nobody; the next one makes the child.
pub async fn a_child_that_was_announced_and_never_made_makes_its_waiting_parent_ready(
    harness: &dyn Harness,
) {
    let world = World::new(harness).await;
    let mut parent = world.driven(task("parent")).await;
    let announced = ChildStarted {
        budget: Budget::default(),
        child: world.env.run_id(),
        detached: false,
        step: step_id("child"),
    };
    let waits = WaitStarted {
        step: Some(step_id("child")),
        ..wait(1, WaitKind::Child)
    };
    let events = vec![
        phase(Phase::Executing),
        Draft::new(announced.clone()),
        Draft::new(waits),
    ];
    parent.write(events).await;
    assert_eq!(
        claimable(&world).await,
        [],
        "its driver is about to make it"
    );
    parent.release().await;
    assert_eq!(claimable(&world).await, [parent.run]);
    // Its making was under way all the same, and is done after the driver has left.
    let new = NewRun {
        run: announced.child,
        started: from_parent("child", parent.run, Relation::Child),
        blobs: Vec::new(),
        owner: None,
        then: Vec::new(),
    };
    world.store.create(new).await.expect("a child is created");
    let two = world.owner(2).await;
    not_ready(claim(&world, &parent.run, two).await);
    let found = claimable(&world).await;
    assert_eq!(found, [announced.child], "its parent stands before nobody");
    world.finish().await;
}

/// Rule 18: a child's end makes a parent that waits for it ready, whichever came first.
pub async fn a_childs_end_makes_its_waiting_parent_ready(harness: &dyn Harness) {
    let world = World::new(harness).await;
    for waits_first in [true, false] {
        let mut parent = world.driven(task("parent")).await;
        let child = world.env.run_id();
        let announced = ChildStarted {
            budget: Budget::default(),
            child,
            detached: false,
            step: step_id("child"),
        };
        parent
            .write(vec![phase(Phase::Executing), Draft::new(announced)])
            .await;
        let started = from_parent("child", parent.run, Relation::Child);
        let new = crate::NewRun {
            run: child,
            started,
            blobs: vec![],
            owner: None,
            then: Vec::new(),
        };
        world.store.create(new).await.expect("a child is created");
        let waits = WaitStarted {
            step: Some(step_id("child")),
            ..wait(1, WaitKind::Child)
        };
        let mut bell = world.store.watch(&parent.run);
        if waits_first {
            parent.write(vec![Draft::new(waits)]).await;
            assert_eq!(parent.release().await.ready_at, None, "the child lives");
            assert_eq!(claimable(&world).await, [child]);
            world.cancel(&child).await;
        } else {
            world.cancel(&child).await;
            parent.write(vec![Draft::new(waits)]).await;
            parent.release().await;
        }
        super::read::soon("the parent's doorbell rings", bell.rung()).await;
        let ready = world.entry(&parent.run).await;
        assert_eq!(
            ready.row.status(),
            Status::Waiting,
            "its driver ends the wait"
        );
        assert!(
            ready.ready_at.is_some_and(|at| at <= world.env.now()),
            "{:?}",
            ready.ready_at
        );
        assert_eq!(
            claimable(&world).await,
            [parent.run],
            "waits first: {waits_first}"
        );
        let owner = world.owner(2).await;
        world.claimed(&parent.run, owner).await;
    }
    world.finish().await;
}

/// Rule 15: children that wait are found when their parent has ended, oldest first, and no others.
pub async fn waiting_children_of_an_ended_parent_are_found(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let child = async |parent: RunId| {
        let started = from_parent("child", parent, Relation::Child);
        world.create(started, None).await.row.run
    };
    let waiting = async |parent: RunId| {
        let run = child(parent).await;
        let pause = Outside::Pause { reason: None };
        world.command(&run, "pause", pause).await;
        run
    };
    let forsaken = async |limit| {
        let found = world.store.forsaken(limit).await;
        found.expect("forsaken children")
    };
    let lives = world.driven(task("parent")).await;
    let mut ends = world.driven(task("parent")).await;
    waiting(lives.run).await;
    let first = waiting(ends.run).await;
    child(ends.run).await;
    let second = waiting(ends.run).await;
    assert_eq!(forsaken(10).await, []);
    ends.complete(json!("done")).await;
    ends.release().await;
    assert_eq!(forsaken(10).await, [first, second]);
    assert_eq!(forsaken(1).await, [first]);
    world.cancel(&first).await;
    assert_eq!(forsaken(10).await, [second]);
    world.finish().await;
}

/// Rule 18: an ended run is claimed by nobody, whoever held it.
pub async fn an_ended_run_is_never_claimed(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("ended")).await;
    pen.complete(json!("done")).await;
    let two = world.owner(2).await;
    driven(claim(&world, &pen.run, two).await);
    world
        .store
        .leave(OwnerId(1))
        .await
        .expect("the owner leaves");
    assert_eq!(claimable(&world).await, []);
    let entry = not_ready(claim(&world, &pen.run, two).await);
    assert_eq!(
        (entry.row.status(), entry.epoch),
        (Status::Completed, Epoch(1))
    );
    world.finish().await;
}

/// Rule 14: an owner that leaves gives back what has ended; it will record no late fact any more.
pub async fn leaving_gives_the_leases_of_ended_runs_back(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("ended")).await;
    pen.complete(json!("done")).await;
    world
        .store
        .leave(OwnerId(1))
        .await
        .expect("the owner leaves");
    assert_eq!(world.entry(&pen.run).await.driver, None);
    let error = pen
        .try_write(vec![late(step("a", json!(1)))])
        .await
        .expect_err("it left");
    assert!(
        matches!(error, crate::AppendError::Ended(Status::Completed)),
        "{error:?}"
    );
    world.finish().await;
}

/// Rule 10: nothing is scheduled from `at`; a clock that went back hides no queued run.
pub async fn a_clock_that_went_back_hides_no_ready_run(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let queued = world.create(task("queued"), None).await.row.run;
    let released = world.driven(task("released")).await;
    released.release().await;
    world
        .env
        .set_now(TestEnv::START - Duration::from_secs(86_400));
    assert_eq!(claimable(&world).await, [queued, released.run]);
    let owner = world.owner(2).await;
    world.claimed(&queued, owner).await;
    world.claimed(&released.run, owner).await;
    world.finish().await;
}

/// Rule 17: after 5 takeovers without a new result a run waits as `crash_loop`; a result, or a
/// person's resume, resets the count.
pub async fn five_takeovers_without_a_result_are_a_crash_loop(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("crashes")).await;
    pen.write(vec![phase(Phase::Executing)]).await;
    let mut owner = 1;
    let mut crash = async |expected: Option<u32>| {
        world
            .store
            .leave(OwnerId(owner))
            .await
            .expect("the owner leaves");
        owner += 1;
        let next = world.owner(owner).await;
        let outcome = claim(&world, &pen.run, next).await;
        if let (Some(takeovers), ClaimOutcome::Claimed(entry)) = (expected, &outcome) {
            assert_eq!(entry.row.pulse.takeovers, takeovers);
        } else {
            assert_eq!(expected, None, "{outcome:?}");
        }
        outcome
    };
    for takeover in 1..=4 {
        crash(Some(takeover)).await;
    }
    crash(Some(5)).await;
    let mut progress = world.pen(&world.entry(&pen.run).await);
    progress.write(vec![step("got somewhere", json!(1))]).await;
    for takeover in 1..=5 {
        crash(Some(takeover)).await;
    }
    let epoch = world.entry(&pen.run).await.epoch;
    let ClaimOutcome::CrashLoop(stuck) = crash(None).await else {
        panic!("it waits for a person from now on")
    };
    assert_eq!(
        stuck,
        not_ready(claim(&world, &pen.run, world.owner(98).await).await)
    );
    assert_eq!(
        (stuck.row.status(), stuck.epoch),
        (Status::Waiting, epoch),
        "no new epoch begins"
    );
    assert_eq!(
        (stuck.driver.clone(), stuck.ready_at),
        (None, None),
        "only a person can act"
    );
    assert_eq!(stuck.row.facts.waits[0].wait.kind, WaitKind::CrashLoop);
    assert_eq!(claimable(&world).await, []);

    world
        .command(
            &pen.run,
            "resume",
            Outside::Resume {
                by: Some("a person".into()),
            },
        )
        .await;
    let owner = world.owner(99).await;
    world.claimed(&pen.run, owner).await;
    assert_eq!(
        world.entry(&pen.run).await.row.pulse.takeovers,
        0,
        "the count begins anew"
    );
    world.finish().await;
}

/// A worker gets the runs it can drive, oldest first, and no more than it asked for.
pub async fn claimable_lists_what_a_worker_can_drive_oldest_first(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut runs = Vec::new();
    for (agent, kind) in [
        ("a", RunKind::Task),
        ("b", RunKind::Task),
        ("a", RunKind::Agent),
        ("c", RunKind::Task),
        ("x", RunKind::External),
    ] {
        let started = RunStarted {
            kind,
            ..task(agent)
        };
        runs.push(world.create(started, None).await.row.run);
    }
    let orphan = world.driven(task("a")).await.run;
    world
        .store
        .leave(OwnerId(1))
        .await
        .expect("the owner leaves");
    let named = |kind, agents: &[&str]| Claimable {
        kind,
        agents: Some(agents.iter().map(|agent| Arc::from(*agent)).collect()),
        specs: None,
    };
    for (what, limit, expected) in [
        (vec![ANY_TASK], 10, vec![runs[0], runs[1], runs[3], orphan]),
        (vec![ANY_TASK], 2, vec![runs[0], runs[1]]),
        (
            vec![named(RunKind::Task, &["a", "c"])],
            10,
            vec![runs[0], runs[3], orphan],
        ),
        (
            vec![named(RunKind::Agent, &["a"]), named(RunKind::Task, &["b"])],
            10,
            vec![runs[1], runs[2]],
        ),
        (vec![named(RunKind::Task, &[])], 10, vec![]),
        (vec![], 10, vec![]),
    ] {
        let found = world
            .store
            .claimable(&what, &[], limit)
            .await
            .expect("claimable runs");
        assert_eq!(found, expected, "{what:?}");
    }
    world.finish().await;
}

/// A worker for some labels takes only runs that carry them all, queued or orphaned; what it leaves alone
/// does not hide the rest.
pub async fn claimable_runs_are_chosen_by_label(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let labelled = |labels: &[(&str, &str)]| RunStarted {
        labels: labels.iter().copied().map(pair).collect(),
        ..task("labelled")
    };
    let (gpu, eu) = (("pool", "gpu"), ("region", "eu"));
    let plain = world.create(labelled(&[]), None).await.row.run;
    let other = world.create(labelled(&[("pool", "cpu"), eu]), None).await;
    let both = world.create(labelled(&[gpu, eu]), None).await.row.run;
    let one = world.create(labelled(&[gpu]), None).await.row.run;
    let orphan = world.driven(labelled(&[eu, gpu])).await.run;
    world
        .store
        .leave(OwnerId(1))
        .await
        .expect("the owner leaves");
    for (labels, limit, expected) in [
        (vec![gpu], 10, vec![both, one, orphan]),
        (vec![gpu], 1, vec![both]),
        (vec![gpu, eu], 10, vec![both, orphan]),
        (vec![("pool", "tpu")], 10, vec![]),
        (vec![("gpu", "pool")], 10, vec![]),
        (vec![], 10, vec![plain, other.row.run, both, one, orphan]),
    ] {
        let labels: Vec<_> = labels.into_iter().map(pair).collect();
        let found = world
            .store
            .claimable(&[ANY_TASK], &labels, limit)
            .await
            .expect("claimable runs");
        assert_eq!(found, expected, "{labels:?}");
    }
    world.finish().await;
}

/// Owners are listed with what they said they are there for, and what waits for them with how long it does.
pub async fn who_drives_and_what_waits_for_them_is_told(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let (one, two) = (world.owner(1).await, world.owner(2).await);
    let duty = Duty {
        kind: DutyKind::Worker,
        version: "1.2.3".to_owned(),
        concurrency: Some(4),
        labels: vec![("gpu".to_owned(), "true".to_owned())],
        leaving: false,
    };
    let assigned = world.store.assign(one, &duty).await;
    assigned.expect("an owner says what it is there for");
    let moment = harness.lease() / 10;
    let queued = world.create(task("queued"), None).await.row.run;
    world.env.advance(moment);
    let mut pen = world.claimed(&queued, one).await;
    pen.write(vec![phase(Phase::Executing)]).await;
    let waits = world.create(task("waits"), None).await.row.run;
    world.env.advance(moment);
    let owners = async || {
        let owners = world.store.owners().await.expect("owners");
        let told = owners.into_iter();
        let told = told.map(|it| (it.owner.id, it.duty, it.running, it.alive));
        told.collect::<Vec<_>>()
    };
    let expected = [(one, Some(duty.clone()), 1, true), (two, None, 0, true)];
    assert_eq!(owners().await, expected);
    let backlog = async || world.store.backlog().await.expect("a backlog");
    let expected = Backlog {
        ready: 1,
        oldest_ready: Some((waits, moment)),
        orphans: 0,
        oldest_orphan: None,
        claims: vec![moment],
    };
    assert_eq!(backlog().await, expected);
    let leaving = Duty {
        leaving: true,
        ..duty
    };
    let assigned = world.store.assign(one, &leaving).await;
    assigned.expect("it may say so again");
    world.store.leave(one).await.expect("it leaves");
    let expected = [(one, Some(leaving), 1, false), (two, None, 0, true)];
    assert_eq!(
        owners().await,
        expected,
        "for as long as it holds something"
    );
    let after = backlog().await;
    let orphan = after.oldest_orphan.map(|(run, _)| run);
    assert_eq!((after.orphans, orphan), (1, Some(queued)));
    assert_eq!(world.claimed(&queued, two).await.epoch, Epoch(2));
    assert_eq!(backlog().await.orphans, 0);
    world.finish().await;
}
