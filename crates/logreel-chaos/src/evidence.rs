//! What must be true of logs, ledger and what witnesses saw, whatever was done to the fleet. It only compares: where all of
//! that comes from is [`judge`](crate::judge)'s.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::clock::millis;
use crate::errand::{Chains, Step};
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

/// How soon after it was woken a worker does what it was about to do: its command needs no more than to be begun.
const AFTER_WAKING: Duration = millis(500);
/// As many repeats of frozen workers may be chance: a command is begun within milliseconds of the look before it. More
/// are a look that is not made.
const TRACED_MOST: usize = 2;
/// How far the database's stamps may be ahead of its clock, in microseconds: they are never behind what a client
/// estimates it to be.
const AHEAD: i64 = 50_000;

pub struct Evidence<'e> {
    pub logs: &'e Logs,
    pub entries: &'e [Entry],
    pub seen: &'e Seen,
    pub freezes: &'e [Freeze],
    pub lease: Duration,
    /// What runs do, by the name of what they run.
    pub chains: &'e Chains,
}

impl Evidence<'_> {
    pub fn judge(&self, report: &mut Report) {
        self.acknowledged(report);
        self.told(report);
        self.one_line(report);
        self.drivers(report);
        self.effects(report);
        self.chained(report);
    }

    fn events(&self, run: &str) -> &[Event] {
        self.logs.get(run).map(Vec::as_slice).unwrap_or_default()
    }

    fn chain(&self, run: &str) -> &[Step] {
        let first = self.events(run).first().map(|event| &event.body["agent"]);
        let name = first.and_then(Value::as_str).unwrap_or_default();
        self.chains.get(name).map(Vec::as_slice).unwrap_or_default()
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

    /// Whatever was acknowledged to whoever told a run something was done, once.
    fn told(&self, report: &mut Report) {
        let mut wrong = Vec::new();
        for (run, told) in &self.seen.told {
            let says_so = |event: &&Event| match told {
                Told::Signal => event.kind == "signal.received",
                Told::Pause => event.kind == "wait.started" && event.body["kind"] == "paused",
            };
            let events = self.events(run);
            let times = events.iter().filter(says_so).count();
            if times != 1 {
                wrong.push(format!("{told:?} of {run}, {times} times"));
            }
        }
        let told = |what: Told| self.seen.told.iter().filter(|(_, it)| *it == what).count();
        for (what, told) in [
            ("signals acknowledged", told(Told::Signal)),
            ("pauses acknowledged", told(Told::Pause)),
        ] {
            report.check(what, told, told > 0);
        }
        report.tell("told again", self.seen.told_again);
        report.none("of them not done, or twice", &wrong);
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
            let announced = self.announced_at(entry);
            // One that is younger than the effect took the place of one that a driver was told is stored.
            if announced.is_none_or(|at| at > entry.wall + AHEAD) {
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
        let few = traced.len() <= TRACED_MOST;
        let told = format!("{} (at most {TRACED_MOST})", traced.len());
        report.check("of them right after a freeze (SEMANTICS 22)", told, few);
        for told in traced {
            println!("a repeat by a frozen worker: {told}");
        }
        report.none("writes that were not announced before", &unannounced);
    }

    /// Each step is paid after the end of the one before it was stored, under one key, and no write is left out.
    fn chained(&self, report: &mut Report) {
        let (mut keys, mut early) = (BTreeMap::<_, BTreeSet<&str>>::new(), Vec::new());
        for entry in self.entries {
            let paid = (entry.run.as_str(), entry.step.as_str());
            keys.entry(paid).or_default().insert(&entry.key);
            let chain = self.chain(&entry.run);
            let at = chain.iter().position(|step| step.id == entry.step);
            let before = at.and_then(|at| chain.get(at.checked_sub(1)?));
            // That end was acknowledged to a driver, who went on because of it.
            let is_early = |before: &Step| {
                let mut ends = self.events(&entry.run).iter().filter(|event| {
                    let ends = ["step.finished", "step.resolved", "wait.ended"];
                    ends.contains(&&*event.kind) && event.body["step"] == *before.id
                });
                !ends.any(|end| end.stored_at <= entry.wall + AHEAD)
            };
            if let Some(before) = before.filter(|before| is_early(before)) {
                let (step, run) = paid;
                early.push(format!("{step} of {run} before the end of {}", before.id));
            }
        }
        let mut missing = Vec::new();
        for (run, events) in self.logs {
            if events.iter().any(|event| event.kind == "run.completed") {
                let writes = self.chain(run).iter().filter(|step| step.is_write);
                let unpaid = writes.filter(|step| !keys.contains_key(&(&**run, &*step.id)));
                missing.extend(unpaid.map(|step| format!("{} of {run}", step.id)));
            }
        }
        let several = keys.iter().filter(|(_, keys)| keys.len() > 1);
        let several: Vec<String> = several
            .map(|((run, step), keys)| format!("{step} of {run} has {keys:?}"))
            .collect();
        report.none("steps with two keys", &several);
        report.none("steps paid before what they need was stored", &early);
        report.none("writes of completed runs that did not happen", &missing);
    }

    /// When the write was announced first.
    fn announced_at(&self, entry: &Entry) -> Option<i64> {
        let mut events = self.events(&entry.run).iter();
        let announces = |event: &&Event| {
            event.kind == "step.started" && event.body["key"].as_str() == Some(&entry.key)
        };
        Some(events.find(announces)?.stored_at)
    }

    /// The worker stood still longer than its lease, someone else went on meanwhile, and what it was about to
    /// do, and had announced, came right after it was woken.
    fn explains(&self, freeze: &Freeze, before: &Entry, again: &Entry) -> bool {
        let since = again.at.saturating_sub(freeze.from).as_micros();
        let frozen_at = again.wall - i64::try_from(since).unwrap_or(i64::MAX);
        freeze.worker == again.worker
            && freeze.worker != before.worker
            && freeze.until - freeze.from >= self.lease
            && before.at > freeze.from
            && again.at >= freeze.until
            && again.at - freeze.until < AFTER_WAKING
            && self
                .announced_at(again)
                .is_some_and(|at| at <= frozen_at + AHEAD)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
            let event = |seq: u64, kind: &str, body: Value| Event {
                seq,
                epoch: 1,
                kind: kind.to_owned(),
                digest: format!("d{seq}"),
                stored_at: 1_000_000 * seq.cast_signed(),
                body,
            };
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
                chain: vec![Step {
                    id: "pay".to_owned(),
                    is_write: true,
                }],
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
            }
            .judge(&mut report);
            report.wrong().map(str::to_owned).collect()
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
            freeze("w2.1", 9000, 13_700),
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
            story.logs.get_mut(RUN).unwrap().push(Event {
                seq,
                epoch: 1,
                kind: "signal.received".to_owned(),
                digest: format!("d{seq}"),
                stored_at: 1_000_000 * seq.cast_signed(),
                body: json!({"name": "go"}),
            });
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
        let again = Event {
            seq: 3,
            epoch: 1,
            kind: "step.started".to_owned(),
            digest: "d3".to_owned(),
            stored_at: 3_000_000,
            body: json!({"step": "other", "key": "l"}),
        };
        story.logs.get_mut(RUN).unwrap()[2] = again;
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
        let again = Event {
            seq: 3,
            epoch: 2,
            kind: "step.started".to_owned(),
            digest: "d3".to_owned(),
            stored_at: 3_000_000,
            body: json!({"step": "pay", "key": "l"}),
        };
        story.logs.get_mut(RUN).unwrap()[2] = again;
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
        story.chain.push(Step {
            id: "look".to_owned(),
            is_write: false,
        });
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
            ["steps paid before what they need was stored: look of run_1 before the end of pay"]
        );
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
