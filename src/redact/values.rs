//! Values that are secrets by their form, whatever they are called. Every pattern runs in time linear to the text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use regex::{Regex, RegexBuilder, RegexSet};

use super::{Rule, RuleError};

/// How large a pattern of a config may become, bytes.
const COMPILED_BYTES_MAX: usize = 1 << 20;

struct Pattern {
    rule: &'static str,
    /// Group 1, where there is one, is the secret; else the whole.
    regex: &'static str,
    check: fn(&str) -> bool,
}

const fn plain(rule: &'static str, regex: &'static str) -> Pattern {
    Pattern { rule, regex, check: |_| true }
}

const fn checked(rule: &'static str, regex: &'static str, check: fn(&str) -> bool) -> Pattern {
    Pattern { rule, regex, check }
}

const PATTERNS: &[Pattern] = &[
    // To the end of the text when its own end is missing.
    plain(
        "private_key",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.)*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\z)",
    ),
    plain("private_key", r"PuTTY-User-Key-File-[0-9]:(?s:.)*"),
    plain("private_key", r"AGE-SECRET-KEY-1[0-9A-Za-z]{20,}"),
    plain("jwt", r"(?-u:\b)eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*){1,3}"),
    checked("bearer", r"(?i:(?-u:\b)bearer)[ \t:=]+([A-Za-z0-9._~+/=-]{8,})", looks_random),
    checked("basic", r"(?i:(?-u:\b)basic)[ \t]+([A-Za-z0-9+/_-]{6,}={0,2})", holds_user_and_password),
    plain("annals_key", r"(?-u:\b)annals_[A-Za-z0-9_-]{40,}"),
    plain("aws_key", r"(?-u:\b)(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?-u:\b)"),
    plain("google_key", r"(?-u:\b)AIza[0-9A-Za-z_-]{35}"),
    plain(
        "google_key",
        r"(?-u:\b)(?:ya29\.[0-9A-Za-z_-]{20,}|GOCSPX-[0-9A-Za-z_-]{20,}|1//0[0-9A-Za-z_-]{30,})",
    ),
    plain("azure_key", r"(?-u:\b)[0-9A-Za-z_~.]{3}[78]Q~[0-9A-Za-z_~.-]{31,34}"),
    plain("azure_key", r"[?&]sig=([0-9A-Za-z%/+=_-]{20,})"),
    plain("github_token", r"(?-u:\b)(?:gh[pousr]_[0-9A-Za-z]{30,}|github_pat_[0-9A-Za-z_]{22,})"),
    plain(
        "gitlab_token",
        r"(?-u:\b)(?:gl(?:pat|ptt|rt|cbt|soat|ft|dt|oas|agent|imt|ffct)|GR1348941)-?[0-9A-Za-z_-]{20,}",
    ),
    plain("slack_token", r"(?-u:\b)(?:xox[a-z]-[0-9A-Za-z-]{10,}|xapp-[0-9A-Za-z-]{10,})"),
    plain("slack_token", r"hooks\.slack\.com/(?:services|workflows)/([0-9A-Za-z/_-]{20,})"),
    plain("stripe_key", r"(?-u:\b)(?:(?:sk|rk)_(?:live|test)_[0-9A-Za-z]{10,}|whsec_[0-9A-Za-z+/=]{16,})"),
    checked("model_key", r"(?-u:\b)(sk-[0-9A-Za-z_-]{20,})", has_digit_and_letter),
    plain("npm_token", r"(?-u:\b)npm_[0-9A-Za-z]{36}"),
    plain("pypi_token", r"(?-u:\b)pypi-[0-9A-Za-z_-]{50,}"),
    plain("vault_token", r"(?-u:\b)hv[sbr]\.[0-9A-Za-z_-]{20,}"),
    plain("service_token", r"(?-u:\b)SG\.[0-9A-Za-z_-]{16,}\.[0-9A-Za-z_-]{16,}"),
    plain(
        "service_token",
        r"(?-u:\b)(?:hf_[0-9A-Za-z]{30,}|do[opr]_v1_[0-9a-f]{64}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32})",
    ),
    plain(
        "service_token",
        r"(?-u:\b)(?:dapi[0-9a-f]{32}|dckr_pat_[0-9A-Za-z_-]{20,}|lin_api_[0-9A-Za-z]{32,}|PMAK-[0-9a-f-]{40,}|NRAK-[0-9A-Z]{20,})",
    ),
    plain("service_token", r"(?-u:\b)[0-9]{8,10}:AA[0-9A-Za-z_-]{33}"),
    plain("connection_string", r"jdbc:oracle:thin:[^/\s]{1,128}/([^@\s]{1,256})@"),
    plain("password", r"(?i:(?-u:\b)(?:password|passwd|identified\s+by))\s+'((?:[^']|'')*)'?"),
];

fn looks_random(text: &str) -> bool {
    let digit = text.bytes().any(|b| b.is_ascii_digit());
    digit || text.len() >= 20 || (text.len() >= 12 && mixed(text))
}

