//! Which names say that what they name is a secret. A name is compared without its case, `_`, `-`, spaces and dots.

use std::borrow::Cow;

use super::{Rule, RuleError};

/// Parts of names, and the rule they stand for. The first that fits counts.
const STEMS: &[(&str, &str)] = &[
    ("password", "password"),
    ("passwd", "password"),
    ("passwort", "password"),
    ("passphrase", "password"),
    ("passcode", "password"),
    ("userpass", "password"),
    ("dbpass", "password"),
    ("apikey", "api_key"),
    ("apisecret", "api_key"),
    ("clientsecret", "client_secret"),
    ("connectionstring", "connection_string"),
    ("connstring", "connection_string"),
    ("connstr", "connection_string"),
    ("databaseurl", "connection_string"),
    ("privatekey", "private_key"),
    ("signingkey", "private_key"),
    ("encryptionkey", "private_key"),
    ("masterkey", "private_key"),
    ("accesskey", "access_key"),
    ("accountkey", "access_key"),
    ("sharedkey", "access_key"),
    ("secret", "secret"),
    ("credential", "credential"),
    ("authorization", "authorization"),
    ("cookie", "cookie"),
    ("token", "token"),
    ("bearer", "token"),
];

/// Whole words of names, too short to look for inside others.
const WORDS: &[(&str, &str)] = &[
    ("pwd", "password"),
    ("dsn", "connection_string"),
    ("jwt", "token"),
    ("cvv", "card_code"),
    ("cvc", "card_code"),
    ("otp", "token"),
    ("sas", "access_key"),
];

/// Names as a whole.
const NAMES: &[(&str, &str)] =
    &[("pass", "password"), ("auth", "authorization"), ("pgpass", "password"), ("sig", "access_key")];

/// Two words before a separator in a text that together name a secret.
const PHRASES: &[(&str, &str)] = &[
    ("apikey", "api_key"),
    ("accesskey", "access_key"),
    ("accountkey", "access_key"),
    ("privatekey", "private_key"),
    ("secretkey", "private_key"),
    ("signingkey", "private_key"),
    ("encryptionkey", "private_key"),
    ("connectionstring", "connection_string"),
];

/// Words that hold a stem and name no secret.
const INNOCENT: &[&str] = &[
    "passwordless",
    "secretar",
    "secretion",
    "tokeniz",
    "tokenis",
    // MCP's own name for what tells one progress message from another.
    "progresstoken",
    "cookiecutter",
    "cookiejar",
    "cookiepolicy",
    "cookieconsent",
    "cookiebanner",
];

/// Last words that make a name say something about a secret instead of being one.
const ABOUT: &[&str] = &[
    "count",
    "counts",
    "limit",
    "limits",
    "length",
    "len",
    "size",
    "type",
    "types",
    "policy",
    "name",
    "names",
    "expires",
    "expiry",
    "expiration",
    "expired",
    "at",
    "in",
    "ttl",
    "age",
    "lifetime",
    "endpoint",
    "min",
    "max",
    "enabled",
    "required",
    "index",
    "version",
    "usage",
    "used",
    "budget",
    "format",
    "strength",
    "rotation",
    "algorithm",
    "alg",
    "method",
    "provider",
    "manager",
    "status",
    "scope",
    "scopes",
    "ratio",
    "rate",
    "cost",
    "price",
    "window",
    "per",
];

/// Before `tokens`, what makes those credentials and not a count.
const HELD: &[&str] =
    &["access", "refresh", "auth", "api", "bearer", "session", "id", "csrf", "oauth", "device"];

/// The names that a config knows.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    more: Vec<String>,
    allowed: Vec<String>,
}

impl Names {
    pub(super) fn new(more: &[String], allowed: &[String]) -> Result<Self, RuleError> {
        let read = |key: &'static str, names: &[String]| {
            let normal = names.iter().map(|name| {
                let normal = joined(&words(name));
                if normal.len() < 2 {
                    let cause = "a name of at least two letters or digits".to_owned();
                    return Err(RuleError { key, pattern: name.clone(), cause });
                }
                Ok(normal)
            });
            normal.collect::<Result<Vec<_>, _>>()
        };
        Ok(Self { more: read("key_patterns", more)?, allowed: read("keys_allowed", allowed)? })
    }

    /// The rule that `name` falls under.
    pub(super) fn rule(&self, name: &str) -> Option<Rule> {
        let words = words(name);
        let whole = joined(&words);
        if whole.is_empty() || self.allowed.contains(&whole) {
            return None;
        }
        if self.more.iter().any(|more| whole.contains(more.as_str())) {
            return Some(Cow::Borrowed("configured_key"));
        }
        if let Some((_, rule)) = NAMES.iter().find(|(name, _)| whole == *name) {
            return Some(Cow::Borrowed(rule));
        }
        let rule = stem(&words, whole)?;
        let last = words.last().map_or("", String::as_str);
        // A part of Vault's credentials is called `secret_id`, and a database's URL holds its password.
        let about = match last {
            "id" => rule != "secret",
            "url" | "uri" => rule != "connection_string",
            _ => ABOUT.contains(&last),
        };
        (!about).then_some(Cow::Borrowed(rule))
    }

    /// As [`Names::rule`], for the last two words before a separator in a text.
    pub(super) fn phrase(&self, before: &str, name: &str) -> Option<Rule> {
        let whole = joined(&words(before)) + &joined(&words(name));
        if self.allowed.contains(&whole) {
            return None;
        }
        let known = PHRASES.iter().find(|(phrase, _)| whole == *phrase);
        known
            .map(|(_, rule)| Cow::Borrowed(*rule))
            .or_else(|| self.more.contains(&whole).then_some(Cow::Borrowed("configured_key")))
    }
}

