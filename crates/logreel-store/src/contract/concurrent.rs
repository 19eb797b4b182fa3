//! Rules that only show when many do something at once: SEMANTICS 1, 4, 5, 6 and 11.

use std::sync::Arc;

use logreel_core::event::Phase;
use logreel_core::{Outside, RunId, Seq};
use serde_json::json;
use tokio::task::JoinSet;

use super::facts::{append_id, custom, in_session, phase, step, task, with_key};
use super::read::soon;
use super::{Harness, World};
use crate::{AppendError, ClaimOutcome, CreateError, Created, Env, NewRun, RunStore};

async fn all<T: 'static>(mut tasks: JoinSet<T>) -> Vec<T> {
    let mut results = Vec::new();
    while let Some(result) = soon("all tasks end", tasks.join_next()).await {
        results.push(result.expect("no task panics"));
    }
    results
}

/// Rule 5: appends of many runs are batched or not, and each lands, once, in its own log.
pub async fn appends_to_many_runs_all_land(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut tasks = JoinSet::new();
    for index in 0..32 {
        let mut pen = world.driven(task(&format!("run-{index}"))).await;
        tasks.spawn(async move {
            for number in 0..20 {
                let events = pen
                    .write(vec![custom("mine", json!([index, number]))])
                    .await;
                assert_eq!(
                    events[0].seq,
                    Seq(number + 2),
                    "every append is next in its own run"
                );
            }
            (index, pen.run)
        });
    }
    for (index, run) in all(tasks).await {
        let events = super::check_run(&*world.store, &run).await;
        assert_eq!(events.len(), 21);
        for (number, event) in events[1..].iter().enumerate() {
            let logreel_core::Body::Custom(mine) = &event.body else {
                panic!("{event:?}")
            };
            assert_eq!(
                mine.data,
                super::facts::payload(json!([index, number])),
                "nobody else's"
            );
        }
    }
    world.finish().await;
}

/// Rule 5: a refused append of a batch fails alone.
pub async fn a_refused_append_of_a_batch_fails_alone(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut tasks = JoinSet::new();
    for index in 0..16_u64 {
        let mut pen = world.driven(task(&format!("run-{index}"))).await;
        tasks.spawn(async move {
            for number in 0..8 {
                if index % 2 == 0 {
                    pen.write(vec![step(&format!("s{number}"), json!(number))])
                        .await;
                } else {
                    let stale = crate::Append {
                        expect: logreel_core::chain::origin(&pen.run),
                        ..pen.append(vec![step("never", json!(null))])
                    };
                    let error = pen.send(stale).await.expect_err("a stale head");
                    assert!(matches!(error, AppendError::Conflict { .. }), "{error:?}");
                }
            }
            (index, pen.run)
        });
    }
    for (index, run) in all(tasks).await {
        let length = super::check_run(&*world.store, &run).await.len();
        assert_eq!(length, if index % 2 == 0 { 9 } else { 1 }, "run {index}");
    }
    world.finish().await;
}

/// Rule 1: of appends that race on one head exactly one lands; the others are told the new head.
pub async fn of_appends_racing_on_one_head_one_lands(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let second = world.second().await;
    let mut pen = world.driven(task("raced")).await;
    for round in 0..10 {
        let mut tasks = JoinSet::new();
        for racer in 0..8 {
            let store = if racer % 2 == 0 {
                world.store.clone()
            } else {
                second.clone()
            };
            let id = append_id(&format!("{round}/{racer}"));
            let append = pen.append_as(id, vec![custom("race", json!([round, racer]))]);
            tasks.spawn(async move { store.append(&append).await });
        }
        let mut landed = Vec::new();
        let mut conflicts = Vec::new();
        for answer in all(tasks).await {
            match answer {
                Ok(appended) => landed.push(appended),
                Err(AppendError::Conflict { head }) => conflicts.push(head),
                Err(error) => panic!("landed or conflict, not {error:?}"),
            }
        }
        assert_eq!((landed.len(), conflicts.len()), (1, 7), "round {round}");
        pen.catch_up().await;
        assert_eq!(
            pen.head.digest, landed[0].events[0].digest,
            "the log goes on from the winner"
        );
        assert!(
            conflicts.iter().all(|head| *head == pen.head),
            "the losers are told the head"
        );
    }
    drop(second);
    assert_eq!(world.entry(&pen.run).await.row.head.seq, Seq(11));
    world.finish().await;
}

