//! Rules of appending: SEMANTICS 1-3, 8, 10 and 14.

use std::time::Duration;

use logreel_core::event::{Budget, Effect};
use logreel_core::event::{
    Check, ChildStarted, MessageAdded, ModelAnswered, ModelCalled, Phase, Spend, StatePatched,
    ToolCalled, ToolReturned, Turn, Verdict, Verification, WaitEnded, WaitKind, WaitOutcome,
};
use logreel_core::fold::Illegal;
use logreel_core::{
    Blob, CallId, Command, Digest, Draft, Epoch, Head, Json, Outside, Payload, RunId, Seq, Status,
    WaitId,
};
use serde_json::json;

use super::facts::{
    append_id, cause, custom, late, payload, phase, step, step_body, step_id, step_started, task,
    wait,
};
use super::{Harness, TestEnv, World};
use crate::{Append, AppendError, Env, Error};

/// Rule 1: all events, blobs and the row, or nothing. An illegal event takes its whole append along.
pub async fn append_is_atomic_all_or_nothing(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("atomic")).await;
    pen.write(vec![phase(Phase::Executing), step("a", json!(1))])
        .await;
    let before = world.entry(&pen.run).await;

    let nobody_waits = WaitEnded {
        approved: None,
        by: None,
        outcome: WaitOutcome::Answered,
        reason: None,
        step: None,
        value: Payload::null(),
        wait: WaitId(7),
    };
    let blob = Blob::new(&b"bytes of an append that is refused"[..]);
    let drafts = vec![
        step("b", json!(2)),
        Draft::new(nobody_waits),
        step("c", json!(3)),
    ];
    let refused = Append {
        blobs: vec![blob.clone()],
        ..pen.append(drafts)
    };
    let error = pen
        .send(refused)
        .await
        .expect_err("a wait that is not open cannot end");
    assert!(
        matches!(&error, AppendError::Illegal(illegal) if illegal.why == Illegal::WaitNotOpen(WaitId(7))),
        "{error:?}"
    );
    assert_eq!(
        world.entry(&pen.run).await,
        before,
        "a refused append leaves the row alone"
    );
    let log = world
        .store
        .read(&pen.run, Seq(1), 100)
        .await
        .expect("a page");
    assert_eq!(
        log.items.len(),
        3,
        "a refused append leaves no event, not even the legal ones"
    );
    let bytes = world
        .store
        .blob(&blob.digest())
        .await
        .expect("a blob is looked up");
    assert_eq!(bytes, None, "a refused append leaves no blob");

    let events = pen
        .write(vec![step("b", json!(2)), step("c", json!(3))])
        .await;
    let seqs: Vec<u64> = events.iter().map(|event| event.seq.0).collect();
    assert_eq!(seqs, [4, 5], "the next append goes on where the log ended");
    world.finish().await;
}

/// Rule 1: `expect` is the head's seq *and* digest.
pub async fn append_lands_only_on_the_head_it_was_decided_on(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("linear")).await;
    let first = pen.head;
    pen.write(vec![phase(Phase::Executing)]).await;
    let head = pen.head;

    let other = Digest::of(b"another history");
    for (expect, why) in [
        (first, "a head that was overtaken"),
        (
            Head {
                seq: head.seq.next(),
                ..head
            },
            "a head that is not there yet",
        ),
        (
            Head {
                digest: other,
                ..head
            },
            "the right seq of another history",
        ),
    ] {
        let append = Append {
            expect,
            ..pen.append(vec![step("a", json!(1))])
        };
        let error = pen.send(append).await.expect_err(why);
        assert!(
            matches!(error, AppendError::Conflict { head: now } if now == head),
            "{why} is a conflict that names the head, not {error:?}"
        );
    }
    assert_eq!(
        world.entry(&pen.run).await.row.head,
        head,
        "a conflict writes nothing"
    );
    pen.write(vec![step("a", json!(1))]).await;
    world.finish().await;
}

