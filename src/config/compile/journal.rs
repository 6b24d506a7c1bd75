//! How large the journal grows, and what it leaves free.

use std::time::Duration;

use super::Compiler;
use crate::adapters::journal::Retention;
use crate::config::fields::Fields;
use crate::domain::refusal::Code;

pub(super) const RETENTION: [&str; 2] = ["age", "bytes"];

/// The files of the journal.
#[derive(Debug, Clone, Copy)]
pub struct JournalConfig {
    /// A file of more bytes is followed by a new one.
    pub segment_bytes: u64,
    /// One with older records too.
    pub segment_age: Duration,
    /// With fewer bytes free on its disk the journal takes no new work.
    pub min_free_bytes: u64,
    /// What is deleted.
    pub retention: Retention,
}

const MINUTE: Duration = Duration::from_mins(1);
const YEAR: Duration = Duration::from_hours(8_760);

impl Compiler<'_> {
    pub(super) fn journal(&mut self, audit: &Fields<'_>) -> JournalConfig {
        let found = &mut self.findings;
        let segment_bytes = audit.number("segment_bytes", 64 << 20, 64 << 10..=1 << 40, found);
        let day = Duration::from_hours(24);
        let segment_age = audit.duration("segment_age", day, MINUTE..=YEAR, found);
        let min_free_bytes = audit.number("min_free_bytes", 128 << 20, 1 << 20..=1 << 40, found);
        let retention = self.retention(audit, segment_bytes).unwrap_or_default();
        JournalConfig { segment_bytes, segment_age, min_free_bytes, retention }
    }

    fn retention(&mut self, audit: &Fields<'_>, segment_bytes: u64) -> Option<Retention> {
        let at = audit.at("retention");
        let fields = self.fields(audit.get("retention")?, &at, &RETENTION)?;
        let hour = Duration::from_hours(1);
        let age = fields
            .get("age")
            .map(|_| fields.duration("age", 30 * 24 * hour, hour..=10 * YEAR, &mut self.findings));
        let bytes = fields
            .get("bytes")
            .map(|_| fields.number("bytes", 10 << 30, 1 << 20..=1 << 50, &mut self.findings));
        if age.is_none() && bytes.is_none() {
            self.find(
                &at,
                Code::MissingField,
                "it says neither how old nor how large the journal may grow",
                "add age: 720h, or bytes: 10737418240, or leave it out and keep everything",
            );
        }
        if bytes.is_some_and(|bytes| bytes < segment_bytes) {
            self.find(
                at,
                Code::LimitOutOfBounds,
                "bytes is less than one file of the journal, which is deleted whole",
                "make it some times audit.segment_bytes",
            );
        }
        Some(Retention { age, bytes })
    }
}
