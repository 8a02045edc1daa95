//! Who asks, when requests come through proxies of ours: the one place that decides on a client's address.
//!
//! A header is believed only as far as trusted proxies wrote it. What somebody else sends stays in the request, where it
//! is a claim like any other; what the proxies say of the way is taken out, so that nobody behind this reads it again.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State as Extract};
use axum::http::{HeaderMap, HeaderName};
use axum::middleware::Next;
use axum::response::Response;
use ipnet::{IpNet, Ipv4Net};

use super::Peer;
use crate::base::planted;
use crate::config::ForwardedHeader;

const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED: &str = "x-forwarded-";

/// An element of `Forwarded` is looked for within this many bytes and commas, so that no header takes long to read.
const ELEMENT_BYTES_MAX: usize = 512;
const ELEMENT_COMMAS_MAX: usize = 16;

/// The proxies that are believed.
#[derive(Debug, Clone)]
pub struct Proxies {
    trusted: Vec<IpNet>,
    header: ForwardedHeader,
}

/// The network that a config's entry names: an address or a CIDR block; IPv4 addresses within IPv6 are IPv4.
#[must_use]
pub fn network(text: &str) -> Option<IpNet> {
    let net = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse::<IpNet>().ok()?,
    };
    let IpNet::V6(v6) = net else { return Some(net) };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) {
        (Some(v4), Some(prefix)) => Some(IpNet::V4(Ipv4Net::new(v4, prefix).ok()?)),
        _ => Some(net),
    }
}

impl Proxies {
    /// Those of the config; entries that name no network are nobody.
    #[must_use]
    pub fn new(config: &crate::config::Http) -> Self {
        let trusted = config.trusted_proxies.iter().filter_map(|text| network(text)).collect();
        Self { trusted, header: config.forwarded_header }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|net| net.contains(&address))
    }

    /// The address of who asks through `peer`: the nearest one that is no trusted proxy. Where the way cannot be followed
    /// further, it is the last proxy on it.
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut nearest = peer.to_canonical();
        if !self.trusts(nearest) && !planted::armed("forwarded_believed") {
            return nearest;
        }
        let lines = match self.header {
            ForwardedHeader::XForwardedFor => headers.get_all(X_FORWARDED_FOR),
            ForwardedHeader::Forwarded => headers.get_all(FORWARDED),
        };
        // Each proxy adds at the end, so the way is read from there.
        let lines: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
        for line in lines.iter().rev() {
            let mut rest = Some(line.as_ref());
            while let Some(text) = rest {
                let (entry, before) = match self.header {
                    ForwardedHeader::XForwardedFor => last_address(text),
                    ForwardedHeader::Forwarded => last_element(text),
                };
                let Some(address) = entry else { return nearest };
                nearest = address.to_canonical();
                if !self.trusts(nearest) {
                    return nearest;
                }
                rest = before;
            }
        }
        nearest
    }
}

/// Decides on the client's address, once for each request.
pub(super) async fn resolve(
    Extract(proxies): Extract<Arc<Proxies>>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(&Peer(socket)) = request.extensions().get::<Peer>() {
        let client = proxies.client(socket.ip(), request.headers());
        let port = if client == socket.ip().to_canonical() { socket.port() } else { 0 };
        request.extensions_mut().insert(Peer(SocketAddr::new(client, port)));
        if proxies.trusts(socket.ip().to_canonical()) {
            take_out(request.headers_mut());
        }
    }
    next.run(request).await
}

fn take_out(headers: &mut HeaderMap) {
    let said: Vec<HeaderName> = headers
        .keys()
        .filter(|name| **name == FORWARDED || name.as_str().starts_with(X_FORWARDED))
        .cloned()
        .collect();
    for name in said {
        headers.remove(name);
    }
}

/// The last entry of an `X-Forwarded-For`, and what stands before it.
fn last_address(text: &str) -> (Option<IpAddr>, Option<&str>) {
    let (before, entry) = match text.rsplit_once(',') {
        Some((before, entry)) => (Some(before), entry),
        None => (None, text),
    };
    (address(entry.trim_matches([' ', '\t'])), before)
}

/// An address with or without port, IPv6 in brackets where a port follows.
fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    text.parse().ok().map(|socket: SocketAddr| socket.ip())
}

/// The address in the last element of a `Forwarded` (RFC 7239), and what stands before the element.
///
/// What a client sent stands before what the proxy added, and may hold a quote that never ends. So the element is the
/// shortest end of the text that is one.
fn last_element(text: &str) -> (Option<IpAddr>, Option<&str>) {
    let commas = text.rmatch_indices(',').map(|(at, _)| at).take(ELEMENT_COMMAS_MAX);
    for start in commas {
        let (before, element) = (text.get(..start), text.get(start + 1..).unwrap_or_default());
        if element.len() > ELEMENT_BYTES_MAX {
            return (None, None);
        }
        if let Some(node) = node_of(element) {
            return (node_address(&node), before);
        }
    }
    if text.len() > ELEMENT_BYTES_MAX {
        return (None, None);
    }
    (node_of(text).and_then(|node| node_address(&node)), None)
}