/// Rule 2: the append id is looked up first, so a lost answer is had again: after more appends, after
/// another driver took over, after the end, and after a reopen.
pub async fn append_with_the_same_id_gets_the_first_answer(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let mut pen = world.driven(task("idempotent")).await;
    let named = pen.append_as(append_id("from outside"), vec![phase(Phase::Executing)]);
    let named_answer = pen.send(named.clone()).await.expect("it lands");
    let driver = pen.append(vec![step("a", json!(1)), step("b", json!(2))]);
    let driver_answer = pen.send(driver.clone()).await.expect("it lands");
    assert!(
        !named_answer.repeated && !driver_answer.repeated,
        "both are new"
    );

    for stage in ["at once", "later", "fenced", "ended", "reopened"] {
        match stage {
            "later" => {
                pen.write(vec![step("c", json!(3))]).await;
            }
            "fenced" => {
                world
                    .store
                    .leave(crate::OwnerId(1))
                    .await
                    .expect("the owner leaves");
                let owner = world.owner(2).await;
                pen = world.claimed(&pen.run, owner).await;
            }
            "ended" => {
                pen.complete(json!("done")).await;
                pen.release().await;
            }
            "reopened" => world.reopen().await,
            _ => {}
        }
        let count = world.entry(&pen.run).await.row.head;
        for (append, first) in [(&named, &named_answer), (&driver, &driver_answer)] {
            let again = world.store.append(append).await;
            let again = again.unwrap_or_else(|error| panic!("{stage}: {error:?}"));
            assert!(again.repeated, "{stage}: the same id is a repetition");
            assert_eq!(
                again.events, first.events,
                "{stage}: it gets the first answer"
            );
        }
        assert_eq!(
            world.entry(&pen.run).await.row.head,
            count,
            "{stage}: it writes nothing"
        );
    }
    world.finish().await;
}

/// An append id names an append of its run only.
pub async fn append_ids_are_unique_within_their_run_only(harness: &dyn Harness) {
    let world = World::new(harness).await;
    for name in ["one", "two"] {
        let mut pen = world.driven(task(name)).await;
        let append = pen.append_as(append_id("same"), vec![custom(name, json!(null))]);
        let appended = pen.send(append).await.expect("it lands");
        assert!(
            !appended.repeated,
            "another run's append id is not this run's"
        );
    }
    world.finish().await;
}

/// An unknown run is not found, whatever is asked of it.
pub async fn an_unknown_run_is_not_found(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let known = world.driven(task("known")).await;
    let owner = world.owner(1).await;
    let run = world.env.run_id();
    let store = &world.store;
    let append = Append {
        run,
        ..known.append_as(append_id("x"), vec![step("a", json!(1))])
    };
    let error = store.append(&append).await.expect_err("append");
    assert!(
        matches!(error, AppendError::Store(Error::NotFound(id)) if id == run),
        "{error:?}"
    );
    let cancel = Outside::Cancel { reason: None };
    for (what, error) in [
        ("read", store.read(&run, Seq::FIRST, 10).await.err()),
        ("entry", store.entry(&run).await.err()),
        ("key", store.key(&run).await.err()),
        (
            "command",
            store
                .command(&run, &append_id("x"), &cancel, vec![])
                .await
                .err(),
        ),
        ("claim", store.claim(&run, owner).await.err()),
        ("release", store.release(&run, Epoch(1), owner).await.err()),
        ("delete", store.delete(&run).await.err()),
    ] {
        assert!(
            matches!(error, Some(Error::NotFound(id)) if id == run),
            "{what}: {error:?}"
        );
    }
    world.finish().await;
}

/// Rule 3: after a claim no append of an earlier epoch lands, even on the right head.
pub async fn append_of_a_stale_epoch_is_fenced(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut old = world.driven(task("fenced")).await;
    old.write(vec![phase(Phase::Executing)]).await;
    world
        .store
        .leave(crate::OwnerId(1))
        .await
        .expect("the owner leaves");
    let owner = world.owner(2).await;
    let mut new = world.claimed(&old.run, owner).await;
    assert_eq!(new.epoch, Epoch(2), "a claim begins the next epoch");

    old.catch_up().await;
    for stage in ["at the takeover", "while the new driver writes"] {
        let error = old
            .try_write(vec![step("a", json!(1))])
            .await
            .expect_err(stage);
        assert!(
            matches!(error, AppendError::Fenced { current: Epoch(2) }),
            "{stage}: fenced by epoch 2, not {error:?}"
        );
        new.write(vec![step(stage, json!(2))]).await;
        old.catch_up().await;
    }
    let future = Append {
        epoch: Epoch(3),
        ..new.append(vec![step("b", json!(1))])
    };
    let error = new
        .send(future)
        .await
        .expect_err("nobody was given epoch 3");
    assert!(
        matches!(error, AppendError::Fenced { current: Epoch(2) }),
        "{error:?}"
    );
    world.finish().await;
}

