//! Says in words what differs.

use std::collections::HashMap;

use logreel_core::{Body, Digest, Seq};
use logreel_store::RunStore;
use serde_json::Value;

use super::compare::{Found, What, after};
use super::conductor::Performance;
use super::facts::Fact;
use super::lane::{self, Lane, Waits};
use super::recording::Recording;
use super::report::Difference;

/// How many things that are under way are named.
const UNDER_WAY_MAX: usize = 4;
/// What is shown of a text.
const SHOWN_CHARS_MAX: usize = 120;

/// What models were told, when the run was recorded and now.
pub(crate) struct Seen<'a> {
    recorded: &'a HashMap<Digest, Value>,
    now: HashMap<Digest, Value>,
}

impl<'a> Seen<'a> {
    pub(crate) async fn of(recording: &'a Recording, performance: &Performance) -> Self {
        let mut now = HashMap::new();
        for (event, _) in &performance.log {
            let Body::ModelCalled(called) = &event.body else {
                continue;
            };
            let Some(request) = called.request.filter(|it| !now.contains_key(it)) else {
                continue;
            };
            let bytes = performance.store.blob(&request).await.ok().flatten();
            let told = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            if let Some(told) = told {
                now.insert(request, told);
            }
        }
        Self {
            recorded: &recording.requests,
            now,
        }
    }

    /// Whether two facts of one kind say the same.
    pub(crate) fn is_same(&self, recorded: &Fact, now: &Fact) -> bool {
        if recorded.kind != "model.called" {
            return recorded.says == now.says;
        }
        let same = |key: &str| recorded.says[key] == now.says[key];
        if !["call", "context", "model"].into_iter().all(same) {
            return false;
        }
        match (self.told(recorded), self.told_now(now)) {
            (Some(was), Some(is)) => visible(was) == visible(is),
            // Logs of builds before this was recorded do not tell.
            _ => true,
        }
    }

    fn told(&self, fact: &Fact) -> Option<&Value> {
        self.recorded.get(&digest(&fact.says["request"])?)
    }

    fn told_now(&self, fact: &Fact) -> Option<&Value> {
        self.now.get(&digest(&fact.says["request"])?)
    }
}

fn digest(value: &Value) -> Option<Digest> {
    value.as_str()?.parse().ok()
}

/// What a model sees of what is recorded as told: not what a tool's interruption means.
fn visible(told: &Value) -> Value {
    let mut told = told.clone();
    for tool in told["tools"].as_array_mut().into_iter().flatten() {
        if let Some(fields) = tool.as_object_mut() {
            fields.retain(|key, _| matches!(key.as_str(), "name" | "description" | "schema"));
        }
    }
    told
}

/// The difference, in words.
pub(crate) async fn difference(
    source: &dyn RunStore,
    recording: &Recording,
    stored: Option<&Performance>,
    now: &Performance,
    seen: &Seen<'_>,
    found: Found,
) -> Difference {
    let Found { seq, lane, what } = found;
    let event = recording.events.iter().find(|event| event.seq == seq);
    let kind = event.map_or("", |event| event.body.kind()).to_owned();
    let mut difference = Difference {
        run: recording.run,
        seq,
        kind,
        about: about(recording, &lane, seq),
        why: String::new(),
        recorded: None,
        now: None,
    };
    match what {
        What::Other { recorded, now: is } if recorded.kind != is.kind => {
            difference.why = format!("{} comes instead", named(&is));
            (difference.recorded, difference.now) = (Some(recorded.says), Some(is.says));
        }
        What::Other { recorded, now: is } => {
            let said = match recorded.kind.as_str() {
                "model.called" => request(seen, &recorded, &is),
                "message.added" | "context.compacted" => {
                    message(source, &now.store, &recorded, &is).await
                }
                "step.finished" | "step.started"
                    if recorded.says["input_digest"] != is.says["input_digest"] =>
                {
                    works_on(stored, now, &lane)
                }
                _ => fields(&recorded.says, &is.says),
            };
            (difference.why, difference.recorded, difference.now) = said;
        }
        What::Begins => {
            difference.about = about_next(recording, seq);
            difference.why = format!("before it begins {lane}, which the log does not have");
        }
        What::Missing(fact) => {
            difference.why = missing(recording, now, &lane);
            difference.recorded = Some(fact.says);
        }
        What::More(fact) => {
            difference.why = match lane {
                Lane::Run => format!(
                    "before it comes {}, which the log does not have",
                    named(&fact)
                ),
                _ => format!(
                    "before it comes {} of {lane}, which the log does not have",
                    named(&fact)
                ),
            };
            difference.now = Some(fact.says);
            difference.about = about_next(recording, seq);
        }
        What::Moved { before, now: is } => {
            let cue = |given| after(&recording.cues, given);
            let said = |given| match cue(given) {
                Some(cue) => format!("after event {} ({})", cue.seq, cue.lane),
                None => "at once".to_owned(),
            };
            difference.why = format!("it begins {}; it began {}", said(is), said(before));
        }
        What::ChildInput { recorded, now: is } => {
            let (why, was, is) = fields(&recorded, &is);
            difference.why = format!("its child is started with another input: {why}");
            (difference.recorded, difference.now) = (was, is);
        }
    }
    difference
}

