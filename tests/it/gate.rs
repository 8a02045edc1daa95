//! The gate: every refused credential and every read of the audit is durable before it is answered.

use std::sync::Arc;

use annals::auth::{AuditAccess, Auth, AuthError, Globs, KeyRecord, Keys, Persona, Personas, Presented};
use annals::base::{Clock, SystemClock, sha256};
use annals::dispatch::Client;
use annals::event::{Facts, Transport};
use annals::log::embedded::{EmbeddedLog, Options};
use annals::log::{Lanes, Log};
use annals::refusal::{Place, Surface};
use serde_json::json;
use uuid::Uuid;

use crate::faulty_log::{Fault, FaultyLog};
use crate::reading;

struct Door {
    _dir: tempfile::TempDir,
    log: Arc<FaultyLog>,
    keys: Arc<Keys>,
    auth: Auth,
}

fn door() -> Door {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new(dir.path().join("log"), &annals::config::Config::default().log);
    let (engine, _) = EmbeddedLog::open(options, Arc::new(SystemClock)).unwrap();
    let log = Arc::new(FaultyLog::new(engine));
    let lanes = Arc::new(Lanes::new(Arc::clone(&log) as Arc<dyn Log>, Arc::new(SystemClock), "default"));
    let keys = Arc::new(Keys::new());
    let auth =
        Auth::new(Arc::clone(&keys), annals::config::Config::default().personas().unwrap(), None, lanes);
    Door { _dir: dir, log, keys, auth }
}

fn record(name: &str, role: &str) -> KeyRecord {
    KeyRecord {
        key_id: Uuid::new_v4(),
        subject_id: format!("sub-{name}"),
        user_name: name.into(),
        roles: vec![role.into()],
        expires_at: None,
        revoked: false,
        no_limit: false,
    }
}

/// The code of the refusal of `key`, or the persona's name.
async fn knock(door: &Door, key: Option<&str>) -> Result<String, AuthError> {
    let client = Client { ip: Some("192.0.2.9".into()), ..Client::default() };
    let api_key = key.map(str::as_bytes);
    let place = Place { route: "POST /mcp", surface: Surface::Mcp, transport: Transport::Http };
    let presented = Presented { authorization: None, api_key, place, client: &client };
    door.auth.authenticate(presented).await.map(|(_, persona)| persona.name.clone())
}

async fn facts(door: &Door) -> Vec<Facts> {
    reading::events(&*door.log).await.into_iter().map(|event| event.facts).collect()
}

#[tokio::test]
async fn each_refused_credential_is_durable_with_its_reason() {
    let door = door();
    let past = SystemClock.now().plus_micros(-1);
    let hash = |key: &str| sha256(key.as_bytes());
    door.keys.load([
        (hash("good"), record("ann", "analyst")),
        (hash("revoked"), KeyRecord { revoked: true, ..record("ben", "analyst") }),
        (hash("expired"), KeyRecord { expires_at: Some(past), ..record("cleo", "analyst") }),
        (hash("unmapped"), record("dora", "gardener")),
    ]);
    assert_eq!(knock(&door, Some("good")).await, Ok("analyst".into()));
    let cases = [
        (None, "missing"),
        (Some("a b"), "malformed"),
        (Some("nobody"), "unknown"),
        (Some("revoked"), "revoked"),
        (Some("expired"), "expired"),
        (Some("unmapped"), "unmapped"),
    ];
    for (key, reason) in cases {
        let Err(AuthError::Unauthenticated(refusal)) = knock(&door, key).await else { panic!("{reason}") };
        assert_eq!(refusal.code(), reason);
    }
    let recorded = facts(&door).await;
    let reasons: Vec<&str> = recorded
        .iter()
        .map(|facts| match facts {
            Facts::AuthFailed(failed) => failed.reason.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(reasons, cases.map(|(_, reason)| reason), "one event each, none for the good key");
    assert!(
        matches!(&recorded[3], Facts::AuthFailed(failed) if failed.key_id.is_some()),
        "a known key is named"
    );
}

#[tokio::test]
async fn before_the_keys_are_loaded_nobody_is_called_unknown() {
    let door = door();
    let Err(AuthError::Unavailable { refusal, .. }) = knock(&door, Some("nobody")).await else {
        panic!("decided")
    };
    assert_eq!(refusal.code(), "keys_loading");
    let recorded = facts(&door).await;
    let [Facts::RequestRefused(refused)] = recorded.as_slice() else { panic!("{recorded:?}") };
    assert_eq!((refused.reason.as_str(), refused.status), ("keys_loading", Some(503)));
}

#[tokio::test]
async fn a_refusal_that_cannot_be_recorded_is_unavailable() {
    let door = door();
    door.keys.load([]);
    door.log.set(Fault::Refuse);
    let Err(AuthError::Unavailable { refusal, .. }) = knock(&door, Some("nobody")).await else {
        panic!("decided")
    };
    assert_eq!(refusal.code(), "log_unavailable");
}

#[tokio::test]
async fn reading_the_audit_is_durable_before_it_is_allowed_and_refusing_it_too() {
    let door = door();
    door.keys.load([(sha256(b"k"), record("ann", "analyst"))]);
    let client = Client::default();
    let presented = Presented {
        authorization: Some(b"Bearer k"),
        api_key: None,
        place: Place { route: "GET /", surface: Surface::Rest, transport: Transport::Http },
        client: &client,
    };
    let (principal, analyst) = door.auth.authenticate(presented).await.unwrap();
    let refused = door.auth.audit_access(&principal, &analyst, "events", &json!({}), &client).await;
    assert!(matches!(refused, Err(AuditAccess::Forbidden { .. })), "{refused:?}");
    let auditor = Persona { name: "auditor".into(), reads_audit: true, ..Persona::default() };
    door.auth.audit_access(&principal, &auditor, "events", &json!({ "limit": "5" }), &client).await.unwrap();
    let recorded = facts(&door).await;
    let views: Vec<(&str, bool)> = recorded
        .iter()
        .map(|facts| match facts {
            Facts::AuditQueried(queried) => (queried.persona.as_str(), queried.authorized),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(views, [("analyst", false), ("auditor", true)]);
    door.log.set(Fault::Refuse);
    let refused = door.auth.audit_access(&principal, &auditor, "events", &json!({}), &client).await;
    assert!(matches!(refused, Err(AuditAccess::Unavailable { .. })), "{refused:?}");
}

#[test]
fn a_persona_needs_a_role_that_leads_to_it() {
    let persona = |name: &str| Persona { name: name.into(), tools: Globs::default(), ..Persona::default() };
    let personas =
        Personas::new([(persona("a"), vec!["x".into()]), (persona("b"), vec!["x".into(), "y".into()])]);
    let of = |roles: &[&str]| {
        personas.of(&roles.iter().map(|&role| role.to_owned()).collect::<Vec<_>>()).map(|p| p.name.clone())
    };
    assert_eq!(of(&["x"]), Some("a".into()), "the first that names a role gets it");
    assert_eq!(of(&["z", "y"]), Some("b".into()));
    assert_eq!(of(&["z"]), None);
}
