//! Text to values: one pass, no partial value.

use super::{Integers, JsonFault, MAX_SAFE_INTEGER, MAX_WIDE_DIGITS, Object, Value};

/// How many levels below the root a value may be. The root is level 0.
pub const MAX_DEPTH: usize = 32;

/// Parses one strict JSON value of any kind.
///
/// Time and memory are linear in `text`; the call stack is bounded by [`MAX_DEPTH`].
///
/// # Errors
///
/// The first fault found; never a partial value.
pub fn parse(text: &[u8], max_bytes: usize, integers: Integers) -> Result<Value, JsonFault> {
    if text.len() > max_bytes {
        return Err(JsonFault::TooLarge);
    }
    let text = str::from_utf8(text).map_err(|_| JsonFault::Syntax)?;
    let mut parser = Parser { text, at: 0, integers };
    parser.skip_space();
    let value = parser.value(0)?;
    parser.skip_space();
    if parser.at < text.len() { Err(JsonFault::Syntax) } else { Ok(value) }
}

/// Parses one strict JSON object.
///
/// # Errors
///
/// As [`parse`]; [`JsonFault::NotAnObject`] for any other value.
pub fn parse_object(
    text: &[u8],
    max_bytes: usize,
    integers: Integers,
) -> Result<Object, JsonFault> {
    match parse(text, max_bytes, integers)? {
        Value::Object(object) => Ok(object),
        _ => Err(JsonFault::NotAnObject),
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Always at a character boundary.
    at: usize,
    integers: Integers,
}

impl Parser<'_> {
    fn value(&mut self, depth: usize) -> Result<Value, JsonFault> {
        match self.peek() {
            // Before anything is read: a thousand brackets cost as much as 33.
            Some(b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n')
                if depth > MAX_DEPTH =>
            {
                Err(JsonFault::TooDeep)
            }
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            _ => Err(JsonFault::Syntax),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, JsonFault> {
        self.at += 1;
        self.skip_space();
        let mut members = Vec::new();
        if !self.take(b'}') {
            loop {
                if self.peek() != Some(b'"') {
                    return Err(JsonFault::Syntax);
                }
                let name = self.string()?;
                self.skip_space();
                self.expect(b':')?;
                self.skip_space();
                members.push((name, self.value(depth + 1)?));
                self.skip_space();
                if self.take(b'}') {
                    break;
                }
                self.expect(b',')?;
                self.skip_space();
            }
        }
        Object::from_members(members).map(Value::Object)
    }

    fn array(&mut self, depth: usize) -> Result<Value, JsonFault> {
        self.at += 1;
        self.skip_space();
        let mut items = Vec::new();
        if !self.take(b']') {
            loop {
                items.push(self.value(depth + 1)?);
                self.skip_space();
                if self.take(b']') {
                    break;
                }
                self.expect(b',')?;
                self.skip_space();
            }
        }
        Ok(Value::Array(items))
    }

    /// A string, from its opening quotation mark to after its closing one.
    fn string(&mut self) -> Result<String, JsonFault> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let special = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
            let plain = rest.as_bytes().iter().position(special).ok_or(JsonFault::Syntax)?;
            out.push_str(&rest[..plain]);
            self.at += plain + 1;
            match rest.as_bytes()[plain] {
                b'"' => return Ok(out),
                b'\\' => out.push(self.escape()?),
                _ => return Err(JsonFault::Syntax),
            }
        }
    }

    /// An escape, from after its backslash.
    fn escape(&mut self) -> Result<char, JsonFault> {
        let escaped = match self.peek().ok_or(JsonFault::Syntax)? {
            byte @ (b'"' | b'\\' | b'/') => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return Err(JsonFault::Syntax),
        };
        self.at += 1;
        Ok(escaped)
    }

    /// `XXXX`, or `XXXX\uXXXX` for a surrogate pair.
    fn unicode_escape(&mut self) -> Result<char, JsonFault> {
        let first = self.four_hex_digits()?;
        if let Some(c) = char::from_u32(first) {
            return Ok(c);
        }
        if first >= 0xdc00 || !self.text[self.at..].starts_with("\\u") {
            return Err(JsonFault::LoneSurrogate);
        }
        self.at += 2;
        let second = self.four_hex_digits()?;
        if !(0xdc00..0xe000).contains(&second) {
            return Err(JsonFault::LoneSurrogate);
        }
        let scalar = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        char::from_u32(scalar).ok_or(JsonFault::LoneSurrogate)
    }

    fn four_hex_digits(&mut self) -> Result<u32, JsonFault> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).ok_or(JsonFault::Syntax)?;
        let mut value = 0;
        for digit in digits {
            value = value << 4 | char::from(*digit).to_digit(16).ok_or(JsonFault::Syntax)?;
        }
        self.at += 4;
        Ok(value)
    }

    fn number(&mut self) -> Result<Value, JsonFault> {
        let start = self.at;
        self.take(b'-');
        let first_digit = self.at;
        let integer_digits = self.digits()?;
        if integer_digits > 1 && self.text.as_bytes()[first_digit] == b'0' {
            return Err(JsonFault::Syntax);
        }
        let mut integer = true;
        if self.take(b'.') {
            integer = false;
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            integer = false;
            if !self.take(b'+') {
                self.take(b'-');
            }
            self.digits()?;
        }
        let literal = &self.text[start..self.at];
        if integer {
            return self.integer(literal, integer_digits);
        }
        // Correctly rounded, and linear: digits beyond 768 only break ties.
        let double: f64 = literal.parse().map_err(|_| JsonFault::Syntax)?;
        if double.is_finite() { Ok(Value::Double(double)) } else { Err(JsonFault::NonFinite) }
    }

    fn integer(&self, literal: &str, digits: usize) -> Result<Value, JsonFault> {
        // 16 digits fit an i64; more are out of the safe range at a glance.
        if digits <= 16 {
            let integer: i64 = literal.parse().map_err(|_| JsonFault::Syntax)?;
            if integer.abs() <= MAX_SAFE_INTEGER {
                return Ok(Value::Integer(integer));
            }
        }
        match self.integers {
            Integers::Wide if digits <= MAX_WIDE_DIGITS => Ok(Value::WideInteger(literal.into())),
            _ => Err(JsonFault::IntegerOutOfRange),
        }
    }

    /// At least one digit. How many there were.
    fn digits(&mut self) -> Result<usize, JsonFault> {
        let rest = &self.text.as_bytes()[self.at..];
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { Err(JsonFault::Syntax) } else { Ok(count) }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, JsonFault> {
        if !self.text[self.at..].starts_with(word) {
            return Err(JsonFault::Syntax);
        }
        self.at += word.len();
        Ok(value)
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonFault> {
        if self.take(byte) { Ok(()) } else { Err(JsonFault::Syntax) }
    }
}
