//! Files of runs in the hands of a library user, and in worse hands: bytes that someone changed.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

use std::io::Write as _;
use std::sync::Arc;

use logreel::store::{Filter, Heirs};
use logreel::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// A run with a step, a large output, a document, messages and an end; gives its exports.
async fn exports() -> (RunId, Vec<u8>, Vec<u8>) {
    let engine = Engine::memory().await.unwrap();
    let task = engine.task("carried", |ctx: Ctx, n: u32| async move {
        let large = ctx
            .step("large")
            .run(|| async { Ok::<_, TaskError>("x".repeat(70_000)) });
        let large = large.await?;
        ctx.set_state(&serde_json::json!({"n": n})).await?;
        ctx.message("user", &"hello").await?;
        ctx.message("assistant", &"hello yourself").await?;
        ctx.write_step("publish")
            .run(|_| async { Ok::<_, TaskError>(1) })
            .await?;
        Ok(large.len())
    });
    let run = task.start(&7).label("a", "b").key("k").await.unwrap();
    run.wait().await.unwrap();
    let (mut jsonl, mut reel) = (Vec::new(), Vec::new());
    engine.export_jsonl(&run.id(), &mut jsonl).await.unwrap();
    let exported = engine.export_reel(&run.id(), &mut reel).await.unwrap();
    assert_eq!((exported.runs.len(), exported.blobs), (1, 3));
    engine.close().await.unwrap();
    (run.id(), jsonl, reel)
}

fn file(bytes: &[u8]) -> Result<RunFile, FileError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    RunFile::of(file)
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

