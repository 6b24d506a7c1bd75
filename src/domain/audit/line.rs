//! Events as text for whoever follows the journal: one JSON object a line.
//!
//! An event is the journal's own line, its `mac` included, but for characters that
//! a terminal might obey, which are escaped. What is missing is a line of its own.

use std::fmt::Write as _;

use super::record::write_line;
use super::{Entry, Head, Stamp};
use crate::domain::proposal::is_forbidden;

/// An event as it stands in the journal, without a line end.
#[must_use]
pub fn json_line(entry: &Entry, stamp: &Stamp) -> String {
    let mut line = Vec::with_capacity(1_024);
    let at = Head { sequence: stamp.sequence, mac: stamp.mac };
    write_line(&mut line, entry, &stamp.journal_id, at);
    let line = String::from_utf8(line).unwrap_or_else(|_| unreachable!("records are text"));
    escaped(line)
}

/// Events of a journal that are no longer kept, without a line end.
#[must_use]
pub fn gap_line(journal_id: &str, first: u64, last: u64) -> String {
    let journal_id = serde_json::Value::from(journal_id);
    escaped(format!(
        "{{\"gap\":{{\"journal_id\":{journal_id},\"first_sequence\":{first},\"last_sequence\":{last}}}}}"
    ))
}

/// JSON without a character that a terminal might obey: such stand in strings alone.
#[must_use]
pub fn escaped(json: String) -> String {
    if !json.contains(is_forbidden) {
        return json;
    }
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_forbidden(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                // Writing to a text cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

    use serde_json::{Value, json};

    use super::super::{Digest, samples};
    use super::*;

    #[test]
    fn a_line_is_the_journals_own() {
        for event in [samples::started("a"), samples::completed("a")] {
            let entry = samples::entry(event);
            let stamp = Stamp { journal_id: "j".into(), sequence: 7, mac: Digest([9; 32]) };
            let line = json_line(&entry, &stamp);
            let read = super::super::read_record(line.as_bytes());
            assert_eq!(read, Ok((entry, stamp)));
        }
    }

    #[test]
    fn a_gap_names_its_bounds_and_no_control_character_is_printed() {
        let line = gap_line("j\u{202e}\u{7f}\u{e0041}", 3, 5);
        assert!(!line.contains(is_forbidden), "{line:?}");
        let gap: Value = serde_json::from_str(&line).unwrap();
        let bounds = json!({"journal_id": "j\u{202e}\u{7f}\u{e0041}", "first_sequence": 3, "last_sequence": 5});
        assert_eq!(gap, json!({ "gap": bounds }));
    }
}
