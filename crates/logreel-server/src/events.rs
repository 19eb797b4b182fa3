//! A run's events: in pages, or live.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use logreel::store::Doorbell;
use logreel::view::EventView;
use logreel::{Event, LiveText, RunId, RunStore, Seq, Shown};
use serde_json::json;

use crate::Problem;
use crate::answer::{self, Page};
use crate::app::App;
use crate::call::Call;
use crate::frames::RunFrames;
use crate::metrics::Watching;
use crate::operation::Answered;
use crate::said::{Ear, Heard, Mark};

/// Events of a page when nothing is said.
const LIMIT: u64 = 100;
pub(crate) const LIMIT_MAX: u64 = 1000;

/// A stream says this often that it is alive.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);
pub(crate) const ALIVE: &[u8] = b":\n\n";

/// How soon a client comes back that lost its stream.
pub(crate) const COME_BACK: &[u8] = b"retry: 1000\n\n";

/// `GET /v1/runs/{id}/events`
pub(crate) async fn of_run(call: Call) -> Answered {
    let run = call.run().await?;
    let from = Seq(call.number("from", 1..=u64::MAX)?.unwrap_or(1));
    if call.wants_stream() {
        return follow(&call, run, from).await;
    }
    let limit = call.number("limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT);
    let store = call.app.engine.store();
    let limit = usize::try_from(limit).unwrap_or(1);
    let page = store.read(&run, from, limit).await?;
    let keys: HashMap<_, _> = store.keys(&run).await?.into_iter().collect();
    let views = page.items.iter().map(|record| {
        let key = keys.get(&record.origin.unwrap_or(run)).copied().flatten();
        EventView::of(run, record, key.as_ref())
    });
    answer::json(&Page {
        items: views.collect(),
        next: page.next,
        has_more: page.has_more,
    })
}

async fn follow(call: &Call, run: RunId, from: Seq) -> Answered {
    let app = &call.app;
    let next = match last_event_id(call)? {
        Some(last) => {
            let refused = |_| Problem::usage("`Last-Event-ID` is not the number of an event");
            Seq(last.parse().map_err(refused)?).next()
        }
        None => from,
    };
    let store = app.engine.store();
    // The bell first, the log second: what comes in between rings.
    let bell = store.watch(&run);
    let mut ear = app.hear(run);
    let entry = store.entry(&run).await?;
    let frames = match entry.erased {
        true => Arc::new(app.frames.fresh(run)),
        false => app.frames.of(run),
    };
    if entry.row.status().is_terminal() {
        let left = frames.from(next).await?;
        if left.first().is_none_or(|frame| frame.late) {
            return Ok(answer::empty(StatusCode::NO_CONTENT));
        }
    }
    look_back(&**store, &run, next, &mut ear).await?;
    let follower = Follower {
        watching: app.metrics.watching(),
        app: app.clone(),
        run,
        frames,
        next,
        bell,
        ear,
        look: true,
        head: None,
        greeted: false,
        ended: false,
    };
    Ok(streamed(stream::unfold(follower, |mut follower| async {
        let text = follower.next().await?;
        Some((text, follower))
    })))
}

/// How far one who begins in the middle of a log looks for the answer under way.
const LOOK_BACK: u64 = 1024;

/// Tells the ear what the log says of the answer under way before where someone begins.
async fn look_back(
    store: &dyn RunStore,
    run: &RunId,
    next: Seq,
    ear: &mut Ear,
) -> Result<(), Problem> {
    if next <= Seq::FIRST || !ear.has_answer() {
        return Ok(());
    }
    let from = Seq(next.0.saturating_sub(LOOK_BACK)).max(Seq::FIRST);
    let mut last = None;
    let mut each = |event: Event| {
        if event.seq >= next {
            return ControlFlow::Break(());
        }
        last = Mark::of(&event.body).or(last.take());
        ControlFlow::Continue(())
    };
    store.scan(run, from, &mut each).await?;
    match last {
        Some(mark) => ear.mark(&mark),
        None if from > Seq::FIRST => ear.skip(),
        None => {}
    }
    Ok(())
}

/// The id of the last event that a client has.
pub(crate) fn last_event_id(call: &Call) -> Result<Option<&str>, Problem> {
    let said = call.headers.get("last-event-id");
    let said = said.map(|it| it.to_str().map(str::trim));
    let refused = |_| Problem::usage("`Last-Event-ID` is not text");
    let said = said.transpose().map_err(refused)?;
    // What a client sends that has none.
    Ok(said.filter(|said| !said.is_empty()))
}

/// An answer that goes on.
pub(crate) fn streamed(
    texts: impl futures_util::Stream<Item = Bytes> + Send + 'static,
) -> Response<Body> {
    use futures_util::StreamExt as _;
    let texts = texts.map(Ok::<_, std::convert::Infallible>);
    let mut response = answer::of_type("text/event-stream", Body::from_stream(texts));
    let headers = response.headers_mut();
    // For proxies that would hold it back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-store, no-transform"),
    );
    response
}

