//! The control socket: what the command line asks of the running server. HTTP over a Unix socket, with a token.

use std::path::Path;
use std::sync::Arc;

use axum::extract::{Path as UrlPath, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::stdio::Stdio;
use super::{Backup, RunFile, record_backup};
use crate::auth::{KeyError, KeyStore, NewKey, local_principal};
use crate::log::{Lanes, RecordError};

/// What the socket serves from.
#[derive(Clone)]
struct Control {
    token: Arc<str>,
    keys: tokio::sync::watch::Receiver<Option<Arc<KeyStore>>>,
    lanes: Arc<Lanes>,
    stdio: Stdio,
}

/// An error over the socket, with the exit code it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    /// As [`crate::cli`] exits with it.
    pub exit_code: u8,
    /// For the person at the terminal.
    pub message: String,
}

impl From<KeyError> for ControlError {
    fn from(error: KeyError) -> Self {
        let exit_code = match &error {
            KeyError::Invalid(_) | KeyError::NotFound(_) | KeyError::AlreadyRevoked(_) => 2,
            KeyError::Store(_) | KeyError::Pending(_) | KeyError::Build(_) => 3,
        };
        Self { exit_code, message: error.to_string() }
    }
}

impl From<RecordError> for ControlError {
    fn from(error: RecordError) -> Self {
        Self { exit_code: 3, message: error.to_string() }
    }
}

impl IntoResponse for ControlError {
    fn into_response(self) -> Response {
        (StatusCode::UNPROCESSABLE_ENTITY, Json(self)).into_response()
    }
}

/// Serves until `stop` fires. `keys` becomes `Some` once the store is there.
///
/// # Errors
/// What the system says of the socket.
pub(super) async fn serve(
    listener: UnixListener,
    token: Arc<str>,
    keys: tokio::sync::watch::Receiver<Option<Arc<KeyStore>>>,
    lanes: Arc<Lanes>,
    stdio: Stdio,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let control = Control { token, keys, lanes, stdio };
    let router = Router::new()
        .route("/v1/keys", get(list_keys).post(create_key))
        .route("/v1/keys/{id}/revoke", post(revoke_key))
        .route("/v1/backups", post(backup_taken))
        .route("/v1/stdio", post(open_stdio))
        .layer(middleware::from_fn_with_state(control.clone(), check_token))
        .with_state(control);
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn check_token(State(control): State<Control>, request: Request, next: Next) -> Response {
    let presented = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes().to_vec());
    let expected = format!("Bearer {}", control.token);
    if presented.is_some_and(|presented| bool::from(presented.ct_eq(expected.as_bytes()))) {
        return next.run(request).await;
    }
    (StatusCode::UNAUTHORIZED, "the token of run.json is asked for\n").into_response()
}

impl Control {
    fn key_store(&self) -> Result<Arc<KeyStore>, ControlError> {
        self.keys.borrow().clone().ok_or_else(|| ControlError {
            exit_code: 3,
            message: "the audit store is still starting; try again in a moment (see /readyz)".into(),
        })
    }
}

async fn create_key(
    State(control): State<Control>,
    Json(new): Json<NewKey>,
) -> Result<Response, ControlError> {
    let created = control.key_store()?.create(&local_principal(), &new).await?;
    Ok(Json(created).into_response())
}

async fn list_keys(State(control): State<Control>) -> Result<Response, ControlError> {
    Ok(Json(control.key_store()?.list().await?).into_response())
}

async fn revoke_key(
    State(control): State<Control>,
    UrlPath(id): UrlPath<Uuid>,
) -> Result<Response, ControlError> {
    control.key_store()?.revoke(&local_principal(), id).await?;
    Ok(Json(serde_json::json!({ "revoked": id })).into_response())
}

async fn backup_taken(
    State(control): State<Control>,
    Json(backup): Json<Backup>,
) -> Result<Response, ControlError> {
    let at = record_backup(&control.lanes, &backup).await?;
    Ok(Json(serde_json::json!({ "recorded_at": at })).into_response())
}

async fn open_stdio(State(control): State<Control>, request: Request) -> Result<Response, ControlError> {
    super::stdio::open(control.stdio, request).await
}

/// The other end: asks the running server.
pub struct ControlClient {
    socket: std::path::PathBuf,
    token: String,
}

impl ControlClient {
    /// For the server that `run` describes; `None` when nobody listens there (it was killed).
    pub async fn connect(run: &RunFile) -> Option<Self> {
        UnixStream::connect(&run.socket).await.ok()?;
        Some(Self { socket: run.socket.clone(), token: run.token.clone() })
    }

    /// One request with a JSON answer.
    ///
    /// # Errors
    /// [`ControlError`] from the server, or made of what went wrong on the way.
    pub async fn request<A: DeserializeOwned>(
        &self,
        method: hyper::Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<A, ControlError> {
        let broken = |error: &dyn std::fmt::Display| ControlError {
            exit_code: 3,
            message: format!("the running server did not answer on its socket: {error}"),
        };
        let (status, bytes) =
            exchange(&self.socket, &self.token, method, path, body).await.map_err(|error| broken(&error))?;
        if status == StatusCode::UNPROCESSABLE_ENTITY {
            return Err(serde_json::from_slice(&bytes).unwrap_or_else(|error| broken(&error)));
        }
        if !status.is_success() {
            return Err(broken(&format!("{status}: {}", String::from_utf8_lossy(&bytes).trim())));
        }
        serde_json::from_slice(&bytes).map_err(|error| broken(&error))
    }
}

async fn exchange(
    socket: &Path,
    token: &str,
    method: hyper::Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let bytes = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    let request = hyper::Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "annals")
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(bytes)))?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        anyhow::Ok((status, bytes))
    };
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        ended = connection => {
            ended?;
            answer.await
        }
    }
}
