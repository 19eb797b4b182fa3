//! The tips of runs this process appended to lately, so that an append neither reads nor parses the
//! wide row. A tip here is a guess: the append's first statement proves its head.

use logreel_core::state::Map;
use logreel_core::{Head, RunId};

use crate::tip::Tip;

/// How many tips a generation holds.
const GENERATION: usize = 1024;

/// A run's tip and its integer id.
#[derive(Debug)]
pub(crate) struct Known {
    pub id: i64,
    pub tip: Tip,
}

/// Two generations: what was not asked for while a new one filled up is forgotten. A tip goes in and out with each
/// append, so it is boxed.
#[derive(Debug, Default)]
pub(crate) struct Tips {
    young: Map<RunId, Box<Known>>,
    old: Map<RunId, Box<Known>>,
}

impl Tips {
    /// Takes the tip out, if it is the one that `head` was read from. Whoever takes it puts it back
    /// once it is written; after a failure it is simply gone.
    pub fn take(&mut self, run: &RunId, head: &Head) -> Option<Box<Known>> {
        let known = self.young.remove(run).or_else(|| self.old.remove(run))?;
        (known.tip.row.head == *head).then_some(known)
    }

    pub fn put(&mut self, run: RunId, known: Box<Known>) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(run, known);
    }

    pub fn forget(&mut self, run: &RunId) {
        self.young.remove(run);
        self.old.remove(run);
    }

    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}
