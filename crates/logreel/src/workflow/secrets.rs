//! Variables that a workflow takes from the environment of whoever drives it. Their values are read
//! when a process begins to drive the run, never recorded, and blotted out of what is.

use std::collections::BTreeMap;
use std::sync::Arc;

use logreel_core::Json;
use serde_json::Value;

use super::Workflow;
use crate::error::TaskError;

/// A value that is shorter would blot out half the output.
const SECRET_BYTES_MIN: usize = 4;
/// So would a short line of a value of several.
const LINE_BYTES_MIN: usize = 8;
const REDACTED: &str = "[redacted]";

/// The variables by name. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Secrets(Arc<Variables>);

#[derive(Default)]
struct Variables {
    values: BTreeMap<String, String>,
    /// Each as `${NAME}`: what stands for it where it is digested.
    names: BTreeMap<String, String>,
    /// What must not be seen, the longest first: one may be part of another.
    needles: Vec<String>,
    /// The same with what commands inherit from their driver and may print. It is no driver's business elsewhere:
    /// another one, with another password, must find the same names and prompts.
    printed: Vec<String>,
}

impl std::fmt::Debug for Variables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.values.keys()).finish()
    }
}

impl Secrets {
    /// Reads what the workflow names; one that is not set is an error that says which.
    pub(crate) fn of(workflow: &Workflow) -> Result<Self, TaskError> {
        Self::of_names(workflow.variables())
    }

    /// Reads these; one that is not set is an error that says which.
    pub(crate) fn of_names(names: impl IntoIterator<Item = String>) -> Result<Self, TaskError> {
        let mut values = BTreeMap::new();
        for name in names {
            let value = std::env::var(&name).map_err(|_| {
                let message = format!("the variable {name} is not set, or is no text");
                TaskError::of_kind("variable", message).permanent()
            })?;
            values.insert(name, value);
        }
        Ok(Self::from_values(values))
    }

    /// Those that are set here, for what others than its driver record.
    pub(crate) fn here(workflow: &Workflow) -> Self {
        let named = workflow.variables().into_iter();
        let set = named.filter_map(|name| Some((name.clone(), std::env::var(&name).ok()?)));
        Self::from_values(set.collect())
    }

    /// In a replay nothing is given to anyone: names stand for values.
    pub(crate) fn unknown(workflow: &Workflow) -> Self {
        let shown = |name: String| (name.clone(), format!("${{{name}}}"));
        let names: BTreeMap<String, String> = workflow.variables().into_iter().map(shown).collect();
        Self(Arc::new(Variables {
            values: names.clone(),
            names,
            ..Variables::default()
        }))
    }

    fn from_values(values: BTreeMap<String, String>) -> Self {
        let shown = |name: &String| (name.clone(), format!("${{{name}}}"));
        let names = values.keys().map(shown).collect();
        let needles = sorted(values.values().flat_map(|value| needles(value)));
        Self(Arc::new(Variables {
            values,
            names,
            printed: needles.clone(),
            needles,
        }))
    }

    /// Of nobody's variables: only what is inherited.
    pub(crate) fn inherited(inherited: &[String]) -> Self {
        Self::default().hiding(inherited)
    }

    /// With what commands inherit besides, and must not be seen of what they print.
    pub(crate) fn hiding(self, inherited: &[String]) -> Self {
        if inherited.is_empty() {
            return self;
        }
        let inherited = inherited.iter().flat_map(|value| needles(value));
        Self(Arc::new(Variables {
            values: self.0.values.clone(),
            names: self.0.names.clone(),
            needles: self.0.needles.clone(),
            printed: sorted(inherited.chain(self.0.needles.iter().cloned())),
        }))
    }

    /// The values by name.
    pub(crate) fn values(&self) -> &BTreeMap<String, String> {
        &self.0.values
    }

    /// What is shown instead of the values, by name.
    pub(crate) fn names(&self) -> &BTreeMap<String, String> {
        &self.0.names
    }

    /// The length of the longest that must not be seen: whoever cuts a text may leave less than that
    /// of it at the edge.
    pub(crate) fn longest(&self) -> usize {
        self.0.printed.first().map_or(0, String::len)
    }

    /// The text without any of the values.
    pub(crate) fn redact_text(&self, text: String) -> String {
        without(text, &self.0.needles)
    }

    /// What a command printed without any of the values, and without what it inherited.
    pub(crate) fn redact_printed(&self, text: String) -> String {
        without(text, &self.0.printed)
    }

