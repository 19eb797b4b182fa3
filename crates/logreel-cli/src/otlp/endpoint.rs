//! A collector: where spans are sent, as the environment variables of OpenTelemetry say.

use std::time::Duration;

use logreel::ErrorKind;
use logreel::otlp::Resource;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use crate::error::Failure;

const TRACES: &str = "/v1/traces";
const TIMEOUT: Duration = Duration::from_secs(10);
/// What is told of an answer that is none.
const SAID_CHARS_MAX: usize = 200;

/// A collector that takes OTLP over HTTP.
pub struct Endpoint {
    url: String,
    headers: HeaderMap,
    client: reqwest::Client,
}

impl Endpoint {
    /// The one that the environment names, if it does.
    pub fn of_environment() -> Option<Result<Self, Failure>> {
        let exact = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let base = || variable("OTEL_EXPORTER_OTLP_ENDPOINT").map(|base| traces_of(&base));
        let url = exact.or_else(base)?;
        Some(Self::new(url))
    }

    /// The one that was said. A path of its own is kept; without one it is the usual.
    pub fn named(url: &str) -> Result<Self, Failure> {
        Self::new(match url.trim_end_matches('/').ends_with(TRACES) {
            true => url.to_owned(),
            false => traces_of(url),
        })
    }

    fn new(url: String) -> Result<Self, Failure> {
        let bad = |why: String| {
            let message = format!("spans cannot be sent to {url}: {why}");
            Failure::new(ErrorKind::Usage, message)
                .hint("an endpoint is a URL, such as http://localhost:4318")
        };
        let parsed = reqwest::Url::parse(&url).map_err(|error| bad(error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(bad("only http and https are known".to_owned()));
        }
        // TLS is rustls on ring; whoever came first has chosen the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = reqwest::Client::builder()
            .timeout(timeout())
            .build()
            .map_err(|error| bad(error.to_string()))?;
        Ok(Self {
            headers: headers(),
            client,
            url,
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends an encoded request.
    pub async fn post(&self, body: Vec<u8>) -> Result<(), String> {
        let sent = self
            .client
            .post(&self.url)
            .headers(self.headers.clone())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(body)
            .send()
            .await;
        let answer = sent.map_err(|error| with_causes(&error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let said = answer.text().await.unwrap_or_default();
        let said: String = said.chars().take(SAID_CHARS_MAX).collect();
        Err(format!(
            "it answered {status} {}",
            crate::text::one_line(&said)
        ))
    }
}

/// Who makes the spans, as the environment says.
pub fn resource() -> Resource {
    let mut resource = Resource::default();
    let mut set = |name: &str, value: String| {
        let known = resource.attributes.iter_mut().find(|(key, _)| key == name);
        match known {
            Some((_, known)) => *known = value,
            None => resource.attributes.push((name.to_owned(), value)),
        }
    };
    set("service.version", env!("CARGO_PKG_VERSION").to_owned());
    for (name, value) in pairs("OTEL_RESOURCE_ATTRIBUTES") {
        set(&name, value);
    }
    if let Some(name) = variable("OTEL_SERVICE_NAME") {
        set("service.name", name);
    }
    resource
}

fn traces_of(base: &str) -> String {
    format!("{}{TRACES}", base.trim_end_matches('/'))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn timeout() -> Duration {
    let said = variable("OTEL_EXPORTER_OTLP_TIMEOUT");
    let millis = said.and_then(|said| said.parse().ok());
    millis.map_or(TIMEOUT, Duration::from_millis)
}

/// `name=value,name=value`, as OpenTelemetry writes them.
fn pairs(name: &str) -> Vec<(String, String)> {
    let said = variable(name).unwrap_or_default();
    let pairs = said.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(key, value)| (key.trim().to_owned(), decoded(value.trim())))
        .collect()
}

fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs("OTEL_EXPORTER_OTLP_HEADERS") {
        let name = HeaderName::try_from(name.as_str());
        let value = HeaderValue::try_from(value.as_str());
        if let (Ok(name), Ok(mut value)) = (name, value) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }
    headers
}

/// Without percent signs.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn with_causes(error: &reqwest::Error) -> String {
    let mut said = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        said = format!("{said}: {cause}");
        source = cause.source();
    }
    said
}
