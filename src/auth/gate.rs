//! The gate: credentials in, principal and persona out, and every refusal recorded before it is answered.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use serde_json::value::RawValue;
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::flood::FloodLimits;
use super::keys::{KeyRecord, Keys, Lookup};
use super::refusals::{Refusals, Unknown};
use super::{Persona, Personas, Principal};
use crate::base::{clip, planted, sha256};
use crate::dispatch::{self, Client};
use crate::event::{AuditQueried, AuthFailed, AuthMethod, Facts, Personal};
use crate::log::{Lanes, RecordError};
use crate::redact::{Scope, Secrets};
use crate::refusal::{Place, Reason, Recorded, Refusal};

/// The longest credential that is looked at, bytes.
const CREDENTIAL_BYTES_MAX: usize = 512;
const ROUTE_BYTES_MAX: usize = 128;
const MESSAGE_BYTES_MAX: usize = 2 * 1024;
const QUERY_BYTES_MAX: usize = 8 * 1024;
const UNAVAILABLE_HINT: &str = "Try again later; /readyz says what is not well.";

/// What a request presents.
#[derive(Debug, Clone, Copy)]
pub struct Presented<'a> {
    /// The `Authorization` header.
    pub authorization: Option<&'a [u8]>,
    /// The `X-API-Key` header.
    pub api_key: Option<&'a [u8]>,
    /// Where they are presented.
    pub place: Place<'a>,
    /// What is known of the peer.
    pub client: &'a Client,
}

/// A refusal to somebody who is not known, or not any more.
#[derive(Debug, Clone, Copy)]
pub struct Unauthenticated<'a> {
    /// Why; its row says whether it is `auth.failed` or `request.refused`.
    pub refusal: &'a Refusal,
    /// Where.
    pub place: Place<'a>,
    /// What is known of the peer; its address decides the partition.
    pub client: &'a Client,
    /// The key that was presented, when it is one of ours and is refused.
    pub key: Option<&'a KeyRecord>,
}

/// No principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthError {
    /// Bad or no credentials; `auth.failed` is durable, or counts it soon.
    Unauthenticated(Refusal),
    /// It cannot be decided, or the refusal cannot be recorded, now.
    Unavailable {
        /// `keys_loading`, which is recorded, or `log_unavailable`.
        refusal: Refusal,
        /// Seconds.
        retry_after_s: u32,
    },
}

/// The audit may not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditAccess {
    /// The persona may not; recorded.
    Forbidden(Refusal),
    /// The reading cannot be recorded now, so nothing is read.
    Unavailable {
        /// `log_unavailable`.
        refusal: Refusal,
        /// Seconds.
        retry_after_s: u32,
    },
}

/// Decides who calls.
pub struct Auth {
    keys: Arc<Keys>,
    personas: Personas,
    /// SHA-256 of the admin key from the environment.
    env_key: Option<[u8; 32]>,
    lanes: Arc<Lanes>,
    refusals: Refusals,
    /// Decisions that could not be recorded.
    unrecorded: dispatch::Refusals,
}

/// Why a key that was good is not any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEnd {
    /// Somebody revoked it.
    Revoked,
    /// Its time is over.
    Expired,
}

impl<'a> Presented<'a> {
    fn refused(self, refusal: &'a Refusal, key: Option<&'a KeyRecord>) -> Unauthenticated<'a> {
        Unauthenticated { refusal, place: self.place, client: self.client, key }
    }
}

struct Refused {
    reason: Reason,
    key: Option<Box<KeyRecord>>,
}

impl Auth {
    /// A gate over `keys`; `env_key` is the admin key from the environment.
    #[must_use]
    pub fn new(keys: Arc<Keys>, personas: Personas, env_key: Option<&str>, lanes: Arc<Lanes>) -> Self {
        let env_key = env_key.map(|key| sha256(key.as_bytes()));
        let refusals = Refusals::new(Arc::clone(&lanes), FloodLimits::default());
        Self { keys, personas, env_key, lanes, refusals, unrecorded: dispatch::Refusals::default() }
    }

    /// The same with other limits on what a flood of refusals may cost.
    #[must_use]
    pub fn with_flood_limits(self, limits: FloodLimits) -> Self {
        Self { refusals: Refusals::new(Arc::clone(&self.lanes), limits), ..self }
    }

    /// Registers what the gate counts.
    pub fn register(&self, registry: &mut Registry) {
        self.refusals.register(registry);
    }

