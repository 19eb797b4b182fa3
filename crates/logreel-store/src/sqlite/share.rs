//! Context nodes whose bytes are in the log already.
//!
//! What a model said is in its `model.answered`, what a tool returned in its `tool.returned`, and the
//! node that joins the conversation repeats it. Such a node is stored as what is its own, in
//! `blobs.bytes`, and where in the run's events the rest is, in `blobs.shares`: a JSON list of
//! `[at, pos, from, length]`, in order. The bytes from `at` on are those of `events.body` at `pos`, from
//! byte `from` on; a fifth `1` says that they stand there without the escapes of a JSON string. Whoever
//! reads the blob gets it whole.
//!
//! Invariant: a blob shares only with events of a run that refers to it. So whoever takes events away
//! (a delete, an erasure) looks at the blobs of that run and no others: [`keep_whole`].

use logreel_core::chain::Sealed;
use logreel_core::event::Body;
use logreel_core::{Blob, Digest};
use rusqlite::{Connection, OptionalExtension, params};

use super::failure::{Halt, damaged};

/// What is shorter is not worth saying where it is.
const SHARED_BYTES_MIN: usize = 64;
/// How far back in the run a node's text is looked for: enough for a round of tools.
const EVENTS_MAX: i64 = 128;
const BODY_BYTES_MAX: usize = 256 * 1024;

/// A blob as stored.
pub(super) struct Parts {
    /// What is its own.
    pub bytes: Vec<u8>,
    /// What is elsewhere; `None` when nothing is.
    pub shares: Option<String>,
}

/// Bytes of a blob that are in an event's body.
#[derive(Debug, Clone, PartialEq)]
struct Share {
    /// Where they are in the blob.
    at: usize,
    pos: i64,
    /// Where they are in the body, and how many.
    from: usize,
    length: usize,
    /// The blob has them as a JSON string, the body as they are.
    quoted: bool,
}

/// The bodies that nodes of one append may share with.
pub(super) struct Sources<'a> {
    conn: &'a Connection,
    /// The run.
    id: i64,
    sealed: &'a [Sealed],
    /// The place of the first of them.
    pos: i64,
    /// Those before the append, once they were needed.
    earlier: Option<Vec<(i64, String)>>,
}

impl<'a> Sources<'a> {
    /// The events of an append that have just been written from `pos` on, and those before them.
    pub fn new(conn: &'a Connection, id: i64, sealed: &'a [Sealed], pos: i64) -> Self {
        Self {
            conn,
            id,
            sealed,
            pos,
            earlier: None,
        }
    }

    /// The blob as it is stored, and the node before it when it is one.
    pub fn parts(&mut self, blob: &Blob) -> rusqlite::Result<(Parts, Option<Digest>)> {
        let whole = || Parts {
            bytes: blob.bytes().to_vec(),
            shares: None,
        };
        let node = self
            .sealed
            .iter()
            .find_map(|sealed| match &sealed.event.body {
                Body::MessageAdded(added) if added.node == blob.digest() => Some(added.previous),
                _ => None,
            });
        let (Some(previous), Ok(text)) = (node, std::str::from_utf8(blob.bytes())) else {
            return Ok((whole(), node.flatten()));
        };
        let own = (self.pos..).zip(self.sealed.iter().map(|sealed| sealed.text.as_str()));
        let mut bodies: Vec<(i64, &str)> = own.collect();
        let mut found = find(text, &bodies);
        if !found.is_complete {
            let earlier = match self.earlier.take() {
                Some(earlier) => earlier,
                None => self.load_earlier()?,
            };
            let earlier = self.earlier.insert(earlier);
            bodies.extend(earlier.iter().map(|(pos, body)| (*pos, body.as_str())));
            found = find(text, &bodies);
        }
        let body = |pos| {
            let found = bodies.iter().find(|(at, _)| *at == pos);
            Ok::<_, Halt>(found.map(|(_, body)| (*body).to_owned()))
        };
        // What cannot be read back is never written.
        let parts = match join(&found.own, &found.shares, body) {
            Ok(bytes) if !found.shares.is_empty() && bytes == **blob.bytes() => Parts {
                bytes: found.own,
                shares: Some(to_text(&found.shares)),
            },
            Ok(_) | Err(_) => whole(),
        };
        Ok((parts, previous))
    }

