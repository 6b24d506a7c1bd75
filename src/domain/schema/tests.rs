#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::domain::json::{Integers, parse};

fn schema(document: Json) -> Schema {
    Schema::compile(document).unwrap()
}

fn value(json: &Json) -> Value {
    text(&json.to_string())
}

fn text(text: &str) -> Value {
    parse(text.as_bytes(), 1 << 20, Integers::Wide).unwrap()
}

/// Faults as `pointer keyword` or `pointer keyword missing`.
fn faults(document: Json, instance: &Json) -> Vec<String> {
    let shown = |fault: SchemaFault| {
        let missing = fault.missing.map_or_else(String::new, |name| format!(" {name}"));
        format!("{} {}{missing}", fault.pointer, fault.keyword)
    };
    match schema(document).validate(&value(instance)) {
        Ok(()) => Vec::new(),
        Err(faults) => faults.into_iter().map(shown).collect(),
    }
}

#[test]
fn a_fault_names_the_keyword_and_the_declared_place() {
    let document = json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["a"],
        "properties": {
            "a": {"type": "string", "maxLength": 3, "pattern": "^x", "format": "date"},
            "b": {"type": "array", "maxItems": 2, "items": {"enum": [1, 2]}},
            "c": {"const": "c"},
            "d/~": {"minimum": 3, "multipleOf": 2, "type": "integer"},
            "e": false,
            "f": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "0": {"type": "integer"},
        },
        "dependentRequired": {"c": ["b"]},
        "maxProperties": 4,
    });
    let cases = [
        (json!({}), vec![" required a"]),
        (json!({"a": 7}), vec!["/a type"]),
        (json!({"a": "abcd"}), vec!["/a format", "/a maxLength", "/a pattern"]),
        (json!({"a": null, "zz": 1}), vec![" additionalProperties", "/a type"]),
        (json!({"b": [1, 3, 4]}), vec![" required a", "/b maxItems", "/b/1 enum", "/b/2 enum"]),
        (json!({"c": "d", "a": 1}), vec![" dependentRequired b", "/a type", "/c const"]),
        (json!({"0": 0, "a": 1, "b": [], "c": "c", "d/~": 4}), vec![" maxProperties", "/a type"]),
        (json!({"d/~": 1, "a": 1}), vec!["/a type", "/d~1~0 minimum", "/d~1~0 multipleOf"]),
        (json!({"e": 1, "a": 1}), vec!["/a type", "/e properties"]),
        (json!({"f": "x", "a": 1}), vec!["/a type", "/f anyOf"]),
        (json!({"0": "x", "a": 1}), vec!["/0 type", "/a type"]),
    ];
    for (instance, wanted) in cases {
        assert_eq!(faults(document.clone(), &instance), wanted, "{instance}");
    }
}

#[test]
fn a_fault_never_names_what_the_model_made_up() {
    let document = json!({
        "type": "object",
        "unevaluatedProperties": false,
        "properties": {
            "open": {"type": "object", "additionalProperties": {"type": "integer"}},
            "names": {"type": "object", "propertyNames": {"maxLength": 2}},
            "patterns": {"type": "object", "patternProperties": {"^c": {"type": "integer"}}},
            "list": {"type": "array", "items": {"type": "object", "additionalProperties": false}},
            "both": {"items": {"type": "integer"}, "additionalProperties": {"type": "integer"}},
        },
    });
    let instance = json!({
        "both": {"4111111": "x"},
        "canary": 1,
        "open": {"canary": "x", "1": "x"},
        "names": {"canary": 1},
        "patterns": {"canary": "x"},
        "list": [{}, {"canary": {"canary": 1}}],
    });
    let found = faults(document, &instance);
    assert!(found.iter().all(|fault| !fault.contains("canary")), "{found:?}");
    let wanted = [
        " unevaluatedProperties",
        "/both type",
        "/list/1 additionalProperties",
        "/names propertyNames",
        "/open type",
        "/patterns type",
    ];
    assert_eq!(found, wanted);
}

