//! The words that runs are found by, where the store has no index that takes texts apart itself.

use std::collections::HashSet;

use logreel_core::Payload;
use logreel_core::row::{End, Facts};

/// The words people find a run by: those of its input, output, agent and labels.
pub(crate) fn words_of(facts: &Facts) -> HashSet<String> {
    let mut all: HashSet<String> = words(&facts.agent).collect();
    for (name, value) in &facts.labels {
        all.extend(words(name).chain(words(value)));
    }
    let output = match facts.ended.as_ref().map(|ended| &ended.end) {
        Some(End::Completed { output }) => Some(output),
        _ => None,
    };
    for json in [Some(&facts.input), output]
        .into_iter()
        .flatten()
        .filter_map(Payload::inline)
    {
        collect_words(&json.to_value(), &mut all);
    }
    all
}

/// From the decoded value, not its text: `\n` in a JSON string is a blank, not the letter n.
fn collect_words(value: &serde_json::Value, all: &mut HashSet<String>) {
    match value {
        serde_json::Value::String(text) => all.extend(words(text)),
        serde_json::Value::Array(items) => items.iter().for_each(|item| collect_words(item, all)),
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                all.extend(words(name));
                collect_words(value, all);
            }
        }
        other => all.extend(words(&other.to_string())),
    }
}

/// The words of a text, in small letters.
pub(crate) fn words(text: &str) -> impl Iterator<Item = String> {
    let split = text.split(|c: char| !c.is_alphanumeric());
    split.filter(|word| !word.is_empty()).map(str::to_lowercase)
}