    /// The run's events before the append, newest first, back to the message before.
    fn load_earlier(&self) -> rusqlite::Result<Vec<(i64, String)>> {
        let Some(first) = self.sealed.first() else {
            return Ok(Vec::new());
        };
        let mut statement = self.conn.prepare_cached(
            "SELECT pos, kind, body FROM events WHERE run = ?1 AND seq < ?2 AND body IS NOT NULL
             ORDER BY seq DESC LIMIT ?3",
        )?;
        let seq = first.event.seq.0.cast_signed();
        let mut rows = statement.query(params![self.id, seq, EVENTS_MAX])?;
        let (mut bodies, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            if bytes > BODY_BYTES_MAX || row.get_ref(1)?.as_str() == Ok("message.added") {
                break;
            }
            let body: String = row.get(2)?;
            bytes += body.len();
            bodies.push((row.get(0)?, body));
        }
        Ok(bodies)
    }
}

/// The blob that is stored as these parts.
pub(super) fn read(
    conn: &Connection,
    digest: &Digest,
    bytes: Vec<u8>,
    shares: Option<&str>,
) -> Result<Vec<u8>, Halt> {
    let Some(shares) = shares else {
        return Ok(bytes);
    };
    let broken = || Halt::from(damaged(format!("the stored parts of blob {digest}")));
    let shares = from_text(shares).ok_or_else(broken)?;
    let body = |pos: i64| -> Result<Option<String>, Halt> {
        let mut statement = conn.prepare_cached("SELECT body FROM events WHERE pos = ?1")?;
        let body: Option<Option<String>> =
            statement.query_row([pos], |row| row.get(0)).optional()?;
        Ok(body.flatten())
    };
    let bytes = join(&bytes, &shares, body).map_err(|error| error.unwrap_or_else(broken))?;
    match Digest::of(&bytes) == *digest {
        true => Ok(bytes),
        false => Err(broken()),
    }
}

/// Before the events of a run go: those of these blobs that share with them get their bytes back.
pub(super) fn keep_whole(conn: &Connection, id: i64, blobs: &[Vec<u8>]) -> Result<(), Halt> {
    let mut select = conn.prepare_cached(
        "SELECT bytes, shares FROM blobs WHERE digest = ?1 AND shares IS NOT NULL",
    )?;
    let mut is_of_run =
        conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM events WHERE pos = ?1 AND run = ?2)")?;
    let mut update =
        conn.prepare_cached("UPDATE blobs SET bytes = ?2, shares = NULL WHERE digest = ?1")?;
    for stored in blobs {
        let found: Option<(Vec<u8>, String)> = select
            .query_row([stored], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((bytes, shares)) = found else {
            continue;
        };
        let digest = Digest::from_slice(stored);
        let digest = digest.ok_or_else(|| damaged("a digest of the wrong length"))?;
        let mut of_run = false;
        for share in from_text(&shares).unwrap_or_default() {
            let it_is: bool = is_of_run.query_row([share.pos, id], |row| row.get(0))?;
            of_run |= it_is;
        }
        if of_run {
            let whole = read(conn, &digest, bytes, Some(&shares))?;
            update.execute(params![stored, whole])?;
        }
    }
    Ok(())
}

struct Found {
    shares: Vec<Share>,
    /// What is left.
    own: Vec<u8>,
    /// Every text that is long enough was found.
    is_complete: bool,
}

