//! Values to text: compact, members in order, the inverse of parsing.

use std::fmt::Write as _;

use super::Value;

/// The text of a value.
#[must_use]
pub fn to_json(value: &Value) -> String {
    let mut out = String::new();
    write_json(value, &mut out);
    out
}

/// Appends the text of a value.
///
/// Compact, with the members in the order of their names, and no escape that
/// RFC 8259 does not demand. Parsing the text gives the same value again: a
/// double keeps a fraction or an exponent (`1.0`, `1e300`).
pub fn write_json(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Integer(integer) => write_display(integer, out),
        Value::WideInteger(digits) => out.push_str(digits),
        Value::Double(double) => write_display(&format_args!("{double:?}"), out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            write_list('[', items, ']', out, write_json);
        }
        Value::Object(object) => write_list('{', object, '}', out, |(name, value), out| {
            write_string(name, out);
            out.push(':');
            write_json(value, out);
        }),
    }
}

fn write_list<T>(
    open: char,
    items: impl IntoIterator<Item = T>,
    close: char,
    out: &mut String,
    write_item: impl Fn(T, &mut String),
) {
    out.push(open);
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_item(item, out);
    }
    out.push(close);
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut plain = 0;
    for (index, byte) in text.bytes().enumerate() {
        if byte >= b' ' && byte != b'"' && byte != b'\\' {
            continue;
        }
        // The byte is ASCII, so both ends are character boundaries.
        out.push_str(&text[plain..index]);
        plain = index + 1;
        write_escape(byte, out);
    }
    out.push_str(&text[plain..]);
    out.push('"');
}

fn write_escape(byte: u8, out: &mut String) {
    match byte {
        b'"' => out.push_str("\\\""),
        b'\\' => out.push_str("\\\\"),
        0x08 => out.push_str("\\b"),
        b'\t' => out.push_str("\\t"),
        b'\n' => out.push_str("\\n"),
        0x0c => out.push_str("\\f"),
        b'\r' => out.push_str("\\r"),
        control => write_display(&format_args!("\\u{control:04x}"), out),
    }
}

fn write_display(value: &impl std::fmt::Display, out: &mut String) {
    // Writing to a String does not fail.
    let _ = write!(out, "{value}");
}
