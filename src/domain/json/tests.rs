#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use super::*;

const MAX: usize = 1 << 20;

fn safe(text: &str) -> Result<Value, JsonFault> {
    parse(text.as_bytes(), MAX, Integers::Safe)
}

fn wide(text: &str) -> Result<Value, JsonFault> {
    parse(text.as_bytes(), MAX, Integers::Wide)
}

fn text(value: &str) -> Value {
    value.into()
}

#[test]
fn a_literal_without_fraction_or_exponent_is_an_integer() {
    assert_eq!(safe("0"), Ok(Value::Integer(0)));
    assert_eq!(safe("-0"), Ok(Value::Integer(0)));
    assert_eq!(safe("1e2"), Ok(Value::Double(100.0)));
    assert_eq!(safe("1.0"), Ok(Value::Double(1.0)));
    assert!(matches!(safe("-0.0"), Ok(Value::Double(zero)) if zero.is_sign_negative()));
    assert_eq!(safe("1e-999"), Ok(Value::Double(0.0)));
    assert_eq!(safe("1E400"), Err(JsonFault::NonFinite));
    assert_eq!(safe("-1e999"), Err(JsonFault::NonFinite));
}

#[test]
fn integers_have_a_range() {
    assert_eq!(safe("9007199254740991"), Ok(Value::Integer(MAX_SAFE_INTEGER)));
    assert_eq!(safe("-9007199254740991"), Ok(Value::Integer(-MAX_SAFE_INTEGER)));
    for text in ["9007199254740992", "-9007199254740992", "10000000000000000"] {
        assert_eq!(safe(text), Err(JsonFault::IntegerOutOfRange));
        assert_eq!(wide(text), Ok(Value::WideInteger(text.into())));
    }
    let forty = format!("-{}", "9".repeat(40));
    assert_eq!(wide(&forty), Ok(Value::WideInteger(forty.as_str().into())));
    assert_eq!(wide(&format!("{forty}9")), Err(JsonFault::IntegerOutOfRange));
    assert_eq!(wide("7"), Ok(Value::Integer(7)));
}

#[test]
fn names_are_unique_as_they_read_not_as_they_are_written() {
    for text in [r#"{"a":1,"a":1}"#, r#"[{"a":1,"\u0061":2}]"#, r#"{"é":1,"b":0,"\u00e9":2}"#] {
        assert_eq!(safe(text), Err(JsonFault::DuplicateKey));
    }
    // NFC and NFD are different names.
    assert!(safe("{\"\u{e9}\":1,\"e\u{301}\":2}").is_ok());
}

