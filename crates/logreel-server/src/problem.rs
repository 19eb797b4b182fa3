//! Why a request was refused, as RFC 9457 has it: the same kinds as on the command line.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, header};
use logreel::{ErrorKind, Json};
use serde::Serialize;

/// What is said instead of an answer.
#[derive(Debug, Clone)]
pub struct Problem {
    pub(crate) kind: ErrorKind,
    status: u16,
    detail: String,
    hint: Option<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// What this problem has beside what every problem has.
    members: BTreeMap<&'static str, Json>,
}

#[derive(Serialize)]
struct Told<'p> {
    r#type: String,
    title: &'static str,
    status: u16,
    kind: &'static str,
    detail: &'p str,
    hint: Option<&'p str>,
    #[serde(flatten)]
    members: &'p BTreeMap<&'static str, Json>,
}

impl Problem {
    /// A problem of this kind.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            status: kind.http_status(),
            detail: detail.into(),
            hint: None,
            headers: Vec::new(),
            members: BTreeMap::new(),
        }
    }

    /// With something that a program needs to go on.
    pub(crate) fn member<T: Serialize>(mut self, name: &'static str, value: &T) -> Self {
        let value = Json::of(value).unwrap_or_else(|_| Json::null());
        self.members.insert(name, value);
        self
    }

    /// With a word about what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What went wrong, in words.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Under another status than its kind has.
    pub(crate) fn status(mut self, status: StatusCode) -> Self {
        self.status = status.as_u16();
        self
    }

    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The request is not one.
    pub(crate) fn usage(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, detail)
    }

    /// What it says does not hold.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, detail)
    }

    /// There is no such thing.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, detail)
    }

    /// As JSON.
    pub(crate) fn json(&self) -> String {
        let told = Told {
            r#type: format!("urn:logreel:problem:{}", self.kind.as_str()),
            title: title(self.kind),
            status: self.status,
            kind: self.kind.as_str(),
            detail: &self.detail,
            hint: self.hint.as_deref(),
            members: &self.members,
        };
        serde_json::to_string(&told).expect("texts and numbers always serialize")
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.json()));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.extend(
            self.headers
                .into_iter()
                .map(|(name, value)| (Some(name), value)),
        );
        response
    }
}

impl From<logreel::Error> for Problem {
    fn from(error: logreel::Error) -> Self {
        let kind = error.kind();
        let problem = Self::new(kind, with_sources(&error));
        match hint(kind) {
            Some(hint) => problem.hint(hint),
            None => problem,
        }
    }
}

impl From<logreel::store::Error> for Problem {
    fn from(error: logreel::store::Error) -> Self {
        logreel::Error::from(error).into()
    }
}

/// The words of an error and of what caused it, each once and on one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let text = inner.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        source = inner.source();
    }
    message
}

fn hint(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::NotFound => Some("GET /v1/runs lists the runs"),
        ErrorKind::Busy => Some("`if_busy` may be `wait` or `interrupt`"),
        ErrorKind::Terminal => {
            Some("an ended run stays as it is; start a new one, or POST …/retry")
        }
        ErrorKind::SpecChanged => Some("`accept_spec_change` goes on with the spec as it is now"),
        ErrorKind::Corrupt => Some("`logreel verify` names the runs that do not hold"),
        ErrorKind::NewerFormat => Some("use a newer logreel"),
        ErrorKind::Unavailable => Some("try again later; `logreel doctor` looks the store over"),
        ErrorKind::Bug => Some("please report this, with the request that led to it"),
        ErrorKind::Usage
        | ErrorKind::Invalid
        | ErrorKind::Ambiguous
        | ErrorKind::TooLarge
        | ErrorKind::Conflict
        | ErrorKind::Driven
        | ErrorKind::Fenced
        | ErrorKind::NotApplicable
        | ErrorKind::Unauthorized
        | ErrorKind::Forbidden => None,
    }
}

/// The same for every problem of a kind.
fn title(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Usage => "The request is not one",
        ErrorKind::Invalid => "The request's content does not hold",
        ErrorKind::NotFound => "There is no such thing",
        ErrorKind::Ambiguous => "The name fits several",
        ErrorKind::TooLarge => "It is too large",
        ErrorKind::Busy => "The session has an active run",
        ErrorKind::Conflict => "It contradicts what is there",
        ErrorKind::Driven => "Someone else drives the run",
        ErrorKind::Terminal => "The run has ended",
        ErrorKind::SpecChanged => "The spec is not the one the run was started with",
        ErrorKind::Fenced => "Another driver took over",
        ErrorKind::NotApplicable => "It does not apply to the run as it is",
        ErrorKind::Unauthorized => "Nobody knows who asks",
        ErrorKind::Forbidden => "Whoever asks may not",
        ErrorKind::Unavailable => "The store cannot be reached",
        ErrorKind::Corrupt => "Stored bytes are not what was stored",
        ErrorKind::NewerFormat => "A newer build wrote it",
        ErrorKind::Bug => "A mistake of ours",
    }
}
