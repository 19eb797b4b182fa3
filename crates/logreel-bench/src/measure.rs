//! Times, rounds, rows and the table.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// CLOCK_MONOTONIC, which means the same in every process of this machine.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Times of one round.
#[derive(Debug, Default)]
pub struct Samples(Vec<Duration>);

impl Samples {
    pub fn add(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// Times one thing.
    pub async fn time<T>(&mut self, work: impl Future<Output = T>) -> T {
        let began = now();
        let done = work.await;
        self.add(now().saturating_sub(began));
        done
    }

    /// Times one thing that blocks.
    pub fn time_blocking<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = now();
        let done = work();
        self.add(now().saturating_sub(began));
        done
    }

    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// The latest of them.
    pub fn last(&self, count: usize) -> Self {
        Self(self.0[self.0.len().saturating_sub(count)..].to_vec())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Duration> {
        self.0.iter()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// In microseconds; NaN when there are none, which meets no bar.
    pub fn percentile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1) as f64;
        let at = (last * share).round() as usize;
        sorted
            .get(at)
            .map_or(f64::NAN, |took| took.as_secs_f64() * 1e6)
    }

    pub fn p50(&self) -> f64 {
        self.percentile(0.5)
    }

    pub fn p99(&self) -> f64 {
        self.percentile(0.99)
    }
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    P50Us,
    P99Us,
    PerS,
    BytesRatio,
    Ms,
    Mib,
}

impl Metric {
    fn name(self) -> &'static str {
        match self {
            Self::P50Us => "p50_us",
            Self::P99Us => "p99_us",
            Self::PerS => "per_s",
            Self::BytesRatio => "bytes_ratio",
            Self::Ms => "ms",
            Self::Mib => "mib",
        }
    }

    fn more_is_better(self) -> bool {
        self == Self::PerS
    }
}

/// How much was done.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Params {
    pub runs: usize,
    pub events: usize,
    pub payload_bytes: usize,
}

/// A figure to reach (DESIGN 7).
#[derive(Debug, Clone, Copy)]
pub enum Bar {
    ValueBelow(f64),
    ValueAtMost(f64),
    ValueAtLeast(f64),
    RatioAtMost(f64),
    RatioAtLeast(f64),
}

