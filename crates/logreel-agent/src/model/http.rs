//! The way to a provider: one POST, its answer piece by piece, and what each failure means.
//!
//! Nothing that leaves this file holds a key: not an error, not a debug print, and not a provider's
//! message that repeats it.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Serialize;
use serde_json::Value;

use super::{ModelError, bounded, sse};

/// Characters of a provider's message that an error keeps.
const MESSAGE_MAX: usize = 500;
/// Bytes of a failure's body that are read for its message.
const FAILURE_MAX: usize = 64 << 10;
/// Bytes of an answer, however it comes.
const ANSWER_MAX: usize = 64 << 20;
/// A shorter secret is a word such as `none`, and to blot it out would spoil what is said.
const SECRET_MIN: usize = 6;

/// How long a provider is waited for. An answer as a whole has no limit here: it is the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until there is a connection.
    pub connect: Duration,
    /// Until the answer begins, which for some models is after they have thought.
    pub begin: Duration,
    /// Between two pieces of the answer.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            // A server that does not stream is silent until it is done.
            begin: Duration::from_secs(600),
            idle: Duration::from_secs(120),
        }
    }
}

/// A key. It is sent, and never shown.
#[derive(Clone)]
pub(super) struct Key(String);

impl Key {
    /// The key in a variable's value; none when there is nothing in it.
    pub(super) fn new(value: &str) -> Option<Self> {
        let value = value.trim();
        (!value.is_empty()).then(|| Self(value.to_owned()))
    }

    /// For a client of someone else's, which sends it by itself.
    #[cfg(feature = "genai")]
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Where a provider is and how it is reached.
#[derive(Clone)]
pub(super) struct Provider {
    client: Client,
    headers: HeaderMap,
    key: Option<Key>,
    key_variable: Option<String>,
    timeouts: Timeouts,
    url: Url,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("url", &shown(&self.url))
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// What a [`Provider`] is made of.
pub(super) struct Reach<'a> {
    pub(super) base_url: &'a str,
    /// What comes after the base URL.
    pub(super) path: &'a str,
    pub(super) key: Option<Key>,
    /// The variable it was read from.
    pub(super) key_variable: Option<String>,
    pub(super) timeouts: Timeouts,
}

impl Provider {
    pub(super) fn new(reach: Reach<'_>) -> Result<Self, ModelError> {
        install_tls();
        let url = joined(parsed(reach.base_url)?, reach.path);
        let client = Client::builder()
            .connect_timeout(reach.timeouts.connect)
            // A key is meant for one place.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| invalid(format!("no HTTP client: {}", causes(error))))?;
        Ok(Self {
            client,
            headers: HeaderMap::new(),
            key: reach.key,
            key_variable: reach.key_variable,
            timeouts: reach.timeouts,
            url,
        })
    }

    /// Whether it is at this host, or at one beneath it.
    pub(super) fn is_at(&self, domain: &str) -> bool {
        let host = self.url.host_str().unwrap_or_default();
        let above = host.strip_suffix(domain);
        above.is_some_and(|it| it.is_empty() || it.ends_with('.'))
    }

