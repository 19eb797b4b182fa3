//! Forking a run and looking back at it (SEMANTICS 23 and 31), on both stores.
#![allow(missing_docs, reason = "a test's name is its documentation")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

mod common;

use std::sync::{Arc, Mutex};

use common::{on_both, until, until_entry};
use logreel::core::event::{Change, Relation, RunForked};
use logreel::core::{StepState, replay};
use logreel::workflow::{Format, Workflow};
use logreel::*;
use serde_json::{Value, json};

/// What was written outside: the step and its key.
type Outside = Arc<Mutex<Vec<(String, Digest)>>>;

/// `fetch`, then the write `publish`, which gives what was fetched, then `tell`, and a child that writes.
fn publishing(engine: &Engine, outside: &Outside) -> Task<String, String> {
    let writes = Arc::clone(outside);
    let deploy = engine.task("deploy", move |ctx: Ctx, what: String| {
        let writes = Arc::clone(&writes);
        async move { write(&ctx, "deploy", &what, &writes).await }
    });
    let writes = Arc::clone(outside);
    engine.task("publishing", move |ctx: Ctx, what: String| {
        let (writes, deploy) = (Arc::clone(&writes), deploy.clone());
        async move {
            let fetch = ctx
                .step("fetch")
                .run(|| async { Ok::<_, TaskError>(format!("{what}!")) });
            let fetched = fetch.await?;
            let published = write(&ctx, "publish", &fetched, &writes).await?;
            let told = ctx
                .step("tell")
                .run(|| async { Ok::<_, TaskError>(format!("told {published}")) });
            let told = told.await?;
            ctx.child("deploy", &deploy, &told).await
        }
    })
}

async fn write(ctx: &Ctx, step: &str, what: &str, writes: &Outside) -> Result<String, TaskError> {
    let writing = ctx.write_step(step).run(|key| async move {
        writes.lock().unwrap().push((step.to_owned(), key));
        Ok::<_, TaskError>(format!("{step} {what}"))
    });
    writing.await
}

fn steps(outside: &Outside) -> Vec<String> {
    let outside = outside.lock().unwrap();
    outside.iter().map(|(step, _)| step.clone()).collect()
}

fn forked(events: &[Event]) -> &RunForked {
    let found = events.iter().rev().find_map(|event| match &event.body {
        Body::RunForked(forked) => Some(forked),
        _ => None,
    });
    found.expect("a fork has a run.forked")
}

fn final_state(entry: &Entry) -> Digest {
    entry.row.facts.ended.as_ref().unwrap().final_state_digest
}

async fn output(run: &RunHandle<Json>) -> Value {
    match run.wait().await.unwrap() {
        Outcome::Completed(output) => output.to_value(),
        other => panic!("{other:?}"),
    }
}

fn at(seq: u64) -> ForkPoint {
    ForkPoint::At(Seq(seq))
}

fn before(step: &str) -> ForkPoint {
    ForkPoint::Before(step.to_owned())
}

/// What a fork shares, and what was given to it, is no decision of its own.
async fn same_again(engine: &Engine, run: RunId) {
    let replayed = engine.replay(run).await.unwrap();
    assert_eq!(replayed.difference, None, "{run}");
}