/// A payload over the ceiling is a named error, writes nothing and harms nothing.
pub async fn a_payload_over_the_ceiling_is_refused_by_name(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("large")).await;
    let max = harness.payload_bytes_max();
    let text = "x".repeat(usize::try_from(max).expect("a ceiling that fits into memory") + 1);
    let head = pen.head;
    let body = custom("large", json!(text));
    let blob = Append {
        blobs: vec![Blob::new(text.as_bytes())],
        ..pen.append(vec![step("a", json!(1))])
    };
    for append in [pen.append(vec![step("a", json!(1)), body]), blob] {
        let error = pen.send(append).await.expect_err("it is over the ceiling");
        assert!(
            matches!(error, AppendError::Store(Error::TooLarge { bytes, max: at }) if bytes > max && at == max),
            "{error:?}"
        );
    }
    assert_eq!(
        world.entry(&pen.run).await.row.head,
        head,
        "nothing was written"
    );
    let new = crate::NewRun {
        run: world.env.run_id(),
        started: logreel_core::event::RunStarted {
            input: payload(json!(text)),
            ..task("large")
        },
        blobs: vec![],
        owner: None,
        then: Vec::new(),
    };
    let (run, error) = (
        new.run,
        world
            .store
            .create(new)
            .await
            .expect_err("event 1 is too large"),
    );
    assert!(
        matches!(error, crate::CreateError::Store(Error::TooLarge { .. })),
        "{error:?}"
    );
    assert!(
        world.store.entry(&run).await.is_err(),
        "the run was not created"
    );
    pen.write(vec![step("a", json!("small"))]).await;
    world.finish().await;
}

/// Rule 14: after the end only late facts of the last epoch, until its lease is given back.
pub async fn after_the_end_only_late_facts_until_the_lease_is_released(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let mut pen = world.driven(task("late")).await;
    let call = CallId::new("m1").expect("a call id");
    let spend = |tokens| Spend {
        output_tokens: tokens,
        usd_micros: Some(5),
        ..Spend::default()
    };
    let called = ModelCalled {
        attempt: 1,
        call: call.clone(),
        context: None,
        model: "scripted".into(),
        request: None,
        reserved: spend(100),
    };
    pen.write(vec![phase(Phase::Executing), Draft::new(called)])
        .await;
    let early = pen
        .try_write(vec![late(step("a", json!(1)))])
        .await
        .expect_err("it has not ended");
    assert!(
        matches!(&early, AppendError::Illegal(illegal) if illegal.why == Illegal::LateBeforeEnd),
        "{early:?}"
    );
    world.cancel(&pen.run).await;
    let ended = world.entry(&pen.run).await;
    assert_eq!(ended.row.status(), Status::Cancelled);
    assert!(ended.driver.is_some(), "a cancel takes no lease away");

    let error = pen
        .try_write(vec![step("a", json!(1))])
        .await
        .expect_err("decided before the end");
    assert!(matches!(error, AppendError::Conflict { .. }), "{error:?}");
    pen.catch_up().await;
    let error = pen
        .try_write(vec![step("a", json!(1))])
        .await
        .expect_err("not marked late");
    assert!(
        matches!(&error, AppendError::Illegal(illegal) if illegal.why == Illegal::AfterEnd),
        "{error:?}"
    );
    let answered = ModelAnswered {
        call,
        finish_reason: None,
        message: payload(json!("too late")),
        spent: spend(42),
        redacted: 0,
    };
    let fail = pen
        .decide(Command::Fail {
            cause: cause("after the cancel"),
        })
        .await;
    world.env.advance(Duration::from_secs(1));
    pen.write(vec![
        late(Draft::new(answered)),
        late(step("a", json!(1))),
        fail,
    ])
    .await;
    let after = world.entry(&pen.run).await;
    assert_eq!(
        after.row.status(),
        Status::Cancelled,
        "the first end absorbs"
    );
    assert_eq!(
        after.row.facts, ended.row.facts,
        "output, error, finished_at and digest never move"
    );
    assert_eq!(after.results, ended.results, "a late result is no result");
    assert_eq!(
        after.row.head.seq.0,
        ended.row.head.seq.0 + 3,
        "late facts are counted"
    );
    assert_eq!(
        after.row.pulse.usage.spent.output_tokens, 42,
        "spend that happened is kept"
    );

    let released = pen.release().await;
    assert_eq!(released.driver, None);
    for stage in ["released", "reopened"] {
        let append = pen.append_as(append_id(stage), vec![late(step("b", json!(1)))]);
        let error = world
            .store
            .append(&append)
            .await
            .expect_err("the lease was given back");
        assert!(
            matches!(error, AppendError::Ended(Status::Cancelled)),
            "{stage}: {error:?}"
        );
        world.reopen().await;
    }
    world.finish().await;
}