#[test]
fn places_are_declared_through_references_and_branches() {
    let document = json!({
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/tree"}},
        "anyOf": [{"properties": {"branch": {"type": "integer"}}}],
        "$defs": {"tree": {"type": "object", "additionalProperties": false, "properties": {
            "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            "name": {"type": "string"},
        }}},
    });
    let compiled = schema(document.clone());
    assert_eq!(compiled.property_names(), ["branch", "tree"]);
    assert!(compiled.declares("/tree/children/7/children/0/name"));
    assert!(!compiled.declares("/tree/children/name"));
    let instance = json!({"tree": {"children": [{"name": 7}]}});
    assert_eq!(faults(document, &instance), ["/tree/children/0/name type"]);
}

#[test]
fn at_most_16_faults_are_reported() {
    let names: Vec<String> = (0..40).map(|index| format!("n{index}")).collect();
    let document = json!({"type": "object", "required": names});
    assert_eq!(faults(document, &json!({})).len(), 16);
}

#[test]
fn of_a_large_value_the_first_fault_is_reported() {
    let document = json!({"type": "array", "items": {"type": "string"}, "maxItems": 3});
    assert_eq!(faults(document.clone(), &json!(vec![0; 4_095])).len(), 16);
    assert_eq!(faults(document.clone(), &json!(vec![0; 4_096])).len(), 1);
    assert_eq!(faults(document, &json!([vec![0; 2_000], vec![0; 2_000], vec![0; 2_000]])).len(), 1);
}

#[test]
fn numbers_compare_by_value() {
    let number = schema(json!({"enum": [1, 0.5, 10_000_000_000_000_000_000_u64, -3]}));
    for valid in ["1", "1.0", "0.5", "5e-1", "10000000000000000000", "1e19", "-3"] {
        assert!(number.is_valid(&text(valid)), "{valid}");
    }
    for invalid in ["2", "0.25", "10000000000000000001", "3", "\"1\"", "true"] {
        assert!(!number.is_valid(&text(invalid)), "{invalid}");
    }
    let integer = schema(json!({"type": "integer", "maximum": 1e30}));
    for (instance, is_valid) in
        [("7", true), ("7.0", true), ("7.5", false), ("123456789012345678901234567890", true)]
    {
        assert_eq!(integer.is_valid(&text(instance)), is_valid, "{instance}");
    }
    let zero = schema(json!({"const": 0}));
    assert!(zero.is_valid(&text("-0.0")) && zero.is_valid(&text("0")));
}

#[test]
fn unique_items_are_told_apart_by_value() {
    let unique = schema(json!({"type": "array", "uniqueItems": true}));
    let valid = [
        "[]",
        "[1, 2, 1.5]",
        "[\"1\", 1, true, null, [1], {\"a\": 1}]",
        "[[1, 2], [12]]",
        "[{\"a\": \"b\"}, {\"ab\": \"\"}]",
        "[\"1:\", \"\"]",
    ];
    for instance in valid {
        assert!(unique.is_valid(&text(instance)), "{instance}");
    }
    let invalid = [
        "[1, 1.0]",
        "[0, -0.0]",
        "[{\"a\": 1, \"b\": 2}, {\"b\": 2, \"a\": 1.0}]",
        "[100000000000000000000, 1e20]",
        "[\"a\", \"b\", \"a\"]",
    ];
    for instance in invalid {
        assert!(!unique.is_valid(&text(instance)), "{instance}");
    }
}

