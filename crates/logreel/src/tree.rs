//! A run among those that it started and that started it: whom someone means who says something to it.

use std::collections::VecDeque;

use logreel_core::event::{Relation, WaitStarted};
use logreel_core::row::Status;
use logreel_core::{AppendId, Digest, RequestId, RunId};
use logreel_store::{Entry, Filter, RunStore};

use crate::Error;

const LIVE: [Status; 5] = [
    Status::Created,
    Status::Planning,
    Status::Executing,
    Status::Verifying,
    Status::Waiting,
];

/// Runs of a family that are asked whether a request reached them before.
const ASKED_MAX: usize = 1000;

/// The run and its live children, children's children too, as they are now.
pub async fn of(store: &dyn RunStore, run: &RunId) -> Result<Vec<Entry>, Error> {
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
) -> Result<RunId, Error> {
    let waits = |entry: &Entry| {
        let mut waits = entry.row.facts.waits.iter();
        waits.any(|open| waits_for_it(&open.wait))
    };
    let tree = of(store, &run).await?;
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

/// [`meant`], of a request that has a name: whom it reached when it was sent before, ended or not. What waits
/// by now may be another run's.
pub async fn meant_by(
    store: &dyn RunStore,
    run: RunId,
    request: Option<&str>,
    waits_for_it: impl Fn(&WaitStarted) -> bool,
) -> Result<RunId, Error> {
    match reached(store, run, request, Name::InOne).await? {
        Some(reached) => Ok(reached),
        None => meant(store, run, waits_for_it).await,
    }
}

/// [`meant_by`], of a request that raises a limit: the runs above the one that it reached have its name too.
pub async fn raised_by(
    store: &dyn RunStore,
    run: RunId,
    request: Option<&str>,
    waits_for_it: impl Fn(&WaitStarted) -> bool,
) -> Result<RunId, Error> {
    match reached(store, run, request, Name::InThoseAbove).await? {
        Some(reached) => Ok(reached),
        None => meant(store, run, waits_for_it).await,
    }
}

/// Which runs of a family have the name of a request that reached one of them.
#[derive(PartialEq, Eq)]
enum Name {
    InOne,
    InThoseAbove,
}

/// Whom a request of this name reached in the family of a run. Of a large family the latest are asked: a request is
/// sent again soon, or not at all.
async fn reached(
    store: &dyn RunStore,
    run: RunId,
    request: Option<&str>,
    name: Name,
) -> Result<Option<RunId>, Error> {
    let Some(request) = request else {
        return Ok(None);
    };
    // By its name alone: whoever asks something else under it is told so by the run that has it.
    let id = AppendId::request(&RequestId::new(request)?, &Digest::of(b""));
    let (mut reached, mut asked) = (None, 0);
    let mut left = VecDeque::from([run]);
    while let Some(member) = left.pop_front() {
        asked += 1;
        match store.landed(&member, &id).await {
            Ok(None) => {}
            Ok(Some(_)) | Err(logreel_store::Error::RequestIdTaken(_)) => {
                reached = Some(member);
                // If it is not the one, that is below it.
                left.clear();
            }
            // Deleted since it was listed.
            Err(logreel_store::Error::NotFound(_)) if member != run => {}
            Err(error) => return Err(error.into()),
        }
        if reached.is_some() && name == Name::InOne {
            break;
        }
        let room = ASKED_MAX.saturating_sub(asked + left.len());
        let children = children_of(store, &member, &[], room).await?;
        left.extend(children.into_iter().map(|child| child.row.run));
    }
    Ok(reached)
}

/// The run that this one is, in the end, the work of: itself, or its oldest parent.
pub async fn root(store: &dyn RunStore, run: RunId) -> Result<RunId, Error> {
    let mut root = run;
    loop {
        let entry = store.entry(&root).await?;
        match &entry.row.facts.parent {
            Some(parent) if parent.relation == Relation::Child => root = parent.run,
            _ => return Ok(root),
        }
    }
}

/// The live runs that this one started; a fork or retry of it is none.
pub async fn children(store: &dyn RunStore, run: &RunId) -> Result<Vec<Entry>, Error> {
    children_of(store, run, &LIVE, usize::MAX).await
}

/// Those of its children that have one of these statuses, latest first and at most so many; of any status when
/// there is none.
async fn children_of(
    store: &dyn RunStore,
    run: &RunId,
    statuses: &[Status],
    most: usize,
) -> Result<Vec<Entry>, Error> {
    let filter = Filter {
        parent: Some(*run),
        status: statuses.to_vec(),
        ..Filter::default()
    };
    let (mut children, mut cursor) = (Vec::new(), None);
    while children.len() < most {
        let page = store.list(&filter, cursor.as_ref(), 100).await?;
        children.extend(page.items.into_iter().filter(|entry| {
            let parent = entry.row.facts.parent.as_ref();
            parent.is_some_and(|parent| parent.relation == Relation::Child)
        }));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    children.truncate(most);
    Ok(children)
}