    /// Sends a header with every request.
    pub(super) fn header(mut self, name: &'static str, value: &'static str) -> Self {
        let name = HeaderName::from_static(name);
        self.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    /// Sends the key in that header, after the prefix. Without a key, nothing.
    pub(super) fn key_in(mut self, name: &'static str, prefix: &str) -> Result<Self, ModelError> {
        if let Some(Key(key)) = &self.key {
            let variable = self.key_variable.as_deref().unwrap_or("the key");
            let mut value = HeaderValue::from_str(&format!("{prefix}{key}")).map_err(|_| {
                let message = format!("{variable} holds what no header can carry");
                ModelError::Auth { message }
            })?;
            value.set_sensitive(true);
            self.headers.insert(HeaderName::from_static(name), value);
        }
        Ok(self)
    }

    /// Asks. The reply is a success; what is not one is an error by its status.
    pub(super) async fn post(&self, body: &impl Serialize) -> Result<Reply<'_>, ModelError> {
        let body = serde_json::to_string(body)
            .map_err(|error| invalid(format!("the request cannot be written: {error}")))?;
        let request = self
            .client
            .post(self.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .headers(self.headers.clone())
            .body(body)
            .send();
        let response = match tokio::time::timeout(self.timeouts.begin, request).await {
            Err(_) => return Err(self.retryable("nothing was answered in time")),
            Ok(Err(error)) if error.is_builder() => {
                return Err(invalid(format!("{}: {}", shown(&self.url), causes(error))));
            }
            Ok(Err(error)) => return Err(self.retryable(&causes(error))),
            Ok(Ok(response)) => response,
        };
        let mut reply = Reply {
            came: 0,
            provider: self,
            response,
        };
        if reply.response.status().is_success() {
            return Ok(reply);
        }
        let (status, headers) = (reply.response.status(), reply.response.headers().clone());
        // A failure whose text is cut is still that failure.
        let text = reply.read(FAILURE_MAX).await.unwrap_or_default();
        Err(self.by_status(status, &headers, &text))
    }

    /// What requests are sent with, for a client of someone else's.
    #[cfg(feature = "genai")]
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    #[cfg(feature = "genai")]
    pub(super) fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    #[cfg(feature = "genai")]
    pub(super) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// The provider is in trouble.
    pub(super) fn retryable(&self, what: &str) -> ModelError {
        ModelError::Retryable {
            message: format!("{}: {}", shown(&self.url), self.says(what)),
        }
    }

    /// A text from outside, fit for an error.
    pub(super) fn says(&self, text: &str) -> String {
        let key = self.key.as_ref().map(|Key(key)| key.as_str());
        let secrets = [key, self.url.password(), self.url.query()];
        let secrets = secrets.into_iter().flatten();
        let mut clean = text.to_owned();
        for secret in secrets.filter(|it| it.len() >= SECRET_MIN) {
            clean = clean.replace(secret, "[secret]");
        }
        bounded(clean.trim(), MESSAGE_MAX)
    }

    /// A failure by its status.
    pub(super) fn by_status(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &str,
    ) -> ModelError {
        let failure = Failure::read(body);
        let message = format!("{}: {}", status.as_u16(), self.says(&failure.message));
        match status.as_u16() {
            401 | 403 => self.unauthorized(&message),
            429 if failure.is("insufficient_quota") => ModelError::Invalid { message },
            429 => ModelError::RateLimited {
                message,
                retry_after: retry_after(headers),
            },
            413 => ModelError::TooLong { message },
            408 | 409 | 425 | 500.. => self.retryable(&message),
            _ => failure.typed(message),
        }
    }

    /// A failure that the provider reports within a stream, where no status can say what it is.
    pub(super) fn by_body(&self, body: &Value) -> ModelError {
        let failure = Failure::of(body);
        let message = self.says(&failure.message);
        if failure.is("authentication_error") || failure.is("permission_error") {
            return self.unauthorized(&message);
        }
        if failure.is("rate_limit_error") || failure.is("rate_limit_exceeded") {
            return ModelError::RateLimited {
                message,
                retry_after: None,
            };
        }
        if failure.is("invalid_request_error") {
            return failure.typed(message);
        }
        match failure.typed(message) {
            ModelError::Invalid { message } => self.retryable(&message),
            typed => typed,
        }
    }

    fn unauthorized(&self, message: &str) -> ModelError {
        let key = match (&self.key, &self.key_variable) {
            (Some(_), Some(variable)) => format!("; the key is from {variable}"),
            (None, Some(variable)) => format!("; {variable} holds no key"),
            (_, None) => String::new(),
        };
        ModelError::Auth {
            message: format!("{message}{key}"),
        }
    }
}

/// A successful reply, not yet read.
pub(super) struct Reply<'a> {
    /// Bytes so far.
    came: usize,
    provider: &'a Provider,
    response: Response,
}

impl<'a> Reply<'a> {
    /// Whether it comes in one piece, because the server does not stream.
    pub(super) fn is_whole(&self) -> bool {
        let kind = self.response.headers().get(header::CONTENT_TYPE);
        kind.and_then(|it| it.to_str().ok())
            .is_some_and(|it| it.contains("json"))
    }

