//! From a request to its operation and back: who calls, what was said, how long it took.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use axum::routing::any;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use logreel::ErrorKind;
use tower_http::compression::CompressionLayer;

use crate::app::App;
use crate::call::Call;
use crate::guard::{self, Asked};
use crate::operation::{Answered, Given, Operation};
use crate::{Problem, page};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Beside the largest value, for what is around it.
const BODY_BYTES_BESIDE: u64 = 64 * 1024;

/// How long a body may take to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// Data is for whoever asked, and for nobody's cache.
const API_HEADERS: [(HeaderName, &str); 5] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; frame-ancestors 'none'; sandbox",
    ),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

pub(crate) fn router(app: App) -> Router {
    let mut paths: BTreeMap<&'static str, Vec<usize>> = BTreeMap::new();
    for (place, operation) in app.operations.iter().enumerate() {
        paths.entry(operation.path).or_default().push(place);
    }
    let mut router = Router::new();
    for (path, places) in paths {
        let app = app.clone();
        let places = Arc::new(places);
        let handler = move |params: Result<RawPathParams, RawPathParamsRejection>, request| {
            let (app, places) = (app.clone(), Arc::clone(&places));
            async move { observed(app, path, Called::Operation(&places, params), request).await }
        };
        router = router.route(path, any(handler));
    }
    let fallback = move |request: Request| {
        let app = app.clone();
        async move { observed(app, "", Called::Nothing, request).await }
    };
    // Streams of events are not compressed: nothing may wait for more.
    router.fallback(fallback).layer(CompressionLayer::new())
}

/// What a path led to.
enum Called<'o> {
    /// Operations of it, by their places in the table.
    Operation(&'o [usize], Result<RawPathParams, RawPathParamsRejection>),
    /// Nothing of the API.
    Nothing,
}

/// Answers a request, and tells of it.
async fn observed(
    app: App,
    route: &'static str,
    called: Called<'_>,
    request: Request,
) -> Response<Body> {
    let env = Arc::clone(app.engine.env());
    let begun = env.monotonic();
    let (parts, body) = request.into_parts();
    let method = parts.method.clone();
    let id = request_id(&app, &parts.headers);
    let answered = match called {
        Called::Operation(places, params) => operation(&app, places, params, parts, body).await,
        Called::Nothing => nothing(&app, &parts),
    };
    let mut response = match answered {
        Ok(response) => response,
        Err(problem) => {
            if problem.kind().http_status() >= 500 {
                tracing::error!(kind = problem.kind().as_str(), "{}", problem.detail());
            }
            problem.into_response()
        }
    };
    for (name, value) in API_HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().entry(name).or_insert(value);
    }
    response.headers_mut().insert(REQUEST_ID, id.clone());
    let took = env.monotonic().saturating_sub(begun);
    let status = response.status().as_u16();
    let route = if route.is_empty() { "page" } else { route };
    app.metrics.answered(&method, route, status, took);
    // The path's template, not the path: sessions and searches are nobody's business.
    tracing::info!(
        %method, route, status, took_us = took.as_micros() as u64,
        request_id = id.to_str().unwrap_or_default(),
        "answered"
    );
    response
}

/// The caller's own id for the request, when it can be one; else one of ours.
fn request_id(app: &App, headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(REQUEST_ID).filter(|given| {
        let bytes = given.as_bytes();
        let plain = bytes.iter().all(|byte| byte.is_ascii_graphic());
        plain && !bytes.is_empty() && bytes.len() <= REQUEST_ID_BYTES_MAX
    });
    given.cloned().unwrap_or_else(|| {
        let drawn = format!("{:016x}", app.engine.env().random_u64());
        HeaderValue::from_str(&drawn).expect("hex digits")
    })
}

async fn operation(
    app: &App,
    places: &[usize],
    params: Result<RawPathParams, RawPathParamsRejection>,
    parts: Parts,
    body: Body,
) -> Answered {
    guard::check_source(app, &parts, Asked::Api)?;
    let operations = || places.iter().map(|place| &app.operations[*place]);
    let asked = match parts.method {
        Method::HEAD => &Method::GET,
        ref other => other,
    };
    let Some(operation) = operations().find(|it| it.method == *asked) else {
        return Err(wrong_method(
            operations().map(|it| &it.method),
            &parts.method,
        ));
    };
    let caller = guard::caller(app, &parts.headers, operation.role).await?;
    let params = params.map_err(|_| Problem::not_found("the path is not UTF-8 text"))?;
    let params = params
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let call = Call {
        caller,
        params: params.collect(),
        query: query(operation, parts.uri.query().unwrap_or_default())?,
        body: match &operation.body {
            None => Bytes::new(),
            Some(given) => read(app, given, &parts.headers, body).await?,
        },
        headers: parts.headers,
        app: app.clone(),
    };
    let token = call.headers.get(header::AUTHORIZATION).cloned();
    let handler = operation.handler;
    let answered = match operation.method {
        Method::GET => handler(call).await,
        // Someone who hangs up has still asked for it: half of a command helps nobody.
        _ => tokio::spawn(handler(call)).await.unwrap_or_else(|error| {
            Err(Problem::new(
                ErrorKind::Bug,
                format!("the request was not handled: {error}"),
            ))
        }),
    };
    Ok(guard::while_known(app, token, operation.role, answered?))
}

