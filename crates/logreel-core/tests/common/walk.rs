//! Random walks: legal logs of every shape, made of what `decide` accepts.

use logreel_core::event::*;
use logreel_core::state::{CallState, Doing, Map, OpenStep};
use logreel_core::*;
use proptest::prelude::*;
use serde_json::json;

use super::common::*;

/// What a walk wants next: which command, three numbers to fill it with, and how the clock jumps.
pub type Wish = (u8, u8, u8, i8);

/// A legal log. Every append was decided, sealed and folded; what was refused left no trace.
pub fn legal_log(wishes_max: usize) -> impl Strategy<Value = Log> {
    let wishes = prop::collection::vec(any::<Wish>(), 0..wishes_max);
    (any::<bool>(), wishes).prop_map(|(driven, wishes)| {
        let begun = RunStarted {
            budget: budget(wishes.len() as u8),
            ..started()
        };
        let mut log = Log::of(begun, Epoch(u64::from(driven)));
        for group in wishes.chunks(3) {
            walk(&mut log, group);
        }
        log
    })
}

/// One append of up to three facts, or three appends.
fn walk(log: &mut Log, group: &[Wish]) {
    let jump = |log: &mut Log, seconds: i8| {
        log.now = Timestamp::from_micros(log.now.as_micros() + i64::from(seconds) * 1_000_000);
    };
    if group[0].2.is_multiple_of(2) {
        jump(log, group[0].3);
        let base = log.clone();
        let mut batch = Batch::new(&base.state, &base.results, base.epoch);
        // A batch does not know at what time its append will land.
        let mut whole = base.clone();
        whole.now = base.state.row.updated_at;
        for wish in group.iter().filter(|wish| wish.0 < FACTS) {
            let body = fact(&base, batch.next_wait(), *wish);
            if let Body::StepFinished(StepFinished { step, .. }) = &body {
                assert_eq!(batch.is_running(step), is_running(log, step));
            }
            let decided = batch.decide(body.clone().into());
            push_decided(&mut whole, &body, &decided);
            if let Ok(draft) = decided {
                log.push(draft).expect("what a batch decides, fold accepts");
            }
        }
        return;
    }
    for wish in group {
        jump(log, wish.3);
        single(log, *wish);
    }
}

/// A batch, which copies only what is spoken of, decides what the whole state of the log so far would.
fn push_decided(log: &mut Log, body: &Body, decided: &Result<Draft, Rejected>) {
    let alone = decide(&log.state, &log.results, log.epoch, body.clone().into());
    match decided {
        Ok(draft) => {
            assert_eq!(&alone, decided);
            log.push(draft.clone())
                .expect("what a batch decides, fold accepts");
        }
        // Whether these fit may depend on facts before them in the same append, so `decide`
        // leaves it to the batch.
        Err(_) if depends_on_batch(body) => {}
        Err(_) => assert_eq!(&alone, decided),
    }
}

fn is_running(log: &Log, step: &StepId) -> bool {
    let open = log.state.open_step(step);
    open.is_some_and(|open| open.doing == Doing::Running && open.epoch == log.epoch)
}

const FACTS: u8 = 215;

