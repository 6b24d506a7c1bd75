//! Issuers that are configured wrongly.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::faults::{faults, sound};
use crate::jwt::signer::{Signer, jwks};

/// A sound configuration with two issuers, one of each kind.
fn sound_issuers() -> (TempDir, Value) {
    let (directory, mut document) = sound();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    let (ec, rsa) = (Signer::new("ec", "ES256"), Signer::new("rsa", "RS256"));
    write("ec.pem", &ec.pem());
    write("set.json", &jwks([&rsa, &ec]));
    write("private.json", &json!({"keys": [{"kty": "RSA", "kid": "k", "d": "AA"}]}).to_string());
    write("oct.json", &json!({"keys": [{"kty": "oct", "kid": "k", "k": "AA"}]}).to_string());
    write("twice.json", &jwks([&rsa, &rsa]));
    let mut weak = rsa.jwk();
    weak["n"] = json!("_".repeat(171));
    write("weak.json", &json!({ "keys": [weak] }).to_string());
    write("private.pem", &ec.pem().replace("PUBLIC", "PRIVATE"));
    document["jwt"] = json!([
        {
            "issuer": "https://a.example", "audience": "toolgate", "leeway": "1m",
            "keys": [{"id": "k", "algorithm": "ES256", "file": "ec.pem"}],
            "tenants": "any",
            "claims": {"roles": "scope"}, "roles": {"bot": "proposer"},
        },
        {
            "issuer": "https://b.example", "audience": ["toolgate", "gate"], "typ": ["at+jwt"],
            "jwks_file": "set.json", "algorithms": ["RS256"],
            "claims": {"tenant": "/a/b", "user": "sub", "roles": "roles", "user_roles": "groups"},
            "roles": {"page": "confirmer", "both": ["auditor", "operator"]},
        },
    ]);
    document["allow_self_confirmation"] = Value::Null;
    (directory, document)
}

/// The faults after one change of the place below `/jwt`.
fn after(place: &str, value: Value) -> Vec<String> {
    let (directory, mut document) = sound_issuers();
    let (holder, name) = place.rsplit_once('/').unwrap();
    let holder = document.pointer_mut(&format!("/jwt/{holder}")).unwrap();
    holder[name] = value;
    faults(&directory, &document)
        .into_iter()
        .map(|fault| fault.strip_prefix("/jwt/").unwrap_or(&fault).to_owned())
        .collect()
}

#[test]
fn issuers_are_sound_or_their_place_is_told() {
    let (directory, document) = sound_issuers();
    assert_eq!(faults(&directory, &document), Vec::<String>::new());
    for (place, value, wanted) in [
        ("0/issuer", json!(null), "0/issuer MISSING_FIELD"),
        ("0/audience", json!(null), "0/audience MISSING_FIELD"),
        ("0/audience", json!([]), "0/audience MISSING_FIELD"),
        ("0/audience", json!(["a", 7]), "0/audience/1 WRONG_TYPE"),
        ("0/leeway", json!("61s"), "0/leeway LIMIT_OUT_OF_BOUNDS"),
        ("0/leeway", json!("1500ms"), "0/leeway INVALID_VALUE"),
        ("0/keys", json!(null), "0/keys MISSING_FIELD"),
        ("0/keys", json!([]), "0/keys LIMIT_OUT_OF_BOUNDS"),
        ("0/jwks_file", json!("set.json"), "0/jwks_file INVALID_VALUE"),
        ("0/algorithms", json!(["ES256"]), "0/algorithms INVALID_VALUE"),
        ("0/keys/0/id", json!(null), "0/keys/0/id MISSING_FIELD"),
        ("0/keys/0/id", json!("k".repeat(257)), "0/keys/0/id INVALID_VALUE"),
        ("0/keys/0/algorithm", json!("HS256"), "0/keys/0/algorithm WRONG_TYPE"),
        ("0/keys/0/algorithm", json!("none"), "0/keys/0/algorithm WRONG_TYPE"),
        ("0/keys/0/algorithm", json!("es256"), "0/keys/0/algorithm WRONG_TYPE"),
        ("0/keys/0/algorithm", json!("ES384"), "0/keys KEY_REFUSED"),
        ("0/keys/0/file", json!("private.pem"), "0/keys KEY_REFUSED"),
        ("0/keys/0/file", json!("nowhere.pem"), "0/keys UNREADABLE_FILE"),
        ("0/tenants", json!(null), "0/claims/tenant MISSING_FIELD"),
        ("0/tenants", json!("all"), "0/tenants WRONG_TYPE"),
        ("0/tenants", json!([]), "0/tenants INVALID_VALUE"),
        ("0/tenants", json!(["a\u{0}"]), "0/tenants/0 INVALID_VALUE"),
        ("1/tenants", json!(["a"]), "1/tenants INVALID_VALUE"),
        ("0/claims", json!(null), "0/claims MISSING_FIELD"),
        ("0/claims/roles", json!(null), "0/claims/roles MISSING_FIELD"),
        ("0/claims/user_roles", json!("groups"), "0/claims/user MISSING_FIELD"),
        ("0/roles", json!(null), "0/roles MISSING_FIELD"),
        ("0/roles", json!({}), "0/roles WRONG_TYPE"),
        ("0/roles/bot", json!([]), "0/roles/bot WRONG_TYPE"),
        ("0/roles/bot", json!("admin"), "0/roles/bot WRONG_TYPE"),
        ("0/roles/bot", json!(["proposer", "admin"]), "0/roles/bot WRONG_TYPE"),
        ("0/roles/bot", json!(["proposer", "confirmer"]), "0/roles/bot INVALID_VALUE"),
        ("1/algorithms", json!(null), "1/algorithms MISSING_FIELD"),
        ("1/algorithms", json!([]), "1/algorithms MISSING_FIELD"),
        ("1/algorithms", json!(["RS256", "HS256"]), "1/algorithms/1 WRONG_TYPE"),
        ("1/algorithms", json!(["ES384"]), "1/jwks_file KEY_REFUSED"),
        ("1/jwks_file", json!("private.json"), "1/jwks_file KEY_REFUSED"),
        ("1/jwks_file", json!("oct.json"), "1/jwks_file KEY_REFUSED"),
        ("1/jwks_file", json!("twice.json"), "1/jwks_file KEY_REFUSED"),
        ("1/jwks_file", json!("weak.json"), "1/jwks_file KEY_REFUSED"),
        ("1/jwks_file", json!("ec.pem"), "1/jwks_file KEY_REFUSED"),
        ("1/jwks_file", json!("nowhere.json"), "1/jwks_file UNREADABLE_FILE"),
        ("1/jwks_file", json!("."), "1/jwks_file UNREADABLE_FILE"),
        ("1/typ", json!([]), "1/typ MISSING_FIELD"),
        // Two entries that would take one token.
        ("1/issuer", json!("https://a.example"), "1/audience INVALID_VALUE"),
        ("1/secret", json!("x"), "1/secret UNKNOWN_FIELD"),
    ] {
        let found = after(place, value.clone());
        assert!(found.contains(&wanted.to_owned()), "{place} {value}: {found:?}");
    }
}