/// What is said in a stream when it cannot go on.
pub(crate) fn problem_frame(problem: &Problem) -> Bytes {
    Bytes::from(format!("event: problem\ndata: {}\n\n", problem.json()))
}

/// One who watches a run.
struct Follower {
    app: App,
    run: RunId,
    frames: Arc<RunFrames>,
    next: Seq,
    bell: Doorbell,
    /// What models say meanwhile.
    ear: Ear,
    /// Whether there may be something to read.
    look: bool,
    /// How far the log reaches, when that is known.
    head: Option<Seq>,
    greeted: bool,
    ended: bool,
    #[expect(dead_code, reason = "counts for as long as this lives")]
    watching: Watching,
}

impl Follower {
    /// What is sent next; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.greeted, true) {
            return Some(Bytes::from_static(COME_BACK));
        }
        loop {
            if self.ended {
                return None;
            }
            if self.look {
                match self.read().await {
                    Ok(Some(text)) => return Some(text),
                    Ok(None) => continue,
                    Err(problem) => {
                        self.ended = true;
                        return Some(problem_frame(&problem));
                    }
                }
            }
            match self.ear.hear() {
                Heard::Pieces(pieces) => {
                    let mut text = BytesMut::new();
                    write_live(&pieces, &mut text);
                    return Some(text.freeze());
                }
                Heard::New => {
                    self.catch_up();
                    continue;
                }
                Heard::Nothing => {}
            }
            let alive = self.app.engine.env().sleep(KEEP_ALIVE);
            tokio::select! {
                biased;
                () = self.app.stopped() => return None,
                rung = self.bell.rung() => {
                    self.ended |= !rung;
                    self.head = self.bell.head();
                    self.look = self.head.is_none_or(|head| head >= self.next);
                }
                () = self.ear.rung() => {}
                () = alive => return Some(Bytes::from_static(ALIVE)),
            }
        }
    }

    /// Whether the log was read as far as it is known to reach; an answer that was noticed before may be told
    /// then.
    fn is_at_the_end(&mut self) -> bool {
        // Until the end is found, no ring tells where it is.
        self.head = self.head.and_then(|_| self.bell.head());
        let is_at_the_end = self.head.is_some_and(|head| head < self.next);
        if is_at_the_end {
            self.ear.admit();
        }
        is_at_the_end
    }

    /// An answer began: what the log has before it is told first.
    fn catch_up(&mut self) {
        self.ear.notice();
        self.look = !self.is_at_the_end();
    }

    /// What the log has, up to the run's end.
    async fn read(&mut self) -> Result<Option<Bytes>, Problem> {
        self.ear.notice();
        let frames = self.frames.from(self.next).await?;
        if frames.is_empty() {
            self.look = false;
            let row = self.app.engine.store().entry(&self.run).await?.row;
            let head = row.head.seq;
            // Something may have come between the two.
            self.look = head >= self.next;
            self.ended = row.status().is_terminal() && head < self.next;
            if !self.look {
                self.ear.admit();
            }
            return Ok(None);
        }
        let mut text = BytesMut::new();
        for frame in frames {
            if let Some(mark) = frame.mark.as_ref().filter(|_| !frame.late) {
                // The last words come before what they are sealed by, a part at a time.
                if mark.is_seal()
                    && let Heard::Pieces(pieces) = self.ear.hear()
                {
                    write_live(&pieces, &mut text);
                    return Ok(Some(text.freeze()));
                }
                self.ear.mark(mark);
            }
            if frame.late {
                self.ended = true;
                break;
            }
            self.next = frame.seq.next();
            text.extend_from_slice(&frame.text);
            if frame.ends {
                self.ended = true;
                break;
            }
        }
        self.look = !self.is_at_the_end();
        Ok((!text.is_empty()).then(|| text.freeze()))
    }
}

fn write_live(pieces: &[LiveText], text: &mut BytesMut) {
    for piece in pieces {
        text.extend_from_slice(live_frame(piece).as_bytes());
    }
}

/// Provisional: without an id, so that nobody comes back to it.
fn live_frame(live: &LiveText) -> String {
    let LiveText {
        run,
        call,
        attempt,
        shown,
    } = live;
    let (event, kind, text) = match shown {
        Shown::Reset => ("reset", None, None),
        Shown::Text(text) => ("delta", Some("text"), Some(text)),
        Shown::Thinking(text) => ("delta", Some("thinking"), Some(text)),
        Shown::ToolCall(name) => ("delta", Some("tool_call"), Some(name)),
    };
    let data = match kind {
        None => json!({"run": run, "call": call, "attempt": attempt}),
        Some(kind) => {
            let text = text.map(|text| &**text);
            json!({"run": run, "call": call, "attempt": attempt, "kind": kind, "text": text})
        }
    };
    format!("event: {event}\ndata: {data}\n\n")
}
