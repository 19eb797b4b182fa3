//! Runs on their way into a store (SEMANTICS 34): all of a file is checked, and compared with what is
//! here, before anything of it is written.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use logreel_core::event::Relation;
use logreel_core::row::End;
use logreel_core::{Epoch, Head, Record, RunId, Seq};
use logreel_store::import::Fault;
use logreel_store::{Entry, Import, ImportedBlob, OwnerId, Source};

use super::error::FileError;
use super::file::{CheckedRun, FileReading, RunFile};
use crate::Error;
use crate::engine::{Engine, Inner};
use crate::journal::PAGE;

/// The reason that the end of a run has which goes on elsewhere.
const MOVED: &str = logreel_core::decide::MOVED;

/// A run of a file that was imported.
#[derive(Debug, Clone)]
pub struct ImportedRun {
    /// What was done.
    pub outcome: ImportOutcome,
    /// The run as it is now.
    pub entry: Entry,
}

/// What an import did with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportOutcome {
    /// It was not here.
    New,
    /// It was here, and went on from this event.
    Forwarded {
        /// The last event that was here.
        from: Seq,
    },
    /// All of it was here.
    NothingNew,
    /// It was erased here, and stays so.
    Erased,
}

impl Engine {
    /// Takes the runs of a file in. One that has not ended is read-only until it is
    /// [taken over](Engine::take_over). A file whose logs do not hold, or went another way than what is
    /// here, is refused, and nothing is written.
    pub async fn import(&self, file: &RunFile) -> Result<Vec<ImportedRun>, Error> {
        let inner = &self.0;
        let mut reading = file.read()?;
        let mut plans = Vec::new();
        // The answer to "how much of it is here" is wanted once the header was read.
        while let Some(run) = reading.peek_run()? {
            let here = inner.here(&run).await?;
            let ask = here.as_ref().map(|here| here.row.head.seq);
            let Some(checked) = reading.check_next(ask)? else {
                break;
            };
            plans.push(inner.plan(file, plans.len(), checked, here).await?);
        }
        let reading = Arc::new(Mutex::new(file.read()?));
        let mut imported = Vec::with_capacity(plans.len());
        for plan in plans {
            imported.push(inner.take_in(plan, &reading).await?);
        }
        Ok(imported)
    }

    /// Makes an imported run, and everyone below it, this store's own: it can be driven, answered and
    /// cancelled here from now on. Whoever asks for it vouches that nobody drives it elsewhere.
    pub async fn take_over(&self, run: &RunId) -> Result<Entry, Error> {
        let inner = &self.0;
        let entry = inner.store.entry(run).await?;
        let parent = entry.row.facts.parent.as_ref();
        if let Some(parent) = parent.filter(|parent| parent.relation == Relation::Child)
            && entry.read_only
            && inner.here(&parent.run).await?.is_none()
        {
            let parent = parent.run;
            return Err(Error::PartOf { run: *run, parent });
        }
        // Those below first: nobody may find its child read-only once it goes on.
        let mut runs = vec![*run];
        let mut at = 0;
        while let Some(run) = runs.get(at).copied() {
            at += 1;
            let children = inner.children(&run).await?;
            let foreign = children.into_iter().filter(|child| child.read_only);
            runs.extend(foreign.map(|child| child.row.run));
        }
        for run in runs.iter().skip(1).rev() {
            inner.store.take_over(run).await?;
        }
        Ok(inner.store.take_over(run).await?)
    }
}

/// What is to be done with a run of a file.
struct Plan {
    checked: CheckedRun,
    outcome: ImportOutcome,
    /// How much of it is here.
    after: Option<Head>,
}

