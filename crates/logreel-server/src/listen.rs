//! Serving by itself: connections, and an end that loses nothing.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use logreel::Engine;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::Server;

/// How long the headers of a request may take.
const HEADERS_TIME_MAX: Duration = Duration::from_secs(10);
/// How long answers under way may take once the server stops.
const GRACE: Duration = Duration::from_secs(10);
/// Connections at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 8192;
/// After a failed accept, such as for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop`, then ends streams, lets answers under way finish, and returns. The engine is
/// for the caller to close: that hands back what it drives.
pub async fn listen(
    server: &Server,
    engine: &Engine,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) {
    let router = server.router();
    let env = Arc::clone(engine.env());
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut stop = std::pin::pin!(stop);
    loop {
        let place = tokio::select! {
            () = &mut stop => break,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        let stream = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    env.sleep(PAUSE).await;
                    continue;
                }
            },
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "events may be sent late");
        }
        let service = TowerToHyperService::new(router.clone());
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_TIME_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke");
            }
            drop(place);
        });
    }
    drop(listener);
    server.stop_streams();
    tokio::select! {
        () = graceful.shutdown() => {}
        () = env.sleep(GRACE) => tracing::warn!("answers under way were cut off"),
    }
}
