//! What the audit keeps of a call: keyed digests and counts, never the data.

mod admin;
mod bounded;
mod chain;
mod event;
mod keys;
mod line;
mod pairs;
mod record;
#[cfg(test)]
pub(crate) mod samples;
mod seal;
mod subject;

pub use admin::{
    AdminEvent, AdminKind, KeyChange, KeyPurpose, ReloadResult, ReloadTrigger, is_confirmation_id,
};
pub use bounded::{PayloadSummary, bounded, fold_case, summarise};
pub use chain::{Chain, ChainFault, Head, JournalKey, JournalKeys, SignerMissing};
pub use event::{
    ClosedSetFault, Confirmed, Entry, Event, EventKind, EventOutcome, Stamp, TraceId, is_call_id,
    is_key_id, is_tool_name,
};
pub use keys::{AuditKey, Digest};
pub use line::{escaped, gap_line, json_line};
pub use pairs::{CallName, OpenPair, OpenPairs};
pub use record::{
    MAX_DURATION_US, MAX_RECORD_BYTES, RecordFault, read_record, write_line, write_record,
};
pub use seal::Sealed;
pub use subject::{Scope, Subject};
