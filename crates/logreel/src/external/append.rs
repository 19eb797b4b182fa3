//! A client's append: folded, then written, all of it or nothing.

use std::time::Duration;

use logreel_core::event::RunKind;
use logreel_core::{Batch, Blob, Digest, Draft, Epoch, Event, Head, Record, Rejected, RunId};
use logreel_store::{Append, AppendError, Entry, EventPage, OwnerId};

use super::fact::{ExternalFact, Facts, Refusal};
use super::folds::Folded;
use super::secret::LeaseSecret;
use super::{External, Inner};
use crate::Error;
use crate::request::Request;

/// How often an append whose outcome is not known is sent.
const APPEND_TRIES: u32 = 10;

/// At most so many events come with a conflict; the rest is read in pages.
const SINCE_MAX: usize = 1000;

/// So much of a kind that there is not is repeated.
const KIND_SHOWN_MAX: usize = 64;

/// What a client wants to add to its run.
#[derive(Debug, Clone)]
pub struct ExternalAppend {
    /// That of the client's lease.
    pub epoch: Epoch,
    /// The proof of it.
    pub secret: LeaseSecret,
    /// Where the client believes that the log ends.
    pub expect: Head,
    /// The client's own name for this append: the same again gets the first answer.
    pub append_id: String,
    /// What happened.
    pub facts: Vec<ExternalFact>,
}

/// What it became.
#[derive(Debug, Clone, PartialEq)]
pub struct ExternalAppended {
    /// The end of the log after it: what the next append expects.
    pub head: Head,
    /// What was recorded: the facts, and the messages that a `model.called` brought, before it.
    pub events: Vec<Event>,
    /// It had landed before; this is its first answer.
    pub repeated: bool,
}

/// The log does not end where the client believes: someone else wrote to it.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadMoved {
    /// Which run.
    pub run: RunId,
    /// Where it ends.
    pub head: Head,
    /// What came after the client's head.
    pub since: EventPage<Record>,
}

impl ExternalAppended {
    fn of(events: Vec<Event>, repeated: bool) -> Result<Self, Error> {
        let last = events.last();
        let empty = || logreel_store::Error::Bug("an append without an event".to_owned());
        let last = last.ok_or_else(empty)?;
        let (seq, digest) = (last.seq, last.digest);
        Ok(Self {
            head: Head { seq, digest },
            events,
            repeated,
        })
    }
}

impl External {
    /// Records what a client did: all of it, or nothing. Results that come after the end of the run, as
    /// when someone cancelled it, are kept as late facts until the lease is given back or taken away.
    pub async fn append(
        &self,
        run: &RunId,
        append: ExternalAppend,
    ) -> Result<ExternalAppended, Error> {
        let engine = &self.engine;
        engine.check_open()?;
        let request = Request::new(&append.append_id)?;
        let Some(id) = request.named(&("external append", &append.facts)) else {
            return Err(logreel_store::Error::Bug("a request without a name".to_owned()).into());
        };
        // First of all: a client that lost the answer may have lost its lease since.
        if let Some(events) = engine.store.landed(run, &id).await? {
            return ExternalAppended::of(events, true);
        }
        let entry = engine.external_entry(run).await?;
        let owner = engine.check_lease(&entry, &append).await?;
        if append.expect != entry.row.head {
            return Err(engine.head_moved(run, &append.expect, entry.row.head).await);
        }
        let mut folded = engine.state_for_client(&entry).await?;
        let prepared = engine.prepare(&entry, &folded, &append).await;
        let (drafts, blobs) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                engine.external.put(folded);
                return Err(error);
            }
        };
        let append = Append {
            run: *run,
            expect: append.expect,
            epoch: append.epoch,
            id,
            drafts,
            blobs,
        };
        let appended = engine.send(append).await?;
        for event in &appended.events {
            folded
                .state
                .apply(event)
                .map_err(logreel_store::Error::from)?;
        }
        // After the end nobody is kept waiting for its session by a client that still tells of it.
        if !folded.state.row.status().is_terminal() {
            engine.heard(&mut folded, owner).await?;
        }
        engine.external.put(folded);
        if !appended.repeated {
            let session = entry.row.facts.session.as_ref();
            engine.hooks.tell(*run, session, &appended.events).await;
        }
        ExternalAppended::of(appended.events, appended.repeated)
    }
}

impl Inner {
    /// Whether the client holds the lease that it says it holds.
    async fn check_lease(&self, entry: &Entry, append: &ExternalAppend) -> Result<OwnerId, Error> {
        if append.epoch != entry.epoch {
            return Err(self.lost(entry));
        }
        let owner = self.held_by(entry, &append.secret).await?;
        let (run, status) = (entry.row.run, entry.row.status());
        match status.is_terminal() && entry.driver.is_none() {
            // Late facts are for those who were at work when it ended, also when nothing was heard of them
            // for a while: nobody has taken their place.
            true => Err(Error::Ended { run, status }),
            false => Ok(owner),
        }
    }

