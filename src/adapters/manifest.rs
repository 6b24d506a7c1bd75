//! The small JSON file that says which format a directory has, and whose it is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Why a manifest that is there says nothing.
#[derive(Debug)]
pub(super) enum ManifestFault {
    /// It cannot be read.
    Io(io::Error),
    /// Its `/format` is missing or no number.
    NoFormat,
    /// Its format is of another version of this program.
    Format(u64),
    /// It has not exactly the fields of its format.
    Content,
}

/// What every format has: read before anything else is believed.
#[derive(Deserialize)]
struct AnyFormat {
    format: u64,
}

/// Reads a manifest of one format; `None` where there is no file.
///
/// # Errors
///
/// See [`ManifestFault`].
pub(super) fn read<T: DeserializeOwned>(
    path: &Path,
    format: u64,
) -> Result<Option<T>, ManifestFault> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ManifestFault::Io(error)),
    };
    let any: AnyFormat = serde_json::from_slice(&text).map_err(|_| ManifestFault::NoFormat)?;
    if any.format != format {
        return Err(ManifestFault::Format(any.format));
    }
    serde_json::from_slice(&text).map(Some).map_err(|_| ManifestFault::Content)
}

/// Writes a manifest in the place of the one that is there, atomically and durably.
pub(super) fn write(path: &Path, manifest: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(manifest)?;
    text.push(b'\n');
    replace(path, &text)
}

/// Puts a text in the place of the file that is there, if one is, atomically and durably.
pub(super) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("tmp");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Makes names within a directory durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
