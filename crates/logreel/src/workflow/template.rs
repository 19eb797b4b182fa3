//! Templates in specs: minijinja, strict, and JSON in and out.
//!
//! A text that is one `{{ expression }}` keeps the type of what it gives; any other text stays text, in
//! which values that are no text are written as compact JSON. What is not defined is an error, always.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde_json::Value;

use super::scan::{self, Piece};

/// The names a template can begin with.
pub(super) const ROOTS: [&str; 5] = ["input", "steps", "item", "index", "run"];
/// What a template can see of a step.
pub(super) const OF_A_STEP: [&str; 3] = ["output", "exit_code", "status"];
/// Where `${NAME}` is looked up. No template can name it: it is none of the roots.
const VARIABLES: &str = "_variables";

/// What templates see: `input`, `steps.ID.output|exit_code|status`, `item`, `index`, `run.id`.
///
/// Cloning it is cheap, whatever it holds.
#[derive(Debug, Clone)]
pub struct Scope {
    run: minijinja::Value,
    input: minijinja::Value,
    steps: Arc<BTreeMap<String, minijinja::Value>>,
    item: Option<(minijinja::Value, usize)>,
}

impl Scope {
    /// A scope without steps.
    pub fn new(run_id: &str, input: &Value) -> Self {
        Self {
            run: minijinja::Value::from_pairs([("id", run_id)]),
            input: minijinja::Value::from(Serde(input)),
            steps: Arc::default(),
            item: None,
        }
    }

    /// Adds what is known of a step that has ended.
    pub fn add_step(&mut self, id: &str, output: &Value, exit_code: Option<i32>, status: &str) {
        let step = minijinja::Value::from_pairs([
            ("output", minijinja::Value::from(Serde(output))),
            ("exit_code", minijinja::Value::from(exit_code)),
            ("status", minijinja::Value::from(status)),
        ]);
        Arc::make_mut(&mut self.steps).insert(id.to_owned(), step);
    }

    /// This scope for one item of a map; `index` counts from 0.
    #[must_use]
    pub fn with_item(&self, item: &Value, index: usize) -> Self {
        Self {
            item: Some((minijinja::Value::from(Serde(item)), index)),
            ..self.clone()
        }
    }

    fn context(&self) -> BTreeMap<&'static str, minijinja::Value> {
        let steps = minijinja::Value::from_dyn_object(Arc::clone(&self.steps));
        let mut context = BTreeMap::from([
            ("input", self.input.clone()),
            ("run", self.run.clone()),
            ("steps", steps),
        ]);
        if let Some((item, index)) = &self.item {
            context.insert("item", item.clone());
            context.insert("index", minijinja::Value::from(*index));
        }
        context
    }
}

/// A template that cannot be rendered; trying again changes nothing.
///
/// It holds the engine's message and not the engine's error, which would carry the values in scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: `{expression}`: {message}")]
pub struct TemplateError {
    /// The key it was written in, `input.files[0]`.
    pub key: String,
    /// The expression.
    pub expression: String,
    /// What is wrong.
    pub message: String,
}

/// Renders every text inside a value; `key` is what errors call it.
pub fn render(key: &str, template: &Value, scope: &Scope) -> Result<Value, TemplateError> {
    render_in(key, template, &scope.context())
}

/// Renders a text to a text.
pub fn render_text(key: &str, template: &str, scope: &Scope) -> Result<String, TemplateError> {
    Ok(as_text(render_str(key, template, &scope.context())?))
}

/// Renders the value of an environment variable. `${NAME}` stands for a value in `variables` where the
/// spec itself says it; in what a template gives it is plain text, so that no model can ask for one.
pub fn render_env(
    key: &str,
    template: &str,
    scope: &Scope,
    variables: &BTreeMap<String, String>,
) -> Result<String, TemplateError> {
    let refuse = |expression: &str, message: String| TemplateError {
        key: key.to_owned(),
        expression: shortened(expression),
        message,
    };
    let found =
        scan::variables(template).map_err(|rest| refuse(rest, "expected `${NAME}`".to_owned()))?;
    let mut rewritten = String::with_capacity(template.len());
    let mut at = 0;
    for (range, name) in found {
        if !variables.contains_key(name) {
            return Err(refuse(&template[range], format!("{name} is not set")));
        }
        rewritten.push_str(&template[at..range.start]);
        // A brace right before a tag would become part of it.
        if rewritten.ends_with('{') {
            rewritten.pop();
            rewritten.push_str("{{ '{' }}");
        }
        rewritten.push_str(&format!("{{{{ {VARIABLES}.{name} }}}}"));
        at = range.end;
    }
    rewritten.push_str(&template[at..]);
    let mut context = scope.context();
    if at > 0 {
        let pairs = variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        context.insert(VARIABLES, minijinja::Value::from_pairs(pairs));
    }
    Ok(as_text(render_str(key, &rewritten, &context)?))
}

