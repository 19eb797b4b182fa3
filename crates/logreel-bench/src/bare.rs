//! The reference: what an append costs when there is nothing but a file.
//!
//! The file is preallocated with real zeros, so that a sync writes data and never the metadata of a
//! file that grew.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};

use rustix::fs::fdatasync;
use rustix::io::pwrite;
use tokio::sync::oneshot;

/// A preallocated file that is appended to and starts over at its end.
pub struct BareFile {
    file: File,
    at: u64,
    bytes: u64,
}

impl BareFile {
    pub fn create(path: &Path, mib: u64) -> io::Result<Self> {
        let file = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .open(path)?;
        let zeros = vec![0; 1 << 20];
        for chunk in 0..mib {
            write_all(&file, &zeros, chunk << 20)?;
        }
        file.sync_all()?;
        Ok(Self {
            file,
            at: 0,
            bytes: mib << 20,
        })
    }

    /// A durable append.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.at + bytes.len() as u64 > self.bytes {
            self.at = 0;
        }
        write_all(&self.file, bytes, self.at)?;
        self.at += bytes.len() as u64;
        fdatasync(&self.file)?;
        Ok(())
    }
}

fn write_all(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = pwrite(file, bytes, at)?;
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}

/// A bare file that many append to at once: one sync for all who wait.
///
/// Whoever finds the file free leads, after the others had their chance to come along; a helper
/// thread leads for those who came while it was busy. The same as the store's writer, so that the
/// two differ in what they write and not in how they wait.
pub struct GroupFile {
    queue: Mutex<Queue>,
    file: Mutex<BareFile>,
    company: AtomicUsize,
    helper: OnceLock<thread::Thread>,
    stopped: AtomicBool,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    waiters: Vec<oneshot::Sender<Result<(), String>>>,
}

impl GroupFile {
    pub fn create(path: &Path, mib: u64) -> io::Result<(Arc<Self>, Helper)> {
        let group = Arc::new(Self {
            queue: Mutex::default(),
            file: Mutex::new(BareFile::create(path, mib)?),
            company: AtomicUsize::new(0),
            helper: OnceLock::new(),
            stopped: AtomicBool::new(false),
        });
        let helping = Arc::clone(&group);
        let thread = thread::spawn(move || helping.help());
        group.helper.get_or_init(|| thread.thread().clone());
        let helper = Helper {
            group: Arc::clone(&group),
            thread: Some(thread),
        };
        Ok((group, helper))
    }

    /// A durable append, acknowledged with all who came with it.
    pub async fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let (ack, acked) = oneshot::channel();
        {
            let mut queue = self.queue();
            queue.bytes.extend_from_slice(bytes);
            queue.waiters.push(ack);
        }
        if self.company.load(Ordering::Relaxed) > 1 {
            tokio::task::yield_now().await;
        }
        let led = match self.file.try_lock() {
            Ok(file) => {
                self.lead(file);
                true
            }
            Err(TryLockError::Poisoned(poisoned)) => {
                self.lead(poisoned.into_inner());
                true
            }
            Err(TryLockError::WouldBlock) => false,
        };
        if led && self.company.load(Ordering::Relaxed) > 1 {
            tokio::task::yield_now().await;
        }
        acked
            .await
            .map_err(io::Error::other)?
            .map_err(io::Error::other)
    }

    fn lead(&self, mut file: MutexGuard<'_, BareFile>) {
        let batch = std::mem::take(&mut *self.queue());
        if !batch.waiters.is_empty() {
            self.company.store(batch.waiters.len(), Ordering::Relaxed);
            let written = file.append(&batch.bytes).map_err(|error| error.to_string());
            for waiter in batch.waiters {
                // A task that was aborted waits no longer.
                drop(waiter.send(written.clone()));
            }
        }
        drop(file);
        if !self.queue().waiters.is_empty()
            && let Some(helper) = self.helper.get()
        {
            helper.unpark();
        }
    }

    fn help(&self) {
        while !self.stopped.load(Ordering::Acquire) {
            while !self.queue().waiters.is_empty() {
                self.lead(self.file.lock().unwrap_or_else(PoisonError::into_inner));
            }
            thread::park();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the helper thread, and joins it in the end.
pub struct Helper {
    group: Arc<GroupFile>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.group.stopped.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                eprintln!("the reference's helper thread panicked");
            }
        }
    }
}