fn single(log: &mut Log, wish: Wish) {
    let (choice, a, b, _) = wish;
    let ended = log.status().is_terminal();
    match choice {
        0..FACTS => {
            let body = fact(log, log.next_wait(), wish);
            let batch = Batch::new(&log.state, &log.results, log.epoch).decide(body.clone().into());
            push_decided(log, &body, &batch);
        }
        FACTS..=234 => {
            let _answer: Result<(), Rejected> = log.outside(outside(log, a, b));
        }
        235..=246 if !ended => {
            let reason = if a % 3 == 0 {
                ClaimReason::Ready
            } else {
                ClaimReason::Orphaned
            };
            log.claim(reason);
        }
        // What an external driver reports after the end is kept, whatever it is.
        235..=246 => {
            let body = fact(log, log.next_wait(), (a, b, a, 0));
            if !matches!(body, Body::Unknown(_)) {
                log.push(Draft {
                    late: true,
                    ..Draft::new(body)
                })
                .expect("a late fact");
            }
        }
        // At the head, or further back: also before the end of a log that has ended.
        247..=249 => {
            let back = if ended { 1 + a % 8 } else { a % 3 };
            let at = log.head().seq.0.saturating_sub(u64::from(back)).max(1);
            let state = replay(log.run, &log.events()[..at as usize]);
            let state = state.expect("a log folds").expect("it has event 1");
            let finished =
                |id: &StepId| matches!(state.steps.get(id), Some(StepState::Finished { .. }));
            let forgotten = (0..4).map(step);
            let forgotten = forgotten.filter(|id| b % 2 == 0 && finished(id)).take(1);
            let forgotten: Vec<StepId> = forgotten.collect();
            let given = forgotten.first().cloned().filter(|_| a % 2 == 0);
            let mut calls: Vec<CallId> = state.tools.keys().cloned().collect();
            calls.sort();
            calls.truncate(usize::from(b % 4 == 0));
            let named = given.iter().map(|step| Change::Result(step.to_string()));
            let fork = Fork {
                input: (b % 3 == 0).then(|| payload(json!(a))),
                budget: budget(a),
                forgotten,
                forgotten_calls: calls.clone(),
                changes: named.collect(),
                made: (b % 7 == 0).then(Made::default),
                ..Fork::of(
                    log.run,
                    [Relation::Fork, Relation::Retry][usize::from(b % 2)],
                )
            };
            match log.fork(Seq(at), fork, b % 5 > 0) {
                Ok(()) => {
                    // Other outcomes than the parent's follow at once.
                    let mut then: Vec<Draft> = Vec::new();
                    if let Some(step) = given {
                        let given = short("given", json!(a));
                        then.push(Draft::new(StepFinished { step, ..given }));
                    }
                    for call in calls {
                        then.push(Draft::new(called(call.as_str(), Effect::Read)));
                        then.push(Draft::new(returned(call.as_str())));
                    }
                    for draft in then {
                        log.push(draft)
                            .expect("what is forgotten may have another outcome");
                    }
                }
                Err(why) => assert_eq!(why, Rejected::Ended(state.row.status())),
            }
        }
        250 => {}
        251..=252 => {
            log.complete(json!({ "a": a % 3 }));
        }
        253..=254 => {
            log.fail("error");
        }
        255 => {
            let _answer: Result<(), Rejected> = log.outside(Outside::Cancel { reason: None });
        }
    }
}

fn depends_on_batch(body: &Body) -> bool {
    matches!(
        body,
        Body::WaitStarted(_)
            | Body::WaitEnded(_)
            | Body::SignalReceived(_)
            | Body::StepResolved(_)
            | Body::ToolResolved(_)
    )
}

fn outside(log: &Log, a: u8, b: u8) -> Outside {
    let by = Some("ann".to_owned());
    let value = payload(json!(b));
    match a % 8 {
        0 => Outside::Pause { reason: None },
        1 | 2 => Outside::Resume { by },
        3 => Outside::Answer {
            wait: b.is_multiple_of(2).then(|| some_wait(log, b)),
            approved: (!b.is_multiple_of(5)).then_some(true),
            value,
            reason: None,
            by,
        },
        4 => Outside::Signal {
            name: signal(b),
            value,
        },
        5 => Outside::Say {
            text: "hurry".into(),
            by,
        },
        6 => {
            let doubts = &log.state.row.facts.in_doubt;
            let call = match doubts.get(usize::from(b) % doubts.len().max(1)) {
                Some(row::Doubt::Call(call)) => call.to_string(),
                Some(row::Doubt::Step(step)) => step.canonical().into_owned(),
                None => "nothing".to_owned(),
            };
            Outside::Resolve {
                call,
                resolution: resolution(b),
                by: "ann".into(),
            }
        }
        _ => Outside::AddBudget {
            add: Budget {
                tokens: Some(5),
                ..Budget::default()
            },
            by,
            child: b.is_multiple_of(2).then(|| child(b % 2)),
            wait: None,
        },
    }
}

