//! Whether the process lives, whether it should be sent work, and its metrics.
//!
//! Open to everybody, so it says no more than that, and why the log refuses, without paths.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde::Serialize;

use super::routes::METRICS;
use super::{Problem, State};
use crate::log::Health;
use crate::refusal::Reason;

/// How the audit store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreState {
    /// Not reached yet since the start.
    Starting,
    /// Reached.
    Ok,
    /// Away; calls go on, and reads of the audit are refused.
    Degraded,
    /// Its checkpoints are not of this log: a person must decide; calls go on.
    LogDiverged,
    /// The log is damaged: the process is about to end.
    LogCorrupt,
}

impl From<crate::consumer::StoreState> for StoreState {
    fn from(state: crate::consumer::StoreState) -> Self {
        match state {
            crate::consumer::StoreState::Starting => Self::Starting,
            crate::consumer::StoreState::Ok => Self::Ok,
            crate::consumer::StoreState::Degraded => Self::Degraded,
            crate::consumer::StoreState::Diverged => Self::LogDiverged,
            crate::consumer::StoreState::Corrupt => Self::LogCorrupt,
        }
    }
}

/// What `/readyz` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// Whether the log accepts: this alone makes the process ready.
    pub log: Health,
    /// How the store is.
    pub store: StoreState,
}

pub(super) async fn healthz() -> Response {
    ([(CACHE_CONTROL, "no-store")], Json(serde_json::json!({ "status": "alive" }))).into_response()
}

pub(super) async fn readyz(Extract(state): Extract<Arc<State>>) -> Response {
    #[derive(Serialize)]
    struct Body {
        status: &'static str,
        log: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        log_refuses_because: Option<String>,
        store: StoreState,
        #[serde(skip_serializing_if = "Option::is_none")]
        remedy: Option<&'static str>,
    }
    let Readiness { log, store } = (state.readiness)();
    let (code, status, log, log_refuses_because) = match log {
        Health::Accepting => (StatusCode::OK, "ready", "accepting", None),
        Health::Refusing(cause) => (StatusCode::SERVICE_UNAVAILABLE, "not_ready", "refusing", Some(cause)),
    };
    let remedy = (store == StoreState::LogDiverged).then_some(crate::consumer::REMEDY);
    let body = Body { status, log, log_refuses_because, store, remedy };
    (code, [(CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

pub(super) async fn robots() -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], "User-agent: *\nDisallow: /\n").into_response()
}

/// The routes of the metrics listener: `GET /metrics` in the OpenMetrics text format.
pub fn metrics_router(registry: Arc<Registry>) -> Router {
    Router::new()
        .route(METRICS.path, get(metrics).fallback(metrics_method))
        .fallback(metrics_route)
        .with_state(registry)
}

async fn metrics_route() -> Response {
    let reason = Reason::MetricsRouteNotFound;
    Problem::new(reason, "There is nothing at this path.", "The metrics are at /metrics.")
        .say(METRICS.surface)
}

async fn metrics_method() -> Response {
    let message = "This path does not take this HTTP method.";
    let problem = Problem::new(Reason::MetricsMethodNotAllowed, message, "Use GET.");
    Problem { allow: Some(METRICS.methods), ..problem }.say(METRICS.surface)
}

async fn metrics(Extract(registry): Extract<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => {
            let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")], text).into_response()
        }
        Err(error) => {
            tracing::error!(error = %error, "the metrics could not be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
