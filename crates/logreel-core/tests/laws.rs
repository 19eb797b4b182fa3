//! The laws of SEMANTICS.md that concern a log, on random walks through every command.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

mod common;
#[path = "common/walk.rs"]
mod walk;

use std::collections::HashMap;

use common::*;
use logreel_core::codec::StoredBody;
use logreel_core::event::*;
use logreel_core::fold::Illegal;
use logreel_core::meaning::ResultSet;
use logreel_core::*;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use serde_json::{Value, json};
use walk::{legal_log, recount};

const WISHES: usize = 90;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(192))]

    /// The walk itself panics when something decided is refused; it also must get somewhere.
    #[test]
    fn decide_never_emits_what_fold_refuses(log in legal_log(2 * WISHES)) {
        prop_assert!(!log.sealed.is_empty());
    }

    #[test]
    fn one_fold(log in legal_log(WISHES)) {
        let events = log.events();
        let decoded: Vec<Event> =
            log.records().iter().map(|record| record.decode().unwrap()).collect();
        prop_assert_eq!(&decoded, &events);
        let whole = replay(log.run, &decoded).unwrap().unwrap();
        prop_assert_eq!(&whole, &log.state);
        let mut snapshot = RunState::begin(log.run, &events[0]).unwrap();
        for k in 1..events.len() {
            let resumed = events[k..].iter().try_fold(snapshot.clone(), fold).unwrap();
            prop_assert_eq!(&resumed, &whole, "from a snapshot at {}", k);
            snapshot = fold(snapshot, &events[k]).unwrap();
        }
    }

    /// The row is folded by stores without the state, and both must come to the same.
    #[test]
    fn the_row_is_the_fold(log in legal_log(WISHES)) {
        prop_assert_eq!(&log.row, &log.state.row);
        let mut state = RunState::begin(log.run, &log.sealed[0].event).unwrap();
        let mut row = Row::start(log.run, &log.sealed[0].event).unwrap();
        let mut tally = Tally::default();
        for sealed in &log.sealed[1..] {
            tally.add(&sealed.event);
            state.apply(&sealed.event).unwrap();
            row.apply(&sealed.event).unwrap();
            prop_assert_eq!(&row, &state.row);
            prop_assert_eq!(row.head.seq.0, sealed.event.seq.0, "event_count is the log's length");
            if row.facts.ended.is_none() {
                let pulse = &row.pulse;
                let (running, models) = (pulse.running as usize, pulse.models_open as usize);
                let counted = (running, models, pulse.active_tools.len(), row.facts.in_doubt.len());
                prop_assert_eq!(counted, recount(&state), "after event {}", sealed.event.seq);
            }
        }
        prop_assert_eq!(row.head.seq.0, log.sealed.len() as u64);
        prop_assert_eq!(tally.sum(), log.results, "and so is the sum of results");
        prop_assert_eq!(sum(&log.sealed), log.results);
        let stored: row::Facts =
            serde_json::from_str(&serde_json::to_string(&*row.facts).unwrap()).unwrap();
        let pulse: row::Pulse =
            serde_json::from_str(&serde_json::to_string(&row.pulse).unwrap()).unwrap();
        prop_assert_eq!((&stored, &pulse), (&*row.facts, &row.pulse), "a stored row reads back");
    }

    #[test]
    fn terminal_absorbs_and_usage_never_falls(log in legal_log(2 * WISHES)) {
        let mut state = RunState::begin(log.run, &log.sealed[0].event).unwrap();
        for sealed in &log.sealed[1..] {
            let before = state.clone();
            state.apply(&sealed.event).unwrap();
            let (old, new) = (&before.row.pulse.usage, &state.row.pulse.usage);
            prop_assert!(new.spent.input_tokens >= old.spent.input_tokens);
            prop_assert!(new.spent.usd_micros >= old.spent.usd_micros);
            prop_assert!(new.model_calls >= old.model_calls && new.tool_calls >= old.tool_calls);
            if !matches!(sealed.event.body, Body::RunForked(_)) {
                let (old, new) = (before.row.used(), state.row.used());
                for limit in Limit::ALL {
                    prop_assert!(new.get(limit) >= old.get(limit), "{} of the budget", limit);
                }
                let passed = sealed.event.at.since(before.row.updated_at);
                let driven = u128::from(state.row.pulse.driven.us - before.row.pulse.driven.us);
                // Only a child's end makes it more than what the clock says.
                let is_child = matches!(sealed.event.body, Body::ChildFinished(_));
                let from = before.row.pulse.driven.from;
                let uncounted = from.map_or(passed, |from| sealed.event.at.since(from));
                prop_assert!(is_child || driven <= uncounted.as_micros());
            }
            if before.row.facts.ended.is_some() {
                prop_assert!(sealed.event.late);
                prop_assert_eq!(&state.row.facts, &before.row.facts);
                let mut same = before.clone();
                same.row.head = state.row.head;
                same.row.updated_at = state.row.updated_at;
                same.row.epoch = state.row.epoch;
                same.row.pulse.usage = new.clone();
                same.row.pulse.reserved = state.row.pulse.reserved.clone();
                same.row.pulse.beside = state.row.pulse.beside;
                prop_assert_eq!(&same, &state, "only head and usage move");
            } else {
                prop_assert!(!sealed.event.late);
            }
        }
    }

    #[test]
    fn nothing_starts_after_the_end(mut log in legal_log(WISHES)) {
        if !log.status().is_terminal() {
            log.cancel();
        }
        let starts: Vec<Body> = vec![
            started().into(),
            phase(Phase::Executing).into(),
            begun("new", Effect::Read).into(),
            retrying("new").into(),
            Turn { turn: 9 }.into(),
            asked("new").into(),
            called("new", Effect::Read).into(),
            WaitStarted { wait: log.next_wait(), ..waiting(WaitKind::Timer) }.into(),
            ChildStarted {
                budget: Budget::default(),
                child: child(9),
                detached: true,
                step: step_id("new"),
            }
            .into(),
        ];
        for body in starts {
            let kind = body.kind().to_owned();
            let decided = decide(&log.state, &log.results, log.epoch, body.into());
            prop_assert_eq!(decided, Err(Rejected::Ended(log.status())), "{}", kind);
        }
        let length = log.sealed.len();
        for command in [
            Outside::Pause { reason: None },
            Outside::Resume { by: None },
            Outside::Say { text: "x".into(), by: None },
            Outside::Signal { name: "go".into(), value: Payload::null() },
        ] {
            prop_assert_eq!(log.outside(command), Err(Rejected::Ended(log.status())));
        }
        prop_assert_eq!(log.sealed.len(), length);
    }

    #[test]
    fn a_step_has_one_result(log in legal_log(2 * WISHES)) {
        let mut results: HashMap<StepId, Seq> = HashMap::new();
        for Event { seq, late, body, .. } in log.events() {
            let step = match body {
                Body::StepFinished(finished) if !late => finished.step,
                Body::StepResolved(StepResolved {
                    step, resolution: Resolution::Returned(_), ..
                }) if !late => step,
                Body::RunForked(forked) if !late => {
                    results.retain(|step, _| !forked.forgotten.contains(step));
                    continue;
                }
                _ => continue,
            };
            let first = results.insert(step.clone(), seq);
            prop_assert_eq!(first, None, "{} has a second result at {}", step, seq);
        }
        for (step, seq) in results {
            let kept = log.state.steps.get(&step);
            let is_there = matches!(kept, Some(StepState::Finished { seq: at, .. }) if *at == seq);
            prop_assert!(is_there, "the result of {} is lost: {:?}", step, kept);
        }
    }

    /// A write is announced before its result, and never begins again while nobody knows.
    #[test]
    fn a_write_is_never_repeated_blind(log in legal_log(2 * WISHES)) {
        let mut open: HashMap<String, bool> = HashMap::new();
        for Event { late, body, .. } in log.events() {
            if late {
                break;
            }
            match body {
                Body::StepStarted(started) if started.effect == Effect::Write => {
                    let unsettled = open.insert(started.step.canonical().into(), true);
                    prop_assert_ne!(unsettled, Some(true), "{} begins again", started.step);
                }
                Body::StepFinished(finished) => {
                    let announced = open.insert(finished.step.canonical().into(), false);
                    if finished.effect == Effect::Write {
                        prop_assert_eq!(announced, Some(true), "{}", finished.step);
                    }
                }
                Body::StepFailed(failed) => {
                    open.insert(failed.step.canonical().into(), false);
                }
                Body::StepResolved(resolved) => {
                    open.insert(resolved.step.canonical().into(), false);
                }
                // Suspended by the driver that runs it, which knows that it stopped.
                Body::WaitStarted(WaitStarted { suspends: true, step: Some(step), .. }) => {
                    open.insert(step.canonical().into(), false);
                }
                Body::ToolCalled(called) if called.effect == Effect::Write => {
                    let unsettled = open.insert(called.call.to_string(), true);
                    prop_assert_ne!(unsettled, Some(true), "{} begins again", called.call);
                }
                Body::ToolReturned(ToolReturned { call, .. })
                | Body::ToolFailed(ToolFailed { call, .. })
                | Body::ToolResolved(ToolResolved { call, .. }) => {
                    open.insert(call.to_string(), false);
                }
                Body::RunForked(_) => open.clear(),
                _ => {}
            }
        }
    }

    #[test]
    fn times_and_epochs_never_decrease_whatever_the_clock_does(log in legal_log(WISHES)) {
        for pair in log.sealed.windows(2) {
            prop_assert!(pair[0].event.at <= pair[1].event.at);
            // A fork's drivers are counted anew.
            let is_fork = matches!(pair[1].event.body, Body::RunForked(_));
            prop_assert!(is_fork || pair[0].event.epoch <= pair[1].event.epoch);
            prop_assert_eq!(pair[0].event.seq.next(), pair[1].event.seq);
        }
    }

    #[test]
    fn fold_refuses_what_cannot_follow_and_changes_nothing(
        log in legal_log(WISHES),
        at in any::<Index>(),
    ) {
        let events = log.events();
        let k = at.index(events.len());
        let state = replay(log.run, &events[..=k]).unwrap().unwrap();
        let next = Event {
            seq: state.row.head.seq.next(),
            at: state.row.updated_at,
            caller_at: None,
            epoch: state.row.epoch,
            late: state.row.facts.ended.is_some(),
            digest: Digest::of(b"next"),
            body: custom("tick").into(),
        };
        let expected = next.seq;
        let refused = |event: Event| {
            let mut after = state.clone();
            let why = after.apply(&event).map_err(|illegal| illegal.why);
            prop_assert_eq!(&after, &state, "a refused event changes nothing");
            let mut row = state.row.clone();
            prop_assert_eq!(row.apply(&event).map_err(|illegal| illegal.why), why.clone());
            prop_assert_eq!(&row, &state.row);
            Ok(why.unwrap_err())
        };
        let back = |time: Timestamp| time - std::time::Duration::from_micros(1);
        let newer = Unknown { kind: "run.teleported".into(), raw: Json::null() };
        let mark = if next.late { Illegal::AfterEnd } else { Illegal::LateBeforeEnd };
        let out_of_order = Illegal::OutOfOrder { expected };
        let duplicate = events[k].clone();
        let gap = Event { seq: expected.next(), ..next.clone() };
        prop_assert_eq!(refused(duplicate)?, out_of_order.clone());
        prop_assert_eq!(refused(gap)?, out_of_order.clone());
        prop_assert_eq!(refused(Event { seq: Seq::FIRST, ..next.clone() })?, out_of_order);
        prop_assert_eq!(refused(Event { at: back(next.at), ..next.clone() })?, Illegal::TimeWentBack);
        prop_assert_eq!(refused(Event { late: !next.late, ..next.clone() })?, mark);
        prop_assert_eq!(
            refused(Event { body: Body::Unknown(newer), ..next.clone() })?,
            Illegal::UnknownKind
        );
        if let Some(stale) = next.epoch.0.checked_sub(1) {
            let current = next.epoch;
            prop_assert_eq!(
                refused(Event { epoch: Epoch(stale), ..next.clone() })?,
                Illegal::StaleEpoch { current }
            );
        }
        if !next.late {
            // Under a new epoch as well: the row must not forget the old driver's work for nothing.
            let epoch = next.epoch.next();
            let wait = WaitStarted { wait: WaitId(999), ..waiting(WaitKind::Timer) };
            let wrong = [
                wait.into(),
                wait_ended(999, WaitOutcome::Answered).into(),
                patched(json!([{ "op": "remove", "path": "/no/such" }])).into(),
            ];
            for body in wrong {
                refused(Event { epoch, body, ..next.clone() })?;
            }
        }
        prop_assert!(fold(state.clone(), &next).is_ok(), "and the next event is still taken");
    }
}

