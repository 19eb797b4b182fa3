//! Values, times and sizes as people read them.

use std::time::Duration;

use logreel::core::event::Effect;
use logreel::core::row::End;
use logreel::core::{Payload, Row};
use logreel::{Entry, Timestamp};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

pub use logreel::when::duration as parse_duration;

/// No preview needs more than this of a value.
const PREVIEW_CHARS: usize = 400;

/// The text on one line, without anything a terminal would obey: it comes from models and programs.
pub fn one_line(text: &str) -> String {
    let mut line = String::new();
    for c in text.chars().take(PREVIEW_CHARS) {
        match c {
            c if c.is_whitespace() => {
                if !line.ends_with(' ') {
                    line.push(' ');
                }
            }
            c if c.is_control() => line.push('\u{fffd}'),
            c => line.push(c),
        }
    }
    line.trim().to_owned()
}

/// A line as it is, but for what a terminal would obey and what would hide or turn around what follows:
/// for who must decide about it.
pub fn visible(line: &str) -> String {
    let hides = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    let shown = line.chars().map(|c| match c {
        '\t' => ' ',
        c if c.is_control() || hides(c) => '\u{fffd}',
        c => c,
    });
    shown.collect()
}

/// What a command last printed on a line: without colours, and after the last carriage return, which
/// is where a progress bar is.
pub fn printed(line: &str) -> String {
    let plain = anstream::adapter::strip_str(line).to_string();
    let last = plain.rsplit('\r').find(|part| !part.trim().is_empty());
    one_line(last.unwrap_or_default())
}

/// The beginning of a text that fits `width` columns.
pub fn fit(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut fitting = String::new();
    let mut columns = 0;
    for c in text.chars() {
        columns += c.width().unwrap_or(0);
        if columns >= width {
            break;
        }
        fitting.push(c);
    }
    if width > 0 {
        fitting.push('…');
    }
    fitting
}

/// A value at a glance: a text as it is, else JSON.
pub fn preview(payload: &Payload) -> String {
    match payload {
        Payload::Blob(reference) => format!("({})", bytes(reference.bytes)),
        Payload::Inline(json) => match json.decode::<String>() {
            Ok(text) => one_line(&text),
            Err(_) => one_line(json.text()),
        },
    }
}

/// The status with what a person wants to know about it at once.
pub fn status(entry: &Entry) -> String {
    if entry.is_orphaned() {
        return "orphaned".to_owned();
    }
    let status = entry.row.status();
    if entry.read_only {
        return format!("{status} (read-only)");
    }
    match waits(&entry.row) {
        waits if status == logreel::Status::Waiting && !waits.is_empty() => {
            format!("{status}:{waits}")
        }
        // It would look alive.
        _ if entry.is_handed_back() => format!("{status} (no driver)"),
        _ => status.to_string(),
    }
}

/// What a run waits for, in a word or two.
pub fn waits(row: &Row) -> String {
    let mut kinds: Vec<&str> = Vec::new();
    for open in &row.facts.waits {
        let kind = open.wait.kind.as_str();
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.join("+")
}

/// What keeps a ready run from being driven, when that is its limit.
pub fn in_line(entry: &Entry, now: Timestamp) -> Option<String> {
    let limit = entry.row.facts.limit.as_ref();
    let limit = limit.filter(|_| entry.is_in_line(now))?;
    Some(format!(
        "limit {} ({} at a time)",
        one_line(&limit.key),
        limit.max
    ))
}

/// What went in and what came out.
pub fn in_and_out(row: &Row, width: usize) -> String {
    let input = match row.facts.input.is_null() {
        true => String::new(),
        false => preview(&row.facts.input),
    };
    let (arrow, out) = match row.facts.ended.as_ref().map(|ended| &ended.end) {
        Some(End::Completed { output }) => ("→", preview(output)),
        Some(End::Failed { cause }) => ("✗", one_line(&cause.message)),
        Some(End::Cancelled {
            reason: Some(reason),
        }) => ("✗", one_line(reason)),
        Some(End::Cancelled { reason: None }) | None => return fit(&input, width),
    };
    if input.is_empty() {
        return fit(&format!("{arrow} {out}"), width);
    }
    // Each may have what the other does not need.
    let both = width.saturating_sub(3);
    let input = fit(&input, both.saturating_sub(out.width()).max(both / 2));
    fit(&format!("{input} {arrow} {out}"), width)
}

/// How long something took: two figures that matter.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..10 => format!("{:.1}s", duration.as_secs_f64().min(9.9)),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A span as someone would write it: exact, no unit that is zero.
pub fn span(span: Duration) -> String {
    let mut left = span.as_millis();
    let mut text = String::new();
    for (unit, millis) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ] {
        if left >= millis {
            text.push_str(&format!("{}{unit}", left / millis));
            left %= millis;
        }
    }
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

/// How long ago something was: one figure.
pub fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => "now".to_owned(),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A moment, in UTC, to the second.
pub fn moment(at: Timestamp) -> String {
    let text = at.to_string();
    format!("{} {}Z", &text[..10], &text[11..19])
}

/// A moment and how long ago it was.
pub fn moment_and_age(at: Timestamp, now: Timestamp) -> String {
    match age(now.since(at)).as_str() {
        "now" => moment(at),
        age => format!("{} ({age} ago)", moment(at)),
    }
}

/// Bytes as people count them.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// The effect of a step of a workflow about which nobody said anything.
pub fn default_effect() -> String {
    format!("{} (default)", Effect::Idempotent.as_str())
}

/// A count at a glance: `950`, `12.4k`, `3.1M`.
pub fn thousands(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..999_950 => format!("{:.1}k", n as f64 / 1e3),
        _ => format!("{:.1}M", n as f64 / 1e6),
    }
}

