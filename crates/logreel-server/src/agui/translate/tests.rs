//! Random logs, told to clients that keep their own rules: from the beginning, and after a rejoin anywhere.

use logreel::core::event::{Spend, StatePatched};
use logreel::core::{Epoch, RunState};
use logreel::{Digest, Timestamp};
use proptest::prelude::*;

use super::super::client::{Client, by_id};
use super::document::{difference, is_plain};
use super::words::{PIECE_BYTES, pieces};
use super::*;

const RUN: &str = "run_0197b0a0-0001-7000-8000-000000000001";

/// What may happen next; the fold leaves out what cannot.
#[derive(Debug, Clone)]
enum Next {
    StepStarted(u8),
    StepFinished(u8),
    StepFailed(u8),
    Turn(bool),
    ModelCalled,
    /// Words that come in; lost ones do not reach a client that is slow.
    Words(String, bool),
    Thought(String),
    /// As it came in, or not; with calls of tools.
    Answered(bool, u8),
    ModelFailed,
    ToolCalled(u8),
    ToolReturned(u8),
    ToolFailed(u8),
    Queued(String),
    Added(&'static str, String),
    Patched(Value, bool),
    Waits(bool),
    Child(u8, bool),
    Custom,
    /// Another driver takes over.
    TakenOver,
}

fn next() -> impl Strategy<Value = Next> {
    let document = prop_oneof![
        Just(json!(null)),
        Just(json!([])),
        (0..4_u8, 0..4_u8).prop_map(|(a, b)| json!({"a": a, "b": {"c": [b]}})),
        (0..3_usize).prop_map(|n| json!({"list": vec![json!({"x": n}); n], "~/": n})),
        Just(json!({"__proto__": {"x": 1}})),
    ];
    let role = prop_oneof![Just("assistant"), Just("user"), Just("tool")];
    prop_oneof![
        1 => (0..3_u8).prop_map(Next::StepStarted),
        1 => (0..3_u8).prop_map(Next::StepFinished),
        1 => (0..3_u8).prop_map(Next::StepFailed),
        1 => any::<bool>().prop_map(Next::Turn),
        3 => Just(Next::ModelCalled),
        4 => ("[a-cé ]{0,4}", prop::bool::weighted(0.1)).prop_map(|(a, b)| Next::Words(a, b)),
        1 => "[a-c]{0,3}".prop_map(Next::Thought),
        3 => (prop::bool::weighted(0.9), 0..3_u8).prop_map(|(a, b)| Next::Answered(a, b)),
        1 => Just(Next::ModelFailed),
        1 => (0..4_u8).prop_map(Next::ToolCalled),
        2 => (0..4_u8).prop_map(Next::ToolReturned),
        1 => (0..4_u8).prop_map(Next::ToolFailed),
        1 => "[a-c]{1,3}".prop_map(Next::Queued),
        1 => (role, "[a-c]{0,3}").prop_map(|(a, b)| Next::Added(a, b)),
        2 => (document, any::<bool>()).prop_map(|(a, b)| Next::Patched(a, b)),
        1 => any::<bool>().prop_map(Next::Waits),
        1 => (0..2_u8, any::<bool>()).prop_map(|(a, b)| Next::Child(a, b)),
        1 => Just(Next::Custom),
        1 => Just(Next::TakenOver),
    ]
}

/// What a follower sees, in its order.
#[expect(clippy::large_enum_variant, reason = "a test holds few of them")]
enum Item {
    Fact(Fact),
    /// And whether it was lost.
    Live(LiveText, bool),
}

/// A log as it grows.
struct Story {
    state: RunState,
    items: Vec<Item>,
    epoch: u64,
    /// The model call that is open: number, attempt, and what came in.
    call: Option<(u32, u32, String)>,
    calls: u32,
    tools: Vec<String>,
    waits: u32,
    turn: u32,
}

fn body<T: serde::de::DeserializeOwned + Into<Body>>(json: Value) -> Body {
    serde_json::from_str::<T>(&json.to_string()).unwrap().into()
}

fn cause() -> Value {
    json!({"kind": "error", "message": "no", "retryable": false, "step": null})
}

fn event(seq: u64, epoch: u64, body: Body) -> Event {
    Event {
        seq: Seq(seq),
        at: Timestamp::from_micros(i64::try_from(seq).unwrap()),
        caller_at: None,
        epoch: Epoch(epoch),
        late: false,
        digest: Digest::of(b""),
        body,
    }
}

/// A patch to a document: of the whole, or member by member where there are members.
fn patch_to(old: &Value, new: &Value, whole: bool) -> Value {
    let everything = json!([{"op": "replace", "path": "", "value": new}]);
    let by_members = difference(old, new).filter(|_| !whole);
    by_members.unwrap_or(everything)
}

impl Story {
    fn begin(kind: &str) -> Self {
        let none = json!({
            "children": null, "tokens": null, "tool_calls": null, "usd_micros": null, "wall_ms": null,
        });
        let started = body::<RunStarted>(json!({
            "agent": "a", "budget": none, "context": null, "dir": null, "durability": "full",
            "git": null, "input": "hello", "key": null, "kind": kind,
            "labels": {"agui.message": "u1"}, "parent": null, "session": "s", "spec": {},
            "provenance": {"host": null, "logreel": null, "models": [], "tools": []},
            "spec_digest": Digest::of(b""),
        }));
        let first = event(1, 1, started);
        let state = RunState::begin(RUN.parse().unwrap(), &first).unwrap();
        let node = None;
        Self {
            state,
            items: vec![Item::Fact(Fact { event: first, node })],
            epoch: 1,
            call: None,
            calls: 0,
            tools: Vec::new(),
            waits: 0,
            turn: 0,
        }
    }

