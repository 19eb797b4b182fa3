//! Spec files that have changed since a run was started with them.

use std::path::PathBuf;

use logreel::core::event::RunKind;
use logreel::workflow::Workflow;
use logreel::{Body, Entry, ErrorKind, RunStore, Seq};

use crate::error::Failure;
use crate::spec;

/// A spec file that is not what the run was started with.
pub struct Changed {
    pub file: String,
    pub now: Result<Workflow, Failure>,
}

/// What someone said about a change, if anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Nothing,
    /// Go on with the spec that the run was started with.
    Stored,
    /// Go on with the file as it is now.
    Accept,
}

impl Changed {
    pub fn refusal(&self, entry: &Entry) -> Failure {
        let message = format!(
            "{} is not what {} was started with",
            self.file, entry.row.run
        );
        Failure::new(ErrorKind::SpecChanged, message).hint(flags(entry))
    }

    /// For whoever passes over the run instead.
    pub fn note(&self, entry: &Entry) -> String {
        let (short, file) = (entry.row.run.short(), &self.file);
        let flags = flags(entry);
        format!("{short} is left alone: {file} is not what it was started with; {flags}")
    }
}

fn flags(entry: &Entry) -> String {
    let short = entry.row.run.short();
    format!(
        "`logreel resume {short} --stored-spec` goes on with the spec as it was, \
         `--accept-spec-change` with the file as it is"
    )
}

/// The workflow that the run shall go on with when it is another than it was started with. A change
/// that nobody said anything about is refused.
pub async fn admit(
    store: &dyn RunStore,
    entry: &Entry,
    said: Said,
) -> anyhow::Result<Option<Workflow>> {
    if said == Said::Stored {
        return Ok(None);
    }
    match find(store, entry).await? {
        None => Ok(None),
        Some(changed) if said == Said::Accept => Ok(Some(changed.now?)),
        Some(changed) => Err(changed.refusal(entry).into()),
    }
}

/// The spec file of the run, when it is there and says something else now. A child has none of its
/// own: it is in its root's.
pub async fn find(store: &dyn RunStore, entry: &Entry) -> anyhow::Result<Option<Changed>> {
    if entry.row.facts.kind != RunKind::Workflow {
        return Ok(None);
    }
    let page = store.read(&entry.row.run, Seq::FIRST, 1).await?;
    let Some(first) = page.items.first() else {
        return Ok(None);
    };
    let event = first.decode().map_err(logreel::store::Error::from)?;
    let Body::RunStarted(started) = event.body else {
        return Ok(None);
    };
    let Some(file) = started
        .spec_file
        .filter(|file| PathBuf::from(file).exists())
    else {
        return Ok(None);
    };
    let now = spec::read(&PathBuf::from(&file));
    let same = now
        .as_ref()
        .is_ok_and(|now| now.digest() == entry.row.facts.spec_digest);
    Ok((!same).then_some(Changed { file, now }))
}
