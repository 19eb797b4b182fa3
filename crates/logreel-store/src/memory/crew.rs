//! Who drives, and what waits for them.

use std::time::Duration;

use logreel_core::event::RunKind;
use logreel_core::{Epoch, RunId, Timestamp};

use super::MemoryStore;
use super::state::Run;
use crate::{Backlog, OwnerInfo};

impl MemoryStore {
    pub(super) fn list_owners(&self) -> Vec<OwnerInfo> {
        let state = self.lock();
        let now = self.0.env.monotonic();
        let held = |id| {
            let runs = state.runs.values();
            let held = runs.filter(|run| run.lease.is_some_and(|(holder, _)| holder == id));
            held.count() as u64
        };
        let members = state.owners.iter().map(|(id, member)| OwnerInfo {
            owner: member.owner.clone(),
            duty: member.duty.clone(),
            running: held(*id),
            alive: self.alive(&state, *id),
            silent: Some(now.saturating_sub(member.beat)),
        });
        let is_shown =
            |info: &OwnerInfo| !info.owner.is_external() && (info.alive || info.running > 0);
        let mut owners: Vec<OwnerInfo> = members.filter(is_shown).collect();
        owners.sort_by_key(|info| info.owner.id.0);
        owners
    }

    pub(super) fn count_backlog(&self) -> Backlog {
        let state = self.lock();
        let (now, monotonic) = (self.0.env.now(), self.0.env.monotonic());
        let mut backlog = Backlog::default();
        for run in state.runs.values() {
            let row = &run.tip.row;
            if matches!(row.facts.kind, RunKind::External | RunKind::Record) {
                continue;
            }
            if self.claim_reason(&state, run).is_none() {
                continue;
            }
            match run.lease {
                Some((holder, _)) => {
                    let beat = state.owners.get(&holder).map(|member| member.beat);
                    let silent = beat.map_or(Duration::ZERO, |beat| monotonic.saturating_sub(beat));
                    backlog.orphans += 1;
                    keep_longer(&mut backlog.oldest_orphan, row.run, silent);
                }
                None => {
                    let ready_at = Self::ready(&state, run).at(row);
                    let since = ready_at.unwrap_or(row.updated_at).max(row.updated_at);
                    backlog.ready += 1;
                    keep_longer(&mut backlog.oldest_ready, row.run, now.since(since));
                }
            }
        }
        let newest = state.runs.values().rev().take(Backlog::NEWEST);
        backlog.claims = newest.filter_map(claimed_after).collect();
        backlog.claims.sort_unstable();
        backlog
    }
}

fn keep_longer(oldest: &mut Option<(RunId, Duration)>, run: RunId, since: Duration) {
    if oldest.is_none_or(|(_, longest)| since > longest) {
        *oldest = Some((run, since));
    }
}

/// How long a run that was queued waited for the first event of a driver.
fn claimed_after(run: &Run) -> Option<Duration> {
    let at = |index: usize| -> Option<(Epoch, Timestamp)> {
        run.log.get(index).map(|stored| (stored.epoch, stored.at))
    };
    if run.shared > 0 {
        return None;
    }
    let ((queued, from), (driver, to)) = (at(0)?, at(1)?);
    (queued == Epoch::NONE && driver > queued).then(|| to.since(from))
}
