//! Against DNS rebinding and foreign pages: which `Host` and which `Origin` a request may carry.
//!
//! Decides by these two headers alone; who calls is for `auth`.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};

use super::Problem;
use crate::refusal::Reason;

/// The hosts and origins that are served.
#[derive(Debug, Clone)]
pub struct Guard {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Guard {
    /// Loopback names and origins, the address that is listened on, and what the config adds: hosts without port,
    /// origins as `scheme://host[:port]`.
    #[must_use]
    pub fn new(listen: SocketAddr, config: &crate::config::Http) -> Self {
        let mut hosts: Vec<String> =
            config.allowed_hosts.iter().map(|host| host_name(host).to_ascii_lowercase()).collect();
        if !listen.ip().is_unspecified() {
            hosts.push(listen.ip().to_string());
        }
        let origins = config.allowed_origins.iter().map(|origin| normal_origin(origin)).collect();
        Self { hosts, origins }
    }

    /// Refuses what no page or client of this server would send.
    ///
    /// # Errors
    /// A [`Problem`]: `host_not_allowed`, `origin_not_allowed`, or `host_header` without exactly one host.
    pub fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
        let mut hosts = headers.get_all(HOST).iter().map(|value| value.to_str().unwrap_or_default());
        let host = match (hosts.next(), hosts.next(), uri.authority()) {
            (_, _, Some(authority)) => authority.as_str(),
            (Some(host), None, None) => host,
            (None, ..) => return Err(bad_host("missing")),
            (Some(_), Some(_), None) => return Err(bad_host("repeated")),
        };
        if !self.serves_host(host) {
            let hint = "Add the host to `http.allowed_hosts` in the config.";
            let message =
                format!("This server does not answer to the host {:?}.", crate::base::whole(host, 128));
            return Err(Problem::new(Reason::HostNotAllowed, message, hint));
        }
        for origin in headers.get_all(ORIGIN) {
            let origin = origin.to_str().unwrap_or_default();
            if !self.serves_origin(origin) {
                let hint = "Add the origin to `http.allowed_origins` in the config.";
                let origin = crate::base::whole(origin, 128);
                let message = format!("Pages of the origin {origin:?} may not use this server.");
                return Err(Problem::new(Reason::OriginNotAllowed, message, hint));
            }
        }
        Ok(())
    }

    fn serves_host(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let name = host_name(authority.host());
        is_loopback(name) || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    fn serves_origin(&self, origin: &str) -> bool {
        let Ok(uri) = origin.parse::<Uri>() else { return false };
        let scheme = uri.scheme_str().unwrap_or_default();
        let Some(authority) = uri.authority().filter(|authority| !authority.as_str().contains('@')) else {
            return false;
        };
        let whole = origin.len() == scheme.len() + "://".len() + authority.as_str().len();
        let loopback = matches!(scheme, "http" | "https") && is_loopback(host_name(authority.host()));
        whole && (loopback || self.origins.contains(&normal_origin(origin)))
    }
}

fn bad_host(what: &str) -> Problem {
    let message = format!("The Host header is {what}.");
    Problem::new(Reason::HostHeader, message, "Send exactly one Host header.")
}

/// A host without the brackets of an IPv6 address.
fn host_name(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn normal_origin(origin: &str) -> String {
    origin.trim_end_matches('/').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn guard() -> Guard {
        let config = crate::config::Http {
            allowed_hosts: vec!["Annals.example".into(), "[2001:db8::7]".into()],
            allowed_origins: vec!["https://App.example/".into(), "https://app.example:8443".into()],
            ..crate::config::Http::default()
        };
        Guard::new(SocketAddr::from(([10, 0, 0, 7], 8080)), &config)
    }

    fn check(headers: &[(axum::http::HeaderName, &str)]) -> Option<&'static str> {
        let pairs = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name, value);
        }
        guard().check(&map, &Uri::from_static("/mcp")).err().map(|problem| problem.refusal.code())
    }

    #[test]
    fn only_known_hosts_are_served() {
        for host in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "10.0.0.7:8080",
            "annals.example",
            "ANNALS.example:443",
            "[2001:db8::7]",
        ] {
            assert_eq!(check(&[(HOST, host)]), None, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.8",
            "annals.example.evil.example",
            "localhost@evil.example",
            "user@localhost",
            "",
            "[::1",
            "0.0.0.0",
        ] {
            assert_eq!(check(&[(HOST, host)]), Some("host_not_allowed"), "{host}");
        }
        assert_eq!(check(&[]), Some("host_header"));
        assert_eq!(check(&[(HOST, "localhost"), (HOST, "localhost")]), Some("host_header"));
        let absolute = Uri::from_static("http://evil.example/mcp");
        let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("localhost"))]);
        assert_eq!(guard().check(&headers, &absolute).unwrap_err().refusal.code(), "host_not_allowed");
    }

    #[test]
    fn only_known_origins_are_served() {
        for origin in [
            "http://localhost:3000",
            "https://LOCALHOST",
            "http://127.0.0.1:6274",
            "http://[::1]:1",
            "https://app.example",
            "https://app.example:8443",
        ] {
            assert_eq!(check(&[(HOST, "localhost"), (ORIGIN, origin)]), None, "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://localhost.evil.example",
            "http://localhost@evil.example",
            "ftp://localhost",
            "http://app.example",
            "https://app.example:8444",
            "https://app.example/path",
            "localhost",
        ] {
            let found = check(&[(HOST, "localhost"), (ORIGIN, origin)]);
            assert_eq!(found, Some("origin_not_allowed"), "{origin}");
        }
        let both = [(HOST, "localhost"), (ORIGIN, "http://localhost"), (ORIGIN, "http://evil.example")];
        assert_eq!(check(&both), Some("origin_not_allowed"));
    }
}
