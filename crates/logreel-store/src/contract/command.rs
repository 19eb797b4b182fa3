//! Rules of outside commands: SEMANTICS 2, 4, 17 and 19.

use std::time::Duration;

use logreel_core::decide::Rejected;
use logreel_core::event::{OnDeadline, Phase, WaitKind, WaitOutcome, WaitStarted};
use logreel_core::row::End;
use logreel_core::{
    AppendId, Body, Digest, Draft, Epoch, Outside, Payload, RequestId, RunId, Seq, Status, WaitId,
};
use serde_json::json;

use super::facts::{payload, phase, step, task, wait};
use super::{Harness, TestEnv, World};
use crate::Error;

fn say(text: &str) -> Outside {
    Outside::Say {
        text: text.into(),
        by: Some("someone".into()),
    }
}

fn approve(wait: Option<u32>) -> Outside {
    let wait = wait.map(WaitId);
    Outside::Answer {
        wait,
        approved: Some(true),
        value: Payload::null(),
        reason: None,
        by: None,
    }
}

/// Rule 4: a command needs no lease, carries no epoch and bumps none, driven or not.
pub async fn a_command_needs_no_lease_and_bumps_no_epoch(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let queued = world.create(task("queued"), None).await;
    let said = world.command(&queued.row.run, "say", say("hello")).await;
    assert_eq!((said.answer, said.repeated), (Ok(()), false));
    assert_eq!((said.events.len(), said.events[0].epoch), (1, Epoch::NONE));
    assert_eq!(
        (said.entry.row.head.seq, said.entry.epoch),
        (Seq(2), Epoch::NONE)
    );

    let mut pen = world.driven(task("driven")).await;
    pen.write(vec![phase(Phase::Executing)]).await;
    let said = world.command(&pen.run, "say", say("hello")).await;
    assert_eq!(
        said.events[0].epoch,
        Epoch(1),
        "it belongs to the driver's epoch"
    );
    assert_eq!(said.entry.epoch, Epoch(1));
    assert!(said.entry.driver.is_some(), "and leaves the lease alone");
    assert_eq!(
        said.entry,
        world.entry(&pen.run).await,
        "the answer shows the run as it is now"
    );

    let error = pen
        .try_write(vec![step("a", json!(1))])
        .await
        .expect_err("the log went on");
    assert!(matches!(error, crate::AppendError::Conflict { head } if head == said.entry.row.head));
    pen.catch_up().await;
    pen.write(vec![step("a", json!(1))]).await;
    world.finish().await;
}

/// Rule 2: the same request id twice gives the same receipt; another id is another request.
pub async fn a_command_sent_twice_gets_the_same_receipt(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let run = world.create(task("steered"), None).await.row.run;
    let first = world.command(&run, "request-1", say("left")).await;
    let other = world.command(&run, "request-2", say("left")).await;
    assert!(
        !other.repeated && other.events[0].seq == Seq(3),
        "another id is another request"
    );
    for stage in ["at once", "reopened", "ended"] {
        if stage == "ended" {
            world.cancel(&run).await;
        }
        let head = world.entry(&run).await.row.head;
        let again = world.command(&run, "request-1", say("left")).await;
        assert!(again.repeated, "{stage}");
        assert_eq!(
            (&again.answer, &again.events),
            (&first.answer, &first.events),
            "{stage}"
        );
        assert_eq!(again.entry.row.head, head, "{stage}: nothing was written");
        assert_eq!(
            again.entry,
            world.entry(&run).await,
            "{stage}: the run as it is now"
        );
        world.reopen().await;
    }
    world.finish().await;
}