    /// All of it.
    pub(super) async fn whole(mut self) -> Result<String, ModelError> {
        self.read(ANSWER_MAX).await
    }

    /// It as events.
    pub(super) fn events(self) -> Events<'a> {
        Events {
            ready: VecDeque::new(),
            parser: sse::Parser::default(),
            reply: self,
        }
    }

    async fn read(&mut self, max: usize) -> Result<String, ModelError> {
        let mut bytes = Vec::new();
        while bytes.len() < max
            && let Some(piece) = self.piece().await?
        {
            bytes.extend_from_slice(piece.as_ref());
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn piece(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, ModelError> {
        let timeouts = self.provider.timeouts;
        let patience = if self.came == 0 {
            timeouts.begin
        } else {
            timeouts.idle
        };
        match tokio::time::timeout(patience, self.response.chunk()).await {
            Err(_) => {
                let why = format!("nothing came for {patience:?}");
                Err(self.provider.retryable(&why))
            }
            Ok(Err(error)) => {
                let why = format!("the answer was cut: {}", causes(error));
                Err(self.provider.retryable(&why))
            }
            Ok(Ok(piece)) => {
                self.came += piece.as_ref().map_or(0, |it| it.len());
                if self.came > ANSWER_MAX {
                    let why = format!("the answer is over {ANSWER_MAX} bytes");
                    return Err(self.provider.retryable(&why));
                }
                Ok(piece)
            }
        }
    }
}

/// The events of a reply.
pub(super) struct Events<'a> {
    ready: VecDeque<sse::Event>,
    parser: sse::Parser,
    reply: Reply<'a>,
}

impl Events<'_> {
    /// The next one; none at the end of the stream, wherever that was.
    pub(super) async fn next(&mut self) -> Result<Option<sse::Event>, ModelError> {
        while self.ready.is_empty() {
            let Some(piece) = self.reply.piece().await? else {
                return Ok(None);
            };
            let events = self.parser.feed(piece.as_ref());
            self.ready
                .extend(events.map_err(|error| self.reply.provider.retryable(&error.to_string()))?);
        }
        Ok(self.ready.pop_front())
    }
}

/// What a provider says of a failure.
struct Failure {
    message: String,
    /// Its `type` and `code`.
    kinds: Vec<String>,
}

impl Failure {
    fn read(body: &str) -> Self {
        match serde_json::from_str::<Value>(body) {
            Ok(value) => Self::of(&value),
            Err(_) => Self {
                message: body.to_owned(),
                kinds: Vec::new(),
            },
        }
    }

    /// Both wire formats have `error.message`; some servers have less.
    fn of(body: &Value) -> Self {
        let error = body.get("error").unwrap_or(body);
        let text = |key| error.get(key).and_then(Value::as_str).map(str::to_owned);
        Self {
            message: text("message")
                .or_else(|| error.as_str().map(str::to_owned))
                .unwrap_or_else(|| body.to_string()),
            kinds: ["type", "code"].into_iter().filter_map(text).collect(),
        }
    }

    fn is(&self, kind: &str) -> bool {
        self.kinds.iter().any(|it| it == kind)
    }

    /// A request that the provider did not accept: because it was too long, because of what is in it,
    /// or because of how it is made.
    fn typed(&self, message: String) -> ModelError {
        const TOO_LONG: [&str; 7] = [
            "context length",
            "context limit",
            "context window",
            "context size",
            "prompt is too long",
            "maximum number of tokens",
            "too many tokens",
        ];
        let said = self.message.to_lowercase();
        if self.is("context_length_exceeded")
            || self.is("request_too_large")
            || self.is("exceed_context_size_error")
            || TOO_LONG.iter().any(|it| said.contains(it))
        {
            return ModelError::TooLong { message };
        }
        if self.is("content_filter") || self.is("content_policy_violation") {
            return ModelError::Refused { message };
        }
        ModelError::Invalid { message }
    }
}

/// How long the provider wants to be left alone. A date is counted from the reply's own, so that no
/// clock of ours matters.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|it| it.to_str().ok());
    if let Some(millis) = text("retry-after-ms").and_then(|it| it.trim().parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(millis / 1000.0).ok();
    }
    let said = text("retry-after")?.trim();
    if let Ok(seconds) = said.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let until = date(said)?;
    let wait = until.duration_since(date(text("date")?)?);
    // A date that has passed is no delay.
    Some(Duration::try_from(wait).unwrap_or_default())
}

