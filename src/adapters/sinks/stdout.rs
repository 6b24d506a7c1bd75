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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::VecDeque;
    use std::io::Read as _;
    use std::sync::Mutex;

    use super::*;
    use crate::domain::audit::{Digest, Stamp, samples};

    fn items(count: u64) -> Vec<Item> {
        let item = |sequence| {
            let stamp = Stamp { journal_id: "j".into(), sequence, mac: Digest([7; 32]) };
            Item::Record(samples::entry(samples::started("a")), stamp)
        };
        (1..=count).map(item).collect()
    }

    /// Takes so many bytes, or fails, a step each time; then everything.
    #[derive(Clone)]
    struct Moody {
        steps: Arc<Mutex<VecDeque<io::Result<usize>>>>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Moody {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let most = self.steps.lock().unwrap().pop_front().unwrap_or(Ok(usize::MAX))?;
            let count = most.min(bytes.len());
            self.taken.lock().unwrap().extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_line_that_an_error_cut_is_ended_before_it_is_written_again() {
        let later = Err(NotTaken::Later { fault: SinkFault::Unreachable, wait: None });
        let errors = [Ok(10), Err(io::ErrorKind::BrokenPipe), Err(io::ErrorKind::Other)];
        let steps = errors.map(|step| step.map_err(io::Error::from));
        let again = [Err(io::ErrorKind::Interrupted.into()), Err(io::ErrorKind::WouldBlock.into())];
        let steps = steps.into_iter().chain(again).collect();
        let out = Moody { steps: Arc::new(Mutex::new(steps)), taken: Arc::default() };
        let mut stdout = Stdout::to(out.clone(), "j".into()).unwrap();
        assert_eq!(stdout.deliver(&items(2)).await, later);
        assert_eq!(stdout.deliver(&items(2)).await, later);
        assert_eq!(stdout.deliver(&items(2)).await, Ok(Taken::default()));
        let wanted = lines("j", &items(2));
        let cut = [&wanted[..10], b"\n", &wanted].concat();
        assert_eq!(
            String::from_utf8_lossy(&out.taken.lock().unwrap()),
            String::from_utf8_lossy(&cut)
        );
    }

    #[tokio::test]
    async fn what_nobody_reads_is_waited_for_and_written_once() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut stdout = Stdout::to(writer, "j".into()).unwrap();
        // More than a pipe holds.
        let many = items(500);
        for _ in 0..3 {
            let wait = Duration::from_millis(20);
            assert!(tokio::time::timeout(wait, stdout.deliver(&many)).await.is_err());
        }
        let reading = std::thread::spawn(move || {
            let mut text = Vec::new();
            reader.read_to_end(&mut text).unwrap();
            text
        });
        assert_eq!(stdout.deliver(&many).await, Ok(Taken::default()));
        drop(stdout);
        assert_eq!(reading.join().unwrap(), lines("j", &many));
    }

    #[test]
    fn a_line_is_that_of_the_command_line() {
        let gap = Item::Gap { first: 3, last: 5 };
        let text = String::from_utf8(lines("j", &[gap])).unwrap();
        assert_eq!(
            text,
            "{\"gap\":{\"journal_id\":\"j\",\"first_sequence\":3,\"last_sequence\":5}}\n"
        );
    }
}