/// Where the long strings of a JSON text are in these bodies.
fn find(text: &str, bodies: &[(i64, &str)]) -> Found {
    let (mut shares, mut own) = (Vec::new(), Vec::new());
    let (mut done, mut is_complete) = (0, true);
    for (start, end) in strings(text) {
        let start = start.max(done);
        if end < start + SHARED_BYTES_MIN {
            continue;
        }
        match share(text, start, end, done, bodies) {
            Some((share, until)) => {
                own.extend_from_slice(&text.as_bytes()[done..share.at]);
                shares.push(share);
                done = until;
            }
            None => is_complete = false,
        }
    }
    own.extend_from_slice(&text.as_bytes()[done..]);
    Found {
        shares,
        own,
        is_complete,
    }
}

/// Where the string at `start..end` is, and how far in the text that goes; not before `done`.
fn share(
    text: &str,
    start: usize,
    end: usize,
    done: usize,
    bodies: &[(i64, &str)],
) -> Option<(Share, usize)> {
    let string = text.get(start..end)?;
    let as_it_is = bodies
        .iter()
        .find_map(|(pos, body)| Some((*pos, *body, body.find(string)?)));
    if let Some((pos, body, from)) = as_it_is {
        // Often what is around the string is the same too.
        let before = text.as_bytes()[done..start].iter().rev();
        let before = before.zip(body.as_bytes()[..from].iter().rev());
        let before = before.take_while(|(one, other)| one == other).count();
        let after = text.as_bytes()[end..].iter();
        let after = after.zip(&body.as_bytes()[from + string.len()..]);
        let after = after.take_while(|(one, other)| one == other).count();
        let share = Share {
            at: start - before,
            pos,
            from: from - before,
            length: before + string.len() + after,
            quoted: false,
        };
        return Some((share, end + after));
    }
    if !string.contains('\\') {
        return None;
    }
    let plain: String = serde_json::from_str(&format!("\"{string}\"")).ok()?;
    let share = bodies.iter().find_map(|(pos, body)| {
        Some(Share {
            at: start,
            pos: *pos,
            from: body.find(&plain)?,
            length: plain.len(),
            quoted: true,
        })
    })?;
    (quoted(&plain) == string).then_some((share, end))
}

/// The strings of a JSON text, without their quotes. Of anything else they are no strings, and nothing
/// like them is found anywhere.
fn strings(text: &str) -> Vec<(usize, usize)> {
    let mut strings = Vec::new();
    let mut start = None;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match (byte, start) {
            (b'"', None) => start = Some(at + 1),
            (b'"', Some(from)) => {
                strings.push((from, at));
                start = None;
            }
            (b'\\', Some(_)) => drop(bytes.next()),
            _ => {}
        }
    }
    strings
}

/// A text as a JSON string has it, without the quotes.
fn quoted(plain: &str) -> String {
    let text = serde_json::to_string(plain).expect("a string always serializes");
    text[1..text.len() - 1].to_owned()
}

/// The whole of what was split. The error is the store's, or `None` when the parts do not fit.
fn join(
    own: &[u8],
    shares: &[Share],
    mut body: impl FnMut(i64) -> Result<Option<String>, Halt>,
) -> Result<Vec<u8>, Option<Halt>> {
    let (mut bytes, mut own) = (Vec::new(), own);
    for share in shares {
        let before = share.at.checked_sub(bytes.len());
        let (before, rest) = before.and_then(|it| own.split_at_checked(it)).ok_or(None)?;
        bytes.extend_from_slice(before);
        own = rest;
        let body = body(share.pos).map_err(Some)?.ok_or(None)?;
        let end = share.from.checked_add(share.length).ok_or(None)?;
        if share.quoted {
            let plain = body.get(share.from..end).ok_or(None)?;
            bytes.extend_from_slice(quoted(plain).as_bytes());
        } else {
            bytes.extend_from_slice(body.as_bytes().get(share.from..end).ok_or(None)?);
        }
    }
    bytes.extend_from_slice(own);
    Ok(bytes)
}

