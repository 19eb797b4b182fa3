//! How an engine is made: where its runs are kept, and what it drives them with.

use std::any::TypeId;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use logreel_core::event::Durability;
use logreel_store::sqlite::Options;
use logreel_store::{Duty, DutyKind, Env, MemoryStore, RunStore, SqliteStore, SystemEnv};
use tokio::sync::{OnceCell, watch};

use super::{Engine, Inner, Working};
use crate::Error;
use crate::agents::Agents;
use crate::ctx::Provided;
use crate::error::TaskError;
use crate::external::Folds;
use crate::hook::{FnHook, Hook, HookEvent, Hooks};
use crate::live::Live;
use crate::owner::LEASE;
use crate::registry::Registry;
use crate::replay::Stage;

/// Where a store is that is still to be opened.
enum At {
    File(PathBuf),
    /// A URL, which may hold a password.
    Database(String),
}

/// Makes an [`Engine`].
pub struct Builder {
    store: Option<Arc<dyn RunStore>>,
    at: Option<At>,
    env: Arc<dyn Env>,
    durability: Durability,
    provided: Provided,
    hooks: Vec<Arc<dyn Hook>>,
    any_workflow: bool,
    agents: Option<Arc<dyn Agents>>,
    dir: Option<PathBuf>,
    lease: Duration,
    payload_bytes_max: u64,
    renew_by_task: bool,
    staged: Option<(Arc<Stage>, Registry, Arc<Provided>)>,
    kind: DutyKind,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            store: None,
            at: None,
            env: Arc::new(SystemEnv),
            durability: Durability::Full,
            provided: Provided::new(),
            hooks: Vec::new(),
            any_workflow: false,
            agents: None,
            dir: None,
            lease: LEASE,
            payload_bytes_max: logreel_store::tip::PAYLOAD_MAX_BYTES,
            renew_by_task: false,
            staged: None,
            kind: DutyKind::Run,
        }
    }
}

impl Builder {
    /// Keeps runs here.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn RunStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Keeps runs in a SQLite file, made when there is none.
    #[must_use]
    pub fn sqlite(mut self, path: impl AsRef<Path>) -> Self {
        self.at = Some(At::File(path.as_ref().to_owned()));
        self
    }

    /// Keeps runs in a PostgreSQL database (feature `postgres`), at `postgres://USER@HOST/DATABASE`. Its tables are
    /// made when there are none. The password may be in the URL, in `PGPASSWORD` or in a pgpass file.
    #[must_use]
    pub fn postgres(mut self, url: impl Into<String>) -> Self {
        self.at = Some(At::Database(url.into()));
        self
    }

    /// A file, or a database when it is a URL.
    pub(super) fn at(self, store: impl AsRef<Path>) -> Self {
        let said = store.as_ref().to_string_lossy();
        if said.starts_with("postgres://") || said.starts_with("postgresql://") {
            return self.postgres(said);
        }
        self.sqlite(store)
    }

