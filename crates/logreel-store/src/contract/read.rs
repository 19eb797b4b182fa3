//! Rules of reading: pages, lists, names, sessions, counts and doorbells (SEMANTICS 10 and 11).

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use logreel_core::event::{Phase, Relation, RunStarted};
use logreel_core::{Digest, Event, Outside, Record, RunId, Seq, Status};
use serde_json::json;

use super::facts::{custom, from_parent, in_session, payload, phase, session, step, task};
use super::world::{list_all, read_all};
use super::{Harness, TestEnv, World};
use crate::{Cursor, Error, Filter, OwnerId, RunStore, SessionInfo, Since};

/// Fails a test that would otherwise hang; nothing is ever awaited for this long.
pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(20), future).await {
        Ok(value) => value,
        Err(_) => panic!("this did not happen within 20 s: {what}"),
    }
}

/// Pages: `from` is inclusive, `next` follows the last item, and past the end a page is empty.
pub async fn pages_join_without_a_gap(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("paged")).await;
    for group in 0..5 {
        let drafts = (0..5)
            .map(|index| custom("e", json!([group, index])))
            .collect();
        pen.write(drafts).await;
    }
    let whole = read_all(&*world.store, &pen.run, 1000).await;
    assert_eq!(whole.len(), 26);
    for limit in [1, 2, 7, 26] {
        assert_eq!(
            read_all(&*world.store, &pen.run, limit).await,
            whole,
            "pages of {limit}"
        );
    }
    let page = world
        .store
        .read(&pen.run, Seq(25), 100)
        .await
        .expect("a page");
    assert_eq!(
        (page.items.len(), page.next, page.has_more),
        (2, Seq(27), false)
    );
    for from in [Seq(27), Seq(1000)] {
        let page = world.store.read(&pen.run, from, 10).await.expect("a page");
        assert_eq!(
            (page.items.len(), page.next, page.has_more),
            (0, from, false),
            "past the end"
        );
    }
    pen.write(vec![step("a", json!(1))]).await;
    let page = world
        .store
        .read(&pen.run, Seq(27), 10)
        .await
        .expect("a page");
    assert_eq!(
        page.items.len(),
        1,
        "an empty page's `next` is where the log goes on"
    );
    world.finish().await;
}

/// The news of all runs join without a gap, whoever wrote and whatever was deleted.
pub async fn news_tell_of_every_event_once_in_the_order_it_was_stored(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let (mut a, mut b) = (world.driven(task("a")).await, world.driven(task("b")).await);
    let now = world.store.news(&Since::Now, 10).await.expect("the end");
    assert_eq!((now.items.as_slice(), now.has_more), ([].as_slice(), false));
    let two = || vec![custom("e", json!(1)), custom("e", json!(2))];
    a.write(two()).await;
    b.write(two()).await;
    let gone = world.create(task("gone"), None).await.row.run;
    world.cancel(&gone).await;
    world.store.delete(&gone).await.expect("an ended run");
    a.write(two()).await;
    let (a, b) = (a.run, b.run);
    let later = [(a, 2), (a, 3), (b, 2), (b, 3), (a, 4), (a, 5)];
    let all = [vec![(a, 1), (b, 1)], later.to_vec()].concat();
    let second = world.second().await;
    for (since, limit, expected) in [
        (Since::After(now.next.clone()), 100, later.to_vec()),
        (Since::After(now.next), 1, later.to_vec()),
        (Since::Beginning, 3, all),
    ] {
        let (mut since, mut seen) = (since, Vec::new());
        loop {
            let page = second.news(&since, limit).await.expect("a page");
            let last = page.items.last().map(|it| it.next.clone());
            assert_eq!(last.unwrap_or_else(|| page.next.clone()), page.next);
            seen.extend(page.items.iter().map(|it| (it.run, it.seq.0)));
            since = Since::After(page.next);
            if !page.has_more {
                break;
            }
        }
        assert_eq!(seen, expected, "pages of {limit}");
    }
    // No cursor, and one of another store that has come further: nothing would be heard after it.
    for wrong in ["x", "999999999999"] {
        let wrong = Since::After(Cursor(wrong.to_owned()));
        let refused = second.news(&wrong, 1).await;
        assert!(
            matches!(refused, Err(Error::InvalidCursor(_))),
            "{refused:?}"
        );
    }
    drop(second);
    world.finish().await;
}

