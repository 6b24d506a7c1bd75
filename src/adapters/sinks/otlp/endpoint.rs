//! Where a receiver listens, as the configuration says it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use http::uri::Authority;

use crate::adapters::upstream::{Endpoint, EndpointFault};

/// A validated address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtlpEndpoint {
    /// `http://…`: clear text, to this machine alone.
    Loopback {
        /// As written.
        authority: Authority,
        /// Where that is: `localhost` is both loopback addresses, whoever resolves it otherwise.
        addresses: Vec<SocketAddr>,
    },
    /// `https://…`.
    Tls {
        /// As written.
        authority: Authority,
        /// A name or address to resolve; IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// `unix:/…`: clear text.
    Unix(PathBuf),
}

/// Why a text is no [`OtlpEndpoint`]. Repeats nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtlpEndpointFault {
    /// None of the three forms.
    Form,
    /// Clear text to another machine.
    ClearText,
}

impl FromStr for OtlpEndpoint {
    type Err = OtlpEndpointFault;

    fn from_str(text: &str) -> Result<Self, OtlpEndpointFault> {
        let (text, is_tls) = match text.strip_prefix("https://") {
            Some(rest) => (format!("http://{rest}"), true),
            None => (text.to_owned(), false),
        };
        let endpoint = text.parse().map_err(|_: EndpointFault| OtlpEndpointFault::Form)?;
        let (authority, host, port) = match endpoint {
            Endpoint::Unix { path } => return Ok(Self::Unix(path)),
            Endpoint::Tcp { authority, host, port } => (authority, host, port),
        };
        if is_tls {
            return Ok(Self::Tls { authority, host, port });
        }
        let addresses = if host.eq_ignore_ascii_case("localhost") {
            vec![IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)]
        } else {
            host.parse().into_iter().collect()
        };
        if addresses.is_empty() || !addresses.iter().all(IpAddr::is_loopback) {
            return Err(OtlpEndpointFault::ClearText);
        }
        let at = |address| SocketAddr::new(address, port);
        Ok(Self::Loopback { authority, addresses: addresses.into_iter().map(at).collect() })
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback { authority, .. } => write!(f, "http://{authority}"),
            Self::Tls { authority, .. } => write!(f, "https://{authority}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn clear_text_stays_on_the_machine() {
        for text in [
            "http://127.0.0.1:4317",
            "http://[::1]:4317",
            "http://localhost:4317",
            "https://collector.example:4317",
            "https://10.0.0.1:4317",
            "unix:/run/collector.sock",
        ] {
            assert_eq!(text.parse::<OtlpEndpoint>().unwrap().to_string(), text);
        }
        for (text, fault) in [
            ("http://10.0.0.1:4317", OtlpEndpointFault::ClearText),
            ("http://collector:4317", OtlpEndpointFault::ClearText),
            ("http://localhost.example:4317", OtlpEndpointFault::ClearText),
            ("http://0.0.0.0:4317", OtlpEndpointFault::ClearText),
            ("http://[::ffff:127.0.0.1]:4317", OtlpEndpointFault::ClearText),
            ("collector:4317", OtlpEndpointFault::Form),
            ("https://collector", OtlpEndpointFault::Form),
            ("https://user:hunter2@collector:1", OtlpEndpointFault::Form),
            ("https://collector:4317/v1/logs", OtlpEndpointFault::Form),
            ("unix:collector.sock", OtlpEndpointFault::Form),
        ] {
            assert_eq!(text.parse::<OtlpEndpoint>(), Err(fault), "{text}");
        }
    }
}