/// Rule 2: a request id that comes with another request, or with other arguments, is refused and never
/// taken for the first; it belongs to its run, and is found also once the run has ended.
pub async fn a_request_id_is_for_one_request(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let request = RequestId::new("r1").expect("a name");
    let left = AppendId::request(&request, &Digest::of(b"say left"));
    let right = AppendId::request(&request, &Digest::of(b"say right"));
    let mut pen = world.driven(task("asked")).await;
    let run = pen.run;
    assert_eq!(
        world.store.landed(&run, &left).await.expect("an answer"),
        None
    );
    let ask = async |world: &World, run: &RunId, id: &AppendId, text: &str| {
        world.store.command(run, id, &say(text), Vec::new()).await
    };
    let answered = "a command is answered";
    let first = ask(&world, &run, &left, "left").await.expect(answered);
    pen.catch_up().await;
    pen.write(vec![phase(Phase::Executing)]).await;
    for stage in ["at once", "reopened", "ended"] {
        if stage == "ended" {
            world.cancel(&run).await;
        }
        let head = world.entry(&run).await.row.head;
        let again = ask(&world, &run, &left, "left").await.expect(answered);
        assert_eq!(
            (again.repeated, &again.events),
            (true, &first.events),
            "{stage}"
        );
        let landed = world.store.landed(&run, &left).await.expect("an answer");
        assert_eq!(landed.as_ref(), Some(&first.events), "{stage}");

        let other = ask(&world, &run, &right, "right").await;
        let is_refused = matches!(&other, Err(Error::RequestIdTaken(it)) if *it == run);
        assert!(is_refused, "{stage}: {other:?}");
        let looked = world.store.landed(&run, &right).await;
        assert!(
            matches!(looked, Err(Error::RequestIdTaken(_))),
            "{stage}: {looked:?}"
        );
        assert_eq!(
            world.entry(&run).await.row.head,
            head,
            "{stage}: nothing was written"
        );
        world.reopen().await;
    }
    let other = world.create(task("another"), None).await.row.run;
    let done = ask(&world, &other, &right, "right").await.expect(answered);
    assert!(!done.repeated, "it belongs to its run");
    world.finish().await;
}

/// A cancel ends any run at once, twice is harmless, and its digest is that of the results so far.
pub async fn a_cancel_always_lands_and_twice_is_harmless(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("cancelled")).await;
    pen.write(vec![phase(Phase::Executing), step("a", json!({ "x": 1 }))])
        .await;
    let before = world.entry(&pen.run).await;
    let reason = Some("enough".to_owned());
    let cancelled = world
        .command(
            &pen.run,
            "c1",
            Outside::Cancel {
                reason: reason.clone(),
            },
        )
        .await;
    let ended = cancelled
        .entry
        .row
        .facts
        .ended
        .clone()
        .expect("a cancel is terminal when appended");
    let end = End::Cancelled { reason };
    assert_eq!(ended.end, end);
    let digest = before.row.final_state_digest(&before.results, &end);
    assert_eq!(
        ended.final_state_digest, digest,
        "the final state with the results so far"
    );

    let again = world
        .command(&pen.run, "c2", Outside::Cancel { reason: None })
        .await;
    assert_eq!(
        (again.answer, again.events.len()),
        (Ok(()), 0),
        "cancelling twice is harmless"
    );
    assert_eq!(
        again.entry.row.facts.ended,
        Some(ended),
        "and changes nothing"
    );

    let mut done = world.driven(task("completed")).await;
    done.complete(json!("output")).await;
    let refused = world.cancel(&done.run).await;
    assert_eq!(refused.answer, Err(Rejected::Ended(Status::Completed)));
    assert_eq!(refused.events, [], "a completed run stays completed");
    world.finish().await;
}

/// A refusal that leaves no fact writes nothing, and its id can be used again.
pub async fn a_refused_command_writes_nothing(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("refused")).await;
    let refused = world.command(&pen.run, "answer", approve(None)).await;
    assert_eq!(refused.answer, Err(Rejected::NotWaiting));
    assert_eq!(
        (refused.events.len(), refused.entry.row.head),
        (0, pen.head)
    );
    pen.write(vec![Draft::new(wait(1, WaitKind::Approval))])
        .await;
    let answered = world.command(&pen.run, "answer", approve(None)).await;
    assert_eq!(
        (answered.answer, answered.repeated),
        (Ok(()), false),
        "now there is a wait"
    );
    let again = world.command(&pen.run, "other", approve(Some(1))).await;
    assert_eq!(again.answer, Err(Rejected::WaitHasEnded(WaitId(1))));
    let unknown = world.command(&pen.run, "unknown", approve(Some(2))).await;
    assert_eq!(unknown.answer, Err(Rejected::UnknownWait(WaitId(2))));
    world.finish().await;
}

