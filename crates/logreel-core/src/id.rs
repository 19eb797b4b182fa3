//! Names of things: parsed once at the edge, typed from there on.

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use foldhash::fast::FixedState;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{Digest, Timestamp};

/// Why a text is not an id of the asked kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not `run_` + UUID.
    #[error("`{0}` is not a run id; expected `run_` followed by a UUID in lower case with hyphens")]
    Run(String),
    /// Empty, too long, or with control characters.
    #[error("a {what} must be 1 to {max} bytes of text without control characters, got {got}")]
    Text {
        /// What the text should have named.
        what: &'static str,
        /// The most bytes allowed.
        max: usize,
        /// The refused text, escaped and cut.
        got: String,
    },
    /// Not a wait id.
    #[error("`{0}` is not a wait id; expected `w` followed by a number, such as `w1`")]
    Wait(String),
    /// Not a step id in its JSON form.
    #[error("`{0}` is not a step id; expected a string or an array of strings")]
    Step(String),
}

fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}

/// A run: `run_` + UUID (version 7 when we make it), lower case with hyphens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(Uuid);

impl RunId {
    /// A new id that sorts by its time; `random` comes from the host's `Env`.
    pub fn new(at: Timestamp, random: [u8; 10]) -> Self {
        let millis = u64::try_from(at.as_millis()).unwrap_or(0);
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// The UUID's bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The id with these UUID bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The last 8 hex digits: what tables print and people type.
    pub fn short(&self) -> String {
        let hex = self.0.simple().to_string();
        hex[24..].to_owned()
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run_{}", self.0.hyphenated())
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RunId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let refuse = || IdError::Run(text.escape_debug().to_string().chars().take(80).collect());
        let id = text
            .strip_prefix("run_")
            .and_then(|uuid| Uuid::parse_str(uuid).ok())
            .map(Self)
            .ok_or_else(refuse)?;
        // `parse_str` also takes other spellings; one run has one name.
        if id.to_string() == text {
            Ok(id)
        } else {
            Err(refuse())
        }
    }
}

impl Serialize for RunId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The position of an event in its run, dense from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The first event of every run, `run.started`.
    pub const FIRST: Self = Self(1);
    /// The head of a log without events.
    pub const NONE: Self = Self(0);

    /// The position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        // No log is that long; a caller may name such a number all the same.
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Counts the drivers of a run; an append with an older epoch is refused. 0 = never driven.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Before the first driver.
    pub const NONE: Self = Self(0);

    /// The epoch of the next driver.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The end of a log: what an append was decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Head {
    /// The last event's position.
    pub seq: Seq,
    /// The last event's chain digest.
    pub digest: Digest,
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and keeps a name.
            pub fn new(text: impl AsRef<str>) -> Result<Self, IdError> {
                let text = text.as_ref();
                if text.is_empty() || text.len() > $max || text.chars().any(char::is_control) {
                    return Err(IdError::Text { what: $what, max: $max, got: shown(text) });
                }
                Ok(Self(Arc::from(text)))
            }

            /// The name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <Cow<'de, str>>::deserialize(deserializer)?;
                Self::new(text).map_err(serde::de::Error::custom)
            }
        }
    };
}

text_id!(
    /// A conversation that groups runs: any text the user chose.
    Session, "session", 512
);
text_id!(
    /// A tool or model call within a run.
    CallId, "call id", 256
);
text_id!(
    /// Names one append, so that the same append sent twice lands once.
    AppendId, "append id", 256
);
text_id!(
    /// A caller's own name for a request, so that the same request sent twice is done once.
    RequestId, "request id", 256
);

impl AppendId {
    const DRIVER: &str = "~";
    const REQUEST: &str = "request:";
    /// Of each half of a request's append: 128 bits.
    const REQUEST_DIGITS: usize = 32;

