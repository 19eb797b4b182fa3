//! Limits (SEMANTICS 27): each rule by name, and the law about money over a whole tree.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

mod common;

use common::*;
use logreel_core::event::*;
use logreel_core::*;
use proptest::prelude::*;
use serde_json::json;

fn limited(budget: Budget) -> Log {
    let started = RunStarted {
        budget,
        ..started()
    };
    Log::of(started, Epoch(1))
}

fn tokens(tokens: u64) -> Budget {
    Budget {
        tokens: Some(tokens),
        ..Budget::default()
    }
}

fn wall(seconds: u64) -> Budget {
    Budget {
        wall_ms: Some(seconds * 1000),
        ..Budget::default()
    }
}

fn over(limit: Limit, used: u64, allowed: u64) -> Rejected {
    Rejected::OverBudget(OverBudget {
        limit,
        used,
        allowed,
    })
}

fn starting(n: u8, budget: Budget) -> ChildStarted {
    ChildStarted {
        budget,
        child: child(n),
        detached: false,
        step: step_id(&format!("child {n}")),
    }
}

fn ended(n: u8, used: Option<Used>) -> ChildFinished {
    ChildFinished {
        child: child(n),
        final_state_digest: Digest::of(b"child"),
        status: TerminalStatus::Completed,
        step: step_id(&format!("child {n}")),
        used,
    }
}

fn raise(add: Budget) -> Outside {
    Outside::AddBudget {
        add,
        by: Some("ann".into()),
        child: None,
        wait: None,
    }
}

/// What the last event moved to a child.
fn moved(log: &Log) -> Budget {
    match &log.last().body {
        Body::ChildStarted(started) => started.budget.clone(),
        other => panic!("{}", other.kind()),
    }
}

#[track_caller]
fn refuses(log: &Log, body: impl Into<Body>, why: Rejected) {
    let decided = decide(&log.state, &log.results, log.epoch, body.into().into());
    assert_eq!(decided, Err(why), "{log:?}");
}

#[test]
fn a_call_may_overshoot_and_the_next_one_waits() {
    let mut log = limited(tokens(250));
    // Each reserves 100, spends as it likes.
    log.record(asked("a")).record(asked("b")).record(asked("c"));
    refuses(&log, asked("d"), over(Limit::Tokens, 300, 250));
    log.record(answered("a", 30)).record(answered("b", 40));
    log.record(asked("d"));
    log.record(answered("c", 90)).record(answered("d", 900));
    refuses(&log, asked("e"), over(Limit::Tokens, 1060, 250));
    // What costs no tokens goes on.
    log.record(called("t", Effect::Read))
        .record(short("s", json!(1)));
    assert_eq!(log.row.left().tokens, Some(0));
}

#[test]
fn money_is_counted_in_micro_dollars_and_an_unknown_price_as_reserved() {
    let mut log = limited(Budget {
        usd_micros: Some(150),
        ..Budget::default()
    });
    log.record(asked("a")).record(ModelFailed {
        call: call_id("a"),
        error: cause("error"),
        spent: Spend::default(),
        redacted: 0,
        retry_after_ms: None,
    });
    assert_eq!(log.row.used().usd_micros, 100);
    log.record(asked("b")).record(answered("b", 60));
    refuses(&log, asked("c"), over(Limit::Usd, 160, 150));
}

#[test]
fn after_a_crash_an_open_reservation_counts_as_spent() {
    let mut log = limited(tokens(150));
    log.record(asked("a")).take_over();
    assert_eq!(log.row.used().tokens, 100);
    assert_eq!(log.row.pulse.usage.spent.input_tokens, 0, "nobody knows it");
    log.record(asked("a")).record(answered("a", 10));
    assert_eq!(log.row.used().tokens, 110);
    // A call that was open at the end is settled by a late fact.
    log.record(asked("b")).cancel();
    assert_eq!(log.row.set_aside().tokens, 100);
    log.record(answered("b", 7));
    assert_eq!(
        (log.row.used().tokens, log.row.set_aside().tokens),
        (117, 0)
    );
}

