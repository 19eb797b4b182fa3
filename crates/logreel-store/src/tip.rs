//! The end of a run's log, and how an append extends it. Every store does it here, so that there is
//! one way from drafts to sealed events and the row after them.

use std::collections::BTreeMap;

use logreel_core::chain::{Sealed, Sealer};
use logreel_core::codec::encode_body;
use logreel_core::event::{Body, RunLimit};
use logreel_core::fold::IllegalEvent;
use logreel_core::meaning::ResultSet;
use logreel_core::{Blob, Draft, Epoch, Row, RunId, RunKey, Timestamp};

use crate::Error;

/// The largest payload when nothing else is said.
pub const PAYLOAD_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The longest name that a run is looked up by. An index of PostgreSQL takes some 2,700 bytes, and a label has
/// two such names in one row.
const NAME_MAX_BYTES: u64 = 1024;

/// A draft with all that can be computed before the store is locked.
#[derive(Debug, Clone)]
pub struct Prepared {
    draft: Draft,
    text: String,
    result: ResultSet,
}

impl Prepared {
    /// Whether it ends its run.
    #[cfg(feature = "postgres")]
    pub(crate) fn ends(&self) -> bool {
        self.draft.body.is_terminal()
    }
}

/// Writes and checks drafts, outside of any lock.
pub fn prepare(
    drafts: impl IntoIterator<Item = Draft>,
    blobs: &[Blob],
    payload_bytes_max: u64,
) -> Result<Vec<Prepared>, Error> {
    let check = |bytes: usize| match bytes as u64 {
        bytes if bytes > payload_bytes_max => Err(Error::TooLarge {
            bytes,
            max: payload_bytes_max,
        }),
        _ => Ok(()),
    };
    for blob in blobs {
        check(blob.bytes().len())?;
    }
    let drafts = drafts.into_iter();
    // Not collected: that would set room aside for four, and one is the rule.
    let mut prepared = Vec::with_capacity(drafts.size_hint().0);
    for draft in drafts {
        if let Body::RunStarted(started) = &draft.body {
            let limit = started.limit.as_ref();
            check_names(
                &started.agent,
                started.key.as_deref(),
                &started.labels,
                limit,
            )?;
        }
        let text = encode_body(&draft.body)
            .map_err(|error| Error::Bug(format!("a body does not serialize: {error}")))?;
        check(text.len())?;
        let result = if draft.late {
            ResultSet::default()
        } else {
            ResultSet::of(&draft.body)
        };
        prepared.push(Prepared {
            draft,
            text,
            result,
        });
    }
    Ok(prepared)
}

/// Refuses names that not every store could look up.
pub(crate) fn check_names(
    agent: &str,
    key: Option<&str>,
    labels: &BTreeMap<String, String>,
    limit: Option<&RunLimit>,
) -> Result<(), Error> {
    let check = |what: &dyn Fn() -> String, name: &str| match name.len() as u64 {
        bytes if bytes > NAME_MAX_BYTES => Err(Error::TooLong {
            what: what(),
            bytes,
            max: NAME_MAX_BYTES,
        }),
        _ => Ok(()),
    };
    check(&|| "the agent's name".to_owned(), agent)?;
    check(&|| "the key".to_owned(), key.unwrap_or_default())?;
    let limited_by = limit.map_or("", |limit| &limit.key);
    check(&|| "the key of the limit".to_owned(), limited_by)?;
    for (name, value) in labels {
        let begins: String = name.chars().take(40).collect();
        check(&|| format!("the name of a label, `{begins}…`,"), name)?;
        check(&|| format!("the value of label `{name}`"), value)?;
    }
    Ok(())
}

/// The end of a log: what the next append extends.
#[derive(Debug, Clone)]
pub struct Tip {
    /// The projection so far.
    pub row: Row,
    /// The sum of results so far.
    pub results: ResultSet,
    /// The run's key.
    pub key: RunKey,
}

impl Tip {
    /// The tip after event 1, and event 1 itself.
    pub fn start(
        run: RunId,
        key: RunKey,
        started: Prepared,
        epoch: Epoch,
        now: Timestamp,
    ) -> Result<(Self, Sealed), IllegalEvent> {
        let Prepared {
            draft,
            text,
            result,
        } = started;
        let sealed = Sealer::start(&run, key).seal(draft, text, epoch, now);
        let row = Row::start(run, &sealed.event)?;
        Ok((
            Self {
                row,
                results: result,
                key,
            },
            sealed,
        ))
    }

    /// Seals the events and moves on to the tip after them; on an error nothing has changed.
    pub fn extend(
        &mut self,
        prepared: Vec<Prepared>,
        epoch: Epoch,
        now: Timestamp,
    ) -> Result<Vec<Sealed>, IllegalEvent> {
        let mut sealer = Sealer {
            head: self.row.head,
            at: self.row.updated_at,
            key: self.key,
        };
        // A row stays as it was when it refuses an event; only what came before that one is taken back.
        let before = (prepared.len() > 1).then(|| self.row.clone());
        let mut results = self.results;
        let mut sealed = Vec::with_capacity(prepared.len());
        for Prepared {
            draft,
            text,
            result,
        } in prepared
        {
            let next = sealer.seal(draft, text, epoch, now);
            if let Err(refused) = self.row.apply(&next.event) {
                if let Some(before) = before {
                    self.row = before;
                }
                return Err(refused);
            }
            results = results.plus(result);
            sealed.push(next);
        }
        self.results = results;
        Ok(sealed)
    }
}
