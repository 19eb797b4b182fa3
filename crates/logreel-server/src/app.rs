//! What a server is made of, and what its handlers share.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use logreel::otlp::Resource;
use logreel::{Engine, RunId};
use tokio::sync::watch;

use crate::frames::Frames;
use crate::health::LastSeen;
use crate::metrics::Metrics;
use crate::operation::Operation;
use crate::said::{Ear, Said};
use crate::specs::{Registered, Specs};
use crate::token::Tokens;
use crate::{dispatch, table};

/// A router for an app of your own, which starts what the engine has registered. It answers browsers and
/// programs of this machine; see [`Server`] for others.
pub fn router(engine: &Engine) -> Router {
    Server::new(engine).router()
}

/// A server about to be made.
#[must_use = "nothing is served before it is listened to, or its router is mounted"]
pub struct Server {
    app: App,
}

/// Under which names the server may be called. A request that names another host comes from a page that
/// was led here, and is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// `localhost`, `127.0.0.1` and `[::1]`, at any port.
    Loopback,
    /// At this address: its own name, and those of [`Hosts::Loopback`] where it is reached by them. Any
    /// address of the machine when it listens on all of them.
    At(SocketAddr),
    /// Under every name: whoever mounts the router checks it.
    Any,
}

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) specs: Arc<dyn Specs>,
    pub(crate) allow_inline: bool,
    /// Who makes the spans of an exported run.
    pub(crate) resource: Resource,
    pub(crate) tokens: Option<Arc<Tokens>>,
    /// Whether whoever has no token may do everything.
    pub(crate) trusts_callers: bool,
    pub(crate) hosts: Hosts,
    pub(crate) more_hosts: BTreeSet<String>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Arc<LastSeen>,
    pub(crate) frames: Arc<Frames>,
    /// What models are saying, for those who watch.
    pub(crate) said: Arc<Said>,
    pub(crate) operations: Arc<Vec<Operation>>,
    pub(crate) stopping: watch::Sender<bool>,
}

impl Server {
    /// A server on this engine, for callers on this machine.
    pub fn new(engine: &Engine) -> Self {
        let app = App {
            specs: Arc::new(Registered(engine.clone())),
            frames: Arc::new(Frames::new(Arc::clone(engine.store()))),
            engine: engine.clone(),
            allow_inline: false,
            resource: Resource::default(),
            tokens: None,
            trusts_callers: true,
            hosts: Hosts::Loopback,
            more_hosts: BTreeSet::new(),
            metrics: Arc::default(),
            health: Arc::default(),
            said: Arc::default(),
            operations: Arc::new(table::operations()),
            stopping: watch::Sender::new(false),
        };
        Self { app }
    }

    /// Starts what these read, instead of what the engine has registered.
    pub fn specs(mut self, specs: Arc<dyn Specs>) -> Self {
        self.app.specs = specs;
        self
    }

    /// Takes specs that come with the request. That is running any program, for whoever may start runs.
    pub fn allow_inline(mut self) -> Self {
        self.app.allow_inline = true;
        self
    }

    /// Exports runs as spans of this service.
    pub fn resource(mut self, resource: Resource) -> Self {
        self.app.resource = resource;
        self
    }

    /// Knows callers by their tokens. With `required`, whoever has none is refused.
    pub fn tokens(mut self, tokens: Tokens, required: bool) -> Self {
        self.app.tokens = Some(Arc::new(tokens));
        self.app.trusts_callers = !required;
        self
    }

    /// Under which names it may be called.
    pub fn hosts(mut self, hosts: Hosts) -> Self {
        self.app.hosts = hosts;
        self
    }

    /// A name, with its port, that it may be called by as well: `runs.example.org`, `box:7717`.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.app.more_hosts.insert(name.into().to_ascii_lowercase());
        self
    }

    /// The API and the page, to mount in an app of your own.
    pub fn router(&self) -> Router {
        // From here on, so that the first who watches has missed nothing; without a runtime, from then on.
        if tokio::runtime::Handle::try_current().is_ok() {
            self.app.said.listen(&self.app.engine);
        }
        dispatch::router(self.app.clone())
    }

    /// Ends the streams that are open: clients come back, to whoever serves then.
    pub fn stop_streams(&self) {
        self.app.stopping.send_replace(true);
    }
}

#[cfg(test)]
impl Server {
    pub(crate) fn into_app(self) -> App {
        self.app
    }
}

impl App {
    /// Listens to what a run's models say.
    pub(crate) fn hear(&self, run: RunId) -> Ear {
        self.said.listen(&self.engine);
        self.said.ear(run)
    }

    /// Waits until the server stops.
    pub(crate) async fn stopped(&self) {
        let mut stopping = self.stopping.subscribe();
        if stopping.wait_for(|stopping| *stopping).await.is_err() {
            tracing::debug!("the server is gone");
        }
    }
}
