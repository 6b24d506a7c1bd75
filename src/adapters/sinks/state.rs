//! What is told of a sink: to log, metrics, readiness and status.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use super::peer::SinkFault;
use crate::ports::SinkStatus;

/// One sink, as whoever asks sees it. Its follower alone changes it.
#[derive(Debug)]
pub(super) struct SinkState {
    name: Arc<str>,
    kind: &'static str,
    address: String,
    progress: Mutex<Progress>,
}

/// How far a sink is, and how it got there. Counters only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Progress {
    /// The last record that the receiver has answered for.
    pub(super) sequence: u64,
    /// Records that it has taken. Those that it took twice count twice.
    pub(super) delivered: u64,
    /// Records that it will never take.
    pub(super) rejected: u64,
    /// Records that were gone before they could be delivered.
    pub(super) missed: u64,
    /// Failures by kind, each try counted.
    pub(super) failures: [u64; SinkFault::KINDS.len()],
    /// What stands in the way, since the last success.
    pub(super) fault: Option<SinkFault>,
    /// Whether the file of its cursor could not be written when that was last tried.
    pub(super) is_unsaved: bool,
    /// When the receiver last took something.
    pub(super) last_success: Option<Timestamp>,
}

impl SinkState {
    pub(super) fn new(name: Arc<str>, kind: &'static str, address: String, sequence: u64) -> Self {
        let progress = Mutex::new(Progress { sequence, ..Progress::default() });
        Self { name, kind, address, progress }
    }

    /// The sink now, where `head` is the journal's last readable record.
    pub(super) fn status(&self, head: u64) -> SinkStatus {
        let progress = *self.progress();
        let fault = progress.fault.or(progress.is_unsaved.then_some(SinkFault::Cursor));
        SinkStatus {
            name: Arc::clone(&self.name),
            kind: self.kind,
            address: self.address.clone(),
            sequence: progress.sequence,
            lag: head.saturating_sub(progress.sequence),
            delivered: progress.delivered,
            rejected: progress.rejected,
            missed: progress.missed,
            failures: SinkFault::KINDS.into_iter().zip(progress.failures).collect(),
            fault: fault.map(SinkFault::kind),
            code: fault.map_or("", SinkFault::code),
            last_success: progress.last_success,
        }
    }

    /// The receiver has answered for everything up to this record, and taken `delivered` of it.
    pub(super) fn moved(&self, sequence: u64, delivered: u64, now: Timestamp) {
        let was_stuck = {
            let mut progress = self.progress();
            progress.sequence = sequence;
            if delivered > 0 {
                progress.delivered += delivered;
                progress.last_success = Some(now);
            }
            progress.fault.take().is_some()
        };
        if was_stuck {
            tracing::info!(sink = %self.name, sequence, "audit sink gets on again");
        }
    }

    /// Something went wrong. Logged once for each kind of an outage, not for each try.
    pub(super) fn failed(&self, fault: SinkFault) {
        let is_new = {
            let mut progress = self.progress();
            progress.failures[fault.place()] += 1;
            progress.fault.replace(fault) != Some(fault)
        };
        if is_new {
            let (kind, code) = (fault.kind(), fault.code());
            tracing::warn!(
                sink = %self.name,
                fault = kind,
                code,
                "audit sink does not get on; it tries again"
            );
        }
    }

    /// Whether the file of its cursor says how far it is. Told once, not for each try.
    pub(super) fn saved(&self, is_saved: bool) {
        let is_new = {
            let mut progress = self.progress();
            progress.failures[SinkFault::Cursor.place()] += u64::from(!is_saved);
            std::mem::replace(&mut progress.is_unsaved, !is_saved) == is_saved
        };
        if !is_new {
            return;
        }
        if is_saved {
            tracing::info!(sink = %self.name, "how far the audit sink is can be written down again");
        } else {
            tracing::error!(
                sink = %self.name,
                "how far the audit sink is cannot be written down; look at the data directory"
            );
        }
    }

    /// These will never be taken; which of them, only a single one tells.
    pub(super) fn rejected(&self, count: u64, sequence: u64, last_sequence: u64) {
        self.progress().rejected += count;
        tracing::error!(
            sink = %self.name,
            count,
            sequence,
            last_sequence,
            "audit events were rejected for good; the journal keeps them"
        );
    }

    /// An event is not what it may be, and must not leave.
    pub(super) fn withheld(&self, field: &'static str, sequence: u64) {
        self.progress().rejected += 1;
        tracing::error!(
            sink = %self.name,
            field,
            sequence,
            "audit event is outside its closed set; it was not sent"
        );
    }

    /// These were gone before they could be delivered.
    pub(super) fn missed(&self, sequence: u64, last_sequence: u64) {
        let count = last_sequence - sequence + 1;
        self.progress().missed += count;
        tracing::error!(
            sink = %self.name,
            count,
            sequence,
            last_sequence,
            "audit events were gone before the sink could send them"
        );
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
