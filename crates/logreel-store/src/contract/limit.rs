//! How many runs with one key are driven at once: SEMANTICS 18, 20 and 35.

use logreel_core::event::{Phase, Relation, RunKind, RunLimit, RunStarted, WaitKind};
use logreel_core::{Draft, Epoch, Outside, RunId, Status};
use serde_json::json;
use tokio::task::JoinSet;

use super::facts::{phase, step, task, wait};
use super::read::soon;
use super::{Harness, World};
use crate::{
    AppendError, ClaimOutcome, Claimable, Created, Entry, Env, ForkAt, NewFork, NewRun, OwnerId,
};

const RACERS: u64 = 20;

fn limited(agent: &str, key: &str, max: u32) -> RunStarted {
    let key = key.to_owned();
    RunStarted {
        limit: Some(RunLimit { key, max }),
        ..task(agent)
    }
}

async fn claim(world: &World<'_>, run: &RunId, owner: OwnerId) -> ClaimOutcome {
    let claimed = world.store.claim(run, owner).await;
    claimed.expect("a claim is answered")
}

async fn claimable(world: &World<'_>, limit: usize) -> Vec<RunId> {
    let tasks = [Claimable {
        kind: RunKind::Task,
        agents: None,
        specs: None,
    }];
    let found = world.store.claimable(&tasks, &[], limit).await;
    found.expect("claimable runs")
}

/// It is in line, and the claim changed nothing.
async fn stays_in_line(world: &World<'_>, run: &RunId, owner: OwnerId) {
    let before = world.entry(run).await;
    let ClaimOutcome::Limited(entry) = claim(world, run, owner).await else {
        panic!("{run} is over its limit")
    };
    assert_eq!(entry, before, "it is as it was");
    assert!(in_line(world, &entry), "{entry:?}");
    assert!(!claimable(world, 100).await.contains(run));
}

fn in_line(world: &World<'_>, entry: &Entry) -> bool {
    let now = world.env.now();
    entry.over_limit && entry.is_in_line(now) && !entry.is_worth_a_claim(now)
}

/// Of workers that race for runs with one key, as many get one as the limit says.
pub async fn of_claims_racing_for_places_as_many_win_as_there_are(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let second = world.second().await;
    let mut runs = Vec::new();
    for _ in 0..RACERS {
        runs.push(world.create(limited("queued", "k", 3), None).await.row.run);
    }
    let mut tasks = JoinSet::new();
    for racer in 0..RACERS {
        let owner = world.owner(racer + 1).await;
        let store = [&world.store, &second][(racer % 2) as usize].clone();
        let mut runs = runs.clone();
        runs.rotate_left(racer as usize);
        tasks.spawn(async move {
            let mut won = Vec::new();
            for run in runs {
                match store.claim(&run, owner).await.expect("a claim is answered") {
                    ClaimOutcome::Claimed(_) => won.push(run),
                    ClaimOutcome::Limited(_) | ClaimOutcome::Driven(_) => {}
                    other => panic!("it is ready: {other:?}"),
                }
            }
            won
        });
    }
    let mut won = Vec::new();
    while let Some(answer) = soon("all claims end", tasks.join_next()).await {
        won.extend(answer.expect("no task panics"));
    }
    assert_eq!(won.len(), 3, "{won:?}");
    let mut driven = 0;
    for run in &runs {
        let entry = world.entry(run).await;
        let is_driven = entry.is_driven();
        driven += usize::from(is_driven);
        assert_eq!(is_driven, won.contains(run));
        assert_eq!(in_line(&world, &entry), !is_driven, "{entry:?}");
        assert_eq!(entry.row.status(), Status::Created);
    }
    assert_eq!(driven, 3);
    assert_eq!(claimable(&world, 100).await, []);
    drop(second);
    world.finish().await;
}

/// A run whose creator would drive it, and which is one too many, is created without a driver.
pub async fn of_creates_racing_for_places_as_many_drive_as_there_are(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let second = world.second().await;
    let mut tasks = JoinSet::new();
    for racer in 0..RACERS {
        let owner = world.owner(racer + 1).await;
        let store = [&world.store, &second][(racer % 2) as usize].clone();
        let new = NewRun {
            run: world.env.run_id(),
            started: limited("created", "k", 3),
            then: Vec::new(),
            blobs: Vec::new(),
            owner: Some(owner),
        };
        tasks.spawn(async move { store.create(new).await.expect("a run is created") });
    }
    let mut driven = 0;
    while let Some(created) = soon("all creates end", tasks.join_next()).await {
        let Ok(Created::New(entry)) = created else {
            panic!("{created:?}")
        };
        driven += usize::from(entry.is_driven());
        let epoch = if entry.is_driven() {
            Epoch(1)
        } else {
            Epoch::NONE
        };
        assert_eq!((entry.epoch, entry.row.epoch), (epoch, epoch));
        assert_eq!(entry.over_limit, !entry.is_driven());
        assert_eq!(entry.ready_at.is_some(), !entry.is_driven(), "it is ready");
    }
    assert_eq!(driven, 3);
    drop(second);
    world.finish().await;
}

