//! The last bound on whatever a log record is about to hold.
//!
//! It stands behind the allowlist of fields and should find nothing. Pure
//! functions over text and JSON values, in time linear in their input.

use std::borrow::Cow;
use std::fmt::Write;

use serde_json::Value;

/// Values more than this many levels below a record's fields are cut.
pub const MAX_DEPTH: usize = 8;
/// Values that one field may hold, itself included.
pub const MAX_ITEMS: usize = 256;
/// Characters of one text.
pub const MAX_CHARS: usize = 2_048;

const REDACTED: &str = "[REDACTED]";
const TRUNCATED: &str = "[TRUNCATED]";

/// A name that contains one of these, whatever its case, has a value that is not shown.
const SECRET_NAMES: [&str; 6] = ["authorization", "password", "secret", "token", "phone", "mobile"];

/// Appends the value of the field `name` to `out` as JSON: bounded, redacted, on one line.
pub fn write_field(out: &mut String, name: &str, value: &Value) {
    if is_secret_name(name) {
        write_string(out, REDACTED);
    } else {
        write_value(out, value, MAX_DEPTH, &mut { MAX_ITEMS });
    }
}

/// The text with credentials removed, of at most [`MAX_CHARS`] characters and a mark where it was cut.
#[must_use]
pub fn text(text: &str) -> Cow<'_, str> {
    // Redacted before it is cut: a cut must not hide the end that gives a credential away.
    let text = each(Cow::Borrowed(text), without_userinfo);
    let text = each(text, without_bearer);
    cut(each(text, without_named))
}

/// Appends a JSON string that stays on one line of any terminal: control characters, line and
/// paragraph separators and bidirectional controls are escaped.
pub fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if moves_the_cursor(c) => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Control characters, separators and the invisible characters that reorder or hide text.
/// All of them are in the basic plane: one escape each.
fn moves_the_cursor(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn write_value(out: &mut String, value: &Value, depth: usize, items: &mut usize) {
    *items -= 1;
    match value {
        Value::String(string) => write_string(out, &text(string)),
        Value::Array(_) | Value::Object(_) if depth == 0 => write_string(out, TRUNCATED),
        Value::Array(values) => {
            write_members(out, ['[', ']'], values, items, |out, value, items| {
                write_value(out, value, depth - 1, items);
            });
        }
        Value::Object(members) => {
            write_members(out, ['{', '}'], members, items, |out, (name, value), items| {
                write_string(out, &text(name));
                out.push(':');
                if is_secret_name(name) {
                    *items -= 1;
                    write_string(out, REDACTED);
                } else {
                    write_value(out, value, depth - 1, items);
                }
            });
        }
        scalar => {
            let _ = write!(out, "{scalar}");
        }
    }
}

/// Writes members until none is left or the items are used up; what is left out is not marked
/// but by being absent, since a mark would have to be an item itself.
fn write_members<T>(
    out: &mut String,
    [open, close]: [char; 2],
    members: impl IntoIterator<Item = T>,
    items: &mut usize,
    mut write: impl FnMut(&mut String, T, &mut usize),
) {
    out.push(open);
    for (index, member) in members.into_iter().enumerate() {
        if *items == 0 {
            break;
        }
        if index > 0 {
            out.push(',');
        }
        write(out, member, items);
    }
    out.push(close);
}

fn each(text: Cow<'_, str>, pass: impl Fn(&str) -> Option<String>) -> Cow<'_, str> {
    match pass(&text) {
        Some(changed) => Cow::Owned(changed),
        None => text,
    }
}

fn cut(text: Cow<'_, str>) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => {
            let kept = MAX_CHARS - TRUNCATED.len();
            let kept = text[..end].char_indices().nth(kept).map_or(end, |(at, _)| at);
            Cow::Owned(format!("{}{TRUNCATED}", &text[..kept]))
        }
        None => text,
    }
}

/// `scheme://user:pass@host` without what stands before the `@`. The last `@` of the word counts:
/// passwords hold `/` and `@` against the rules. `None` if nothing was found.
fn without_userinfo(text: &str) -> Option<String> {
    let mut redaction = Redaction::of(text);
    let mut at = 0;
    while let Some(found) = text[at..].find("://") {
        let start = at + found + "://".len();
        let end = text[start..].find(ends_word).map_or(text.len(), |end| start + end);
        if let Some(sign) = text[start..end].rfind('@') {
            redaction.hide(start, start + sign);
        }
        at = end;
    }
    redaction.finish()
}

