//! Logreel over HTTP: start runs, watch them live, act on them.
//!
//! [`router`] mounts in an axum app of your own; [`Server`] says more about it, and [`listen`] serves it
//! by itself. The API's shapes are in [`openapi`], which describes what the table of operations holds.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use logreel::{Ctx, Engine};
//!
//! let engine = Engine::memory().await?;
//! engine.task("double", |_: Ctx, n: u64| async move { Ok(2 * n) });
//! let app: axum::Router = axum::Router::new().merge(logreel_server::router(&engine));
//! # drop(app); engine.close().await?; Ok(()) }
//! ```

mod again;
mod agui;
mod answer;
mod app;
mod blobs;
mod call;
mod diff;
mod dispatch;
mod events;
mod export;
mod external;
mod feed;
mod frames;
mod guard;
mod health;
mod listen;
mod metrics;
mod operation;
mod page;
mod problem;
mod runs;
mod said;
mod say;
mod sessions;
mod specs;
mod start;
mod table;
mod token;

pub mod openapi;

pub use app::{Hosts, Server, router};
pub use listen::listen;
pub use problem::Problem;
pub use specs::{Begun, NewRun, Spec, Specs, What};
pub use token::{NewToken, Role, Token, TokenError, Tokens};
