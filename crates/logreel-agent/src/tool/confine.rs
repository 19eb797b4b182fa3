//! A folder that nothing here leads out of: not `..`, not an absolute path, not a symlink, also not one
//! that is put in the way while a path is being opened.
//!
//! A path is resolved by hand: every component is opened from the one before it, symlinks are read and
//! never followed by the system. What comes of it has no symlinks and is what policy is asked about; it
//! is then opened without following any, beneath the folder's descriptor (`openat2` where there is one),
//! so that what is opened is what was asked about.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// As many as the system follows.
const LINKS_MAX: u32 = 40;
/// A file that is larger is not read whole.
pub(super) const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Calls that changed a file: their keys are kept with it, in this attribute.
const MARKS: &str = "user.logreel.calls";
const MARK_BYTES: usize = 16;
const MARKS_MAX: usize = 32;
const REPLACE_TRIES: u32 = 5;
/// Whoever writes there runs code, or changes the runs themselves.
const PROTECTED: [&str; 2] = [".git", ".logreel"];

#[cfg(target_os = "linux")]
const FOLDER: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// A pipe or a device must not keep whoever opens it.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Why a path is not opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("`{0}` is outside the working folder")]
    Outside(String),
    #[error("`{0}`: a path must not hold `..`")]
    Parent(String),
    #[error("the path holds a character that cannot be seen, or is empty")]
    Character,
    #[error("`{0}` does not exist")]
    Missing(String),
    #[error("`{0}` goes through too many symlinks")]
    Links(String),
    #[error("`{0}` is a folder")]
    Folder(String),
    #[error("`{0}` is no folder")]
    NoFolder(String),
    #[error("`{0}` is neither a file nor a folder")]
    Special(String),
    #[error("`{0}` has other names (hard links), which may be outside the working folder")]
    HardLink(String),
    #[error("`{0}` belongs to git or to logreel itself")]
    Protected(String),
    #[error("`{0}` was changed by someone else meanwhile")]
    Changed(String),
    #[error("`{path}` has {bytes} bytes, more than the {FILE_BYTES_MAX} that can be handled")]
    TooLarge { path: String, bytes: u64 },
    #[error("`{path}`: {source}")]
    Io {
        path: String,
        source: std::io::Error,
    },
}

/// The folder.
pub(super) struct Folder {
    path: PathBuf,
    root: OwnedFd,
    /// Never let the kernel resolve.
    by_hand: bool,
    /// Held while a file is read, changed and replaced.
    writing: Mutex<()>,
}

/// What is known of the calls that changed a file.
pub(super) enum Marks {
    Known(Vec<u8>),
    /// The file system keeps no attributes.
    Unsupported,
}

impl Marks {
    /// Whether a call changed the file; `None` when that cannot be known.
    pub(super) fn has(&self, mark: &[u8; MARK_BYTES]) -> Option<bool> {
        match self {
            Self::Known(marks) => Some(marks.chunks_exact(MARK_BYTES).any(|it| it == mark)),
            Self::Unsupported => None,
        }
    }
}

/// A path as it was given, as one beneath the folder. Looks at nothing but the text.
pub(super) fn relative(folder: &Path, given: &str) -> Result<PathBuf, Refused> {
    let unseen = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    if given.is_empty() || given.contains(unseen) {
        return Err(Refused::Character);
    }
    let path = Path::new(given);
    let beneath = match path.is_absolute() {
        true => path.strip_prefix(folder),
        false => Ok(path),
    };
    let beneath = beneath.map_err(|_| Refused::Outside(given.to_owned()))?;
    let mut clean = PathBuf::new();
    for component in beneath.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => return Err(Refused::Parent(given.to_owned())),
            Component::RootDir | Component::Prefix(_) => {
                return Err(Refused::Outside(given.to_owned()));
            }
        }
    }
    Ok(clean)
}

