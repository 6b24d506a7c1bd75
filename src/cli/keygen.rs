//! `toolgate keygen`: new secret files.

use std::io::{self, Write as _};
use std::path::PathBuf;

use super::Failure;
use crate::config::secrets;

/// Writes 32 random bytes as 64 hexadecimal digits, good as a key and as a bearer secret.
#[derive(Debug, clap::Args)]
pub struct Keygen {
    /// Files to write; one that exists is never overwritten
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

impl Keygen {
    /// Writes the files in order; stops at the first that cannot be written.
    ///
    /// # Errors
    ///
    /// Names that file, and why.
    pub fn run(self) -> Result<bool, Failure> {
        for file in self.files {
            let secret = secrets::generate()?;
            secrets::write_new(&file, secret.as_bytes()).map_err(|error| {
                let advice = match error.kind() {
                    io::ErrorKind::AlreadyExists => {
                        "it exists and is not overwritten; name another file or remove it"
                    }
                    io::ErrorKind::NotFound => "its directory does not exist; make it first",
                    _ => "the operating system refused",
                };
                Failure::new(format!("{}: {advice} ({error})", file.display()))
            })?;
            writeln!(io::stdout().lock(), "{}: written, mode 0600", file.display())?;
        }
        Ok(true)
    }
}
