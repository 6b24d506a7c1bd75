//! What behaviours written as data are made of.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toolgate::domain::proposal::BatchMode;

use super::fakes::{Act, JournalAct};

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    #[default]
    StopOnFailure,
    Continue,
}

/// See [`Act`].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Handler {
    Answer(String),
    AnswerAfterMs(u64, String),
    Status(String),
    Unavailable,
    Lost,
    Malformed,
    Hang,
    Panic,
}

/// See [`JournalAct`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalStep {
    Take,
    Fail,
    Full,
    Reject,
    Hang,
}

/// The cases of every YAML file of a directory, with the file's name.
pub fn read<C: DeserializeOwned>(directory: &Path) -> Vec<(String, C)> {
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let cases: Vec<C> = serde_saphyr::from_str(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        all.extend(cases.into_iter().map(|case| (name.clone(), case)));
    }
    all
}

/// Tells of two lists that differ.
pub fn compare(differences: &mut String, what: &str, wanted: &[String], got: &[String]) {
    let list = |out: &mut String, lines: &[String]| {
        for line in lines {
            writeln!(out, "    - {line}").unwrap();
        }
    };
    if wanted != got {
        writeln!(differences, "  {what} wanted:").unwrap();
        list(differences, wanted);
        writeln!(differences, "  got:").unwrap();
        list(differences, got);
    }
}

impl From<Mode> for BatchMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::StopOnFailure => Self::StopOnFailure,
            Mode::Continue => Self::Continue,
        }
    }
}

impl From<Handler> for Act {
    fn from(handler: Handler) -> Self {
        match handler {
            Handler::Answer(text) => Self::Answer(text),
            Handler::AnswerAfterMs(ms, text) => Self::AnswerAfter(Duration::from_millis(ms), text),
            Handler::Status(code) => Self::Status(match code.as_str() {
                "DEADLINE_EXCEEDED" => "DEADLINE_EXCEEDED",
                "CANCELLED" => "CANCELLED",
                "INTERNAL" => "INTERNAL",
                _ => panic!("no such status in the cases"),
            }),
            Handler::Unavailable => Self::Unavailable,
            Handler::Lost => Self::Lost,
            Handler::Malformed => Self::Malformed,
            Handler::Hang => Self::Hang,
            Handler::Panic => Self::Panic,
        }
    }
}

impl From<JournalStep> for JournalAct {
    fn from(step: JournalStep) -> Self {
        match step {
            JournalStep::Take => Self::Take,
            JournalStep::Fail => Self::Fail,
            JournalStep::Full => Self::Full,
            JournalStep::Reject => Self::Reject,
            JournalStep::Hang => Self::Hang,
        }
    }
}