/// Rule 10: times never decrease within a run; a caller's own time is kept beside.
pub async fn times_never_decrease_and_a_callers_time_is_kept(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("time")).await;
    world.env.advance(Duration::from_secs(60));
    let late = pen.write(vec![phase(Phase::Executing)]).await[0].at;
    assert_eq!(
        late,
        TestEnv::START + Duration::from_secs(60),
        "`at` is the engine's clock"
    );

    world
        .env
        .set_now(TestEnv::START - Duration::from_secs(3600));
    let caller_at = Some(TestEnv::START - Duration::from_secs(7200));
    let events = pen
        .write(vec![Draft {
            caller_at,
            ..step("a", json!(1))
        }])
        .await;
    assert_eq!(
        events[0].at, late,
        "a clock that went back does not take the log back"
    );
    assert_eq!(
        events[0].caller_at, caller_at,
        "a caller's own time is kept"
    );
    let said = Outside::Say {
        text: "hello".into(),
        by: None,
    };
    let said = world.command(&pen.run, "say", said).await;
    assert_eq!(said.events[0].at, late, "nor by a command");
    assert_eq!(world.entry(&pen.run).await.row.updated_at, late);
    world.finish().await;
}

/// Rule 8: a body comes back byte for byte, whatever it holds.
pub async fn a_body_is_stored_exactly_as_it_was_written(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let mut pen = world.driven(task("bytes")).await;
    let texts = [
        r#"{"b":1.0,"a":18446744073709551615, "b":2}"#,
        r#""\u0000 \ud83d\ude00 é 😀 ' \" \\ \n""#,
        "[1e400, -0.0, 0.1e-7, 123456789012345678901234567890]",
        "  null  ",
    ];
    for text in texts {
        let data = Payload::Inline(Json::parse(text).expect("it is JSON"));
        let name = "exact 'quotes' \0 \u{1F600}".to_owned();
        pen.write(vec![Draft::new(logreel_core::event::Custom { data, name })])
            .await;
    }
    for _ in 0..2 {
        let page = world
            .store
            .read(&pen.run, Seq(2), 10)
            .await
            .expect("a page");
        for (record, text) in page.items.iter().zip(texts) {
            let logreel_core::codec::StoredBody::Text(body) = &record.body else {
                panic!("nothing was erased")
            };
            assert!(body.contains(text.trim()), "{body} holds {text} as written");
        }
        world.reopen().await;
    }
    world.finish().await;
}

