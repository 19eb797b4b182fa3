//! Points in time: microseconds since 1970 in UTC, shown as RFC 3339 with six decimals and `Z`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time with microsecond resolution.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);
    /// Years 0000 to 9999: what RFC 3339 can write.
    const MICROS_RANGE: std::ops::RangeInclusive<i64> =
        -62_167_219_200_000_000..=253_402_300_799_999_999;

    /// From microseconds since 1970; values RFC 3339 cannot write are clamped to its range.
    pub const fn from_micros(micros: i64) -> Self {
        let (low, high) = (*Self::MICROS_RANGE.start(), *Self::MICROS_RANGE.end());
        Self(if micros < low {
            low
        } else if micros > high {
            high
        } else {
            micros
        })
    }

    /// Microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Milliseconds since 1970, for ids that sort by time.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// The time from `earlier` to `self`; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.0.saturating_add(micros))
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.0.saturating_sub(micros))
    }
}

impl Timestamp {
    /// Written by hand: it is on the path of every append (the header holds it).
    fn text(self) -> [u8; 27] {
        let days = self.0.div_euclid(86_400_000_000);
        let micros = self.0.rem_euclid(86_400_000_000);
        // Howard Hinnant's civil_from_days: eras of 400 years that begin on 1 March.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        };
        let year = year_of_era + era * 400 + i64::from(month <= 2);

        let mut text = *b"0000-00-00T00:00:00.000000Z";
        let mut put = |at: usize, width: usize, mut value: i64| {
            for digit in text[at..at + width].iter_mut().rev() {
                *digit = b'0' + (value % 10) as u8;
                value /= 10;
            }
        };
        put(0, 4, year);
        put(5, 2, month);
        put(8, 2, day);
        put(11, 2, micros / 3_600_000_000);
        put(14, 2, micros / 60_000_000 % 60);
        put(17, 2, micros / 1_000_000 % 60);
        put(20, 6, micros % 1_000_000);
        text
    }

    /// Writes what `Display` does.
    pub(crate) fn push_to(self, text: &mut String) {
        text.push_str(as_str(&self.text()));
    }
}

fn as_str(text: &[u8; 27]) -> &str {
    std::str::from_utf8(text).expect("digits are text")
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(as_str(&self.text()))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an RFC 3339 time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an RFC 3339 time such as 2026-01-31T12:00:00.000000Z")]
pub struct InvalidTimestamp(String);

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(time) = parse_as_written(text) {
            return Ok(time);
        }
        let parsed: jiff::Timestamp = text
            .parse()
            .map_err(|_| InvalidTimestamp(text.chars().take(80).collect()))?;
        Ok(Self::from_micros(parsed.as_microsecond()))
    }
}

/// Reads the one spelling that [`Timestamp`]'s `Display` writes, by hand because most bodies hold
/// one; `None` for any other, and for what is no time.
fn parse_as_written(text: &str) -> Option<Timestamp> {
    let text: &[u8; 27] = text.as_bytes().try_into().ok()?;
    let marks = [4, 7, 10, 13, 16, 19, 26].map(|at| text[at]);
    if marks != *b"--T::.Z" {
        return None;
    }
    let number = |at: usize, width: usize| {
        text[at..at + width].iter().try_fold(0, |sum, byte| {
            byte.is_ascii_digit()
                .then(|| sum * 10 + i64::from(byte - b'0'))
        })
    };
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    // A leap second is left to jiff.
    if !is_day_of_month(year, month, day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // Howard Hinnant's days_from_civil, the inverse of what `fmt` does.
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    Some(Timestamp(seconds * 1_000_000 + number(20, 6)?))
}

fn is_day_of_month(year: i64, month: i64, day: i64) -> bool {
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(as_str(&self.text()))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_time_reads_back_and_equals_jiff(micros in Timestamp::MICROS_RANGE) {
            let time = Timestamp::from_micros(micros);
            prop_assert_eq!(time.to_string().parse::<Timestamp>().unwrap(), time);
            let jiff = jiff::Timestamp::from_microsecond(micros);
            if let Ok(jiff) = jiff {
                prop_assert_eq!(time.to_string(), format!("{jiff:.6}"));
            }
        }

        /// Also for days, hours and seconds that do not exist.
        #[test]
        fn a_time_that_is_read_by_hand_is_what_jiff_reads(
            text in "(0000|0001|1[89][0-9]{2}|20[0-9]{2}|2100|9999)-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]\\.[0-9]{6}Z"
        ) {
            if let Some(time) = parse_as_written(&text) {
                match text.parse::<jiff::Timestamp>() {
                    Ok(jiff) => prop_assert_eq!(time.as_micros(), jiff.as_microsecond()),
                    // The last day of all is beyond jiff's, wherever on Earth it is.
                    Err(_) => prop_assert!(text.starts_with("9999-12-3")),
                }
                prop_assert_eq!(time.to_string(), text);
            } else if let Ok(jiff) = text.parse::<jiff::Timestamp>() {
                prop_assert!(text.contains(":60."), "{} is {}", text, jiff);
            }
        }
    }

    #[test]
    fn other_spellings_are_read_too() {
        let time: Timestamp = "2026-01-31T12:00:00.000000Z".parse().unwrap();
        for text in [
            "2026-01-31T12:00:00Z",
            "2026-01-31T14:00:00.0+02:00",
            "2026-01-31t12:00:00z",
        ] {
            assert_eq!(text.parse(), Ok(time), "{text}");
        }
        for text in [
            "",
            "2026-01-31",
            "2026-02-30T12:00:00.000000Z",
            "2026-01-31T12:00:00,00000-Z",
        ] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
    }
}