    /// Records the counts of refusals that came in a flood, in time until `stop` fires, and then the last ones. Without
    /// this task they stay in memory.
    pub async fn record_counts(&self, stop: CancellationToken) {
        self.refusals.close_windows(stop).await;
    }

    /// The principal and persona behind the credentials.
    ///
    /// # Errors
    /// [`AuthError::Unauthenticated`] once the refusal is recorded.
    pub async fn authenticate(
        &self,
        presented: Presented<'_>,
    ) -> Result<(Arc<Principal>, Arc<Persona>), AuthError> {
        let refused = match credential(presented).map(|key| self.principal(key)) {
            Ok(Ok(Some(principal))) => match self.personas.of(&principal.roles) {
                Some(persona) => return Ok((Arc::new(principal), Arc::clone(persona))),
                None => Refused { reason: Reason::RolesUnmapped, key: None },
            },
            Ok(Ok(None)) => {
                let message = "The server cannot tell yet whether this key is known.";
                let refusal = Refusal::new(Reason::KeysLoading, message, UNAVAILABLE_HINT);
                self.refuse_unauthenticated(presented.refused(&refusal, None)).await?;
                return Err(AuthError::Unavailable { refusal, retry_after_s: 1 });
            }
            Ok(Err(refused)) | Err(refused) => refused,
        };
        let hint = "An operator makes keys with `annals key create`.";
        let refusal = Refusal::new(refused.reason, message_of(refused.reason), hint);
        self.refuse_unauthenticated(presented.refused(&refusal, refused.key.as_deref())).await?;
        Err(AuthError::Unauthenticated(refusal))
    }

    /// The principal and persona behind good credentials. Records nothing: whoever refuses for another reason, before
    /// credentials are asked for, learns here whose refusal it is.
    #[must_use]
    pub fn known(&self, presented: Presented<'_>) -> Option<(Arc<Principal>, Arc<Persona>)> {
        if planted::armed("early_refusal_nobodys") {
            return None;
        }
        let principal = self.principal(credential(presented).ok()?).ok()??;
        let persona = self.personas.of(&principal.roles)?;
        Some((Arc::new(principal), Arc::clone(persona)))
    }

    /// `None` while the keys are not loaded.
    fn principal(&self, key: &[u8]) -> Result<Option<Principal>, Refused> {
        let hash = sha256(key);
        if let Some(env_key) = &self.env_key
            && bool::from(env_key.ct_eq(&hash))
        {
            return Ok(Some(env_admin()));
        }
        let record = match self.keys.lookup(&hash) {
            Lookup::Known(record) => record,
            Lookup::Unknown => return Err(Refused { reason: Reason::KeyUnknown, key: None }),
            Lookup::NotLoaded => return Ok(None),
        };
        if record.revoked {
            return Err(Refused { reason: Reason::KeyRevoked, key: Some(Box::new(record)) });
        }
        if record.expires_at.is_some_and(|end| end <= self.lanes.clock().now()) {
            return Err(Refused { reason: Reason::KeyExpired, key: Some(Box::new(record)) });
        }
        Ok(Some(Principal {
            subject_id: record.subject_id,
            user_name: record.user_name,
            auth_method: AuthMethod::ApiKey,
            key_id: Some(record.key_id),
            roles: record.roles,
            no_limit: record.no_limit,
        }))
    }

    /// Whether the key `key_id` is over, as far as the snapshot says.
    #[must_use]
    pub fn key_end(&self, key_id: Uuid) -> Option<KeyEnd> {
        let record = self.keys.record(key_id)?;
        if record.revoked {
            return Some(KeyEnd::Revoked);
        }
        record.expires_at.is_some_and(|end| end <= self.lanes.clock().now()).then_some(KeyEnd::Expired)
    }