const END: &str = "deploy told publish a!";

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_at_any_event_comes_to_the_same_end_under_other_keys() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let outside = Outside::default();
        let run = publishing(&engine, &outside).start(&"a".to_owned());
        let run = run.await.unwrap();
        run.wait().await.unwrap();
        let (entry, events) = world.reopened(run.id()).await;
        let end = events.len() as u64;
        for seq in 1..end {
            let fork = engine.fork(&run.id(), at(seq)).await.unwrap();
            assert_eq!(output(&fork).await, END, "from event {seq}");
            let (of_fork, own) = world.reopened(fork.id()).await;
            assert_eq!(
                final_state(&of_fork),
                final_state(&entry),
                "from event {seq}"
            );
            let parent = of_fork.row.facts.parent.clone().unwrap();
            assert_eq!(
                (parent.run, parent.seq, parent.relation),
                (run.id(), Seq(seq), Relation::Fork)
            );
            assert_eq!(own[..seq as usize], events[..seq as usize], "shared");
            assert!(forked(&own).changes.is_empty());
        }
        let mut keys: Vec<Digest> = outside.lock().unwrap().iter().map(|it| it.1).collect();
        let count = keys.len();
        keys.sort_by_key(Digest::hex);
        keys.dedup();
        assert_eq!(
            keys.len(),
            count,
            "every write of every fork has a key of its own"
        );

        for (wrong, kind, says) in [
            (
                at(end),
                ErrorKind::Terminal,
                format!("at event {} at the latest", end - 1),
            ),
            (
                at(end + 1),
                ErrorKind::Terminal,
                format!("at event {} at the latest", end - 1),
            ),
            (
                ForkPoint::At(Seq::NONE),
                ErrorKind::NotFound,
                "no event 0".to_owned(),
            ),
            (
                before("nothing"),
                ErrorKind::NotFound,
                "no step that is shown as `nothing`".to_owned(),
            ),
        ] {
            let error = engine.fork(&run.id(), wrong).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(&says), "{error}");
        }
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_says_first_which_writes_it_would_do_again() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let outside = Outside::default();
        let run = publishing(&engine, &outside)
            .start(&"a".to_owned())
            .await
            .unwrap();
        run.wait().await.unwrap();
        assert_eq!(steps(&outside), ["publish", "deploy"]);
        let names = |writes: &[Write]| -> Vec<String> {
            writes.iter().map(|write| write.id.clone()).collect()
        };
        // (where, done again, may have happened)
        for (point, again, open) in [
            (at(1), &["publish", "deploy"][..], &[] as &[&str]),
            (before("publish"), &["publish", "deploy"], &[]),
            (before("tell"), &["deploy"], &[]),
            (before("deploy"), &["deploy"], &[]),
        ] {
            let outlook = engine.fork(&run.id(), point.clone()).look().await.unwrap();
            assert_eq!(names(&outlook.again), again, "{point:?}");
            assert_eq!(names(&outlook.may_have_happened), open, "{point:?}");
        }
        let outlook = engine
            .fork(&run.id(), before("publish"))
            .look()
            .await
            .unwrap();
        assert!(matches!(
            outlook.again[0].outcome,
            WriteOutcome::Finished(_)
        ));
        assert_ne!(outlook.again[1].run, run.id(), "the child's");
        let under_way = at(outlook.at.0 + 1);
        let outlook = engine.fork(&run.id(), under_way).look().await.unwrap();
        assert_eq!(names(&outlook.may_have_happened), ["publish"]);
        assert_eq!(names(&outlook.again), ["deploy"]);
        // What is given is not done.
        let mut fork = engine
            .fork(&run.id(), before("publish"))
            .result("publish", "b");
        let outlook = fork.look().await.unwrap();
        assert_eq!(names(&outlook.again), ["deploy"]);
        assert_eq!(output(&fork.await.unwrap()).await, "deploy told b");
        assert_eq!(steps(&outside), ["publish", "deploy", "deploy"]);
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_given_until_something_was_made_of_it() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let outside = Outside::default();
        let run = publishing(&engine, &outside)
            .start(&"a".to_owned())
            .await
            .unwrap();
        run.wait().await.unwrap();
        let (_, events) = world.reopened(run.id()).await;
        let of = |kind: &str, step: &str| {
            let found = events.iter().find(|event| {
                let named = match &event.body {
                    Body::StepStarted(it) => it.step.to_string() == step,
                    Body::StepFinished(it) => it.step.to_string() == step,
                    _ => false,
                };
                named && event.body.kind() == kind
            });
            found.unwrap_or_else(|| panic!("{kind} {step}")).seq
        };
        // Recorded and not used yet; under way; not begun.
        for (point, step) in [
            (ForkPoint::At(of("step.finished", "fetch")), "fetch"),
            (ForkPoint::At(of("step.started", "publish")), "publish"),
            (before("tell"), "tell"),
        ] {
            let fork = engine
                .fork(&run.id(), point)
                .result(step, "given")
                .await
                .unwrap();
            let given = output(&fork).await;
            assert!(given.as_str().unwrap().ends_with("given"), "{given}");
            same_again(&engine, fork.id()).await;
            let (entry, own) = world.reopened(fork.id()).await;
            assert_eq!(forked(&own).changes, [Change::Result(step.to_owned())]);
            assert_eq!(
                entry.row.facts.ended.as_ref().unwrap().at,
                entry.row.updated_at
            );
        }
        assert_eq!(
            steps(&outside).iter().filter(|it| *it == "publish").count(),
            2
        );

        let started = of("step.started", "publish");
        let late = engine
            .fork(&run.id(), before("tell"))
            .result("fetch", "given");
        let error = late.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotApplicable);
        let says = format!(
            "with event {started} of {}; fork it at event {}",
            run.id(),
            started.0 - 1
        );
        assert!(error.to_string().contains(&says), "{error}");
        let unknown = engine
            .fork(&run.id(), before("tell"))
            .result("other", "given");
        assert_eq!(unknown.await.unwrap_err().kind(), ErrorKind::NotFound);
        let no_agent = engine.fork(&run.id(), ForkPoint::Last).message("hello");
        assert!(matches!(no_agent.await, Err(Error::NotSteered(_))));
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_of_forks_and_of_runs_that_wait_or_are_driven() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let task = engine.task("asking", |ctx: Ctx, n: u32| async move {
            let one = ctx
                .step("one")
                .run(|| async { Ok::<_, TaskError>(n + 1) })
                .await?;
            let ok = ctx.approval("go on?").await?.approved;
            let two = ctx
                .step("two")
                .run(|| async { Ok::<_, TaskError>(one * 10) })
                .await?;
            Ok(if ok { two } else { 0 })
        });
        let run = task.start(&1).await.unwrap();
        until(&engine, run.id(), "wait.started").await;
        // Of a run that waits: the fork asks again, and has an answer of its own.
        let fork = engine
            .fork(&run.id(), ForkPoint::Last)
            .input(&7)
            .await
            .unwrap();
        until_entry(&engine, fork.id(), |entry| {
            entry.row.status() == Status::Waiting
        })
        .await;
        let second = engine.fork(&fork.id(), ForkPoint::Last).await.unwrap();
        until_entry(&engine, second.id(), |entry| {
            entry.row.status() == Status::Waiting
        })
        .await;
        engine.answer(&fork.id(), Answer::approve()).await.unwrap();
        engine.answer(&second.id(), Answer::deny()).await.unwrap();
        assert_eq!(output(&fork).await, 20, "the step that finished stays");
        assert_eq!(output(&second).await, 0);
        let (entry, events) = world.reopened(second.id()).await;
        let input = entry.row.facts.input.to_json().to_value();
        assert_eq!(input, json!(7), "the input of the run it comes from");
        let origins = forked(&events);
        assert_eq!(
            (origins.parent.run, origins.changes.as_slice()),
            (fork.id(), &[][..])
        );
        let (_, events) = world.reopened(fork.id()).await;
        assert_eq!(forked(&events).changes, [Change::Input]);
        let parent = world.reopened(run.id()).await.0;
        assert_eq!(parent.row.status(), Status::Waiting, "it waits on");

        // Of a run that is being driven.
        let (said, saying) = tokio::sync::oneshot::channel::<()>();
        let saying = Arc::new(tokio::sync::Mutex::new(Some(saying)));
        let slow = engine.task("slow", move |ctx: Ctx, (): ()| {
            let saying = Arc::clone(&saying);
            async move {
                ctx.step("first")
                    .run(|| async { Ok::<_, TaskError>(1) })
                    .await?;
                let second = ctx.step("second").run(|| {
                    let saying = Arc::clone(&saying);
                    async move {
                        let saying = saying.lock().await.take();
                        if let Some(saying) = saying {
                            saying.await.map_err(TaskError::from)?;
                        }
                        Ok::<_, TaskError>(2)
                    }
                });
                second.await
            }
        });
        let slow = slow.start(&()).await.unwrap();
        until(&engine, slow.id(), "step.started").await;
        let fork = engine.fork(&slow.id(), ForkPoint::Last).await.unwrap();
        assert_eq!(
            output(&fork).await,
            2,
            "the fork need not wait for its parent"
        );
        assert!(engine.store().entry(&slow.id()).await.unwrap().is_driven());
        said.send(()).unwrap();
        assert_eq!(slow.wait().await.unwrap(), Outcome::Completed(2));
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_goes_on_under_another_spec_from_its_first_append_on() {
    on_both(|world| async move {
        let workflow = |second: &str| {
            let text = format!(
                "name = \"w\"\n[[step]]\nid = \"a\"\nrun = \"echo 1\"\n[[step]]\nid = \"b\"\n\
                 needs = [\"a\"]\nrun = \"{second}\"\neffect = \"write\"\n[[step]]\nid = \"c\"\n\
                 needs = [\"b\"]\ninput = \"{{{{ steps.b.output }}}}\"\nrun = \"cat\"\n"
            );
            Workflow::parse(&text, Format::Toml, "w.toml").unwrap()
        };
        let engine = world.engine().await;
        let old = workflow("echo old");
        let run = engine.workflow(&old).start(&Json::null()).await.unwrap();
        assert_eq!(output(&run).await, "old");
        let new = workflow("echo new");
        let fork = engine
            .fork(&run.id(), before("b"))
            .under(&new)
            .await
            .unwrap();
        assert_eq!(output(&fork).await, "new");
        let (entry, events) = world.reopened(fork.id()).await;
        assert_eq!(entry.row.facts.spec_digest, new.digest());
        let own = forked(&events).parent.seq.0 as usize;
        assert_eq!(forked(&events).changes, [Change::Spec]);
        assert_eq!(events[own + 1].body.kind(), "spec.changed");
        assert_eq!(events[own].epoch, events[own + 1].epoch);
        // A fork of the fork from where the old spec held is under the old one.
        let shared = engine.fork(&fork.id(), at(2)).await.unwrap();
        assert_eq!(output(&shared).await, "old");

        // A result that a finished step needed is not replaced, and the event is named.
        let late = engine.fork(&run.id(), ForkPoint::Last).result("b", "given");
        let error = late.await.unwrap_err();
        assert!(error.to_string().contains("went into step `c`"), "{error}");
        let Error::ResultUsed { seq, .. } = error else {
            panic!("{error}")
        };
        let given = engine
            .fork(&run.id(), at(seq.0 - 1))
            .result("b", "given")
            .await
            .unwrap();
        assert_eq!(output(&given).await, "given");
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_seen_as_it_was_after_any_event() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let outside = Outside::default();
        let run = publishing(&engine, &outside)
            .start(&"a".to_owned())
            .await
            .unwrap();
        run.wait().await.unwrap();
        let fork = engine.fork(&run.id(), before("tell")).await.unwrap();
        fork.wait().await.unwrap();
        for run in [run.id(), fork.id()] {
            let (entry, events) = world.reopened(run).await;
            for upto in 1..=events.len() {
                let state = engine.at(&run, Seq(upto as u64)).await.unwrap();
                assert_eq!(Some(state), replay(run, &events[..upto]).unwrap());
            }
            let end = engine.at(&run, entry.row.head.seq).await.unwrap();
            assert_eq!(end.row, entry.row);
            let fetched = StepId::from_parts(["fetch"]).unwrap();
            assert!(matches!(end.steps[&fetched], StepState::Finished { .. }));
            for wrong in [Seq::NONE, entry.row.head.seq.next()] {
                let error = engine.at(&run, wrong).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotFound);
                assert!(error.to_string().contains("it has 1 to"), "{error}");
            }
        }
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_records_where_it_came_from() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let outside = Outside::default();
        let git = |commit: &str| logreel::core::event::Git {
            branch: Some("main".to_owned()),
            commit: commit.to_owned(),
            dirty: true,
        };
        let task = publishing(&engine, &outside).version("2");
        let start = task.start(&"a".to_owned()).git(git("1a")).label("k", "v");
        let run = start.await.unwrap();
        run.wait().await.unwrap();
        let (entry, events) = world.reopened(run.id()).await;
        let facts = &entry.row.facts;
        let spec = json!({"name": "publishing", "version": "2"});
        let digest = logreel::core::meaning::digest_of(&spec).unwrap();
        assert_eq!(
            facts.spec_digest, digest,
            "of its meaning, without ids and times"
        );
        assert_eq!(facts.git, Some(git("1a")));
        let host = facts.provenance.host.clone();
        assert!(host.as_deref().is_some_and(|host| !host.is_empty()));
        assert_eq!(
            facts.provenance.logreel.as_deref(),
            Some(env!("CARGO_PKG_VERSION"))
        );
        let child = events.iter().find_map(|event| match &event.body {
            Body::ChildStarted(child) => Some(child.child),
            _ => None,
        });
        let (child, _) = world.reopened(child.unwrap()).await;
        let of_child = &child.row.facts;
        assert_eq!(
            (&of_child.git, &of_child.provenance.host),
            (&facts.git, &host)
        );

        // A fork is made somewhere else, perhaps, and ends in the same state.
        let fork = engine.fork(&run.id(), before("publish")).git(git("2b"));
        let fork = fork.await.unwrap();
        fork.wait().await.unwrap();
        let (of_fork, _) = world.reopened(fork.id()).await;
        assert_eq!(of_fork.row.facts.git, Some(git("2b")));
        assert_eq!(of_fork.row.facts.labels["k"], "v");
        assert_eq!(of_fork.row.facts.provenance.host, host);
        assert_eq!(final_state(&of_fork), final_state(&entry));
        engine.close().await.unwrap();
    })
    .await;
}

