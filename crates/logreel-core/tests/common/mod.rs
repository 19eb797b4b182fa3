//! A small log that is decided, sealed and folded event by event, and bodies to fill it with.
#![allow(dead_code, reason = "each test binary uses its own part")]

use logreel_core::chain::{Sealed, Sealer};
use logreel_core::decide::{ClaimDecision, Rejected, plain_wait};
use logreel_core::event::*;
use logreel_core::fold::{Illegal, IllegalEvent};
use logreel_core::meaning::ResultSet;
use logreel_core::*;
use serde_json::Value;

pub const KEY: RunKey = RunKey([7; 32]);

#[derive(Clone)]
pub struct Log {
    pub run: RunId,
    pub state: RunState,
    /// Folded beside the state, from the same events.
    pub row: Row,
    pub results: ResultSet,
    pub sealed: Vec<Sealed>,
    /// Whose key each of them was sealed with.
    pub writers: Vec<(RunId, RunKey)>,
    pub epoch: Epoch,
    pub now: Timestamp,
    sealer: Sealer,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for Sealed { event, text } in &self.sealed {
            let late = if event.late { " late" } else { "" };
            writeln!(
                f,
                "{} e{}{late} {} {text}",
                event.seq,
                event.epoch,
                event.body.kind()
            )?;
        }
        Ok(())
    }
}

impl Log {
    /// A run under its first driver.
    pub fn new() -> Self {
        Self::of(started(), Epoch(1))
    }

    pub fn of(started: RunStarted, epoch: Epoch) -> Self {
        let run = RunId::from_bytes([1; 16]);
        let now = time(0);
        let mut sealer = Sealer::start(&run, KEY);
        let first = sealer.seal_draft(Draft::new(started), epoch, now).unwrap();
        let state = RunState::begin(run, &first.event).unwrap();
        let row = Row::start(run, &first.event).unwrap();
        let sealed = vec![first];
        Self {
            run,
            state,
            row,
            results: ResultSet::default(),
            sealed,
            writers: vec![(run, KEY)],
            epoch,
            now,
            sealer,
        }
    }

    /// Becomes a fork of itself: another run, which shares the events up to `at`.
    pub fn fork(&mut self, at: Seq, fork: Fork, driven: bool) -> Result<(), Rejected> {
        let length = usize::try_from(at.0).unwrap();
        let key = RunKey(*Digest::of(self.head().digest.as_bytes()).as_bytes());
        let run = RunId::from_bytes(*key.0.first_chunk().unwrap());
        let shared = &self.sealed[..length];
        let events = shared.iter().map(|sealed| &sealed.event);
        let state = replay(run, events.clone()).unwrap().unwrap();
        let mut tally = Tally::default();
        events.for_each(|event| tally.add(event));
        let forked = decide_fork(&state, &tally, fork)?;
        self.results = sum(shared);
        assert_eq!(tally.sum(), self.results);
        self.sealed.truncate(length);
        self.writers.truncate(length);
        self.sealer = Sealer {
            head: state.row.head,
            at: state.row.updated_at,
            key,
        };
        (self.run, self.row, self.state) = (run, state.row.clone(), state);
        self.epoch = Epoch(u64::from(driven));
        self.push(Draft::new(forked))
            .expect("decide_fork never emits what fold refuses");
        Ok(())
    }

    /// A copy right here.
    pub fn retry(&mut self) -> &mut Self {
        let fork = Fork::of(self.run, Relation::Retry);
        self.fork(self.head().seq, fork, true).unwrap();
        self
    }

    /// Moves the clock to so many seconds after the start.
    pub fn at(&mut self, seconds: i64) -> &mut Self {
        self.now = time(seconds);
        self
    }

