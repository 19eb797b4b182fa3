//! One test per rule of DESIGN 3 and SEMANTICS that a log alone can keep; the name says the rule.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

mod common;

use common::*;
use logreel_core::event::*;
use logreel_core::fold::Illegal;
use logreel_core::row::End;
use logreel_core::state::Doing;
use logreel_core::*;
use serde_json::json;

/// The status after these facts of a driver.
#[track_caller]
fn check<const N: usize>(facts: [Body; N], status: Status) -> Log {
    let mut log = Log::new();
    for fact in facts {
        log.record(fact);
    }
    assert_eq!(log.status(), status, "{log:?}");
    log
}

fn output(log: &Log) -> Option<Json> {
    match &log.state.row.facts.ended.as_ref()?.end {
        End::Completed { output } => Some(output.to_json()),
        End::Failed { .. } | End::Cancelled { .. } => None,
    }
}

// Status and events

#[test]
fn run_started_is_created() {
    check([], Status::Created);
}

#[test]
fn run_started_fills_an_empty_input_and_never_replaces_one() {
    let mut log = Log::of(
        RunStarted {
            input: Payload::null(),
            ..started()
        },
        Epoch(1),
    );
    log.record(RunStarted {
        input: payload(json!("late prompt")),
        ..started()
    });
    assert_eq!(log.state.row.facts.input, payload(json!("late prompt")));
    log.record(RunStarted {
        input: payload(json!("another")),
        ..started()
    });
    assert_eq!(log.state.row.facts.input, payload(json!("late prompt")));
}

#[test]
fn planning_start_is_planning() {
    check([phase(Phase::Planning).into()], Status::Planning);
}

#[test]
fn the_first_phase_step_tool_or_turn_start_is_executing() {
    check([phase(Phase::Executing).into()], Status::Executing);
    check([begun("a", Effect::Read).into()], Status::Executing);
    check([short("a", json!(1)).into()], Status::Executing);
    check([called("c", Effect::Read).into()], Status::Executing);
    check([Turn { turn: 1 }.into()], Status::Executing);
    check([asked("m").into(), custom("tick").into()], Status::Created);
}

#[test]
fn a_step_start_does_not_leave_planning() {
    let planning = || phase(Phase::Planning).into();
    check(
        [planning(), begun("a", Effect::Read).into()],
        Status::Planning,
    );
    check([planning(), short("a", json!(1)).into()], Status::Planning);
    check(
        [planning(), called("c", Effect::Read).into()],
        Status::Planning,
    );
    check([planning(), Turn { turn: 1 }.into()], Status::Planning);
    check(
        [planning(), phase(Phase::Executing).into()],
        Status::Executing,
    );
}

#[test]
fn checks_start_is_verifying() {
    let log = check(
        [
            phase(Phase::Executing).into(),
            phase(Phase::Verifying).into(),
            Verification::of(vec![checked(Verdict::Failed, true)]).into(),
        ],
        Status::Verifying,
    );
    assert_eq!(
        log.state.row.facts.verification.as_ref().unwrap().verdict,
        Verdict::Failed
    );
}

#[test]
fn the_end_is_completed_with_its_text_and_no_error() {
    let mut log = check(
        [begun("a", Effect::Read).into(), broke("a").into()],
        Status::Executing,
    );
    log.complete(json!("done"));
    assert_eq!(log.status(), Status::Completed);
    assert_eq!(output(&log).unwrap().text(), "\"done\"");
}

#[test]
fn an_error_is_failed_with_its_message() {
    let mut log = Log::new();
    log.fail("timeout");
    let End::Failed { cause } = log.state.row.facts.ended.clone().unwrap().end else {
        panic!("{log:?}")
    };
    assert_eq!(
        (cause.kind.as_str(), cause.message.as_str()),
        ("timeout", "it broke")
    );
}

#[test]
fn first_terminal_wins_and_absorbs() {
    let mut log = check(
        [
            called("c", Effect::Read).into(),
            asked("m").into(),
            begun("a", Effect::Read).into(),
        ],
        Status::Executing,
    );
    log.at(10).cancel().at(20);
    let before = log.state.row.facts.clone();
    log.record(returned("c"))
        .record(answered("m", 40))
        .record(done("a", Effect::Read, json!(1)));
    log.complete(json!("too late")).fail("too late");
    assert_eq!(log.status(), Status::Cancelled);
    assert_eq!(log.state.row.facts, before);
    assert_eq!(before.ended.as_ref().unwrap().at, time(10));
    assert_eq!(log.head().seq, Seq(10), "late facts are counted");
    assert_eq!(
        log.state.row.pulse.usage.spent.input_tokens, 40,
        "and their spend is kept"
    );
    assert!(log.sealed[5..].iter().all(|sealed| sealed.event.late));
}

