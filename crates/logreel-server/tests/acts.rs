//! What is asked twice is done once; of two who act at once the second is told; a copy is asked about first.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use common::{Said, Site};
use logreel::workflow::Workflow;
use logreel::{Ctx, Entry, Filter, Status, TaskError};
use reqwest::Method;
use serde_json::{Value, json};

fn waits(entry: &Entry) -> bool {
    !entry.row.facts.waits.is_empty()
}

fn kind(said: &Said) -> (u16, String) {
    let kind = said.json()["kind"].as_str().unwrap_or_default().to_owned();
    (said.status, kind)
}

async fn keyed(site: &Site, path: &str, key: &str, body: Value) -> Said {
    let headers = [("idempotency-key", key)];
    site.send(Method::POST, path, &headers, Some(body)).await
}

/// A workflow whose inner one has no time left for its second step; the outer run and the inner.
async fn out_of_time(site: &Site) -> (String, String) {
    let inner = json!({
        "name": "inner", "budget": {"wall": "10ms"},
        "step": [
            {"id": "long", "run": "sleep 0.05"},
            {"id": "more", "needs": ["long"], "run": "echo 7"},
        ],
    });
    let outer = json!({"name": "outer", "budget": {"wall": "1h"}, "step": [{"id": "in", "workflow": inner}]});
    site.engine.workflow(&Workflow::from_json(&outer).unwrap());
    let outer = site.start("outer", Value::Null).await;
    let below = Filter {
        parent: Some(outer.parse().unwrap()),
        ..Filter::default()
    };
    site.until(&outer, |entry| !entry.row.facts.loans.is_empty())
        .await;
    let inner = loop {
        let page = site.engine.store().list(&below, None, 1).await.unwrap();
        if let Some(entry) = page.items.first() {
            break entry.row.run.to_string();
        }
        tokio::task::yield_now().await;
    };
    site.until(&inner, |entry| {
        let mut waits = entry.row.facts.waits.iter();
        waits.any(|open| open.wait.kind.as_str() == "budget")
    })
    .await;
    (outer, inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raise_that_is_sent_again_is_made_once_whoever_it_was_addressed_to() {
    for site in [Site::in_memory().await, Site::on_disk().await] {
        for to_the_child in [false, true] {
            let (outer, inner) = out_of_time(&site).await;
            let run = if to_the_child { &inner } else { &outer };
            let path = format!("/v1/runs/{run}/resume");
            let body = json!({"add_budget": {"wall_ms": 60_000}});
            let first = keyed(&site, &path, "more", body.clone()).await;
            assert_eq!(first.status, 200, "{}", first.text);
            // Also while the run goes on, and when it has ended.
            let second = keyed(&site, &path, "more", body.clone()).await;
            assert_eq!(second.status, 200, "{}", second.text);
            site.until(&outer, |entry| entry.row.status().is_terminal())
                .await;
            let third = keyed(&site, &path, "more", body).await;
            assert_eq!(third.status, 200, "{}", third.text);
            assert_eq!(third.json()["id"], json!(run));
            for (run, limit) in [(&inner, 60_010), (&outer, 3_660_000)] {
                let run = site.get(&format!("/v1/runs/{run}")).await.json();
                assert_eq!(run["budget"]["wall_ms"], limit, "raised once");
                assert_eq!(run["status"], "completed");
            }
            let other = json!({"add_budget": {"wall_ms": 1}});
            let other = keyed(&site, &path, "more", other).await;
            assert_eq!(kind(&other), (409, "conflict".to_owned()), "{}", other.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raise_that_the_spec_forbids_raises_nothing() {
    let site = Site::on_disk().await;
    let (outer, inner) = out_of_time(&site).await;
    site.engine.close().await.unwrap();
    // Another process, where nobody knows this workflow.
    let engine = logreel::Engine::open(site.folder.path().join("runs.db"));
    let next = Site::on(engine.await.unwrap(), |server| server).await;
    let raise = json!({"add_budget": {"wall_ms": 60_000}});
    let said = next.post(&format!("/v1/runs/{inner}/resume"), raise).await;
    assert_eq!(kind(&said), (404, "not_found".to_owned()), "{}", said.text);
    for (run, limit) in [(&inner, 10), (&outer, 3_600_000)] {
        let run = next.get(&format!("/v1/runs/{run}")).await.json();
        assert_eq!(run["budget"]["wall_ms"], limit);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_cancelled_again_answers_with_the_run_that_was_cancelled() {
    for site in [Site::in_memory().await, Site::on_disk().await] {
        let new = || json!({"spec": "ask", "input": "?", "session": "s", "if_busy": "wait"});
        let id = |said: &Said| said.json()["id"].as_str().unwrap().to_owned();
        let first = id(&site.post("/v1/runs", new()).await);
        let cancel = async || keyed(&site, "/v1/sessions/s/cancel", "c", json!({})).await;
        assert_eq!(id(&cancel().await), first);
        let second = id(&site.post("/v1/runs", new()).await);
        let again = cancel().await;
        assert_eq!((again.status, id(&again)), (200, first.clone()));
        // Also when another was cancelled since.
        let other = keyed(&site, "/v1/sessions/s/cancel", "d", json!({})).await;
        assert_eq!(id(&other), second);
        assert_eq!(id(&cancel().await), first);
        let taken = json!({"reason": "other"});
        let taken = keyed(&site, "/v1/sessions/s/cancel", "c", taken).await;
        assert_eq!(kind(&taken), (409, "conflict".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_act_at_once_the_second_is_told() {
    for site in [Site::in_memory().await, Site::on_disk().await] {
        for _ in 0..5 {
            let run = site.start("ask", json!("?")).await;
            site.until(&run, waits).await;
            let path = format!("/v1/runs/{run}");
            let (answer, cancel) = (format!("{path}/answer"), format!("{path}/cancel"));
            let yes = site.post(&answer, json!({"approve": true, "wait": "w1"}));
            let (yes, cancel) = tokio::join!(yes, site.post(&cancel, json!({})));
            site.until(&run, |entry| entry.row.status().is_terminal())
                .await;
            let run = site.get(&path).await.json();
            let terminal = (409, "terminal".to_owned());
            match run["status"].as_str().unwrap() {
                // The answer came first, or it was told that it came too late.
                "cancelled" => {
                    assert_eq!(cancel.status, 200, "{}", cancel.text);
                    assert!(yes.status == 200 || kind(&yes) == terminal, "{}", yes.text);
                }
                status => {
                    assert_eq!((status, yes.status), ("completed", 200));
                    assert_eq!(kind(&cancel), terminal, "{}", cancel.text);
                }
            }

            // By its session too: whoever is told that it was cancelled can rely on it.
            let new = json!({"spec": "ask", "input": "?", "session": "two", "if_busy": "wait"});
            let run = site.post("/v1/runs", new).await.json();
            let run = run["id"].as_str().unwrap();
            site.until(run, waits).await;
            let path = format!("/v1/runs/{run}");
            let yes = format!("{path}/answer");
            let yes = site.post(&yes, json!({"approve": true, "wait": "w1"}));
            let cancel = site.post("/v1/sessions/two/cancel", json!({}));
            let (_, cancel) = tokio::join!(yes, cancel);
            site.until(run, |entry| entry.row.status().is_terminal())
                .await;
            let is_cancelled = site.get(&path).await.json()["status"] == "cancelled";
            assert_eq!(cancel.status, if is_cancelled { 200 } else { 409 });

            let run = site.start("ask", json!("?")).await;
            site.until(&run, waits).await;
            let path = format!("/v1/runs/{run}");
            let (pause, cancel) = (format!("{path}/pause"), format!("{path}/cancel"));
            let pause = site.post(&pause, json!({}));
            let (pause, cancel) = tokio::join!(pause, site.post(&cancel, json!({})));
            assert_eq!(cancel.status, 200, "{}", cancel.text);
            assert!(
                pause.status == 200 || kind(&pause) == terminal,
                "{}",
                pause.text
            );
            let late = site.post(&format!("{path}/pause"), json!({})).await;
            assert_eq!(kind(&late), terminal, "{}", late.text);
            assert_eq!(site.get(&path).await.json()["status"], "cancelled");
        }
        let run = site.start("doubt", Value::Null).await;
        site.until(&run, waits).await;
        let path = format!("/v1/runs/{run}/resolve");
        let resolve = |value: u64| site.post(&path, json!({"call": "publish", "returned": value}));
        let (seven, eight) = tokio::join!(resolve(7), resolve(8));
        let mut both = [kind(&seven), kind(&eight)];
        both.sort();
        assert_eq!(both[0].0, 200, "{} {}", seven.text, eight.text);
        assert_eq!(both[1].0, 409, "{} {}", seven.text, eight.text);
        site.post(&format!("/v1/runs/{run}/resume"), json!({}))
            .await;
        site.until(&run, |entry| entry.row.status().is_terminal())
            .await;
        let expected = if seven.status == 200 { 7 } else { 8 };
        let run = site.get(&format!("/v1/runs/{run}")).await.json();
        assert_eq!(run["output"], expected, "what the first said");

        // Two raises are two raises; one of a run that has ended is told so.
        let (outer, inner) = out_of_time(&site).await;
        let path = format!("/v1/runs/{inner}/resume");
        let raise = |by: u64| site.post(&path, json!({"add_budget": {"wall_ms": by}}));
        let (one, two) = tokio::join!(raise(60_000), raise(70_000));
        let ended = (409, "terminal".to_owned());
        for said in [&one, &two] {
            assert!(said.status == 200 || kind(said) == ended, "{}", said.text);
        }
        site.until(&outer, |entry| entry.row.status().is_terminal())
            .await;
        let limit =
            site.get(&format!("/v1/runs/{inner}")).await.json()["budget"]["wall_ms"].clone();
        let raised = [(&one, 60_000), (&two, 70_000)];
        let raised = raised.iter().filter(|(said, _)| said.status == 200);
        assert_eq!(limit, 10 + raised.map(|(_, by)| by).sum::<u64>());
        assert_eq!(kind(&raise(1).await), ended);

        // For one wait there is one raise, whoever is first.
        let (outer, inner) = out_of_time(&site).await;
        let path = format!("/v1/runs/{inner}/resume");
        let raise = |wait: &str, by: u64| {
            site.post(&path, json!({"add_budget": {"wall_ms": by}, "wait": wait}))
        };
        assert_eq!(raise("w9", 1).await.status, 404);
        let none = site.post(&path, json!({"wait": "w1"})).await;
        assert_eq!(kind(&none), (422, "invalid".to_owned()));
        let (one, two) = tokio::join!(raise("w1", 60_000), raise("w1", 70_000));
        let mut both = [one.status, two.status];
        both.sort_unstable();
        assert_eq!(both, [200, 409], "{} {}", one.text, two.text);
        site.until(&outer, |entry| entry.row.status().is_terminal())
            .await;
        let by = if one.status == 200 { 60_000 } else { 70_000 };
        let inner = site.get(&format!("/v1/runs/{inner}")).await.json();
        assert_eq!(inner["budget"]["wall_ms"], 10 + by);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_tells_what_it_would_write_again_before_it_is_made() {
    for site in [Site::in_memory().await, Site::on_disk().await] {
        site.engine
            .task("send", |ctx: Ctx, fails: bool| async move {
                ctx.step("look")
                    .run(|| async { Ok::<_, TaskError>(1) })
                    .await?;
                let sent = ctx.write_step("send");
                sent.run(|_key| async { Ok::<_, TaskError>(2) }).await?;
                match fails {
                    true => Err(TaskError::new("no").permanent()),
                    false => Ok(3),
                }
            });
        let all = async || site.get("/v1/runs?agent=send").await.json()["items"].clone();
        let run = site.start("send", json!(true)).await;
        site.until(&run, |entry| entry.row.status() == Status::Failed)
            .await;
        let (fork, retry) = (
            format!("/v1/runs/{run}/fork"),
            format!("/v1/runs/{run}/retry"),
        );
        let said = site.post(&fork, json!({"at": 1, "dry_run": true})).await;
        assert_eq!(said.status, 200, "{}", said.text);
        let said = said.json();
        assert_eq!((&said["at"], &said["harmless"]), (&json!(1), &json!(false)));
        let write = &said["again"][0];
        assert_eq!((&write["id"], &write["run"]), (&json!("send"), &json!(run)));
        assert_eq!(write["outcome"], "finished");
        let late = site
            .post(&fork, json!({"at": "last", "dry_run": true}))
            .await;
        assert_eq!(late.json()["harmless"], true, "{}", late.text);
        let kept = site.post(&retry, json!({"dry_run": true})).await.json();
        assert_eq!(kept["harmless"], true);
        let from = json!({"from": "send", "dry_run": true});
        let from = site.post(&retry, from).await.json();
        assert_eq!(from["forgotten"][0]["id"], "send");
        // What would be refused is refused.
        let beyond = json!({"at": 99, "dry_run": true});
        assert_eq!(site.post(&fork, beyond).await.status, 409);
        let given = json!({"at": 1, "results": {"nothing": 1}, "dry_run": true});
        assert_eq!(site.post(&fork, given).await.status, 404);
        assert_eq!(all().await.as_array().unwrap().len(), 1, "nothing was made");
        let made = site.post(&fork, json!({"at": 1, "input": false})).await;
        assert_eq!(made.status, 201, "{}", made.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_takes_no_input_that_its_spec_does_not_take() {
    let site = Site::in_memory().await;
    // The talker of these tests takes texts.
    let agent = site.engine.agent(&json!({"name": "talker"})).unwrap();
    let run = agent.start(&json!("hello")).await.unwrap().id().to_string();
    site.until(&run, waits).await;
    site.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await;
    site.until(&run, |entry| !entry.is_driven()).await;
    let count = async || {
        site.get("/v1/runs").await.json()["items"]
            .as_array()
            .unwrap()
            .len()
    };
    for (verb, body) in [
        ("fork", json!({"at": 1, "input": 7})),
        ("fork", json!({"at": 1, "input": 7, "dry_run": true})),
        ("retry", json!({"input": 7})),
        ("retry", json!({"input": 7, "dry_run": true})),
    ] {
        let said = site.post(&format!("/v1/runs/{run}/{verb}"), body).await;
        assert_eq!(kind(&said), (422, "invalid".to_owned()), "{}", said.text);
        let detail = said.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("does not fit `talker`"), "{detail}");
    }
    assert_eq!(count().await, 1);
    let other = json!({"at": 1, "input": "other"});
    let other = site.post(&format!("/v1/runs/{run}/fork"), other).await;
    assert_eq!(other.status, 201, "{}", other.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_a_client_is_copied_for_the_client_and_a_record_is_not() {
    for site in [Site::in_memory().await, Site::on_disk().await] {
        let new = json!({"spec": "crew", "input": "tides", "driver": "external"});
        let made = site.post("/v1/runs", new).await.json();
        let run = made["run"]["id"].as_str().unwrap().to_owned();
        let secret = made["lease"]["secret"].as_str().unwrap().to_owned();
        let append = async |run: &str, secret: &str, epoch: u64, head: &Value, step: &str| {
            let events = json!([{"kind": "step.finished", "body": {"step": step, "output": 1}}]);
            let body = json!({"epoch": epoch, "expect": head, "append_id": step, "events": events});
            let headers = [("logreel-lease", secret)];
            let path = format!("/v1/runs/{run}/events");
            site.send(Method::POST, &path, &headers, Some(body)).await
        };
        let first = append(&run, &secret, 1, &made["head"], "one").await;
        assert_eq!(first.status, 200, "{}", first.text);
        let last = first.json()["head"]["seq"].clone();
        let copy = keyed(
            &site,
            &format!("/v1/runs/{run}/fork"),
            "f",
            json!({"at": last}),
        )
        .await;
        assert_eq!(copy.status, 201, "{}", copy.text);
        let again = keyed(
            &site,
            &format!("/v1/runs/{run}/fork"),
            "f",
            json!({"at": last}),
        )
        .await;
        assert_eq!(again.json()["id"], copy.json()["id"]);
        let copy = copy.json();
        assert_eq!(
            (&copy["kind"], &copy["steps"][0]["id"]),
            (&json!("external"), &json!("one"))
        );
        let id = copy["id"].as_str().unwrap();
        let lease = format!("/v1/runs/{id}/lease");
        let claim = site.send(Method::POST, &lease, &[], None).await;
        assert_eq!(claim.status, 200, "{}", claim.text);
        let claim = claim.json();
        let secret = claim["lease"]["secret"].as_str().unwrap();
        let epoch = claim["lease"]["epoch"].as_u64().unwrap();
        let second = append(id, secret, epoch, &claim["head"], "two").await;
        assert_eq!(second.status, 200, "{}", second.text);
        let both = site.get(&format!("/v1/runs/{id}")).await.json();
        assert_eq!(both["steps"].as_array().unwrap().len(), 2);

        let recorder =
            site.engine
                .recorder("watched", &json!({"name": "watched"}), |_, input| async {
                    Ok(input)
                });
        let record = recorder.start(&json!(1)).await.unwrap().id().to_string();
        site.until(&record, |entry| entry.row.status().is_terminal())
            .await;
        for body in [json!({"at": 1}), json!({"at": 1, "dry_run": true})] {
            let said = site.post(&format!("/v1/runs/{record}/fork"), body).await;
            assert_eq!(
                kind(&said),
                (409, "not_applicable".to_owned()),
                "{}",
                said.text
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_goes_on_between_two_pages_hides_and_repeats_none() {
    for site in [Site::in_memory().await, Site::on_disk().await] {
        let start = async |n: u64| {
            let new = json!({"spec": "double", "input": n, "session": format!("s:{n}"), "if_busy": "wait"});
            assert_eq!(site.post("/v1/runs", new).await.status, 201);
        };
        for n in 0..4 {
            start(n).await;
        }
        let page = async |cursor: Option<&str>| {
            let cursor = cursor.map(|it| format!("&cursor={}", it.replace(':', "%3A")));
            let path = format!("/v1/sessions?limit=2{}", cursor.unwrap_or_default());
            let page = site.get(&path).await.json();
            let items = page["items"].as_array().unwrap().iter();
            let names: Vec<String> = items
                .map(|it| it["session"].as_str().unwrap().to_owned())
                .collect();
            (names, page["next"].as_str().map(str::to_owned))
        };
        let (names, next) = page(None).await;
        assert_eq!(names, ["s:3", "s:2"]);
        // The one that the page ended with moves to the front.
        start(2).await;
        let (names, end) = page(next.as_deref()).await;
        assert_eq!(
            (names, end),
            (vec!["s:1".to_owned(), "s:0".to_owned()], None)
        );
        for wrong in ["nobody", "x:s", ""] {
            let path = format!("/v1/sessions?cursor={wrong}");
            assert_eq!(site.get(&path).await.status, 400, "{wrong}");
        }
    }
}