    /// Seals and folds a draft as it is; a refused one leaves no trace.
    pub fn push(&mut self, draft: Draft) -> Result<(), IllegalEvent> {
        let mut sealer = self.sealer.clone();
        let sealed = sealer.seal_draft(draft, self.epoch, self.now).unwrap();
        self.state.apply(&sealed.event)?;
        self.row
            .apply(&sealed.event)
            .expect("the row takes what the state takes");
        self.writers.push((self.run, sealer.key));
        self.sealer = sealer;
        self.results = match &sealed.event.body {
            Body::RunForked(_) => {
                self.sealed.push(sealed);
                sum(&self.sealed)
            }
            body => {
                let result = ResultSet::of(body);
                let counts = !sealed.event.late;
                self.sealed.push(sealed);
                if counts {
                    self.results.plus(result)
                } else {
                    self.results
                }
            }
        };
        Ok(())
    }

    pub fn command(&mut self, command: impl Into<Command>) -> Result<(), Rejected> {
        let draft = decide(&self.state, &self.results, self.epoch, command.into())?;
        self.push(draft)
            .expect("decide never emits what fold refuses");
        Ok(())
    }

    /// A driver's fact that must be taken.
    pub fn record(&mut self, body: impl Into<Body>) -> &mut Self {
        let body = body.into();
        let kind = body.kind().to_owned();
        self.command(body)
            .unwrap_or_else(|why| panic!("{kind}: {why}\n{self:?}"));
        self
    }

    /// Why a driver's fact is refused, by `decide` and by `fold` alike.
    pub fn refuse(&self, body: impl Into<Body>) -> Illegal {
        let body = body.into();
        let mut fold = self.clone();
        let illegal = fold
            .push(Draft::new(body.clone()))
            .expect_err("fold refuses it")
            .why;
        assert_eq!(fold.state, self.state, "a refused event changes nothing");
        let decided = decide(&self.state, &self.results, self.epoch, body.into());
        assert_eq!(decided, Err(Rejected::Illegal(illegal.clone())));
        illegal
    }

    pub fn complete(&mut self, output: Value) -> &mut Self {
        self.command(Command::Complete {
            output: payload(output),
        })
        .unwrap();
        self
    }

    pub fn fail(&mut self, kind: &str) -> &mut Self {
        self.command(Command::Fail { cause: cause(kind) }).unwrap();
        self
    }

    pub fn outside(&mut self, command: Outside) -> Result<(), Rejected> {
        let decision = decide_outside(&self.state.row, &self.results, &command, self.now);
        for draft in decision.drafts {
            self.push(draft)
                .expect("decide_outside never emits what fold refuses");
        }
        decision.answer
    }

    pub fn cancel(&mut self) -> &mut Self {
        self.outside(Outside::Cancel { reason: None }).unwrap();
        self
    }

    pub fn pause(&mut self) -> &mut Self {
        self.outside(Outside::Pause { reason: None }).unwrap();
        self
    }

    pub fn answer(&mut self, wait: Option<u32>, approved: bool) -> Result<(), Rejected> {
        self.outside(Outside::Answer {
            wait: wait.map(WaitId),
            approved: Some(approved),
            value: Payload::null(),
            reason: None,
            by: Some("ann".into()),
        })
    }

    pub fn signal(&mut self, name: &str) -> &mut Self {
        let value = payload(Value::from(self.sealed.len()));
        self.outside(Outside::Signal {
            name: name.into(),
            value,
        })
        .unwrap();
        self
    }

    pub fn resolve(&mut self, call: &str, resolution: Resolution) -> Result<(), Rejected> {
        self.outside(Outside::Resolve {
            call: call.into(),
            resolution,
            by: "ann".into(),
        })
    }

    /// Another driver takes over. Says whether it drives.
    pub fn claim(&mut self, reason: ClaimReason) -> bool {
        let (drafts, drives) = match decide_claim(&self.state.row, self.epoch, reason, "other") {
            ClaimDecision::Drive(drafts) => (drafts, true),
            ClaimDecision::CrashLoop(drafts) => (drafts, false),
        };
        if drives {
            self.epoch = self.epoch.next();
        }
        for draft in drafts {
            self.push(draft)
                .expect("decide_claim never emits what fold refuses");
        }
        drives
    }