    /// The id of the append that a caller's request leads to: which request it is, and the digest of what
    /// it asks. A store knows a request by the first part alone, so that the same request id for
    /// something else is refused and never taken for what was asked before.
    pub fn request(request: &RequestId, asked: &Digest) -> Self {
        let which = Digest::of(request.as_str().as_bytes()).hex();
        let (which, asked) = (&which[..Self::REQUEST_DIGITS], asked.hex());
        let asked = &asked[..Self::REQUEST_DIGITS];
        Self(Arc::from(format!("{}{which}:{asked}", Self::REQUEST)))
    }

    /// What no two appends of a run share: of a request its first part, with the colon that ends it; else
    /// all of the id.
    pub fn name(&self) -> &str {
        let whole = Self::REQUEST.len() + 2 * Self::REQUEST_DIGITS + 1;
        match self.0.starts_with(Self::REQUEST) && self.0.len() == whole {
            true => &self.0[..whole - Self::REQUEST_DIGITS],
            false => &self.0,
        }
    }

    /// Whether a caller's request led to it.
    pub fn is_request(&self) -> bool {
        self.name().len() < self.0.len()
    }

    /// The id of a driver's own append. It is only ever sent again with the head it was first sent
    /// with, so a store need not index it: if it landed, it landed right after that head.
    pub fn driver(tag: u64) -> Self {
        // Written by hand: every step has one.
        let mut text = [Self::DRIVER.as_bytes()[0]; 17];
        for (place, digit) in text[1..].iter_mut().rev().enumerate() {
            *digit = b"0123456789abcdef"[(tag >> (4 * place)) as usize & 0xf];
        }
        Self(Arc::from(
            std::str::from_utf8(&text).expect("digits are text"),
        ))
    }

    /// The tag of a driver's own append.
    pub fn driver_tag(&self) -> Option<u64> {
        let hex = self.0.strip_prefix(Self::DRIVER)?;
        (hex.len() == 16)
            .then(|| u64::from_str_radix(hex, 16).ok())
            .flatten()
    }
}

/// A wait within a run: `w1`, `w2`, … in the order in which they started.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaitId(pub u32);

impl fmt::Display for WaitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

impl fmt::Debug for WaitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for WaitId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        text.strip_prefix('w')
            .and_then(|number| number.parse().ok())
            .map(Self)
            .filter(|id| id.to_string() == text)
            .ok_or_else(|| IdError::Wait(text.escape_debug().take(80).collect()))
    }
}

impl Serialize for WaitId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WaitId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A step: a name, a name with keys, or either of them inside an outer step.
///
/// In bodies it is the string of a plain name or the array of its parts (an outer step is an array
/// inside the array), which is unambiguous; shown it is `ID`, `ID[KEY]` or `OUTER/INNER`; in keys
/// and digests it is always the array.
///
/// It carries the hash of its text: a fold asks a map for the same id several times, and a map that
/// grows would otherwise read every text again.
#[derive(Clone)]
pub struct StepId {
    text: StepText,
    hash: u64,
}

/// The JSON text of a step id. A short one is kept in place: a fold copies the id of every step, and
/// counting one more owner of a text elsewhere was half of its time, because the text is not at hand.
#[derive(Clone)]
enum StepText {
    Short { length: u8, bytes: [u8; SHORT_MAX] },
    Long(Arc<RawValue>),
}

/// As many bytes as the other variant takes anyway.
const SHORT_MAX: usize = 22;

impl StepText {
    /// `None` when it is long.
    fn short(text: &str) -> Option<Self> {
        let mut bytes = [0; SHORT_MAX];
        bytes
            .get_mut(..text.len())?
            .copy_from_slice(text.as_bytes());
        let length = u8::try_from(text.len()).ok()?;
        Some(Self::Short { length, bytes })
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(text) => text.get().as_bytes(),
        }
    }

    fn as_str(&self) -> &str {
        match self {
            Self::Short { .. } => {
                std::str::from_utf8(self.as_bytes()).expect("made from a whole text")
            }
            Self::Long(text) => text.get(),
        }
    }
}

