//! How many runs with one key are driven at once.

use logreel_core::event::RunLimit;
use logreel_core::{Ready, RunId};

use super::MemoryStore;
use super::state::{Run, State};

/// How many in line are told of a place; the others look now and then.
const CALLED: u32 = 8;

impl MemoryStore {
    /// Whether as many runs as the limit allows are driven, without this one.
    pub(super) fn is_full(&self, state: &State, limit: &RunLimit, except: &RunId) -> bool {
        let holders = holders(state, limit, except);
        at_least(
            holders.filter(|run| self.is_driven(state, run)).count(),
            limit,
        )
    }

    /// Takes a place for a run that is about to be driven; says whether there was one. A place whose
    /// holder's lease ran out is taken from it: it may be frozen, and must not go on once it wakes.
    pub(super) fn take_place(
        &self,
        state: &mut State,
        limit: Option<&RunLimit>,
        run: &RunId,
    ) -> bool {
        let Some(limit) = limit else { return true };
        if self.is_full(state, limit, run) {
            return false;
        }
        let held: Vec<RunId> = holders(state, limit, run)
            .filter(|it| it.lease.is_some_and(|(owner, _)| !state.has_left(owner)))
            .map(|it| it.tip.row.run)
            .collect();
        if at_least(held.len(), limit) {
            for run in held {
                self.fence_if_silent(state, &run);
            }
        }
        true
    }

    fn fence_if_silent(&self, state: &mut State, run: &RunId) {
        let silent = |run: &Run| !self.is_driven(state, run);
        if !state.run(run).is_ok_and(silent) {
            return;
        }
        if let Ok(it) = state.run_mut(run)
            && let Some((holder, _)) = it.lease.take()
        {
            it.lapsed.push((it.epoch, holder, self.0.env.monotonic()));
            it.epoch = it.epoch.next();
            self.0.bells.ring(run);
        }
    }

    /// The first in line, of the others, for the place that this run gave back.
    pub(super) fn next_in_line(&self, state: &State, gave: &RunId) -> Vec<RunId> {
        let Ok(run) = state.run(gave) else {
            return Vec::new();
        };
        let Some(limit) = &run.tip.row.facts.limit else {
            return Vec::new();
        };
        let now = self.0.env.now();
        let in_line = state.runs.values().filter(|it| {
            let ready: Ready = Self::ready(state, it);
            it.tip.row.run != *gave
                && key_of(it) == Some(&limit.key)
                && it.lease.is_none()
                && ready.claim_reason(false, now).is_some()
        });
        let places = limit.max.min(CALLED) as usize;
        in_line.take(places).map(|it| it.tip.row.run).collect()
    }
}

/// Runs of the key whose leases were not given back.
fn holders<'a>(
    state: &'a State,
    limit: &'a RunLimit,
    except: &'a RunId,
) -> impl Iterator<Item = &'a Run> {
    let of_key = |run: &&Run| key_of(run) == Some(&limit.key);
    let held = state.runs.values().filter(|run| run.lease.is_some());
    held.filter(of_key)
        .filter(move |run| run.tip.row.run != *except)
}

fn key_of(run: &Run) -> Option<&String> {
    run.tip.row.facts.limit.as_ref().map(|limit| &limit.key)
}

fn at_least(runs: usize, limit: &RunLimit) -> bool {
    u32::try_from(runs).map_or(true, |runs| runs >= limit.max)
}
