//! A provider for tests: a real HTTP server on a port of its own that speaks both wire formats, counts
//! what it is asked, and checks every request field by field.
//!
//! It needs std and `serde_json` alone, so that tests of other crates can include it with `#[path]`, and
//! threads instead of a runtime, so that tests that start the binary can too. A request that is not as
//! the provider would want it is answered with a 400 that says why, and kept in [`Seen::faults`].
//!
//! ```ignore
//! let provider = Provider::by_turn(vec![
//!     vec![Reply::status(429, "slow down").header("retry-after", "1"), Said::text("hi").into()],
//!     vec![Said::call("toolu_0123456789", "fs_read", "{}").into()],
//! ]);
//! // base_url: provider.anthropic_url() or provider.openai_url()
//! assert_eq!(provider.counts(), [2, 1]);
//! provider.assert_no_faults();
//! ```

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "test support: each test uses a part of it, and a panic is a failed test"
)]

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

/// A running provider; it stops when this is dropped.
pub struct Provider {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    answer: Box<dyn Fn(&Seen) -> Reply + Send + Sync>,
    /// The key that requests must carry; none: they must carry one.
    key: Mutex<Option<String>>,
    seen: Mutex<Vec<Seen>>,
    issued: Mutex<Vec<Said>>,
    stopped: AtomicBool,
}

/// The wire format of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Anthropic,
    OpenAi,
    /// Some other path: counted as one turn, not checked, and answered with [`Reply::Raw`] alone.
    Other,
}

/// A request, as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub format: Format,
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The text of the body.
    pub raw: String,
    pub body: Value,
    /// How many answers the conversation has already: the turn that is asked for, from 0.
    pub turn: usize,
    /// The first words of the user, by which several runs at one server are told apart.
    pub conversation: String,
    /// How often this turn of this conversation was asked for before.
    pub attempt: usize,
    /// What a provider would not accept.
    pub faults: Vec<String>,
}

/// What is answered.
#[derive(Debug, Clone)]
pub enum Reply {
    Say(Said),
    /// A status, headers and a body, as they are.
    Raw {
        status: u16,
        headers: Vec<(String, String)>,
        body: String,
    },
}

/// An answer.
#[derive(Debug, Clone, Default)]
pub struct Said {
    pub blocks: Vec<Block>,
    /// The stop reason in the words of the format; by the blocks when none.
    pub stop: Option<String>,
    pub input_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub reasoning_tokens: u64,
    pub how: How,
    /// Bytes per write; all at once when 0.
    pub piece: usize,
    /// Before each write.
    pub pause: Duration,
}

/// How an answer is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum How {
    #[default]
    Stream,
    /// In one piece, as servers do that do not stream.
    Whole,
    /// The stream ends in order, half-way through the answer.
    Cut,
    /// The connection is closed half-way.
    Broken,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    Text(String),
    Thinking {
        thinking: String,
        signature: String,
    },
    /// A block as it is: `redacted_thinking`, or one that nobody knows.
    Raw(Value),
    /// A call, by its name on the wire and the text of its arguments.
    Call {
        id: String,
        name: String,
        arguments: String,
    },
}

