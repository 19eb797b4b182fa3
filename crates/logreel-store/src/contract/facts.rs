//! Facts to write in tests, each in one short call.

use std::collections::BTreeMap;

use logreel_core::decide::plain_wait;
use logreel_core::event::{
    Body, Budget, Cause, Custom, Durability, Effect, Parent, Phase, PhaseEntered, Provenance,
    Relation, RunKind, RunStarted, StepFinished, StepStarted, WaitKind, WaitStarted,
};
use logreel_core::{
    AppendId, Digest, Draft, Json, Payload, RunId, Seq, Session, StepId, Timestamp, WaitId,
};
use serde_json::{Value, json};

pub(super) fn payload(value: Value) -> Payload {
    Payload::Inline(Json::from(value))
}

/// Event 1 of a task with this name.
pub(super) fn task(agent: &str) -> RunStarted {
    RunStarted {
        agent: agent.into(),
        budget: Budget::default(),
        context: None,
        dir: None,
        durability: Durability::Full,
        git: None,
        input: payload(json!("input of a test")),
        key: None,
        kind: RunKind::Task,
        labels: BTreeMap::new(),
        limit: None,
        parent: None,
        provenance: Provenance::default(),
        session: None,
        spec: payload(json!({ "name": agent })),
        spec_digest: Digest::of(agent.as_bytes()),
        spec_file: None,
    }
}

pub(super) fn in_session(agent: &str, session: &str) -> RunStarted {
    RunStarted {
        session: Some(self::session(session)),
        ..task(agent)
    }
}

pub(super) fn with_key(agent: &str, key: &str) -> RunStarted {
    RunStarted {
        key: Some(key.to_owned()),
        ..task(agent)
    }
}

pub(super) fn from_parent(agent: &str, run: RunId, relation: Relation) -> RunStarted {
    RunStarted {
        parent: Some(Parent {
            relation,
            run,
            seq: Seq::FIRST,
        }),
        ..task(agent)
    }
}

pub(super) fn session(name: &str) -> Session {
    Session::new(name).expect("a test's session name is valid")
}

pub(super) fn append_id(name: &str) -> AppendId {
    AppendId::new(name).expect("a test's append id is valid")
}

pub(super) fn step_id(name: &str) -> StepId {
    StepId::from_parts([name]).expect("a test's step id is valid")
}

pub(super) fn phase(phase: Phase) -> Draft {
    Draft::new(PhaseEntered { phase })
}

pub(super) fn custom(name: &str, data: Value) -> Draft {
    Draft::new(Custom {
        data: payload(data),
        name: name.to_owned(),
    })
}

/// A short step: its end alone.
pub(super) fn step(name: &str, output: Value) -> Draft {
    Draft::new(step_body(name, output, Some(Timestamp::EPOCH)))
}

pub(super) fn step_body(name: &str, output: Value, started_at: Option<Timestamp>) -> Body {
    let output = payload(output);
    let step = step_id(name);
    StepFinished {
        attempt: 1,
        effect: Effect::Idempotent,
        input_digest: None,
        output,
        started_at,
        step,
    }
    .into()
}

pub(super) fn step_started(name: &str, effect: Effect) -> Draft {
    let step = step_id(name);
    Draft::new(StepStarted {
        attempt: 1,
        effect,
        input_digest: None,
        key: None,
        step,
    })
}

pub(super) fn wait(number: u32, kind: WaitKind) -> WaitStarted {
    plain_wait(kind, WaitId(number))
}

pub(super) fn late(draft: Draft) -> Draft {
    Draft {
        late: true,
        ..draft
    }
}

pub(super) fn cause(message: &str) -> Cause {
    Cause {
        exit_code: None,
        kind: "error".into(),
        message: message.into(),
        retryable: false,
        step: None,
    }
}
