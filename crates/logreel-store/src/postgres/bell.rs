//! A doorbell between processes: after a commit the runs that changed are named to whoever listens. It is sent
//! on a connection of its own, because a notification inside a transaction makes all of them wait for each
//! other, and many rings become one. What it misses is found by looking (`tail`), which stays the correct path.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use logreel_core::RunId;
use logreel_core::state::Set;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio_postgres::Client;

use super::connect::Connector;
use super::failure::failed;
use super::open::Shared;
use super::writer::pause;
use crate::Error;

/// The least time between two rings of a process.
const BETWEEN: Duration = Duration::from_millis(4);
/// How long one waits who could not ring.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Runs in one ring: a notification has at most 8000 bytes. Of more it says only that there are.
const NAMED: usize = 150;
/// Rings that wait to be heard here.
const HEARD: usize = 256;
/// A ring is a transaction like any other, but need not outlive a crash: nobody waits for a disk, or for a standby,
/// because of it. Only for this transaction: a pooler may give the session to someone else.
const RING: &str = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)";
/// Stands for runs that are not named.
const MANY: &str = "*";

pub(super) struct Bell {
    /// `None` when there is none.
    connector: Option<Connector>,
    /// Who rings: its own rings say nothing to itself.
    sender: String,
    pending: Mutex<Pending>,
    wanted: Notify,
    heard: AtomicBool,
}

#[derive(Debug, Default)]
struct Pending {
    runs: Set<RunId>,
    many: bool,
    /// Someone here listens.
    listens: bool,
}

impl Bell {
    pub fn new(connector: Option<Connector>, sender: u64) -> Self {
        Self {
            connector,
            sender: format!("{sender:016x}"),
            pending: Mutex::default(),
            wanted: Notify::new(),
            heard: AtomicBool::new(false),
        }
    }

    /// Rings and listens from now on, once there is something to ring for or someone who listens.
    pub fn start(shared: &Arc<Shared>, handle: &Handle) {
        if let Some(connector) = shared.bell.connector.clone() {
            handle.spawn(work(Arc::downgrade(shared), connector));
        }
    }

    /// Whether what others ring is heard at this moment.
    pub fn is_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// A run changed, and it is committed.
    pub fn ring(&self, run: RunId) {
        if self.connector.is_none() {
            return;
        }
        let mut pending = self.pending();
        if pending.runs.len() < NAMED {
            pending.runs.insert(run);
        } else {
            pending.many = true;
        }
        drop(pending);
        self.wanted.notify_one();
    }

    /// Someone listens here.
    pub fn listen(&self) {
        let mut pending = self.pending();
        if !pending.listens {
            pending.listens = true;
            drop(pending);
            self.wanted.notify_one();
        }
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be said to others; `None` when there is nothing.
    fn take(&self) -> Option<String> {
        let mut pending = self.pending();
        if pending.runs.is_empty() {
            return None;
        }
        let mut text = self.sender.clone();
        if std::mem::take(&mut pending.many) {
            pending.runs.clear();
            return Some(format!("{text} {MANY}"));
        }
        // What rings next finds the room that these had.
        for run in pending.runs.drain() {
            text.push(' ');
            text.push_str(&run.to_string());
        }
        Some(text)
    }
}

async fn work(shared: Weak<Shared>, connector: Connector) {
    loop {
        // The notice that is waited for is kept by the store, which may be dropped meanwhile.
        let Some(strong) = shared.upgrade() else {
            return;
        };
        let asleep = {
            let pending = strong.bell.pending();
            !pending.listens && pending.runs.is_empty()
        };
        if asleep {
            drop(strong);
            if !wait(&shared).await {
                return;
            }
            continue;
        }
        drop(strong);
        let ended = serve(&shared, &connector).await;
        let Some(strong) = shared.upgrade() else {
            return;
        };
        strong.bell.heard.store(false, Ordering::Relaxed);
        if let Err(error) = ended {
            tracing::debug!("no doorbell for now, others are found by looking: {error}");
        }
        drop(strong);
        pause(AFTER_FAILURE).await;
    }
}

/// Waits until there is something to do. `false` when the store is gone.
async fn wait(shared: &Weak<Shared>) -> bool {
    match shared.upgrade() {
        Some(strong) => {
            strong.bell.wanted.notified().await;
            true
        }
        None => false,
    }
}

/// Rings and listens on one connection, until it is lost.
async fn serve(shared: &Weak<Shared>, connector: &Connector) -> Result<(), Error> {
    let (sender, mut heard) = mpsc::channel(HEARD);
    let (client, driver) = connector.connect(Some(sender)).await?;
    tokio::spawn(driver);
    // One for each schema of the database that holds a store.
    let sql = "SELECT 'logreel_' || substr(md5(current_schema()::text), 1, 16)";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    let channel: String = row.try_get(0).map_err(failed)?;
    let listen = format!("LISTEN {channel}");
    client.batch_execute(&listen).await.map_err(failed)?;
    let ring = client.prepare(RING).await.map_err(failed)?;
    match shared.upgrade() {
        Some(strong) => {
            strong.bell.heard.store(true, Ordering::Relaxed);
            // What rang before is found by a look.
            strong.look.notify_one();
        }
        None => return Ok(()),
    }
    loop {
        let Some(strong) = shared.upgrade() else {
            return Ok(());
        };
        if let Some(text) = strong.bell.take() {
            say(&client, &ring, &channel, &text).await?;
            pause(BETWEEN).await;
        }
        tokio::select! {
            note = heard.recv() => match note {
                Some(note) => hear(&strong, &note),
                None => return Err(Error::unavailable("the connection was lost")),
            },
            () = strong.bell.wanted.notified() => {}
        }
    }
}

async fn say(
    client: &Client,
    ring: &tokio_postgres::Statement,
    channel: &str,
    text: &str,
) -> Result<(), Error> {
    let said = client.execute(ring, &[&channel, &text]).await;
    said.map(drop).map_err(failed)
}

fn hear(shared: &Shared, note: &str) {
    let mut words = note.split(' ');
    if words.next() == Some(shared.bell.sender.as_str()) {
        return;
    }
    for word in words {
        match word.parse::<RunId>() {
            Ok(run) => shared.bells.ring(&run),
            // Many, or what a later build says.
            Err(_) => shared.look.notify_one(),
        }
    }
}