/// A scan is page after page: every event once, in order, from where it is told and until it is
/// stopped; an unknown run is not found.
pub async fn a_scan_hands_over_the_log_in_order(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut pen = world.driven(task("scanned")).await;
    for group in 0..45 {
        let drafts = (0..50)
            .map(|index| custom("e", json!([group, index])))
            .collect();
        pen.write(drafts).await;
    }
    let records = read_all(&*world.store, &pen.run, 1000).await;
    let decode = |record: &Record| record.decode().expect("an event");
    let whole: Vec<Event> = records.iter().map(decode).collect();
    assert_eq!(whole.len(), 45 * 50 + 1);
    for (from, count) in [
        (0, usize::MAX),
        (1, 1),
        (1, 512),
        (513, 700),
        (700, usize::MAX),
    ] {
        let mut seen = Vec::new();
        let mut each = |event| {
            seen.push(event);
            match seen.len() < count {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let scanned = world.store.scan(&pen.run, Seq(from), &mut each).await;
        let begin = usize::try_from(from).expect("it is small").max(1) - 1;
        let end = begin.saturating_add(count).min(whole.len());
        assert_eq!(seen, whole[begin..end], "{count} events from {from}");
        assert_eq!(scanned.expect("a scan"), whole[end - 1].seq.next());
    }
    let mut none = |event: Event| -> ControlFlow<()> { panic!("there is no {event:?}") };
    for past in [Seq(2252), Seq(5000)] {
        let scanned = world.store.scan(&pen.run, past, &mut none).await;
        assert_eq!(scanned.expect("nothing is there yet"), past);
    }
    let unknown = RunId::from_bytes([7; 16]);
    let scanned = world.store.scan(&unknown, Seq::FIRST, &mut none).await;
    assert!(matches!(scanned, Err(Error::NotFound(run)) if run == unknown));
    world.finish().await;
}

/// Rule 10: runs list newest first in the order of creation, whatever the clock and their ids say.
pub async fn runs_list_in_the_order_of_creation(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut created = Vec::new();
    for index in 0..7_u64 {
        // The clock goes back, so ids and times are in the opposite order.
        world
            .env
            .set_now(TestEnv::START - Duration::from_secs(index));
        created.push(world.create(task("listed"), None).await.row.run);
    }
    created.reverse();
    for limit in [1, 2, 3, 7, 100] {
        let listed = list_all(&*world.store, &Filter::default(), limit).await;
        let listed: Vec<RunId> = listed.iter().map(|entry| entry.row.run).collect();
        assert_eq!(listed, created, "pages of {limit}");
    }
    let first = world
        .store
        .list(&Filter::default(), None, 3)
        .await
        .expect("a page of runs");
    assert!(first.next.is_some(), "there is more");
    world.create(task("newer"), None).await;
    world.cancel(&created[4]).await;
    world
        .store
        .delete(&created[4])
        .await
        .expect("an ended run is deleted");
    let rest = world
        .store
        .list(&Filter::default(), first.next.as_ref(), 3)
        .await
        .expect("a page");
    let rest: Vec<RunId> = rest.items.iter().map(|entry| entry.row.run).collect();
    assert_eq!(
        rest,
        [created[3], created[5], created[6]],
        "a cursor keeps its place"
    );
    world.finish().await;
}

/// Every filter, alone and together; a page of filtered runs is full.
pub async fn lists_filter_by_every_field(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let labels = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    let blue = RunStarted {
        labels: labels(&[("team", "blue"), ("env", "prod")]),
        ..in_session("alpha", "s1")
    };
    let blue = world.create(blue, None).await.row.run;
    let red = RunStarted {
        labels: labels(&[("team", "red"), ("env", "prod")]),
        ..task("beta")
    };
    let red = world.create(red, None).await.row.run;
    world.env.advance(Duration::from_secs(10));
    let child = world
        .create(from_parent("alpha", red, Relation::Child), None)
        .await
        .row
        .run;
    let mut done = world.driven(task("gamma")).await;
    done.complete(json!("same")).await;
    done.release().await;
    world.cancel(&blue).await;
    let state = world
        .entry(&done.run)
        .await
        .row
        .facts
        .ended
        .clone()
        .expect("it ended");

    let all = Filter::default();
    let cases: Vec<(&str, Filter, Vec<RunId>)> = vec![
        ("all", all.clone(), vec![done.run, child, red, blue]),
        (
            "status",
            Filter {
                status: vec![Status::Cancelled],
                ..all.clone()
            },
            vec![blue],
        ),
        (
            "statuses",
            Filter {
                status: vec![Status::Created, Status::Completed],
                ..all.clone()
            },
            vec![done.run, child, red],
        ),
        (
            "session",
            Filter {
                session: Some(session("s1")),
                ..all.clone()
            },
            vec![blue],
        ),
        (
            "agent",
            Filter {
                agent: Some("alpha".into()),
                ..all.clone()
            },
            vec![child, blue],
        ),
        (
            "no agent",
            Filter {
                agent: Some("alph".into()),
                ..all.clone()
            },
            vec![],
        ),
        (
            "label",
            Filter {
                labels: vec![("env".into(), "prod".into())],
                ..all.clone()
            },
            vec![red, blue],
        ),
        (
            "labels",
            Filter {
                labels: vec![("env".into(), "prod".into()), ("team".into(), "red".into())],
                ..all.clone()
            },
            vec![red],
        ),
        (
            "label's value",
            Filter {
                labels: vec![("env".into(), "blue".into())],
                ..all.clone()
            },
            vec![],
        ),
        (
            "since",
            Filter {
                since: Some(TestEnv::START + Duration::from_secs(10)),
                ..all.clone()
            },
            vec![done.run, child],
        ),
        (
            "before",
            Filter {
                before: Some(TestEnv::START + Duration::from_secs(10)),
                ..all.clone()
            },
            vec![red, blue],
        ),
        (
            "before, and with a label",
            Filter {
                before: Some(TestEnv::START + Duration::from_secs(10)),
                labels: vec![("team".into(), "red".into())],
                ..all.clone()
            },
            vec![red],
        ),
        (
            "spec",
            Filter {
                spec_digest: Some(Digest::of(b"alpha")),
                ..all.clone()
            },
            vec![child, blue],
        ),
        (
            "final state",
            Filter {
                final_state_digest: Some(state.final_state_digest),
                ..all.clone()
            },
            vec![done.run],
        ),
        (
            "parent",
            Filter {
                parent: Some(red),
                ..all.clone()
            },
            vec![child],
        ),
        (
            "together",
            Filter {
                agent: Some("alpha".into()),
                status: vec![Status::Created],
                ..all
            },
            vec![child],
        ),
    ];
    for stage in ["open", "reopened"] {
        for (what, filter, expected) in &cases {
            for limit in [1, 10] {
                let found = list_all(&*world.store, filter, limit).await;
                let found: Vec<RunId> = found.iter().map(|entry| entry.row.run).collect();
                assert_eq!(found, *expected, "{stage}: by {what}, pages of {limit}");
            }
        }
        world.reopen().await;
    }
    world.finish().await;
}

/// Orphans are found by whoever looks for them, alone or beside statuses: at work, and their owner is gone.
pub async fn orphans_are_listed_alone_and_beside_statuses(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let mut orphans = Vec::new();
    for agent in ["a", "b", "a"] {
        let mut pen = world.driven(task(agent)).await;
        pen.write(vec![phase(Phase::Executing)]).await;
        orphans.insert(0, pen.run);
    }
    let held = world.driven(task("held, and never begun")).await.run;
    let two = world.owner(2).await;
    let queued = world.create(task("a"), None).await.row.run;
    let mut lives = world.claimed(&queued, two).await;
    lives.write(vec![phase(Phase::Executing)]).await;
    let cancelled = world.create(task("a"), None).await.row.run;
    world.cancel(&cancelled).await;

    let agents = |agent: &str| Filter {
        agent: Some(agent.into()),
        orphaned: true,
        ..Filter::default()
    };
    let statuses = |status: &[Status]| Filter {
        status: status.to_vec(),
        orphaned: true,
        ..Filter::default()
    };
    let check = async |filter: &Filter, expected: &[RunId]| {
        for limit in [1, 2, 10] {
            let found = list_all(&*world.store, filter, limit).await;
            let found: Vec<RunId> = found.iter().map(|entry| entry.row.run).collect();
            assert_eq!(found, expected, "{filter:?}, pages of {limit}");
        }
    };
    check(&statuses(&[]), &[]).await;
    check(&statuses(&[Status::Cancelled]), &[cancelled]).await;
    world
        .store
        .leave(OwnerId(1))
        .await
        .expect("the owner leaves");
    let [third, second, first] = [orphans[0], orphans[1], orphans[2]];
    check(&statuses(&[]), &orphans).await;
    check(&agents("b"), &[second]).await;
    check(&agents("nobody"), &[]).await;
    let beside = [Status::Cancelled, Status::Created];
    check(&statuses(&beside), &[cancelled, held, third, second, first]).await;
    let executing = [lives.run, third, second, first];
    check(&statuses(&[Status::Executing]), &executing).await;
    world.claimed(&second, two).await;
    check(&statuses(&[]), &[third, first]).await;
    world.finish().await;
}

/// Search: every word, whole, in any case, in input, output, agent or labels; newest first.
pub async fn search_finds_whole_words_of_input_output_agent_and_labels(harness: &dyn Harness) {
    let mut world = World::new(harness).await;
    let input = payload(json!({ "question": "Where is the Reykjavik\noffice?" }));
    let labels = [("customer".to_owned(), "Initech".to_owned())].into();
    let asked = RunStarted {
        input,
        labels,
        ..task("concierge")
    };
    let mut asked = world.driven(asked).await;
    let other = world.create(
        RunStarted {
            input: payload(json!("office hours")),
            ..task("clerk")
        },
        None,
    );
    let other = other.await.row.run;
    let search = async |world: &World<'_>, words: &str| -> Vec<RunId> {
        let filter = Filter {
            search: Some(words.into()),
            ..Filter::default()
        };
        let found = list_all(&*world.store, &filter, 1).await;
        found.iter().map(|entry| entry.row.run).collect()
    };
    assert_eq!(
        search(&world, "Laugavegur").await,
        [],
        "there is no output yet"
    );
    asked.complete(json!("Laugavegur 7")).await;
    asked.release().await;
    for stage in ["open", "reopened"] {
        for (words, expected) in [
            ("reykjavik", vec![asked.run]),
            ("REYKJAVIK office", vec![asked.run]),
            ("office", vec![other, asked.run]),
            ("laugavegur", vec![asked.run]),
            ("concierge", vec![asked.run]),
            ("initech", vec![asked.run]),
            ("reykjavik hours", vec![]),
            ("reyk", vec![]),
            ("nothing", vec![]),
            // Operators and quotes of a search engine are only words here.
            ("office AND hours", vec![]),
            ("office -hours", vec![other]),
            ("\"office", vec![other, asked.run]),
            ("offi*", vec![]),
        ] {
            assert_eq!(search(&world, words).await, expected, "{stage}: {words}");
        }
        world.reopen().await;
    }
    world
        .store
        .delete(&asked.run)
        .await
        .expect("an ended run is deleted");
    assert_eq!(
        search(&world, "reykjavik").await,
        [],
        "a deleted run is not found"
    );
    assert_eq!(search(&world, "office").await, [other]);
    world.finish().await;
}

/// A run is found by the beginning of its id, with or without `run_`, or by its short form.
pub async fn find_takes_a_prefix_or_the_short_form(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let one = world.create(task("one"), None).await.row.run;
    // Another millisecond, so that the ids differ within their first 13 characters.
    world.env.advance(Duration::from_millis(5));
    let two = world.create(task("two"), None).await.row.run;
    let text = two.to_string();
    let bare = &text["run_".len()..];
    for name in [&text, bare, &text[..17], &bare[..13], &two.short()] {
        assert_eq!(
            world.store.find(name, 5).await.expect("a search by name"),
            [two],
            "{name}"
        );
    }
    let mut both = world
        .store
        .find(&text[..10], 5)
        .await
        .expect("a search by name");
    both.sort();
    assert_eq!(both, [one, two], "what is ambiguous is all there");
    assert_eq!(
        world
            .store
            .find(&text[..10], 1)
            .await
            .expect("a search by name")
            .len(),
        1
    );
    // Wildcards and quotes of a query language are only characters here.
    for name in ["zzzz", "%", "_", "run_%", &two.short()[..7], "0' OR 1=1"] {
        assert_eq!(
            world.store.find(name, 5).await.expect("a search by name"),
            [],
            "{name:?}"
        );
    }
    world.finish().await;
}

/// Sessions, latest first, with their runs and the active one.
pub async fn sessions_show_their_runs_and_the_active_one(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let first = world.create(in_session("a", "old"), None).await;
    world.env.advance(Duration::from_secs(1));
    let second = world.create(in_session("a", "new"), None).await;
    world.cancel(&second.row.run).await;
    world.env.advance(Duration::from_secs(1));
    let third = world.create(in_session("a", "new"), None).await;
    world.cancel(&third.row.run).await;
    world.create(task("none"), None).await;
    let info = |name, runs, active, at: &crate::Entry| SessionInfo {
        session: session(name),
        runs,
        active,
        last_created_at: Some(at.row.facts.created_at),
        closed: false,
    };
    let expected = [
        info("new", 2, None, &third),
        info("old", 1, Some(first.row.run), &first),
    ];
    assert_eq!(world.store.sessions().await.expect("sessions"), expected);
    // One of them is found alone as it is among all, also when it was only closed.
    let closed = session("closed");
    let closing = world.store.close_session(&closed).await;
    closing.expect("it is closed");
    let all = world.store.sessions().await.expect("sessions");
    assert_eq!((all.len(), &all[2].session), (3, &closed));
    for info in all {
        let one = world.store.session(&info.session).await;
        assert_eq!(one.expect("a session"), Some(info));
    }
    let unknown = world.store.session(&session("unknown")).await;
    assert_eq!(unknown.expect("an answer"), None);
    world.finish().await;
}

/// Counts are those of what is there.
pub async fn stats_count_what_is_there(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let empty = world.store.stats().await.expect("stats");
    assert_eq!((empty.events, empty.blobs, empty.blob_bytes), (0, 0, 0));
    let mut pen = world.driven(task("one")).await;
    pen.write(vec![phase(Phase::Executing), step("a", json!(1))])
        .await;
    let queued = world.create(task("two"), None).await.row.run;
    world.create(task("three"), None).await;
    world.cancel(&queued).await;
    let stats = world.store.stats().await.expect("stats");
    let count = |status| {
        let of = stats.runs.iter().filter(|(of, _)| *of == status);
        of.map(|(_, runs)| *runs).sum::<u64>()
    };
    assert_eq!(stats.events, 6);
    for (status, runs) in [
        (Status::Executing, 1),
        (Status::Cancelled, 1),
        (Status::Created, 1),
        (Status::Completed, 0),
        (Status::Waiting, 0),
    ] {
        assert_eq!(count(status), runs, "{status}");
    }
    world.finish().await;
}

/// A doorbell rings for every kind of change, whoever makes it, and is not lost when it rang early.
pub async fn doorbells_ring_for_every_change_by_whoever_made_it(harness: &dyn Harness) {
    let world = World::new(harness).await;
    let second = world.second().await;
    let run = world.create(task("watched"), None).await.row.run;
    let owner = world.owner(1).await;
    for (whose, store) in [
        ("the same instance", &world.store),
        ("another instance", &second),
    ] {
        let mut bells = [store.watch(&run), store.watch_others(&run)];
        let mut any = store.watch_all();
        let mut pen = match world
            .store
            .claim(&run, owner)
            .await
            .expect("a claim is answered")
        {
            crate::ClaimOutcome::Claimed(entry) => world.pen(&entry),
            other => panic!("it is ready, so not {other:?}"),
        };
        hear(&**store, &mut bells, &run, whose, "a claim", |entry| {
            entry.driver.is_some()
        })
        .await;
        pen.write(vec![custom("rings", json!(whose))]).await;
        let head = pen.head;
        // The driver of the same instance knows what it appends.
        let told = if Arc::ptr_eq(store, &world.store) {
            1
        } else {
            2
        };
        let bells_told = &mut bells[..told];
        hear(&**store, bells_told, &run, whose, "an append", |it| {
            it.row.head == head
        })
        .await;
        let say = Outside::Say {
            text: "ding".into(),
            by: None,
        };
        let head = world.command(&run, whose, say).await.entry.row.head;
        hear(&**store, &mut bells, &run, whose, "a command", |it| {
            it.row.head == head
        })
        .await;
        pen.release().await;
        hear(&**store, &mut bells, &run, whose, "a release", |it| {
            it.driver.is_none()
        })
        .await;
        let created = world.create(task("new"), None).await.row.run;
        soon("the bell of all runs rings for a new one", async {
            while store.entry(&created).await.is_err() {
                assert!(any.rung().await, "the store is there");
            }
            assert!(any.rung().await, "the store is there");
        })
        .await;
    }
    drop(second);
    world.finish().await;
}

/// Reads whenever a bell rings until the change is there, for each of the bells.
async fn hear(
    store: &dyn RunStore,
    bells: &mut [crate::Doorbell],
    run: &RunId,
    whose: &str,
    what: &str,
    there: impl Fn(&crate::Entry) -> bool,
) {
    for (bell, which) in bells.iter_mut().zip(["doorbell", "driver's doorbell"]) {
        let what = format!("the {which} of {whose} rings for {what}");
        let hears = async {
            loop {
                assert!(bell.rung().await, "the store is there");
                if there(&store.entry(run).await.expect("the run is known")) {
                    return;
                }
            }
        };
        soon(&what, hears).await;
    }
}
