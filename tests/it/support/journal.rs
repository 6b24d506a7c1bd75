//! The journal as an auditor with its key reads it.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use toolgate::config::Secret;
use toolgate::domain::audit::{
    Chain, Digest, Entry, Event, EventKind, Head, JournalKey, OpenPairs,
};
use toolgate::domain::reason::Reason;
use zeroize::Zeroizing;

use super::running::{AUDIT_KEY, journal_text};

/// The records as JSON, in order.
pub fn records(directory: &Path) -> Vec<Value> {
    journal_text(directory).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The events of calls, after the whole chain has verified.
pub fn events(directory: &Path) -> Vec<Event> {
    let text = journal_text(directory);
    let Some(first) = text.lines().next() else { return Vec::new() };
    let first: Value = serde_json::from_str(first).unwrap();
    let secret = Secret::from_bytes(Zeroizing::new(AUDIT_KEY.as_bytes().to_vec())).unwrap();
    let key = JournalKey::new(&secret.derive("toolgate/journal/v1"));
    let mut chain = Chain::new(key.into(), first["journal_id"].as_str().unwrap().into());
    let verify = |(line, text): (usize, &str)| {
        let entry = chain
            .verify(text.as_bytes())
            .unwrap_or_else(|fault| panic!("line {}: {fault}\n{text}", line + 1));
        match entry {
            Entry::Call(event) => Some(Arc::unwrap_or_clone(event)),
            Entry::Admin(_) => None,
        }
    };
    text.lines().enumerate().filter_map(verify).collect()
}

/// How each pair ended, in the order of the endings: call, attempt, reason.
/// Fails where a pair is open, or an event belongs to no pair.
pub fn endings(directory: &Path) -> Vec<(String, u32, Reason)> {
    endings_of(&events(directory))
}

/// The same of events that were read before.
pub fn endings_of(events: &[Event]) -> Vec<(String, u32, Reason)> {
    let mut open = OpenPairs::default();
    for (sequence, event) in (1..).zip(events) {
        let at = Head { sequence, mac: Digest([0; 32]) };
        open.observe(at, &Entry::Call(Arc::new(event.clone())));
    }
    let open = open.into_started();
    assert!(open.is_empty(), "open: {open:?}");
    let ends: Vec<_> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Started => None,
            EventKind::Completed { reason, .. } => {
                Some((event.tool_call_id.to_string(), event.attempt, reason))
            }
        })
        .collect();
    assert_eq!(2 * ends.len(), events.len(), "two records a pair");
    ends
}
