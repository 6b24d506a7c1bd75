//! Every cause for which an arguments text may be refused.
//!
//! The gate's parser stops at the first fault. A vector may name any that
//! applies, so this scanner goes on after each until the text is no JSON. It
//! shares no code with the parser, is not bounded by its depth, and so also tests it.

use std::collections::{BTreeSet, HashSet};

use crate::domain::json::{JsonFault, MAX_DEPTH};

/// The causes that apply; none if the rules for arguments accept the text.
///
/// What stands behind a fault of syntax has no meaning, and adds no cause.
pub(super) fn causes(text: &[u8], max_bytes: usize) -> BTreeSet<JsonFault> {
    let mut found = BTreeSet::new();
    if text.len() > max_bytes {
        found.insert(JsonFault::TooLarge);
    }
    if str::from_utf8(text).is_err() {
        found.insert(JsonFault::Syntax);
        // What an encoder makes of half a surrogate pair that it does not refuse.
        if text.windows(2).any(|pair| pair[0] == 0xed && pair[1] >= 0xa0) {
            found.insert(JsonFault::LoneSurrogate);
        }
    }
    let text = String::from_utf8_lossy(text);
    let mut scan = Scan { text: &text, at: 0, found };
    if scan.document().is_none() {
        scan.found.insert(JsonFault::Syntax);
    }
    scan.found
}

/// Steps return nothing where the text is no JSON.
struct Scan<'a> {
    text: &'a str,
    at: usize,
    found: BTreeSet<JsonFault>,
}

/// A container that is open: an object with the names that it has so far, or an array.
enum Open {
    Object(HashSet<Vec<u16>>),
    Array,
}

impl<'a> Scan<'a> {
    fn document(&mut self) -> Option<()> {
        let mut open = Vec::new();
        self.space();
        loop {
            self.begin_value(&mut open)?;
            if self.end_values(&mut open)? {
                return (self.at == self.text.len()).then_some(());
            }
        }
    }

    /// Reads values up to the first that is no container with something in it.
    fn begin_value(&mut self, open: &mut Vec<Open>) -> Option<()> {
        loop {
            let first = self.peek()?;
            if !b"{[\"-0123456789tfn".contains(&first) {
                return None;
            }
            if open.len() > MAX_DEPTH {
                self.found.insert(JsonFault::TooDeep);
            }
            if open.is_empty() && first != b'{' {
                self.found.insert(JsonFault::NotAnObject);
            }
            match first {
                b'{' => {
                    self.at += 1;
                    self.space();
                    if self.take(b'}') {
                        return Some(());
                    }
                    let mut names = HashSet::new();
                    self.name(&mut names)?;
                    open.push(Open::Object(names));
                }
                b'[' => {
                    self.at += 1;
                    self.space();
                    if self.take(b']') {
                        return Some(());
                    }
                    open.push(Open::Array);
                }
                b'"' => return self.string().map(drop),
                b't' => return self.word("true"),
                b'f' => return self.word("false"),
                b'n' => return self.word("null"),
                _ => return self.number(),
            }
        }
    }

    /// Closes what ends behind a value. Whether the root has ended.
    fn end_values(&mut self, open: &mut Vec<Open>) -> Option<bool> {
        loop {
            self.space();
            let Some(innermost) = open.last_mut() else { return Some(true) };
            let close = if matches!(innermost, Open::Array) { b']' } else { b'}' };
            if self.take(close) {
                open.pop();
                continue;
            }
            if !self.take(b',') {
                return None;
            }
            self.space();
            if let Open::Object(names) = innermost {
                self.name(names)?;
            }
            return Some(false);
        }
    }

    fn name(&mut self, names: &mut HashSet<Vec<u16>>) -> Option<()> {
        if self.peek() != Some(b'"') {
            return None;
        }
        let name = self.string()?;
        if !names.insert(name) {
            self.found.insert(JsonFault::DuplicateKey);
        }
        self.space();
        if !self.take(b':') {
            return None;
        }
        self.space();
        Some(())
    }

    /// The string in UTF-16, where an escape is one unit and half a pair can stand.
    fn string(&mut self) -> Option<Vec<u16>> {
        self.at += 1;
        let mut units = Vec::new();
        loop {
            let c = self.text[self.at..].chars().next()?;
            self.at += c.len_utf8();
            match c {
                '"' => break,
                '\\' => units.push(self.escape()?),
                '\0'..' ' => return None,
                plain => units.extend_from_slice(plain.encode_utf16(&mut [0; 2])),
            }
        }
        if char::decode_utf16(units.iter().copied()).any(|unit| unit.is_err()) {
            self.found.insert(JsonFault::LoneSurrogate);
        }
        Some(units)
    }