    /// The drafts and blobs of an append, decided on the state that it lands on.
    async fn prepare(
        &self,
        entry: &Entry,
        folded: &Folded,
        append: &ExternalAppend,
    ) -> Result<(Vec<Draft>, Vec<Blob>), Error> {
        let (run, state) = (entry.row.run, &folded.state);
        if append.facts.is_empty() {
            return Err(Error::NothingToAppend(run));
        }
        let batch = Batch::new(state, &entry.results, append.epoch);
        let context = state.row.pulse.context;
        let mut facts = Facts::new(batch, context, self.env.now());
        let mut named = Vec::new();
        let redaction = self.redaction_of(RunKind::External, None, None);
        for (index, fact) in append.facts.iter().enumerate() {
            let refuse = |why: String| Error::Fact {
                index,
                kind: fact.kind.chars().take(KIND_SHOWN_MAX).collect(),
                why,
            };
            let (body, redacted) = redaction.counted(fact.body.clone());
            let fact = ExternalFact {
                body,
                ..fact.clone()
            };
            facts
                .add(&fact, redacted)
                .map_err(|refusal| match refusal {
                    Refusal::Unfit(why) => refuse(why),
                    Refusal::Rejected(Rejected::Ended(status)) => Error::Ended { run, status },
                    Refusal::Rejected(why) => refuse(why.to_string()),
                })?;
            named.extend(facts.named.drain(..).map(|digest| (index, digest)));
        }
        drop(redaction);
        let (drafts, mut blobs) = (facts.drafts, facts.blobs);
        for (index, digest) in named {
            if blobs.iter().any(|blob| blob.digest() == digest) {
                continue;
            }
            let missing = || Error::Fact {
                index,
                kind: append.facts[index].kind.clone(),
                why: format!("there is no blob {digest}; put it first"),
            };
            blobs.push(self.named_blob(&digest).await?.ok_or_else(missing)?);
        }
        Ok((drafts, blobs))
    }

    /// A blob that is in the store: with the append it is this run's own, too.
    async fn named_blob(&self, digest: &Digest) -> Result<Option<Blob>, Error> {
        Ok(self.store.blob(digest).await?.map(Blob::new))
    }

    /// The same append under the same id again and again: it lands once.
    async fn send(&self, append: Append) -> Result<logreel_store::Appended, Error> {
        let (run, expect) = (append.run, append.expect);
        let mut tries = 1;
        loop {
            match self.store.append(&append).await {
                Ok(appended) => return Ok(appended),
                Err(AppendError::Store(logreel_store::Error::Ambiguous { what }))
                    if tries < APPEND_TRIES =>
                {
                    tracing::warn!(%run, what, "sending a client's append again");
                    tries += 1;
                    self.env.sleep(Duration::from_millis(20)).await;
                }
                Err(AppendError::Conflict { head }) => {
                    return Err(self.head_moved(&run, &expect, head).await);
                }
                Err(AppendError::Fenced { current }) => {
                    return Err(Error::LeaseLost { run, current });
                }
                Err(AppendError::Ended(status)) => return Err(Error::Ended { run, status }),
                Err(AppendError::Illegal(illegal)) => {
                    return Err(Error::Fact {
                        index: usize::try_from(illegal.seq.0 - expect.seq.0 - 1)
                            .unwrap_or_default(),
                        why: illegal.why.to_string(),
                        kind: illegal.kind,
                    });
                }
                Err(AppendError::Store(error)) => return Err(error.into()),
            }
        }
    }

    /// The conflict, with what the client has not seen.
    async fn head_moved(&self, run: &RunId, expect: &Head, head: Head) -> Error {
        // A client may believe anything.
        let from = expect.seq.min(head.seq).next();
        match self.store.read(run, from, SINCE_MAX).await {
            Ok(since) => Error::HeadMoved(Box::new(HeadMoved {
                run: *run,
                head,
                since,
            })),
            Err(error) => error.into(),
        }
    }

    /// An append is a sign of life; that is written now and then, not each time.
    async fn heard(&self, folded: &mut Folded, owner: OwnerId) -> Result<(), Error> {
        let now = self.env.monotonic();
        let is_recent = |(whose, at): (OwnerId, Duration)| {
            whose == owner && now.saturating_sub(at) < self.lease / 3
        };
        if !folded.heard.is_some_and(is_recent) {
            self.store.beat(owner).await?;
            folded.heard = Some((owner, now));
        }
        Ok(())
    }
}