    /// The same as it was printed.
    pub(crate) fn redact_bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        let mut bytes = bytes;
        for needle in &self.0.printed {
            bytes = replace(bytes, needle.as_bytes());
        }
        bytes
    }

    /// The value without any of the values, in texts, keys and numbers.
    pub(crate) fn redact(&self, value: Value) -> Value {
        redacted(value, &self.0.needles)
    }

    /// What a step gave without any of the values.
    pub(crate) fn redact_output(&self, output: Json) -> Json {
        if self.0.needles.is_empty() {
            return output;
        }
        let value = output.to_value();
        let redacted = redacted(value.clone(), &self.0.needles);
        // A value has fewer digits than the text that it was read from.
        match redacted == value {
            true => output,
            false => Json::from(redacted),
        }
    }

    /// JSON that a command printed, without what stands in it in escapes: as it was printed it is gone already.
    pub(crate) fn redact_escapes(&self, output: Json) -> Json {
        match escaped_without(output.text(), &self.0.printed) {
            None => output,
            Some(text) => Json::parse(text).unwrap_or_else(|_| Json::from(Value::from(REDACTED))),
        }
    }
}

/// The JSON without the needles in its strings that have escapes; `None` when there are none. All else stays the text
/// that it is.
fn escaped_without(json: &str, needles: &[String]) -> Option<String> {
    if needles.is_empty() || !json.contains('\\') {
        return None;
    }
    let (mut out, mut rest) = (String::new(), json);
    let mut found = false;
    while let Some(begin) = rest.find('"') {
        let (before, string) = rest.split_at(begin);
        let (string, after) = string.split_at(string_length(string));
        out.push_str(before);
        let says = string.contains('\\').then(|| unescaped(string));
        match says.map(|says| (without(says.clone(), needles), says)) {
            Some((clean, says)) if clean != says => {
                out.push_str(&Value::from(clean).to_string());
                found = true;
            }
            _ => out.push_str(string),
        }
        rest = after;
    }
    out.push_str(rest);
    found.then_some(out)
}

/// How long the JSON string is that the text begins with, in bytes, with its quotes.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

