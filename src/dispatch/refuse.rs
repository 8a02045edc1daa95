//! Requests that are refused and are no calls: `request.refused`, durable before it is answered.
//!
//! What is refused to somebody unknown goes through `Auth::refuse_unauthenticated` instead.

use super::{Client, Dispatch, run};
use crate::auth::{Persona, Principal};
use crate::base::{planted, uuid_v7};
use crate::event::{Facts, Personal, RequestRefused};
use crate::log::{RecordError, Refusal as LogRefusal};
use crate::redact::Redactor;
use crate::refusal::{Place, Recorded, Refusal};

const ROUTE_BYTES_MAX: usize = 128;
const METHOD_BYTES_MAX: usize = 128;
const REQUEST_ID_BYTES_MAX: usize = 128;
const USER_AGENT_BYTES_MAX: usize = 256;
const MESSAGE_BYTES_MAX: usize = 2 * 1024;

/// What is refused, to whom, and where.
#[derive(Debug, Clone, Copy)]
pub struct RefusedRequest<'a> {
    /// Why.
    pub refusal: &'a Refusal,
    /// Where.
    pub place: Place<'a>,
    /// Who asked.
    pub principal: &'a Principal,
    /// What they may reach.
    pub persona: &'a Persona,
    /// What is known of the peer.
    pub client: &'a Client,
    /// The session that the principal has and asked in.
    pub session_id: Option<&'a str>,
    /// The JSON-RPC method, when it could be read.
    pub method: Option<&'a str>,
    /// The JSON-RPC id as received, when it could be read.
    pub request_id: Option<&'a str>,
}

/// The log did not take a refusal, so nothing is decided.
#[derive(Debug, Clone)]
pub struct UnrecordedRefusal {
    /// The public error.
    pub error: Refusal,
    /// Seconds.
    pub retry_after_s: u32,
}

impl Dispatch {
    /// Makes `request.refused` durable, where the reason's row says so; other rows have their event from elsewhere.
    ///
    /// # Errors
    /// [`UnrecordedRefusal`], which is what the caller is told then.
    pub async fn refuse_request(&self, refused: RefusedRequest<'_>) -> Result<(), UnrecordedRefusal> {
        let reason = refused.refusal.reason;
        let is_request = matches!(reason.row().recorded, Recorded::Request | Recorded::Message);
        if !is_request || !reason.is_recorded() || planted::armed("request_refused_unrecorded") {
            return Ok(());
        }
        let lanes = &self.inner.lanes;
        let now = lanes.clock().now();
        let key = refused.session_id.map_or_else(|| uuid_v7(now).to_string(), str::to_owned);
        let redactor = &lanes.draft().redactor;
        let facts = Facts::RequestRefused(facts(&refused, redactor));
        let built = lanes.draft().build(now, &key, &facts, &personal(&refused, redactor));
        let recorded = match built {
            Ok(event) => lanes.record(event).await,
            Err(error) => Err(RecordError::Refused(LogRefusal::Failed(error.to_string()))),
        };
        recorded
            .map(|_| ())
            .map_err(|cause| run::unrecorded_refusal(&self.inner, &cause, run::Undone::Refusal))
    }
}

fn facts(refused: &RefusedRequest<'_>, redactor: &Redactor) -> RequestRefused {
    let route = redactor.clipped(refused.place.route, ROUTE_BYTES_MAX);
    let place = Place { route: &route, ..refused.place };
    RequestRefused {
        subject_id: Some(refused.principal.subject_id.clone()),
        auth_method: Some(refused.principal.auth_method),
        key_id: refused.principal.key_id,
        persona: Some(refused.persona.name.clone()),
        session_id: refused.session_id.map(str::to_owned),
        method: refused.method.map(|method| redactor.clipped(method, METHOD_BYTES_MAX)),
        request_id: refused.request_id.map(|id| redactor.clipped(id, REQUEST_ID_BYTES_MAX)),
        ..refused.refusal.reason.request_refused(&place)
    }
}

fn personal(refused: &RefusedRequest<'_>, redactor: &Redactor) -> Personal {
    let client = refused.client;
    Personal {
        user_name: Some(refused.principal.user_name.clone()),
        client_ip: client.ip.clone(),
        user_agent: client.user_agent.as_deref().map(|text| redactor.clipped(text, USER_AGENT_BYTES_MAX)),
        error_message: Some(redactor.clipped(&refused.refusal.message, MESSAGE_BYTES_MAX)),
        asserted: client.asserted.clone(),
        ..Personal::default()
    }
}
