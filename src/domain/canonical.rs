//! C(v): the canonical bytes that are hashed and signed (semantics, section 3).
//!
//! Every part carries its length, so no two values share their bytes and no
//! value's bytes begin another's.

use super::json::Value;

/// C(v). Linear in the length of the result.
#[must_use]
pub fn canonical(value: &Value) -> Vec<u8> {
    let mut out = Backward::default();
    out.value(value);
    out.bytes.reverse();
    out.bytes
}

/// The bytes from last to first.
///
/// A length stands before what it measures. Written backwards it is known when
/// it is due, and no level of nesting is copied into the next.
#[derive(Default)]
struct Backward {
    bytes: Vec<u8>,
}

impl Backward {
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.put("n"),
            Value::Bool(false) => self.put("b0"),
            Value::Bool(true) => self.put("b1"),
            Value::Integer(integer) => {
                self.put(";");
                self.digits(integer.unsigned_abs());
                self.put(if *integer < 0 { "i-" } else { "i" });
            }
            Value::WideInteger(digits) => {
                self.put(";");
                self.put(digits);
                self.put("i");
            }
            Value::Double(double) => self.put(&format!("f{};", hexadecimal(*double))),
            Value::String(text) => {
                self.framed(|out| out.put(text));
                self.put("s");
            }
            Value::Array(items) => {
                self.framed(|out| {
                    for item in items.iter().rev() {
                        out.framed(|out| out.value(item));
                    }
                });
                self.put("l");
            }
            Value::Object(object) => {
                self.framed(|out| {
                    for (name, member) in object.iter().rev() {
                        out.framed(|out| out.value(member));
                        out.put("v");
                        out.framed(|out| out.put(name));
                        out.put("k");
                    }
                });
                self.put("m");
            }
        }
    }

    /// F(b), for the bytes that `write` puts.
    fn framed(&mut self, write: impl FnOnce(&mut Self)) {
        let end = self.bytes.len();
        write(self);
        let length = self.bytes.len() - end;
        self.put(":");
        self.digits(length as u64);
    }

    /// Decimal digits, the last first as they come.
    fn digits(&mut self, mut number: u64) {
        loop {
            self.bytes.push(b'0' + (number % 10).to_le_bytes()[0]);
            number /= 10;
            if number == 0 {
                return;
            }
        }
    }

    fn put(&mut self, text: &str) {
        self.bytes.extend(text.bytes().rev());
    }
}

/// A finite double with 13 hexadecimal digits of mantissa and a signed decimal exponent.
fn hexadecimal(double: f64) -> String {
    const MANTISSA_BITS: u32 = 52;
    let bits = double.to_bits();
    let sign = if double.is_sign_negative() { "-" } else { "" };
    let mantissa = bits & ((1 << MANTISSA_BITS) - 1);
    let biased = bits >> MANTISSA_BITS & 0x7ff;
    match (biased, mantissa) {
        (0, 0) => format!("{sign}0x0.0p+0"),
        (0, _) => format!("{sign}0x0.{mantissa:013x}p-1022"),
        _ => {
            let exponent = i64::try_from(biased).unwrap_or(0) - 1023;
            format!("{sign}0x1.{mantissa:013x}p{exponent:+}")
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

    use super::*;
    use crate::domain::json::{Integers, object, parse};

    fn of(text: &str) -> String {
        let value = parse(text.as_bytes(), 1 << 20, Integers::Wide).unwrap();
        String::from_utf8(canonical(&value)).unwrap()
    }

    #[test]
    fn every_kind_has_its_own_bytes() {
        assert_eq!(of("null"), "n");
        assert_eq!(of("false"), "b0");
        assert_eq!(of("true"), "b1");
        assert_eq!(of("-12"), "i-12;");
        assert_eq!(of("-0"), "i0;");
        assert_eq!(of("\"é\""), "s2:é");
        assert_eq!(of("[1,[]]"), "l10:3:i1;3:l0:");
        assert_eq!(of(r#"{"b":null,"a":[]}"#), "m18:k1:av3:l0:k1:bv1:n");
    }

    #[test]
    fn wide_integers_keep_every_digit() {
        let digits = "1234567890".repeat(4);
        assert_eq!(of(&digits), format!("i{digits};"));
        assert_eq!(of(&format!("-{digits}")), format!("i-{digits};"));
    }

    #[test]
    fn doubles_are_hexadecimal_and_exact() {
        for (double, wanted) in [
            (0.0, "0x0.0p+0"),
            (-0.0, "-0x0.0p+0"),
            (1.0, "0x1.0000000000000p+0"),
            (-1.5, "-0x1.8000000000000p+0"),
            (0.1, "0x1.999999999999ap-4"),
            (f64::MAX, "0x1.fffffffffffffp+1023"),
            (f64::MIN_POSITIVE, "0x1.0000000000000p-1022"),
            (5e-324, "0x0.0000000000001p-1022"),
            (-2.225_073_858_507_201e-308, "-0x0.fffffffffffffp-1022"),
        ] {
            assert_eq!(hexadecimal(double), wanted);
        }
    }

    #[test]
    fn the_order_of_members_is_that_of_their_bytes() {
        let names = ["\u{10000}", "\u{ffff}", "a\0", "a", "Z"];
        let value = object(names.map(|name| (name, Value::Null)));
        let wanted = "m46:k1:Zv1:nk1:av1:nk2:a\0v1:nk3:\u{ffff}v1:nk4:\u{10000}v1:n";
        assert_eq!(String::from_utf8(canonical(&value)).unwrap(), wanted);
    }
}