fn wrong_method<'m>(methods: impl Iterator<Item = &'m Method>, asked: &Method) -> Problem {
    let mut allowed: Vec<&str> = methods.map(Method::as_str).collect();
    if allowed.contains(&"GET") {
        allowed.push("HEAD");
    }
    let allowed = allowed.join(", ");
    let detail = format!("{asked} is not for this path; it takes {allowed}");
    let allow = HeaderValue::from_str(&allowed).expect("names of methods");
    Problem::usage(detail)
        .status(StatusCode::METHOD_NOT_ALLOWED)
        .header(header::ALLOW, allow)
}

/// What the query says, when the operation knows all of it.
fn query(operation: &Operation, text: &str) -> Result<Vec<(String, String)>, Problem> {
    let mut query: Vec<(String, String)> = Vec::new();
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        let known = operation.query.iter().find(|known| known.name == name);
        let Some(known) = known else {
            let names: Vec<_> = operation.query.iter().map(|known| known.name).collect();
            let expected = match names.as_slice() {
                [] => "this takes none".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            let detail = format!("there is no parameter {name:?}; {expected}");
            return Err(Problem::usage(detail));
        };
        if !known.repeats && query.iter().any(|(it, _)| *it == name) {
            return Err(Problem::usage(format!("`{name}` is given twice")));
        }
        query.push((name.into_owned(), value.into_owned()));
    }
    Ok(query)
}

async fn read(app: &App, given: &Given, headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let max = app.engine.payload_bytes_max() + BODY_BYTES_BESIDE;
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > max) {
        return Err(too_large(max));
    }
    let bytes = tokio::select! {
        bytes = collect(body, max) => bytes?,
        () = app.engine.env().sleep(BODY_TIME_MAX) => {
            let detail = "the body did not arrive in time";
            return Err(Problem::usage(detail).status(StatusCode::REQUEST_TIMEOUT));
        }
    };
    let Given::Json { required, .. } = given else {
        return Ok(bytes);
    };
    match bytes.is_empty() {
        true if *required => return Err(Problem::usage("a body of JSON is missing")),
        true => {}
        false if is_json(headers) => {}
        false => {
            let detail = "the body must be `Content-Type: application/json`";
            return Err(Problem::usage(detail).status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
    }
    Ok(bytes)
}

async fn collect(body: Body, max: u64) -> Result<Bytes, Problem> {
    let mut stream = body.into_data_stream();
    let mut bytes = BytesMut::new();
    while let Some(piece) = stream.next().await {
        let broken = |error| Problem::usage(format!("the body cannot be read: {error}"));
        let piece = piece.map_err(broken)?;
        if bytes.len() as u64 + piece.len() as u64 > max {
            return Err(too_large(max));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.freeze())
}

fn too_large(max: u64) -> Problem {
    let detail = format!("the body is over the ceiling of {max} bytes (payload_max)");
    Problem::new(ErrorKind::TooLarge, detail)
}

fn is_json(headers: &HeaderMap) -> bool {
    let said = headers.get(header::CONTENT_TYPE);
    let said = said.and_then(|it| it.to_str().ok()).unwrap_or_default();
    let media_type = said.split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("application/json")
}

/// A path that is no operation: the page, or nothing.
fn nothing(app: &App, parts: &Parts) -> Answered {
    let path = parts.uri.path();
    if path == "/v1" || path.starts_with("/v1/") {
        guard::check_source(app, parts, Asked::Api)?;
        let detail = format!("there is nothing at {path}");
        return Err(Problem::not_found(detail).hint("GET /openapi.json describes what there is"));
    }
    guard::check_source(app, parts, Asked::Page)?;
    match parts.method {
        Method::GET | Method::HEAD => page::answer(path, &parts.headers),
        ref other => Err(wrong_method([&Method::GET].into_iter(), other)),
    }
}