/// `Bearer <credentials>` without the credentials.
fn without_bearer(text: &str) -> Option<String> {
    const SCHEME: &str = "bearer";
    let lower = text.to_ascii_lowercase();
    let mut redaction = Redaction::of(text);
    let mut at = 0;
    while let Some(found) = lower[at..].find(SCHEME) {
        at += found + SCHEME.len();
        let gap = text[at..].len()
            - text[at..]
                .trim_start_matches(|c: char| c.is_whitespace() || ":=\"'\\".contains(c))
                .len();
        if gap == 0 {
            continue;
        }
        let start = at + gap;
        let end = text[start..].find(ends_word).map_or(text.len(), |end| start + end);
        if end > start {
            redaction.hide(start, end);
            at = end;
        }
    }
    redaction.finish()
}

/// `name=value`, `name: value` and `"name":"value"` without the value, where the name is a secret's.
fn without_named(text: &str) -> Option<String> {
    let mut redaction = Redaction::of(text);
    let mut at = 0;
    while let Some(found) = text[at..].find(['=', ':']) {
        let separator = at + found;
        let name = name_before(&text[at..separator]);
        at = separator + 1;
        if is_secret_name(name) && !(is_place(name) && text[at..].starts_with(' ')) {
            let (start, end) = value_after(text, separator);
            redaction.hide(start, end);
            at = end.max(at);
        }
    }
    redaction.finish()
}

/// The last word, without the quotes around it.
fn name_before(text: &str) -> &str {
    let text = text.trim_end().trim_end_matches(['"', '\'', '\\', '`']);
    let start = text
        .char_indices()
        .rfind(|(_, c)| !(c.is_alphanumeric() || "_-./".contains(*c)))
        .map_or(0, |(at, c)| at + c.len_utf8());
    &text[start..]
}

/// Whether the name is a path or a JSON pointer: `keys/audit.secret: Permission denied` tells of
/// a file, not of a value.
fn is_place(name: &str) -> bool {
    name.contains('/')
}

/// Where the value after a separator starts and ends. A quoted one ends at its quote. Of the
/// others, one after `=` ends with its word, and one after `:`, which may hold blanks and lines,
/// with the text.
fn value_after(text: &str, separator: usize) -> (usize, usize) {
    let rest = &text[separator + 1..];
    let start = text.len() - rest.trim_start_matches(|c: char| c.is_whitespace() || c == '>').len();
    let value = &text[start..];
    let unescaped = value.trim_start_matches('\\');
    let escapes = value.len() - unescaped.len();
    let end = match unescaped.chars().next() {
        Some(quote @ ('"' | '\'' | '`')) => {
            let open = escapes + 1;
            return (start + open, start + quoted_end(value, open, quote, escapes));
        }
        _ if text.as_bytes()[separator] == b':' => value.len(),
        _ => word_end(value),
    };
    (start, start + end)
}

/// Where a quoted value ends: at the first quote that is escaped as its opening one was, or with
/// the text.
fn quoted_end(value: &str, open: usize, quote: char, escapes: usize) -> usize {
    let mut backslashes = 0;
    for (at, c) in value[open..].char_indices() {
        match c {
            '\\' => backslashes += 1,
            c if c == quote => {
                let closes =
                    if escapes == 0 { backslashes % 2 == 0 } else { backslashes <= escapes };
                if closes {
                    return open + at - backslashes.min(escapes);
                }
                backslashes = 0;
            }
            _ => backslashes = 0,
        }
    }
    value.len()
}

/// Where an unquoted word ends. Groups of digits that follow belong to it: telephone numbers are
/// written with blanks.
fn word_end(value: &str) -> usize {
    let mut end = value.find(ends_word).unwrap_or(value.len());
    loop {
        let rest = &value[end..];
        let word = rest.trim_start_matches(' ');
        let length = word.find(char::is_whitespace).unwrap_or(word.len());
        let is_group = length > 0
            && word[..length].chars().all(|c| c.is_ascii_digit() || "+-()./".contains(c));
        if !is_group || word.len() == rest.len() {
            return end;
        }
        end += rest.len() - word.len() + length;
    }
}

fn ends_word(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>')
}

fn is_secret_name(name: &str) -> bool {
    // Both ways: `ſ` and the Kelvin sign fold to ASCII letters by only one of them.
    let folded: String =
        name.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    SECRET_NAMES.iter().any(|secret| folded.contains(secret))
}

/// A text of which spans are hidden, in order.
struct Redaction<'a> {
    text: &'a str,
    out: String,
    copied: usize,
}

impl<'a> Redaction<'a> {
    fn of(text: &'a str) -> Self {
        Self { text, out: String::new(), copied: 0 }
    }

    fn hide(&mut self, start: usize, end: usize) {
        self.out.push_str(&self.text[self.copied..start]);
        self.out.push_str(REDACTED);
        self.copied = end;
    }

    /// The text without its hidden spans; `None` if nothing was hidden.
    fn finish(mut self) -> Option<String> {
        (!self.out.is_empty()).then(|| {
            self.out.push_str(&self.text[self.copied..]);
            self.out
        })
    }
}

#[cfg(test)]
mod tests;
