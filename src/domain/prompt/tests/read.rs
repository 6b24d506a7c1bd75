//! Prompts back to arguments: what a careful reader does who knows the prompt.

use std::collections::BTreeMap;

use crate::domain::json::{Integers, Object, Value, parse};

/// The arguments that a prompt with placeholders of top-level properties was rendered from.
pub(super) fn arguments(prompt: &str, shown: &str) -> Option<Value> {
    let mut members = BTreeMap::new();
    let mut rest = shown;
    let mut pieces = prompt.split('{');
    rest = rest.strip_prefix(pieces.next()?)?;
    for piece in pieces {
        let (pointer, literal) = piece.split_once('}')?;
        if let Some(after) = rest.strip_prefix("(none)") {
            rest = after;
        } else {
            members.insert(pointer[1..].to_owned(), value(&mut rest)?);
        }
        rest = rest.strip_prefix(literal)?;
    }
    rest.is_empty().then(|| Object::from(members).into())
}

fn value(rest: &mut &str) -> Option<Value> {
    match rest.chars().next()? {
        '"' => text(rest).map(Value::String),
        '[' => {
            let mut items = Vec::new();
            list(rest, ('[', ']'), |rest| {
                items.push(value(rest)?);
                Some(())
            })?;
            Some(Value::Array(items))
        }
        '{' => {
            let mut members = BTreeMap::new();
            list(rest, ('{', '}'), |rest| {
                let name = text(rest)?;
                take(rest, ':')?;
                members.insert(name, value(rest)?);
                Some(())
            })?;
            Some(Object::from(members).into())
        }
        _ => scalar(rest),
    }
}

/// A word, or the longest number.
fn scalar(rest: &mut &str) -> Option<Value> {
    let lengths = (1..=rest.len().min(400)).rev().filter(|end| rest.is_char_boundary(*end));
    for length in lengths {
        let (token, after) = rest.split_at(length);
        let is_token =
            token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        if is_token && let Ok(value) = parse(token.as_bytes(), 400, Integers::Safe) {
            *rest = after;
            return Some(value);
        }
    }
    None
}

fn list(
    rest: &mut &str,
    (open, close): (char, char),
    mut item: impl FnMut(&mut &str) -> Option<()>,
) -> Option<()> {
    take(rest, open)?;
    if take(rest, close).is_some() {
        return Some(());
    }
    loop {
        item(rest)?;
        if take(rest, close).is_some() {
            return Some(());
        }
        take(rest, ',')?;
    }
}

fn text(rest: &mut &str) -> Option<String> {
    take(rest, '"')?;
    let mut text = String::new();
    loop {
        let c = rest.chars().next()?;
        *rest = &rest[c.len_utf8()..];
        match c {
            // The gate's own: from a value they come escaped.
            '\u{2068}' | '\u{2069}' => {}
            '"' => return Some(text),
            '\\' if rest.starts_with('u') => {
                let (digits, after) = rest.strip_prefix("u{")?.split_once('}')?;
                text.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
                *rest = after;
            }
            '\\' => {
                let c = rest.chars().next()?;
                text.push(c);
                *rest = &rest[c.len_utf8()..];
            }
            c => text.push(c),
        }
    }
}

fn take(rest: &mut &str, c: char) -> Option<()> {
    *rest = rest.strip_prefix(c)?;
    Some(())
}
