//! Retrying a run as another that shares what finished (SEMANTICS 17, 23 and 31), on both stores.
#![allow(missing_docs, reason = "a test's name is its documentation")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use common::{count, kinds, on_both, until, until_entry};
use logreel::core::event::{Relation, RunForked};
use logreel::testing::TestEngine;
use logreel::view::{EventView, RunView};
use logreel::*;

/// What the steps of a task did, by name, and what they should fail at.
#[derive(Clone, Default)]
struct Notes {
    calls: Arc<Mutex<HashMap<String, u32>>>,
    keys: Arc<Mutex<Vec<Digest>>>,
    broken: Arc<AtomicBool>,
}

impl Notes {
    fn broken() -> Self {
        let notes = Self::default();
        notes.broken.store(true, Ordering::SeqCst);
        notes
    }

    fn mend(&self) {
        self.broken.store(false, Ordering::SeqCst);
    }

    fn call(&self, step: &str) {
        *self
            .calls
            .lock()
            .unwrap()
            .entry(step.to_owned())
            .or_default() += 1;
    }

    fn calls(&self, steps: &[&str]) -> Vec<u32> {
        let calls = self.calls.lock().unwrap();
        let of = |step: &&str| calls.get(*step).copied().unwrap_or(0);
        steps.iter().map(of).collect()
    }
}

/// Three steps, the second with one inside it; the third fails while it is broken.
fn three(engine: &Engine, notes: &Notes) -> Task<u32, u32> {
    let notes = notes.clone();
    engine.task("three", move |ctx: Ctx, n: u32| {
        let notes = notes.clone();
        async move {
            let one = ctx.step("one").run(|| async {
                notes.call("one");
                Ok::<_, TaskError>(n + 1)
            });
            let one = one.await?;
            ctx.emit("progress", &one).await?;
            let two = ctx.step("two").run(|| async {
                notes.call("two");
                let inner = ctx.step("inner").run(|| async {
                    notes.call("inner");
                    Ok::<_, TaskError>(one * 10)
                });
                inner.await
            });
            let two = two.await?;
            let three = ctx.step("three").run(|| async {
                notes.call("three");
                match notes.broken.load(Ordering::SeqCst) {
                    true => Err(TaskError::new("it broke").permanent()),
                    false => Ok(two + 1),
                }
            });
            three.await
        }
    })
}

const STEPS: &[&str] = &["one", "two", "inner", "three"];

fn forked(events: &[Event]) -> &RunForked {
    let found = events.iter().rev().find_map(|event| match &event.body {
        Body::RunForked(forked) => Some(forked),
        _ => None,
    });
    found.expect("a retry has a run.forked")
}

fn final_state(entry: &Entry) -> Digest {
    entry.row.facts.ended.as_ref().unwrap().final_state_digest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_runs_what_failed_and_nothing_that_finished() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let notes = Notes::broken();
        let task = three(&engine, &notes);
        let failed = task.start(&4).session("s").key("k").await.unwrap();
        let Outcome::Failed(cause) = failed.wait().await.unwrap() else {
            panic!("not failed")
        };
        assert_eq!(cause.message, "it broke");
        assert_eq!(notes.calls(STEPS), [1, 1, 1, 1]);
        let ended_as = engine.store().entry(&failed.id()).await.unwrap();

        notes.mend();
        let retried = engine.retry(&failed.id()).await.unwrap().typed::<u32>();
        assert_ne!(retried.id(), failed.id());
        assert_eq!(retried.wait().await.unwrap(), Outcome::Completed(51));
        assert_eq!(notes.calls(STEPS), [1, 1, 1, 2]);

        let (entry, events) = world.reopened(retried.id()).await;
        let parent = RunView::of(&entry).parent.unwrap();
        assert_eq!(
            (parent.relation, parent.run),
            (Relation::Retry, failed.id())
        );
        assert_eq!(
            (&entry.row.facts.session, &entry.row.facts.key),
            (&None, &None)
        );
        assert_eq!(count(&events, "run.failed"), 0, "{:?}", kinds(&events));
        assert_eq!(
            count(&events, "custom"),
            1,
            "what was said is not said again"
        );
        assert_eq!(events[parent.seq.0 as usize].body.kind(), "run.forked");
        let (of_parent, _) = world.reopened(failed.id()).await;
        assert_eq!(of_parent.row, ended_as.row, "the failed run stays as it is");

        let undisturbed = task.start(&4).await.unwrap();
        undisturbed.wait().await.unwrap();
        let (undisturbed, _) = world.reopened(undisturbed.id()).await;
        assert_eq!(final_state(&entry), final_state(&undisturbed));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_a_retry_shares_what_both_finished() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let notes = Notes::broken();
        let first = three(&engine, &notes).start(&4).await.unwrap();
        first.wait().await.unwrap();
        let second = engine.retry(&first.id()).from("two").await.unwrap();
        assert!(matches!(second.wait().await.unwrap(), Outcome::Failed(_)));
        assert_eq!(notes.calls(STEPS), [1, 2, 2, 2]);
        notes.mend();
        let third = engine.retry(&second.id()).await.unwrap().typed::<u32>();
        assert_eq!(third.wait().await.unwrap(), Outcome::Completed(51));
        assert_eq!(notes.calls(STEPS), [1, 2, 2, 3]);
        let (entry, events) = world.reopened(third.id()).await;
        assert_eq!(count(&events, "run.forked"), 2, "{:?}", kinds(&events));
        let parent = entry.row.facts.parent.clone().unwrap();
        assert_eq!(parent.run, second.id());

        // Each event says whose it is, with a digest of its body by that run's key.
        let store = world.open();
        let page = store.read(&third.id(), Seq::FIRST, 100).await.unwrap();
        let mut origins = Vec::new();
        for record in &page.items {
            let writer = record.origin.unwrap_or(third.id());
            let key = store.key(&writer).await.unwrap();
            let view = EventView::of(third.id(), record, key.as_ref());
            assert_eq!(view.run, third.id());
            origins.push(view.origin);
        }
        origins.dedup();
        assert_eq!(origins, [Some(first.id()), Some(second.id()), None]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_from_a_step_forgets_it_and_what_is_inside_and_around_it() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let notes = Notes::broken();
        let failed = three(&engine, &notes).start(&4).await.unwrap();
        failed.wait().await.unwrap();
        notes.mend();
        for (from, expected, calls) in [
            ("two", vec!["two", "two/inner"], [1, 2, 2, 2]),
            ("two/inner", vec!["two", "two/inner"], [1, 3, 3, 3]),
            ("one", vec!["one"], [2, 3, 3, 4]),
        ] {
            let retried = engine.retry(&failed.id()).from(from).await.unwrap();
            let ended = retried.typed::<u32>().wait().await.unwrap();
            assert_eq!(ended, Outcome::Completed(51), "from {from}");
            assert_eq!(notes.calls(STEPS), calls, "from {from}");
            let (_, events) = world.reopened(retried.id()).await;
            let mut forgotten: Vec<String> = forked(&events)
                .forgotten
                .iter()
                .map(ToString::to_string)
                .collect();
            forgotten.sort();
            assert_eq!(forgotten, expected, "from {from}");
        }
        let unknown = engine.retry(&failed.id()).from("four").await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        assert!(unknown.to_string().contains("`four`"), "{unknown}");
    })
    .await;
}

