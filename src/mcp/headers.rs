//! The headers of MCP: exactly one of each, plain characters, decoded where the revision encodes them.
//!
//! Says only what a header holds or why it cannot be used; what that means is for the revisions' modules.

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderName};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// `MCP-Protocol-Version`
pub(super) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// `Mcp-Method`
pub(super) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// `Mcp-Name`
pub(super) const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// `Mcp-Session-Id`
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

const ENCODED_PREFIX: &str = "=?base64?";
const ENCODED_SUFFIX: &str = "?=";

/// Why a header cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unusable {
    /// It stands there more than once.
    Repeated,
    /// It holds other characters than visible ASCII and spaces.
    Characters,
    /// It says that it is Base64, and is not, or not of UTF-8.
    Encoding,
}

impl Unusable {
    /// The rest of a sentence that starts with the header's name.
    pub(super) const fn why(self) -> &'static str {
        match self {
            Self::Repeated => "is given more than once",
            Self::Characters => "holds characters other than visible ASCII",
            Self::Encoding => "is marked as Base64 but cannot be decoded to UTF-8 text",
        }
    }
}

/// The one value of `name`, without surrounding white space.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Unusable> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Unusable::Repeated);
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| Unusable::Characters)?;
    let text = text.trim_matches([' ', '\t']);
    let plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    if plain { Ok(Some(text)) } else { Err(Unusable::Characters) }
}

/// What a header value stands for: the text inside `=?base64?…?=`, else itself.
pub(super) fn decoded(value: &str) -> Result<Cow<'_, str>, Unusable> {
    let inner = value.strip_prefix(ENCODED_PREFIX).and_then(|rest| rest.strip_suffix(ENCODED_SUFFIX));
    let Some(inner) = inner else { return Ok(Cow::Borrowed(value)) };
    let bytes = STANDARD.decode(inner).map_err(|_| Unusable::Encoding)?;
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| Unusable::Encoding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn encoded_values_are_decoded_strictly() {
        assert_eq!(decoded("sql_query").unwrap(), "sql_query");
        assert_eq!(decoded("=?base64?SGVsbG8sIOS4lueVjA==?=").unwrap(), "Hello, 世界");
        assert_eq!(decoded("=?base64??=").unwrap(), "");
        assert_eq!(decoded("=?base64?SGVsbG8=").unwrap(), "=?base64?SGVsbG8=");
        assert_eq!(decoded("SGVsbG8=?=").unwrap(), "SGVsbG8=?=");
        for bad in ["=?base64?SGVsbG8?=", "=?base64?SGVs!!!bG8=?=", "=?base64?/w==?=", "=?base64?SGVsbG9=?="]
        {
            assert_eq!(decoded(bad), Err(Unusable::Encoding), "{bad}");
        }
    }

    #[test]
    fn a_header_stands_once_in_plain_characters() {
        let mut headers = HeaderMap::new();
        assert_eq!(single(&headers, &NAME), Ok(None));
        headers.append(NAME, HeaderValue::from_static(" \ta b "));
        assert_eq!(single(&headers, &NAME), Ok(Some("a b")));
        headers.append(NAME, HeaderValue::from_static("a b"));
        assert_eq!(single(&headers, &NAME), Err(Unusable::Repeated));
        for bytes in [&b"caf\xc3\xa9"[..], b"caf\xe9", b"a\tb"] {
            let headers = HeaderMap::from_iter([(NAME, HeaderValue::from_bytes(bytes).unwrap())]);
            assert_eq!(single(&headers, &NAME), Err(Unusable::Characters));
        }
    }
}
