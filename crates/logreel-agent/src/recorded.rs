//! What a recorded program prints, on its way into the log: bytes that come in any pieces become
//! `output.written` facts of text, or of base64 where they are none, without secrets.
//!
//! What was printed must be in the log soon, so only what may be the beginning of a secret is held
//! back. What was given out before is remembered, so that a name at the end of one piece still says
//! what the next one begins with.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use logreel::core::event::OutputWritten;
use regex::Regex;

use crate::redact::Redactor;

/// The most that one fact holds.
pub const WRITTEN_BYTES_MAX: usize = 32 * 1024;
/// How far back a secret that is not over is looked for.
const LOOK_BACK: usize = 4096;
/// The most that is held back.
const HELD_BYTES_MAX: usize = 64 * 1024;
/// How much of what was given out is remembered.
const REMEMBERED: usize = 256;

/// Less of a known value tells nothing, and would hold back the end of many a prompt.
const BEGUN_BYTES_MIN: usize = 3;

/// A secret of which the beginning is there.
static BEGUN: LazyLock<Regex> = LazyLock::new(|| {
    let begun = [
        r#"(?i:authorization)\\?["']?\s*[:=]\s*\\?["']?(?i:bearer|basic|token)\s+[^\s"'\\]*\z"#,
        r#"(?i:password|passwd|passphrase|secret|key|token|credentials?)\\?["']?\s*(?:=>|:=|[:=])\s*\\?["']?[^\s"'\\]+\z"#,
        r"(?-u:\b)(?:sk-|gh[pousr]_|github_pat_|glpat-|AKIA|ASIA|xox[abeprs]-|AIza|[srp]k_(?:live|test)_|eyJ)[A-Za-z0-9_.-]*\z",
        // Before the colon it is a host or a name, and those are told.
        r"(?-u:\b)[a-z][a-z0-9+.-]*://[^\s/:@]*:[^\s/]*\z",
    ];
    Regex::new(&begun.join("|")).expect("it is one")
});
const PEM_BEGIN: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";

/// One stream of a program.
pub struct RecordedText {
    stream: &'static str,
    redactor: Redactor,
    held: Vec<u8>,
    given: String,
}

impl RecordedText {
    /// A stream of this name.
    pub fn new(stream: &'static str, redactor: Redactor) -> Self {
        Self {
            stream,
            redactor,
            held: Vec::new(),
            given: String::new(),
        }
    }

