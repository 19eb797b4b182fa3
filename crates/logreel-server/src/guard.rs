//! Who may call: under which name, from which page, with which token.
//!
//! A browser on this machine opens pages of strangers. They must neither read nor act: a request that
//! names another host was led here by a name that someone made point here, and one that comes from
//! another origin was made by another page. Programs send neither header, or the right ones.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use futures_util::StreamExt as _;
use logreel::ErrorKind;

use crate::app::{App, Hosts};
use crate::{Problem, Role};

/// Whoever calls.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) role: Role,
    /// The name of its token.
    pub(crate) name: Option<String>,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Data and acts: for programs, and for pages of this server.
    Api,
    /// The page itself, which a link from anywhere may lead to.
    Page,
}

/// Refuses what a page of someone else sends.
pub(crate) fn check_source(app: &App, parts: &Parts, asked: Asked) -> Result<(), Problem> {
    let host = host(parts).ok_or_else(|| forbidden("the request names no host"))?;
    if !is_ours(app, &host) {
        return Err(forbidden(format!("this server is not {host:?}"))
            .hint("call it by the address that it listens on; `serve --host NAME` adds a name"));
    }
    if let Some(origin) = parts.headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        if authority != Some(&*host) {
            return Err(forbidden(format!(
                "pages of {origin:?} may not call this server"
            )));
        }
    }
    let site = parts.headers.get("sec-fetch-site");
    let site = site.map(|it| it.to_str().unwrap_or_default());
    match site {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) if asked == Asked::Page => Ok(()),
        Some(_) => Err(forbidden("pages of other origins may not call this server")),
    }
}

/// How often a stream looks whether its token still holds.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// A stream lasts no longer than the token that it was asked for with: one that expires or is revoked ends it, and
/// whoever comes back is refused.
pub(crate) fn while_known(
    app: &App,
    token: Option<HeaderValue>,
    needs: Option<Role>,
    response: Response<Body>,
) -> Response<Body> {
    let media_type = response.headers().get(header::CONTENT_TYPE);
    let is_stream = media_type.is_some_and(|it| it.as_bytes() == b"text/event-stream");
    let (true, Some(token)) = (is_stream, token) else {
        return response;
    };
    let (app, mut headers) = (app.clone(), HeaderMap::new());
    headers.insert(header::AUTHORIZATION, token);
    let unknown = async move {
        loop {
            match caller(&app, &headers, needs).await {
                Ok(_) => {}
                // Nobody knows at the moment.
                Err(problem) if problem.kind() == ErrorKind::Unavailable => {}
                Err(_) => return,
            }
            app.engine.env().sleep(LOOK_AGAIN).await;
        }
    };
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(unknown))))
}

/// Who calls, by the token that comes along; refused when that is not enough.
pub(crate) async fn caller(
    app: &App,
    headers: &HeaderMap,
    needs: Option<Role>,
) -> Result<Caller, Problem> {
    let anyone = Caller {
        role: Role::Admin,
        name: None,
    };
    let Some(needs) = needs else {
        return Ok(anyone);
    };
    let Some(said) = headers.get(header::AUTHORIZATION) else {
        return match app.trusts_callers {
            true => Ok(anyone),
            false => Err(unauthorized("a token is needed")),
        };
    };
    let said = said.to_str().unwrap_or_default();
    let secret = match said.split_once(' ') {
        Some((scheme, secret)) if scheme.eq_ignore_ascii_case("bearer") => secret.trim(),
        _ => return Err(unauthorized("`Authorization` must be `Bearer TOKEN`")),
    };
    let now = app.engine.env().now();
    let token = match &app.tokens {
        Some(tokens) => tokens.known(secret, now).await?,
        None => None,
    };
    let token = token.ok_or_else(|| unauthorized("the token is not known, or has expired"))?;
    if token.role < needs {
        let detail = format!(
            "the token {:?} is for role {}; this needs {}",
            token.name,
            token.role.as_str(),
            needs.as_str()
        );
        return Err(forbidden(detail));
    }
    Ok(Caller {
        role: token.role,
        name: Some(token.name),
    })
}

fn forbidden(detail: impl Into<String>) -> Problem {
    Problem::new(ErrorKind::Forbidden, detail)
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(ErrorKind::Unauthorized, detail)
        .hint("`logreel token create` makes one; send it as `Authorization: Bearer TOKEN`")
        .header(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Bearer realm=\"logreel\""),
        )
}

