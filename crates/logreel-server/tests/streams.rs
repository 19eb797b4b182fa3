//! Streams of events: complete, in order, once, and at an end.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use common::{Site, Stream};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_every_event_once_up_to_the_end_and_then_204() {
    let site = Site::on_disk().await;
    let run = site.start("ask", json!("?")).await;
    let path = format!("/v1/runs/{run}/events");
    let watch = |last: &str| {
        let request = site.request(Method::GET, &path);
        Stream::open(request.header("last-event-id", last))
    };
    let (mut first, mut second) = (watch("").await, watch("1").await);
    let begun = first.next().await.unwrap();
    assert_eq!((begun.id.as_deref(), begun.event), (Some("1"), None));
    let event: Value = serde_json::from_str(&begun.data).unwrap();
    assert!(site.fits("Event", &event));
    assert_eq!(event["kind"], "run.started");
    site.until(&run, |entry| !entry.row.facts.waits.is_empty())
        .await;
    site.post(&format!("/v1/runs/{run}/answer"), json!({"approve": true}))
        .await;
    let all: Vec<u64> = first.ids().await;
    let last = *all.last().unwrap();
    assert_eq!(all, (2..=last).collect::<Vec<_>>());
    assert_eq!(second.ids().await, all);
    let stored = site.get(&format!("{path}?limit=1000")).await.json();
    assert_eq!(stored["items"].as_array().unwrap().len() as u64, last);

    // Whoever has the end gets nothing more; whoever has less gets the rest.
    let reconnect = async |from: u64| {
        let request = site
            .request(Method::GET, &path)
            .header("accept", "text/event-stream");
        let from = from.to_string();
        site.checked(Method::GET, &path, request.header("last-event-id", from))
            .await
    };
    for from in [last, last + 1, last + 1000] {
        assert_eq!(reconnect(from).await.status, 204, "{from}");
    }
    let rest = reconnect(last - 1).await;
    assert!(
        rest.text.contains(&format!("id: {last}\n")),
        "{}",
        rest.text
    );
    let wrong = [("accept", "text/event-stream"), ("last-event-id", "x")];
    assert_eq!(
        site.send(Method::GET, &path, &wrong, None).await.status,
        400
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_watch_from_anywhere_miss_nothing() {
    let site = Site::on_disk().await;
    let run = site.start("count", json!(600)).await;
    let path = format!("/v1/runs/{run}/events");
    let watch = async |last: u64| {
        let request = site.request(Method::GET, &path);
        let mut stream = Stream::open(request.header("last-event-id", last.to_string())).await;
        stream.ids().await
    };
    let all = futures_util::future::join_all((0..20).map(|n| watch(n * 10))).await;
    let last = *all[0].last().unwrap();
    assert!(last > 600);
    for (n, seen) in all.iter().enumerate() {
        let from = n as u64 * 10 + 1;
        assert_eq!(*seen, (from..=last).collect::<Vec<_>>(), "from {from}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_streams_and_nothing_is_lost_by_whoever_comes_back() {
    let mut site = Site::on_disk().await;
    let run = site.start("ask", json!("?")).await;
    let path = format!("/v1/runs/{run}/events");
    let mut stream = Stream::open(site.request(Method::GET, &path)).await;
    assert_eq!(stream.next().await.unwrap().id.as_deref(), Some("1"));
    let (rest, ()) = tokio::join!(stream.ids(), site.stop());
    assert!(!rest.contains(&1));
    assert!(site.request(Method::GET, "/health").send().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_says_is_shown_live_and_without_an_id() {
    let site = Site::in_memory().await;
    let agent = site.engine.agent(&json!({"name": "talker"})).unwrap();
    let run = agent.start(&json!("hello")).await.unwrap().id().to_string();
    let path = format!("/v1/runs/{run}/events");
    let mut stream = Stream::open(site.request(Method::GET, &path)).await;
    assert!(stream.next().await.unwrap().id.is_some());
    site.until(&run, |entry| !entry.row.facts.waits.is_empty())
        .await;
    site.post(&format!("/v1/runs/{run}/signals/talk"), json!({}))
        .await;
    let mut told = Vec::new();
    while told.len() < 3 {
        let block = stream.next().await.unwrap();
        if let Some(event) = block.event {
            assert_eq!(block.id, None);
            let data: Value = serde_json::from_str(&block.data).unwrap();
            assert_eq!((&data["run"], &data["call"]), (&json!(run), &json!("c1")));
            told.push(format!("{event} {}", data["text"]));
        }
    }
    assert_eq!(told, ["reset null", "delta \"so to \"", "delta \"say\""]);
    site.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await;
    while stream.next().await.is_some() {}
}
