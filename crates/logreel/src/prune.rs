//! `prune`: deletes ended runs that nobody needs any more.

use std::collections::HashSet;
use std::time::Duration;

use logreel_core::event::Relation;
use logreel_core::{RunId, Seq, Status, Timestamp};
use logreel_store::{Deleted, Entry, Filter};

use crate::engine::{Engine, Inner};
use crate::journal::PAGE;
use crate::{Error, ErrorKind};

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
    /// Runs that fit and could not be deleted, and why.
    pub failed: Vec<(RunId, String)>,
}

/// A run that fits: of very many not more is kept in memory.
struct Candidate {
    run: RunId,
    /// Whose child it is.
    parent: Option<RunId>,
}

/// What became of one.
enum Outcome {
    Deleted(Deleted),
    /// Others need it.
    Needed,
    /// Someone else was faster.
    Gone,
}

/// When so many in a row find the store away it is not asked for the rest.
const AWAY: u32 = 3;
/// How many runs are listed at once.
const LISTED: usize = 1000;
/// How long the first span is.
const SPAN: Duration = Duration::from_secs(60);

/// Spans of time, back from a moment to the beginning, each as long as is good for some pages of runs. A store walks
/// its runs from the newest on: asked for all before a moment at once it would first pass by all that are younger, however many.
struct Spans {
    /// `None` when there is no moment, and so one span for all.
    before: Option<Timestamp>,
    length: Duration,
    is_over: bool,
}

impl Spans {
    fn before(before: Option<Timestamp>) -> Self {
        Self {
            before,
            length: SPAN,
            is_over: false,
        }
    }

    /// From when on, and until when.
    fn next(&mut self) -> Option<(Option<Timestamp>, Option<Timestamp>)> {
        if self.is_over {
            return None;
        }
        let before = self.before;
        let since = before.map(|before| before - self.length);
        let since = since.filter(|since| *since > Timestamp::from_micros(0));
        self.before = since;
        self.is_over = since.is_none();
        Some((since, before))
    }

