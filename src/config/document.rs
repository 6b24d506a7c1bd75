//! Strict YAML and JSON into one kind of document.
//!
//! YAML 1.2 core only: `no` and `on` are strings, a name twice is a fault, and
//! so are anchors, aliases, merge keys and custom tags, which would let a
//! reviewer read something else than the gate does.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Budget, DuplicateKeyPolicy, MergeKeyPolicy, Options};

use crate::domain::refusal::{Code, Finding};

/// The documents of a YAML file, in order. Empty ones are left out.
///
/// # Errors
///
/// What is wrong and where, in one line.
pub(in crate::config) fn parse_yaml(text: &str) -> Result<Vec<Value>, Finding> {
    serde_saphyr::from_multiple_with_options::<Strict>(text, options())
        .map(|documents| documents.into_iter().map(|document| document.0).collect())
        .map_err(|error| not_yaml(&explain(&error)))
}

fn explain(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::budget::BudgetBreach;
    let place = error
        .location()
        .map_or_else(String::new, |at| format!(" at line {}, column {}", at.line(), at.column()));
    match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the name {key:?} stands twice{place}")
        }
        serde_saphyr::Error::Budget {
            breach: BudgetBreach::Anchors { .. } | BudgetBreach::Aliases { .. },
            ..
        } => format!("an anchor or an alias{place}"),
        _ => one_line(&error.to_string()),
    }
}

/// The one document of a YAML file.
///
/// # Errors
///
/// What is wrong and where, in one line.
pub(in crate::config) fn parse_one(text: &str) -> Result<Value, Finding> {
    let mut documents = parse_yaml(text)?;
    match documents.pop() {
        Some(document) if documents.is_empty() => Ok(document),
        _ => Err(not_yaml("it must hold exactly one document")),
    }
}

fn not_yaml(error: &str) -> Finding {
    let mend = "write plain YAML 1.2: each name once, no anchors, aliases, merge keys or tags";
    Finding::new("", Code::NotYaml, format!("not strict YAML: {error}"), mend)
}

/// The document of a JSON file.
///
/// # Errors
///
/// What is wrong and where, in one line.
pub(in crate::config) fn parse_json(text: &str) -> Result<Value, String> {
    serde_json::from_str::<Strict>(text)
        .map(|document| document.0)
        .map_err(|error| one_line(&error.to_string()))
}

fn options() -> Options {
    let mut budget = Budget::default();
    // A little more than a schema may have, which is then refused by name. The
    // parser recurses, and a level costs it some kilobytes of stack.
    budget.max_depth = 72;
    budget.flow_nesting_limit = 72;
    budget.max_anchors = 0;
    budget.max_aliases = 0;
    budget.max_documents = 1_024;
    serde_saphyr::options! {
        budget: Some(budget),
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(300).collect()
}

/// A value in which no name occurs twice in one object.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that JSON can hold")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, Strict(member))) = members.next_entry::<String, Strict>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("the name {name:?} stands twice")));
            }
            object.insert(name, member);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn yaml_is_the_core_schema_of_1_2() {
        let documents =
            parse_yaml("a: no\nb: on\nc: true\nd: 0755\ne: 1_000\nf: 2s\ng: ~\nh: 1.5\n");
        let wanted = json!({"a": "no", "b": "on", "c": true, "d": "0755", "e": "1_000", "f": "2s",
                            "g": null, "h": 1.5});
        assert_eq!(documents.unwrap(), [wanted]);
    }

    #[test]
    fn yaml_that_reads_differently_to_others_is_refused() {
        let refused = [
            "a: 1\na: 2\n",
            "a: &x 1\nb: *x\n",
            "a: &x 1\n",
            "a: {<<: {b: 1}}\n",
            "a: !custom 1\n",
            "a: .nan\n",
            "a: [1\n",
        ];
        for text in refused {
            assert!(parse_yaml(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_may_hold_several_documents() {
        assert_eq!(parse_yaml("a: 1\n---\nb: 2\n").unwrap(), [json!({"a": 1}), json!({"b": 2})]);
        assert!(parse_yaml("# nothing\n").unwrap().is_empty());
    }

    #[test]
    fn json_is_strict() {
        assert_eq!(parse_json("{\"a\": [1, 2.5]}").unwrap(), json!({"a": [1, 2.5]}));
        for text in ["{\"a\": 1, \"a\": 2}", "{\"a\": {\"b\": 1, \"b\": 1}}", "{} {}", "{a: 1}", ""]
        {
            assert!(parse_json(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nesting_ends_before_the_stack_does() {
        assert!(parse_yaml(&"[".repeat(100_000)).is_err());
        assert!(parse_json(&"[".repeat(100_000)).is_err());
        let lines: Vec<String> = (0..2_000).map(|level| " ".repeat(level) + "a:").collect();
        assert!(parse_yaml(&lines.join("\n")).is_err());
    }
}
