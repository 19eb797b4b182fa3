//! Streams of events: complete, in order, once, and at an end.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use std::sync::Arc;

use common::{Block, Site, Stream};
use logreel::core::CallId;
use logreel::core::event::{ModelAnswered, ModelCalled};
use logreel::{Body, Ctx, LiveText, Shown, TaskError};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

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

/// What it did not read is not kept for it: more than fits into the socket and what is kept of the run.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_late_is_fed_from_the_store() {
    let site = Site::on_disk().await;
    let run = site.start("pages", json!(300)).await;
    let path = format!("/v1/runs/{run}/events");
    let mut late = Stream::open(site.request(Method::GET, &path)).await;
    site.until(&run, |entry| entry.row.status().is_terminal())
        .await;
    let ids = late.ids().await;
    assert_eq!(ids, (1..=*ids.last().unwrap()).collect::<Vec<_>>());
    assert!(ids.len() > 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_streams_and_nothing_is_lost_by_whoever_comes_back() {
    let mut site = Site::on_disk().await;
    let run = site.start("ask", json!("?")).await;
    let path = format!("/v1/runs/{run}/events");
    let mut stream = Stream::open(site.request(Method::GET, &path)).await;
    assert_eq!(stream.next().await.unwrap().id.as_deref(), Some("1"));
    site.until(&run, |entry| !entry.row.facts.waits.is_empty())
        .await;
    // It ends as an answer ends, not as a connection that breaks, although the run has not.
    let (rest, ()) = tokio::join!(stream.ids(), site.stop());
    assert!(site.request(Method::GET, "/health").send().await.is_err());
    let mut seen = vec![1];
    seen.extend(rest);

    // Another server on the same store goes on after what the client has; of the first nothing is left that
    // would drive the run when it is answered.
    site.engine.close().await.unwrap();
    let engine = logreel::Engine::open(site.folder.path().join("runs.db"));
    let next = Site::on(engine.await.unwrap(), |server| server).await;
    let last = seen.last().unwrap().to_string();
    let back = next
        .request(Method::GET, &path)
        .header("last-event-id", last);
    let mut stream = Stream::open(back).await;
    next.post(&format!("/v1/runs/{run}/answer"), json!({"approve": true}))
        .await;
    let resume = format!("/v1/runs/{run}/resume");
    assert_eq!(next.post(&resume, json!({})).await.status, 200);
    seen.extend(stream.ids().await);
    let stored = next.get(&format!("/v1/runs/{run}")).await.json();
    assert_eq!(stored["status"], "completed");
    let all = 1..=stored["event_count"].as_u64().unwrap();
    assert_eq!(seen, all.collect::<Vec<_>>(), "each once");
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

async fn record(ctx: &Ctx, body: Body) -> Result<(), TaskError> {
    ctx.log().record(vec![body], Vec::new()).await.map(drop)
}

/// Answers twice, as an agent's model does, and stops wherever the test wants to look: between words, behind the
/// first seal, and after many words in one breath.
async fn speaks(ctx: Ctx, go: Arc<Semaphore>) -> Result<(), TaskError> {
    let spent = json!({
        "cache_read_tokens": 0, "cache_write_tokens": 0, "input_tokens": 0, "output_tokens": 0,
        "reasoning_tokens": 0, "usd_micros": null,
    });
    let show = |call: &str, shown: Shown| {
        ctx.log().show(LiveText {
            run: ctx.run_id(),
            call: CallId::new(call).unwrap(),
            attempt: 1,
            shown,
        });
    };
    let say = |call: &str, words: &str| show(call, Shown::Text(words.into()));
    let called = |call: &str| -> Body {
        let called = json!({
            "attempt": 1, "call": call, "context": null, "model": "m", "reserved": spent,
        });
        let called: ModelCalled = serde_json::from_str(&called.to_string()).unwrap();
        called.into()
    };
    let answered = |call: &str| -> Body {
        let answered = json!({
            "call": call, "finish_reason": null, "message": {"parts": []}, "spent": spent,
        });
        let answered: ModelAnswered = serde_json::from_str(&answered.to_string()).unwrap();
        answered.into()
    };
    record(&ctx, called("m1")).await?;
    show("m1", Shown::Reset);
    say("m1", "one ");
    say("m1", "two");
    go.acquire().await.unwrap().forget();
    say("m1", " three");
    record(&ctx, answered("m1")).await?;
    go.acquire().await.unwrap().forget();
    record(&ctx, called("m2")).await?;
    show("m2", Shown::Reset);
    for n in 0..5000 {
        say("m2", &format!("{n} "));
    }
    record(&ctx, answered("m2")).await
}

/// What one who watches is told: events by their kinds, words by the call that says them.
async fn told(stream: &mut Stream, until: impl Fn(&str) -> bool) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    while let Some(Block { event, data, .. }) = stream.next().await {
        let data: Value = serde_json::from_str(&data).unwrap();
        let (call, text) = (data["call"].as_str(), data["text"].as_str());
        match (event.as_deref(), told.last_mut()) {
            (None, _) => told.push(data["kind"].as_str().unwrap().to_owned()),
            (Some("reset"), _) => told.push(format!("{}: ", call.unwrap())),
            (Some(_), Some(words)) if words.starts_with(&format!("{}: ", call.unwrap())) => {
                words.push_str(text.unwrap());
            }
            (Some(other), _) => panic!("{other} {data} behind {told:?}"),
        }
        if until(told.last().unwrap()) {
            break;
        }
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn words_have_no_hole_for_whoever_joins_and_none_come_behind_their_seal() {
    let site = Site::on_disk().await;
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    site.engine.task("speak", move |ctx: Ctx, (): ()| {
        speaks(ctx, Arc::clone(&gate))
    });
    let run = site.start("speak", json!(null)).await;
    let path = format!("/v1/runs/{run}/events");
    let watch = |last: &str| {
        let request = site.request(Method::GET, &path);
        Stream::open(request.header("last-event-id", last))
    };
    let so_far = |said: &str| said == "m1: one two";
    let mut first = watch("").await;
    let begun = told(&mut first, so_far).await;
    assert_eq!(begun[..2], ["run.started", "phase.entered"]);
    assert_eq!(begun[2..], ["model.called", "m1: one two"]);
    // In the middle of the answer, with the log up to it and without.
    let (mut behind, mut anew) = (watch("3").await, watch("").await);
    assert_eq!(told(&mut behind, so_far).await, ["m1: one two"]);
    assert_eq!(told(&mut anew, so_far).await, begun);
    go.add_permits(1);
    for stream in [&mut first, &mut behind, &mut anew] {
        // The rest comes, before the seal and as what goes on.
        let rest = stream.next().await.unwrap();
        assert!(rest.data.contains("\" three\""), "{rest:?}");
        let sealed = stream.next().await.unwrap();
        assert_eq!(sealed.id.as_deref(), Some("4"));
    }
    // Behind the seal it is not told again.
    let late = watch("4").await;
    go.add_permits(1);
    let mut all = [first, behind, anew, late];
    let whole: String = (0..5000).map(|n| format!("{n} ")).collect();
    for stream in &mut all {
        let told = told(stream, |_| false).await;
        let (words, events): (Vec<String>, Vec<String>) = told
            .into_iter()
            .partition(|it| it.starts_with('m') && it.contains(": "));
        assert_eq!(events, ["model.called", "model.answered", "run.completed"]);
        for words in words {
            let words = words.strip_prefix("m2: ").unwrap();
            assert!(whole.starts_with(words), "a hole in {words}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_erased_is_not_sent_though_someone_still_watches() {
    let site = Site::on_disk().await;
    // More than fits into the socket of one who does not read.
    let run = site.start("pages", json!(400)).await;
    let path = format!("/v1/runs/{run}/events");
    let slow = Stream::open(site.request(Method::GET, &path)).await;
    let mut quick = Stream::open(site.request(Method::GET, &path)).await;
    let ids = quick.ids().await;
    site.until(&run, |entry| !entry.is_driven()).await;
    let id = run.parse().unwrap();
    let gone = site.engine.erase(&id, logreel::store::Heirs::default());
    gone.await.unwrap();
    let from = format!("{path}?from={}", ids.len() - 4);
    let mut late = Stream::open(site.request(Method::GET, &from)).await;
    let mut count = 0;
    while let Some(block) = late.next().await {
        assert!(!block.data.contains("xxxx"), "{}", &block.data[..200]);
        count += 1;
    }
    assert_eq!(count, 5);
    drop(slow);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_runs_are_told_of_in_one_stream_that_goes_on_where_it_broke() {
    for site in [Site::in_memory().await, Site::on_disk().await] {
        let before = site.start("double", json!(1)).await;
        site.until(&before, |entry| entry.row.status().is_terminal())
            .await;
        let mut stream = Stream::open(site.request(Method::GET, "/v1/events")).await;
        // Where it begins is told before anything happens.
        let begun = stream.next().await.unwrap();
        assert_eq!((begun.data.as_str(), begun.event), ("", None));
        let mut runs = Vec::new();
        for n in 0..5 {
            runs.push(site.start("double", json!(n)).await);
        }
        for run in &runs {
            site.until(run, |entry| entry.row.status().is_terminal())
                .await;
        }
        let whole = async |stream: &mut Stream, mut seen: Vec<(String, u64)>, ends: usize| {
            let (mut last, mut ended) = (String::new(), 0);
            while ended < ends {
                let block = stream.next().await.unwrap();
                let event: Value = serde_json::from_str(&block.data).unwrap();
                assert!(site.fits("Event", &event));
                let run = event["run"].as_str().unwrap().to_owned();
                assert!(runs.contains(&run));
                seen.push((run, event["seq"].as_u64().unwrap()));
                last = block.id.unwrap();
                ended += usize::from(event["kind"] == "run.completed");
            }
            (seen, last)
        };
        let (seen, last) = whole(&mut stream, Vec::new(), 2).await;
        drop(stream);
        let again = site
            .request(Method::GET, "/v1/events")
            .header("last-event-id", &last);
        let mut stream = Stream::open(again).await;
        stream.next().await.unwrap();
        let (mut seen, _) = whole(&mut stream, seen, 3).await;
        seen.sort();
        let mut expected = Vec::new();
        for run in &runs {
            let count = site.get(&format!("/v1/runs/{run}")).await.json()["event_count"].clone();
            expected.extend((1..=count.as_u64().unwrap()).map(|seq| (run.clone(), seq)));
        }
        expected.sort();
        assert_eq!(seen, expected, "each event once");

        // In pages the same, from the first event there is.
        let (mut path, mut count) = ("/v1/events?limit=7".to_owned(), 0);
        loop {
            let page = site.get(&path).await.json();
            count += page["items"].as_array().unwrap().len();
            path = format!(
                "/v1/events?limit=7&cursor={}",
                page["next"].as_str().unwrap()
            );
            if page["has_more"] == false {
                break;
            }
        }
        let first = site.get(&format!("/v1/runs/{before}")).await.json()["event_count"].clone();
        assert_eq!(
            count as u64,
            expected.len() as u64 + first.as_u64().unwrap()
        );
        assert_eq!(site.get("/v1/events?cursor=x").await.status, 400);
    }
}
