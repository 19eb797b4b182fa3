//! Durations as specs write them: `"24h"`, `"500ms"`, `"1s..30s"`.

use std::time::Duration;

/// Everything longer is a mistake in the unit, and must fit a timestamp.
pub const SPAN_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Reads a whole number with a unit.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let refuse = || {
        format!(
            "expected a whole number of ms, s, m, h or d, like \"500ms\" or \"24h\", got {text:?}"
        )
    };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let (_, millis) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(refuse)?;
    number
        .parse()
        .ok()
        .and_then(|number: u64| number.checked_mul(*millis))
        .map(Duration::from_millis)
        .ok_or_else(refuse)
}

/// Reads `FIRST..LONGEST`.
pub(crate) fn parse_range(text: &str) -> Result<(Duration, Duration), String> {
    let (first, longest) = text.split_once("..").ok_or_else(|| {
        format!("expected the first wait and the longest, like \"1s..30s\", got {text:?}")
    })?;
    Ok((parse(first)?, parse(longest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_with_a_unit() {
        let millis = |text| parse(text).map(|span| span.as_millis()).ok();
        assert_eq!(millis("500ms"), Some(500));
        assert_eq!(millis("1s"), Some(1_000));
        assert_eq!(millis("2m"), Some(120_000));
        assert_eq!(millis("24h"), Some(86_400_000));
        assert_eq!(millis("1d"), Some(86_400_000));
        for text in [
            "",
            "1",
            "s",
            "1.5s",
            "-1s",
            "1 s",
            "1h30m",
            "1S",
            "99999999999999999999s",
            "999999999999999999d",
        ] {
            assert_eq!(millis(text), None, "{text}");
        }
        assert_eq!(
            parse_range("1s..30s"),
            Ok((Duration::from_secs(1), Duration::from_secs(30)))
        );
        assert!(parse_range("1s").is_err());
    }
}
