//! Digests of meaning: equal when two values mean the same, however they were written.
//!
//! RFC 8785 is used here and only here. It knows no integers past 2^53, so those become decimal
//! strings; bodies are stored as written and never pass through this module.

use serde::Serialize;
use serde_json::Value;

use crate::event::{Body, Event, Resolution, StepResolved, TerminalStatus, WaitEnded, WaitOutcome};
use crate::id::{RunId, StepId};
use crate::{Digest, Json, Payload};

/// The canonical text of a value (RFC 8785).
pub fn canonical(value: &Value) -> Result<String, serde_json::Error> {
    serde_json_canonicalizer::to_string(&with_safe_integers(value))
}

/// The digest of a value's meaning.
pub fn digest_of<T: Serialize + ?Sized>(value: &T) -> Result<Digest, serde_json::Error> {
    Ok(Digest::of(
        canonical(&serde_json::to_value(value)?)?.as_bytes(),
    ))
}

/// The digest of a recorded value's meaning.
pub fn digest_of_json(json: &Json) -> Digest {
    if is_canonical(json.text()) {
        return Digest::of(json.text().as_bytes());
    }
    // A number outside of what a double can hold has no canonical form; its own text is its meaning.
    serde_json::from_str::<Value>(json.text())
        .and_then(|value| canonical(&value))
        .map(|text| Digest::of(text.as_bytes()))
        .unwrap_or_else(|_| Digest::of(json.text().as_bytes()))
}

/// Whether a text is surely canonical: no blanks, no escapes, no fractions, sorted ASCII keys. One
/// pass without an allocation, because it is asked for every result that is appended; what it does not
/// recognise goes through the canonicalizer.
fn is_canonical(text: &str) -> bool {
    let mut rest = text.as_bytes();
    skip_canonical(&mut rest, 0).is_some() && rest.is_empty()
}

/// Skips one canonical value; `None` when it may not be one.
fn skip_canonical(rest: &mut &[u8], depth: u8) -> Option<()> {
    const DEPTH_MAX: u8 = 32;
    match rest.first()? {
        b'"' => skip_string(rest).map(drop),
        b'[' if depth < DEPTH_MAX => skip_list(rest, b']', |rest| skip_canonical(rest, depth + 1)),
        b'{' if depth < DEPTH_MAX => {
            let mut last: Option<&[u8]> = None;
            skip_list(rest, b'}', |rest| {
                let key = skip_string(rest)?;
                // RFC 8785 sorts by UTF-16 units, which is the order of bytes for ASCII only.
                if !key.is_ascii() || last.is_some_and(|last| last >= key) {
                    return None;
                }
                last = Some(key);
                *rest = rest.strip_prefix(b":")?;
                skip_canonical(rest, depth + 1)
            })
        }
        b'-' | b'0'..=b'9' => {
            let digits = rest.strip_prefix(b"-").unwrap_or(rest);
            let length = digits
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            let is_zero = digits.first() == Some(&b'0');
            let plain_zero = is_zero && length == 1 && digits.len() == rest.len();
            if !(1..=15).contains(&length) || (is_zero && !plain_zero) {
                return None;
            }
            *rest = &digits[length..];
            (!matches!(rest.first(), Some(b'.' | b'e' | b'E'))).then_some(())
        }
        _ => {
            let constants: [&[u8]; 3] = [b"null", b"true", b"false"];
            *rest = constants
                .iter()
                .find_map(|constant| rest.strip_prefix(*constant))?;
            Some(())
        }
    }
}

/// Skips a bracketed list of items, without blanks.
fn skip_list<'a>(
    rest: &mut &'a [u8],
    close: u8,
    mut item: impl FnMut(&mut &'a [u8]) -> Option<()>,
) -> Option<()> {
    *rest = &rest[1..];
    if rest.first()? == &close {
        *rest = &rest[1..];
        return Some(());
    }
    loop {
        item(rest)?;
        let (next, after) = rest.split_first()?;
        *rest = after;
        match next {
            b',' => {}
            next if *next == close => return Some(()),
            _ => return None,
        }
    }
}

/// How many bytes of a string are looked at at once.
const PIECE: usize = 32;

/// Skips a string without escapes and gives what is between its quotes.
fn skip_string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let inside = rest.strip_prefix(b"\"")?;
    let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | ..0x20);
    // Without an early end in a piece the compiler looks at all of it at once.
    let is_plain = |piece: &&[u8]| !piece.iter().fold(false, |any, byte| any | is_special(byte));
    let plain = inside.chunks_exact(PIECE).take_while(is_plain).count() * PIECE;
    let end = plain + inside[plain..].iter().position(is_special)?;
    let (text, after) = inside.split_at(end);
    *rest = after.strip_prefix(b"\"")?;
    Some(text)
}

fn digest_of_payload(payload: &Payload) -> Digest {
    match payload {
        Payload::Inline(json) => digest_of_json(json),
        Payload::Blob(reference) => reference.blob,
    }
}

