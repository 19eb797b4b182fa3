//! `POST /v1/agui/{spec}`: a run for an AG-UI client, started, answered or joined, and told as it goes.
//!
//! What they call a run is kept beside it: of the request that started it as a label, of those that
//! answered or joined it later as signals, which anyone may send and nobody awaits.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use axum::http::HeaderValue;
use futures_util::stream;
use logreel::{
    Body, Digest, Entry, ErrorKind, Event, Filter, IfBusy, Json, RunId, Seq, Session, tree,
};

use super::follow::Follower;
use super::input::RunAgentInput;
use super::translate::{Listener, MESSAGE_LABEL};
use super::{messages, resume, waits};
use crate::Problem;
use crate::call::Call;
use crate::events::streamed;
use crate::operation::Answered;
use crate::specs::{NewRun, What};

/// The header that names the run.
pub(crate) const RUN: &str = "logreel-run";

/// What they call the run, and the name it was started by.
const RUN_LABEL: &str = "agui.run";
const SPEC_LABEL: &str = "agui.spec";
/// What they call it later: a signal.
const RUN_SIGNAL: &str = "agui.run";
/// Runs on the same message that may have been called so.
const ON_MESSAGE_MAX: usize = 10;

/// `POST /v1/agui/{spec}`
pub(crate) async fn run(call: Call) -> Answered {
    let input = RunAgentInput::of(&call)?;
    let refused = |error| Problem::invalid(format!("`threadId`: {error}"));
    let session = Session::new(&*input.thread_id).map_err(refused)?;
    let app = &call.app;
    let (run, joins) = match found(&call, &session, &input).await? {
        Some(run) => (run, true),
        None => started(&call, &session, &input).await?,
    };
    let listener = Listener {
        thread: input.thread_id,
        run: input.run_id,
        messages: messages::kept(input.messages, &run),
    };
    let follower = Follower::open(app, run, &session, listener, joins).await?;
    let mut response = streamed(stream::unfold(follower, |mut follower| async {
        let frames = follower.next().await?;
        Some((frames, follower))
    }));
    let name = HeaderValue::from_str(&run.to_string()).expect("an id is ASCII");
    response.headers_mut().insert(RUN, name);
    Ok(response)
}

/// The run that the request is about, when it is there: the one that goes by its `runId`, else the one that
/// it answers, the one that answers the same message right now, or the latest when it asks nothing.
async fn found(
    call: &Call,
    session: &Session,
    input: &RunAgentInput,
) -> Result<Option<RunId>, Problem> {
    let spec = call.param("spec");
    let answers = &input.resume;
    let known = called(call, session, input).await?;
    let is_known = known.is_some();
    let entry = match known {
        Some(known) => Some(known),
        None if answers.is_empty() => newest(call, session, Vec::new()).await?,
        None => asked(call, session, input).await?,
    };
    let Some(entry) = entry else {
        if answers.is_empty() {
            return Ok(None);
        }
        let detail = format!("thread {session:?} has no run that waits");
        return Err(Problem::not_found(detail));
    };
    let run = entry.row.run;
    if answers.is_empty() && !is_known {
        let answered = entry.row.facts.labels.get(MESSAGE_LABEL);
        let joins = match input.last_message_id() {
            Some(id) => answered.is_some_and(|it| it == id) && !entry.row.status().is_terminal(),
            // A page that was loaded again asks nothing.
            None => !input.has_input() && !entry.erased,
        };
        if !(joins && is_of(spec, &entry).is_ok()) {
            return Ok(None);
        }
    }
    is_of(spec, &entry)?;
    if answers.is_empty() && is_known {
        is_on(&entry, input)?;
    }
    let answers = resume::understood(call, &run, answers).await?;
    if !is_known {
        name(call, &run, input).await?;
    }
    resume::apply(call, &run, answers).await?;
    Ok(Some(run))
}

/// The run whose question is answered under a `runId` that nobody knows. Every run has a wait `w1`, so a page that shows
/// an earlier run must not answer the one that asks now: the answer says whose wait it is for, or the last message
/// of the page says which run the page shows.
async fn asked(
    call: &Call,
    session: &Session,
    input: &RunAgentInput,
) -> Result<Option<Entry>, Problem> {
    let mut named = input.resume.iter();
    if let Some(run) = named.find_map(|it| waits::run(&it.interrupt_id)) {
        let root = tree::root(&**call.app.engine.store(), run).await?;
        if let Some(entry) = of_thread(call, session, &root).await? {
            return Ok(Some(entry));
        }
    }
    let latest = newest(call, session, Vec::new()).await?;
    let (Some(entry), Some(id)) = (&latest, input.last_message_id()) else {
        return Ok(latest);
    };
    if is_about(entry, id) {
        return Ok(latest);
    }
    let on_message = vec![(MESSAGE_LABEL.to_owned(), id.to_owned())];
    if let Some(entry) = newest(call, session, on_message).await? {
        return Ok(Some(entry));
    }
    // Something that a run was told, and told the page.
    if let Some(run) = waits::run(id)
        && let Some(entry) = of_thread(call, session, &run).await?
    {
        return Ok(Some(entry));
    }
    if !entry.row.facts.labels.contains_key(MESSAGE_LABEL) {
        return Ok(latest);
    }
    let run = entry.row.run;
    let detail =
        format!("no run of thread {session:?} answers message {id:?}; {run} answers another");
    let hint = "ask without `resume` to be told what the thread waits for";
    Err(Problem::new(ErrorKind::Conflict, detail).hint(hint))
}