fn verify(log: &Log, records: &[Record]) -> Result<Head, ChainError> {
    let mut verifier = log.verifier();
    for record in records {
        verifier.check(record)?;
    }
    verifier.finish(&log.head())
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn any_change_of_stored_bytes_is_named_at_its_seq(
        log in legal_log(WISHES),
        at in any::<Index>(),
        how in 0..12,
        byte in any::<Index>(),
    ) {
        let records = log.records();
        prop_assert_eq!(verify(&log, &records), Ok(log.head()));
        let i = at.index(records.len());
        let mut changed = records.clone();
        let record = &mut changed[i];
        let micro = std::time::Duration::from_micros(1);
        match how {
            0 => record.kind.push('x'),
            1 => {
                let StoredBody::Text(text) = &mut record.body else { unreachable!() };
                let mut bytes = std::mem::take(text).into_bytes();
                // Another ASCII character in the place of one.
                let at = byte.index(bytes.len());
                bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
                *text = String::from_utf8(bytes).unwrap();
            }
            2 => record.at = record.at + micro,
            3 => record.at = record.at - micro,
            4 => record.caller_at = Some(record.at),
            5 => record.epoch = record.epoch.next(),
            6 => record.late = !record.late,
            7 => record.format -= 1,
            8 => record.digest.0[byte.index(32)] ^= 1,
            9 => record.body = StoredBody::Text(String::new()),
            10 => record.body = StoredBody::Erased(Digest::of(b"something else")),
            _ => record.seq = record.seq.next(),
        }
        let seq = Seq(i as u64 + 1);
        let named = if how == 11 {
            ChainError::Position { expected: seq, found: seq.next() }
        } else {
            ChainError::Digest(seq)
        };
        prop_assert_eq!(verify(&log, &changed), Err(named));
    }

    #[test]
    fn any_drop_swap_or_insertion_is_named_at_its_seq(
        log in legal_log(WISHES),
        at in any::<Index>(),
    ) {
        let records = log.records();
        let (length, i) = (records.len(), at.index(records.len()));
        let (seq, end) = (Seq(i as u64 + 1), Seq(length as u64));

        let mut dropped = records.clone();
        dropped.remove(i);
        let named = if i + 1 == length {
            ChainError::Head { expected: end, found: Seq(end.0 - 1) }
        } else {
            ChainError::Position { expected: seq, found: seq.next() }
        };
        prop_assert_eq!(verify(&log, &dropped), Err(named));
        let found = Seq(i as u64);
        prop_assert_eq!(
            verify(&log, &records[..i]),
            Err(ChainError::Head { expected: end, found })
        );

        // Dropped, and those after it numbered anew.
        let mut renumbered = dropped;
        for record in &mut renumbered[i..] {
            record.seq = Seq(record.seq.0 - 1);
        }
        if i + 1 < length {
            prop_assert_eq!(verify(&log, &renumbered), Err(ChainError::Digest(seq)));
            let mut swapped = records.clone();
            swapped.swap(i, i + 1);
            let found = seq.next();
            prop_assert_eq!(
                verify(&log, &swapped),
                Err(ChainError::Position { expected: seq, found })
            );
            (swapped[i].seq, swapped[i + 1].seq) = (seq, seq.next());
            prop_assert_eq!(verify(&log, &swapped), Err(ChainError::Digest(seq)));
        }

        let mut doubled = records.clone();
        doubled.insert(i, records[i].clone());
        let next = seq.next();
        let named = ChainError::Position { expected: next, found: seq };
        prop_assert_eq!(verify(&log, &doubled), Err(named));
        for record in &mut doubled[i + 1..] {
            record.seq = record.seq.next();
        }
        prop_assert_eq!(verify(&log, &doubled), Err(ChainError::Digest(next)));

        // An event sealed by someone who has the key still does not fit what follows it.
        let mut forged = log.clone();
        forged.push(Draft { late: log.status().is_terminal(), ..Draft::new(custom("forged")) }).unwrap();
        let forged = forged.records();
        prop_assert_eq!(
            verify(&log, &forged),
            Err(ChainError::Head { expected: end, found: end.next() })
        );
    }

    #[test]
    fn erasing_bodies_keeps_the_chain(log in legal_log(WISHES), erased in any::<u64>()) {
        let mut records = log.records();
        for (i, record) in records.iter_mut().enumerate() {
            if let (1, StoredBody::Text(text)) = (erased >> (i % 64) & 1, &record.body) {
                let (_, key) = &log.writers[i];
                record.body = StoredBody::Erased(key.body_digest(text));
                prop_assert!(matches!(record.decode(), Err(DecodeError::Erased(_))));
            }
        }
        prop_assert_eq!(verify(&log, &records), Ok(log.head()));
    }

    #[test]
    fn a_chain_holds_for_its_own_run_and_key_only(log in legal_log(6)) {
        let first = &log.records()[0];
        let other = RunId::from_bytes([2; 16]);
        let broken = Err(ChainError::Digest(Seq::FIRST));
        prop_assert_eq!(Verifier::new(&other, Some(KEY)).check(first), broken.clone());
        prop_assert_eq!(Verifier::new(&log.run, Some(RunKey([8; 32]))).check(first), broken.clone());
        prop_assert_eq!(Verifier::new(&log.run, None).check(first), broken);
    }

    /// Whose event it is, is part of what is checked; also where the bodies were erased.
    #[test]
    fn a_shared_event_is_checked_as_its_writers(log in legal_log(2 * WISHES), erased: bool) {
        let mut records = log.records();
        if erased {
            for (record, (_, key)) in records.iter_mut().zip(&log.writers) {
                if let StoredBody::Text(text) = &record.body {
                    record.body = StoredBody::Erased(key.body_digest(text));
                }
            }
        }
        let stranger = RunId::from_bytes([9; 16]);
        for i in 0..records.len() {
            let mut changed = records.clone();
            changed[i].origin = Some(stranger);
            let seq = Seq(i as u64 + 1);
            let found = verify(&log, &changed);
            let named = match found {
                Err(ChainError::Digest(at)) => at == seq,
                Err(ChainError::Origin(at)) => erased && (at == seq || at == seq.next()),
                // A `run.forked` may change the writer, and the event after it was its own.
                _ => erased && records[i].kind == "run.forked",
            };
            prop_assert!(named, "{} at {}: {:?}", records[i].kind, seq, found);
        }
    }

    /// The same work, disturbed: another order, other ids and times, more attempts, a takeover.
    #[test]
    fn the_final_state_digest_is_of_meaning_alone(
        outputs in prop::collection::vec(0..5u8, 1..6),
        seed in any::<u64>(),
        broken in prop::option::of(0..7usize),
    ) {
        let steps: Vec<(String, Value)> = outputs
            .iter()
            .enumerate()
            .map(|(i, n)| (format!("s{i}"), json!({ "b": n, "a": [1, null] })))
            .collect();
        let mut plain = Log::new();
        for (step, output) in &steps {
            plain.record(short(step, output.clone()));
        }
        plain.record(patched(json!([{ "op": "add", "path": "", "value": { "k": 1 } }])));
        plain.wait(waiting_in(WaitKind::Approval, "ask"));
        plain.answer(None, true).unwrap();
        plain.complete(json!("ok"));

        let mut order = steps.clone();
        order.sort_by_key(|(step, _)| Digest::of(format!("{seed}{step}").as_bytes()));
        let mut disturbed = Log::new();
        disturbed.run = RunId::from_bytes([3; 16]);
        disturbed.at(seed as i64 % 1000 + 1000);
        disturbed.record(patched(json!([{ "op": "add", "path": "", "value": { "k": 1 } }])));
        for (i, (step, output)) in order.iter().enumerate() {
            disturbed.record(begun(step, Effect::Idempotent));
            match seed >> i & 3 {
                0 => {
                    disturbed.record(broke(step)).record(retrying(step));
                    disturbed.record(begun(step, Effect::Idempotent));
                }
                1 => {
                    disturbed.take_over().record(begun(step, Effect::Idempotent));
                }
                // It failed with the run, and the run was retried.
                2 => {
                    disturbed.record(broke(step)).retry();
                    disturbed.record(begun(step, Effect::Idempotent));
                }
                _ => {}
            }
            let text = serde_json::to_string_pretty(output).unwrap();
            let output = Payload::Inline(Json::parse(text).unwrap());
            let finished = done(step, Effect::Idempotent, Value::Null);
            disturbed.record(StepFinished { attempt: 2, output, ..finished });
        }
        // Asked before the pause and answered after it.
        disturbed.wait(waiting_in(WaitKind::Approval, "ask")).pause().take_over();
        let asked = disturbed.state.row.facts.waits[0].wait.wait.0;
        disturbed.outside(Outside::Resume { by: None }).unwrap();
        let mut other = disturbed.clone();
        disturbed.answer(Some(asked), true).unwrap();
        other.answer(Some(asked), broken != Some(6)).unwrap();
        disturbed.complete(json!("ok"));
        let digest = |log: &Log| log.state.row.facts.ended.as_ref().unwrap().final_state_digest;
        prop_assert_eq!(digest(&disturbed), digest(&plain));

        match broken {
            Some(0) => other.fail("error"),
            Some(1) => other.cancel(),
            Some(2) => other.complete(json!("no")),
            Some(3) => other.record(short("one more", Value::Null)).complete(json!("ok")),
            Some(4) => {
                let skipped = Verification::of(vec![checked(Verdict::Skipped, true)]);
                other.record(skipped).complete(json!("ok"))
            }
            Some(5) => {
                let patch = json!([{ "op": "replace", "path": "/k", "value": 2 }]);
                other.record(patched(patch)).complete(json!("ok"))
            }
            Some(_) => other.complete(json!("ok")),
            None => other.record(custom("tick")).complete(json!("ok")),
        };
        prop_assert_eq!(digest(&other) == digest(&plain), broken.is_none());
    }
}

