//! What the description gives its readers to go on with: examples that fit, and links that lead on.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

mod common;

use std::collections::BTreeMap;

use common::Site;
use logreel::Engine;
use logreel::store::SystemEnv;
use logreel_server::{Role, Tokens};
use reqwest::Method;
use serde_json::{Value, json};

/// An operation of the description.
struct Operation<'d> {
    method: Method,
    path: &'d str,
    described: &'d Value,
}

fn operations(document: &Value) -> BTreeMap<&str, Operation<'_>> {
    let paths = document["paths"].as_object().unwrap().iter();
    let operations = paths.flat_map(|(path, methods)| {
        methods
            .as_object()
            .unwrap()
            .iter()
            .map(move |(method, described)| {
                let id = described["operationId"].as_str().unwrap();
                let method = method.to_ascii_uppercase().parse().unwrap();
                let operation = Operation {
                    method,
                    path,
                    described,
                };
                (id, operation)
            })
    });
    operations.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_operation_lets_in_another_page_or_one_without_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("runs.db");
    let tokens = Tokens::beside(&store);
    let make = async |name: &str, role| {
        let made = tokens.create(&SystemEnv, name.to_owned(), role, None);
        format!("Bearer {}", made.await.unwrap().secret)
    };
    let reads = make("reads", Role::Read).await;
    let all = make("all", Role::Admin).await;
    // As it is off loopback, and as it is on it.
    let engine = Engine::open(&store).await.unwrap();
    let known = Tokens::beside(&store);
    let guarded = Site::on(engine, |server| server.tokens(known, true)).await;
    let open = Site::in_memory().await;
    let document = open.get("/openapi.json").await.json();
    let all_operations = operations(&document);
    let ask = async |site: &Site, operation: &Operation<'_>, headers: &[(&str, &str)]| {
        let path: Vec<&str> = operation.path.split('/').collect();
        let path = path.iter().map(|it| match it.starts_with('{') {
            true => "@last",
            false => *it,
        });
        let path = path.collect::<Vec<_>>().join("/");
        let body = operation.described.get("requestBody").map(|_| json!({}));
        let said = site.send(operation.method.clone(), &path, headers, body);
        let said = said.await;
        (
            said.status,
            said.json()["kind"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let forbidden = (403, "forbidden".to_owned());
    let (mut acts, mut roles) = (0, 0);
    for (id, operation) in &all_operations {
        for stranger in [
            ("host", "evil.example"),
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
        ] {
            assert_eq!(
                ask(&open, operation, &[stranger]).await,
                forbidden,
                "{id} {stranger:?}"
            );
            let known = [("authorization", &*all), stranger];
            assert_eq!(
                ask(&guarded, operation, &known).await,
                forbidden,
                "{id} {stranger:?}"
            );
        }
        let described = operation.described;
        let Some(role) = described["x-logreel-role"].as_str() else {
            assert!(["health", "openapi"].contains(id), "{id} asks nobody");
            continue;
        };
        roles += 1;
        let unknown: [&[(&str, &str)]; 2] = [&[], &[("authorization", "Bearer nobody")]];
        for unknown in unknown {
            let unauthorized = (401, "unauthorized".to_owned());
            assert_eq!(
                ask(&guarded, operation, unknown).await,
                unauthorized,
                "{id}"
            );
        }
        if operation.method != Method::GET {
            assert_ne!(role, "read", "{id}");
            let known = [("authorization", &*reads)];
            assert_eq!(ask(&guarded, operation, &known).await, forbidden, "{id}");
            acts += 1;
        }
    }
    assert!(acts > 15 && roles > acts, "{acts} {roles}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_is_what_its_schema_says() {
    let site = Site::in_memory().await;
    let document = site.get("/openapi.json").await.json();
    let mut count = 0;
    for (id, operation) in operations(&document) {
        let contents = operation.described["requestBody"]["content"].as_object();
        for content in contents.into_iter().flat_map(|it| it.values()) {
            let schema = content["schema"]["$ref"].as_str().unwrap();
            let schema = schema.rsplit('/').next().unwrap();
            for example in content["examples"].as_object().into_iter().flatten() {
                assert!(site.fits(schema, &example.1["value"]), "{id}: {example:?}");
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count}");
    // What a server has is told, and can be started as it stands there.
    let content = &document["paths"]["/v1/runs"]["post"]["requestBody"]["content"];
    let example = &content["application/json"]["examples"]["spec-ask"]["value"];
    let mut new = example.clone();
    new["input"] = json!("go on?");
    assert_eq!(site.post("/v1/runs", new).await.status, 201);
    // An example is of a request that any server answers well.
    for about in ["driven-by-the-caller", "driven-by-the-caller-in-a-session"] {
        let example = &content["application/json"]["examples"][about]["value"];
        let said = site.post("/v1/runs", example.clone()).await;
        assert_eq!(said.status, 201, "{}", said.text);
    }
    let blob = &operations(&document)["putBlob"];
    let parameters = blob.described["parameters"].as_array().unwrap();
    let example = |name: &str| {
        let mut parameters = parameters.iter();
        let found = parameters.find(|it| it["name"] == name).unwrap();
        found["example"].as_str().unwrap()
    };
    let content = &blob.described["requestBody"]["content"]["application/octet-stream"];
    let text = content["examples"]["a-text"]["value"].as_str().unwrap();
    let path = format!("/v1/blobs/{}?run={}", example("digest"), example("run"));
    let put = site.request(Method::PUT, &path).body(text.to_owned());
    assert_eq!(site.checked(Method::PUT, &path, put).await.status, 204);
}

/// A request and its answer, which links begin at.
struct Seen {
    operation: &'static str,
    status: u16,
    path: BTreeMap<&'static str, String>,
    body: Value,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_link_leads_on() {
    let site = Site::in_memory().await;
    let document = site.get("/openapi.json").await.json();
    let operations = operations(&document);
    let mut followed = BTreeMap::new();
    for source in [
        "listSpecs",
        "startRun",
        "startRun of a caller",
        "listRuns",
        "claimLease",
        "releaseLease",
        "putBlob",
        "listSessions",
    ] {
        let first = seen(&site, source, 0).await;
        let answers = &operations[first.operation].described["responses"];
        let links = answers[first.status.to_string()]["links"].as_object();
        for (turn, (name, link)) in links.unwrap().iter().enumerate() {
            // Of its own answer each: another link may have ended the run.
            let seen = seen(&site, source, turn + 1).await;
            let Some(status) = follow(&site, &operations, &seen, link).await else {
                continue;
            };
            let target = link["operationId"].as_str().unwrap().to_owned();
            assert!(
                matches!(status, 200..300 | 409),
                "{source} -> {name}: {status}"
            );
            let best = followed.entry(target).or_insert(status);
            *best = status.min(*best);
        }
    }
    // These wait for what only a person, a crash or an agent brings about.
    let rare = [
        "answerRun",
        "resolveCall",
        "sayToRun",
        "resumeRun",
        "retryRun",
    ];
    for (target, status) in followed {
        let well = status < 300 || rare.contains(&&*target);
        assert!(well, "no link led to {target}: {status}");
    }
}

/// Asks for something anew, so that its links can be followed.
async fn seen(site: &Site, source: &str, turn: usize) -> Seen {
    let session = format!("{source} {turn}");
    let external = json!({"spec": "crew", "driver": "external", "session": session});
    let start = async |new: Value| {
        let said = site.post("/v1/runs", new).await;
        assert_eq!(said.status, 201, "{}", said.text);
        said.json()
    };
    let release = async |made: &Value| {
        let run = made["run"]["id"].as_str().unwrap();
        let secret = made["lease"]["secret"].as_str().unwrap();
        let (path, headers) = (format!("/v1/runs/{run}/lease"), [("logreel-lease", secret)]);
        let said = site.send(Method::DELETE, &path, &headers, None).await;
        assert_eq!(said.status, 200, "{}", said.text);
        (run.to_owned(), said.json())
    };
    let mut path = BTreeMap::new();
    let (operation, status, body) = match source {
        "listSpecs" => ("listSpecs", 200, site.get("/v1/specs").await.json()),
        "startRun" => {
            let new = json!({"spec": "ask", "input": "?", "session": session});
            ("startRun", 201, start(new).await)
        }
        "startRun of a caller" => ("startRun", 201, start(external).await),
        "listRuns" => {
            start(json!({"spec": "ask", "input": "?"})).await;
            ("listRuns", 200, site.get("/v1/runs").await.json())
        }
        "claimLease" => {
            let (run, _) = release(&start(external).await).await;
            let lease = format!("/v1/runs/{run}/lease");
            let said = site.send(Method::POST, &lease, &[], None).await;
            ("claimLease", 200, said.json())
        }
        "releaseLease" => ("releaseLease", 200, release(&start(external).await).await.1),
        "putBlob" => {
            let made = start(external).await;
            let digest = logreel::Digest::of(b"abc").to_string();
            let run = made["run"]["id"].as_str().unwrap();
            let blob = format!("/v1/blobs/{digest}?run={run}");
            let put = site.request(Method::PUT, &blob).body("abc");
            assert_eq!(site.checked(Method::PUT, &blob, put).await.status, 204);
            path.insert("digest", digest);
            ("putBlob", 204, Value::Null)
        }
        _ => {
            start(json!({"spec": "ask", "input": "?", "session": session})).await;
            ("listSessions", 200, site.get("/v1/sessions").await.json())
        }
    };
    Seen {
        operation,
        status,
        path,
        body,
    }
}

/// Makes the request that a link tells of, with the first example of its body; `None` when the answer is not of
/// the kind that has what the link takes.
async fn follow(
    site: &Site,
    operations: &BTreeMap<&str, Operation<'_>>,
    seen: &Seen,
    link: &Value,
) -> Option<u16> {
    let target = &operations[link["operationId"].as_str().unwrap()];
    let known = target.described["parameters"].as_array().unwrap();
    let given = link["parameters"].as_object().unwrap();
    let mut values = BTreeMap::new();
    for name in given.keys() {
        assert!(known.iter().any(|it| it["name"] == **name), "{link}");
        values.insert(name.as_str(), resolve(seen, &given[name])?);
    }
    let mut path = target.path.to_owned();
    let (mut query, mut headers) = (String::new(), Vec::new());
    for parameter in known {
        let name = parameter["name"].as_str().unwrap();
        let value = values.get(name).cloned();
        let required = parameter["required"] == true;
        let value = value.or_else(|| required.then(|| parameter["example"].clone()));
        let Some(value) = value else { continue };
        let text = value.as_str()?.replace('/', "%2F").replace(' ', "%20");
        match parameter["in"].as_str().unwrap() {
            "path" => path = path.replace(&format!("{{{name}}}"), &text),
            "query" => query = format!("?{name}={text}"),
            _ => headers.push((name, text)),
        }
    }
    let path = format!("{path}{query}");
    let mut request = site.request(target.method.clone(), &path);
    for (name, value) in &headers {
        request = request.header(*name, value);
    }
    let contents = target.described["requestBody"]["content"].as_object();
    if let Some((media_type, content)) = contents.and_then(|it| it.iter().next()) {
        let mut examples = content["examples"].as_object().unwrap().values();
        let mut body = examples.next().unwrap()["value"].clone();
        for (name, value) in link["requestBody"].as_object().into_iter().flatten() {
            body[name] = resolve(seen, value)?;
        }
        request = match media_type.as_str() {
            "application/json" => request.json(&body),
            _ => request.body(body.as_str().unwrap().to_owned()),
        };
    }
    Some(
        site.checked(target.method.clone(), &path, request)
            .await
            .status,
    )
}

/// What an expression of a link means.
fn resolve(seen: &Seen, expression: &Value) -> Option<Value> {
    let text = expression.as_str().unwrap();
    if let Some(pointer) = text.strip_prefix("$response.body#") {
        return seen
            .body
            .pointer(pointer)
            .cloned()
            .filter(|it| !it.is_null());
    }
    let name = text.strip_prefix("$request.path.");
    let name = name.unwrap_or_else(|| panic!("{text} is no expression that is used here"));
    Some(json!(seen.path[name]))
}
