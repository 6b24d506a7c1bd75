//! Configuration: what operators write, compiled into what calls see.
//!
//! `toolgate.yaml` says how the process runs; the policy directory that it names
//! says which tools there are. Both are read strictly and compiled whole: either
//! there is no fault, or all of them are reported together.

mod changes;
mod compile;
mod document;
mod fault;
mod fields;
pub mod policy;
mod reads;
pub mod secrets;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::domain::refusal::{Code, Finding};
pub use changes::restart_needed;
pub use compile::{
    CallerConfig, Config, ConfirmationConfig, FIELDS, JournalConfig, JwtConfig, KeySecrets,
    LedgerConfig, ListenAt, ListenerConfig, Shows, compile,
};
pub use fault::{Fault, Faults};
use reads::Place;
pub use reads::{Reads, Source};
pub use secrets::Secret;

/// Reads, compiles and loads: what `serve` starts and `check` judges.
///
/// # Errors
///
/// Every fault of the configuration and of its policy.
pub fn load(file: &Path) -> Result<Config, Faults> {
    load_recorded(file).0
}

/// The same, and what was read for it, also where that has faults.
///
/// What changes while it is read is read again, so that no mixture of two states
/// is loaded. Reads files and may wait a moment for them, and so blocks.
pub fn load_recorded(file: &Path) -> (Result<Config, Faults>, Reads) {
    for _ in 1..MAX_READS {
        let (loaded, reads) = load_once(file);
        if reads.still_hold() {
            return (loaded, reads);
        }
        std::thread::sleep(READ_PAUSE);
    }
    let (loaded, reads) = load_once(file);
    if reads.still_hold() {
        return (loaded, reads);
    }
    let finding = Finding::new(
        "",
        Code::FilesChanging,
        format!("the files changed while they were read, {MAX_READS} times on end"),
        "let whoever writes them finish; replace a directory by one rename, as a ConfigMap does",
    );
    (Err(Faults::one(Fault::new(&file.to_string_lossy(), finding))), reads)
}

/// Readings of files that keep changing.
const MAX_READS: usize = 5;

/// How long whoever writes them gets before the next.
const READ_PAUSE: Duration = Duration::from_millis(50);

fn load_once(file: &Path) -> (Result<Config, Faults>, Reads) {
    let text = policy::read_file(file);
    let mut reads = Reads::default();
    reads.note(Place::Configuration(file.to_owned()), reads::print_text(&text));
    match text.and_then(|text| document::parse_one(&text)) {
        Ok(document) => compile::compile_recorded(&document, file, reads),
        Err(finding) => (Err(Faults::one(Fault::new(&file.to_string_lossy(), finding))), reads),
    }
}

/// Reads a configuration file as one strict YAML document.
///
/// # Errors
///
/// Why it cannot be read.
pub fn read(file: &Path) -> Result<Value, Faults> {
    let fault = |finding| Faults::one(Fault::new(&file.to_string_lossy(), finding));
    let text = policy::read_file(file).map_err(fault)?;
    document::parse_one(&text).map_err(fault)
}
