//! The events of all runs: in pages, or live.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use futures_util::stream;
use logreel::core::RunKey;
use logreel::store::{Cursor, Doorbell, Error, News, Since, Told};
use logreel::view::EventView;
use logreel::{RunId, RunStore};
use serde_json::value::RawValue;

use crate::Problem;
use crate::answer::{self, Page};
use crate::app::App;
use crate::call::Call;
use crate::events::{ALIVE, COME_BACK, KEEP_ALIVE, last_event_id, problem_frame, streamed};
use crate::metrics::Watching;
use crate::operation::Answered;

const LIMIT: u64 = 100;
/// Each may be as long as a value that is not in a blob.
pub(crate) const LIMIT_MAX: u64 = 200;
/// Events that a stream reads at a time.
const AHEAD: usize = 50;

/// `GET /v1/events`
pub(crate) async fn all(call: Call) -> Answered {
    let given = call.query("cursor").map(|it| Cursor(it.to_owned()));
    if call.wants_stream() {
        return follow(&call, given).await;
    }
    let limit = call.number("limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT);
    let since = given.map_or(Since::Beginning, Since::After);
    let store = &**call.app.engine.store();
    let news = store
        .news(&since, usize::try_from(limit).unwrap_or(1))
        .await?;
    let items = read(store, &news).await?;
    answer::json(&Page {
        items: items.into_iter().map(|(_, event)| event).collect(),
        next: news.next.0,
        has_more: news.has_more,
    })
}

async fn follow(call: &Call, given: Option<Cursor>) -> Answered {
    let app = &call.app;
    let last = last_event_id(call)?.map(|it| Cursor(it.to_owned()));
    let since = last.or(given).map_or(Since::Now, Since::After);
    // The bell first, the news second: what comes in between rings.
    let bell = app.engine.store().watch_all();
    // Refused before the answer begins, when the cursor is none.
    let news = app.engine.store().news(&since, 1).await?;
    let next = match since {
        Since::After(cursor) => cursor,
        Since::Beginning | Since::Now => news.next,
    };
    let follower = Follower {
        watching: app.metrics.watching(),
        app: app.clone(),
        next,
        bell,
        ready: VecDeque::new(),
        look: true,
        greeted: false,
        ended: false,
    };
    Ok(streamed(stream::unfold(follower, |mut follower| async {
        let text = follower.next().await?;
        Some((text, follower))
    })))
}

/// The events that the news tell of, each with where to go on after it. Those of a run that was deleted
/// meanwhile are left out.
async fn read(store: &dyn RunStore, news: &News) -> Result<Vec<(Cursor, Box<RawValue>)>, Problem> {
    let mut events = Vec::with_capacity(news.items.len());
    let mut keys: HashMap<RunId, HashMap<RunId, Option<RunKey>>> = HashMap::new();
    for together in news.items.chunk_by(follows) {
        let Some(first) = together.first() else {
            continue;
        };
        let run = first.run;
        let page = match store.read(&run, first.seq, together.len()).await {
            Ok(page) => page,
            Err(Error::NotFound(_)) => continue,
            Err(error) => return Err(error.into()),
        };
        if let std::collections::hash_map::Entry::Vacant(vacant) = keys.entry(run) {
            match store.keys(&run).await {
                Ok(found) => vacant.insert(found.into_iter().collect()),
                Err(Error::NotFound(_)) => continue,
                Err(error) => return Err(error.into()),
            };
        }
        let mut records = page.items.into_iter();
        for told in together {
            // A page may be shorter than was asked for.
            let record = match records.next() {
                Some(record) => record,
                None => match store.read(&run, told.seq, 1).await {
                    Ok(mut page) => match page.items.pop() {
                        Some(record) => record,
                        None => continue,
                    },
                    Err(Error::NotFound(_)) => break,
                    Err(error) => return Err(error.into()),
                },
            };
            let writer = record.origin.unwrap_or(run);
            let key = keys
                .get(&run)
                .and_then(|keys| keys.get(&writer).copied().flatten());
            let view = EventView::of(run, &record, key.as_ref());
            let event = serde_json::value::to_raw_value(&view)
                .map_err(|error| Problem::new(logreel::ErrorKind::Bug, error.to_string()))?;
            events.push((told.next.clone(), event));
        }
    }
    Ok(events)
}

/// Whether two events are neighbours in one log.
fn follows(a: &Told, b: &Told) -> bool {
    a.run == b.run && a.seq.next() == b.seq
}

/// One who watches all runs.
struct Follower {
    app: App,
    next: Cursor,
    bell: Doorbell,
    /// What was read and not sent yet.
    ready: VecDeque<Bytes>,
    look: bool,
    greeted: bool,
    ended: bool,
    #[expect(dead_code, reason = "counts for as long as this lives")]
    watching: Watching,
}

impl Follower {
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.greeted, true) {
            // Whoever loses the stream before the first event comes back to here.
            let begun = format!("id: {}\n\n", self.next.0);
            return Some([COME_BACK, begun.as_bytes()].concat().into());
        }
        loop {
            if let Some(text) = self.ready.pop_front() {
                return Some(text);
            }
            if self.ended {
                return None;
            }
            if self.look {
                if let Err(problem) = self.read().await {
                    self.ended = true;
                    return Some(problem_frame(&problem));
                }
                continue;
            }
            let alive = self.app.engine.env().sleep(KEEP_ALIVE);
            tokio::select! {
                biased;
                () = self.app.stopped() => return None,
                rung = self.bell.rung() => {
                    self.ended |= !rung;
                    self.look = true;
                }
                () = alive => return Some(Bytes::from_static(ALIVE)),
            }
        }
    }

    async fn read(&mut self) -> Result<(), Problem> {
        let store = &**self.app.engine.store();
        let since = Since::After(self.next.clone());
        let news = store.news(&since, AHEAD).await?;
        for (cursor, event) in read(store, &news).await? {
            let text = format!("id: {}\ndata: {event}\n\n", cursor.0);
            self.ready.push_back(text.into());
        }
        self.look = news.has_more;
        self.next = news.next;
        Ok(())
    }
}