#[test]
fn surrogates_come_in_pairs() {
    assert_eq!(safe(r#""\ud83d\ude42""#), Ok(text("\u{1f642}")));
    assert_eq!(safe(r#""\uDBFF\uDFFF""#), Ok(text("\u{10ffff}")));
    for lone in
        [r#""\ud800""#, r#""\udc00\ud800""#, r#""\ud800x""#, r#""\ud800\n""#, r#""\ud800\u0041""#]
    {
        assert_eq!(safe(lone), Err(JsonFault::LoneSurrogate), "{lone}");
    }
}

#[test]
fn the_root_is_level_0_and_level_32_the_last() {
    let nested =
        |levels: usize, inner: &str| format!("{}{inner}{}", "[".repeat(levels), "]".repeat(levels));
    assert!(safe(&nested(32, "1")).is_ok());
    assert!(safe(&nested(33, "")).is_ok());
    assert_eq!(safe(&nested(33, "1")), Err(JsonFault::TooDeep));
    assert_eq!(safe(&nested(34, "")), Err(JsonFault::TooDeep));
    assert_eq!(safe(&"[".repeat(100_000)), Err(JsonFault::TooDeep));
    assert_eq!(safe(&"{\"a\":".repeat(100_000)), Err(JsonFault::TooDeep));
}

#[test]
fn the_limit_of_bytes_is_inclusive_and_comes_first() {
    assert!(parse(b"[1]", 3, Integers::Safe).is_ok());
    assert_eq!(parse(b"[1]", 2, Integers::Safe), Err(JsonFault::TooLarge));
    assert_eq!(parse(b"\xff\xff\xff", 2, Integers::Safe), Err(JsonFault::TooLarge));
}

#[test]
fn only_an_object_is_an_object() {
    for text in ["[1,2]", "\"text\"", "7", "null"] {
        assert_eq!(parse_object(text.as_bytes(), MAX, Integers::Safe), Err(JsonFault::NotAnObject));
    }
    assert_eq!(parse_object(b"[1,2", MAX, Integers::Safe), Err(JsonFault::Syntax));
    assert_eq!(parse_object(b" {} ", MAX, Integers::Safe), Ok(Object::default()));
}

#[test]
fn whatever_is_not_rfc_8259_is_refused() {
    for text in [
        "",
        " ",
        "{",
        "[1",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\"}",
        "{a:1}",
        "{'a':1}",
        "[1]x",
        "[1][2]",
        "nul",
        "True",
        "NaN",
        "-Infinity",
        "01",
        "-01",
        "+1",
        ".5",
        "1.",
        "1.e2",
        "1e",
        "1e+",
        "-",
        "--1",
        "0x10",
        "1_000",
        "\"\t\"",
        "\"\0\"",
        "\"\u{1f}\"",
        "\"\\x41\"",
        "\"\\u12\"",
        "\"\\u+123\"",
        "\"\\",
        "\"\\u00e\"",
        "\u{feff}{}",
        "{}\u{feff}",
        "{}//c",
        "/**/{}",
        "[1]\0",
        "\u{a0}1",
        "\u{c}1",
        "[1\u{2028}]",
    ] {
        assert_eq!(safe(text), Err(JsonFault::Syntax), "{text:?}");
    }
    assert_eq!(parse(b"\"\xff\"", MAX, Integers::Safe), Err(JsonFault::Syntax));
    assert_eq!(parse(b"\"\xed\xa0\x80\"", MAX, Integers::Safe), Err(JsonFault::Syntax));
    assert_eq!(parse(b"\"\xc0\xaf\"", MAX, Integers::Safe), Err(JsonFault::Syntax));
}

#[test]
fn members_are_found_and_come_in_the_order_of_their_bytes() {
    let value =
        safe(r#"{"b":1,"":2,"a\u0000":3,"a":4,"Z":5,"\uffff":6,"\ud800\udc00":7}"#).unwrap();
    let object = value.as_object().unwrap();
    let names: Vec<_> = object.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["", "Z", "a", "a\0", "b", "\u{ffff}", "\u{10000}"]);
    for name in names {
        assert!(object.contains(name));
    }
    assert_eq!(value.get("a"), Some(&Value::Integer(4)));
    assert_eq!(value.get("c"), None);
    assert_eq!(object.len(), 7);
}

#[test]
fn long_names_that_begin_alike_are_sorted_and_compared_to_their_ends() {
    let lengths = [0, 1, 6, 7, 8, 13, 14, 15, 21, 700];
    let mut names: Vec<String> = Vec::new();
    for length in lengths {
        for end in ["", "\0", "a", "b", "\u{10000}"] {
            names.push(format!("{}{end}", "p".repeat(length)));
        }
    }
    names.sort_unstable();
    names.dedup();
    let members = |names: &[String]| -> Vec<_> {
        // An order that is not sorted, and not nearly so.
        let count = names.len();
        (0..count).map(|index| (names[index * 7 % count].clone(), Value::Null)).collect()
    };
    assert!(!names.len().is_multiple_of(7), "7 reaches every index");
    let object = Object::from_members(members(&names)).unwrap();
    let sorted: Vec<_> = object.iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(sorted, names);
    for twice in &names {
        let mut members = members(&names);
        members.push((twice.clone(), Value::Null));
        assert_eq!(Object::from_members(members), Err(JsonFault::DuplicateKey));
    }
}

#[test]
fn normalising_trims_values_and_makes_integral_doubles_integers() {
    let normal = |text: &str, trim| to_json(&normalise(wide(text).unwrap(), trim));
    assert_eq!(normal("\"\u{a0}\u{3000}x y\u{2028}\\t\"", true), "\"x y\"");
    assert_eq!(normal("\" x \"", false), "\" x \"");
    assert_eq!(normal("\" \"", true), "\"\"");
    // U+200B, U+FEFF and U+001F are not White_Space.
    assert_eq!(normal("\"\u{200b}\u{feff}\"", true), "\"\u{200b}\u{feff}\"");
    assert_eq!(normal("\"\\u001fx\"", true), "\"\\u001fx\"");
    assert_eq!(normal(r#"{" a ":[" b ",{"c":" d "}]}"#, true), r#"{" a ":["b",{"c":"d"}]}"#);
    assert_eq!(
        normal("[1.0,-0.0,1e2,0.5,9007199254740991.0]", true),
        "[1,0,100,0.5,9007199254740991]"
    );
    assert_eq!(
        normal("[9007199254740992.0,-9007199254740992.0]", true),
        "[9007199254740992.0,-9007199254740992.0]"
    );
    assert_eq!(normal("[1e300,5e-324]", false), "[1e300,5e-324]");
    assert_eq!(normal("12345678901234567890", true), "12345678901234567890");
}

#[test]
fn text_is_compact_with_the_fewest_escapes() {
    let written = |text: &str| to_json(&wide(text).unwrap());
    assert_eq!(written(r#" { "b" : [ 1 , 1.0 ] , "a" : null } "#), r#"{"a":null,"b":[1,1.0]}"#);
    assert_eq!(
        written(r#""\u0022\\\/\b\f\n\r\t\u0000\u001F\u007f\u00e9""#),
        "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\u{7f}é\""
    );
    assert_eq!(
        written("[-0.0,1e21,1e300,1e-7,5e-324,true,false]"),
        "[-0.0,1e21,1e300,1e-7,5e-324,true,false]"
    );
    assert_eq!(written("[{},[]]"), "[{},[]]");
}

#[test]
fn names_of_faults_are_distinct_and_read_back() {
    for fault in JsonFault::ALL {
        assert_eq!(JsonFault::from_name(fault.as_str()), Some(fault));
        assert_eq!(fault.to_string(), fault.message());
    }
    assert_eq!(JsonFault::from_name("odd"), None);
}
