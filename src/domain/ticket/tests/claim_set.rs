//! The closed set of claims, with the right key.

use super::*;
use crate::domain::json::{Object, to_json};

/// The claims of a good ticket as members, for tests to change.
fn members(scene: &Scene) -> Vec<(String, Value)> {
    let payload = scene.issue().claims.to_json();
    let claims = crate::domain::json::parse_object(
        payload.as_bytes(),
        4096,
        crate::domain::json::Integers::Safe,
    );
    claims.unwrap().into_iter().collect()
}

fn text_of(members: Vec<(String, Value)>) -> String {
    to_json(&Value::Object(Object::from_members(members).unwrap()))
}

/// The check that a ticket fails which says this of one claim.
fn refusal_of(name: &str, value: Value) -> Option<Check> {
    let scene = Scene::new();
    let mut members = members(&scene);
    members.iter_mut().find(|(member, _)| member == name).unwrap().1 = value;
    scene.refusal(&scene.sign(&text_of(members)))
}

#[test]
fn every_claim_changed_alone_is_refused_for_what_it_says() {
    let other = "another-1";
    let cases = [
        ("tool_call_id", other.into(), Check::CallId),
        ("tool", other.into(), Check::Tool),
        ("purpose", other.into(), Check::Purpose),
        ("tenant_id", other.into(), Check::Tenant),
        ("conversation_id", other.into(), Check::Conversation),
        ("user_id", other.into(), Check::User),
        ("contract_digest", "c1".repeat(32).into(), Check::Contract),
        ("arguments_hash", "00".repeat(32).into(), Check::Arguments),
        ("aud", other.into(), Check::Ledger),
        ("iat", Value::Integer(NOW - 1), Check::Lifetime),
        ("exp", Value::Integer(NOW + 301), Check::Lifetime),
        ("exp", Value::Integer(NOW + 299), Check::Lifetime),
    ];
    for (name, value, check) in cases {
        assert_eq!(refusal_of(name, value), Some(check), "{name}");
    }
}

/// Two claims bind nothing of the call: who confirmed was judged when the ticket was issued, and the
/// id is what the ledger spends. Neither can change without the key.
#[test]
fn the_confirmers_and_the_confirmations_ids_are_carried_as_signed() {
    assert_eq!(refusal_of("sub", "a manager".into()), None);
    assert_eq!(refusal_of("jti", "6f1c2f7e-53a4-4d61-9a5e-2f6f1c7d9e10".into()), None);
}

#[test]
fn a_claim_of_another_type_or_form_is_refused() {
    let names = |scene: &Scene| members(scene).into_iter().map(|(name, _)| name);
    for name in names(&Scene::new()) {
        let is_time = matches!(name.as_str(), "iat" | "exp");
        let wrong = [
            Value::Null,
            Value::Bool(true),
            Value::Double(1.5),
            Value::Array(vec!["x".into()]),
            Value::Object(Object::default()),
            if is_time { NOW.to_string().into() } else { Value::Integer(1) },
            "".into(),
            "a\u{0}b".into(),
            "x".repeat(129).into(),
        ];
        for value in wrong {
            let shown = format!("{name}: {value:?}");
            assert_eq!(refusal_of(&name, value), Some(Check::Claims), "{shown}");
        }
    }
    for (name, value) in [
        ("jti", "0B9C2F7E-53A4-4D61-8A5E-2F6F1C7D9E10"),
        ("jti", "0b9c2f7e53a44d618a5e2f6f1c7d9e10"),
        ("jti", "{0b9c2f7e-53a4-4d61-8a5e-2f6f1c7d9e10}"),
        ("jti", "0b9c2f7e-53a4-1d61-8a5e-2f6f1c7d9e10"),
        ("jti", "0b9c2f7e-53a4-4d61-ca5e-2f6f1c7d9e10"),
        ("tool", "two words"),
        ("purpose", "-dash-first"),
        ("tool_call_id", "two words"),
        ("user_id", "line\nbreak"),
        ("sub", "\u{202e}reversed"),
    ] {
        assert_eq!(refusal_of(name, value.into()), Some(Check::Claims), "{name} {value:?}");
    }
    let hash = Scene::new().issue().claims.arguments_hash.to_string();
    for value in [hash.to_uppercase(), hash[1..].to_owned(), format!("{hash}0")] {
        assert_eq!(refusal_of("arguments_hash", value.clone().into()), Some(Check::Claims));
        assert_eq!(refusal_of("contract_digest", value.into()), Some(Check::Claims));
    }
}

