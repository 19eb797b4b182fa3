//! Values on their way into and out of the log.

use logreel_core::{Blob, Json, Payload};
use logreel_store::RunStore;
use serde::Serialize;

use crate::Error;

/// Writes a value for a body; a large one comes with its blob.
pub(crate) fn payload<T: Serialize + ?Sized>(
    what: &str,
    value: &T,
) -> Result<(Payload, Vec<Blob>), Error> {
    let json = Json::of(value).map_err(|error| Error::value(what, error))?;
    let (payload, blob) = Payload::of(json);
    Ok((payload, blob.into_iter().collect()))
}

/// The value of a body, read from its blob when it is in one.
pub async fn resolve(store: &dyn RunStore, payload: &Payload) -> Result<Json, Error> {
    let reference = match payload {
        Payload::Inline(json) => return Ok(json.clone()),
        Payload::Blob(reference) => reference,
    };
    let missing = || logreel_store::Error::corrupt(format!("blob {} is missing", reference.blob));
    let bytes = store.blob(&reference.blob).await?.ok_or_else(missing)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        logreel_store::Error::corrupt(format!("blob {} is no text", reference.blob))
    })?;
    Json::parse(text).map_err(|error| Error::value(format!("blob {}", reference.blob), error))
}
