//! What a run and those before it in its conversation have said: their logs, as a translator takes them.

use logreel::core::Payload;
use logreel::{Body, ErrorKind, Event, Filter, Json, RunId, RunStore, Seq, Session, value};
use serde_json::Value;

use super::messages::Transcript;
use super::translate::{Fact, Listener, Translator};
use crate::Problem;
use crate::said::{Ear, Mark};

/// Events that are read at a time.
pub(crate) const PAGE: usize = 128;
/// A value that is larger is told as where it is: clients give up on blocks of 10 MiB.
const VALUE_BYTES_MAX: u64 = 1024 * 1024;
/// Earlier runs of a conversation that are told to whoever joins, and what they may say.
const RUNS_BEFORE_MAX: usize = 50;
const BEFORE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// How much of a log is read.
pub(crate) enum Until<'e> {
    /// Up to the run's end, which is left to be told; the ear learns what is over.
    TheEnd(&'e mut Ear),
    /// All that counts.
    After,
}

/// Gives the translator what the log has; the event to go on with.
pub(crate) async fn feed(
    store: &dyn RunStore,
    run: RunId,
    translator: &mut Translator,
    mut until: Until<'_>,
) -> Result<Seq, Problem> {
    let mut next = Seq::FIRST;
    loop {
        let page = store.events(&run, next, PAGE).await?;
        for event in page.items {
            let ends = event.body.is_terminal() || event.late;
            if let Until::TheEnd(ear) = &mut until {
                if ends {
                    return Ok(next);
                }
                if let Some(mark) = Mark::of(&event.body) {
                    ear.mark(&mark);
                }
            }
            next = event.seq.next();
            let fact = fact(store, event).await?;
            drop(translator.take(&fact));
            if ends {
                return Ok(next);
            }
        }
        if !page.has_more {
            return Ok(next);
        }
    }
}

/// The conversation before a run: what earlier ones of its session said, the latest of it.
pub(crate) async fn said_before(
    store: &dyn RunStore,
    session: &Session,
    run: &RunId,
) -> Result<Vec<Value>, Problem> {
    let (mut runs, mut bytes) = (Vec::new(), 0);
    for earlier in before(store, session, run).await? {
        let Some(said) = said(store, earlier).await? else {
            continue;
        };
        bytes += said.bytes();
        if bytes > BEFORE_BYTES_MAX {
            break;
        }
        runs.push(said.into_all());
    }
    Ok(runs.into_iter().rev().flatten().collect())
}

/// The runs of a session before one of them, newest first.
async fn before(
    store: &dyn RunStore,
    session: &Session,
    run: &RunId,
) -> Result<Vec<RunId>, Problem> {
    let filter = Filter {
        session: Some(session.clone()),
        ..Filter::default()
    };
    let (mut before, mut cursor, mut is_found) = (Vec::new(), None, false);
    loop {
        let page = store
            .list(&filter, cursor.as_ref(), RUNS_BEFORE_MAX)
            .await?;
        for entry in page.items {
            match is_found {
                true if !entry.erased => before.push(entry.row.run),
                true => {}
                false => is_found = entry.row.run == *run,
            }
        }
        cursor = page.next;
        if cursor.is_none() || before.len() >= RUNS_BEFORE_MAX {
            before.truncate(RUNS_BEFORE_MAX);
            return Ok(before);
        }
    }
}

/// What a run has said; `None` of one that was pruned meanwhile or cannot be read: the run that is joined can be told
/// without it.
async fn said(store: &dyn RunStore, run: RunId) -> Result<Option<Transcript>, Problem> {
    let mut translator = Translator::new(run, Listener::default());
    match feed(store, run, &mut translator, Until::After).await {
        Ok(_) => Ok(Some(translator.into_transcript())),
        Err(problem) if problem.kind() == ErrorKind::Unavailable => Err(problem),
        Err(problem) => {
            tracing::warn!(%run, "an earlier run is left out: {}", problem.detail());
            Ok(None)
        }
    }
}

/// An event with the values that it speaks of.
pub(crate) async fn fact(store: &dyn RunStore, mut event: Event) -> Result<Fact, Problem> {
    let payload = match &mut event.body {
        Body::RunStarted(it) => Some(&mut it.input),
        Body::RunForked(it) => Some(&mut it.input),
        Body::RunCompleted(it) => Some(&mut it.output),
        Body::StepFinished(it) => Some(&mut it.output),
        Body::ModelAnswered(it) => Some(&mut it.message),
        Body::ToolCalled(it) => Some(&mut it.arguments),
        Body::ToolReturned(it) => Some(&mut it.output),
        Body::PlanMade(it) => Some(&mut it.plan),
        Body::Custom(it) => Some(&mut it.data),
        _ => None,
    };
    if let Some(payload) = payload
        && let Payload::Blob(reference) = &payload
        && reference.bytes <= VALUE_BYTES_MAX
    {
        *payload = Payload::Inline(value::resolve(store, payload).await?);
    }
    let node = match &event.body {
        Body::MessageAdded(added) => {
            let bytes = store.blob(&added.node).await?.unwrap_or_default();
            let is_small = bytes.len() as u64 <= VALUE_BYTES_MAX;
            let text = String::from_utf8(bytes).ok().filter(|_| is_small);
            text.and_then(|text| Json::parse(text).ok())
        }
        _ => None,
    };
    Ok(Fact { event, node })
}
