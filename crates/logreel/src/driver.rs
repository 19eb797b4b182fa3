//! Driving a run: call its function from the top, stop it when the log says so, end the run with
//! what it returned, and give the lease back.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use logreel_core::event::{PhaseEntered, RunKind, SpecChanged};
use logreel_core::meaning::effect_key;
use logreel_core::{
    Body, Command, Epoch, Event, Json, Payload, Rejected, RunId, RunState, Seq, Timestamp,
};
use logreel_store::Doorbell;
use tokio::task::JoinHandle;

use crate::Error;
use crate::ctx::{Ctx, Execution, Logged};
use crate::engine::Inner;
use crate::error::TaskError;
use crate::journal::{Journal, Looked, RecordError, Stop};
use crate::lease::{Lease, give_back};
use crate::outage::Outage;
use crate::owner::LOOK_EVERY;
use crate::program::Program;
use crate::step::panic_text;
use crate::value;
use crate::workflow::groups;

/// What a stopped function may still take to come to an end.
const GRACE: Duration = Duration::from_secs(1);
/// What a recorder may: its program has a second before it is killed, and is heard to its end.
const RECORDER_GRACE: Duration = Duration::from_secs(5);
/// How long a function must be idle before its lease is given back.
const PARK_AFTER: Duration = Duration::from_millis(25);
/// The first facts of a driver go out by themselves after this, so that watchers see them.
const SHOW_AFTER: Duration = Duration::from_millis(20);

/// How a drive came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drove {
    /// The run has ended.
    ToTheEnd,
    /// The lease was given back; the run goes on later.
    Released,
    /// Someone else drives it now.
    Lost,
}

/// Drives a run under a lease this process holds, and gives the lease back, whatever happens.
pub(crate) async fn drive(
    engine: &Arc<Inner>,
    lease: Lease,
    def: &Program,
    accept_spec_change: bool,
) -> Result<Drove, Error> {
    let mut loaded = None;
    let drove = drive_to_stop(engine, lease, def, accept_spec_change, &mut loaded).await;
    let released = give_back(engine, lease).await;
    // Of what is another's by now that one tells.
    let is_lost = loaded.as_ref().is_some_and(|journal| journal.is_lost());
    // What others appended between the last look and the release found the run driven.
    if let Some(entry) = released.filter(|entry| !is_lost && entry.epoch == lease.epoch) {
        let told = loaded.map(|journal| journal.with_state(|state| state.row.head.seq));
        let from = told.map_or(Seq::FIRST, Seq::next);
        engine
            .tell_up_to(&entry, from, |event| lease.tells(event))
            .await;
    }
    drove
}