impl Bar {
    fn is_met(self, round: Round) -> bool {
        let ratio = round.ratio().unwrap_or(f64::NAN);
        match self {
            Self::ValueBelow(bar) => round.value < bar,
            Self::ValueAtMost(bar) => round.value <= bar,
            Self::ValueAtLeast(bar) => round.value >= bar,
            Self::RatioAtMost(bar) => ratio <= bar,
            Self::RatioAtLeast(bar) => ratio >= bar,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ValueBelow(bar) => write!(f, "< {}", shown(*bar)),
            Self::ValueAtMost(bar) => write!(f, "<= {}", shown(*bar)),
            Self::ValueAtLeast(bar) => write!(f, ">= {}", shown(*bar)),
            Self::RatioAtMost(bar) => write!(f, "<= {bar}x"),
            Self::RatioAtLeast(bar) => write!(f, ">= {bar}x"),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Round {
    value: f64,
    reference: Option<f64>,
}

impl Round {
    fn ratio(self) -> Option<f64> {
        self.reference.map(|reference| self.value / reference)
    }
}

/// One figure over all rounds.
pub struct Figure {
    bench: &'static str,
    case: String,
    metric: Metric,
    params: Params,
    bar: Option<Bar>,
    rounds: Vec<Round>,
}

impl Figure {
    /// `case` tells figures of one bench apart; it may be empty.
    pub fn new(
        bench: &'static str,
        case: impl Into<String>,
        metric: Metric,
        params: Params,
    ) -> Self {
        Self {
            bench,
            case: case.into(),
            metric,
            params,
            bar: None,
            rounds: Vec::new(),
        }
    }

    pub fn bar(mut self, bar: Bar) -> Self {
        self.bar = Some(bar);
        self
    }

    pub fn round(&mut self, value: f64, reference: Option<f64>) {
        self.rounds.push(Round { value, reference });
    }

    /// The worst round.
    pub fn row(self) -> Result<Row> {
        let badness = |round: &Round| {
            let by_value = matches!(
                self.bar,
                Some(Bar::ValueBelow(_) | Bar::ValueAtMost(_) | Bar::ValueAtLeast(_))
            );
            let key = round.ratio().filter(|_| !by_value).unwrap_or(round.value);
            if self.metric.more_is_better() {
                -key
            } else {
                key
            }
        };
        let worst = self
            .rounds
            .iter()
            .max_by(|one, other| badness(one).total_cmp(&badness(other)))
            .with_context(|| format!("{} {} was not measured", self.bench, self.case))?;
        Ok(Row {
            bench: self.bench,
            case: self.case,
            metric: self.metric,
            params: self.params,
            value: worst.value,
            reference: worst.reference,
            ratio: worst.ratio(),
            bar: self.bar.map(|bar| bar.to_string()),
            met: self.bar.map(|bar| bar.is_met(*worst)),
        })
    }
}

/// The rows of some figures.
pub fn rows(figures: impl IntoIterator<Item = Figure>) -> Result<Vec<Row>> {
    figures.into_iter().map(Figure::row).collect()
}

/// A figure's worst round (INTERFACES C, bench rows).
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub bench: &'static str,
    pub case: String,
    pub metric: Metric,
    pub params: Params,
    pub value: f64,
    pub reference: Option<f64>,
    pub ratio: Option<f64>,
    pub bar: Option<String>,
    pub met: Option<bool>,
}

/// The rows for people, each with its bar and whether it was met.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header([
            "bench",
            "case",
            "runs",
            "events",
            "metric",
            "value",
            "reference",
            "ratio",
            "bar",
            "met",
        ]);
    for row in rows {
        table.add_row([
            row.bench.to_owned(),
            row.case.clone(),
            row.params.runs.to_string(),
            row.params.events.to_string(),
            row.metric.name().to_owned(),
            shown(row.value),
            row.reference.map(shown).unwrap_or_default(),
            row.ratio
                .map(|ratio| format!("{ratio:.2}"))
                .unwrap_or_default(),
            row.bar.clone().unwrap_or_default(),
            match row.met {
                Some(true) => "yes".to_owned(),
                Some(false) => "NO".to_owned(),
                None => String::new(),
            },
        ]);
    }
    for column in table.column_iter_mut().skip(2).take(6) {
        if column.index != 4 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Three digits that matter, thousands apart.
fn shown(value: f64) -> String {
    if value.abs() < 100.0 {
        let text = format!("{value:.2}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: Params = Params {
        runs: 1,
        events: 1,
        payload_bytes: 400,
    };

    #[test]
    fn the_worst_round_is_the_one_with_the_worst_ratio_or_else_value() {
        let mut time = Figure::new("x", "", Metric::P50Us, PARAMS).bar(Bar::RatioAtMost(1.5));
        time.round(200.0, Some(100.0));
        time.round(300.0, Some(290.0));
        let row = time.row().unwrap();
        assert_eq!((row.value, row.met), (200.0, Some(false)));

        let mut rate = Figure::new("x", "", Metric::PerS, PARAMS).bar(Bar::ValueAtLeast(5.0));
        rate.round(7.0, None);
        rate.round(6.0, None);
        let row = rate.row().unwrap();
        assert_eq!((row.value, row.met), (6.0, Some(true)));
    }

    #[test]
    fn a_percentile_of_nothing_meets_no_bar() {
        let mut figure = Figure::new("x", "", Metric::P50Us, PARAMS).bar(Bar::ValueBelow(5.0));
        figure.round(Samples::default().p50(), None);
        assert_eq!(figure.row().unwrap().met, Some(false));
    }

    #[test]
    fn numbers_are_shown_short() {
        assert_eq!(shown(1_234_567.8), "1,234,568");
        assert_eq!(shown(999.4), "999");
        assert_eq!(shown(1.50), "1.5");
        assert_eq!(shown(0.0), "0");
    }
}
