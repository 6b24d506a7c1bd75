//! B(v): the bounded, redacted form that is digested, and the counts beside it
//! (semantics, section 8).

use std::collections::BTreeMap;

use unicase::UniCase;

use crate::domain::json::{MAX_SAFE_INTEGER, Object, Value, object};

/// Values that are visited before the rest is cut.
const MAX_VALUES: usize = 256;
/// Levels below the root that are visited.
const MAX_DEPTH: usize = 8;
/// Characters of a string or a name that are kept.
const MAX_CHARS: usize = 1024;

/// Parts of names whose values are redacted, case-folded.
const REDACTED: [&str; 6] = ["authorization", "password", "secret", "token", "phone", "mobile"];
/// Parts of names that speak of free text, case-folded.
const CONTENT: [&str; 5] = ["answer", "prompt", "query", "question", "reason"];

/// What a payload held, as counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PayloadSummary {
    /// Members of the object.
    pub field_count: u32,
    /// Members that are null, a Boolean, a number or a string.
    pub scalar_count: u32,
    /// Members that are arrays or objects; 1 for a payload that is no object.
    pub collection_count: u32,
    /// Members whose value is redacted.
    pub redacted_field_count: u32,
    /// Members whose name speaks of free text.
    pub content_field_count: u32,
    /// Members whose name speaks of an identifier.
    pub identifier_field_count: u32,
}

/// B(v). A member is also redacted if its case-folded name contains one of `also_redact`.
///
/// Copies what stays, at most 256 values of 1,024 characters; of what is cut
/// only the characters of a long string are read, to count them.
#[must_use]
pub fn bounded(value: &Value, also_redact: &[String]) -> Value {
    Bounds { values_left: MAX_VALUES, also_redact }.visit(None, value, 0)
}

/// The counts over a payload. `also_redact` as for [`bounded`].
#[must_use]
pub fn summarise(value: &Value, also_redact: &[String]) -> PayloadSummary {
    let mut summary = PayloadSummary::default();
    let Value::Object(object) = value else {
        summary.collection_count = 1;
        return summary;
    };
    for (name, member) in object {
        let folded = fold_case(name);
        let is_collection = matches!(member, Value::Array(_) | Value::Object(_));
        let is_content = CONTENT.iter().any(|part| folded.contains(part));
        let is_identifier = folded == "id" || folded.ends_with("_id");
        summary.field_count += 1;
        summary.scalar_count += u32::from(!is_collection);
        summary.collection_count += u32::from(is_collection);
        summary.redacted_field_count += u32::from(is_redacted(&folded, also_redact));
        summary.content_field_count += u32::from(is_content);
        summary.identifier_field_count += u32::from(is_identifier);
    }
    summary
}

/// Full Unicode case folding (`CaseFolding.txt`, status C and F).
///
/// Lower case alone would let `paſſword` and `paßword` pass.
#[must_use]
pub fn fold_case(name: &str) -> String {
    UniCase::new(name).to_folded_case()
}

/// One walk in canonical order.
struct Bounds<'a> {
    values_left: usize,
    also_redact: &'a [String],
}

impl Bounds<'_> {
    /// What stays of a value. The caller has seen that some of the budget is left.
    fn visit(&mut self, name: Option<&str>, value: &Value, depth: usize) -> Value {
        self.values_left -= 1;
        if name.is_some_and(|name| is_redacted(&fold_case(name), self.also_redact)) {
            return "[REDACTED]".into();
        }
        if depth > MAX_DEPTH {
            return "[DEPTH_LIMIT]".into();
        }
        match value {
            Value::String(text) => bounded_text(text),
            Value::Array(items) => self.items(items, depth),
            Value::Object(object) => self.members(object, depth),
            scalar => scalar.clone(),
        }
    }

    fn items(&mut self, items: &[Value], depth: usize) -> Value {
        let mut kept = Vec::new();
        for item in items {
            if self.values_left == 0 {
                kept.push("[ITEM_LIMIT]".into());
                break;
            }
            kept.push(self.visit(None, item, depth + 1));
        }
        Value::Array(kept)
    }

    fn members(&mut self, members: &Object, depth: usize) -> Value {
        // Cutting can make names equal; the later one stays.
        let mut kept = BTreeMap::new();
        for (name, member) in members {
            if self.values_left == 0 {
                kept.insert("[TRUNCATED]".to_owned(), "[ITEM_LIMIT]".into());
                break;
            }
            let bounded = self.visit(Some(name), member, depth + 1);
            kept.insert(cut(name).unwrap_or(name).to_owned(), bounded);
        }
        Value::Object(kept.into())
    }
}

fn is_redacted(folded: &str, also_redact: &[String]) -> bool {
    let mut parts = REDACTED.into_iter().chain(also_redact.iter().map(String::as_str));
    parts.any(|part| folded.contains(part))
}