fn stem(words: &[String], mut whole: String) -> Option<&'static str> {
    if let Some((_, rule)) = WORDS.iter().find(|(short, _)| words.iter().any(|word| word == short)) {
        return Some(rule);
    }
    if !STEMS.iter().any(|(stem, _)| whole.contains(stem)) {
        return None;
    }
    for innocent in INNOCENT {
        if whole.contains(innocent) {
            whole = whole.replace(innocent, "|");
        }
    }
    let (_, rule) = STEMS.iter().find(|(stem, _)| whole.contains(stem))?;
    if *rule == "token" && counts_tokens(words) {
        return None;
    }
    Some(rule)
}

/// `max_tokens`, `prompt_tokens_details`, `num_token`: how many, not which.
fn counts_tokens(words: &[String]) -> bool {
    let held = |word: &String| HELD.contains(&word.as_str());
    let plural = words.iter().any(|word| word.ends_with("tokens"));
    let number =
        words.first().is_some_and(|word| ["max", "min", "num", "n", "total"].contains(&word.as_str()));
    (plural || number)
        && !words.iter().any(held)
        && !words.iter().any(|word| {
            HELD.iter().any(|held| word.strip_suffix("tokens").is_some_and(|before| before == *held))
        })
}

fn joined(words: &[String]) -> String {
    words.concat()
}

/// The words of a name: cut at everything that is no letter or digit, and where camelCase starts a new one.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut open, mut lower) = (false, false);
    for c in name.chars() {
        if !c.is_alphanumeric() {
            // Not a cut: what cannot be seen hides no name.
            if !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' | '\u{ad}') {
                open = false;
            }
            continue;
        }
        if !open || (c.is_uppercase() && lower) {
            words.push(String::new());
            open = true;
        }
        lower = c.is_lowercase() || c.is_numeric();
        if let Some(word) = words.last_mut() {
            word.extend(c.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_however_they_are_written() {
        let names = Names::default();
        for name in [
            "password",
            "PASSWORD",
            "Pass-Word",
            "userPassword",
            "db_password",
            "spring.datasource.password",
            "pwd",
            "PGPASSWORD",
            "passwd",
            "pass",
            "clientSecret",
            "client-secret",
            "secret_id",
            "api key",
            "apiKey",
            "X-API-Key",
            "x_api_key",
            "access_token",
            "accessTokens",
            "refresh-token",
            "Authorization",
            "Proxy-Authorization",
            "Set-Cookie",
            "cookie",
            "credentials",
            "private_key",
            "PRIVATE KEY",
            "aws_secret_access_key",
            "connectionString",
            "DATABASE_URL",
            "dsn",
            "sentry_dsn",
            "AccountKey",
            "pass\u{200b}word",
            "tokenizer_password",
            "idToken",
            "token",
            "newPassword2",
        ] {
            assert!(names.rule(name).is_some(), "{name}");
        }
    }

    #[test]
    fn names_that_only_look_like_it_stay() {
        let names = Names::default();
        for name in [
            "max_tokens",
            "token_count",
            "tokenizer",
            "tokenization",
            "prompt_tokens",
            "promptTokens",
            "completion_tokens_details",
            "tokens",
            "token_type",
            "tokenEndpoint",
            "secretary",
            "secretaryName",
            "SECRETARIAT",
            "passwordless",
            "passwordless_login",
            "password_policy",
            "passwordExpiresAt",
            "compass",
            "passenger",
            "bypass",
            "key",
            "primary_key",
            "key_id",
            "api_key_id",
            "author",
            "authored",
            "session_id",
            "cookie_policy",
            "cookie_consent",
            "description",
            "pwd_changed_at",
            "keyboard",
            "",
            "---",
            "passed",
        ] {
            assert_eq!(names.rule(name), None, "{name}");
        }
    }

    #[test]
    fn a_config_adds_names_and_takes_some_out() {
        let names = Names::new(&["tax-number".into(), "IBAN".into()], &["public_token".into()]).unwrap();
        assert_eq!(names.rule("customerIban").as_deref(), Some("configured_key"));
        assert_eq!(names.rule("TAX_NUMBER").as_deref(), Some("configured_key"));
        assert_eq!(names.rule("publicToken"), None);
        assert_eq!(names.rule("token").as_deref(), Some("token"));
        let error = Names::new(&["ok".into(), "-".into()], &[]).unwrap_err();
        assert_eq!((error.key, error.pattern.as_str()), ("key_patterns", "-"));
    }
}