#[test]
fn a_late_start_revives_nothing() {
    let mut log = Log::new();
    log.cancel();
    let late = |body: Body| Draft {
        late: true,
        ..Draft::new(body)
    };
    for body in [
        called("c", Effect::Write).into(),
        phase(Phase::Executing).into(),
    ] {
        log.push(late(body)).unwrap();
    }
    assert_eq!(log.status(), Status::Cancelled);
    assert!(log.state.row.pulse.active_tools.is_empty() && log.state.tools.is_empty());
}

#[test]
fn an_end_carries_the_digest_of_its_state_whoever_records_it() {
    let ended = |mut log: Log, command: Command| {
        log.command(command).unwrap();
        log.state
            .row
            .facts
            .ended
            .as_ref()
            .unwrap()
            .final_state_digest
    };
    let log = check([short("a", json!(1)).into()], Status::Executing);
    let output = payload(json!("ok"));
    let final_state_digest = Digest::of(b"a guess");
    assert_eq!(
        ended(
            log.clone(),
            Command::Complete {
                output: output.clone()
            }
        ),
        ended(
            log,
            Body::from(RunCompleted {
                final_state_digest,
                output
            })
            .into()
        ),
    );
}

#[test]
fn a_value_that_no_tree_can_hold_ends_a_run_all_the_same() {
    let deep = "[".repeat(300) + &"]".repeat(300);
    for text in ["1e999".to_owned(), deep] {
        let mut log = Log::new();
        let output = Payload::Inline(Json::parse(text.clone()).unwrap());
        log.record(StepFinished {
            output: output.clone(),
            ..short("a", json!(1))
        });
        log.command(Command::Complete { output }).unwrap();
        let event = log.records()[2].decode().unwrap();
        assert_eq!(&event, log.last());
    }
}

#[test]
fn active_tools_are_listed_until_they_return_fail_are_in_doubt_or_the_run_ends() {
    let active = |log: &Log| -> Vec<(String, Timestamp)> {
        let tools = log.state.row.pulse.active_tools.iter();
        tools
            .map(|tool| (format!("{} {}", tool.call, tool.name), tool.since))
            .collect()
    };
    let mut log = Log::new();
    for call in ["c1", "c2", "c3", "c4"] {
        log.record(called(call, Effect::Write));
    }
    assert_eq!(active(&log)[0], ("c1 shell".to_owned(), time(0)));
    assert_eq!(active(&log).len(), 4);
    log.record(returned("c1"));
    assert_eq!(active(&log).len(), 3);
    log.record(tool_failed("c2", "error"));
    assert_eq!(active(&log).len(), 2);
    log.record(tool_in_doubt("c3"));
    assert_eq!(active(&log)[0].0, "c4 shell");
    log.cancel();
    assert_eq!(active(&log), []);
}

// Lifecycle

#[test]
fn a_denied_call_fails_without_having_been_called() {
    let log = check([tool_failed("c", "denied").into()], Status::Created);
    assert!(matches!(
        log.refuse(tool_failed("d", "error")),
        Illegal::CallNotOpen(_)
    ));
}

#[test]
fn cancel_twice_is_harmless_and_a_completed_run_stays() {
    let mut log = Log::new();
    log.cancel().cancel();
    assert_eq!(log.sealed.len(), 2);
    let mut log = Log::new();
    log.complete(json!(1));
    let refused = log.outside(Outside::Cancel { reason: None });
    assert_eq!(refused, Err(Rejected::Ended(Status::Completed)));
}

#[test]
fn five_takeovers_without_a_result_are_a_crash_loop() {
    let mut log = Log::new();
    for _ in 0..5 {
        log.take_over().record(begun("a", Effect::Read));
    }
    assert!(!log.claim(ClaimReason::Orphaned));
    assert_eq!(log.status(), Status::Waiting);
    assert_eq!(log.state.row.facts.waits[0].wait.kind, WaitKind::CrashLoop);
    assert_eq!(log.state.row.ready_at(), None, "only a person can act");
    log.outside(Outside::Resume { by: None }).unwrap();
    assert_eq!(
        (log.status(), log.state.row.pulse.takeovers),
        (Status::Executing, 0)
    );
    log.take_over();
}

#[test]
fn a_recorded_result_starts_the_count_of_takeovers_anew() {
    let results: [(Body, Body); 4] = [
        (asked("m").into(), answered("m", 1).into()),
        (called("c", Effect::Read).into(), returned("c").into()),
        (
            begun("a", Effect::Read).into(),
            done("a", Effect::Read, json!(1)).into(),
        ),
        (custom("tick").into(), short("a", json!(1)).into()),
    ];
    for (begin, result) in results {
        let mut log = Log::new();
        for _ in 0..4 {
            log.take_over();
        }
        log.record(begin).record(result);
        assert_eq!(log.state.row.pulse.takeovers, 0, "{log:?}");
    }
    let mut log = Log::new();
    log.take_over()
        .record(begun("a", Effect::Read))
        .record(broke("a"));
    assert_eq!(log.state.row.pulse.takeovers, 1, "a failure is no result");
}

