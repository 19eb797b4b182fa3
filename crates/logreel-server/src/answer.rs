//! Answers: JSON, a run with its steps in pieces, a file.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use futures_util::stream;
use logreel::view::RunView;
use logreel::{Digest, Entry, RunId};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::Problem;
use crate::app::App;
use crate::operation::Answered;

/// A page of a list. Not `json!`: a tree cannot hold every value that a run may have.
#[derive(Serialize)]
pub(crate) struct Page<T, N> {
    pub(crate) items: Vec<T>,
    pub(crate) next: N,
    pub(crate) has_more: bool,
}

pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> Answered {
    let text = serde_json::to_string(value)
        .map_err(|error| Problem::new(logreel::ErrorKind::Bug, error.to_string()))?;
    Ok(of_type("application/json", text.into()))
}

/// A part of an answer, written out.
pub(crate) fn raw<T: Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, Problem> {
    serde_json::value::to_raw_value(value)
        .map_err(|error| Problem::new(logreel::ErrorKind::Bug, error.to_string()))
}

pub(crate) fn of_type(media_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let media_type = HeaderValue::from_static(media_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, media_type);
    response
}

pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// The run as it is now, with its steps.
pub(crate) async fn run(app: &App, run: &RunId) -> Answered {
    let entry = app.engine.store().entry(run).await?;
    whole(app, &entry).await
}

/// A run that was made by this request, and where it is.
pub(crate) async fn made(app: &App, run: &RunId) -> Answered {
    let mut response = self::run(app, run).await?;
    *response.status_mut() = StatusCode::CREATED;
    let place = format!("/v1/runs/{run}");
    let place = HeaderValue::from_str(&place).expect("an id is ASCII");
    response.headers_mut().insert(header::LOCATION, place);
    Ok(response)
}

/// A run, with its steps: they are read while they are sent.
pub(crate) async fn whole(app: &App, entry: &Entry) -> Answered {
    let whole = app.engine.whole(entry).await?;
    let pieces = stream::try_unfold(whole, |mut whole| async move {
        let piece = whole.next().await?;
        Ok::<_, logreel::Error>(piece.map(|piece| (Bytes::from(piece), whole)))
    });
    let mut response = of_type("application/json", Body::from_stream(pieces));
    response.headers_mut().insert(header::ETAG, tag(entry));
    Ok(response)
}

/// Changes whenever the run is shown otherwise: with its head, and with who drives it. Weak, because the
/// answer may be compressed.
pub(crate) fn tag(entry: &Entry) -> HeaderValue {
    let shown = serde_json::to_vec(&RunView::of(entry)).unwrap_or_default();
    let tag = format!("W/\"{}\"", &Digest::of(&shown).hex()[..32]);
    HeaderValue::from_str(&tag).expect("hex digits")
}

/// Whether the caller has what this tag is of.
pub(crate) fn has(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let opaque = |text: &str| text.trim().trim_start_matches("W/").to_owned();
    let Ok(tag) = tag.to_str().map(opaque) else {
        return false;
    };
    let mut said = headers.get_all(header::IF_NONE_MATCH).iter();
    said.any(|said| {
        let said = said.to_str().unwrap_or_default();
        said.trim() == "*" || said.split(',').any(|it| opaque(it) == tag)
    })
}

/// What the caller has already.
pub(crate) fn not_modified(tag: HeaderValue) -> Response<Body> {
    let mut response = empty(StatusCode::NOT_MODIFIED);
    response.headers_mut().insert(header::ETAG, tag);
    response
}