    /// Takes time, ids and randomness from here: every timestamp, not some. With PostgreSQL the wall clock is
    /// the database's all the same, because other machines compare with it what is stored.
    #[must_use]
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = env;
        self
    }

    /// `Relaxed` survives the process but not a power cut; it is shown wherever the run is.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long a lease holds without a renewal; 10 s when nothing is said.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The largest value that is recorded; 16 MiB when nothing is said. A store that is given with
    /// [`Builder::store`] has a ceiling of its own, which must not be lower.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: u64) -> Self {
        self.payload_bytes_max = bytes;
        self
    }

    /// Gives tasks something by its type; they get it with [`Ctx::get`](crate::Ctx::get).
    #[must_use]
    pub fn provide<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.provided.insert(TypeId::of::<T>(), Arc::new(value));
        self
    }

    /// Drives every workflow on the store, not only those registered here. Their commands run as this
    /// process's user: whoever may start runs on the store may run programs here.
    #[must_use]
    pub fn any_workflow(mut self) -> Self {
        self.any_workflow = true;
        self
    }

    /// Drives every agent on the store, and those that workflows name. What [`Builder::any_workflow`]
    /// says of commands holds for their tools.
    #[must_use]
    pub fn agents(mut self, agents: Arc<dyn Agents>) -> Self {
        self.agents = Some(agents);
        self
    }

    /// Drives workflows in this folder, whatever folder was recorded when they were started.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// What this process is called in the list of those that drive runs; `Run` when nothing is said, and
    /// `Worker` once it is at work.
    #[must_use]
    pub fn known_as(mut self, kind: DutyKind) -> Self {
        self.kind = kind;
        self
    }

    /// Is told of every event of the runs this engine drives.
    #[must_use]
    pub fn hook(mut self, hook: impl Hook) -> Self {
        self.hooks.push(Arc::new(hook));
        self
    }

    /// A function as a hook.
    #[must_use]
    pub fn on_event<F, Fut>(self, hook: F) -> Self
    where
        F: Fn(HookEvent) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), TaskError>> + Send + 'static,
    {
        self.hook(FnHook(hook))
    }

    /// Renews leases on the runtime instead of a thread: for virtual time.
    #[cfg(feature = "testing")]
    pub(crate) fn renew_by_task(mut self) -> Self {
        self.renew_by_task = true;
        self
    }

    /// Replays a run: what effects come to is given by the stage. It drives what
    /// the other engine does, and has what that one provides.
    pub(crate) fn on_stage(mut self, stage: Arc<Stage>, host: &Inner) -> Self {
        let provided = Arc::clone(&host.provided);
        self.staged = Some((stage, host.registry.for_replay(), provided));
        self.renew_by_task = true;
        self
    }

    /// The engine. Without a store it keeps runs in memory.
    pub async fn build(self) -> Result<Engine, Error> {
        let env = self.env;
        let store: Arc<dyn RunStore> = match (self.store, self.at) {
            (Some(store), _) => store,
            (None, Some(At::Database(url))) => {
                open_database(&url, self.lease, self.payload_bytes_max, &env).await?
            }
            (None, Some(At::File(path))) => {
                let options = Options {
                    create: true,
                    durability: self.durability,
                    lease: self.lease,
                    payload_bytes_max: self.payload_bytes_max,
                    env: Arc::clone(&env),
                };
                Arc::new(SqliteStore::open(path, options)?)
            }
            (None, None) => Arc::new(MemoryStore::new(Arc::clone(&env))),
        };
        let mut working = Working::default();
        let hooks = if self.hooks.is_empty() {
            Hooks::none()
        } else {
            let (hooks, task) = Hooks::start(self.hooks, &store.secrets());
            working.joins.spawn(task);
            hooks
        };
        let env = crate::clock::on(&store, env);
        let (stage, registry, provided) = match self.staged {
            Some((stage, registry, provided)) => (Some(stage), registry, provided),
            None => {
                let registry = Registry::new(self.any_workflow, self.agents);
                (None, registry, Arc::new(self.provided))
            }
        };
        Ok(Engine(Arc::new(Inner {
            store,
            env,
            durability: self.durability,
            provided,
            hooks,
            registry,
            host: OnceLock::new(),
            dir: self.dir,
            live: Live::default(),
            lease: self.lease,
            payload_bytes_max: self.payload_bytes_max,
            renew_by_task: self.renew_by_task,
            stage,
            external: Folds::default(),
            workers: AtomicUsize::new(0),
            commands: Mutex::new(Vec::new()),
            duty: Mutex::new(Duty {
                kind: self.kind,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                concurrency: None,
                labels: Vec::new(),
                leaving: false,
            }),
            owner: OnceCell::new(),
            renewal: Mutex::new(None),
            working: Mutex::new(working),
            closing: watch::Sender::new(false),
            door: tokio::sync::RwLock::new(()),
        })))
    }
}

#[cfg(feature = "postgres")]
async fn open_database(
    url: &str,
    lease: Duration,
    payload_bytes_max: u64,
    env: &Arc<dyn Env>,
) -> Result<Arc<dyn RunStore>, Error> {
    use logreel_store::postgres::Options;
    let options = Options {
        create: true,
        lease,
        payload_bytes_max,
        env: Arc::clone(env),
        ..Options::default()
    };
    let store = logreel_store::PostgresStore::open(url, options).await?;
    Ok(Arc::new(store))
}

#[cfg(not(feature = "postgres"))]
async fn open_database(
    _: &str,
    _: Duration,
    _: u64,
    _: &Arc<dyn Env>,
) -> Result<Arc<dyn RunStore>, Error> {
    let what = "stores in PostgreSQL are not in this build; switch the feature `postgres` on";
    Err(logreel_store::Error::unavailable(what).into())
}
