//! The validator over the gate's own values, and the limits it runs under.
//!
//! The implementation reads our values where they are. What the validator would
//! keep of an instance for its error texts is left empty: no error of ours may
//! hold a value, and copying a large one for each error is what makes a
//! validator slow.

use std::borrow::Cow;
use std::collections::HashSet;

use jsonschema::json::{Array, Json, JsonNumber, Node, NodeIdentity, Object};
use jsonschema::{Draft, JsonType, PatternOptions, ValidationOptions};
use serde_json::{Number, Value as Expected};

use crate::domain::json::{Object as Members, Value};

/// The most bytes of a compiled pattern, and of the states it caches while running.
pub(super) const PATTERN_BYTES: usize = 1024 * 1024;

/// How every schema is compiled: Draft 2020-12, nothing fetched, formats
/// checked, patterns in linear time.
pub(super) fn options() -> ValidationOptions<'static, std::sync::Arc<dyn jsonschema::Retrieve>, Gate>
{
    jsonschema::options_for::<Gate>()
        .with_draft(Draft::Draft202012)
        .offline()
        .should_validate_formats(true)
        .should_ignore_unknown_formats(false)
        .with_pattern_options(
            PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES),
        )
}

/// The gate's own representation of JSON.
pub(super) struct Gate;

impl Json for Gate {
    type Node<'a> = &'a Value;
    type PreparedKey = String;
    type StringBuffer = Buffer;

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>(
        buffer: &mut Buffer,
        string: &str,
        f: impl FnOnce(Self::Node<'_>) -> T,
    ) -> T {
        buffer.0 = Value::String(string.to_owned());
        f(&buffer.0)
    }
}

/// Holds a member name while it is checked as a value.
pub(super) struct Buffer(Value);

impl Default for Buffer {
    fn default() -> Self {
        Self(Value::Null)
    }
}

impl<'a> Node<'a, Gate> for &'a Value {
    type Object = &'a Members;
    type Array = &'a [Value];
    type Number = Numeric<'a>;

    fn as_object(&self) -> Option<&'a Members> {
        match self {
            Value::Object(members) => Some(members),
            _ => None,
        }
    }

    fn as_array(&self) -> Option<&'a [Value]> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        match self {
            Value::String(text) => Some(Cow::Borrowed(text)),
            _ => None,
        }
    }

    fn as_number(&self) -> Option<Numeric<'a>> {
        match self {
            Value::Integer(integer) => Some(Numeric::Integer(*integer)),
            Value::WideInteger(digits) => Some(Numeric::Wide(digits)),
            Value::Double(double) => Some(Numeric::Double(*double)),
            _ => None,
        }
    }

    fn as_boolean(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    fn is_number(&self) -> bool {
        matches!(self, Value::Integer(_) | Value::WideInteger(_) | Value::Double(_))
    }

    fn json_type(&self) -> JsonType {
        match self {
            Value::Null => JsonType::Null,
            Value::Bool(_) => JsonType::Boolean,
            Value::Integer(_) | Value::WideInteger(_) | Value::Double(_) => JsonType::Number,
            Value::String(_) => JsonType::String,
            Value::Array(_) => JsonType::Array,
            Value::Object(_) => JsonType::Object,
        }
    }

    fn equals_value(&self, expected: &Expected) -> bool {
        equals(self, expected)
    }

    /// Only error texts ask for it, which are never shown: nothing is copied.
    fn to_value(&self) -> Cow<'a, Expected> {
        Cow::Owned(Expected::Null)
    }

    fn identity(&self) -> Option<NodeIdentity> {
        Some(NodeIdentity::new(std::ptr::from_ref::<Value>(self).addr()))
    }
}

impl<'a> Object<'a, Gate> for &'a Members {
    type Node = &'a Value;
    type MemberName = &'a str;
    type MembersIter = Box<dyn Iterator<Item = (&'a str, &'a Value)> + 'a>;

    fn len(&self) -> usize {
        Members::len(self)
    }

    fn get(&self, key: &String) -> Option<&'a Value> {
        Members::get(self, key)
    }

    fn members(&self) -> Self::MembersIter {
        Box::new(self.iter())
    }
}

