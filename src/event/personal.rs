//! The part of an event that names people or holds what they wrote; separate so that it can be erased.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// How `personal.bytes` is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PersonalAlg {
    /// JSON text in the clear: erasable only by retention.
    #[serde(rename = "none")]
    None,
}

/// What `personal.bytes` holds, as JSON text. Every field is optional and left out when empty.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Personal {
    /// The principal's name: the holder of the API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_name: Option<String>,
    /// The peer's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<String>,
    /// The `User-Agent` header, clipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    /// Why the caller says it makes the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// The arguments, redacted, without `purpose`; absent when over the size limit (the digest in the facts stands), and
    /// below the level `arguments`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub arguments: Option<Box<RawValue>>,
    /// The error's public text, redacted and clipped; absent at level `minimal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// What the caller claims of itself and could forge (client info, `_meta`, headers); never decides anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub asserted: Option<Box<RawValue>>,
    /// The name given to the object of an admin event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_name: Option<String>,
    /// The filters of an audit query, as given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub query: Option<Box<RawValue>>,
    /// The result, redacted, at level `full`; absent when over the size limit (the digest in the facts stands).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub result: Option<Box<RawValue>>,
}