const MAX_SAFE_INTEGER: u64 = 1 << 53;

fn with_safe_integers(value: &Value) -> Value {
    match value {
        Value::Number(number) => {
            let unsafe_integer = number.as_u64().is_some_and(|n| n > MAX_SAFE_INTEGER)
                || number
                    .as_i64()
                    .is_some_and(|n| n.unsigned_abs() > MAX_SAFE_INTEGER);
            if unsafe_integer {
                Value::String(number.to_string())
            } else {
                value.clone()
            }
        }
        Value::Array(items) => Value::Array(items.iter().map(with_safe_integers).collect()),
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(key, value)| (key.clone(), with_safe_integers(value)))
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

/// An idempotency key: computed, never drawn, so that it is the same over attempts and epochs and
/// different in a fork.
pub fn effect_key(run: &RunId, id: &str, input_digest: Option<&Digest>) -> Digest {
    let input = input_digest.map(Digest::to_string);
    let text = serde_json::json!([run.to_string(), id, input]).to_string();
    Digest::of(text.as_bytes())
}

/// The results of finished steps and children and the answers that steps waited for, whatever the order
/// in which they came.
///
/// It is the sum of one digest per result, kept beside the head of the log by whoever appends. So a
/// command that has only the row (a cancel) can write the digest of the final state, and a fold need
/// not hash every output again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResultSet([u64; 4]);

impl ResultSet {
    /// What one fact adds: its result, or nothing.
    pub fn of(body: &Body) -> Self {
        match body {
            Body::StepFinished(finished) => Self::step(&finished.step, &finished.output),
            Body::StepResolved(StepResolved {
                step,
                resolution: Resolution::Returned(output),
                ..
            }) => Self::step(step, output),
            // A child that failed is an attempt; what became of the step says the rest.
            Body::ChildFinished(child) if child.status == TerminalStatus::Completed => {
                Self::one("child", &child.step, &child.final_state_digest)
            }
            Body::WaitEnded(ended) => Self::answer(ended),
            _ => Self::default(),
        }
    }

    /// What some facts of a log add; late ones add nothing.
    pub fn of_events<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let counted = events.into_iter().filter(|event| !event.late);
        counted.fold(Self::default(), |sum, event| {
            sum.plus(Self::of(&event.body))
        })
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let mut lanes = self.0;
        for (lane, other) in lanes.iter_mut().zip(other.0) {
            *lane = lane.wrapping_add(other);
        }
        Self(lanes)
    }

    /// Without `other`: what a fork forgets is no result of it.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let mut lanes = self.0;
        for (lane, other) in lanes.iter_mut().zip(other.0) {
            *lane = lane.wrapping_sub(other);
        }
        Self(lanes)
    }

    fn step(step: &StepId, output: &Payload) -> Self {
        Self::one("step", step, &digest_of_payload(output))
    }

    /// What a step that waited got: yes or no, and the value. Who said it is an id, and that time passed
    /// or a child ended says nothing that is not said elsewhere.
    fn answer(ended: &WaitEnded) -> Self {
        let said = match ended.outcome {
            WaitOutcome::Answered | WaitOutcome::Signalled | WaitOutcome::TimedOut => true,
            WaitOutcome::Elapsed
            | WaitOutcome::Resumed
            | WaitOutcome::Resolved
            | WaitOutcome::Raised
            | WaitOutcome::Finished => false,
        };
        match &ended.step {
            Some(step) if said => {
                let what = match ended.approved {
                    None => "wait",
                    Some(true) => "approved",
                    Some(false) => "denied",
                };
                Self::one(what, step, &digest_of_payload(&ended.value))
            }
            Some(_) | None => Self::default(),
        }
    }

    fn one(what: &str, step: &StepId, digest: &Digest) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(what.as_bytes())
            .update(b"\0")
            .update(step.canonical().as_bytes());
        hasher.update(b"\0").update(digest.as_bytes());
        let mut lanes = [0; 4];
        for (lane, bytes) in lanes
            .iter_mut()
            .zip(hasher.finalize().as_bytes().chunks_exact(8))
        {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            *lane = u64::from_le_bytes(word);
        }
        Self(lanes)
    }

    /// The sum as text, in the digest of a final state.
    pub(crate) fn to_hex(self) -> String {
        let [a, b, c, d] = self.0;
        format!("{a:016x}{b:016x}{c:016x}{d:016x}")
    }

    /// The sum as it is stored.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (place, lane) in bytes.chunks_exact_mut(8).zip(self.0) {
            place.copy_from_slice(&lane.to_be_bytes());
        }
        bytes
    }

    /// The sum as it was stored.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let mut lanes = [0; 4];
        for (lane, bytes) in lanes.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            *lane = u64::from_be_bytes(word);
        }
        Self(lanes)
    }
}