impl StepId {
    /// A step from its parts: one for a plain name, more for a name with keys.
    pub fn from_parts<I>(parts: I) -> Result<Self, IdError>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        // Every step of a task is asked for by its parts, so this makes nothing but the text.
        let mut list = String::with_capacity(64);
        let mut count = 0;
        for part in parts {
            let part = part.as_ref();
            check_step_part(part)?;
            list.push(if count == 0 { '[' } else { ',' });
            count += 1;
            // Nothing else is escaped: there are no control characters.
            if part.contains(['"', '\\']) {
                list.push_str(raw(part).get());
            } else {
                list.push('"');
                list.push_str(part);
                list.push('"');
            }
        }
        match count {
            0 => Err(IdError::Step("[]".to_owned())),
            1 => Ok(Self::spelled(&list[1..])),
            _ => {
                list.push(']');
                Ok(Self::spelled(&list))
            }
        }
    }

    fn of(text: Box<RawValue>) -> Self {
        let hash = hash_of(text.get());
        let text = match StepText::short(text.get()) {
            Some(short) => short,
            None => StepText::Long(Arc::from(text)),
        };
        Self { text, hash }
    }

    /// The id with this text, which is JSON.
    fn spelled(text: &str) -> Self {
        match StepText::short(text) {
            Some(short) => Self {
                text: short,
                hash: hash_of(text),
            },
            None => Self::of(RawValue::from_string(text.to_owned()).expect("built from JSON")),
        }
    }

    /// The id that `text` spells, if that is short and surely its one spelling.
    pub(crate) fn from_short(text: &str) -> Option<Self> {
        let short = StepText::short(text).filter(|_| is_plain(text))?;
        let hash = hash_of(text);
        Some(Self { text: short, hash })
    }

    /// As it is in a body: JSON.
    pub(crate) fn text(&self) -> &str {
        self.text.as_str()
    }

    /// This step inside `outer`.
    #[must_use]
    pub fn inside(&self, outer: &StepId) -> Self {
        // `a/b` inside `o` is `b` inside `o/a`: one name, one spelling.
        if let Some((middle, inner)) = self.split() {
            return inner.inside(&middle.inside(outer));
        }
        Self::spelled(&format!("[{},{}]", outer.canonical(), self.text()))
    }

    /// The name without keys, and of a step inside others that of the outermost.
    pub fn name(&self) -> String {
        let mut value: serde_json::Value =
            serde_json::from_str(self.text()).expect("an id is valid JSON");
        loop {
            match value {
                serde_json::Value::Array(parts) => {
                    value = parts.into_iter().next().unwrap_or_default();
                }
                serde_json::Value::String(name) => return name,
                _ => return String::new(),
            }
        }
    }

    /// Whether this is a step inside `outer`, at any depth.
    pub fn is_inside(&self, outer: &StepId) -> bool {
        let mut step = self.clone();
        while let Some((outside, _)) = step.split() {
            if outside == *outer {
                return true;
            }
            step = outside;
        }
        false
    }

    /// The step that this one is inside of.
    pub fn outer(&self) -> Option<Self> {
        self.split().map(|(outer, _)| outer)
    }

    /// The canonical JSON array of the parts: what keys and digests hold.
    pub fn canonical(&self) -> Cow<'_, str> {
        let text = self.text();
        if text.starts_with('[') {
            Cow::Borrowed(text)
        } else {
            Cow::Owned(format!("[{text}]"))
        }
    }

    /// The outer step and the inner one, when this is a step inside a step.
    fn split(&self) -> Option<(Self, Self)> {
        if !self.text().starts_with("[[") {
            return None;
        }
        let parts: [serde_json::Value; 2] = serde_json::from_str(self.text()).ok()?;
        Some((Self::parse(&parts[0]).ok()?, Self::parse(&parts[1]).ok()?))
    }

    fn parse(value: &serde_json::Value) -> Result<Self, IdError> {
        let refuse = || IdError::Step(value.to_string().chars().take(80).collect());
        fn valid(value: &serde_json::Value) -> bool {
            match value {
                serde_json::Value::String(part) => check_step_part(part).is_ok(),
                serde_json::Value::Array(parts) => match parts.as_slice() {
                    [outer @ serde_json::Value::Array(_), inner] => valid(outer) && flat(inner),
                    parts => !parts.is_empty() && parts.iter().all(|p| p.is_string() && valid(p)),
                },
                _ => false,
            }
        }
        fn flat(value: &serde_json::Value) -> bool {
            valid(value) && value.get(0).is_none_or(|first| first.is_string())
        }
        if !valid(value) {
            return Err(refuse());
        }
        // One id has one text, because ids are compared by it: a lone part is a plain string.
        match value.as_array().map(Vec::as_slice) {
            Some([only]) => Ok(Self::of(raw(only))),
            Some([outer @ serde_json::Value::Array(_), inner]) => {
                Ok(Self::parse(inner)?.inside(&Self::parse(outer)?))
            }
            Some(_) | None => Ok(Self::of(raw(value))),
        }
    }
}