/// Rule 2: of the same append sent by many at once, one is new and all get the same answer.
pub async fn the_same_append_sent_by_many_lands_once(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("resent")).await;
    for round in 0..5 {
        let append = if round % 2 == 0 {
            pen.append(vec![custom("once", json!(round))])
        } else {
            pen.append_as(
                append_id(&format!("round {round}")),
                vec![custom("once", json!(round))],
            )
        };
        let mut tasks = JoinSet::new();
        for _ in 0..8 {
            let (store, append) = (world.store.clone(), append.clone());
            tasks.spawn(async move { store.append(&append).await.expect("it lands or landed") });
        }
        let answers = all(tasks).await;
        assert_eq!(
            answers.iter().filter(|answer| !answer.repeated).count(),
            1,
            "one is new"
        );
        assert!(
            answers
                .iter()
                .all(|answer| answer.events == answers[0].events),
            "one answer"
        );
        pen.catch_up().await;
    }
    assert_eq!(world.entry(&pen.run).await.row.head.seq, Seq(6));
    world.finish().await;
}

/// Rules 3 and 4: commands never conflict beside a busy driver, whose appends all land in the end.
pub async fn commands_never_conflict_beside_a_busy_driver(harness: &dyn Harness) {
    const COMMANDS: usize = 40;
    const STEPS: usize = 60;
    let world = World::new(harness).await;
    let second = world.second().await;
    let mut pen = world.driven(task("busy")).await;
    pen.write(vec![phase(Phase::Executing)]).await;
    let run = pen.run;
    let mut commands = JoinSet::new();
    for teller in 0..4 {
        let store = if teller % 2 == 0 {
            world.store.clone()
        } else {
            second.clone()
        };
        commands.spawn(async move {
            for number in 0..COMMANDS / 4 {
                let id = append_id(&format!("{teller}/{number}"));
                let say = Outside::Say {
                    text: format!("{teller} says {number}"),
                    by: None,
                };
                let said = store
                    .command(&run, &id, &say, vec![])
                    .await
                    .expect("it cannot conflict");
                assert_eq!(
                    (said.answer, said.repeated, said.events.len()),
                    (Ok(()), false, 1)
                );
            }
        });
    }
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        for number in 0..STEPS {
            // A driver's way: on a conflict read what came and append the same result again.
            loop {
                match pen
                    .try_write(vec![step(&format!("s{number}"), json!(number))])
                    .await
                {
                    Ok(_) => break,
                    Err(AppendError::Conflict { .. }) => pen.catch_up().await,
                    Err(error) => panic!("a driver lands or conflicts, not {error:?}"),
                }
            }
        }
    });
    all(commands).await;
    all(driver).await;
    drop(second);
    let events = super::check_run(&*world.store, &run).await;
    let of = |kind| {
        events
            .iter()
            .filter(|event| event.body.kind() == kind)
            .count()
    };
    assert_eq!(
        (of("message.queued"), of("step.finished")),
        (COMMANDS, STEPS)
    );
    world.finish().await;
}

