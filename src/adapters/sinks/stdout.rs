//! Events as JSON lines on standard output, as `toolgate audit tail` prints them.
//!
//! A pipe whose reader has stopped blocks whoever writes to it, for ever. So a
//! thread of its own writes, which nothing waits for at the end: neither calls
//! nor the drain notice.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::peer::{Item, NotTaken, Peer, SinkFault, Taken};
use crate::domain::audit::{gap_line, json_line};

/// Writes lines in a thread of its own.
pub(super) struct Stdout {
    journal_id: Arc<str>,
    jobs: SyncSender<Job>,
    /// The answer to what the thread is at. Nothing else is handed to it before.
    pending: Option<oneshot::Receiver<io::Result<()>>>,
}

/// Lines to be written, and whom to tell.
struct Job {
    lines: Vec<u8>,
    written: oneshot::Sender<io::Result<()>>,
}

/// How long the thread waits for a descriptor that somebody has set not to block.
const FULL_PAUSE: Duration = Duration::from_millis(20);

impl Stdout {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// Where there is no standard output, or no thread can be started.
    pub(super) fn open(journal_id: Arc<str>) -> io::Result<Self> {
        // Past the buffer of the library's own handle, whose content nobody answers for.
        let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Self::to(out, journal_id)
    }

    pub(super) fn to(out: impl Write + Send + 'static, journal_id: Arc<str>) -> io::Result<Self> {
        let (jobs, taken) = sync_channel(1);
        let write = move || write_all(out, &taken);
        std::thread::Builder::new().name("audit-stdout".to_owned()).spawn(write)?;
        Ok(Self { journal_id, jobs, pending: None })
    }
}

#[async_trait]
impl Peer for Stdout {
    async fn deliver(&mut self, items: &[Item]) -> Result<Taken, NotTaken> {
        let unreachable = NotTaken::Later { fault: SinkFault::Unreachable, wait: None };
        let pending = match &mut self.pending {
            // The same items, which the thread is still writing.
            Some(pending) => pending,
            none => {
                let lines = lines(&self.journal_id, items);
                let (written, pending) = oneshot::channel();
                self.jobs.try_send(Job { lines, written }).map_err(|_| unreachable)?;
                none.insert(pending)
            }
        };
        let written = pending.await;
        self.pending = None;
        match written {
            Ok(Ok(())) => Ok(Taken::default()),
            Ok(Err(_)) | Err(_) => Err(unreachable),
        }
    }
}

fn lines(journal_id: &str, items: &[Item]) -> Vec<u8> {
    let mut lines = Vec::new();
    for item in items {
        let line = match item {
            Item::Record(entry, stamp) => json_line(entry, stamp),
            Item::Gap { first, last } => gap_line(journal_id, *first, *last),
        };
        lines.extend_from_slice(line.as_bytes());
        lines.push(b'\n');
    }
    lines
}

/// What the thread does.
fn write_all(mut out: impl Write, jobs: &Receiver<Job>) {
    // A line that was cut by an error is ended before the lines are written again.
    let mut is_cut = false;
    for Job { lines, written } in jobs {
        let answer = write(&mut out, &lines, &mut is_cut);
        // Nobody listens any more at the end.
        let _ = written.send(answer);
    }
}

fn write(out: &mut impl Write, lines: &[u8], is_cut: &mut bool) -> io::Result<()> {
    let head: &[u8] = if *is_cut { b"\n" } else { b"" };
    for part in [head, lines] {
        let mut rest = part;
        while !rest.is_empty() {
            match out.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    rest = &rest[count..];
                    *is_cut = part[part.len() - rest.len() - 1] != b'\n';
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(FULL_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