    fn escape(&mut self) -> Option<u16> {
        let kind = self.peek()?;
        self.at += 1;
        Some(match kind {
            b'"' | b'\\' | b'/' => kind.into(),
            b'b' => 0x08,
            b't' => 0x09,
            b'n' => 0x0a,
            b'f' => 0x0c,
            b'r' => 0x0d,
            b'u' => {
                let digits = self.text.get(self.at..self.at + 4)?;
                self.at += 4;
                let hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                u16::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)?
            }
            _ => return None,
        })
    }

    fn number(&mut self) -> Option<()> {
        let start = self.at;
        self.take(b'-');
        let whole = self.digits()?;
        if whole.len() > 1 && whole.starts_with('0') {
            return None;
        }
        let has_fraction = self.take(b'.');
        if has_fraction {
            self.digits()?;
        }
        let has_exponent = self.take(b'e') || self.take(b'E');
        if has_exponent {
            let _sign = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        if has_fraction || has_exponent {
            if self.text[start..self.at].parse().is_ok_and(f64::is_infinite) {
                self.found.insert(JsonFault::NonFinite);
            }
        } else if (whole.len(), whole) > (LARGEST_INTEGER.len(), LARGEST_INTEGER) {
            // Without leading zeros, more digits or a later text are a larger number.
            self.found.insert(JsonFault::IntegerOutOfRange);
        }
        Some(())
    }

    fn digits(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        self.at += end;
        (end > 0).then_some(&rest[..end])
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.text[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }
}

/// 2^53 − 1.
const LARGEST_INTEGER: &str = "9007199254740991";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::json::{Integers, parse_object};

    const MAX_BYTES: usize = 200;

    fn names(text: &str) -> Vec<&'static str> {
        causes(text.as_bytes(), MAX_BYTES).into_iter().map(JsonFault::as_str).collect()
    }

    #[test]
    fn every_cause_that_applies_is_found() {
        assert_eq!(names(r#"{"a":[1,-0,0.5e1,"\ud83d\ude42",{}],"b":null}"#), [""; 0]);
        assert_eq!(
            names(r#"{"a":1e999,"a":9007199254740992}"#),
            ["duplicate_key", "non_finite", "integer_out_of_range",]
        );
        assert_eq!(names(r#"["\ud83d",1"#), ["syntax", "lone_surrogate", "not_an_object"]);
        assert_eq!(names(&"[".repeat(201)), ["syntax", "too_deep", "too_large", "not_an_object"]);
        assert_eq!(names(r#"{"é":1,"\u00e9":2}"#), ["duplicate_key"]);
        assert_eq!(names(r#"{"a":1}{"b":1e999}"#), ["syntax"]);
        assert_eq!(names(""), ["syntax"]);
    }

    #[test]
    fn half_a_pair_that_was_encoded_is_no_utf_8_and_a_lone_surrogate() {
        let found = causes(b"{\"\xed\xa0\x80\":1}", MAX_BYTES);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [JsonFault::Syntax, JsonFault::LoneSurrogate,]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Texts of pieces that faults are made of.
        #[test]
        fn the_parser_names_one_of_the_causes_and_accepts_where_there_are_none(
            pieces in prop::collection::vec(prop::sample::select(PIECES), 0..14),
            closed in any::<bool>(),
        ) {
            let inner = pieces.concat();
            let text = if closed { format!("{{\"a\":[{inner}]}}") } else { inner };
            let found = causes(text.as_bytes(), MAX_BYTES);
            match parse_object(text.as_bytes(), MAX_BYTES, Integers::Safe) {
                Ok(_) => prop_assert!(found.is_empty(), "{text}: {found:?}"),
                Err(fault) => prop_assert!(found.contains(&fault), "{text}: {fault:?} {found:?}"),
            }
        }
    }

    const PIECES: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ",",
        ":",
        "\"",
        "\"a\":",
        "\"b\":",
        "{\"a\":1,\"a\":2}",
        "{}",
        "[]",
        "1",
        "-0",
        "1e400",
        "0.5",
        "9007199254740992",
        "-9007199254740991",
        "01",
        "1.",
        "true",
        "nul",
        "null",
        "\"\\ud800\"",
        "\"\\udc00\\ud800\"",
        "\"\\ud83d\\ude42\"",
        "\"\\u0061\":",
        "\\",
        "u",
        " ",
        "\u{feff}",
        "\0",
        "\"é\"",
        "[[[[[[[[[[[[[[[[",
        "]]]]]]]]]]]]]]]]",
        "{\"a\":",
        "{\"a\":{\"a\":{\"a\":",
        "}}}",
        "\"0123456789012345678901234567890123456789\"",
    ];
}
