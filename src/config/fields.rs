//! Reading the fields of a document so that every fault is found, not the first.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::domain::refusal::{Code, Finding};
use crate::domain::schema::join;

/// The fields of one mapping, each read by name.
pub(in crate::config) struct Fields<'a> {
    members: &'a Map<String, Value>,
    pointer: String,
}

impl<'a> Fields<'a> {
    /// The fields of a mapping. Faults every field that is not among the known.
    pub(in crate::config) fn of(
        value: &'a Value,
        pointer: &str,
        known: &[&str],
        findings: &mut Vec<Finding>,
    ) -> Option<Self> {
        let Value::Object(members) = value else {
            findings.push(wrong_type(
                pointer,
                "a mapping",
                &match known {
                    [] => "write {}".to_owned(),
                    _ => format!("write a mapping of {}", known.join(", ")),
                },
            ));
            return None;
        };
        let fields = Self { members, pointer: pointer.to_owned() };
        for name in members.keys().filter(|name| !known.contains(&name.as_str())) {
            findings.push(Finding::new(
                fields.at(name),
                Code::UnknownField,
                format!("there is no field {name:?} here"),
                match known {
                    [] => "remove it: there are no fields here, write {}".to_owned(),
                    _ => format!("remove it, or use one of {}", known.join(", ")),
                },
            ));
        }
        Some(fields)
    }

    /// The pointer of a field.
    pub(in crate::config) fn at(&self, name: &str) -> String {
        join(&self.pointer, [name])
    }

    /// The value of a field that is there. `null` counts as not there.
    pub(in crate::config) fn get(&self, name: &str) -> Option<&'a Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    /// A field that must be there.
    pub(in crate::config) fn required(
        &self,
        name: &str,
        findings: &mut Vec<Finding>,
    ) -> Option<&'a Value> {
        let value = self.get(name);
        if value.is_none() {
            findings.push(Finding::new(
                self.at(name),
                Code::MissingField,
                format!("the field {name:?} is missing"),
                format!("add {name}: …"),
            ));
        }
        value
    }

    /// Text that must be there, and not blank.
    pub(in crate::config) fn required_text(
        &self,
        name: &str,
        out: &mut Vec<Finding>,
    ) -> Option<&'a str> {
        self.required(name, out)?;
        self.text(name, out)
    }

    /// Text that is not blank.
    pub(in crate::config) fn text(
        &self,
        name: &str,
        findings: &mut Vec<Finding>,
    ) -> Option<&'a str> {
        text_of(self.get(name)?, &self.at(name), findings)
    }

    /// One of several words.
    pub(in crate::config) fn word<T: Copy>(
        &self,
        name: &str,
        words: &[(&str, T)],
        findings: &mut Vec<Finding>,
    ) -> Option<T> {
        let value = self.get(name)?;
        let found = words.iter().find(|(word, _)| value == word).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let words = words.join(" or ");
            findings.push(wrong_type(&self.at(name), &words, &format!("write {name}: {words}")));
        }
        found
    }

    /// A Boolean, or what holds without it.
    pub(in crate::config) fn boolean(
        &self,
        name: &str,
        default: bool,
        findings: &mut Vec<Finding>,
    ) -> bool {
        match self.get(name) {
            None => default,
            Some(Value::Bool(value)) => *value,
            Some(_) => {
                findings.push(wrong_type(
                    &self.at(name),
                    "true or false",
                    "write true or false without quotes",
                ));
                default
            }
        }
    }

    /// A whole number within bounds, or what holds without it.
    pub(in crate::config) fn number(
        &self,
        name: &str,
        default: u64,
        bounds: RangeInclusive<u64>,
        findings: &mut Vec<Finding>,
    ) -> u64 {
        let Some(value) = self.get(name) else { return default };
        match value.as_u64() {
            Some(number) if bounds.contains(&number) => number,
            _ => {
                findings.push(Finding::new(
                    self.at(name),
                    Code::LimitOutOfBounds,
                    format!(
                        "{name} must be a whole number from {} to {}",
                        bounds.start(),
                        bounds.end()
                    ),
                    format!("write {name}: {default}, or another number within these bounds"),
                ));
                default
            }
        }
    }

    /// A length of time within bounds, or what holds without it.
    pub(in crate::config) fn duration(
        &self,
        name: &str,
        default: Duration,
        bounds: RangeInclusive<Duration>,
        findings: &mut Vec<Finding>,
    ) -> Duration {
        let Some(value) = self.get(name) else { return default };
        match value.as_str().and_then(parse_duration) {
            Some(duration) if bounds.contains(&duration) => duration,
            _ => {
                findings.push(Finding::new(
                    self.at(name),
                    Code::LimitOutOfBounds,
                    format!(
                        "{name} must be a length of time from {} to {}",
                        show(*bounds.start()),
                        show(*bounds.end())
                    ),
                    format!(
                        "write {name}: {}, or in the same form 500ms, 1m30s, 24h",
                        show(default)
                    ),
                ));
                default
            }
        }
    }

    /// The items of a list, each with its pointer. Nothing without it.
    pub(in crate::config) fn list(
        &self,
        name: &str,
        findings: &mut Vec<Finding>,
    ) -> Vec<(String, &'a Value)> {
        match self.get(name) {
            None => Vec::new(),
            Some(Value::Array(items)) => {
                let at = |index: usize| join(&self.at(name), [index.to_string().as_str()]);
                items.iter().enumerate().map(|(index, item)| (at(index), item)).collect()
            }
            Some(_) => {
                findings.push(wrong_type(
                    &self.at(name),
                    "a list",
                    "write a list such as [one, two]",
                ));
                Vec::new()
            }
        }
    }

    /// A mapping of names to text. Nothing without it.
    pub(in crate::config) fn texts(
        &self,
        name: &str,
        findings: &mut Vec<Finding>,
    ) -> BTreeMap<&'a str, &'a str> {
        let Some(value) = self.get(name) else { return BTreeMap::new() };
        let Value::Object(members) = value else {
            findings.push(wrong_type(
                &self.at(name),
                "a mapping",
                "write a mapping of name: reason",
            ));
            return BTreeMap::new();
        };
        let at = self.at(name);
        let text = |(key, value): (&'a String, &'a Value)| {
            text_of(value, &join(&at, [key.as_str()]), findings).map(|text| (key.as_str(), text))
        };
        members.iter().filter_map(text).collect()
    }
}

