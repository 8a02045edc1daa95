//! The one list of routes: what is served where, to whom, and what it records. No route is made anywhere else.

use std::sync::Arc;

use axum::extract::{Request, State as Extract};
use axum::response::Response;
use axum::routing::{MethodRouter, any, get};

use super::{Peer, Problem, State, audit, client_of, health, mcp, refuse, route_of};
use crate::event::Transport;
use crate::refusal::{Place, Served, Surface};

const CALLS: &str = "`tool_call.*` of calls; refusals as below";
const READS: &str = "`admin.audit_queried`";
const OPEN: &str = "nothing: open to everybody, and says nothing of anybody";

/// A route of the main listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// MCP at the root.
    Root,
    /// MCP.
    Mcp,
    /// The audit's events.
    AuditEvents,
    /// How many there are.
    AuditCount,
    /// One of them.
    AuditEvent,
    /// Nothing is to be indexed.
    Robots,
    /// Whether the process lives.
    Healthz,
    /// Whether it should be sent work.
    Readyz,
}

impl Route {
    /// Every route.
    pub const ALL: &'static [Self] = &[
        Self::Root,
        Self::Mcp,
        Self::AuditEvents,
        Self::AuditCount,
        Self::AuditEvent,
        Self::Robots,
        Self::Healthz,
        Self::Readyz,
    ];

    /// Its entry.
    #[must_use]
    pub const fn served(self) -> Served {
        let (path, methods, surface, records) = match self {
            Self::Root => ("/", "POST, DELETE", Surface::Mcp, CALLS),
            Self::Mcp => ("/mcp", "POST, DELETE", Surface::Mcp, CALLS),
            Self::AuditEvents => ("/api/v1/admin/audit/events", "GET", Surface::Rest, READS),
            Self::AuditCount => ("/api/v1/admin/audit/events/count", "GET", Surface::Rest, READS),
            Self::AuditEvent => ("/api/v1/admin/audit/events/{id}", "GET", Surface::Rest, READS),
            Self::Robots => ("/robots.txt", "GET", Surface::Rest, OPEN),
            Self::Healthz => ("/healthz", "GET", Surface::Rest, OPEN),
            Self::Readyz => ("/readyz", "GET", Surface::Rest, OPEN),
        };
        Served { path, methods, surface, records }
    }

    /// Whether Host and Origin are checked: probes come by address, from anywhere.
    pub(super) const fn is_guarded(self) -> bool {
        !matches!(self, Self::Healthz | Self::Readyz)
    }

    /// What answers.
    pub(super) fn handler(self) -> MethodRouter<Arc<State>> {
        let handler = match self {
            Self::Root | Self::Mcp => return any(mcp::endpoint),
            Self::AuditEvents => get(audit::events),
            Self::AuditCount => get(audit::count),
            Self::AuditEvent => get(audit::event),
            Self::Robots => get(health::robots),
            Self::Healthz => get(health::healthz),
            Self::Readyz => get(health::readyz),
        };
        handler.fallback(move |Extract(state): Extract<Arc<State>>, request: Request| async move {
            let hint = format!("Use {}.", self.served().methods);
            let problem = Problem::method_not_allowed(self.served().methods, &hint);
            refuse_early(&state, self.served().surface, request, problem).await
        })
    }
}

/// The metrics listener's only route.
pub(super) const METRICS: Served =
    Served { path: "/metrics", methods: "GET", surface: Surface::Rest, records: OPEN };

/// Every route of both listeners, for the document of events.
#[must_use]
pub fn routes() -> Vec<Served> {
    Route::ALL.iter().map(|route| route.served()).chain([METRICS]).collect()
}

/// There is nothing at this path.
pub(super) async fn no_route(Extract(state): Extract<Arc<State>>, request: Request) -> Response {
    let hint = "MCP is served at /mcp; the audit at /api/v1/admin/audit/events.";
    let reason = crate::refusal::Reason::RouteNotFound;
    let problem = Problem::new(reason, "There is nothing at this path.", hint);
    refuse_early(&state, Surface::Rest, request, problem).await
}

/// Refuses a request before anybody is asked for credentials.
pub(super) async fn refuse_early(
    state: &State,
    surface: Surface,
    request: Request,
    problem: Problem,
) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let route = route_of(request.method(), request.uri());
    let client = client_of(peer, request.headers());
    let place = Place { route: &route, surface, transport: Transport::Http };
    refuse::early(state, place, request.headers(), &client, problem).await
}
