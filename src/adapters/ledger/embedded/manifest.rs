//! `ledger.json`: which format a ledger has, and which ledger it is.

use std::io;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::OpenError;
use crate::adapters::manifest::{self, ManifestFault};

/// The only format so far.
pub(super) const FORMAT: u64 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u64,
    ledger_id: String,
    created: String,
}

/// Reads the ledger's id, if there is a manifest.
pub(super) fn read(path: &Path) -> Result<Option<Arc<str>>, OpenError> {
    let fault = |fault| OpenError::Manifest { path: path.to_path_buf(), fault };
    match manifest::read::<Manifest>(path, FORMAT) {
        Ok(None) => Ok(None),
        Ok(Some(manifest)) if Uuid::try_parse(&manifest.ledger_id).is_ok() => {
            Ok(Some(manifest.ledger_id.into()))
        }
        Ok(Some(_)) | Err(ManifestFault::Content) => {
            Err(fault("it must hold exactly /format, /ledger_id (a UUID) and /created"))
        }
        Err(ManifestFault::NoFormat) => Err(fault("/format is missing or no number")),
        Err(ManifestFault::Format(found)) => {
            Err(OpenError::Format { path: path.to_path_buf(), found })
        }
        Err(ManifestFault::Io(error)) => Err(OpenError::io("reading the file", path)(error)),
    }
}

/// Writes a manifest with a new id, atomically and durably.
pub(super) fn write_new(path: &Path, now: Timestamp) -> io::Result<Arc<str>> {
    let ledger_id = Uuid::new_v4().to_string();
    let new = Manifest { format: FORMAT, ledger_id, created: now.to_string() };
    manifest::write(path, &new)?;
    Ok(new.ledger_id.into())
}