type Said = (String, Option<Value>, Option<Value>);

/// What the event is about.
fn about(recording: &Recording, lane: &Lane, seq: Seq) -> String {
    let event = recording.events.iter().find(|event| event.seq == seq);
    match (lane, event.map(|event| &event.body)) {
        (Lane::Run, Some(Body::ModelCalled(it))) => format!("model call `{}`", it.call),
        (Lane::Run, Some(Body::MessageAdded(it))) => format!("a message of the {}", it.role),
        (Lane::Call(call), _) => {
            let tool = recording.events.iter().find_map(|event| match &event.body {
                Body::ToolCalled(it) if it.call == *call => Some(&it.name),
                Body::WaitStarted(it) if it.call.as_ref() == Some(call) => it.tool.as_ref(),
                _ => None,
            });
            match tool {
                Some(tool) => format!("tool call `{tool}` ({call})"),
                None => lane.to_string(),
            }
        }
        _ => lane.to_string(),
    }
}

/// What an event is about, whatever was found before it.
fn about_next(recording: &Recording, seq: Seq) -> String {
    let waits = Waits::of(&recording.events);
    let event = recording.events.iter().find(|event| event.seq == seq);
    match event {
        Some(event) => about(recording, &lane::of(&event.body, &waits), seq),
        None => String::new(),
    }
}

fn named(fact: &Fact) -> String {
    format!("`{}`", fact.kind)
}

/// What a model is told that it was not.
fn request(seen: &Seen<'_>, recorded: &Fact, now: &Fact) -> Said {
    for (key, what) in [("call", "the call"), ("model", "the model")] {
        let (was, is) = (&recorded.says[key], &now.says[key]);
        if was != is {
            return both(format!("{what} is another"), was, is);
        }
    }
    if recorded.says["context"] != now.says["context"] {
        let why = "the conversation before it is another".to_owned();
        return both(why, &recorded.says["context"], &now.says["context"]);
    }
    let null = Value::Null;
    let was = seen.told(recorded).unwrap_or(&null);
    let is = seen.told_now(now).unwrap_or(&null);
    let (was_tools, is_tools) = (&visible(was)["tools"], &visible(is)["tools"]);
    if was["system"] != is["system"] {
        let line = first_line(&was["system"], &is["system"]);
        return both(
            format!("the system text differs{}", line.at),
            &line.was,
            &line.is,
        );
    }
    if was_tools != is_tools {
        return tools(was_tools, is_tools);
    }
    for (key, what) in [
        ("params", "the parameters differ"),
        ("output_schema", "the schema of the answer differs"),
    ] {
        if was[key] != is[key] {
            return both(what.to_owned(), &was[key], &is[key]);
        }
    }
    both("what the model is told differs".to_owned(), was, is)
}

fn both(why: String, was: &Value, is: &Value) -> Said {
    (why, Some(was.clone()), Some(is.clone()))
}

/// Which tools came, went or changed.
fn tools(was: &Value, is: &Value) -> Said {
    let by_name = |tools: &Value| -> Vec<(String, Value)> {
        let tools = tools.as_array().cloned().unwrap_or_default();
        let named = |tool: Value| (tool["name"].as_str().unwrap_or_default().to_owned(), tool);
        tools.into_iter().map(named).collect()
    };
    let (was, is) = (by_name(was), by_name(is));
    let find = |tools: &[(String, Value)], name: &str| {
        let mut tools = tools.iter();
        tools
            .find(|(it, _)| it == name)
            .map(|(_, tool)| tool.clone())
    };
    let names = |tools: &[(String, Value)]| -> Value {
        let names = tools.iter().map(|(name, _)| Value::from(name.as_str()));
        names.collect()
    };
    let (mut recorded, mut now) = (names(&was), names(&is));
    let mut said = Vec::new();
    for (name, tool) in &is {
        match find(&was, name) {
            None => said.push(format!("`{name}` was added")),
            Some(before) if before != *tool => {
                said.push(format!("`{name}` is described otherwise"));
                if recorded == now {
                    (_, recorded, now) = first_field(&before, tool);
                }
            }
            Some(_) => {}
        }
    }
    for (name, _) in &was {
        if find(&is, name).is_none() {
            said.push(format!("`{name}` was removed"));
        }
    }
    if said.is_empty() {
        said.push("they are in another order".to_owned());
    }
    both(
        format!("the tools differ: {}", said.join(", ")),
        &recorded,
        &now,
    )
}

