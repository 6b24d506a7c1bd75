//! Opening the journal beside the runtime, which goes on to hear signals, and
//! telling how it does.

use std::sync::Arc;

use super::StartError;
use crate::adapters::journal::{JournalFiles, JournalOptions, OpenError, Recovered, Stop};
use crate::telemetry::metrics::{JournalGauges, Metrics};
use crate::telemetry::readiness::NotReady;

/// Has the reading end when nobody waits for it any more.
struct StopOnDrop(Stop);

/// Opens the journal on a thread that may block. Dropping the future ends the
/// reading before its next record.
pub(super) async fn open_journal(
    options: JournalOptions,
) -> Result<(JournalFiles, Recovered), StartError> {
    let _stop = StopOnDrop(options.stop.clone());
    let opened = tokio::task::spawn_blocking(move || JournalFiles::open(options)).await;
    // Only a runtime that goes down cancels it; a panic has been logged.
    opened.unwrap_or(Err(OpenError::Stopped)).map_err(StartError::Journal)
}

/// What stands in the way of new work: that the journal does not work, that it
/// has no room, or both.
pub(super) fn why_not_ready(journal: &JournalFiles) -> impl Iterator<Item = NotReady> {
    let room = journal.room();
    let full = if room.held_by.is_some() { NotReady::JournalHeld } else { NotReady::JournalFull };
    let down = (!journal.works()).then_some(NotReady::JournalDown);
    down.into_iter().chain(room.is_low.then_some(full))
}

/// A journal that metrics tell of as long as it is open.
pub(super) fn shown(journal: JournalFiles, metrics: &Metrics) -> Arc<JournalFiles> {
    metrics.journal_opened(journal.head().sequence);
    let journal = Arc::new(journal);
    let asked = Arc::downgrade(&journal);
    metrics.watch_journal(move || {
        let journal = asked.upgrade()?;
        let (room, stats) = (journal.room(), journal.stats());
        Some(JournalGauges {
            kept_bytes: room.kept_bytes,
            oldest: room.oldest,
            free_bytes: room.free_bytes,
            is_full: room.is_low,
            is_held: room.held_by.is_some(),
            deleted_segments: room.deleted_segments,
            writes_failed: stats.failures,
        })
    });
    journal
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
