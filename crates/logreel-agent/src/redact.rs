//! What must not be recorded, streamed or shown: keys by their usual shapes, what the spec's patterns
//! name, and the values of variables, in every form in which they are likely to be printed.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use regex::{Captures, Regex, RegexBuilder, RegexSet};
use serde_json::Value;

/// What takes the place of a secret.
pub const REDACTED: &str = "[redacted]";
/// A value that is shorter would blot out half the output.
const SECRET_BYTES_MIN: usize = 4;
/// So would a short line of a value of several, or a short piece of base64.
const LINE_BYTES_MIN: usize = 8;
/// What everybody says.
const NO_SECRETS: [&str; 6] = ["true", "false", "null", "none", "test", "production"];
/// The most that a stream holds back.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// Shapes of secrets: what is in the group `keep` stays. Words end as in ASCII: an automaton cannot tell
/// where others do, and ten megabytes of output would take seconds.
const SHAPES: [&str; 12] = [
    r"(?-u:\b)sk-[A-Za-z0-9_-]{16,}",
    r"(?-u:\b)gh[pousr]_[A-Za-z0-9]{20,}|(?-u:\b)github_pat_[A-Za-z0-9_]{20,}|(?-u:\b)glpat-[A-Za-z0-9_-]{16,}",
    r"(?-u:\b)(?:AKIA|ASIA)[A-Z0-9]{16}(?-u:\b)",
    r"(?-u:\b)xox[abeprs]-[A-Za-z0-9-]{10,}",
    r"(?-u:\b)AIza[A-Za-z0-9_-]{30,}",
    r"(?-u:\b)(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}",
    r"(?-u:\b)eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)",
    r#"(?P<keep>(?i:authorization)\\?["']?\s*[:=]\s*\\?["']?(?i:bearer|basic|token)\s+)[^\s"'\\]{6,}"#,
    r"(?P<keep>(?-u:\b)[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]{3,}@",
    // What is assigned to a name like this, when it is quoted ..
    r#"(?P<keep>(?i:[a-z0-9_.-]*(?:password|passwd|passphrase|secret|api_?-?key|access_?-?key|private_?-?key|auth_?-?token|access_?-?token|credentials?))\\?["']?\s*(?:=>|:=|[:=])\s*)(?P<quoted>\\?["'][^\s"'\\]{6,}\\?["'])"#,
    // .. or stands alone, as in a file of variables.
    r#"(?P<keep>(?i:[a-z0-9_.-]*(?:password|passwd|passphrase|secret|api_?-?key|access_?-?key|private_?-?key|_token|credentials?))["']?\s*[:=]\s*)(?P<bare>[A-Za-z0-9+/_.~!@#%^&*-]{6,}={0,2})"#,
];

/// The beginning of what may become one of them once more has come: the end of a text that is still
/// being streamed.
static BEGUN: LazyLock<Regex> = LazyLock::new(|| {
    let begun = r#"(?i:authorization|password|passwd|passphrase|secret|key|token|credentials?)\\?["']?\s*(?:=>|:=|[:=])?\s*\\?["']?(?i:bearer|basic|token)?\s*\S*\z"#;
    Regex::new(begun).expect("it is one")
});

/// Takes secrets out. Cheap to clone.
#[derive(Clone)]
pub struct Redactor(Arc<Patterns>);

struct Patterns {
    /// Which of `each` have something to do: nearly always none.
    any: RegexSet,
    each: Vec<Regex>,
    /// Whether some are the spec's own: nobody knows what they need to see.
    own: bool,
    /// The forms of known values, the longest first: one may be part of another.
    needles: Vec<String>,
    known: Option<Regex>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redactor")
    }
}

