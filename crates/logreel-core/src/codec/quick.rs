//! The most common body, written and read by hand. A long log is nearly all `step.finished`, and looking for its
//! keys one by one took longer than everything else about it. What is not spelled as [`encode_body`]
//! spells it is left to serde, which reads every spelling, and whose own is the one written here.
//!
//! [`encode_body`]: super::encode_body

use serde::Deserialize as _;
use serde_json::value::RawValue;

use crate::chain::push_number;
use crate::event::{Effect, StepFinished};
use crate::{Digest, Payload, StepId, Timestamp};

/// The body's text, as serde would write it; `None` when its output is elsewhere.
pub(super) fn write(body: &StepFinished) -> Option<String> {
    let (output, step) = (body.output.inline()?.text(), body.step.text());
    let mut text = String::with_capacity(AROUND_BYTES_MAX + output.len() + step.len());
    text.push_str(r#"{"attempt":"#);
    push_number(&mut text, body.attempt.into());
    text.push_str(r#","effect":""#);
    text.push_str(body.effect.as_str());
    text.push_str(r#"","input_digest":"#);
    push_or_null(&mut text, body.input_digest, |digest, text| {
        digest.push_to(text);
    });
    text.push_str(r#","output":"#);
    text.push_str(output);
    text.push_str(r#","started_at":"#);
    push_or_null(&mut text, body.started_at, Timestamp::push_to);
    text.push_str(r#","step":"#);
    text.push_str(step);
    text.push('}');
    Some(text)
}

/// How long all but the output and the step can be.
const AROUND_BYTES_MAX: usize = 256;

fn push_or_null<T>(text: &mut String, value: Option<T>, push: impl FnOnce(T, &mut String)) {
    match value {
        Some(value) => {
            text.push('"');
            push(value, text);
            text.push('"');
        }
        None => text.push_str("null"),
    }
}

/// The body, if it is surely what serde would read.
pub(super) fn step_finished(text: &str) -> Option<StepFinished> {
    let rest = text.strip_prefix(r#"{"attempt":"#)?;
    let (attempt, rest) = number(rest)?;
    let rest = rest.strip_prefix(r#","effect":""#)?;
    let (effect, rest) = effect(rest)?;
    let rest = rest.strip_prefix(r#"","input_digest":"#)?;
    let (input_digest, rest) = or_null(rest, DIGEST_BYTES, |text| text.parse::<Digest>().ok())?;
    let rest = rest.strip_prefix(r#","output":"#)?;
    let (output, rest) = value(rest)?;
    let rest = rest.strip_prefix(r#","started_at":"#)?;
    let (started_at, rest) = or_null(rest, TIME_BYTES, |text| text.parse().ok())?;
    let rest = rest.strip_prefix(r#","step":"#)?;
    let step = StepId::from_short(rest.strip_suffix('}')?)?;
    Some(StepFinished {
        attempt,
        effect,
        input_digest,
        output: Payload::read(output),
        started_at,
        step,
    })
}

const DIGEST_BYTES: usize = "blake3:".len() + 64;
const TIME_BYTES: usize = "2026-01-31T12:00:00.000000Z".len();

/// A number of a few digits and what follows it.
fn number(text: &str) -> Option<(u32, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at_checked(digits)?;
    let has_one_spelling = digits == 1 || !number.starts_with('0');
    let number = number.parse().ok().filter(|_| has_one_spelling)?;
    Some((number, rest))
}

fn effect(text: &str) -> Option<(Effect, &str)> {
    [Effect::Idempotent, Effect::Read, Effect::Write]
        .into_iter()
        .find_map(|effect| Some((effect, text.strip_prefix(effect.as_str())?)))
}

/// `null`, or a string of this length without escapes.
fn or_null<T>(
    text: &str,
    length: usize,
    read: impl FnOnce(&str) -> Option<T>,
) -> Option<(Option<T>, &str)> {
    if let Some(rest) = text.strip_prefix("null") {
        return Some((None, rest));
    }
    let (inside, rest) = text.strip_prefix('"')?.split_at_checked(length)?;
    Some((Some(read(inside)?), rest.strip_prefix('"')?))
}

/// The value that the text begins with.
fn value(text: &str) -> Option<(&RawValue, &str)> {
    if text.starts_with(|first: char| first.is_ascii_whitespace()) {
        return None;
    }
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = <&RawValue>::deserialize(&mut parser).ok()?;
    Some((value, text.get(value.get().len()..)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Json;

    fn finished() -> impl Strategy<Value = StepFinished> {
        let output = prop_oneof![
            Just("null".to_owned()),
            Just(r#"{"n":1,"text":"the \"quick\" fox"}"#.to_owned()),
            Just(r#"[1,2.5,"é",{"started_at":null,"step":"x"}]"#.to_owned()),
            Just(format!(
                r#"{{"blob":"{}","bytes":70002,"media_type":"application/json"}}"#,
                Digest([7; 32])
            )),
            "[ -~]{0,40}".prop_map(|text| serde_json::Value::from(text).to_string()),
        ];
        let effect = prop_oneof![
            Just(Effect::Read),
            Just(Effect::Idempotent),
            Just(Effect::Write)
        ];
        let step = proptest::collection::vec("[a-z0-9é\"\\\\ ,]{1,9}", 1..4);
        let digest = proptest::option::of(any::<[u8; 32]>());
        let time = proptest::option::of(0..4_000_000_000_000_000i64);
        (any::<u32>(), effect, digest, output, time, step).prop_map(
            |(attempt, effect, digest, output, time, step)| StepFinished {
                attempt,
                effect,
                input_digest: digest.map(Digest),
                output: serde_json::from_str(Json::parse(output).unwrap().text()).unwrap(),
                started_at: time.map(Timestamp::from_micros),
                step: StepId::from_parts(step).unwrap(),
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_by_hand_is_what_serde_writes(body in finished()) {
            let in_place = body.output.inline().is_some();
            let text = in_place.then(|| serde_json::to_string(&body).unwrap());
            prop_assert_eq!(write(&body), text);
        }

        #[test]
        fn what_is_read_by_hand_is_what_serde_reads(
            body in finished(),
            edits in proptest::collection::vec((any::<prop::sample::Index>(), "[\\x00-\\x7fé]{0,2}", 0..3usize), 0..3),
        ) {
            let mut text = serde_json::to_string(&body).unwrap();
            if StepId::from_short(&serde_json::to_string(&body.step).unwrap()).is_some() {
                prop_assert_eq!(step_finished(&text), Some(body));
            }
            for (at, put, take) in edits {
                let mut chars: Vec<char> = text.chars().collect();
                let at = at.index(chars.len() + 1);
                let until = (at + take).min(chars.len());
                chars.splice(at..until, put.chars());
                text = chars.into_iter().collect();
            }
            if let Some(quick) = step_finished(&text) {
                let slow: StepFinished = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(quick, slow, "{}", text);
            }
        }
    }
}
