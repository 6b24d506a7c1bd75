//! What the journal keeps, and what it has room for.

use std::sync::Arc;

use opentelemetry::metrics::Meter;

/// What the journal says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalGauges {
    /// The bytes of its segments.
    pub kept_bytes: u64,
    /// Its oldest record.
    pub oldest: u64,
    /// The bytes free on its disk, where that can be measured.
    pub free_bytes: Option<u64>,
    /// Whether those are too few for new work.
    pub is_full: bool,
    /// Whether retention waits for a reader that is behind.
    pub is_held: bool,
    /// Segments deleted since the start.
    pub deleted_segments: u64,
    /// Groups whose writing failed since the start, each try counted.
    pub writes_failed: u64,
}

/// Asks the journal, as long as it is there.
pub(super) type Ask = Arc<dyn Fn() -> Option<JournalGauges> + Send + Sync>;

pub(super) fn observe(meter: &Meter, ask: &Ask) {
    let gauge = |name, help, value: fn(JournalGauges) -> Option<u64>| {
        let ask = Arc::clone(ask);
        let observed = move || ask().and_then(value);
        meter
            .u64_observable_gauge(name)
            .with_description(help)
            .with_callback(move |gauge| {
                if let Some(value) = observed() {
                    gauge.observe(value, &[]);
                }
            })
            .build();
    };
    gauge("toolgate_journal_bytes", "Bytes of the journal's segments.", |seen| {
        Some(seen.kept_bytes)
    });
    gauge("toolgate_journal_oldest_sequence", "Sequence of the oldest event kept.", |seen| {
        Some(seen.oldest)
    });
    gauge("toolgate_journal_free_bytes", "Bytes free on the journal's disk.", |seen| {
        seen.free_bytes
    });
    gauge("toolgate_journal_full", "1 if too few bytes are free for new work, else 0.", |seen| {
        Some(seen.is_full.into())
    });
    gauge(
        "toolgate_journal_retention_held",
        "1 if segments are kept for a reader that is behind, else 0.",
        |seen| Some(seen.is_held.into()),
    );
    let counter = |name, help, value: fn(JournalGauges) -> u64| {
        let ask = Arc::clone(ask);
        meter
            .u64_observable_counter(name)
            .with_description(help)
            .with_callback(move |counter| {
                if let Some(seen) = ask() {
                    counter.observe(value(seen), &[]);
                }
            })
            .build();
    };
    counter("toolgate_journal_segments_deleted", "Segments that retention has deleted.", |seen| {
        seen.deleted_segments
    });
    counter(
        "toolgate_journal_writes_failed",
        "Writes of the journal that failed, each try counted.",
        |seen| seen.writes_failed,
    );
}
