//! Runs that happened elsewhere and are known from someone else's record: kept whole, in one go, ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use logreel_core::event::{
    Budget, Cause, Git, Phase, PhaseEntered, Provenance, RunKind, RunStarted,
};
use logreel_core::meaning::{ResultSet, digest_of};
use logreel_core::{
    Batch, Blob, Body, Command, Digest, Draft, Epoch, Event, Json, Payload, RunId, RunState, Seq,
    Session, Timestamp,
};
use logreel_store::{Created, NewRun};
use serde_json::Value;

use crate::engine::Engine;
use crate::error::Error;
use crate::handle::RunHandle;

/// A run that is over.
pub struct PastRun {
    /// Its id; the same one again is the same run.
    pub run: RunId,
    /// The program's name.
    pub agent: String,
    /// What it is, as it is known.
    pub spec: Value,
    /// What it was to do.
    pub input: Json,
    /// The conversation it was.
    pub session: Option<String>,
    /// Labels to list it by.
    pub labels: BTreeMap<String, String>,
    /// Where it ran.
    pub dir: Option<String>,
    /// The checkout it ran on.
    pub git: Option<Git>,
    /// What happened, and when, if that is known.
    pub facts: Vec<(Body, Option<Timestamp>)>,
    /// What the facts refer to.
    pub blobs: Vec<Blob>,
    /// How it ended.
    pub end: Result<Json, Cause>,
}

/// What became of it.
#[derive(Debug, Clone)]
pub enum PastOutcome {
    /// It is here now.
    Kept(RunHandle<Json>),
    /// It had been here before; nothing changed.
    AlreadyHere(RunHandle<Json>),
}

impl Engine {
    /// Keeps a run that is over, of kind `record`, in one transaction. The same run again changes
    /// nothing.
    pub async fn keep_past(&self, past: PastRun) -> Result<PastOutcome, Error> {
        self.0.check_open()?;
        let run = past.run;
        let new = past.begin(self.0.durability)?;
        let handle = self.run(run);
        match self.0.create(new).await? {
            Created::New(_) => Ok(PastOutcome::Kept(handle)),
            Created::Attached(_) => Ok(PastOutcome::AlreadyHere(handle)),
        }
    }
}

impl PastRun {
    fn begin(self, durability: logreel_core::event::Durability) -> Result<NewRun, Error> {
        let mut blobs = self.blobs;
        let mut stored = |json: Json| {
            let (payload, blob) = Payload::of(json);
            blobs.extend(blob);
            payload
        };
        let started = RunStarted {
            agent: Arc::from(self.agent),
            budget: Budget::default(),
            context: None,
            dir: self.dir,
            durability,
            git: self.git,
            input: stored(self.input),
            key: None,
            kind: RunKind::Record,
            labels: self.labels,
            limit: None,
            parent: None,
            provenance: Provenance {
                logreel: Some(env!("CARGO_PKG_VERSION").to_owned()),
                ..Provenance::default()
            },
            session: self.session.as_deref().map(Session::new).transpose()?,
            spec_digest: digest_of(&self.spec).map_err(|error| Error::value("the spec", error))?,
            spec: stored(Json::from(self.spec)),
            spec_file: None,
        };
        let end = match self.end {
            Ok(output) => Command::Complete {
                output: stored(output),
            },
            Err(cause) => Command::Fail { cause },
        };
        let phase = Phase::Executing;
        let facts = self.facts.into_iter();
        let commands = std::iter::once(Body::from(PhaseEntered { phase }).into())
            .chain(facts.map(|(body, caller_at)| Command::Record { body, caller_at }))
            .chain([end]);
        let then = decided(self.run, &started, commands)?;
        Ok(NewRun {
            run: self.run,
            started,
            then,
            blobs,
            owner: None,
        })
    }
}

/// What the commands lead to, one after the other. The places and digests of the fold here are not those
/// of the log; nothing that is decided depends on them.
fn decided(
    run: RunId,
    started: &RunStarted,
    commands: impl Iterator<Item = Command>,
) -> Result<Vec<Draft>, Error> {
    let event = |seq: Seq, body: Body| Event {
        seq,
        at: Timestamp::from_micros(0),
        caller_at: None,
        epoch: Epoch::NONE,
        late: false,
        digest: Digest::of(b""),
        body,
    };
    let first = event(Seq::FIRST, started.clone().into());
    let mut state = RunState::begin(run, &first).map_err(logreel_store::Error::from)?;
    let mut results = ResultSet::default();
    let mut drafts = Vec::new();
    for command in commands {
        let draft = Batch::new(&state, &results, Epoch::NONE).decide(command);
        let draft = draft.map_err(|why| Error::Rejected { run, why })?;
        let next = event(state.row.head.seq.next(), draft.body.clone());
        state.apply(&next).map_err(logreel_store::Error::from)?;
        results = results.plus(ResultSet::of(&draft.body));
        drafts.push(draft);
    }
    Ok(drafts)
}
