//! Limits, as people write and read them: `tokens=50000`, `usd=1.5`, `wall=10m`.

use std::time::Duration;

use logreel::core::event::Budget;
use logreel::core::{Limit, Row};

use crate::text;

/// How much of one limit, in the log's units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    limit: Limit,
    amount: u64,
}

/// Reads `LIMIT=AMOUNT`.
pub fn amount(text: &str) -> Result<Amount, String> {
    let (name, amount) = text
        .split_once('=')
        .ok_or("expected LIMIT=AMOUNT, such as tokens=50000 or wall=10m")?;
    let known = Limit::ALL.into_iter().find(|it| it.as_str() == name.trim());
    let Some(limit) = known else {
        let all = Limit::ALL.map(Limit::as_str).join(", ");
        return Err(format!("`{name}` is no limit; there are {all}"));
    };
    let amount = amount.trim();
    let read = match limit {
        Limit::Usd => dollars(amount),
        Limit::Wall => text::parse_duration(amount).ok().map(millis),
        Limit::Tokens | Limit::ToolCalls | Limit::Children => amount.replace('_', "").parse().ok(),
    };
    match read {
        Some(amount) if amount > 0 => Ok(Amount { limit, amount }),
        _ => {
            let expected = match limit {
                Limit::Usd => "dollars above 0, such as 1.5",
                Limit::Wall => "a span of time, such as 10m",
                Limit::Tokens | Limit::ToolCalls | Limit::Children => "a number above 0",
            };
            Err(format!("{limit} takes {expected}, not `{amount}`"))
        }
    }
}

/// Micro-dollars.
fn dollars(text: &str) -> Option<u64> {
    let dollars: f64 = text.parse().ok()?;
    let micros = (dollars * 1e6).round();
    (micros.is_finite() && micros >= 0.0).then_some(micros as u64)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// All of them together; what is said twice is added up.
pub fn sum(amounts: &[Amount]) -> Budget {
    let mut budget = Budget::default();
    for Amount { limit, amount } in amounts {
        let sum = budget.get_mut(*limit);
        *sum = Some(sum.unwrap_or(0).saturating_add(*amount));
    }
    budget
}

/// The limits of a run, each with what was used of it; `None` when it has none.
pub fn used(row: &Row) -> Option<String> {
    let (used, set_aside) = (row.used(), row.set_aside());
    let limits = Limit::ALL.into_iter().filter_map(|limit| {
        let allowed = row.facts.budget.get(limit)?;
        let of = format!(
            "{limit} {} of {}",
            shown(limit, used.get(limit)),
            shown(limit, allowed)
        );
        Some(match set_aside.get(limit) {
            0 => of,
            more => format!("{of} (+{} set aside)", shown(limit, more)),
        })
    });
    let limits: Vec<String> = limits.collect();
    (!limits.is_empty()).then(|| limits.join(", "))
}

/// Limits as they are written.
pub fn written(budget: &Budget) -> String {
    let limits = Limit::ALL.into_iter().filter_map(|limit| {
        let amount = budget.get(limit)?;
        Some(format!("{limit}={}", shown(limit, amount)))
    });
    limits.collect::<Vec<_>>().join(",")
}

fn shown(limit: Limit, amount: u64) -> String {
    match limit {
        Limit::Usd => format!("{}", amount as f64 / 1e6),
        Limit::Wall => text::span(Duration::from_millis(amount)),
        Limit::Tokens | Limit::ToolCalls | Limit::Children => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written() {
        let all = ["tokens=50_000", "usd=1.5", "wall=1h30m", "tool_calls=5"];
        let mut amounts: Vec<Amount> = all.iter().map(|it| amount(it).unwrap()).collect();
        amounts.push(amount("children=1").unwrap());
        amounts.push(amount("children = 2").unwrap());
        let budget = sum(&amounts);
        assert_eq!(budget.usd_micros, Some(1_500_000));
        assert_eq!(
            written(&budget),
            "tokens=50000,usd=1.5,wall=1h30m,tool_calls=5,children=3"
        );
        for wrong in [
            "",
            "tokens",
            "tokens=",
            "tokens=0",
            "tokens=-1",
            "usd=nan",
            "usd=-1",
            "usd=inf",
            "wall=10",
            "minutes=3",
            "children=1.5",
        ] {
            assert!(amount(wrong).is_err(), "{wrong}");
        }
    }
}