impl Folder {
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let path = path.canonicalize()?;
        let root = fs::open(&path, FOLDER, Mode::empty())?;
        Ok(Self {
            path,
            root,
            by_hand: false,
            writing: Mutex::new(()),
        })
    }

    /// The folder's own path, resolved.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// [`relative`] to this folder.
    pub(super) fn relative(&self, given: &str) -> Result<PathBuf, Refused> {
        relative(&self.path, given)
    }

    /// Where a path leads, beneath the folder and without symlinks. What is at its end may not exist.
    pub(super) fn real(&self, relative: &Path) -> Result<PathBuf, Refused> {
        Ok(self.walk(relative, Missing::Named)?.path)
    }

    /// Opens a regular file for reading, by its real path.
    pub(super) fn file(&self, real: &Path) -> Result<(File, Stat), Refused> {
        let fd = self.open_real(real, READ)?;
        regular(fd, real)
    }

    /// Opens a folder to list it, by its real path.
    pub(super) fn folder(&self, real: &Path) -> Result<OwnedFd, Refused> {
        self.open_real(real, READ | OFlags::DIRECTORY)
    }

    /// Opens what is there, and never what a symlink that was put there meanwhile leads to.
    fn open_real(&self, real: &Path, flags: OFlags) -> Result<OwnedFd, Refused> {
        let changed = || Refused::Changed(real.display().to_string());
        #[cfg(target_os = "linux")]
        if !self.by_hand {
            let resolve = fs::ResolveFlags::BENEATH
                | fs::ResolveFlags::NO_MAGICLINKS
                | fs::ResolveFlags::NO_SYMLINKS;
            let path = match real.as_os_str().is_empty() {
                true => Path::new("."),
                false => real,
            };
            match fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
                Ok(fd) => return Ok(fd),
                Err(Errno::LOOP) => return Err(changed()),
                // Not known here, or forbidden here.
                Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => {}
                Err(error) => return Err(refused(error, real)),
            }
        }
        let walked = self.walk(real, Missing::Refused)?;
        if walked.path != real {
            return Err(changed());
        }
        let name = walked.name.as_deref().unwrap_or(OsStr::new("."));
        let flags = flags | OFlags::NOFOLLOW;
        match fs::openat(walked.folder(&self.root), name, flags, Mode::empty()) {
            Ok(fd) => Ok(fd),
            Err(Errno::LOOP) => Err(changed()),
            Err(error) => Err(refused(error, real)),
        }
    }

    /// Goes a path component by component, each opened from the one before it; symlinks are read and
    /// gone by hand.
    fn walk(&self, relative: &Path, missing: Missing) -> Result<Walked, Refused> {
        let shown = || relative.display().to_string();
        let outside = || Refused::Outside(shown());
        let mut todo: VecDeque<OsString> = names(relative).collect();
        let mut walked = Walked {
            folders: Vec::new(),
            name: None,
            path: PathBuf::new(),
        };
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            if name == ".." {
                // Only in a symlink.
                if walked.folders.pop().is_none() {
                    return Err(outside());
                }
                walked.path.pop();
                continue;
            }
            let here = walked.folder(&self.root);
            let found = fs::statat(here, &name, AtFlags::SYMLINK_NOFOLLOW);
            let kind = match found {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => match missing {
                    Missing::Refused => return Err(Refused::Missing(shown())),
                    Missing::Named => {
                        walked.path.push(&name);
                        // Nothing is there that could lead elsewhere.
                        for name in todo {
                            if name == ".." {
                                return Err(outside());
                            }
                            walked.path.push(name);
                        }
                        walked.name = Some(name);
                        return Ok(walked);
                    }
                    Missing::Made if !todo.is_empty() => {
                        match fs::mkdirat(here, &name, Mode::from_raw_mode(0o777)) {
                            Ok(()) | Err(Errno::EXIST) => FileType::Directory,
                            Err(error) => return Err(refused(error, relative)),
                        }
                    }
                    Missing::Made => {
                        walked.path.push(&name);
                        walked.name = Some(name);
                        return Ok(walked);
                    }
                },
                Err(error) => return Err(refused(error, relative)),
            };
            match kind {
                FileType::Symlink => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Refused::Links(shown()));
                    }
                    let target = fs::readlinkat(here, &name, Vec::new());
                    let target = target.map_err(|error| refused(error, relative))?;
                    let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                    let target = if target.is_absolute() {
                        walked.folders.clear();
                        walked.path = PathBuf::new();
                        target.strip_prefix(&self.path).map_err(|_| outside())?
                    } else {
                        target
                    };
                    for name in names(target).collect::<Vec<_>>().into_iter().rev() {
                        todo.push_front(name);
                    }
                }
                FileType::Directory => {
                    let next = fs::openat(here, &name, FOLDER, Mode::empty());
                    let next = next.map_err(|error| refused(error, relative))?;
                    walked.folders.push(next);
                    walked.path.push(name);
                }
                _ if todo.is_empty() => {
                    walked.path.push(&name);
                    walked.name = Some(name);
                }
                _ => return Err(Refused::NoFolder(shown())),
            }
        }
        Ok(walked)
    }

    /// Replaces a file as a whole, or makes one. `allowed` is asked about its real path; `change` is
    /// given what it holds and the calls that changed it, and gives what it is to hold; `None` leaves it
    /// alone.
    ///
    /// Gives the size of the file afterwards.
    pub(super) fn replace<E: From<Refused>>(
        &self,
        relative: &Path,
        mark: &[u8; MARK_BYTES],
        allowed: impl Fn(&Path) -> Result<(), E>,
        change: impl Fn(Option<&[u8]>, &Marks) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<u64, E> {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // Another process may write the same file.
        for _ in 0..REPLACE_TRIES {
            let real = self.real(relative)?;
            allowed(&real)?;
            if let Some(size) = self.replace_once(&real, mark, &change)? {
                return Ok(size);
            }
        }
        Err(Refused::Changed(relative.display().to_string()).into())
    }

    /// `None` when someone changed something in between.
    fn replace_once<E: From<Refused>>(
        &self,
        real: &Path,
        mark: &[u8; MARK_BYTES],
        change: impl Fn(Option<&[u8]>, &Marks) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<u64>, E> {
        let shown = || real.display().to_string();
        let protected = |name: &OsStr| PROTECTED.iter().any(|it| name.eq_ignore_ascii_case(it));
        if real.iter().any(protected) {
            return Err(Refused::Protected(shown()).into());
        }
        let walked = self.walk(real, Missing::Made)?;
        // What was resolved has no symlink; one that is there now was put there meanwhile.
        if walked.path != real {
            return Ok(None);
        }
        let Some(name) = &walked.name else {
            return Err(Refused::Folder(shown()).into());
        };
        let folder = walked.folder(&self.root);
        let before = existing(folder, name, real)?;
        let (content, marks, mode) = match before {
            None => (None, Marks::Known(Vec::new()), None),
            Some(stat) if stat.st_nlink > 1 => return Err(Refused::HardLink(shown()).into()),
            Some(_) => {
                let fd = fs::openat(folder, name, READ | OFlags::NOFOLLOW, Mode::empty());
                let (file, stat) = regular(fd.map_err(|error| refused(error, real))?, real)?;
                let marks = marks(&file);
                let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
                (Some(whole(file, real)?), marks, Some(mode))
            }
        };
        let size = |bytes: &[u8]| bytes.len() as u64;
        let Some(new) = change(content.as_deref(), &marks)? else {
            return Ok(Some(size(&content.unwrap_or_default())));
        };
        if content.as_ref() == Some(&new) && marks.has(mark) != Some(false) {
            return Ok(Some(size(&new)));
        }
        let temporary = Temporary::write(folder, mark, &new, mode, &marks)
            .map_err(|error| refused(error, real))?;
        // The folder may have been moved away, the file changed: look once more.
        let again = self.walk(real, Missing::Made)?;
        let same_folder = same(
            &fs::fstat(again.folder(&self.root)),
            &fs::fstat(folder).map_err(|error| refused(error, real))?,
        );
        let same_file = match (&before, existing(folder, name, real)?) {
            (None, None) => true,
            (Some(before), Some(now)) => {
                same(&Ok(now), before)
                    && (now.st_mtime, now.st_mtime_nsec) == (before.st_mtime, before.st_mtime_nsec)
                    && now.st_size == before.st_size
            }
            _ => false,
        };
        if again.path != real || !same_folder || !same_file {
            return Ok(None);
        }
        let stat = temporary
            .rename(name)
            .map_err(|error| refused(error, real))?;
        let after = self.walk(real, Missing::Refused)?;
        let there = fs::statat(after.folder(&self.root), name, AtFlags::SYMLINK_NOFOLLOW);
        if !same(&there, &stat) {
            return Ok(None);
        }
        Ok(Some(size(&new)))
    }
}

/// What becomes of a component that is not there.
#[derive(Clone, Copy)]
enum Missing {
    Refused,
    /// The rest of the path is taken as it is.
    Named,
    /// Folders are made; the last component is only named.
    Made,
}

/// Where a walk ended: in a folder, at a name in it unless it is the folder itself.
struct Walked {
    /// From the root's first child on.
    folders: Vec<OwnedFd>,
    name: Option<OsString>,
    /// Beneath the root, without symlinks.
    path: PathBuf,
}

impl Walked {
    fn folder<'a>(&'a self, root: &'a OwnedFd) -> BorrowedFd<'a> {
        self.folders.last().unwrap_or(root).as_fd()
    }
}

fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}

