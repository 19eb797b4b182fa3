//! Who drives a run: this process, another one, or nobody.

use logreel::store::sqlite::this_host;
use logreel::store::{Driver, Owner};
use logreel::{RunId, RunStore};

use crate::settle;

pub enum Whose {
    /// This process drives it or a child of it.
    Ours,
    /// Another one does, and this one nothing of it.
    Theirs(Owner),
    /// No living process drives any of it now.
    Nobodys,
}

/// Who drives the run or a live child of it: a parent that waits for its child has no driver itself.
pub async fn find(store: &dyn RunStore, run: &RunId) -> anyhow::Result<Whose> {
    let tree = settle::tree(store, run).await?;
    let mut found = Whose::Nobodys;
    for driver in tree.into_iter().filter_map(|entry| entry.driver) {
        if is_this_process(&driver) {
            return Ok(Whose::Ours);
        }
        if driver.alive {
            found = Whose::Theirs(driver.owner);
        }
    }
    Ok(found)
}

/// A pid means something on its host only.
pub fn is_this_process(driver: &Driver) -> bool {
    driver.owner.pid == std::process::id() && driver.owner.host == this_host().0
}