    pub fn take_over(&mut self) -> &mut Self {
        assert!(self.claim(ClaimReason::Orphaned), "a crash loop");
        self
    }

    pub fn status(&self) -> Status {
        self.state.row.status()
    }

    pub fn head(&self) -> Head {
        self.state.row.head
    }

    pub fn last(&self) -> &Event {
        &self.sealed[self.sealed.len() - 1].event
    }

    pub fn next_wait(&self) -> WaitId {
        self.state.row.next_wait()
    }

    /// Starts a wait under the next id.
    pub fn wait(&mut self, wait: WaitStarted) -> &mut Self {
        let wait = WaitStarted {
            wait: self.next_wait(),
            ..wait
        };
        self.record(wait)
    }

    pub fn events(&self) -> Vec<Event> {
        self.sealed
            .iter()
            .map(|sealed| sealed.event.clone())
            .collect()
    }

    /// The log as a store gives it, with the origin of the events that are shared.
    pub fn records(&self) -> Vec<Record> {
        let both = self.sealed.iter().zip(&self.writers);
        both.map(|(sealed, (writer, _))| Record {
            origin: Some(*writer).filter(|writer| *writer != self.run),
            ..sealed.record()
        })
        .collect()
    }

    /// What checks the log, with the keys of all who wrote it.
    pub fn verifier(&self) -> Verifier {
        let key = self.writers.iter().rev().find(|(run, _)| *run == self.run);
        let mut verifier = Verifier::new(&self.run, key.map(|(_, key)| *key));
        for (record, (writer, key)) in self.records().iter().zip(&self.writers) {
            if verifier.needs_key_of(record) == Some(*writer) {
                verifier.add_key(*writer, Some(*key));
            }
        }
        verifier
    }
}

/// The results that count at the end of a log, added up the long way.
pub fn sum(sealed: &[Sealed]) -> ResultSet {
    let mut results: Vec<(&StepId, ResultSet)> = Vec::new();
    for Sealed { event, .. } in sealed.iter().filter(|sealed| !sealed.event.late) {
        match &event.body {
            Body::StepFinished(StepFinished { step, .. })
            | Body::StepResolved(StepResolved { step, .. })
            | Body::ChildFinished(ChildFinished { step, .. })
            | Body::WaitEnded(WaitEnded {
                step: Some(step), ..
            }) => {
                results.push((step, ResultSet::of(&event.body)));
            }
            Body::RunForked(forked) => {
                results.retain(|(step, _)| !forked.forgotten.contains(step));
            }
            _ => {}
        }
    }
    let results = results.into_iter().map(|(_, result)| result);
    results.fold(ResultSet::default(), ResultSet::plus)
}

pub fn time(seconds: i64) -> Timestamp {
    Timestamp::from_micros((1_800_000_000 + seconds) * 1_000_000)
}

pub fn payload(value: Value) -> Payload {
    Payload::of(Json::from(value)).0
}

pub fn step_id(name: &str) -> StepId {
    StepId::from_parts([name]).unwrap()
}

pub fn call_id(name: &str) -> CallId {
    CallId::new(name).unwrap()
}

pub fn cause(kind: &str) -> Cause {
    Cause {
        exit_code: None,
        kind: kind.into(),
        message: "it broke".into(),
        retryable: true,
        step: None,
    }
}

pub fn spend(tokens: u64) -> Spend {
    Spend {
        input_tokens: tokens,
        usd_micros: Some(tokens),
        ..Spend::default()
    }
}

pub fn started() -> RunStarted {
    RunStarted {
        agent: "tester".into(),
        budget: Budget {
            tokens: Some(1000),
            ..Budget::default()
        },
        context: None,
        dir: None,
        durability: Durability::Full,
        git: None,
        input: payload(Value::from("go")),
        key: None,
        kind: RunKind::Task,
        labels: Default::default(),
        limit: None,
        parent: None,
        provenance: Provenance::default(),
        session: None,
        spec: payload(serde_json::json!({"name": "tester"})),
        spec_digest: Digest::of(b"spec"),
        spec_file: None,
    }
}

