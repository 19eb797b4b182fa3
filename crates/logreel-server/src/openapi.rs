//! The description of the API: OpenAPI 3.1, made of the table that the routes are made of.
//!
//! Every object that is answered is closed but for those that hold what users, models and tools said:
//! `input output state body value arguments labels`.

mod examples;
mod links;
mod schemas;

use axum::body::Body;
use serde_json::{Map, Value, json};

use crate::answer;
use crate::call::Call;
use crate::operation::{Answered, Given, Operation, Parameter};
use crate::table;

/// The whole description.
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in table::operations() {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        let method = operation.method.as_str().to_ascii_lowercase();
        path[method] = described(&operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Logreel",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Durable runs for AI agents: start them, watch them live, act on them.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": {
                "token": {
                    "type": "http", "scheme": "bearer",
                    "description": "From `logreel token create`. On loopback none is needed.",
                },
            },
        },
    })
}

/// `GET /openapi.json`: to whoever needs no token it also says by which names runs can be started.
pub(crate) async fn answer(call: Call) -> Answered {
    let mut document = document();
    let specs = match call.app.trusts_callers {
        true => call.app.specs.list().await?,
        false => Vec::new(),
    };
    let names: Vec<String> = specs.into_iter().map(|spec| spec.name).collect();
    if !names.is_empty() {
        let schemas = &mut document["components"]["schemas"];
        schemas["SpecName"] = json!({"enum": names});
    }
    let started = &mut document["paths"]["/v1/runs"]["post"]["requestBody"]["content"];
    if let Some(listed) = started["application/json"]["examples"].as_object_mut() {
        listed.extend(examples::of_specs(&names));
    }
    if let Some(name) = names.first() {
        let paths = document["paths"].as_object_mut().into_iter().flatten();
        let operations = paths.filter_map(|(_, path)| path.as_object_mut()).flatten();
        let parameters = operations.filter_map(|(_, it)| it["parameters"].as_array_mut());
        for parameter in parameters.flatten().filter(|it| it["name"] == "spec") {
            parameter["example"] = json!(name);
        }
    }
    Ok(answer::of_type(
        "application/json",
        Body::from(document.to_string()),
    ))
}

fn described(operation: &Operation) -> Value {
    let in_path = operation.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        let mut part = json!({
            "name": name, "in": "path", "required": true,
            "description": about_part(name), "schema": {"type": "string", "minLength": 1},
        });
        if let Some(example) = examples::of_parameter(name) {
            part["example"] = example;
        }
        Some(part)
    });
    let in_query = operation.query.iter().map(|it| parameter(it, "query"));
    let in_headers = operation.headers.iter().map(|it| parameter(it, "header"));
    let parameters: Vec<Value> = in_path.chain(in_query).chain(in_headers).collect();
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.does,
        "parameters": parameters,
        "responses": responses(operation),
    });
    if let Some(given) = &operation.body {
        let (media_type, schema, required) = match given {
            Given::Bytes => ("application/octet-stream", "Bytes", true),
            Given::Json { schema, required } => ("application/json", *schema, *required),
        };
        let mut content = json!({"schema": reference(schema)});
        let examples = examples::of_body(operation.id);
        if !examples.is_empty() {
            content["examples"] = Value::Object(examples);
        }
        described["requestBody"] = json!({"required": required, "content": {media_type: content}});
    }
    match operation.role {
        None => described["security"] = json!([{}]),
        Some(role) => described["x-logreel-role"] = json!(role.as_str()),
    }
    described
}

fn about_part(name: &str) -> &'static str {
    match name {
        "id" | "other" => "A run: its id, the beginning of it, its last 8 digits, or `@last`",
        "session" => "A session's name",
        "digest" => "`blake3:` and 64 hex digits",
        "name" => "A signal's name",
        "spec" => "The name of a spec, as `GET /v1/specs` has it",
        _ => "A part of the path",
    }
}

fn parameter(parameter: &Parameter, place: &str) -> Value {
    let schema = match parameter.repeats {
        true => json!({"type": "array", "items": parameter.schema}),
        false => parameter.schema.clone(),
    };
    let mut described = json!({
        "name": parameter.name, "in": place, "required": parameter.required,
        "description": parameter.about, "schema": schema,
    });
    // Of the others an example would only make the answer smaller.
    if let ("run", Some(example)) = (parameter.name, examples::of_parameter(parameter.name)) {
        described["example"] = example;
    }
    described
}

fn responses(operation: &Operation) -> Value {
    let mut responses: Map<String, Value> = Map::new();
    for answer in &operation.answers {
        let mut described = json!({"description": answer.about});
        for (media_type, schema) in &answer.content {
            described["content"][media_type] = json!({"schema": reference(schema)});
        }
        for (name, about) in &answer.headers {
            described["headers"][name] =
                json!({"description": about, "schema": {"type": "string"}});
        }
        let links = links::of(operation.id, answer.status);
        if !links.is_empty() {
            described["links"] = Value::Object(links);
        }
        responses.insert(answer.status.to_string(), described);
    }
    for status in &operation.problems {
        let described = responses
            .entry(status.to_string())
            .or_insert_with(|| json!({"description": about_problem(*status)}));
        described["content"]["application/problem+json"] = json!({"schema": reference("Problem")});
    }
    Value::Object(responses)
}

fn about_problem(status: u16) -> &'static str {
    match status {
        400 => "The request is not one, or names several runs",
        401 => "A token is needed, or the one that was sent is not known",
        403 => "The host, the origin or the role is not allowed",
        404 => "There is no such thing",
        408 => "The body did not arrive in time",
        409 => "It contradicts what is there, or does not apply to the run as it is",
        413 => "It is too large",
        415 => "The body is not JSON",
        422 => "The body does not hold",
        500 => "The store is damaged or newer, or we made a mistake",
        503 => "The store cannot be reached; try again later",
        _ => "It was refused",
    }
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}