fn mixed(text: &str) -> bool {
    let inside = text.bytes().skip(1);
    text.bytes().any(|b| b.is_ascii_lowercase()) && inside.clone().any(|b| b.is_ascii_uppercase())
}

fn has_digit_and_letter(text: &str) -> bool {
    text.bytes().any(|b| b.is_ascii_digit()) || mixed(text.get(3..).unwrap_or_default())
}

fn holds_user_and_password(text: &str) -> bool {
    let text = text.trim_end_matches('=').replace('-', "+").replace('_', "/");
    STANDARD_NO_PAD
        .decode(text)
        .is_ok_and(|bytes| bytes.contains(&b':') && std::str::from_utf8(&bytes).is_ok())
}

struct Compiled {
    set: RegexSet,
    each: Vec<Regex>,
}

static BUILT_IN: LazyLock<Compiled> = LazyLock::new(|| Compiled {
    set: RegexSet::new(PATTERNS.iter().map(|pattern| pattern.regex))
        .expect("the patterns are regular expressions"),
    each: PATTERNS
        .iter()
        .map(|pattern| Regex::new(pattern.regex).expect("the patterns are regular expressions"))
        .collect(),
});

/// AWS' secret keys have no form of their own but their length; beside an access key's id they are one.
static BESIDE_AWS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?:^|[^A-Za-z0-9/+=])([A-Za-z0-9/+]{40})(?:$|[^A-Za-z0-9/+=])")
        .expect("a regular expression")
});

/// The forms of secrets that are looked for: ours, and those of the config.
#[derive(Debug, Clone, Default)]
pub(super) struct Values {
    more: Vec<(String, Regex)>,
}

impl Values {
    pub(super) fn new(more: &BTreeMap<String, String>) -> Result<Self, RuleError> {
        let compiled = more.iter().map(|(name, pattern)| {
            let error = |cause: String| RuleError { key: "value_patterns", pattern: name.clone(), cause };
            let named = (1..=32).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            if !named {
                return Err(error("its name needs 1 to 32 of a-z, 0-9 and _".into()));
            }
            let regex = RegexBuilder::new(pattern)
                .size_limit(COMPILED_BYTES_MAX)
                .build()
                .map_err(|cause| error(cause.to_string()))?;
            if regex.is_match("") {
                return Err(error("it fits the empty text, and so everywhere".into()));
            }
            Ok((name.clone(), regex))
        });
        Ok(Self { more: compiled.collect::<Result<_, _>>()? })
    }

    /// Whether `rule` is one of these.
    pub(super) fn knows(&self, rule: &str) -> bool {
        PATTERNS.iter().any(|pattern| pattern.rule == rule) || self.more.iter().any(|(name, _)| name == rule)
    }

    /// Gives each secret in `text` to `found`.
    pub(super) fn find(&self, text: &str, found: &mut impl FnMut(Range<usize>, Rule)) {
        for at in BUILT_IN.set.matches(text) {
            let (pattern, regex) = (&PATTERNS[at], &BUILT_IN.each[at]);
            for captures in regex.captures_iter(text) {
                let Some(secret) = captures.get(1).or_else(|| captures.get(0)) else { continue };
                if (pattern.check)(secret.as_str()) {
                    found(secret.range(), Cow::Borrowed(pattern.rule));
                }
            }
            if pattern.rule == "aws_key" {
                beside_aws(text, found);
            }
        }
        for (name, regex) in &self.more {
            for hit in regex.find_iter(text).filter(|hit| !hit.is_empty()) {
                found(hit.range(), Cow::Owned(name.clone()));
            }
        }
    }
}

fn beside_aws(text: &str, found: &mut impl FnMut(Range<usize>, Rule)) {
    for captures in BESIDE_AWS.captures_iter(text) {
        let Some(secret) = captures.get(1) else { continue };
        let has = |is: fn(&u8) -> bool| secret.as_str().as_bytes().iter().any(is);
        if has(u8::is_ascii_digit) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase) {
            found(secret.range(), Cow::Borrowed("aws_key"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_of_a_config_is_compiled_or_named_with_its_fault() {
        let with = |name: &str, pattern: &str| Values::new(&BTreeMap::from([(name.into(), pattern.into())]));
        let values = with("patient", r"PAT-\d{6}").unwrap();
        let mut found = Vec::new();
        values.find("of PAT-123456.", &mut |range, rule| found.push((range, rule)));
        assert_eq!(found, [(3..13, Cow::Borrowed("patient"))]);
        for (name, pattern, cause) in [
            ("patient", "(", "unclosed group"),
            ("a b", "x", "its name needs"),
            ("all", "x*", "fits the empty text"),
        ] {
            let error = with(name, pattern).unwrap_err();
            assert_eq!((error.key, error.pattern.as_str()), ("value_patterns", name));
            assert!(error.cause.contains(cause), "{error}");
        }
    }
}
