//! What time it is: the store's, when it has a clock of its own.
//!
//! A time that one process stores is compared by others, and in PostgreSQL by the database. Minutes
//! between the clocks of machines would make a timer end early on one and run again and again on the next.
//! So the engine's `Env` is wrapped once, when the engine is built, and whoever asks it for the time gets
//! the one that is stored: for deadlines, driven time and ages alike.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use logreel_core::{RunId, Timestamp};
use logreel_store::{Env, RunStore};

/// The `Env` for whoever works on this store.
pub(crate) fn on(store: &Arc<dyn RunStore>, env: Arc<dyn Env>) -> Arc<dyn Env> {
    match store.now() {
        Some(_) => Arc::new(StoreTime {
            store: Arc::clone(store),
            env,
        }),
        None => env,
    }
}

/// The store's wall clock; everything else is the host's.
struct StoreTime {
    store: Arc<dyn RunStore>,
    env: Arc<dyn Env>,
}

impl Env for StoreTime {
    fn now(&self) -> Timestamp {
        self.store.now().unwrap_or_else(|| self.env.now())
    }

    fn monotonic(&self) -> Duration {
        self.env.monotonic()
    }

    fn random(&self, bytes: &mut [u8]) {
        self.env.random(bytes);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.env.sleep(duration)
    }

    fn run_id(&self) -> RunId {
        self.env.run_id()
    }

    fn random_u64(&self) -> u64 {
        self.env.random_u64()
    }
}