/// Nothing of the parent is copied, however long it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_of_a_long_run_takes_little_room() {
    let world = common::World::sqlite();
    let engine = world.engine().await;
    let task = engine.task("long", |ctx: Ctx, steps: u32| async move {
        let each = |n: u32| {
            let ctx = ctx.clone();
            async move {
                let text = "x".repeat(200);
                let step = ctx.step(("step", n)).run(move || {
                    let text = text.clone();
                    async move { Ok::<_, TaskError>(text) }
                });
                step.await
            }
        };
        for chunk in (0..steps).collect::<Vec<_>>().chunks(500) {
            ctx.all(chunk.iter().map(|n| each(*n))).await?;
        }
        Ok(())
    });
    let run = task.start(&9_998).await.unwrap();
    run.wait().await.unwrap();
    let stats = engine.store().stats().await.unwrap();
    assert!(stats.events >= 10_000, "{}", stats.events);
    let bytes = async || {
        let store = world.open();
        let bytes = store.stats().await.unwrap().disk_bytes.unwrap();
        drop(store);
        bytes
    };
    let before = bytes().await;
    let fork = engine.fork(&run.id(), at(9_000)).queue().await.unwrap();
    let after = engine.store().stats().await.unwrap();
    assert_eq!(after.events, stats.events + 1);
    let grown = bytes().await.saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} bytes");
    let (entry, _) = world.reopened(fork.id()).await;
    assert_eq!(entry.row.head.seq, Seq(9_001));
    engine.close().await.unwrap();
}

