//! A run of 1,000,000 events is written, read, folded, tailed, listed, forked, compared, exported, checked and
//! imported in less than 200 MiB.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod process;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use logreel::core::event::{Budget, Custom, Effect, Provenance, RunKind, RunStarted, StepFinished};
use logreel::core::meaning::digest_of_json;
use logreel::core::{AppendId, Draft, Epoch, Payload, RunState, Verifier};
use logreel::store::sqlite::Options;
use logreel::store::{Append, NewRun, Owner, OwnerId, SystemEnv};
use logreel::*;
use process::{Child, again, role, runtime, say};

const EVENTS: u64 = 1_000_000;
const PER_APPEND: u64 = 1000;
const MIB_MAX: u64 = 200;

fn open(folder: &Path) -> SqliteStore {
    let options = Options {
        create: true,
        durability: Durability::Relaxed,
        ..Options::default()
    };
    SqliteStore::open(folder.join("runs.db"), options).unwrap()
}

fn started() -> RunStarted {
    RunStarted {
        agent: Arc::from("long"),
        budget: Budget::default(),
        context: None,
        dir: None,
        durability: Durability::Relaxed,
        git: None,
        input: Payload::null(),
        key: Some("long".to_owned()),
        kind: RunKind::Task,
        labels: [("size".to_owned(), "long".to_owned())].into(),
        limit: None,
        parent: None,
        provenance: Provenance {
            host: None,
            logreel: None,
            models: Vec::new(),
            tools: Vec::new(),
        },
        session: None,
        spec: Payload::null(),
        spec_digest: digest_of_json(&Json::null()),
        spec_file: None,
    }
}

/// Every event of the log after its first; one in ten is not the end of a step.
fn body(seq: u64) -> Body {
    if seq.is_multiple_of(10) {
        let data = Payload::Inline(Json::of(&seq).unwrap());
        let name = "mark".to_owned();
        return Custom { data, name }.into();
    }
    let finished = StepFinished {
        attempt: 1,
        effect: Effect::Idempotent,
        input_digest: None,
        output: Payload::Inline(Json::of(&seq).unwrap()),
        started_at: Some(Timestamp::from_micros(0)),
        step: StepId::from_parts([format!("step-{seq}")]).unwrap(),
    };
    finished.into()
}

/// The log: event 1, a million less two, and the end.
async fn write(folder: &Path) {
    let store = open(folder);
    let owner = OwnerId(7);
    let joining = Owner {
        id: owner,
        host: "here".to_owned(),
        host_name: "here".to_owned(),
        pid: std::process::id(),
    };
    store.join(&joining).await.unwrap();
    let new = NewRun {
        run: SystemEnv.run_id(),
        started: started(),
        blobs: Vec::new(),
        owner: Some(owner),
        then: Vec::new(),
    };
    let run = new.run;
    let mut head = store.create(new).await.unwrap().entry().row.head;
    while head.seq.0 < EVENTS {
        let next = head.seq.0 + 1;
        let last = (next + PER_APPEND - 1).min(EVENTS - 1);
        let mut drafts: Vec<Draft> = (next..=last).map(|seq| Draft::new(body(seq))).collect();
        if drafts.is_empty() {
            let reason = Some("long enough".to_owned());
            let cancel = core::Outside::Cancel { reason };
            let id = AppendId::new("end").unwrap();
            store.command(&run, &id, &cancel, Vec::new()).await.unwrap();
            break;
        }
        let append = Append {
            run,
            expect: head,
            epoch: Epoch(1),
            id: AppendId::driver(next),
            drafts: std::mem::take(&mut drafts),
            blobs: Vec::new(),
        };
        let appended = store.append(&append).await.unwrap();
        let last = appended.events.last().unwrap();
        head = Head {
            seq: last.seq,
            digest: last.digest,
        };
    }
    store.leave(owner).await.unwrap();
    say(&run.to_string());
}

async fn read_and_verify(store: &SqliteStore, run: RunId) {
    let entry = store.entry(&run).await.unwrap();
    let mut verifier = Verifier::new(&run, store.key(&run).await.unwrap());
    let mut from = Seq::FIRST;
    loop {
        let page = store.read(&run, from, 1000).await.unwrap();
        page.items
            .iter()
            .for_each(|record| verifier.check(record).unwrap());
        from = page.next;
        if !page.has_more {
            break;
        }
    }
    assert_eq!(verifier.finish(&entry.row.head).unwrap().seq.0, EVENTS);
}

async fn fold(store: &SqliteStore, run: RunId) {
    let mut state: Option<RunState> = None;
    let mut from = Seq::FIRST;
    loop {
        let page = store.read(&run, from, 1000).await.unwrap();
        for record in &page.items {
            let event = record.decode().unwrap();
            match &mut state {
                None => state = Some(RunState::begin(run, &event).unwrap()),
                Some(state) => state.apply(&event).unwrap(),
            }
        }
        from = page.next;
        if !page.has_more {
            break;
        }
    }
    let state = state.unwrap();
    assert_eq!(state.row, store.entry(&run).await.unwrap().row);
    let steps = (2..EVENTS).filter(|seq| !seq.is_multiple_of(10)).count();
    assert_eq!(state.steps.len(), steps);
}

async fn tail(folder: &Path, run: RunId) {
    let engine = Engine::builder()
        .store(Arc::new(open(folder)))
        .build()
        .await
        .unwrap();
    let mut records = engine.run(run).records(Seq::FIRST);
    let mut next = Seq::FIRST;
    while let Some(record) = records.next().await {
        assert_eq!(record.unwrap().seq, next);
        next = next.next();
    }
    assert_eq!(next.0, EVENTS + 1);
}