    /// The latest had so many.
    fn had(&mut self, runs: usize) {
        self.length = match runs {
            // A store that has no index by time passes all that are younger by each time it is asked.
            0 => self.length.saturating_mul(16),
            1..LISTED => self.length.saturating_mul(4),
            _ if runs > 4 * LISTED => (self.length / 4).max(Duration::from_millis(1)),
            _ => self.length,
        };
    }
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
        let candidates = self.prunable(what).await?;
        let mut pruned = Pruned::default();
        let mut gone: HashSet<RunId> = HashSet::new();
        let mut away = 0;
        // Newest first: a fork goes before the run that it was made from, a child before its parent.
        for candidate in candidates {
            let run = candidate.run;
            match self.prune_one(&candidate, &gone, dry).await {
                Ok(Outcome::Deleted(deleted)) => {
                    gone.insert(run);
                    pruned.runs.push(run);
                    pruned.events += deleted.events;
                    pruned.bytes += deleted.bytes;
                }
                Ok(Outcome::Needed) => pruned.needed.push(run),
                Ok(Outcome::Gone) => {}
                // One that cannot be deleted keeps nobody older.
                Err(error) => {
                    away = match error.kind() {
                        ErrorKind::Unavailable => away + 1,
                        _ => 0,
                    };
                    if away == AWAY {
                        return Err(error);
                    }
                    pruned.failed.push((run, error.to_string()));
                    continue;
                }
            }
            away = 0;
        }
        Ok(pruned)
    }

    async fn prune_one(
        &self,
        candidate: &Candidate,
        gone: &HashSet<RunId>,
        dry: bool,
    ) -> Result<Outcome, Error> {
        use logreel_store::Error as Store;
        if self.is_needed(candidate, gone).await? {
            return Ok(Outcome::Needed);
        }
        let run = &candidate.run;
        let deleted = match dry {
            true => self.weight(run).await,
            false => self.store.delete(run).await,
        };
        match deleted {
            Ok(deleted) => Ok(Outcome::Deleted(deleted)),
            Err(Store::NotFound(_)) => Ok(Outcome::Gone),
            Err(Store::StillNeeded { .. } | Store::ForkedFrom { .. }) => Ok(Outcome::Needed),
            Err(error) => Err(error.into()),
        }
    }

    /// The ended runs that fit, newest first.
    async fn prunable(&self, what: &Prune) -> Result<Vec<Candidate>, Error> {
        let ended = [Status::Completed, Status::Failed, Status::Cancelled];
        let fits = |status: &Status| what.status.is_empty() || what.status.contains(status);
        let now: Timestamp = self.env.now();
        // What ended long ago began before: the store need not hand out the rest of what may be a million runs. Those
        // that are kept for being the newest have to be counted first.
        let keeps_newest = what.keep_last.is_some_and(|count| count > 0);
        let older = what.older_than.filter(|it| !it.is_zero() && !keeps_newest);
        let mut filter = Filter {
            status: ended.into_iter().filter(fits).collect(),
            labels: what.labels.clone(),
            ..Filter::default()
        };
        // Nothing that has not ended is ever meant.
        if filter.status.is_empty() {
            return Ok(Vec::new());
        }
        let is_old = |entry: &Entry| {
            let ended = entry.row.facts.ended.as_ref();
            ended.is_some_and(|ended| {
                let age = now.since(ended.at);
                what.older_than.is_none_or(|older| age >= older)
            })
        };
        let (mut found, mut seen) = (Vec::new(), 0);
        let mut spans = Spans::before(older.map(|older| now - older + Duration::from_micros(1)));
        while let Some((since, before)) = spans.next() {
            (filter.since, filter.before) = (since, before);
            let (seen_before, mut cursor) = (seen, None);
            loop {
                let page = self.store.list(&filter, cursor.as_ref(), LISTED).await?;
                for entry in page.items {
                    seen += 1;
                    if seen > what.keep_last.unwrap_or(0) && is_old(&entry) {
                        let parent = entry.row.facts.parent.as_ref();
                        let parent = parent.filter(|it| it.relation == Relation::Child);
                        found.push(Candidate {
                            run: entry.row.run,
                            parent: parent.map(|it| it.run),
                        });
                    }
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            spans.had(seen - seen_before);
        }
        Ok(found)
    }

    /// Whether another run that stays shares its log, or goes on by what became of it.
    async fn is_needed(&self, candidate: &Candidate, gone: &HashSet<RunId>) -> Result<bool, Error> {
        if let Some(parent) = &candidate.parent {
            match self.store.entry(parent).await {
                Ok(parent) if !parent.row.status().is_terminal() => return Ok(true),
                Ok(_) | Err(logreel_store::Error::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let filter = Filter {
            parent: Some(candidate.run),
            ..Filter::default()
        };
        let mut cursor = None;
        loop {
            let page = self.store.list(&filter, cursor.as_ref(), LISTED).await?;
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
    async fn weight(&self, run: &RunId) -> Result<Deleted, logreel_store::Error> {
        let mut weight = Deleted::default();
        let mut next = Seq::FIRST;
        loop {
            let page = self.store.read(run, next, PAGE).await?;
            let own = page.items.iter().filter(|record| record.origin.is_none());
            let of_page = Deleted::of(own);
            weight.events += of_page.events;
            weight.bytes += of_page.bytes;
            next = page.next;
            if !page.has_more {
                return Ok(weight);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn spans_leave_nothing_out_and_come_to_an_end(
            before in proptest::option::of(0..i64::MAX),
            had in proptest::collection::vec(0..20_000_usize, 200),
        ) {
            let before = before.map(Timestamp::from_micros);
            let mut spans = Spans::before(before);
            let (mut until, mut had) = (before, had.into_iter());
            let mut count = 0;
            while let Some((since, before)) = spans.next() {
                prop_assert_eq!(before, until, "each begins where the one after it does");
                prop_assert!(since.is_none() || since < before);
                until = since;
                spans.had(had.next().unwrap_or(0));
                count += 1;
            }
            prop_assert_eq!(until, None, "the last one goes back to the beginning");
            prop_assert!(count < 300, "{}", count);
        }
    }
}
