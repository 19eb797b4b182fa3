//! What the world can do to a store, through the library: each gets a typed error that says what to
//! do, and once that is done the store works as if nothing had been.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod process;

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use logreel::*;
use process::{Child, again, role, runtime};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A task with an input and an output as large as asked.
fn padded(engine: &Engine) -> Task<String, String> {
    engine.task("padded", |ctx: Ctx, text: String| async move {
        let back = || async { Ok::<_, TaskError>(text.clone()) };
        ctx.step("back").run(back).await
    })
}

async fn run_one(engine: &Engine, text: &str) -> Result<(), Error> {
    let run = padded(engine).start(&text.to_owned()).await?;
    assert_eq!(run.wait().await?, Outcome::Completed(text.to_owned()));
    Ok(())
}

/// The store opens, has this many runs, each with a log that verifies, and takes one more.
async fn check_usable(path: &Path, runs: usize) {
    let engine = Engine::open(path).await.unwrap();
    check_logs(&engine, runs).await;
    run_one(&engine, "one more").await.unwrap();
    engine.close().await.unwrap();
}

async fn check_logs(engine: &Engine, runs: usize) {
    let entries = engine.runs().newest(10_000).await.unwrap();
    assert_eq!(entries.len(), runs);
    for entry in entries {
        let (run, store) = (entry.row.run, engine.store());
        let mut verifier = core::Verifier::new(&run, store.key(&run).await.unwrap());
        let page = store.read(&run, Seq::FIRST, 1000).await.unwrap();
        page.items
            .iter()
            .for_each(|record| verifier.check(record).unwrap());
        verifier.finish(&entry.row.head).unwrap();
    }
}

/// A store with one run, closed.
async fn store_in(folder: &Path) -> PathBuf {
    let path = folder.join("runs.db");
    let engine = Engine::open(&path).await.unwrap();
    run_one(&engine, "the first").await.unwrap();
    engine.close().await.unwrap();
    path
}

/// Opening is refused, with this kind and in these words.
async fn check_refused(path: &Path, kind: ErrorKind, words: &[&str]) {
    let Err(error) = Engine::open(path).await else {
        panic!("{} was opened", path.display())
    };
    check_error(&error, kind, words);
}

