//! Strict JSON and canonical form against what others say they must be.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod cost;
mod decoder;
mod oracle;
mod suite;

use oracle::is_same;
use proptest::prelude::*;
use toolgate::domain::canonical::canonical;
use toolgate::domain::json::{
    Integers, MAX_SAFE_INTEGER, Object, Value, normalise, parse, to_json,
};

const MAX_BYTES: usize = 1 << 20;

fn wide(text: &str) -> Value {
    parse(text.as_bytes(), MAX_BYTES, Integers::Wide).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_parses_to_the_same(value in values()) {
        let text = to_json(&value);
        let parsed = wide(&text);
        prop_assert_eq!(canonical(&parsed), canonical(&value), "{}", &text);
        prop_assert_eq!(to_json(&parsed), text);
    }

    #[test]
    fn canonical_bytes_decode_to_the_one_value_they_came_from(value in values()) {
        let bytes = canonical(&value);
        let decoded = decoder::decode(&bytes).unwrap();
        prop_assert_eq!(to_json(&decoded), to_json(&value));
    }

    #[test]
    fn different_values_have_different_canonical_bytes(a in small_values(), b in small_values()) {
        prop_assert_eq!(canonical(&a) == canonical(&b), to_json(&a) == to_json(&b));
    }

    #[test]
    fn the_order_of_members_never_matters(
        members in prop::collection::btree_map(names(), values(), 0..20),
        seed in any::<u64>(),
    ) {
        let sorted: Vec<_> = members.into_iter().collect();
        let shuffled = shuffle(sorted.clone(), seed);
        let of = |members| Value::Object(Object::from_members(members).unwrap());
        let text = text_in_order(&shuffled);
        prop_assert_eq!(&of(shuffled), &of(sorted.clone()));
        prop_assert_eq!(canonical(&wide(&text)), canonical(&of(sorted)));
    }

    #[test]
    fn normalising_twice_changes_nothing(value in values(), trim in any::<bool>()) {
        let once = normalise(value, trim);
        prop_assert_eq!(to_json(&normalise(once.clone(), trim)), to_json(&once));
    }

    /// Everything accepted is accepted by `serde_json`, with the same meaning.
    #[test]
    fn serde_json_reads_the_same(value in values()) {
        let text = to_json(&value);
        let theirs: serde_json::Value = serde_json::from_str(&text).unwrap();
        prop_assert!(is_same(&value, &theirs), "{}", text);
    }

    /// Texts a few characters away from JSON: whatever is accepted means the same to both.
    #[test]
    fn serde_json_accepts_what_is_accepted(
        value in values(),
        cut in any::<prop::sample::Index>(),
        insert in prop::sample::select(DAMAGE),
        remove in 0_usize..3,
    ) {
        let mut chars: Vec<char> = to_json(&value).chars().collect();
        let at = cut.index(chars.len());
        let end = (at + remove).min(chars.len());
        chars.splice(at..end, insert.chars());
        let text: String = chars.into_iter().collect();
        if let Ok(ours) = parse(text.as_bytes(), MAX_BYTES, Integers::Wide) {
            let theirs: serde_json::Value = serde_json::from_str(&text).unwrap();
            prop_assert!(is_same(&ours, &theirs), "{}", text);
        }
    }
}

const DAMAGE: &[&str] = &[
    "", "\"", "\\", "\\u", "\\ud83d", "\\u0000", "{", "}", "[", "]", ",", ":", " ", "\n", "0", "1",
    "-", "+", ".", "e", "E5", "e-3", "null", "true", "\0", "\u{feff}", "é", "/", "\"a\":1,",
];

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        small_leaves(),
        any::<String>().prop_map(Value::String),
        (-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).prop_map(Value::Integer),
        "-?[1-9][0-9]{16,39}".prop_map(|digits| Value::WideInteger(digits.into())),
        any::<f64>().prop_filter_map("finite", |double| {
            double.is_finite().then_some(Value::Double(double))
        }),
    ];
    nested(leaf.boxed())
}

/// Values that often come twice.
fn small_values() -> impl Strategy<Value = Value> {
    nested(small_leaves().boxed())
}

fn small_leaves() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-1_i64..12).prop_map(Value::Integer),
        prop::sample::select(&[0.0, -0.0, 1.0, 11.0, 1e300, 5e-324][..]).prop_map(Value::Double),
        "[1:;\"n]{0,2}".prop_map(Value::String),
    ]
}

fn nested(leaf: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::btree_map(names(), inner, 0..6)
                .prop_map(|members| Value::Object(members.into())),
        ]
    })
}

/// Names with long beginnings in common, and some of any kind.
fn names() -> impl Strategy<Value = String> {
    prop_oneof!["[ab\0]{0,3}", "aaaaaa[ab]{0,12}", any::<String>()]
}

fn shuffle<T>(mut items: Vec<T>, mut seed: u64) -> Vec<T> {
    for last in (1..items.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let other = usize::try_from(seed >> 33).unwrap() % (last + 1);
        items.swap(last, other);
    }
    items
}

fn text_in_order(members: &[(String, Value)]) -> String {
    let members: Vec<_> = members
        .iter()
        .map(|(name, value)| format!("{}:{}", to_json(&name.as_str().into()), to_json(value)))
        .collect();
    format!("{{{}}}", members.join(","))
}
