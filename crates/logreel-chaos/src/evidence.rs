//! What must be true of logs, ledger and what witnesses saw, whatever was done to the fleet. It only compares: where
//! all of that comes from is [`judge`](crate::judge)'s.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::clock::millis;
use crate::errand::{Chains, Does, Step};
use crate::fleet::Freeze;
use crate::ledger::Entry;
use crate::report::Report;
use crate::witness::{Seen, Told};

pub struct Event {
    pub seq: u64,
    pub epoch: u64,
    pub kind: String,
    pub digest: String,
    /// The database's clock when it was stored, in microseconds since 1970.
    pub stored_at: i64,
    pub body: Value,
}

/// Events by run, in order.
pub type Logs = BTreeMap<String, Vec<Event>>;

/// How soon after it was woken a worker does what it was about to do: its command needs no more than to be begun, on a
/// machine that does much else.
const AFTER_WAKING: Duration = millis(1000);
/// After so many takeovers without a new result a run waits for a person (SEMANTICS 17).
const TAKEOVERS: usize = 5;
/// Of so many runs some are told something from outside.
const TOLD_OF: usize = 8;
/// How far the database's stamps may be ahead of its clock, in microseconds: they are never behind what a client
/// estimates it to be.
const AHEAD: i64 = 50_000;

/// What must have been seen at least, because an experiment in which too little happened shows nothing. What nothing is
/// expected of is only told.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expected {
    /// Signals that came before their run waited for them.
    pub kept: usize,
    /// Signals that came while it did.
    pub heard: usize,
    /// Runs that were taken from a worker that was lost.
    pub taken_up: usize,
    /// Writes in doubt that `reconcile` settled.
    pub settled: usize,
    /// Questions to the ledger.
    pub questions: usize,
    /// And at most: as many repeats of frozen workers may be chance, because a command is begun within milliseconds of
    /// the look before it. More are a look that is not made.
    pub repeats_most: usize,
}

pub struct Evidence<'e> {
    pub logs: &'e Logs,
    pub entries: &'e [Entry],
    pub seen: &'e Seen,
    pub freezes: &'e [Freeze],
    pub lease: Duration,
    /// What runs do, by the name of what they run.
    pub chains: &'e Chains,
    pub expected: Expected,
}

