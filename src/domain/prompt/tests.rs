#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod read;

use proptest::prelude::*;

use super::*;
use crate::domain::json::{Integers, Object, normalise, object, parse};

fn render(prompt: &str, arguments: &Value) -> String {
    Prompt::parse(prompt).unwrap().render(arguments)
}

fn json(text: &str) -> Value {
    normalise(parse(text.as_bytes(), 1 << 20, Integers::Safe).unwrap(), false)
}

#[test]
fn values_stand_where_their_placeholders_stood() {
    let arguments = json(
        r#"{"order":"A-1","amount":12.5,"count":3,"gift":true,"note":null,
            "to":{"city":"Köln","zip":"50667"},"items":["a",1,{"b":[]}],"a/b":"slash","m~n":"tilde"}"#,
    );
    for (prompt, expected) in [
        ("Refund {/order}?", r#"Refund "A-1"?"#),
        ("{/amount} EUR, {/count} times", "12.5 EUR, 3 times"),
        ("Gift: {/gift}, note: {/note}.", "Gift: true, note: null."),
        ("To {/to}", r#"To {"city":"Köln","zip":"50667"}"#),
        ("To {/to/city} {/to/street}", r#"To "Köln" (none)"#),
        ("Items {/items}", r#"Items ["a",1,{"b":[]}]"#),
        (
            "{/items/0} {/items/3} {/items/00} {/items/-} {/items/+1}",
            "\"a\" (none) (none) (none) (none)",
        ),
        ("{/order/x} {/count/0}", "(none) (none)"),
        ("{/a~1b} {/m~0n}", r#""slash" "tilde""#),
        ("{/order} and again {/order}", r#""A-1" and again "A-1""#),
        ("No values.", "No values."),
        ("", ""),
    ] {
        assert_eq!(render(prompt, &arguments), expected, "{prompt}");
    }
}

#[test]
fn what_is_no_prompt_is_refused() {
    use PromptFault::{NoPointer, NotClosed, NotOpened, RunsTogether};
    for (text, fault) in [
        ("a } b", NotOpened),
        ("}{", NotOpened),
        ("{/a}}", NotOpened),
        ("{", NotClosed),
        ("{/a", NotClosed),
        ("{/a {/b}", NotClosed),
        ("{{/a}}", NotClosed),
        ("{}", NoPointer),
        ("{a}", NoPointer),
        ("{/a~}", NoPointer),
        ("{/a~2b}", NoPointer),
        ("{/a}{/b}", RunsTogether),
        ("{/a}0", RunsTogether),
        ("{/a}.{/b}", RunsTogether),
        ("{/a}.50", RunsTogether),
        ("{/a}e{/b}", RunsTogether),
        ("{/a}E-{/b}", RunsTogether),
        ("{/a}e+7", RunsTogether),
    ] {
        assert_eq!(Prompt::parse(text), Err(fault), "{text}");
    }
    for text in ["{/a}.", "{/a}. {/b}", "{/a}-{/b}", "{/a}e", "{/a} 0", "{/a}euros", "{/a},{/b}"] {
        assert!(Prompt::parse(text).is_ok(), "{text}");
    }
}

#[test]
fn a_value_cannot_pass_for_anything_else() {
    let shown = |text: &str| show(&text.into());
    for (value, expected) in [
        // A closing quotation mark, and with it a made-up end of the prompt.
        (r#"10", to "mallory"#, r#""10\", to \"mallory""#),
        (r"back\", r#""back\\""#),
        (r#"\""#, r#""\\\"""#),
        (r"\u{202e}", r#""\\u{202e}""#),
        // What stands for an absent value, and a placeholder.
        ("(none)", r#""(none)""#),
        ("{/other}", r#""{/other}""#),
        ("null", r#""null""#),
        ("", r#""""#),
        // Lines and controls.
        ("a\nb\r\tc\0\u{7f}\u{9f}", r#""a\u{a}b\u{d}\u{9}c\u{0}\u{7f}\u{9f}""#),
        ("a\u{2028}b\u{2029}c", r#""a\u{2028}b\u{2029}c""#),
        ("\x1b[2J", r#""\u{1b}[2J""#),
        // Direction: marks, embeddings, overrides, isolates.
        ("\u{200e}\u{200f}\u{61c}", r#""\u{200e}\u{200f}\u{61c}""#),
        (
            "\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}",
            r#""\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}""#,
        ),
        ("\u{2066}\u{2067}\u{2068}\u{2069}", r#""\u{2066}\u{2067}\u{2068}\u{2069}""#),
        // Invisible: of no width, tags, selectors, fillers, blanks.
        (
            "a\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}\u{ad}",
            r#""a\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}\u{ad}""#,
        ),
        ("\u{e0041}\u{e0100}\u{fe0f}", r#""\u{e0041}\u{e0100}\u{fe0f}""#),
        (
            "\u{3164}\u{ffa0}\u{115f}\u{1160}\u{2800}",
            r#""\u{3164}\u{ffa0}\u{115f}\u{1160}\u{2800}""#,
        ),
        ("\u{34f}\u{17b4}\u{180b}", r#""\u{34f}\u{17b4}\u{180b}""#),
        // Private, unassigned, no characters.
        (
            "\u{e000}\u{f0000}\u{378}\u{fffe}\u{10ffff}",
            r#""\u{e000}\u{f0000}\u{378}\u{fffe}\u{10ffff}""#,
        ),
        // Spaces that look like others, or push what follows out of sight.
        ("a\u{a0}b\u{2003}c\u{202f}d", r#""a\u{a0}b\u{2003}c\u{202f}d""#),
        ("a   b", r#""a \u{20}\u{20}b""#),
        ("\u{3000}\u{3000} x", "\"\u{3000}\\u{3000}\\u{20}x\""),
        // Marks that would sit on the gate's own quotation mark or on an escape.
        ("\u{301}a", r#""\u{301}a""#),
        ("\"\u{338}", r#""\"\u{338}""#),
        (" \u{301}", r#"" \u{301}""#),
        ("\u{200b}\u{301}", r#""\u{200b}\u{301}""#),
        // Markup is text.
        ("<b>&amp;</b> **x** [y](z)", r#""<b>&amp;</b> **x** [y](z)""#),
    ] {
        assert_eq!(shown(value), expected, "{value:?}");
    }
}

#[test]
fn what_people_write_stays_as_they_wrote_it() {
    for text in
        ["退款\u{3000}“三百”元", "Grüße – l’été", "e\u{301}", "สวัสดี", "नमस्ते", "👍", "한국어", "€ 5"]
    {
        assert_eq!(show(&text.into()), format!("\"{text}\""));
    }
}

#[test]
fn a_right_to_left_value_turns_nothing_around_it() {
    let arguments = json(r#"{"from":"שלום","to":"مرحبا","list":["א",1,"b"],"digits":"١٢"}"#);
    assert_eq!(
        render("{/from} to {/to}: {/list} {/digits}", &arguments),
        "\"\u{2068}שלום\u{2069}\" to \"\u{2068}مرحبا\u{2069}\": [\"\u{2068}א\u{2069}\",1,\"b\"] \
         \"\u{2068}١٢\u{2069}\""
    );
    // Nor a left-to-right value where the prompt itself runs from right to left.
    let arguments = json(r#"{"a":"x","b":5}"#);
    assert_eq!(render("שלח {/a} {/b}", &arguments), "שלח \"\u{2068}x\u{2069}\" 5");
    // A value cannot end its isolation.
    assert_eq!(show(&"א\u{2069}ב".into()), "\"\u{2068}א\\u{2069}ב\u{2069}\"");
}

#[test]
fn a_pile_of_marks_ends() {
    let pile = format!("a{}", "\u{301}".repeat(10));
    let expected = format!("\"a{}{}\"", "\u{301}".repeat(8), r"\u{301}".repeat(2));
    assert_eq!(show(&pile.into()), expected);
}

#[test]
fn names_and_strings_within_are_shown_as_safely() {
    let value = json(r#"{"a\u202eb":["x\"y","\u200b"],"\"":{"\n":null}}"#);
    assert_eq!(show(&value), r#"{"\"":{"\u{a}":null},"a\u{202e}b":["x\"y","\u{200b}"]}"#);
}

#[test]
fn a_placeholder_in_a_value_stays_a_text() {
    let arguments = json(r#"{"a":"{/b}","b":"{/a}","{/a}":1}"#);
    assert_eq!(render("{/a} and {/b}", &arguments), r#""{/b}" and "{/a}""#);
}

#[test]
fn absent_null_and_the_text_of_either_are_told_apart() {
    let of = |text: &str| render("{/a}!", &json(text));
    let shown = ["{}", r#"{"a":null}"#, r#"{"a":"(none)"}"#, r#"{"a":"null"}"#].map(of);
    assert_eq!(shown, ["(none)!", "null!", "\"(none)\"!", "\"null\"!"]);
}

#[test]
fn nothing_is_shortened_and_the_worst_grows_sixfold() {
    let long = "長".repeat(20_000);
    assert_eq!(show(&long.as_str().into()), format!("\"{long}\""));
    assert_eq!(show(&"\u{1f}".repeat(10_000).into()).len(), 6 * 10_000 + 2);
    let deep = json(&format!("{}1{}", "[".repeat(32), "]".repeat(32)));
    assert_eq!(show(&deep).len(), 65);
}

const ALL_SHOWN: &str = "Do {/a}, {/b}; {/c} - {/d}/{/e}.";
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Texts that look like parts of a prompt more often than chance would have it.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "\"", "\\", "\\\"", "(none)", "null", "{/a}", "{/b}", ", ", "; ", " - ", "/", ".",
            "\\u{a}", "\n", "1", "-", "e", " ", "  ", "\u{202e}", "\u{301}", "[", "]", ":", "u{a}",
            "}",
        ])
        .prop_map(str::to_owned),
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-20_i64..200).prop_map(Value::Integer),
        any::<i32>().prop_map(|integer| Value::Integer(integer.into())),
        any::<f64>()
            .prop_filter("JSON has no other", |double| double.is_finite())
            .prop_map(Value::Double),
        text().prop_map(Value::String),
    ];
    let value = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(text(), inner, 0..4)
                .prop_map(|members| Object::from(members).into()),
        ]
    });
    value.prop_map(|value| normalise(value, false))
}

fn arguments() -> impl Strategy<Value = Value> {
    prop::collection::vec(prop::option::of(value()), NAMES.len()).prop_map(|values| {
        let members = NAMES.iter().zip(values);
        let members = members.filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
        Object::from_members(members.collect()).unwrap().into()
    })
}

proptest! {
    /// Stronger than that different arguments give different prompts: who knows the
    /// prompt reads the arguments back from its text.
    #[test]
    fn a_prompt_that_shows_everything_holds_all_of_the_arguments(arguments in arguments()) {
        let shown = render(ALL_SHOWN, &arguments);
        prop_assert_eq!(read::arguments(ALL_SHOWN, &shown), Some(arguments), "{}", shown);
    }

    #[test]
    fn different_arguments_give_different_prompts(a in arguments(), b in arguments()) {
        prop_assert_eq!(a == b, render(ALL_SHOWN, &a) == render(ALL_SHOWN, &b));
    }

    #[test]
    fn nothing_that_cannot_be_seen_is_in_a_prompt(text in any::<String>()) {
        let shown = render("{/a}", &object([("a", text.into())]));
        for c in shown.replace(['\u{2068}', '\u{2069}', '\u{3000}'], "").chars() {
            // The standard library escapes what is not printable, with tables of its own.
            let escaped = format!("x{c}").escape_debug().to_string();
            prop_assert!(!c.is_control() && !escaped.contains("\\u{"), "{:?}", c);
        }
    }
}

/// Neighbours in every pair of short texts, where a proof by samples would be thin.
#[test]
fn no_two_pairs_of_short_texts_give_one_prompt() {
    let pieces = ["\"", "\\", ",", " ", "a", "\n", "\\u{a}", "(none)", "{/b}", "\"\", \""];
    let mut texts = vec![String::new()];
    for first in pieces {
        texts.push(first.to_owned());
        texts.extend(pieces.map(|second| format!("{first}{second}")));
    }
    texts.sort();
    texts.dedup();
    let prompt = Prompt::parse("{/a}, {/b}").unwrap();
    let mut shown = std::collections::HashSet::new();
    for a in &texts {
        for b in &texts {
            let arguments = object([("a", a.as_str().into()), ("b", b.as_str().into())]);
            assert!(shown.insert(prompt.render(&arguments)), "{a:?} {b:?}");
        }
    }
}
