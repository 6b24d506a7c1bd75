//! Files that are read again when their content changes.
//!
//! By content and by asking, not by the operating system's notices: a mounted
//! `ConfigMap` swaps a link two directories up, which notices of the file miss.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

/// How often watched files are read.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// Some files that belong together, and what was in them when last read.
#[derive(Debug)]
pub struct Watched {
    paths: Vec<PathBuf>,
    max_bytes: usize,
    seen: Contents,
}

/// The files' contents in the order of their paths, or why they cannot be read.
pub type Contents = Result<Vec<Vec<u8>>, Unreadable>;

/// The first of the files that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    path: PathBuf,
    kind: io::ErrorKind,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.kind {
            io::ErrorKind::InvalidInput => write!(f, "{path} is no regular file"),
            kind => write!(f, "{path} cannot be read: {kind}"),
        }
    }
}

impl Watched {
    /// Reads files for the first time. Of each at most one byte more than
    /// `max_bytes` is read, for whoever judges them to refuse.
    #[must_use]
    pub fn read(paths: Vec<PathBuf>, max_bytes: usize) -> Self {
        let seen = read_all(&paths, max_bytes);
        Self { paths, max_bytes, seen }
    }

    /// What was last read.
    pub const fn contents(&self) -> &Contents {
        &self.seen
    }

    /// Reads the files again; whether anything is different.
    pub fn has_changed(&mut self) -> bool {
        let found = read_all(&self.paths, self.max_bytes);
        let is_new = found != self.seen;
        self.seen = found;
        is_new
    }

    /// Hands on every change, for as long as it is polled. A change is found within
    /// [`WATCH_INTERVAL`].
    pub async fn follow(self, mut changed: impl FnMut(&Contents)) {
        let mut interval = interval(WATCH_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watched = self;
        loop {
            interval.tick().await;
            // On a thread that may block: a volume can be slow.
            let read = tokio::task::spawn_blocking(move || (watched.has_changed(), watched)).await;
            let Ok((is_new, same)) = read else { return };
            watched = same;
            if is_new {
                changed(&watched.seen);
            }
        }
    }
}

fn read_all(paths: &[PathBuf], max_bytes: usize) -> Contents {
    let read = |path: &PathBuf| {
        // Asked before opening: opening a pipe would wait for its writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = Vec::new();
        File::open(path)?.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let named = |path: &PathBuf| {
        read(path).map_err(|error: io::Error| Unreadable { path: path.clone(), kind: error.kind() })
    };
    paths.iter().map(named).collect()
}
