//! The process groups of an owner's commands, in a file beside the store, so that whoever takes over
//! can stop what a killed worker left behind (SEMANTICS 21).
//!
//! `<folder>/<owner>.groups` has one line per group: run, group, start, machine, boot, pid namespace. It is
//! replaced whole and never synced: it has to outlive the process, not the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logreel_core::RunId;
use logreel_store::{Env, OwnerId};
use rustix::process::Pid;

use super::process;

/// The variable that names the run, in every command's environment: how a group without its leader is
/// known.
pub(crate) const RUN: &str = "LOGREEL_RUN";
const SUFFIX: &str = ".groups";

/// What this owner's commands run in.
pub(crate) struct Groups {
    /// `None` with a store that has no place for notes.
    file: Option<PathBuf>,
    listed: Mutex<BTreeMap<i32, Group>>,
}

/// Groups that someone in this process is told to stop, by number and start: who sweeps and who takes the
/// run over come to it at the same time.
static TOLD_OF: Mutex<BTreeSet<(i32, u64)>> = Mutex::new(BTreeSet::new());

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    run: RunId,
    group: Pid,
    start: u64,
    place: Place,
}

/// Where a process number means something.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    machine: String,
    boot: String,
    namespace: String,
}

impl Place {
    fn here() -> Self {
        let word = |text: String| {
            let text = text.trim();
            (if text.is_empty() { "-" } else { text }).to_owned()
        };
        let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            machine: word(machine),
            boot: word(boot),
            namespace: word(namespace.to_string_lossy().into_owned()),
        }
    }
}

impl Group {
    fn is_told_of_first(&self) -> bool {
        let mut told_of = TOLD_OF.lock().unwrap_or_else(PoisonError::into_inner);
        told_of.insert((self.group.as_raw_pid(), self.start))
    }

    fn line(&self) -> String {
        let Self {
            run,
            group,
            start,
            place:
                Place {
                    machine,
                    boot,
                    namespace,
                },
        } = self;
        let group = group.as_raw_pid();
        format!("{run} {group} {start} {machine} {boot} {namespace}\n")
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let parsed = Self {
            run: words.next()?.parse().ok()?,
            // 1 would be every process, 0 our own group.
            group: Pid::from_raw(words.next()?.parse().ok().filter(|pid| *pid > 1)?)?,
            start: words.next()?.parse().ok()?,
            place: Place {
                machine: words.next()?.to_owned(),
                boot: words.next()?.to_owned(),
                namespace: words.next()?.to_owned(),
            },
        };
        words.next().is_none().then_some(parsed)
    }

    fn whereabouts(&self, here: &Place) -> Whereabouts {
        let Self { run, start, .. } = self;
        if self.place.machine != here.machine {
            return Whereabouts::Elsewhere;
        }
        if self.place.boot != here.boot {
            return Whereabouts::Gone;
        }
        if self.place.namespace != here.namespace {
            return Whereabouts::Elsewhere;
        }
        match process::is_the_same(self.group, *start, &format!("{RUN}={run}")) {
            true => Whereabouts::Here,
            false => Whereabouts::Gone,
        }
    }
}

enum Whereabouts {
    /// It runs where we can signal it.
    Here,
    /// It may run where its number means nothing to us: on another machine, in another container.
    Elsewhere,
    /// It has ended; its number may be another's by now.
    Gone,
}

impl Groups {
    pub(crate) fn new(folder: Option<PathBuf>, owner: OwnerId) -> Self {
        Self {
            file: folder.map(|folder| folder.join(format!("{owner}{SUFFIX}"))),
            listed: Mutex::default(),
        }
    }

    fn listed(&self) -> MutexGuard<'_, BTreeMap<i32, Group>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a group whose leader waits for its go.
    pub(crate) fn note(&self, run: RunId, group: Pid) -> io::Result<()> {
        if self.file.is_none() {
            return Ok(());
        }
        let noted = Group {
            run,
            group,
            // Without a start it is never taken for another's.
            start: process::start_time(group).unwrap_or(u64::MAX),
            place: Place::here(),
        };
        let mut listed = self.listed();
        listed.insert(group.as_raw_pid(), noted);
        let written = self.write(&listed);
        if written.is_err() {
            listed.remove(&group.as_raw_pid());
        }
        written
    }

    /// The group has ended.
    pub(crate) fn forget(&self, group: Pid) {
        let mut listed = self.listed();
        if listed.remove(&group.as_raw_pid()).is_none() {
            return;
        }
        if let Err(error) = self.write(&listed) {
            // The line stays; its start time keeps it harmless.
            tracing::warn!(%error, "an ended process group is still listed");
        }
    }

    fn write(&self, listed: &BTreeMap<i32, Group>) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        if listed.is_empty() {
            return match fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                Ok(()) | Err(_) => Ok(()),
            };
        }
        let lines: String = listed.values().map(Group::line).collect();
        let new = file.with_extension("groups-new");
        fs::write(&new, lines)?;
        fs::rename(&new, file)
    }
}

