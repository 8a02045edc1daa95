//! The listener: connections, their limits, and a shutdown that lets answers out.
//!
//! Knows nothing of what is served.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::patience::Patience;
use crate::base::Tasks;

/// How long to wait after an accept failed for want of resources, so that others can give some back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who asks: the other end of the connection or, behind trusted proxies, the address that they name (its port is 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Bounds of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Connections at once; further ones wait to be accepted.
    pub connections_max: usize,
    /// How long a client may take to send a request's head; an idle connection is closed after this too.
    pub head_timeout: Duration,
    /// Bytes of a request's head at most.
    pub head_bytes_max: usize,
    /// How long a client may take nothing of an answer before its connection is closed.
    pub write_timeout: Duration,
    /// How long connections may go on after the shutdown began.
    pub drain: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            connections_max: 2_048,
            head_timeout: Duration::from_secs(60),
            head_bytes_max: 64 * 1024,
            write_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(6),
        }
    }
}

/// Serves `router` until `shutdown` fires and the last answer is out, within the default limits.
///
/// # Errors
/// None at present; a failed accept is logged and tried again.
pub async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) -> io::Result<()> {
    serve_within(ListenerLimits::default(), listener, router, shutdown).await
}

/// As [`serve`], within `limits`.
///
/// # Errors
/// As [`serve`].
pub async fn serve_within(
    limits: ListenerLimits,
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let connections = Tasks::new();
    let room = Arc::new(Semaphore::new(limits.connections_max));
    let service = TowerToHyperService::new(router);
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &room) => accepted,
        };
        match accepted {
            Ok((stream, peer, place)) => {
                let stop = Stop { begin: shutdown.clone(), end: connections.cancel_token().clone() };
                let connection = connection(limits, stream, peer, service.clone(), stop);
                connections.spawn("http connection", async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(error = %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(limits.drain, connections.join()).await.is_err() {
        tracing::warn!("connections were still busy at the end of the shutdown and are cut");
        connections.stop().await;
    }
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, peer, place))
}

struct Stop {
    /// Finish what is being answered, take nothing new.
    begin: CancellationToken,
    /// Let go.
    end: CancellationToken,
}

async fn connection(
    limits: ListenerLimits,
    stream: TcpStream,
    peer: SocketAddr,
    service: TowerToHyperService<Router>,
    stop: Stop,
) {
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        let answer = service.call(request);
        async move { answer.await.map_err(|never: Infallible| never) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.head_bytes_max)
        .serve_connection(TokioIo::new(Patience::new(stream, limits.write_timeout)), service);
    let mut connection = std::pin::pin!(connection);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(error = %error, "a connection ended early");
                }
                return;
            }
            () = stop.begin.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = stop.end.cancelled() => return,
        }
    }
}
