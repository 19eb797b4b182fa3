//! Times as people say them.

use std::time::Duration;

use logreel_core::Timestamp;

/// A span such as `90s`, `15m`, `1h30m`, `2d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let refused = || format!("`{text}` is not a span of time such as 90s, 15m, 1h30m or 2d");
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .ok_or_else(refused)?;
        let (number, after) = rest.split_at(digits);
        let unit = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let millis: u64 = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            _ => return Err(refused()),
        };
        let number: u64 = number.parse().map_err(|_| refused())?;
        let part = number.checked_mul(millis).ok_or_else(refused)?;
        total = total
            .checked_add(Duration::from_millis(part))
            .ok_or_else(refused)?;
        rest = after;
    }
    if text.is_empty() {
        Err(refused())
    } else {
        Ok(total)
    }
}

/// A point in time: a span before `now`, a day (from its beginning, in UTC), or RFC 3339.
pub fn since(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(span) = duration(text) {
        return Ok(now - span);
    }
    let refused = || {
        format!("`{text}` is not a time; expected a span (1h, 2d), a day (2026-01-31) or RFC 3339")
    };
    text.parse()
        .or_else(|_| format!("{text}T00:00:00Z").parse())
        .map_err(|_| refused())
}