/// `loaded` is the journal, once the hooks know what it holds.
async fn drive_to_stop(
    engine: &Arc<Inner>,
    lease: Lease,
    def: &Program,
    accept_spec_change: bool,
    loaded: &mut Option<Arc<Journal>>,
) -> Result<Drove, Error> {
    let Lease { run, epoch, .. } = lease;
    let owner = engine.owner().await?;
    // Whatever came before is seen by the journal, which reads log and epoch from here on.
    let lapses = owner.lapses();
    let doorbell = engine.store.watch_others(&run);
    let mut logged = Logged::default();
    let mut claimed_with: Vec<Event> = Vec::new();
    let mut drivers: Vec<(Epoch, Timestamp)> = Vec::new();
    let journal = Journal::load(
        &lease,
        owner.id(),
        Arc::clone(&engine.store),
        Arc::clone(&engine.env),
        engine.hooks.clone(),
        def.kind == RunKind::Agent,
        |event| {
            logged.note(&event.body);
            match event.body {
                // What came before is another run's, under epochs of its own.
                Body::RunForked(_) => {
                    claimed_with.clear();
                    drivers.clear();
                }
                Body::RunResumed(_) if event.epoch < epoch => {
                    drivers.push((event.epoch, event.at));
                }
                _ => {}
            }
            if lease.tells(event) {
                claimed_with.push(event.clone());
            }
        },
    )
    .await;
    let journal = Arc::new(journal?);
    engine
        .hooks
        .tell(run, journal.session.as_ref(), &claimed_with)
        .await;
    *loaded = Some(Arc::clone(&journal));
    if journal.is_lost() {
        return Ok(settle(&journal).await);
    }
    if accept_spec_change {
        let ((spec, blob), spec_digest) = (Payload::of(def.spec.clone()), def.spec_digest);
        let changed = Body::from(SpecChanged {
            spec,
            spec_digest,
            spec_file: None,
        });
        // Before the function is called: what it asks for is judged by the new spec.
        let recorded = journal.record(vec![changed.into()], blob.into_iter().collect());
        if let Err(error) = recorded.await {
            return Err(Error::DriverStopped(format!("{error:?}")));
        }
    }
    let is_new = journal.with_state(|state| state.row.facts.phase.is_none());
    let (input, context) =
        journal.with_state(|state| (state.row.facts.input.clone(), state.started_context));
    let input = value::resolve(&*engine.store, &input).await?;
    // Whoever drove it before may have left commands behind: dead, or frozen past its lease.
    let mut commands_from = Duration::ZERO;
    if epoch > Epoch(1) {
        let (own, env) = (owner.id(), &*engine.env);
        let folders = engine.store.all_notes();
        let has_waited = groups::stop_left_behind(&folders, own, &run, engine.lease, env).await;
        // On another host nobody can stop them but their own worker, which has one lease more for it.
        if !has_waited {
            let left = left_elsewhere(engine, &run, &owner.owner.host, &drivers).await;
            commands_from = env.monotonic() + left;
        }
    }
    if is_new && journal.with_state(|state| state.row.facts.waits_started == 0) {
        // Made while a pause went through its parent's children: nobody told it. One that was told may have been resumed.
        let entry = engine.store.entry(&run).await?;
        engine.pause_with_parent(&entry).await?;
        look(&journal).await;
        if journal.is_stopped() {
            return Ok(settle(&journal).await);
        }
    }
    if is_new {
        later(&journal, PhaseEntered { phase: def.phase }.into());
    }
    let execution = Arc::new(Execution::new(
        Arc::clone(&journal),
        owner,
        Arc::clone(engine),
        context,
        logged,
        commands_from,
        lapses,
    ));
    let tracked = Tracked {
        function: def.call(Ctx(Arc::clone(&execution)), input),
        execution: Arc::clone(&execution),
    };
    let mut function = AbortOnDrop(tokio::spawn(tracked));
    let stop = watch_over(engine, &execution, doorbell, &mut function.0).await;
    let returned = match stop {
        Ok(returned) => Some(returned),
        Err(stop) => wind_down(&execution, &mut function.0, &stop).await,
    };
    // The lease is given back, and the run's end recorded, when no process of it is left.
    execution.commands.all_stopped().await;
    if let Some(returned) = returned {
        end(&execution, returned).await?;
    }
    Ok(settle(&journal).await)
}

/// How long someone on another host who lost the run by silence may still have commands of it: one lease
/// from when it was taken over, by us or by an earlier driver. A store that does not tell has it in the log: `drivers` are
/// those before us, each with when it began. Nobody may ever learn that the silent one is dead, so that whoever comes later
/// must not wait for it once more.
async fn left_elsewhere(
    engine: &Inner,
    run: &RunId,
    host: &str,
    drivers: &[(Epoch, Timestamp)],
) -> Duration {
    let lapsed = match engine.store.lapsed(run).await {
        Ok(lapsed) => lapsed,
        Err(error) => {
            tracing::warn!(%run, %error, "who drove before is not known");
            return engine.lease;
        }
    };
    let now = engine.env.now();
    let elsewhere = lapsed
        .iter()
        .filter(|it| it.unseen || it.owner.host != host);
    let left = elsewhere.map(|it| {
        let by_the_log = || {
            let taken = drivers.iter().find(|(epoch, _)| *epoch > it.epoch);
            taken.map_or(Duration::ZERO, |(_, at)| now.since(*at))
        };
        engine
            .lease
            .saturating_sub(it.taken_ago.unwrap_or_else(by_the_log))
    });
    left.max().unwrap_or_default()
}

/// Puts a fact in the outbox; it goes out with the next append.
fn later(journal: &Journal, body: Body) {
    if let Err(error) = journal.submit(vec![body.into()], Vec::new()) {
        tracing::warn!(run = %journal.run, ?error, "the journal is closed already");
    }
}

type Returned = Result<Result<Json, TaskError>, tokio::task::JoinError>;