async fn list(folder: &Path, run: RunId) {
    let engine = Engine::builder()
        .store(Arc::new(open(folder)))
        .build()
        .await
        .unwrap();
    let listed = engine
        .runs()
        .label("size", "long")
        .newest(50)
        .await
        .unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].row.run, listed[0].row.head.seq.0), (run, EVENTS));
}

/// Near its end, so that nearly all of it is folded.
async fn fork(folder: &Path, run: RunId) {
    let engine = Engine::builder()
        .store(Arc::new(open(folder)))
        .build()
        .await
        .unwrap();
    let mut fork = engine.fork(&run, ForkPoint::At(Seq(EVENTS - 10))).queue();
    assert!(fork.look().await.unwrap().is_harmless());
    let entry = fork.await.unwrap().entry().await.unwrap();
    assert_eq!(entry.row.head.seq.0, EVENTS - 9);
    engine.close().await.unwrap();
    say(&entry.row.run.to_string());
}

/// With its fork, which has not ended.
async fn diff(folder: &Path, run: RunId, fork: RunId) {
    let engine = Engine::builder()
        .store(Arc::new(open(folder)))
        .build()
        .await
        .unwrap();
    let diff = engine.diff(&run, &fork).await.unwrap();
    assert_eq!((diff.steps.removed, diff.steps.changed), (9, 0));
    assert_eq!(diff.outcome.len(), 1, "{:?}", diff.outcome);
    engine.close().await.unwrap();
}

async fn export(folder: &Path, run: RunId, reel: bool) {
    let store = Arc::new(open(folder));
    let engine = Engine::builder().store(store).build().await.unwrap();
    let name = if reel { "run.reel" } else { "run.jsonl" };
    let file = std::fs::File::create_new(folder.join(name)).unwrap();
    let mut file = std::io::BufWriter::new(file);
    let exported = match reel {
        true => engine.export_reel(&run, &mut file).await.unwrap(),
        false => engine.export_jsonl(&run, &mut file).await.unwrap(),
    };
    assert_eq!(exported.events, EVENTS);
}

fn check_file(folder: &Path, run: RunId) {
    let file = RunFile::open(folder.join("run.reel")).unwrap();
    let checked = file.read().unwrap().check_next(None).unwrap().unwrap();
    assert_eq!((checked.run, checked.head.seq.0), (run, EVENTS));
    assert!(checked.folded.is_ok());
}

async fn import(folder: &Path) {
    let folder = folder.join("elsewhere");
    let file = RunFile::open(folder.with_file_name("run.reel")).unwrap();
    let store = Arc::new(open(&folder));
    let engine = Engine::builder().store(store).build().await.unwrap();
    let imported = engine.import(&file).await.unwrap();
    assert_eq!(imported[0].entry.row.head.seq.0, EVENTS);
}

/// The most memory this process ever had, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        / 1024
}

#[test]
fn a_run_of_a_million_events_is_handled_in_every_way_under_200_mib() {
    const NAME: &str = "a_run_of_a_million_events_is_handled_in_every_way_under_200_mib";
    if let Some((role, folder)) = role() {
        let runtime = runtime();
        let (what, runs) = role.split_once(' ').unwrap_or((&role, ""));
        let named = |n: usize| runs.split(' ').nth(n).unwrap().parse::<RunId>().unwrap();
        let run = || named(0);
        let began = SystemEnv.monotonic();
        match what {
            "write" => runtime.block_on(write(&folder)),
            "read" => runtime.block_on(read_and_verify(&open(&folder), run())),
            "fold" => runtime.block_on(fold(&open(&folder), run())),
            "tail" => runtime.block_on(tail(&folder, run())),
            "fork" => runtime.block_on(fork(&folder, run())),
            "diff" => runtime.block_on(diff(&folder, run(), named(1))),
            "list" => runtime.block_on(list(&folder, run())),
            "jsonl" => runtime.block_on(export(&folder, run(), false)),
            "reel" => runtime.block_on(export(&folder, run(), true)),
            "check" => check_file(&folder, run()),
            "import" => runtime.block_on(import(&folder)),
            other => panic!("{other}"),
        }
        let took = SystemEnv.monotonic() - began;
        return say(&format!("{} {}", peak_mib(), took.as_millis()));
    }
    let folder = tempfile::tempdir().unwrap();
    let start = |role: &str| Child::spawn(&mut again(&[], NAME, role, folder.path()));
    let run = check("write", start("write")).pop().unwrap();
    // Each in a process of its own, so that each peak is its own.
    let readers = ["read", "fold", "tail", "list", "fork"]
        .map(|what| (what, start(&format!("{what} {run}"))));
    for (what, child) in readers {
        let said = check(what, child);
        if let ("fork", [fork]) = (what, said.as_slice()) {
            check("diff", start(&format!("diff {run} {fork}")));
        }
    }
    for together in [["reel", "jsonl"], ["check", "import"]] {
        let children = together.map(|what| (what, start(&format!("{what} {run}"))));
        for (what, child) in children {
            check(what, child);
        }
    }
}

/// The child ended well and stayed under the limit; gives what else it said.
fn check(what: &str, child: Child) -> Vec<String> {
    let mut said = child.finish();
    let figures = said.pop().unwrap();
    let (mib, millis) = figures.split_once(' ').unwrap();
    let took = Duration::from_millis(millis.parse().unwrap());
    println!("{what}: {mib} MiB at most, {took:?}");
    assert!(
        mib.parse::<u64>().unwrap() < MIB_MAX,
        "{what} took {mib} MiB"
    );
    said
}
