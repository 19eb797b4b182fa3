//! What a run works on, as said on the command line.

use std::io::Read as _;

use anyhow::Context as _;
use logreel::{ErrorKind, Json};

use crate::error::Failure;

/// The input: text, `@file`, or `-` for stdin. A JSON object or array is JSON, anything else text.
pub fn read(said: Option<&str>) -> anyhow::Result<Json> {
    let Some(said) = said else {
        return Ok(Json::null());
    };
    let text = match said.strip_prefix('@') {
        _ if said == "-" => {
            let mut bytes = Vec::new();
            let read = std::io::stdin().read_to_end(&mut bytes);
            read.context("the input on stdin cannot be read")?;
            utf8(bytes, "the input on stdin")?
        }
        Some(path) => {
            let bytes = std::fs::read(path).map_err(|error| {
                let message = format!("the input file {path} cannot be read: {error}");
                Failure::new(ErrorKind::Invalid, message)
                    .hint("a text that begins with @ is given with `-` on stdin")
            })?;
            utf8(bytes, path)?
        }
        None => said.to_owned(),
    };
    Ok(of_text(text)?)
}

/// JSON that was said on the command line, or a complaint that names the flag.
pub fn json(flag: &str, said: &str) -> Result<Json, Failure> {
    Json::parse(said).map_err(|error| {
        let message = format!("{flag} is not JSON: {error}");
        Failure::new(ErrorKind::Usage, message).hint("a text is JSON in quotes: '\"yes\"'")
    })
}

fn utf8(bytes: Vec<u8>, what: &str) -> Result<String, Failure> {
    String::from_utf8(bytes)
        .map_err(|_| Failure::new(ErrorKind::Invalid, format!("{what} is not UTF-8 text")))
}

fn of_text(text: String) -> Result<Json, serde_json::Error> {
    if text.trim_start().starts_with(['{', '['])
        && let Ok(json) = Json::parse(text.trim())
    {
        return Ok(json);
    }
    Json::of(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_and_arrays_are_json() {
        let read = |text: &str| of_text(text.to_owned()).unwrap().text().to_owned();
        assert_eq!(read(r#" {"a": 1} "#), r#"{"a": 1}"#);
        assert_eq!(read("[1]\n"), "[1]");
        assert_eq!(read("12"), r#""12""#);
        assert_eq!(read("[not json"), r#""[not json""#);
    }
}
