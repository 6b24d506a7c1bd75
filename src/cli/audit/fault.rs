//! What is wrong with a journal, for people and for programs.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::adapters::journal::{Act, Unverified};
use crate::domain::audit::Head;

/// What is wrong at the first place that is, and what to do.
pub(super) struct Told {
    file: Option<PathBuf>,
    line: Option<u64>,
    /// The record at fault.
    sequence: Option<u64>,
    /// One of a fixed set of words.
    kind: &'static str,
    problem: String,
    mend: &'static str,
}

const EVIDENCE: &str = "keep the directory and its backups as evidence, and compare it with what sinks and callers kept; \
     restore it from a copy, or move it aside to begin a new journal";
const TRUNCATED: &str = "keep the directory as evidence; look for the missing records where sinks \
     delivered them, and for who could write to the disk";

impl Told {
    pub(super) fn of(fault: &Unverified) -> Self {
        match fault {
            Unverified::Unreadable(error) => Self {
                file: error.path().map(Path::to_owned),
                line: None,
                sequence: None,
                kind: "unreadable",
                problem: error.problem(),
                mend: error.mend_of_reader(),
            },
            Unverified::Beginning { fault, sequence } => {
                Self::new(fault.path(), *sequence, "deleted", fault.problem())
            }
            Unverified::Record { path, line, sequence, act } => {
                let (kind, problem) = of_act(*act, *sequence);
                Self {
                    line: Some(*line),
                    mend: if *act == Act::Torn { TRUNCATED } else { EVIDENCE },
                    ..Self::new(Some(path), *sequence, kind, problem)
                }
            }
            Unverified::Gone { path, sequence } => {
                let problem = format!(
                    "record {sequence} belongs to the end of the file or right after it, and is gone"
                );
                Self::new(Some(path), *sequence, "deleted", problem)
            }
            Unverified::Cut { kept: (kept, keeper), head } => {
                let problem = format!(
                    "the journal ends with record {}, and {} had record {}: those behind it were cut off",
                    head.sequence,
                    keeper_of(keeper.as_deref()),
                    kept.sequence,
                );
                let told = Self::new(keeper.as_deref(), head.sequence + 1, "cut", problem);
                Self { mend: TRUNCATED, ..told }
            }
            Unverified::Replaced { kept: (Head { sequence, .. }, keeper) } => {
                let problem = format!(
                    "record {sequence} is another one than {} had: the journal was replaced, or the head \
                     is of another journal",
                    keeper_of(keeper.as_deref()),
                );
                Self::new(keeper.as_deref(), *sequence, "replaced", problem)
            }
            Unverified::Deleted { head, first } => {
                let problem = format!(
                    "record {} of the head was deleted by retention; the journal begins with {first}",
                    head.sequence
                );
                Self {
                    mend: "compare with a head that was kept later",
                    ..Self::new(None, head.sequence, "head_deleted", problem)
                }
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "verifies": false,
            "fault": {
                "file": self.file.as_ref().map(|file| file.to_string_lossy()),
                "line": self.line,
                "sequence": self.sequence,
                "kind": self.kind,
                "problem": self.problem,
                "mend": self.mend,
            },
        })
    }

    fn new(file: Option<&Path>, sequence: u64, kind: &'static str, problem: String) -> Self {
        let file = file.map(Path::to_owned);
        Self { file, line: None, sequence: Some(sequence), kind, problem, mend: EVIDENCE }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if let Some(sequence) = self.sequence {
            write!(f, "sequence {sequence}: ")?;
        }
        writeln!(f, "{}: {}\n  mend: {}", self.kind, self.problem, self.mend)
    }
}

fn of_act(act: Act, sequence: u64) -> (&'static str, String) {
    match act {
        Act::Edited => (
            "edited",
            format!(
                "record {sequence} is not as it was written, or its key is not among audit.keys"
            ),
        ),
        Act::Deleted { last } if last == sequence => {
            ("deleted", format!("record {sequence} is gone; the one after it stands here"))
        }
        Act::Deleted { last } => ("deleted", format!("records {sequence} to {last} are gone")),
        Act::Moved { found } => (
            "moved",
            format!("record {found} stands in the place of record {sequence}, which follows later"),
        ),
        Act::Repeated { found } => {
            ("repeated", format!("record {found} stands once more in the place of {sequence}"))
        }
        Act::Inserted => (
            "inserted",
            format!("a line stands before record {sequence} that no gate with these keys wrote"),
        ),
        Act::Torn => ("cut", format!("the file ends within record {sequence}")),
    }
}

fn keeper_of(checkpoint: Option<&Path>) -> &'static str {
    if checkpoint.is_some() { "this checkpoint" } else { "the head that was given" }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::adapters::journal::{ManifestCause, OpenError};

    fn told(error: OpenError) -> String {
        Told::of(&Unverified::Unreadable(error)).to_string()
    }

    fn of_file(kind: io::ErrorKind) -> String {
        let source = io::Error::new(kind, "why");
        told(OpenError::Io { doing: "reading the file", path: "/j/a".into(), source })
    }

    #[test]
    fn what_cannot_be_read_has_the_mend_that_fits() {
        assert_eq!(
            of_file(io::ErrorKind::PermissionDenied),
            "/j/a: unreadable: reading the file failed: why\n  mend: run it as a user that can read \
             the directory\n"
        );
        let other = of_file(io::ErrorKind::Other);
        assert!(other.contains("failed: why\n  mend: keep the directory as evidence"), "{other}");
        let manifest =
            |cause| told(OpenError::Manifest { path: "/j/b".into(), fault: "it is so", cause });
        for (cause, mend) in [
            (ManifestCause::NoJournal, "give it the journal of a gate"),
            (ManifestCause::OtherVersion, "run the version of toolgate that wrote it"),
            (ManifestCause::Changed, "keep the directory as evidence"),
        ] {
            let text = manifest(cause);
            let expected = format!("/j/b: unreadable: it is so\n  mend: {mend}");
            assert!(text.starts_with(&expected), "{text}");
            assert_eq!(text.lines().count(), 2, "{text}");
        }
    }
}