/// A place is a lease: it is free when that is given back, whether the run waits, has ended or is
/// handed on, and when its holder is dead. Whoever is next in line is told.
pub async fn a_place_is_free_after_a_release_a_wait_an_end_and_a_death(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let (one, two) = (world.owner(1).await, world.owner(2).await);
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(world.create(limited("in line", "k", 1), None).await.row.run);
    }
    // Handed on: the place is free, also for whoever gave it back.
    let first = world.claimed(&runs[0], one).await;
    stays_in_line(&world, &runs[1], two).await;
    let mut bell = world.store.watch(&runs[1]);
    first.release().await;
    assert!(soon("the next in line is told", bell.rung()).await);
    assert_eq!(claimable(&world, 100).await, runs);

    // It waits: no place once its lease was given back, and in line again once it is ready.
    let mut waits = world.claimed(&runs[1], one).await;
    stays_in_line(&world, &runs[0], two).await;
    let (executing, paused) = (phase(Phase::Executing), wait(1, WaitKind::Paused));
    waits.write(vec![executing, Draft::new(paused)]).await;
    waits.release().await;
    let mut ends = world.claimed(&runs[2], two).await;
    let resume = Outside::Resume { by: None };
    let resumed = world.command(&waits.run, "resume", resume).await.entry;
    assert!(in_line(&world, &resumed), "{resumed:?}");
    stays_in_line(&world, &waits.run, one).await;

    // It ends: its driver may still record late facts, and holds its place until it has.
    ends.complete(json!("done")).await;
    stays_in_line(&world, &waits.run, one).await;
    ends.release().await;
    let mut dies = world.claimed(&runs[1], one).await;

    // Its driver dies: the place is free at once, and the orphan is in line with the others.
    dies.write(vec![step("a", json!(1))]).await;
    stays_in_line(&world, &runs[3], two).await;
    world.store.leave(one).await.expect("the owner leaves");
    assert_eq!(
        claimable(&world, 100).await,
        [runs[0], runs[1], runs[3], runs[4]]
    );
    let last = world.claimed(&runs[3], two).await;
    assert!(world.entry(&dies.run).await.is_orphaned());
    stays_in_line(&world, &dies.run, two).await;
    last.release().await;
    let three = world.owner(3).await;
    let taken = world.claimed(&dies.run, three).await;
    let entry = world.entry(&taken.run).await;
    assert_eq!(entry.row.pulse.takeovers, 1, "its crash is not forgotten");

    // Nobody is told of a place in vain: a run that is driven is never over its limit.
    assert!(!entry.over_limit);
    world.finish().await;
}

/// A holder that fell silent may be frozen: whoever takes its place fences it, so that it does not go
/// on beside them once it wakes.
pub async fn a_place_whose_lease_ran_out_is_taken_from_its_holder(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut frozen = world.driven(limited("frozen", "k", 1)).await;
    frozen.write(vec![phase(Phase::Executing)]).await;
    let two = world.owner(2).await;
    let other = world.create(limited("other", "k", 1), Some(two)).await;
    assert!(in_line(&world, &other), "{other:?}");
    stays_in_line(&world, &other.row.run, two).await;

    world.env.advance(harness.lease());
    world.store.beat(two).await.expect("an owner beats");
    let other = world.claimed(&other.row.run, two).await;
    world.store.beat(OwnerId(1)).await.expect("it wakes up");
    let error = frozen.try_write(vec![step("a", json!(1))]).await;
    assert!(
        matches!(error, Err(AppendError::Fenced { .. })),
        "{error:?}"
    );
    let entry = world.entry(&frozen.run).await;
    assert_eq!(entry.driver, None, "{entry:?}");
    assert!(in_line(&world, &entry));
    let lapsed = world.store.lapsed(&frozen.run).await.expect("lapsed");
    assert_eq!(lapsed.len(), 1, "it may still be about to write");
    assert!(lapsed[0].taken_ago.is_none_or(|ago| ago.is_zero()));

    other.release().await;
    let again = world.claimed(&frozen.run, two).await;
    assert!(again.epoch > frozen.epoch);
    world.finish().await;
}

/// Each run keeps to its own `max`, other keys have places of their own, and runs in line are not in
/// the way of others when a worker looks for some.
pub async fn runs_over_a_limit_hide_nobody(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let (one, two) = (world.owner(1).await, world.owner(2).await);
    world.create(limited("driven", "k", 1), Some(one)).await;
    let mut in_line = Vec::new();
    for _ in 0..5 {
        in_line.push(world.create(limited("in line", "k", 1), None).await.row.run);
    }
    let wider = world.create(limited("wider", "k", 2), None).await.row.run;
    let other = world.create(limited("other", "l", 1), None).await.row.run;
    let free = world.create(task("free"), None).await.row.run;
    assert_eq!(claimable(&world, 1).await, [wider]);
    assert_eq!(claimable(&world, 100).await, [wider, other, free]);
    for run in [wider, other, free] {
        world.claimed(&run, two).await;
    }
    for run in in_line {
        stays_in_line(&world, &run, two).await;
    }
    assert_eq!(claimable(&world, 100).await, []);
    world.finish().await;
}

/// A fork is one more run with the key.
pub async fn a_fork_keeps_to_the_limit_of_its_parent(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut parent = world.driven(limited("parent", "k", 1)).await;
    parent
        .write(vec![phase(Phase::Executing), step("a", json!(1))])
        .await;
    let fork = async || {
        let run = world.env.run_id();
        let new = NewFork {
            owner: Some(OwnerId(1)),
            ..NewFork::of(run, parent.run, ForkAt::Last, Relation::Fork)
        };
        let created = world.store.fork(new).await.expect("a fork is made");
        created.entry().clone()
    };
    let first = fork().await;
    assert_eq!((&first.driver, first.epoch), (&None, Epoch::NONE));
    assert!(in_line(&world, &first), "{first:?}");
    parent.release().await;
    let second = fork().await;
    assert!(second.is_driven(), "{second:?}");
    stays_in_line(&world, &first.row.run, OwnerId(1)).await;
    world.finish().await;
}
