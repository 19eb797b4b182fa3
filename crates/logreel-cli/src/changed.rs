//! Spec files that have changed since a run was started with them.

use std::path::Path;

use logreel::core::event::RunKind;
use logreel::{Body, Entry, ErrorKind, Seq};
use logreel_agent::{AgentSpec, Overrides};

use crate::error::Failure;
use crate::reading::Pages;
use crate::spec::{self, Spec};
use crate::store::Acting;

/// A spec file that is not what the run was started with.
pub struct Changed {
    pub file: String,
    pub now: Result<Spec, Failure>,
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

/// What the run shall go on with when it is another spec than it was started with. A change that
/// nobody said anything about is refused.
pub async fn admit(acting: &Acting, entry: &Entry, said: Said) -> anyhow::Result<Option<Spec>> {
    if said == Said::Stored {
        return Ok(None);
    }
    match find(acting, entry).await? {
        None => Ok(None),
        Some(changed) if said == Said::Accept => Ok(Some(changed.now?)),
        Some(changed) => Err(changed.refusal(entry).into()),
    }
}

/// The spec file of the run, when it is there and says something else now. A child has none of its
/// own: it is in its root's.
pub async fn find(acting: &Acting, entry: &Entry) -> anyhow::Result<Option<Changed>> {
    let kind = entry.row.facts.kind;
    if !matches!(kind, RunKind::Workflow | RunKind::Agent) {
        return Ok(None);
    }
    let page = acting.store.read(&entry.row.run, Seq::FIRST, 1).await?;
    let Some(first) = page.items.first() else {
        return Ok(None);
    };
    let event = first.decode().map_err(logreel::store::Error::from)?;
    let Body::RunStarted(started) = event.body else {
        return Ok(None);
    };
    let digest = entry.row.facts.spec_digest;
    let file = match started.spec_digest == digest {
        true => None,
        false => file_of_change(acting, entry).await?,
    };
    let file = file.or(started.spec_file);
    let Some(file) = file.filter(|file| Path::new(file).exists()) else {
        return Ok(None);
    };
    let now = if kind == RunKind::Agent {
        let stored = acting.engine.stored_spec(&entry.row.run).await?;
        let Ok(stored) = AgentSpec::from_json(&stored.to_value()) else {
            // Whoever drives it says so.
            return Ok(None);
        };
        spec::read_again(Path::new(&file), &stored, &acting.agents)
    } else {
        spec::read(Path::new(&file), &Overrides::default(), &acting.agents)
    };
    let same = now
        .as_ref()
        .is_ok_and(|now| now.digest() == entry.row.facts.spec_digest);
    Ok((!same).then_some(Changed { file, now }))
}

/// The file of the spec that the run goes on under since it was changed, when that is another one.
async fn file_of_change(acting: &Acting, entry: &Entry) -> anyhow::Result<Option<String>> {
    let row = &entry.row;
    let mut file = None;
    let mut pages = Pages::new(&*acting.store, row.run, Seq::FIRST, row.head.seq);
    loop {
        let page = pages.next().await?;
        if page.is_empty() {
            return Ok(file);
        }
        for record in page.iter().filter(|record| record.kind == "spec.changed") {
            let event = record.decode().map_err(logreel::store::Error::from)?;
            if let Body::SpecChanged(changed) = event.body {
                file = changed.spec_file.or(file);
            }
        }
    }
}
