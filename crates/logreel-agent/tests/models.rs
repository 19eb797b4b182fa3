//! The clients of providers, against a real HTTP server that checks what they send.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::provider::{Block, Format, How, Provider, Reply, Said};
use logreel_agent::{
    AgentSpec, Answer, Delta, Finish, Message, Model, ModelError, Opaque, Part, Request, Role,
    Timeouts, ToolResult, ToolSpec, WireNames, connect, connect_within, key_variable,
};
use serde_json::{Map, json};

const KEY: &str = "sk-test-0123456789-very-secret";
const BOTH: [Format; 2] = [Format::Anthropic, Format::OpenAi];

fn spec(provider: &Provider, format: Format) -> AgentSpec {
    let (model, base_url) = match format {
        Format::Anthropic => ("anthropic/claude-test", provider.anthropic_url()),
        Format::OpenAi => ("openai/gpt-test", provider.openai_url()),
        Format::Other => unreachable!("these tests have their own specs"),
    };
    AgentSpec {
        model: model.to_owned(),
        base_url: Some(base_url),
        api_key_env: Some("TEST_KEY".to_owned()),
        ..AgentSpec::default()
    }
}

fn model(provider: &Provider, format: Format) -> Arc<dyn Model> {
    provider.expect_key(KEY);
    let timeouts = Timeouts {
        idle: Duration::from_millis(500),
        ..Timeouts::default()
    };
    let env = |name: &str| (name == "TEST_KEY").then(|| KEY.to_owned());
    connect_within(&spec(provider, format), &env, timeouts).expect("it has a key")
}

/// A conversation as a loop keeps it.
struct Chat {
    model: Arc<dyn Model>,
    request: Request,
    heard: Vec<Delta>,
}

impl Chat {
    fn new(model: Arc<dyn Model>, ask: &str) -> Self {
        let tools: Vec<ToolSpec> = ["fs.read", "github.get_issue"]
            .map(|name| ToolSpec {
                name: name.to_owned(),
                description: format!("does {name}"),
                schema: json!({"type": "object", "properties": {"path": {"type": "string"}}}),
            })
            .into();
        let request = Request {
            number: 0,
            system: Some("be brief".into()),
            messages: vec![Arc::new(Message::text(Role::User, ask))],
            names: Arc::new(WireNames::new(tools.iter().map(|it| it.name.as_str()))),
            tools: tools.into(),
            output_schema: None,
            params: Arc::new(Map::new()),
        };
        Self {
            model,
            request,
            heard: Vec::new(),
        }
    }

    async fn ask(&mut self) -> Result<Answer, ModelError> {
        self.request.number += 1;
        let (model, heard) = (&self.model, &mut self.heard);
        let answer = model
            .answer(&self.request, &mut |delta| heard.push(delta))
            .await?;
        // What is kept is what the log keeps.
        let kept = serde_json::to_string(&answer.message).expect("a message serializes");
        self.say(serde_json::from_str(&kept).expect("and reads back"));
        Ok(answer)
    }

    fn say(&mut self, message: Message) {
        self.request.messages.push(Arc::new(message));
    }

    /// Answers the calls of an answer, each in a message of its own, the last one first.
    fn results(&mut self, answer: &Answer) {
        let calls: Vec<_> = answer.message.tool_calls().collect();
        for (at, call) in calls.into_iter().enumerate().rev() {
            let result = ToolResult {
                call: call.call.clone(),
                failed: at == 1,
                name: call.name.clone(),
                text: format!("result {at}"),
            };
            self.say(Message {
                parts: vec![Part::ToolResult(result)],
                role: Role::Tool,
            });
        }
    }
}

