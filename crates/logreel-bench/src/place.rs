//! Where a bench works: a folder on a real disk, and how much it does there.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A folder for the files, and the size of the run. The folder is removed with the last clone.
#[derive(Clone)]
pub struct Place {
    folder: Arc<TempDir>,
    /// A smoke run.
    pub quick: bool,
}

impl Place {
    pub fn find(dir: Option<PathBuf>, quick: bool) -> Result<Self> {
        // Not the system's temporary folder: that is often in memory, where a sync costs nothing.
        let parent = dir.unwrap_or_else(|| PathBuf::from("target"));
        std::fs::create_dir_all(&parent)
            .with_context(|| format!("cannot make {}", parent.display()))?;
        let folder = tempfile::Builder::new()
            .prefix("logreel-bench-")
            .tempdir_in(&parent)
            .with_context(|| format!("cannot make a folder in {}", parent.display()))?;
        let folder = Arc::new(folder);
        Ok(Self { folder, quick })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn rounds(&self) -> usize {
        self.size(3, 1)
    }

    /// How much to do.
    pub fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.folder.path();
        write!(f, "files in {} on {}", path.display(), file_system(path))?;
        if self.quick {
            f.write_str("; a quick run, its figures mean nothing")?;
        }
        Ok(())
    }
}

fn file_system(path: &Path) -> String {
    // From linux/magic.h; those a bench is likely to meet.
    match rustix::fs::statfs(path).map(|found| found.f_type) {
        Ok(0xef53) => "ext4".to_owned(),
        Ok(0x5846_5342) => "xfs".to_owned(),
        Ok(0x9123_683e) => "btrfs".to_owned(),
        Ok(0x2fc1_2fc1) => "zfs".to_owned(),
        Ok(0x794c_7630) => "overlayfs".to_owned(),
        Ok(0x6969) => "nfs".to_owned(),
        Ok(0x0102_1994) => "tmpfs, WHERE A SYNC COSTS NOTHING: name another --dir".to_owned(),
        Ok(other) => format!("file system {other:#x}"),
        Err(error) => format!("a file system that does not say what it is: {error}"),
    }
}
