//! A spec file as one tree, whether it was TOML or JSON, that knows where everything stands.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Number, Value};
use toml::de::{DeTable, DeValue};

use super::problem::Problem;

/// How a spec is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// TOML.
    Toml,
    /// JSON.
    Json,
}

impl Format {
    /// The format of a file by its name: `.json` is JSON, everything else TOML.
    pub fn of(path: &Path) -> Self {
        match path.extension() {
            Some(extension) if extension.eq_ignore_ascii_case("json") => Self::Json,
            _ => Self::Toml,
        }
    }
}

/// A value and where it begins: the byte while the text is parsed, then the line, 0 for nowhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it is.
    pub is: Is,
    at: usize,
}

/// What a value is.
#[derive(Debug, Clone, PartialEq)]
pub enum Is {
    /// Nothing; only JSON has it.
    Null,
    /// True or false.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A table, its keys in the order of the file.
    Table(Vec<Field>),
}

/// A key of a table and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The key.
    pub name: String,
    at: usize,
    /// The value.
    pub node: Node,
}

impl Node {
    /// Reads a text; `file` is what a problem calls it.
    pub fn parse(text: &str, format: Format, file: &str) -> Result<Self, Problem> {
        let parsed = match format {
            Format::Toml => from_toml(text),
            Format::Json => from_json(text, text, 0),
        };
        match parsed {
            Ok(mut node) => {
                let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
                let newlines: Vec<usize> = newlines.map(|(at, _)| at).collect();
                node.bytes_to_lines(&newlines);
                Ok(node)
            }
            Err(Unparseable { at, message }) => {
                let before = &text[..text.floor_char_boundary(at)];
                let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
                Err(Problem {
                    file: Some(file.to_owned()),
                    line: Some(before.matches('\n').count() + 1),
                    column: Some(before[line_start..].chars().count() + 1),
                    key: String::new(),
                    message,
                })
            }
        }
    }

    /// A value that stands nowhere.
    pub fn of(value: &Value) -> Self {
        let is = match value {
            Value::Null => Is::Null,
            Value::Bool(yes) => Is::Bool(*yes),
            Value::Number(number) => Is::Number(number.clone()),
            Value::String(text) => Is::Text(text.clone()),
            Value::Array(items) => Is::List(items.iter().map(Self::of).collect()),
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| Field {
                    name: name.clone(),
                    at: 0,
                    node: Self::of(value),
                };
                Is::Table(fields.iter().map(field).collect())
            }
        };
        Self { is, at: 0 }
    }

    /// The value without its place.
    pub fn to_json(&self) -> Value {
        match &self.is {
            Is::Null => Value::Null,
            Is::Bool(yes) => Value::Bool(*yes),
            Is::Number(number) => Value::Number(number.clone()),
            Is::Text(text) => Value::String(text.clone()),
            Is::List(items) => items.iter().map(Self::to_json).collect(),
            Is::Table(fields) => {
                let field = |field: &Field| (field.name.clone(), field.node.to_json());
                fields.iter().map(field).collect()
            }
        }
    }

    /// What it is, for a message.
    pub fn kind(&self) -> &'static str {
        match self.is {
            Is::Null => "null",
            Is::Bool(_) => "true or false",
            Is::Number(_) => "a number",
            Is::Text(_) => "text",
            Is::List(_) => "a list",
            Is::Table(_) => "a table",
        }
    }

    /// The line of every key, and of every item of a list, by its path: `step[3].retry.backoff`.
    pub fn lines(&self) -> HashMap<String, usize> {
        let mut lines = HashMap::new();
        self.add_lines("", &mut lines);
        lines
    }

    fn add_lines(&self, path: &str, lines: &mut HashMap<String, usize>) {
        let mut add = |path: String, line: usize, node: &Node| {
            node.add_lines(&path, lines);
            if line > 0 {
                lines.insert(path, line);
            }
        };
        match &self.is {
            Is::List(items) => {
                for (nth, item) in items.iter().enumerate() {
                    add(format!("{path}[{nth}]"), item.at, item);
                }
            }
            Is::Table(fields) => {
                let dot = if path.is_empty() { "" } else { "." };
                for field in fields {
                    add(format!("{path}{dot}{}", field.name), field.at, &field.node);
                }
            }
            Is::Null | Is::Bool(_) | Is::Number(_) | Is::Text(_) => {}
        }
    }

    fn bytes_to_lines(&mut self, newlines: &[usize]) {
        let line = |at: usize| newlines.partition_point(|newline| *newline < at) + 1;
        self.at = line(self.at);
        match &mut self.is {
            Is::List(items) => {
                for item in items {
                    item.bytes_to_lines(newlines);
                }
            }
            Is::Table(fields) => {
                for field in fields {
                    field.at = line(field.at);
                    field.node.bytes_to_lines(newlines);
                }
            }
            Is::Null | Is::Bool(_) | Is::Number(_) | Is::Text(_) => {}
        }
    }
}

