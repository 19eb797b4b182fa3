//! Opening a store, and what its parts share.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Notify, Semaphore};

use super::batch::{Batches, FLIGHTS};
use super::bell::Bell;
use super::clock::{Clock, Times};
use super::connect::{self, Place};
use super::failure::{Halt, failed};
use super::news::{self, Places};
use super::owners::Owners;
use super::pulse::Pulse;
use super::schema;
use super::tail::Tail;
use super::writer::Tx;
use crate::doorbell::Doorbells;
use crate::tip::PAYLOAD_MAX_BYTES;
use crate::tips::Tips;
use crate::{Env, Error, Migrations, SystemEnv};

/// Connections of a process, unless it says, and how many of them are for imports, and for what else takes long.
const CONNECTIONS: usize = 8;
const IMPORTS: usize = 1;
const LONG: usize = 1;

/// What can be chosen about a store.
#[derive(Clone)]
pub struct Options {
    /// Whether the tables are made, or brought up to date, when they are not.
    pub create: bool,
    /// Where randomness and waiting come from.
    pub env: Arc<dyn Env>,
    /// Whose time events and leases have.
    pub times: Times,
    /// The largest body or blob.
    pub payload_bytes_max: u64,
    /// How long an owner that joins here may be silent before others may take its runs.
    pub lease: Duration,
    /// How many connections this process uses at most, beside one for its beats and one for the doorbell. Some
    /// are for the appends of running steps alone.
    pub connections: usize,
    /// Whether other processes are told of changes by notifications, so that they hear at once what they would
    /// find by looking a little later. The URL may say `doorbell=off`.
    pub doorbell: bool,
    /// How long after its stamp an event may be seen first by whoever follows all runs. Less than twice what a
    /// transaction may take loses events: it is for tests.
    pub guard: Duration,
    /// Where the locks of owners on this host are; `None` = `$XDG_RUNTIME_DIR/logreel`, else a folder of the
    /// user under the temporary one.
    pub locks: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            create: false,
            env: Arc::new(SystemEnv),
            times: Times::Database,
            payload_bytes_max: PAYLOAD_MAX_BYTES,
            lease: Duration::from_secs(10),
            connections: CONNECTIONS,
            doorbell: true,
            guard: news::GUARD,
            locks: None,
        }
    }
}

/// A store in a PostgreSQL database.
pub struct PostgresStore {
    shared: Arc<Shared>,
    tail: Tail,
    shown: String,
    found: Found,
    /// Taken when the store is dropped.
    runtime: Option<Runtime>,
}

/// What the parts of a store share.
pub(super) struct Shared {
    pub env: Arc<dyn Env>,
    pub clock: Arc<Clock>,
    pub payload_bytes_max: u64,
    pub bells: Doorbells,
    pub owners: Owners,
    pub pool: Pool,
    pub tips: Mutex<Tips>,
    pub batches: Batches,
    pub places: Places,
    /// [`RunStore::secrets`](crate::RunStore::secrets).
    pub secrets: Vec<String>,
    /// [`Options::guard`] in microseconds.
    pub guard: i64,
    pub pulse: Pulse,
    pub bell: Bell,
    /// Others are looked at now, not at the next time.
    pub look: Notify,
    /// Imports hold their connection for long: some are always left for everyone else.
    pub imports: Semaphore,
    /// So do erasing and deleting.
    pub long: Semaphore,
}

