//! `prune`: deletes ended runs that nobody needs any more.

use std::collections::HashSet;
use std::time::Duration;

use logreel_core::codec::StoredBody;
use logreel_core::event::Relation;
use logreel_core::{RunId, Seq, Status, Timestamp};
use logreel_store::{Entry, Filter};

use crate::Error;
use crate::engine::{Engine, Inner};
use crate::journal::PAGE;

/// Which runs to delete. All conditions must hold; with none, every ended run is meant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prune {
    /// Ended at least this long ago.
    pub older_than: Option<Duration>,
    /// But for so many of the newest that the other conditions fit.
    pub keep_last: Option<usize>,
    /// Ended like this; empty = in any way.
    pub status: Vec<Status>,
    /// With all these labels.
    pub labels: Vec<(String, String)>,
}

/// What a prune deleted, or would delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The runs, newest first.
    pub runs: Vec<RunId>,
    /// Their own events.
    pub events: u64,
    /// The bytes of these events' bodies, and of the blobs that went with them; of a dry run the bodies
    /// alone.
    pub bytes: u64,
    /// Runs that fit and stay, because others share their log or go on because of them.
    pub needed: Vec<RunId>,
}

impl Engine {
    /// Deletes the ended runs that fit, with the blobs that only they needed. Never one that has not ended,
    /// that is forked from, or whose parent has not ended.
    pub async fn prune(&self, what: &Prune) -> Result<Pruned, Error> {
        self.0.prune(what, false).await
    }

    /// What [`Engine::prune`] would delete.
    pub async fn would_prune(&self, what: &Prune) -> Result<Pruned, Error> {
        self.0.prune(what, true).await
    }
}

impl Inner {
    async fn prune(&self, what: &Prune, dry: bool) -> Result<Pruned, Error> {
        let before = self.store.stats().await?.blob_bytes;
        let candidates = self.prunable(what).await?;
        let mut pruned = Pruned::default();
        let mut gone: HashSet<RunId> = HashSet::new();
        // Newest first: a fork goes before the run that it was made from, a child before its parent.
        for entry in candidates {
            let run = entry.row.run;
            if self.is_needed(&entry, &gone).await? {
                pruned.needed.push(run);
                continue;
            }
            use logreel_store::Error as Store;
            let (events, bytes) = match self.weight(&run).await {
                // Someone else was faster.
                Err(Error::Store(Store::NotFound(_))) => continue,
                weight => weight?,
            };
            if !dry {
                match self.store.delete(&run).await {
                    Ok(()) => {}
                    // Someone else was faster.
                    Err(Store::NotFound(_)) => continue,
                    Err(Store::StillNeeded { .. } | Store::ForkedFrom { .. }) => {
                        pruned.needed.push(run);
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            gone.insert(run);
            pruned.runs.push(run);
            pruned.events += events;
            pruned.bytes += bytes;
        }
        if !dry {
            let after = self.store.stats().await?.blob_bytes;
            pruned.bytes += before.saturating_sub(after);
        }
        Ok(pruned)
    }

    /// The ended runs that fit, newest first.
    async fn prunable(&self, what: &Prune) -> Result<Vec<Entry>, Error> {
        let ended = [Status::Completed, Status::Failed, Status::Cancelled];
        let fits = |status: &Status| what.status.is_empty() || what.status.contains(status);
        let filter = Filter {
            status: ended.into_iter().filter(fits).collect(),
            labels: what.labels.clone(),
            ..Filter::default()
        };
        // Nothing that has not ended is ever meant.
        if filter.status.is_empty() {
            return Ok(Vec::new());
        }
        let now: Timestamp = self.env.now();
        let is_old = |entry: &Entry| {
            let ended = entry.row.facts.ended.as_ref();
            ended.is_some_and(|ended| {
                let age = now.since(ended.at);
                what.older_than.is_none_or(|older| age >= older)
            })
        };
        let (mut found, mut cursor, mut seen) = (Vec::new(), None, 0);
        loop {
            let page = self.store.list(&filter, cursor.as_ref(), 1000).await?;
            for entry in page.items {
                seen += 1;
                if seen > what.keep_last.unwrap_or(0) && is_old(&entry) {
                    found.push(entry);
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(found);
            }
        }
    }

    /// Whether another run that stays shares its log, or goes on by what became of it.
    async fn is_needed(&self, entry: &Entry, gone: &HashSet<RunId>) -> Result<bool, Error> {
        let parent = entry.row.facts.parent.as_ref();
        if let Some(parent) = parent.filter(|it| it.relation == Relation::Child) {
            match self.store.entry(&parent.run).await {
                Ok(parent) if !parent.row.status().is_terminal() => return Ok(true),
                Ok(_) | Err(logreel_store::Error::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let filter = Filter {
            parent: Some(entry.row.run),
            ..Filter::default()
        };
        let mut cursor = None;
        loop {
            let page = self.store.list(&filter, cursor.as_ref(), 1000).await?;
            for heir in &page.items {
                let relation = heir.row.facts.parent.as_ref().map(|it| it.relation);
                let stays = !gone.contains(&heir.row.run);
                let needs = match relation {
                    Some(Relation::Child) => !heir.row.status().is_terminal(),
                    Some(Relation::Fork | Relation::Retry) => stays,
                    None => false,
                };
                if needs {
                    return Ok(true);
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(false);
            }
        }
    }

    /// How many events of its own the run has, and how many bytes their bodies.
    async fn weight(&self, run: &RunId) -> Result<(u64, u64), Error> {
        let (mut events, mut bytes) = (0, 0);
        let mut next = Seq::FIRST;
        loop {
            let page = self.store.read(run, next, PAGE).await?;
            for record in page.items.iter().filter(|record| record.origin.is_none()) {
                events += 1;
                if let StoredBody::Text(text) = &record.body {
                    bytes += text.len() as u64;
                }
            }
            next = page.next;
            if !page.has_more {
                return Ok((events, bytes));
            }
        }
    }
}
