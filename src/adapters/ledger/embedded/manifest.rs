//! `ledger.json`: which format a ledger has, and which ledger it is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::OpenError;

/// The only format so far.
pub(super) const FORMAT: u64 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u64,
    ledger_id: String,
    created: String,
}

/// What every format has: read before anything else is believed.
#[derive(Deserialize)]
struct AnyFormat {
    format: u64,
}

/// Reads the ledger's id, if there is a manifest.
pub(super) fn read(path: &Path) -> Result<Option<Arc<str>>, OpenError> {
    let fault = |fault| OpenError::Manifest { path: path.to_path_buf(), fault };
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::io("reading the file", path)(error)),
    };
    let any: AnyFormat =
        serde_json::from_slice(&text).map_err(|_| fault("/format is missing or no number"))?;
    if any.format != FORMAT {
        return Err(OpenError::Format { path: path.to_path_buf(), found: any.format });
    }
    serde_json::from_slice::<Manifest>(&text)
        .ok()
        .filter(|manifest| Uuid::try_parse(&manifest.ledger_id).is_ok())
        .map(|manifest| Some(manifest.ledger_id.into()))
        .ok_or_else(|| fault("it must hold exactly /format, /ledger_id (a UUID) and /created"))
}

/// Writes a manifest with a new id, atomically and durably.
pub(super) fn write_new(path: &Path, now: Timestamp) -> io::Result<Arc<str>> {
    let ledger_id = Uuid::new_v4().to_string();
    let manifest = Manifest { format: FORMAT, ledger_id, created: now.to_string() };
    let mut text = serde_json::to_vec(&manifest)?;
    text.push(b'\n');
    let unfinished = path.with_extension("tmp");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(manifest.ledger_id.into())
}
