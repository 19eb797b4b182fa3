//! What there is to see: lists, names, sessions.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use logreel_core::{Row, RunId, Seq, Session};

use super::MemoryStore;
use crate::words::{words, words_of};
use crate::{Cursor, Error, Filter, News, RunPage, SessionInfo, Since, Told};

impl MemoryStore {
    pub(super) fn news_since(&self, since: &Since, limit: usize) -> Result<News, Error> {
        let state = self.lock();
        let after = match since {
            Since::Beginning => 0,
            Since::Now => state.last_event.load(Ordering::Relaxed),
            Since::After(Cursor(text)) => match text.parse() {
                // One of another store is further on: nothing would be heard before this one is there.
                Ok(after) if after <= state.last_event.load(Ordering::Relaxed) => after,
                _ => return Err(Error::InvalidCursor(text.clone())),
            },
        };
        let mut found: Vec<(u64, RunId, Seq)> = Vec::new();
        for run in state.runs.values() {
            let events = run.log.after(after).take(limit.max(1) + 1);
            found.extend(events.map(|(place, record)| (place, run.tip.row.run, record.seq)));
        }
        found.sort_unstable_by_key(|(place, ..)| *place);
        let has_more = found.len() > limit.max(1);
        found.truncate(limit.max(1));
        let end = found.last().map_or(after, |(place, ..)| *place);
        Ok(News {
            items: found
                .into_iter()
                .map(|(place, run, seq)| Told {
                    run,
                    seq,
                    next: Cursor(place.to_string()),
                })
                .collect(),
            next: Cursor(end.to_string()),
            has_more,
        })
    }

    pub(super) fn list_page(
        &self,
        filter: &Filter,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<RunPage, Error> {
        let before = match cursor {
            None => u64::MAX,
            Some(Cursor(text)) => text
                .parse()
                .map_err(|_| Error::InvalidCursor(text.clone()))?,
        };
        let state = self.lock();
        // Rule 10: newest first in the order of creation, which no clock can change.
        let mut found = state.runs.range(..before).rev();
        let mut matching = found
            .by_ref()
            .filter(|(_, run)| matches(filter, &run.tip.row))
            // Who drives a run is looked up only where it is asked for, or shown.
            .filter(|(_, run)| filter.orphaned || filter.has(run.tip.row.status()))
            .map(|(place, run)| (place, self.entry_of(&state, run)))
            .filter(|(_, entry)| filter.has_status(entry));
        let page: Vec<_> = matching.by_ref().take(limit.max(1)).collect();
        let more = matching.next().is_some();
        let next = page
            .last()
            .filter(|_| more)
            .map(|(place, _)| Cursor(place.to_string()));
        let items = page.into_iter().map(|(_, entry)| entry).collect();
        Ok(RunPage { items, next })
    }

    pub(super) fn find_runs(&self, prefix: &str, limit: usize) -> Vec<RunId> {
        let prefix = prefix.strip_prefix("run_").unwrap_or(prefix);
        let named = |run: &RunId| run.to_string()["run_".len()..].starts_with(prefix);
        let state = self.lock();
        let runs = state.runs.values().rev().map(|run| run.tip.row.run);
        runs.filter(|run| named(run) || run.short() == prefix)
            .take(limit)
            .collect()
    }

    pub(super) fn list_sessions(&self) -> Vec<SessionInfo> {
        let state = self.lock();
        let mut sessions: Vec<SessionInfo> = Vec::new();
        let mut index: HashMap<Session, usize> = HashMap::new();
        for run in state.runs.values().rev() {
            let facts = &run.tip.row.facts;
            let Some(session) = facts.session.clone() else {
                continue;
            };
            let at = *index.entry(session.clone()).or_insert(sessions.len());
            if at == sessions.len() {
                sessions.push(SessionInfo {
                    runs: 0,
                    active: self.active(&state, &session),
                    last_created_at: Some(facts.created_at),
                    closed: state.closed.contains(session.as_str()),
                    session,
                });
            }
            sessions[at].runs += 1;
        }
        // A closed session is a row of its own (rule 6): it is there without runs too.
        for session in state
            .closed
            .iter()
            .filter_map(|name| Session::new(name).ok())
        {
            if !index.contains_key(&session) {
                let (runs, active, last_created_at, closed) = (0, None, None, true);
                sessions.push(SessionInfo {
                    session,
                    runs,
                    active,
                    last_created_at,
                    closed,
                });
            }
        }
        sessions
    }
}

/// Whether all conditions hold that the row alone can tell.
fn matches(filter: &Filter, row: &Row) -> bool {
    let facts = &row.facts;
    let label = |(name, value): &(String, String)| facts.labels.get(name) == Some(value);
    let ended = facts.ended.as_ref();
    filter
        .session
        .as_ref()
        .is_none_or(|session| facts.session.as_ref() == Some(session))
        && filter
            .agent
            .as_ref()
            .is_none_or(|agent| **agent == *facts.agent)
        && filter.labels.iter().all(label)
        && filter.since.is_none_or(|since| facts.created_at >= since)
        && filter.before.is_none_or(|before| facts.created_at < before)
        && filter
            .spec_digest
            .is_none_or(|digest| facts.spec_digest == digest)
        && filter
            .final_state_digest
            .is_none_or(|digest| ended.is_some_and(|ended| ended.final_state_digest == digest))
        && filter
            .parent
            .is_none_or(|run| facts.parent.as_ref().is_some_and(|it| it.run == run))
        && filter.search.as_ref().is_none_or(|search| {
            let have = words_of(&row.facts);
            words(search).all(|word| have.contains(&word))
        })
}
