//! What goes into a driver's next append: what waits in the outbox, decided in order, and before a wait the
//! announcement of every step that is under way unannounced.

use logreel_core::event::{Effect, StepStarted, WaitKind};
use logreel_core::meaning::effect_key;
use logreel_core::{
    Batch, Blob, Body, Command, Draft, Epoch, RunId, RunState, Seq, StepId, WaitId,
};

use super::{Folded, Pending, RecordError, Slot, ended_step, reply};
use crate::step::GIVEN_UP;

/// In a request that starts and ends a wait at once: the wait that it starts.
pub(crate) const NEW_WAIT: WaitId = WaitId(0);

/// What was decided, and for whom.
pub(super) struct Decided {
    pub drafts: Vec<Draft>,
    pub blobs: Vec<Blob>,
    /// Each with how many of the drafts are its own.
    pub members: Vec<(Pending, usize)>,
}

impl Folded {
    /// Takes what waits to be recorded and decides it; `None` when there is nothing to append.
    pub(super) fn decide_next(&mut self, run: &RunId, epoch: Epoch) -> Option<Decided> {
        if self.outbox.is_empty() {
            self.alone = 0;
            return None;
        }
        let Self {
            state,
            results,
            outbox,
            quiet,
            wait_in_flight,
            alone,
            ..
        } = self;
        let mut batch = Batch::new(state, results, epoch);
        let mut drafts: Vec<Draft> = Vec::new();
        let mut blobs = Vec::new();
        let mut members = Vec::new();
        while let Some(pending) = outbox.pop_front() {
            if starts_wait(&pending.commands) {
                let mut under_way: Vec<&StepStarted> = quiet.values().collect();
                under_way.sort_by(|one, other| one.step.cmp(&other.step));
                for started in under_way {
                    if has_ended(&started.step, &drafts) {
                        continue;
                    }
                    let announcement = Pending::unasked(keyed(run, started).into());
                    match decide_all(state, &mut batch, &announcement.commands) {
                        Ok(decided) if decided.is_empty() => {}
                        Ok(decided) => {
                            members.push((announcement, decided.len()));
                            drafts.extend(decided);
                        }
                        // The wait will be refused as well.
                        Err(why) => tracing::debug!(%run, ?why, "not announced"),
                    }
                }
            }
            match decide_all(state, &mut batch, &pending.commands) {
                Err(why) => reply(pending, Err(why)),
                Ok(decided) if decided.is_empty() => reply(pending, Ok(Vec::new())),
                Ok(decided) => {
                    blobs.extend(pending.blobs.iter().cloned());
                    members.push((pending, decided.len()));
                    if drafts.is_empty() {
                        drafts = decided;
                    } else {
                        drafts.extend(decided);
                    }
                    if *alone > 0 {
                        break;
                    }
                }
            }
        }
        *alone = alone.saturating_sub(1);
        if drafts.is_empty() {
            return None;
        }
        *wait_in_flight = drafts
            .iter()
            .any(|draft| matches!(draft.body, Body::WaitStarted(_)));
        Some(Decided {
            drafts,
            blobs,
            members,
        })
    }
}

/// Decides the commands of one request, all or none; waits get their number here, because another
/// may have taken the one that was free when the request was made.
fn decide_all(
    state: &RunState,
    batch: &mut Batch<'_>,
    commands: &[Command],
) -> Result<Vec<Draft>, RecordError> {
    let before = (commands.len() > 1).then(|| batch.clone());
    let mut own = None;
    let mut drafts = Vec::with_capacity(commands.len());
    for command in commands {
        let mut command = command.clone();
        if let Command::Record { body, .. } = &mut command {
            match body {
                // A wait announced it before it did so itself.
                Body::StepStarted(started)
                    if started.effect != Effect::Write && batch.is_running(&started.step) =>
                {
                    continue;
                }
                // Given up before it was announced: the log never spoke of it.
                Body::StepFailed(failed)
                    if failed.error.kind == GIVEN_UP && !batch.is_running(&failed.step) =>
                {
                    continue;
                }
                Body::StepFinished(finished) if batch.is_running(&finished.step) => {
                    finished.started_at = None;
                }
                Body::StepFailed(failed) if batch.is_running(&failed.step) => {
                    failed.started_at = None;
                }
                Body::WaitStarted(wait) => {
                    let awaits = |(name, _): &(String, Seq)| Some(name) == wait.name.as_ref();
                    let is_kept = wait.kind == WaitKind::Signal && state.signals.iter().any(awaits);
                    if is_kept && commands.len() == 1 {
                        return Err(RecordError::SignalIsKept);
                    }
                    wait.wait = batch.next_wait();
                    own = Some(wait.wait);
                }
                Body::WaitEnded(ended) if ended.wait == NEW_WAIT => {
                    ended.wait = own.unwrap_or(NEW_WAIT);
                }
                _ => {}
            }
        }
        match batch.decide(command) {
            Ok(draft) => drafts.push(draft),
            Err(why) => {
                if let Some(before) = before {
                    *batch = before;
                }
                return Err(RecordError::Rejected(why));
            }
        }
    }
    Ok(drafts)
}

impl Pending {
    /// One whose answer nobody waits for.
    fn unasked(command: Command) -> Self {
        Self {
            commands: vec![command],
            blobs: Vec::new(),
            answer: Slot::default(),
        }
    }
}

fn starts_wait(commands: &[Command]) -> bool {
    let starts = |command: &Command| {
        matches!(
            command,
            Command::Record {
                body: Body::WaitStarted(_),
                ..
            }
        )
    };
    commands.iter().any(starts)
}

/// The announcement of a step, with its key.
fn keyed(run: &RunId, started: &StepStarted) -> Body {
    let key = effect_key(
        run,
        &started.step.canonical(),
        started.input_digest.as_ref(),
    );
    let key = Some(key);
    Body::from(StepStarted {
        key,
        ..started.clone()
    })
}

/// Whether these drafts end the step.
fn has_ended(step: &StepId, drafts: &[Draft]) -> bool {
    drafts
        .iter()
        .any(|draft| ended_step(&draft.body) == Some(step))
}
