//! The files of a policy directory, read once and within bounds.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use crate::config::fault::Fault;
use crate::config::reads;
use crate::domain::audit::Digest;
use crate::domain::refusal::{Code, Finding};

/// The most bytes of one file.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// The most files of a directory with everything below it.
pub const MAX_FILES: usize = 20_000;
/// The most levels of directories below the policy directory.
pub const MAX_DEPTH: usize = 8;

/// The text of every YAML and JSON file, by its path relative to the directory,
/// with `/` between its parts.
pub(super) type Files = BTreeMap<String, String>;

/// Reads everything that a policy may be made of.
///
/// Entries whose name starts with `.` are passed over, which hides the
/// bookkeeping of a mounted `ConfigMap` (`..data`); links to files are
/// followed, as its visible entries are links, and links to directories refused.
/// Directories called `tests` and files of other kinds are left to others.
pub(super) fn read(directory: &Path, faults: &mut Vec<Fault>) -> Files {
    let mut files = Files::new();
    let mut waiting = vec![(String::new(), 0)];
    while let Some((prefix, depth)) = waiting.pop() {
        let entries = match list(&directory.join(&prefix)) {
            Ok(entries) => entries,
            Err(error) => {
                faults.push(unreadable(&prefix, &error));
                continue;
            }
        };
        for name in entries.into_iter().filter(|name| !name.starts_with('.')) {
            let relative =
                if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            let path = directory.join(&relative);
            if path.is_dir() {
                if name == "tests" {
                    continue;
                }
                if path.is_symlink() {
                    let error = io::Error::other("links to directories are not followed");
                    faults.push(unreadable(&relative, &error));
                    continue;
                }
                if depth == MAX_DEPTH {
                    faults.push(too_many(&relative, "directories are nested too deep"));
                    continue;
                }
                waiting.push((relative, depth + 1));
            } else if is_yaml(&name) || is_json(&name) {
                if files.len() == MAX_FILES {
                    faults.push(too_many("", "there are more than 20,000 files"));
                    return files;
                }
                match read_file(&path) {
                    Ok(text) => {
                        files.insert(relative, text);
                    }
                    Err(problem) => faults.push(Fault::new(&relative, problem)),
                }
            }
        }
    }
    files
}

/// A digest of everything that was read, and of what could not be.
pub(super) fn print(files: &Files, faults: &[Fault]) -> Digest {
    let texts = files.iter().flat_map(|(name, text)| [name.as_str(), text.as_str()]);
    let faults = faults.iter().flat_map(|fault| [fault.file.as_str(), fault.problem.as_str()]);
    reads::print("policy", texts.chain(["faults"]).chain(faults))
}

pub(super) fn is_yaml(name: &str) -> bool {
    has_extension(name, "yaml") || has_extension(name, "yml")
}

pub(super) fn is_json(name: &str) -> bool {
    has_extension(name, "json")
}

fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name).extension().is_some_and(|found| found == extension)
}

/// The names in a directory, sorted. A name that is not UTF-8 cannot be named in a policy.
fn list(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

/// The text of one file, within its bound.
pub(in crate::config) fn read_file(path: &Path) -> Result<String, Finding> {
    let bytes = read_bytes(path).map_err(|error| cannot_read(&error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Finding::new(
            "",
            Code::FileTooLarge,
            "the file has more than 1 MiB",
            "split it into several files",
        ));
    }
    String::from_utf8(bytes).map_err(|_| cannot_read(&io::Error::other("its text is not UTF-8")))
}

/// At most one byte more than the bound.
fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    // Asked before opening: opening a pipe would wait for its writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn cannot_read(error: &io::Error) -> Finding {
    Finding::new(
        "",
        Code::UnreadableFile,
        format!("it cannot be read: {error}"),
        "make it a file of UTF-8 text that the gate's user may read, or remove it",
    )
}

fn unreadable(directory: &str, error: &io::Error) -> Fault {
    Fault::new(directory, cannot_read(error))
}

fn too_many(place: &str, problem: &str) -> Fault {
    let mend = "keep only contracts and schemas in the policy directory";
    Fault::new(place, Finding::new("", Code::TooManyFiles, problem, mend))
}