    /// Changes whenever the keys do.
    #[must_use]
    pub fn key_changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.keys.changes()
    }

    /// Puts a refusal to somebody unknown on the record, in the form that its row says: durable when this returns or, in a
    /// flood, counted in an event that follows within the window. Every such refusal, of credentials and of what comes
    /// before them, is recorded here and nowhere else.
    ///
    /// # Errors
    /// [`AuthError::Unavailable`] when the log does not take it; nothing is counted then.
    pub async fn refuse_unauthenticated(&self, refused: Unauthenticated<'_>) -> Result<(), AuthError> {
        let reason = refused.refusal.reason;
        let route = self.lanes.draft().redactor.clipped(refused.place.route, ROUTE_BYTES_MAX);
        let place = Place { route: &route, ..refused.place };
        let Some(what) = facts_of(&refused, &place) else { return Ok(()) };
        let is_request = matches!(what, Unknown::Request(_));
        let skipped =
            planted::armed(if is_request { "request_refused_unrecorded" } else { "auth_failed_unrecorded" });
        if skipped || !reason.is_recorded() {
            return Ok(());
        }
        let personal = Personal {
            user_name: refused.key.map(|key| key.user_name.clone()),
            error_message: is_request
                .then(|| self.lanes.draft().redactor.clipped(&refused.refusal.message, MESSAGE_BYTES_MAX)),
            ..self.peer(refused.client)
        };
        let recorded = self.refusals.record(refused.client.ip.as_deref(), what, &personal).await;
        recorded.map_err(|cause| {
            let (refusal, retry_after_s) = self.log_unavailable(&cause);
            AuthError::Unavailable { refusal, retry_after_s }
        })
    }

    /// Records that the audit is read, before it is.
    ///
    /// # Errors
    /// [`AuditAccess::Forbidden`] when the persona may not, which is recorded too.
    pub async fn audit_access(
        &self,
        principal: &Principal,
        persona: &Persona,
        view: &'static str,
        query: &serde_json::Value,
        client: &Client,
    ) -> Result<(), AuditAccess> {
        let facts = Facts::AuditQueried(AuditQueried {
            subject_id: principal.subject_id.clone(),
            auth_method: principal.auth_method,
            key_id: principal.key_id,
            persona: persona.name.clone(),
            view: view.into(),
            authorized: persona.reads_audit,
        });
        let personal = Personal {
            user_name: Some(principal.user_name.clone()),
            query: self.bounded(query),
            ..self.peer(client)
        };
        if !planted::armed("audit_read_unrecorded") {
            record(&self.lanes, &principal.subject_id, &facts, &personal).await.map_err(|cause| {
                let (refusal, retry_after_s) = self.log_unavailable(&cause);
                AuditAccess::Unavailable { refusal, retry_after_s }
            })?;
        }
        if persona.reads_audit {
            return Ok(());
        }
        let message = format!("Persona {:?} may not read the audit.", persona.name);
        let hint = "The operator can set `reads_audit` on a persona of your key's roles.";
        Err(AuditAccess::Forbidden(Refusal::new(Reason::AuditNotAllowed, message, hint)))
    }

    fn log_unavailable(&self, cause: &RecordError) -> (Refusal, u32) {
        if let Some(decisions) = self.unrecorded.one_more(self.lanes.clock().monotonic()) {
            tracing::warn!(cause = %cause, decisions, "what could not be recorded is not answered");
        }
        let message = "The audit log does not accept, so nothing is decided.";
        (Refusal::new(Reason::LogUnavailable, message, UNAVAILABLE_HINT), 5)
    }

    fn peer(&self, client: &Client) -> Personal {
        let redactor = &self.lanes.draft().redactor;
        let asserted = client.asserted.as_deref();
        Personal {
            client_ip: client.ip.clone(),
            user_agent: client
                .user_agent
                .as_deref()
                .map(|text| self.lanes.draft().redactor.clipped(text, 256)),
            asserted: asserted.map(|raw| redactor.json(raw, &Scope::default(), &mut Secrets::default())),
            ..Personal::default()
        }
    }

    fn bounded(&self, query: &serde_json::Value) -> Option<Box<RawValue>> {
        let raw = serde_json::value::to_raw_value(query).ok()?;
        let raw = self.lanes.draft().redactor.json(&raw, &Scope::default(), &mut Secrets::default());
        if raw.get().len() <= QUERY_BYTES_MAX {
            return Some(raw);
        }
        RawValue::from_string(format!("{{\"omitted_bytes\":{}}}", raw.get().len())).ok()
    }
}

/// Records one event of this moment and waits until it is durable.
pub(super) async fn record(
    lanes: &Lanes,
    key: &str,
    facts: &Facts,
    personal: &Personal,
) -> Result<(), RecordError> {
    let event = lanes
        .draft()
        .build(lanes.clock().now(), key, facts, personal)
        .map_err(|error| RecordError::Refused(crate::log::Refusal::Failed(error.to_string())))?;
    lanes.record(event).await.map(|_| ())
}

