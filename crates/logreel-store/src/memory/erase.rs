//! Erasing what a run held (rule 33).

use logreel_core::codec::StoredBody;
use logreel_core::event::{Body, Relation};
use logreel_core::{Payload, RunId, RunKey};

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
        let heirs = self.heirs_of(run);
        let forks = heirs.filter(|(heir, relation)| *relation != Relation::Child && !heir.erased);
        forks.map(|(heir, _)| heir.tip.row.run).collect()
    }

    /// Those that began with a context node of this run.
    fn continuations_of(&self, run: &RunId) -> Vec<RunId> {
        let goes_on = |it: &&Run| {
            let node = it.log.first().and_then(|record| record.decode().ok());
            let node = node.and_then(|event| match event.body {
                Body::RunStarted(started) => started.context,
                _ => None,
            });
            let kept = node.and_then(|node| self.blobs.get(&node));
            it.tip.row.run != *run && !it.erased && kept.is_some_and(|it| it.runs.contains(run))
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
