//! Erasing runs, as far as it is the same in every store (SEMANTICS 33).

use logreel_core::{RunId, Status};

use crate::Error;

/// Whose runs go with the one that is erased. Without them an erasure is refused while there are any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heirs {
    /// Those that were forked or retried from it.
    pub forks: bool,
    /// Those whose conversation goes on from its own.
    pub continuations: bool,
}

/// Why nothing was erased, or not everything.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EraseError {
    /// Only an ended run is erased, or one that was imported and not taken over.
    #[error("{run} is {status}; only a run that has ended is erased")]
    NotEnded {
        /// Which run.
        run: RunId,
        /// What it is.
        status: Status,
    },
    /// Its driver may still record what happened.
    #[error("the driver of {0} has not given its lease back yet")]
    Driven(RunId),
    /// Other runs hold what it held.
    #[error(
        "{run} is needed by other runs{}{}",
        listed("forks", forks),
        listed("continuations", continuations)
    )]
    Needed {
        /// Which run.
        run: RunId,
        /// Runs that were forked or retried from it.
        forks: Vec<RunId>,
        /// Runs whose conversation goes on from its own.
        continuations: Vec<RunId>,
    },
    /// The runs are erased, but the files of the store may still hold bytes of them: erase them again.
    #[error("erased, but old bytes may be left in the files of the store; erase it again: {0}")]
    Traces(Error),
    /// The world.
    #[error(transparent)]
    Store(#[from] Error),
}

fn listed(what: &str, runs: &[RunId]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let runs: Vec<String> = runs.iter().map(RunId::to_string).collect();
    format!("; {what}: {}", runs.join(", "))
}

/// A run that may be erased, and who needs it.
pub(crate) struct Candidate {
    pub run: RunId,
    pub status: Status,
    /// It was imported before its end, and nobody drives it here.
    pub read_only: bool,
    pub driven: bool,
    /// Those that were not erased yet.
    pub forks: Vec<RunId>,
    pub continuations: Vec<RunId>,
}

/// The run and everyone who goes with it. One that is erased already is only looked at for traces.
pub(crate) fn closure<E: From<EraseError>>(
    run: RunId,
    with: Heirs,
    mut look: impl FnMut(RunId) -> Result<Candidate, E>,
) -> Result<Vec<RunId>, E> {
    let mut runs = vec![run];
    let (mut forks, mut continuations) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(next) = runs.get(at).copied() {
        at += 1;
        let found = look(next)?;
        if !found.status.is_terminal() && !found.read_only {
            let (run, status) = (found.run, found.status);
            return Err(EraseError::NotEnded { run, status }.into());
        }
        if found.driven {
            return Err(EraseError::Driven(found.run).into());
        }
        for (heirs, goes, kept) in [
            (found.forks, with.forks, &mut forks),
            (found.continuations, with.continuations, &mut continuations),
        ] {
            for heir in heirs {
                match goes {
                    _ if runs.contains(&heir) || kept.contains(&heir) => {}
                    true => runs.push(heir),
                    false => kept.push(heir),
                }
            }
        }
    }
    // Who goes for one reason is not in the way for another.
    forks.retain(|run| !runs.contains(run));
    continuations.retain(|run| !runs.contains(run));
    if !forks.is_empty() || !continuations.is_empty() {
        return Err(EraseError::Needed {
            run,
            forks,
            continuations,
        }
        .into());
    }
    Ok(runs)
}
