//! Runs that clients drive from outside (SEMANTICS 30 and 32), on both stores.
#![allow(missing_docs, reason = "a test's name is its documentation")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Virtual, kinds, on_both};
use logreel::core::Epoch;
use logreel::core::row::End;
use logreel::*;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A client as its author would write one: it knows its lease and where it believes the log ends.
struct Client {
    engine: Engine,
    run: RunId,
    lease: ExternalLease,
    head: Head,
    sent: u32,
}

impl Client {
    async fn start(engine: &Engine) -> Self {
        let started = engine
            .external()
            .start("crew")
            .input(&"do it")
            .await
            .unwrap();
        let lease = started.lease.expect("a new run is its client's");
        assert_eq!(
            (lease.epoch, started.entry.row.head.seq),
            (Epoch(1), Seq(1))
        );
        Self::of(engine, &started.entry, lease)
    }

    fn of(engine: &Engine, entry: &Entry, lease: ExternalLease) -> Self {
        Self {
            engine: engine.clone(),
            run: entry.row.run,
            lease,
            head: entry.row.head,
            sent: 0,
        }
    }

    fn append(&self, id: &str, facts: &[(&str, Value)]) -> ExternalAppend {
        let facts = facts.iter().map(|(kind, body)| ExternalFact {
            kind: (*kind).to_owned(),
            body: Json::from(body.clone()),
            caller_at: None,
        });
        ExternalAppend {
            epoch: self.lease.epoch,
            secret: self.lease.secret.clone(),
            expect: self.head,
            append_id: id.to_owned(),
            facts: facts.collect(),
        }
    }

    async fn send(&self, append: ExternalAppend) -> Result<ExternalAppended, Error> {
        self.engine.external().append(&self.run, append).await
    }

    async fn tell(&mut self, facts: &[(&str, Value)]) -> Result<Vec<Event>, Error> {
        self.sent += 1;
        let id = format!("append {} of {}", self.sent, self.lease.epoch);
        let appended = self.send(self.append(&id, facts)).await?;
        self.head = appended.head;
        Ok(appended.events)
    }

    async fn entry(&self) -> Entry {
        self.engine.store().entry(&self.run).await.unwrap()
    }

    /// What the client is told, when nothing may be written.
    async fn refused(&mut self, facts: &[(&str, Value)]) -> Error {
        let before = self.entry().await;
        let error = self.tell(facts).await.expect_err("it is refused");
        assert_eq!(self.entry().await, before, "nothing was written");
        error
    }
}

