//! Personas: what a role may reach. Deny wins, and what nothing allows is denied.

use std::collections::BTreeMap;
use std::sync::Arc;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// A persona cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PersonaError {
    /// Not a glob.
    #[error("persona {persona}: {glob:?} is not a glob: {cause}")]
    Glob {
        /// The persona.
        persona: String,
        /// What was written.
        glob: String,
        /// Why not.
        cause: String,
    },
}

/// Allow and deny globs over names.
#[derive(Debug, Clone, Default)]
pub struct Globs {
    allow: GlobSet,
    deny: GlobSet,
}

impl Globs {
    /// Compiles the globs of `persona`.
    ///
    /// # Errors
    /// [`PersonaError::Glob`] names the bad one.
    pub fn new(persona: &str, allow: &[String], deny: &[String]) -> Result<Self, PersonaError> {
        Ok(Self { allow: compile(persona, allow)?, deny: compile(persona, deny)? })
    }

    /// Whether `name` is allowed and not denied.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        self.allow.is_match(name) && !self.deny.is_match(name)
    }
}

fn compile(persona: &str, globs: &[String]) -> Result<GlobSet, PersonaError> {
    let bad = |glob: &str, error: &globset::Error| PersonaError::Glob {
        persona: persona.to_owned(),
        glob: glob.to_owned(),
        cause: error.kind().to_string(),
    };
    let mut set = GlobSetBuilder::new();
    for glob in globs {
        let built =
            GlobBuilder::new(glob).literal_separator(false).build().map_err(|error| bad(glob, &error))?;
        set.add(built);
    }
    set.build().map_err(|error| bad("", &error))
}

/// What a role may reach.
#[derive(Debug, Clone, Default)]
pub struct Persona {
    /// Its name in the config.
    pub name: String,
    /// Which tools.
    pub tools: Globs,
    /// Which connections.
    pub connections: Globs,
    /// Whether it may read the audit.
    pub reads_audit: bool,
}

/// All personas, and which role leads to which.
#[derive(Debug, Clone, Default)]
pub struct Personas {
    by_role: BTreeMap<String, Arc<Persona>>,
}

impl Personas {
    /// From (persona, its roles), in order of preference: the first that names a role gets it.
    #[must_use]
    pub fn new(personas: impl IntoIterator<Item = (Persona, Vec<String>)>) -> Self {
        let mut by_role = BTreeMap::new();
        for (persona, roles) in personas {
            let persona = Arc::new(persona);
            for role in roles {
                by_role.entry(role).or_insert_with(|| Arc::clone(&persona));
            }
        }
        Self { by_role }
    }

    /// The persona of the first role that has one.
    #[must_use]
    pub fn of(&self, roles: &[String]) -> Option<&Arc<Persona>> {
        roles.iter().find_map(|role| self.by_role.get(role))
    }

    /// Every role that a persona names.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        self.by_role.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(items: &[&str]) -> Vec<String> {
        items.iter().map(|&item| item.to_owned()).collect()
    }

    #[test]
    fn deny_wins_and_silence_denies() {
        let globs =
            Globs::new("p", &strings(&["sql_*", "platform_info"]), &strings(&["sql_execute"])).unwrap();
        assert!(globs.allows("sql_query"));
        assert!(!globs.allows("sql_execute"));
        assert!(!globs.allows("list_connections"));
        assert!(!Globs::default().allows("anything"));
    }

    #[test]
    fn a_bad_glob_is_named() {
        let error = Globs::new("p", &strings(&["sql_["]), &[]).unwrap_err();
        assert!(matches!(error, PersonaError::Glob { glob, .. } if glob == "sql_["));
    }
}