/// Dollars, with as many digits as small sums need.
pub fn dollars(micros: u64) -> String {
    format!("${:.4}", micros as f64 / 1e6)
}

/// `1 event`, `2 events`.
pub fn count(n: u64, what: &str) -> String {
    if n == 1 {
        format!("1 {what}")
    } else {
        format!("{n} {what}s")
    }
}

/// The text in rows of at most `width` columns, broken between words where there are some. Each line of
/// it begins a row.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut rows = Vec::new();
    for line in text.lines() {
        let mut row = String::new();
        for word in visible(line).split_whitespace() {
            let mut word = word;
            let gap = usize::from(!row.is_empty());
            if row.width() + gap + word.width() > width && !row.is_empty() {
                rows.push(std::mem::take(&mut row));
            }
            // A word that is longer than a row is cut.
            while word.width() > width {
                let (head, tail) = split(word, width);
                if head.is_empty() {
                    return rows;
                }
                rows.push(head.to_owned());
                word = tail;
            }
            if !row.is_empty() {
                row.push(' ');
            }
            row.push_str(word);
        }
        if !row.is_empty() {
            rows.push(row);
        }
    }
    rows
}

/// The part of a word that fits, and the rest.
fn split(word: &str, width: usize) -> (&str, &str) {
    let mut columns = 0;
    for (at, c) in word.char_indices() {
        columns += c.width().unwrap_or(0);
        if columns > width {
            return word.split_at(at);
        }
    }
    (word, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_between_words() {
        assert_eq!(wrapped("ab cd ef\n\ng", 5), ["ab cd", "ef", "g"]);
        assert_eq!(wrapped("abcdefgh i", 3), ["abc", "def", "gh", "i"]);
        assert_eq!(wrapped("日本語", 4), ["日本", "語"]);
        assert!(wrapped("日", 1).is_empty());
        assert_eq!(
            [999, 1_000, 12_449, 999_950].map(thousands),
            ["999", "1.0k", "12.4k", "1.0M"]
        );
    }

    #[test]
    fn spans_are_read_and_written() {
        let millis = |text| parse_duration(text).map(|it| it.as_millis());
        assert_eq!(millis("1h30m").unwrap(), 5_400_000);
        assert_eq!(millis("250ms").unwrap(), 250);
        for wrong in [
            "",
            "5",
            "h",
            "1x",
            "-1s",
            "1h 2m",
            "99999999999999999999s",
            "999999999999999w",
        ] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        let shown = |millis| duration(Duration::from_millis(millis));
        let all = [5, 1_949, 59_999, 61_000, 3_660_000, 90_000_000].map(shown);
        assert_eq!(all, ["5ms", "1.9s", "59s", "1m01s", "1h01m", "1d01h"]);
        let exact = |millis| span(Duration::from_millis(millis));
        let all = [0, 1, 90_000, 86_400_000, 5_400_250].map(exact);
        assert_eq!(all, ["0s", "1ms", "1m30s", "1d", "1h30m250ms"]);
        assert_eq!(
            [999, 1_000, 999_949, 999_950].map(bytes),
            ["999 B", "1.0 kB", "999.9 kB", "1.0 MB"]
        );
    }

    #[test]
    fn a_cut_text_fits_and_obeys_nobody() {
        assert_eq!(fit("日本語テキスト", 7), "日本語…");
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abcd", 3), "ab…");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(one_line(" a\n\t b\x1b[31mc "), "a b\u{fffd}[31mc");
        assert_eq!(printed("10%\r\x1b[2K\x1b[32m 20%\x1b[0m\r"), "20%");
        assert_eq!(printed("\x1b]0;title\x07hi\u{9b}2J"), "hi\u{fffd}2J");
    }
}
