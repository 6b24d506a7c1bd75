//! Audit sinks: who gets the journal's events beside those that watch.
//!
//! Each sink follows the journal in a task of its own ([`follow`]), hands events
//! to its peer ([`stdout`], [`otlp`]) and remembers in a file how far that is
//! ([`cursor`]). At least once: what a crash interrupts is repeated, and a receiver
//! tells repetitions by `journal_id` and `sequence`.

mod back_off;
mod cursor;
mod follow;
pub mod otlp;
mod peer;
mod state;
mod stdout;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::ports::{AuditLog, Clock, Hold, SinkStatuses, Step};
use cursor::Cursor;
pub use cursor::OpenError;
use follow::{Finish, Follower};
use otlp::{Otlp, OtlpConfig};
use peer::Peer;
pub use peer::SinkFault;
use state::SinkState;
use stdout::Stdout;

/// A gate has no more sinks.
pub const MAX_SINKS: usize = 8;

/// How long standard output may take for one delivery before the sink counts as stuck.
const STDOUT_TIMEOUT: Duration = Duration::from_secs(5);

/// One sink of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkConfig {
    /// Its name: of a file, a metric's label, and in logs.
    pub name: Arc<str>,
    /// Where it delivers.
    pub kind: SinkKind,
}

/// Where a sink delivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkKind {
    /// JSON lines to the process's standard output.
    Stdout,
    /// Log records to an OpenTelemetry collector.
    Otlp(OtlpConfig),
}

/// The running sinks.
pub struct Sinks {
    tasks: JoinSet<()>,
    finish: watch::Sender<Option<Finish>>,
    statuses: SinkStatuses,
    /// Kept beyond the tasks: what was not delivered is still to be kept.
    _holds: Vec<Arc<Hold>>,
}

impl Sinks {
    /// Reads how far each sink is, holds what it has not taken, and starts it.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]. Nothing is left running.
    pub async fn start(
        sinks: Vec<SinkConfig>,
        data: &Path,
        log: Arc<dyn AuditLog>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let directory = data.join("sinks");
        if !sinks.is_empty() {
            cursor::make_directory(&directory)?;
        }
        let (finish, told) = watch::channel(None);
        let mut followers = Vec::with_capacity(sinks.len());
        for SinkConfig { name, kind } in sinks {
            let file = directory.join(format!("{name}.json"));
            let cursor = resume(&name, &file, &*log).await?;
            let hold = Arc::new(log.hold(&name, cursor.sequence));
            let Opened { peer, kind, address, timeout } = open(kind, log.id(), clock)?;
            let state = Arc::new(SinkState::new(name, kind, address, cursor.sequence));
            let (log, clock, finish) = (Arc::clone(&log), Arc::clone(clock), told.clone());
            followers.push(Follower {
                log,
                peer,
                timeout,
                clock,
                state,
                hold,
                finish,
                cursor,
                file,
            });
        }
        let states: Vec<_> = followers.iter().map(|follower| Arc::clone(&follower.state)).collect();
        let holds = followers.iter().map(|follower| Arc::clone(&follower.hold)).collect();
        let statuses = tell(states, Arc::downgrade(&log));
        let tasks = followers.into_iter().map(Follower::run).collect();
        Ok(Self { tasks, finish, statuses, _holds: holds })
    }

    /// What tells of them, in the order of the configuration.
    #[must_use]
    pub const fn statuses(&self) -> &SinkStatuses {
        &self.statuses
    }

    /// Lets every sink deliver up to this record, for at most this long, and ends them.
    /// What is not delivered then comes first after the next start; the journal
    /// keeps it until this is dropped.
    pub async fn finish(&mut self, target: u64, grace: Duration) {
        let until = Instant::now() + grace;
        // Nobody listens where there are no sinks.
        let _ = self.finish.send(Some(Finish { target, until }));
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(grace + CURSOR_GRACE, ended).await.is_err() {
            self.tasks.shutdown().await;
        }
        for sink in (self.statuses)().iter().filter(|sink| sink.sequence < target) {
            let (count, sequence) = (target - sink.sequence, sink.sequence + 1);
            tracing::warn!(
                sink = %sink.name,
                count,
                sequence,
                "audit events were not delivered before the end; the next start sends them"
            );
        }
    }
}

/// How long writing down the last of it may take.
const CURSOR_GRACE: Duration = Duration::from_secs(1);

// Weak: whoever asks must not keep the journal open.
fn tell(states: Vec<Arc<SinkState>>, log: Weak<dyn AuditLog>) -> SinkStatuses {
    Arc::new(move || {
        let head = log.upgrade().map_or(0, |log| log.head());
        states.iter().map(|state| state.status(head)).collect()
    })
}

/// Where a sink goes on in this journal.
async fn resume(name: &Arc<str>, file: &Path, log: &dyn AuditLog) -> Result<Cursor, OpenError> {
    let start = Cursor::start(log.id());
    let Some(cursor) = Cursor::read(file)? else { return Ok(start) };
    if cursor.journal_id != start.journal_id {
        tracing::warn!(
            sink = %name,
            journal_id = cursor.journal_id,
            "the audit sink was in another journal; it starts at the beginning of this one"
        );
        return Ok(start);
    }
    if cursor.sequence == 0 {
        return Ok(start);
    }
    let is_there = cursor.sequence <= log.head() && {
        match log.read_from(cursor.sequence).next().await {
            Ok(Step::Records(records)) => {
                records.first().is_none_or(|(_, stamp)| cursor.fits(&stamp.mac))
            }
            // What is gone says nothing, and what cannot be read is met again on the way.
            Ok(Step::Gap { .. }) | Err(_) => true,
        }
    };
    if is_there {
        return Ok(cursor);
    }
    tracing::warn!(
        sink = %name,
        sequence = cursor.sequence,
        "the journal was put back from a copy; the audit sink sends it from its beginning"
    );
    Ok(start)
}

/// A peer, and what is said of it.
struct Opened {
    peer: Box<dyn Peer>,
    kind: &'static str,
    address: String,
    timeout: Duration,
}

fn open(
    kind: SinkKind,
    journal_id: &Arc<str>,
    clock: &Arc<dyn Clock>,
) -> Result<Opened, OpenError> {
    Ok(match kind {
        SinkKind::Stdout => Opened {
            peer: Box::new(Stdout::open(Arc::clone(journal_id)).map_err(OpenError::Thread)?),
            kind: "stdout",
            address: "standard output".to_owned(),
            timeout: STDOUT_TIMEOUT,
        },
        SinkKind::Otlp(config) => Opened {
            kind: "otlp",
            address: config.endpoint.to_string(),
            timeout: config.timeout,
            peer: Box::new(Otlp::new(config, Arc::clone(journal_id), Arc::clone(clock))),
        },
    })
}

impl fmt::Debug for Sinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sinks").finish_non_exhaustive()
    }
}