#[test]
fn a_vetted_schema_bounds_canonical_bytes() {
    use crate::domain::canonical::canonical;
    let closed = |property: Json| json!({"type": "object", "additionalProperties": false, "properties": {"p": property}});
    let largest = [
        (json!({"type": "string", "maxLength": 5}), json!("\u{1f600}".repeat(5))),
        (
            json!({"type": "array", "maxItems": 3, "items": {"type": "number"}}),
            json!([-1.5e-300, 0.1, 2]),
        ),
        (json!({"enum": ["a", [1, {"b": null}]]}), json!([1, {"b": null}])),
        (json!({"$ref": "#/properties/q", "maxLength": 2}), json!("ab")),
        (json!({"anyOf": [{"type": "null"}, {"type": "string", "format": "uuid"}]}), json!("x")),
    ];
    for (property, instance) in largest {
        let mut document = closed(property);
        document["properties"]["q"] = json!({"type": "string"});
        document["properties"]["q"]["maxLength"] = json!(4);
        let bound = schema(document).max_canonical_bytes().unwrap();
        let bytes = canonical(&value(&json!({"p": instance}))).len();
        assert!(u64::try_from(bytes).unwrap() <= bound, "{instance}: {bytes} > {bound}");
        assert!(bound < 10_000, "{instance}: {bound} is no help");
    }
    for unbounded in [json!({"$ref": "#"}), json!({"type": "string"}), json!({"type": "array"})] {
        assert_eq!(schema(closed(unbounded)).max_canonical_bytes(), None);
    }
}

#[test]
fn lengths_are_counted_in_characters() {
    let three = schema(json!({"type": "string", "minLength": 3, "maxLength": 3}));
    assert!(three.is_valid(&Value::String("a\u{1f600}ß".to_owned())));
    assert!(!three.is_valid(&Value::String("\u{1f600}".to_owned())));
}

#[test]
fn a_hostile_pattern_runs_in_linear_time() {
    // A backtracking engine would not end.
    let hostile = schema(json!({"type": "string", "pattern": "^(a|a|aa)+$"}));
    assert!(!hostile.is_valid(&Value::String(format!("{}b", "a".repeat(50_000)))));
}

/// Random schemas of the forms that matter to the proof, most of them unsafe.
fn schemas() -> impl Strategy<Value = Json> {
    let name = prop::sample::select(vec!["a", "b"]);
    let safe = prop::sample::select(vec![
        json!({"type": "integer"}),
        json!({"type": "string", "maxLength": 3}),
        json!({"type": "array", "maxItems": 2, "items": {"type": "integer"}}),
        json!({"type": "object", "additionalProperties": false, "properties": {"a": {"type": "null"}}}),
        json!({"type": "object", "unevaluatedProperties": false}),
    ]);
    let leaf = prop_oneof![
        17 => safe,
        1 => Just(json!(true)),
        1 => Just(json!(false)),
        1 => Just(json!({})),
        1 => Just(json!({"type": "integer"})),
        1 => Just(json!({"type": "string"})),
        1 => Just(json!({"type": "string", "maxLength": 3})),
        1 => Just(json!({"type": ["string", "object"], "maxLength": 3})),
        1 => Just(json!({"maxLength": 3})),
        1 => Just(json!({"maxItems": 2})),
        1 => Just(json!({"type": "array"})),
        1 => Just(json!({"type": "object"})),
        1 => Just(json!({"enum": ["x", 1]})),
        1 => Just(json!({"const": {"a": 1}})),
        1 => Just(json!({"additionalProperties": false})),
        1 => Just(json!({"unevaluatedProperties": false})),
        1 => Just(json!({"required": ["a"]})),
        1 => Just(json!({"$ref": "#/$defs/d"})),
    ];
    leaf.prop_recursive(3, 12, 3, move |inner| {
        let part = prop_oneof![
            4 => inner.clone(),
            1 => (name.clone(), inner.clone()).prop_map(|(n, s)| json!({"properties": {n: s}})),
            1 => inner.clone().prop_map(|s| json!({"items": s})),
            1 => inner.clone().prop_map(|s| json!({"prefixItems": [s]})),
            1 => inner.clone().prop_map(|s| json!({"if": s})),
            1 => inner.clone().prop_map(|s| json!({"then": s})),
            1 => inner.clone().prop_map(|s| json!({"else": s})),
            1 => inner.clone().prop_map(|s| json!({"not": s})),
            1 => inner.clone().prop_map(|s| json!({"contains": s})),
            1 => inner.clone().prop_map(|s| json!({"dependentSchemas": {"a": s}})),
            1 => prop::collection::vec(inner.clone(), 1..3).prop_map(|s| json!({"allOf": s})),
            1 => prop::collection::vec(inner.clone(), 1..3).prop_map(|s| json!({"anyOf": s})),
            1 => prop::collection::vec(inner, 1..3).prop_map(|s| json!({"oneOf": s})),
        ];
        prop::collection::vec(part, 1..4).prop_map(|parts| {
            let mut merged = serde_json::Map::new();
            for part in parts {
                merged.extend(part.as_object().cloned().unwrap_or_default());
            }
            Json::Object(merged)
        })
    })
}

