//! JSON files under the journal's key: the text, and as its last member the seal.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::domain::audit::{Digest, JournalKeys, Sealed};

/// No such file is longer; a longer one is not read.
pub(super) const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Why a file says nothing.
#[derive(Debug)]
pub(super) enum SealFault {
    /// It cannot be read.
    Io(io::Error),
    /// None of the keys sealed it as it stands.
    Broken,
    /// It is sealed, and is of another version of this program.
    Content,
}

/// The file's text, sealed.
pub(super) fn seal(
    kind: Sealed,
    keys: &JournalKeys,
    content: &impl Serialize,
) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(content)?;
    let mac = keys.seal(kind, &text);
    text.pop();
    text.extend_from_slice(format!(",\"mac\":\"{mac}\"}}\n").as_bytes());
    Ok(text)
}

/// Reads a file, and who sealed it; `None` where there is none.
pub(super) fn read<T: DeserializeOwned>(
    path: &Path,
    kind: Sealed,
    keys: &JournalKeys,
    journal_id: &str,
) -> Result<Option<(T, Digest)>, SealFault> {
    let text = match fs::metadata(path).and_then(|found| {
        if found.len() > MAX_BYTES {
            Err(io::ErrorKind::FileTooLarge.into())
        } else {
            fs::read(path)
        }
    }) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(SealFault::Io(error)),
    };
    let (text, mac) = split(text).ok_or(SealFault::Broken)?;
    let signer = keys.sealed_by(kind, &text, &mac, journal_id).ok_or(SealFault::Broken)?;
    let content = serde_json::from_slice(&text).map_err(|_| SealFault::Content)?;
    Ok(Some((content, signer)))
}

/// The text that was sealed, and its seal.
fn split(mut text: Vec<u8>) -> Option<(Vec<u8>, Digest)> {
    let rest = text.strip_suffix(b"\"}\n")?;
    let (rest, digits) = rest.split_last_chunk::<64>()?;
    let mac = Digest::from_hex(str::from_utf8(digits).ok()?)?;
    let length = rest.strip_suffix(b",\"mac\":\"")?.len();
    text.truncate(length);
    text.push(b'}');
    Some((text, mac))
}