/// Nobody knows whether the write that was open at the end happened: it is listed, and the retry makes
/// it under a key of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_was_open_at_the_end_may_have_happened_and_has_another_key() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let notes = Notes::broken();
        let noted = notes.clone();
        let task: Task<(), u32> = engine.task("pay", move |ctx: Ctx, (): ()| {
            let notes = noted.clone();
            async move {
                let paid = ctx.write_step("pay").run(|key| {
                    let notes = notes.clone();
                    async move {
                        notes.keys.lock().unwrap().push(key);
                        if notes.broken.load(Ordering::SeqCst) {
                            std::future::pending::<()>().await;
                        }
                        Ok::<_, TaskError>(7)
                    }
                });
                paid.await
            }
        });
        let run = task.start(&()).await.unwrap();
        until(&engine, run.id(), "step.started").await;
        run.cancel("enough").await.unwrap();
        notes.mend();
        let retried = engine.retry(&run.id()).await.unwrap().typed::<u32>();
        assert_eq!(retried.wait().await.unwrap(), Outcome::Completed(7));
        let (_, events) = world.reopened(retried.id()).await;
        assert_eq!(forked(&events).may_have_happened, ["pay"]);
        let keys = notes.keys.lock().unwrap().clone();
        assert_eq!(keys.len(), 2);
        assert_ne!(keys[0], keys[1], "another run, another key");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_ended_badly_is_retried_and_the_refusal_names_resume() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let notes = Notes::default();
        let task = three(&engine, &notes);
        let done = task.start(&1).await.unwrap();
        done.wait().await.unwrap();
        let refused = engine.retry(&done.id()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Terminal, "{refused}");
        let queued = task.start(&1).queue().await.unwrap();
        let refused = engine.retry(&queued.id()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotApplicable);
        assert!(refused.to_string().contains("resume"), "{refused}");
        let unknown = engine.retry(&RunId::from_bytes([9; 16])).await;
        assert_eq!(unknown.unwrap_err().kind(), ErrorKind::NotFound);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_may_be_queued_named_and_given_another_input() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let notes = Notes::broken();
        let failed = three(&engine, &notes).start(&4).await.unwrap();
        failed.wait().await.unwrap();
        notes.mend();
        let id = RunId::from_bytes([7; 16]);
        let queue = || {
            engine
                .retry(&failed.id())
                .id(id)
                .from("one")
                .input(&8)
                .queue()
        };
        let queued = queue().await.unwrap();
        assert_eq!(queued.id(), id);
        assert_eq!(queued.entry().await.unwrap().row.status(), Status::Created);
        assert_eq!(queue().await.unwrap().id(), id, "the same again attaches");
        let other = engine.retry(&failed.id()).id(id).input(&9).queue().await;
        assert_eq!(other.unwrap_err().kind(), ErrorKind::Conflict);
        let worker = engine.clone();
        let working = tokio::spawn(async move { worker.work(1).await });
        let ended = queued.typed::<u32>().wait().await.unwrap();
        assert_eq!(ended, Outcome::Completed(51), "two kept its result");
        assert_eq!(notes.calls(STEPS), [2, 1, 1, 2]);
        assert_eq!(queued.input().await.unwrap().text(), "8");
        engine.close().await.unwrap();
        working.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_under_mended_code_is_accepted_and_recorded() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let notes = Notes::broken();
        let failed = three(&engine, &notes).version("1").start(&4).await.unwrap();
        failed.wait().await.unwrap();
        notes.mend();
        let mended = three(&engine, &notes).version("2");
        let refused = engine.retry(&failed.id()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::SpecChanged);
        let retry = engine.retry(&failed.id()).accept_spec_change();
        let retried = retry.await.unwrap().typed::<u32>();
        assert_eq!(retried.wait().await.unwrap(), Outcome::Completed(51));
        let (entry, events) = world.reopened(retried.id()).await;
        assert_eq!(count(&events, "spec.changed"), 1);
        let fresh = mended.start(&4).queue().await.unwrap().entry().await;
        assert_eq!(
            entry.row.facts.spec_digest,
            fresh.unwrap().row.facts.spec_digest
        );
    })
    .await;
}

