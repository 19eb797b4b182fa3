//! Listing the newest 50 of a million runs on PostgreSQL by each filter, and searching them by words.
//!
//! The runs are written by COPY, sealed and folded by the store's own code. Before anything is timed some of them
//! are read back, chained, folded and compared with what is stored of them, and two with runs that went the
//! ordinary way.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use logreel_core::chain::Verifier;
use logreel_core::event::{
    Cause, Parent, Phase, PhaseEntered, Relation, RunCancelled, RunCompleted, RunFailed,
};
use logreel_core::{
    AppendId, Digest, Draft, Json, Payload, Row as RunRow, RunId, Seq, Session, Status, Timestamp,
};
use logreel_store::sqlite::this_host;
use logreel_store::{
    Append, ClaimOutcome, Env, Filter, NewRun, Owner, OwnerId, PostgresStore, RunStore, SystemEnv,
};

use crate::measure::{Bar, Figure, Metric, Params, Row, Samples, rows};
use crate::place::Place;
use crate::server::Server;
use crate::work::{Note, PAYLOAD_BYTES, finished, scattered_id, started};

const PAGE: usize = 50;
/// What a page may take.
const BAR_US: f64 = 20_000.0;
/// Runs are a second apart: a million go back some 11 days.
const APART: Duration = Duration::from_secs(1);
/// A word of the input of every 10th, 100th, … run.
const RARE: [(usize, &str); 4] = [
    (10, "tenth"),
    (100, "hundredth"),
    (1000, "thousandth"),
    (10_000, "myriadth"),
];

pub async fn bench(place: &Place) -> Result<Vec<Row>> {
    let Some(server) = Server::find(place).await? else {
        return Ok(Vec::new());
    };
    let runs = place.size(1_000_000, 640);
    let times = place.size(100, 5);
    let store = server.store().await?;
    let parent = scattered_id();
    let ids = fill(&store, runs, parent).await?;
    for run in ids.iter().step_by((runs / 100).max(1)) {
        check(&store, *run).await?;
    }
    // One that has ended, and one that has not.
    for n in [9, 20] {
        let like = ids.get(n).context("there are that many")?;
        compare(&server, &store, *like, new_run(n, parent)?).await?;
    }
    abandon(&store, &ids).await?;
    let params = Params {
        runs,
        events: times,
        payload_bytes: PAYLOAD_BYTES,
    };
    let mut figures = Vec::new();
    for (case, filter, most) in filters(parent)? {
        let mut p50 = Figure::new("postgres-list", case, Metric::P50Us, params);
        let mut p99 = Figure::new("postgres-list", case, Metric::P99Us, params);
        p99 = p99.bar(Bar::ValueBelow(BAR_US));
        for _ in 0..place.rounds() {
            let mut samples = Samples::default();
            for _ in 0..times {
                let page = samples.time(store.list(&filter, None, PAGE)).await?;
                let found = page.items.len();
                ensure!(found <= most, "{case} lists too many: {found}");
                ensure!(
                    place.quick || found == most,
                    "{case} lists too few: {found}"
                );
            }
            p50.round(samples.p50(), None);
            p99.round(samples.p99(), None);
        }
        figures.extend([p50, p99]);
    }
    figures.push(size(&server, params).await?);
    server.clear().await?;
    rows(figures)
}

/// What all of it takes on disk.
async fn size(server: &Server, params: Params) -> Result<Figure> {
    let sql = "SELECT sum(pg_total_relation_size(oid))::int8 FROM pg_class
        WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace";
    let client = server.connect().await?;
    let bytes: i64 = client.query_one(sql, &[]).await?.try_get(0)?;
    let mut size = Figure::new("postgres-list", "the database", Metric::Mib, params);
    size.round(bytes as f64 / (1024.0 * 1024.0), None);
    Ok(size)
}