/// Whether a `when` says yes: what it gives is not false, null, 0 or empty.
pub fn truthy(key: &str, template: &str, scope: &Scope) -> Result<bool, TemplateError> {
    let template = template.trim();
    let is_typed = scan::only_expression(template).is_some();
    Ok(match render_str(key, template, &scope.context())? {
        Value::Null => false,
        Value::Bool(yes) => yes,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) if is_typed => !text.is_empty(),
        Value::String(text) => !matches!(text.trim(), "" | "false" | "null" | "0"),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    })
}

/// The steps whose outputs the templates inside a value look at.
pub fn references(template: &Value) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    each_text(template, &mut |text| ids.append(&mut references_str(text)));
    ids
}

/// The steps whose outputs a template looks at.
pub fn references_str(template: &str) -> BTreeSet<String> {
    if !scan::has_tags(template) {
        return BTreeSet::new();
    }
    scan::looks(template)
        .into_iter()
        .filter(|look| look.root == "steps")
        .filter_map(|look| look.path.into_iter().next())
        .collect()
}

/// Whether the engine understands a template; `Err` says what it does not.
pub(super) fn parse(template: &str) -> Result<(), String> {
    match environment().template_from_str(template) {
        Ok(_) => Ok(()),
        Err(error) => Err(message_of(&error)),
    }
}

fn each_text(value: &Value, f: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => f(text),
        Value::Array(items) => items.iter().for_each(|item| each_text(item, f)),
        Value::Object(fields) => fields.values().for_each(|field| each_text(field, f)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

type Context = BTreeMap<&'static str, minijinja::Value>;

fn render_in(key: &str, template: &Value, context: &Context) -> Result<Value, TemplateError> {
    match template {
        Value::String(text) => render_str(key, text, context),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items
                .map(|(index, item)| render_in(&format!("{key}[{index}]"), item, context))
                .collect()
        }
        Value::Object(fields) => {
            let mut rendered = serde_json::Map::new();
            for (name, field) in fields {
                let field = render_in(&format!("{key}.{name}"), field, context)?;
                rendered.insert(name.clone(), field);
            }
            Ok(Value::Object(rendered))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(template.clone()),
    }
}

fn render_str(key: &str, text: &str, context: &Context) -> Result<Value, TemplateError> {
    if !scan::has_tags(text) {
        return Ok(Value::String(text.to_owned()));
    }
    let refuse = |expression: &str, message: String| TemplateError {
        key: key.to_owned(),
        expression: shortened(expression),
        message,
    };
    if let Some(expression) = scan::only_expression(text) {
        let value = environment()
            .compile_expression(expression)
            .and_then(|compiled| compiled.eval(context.clone()))
            .map_err(|error| refuse(expression, message_of(&error)))?;
        return to_json(&value).map_err(|message| refuse(expression, message));
    }
    environment()
        .template_from_str(text)
        .and_then(|template| template.render(context.clone()))
        .map(Value::String)
        .map_err(|error| refuse(failed_part(text, &error), message_of(&error)))
}

/// The tag of a template in which an error happened.
fn failed_part<'a>(text: &'a str, error: &minijinja::Error) -> &'a str {
    let at = error.range().map(|range| range.start);
    scan::pieces(text)
        .into_iter()
        .find_map(|piece| match piece {
            Piece::Expression(inside) | Piece::Statement(inside) => {
                at.filter(|at| inside.contains(at)).map(|_| &text[inside])
            }
            Piece::Text(_) | Piece::Opaque => None,
        })
        .unwrap_or(text)
}

fn shortened(expression: &str) -> String {
    const LENGTH_MAX: usize = 120;
    let expression = expression.trim();
    let mut short: String = expression.chars().take(LENGTH_MAX).collect();
    if short.len() < expression.len() {
        short.push('…');
    }
    short
}

