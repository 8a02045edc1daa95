//! W3C Trace Context: the trace that a caller says its request belongs to. It correlates and proves nothing.

use std::fmt;

/// A `traceparent`, as far as it is used: which trace, and which span of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    trace_id: [u8; 16],
    parent_id: [u8; 8],
}

impl TraceParent {
    /// Reads a `traceparent` by the rules of W3C Trace Context: version `00` exactly, a later version by what it has in
    /// common with `00`. `None` for everything else, and for ids of zeros only.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        let (head, rest) = text.split_at_checked(55)?;
        let (version, head) = field::<1>(head)?;
        let (trace_id, head) = field::<16>(head.strip_prefix(b"-")?)?;
        let (parent_id, head) = field::<8>(head.strip_prefix(b"-")?)?;
        field::<1>(head.strip_prefix(b"-")?)?;
        let ends_well = match version {
            [0] => rest.is_empty(),
            [0xff] => false,
            _ => rest.is_empty() || rest.first() == Some(&b'-'),
        };
        let known = ends_well && trace_id != [0; 16] && parent_id != [0; 8];
        known.then_some(Self { trace_id, parent_id })
    }

    /// The trace's id: 32 lower-case hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> String {
        hex::encode(self.trace_id)
    }

    /// The id of the caller's span: 16 lower-case hexadecimal digits.
    #[must_use]
    pub fn parent_id(&self) -> String {
        hex::encode(self.parent_id)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", hex::encode(self.trace_id), hex::encode(self.parent_id))
    }
}

/// `N` bytes in lower-case hexadecimal digits, and what follows them.
fn field<const N: usize>(text: &[u8]) -> Option<([u8; N], &[u8])> {
    let (digits, rest) = text.split_at_checked(2 * N)?;
    if digits.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    let mut bytes = [0; N];
    hex::decode_to_slice(digits, &mut bytes).ok()?;
    Some((bytes, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn what_the_rules_allow_is_read() {
        for text in [
            format!("00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-00"),
            format!("00-{TRACE}-{SPAN}-ff"),
            format!("cc-{TRACE}-{SPAN}-01"),
            format!("cc-{TRACE}-{SPAN}-01-what-the-future-brings"),
            format!("01-{TRACE}-{SPAN}-01-"),
        ] {
            let read = TraceParent::parse(&text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((read.trace_id().as_str(), read.parent_id().as_str()), (TRACE, SPAN), "{text}");
        }
    }

    #[test]
    fn everything_else_is_none() {
        for text in [
            String::new(),
            "00".into(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01 "),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("cc-{TRACE}-{SPAN}-01.more"),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0G"),
            format!("00-{TRACE}-{SPAN}-0A"),
            format!("0A-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("00-{TRACE}{SPAN}-01--"),
            format!("00-{}é-{SPAN}-01", "a".repeat(30)),
            format!("0-{TRACE}-{SPAN}-001"),
        ] {
            assert_eq!(TraceParent::parse(&text), None, "{text}");
        }
    }
}