fn credential(presented: Presented<'_>) -> Result<&[u8], Refused> {
    let malformed = || Refused { reason: Reason::CredentialsMalformed, key: None };
    let bearer = match presented.authorization {
        None => None,
        Some(header) => {
            let (scheme, key) = header.split_at_checked(7).ok_or_else(malformed)?;
            if !scheme.eq_ignore_ascii_case(b"bearer ") {
                return Err(malformed());
            }
            Some(key.trim_ascii())
        }
    };
    let key = match (bearer, presented.api_key.map(<[u8]>::trim_ascii)) {
        (None, None) => return Err(Refused { reason: Reason::CredentialsMissing, key: None }),
        (Some(key), None) | (None, Some(key)) => key,
        (Some(one), Some(other)) if one == other => one,
        (Some(_), Some(_)) => return Err(malformed()),
    };
    if key.is_empty() || key.len() > CREDENTIAL_BYTES_MAX || !key.iter().all(u8::is_ascii_graphic) {
        return Err(malformed());
    }
    Ok(key)
}

fn message_of(reason: Reason) -> &'static str {
    match reason {
        Reason::CredentialsMissing => "No API key: send one as Bearer in Authorization, or in X-API-Key.",
        Reason::CredentialsMalformed => {
            "The credentials are malformed: send a key as Bearer in Authorization, or in X-API-Key, not both."
        }
        Reason::KeyRevoked => "The API key was revoked.",
        Reason::KeyExpired => "The API key has expired.",
        Reason::RolesUnmapped => "No persona is configured for the roles of this API key.",
        _ => "The API key is not known.",
    }
}

fn env_admin() -> Principal {
    Principal {
        subject_id: "env-admin".into(),
        user_name: "env-admin".into(),
        auth_method: AuthMethod::EnvKey,
        key_id: None,
        roles: vec!["admin".into()],
        no_limit: false,
    }
}

/// `None` for reasons that have their event from elsewhere.
fn facts_of(refused: &Unauthenticated<'_>, place: &Place<'_>) -> Option<Unknown> {
    let reason = refused.refusal.reason;
    match reason.row().recorded {
        Recorded::AuthFailed => Some(Unknown::Login(AuthFailed {
            reason: reason.code().into(),
            key_id: refused.key.map(|key| key.key_id),
            source: place.surface.as_str().into(),
            route: clip(place.route, ROUTE_BYTES_MAX).to_owned(),
            count: 1,
            window: None,
        })),
        Recorded::Request | Recorded::Message => Some(Unknown::Request(reason.request_refused(place))),
        Recorded::Denied
        | Recorded::Failed
        | Recorded::DeniedOrFailed
        | Recorded::TimedOut
        | Recorded::Cancelled
        | Recorded::AuditQueried
        | Recorded::Nothing(_) => None,
    }
}

/// The principal of the command line on the server's own socket or data directory.
#[must_use]
pub fn local_principal() -> Principal {
    Principal {
        subject_id: "local-operator".into(),
        user_name: "local-operator".into(),
        auth_method: AuthMethod::Local,
        key_id: None::<Uuid>,
        roles: vec!["admin".into()],
        no_limit: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Transport;
    use crate::refusal::Surface;

    fn code(authorization: Option<&str>, api_key: Option<&str>) -> Result<String, &'static str> {
        let client = Client::default();
        let presented = Presented {
            authorization: authorization.map(str::as_bytes),
            api_key: api_key.map(str::as_bytes),
            place: Place { route: "POST /mcp", surface: Surface::Mcp, transport: Transport::Http },
            client: &client,
        };
        credential(presented)
            .map(|key| String::from_utf8(key.to_vec()).unwrap())
            .map_err(|refused| refused.reason.code())
    }

    #[test]
    fn credentials_are_read_or_named_wrong() {
        assert_eq!(code(None, None), Err("missing"));
        assert_eq!(code(Some("Bearer k1"), None), Ok("k1".into()));
        assert_eq!(code(Some("bearer  k1 "), None), Ok("k1".into()));
        assert_eq!(code(None, Some("k1")), Ok("k1".into()));
        assert_eq!(code(Some("Bearer k1"), Some("k1")), Ok("k1".into()));
        assert_eq!(code(Some("Bearer k1"), Some("k2")), Err("malformed"));
        assert_eq!(code(Some("Basic abc"), None), Err("malformed"));
        assert_eq!(code(Some("Bearer"), None), Err("malformed"));
        assert_eq!(code(Some("Bearer a b"), None), Err("malformed"));
        assert_eq!(code(Some("Bearer "), None), Err("malformed"));
        assert_eq!(code(Some(&format!("Bearer {}", "x".repeat(513))), None), Err("malformed"));
    }
}