impl Redactor {
    /// One that knows the usual shapes, these patterns and these values.
    pub fn new<S: AsRef<str>>(
        patterns: &[String],
        secrets: impl IntoIterator<Item = S>,
    ) -> Result<Self, regex::Error> {
        let mut each = Vec::new();
        for pattern in SHAPES
            .into_iter()
            .chain(patterns.iter().map(String::as_str))
        {
            each.push(Regex::new(pattern)?);
        }
        let any = RegexSet::new(each.iter().map(Regex::as_str))?;
        let mut needles: Vec<String> = Vec::new();
        for secret in secrets {
            needles.extend(forms(secret.as_ref()));
        }
        needles.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        needles.dedup();
        let known = match needles.is_empty() {
            true => None,
            false => {
                let escaped: Vec<String> = needles.iter().map(|it| regex::escape(it)).collect();
                let known = RegexBuilder::new(&escaped.join("|"))
                    .size_limit(256 * 1024 * 1024)
                    .build();
                Some(known?)
            }
        };
        Ok(Self(Arc::new(Patterns {
            any,
            each,
            own: !patterns.is_empty(),
            needles,
            known,
        })))
    }

    /// The text without secrets, and how many there were.
    pub fn text<'a>(&self, text: &'a str) -> (Cow<'a, str>, u32) {
        let patterns = &*self.0;
        let mut text = Cow::Borrowed(text);
        let mut count = 0;
        if let Some(known) = &patterns.known
            && known.is_match(&text)
        {
            let redacted = known.replace_all(&text, |_: &Captures<'_>| {
                count += 1;
                REDACTED
            });
            text = Cow::Owned(redacted.into_owned());
        }
        for which in patterns.any.matches(&text) {
            let before = count;
            let redacted = patterns.each[which].replace_all(&text, |found: &Captures<'_>| {
                match replacement(found) {
                    Some(redacted) => {
                        count += 1;
                        redacted
                    }
                    None => found[0].to_owned(),
                }
            });
            if count > before {
                text = Cow::Owned(redacted.into_owned());
            }
        }
        (text, count)
    }

    /// The value without secrets, in texts, keys and numbers, and how many there were.
    pub fn value(&self, value: Value) -> (Value, u32) {
        let mut count = 0;
        let value = self.redacted(value, &mut count);
        (value, count)
    }

    /// The value without secrets in its texts, whatever the names of its fields say.
    pub fn texts(&self, value: Value) -> (Value, u32) {
        match value {
            Value::String(text) => {
                let (text, count) = self.text(&text);
                (Value::from(text), count)
            }
            Value::Array(items) => {
                let mut count = 0;
                let items = items.into_iter().map(|item| {
                    let (item, n) = self.texts(item);
                    count += n;
                    item
                });
                let items = items.collect();
                (items, count)
            }
            Value::Object(fields) => {
                let mut count = 0;
                let fields = fields.into_iter().map(|(key, value)| {
                    let (value, n) = self.texts(value);
                    count += n;
                    (key, value)
                });
                let fields = Value::Object(fields.collect());
                (fields, count)
            }
            other @ (Value::Null | Value::Bool(_) | Value::Number(_)) => (other, 0),
        }
    }

    fn redacted(&self, value: Value, count: &mut u32) -> Value {
        let mut of_text = |text: String| match self.text(&text) {
            (Cow::Owned(redacted), n) => {
                *count += n;
                redacted
            }
            (Cow::Borrowed(_), _) => text,
        };
        match value {
            Value::String(text) => Value::String(of_text(text)),
            Value::Number(number) => {
                let text = number.to_string();
                match self.0.needles.contains(&text) {
                    true => {
                        *count += 1;
                        Value::from(REDACTED)
                    }
                    false => Value::Number(number),
                }
            }
            Value::Array(items) => {
                let items = items.into_iter();
                items.map(|item| self.redacted(item, count)).collect()
            }
            Value::Object(fields) => {
                let mut all = serde_json::Map::new();
                for (key, value) in fields {
                    let value = self.redacted(value, count);
                    let value = self.of_field(&key, value, count);
                    let (key, n) = self.text(&key);
                    *count += n;
                    all.insert(key.into_owned(), value);
                }
                Value::Object(all)
            }
            Value::Null | Value::Bool(_) => value,
        }
    }

    /// A text under a name that says what it is.
    fn of_field(&self, key: &str, value: Value, count: &mut u32) -> Value {
        let Value::String(text) = value else {
            return value;
        };
        let assigned = format!("{key}=\"{text}\"");
        match text.contains(REDACTED) || self.text(&assigned).1 == 0 {
            true => Value::String(text),
            false => {
                *count += 1;
                Value::from(REDACTED)
            }
        }
    }

    /// Whether some of its patterns are not the usual shapes.
    pub fn has_own_patterns(&self) -> bool {
        self.0.own
    }

    /// For text that comes in pieces.
    pub fn stream(&self) -> RedactedStream {
        RedactedStream {
            redactor: self.clone(),
            held: String::new(),
        }
    }

    /// From where on a text ends with the beginning of a known value, of which at least so many bytes are there.
    pub fn known_begun(&self, text: &str, bytes_min: usize) -> Option<usize> {
        let begun = |needle: &String| {
            let longest = needle.len().min(text.len());
            (bytes_min..=longest).rev().find(|length| {
                needle.is_char_boundary(*length) && text.ends_with(&needle[..*length])
            })
        };
        let longest = self.0.needles.iter().filter_map(begun).max();
        longest.map(|length| text.len() - length)
    }

    /// From where on a text may be the beginning of a secret.
    fn unsure_from(&self, text: &str) -> usize {
        let patterns = &*self.0;
        let last_word = text.rfind(char::is_whitespace).map_or(0, |at| {
            at + text[at..].chars().next().map_or(1, char::len_utf8)
        });
        let mut from = last_word;
        if patterns.own {
            from = from.min(text.rfind('\n').map_or(0, |at| at + 1));
        }
        if let Some(begun) = BEGUN.find(text) {
            // The name it is part of begins earlier.
            let name = text[..begun.start()].rfind(char::is_whitespace);
            from = from.min(name.map_or(0, |at| at + 1));
        }
        if let Some(pem) = text.rfind("-----BEGIN") {
            from = from.min(pem);
        }
        from = from.min(self.known_begun(text, 1).unwrap_or(from));
        // What is found across that place is not cut.
        let found = patterns.each.iter().chain(&patterns.known);
        loop {
            let across = found
                .clone()
                .flat_map(|it| it.find_iter(text))
                .filter(|it| it.start() < from && it.end() > from)
                .map(|it| it.start())
                .min();
            match across {
                Some(start) => from = start,
                None => break,
            }
        }
        while !text.is_char_boundary(from) {
            from -= 1;
        }
        from
    }
}

