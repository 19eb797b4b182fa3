//! The checkout a folder is in, asked of `git` itself.

use std::path::Path;
use std::process::{Command, Stdio};

use logreel::core::event::Git;

/// Commit, branch and whether there are changes; `None` without a repository, a commit or git.
pub fn look(folder: &Path) -> Option<Git> {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(["status", "--porcelain=v2", "--branch"])
        // Only looking must not write the index.
        .env("GIT_OPTIONAL_LOCKS", "0")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    read(&String::from_utf8_lossy(&output.stdout))
}

fn read(status: &str) -> Option<Git> {
    let header = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| {
            line.strip_prefix("# branch.")?
                .strip_prefix(name)?
                .strip_prefix(' ')
        })
    };
    let commit = header("oid").filter(|commit| *commit != "(initial)")?;
    let branch = header("head").filter(|branch| *branch != "(detached)");
    Some(Git {
        branch: branch.map(str::to_owned),
        commit: commit.to_owned(),
        dirty: status.lines().any(|line| !line.starts_with('#')),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_understood() {
        let clean = "# branch.oid 1a2b\n# branch.head main\n# branch.ab +0 -0\n";
        let git = read(clean).unwrap();
        assert_eq!(
            (git.commit.as_str(), git.branch.as_deref(), git.dirty),
            ("1a2b", Some("main"), false)
        );
        let detached = "# branch.oid 1a2b\n# branch.head (detached)\n? new.txt\n";
        let git = read(detached).unwrap();
        assert_eq!((git.branch, git.dirty), (None, true));
        assert_eq!(read("# branch.oid (initial)\n# branch.head main\n"), None);
    }
}
