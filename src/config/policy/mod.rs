//! A policy directory, compiled into a snapshot or into all of its faults.
//!
//! # Files
//!
//! Every `.yaml` and `.yml` file holds one or more contracts (documents of kind
//! `Tool`), except `policy.yaml` at the top, which may hold one document of kind
//! `Policy`. `.json` files are schemas and count only where a contract names
//! them. Other files, directories called `tests` and every name that starts with
//! a dot are passed over, so that a mounted `ConfigMap` can be the directory.
//!
//! ```yaml
//! apiVersion: toolgate.dev/v1
//! kind: Policy
//! limits:                         # all optional, here with their defaults
//!   max_steps: 8                  # calls and attempts of a batch, 1 to 100
//!   batch_total: 30s              # up to 10m
//!   min_attempt: 100ms            # with less left, no attempt starts
//! ```
//!
//! ```yaml
//! apiVersion: toolgate.dev/v1
//! kind: Tool
//! name: refund.create             # [A-Za-z0-9][A-Za-z0-9_.-]{0,127}, once in a policy
//! description: Refunds an order.  # for the model
//! effect: write                   # or read
//! upstream: payments              # registered in the process configuration
//! arguments_schema:               # Draft 2020-12; or the path of a .json file
//!   type: object                  # relative to this file
//!   additionalProperties: false
//!   required: [order]
//!   properties:
//!     order: {type: string, minLength: 1, maxLength: 64}
//! result_schema: refund.json      # optional
//! limits:                         # all optional, here with their defaults
//!   attempt_timeout: 2s           # up to 10m
//!   max_attempts: 1               # up to 100
//!   max_argument_bytes: 65536     # up to 1 MiB
//!   max_result_bytes: 1048576     # up to 16 MiB
//!   max_authorised_bytes: 8192    # up to 64 KiB
//!   record_kept: 24h              # at least the ticket's time and twice the skew
//! retry_on: []                    # [unavailable], for reads
//! trim_strings: true              # whether string values lose outer white space
//! handler_deduplicates: false     # whether the handler applies one idempotency key once
//! confirmation:                   # must be there for a write
//!   prompt: Refund the order {/order}?
//!   not_shown: {}                 # name of a property: why the prompt leaves it out
//!   confirm_by: supervisor        # optional: a role that may confirm for the user
//! redact: []                      # further member names that the audit redacts
//! exceptions: []                  # {code, at, reason}: refusals answered with a reason
//! ```
//!
//! An exception's `at` is the pointer that the fault shows, or `file#pointer`
//! where the fault stands in a schema file. [`Code`]
//! lists all refusals and which of them can be answered.

mod compile;
mod exceptions;
mod files;
mod prompt;
mod references;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::config::document;
use crate::config::fault::{Fault, Faults};
pub use compile::API_VERSION;
pub(super) use files::read_file;
pub use files::{MAX_DEPTH, MAX_FILE_BYTES, MAX_FILES};

use crate::domain::audit::Digest;
use crate::domain::policy::{PolicyLimits, PolicySnapshot};
use crate::domain::refusal::{Code, Finding};
use compile::Scene;
use references::SchemaFiles;

/// The file that holds the limits of the whole policy.
const POLICY_FILE: &str = "policy.yaml";

/// What a policy must fit: facts of the process configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// The registered upstreams.
    pub upstreams: BTreeSet<String>,
    /// Whether the data directory outlives the process (`persistence: persistent`).
    pub persistent: bool,
    /// How long a ticket is valid.
    pub ticket_ttl: Duration,
    /// How far clocks may differ.
    pub skew: Duration,
}

/// A policy that may be put in force.
#[derive(Debug)]
pub struct Loaded {
    /// What calls see.
    pub snapshot: PolicySnapshot,
    /// What an operator should keep in view, sorted.
    pub warnings: Vec<Fault>,
}

/// No upstream, nothing persistent, tickets of 300 s and a skew of 30 s (semantics, section 10).
impl Default for Surroundings {
    fn default() -> Self {
        Self {
            upstreams: BTreeSet::new(),
            persistent: false,
            ticket_ttl: Duration::from_mins(5),
            skew: Duration::from_secs(30),
        }
    }
}

impl Surroundings {
    /// The shortest time that a record may be kept: TTL + 2 × skew.
    fn shortest_record(&self) -> Duration {
        self.ticket_ttl.saturating_add(self.skew.saturating_mul(2))
    }
}

/// Loads a policy directory. Reads files, and so blocks.
///
/// # Errors
///
/// Every fault of the directory.
pub fn load(directory: &Path, surroundings: &Surroundings) -> Result<Loaded, Faults> {
    load_and_print(directory, surroundings).0
}