/// What a store that was opened had been before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing: its tables were made.
    Nothing,
    /// A store.
    Store,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Opens the store at a `postgres://` URL. A password is taken from the URL, from `PGPASSWORD` or from
    /// the user's file of passwords, and never shown.
    pub async fn open(url: &str, options: Options) -> Result<Self, Error> {
        let create = options.create;
        let Reached {
            runtime,
            handle,
            shared,
            shown,
        } = reach(url, options)?;
        let (preparing, name) = (shared.clone(), shown.clone());
        let found = on(
            &handle,
            async move { prepare(&preparing, &name, create).await },
        )
        .await?;
        Bell::start(&shared, &handle);
        Ok(Self {
            tail: Tail::new(shared.clone(), handle),
            shared,
            shown,
            found,
            runtime: runtime.keep(),
        })
    }

    /// What must be done to the database at this URL before this build can use it. Does nothing of it.
    pub async fn migrations(url: &str) -> Result<Migrations, Error> {
        let reached = reach(url, Options::default())?;
        let (shared, shown) = (reached.shared.clone(), reached.shown.clone());
        on(&reached.handle, async move {
            let tx = Tx::new(connect::get(&shared.pool).await?, shared.clone());
            let found = schema::version(&tx).await?;
            schema::check(found.unwrap_or_default(), &shown)?;
            Ok(Migrations::new(found, &schema::BRINGS))
        })
        .await
    }

    /// Where it is, without a password.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// What was there when it was opened.
    pub fn found(&self) -> Found {
        self.found
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn tail(&self) -> &Tail {
        &self.tail
    }

    /// Runs work to its end, whether or not the caller waits for it.
    pub(super) async fn run<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        match &self.runtime {
            Some(runtime) => on(runtime.handle(), work).await,
            None => Err(Error::Bug("a store is used while it is dropped".to_owned()).into()),
        }
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A database on its way to be a store; nothing was asked of it yet.
struct Reached {
    runtime: Guard,
    handle: Handle,
    shared: Arc<Shared>,
    shown: String,
}

fn reach(url: &str, options: Options) -> Result<Reached, Error> {
    let place = Place::parse(url)?;
    let (shown, secrets) = (place.shown.clone(), place.secrets.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("logreel-postgres")
        .enable_all()
        .build()
        .map_err(|error| Error::unavailable(format!("no thread for the database: {error}")))?;
    // Whatever fails from here on, the runtime is not dropped where it must not be.
    let runtime = Guard(Some(runtime));
    let handle = runtime.handle()?;
    let clock = Arc::new(Clock::new(options.env.clone(), options.times));
    let has_doorbell = options.doorbell && place.has_doorbell();
    let connector = place.connector()?;
    let pool = {
        let _here = handle.enter();
        let others = options.connections.saturating_sub(FLIGHTS);
        connector.pool(others.max(1 + IMPORTS + LONG), clock.clone())?
    };
    let pulse = Pulse::new(connector.clone(), clock.clone(), options.lease);
    let batches = Batches::new(connector.clone(), clock.clone(), handle.clone());
    let bell = Bell::new(has_doorbell.then_some(connector), options.env.random_u64());
    let shared = Arc::new(Shared {
        owners: Owners::new(options.lease, clock.clone(), options.locks)?,
        env: options.env,
        clock,
        payload_bytes_max: options.payload_bytes_max,
        bells: Doorbells::default(),
        pool,
        tips: Mutex::default(),
        batches,
        places: Places::default(),
        secrets,
        guard: i64::try_from(options.guard.as_micros()).unwrap_or(i64::MAX / 2),
        pulse,
        bell,
        look: Notify::new(),
        imports: Semaphore::new(IMPORTS),
        long: Semaphore::new(LONG),
    });
    Ok(Reached {
        runtime,
        handle,
        shared,
        shown,
    })
}

/// A runtime that may be dropped anywhere.
struct Guard(Option<Runtime>);

impl Guard {
    fn handle(&self) -> Result<Handle, Error> {
        let handle = self.0.as_ref().map(|runtime| runtime.handle().clone());
        handle.ok_or_else(|| Error::Bug("a runtime got lost".to_owned()))
    }

    fn keep(mut self) -> Option<Runtime> {
        self.0.take()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

async fn on<T, E>(
    handle: &Handle,
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    match handle.spawn(work).await {
        Ok(answer) => answer,
        Err(error) if error.is_panic() => {
            Err(Error::Bug(format!("the store panicked: {error}")).into())
        }
        Err(_) => Err(Error::unavailable("the store is closed").into()),
    }
}

/// Looks at the database before it is used: whose it is, how old, and whether it keeps what it says.
async fn prepare(shared: &Arc<Shared>, shown: &str, create: bool) -> Result<Found, Error> {
    let client = connect::get(&shared.pool).await?;
    let tx = Tx::new(client, shared.clone());
    let sql = "SELECT current_setting('server_encoding'), current_setting('fsync')";
    let row = tx.one(sql, &[]).await.map_err(failed)?;
    let setting = |index| row.try_get::<_, String>(index).map_err(failed);
    let refuse = |why: &str| Error::Invalid {
        path: PathBuf::from(shown),
        why: why.to_owned(),
    };
    if setting(0)? != "UTF8" {
        return Err(refuse("its encoding is not UTF8; make a database with it"));
    }
    if setting(1)? == "off" {
        tracing::warn!("{shown} has fsync off: a crash of its machine may lose or damage runs");
    }
    match schema::version(&tx).await? {
        Some(found) => {
            schema::check(found, shown)?;
            if found < schema::VERSION {
                match create {
                    true => schema::migrate(&tx, shown).await?,
                    false => {
                        return Err(Error::unavailable(format!(
                            "{shown} was made by an older build (schema {found}, this one needs {}); \
                             `logreel migrate` brings it up to date",
                            schema::VERSION
                        )));
                    }
                }
            }
        }
        None if create => {
            schema::migrate(&tx, shown).await?;
            return Ok(Found::Nothing);
        }
        None => {
            return Err(Error::unavailable(format!("there is no store at {shown}")));
        }
    }
    // Another server, or another clock, may have been here before.
    if let Some(last) = news::last(&tx).await.map_err(Halt::told)? {
        shared.clock.raise(last);
    }
    Ok(Found::Store)
}