/// Whatever a fork writes again it says first, and it writes nothing else: from every event of a run, of a
/// fork of it and of a retry, also where they only share it, and between the end of a child and of its step.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_fork_says_it_writes_again_is_what_it_writes_again() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let outside = Outside::default();
        let first = publishing(&engine, &outside).start(&"a".to_owned());
        let first = first.await.unwrap().id();
        engine.run(first).wait().await.unwrap();
        let fork = engine.fork(&first, ForkPoint::Last).await.unwrap();
        fork.wait().await.unwrap();
        let failing = engine.task("failing", {
            let outside = Arc::clone(&outside);
            move |ctx: Ctx, fails: bool| {
                let outside = Arc::clone(&outside);
                async move {
                    write(&ctx, "send", "x", &outside).await?;
                    let last = ctx.step("last").run(|| async {
                        match fails {
                            true => Err(TaskError::new("not now").permanent()),
                            false => Ok(()),
                        }
                    });
                    last.await
                }
            }
        });
        let failed = failing.start(&true).await.unwrap();
        failed.wait().await.unwrap();
        let retried = engine.retry(&failed.id()).input(&false).await.unwrap();
        retried.wait().await.unwrap();
        let mut between = 0;
        for run in [first, fork.id(), retried.id()] {
            let (_, events) = world.reopened(run).await;
            for seq in 1..events.len() as u64 {
                let mut fork = engine.fork(&run, at(seq));
                let outlook = fork.look().await.unwrap();
                let mut said: Vec<String> = outlook.writes().map(|it| it.id.clone()).collect();
                let before = steps(&outside).len();
                let fork = fork.await.unwrap();
                fork.wait().await.unwrap();
                let mut done = steps(&outside).split_off(before);
                same_again(&engine, fork.id()).await;
                assert_eq!(
                    steps(&outside).len(),
                    before + done.len(),
                    "a replay writes nothing"
                );
                said.sort();
                done.sort();
                assert_eq!(said, done, "{run} from event {seq}");
                assert!(outlook.gone.is_empty());
                let event = &events[seq as usize - 1];
                between += usize::from(event.body.kind() == "child.finished");
            }
        }
        assert_eq!(between, 2, "a child's end was among the events");
        engine.close().await.unwrap();
    })
    .await;
}

