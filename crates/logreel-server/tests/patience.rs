//! Clients that are slow, late or many: nothing is lost, nothing is queued for them, and the store is not kept busy.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Site, Stream};
use logreel::store::faulty::{Faults, FaultyStore};
use logreel::store::{MemoryStore, SystemEnv};
use logreel::{Ctx, Engine, Env, TaskError, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// The machine's time, but for a clock that can be put forward and the 15 seconds of a stream that says that it is alive.
#[derive(Default)]
struct Hasty {
    ahead_ms: AtomicU64,
}

impl Env for Hasty {
    fn now(&self) -> Timestamp {
        SystemEnv.now()
    }

    fn monotonic(&self) -> Duration {
        SystemEnv.monotonic() + Duration::from_millis(self.ahead_ms.load(Ordering::SeqCst))
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnv.random(bytes);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match duration.as_secs() {
            15 => SystemEnv.sleep(Duration::from_millis(20)),
            _ => SystemEnv.sleep(duration),
        }
    }
}

/// A client with hardly any room for what it has not read.
struct Slow(TcpStream);

impl Slow {
    async fn open(site: &Site, path: &str) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(8 * 1024).unwrap();
        let address = site.url.strip_prefix("http://").unwrap();
        let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        // It has begun: from here on it does not read.
        let mut begun = [0; 12];
        stream.read_exact(&mut begun).await.unwrap();
        assert_eq!(&begun, b"HTTP/1.1 200");
        Self(stream)
    }

    /// All the rest: numbers of events, and the problem that it ended with.
    async fn rest(mut self) -> (Vec<u64>, Option<Value>, usize) {
        let mut text = String::new();
        self.0.read_to_string(&mut text).await.unwrap();
        let after = |name: &'static str| text.lines().filter_map(move |it| it.strip_prefix(name));
        let ids = after("id: ").map(|id| id.parse().unwrap()).collect();
        let problem = text.split_once("event: problem\ndata: ").map(|(_, data)| {
            let data = data.lines().next().unwrap();
            serde_json::from_str(data).unwrap()
        });
        (ids, problem, text.len())
    }
}

const LINES: u64 = 4000;

/// A run of some 10 MB in thousands of events, which a slow client watches from its beginning and has not read.
async fn long(site: &Site) -> (String, Slow) {
    site.engine.task("lines", |ctx: Ctx, to: u64| async move {
        for n in 1..=to {
            let line = ctx.step(("line", n));
            line.run(|| async { Ok::<_, TaskError>("x".repeat(2_000)) })
                .await?;
        }
        Ok(to)
    });
    let run = site.start("lines", json!(LINES)).await;
    let slow = Slow::open(site, &format!("/v1/runs/{run}/events")).await;
    site.until(&run, |entry| {
        entry.row.status().is_terminal() && !entry.is_driven()
    })
    .await;
    (run, slow)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_lags_by_thousands_of_events_gets_each_once() {
    let site = Site::in_memory().await;
    let (_, slow) = long(&site).await;
    let (ids, problem, bytes) = slow.rest().await;
    assert_eq!(problem, None);
    assert!(ids.len() as u64 > LINES && bytes > 8_000_000, "{bytes}");
    assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>());
}