/// Stops every group of this run that another owner listed: a dead one, or a frozen one that lost the
/// lease. Returns when they are gone; where that cannot be seen, after one lease. Whether it waited for that.
pub(crate) async fn stop_left_behind(
    folders: &[PathBuf],
    own: OwnerId,
    run: &RunId,
    lease: Duration,
    env: &dyn Env,
) -> bool {
    let is_unseen = !stop_reachable(folders, Some(own), run, env).await;
    if is_unseen {
        tracing::warn!(%run, ?lease, "a command may still run elsewhere; waiting");
        env.sleep(lease).await;
    }
    is_unseen
}

/// [`stop_left_behind`] without the wait; whether none can be left.
pub(crate) async fn stop_reachable(
    folders: &[PathBuf],
    own: Option<OwnerId>,
    run: &RunId,
    env: &dyn Env,
) -> bool {
    let mut all = true;
    for folder in folders {
        for (owner, path) in files_of_others(folder, own) {
            // Nobody knows what was listed there.
            let Ok(groups) = read(&path) else {
                all = false;
                continue;
            };
            all &= stop_all(groups.iter().filter(|group| group.run == *run), env).await;
            remove_if_over(folder, owner, &path, &groups);
        }
    }
    all
}

/// Stops every group that dead owners listed: also those of runs that nobody will take over, because
/// they were cancelled meanwhile.
pub(crate) async fn sweep(folder: &Path, own: OwnerId, env: &dyn Env) {
    for (owner, path) in files_of_others(folder, Some(own)) {
        if is_dead(folder, owner)
            && let Ok(groups) = read(&path)
        {
            stop_all(groups.iter(), env).await;
            remove_if_over(folder, owner, &path, &groups);
        }
    }
}

/// Whether all could be reached.
async fn stop_all<'a>(groups: impl Iterator<Item = &'a Group>, env: &dyn Env) -> bool {
    let here = Place::here();
    let (mut reachable, mut all) = (Vec::new(), true);
    for group in groups {
        match group.whereabouts(&here) {
            Whereabouts::Here => {
                if group.is_told_of_first() {
                    let pid = group.group.as_raw_pid();
                    tracing::warn!(run = %group.run, group = pid, "stopping a command left behind");
                }
                reachable.push(process::stop(group.group, env));
            }
            Whereabouts::Elsewhere => all = false,
            Whereabouts::Gone => {}
        }
    }
    futures_util::future::join_all(reachable).await;
    all
}

fn files_of_others(folder: &Path, own: Option<OwnerId>) -> Vec<(OwnerId, PathBuf)> {
    // No folder, nobody left anything.
    let Ok(files) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let owned = files.flatten().filter_map(|file| {
        let name = file.file_name();
        let owner = name.to_str()?.strip_suffix(SUFFIX)?;
        let owner = OwnerId(u64::from_str_radix(owner, 16).ok()?);
        Some((owner, file.path()))
    });
    owned.filter(|(owner, _)| Some(*owner) != own).collect()
}

fn read(path: &Path) -> io::Result<Vec<Group>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        // Its owner removed it meanwhile: the groups have ended.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "left-behind commands are not known");
            return Err(error);
        }
    };
    let parse = |line| {
        let group = Group::parse(line);
        if group.is_none() {
            tracing::error!(path = %path.display(), line, "this is no process group");
        }
        group
    };
    Ok(text.lines().filter_map(parse).collect())
}

/// Removes a dead owner's file once nothing of it runs. A living one, even a frozen one, minds its own.
fn remove_if_over(folder: &Path, owner: OwnerId, path: &Path, groups: &[Group]) {
    let here = Place::here();
    let over = |group: &Group| matches!(group.whereabouts(&here), Whereabouts::Gone);
    if !is_dead(folder, owner) || !groups.iter().all(over) {
        return;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "a dead owner's file was not removed");
        }
        Ok(()) | Err(_) => {}
    }
}

