//! Erasing runs (SEMANTICS 33).

use logreel_core::codec::StoredBody;
use logreel_core::event::{MessageAdded, Phase, Relation, RunStarted};
use logreel_core::{Blob, Digest, Draft, Epoch, Json, Outside, Payload, RunId, Seq, Status};
use serde_json::json;

use super::facts::{append_id, in_session, phase, step, task};
use super::import::{elsewhere, packed};
use super::world::{Pen, World, list_all, read_all};
use super::{Harness, check_run};
use crate::{
    AppendError, CreateError, Env, EraseError, Error, Filter, ForkAt, ForkError, Heirs,
    ImportError, NewFork, NewRun,
};

const ALL: Heirs = Heirs {
    forks: true,
    continuations: true,
};

fn node(text: &str, previous: Option<Digest>) -> (Draft, Blob) {
    let node = json!({"message": text, "previous": previous}).to_string();
    let blob = Blob::new(node.into_bytes());
    let draft = Draft::new(MessageAdded {
        length: text.len() as u64,
        node: blob.digest(),
        previous,
        queued: None,
        redacted: 0,
        role: "user".to_owned(),
    });
    (draft, blob)
}

async fn say(pen: &mut Pen, text: &str, previous: Option<Digest>) -> Digest {
    let (draft, blob) = node(text, previous);
    let digest = blob.digest();
    let mut append = pen.append(vec![draft]);
    append.blobs.push(blob);
    pen.send(append).await.expect("a message is added");
    digest
}

fn fork_of(world: &World<'_>, parent: RunId) -> NewFork {
    NewFork::of(world.env.run_id(), parent, ForkAt::Last, Relation::Fork)
}

