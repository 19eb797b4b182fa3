//! What the program did to the checkout it ran in: the commit before and after, and the difference.

use std::path::Path;
use std::process::{Command, Stdio};

use logreel::core::event::Git;
use logreel::core::{Blob, BlobRef};
use logreel_agent::Redactor;
use serde::Serialize;

use crate::git;

/// A larger difference is not kept, only its size.
const DIFF_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How many new files are named.
const UNTRACKED_MAX: usize = 1000;

/// The checkout before and after.
#[derive(Debug, Serialize)]
pub struct Changed {
    /// `None` when there was no commit yet; the difference is from nothing then.
    before: Option<Git>,
    after: Option<Git>,
    /// From the commit before to the files after: also what was changed and not committed before, when
    /// `before` is dirty.
    diff: Option<BlobRef>,
    diff_bytes: usize,
    redacted: u32,
    /// New files that git does not know.
    untracked: Vec<String>,
}

/// Compares the checkout as it is with how it was; `None` where there is none.
pub fn compare(
    folder: &Path,
    before: Option<Git>,
    redactor: &Redactor,
) -> Option<(Changed, Option<Blob>)> {
    let from = match &before {
        Some(before) => before.commit.clone(),
        None => nothing(folder)?,
    };
    let after = git::look(folder);
    let diff = ask(
        folder,
        &[
            "diff",
            "--no-color",
            "--no-ext-diff",
            "--no-textconv",
            "--binary",
            &from,
            "--",
        ],
    );
    let untracked = ask(
        folder,
        &[
            "ls-files",
            "--others",
            "--exclude-standard",
            "--full-name",
            "-z",
            // All of the checkout, like the difference, wherever in it the program ran.
            "--",
            ":/",
        ],
    );
    let untracked = String::from_utf8_lossy(&untracked);
    let untracked = untracked.split('\0').filter(|name| !name.is_empty());
    let diff_bytes = diff.len();
    let diff = Some(diff).filter(|diff| !diff.is_empty() && diff.len() <= DIFF_BYTES_MAX);
    let (blob, redacted) = match diff.map(String::from_utf8) {
        None => (None, 0),
        Some(Ok(text)) => {
            let (text, redacted) = redactor.text(&text);
            (Some(Blob::new(text.as_bytes())), redacted)
        }
        Some(Err(bytes)) => (Some(Blob::new(bytes.into_bytes())), 0),
    };
    let changed = Changed {
        before,
        after,
        diff: blob.as_ref().map(|blob| BlobRef {
            blob: blob.digest(),
            bytes: blob.bytes().len() as u64,
            media_type: "text/x-diff".to_owned(),
        }),
        diff_bytes,
        redacted,
        untracked: untracked.take(UNTRACKED_MAX).map(str::to_owned).collect(),
    };
    Some((changed, blob))
}

/// What a repository without a commit is compared with: a tree of nothing.
fn nothing(folder: &Path) -> Option<String> {
    let is_inside = ask(folder, &["rev-parse", "--is-inside-work-tree"]);
    let tree = match is_inside.starts_with(b"true") {
        true => ask(folder, &["hash-object", "-t", "tree", "/dev/null"]),
        false => return None,
    };
    let tree = String::from_utf8(tree).ok()?;
    Some(tree.trim().to_owned()).filter(|tree| !tree.is_empty())
}

/// What git prints; nothing when it cannot say.
fn ask(folder: &Path, words: &[&str]) -> Vec<u8> {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(words)
        // Only looking must not write the index.
        .env("GIT_OPTIONAL_LOCKS", "0")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => output.stdout,
        Ok(_) | Err(_) => Vec::new(),
    }
}