/// Instances, most of them with something that no safe schema lets through.
fn instances() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(json!(1)),
        Just(json!(null)),
        Just(json!(true)),
        Just(json!("x")),
        Just(json!("xxxxxxxx")),
        Just(json!({})),
        Just(json!([])),
    ];
    leaf.prop_recursive(3, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::Array),
            prop::collection::btree_map(
                prop::sample::select(vec!["a", "b", "undeclared"]),
                inner,
                0..3
            )
            .prop_map(|members| json!(members)),
        ]
    })
}

/// Whether a value holds what `schemas()` never declares or never bounds.
fn is_unbounded(value: &Json) -> bool {
    match value {
        Json::String(text) => text.len() > 3,
        Json::Array(items) => items.len() > 2 || items.iter().any(is_unbounded),
        Json::Object(members) => {
            members.contains_key("undeclared") || members.values().any(is_unbounded)
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, max_global_rejects: 1_000_000, ..ProptestConfig::default() })]

    #[test]
    fn what_was_vetted_lets_nothing_unbounded_through(
        property in schemas(),
        definition in schemas(),
        instance in instances(),
    ) {
        let document = json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {"value": property},
            "$defs": {"d": definition},
        });
        if is_unbounded(&instance)
            && vet_arguments(&document).is_empty()
            && let Ok(schema) = Schema::compile(document.clone())
        {
            let arguments = json!({"value": instance});
            prop_assert!(!schema.is_valid(&value(&arguments)), "{document} lets {arguments}");
        }
    }
}

/// A chain of definitions, each made from the next.
fn chain(length: usize, link: impl Fn(&str) -> Json) -> Json {
    let mut defs = serde_json::Map::new();
    for index in 0..length {
        defs.insert(format!("d{index}"), link(&format!("#/$defs/d{}", index + 1)));
    }
    defs.insert(format!("d{length}"), json!({"type": "integer"}));
    json!({"type": "object", "additionalProperties": false, "properties": {"p": {"$ref": "#/$defs/d0"}}, "$defs": defs})
}

#[test]
fn long_chains_do_not_exhaust_the_stack() {
    let links: [&dyn Fn(&str) -> Json; 5] = [
        &|next| json!({"type": "object", "properties": {"x": {"$ref": next}}}),
        &|next| json!({"$ref": next}),
        &|next| json!({"anyOf": [{"$ref": next}]}),
        &|next| json!({"allOf": [{"$ref": next}]}),
        &|next| json!({"if": {"$ref": next}}),
    ];
    for (length, link) in [30, 3_000].into_iter().flat_map(|l| links.map(|link| (l, link))) {
        let document = chain(length, link);
        let _ = vet_arguments(&document);
        match Schema::compile(document) {
            Ok(schema) => {
                let _ = schema.max_canonical_bytes();
                let _ = schema.validate(&value(&json!({"p": "x"})));
            }
            Err(findings) => {
                let is_too_deep = |finding: &Finding| finding.code == Code::SchemaTooDeep;
                assert!(length > 30 && findings.iter().all(is_too_deep), "{findings:?}");
            }
        }
    }
}
