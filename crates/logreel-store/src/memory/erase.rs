//! Erasing what a run held (rule 33).

use std::collections::HashSet;

use logreel_core::codec::StoredBody;
use logreel_core::event::Relation;
use logreel_core::{Digest, Payload, Record, RunId, RunKey};

use super::MemoryStore;
use super::state::{Run, State};
use crate::erase::{Candidate, closure};
use crate::{EraseError, Heirs};

impl MemoryStore {
    pub(super) fn erase_runs(&self, run: RunId, with: Heirs) -> Result<Vec<RunId>, EraseError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let runs = closure(run, with, |run| {
            let it = state.run(&run)?;
            Ok::<_, EraseError>(Candidate {
                run,
                status: it.tip.row.status(),
                read_only: it.read_only,
                driven: self.is_driven(state, it),
                forks: state.forks_to_erase(&run),
                continuations: state.continuations_of(&run),
            })
        })?;
        for run in &runs {
            let it = state.run_mut(run)?;
            if it.erased {
                continue;
            }
            it.erase();
            state.drop_blobs(run);
        }
        drop(guard);
        runs.iter().for_each(|run| self.0.bells.ring(run));
        Ok(runs)
    }
}

impl State {
    fn forks_to_erase(&self, run: &RunId) -> Vec<RunId> {
        let is_fork = |heir: &&Run| {
            let parent = heir.tip.row.facts.parent.as_ref();
            let of_run = parent.filter(|it| it.run == *run && it.relation != Relation::Child);
            // Who brought its events along was forked from it too, by way of a run that need not be here.
            of_run.is_some() || heir.origins.iter().any(|(origin, _)| origin == run)
        };
        let forks = self.runs.values().filter(|heir| !heir.erased);
        let forks = forks.filter(is_fork);
        forks.map(|heir| heir.tip.row.run).collect()
    }

    /// Those that began with a context node that this run made, or with one that follows such a node,
    /// however many runs ago.
    fn continuations_of(&self, run: &RunId) -> Vec<RunId> {
        let Ok(it) = self.run(run) else {
            return Vec::new();
        };
        let own = it
            .log
            .iter()
            .filter(|record| record.origin.is_none() && record.kind != "run.started");
        let made: HashSet<Digest> = own.filter_map(Record::node).map(|it| it.node).collect();
        let goes_on = |heir: &&Run| {
            let first = heir.log.first().filter(|it| it.kind == "run.started");
            let pinned = first.and_then(Record::node).map(|it| it.node);
            let before = |node: &Digest| self.blobs.get(node).and_then(|kept| kept.previous);
            let mut nodes = std::iter::successors(pinned, before);
            heir.tip.row.run != *run && !heir.erased && nodes.any(|node| made.contains(&node))
        };
        let runs = self.runs.values().filter(goes_on);
        runs.map(|it| it.tip.row.run).collect()
    }
}

impl Run {
    /// Headers, status and counts stay, and the digest of each body, so that the chain holds.
    fn erase(&mut self) {
        let (run, own) = (self.tip.row.run, self.tip.key);
        for record in self.log.iter_mut() {
            let writer = record.origin.unwrap_or(run);
            let of_origin = self.origins.iter().find(|(of, _)| *of == writer);
            let key = of_origin.and_then(|(_, key)| *key).unwrap_or(own);
            if let StoredBody::Text(text) = &record.body {
                record.body = StoredBody::Erased(key.body_digest(text));
            }
        }
        self.tip.row = self.tip.row.erased();
        self.tip.key = RunKey([0; 32]);
        self.origins.iter_mut().for_each(|(_, key)| *key = None);
        self.receipts.clear();
        self.started.input = Payload::null();
        self.started.spec = Payload::null();
        self.started.labels.clear();
        self.lease = None;
        self.erased = true;
    }
}