/// The row is the fold of the whole log, whatever the log speaks of.
pub async fn the_row_is_the_fold_of_the_whole_log(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let started = logreel_core::event::RunStarted {
        budget: Budget {
            tokens: Some(100),
            ..Budget::default()
        },
        ..task("fold")
    };
    let mut pen = world.driven(started).await;
    let run = pen.run;
    let call = CallId::new("t1").expect("a call id");
    let spent = Spend {
        input_tokens: 3,
        output_tokens: 4,
        ..Spend::default()
    };
    let check = Check {
        message: None,
        name: "tests".into(),
        required: true,
        verdict: Verdict::Passed,
    };
    let patch = json!([{ "op": "add", "path": "", "value": { "n": 1 } }]);
    let patch = serde_json::from_value(patch).expect("a patch");
    let deadline = Some(TestEnv::START + Duration::from_secs(30));
    let timer = logreel_core::event::WaitStarted {
        deadline,
        ..wait(1, WaitKind::Timer)
    };
    let appends: Vec<Vec<Draft>> = vec![
        vec![phase(Phase::Planning)],
        vec![phase(Phase::Executing), Draft::new(Turn { turn: 1 })],
        vec![Draft::new(ModelCalled {
            attempt: 1,
            call: CallId::new("m1").expect("a call id"),
            context: None,
            model: "scripted".into(),
            request: None,
            reserved: spent.clone(),
        })],
        vec![Draft::new(ModelAnswered {
            call: CallId::new("m1").expect("a call id"),
            finish_reason: Some("stop".into()),
            message: payload(json!({ "text": "hi" })),
            spent,
            redacted: 0,
        })],
        vec![step_started("write", Effect::Write)],
        vec![Draft::new(ToolCalled {
            arguments: payload(json!({})),
            attempt: 1,
            call: call.clone(),
            effect: Effect::Read,
            key: None,
            name: "fs.read".into(),
            redacted: 0,
        })],
        vec![Draft::new(ToolReturned {
            call,
            output: payload(json!("text")),
            redacted: 0,
        })],
        vec![Draft::new(step_body("write", json!({ "ok": true }), None))],
        vec![Draft::new(StatePatched { patch })],
        vec![Draft::new(timer)],
        vec![Draft::new(ChildStarted {
            budget: Budget::default(),
            child: world.env.run_id(),
            detached: true,
            step: step_id("child"),
        })],
        vec![
            phase(Phase::Verifying),
            Draft::new(Verification::of(vec![check])),
        ],
    ];
    for drafts in appends {
        pen.write(drafts).await;
        super::check_run(&*world.store, &run).await;
    }
    let raise = Budget {
        tokens: Some(11),
        ..Budget::default()
    };
    world
        .command(
            &run,
            "raise",
            Outside::AddBudget {
                add: raise,
                by: None,
                child: None,
                wait: None,
            },
        )
        .await;
    world
        .command(
            &run,
            "pause",
            Outside::Pause {
                reason: Some("lunch".into()),
            },
        )
        .await;
    super::check_run(&*world.store, &run).await;
    let row = world.entry(&run).await.row;
    assert_eq!(row.status(), Status::Waiting);
    assert_eq!(row.facts.budget.tokens, Some(111));
    assert_eq!(row.facts.document, json!({ "n": 1 }));
    assert_eq!(row.pulse.usage.unpriced_calls, 1);
    world
        .command(&run, "resume", Outside::Resume { by: None })
        .await;
    pen.catch_up().await;
    pen.complete(json!({ "answer": 42 })).await;
    assert_eq!(world.entry(&run).await.row.status(), Status::Completed);
    world.finish().await;
}

/// Rule 32: a blob may come before the event that names it. It has an hour for that; then it is as if it
/// had never come.
pub async fn a_blob_that_comes_ahead_of_its_event_is_kept_for_an_hour(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let mut pen = world.driven(task("staged")).await;
    let run = pen.run;
    let named = Blob::new(*b"named by an event");
    let forgotten = Blob::new(*b"forgotten");
    let stage = async |world: &World, blob: &Blob| world.store.stage(&run, blob.clone()).await;
    let is_there = async |world: &World, blob: &Blob| {
        let found = world.store.blob(&blob.digest()).await.expect("a lookup");
        assert!(found.is_none() || found.as_deref() == Some(&blob.bytes()[..]));
        found.is_some()
    };
    for blob in [&named, &forgotten] {
        stage(&world, blob).await.expect("it is kept");
        assert!(is_there(&world, blob).await);
    }
    let append = pen.append(vec![phase(Phase::Executing)]);
    let blobs = vec![named.clone()];
    pen.send(Append { blobs, ..append })
        .await
        .expect("it lands");
    world.reopen().await;

    world.env.advance(Duration::from_secs(59 * 60));
    let newer = Blob::new(*b"newer");
    stage(&world, &newer).await.expect("it is kept");
    // That an event names it does not change when it comes once more.
    stage(&world, &named).await.expect("it is kept");
    assert!(is_there(&world, &forgotten).await, "not yet an hour");
    world.env.advance(Duration::from_secs(60));
    stage(&world, &newer).await.expect("it comes again");
    assert!(!is_there(&world, &forgotten).await, "an hour has passed");
    world.env.advance(Duration::from_secs(59 * 60));
    stage(&world, &forgotten).await.expect("it may come anew");
    assert!(is_there(&world, &newer).await, "it came again since");
    assert!(is_there(&world, &named).await, "an event names it");

    let unknown = world
        .store
        .stage(&RunId::from_bytes([9; 16]), named.clone())
        .await;
    assert!(matches!(unknown, Err(Error::NotFound(_))), "{unknown:?}");
    let length = usize::try_from(harness.payload_bytes_max()).expect("a length") + 1;
    let large = stage(&world, &Blob::new(vec![0; length])).await;
    assert!(matches!(large, Err(Error::TooLarge { .. })), "{large:?}");
    world.cancel(&run).await;
    world
        .store
        .release(&run, Epoch(1), crate::OwnerId(1))
        .await
        .expect("a release");
    world
        .store
        .delete(&run)
        .await
        .expect("an ended run is deleted");
    assert_eq!(
        world.store.stats().await.expect("stats").blobs,
        0,
        "all are gone with their run"
    );
    world.finish().await;
}