/// Waits for the function to return, or for a reason to stop it.
async fn watch_over(
    engine: &Inner,
    execution: &Execution,
    mut doorbell: Doorbell,
    function: &mut JoinHandle<Result<Json, TaskError>>,
) -> Result<Returned, Stop> {
    let journal = &execution.journal;
    let mut shown = false;
    let mut outage = Outage::default();
    let mut parked = std::pin::pin!(idle(execution));
    // Beside everything else: while the store is away it does not end, and a stop must be heard.
    let mut showing = std::pin::pin!(async {
        engine.env.sleep(SHOW_AFTER).await;
        journal.flush().await;
    });
    // An append that was left behind, on its way once more. Also beside the rest, and nothing is read before it.
    let mut resending: Option<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = None;
    // It goes on from event to event: a run that is never quiet is looked after as well.
    let mut look_again = engine.env.sleep(LOOK_EVERY);
    loop {
        let mut looked = Looked::Read;
        tokio::select! {
            returned = &mut *function => return Ok(returned),
            stop = journal.told_to_stop() => return Err(stop),
            () = &mut parked => {
                journal.stop(Stop::Parked);
                return Err(journal.told_to_stop().await);
            }
            () = engine.until_closing() => journal.stop(Stop::Drained),
            _ = doorbell.rung(), if resending.is_none() => {
                let head = doorbell.head();
                looked = heard(journal, journal.look(head).await, &mut outage);
            }
            () = if_any(&mut resending) => {
                resending = None;
                looked = heard(journal, journal.look(None).await, &mut outage);
            }
            () = &mut showing, if !shown => shown = true,
            () = &mut look_again => {
                let is_resending = resending.is_some();
                let all = async {
                    let looked = match is_resending {
                        true => Looked::Read,
                        false => journal.look(None).await?,
                    };
                    // Whoever takes the place of a driver that was frozen fences it, and leaves no event that says so.
                    let entry = engine.store.entry(&journal.run).await?;
                    if journal.still_holds(&entry) {
                        engine.cancel_if_forsaken(&entry).await?;
                    }
                    Ok(looked)
                };
                looked = heard(journal, all.await, &mut outage);
                look_again = engine.env.sleep(LOOK_EVERY);
            }
        }
        if looked == Looked::LeftBehind {
            resending = Some(Box::pin(journal.flush()));
        }
    }
}

/// Waits for what there may be; for ever when there is nothing.
async fn if_any<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Reads what there is, when no append is under way.
async fn look(journal: &Journal) {
    heard(journal, journal.look(None).await, &mut Outage::default());
}

/// A read that failed is tried again; an append that fails says so itself.
fn heard(journal: &Journal, looked: Result<Looked, Error>, outage: &mut Outage) -> Looked {
    match looked {
        Ok(looked) => {
            outage.is_over();
            looked
        }
        Err(error) => {
            outage.tell(&journal.run, &error, "the run could not be looked at");
            Looked::Read
        }
    }
}

/// Resolves when the function has nothing to do but wait for something that may take long.
async fn idle(execution: &Execution) {
    // What a replay waits for comes as soon as nothing else goes on.
    if execution.engine.stage.is_some() {
        return std::future::pending().await;
    }
    let activity = &execution.activity;
    loop {
        while activity.waiting.load(Ordering::SeqCst) == 0 {
            activity.wait_began.notified().await;
        }
        let polls = activity.polls.load(Ordering::SeqCst);
        execution.journal.env.sleep(PARK_AFTER).await;
        let idle = activity.busy.load(Ordering::SeqCst) == 0
            && activity.waiting.load(Ordering::SeqCst) > 0
            && !execution.journal.is_asking()
            && !activity.polling.load(Ordering::SeqCst)
            && activity.polls.load(Ordering::SeqCst) == polls;
        if idle {
            return;
        }
    }
}

/// Lets a stopped function come to its end, and ends it when it does not.
async fn wind_down(
    execution: &Execution,
    function: &mut JoinHandle<Result<Json, TaskError>>,
    stop: &Stop,
) -> Option<Returned> {
    let env = &execution.journal.env;
    let kind = |state: &RunState| state.row.facts.kind;
    let grace = match execution.journal.with_state(kind) {
        RunKind::Record => RECORDER_GRACE,
        RunKind::Agent | RunKind::Workflow | RunKind::Task | RunKind::External => GRACE,
    };
    let patience = async {
        match stop {
            // Told through its token; it may still want to clean up.
            Stop::Cancelled => env.sleep(grace).await,
            // Work under way may finish; nothing new starts.
            Stop::Paused | Stop::Drained | Stop::Parked => {
                let mut waited = Duration::ZERO;
                let activity = &execution.activity;
                let works = || {
                    let given_up = activity.given_up.load(Ordering::SeqCst);
                    activity.busy.load(Ordering::SeqCst) > given_up
                };
                while waited < grace && works() {
                    env.sleep(Duration::from_millis(10)).await;
                    waited += Duration::from_millis(10);
                }
            }
            Stop::Lost(_) => {}
        }
    };
    tokio::select! {
        biased;
        returned = &mut *function => return Some(returned),
        () = patience => {}
    }
    function.abort();
    match function.await {
        Ok(returned) => Some(Ok(returned)),
        Err(error) if error.is_cancelled() => None,
        Err(panic) => Some(Err(panic)),
    }
}

