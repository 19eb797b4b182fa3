//! Finds the first decision that differs: between a recorded log and what was decided again, and between
//! two replays of the same recording under two specs.

use std::collections::HashSet;

use logreel_core::{Body, Seq, StepId};
use logreel_store::RunStore;
use serde_json::Value;

use super::conductor::Performance;
use super::explain::{self, Seen};
use super::facts::{Fact, facts};
use super::lane::{self, Lane, Waits};
use super::recording::{Cue, Recording};
use super::report::Difference;

/// A difference on its way: the recorded event, what it is about, and the two facts.
pub(crate) struct Found {
    pub(crate) seq: Seq,
    pub(crate) lane: Lane,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// Both were decided, and say different things.
    Other { recorded: Fact, now: Fact },
    /// It was decided, and is not.
    Missing(Fact),
    /// It is decided, and was not.
    More(Fact),
    /// It begins, and was never spoken of.
    Begins,
    /// It begins at another time.
    Moved { before: usize, now: usize },
    /// Its child is started with something else.
    ChildInput { recorded: Value, now: Value },
}

/// The first difference between the recording and its replay. `stored` is the replay under the spec
/// that the recording has, when this one is under another.
pub(crate) async fn compare(
    source: &dyn RunStore,
    recording: &Recording,
    stored: Option<&Performance>,
    now: &Performance,
) -> Option<Difference> {
    let children = steps_with_children(recording);
    let recorded = facts(
        recording.events.iter().map(|event| (event, 0)),
        recording.given,
        &children,
    );
    let log = now.log.iter().map(|(event, cues)| (event, *cues));
    let again = facts(log, recording.given, &children);
    let seen = Seen::of(recording, now).await;
    let mut found: Vec<Found> = Vec::new();
    for (lane, was) in &recorded {
        let is = again.get(lane).map(Vec::as_slice).unwrap_or_default();
        found.extend(in_lane(recording, &seen, lane, was, is));
    }
    let new = again
        .iter()
        .filter(|(lane, _)| !recorded.contains_key(lane));
    for (lane, is) in new {
        found.extend(in_lane(recording, &seen, lane, &[], is));
    }
    found.extend(child_inputs(recording, now));
    found.extend(unheard_of(recording, now));
    if let Some(stored) = stored {
        found.extend(moved(recording, stored, now));
    }
    // The first one; of several at one place, what says most.
    let first = found.into_iter().min_by_key(|it| (it.seq, rank(it)))?;
    Some(explain::difference(source, recording, stored, now, &seen, first).await)
}

fn rank(found: &Found) -> u8 {
    match found.what {
        What::ChildInput { .. } => 0,
        What::Other { .. } => 1,
        What::Moved { .. } | What::Begins => 2,
        What::More(_) => 3,
        What::Missing(_) => 4,
    }
}

/// Steps whose children are recorded, and so are compared by themselves.
fn steps_with_children(recording: &Recording) -> HashSet<StepId> {
    let started = recording
        .events
        .iter()
        .filter_map(|event| match &event.body {
            Body::ChildStarted(started) => Some(started),
            _ => None,
        });
    let known = started.filter(|it| recording.children.contains_key(&it.child));
    known.map(|it| it.step.clone()).collect()
}

fn in_lane(
    recording: &Recording,
    seen: &Seen,
    lane: &Lane,
    was: &[Fact],
    is: &[Fact],
) -> Option<Found> {
    let found = |seq, what| {
        let lane = lane.clone();
        Some(Found { seq, lane, what })
    };
    for (recorded, now) in was.iter().zip(is) {
        let same = recorded.kind == now.kind && seen.is_same(recorded, now);
        if !same {
            let (recorded, now) = (recorded.clone(), now.clone());
            return found(recorded.seq, What::Other { recorded, now });
        }
    }
    if let Some(missing) = was.get(is.len()) {
        return found(missing.seq, What::Missing(missing.clone()));
    }
    let more = is.get(was.len())?;
    // What would have come after the log's end is not known.
    if !recording.ended && more.cues >= recording.cues.len() {
        return None;
    }
    found(place_of(recording, more.cues), What::More(more.clone()))
}

/// The recorded event before which something is decided that was not.
fn place_of(recording: &Recording, cues: usize) -> Seq {
    let next = recording.cues.get(cues).map(|cue| cue.seq);
    let last = recording.events.last().map(|event| event.seq);
    next.or(last).unwrap_or(Seq::FIRST)
}

/// What begins, and the log does not speak of. One that was under way at the log's end may be missing
/// there; a model's call is in the run's own lane.
fn unheard_of(recording: &Recording, now: &Performance) -> Vec<Found> {
    let mut waits = Waits::default();
    let spoken_of = recording.events.iter().map(|event| {
        waits.note(&event.body);
        lane::of(&event.body, &waits)
    });
    let spoken_of: HashSet<Lane> = spoken_of.collect();
    let began = now.noted.began.iter();
    let new = began.filter(|(lane, cues)| {
        let goes_on = !recording.ended && **cues >= recording.cues.len();
        let is_step = matches!(lane, Lane::Step(_));
        is_step && !goes_on && !spoken_of.contains(*lane)
    });
    let found = new.map(|(lane, cues)| Found {
        seq: place_of(recording, *cues),
        lane: lane.clone(),
        what: What::Begins,
    });
    found.collect()
}

/// What begins earlier or later than under the spec as it was.
fn moved(recording: &Recording, stored: &Performance, now: &Performance) -> Vec<Found> {
    let mut found = Vec::new();
    for (lane, before) in &stored.noted.began {
        let Some(after) = now.noted.began.get(lane) else {
            continue;
        };
        // Once they part, when things begin is a consequence.
        if after == before || now.given.min(stored.given) < *before.min(after) {
            continue;
        }
        if let Some(event) = recording.first_of(lane) {
            found.push(Found {
                seq: event.seq,
                lane: lane.clone(),
                what: What::Moved {
                    before: *before,
                    now: *after,
                },
            });
        }
    }
    found
}

fn child_inputs(recording: &Recording, now: &Performance) -> Vec<Found> {
    let mut found = Vec::new();
    for call in &now.noted.children {
        let Some(child) = recording.children.get(&call.child) else {
            continue;
        };
        let (recorded, input) = (child.input.to_value(), call.input.to_value());
        if recorded == input {
            continue;
        }
        let started = recording
            .events
            .iter()
            .find(|event| matches!(&event.body, Body::ChildStarted(it) if it.child == call.child));
        if let Some(event) = started {
            found.push(Found {
                seq: event.seq,
                lane: Lane::Step(call.step.clone()),
                what: What::ChildInput {
                    recorded,
                    now: input,
                },
            });
        }
    }
    found
}

/// The cue after which something begins, in words.
pub(crate) fn after(cues: &[Cue], given: usize) -> Option<&Cue> {
    given.checked_sub(1).and_then(|last| cues.get(last))
}
