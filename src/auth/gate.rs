//! The gate: credentials in, principal and persona out, and every refusal recorded before it is answered.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::value::RawValue;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::keys::{KeyRecord, Keys, Lookup};
use super::{Persona, Personas, Principal};
use crate::base::{clip, planted, sha256, sha256_hex};
use crate::dispatch::Client;
use crate::event::{AuditQueried, AuthFailed, AuthMethod, Facts, Personal};
use crate::log::{Lanes, RecordError, Refusal};
use crate::redact::{Scope, Secrets};

/// The longest credential that is looked at, bytes.
const CREDENTIAL_BYTES_MAX: usize = 512;
const ROUTE_BYTES_MAX: usize = 128;
const QUERY_BYTES_MAX: usize = 8 * 1024;

/// What a request presents.
#[derive(Debug, Clone, Copy)]
pub struct Presented<'a> {
    /// The `Authorization` header.
    pub authorization: Option<&'a [u8]>,
    /// The `X-API-Key` header.
    pub api_key: Option<&'a [u8]>,
    /// Method and path.
    pub route: &'a str,
    /// `mcp` or `rest`.
    pub source: &'static str,
    /// What is known of the peer.
    pub client: &'a Client,
}

/// No principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthError {
    /// Bad or no credentials; `auth.failed` is durable.
    Unauthenticated {
        /// `missing`, `malformed`, `unknown`, `revoked`, `expired`, `unmapped`.
        code: &'static str,
        /// For the caller.
        message: String,
    },
    /// It cannot be decided, or the refusal cannot be recorded, now.
    Unavailable {
        /// `keys_loading`, `log_unavailable`.
        code: &'static str,
        /// For the caller.
        message: String,
        /// Seconds.
        retry_after_s: u32,
    },
}

/// The audit may not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditAccess {
    /// The persona may not; recorded.
    Forbidden {
        /// For the caller.
        message: String,
    },
    /// The reading cannot be recorded now, so nothing is read.
    Unavailable {
        /// `log_unavailable`.
        code: &'static str,
        /// For the caller.
        message: String,
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
}

struct Refused {
    code: &'static str,
    key: Option<Box<KeyRecord>>,
}

impl Auth {
    /// A gate over `keys`; `env_key` is the admin key from the environment.
    #[must_use]
    pub fn new(keys: Arc<Keys>, personas: Personas, env_key: Option<&str>, lanes: Arc<Lanes>) -> Self {
        Self { keys, personas, env_key: env_key.map(|key| sha256(key.as_bytes())), lanes }
    }