    /// Whether it can follow.
    fn add(&mut self, body: Body) -> bool {
        let seq = self.state.row.head.seq.next().0;
        let event = event(seq, self.epoch, body);
        let can = self.state.apply(&event).is_ok();
        if can {
            self.items.push(Item::Fact(Fact { event, node: None }));
        }
        can
    }

    fn hear(&mut self, shown: Shown, lost: bool) {
        if let Some((number, attempt, _)) = self.call {
            let text = LiveText {
                run: RUN.parse().unwrap(),
                call: CallId::new(format!("m{number}.turn")).unwrap(),
                attempt,
                shown,
            };
            self.items.push(Item::Live(text, lost));
        }
    }

    fn step(&mut self, next: Next) {
        use logreel::core::event as is;
        let spent = json!(Spend::default());
        let step = |n: u8| json!([format!("s{n}")]);
        let model = |it: &(u32, u32, String)| format!("m{}.turn", it.0);
        match next {
            Next::StepStarted(n) => {
                self.add(body::<is::StepStarted>(json!({
                    "attempt": 1, "effect": "read", "input_digest": null, "key": null, "step": step(n),
                })));
            }
            Next::StepFinished(n) => {
                self.add(body::<is::StepFinished>(json!({
                    "attempt": 1, "effect": "read", "input_digest": null, "output": n,
                    "started_at": null, "step": step(n),
                })));
            }
            Next::StepFailed(n) => {
                self.add(body::<is::StepFailed>(json!({
                    "attempt": 1, "error": cause(), "started_at": null, "step": step(n),
                })));
            }
            Next::Turn(true) => {
                let turn = self.turn + 1;
                if self.add(body::<is::Turn>(json!({"turn": turn}))) {
                    self.turn = turn;
                }
            }
            Next::Turn(false) => {
                let turn = self.turn;
                self.add(body::<is::TurnFinished>(json!({"turn": turn})));
            }
            Next::ModelCalled => {
                let (number, attempt) = match &self.call {
                    Some((number, attempt, _)) => (*number, attempt + 1),
                    None => (self.calls + 1, 1),
                };
                let called = body::<is::ModelCalled>(json!({
                    "attempt": attempt, "call": format!("m{number}.turn"), "context": null,
                    "model": "m", "reserved": spent,
                }));
                if self.add(called) {
                    self.calls = number;
                    self.call = Some((number, attempt, String::new()));
                    self.hear(Shown::Reset, false);
                }
            }
            Next::Words(words, lost) => {
                if let Some((_, _, so_far)) = &mut self.call {
                    so_far.push_str(&words);
                }
                self.hear(Shown::Text(words.as_str().into()), lost);
            }
            Next::Thought(words) => self.hear(Shown::Thinking(words.as_str().into()), false),
            Next::Answered(as_heard, tools) => {
                let Some(open) = self.call.clone() else {
                    return;
                };
                let words = if as_heard {
                    open.2.clone()
                } else {
                    "other".to_owned()
                };
                let made: Vec<String> = (0..tools).map(|n| format!("c{}.{n}", open.0)).collect();
                let parts = made.iter().map(
                    |call| json!({"tool_call": {"arguments": {"x": 1}, "call": call, "name": "t"}}),
                );
                let parts: Vec<Value> = [json!({"text": words})].into_iter().chain(parts).collect();
                if self.add(body::<is::ModelAnswered>(json!({
                    "call": model(&open), "finish_reason": null, "spent": spent,
                    "message": {"parts": parts, "role": "assistant"},
                }))) {
                    // Live text may be heard later than the answer is read.
                    self.hear(Shown::Text("late".into()), false);
                    self.tools.extend(made);
                    self.call = None;
                }
            }
            Next::ModelFailed => {
                let Some(open) = self.call.clone() else {
                    return;
                };
                let failed = json!({"call": model(&open), "error": cause(), "spent": spent});
                if self.add(body::<is::ModelFailed>(failed)) {
                    self.call = None;
                }
            }
            Next::ToolCalled(n) => {
                let call = self.tool(n);
                self.add(body::<is::ToolCalled>(json!({
                    "arguments": {"x": 1}, "attempt": 1, "call": call, "effect": "read",
                    "key": null, "name": "t",
                })));
            }
            Next::ToolReturned(n) => {
                let call = self.tool(n);
                self.add(body::<is::ToolReturned>(
                    json!({"call": call, "output": "out"}),
                ));
            }
            Next::ToolFailed(n) => {
                let call = self.tool(n);
                self.add(body::<is::ToolFailed>(
                    json!({"call": call, "error": cause()}),
                ));
            }
            Next::Queued(text) => {
                self.add(body::<is::MessageQueued>(json!({"by": null, "text": text})));
            }
            Next::Added(role, text) => {
                let added = body::<MessageAdded>(json!({
                    "length": 1, "node": Digest::of(b""), "previous": null, "role": role,
                }));
                if self.add(added)
                    && let Some(Item::Fact(fact)) = self.items.last_mut()
                {
                    let node = json!({"message": {"content": text, "role": role}});
                    fact.node = Some(Json::from(node));
                }
            }
            Next::Patched(document, whole) => {
                let patch = patch_to(&self.state.row.facts.document, &document, whole);
                let patch = serde_json::from_value(patch).unwrap();
                self.add(StatePatched { patch }.into());
            }
            Next::Waits(true) => {
                let wait = format!("w{}", self.waits + 1);
                if self.add(body::<is::WaitStarted>(json!({
                    "arguments": null, "call": null, "deadline": null, "kind": "approval",
                    "name": null, "on_deadline": null, "prompt": "?", "step": step(9), "tool": null,
                    "wait": wait,
                }))) {
                    self.waits += 1;
                }
            }
            Next::Waits(false) => {
                let wait = format!("w{}", self.waits);
                self.add(body::<is::WaitEnded>(json!({
                    "approved": true, "by": null, "outcome": "answered", "reason": null,
                    "step": step(9), "value": null, "wait": wait,
                })));
            }
            Next::Child(n, true) => {
                let none = json!(is::Budget::default());
                self.add(body::<is::ChildStarted>(json!({
                    "budget": none, "child": RunId::from_bytes([n; 16]), "detached": false,
                    "step": step(5 + n),
                })));
            }
            Next::Child(n, false) => {
                self.add(body::<is::ChildFinished>(json!({
                    "child": RunId::from_bytes([n; 16]), "status": "failed", "step": step(5 + n),
                    "final_state_digest": Digest::of(b""),
                })));
            }
            Next::Custom => {
                self.add(body::<is::Custom>(
                    json!({"data": {"n": 1}, "name": "mine"}),
                ));
            }
            Next::TakenOver => {
                self.epoch += 1;
                self.add(body::<is::RunResumed>(
                    json!({"owner": "o", "reason": "orphaned"}),
                ));
            }
        }
    }