    /// Bytes came; gives what can be recorded now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<OutputWritten> {
        self.held.extend_from_slice(bytes);
        let sure = match self.held.len() > HELD_BYTES_MAX + bytes.len() {
            true => whole_characters(&self.held),
            false => self.sure(),
        };
        let rest = self.held.split_off(sure);
        let sure = std::mem::replace(&mut self.held, rest);
        self.record(&sure)
    }

    /// Nothing more comes; gives the rest.
    pub fn finish(&mut self) -> Vec<OutputWritten> {
        let rest = std::mem::take(&mut self.held);
        self.record(&rest)
    }

    /// How many of the held bytes cannot be part of a secret that is not over.
    fn sure(&self) -> usize {
        let whole = whole_characters(&self.held);
        let from = whole.saturating_sub(LOOK_BACK);
        let Some((from, tail)) = text_from(&self.held[..whole], from) else {
            return whole;
        };
        // Its first letters may have been given out: a piece can end anywhere.
        let given = if from == 0 { self.given.as_str() } else { "" };
        let seen = format!("{given}{tail}");
        let held_at = |at: usize| from + at.saturating_sub(given.len());
        let mut sure = whole;
        if let Some(begun) = BEGUN.find(&seen) {
            sure = sure.min(held_at(begun.start()));
        }
        if let Some(begun) = self.redactor.known_begun(&seen, BEGUN_BYTES_MIN) {
            sure = sure.min(held_at(begun));
        }
        // Nobody knows what patterns of one's own need to see.
        if self.redactor.has_own_patterns() {
            sure = sure.min(from + tail.rfind('\n').map_or(0, |at| at + 1));
        }
        let all = match from {
            0 => seen.as_bytes(),
            _ => &self.held[..whole],
        };
        if let Some(open) = find_last(all, PEM_BEGIN.as_bytes())
            && find_last(&all[open..], PEM_END.as_bytes()).is_none()
        {
            sure = sure.min(open.saturating_sub(given.len()));
        }
        sure
    }

    fn record(&mut self, bytes: &[u8]) -> Vec<OutputWritten> {
        if bytes.is_empty() {
            return Vec::new();
        }
        let Ok(text) = std::str::from_utf8(bytes) else {
            self.given.clear();
            return self.record_bytes(bytes);
        };
        let (text, redacted) = self.redacted(text);
        self.remember(&text);
        let mut rest = text.as_str();
        let mut facts = Vec::new();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(WRITTEN_BYTES_MAX));
            rest = after;
            facts.push(OutputWritten {
                base64: None,
                redacted: if facts.is_empty() { redacted } else { 0 },
                step: None,
                stream: self.stream.to_owned(),
                text: Some(piece.to_owned()),
            });
        }
        facts
    }

    /// The text without secrets, also one whose name or first letters were given out before.
    fn redacted(&self, text: &str) -> (String, u32) {
        let both = format!("{}{text}", self.given);
        let (without, redacted) = self.redactor.text(&both);
        if redacted == 0 {
            return (text.to_owned(), 0);
        }
        let mut same = self.given.char_indices().zip(without.chars());
        let differs = same.find(|((_, given), now)| given != now);
        let from = differs.map_or(self.given.len().min(without.len()), |((at, _), _)| at);
        (without[from..].to_owned(), redacted)
    }

    fn remember(&mut self, text: &str) {
        let from = text.ceil_char_boundary(text.len().saturating_sub(REMEMBERED));
        if from > 0 {
            self.given.clear();
        }
        self.given.push_str(&text[from..]);
        let over = self.given.len().saturating_sub(REMEMBERED);
        self.given.drain(..self.given.ceil_char_boundary(over));
    }

    /// What is no text may still hold a key that is: each byte is looked at as a character.
    fn record_bytes(&self, bytes: &[u8]) -> Vec<OutputWritten> {
        let characters: String = bytes.iter().copied().map(char::from).collect();
        let (without, redacted) = self.redactor.text(&characters);
        let without: Vec<u8> = match redacted {
            0 => bytes.to_vec(),
            // All of them came from bytes, and what takes a secret's place is ASCII.
            _ => without.chars().map(|c| c as u32 as u8).collect(),
        };
        let pieces = without.chunks(WRITTEN_BYTES_MAX).enumerate();
        let fact = |(index, piece): (usize, &[u8])| OutputWritten {
            base64: Some(STANDARD.encode(piece)),
            redacted: if index == 0 { redacted } else { 0 },
            step: None,
            stream: self.stream.to_owned(),
            text: None,
        };
        pieces.map(fact).collect()
    }
}

/// How many bytes there are without a character that is not over.
fn whole_characters(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    for at in (from..bytes.len()).rev() {
        let length = match bytes[at] {
            0b1100_0000..=0b1101_1111 => 2,
            0b1110_0000..=0b1110_1111 => 3,
            0b1111_0000..=0b1111_0111 => 4,
            0b1000_0000..=0b1011_1111 => continue,
            _ => return bytes.len(),
        };
        return if bytes.len() - at < length {
            at
        } else {
            bytes.len()
        };
    }
    bytes.len()
}

/// The text from about here to the end, and where it begins; `None` when it is none.
fn text_from(bytes: &[u8], from: usize) -> Option<(usize, &str)> {
    let begins =
        (from..bytes.len().min(from + 4)).find(|at| bytes[*at] & 0b1100_0000 != 0b1000_0000);
    let from = begins.unwrap_or(from);
    Some((from, std::str::from_utf8(&bytes[from..]).ok()?))
}

