//! Strict JSON: parse, normalise, serialise (semantics, sections 2 and 3).
//!
//! A [`Value`] has one shape for one meaning: the members of an object are
//! sorted and unique, integers and doubles are different kinds, strings are
//! Unicode text as it came. Nothing here normalises Unicode.

mod object;
mod parse;
mod write;

use std::fmt;

pub use object::{Members, Object, object};
pub use parse::{MAX_DEPTH, parse, parse_object};
pub use write::{to_json, write_json};

/// The largest integer that every IEEE 754 peer holds exactly: 2^53 − 1.
pub const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// The most digits of a [`Value::WideInteger`].
pub const MAX_WIDE_DIGITS: usize = 40;

/// One JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer literal within ±(2^53−1).
    Integer(i64),
    /// An integer literal beyond that, of at most 40 digits: results only.
    WideInteger(Box<str>),
    /// Any other number. Always finite.
    Double(f64),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Value>),
    /// An object.
    Object(Object),
}

/// Why a text is not strict JSON (semantics, section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JsonFault {
    /// Not RFC 8259, trailing data, a byte-order mark, or not UTF-8.
    Syntax,
    /// A member name twice in one object.
    DuplicateKey,
    /// A surrogate escape without its pair.
    LoneSurrogate,
    /// A number whose double is not finite.
    NonFinite,
    /// An integer literal out of range.
    IntegerOutOfRange,
    /// More than 32 levels below the root.
    TooDeep,
    /// More bytes than the limit.
    TooLarge,
    /// The root is not an object.
    NotAnObject,
}

/// Which integers a text may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integers {
    /// ±(2^53−1): arguments.
    Safe,
    /// Up to 40 digits: results.
    Wide,
}

impl Value {
    /// The value of this member, if this is an object that has it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        self.as_object()?.get(name)
    }

    /// The object, if it is one.
    #[must_use]
    pub const fn as_object(&self) -> Option<&Object> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The items, if this is an array.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The text, if this is a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, if this is one within ±(2^53−1).
    #[must_use]
    pub const fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(integer) => Some(*integer),
            _ => None,
        }
    }

    /// The Boolean, if this is one.
    #[must_use]
    pub const fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// Whether this is `null`.
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}

/// The value as it is validated, hashed, shown and sent.
///
/// String values lose leading and trailing Unicode `White_Space` if
/// `trim_strings`; a double that is integral and within ±(2^53−1) becomes that
/// integer, because a JavaScript peer would make it one. Member names stay.
#[must_use]
pub fn normalise(value: Value, trim_strings: bool) -> Value {
    match value {
        Value::String(mut text) if trim_strings => {
            text.truncate(text.trim_end().len());
            text.drain(..text.len() - text.trim_start().len());
            Value::String(text)
        }
        Value::Double(double) => integral(double).map_or(Value::Double(double), Value::Integer),
        Value::Array(mut items) => {
            for item in &mut items {
                let taken = std::mem::replace(item, Value::Null);
                *item = normalise(taken, trim_strings);
            }
            Value::Array(items)
        }
        Value::Object(object) => {
            Value::Object(object.map_values(|value| normalise(value, trim_strings)))
        }
        unchanged => unchanged,
    }
}

#[allow(clippy::cast_possible_truncation, reason = "integral and within ±(2^53−1): exact")]
#[allow(clippy::cast_precision_loss, reason = "2^53−1 is a double")]
fn integral(double: f64) -> Option<i64> {
    let exact = double.fract() == 0.0 && double.abs() <= MAX_SAFE_INTEGER as f64;
    exact.then_some(double as i64)
}

impl JsonFault {
    /// Every fault.
    pub const ALL: [Self; 8] = [
        Self::Syntax,
        Self::DuplicateKey,
        Self::LoneSurrogate,
        Self::NonFinite,
        Self::IntegerOutOfRange,
        Self::TooDeep,
        Self::TooLarge,
        Self::NotAnObject,
    ];

    /// The stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Syntax => "syntax",
            Self::DuplicateKey => "duplicate_key",
            Self::LoneSurrogate => "lone_surrogate",
            Self::NonFinite => "non_finite",
            Self::IntegerOutOfRange => "integer_out_of_range",
            Self::TooDeep => "too_deep",
            Self::TooLarge => "too_large",
            Self::NotAnObject => "not_an_object",
        }
    }

    /// What the model may be told. Fixed text, never a value or a member name.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Syntax => "The text is not one JSON value in UTF-8 without a byte-order mark.",
            Self::DuplicateKey => "An object has two members of the same name.",
            Self::LoneSurrogate => "A string holds a surrogate escape without its pair.",
            Self::NonFinite => "A number is too large for a double.",
            Self::IntegerOutOfRange => {
                "An integer is too large to be exact everywhere. Send identifiers as strings."
            }
            Self::TooDeep => "The value is nested more than 32 levels deep.",
            Self::TooLarge => "The text has more bytes than this tool accepts.",
            Self::NotAnObject => "The value is not an object.",
        }
    }

    /// The fault of this stable name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.as_str() == name)
    }
}

impl fmt::Display for JsonFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for JsonFault {}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<u32> for Value {
    fn from(integer: u32) -> Self {
        Self::Integer(integer.into())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Self::Object(object)
    }
}

impl<T: Into<Self>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Self {
        Self::Array(items.into_iter().map(Into::into).collect())
    }
}

#[cfg(test)]
mod tests;
