//! The marks, and the search for them.

use std::fmt::Write as _;

use prost::Message;
use tonic::Status;
use tonic::metadata::{KeyAndValueRef, MetadataMap};

/// What must not be found.
pub struct Marks(&'static [&'static str]);

/// In lower case. The Booleans are a run that nothing else writes.
pub const MARKED: Marks =
    Marks(&["canary", "8675309", "424242424242", "true,false,true", "true, false, true"]);

/// What was seen, by where, and what else must not be found there.
#[derive(Default)]
pub struct Evidence {
    seen: Vec<(String, Vec<u8>)>,
    secrets: Vec<String>,
}

impl Marks {
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        self.found_in(bytes).is_some()
    }

    fn found_in(&self, bytes: &[u8]) -> Option<&'static str> {
        let bytes = bytes.to_ascii_lowercase();
        self.0
            .iter()
            .copied()
            .find(|mark| bytes.windows(mark.len()).any(|window| window == mark.as_bytes()))
    }
}

impl Evidence {
    pub fn keep(&mut self, place: &str, bytes: impl Into<Vec<u8>>) {
        // The place itself may be a marked path, and is only shown where something was found.
        self.seen.push((place.to_owned(), bytes.into()));
    }

    /// A text that must not be found, in exactly this spelling.
    pub fn search_for(&mut self, secret: &str) {
        assert!(secret.len() > 20, "it would be found by chance");
        self.secrets.push(secret.to_owned());
    }

    pub fn keep_message(&mut self, place: &str, message: &(impl Message + std::fmt::Debug)) {
        self.keep(place, message.encode_to_vec());
        self.keep(place, format!("{message:?}"));
    }

    pub fn keep_status(&mut self, place: &str, status: &Status) {
        self.keep(place, format!("{status:?} {status}"));
        self.keep(place, status.details());
        self.keep_metadata(place, status.metadata());
    }

    /// Metadata as it was sent and, where it is binary, as it was meant.
    pub fn keep_metadata(&mut self, place: &str, metadata: &MetadataMap) {
        let mut text = format!("{metadata:?}");
        for entry in metadata.iter() {
            if let KeyAndValueRef::Binary(name, value) = entry {
                let bytes = value.to_bytes().unwrap_or_default();
                write!(text, " {name} {}", String::from_utf8_lossy(&bytes)).unwrap();
            }
        }
        self.keep(place, text);
    }

    pub fn assert_clean(&self) {
        let found: Vec<String> = self
            .seen
            .iter()
            .filter_map(|(place, bytes)| {
                let mark = MARKED.found_in(bytes).or_else(|| self.secret_in(bytes))?;
                Some(format!("{mark:?} in {place}: {}", String::from_utf8_lossy(bytes)))
            })
            .collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    fn secret_in(&self, bytes: &[u8]) -> Option<&str> {
        let is_in =
            |secret: &str| bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        self.secrets.iter().map(String::as_str).find(|secret| is_in(secret))
    }
}

#[test]
fn marks_are_found_where_they_are() {
    for dirty in ["xCanaryx", "86753090", "[true,false,true,true]", "424242424242.0"] {
        assert!(MARKED.is_in(dirty.as_bytes()), "{dirty}");
    }
    assert!(!MARKED.is_in(br#"{"model_suggested":true,"duration_ms":4242.4}"#));
    let mut evidence = Evidence::default();
    evidence.keep_status(
        "here",
        &Status::with_details(tonic::Code::Internal, "m", bytes::Bytes::from_static(b"a canary")),
    );
    assert!(std::panic::catch_unwind(|| evidence.assert_clean()).is_err());
    let mut evidence = Evidence::default();
    evidence.keep("there", "Bearer a-secret-that-nobody-says");
    evidence.assert_clean();
    evidence.search_for("a-secret-that-nobody-says");
    assert!(std::panic::catch_unwind(|| evidence.assert_clean()).is_err());
}