#[test]
fn unknown_kinds_refuse_the_fold_not_the_read() {
    let log = Log::new();
    let mut sealer = chain::Sealer {
        head: log.head(),
        at: log.now,
        key: KEY,
    };
    let newer = Unknown {
        kind: "run.teleported".into(),
        raw: Json::parse("{\"to\": 1}").unwrap(),
    };
    let body = Body::Unknown(newer.clone());
    let sealed = sealer
        .seal_draft(Draft::new(body), log.epoch, log.now)
        .unwrap();
    let mut records = log.records();
    records.push(sealed.record());
    let mut verifier = Verifier::new(&log.run, Some(KEY));
    records
        .iter()
        .for_each(|record| verifier.check(record).unwrap());
    let event = records[1].decode().unwrap();
    assert_eq!(event.body, Body::Unknown(newer));
    let illegal = fold(log.state, &event).unwrap_err();
    assert_eq!(illegal.why, Illegal::UnknownKind);
    assert!(illegal.to_string().contains("run.teleported"), "{illegal}");
}

#[test]
fn results_do_not_come_from_late_facts() {
    let mut log = Log::new();
    log.record(short("a", json!(1))).cancel();
    let before = log.results;
    log.record(short("b", json!(2)));
    assert!(log.last().late);
    assert_eq!(log.results, before);
    assert_ne!(ResultSet::of(&log.last().body), ResultSet::default());
}

