//! The AG-UI endpoint: what it refuses, what it streams, and the client of AG-UI on a task with a document.
//!
//! The client needs node and `npm ci` in tests/agui, as `scripts/test` does it.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Site, Stream};
use logreel::core::CallId;
use logreel::store::SystemEnv;
use logreel::workflow::Workflow;
use logreel::{Ctx, Engine, LiveText, Shown, TaskError};
use logreel_server::{Role, Tokens};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

fn input(thread: &str, run: &str) -> Value {
    json!({
        "threadId": thread, "runId": run, "state": {}, "tools": [], "context": [],
        "messages": [{"id": "u1", "role": "user", "content": "publish?"}], "forwardedProps": {},
    })
}

/// What comes of a request, until the end of its stream.
async fn told(site: &Site, spec: &str, input: &Value) -> Vec<Value> {
    let request = site.request(Method::POST, &format!("/v1/agui/{spec}"));
    let mut stream = Stream::open(request.json(input)).await;
    let mut told = Vec::new();
    while let Some(block) = stream.next().await {
        told.push(serde_json::from_str(&block.data).unwrap());
    }
    told
}

fn types(told: &[Value]) -> Vec<&str> {
    told.iter().map(|it| it["type"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_spans_several_of_theirs_and_is_found_by_thread_and_run() {
    let site = Site::on_disk().await;
    let first = told(&site, "ask", &input("t", "r1")).await;
    assert_eq!(
        types(&first),
        ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]
    );
    let interrupt = &first[2]["outcome"]["interrupts"][0];
    assert_eq!(
        (&interrupt["id"], &interrupt["message"]),
        (&json!("w1"), &json!("publish?"))
    );
    let run = &first[0]["metadata"]["logreel"]["run"];

    // The same again, and another name for it without anything new to say, are the same run.
    for name in ["r1", "r2"] {
        let again = told(&site, "ask", &input("t", name)).await;
        let expected = [
            "RUN_STARTED",
            "STATE_SNAPSHOT",
            "MESSAGES_SNAPSHOT",
            "RUN_FINISHED",
        ];
        assert_eq!(types(&again), expected);
        assert_eq!(&again[0]["metadata"]["logreel"]["run"], run);
        assert_eq!(again[2]["messages"], input("t", name)["messages"]);
        assert_eq!(again[3]["outcome"], first[2]["outcome"]);
    }
    let mut answer = input("t", "r3");
    answer["resume"] = json!([{"interruptId": "w1", "status": "resolved", "payload": true}]);
    let last = told(&site, "ask", &answer).await;
    assert_eq!(&last[0]["metadata"]["logreel"]["run"], run);
    let end = last.last().unwrap();
    assert_eq!(
        (&end["outcome"]["type"], &end["result"]),
        (&json!("success"), &json!(true))
    );
    let labels = &site
        .get(&format!("/v1/runs/{}", run.as_str().unwrap()))
        .await
        .json()["labels"];
    assert_eq!(labels["agui.run"], "r1");

    // After the end whatever they called it leads to it, and another message begins anew.
    for name in ["r1", "r2", "r3"] {
        let again = told(&site, "ask", &input("t", name)).await;
        assert_eq!(&again[0]["metadata"]["logreel"]["run"], run, "{name}");
        assert_eq!(again.last().unwrap()["result"], json!(true));
    }
    let mut more = input("t", "r4");
    more["messages"][0]["id"] = json!("u2");
    let begun = told(&site, "ask", &more).await;
    assert_ne!(&begun[0]["metadata"]["logreel"]["run"], run);
    // An answer that is sent again is for the run that it answered, not for the one that waits now.
    let again = told(&site, "ask", &answer).await;
    assert_eq!(&again[0]["metadata"]["logreel"]["run"], run);
    let waits = told(&site, "ask", &more).await;
    let end = waits.last().unwrap();
    assert_eq!(end["outcome"]["type"], "interrupt");
    // The same message once more, under a name that nobody knows, is asked once more.
    more["resume"] = json!([{"interruptId": "w1", "status": "resolved", "payload": true}]);
    more["runId"] = json!("r5");
    assert_eq!(
        told(&site, "ask", &more).await.last().unwrap()["result"],
        json!(true)
    );
    more["runId"] = json!("r6");
    more.as_object_mut().unwrap().remove("resume");
    let anew = told(&site, "ask", &more).await;
    let runs = [&begun, &anew].map(|told| &told[0]["metadata"]["logreel"]["run"]);
    assert_ne!(runs[0], runs[1]);
}

/// One answer to one wait, under a name that nobody knows.
fn answer(thread: &str, run: &str, message: &str, entry: Value) -> Value {
    let mut input = input(thread, run);
    input["messages"][0]["id"] = json!(message);
    input["resume"] = json!([entry]);
    input
}

fn resolved(wait: &str, payload: Value) -> Value {
    json!({"interruptId": wait, "status": "resolved", "payload": payload})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_shows_an_earlier_run_does_not_answer_the_one_that_asks_now() {
    let site = Site::on_disk().await;
    let run = |told: &[Value]| told[0]["metadata"]["logreel"]["run"].clone();
    let yes = |wait: &str| resolved(wait, json!(true));
    let first = run(&told(&site, "ask", &input("t", "r1")).await);
    let answered = told(&site, "ask", &answer("t", "r2", "u1", yes("w1"))).await;
    assert_eq!(run(&answered), first);
    let mut more = input("t", "r3");
    more["messages"][0]["id"] = json!("u2");
    let second = run(&told(&site, "ask", &more).await);
    assert_ne!(first, second);
    let status = async |run: &Value| {
        let path = format!("/v1/runs/{}", run.as_str().unwrap());
        site.get(&path).await.json()["status"].clone()
    };
    // The same answer from it is about what it shows, also when that is something the run was told.
    for message in ["u1".to_owned(), format!("{}/e3", first.as_str().unwrap())] {
        let stale = answer("t", &format!("on {message}"), &message, yes("w1"));
        assert_eq!(run(&told(&site, "ask", &stale).await), first);
    }
    // Another answer, and one of a page that shows nothing of this thread, are refused.
    for (message, payload) in [("u1", false), ("u7", true)] {
        let stale = answer("t", "stale", message, resolved("w1", json!(payload)));
        let said = site.post("/v1/agui/ask", stale).await;
        assert_eq!(said.status, 409, "{message} {}", said.text);
    }
    assert_eq!(status(&second).await, "waiting");
    // One that says whose wait it means needs no message.
    let named = format!("{}/w1", second.as_str().unwrap());
    let ended = told(&site, "ask", &answer("t", "r4", "u7", yes(&named))).await;
    assert_eq!(
        (run(&ended), status(&second).await),
        (second, json!("completed"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_says_something_else_to_a_wait_that_is_over_is_told_so() {
    let site = Site::on_disk().await;
    let short = json!({
        "name": "short", "budget": {"wall": "10ms"},
        "step": [
            {"id": "long", "run": "sleep 0.05"},
            {"id": "more", "needs": ["long"], "run": "echo 7"},
        ],
    });
    site.engine.workflow(&Workflow::from_json(&short).unwrap());
    let cancelled = || json!({"interruptId": "w1", "status": "cancelled"});
    let said = |payload: Value| resolved("w1", payload);
    let cases = [
        (
            "ask",
            json!("?"),
            said(json!(true)),
            vec![cancelled(), said(json!(false))],
        ),
        (
            "listen",
            json!("go"),
            said(json!(7)),
            vec![cancelled(), said(json!(8))],
        ),
        (
            "doubt",
            Value::Null,
            said(json!({"returned": 7})),
            vec![
                cancelled(),
                said(json!({"returned": 8})),
                said(json!({"retry": true})),
            ],
        ),
        (
            "short",
            Value::Null,
            said(json!({"wall_ms": 60_000})),
            vec![cancelled(), said(json!({"wall_ms": 1}))],
        ),
    ];
    for (spec, given, first, others) in cases {
        let mut begin = input(spec, "r1");
        begin["forwardedProps"] = json!({"input": given});
        let begun = told(&site, spec, &begin).await;
        assert_eq!(
            begun.last().unwrap()["outcome"]["type"],
            "interrupt",
            "{spec}"
        );
        let run = begun[0]["metadata"]["logreel"]["run"].as_str().unwrap();
        let ended = told(&site, spec, &answer(spec, "r2", "u1", first.clone())).await;
        let end = ended.last().unwrap();
        assert_eq!(end["outcome"]["type"], "success", "{spec} {end}");
        let before = site.get(&format!("/v1/runs/{run}")).await.json();
        for (n, other) in others.into_iter().enumerate() {
            let other = answer(spec, &format!("other {n}"), "u1", other);
            let said = site.post(&format!("/v1/agui/{spec}"), other.clone()).await;
            assert_eq!(said.status, 409, "{spec} {other} {}", said.text);
        }
        // The same from another page is the same.
        let again = told(&site, spec, &answer(spec, "r3", "u1", first)).await;
        assert_eq!(
            again.last().unwrap()["outcome"]["type"],
            "success",
            "{spec}"
        );
        let after = site.get(&format!("/v1/runs/{run}")).await.json();
        assert_eq!(
            (&after["status"], &after["output"]),
            (&before["status"], &before["output"])
        );
        assert_eq!(after["budget"], before["budget"], "{spec}");
    }
    // What someone said otherwise than here counts as well.
    let mut begin = input("elsewhere", "r1");
    begin["forwardedProps"] = json!({"input": null});
    let begun = told(&site, "doubt", &begin).await;
    let run = begun[0]["metadata"]["logreel"]["run"].as_str().unwrap();
    let path = format!("/v1/runs/{run}/resolve");
    let made = site
        .post(&path, json!({"call": "publish", "returned": 7}))
        .await;
    assert_eq!(made.status, 200, "{}", made.text);
    let other = answer("elsewhere", "r2", "u1", said(json!({"failed": "no"})));
    assert_eq!(site.post("/v1/agui/doubt", other).await.status, 409);
    let same = answer("elsewhere", "r3", "u1", said(json!({"returned": 7})));
    let same = told(&site, "doubt", &same).await;
    assert_eq!(same[0]["metadata"]["logreel"]["run"], run);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_begin_is_a_problem_and_no_stream() {
    let site = Site::in_memory().await;
    let with = |name: &str, value: Value| {
        let mut input = input("t", "r");
        input[name] = value;
        input
    };
    let image = json!([{"id": "u", "role": "user", "content": [{"type": "image"}]}]);
    let resume = |id: &str, payload: Value| {
        let entry = json!({"interruptId": id, "status": "resolved", "payload": payload});
        with("resume", json!([entry]))
    };
    let refused = [
        ("nobody", input("t", "r"), 404, "not_found"),
        (
            "ask",
            json!({"threadId": "t", "runId": "r"}),
            422,
            "invalid",
        ),
        ("ask", with("threadId", json!("")), 422, "invalid"),
        ("ask", with("runId", json!("")), 422, "invalid"),
        ("ask", with("messages", json!([])), 422, "invalid"),
        (
            "ask",
            with("messages", json!([{"role": "user"}])),
            422,
            "invalid",
        ),
        ("ask", with("messages", image), 422, "invalid"),
        ("ask", resume("w1", json!(true)), 404, "not_found"),
    ];
    for (spec, input, status, kind) in refused {
        let said = site.post(&format!("/v1/agui/{spec}"), input.clone()).await;
        assert_eq!(
            (said.status, &said.json()["kind"]),
            (status, &json!(kind)),
            "{input}"
        );
    }
    // Once there is a run that waits.
    told(&site, "ask", &input("t", "r")).await;
    let mut other = with(
        "messages",
        json!([{"id": "u2", "role": "user", "content": "x"}]),
    );
    other["runId"] = json!("r2");
    let refused = [
        ("ask", other, 409, "busy"),
        ("double", input("t", "r"), 409, "conflict"),
        ("ask", resume("w1", Value::Null), 422, "invalid"),
        ("ask", resume("w1", json!("perhaps")), 422, "invalid"),
        ("ask", resume("w2", json!(true)), 404, "not_found"),
        ("ask", resume("elsewhere", json!(true)), 404, "not_found"),
    ];
    for (spec, input, status, kind) in refused {
        let said = site.post(&format!("/v1/agui/{spec}"), input.clone()).await;
        assert_eq!(
            (said.status, &said.json()["kind"]),
            (status, &json!(kind)),
            "{input}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_message_under_a_known_run_is_a_conflict_and_what_the_run_said_is_none() {
    let site = Site::in_memory().await;
    let first = told(&site, "ask", &input("t", "r1")).await;
    let run = first[0]["metadata"]["logreel"]["run"].as_str().unwrap();
    let with = |name: &str, id: &str| {
        let mut input = input("t", name);
        let message = json!({"id": id, "role": "user", "content": "and this?"});
        input["messages"].as_array_mut().unwrap().push(message);
        input
    };
    let said = site.post("/v1/agui/ask", with("r1", "u2")).await;
    assert_eq!(
        (said.status, &said.json()["kind"]),
        (409, &json!("conflict"))
    );
    assert_eq!(said.json()["hint"], "a new message needs a new `runId`");
    // Someone told the run something, and the client was told so.
    let joined = told(&site, "ask", &with("r1", &format!("{run}/e3"))).await;
    assert_eq!(joined[0]["metadata"]["logreel"]["run"], run);
    assert_eq!(joined[2]["messages"], input("t", "r1")["messages"]);
    // A page that was loaded again has no message and no name for it.
    let mut again = input("t", "r4");
    again["messages"] = json!([]);
    let joined = told(&site, "ask", &again).await;
    assert_eq!(joined[0]["metadata"]["logreel"]["run"], run);
    assert_eq!(joined[2]["messages"], input("t", "r1")["messages"]);
    assert_eq!(joined[3]["outcome"]["type"], "interrupt");
    // Beside an answer only the answer counts.
    let mut answer = with("r1", "u2");
    answer["resume"] = json!([{"interruptId": "w1", "status": "resolved", "payload": true}]);
    let ended = told(&site, "ask", &answer).await;
    assert_eq!(ended.last().unwrap()["result"], json!(true));
    assert_eq!(
        told(&site, "ask", &again).await.last(),
        ended
            .last()
            .map(|it| {
                let mut it = it.clone();
                it["runId"] = json!("r4");
                it
            })
            .as_ref()
    );
    let anew = told(&site, "ask", &with("r3", "u2")).await;
    assert_ne!(anew[0]["metadata"]["logreel"]["run"], run);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_messages_than_are_taken_are_refused_and_as_many_as_are_taken_come_back() {
    let site = Site::in_memory().await;
    let many = |count: usize, text: &str| {
        let messages = (0..count).map(|n| {
            let role = if n % 2 == 0 { "user" } else { "assistant" };
            json!({"id": format!("u{n}"), "role": role, "content": text})
        });
        let mut input = input("t", "r");
        input["messages"] = messages.collect();
        input
    };
    for (input, why) in [
        (many(10_001, "x"), "10001 of them"),
        (many(4, &"x".repeat(800 * 1024)), "bytes"),
    ] {
        let said = site.post("/v1/agui/ask", input).await.json();
        assert_eq!(said["kind"], "too_large");
        assert!(said["detail"].as_str().unwrap().contains(why), "{said}");
        assert!(said["hint"].as_str().unwrap().contains("latest"), "{said}");
    }
    assert_eq!(site.get("/v1/runs").await.json()["items"], json!([]));
    let most = many(10_000, "x");
    told(&site, "ask", &most).await;
    let again = told(&site, "ask", &most).await;
    let messages = again[2]["messages"].as_array().unwrap();
    let ids = messages.iter().map(|it| it["id"].as_str().unwrap());
    assert_eq!(
        ids.collect::<std::collections::BTreeSet<_>>().len(),
        messages.len()
    );
    assert_eq!(messages.len(), 10_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_not_act_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("runs.db");
    let tokens = Tokens::beside(&store);
    let make = async |name: &str, role| {
        let made = tokens.create(&SystemEnv, name.to_owned(), role, None);
        format!("Bearer {}", made.await.unwrap().secret)
    };
    let reads = make("reads", Role::Read).await;
    let acts = make("acts", Role::Operate).await;
    // As it is off loopback, and as it is on it.
    let engine = Engine::open(&store).await.unwrap();
    let known = Tokens::beside(&store);
    let guarded = Site::on(engine, |server| server.tokens(known, true)).await;
    let open = Site::in_memory().await;
    let evil = "https://evil.example";
    let by = |token: &str, name: &'static str, value: &str| {
        vec![
            ("authorization", token.to_owned()),
            (name, value.to_owned()),
        ]
    };
    let refused = [
        (&guarded, vec![], 401, "unauthorized"),
        (&guarded, by("Bearer nobody", "x", ""), 401, "unauthorized"),
        (&guarded, by(&reads, "x", ""), 403, "forbidden"),
        (&guarded, by(&acts, "origin", evil), 403, "forbidden"),
        (
            &guarded,
            by(&acts, "host", "evil.example"),
            403,
            "forbidden",
        ),
        (&open, vec![("origin", evil.to_owned())], 403, "forbidden"),
        (
            &open,
            vec![("host", "evil.example".to_owned())],
            403,
            "forbidden",
        ),
        (
            &open,
            vec![("sec-fetch-site", "cross-site".to_owned())],
            403,
            "forbidden",
        ),
    ];
    for (site, headers, status, kind) in refused {
        let headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
        let said = site.send(
            Method::POST,
            "/v1/agui/ask",
            &headers,
            Some(input("t", "r")),
        );
        let said = said.await;
        assert_eq!(
            (said.status, &said.json()["kind"]),
            (status, &json!(kind)),
            "{headers:?}"
        );
    }
    for site in [&guarded, &open] {
        let headers = [("authorization", &*reads)];
        let headers = if std::ptr::eq(site, &guarded) {
            &headers[..]
        } else {
            &[]
        };
        let runs = site.send(Method::GET, "/v1/runs", headers, None).await;
        assert_eq!(runs.json()["items"], json!([]));
    }
    let request = guarded.request(Method::POST, "/v1/agui/ask");
    let request = request
        .header("authorization", &acts)
        .json(&input("t", "r"));
    assert!(Stream::open(request).await.next().await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_joins_in_the_middle_of_an_answer_is_told_its_beginning_once() {
    let site = Site::in_memory().await;
    let go = Arc::new(Notify::new());
    let gate = Arc::clone(&go);
    site.engine.task("talks", move |ctx: Ctx, _: String| {
        let gate = Arc::clone(&gate);
        async move {
            for words in [None, Some("so to "), Some("say")] {
                ctx.log().show(LiveText {
                    run: ctx.run_id(),
                    call: CallId::new("m1.turn").unwrap(),
                    attempt: 1,
                    shown: words.map_or(Shown::Reset, |words| Shown::Text(words.into())),
                });
            }
            let held = ctx.step("hold").run(|| async {
                gate.notified().await;
                Ok::<_, TaskError>(())
            });
            held.await?;
            Ok("done".to_owned())
        }
    });
    // Up to what was said so far, and then the rest.
    let follow = async || {
        let request = site.request(Method::POST, "/v1/agui/talks");
        let mut stream = Stream::open(request.json(&input("t", "r"))).await;
        let (mut told, mut said) = (Vec::new(), String::new());
        while said != "so to say" {
            let event: Value = serde_json::from_str(&stream.next().await.unwrap().data).unwrap();
            said.push_str(event["delta"].as_str().unwrap_or_default());
            told.push(event);
        }
        (told, stream)
    };
    let (_, mut first) = follow().await;
    let (joined, mut second) = follow().await;
    let expected = ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT"];
    assert_eq!(types(&joined)[..3], expected);
    let begun = |it: &&Value| it["type"] == "TEXT_MESSAGE_START";
    assert_eq!(joined.iter().filter(begun).count(), 1, "{joined:?}");
    go.notify_one();
    for stream in [&mut first, &mut second] {
        let mut last = Value::Null;
        while let Some(block) = stream.next().await {
            last = serde_json::from_str(&block.data).unwrap();
        }
        assert_eq!(last["result"], "done");
    }
}

/// What a client does not read is not kept for it: more than fits into the socket.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_late_is_fed_from_the_store() {
    let site = Site::on_disk().await;
    site.engine.task("much", |ctx: Ctx, to: u64| async move {
        for n in 0..to {
            let data = json!({"n": n, "more": "x".repeat(60_000)});
            ctx.emit("page", &data).await?;
        }
        Ok(())
    });
    let mut input = input("t", "r");
    input["forwardedProps"] = json!({"input": 200});
    let request = site.request(Method::POST, "/v1/agui/much").json(&input);
    let mut late = Stream::open(request).await;
    let begun: Value = serde_json::from_str(&late.next().await.unwrap().data).unwrap();
    let run = begun["metadata"]["logreel"]["run"].as_str().unwrap();
    site.until(run, |entry| entry.row.status().is_terminal())
        .await;
    let (mut seen, mut last) = (Vec::new(), Value::Null);
    while let Some(block) = late.next().await {
        last = serde_json::from_str(&block.data).unwrap();
        seen.extend(last["value"]["n"].as_u64());
    }
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
    assert_eq!(last["outcome"]["type"], "success");
}

/// The client's program; without it the test says why it is skipped, which on CI is a failure.
fn client() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agui");
    let has_node = std::process::Command::new("node").arg("--version").output();
    let lacks = match has_node.is_ok_and(|it| it.status.success()) {
        false => "node is not installed",
        true if !folder.join("node_modules/@ag-ui/client").exists() => {
            "`npm ci` was not run in crates/logreel-server/tests/agui"
        }
        true => return Some(folder.join("client.mjs")),
    };
    assert!(
        std::env::var_os("CI").is_none(),
        "{lacks}, and CI may not skip it"
    );
    eprintln!("skipped: {lacks}");
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_agui_ends_with_the_document_of_the_run() {
    let Some(client) = client() else { return };
    let site = Site::on_disk().await;
    site.engine
        .task("remember", |ctx: Ctx, to: u64| async move {
            for n in 1..=to {
                let list: Vec<u64> = (1..=n).collect();
                ctx.set_state(&json!({"count": n, "list": list})).await?;
            }
            ctx.message("assistant", &format!("so far {to}")).await?;
            ctx.approval("more?").await?;
            for n in to + 1..=2 * to {
                ctx.set_state(&json!({"count": n, "list": [{"n": n}], "a/b~": null}))
                    .await?;
            }
            Ok(())
        });
    let mut node = std::process::Command::new("node");
    node.arg(client).arg(&site.url).arg("state");
    let ran = tokio::task::block_in_place(|| node.output().unwrap());
    let (out, err) = (ran.stdout, ran.stderr);
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    assert!(ran.status.success(), "{out}\n{err}");
    assert!(out.contains("state: as it should be"), "{out}");
}