struct Unparseable {
    at: usize,
    message: String,
}

fn from_toml(text: &str) -> Result<Node, Unparseable> {
    let table = DeTable::parse(text).map_err(|error| Unparseable {
        at: error.span().map_or(0, |span| span.start),
        message: error.message().trim().replace('\n', ", "),
    })?;
    let at = table.span().start;
    toml_table(table.get_ref(), at)
}

fn toml_table(table: &DeTable<'_>, at: usize) -> Result<Node, Unparseable> {
    let mut fields = Vec::with_capacity(table.len());
    for (name, value) in table {
        fields.push(Field {
            name: name.get_ref().to_string(),
            at: name.span().start,
            node: toml_value(value.get_ref(), value.span().start)?,
        });
    }
    fields.sort_by_key(|field| field.at);
    let is = Is::Table(fields);
    Ok(Node { is, at })
}

fn toml_value(value: &DeValue<'_>, at: usize) -> Result<Node, Unparseable> {
    let refuse = |message: String| Unparseable { at, message };
    let is = match value {
        DeValue::String(text) => Is::Text(text.to_string()),
        DeValue::Boolean(yes) => Is::Bool(*yes),
        // JSON has no times; as text they are what TOML says (RFC 3339).
        DeValue::Datetime(time) => Is::Text(time.to_string()),
        DeValue::Integer(integer) => {
            let (digits, radix) = (integer.as_str(), integer.radix());
            let signed = i64::from_str_radix(digits, radix).map(Number::from);
            let number = signed.or_else(|_| u64::from_str_radix(digits, radix).map(Number::from));
            Is::Number(number.map_err(|_| refuse(format!("{integer} is too large")))?)
        }
        DeValue::Float(float) => {
            let number = float.as_str().parse().ok().and_then(Number::from_f64);
            Is::Number(number.ok_or_else(|| refuse(format!("{float} is no JSON number")))?)
        }
        DeValue::Array(items) => {
            let items = items.iter();
            let items = items.map(|item| toml_value(item.get_ref(), item.span().start));
            Is::List(items.collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => return toml_table(table, at),
    };
    Ok(Node { is, at })
}

/// serde_json's own limit, which raw values do not have.
const DEPTH_MAX: usize = 128;

/// Reads the JSON value `raw`, a part of `text`.
fn from_json(text: &str, raw: &str, depth: usize) -> Result<Node, Unparseable> {
    let raw = raw.trim_start_matches([' ', '\t', '\r', '\n']);
    // A raw value is a slice of the text it was read from.
    let at = raw.as_ptr().addr() - text.as_ptr().addr();
    let refuse = |error: serde_json::Error| Unparseable {
        at: at + offset_of(raw, error.line(), error.column()),
        message: without_place(&error),
    };
    if depth > DEPTH_MAX {
        let message = format!("nested deeper than {DEPTH_MAX}");
        return Err(Unparseable { at, message });
    }
    let is = match raw.bytes().next() {
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(raw).map_err(refuse)?;
            let items = items
                .iter()
                .map(|item| from_json(text, item.get(), depth + 1));
            Is::List(items.collect::<Result<_, _>>()?)
        }
        Some(b'{') => {
            let RawFields(raw_fields) = serde_json::from_str(raw).map_err(refuse)?;
            let mut names = HashSet::with_capacity(raw_fields.len());
            let mut fields = Vec::with_capacity(raw_fields.len());
            for (raw_name, value) in raw_fields {
                let at = raw_name.get().as_ptr().addr() - text.as_ptr().addr();
                let name: String = serde_json::from_str(raw_name.get()).map_err(refuse)?;
                if !names.insert(name.clone()) {
                    let message = format!("the key {name:?} is there twice");
                    return Err(Unparseable { at, message });
                }
                let node = from_json(text, value.get(), depth + 1)?;
                fields.push(Field { name, at, node });
            }
            Is::Table(fields)
        }
        _ => match serde_json::from_str(raw).map_err(refuse)? {
            Value::Bool(yes) => Is::Bool(yes),
            Value::Number(number) => Is::Number(number),
            Value::String(text) => Is::Text(text),
            Value::Null | Value::Array(_) | Value::Object(_) => Is::Null,
        },
    };
    Ok(Node { is, at })
}

/// The fields of an object as they stand, duplicates and all.
struct RawFields<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for RawFields<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = RawFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(RawFields(fields))
            }
        }
        from.deserialize_map(Collect)
    }
}

