//! The agent's answer as the run's output.

use serde_json::Value;

use crate::message::Message;
use crate::spec::AgentSpec;

/// The output that a final answer is: its words, or the JSON that its schema asks for. The error says
/// what it misses, for the model.
pub(crate) fn of(spec: &AgentSpec, answer: &Message) -> Result<Value, String> {
    let words = answer.words();
    let Some(schema) = &spec.output_schema else {
        return Ok(Value::String(words));
    };
    let value: Value = serde_json::from_str(json_in(&words))
        .map_err(|error| format!("it is not JSON ({error})"))?;
    // A schema that names an address is not a reason to go there.
    let validator = jsonschema::options()
        .offline()
        .build(schema)
        .map_err(|error| format!("its schema is none ({error})"))?;
    let misses: Vec<String> = validator
        .iter_errors(&value)
        .take(5)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    match misses.is_empty() {
        true => Ok(value),
        false => Err(misses.join("; ")),
    }
}

/// Models like to put JSON in a fence.
fn json_in(words: &str) -> &str {
    let words = words.trim();
    let fenced = words
        .strip_prefix("```json")
        .or_else(|| words.strip_prefix("```"))
        .and_then(|rest| rest.strip_suffix("```"));
    fenced.map_or(words, str::trim)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::message::Role;

    #[test]
    fn an_answer_is_text_unless_a_schema_asks_for_more() {
        let answer = |text: &str| Message::text(Role::Assistant, text);
        let plain = AgentSpec::default();
        assert_eq!(of(&plain, &answer("{}")), Ok(json!("{}")));
        let spec = AgentSpec {
            output_schema: Some(json!({"type": "object", "required": ["n"]})),
            ..AgentSpec::default()
        };
        assert_eq!(
            of(&spec, &answer("```json\n{\"n\": 1}\n```")),
            Ok(json!({"n": 1}))
        );
        assert!(of(&spec, &answer("{}")).is_err_and(|why| why.contains('n')));
        assert!(of(&spec, &answer("no")).is_err_and(|why| why.contains("not JSON")));
    }
}