/// Bodies, key, blobs of its own, words and what the row says are gone; digests, times, kinds, status and
/// counts are what they were, and the chain holds. A blob that another run refers to stays.
pub async fn an_erased_run_leaves_headers_status_and_counts(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let (input, own) = Payload::of(Json::from(json!("secret ".repeat(11_000))));
    let own = own.expect("a long value is a blob");
    let (output, common) = Payload::of(Json::from(json!("common ".repeat(11_000))));
    let common = common.expect("a long value is a blob");
    let owner = world.owner(1).await;
    let mut pens = Vec::new();
    for agent in ["secretive", "other"] {
        let started = RunStarted {
            input: if agent == "other" {
                Payload::null()
            } else {
                input.clone()
            },
            labels: [("secret".to_owned(), "label".to_owned())].into(),
            key: Some(format!("key of {agent}")),
            ..in_session(agent, agent)
        };
        let new = NewRun {
            run: world.env.run_id(),
            started,
            then: Vec::new(),
            blobs: if agent == "other" {
                Vec::new()
            } else {
                vec![own.clone()]
            },
            owner: Some(owner),
        };
        let entry = world
            .store
            .create(new)
            .await
            .expect("it is made")
            .entry()
            .clone();
        let mut pen = world.pen(&entry);
        let finished = logreel_core::event::StepFinished {
            attempt: 1,
            effect: logreel_core::event::Effect::Read,
            input_digest: None,
            output: output.clone(),
            started_at: Some(logreel_core::Timestamp::EPOCH),
            step: super::facts::step_id("large"),
        };
        let mut append = pen.append(vec![
            phase(Phase::Executing),
            step("small", json!("secret result")),
            Draft::new(finished),
        ]);
        append.blobs.push(common.clone());
        pen.send(append).await.expect("it lands");
        pens.push(pen);
    }
    let mut pen = pens.remove(0);
    let run = pen.run;
    let refused = world.store.erase(&run, ALL).await;
    assert!(
        matches!(refused, Err(EraseError::NotEnded { .. })),
        "{refused:?}"
    );
    let named = append_id("secret name");
    let append = pen.append_as(named.clone(), vec![step("named", json!(1))]);
    pen.send(append).await.expect("it lands");
    pen.complete(json!("secret output")).await;
    let refused = world.store.erase(&run, ALL).await;
    assert!(matches!(refused, Err(EraseError::Driven(_))), "{refused:?}");
    let before = pen.release().await;
    let log = read_all(&*world.store, &run, 100).await;
    let erased = world
        .store
        .erase(&run, Heirs::default())
        .await
        .expect("it is erased");
    assert_eq!(erased, [run]);
    let after = world.entry(&run).await;
    assert!(after.erased && after.row.status() == Status::Completed);
    assert_eq!(
        (after.row.head, after.epoch),
        (before.row.head, before.epoch)
    );
    assert_eq!(after.row.pulse.usage, before.row.pulse.usage);
    let (facts, ended) = (&after.row.facts, after.row.facts.ended.as_ref());
    assert!(facts.input.is_null() && facts.labels.is_empty());
    assert_eq!(
        ended.map(|it| it.at),
        before.row.facts.ended.as_ref().map(|it| it.at)
    );
    assert!(!format!("{after:?}").contains("secret "), "{after:?}");
    assert_eq!(world.store.key(&run).await.expect("an answer"), None);
    let left = read_all(&*world.store, &run, 2).await;
    for (left, was) in left.iter().zip(&log) {
        assert!(matches!(left.body, StoredBody::Erased(_)));
        assert_eq!(
            (left.seq, left.at, &left.kind, left.digest, left.epoch),
            (was.seq, was.at, &was.kind, was.digest, was.epoch)
        );
    }
    assert_eq!(left.len(), log.len());
    check_run(&*world.store, &run).await;
    let answer = world.store.landed(&run, &named).await;
    assert_eq!(answer.expect("an answer"), None, "its name is gone");
    let decoded = world.store.events(&run, Seq::FIRST, 9).await;
    assert!(
        matches!(decoded, Err(Error::Erased(Seq::FIRST))),
        "{decoded:?}"
    );
    assert_eq!(
        world.store.blob(&own.digest()).await.expect("an answer"),
        None
    );
    let kept = world.store.blob(&common.digest()).await.expect("an answer");
    assert_eq!(kept, Some(common.bytes().to_vec()), "another run needs it");
    let found = |filter: Filter| {
        let store = &world.store;
        async move { list_all(&**store, &filter, 9).await.len() }
    };
    let labels = vec![("secret".to_owned(), "label".to_owned())];
    assert_eq!(
        found(Filter {
            labels,
            ..Filter::default()
        })
        .await,
        1
    );
    let search = Some("secret output".to_owned());
    assert_eq!(
        found(Filter {
            search,
            ..Filter::default()
        })
        .await,
        0
    );
    // Nothing goes on from it.
    let forked = world.store.fork(fork_of(&world, run)).await;
    assert!(
        matches!(forked, Err(ForkError::Erased(it)) if it == run),
        "{forked:?}"
    );
    let late = pen
        .try_write(vec![super::facts::late(super::facts::custom(
            "x",
            json!(0),
        ))])
        .await;
    assert!(matches!(late, Err(AppendError::Ended(_))), "{late:?}");
    let cancel = Outside::Cancel { reason: None };
    let id = append_id("cancel");
    let cancelled = world
        .store
        .command(&run, &id, &cancel, Vec::new())
        .await
        .expect("an answer");
    assert!(cancelled.answer.is_err() && cancelled.events.is_empty());
    let again = world.store.create(NewRun {
        run,
        started: task("another"),
        then: Vec::new(),
        blobs: Vec::new(),
        owner: None,
    });
    assert!(matches!(again.await, Err(CreateError::Conflict { .. })));
    assert_eq!(
        world
            .store
            .erase(&run, Heirs::default())
            .await
            .expect("twice is harmless"),
        [run]
    );
    pens[0].complete(json!(0)).await;
    pens[0].release().await;
    world.finish().await;
}

