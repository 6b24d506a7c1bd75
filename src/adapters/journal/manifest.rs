//! `journal.json`: which format a journal has, which journal it is, and which
//! ledger was last beside it.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::disk::Directory;
use super::error::{ManifestCause, OpenError};
use crate::adapters::manifest::{self, ManifestFault};
use crate::domain::generation::Generation;

/// The only format so far.
pub(super) const FORMAT: u64 = 1;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: u64,
    journal_id: String,
    created: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ledger: Option<LedgerSeen>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LedgerSeen {
    ledger_id: String,
    generation: u64,
}

impl Manifest {
    pub(super) fn journal_id(&self) -> Arc<str> {
        self.journal_id.as_str().into()
    }

    /// The ledger that was beside the journal when it was last served.
    pub(super) fn ledger(&self) -> Option<Generation> {
        let LedgerSeen { ledger_id, generation } = self.ledger.as_ref()?;
        Some(Generation { ledger_id: ledger_id.as_str().into(), number: *generation })
    }

    /// The same with another ledger beside it, written.
    pub(super) fn beside(&self, ledger: &Generation, path: &Path) -> Result<Self, OpenError> {
        let seen =
            LedgerSeen { ledger_id: ledger.ledger_id.to_string(), generation: ledger.number };
        let changed = Self { ledger: Some(seen), ..self.clone() };
        manifest::write(path, &changed).map_err(OpenError::io("writing the file", path))?;
        Ok(changed)
    }
}

/// Reads which journal it is, and changes nothing.
pub(super) fn read(directory: &Directory) -> Result<Manifest, OpenError> {
    found(directory)?.ok_or_else(|| OpenError::Manifest {
        path: directory.manifest(),
        fault: "there is no journal: the file is missing",
        cause: ManifestCause::NoJournal,
    })
}

/// Reads which journal it is, or gives a directory without segments a new id.
pub(super) fn read_or_create(
    directory: &Directory,
    has_segments: bool,
    now: Timestamp,
) -> Result<Manifest, OpenError> {
    let path = directory.manifest();
    match found(directory)? {
        Some(manifest) => Ok(manifest),
        None if has_segments => Err(OpenError::Manifest {
            path,
            fault: "the file is missing, though there are segments",
            cause: ManifestCause::Changed,
        }),
        None => {
            let journal_id = Uuid::new_v4().to_string();
            let new =
                Manifest { format: FORMAT, journal_id, created: now.to_string(), ledger: None };
            manifest::write(&path, &new).map_err(OpenError::io("creating the file", &path))?;
            Ok(new)
        }
    }
}

fn found(directory: &Directory) -> Result<Option<Manifest>, OpenError> {
    let path = directory.manifest();
    let cause = ManifestCause::Changed;
    let fault = |fault| OpenError::Manifest { path: path.clone(), fault, cause };
    match manifest::read::<Manifest>(&path, FORMAT) {
        Ok(Some(manifest)) if Uuid::try_parse(&manifest.journal_id).is_ok() => Ok(Some(manifest)),
        Ok(Some(_)) | Err(ManifestFault::Content) => Err(fault(
            "it must hold exactly /format, /journal_id (a UUID), /created and, where a ledger was \
             beside it, /ledger",
        )),
        Ok(None) => Ok(None),
        Err(ManifestFault::NoFormat) => Err(fault("/format is missing or no number")),
        Err(ManifestFault::Format(found)) => Err(OpenError::Format { path, found }),
        Err(ManifestFault::Io(error)) => Err(OpenError::io("reading the file", &path)(error)),
    }
}