/// Text that is not blank.
pub(in crate::config) fn text_of<'a>(
    value: &'a Value,
    pointer: &str,
    findings: &mut Vec<Finding>,
) -> Option<&'a str> {
    let text = value.as_str().filter(|text| !text.trim().is_empty());
    if text.is_none() {
        findings.push(wrong_type(
            pointer,
            "text that is not blank",
            "write text, in quotes if it looks like a number",
        ));
    }
    text
}

pub(in crate::config) fn wrong_type(pointer: &str, wanted: &str, mend: &str) -> Finding {
    Finding::new(pointer, Code::WrongType, format!("this must be {wanted}"), mend)
}

const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// `2s`, `500ms`, `1m30s`: whole numbers with units, from larger to smaller, each once.
fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut total = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest.get(..digits).filter(|digits| digits.len() <= 12)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = rest.get(..letters)?;
        let (_, milliseconds) = units.find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.checked_mul(*milliseconds)?)?;
        rest = rest.get(letters..)?;
    }
    (!text.is_empty()).then(|| Duration::from_millis(total))
}

/// A length of time as one writes it.
pub(in crate::config) fn show(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut shown = String::new();
    for (unit, milliseconds) in UNITS {
        if rest >= milliseconds {
            // Writing to a String cannot fail.
            let _ = write!(shown, "{}{unit}", rest / milliseconds);
            rest %= milliseconds;
        }
    }
    if shown.is_empty() { "0s".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_shown() {
        for (text, milliseconds) in
            [("2s", 2_000), ("500ms", 500), ("1m30s", 90_000), ("24h", 86_400_000), ("0s", 0)]
        {
            let duration = Duration::from_millis(milliseconds);
            assert_eq!(parse_duration(text), Some(duration), "{text}");
            assert_eq!(show(duration), text);
        }
        for text in [
            "",
            "2",
            "s",
            "2 s",
            "-2s",
            "1.5s",
            "30s1m",
            "1s1s",
            "2d",
            "9999999999999h",
            "inf",
            "٢s",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