/// The byte at a line and column (both from 1, the column in bytes) of a text.
fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text
        .split_inclusive('\n')
        .take(line.saturating_sub(1))
        .map(str::len)
        .sum();
    (start + column.saturating_sub(1)).min(text.len())
}

/// serde_json ends its messages with where it was in the part it was given.
fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    message.strip_suffix(&place).unwrap_or(&message).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_formats_are_one_tree() {
        let toml = "name = 'a'\nbig = 9007199254740993\n[t]\nx = [1, 2.5,\n  true]\ny.z = 0xff\n[[s]]\nid = 'b'\n[[s]]\nid = 'c'\n";
        let json = r#"{"name": "a", "big": 9007199254740993,
            "t": {"x": [1, 2.5,
              true], "y": {"z": 255}},
            "s": [{"id": "b"},
                  {"id": "c"}]}"#;
        let toml_node = Node::parse(toml, Format::Toml, "f").unwrap();
        let json_node = Node::parse(json, Format::Json, "f").unwrap();
        assert_eq!(toml_node.to_json(), json_node.to_json());
        let lines = toml_node.lines();
        let line = |path: &str| lines[path];
        assert_eq!(
            [
                "name", "t", "t.x[1]", "t.x[2]", "t.y.z", "s[0]", "s[0].id", "s[1]", "s[1].id"
            ]
            .map(line),
            [1, 3, 4, 5, 6, 7, 8, 9, 10]
        );
        let lines = json_node.lines();
        let line = |path: &str| lines[path];
        assert_eq!(
            [
                "name", "t", "t.x[1]", "t.x[2]", "t.y.z", "s[0]", "s[0].id", "s[1]", "s[1].id"
            ]
            .map(line),
            [1, 2, 2, 3, 3, 4, 4, 5, 5]
        );
        assert_eq!(Node::of(&json!({"a": [1]})).to_json(), json!({"a": [1]}));
    }

    #[test]
    fn what_cannot_be_parsed_says_where() {
        let cases = [
            (Format::Toml, "a = 1\nb = [1,\n"),
            (Format::Toml, "a = 1\na = 2\n"),
            (Format::Toml, "a = nan\n"),
            (Format::Toml, "'é' = 99999999999999999999999\n"),
            (Format::Json, "{\"a\": 1,\n  \"b\": }"),
            (Format::Json, "{\"é\": 1, \"b\": 1,\n  \"b\": 2}"),
            (Format::Json, "{\"a\": {\"b\": 1e999}}"),
            (Format::Json, "[1] x"),
            (Format::Json, ""),
        ];
        let told =
            cases.map(|(format, text)| Node::parse(text, format, "f").unwrap_err().to_string());
        insta::assert_snapshot!(told.join("\n"));
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert!(Node::parse(&deep, Format::Json, "f").is_err());
        assert!(Node::parse(&format!("a = {deep}"), Format::Toml, "f").is_err());
    }
}
