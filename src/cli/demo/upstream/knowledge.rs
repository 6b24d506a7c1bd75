//! The sample's knowledge file and the documents it lists.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;

use super::search::Index;

/// Every knowledge base, and the tenants it is served to.
#[derive(Debug)]
pub(super) struct Knowledge {
    tenants: Vec<String>,
    bases: BTreeMap<String, Index>,
    documents: BTreeMap<String, Document>,
    slow_drafts: Option<(String, Duration)>,
}

/// How one document stands.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) status: String,
    pub(super) bytes: usize,
    pub(super) sections: usize,
    /// How long a status takes on an attempt numbered 1.
    pub(super) first_attempt_delay: Option<Duration>,
    /// The message of the INTERNAL status that a status lookup ends with.
    pub(super) internal_error: Option<String>,
}

/// Why a knowledge file cannot be served.
#[derive(Debug)]
pub struct LoadFault {
    file: PathBuf,
    pointer: String,
    problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKnowledge {
    tenants: Vec<String>,
    knowledge_bases: Vec<RawBase>,
    #[serde(default)]
    faults: Vec<RawFault>,
    #[serde(default)]
    slow_drafts: Option<RawSlowDrafts>,
}

/// Drafts that are written, and answered too late on the first attempt.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSlowDrafts {
    /// What the question of such a draft contains.
    containing: String,
    first_attempt_delay: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBase {
    id: String,
    documents: Vec<RawDocument>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDocument {
    id: String,
    title: String,
    /// Relative to the knowledge file.
    file: PathBuf,
    status: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFault {
    document_id: String,
    #[serde(default)]
    first_attempt_delay: Option<String>,
    #[serde(default)]
    internal_error: Option<String>,
}

impl Knowledge {
    /// Reads and indexes everything that `file` lists.
    pub(super) fn load(file: &Path) -> Result<Self, LoadFault> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| fault(file, "", format!("cannot be read: {error}")))?;
        let raw: RawKnowledge = serde_saphyr::from_str(&text)
            .map_err(|error| fault(file, "", format!("is no knowledge file: {error}")))?;
        let mut knowledge = Self {
            tenants: raw.tenants,
            bases: BTreeMap::new(),
            documents: BTreeMap::new(),
            slow_drafts: None,
        };
        for (at, base) in raw.knowledge_bases.into_iter().enumerate() {
            knowledge.add_base(file, at, base)?;
        }
        for (at, raw_fault) in raw.faults.into_iter().enumerate() {
            knowledge.add_fault(file, at, raw_fault)?;
        }
        if let Some(slow) = raw.slow_drafts {
            let pointer = "/slow_drafts/first_attempt_delay";
            let delay = delay(&slow.first_attempt_delay)
                .map_err(|problem| fault(file, pointer, problem))?;
            knowledge.slow_drafts = Some((slow.containing, delay));
        }
        Ok(knowledge)
    }

    /// How late the first attempt of a draft with this question is answered.
    pub(super) fn draft_delay(&self, question: &str) -> Option<Duration> {
        let (containing, delay) = self.slow_drafts.as_ref()?;
        question.contains(containing.as_str()).then_some(*delay)
    }

    /// The knowledge base, if this tenant is served and has it.
    pub(super) fn base(&self, tenant: &str, id: &str) -> Option<&Index> {
        self.bases.get(id).filter(|_| self.serves(tenant))
    }

    /// The document, if this tenant is served and has it.
    pub(super) fn document(&self, tenant: &str, id: &str) -> Option<&Document> {
        self.documents.get(id).filter(|_| self.serves(tenant))
    }

    fn serves(&self, tenant: &str) -> bool {
        self.tenants.iter().any(|served| served == tenant)
    }

    fn add_base(&mut self, file: &Path, at: usize, raw: RawBase) -> Result<(), LoadFault> {
        let mut index = Index::default();
        for (place, document) in raw.documents.into_iter().enumerate() {
            let pointer = format!("/knowledge_bases/{at}/documents/{place}");
            if self.documents.contains_key(&document.id) {
                return Err(fault(file, &format!("{pointer}/id"), "is used twice; choose another"));
            }
            let path = file.parent().unwrap_or(Path::new("")).join(&document.file);
            let text = std::fs::read_to_string(&path).map_err(|error| {
                let problem = format!(
                    "{} cannot be read: {error}; mend the path, which is relative to this file, \
                     or remove the document",
                    path.display()
                );
                fault(file, &format!("{pointer}/file"), problem)
            })?;
            let sections = index.add(&document.id, &document.title, &text);
            self.documents.insert(document.id.clone(), describe(document, text.len(), sections));
        }
        if self.bases.insert(raw.id, index).is_some() {
            let pointer = format!("/knowledge_bases/{at}/id");
            return Err(fault(file, &pointer, "is used twice; choose another"));
        }
        Ok(())
    }

    fn add_fault(&mut self, file: &Path, at: usize, raw: RawFault) -> Result<(), LoadFault> {
        let Some(document) = self.documents.get_mut(&raw.document_id) else {
            let pointer = format!("/faults/{at}/document_id");
            return Err(fault(
                file,
                &pointer,
                "is no listed document; list it or remove the fault",
            ));
        };
        document.first_attempt_delay =
            raw.first_attempt_delay.as_deref().map(delay).transpose().map_err(|problem| {
                fault(file, &format!("/faults/{at}/first_attempt_delay"), problem)
            })?;
        document.internal_error = raw.internal_error;
        Ok(())
    }
}

impl fmt::Display for LoadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if !self.pointer.is_empty() {
            write!(f, "#{}", self.pointer)?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for LoadFault {}

fn describe(raw: RawDocument, bytes: usize, sections: usize) -> Document {
    Document {
        id: raw.id,
        title: raw.title,
        status: raw.status,
        bytes,
        sections,
        first_attempt_delay: None,
        internal_error: None,
    }
}

fn delay(text: &str) -> Result<Duration, &'static str> {
    text.parse::<SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or("is no duration; write one like 2s or 500ms")
}

fn fault(file: &Path, pointer: &str, problem: impl Into<String>) -> LoadFault {
    LoadFault { file: file.to_owned(), pointer: pointer.to_owned(), problem: problem.into() }
}