#[test]
fn every_tool_call_and_every_child_counts() {
    let mut log = limited(Budget {
        children: Some(2),
        tool_calls: Some(1),
        ..Budget::default()
    });
    log.record(called("t", Effect::Idempotent));
    refuses(
        &log,
        called("u", Effect::Read),
        over(Limit::ToolCalls, 1, 1),
    );
    log.record(starting(1, Budget::default()));
    assert_eq!(moved(&log).children, Some(0), "half of one");
    log.record(starting(2, Budget::default()));
    refuses(
        &log,
        starting(3, Budget::default()),
        over(Limit::Children, 2, 2),
    );
}

#[test]
fn a_child_gets_what_it_asks_for_as_far_as_it_is_there_else_its_share() {
    let mut log = limited(tokens(1000));
    log.record(starting(1, tokens(300)));
    assert_eq!(moved(&log), tokens(300));
    // Three in one turn, and one share for the run itself.
    for (n, together) in [(2, 3), (3, 2), (4, 1)] {
        log.command(Command::StartChild {
            started: starting(n, Budget::default()),
            together,
        })
        .unwrap();
        assert_eq!(moved(&log), tokens(175), "child {n}");
    }
    log.record(starting(5, tokens(9999)));
    assert_eq!(moved(&log), tokens(175));
    refuses(&log, asked("a"), over(Limit::Tokens, 1000, 1000));
    // What a child did not use returns; what it overshot counts.
    let used = |tokens| {
        Some(Used {
            tokens,
            ..Used::default()
        })
    };
    log.record(ended(2, used(25))).record(ended(3, used(200)));
    assert_eq!(log.row.left(), tokens(125));
    // Who does not say may have used all of it.
    log.record(ended(4, None));
    assert_eq!(log.row.left(), tokens(125));
    // No limit of the run's own: the child has the one it asked for.
    let mut free = limited(Budget::default());
    free.record(starting(1, tokens(5)));
    assert_eq!(
        (moved(&free), free.row.left()),
        (tokens(5), Budget::default())
    );
}

#[test]
fn time_is_driven_time_only() {
    let mut log = limited(wall(100));
    log.at(10).record(short("a", json!(1)));
    // Waiting is not driving, and neither is a run that nobody has.
    log.wait(waiting(WaitKind::Approval));
    log.at(500).answer(None, true).unwrap();
    log.at(510).record(custom("tick"));
    assert_eq!(log.row.used().wall_ms, 20_000);
    // A signal does not show that a driver lives; its own next fact does.
    log.at(515).signal("go");
    assert_eq!(log.row.used().wall_ms, 20_000);
    log.at(520).record(custom("tick"));
    assert_eq!(log.row.used().wall_ms, 30_000);
    log.at(900).signal("go");
    log.at(1000).take_over();
    log.at(1070).record(custom("tick"));
    assert_eq!(log.row.used().wall_ms, 100_000);
    let why = over(Limit::Wall, 100_000, 100_000);
    refuses(&log, asked("m"), why.clone());
    refuses(&log, called("t", Effect::Read), why.clone());
    refuses(&log, starting(1, Budget::default()), why);
    log.record(short("b", json!(2)));
    log.outside(raise(wall(1))).unwrap();
    assert_eq!(log.row.check_wall(time(1070)), Ok(()));
    assert!(
        log.row.check_wall(time(1071)).is_err(),
        "before the log knows"
    );
}

#[test]
fn children_side_by_side_pass_the_same_time_together() {
    let mut log = limited(wall(100));
    // Decided on the log as it is: it does not know of these ten seconds yet.
    log.at(10).record(starting(1, Budget::default()));
    assert_eq!(moved(&log), wall(100));
    log.record(starting(2, Budget::default()));
    assert_eq!(moved(&log), wall(90));
    log.wait(waiting(WaitKind::Child));
    let used = |seconds: u64| {
        Some(Used {
            wall_ms: seconds * 1000,
            ..Used::default()
        })
    };
    log.at(60).claim(ClaimReason::Ready);
    log.record(ended(1, used(40))).record(ended(2, used(30)));
    assert_eq!(log.row.used().wall_ms, 50_000, "the longest chain");
    log.record(starting(3, Budget::default()));
    log.record(ended(3, used(50)));
    refuses(&log, asked("m"), over(Limit::Wall, 100_000, 100_000));
}