#[test]
fn a_run_that_was_ready_is_not_taken_over_from_anyone() {
    let mut log = Log::new();
    for _ in 0..9 {
        assert!(log.claim(ClaimReason::Ready));
    }
    assert_eq!(log.state.row.pulse.takeovers, 0);
}

#[test]
fn a_takeover_forgets_what_the_driver_before_had_under_way() {
    let mut log = check(
        [
            begun("a", Effect::Read).into(),
            asked("m").into(),
            called("c", Effect::Read).into(),
        ],
        Status::Executing,
    );
    log.wait(waiting(WaitKind::Approval));
    assert_eq!(log.status(), Status::Executing);
    log.take_over();
    assert_eq!(log.status(), Status::Waiting);
    assert!(matches!(
        log.refuse(done("a", Effect::Read, json!(1))),
        Illegal::StepNotRunning
    ));
    assert!(matches!(
        log.refuse(answered("m", 1)),
        Illegal::CallNotOpen(_)
    ));
    log.record(begun("a", Effect::Read)).record(asked("m"));
    assert_eq!(log.status(), Status::Executing);
}

#[test]
fn a_write_of_a_dead_driver_is_settled_before_anything_else() {
    let mut log = check([begun("pay", Effect::Write).into()], Status::Executing);
    log.take_over();
    assert_eq!(log.state.unsettled_writes(log.epoch), [step_id("pay")]);
    let unsettled = Illegal::StepUnsettled(step_id("pay"));
    let ended = StepFinished {
        started_at: Some(time(0)),
        ..done("pay", Effect::Write, json!(1))
    };
    let skipped = StepSkipped {
        reason: "no".into(),
        step: step_id("pay"),
    };
    assert_eq!(log.refuse(begun("pay", Effect::Write)), unsettled);
    assert_eq!(log.refuse(ended.clone()), unsettled);
    assert_eq!(log.refuse(skipped.clone()), unsettled);
    log.record(doubtful("pay", 1));
    assert_eq!(log.refuse(begun("pay", Effect::Write)), unsettled);
    assert_eq!(log.refuse(ended), unsettled);
    assert_eq!(log.refuse(skipped), unsettled);
    log.resolve("pay", Resolution::Retry).unwrap();
    log.record(begun("pay", Effect::Write))
        .record(done("pay", Effect::Write, json!(1)));
}

#[test]
fn a_write_call_of_a_dead_driver_is_settled_before_it_is_issued_again() {
    let mut log = check(
        [
            called("w", Effect::Write).into(),
            called("r", Effect::Read).into(),
        ],
        Status::Executing,
    );
    log.take_over().record(called("r", Effect::Read));
    assert_eq!(
        log.refuse(called("w", Effect::Write)),
        Illegal::CallUnsettled(call_id("w"))
    );
    log.record(tool_in_doubt("w"));
    assert_eq!(
        log.refuse(called("w", Effect::Write)),
        Illegal::CallUnsettled(call_id("w"))
    );
    log.resolve("w", Resolution::Retry).unwrap();
    log.record(called("w", Effect::Write));
}

#[test]
fn a_write_is_announced_before_its_result() {
    let finished = StepFinished {
        effect: Effect::Write,
        ..short("pay", json!(1))
    };
    assert_eq!(
        Log::new().refuse(finished),
        Illegal::WriteNotAnnounced(step_id("pay"))
    );
}

#[test]
fn a_write_in_doubt_is_resolved_by_name_and_ends_its_wait() {
    for (resolution, finished) in [
        (Resolution::Returned(payload(json!(7))), true),
        (Resolution::Failed("no".into()), false),
        (Resolution::Retry, false),
    ] {
        let mut log = check(
            [
                begun("pay", Effect::Write).into(),
                doubtful("pay", 1).into(),
            ],
            Status::Executing,
        );
        log.wait(waiting_in(WaitKind::InDoubt, "pay"));
        assert_eq!(
            (log.status(), log.state.row.ready_at()),
            (Status::Waiting, None)
        );
        assert!(matches!(
            log.resolve("other", Resolution::Retry),
            Err(Rejected::NotInDoubt(_))
        ));
        log.resolve("pay", resolution).unwrap();
        assert_eq!(log.status(), Status::Executing);
        let is_finished = matches!(log.state.steps[&step_id("pay")], StepState::Finished { .. });
        assert_eq!(is_finished, finished);
        assert!(log.resolve("pay", Resolution::Retry).is_err(), "once");
    }
}