fn step(name: &str, output: Value) -> (&'static str, Value) {
    ("step.finished", json!({"step": name, "output": output}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_records_a_run_and_the_engine_knows_what_it_cannot() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let mut client = Client::start(&engine).await;
        let events = client
            .tell(&[
                ("phase.entered", json!({"phase": "executing"})),
                ("step.started", json!({"step": "look"})),
                (
                    "step.finished",
                    json!({"step": "look", "output": {"found": 2}}),
                ),
                ("turn.started", json!({"turn": 1})),
                (
                    "message.added",
                    json!({"role": "user", "content": "what is 1 + 1?"}),
                ),
                ("model.called", json!({"call": "m1", "model": "some/model"})),
            ])
            .await
            .unwrap();
        let Body::MessageAdded(added) = &events[4].body else {
            panic!("{events:?}")
        };
        let Body::ModelCalled(called) = &events[5].body else {
            panic!("{events:?}")
        };
        assert_eq!(
            called.context,
            Some(added.node),
            "a call is made from the conversation"
        );
        let node = engine.store().blob(&added.node).await.unwrap().unwrap();
        let node: Value = serde_json::from_slice(&node).unwrap();
        assert_eq!(
            node["message"]["parts"],
            json!([{"text": "what is 1 + 1?"}])
        );

        let spent = json!({"input_tokens": 30, "output_tokens": 5, "usd_micros": 70});
        client
            .tell(&[
                (
                    "model.answered",
                    json!({"call": "m1", "message": "2", "spent": spent}),
                ),
                (
                    "tool.called",
                    json!({"call": "t1", "name": "add", "arguments": [1, 1]}),
                ),
                ("tool.returned", json!({"call": "t1", "output": 2})),
                (
                    "state.patched",
                    json!({"patch": [{"op": "add", "path": "", "value": {"n": 2}}]}),
                ),
                (
                    "checkpoint.saved",
                    json!({"checkpoint": "c1", "data": {"at": 1}}),
                ),
                ("run.completed", json!({"output": {"sum": 2}})),
            ])
            .await
            .unwrap();
        engine
            .external()
            .release(&client.run, &client.lease.secret)
            .await
            .unwrap();
        engine.close().await.unwrap();

        let (entry, _) = world.reopened(client.run).await;
        let usage = &entry.row.pulse.usage;
        assert_eq!(
            (usage.spent.input_tokens, usage.spent.usd_micros),
            (30, Some(70))
        );
        assert_eq!((usage.model_calls, usage.tool_calls), (1, 1));
        let ended = entry.row.facts.ended.as_ref().unwrap();
        let End::Completed { output } = &ended.end else {
            panic!("{ended:?}")
        };
        assert_eq!(output.inline().unwrap().to_value(), json!({"sum": 2}));
        let digest = entry.row.final_state_digest(&entry.results, &ended.end);
        assert_eq!(
            ended.final_state_digest, digest,
            "written by whoever can compute it"
        );
        assert_eq!(entry.row.facts.document, json!({"n": 2}));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_fold_refuses_is_named_and_nothing_is_written() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let mut client = Client::start(&engine).await;
        client.tell(&[step("a", json!(1))]).await.unwrap();
        let good = || ("custom", json!({"name": "note", "data": 1}));
        for (bad, what) in [
            (("step.finish", json!({"step": "b"})), "no such kind"),
            (step("a", json!(2)), "has its result already"),
            (("tool.returned", json!({"call": "t9"})), "not under way"),
            (
                ("wait.ended", json!({"wait": "w7", "outcome": "answered"})),
                "not open",
            ),
            (
                ("step.finished", json!({"stepp": "b"})),
                "missing field `step`",
            ),
            (
                ("step.finished", json!({"step": "b", "outptu": 1})),
                "outptu",
            ),
            (("step.finished", json!([1])), "no object"),
            (("message.added", json!({"content": "hi"})), "role"),
            (
                (
                    "model.called",
                    json!({"call": "m", "model": "x", "messages": [{"role": "user"}]}),
                ),
                "message 0",
            ),
            (
                (
                    "state.patched",
                    json!({"patch": [{"op": "remove", "path": "/x"}]}),
                ),
                "patch",
            ),
            (("budget.changed", json!({"budget": {}})), "not a driver's"),
            (("run.forked", json!({})), "not a driver's"),
        ] {
            let error = client.refused(&[good(), bad.clone(), good()]).await;
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            let Error::Fact { index, kind, why } = &error else {
                panic!("{error}")
            };
            assert_eq!((*index, kind.as_str()), (1, bad.0), "{error}");
            assert!(why.contains(what), "{error} does not say {what}");
        }
        let error = client.refused(&[]).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        client.tell(&[good(), step("b", json!(2))]).await.unwrap();
        engine.close().await.unwrap();
        let (_, events) = world.reopened(client.run).await;
        assert_eq!(
            kinds(&events),
            ["run.started", "step.finished", "custom", "step.finished"]
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_tells_what_the_client_has_not_seen() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let mut client = Client::start(&engine).await;
        client.tell(&[step("a", json!(1))]).await.unwrap();
        engine.signal(&client.run, "hurry", &7).await.unwrap();
        engine.pause(&client.run, "lunch").await.unwrap();
        let error = client.refused(&[step("b", json!(2))]).await;
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let Error::HeadMoved(moved) = error else {
            panic!("{error}")
        };
        let since: Vec<&str> = moved
            .since
            .items
            .iter()
            .map(|it| it.kind.as_str())
            .collect();
        assert_eq!(since, ["signal.received", "wait.started"]);
        assert_eq!(moved.head, client.entry().await.row.head);
        assert_eq!(
            moved.since.items.last().map(|it| it.digest),
            Some(moved.head.digest)
        );
        let beyond = Head {
            seq: Seq(u64::MAX),
            ..moved.head
        };
        let seen = std::mem::replace(&mut client.head, beyond);
        let Error::HeadMoved(nothing) = client.refused(&[step("b", json!(2))]).await else {
            panic!("a head that cannot be is a conflict")
        };
        assert_eq!(
            (nothing.head, nothing.since.items),
            (moved.head, Vec::new())
        );
        client.head = seen;
        // A head that never was is no head either.
        client.head = Head {
            digest: Digest::of(b"else"),
            ..moved.head
        };
        assert_eq!(
            client.refused(&[step("b", json!(2))]).await.kind(),
            ErrorKind::Conflict
        );

        // Nobody but the client drives it on; what a person stopped a person lets go on.
        let resumed = engine.resume(&client.run).await.unwrap();
        assert!(matches!(resumed, ResumeOutcome::GoesOn(_)), "{resumed:?}");
        let refused = engine.resume(&client.run).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotApplicable, "{refused}");
        client.head = client.entry().await.row.head;
        client.tell(&[step("b", json!(2))]).await.unwrap();
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_sent_again_gets_its_first_answer_whatever_happened_since() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let mut client = Client::start(&engine).await;
        let append = client.append("once", &[step("a", json!(1)), step("b", json!(2))]);
        let first = client.send(append.clone()).await.unwrap();
        assert!(!first.repeated);
        client.head = first.head;
        client.tell(&[step("c", json!(3))]).await.unwrap();
        engine
            .external()
            .release(&client.run, &client.lease.secret)
            .await
            .unwrap();
        let claim = engine.external().claim(&client.run).await.unwrap();
        let mut next = Client::of(&engine, &claim.entry, claim.lease);
        next.tell(&[("run.failed", json!({"error": "no more"}))])
            .await
            .unwrap();
        engine.close().await.unwrap();

        // Another process, another driver, and the run has ended.
        let engine = world.engine().await;
        client.engine = engine.clone();
        let again = client.send(append.clone()).await.unwrap();
        assert!(again.repeated);
        assert_eq!((again.head, again.events), (first.head, first.events));
        let other = client.append("once", &[step("a", json!(1)), step("b", json!(3))]);
        let taken = client.send(other).await.unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::Conflict);
        assert!(taken.to_string().contains("request id"), "{taken}");
        let nameless = client.append("", &[step("d", json!(1))]);
        assert_eq!(
            client.send(nameless).await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
        engine.close().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_has_the_secret_of_the_latest_lease_appends() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let external = engine.external();
        let mut first = Client::start(&engine).await;
        let run = first.run;
        let driven = external.claim(&run).await.unwrap_err();
        assert_eq!(driven.kind(), ErrorKind::Driven, "{driven}");
        assert!(driven.to_string().contains("external client"), "{driven}");
        let forged = LeaseSecret::new(first.lease.secret.reveal().replace(['a', 'b', 'c'], "d"));
        let good = std::mem::replace(&mut first.lease.secret, forged.clone());
        assert_eq!(
            first.refused(&[step("a", json!(1))]).await.kind(),
            ErrorKind::Forbidden
        );
        assert_eq!(
            external.renew(&run, &forged).await.unwrap_err().kind(),
            ErrorKind::Forbidden
        );
        assert_eq!(
            external.release(&run, &forged).await.unwrap_err().kind(),
            ErrorKind::Forbidden
        );
        first.lease.secret = good;
        first.tell(&[step("a", json!(1))]).await.unwrap();
        let renewed = external.renew(&run, &first.lease.secret).await.unwrap();
        assert_eq!(renewed.epoch, Epoch(1));
        assert!(renewed.expires_at > first.lease.expires_at);

        external.release(&run, &first.lease.secret).await.unwrap();
        let gone = external.renew(&run, &first.lease.secret).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Fenced, "{gone}");
        assert_eq!(
            first.refused(&[step("b", json!(1))]).await.kind(),
            ErrorKind::Fenced
        );
        let claim = external.claim(&run).await.unwrap();
        assert_eq!(claim.lease.epoch, Epoch(2));
        first.head = claim.entry.row.head;
        assert_eq!(
            first.refused(&[step("b", json!(1))]).await.kind(),
            ErrorKind::Fenced
        );
        first.lease.epoch = Epoch(2);
        assert_eq!(
            first.refused(&[step("b", json!(1))]).await.kind(),
            ErrorKind::Forbidden
        );
        let mut second = Client::of(&engine, &claim.entry, claim.lease);
        second.tell(&[step("b", json!(1))]).await.unwrap();

        // What Logreel drives itself takes nothing from outside.
        let task: Task<(), ()> = engine.task("own", |_: Ctx, (): ()| async { Ok(()) });
        let own = task.start(&()).queue().await.unwrap().id();
        let refused = external.claim(&own).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotApplicable, "{refused}");
        engine.close().await.unwrap();
        let (_, events) = world.reopened(run).await;
        let text = format!("{events:?}");
        assert!(
            !text.contains(second.lease.secret.reveal()),
            "a secret is in no log"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_outlives_the_server_that_gave_it() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let mut client = Client::start(&engine).await;
        client.tell(&[step("a", json!(1))]).await.unwrap();
        engine.close().await.unwrap();
        client.engine = world.engine().await;
        client.tell(&[step("b", json!(2))]).await.unwrap();
        let external = client.engine.external();
        let renewed = external.renew(&client.run, &client.lease.secret).await;
        assert_eq!(renewed.unwrap().epoch, Epoch(1));
        let driven = external.claim(&client.run).await.unwrap_err();
        assert_eq!(driven.kind(), ErrorKind::Driven, "{driven}");
        client
            .tell(&[("run.completed", json!({"output": 3}))])
            .await
            .unwrap();
        client.engine.close().await.unwrap();
        let (entry, _) = world.reopened(client.run).await;
        assert_eq!(entry.row.status(), Status::Completed);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_renews_is_orphaned_and_claimed_after_its_time() {
    for world in Virtual::both() {
        let engine = world.engine().await;
        let external = engine.external();
        let mut first = Client::start(&engine).await;
        first
            .tell(&[("step.started", json!({"step": "a"}))])
            .await
            .unwrap();
        // Each append is a sign of life.
        for n in 0..6 {
            engine.env().sleep(Duration::from_secs(6)).await;
            assert!(!first.entry().await.is_orphaned(), "after {n} appends");
            first
                .tell(&[("custom", json!({"name": "n", "data": n}))])
                .await
                .unwrap();
        }
        engine.env().sleep(Duration::from_secs(6)).await;
        let lease = external
            .renew(&first.run, &first.lease.secret)
            .await
            .unwrap();
        engine.env().sleep(Duration::from_secs(6)).await;
        assert!(engine.env().now() < lease.expires_at);
        assert_eq!(
            external.claim(&first.run).await.unwrap_err().kind(),
            ErrorKind::Driven
        );
        engine.env().sleep(Duration::from_secs(6)).await;
        assert!(engine.env().now() > lease.expires_at);
        assert!(first.entry().await.is_orphaned());
        // Nobody took it: it goes on as if nothing had happened.
        first
            .tell(&[("custom", json!({"name": "late"}))])
            .await
            .unwrap();
        assert!(!first.entry().await.is_orphaned());
        engine.env().sleep(Duration::from_secs(20)).await;
        let claim = external.claim(&first.run).await.unwrap();
        assert_eq!(claim.lease.epoch, Epoch(2));
        assert_eq!(
            external
                .renew(&first.run, &first.lease.secret)
                .await
                .unwrap_err()
                .kind(),
            ErrorKind::Fenced
        );
        assert_eq!(
            first.refused(&[step("a", json!(1))]).await.kind(),
            ErrorKind::Fenced
        );
        let mut second = Client::of(&engine, &claim.entry, claim.lease);
        second.tell(&[step("a", json!(2))]).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_after_the_end_is_late_until_the_lease_is_taken_away() {
    for world in Virtual::both() {
        let engine = world.engine().await;
        let mut client = Client::start(&engine).await;
        client
            .tell(&[("step.started", json!({"step": "a"}))])
            .await
            .unwrap();
        engine.cancel(&client.run, "enough").await.unwrap();
        let error = client.refused(&[step("a", json!(1))]).await;
        let Error::HeadMoved(moved) = error else {
            panic!("{error}")
        };
        assert_eq!(moved.since.items[0].kind, "run.cancelled");
        client.head = moved.head;
        let ended = client
            .refused(&[("step.started", json!({"step": "b"}))])
            .await;
        assert_eq!(
            ended.kind(),
            ErrorKind::Terminal,
            "nothing starts any more: {ended}"
        );
        let before = client.entry().await.row.facts.ended.clone();
        let late = client
            .tell(&[step("a", json!(1)), ("run.completed", json!({"output": 1}))])
            .await
            .unwrap();
        assert!(late.iter().all(|event| event.late));
        let entry = client.entry().await;
        assert_eq!(
            (entry.row.status(), entry.row.facts.ended.clone()),
            (Status::Cancelled, before)
        );

        let external = engine.external();
        let renewed = external.renew(&client.run, &client.lease.secret).await;
        let renewed = renewed.unwrap_err();
        assert_eq!(renewed.kind(), ErrorKind::Terminal, "{renewed}");

        // Nothing was heard of it for longer than the lease; nobody took its place.
        engine.env().sleep(Duration::from_secs(20)).await;
        let silent = client.tell(&[("custom", json!({"name": "late"}))]).await;
        assert!(silent.unwrap()[0].late);
        let blob = external.put_blob(&client.run, b"late".to_vec()).await;
        blob.unwrap();
        assert!(
            !client.entry().await.is_driven(),
            "a late fact keeps nobody waiting for the session"
        );
        let released = external.release(&client.run, &client.lease.secret).await;
        released.unwrap();
        let over = client
            .refused(&[("custom", json!({"name": "too late"}))])
            .await;
        assert_eq!(over.kind(), ErrorKind::Terminal, "{over}");
        let claim = engine.external().claim(&client.run).await.unwrap_err();
        assert_eq!(claim.kind(), ErrorKind::Terminal, "{claim}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_closes_although_its_client_goes_on_renewing() {
    for world in Virtual::both() {
        let engine = world.engine().await;
        let external = engine.external();
        let started = external.start("crew").session("s").await.unwrap();
        let mut client = Client::of(&engine, &started.entry, started.lease.unwrap());
        let session = engine.session("s").unwrap();
        let closing = tokio::spawn(async move { session.close().await });
        while !client.entry().await.row.status().is_terminal() {
            tokio::task::yield_now().await;
        }
        client.head = client.entry().await.row.head;
        let begun = engine.env().now();
        while !closing.is_finished() {
            let waited = engine.env().now().since(begun);
            assert!(waited < Duration::from_secs(60), "it hangs");
            let secret = &client.lease.secret;
            let renewed = external.renew(&client.run, secret).await.unwrap_err();
            assert_eq!(renewed.kind(), ErrorKind::Terminal, "{renewed}");
            let late = client.tell(&[("custom", json!({"name": "late"}))]).await;
            assert!(late.is_ok_and(|events| events[0].late) || closing.is_finished());
            engine.env().sleep(Duration::from_secs(3)).await;
        }
        closing.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_leave_runs_alone_that_clients_drive() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let client = Client::start(&engine).await;
        engine
            .external()
            .release(&client.run, &client.lease.secret)
            .await
            .unwrap();
        let task: Task<u32, u32> = engine.task("crew", |_: Ctx, n: u32| async move { Ok(n) });
        let worker = engine.clone();
        let worker = tokio::spawn(async move { worker.work(4).await });
        // A worker that was here, and looked at everything that is ready, has done these.
        for n in 0..5 {
            let run = task.start(&n).queue().await.unwrap();
            assert_eq!(run.wait().await.unwrap(), Outcome::Completed(n));
        }
        let entry = client.entry().await;
        assert_eq!((entry.epoch, entry.driver), (Epoch(1), None));
        let refused = engine.resume(&client.run).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotApplicable, "{refused}");
        engine.close().await.unwrap();
        worker.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_hear_once_of_what_clients_record_and_of_what_others_do_to_their_runs() {
    on_both(|world| async move {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hook = Arc::clone(&heard);
        let builder = world.builder().on_event(move |event: HookEvent| {
            let kind = event.event.body.kind().to_owned();
            hook.lock().unwrap().push(kind);
            async { Ok(()) }
        });
        let engine = builder.build().await.unwrap();
        let mut client = Client::start(&engine).await;
        let append = client.append("once", &[step("a", json!(1))]);
        client.head = client.send(append.clone()).await.unwrap().head;
        client.send(append).await.unwrap();
        engine.signal(&client.run, "hurry", &1).await.unwrap();
        let secret = &client.lease.secret;
        engine
            .external()
            .release(&client.run, secret)
            .await
            .unwrap();
        engine.external().claim(&client.run).await.unwrap();
        engine.cancel(&client.run, "enough").await.unwrap();
        engine.close().await.unwrap();
        let expected = [
            "run.started",
            "step.finished",
            "signal.received",
            "run.resumed",
            "run.cancelled",
        ];
        assert_eq!(*heard.lock().unwrap(), expected);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_restarted_goes_on_from_its_last_checkpoint() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let external = engine.external();
        let start = |engine: &Engine| engine.external().start("crew").input(&"x").key("job-1");
        let started = start(&engine).await.unwrap();
        let mut client = Client::of(&engine, &started.entry, started.lease.unwrap());
        let save = |name: &str, at: u32| {
            (
                "checkpoint.saved",
                json!({"checkpoint": name, "data": {"at": at}, "step": "n"}),
            )
        };
        client
            .tell(&[save("one", 1), save("two", 2), save("three", 3)])
            .await
            .unwrap();
        client
            .tell(&[("checkpoint.deleted", json!({"checkpoint": "three"}))])
            .await
            .unwrap();
        external
            .release(&client.run, &client.lease.secret)
            .await
            .unwrap();
        engine.close().await.unwrap();

        let engine = world.engine().await;
        let found = start(&engine).await.unwrap();
        assert_eq!(found.entry.row.run, client.run);
        assert!(found.lease.is_none(), "it is claimed, not given twice");
        let claim = engine.external().claim(&client.run).await.unwrap();
        let checkpoint = claim.checkpoint.unwrap();
        assert_eq!(
            (checkpoint.checkpoint.as_str(), checkpoint.seq),
            ("two", Seq(3))
        );
        assert_eq!(checkpoint.data.to_value(), json!({"at": 2}));
        let mut client = Client::of(&engine, &claim.entry, claim.lease);
        // Also one that waits is its client's to pick up.
        client
            .tell(&[("wait.started", json!({"kind": "timer", "prompt": "later"}))])
            .await
            .unwrap();
        assert_eq!(client.entry().await.row.status(), Status::Waiting);
        engine
            .external()
            .release(&client.run, &client.lease.secret)
            .await
            .unwrap();
        let claim = engine.external().claim(&client.run).await.unwrap();
        let mut client = Client::of(&engine, &claim.entry, claim.lease);
        client
            .tell(&[
                ("wait.ended", json!({"wait": "w1", "outcome": "elapsed"})),
                ("run.completed", json!({})),
            ])
            .await
            .unwrap();
        engine.close().await.unwrap();
        world.reopened(client.run).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_values_are_blobs_and_blobs_may_come_first() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let external = engine.external();
        let mut client = Client::start(&engine).await;
        let large = "long ".repeat(20_000);
        let events = client.tell(&[step("large", json!(large))]).await.unwrap();
        let Body::StepFinished(finished) = &events[0].body else {
            panic!("{events:?}")
        };
        assert!(finished.output.inline().is_none(), "it is in a blob");
        let value = logreel::value::resolve(&**engine.store(), &finished.output).await.unwrap();
        assert_eq!(value.to_value(), json!(large));

        let bytes = br#"{"a picture":"in words"}"#.to_vec();
        let reference = |digest: Digest| json!({"blob": digest, "bytes": bytes.len(), "media_type": "application/json"});
        let missing = client.refused(&[step("picture", reference(Digest::of(&bytes)))]).await;
        assert!(matches!(&missing, Error::Fact { why, .. } if why.contains("no blob")), "{missing}");
        let digest = external.put_blob(&client.run, bytes.clone()).await.unwrap();
        client.tell(&[step("picture", reference(digest)), ("run.completed", json!({}))]).await.unwrap();
        external.release(&client.run, &client.lease.secret).await.unwrap();
        let over = external.put_blob(&client.run, bytes.clone()).await.unwrap_err();
        assert_eq!(over.kind(), ErrorKind::Terminal);
        engine.close().await.unwrap();
        world.reopened(client.run).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_call_brings_the_messages_that_are_new() {
    on_both(|world| async move {
        let engine = world.engine().await;
        let mut client = Client::start(&engine).await;
        let user = json!({"role": "user", "content": "1 + 1?"});
        let answer = json!({"role": "assistant", "content": "2"});
        let call = |call: &str, messages: &[&Value]| {
            (
                "model.called",
                json!({"call": call, "model": "m", "messages": messages}),
            )
        };
        let first = client.tell(&[call("m1", &[&user])]).await.unwrap();
        assert_eq!(kinds(&first), ["message.added", "model.called"]);
        client
            .tell(&[("model.answered", json!({"call": "m1", "message": answer}))])
            .await
            .unwrap();
        let next = json!({"role": "user", "content": "sure?"});
        let second = client
            .tell(&[call("m2", &[&user, &answer, &next])])
            .await
            .unwrap();
        assert_eq!(
            kinds(&second),
            ["message.added", "message.added", "model.called"]
        );
        let third = client
            .tell(&[
                ("model.failed", json!({"call": "m2", "error": "busy"})),
                call("m3", &[&user, &answer, &next]),
            ])
            .await
            .unwrap();
        assert_eq!(
            kinds(&third),
            ["model.failed", "model.called"],
            "nothing is new"
        );
        // The client made it shorter.
        let short = json!({"role": "user", "content": "we were adding; sure?"});
        let fourth = client
            .tell(&[
                ("model.failed", json!({"call": "m3", "error": "busy"})),
                call("m4", &[&short]),
            ])
            .await
            .unwrap();
        assert_eq!(
            kinds(&fourth),
            ["model.failed", "context.compacted", "model.called"]
        );
        let context = client.entry().await.row.pulse.context;
        let Body::ModelCalled(called) = &fourth[2].body else {
            panic!("{fourth:?}")
        };
        assert_eq!(called.context, context);
        let both = json!({"call": "m5", "model": "m", "context": context, "messages": []});
        client.refused(&[("model.called", both)]).await;
        client
            .tell(&[
                ("model.answered", json!({"call": "m4", "message": "yes"})),
                ("run.completed", json!({})),
            ])
            .await
            .unwrap();
        engine
            .external()
            .release(&client.run, &client.lease.secret)
            .await
            .unwrap();
        // All of it can be carried elsewhere.
        let mut out = Vec::new();
        engine.export_jsonl(&client.run, &mut out).await.unwrap();
        let text = String::from_utf8(out).unwrap();
        let blobs = text
            .lines()
            .filter(|line| line.contains("\"type\":\"blob\""))
            .count();
        assert_eq!(blobs, 4);
        engine.close().await.unwrap();
    })
    .await;
}

fn any_fact() -> impl Strategy<Value = (&'static str, Value)> {
    let name = prop_oneof![Just("a"), Just("b"), Just("c")];
    let effect = prop_oneof![Just("read"), Just("idempotent"), Just("write")];
    (0..14u8, name, effect, 1..3u32).prop_map(|(which, name, effect, n)| match which {
        0 => ("step.started", json!({"step": name, "effect": effect})),
        1 => (
            "step.finished",
            json!({"step": name, "output": n, "effect": effect}),
        ),
        2 => ("step.failed", json!({"step": name, "error": "bad"})),
        3 => (
            "step.retrying",
            json!({"step": name, "attempt": 2, "delay_ms": 0}),
        ),
        4 => (
            "tool.called",
            json!({"call": name, "name": "t", "effect": effect}),
        ),
        5 => ("tool.returned", json!({"call": name, "output": n})),
        6 => (
            "model.called",
            json!({"call": name, "model": "m", "messages": [{"role": "user", "content": name}]}),
        ),
        7 => (
            "model.answered",
            json!({"call": name, "message": "x", "spent": {"input_tokens": n}}),
        ),
        8 => ("message.added", json!({"role": "user", "content": name})),
        9 => ("wait.started", json!({"kind": "approval", "prompt": name})),
        10 => (
            "wait.ended",
            json!({"wait": format!("w{n}"), "outcome": "answered", "approved": true}),
        ),
        11 => (
            "state.patched",
            json!({"patch": [{"op": "add", "path": "", "value": {name: n}}]}),
        ),
        12 => ("turn.started", json!({"turn": n})),
        _ => ("run.completed", json!({"output": n})),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Whatever clients send, and whoever takes over: an append is in the log whole or not at all, what is
    /// in the log folds, and what was refused left nothing.
    #[test]
    fn whatever_clients_send_the_log_holds(
        appends in prop::collection::vec((prop::collection::vec(any_fact(), 1..4), 0..8u8), 1..14),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let engine = Engine::memory().await.unwrap();
            let mut client = Client::start(&engine).await;
            let mut expected = 1;
            for (facts, disturbance) in appends {
                match disturbance {
                    0 => {
                        let external = engine.external();
                        if external.release(&client.run, &client.lease.secret).await.is_ok()
                            && let Ok(claim) = external.claim(&client.run).await
                        {
                            client = Client::of(&engine, &claim.entry, claim.lease);
                            expected += 1;
                        }
                    }
                    1 => {
                        let before = client.entry().await.row.head.seq.0;
                        let _signalled = engine.signal(&client.run, "s", &1).await;
                        client.head = client.entry().await.row.head;
                        expected += client.head.seq.0 - before;
                    }
                    _ => {}
                }
                let before = client.entry().await;
                match client.tell(&facts).await {
                    Ok(events) => {
                        assert!(events.len() >= facts.len());
                        expected += events.len() as u64;
                    }
                    Err(error) => {
                        assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Terminal), "{error}");
                        assert_eq!(client.entry().await, before);
                    }
                }
            }
            let entry = client.entry().await;
            assert_eq!(entry.row.head.seq.0, expected);
            let page = engine.store().events(&client.run, Seq::FIRST, 10_000).await.unwrap();
            let state = logreel::core::replay(client.run, &page.items).unwrap().unwrap();
            assert_eq!(state.row, entry.row);
        });
    }
}