/// What was awaited in the failed run was answered there; a wait that was open is asked for again.
#[tokio::test(flavor = "multi_thread")]
async fn answers_are_shared_and_open_waits_begin_again() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task: Task<(), (bool, bool)> = engine.task("asks", |ctx: Ctx, (): ()| async move {
            let first = ctx.approval("first?").await?.approved;
            let second = ctx.approval("second?").await?.approved;
            Ok((first, second))
        });
        let waits = |entry: &Entry| entry.row.facts.waits.len() == 1 && entry.driver.is_none();
        let run = task.start(&()).await.unwrap();
        until_entry(&engine, run.id(), waits).await;
        engine.answer(&run.id(), Answer::approve()).await.unwrap();
        until_entry(&engine, run.id(), |entry| {
            waits(entry) && entry.row.facts.waits_started == 2
        })
        .await;
        run.cancel("not now").await.unwrap();
        let retried = engine.retry(&run.id()).await.unwrap();
        let entry = until_entry(&engine, retried.id(), waits).await;
        assert_eq!(entry.row.facts.waits[0].wait.wait, WaitId(3));
        engine.answer(&retried.id(), Answer::deny()).await.unwrap();
        let ended = retried.typed::<(bool, bool)>().wait().await.unwrap();
        assert_eq!(ended, Outcome::Completed((true, false)));
        world.reopened(retried.id()).await;
    })
    .await;
}

/// A hook hears of the retry's own events, not of those that it shares.
#[tokio::test(flavor = "multi_thread")]
async fn hooks_hear_of_the_retrys_own_events_only() {
    let heard: Arc<Mutex<Vec<(RunId, Seq)>>> = Arc::default();
    let hearing = Arc::clone(&heard);
    let engine = Engine::builder().on_event(move |event| {
        let hearing = Arc::clone(&hearing);
        async move {
            hearing.lock().unwrap().push((event.run, event.event.seq));
            Ok(())
        }
    });
    let engine = engine.build().await.unwrap();
    let notes = Notes::broken();
    let failed = three(&engine, &notes).start(&4).await.unwrap();
    failed.wait().await.unwrap();
    notes.mend();
    let retried = engine.retry(&failed.id()).await.unwrap();
    retried.wait().await.unwrap();
    let head = retried.entry().await.unwrap().row;
    let shared = head.facts.parent.as_ref().unwrap().seq;
    engine.close().await.unwrap();
    let heard = heard.lock().unwrap();
    let of_retry: Vec<Seq> = heard
        .iter()
        .filter(|(run, _)| *run == retried.id())
        .map(|(_, seq)| *seq)
        .collect();
    let own: Vec<Seq> = (shared.0 + 1..=head.head.seq.0).map(Seq).collect();
    assert_eq!(of_retry, own);
}

/// A process that dies in a retry leaves a run like any other.
#[tokio::test(start_paused = true)]
async fn a_retry_survives_a_crash() {
    let engine = TestEngine::new().await.unwrap();
    let notes = Notes::broken();
    let failed = three(&engine, &notes).start(&4).await.unwrap();
    failed.wait().await.unwrap();
    notes.mend();
    let retried = engine.retry(&failed.id()).queue().await.unwrap();
    engine.crash().await.unwrap();
    let another = engine.another().await.unwrap();
    three(&another, &notes);
    another.resume(&retried.id()).await.unwrap();
    let ended = another.run(retried.id()).typed::<u32>().wait().await;
    assert_eq!(ended.unwrap(), Outcome::Completed(51));
    assert_eq!(notes.calls(STEPS), [1, 1, 1, 2]);
}