impl<'a> Array<'a, Gate> for &'a [Value] {
    type Node = &'a Value;
    type ElementsIter = std::slice::Iter<'a, Value>;

    fn len(&self) -> usize {
        <[Value]>::len(self)
    }

    fn elements(&self) -> Self::ElementsIter {
        self.iter()
    }

    fn is_unique(&self) -> bool {
        let mut seen = HashSet::with_capacity(<[Value]>::len(self));
        self.iter().all(|item| {
            let mut identity = String::new();
            identify(item, &mut identity);
            seen.insert(identity)
        })
    }
}

/// A number of ours.
pub(super) enum Numeric<'a> {
    Integer(i64),
    Wide(&'a str),
    Double(f64),
}

impl JsonNumber for Numeric<'_> {
    fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Integer(integer) => u64::try_from(*integer).ok(),
            Self::Wide(digits) => digits.parse().ok(),
            Self::Double(_) => None,
        }
    }

    fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Integer(integer) => Some(*integer),
            Self::Wide(digits) => digits.parse().ok(),
            Self::Double(_) => None,
        }
    }

    fn as_f64(&self) -> Option<f64> {
        match self {
            #[allow(clippy::cast_precision_loss, reason = "integers are within ±(2^53−1)")]
            Self::Integer(integer) => Some(*integer as f64),
            Self::Wide(digits) => digits.parse().ok(),
            Self::Double(double) => Some(*double),
        }
    }

    fn as_str(&self) -> Cow<'_, str> {
        match self {
            Self::Integer(integer) => Cow::Owned(integer.to_string()),
            Self::Wide(digits) => Cow::Borrowed(digits),
            Self::Double(double) => Cow::Owned(double.to_string()),
        }
    }

    fn to_number(&self) -> Cow<'_, Number> {
        let integer = self.as_i64().map(Number::from).or_else(|| self.as_u64().map(Number::from));
        let number = integer.or_else(|| self.as_f64().and_then(Number::from_f64));
        Cow::Owned(number.unwrap_or_else(|| Number::from(0)))
    }

    fn is_integer(&self) -> bool {
        match self {
            Self::Integer(_) | Self::Wide(_) => true,
            Self::Double(double) => double.fract() == 0.0,
        }
    }

    fn is_written_as_integer(&self) -> bool {
        !matches!(self, Self::Double(_))
    }
}

/// Equality after JSON Schema: numbers by value, members in any order.
fn equals(value: &Value, expected: &Expected) -> bool {
    match (value, expected) {
        (Value::Null, Expected::Null) => true,
        (Value::Bool(value), Expected::Bool(expected)) => value == expected,
        (Value::String(value), Expected::String(expected)) => value == expected,
        (Value::Array(items), Expected::Array(expected)) => {
            items.len() == expected.len()
                && items.iter().zip(expected).all(|(item, expected)| equals(item, expected))
        }
        (Value::Object(members), Expected::Object(expected)) => {
            members.len() == expected.len()
                && members
                    .iter()
                    .all(|(name, member)| expected.get(name).is_some_and(|e| equals(member, e)))
        }
        (_, Expected::Number(expected)) => {
            (&value).as_number().is_some_and(|number| digits(&number) == expected_digits(expected))
        }
        _ => false,
    }
}

/// One text for each mathematical value.
fn digits(number: &Numeric<'_>) -> String {
    match number {
        // `{:.0}` writes an integral double exactly.
        Numeric::Double(double) if *double == 0.0 => "0".to_owned(),
        Numeric::Double(double) if double.fract() == 0.0 => format!("{double:.0}"),
        Numeric::Double(double) => format!("{double:e}"),
        number => number.as_str().into_owned(),
    }
}

fn expected_digits(number: &Number) -> String {
    match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(integer), ..) => integer.to_string(),
        (None, Some(integer), _) => integer.to_string(),
        (None, None, Some(double)) => digits(&Numeric::Double(double)),
        (None, None, None) => String::new(),
    }
}

/// Writes what tells a value from every value that is not equal to it.
fn identify(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push('n'),
        Value::Bool(value) => out.push(if *value { 't' } else { 'f' }),
        Value::String(text) => delimit(text, out),
        Value::Array(items) => {
            out.push('[');
            for item in items {
                identify(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (name, member) in members {
                delimit(name, out);
                identify(member, out);
            }
            out.push('}');
        }
        Value::Integer(_) | Value::WideInteger(_) | Value::Double(_) => {
            out.push('#');
            delimit(&value.as_number().map_or_else(String::new, |number| digits(&number)), out);
        }
    }
}

fn delimit(text: &str, out: &mut String) {
    out.push_str(&text.len().to_string());
    out.push(':');
    out.push_str(text);
}