/// What it has not been sent is nowhere but in the store: with the run, the rest is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_run_is_deleted_says_so_and_had_queued_nothing() {
    let site = Site::in_memory().await;
    let (run, slow) = long(&site).await;
    let run = run.parse().unwrap();
    site.engine.store().delete(&run).await.unwrap();
    let (ids, problem, bytes) = slow.rest().await;
    assert_eq!(problem.unwrap()["kind"], "not_found");
    assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>());
    // What fits into the sockets, and what was read at a time.
    assert!((ids.len() as u64) < LINES && bytes < 5_000_000, "{bytes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_the_end_is_in_pages_and_in_no_stream() {
    for site in [Site::in_memory().await, Site::on_disk().await] {
        let new = json!({"spec": "crew", "driver": "external"});
        let made = site.post("/v1/runs", new).await.json();
        let run = made["run"]["id"].as_str().unwrap();
        let events = format!("/v1/runs/{run}/events");
        let mut stream = Stream::open(site.request(Method::GET, &events)).await;
        assert_eq!(stream.next().await.unwrap().id.as_deref(), Some("1"));
        site.post(&format!("/v1/runs/{run}/cancel"), json!({}))
            .await;
        let end = site.get(&format!("/v1/runs/{run}")).await.json();
        let last = end["event_count"].as_u64().unwrap();
        let note = json!({
            "epoch": 1, "append_id": "late",
            "expect": {"seq": last, "digest": end["head_digest"]},
            "events": [{"kind": "custom", "body": {"name": "note"}}],
        });
        let headers = [("logreel-lease", made["lease"]["secret"].as_str().unwrap())];
        let said = site.send(Method::POST, &events, &headers, Some(note)).await;
        assert_eq!(said.status, 200, "{}", said.text);
        // Whoever watched, and whoever comes now, is told up to the end.
        assert_eq!(stream.ids().await, (2..=last).collect::<Vec<_>>());
        let mut anew = Stream::open(site.request(Method::GET, &events)).await;
        assert_eq!(anew.ids().await, (1..=last).collect::<Vec<_>>());
        for from in [last, last + 1, last + 9] {
            let from = from.to_string();
            let headers = [("accept", "text/event-stream"), ("last-event-id", &*from)];
            let said = site.send(Method::GET, &events, &headers, None).await;
            assert_eq!((said.status, &*said.text), (204, ""), "from {from}");
        }
        let page = site
            .get(&format!("{events}?from={}", last + 1))
            .await
            .json();
        let late = page["items"].as_array().unwrap();
        assert_eq!((late.len(), &late[0]["kind"]), (1, &json!("custom")));
        assert_eq!(
            (&late[0]["late"], &page["has_more"]),
            (&json!(true), &json!(false))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_says_that_it_is_alive() {
    let env = Arc::new(Hasty::default());
    let store = Arc::new(MemoryStore::new(env.clone()));
    let engine = Engine::builder().store(store).env(env).build();
    let site = Site::on(engine.await.unwrap(), |server| server).await;
    let run = site.start("ask", json!("?")).await;
    site.until(&run, |entry| !entry.row.facts.waits.is_empty())
        .await;
    for path in [format!("/v1/runs/{run}/events"), "/v1/events".to_owned()] {
        let request = site.request(Method::GET, &path);
        let mut stream = request
            .header("accept", "text/event-stream")
            .send()
            .await
            .unwrap();
        let mut text = String::new();
        while text.matches("\n:\n\n").count() < 3 {
            let piece = stream.chunk().await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_cheap_for_many_and_tells_when_the_store_is_gone() {
    let env = Arc::new(Hasty::default());
    let faults = Faults::new();
    let store = Arc::new(MemoryStore::new(env.clone()));
    let store = Arc::new(FaultyStore::new(store, faults.clone()));
    let engine = Engine::builder().store(store).env(env.clone()).build();
    let site = Site::on(engine.await.unwrap(), |server| server).await;
    let begun = (env.monotonic(), faults.writes());
    let asked = (0..500).map(|_| site.get("/health"));
    for said in futures_util::future::join_all(asked).await {
        assert_eq!((said.status, &said.json()["status"]), (200, &json!("ok")));
    }
    let seconds = (env.monotonic() - begun.0).as_secs();
    let looks = faults.writes() - begun.1;
    assert!(looks <= 1 + seconds, "{looks} looks in {seconds} s");
    let asked = (0..50).map(|_| site.get("/metrics"));
    for said in futures_util::future::join_all(asked).await {
        assert!(said.text.contains(COUNTED), "{}", said.text);
    }

    faults.crash();
    // Not before what was found is old.
    env.ahead_ms.fetch_add(1_000, Ordering::SeqCst);
    let said = site.get("/health").await;
    assert_eq!(said.status, 503, "{}", said.text);
    let said = said.json();
    assert_eq!(
        (&said["status"], &said["store"], &said["writer"]),
        (
            &json!("unavailable"),
            &json!("unreachable"),
            &json!("stuck")
        )
    );
    // Everyone else is told so too, and not that there is nothing.
    let runs = site.get("/v1/runs").await;
    assert_eq!(
        (runs.status, &runs.json()["kind"]),
        (503, &json!("unavailable"))
    );
    // What is measured here is told all the same, beside what was counted before.
    let metrics = site.get("/metrics").await;
    assert_eq!(metrics.status, 200, "{}", metrics.text);
    for told in [COUNTED, "status=\"503\""] {
        assert!(metrics.text.contains(told), "{}", metrics.text);
    }
}

const COUNTED: &str = "logreel_runs{status=\"completed\"} 0";