/// Rule 32: blobs come with their references, are kept once, and go with the last run that needs them.
pub async fn blobs_live_as_long_as_a_run_refers_to_them(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let value = Json::from(json!("large ".repeat(20_000)));
    let (output, blob) = Payload::of(value);
    let blob = blob.expect("it is over 64 KiB");
    let digest = blob.digest();
    let mut runs = Vec::new();
    for name in ["one", "two"] {
        let mut pen = world.driven(task(name)).await;
        let Draft { body, .. } = step("large", json!(null));
        let logreel_core::Body::StepFinished(finished) = body else {
            panic!("a finished step")
        };
        let finished = logreel_core::event::StepFinished {
            output: output.clone(),
            ..finished
        };
        let append = pen.append(vec![Draft::new(finished)]);
        pen.send(Append {
            blobs: vec![blob.clone()],
            ..append
        })
        .await
        .expect("it lands");
        pen.complete(json!(null)).await;
        pen.release().await;
        runs.push(pen.run);
    }
    let stats = world.store.stats().await.expect("stats");
    assert_eq!(
        (stats.blobs, stats.blob_bytes),
        (1, blob.bytes().len() as u64),
        "kept once"
    );
    for (run, left) in [(None, true), (Some(runs[0]), true), (Some(runs[1]), false)] {
        if let Some(run) = run {
            world
                .store
                .delete(&run)
                .await
                .expect("an ended run is deleted");
        }
        let bytes = world
            .store
            .blob(&digest)
            .await
            .expect("a blob is looked up");
        let expected = left.then(|| blob.bytes().to_vec());
        assert!(
            bytes == expected,
            "there: {}, expected: {left}",
            bytes.is_some()
        );
        world.reopen().await;
    }
    assert_eq!(
        world.store.stats().await.expect("stats").blobs,
        0,
        "nothing refers to it"
    );
    world.finish().await;
}

/// Rule 32: context nodes are followed through `previous`, and event 1 pins the node its session
/// goes on from.
pub async fn context_nodes_stay_while_a_later_run_goes_on_from_them(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let mut first = world.driven(task("first")).await;
    let mut nodes: Vec<Blob> = Vec::new();
    for index in 0..3 {
        let previous = nodes.last().map(Blob::digest);
        let node = Blob::new(format!("message {index} after {previous:?}").into_bytes());
        let added = MessageAdded {
            length: 9,
            node: node.digest(),
            previous,
            role: "user".into(),
            queued: None,
            redacted: 0,
        };
        let append = Append {
            blobs: vec![node.clone()],
            ..first.append(vec![Draft::new(added)])
        };
        if index == 1 {
            // What a node follows is known with its event, also when its bytes came ahead.
            let staged = world.store.stage(&first.run, node.clone()).await;
            staged.expect("it is kept");
        }
        first.send(append).await.expect("it lands");
        nodes.push(node);
    }
    first.complete(json!("done")).await;
    first.release().await;
    let context = Some(nodes[1].digest());
    let next = logreel_core::event::RunStarted {
        context,
        ..task("next")
    };
    let next = world.create(next, None).await.row.run;
    world.cancel(&next).await;
    for (delete, left) in [
        (first.run, [true, true, false]),
        (next, [false, false, false]),
    ] {
        world
            .store
            .delete(&delete)
            .await
            .expect("an ended run is deleted");
        for stage in ["deleted", "reopened"] {
            for (index, node) in nodes.iter().enumerate() {
                let there = world
                    .store
                    .blob(&node.digest())
                    .await
                    .expect("a blob is looked up");
                assert_eq!(there.is_some(), left[index], "{stage}: node {index}");
            }
            world.reopen().await;
        }
    }
    world.finish().await;
}

