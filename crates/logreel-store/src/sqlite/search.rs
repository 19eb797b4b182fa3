//! The words a run is found by: those of its input, output, agent and labels.

use logreel_core::Payload;
use logreel_core::row::{End, Facts};
use rusqlite::{Connection, params};
use serde_json::Value;

pub(super) fn insert(conn: &Connection, id: i64, facts: &Facts) -> rusqlite::Result<()> {
    let [input, output, agent, labels] = texts(facts);
    conn.prepare_cached(
        "INSERT INTO search (rowid, input, output, agent, labels) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![id, input, output, agent, labels])?;
    Ok(())
}

pub(super) fn update(conn: &Connection, id: i64, facts: &Facts) -> rusqlite::Result<()> {
    let [input, output, agent, labels] = texts(facts);
    conn.prepare_cached(
        "UPDATE search SET input = ?2, output = ?3, agent = ?4, labels = ?5 WHERE rowid = ?1",
    )?
    .execute(params![id, input, output, agent, labels])?;
    Ok(())
}

pub(super) fn remove(conn: &Connection, id: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM search WHERE rowid = ?1")?
        .execute([id])?;
    Ok(())
}

/// An FTS5 query for all words of `text`; `None` when it has none, which matches everything.
pub(super) fn query(text: &str) -> Option<String> {
    let words = text
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty());
    // Quoted, so that no word is taken for an operator.
    let query = words
        .map(|word| format!("\"{word}\""))
        .collect::<Vec<_>>()
        .join(" AND ");
    (!query.is_empty()).then_some(query)
}

fn texts(facts: &Facts) -> [String; 4] {
    let output = match facts.ended.as_ref().map(|ended| &ended.end) {
        Some(End::Completed { output }) => plain(output),
        _ => String::new(),
    };
    let mut labels = String::new();
    for (name, value) in &facts.labels {
        for word in [name, value] {
            labels.push_str(word);
            labels.push(' ');
        }
    }
    [plain(&facts.input), output, facts.agent.to_string(), labels]
}

/// The words of a value without JSON's escapes, which would glue themselves to them.
fn plain(payload: &Payload) -> String {
    fn collect(value: &Value, into: &mut String) {
        match value {
            Value::String(text) => into.push_str(text),
            Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                into.push_str(name);
                into.push(' ');
                collect(value, into);
            }),
            Value::Null => {}
            Value::Bool(_) | Value::Number(_) => into.push_str(&value.to_string()),
        }
        into.push(' ');
    }
    let mut text = String::new();
    if let Some(json) = payload.inline() {
        match json.decode() {
            Ok(value) => collect(&value, &mut text),
            // A number too large for the parser is still a text.
            Err(_) => text.push_str(json.text()),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use logreel_core::Json;

    #[test]
    fn words_have_no_escapes_and_queries_no_operators() {
        let json = Json::parse(r#"{"say":"one\ntwo \"NOT\" three","n":[1,null]}"#).unwrap();
        let text = plain(&Payload::Inline(json));
        let words: Vec<_> = text.split_whitespace().collect();
        assert!(words.contains(&"two") && words.contains(&"1"), "{words:?}");
        assert_eq!(query("a-b \" OR").unwrap(), r#""a" AND "b" AND "OR""#);
        assert_eq!(query(" - "), None);
    }
}