impl Inner {
    async fn here(&self, run: &RunId) -> Result<Option<Entry>, Error> {
        match self.store.entry(run).await {
            Ok(entry) => Ok(Some(entry)),
            Err(logreel_store::Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Compares a run's log with what is here.
    async fn plan(
        &self,
        file: &RunFile,
        index: usize,
        checked: CheckedRun,
        here: Option<Entry>,
    ) -> Result<Plan, Error> {
        let run = checked.run;
        if let Err(why) = checked.folded {
            return Err(FileError::Unfolded { run, why }.into());
        }
        let Some(here) = here else {
            let (outcome, after) = (ImportOutcome::New, None);
            return Ok(Plan {
                checked,
                outcome,
                after,
            });
        };
        let head = here.row.head;
        let (same, outcome) = if checked.head.seq <= head.seq {
            let there = self.store.read(&run, checked.head.seq, 1).await?;
            let there = there.items.first().map(|record| record.digest);
            (
                there == Some(checked.head.digest),
                ImportOutcome::NothingNew,
            )
        } else {
            let from = head.seq;
            (
                checked.asked == Some(head.digest),
                ImportOutcome::Forwarded { from },
            )
        };
        if !same {
            let seq = self.first_difference(file, index, &run).await?;
            let end = here.row.facts.ended.as_ref().map(|ended| &ended.end);
            let moved = matches!(end, Some(End::Cancelled { reason: Some(why) }) if why == MOVED);
            return Err(Error::Diverged { run, seq, moved });
        }
        if here.erased {
            let (outcome, after) = (ImportOutcome::Erased, Some(head));
            return Ok(Plan {
                checked,
                outcome,
                after,
            });
        }
        if let (ImportOutcome::Forwarded { .. }, Some(driver)) = (outcome, &here.driver)
            && driver.alive
        {
            let by = driver.owner.to_string();
            return Err(Error::Driven { run, by });
        }
        Ok(Plan {
            checked,
            outcome,
            after: Some(head),
        })
    }

    /// The first event of a run's log in the file that is another one here.
    async fn first_difference(
        &self,
        file: &RunFile,
        index: usize,
        run: &RunId,
    ) -> Result<Seq, Error> {
        let mut reading = file.read()?;
        for _ in 0..index {
            reading.check_next(None)?;
        }
        reading.peek_run()?;
        let mut next = Seq::FIRST;
        loop {
            let page = self.store.read(run, next, PAGE).await?;
            for here in &page.items {
                let there = reading.next_event()?.map(|line| line.record.digest);
                if there != Some(here.digest) {
                    return Ok(here.seq);
                }
            }
            next = page.next;
            if !page.has_more {
                return Ok(next);
            }
        }
    }

    async fn take_in(
        &self,
        plan: Plan,
        reading: &Arc<Mutex<FileReading>>,
    ) -> Result<ImportedRun, Error> {
        let Plan {
            checked,
            outcome,
            after,
        } = plan;
        let run = checked.run;
        let source = FileSource {
            reading: Arc::clone(reading),
            after: after.map_or(Seq::NONE, |head| head.seq),
        };
        {
            let mut reading = source.lock();
            // The file was read once and is only a file: it may be another one by now.
            if reading.peek_run()? != Some(run) {
                let what = "the file has changed while it was read".to_owned();
                return Err(FileError::Line { line: 1, what }.into());
            }
        }
        let entry = match (outcome, checked.folded) {
            (ImportOutcome::NothingNew | ImportOutcome::Erased, _) => {
                source.skip_all()?;
                // Not only read: whoever is told that it is here may delete the file, so a standby must have it, too.
                // To give back a lease that nobody has is a write that changes nothing.
                self.store.release(&run, Epoch(0), OwnerId(0)).await?
            }
            (_, Ok((row, results))) => {
                let import = Import {
                    row,
                    results,
                    keys: checked.keys,
                    after,
                    source: Box::new(source),
                };
                self.store.import(import).await?
            }
            (_, Err(why)) => return Err(FileError::Unfolded { run, why }.into()),
        };
        let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
        reading.end()?;
        Ok(ImportedRun { outcome, entry })
    }
}

/// The rest of a run's log in a file.
struct FileSource {
    reading: Arc<Mutex<FileReading>>,
    after: Seq,
}

impl FileSource {
    fn lock(&self) -> MutexGuard<'_, FileReading> {
        // Nothing panics while it is locked.
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn skip_all(&self) -> Result<(), FileError> {
        let mut reading = self.lock();
        while reading.next_event()?.is_some() {}
        while reading.next_blob()?.is_some() {}
        Ok(())
    }
}

impl Source for FileSource {
    fn next_event(&mut self) -> Result<Option<Record>, Fault> {
        let after = self.after;
        let mut reading = self.lock();
        loop {
            let line = reading.next_event().map_err(fault)?;
            match line {
                Some(line) if line.record.seq <= after => {}
                other => return Ok(other.map(|line| line.record)),
            }
        }
    }

    fn next_blob(&mut self) -> Result<Option<ImportedBlob>, Fault> {
        self.lock().next_blob().map_err(fault)
    }
}

fn fault(error: FileError) -> Fault {
    Arc::new(error)
}