pub fn phase(phase: Phase) -> PhaseEntered {
    PhaseEntered { phase }
}

pub fn begun(step: &str, effect: Effect) -> StepStarted {
    StepStarted {
        attempt: 1,
        effect,
        input_digest: None,
        key: None,
        step: step_id(step),
    }
}

/// The end of a step that was announced.
pub fn done(step: &str, effect: Effect, output: Value) -> StepFinished {
    let output = payload(output);
    let step = step_id(step);
    StepFinished {
        attempt: 1,
        effect,
        input_digest: None,
        output,
        started_at: None,
        step,
    }
}

/// A short step: its end alone.
pub fn short(step: &str, output: Value) -> StepFinished {
    StepFinished {
        started_at: Some(time(-1)),
        ..done(step, Effect::Read, output)
    }
}

/// The failure of a step that was announced.
pub fn broke(step: &str) -> StepFailed {
    StepFailed {
        attempt: 1,
        error: cause("error"),
        started_at: None,
        step: step_id(step),
    }
}

pub fn retrying(step: &str) -> StepRetrying {
    StepRetrying {
        attempt: 2,
        delay_ms: 10,
        step: step_id(step),
    }
}

pub fn doubtful(step: &str, epoch: u64) -> StepInDoubt {
    StepInDoubt {
        epoch: Epoch(epoch),
        key: None,
        reason: "lost".into(),
        step: step_id(step),
    }
}

pub fn called(call: &str, effect: Effect) -> ToolCalled {
    ToolCalled {
        arguments: Payload::null(),
        attempt: 1,
        call: call_id(call),
        effect,
        key: None,
        name: "shell".into(),
        redacted: 0,
    }
}

pub fn returned(call: &str) -> ToolReturned {
    ToolReturned {
        call: call_id(call),
        output: Payload::null(),
        redacted: 0,
    }
}

pub fn tool_failed(call: &str, kind: &str) -> ToolFailed {
    ToolFailed {
        call: call_id(call),
        error: cause(kind),
        redacted: 0,
    }
}

pub fn tool_in_doubt(call: &str) -> ToolInDoubt {
    ToolInDoubt {
        call: call_id(call),
        reason: "lost".into(),
    }
}

pub fn asked(call: &str) -> ModelCalled {
    ModelCalled {
        attempt: 1,
        call: call_id(call),
        context: None,
        model: "openai/x".into(),
        request: None,
        reserved: spend(100),
    }
}

pub fn answered(call: &str, tokens: u64) -> ModelAnswered {
    let message = Payload::null();
    ModelAnswered {
        call: call_id(call),
        finish_reason: None,
        message,
        spent: spend(tokens),
        redacted: 0,
    }
}

pub fn waiting(kind: WaitKind) -> WaitStarted {
    plain_wait(kind, WaitId(0))
}

pub fn waiting_in(kind: WaitKind, step: &str) -> WaitStarted {
    WaitStarted {
        step: Some(step_id(step)),
        ..waiting(kind)
    }
}

pub fn waiting_until(kind: WaitKind, seconds: i64) -> WaitStarted {
    WaitStarted {
        deadline: Some(time(seconds)),
        ..waiting(kind)
    }
}

pub fn wait_ended(wait: u32, outcome: WaitOutcome) -> WaitEnded {
    WaitEnded {
        approved: None,
        by: None,
        outcome,
        reason: None,
        step: None,
        value: Payload::null(),
        wait: WaitId(wait),
    }
}

pub fn custom(name: &str) -> Custom {
    Custom {
        data: Payload::null(),
        name: name.into(),
    }
}

pub fn patched(patch: Value) -> StatePatched {
    StatePatched {
        patch: serde_json::from_value(patch).unwrap(),
    }
}

pub fn child(n: u8) -> RunId {
    RunId::from_bytes([100 + n; 16])
}

pub fn checked(verdict: Verdict, required: bool) -> Check {
    Check {
        message: None,
        name: "tests".into(),
        required,
        verdict,
    }
}