/// Text that comes in pieces, without secrets: what may be the beginning of one is held back.
pub struct RedactedStream {
    redactor: Redactor,
    held: String,
}

impl RedactedStream {
    /// A piece came; gives what can be shown now.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        let from = match self.held.len() > HELD_BYTES_MAX {
            true => self.held.len(),
            false => self.redactor.unsure_from(&self.held),
        };
        let rest = self.held.split_off(from);
        let sure = std::mem::replace(&mut self.held, rest);
        self.redactor.text(&sure).0.into_owned()
    }

    /// Nothing more comes; gives the rest.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        self.redactor.text(&rest).0.into_owned()
    }
}

/// What stands there instead; `None` when it only looked like a secret.
fn replacement(found: &Captures<'_>) -> Option<String> {
    let keep = found.name("keep").map_or("", |keep| keep.as_str());
    if !keep.is_empty() && found[0].contains(REDACTED) {
        return None;
    }
    if let Some(quoted) = found.name("quoted") {
        let quoted = quoted.as_str();
        let value = quoted.trim_matches(['"', '\'', '\\']);
        // A template, or the name of a variable.
        let is_value = !value.starts_with(['$', '{', '<', '%']);
        let length = quoted.len() - quoted.trim_start_matches(['"', '\'', '\\']).len();
        let quote = &quoted[..length];
        return is_value.then(|| format!("{keep}{quote}{REDACTED}{quote}"));
    }
    if let Some(bare) = found.name("bare") {
        let bare = bare.as_str();
        // A call, a path of names or a word of code has no digits among its letters.
        let has = |is: fn(&char) -> bool| bare.chars().any(|c| is(&c));
        let is_value = has(char::is_ascii_digit) && has(char::is_ascii_alphabetic);
        return is_value.then(|| format!("{keep}{REDACTED}"));
    }
    // The name of a variable, or a place for a value, is none.
    let is_value = keep.is_empty() || !found[0][keep.len()..].starts_with(['$', '{', '<', '%']);
    let at = if keep.contains("://") { "@" } else { "" };
    is_value.then(|| format!("{keep}{REDACTED}{at}"))
}

