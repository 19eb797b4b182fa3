//! Callers who are known by tokens.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use std::time::Duration;

use common::{Site, Stream};
use logreel::Engine;
use logreel::store::SystemEnv;
use logreel_server::{Role, Tokens};
use reqwest::Method;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_token_and_whoever_comes_back_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("runs.db");
    let tokens = Tokens::beside(&store);
    let make = async |name: &str, lasts| {
        let made = tokens.create(&SystemEnv, name.to_owned(), Role::Operate, lasts);
        made.await.unwrap()
    };
    let (ada, bob) = (make("ada", None).await, make("bob", None).await);
    let engine = Engine::open(&store).await.unwrap();
    let known = Tokens::beside(&store);
    let site = Site::on(engine, |server| server.tokens(known, true)).await;
    let by = |request: reqwest::RequestBuilder, secret: &str| request.bearer_auth(secret);
    let new = site.request(Method::POST, "/v1/runs");
    let new = new.json(&json!({"spec": "ask", "input": "?"}));
    let started = site
        .checked(Method::POST, "/v1/runs", by(new, &bob.secret))
        .await;
    assert_eq!(started.status, 201, "{}", started.text);
    let run = started.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{run}/events");
    let open = async |path: &str, secret: &str| {
        let mut stream = Stream::open(by(site.request(Method::GET, path), secret)).await;
        stream.next().await.unwrap();
        stream
    };
    let brief = make("brief", Some(Duration::from_secs(3))).await;
    let mut expiring = open(&path, &brief.secret).await;
    let (mut one, mut all) = (
        open(&path, &ada.secret).await,
        open("/v1/events", &ada.secret).await,
    );
    let mut other = open(&path, &bob.secret).await;
    assert!(tokens.revoke(&ada.token.id).await.unwrap());
    // They end, although the run goes on.
    for stream in [&mut one, &mut all, &mut expiring] {
        while stream.next().await.is_some() {}
    }
    let back = by(site.request(Method::GET, &path), &ada.secret);
    assert_eq!(site.checked(Method::GET, &path, back).await.status, 401);
    // Another's goes on to the end of the run.
    let answer = format!("/v1/runs/{run}/cancel");
    let cancel = by(site.request(Method::POST, &answer), &bob.secret);
    assert_eq!(
        site.checked(Method::POST, &answer, cancel).await.status,
        200
    );
    let mut last = None;
    while let Some(block) = other.next().await {
        last = Some(block.data);
    }
    assert!(last.unwrap().contains("run.cancelled"));
}