#[test]
fn raising_ends_the_wait_for_that_limit_and_the_run_goes_on() {
    let mut log = limited(Budget {
        usd_micros: Some(1_000_000),
        ..tokens(100)
    });
    log.record(asked("a"));
    refuses(&log, asked("b"), over(Limit::Tokens, 100, 100));
    log.record(answered("a", 100));
    let named = WaitStarted {
        name: Some("tokens".into()),
        ..waiting(WaitKind::Budget)
    };
    log.wait(named);
    assert_eq!(log.status(), Status::Waiting);
    assert_eq!(log.row.ready_at(), None, "only a person can act");
    let money = Budget {
        usd_micros: Some(5),
        ..Budget::default()
    };
    log.outside(raise(money)).unwrap();
    assert_eq!(log.status(), Status::Waiting, "it was not about money");
    assert_eq!(
        log.outside(raise(wall(1))),
        Err(Rejected::NoSuchLimit(Limit::Wall))
    );
    assert_eq!(
        log.outside(raise(Budget::default())),
        Err(Rejected::NothingToAdd)
    );
    log.outside(raise(tokens(50))).unwrap();
    assert!(
        matches!(&log.last().body, Body::WaitEnded(ended) if ended.outcome == WaitOutcome::Raised)
    );
    assert_eq!(log.row.ready_at(), Some(log.now));
    log.record(asked("b"));
}

#[test]
fn what_is_added_for_a_child_is_set_aside_for_it() {
    let mut log = limited(tokens(100));
    log.record(starting(1, tokens(60)));
    log.wait(WaitStarted {
        name: Some("tokens".into()),
        ..waiting(WaitKind::Budget)
    });
    log.outside(Outside::AddBudget {
        add: tokens(500),
        by: None,
        child: Some(child(1)),
        wait: None,
    })
    .unwrap();
    assert_eq!(log.row.facts.budget, tokens(600));
    assert_eq!(log.row.left(), tokens(40), "as before");
    assert_eq!(log.row.facts.waits.len(), 1, "and so is its own wait");
}

#[test]
fn a_fork_begins_with_nothing_used() {
    let mut log = limited(Budget {
        children: Some(5),
        ..tokens(200)
    });
    log.record(asked("a"))
        .record(answered("a", 150))
        .record(asked("b"))
        .record(starting(1, Budget::default()));
    let fork = Fork {
        budget: tokens(200),
        ..Fork::of(log.run, Relation::Retry)
    };
    log.fork(log.head().seq, fork, true).unwrap();
    assert_eq!(log.row.used(), Used::default());
    assert_eq!(log.row.set_aside(), Used::default());
    assert_eq!(
        log.row.pulse.usage.spent.input_tokens, 150,
        "it stays shown"
    );
}

/// A tree of runs, each with a log of its own, and what was really spent.
struct Tree {
    logs: Vec<Log>,
    /// The parent of each, and whether it has ended.
    above: Vec<Option<usize>>,
    over: Vec<bool>,
    budget: u64,
    spent: u64,
    /// What open calls reserved.
    open: Vec<Vec<(CallId, u64)>>,
    calls: u32,
    /// The most runs that were alive at once: each may overshoot by one call.
    slots: u64,
}

/// Small beside the budget, so that an overshoot hides no mistake.
const CALL_MAX: u64 = 6;

impl Tree {
    fn new(budget: u64) -> Self {
        Self {
            logs: vec![limited(tokens(budget))],
            above: vec![None],
            over: vec![false],
            budget,
            spent: 0,
            open: vec![Vec::new()],
            calls: 0,
            slots: 1,
        }
    }

    fn id(n: usize) -> RunId {
        child(u8::try_from(n).unwrap())
    }

