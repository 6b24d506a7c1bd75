//! `toolgate check`: every fault of a configuration and its policy at once.

use std::io::{self, Write as _};
use std::path::PathBuf;

use super::Failure;
use crate::config;

/// Loads what `serve` would load and prints what is wrong with it.
#[derive(Debug, clap::Args)]
pub struct Check {
    /// The configuration file
    config: PathBuf,
}

impl Check {
    /// Whether there is no fault.
    ///
    /// # Errors
    ///
    /// Only where the report cannot be printed.
    pub fn run(self) -> Result<bool, Failure> {
        let mut out = io::stdout().lock();
        match config::load(&self.config) {
            Ok(config) => {
                for warning in &config.policy.warnings {
                    writeln!(out, "warning: {warning}")?;
                }
                let policy = &config.policy.snapshot;
                let noun = if config.policy.warnings.len() == 1 { "warning" } else { "warnings" };
                writeln!(
                    out,
                    "{}: {} tools, {} {noun}, no faults; policy digest {}",
                    self.config.display(),
                    policy.contracts().len(),
                    config.policy.warnings.len(),
                    policy.digest(),
                )?;
                Ok(true)
            }
            Err(faults) => {
                writeln!(out, "{faults}")?;
                Ok(false)
            }
        }
    }
}