fn first_answer() -> Said {
    Said {
        cached_tokens: 40,
        reasoning_tokens: 3,
        ..Said::of(vec![
            Block::thinking("Größe \"matters\" \\ 漢字", "c2lnbmF0dXJl+/=="),
            Block::Raw(json!({"type": "redacted_thinking", "data": "EmwKAhgB/+="})),
            Block::Text("I will look.".to_owned()),
            Block::call(
                "toolu_01ABCDEFGH",
                "fs_read",
                r#"{"path": "a/ö.txt", "n": 1.0}"#,
            ),
            Block::call("toolu_02ABCDEFGH", "github_get_issue", r#"{"id":7}"#),
            // A counter, not an id: it comes again in the next answer.
            Block::call("call_0", "made_up", "{not json"),
        ])
    }
}

fn script() -> Vec<Vec<Reply>> {
    let second = Said::of(vec![
        Block::Raw(json!({"type": "from_the_future", "z": [1, {"b": 2, "a": 1.5}]})),
        Block::call("call_0", "fs_read", ""),
    ]);
    vec![
        vec![first_answer().in_pieces(7, Duration::ZERO).into()],
        vec![second.into()],
        vec![Said::text("done").into()],
    ]
}

#[tokio::test]
async fn a_conversation_is_told_as_each_provider_wants_it() {
    for format in BOTH {
        let provider = Provider::by_turn(script());
        let mut chat = Chat::new(model(&provider, format), "fix it");
        let first = chat.ask().await.unwrap();
        assert_eq!(first.finish, Finish::ToolCalls);
        assert_eq!(first.message.words(), "I will look.");
        assert_eq!(
            (first.spent.input_tokens, first.spent.output_tokens),
            (100, 10)
        );
        assert_eq!(first.spent.cache_read_tokens, 40);
        let calls: Vec<_> = first.message.tool_calls().cloned().collect();
        assert_eq!(calls[0].name, "fs.read");
        assert_eq!(calls[0].call, "toolu_01ABCDEFGH");
        assert_eq!(
            calls[0].arguments.text(),
            r#"{"path": "a/ö.txt", "n": 1.0}"#
        );
        assert_eq!(calls[1].name, "github.get_issue");
        assert_eq!(calls[2].name, "made_up");
        assert_eq!(calls[2].call, "call_1_3");
        assert_eq!(calls[2].arguments.to_value(), json!("{not json"));
        let heard = |it: &dyn Fn(&Delta) -> Option<String>| -> String {
            chat.heard.iter().filter_map(it).collect()
        };
        let text = heard(&|it| match it {
            Delta::Text(text) => Some(text.clone()),
            Delta::Thinking(_) | Delta::ToolCall(_) => None,
        });
        assert_eq!(text, "I will look.");
        let tools = heard(&|it| match it {
            Delta::ToolCall(name) => Some(format!("{name} ")),
            Delta::Thinking(_) | Delta::Text(_) => None,
        });
        assert_eq!(tools, "fs.read github.get_issue made_up ");

        chat.results(&first);
        // Someone speaks while the tools run.
        chat.say(Message::text(Role::User, "and hurry"));
        chat.say(Message::text(Role::User, "please"));
        let second = chat.ask().await.unwrap();
        let call = second.message.tool_calls().next().unwrap();
        assert_eq!(call.call, "call_2_1");
        assert_eq!(call.arguments.text(), "{}");
        chat.results(&second);
        let third = chat.ask().await.unwrap();
        assert_eq!(third.finish, Finish::Stop);
        assert_eq!(third.message.words(), "done");
        provider.assert_no_faults();
        assert_eq!(provider.counts(), [1, 1, 1]);
        match format {
            Format::Anthropic => thoughts_come_back(&provider, &first),
            Format::OpenAi => {
                let body = &provider.seen()[1].body;
                let results: Vec<_> = body["messages"].as_array().unwrap()[3..6]
                    .iter()
                    .map(|it| it["content"].as_str().unwrap())
                    .collect();
                assert_eq!(results, ["result 2", "error: result 1", "result 0"]);
                assert_eq!(body["messages"][6]["content"], "and hurry\n\nplease");
                assert_eq!(first.spent.reasoning_tokens, 3);
            }
            Format::Other => {}
        }
    }
}

/// The server has compared them as values; here it is their bytes, from the answer through the log into
/// both later requests.
fn thoughts_come_back(provider: &Provider, first: &Answer) {
    let seen = provider.seen();
    let opaque: Vec<&Opaque> = first.message.parts[..2]
        .iter()
        .map(|part| match part {
            Part::Opaque(opaque) => opaque,
            other => panic!("{other:?}"),
        })
        .collect();
    let both = format!("[{},{},", opaque[0].raw, opaque[1].raw);
    for request in &seen[1..] {
        assert!(request.raw.contains(&both), "{}", request.raw);
    }
    let future = json!({"type": "from_the_future", "z": [1, {"b": 2, "a": 1.5}]});
    assert_eq!(seen[2].body["messages"][3]["content"][0], future);
    assert_eq!(seen[0].headers["anthropic-version"], "2023-06-01");
    let results = &seen[1].body["messages"][2]["content"];
    assert_eq!(results[1]["is_error"], true);
    assert_eq!(results[4]["text"], "please");
    for marked in [
        &results[4],
        &seen[0].body["system"][0],
        &seen[2].body["tools"][1],
        &seen[2].body["messages"][2]["content"][4],
        &seen[2].body["messages"][4]["content"][0],
    ] {
        assert_eq!(marked["cache_control"]["type"], "ephemeral", "{marked}");
    }
}

#[tokio::test]
async fn params_and_schemas_reach_the_provider_in_its_words() {
    let params = json!({
        "max_output_tokens": 500, "temperature": 0.5, "reasoning": "low", "top_k": 3,
    });
    for format in BOTH {
        let provider = Provider::by_turn(vec![vec![Said::text("{}").into()]]);
        let mut chat = Chat::new(model(&provider, format), "fix it");
        let schema = json!({"type": "object", "title": "the-answer"});
        chat.request.output_schema = Some(Arc::new(schema.clone()));
        chat.request.params = Arc::new(params.as_object().unwrap().clone());
        chat.ask().await.unwrap();
        provider.assert_no_faults();
        let body = &provider.seen()[0].body;
        assert_eq!(body["temperature"], 0.5);
        assert_eq!(body["top_k"], 3);
        match format {
            Format::Anthropic => {
                assert_eq!(body["model"], "claude-test");
                let thinking = json!({"type": "enabled", "budget_tokens": 2048});
                assert_eq!(body["thinking"], thinking);
                assert_eq!(body["max_tokens"], 2548);
                let system = body["system"][0]["text"].as_str().unwrap();
                assert!(system.starts_with("be brief\n\n") && system.contains("the-answer"));
            }
            Format::OpenAi => {
                assert_eq!(body["model"], "gpt-test");
                assert_eq!(body["max_tokens"], 500);
                assert_eq!(body["reasoning_effort"], "low");
                assert_eq!(body["response_format"]["json_schema"]["schema"], schema);
            }
            Format::Other => {}
        }
    }
}

fn texts(heard: &[Delta]) -> String {
    let texts = heard.iter().filter_map(|it| match it {
        Delta::Text(text) => Some(text.as_str()),
        Delta::Thinking(_) | Delta::ToolCall(_) => None,
    });
    texts.collect()
}

/// Servers that say they speak OpenAI's format, and nearly do.
#[tokio::test]
async fn servers_that_are_not_quite_right_are_understood() {
    let mut stream = String::new();
    let mut piece = |choice: serde_json::Value| {
        stream.push_str(&format!("data: {}\r\n\r\n", json!({"choices": [choice]})));
    };
    piece(json!({"delta": {"reasoning": "hm", "reasoning_content": "hm", "content": null}}));
    // Each call whole, without an index and without an id.
    let call = |name: &str| json!([{"function": {"name": name, "arguments": {"path": "a"}}}]);
    piece(json!({"delta": {"tool_calls": call("fs_read")}}));
    piece(json!({"delta": {"tool_calls": call("github_get_issue")}}));
    // Two calls at one index.
    for id in ["chatcmpl-tool-1", "chatcmpl-tool-2"] {
        let begin = json!([{"index": 0, "id": id, "function": {"name": "fs_read"}}]);
        piece(json!({"delta": {"tool_calls": begin}, "finish_reason": null}));
        let rest = json!([{"index": 0, "function": {"arguments": format!("{{\"id\":\"{id}\"}}")}}]);
        piece(json!({"delta": {"tool_calls": rest}}));
    }
    piece(json!({"delta": {}, "message": null, "finish_reason": "stop"}));
    stream.push_str("data: {\"choices\": null, \"usage\": {\"prompt_tokens\": null}}\n\n");
    let reply = Reply::ok("text/event-stream; charset=utf-8", &stream);
    let provider = Provider::by_turn(vec![vec![reply]]);
    let mut chat = Chat::new(model(&provider, Format::OpenAi), "fix it");
    let answer = chat.ask().await.unwrap();
    assert_eq!(answer.finish, Finish::ToolCalls);
    let calls: Vec<String> = answer
        .message
        .tool_calls()
        .map(|it| format!("{} {} {}", it.call, it.name, it.arguments))
        .collect();
    insta::assert_snapshot!(calls.join("\n"), @r#"
    call_1_1 fs.read {"path":"a"}
    call_1_2 github.get_issue {"path":"a"}
    chatcmpl-tool-1 fs.read {"id":"chatcmpl-tool-1"}
    chatcmpl-tool-2 fs.read {"id":"chatcmpl-tool-2"}
    "#);
    assert_eq!(chat.heard[0], Delta::Thinking("hm".to_owned()));
}

#[tokio::test]
async fn an_answer_is_the_same_however_it_comes() {
    for format in BOTH {
        let (mut answers, mut heard) = (Vec::new(), Vec::new());
        let ways = [
            first_answer(),
            first_answer().in_pieces(1, Duration::ZERO),
            first_answer().sent(How::Whole),
        ];
        for said in ways {
            let provider = Provider::by_turn(vec![vec![said.into()]]);
            let mut chat = Chat::new(model(&provider, format), "fix it");
            answers.push(chat.ask().await.unwrap());
            heard.push(texts(&chat.heard));
        }
        assert_eq!(answers[0], answers[1]);
        assert_eq!(heard[0], heard[1]);
        assert_eq!(heard[0], heard[2]);
        // In one piece, arguments and thoughts are JSON already: their text may differ.
        assert_eq!(answers[0].spent, answers[2].spent);
        assert_eq!(answers[0].finish, answers[2].finish);
        assert_eq!(answers[0].message.words(), answers[2].message.words());
        let calls = |it: &Answer| -> Vec<String> {
            it.message.tool_calls().map(|it| it.call.clone()).collect()
        };
        assert_eq!(calls(&answers[0]), calls(&answers[2]));

        for nothing in [How::Stream, How::Whole] {
            let said = Said::of(Vec::new()).sent(nothing);
            let provider = Provider::by_turn(vec![vec![said.into()]]);
            let mut chat = Chat::new(model(&provider, format), "fix it");
            let answer = chat.ask().await.unwrap();
            assert_eq!(answer.message.parts, []);
            assert_eq!(answer.finish, Finish::Stop);
            // The next request does without the answer of nothing.
            chat.say(Message::text(Role::User, "well?"));
            chat.ask().await.unwrap();
            provider.assert_no_faults();
        }
    }
}

/// The checks of the server bite: what they pass elsewhere is worth something.
#[tokio::test]
async fn the_server_refuses_what_a_provider_would() {
    for format in BOTH {
        let provider = Provider::by_turn(script());
        let mut chat = Chat::new(model(&provider, format), "fix it");
        chat.ask().await.unwrap();
        chat.say(Message::text(Role::User, "never mind the tools"));
        let refused = chat.ask().await.unwrap_err().to_string();
        assert!(refused.contains("no result"), "{refused}");
    }
    let provider = Provider::by_turn(script());
    let mut chat = Chat::new(model(&provider, Format::Anthropic), "fix it");
    let mut answer = chat.ask().await.unwrap();
    answer.message.parts[0] = Part::Opaque(Opaque {
        provider: "anthropic".to_owned(),
        raw: json!({"type": "thinking", "thinking": "else", "signature": "c2lnbmF0dXJl+/=="})
            .into(),
    });
    chat.request.messages.truncate(1);
    chat.say(answer.message.clone());
    chat.results(&answer);
    let refused = chat.ask().await.unwrap_err().to_string();
    assert!(refused.contains("came back as"), "{refused}");
}

fn faults() -> Vec<(Reply, &'static str)> {
    let echo = &format!("no: {KEY}");
    let long = "prompt is too long: 210000 tokens > 200000 maximum";
    let elsewhere = ("location", "http://127.0.0.1:1/");
    let midway = json!({
        "type": "error", "error": {"type": "overloaded_error", "message": echo},
    });
    let stream = |body: &str| Reply::ok("text/event-stream", body);
    let slow = Said::text("slow").in_pieces(40, Duration::from_secs(1));
    vec![
        (
            Reply::status(429, "slow down").header("retry-after", "2"),
            "rate_limited 2s",
        ),
        (Reply::status(429, "slow down"), "rate_limited"),
        (Reply::status(500, echo), "model_unavailable"),
        (Reply::status(529, "overloaded"), "model_unavailable"),
        (Reply::status(408, "timeout"), "model_unavailable"),
        (Reply::status(401, echo), "auth"),
        (Reply::status(403, echo), "auth"),
        (Reply::status(400, echo), "model_error"),
        (Reply::status(404, "no such model"), "model_error"),
        (
            Reply::status(302, "moved").header(elsewhere.0, elsewhere.1),
            "model_error",
        ),
        (Reply::status(400, long), "too_long"),
        (Reply::status(413, "request_too_large"), "too_long"),
        (
            Reply::ok("application/json", "<html>oops</html>"),
            "model_unavailable",
        ),
        (Reply::ok("text/html", "<html>"), "model_unavailable"),
        (stream("data: {\"choices\": [\n\n"), "model_unavailable"),
        (stream(""), "model_unavailable"),
        (
            stream(&format!("event: error\ndata: {midway}\n\n")),
            "model_unavailable",
        ),
        (Said::text("cut").sent(How::Cut).into(), "model_unavailable"),
        (
            Said::text("cut").sent(How::Broken).into(),
            "model_unavailable",
        ),
        (slow.into(), "model_unavailable"),
    ]
}

#[tokio::test]
async fn every_fault_has_its_kind_and_no_error_has_the_key() {
    for format in BOTH {
        for (reply, expected) in faults() {
            let provider = Provider::by_turn(vec![vec![reply.clone()]]);
            let failed = Chat::new(model(&provider, format), "fix it").ask().await;
            let error = failed.expect_err(expected);
            let wait = match &error {
                ModelError::RateLimited {
                    retry_after: Some(wait),
                    ..
                } => format!(" {}s", wait.as_secs()),
                _ => String::new(),
            };
            let kind = format!("{}{wait}", error.kind());
            assert_eq!(kind, expected, "{reply:?}: {error}");
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(KEY), "{shown}");
            provider.assert_no_faults();
            assert_eq!(provider.counts(), [1], "to try again is the loop's");
        }
        let (length, refusal) = match format {
            Format::Anthropic => ("max_tokens", "refusal"),
            Format::OpenAi | Format::Other => ("length", "content_filter"),
        };
        for (reason, finish) in [(length, Finish::Length), (refusal, Finish::Refused)] {
            let said = Said {
                stop: Some(reason.to_owned()),
                ..Said::text("hm")
            };
            let provider = Provider::by_turn(vec![vec![said.into()]]);
            let answer = Chat::new(model(&provider, format), "fix it").ask().await;
            assert_eq!(answer.unwrap().finish, finish);
        }
    }
}

#[tokio::test]
async fn nobody_there_is_said_without_what_is_secret_in_the_url() {
    let nobody = AgentSpec {
        model: "openai/x".to_owned(),
        base_url: Some(format!("http://user:{KEY}@127.0.0.1:1/v1?k={KEY}")),
        ..AgentSpec::default()
    };
    let model = connect(&nobody, &|_| None).expect("a server of one's own needs no key");
    let error = Chat::new(model, "fix it").ask().await.unwrap_err();
    assert_eq!(error.kind(), "model_unavailable");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(KEY), "{shown}");
    assert!(shown.contains("http://127.0.0.1:1/v1"), "{shown}");
}

