//! What came of a replay.

use logreel_core::event::RunKind;
use logreel_core::{Digest, RunId, Seq};
use serde_json::Value;

/// Which spec a run was replayed under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayedSpec {
    /// The one that its log has.
    Stored,
    /// One that was given, and is the same.
    Same,
    /// One that was given, and is another.
    Changed,
}

/// What came of a replay.
#[derive(Debug, Clone)]
pub struct Replayed {
    /// Which run.
    pub run: RunId,
    /// The name of its agent, workflow or task.
    pub agent: String,
    /// What kind of spec it has.
    pub kind: RunKind,
    /// How many events of its log were to be decided again.
    pub events: u64,
    /// The first of them: what came before was decided under another spec, or by the run that it was
    /// forked from.
    pub from: Seq,
    /// Whether its log has its end; if not, as far as it goes was compared.
    pub ended: bool,
    /// What it was replayed under.
    pub spec: ReplayedSpec,
    /// The digest of that.
    pub spec_digest: Digest,
    /// The first decision that differs; in one of its children, where that was started.
    pub difference: Option<Difference>,
    /// Its children, as far as they are recorded, in the order in which they were started.
    pub children: Vec<Replayed>,
}

impl Replayed {
    /// Whether every decision was made again.
    pub fn is_equal(&self) -> bool {
        self.difference.is_none()
    }
}

/// A decision that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// In whose log: the run's own, or a child's.
    pub run: RunId,
    /// The recorded event that is not decided again, or before which something else is.
    pub seq: Seq,
    /// Its kind.
    pub kind: String,
    /// What it is about, such as "step `review`".
    pub about: String,
    /// What differs, in words.
    pub why: String,
    /// What the log has, when there is more to say.
    pub recorded: Option<Value>,
    /// What it would be now.
    pub now: Option<Value>,
}