fn message_of(error: &minijinja::Error) -> String {
    match (error.kind(), error.detail()) {
        (kind, None) => kind.to_string(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
    }
}

pub(crate) fn as_text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// What a template may do: some seconds of work.
const FUEL: u64 = 20_000_000;

fn environment() -> &'static Environment<'static> {
    static ENVIRONMENT: OnceLock<Environment<'static>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        // A template that loops for ever would hold the whole process up.
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
        environment.set_syntax(syntax.expect("the usual delimiters"));
        environment.set_formatter(|out, _state, value| {
            let invalid = |message| minijinja::Error::new(ErrorKind::InvalidOperation, message);
            let text = match value.as_str() {
                Some(text) => return out.write_str(text).map_err(Into::into),
                None => as_text(to_json(value).map_err(invalid)?),
            };
            out.write_str(&text).map_err(Into::into)
        });
        environment
    })
}

/// A value as JSON: integers stay exact, and what JSON cannot say is refused instead of being null.
fn to_json(value: &minijinja::Value) -> Result<Value, String> {
    match value.kind() {
        ValueKind::Undefined => Err("it is not defined".to_owned()),
        ValueKind::None => Ok(Value::Null),
        ValueKind::Bool => Ok(Value::Bool(value.is_true())),
        ValueKind::Number => number(value),
        ValueKind::String => Ok(Value::from(value.as_str().unwrap_or_default())),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter().map_err(|error| message_of(&error))?;
            items.map(|item| to_json(&item)).collect()
        }
        ValueKind::Map => {
            let mut fields = serde_json::Map::new();
            for name in value.try_iter().map_err(|error| message_of(&error))? {
                let field = value.get_item(&name).map_err(|error| message_of(&error))?;
                fields.insert(as_text(to_json(&name)?), to_json(&field)?);
            }
            Ok(Value::Object(fields))
        }
        kind => Err(format!("it gives {kind}, which is no JSON")),
    }
}

