//! The metadata that every request to a receiver carries, from a file.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use zeroize::Zeroizing;

/// A file of headers is no longer.
const MAX_BYTES: u64 = 16 * 1024;
/// A request carries no more of them.
const MAX_HEADERS: usize = 32;
/// What belongs to the protocols below.
const RESERVED: [&str; 5] = ["content-type", "te", "user-agent", "host", "content-length"];

/// Names and values. Never shown.
#[derive(Clone, Default)]
pub struct Headers(Vec<(MetadataKey<Ascii>, MetadataValue<Ascii>)>);

/// Why a file is not taken. Holds nothing of its content but a line's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadersFault {
    /// It cannot be read, or is no regular file.
    Unreadable(io::ErrorKind),
    /// Others on the machine may read it.
    WorldReadable(u32),
    /// It is longer than [`MAX_BYTES`], or has more than [`MAX_HEADERS`] lines.
    TooLong,
    /// A line is not `name: value` of characters that metadata can carry.
    Line(usize),
    /// A line names what belongs to the protocol.
    Reserved(usize),
}

impl Headers {
    /// Reads a file of lines `name: value`; those that are empty or begin with `#` say nothing.
    ///
    /// # Errors
    ///
    /// See [`HeadersFault`].
    pub fn read(path: &Path) -> Result<Self, HeadersFault> {
        let unreadable = |error: io::Error| HeadersFault::Unreadable(error.kind());
        // Before it is opened: a pipe would keep whoever opens it waiting.
        let metadata = fs::metadata(path).map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(HeadersFault::Unreadable(io::ErrorKind::InvalidInput));
        }
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o007 != 0 {
            return Err(HeadersFault::WorldReadable(mode));
        }
        let mut text = Zeroizing::new(String::new());
        let file = File::open(path).map_err(unreadable)?;
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(HeadersFault::TooLong);
        }
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, HeadersFault> {
        let mut headers = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let fault = || HeadersFault::Line(index + 1);
            let (name, value) = line.split_once(':').ok_or_else(fault)?;
            let name = name.trim().to_ascii_lowercase();
            if RESERVED.contains(&name.as_str()) || name.starts_with("grpc-") {
                return Err(HeadersFault::Reserved(index + 1));
            }
            let key = MetadataKey::from_bytes(name.as_bytes()).map_err(|_| fault())?;
            let mut value = MetadataValue::try_from(value.trim()).map_err(|_| fault())?;
            value.set_sensitive(true);
            headers.push((key, value));
        }
        if headers.len() > MAX_HEADERS { Err(HeadersFault::TooLong) } else { Ok(Self(headers)) }
    }

    pub(super) fn put(&self, metadata: &mut MetadataMap) {
        for (name, value) in &self.0 {
            metadata.append(name.clone(), value.clone());
        }
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Headers").finish_non_exhaustive()
    }
}

impl HeadersFault {
    /// What an operator should do about it.
    #[must_use]
    pub const fn mend(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "name a text file that the gate's user can read",
            Self::WorldReadable(_) => {
                "chmod 0600 the file, or give a Secret volume defaultMode: 0440"
            }
            Self::TooLong => "leave the headers that the receiver asks for",
            Self::Line(_) => "write one header a line, such as authorization: Bearer TOKEN",
            Self::Reserved(_) => "leave this header out; gRPC sets it",
        }
    }
}

impl fmt::Display for HeadersFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(kind) => write!(f, "the file of headers cannot be read: {kind}"),
            Self::WorldReadable(mode) => {
                write!(f, "others may read the file of headers (mode {mode:04o})")
            }
            Self::TooLong => write!(
                f,
                "the file of headers has more than {MAX_BYTES} bytes or {MAX_HEADERS} headers"
            ),
            Self::Line(line) => write!(f, "line {line} is not name: value in printable ASCII"),
            Self::Reserved(line) => write!(f, "line {line} names a header of the protocol"),
        }
    }
}

impl std::error::Error for HeadersFault {}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn lines_are_headers_and_faults_name_the_line_alone() {
        let headers =
            Headers::parse("# a note\n\nAuthorization: Bearer t:1\r\nx-scope-orgid:a\n").unwrap();
        let mut metadata = MetadataMap::new();
        headers.put(&mut metadata);
        assert_eq!(metadata.get("authorization").unwrap(), "Bearer t:1");
        assert_eq!(metadata.get("x-scope-orgid").unwrap(), "a");
        assert_eq!(format!("{headers:?}"), "Headers { .. }");
        for (text, fault) in [
            ("a: b\nhunter2", HeadersFault::Line(2)),
            ("a b: c", HeadersFault::Line(1)),
            ("a: \u{7f}", HeadersFault::Line(1)),
            ("a-bin: b", HeadersFault::Line(1)),
            ("TE: trailers", HeadersFault::Reserved(1)),
            ("grpc-timeout: 1S", HeadersFault::Reserved(1)),
        ] {
            assert_eq!(Headers::parse(text).unwrap_err(), fault, "{text:?}");
            assert!(!fault.to_string().contains("hunter2"));
        }
        assert_eq!(Headers::parse(&"a: b\n".repeat(33)).unwrap_err(), HeadersFault::TooLong);
    }
}
