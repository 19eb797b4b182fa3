//! Requests that their callers can name: the same one sent twice is done once (SEMANTICS 2).
//!
//! The name becomes the id of the append that the request leads to, together with what it asks; of a
//! request that makes a run, the id of that run. So the store remembers, and an answer is the same after
//! a restart and after the run has ended. What was refused, or had nothing to do, left nothing in
//! the log; the same name asks for it anew.

use std::future::IntoFuture;
use std::pin::Pin;

use logreel_core::{AppendId, Digest, Epoch, RequestId, RunId};
use logreel_store::{Entry, OwnerId};
use serde::Serialize;

use crate::Error;
use crate::engine::Inner;

/// Something that is asked of a run by someone who does not drive it; asked when this is awaited.
#[must_use = "nothing is asked before this is awaited"]
pub struct Ask<T> {
    request: Result<Request, Error>,
    ask: Box<dyn FnOnce(Request) -> Asking<T> + Send>,
}

type Asking<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

impl<T> Ask<T> {
    pub(crate) fn new<Fut>(ask: impl FnOnce(Request) -> Fut + Send + 'static) -> Self
    where
        Fut: Future<Output = Result<T, Error>> + Send + 'static,
    {
        Self {
            request: Ok(Request::default()),
            ask: Box::new(move |request| Box::pin(ask(request))),
        }
    }

    /// Your own name for this request: the same again is not done again and gets the first answer, also
    /// after a restart and after the run has ended. The name belongs to the run; with another request,
    /// or with other arguments, it is a conflict.
    pub fn request(mut self, id: impl AsRef<str>) -> Self {
        self.request = Request::new(id);
        self
    }
}

impl<T: Send + 'static> IntoFuture for Ask<T> {
    type Output = Result<T, Error>;
    type IntoFuture = Asking<T>;

    fn into_future(self) -> Self::IntoFuture {
        match self.request {
            Ok(request) => (self.ask)(request),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

impl<T> std::fmt::Debug for Ask<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ask")
    }
}

/// What a caller calls a request, if it has a name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request(Option<RequestId>);

impl Request {
    pub(crate) fn new(id: impl AsRef<str>) -> Result<Self, Error> {
        Ok(Self(Some(RequestId::new(id)?)))
    }

    /// The id of the append it leads to. `asked` is the verb and all that was said with it.
    pub(crate) fn append_id(&self, engine: &Inner, asked: &impl Serialize) -> AppendId {
        self.named(asked).unwrap_or_else(|| engine.draw_append_id())
    }

    /// The same, when the request has a name.
    pub(crate) fn named(&self, asked: &impl Serialize) -> Option<AppendId> {
        let request = self.0.as_ref()?;
        Some(AppendId::request(request, &digest_of(asked)))
    }

    /// The id of the run that it makes out of `parent`: the first half says which request, the second what
    /// it asks. With the run, when it was made before.
    pub(crate) async fn run(
        &self,
        engine: &Inner,
        parent: &RunId,
        asked: &impl Serialize,
    ) -> Result<Option<(RunId, Option<Entry>)>, Error> {
        let Some(request) = &self.0 else {
            return Ok(None);
        };
        let which = digest_of(&("run of a request", parent, request));
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&which.as_bytes()[..8]);
        bytes[8..].copy_from_slice(&digest_of(asked).as_bytes()[..8]);
        // Version 8 of UUIDs: made as one sees fit.
        bytes[6] = 0x80 | bytes[6] & 0x0f;
        bytes[8] = 0x80 | bytes[8] & 0x3f;
        let run = RunId::from_bytes(bytes);
        // As far as the third hyphen.
        let first_half = &run.to_string()[..22];
        match engine.store.find(first_half, 1).await?.first() {
            None => Ok(Some((run, None))),
            // Not only read: what is answered a second time is acknowledged, so a standby must have it, too. To give back a
            // lease that nobody has is a write that changes nothing.
            Some(made) if *made == run => {
                let made = engine.store.release(&run, Epoch(0), OwnerId(0)).await?;
                Ok(Some((run, Some(made))))
            }
            Some(_) => Err(logreel_store::Error::RequestIdTaken(*parent).into()),
        }
    }
}

/// Of what was said, in the order in which it is said.
fn digest_of(asked: &impl Serialize) -> Digest {
    Digest::of(&serde_json::to_vec(asked).expect("words, numbers and checked JSON"))
}
