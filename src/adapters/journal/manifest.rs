//! `journal.json`: which format a journal has, and which journal it is.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::disk::{Directory, sync_directory};
use super::error::OpenError;

/// The only format so far.
pub(super) const FORMAT: u64 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u64,
    journal_id: String,
    created: String,
}

/// What every format has: read before anything else is believed.
#[derive(Deserialize)]
struct AnyFormat {
    format: u64,
}

/// Reads the journal's id and when it was made, or gives a directory without segments a new one.
pub(super) fn read_or_create(
    directory: &Directory,
    has_segments: bool,
    now: Timestamp,
) -> Result<(Arc<str>, Timestamp), OpenError> {
    let path = directory.manifest();
    let fault = |fault| OpenError::Manifest { path: path.clone(), fault };
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && has_segments => {
            return Err(fault("the file is missing, though there are segments"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return create(directory, now).map_err(OpenError::io("creating the file", &path));
        }
        Err(error) => return Err(OpenError::io("reading the file", &path)(error)),
    };
    let any: AnyFormat =
        serde_json::from_slice(&text).map_err(|_| fault("/format is missing or no number"))?;
    if any.format != FORMAT {
        return Err(OpenError::Format { path, found: any.format });
    }
    serde_json::from_slice::<Manifest>(&text)
        .ok()
        .filter(|manifest| Uuid::try_parse(&manifest.journal_id).is_ok())
        .and_then(|manifest| Some((manifest.journal_id.into(), manifest.created.parse().ok()?)))
        .ok_or_else(|| {
            fault("it must hold exactly /format, /journal_id (a UUID) and /created (a time)")
        })
}

fn create(directory: &Directory, now: Timestamp) -> io::Result<(Arc<str>, Timestamp)> {
    let journal_id = Uuid::new_v4().to_string();
    let manifest = Manifest { format: FORMAT, journal_id, created: now.to_string() };
    let mut text = serde_json::to_vec(&manifest)?;
    text.push(b'\n');
    let path = directory.manifest();
    let unfinished = path.with_extension("tmp");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&unfinished, &path)?;
    sync_directory(directory.root())?;
    Ok((manifest.journal_id.into(), now))
}