/// Forks share its log, and a run that goes on from its conversation shares that: while they are there it
/// stays, or they go with it. None of them may be at work.
pub async fn a_run_that_others_hold_is_erased_with_them_only(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(in_session("first", "s")).await;
    let first = pen.run;
    let one = say(
        &mut pen,
        "a secret that is long enough to be shared with its event",
        None,
    )
    .await;
    pen.write(vec![step("one", json!("a secret"))]).await;
    let forked = world
        .store
        .fork(fork_of(&world, first))
        .await
        .expect("a fork");
    let fork = forked.entry().row.run;
    pen.complete(json!(1)).await;
    pen.release().await;
    let started = RunStarted {
        context: Some(one),
        ..in_session("second", "s")
    };
    let second = world.create(started, None).await;
    let second_run = second.row.run;
    // One that says the same by itself goes on from nobody.
    let mut alike = world.driven(in_session("alike", "t")).await;
    say(
        &mut alike,
        "a secret that is long enough to be shared with its event",
        None,
    )
    .await;
    let needed = |with: Heirs| {
        let store = &world.store;
        async move {
            match store.erase(&first, with).await {
                Err(EraseError::Needed {
                    forks,
                    continuations,
                    ..
                }) => (forks, continuations),
                other => panic!("it is needed, not {other:?}"),
            }
        }
    };
    assert_eq!(
        needed(Heirs::default()).await,
        (vec![fork], vec![second_run])
    );
    let with_forks = Heirs {
        forks: true,
        continuations: false,
    };
    let refused = world.store.erase(&first, with_forks).await;
    assert!(
        matches!(refused, Err(EraseError::NotEnded { run, .. }) if run == fork),
        "{refused:?}"
    );
    world.cancel(&fork).await;
    assert_eq!(needed(with_forks).await, (vec![], vec![second_run]));
    world.cancel(&second_run).await;
    assert!(
        !world.entry(&first).await.erased,
        "a refusal has changed nothing"
    );
    check_run(&*world.store, &first).await;
    let mut erased = world
        .store
        .erase(&first, ALL)
        .await
        .expect("all of them go");
    erased.sort();
    let mut all = vec![first, fork, second_run];
    all.sort();
    assert_eq!(erased, all);
    for run in &all {
        assert!(world.entry(run).await.erased);
        check_run(&*world.store, run).await;
    }
    let kept = world.store.blob(&one).await.expect("an answer");
    assert!(kept.is_some(), "the one that says the same still has it");
    alike.complete(json!(0)).await;
    alike.release().await;
    assert_eq!(world.entry(&alike.run).await.epoch, Epoch(1));
    // A fork alone is erased without its parent.
    let mut parent = world.driven(task("parent")).await;
    parent.write(vec![step("one", json!(1))]).await;
    let forked = world
        .store
        .fork(fork_of(&world, parent.run))
        .await
        .expect("a fork");
    let fork = forked.entry().row.run;
    world.cancel(&fork).await;
    world
        .store
        .erase(&fork, Heirs::default())
        .await
        .expect("it is erased");
    check_run(&*world.store, &fork).await;
    check_run(&*world.store, &parent.run).await;
    let records = read_all(&*world.store, &fork, 9).await;
    let is_text = |record: &logreel_core::Record| matches!(record.body, StoredBody::Text(_));
    let bodies: Vec<bool> = records.iter().map(is_text).collect();
    assert_eq!(
        bodies,
        [true, true, false, false],
        "what it shares is its parent's"
    );
    world.finish().await;
}

/// A run of the session that goes on from a node, says something of its own, if anything, and ends.
async fn goes_on(world: &World<'_>, from: Option<Digest>, says: Option<&str>) -> (RunId, Digest) {
    let started = RunStarted {
        context: from,
        ..in_session("talker", "s")
    };
    let mut pen = world.driven(started).await;
    let node = match says {
        Some(text) => say(&mut pen, text, from).await,
        None => from.expect("it goes on from something"),
    };
    pen.complete(json!(0)).await;
    pen.release().await;
    (pen.run, node)
}