fn to_text(shares: &[Share]) -> String {
    let rows: Vec<Vec<i64>> = shares
        .iter()
        .map(|share| {
            let number = |it: usize| i64::try_from(it).unwrap_or(i64::MAX);
            let mut row = vec![
                number(share.at),
                share.pos,
                number(share.from),
                number(share.length),
            ];
            row.extend(share.quoted.then_some(1));
            row
        })
        .collect();
    serde_json::to_string(&rows).expect("numbers always serialize")
}

fn from_text(text: &str) -> Option<Vec<Share>> {
    let rows: Vec<Vec<i64>> = serde_json::from_str(text).ok()?;
    let share = |row: &Vec<i64>| {
        let number = |it: i64| usize::try_from(it).ok();
        let (&[at, pos, from, length], quoted) = match row.as_slice() {
            [rest @ .., 1] if rest.len() == 4 => (<&[i64; 4]>::try_from(rest).ok()?, true),
            rest => (<&[i64; 4]>::try_from(rest).ok()?, false),
        };
        Some(Share {
            at: number(at)?,
            pos,
            from: number(from)?,
            length: number(length)?,
            quoted,
        })
    };
    rows.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Splits a text over these bodies, checks that it comes back, and gives what is left of it.
    fn check(text: &str, bodies: &[&str]) -> usize {
        let bodies: Vec<(i64, &str)> = (1..).zip(bodies.iter().copied()).collect();
        let Found { shares, own, .. } = find(text, &bodies);
        assert_eq!(from_text(&to_text(&shares)).as_ref(), Some(&shares));
        let body = |pos| {
            let found = bodies.iter().find(|(at, _)| *at == pos);
            Ok(found.map(|(_, body)| (*body).to_owned()))
        };
        let joined = join(&own, &shares, body);
        assert_eq!(joined.unwrap_or_default(), text.as_bytes());
        own.len()
    }

    #[test]
    fn what_was_said_is_shared_with_everything_around_it() {
        let message = json!({"parts": [{"text": "ä".repeat(500)}], "role": "assistant"});
        let node = json!({"message": message, "previous": null}).to_string();
        let body = json!({"call": "m1.turn", "message": message, "spent": {}}).to_string();
        assert!(check(&node, &["{}", &body]) < 30);
    }

    #[test]
    fn a_result_that_is_shown_as_text_is_found_without_its_quotes() {
        let output =
            json!({"exit": 0, "stdout": "a \"quoted\" line\n\tand ünïcode \u{1}".repeat(40)});
        let results = [output.to_string(), "plain ".repeat(30)];
        let parts = results
            .iter()
            .map(|text| json!({"tool_result": {"text": text}}));
        let parts: Vec<_> = parts.collect();
        let node = json!({"message": {"parts": parts}, "previous": null}).to_string();
        let one = json!({"output": output}).to_string();
        let other = json!({"output": results[1]}).to_string();
        assert!(check(&node, &[&one, &other]) < 120);
    }

    #[test]
    fn what_is_nowhere_stays() {
        let text = json!({"text": "x".repeat(500)}).to_string();
        assert_eq!(check(&text, &["{}"]), text.len());
        assert_eq!(check("", &["{}"]), 0);
        assert_eq!(check("\"no end", &["{}"]), 7);
    }

    #[test]
    fn what_is_not_ours_is_no_share() {
        for text in [
            "",
            "{}",
            "[[1,2,3]]",
            "[[1,2,3,-4]]",
            "[[1,2,3,4,2]]",
            "[[1,2,3,4,1,1]]",
        ] {
            assert_eq!(from_text(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_text_comes_back(
            texts in prop::collection::vec("(\\PC|[\"\\\\\n]){0,200}", 1..4),
            other in "\\PC{0,100}",
        ) {
            let node = json!({"parts": texts, "other": other}).to_string();
            let bodies: Vec<String> = texts.iter().map(|text| json!({"output": text}).to_string()).collect();
            let bodies: Vec<&str> = bodies.iter().chain(&texts).map(String::as_str).collect();
            check(&node, &bodies);
            check(&other, &bodies);
        }
    }
}