#[test]
fn a_model_without_its_key_is_refused_before_the_run() {
    let spec = |model: &str| AgentSpec {
        model: model.to_owned(),
        ..AgentSpec::default()
    };
    let refused = |spec: &AgentSpec| match connect(spec, &|_| None) {
        Ok(model) => panic!("{} is connected", model.name()),
        Err(error) => format!("{}: {error}", error.kind()),
    };
    let named = AgentSpec {
        api_key_env: Some("MINE".to_owned()),
        base_url: Some("http://127.0.0.1:1".to_owned()),
        ..spec("openai/x")
    };
    let nowhere = AgentSpec {
        base_url: Some("file:///etc".to_owned()),
        ..spec("openai/x")
    };
    insta::assert_snapshot!(
        [
            refused(&spec("anthropic/x")),
            refused(&spec("openai/x")),
            refused(&named),
            refused(&nowhere),
            refused(&spec("openai/")),
            refused(&spec("gpt-5")),
            refused(&spec("scripted/a.jsonl")),
        ]
        .join("\n"),
        @r#"
    auth: not authorized: anthropic/x needs a key in ANTHROPIC_API_KEY, which is not set
    auth: not authorized: openai/x needs a key in OPENAI_API_KEY, which is not set
    auth: not authorized: openai/x needs a key in MINE, which is not set
    model_error: `base_url`: file is neither http nor https
    model_error: `model`: "openai/" is none of anthropic/…, openai/…, openai-responses/…, gemini/…, ollama/…, scripted/FILE
    model_error: `model`: "gpt-5" is none of anthropic/…, openai/…, openai-responses/…, gemini/…, ollama/…, scripted/FILE
    model_error: scripted/a.jsonl: its lines are not in the spec
    "#
    );
    let variable = |it: &AgentSpec| key_variable(it).unwrap_or_default();
    assert_eq!(variable(&spec("anthropic/x")), "ANTHROPIC_API_KEY");
    assert_eq!(variable(&named), "MINE");
    assert_eq!(variable(&spec("scripted/a")), "");
    let script = AgentSpec {
        script: Some(vec![json!({"text": "hi"})]),
        ..spec("scripted/a")
    };
    let model = connect(&script, &|_| None).unwrap();
    assert_eq!(model.name(), "scripted/a");
}