/// The first byte of U+0080 to U+009F, which are control characters, in UTF-8.
const C1_LEAD: u8 = 0xc2;

fn hash_of(text: &str) -> u64 {
    FixedState::default().hash_one(text)
}

fn raw<T: Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("strings and arrays always serialize")
}

fn check_step_part(part: &str) -> Result<(), IdError> {
    if part.is_empty() || part.len() > 1024 || part.chars().any(char::is_control) {
        return Err(IdError::Text {
            what: "step id",
            max: 1024,
            got: shown(part),
        });
    }
    Ok(())
}

impl PartialEq for StepId {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.text.as_bytes() == other.text.as_bytes()
    }
}

impl Eq for StepId {}

impl Hash for StepId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialOrd for StepId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for StepId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.as_bytes().cmp(other.text.as_bytes())
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn write(value: &serde_json::Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match value {
                serde_json::Value::String(part) => f.write_str(part),
                serde_json::Value::Array(parts) => match parts.as_slice() {
                    [outer @ serde_json::Value::Array(_), inner] => {
                        write(outer, f)?;
                        f.write_str("/")?;
                        write(inner, f)
                    }
                    [only] => write(only, f),
                    [name, keys @ ..] => {
                        write(name, f)?;
                        f.write_str("[")?;
                        for (index, key) in keys.iter().enumerate() {
                            if index > 0 {
                                f.write_str(",")?;
                            }
                            write(key, f)?;
                        }
                        f.write_str("]")
                    }
                    [] => Ok(()),
                },
                other => write!(f, "{other}"),
            }
        }
        let value = serde_json::from_str(self.text()).map_err(|_| fmt::Error)?;
        write(&value, f)
    }
}

impl fmt::Debug for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for StepId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.text {
            StepText::Short { .. } => serde_json::from_str::<&RawValue>(self.text())
                .map_err(serde::ser::Error::custom)?
                .serialize(serializer),
            StepText::Long(text) => text.serialize(serializer),
        }
    }
}

/// Whether a JSON text is surely the one spelling of an id: a name, or a name with keys, without
/// escapes, blanks and control characters. One pass, because it is asked for every step that is
/// folded; what it does not recognise is parsed.
fn is_plain(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_plain_part = |part: &[u8]| {
        let inside = part
            .strip_prefix(b"\"")
            .and_then(|part| part.strip_suffix(b"\""));
        inside.is_some_and(|inside| !inside.is_empty() && !inside.contains(&b'"'))
    };
    let has_one_spelling = |byte: u8| !matches!(byte, b'\\' | ..0x20 | 0x7f | C1_LEAD);
    if bytes.len() >= 1024 || !text.bytes().all(has_one_spelling) {
        return false;
    }
    match bytes
        .strip_prefix(b"[")
        .and_then(|list| list.strip_suffix(b"]"))
    {
        None => is_plain_part(bytes),
        Some(list) => list.contains(&b',') && list.split(|byte| *byte == b',').all(is_plain_part),
    }
}

