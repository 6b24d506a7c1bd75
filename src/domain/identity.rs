//! Names that certificates carry (RFC 5280, section 4.2.1.6), as callers are known by them.

use std::fmt;

/// A subject alternative name that may name a caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum San {
    /// A SPIFFE ID: `spiffe://TRUST-DOMAIN/PATH`.
    Spiffe(String),
    /// A DNS name in lower case, without a wildcard.
    Dns(String),
}

/// SPIFFE IDs are no longer (SPIFFE ID, section 2.3).
const MAX_SPIFFE: usize = 2048;
/// DNS names are no longer (RFC 1035, section 2.3.4).
const MAX_DNS: usize = 253;

impl San {
    /// A SPIFFE ID with a path, in its one form: no empty, `.` or `..` segment, no
    /// query, fragment or percent-encoding.
    #[must_use]
    pub fn spiffe(text: &str) -> Option<Self> {
        let (domain, path) = text.strip_prefix("spiffe://")?.split_once('/')?;
        let is_domain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
        let is_path = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let fits = text.len() <= MAX_SPIFFE
            && !domain.is_empty()
            && domain.bytes().all(is_domain)
            && path
                .split('/')
                .all(|segment| !matches!(segment, "" | "." | "..") && segment.bytes().all(is_path));
        fits.then(|| Self::Spiffe(text.to_owned()))
    }

    /// A DNS name of letters, digits and hyphens.
    #[must_use]
    pub fn dns(text: &str) -> Option<Self> {
        let is_label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let fits = text.len() <= MAX_DNS && text.split('.').all(is_label);
        fits.then(|| Self::Dns(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for San {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spiffe(id) => f.write_str(id),
            Self::Dns(name) => write!(f, "DNS name {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spiffe_ids_have_one_form() {
        for good in
            ["spiffe://example.org/ns/shop/sa/backend", "spiffe://td/a", "spiffe://t_d-1/A.b"]
        {
            assert_eq!(San::spiffe(good), Some(San::Spiffe(good.to_owned())), "{good}");
        }
        for bad in [
            "",
            "spiffe://",
            "spiffe://td",
            "spiffe://td/",
            "spiffe:///a",
            "spiffe://TD/a",
            "SPIFFE://td/a",
            "spiffe://td/a/",
            "spiffe://td//a",
            "spiffe://td/./a",
            "spiffe://td/../a",
            "spiffe://td/%61",
            "spiffe://td/a?b",
            "spiffe://td/a#b",
            "spiffe://u@td/a",
            "spiffe://td:1/a",
            "https://td/a",
            "spiffe://td/a b",
            "spiffe://td/\u{e4}",
            " spiffe://td/a",
        ] {
            assert_eq!(San::spiffe(bad), None, "{bad}");
        }
        assert_eq!(San::spiffe(&format!("spiffe://td/{}", "a".repeat(MAX_SPIFFE))), None);
    }

    #[test]
    fn dns_names_are_compared_in_lower_case_and_never_as_wildcards() {
        assert_eq!(San::dns("Backend.Example.org"), San::dns("backend.example.ORG"));
        for bad in ["", ".", "a.", ".a", "*.example.org", "a b", "-a", "a-", "a_b", "\u{e4}.org"] {
            assert_eq!(San::dns(bad), None, "{bad}");
        }
        assert_eq!(San::dns(&"a".repeat(64)), None);
        assert_eq!(San::dns(&["a"; 200].join(".")), None);
    }
}
