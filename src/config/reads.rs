//! What a load has read, so that a second look tells whether it still stands there.
//!
//! Files change while they are read: a `ConfigMap` swaps a link between two of
//! them, an editor writes one after the other. What was read once and is found
//! the same again was no mixture of two states, unless that mixture stood still.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::policy;
use super::secrets::{Secret, SecretFault};
use crate::domain::audit::Digest;
use crate::domain::refusal::Finding;

/// Everything that one load has read, by place, as digests of what was found there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reads(BTreeMap<Place, Digest>);

/// Where a configuration came from, for who loads it again.
#[derive(Clone)]
pub struct Source {
    /// The file.
    pub file: PathBuf,
    /// Its document, as written.
    pub document: Value,
    /// Everything that was read.
    pub reads: Reads,
}

/// Something that is read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// A configuration file.
    Configuration(PathBuf),
    /// A policy directory with everything below it.
    Policy(PathBuf),
    /// A secret file with its mode.
    Secret(PathBuf),
}

impl Reads {
    /// Whether everything is still as it was read. Reads all of it again, and so blocks.
    #[must_use]
    pub fn still_hold(&self) -> bool {
        self.0.iter().all(|(place, seen)| place.look() == *seen)
    }

    /// Keeps what was read at a place. Of two readings that differ the second is
    /// kept under no digest that a look could find again.
    pub(super) fn note(&mut self, place: Place, seen: Digest) {
        let kept = self.0.entry(place).or_insert(seen);
        if *kept != seen {
            *kept = Digest([0; 32]);
        }
    }
}

impl Place {
    fn look(&self) -> Digest {
        match self {
            Self::Configuration(path) => print_text(&policy::read_file(path)),
            Self::Policy(path) => policy::look(path),
            Self::Secret(path) => print_secret(&Secret::read(path)),
        }
    }

    /// Reads a secret and notes what was found.
    pub(super) fn read_secret(path: &Path, reads: &mut Reads) -> Result<Secret, SecretFault> {
        let read = Secret::read(path);
        reads.note(Self::Secret(path.to_owned()), print_secret(&read));
        read
    }
}

/// Names the file alone: a document may be long.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("file", &self.file).finish_non_exhaustive()
    }
}

/// The digest of a text file, or of why there is none.
pub(super) fn print_text(read: &Result<String, Finding>) -> Digest {
    match read {
        Ok(text) => print("text", [text.as_str()]),
        Err(finding) => print("fault", [finding.problem.as_str()]),
    }
}

/// The digest of several texts, none of which can pass for a part of another.
pub(super) fn print<'a>(label: &'static str, parts: impl IntoIterator<Item = &'a str>) -> Digest {
    let mut hash = Sha256::new();
    for part in [label].into_iter().chain(parts) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    Digest(hash.finalize().into())
}

fn print_secret(read: &Result<Secret, SecretFault>) -> Digest {
    match read {
        Ok(secret) => secret.print(),
        Err(fault) => print("fault", [fault.to_string().as_str()]),
    }
}
