//! Reads canonical bytes back: if it can, they are unambiguous.

use std::collections::BTreeMap;

use toolgate::domain::json::Value;

/// The value of these bytes, if they are canonical bytes and nothing else.
pub(super) fn decode(bytes: &[u8]) -> Option<Value> {
    let (value, rest) = first_value(bytes)?;
    rest.is_empty().then_some(value)
}

/// One value from the front, found by its own lengths alone, and what follows it.
fn first_value(bytes: &[u8]) -> Option<(Value, &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    match kind {
        b'n' => Some((Value::Null, rest)),
        b'b' => {
            let (flag, rest) = rest.split_first()?;
            let flag = [b'0', b'1'].iter().position(|known| known == flag)?;
            Some((Value::Bool(flag == 1), rest))
        }
        b'i' => {
            let (digits, rest) = until(rest, b';')?;
            Some((integer(digits)?, rest))
        }
        b'f' => {
            let (text, rest) = until(rest, b';')?;
            Some((Value::Double(double(text)?), rest))
        }
        b's' => {
            let (text, rest) = framed(rest)?;
            Some((Value::String(str::from_utf8(text).ok()?.to_owned()), rest))
        }
        b'l' => {
            let (mut inside, rest) = framed(rest)?;
            let mut items = Vec::new();
            while !inside.is_empty() {
                let (item, next) = framed(inside)?;
                items.push(decode(item)?);
                inside = next;
            }
            Some((Value::Array(items), rest))
        }
        b'm' => {
            let (inside, rest) = framed(rest)?;
            Some((members(inside)?, rest))
        }
        _ => None,
    }
}

fn members(mut inside: &[u8]) -> Option<Value> {
    let mut members = BTreeMap::new();
    while !inside.is_empty() {
        let (name, next) = framed(inside.strip_prefix(b"k")?)?;
        let (member, next) = framed(next.strip_prefix(b"v")?)?;
        let name = str::from_utf8(name).ok()?.to_owned();
        if members.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return None;
        }
        members.insert(name, decode(member)?);
        inside = next;
    }
    Some(Value::Object(members.into()))
}

fn integer(digits: &str) -> Option<Value> {
    const SAFE: i128 = (1 << 53) - 1;
    match digits.parse::<i128>() {
        Ok(integer) if integer.abs() <= SAFE => Some(Value::Integer(integer.try_into().ok()?)),
        _ => Some(Value::WideInteger(digits.into())),
    }
}

/// F(b): the bytes, and what follows.
fn framed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = until(bytes, b':')?;
    if length.len() > 1 && length.starts_with('0') {
        return None;
    }
    rest.split_at_checked(length.parse().ok()?)
}

fn until(bytes: &[u8], end: u8) -> Option<(&str, &[u8])> {
    let at = bytes.iter().position(|byte| *byte == end)?;
    Some((str::from_utf8(&bytes[..at]).ok()?, &bytes[at + 1..]))
}

/// A hexadecimal float, by arithmetic: every step is exact.
fn double(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let sign = if unsigned.len() < text.len() { -1.0 } else { 1.0 };
    let (mantissa, exponent) = unsigned.strip_prefix("0x")?.split_once('p')?;
    let (whole, fraction) = mantissa.split_once('.')?;
    if (whole, fraction, exponent) == ("0", "0", "+0") {
        return Some(0.0 * sign);
    }
    let digits = u64::from_str_radix(&format!("{whole}{fraction}"), 16).ok()?;
    let exponent: i32 = exponent.parse().ok()?;
    if fraction.len() != 13 || digits >= 1 << 53 {
        return None;
    }
    #[allow(clippy::cast_precision_loss, reason = "less than 2^53")]
    let mut double = digits as f64;
    // By ones: a power of two alone could leave the range of doubles.
    for _ in 0..(exponent - 52).unsigned_abs() {
        double = if exponent >= 52 { double * 2.0 } else { double / 2.0 };
    }
    Some(double * sign)
}

#[test]
fn no_value_begins_another() {
    for (a, b) in [("i1;", "i1;n"), ("s1:n", "s1:nn"), ("l0:", "l0:3:")] {
        assert!(decode(a.as_bytes()).is_some());
        assert!(decode(b.as_bytes()).is_none());
    }
    for forged in ["l01:n", "m0", "s2:n", "f1;", "b2", "m16:k1:bv1:nk1:av1:n", "l2:1:", ""] {
        assert!(decode(forged.as_bytes()).is_none(), "{forged}");
    }
}