/// Rule 19: an answer after the deadline is refused, and its transaction records the timeout.
pub async fn an_answer_after_the_deadline_records_the_timeout(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let mut pen = world.driven(task("late answer")).await;
    let deadline = TestEnv::START + Duration::from_secs(60);
    let asked = WaitStarted {
        deadline: Some(deadline),
        on_deadline: Some(OnDeadline::Deny),
        ..wait(1, WaitKind::Approval)
    };
    pen.write(vec![Draft::new(asked)]).await;
    world.env.advance(Duration::from_secs(60));
    let late = world.command(&pen.run, "answer", approve(None)).await;
    let too_late = Err(Rejected::TooLate {
        wait: WaitId(1),
        deadline,
    });
    assert_eq!(late.answer, too_late);
    let [event] = late.events.as_slice() else {
        panic!("one fact, not {:?}", late.events)
    };
    let Body::WaitEnded(ended) = &event.body else {
        panic!("a wait ended, not {event:?}")
    };
    assert_eq!(
        (ended.outcome, ended.approved),
        (WaitOutcome::TimedOut, Some(false))
    );
    assert!(
        late.entry.row.facts.waits.is_empty(),
        "nothing is awaited any more"
    );
    for stage in ["at once", "reopened"] {
        let again = world.command(&pen.run, "answer", approve(None)).await;
        assert!(again.repeated, "{stage}");
        assert_eq!(
            (&again.answer, &again.events),
            (&too_late, &late.events),
            "{stage}"
        );
        world.reopen().await;
    }
    world.finish().await;
}

/// Rule 18: a pause waits at once, whatever is under way; a resume ends it. Both can be repeated.
pub async fn a_pause_waits_at_once_until_a_resume(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let run = world.create(task("paused"), None).await.row.run;
    let pause = || Outside::Pause { reason: None };
    let paused = world.command(&run, "p1", pause()).await;
    assert_eq!(
        (paused.entry.row.status(), paused.entry.ready_at),
        (Status::Waiting, None)
    );
    assert_eq!(
        world.command(&run, "p2", pause()).await.events,
        [],
        "it is paused already"
    );
    let owner = world.owner(1).await;
    let claim = world
        .store
        .claim(&run, owner)
        .await
        .expect("a claim is answered");
    assert!(
        matches!(claim, crate::ClaimOutcome::NotReady(_)),
        "only a person can act: {claim:?}"
    );

    let resumed = world
        .command(&run, "r1", Outside::Resume { by: None })
        .await;
    assert_eq!(resumed.entry.row.status(), Status::Created);
    assert!(
        resumed.entry.ready_at.is_some(),
        "it is ready for a worker again"
    );
    world.claimed(&run, owner).await;
    world.finish().await;
}

/// A signal is kept when nobody awaits it, and ends the wait of its name in the same append.
pub async fn a_signal_ends_its_wait_in_the_same_append(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("signalled")).await;
    let signal = |value| Outside::Signal {
        name: "go".into(),
        value: payload(json!(value)),
    };
    let kept = world.command(&pen.run, "early", signal(1)).await;
    assert_eq!(kept.events.len(), 1);
    pen.catch_up().await;
    let awaited = WaitStarted {
        name: Some("go".into()),
        ..wait(1, WaitKind::Signal)
    };
    pen.write(vec![Draft::new(awaited)]).await;
    let ended = world.command(&pen.run, "now", signal(2)).await;
    let kinds: Vec<&str> = ended.events.iter().map(|event| event.body.kind()).collect();
    assert_eq!(kinds, ["signal.received", "wait.ended"]);
    assert!(ended.entry.row.facts.waits.is_empty());
    world.finish().await;
}
