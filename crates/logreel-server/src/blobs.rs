//! Large values, by the digest of their bytes.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use logreel::Digest;

use crate::Problem;
use crate::call::Call;
use crate::operation::Answered;
use crate::{answer, external};

/// `GET /v1/blobs/{digest}`
pub(crate) async fn get(call: Call) -> Answered {
    let digest = digest(&call)?;
    let tag = format!("\"{}\"", digest.hex());
    let tag = HeaderValue::from_str(&tag).expect("hex digits");
    let found = call.app.engine.store().blob(&digest).await?;
    let bytes = found.ok_or_else(|| Problem::not_found(format!("no run refers to {digest}")))?;
    if answer::has(&call.headers, &tag) {
        return Ok(answer::not_modified(tag));
    }
    // What it is nobody knows here, and it may be anyone's: no browser shall show it as a page.
    let mut response = answer::of_type("application/octet-stream", Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag);
    headers.insert(
        header::CONTENT_DISPOSITION,
        HeaderValue::from_static("attachment"),
    );
    Ok(response)
}

/// `PUT /v1/blobs/{digest}?run=`
pub(crate) async fn put(call: Call) -> Answered {
    let digest = digest(&call)?;
    external::put_blob(&call, digest).await
}

fn digest(call: &Call) -> Result<Digest, Problem> {
    let said = call.param("digest");
    // A path that can be none is not there.
    said.parse().map_err(|_| {
        Problem::not_found(format!("{said:?} is no digest"))
            .hint("`blake3:` and 64 hex digits, as `blob` has it")
    })
}