/// A run, if it is of this session.
async fn of_thread(call: &Call, session: &Session, run: &RunId) -> Result<Option<Entry>, Problem> {
    match call.app.engine.store().entry(run).await {
        Ok(entry) => Ok(Some(entry).filter(|it| it.row.facts.session.as_ref() == Some(session))),
        Err(logreel::store::Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a run answers this message, or has told it.
fn is_about(entry: &Entry, id: &str) -> bool {
    let answered = entry.row.facts.labels.get(MESSAGE_LABEL);
    let told_here = messages::id(&entry.row.run, "");
    answered.is_some_and(|it| it == id) || id.starts_with(&told_here)
}

/// The run that was called so before, by the request that started it or by a later one. A resume that is
/// sent again must not answer the next run of its thread.
async fn called(
    call: &Call,
    session: &Session,
    input: &RunAgentInput,
) -> Result<Option<Entry>, Problem> {
    let by_run = vec![(RUN_LABEL.to_owned(), input.run_id.clone())];
    if let Some(entry) = newest(call, session, by_run).await? {
        return Ok(Some(entry));
    }
    // A later name comes with the message that the run answers, which may be none.
    let (labels, limit) = match input.last_message_id() {
        Some(id) => (
            vec![(MESSAGE_LABEL.to_owned(), id.to_owned())],
            ON_MESSAGE_MAX,
        ),
        None => (Vec::new(), 1),
    };
    for entry in list(call, session, labels, limit).await? {
        let mut is_called = false;
        let mut each = |event: Event| match event.body {
            Body::SignalReceived(signal) if signal.name == RUN_SIGNAL => {
                is_called = signal.value.to_json().to_value() == *input.run_id;
                match is_called {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            }
            _ => ControlFlow::Continue(()),
        };
        let store = call.app.engine.store();
        store.scan(&entry.row.run, Seq::FIRST, &mut each).await?;
        if is_called {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Keeps what they call the run from now on.
async fn name(call: &Call, run: &RunId, input: &RunAgentInput) -> Result<(), Problem> {
    let request = format!("agui:{}", names(input)?.hex());
    let signal = call.app.engine.signal(run, RUN_SIGNAL, &input.run_id);
    match signal.request(request).await.map_err(Problem::from) {
        Ok(_) => Ok(()),
        // One that has ended, or that takes nothing, is told all the same.
        Err(problem) => match problem.kind() {
            ErrorKind::Terminal | ErrorKind::NotApplicable => {
                tracing::debug!(%run, called = %input.run_id, "the run keeps no other name");
                Ok(())
            }
            _ => Err(problem),
        },
    }
}

/// Of what they call thread and run: those may be of any length.
fn names(input: &RunAgentInput) -> Result<Digest, Problem> {
    let names = Json::of(&(&input.thread_id, &input.run_id));
    let names = names.map_err(|error| Problem::invalid(error.to_string()))?;
    Ok(Digest::of(names.text().as_bytes()))
}

/// The newest run of a session with these labels. While one is active, it is the newest.
async fn newest(
    call: &Call,
    session: &Session,
    labels: Vec<(String, String)>,
) -> Result<Option<Entry>, Problem> {
    Ok(list(call, session, labels, 1).await?.into_iter().next())
}

async fn list(
    call: &Call,
    session: &Session,
    labels: Vec<(String, String)>,
    limit: usize,
) -> Result<Vec<Entry>, Problem> {
    let filter = Filter {
        session: Some(session.clone()),
        labels,
        ..Filter::default()
    };
    let page = call.app.engine.store().list(&filter, None, limit).await?;
    Ok(page.items)
}

/// Refuses a run that was started by another name than the path has.
fn is_of(spec: &str, entry: &Entry) -> Result<(), Problem> {
    match entry.row.facts.labels.get(SPEC_LABEL) {
        Some(started_by) if started_by != spec => {
            let run = entry.row.run;
            let detail = format!("{run} of this thread is of {started_by:?}, not of {spec:?}");
            Err(Problem::new(ErrorKind::Conflict, detail))
        }
        _ => Ok(()),
    }
}

/// Refuses a message that a run known by its `runId` does not answer: it would not be asked.
fn is_on(entry: &Entry, input: &RunAgentInput) -> Result<(), Problem> {
    let run = entry.row.run;
    match input.last_message_id() {
        Some(id) if !is_about(entry, id) => {
            let called = &input.run_id;
            let detail = format!("runId {called:?} is {run}, which does not answer message {id:?}");
            let hint = "a new message needs a new `runId`";
            Err(Problem::new(ErrorKind::Conflict, detail).hint(hint))
        }
        _ => Ok(()),
    }
}

/// Starts a run; whether it was there already, by a request that came at the same time.
async fn started(
    call: &Call,
    session: &Session,
    input: &RunAgentInput,
) -> Result<(RunId, bool), Problem> {
    let spec = call.param("spec").to_owned();
    let mut labels = BTreeMap::from([
        (RUN_LABEL.to_owned(), input.run_id.clone()),
        (SPEC_LABEL.to_owned(), spec.clone()),
    ]);
    if let Some(id) = input.last_message_id() {
        labels.insert(MESSAGE_LABEL.to_owned(), id.to_owned());
    }
    let new = NewRun {
        input: Json::from(input.input()?),
        session: Some(session.clone()),
        labels,
        key: Some(format!("agui:{}", names(input)?.hex())),
        id: None,
        if_busy: IfBusy::Reject,
    };
    let begun = call.app.specs.start(What::Named(spec), new).await;
    let begun = begun.map_err(|problem| match problem.kind() {
        ErrorKind::Busy => problem.hint(
            "join its run (without a new message), answer it (`resume`), or POST /v1/sessions/{threadId}/cancel",
        ),
        _ => problem,
    })?;
    Ok((begun.run, begun.attached))
}