fn bounded_text(text: &str) -> Value {
    let Some(prefix) = cut(text) else { return text.into() };
    let chars = i64::try_from(text.chars().count()).unwrap_or(MAX_SAFE_INTEGER);
    object([
        ("original_chars", Value::Integer(chars)),
        ("prefix", prefix.into()),
        ("truncated", true.into()),
    ])
}

/// The first 1,024 characters, if there are more.
fn cut(text: &str) -> Option<&str> {
    let (end, _) = text.char_indices().nth(MAX_CHARS)?;
    Some(&text[..end])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

    use super::*;
    use crate::domain::json::{Integers, parse, to_json};

    fn of(text: &str) -> String {
        to_json(&bounded(&value(text), &[]))
    }

    fn value(text: &str) -> Value {
        parse(text.as_bytes(), 1 << 20, Integers::Wide).unwrap()
    }

    #[test]
    fn names_are_redacted_whatever_their_case() {
        for name in ["TOKEN", "x_Access-Token", "to\u{212a}en", "pa\u{17f}\u{17f}word", "paßword"]
        {
            assert_eq!(
                of(&format!(r#"{{"{name}":[1]}}"#)),
                format!(r#"{{"{name}":"[REDACTED]"}}"#)
            );
        }
        // Not a letter i to case folding, whatever upper case makes of it.
        assert_eq!(of(r#"{"mobıle":1}"#), r#"{"mobıle":1}"#);
    }

    #[test]
    fn only_the_values_of_named_members_are_redacted() {
        assert_eq!(
            of(r#"{"a":["token",{"secret":1}]}"#),
            r#"{"a":["token",{"secret":"[REDACTED]"}]}"#
        );
    }

    #[test]
    fn a_contract_adds_names() {
        let also = ["iban".to_owned()];
        let payload = value(r#"{"My_IBAN":1,"b":2}"#);
        assert_eq!(to_json(&bounded(&payload, &also)), r#"{"My_IBAN":"[REDACTED]","b":2}"#);
        assert_eq!(summarise(&payload, &also).redacted_field_count, 1);
        assert_eq!(summarise(&payload, &[]).redacted_field_count, 0);
    }

    #[test]
    fn the_budget_ends_every_open_container() {
        // The root and two arrays cost three; 253 items fit into the inner one.
        let items = ["0"; 254].join(",");
        let bounded = of(&format!("[[[{items}],1],2]"));
        assert!(bounded.ends_with(r#"0,"[ITEM_LIMIT]"],"[ITEM_LIMIT]"],"[ITEM_LIMIT]"]"#));
        let items = ["0"; 253].join(",");
        assert_eq!(of(&format!("[[[{items}]]]")), format!("[[[{items}]]]"));
    }

    #[test]
    fn an_object_that_is_cut_says_so_even_over_a_member_of_that_name() {
        let members: Vec<_> = (0..256).map(|n| format!(r#""a{n:03}":0"#)).collect();
        let bounded = of(&format!(r#"{{"[TRUNCATED]":7,{}}}"#, members.join(",")));
        assert!(bounded.starts_with(r#"{"[TRUNCATED]":"[ITEM_LIMIT]","a000":0"#));
        assert!(bounded.ends_with(r#""a253":0}"#));
    }

    #[test]
    fn depth_is_counted_from_the_root() {
        assert_eq!(of("[[[[[[[[1]]]]]]]]"), "[[[[[[[[1]]]]]]]]");
        assert_eq!(of("[[[[[[[[[]]]]]]]]]"), "[[[[[[[[[]]]]]]]]]");
        assert_eq!(of("[[[[[[[[[1]]]]]]]]]"), r#"[[[[[[[[["[DEPTH_LIMIT]"]]]]]]]]]"#);
    }

    #[test]
    fn long_text_and_long_names_are_cut_by_characters() {
        let exact = "界".repeat(1024);
        assert_eq!(of(&format!(r#""{exact}""#)), format!(r#""{exact}""#));
        let cut = format!(r#"{{"original_chars":1025,"prefix":"{exact}","truncated":true}}"#);
        assert_eq!(of(&format!(r#""{exact}界""#)), cut);
        assert_eq!(of(&format!(r#"{{"{exact}a":1,"{exact}b":2}}"#)), format!(r#"{{"{exact}":2}}"#));
        assert_eq!(
            of(&format!(r#"{{"{exact}token":1}}"#)),
            format!(r#"{{"{exact}":"[REDACTED]"}}"#),
        );
    }

    #[test]
    fn counts_are_of_the_root_alone() {
        let summary =
            summarise(&value(r#"{"ID":1,"paid":{"id":1},"answer_id":null,"Query":[]}"#), &[]);
        let wanted = PayloadSummary {
            field_count: 4,
            scalar_count: 2,
            collection_count: 2,
            redacted_field_count: 0,
            content_field_count: 2,
            identifier_field_count: 2,
        };
        assert_eq!(summary, wanted);
        let none = PayloadSummary { collection_count: 1, ..PayloadSummary::default() };
        assert_eq!(summarise(&value("\"token\""), &[]), none);
    }
}
