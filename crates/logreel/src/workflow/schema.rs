//! JSON Schemas of inputs and outputs: compiled once, checked often.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// How many misfits are told; a large value can have thousands.
const MISFITS_MAX: usize = 3;

/// A compiled JSON Schema; cloning it is cheap.
///
/// It reads no files and no network: a `$ref` to another document is refused.
#[derive(Clone)]
pub struct Schema(Arc<jsonschema::Validator>);

impl Schema {
    /// Compiles a schema.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        let validator = jsonschema::options().offline().build(schema);
        validator
            .map(|validator| Self(Arc::new(validator)))
            .map_err(|error| SchemaError(at(error.instance_path(), &error)))
    }

    /// Whether a value fits.
    pub fn check(&self, value: &Value) -> Result<(), Misfit> {
        let mut errors = self.0.iter_errors(value);
        let mut told: Vec<String> = errors
            .by_ref()
            .take(MISFITS_MAX)
            // The value itself can be long, and can be a secret; where it stands is enough to find it.
            .map(|error| at(error.instance_path(), error.masked_with("the value")))
            .collect();
        if told.is_empty() {
            return Ok(());
        }
        // The order of an object's keys is another whenever a dependency wants it so.
        told.sort();
        let has_more = errors.next().is_some();
        Err(Misfit { told, has_more })
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schema")
    }
}

/// A schema that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no JSON Schema: {0}")]
pub struct SchemaError(String);

/// A value that does not fit its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Where in the value, as a JSON pointer, and what was expected there; at most three.
    pub told: Vec<String>,
    /// Whether there are more.
    pub has_more: bool,
}

impl std::error::Error for Misfit {}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told.join("; "))?;
        if self.has_more {
            f.write_str("; and more")?;
        }
        Ok(())
    }
}

fn at(path: impl fmt::Display, what: impl fmt::Display) -> String {
    let path = path.to_string();
    if path.is_empty() {
        what.to_string()
    } else {
        format!("{path}: {what}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_misfit_says_where_and_what_was_expected() {
        let schema = json!({
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "list": {"items": {"type": "integer"}}},
        });
        let schema = Schema::compile(&schema).unwrap();
        assert_eq!(schema.check(&json!({"name": "a", "list": [1]})), Ok(()));
        let told = [
            json!(1),
            json!({}),
            json!({"name": 1, "list": ["s3cret"]}),
            json!({"name": "a", "list": ["a", "b", "c", "d"]}),
        ]
        .map(|value| schema.check(&value).unwrap_err().to_string());
        insta::assert_snapshot!(told.join("\n"));
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        let told = [
            json!({"type": "strin"}),
            json!({"$ref": "https://example.invalid/a.json"}),
            json!({"$ref": "file:///etc/passwd"}),
            json!(1),
        ]
        .map(|schema| Schema::compile(&schema).unwrap_err().to_string());
        insta::assert_snapshot!(told.join("\n"));
    }
}
