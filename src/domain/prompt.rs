//! What a person reads before confirming, made from the arguments alone.
//!
//! A prompt is plain text with placeholders `{/pointer}`; braces mean nothing
//! else, and nothing in a value is ever read as a placeholder. Two different
//! sets of shown values never give the same text: a value is JSON that says where
//! it ends, an absent one is `(none)` without quotation marks, and a number is
//! never followed by what could be more of it.

mod show;

#[cfg(test)]
mod tests;

use std::fmt;

use super::json::Value;
use super::schema::tokens;

use show::Isolation;

pub use show::show;

/// What stands for a value that is not there.
const ABSENT: &str = "(none)";

/// A prompt, parsed once when its contract is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    text: String,
    parts: Vec<Part>,
    isolation: Isolation,
}

/// Why a text is no prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptFault {
    /// A closing brace closes nothing.
    NotOpened,
    /// An opening brace is not closed before the next.
    NotClosed,
    /// Braces hold something else than a JSON Pointer to a part of the arguments.
    NoPointer,
    /// What follows a placeholder could be read as more digits of its value.
    RunsTogether,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Placeholder { pointer: String, tokens: Vec<String> },
}

impl Prompt {
    /// Reads a prompt.
    ///
    /// # Errors
    ///
    /// See [`PromptFault`].
    pub fn parse(text: &str) -> Result<Self, PromptFault> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find(['{', '}']) {
            let inside = rest[start..].strip_prefix('{').ok_or(PromptFault::NotOpened)?;
            let end = inside.find(['{', '}']).filter(|end| inside[*end..].starts_with('}'));
            let pointer = &inside[..end.ok_or(PromptFault::NotClosed)?];
            if !is_pointer(pointer) {
                return Err(PromptFault::NoPointer);
            }
            if start > 0 {
                parts.push(Part::Text(rest[..start].to_owned()));
            }
            rest = &inside[pointer.len() + 1..];
            if continues_a_number(rest) {
                return Err(PromptFault::RunsTogether);
            }
            let tokens = tokens(pointer).collect();
            parts.push(Part::Placeholder { pointer: pointer.to_owned(), tokens });
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self { text: text.to_owned(), parts, isolation: Isolation::within(text) })
    }

    /// The text as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The pointers of the placeholders, in their order.
    pub fn pointers(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Placeholder { pointer, .. } => Some(pointer.as_str()),
            Part::Text(_) => None,
        })
    }

    /// The text for these arguments, as they were validated and will be sent.
    ///
    /// Nothing is shortened. Time and memory are linear in the values shown: a
    /// byte of a value gives at most six, and a string eight more.
    #[must_use]
    pub fn render(&self, arguments: &Value) -> String {
        let mut out = String::with_capacity(self.text.len());
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Placeholder { tokens, .. } => match find(arguments, tokens) {
                    Some(value) => show::write(value, self.isolation, &mut out),
                    None => out.push_str(ABSENT),
                },
            }
        }
        out
    }
}

impl PromptFault {
    /// What is wrong.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::NotOpened => "a } without its {",
            Self::NotClosed => "a { without its }",
            Self::NoPointer => "braces must hold a JSON Pointer such as {/name}",
            Self::RunsTogether => {
                "a number could run together with what follows its placeholder; \
                 put a space or a word between them"
            }
        }
    }
}

impl fmt::Display for PromptFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for PromptFault {}

/// RFC 6901, without the pointer to everything.
fn is_pointer(text: &str) -> bool {
    text.starts_with('/')
        && text.split('~').skip(1).all(|rest| rest.starts_with('0') || rest.starts_with('1'))
}

/// Whether a number before this text could be longer for it.
///
/// `{/a}{/b}` would show 1 and 23 as it shows 12 and 3; `{/a}.{/b}` and `{/a}0`
/// are alike. A full stop that ends a sentence is none of a number.
fn continues_a_number(rest: &str) -> bool {
    let begins_number = |rest: &str| rest.starts_with(|c: char| c == '{' || c.is_ascii_digit());
    if let Some(rest) = rest.strip_prefix('.') {
        return begins_number(rest);
    }
    if let Some(rest) = rest.strip_prefix(['e', 'E']) {
        return begins_number(rest.strip_prefix(['+', '-']).unwrap_or(rest));
    }
    begins_number(rest)
}

/// The value at a pointer (RFC 6901).
fn find<'a>(arguments: &'a Value, tokens: &[String]) -> Option<&'a Value> {
    tokens.iter().try_fold(arguments, |value, token| match value {
        Value::Object(object) => object.get(token),
        Value::Array(items) => items.get(index(token)?),
        _ => None,
    })
}

/// An index of an array: decimal digits without a leading zero.
fn index(token: &str) -> Option<usize> {
    let is_plain = token == "0" || !token.starts_with(['0', '+']);
    is_plain.then(|| token.parse().ok())?
}
