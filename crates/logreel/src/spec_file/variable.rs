//! Variables of the environment that a spec names: `${NAME}`.

use std::ops::Range;

/// The names of variables in `${NAME}`, and where each stands; `Err` is a `${` that names none.
pub fn variables(text: &str) -> Result<Vec<(Range<usize>, &str)>, &str> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(open) = text[at..].find("${").map(|open| at + open) {
        let rest = &text[open + 2..];
        let name = rest.split('}').next().unwrap_or_default();
        let closed = name.len() < rest.len();
        if !closed || !is_variable(name) {
            return Err(&text[open..]);
        }
        at = open + 2 + name.len() + 1;
        found.push((open..at, name));
    }
    Ok(found)
}

/// Whether a text can be the name of an environment variable.
pub fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
