//! Logs that were written elsewhere (rule 34).

use std::collections::{HashMap, HashSet};

use logreel_core::event::{Body, RunStarted};
use logreel_core::{Record, RunId, RunKey};

use super::MemoryStore;
use super::state::{Kept, Log, Run, State};
use crate::import::Taking;
use crate::tip::Tip;
use crate::{Entry, Error, Import, ImportError, ImportedBlob};

impl MemoryStore {
    pub(super) fn take_in(&self, mut import: Import) -> Result<Entry, ImportError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let run = import.row.run;
        let here = state.run(&run).ok();
        let head = here.map(|it| it.tip.row.head);
        if head != import.after {
            return Err(ImportError::Changed { head });
        }
        if here.is_some_and(|it| it.erased) {
            return Err(Error::ErasedRun(run).into());
        }
        if let Some(here) = here.filter(|it| self.is_driven(state, it)) {
            let driver = self.entry_of(state, here).driver;
            let by = driver.map_or_else(String::new, |driver| driver.owner.to_string());
            return Err(ImportError::Driven { run, by });
        }
        if here.is_none() {
            state.check_key(&import)?;
        }
        let after_at = here.map(|it| it.tip.row.updated_at);
        let epoch = import.epoch_after(here.map(|it| it.epoch));
        let key = match here {
            Some(here) => here.tip.key,
            None => own_key(&import)?,
        };
        // Everything is read and checked before anything changes.
        let mut taking = Taking::new(&import, after_at, self.0.options.payload_bytes_max);
        let mut records = Vec::new();
        while let Some(record) = import.source.next_event().map_err(ImportError::Source)? {
            taking.take(&record)?;
            records.push(record);
        }
        let mut blobs = Vec::new();
        while let Some(blob) = import.source.next_blob().map_err(ImportError::Source)? {
            taking.check_size(blob.blob.bytes().len())?;
            blobs.push(blob);
        }
        taking.finish()?;
        let tip = Tip {
            row: import.row,
            results: import.results,
            key,
        };
        let read_only = !tip.row.status().is_terminal();
        match head {
            Some(_) => {
                let holder = state.run(&run)?.lease.map(|(holder, _)| holder);
                let silent = holder.filter(|holder| !state.has_left(*holder));
                let taken = self.0.env.monotonic();
                let it = state.run_mut(&run)?;
                let under = it.epoch;
                it.lapsed
                    .extend(silent.map(|holder| (under, holder, taken)));
                it.tip = tip;
                it.log.extend(records);
                it.epoch = epoch;
                it.lease = None;
                it.read_only = read_only;
            }
            None => {
                let started = started(&records, &tip)?;
                if let Some(key) = &started.key {
                    state.old_keys.remove(key);
                }
                let origins = import.keys.into_iter().filter(|(it, _)| *it != run);
                state.last_place += 1;
                state.places.insert(run, state.last_place);
                let imported = Run {
                    started,
                    tip,
                    shared: 0,
                    log: Log::new(&state.last_event, records),
                    receipts: HashMap::new(),
                    epoch,
                    lease: None,
                    lapsed: Vec::new(),
                    read_only,
                    erased: false,
                    origins: origins.map(|(run, key)| (run, Some(key))).collect(),
                };
                state.runs.insert(state.last_place, imported);
            }
        }
        for blob in blobs {
            state.keep(run, blob);
        }
        let it = state.run(&run)?;
        let (entry, row) = (self.entry_of(state, it), it.tip.row.clone());
        drop(guard);
        self.ring(&row);
        Ok(entry)
    }

    pub(super) fn make_own(&self, run: &RunId) -> Result<Entry, ImportError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let it = state.run(run)?;
        if it.erased {
            return Err(Error::ErasedRun(*run).into());
        }
        if it.read_only {
            // Rule 6: a session has one active run.
            let session = it.tip.row.facts.session.clone();
            if let Some((session, active)) =
                session.and_then(|session| Some((session.clone(), self.active(state, &session)?)))
            {
                return Err(ImportError::Busy { session, active });
            }
            let it = state.run_mut(run)?;
            it.read_only = false;
            it.epoch = it.epoch.next();
        }
        let entry = self.entry_of(state, state.run(run)?);
        drop(guard);
        self.0.bells.ring(run);
        Ok(entry)
    }
}

/// The key that the run's own bodies are hashed with.
fn own_key(import: &Import) -> Result<RunKey, Error> {
    let missing = || Error::Bug("an import without the key of its run".to_owned());
    import.key_of(&import.row.run).ok_or_else(missing)
}

/// How the run was started; a fork has no session and no key of its own.
fn started(records: &[Record], tip: &Tip) -> Result<RunStarted, Error> {
    let first = records.first().map(Record::decode).transpose()?;
    match first.map(|event| event.body) {
        Some(Body::RunStarted(started)) => Ok(RunStarted {
            key: tip.row.facts.key.clone(),
            session: tip.row.facts.session.clone(),
            ..*started
        }),
        _ => Err(Error::Bug(
            "an import that does not begin with event 1".to_owned(),
        )),
    }
}

impl State {
    /// Rule 6: a key has one run, and outlives it by 30 days.
    fn check_key(&self, import: &Import) -> Result<(), ImportError> {
        let Some(key) = &import.row.facts.key else {
            return Ok(());
        };
        let live = self
            .runs
            .values()
            .find(|it| it.started.key.as_ref() == Some(key));
        let live = live.map(|it| it.tip.row.run);
        let old = self.old_keys.get(key).map(|(run, _)| *run);
        match live.or(old).filter(|run| *run != import.row.run) {
            Some(run) => Err(ImportError::KeyTaken {
                key: key.clone(),
                run,
            }),
            None => Ok(()),
        }
    }

    /// Rule 32: with a reference of its run.
    fn keep(&mut self, run: RunId, imported: ImportedBlob) {
        let ImportedBlob { blob, previous } = imported;
        let (bytes, runs) = (blob.bytes().clone(), HashSet::new());
        let kept = self.blobs.entry(blob.digest()).or_insert(Kept {
            bytes,
            previous,
            runs,
        });
        kept.previous = kept.previous.or(previous);
        kept.runs.insert(run);
        self.staged.remove(&(run, blob.digest()));
    }
}