/// Of a child that was deleted or erased nobody can say what it wrote; a fork that starts it again says that.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_says_of_which_children_nothing_is_known() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let outside = Outside::default();
        for erased in [false, true] {
            let run = publishing(&engine, &outside).start(&"a".to_owned());
            let run = run.await.unwrap().id();
            engine.run(run).wait().await.unwrap();
            let (_, events) = world.reopened(run).await;
            let child = events.iter().find_map(|event| match &event.body {
                Body::ChildStarted(started) => Some(started.child),
                _ => None,
            });
            let child = child.unwrap();
            // Its driver may take a moment to let go.
            while engine.store().entry(&child).await.unwrap().is_driven() {
                tokio::task::yield_now().await;
            }
            match erased {
                true => drop(engine.erase(&child, store::Heirs::default()).await.unwrap()),
                false => drop(engine.store().delete(&child).await.unwrap()),
            }
            let outlook = engine.fork(&run, before("tell")).look().await.unwrap();
            assert!(outlook.again.is_empty(), "{outlook:?}");
            assert!(!outlook.is_harmless() && outlook.repeats());
            let gone: Vec<_> = outlook
                .gone
                .iter()
                .map(|it| (it.child, it.erased))
                .collect();
            assert_eq!(gone, [(child, erased)]);
            assert_eq!(outlook.gone[0].step.to_string(), "deploy");
            let end = ForkPoint::Last;
            let outlook = engine.fork(&run, end).look().await.unwrap();
            assert!(outlook.is_harmless(), "its step keeps its result");
        }
        engine.close().await.unwrap();
    })
    .await;
}