/// What was said is held by everyone whose conversation goes on from it, also when the run between is gone.
/// A run that only began with a node did not make it: who began with the same one does not go on from it.
pub async fn a_conversation_is_held_by_all_that_go_on_from_it(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let (first, one) = goes_on(&world, None, Some("what the first one said")).await;
    let (second, two) = goes_on(&world, Some(one), Some("what the second one said")).await;
    let (third, _) = goes_on(&world, Some(two), Some("what the third one said")).await;
    let (silent, _) = goes_on(&world, Some(one), None).await;
    let held = |run: RunId| {
        let store = &world.store;
        async move {
            match store.erase(&run, Heirs::default()).await {
                Err(EraseError::Needed {
                    forks,
                    mut continuations,
                    ..
                }) => {
                    assert_eq!(forks, []);
                    continuations.sort();
                    continuations
                }
                other => panic!("it is needed, not {other:?}"),
            }
        }
    };
    let sorted = |mut runs: Vec<RunId>| {
        runs.sort();
        runs
    };
    assert_eq!(held(first).await, sorted(vec![second, third, silent]));
    assert_eq!(held(second).await, [third]);
    world.store.delete(&second).await.expect("it is deleted");
    assert_eq!(held(first).await, sorted(vec![third, silent]));
    let erased = world.store.erase(&silent, ALL).await;
    assert_eq!(erased.expect("nobody goes on from it"), [silent]);
    assert!(!world.entry(&third).await.erased && !world.entry(&first).await.erased);
    let said = world.store.blob(&one).await.expect("an answer");
    assert!(said.is_some(), "the others still need it");
    let erased = world.store.erase(&first, ALL).await.expect("both go");
    assert_eq!(sorted(erased), sorted(vec![first, third]));
    for node in [one, two] {
        let left = world.store.blob(&node).await.expect("an answer");
        assert_eq!(left, None, "nobody is left who said or heard it");
    }
    world.finish().await;
}

/// Who brought a run's events along holds them, whatever run is between the two.
pub async fn a_fork_that_came_whole_holds_what_its_forebears_held(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let there = elsewhere(&world);
    let mut pen = there.driven(task("first")).await;
    pen.write(vec![
        phase(Phase::Executing),
        step("one", json!("a secret")),
    ])
    .await;
    let first = pen.run;
    let mut runs = vec![first];
    for _ in 0..2 {
        let parent = runs[runs.len() - 1];
        let forked = there.store.fork(fork_of(&there, parent)).await;
        runs.push(forked.expect("a fork").entry().row.run);
    }
    let last = runs[2];
    for run in [runs[1], last] {
        there.cancel(&run).await;
    }
    pen.complete(json!(1)).await;
    pen.release().await;
    // The one between stays there.
    for run in [first, last] {
        let import = packed(&*there.store, &run, None).await;
        world.store.import(import).await.expect("it is taken in");
    }
    match world.store.erase(&first, Heirs::default()).await {
        Err(EraseError::Needed { forks, .. }) => assert_eq!(forks, [last]),
        other => panic!("it is needed, not {other:?}"),
    }
    let mut erased = world.store.erase(&first, ALL).await.expect("both go");
    erased.sort();
    let mut both = vec![first, last];
    both.sort();
    assert_eq!(erased, both);
    for run in &both {
        let records = read_all(&*world.store, run, 9).await;
        let is_erased =
            |record: &logreel_core::Record| matches!(record.body, StoredBody::Erased(_));
        assert!(records.iter().all(is_erased));
        check_run(&*world.store, run).await;
    }
    world.finish().await;
}

/// What was imported before its end and not taken over is nobody's work here: it may be erased, and is not
/// taken over or imported any more.
pub async fn an_unfinished_import_is_erased(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let there = elsewhere(&world);
    let mut pen = there.driven(in_session("carried", "s")).await;
    pen.write(vec![
        phase(Phase::Executing),
        step("one", json!("a secret")),
    ])
    .await;
    let run = pen.run;
    let import = packed(&*there.store, &run, None).await;
    let before = world.store.import(import).await.expect("it is taken in");
    assert!(before.read_only);
    let erased = world.store.erase(&run, Heirs::default()).await;
    assert_eq!(erased.expect("it is erased"), [run]);
    let after = world.entry(&run).await;
    assert!(after.erased && after.driver.is_none() && after.ready_at.is_none());
    assert_eq!(after.row.head, before.row.head);
    check_run(&*world.store, &run).await;
    let taken = world.store.take_over(&run).await;
    assert!(
        matches!(taken, Err(ImportError::Store(Error::ErasedRun(_)))),
        "{taken:?}"
    );
    pen.complete(json!(1)).await;
    pen.release().await;
    let more = packed(&*there.store, &run, Some(before.row.head)).await;
    let more = world.store.import(more).await;
    assert!(
        matches!(more, Err(ImportError::Store(Error::ErasedRun(_)))),
        "{more:?}"
    );
    world.finish().await;
}
