//! What models cost. A price that is not in the table is unknown, which is not zero.

use globset::{GlobBuilder, GlobMatcher};
use logreel::core::event::Spend;
use serde::Deserialize;

/// Prices by model.
#[derive(Debug, Clone)]
pub struct Prices {
    /// The first that matches counts.
    rows: Vec<(GlobMatcher, Price)>,
}

/// Micro-dollars per million tokens, which are pico-dollars per token: whole numbers, so that a sum
/// does not depend on its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Price {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
}

/// A table that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PriceError {
    /// It is no TOML, or a key is not known.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A model that is no pattern.
    #[error("`model` {model:?}: {source}")]
    Model {
        /// The pattern.
        model: String,
        /// What is wrong with it.
        source: globset::Error,
    },
    /// A price that is no amount.
    #[error("`{key}` of {model:?}: {value} is no price")]
    Amount {
        /// Whose price.
        model: String,
        /// Which of its prices.
        key: &'static str,
        /// What is there.
        value: f64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    price: Vec<Row>,
}

/// A row: `model` is a glob, the rest dollars per million tokens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    model: String,
    input: f64,
    output: f64,
    cache_read: Option<f64>,
    cache_write: Option<f64>,
}

impl Prices {
    /// The table that comes with this version.
    pub fn built_in() -> Self {
        let table = include_str!("prices.toml");
        Self::parse(table).expect("the table is checked by a test")
    }

    /// A table of one's own: `[[price]]` with `model` (a glob), `input`, `output`, and optionally
    /// `cache_read` and `cache_write`, in dollars per million tokens.
    pub fn parse(table: &str) -> Result<Self, PriceError> {
        let table: Table = toml::from_str(table)?;
        let rows = table.price.into_iter().map(Row::understand);
        Ok(Self {
            rows: rows.collect::<Result<_, _>>()?,
        })
    }

    /// These, before those.
    #[must_use]
    pub fn before(mut self, those: Self) -> Self {
        self.rows.extend(those.rows);
        self
    }

    /// Whether a model's price is known.
    pub fn has(&self, model: &str) -> bool {
        self.price(model).is_some()
    }

    /// What was spent, in micro-dollars, rounded up; unknown when the model's price is. What the answer
    /// says of its own price stays.
    pub fn cost(&self, model: &str, spent: &Spend) -> Option<u64> {
        spent
            .usd_micros
            .or_else(|| Some(self.price(model)?.of(spent)))
    }

    fn price(&self, model: &str) -> Option<Price> {
        let row = self.rows.iter().find(|(glob, _)| glob.is_match(model));
        row.map(|(_, price)| *price)
    }
}

impl Default for Prices {
    fn default() -> Self {
        Self::built_in()
    }
}

impl Price {
    /// Input tokens count those of the cache in, and output tokens those of reasoning.
    fn of(self, spent: &Spend) -> u64 {
        let cached = spent
            .cache_read_tokens
            .saturating_add(spent.cache_write_tokens);
        let sum = [
            (spent.input_tokens.saturating_sub(cached), self.input),
            (spent.output_tokens, self.output),
            (spent.cache_read_tokens, self.cache_read),
            (spent.cache_write_tokens, self.cache_write),
        ]
        .into_iter()
        .map(|(tokens, price)| u128::from(tokens) * u128::from(price))
        .fold(0, u128::saturating_add);
        u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

impl Row {
    fn understand(self) -> Result<(GlobMatcher, Price), PriceError> {
        let glob = GlobBuilder::new(&self.model).empty_alternates(true).build();
        let glob = glob.map_err(|source| PriceError::Model {
            model: self.model.clone(),
            source,
        })?;
        let amount = |key, value: f64| {
            let micros = (value * 1e6).round();
            if !(0.0..=1e15).contains(&micros) {
                let model = self.model.clone();
                return Err(PriceError::Amount { model, key, value });
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked above"
            )]
            Ok(micros as u64)
        };
        let price = Price {
            input: amount("input", self.input)?,
            output: amount("output", self.output)?,
            cache_read: amount("cache_read", self.cache_read.unwrap_or(self.input))?,
            cache_write: amount("cache_write", self.cache_write.unwrap_or(self.input))?,
        };
        Ok((glob.compile_matcher(), price))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent() -> Spend {
        Spend {
            cache_read_tokens: 800,
            cache_write_tokens: 100,
            input_tokens: 1000,
            output_tokens: 10,
            reasoning_tokens: 5,
            usd_micros: None,
        }
    }

    #[test]
    fn a_known_price_is_paid_to_the_micro_dollar_and_an_unknown_one_is_unknown() {
        let prices = Prices::built_in();
        // 100 fresh * 3 + 800 read * 0.3 + 100 written * 3.75 + 10 out * 15 = 1065 micro-dollars.
        let sonnet = "anthropic/claude-sonnet-4-5-20250929";
        assert_eq!(prices.cost(sonnet, &spent()), Some(1065));
        let one = Spend {
            input_tokens: 1,
            ..Spend::default()
        };
        assert_eq!(
            prices.cost("openai/gpt-5-nano", &one),
            Some(1),
            "rounded up"
        );
        assert_eq!(prices.cost("openai/gpt-5-2025-08-07", &one), Some(2));
        for known in [
            "opus-4-20250514",
            "opus-4-1",
            "opus-4-5",
            "sonnet-4-0",
            "haiku-4-5",
        ] {
            assert!(prices.has(&format!("anthropic/claude-{known}")), "{known}");
        }
        for newer in ["openai/gpt-5-turbo-ultra", "anthropic/claude-opus-4-9"] {
            assert_eq!(prices.cost(newer, &one), None, "{newer}");
        }
        assert_eq!(prices.cost("scripted/answers/a.jsonl", &spent()), Some(0));
        assert!(prices.has("ollama/llama3.2:3b") && !prices.has("openai/local"));
        let said = Spend {
            usd_micros: Some(7),
            ..spent()
        };
        assert_eq!(prices.cost("scripted/a", &said), Some(7));
    }

    #[test]
    fn a_table_of_ones_own_comes_first_and_is_checked() {
        let own = "[[price]]\nmodel = \"openai/*\"\ninput = 1\noutput = 0\n";
        let prices = Prices::parse(own).unwrap().before(Prices::built_in());
        assert_eq!(prices.cost("openai/gpt-5", &spent()), Some(1000));
        assert!(prices.has("anthropic/claude-opus-4-5"));
        for wrong in [
            "[[price]]\nmodel = \"a\"\ninput = -1\noutput = 0",
            "[[price]]\nmodel = \"a{\"\ninput = 1\noutput = 0",
            "[[price]]\nmodel = \"a\"\ninput = 1\noutput = 0\ntax = 1",
            "[[price]]\nmodel = \"a\"\ninput = nan\noutput = 0",
        ] {
            assert!(Prices::parse(wrong).is_err(), "{wrong}");
        }
    }
}
