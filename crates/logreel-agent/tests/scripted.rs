//! The scripted model: what its lines mean, and what it says of a script that is wrong.

use std::sync::Arc;
use std::time::Duration;

use logreel_agent::{
    Delta, Finish, Message, Model as _, ModelError, Request, Role, ScriptedModel, ToolSpec,
    WireNames,
};
use serde_json::{Map, json};

fn request(number: u64, messages: &[Message]) -> Request {
    let tools = vec![ToolSpec {
        name: "fs.read".to_owned(),
        description: "reads".to_owned(),
        schema: json!({"type": "object"}),
    }];
    Request {
        number,
        system: Some("be brief".into()),
        messages: messages.iter().cloned().map(Arc::new).collect(),
        names: Arc::new(WireNames::new(tools.iter().map(|it| it.name.as_str()))),
        tools: tools.into(),
        output_schema: None,
        params: Arc::new(Map::new()),
    }
}

#[tokio::test]
async fn a_call_gets_its_line_however_often_it_is_made() {
    let script = concat!(
        r#"{"text":"héllo","chunks":2,"usage":{"input_tokens":7,"usd":0.5}}"#,
        "\n\n",
        r#"{"tool_calls":[{"name":"fs.read","arguments":{"path":"a"}},{"id":"b","name":"nope"}]}"#,
        "\n",
        r#"{"error":{"kind":"rate_limited","retry_after_ms":10},"chunks":["cut "]}"#,
        "\n",
        r#"{"text":"x","expect":{"last":["fix","it"],"any":"fix","none":"key","role":"user","#,
        r#""messages":1,"system":"brief","tools":"fs.read"}}"#,
    );
    let model: ScriptedModel = script.parse().unwrap();
    let asked = [Message::text(Role::User, "fix it")];
    let mut heard = Vec::new();
    let first = model
        .answer(&request(1, &asked), &mut |delta| heard.push(delta))
        .await
        .unwrap();
    assert_eq!(first.message.words(), "héllo");
    assert_eq!(first.finish, Finish::Stop);
    assert_eq!(first.spent.input_tokens, 7);
    assert_eq!(first.spent.usd_micros, Some(500_000));
    assert_eq!(heard, [Delta::Text("hél".into()), Delta::Text("lo".into())]);

    let second = model.answer(&request(2, &asked), &mut drop).await.unwrap();
    let again = model.answer(&request(2, &asked), &mut drop).await.unwrap();
    assert_eq!(second, again);
    assert_eq!(second.finish, Finish::ToolCalls);
    let calls: Vec<_> = second.message.tool_calls().collect();
    assert_eq!(
        (calls[0].call.as_str(), calls[1].call.as_str()),
        ("call_2_1", "b")
    );
    assert_eq!(calls[0].arguments.text(), r#"{"path":"a"}"#);

    heard.clear();
    let cut = model
        .answer(&request(3, &asked), &mut |delta| heard.push(delta))
        .await
        .unwrap_err();
    assert_eq!(heard, [Delta::Text("cut ".into())]);
    let wait = Some(Duration::from_millis(10));
    assert!(matches!(cut, ModelError::RateLimited { retry_after, .. } if retry_after == wait));

    model.answer(&request(4, &asked), &mut drop).await.unwrap();
    let other = [Message::text(Role::User, "break it")];
    let missed = model.answer(&request(4, &other), &mut drop).await;
    assert_eq!(
        missed.unwrap_err().to_string(),
        r#"scripted/script: line 4 expects the last message to contain "fix"; there was "break it""#
    );
    let over = model.answer(&request(5, &asked), &mut drop).await;
    assert_eq!(
        over.unwrap_err().to_string(),
        "scripted/script: the script has 4 lines, this is call 5"
    );
}

#[test]
fn what_is_wrong_with_a_script_is_said_by_line_and_key() {
    let wrong = |script: &str| script.parse::<ScriptedModel>().unwrap_err().to_string();
    insta::assert_snapshot!(
        [
            wrong("{\"text\":\"a\"}\n\n{\"txt\":1}"),
            wrong("{\"text\":\"a\"}\n{\"text\""),
            wrong(r#"{"tool_calls":[{"arguments":{}}]}"#),
            wrong(r#"{"usage":{"tokens":1}}"#),
            wrong(r#"{"error":{"kind":"flood"}}"#),
            wrong(r#"{"error":{"kind":"auth"},"text":"a"}"#),
            wrong(r#"{"text":"ab","chunks":["a"]}"#),
            wrong(r#"{"expect":{"lst":"a"}}"#),
            wrong("{\"tool_calls\":[{\"id\":\"a\",\"name\":\"t\"},{\"id\":\"a\",\"name\":\"t\"}]}"),
        ]
        .join("\n"),
        @r#"
    line 3: unknown field `txt`, expected one of `text`, `tool_calls`, `usage`, `delay_ms`, `chunks`, `expect`, `error`
    line 2: not JSON at column 7
    line 1: missing field `name`
    line 1: unknown field `tokens`, expected one of `input_tokens`, `output_tokens`, `cache_read_tokens`, `cache_write_tokens`, `reasoning_tokens`, `usd`
    line 1: `kind`: "flood" is none of rate_limited, unavailable, refused, too_long, auth, invalid
    line 1: `error` stands without `text`, `tool_calls` and `usage`: nothing was answered
    line 1: `chunks`: together they are not the `text`
    line 1: `expect`: a text, or an object of last, role, any, none, system, messages, tools
    line 1: `id`: an earlier call has "a" too; ids are unique in a run
    "#
    );
    assert_eq!(
        ScriptedModel::lines("{\"text\":\"a\"}\n").unwrap(),
        [json!({"text": "a"})]
    );
}
