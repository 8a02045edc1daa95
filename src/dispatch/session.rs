//! The events of sessions: a session is there once its start is durable, and its end is recorded once.
//!
//! Knows nothing of what a session is used for. Keeps no session.

use std::sync::Arc;

use super::run::{Undone, unrecorded_refusal};
use super::{Client, Dispatch, Inner, UnrecordedRefusal};
use crate::base::planted;
use crate::event::{Event, Facts, Personal, SessionEnded, SessionStarted};
use crate::log::{RecordError, Refusal};
use crate::tools::ToolError;

const USER_AGENT_BYTES_MAX: usize = 256;

/// A session's event is not durable.
#[derive(Debug, Clone)]
pub struct SessionUnrecorded {
    /// The public error.
    pub error: ToolError,
    /// Seconds after which to try again.
    pub retry_after_s: u32,
    /// The event may be written, now or later; else it certainly is not.
    pub may_be_written: bool,
}

impl Dispatch {
    /// Records that a session started, and waits until that is durable. The event's key is the session's id, here and at
    /// its end, so that both stand in one partition. Finishes even when this future is dropped.
    ///
    /// # Errors
    /// [`SessionUnrecorded`]: there is no session.
    pub async fn session_started(
        &self,
        facts: SessionStarted,
        user_name: String,
        client: Client,
    ) -> Result<(), SessionUnrecorded> {
        if planted::armed("session_unrecorded") {
            return Ok(());
        }
        let redactor = &self.inner.lanes.draft().redactor;
        let personal = Personal {
            user_name: Some(user_name),
            client_ip: client.ip,
            user_agent: client.user_agent.as_deref().map(|text| redactor.clipped(text, USER_AGENT_BYTES_MAX)),
            asserted: client.asserted,
            ..Personal::default()
        };
        let key = facts.session_id.clone();
        self.record_session(key, Facts::SessionStarted(facts), personal).await
    }

    /// Records that a session ended, and waits until that is durable. Finishes even when this future is dropped.
    ///
    /// # Errors
    /// [`SessionUnrecorded`]: unless it may be written, it is to be recorded again.
    pub async fn session_ended(
        &self,
        facts: SessionEnded,
        user_name: String,
    ) -> Result<(), SessionUnrecorded> {
        if planted::armed("session_end_unrecorded") {
            return Ok(());
        }
        let personal = Personal { user_name: Some(user_name), ..Personal::default() };
        let key = facts.session_id.clone();
        self.record_session(key, Facts::SessionEnded(facts), personal).await
    }

    async fn record_session(
        &self,
        key: String,
        facts: Facts,
        personal: Personal,
    ) -> Result<(), SessionUnrecorded> {
        let undone = match facts {
            Facts::SessionEnded(_) => Undone::SessionEnd,
            _ => Undone::SessionStart,
        };
        let inner = Arc::clone(&self.inner);
        let recording = self.inner.tasks.spawn("session event", async move {
            let event = built(&inner, &key, &facts, &personal)?;
            inner.lanes.record(event).await.map(|_| ())
        });
        let recorded = recording.await.unwrap_or_else(|_| {
            Err(RecordError::Uncertain("the task that records the session's event panicked".into()))
        });
        recorded.map_err(|cause| unrecorded(&self.inner, &cause, undone))
    }
}

fn built(inner: &Inner, key: &str, facts: &Facts, personal: &Personal) -> Result<Event, RecordError> {
    inner
        .lanes
        .draft()
        .build(inner.lanes.clock().now(), key, facts, personal)
        .map_err(|error| RecordError::Refused(Refusal::Failed(error.to_string())))
}

fn unrecorded(inner: &Inner, cause: &RecordError, undone: Undone) -> SessionUnrecorded {
    let may_be_written = matches!(cause, RecordError::Uncertain(_));
    let UnrecordedRefusal { error, retry_after_s } = unrecorded_refusal(inner, cause, undone);
    SessionUnrecorded { error, retry_after_s, may_be_written }
}
