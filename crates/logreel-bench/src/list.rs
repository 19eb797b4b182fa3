//! Listing the newest 50 of many runs by each filter, and searching them by words.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use logreel_core::event::{Durability, Parent, Relation};
use logreel_core::{AppendId, Digest, Json, Outside, Payload, RunId, Seq, Session, Status};
use logreel_store::{Env, Filter, NewRun, RunStore, SqliteStore, SystemEnv};
use tokio::task::JoinSet;

use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, rows};
use crate::place::Place;
use crate::work::{Note, PAYLOAD_BYTES, open, scattered_id, started};

const PAGE: usize = 50;
const TASKS: usize = 64;

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let runs = place.size(100_000, 640);
    let times = place.size(200, 10);
    let path = place.file("list.db");
    let parent = fill(&open(&path, Durability::Relaxed)?, runs).await?;
    let store = open(&path, Durability::Full)?;
    let params = Params {
        runs,
        events: times,
        payload_bytes: PAYLOAD_BYTES,
    };
    let mut figures = Vec::new();
    for (case, filter, most, bar_us) in filters(parent)? {
        let mut p50 = Figure::new("list", case, Metric::P50Us, params).bar(Bar::ValueBelow(bar_us));
        let mut p99 = Figure::new("list", case, Metric::P99Us, params);
        for _ in 0..place.rounds() {
            let mut samples = Samples::default();
            for _ in 0..times {
                let page = samples.time(store.list(&filter, None, PAGE)).await?;
                ensure!(page.items.len() <= most, "{case} lists too many");
                ensure!(
                    place.quick || page.items.len() == most,
                    "{case} lists too few"
                );
            }
            p50.round(samples.p50(), None);
            p99.round(samples.p99(), None);
        }
        figures.extend([p50, p99]);
    }
    rows(figures)
}

/// Each filter with how many it finds on a page, and its bar.
fn filters(parent: RunId) -> Result<Vec<(&'static str, Filter, usize, f64)>> {
    let none = Filter::default;
    let listed = |case, filter, most| (case, filter, most, 1000.0);
    let found = |case, words: &str, most| {
        let search = Some(words.to_owned());
        (case, Filter { search, ..none() }, most, 5000.0)
    };
    let status = |status| Filter {
        status: vec![status],
        ..none()
    };
    Ok(vec![
        listed("newest", none(), PAGE),
        listed("status, a third", status(Status::Cancelled), PAGE),
        listed("status, none", status(Status::Failed), 0),
        listed(
            "session",
            Filter {
                session: Some(Session::new("session 3")?),
                ..none()
            },
            1,
        ),
        listed(
            "agent",
            Filter {
                agent: Some("agent 3".to_owned()),
                ..none()
            },
            PAGE,
        ),
        listed(
            "label",
            Filter {
                labels: vec![("team".to_owned(), "3".to_owned())],
                ..none()
            },
            PAGE,
        ),
        listed(
            "since, all",
            Filter {
                since: Some(SystemEnv.now() - Duration::from_secs(3600)),
                ..none()
            },
            PAGE,
        ),
        listed(
            "since, none",
            Filter {
                since: Some(SystemEnv.now() + Duration::from_secs(3600)),
                ..none()
            },
            0,
        ),
        listed(
            "spec",
            Filter {
                spec_digest: Some(Digest::of(b"agent 3")),
                ..none()
            },
            PAGE,
        ),
        listed(
            "parent",
            Filter {
                parent: Some(parent),
                ..none()
            },
            PAGE,
        ),
        found("search, in all", "fox", PAGE),
        found("search, two words", "fox topic7", PAGE),
        found("search, one run", "unique11", 1),
        found("search, none", "zebra", 0),
    ])
}

/// Many runs: a third cancelled, some in sessions and some children of the one that is returned.
async fn fill(store: &Arc<SqliteStore>, runs: usize) -> Result<RunId> {
    let parent = scattered_id();
    create(store, parent, 0, 0, None).await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            for n in (task..runs).step_by(TASKS) {
                let run = SystemEnv.run_id();
                create(&store, run, n + 1, n / TASKS, Some(parent)).await?;
                if n % 3 == 0 {
                    let cancel = Outside::Cancel { reason: None };
                    let id = AppendId::new("cancel")?;
                    store.command(&run, &id, &cancel, Vec::new()).await?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(parent)
}

async fn create(
    store: &SqliteStore,
    run: RunId,
    n: usize,
    nth_of_task: usize,
    parent: Option<RunId>,
) -> Result<()> {
    let mut started = started(&format!("agent {}", n % 7));
    let input = serde_json::json!({
        "topic": format!("topic{}", n % 13),
        "name": format!("unique{n}"),
        "note": Note::new(n as u64),
    });
    started.input = Payload::of(Json::from(input)).0;
    let team = (n % 5).to_string();
    started.labels.insert("team".to_owned(), team);
    if n % 100 == 3 {
        started.session = Some(Session::new(format!("session {n}"))?);
    }
    started.parent = parent.filter(|_| nth_of_task % 100 == 1).map(|run| Parent {
        relation: Relation::Child,
        run,
        seq: Seq::FIRST,
    });
    let new = NewRun {
        run,
        started,
        blobs: Vec::new(),
        owner: None,
        then: Vec::new(),
    };
    store.create(new).await?;
    Ok(())
}