impl Evidence<'_> {
    pub fn judge(&self, report: &mut Report) {
        self.acknowledged(report);
        self.told(report);
        self.one_line(report);
        self.helped(report);
        self.drivers(report);
        self.effects(report);
        self.chained(report);
    }

    fn events(&self, run: &str) -> &[Event] {
        self.logs.get(run).map(Vec::as_slice).unwrap_or_default()
    }

    /// What a run does; `None` of one that does what no spec says.
    fn chain(&self, run: &str) -> Option<&[Step]> {
        let name = self.events(run).first()?.body["agent"].as_str()?;
        self.chains.get(name).map(Vec::as_slice)
    }

    /// Whatever anyone was shown is there.
    fn acknowledged(&self, report: &mut Report) {
        let mut lost = Vec::new();
        for ((run, seq), digest) in &self.seen.events {
            let events = self.events(run);
            let there = events.iter().find(|event| event.seq == *seq);
            if there.is_none_or(|event| event.digest != *digest) {
                lost.push(format!("event {seq} of {run}"));
            }
        }
        // A witness who saw nothing proves nothing.
        let kept = self.seen.events.len();
        report.check("acknowledged events that were kept in mind", kept, kept > 0);
        report.none("of them lost or changed", &lost);
        report.check(
            "runs followed to their end, begun anew",
            format!("{}, {}", self.seen.followed, self.seen.follows_again),
            self.seen.followed > 0,
        );
        report.tell("starts asked for again", self.seen.starts_again);
        report.none("what no witness should have seen", &self.seen.wrong);
    }

    /// Whoever was to be told something was, and what was acknowledged was done, once.
    fn told(&self, report: &mut Report) {
        let (mut untold, mut wrong) = (Vec::new(), Vec::new());
        for (run, telling) in &self.seen.to_tell {
            let pause = telling.pauses.then_some(Told::Pause);
            for what in pause.into_iter().chain([Told::Signal]) {
                if !self.seen.told.contains(&(run.clone(), what)) {
                    untold.push(format!("{what:?} of {run}"));
                }
            }
        }
        for (run, told) in &self.seen.told {
            let times = self.events(run).iter().filter(|it| says(it, *told)).count();
            if times != 1 {
                wrong.push(format!("{told:?} of {run}, {times} times"));
            }
        }
        let are_few = self.seen.runs.len() < TOLD_OF;
        for (what, told) in [
            ("signals acknowledged", Told::Signal),
            ("pauses acknowledged", Told::Pause),
        ] {
            let to_tell = self.seen.to_tell.keys();
            let many = to_tell
                .filter(|run| self.seen.told.contains(&((*run).clone(), told)))
                .count();
            report.check(what, many, many > 0 || are_few);
        }
        report.none("what runs were to be told and were not", &untold);
        report.tell("told again", self.seen.told_again);
        report.none("of them not done, or twice", &wrong);
        let (mut kept, mut heard) = (0, 0);
        for run in self.seen.to_tell.keys() {
            let came = self.events(run).iter().find(|it| says(it, Told::Signal));
            match came.map(|event| event.body["wait"].is_null()) {
                Some(true) => kept += 1,
                Some(false) => heard += 1,
                None => {}
            }
        }
        report.least("signals kept until awaited", kept, self.expected.kept);
        report.least("signals heard while awaited", heard, self.expected.heard);
        let asked: BTreeSet<&String> = self.seen.runs.values().collect();
        let children = self.logs.iter().filter(|(run, _)| !asked.contains(run));
        let paused = children.filter(|(_, events)| events.iter().any(|it| says(it, Told::Pause)));
        report.tell("children paused with their parents", paused.count());
    }

    /// Who waits for a person because of its takeovers had as many since its last result.
    fn helped(&self, report: &mut Report) {
        let (mut loops, mut early) = (0, Vec::new());
        for (run, events) in self.logs {
            let mut taken = 0;
            for event in events {
                match &*event.kind {
                    "run.resumed" if event.body["reason"] == "orphaned" => taken += 1,
                    "step.finished" | "child.finished" | "wait.ended" => taken = 0,
                    "wait.started" if event.body["kind"] == "crash_loop" => {
                        loops += 1;
                        if taken < TAKEOVERS {
                            early.push(format!("{run} at event {} after {taken}", event.seq));
                        }
                    }
                    _ => {}
                }
            }
        }
        let helped = self.seen.helped.len();
        let what = "runs left to a person after five takeovers, resumed";
        report.tell(what, format!("{loops}, {helped}"));
        report.none("of them left sooner", &early);
    }

    /// Events are numbered without a gap, and epochs never go back.
    fn one_line(&self, report: &mut Report) {
        let (mut gaps, mut backwards) = (Vec::new(), Vec::new());
        for (run, events) in self.logs {
            for (event, seq) in events.iter().zip(1..) {
                if event.seq != seq {
                    gaps.push(format!(
                        "{run} has event {} where {seq} should be",
                        event.seq
                    ));
                    break;
                }
            }
            for pair in events.windows(2) {
                if let [before, after] = pair
                    && after.epoch < before.epoch
                {
                    backwards.push(format!("{run} at event {}", after.seq));
                }
            }
        }
        report.none("logs with a gap", &gaps);
        report.none("events of an epoch that was over", &backwards);
    }

    /// Nobody shares an epoch.
    fn drivers(&self, report: &mut Report) {
        let mut shared = Vec::new();
        for ((run, epoch), owners) in &self.seen.owners {
            if owners.len() > 1 {
                shared.push(format!("epoch {epoch} of {run} has the owners {owners:?}"));
            }
        }
        // Whose command paid a key that was announced once, that one drove the epoch of its announcement.
        let mut paid: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.effect == "write") {
            paid.entry(&entry.key).or_default().push(entry);
        }
        let mut by_epoch: BTreeMap<(&str, u64), BTreeSet<&str>> = BTreeMap::new();
        for (run, events) in self.logs {
            let mut announced: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
            for event in events.iter().filter(|event| event.kind == "step.started") {
                if let Some(key) = event.body["key"].as_str() {
                    announced.entry(key).or_default().push(event.epoch);
                }
            }
            for (key, epochs) in announced {
                if let ([epoch], Some([entry])) = (&*epochs, paid.get(key).map(Vec::as_slice)) {
                    let drivers = by_epoch.entry((run, *epoch)).or_default();
                    drivers.insert(&entry.worker);
                }
            }
        }
        for ((run, epoch), drivers) in &by_epoch {
            if drivers.len() > 1 {
                shared.push(format!("epoch {epoch} of {run} was driven by {drivers:?}"));
            }
        }
        let known: BTreeSet<(&str, u64)> = self
            .seen
            .owners
            .keys()
            .map(|(run, epoch)| (run.as_str(), *epoch))
            .chain(by_epoch.keys().copied())
            .collect();
        let seen = self.seen.owners.len();
        let told = format!("{}, of {seen} from the database", known.len());
        report.check("epochs whose driver is known", told, seen > 0);
        report.none("epochs with two drivers", &shared);
    }

    /// Every write happened once, after it was announced: so each is a witness that what its driver was told to be
    /// stored was, and still is.
    fn effects(&self, report: &mut Report) {
        let (mut by_key, mut unannounced) = (BTreeMap::<&str, Vec<&Entry>>::new(), Vec::new());
        for entry in self.entries.iter().filter(|entry| entry.effect == "write") {
            by_key.entry(&entry.key).or_default().push(entry);
            // One that is younger than the effect took the place of one that a driver was told is stored.
            if !self.announced(entry).any(|at| at <= entry.wall + AHEAD) {
                unannounced.push(format!("{} of {}", entry.step, entry.run));
            }
        }
        let (mut twice, mut traced) = (Vec::new(), Vec::new());
        for entries in by_key.values() {
            for pair in entries.windows(2) {
                let [before, again] = pair else { continue };
                let told = format!(
                    "{} of {}: by {} at {:.3?}, again by {} at {:.3?}",
                    again.step, again.run, before.worker, before.at, again.worker, again.at
                );
                let frozen = self
                    .freezes
                    .iter()
                    .find(|it| self.explains(it, before, again));
                match frozen {
                    Some(it) => traced.push(format!(
                        "{told}, which stood still from {:.3?} to {:.3?}",
                        it.from, it.until
                    )),
                    None => twice.push(told),
                }
            }
        }
        report.tell("keys of writes in the ledger", by_key.len());
        report.none("keys twice in the ledger", &twice);
        let (many, most) = (traced.len(), self.expected.repeats_most);
        report.check(
            "beside them right after a freeze (SEMANTICS 22)",
            format!("{many} (at most {most})"),
            many <= most,
        );
        for told in traced {
            println!("a repeat by a frozen worker: {told}");
        }
        report.none("writes that were not announced before", &unannounced);
    }

    /// Each step is paid after the end of the one before it was stored, under one key, and no write is left out.
    fn chained(&self, report: &mut Report) {
        let mut keys = BTreeMap::<_, BTreeSet<&str>>::new();
        let (mut later, mut early, mut unknown) = (0, Vec::new(), Vec::new());
        for entry in self.entries {
            let (run, step) = (entry.run.as_str(), entry.step.as_str());
            keys.entry((run, step)).or_default().insert(&entry.key);
            let chain = self.chain(run).unwrap_or_default();
            let Some(at) = chain.iter().position(|it| it.id == step) else {
                unknown.push(format!("{step} of {run}"));
                continue;
            };
            let Some(before) = at.checked_sub(1).and_then(|at| chain.get(at)) else {
                continue;
            };
            later += 1;
            // That end was acknowledged to a driver, who went on because of it.
            let mut ended = self.events(run).iter().filter(|it| ends(it, before));
            if !ended.any(|end| end.stored_at <= entry.wall + AHEAD) {
                early.push(format!("{step} of {run} before the end of {}", before.id));
            }
        }
        let mut missing = Vec::new();
        for (run, events) in self.logs {
            let Some(chain) = self.chain(run) else {
                unknown.push(format!("all of {run}"));
                continue;
            };
            if events.iter().any(|event| event.kind == "run.completed") {
                let writes = chain.iter().filter(|step| step.does == Does::Write);
                let unpaid = writes.filter(|step| !keys.contains_key(&(&**run, &*step.id)));
                missing.extend(unpaid.map(|step| format!("{} of {run}", step.id)));
            }
        }
        let several = keys.iter().filter(|(_, keys)| keys.len() > 1);
        let several: Vec<String> = several
            .map(|((run, step), keys)| format!("{step} of {run} has {keys:?}"))
            .collect();
        report.none("steps that no spec has", &unknown);
        report.none("steps with two keys", &several);
        report.check("steps paid that need another", later, later > 0);
        report.none("of them paid before its end was stored", &early);
        report.none("writes of completed runs that did not happen", &missing);
    }

    /// When the write was announced, each time.
    fn announced(&self, entry: &Entry) -> impl Iterator<Item = i64> {
        let announces = move |event: &&Event| {
            event.kind == "step.started" && event.body["key"].as_str() == Some(&entry.key)
        };
        let events = self.events(&entry.run).iter();
        events.filter(announces).map(|event| event.stored_at)
    }

    /// The worker stood still longer than its lease, someone else went on meanwhile, and what it was about to
    /// do, and had announced, came right after it was woken. Nobody announced it again since then: whoever did that
    /// has not asked `reconcile`.
    fn explains(&self, freeze: &Freeze, before: &Entry, again: &Entry) -> bool {
        let wall_of = |at: Duration| {
            let since = again.at.saturating_sub(at).as_micros();
            again.wall - i64::try_from(since).unwrap_or(i64::MAX)
        };
        let (frozen_at, woken_at) = (wall_of(freeze.from), wall_of(freeze.until));
        freeze.worker == again.worker
            && freeze.worker != before.worker
            && freeze.until - freeze.from >= self.lease
            && before.at > freeze.from
            && again.at >= freeze.until
            && again.at - freeze.until < AFTER_WAKING
            && self
                .announced(again)
                .next()
                .is_some_and(|at| at <= frozen_at + AHEAD)
            && self.announced(again).all(|at| at <= woken_at)
    }
}

