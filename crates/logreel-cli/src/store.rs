//! Where the runs are: what `--store` says, else the nearest `.logreel/runs.db`.
//!
//! A verb that reads never makes a store: one that is not there is an error that says where it was
//! looked for. The first verb that starts something makes it, at the git root or here, and says so.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use logreel::store::postgres::{self, Found};
use logreel::store::{SystemEnv, sqlite};
use logreel::{Builder, Engine, ErrorKind, MemoryStore, PostgresStore, RunStore, SqliteStore};
use logreel_agent::Agents;

use crate::agents;
use crate::error::Failure;
use crate::otlp;
use crate::output::Output;
use crate::settings::Settings;
use crate::worker;

/// Where a project's store and settings are.
pub const FOLDER: &str = ".logreel";
const FILE: &str = "runs.db";
const NAME: &str = ".logreel/runs.db";
const MEMORY: &str = "memory:";

/// What the user said about the place, if anything.
pub struct Place(Option<OsString>);

/// Where a store is.
pub enum Spot {
    File(PathBuf),
    Database(Url),
}

/// Where a database is. It may hold a password, so it is handed on and never shown.
#[derive(Clone)]
pub struct Url(String);

/// What a store that was opened is kept in.
#[derive(Clone)]
pub enum Kept {
    Memory,
    File(SqliteStore),
    Database(Arc<PostgresStore>, Url),
}

/// A store that was opened, and an engine on it.
pub struct Opened {
    pub store: Arc<dyn RunStore>,
    pub engine: Engine,
    pub kept: Kept,
}

/// A store to drive runs on, and an engine that drives workflows and agents.
pub struct Acting {
    pub store: Arc<dyn RunStore>,
    pub engine: Engine,
    pub kept: Kept,
    /// Who reads agents' files, as the settings want it.
    pub agents: Agents,
    pub settings: Settings,
}

/// What a verb that drives may find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Then it is made.
    Make,
    /// Then there is nothing to act on.
    Refuse,
}

impl Url {
    /// The whole of it, for whoever connects.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// What may be seen of it.
    pub fn shown(&self) -> Result<String, Failure> {
        postgres::shown(&self.0).map_err(|error| Failure::new(ErrorKind::Usage, error.to_string()))
    }
}

impl Kept {
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::Memory)
    }

    /// Where it is, for people.
    pub fn shown(&self) -> String {
        match self {
            Self::Memory => MEMORY.to_owned(),
            Self::File(store) => store.path().display().to_string(),
            Self::Database(store, _) => store.shown().to_owned(),
        }
    }

    /// What the names of files begin with that belong to the store: beside its file, or for a database in a
    /// folder of the user on this host. `None` in memory.
    pub fn beside(&self) -> anyhow::Result<Option<PathBuf>> {
        Ok(match self {
            Self::Memory => None,
            Self::File(store) => Some(store.path().to_owned()),
            Self::Database(_, url) => Some(postgres::notes_of(url.secret())?),
        })
    }

    fn store(&self) -> Arc<dyn RunStore> {
        match self {
            Self::Memory => Arc::new(MemoryStore::new(Arc::new(SystemEnv))),
            Self::File(store) => Arc::new(store.clone()),
            Self::Database(store, _) => Arc::clone(store) as Arc<dyn RunStore>,
        }
    }
}

impl Place {
    pub fn new(said: Option<OsString>) -> Self {
        // `LOGREEL_STORE=` is how a shell script says nothing.
        Self(said.filter(|said| !said.is_empty()))
    }

    /// Where the store is.
    pub fn find(&self) -> Result<Spot, Failure> {
        match &self.0 {
            Some(said) => named(said),
            None => nearest(&here()?, home().as_deref()).map(Spot::File),
        }
    }

    /// The store's file, when it is one that is there.
    pub fn file(&self) -> Option<PathBuf> {
        match self.find() {
            Ok(Spot::File(path)) => Some(path).filter(|path| path.exists()),
            _ => None,
        }
    }

    /// Opens the store; never makes one.
    pub async fn open(&self) -> anyhow::Result<Opened> {
        let spot = self.find()?;
        let settings = settings_of(&spot)?;
        let kept = open(spot, Missing::Refuse, &settings).await?;
        let store = kept.store();
        let builder = Engine::builder().store(Arc::clone(&store));
        let engine = settings.build(builder).build().await?;
        Ok(Opened {
            store,
            engine,
            kept,
        })
    }

    /// Opens the store to say something to its runs: what is said is recorded without secrets.
    pub async fn speak(&self) -> anyhow::Result<Opened> {
        let opened = self.open().await?;
        let agents = agents::agents(&self.settings()?);
        opened.engine.drive_agents(Arc::new(agents));
        Ok(opened)
    }

    /// Opens the store to drive runs on it; `dir` replaces the folder that they recorded.
    pub async fn act(
        &self,
        missing: Missing,
        dir: Option<&Path>,
        out: &Output,
    ) -> anyhow::Result<Acting> {
        let in_dir = |builder: Builder| worker::in_folder(builder, dir);
        self.act_with(missing, out, in_dir).await
    }