    fn tool(&self, n: u8) -> String {
        let told = self.tools.get(usize::from(n));
        told.cloned().unwrap_or_else(|| format!("own{n}"))
    }

    fn end(&mut self, how: u8) {
        use logreel::core::event as is;
        let digest = Digest::of(b"");
        self.add(match how {
            0 => {
                body::<is::RunCompleted>(json!({"final_state_digest": digest, "output": {"x": 1}}))
            }
            1 => body::<is::RunFailed>(json!({"final_state_digest": digest, "error": cause()})),
            _ => body::<is::RunCancelled>(json!({"final_state_digest": digest, "reason": null})),
        });
    }
}

fn listener(run: &str, messages: Vec<Value>) -> Listener {
    Listener {
        thread: "s".to_owned(),
        run: run.to_owned(),
        messages: messages::kept(messages, &RUN.parse().unwrap()),
    }
}

fn interrupt() -> Interrupt {
    Interrupt {
        id: "w1".to_owned(),
        subagent_run_id: None,
        reason: "approval",
        message: "?".to_owned(),
        tool_call_id: None,
        response_schema: None,
        expires_at: None,
        metadata: json!({}),
    }
}

/// Tells the items to a client; a slow one misses what is lost.
fn tell(translator: &mut Translator, client: &mut Client, items: &[Item], slow: bool) {
    for item in items {
        let sent = match item {
            Item::Fact(fact) => translator.take(fact),
            Item::Live(_, true) if slow => Vec::new(),
            Item::Live(text, _) => translator.hear(text),
        };
        client.take_all(&sent);
    }
}

/// Tells the items to one who joins behind the first `at` of them.
fn join(client: &mut Client, items: &[Item], at: usize) -> Translator {
    let run = RUN.parse().unwrap();
    let mut translator = Translator::new(run, listener("theirs2", client.messages.clone()));
    let mut so_far: Vec<&LiveText> = Vec::new();
    for item in &items[..at] {
        match item {
            Item::Fact(fact) => drop(translator.take(fact)),
            Item::Live(text, _) => {
                if text.shown == Shown::Reset {
                    so_far.clear();
                }
                so_far.push(text);
            }
        }
    }
    client.take_all(&translator.begin(true));
    for text in so_far {
        client.take_all(&translator.hear(text));
    }
    tell(&mut translator, client, &items[at..], false);
    translator
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whoever_joins_anywhere_is_told_by_the_rules_and_ends_with_the_same(
        is_agent in any::<bool>(),
        happens in prop::collection::vec(next(), 0..40),
        how in 0..4_u8,
        place in any::<prop::sample::Index>(),
    ) {
        let mut story = Story::begin(if is_agent { "agent" } else { "task" });
        for next in happens {
            story.step(next);
        }
        if how < 3 {
            story.end(how);
        }
        let run: RunId = RUN.parse().unwrap();
        let asked = json!({"id": "u1", "role": "user", "content": "hello"});
        let mut first = Client::having(vec![asked.clone()]);
        let mut translator = Translator::new(run, listener("theirs", first.messages.clone()));
        first.take_all(&translator.begin(false));
        // Behind the first event, before the last.
        let at = 1 + place.index(story.items.len() - usize::from(how < 3));
        tell(&mut translator, &mut first, &story.items[..at], true);
        let mut again = first.again();
        tell(&mut translator, &mut first, &story.items[at..], true);
        let mut other = Client::default();
        let mut told = [translator, join(&mut again, &story.items, at), join(&mut other, &story.items, at)];
        for (client, translator) in [&mut first, &mut again, &mut other].into_iter().zip(&mut told) {
            if how == 3 {
                client.take_all(&translator.interrupt(vec![interrupt()]));
            }
            prop_assert!(client.ended.is_some());
            prop_assert_eq!(&client.state, &story.state.row.facts.document);
            prop_assert_eq!(translator.document(), &story.state.row.facts.document);
            prop_assert_eq!(client.conversation(), by_id(&translator.messages()));
        }
        prop_assert_eq!(first.conversation(), again.conversation());
        prop_assert_eq!(first.conversation(), other.conversation());
    }
}

/// The types of what was sent, with what identifies it, in order.
fn names(sent: &[Sent]) -> Vec<String> {
    let name = |event: &Sent| {
        let event = serde_json::to_value(event).unwrap();
        let ids = ["messageId", "toolCallId", "stepName", "delta", "content"];
        let ids = ids.iter().filter_map(|name| event[name].as_str());
        let ids: Vec<&str> = ids.map(|id| id.trim_start_matches(RUN)).collect();
        format!("{} {}", event["type"].as_str().unwrap(), ids.join(" "))
    };
    sent.iter().map(name).collect()
}

#[test]
fn an_attempt_that_starts_over_takes_back_what_was_shown_and_nothing_is_sent_twice() {
    let mut story = Story::begin("agent");
    let words = |text: &str| Next::Words(text.to_owned(), false);
    for next in [
        Next::ModelCalled,
        Next::Thought("hm".to_owned()),
        words("half"),
        Next::TakenOver,
        Next::ModelCalled,
        words("whole "),
        words("answer"),
        Next::Answered(true, 1),
        Next::ToolCalled(0),
        Next::ToolReturned(0),
    ] {
        story.step(next);
    }
    story.end(0);
    let run = RUN.parse().unwrap();
    let asked = json!({"id": "u1", "role": "user", "content": "hello"});
    let mut translator = Translator::new(run, listener("theirs", vec![asked]));
    let mut sent = translator.begin(false);
    for item in &story.items {
        sent.extend(match item {
            Item::Fact(fact) => translator.take(fact),
            Item::Live(text, _) => translator.hear(text),
        });
    }
    assert_eq!(
        names(&sent),
        [
            "RUN_STARTED ",
            "STATE_SNAPSHOT ",
            "REASONING_START /m1.turn/thinking/1",
            "REASONING_MESSAGE_START /m1.turn/thinking/1",
            "REASONING_MESSAGE_CONTENT /m1.turn/thinking/1 hm",
            "REASONING_MESSAGE_END /m1.turn/thinking/1",
            "REASONING_END /m1.turn/thinking/1",
            "TEXT_MESSAGE_START /m1.turn",
            "TEXT_MESSAGE_CONTENT /m1.turn half",
            "TEXT_MESSAGE_END /m1.turn",
            "MESSAGES_SNAPSHOT ",
            "TEXT_MESSAGE_START /m1.turn.2",
            "TEXT_MESSAGE_CONTENT /m1.turn.2 whole ",
            "TEXT_MESSAGE_CONTENT /m1.turn.2 answer",
            "TEXT_MESSAGE_END /m1.turn.2",
            "TOOL_CALL_START /c1.0",
            "TOOL_CALL_ARGS /c1.0 {\"x\":1}",
            "TOOL_CALL_END /c1.0",
            "TOOL_CALL_RESULT /c1.0/result /c1.0 out",
            "RUN_FINISHED ",
        ]
    );
}

#[test]
fn a_long_text_comes_in_pieces_and_a_patch_of_everything_as_a_snapshot() {
    // An even number of bytes ends within a letter.
    let long = format!("a{}", "é".repeat(PIECE_BYTES));
    let told: Vec<&str> = pieces(&long).collect();
    assert!(told.len() > 2 && told.iter().all(|piece| piece.len() <= PIECE_BYTES));
    assert_eq!(told.concat(), long);
    assert_eq!(pieces("").count(), 0);
    let patch = |path: &str| json!([{"op": "add", "path": path, "value": 1}]);
    for plain in ["/a", "/a/0", "/", "/a~1b"] {
        assert!(is_plain(&patch(plain)), "{plain}");
    }
    for special in ["", "/__proto__/x", "/a/constructor"] {
        assert!(!is_plain(&patch(special)), "{special}");
    }
    assert!(!is_plain(
        &json!([{"op": "copy", "from": "", "path": "/a"}])
    ));
}
