//! Where a store may be: what can be said of a path before SQLite is asked.
//!
//! Nothing here opens the database file. Closing any descriptor of it would drop the locks that
//! other connections of this process hold on it, and another process could then reset the log.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Error;

/// What is at the path.
pub(super) enum Found {
    /// A file with something in it.
    File(PathBuf),
    /// Nothing, or a file that was never written.
    Nothing(PathBuf),
}

/// Checks the path, creating its folder when `create` says so. The paths in the answer are absolute.
pub(super) fn find(path: &Path, create: bool) -> Result<Found, Error> {
    let invalid = |why: &str| Error::Invalid {
        path: path.to_owned(),
        why: why.to_owned(),
    };
    let Some(name) = path.file_name().filter(|name| !name.is_empty()) else {
        return Err(invalid(
            "it names no file; give one, such as .logreel/runs.db",
        ));
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if create && !folder.exists() {
        create_folder(folder).map_err(|error| unreachable_path(folder, error))?;
    }
    let metadata = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(unreachable_path(path, error)),
    };
    if metadata.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(invalid(
            "it is a folder; name a file in it, such as runs.db",
        ));
    }
    if metadata.as_ref().is_some_and(|it| !it.is_file()) {
        return Err(invalid("it is no regular file; name one, such as runs.db"));
    }
    let written = metadata.as_ref().is_some_and(|it| it.len() > 0);
    if !written && !create {
        return Err(no_store(path));
    }
    // A link is followed here, so that everyone finds the log and the locks beside the file itself.
    let path = match metadata {
        Some(_) => fs::canonicalize(path).map_err(|error| unreachable_path(path, error))?,
        None => fs::canonicalize(folder)
            .map_err(|error| unreachable_path(folder, error))?
            .join(name),
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    for place in [folder, &path] {
        // Root may write anything; who marked it read-only meant it all the same.
        if fs::metadata(place).is_ok_and(|it| it.permissions().readonly()) {
            let what = format!("{} is read-only; make it writable", place.display());
            return Err(Error::unavailable(what));
        }
    }
    refuse_network(&path, folder)?;
    Ok(if written {
        Found::File(path)
    } else {
        Found::Nothing(path)
    })
}

/// Only its owner reads what runs did; and nobody wants it in a repository.
fn create_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    if folder.file_name().is_some_and(|name| name == ".logreel") {
        fs::write(folder.join(".gitignore"), "*\n")?;
    }
    Ok(())
}

/// Nobody has made one here.
pub(super) fn no_store(path: &Path) -> Error {
    Error::unavailable(format!("there is no store at {}", path.display()))
}

fn unreachable_path(path: &Path, error: io::Error) -> Error {
    Error::Unavailable {
        what: format!("{} cannot be used: {error}", path.display()),
        source: Some(Arc::new(error)),
    }
}

/// Locks and shared memory do not work between machines (SEMANTICS 7).
fn refuse_network(path: &Path, folder: &Path) -> Result<(), Error> {
    match network_name(folder) {
        None => Ok(()),
        Some(name) => Err(Error::Invalid {
            path: path.to_owned(),
            why: format!(
                "{name} is a network file system, where locks cannot be relied on; \
                 use a local disk, or PostgreSQL for several machines"
            ),
        }),
    }
}

#[cfg(target_os = "linux")]
fn network_name(folder: &Path) -> Option<String> {
    let kind = rustix::fs::statfs(folder).ok()?.f_type;
    // From linux/magic.h and the file systems' own sources.
    let name = match kind as u64 & 0xffff_ffff {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x564c => "NCP",
        0x7375_7245 => "Coda",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x1983_0326 => "BeeGFS",
        // FUSE is local or not, by who is behind it.
        0x6573_5546 => {
            return remote_fuse(&fs::read_to_string("/proc/self/mountinfo").ok()?, folder);
        }
        _ => return None,
    };
    Some(name.to_owned())
}

#[cfg(not(target_os = "linux"))]
fn network_name(_folder: &Path) -> Option<String> {
    None
}

fn remote_fuse(mounts: &str, folder: &Path) -> Option<String> {
    const REMOTE: &[&str] = &[
        "sshfs",
        "s3fs",
        "rclone",
        "glusterfs",
        "gcsfuse",
        "goofys",
        "blobfuse",
        "juicefs",
        "davfs",
        "curlftpfs",
        "cephfs",
    ];
    let mounted = mounts.lines().filter_map(|line| {
        // mountinfo: `id parent dev root POINT options.. - TYPE source ..`
        let point = line.split(' ').nth(4)?;
        let kind = line.split(" - ").nth(1)?.split(' ').next()?;
        folder.starts_with(point).then_some((point.len(), kind))
    });
    let (_, kind) = mounted.max_by_key(|(length, _)| *length)?;
    REMOTE
        .iter()
        .any(|remote| kind.contains(remote))
        .then(|| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuse_is_refused_when_a_network_is_behind_it() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda rw\n\
                      2 1 0:50 / /home/me/far rw shared:1 - fuse.sshfs me@far: rw\n\
                      3 1 0:51 / /home/me/near rw - fuse.mergerfs a:b rw\n";
        let kind = |folder: &str| remote_fuse(mounts, Path::new(folder));
        assert_eq!(kind("/home/me/far/x").as_deref(), Some("fuse.sshfs"));
        assert_eq!(kind("/home/me/near/x"), None);
        assert_eq!(kind("/home/me"), None);
    }
}