/// The laws are only as good as the walks they are tried on.
#[test]
fn the_walks_reach_every_kind_and_status() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = legal_log(2 * WISHES);
    let mut kinds: HashMap<String, usize> = HashMap::new();
    let mut statuses: HashMap<&str, usize> = HashMap::new();
    let mut late = 0;
    for _ in 0..200 {
        let log = strategy.new_tree(&mut runner).unwrap().current();
        let mut row = log.state.row.clone();
        for event in log.events() {
            if event.seq == Seq::FIRST {
                row = Row::start(log.run, &event).unwrap();
            } else {
                row.apply(&event).unwrap();
            }
            *statuses.entry(row.status().as_str()).or_default() += 1;
            match event.late {
                true => late += 1,
                false => *kinds.entry(event.body.kind().to_owned()).or_default() += 1,
            }
        }
    }
    let rare: Vec<_> = Body::KINDS
        .iter()
        .filter(|kind| kinds.get(**kind).is_none_or(|n| *n < 10))
        .collect();
    assert!(rare.is_empty(), "hardly ever: {rare:?} of {kinds:?}");
    let missing: Vec<_> = Status::ALL
        .iter()
        .filter(|status| !statuses.contains_key(status.as_str()))
        .collect();
    assert!(
        missing.is_empty() && late > 100,
        "never: {missing:?}, late {late}"
    );
}