/// What `for` says in one well-formed element; empty when it does not say it.
fn node_of(element: &str) -> Option<String> {
    let mut rest = element.trim_matches([' ', '\t']);
    let mut node = None;
    if rest.is_empty() {
        return None;
    }
    loop {
        let (name, after) = rest.split_once('=')?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return None;
        }
        let (value, after) = if let Some(quoted) = after.strip_prefix('"') {
            unquote(quoted)?
        } else {
            let end = after.find(';').unwrap_or(after.len());
            let (value, after) = after.split_at_checked(end)?;
            // Proxies leave out the quotes that a port or brackets would need.
            if value.is_empty() || !value.bytes().all(|byte| is_token(byte) || b":[]".contains(&byte)) {
                return None;
            }
            (value.to_owned(), after)
        };
        if name.eq_ignore_ascii_case("for") && node.replace(value).is_some() {
            return None;
        }
        if after.is_empty() {
            return Some(node.unwrap_or_default());
        }
        rest = after.strip_prefix(';')?;
    }
}

/// The text of a quoted string whose opening quote was taken, and what follows it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => value.push(characters.next()?.1),
            _ => value.push(character),
        }
    }
    None
}

/// The address of a node. `unknown` and names like `_hidden` have none.
fn node_address(node: &str) -> Option<IpAddr> {
    let (host, port) = match node.strip_prefix('[') {
        Some(inner) => {
            let (host, port) = inner.split_once(']')?;
            (IpAddr::V6(host.parse().ok()?), port)
        }
        None => match node.split_once(':') {
            Some((host, _)) => (IpAddr::V4(host.parse().ok()?), node.get(host.len()..)?),
            None => (IpAddr::V4(node.parse().ok()?), ""),
        },
    };
    let port_is_one = match port.strip_prefix(':') {
        None => port.is_empty(),
        Some(name) if name.starts_with('_') => name.len() > 1,
        Some(number) => number.parse::<u16>().is_ok(),
    };
    port_is_one.then_some(host)
}