#[tokio::test]
async fn a_run_is_taken_along_by_a_library_user() {
    let (run, jsonl, reel) = exports().await;
    for bytes in [&jsonl, &reel] {
        let engine = Engine::memory().await.unwrap();
        let file = file(bytes).unwrap();
        let imported = engine.import(&file).await.unwrap();
        assert_eq!(imported.len(), 1);
        assert_eq!(imported[0].outcome, ImportOutcome::New);
        let again = engine.import(&file).await.unwrap();
        assert_eq!(again[0].outcome, ImportOutcome::NothingNew);
        let mut out = Vec::new();
        engine.export_jsonl(&run, &mut out).await.unwrap();
        assert!(out == jsonl, "the same to the byte");
        let stats = engine.store().stats().await.unwrap();
        assert_eq!(stats.blobs, 3);
        // Erased, it goes out and not in again.
        assert_eq!(engine.erase(&run, Heirs::default()).await.unwrap(), [run]);
        let mut out = Vec::new();
        engine.export_reel(&run, &mut out).await.unwrap();
        let left = self::file(&out).unwrap();
        let checked = left.read().unwrap().check_next(None).unwrap().unwrap();
        assert_eq!(checked.folded.unwrap_err(), Unfolded::Erased);
        let other = Engine::memory().await.unwrap();
        let refused = other.import(&left).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotApplicable);
        let pruned = engine.prune(&Prune::default()).await.unwrap();
        assert_eq!(pruned.runs, [run]);
        assert_eq!(engine.store().stats().await.unwrap().blobs, 0);
        for engine in [engine, other] {
            engine.close().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_ended_long_enough_ago_is_pruned_whatever_is_kept_for_being_new() {
    use std::time::Duration;
    let engine = testing::TestEngine::new().await.unwrap();
    let task = engine.task("lasting", |ctx: Ctx, seconds: u64| async move {
        ctx.sleep("on", Duration::from_secs(seconds)).await
    });
    let (long, short) = (
        task.start(&100).await.unwrap(),
        task.start(&0).await.unwrap(),
    );
    for run in [&short, &long] {
        run.wait().await.unwrap();
    }
    let last = task.start(&0).await.unwrap();
    last.wait().await.unwrap();
    engine.env().sleep(Duration::from_secs(60)).await;
    let now = engine.env().now();
    let age = async |run: &RunId| {
        let entry = engine.store().entry(run).await.unwrap();
        now.since(entry.row.facts.ended.as_ref().unwrap().at)
    };
    let (of_short, of_last) = (age(&short.id()).await, age(&last.id()).await);
    let moment = Duration::from_micros(1);
    let (short, long, last) = (short.id(), long.id(), last.id());
    for (older, keep_last, expected) in [
        (None, None, vec![last, short, long]),
        (Some(Duration::ZERO), None, vec![last, short, long]),
        (Some(of_last), None, vec![last, short, long]),
        // The long one began before the short one, and ended when the last began.
        (Some(of_last + Duration::from_secs(1)), None, vec![short]),
        (Some(of_short), None, vec![short]),
        (Some(of_short), Some(0), vec![short]),
        (Some(of_short + moment), None, vec![]),
        // Those that are too young to go are among the newest all the same.
        (Some(of_short), Some(1), vec![short]),
        (Some(of_short), Some(2), vec![]),
        (None, Some(1), vec![short, long]),
    ] {
        let what = Prune {
            older_than: older,
            keep_last,
            ..Prune::default()
        };
        let pruned = engine.would_prune(&what).await.unwrap();
        assert_eq!(pruned.runs, expected, "{what:?}");
    }
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_run_that_cannot_be_pruned_keeps_no_older_one() {
    use logreel::store::faulty::{Fault, Faults, FaultyStore};
    use logreel::store::{MemoryStore, SystemEnv};
    let (faults, memory) = (Faults::new(), MemoryStore::new(Arc::new(SystemEnv)));
    let store = FaultyStore::new(Arc::new(memory), faults.clone());
    let engine = Engine::builder().store(Arc::new(store)).build().await;
    let engine = engine.unwrap();
    let task = engine.task("short", |_: Ctx, (): ()| async { Ok(()) });
    let mut runs = Vec::new();
    for _ in 0..4 {
        let run = task.start(&()).await.unwrap();
        run.wait().await.unwrap();
        // Its driver may take a moment to let go.
        while engine.store().entry(&run.id()).await.unwrap().is_driven() {
            tokio::task::yield_now().await;
        }
        runs.insert(0, run.id());
    }
    let next = faults.writes() + 1;
    for nth in next..next + 3 {
        faults.fail(nth, Fault::Refused);
    }
    let away = engine.prune(&Prune::default()).await.unwrap_err();
    assert_eq!(away.kind(), ErrorKind::Unavailable, "the store is away");
    faults.fail_next(Fault::Refused);
    let pruned = engine.prune(&Prune::default()).await.unwrap();
    assert_eq!(pruned.runs, runs[1..]);
    let [(failed, why)] = pruned.failed.as_slice() else {
        panic!("one failed: {pruned:?}")
    };
    assert!(*failed == runs[0] && why.contains("injected"), "{why}");
    let pruned = engine.prune(&Prune::default()).await.unwrap();
    assert_eq!((pruned.runs, pruned.failed), (vec![runs[0]], Vec::new()));
    engine.close().await.unwrap();
}

/// What a hand or a disk can do to bytes.
#[derive(Debug, Clone)]
enum Change {
    Set(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Remove(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
    Swap(prop::sample::Index, prop::sample::Index),
}

fn change() -> impl Strategy<Value = Change> {
    use prop::sample::Index;
    prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => any::<Index>().prop_map(Change::Cut),
        1 => (any::<Index>(), 1..400_usize).prop_map(|(at, n)| Change::Remove(at, n)),
        1 => (any::<Index>(), 1..400_usize).prop_map(|(at, n)| Change::Repeat(at, n)),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Change::Swap(a, b)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    if bytes.is_empty() {
        return;
    }
    match change {
        Change::Set(at, byte) => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Change::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Change::Remove(at, n) => {
            let at = at.index(bytes.len());
            let end = (at + n).min(bytes.len());
            bytes.drain(at..end);
        }
        Change::Repeat(at, n) => {
            let at = at.index(bytes.len());
            let end = (at + n).min(bytes.len());
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
        Change::Swap(a, b) => {
            let (a, b) = (a.index(bytes.len()), b.index(bytes.len()));
            bytes.swap(a, b);
        }
    }
}

/// Lines of a log as someone would change them who knows the format.
fn lines_changed(jsonl: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = jsonl
        .split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    for change in changes {
        let count = lines.len();
        match change {
            _ if count == 0 => {}
            Change::Set(at, byte) => {
                let line = &mut lines[at.index(count)];
                // A digit for a digit: still JSON, and another number, digest or text.
                let digits: Vec<usize> = (0..line.len())
                    .filter(|at| line[*at].is_ascii_digit())
                    .collect();
                if let Some(at) = digits.get(usize::from(*byte) % digits.len().max(1)) {
                    line[*at] = b'0' + (line[*at] - b'0' + 1) % 10;
                }
            }
            Change::Cut(at) => lines.truncate(at.index(count)),
            Change::Remove(at, _) => drop(lines.remove(at.index(count))),
            Change::Repeat(at, _) => {
                let at = at.index(count);
                lines.insert(at, lines[at].clone());
            }
            Change::Swap(a, b) => lines.swap(a.index(count), b.index(count)),
        }
    }
    lines.concat()
}

/// Takes bytes in, and checks that they are what was exported or that nothing of them is here.
async fn take(bytes: &[u8], jsonl: &[u8]) {
    let engine = Engine::memory().await.unwrap();
    let imported = match file(bytes) {
        Ok(file) => engine.import(&file).await.map(drop),
        Err(error) => Err(error.into()),
    };
    let page = engine
        .store()
        .list(&Filter::default(), None, 9)
        .await
        .unwrap();
    let stats = engine.store().stats().await.unwrap();
    match imported {
        Err(_) => assert_eq!((page.items.len(), stats.events, stats.blobs), (0, 0, 0)),
        Ok(()) => {
            // Blanks between tokens, a line of a type that nobody knows: the log is still that log.
            let mut out = Vec::new();
            let run = page.items[0].row.run;
            engine.export_jsonl(&run, &mut out).await.unwrap();
            assert!(out == jsonl, "something else was taken in");
        }
    }
    engine.close().await.unwrap();
}

#[test]
fn whatever_is_done_to_a_file_nothing_panics_and_nothing_else_is_taken_in() {
    let runtime = runtime();
    let (_, jsonl, reel) = runtime.block_on(exports());
    let originals = Arc::new([jsonl.clone(), reel]);
    let mut runner = TestRunner::new(Config {
        cases: 3000,
        failure_persistence: None,
        ..Config::default()
    });
    let strategy = (0..3_usize, prop::collection::vec(change(), 1..4));
    runner
        .run(&strategy, |(which, changes)| {
            let bytes = match originals.get(which) {
                Some(original) => {
                    let mut bytes = original.clone();
                    changes.iter().for_each(|change| apply(&mut bytes, change));
                    bytes
                }
                None => lines_changed(&jsonl, &changes),
            };
            runtime.block_on(take(&bytes, &jsonl));
            Ok(())
        })
        .unwrap();
}