/// Rule 32: a store may keep what a node says once, where the log has it; nobody sees it. A node reads
/// back whole while a run needs it, also when the run that said it is gone.
pub async fn a_context_node_reads_back_whatever_the_log_has_of_it(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    for heir in ["goes on", "says the same", "forks"] {
        let mut first = world.driven(task("first")).await;
        let nodes = talk(&mut first, heir).await;
        assert_nodes(&world, &nodes, true, "written").await;
        if heir == "forks" {
            fork_and_go_on(&world, &first, &nodes).await;
        }
        first.complete(json!("done")).await;
        first.release().await;
        let context = nodes.last().map(Blob::digest);
        let blobs = world.store.stats().await.expect("stats").blobs;
        let heirs = match heir {
            "goes on" => {
                let next = logreel_core::event::RunStarted {
                    context,
                    ..task("next")
                };
                let next = world.create(next, None).await.row.run;
                world.cancel(&next).await;
                vec![next]
            }
            "says the same" => {
                let mut second = world.driven(task("second")).await;
                talk(&mut second, heir).await;
                second.complete(json!("done")).await;
                second.release().await;
                vec![second.run]
            }
            _ => vec![],
        };
        let now = world.store.stats().await.expect("stats").blobs;
        assert_eq!(now, blobs, "the same node is kept once");
        world.reopen().await;
        assert_nodes(&world, &nodes, true, "reopened").await;
        let mut left = heirs.len();
        for run in std::iter::once(first.run).chain(heirs) {
            let gone = world.store.delete(&run).await;
            gone.expect("an ended run is deleted");
            for stage in ["deleted", "reopened"] {
                assert_nodes(&world, &nodes, left > 0, &format!("{heir}: {stage}")).await;
                world.reopen().await;
            }
            left = left.saturating_sub(1);
        }
        assert_eq!(world.store.stats().await.expect("stats").blobs, 0, "{heir}");
    }
    world.finish().await;
}

/// A conversation whose words are in other events too: in the same append, before it, as they are, in
/// part, and as text that was JSON.
async fn talk(pen: &mut super::world::Pen, subject: &str) -> Vec<Blob> {
    let words = format!("{subject}: \"äöü\" \\ \n\t\u{1} {}", "word ".repeat(400));
    let object = json!({"exit": 0, "stdout": words}).to_string();
    let mut nodes: Vec<Blob> = Vec::new();
    let said = [
        vec![words.clone()],
        vec![object.clone(), words[..words.len() / 2].to_owned()],
        vec![words.to_uppercase(), object, "short".to_owned()],
        vec![],
    ];
    for (index, texts) in said.into_iter().enumerate() {
        let previous = nodes.last().map(Blob::digest);
        let node = json!({"message": {"parts": texts}, "previous": previous}).to_string();
        let node = Blob::new(node.into_bytes());
        let added = Draft::new(MessageAdded {
            length: 9,
            node: node.digest(),
            previous,
            role: "user".into(),
            queued: None,
            redacted: 0,
        });
        let source = custom("said", json!({"exit": 0, "stdout": words}));
        let drafts = match index % 2 {
            0 => vec![source, added],
            _ => {
                pen.write(vec![source]).await;
                vec![added]
            }
        };
        let append = Append {
            blobs: vec![node.clone()],
            ..pen.append(drafts)
        };
        pen.send(append).await.expect("it lands");
        nodes.push(node);
    }
    nodes
}

/// A fork goes on from its parent's nodes and leaves them as they were.
async fn fork_and_go_on(world: &World<'_>, parent: &super::world::Pen, nodes: &[Blob]) {
    let owner = world.owner(1).await;
    let (run, relation) = (world.env.run_id(), logreel_core::event::Relation::Fork);
    let new = crate::NewFork {
        owner: Some(owner),
        ..crate::NewFork::of(run, parent.run, crate::ForkAt::Last, relation)
    };
    let made = world.store.fork(new).await.expect("a fork is made");
    let mut fork = world.pen(made.entry());
    let own = talk(&mut fork, "the fork").await;
    assert_nodes(world, &own, true, "of the fork").await;
    fork.complete(json!("done")).await;
    fork.release().await;
    world.store.delete(&fork.run).await.expect("a fork goes");
    assert_nodes(world, &own, false, "the fork is gone").await;
    assert_nodes(world, nodes, true, "its parent is there").await;
}

async fn assert_nodes(world: &World<'_>, nodes: &[Blob], there: bool, stage: &str) {
    for (index, node) in nodes.iter().enumerate() {
        let found = world.store.blob(&node.digest()).await;
        let found = found.expect("a blob is looked up");
        let expected = there.then(|| node.bytes().to_vec());
        assert!(found == expected, "{stage}: node {index}: {found:?}");
    }
}