/// An owner holds a lock on a file of its own name for as long as it exists.
fn is_dead(folder: &Path, owner: OwnerId) -> bool {
    match fs::File::open(folder.join(owner.to_string())) {
        Ok(file) => file.try_lock_shared().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    use logreel_store::SystemEnv;

    use super::*;

    const OWN: OwnerId = OwnerId(1);
    const OTHER: OwnerId = OwnerId(0xabc);
    const LEASE: Duration = Duration::from_millis(50);

    /// A group as a killed worker leaves it; gone with the test, whatever happens.
    struct Left {
        leader: Child,
        pid: Pid,
    }

    impl Left {
        /// Runs until it is stopped, once the shell has said that it is ready.
        fn behind(run: &RunId, shell: &str) -> Self {
            let mut leader = Command::new("sh")
                .args(["-c", shell])
                .env(RUN, run.to_string())
                .process_group(0)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut ready = String::new();
            let mut out = BufReader::new(leader.stdout.take().unwrap());
            out.read_line(&mut ready).unwrap();
            let pid = Pid::from_raw(i32::try_from(leader.id()).unwrap()).unwrap();
            Self { leader, pid }
        }

        fn runs(&self) -> bool {
            process::is_running(self.pid)
        }
    }

    impl Drop for Left {
        fn drop(&mut self) {
            process::kill(self.pid);
            self.leader.wait().unwrap();
        }
    }

    struct World {
        folder: tempfile::TempDir,
        run: RunId,
        theirs: Groups,
    }

    impl World {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let theirs = Groups::new(Some(folder.path().to_owned()), OTHER);
            let run = SystemEnv.run_id();
            Self {
                folder,
                run,
                theirs,
            }
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join(format!("{OTHER}.groups"))
        }

        async fn take_over(&self) {
            let folders = [self.folder.path().to_owned()];
            stop_left_behind(&folders, OWN, &self.run, LEASE, &SystemEnv).await;
        }
    }

    #[tokio::test]
    async fn what_a_dead_owner_left_behind_is_gone_after_the_takeover_and_so_is_its_file() {
        let world = World::new();
        let left = [
            "echo; sleep 1000",
            "trap '' TERM; echo; while :; do sleep 0.05; done",
            "echo; kill -STOP 0",
        ]
        .map(|shell| Left::behind(&world.run, shell));
        for left in &left {
            world.theirs.note(world.run, left.pid).unwrap();
        }
        world.take_over().await;
        assert!(left.iter().all(|left| !left.runs()));
        assert!(!world.file().exists());
    }

    #[tokio::test]
    async fn a_group_that_lost_its_leader_is_known_by_what_it_inherited() {
        let world = World::new();
        let shell = "sleep 1000 >/dev/null & echo; read never";
        let mut left = Left::behind(&world.run, shell);
        world.theirs.note(world.run, left.pid).unwrap();
        left.leader.kill().unwrap();
        left.leader.wait().unwrap();
        assert_eq!(process::start_time(left.pid), None);
        assert!(left.runs());
        world.take_over().await;
        assert!(!left.runs());
    }

    #[tokio::test]
    async fn only_the_runs_own_groups_are_stopped() {
        let world = World::new();
        let other_run = SystemEnv.run_id();
        let left = Left::behind(&other_run, "echo; sleep 1000");
        world.theirs.note(other_run, left.pid).unwrap();
        world.take_over().await;
        assert!(left.runs());
        assert!(world.file().exists(), "someone still has to stop it");
        // Whoever begins to drive runs stops what the dead left, also of runs that have ended.
        sweep(world.folder.path(), OWN, &SystemEnv).await;
        assert!(!left.runs());
        assert!(!world.file().exists());
    }

    #[tokio::test]
    async fn a_reused_number_is_never_signalled() {
        let world = World::new();
        let left = Left::behind(&world.run, "echo; sleep 1000");
        let start = process::start_time(left.pid).unwrap();
        let there = Group {
            run: world.run,
            group: left.pid,
            start,
            place: Place::here(),
        };
        let earlier = Group {
            start: start - 1,
            ..there.clone()
        };
        let before_the_reboot = Group {
            place: Place {
                boot: "another".to_owned(),
                ..Place::here()
            },
            ..there.clone()
        };
        for gone in [earlier, before_the_reboot] {
            let text = gone.line() + "not a line\nrun_ 1 2 3 4\n";
            fs::write(world.file(), text).unwrap();
            world.take_over().await;
            assert!(left.runs());
            assert!(!world.file().exists(), "nothing listed there runs");
        }
        let in_a_container = Group {
            place: Place {
                namespace: "pid:[1]".to_owned(),
                ..Place::here()
            },
            ..there.clone()
        };
        let on_another_machine = Group {
            place: Place {
                machine: "another".to_owned(),
                boot: "another".to_owned(),
                ..Place::here()
            },
            ..there
        };
        for elsewhere in [in_a_container, on_another_machine] {
            fs::write(world.file(), elsewhere.line()).unwrap();
            let began = SystemEnv.monotonic();
            world.take_over().await;
            assert!(SystemEnv.monotonic() - began >= LEASE, "it waits one lease");
            assert!(left.runs());
            assert!(world.file().exists(), "nobody here knows what became of it");
        }
    }

    #[tokio::test]
    async fn a_frozen_owner_loses_its_groups_and_keeps_its_file() {
        let world = World::new();
        let lock = fs::File::create(world.folder.path().join(OTHER.to_string())).unwrap();
        lock.lock().unwrap();
        let left = Left::behind(&world.run, "echo; sleep 1000");
        world.theirs.note(world.run, left.pid).unwrap();
        sweep(world.folder.path(), OWN, &SystemEnv).await;
        assert!(left.runs(), "it may be alive and well");
        world.take_over().await;
        assert!(!left.runs());
        assert!(world.file().exists());
        world.theirs.forget(left.pid);
        assert!(!world.file().exists());
    }
}
