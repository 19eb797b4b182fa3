//! Whether a run has come to where it stops: its end, or a wait that only a person can end.

use logreel::core::event::{Relation, WaitKind, WaitStarted};
use logreel::{Entry, Filter, RunId, RunStore, Status};

pub const FAILED: u8 = 1;
pub const WAITS: u8 = 3;
pub const CANCELLED: u8 = 130;

const LIVE: [Status; 5] = [
    Status::Created,
    Status::Planning,
    Status::Executing,
    Status::Verifying,
    Status::Waiting,
];

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

/// The run and its live children, children's children too, as they are now.
pub async fn tree(store: &dyn RunStore, run: &RunId) -> anyhow::Result<Vec<Entry>> {
    let mut all = vec![store.entry(run).await?];
    let mut next = 0;
    while next < all.len() {
        all.extend(children(store, &all[next].row.run).await?);
        next += 1;
    }
    Ok(all)
}

/// Whom someone means who says something to a run: itself, or the only one of its children that waits
/// for such a thing when it does not.
pub async fn meant(
    store: &dyn RunStore,
    run: RunId,
    waits_for_it: impl Fn(&WaitStarted) -> bool,
) -> anyhow::Result<RunId> {
    let waits = |entry: &Entry| {
        entry
            .row
            .facts
            .waits
            .iter()
            .any(|open| waits_for_it(&open.wait))
    };
    let tree = tree(store, &run).await?;
    let mut waiting = tree.iter().filter(|entry| waits(entry));
    match (
        tree.first().is_some_and(waits),
        waiting.next(),
        waiting.next(),
    ) {
        (false, Some(only), None) => Ok(only.row.run),
        _ => Ok(run),
    }
}

/// The run that this one is, in the end, the work of: itself, or its oldest parent.
pub async fn root(store: &dyn RunStore, run: RunId) -> anyhow::Result<RunId> {
    let mut root = run;
    loop {
        let entry = store.entry(&root).await?;
        match &entry.row.facts.parent {
            Some(parent) if parent.relation == Relation::Child => root = parent.run,
            _ => return Ok(root),
        }
    }
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

/// The live runs that this one started; a fork or retry of it is none.
async fn children(store: &dyn RunStore, run: &RunId) -> anyhow::Result<Vec<Entry>> {
    let filter = Filter {
        parent: Some(*run),
        status: LIVE.to_vec(),
        ..Filter::default()
    };
    let (mut children, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.list(&filter, cursor.as_ref(), 100).await?;
        children.extend(page.items.into_iter().filter(|entry| {
            let parent = entry.row.facts.parent.as_ref();
            parent.is_some_and(|parent| parent.relation == Relation::Child)
        }));
        cursor = page.next;
        if cursor.is_none() {
            return Ok(children);
        }
    }
}
