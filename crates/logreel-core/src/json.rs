//! JSON values as they travel: kept as the text that was written, moved to blobs when large.
//!
//! A value's text is what the log stores and hashes, so it is never parsed and printed again on the
//! way; whoever wants a typed value decodes it from the recorded bytes.

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::Digest;

/// A value longer than this is stored as a blob. Fixed by the log format: it decides what is hashed.
pub const INLINE_MAX: usize = 64 * 1024;

/// A JSON value as written, on one line. Cheap to clone; equal when the texts are equal.
///
/// Line ends between tokens become blanks when the value comes in, which no reader of JSON can tell: so
/// a body is one line wherever lines are counted, and its bytes need no second spelling there.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub struct Json(Arc<RawValue>);

impl Json {
    /// Writes a value.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        Self::on_one_line(serde_json::value::to_raw_value(value)?)
    }

    fn on_one_line(value: Box<RawValue>) -> Result<Self, serde_json::Error> {
        // Looks at every byte on purpose: without an early end the compiler looks at many at once, and as good
        // as no value has what is looked for.
        let bytes = value.get().as_bytes().iter();
        let has_line_end = bytes.fold(false, |found, byte| {
            found | (*byte == b'\n') | (*byte == b'\r')
        });
        // Inside a string they are escaped, so whatever is found stands between tokens.
        if !has_line_end {
            return Ok(Self(Arc::from(value)));
        }
        let text = value.get().replace(['\n', '\r'], " ");
        Ok(Self(Arc::from(RawValue::from_string(text)?)))
    }

    /// Takes a JSON text over as it is, but for line ends, after checking that it is one.
    pub fn parse(text: impl Into<String>) -> Result<Self, serde_json::Error> {
        Self::on_one_line(RawValue::from_string(text.into())?)
    }

    /// `null`.
    pub fn null() -> Self {
        static NULL: LazyLock<Json> = LazyLock::new(|| Json(Arc::from(RawValue::NULL.to_owned())));
        NULL.clone()
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        self.text() == "null"
    }

    /// The text as written.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Decodes the recorded text.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.text())
    }

    /// The value as a tree. A text that no tree can hold (a number past every double, nesting past
    /// 127 levels) comes as a string: values come from outside, and reading one must not panic.
    pub fn to_value(&self) -> serde_json::Value {
        self.decode()
            .unwrap_or_else(|_| serde_json::Value::String(self.text().to_owned()))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Box::<RawValue>::deserialize(deserializer)?;
        Self::on_one_line(value).map_err(serde::de::Error::custom)
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Json {}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Self {
        Self::of(&value).expect("a JSON tree always serializes")
    }
}

/// Where a large value is: the digest of its bytes, their number and what they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlobRef {
    /// The plain BLAKE3 digest of the bytes.
    pub blob: Digest,
    /// How many bytes.
    pub bytes: u64,
    /// `application/json` for a value that was moved out of a body.
    pub media_type: String,
}

/// Bytes to store beside the events that refer to them.
#[derive(Clone, PartialEq, Eq)]
pub struct Blob {
    digest: Digest,
    bytes: Arc<[u8]>,
}

impl Blob {
    /// Content-addresses some bytes.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        Self {
            digest: Digest::of(&bytes),
            bytes,
        }
    }

    /// The address.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The content.
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({}, {} bytes)", self.digest, self.bytes.len())
    }
}

/// A value in a body: the value itself, or where it is.
///
/// A value that looks like a reference is always moved to a blob, so that a reference in a body can
/// only be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// The value.
    Inline(Json),
    /// The value is in a blob.
    Blob(BlobRef),
}

impl Payload {
    /// `null`.
    pub fn null() -> Self {
        Self::Inline(Json::null())
    }

    /// Takes a value; a large one comes back with the blob that must be stored beside it.
    pub fn of(json: Json) -> (Self, Option<Blob>) {
        if json.text().len() <= INLINE_MAX && as_reference(json.text()).is_none() {
            return (Self::Inline(json), None);
        }
        let blob = Blob::new(json.text().as_bytes());
        let reference = BlobRef {
            blob: blob.digest(),
            bytes: blob.bytes().len() as u64,
            media_type: "application/json".to_owned(),
        };
        (Self::Blob(reference), Some(blob))
    }

    /// Whether this is an inline `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Inline(json) if json.is_null())
    }

    /// The value when it is inline.
    pub fn inline(&self) -> Option<&Json> {
        match self {
            Self::Inline(json) => Some(json),
            Self::Blob(_) => None,
        }
    }

    /// What stands in a body.
    pub(crate) fn read(raw: &RawValue) -> Self {
        match as_reference(raw.get()) {
            Some(reference) => Self::Blob(reference),
            None => Self::Inline(Json(Arc::from(raw.to_owned()))),
        }
    }

    /// What a body holds: the value or the reference.
    pub fn to_json(&self) -> Json {
        match self {
            Self::Inline(json) => json.clone(),
            Self::Blob(reference) => Json::of(reference).expect("a reference always serializes"),
        }
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::null()
    }
}

/// Cheap for other values, on the path of every fold: only `blob`, `bytes` and `media_type`, perhaps
/// escaped, can be the first key of a reference.
fn as_reference(text: &str) -> Option<BlobRef> {
    let first_key = text.strip_prefix('{')?.trim_start().strip_prefix('"')?;
    first_key
        .starts_with(['b', 'm', '\\'])
        .then(|| serde_json::from_str(text).ok())
        .flatten()
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Inline(json) => json.serialize(serializer),
            Self::Blob(reference) => reference.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Json::deserialize(deserializer)?;
        Ok(match as_reference(json.text()) {
            Some(reference) => Self::Blob(reference),
            None => Self::Inline(json),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_kept_as_written() {
        let text = r#"{"b":1.0,"a":18446744073709551615, "b":2}"#;
        assert_eq!(Json::parse(text).unwrap().text(), text);
    }

    #[test]
    fn a_value_of_several_lines_becomes_one_line_with_the_same_meaning() {
        let text = "{\n  \"a\": [1,\r\n 2],\n \"b\": \"x\\ny\"}";
        let json = Json::parse(text).unwrap();
        assert_eq!(json.text(), "{   \"a\": [1,   2],  \"b\": \"x\\ny\"}");
        assert_eq!(serde_json::from_str::<Json>(text).unwrap(), json);
        let (one, other): (serde_json::Value, serde_json::Value) =
            (json.decode().unwrap(), serde_json::from_str(text).unwrap());
        assert_eq!(one, other);
    }

    #[test]
    fn a_large_value_and_one_that_looks_like_a_reference_go_to_blobs() {
        let (small, none) = Payload::of(Json::of("x").unwrap());
        assert!(matches!(small, Payload::Inline(_)) && none.is_none());
        let (large, blob) = Payload::of(Json::of(&"x".repeat(INLINE_MAX)).unwrap());
        let Payload::Blob(reference) = &large else {
            panic!("{large:?}")
        };
        assert_eq!(reference.blob, blob.unwrap().digest());
        let text = serde_json::to_string(&large).unwrap();
        assert_eq!(serde_json::from_str::<Payload>(&text).unwrap(), large);
        let (lookalike, blob) = Payload::of(Json::parse(text.clone()).unwrap());
        assert_eq!(&**blob.as_ref().unwrap().bytes(), text.as_bytes());
        assert_ne!(lookalike, large);
    }
}