fn find_last(bytes: &[u8], what: &[u8]) -> Option<usize> {
    // What it begins with is rare, and its last byte rarer still.
    let mut end = bytes.len();
    while let Some(at) = bytes[..end].iter().rposition(|byte| *byte == what[0]) {
        if bytes[at..].starts_with(what) {
            return Some(at);
        }
        end = at;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::redact::REDACTED;

    static REDACTOR: LazyLock<Redactor> =
        LazyLock::new(|| Redactor::new(&[], Vec::<String>::new()).unwrap());

    /// What no shape gives away.
    const KNOWN: &str = "hunter2&hunter2";

    static KNOWING: LazyLock<Redactor> = LazyLock::new(|| Redactor::new(&[], [KNOWN]).unwrap());

    fn stream() -> RecordedText {
        RecordedText::new("stdout", REDACTOR.clone())
    }

    /// Not written out: nobody shall take it for one.
    fn key() -> String {
        format!("sk-ant-{}", "a1B2c3D4e5F6g7H8i9J0")
    }

    fn bytes_of(facts: &[OutputWritten]) -> Vec<u8> {
        let bytes = facts
            .iter()
            .flat_map(|fact| match (&fact.text, &fact.base64) {
                (Some(text), None) => text.clone().into_bytes(),
                (None, Some(base64)) => STANDARD.decode(base64).unwrap(),
                other => panic!("{other:?}"),
            });
        bytes.collect()
    }

    fn of_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<OutputWritten> {
        let mut stream = stream();
        let mut facts = Vec::new();
        for piece in pieces {
            facts.extend(stream.push(piece));
        }
        facts.extend(stream.finish());
        facts
    }

    #[test]
    fn a_secret_is_gone_wherever_it_is_cut() {
        let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl";
        let key = &key();
        let pem =
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----";
        let texts = [
            (format!("the key is {key} as you see\n"), key.as_str()),
            (format!("token {jwt}\nnext"), jwt),
            ("export API_KEY=abc123def456\n".to_owned(), "123def456"),
            (
                "Authorization: Bearer abcdef123456\n".to_owned(),
                "def123456",
            ),
            (
                "git clone https://ada:hunter22@example.invalid/x\n".to_owned(),
                "hunter22",
            ),
            (format!("{pem}\nafter\n"), "MIIEowIBAAKCAQEA"),
        ];
        for (text, secret) in &texts {
            for cut in 0..=text.len() {
                let (one, two) = text.as_bytes().split_at(cut);
                let facts = of_pieces([one, two]);
                let recorded = String::from_utf8(bytes_of(&facts)).unwrap();
                assert!(!recorded.contains(secret), "cut at {cut}: {recorded}");
                assert!(recorded.contains(REDACTED), "cut at {cut}: {recorded}");
                assert!(facts.iter().map(|it| it.redacted).sum::<u32>() > 0);
            }
            let single = text.as_bytes().chunks(1);
            let recorded = String::from_utf8(bytes_of(&of_pieces(single))).unwrap();
            assert!(!recorded.contains(secret), "byte by byte: {recorded}");
        }
    }

    #[test]
    fn a_known_value_is_gone_wherever_it_is_cut() {
        let text = format!("it is {KNOWN}, as you see\n");
        for cut in 0..=text.len() {
            let mut stream = RecordedText::new("stdout", KNOWING.clone());
            let (one, two) = text.as_bytes().split_at(cut);
            let mut facts = stream.push(one);
            facts.extend(stream.push(two));
            facts.extend(stream.finish());
            let recorded = String::from_utf8(bytes_of(&facts)).unwrap();
            let leaked = &KNOWN[..BEGUN_BYTES_MIN];
            assert!(!recorded.contains(leaked), "cut at {cut}: {recorded}");
            assert!(recorded.contains(REDACTED), "cut at {cut}: {recorded}");
        }
    }

    #[test]
    fn what_is_no_beginning_of_a_secret_is_given_out_at_once() {
        for text in [
            "Password: ",
            "hello",
            "50%",
            "$ ",
            "Continue? [y/N]",
            "a\r",
            "Open https://example.com",
        ] {
            let mut stream = stream();
            let facts = stream.push(text.as_bytes());
            assert_eq!(bytes_of(&facts), text.as_bytes());
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_base64_and_keep_no_key_either() {
        let mut bytes = [&b"\xff\xfe key "[..], key().as_bytes(), b" \x80\x00"].concat();
        let facts = of_pieces([&*bytes]);
        assert!(facts[0].text.is_none());
        let recorded = bytes_of(&facts);
        assert_eq!(recorded, b"\xff\xfe key [redacted] \x80\x00");
        bytes.truncate(2);
        assert_eq!(bytes_of(&of_pieces([&*bytes])), bytes);
        // A character that is cut is none of them.
        let facts = of_pieces([
            "日本".as_bytes()[..4].as_ref(),
            "日本".as_bytes()[4..].as_ref(),
        ]);
        assert!(facts.iter().all(|fact| fact.base64.is_none()), "{facts:?}");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_changed_whatever_the_pieces(
            text in "[a-z \n:/=日]{0,300}",
            noise in proptest::collection::vec(any::<u8>(), 0..20),
            cuts in proptest::collection::vec(1_usize..40, 1..40),
        ) {
            let mut bytes = text.into_bytes();
            bytes.extend(noise);
            let mut pieces = Vec::new();
            let mut rest = &*bytes;
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            let facts = of_pieces(pieces);
            prop_assume!(facts.iter().all(|fact| fact.redacted == 0));
            prop_assert_eq!(bytes_of(&facts), bytes);
        }
    }
}
