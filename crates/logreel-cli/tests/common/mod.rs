//! A store with one run of each kind, always the same, and the binary run on it.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod kill;
pub mod project;
pub mod recorder;
pub mod screen;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use logreel::store::SystemEnv;
use logreel::{Ctx, Engine, Entry, Env, Retry, RunId, TaskError, Timestamp, hours};
use tempfile::TempDir;

/// 2100-01-01: in the future, so that every age is `now`.
const BEGIN: i64 = 4_102_444_800_000_000;

/// The id of the nth run; its last 8 digits are `0000000n`.
pub fn run_id(n: u8) -> RunId {
    format!("run_0197b0a0-000{n}-7000-8000-00000000000{n}")
        .parse()
        .unwrap()
}

pub const DONE: u8 = 1;
pub const FAILED: u8 = 2;
pub const WAITING: u8 = 3;
pub const CANCELLED: u8 = 4;
pub const LARGE: u8 = 5;
pub const QUEUED: u8 = 6;

/// Time passes when it is told to; everything else is the machine's.
pub struct Clock {
    micros: AtomicI64,
    random: AtomicU64,
}

impl Clock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            micros: AtomicI64::new(BEGIN),
            random: AtomicU64::new(1),
        })
    }

    /// A clock of 2020: every deadline under it has passed.
    pub fn long_ago() -> Arc<Self> {
        let clock = Self::new();
        clock.micros.store(1_577_836_800_000_000, Ordering::SeqCst);
        clock
    }

    pub fn advance(&self, millis: i64) {
        self.micros.fetch_add(millis * 1000, Ordering::SeqCst);
    }
}

impl Env for Clock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        SystemEnv.monotonic()
    }

    fn random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let drawn = self.random.fetch_add(1, Ordering::SeqCst).to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        SystemEnv.sleep(duration)
    }
}

pub struct Fixture {
    pub folder: TempDir,
    pub store: PathBuf,
}

pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Fixture {
    pub fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("runs.db");
        Self { folder, store }
    }

    /// The six runs.
    pub fn full() -> Self {
        let fixture = Self::empty();
        runtime().block_on(make_runs(&fixture.store));
        fixture
    }

    pub async fn engine(&self, clock: Arc<Clock>) -> Engine {
        Engine::builder()
            .env(clock)
            .sqlite(&self.store)
            .build()
            .await
            .unwrap()
    }

    pub fn command(&self) -> assert_cmd::Command {
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_logreel"));
        command
            .env_remove("NO_COLOR")
            .env("LOGREEL_STORE", &self.store)
            .env("RUST_BACKTRACE", "1")
            .timeout(Duration::from_secs(60));
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        ran(self.command().args(args))
    }
}

pub fn ran(command: &mut assert_cmd::Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let ran = Ran {
        code: output.status.code().expect("no signal ended it"),
        out: text(output.stdout),
        err: text(output.stderr),
    };
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
    assert!(
        !ran.err.contains("RUST_BACKTRACE") && !ran.err.contains("stack backtrace"),
        "{}",
        ran.err
    );
    ran
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
}

async fn make_runs(path: &Path) {
    let clock = Clock::new();
    let builder = Engine::builder().env(Arc::clone(&clock) as Arc<dyn Env>);
    let engine = builder.sqlite(path).build().await.unwrap();
    let task_clock = Arc::clone(&clock);
    let triage = engine.task("triage", move |ctx: Ctx, url: String| {
        let clock = Arc::clone(&task_clock);
        async move {
            let files: Vec<String> = ctx
                .step("fetch")
                .input(&url)
                .run(|| async {
                    clock.advance(120);
                    Ok::<_, TaskError>(vec!["a.rs".to_owned(), "b.rs".to_owned()])
                })
                .await?;
            for file in &files {
                let read = ctx.step(("read", file)).reads();
                read.run(|| async {
                    clock.advance(1500);
                    Ok::<_, TaskError>(file.len())
                })
                .await?;
            }
            ctx.set_state(&serde_json::json!({"read": files.len()}))
                .await?;
            ctx.write_step("publish")
                .run(|_key| async { Ok::<_, TaskError>(7) })
                .await?;
            Ok("All good.\nTwo files.".to_owned())
        }
    });
    let start = triage
        .start(&"https://example.invalid/7".to_owned())
        .id(run_id(DONE));
    start
        .session("repo-42")
        .key("issue-7")
        .label("team", "core")
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();

    clock.advance(1000);
    let flaky = engine.task("flaky", |ctx: Ctx, (): ()| async move {
        let retry = Retry::attempts(2).backoff(Duration::from_millis(1), Duration::from_millis(1));
        let call = ctx.step("call").retry(retry);
        call.run(|| async { Err::<(), _>(TaskError::new("no route\nto host")) })
            .await
    });
    flaky
        .start(&())
        .id(run_id(FAILED))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();

    clock.advance(1000);
    let publish = engine.task("publish", |ctx: Ctx, _: Vec<u32>| async move {
        let answer = ctx
            .approval("Publish 3 findings?")
            .deadline(hours(24))
            .else_deny()
            .await?;
        Ok(answer.approved)
    });
    publish
        .start(&vec![1, 2, 3])
        .id(run_id(WAITING))
        .session("repo-43")
        .await
        .unwrap();
    until(&engine, run_id(WAITING), |entry| entry.driver.is_none()).await;

    clock.advance(1000);
    let idle = engine.task("idle", |_: Ctx, n: u32| async move {
        Ok("x".repeat(n as usize))
    });
    idle.start(&1).id(run_id(CANCELLED)).queue().await.unwrap();
    engine
        .cancel(&run_id(CANCELLED), "by the user")
        .await
        .unwrap();
    clock.advance(1000);
    idle.start(&100_000)
        .id(run_id(LARGE))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();
    clock.advance(1000);
    idle.start(&3).id(run_id(QUEUED)).queue().await.unwrap();
    engine.close().await.unwrap();
}

/// Waits until the run is as asked.
pub async fn until(engine: &Engine, run: RunId, holds: impl Fn(&Entry) -> bool) {
    let mut bell = engine.store().watch(&run);
    while !holds(&engine.store().entry(&run).await.unwrap()) {
        assert!(bell.rung().await);
    }
}