fn date(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(text)
        .ok()
}

/// A base URL, checked.
pub(super) fn parsed(base_url: &str) -> Result<Url, ModelError> {
    let url = Url::parse(base_url).map_err(|error| invalid(format!("`base_url`: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        let scheme = url.scheme();
        return Err(invalid(format!(
            "`base_url`: {scheme} is neither http nor https"
        )));
    }
    Ok(url)
}

/// The path beneath a base URL, whose query stays.
fn joined(mut base: Url, path: &str) -> Url {
    let before = base.path().trim_end_matches('/');
    // People write the version with and without; it is in the path once.
    let path = match path.strip_prefix("/v1") {
        Some(rest) if before.ends_with("/v1") => rest,
        Some(_) | None => path,
    };
    let whole = format!("{before}{path}");
    base.set_path(&whole);
    base
}

/// A URL without what may be secret in it.
fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map_or(String::new(), |port| format!(":{port}"));
    format!("{}://{host}{port}{}", url.scheme(), url.path())
}

/// An error of the transport with its causes, and without its URL.
pub(super) fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(it) = cause {
        let said = it.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        cause = it.source();
    }
    text
}

/// TLS is rustls on ring, for the whole process. Who embeds us may have chosen before.
pub(super) fn install_tls() {
    let installed = rustls::crypto::ring::default_provider().install_default();
    if installed.is_err() {
        tracing::trace!("a TLS provider was installed before");
    }
}

fn invalid(message: String) -> ModelError {
    ModelError::Invalid { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_seconds_millis_or_a_date_counted_from_the_replys_own() {
        let wait = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            retry_after(&headers).map(|it| it.as_millis())
        };
        let now = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(wait(&[("retry-after", "7")]), Some(7000));
        assert_eq!(
            wait(&[("retry-after", "7"), ("retry-after-ms", "20")]),
            Some(20)
        );
        let later = ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT");
        assert_eq!(wait(&[now, later]), Some(30_000));
        let earlier = ("retry-after", "Sun, 06 Nov 1994 08:48:00 GMT");
        assert_eq!(wait(&[now, earlier]), Some(0));
        for nothing in ["-1", "soon", ""] {
            assert_eq!(wait(&[now, ("retry-after", nothing)]), None);
        }
    }

    #[test]
    fn no_debug_print_holds_the_key() {
        let provider = Provider::new(Reach {
            base_url: "https://me:hunter2@example.com/?token=hunter2",
            path: "/v1/messages",
            key: Key::new(" hunter2\n"),
            key_variable: Some("THE_KEY".to_owned()),
            timeouts: Timeouts::default(),
        });
        let provider = provider.unwrap().key_in("x-api-key", "").unwrap();
        let shown = format!("{provider:?} {:?} {:?}", provider.key, provider.headers);
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("example.com"), "{shown}");
        assert_eq!(provider.headers["x-api-key"], "hunter2");
    }

    #[test]
    fn a_base_url_keeps_its_query_and_shows_no_secret() {
        let url = |base| joined(parsed(base).unwrap(), "/v1/messages");
        let secret = url("https://me:hunter2@example.com:8443/proxy/?token=hunter2");
        assert_eq!(secret.query(), Some("token=hunter2"));
        assert_eq!(shown(&secret), "https://example.com:8443/proxy/v1/messages");
        assert_eq!(url("http://h/v1/").path(), "/v1/messages");
        assert!(parsed("ftp://me:hunter2@h").is_err_and(|it| !it.to_string().contains("hunter2")));
    }
}
