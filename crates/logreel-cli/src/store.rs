//! Where the runs are: what `--store` says, else the nearest `.logreel/runs.db`.
//!
//! No verb of this build makes a store: one that is not there is an error that says where it was
//! looked for.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use logreel::store::sqlite::Options;
use logreel::{Engine, ErrorKind, SqliteStore};

use crate::error::Failure;

const NAME: &str = ".logreel/runs.db";

/// What the user said about the place, if anything.
pub struct Place(Option<OsString>);

/// A store that was opened, and an engine on it.
pub struct Opened {
    pub store: SqliteStore,
    pub engine: Engine,
}

impl Place {
    pub fn new(said: Option<OsString>) -> Self {
        // `LOGREEL_STORE=` is how a shell script says nothing.
        Self(said.filter(|said| !said.is_empty()))
    }

    /// The store's file.
    pub fn find(&self) -> Result<PathBuf, Failure> {
        match &self.0 {
            Some(said) => named(said),
            None => {
                let here = std::env::current_dir().map_err(|error| {
                    let message = format!("the current folder cannot be read: {error}");
                    Failure::new(ErrorKind::Unavailable, message)
                })?;
                let home = std::env::var_os("HOME").map(PathBuf::from);
                nearest(&here, home.as_deref())
            }
        }
    }

    /// Opens the store; never makes one.
    pub async fn open(&self) -> anyhow::Result<Opened> {
        let store = SqliteStore::open(self.find()?, Options::default())?;
        let engine = Engine::builder()
            .store(Arc::new(store.clone()))
            .build()
            .await?;
        Ok(Opened { store, engine })
    }
}

fn named(said: &OsStr) -> Result<PathBuf, Failure> {
    let text = said.to_string_lossy();
    if text == "memory:" {
        let message =
            "a store in memory ends with the process that made it; nobody else can read it";
        return Err(Failure::new(ErrorKind::Usage, message).hint("name a file with --store PATH"));
    }
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        let message = "PostgreSQL stores are not in this build yet";
        return Err(Failure::new(ErrorKind::Unavailable, message)
            .hint("use a SQLite file: --store PATH or --store sqlite:PATH"));
    }
    match text.strip_prefix("sqlite:") {
        Some("") => {
            let message = "`sqlite:` names no file; say sqlite:PATH";
            Err(Failure::new(ErrorKind::Usage, message))
        }
        Some(path) => Ok(PathBuf::from(path)),
        None => Ok(PathBuf::from(said)),
    }
}

/// The nearest store from `here` upward. The git root is as far as it goes, and a store in the home
/// folder is not meant by whoever works somewhere below it.
fn nearest(here: &Path, home: Option<&Path>) -> Result<PathBuf, Failure> {
    let mut passed_home = false;
    let mut last = here;
    for folder in here.ancestors() {
        last = folder;
        let store = folder.join(NAME);
        let is_home = home == Some(folder) && folder != here;
        if store.is_file() {
            if !is_home {
                return Ok(store);
            }
            passed_home = true;
        }
        if folder.join(".git").exists() {
            break;
        }
    }
    let looked = if last == here {
        format!("in {}", here.display())
    } else {
        let root = if last.join(".git").exists() {
            ", the git root"
        } else {
            ""
        };
        format!("from {} up to {}{root}", here.display(), last.display())
    };
    let but_home = if passed_home {
        "; the one in the home folder counts only there"
    } else {
        ""
    };
    let message = format!("there is no store: looked for {NAME} {looked}{but_home}");
    Err(Failure::new(ErrorKind::Unavailable, message)
        .hint("name one with --store PATH or LOGREEL_STORE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_ends_at_the_git_root_and_skips_the_home_folder() {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("home");
        let repo = home.join("repo");
        let deep = repo.join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        let make = |folder: &Path| {
            std::fs::create_dir_all(folder.join(".logreel")).unwrap();
            std::fs::write(folder.join(NAME), "x").unwrap();
        };
        make(&home);
        let find = |here: &Path| nearest(here, Some(&home)).map_err(|error| error.message);
        assert_eq!(find(&home).unwrap(), home.join(NAME));
        assert!(find(&deep).unwrap_err().contains("counts only there"));

        std::fs::create_dir(repo.join(".git")).unwrap();
        let said = find(&deep).unwrap_err();
        assert!(
            said.ends_with(&format!("up to {}, the git root", repo.display())),
            "{said}"
        );
        make(&repo);
        assert_eq!(find(&deep).unwrap(), repo.join(NAME));
    }
}