/// The forms in which a value is likely to be printed.
fn forms(secret: &str) -> Vec<String> {
    let secret = secret.trim();
    if secret.len() < SECRET_BYTES_MIN || NO_SECRETS.contains(&secret.to_lowercase().as_str()) {
        return Vec::new();
    }
    let once = escaped(secret);
    let mut forms = vec![
        secret.to_owned(),
        escaped(&once),
        once,
        escaped_to_ascii(secret),
        percent_encoded(secret),
    ];
    let lines = secret.lines().map(str::trim);
    forms.extend(
        lines
            .filter(|line| line.len() >= LINE_BYTES_MIN)
            .map(str::to_owned),
    );
    for standard in in_base64(secret) {
        forms.push(standard.replace('+', "-").replace('/', "_"));
        forms.push(standard);
    }
    forms
}

fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// As other writers of JSON escape it.
fn escaped_to_ascii(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for c in escaped(text).chars() {
        if c.is_ascii() {
            out.push(c);
            continue;
        }
        let mut units = [0; 2];
        for unit in c.encode_utf16(&mut units) {
            write!(out, "\\u{unit:04x}").expect("a string takes everything");
        }
    }
    out
}

fn percent_encoded(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            byte => write!(out, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    out
}

/// What base64 makes of it wherever in a longer text it stands: of each of the three alignments, the
/// characters that depend on nothing else.
fn in_base64(secret: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (before, skip) in [(0, 0), (1, 2), (2, 3)] {
        let mut bytes = vec![0; before];
        bytes.extend_from_slice(secret.as_bytes());
        let whole = bytes.len() * 8 / 6;
        let encoded = STANDARD_NO_PAD.encode(&bytes);
        if whole >= skip + LINE_BYTES_MIN {
            all.push(encoded[skip..whole].to_owned());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use serde_json::json;

    use super::*;

    fn plain() -> Redactor {
        Redactor::new(&[], Vec::<String>::new()).unwrap()
    }

    fn knowing(secret: &str) -> Redactor {
        Redactor::new(&[], [secret]).unwrap()
    }

    #[test]
    fn the_usual_shapes_are_gone_and_what_only_looks_like_them_is_not() {
        let redactor = plain();
        let long = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8";
        let jwt = format!("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{long}");
        let pem = format!(
            "-----BEGIN RSA PRIVATE KEY-----\n{long}\n{long}\n-----END RSA PRIVATE KEY-----"
        );
        for secret in [
            format!("sk-{long}"),
            format!("sk-ant-api03-{long}"),
            format!("ghp_{long}"),
            format!("github_pat_{long}"),
            "AKIAIOSFODNN7EXAMPLE".to_owned(),
            format!("xoxb-{long}"),
            format!("AIza{long}"),
            jwt,
            pem,
        ] {
            let text = format!("before {secret} after");
            let (text, count) = redactor.text(&text);
            assert_eq!((&*text, count), ("before [redacted] after", 1), "{secret}");
        }
        for (text, expected) in [
            (
                "Authorization: Bearer abc.def-123",
                "Authorization: Bearer [redacted]",
            ),
            (
                "{\"authorization\": \"Basic dXNlcjpw\"}",
                "{\"authorization\": \"Basic [redacted]\"}",
            ),
            ("DB_PASSWORD=hunter2", "DB_PASSWORD=[redacted]"),
            ("password: \"correct-horse\"", "password: \"[redacted]\""),
            (
                "{\"api_key\": \"abcdefgh\"}",
                "{\"api_key\": \"[redacted]\"}",
            ),
            ("GITHUB_TOKEN=a1b2c3d4", "GITHUB_TOKEN=[redacted]"),
            (
                "postgres://me:hunter2@db/x",
                "postgres://me:[redacted]@db/x",
            ),
        ] {
            assert_eq!(plain().text(text).0, expected);
            let again = plain().text(expected).1;
            assert_eq!(again, 0, "{expected} is counted again");
        }
        for harmless in [
            "let password = read_password();",
            "api_key = os.environ.get(\"NAME\")",
            "password: String,",
            "the secret: it is a word",
            "token = \"next_page_1234\"",
            "sk-learn is a library; task-force-of-many-people",
            "https://example.com:8080/a@b",
            "password = \"${PASSWORD}\"",
            "eyJ is how they begin",
        ] {
            assert_eq!(plain().text(harmless).0, harmless);
            assert!(matches!(plain().text(harmless).0, Cow::Borrowed(_)));
        }
    }

    #[test]
    fn a_known_value_is_gone_in_every_form() {
        let secret = "pä\"ss/w?rd+&1\\x";
        let redactor = knowing(secret);
        let in_json = json!({"a": secret}).to_string();
        let twice = json!({"b": in_json}).to_string();
        let mut printed = vec![
            secret.to_owned(),
            in_json,
            twice,
            "p\\u00e4\\\"ss/w?rd+&1\\\\x".to_owned(),
            "p%C3%A4%22ss%2Fw%3Frd%2B%261%5Cx".to_owned(),
        ];
        for before in ["", "u", "us", "use", "user:"] {
            for after in ["", "x", "xy"] {
                let text = format!("{before}{secret}{after}");
                printed.push(STANDARD.encode(&text));
                printed.push(URL_SAFE.encode(&text));
            }
        }
        for text in printed {
            let (redacted, count) = redactor.text(&text);
            assert!(redacted.contains(REDACTED) && count > 0, "{text}");
            assert!(!redacted.contains("ss/w"), "{redacted}");
        }
        let pem = knowing("-----BEGIN-----\nMIIBVgIBADANBg\nshort\n-----END-----");
        assert_eq!(pem.text("x MIIBVgIBADANBg short").0, "x [redacted] short");
        assert_eq!(knowing("abc").text("abc").1, 0, "too short to be a secret");
        assert_eq!(knowing("true").text("true").1, 0);
        let (value, count) = knowing("48151623").value(json!({
            "pin": 48151623, "48151623": ["a 48151623"], "ok": [1, null], "password": "letmein",
        }));
        let expected = json!({
            "pin": REDACTED, REDACTED: ["a [redacted]"], "ok": [1, null], "password": REDACTED,
        });
        assert_eq!((value, count), (expected, 4));
    }

    #[test]
    fn the_specs_own_patterns_count_and_bad_ones_are_refused() {
        let redactor = Redactor::new(&[r"CASE-\d+".to_owned()], [""; 0]).unwrap();
        assert_eq!(
            redactor.text("see CASE-42 and CASE-7"),
            ("see [redacted] and [redacted]".into(), 2)
        );
        assert!(Redactor::new(&["(".to_owned()], [""; 0]).is_err());
    }

    #[test]
    fn a_stream_shows_no_part_of_a_secret_however_it_is_cut() {
        let long = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8";
        let secret = "two words and more";
        let own = [r"CASE-\d+ \w+".to_owned()];
        let redactor = Redactor::new(&own, [secret]).unwrap();
        let text = format!(
            "Here is sk-{long} and {secret}, then\nAuthorization: Bearer {long}\nCASE-42 closed.\n\
             -----BEGIN PRIVATE KEY-----\n{long}\n-----END PRIVATE KEY-----\nDB_PASSWORD = \"{long}\" \
             and über alles more words"
        );
        let whole = redactor.text(&text).0.into_owned();
        assert_eq!(whole.matches(REDACTED).count(), 6, "{whole}");
        for size in 1..40 {
            let mut stream = redactor.stream();
            let mut shown = String::new();
            let chars: Vec<char> = text.chars().collect();
            for piece in chars.chunks(size) {
                shown += &stream.push(&piece.iter().collect::<String>());
            }
            shown += &stream.finish();
            assert_eq!(shown, whole, "in pieces of {size}");
        }
        // Without patterns of unknown shape only the last word waits.
        let mut stream = plain().stream();
        assert_eq!(stream.push("Hello wor"), "Hello ");
        assert_eq!(stream.push("ld, "), "world, ");
        assert_eq!(stream.finish(), "");
    }
}