fn check_error(error: &Error, kind: ErrorKind, words: &[&str]) {
    eprintln!("{}: {error}", error.kind().as_str());
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_refused_with_a_word_on_what_to_name_instead() {
    let folder = tempfile::tempdir().unwrap();
    check_refused(
        folder.path(),
        ErrorKind::Unavailable,
        &["folder", "name a file in it"],
    )
    .await;
    // A file where a folder should be, too.
    let path = store_in(folder.path()).await;
    check_refused(&path.join("runs.db"), ErrorKind::Unavailable, &["runs.db"]).await;
    check_usable(&path, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_database_or_that_of_another_application_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    for text in ["hello", &"not a database\n".repeat(1000)] {
        let path = folder.path().join("notes.txt");
        fs::write(&path, text).unwrap();
        let words = ["not a SQLite database", "name another file"];
        check_refused(&path, ErrorKind::Unavailable, &words).await;
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            text,
            "it was left alone"
        );
    }
    let path = folder.path().join("other.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE notes (text)").unwrap();
    drop(other);
    let before = fs::read(&path).unwrap();
    let words = ["another application", "name another file"];
    check_refused(&path, ErrorKind::Unavailable, &words).await;
    assert_eq!(fs::read(&path).unwrap(), before, "it was left alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_file_or_folder_is_refused_until_it_is_writable_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = store_in(folder.path()).await;
    for (runs, place) in [(1, path.as_path()), (2, folder.path())] {
        let mode = fs::metadata(place).unwrap().permissions();
        fs::set_permissions(place, Permissions::from_mode(mode.mode() & !0o222)).unwrap();
        check_refused(
            &path,
            ErrorKind::Unavailable,
            &["read-only", "make it writable"],
        )
        .await;
        fs::set_permissions(place, mode).unwrap();
        check_usable(&path, runs).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_refused_by_both_versions() {
    let folder = tempfile::tempdir().unwrap();
    let path = store_in(folder.path()).await;
    let raise = |by: i64| {
        let conn = rusqlite::Connection::open(&path).unwrap();
        let version: i64 = conn
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .unwrap();
        conn.pragma_update(None, "user_version", version + by)
            .unwrap();
        version
    };
    let known = raise(7);
    let words = [
        &format!("schema {}", known + 7),
        &format!("up to {known}"),
        "newer logreel",
    ];
    check_refused(
        &path,
        ErrorKind::NewerFormat,
        &words.map(|word| word as &str),
    )
    .await;
    raise(-7);
    check_usable(&path, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_cut_short_is_refused_and_its_backup_works() {
    let folder = tempfile::tempdir().unwrap();
    let path = store_in(folder.path()).await;
    let whole = fs::read(&path).unwrap();
    // In the middle, by one page, and inside the header.
    for bytes in [whole.len() / 2, whole.len() - 4096, 4096, 1000, 50] {
        fs::write(&path, &whole[..bytes]).unwrap();
        check_refused(&path, ErrorKind::Corrupt, &["restore a backup"]).await;
        assert_eq!(
            fs::read(&path).unwrap(),
            &whole[..bytes],
            "what is left was left alone"
        );
    }
    fs::write(&path, &whole).unwrap();
    check_usable(&path, 1).await;
}

/// A small file system of our own at `folder`, for this process and its children only.
fn in_own_mounts(folder: &Path) -> Option<Vec<OsString>> {
    let unshare = ["unshare", "--mount", "--map-root-user"];
    let may = Command::new(unshare[0])
        .args(&unshare[1..])
        .arg("true")
        .output();
    if !may.is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "CI must be able to mount");
        println!("skipped: this machine lets nobody mount a file system of his own");
        return None;
    }
    let mount = r#"mount -t tmpfs -o size=4m logreel-test "$0" && exec "$@""#;
    let mut wrapper: Vec<OsString> = unshare.map(Into::into).into();
    wrapper.extend(["sh", "-c", mount].map(Into::into));
    wrapper.push(folder.as_os_str().to_owned());
    Some(wrapper)
}

#[test]
fn a_read_only_file_system_is_refused_until_it_is_writable_again() {
    const NAME: &str = "a_read_only_file_system_is_refused_until_it_is_writable_again";
    if let Some((_, folder)) = role() {
        return runtime().block_on(async {
            let path = store_in(&folder).await;
            remount(&folder, "ro");
            check_refused(&path, ErrorKind::Unavailable, &["read-only", "writable"]).await;
            let new = folder.join("new.db");
            check_refused(&new, ErrorKind::Unavailable, &["check its folder"]).await;
            remount(&folder, "rw");
            check_usable(&path, 1).await;
        });
    }
    let folder = tempfile::tempdir().unwrap();
    if let Some(wrapper) = in_own_mounts(folder.path()) {
        Child::spawn(&mut again(&wrapper, NAME, "inside", folder.path())).finish();
    }
}

fn remount(folder: &Path, how: &str) {
    let options = format!("remount,{how}");
    let mut mount = Command::new("mount");
    let status = mount.args(["-o", &options]).arg(folder).status().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn on_a_full_disk_a_start_is_refused_and_a_run_under_way_goes_on_when_space_is_free_again() {
    const NAME: &str =
        "on_a_full_disk_a_start_is_refused_and_a_run_under_way_goes_on_when_space_is_free_again";
    if let Some((_, folder)) = role() {
        let filler = folder.join("filler");
        let fill = || {
            let mut file = fs::File::create(&filler).unwrap();
            while file.write_all(&[b'x'; 512]).is_ok() {}
        };
        let free = || fs::remove_file(&filler).unwrap();
        return runtime().block_on(fails_and_recovers(&folder, fill, free, &["free space"]));
    }
    let folder = tempfile::tempdir().unwrap();
    if let Some(wrapper) = in_own_mounts(folder.path()) {
        Child::spawn(&mut again(&wrapper, NAME, "inside", folder.path())).finish();
    }
}

#[test]
fn over_the_file_size_limit_a_start_is_refused_and_a_run_under_way_goes_on_when_it_is_lifted() {
    const NAME: &str =
        "over_the_file_size_limit_a_start_is_refused_and_a_run_under_way_goes_on_when_it_is_lifted";
    if let Some((_, folder)) = role() {
        let was = getrlimit(Resource::Fsize);
        let limit = |current| {
            let limit = Rlimit { current, ..was };
            setrlimit(Resource::Fsize, limit).unwrap();
        };
        let (fill, free) = (|| limit(Some(40 * 1024)), || limit(was.current));
        return runtime().block_on(fails_and_recovers(&folder, fill, free, &["try again"]));
    }
    let folder = tempfile::tempdir().unwrap();
    // Whoever writes past the limit gets a signal, unless it is ignored.
    let wrapper = ["sh", "-c", r#"trap "" XFSZ; exec "$@""#, "sh"].map(Into::into);
    Child::spawn(&mut again(&wrapper, NAME, "inside", folder.path())).finish();
}

/// The disk takes nothing for a while: what is asked for fails by name, what is stored can be read,
/// and a step that finished meanwhile is recorded afterwards without running again.
async fn fails_and_recovers(folder: &Path, fill: impl Fn(), free: impl Fn(), words: &[&str]) {
    let path = store_in(folder).await;
    let engine = Engine::open(&path).await.unwrap();
    let (gate, worked) = (
        Arc::new(tokio::sync::Notify::new()),
        Arc::new(AtomicU32::new(0)),
    );
    let (opens, counts) = (Arc::clone(&gate), Arc::clone(&worked));
    let (done, mut is_done) = tokio::sync::mpsc::unbounded_channel();
    let gated: Task<(), String> = engine.task("gated", move |ctx: Ctx, (): ()| {
        let (gate, worked, done) = (Arc::clone(&opens), Arc::clone(&counts), done.clone());
        async move {
            gate.notified().await;
            let work = || async {
                worked.fetch_add(1, Ordering::SeqCst);
                done.send(())?;
                Ok::<_, TaskError>("x".repeat(60_000))
            };
            ctx.step("large").run(work).await
        }
    });
    let under_way = gated.start(&()).await.unwrap();

    fill();
    let large = "y".repeat(60_000);
    // The log beside the file may have some room left.
    let mut runs = 2;
    let error = loop {
        assert!(runs < 1000, "the disk is never full");
        match padded(&engine).start(&large).queue().await {
            Ok(_) => runs += 1,
            Err(error) => break error,
        }
    };
    check_error(&error, ErrorKind::Unavailable, words);
    gate.notify_one();
    is_done.recv().await.unwrap();
    for _ in 0..10 {
        let error = padded(&engine).start(&large).queue().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        check_logs(&engine, runs).await;
    }

    free();
    let Outcome::Completed(text) = under_way.wait().await.unwrap() else {
        panic!("it did not complete")
    };
    assert_eq!(text.len(), 60_000);
    assert_eq!(worked.load(Ordering::SeqCst), 1, "the step ran once");
    run_one(&engine, "after").await.unwrap();
    engine.close().await.unwrap();
    check_usable(&path, runs + 1).await;
}