/// Limits that a walk comes near to, some of them at a time.
fn budget(n: u8) -> Budget {
    let some = |bit: u8, limit| (n & bit > 0).then_some(limit);
    Budget {
        children: some(1, 3),
        tokens: some(2, 1000),
        tool_calls: some(4, 5),
        usd_micros: some(8, 2000),
        wall_ms: some(16, 100_000),
    }
}

/// Plain, keyed, and inside another.
pub fn step(n: u8) -> StepId {
    let inner = StepId::from_parts(["read", "a/b"]).unwrap();
    match n % 4 {
        0 => step_id("fetch"),
        1 => inner,
        2 => inner.inside(&step_id("fetch")),
        _ => step_id("pay"),
    }
}

fn call(n: u8) -> CallId {
    call_id(["c1", "c2", "c3"][usize::from(n % 3)])
}

fn signal(n: u8) -> String {
    ["go", "stop"][usize::from(n % 2)].to_owned()
}

fn some_wait(log: &Log, n: u8) -> WaitId {
    let waits = &log.state.row.facts.waits;
    match waits.get(usize::from(n) % waits.len().max(1)) {
        Some(open) if !n.is_multiple_of(7) => open.wait.wait,
        _ => WaitId(u32::from(n % 5)),
    }
}

fn effect(n: u8) -> Effect {
    [Effect::Read, Effect::Idempotent, Effect::Write][usize::from(n % 3)]
}

fn resolution(n: u8) -> Resolution {
    match n % 3 {
        0 => Resolution::Returned(payload(json!(n))),
        1 => Resolution::Failed("no".into()),
        _ => Resolution::Retry,
    }
}

