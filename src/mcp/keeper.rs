//! The life of sessions: each start is recorded before the session is used, each end once, in their order.
//!
//! Never forgets an end: what the log does not take waits, in memory, for as long as the process lives. After a kill the
//! sessions of that process end unrecorded; its incarnation's end is theirs.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::session::{AllBusy, Ended, Opening, Sessions};
use super::{Caller, Server};
use crate::auth::{Auth, KeyEnd};
use crate::dispatch::SessionUnrecorded;
use crate::event::{SessionEnd, SessionStarted, Transport};

/// Ends that are recorded at once.
const ENDS_AT_ONCE: usize = 256;
/// How soon the log is asked again while the server stops.
const RETRY_WHILE_STOPPING: Duration = Duration::from_millis(20);

/// No session was opened.
#[derive(Debug)]
pub(super) enum NotOpened {
    /// The limit is reached and each open session is busy.
    AllBusy,
    /// Its start could not be recorded.
    Unrecorded(SessionUnrecorded),
}

impl Server {
    /// Opens a session of the caller once its start is durable. Goes on when this future is dropped.
    pub(super) async fn open_session(
        &self,
        caller: &Caller,
        transport: Transport,
        protocol_version: &'static str,
        client_info: Option<Arc<RawValue>>,
    ) -> Result<Arc<str>, NotOpened> {
        let opening = Opening { transport, client_info: client_info.clone() };
        let id = self.sessions.open(&caller.principal, opening).map_err(|AllBusy| NotOpened::AllBusy)?;
        let facts = SessionStarted {
            session_id: id.to_string(),
            subject_id: caller.principal.subject_id.clone(),
            auth_method: caller.principal.auth_method,
            key_id: caller.principal.key_id,
            persona: caller.persona.name.clone(),
            transport,
            protocol_version: protocol_version.to_owned(),
        };
        let user_name = caller.principal.user_name.clone();
        let mut client = caller.client.clone();
        client.asserted = client_info.and_then(|info| asserted(&info));
        let (dispatch, sessions) = (Arc::clone(&self.dispatch), Arc::clone(&self.sessions));
        // In a task of its own: a client that is gone meanwhile leaves no session half open.
        let opened = self.tasks.spawn("mcp.session_open", async move {
            match dispatch.session_started(facts, user_name, client).await {
                Ok(()) => {
                    sessions.settle(&id);
                    Ok(id)
                }
                Err(unrecorded) => {
                    sessions.abandon(&id, unrecorded.may_be_written);
                    Err(NotOpened::Unrecorded(unrecorded))
                }
            }
        });
        opened.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    }

    /// Records the end that a client asked for. What cannot be recorded now is recorded later.
    pub(super) async fn end_session(&self, ended: Ended) -> Result<(), SessionUnrecorded> {
        let (server, recording) = (self.clone(), ended);
        let recorded = self.tasks.spawn("mcp.session_end", async move { server.record_end(recording).await });
        recorded.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    }

    async fn record_end(&self, ended: Ended) -> Result<(), SessionUnrecorded> {
        let recorded = self.dispatch.session_ended(ended.facts.clone(), ended.user_name.clone()).await;
        if let Err(unrecorded) = &recorded
            && !unrecorded.may_be_written
        {
            self.sessions.put_back([ended]);
        }
        recorded
    }

    /// Ends sessions that are idle for too long or whose key is over, at once when the keys change and else at each
    /// `interval`, and records what ended, until `stop` fires.
    pub async fn keep_sessions(self, auth: Arc<Auth>, interval: Duration, stop: CancellationToken) {
        let mut keys = auth.key_changes();
        let mut log_refuses = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
                () = self.sessions.wait_for_end(), if !log_refuses => {}
                changed = keys.changed(), if !log_refuses => if changed.is_err() { return; }
            }
            self.sessions.sweep(|key_id| auth.key_end(key_id).map(reason));
            log_refuses = !self.record_ends().await;
        }
    }

    /// Ends all sessions, since the server stops, and records that. Ends only when each is recorded.
    pub async fn end_sessions(&self) {
        self.sessions.shut();
        loop {
            let recorded = self.record_ends().await;
            if recorded && self.sessions.count() == 0 && self.sessions.unrecorded() == 0 {
                return;
            }
            tokio::time::sleep(RETRY_WHILE_STOPPING).await;
        }
    }

    /// Records what ended. False when the log refused.
    async fn record_ends(&self) -> bool {
        loop {
            let ended = self.sessions.take_ended(ENDS_AT_ONCE);
            if ended.is_empty() {
                return true;
            }
            let recorded = join_all(ended.into_iter().map(|ended| self.record_end(ended))).await;
            if recorded.iter().any(Result::is_err) {
                return false;
            }
        }
    }

    /// Shows how many sessions there are as `annals_sessions_open`, and how many ended without a record so far as
    /// `annals_sessions_unrecorded`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(Gauges(Arc::clone(&self.sessions))));
    }
}

const fn reason(end: KeyEnd) -> SessionEnd {
    match end {
        KeyEnd::Revoked => SessionEnd::Revoked,
        KeyEnd::Expired => SessionEnd::Expired,
    }
}

/// What the client says of itself, as calls have it too.
fn asserted(client_info: &RawValue) -> Option<Box<RawValue>> {
    RawValue::from_string(format!("{{\"clientInfo\":{}}}", client_info.get())).ok()
}

struct Gauges(Arc<Sessions>);

impl std::fmt::Debug for Gauges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gauges").finish_non_exhaustive()
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let readings = [
            ("annals_sessions_open", "Sessions that are open", self.0.count()),
            (
                "annals_sessions_unrecorded",
                "Sessions that ended and whose end the log did not take yet",
                self.0.unrecorded(),
            ),
        ];
        for (name, help, count) in readings {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            let encoder = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(encoder)?;
        }
        Ok(())
    }
}
