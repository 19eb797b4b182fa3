//! The page: files that are part of this program, compressed when it was built.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use logreel::Digest;

use crate::Problem;
use crate::answer;
use crate::operation::Answered;

/// A file of the page.
struct Asset {
    path: &'static str,
    bytes: &'static [u8],
    /// The same, compressed.
    gzip: Option<&'static [u8]>,
}

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// Nothing from elsewhere, nothing inside the text of the page, and no frame around it: what models and
/// tools say is shown there.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 3] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// A file of the page, or the page itself for whatever else it may show.
pub(crate) fn answer(path: &str, headers: &HeaderMap) -> Answered {
    let asked = path.trim_start_matches('/');
    let found = ASSETS.iter().find(|asset| asset.path == asked);
    let asset = match found {
        Some(asset) => asset,
        // A name with an ending is a file, which is not there.
        None if asked
            .rsplit('/')
            .next()
            .is_some_and(|name| name.contains('.')) =>
        {
            return Err(Problem::not_found(format!("there is nothing at {path}")));
        }
        None => ASSETS
            .iter()
            .find(|asset| asset.path == "index.html")
            .ok_or_else(|| Problem::not_found("this build has no page"))?,
    };
    let tag = format!("W/\"{}\"", &Digest::of(asset.bytes).hex()[..32]);
    let tag = HeaderValue::from_str(&tag).expect("hex digits");
    let mut response = match answer::has(headers, &tag) {
        true => answer::not_modified(tag.clone()),
        false => whole(asset, headers),
    };
    let all = response.headers_mut();
    all.insert(header::ETAG, tag);
    all.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    // Asked about each time, so that a newer server is never seen through an older page.
    all.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    for (name, value) in HEADERS {
        all.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

fn whole(asset: &'static Asset, headers: &HeaderMap) -> Response<Body> {
    let accepted = headers.get(header::ACCEPT_ENCODING);
    let accepted = accepted.and_then(|it| it.to_str().ok()).unwrap_or_default();
    let takes_gzip = accepted.split(',').any(|it| {
        let mut parts = it.split(';');
        let is_gzip = parts.next().is_some_and(|name| name.trim() == "gzip");
        is_gzip && !parts.any(|weight| weight.trim() == "q=0")
    });
    let media_type = media_type(asset.path);
    match asset.gzip.filter(|_| takes_gzip) {
        Some(gzip) => {
            let mut response = answer::of_type(media_type, Body::from(gzip));
            let encoding = HeaderValue::from_static("gzip");
            response
                .headers_mut()
                .insert(header::CONTENT_ENCODING, encoding);
            response
        }
        None => answer::of_type(media_type, Body::from(asset.bytes)),
    }
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