const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn client(header: ForwardedHeader, peer: &str, lines: &[&[u8]]) -> String {
        let config = crate::config::Http {
            trusted_proxies: vec![
                "10.0.0.0/8".into(),
                "192.0.2.1".into(),
                "2001:db8:f::/48".into(),
                "::ffff:198.51.100.0/120".into(),
            ],
            forwarded_header: header,
            ..crate::config::Http::default()
        };
        let name = if header == ForwardedHeader::Forwarded { FORWARDED } else { X_FORWARDED_FOR };
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&name, HeaderValue::from_bytes(line).unwrap());
        }
        Proxies::new(&config).client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn the_rightmost_address_that_is_no_trusted_proxy_asks() {
        for (peer, lines, expected) in [
            // Nobody is believed who is not trusted.
            ("203.0.113.9", &["1.1.1.1"][..], "203.0.113.9"),
            ("203.0.113.9", &[], "203.0.113.9"),
            ("192.0.2.2", &["1.1.1.1"], "192.0.2.2"),
            ("::1", &["1.1.1.1"], "::1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
            ("::ffff:10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
            ("198.51.100.7", &["203.0.113.9"], "203.0.113.9"),
            ("2001:db8:f:1::1", &["203.0.113.9"], "203.0.113.9"),
            // What a client puts in front does not count.
            ("10.0.0.1", &["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["10.9.9.9, 203.0.113.9, 192.0.2.1"], "203.0.113.9"),
            ("10.0.0.1", &["1.1.1.1", "203.0.113.9, 10.0.0.2", "192.0.2.1"], "203.0.113.9"),
            // All of the way is ours.
            ("10.0.0.1", &["10.0.0.3,10.0.0.2"], "10.0.0.3"),
            // Forms.
            ("10.0.0.1", &["203.0.113.9:4711"], "203.0.113.9"),
            ("10.0.0.1", &["2001:db8::7"], "2001:db8::7"),
            ("10.0.0.1", &["[2001:db8::7]"], "2001:db8::7"),
            ("10.0.0.1", &["[2001:db8::7]:443\t"], "2001:db8::7"),
            ("10.0.0.1", &["::ffff:203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["203.0.113.9,::ffff:10.0.0.2"], "203.0.113.9"),
            // What cannot be read ends the way at the last proxy.
            ("10.0.0.1", &["203.0.113.9, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9, "], "10.0.0.1"),
            ("10.0.0.1", &[""], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9, _hidden, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["203.0.113.009"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9:port"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9:99999"], "10.0.0.1"),
            ("10.0.0.1", &["fe80::1%eth0"], "10.0.0.1"),
            ("10.0.0.1", &["[203.0.113.9]"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9 10.0.0.2"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9", "nonsense"], "10.0.0.1"),
        ] {
            let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
            assert_eq!(client(ForwardedHeader::XForwardedFor, peer, &bytes), expected, "{peer} {lines:?}");
        }
        let not_text = &b"\xff\xfe, 203.0.113.9"[..];
        assert_eq!(client(ForwardedHeader::XForwardedFor, "10.0.0.1", &[not_text]), "203.0.113.9");
    }

    #[test]
    fn forwarded_is_read_in_all_its_forms() {
        let long = format!("for={}, for=203.0.113.9", "a".repeat(60_000));
        let commas = format!("{}\"", ",".repeat(60_000));
        for (line, expected) in [
            ("for=203.0.113.9", "203.0.113.9"),
            ("For=203.0.113.9;proto=http;by=203.0.113.43", "203.0.113.9"),
            ("proto=https;FOR=\"203.0.113.9:47011\"", "203.0.113.9"),
            ("for=203.0.113.9:80", "203.0.113.9"),
            ("for=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=\"[2001:db8:cafe::17]\"", "2001:db8:cafe::17"),
            ("for=\"[2001:db8:cafe::17]:_port\"", "2001:db8:cafe::17"),
            ("for=\"[::ffff:203.0.113.9]\"", "203.0.113.9"),
            ("for=\"203.0.113\\.9\"", "203.0.113.9"),
            ("for=1.1.1.1, for=203.0.113.9;host=\"a,b\", for=10.0.0.2", "203.0.113.9"),
            ("for=1.1.1.1 , for=203.0.113.9 ", "203.0.113.9"),
            // A quote that never ends swallows nothing of what the proxy added.
            ("for=\"1.1.1.1, for=203.0.113.9", "203.0.113.9"),
            ("nonsense;;=, for=203.0.113.9", "203.0.113.9"),
            (long.as_str(), "203.0.113.9"),
            // Who hides, or is not named well, is not guessed.
            ("for=unknown", "10.0.0.1"),
            ("for=_hidden", "10.0.0.1"),
            ("for=\"_SEVKISEK\";proto=http", "10.0.0.1"),
            ("for=203.0.113.9, for=unknown", "10.0.0.1"),
            ("for=203.0.113.9, for=_a, for=10.0.0.2", "10.0.0.2"),
            ("proto=http;by=203.0.113.43", "10.0.0.1"),
            ("for=1.1.1.1;for=203.0.113.9", "10.0.0.1"),
            ("for=\"\"", "10.0.0.1"),
            ("for=", "10.0.0.1"),
            ("203.0.113.9", "10.0.0.1"),
            ("for=\"2001:db8::1\"", "10.0.0.1"),
            ("for=203.0.113.9;", "10.0.0.1"),
            ("for=\"203.0.113.9:\"", "10.0.0.1"),
            ("for=\"203.0.113.9\"x", "10.0.0.1"),
            (",", "10.0.0.1"),
            (commas.as_str(), "10.0.0.1"),
        ] {
            let found = client(ForwardedHeader::Forwarded, "10.0.0.1", &[line.as_bytes()]);
            assert_eq!(found, expected, "{}", crate::base::clip(line, 100));
            let untrusted = client(ForwardedHeader::Forwarded, "203.0.113.77", &[line.as_bytes()]);
            assert_eq!(untrusted, "203.0.113.77");
        }
    }

    proptest::proptest! {
        /// Whatever a client sends in front of what the proxy adds: it is never read, and never keeps that from being read.
        #[test]
        fn nothing_that_a_client_sends_changes_its_address(
            sent in proptest::collection::vec(proptest::prop_oneof![
                proptest::sample::select(b"for=,;\"\\[]:. 1_\t".to_vec()), 0x80_u8..=0xff, 0x21_u8..=0x7e,
            ], 0..200),
            own_line: bool,
        ) {
            for (header, added) in [
                (ForwardedHeader::XForwardedFor, &b"203.0.113.9"[..]),
                (ForwardedHeader::Forwarded, b"for=203.0.113.9;proto=https"),
                (ForwardedHeader::Forwarded, b"proto=https;for=\"203.0.113.9:80\""),
            ] {
                let joined = [&sent, &b", "[..], added].concat();
                let lines = if own_line { vec![sent.as_slice(), added] } else { vec![joined.as_slice()] };
                proptest::prop_assert_eq!(client(header, "10.0.0.1", &lines), "203.0.113.9");
                proptest::prop_assert_eq!(client(header, "198.18.0.1", &lines), "198.18.0.1");
            }
        }
    }

    #[test]
    fn networks_are_addresses_or_blocks() {
        let shown = |text| network(text).map(|net| net.trunc().to_string());
        assert_eq!(shown("10.1.2.3").as_deref(), Some("10.1.2.3/32"));
        assert_eq!(shown("10.1.2.3/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(shown("2001:db8::1").as_deref(), Some("2001:db8::1/128"));
        assert_eq!(shown("::ffff:10.0.0.0/104").as_deref(), Some("10.0.0.0/8"));
        for text in ["", "10.0.0.0/33", "proxy.example", "10.0.0", "10.0.0.1:80", "*"] {
            assert_eq!(network(text), None, "{text}");
        }
    }
}