impl Provider {
    /// A provider that answers as it is told for each request.
    pub fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            answer: Box::new(answer),
            key: Mutex::default(),
            seen: Mutex::default(),
            issued: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                // A client that is killed in the middle is part of the tests.
                std::thread::spawn(move || drop(serve(&shared, stream.unwrap())));
            }
        });
        Self { address, shared }
    }

    /// A provider whose answer depends on how far the conversation is: the turn's first request gets
    /// the first reply, the next the second, and so on; the last is repeated.
    pub fn by_turn(turns: Vec<Vec<Reply>>) -> Self {
        Self::start(move |seen| match turns.get(seen.turn) {
            Some(replies) => replies[seen.attempt.min(replies.len() - 1)].clone(),
            None => Reply::status(400, &format!("the script has {} turns", turns.len())),
        })
    }

    /// Checks that each request carries this key.
    pub fn expect_key(&self, key: &str) {
        *lock(&self.shared.key) = Some(key.to_owned());
    }

    /// The `base_url` of `openai/…`.
    pub fn openai_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The `base_url` of any other: only the server.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The `base_url` of `anthropic/…`.
    pub fn anthropic_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every request so far, in the order in which they came.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// How often each turn was asked for, over all conversations.
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = Vec::new();
        for seen in lock(&self.shared.seen).iter() {
            if counts.len() <= seen.turn {
                counts.resize(seen.turn + 1, 0);
            }
            counts[seen.turn] += 1;
        }
        counts
    }

    /// Forgets what it was asked, for the next round of a sweep.
    pub fn forget(&self) {
        lock(&self.shared.seen).clear();
    }

    /// Panics when a request was not as a provider wants it.
    pub fn assert_no_faults(&self) {
        for (at, seen) in self.seen().iter().enumerate() {
            assert!(
                seen.faults.is_empty(),
                "request {at}: {:#?}\n{:#}",
                seen.faults,
                seen.body
            );
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

impl Reply {
    /// A failure, in a shape that both formats share.
    pub fn status(status: u16, message: &str) -> Self {
        Self::Raw {
            status,
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: json!({"type": "error", "error": {"type": "test", "message": message}})
                .to_string(),
        }
    }

    /// The same with another header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Self::Raw { headers, .. } = &mut self {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// A success that is no answer.
    pub fn ok(content_type: &str, body: &str) -> Self {
        Self::Raw {
            status: 200,
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            body: body.to_owned(),
        }
    }
}

impl From<Said> for Reply {
    fn from(said: Said) -> Self {
        Self::Say(said)
    }
}

impl Said {
    pub fn of(blocks: Vec<Block>) -> Self {
        Self {
            blocks,
            input_tokens: 100,
            output_tokens: 10,
            ..Self::default()
        }
    }

    pub fn text(text: &str) -> Self {
        Self::of(vec![Block::Text(text.to_owned())])
    }

    pub fn call(id: &str, name: &str, arguments: &str) -> Self {
        Self::of(vec![Block::call(id, name, arguments)])
    }

    pub fn sent(mut self, how: How) -> Self {
        self.how = how;
        self
    }

    /// In pieces of that many bytes, with a pause before each.
    pub fn in_pieces(mut self, piece: usize, pause: Duration) -> Self {
        (self.piece, self.pause) = (piece, pause);
        self
    }

    fn call_ids(&self) -> Vec<&str> {
        let ids = self.blocks.iter().filter_map(|block| match block {
            Block::Call { id, .. } => Some(id.as_str()),
            Block::Text(_) | Block::Thinking { .. } | Block::Raw(_) => None,
        });
        ids.collect()
    }
}

impl Block {
    pub fn call(id: &str, name: &str, arguments: &str) -> Self {
        Self::Call {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        }
    }

    pub fn thinking(thinking: &str, signature: &str) -> Self {
        Self::Thinking {
            thinking: thinking.to_owned(),
            signature: signature.to_owned(),
        }
    }

    fn anthropic(&self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Thinking {
                thinking,
                signature,
            } => json!({"type": "thinking", "thinking": thinking, "signature": signature}),
            Self::Raw(raw) => raw.clone(),
            Self::Call {
                id,
                name,
                arguments,
            } => {
                let input: Value = serde_json::from_str(arguments).unwrap_or(json!({}));
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
        }
    }
}

// ---- serving ----

fn serve(shared: &Shared, stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if line.is_empty() {
        return Ok(());
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(Ok(0), |it| it.parse());
    let mut body = vec![0; length.unwrap()];
    reader.read_exact(&mut body)?;
    let raw = String::from_utf8(body).unwrap();
    let format = match path.as_str() {
        "/v1/messages" => Format::Anthropic,
        "/v1/chat/completions" => Format::OpenAi,
        _ => Format::Other,
    };
    let seen = note(shared, format, path, headers, raw);
    let reply = if seen.faults.is_empty() {
        (shared.answer)(&seen)
    } else {
        Reply::status(400, &seen.faults.join("; "))
    };
    if let Reply::Say(said) = &reply {
        lock(&shared.issued).push(said.clone());
    }
    let streams = seen.body["stream"] == true;
    send(stream, &reply, format, streams)
}

fn note(
    shared: &Shared,
    format: Format,
    path: String,
    headers: BTreeMap<String, String>,
    raw: String,
) -> Seen {
    let body: Value = serde_json::from_str(&raw).unwrap_or(Value::Null);
    let messages = match format {
        Format::Anthropic | Format::OpenAi => list(&body["messages"]),
        Format::Other => Vec::new(),
    };
    let first = messages.iter().find(|it| it["role"] == "user");
    let conversation = first.map(|it| words(&it["content"])).unwrap_or_default();
    let turn = messages.iter().filter(|it| it["role"] == "assistant");
    let turn = turn.count();
    let mut faults = Faults(Vec::new());
    let issued = lock(&shared.issued).clone();
    match format {
        Format::Anthropic => check_anthropic(&body, &messages, &issued, &mut faults),
        Format::OpenAi => check_openai(&body, &messages, &mut faults),
        Format::Other => {}
    }
    let key = match format {
        Format::Anthropic => headers.get("x-api-key").cloned(),
        Format::OpenAi => headers
            .get("authorization")
            .and_then(|it| it.strip_prefix("Bearer "))
            .map(str::to_owned),
        Format::Other => lock(&shared.key).clone().or(Some(String::new())),
    };
    faults.unless(
        key.is_some()
            && lock(&shared.key)
                .as_ref()
                .is_none_or(|it| key.as_ref() == Some(it)),
        "the key is missing or another",
    );
    let json = headers
        .get("content-type")
        .is_some_and(|it| it == "application/json");
    faults.unless(json, "the body is not declared as JSON");
    let mut all = lock(&shared.seen);
    let before = all
        .iter()
        .filter(|it| it.turn == turn && it.conversation == conversation);
    let seen = Seen {
        format,
        path,
        headers,
        raw,
        body,
        turn,
        attempt: before.count(),
        conversation,
        faults: faults.0,
    };
    all.push(seen.clone());
    seen
}

fn send(
    mut stream: TcpStream,
    reply: &Reply,
    format: Format,
    streams: bool,
) -> std::io::Result<()> {
    match reply {
        Reply::Raw {
            status,
            headers,
            body,
        } => {
            let mut head = format!("HTTP/1.1 {status} Test\r\nconnection: close\r\n");
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
            stream.write_all(head.as_bytes())?;
            stream.write_all(body.as_bytes())
        }
        Reply::Say(said) if said.how == How::Whole || !streams => {
            let body = match format {
                Format::Anthropic => anthropic_whole(said),
                Format::OpenAi => openai_whole(said),
                Format::Other => Value::Null,
            };
            send(
                stream,
                &Reply::ok("application/json", &body.to_string()),
                format,
                streams,
            )
        }
        Reply::Say(said) => {
            let mut events = match format {
                Format::Anthropic => anthropic_events(said),
                Format::OpenAi => openai_events(said),
                Format::Other => Vec::new(),
            };
            if matches!(said.how, How::Cut | How::Broken) {
                events.truncate(events.len() / 2);
            }
            let text = events.concat();
            stream.write_all(
                b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\
                  transfer-encoding: chunked\r\n\r\n",
            )?;
            let piece = if said.piece == 0 {
                text.len()
            } else {
                said.piece
            };
            for bytes in text.as_bytes().chunks(piece.max(1)) {
                pause(said.pause);
                stream.write_all(format!("{:x}\r\n", bytes.len()).as_bytes())?;
                stream.write_all(bytes)?;
                stream.write_all(b"\r\n")?;
                stream.flush()?;
            }
            if said.how == How::Broken {
                return stream.shutdown(std::net::Shutdown::Both);
            }
            stream.write_all(b"0\r\n\r\n")
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a slow provider is slow in real time"
)]
fn pause(pause: Duration) {
    if !pause.is_zero() {
        std::thread::sleep(pause);
    }
}

// ---- Anthropic ----

fn anthropic_stop(said: &Said) -> String {
    let by_blocks = if said.call_ids().is_empty() {
        "end_turn"
    } else {
        "tool_use"
    };
    said.stop.clone().unwrap_or_else(|| by_blocks.to_owned())
}

fn anthropic_usage(said: &Said) -> Value {
    json!({
        "input_tokens": said.input_tokens - said.cached_tokens,
        "cache_read_input_tokens": said.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": said.output_tokens,
    })
}

fn anthropic_whole(said: &Said) -> Value {
    let content: Vec<Value> = said.blocks.iter().map(Block::anthropic).collect();
    json!({
        "id": "msg_test", "type": "message", "role": "assistant", "model": "test",
        "content": content, "stop_reason": anthropic_stop(said), "usage": anthropic_usage(said),
    })
}

fn anthropic_events(said: &Said) -> Vec<String> {
    let mut events = Vec::new();
    let mut event = |kind: &str, mut body: Value| {
        body["type"] = json!(kind);
        events.push(format!("event: {kind}\ndata: {body}\n\n"));
    };
    let mut usage = anthropic_usage(said);
    usage["output_tokens"] = json!(1);
    event(
        "message_start",
        json!({"message": {"id": "msg_test", "role": "assistant", "content": [], "usage": usage}}),
    );
    event("ping", json!({}));
    for (index, block) in said.blocks.iter().enumerate() {
        let begin = match block {
            Block::Text(_) => json!({"type": "text", "text": ""}),
            Block::Thinking { .. } => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Block::Raw(raw) => raw.clone(),
            Block::Call { id, name, .. } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": {}})
            }
        };
        event(
            "content_block_start",
            json!({"index": index, "content_block": begin}),
        );
        let mut delta = |delta: Value| {
            event(
                "content_block_delta",
                json!({"index": index, "delta": delta}),
            )
        };
        match block {
            Block::Text(text) => {
                for part in halves(text) {
                    delta(json!({"type": "text_delta", "text": part}));
                }
            }
            Block::Thinking {
                thinking,
                signature,
            } => {
                for part in halves(thinking) {
                    delta(json!({"type": "thinking_delta", "thinking": part}));
                }
                for part in halves(signature) {
                    delta(json!({"type": "signature_delta", "signature": part}));
                }
            }
            Block::Raw(_) => {}
            Block::Call { arguments, .. } => {
                for part in halves(arguments) {
                    delta(json!({"type": "input_json_delta", "partial_json": part}));
                }
            }
        }
        event("content_block_stop", json!({"index": index}));
    }
    event(
        "message_delta",
        json!({
            "delta": {"stop_reason": anthropic_stop(said), "stop_sequence": null},
            "usage": {"output_tokens": said.output_tokens},
        }),
    );
    event("message_stop", json!({}));
    events
}

fn check_anthropic(body: &Value, messages: &[Value], issued: &[Said], faults: &mut Faults) {
    for key in ["model", "max_tokens", "messages"] {
        faults.unless(!body[key].is_null(), &format!("`{key}` is missing"));
    }
    let limit = body["max_tokens"].as_u64().unwrap_or(0);
    faults.unless(limit > 0, "`max_tokens` is no limit");
    if let Some(budget) = body["thinking"]["budget_tokens"].as_u64() {
        faults.unless(
            budget < limit,
            "`thinking.budget_tokens` is not below `max_tokens`",
        );
    }
    let tools = body["tools"].as_array().into_iter().flatten();
    let tools: Vec<_> = tools.map(|it| (&it["name"], &it["input_schema"])).collect();
    check_tools(&tools, faults);
    let marks = count(body, "cache_control");
    faults.unless(marks <= 4, &format!("{marks} cache breakpoints"));
    let first = messages.first().map(|it| &it["role"]);
    faults.unless(
        first == Some(&json!("user")),
        "the first message is not the user's",
    );
    let mut asked: HashSet<String> = HashSet::new();
    let mut used = HashSet::new();
    let mut before = &Value::Null;
    for message in messages {
        let role = &message["role"];
        faults.unless(role != before, &format!("two messages of {role} in a row"));
        before = role;
        let text = Value::Array(vec![json!({"type": "text", "text": message["content"]})]);
        let content = if message["content"].is_string() {
            &text
        } else {
            &message["content"]
        };
        let blocks = content.as_array().cloned().unwrap_or_default();
        faults.unless(
            !blocks.is_empty(),
            &format!("a message of {role} without content"),
        );
        for text in blocks.iter().filter(|it| it["type"] == "text") {
            let blank = text["text"].as_str().is_none_or(|it| it.trim().is_empty());
            faults.unless(!blank, "a text block without text");
        }
        if role == "assistant" {
            faults.unless(asked.is_empty(), &format!("no results for {asked:?}"));
            asked = check_said(&blocks, issued, &mut used, faults);
        } else {
            let results = blocks.iter().take_while(|it| it["type"] == "tool_result");
            let mut answered = HashSet::new();
            for result in results {
                let id = result["tool_use_id"].as_str().unwrap_or_default();
                faults.unless(
                    asked.contains(id),
                    &format!("a result for {id:?}, not called"),
                );
                faults.unless(answered.insert(id), &format!("two results for {id:?}"));
                let flag = &result["is_error"];
                faults.unless(flag.is_null() || flag.is_boolean(), "`is_error` is no flag");
            }
            let all = blocks
                .iter()
                .filter(|it| it["type"] == "tool_result")
                .count();
            faults.unless(all == answered.len(), "a result after other content");
            for id in asked.drain() {
                faults.unless(
                    answered.contains(id.as_str()),
                    &format!("no result for {id:?}"),
                );
            }
            let strange = blocks
                .iter()
                .find(|it| it["type"] != "tool_result" && it["type"] != "text");
            faults.unless(strange.is_none(), &format!("the user says {strange:?}"));
        }
    }
    faults.unless(asked.is_empty(), &format!("no results for {asked:?}"));
    faults.unless(before == "user", "the last message is not the user's");
}

/// An answer of ours that comes back: the same blocks in the same order, thoughts byte for byte.
fn check_said(
    blocks: &[Value],
    issued: &[Said],
    used: &mut HashSet<String>,
    faults: &mut Faults,
) -> HashSet<String> {
    let calls = blocks.iter().filter(|it| it["type"] == "tool_use");
    let ids: Vec<String> = calls
        .map(|it| it["id"].as_str().unwrap_or_default().to_owned())
        .collect();
    for call in blocks.iter().filter(|it| it["type"] == "tool_use") {
        faults.unless(call["input"].is_object(), "`input` is no object");
        faults.unless(legal(&call["name"]), &format!("a call of {}", call["name"]));
    }
    for id in &ids {
        faults.unless(used.insert(id.clone()), &format!("the id {id:?} twice"));
    }
    for thought in blocks.iter().filter(|it| it["type"] == "thinking") {
        faults.unless(
            thought["cache_control"].is_null(),
            "a thought is marked for the cache",
        );
    }
    // A client may give a call another id when ours is none, such as a counter.
    let ours = issued.iter().rev().find(|said| {
        let known = |id: &&str| id.len() > 8 && ids.iter().any(|it| it == id);
        said.call_ids().iter().any(known)
    });
    if let Some(said) = ours {
        let nonempty = said
            .blocks
            .iter()
            .filter(|it| !matches!(it, Block::Text(text) if text.trim().is_empty()));
        let expected: Vec<Value> = nonempty.map(Block::anthropic).collect();
        let kinds = |blocks: &[Value]| -> Vec<Value> {
            blocks.iter().map(|it| it["type"].clone()).collect()
        };
        let (was, is) = (kinds(&expected), kinds(blocks));
        faults.unless(
            was == is,
            &format!("the answer was {was:?} and came back as {is:?}"),
        );
        for (was, is) in expected.iter().zip(blocks) {
            if was["type"] != "text" && was["type"] != "tool_use" {
                faults.unless(was == is, &format!("{was} came back as {is}"));
            }
        }
    }
    ids.into_iter().collect()
}

// ---- OpenAI ----

fn openai_stop(said: &Said) -> String {
    let by_blocks = if said.call_ids().is_empty() {
        "stop"
    } else {
        "tool_calls"
    };
    said.stop.clone().unwrap_or_else(|| by_blocks.to_owned())
}

fn openai_usage(said: &Said) -> Value {
    json!({
        "prompt_tokens": said.input_tokens,
        "completion_tokens": said.output_tokens,
        "total_tokens": said.input_tokens + said.output_tokens,
        "prompt_tokens_details": {"cached_tokens": said.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": said.reasoning_tokens},
    })
}

fn openai_whole(said: &Said) -> Value {
    let mut text = String::new();
    let mut calls = Vec::new();
    for block in &said.blocks {
        match block {
            Block::Text(it) => text.push_str(it),
            Block::Thinking { .. } | Block::Raw(_) => {}
            Block::Call {
                id,
                name,
                arguments,
            } => calls.push(json!({
                "id": id, "type": "function",
                "function": {"name": name, "arguments": arguments},
            })),
        }
    }
    let content = if text.is_empty() {
        Value::Null
    } else {
        json!(text)
    };
    let message = json!({"role": "assistant", "content": content, "tool_calls": calls});
    json!({
        "id": "chatcmpl-test", "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": openai_stop(said)}],
        "usage": openai_usage(said),
    })
}

fn openai_events(said: &Said) -> Vec<String> {
    let mut events = Vec::new();
    let chunk = |choices: Value, usage: Value| {
        let body = json!({
            "id": "chatcmpl-test", "object": "chat.completion.chunk", "choices": choices,
            "usage": usage,
        });
        format!("data: {body}\n\n")
    };
    let delta = |delta: Value| {
        chunk(
            json!([{"index": 0, "delta": delta, "finish_reason": null}]),
            Value::Null,
        )
    };
    events.push(delta(json!({"role": "assistant", "content": ""})));
    let mut index = 0;
    // Parallel calls come interleaved.
    let mut late = Vec::new();
    for block in &said.blocks {
        match block {
            Block::Text(text) => {
                events.extend(halves(text).map(|part| delta(json!({"content": part}))));
            }
            Block::Thinking { thinking, .. } => {
                events.push(delta(json!({"reasoning_content": thinking})));
            }
            Block::Raw(_) => {}
            Block::Call {
                id,
                name,
                arguments,
            } => {
                let begin = json!({
                    "index": index, "id": id, "type": "function",
                    "function": {"name": name, "arguments": ""},
                });
                events.push(delta(json!({"tool_calls": [begin]})));
                for (at, part) in halves(arguments).enumerate() {
                    let more = json!({"index": index, "function": {"arguments": part}});
                    late.push((at, delta(json!({"tool_calls": [more]}))));
                }
                index += 1;
            }
        }
    }
    late.sort_by_key(|(at, _)| *at);
    events.extend(late.into_iter().map(|(_, event)| event));
    let end = json!([{"index": 0, "delta": {}, "finish_reason": openai_stop(said)}]);
    events.push(chunk(end, Value::Null));
    events.push(chunk(json!([]), openai_usage(said)));
    events.push("data: [DONE]\n\n".to_owned());
    events
}

fn check_openai(body: &Value, messages: &[Value], faults: &mut Faults) {
    for key in ["model", "messages"] {
        faults.unless(!body[key].is_null(), &format!("`{key}` is missing"));
    }
    if body["stream"] == true {
        let usage = &body["stream_options"]["include_usage"];
        faults.unless(usage == true, "usage is not asked for");
    } else {
        faults.unless(
            body["stream_options"].is_null(),
            "`stream_options` without a stream",
        );
    }
    let tools = body["tools"].as_array().into_iter().flatten();
    let functions = tools.map(|it| &it["function"]);
    let tools: Vec<_> = functions
        .map(|it| (&it["name"], &it["parameters"]))
        .collect();
    check_tools(&tools, faults);
    let mut asked: Vec<String> = Vec::new();
    let mut used = HashSet::new();
    let mut before = &Value::Null;
    for (at, message) in messages.iter().enumerate() {
        let role = &message["role"];
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            let known = asked.iter().position(|it| it == id);
            faults.unless(known.is_some(), &format!("a result for {id:?}, not called"));
            known.map(|at| asked.remove(at));
            faults.unless(message["content"].is_string(), "a result that is no text");
        } else {
            faults.unless(asked.is_empty(), &format!("no results for {asked:?}"));
            faults.unless(role != before, &format!("two messages of {role} in a row"));
        }
        match role.as_str() {
            Some("system") => faults.unless(at == 0, "a system text in the middle"),
            Some("user") => {
                let text = message["content"].as_str();
                faults.unless(
                    text.is_some_and(|it| !it.is_empty()),
                    "the user says nothing",
                );
            }
            Some("assistant") => {
                let calls = list(&message["tool_calls"]);
                let says = message["content"].as_str().is_some_and(|it| !it.is_empty());
                faults.unless(says || !calls.is_empty(), "the assistant says nothing");
                for call in &calls {
                    let id = call["id"].as_str().unwrap_or_default().to_owned();
                    faults.unless(used.insert(id.clone()), &format!("the id {id:?} twice"));
                    asked.push(id);
                    faults.unless(call["type"] == "function", "a call that is no function");
                    let function = &call["function"];
                    faults.unless(legal(&function["name"]), "a call of an illegal name");
                    faults.unless(
                        function["arguments"].is_string(),
                        "arguments that are no text",
                    );
                }
            }
            Some("tool") => {}
            _ => faults.unless(false, &format!("the role {role}")),
        }
        before = role;
    }
    faults.unless(asked.is_empty(), &format!("no results for {asked:?}"));
    faults.unless(before == "user" || before == "tool", "nothing is asked");
}

// ---- both ----

struct Faults(Vec<String>);

impl Faults {
    fn unless(&mut self, holds: bool, fault: &str) {
        if !holds {
            self.0.push(fault.to_owned());
        }
    }
}

fn check_tools(tools: &[(&Value, &Value)], faults: &mut Faults) {
    let mut names = HashSet::new();
    for (name, schema) in tools {
        faults.unless(legal(name), &format!("a tool named {name}"));
        faults.unless(
            names.insert(name.as_str()),
            &format!("two tools named {name}"),
        );
        faults.unless(
            schema["type"] == "object",
            &format!("{name} takes no object"),
        );
    }
}

fn legal(name: &Value) -> bool {
    name.as_str().is_some_and(|name| {
        (1..=64).contains(&name.len())
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    })
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn words(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        _ => {
            let blocks = content.as_array().into_iter().flatten();
            blocks.filter_map(|it| it["text"].as_str()).collect()
        }
    }
}

fn count(value: &Value, key: &str) -> usize {
    match value {
        Value::Object(map) => {
            let inner = map.values().map(|it| count(it, key)).sum::<usize>();
            inner + usize::from(map.contains_key(key))
        }
        Value::Array(list) => list.iter().map(|it| count(it, key)).sum(),
        _ => 0,
    }
}

/// A text in two parts, as a stream has it.
fn halves(text: &str) -> impl Iterator<Item = String> {
    let letters: Vec<char> = text.chars().collect();
    let (a, b) = letters.split_at(letters.len() / 2);
    let parts = [a.iter().collect::<String>(), b.iter().collect()];
    parts.into_iter().filter(|it| !it.is_empty())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
