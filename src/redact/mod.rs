//! Redaction: takes secrets out of what is about to be recorded or logged, and puts a marker with a keyed digest in the
//! place of each.
//!
//! Pure: no I/O, no time; knows nothing of events, tools or HTTP. It never lets through what it could not look at: a text
//! that is too large or too deep, or on which a rule fails, becomes [`UNREADABLE`] as a whole. `docs/redaction.md` says
//! what is recognised and what is not.

mod card;
mod digest;
mod hidden;
mod json;
mod names;
mod pairs;
mod secrets;
mod shape;
mod sql;
mod text;
mod values;

pub use digest::DigestKey;
pub use secrets::Secrets;
pub use shape::Shape;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::base::planted;

/// Stands in the place of what no rule could look at.
pub const UNREADABLE: &str = "[redacted:unreadable]";

/// The longest text that is looked at, bytes.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// The deepest JSON that is looked at, and how often JSON may stand in a string of JSON.
const DEPTH_MAX: usize = 64;
const NESTED_MAX: usize = 6;

/// The name of what found a secret, as markers carry it.
type Rule = Cow<'static, str>;

/// What a config adds to the rules that are always in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// More names of secrets; each fits a name that contains it.
    pub key_patterns: Vec<String>,
    /// Whole names that name no secret.
    pub keys_allowed: Vec<String>,
    /// More forms of secrets: regular expressions by name.
    pub value_patterns: BTreeMap<String, String>,
}

/// A rule of a config cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?}: {cause}")]
pub struct RuleError {
    /// `key_patterns`, `keys_allowed`, `value_patterns`.
    pub key: &'static str,
    /// The rule, or its name where it has one.
    pub pattern: String,
    /// What is wrong with it.
    pub cause: String,
}

/// The text could not be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it cannot be looked at for secrets")]
pub struct Unreadable;

/// What is known of a JSON value beyond itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'a> {
    /// What its schema calls sensitive.
    pub shape: Option<&'a Shape>,
    /// Whether string literals of SQL statements in it are secrets.
    pub sql_literals: bool,
}

/// The rules in force and the key of the digests. Compiled once and shared.
#[derive(Debug)]
pub struct Redactor {
    key: DigestKey,
    names: names::Names,
    values: values::Values,
}

impl Default for Redactor {
    /// The rules that are always in force, under a key that nobody knows.
    fn default() -> Self {
        Self { key: DigestKey::random(), names: names::Names::default(), values: values::Values::default() }
    }
}

impl Redactor {
    /// Compiles `rules`.
    ///
    /// # Errors
    /// [`RuleError`] names the rule that cannot be used.
    pub fn new(key: DigestKey, rules: &Rules) -> Result<Self, RuleError> {
        let names = names::Names::new(&rules.key_patterns, &rules.keys_allowed)?;
        Ok(Self { key, names, values: values::Values::new(&rules.value_patterns)? })
    }

    /// One for whoever has neither config nor key yet.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// The digest that stands for `bytes` in records: HMAC-SHA-256, 64 hexadecimal digits.
    #[must_use]
    pub fn digest(&self, bytes: &[u8]) -> String {
        self.key.digest(bytes)
    }

    /// Names the key of the digests.
    #[must_use]
    pub fn digest_key_id(&self) -> &str {
        self.key.id()
    }

    /// `text` without its secrets. What is found is added to `secrets`, and what is there already is found too.
    #[must_use]
    pub fn text(&self, text: &str, secrets: &mut Secrets) -> String {
        if planted::armed("redactor_removed") {
            return text.to_owned();
        }
        guarded(|| self.cleaned(text, secrets, &text::Look::default())).map_or_else(
            |Unreadable| {
                secrets.unreadable();
                if planted::armed("redaction_fails_open") { text.to_owned() } else { UNREADABLE.to_owned() }
            },
            |cleaned| cleaned.unwrap_or_else(|| text.to_owned()),
        )
    }

    /// At most `bytes_max` bytes of `text` without its secrets: a secret that is cut in two is found by no rule.
    #[must_use]
    pub fn clipped(&self, text: &str, bytes_max: usize) -> String {
        crate::base::clip(&self.text(text, &mut Secrets::default()), bytes_max).to_owned()
    }

    /// The JSON value `raw` without its secrets; all that stays keeps its bytes.
    #[must_use]
    pub fn json(&self, raw: &RawValue, scope: &Scope<'_>, secrets: &mut Secrets) -> Box<RawValue> {
        if planted::armed("redactor_removed") {
            return raw.to_owned();
        }
        let cleaned = guarded(|| {
            let text = json::Pass { redactor: self, scope: *scope, keys: true, nested: 0 }
                .run(raw.get(), secrets)?;
            RawValue::from_string(text).map_err(|_| Unreadable)
        });
        cleaned.unwrap_or_else(|Unreadable| {
            secrets.unreadable();
            if planted::armed("redaction_fails_open") { raw.to_owned() } else { unreadable_json() }
        })
    }

    /// The JSON text of something of ours: its names are known, so only its strings are looked at.
    ///
    /// # Errors
    /// [`Unreadable`]: it must not be recorded.
    pub fn strings(&self, json: &str) -> Result<String, Unreadable> {
        if planted::armed("redactor_removed") {
            return Ok(json.to_owned());
        }
        guarded(|| {
            let pass = json::Pass { redactor: self, scope: Scope::default(), keys: false, nested: 0 };
            pass.run(json, &mut Secrets::default())
        })
    }
}

/// Not the value but what stands for it, as JSON.
fn unreadable_json() -> Box<RawValue> {
    RawValue::from_string(format!("\"{UNREADABLE}\"")).expect("a string without escapes is JSON")
}

/// A rule that panics is a rule that could not be applied.
fn guarded<T>(run: impl FnOnce() -> Result<T, Unreadable>) -> Result<T, Unreadable> {
    std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(Unreadable))
}

#[cfg(test)]
mod tests;