/// Rule 6: of creates that race for one key, session or id, exactly one is new.
pub async fn of_creates_racing_for_one_name_one_is_new(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let second = world.second().await;
    let same_id = world.env.run_id();
    for (what, started, id) in [
        ("key", with_key("raced", "k"), None),
        ("session", in_session("raced", "s"), None),
        ("id", task("raced"), Some(same_id)),
    ] {
        let mut tasks = JoinSet::new();
        for racer in 0..8 {
            let store = if racer % 2 == 0 {
                world.store.clone()
            } else {
                second.clone()
            };
            let run = id.unwrap_or_else(|| world.env.run_id());
            let new = NewRun {
                run,
                started: started.clone(),
                blobs: vec![],
                owner: None,
                then: Vec::new(),
            };
            tasks.spawn(async move { store.create(new).await });
        }
        let mut new: Vec<RunId> = Vec::new();
        let mut others: Vec<RunId> = Vec::new();
        for answer in all(tasks).await {
            match answer {
                Ok(Created::New(entry)) => new.push(entry.row.run),
                Ok(Created::Attached(entry)) => others.push(entry.row.run),
                Err(CreateError::Busy { active, .. }) if what == "session" => others.push(active),
                Err(error) => panic!("{what}: {error:?}"),
            }
        }
        assert_eq!((new.len(), others.len()), (1, 7), "{what}");
        assert!(
            others.iter().all(|run| *run == new[0]),
            "{what}: all others are told which"
        );
    }
    drop(second);
    world.finish().await;
}

/// Rule 18: of workers that race for a run, exactly one drives it.
pub async fn of_claims_racing_for_one_run_one_drives(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let second = world.second().await;
    for round in 0..5_u64 {
        let run = world.create(task("claimed"), None).await.row.run;
        let mut tasks = JoinSet::new();
        for racer in 0..8 {
            let store = if racer % 2 == 0 {
                world.store.clone()
            } else {
                second.clone()
            };
            let owner = world.owner(round * 8 + racer + 1).await;
            tasks
                .spawn(async move { store.claim(&run, owner).await.expect("a claim is answered") });
        }
        let answers = all(tasks).await;
        let won = answers
            .iter()
            .filter(|it| matches!(it, ClaimOutcome::Claimed(_)))
            .count();
        let lost = answers
            .iter()
            .filter(|it| matches!(it, ClaimOutcome::Driven(_)))
            .count();
        assert_eq!((won, lost), (1, 7), "round {round}: {answers:?}");
    }
    drop(second);
    world.finish().await;
}

/// Rule 11: a reader that follows the doorbell sees every event once, in order, in any instance,
/// while other runs are deleted.
pub async fn a_tail_sees_every_event_once_while_others_are_deleted(harness: &dyn Harness) {
    const EVENTS: u64 = 120;
    let world = World::new(harness).await;
    let second = world.second().await;
    let mut pen = world.driven(task("tailed")).await;
    let run = pen.run;
    let mut tails = JoinSet::new();
    for reader in 0..4 {
        let store = if reader % 2 == 0 {
            world.store.clone()
        } else {
            second.clone()
        };
        tails.spawn(async move { tail(&store, &run, EVENTS + 1).await });
    }
    for number in 0..EVENTS {
        pen.write(vec![custom("tailed", json!(number))]).await;
        if number % 8 == 0 {
            let other = world.create(task("other"), None).await.row.run;
            world.cancel(&other).await;
            world
                .store
                .delete(&other)
                .await
                .expect("an ended run is deleted");
        }
    }
    let expected: Vec<u64> = (1..=EVENTS + 1).collect();
    for seen in all(tails).await {
        assert_eq!(seen, expected, "each once, in order");
    }
    drop(second);
    world.finish().await;
}

async fn tail(store: &Arc<dyn RunStore>, run: &RunId, until: u64) -> Vec<u64> {
    let mut bell = store.watch(run);
    let mut seen = Vec::new();
    let mut next = Seq::FIRST;
    soon("a tail sees the last event", async {
        loop {
            let page = store.read(run, next, 10).await.expect("a page");
            seen.extend(page.items.iter().map(|record| record.seq.0));
            next = page.next;
            if next.0 > until {
                return;
            }
            if !page.has_more {
                assert!(bell.rung().await, "the store is there");
            }
        }
    })
    .await;
    seen
}