/// What the digest of a final state covers: no ids, times, usage, attempts, seq or late facts.
#[derive(Serialize)]
pub(crate) struct FinalState<'a> {
    pub status: TerminalStatus,
    pub output: Option<Value>,
    pub cause: Option<&'a str>,
    pub state: &'a Value,
    pub results: String,
    pub verification: Option<&'a crate::event::Verification>,
}

impl FinalState<'_> {
    pub(crate) fn digest(&self) -> Digest {
        digest_of(self).expect("a final state is made of JSON values")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn meaning_ignores_spelling_and_keeps_large_integers_apart() {
        let digest = |text: &str| digest_of_json(&Json::parse(text).unwrap());
        assert_eq!(
            digest(r#"{"a":1,"b":[1.0]}"#),
            digest(r#"{ "b": [1], "a": 1 }"#)
        );
        assert_ne!(digest("9007199254740993"), digest("9007199254740992"));
        assert_ne!(
            digest("18446744073709551615"),
            digest("18446744073709551614")
        );
        assert_ne!(digest("null"), digest("{}"));
    }

    #[test]
    fn results_do_not_depend_on_their_order_or_spelling() {
        let finished = |(name, output): &(&str, &str)| {
            ResultSet::of(&Body::StepFinished(crate::event::StepFinished {
                attempt: 1,
                effect: crate::event::Effect::Read,
                input_digest: None,
                output: Payload::Inline(Json::parse(*output).unwrap()),
                started_at: None,
                step: StepId::from_parts([name]).unwrap(),
            }))
        };
        let sum = |results: &[(&str, &str)]| {
            results
                .iter()
                .map(finished)
                .fold(ResultSet::default(), ResultSet::plus)
        };
        assert_eq!(
            sum(&[("a", "1"), ("b", "2")]),
            sum(&[("b", "2"), ("a", "1")])
        );
        assert_eq!(
            sum(&[("a", r#"{"x":1,"y":2}"#)]),
            sum(&[("a", r#"{"y": 2, "x": 1.0}"#)])
        );
        assert_ne!(
            sum(&[("a", "1"), ("b", "2")]),
            sum(&[("a", "2"), ("b", "1")])
        );
        assert_ne!(sum(&[("a", "1")]), sum(&[]));
        assert_eq!(
            sum(&[("a", "1"), ("b", "2")]).minus(sum(&[("a", "1")])),
            sum(&[("b", "2")])
        );
        let set = sum(&[("a", "1")]);
        assert_eq!(ResultSet::from_bytes(set.to_bytes()), set);
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1000..1000i64).prop_map(Value::from),
            (-1e6..1e6f64).prop_map(Value::from),
            "[a-d\"\\\\\u{0}-\u{1f}é]{0,6}".prop_map(Value::from),
            // Longer than what is looked at at once.
            "[a-z]{0,70}[\"\\\\\u{0}-\u{1f}é]?[a-z]{0,40}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec(("[a-cé]{0,2}", inner), 0..4)
                    .prop_map(|fields| fields.into_iter().collect::<Value>()),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_text_that_is_taken_for_canonical_is(value in json()) {
            for text in [value.to_string(), canonical(&value).unwrap()] {
                if is_canonical(&text) {
                    let back: Value = serde_json::from_str(&text).unwrap();
                    prop_assert_eq!(canonical(&back).unwrap(), text);
                }
            }
        }
    }

    #[test]
    fn usual_results_are_recognised_as_canonical() {
        let yes = [
            "null",
            "true",
            "0",
            "-7",
            "123456789012345",
            "\"é b\"",
            "\"as long as what is looked at at once, and then some more of it\"",
            "[]",
            "{}",
            "[1,[2],{}]",
            r#"{"a":1,"b":{"c":"d"},"e":[null,false]}"#,
        ];
        let no = [
            "-0",
            "01",
            "1.0",
            "1e3",
            "9007199254740993",
            "[1, 2]",
            "[1,]",
            "{\"b\":1,\"a\":2}",
            "{\"a\":1,\"a\":2}",
            r#""\n""#,
            r#""as long as what is looked at at once, and then\n""#,
            "{\"é\":1}",
            "nul",
            "[1",
            "\"a",
            "",
        ];
        assert!(yes.into_iter().all(is_canonical));
        for text in no {
            assert!(!is_canonical(text), "{text}");
        }
    }

    #[test]
    fn keys_are_the_same_for_the_same_call_and_different_in_a_fork() {
        let run = |n| RunId::from_bytes([n; 16]);
        let key = |n, id| effect_key(&run(n), id, None);
        assert_eq!(key(1, r#"["pay"]"#), key(1, r#"["pay"]"#));
        assert_ne!(key(1, r#"["pay"]"#), key(2, r#"["pay"]"#));
        assert_ne!(key(1, r#"["pay"]"#), key(1, r#"["pay","x"]"#));
    }
}