/// Each filter with how many it finds on a page.
fn filters(parent: RunId) -> Result<Vec<(&'static str, Filter, usize)>> {
    let none = Filter::default;
    let status = |status| Filter {
        status: vec![status],
        ..none()
    };
    let agent = |agent: &str| Filter {
        agent: Some(agent.to_owned()),
        ..none()
    };
    let orphaned = |filter| Filter {
        orphaned: true,
        ..filter
    };
    let session = |session: &str| {
        anyhow::Ok(Filter {
            session: Some(Session::new(session)?),
            ..none()
        })
    };
    let label = |name: &str, value: &str| Filter {
        labels: vec![(name.to_owned(), value.to_owned())],
        ..none()
    };
    let since = |since| Filter {
        since: Some(since),
        ..none()
    };
    let state = |state: &[u8]| Filter {
        final_state_digest: Some(Digest::of(state)),
        ..none()
    };
    let spec = |spec: &[u8]| Filter {
        spec_digest: Some(Digest::of(spec)),
        ..none()
    };
    let search = |words: &str| Filter {
        search: Some(words.to_owned()),
        ..none()
    };
    let now = SystemEnv.now();
    let hour = Duration::from_secs(3600);
    Ok(vec![
        ("newest", none(), PAGE),
        ("status, most", status(Status::Completed), PAGE),
        ("status, one in 10,000", status(Status::Cancelled), PAGE),
        ("status, none", status(Status::Waiting), 0),
        ("orphaned, one in 10,000", orphaned(none()), PAGE),
        ("orphaned or failed", orphaned(status(Status::Failed)), PAGE),
        ("orphaned, none", orphaned(agent("nobody")), 0),
        ("session, one run", session("session 103")?, 1),
        ("session, one in 50", session("shared")?, PAGE),
        ("session, none", session("nobody's")?, 0),
        ("agent, one in 7", agent("agent 3"), PAGE),
        ("agent, one in 20,000", agent("rare"), PAGE),
        ("agent, none", agent("nobody"), 0),
        ("label, one in 5", label("team", "3"), PAGE),
        ("label, one in 10,000", label("user", "77"), PAGE),
        ("label, none", label("team", "77"), 0),
        ("since, all", since(now - hour * 24 * 365), PAGE),
        ("since, an hour ago", since(now - hour), PAGE),
        ("since, none", since(now + hour), 0),
        ("same state, one in 11", state(b"state 3"), PAGE),
        ("same state, none", state(b"nobody's"), 0),
        ("same spec, one in 7", spec(b"agent 3"), PAGE),
        ("same spec, none", spec(b"nobody's"), 0),
        (
            "parent",
            Filter {
                parent: Some(parent),
                ..none()
            },
            PAGE,
        ),
        ("search, in all", search("fox"), PAGE),
        ("search, one in 10", search("tenth"), PAGE),
        ("search, one in 100", search("hundredth"), PAGE),
        ("search, one in 1,000", search("thousandth"), PAGE),
        ("search, one in 10,000", search("myriadth"), PAGE),
        ("search, one run", search("unique11"), 1),
        ("search, two words", search("topic7 hundredth"), PAGE),
        ("search, none", search("zebra"), 0),
    ])
}

async fn fill(store: &PostgresStore, runs: usize, parent: RunId) -> Result<Vec<RunId>> {
    let newest = SystemEnv.now() - Duration::from_secs(60);
    let mut all = Vec::with_capacity(runs);
    let mut ids = Vec::with_capacity(runs);
    for n in 0..runs {
        ids.push(if n == 0 { parent } else { SystemEnv.run_id() });
        all.push(n);
    }
    let named = ids.clone();
    let all = all.into_iter().map(move |n| {
        let mut new = new_run(n, parent).expect("the bench's own names are valid");
        new.run = named[n];
        let back = u32::try_from(runs - n).unwrap_or(u32::MAX);
        (new, newest - APART * back)
    });
    store.fill(all).await?;
    Ok(ids)
}

/// Run `n` of many: most completed, one in 20 at work, one in 100 failed, one in 10,000 cancelled.
fn new_run(n: usize, parent: RunId) -> Result<NewRun> {
    let agent = match n % 20_000 {
        5 => "rare".to_owned(),
        _ => format!("agent {}", n % 7),
    };
    let mut started = started(&agent);
    let rare: Vec<&str> = RARE
        .iter()
        .filter(|(every, _)| n.is_multiple_of(*every))
        .map(|(_, word)| *word)
        .collect();
    let input = serde_json::json!({
        "topic": format!("topic{}", n % 13),
        "name": format!("unique{n}"),
        "rare": rare,
        "note": Note::new(n as u64),
    });
    started.input = Payload::of(Json::from(input)).0;
    let labels = [("team", n % 5), ("user", n % 10_000)];
    for (name, value) in labels {
        started.labels.insert(name.to_owned(), value.to_string());
    }
    started.session = match n % 100 {
        3 => Some(Session::new(format!("session {n}"))?),
        4 | 54 => Some(Session::new("shared")?),
        _ => None,
    };
    started.parent = (n % 1000 == 8).then_some(Parent {
        relation: Relation::Child,
        run: parent,
        seq: Seq::FIRST,
    });
    let phase = Phase::Executing;
    let mut then = vec![Draft::new(PhaseEntered { phase })];
    let mut step = finished(n as u64)?;
    // As long as the other's that it is compared with.
    step.started_at = Some(Timestamp::from_micros(n as i64));
    then.push(Draft::new(step));
    let final_state_digest = Digest::of(format!("state {}", n % 11).as_bytes());
    if n % 10_000 == 2 {
        then.push(Draft::new(RunCancelled {
            final_state_digest,
            reason: None,
        }));
    } else if n % 100 == 1 {
        let error = Cause {
            exit_code: None,
            kind: "error".to_owned(),
            message: "it did not work".to_owned(),
            retryable: false,
            step: None,
        };
        then.push(Draft::new(RunFailed {
            error,
            final_state_digest,
        }));
    } else if !n.is_multiple_of(20) {
        then.push(Draft::new(RunCompleted {
            final_state_digest,
            output: Payload::of(Note::new(n as u64).json()?).0,
        }));
    }
    Ok(NewRun {
        run: scattered_id(),
        started,
        blobs: Vec::new(),
        owner: None,
        then,
    })
}