#[test]
fn a_time_is_an_integer_literal() {
    let scene = Scene::new();
    let payload = scene.issue().claims.to_json();
    let iat = format!(r#""iat":{NOW}"#);
    assert!(payload.contains(&iat));
    for other in [".0", ".5", "e0"] {
        let changed = payload.replace(&iat, &format!("{iat}{other}"));
        assert_eq!(scene.refusal(&scene.sign(&changed)), Some(Check::Claims), "{other}");
    }
}

#[test]
fn a_time_at_the_end_of_all_numbers_is_no_panic() {
    for time in [-9_007_199_254_740_991, 9_007_199_254_740_991, 0, -1] {
        assert_eq!(refusal_of("iat", Value::Integer(time)), Some(Check::Lifetime));
        assert_eq!(refusal_of("exp", Value::Integer(time)), Some(Check::Lifetime));
    }
}

#[test]
fn a_claim_missing_added_or_twice_is_refused() {
    let scene = Scene::new();
    let all = members(&scene);
    assert_eq!(all.len(), 13);
    assert_eq!(scene.refusal(&scene.sign(&text_of(all.clone()))), None);
    for index in 0..all.len() {
        let mut fewer = all.clone();
        let (name, value) = fewer.remove(index);
        assert_eq!(scene.refusal(&scene.sign(&text_of(fewer.clone()))), Some(Check::Claims));
        fewer.push((format!("{name}_"), value.clone()));
        assert_eq!(scene.refusal(&scene.sign(&text_of(fewer))), Some(Check::Claims));
        let twice = format!(r#"{{"{name}":{},{}"#, to_json(&value), &text_of(all.clone())[1..]);
        assert_eq!(scene.refusal(&scene.sign(&twice)), Some(Check::Claims), "{name} twice");
    }
    for added in ["nbf", "iss", "confirmed", "", "Tool"] {
        let mut more = all.clone();
        more.push((added.to_owned(), Value::Integer(0)));
        assert_eq!(scene.refusal(&scene.sign(&text_of(more))), Some(Check::Claims), "{added:?}");
    }
}

#[test]
fn a_payload_is_one_strict_json_object() {
    let scene = Scene::new();
    let payload = scene.issue().claims.to_json();
    for other in [
        String::new(),
        "null".to_owned(),
        format!("[{payload}]"),
        format!("{payload}{payload}"),
        format!("\u{feff}{payload}"),
        payload[..payload.len() - 1].to_owned(),
        payload.replace("user-ü", "user-\\ud800"),
    ] {
        let check = scene.refusal(&scene.sign(&other));
        let expected = if other.is_empty() { Check::Shape } else { Check::Claims };
        assert_eq!(check, Some(expected), "{other}");
    }
}

#[test]
fn order_and_white_space_say_nothing_once_the_mac_has_verified() {
    let scene = Scene::new();
    let mut reversed = members(&scene);
    reversed.reverse();
    let members: Vec<String> =
        reversed.iter().map(|(name, value)| format!(" \"{name}\" : {}", to_json(value))).collect();
    let text = scene.sign(&format!("{{{}}}\n", members.join(",")));
    assert_eq!(scene.accept(&text).unwrap().claims(), &scene.issue().claims);
}