    /// [`Place::act`] with an engine of one's own making.
    pub async fn act_with(
        &self,
        missing: Missing,
        out: &Output,
        with: impl FnOnce(Builder) -> Builder,
    ) -> anyhow::Result<Acting> {
        let (settings, kept) = if self.is_memory() && missing == Missing::Make {
            (Settings::load(None)?, Kept::Memory)
        } else {
            let spot = match missing {
                Missing::Refuse => self.find()?,
                Missing::Make => self.find_or_make()?,
            };
            let settings = settings_of(&spot)?;
            let was_there = matches!(&spot, Spot::File(path) if path.exists());
            let kept = open(spot, missing, &settings).await?;
            let is_new = match &kept {
                Kept::Memory => false,
                Kept::File(_) => !was_there,
                Kept::Database(store, _) => store.found() == Found::Nothing,
            };
            if is_new {
                out.note(format!("made the store {}", kept.shown()));
            }
            (settings, kept)
        };
        let store = kept.store();
        let builder = Engine::builder().store(Arc::clone(&store));
        let agents = agents::agents(&settings);
        let builder = builder.any_workflow().agents(Arc::new(agents.clone()));
        let builder = otlp::watch(settings.clone().build(builder), &store);
        let engine = with(builder).build().await?;
        Ok(Acting {
            store,
            engine,
            kept,
            agents,
            settings,
        })
    }

    /// What the settings are for the store here, or for the one that would be made.
    pub fn settings(&self) -> Result<Settings, Failure> {
        if self.is_memory() {
            return Settings::load(None);
        }
        let spot = match &self.0 {
            Some(said) => named(said)?,
            None => match self.find() {
                Ok(found) => found,
                Err(_) => Spot::File(self.would_make()?),
            },
        };
        settings_of(&spot)
    }

    /// The store that would be made: at the git root, else here.
    fn would_make(&self) -> Result<PathBuf, Failure> {
        let here = here()?;
        let root = git_root(&here, home().as_deref()).unwrap_or(&here);
        Ok(root.join(FOLDER).join(FILE))
    }

    /// Where the store is, or where it will be: then its folder is made.
    fn find_or_make(&self) -> Result<Spot, Failure> {
        if let Some(said) = &self.0 {
            return named(said);
        }
        self.find().or_else(|_| {
            let store = self.would_make()?;
            let folder = store.parent().unwrap_or(Path::new("."));
            make_folder(folder).map_err(|error| {
                let message = format!("{} cannot be made: {error}", folder.display());
                Failure::new(ErrorKind::Unavailable, message)
            })?;
            Ok(Spot::File(store))
        })
    }

    pub fn is_memory(&self) -> bool {
        self.0.as_ref().is_some_and(|said| said == MEMORY)
    }
}

/// Opens what is there, or makes it.
async fn open(spot: Spot, missing: Missing, settings: &Settings) -> anyhow::Result<Kept> {
    // Also when there is a file: another process may be about to make a store of it, or may have
    // been killed before it had.
    let create = missing == Missing::Make;
    Ok(match spot {
        Spot::File(path) => {
            let options = sqlite::Options {
                create,
                ..sqlite::Options::default()
            };
            Kept::File(SqliteStore::open(path, settings.options(options))?)
        }
        Spot::Database(url) => {
            let options = postgres::Options {
                create,
                ..postgres::Options::default()
            };
            let options = settings.database_options(options);
            let store = PostgresStore::open(url.secret(), options).await?;
            Kept::Database(Arc::new(store), url)
        }
    })
}

/// The settings beside the store's file; for a database, which lies nowhere, those of where one stands. How
/// durable it is, its server says.
fn settings_of(spot: &Spot) -> Result<Settings, Failure> {
    match spot {
        Spot::File(path) => Settings::load(Some(path)),
        Spot::Database(_) => {
            let mut settings = Settings::around(&here()?, home().as_deref())?;
            settings.durability = None;
            Ok(settings)
        }
    }
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from)
}

fn here() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| {
        let message = format!("the current folder cannot be read: {error}");
        Failure::new(ErrorKind::Unavailable, message)
    })
}

/// The root of the checkout that `here` is in. A home folder that is one is not meant from below it.
fn git_root<'h>(here: &'h Path, home: Option<&Path>) -> Option<&'h Path> {
    let root = here
        .ancestors()
        .find(|folder| folder.join(".git").exists())?;
    (root == here || home != Some(root)).then_some(root)
}

/// For its owner alone, because inputs and outputs are in it, and out of git's sight.
fn make_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let ignore = folder.join(".gitignore");
    if !ignore.exists() {
        std::fs::write(ignore, "*\n")?;
    }
    Ok(())
}

fn named(said: &OsStr) -> Result<Spot, Failure> {
    let text = said.to_string_lossy();
    if text == MEMORY {
        let message =
            "a store in memory ends with the process that made it; nobody else can read it";
        return Err(Failure::new(ErrorKind::Usage, message).hint("name a file with --store PATH"));
    }
    if postgres::is_url(&text) {
        return Ok(Spot::Database(Url(text.into_owned())));
    }
    match text.strip_prefix("sqlite:") {
        Some("") => {
            let message = "`sqlite:` names no file; say sqlite:PATH";
            Err(Failure::new(ErrorKind::Usage, message))
        }
        Some(path) => Ok(Spot::File(PathBuf::from(path))),
        None => Ok(Spot::File(PathBuf::from(said))),
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
        .hint("`logreel init` makes one; or name one with --store PATH or LOGREEL_STORE"))
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
        assert_eq!(git_root(&deep, Some(&home)), Some(&*repo));
        assert_eq!(git_root(&deep, Some(&repo)), None);
        assert_eq!(git_root(&repo, Some(&repo)), Some(&*repo));
    }
}