/// What is stored of a run follows from its log, and the log holds.
async fn check(store: &PostgresStore, run: RunId) -> Result<()> {
    let entry = store.entry(&run).await?;
    let page = store.read(&run, Seq::FIRST, 100).await?;
    let mut chain = Verifier::new(&run, store.key(&run).await?);
    let mut folded: Option<RunRow> = None;
    for record in &page.items {
        chain.check(record)?;
        let event = record.decode()?;
        match &mut folded {
            None => folded = Some(RunRow::start(run, &event)?),
            Some(row) => row.apply(&event)?,
        }
    }
    chain.finish(&entry.row.head)?;
    ensure!(folded == Some(entry.row), "{run} is not what its log says");
    let misfiled = store.misfiled(&run).await?;
    ensure!(misfiled.is_none(), "{run}: {misfiled:?}");
    Ok(())
}

/// Of the runs at work, one in 500 has a driver that is gone.
async fn abandon(store: &PostgresStore, ids: &[RunId]) -> Result<()> {
    let owner = join(store).await?;
    for run in ids.iter().step_by(10_000) {
        let claimed = store.claim(run, owner).await?;
        ensure!(
            matches!(claimed, ClaimOutcome::Claimed(_)),
            "{run} cannot be taken: {claimed:?}"
        );
    }
    store.leave(owner).await?;
    Ok(())
}

/// A process that drives runs.
async fn join(store: &PostgresStore) -> Result<OwnerId> {
    let (host, host_name) = this_host();
    let owner = Owner {
        id: OwnerId(SystemEnv.random_u64()),
        host,
        host_name,
        pid: std::process::id(),
    };
    store.join(&owner).await?;
    Ok(owner.id)
}

/// The same run once more, created, driven and given back, is stored as the one that was filled in.
async fn compare(server: &Server, store: &PostgresStore, like: RunId, new: NewRun) -> Result<()> {
    let owner = join(store).await?;
    let run = new.run;
    let then = new.then;
    let created = store
        .create(NewRun {
            then: Vec::new(),
            owner: Some(owner),
            ..new
        })
        .await?;
    let epoch = created.entry().epoch;
    for (tag, draft) in (1..).zip(then) {
        let append = Append {
            run,
            expect: store.entry(&run).await?.row.head,
            epoch,
            id: AppendId::driver(tag),
            drafts: vec![draft],
            blobs: Vec::new(),
        };
        store.append(&append).await?;
    }
    store.release(&run, epoch, owner).await?;
    store.leave(owner).await?;
    let client = server.connect().await?;
    for sql in SAME {
        let same = client
            .query_one(*sql, &[&like.to_string(), &run.to_string()])
            .await?;
        let same: bool = same.try_get(0)?;
        ensure!(same, "{run} and {like} are stored differently: {sql}");
    }
    // Out of the way of what is listed.
    for table in ["live", "queue", "events", "labels", "search"] {
        let sql = format!("DELETE FROM {table} WHERE run = (SELECT id FROM runs WHERE run = $1)");
        client.execute(&sql, &[&run.to_string()]).await?;
    }
    let sql = "DELETE FROM runs WHERE run = $1";
    client.execute(sql, &[&run.to_string()]).await?;
    Ok(())
}

/// All but what must differ: names, keys, digests, times.
const SAME: &[&str] = &[
    "SELECT count(*) = 1 FROM (SELECT DISTINCT status, session, agent, kind, spec_digest,
       final_state_digest, parent, relation, fold_version, needs, erased, read_only, epoch, event_epoch,
       head_seq, results, pulse, regexp_replace(facts, '20[0-9T:.-]+Z', '', 'g') FROM runs WHERE run IN ($1, $2)) rows",
    "SELECT count(*) <= 1 AND coalesce(sum(n), 0) IN (0, 2) FROM (SELECT epoch, event_epoch, head_seq, results, pulse,
       count(*) AS n FROM live
       WHERE run IN (SELECT id FROM runs WHERE run IN ($1, $2)) GROUP BY 1, 2, 3, 4, 5) rows",
    "SELECT count(*) <= 1 AND coalesce(sum(n), 0) IN (0, 2) FROM (SELECT owner, since, ready_at, limit_key, limit_max,
       count(*) AS n FROM queue
       WHERE run IN (SELECT id FROM runs WHERE run IN ($1, $2)) GROUP BY 1, 2, 3, 4, 5) rows",
    "SELECT bool_and(n = 2) FROM (SELECT seq, kind, caller_at, epoch, late, format,
       tag IS NULL, body_digest, body, count(*) AS n FROM events
       WHERE run IN (SELECT id FROM runs WHERE run IN ($1, $2)) GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9) rows",
    "SELECT bool_and(n = 2) FROM (SELECT k, v, count(*) AS n FROM labels
       WHERE run IN (SELECT id FROM runs WHERE run IN ($1, $2)) GROUP BY 1, 2) rows",
    "SELECT count(*) = 2 AND count(DISTINCT words) = 1 FROM search
       WHERE run IN (SELECT id FROM runs WHERE run IN ($1, $2))",
];
