//! Limits: what would go over one waits, and goes on when someone raised it or a child returned what it
//! did not use. [`logreel_core::budget`] says what a limit is and when it is reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use logreel_core::budget::{Limit, OverBudget};
use logreel_core::decide::{find_for_budget, plain_wait};
use logreel_core::event::{Budget, Relation, Used, WaitEnded, WaitKind, WaitOutcome, WaitStarted};
use logreel_core::fold::Illegal;
use logreel_core::row::{OpenWait, Row};
use logreel_core::{
    Blob, Body, CallId, Command, Event, Outside, Payload, Rejected, RunId, RunState, StepId, WaitId,
};
use logreel_store::{Entry, RunStore};

use crate::Error;
use crate::ctx::{Counted, Ctx, OUTER};
use crate::engine::{Engine, Inner};
use crate::error::TaskError;
use crate::journal::{NEW_WAIT, RecordError};
use crate::log::Log;
use crate::request::{Ask, Request};

impl Engine {
    /// Raises limits of a run, and of every run above it as far as they have such limits; what is added
    /// there is set aside for this run. A wait for one of these limits is over then, and whoever drives
    /// the run goes on; [`Engine::resume`] does it here.
    ///
    /// Refused when the run lacks one of the limits: there is nothing to raise.
    pub fn add_budget(&self, run: &RunId, add: Budget, by: impl Into<String>) -> Ask<Entry> {
        let (engine, run, by) = (Arc::clone(&self.0), *run, by.into());
        Ask::new(async move |request| engine.add_budget(&run, add, None, by, request).await)
    }

    /// [`Engine::add_budget`] as the answer to one wait for budget: of two who raise for it, the second raises
    /// nothing and is told that it is over.
    pub fn add_budget_for(
        &self,
        run: &RunId,
        wait: WaitId,
        add: Budget,
        by: impl Into<String>,
    ) -> Ask<Entry> {
        let (engine, run, by) = (Arc::clone(&self.0), *run, by.into());
        Ask::new(async move |request| engine.add_budget(&run, add, Some(wait), by, request).await)
    }
}

