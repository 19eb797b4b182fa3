//! A call that was let in: who makes it, and what it says, read strictly.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use logreel::core::RequestId;
use logreel::{Ask, ErrorKind, RunId};
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::guard::Caller;
use crate::{Problem, Role};

/// The header by which a command is known when it is sent again.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Some commands are two, and the second has a longer name.
pub(crate) const KEY_BYTES_MAX: usize = 240;

pub(crate) struct Call {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) params: Vec<(String, String)>,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Call {
    /// A part of the path.
    pub(crate) fn param(&self, name: &str) -> &str {
        let mut params = self.params.iter();
        params
            .find(|(it, _)| it == name)
            .map_or("", |(_, value)| value)
    }

    /// The run of the path.
    pub(crate) async fn run(&self) -> Result<RunId, Problem> {
        self.run_named(self.param("id")).await
    }

    /// The run that someone means: an id, the beginning of one, its last 8 digits, `@last`.
    pub(crate) async fn run_named(&self, name: &str) -> Result<RunId, Problem> {
        self.app.engine.find(name).await.map_err(|error| {
            let problem = Problem::from(error);
            match problem.kind() {
                // A path that can be none is not there.
                ErrorKind::Invalid => Problem::not_found(problem.detail()),
                _ => problem,
            }
        })
    }

    /// A parameter of the query.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.queries(name).next()
    }

    /// Every value of a parameter of the query.
    pub(crate) fn queries(&self, name: &str) -> impl Iterator<Item = &str> {
        let found = self.query.iter().filter(move |(it, _)| it == name);
        found.map(|(_, value)| &**value)
    }

    /// A parameter of the query as what it must be.
    pub(crate) fn parsed<T>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T: FromStr<Err: Display>,
    {
        let parse = |text: &str| {
            let refused = |error| Problem::usage(format!("`{name}`: {error}"));
            text.parse().map_err(refused)
        };
        self.query(name).map(parse).transpose()
    }

    /// A number of the query.
    pub(crate) fn number(
        &self,
        name: &str,
        allowed: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Problem> {
        let Some(text) = self.query(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) if allowed.contains(&number) => Ok(Some(number)),
            _ => {
                let (low, high) = (allowed.start(), allowed.end());
                let expected = match *high {
                    u64::MAX => format!("a whole number from {low}"),
                    _ => format!("a whole number from {low} to {high}"),
                };
                Err(Problem::usage(format!(
                    "`{name}` is {text:?}; expected {expected}"
                )))
            }
        }
    }

    /// `true` or `false` in the query.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, Problem> {
        match self.query(name) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => {
                let detail = format!("`{name}` is {other:?}; expected true or false");
                Err(Problem::usage(detail))
            }
        }
    }

    /// The JSON that came with it; what a request without any means when there is none.
    pub(crate) fn json<T: DeserializeOwned + Default>(&self) -> Result<T, Problem> {
        match self.body.is_empty() {
            true => Ok(T::default()),
            false => self.required_json(),
        }
    }

    /// The JSON that must come with it.
    pub(crate) fn required_json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let text = std::str::from_utf8(&self.body)
            .map_err(|_| Problem::usage("the body is not UTF-8 text"))?;
        serde_json::from_str(text).map_err(|error| match error.is_data() {
            true => Problem::invalid(format!("the body does not fit: {error}")),
            false => Problem::usage(format!("the body is not JSON: {error}")),
        })
    }

    /// By which the command is known when it is sent again.
    pub(crate) fn idempotency_key(&self) -> Result<Option<String>, Problem> {
        let Some(value) = self.headers.get(IDEMPOTENCY_KEY) else {
            return Ok(None);
        };
        let text = value
            .to_str()
            .map_err(|_| Problem::usage("`Idempotency-Key` has characters that are not ASCII"))?;
        RequestId::new(text)
            .map_err(|error| Problem::usage(format!("`Idempotency-Key`: {error}")))?;
        if text.len() > KEY_BYTES_MAX {
            let detail = format!("`Idempotency-Key` is longer than {KEY_BYTES_MAX} characters");
            return Err(Problem::usage(detail));
        }
        Ok(Some(text.to_owned()))
    }

    /// Asks for something under the key that the caller gave, if it gave one.
    pub(crate) fn under_key<T>(&self, ask: Ask<T>) -> Result<Ask<T>, Problem> {
        Ok(match self.idempotency_key()? {
            Some(key) => ask.request(key),
            None => ask,
        })
    }

    /// Who says something, for the record.
    pub(crate) fn by(&self) -> String {
        self.caller
            .name
            .clone()
            .unwrap_or_else(|| "http".to_owned())
    }

    /// Refuses callers that are less than this.
    pub(crate) fn require(&self, role: Role, what: &str) -> Result<(), Problem> {
        if self.caller.role >= role {
            return Ok(());
        }
        let detail = format!("{what} needs a token of role {}", role.as_str());
        Err(Problem::new(ErrorKind::Forbidden, detail))
    }

    /// Whether a stream of events was asked for rather than a page.
    pub(crate) fn wants_stream(&self) -> bool {
        let accepted = self.headers.get_all(header::ACCEPT).iter();
        let mut accepted = accepted.filter_map(|it| it.to_str().ok());
        accepted.any(|it| it.to_ascii_lowercase().contains("text/event-stream"))
    }
}