/// The providers behind `genai`: a call, its result and an answer, each in its own words.
#[cfg(feature = "genai")]
#[tokio::test]
async fn other_providers_are_spoken_to_as_well() {
    let gemini_call = json!({"candidates": [{"content": {"parts": [{
        "functionCall": {"name": "fs_read", "args": {"path": "a"}}, "thoughtSignature": "c2ln",
    }]}, "finishReason": "STOP"}], "usageMetadata": {
        "promptTokenCount": 100, "candidatesTokenCount": 7, "thoughtsTokenCount": 3,
        "totalTokenCount": 110,
    }});
    let gemini_done = json!({
        "candidates": [{"content": {"parts": [{"text": "done"}]}, "finishReason": "STOP"}],
    });
    let ollama_call = json!({"message": {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "fs_read", "arguments": {"path": "a"}}},
    ]}, "done": false});
    let ollama_end = json!({"message": {"role": "assistant", "content": ""}, "done": true,
        "done_reason": "stop", "prompt_eval_count": 100, "eval_count": 10});
    let ollama_done = json!({"message": {"role": "assistant", "content": "done"}, "done": true,
        "done_reason": "stop"});
    let response = |output: serde_json::Value| {
        json!({"type": "response.completed", "response": {
            "id": "resp_1", "model": "gpt-test", "status": "completed", "output": output,
            "usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110},
        }})
    };
    let item = json!({"type": "function_call", "id": "fc_1", "call_id": "call_0123456789",
        "name": "fs_read", "arguments": "{\"path\":\"a\"}", "status": "completed"});
    let mut begun = item.clone();
    begun["arguments"] = json!("");
    let added = json!({"type": "response.output_item.added", "output_index": 0, "item": begun});
    let grown = json!({"type": "response.function_call_arguments.delta", "output_index": 0,
        "item_id": "fc_1", "delta": item["arguments"]});
    let finished = json!({"type": "response.output_item.done", "output_index": 0, "item": item});
    let said = json!({"type": "response.output_text.delta", "output_index": 0,
        "content_index": 0, "item_id": "m", "delta": "done"});
    let events = |events: &[serde_json::Value]| -> Reply {
        let events: String = events.iter().map(|it| format!("data: {it}\n\n")).collect();
        Reply::ok("text/event-stream", &events)
    };
    let lines = |lines: &[serde_json::Value]| -> Reply {
        let lines: String = lines.iter().map(|it| format!("{it}\n")).collect();
        Reply::ok("application/x-ndjson", &lines)
    };
    let cases = [
        (
            "gemini/gemini-test",
            [events(&[gemini_call]), events(&[gemini_done])],
        ),
        (
            "ollama/llama-test",
            [lines(&[ollama_call, ollama_end]), lines(&[ollama_done])],
        ),
        (
            "openai-responses/gpt-test",
            [
                events(&[added, grown, finished, response(json!([item.clone()]))]),
                events(&[said, response(json!([]))]),
            ],
        ),
    ];
    for (name, replies) in cases {
        let slow = Reply::status(429, &format!("slow down, {KEY}")).header("retry-after", "2");
        let [call, done] = replies;
        let replies = [call, done, events(&[]), slow];
        let provider = Provider::start(move |seen| replies[seen.attempt].clone());
        let spec = AgentSpec {
            model: name.to_owned(),
            base_url: Some(provider.url()),
            api_key_env: Some("TEST_KEY".to_owned()),
            ..AgentSpec::default()
        };
        let model = connect(&spec, &|_| Some(KEY.to_owned())).unwrap();
        let mut chat = Chat::new(model, "fix it");
        let first = chat
            .ask()
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(first.finish, Finish::ToolCalls, "{name}: {first:?}");
        assert_eq!(
            (first.spent.input_tokens, first.spent.output_tokens),
            (100, 10),
            "{name}"
        );
        let call = first.message.tool_calls().next().unwrap();
        assert_eq!(
            (call.name.as_str(), call.arguments.text()),
            ("fs.read", r#"{"path":"a"}"#)
        );
        assert_eq!(
            chat.heard,
            [Delta::ToolCall("fs.read".to_owned())],
            "{name}"
        );
        chat.results(&first);
        let second = chat
            .ask()
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(second.message.words(), "done", "{name}");
        let sent = &provider.seen()[1].raw;
        for piece in ["be brief", "fix it", "fs_read", "result 0"] {
            assert!(sent.contains(piece), "{name}: {sent}");
        }
        if name.starts_with("gemini") {
            let part = &provider.seen()[1].body["contents"][1]["parts"][0];
            assert_eq!(part["thoughtSignature"], "c2ln", "{sent}");
        }
        chat.say(Message::text(Role::User, "again"));
        let cut = chat.ask().await.unwrap_err();
        assert_eq!(cut.kind(), "model_unavailable", "{name}: {cut}");
        let limited = chat.ask().await.unwrap_err();
        let wait = Some(Duration::from_secs(2));
        assert!(
            matches!(limited, ModelError::RateLimited { retry_after, .. } if retry_after == wait),
            "{name}: {limited}"
        );
        let shown = format!("{cut} {limited} {cut:?} {limited:?}");
        assert!(!shown.contains(KEY), "{shown}");
    }
}