/// What a message says that it did not.
async fn message(source: &dyn RunStore, store: &dyn RunStore, recorded: &Fact, now: &Fact) -> Said {
    let (was, is) = (
        words(source, &recorded.says["node"]).await,
        words(store, &now.says["node"]).await,
    );
    if recorded.says["role"] != now.says["role"] {
        return both("someone else speaks".to_owned(), &was, &is);
    }
    let line = first_line(&was, &is);
    both(
        format!("the message differs{}", line.at),
        &line.was,
        &line.is,
    )
}

/// The message of a context node; its text when that is all it is.
async fn words(store: &dyn RunStore, node: &Value) -> Value {
    let Some(node) = digest(node) else {
        return Value::Null;
    };
    let bytes = store.blob(&node).await.ok().flatten();
    let node: Option<Value> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let message = node.map(|node| node["message"].clone()).unwrap_or_default();
    match message["parts"].as_array().map(Vec::as_slice) {
        Some([part]) if part["text"].is_string() => part["text"].clone(),
        _ => message,
    }
}

struct Line {
    at: String,
    was: Value,
    is: Value,
}

/// The first line that differs, when both are texts.
fn first_line(was: &Value, is: &Value) -> Line {
    let (Some(one), Some(other)) = (was.as_str(), is.as_str()) else {
        return Line {
            at: String::new(),
            was: was.clone(),
            is: is.clone(),
        };
    };
    let lines = one.lines().zip(other.lines());
    let same = lines.take_while(|(one, other)| one == other).count();
    let line = |text: &str| text.lines().nth(same).map(Value::from).unwrap_or_default();
    Line {
        at: format!(" in line {}", same + 1),
        was: line(one),
        is: line(other),
    }
}

/// What a step works on, when it is not what it was.
fn works_on(stored: Option<&Performance>, now: &Performance, lane: &Lane) -> Said {
    let was = stored.and_then(|stored| stored.noted.notes.get(lane));
    let is = now.noted.notes.get(lane);
    let (Some(was), Some(is)) = (was, is) else {
        let why = "it works on another input, or does something else".to_owned();
        return (why, None, is.cloned());
    };
    for (key, what) in [
        ("does", "what it does differs"),
        ("input", "its input differs"),
        ("env", "its variables differ"),
        ("dir", "its folder differs"),
        ("output_schema", "the schema of its output differs"),
    ] {
        if was[key] != is[key] {
            let (why, was, is) = fields(&was[key], &is[key]);
            return (format!("{what}: {why}"), was, is);
        }
    }
    both("its definition differs".to_owned(), was, is)
}

/// The first place where two values differ, in words, and what is there.
fn fields(was: &Value, is: &Value) -> Said {
    let (at, was, is) = first_field(was, is);
    let why = match at.is_empty() {
        true => format!("{} was {}", shown(&is), shown(&was)),
        false => format!("`{at}` is {}, was {}", shown(&is), shown(&was)),
    };
    (why, Some(was), Some(is))
}

/// The first place where two values differ: its JSON pointer, and both values there.
fn first_field(was: &Value, is: &Value) -> (String, Value, Value) {
    fn walk<'v>(was: &'v Value, is: &'v Value, at: &str) -> Option<(String, &'v Value, &'v Value)> {
        if was == is {
            return None;
        }
        match (was, is) {
            (Value::Object(one), Value::Object(other)) => {
                let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
                keys.sort();
                keys.dedup();
                keys.into_iter().find_map(|key| {
                    let at = format!("{at}/{key}");
                    walk(&was[key.as_str()], &is[key.as_str()], &at)
                })
            }
            (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
                let pairs = one.iter().zip(other).enumerate();
                pairs
                    .into_iter()
                    .find_map(|(n, (one, other))| walk(one, other, &format!("{at}/{n}")))
            }
            _ => Some((at.to_owned(), was, is)),
        }
    }
    let found = walk(was, is, "").unwrap_or((String::new(), was, is));
    (found.0, found.1.clone(), found.2.clone())
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Why something is not decided again.
fn missing(recording: &Recording, now: &Performance, lane: &Lane) -> String {
    if let Some((event, _)) = now.log.last()
        && event.body.is_terminal()
    {
        return match &event.body {
            Body::RunFailed(failed) => {
                format!(
                    "it is not decided again: the run fails before: {}",
                    failed.error.message
                )
            }
            _ => "it is not decided again: the run ends without it".to_owned(),
        };
    }
    if now.noted.waiting.contains(lane) {
        return "it is not decided again: it is at work instead".to_owned();
    }
    let next = recording.cues.get(now.given);
    let waiting = now.noted.waiting.iter().take(UNDER_WAY_MAX);
    let others: Vec<String> = waiting
        .filter(|lane| next.is_none_or(|cue| cue.lane != **lane))
        .map(Lane::to_string)
        .collect();
    match others.as_slice() {
        [] => "it is not decided again".to_owned(),
        others => format!(
            "it is not decided again: what is under way instead is {}",
            others.join(", ")
        ),
    }
}