impl<'de> Deserialize<'de> for StepId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <Box<RawValue>>::deserialize(deserializer)?;
        if is_plain(raw.get()) {
            return Ok(Self::of(raw));
        }
        let value = serde_json::from_str(raw.get()).map_err(serde::de::Error::custom)?;
        Self::parse(&value).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_has_one_spelling() {
        let id = RunId::new(Timestamp::from_micros(1_700_000_000_000_000), [7; 10]);
        assert_eq!(id.to_string().parse::<RunId>(), Ok(id));
        assert_eq!(id.short().len(), 8);
        assert!(id.to_string().ends_with(&id.short()));
        for bad in [
            "",
            "run_",
            "run_1",
            " run_x",
            "run_\0",
            "run_a\nb",
            &id.to_string()[4..],
        ] {
            assert!(bad.parse::<RunId>().is_err(), "{bad:?}");
        }
        assert!(id.to_string().to_uppercase().parse::<RunId>().is_err());
        assert!(format!("{id} ").parse::<RunId>().is_err());
    }

    #[test]
    fn a_drivers_append_id_holds_its_tag() {
        for tag in [0, 1, 0xf0, 0x0123_4567_89ab_cdef, u64::MAX] {
            let id = AppendId::driver(tag);
            assert_eq!(id.as_str(), format!("~{tag:016x}"));
            assert_eq!(id.driver_tag(), Some(tag));
        }
        for other in ["~1", "0123456789abcdef0", "~0123456789abcdeg", "request:x"] {
            assert_eq!(AppendId::new(other).unwrap().driver_tag(), None, "{other}");
        }
    }

    #[test]
    fn a_step_id_is_shown_short_and_kept_unambiguous() {
        let plain = StepId::from_parts(["fetch"]).unwrap();
        let keyed = StepId::from_parts(["read", "a/b.txt"]).unwrap();
        let lookalike = StepId::from_parts(["read[a/b.txt]"]).unwrap();
        let inner = keyed.inside(&plain);
        assert_eq!(plain.to_string(), "fetch");
        assert_eq!(keyed.to_string(), "read[a/b.txt]");
        assert_eq!(inner.to_string(), "fetch/read[a/b.txt]");
        assert_eq!(lookalike.to_string(), keyed.to_string());
        assert_ne!(lookalike, keyed);
        assert_eq!(plain.canonical(), r#"["fetch"]"#);
        assert_eq!(keyed.canonical(), r#"["read","a/b.txt"]"#);
        assert_eq!(inner.canonical(), r#"[["fetch"],["read","a/b.txt"]]"#);
        let deeper = plain.inside(&inner);
        assert_eq!(deeper.outer().as_ref(), Some(&inner));
        assert_eq!(inner.outer().as_ref(), Some(&plain));
        assert_eq!((plain.outer(), keyed.outer()), (None, None));
        assert_eq!(
            inner.inside(&lookalike),
            keyed.inside(&plain.inside(&lookalike))
        );
        let regrouped = inner.inside(&lookalike);
        for id in [plain, keyed, lookalike, inner, deeper, regrouped] {
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<StepId>(&json).unwrap(), id);
            assert_eq!(serde_json::from_str::<StepId>(&id.canonical()).unwrap(), id);
        }
        assert_eq!(
            serde_json::from_str::<StepId>("\"\\u0061\"")
                .unwrap()
                .to_string(),
            "a"
        );
        assert_eq!(
            serde_json::from_str::<StepId>(r#"[["a"], ["b"]]"#).unwrap(),
            serde_json::from_str::<StepId>(r#"[["a"],"b"]"#).unwrap()
        );
        for bad in [
            "\"a\u{85}\"",
            "\"\"",
            "[]",
            "1",
            "null",
            "[1]",
            "[\"a\",[\"b\"]]",
            "\"a\\u0000\"",
            "{}",
        ] {
            assert!(serde_json::from_str::<StepId>(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_step_id_is_spelled_as_json(
            parts in proptest::collection::vec("[a-z\"\\\\é ,\\[\\]]{1,20}", 1..4),
        ) {
            let json = match parts.as_slice() {
                [only] => serde_json::to_string(only),
                _ => serde_json::to_string(&parts),
            };
            let id = StepId::from_parts(&parts).unwrap();
            proptest::prop_assert_eq!(id.text(), json.unwrap());
            let read: StepId = serde_json::from_str(id.text()).unwrap();
            proptest::prop_assert_eq!(read, id);
        }
    }
}