fn host(parts: &Parts) -> Option<String> {
    let named = parts.headers.get(header::HOST);
    let named = named.and_then(|it| it.to_str().ok());
    let named = named.or_else(|| parts.uri.authority().map(|it| it.as_str()));
    named.map(str::to_ascii_lowercase)
}

/// Whether the server may be called by this name.
fn is_ours(app: &App, host: &str) -> bool {
    if app.more_hosts.contains(host) {
        return true;
    }
    let (name, port) = split(host);
    let is_loopback = || match address(name) {
        Some(address) => address.is_loopback(),
        None => name == "localhost",
    };
    match &app.hosts {
        Hosts::Any => true,
        Hosts::Loopback => is_loopback(),
        Hosts::At(at) => {
            let here = match address(name) {
                Some(address) => at.ip().is_unspecified() || address == at.ip(),
                None => false,
            };
            let by_loopback = at.ip().is_loopback() || at.ip().is_unspecified();
            port.unwrap_or(80) == at.port() && (here || by_loopback && is_loopback())
        }
    }
}

/// `name:port`; a name without a port has none, and one with a wrong port is no name.
fn split(host: &str) -> (&str, Option<u16>) {
    let colon = host.rfind(':').filter(|at| !host[*at..].contains(']'));
    match colon {
        None => (host, None),
        Some(at) => (&host[..at], Some(host[at + 1..].parse().unwrap_or(0))),
    }
}

fn address(name: &str) -> Option<IpAddr> {
    let bare = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    bare.unwrap_or(name).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Server;
    use axum::http::Request;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let request = Request::builder().uri("/v1/runs");
        let request = headers
            .iter()
            .fold(request, |it, (name, value)| it.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    #[tokio::test]
    async fn only_our_own_names_and_pages_are_let_in() {
        let engine = logreel::Engine::memory().await.unwrap();
        let at = |address: &str| Hosts::At(address.parse().unwrap());
        let allows = |hosts: Hosts, headers: &[(&str, &str)], asked: Asked| {
            let app = Server::new(&engine)
                .hosts(hosts)
                .host("runs.example.org")
                .into_app();
            check_source(&app, &parts(headers), asked).is_ok()
        };
        let here = || at("127.0.0.1:7717");
        for (hosts, host, expected) in [
            (here(), "127.0.0.1:7717", true),
            (here(), "localhost:7717", true),
            (here(), "LocalHost:7717", true),
            (here(), "[::1]:7717", true),
            (here(), "localhost", false),
            (here(), "localhost:80", false),
            (here(), "127.0.0.1.example.com:7717", false),
            (here(), "evil.example:7717", false),
            (here(), "localhost.evil.example:7717", false),
            (here(), "10.0.0.1:7717", false),
            (here(), "runs.example.org", true),
            (here(), "", false),
            (at("0.0.0.0:80"), "10.0.0.1", true),
            (at("0.0.0.0:80"), "evil.example", false),
            (at("10.0.0.1:80"), "10.0.0.1:80", true),
            (at("10.0.0.1:80"), "localhost:80", false),
            (Hosts::Loopback, "localhost:4000", true),
            (Hosts::Loopback, "evil.example", false),
        ] {
            let allowed = allows(hosts.clone(), &[("host", host)], Asked::Api);
            assert_eq!(allowed, expected, "{hosts:?} {host}");
        }
        assert!(!allows(here(), &[], Asked::Api));
        let from = |name: &str, value: &str, asked: Asked| {
            allows(here(), &[("host", "localhost:7717"), (name, value)], asked)
        };
        assert!(from("origin", "http://localhost:7717", Asked::Api));
        assert!(from("sec-fetch-site", "same-origin", Asked::Api));
        assert!(from("sec-fetch-site", "none", Asked::Api));
        assert!(from("sec-fetch-site", "cross-site", Asked::Page));
        for origin in ["null", "", "http://localhost:3000", "https://evil.example"] {
            assert!(!from("origin", origin, Asked::Api), "{origin}");
            assert!(!from("origin", origin, Asked::Page), "{origin}");
        }
        assert!(!from("sec-fetch-site", "cross-site", Asked::Api));
        assert!(!from("sec-fetch-site", "same-site", Asked::Api));
    }
}
