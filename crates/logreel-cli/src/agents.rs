//! Who reads and drives agents for this program.

use std::fmt::Write as _;

use logreel_agent::{Agents, Prices};

use crate::settings::Settings;

/// Reads and drives agents, as the settings want it.
pub fn agents(settings: &Settings) -> Agents {
    let agents = Agents::new().prices(prices(settings));
    let agents = agents.default_model(settings.model.clone());
    agents.redact(settings.redact.iter().cloned())
}

/// The built-in prices, and before them those of the settings.
pub fn prices(settings: &Settings) -> Prices {
    let mut table = String::new();
    for (model, price) in &settings.prices {
        let dollars = |micros: u64| micros as f64 / 1e6;
        // Writing to a string does not fail.
        let written = write!(
            table,
            "[[price]]\nmodel = {}\ninput = {:?}\noutput = {:?}\ncache_read = {:?}\ncache_write = {:?}\n",
            serde_json::Value::from(model.as_str()),
            dollars(price.input),
            dollars(price.output),
            dollars(price.cache_read),
            dollars(price.cache_write),
        );
        written.expect("a string takes everything");
    }
    let own = Prices::parse(&table).expect("numbers and names of the settings are a table");
    own.before(Prices::built_in())
}
