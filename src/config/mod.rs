//! Configuration: what operators write, compiled into what calls see.
//!
//! `toolgate.yaml` says how the process runs; the policy directory that it names
//! says which tools there are. Both are read strictly and compiled whole: either
//! there is no fault, or all of them are reported together.

mod compile;
mod document;
mod fault;
mod fields;
pub mod policy;
pub mod secrets;

use std::path::Path;

use serde_json::Value;

pub use compile::{
    CallerConfig, Config, ConfirmationConfig, FIELDS, KeySecrets, ListenAt, ListenerConfig, Shows,
    compile,
};
pub use fault::{Fault, Faults};
pub use secrets::Secret;

/// Reads, compiles and loads: what `serve` starts and `check` judges.
///
/// # Errors
///
/// Every fault of the configuration and of its policy.
pub fn load(file: &Path) -> Result<Config, Faults> {
    compile(&read(file)?, file)
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
