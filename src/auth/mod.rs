//! Who calls, and what they may reach: API keys in a snapshot, personas from the config.
//!
//! Records `auth.failed` and `admin.audit_queried`. Never reads HTTP bodies and never runs a tool.

mod flood;
mod follow;
mod gate;
mod keys;
mod persona;
mod refusals;
mod store;

pub use flood::FloodLimits;
pub use follow::follow;
pub use gate::{AuditAccess, Auth, AuthError, KeyEnd, Presented, Unauthenticated, local_principal};
pub use keys::{KEY_PREFIX, KeyRecord, Keys, Lookup, mint};
pub use persona::{Globs, Persona, PersonaError, Personas};
pub use store::{Created, KeyError, KeyStore, Listed, NewKey, list_adoptable, list_keys};

use uuid::Uuid;

use crate::event::AuthMethod;

/// Somebody who proved who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Pseudonymous and stable; what facts carry.
    pub subject_id: String,
    /// The name given to the key; personal.
    pub user_name: String,
    /// How it was proved.
    pub auth_method: AuthMethod,
    /// The API key's id, when there is one.
    pub key_id: Option<Uuid>,
    /// Roles, which personas map.
    pub roles: Vec<String>,
    /// Whether its key was made without a rate limit.
    pub no_limit: bool,
}