fn refused(error: Errno, path: &Path) -> Refused {
    let shown = path.display().to_string();
    match error {
        Errno::NOENT => Refused::Missing(shown),
        Errno::XDEV => Refused::Outside(shown),
        Errno::LOOP => Refused::Links(shown),
        Errno::NOTDIR => Refused::NoFolder(shown),
        Errno::ISDIR => Refused::Folder(shown),
        // A socket, or a pipe nobody reads.
        Errno::NXIO => Refused::Special(shown),
        error => Refused::Io {
            path: shown,
            source: error.into(),
        },
    }
}

fn regular(fd: OwnedFd, path: &Path) -> Result<(File, Stat), Refused> {
    let stat = fs::fstat(&fd).map_err(|error| refused(error, path))?;
    kind_of(&stat, path)?;
    Ok((File::from(fd), stat))
}

fn kind_of(stat: &Stat, path: &Path) -> Result<(), Refused> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Refused::Folder(path.display().to_string())),
        FileType::Symlink => Err(Refused::Changed(path.display().to_string())),
        _ => Err(Refused::Special(path.display().to_string())),
    }
}

/// The regular file of that name, if there is any.
fn existing(folder: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<Option<Stat>, Refused> {
    match fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => kind_of(&stat, path).map(|()| Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(refused(error, path)),
    }
}

fn same(one: &Result<Stat, Errno>, other: &Stat) -> bool {
    one.is_ok_and(|one| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// All that a file holds.
pub(super) fn whole(file: File, path: &Path) -> Result<Vec<u8>, Refused> {
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    let shown = || path.display().to_string();
    read.map_err(|source| Refused::Io {
        path: shown(),
        source,
    })?;
    match bytes.len() as u64 > FILE_BYTES_MAX {
        true => Err(Refused::TooLarge {
            path: shown(),
            bytes: bytes.len() as u64,
        }),
        false => Ok(bytes),
    }
}

fn marks(file: &File) -> Marks {
    let mut known = vec![0; MARKS_MAX * MARK_BYTES];
    match fs::fgetxattr(file, MARKS, &mut known[..]) {
        Ok(length) => {
            known.truncate(length);
            Marks::Known(known)
        }
        Err(Errno::NODATA | Errno::RANGE) => Marks::Known(Vec::new()),
        Err(_) => Marks::Unsupported,
    }
}

/// The new file, under a name of its own until it takes the place of the old. Gone when dropped.
struct Temporary<'a> {
    folder: BorrowedFd<'a>,
    name: String,
    file: File,
    renamed: bool,
}

impl<'a> Temporary<'a> {
    fn write(
        folder: BorrowedFd<'a>,
        mark: &[u8; MARK_BYTES],
        bytes: &[u8],
        mode: Option<Mode>,
        marks: &Marks,
    ) -> Result<Self, Errno> {
        use std::fmt::Write as _;
        let mut name = ".logreel-".to_owned();
        for byte in mark {
            write!(name, "{byte:02x}").expect("a string takes everything");
        }
        // The same call, interrupted before.
        match fs::unlinkat(folder, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let first = mode.map_or(Mode::from_raw_mode(0o666), |_| Mode::from_raw_mode(0o600));
        let fd = fs::openat(folder, &name, flags | OFlags::NOFOLLOW, first)?;
        let mut new = Self {
            folder,
            name,
            file: File::from(fd),
            renamed: false,
        };
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        new.file.write_all(bytes).map_err(errno)?;
        if let Some(mode) = mode {
            fs::fchmod(&new.file, mode)?;
        }
        if let Marks::Known(known) = marks {
            let others = known.chunks_exact(MARK_BYTES).filter(|it| it != mark);
            let all: Vec<&[u8]> = others.chain([&mark[..]]).collect();
            let all = all[all.len().saturating_sub(MARKS_MAX)..].concat();
            match fs::fsetxattr(&new.file, MARKS, &all, fs::XattrFlags::empty()) {
                // Without it an interrupted edit is known by what the file says.
                Ok(()) | Err(Errno::NOTSUP | Errno::PERM | Errno::NOSPC | Errno::NOSYS) => {}
                Err(error) => return Err(error),
            }
        }
        new.file.sync_all().map_err(errno)?;
        Ok(new)
    }

    fn rename(mut self, name: &OsStr) -> Result<Stat, Errno> {
        fs::renameat(self.folder, &self.name, self.folder, name)?;
        self.renamed = true;
        fs::fstat(&self.file)
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.renamed
            && let Err(error) = fs::unlinkat(self.folder, &self.name, AtFlags::empty())
        {
            tracing::warn!(name = self.name, %error, "a temporary file was left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const MARK: [u8; MARK_BYTES] = [7; MARK_BYTES];

    /// `inside/` is the folder; beside it is what nobody may see.
    struct World {
        top: tempfile::TempDir,
        folder: Folder,
    }

    impl World {
        fn new(by_hand: bool) -> Self {
            let top = tempfile::tempdir().unwrap();
            let inside = top.path().join("inside");
            std::fs::create_dir_all(inside.join("sub")).unwrap();
            std::fs::create_dir(top.path().join("outside")).unwrap();
            std::fs::write(top.path().join("outside/secret"), "outside").unwrap();
            std::fs::write(inside.join("sub/file"), "inside").unwrap();
            let folder = Folder::open(&inside).unwrap();
            let folder = Folder { by_hand, ..folder };
            Self { top, folder }
        }

        fn both(look: impl Fn(Self)) {
            for by_hand in [false, true] {
                look(Self::new(by_hand));
            }
        }

        fn inside(&self, path: &str) -> PathBuf {
            self.top.path().join("inside").join(path)
        }

        fn read(&self, path: &str) -> Result<String, Refused> {
            let relative = self.folder.relative(path)?;
            let (file, _) = self.folder.file(&self.folder.real(&relative)?)?;
            let bytes = whole(file, &relative)?;
            Ok(String::from_utf8(bytes).unwrap())
        }

        fn write(&self, path: &str, text: &str) -> Result<u64, Refused> {
            let relative = self.folder.relative(path)?;
            let change = |_: Option<&[u8]>, _: &Marks| Ok(Some(text.as_bytes().to_vec()));
            self.folder.replace(&relative, &MARK, |_| Ok(()), change)
        }

        fn outside_is_untouched(&self) {
            let left: Vec<_> = std::fs::read_dir(self.top.path().join("outside"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            assert_eq!(left, ["secret"]);
            let secret = std::fs::read_to_string(self.top.path().join("outside/secret"));
            assert_eq!(secret.unwrap(), "outside");
        }
    }

    #[test]
    fn paths_that_lead_out_are_refused_and_those_inside_are_not() {
        World::both(|world| {
            let top = world.top.path().canonicalize().unwrap();
            symlink("../../outside", world.inside("sub/relative")).unwrap();
            symlink(top.join("outside"), world.inside("absolute")).unwrap();
            symlink(top.join("outside/secret"), world.inside("link")).unwrap();
            symlink("/proc/self/root", world.inside("root")).unwrap();
            symlink("/proc/self/cwd", world.inside("cwd")).unwrap();
            symlink("loop", world.inside("loop")).unwrap();
            symlink("sub/../..", world.inside("climbs")).unwrap();
            let secret = top.join("outside/secret");
            let through_root = format!("root{}", secret.display());
            for path in [
                "../outside/secret",
                "sub/../../outside/secret",
                "sub/../sub/file",
                secret.to_str().unwrap(),
                "/etc/passwd",
                "/proc/self/root/etc/passwd",
                "/proc/self/environ",
                "sub/relative/secret",
                "absolute/secret",
                "link",
                &through_root,
                "cwd/Cargo.toml",
                "loop",
                "climbs/outside/secret",
                "",
                "sub/file\0",
                "a\nb",
                "\u{202e}elif/bus",
            ] {
                let read = world.read(path);
                assert!(read.is_err(), "{path}: {read:?}");
                let written = world.write(path, "changed");
                assert!(written.is_err(), "{path}: {written:?}");
            }
            // Names that look like what they are not are only names.
            for path in [
                "．．/outside/secret",
                "‥/outside/secret",
                "..\u{2215}outside",
                "sub/file.",
                "...",
            ] {
                assert!(
                    matches!(world.read(path), Err(Refused::Missing(_))),
                    "{path}"
                );
            }
            symlink("sub", world.inside("within")).unwrap();
            symlink(top.join("inside/sub"), world.inside("within_absolute")).unwrap();
            symlink("../sub/file", world.inside("sub/around")).unwrap();
            let absolute = top.join("inside/sub/file");
            for path in [
                "sub/file",
                "./sub//file",
                absolute.to_str().unwrap(),
                "within/file",
                "within_absolute/file",
                "sub/around",
            ] {
                assert_eq!(world.read(path).unwrap(), "inside", "{path}");
                let real = world.folder.real(&world.folder.relative(path).unwrap());
                assert_eq!(real.unwrap(), Path::new("sub/file"));
            }
            world.outside_is_untouched();
        });
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_else_is() {
        World::both(|world| {
            assert_eq!(world.write("new/deep/file", "one").unwrap(), 3);
            assert_eq!(world.read("new/deep/file").unwrap(), "one");
            // Through a symlink it is the file that changes, not the link.
            symlink("sub/file", world.inside("link")).unwrap();
            world.write("link", "two").unwrap();
            assert_eq!(world.read("sub/file").unwrap(), "two");
            assert!(world.inside("link").is_symlink());
            use std::os::unix::fs::PermissionsExt as _;
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(world.inside("sub/file"), executable).unwrap();
            world.write("sub/file", "three").unwrap();
            let mode = std::fs::metadata(world.inside("sub/file")).unwrap();
            assert_eq!(mode.permissions().mode() & 0o777, 0o755);

            // Another name of a file outside.
            let secret = world.top.path().join("outside/secret");
            std::fs::hard_link(&secret, world.inside("hard")).unwrap();
            assert!(matches!(
                world.write("hard", "x"),
                Err(Refused::HardLink(_))
            ));
            std::fs::remove_file(world.inside("hard")).unwrap();
            let fifo = world.inside("fifo");
            fs::mknodat(
                fs::CWD,
                &fifo,
                FileType::Fifo,
                Mode::from_raw_mode(0o600),
                0,
            )
            .unwrap();
            assert!(matches!(world.write("fifo", "x"), Err(Refused::Special(_))));
            assert!(matches!(world.read("fifo"), Err(Refused::Special(_))));
            assert!(matches!(world.write("sub", "x"), Err(Refused::Folder(_))));
            assert!(world.write("sub/file/below", "x").is_err());
            for path in [".git/hooks/pre-commit", ".logreel/runs.db", "a/.GIT/config"] {
                assert!(matches!(world.write(path, "x"), Err(Refused::Protected(_))));
            }
            symlink(".git", world.inside("git")).unwrap();
            assert!(matches!(
                world.write("git/config", "x"),
                Err(Refused::Protected(_))
            ));
            let temporaries = std::fs::read_dir(world.inside("")).unwrap().flatten();
            let left = temporaries.filter(|it| it.file_name().as_bytes().starts_with(b".logreel-"));
            assert_eq!(left.count(), 0);
            world.outside_is_untouched();
        });
    }

    /// Ends the one that swaps also when the test fails.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Someone swaps a folder and a file for symlinks that lead out, all the time.
    #[test]
    fn a_symlink_made_in_between_leads_nowhere() {
        World::both(|world| {
            let stop = AtomicBool::new(false);
            let (mut reads, mut refusals) = (0, 0);
            std::fs::write(world.inside("file"), "inside").unwrap();
            std::fs::create_dir(world.inside("dir")).unwrap();
            std::fs::write(world.inside("dir/secret"), "inside").unwrap();
            std::thread::scope(|scope| {
                let _at_the_end = Stop(&stop);
                scope.spawn(|| {
                    let outside = world.top.path().join("outside");
                    symlink(&outside, world.inside("to_dir")).unwrap();
                    symlink(outside.join("secret"), world.inside("to_file")).unwrap();
                    let exchange = |one: &str, other: &str| {
                        let (one, other) = (world.inside(one), world.inside(other));
                        let flags = fs::RenameFlags::EXCHANGE;
                        fs::renameat_with(fs::CWD, one, fs::CWD, other, flags).unwrap();
                    };
                    while !stop.load(Ordering::Relaxed) {
                        exchange("dir", "to_dir");
                        exchange("file", "to_file");
                    }
                });
                for round in 0..4000 {
                    for path in ["dir/secret", "file"] {
                        match world.read(path) {
                            Ok(text) => {
                                assert!(text.starts_with("inside"), "it read what is outside");
                                reads += 1;
                            }
                            Err(_) => refusals += 1,
                        }
                    }
                    // In a folder of which another has hold of the name.
                    let written = world.write("dir/made", &format!("inside {round}"));
                    drop(written);
                    if round % 100 == 0 {
                        world.outside_is_untouched();
                    }
                }
            });
            world.outside_is_untouched();
            assert!(
                reads > 0 && refusals > 0,
                "{reads} read, {refusals} refused"
            );
        });
    }

    #[test]
    fn the_calls_that_changed_a_file_are_known() {
        World::both(|world| {
            for n in 0..40 {
                let mark = [n; MARK_BYTES];
                let change = |_: Option<&[u8]>, marks: &Marks| {
                    assert_ne!(marks.has(&mark), Some(true));
                    Ok::<_, Refused>(Some(vec![n]))
                };
                world
                    .folder
                    .replace(Path::new("marked"), &mark, |_| Ok(()), change)
                    .unwrap();
            }
            let look = |_: Option<&[u8]>, marks: &Marks| {
                let known = [39, 20, 3].map(|n| marks.has(&[n; MARK_BYTES]));
                // The oldest are forgotten; a file system may keep none.
                let all = [Some(true), Some(true), Some(false)];
                assert!(known == all || known == [None; 3], "{known:?}");
                Ok::<_, Refused>(None)
            };
            world
                .folder
                .replace(Path::new("marked"), &MARK, |_| Ok(()), look)
                .unwrap();
        });
    }
}