/// Mostly a fact that fits, sometimes one that does not.
fn fact(log: &Log, next_wait: WaitId, (choice, a, b, _): Wish) -> Body {
    let state = &log.state;
    let fits = b % 9 > 0;
    let output = payload(json!({ "value": b % 4 }));
    let node = Digest::of(&[a]);
    // A step or call of which the fact may be true, when there is one.
    let step_that = |is: fn(&OpenStep, Epoch) -> bool| {
        let fitting = |n: &u8| {
            state
                .open_step(&step(*n))
                .is_some_and(|open| is(open, log.epoch))
        };
        step((a..a.saturating_add(4)).find(fitting).unwrap_or(a))
    };
    let call_that = |calls: &Map<CallId, CallState>, is: fn(&CallState) -> bool| {
        let fitting = |n: &u8| calls.get(&call(*n)).is_some_and(is);
        call((a..a.saturating_add(3)).find(fitting).unwrap_or(a))
    };
    let runs = |open: &OpenStep, epoch| open.doing == Doing::Running && open.epoch == epoch;
    let is_open = |call: &CallState| matches!(call, CallState::Open { .. });
    let attempt = |step: &StepId| state.open_step(step).map_or(1, |open| open.attempt + 1);
    let started_at = |step: &StepId| {
        let announced = state
            .open_step(step)
            .is_some_and(|open| runs(open, log.epoch));
        (announced != fits).then(|| time(-5))
    };
    match choice % 40 {
        0..=4 => {
            let (step, key) = (step(a), None);
            let (attempt, effect) = (attempt(&step), effect(b));
            StepStarted {
                attempt,
                effect,
                input_digest: None,
                key,
                step,
            }
            .into()
        }
        5..=8 => {
            let step = step(a);
            let running = state.open_step(&step).filter(|open| runs(open, log.epoch));
            let unannounced = if fits { Effect::Read } else { effect(b) };
            let effect = running.map_or(unannounced, |open| open.effect);
            let (attempt, started_at) = (attempt(&step), started_at(&step));
            StepFinished {
                attempt,
                effect,
                input_digest: None,
                output,
                started_at,
                step,
            }
            .into()
        }
        9 | 10 => {
            let step = step(a);
            let (attempt, started_at) = (attempt(&step), started_at(&step));
            StepFailed {
                attempt,
                error: cause("error"),
                started_at,
                step,
            }
            .into()
        }
        11 => {
            let step = step_that(|open, _| matches!(open.doing, Doing::Failed(_)));
            StepRetrying {
                attempt: 2,
                delay_ms: 5,
                step,
            }
            .into()
        }
        12 => StepSkipped {
            reason: "not needed".into(),
            step: step(a),
        }
        .into(),
        13 | 14 => {
            let step =
                step_that(|open, _| open.doing == Doing::Running && open.effect == Effect::Write);
            let epoch = state.open_step(&step).map_or(log.epoch, |open| open.epoch);
            StepInDoubt {
                epoch,
                key: None,
                reason: "lost".into(),
                step,
            }
            .into()
        }
        15 | 16 => {
            let step = step_that(|open, _| open.doing == Doing::InDoubt);
            StepResolved {
                by: "reconcile".into(),
                resolution: resolution(b),
                step,
            }
            .into()
        }
        17 | 18 => ModelCalled {
            call: call(a),
            ..asked("m")
        }
        .into(),
        19 | 20 => {
            let call = call_that(&state.models, is_open);
            ModelAnswered {
                call,
                ..answered("m", u64::from(b))
            }
            .into()
        }
        21 => {
            let call = call_that(&state.models, is_open);
            let spent = Spend {
                usd_micros: None,
                ..spend(u64::MAX)
            };
            ModelFailed {
                call,
                error: cause("error"),
                spent,
                redacted: 0,
                retry_after_ms: None,
            }
            .into()
        }
        22 | 23 => ToolCalled {
            call: call(a),
            ..called("t", effect(b))
        }
        .into(),
        24 => ToolReturned {
            call: call_that(&state.tools, is_open),
            output,
            redacted: 0,
        }
        .into(),
        25 => {
            let kind = if fits { "error" } else { "denied" };
            ToolFailed {
                call: call_that(&state.tools, is_open),
                error: cause(kind),
                redacted: 0,
            }
            .into()
        }
        26 => ToolInDoubt {
            call: call_that(&state.tools, is_open),
            reason: "lost".into(),
        }
        .into(),
        27 => {
            let call = call_that(&state.tools, |call| {
                matches!(call, CallState::InDoubt { .. })
            });
            ToolResolved {
                by: "ann".into(),
                call,
                resolution: resolution(b),
            }
            .into()
        }
        28 | 29 => {
            let path = ["", "/a", "/b", "/a/c"][usize::from(a % 4)];
            let op = ["add", "replace", "remove"][usize::from(b % 3)];
            let value = if path.is_empty() { json!({}) } else { json!(b) };
            patched(json!([{ "op": op, "path": path, "value": value }])).into()
        }
        30..=32 => {
            let kinds = [
                WaitKind::Approval,
                WaitKind::Signal,
                WaitKind::Timer,
                WaitKind::Retry,
                WaitKind::Child,
                WaitKind::InDoubt,
                WaitKind::Budget,
            ];
            let deadline = log.now + std::time::Duration::from_secs(30);
            WaitStarted {
                deadline: (a % 2 == 0).then_some(deadline),
                name: Some(signal(b)),
                step: (a % 3 > 0).then(|| step(a)),
                suspends: a % 5 == 0,
                wait: if fits {
                    next_wait
                } else {
                    WaitId(u32::from(b))
                },
                ..waiting(kinds[usize::from(b) % kinds.len()])
            }
            .into()
        }
        33 => {
            let outcomes = [
                WaitOutcome::Answered,
                WaitOutcome::Signalled,
                WaitOutcome::TimedOut,
            ];
            let ended = wait_ended(0, outcomes[usize::from(b % 3)]);
            WaitEnded {
                wait: some_wait(log, a),
                ..ended
            }
            .into()
        }
        34 => {
            let wait = (a % 2 == 0).then(|| some_wait(log, b));
            SignalReceived {
                name: signal(b),
                value: output,
                wait,
            }
            .into()
        }
        35 => ChildStarted {
            budget: Budget {
                tool_calls: (b % 3 == 0).then_some(2),
                ..Budget::default()
            },
            child: child(a % 2),
            detached: false,
            step: step(a),
        }
        .into(),
        36 => ChildFinished {
            child: child(a % 2),
            final_state_digest: node,
            status: TerminalStatus::Failed,
            step: step(a),
            used: (b % 3 > 0).then(|| Used {
                tokens: u64::from(b),
                wall_ms: u64::from(a),
                ..Used::default()
            }),
        }
        .into(),
        _ => remark(log, a, b),
    }
}

