//! `http.get`: one page. A redirect is not followed but told: where it leads is another call, which
//! policy judges by its own URL.

use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use logreel::core::event::Effect;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Client, Url};
use serde_json::{Map, Value, json};

use super::{Call, Definition, Tool, ToolError};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The most that is read of a body.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What a caller must not say: it is the connection's own.
const NOT_GIVEN: [&str; 6] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "upgrade",
    "proxy-authorization",
];

/// The tool.
pub(crate) struct HttpGet {
    definition: Definition,
    client: OnceLock<Result<Client, String>>,
}

impl HttpGet {
    pub(crate) fn new() -> Self {
        let definition = Definition {
            name: "http.get".to_owned(),
            description:
                "Gets a URL over HTTP. Gives the status, the content type and the body; a \
                          redirect is not followed, its `location` is given instead."
                    .to_owned(),
            schema: json!({
                "type": "object",
                "properties": {
                    "url": {"type": "string", "description": "http:// or https://"},
                    "headers": {"type": "object", "additionalProperties": {"type": "string"}},
                },
                "required": ["url"],
                "additionalProperties": false,
            }),
            effect: Effect::Read,
            declared: true,
            timeout: Some(TIMEOUT),
            asks: false,
        };
        Self {
            definition,
            client: OnceLock::new(),
        }
    }

    fn client(&self) -> Result<&Client, ToolError> {
        let client = self
            .client
            .get_or_init(|| client().map_err(|it| it.to_string()));
        client
            .as_ref()
            .map_err(|error| ToolError::failed(format!("no HTTP client: {error}")))
    }
}

/// A client on ring that follows nothing.
pub(super) fn client() -> reqwest::Result<Client> {
    // Whoever was first has it installed; any will do.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(20))
        .user_agent(concat!("logreel/", env!("CARGO_PKG_VERSION")))
        .build()
}

#[async_trait]
impl Tool for HttpGet {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn subjects(&self, arguments: &Value) -> Result<Vec<String>, ToolError> {
        Ok(vec![url_of(arguments)?.to_string()])
    }

    async fn call(&self, call: &Call<'_>) -> Result<Value, ToolError> {
        let request = self
            .client()?
            .get(url_of(call.arguments)?)
            .headers(headers_of(call.arguments)?)
            .timeout(TIMEOUT);
        let mut response = request.send().await.map_err(failed)?;
        let mut told = Map::new();
        told.insert("status".to_owned(), response.status().as_u16().into());
        let header = |name| {
            let value = response.headers().get(name);
            value.and_then(|value: &HeaderValue| value.to_str().ok().map(str::to_owned))
        };
        if let Some(media_type) = header(reqwest::header::CONTENT_TYPE) {
            told.insert("content_type".to_owned(), media_type.into());
        }
        if let Some(location) = header(LOCATION) {
            let whole = response.url().join(&location);
            let location = whole.map_or(location, |url| url.to_string());
            told.insert("location".to_owned(), location.into());
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            let room = BODY_BYTES_MAX - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                told.insert("cut_at_bytes".to_owned(), BODY_BYTES_MAX.into());
                break;
            }
        }
        match text(&body) {
            Some(text) => told.insert("body".to_owned(), text.into()),
            None => {
                let body = base64::engine::general_purpose::STANDARD.encode(body);
                told.insert("base64".to_owned(), body.into())
            }
        };
        Ok(Value::Object(told))
    }
}

fn url_of(arguments: &Value) -> Result<Url, ToolError> {
    let url = arguments.get("url").and_then(Value::as_str);
    let url = url.ok_or_else(|| ToolError::failed("`url` must be a string"))?;
    let refuse = |why: &str| Err(ToolError::of_kind("refused", format!("`{url}` {why}")));
    let Ok(parsed) = Url::parse(url) else {
        return refuse("is no URL");
    };
    if !matches!(parsed.scheme(), "http" | "https") {
        return refuse("is neither http nor https");
    }
    // `https://good.example@evil.example` reads like what it is not.
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return refuse("holds a user name or password");
    }
    Ok(parsed)
}

fn headers_of(arguments: &Value) -> Result<HeaderMap, ToolError> {
    let mut headers = HeaderMap::new();
    let given = arguments.get("headers").and_then(Value::as_object);
    for (name, value) in given.into_iter().flatten() {
        let bad = || ToolError::failed(format!("the header `{name}` cannot be sent"));
        let value = value.as_str().ok_or_else(bad)?;
        let key = HeaderName::try_from(name.as_str()).map_err(|_| bad())?;
        if NOT_GIVEN.contains(&key.as_str()) {
            return Err(bad());
        }
        headers.insert(key, HeaderValue::try_from(value).map_err(|_| bad())?);
    }
    Ok(headers)
}

/// Text, also when it was cut in the middle of a character.
fn text(body: &[u8]) -> Option<String> {
    match std::str::from_utf8(body) {
        Ok(text) => Some(text.to_owned()),
        Err(error) if error.error_len().is_none() => {
            let whole = &body[..error.valid_up_to()];
            Some(String::from_utf8_lossy(whole).into_owned())
        }
        Err(_) => None,
    }
}

fn failed(error: reqwest::Error) -> ToolError {
    let kind = if error.is_timeout() {
        "timeout"
    } else {
        "network"
    };
    let mut message = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    ToolError::of_kind(kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_that_are_what_they_look_like() {
        let url = |url: &str| url_of(&json!({"url": url})).map(|it| it.to_string());
        assert_eq!(
            url("HTTP://Example.com/a/../b").unwrap(),
            "http://example.com/b"
        );
        for bad in [
            "file:///etc/passwd",
            "ftp://example.com",
            "https://good.example@evil.example/",
            "https://u:p@example.com",
            "//example.com",
            "",
        ] {
            assert!(url(bad).is_err(), "{bad}");
        }
        let headers = |name: &str, value: &str| headers_of(&json!({"headers": {name: value}}));
        assert!(headers("Accept", "text/html").is_ok());
        assert!(headers("Host", "evil").is_err());
        assert!(headers("X", "a\r\nHost: evil").is_err());
    }
}
