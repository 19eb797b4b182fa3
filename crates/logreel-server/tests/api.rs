//! Every operation, over a socket, on both stores: what is answered is what is described.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use common::Site;
use logreel::Status;
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_answers_as_described_in_memory() {
    every_operation(Site::in_memory().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_answers_as_described_on_disk() {
    every_operation(Site::on_disk().await).await;
}

async fn every_operation(site: Site) {
    about_the_server(&site).await;
    started_and_found(&site).await;
    listed(&site).await;
    looked_at(&site).await;
    acted_on(&site).await;
    made_of_others(&site).await;
    sessions(&site).await;
    driven_from_outside(&site).await;
    sent_twice(&site).await;
    for_agui(&site).await;
    refused(&site).await;

    let document = logreel_server::openapi::document();
    let seen = site.seen.lock().unwrap().clone();
    let paths = document["paths"].as_object().unwrap().values();
    for operation in paths.flat_map(|path| path.as_object().unwrap().values()) {
        let id = operation["operationId"].as_str().unwrap();
        let good = seen.iter().any(|(it, status)| it == id && *status < 300);
        assert!(good, "{id} never answered well: {seen:?}");
    }
}

async fn for_agui(site: &Site) {
    let input = json!({
        "threadId": "chat", "runId": "r", "messages": [], "forwardedProps": {"input": 21},
    });
    let said = site.post("/v1/agui/double", input).await;
    assert_eq!(said.status, 200, "{}", said.text);
    assert!(said.header("logreel-run").starts_with("run_"));
    assert!(said.text.contains("\"result\":42"), "{}", said.text);
}

async fn about_the_server(site: &Site) {
    let health = site.get("/health").await;
    assert_eq!(health.status, 200);
    assert_eq!(health.json()["writer"], "alive");
    let metrics = site.get("/metrics").await.text;
    assert!(
        metrics.contains("logreel_runs{status=\"completed\"} 0"),
        "{metrics}"
    );
    assert!(metrics.contains("route=\"/health\""), "{metrics}");
    assert_eq!(site.get("/openapi.json").await.json()["openapi"], "3.1.0");
    assert_eq!(
        site.get("/v1/events?limit=1").await.json()["has_more"],
        false
    );
    let specs = site.get("/v1/specs").await.json();
    assert_eq!(specs["items"][0]["name"], "ask");
}

async fn started_and_found(site: &Site) {
    let new = json!({
        "spec": "double", "input": 21, "key": "k1", "labels": {"team": "core"},
        "id": "run_0197b0a0-0001-7000-8000-000000000001",
    });
    let made = site.post("/v1/runs", new.clone()).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let id = made.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(made.header("location"), format!("/v1/runs/{id}"));
    let again = site.post("/v1/runs", new).await;
    assert_eq!((again.status, &again.json()["id"]), (200, &json!(id)));
    let other = json!({"spec": "double", "input": 22, "key": "k1"});
    let other = site.post("/v1/runs", other).await;
    assert_eq!(
        (other.status, &other.json()["kind"]),
        (409, &json!("conflict"))
    );
    site.until(&id, |entry| entry.row.status() == Status::Completed)
        .await;
    let run = site.get(&format!("/v1/runs/{id}")).await.json();
    assert_eq!(
        (&run["output"], &run["steps"][0]["output"]),
        (&json!(42), &json!(42))
    );

    // The header is the key when nothing else is.
    let headers = [("idempotency-key", "k2")];
    let new = || Some(json!({"spec": "double", "input": 1}));
    let first = site.send(Method::POST, "/v1/runs", &headers, new()).await;
    let second = site.send(Method::POST, "/v1/runs", &headers, new()).await;
    assert_eq!((first.status, second.status), (201, 200));
    assert_eq!(first.json()["id"], second.json()["id"]);
}

/// A client that drives its own run, loses it to another, and is cancelled.
async fn driven_from_outside(site: &Site) {
    let new = json!({
        "spec": {"name": "essayist"}, "input": "tides", "key": "outside", "driver": "external",
    });
    let made = site.post("/v1/runs", new.clone()).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let made = made.json();
    let path = format!("/v1/runs/{}", made["run"]["id"].as_str().unwrap());
    assert_eq!(
        (&made["lease"]["epoch"], &made["head"]["seq"]),
        (&json!(1), &json!(1))
    );
    let secret = made["lease"]["secret"].as_str().unwrap().to_owned();
    let again = site.post("/v1/runs", new).await;
    assert_eq!((again.status, &again.json()["lease"]), (200, &Value::Null));
    let driven = site
        .send(Method::POST, &format!("{path}/lease"), &[], None)
        .await;
    assert_eq!(
        (driven.status, &driven.json()["kind"]),
        (409, &json!("driven"))
    );

    let events = format!("{path}/events");
    let append = |epoch: u64, head: &Value, id: &str, events: Value| {
        Some(json!({"epoch": epoch, "expect": head, "append_id": id, "events": events}))
    };
    let with = |secret: &str| [("logreel-lease".to_owned(), secret.to_owned())];
    let send = async |secret: &str, body: Option<Value>| {
        let headers = with(secret);
        let headers = headers.each_ref().map(|(name, value)| (&**name, &**value));
        site.send(Method::POST, &events, &headers, body).await
    };
    let said = json!([
        {"kind": "message.added", "body": {"role": "user", "content": "hi"}},
        {"kind": "step.finished", "body": {"step": "one", "output": 1}, "caller_at": "2026-01-01T00:00:00.000000Z"},
    ]);
    let first = send(&secret, append(1, &made["head"], "a1", said.clone())).await;
    assert_eq!(first.status, 200, "{}", first.text);
    assert!(
        first.json()["events"][0]["body"]["node"].is_string(),
        "{}",
        first.text
    );
    let repeated = send(&secret, append(1, &made["head"], "a1", said))
        .await
        .json();
    assert_eq!(
        (&repeated["repeated"], &repeated["head"]),
        (&json!(true), &first.json()["head"])
    );
    let head = first.json()["head"].clone();
    let note = json!([{"kind": "custom", "body": {"name": "note"}}]);
    let forged = send("0000", append(1, &head, "a2", note.clone())).await;
    assert_eq!(
        (forged.status, &forged.json()["kind"]),
        (403, &json!("forbidden"))
    );
    let nameless = site
        .send(
            Method::POST,
            &events,
            &[],
            append(1, &head, "a2", note.clone()),
        )
        .await;
    assert_eq!(nameless.status, 403, "{}", nameless.text);
    let bad = json!([{"kind": "tool.returned", "body": {"call": "t1"}}]);
    let bad = send(&secret, append(1, &head, "a2", bad)).await;
    assert_eq!((bad.status, &bad.json()["kind"]), (422, &json!("invalid")));
    let detail = bad.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("event 0 (tool.returned)"), "{detail}");

    site.post(&format!("{path}/signals/hurry"), json!({"value": 1}))
        .await;
    let moved = send(&secret, append(1, &head, "a2", note.clone())).await;
    assert_eq!(
        (moved.status, &moved.json()["kind"]),
        (409, &json!("conflict"))
    );
    let moved = moved.json();
    assert_eq!(moved["events"][0]["kind"], "signal.received");
    assert_eq!(moved["head"]["digest"], moved["events"][0]["digest"]);
    let resumed = site
        .send(Method::POST, &format!("{path}/resume"), &[], None)
        .await;
    assert_eq!(
        (resumed.status, &resumed.json()["kind"]),
        (409, &json!("not_applicable"))
    );

    let bytes = b"{\"large\":true}";
    let digest = logreel::Digest::of(bytes);
    let blob = format!("/v1/blobs/{digest}?run={}", &path["/v1/runs/".len()..]);
    let put = site.request(Method::PUT, &blob).body(bytes.to_vec());
    assert_eq!(site.checked(Method::PUT, &blob, put).await.status, 204);
    let wrong = site.request(Method::PUT, &blob).body("other");
    assert_eq!(site.checked(Method::PUT, &blob, wrong).await.status, 422);
    let lease = format!("{path}/lease");
    let headers = [("logreel-lease", secret.as_str())];
    let renewed = site.send(Method::PUT, &lease, &headers, None).await;
    assert_eq!(renewed.status, 200, "{}", renewed.text);
    let released = site.send(Method::DELETE, &lease, &headers, None).await;
    assert_eq!(released.status, 200, "{}", released.text);
    let claim = site.send(Method::POST, &lease, &[], None).await.json();
    assert_eq!(claim["lease"]["epoch"], 2);
    let fenced = send(&secret, append(1, &claim["head"], "a3", note.clone())).await;
    assert_eq!(
        (fenced.status, &fenced.json()["kind"]),
        (409, &json!("fenced"))
    );

    site.post(&format!("{path}/cancel"), json!({"reason": "enough"}))
        .await;
    let secret = claim["lease"]["secret"].as_str().unwrap();
    let ended = send(secret, append(2, &claim["head"], "a4", note.clone()))
        .await
        .json();
    assert_eq!(ended["events"][0]["kind"], "run.cancelled", "{ended}");
    let late = send(secret, append(2, &ended["head"], "a5", note))
        .await
        .json();
    assert_eq!(late["events"][0]["late"], true);
    let started = json!([{"kind": "step.started", "body": {"step": "two"}}]);
    let over = send(secret, append(2, &late["head"], "a6", started)).await;
    assert_eq!(
        (over.status, &over.json()["kind"]),
        (409, &json!("terminal"))
    );
}

/// Every command, sent twice under one key: done once, answered alike.
async fn sent_twice(site: &Site) {
    let waits = |entry: &logreel::Entry| !entry.row.facts.waits.is_empty();
    let count =
        async |run: &str| site.get(&format!("/v1/runs/{run}")).await.json()["event_count"].clone();
    let twice = async |path: String, body: Value, key: &str| {
        let headers = [("idempotency-key", key)];
        let first = site
            .send(Method::POST, &path, &headers, Some(body.clone()))
            .await;
        let second = site.send(Method::POST, &path, &headers, Some(body)).await;
        assert_eq!(
            first.status, second.status,
            "{path}: {} {}",
            first.text, second.text
        );
        assert_eq!(first.json()["id"], second.json()["id"]);
        first.status
    };
    let run = site.start("ask", json!("twice?")).await;
    site.until(&run, waits).await;
    let path = format!("/v1/runs/{run}");
    assert_eq!(
        twice(format!("{path}/signals/go"), json!({"value": 1}), "s").await,
        200
    );
    let (before, other) = (count(&run).await, json!({"value": 2}));
    let headers = [("idempotency-key", "s")];
    let taken = site
        .send(
            Method::POST,
            &format!("{path}/signals/go"),
            &headers,
            Some(other),
        )
        .await;
    assert_eq!(
        (taken.status, &taken.json()["kind"]),
        (409, &json!("conflict"))
    );
    assert_eq!(count(&run).await, before, "once");
    assert_eq!(twice(format!("{path}/pause"), json!({}), "p").await, 200);
    assert_eq!(twice(format!("{path}/resume"), json!({}), "r").await, 200);
    assert_eq!(
        twice(format!("{path}/answer"), json!({"approve": true}), "a").await,
        200
    );
    site.until(&run, |entry| entry.row.status().is_terminal())
        .await;
    let kinds = site.get(&format!("{path}/events?limit=1000")).await.json();
    let kinds: Vec<&str> = kinds["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["kind"].as_str().unwrap())
        .collect();
    let of = |kind: &str| kinds.iter().filter(|it| **it == kind).count();
    assert_eq!(
        (of("signal.received"), of("wait.ended")),
        (1, 2),
        "{kinds:?}"
    );
    let run = site.start("ask", json!("cancelled twice?")).await;
    assert_eq!(
        twice(format!("/v1/runs/{run}/cancel"), json!({}), "c").await,
        200
    );
    assert_eq!(
        twice(format!("/v1/runs/{run}/retry"), json!({}), "t").await,
        201
    );
    assert_eq!(
        twice(format!("/v1/runs/{run}/fork"), json!({"at": 1}), "f").await,
        201
    );
}

async fn listed(site: &Site) {
    for n in 0..5 {
        site.start("double", json!(n)).await;
    }
    let mut path = "/v1/runs?limit=2&agent=double".to_owned();
    let (mut count, mut pages) = (0, 0);
    loop {
        let page = site.get(&path).await.json();
        count += page["items"].as_array().unwrap().len();
        pages += 1;
        let Some(next) = page["next"].as_str() else {
            assert_eq!(page["has_more"], false);
            break;
        };
        path = format!("/v1/runs?limit=2&agent=double&cursor={next}");
    }
    assert_eq!((count, pages), (7, 4));
    let found = |page: Value| page["items"].as_array().unwrap().len();
    assert_eq!(
        found(site.get("/v1/runs?label=team%3Dcore").await.json()),
        1
    );
    assert_eq!(
        found(site.get("/v1/runs?label=team%3Dother").await.json()),
        0
    );
    assert_eq!(
        found(site.get("/v1/runs?since=1h&search=double").await.json()),
        7
    );
    assert_eq!(
        found(site.get("/v1/runs?status=failed,cancelled").await.json()),
        0
    );
    let first = "/v1/runs/run_0197b0a0-0001-7000-8000-000000000001";
    assert_eq!(
        found(
            site.get("/v1/runs?same_spec=run_0197b0a0-0001")
                .await
                .json()
        ),
        7
    );
    assert_eq!(
        found(
            site.get("/v1/runs?same_state=run_0197b0a0-0001")
                .await
                .json()
        ),
        1
    );
    assert_eq!(
        found(site.get("/v1/runs?parent=run_0197b0a0-0001").await.json()),
        0
    );
    let bare = site.get(&format!("{first}?steps=false")).await.json();
    assert_eq!(bare.get("steps"), None);
    // The short form and @last name runs too.
    assert_eq!(site.get("/v1/runs/00000001").await.json()["id"], first[9..]);
    assert_eq!(site.get("/v1/runs/@last").await.json()["input"], 4);
}

async fn looked_at(site: &Site) {
    let run = "/v1/runs/run_0197b0a0-0001-7000-8000-000000000001";
    let whole = site.get(run).await;
    let tag = whole.header("etag").to_owned();
    let none = [("if-none-match", &*tag)];
    assert_eq!(site.send(Method::GET, run, &none, None).await.status, 304);
    let other = [("if-none-match", "W/\"0\", W/\"1\"")];
    assert_eq!(site.send(Method::GET, run, &other, None).await.status, 200);
    let before = site.get(&format!("{run}?at=1")).await.json();
    assert_eq!(
        (&before["status"], &before["event_count"]),
        (&json!("created"), &json!(1))
    );
    assert_eq!(site.get(&format!("{run}?at=99")).await.status, 404);

    let page = site.get(&format!("{run}/events?limit=2")).await.json();
    assert_eq!(
        (&page["next"], &page["has_more"]),
        (&json!(3), &json!(true))
    );
    let rest = site.get(&format!("{run}/events?from=3")).await.json();
    assert_eq!(rest["has_more"], false);
    let last = rest["items"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["kind"], "run.completed");
    assert_eq!(last["digest"], whole.json()["head_digest"]);

    let diff = site.get(&format!("{run}/diff/@last")).await.json();
    assert_eq!(diff["equal"], false);
    let same = site.get(&format!("{run}/diff/00000001")).await.json();
    assert_eq!(same["equal"], true);

    let lines = site.get(&format!("{run}/export")).await;
    assert_eq!(
        lines.text.lines().count() as u64,
        whole.json()["event_count"].as_u64().unwrap() + 1
    );
    let reel = site.request(Method::GET, &format!("{run}/export?format=reel"));
    assert_eq!(reel.send().await.unwrap().status(), 200);
    // What ended has nothing to go on with elsewhere; what waits has.
    let checkpoint = site.get(&format!("{run}/export?format=checkpoint")).await;
    assert_eq!(
        (checkpoint.status, &checkpoint.json()["kind"]),
        (409, &json!("terminal"))
    );
    let waiting = site.start("ask", json!("?")).await;
    site.until(&waiting, |entry| !entry.row.facts.waits.is_empty())
        .await;
    let path = format!("/v1/runs/{waiting}/export?format=checkpoint");
    let checkpoint = site.get(&path).await;
    assert_eq!(checkpoint.status, 200, "{}", checkpoint.text);
    let version = &checkpoint.json()["schema_version"];
    assert!(version.is_u64(), "{}", checkpoint.text);

    let large = site.start("large", json!(100_000)).await;
    site.until(&large, |entry| entry.row.status().is_terminal())
        .await;
    let output = site.get(&format!("/v1/runs/{large}")).await.json()["output"].clone();
    let digest = output["blob"].as_str().unwrap();
    let blob = site.get(&format!("/v1/blobs/{digest}")).await;
    assert_eq!(blob.text.len() as u64, output["bytes"].as_u64().unwrap());
    let none = [("if-none-match", &*format!("\"{}\"", &digest[7..]))];
    let known = site
        .send(Method::GET, &format!("/v1/blobs/{digest}"), &none, None)
        .await;
    assert_eq!(known.status, 304);
    let unknown = digest.replace(&digest[7..12], "00000");
    assert_eq!(site.get(&format!("/v1/blobs/{unknown}")).await.status, 404);
    assert_eq!(site.get("/v1/blobs/nothing").await.status, 404);
}

async fn acted_on(site: &Site) {
    let waits = |entry: &logreel::Entry| !entry.row.facts.waits.is_empty();
    let run = site.start("ask", json!("Publish?")).await;
    site.until(&run, waits).await;
    let path = format!("/v1/runs/{run}");
    let waiting = site.get(&path).await.json()["waiting"][0].clone();
    assert_eq!(
        (&waiting["id"], &waiting["prompt"]),
        (&json!("w1"), &json!("Publish?"))
    );
    for wrong in [
        json!({}),
        json!({"approve": true, "deny": true}),
        json!({"approve": false}),
        json!({"approve": true, "wait": 1}),
        json!({"approve": true, "why": "x"}),
    ] {
        let said = site.post(&format!("{path}/answer"), wrong.clone()).await;
        assert_eq!(
            (said.status, &said.json()["kind"]),
            (422, &json!("invalid")),
            "{wrong}"
        );
    }
    let unknown = json!({"approve": true, "wait": "w9"});
    assert_eq!(
        site.post(&format!("{path}/answer"), unknown).await.status,
        404
    );
    let paused = site
        .post(&format!("{path}/pause"), json!({"reason": "lunch"}))
        .await;
    assert_eq!(
        (paused.status, &paused.json()["status"]),
        (200, &json!("waiting"))
    );
    let resumed = site.post(&format!("{path}/resume"), json!({})).await;
    assert_eq!(resumed.status, 200, "{}", resumed.text);
    let yes = json!({"approve": true, "wait": "w1", "reason": "fine"});
    let answered = site.post(&format!("{path}/answer"), yes.clone()).await;
    assert_eq!(answered.status, 200, "{}", answered.text);
    // Said twice it is said once; another answer comes too late.
    assert_eq!(site.post(&format!("{path}/answer"), yes).await.status, 200);
    let no = site
        .post(
            &format!("{path}/answer"),
            json!({"deny": true, "wait": "w1"}),
        )
        .await;
    assert_eq!(no.status, 409);
    site.until(&run, |entry| entry.row.status().is_terminal())
        .await;
    assert_eq!(site.get(&path).await.json()["output"], true);
    let over = site.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!(
        (over.status, &over.json()["kind"]),
        (409, &json!("terminal"))
    );

    let run = site.start("listen", json!("go")).await;
    site.until(&run, waits).await;
    let path = format!("/v1/runs/{run}");
    let sent = site
        .post(&format!("{path}/signals/go"), json!({"value": {"n": 1}}))
        .await;
    assert_eq!(sent.status, 200, "{}", sent.text);
    site.until(&run, |entry| entry.row.status().is_terminal())
        .await;
    assert_eq!(site.get(&path).await.json()["output"], json!({"n": 1}));
    let deaf = site
        .post(&format!("{path}/messages"), json!({"text": "hi"}))
        .await;
    assert_eq!(
        (deaf.status, &deaf.json()["kind"]),
        (409, &json!("not_applicable"))
    );

    let agent = site.engine.agent(&json!({"name": "talker"})).unwrap();
    let run = agent.start(&json!("hello")).await.unwrap().id().to_string();
    site.until(&run, waits).await;
    let path = format!("/v1/runs/{run}");
    let headers = [("idempotency-key", "hi")];
    let message = || Some(json!({"text": "shorter, please"}));
    let say = format!("{path}/messages");
    let said = site.send(Method::POST, &say, &headers, message()).await;
    let again = site.send(Method::POST, &say, &headers, message()).await;
    assert_eq!((said.status, again.status), (200, 200), "{}", said.text);
    let receipt: u64 = said.header("logreel-receipt").parse().unwrap();
    assert_eq!(again.header("logreel-receipt"), receipt.to_string());
    let event = site
        .get(&format!("{path}/events?from={receipt}&limit=1"))
        .await
        .json();
    assert_eq!(event["items"][0]["body"]["text"], "shorter, please");
    assert_eq!(site.post(&say, json!({"text": " "})).await.status, 422);
    site.post(&format!("{path}/cancel"), json!({})).await;

    let run = site.start("doubt", json!(null)).await;
    site.until(&run, waits).await;
    let path = format!("/v1/runs/{run}");
    let unsaid = site
        .post(&format!("{path}/resolve"), json!({"call": "publish"}))
        .await;
    assert_eq!(unsaid.status, 422);
    let other = json!({"call": "other", "returned": 7});
    assert_eq!(
        site.post(&format!("{path}/resolve"), other).await.status,
        409
    );
    let resolved = json!({"call": "publish", "returned": 7});
    let resolved = site.post(&format!("{path}/resolve"), resolved).await;
    assert_eq!(resolved.status, 200, "{}", resolved.text);
    site.post(&format!("{path}/resume"), json!({})).await;
    site.until(&run, |entry| entry.row.status().is_terminal())
        .await;
    assert_eq!(site.get(&path).await.json()["output"], 7);
    let limit = json!({"add_budget": {"tokens": 5}});
    assert_eq!(
        site.post(&format!("{path}/resume"), limit).await.status,
        409
    );
    let nothing = json!({"add_budget": {"tokens": 0}});
    assert_eq!(
        site.post(&format!("{path}/resume"), nothing).await.status,
        422
    );
}

async fn made_of_others(site: &Site) {
    let run = site.start("fail", json!("no route")).await;
    site.until(&run, |entry| entry.row.status().is_terminal())
        .await;
    let path = format!("/v1/runs/{run}");
    let failed = site.get(&path).await.json();
    assert_eq!(failed["error"]["message"], "no route");
    let headers = [("idempotency-key", "once")];
    let retry = format!("{path}/retry");
    let first = site.send(Method::POST, &retry, &headers, None).await;
    let second = site.send(Method::POST, &retry, &headers, None).await;
    assert_eq!((first.status, second.status), (201, 201), "{}", first.text);
    assert_eq!(first.header("location"), second.header("location"));
    assert_eq!(first.json()["parent"]["relation"], "retry");
    let fork = format!("{path}/fork");
    let forked = site.post(&fork, json!({"at": 1, "input": "other"})).await;
    assert_eq!(forked.status, 201, "{}", forked.text);
    let id = forked.json()["id"].as_str().unwrap().to_owned();
    site.until(&id, |entry| entry.row.status().is_terminal())
        .await;
    let events = site.get(&format!("/v1/runs/{id}/events")).await.json();
    assert_eq!(events["items"][0]["origin"], json!(run));
    for (at, status) in [
        (json!(99), 409),
        (json!("soon"), 422),
        (json!(0), 422),
        (json!("step:no"), 404),
    ] {
        let said = site.post(&fork, json!({"at": at})).await;
        assert_eq!(said.status, status, "{at}: {}", said.text);
    }
}

async fn sessions(site: &Site) {
    let new = |input: &str| json!({"spec": "ask", "input": input, "session": "repo/42"});
    let first = site.post("/v1/runs", new("a")).await;
    assert_eq!(first.status, 201);
    let busy = site.post("/v1/runs", new("b")).await;
    assert_eq!((busy.status, &busy.json()["kind"]), (409, &json!("busy")));
    assert!(
        busy.json()["detail"]
            .as_str()
            .unwrap()
            .contains(first.json()["id"].as_str().unwrap())
    );
    let all = site.get("/v1/sessions").await.json();
    assert_eq!(all["items"][0]["session"], "repo/42");
    let cancelled = site
        .post("/v1/sessions/repo%2F42/cancel", json!({"reason": "enough"}))
        .await;
    assert_eq!(
        (cancelled.status, &cancelled.json()["status"]),
        (200, &json!("cancelled"))
    );
    assert_eq!(cancelled.json()["reason"], "enough");
    let again = site
        .post(
            &format!(
                "/v1/runs/{}/cancel",
                cancelled.json()["id"].as_str().unwrap()
            ),
            json!({}),
        )
        .await;
    assert_eq!(again.status, 200);
    let run = cancelled.json()["id"].as_str().unwrap().to_owned();
    site.until(&run, |entry| !entry.is_driven()).await;
    let twice = site.post("/v1/sessions/repo%2F42/cancel", json!({})).await;
    assert_eq!(
        (twice.status, &twice.json()["reason"]),
        (200, &json!("enough"))
    );
    let closed = site
        .send(Method::POST, "/v1/sessions/repo%2F42/close", &[], None)
        .await;
    assert_eq!(
        (closed.status, &closed.json()["closed"]),
        (200, &json!(true))
    );
    assert_eq!(site.post("/v1/runs", new("c")).await.status, 409);
    assert_eq!(
        site.post("/v1/sessions/nobody/close", json!({}))
            .await
            .status,
        404
    );
}

async fn refused(site: &Site) {
    let nowhere = "/v1/runs/run_0197b0a0-0001-7000-8000-0000000000ff";
    for (method, path, status) in [
        (Method::GET, nowhere.to_owned(), 404),
        (Method::GET, format!("{nowhere}/events"), 404),
        (Method::POST, format!("{nowhere}/cancel"), 404),
        (Method::GET, "/v1/runs/no%20run".to_owned(), 404),
        (Method::GET, "/v1/runs/%FF".to_owned(), 404),
        (Method::GET, "/v1/runs/run_".to_owned(), 400),
        (Method::GET, "/v1/nothing".to_owned(), 404),
        (Method::GET, "/v1".to_owned(), 404),
        (Method::DELETE, "/v1/runs".to_owned(), 405),
        (Method::GET, format!("{nowhere}/cancel"), 405),
        (Method::OPTIONS, "/v1/runs".to_owned(), 405),
        (Method::GET, "/v1/runs?limit=0".to_owned(), 400),
        (Method::GET, "/v1/runs?limit=x".to_owned(), 400),
        (Method::GET, "/v1/runs?limit=1&limit=2".to_owned(), 400),
        (Method::GET, "/v1/runs?status=done".to_owned(), 400),
        (Method::GET, "/v1/runs?since=soon".to_owned(), 400),
        (Method::GET, "/v1/runs?label=x".to_owned(), 400),
        (Method::GET, "/v1/runs?cursor=x".to_owned(), 400),
        (Method::GET, "/v1/runs?colour=red".to_owned(), 400),
        (Method::GET, "/health?x=1".to_owned(), 400),
    ] {
        let said = site.send(method.clone(), &path, &[], None).await;
        assert_eq!(said.status, status, "{method} {path}: {}", said.text);
        assert_eq!(said.header("content-type"), "application/problem+json");
        if status == 405 {
            assert!(!said.header("allow").is_empty());
        }
    }
    let unknown = site.get("/v1/runs?colour=red").await.json();
    assert!(
        unknown["detail"].as_str().unwrap().contains("\"colour\""),
        "{unknown}"
    );
    for (body, status, says) in [
        (json!({"spec": "double", "colour": "red"}), 422, "`colour`"),
        (json!({"input": 1}), 422, "`spec`"),
        (json!({"spec": 1}), 422, "`spec`"),
        (json!({"spec": "nothing"}), 404, "\"nothing\""),
        (json!({"spec": "double", "id": "run_1"}), 422, "run_1"),
        (json!({"spec": "double", "if_busy": "sulk"}), 422, "sulk"),
        (json!({"spec": {"name": "w"}}), 403, "not allowed"),
        (json!([]), 422, ""),
    ] {
        let said = site.post("/v1/runs", body.clone()).await;
        assert_eq!(said.status, status, "{body}: {}", said.text);
        let detail = said.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(says), "{body}: {detail}");
    }
    let raw = |media_type: &'static str, body: Vec<u8>| {
        let request = site.request(Method::POST, "/v1/runs").body(body);
        site.checked(
            Method::POST,
            "/v1/runs",
            request.header("content-type", media_type),
        )
    };
    assert_eq!(raw("text/plain", b"{}".to_vec()).await.status, 415);
    assert_eq!(raw("application/json", b"{".to_vec()).await.status, 400);
    assert_eq!(raw("application/json", vec![0xff]).await.status, 400);
    assert_eq!(raw("application/json", Vec::new()).await.status, 400);
    assert_eq!(
        raw("application/json; charset=utf-8", b"{}".to_vec())
            .await
            .status,
        422
    );
    let long = "k".repeat(300);
    let keys = [("idempotency-key", &*long)];
    let said = site
        .send(
            Method::POST,
            "/v1/runs",
            &keys,
            Some(json!({"spec": "double"})),
        )
        .await;
    assert_eq!(said.status, 400);
    let ids = [("x-request-id", "mine")];
    let said = site.send(Method::GET, "/health", &ids, None).await;
    assert_eq!(said.header("x-request-id"), "mine");
    let page = site
        .request(Method::GET, "/runs/anything")
        .send()
        .await
        .unwrap();
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    assert!(
        page.headers()["content-security-policy"]
            .to_str()
            .unwrap()
            .contains("script-src 'self'")
    );
    assert_eq!(site.get("/nothing.js").await.status, 404);
    for (name, value) in [
        ("host", "evil.example"),
        ("origin", "https://evil.example"),
        ("sec-fetch-site", "cross-site"),
    ] {
        for (method, path) in [(Method::GET, "/v1/runs"), (Method::POST, "/v1/runs")] {
            let said = site.send(method, path, &[(name, value)], None).await;
            assert_eq!(
                (said.status, &said.json()["kind"]),
                (403, &json!("forbidden")),
                "{name}"
            );
        }
    }
}