impl Inner {
    async fn add_budget(
        &self,
        run: &RunId,
        add: Budget,
        wait: Option<WaitId>,
        by: String,
        request: Request,
    ) -> Result<Entry, Error> {
        let mut chain = vec![self.store.entry(run).await?];
        while let Some(above) = chain.last().and_then(above) {
            match self.store.entry(&above).await {
                Ok(entry) => chain.push(entry),
                // A pruned parent had ended.
                Err(logreel_store::Error::NotFound(_)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        // The same for every run above: each has what it did under this name, and one that a crash left
        // out has it done by the same request again.
        let asked = ("add budget", run, &add, &by);
        let append_id = || match wait {
            None => request.append_id(self, &asked),
            Some(wait) => request.append_id(self, &(&asked, wait)),
        };
        let refused = check_raise(&chain[0].row, &add, wait);
        let above = chain.iter().enumerate().skip(1).rev();
        // From the root down: at no time may a child use what the runs above it do not allow.
        for (at, entry) in above.filter(|_| refused.is_ok()) {
            let mut add = add.clone();
            for limit in Limit::ALL {
                if entry.row.facts.budget.get(limit).is_none() {
                    *add.get_mut(limit) = None;
                }
            }
            if add.is_empty() || entry.row.status().is_terminal() {
                continue;
            }
            let id = append_id();
            let command = Outside::AddBudget {
                add,
                by: Some(by.clone()),
                child: Some(chain[at - 1].row.run),
                wait: None,
            };
            match self.command(&entry.row.run, id, command, vec![]).await {
                // It has ended meanwhile, and so will this run.
                Ok(_)
                | Err(Error::Rejected {
                    why: Rejected::Ended(_),
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
        }
        let id = append_id();
        let command = Outside::AddBudget {
            add,
            by: Some(by),
            child: None,
            wait,
        };
        // What must not be raised above it is refused here too, unless it was raised before.
        Ok(self.command(run, id, command, vec![]).await?.entry)
    }
}

/// Before anything is raised above it.
fn check_raise(row: &Row, add: &Budget, wait: Option<WaitId>) -> Result<(), Error> {
    let run = row.run;
    let rejected = |why| Err(Error::Rejected { run, why });
    if row.facts.ended.is_some() {
        return rejected(Rejected::Ended(row.status()));
    }
    if add.is_empty() {
        return rejected(Rejected::NothingToAdd);
    }
    if let Some(Err(why)) = wait.map(|wait| find_for_budget(row, wait)) {
        return rejected(why);
    }
    let lacks = |limit: &Limit| add.get(*limit).is_some() && row.facts.budget.get(*limit).is_none();
    match Limit::ALL.into_iter().find(lacks) {
        Some(limit) => rejected(Rejected::NoSuchLimit(limit)),
        None => Ok(()),
    }
}

/// The run that started this one.
fn above(entry: &Entry) -> Option<RunId> {
    let parent = entry.row.facts.parent.as_ref();
    let parent = parent.filter(|parent| parent.relation == Relation::Child);
    parent.map(|parent| parent.run)
}

impl Log<'_> {
    /// [`Log::record`] for facts that use something up: `model.called`, `tool.called`. While a limit
    /// leaves no room for them the run waits as `budget`, and they are recorded once there is: when
    /// this returns, the call may be made.
    ///
    /// Say [`Log::busy`] only afterwards: a run that waits for budget has nothing under way.
    pub async fn record_in_budget(
        &self,
        bodies: Vec<Body>,
        blobs: Vec<Blob>,
    ) -> Result<Vec<Event>, TaskError> {
        let about = bodies.iter().find_map(About::of).unwrap_or_default();
        let commands = || bodies.iter().cloned().map(Command::from).collect();
        record(self.ctx(), &about, commands, blobs).await
    }
}

/// What waits for budget: told to people, and how the wait is found again by the next driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct About {
    pub(crate) call: Option<CallId>,
    pub(crate) step: Option<StepId>,
    pub(crate) tool: Option<String>,
}

impl About {
    pub(crate) fn step(step: &StepId) -> Self {
        Self {
            step: Some(step.clone()),
            ..Self::default()
        }
    }

    fn of(body: &Body) -> Option<Self> {
        match body {
            Body::ModelCalled(called) => Some(Self {
                call: Some(called.call.clone()),
                ..Self::default()
            }),
            Body::ToolCalled(called) => Some(Self {
                call: Some(called.call.clone()),
                tool: Some(called.name.clone()),
                ..Self::default()
            }),
            Body::ChildStarted(started) => Some(Self::step(&started.step)),
            _ => None,
        }
    }

    fn waits(&self, state: &RunState) -> Vec<OpenWait> {
        let is_ours = |open: &&OpenWait| {
            let wait = &open.wait;
            wait.kind == WaitKind::Budget && wait.call == self.call && wait.step == self.step
        };
        let waits = state.row.facts.waits.iter();
        waits.filter(is_ours).cloned().collect()
    }

    fn wait(&self, over: &OverBudget) -> WaitStarted {
        WaitStarted {
            call: self.call.clone(),
            name: Some(over.limit.as_str().to_owned()),
            prompt: Some(over.to_string()),
            step: self.step.clone(),
            tool: self.tool.clone(),
            ..plain_wait(WaitKind::Budget, NEW_WAIT)
        }
    }
}

/// Records what the commands decide to, in one append, as soon as every limit leaves room for it.
pub(crate) async fn record(
    ctx: &Ctx,
    about: &About,
    commands: impl Fn() -> Vec<Command>,
    blobs: Vec<Blob>,
) -> Result<Vec<Event>, TaskError> {
    let journal = &ctx.0.journal;
    loop {
        ctx.log().may_begin().await?;
        // There is room again: what waited for it waits no more.
        let mut all: Vec<Command> = journal.with_state(|state| ends(&about.waits(state)));
        let ended = all.len();
        all.extend(commands());
        let recorded = {
            let _busy = Counted::new(&ctx.0.activity.busy);
            journal.record(all, blobs.clone()).await
        };
        match recorded {
            Ok(mut events) => return Ok(events.split_off(ended.min(events.len()))),
            Err(RecordError::Rejected(Rejected::OverBudget(over))) => {
                let room = |row: &Row| row.check_limits(&[over.limit]);
                until_room(ctx, about, &over, room).await?;
            }
            // Someone outside ended it in the same moment.
            Err(RecordError::Rejected(Rejected::Illegal(Illegal::WaitNotOpen(_)))) if ended > 0 => {
            }
            Err(error) => return Err(ctx.0.refused(error).await),
        }
    }
}

/// Waits until there is time left to begin a step in. One inside another that has begun may go on.
pub(crate) async fn before_step(ctx: &Ctx, step: &StepId) -> Result<(), TaskError> {
    if OUTER.try_with(|_| ()).is_ok() {
        return Ok(());
    }
    let journal = &ctx.0.journal;
    if journal.with_state(|state| state.row.facts.budget.is_empty()) {
        return Ok(());
    }
    let room = |row: &Row| row.check_wall(journal.env.now());
    Box::pin(until_all(ctx, &About::step(step), &[Limit::Wall], room)).await
}

/// Waits until there is something left for an agent to think with. It may start with nothing, but then
/// it would wait itself, and more given to it would be for it alone.
pub(crate) async fn before_agent(ctx: &Ctx, step: &StepId) -> Result<(), TaskError> {
    let limits = [Limit::Tokens, Limit::Usd];
    let room = |row: &Row| row.check_limits(&limits);
    until_all(ctx, &About::step(step), &limits, room).await
}

/// Waits until there is something left for a program that is only watched: what it does has happened by
/// the time it is told, so nothing can make it wait half-way.
pub(crate) async fn before_stream(ctx: &Ctx, step: &StepId) -> Result<(), TaskError> {
    let limits = [Limit::Tokens, Limit::Usd, Limit::ToolCalls];
    let room = |row: &Row| row.check_limits(&limits);
    until_all(ctx, &About::step(step), &limits, room).await
}

/// Waits until these limits leave room, and ends the waits for them that an earlier driver began.
async fn until_all(
    ctx: &Ctx,
    about: &About,
    limits: &[Limit],
    room: impl Fn(&Row) -> Result<(), OverBudget>,
) -> Result<(), TaskError> {
    let journal = &ctx.0.journal;
    while let Err(over) = journal.with_state(|state| room(&state.row)) {
        until_room(ctx, about, &over, &room).await?;
    }
    let left = journal.with_state(|state| {
        if state.row.facts.budget.is_empty() {
            return Vec::new();
        }
        let mut waits = about.waits(state);
        waits.retain(|open| limits.iter().any(|limit| is_for(open, *limit)));
        ends(&waits)
    });
    if left.is_empty() {
        return Ok(());
    }
    match journal.record(left, Vec::new()).await {
        Ok(_) | Err(RecordError::Rejected(Rejected::Illegal(Illegal::WaitNotOpen(_)))) => Ok(()),
        Err(error) => Err(ctx.0.refused(error).await),
    }
}

/// Records that the run waits for this limit, unless the log has it, and waits until it is raised or a
/// child returned some of it.
///
/// `room` is what refused: when it would let pass what another look refuses again, this would not wait.
async fn until_room(
    ctx: &Ctx,
    about: &About,
    over: &OverBudget,
    room: impl Fn(&Row) -> Result<(), OverBudget>,
) -> Result<(), TaskError> {
    let journal = &ctx.0.journal;
    let is_for_it = |open: &OpenWait| is_for(open, over.limit);
    let waits = journal.with_state(|state| about.waits(state));
    if !waits.iter().any(is_for_it) {
        // It waited for another limit before.
        let mut commands = ends(&waits);
        commands.push(Body::from(about.wait(over)).into());
        match journal.record(commands, Vec::new()).await {
            Ok(_) => {}
            Err(RecordError::Rejected(Rejected::Illegal(Illegal::WaitNotOpen(_)))) => return Ok(()),
            Err(error) => return Err(ctx.0.refused(error).await),
        }
    }
    let holds = || {
        journal.with_state(|state| {
            let waits = about.waits(state);
            !waits.iter().any(is_for_it) || room(&state.row).is_ok()
        })
    };
    crate::wait::idle_until(ctx, holds).await
}

fn is_for(open: &OpenWait, limit: Limit) -> bool {
    open.wait.name.as_deref() == Some(limit.as_str())
}

/// What ends these waits: nobody raised anything, but there is room.
fn ends(waits: &[OpenWait]) -> Vec<Command> {
    let ended = waits.iter().map(|open| WaitEnded {
        approved: None,
        by: None,
        outcome: WaitOutcome::Finished,
        reason: None,
        step: open.wait.step.clone(),
        value: Payload::null(),
        wait: open.wait.wait,
    });
    ended.map(|ended| Body::from(ended).into()).collect()
}

/// A child about to start. Those that start in the same turn share what is left of the limits, so each
/// has to know of the others.
pub(crate) struct Starting<'c> {
    ctx: &'c Ctx,
    counted: AtomicBool,
}

impl<'c> Starting<'c> {
    /// Lets everyone who starts a child in this turn say so first.
    pub(crate) async fn new(ctx: &'c Ctx) -> Self {
        let journal = &ctx.0.journal;
        let limited = journal.with_state(|state| !state.row.facts.budget.is_empty());
        let counted = AtomicBool::new(limited);
        let starting = Self { ctx, counted };
        if limited {
            ctx.0.activity.starting.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
        starting
    }

    /// How many are left that start in this turn, this one among them. The next is one of fewer.
    pub(crate) fn together(&self) -> u64 {
        match self.counted.swap(false, Ordering::SeqCst) {
            true => self.ctx.0.activity.starting.fetch_sub(1, Ordering::SeqCst) as u64,
            false => 1,
        }
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.together();
    }
}

/// What was moved to a child that has not ended.
pub(crate) fn moved_to(row: &Row, child: &RunId) -> Budget {
    let loan = row.facts.loans.iter().find(|loan| loan.child == *child);
    loan.map(|loan| loan.moved.clone()).unwrap_or_default()
}

/// What a run that has ended used, with everyone below it. Its log does not know what became of
/// children that it left behind; theirs do. One that may still be at work may use all it got. The error is
/// that of a store that cannot be reached: what it would have said is not guessed.
pub(crate) async fn used_by(store: &dyn RunStore, row: &Row) -> Result<Used, Error> {
    // What was open at the end may still cost what was reserved.
    let mut used = row.used().plus(row.reserved());
    for loan in &row.facts.loans {
        let child = match store.entry(&loan.child).await {
            Ok(entry) => {
                let below = Box::pin(used_by(store, &entry.row)).await?;
                match entry.row.status().is_terminal() && !entry.is_driven() {
                    true => below,
                    false => below.max(loan.moved.amount()),
                }
            }
            // It was announced and never came to be, and cannot any more.
            Err(logreel_store::Error::NotFound(_)) => Used::default(),
            Err(error @ logreel_store::Error::Unavailable { .. }) => return Err(error.into()),
            Err(error) => {
                let child = loan.child;
                tracing::warn!(%child, %error, "what it used is not known; all it got counts");
                loan.moved.amount()
            }
        };
        let chain = (loan.driven_us / 1000).saturating_add(child.wall_ms);
        let wall_ms = used.wall_ms.max(chain);
        used = Used {
            wall_ms,
            ..used.plus(child)
        };
    }
    Ok(used)
}