    /// The principal and persona behind the credentials.
    ///
    /// # Errors
    /// [`AuthError::Unauthenticated`] after `auth.failed` is durable.
    pub async fn authenticate(
        &self,
        presented: Presented<'_>,
    ) -> Result<(Arc<Principal>, Arc<Persona>), AuthError> {
        let refused = match credential(presented).map(|key| self.principal(key)) {
            Ok(Ok(Some(principal))) => match self.personas.of(&principal.roles) {
                Some(persona) => return Ok((Arc::new(principal), Arc::clone(persona))),
                None => Refused { code: "unmapped", key: None },
            },
            Ok(Ok(None)) => {
                return Err(AuthError::Unavailable {
                    code: "keys_loading",
                    message: "The server cannot tell yet whether this key is known.".into(),
                    retry_after_s: 1,
                });
            }
            Ok(Err(refused)) | Err(refused) => refused,
        };
        self.record_failure(presented, &refused).await?;
        Err(AuthError::Unauthenticated { code: refused.code, message: message_of(refused.code).into() })
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
            Lookup::Unknown => return Err(Refused { code: "unknown", key: None }),
            Lookup::NotLoaded => return Ok(None),
        };
        if record.revoked {
            return Err(Refused { code: "revoked", key: Some(Box::new(record)) });
        }
        if record.expires_at.is_some_and(|end| end <= self.lanes.clock().now()) {
            return Err(Refused { code: "expired", key: Some(Box::new(record)) });
        }
        Ok(Some(Principal {
            subject_id: record.subject_id,
            user_name: record.user_name,
            auth_method: AuthMethod::ApiKey,
            key_id: Some(record.key_id),
            roles: record.roles,
        }))
    }

    async fn record_failure(&self, presented: Presented<'_>, refused: &Refused) -> Result<(), AuthError> {
        if planted::armed("auth_failed_unrecorded") {
            return Ok(());
        }
        let facts = Facts::AuthFailed(AuthFailed {
            reason: refused.code.into(),
            key_id: refused.key.as_ref().map(|key| key.key_id),
            source: presented.source.into(),
            route: self.redacted(presented.route, ROUTE_BYTES_MAX),
            count: 1,
            window: None,
        });
        let personal = Personal {
            user_name: refused.key.as_ref().map(|key| key.user_name.clone()),
            ..self.peer(presented.client)
        };
        self.record(&ip_key(presented.client.ip.as_deref()), &facts, &personal).await.map_err(|cause| {
            let (code, message, retry_after_s) = log_unavailable(&cause);
            AuthError::Unavailable { code, message, retry_after_s }
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
            self.record(&principal.subject_id, &facts, &personal).await.map_err(|cause| {
                let (code, message, retry_after_s) = log_unavailable(&cause);
                AuditAccess::Unavailable { code, message, retry_after_s }
            })?;
        }
        if persona.reads_audit {
            return Ok(());
        }
        Err(AuditAccess::Forbidden { message: format!("Persona {:?} may not read the audit.", persona.name) })
    }

    /// Redacted and then clipped: a secret that is cut in two is found by no rule.
    fn redacted(&self, text: &str, bytes_max: usize) -> String {
        let redactor = &self.lanes.draft().redactor;
        clip(&redactor.text(text, &mut Secrets::default()), bytes_max).to_owned()
    }

    fn peer(&self, client: &Client) -> Personal {
        Personal {
            client_ip: client.ip.clone(),
            user_agent: client.user_agent.as_deref().map(|text| self.redacted(text, 256)),
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

    async fn record(&self, key: &str, facts: &Facts, personal: &Personal) -> Result<(), RecordError> {
        let now = self.lanes.clock().now();
        let event = self
            .lanes
            .draft()
            .build(now, key, facts, personal)
            .map_err(|error| RecordError::Refused(Refusal::Failed(error.to_string())))?;
        self.lanes.record(event).await.map(|_| ())
    }
}

fn credential(presented: Presented<'_>) -> Result<&[u8], Refused> {
    let malformed = || Refused { code: "malformed", key: None };
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
        (None, None) => return Err(Refused { code: "missing", key: None }),
        (Some(key), None) | (None, Some(key)) => key,
        (Some(one), Some(other)) if one == other => one,
        (Some(_), Some(_)) => return Err(malformed()),
    };
    if key.is_empty() || key.len() > CREDENTIAL_BYTES_MAX || !key.iter().all(u8::is_ascii_graphic) {
        return Err(malformed());
    }
    Ok(key)
}

fn message_of(code: &str) -> &'static str {
    match code {
        "missing" => "No API key: send Authorization: Bearer KEY, or X-API-Key: KEY.",
        "malformed" => {
            "The credentials are malformed: send Authorization: Bearer KEY, or X-API-Key: KEY, not both."
        }
        "revoked" => "The API key was revoked.",
        "expired" => "The API key has expired.",
        "unmapped" => "No persona is configured for the roles of this API key.",
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
    }
}

/// The partition key of somebody unknown: a hash of the network, not of the host.
fn ip_key(ip: Option<&str>) -> String {
    let prefix = match ip.and_then(|ip| ip.parse::<IpAddr>().ok()) {
        Some(IpAddr::V4(ip)) => ip.octets().get(..3).map(hex::encode),
        Some(IpAddr::V6(ip)) => ip.octets().get(..6).map(hex::encode),
        None => None,
    };
    sha256_hex(prefix.unwrap_or_default().as_bytes())
}

fn log_unavailable(cause: &RecordError) -> (&'static str, String, u32) {
    tracing::warn!(cause = %cause, "a decision could not be recorded, so it is not answered");
    ("log_unavailable", "The audit log does not accept, so nothing is decided.".into(), 5)
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(authorization: Option<&str>, api_key: Option<&str>) -> Result<String, &'static str> {
        let client = Client::default();
        let presented = Presented {
            authorization: authorization.map(str::as_bytes),
            api_key: api_key.map(str::as_bytes),
            route: "POST /mcp",
            source: "mcp",
            client: &client,
        };
        credential(presented)
            .map(|key| String::from_utf8(key.to_vec()).unwrap())
            .map_err(|refused| refused.code)
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

    #[test]
    fn the_ip_key_is_of_the_network() {
        assert_eq!(ip_key(Some("10.1.2.3")), ip_key(Some("10.1.2.200")));
        assert_ne!(ip_key(Some("10.1.2.3")), ip_key(Some("10.1.3.3")));
        assert_eq!(ip_key(Some("2001:db8:1::1")), ip_key(Some("2001:db8:1:ffff::1")));
    }
}