/// A parent whose children ask one after the other: the same answer again is not the next child's.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_sent_again_reaches_whom_it_reached() {
    for site in [Site::in_memory().await, Site::on_disk().await] {
        let run = site.start("ask twice", Value::Null).await;
        let id: logreel::RunId = run.parse().unwrap();
        let asks = async |prompt: &str| loop {
            let tree = logreel::tree::of(&**site.engine.store(), &id)
                .await
                .unwrap();
            let waits = |entry: &&logreel::Entry| {
                let mut waits = entry.row.facts.waits.iter();
                waits.any(|open| open.wait.prompt.as_deref() == Some(prompt))
            };
            if let Some(child) = tree.iter().find(waits) {
                break child.row.run.to_string();
            }
            tokio::task::yield_now().await;
        };
        let first = asks("one?").await;
        let answer = async || {
            let headers = [("idempotency-key", "yes")];
            let path = format!("/v1/runs/{run}/answer");
            let body = Some(json!({"approve": true}));
            site.send(Method::POST, &path, &headers, body).await
        };
        let said = answer().await;
        assert_eq!(
            (said.status, &said.json()["id"]),
            (200, &json!(run)),
            "the run that was asked"
        );
        let second = asks("two?").await;
        assert_ne!(first, second);
        let before = site.get(&format!("/v1/runs/{second}")).await.json();
        let again = answer().await;
        assert_eq!((again.status, &again.json()["id"]), (200, &json!(run)));
        let after = site.get(&format!("/v1/runs/{second}")).await.json();
        assert_eq!(
            after["event_count"], before["event_count"],
            "nobody said yes to it"
        );
        assert_eq!(after["waiting"][0]["prompt"], "two?");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_runs_is_bounded_whatever_they_hold() {
    let site = Site::in_memory().await;
    let heavy = async |bytes: usize| {
        let run = site.start("heavy", json!(bytes)).await;
        site.until(&run, |entry| entry.row.status().is_terminal())
            .await;
        run
    };
    let huge = heavy(1_000_000).await;
    let page = site.get("/v1/runs").await;
    assert!(page.text.len() < 20_000, "{}", page.text.len());
    let listed = &page.json()["items"][0];
    assert_eq!(listed["state"]["media_type"], "application/json");
    assert_eq!(listed["state"]["bytes"], 1_000_011);
    let whole = site.get(&format!("/v1/runs/{huge}")).await.json();
    assert_eq!(whole["state"]["text"].as_str().unwrap().len(), 1_000_000);

    let mut runs = vec![huge];
    for _ in 0..100 {
        runs.push(heavy(60_000).await);
    }
    let (mut seen, mut path) = (Vec::new(), "/v1/runs?limit=1000".to_owned());
    loop {
        let page = site.get(&path).await;
        assert!(page.text.len() < 5 * 1024 * 1024, "{}", page.text.len());
        let page = page.json();
        let ids = page["items"].as_array().unwrap().iter();
        seen.extend(ids.map(|run| run["id"].as_str().unwrap().to_owned()));
        assert_eq!(page["has_more"], page["next"].is_string());
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/v1/runs?limit=1000&cursor={next}");
    }
    seen.reverse();
    assert_eq!(seen, runs, "each once, in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_waits_for_a_busy_session_or_interrupts_it() {
    for site in [Site::in_memory().await, Site::on_disk().await] {
        let ask = json!({"spec": "ask", "input": "?", "session": "s"});
        let first = site.post("/v1/runs", ask).await.json();
        let first = first["id"].as_str().unwrap().to_owned();
        site.until(&first, |entry| !entry.row.facts.waits.is_empty())
            .await;
        let new = |if_busy: &str| json!({"spec": "crew", "driver": "external", "session": "s", "if_busy": if_busy});
        let waiting = site.post("/v1/runs", new("wait"));
        let answering = async {
            let path = format!("/v1/runs/{first}/answer");
            site.post(&path, json!({"approve": true})).await.status
        };
        let (second, answered) = tokio::join!(waiting, answering);
        assert_eq!((second.status, answered), (201, 200), "{}", second.text);
        let second = second.json();
        assert!(second["lease"]["secret"].is_string());
        // Its client is silent and holds the session: whoever waits is told so, and nothing was started.
        let third = site.post("/v1/runs", new("interrupt"));
        let third = third.await;
        assert_eq!(
            (third.status, &third.json()["kind"]),
            (409, &json!("busy")),
            "{}",
            third.text
        );
        let sessions = site.get("/v1/sessions?limit=1").await.json();
        assert_eq!(sessions["items"][0]["runs"], 2);
        let cancelled = second["run"]["id"].as_str().unwrap();
        let run = site.get(&format!("/v1/runs/{cancelled}")).await.json();
        assert_eq!(run["reason"], "interrupted by a new run");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_come_in_pages() {
    let site = Site::in_memory().await;
    for n in 0..5 {
        let new = json!({"spec": "double", "input": n, "session": format!("s/{n}")});
        assert_eq!(site.post("/v1/runs", new).await.status, 201);
    }
    let (mut seen, mut path) = (Vec::new(), "/v1/sessions?limit=2".to_owned());
    loop {
        let page = site.get(&path).await.json();
        let items = page["items"].as_array().unwrap().iter();
        seen.extend(items.map(|it| it["session"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/v1/sessions?limit=2&cursor={}", next.replace('/', "%2F"));
    }
    assert_eq!(seen, ["s/4", "s/3", "s/2", "s/1", "s/0"]);
    assert_eq!(site.get("/v1/sessions?cursor=nobody").await.status, 400);
}
