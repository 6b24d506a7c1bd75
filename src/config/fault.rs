//! Faults of configuration and policy, rendered for the person who mends them.

use std::fmt;
use std::path::Path;

use crate::domain::refusal::{Code, Finding};

/// One thing wrong with a configuration or a policy, or worth a warning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The file; in a policy relative to its directory, with `/` between its parts. Empty for the directory.
    pub file: String,
    /// JSON Pointer within the document. Empty for the whole of it.
    pub pointer: String,
    /// Which refusal or warning.
    pub code: Code,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub mend: String,
}

/// All faults of one load: sorted, each once, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Fault {
    /// A finding in a file.
    #[must_use]
    pub fn new(file: &str, finding: Finding) -> Self {
        let Finding { pointer, code, problem, mend } = finding;
        Self { file: file.to_owned(), pointer, code, problem, mend }
    }
}

impl Faults {
    /// The faults, if there are any.
    pub(crate) fn collect(mut faults: Vec<Fault>) -> Option<Self> {
        faults.sort();
        faults.dedup();
        (!faults.is_empty()).then_some(Self(faults))
    }

    /// A single fault.
    pub(crate) fn one(fault: Fault) -> Self {
        Self(vec![fault])
    }

    /// The faults, their files named below this directory.
    pub(in crate::config) fn within(mut self, directory: &Path) -> Vec<Fault> {
        for fault in &mut self.0 {
            fault.file = directory.join(&fault.file).to_string_lossy().into_owned();
        }
        self.0
    }

    /// The faults, sorted by file and pointer.
    #[must_use]
    pub fn as_slice(&self) -> &[Fault] {
        &self.0
    }
}

/// `FILE: POINTER: CODE: PROBLEM`, and below it what to do.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.file, &self.pointer] {
            if !part.is_empty() {
                write!(f, "{}: ", part.escape_debug())?;
            }
        }
        write!(f, "{}: {}\n  mend: {}", self.code, self.problem, self.mend)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.0 {
            writeln!(f, "{fault}")?;
        }
        let count = self.0.len();
        let noun = if count == 1 { "fault" } else { "faults" };
        write!(f, "{count} {noun}: nothing is loaded")
    }
}

impl std::error::Error for Faults {}