#[test]
fn one_issuer_may_have_entries_of_different_audiences() {
    let (directory, mut document) = sound_issuers();
    document["jwt"][1]["issuer"] = json!("https://a.example");
    document["jwt"][1]["audience"] = json!(["gate", "people"]);
    assert_eq!(faults(&directory, &document), Vec::<String>::new());
}

#[test]
fn issuers_alone_are_callers_enough() {
    let (directory, mut document) = sound_issuers();
    document["callers"] = Value::Null;
    assert_eq!(faults(&directory, &document), Vec::<String>::new());
    document["jwt"] = Value::Null;
    assert_eq!(faults(&directory, &document), ["/callers MISSING_FIELD"]);
}

#[test]
fn who_may_confirm_what_they_propose_has_a_reason() {
    let (directory, mut document) = sound_issuers();
    document["jwt"][0]["roles"]["bot"] = json!(["proposer", "confirmer"]);
    document["allow_self_confirmation"] = json!("a kiosk");
    assert_eq!(faults(&directory, &document), Vec::<String>::new());
}

#[test]
fn issuers_are_bounded() {
    let (directory, mut document) = sound_issuers();
    let entry = |index: usize| {
        let mut entry = document["jwt"][0].clone();
        entry["issuer"] = json!(format!("https://{index}.example"));
        entry
    };
    let entries: Vec<_> = (0..17).map(entry).collect();
    document["jwt"] = json!(entries[..16]);
    assert_eq!(faults(&directory, &document), Vec::<String>::new());
    document["jwt"] = json!(entries);
    assert_eq!(faults(&directory, &document), ["/jwt LIMIT_OUT_OF_BOUNDS"]);
}

/// A gate with issuers would take it for a token, and never for a secret.
#[test]
fn a_secret_has_not_the_form_of_a_token() {
    let (directory, mut document) = sound_issuers();
    super::write(
        &directory.path().join("dotted"),
        0o600,
        "a7Kq3vXz6Jm1Rt5Yp.0Lb7Nd2Hs9Cf4GaW8.kQ3vXz6Jm1",
    );
    document["callers"][1]["secret_file"] = json!("dotted");
    assert_eq!(faults(&directory, &document), ["/callers SECRET_REFUSED"]);
    document["jwt"] = Value::Null;
    assert_eq!(faults(&directory, &document), Vec::<String>::new());
}

/// An issuer may have many files.
#[test]
fn a_file_that_cannot_be_read_is_named() {
    let (directory, mut document) = sound_issuers();
    for (file, said) in [("nowhere.pem", "cannot be read"), (".", "is no regular file")] {
        document["jwt"][0]["keys"][0]["file"] = json!(file);
        let place = directory.path().join("toolgate.yaml");
        let faults = toolgate::config::compile(&document, &place).unwrap_err().to_string();
        assert!(faults.contains(&format!("{file} {said}")), "{faults}");
    }
}