    fn step(&mut self, (choice, a, b): (u8, u8, u8)) {
        let n = usize::from(a) % self.logs.len();
        if self.over[n] {
            return;
        }
        let amount = u64::from(b) % CALL_MAX + 1;
        let more = u64::from(b) % 50;
        match choice % 32 {
            0..=13 => {
                self.calls += 1;
                let call = call_id(&format!("c{}", self.calls));
                let asked = ModelCalled {
                    call: call.clone(),
                    reserved: spend(amount),
                    ..asked("x")
                };
                if self.logs[n].command(Body::from(asked)).is_ok() {
                    self.open[n].push((call, amount));
                }
            }
            14..=25 => {
                if let Some((call, reserved)) = self.open[n].pop() {
                    let spent = amount.min(reserved);
                    self.spent += spent;
                    self.logs[n].record(answered(call.as_str(), spent));
                }
            }
            26 | 27 if self.logs.len() < 9 => {
                let asked = match b % 3 {
                    0 => tokens(more),
                    _ => Budget::default(),
                };
                let new = self.logs.len();
                let started = ChildStarted {
                    child: Self::id(new),
                    ..starting(0, asked)
                };
                let together = u64::from(b % 4);
                self.logs[n]
                    .command(Command::StartChild { started, together })
                    .unwrap();
                self.logs.push(limited(moved(&self.logs[n])));
                self.above.push(Some(n));
                self.over.push(false);
                self.open.push(Vec::new());
                let alive = self.over.iter().filter(|over| !**over).count();
                self.slots = self.slots.max(alive as u64);
            }
            28 => self.end(n),
            29 => {
                // What a dead driver's calls cost, nobody will know; they may have cost it all.
                let lost: u64 = self.open[n].drain(..).map(|(_, reserved)| reserved).sum();
                self.spent += lost;
                self.logs[n].claim(ClaimReason::Ready);
            }
            30 => {
                // From the root down.
                let mut chain = vec![n];
                while let Some(above) = self.above[chain[0]] {
                    chain.insert(0, above);
                }
                for (at, run) in chain.iter().enumerate() {
                    let raise = Outside::AddBudget {
                        add: tokens(more),
                        by: None,
                        child: chain.get(at + 1).map(|below| Self::id(*below)),
                        wait: None,
                    };
                    self.logs[*run].outside(raise).unwrap();
                }
                self.budget += more;
            }
            _ => {}
        }
    }

    /// Ends a run and everyone below it, and settles it with the one above.
    fn end(&mut self, n: usize) {
        for below in n + 1..self.logs.len() {
            if self.above[below] == Some(n) && !self.over[below] {
                self.end(below);
            }
        }
        let Some(above) = self.above[n] else { return };
        self.logs[n].complete(json!(null));
        self.over[n] = true;
        let row = &self.logs[n].row;
        // Late answers may still come for what was open.
        let used = row.used().plus(row.set_aside());
        let finished = ChildFinished {
            child: Self::id(n),
            ..ended(0, Some(used))
        };
        self.logs[above].record(finished);
    }

    fn reserved(&self) -> u64 {
        let open = self.open.iter().flatten();
        open.map(|(_, reserved)| reserved).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Liveness and money: spent + reserved over the tree <= budget + one call's overshoot per slot.
    #[test]
    fn a_tree_stays_within_its_budget(
        budget in 0..300u64,
        wishes in prop::collection::vec(any::<(u8, u8, u8)>(), 0..400),
    ) {
        let mut tree = Tree::new(budget);
        for wish in wishes {
            tree.step(wish);
            let most = tree.budget + tree.slots * CALL_MAX;
            prop_assert!(tree.spent + tree.reserved() <= most, "{wish:?}");
            let root = &tree.logs[0].row;
            let counted = root.used().plus(root.set_aside()).tokens;
            prop_assert!(counted <= most, "the root counts {counted} of {most}");
        }
    }

    /// A run that was refused goes on once the limit was raised by more than it is over.
    #[test]
    fn a_raise_makes_room(budget in 0..200u64, calls in prop::collection::vec(0..90u64, 1..20)) {
        let mut log = limited(tokens(budget));
        for (n, spent) in calls.into_iter().enumerate() {
            let call = format!("c{n}");
            if let Err(why) = log.command(Body::from(asked(&call))) {
                let Rejected::OverBudget(over) = why else { panic!("{why}") };
                prop_assert!(over.used >= over.allowed);
                log.outside(raise(tokens(over.used - over.allowed + 1))).unwrap();
                log.record(asked(&call));
            }
            log.record(answered(&call, spent));
        }
    }
}