/// Whether the event says that what was told was done.
fn says(event: &Event, told: Told) -> bool {
    match told {
        Told::Signal => event.kind == "signal.received",
        Told::Pause => event.kind == "wait.started" && event.body["kind"] == "paused",
    }
}

/// Whether the step has its result by this event. On the way there doubts are settled so that it is tried again, and it
/// waits for its child, for its next attempt, for a person: these have an end each that is none of the step's.
fn ends(event: &Event, step: &Step) -> bool {
    event.body["step"] == *step.id
        && match (&*event.kind, step.does) {
            ("step.finished", Does::Write | Does::Pays | Does::Child)
            | ("wait.ended", Does::Waits) => true,
            ("step.resolved", Does::Write) => event.body["resolution"].get("returned").is_some(),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::errand::Telling;

    const RUN: &str = "run_1";

    /// One write of one run, as it should be.
    struct Story {
        logs: Logs,
        entries: Vec<Entry>,
        seen: Seen,
        freezes: Vec<Freeze>,
        chain: Vec<Step>,
    }

    impl Story {
        fn new() -> Self {
            let events = vec![
                event(1, "run.started", json!({"agent": "storm"})),
                event(2, "step.started", json!({"step": "pay", "key": "k"})),
                event(3, "step.finished", json!({"step": "pay"})),
                event(4, "run.completed", json!({})),
            ];
            let mut seen = Seen::default();
            for event in &events {
                let digest = event.digest.clone();
                seen.events.insert((RUN.to_owned(), event.seq), digest);
            }
            Self {
                logs: Logs::from([(RUN.to_owned(), events)]),
                entries: vec![paid("k", "w1.1", 10_000)],
                seen,
                freezes: Vec::new(),
                chain: vec![step("pay", Does::Write)],
            }
        }

        /// What is found wrong.
        fn wrong(&self) -> Vec<String> {
            let mut report = Report::default();
            Evidence {
                logs: &self.logs,
                entries: &self.entries,
                seen: &self.seen,
                freezes: &self.freezes,
                lease: millis(2000),
                chains: &Chains::from([("storm".to_owned(), self.chain.clone())]),
                expected: Expected::default(),
            }
            .judge(&mut report);
            report.wrong().map(str::to_owned).collect()
        }
    }

    fn step(id: &str, does: Does) -> Step {
        Step {
            id: id.to_owned(),
            does,
        }
    }

    fn event(seq: u64, kind: &str, body: Value) -> Event {
        Event {
            seq,
            epoch: 1,
            kind: kind.to_owned(),
            digest: format!("d{seq}"),
            stored_at: 1_000_000 * seq.cast_signed(),
            body,
        }
    }

    fn paid(key: &str, worker: &str, at: u64) -> Entry {
        Entry {
            at: millis(at),
            wall: 1000 * at.cast_signed(),
            effect: "write".to_owned(),
            key: key.to_owned(),
            run: RUN.to_owned(),
            step: "pay".to_owned(),
            worker: worker.to_owned(),
        }
    }

    #[test]
    fn a_story_in_which_nothing_was_lost_or_done_twice_is_well() {
        assert_eq!(Story::new().wrong(), [""; 0]);
    }

    #[test]
    fn a_key_that_came_twice_is_named_unless_a_freeze_right_before_explains_it() {
        let mut story = Story::new();
        story.entries.push(paid("k", "w2.1", 14_300));
        assert_eq!(
            story.wrong(),
            [
                "keys twice in the ledger: pay of run_1: by w1.1 at 10.000s, again by w2.1 at 14.300s"
            ]
        );
        let freeze = |worker: &str, from: u64, until: u64| Freeze {
            worker: worker.to_owned(),
            from: millis(from),
            until: millis(until),
        };
        story.freezes = vec![freeze("w2.1", 9000, 14_000)];
        assert_eq!(story.wrong(), [""; 0]);
        for unrelated in [
            // Someone else's; too long ago; shorter than the lease; when both came after it.
            freeze("w3.1", 9000, 14_000),
            freeze("w2.1", 9000, 13_200),
            freeze("w2.1", 13_000, 14_000),
            freeze("w2.1", 10_500, 14_000),
        ] {
            story.freezes = vec![unrelated];
            assert_eq!(story.wrong().len(), 1, "{:?}", story.freezes);
        }
        // It was announced only after the worker was woken: nobody stood before it with the announcement made.
        story.freezes = vec![freeze("w2.1", 9000, 14_000)];
        let announced = |story: &mut Story, at: i64| {
            story.logs.get_mut(RUN).unwrap()[1].stored_at = at;
        };
        announced(&mut story, 9_500_000);
        assert_eq!(story.wrong().len(), 1);
        announced(&mut story, 2_000_000);
        // The woken one took the run up, announced it again, and asked nobody.
        let body = json!({"step": "pay", "key": "k"});
        story.logs.get_mut(RUN).unwrap().push(Event {
            epoch: 2,
            stored_at: 14_100_000,
            ..event(5, "step.started", body)
        });
        assert_eq!(story.wrong().len(), 1);
        story.logs.get_mut(RUN).unwrap()[4].stored_at = 9_900_000;
        assert_eq!(story.wrong(), [""; 0]);
        // Nobody else went on: it did the same twice.
        story.freezes = vec![freeze("w2.1", 9000, 14_000)];
        story.entries[0].worker = "w2.1".to_owned();
        assert_eq!(story.wrong().len(), 1);
    }

    #[test]
    fn an_acknowledged_event_that_is_lost_or_changed_is_named() {
        let mut story = Story::new();
        story
            .seen
            .events
            .insert((RUN.to_owned(), 5), "d5".to_owned());
        story
            .seen
            .events
            .insert((RUN.to_owned(), 3), "dx".to_owned());
        let wrong = [3, 5].map(|seq| format!("of them lost or changed: event {seq} of run_1"));
        assert_eq!(story.wrong(), wrong);
    }

    #[test]
    fn what_was_acknowledged_from_outside_and_is_not_in_the_log_once_is_named() {
        let mut story = Story::new();
        story.seen.told.insert((RUN.to_owned(), Told::Signal));
        let wrong =
            |times: u64| format!("of them not done, or twice: Signal of run_1, {times} times");
        assert_eq!(story.wrong(), [wrong(0)]);
        for (seq, expected) in [(5, vec![]), (6, vec![wrong(2)])] {
            let signal = event(seq, "signal.received", json!({"name": "go"}));
            story.logs.get_mut(RUN).unwrap().push(signal);
            assert_eq!(story.wrong(), expected);
        }
    }

    #[test]
    fn who_was_to_be_told_something_and_was_not_is_named() {
        let mut story = Story::new();
        let telling = Telling {
            after: millis(0),
            pauses: true,
        };
        story.seen.to_tell.insert(RUN.to_owned(), telling);
        let untold =
            |what: &str| format!("what runs were to be told and were not: {what} of run_1");
        assert_eq!(story.wrong(), [untold("Pause"), untold("Signal")]);
        story.seen.told.insert((RUN.to_owned(), Told::Pause));
        let log = story.logs.get_mut(RUN).unwrap();
        log.push(event(5, "wait.started", json!({"kind": "paused"})));
        assert_eq!(story.wrong(), [untold("Signal")]);
    }

    #[test]
    fn a_run_that_is_left_to_a_person_too_soon_is_named() {
        for takeovers in [4, 5] {
            let mut story = Story::new();
            let log = story.logs.get_mut(RUN).unwrap();
            let (ends_at, mut seq) = (log.len() - 1, 3);
            for _ in 0..takeovers {
                log.insert(
                    ends_at,
                    event(0, "run.resumed", json!({"reason": "orphaned"})),
                );
            }
            let waits = event(0, "wait.started", json!({"kind": "crash_loop"}));
            log.insert(ends_at + takeovers, waits);
            for event in &mut log[ends_at..] {
                seq += 1;
                event.seq = seq;
            }
            story.seen.events.clear();
            let early = "of them left sooner: run_1 at event 8 after 4".to_owned();
            let expected = if takeovers == 4 {
                vec![early]
            } else {
                Vec::new()
            };
            assert_eq!(story.wrong(), expected);
        }
    }

    #[test]
    fn an_epoch_with_two_drivers_is_named() {
        let mut story = Story::new();
        let owners = BTreeSet::from(["7".to_owned(), "8".to_owned()]);
        story.seen.owners.insert((RUN.to_owned(), 1), owners);
        assert_eq!(
            story.wrong(),
            [r#"epochs with two drivers: epoch 1 of run_1 has the owners {"7", "8"}"#]
        );
        // Seen by nobody, and told by whose command paid what was announced in it.
        let mut story = Story::new();
        story.chain.insert(0, step("other", Does::Write));
        let again = event(3, "step.started", json!({"step": "other", "key": "l"}));
        story.logs.get_mut(RUN).unwrap()[2] = again;
        let other = json!({"step": "other"});
        let log = story.logs.get_mut(RUN).unwrap();
        log.push(event(5, "step.finished", other));
        story.entries.push(Entry {
            step: "other".to_owned(),
            ..paid("l", "w2.1", 10_100)
        });
        assert_eq!(
            story.wrong(),
            [r#"epochs with two drivers: epoch 1 of run_1 was driven by {"w1.1", "w2.1"}"#]
        );
    }

    #[test]
    fn a_step_that_is_paid_under_two_keys_is_named() {
        let mut story = Story::new();
        let body = json!({"step": "pay", "key": "l"});
        story.logs.get_mut(RUN).unwrap()[2] = Event {
            epoch: 2,
            ..event(3, "step.started", body)
        };
        story.logs.get_mut(RUN).unwrap()[3].epoch = 2;
        story.seen.events.clear();
        story.entries.push(paid("l", "w2.1", 14_000));
        assert_eq!(
            story.wrong(),
            [r#"steps with two keys: pay of run_1 has {"k", "l"}"#]
        );
    }

    #[test]
    fn a_step_that_is_paid_before_the_end_of_what_it_needs_is_named() {
        let mut story = Story::new();
        story.chain.push(step("look", Does::Pays));
        story.entries.push(Entry {
            effect: "read".to_owned(),
            step: "look".to_owned(),
            ..paid("m", "w1.1", 10_100)
        });
        assert_eq!(story.wrong(), [""; 0]);
        // The end that its driver was told of is gone, and another came later.
        story.logs.get_mut(RUN).unwrap()[2].stored_at = 10_200_000;
        assert_eq!(
            story.wrong(),
            ["of them paid before its end was stored: look of run_1 before the end of pay"]
        );
    }

    #[test]
    fn only_what_brings_the_result_of_a_step_is_its_end() {
        let all = [Does::Write, Does::Pays, Does::Waits, Does::Child];
        let ended_by = |kind: &str, more: Value| -> Vec<Does> {
            let mut body = json!({"step": "pay"});
            body["resolution"] = more;
            let event = event(3, kind, body);
            let ended = all.into_iter().filter(|it| ends(&event, &step("pay", *it)));
            ended.collect()
        };
        let finished = [Does::Write, Does::Pays, Does::Child];
        assert_eq!(ended_by("step.finished", Value::Null), finished);
        assert_eq!(ended_by("wait.ended", Value::Null), [Does::Waits]);
        let returned = json!({"returned": "receipt"});
        assert_eq!(ended_by("step.resolved", returned), [Does::Write]);
        for other in [json!("retry"), json!({"failed": "it was not done"})] {
            assert!(ended_by("step.resolved", other).is_empty());
        }
        assert!(ended_by("child.finished", Value::Null).is_empty());
        let of_another = event(3, "step.finished", json!({"step": "look"}));
        assert!(!ends(&of_another, &step("pay", Does::Write)));
    }

    #[test]
    fn what_no_spec_says_is_named() {
        let mut story = Story::new();
        story.entries[0].step = "other".to_owned();
        story.chain = vec![step("nothing", Does::Pays)];
        assert_eq!(story.wrong(), ["steps that no spec has: other of run_1"]);
        story.logs.get_mut(RUN).unwrap()[0].body = json!({"agent": "another"});
        let unknown = ["other of run_1", "all of run_1"];
        let unknown = unknown.map(|it| format!("steps that no spec has: {it}"));
        assert_eq!(story.wrong(), unknown);
    }

    #[test]
    fn a_write_that_was_not_announced_or_never_happened_is_named() {
        let mut story = Story::new();
        story.entries[0].key = "another".to_owned();
        assert_eq!(
            story.wrong(),
            ["writes that were not announced before: pay of run_1"]
        );
        // An announcement that came later than the write is not the one that its driver was told of.
        let mut story = Story::new();
        story.logs.get_mut(RUN).unwrap()[1].stored_at = 10_100_000;
        assert_eq!(
            story.wrong(),
            ["writes that were not announced before: pay of run_1"]
        );
        story.entries.clear();
        assert_eq!(
            story.wrong(),
            ["writes of completed runs that did not happen: pay of run_1"]
        );
    }
}
