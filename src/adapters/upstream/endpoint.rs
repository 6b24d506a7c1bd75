//! Where an upstream listens, as the configuration says it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use http::Uri;
use http::uri::Authority;

/// A validated address: `http://host:port` or `unix:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// HTTP/2 in clear text over TCP.
    Tcp {
        /// Host and port as written: what requests carry as `:authority`.
        authority: Authority,
        /// A name or address to resolve; IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// HTTP/2 in clear text over a Unix socket.
    Unix {
        /// The socket's absolute path.
        path: PathBuf,
    },
}

/// Why a text is no [`Endpoint`]. Its `Display` says what to write instead and
/// repeats nothing of the text, which may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointFault {
    /// Neither `http://…` nor `unix:…`.
    Scheme,
    /// `https://…`.
    Tls,
    /// Not `http://host:port`.
    Authority,
    /// No port, or port 0.
    Port,
    /// A user name or password before the host.
    UserInfo,
    /// A path or query behind the port.
    Path,
    /// A socket path that is not absolute.
    RelativeSocket,
    /// A socket path of more than 107 bytes, or with a NUL.
    SocketPath,
}

/// The longest path of a Unix socket, in bytes: `sun_path` of Linux holds 108 with its NUL.
const MAX_SOCKET_PATH_BYTES: usize = 107;

impl FromStr for Endpoint {
    type Err = EndpointFault;

    fn from_str(text: &str) -> Result<Self, EndpointFault> {
        if let Some(path) = text.strip_prefix("unix:") {
            // gRPC's naming writes both unix:/path and unix:///path.
            return unix(path.strip_prefix("//").unwrap_or(path));
        }
        match text.split_once("://") {
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("http") => tcp(text),
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => Err(EndpointFault::Tls),
            _ => Err(EndpointFault::Scheme),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { authority, .. } => write!(f, "http://{authority}"),
            Self::Unix { path } => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for EndpointFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheme => {
                "an upstream's endpoint is http://host:port or unix:/absolute/path; \
                 begin it with one of the two"
            }
            Self::Tls => {
                "https endpoints are not supported; write http://host:port for a handler on the \
                 same host or behind a mesh, or unix:/absolute/path"
            }
            Self::Authority => "the endpoint is not http://host:port; write a host and a port",
            Self::Port => "the endpoint has no port from 1 to 65535; write http://host:port",
            Self::UserInfo => {
                "the endpoint holds a user name or password; gRPC does not send them: remove \
                 everything up to the @"
            }
            Self::Path => {
                "the endpoint has a path or query; gRPC fixes the path: end it behind the port"
            }
            Self::RelativeSocket => "the socket path is relative; write unix:/absolute/path",
            Self::SocketPath => {
                "the socket path holds a NUL or more than 107 bytes, the limit of Unix sockets; \
                 choose a shorter one"
            }
        })
    }
}

impl std::error::Error for EndpointFault {}

fn unix(path: &str) -> Result<Endpoint, EndpointFault> {
    if !Path::new(path).is_absolute() {
        return Err(EndpointFault::RelativeSocket);
    }
    if path.len() > MAX_SOCKET_PATH_BYTES || path.contains('\0') {
        return Err(EndpointFault::SocketPath);
    }
    Ok(Endpoint::Unix { path: PathBuf::from(path) })
}

fn tcp(text: &str) -> Result<Endpoint, EndpointFault> {
    let uri: Uri = text.parse().map_err(|_| EndpointFault::Authority)?;
    let authority = uri.authority().ok_or(EndpointFault::Authority)?;
    if authority.as_str().contains('@') {
        return Err(EndpointFault::UserInfo);
    }
    // A fragment never reaches the parsed URI.
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() || text.contains('#') {
        return Err(EndpointFault::Path);
    }
    let port = authority.port_u16().filter(|port| *port != 0).ok_or(EndpointFault::Port)?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(EndpointFault::Authority);
    }
    Ok(Endpoint::Tcp { authority: authority.clone(), host: host.to_owned(), port })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_read() {
        let Endpoint::Tcp { authority, host, port } = "http://[::1]:50051".parse().unwrap() else {
            panic!("not TCP");
        };
        assert_eq!((authority.as_str(), host.as_str(), port), ("[::1]:50051", "::1", 50051));
        for text in ["unix:/run/tools.sock", "unix:///run/tools.sock"] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), "unix:/run/tools.sock");
        }
        let named: Endpoint = "http://tools.default.svc:80/".parse().unwrap();
        assert_eq!(named.to_string(), "http://tools.default.svc:80");
    }

    #[test]
    fn everything_else_is_refused_by_what_is_wrong() {
        let long = format!("unix:/{}", "s".repeat(MAX_SOCKET_PATH_BYTES));
        for (text, fault) in [
            ("", EndpointFault::Scheme),
            ("localhost:50051", EndpointFault::Scheme),
            ("dns:///tools:1", EndpointFault::Scheme),
            ("https://tools:443", EndpointFault::Tls),
            ("http://", EndpointFault::Authority),
            ("http://:1", EndpointFault::Authority),
            ("http://a b:1", EndpointFault::Authority),
            ("http://tools", EndpointFault::Port),
            ("http://tools:0", EndpointFault::Port),
            ("http://app:hunter2@tools:1", EndpointFault::UserInfo),
            ("http://tools:1/v1", EndpointFault::Path),
            ("http://tools:1?x", EndpointFault::Path),
            ("http://tools:1#x", EndpointFault::Path),
            ("unix:run/tools.sock", EndpointFault::RelativeSocket),
            ("unix:", EndpointFault::RelativeSocket),
            ("unix:/a\0b", EndpointFault::SocketPath),
            (long.as_str(), EndpointFault::SocketPath),
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(fault), "{text}");
            assert!(!fault.to_string().contains("hunter2"));
        }
    }
}
