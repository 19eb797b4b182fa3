//! Whether a run has come to where it stops: its end, or a wait that only a person can end.

use logreel::core::event::WaitKind;
use logreel::tree::children;
use logreel::{Entry, RunId, RunStore, Status};

pub use logreel::tree::{meant, of as tree, root};

pub const FAILED: u8 = 1;
pub const WAITS: u8 = 3;
pub const CANCELLED: u8 = 130;

/// The exit code for a run that has settled; `None` while something can still go on by itself.
pub async fn code(store: &dyn RunStore, entry: &Entry) -> anyhow::Result<Option<u8>> {
    Ok(match entry.row.status() {
        Status::Completed => Some(0),
        Status::Failed => Some(FAILED),
        Status::Cancelled => Some(CANCELLED),
        Status::Waiting if is_parked(store, entry).await? => Some(WAITS),
        _ => None,
    })
}

/// Whether only a person can go on: every wait needs one, and the driver has let go. One that waits
/// for a child is parked when the child is.
pub async fn is_parked(store: &dyn RunStore, entry: &Entry) -> anyhow::Result<bool> {
    // A recorder keeps its lease while its program is paused.
    let driven = entry.is_driven() && !logreel::is_with_recorder(&entry.row.facts);
    if driven || entry.row.status() != Status::Waiting {
        return Ok(false);
    }
    let waits = &entry.row.facts.waits;
    if waits.iter().any(|open| open.wait.kind.stops_everything()) {
        return Ok(true);
    }
    let mut for_child = false;
    for open in waits {
        match open.wait.kind {
            WaitKind::Child => for_child = true,
            _ if !open.wait.needs_person() => return Ok(false),
            _ => {}
        }
    }
    Ok(!for_child || are_children_parked(store, &entry.row.run).await?)
}

/// Whether there are live children and none of them can go on by itself.
async fn are_children_parked(store: &dyn RunStore, run: &RunId) -> anyhow::Result<bool> {
    let children = children(store, run).await?;
    for child in &children {
        if !Box::pin(is_parked(store, child)).await? {
            return Ok(false);
        }
    }
    Ok(!children.is_empty())
}