/// A fact that contradicts nothing, or one that is rare.
fn remark(log: &Log, a: u8, b: u8) -> Body {
    let output = payload(json!({ "value": b % 4 }));
    let node = Digest::of(&[b]);
    let previous = log.state.row.pulse.context;
    match a % 18 {
        0 => phase(Phase::Planning).into(),
        1 => phase(Phase::Executing).into(),
        2 => phase(Phase::Verifying).into(),
        3 => PlanMade { plan: output }.into(),
        4 => Turn { turn: u32::from(b) }.into(),
        5 => TurnFinished { turn: u32::from(b) }.into(),
        6 => MessageAdded {
            length: 3,
            node,
            previous,
            role: "user".into(),
            queued: None,
            redacted: 0,
        }
        .into(),
        7 => MessageQueued {
            by: None,
            text: "hurry".into(),
        }
        .into(),
        8 => ContextCompacted { node, previous }.into(),
        9 => Checkpoint {
            checkpoint: "k".into(),
            data: output,
            step: Some(step(b)),
        }
        .into(),
        10 => CheckpointRestored {
            checkpoint: "k".into(),
        }
        .into(),
        11 => CheckpointDeleted {
            checkpoint: "k".into(),
        }
        .into(),
        12 => BudgetChanged {
            budget: budget(b),
            by: None,
            child: b.is_multiple_of(2).then(|| child(b % 2)),
        }
        .into(),
        13 => SpecChanged {
            spec: output,
            spec_digest: node,
            spec_file: None,
        }
        .into(),
        14 => Verification::of(vec![checked(Verdict::Skipped, b.is_multiple_of(2))]).into(),
        15 => OutputWritten {
            base64: None,
            redacted: 0,
            step: Some(step(b)),
            stream: "stdout".into(),
            text: Some("x".into()),
        }
        .into(),
        16 => match b % 8 {
            0 => RunCancelled {
                final_state_digest: node,
                reason: None,
            }
            .into(),
            1 | 2 => RunResumed {
                owner: "me".into(),
                reason: ClaimReason::Orphaned,
            }
            .into(),
            3 | 4 => Body::Unknown(Unknown {
                kind: "run.teleported".into(),
                raw: Json::null(),
            }),
            _ => started().into(),
        },
        _ => Custom {
            data: output,
            name: "tick".into(),
        }
        .into(),
    }
}

/// What the row counts, counted again from the state.
pub fn recount(state: &RunState) -> (usize, usize, usize, usize) {
    let epoch = state.row.epoch;
    let here = |at: &Epoch| *at == epoch;
    let running = state.steps.values().filter(
        |step| matches!(step, StepState::Open(open) if open.doing == Doing::Running && here(&open.epoch)),
    );
    let models = state
        .models
        .values()
        .filter(|call| matches!(call, CallState::Open { epoch, .. } if here(epoch)));
    let tools = state
        .tools
        .values()
        .filter(|call| matches!(call, CallState::Open { .. }));
    let doubts = state
        .tools
        .values()
        .filter(|call| matches!(call, CallState::InDoubt { .. }))
        .count()
        + state
            .steps
            .values()
            .filter(|step| matches!(step, StepState::Open(open) if open.doing == Doing::InDoubt))
            .count();
    (running.count(), models.count(), tools.count(), doubts)
}