#[test]
fn of_two_writes_shown_alike_neither_is_resolved_by_that_name() {
    let keyed = StepId::from_parts(["pay", "x"]).unwrap();
    let plain = step_id("pay[x]");
    let mut log = Log::new();
    for step in [&keyed, &plain] {
        log.record(StepStarted {
            step: step.clone(),
            ..begun("a", Effect::Write)
        });
        log.record(StepInDoubt {
            step: step.clone(),
            ..doubtful("a", 1)
        });
    }
    assert!(matches!(
        log.resolve("pay[x]", Resolution::Retry),
        Err(Rejected::NotInDoubt(_))
    ));
    log.resolve(r#"["pay","x"]"#, Resolution::Retry).unwrap();
    assert_eq!(log.state.row.facts.in_doubt, [row::Doubt::Step(plain)]);
}

// Waiting

#[test]
fn waiting_only_when_nothing_else_can_go_on() {
    for (begin, end) in [
        (
            Body::from(begun("a", Effect::Read)),
            Body::from(done("a", Effect::Read, json!(1))),
        ),
        (begun("a", Effect::Read).into(), broke("a").into()),
        (asked("m").into(), answered("m", 1).into()),
        (called("c", Effect::Read).into(), returned("c").into()),
    ] {
        let mut log = check([phase(Phase::Executing).into(), begin], Status::Executing);
        log.wait(waiting(WaitKind::Approval));
        assert_eq!(log.status(), Status::Executing);
        log.record(end);
        assert_eq!(log.status(), Status::Waiting);
        log.answer(None, true).unwrap();
        assert_eq!(log.status(), Status::Executing);
    }
}

#[test]
fn a_wait_that_ended_beside_another_leaves_something_to_do() {
    let mut log = Log::new();
    log.record(phase(Phase::Executing));
    log.wait(waiting(WaitKind::Approval));
    log.wait(waiting_until(WaitKind::Timer, 50));
    assert_eq!(log.status(), Status::Waiting);
    log.at(9).answer(Some(1), true).unwrap();
    let now = |log: &Log| (log.status(), log.state.row.ready_at());
    assert_eq!(now(&log), (Status::Executing, Some(time(9))));
    // Another driver looks at everything, and finds nothing to do.
    let mut looked = log.clone();
    looked.take_over();
    assert_eq!(now(&looked), (Status::Waiting, Some(time(50))));
    // The same one goes on.
    log.record(begun("a", Effect::Read));
    log.record(done("a", Effect::Read, json!(1)));
    assert_eq!(now(&log), (Status::Waiting, Some(time(50))));
    log.pause();
    assert_eq!(now(&log), (Status::Waiting, None));
}

#[test]
fn pause_is_waiting_at_once() {
    let mut log = check([begun("a", Effect::Read).into()], Status::Executing);
    log.pause().pause();
    assert_eq!((log.status(), log.sealed.len()), (Status::Waiting, 3));
    assert_eq!(log.state.row.ready_at(), None);
    log.outside(Outside::Resume { by: None }).unwrap();
    assert_eq!(log.status(), Status::Executing);
}

#[test]
fn a_paused_run_is_not_ready_although_a_deadline_runs() {
    let mut log = Log::new();
    log.wait(waiting_until(WaitKind::Timer, 50));
    assert_eq!(log.state.row.ready_at(), Some(time(50)));
    log.pause();
    assert_eq!(log.state.row.ready_at(), None);
}

#[test]
fn ready_at_is_now_when_queued_or_its_wait_has_ended() {
    let mut log = Log::new();
    assert_eq!(log.state.row.ready_at(), Some(time(0)));
    log.at(5).wait(waiting(WaitKind::Approval));
    assert_eq!(
        log.state.row.ready_at(),
        None,
        "null when only a person can act"
    );
    log.at(9).answer(None, true).unwrap();
    assert_eq!(log.state.row.ready_at(), Some(time(9)));
    log.cancel();
    assert_eq!(log.state.row.ready_at(), None, "never again");
}

#[test]
fn ready_at_is_the_first_deadline_when_one_runs() {
    let mut log = Log::new();
    log.wait(waiting_until(WaitKind::Approval, 90));
    log.wait(waiting_until(WaitKind::Timer, 60))
        .wait(waiting(WaitKind::Signal));
    assert_eq!(log.state.row.ready_at(), Some(time(60)));
}

#[test]
fn answer_needs_the_waits_id_unless_exactly_one_is_open() {
    let mut log = Log::new();
    assert_eq!(log.answer(None, true), Err(Rejected::NotWaiting));
    log.wait(waiting(WaitKind::Approval))
        .wait(waiting(WaitKind::Timer));
    log.wait(waiting(WaitKind::Approval));
    let both = Rejected::NameTheWait(vec![WaitId(1), WaitId(3)]);
    assert_eq!(log.answer(None, true), Err(both));
    assert!(matches!(
        log.answer(Some(2), true),
        Err(Rejected::WrongAnswer { .. })
    ));
    assert_eq!(
        log.answer(Some(4), true),
        Err(Rejected::UnknownWait(WaitId(4)))
    );
    log.answer(Some(1), true).unwrap();
    assert_eq!(
        log.answer(Some(1), false),
        Err(Rejected::WaitHasEnded(WaitId(1)))
    );
    log.answer(None, false).unwrap();
}

#[test]
fn an_answer_after_the_deadline_records_the_timeout_and_is_refused() {
    for (on_deadline, approved) in [
        (OnDeadline::Fail, None),
        (OnDeadline::Approve, Some(true)),
        (OnDeadline::Deny, Some(false)),
    ] {
        let mut log = Log::new();
        let on_deadline = Some(on_deadline);
        log.wait(WaitStarted {
            on_deadline,
            ..waiting_until(WaitKind::Approval, 60)
        });
        log.at(60);
        let (wait, deadline) = (WaitId(1), time(60));
        assert_eq!(
            log.answer(None, true),
            Err(Rejected::TooLate { wait, deadline })
        );
        let Body::WaitEnded(ended) = &log.last().body else {
            panic!("{log:?}")
        };
        assert_eq!(
            (ended.outcome, ended.approved),
            (WaitOutcome::TimedOut, approved)
        );
        assert_eq!(log.answer(Some(1), true), Err(Rejected::WaitHasEnded(wait)));
    }
}

#[test]
fn an_approval_wants_a_yes_or_a_no() {
    let mut log = Log::new();
    log.wait(waiting(WaitKind::Approval));
    let silent = Outside::Answer {
        wait: None,
        approved: None,
        value: payload(json!("hm")),
        reason: None,
        by: None,
    };
    assert!(matches!(
        log.outside(silent),
        Err(Rejected::WrongAnswer { .. })
    ));
    assert_eq!(log.status(), Status::Waiting);
}

#[test]
fn a_signal_is_kept_until_awaited_and_taken_once() {
    let kept = |log: &Log| -> Vec<Seq> { log.state.signals.iter().map(|(_, seq)| *seq).collect() };
    let wait = || WaitStarted {
        name: Some("go".into()),
        ..waiting(WaitKind::Signal)
    };
    let mut log = Log::new();
    log.signal("go").signal("go").signal("stop");
    assert_eq!(kept(&log), [Seq(2), Seq(3), Seq(4)]);
    log.wait(wait())
        .record(wait_ended(1, WaitOutcome::Signalled));
    assert_eq!(kept(&log), [Seq(3), Seq(4)], "the oldest of its name");
    log.wait(wait()).signal("go");
    assert_eq!(
        kept(&log),
        [Seq(3), Seq(4)],
        "a new one that ends a wait takes none that is kept"
    );
    assert_eq!(log.state.row.facts.waits, []);
}

#[test]
fn a_signal_after_the_deadline_is_kept_and_the_timeout_recorded() {
    let mut log = Log::new();
    log.wait(WaitStarted {
        name: Some("go".into()),
        ..waiting_until(WaitKind::Signal, 60)
    });
    log.at(61).signal("go");
    let kinds: Vec<_> = log.sealed[2..]
        .iter()
        .map(|sealed| sealed.event.body.kind())
        .collect();
    assert_eq!(kinds, ["wait.ended", "signal.received"]);
    assert_eq!(log.state.signals.len(), 1);
}

#[test]
fn a_raise_for_a_wait_that_is_over_raises_nothing() {
    let tokens = || Budget {
        tokens: Some(5),
        ..Budget::default()
    };
    let mut log = Log::new();
    log.wait(waiting(WaitKind::Budget));
    log.wait(waiting(WaitKind::Signal));
    let mut raise = |wait: u32| {
        log.outside(Outside::AddBudget {
            add: tokens(),
            by: None,
            child: None,
            wait: Some(WaitId(wait)),
        })
        .map(drop)
    };
    assert!(matches!(raise(2), Err(Rejected::WrongAnswer { .. })));
    assert_eq!(raise(3), Err(Rejected::UnknownWait(WaitId(3))));
    assert_eq!(raise(1), Ok(()));
    assert_eq!(raise(1), Err(Rejected::WaitHasEnded(WaitId(1))));
    assert_eq!(log.row.facts.budget.tokens, Some(1005));
}

#[test]
fn raising_a_limit_ends_the_wait_for_budget_and_needs_such_a_limit() {
    let mut log = Log::new();
    log.wait(waiting(WaitKind::Budget));
    let add = |add| Outside::AddBudget {
        add,
        by: None,
        child: None,
        wait: None,
    };
    let money = Budget {
        usd_micros: Some(5),
        ..Budget::default()
    };
    assert_eq!(
        log.outside(add(money)),
        Err(Rejected::NoSuchLimit(Limit::Usd))
    );
    log.outside(add(Budget {
        tokens: Some(5),
        ..Budget::default()
    }))
    .unwrap();
    assert_eq!(log.state.row.facts.budget.tokens, Some(1005));
    assert_eq!(log.status(), Status::Created);
}

// Steps

#[test]
fn a_step_has_its_result_once() {
    let log = check([short("a", json!(1)).into()], Status::Executing);
    let has = Illegal::StepHasResult(step_id("a"));
    assert_eq!(log.refuse(short("a", json!(2))), has);
    assert_eq!(log.refuse(begun("a", Effect::Read)), has);
    assert_eq!(
        log.refuse(WaitStarted {
            wait: WaitId(1),
            ..waiting_in(WaitKind::Approval, "a")
        }),
        has
    );
}

#[test]
fn a_step_that_runs_is_not_skipped_or_started_again() {
    let log = check([begun("a", Effect::Read).into()], Status::Executing);
    let runs = Illegal::StepIsRunning(step_id("a"));
    assert_eq!(log.refuse(begun("a", Effect::Read)), runs);
    assert_eq!(
        log.refuse(StepSkipped {
            reason: "no".into(),
            step: step_id("a")
        }),
        runs
    );
    assert_eq!(
        log.refuse(short("a", json!(1))),
        Illegal::StepWasAnnounced(step_id("a"))
    );
}

#[test]
fn a_failed_attempt_keeps_its_own_times_and_the_step_can_go_on() {
    let mut log = check(
        [begun("a", Effect::Read).into(), broke("a").into()],
        Status::Executing,
    );
    log.record(retrying("a")).at(9);
    let started_at = Some(time(7));
    log.record(StepFailed {
        attempt: 2,
        started_at,
        ..broke("a")
    });
    let open = log.state.open_step(&step_id("a")).unwrap();
    assert_eq!((open.attempt, open.started_at), (2, time(7)));
    assert!(matches!(open.doing, Doing::Failed(_)));
}

#[test]
fn a_retry_wait_leaves_its_step_what_it_was() {
    let mut log = check(
        [begun("a", Effect::Read).into(), broke("a").into()],
        Status::Executing,
    );
    log.record(retrying("a"));
    let before = log.state.steps.clone();
    log.wait(WaitStarted {
        deadline: Some(time(60)),
        ..waiting_in(WaitKind::Retry, "a")
    });
    assert_eq!(log.status(), Status::Waiting);
    log.record(wait_ended(1, WaitOutcome::Elapsed));
    assert_eq!(log.state.steps, before);
}

// Provenance: graph-style agents

#[test]
fn a_node_that_failed_and_was_retried_does_not_fail_the_run() {
    let mut log = check(
        [
            begun("node", Effect::Read).into(),
            broke("node").into(),
            retrying("node").into(),
            begun("node", Effect::Read).into(),
            done("node", Effect::Read, json!(1)).into(),
        ],
        Status::Executing,
    );
    log.complete(json!("ok"));
    assert_eq!(log.status(), Status::Completed);
}

#[test]
fn an_interrupted_run_is_waiting_not_completed() {
    let mut log = check([begun("node", Effect::Read).into()], Status::Executing);
    let reason = Some("needs a person".to_owned());
    log.wait(WaitStarted {
        prompt: reason,
        ..waiting_in(WaitKind::Approval, "node")
    });
    assert_eq!((log.status(), output(&log)), (Status::Waiting, None));
    log.answer(None, true).unwrap();
    assert_eq!(log.status(), Status::Executing);
    assert!(matches!(
        log.state.steps[&step_id("node")],
        StepState::Answered { .. }
    ));
    // The node runs again from its top, as graphs do.
    log.record(begun("node", Effect::Read))
        .record(done("node", Effect::Read, json!(1)));
    assert_eq!(log.state.row.pulse.running, 0);
}

#[test]
fn state_updates_are_patches_and_one_that_does_not_fit_changes_nothing() {
    let mut log = Log::new();
    log.record(patched(
        json!([{ "op": "add", "path": "", "value": { "n": 1 } }]),
    ));
    log.record(patched(
        json!([{ "op": "replace", "path": "/n", "value": 2 }]),
    ));
    let half = json!([{ "op": "add", "path": "/m", "value": 0 }, { "op": "remove", "path": "/x" }]);
    assert!(matches!(log.refuse(patched(half)), Illegal::Patch(_)));
    assert_eq!(log.state.row.facts.document, json!({ "n": 2 }));
}

#[test]
fn a_document_stays_shallow_enough_to_be_stored() {
    let mut log = Log::new();
    log.record(patched(json!([{ "op": "add", "path": "", "value": {} }])));
    for depth in 1..100 {
        log.record(patched(
            json!([{ "op": "add", "path": "/a".repeat(depth), "value": {} }]),
        ));
    }
    let deeper = json!([{ "op": "add", "path": "/a".repeat(100), "value": {} }]);
    assert!(matches!(log.refuse(patched(deeper)), Illegal::Patch(_)));
    let stored = serde_json::to_string(&*log.state.row.facts).unwrap();
    assert_eq!(
        &serde_json::from_str::<row::Facts>(&stored).unwrap(),
        &*log.state.row.facts
    );
}

#[test]
fn a_checkpoint_says_where_an_external_run_is_picked_up() {
    let saved = |name: &str| Checkpoint {
        checkpoint: name.into(),
        data: Payload::null(),
        step: Some(step_id("node")),
    };
    let mut log = Log::new();
    log.record(saved("k1"))
        .record(custom("tick"))
        .record(saved("k2"));
    log.record(CheckpointDeleted {
        checkpoint: "k1".into(),
    });
    assert_eq!(log.state.checkpoint, Some(Seq(4)));
}

#[test]
fn a_message_moves_the_end_of_the_context_and_keeps_role_and_length() {
    let node = Digest::of(b"node");
    let log = check(
        [MessageAdded {
            length: 5,
            node,
            previous: None,
            role: "user".into(),
            queued: None,
            redacted: 0,
        }
        .into()],
        Status::Created,
    );
    assert_eq!(log.state.row.pulse.context, Some(node));
}

// Copies

#[test]
fn a_fork_keeps_what_finished_and_drops_what_was_open() {
    let mut log = check(
        [
            short("kept", json!(1)).into(),
            short("again", json!(1)).into(),
            begun("open", Effect::Write).into(),
            called("c", Effect::Write).into(),
        ],
        Status::Executing,
    );
    log.wait(waiting(WaitKind::Approval)).at(60);
    let parent = Parent {
        relation: Relation::Retry,
        run: log.run,
        seq: log.head().seq,
    };
    let forked = RunForked {
        budget: Budget::default(),
        changes: vec![Change::Input],
        digest: log.head().digest,
        forgotten: vec![step_id("again")],
        forgotten_calls: Vec::new(),
        input: payload(json!("other")),
        made: None,
        may_have_happened: vec!["c".into(), "open".into()],
        parent: parent.clone(),
    };
    let elsewhere = RunForked {
        digest: Digest::of(b"elsewhere"),
        ..forked.clone()
    };
    assert_eq!(log.refuse(elsewhere), Illegal::ForkElsewhere);
    let no_child = Parent {
        relation: Relation::Child,
        ..parent
    };
    let no_child = RunForked {
        parent: no_child,
        ..forked.clone()
    };
    assert_eq!(
        log.clone().push(Draft::new(no_child)).unwrap_err().why,
        Illegal::ForkIsNoChild
    );
    log.push(Draft::new(forked)).unwrap();
    assert_eq!(
        log.state.steps.keys().collect::<Vec<_>>(),
        [&step_id("kept")]
    );
    let row = &log.state.row;
    assert!(row.facts.waits.is_empty() && row.pulse.active_tools.is_empty());
    assert_eq!(
        (row.facts.created_at, row.ready_at()),
        (time(60), Some(time(60)))
    );
    log.record(begun("open", Effect::Write))
        .record(short("again", json!(2)));
}

/// A fork of this log right here, that forgets these steps.
fn fork_here(log: &mut Log, forgotten: &[&str]) -> RunForked {
    let fork = Fork {
        budget: started().budget,
        forgotten: forgotten.iter().map(|step| step_id(step)).collect(),
        ..Fork::of(log.run, Relation::Fork)
    };
    log.fork(log.head().seq, fork, false).unwrap();
    match &log.last().body {
        Body::RunForked(forked) => (**forked).clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_fork_lists_the_writes_that_may_have_happened() {
    let mut log = Log::new();
    log.record(begun("done", Effect::Write))
        .record(done("done", Effect::Write, json!(1)))
        .record(begun("read", Effect::Read))
        .record(begun("failed", Effect::Write))
        .record(broke("failed"))
        .record(begun("doubt", Effect::Write))
        .record(doubtful("doubt", 1))
        .record(begun("open", Effect::Write))
        .record(called("call", Effect::Write))
        .record(called("look", Effect::Read))
        .record(called("lost", Effect::Write))
        .record(tool_in_doubt("lost"));
    let forked = fork_here(&mut log, &[]);
    assert_eq!(
        forked.may_have_happened,
        ["call", "doubt", "lost", "open"],
        "in order, and neither what finished nor what failed"
    );
    assert_eq!(
        (&forked.input, &forked.budget),
        (&started().input, &started().budget)
    );
    let row = &log.row;
    assert_eq!((row.status(), row.epoch), (Status::Created, Epoch(0)));
    assert!(row.facts.in_doubt.is_empty() && row.pulse.active_tools.is_empty());
    // Nothing has to be settled first: all of them begin again.
    log.epoch = Epoch(1);
    log.record(begun("doubt", Effect::Write))
        .record(begun("open", Effect::Write))
        .record(begun("failed", Effect::Write))
        .record(called("lost", Effect::Write));
    assert_eq!(
        log.refuse(begun("done", Effect::Write)),
        Illegal::StepHasResult(step_id("done"))
    );
}

#[test]
fn a_fork_has_its_limits_with_nothing_spent_and_shows_all_that_was() {
    let mut log = Log::new();
    log.record(asked("m")).record(answered("m", 30));
    fork_here(&mut log, &[]);
    log.record(asked("n")).record(answered("n", 12));
    let usage = &log.row.pulse.usage;
    assert_eq!((usage.spent.input_tokens, usage.model_calls), (42, 2));
    let own = log.row.own_usage();
    assert_eq!((own.spent.input_tokens, own.model_calls), (12, 1));
    assert_eq!((own.usd_micros(), usage.usd_micros()), (Some(12), Some(42)));
}

#[test]
fn a_fork_keeps_labels_document_and_signals_and_has_no_session_or_key() {
    let mut log = Log::of(
        RunStarted {
            key: Some("k".into()),
            labels: [("team".to_owned(), "blue".to_owned())].into(),
            session: Some(Session::new("s").unwrap()),
            ..started()
        },
        Epoch(1),
    );
    log.record(patched(
        json!([{ "op": "add", "path": "", "value": { "k": 1 } }]),
    ))
    .signal("go")
    .take_over()
    .wait(waiting(WaitKind::Approval))
    .pause();
    let (from, at) = (log.run, log.head().seq);
    fork_here(&mut log, &[]);
    let facts = &log.row.facts;
    assert_eq!((&facts.session, &facts.key), (&None, &None));
    assert_eq!(facts.labels["team"], "blue");
    assert_eq!(facts.document, json!({ "k": 1 }));
    let parent = facts.parent.as_ref().unwrap();
    assert_eq!((parent.run, parent.seq), (from, at));
    assert_eq!((log.row.pulse.takeovers, log.state.signals.len()), (0, 1));
    assert_eq!(log.row.ready_at(), Some(log.now), "it waits for nothing");
    assert_eq!(log.next_wait(), WaitId(3), "no wait is numbered twice");
}

#[test]
fn a_fork_takes_away_the_results_of_what_starts_again() {
    let mut kept = Log::new();
    kept.record(short("kept", json!(1)));
    let only_kept = kept.results;
    let child_of = |step: &str| ChildStarted {
        budget: Budget::default(),
        child: child(1),
        detached: false,
        step: step_id(step),
    };
    let child_done = |step: &str| ChildFinished {
        child: child(1),
        final_state_digest: Digest::of(b"child"),
        status: TerminalStatus::Completed,
        step: step_id(step),
        used: None,
    };
    let mut log = kept.clone();
    log.record(short("again", json!(2)))
        .record(begun("review", Effect::Idempotent))
        .record(child_of("review"))
        .record(child_done("review"))
        .record(broke("review"));
    let forked = fork_here(&mut log, &["again"]);
    assert_eq!(
        forked.forgotten,
        [step_id("again"), step_id("review")],
        "a step that starts again has another child"
    );
    assert_eq!(log.results, only_kept);
    assert_eq!(
        log.refuse(child_done("review")),
        Illegal::ChildNotOpen(child(1))
    );
}

#[test]
fn a_run_that_has_ended_is_forked_before_its_end_only() {
    let mut log = Log::new();
    log.record(short("a", json!(1))).fail("error");
    let fork = |log: &Log| Fork::of(log.run, Relation::Retry);
    let (whole, request) = (log.clone(), fork(&log));
    assert_eq!(
        log.fork(Seq(3), request.clone(), true),
        Err(Rejected::Ended(Status::Failed))
    );
    assert_eq!(log.state, whole.state);
    log.fork(Seq(2), request, true).unwrap();
    log.complete(json!("ok"));
    // And once more, from what the fork shares with the first.
    let request = fork(&log);
    log.fork(Seq(1), request, true).unwrap();
    assert_eq!((log.sealed.len(), log.status()), (2, Status::Created));
    let child = Fork {
        relation: Relation::Child,
        ..fork(&log)
    };
    assert_eq!(
        log.fork(Seq(2), child, true),
        Err(Rejected::Illegal(Illegal::ForkIsNoChild))
    );
}

#[test]
fn a_key_is_another_one_in_a_fork() {
    let mut log = Log::new();
    let key = |log: &Log| meaning::effect_key(&log.run, &step_id("pay").canonical(), None);
    let first = key(&log);
    fork_here(&mut log, &[]);
    assert_ne!(key(&log), first);
}