/// Loads a policy directory by itself, away from a process: every upstream that
/// a tool names counts as registered, and data as persistent. Blocks.
///
/// # Errors
///
/// Every other fault of the directory.
pub fn load_alone(directory: &Path) -> Result<Loaded, Faults> {
    let files = files::read(directory, &mut Vec::new());
    let texts = files.iter().filter(|(file, _)| files::is_yaml(file));
    let documents = texts.filter_map(|(_, text)| document::parse_yaml(text).ok()).flatten();
    let upstreams = documents
        .filter_map(|document| document.get("upstream")?.as_str().map(str::to_owned))
        .collect();
    load(directory, &Surroundings { upstreams, persistent: true, ..Surroundings::default() })
}

/// What a directory holds now, as [`load_and_print`] prints it.
pub(super) fn look(directory: &Path) -> Digest {
    let mut faults = Vec::new();
    let files = files::read(directory, &mut faults);
    files::print(&files, &faults)
}

/// Loads a policy directory, and gives a digest of everything that was read for it.
pub(super) fn load_and_print(
    directory: &Path,
    surroundings: &Surroundings,
) -> (Result<Loaded, Faults>, Digest) {
    let mut faults = Vec::new();
    let files = files::read(directory, &mut faults);
    let print = files::print(&files, &faults);
    (compile_files(&files, faults, surroundings), print)
}

fn compile_files(
    files: &files::Files,
    mut faults: Vec<Fault>,
    surroundings: &Surroundings,
) -> Result<Loaded, Faults> {
    let mut warnings = Vec::new();
    let schemas = SchemaFiles::new(files);
    let mut limits = PolicyLimits::default();
    let mut contracts = Vec::new();
    let mut names = BTreeMap::new();
    for (file, text) in files.iter().filter(|(file, _)| files::is_yaml(file)) {
        let documents = match document::parse_yaml(text) {
            Ok(documents) => documents,
            Err(finding) => {
                faults.push(Fault::new(file, finding));
                continue;
            }
        };
        if file == POLICY_FILE {
            limits = policy(file, &documents, &mut faults);
            continue;
        }
        for (index, document) in documents.iter().enumerate() {
            let label = label(file, index, documents.len());
            let scene = Scene { file, label: &label, schemas: &schemas, surroundings };
            if is_kind(document, "Tool", &label, &mut faults) {
                check_distinct(document, &label, &mut names, &mut faults);
                contracts.extend(compile::contract(&scene, document, &mut faults, &mut warnings));
            }
        }
    }
    if contracts.is_empty() && faults.is_empty() {
        let problem = "there is no tool: no file holds a document of kind Tool";
        let mend = "mount or copy the contracts here; a gate without any is of no use, and mostly a mistake";
        faults.push(Fault::new("", Finding::new("", Code::NoTools, problem, mend)));
    }
    if let Some(faults) = Faults::collect(faults) {
        return Err(faults);
    }
    warnings.sort();
    match PolicySnapshot::new(contracts, limits) {
        Ok(snapshot) => Ok(Loaded { snapshot, warnings }),
        Err(_) => unreachable!("names were found distinct"),
    }
}

/// How faults name a document.
fn label(file: &str, index: usize, count: usize) -> String {
    if count == 1 { file.to_owned() } else { format!("{file} (document {})", index + 1) }
}

fn policy(file: &str, documents: &[Value], faults: &mut Vec<Fault>) -> PolicyLimits {
    let [document] = documents else {
        let problem = format!("{POLICY_FILE} holds one document, not {}", documents.len());
        let mend = "write one document of kind: Policy, or remove the file";
        faults.push(Fault::new(file, Finding::new("", Code::UnknownKind, problem, mend)));
        return PolicyLimits::default();
    };
    if !is_kind(document, "Policy", file, faults) {
        return PolicyLimits::default();
    }
    let mut findings = Vec::new();
    let limits = compile::policy_limits(document, &mut findings);
    faults.extend(findings.into_iter().map(|finding| Fault::new(file, finding)));
    limits
}

fn is_kind(document: &Value, kind: &str, label: &str, faults: &mut Vec<Fault>) -> bool {
    let says = |field: &str, word: &str| document.get(field).is_some_and(|value| value == word);
    let is_it = says("apiVersion", API_VERSION) && says("kind", kind);
    if !is_it {
        let problem = format!("this is no document of apiVersion {API_VERSION} and kind {kind}");
        let mend = format!("start it with apiVersion: {API_VERSION} and kind: {kind}");
        faults.push(Fault::new(label, Finding::new("", Code::UnknownKind, problem, mend)));
    }
    is_it
}

/// Faults a name that a contract before this one carries.
fn check_distinct(
    document: &Value,
    label: &str,
    names: &mut BTreeMap<String, String>,
    faults: &mut Vec<Fault>,
) {
    let Some(name) = document.get("name").and_then(Value::as_str) else { return };
    match names.get(name) {
        Some(first) => {
            let problem = format!("the name {name:?} is already that of {first}");
            let finding = Finding::new("/name", Code::NameTwice, problem, "rename one of them");
            faults.push(Fault::new(label, finding));
        }
        None => {
            names.insert(name.to_owned(), label.to_owned());
        }
    }
}