fn number(value: &minijinja::Value) -> Result<Value, String> {
    if value.is_integer() {
        let signed = i64::try_from(value.clone()).map(Value::from);
        let integer = signed.or_else(|_| u64::try_from(value.clone()).map(Value::from));
        return integer.map_err(|_| format!("{value} is too large for JSON"));
    }
    let float = f64::try_from(value.clone()).map_err(|error| message_of(&error))?;
    serde_json::Number::from_f64(float)
        .map(Value::Number)
        .ok_or_else(|| format!("{float} is no JSON number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scope() -> Scope {
        let input = json!({
            "big": 9_007_199_254_740_993_i64, "max": u64::MAX, "min": i64::MIN, "float": 1.0,
            "tiny": 5e-324, "null": null, "yes": true, "html": "<a & b>", "list": [1, {"z": 1, "a": 2}],
            "nested": {"my key": {"b.c": "x"}},
        });
        let mut scope = Scope::new("run_1", &input);
        scope.add_step("files", &json!(["a.py", "b.py"]), Some(0), "finished");
        scope.add_step("my-step.2", &json!({"n": 1}), None, "skipped");
        scope
    }

    fn rendered(template: Value) -> Value {
        render("input", &template, &scope()).unwrap()
    }

    #[test]
    fn one_expression_keeps_its_type() {
        for (template, expected) in [
            ("{{ input.big }}", json!(9_007_199_254_740_993_i64)),
            ("{{ input.max }}", json!(u64::MAX)),
            ("{{ input.min }}", json!(i64::MIN)),
            ("{{ input.float }}", json!(1.0)),
            ("{{ input.tiny }}", json!(5e-324)),
            ("{{ input.null }}", json!(null)),
            ("{{ input.list }}", json!([1, {"z": 1, "a": 2}])),
            ("{{ input.nested['my key'] }}", json!({"b.c": "x"})),
            ("{{ steps.files.output | length }}", json!(2)),
            ("{{ steps.files.exit_code }}", json!(0)),
            ("{{ steps['my-step.2'].output.n + 1 }}", json!(2)),
            ("{{ steps[\"my-step.2\"].exit_code }}", json!(null)),
            ("{{ steps['my-step.2'].status }}", json!("skipped")),
            (
                "{{ steps.files.output | map('upper') }}",
                json!(["A.PY", "B.PY"]),
            ),
            ("{{ {'a': {'b': input.yes}} }}", json!({"a": {"b": true}})),
            ("{{ run.id }}", json!("run_1")),
            ("{{ input.missing | default(3) }}", json!(3)),
        ] {
            assert_eq!(rendered(json!(template)), expected, "{template}");
        }
    }

    #[test]
    fn other_texts_stay_text_with_values_as_json() {
        for (template, expected) in [
            ("plain", "plain"),
            (" {{ input.big }}", " 9007199254740993"),
            (
                "{{ input.null }}/{{ input.yes }}/{{ input.float }}",
                "null/true/1.0",
            ),
            (
                "{{ input.html }} {{ input.list }}",
                r#"<a & b> [1,{"a":2,"z":1}]"#,
            ),
            (
                "{% for f in steps.files.output %}{{ f }} {% endfor %}",
                "a.py b.py ",
            ),
            ("{{ input.yes }}\n", "true\n"),
        ] {
            assert_eq!(rendered(json!(template)), json!(expected), "{template}");
        }
        assert_eq!(
            rendered(json!({"a": ["{{ input.yes }}", 1], "{{ b }}": null})),
            json!({"a": [true, 1], "{{ b }}": null})
        );
    }

    #[test]
    fn an_item_has_its_own_scope() {
        let scope = scope().with_item(&json!({"id": 7}), 3);
        let render = |template| render("input", &json!(template), &scope).unwrap();
        assert_eq!(render("{{ item.id }}"), json!(7));
        assert_eq!(render("{{ index }}: {{ item }}"), json!(r#"3: {"id":7}"#));
        assert_eq!(
            render_text("map_key", "{{ item.id }}", &scope).unwrap(),
            "7"
        );
    }

    #[test]
    fn errors_name_the_key_and_the_expression() {
        let refused = [
            json!({"a": ["{{ input.missing }}"]}),
            json!("{{ input.yes }} {{ input.missing }}"),
            json!("{{ input.missing.deeper }}"),
            json!("{{ [input.missing] }}"),
            json!("{{ item }}"),
            json!("{{ input.max + 1 }}"),
            json!("{{ 1 / 0 }}"),
            json!("{{ 1 + }}"),
            json!("{% include 'x' %}"),
            json!("{{ input.html | nope }}"),
        ]
        .map(|template| {
            render("input", &template, &scope())
                .unwrap_err()
                .to_string()
        });
        insta::assert_snapshot!(refused.join("\n"));
    }

    #[test]
    fn when_is_what_it_gives() {
        let is = |template: &str| truthy("when", template, &scope()).unwrap();
        for yes in [
            "{{ input.yes }}",
            " {{ steps.files.output }}\n",
            "{{ 'false' }}",
            "true",
            "{{ 0.5 }}",
        ] {
            assert!(is(yes), "{yes}");
        }
        for no in [
            "{{ input.null }}",
            "{{ 0 }}",
            "{{ 0.0 }}",
            "{{ '' }}",
            "{{ [] }}",
            "{{ {} }}",
            "false",
            "{{ not input.yes }}",
            "{% if not input.yes %}1{% endif %}",
        ] {
            assert!(!is(no), "{no}");
        }
        assert!(truthy("when", "{{ input.missing }}", &scope()).is_err());
    }

    #[test]
    fn variables_come_from_the_spec_and_never_from_data() {
        let scope = Scope::new("run_1", &json!("${TOKEN} {{ x }}"));
        let variables = BTreeMap::from([("TOKEN".to_owned(), "s3cret {{ y }}".to_owned())]);
        let env = |template| render_env("env.A", template, &scope, &variables);
        assert_eq!(env("Bearer ${TOKEN}").unwrap(), "Bearer s3cret {{ y }}");
        assert_eq!(env("{{ input }}").unwrap(), "${TOKEN} {{ x }}");
        assert_eq!(env("{${TOKEN}}").unwrap(), "{s3cret {{ y }}}");
        assert_eq!(env("${TOKEN}").unwrap(), "s3cret {{ y }}");
        assert_eq!(
            env("{{ input }}-${TOKEN}").unwrap(),
            "${TOKEN} {{ x }}-s3cret {{ y }}"
        );
        assert_eq!(
            env("${OTHER}").unwrap_err().to_string(),
            "env.A: `${OTHER}`: OTHER is not set"
        );
        assert_eq!(
            env("${").unwrap_err().to_string(),
            "env.A: `${`: expected `${NAME}`"
        );
    }

    #[test]
    fn references_are_the_steps_looked_at() {
        let ids = |template: Value| references(&template).into_iter().collect::<Vec<_>>();
        assert_eq!(
            ids(
                json!({"a": ["{{ steps.a.output }}"], "b": "x {{ steps['b-c'].status }} {{ steps.a }}"})
            ),
            ["a", "b-c"]
        );
        assert_eq!(
            ids(json!("{{ input.steps.a }} steps.b {{ 'steps.c' }}")),
            [""; 0]
        );
        assert_eq!(ids(json!("{{ steps.a.output[1:] }}")), ["a"]);
    }
}