/// Records how the function ended. After a cancel that is a late fact, or none.
async fn end(execution: &Execution, returned: Returned) -> Result<(), Error> {
    let journal = &execution.journal;
    let unsettled = unsettled_writes(journal);
    let (command, blobs) = match returned {
        // Another driver announced a write, and this code never asked what became of it: a person
        // must, before the run can count as done.
        Ok(Ok(_)) if !unsettled.is_empty() && !has_ended(journal) => {
            return match journal.record(unsettled, Vec::new()).await {
                Ok(_) | Err(RecordError::Dead(_)) => Ok(()),
                Err(error) => Err(Error::DriverStopped(format!("{error:?}"))),
            };
        }
        Ok(Ok(output)) => {
            let unasked = execution.steps_never_asked_for();
            if !unasked.is_empty() {
                let run = journal.run;
                tracing::warn!(%run, ?unasked, "the log holds steps this code never asked for");
            }
            let (output, blob) = Payload::of(output);
            (Command::Complete { output }, blob.into_iter().collect())
        }
        Ok(Err(error)) if error.is_cancelled() && has_ended(journal) => return Ok(()),
        Ok(Err(error)) => (
            Command::Fail {
                cause: error.cause(),
            },
            Vec::new(),
        ),
        Err(join) => {
            let message = match join.try_into_panic() {
                Ok(panic) => format!("the task panicked: {}", panic_text(&*panic)),
                Err(_) => "the task was aborted".to_owned(),
            };
            let cause = TaskError::of_kind("panic", message).cause();
            (Command::Fail { cause }, Vec::new())
        }
    };
    let mut recorded = journal.record(vec![command], blobs).await;
    if let Err(RecordError::Refused(error)) = recorded {
        // The output is too large to record: that is how the run failed.
        let cause = TaskError::from(error).permanent().cause();
        recorded = journal
            .record(vec![Command::Fail { cause }], Vec::new())
            .await;
    }
    let run = journal.run;
    match recorded {
        Ok(_) => Ok(()),
        // What was said came before the end: whoever takes the run next, and that is this process, hears
        // it.
        Err(RecordError::Rejected(Rejected::Unheard)) => Ok(()),
        Err(RecordError::Rejected(why)) => Err(Error::Rejected { run, why }),
        Err(RecordError::Refused(error)) => Err(error),
        Err(RecordError::SignalIsKept) => unreachable!("an end awaits no signal"),
        // `settle` says what that means for the run.
        Err(RecordError::Dead(error)) => {
            tracing::error!(%run, %error, "how the task ended was not recorded");
            Ok(())
        }
    }
}

/// What puts every write in doubt that an earlier driver announced and that has no outcome.
fn unsettled_writes(journal: &Journal) -> Vec<Command> {
    journal.with_state(|state| {
        let writes = state.unsettled_writes(journal.epoch).into_iter();
        let open = writes.filter_map(|step| Some((state.open_step(&step)?.clone(), step)));
        let reason = "it was interrupted, and the code no longer asks for it";
        let steps = open.flat_map(|(open, step)| {
            let key = open
                .key
                .unwrap_or_else(|| effect_key(&journal.run, &step.canonical(), None));
            crate::write_step::in_doubt(&step, open.epoch, key, reason)
        });
        let calls = state.unsettled_calls(journal.epoch).into_iter();
        let calls = calls.flat_map(|call| {
            let mut active = state.row.pulse.active_tools.iter();
            let active = active.find(|active| active.call == call);
            let name = active.map_or_else(|| call.to_string(), |active| active.name.clone());
            crate::call::in_doubt(&call, &name, reason)
        });
        steps.chain(calls.map(Command::from)).collect()
    })
}

fn has_ended(journal: &Journal) -> bool {
    journal.with_state(|state| state.row.facts.ended.is_some())
}

/// Records what is left in the outbox, and hears what came last.
async fn settle(journal: &Journal) -> Drove {
    journal.flush().await;
    if let Some(Stop::Lost(why)) = journal.stopped() {
        tracing::warn!(run = %journal.run, why, "no longer driving this run");
        return Drove::Lost;
    }
    look(journal).await;
    if has_ended(journal) {
        Drove::ToTheEnd
    } else {
        Drove::Released
    }
}

/// A driver that is dropped takes its function with it.
struct AbortOnDrop(JoinHandle<Result<Json, TaskError>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The function's future, with a note of when it is polled.
struct Tracked<F> {
    function: F,
    execution: Arc<Execution>,
}

impl<F: Future + Unpin> Future for Tracked<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let execution = Arc::clone(&self.execution);
        execution.activity.polls.fetch_add(1, Ordering::SeqCst);
        execution.activity.polling.store(true, Ordering::SeqCst);
        let poll = Pin::new(&mut self.function).poll(context);
        execution.activity.polling.store(false, Ordering::SeqCst);
        poll
    }
}