/// What a JSON string says. Half a pair of surrogates, which no text can hold, becomes a mark.
fn unescaped(string: &str) -> String {
    let mut units = Vec::with_capacity(string.len());
    let quoted = string.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    let mut rest = quoted.unwrap_or(string).chars();
    while let Some(read) = rest.next() {
        let says = match (read, &mut rest) {
            ('\\', rest) => match rest.next() {
                Some('u') => {
                    let digits: String = rest.take(4).collect();
                    units.push(u16::from_str_radix(&digits, 16).unwrap_or(0xfffd));
                    continue;
                }
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some('b') => '\u{8}',
                Some('f') => '\u{c}',
                Some(other) => other,
                None => break,
            },
            (plain, _) => plain,
        };
        units.extend_from_slice(says.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16_lossy(&units)
}

fn redacted(value: Value, needles: &[String]) -> Value {
    if needles.is_empty() {
        return value;
    }
    match value {
        Value::String(text) => Value::String(without(text, needles)),
        Value::Number(number) if needles.contains(&number.to_string()) => Value::from(REDACTED),
        Value::Array(items) => items
            .into_iter()
            .map(|item| redacted(item, needles))
            .collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| (without(key, needles), redacted(value, needles)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

fn without(mut text: String, needles: &[String]) -> String {
    for needle in needles {
        if text.contains(needle.as_str()) {
            text = text.replace(needle.as_str(), REDACTED);
        }
    }
    text
}

/// The longest first, each once.
fn sorted(needles: impl Iterator<Item = String>) -> Vec<String> {
    let mut needles: Vec<String> = needles.collect();
    needles.sort_by(|one, other| (other.len(), other).cmp(&(one.len(), one)));
    needles.dedup();
    needles
}

/// JSON as those write it that leave only letters of ASCII as they are, and those that also escape what a page of
/// HTML would take for its own.
fn escaped_further(json: &str, also: &[char]) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for c in json.chars() {
        if c.is_ascii() && !also.contains(&c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Nothing fails to be written to a text.
            write!(out, "\\u{unit:04x}").unwrap_or_default();
        }
    }
    out
}

/// The forms in which a value may be printed: as it is, escaped in JSON, and line by line.
fn needles(value: &str) -> Vec<String> {
    if value.len() < SECRET_BYTES_MIN {
        return Vec::new();
    }
    let quoted = Value::from(value).to_string();
    let escaped = &quoted[1..quoted.len() - 1];
    let mut needles = vec![
        value.to_owned(),
        escaped.to_owned(),
        escaped_further(escaped, &[]),
        escaped_further(escaped, &['&', '<', '>']),
    ];
    let lines = value.lines().map(str::trim);
    needles.extend(
        lines
            .filter(|line| line.len() >= LINE_BYTES_MIN)
            .map(str::to_owned),
    );
    needles
}

fn replace(bytes: Vec<u8>, needle: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some(at) = rest
        .windows(needle.len())
        .position(|window| window == needle)
    {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(REDACTED.as_bytes());
        rest = &rest[at + needle.len()..];
    }
    if out.is_empty() {
        return bytes;
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        let named = values.iter().enumerate();
        Secrets::from_values(
            named
                .map(|(n, value)| (format!("V{n}"), (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn what_commands_inherit_is_taken_out_of_what_they_print_and_of_nothing_else() {
        let secrets = secrets(&["s3cret"]).hiding(&["prod".to_owned()]);
        let text = || "s3cret prod".to_owned();
        assert_eq!(secrets.redact_printed(text()), "[redacted] [redacted]");
        let bytes = secrets.redact_bytes(text().into_bytes());
        assert_eq!(bytes, b"[redacted] [redacted]");
        // Names, prompts and inputs are the same whoever drives the run.
        assert_eq!(secrets.redact_text(text()), "[redacted] prod");
        let value = json!({"prod": "prod"});
        assert_eq!(secrets.redact(value.clone()), value);
        // What a task of one's own gives is its own, too.
        let given = Json::parse(r#""prod\ns3cret""#).unwrap();
        assert_eq!(secrets.redact_output(given).text(), r#""prod\n[redacted]""#);
    }

    #[test]
    fn what_is_printed_in_escapes_is_found_and_all_else_stays_as_it_was_printed() {
        // Other writers of JSON escape other characters.
        let inherited = Secrets::inherited(&["p&s\"s".to_owned()]);
        let output = |text: &str| inherited.redact_escapes(Json::parse(text).unwrap());
        let deep = |text: &str| format!("{}{text}{}", "[".repeat(200), "]".repeat(200));
        for (printed, recorded) in [
            (r#"["p\u0026s\"s"]"#, r#"["[redacted]"]"#),
            (r#"{"\u0070&s\u0022s": 1.00}"#, r#"{"[redacted]": 1.00}"#),
            (
                r#"{"a":"p\u0026s\"s","a":1}"#,
                r#"{"a":"[redacted]","a":1}"#,
            ),
            (r#"["\ud800 p\u0026s\"s\/"]"#, "[\"\u{fffd} [redacted]/\"]"),
            (&deep(r#""p\u0026s\"s""#), &deep(r#""[redacted]""#)),
        ] {
            assert_eq!(output(printed).text(), recorded);
        }
        for as_printed in [
            r#"{"b": 1.00, "a": 123456789012345678901234567890}"#,
            r#"{"b": 1.00, "a": 123456789012345678901234567890, "c": "\\"}"#,
            r#"["\ud800", "a\\\"", "p\\u0026s\"s"]"#,
        ] {
            assert_eq!(output(as_printed).text(), as_printed);
        }
    }

    #[test]
    fn a_secret_is_gone_in_every_form_it_may_be_printed_in() {
        let text = |values: &[&str], text: &str| secrets(values).redact_text(text.to_owned());
        assert_eq!(
            text(&["abcd1234", "abcd1234SUFFIX"], "v=abcd1234SUFFIX"),
            "v=[redacted]"
        );
        assert_eq!(
            text(&["tok\"en"], r#"{"t": "tok\"en""#),
            r#"{"t": "[redacted]""#
        );
        let pem = "-----BEGIN-----\nMIIBVgIBADANBg\n-----END-----";
        assert_eq!(text(&[pem], "x MIIBVgIBADANBg y"), "x [redacted] y");
        assert_eq!(
            text(&["p&s<wört"], r"p\u0026s\u003cw\u00f6rt p&s<w\u00f6rt"),
            "[redacted] [redacted]"
        );
        assert_eq!(
            text(&["abc"], "abcdef"),
            "abcdef",
            "too short to be a secret"
        );
        let value = secrets(&["48151623"]).redact(json!({"pin": 48151623, "48151623": [1]}));
        assert_eq!(value, json!({"pin": "[redacted]", "[redacted]": [1]}));
        let bytes = secrets(&["s3cret"]).redact_bytes(b"\xffs3cret\xfe".to_vec());
        assert_eq!(bytes, b"\xff[redacted]\xfe");
    }
}
