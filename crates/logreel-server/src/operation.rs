//! An operation of the API: what calls it, what it needs and answers, and who handles it. The routes and
//! the description are both made of these, so that neither can say what the other does not do.

use std::pin::Pin;

use axum::body::Body;
use axum::http::{Method, Response};
use serde_json::Value;

use crate::Problem;
use crate::call::Call;
use crate::token::Role;

/// What a handler gives.
pub(crate) type Answered = Result<Response<Body>, Problem>;

/// Whoever answers a call.
pub(crate) type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Answered> + Send>>;

pub(crate) struct Operation {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// Its name in the description.
    pub(crate) id: &'static str,
    pub(crate) does: &'static str,
    /// What a caller must be; `None` = nobody is asked.
    pub(crate) role: Option<Role>,
    pub(crate) query: Vec<Parameter>,
    pub(crate) headers: Vec<Parameter>,
    pub(crate) body: Option<Given>,
    pub(crate) answers: Vec<Answer>,
    /// The statuses of the problems that it may answer.
    pub(crate) problems: Vec<u16>,
    pub(crate) handler: Handler,
}

/// A parameter of the query, or a header.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) schema: Value,
    pub(crate) repeats: bool,
    /// Nothing can be done without it.
    pub(crate) required: bool,
}

/// What a request carries.
pub(crate) enum Given {
    /// Any bytes.
    Bytes,
    /// JSON of this schema; `required` = it may not be left out.
    Json {
        schema: &'static str,
        required: bool,
    },
}

/// A good answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) about: &'static str,
    /// Media types, each with the name of its schema; none = no content.
    pub(crate) content: Vec<(&'static str, &'static str)>,
    pub(crate) headers: Vec<(&'static str, &'static str)>,
}

/// Problems that any call may meet: a query that is none, a host that is not ours, a store that fails.
const ALWAYS: [u16; 4] = [400, 403, 500, 503];

impl Operation {
    pub(crate) fn new(
        method: Method,
        path: &'static str,
        id: &'static str,
        does: &'static str,
        handler: Handler,
    ) -> Self {
        Self {
            role: Some(if method == Method::GET {
                Role::Read
            } else {
                Role::Operate
            }),
            method,
            path,
            id,
            does,
            query: Vec::new(),
            headers: Vec::new(),
            body: None,
            answers: Vec::new(),
            problems: ALWAYS.into_iter().chain([401]).collect(),
            handler,
        }
    }

    /// Nobody is asked who calls.
    pub(crate) fn open(mut self) -> Self {
        self.role = None;
        self.problems.retain(|status| *status != 401);
        self
    }

    pub(crate) fn query(mut self, name: &'static str, schema: Value, about: &'static str) -> Self {
        self.query.push(Parameter {
            name,
            about,
            schema,
            repeats: false,
            required: false,
        });
        self
    }

    /// A parameter that may come several times.
    pub(crate) fn queries(mut self, name: &'static str, item: Value, about: &'static str) -> Self {
        self.query.push(Parameter {
            name,
            about,
            schema: item,
            repeats: true,
            required: false,
        });
        self
    }

    pub(crate) fn header(mut self, name: &'static str, schema: Value, about: &'static str) -> Self {
        self.headers.push(Parameter {
            name,
            about,
            schema,
            repeats: false,
            required: false,
        });
        self
    }

    /// Nothing can be done without this parameter or header.
    pub(crate) fn needs(mut self, name: &str) -> Self {
        for parameter in self.query.iter_mut().chain(&mut self.headers) {
            parameter.required |= parameter.name == name;
        }
        self
    }

    pub(crate) fn takes(mut self, body: Given) -> Self {
        self.body = Some(body);
        self.problems.extend([408, 413, 415, 422]);
        self
    }

    pub(crate) fn answers(
        mut self,
        status: u16,
        about: &'static str,
        content: &[(&'static str, &'static str)],
    ) -> Self {
        self.answers.push(Answer {
            status,
            about,
            content: content.to_vec(),
            headers: Vec::new(),
        });
        self
    }

    /// The latest answer has this header.
    pub(crate) fn with(mut self, name: &'static str, about: &'static str) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.headers.push((name, about));
        }
        self
    }

    /// It may also answer problems of these statuses.
    pub(crate) fn may(mut self, statuses: &[u16]) -> Self {
        self.problems.extend(statuses);
        self
    }
}
