#![allow(clippy::unwrap_used, reason = "tests")]

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::domain::caller::Role;

const HEADER: &str = r#"{"alg":"ES256","kid":"k1","typ":"JWT"}"#;
const NOW: i64 = 1_800_000_000;

fn encoded(header: &str, payload: &str, signature: &str) -> String {
    let [header, payload] = [header, payload].map(|part| URL_SAFE_NO_PAD.encode(part));
    format!("{header}.{payload}.{signature}")
}

fn terms() -> Terms {
    Terms {
        issuer: "https://login.example".to_owned(),
        audiences: vec!["toolgate".to_owned(), "gate".to_owned()],
        types: None,
        leeway: 30,
        tenants: TenantsFrom::Claim(Claim::new("tenant")),
        user: Some(Claim::new("sub")),
        roles_claim: Claim::new("roles"),
        roles: [
            ("bot".to_owned(), set(&[Role::Proposer])),
            ("page".to_owned(), set(&[Role::Confirmer])),
            ("ops".to_owned(), set(&[Role::Operator, Role::Auditor])),
        ]
        .into(),
        user_roles: Some(Claim::new("groups")),
        allows_self_confirmation: false,
    }
}

fn set(roles: &[Role]) -> Roles {
    roles.iter().copied().collect()
}

fn only(tenants: &[&str]) -> Tenants {
    Tenants::Only(Arc::new(tenants.iter().copied().map(Arc::from).collect()))
}

/// A payload that holds, with these members put in (`null` takes one out).
fn payload(changes: &str) -> String {
    let mut payload = serde_json::json!({
        "iss": "https://login.example", "aud": "toolgate", "exp": NOW + 60,
        "tenant": "acme", "sub": "alice", "roles": ["bot"],
    });
    let changes: serde_json::Map<_, _> = serde_json::from_str(changes).unwrap();
    for (name, value) in changes {
        match value {
            serde_json::Value::Null => drop(payload.as_object_mut().unwrap().remove(&name)),
            value => payload[name] = value,
        }
    }
    payload.to_string()
}

fn judged(terms: &Terms, header: &str, payload: &str, now: &str) -> Result<Holder, Cause> {
    let text = encoded(header, payload, "c2ln");
    let token = Token::read(text.as_bytes())?;
    terms.judge(&Claims::read(&token)?, now.parse().unwrap())
}

fn judge(changes: &str) -> Result<Holder, Cause> {
    judge_by(&terms(), changes)
}

fn judge_by(terms: &Terms, changes: &str) -> Result<Holder, Cause> {
    judged(terms, HEADER, &payload(changes), &at(0, 0))
}

/// The time `seconds` and `micros` after `NOW`.
fn at(seconds: i64, micros: i64) -> String {
    Timestamp::from_microsecond((NOW + seconds) * 1_000_000 + micros).unwrap().to_string()
}

#[test]
fn what_holds_is_made_into_a_holder() {
    let holder = judge(r#"{"groups": ["supervisor", "staff"]}"#).unwrap();
    assert_eq!(holder.roles, set(&[Role::Proposer]));
    assert_eq!(holder.tenants, only(&["acme"]));
    assert_eq!(holder.user.as_deref(), Some("alice"));
    assert_eq!(holder.user_roles, ["supervisor", "staff"]);
}

/// Every boundary at its second, with a leeway of 30 s.
#[test]
fn time_is_judged_at_the_second() {
    let cases: [(&str, i64, i64, Result<(), Cause>); 17] = [
        // Valid while now < exp + leeway, now floored.
        (r#"{"exp": 1800000000}"#, -1, 0, Ok(())),
        (r#"{"exp": 1800000000}"#, 0, 0, Ok(())),
        (r#"{"exp": 1800000000}"#, 29, 999_999, Ok(())),
        (r#"{"exp": 1800000000}"#, 30, 0, Err(Cause::Expired)),
        (r#"{"exp": 1800000000}"#, 31, 0, Err(Cause::Expired)),
        (r#"{"exp": 1800000000.9}"#, 30, 0, Err(Cause::Expired)),
        (r#"{"exp": 1800000000.9}"#, 29, 0, Ok(())),
        (r#"{"exp": -9007199254740991}"#, 0, 0, Err(Cause::Expired)),
        (r#"{"exp": 1e300}"#, 0, 0, Ok(())),
        // Valid from nbf - leeway on.
        (r#"{"nbf": 1800000000}"#, -31, 999_999, Err(Cause::NotYetValid)),
        (r#"{"nbf": 1800000000}"#, -30, 0, Ok(())),
        (r#"{"nbf": 1800000000.1}"#, -30, 0, Err(Cause::NotYetValid)),
        (r#"{"nbf": 1800000000.1}"#, -29, 0, Ok(())),
        (r#"{"iat": 1800000000}"#, -31, 0, Err(Cause::NotYetValid)),
        (r#"{"iat": 1800000000}"#, -30, 0, Ok(())),
        (r#"{"iat": 1e300}"#, 0, 0, Err(Cause::NotYetValid)),
        (r#"{"iat": -5, "nbf": -5}"#, 0, 0, Ok(())),
    ];
    for (changes, seconds, micros, wanted) in cases {
        let found = judged(&terms(), HEADER, &payload(changes), &at(seconds, micros)).map(drop);
        assert_eq!(found, wanted, "{changes} at {seconds} s {micros} us");
    }
}

#[test]
fn without_leeway_the_second_is_exact() {
    let terms = Terms { leeway: 0, ..terms() };
    let by = |changes: &str, seconds, micros| {
        judged(&terms, HEADER, &payload(changes), &at(seconds, micros)).map(drop)
    };
    assert_eq!(by(r#"{"exp": 1800000000}"#, -1, 999_999), Ok(()));
    assert_eq!(by(r#"{"exp": 1800000000}"#, 0, 0), Err(Cause::Expired));
    assert_eq!(by(r#"{"nbf": 1800000000}"#, -1, 999_999), Err(Cause::NotYetValid));
    assert_eq!(by(r#"{"nbf": 1800000000}"#, 0, 0), Ok(()));
}

#[test]
fn claims_are_exact() {
    for (changes, wanted) in [
        (r#"{"iss": null}"#, Cause::Issuer),
        (r#"{"iss": "https://login.example/"}"#, Cause::Issuer),
        (r#"{"iss": "HTTPS://login.example"}"#, Cause::Issuer),
        (r#"{"iss": ["https://login.example"]}"#, Cause::Issuer),
        (r#"{"aud": null}"#, Cause::Audience),
        (r#"{"aud": "Toolgate"}"#, Cause::Audience),
        (r#"{"aud": "toolgate gate"}"#, Cause::Audience),
        (r#"{"aud": []}"#, Cause::Audience),
        (r#"{"aud": [["toolgate"]]}"#, Cause::Audience),
        (r#"{"aud": {"toolgate": 1}}"#, Cause::Audience),
        (r#"{"exp": null}"#, Cause::Claims),
        (r#"{"exp": "1800000060"}"#, Cause::Claims),
        (r#"{"exp": 99999999999999999}"#, Cause::Claims),
        (r#"{"nbf": "1"}"#, Cause::Claims),
        (r#"{"iat": true}"#, Cause::Claims),
        (r#"{"tenant": null}"#, Cause::Claims),
        (r#"{"tenant": []}"#, Cause::Claims),
        (r#"{"tenant": ""}"#, Cause::Claims),
        (r#"{"tenant": ["acme", 7]}"#, Cause::Claims),
        (r#"{"tenant": ["acme", "a\u0000b"]}"#, Cause::Claims),
        (r#"{"sub": null}"#, Cause::Claims),
        (r#"{"sub": ["alice"]}"#, Cause::Claims),
        (r#"{"sub": "al\u200bice"}"#, Cause::Claims),
        (r#"{"roles": 7}"#, Cause::Claims),
        (r#"{"roles": ["bot", 7]}"#, Cause::Claims),
        (r#"{"groups": {"supervisor": true}}"#, Cause::Claims),
    ] {
        assert_eq!(judge(changes).map(drop), Err(wanted), "{changes}");
    }
    for changes in [
        r#"{"aud": "gate"}"#,
        r#"{"aud": ["other", "toolgate"]}"#,
        r#"{"unknown": {"deep": [1, 2.5, 12345678901234567890]}}"#,
    ] {
        judge(changes).unwrap();
    }
}

#[test]
fn roles_come_from_the_map_alone() {
    let roles = |changes: &str| judge(changes).map(|holder| holder.roles);
    assert_eq!(roles(r#"{"roles": null}"#), Ok(set(&[])));
    assert_eq!(roles(r#"{"roles": ["operator", "proposer", "Bot", "bot "]}"#), Ok(set(&[])));
    assert_eq!(roles(r#"{"roles": "openid bot"}"#), Ok(set(&[Role::Proposer])));
    assert_eq!(roles(r#"{"roles": ["openid bot"]}"#), Ok(set(&[])));
    assert_eq!(
        roles(r#"{"roles": ["ops", "bot", "ops"]}"#),
        Ok(set(&[Role::Proposer, Role::Auditor, Role::Operator]))
    );
    // Nobody proposes and confirms, unless the configuration says why.
    assert_eq!(roles(r#"{"roles": ["bot", "page"]}"#), Err(Cause::Claims));
    let lenient = Terms { allows_self_confirmation: true, ..terms() };
    let both = judge_by(&lenient, r#"{"roles": ["bot", "page"]}"#).unwrap();
    assert_eq!(both.roles, set(&[Role::Proposer, Role::Confirmer]));
}

#[test]
fn names_in_a_token_are_bounded() {
    let many = |count: usize| serde_json::json!({ "groups": vec!["g"; count] }).to_string();
    assert_eq!(judge(&many(MAX_NAMES)).unwrap().user_roles.len(), MAX_NAMES);
    assert_eq!(judge(&many(MAX_NAMES + 1)), Err(Cause::Claims));
}

#[test]
fn claims_are_found_by_name_or_pointer() {
    let by = |claim: &str, changes: &str| {
        let terms = Terms { roles_claim: Claim::new(claim), ..terms() };
        judge_by(&terms, changes).unwrap().roles
    };
    let proposer = set(&[Role::Proposer]);
    assert_eq!(by("/realm_access/roles", r#"{"realm_access": {"roles": ["bot"]}}"#), proposer);
    assert_eq!(by("https://x.example/roles", r#"{"https://x.example/roles": "bot"}"#), proposer);
    assert_eq!(by("realm.roles", r#"{"realm.roles": "bot"}"#), proposer);
    assert_eq!(by("/a~1b/~0c", r#"{"a/b": {"~c": "bot"}}"#), proposer);
    assert_eq!(by("/realm_access/roles", r#"{"realm_access": ["bot"]}"#), set(&[]));
}

#[test]
fn tenants_are_the_claims_the_configurations_or_anybodys() {
    let by = |tenants, changes: &str| {
        let terms = Terms { tenants, ..terms() };
        judge_by(&terms, changes).map(|holder| holder.tenants)
    };
    let claim = || TenantsFrom::Claim(Claim::new("tenant"));
    let several = r#"{"tenant": ["acme", "globex corp"]}"#;
    assert_eq!(by(claim(), several), Ok(only(&["acme", "globex corp"])));
    // One text is one tenant: only roles are parted at spaces.
    assert_eq!(by(claim(), r#"{"tenant": "a b"}"#), Ok(only(&["a b"])));
    let fixed = TenantsFrom::Fixed(only(&["initech"]));
    assert_eq!(by(fixed, several), Ok(only(&["initech"])));
    assert_eq!(by(TenantsFrom::Fixed(Tenants::All), several), Ok(Tenants::All));
    let service = Terms { user: None, ..terms() };
    assert_eq!(judge_by(&service, "{}").unwrap().user, None);
}

#[test]
fn tokens_of_another_kind_are_refused() {
    let by = |types: Option<&[&str]>, kind: Option<&str>| {
        let types = types.map(|types| types.iter().map(|&kind| kind.to_owned()).collect());
        let mut header = serde_json::json!({"alg": "ES256", "kid": "k1"});
        if let Some(kind) = kind {
            header["typ"] = kind.into();
        }
        let terms = Terms { types, ..terms() };
        judged(&terms, &header.to_string(), &payload("{}"), &at(0, 0)).map(drop)
    };
    for kind in [None, Some("JWT"), Some("jwt"), Some("at+jwt"), Some("application/AT+JWT")] {
        assert_eq!(by(None, kind), Ok(()), "{kind:?}");
    }
    for kind in ["", "JOSE", "logout+jwt", "toolgate-confirmation+jwt", "id+jwt", "at+jwt "] {
        assert_eq!(by(None, Some(kind)), Err(Cause::Type), "{kind}");
    }
    let configured: Option<&[&str]> = Some(&["at+jwt"]);
    assert_eq!(by(configured, Some("application/at+JWT")), Ok(()));
    assert_eq!(by(configured, Some("JWT")), Err(Cause::Type));
    assert_eq!(by(configured, None), Err(Cause::Type));
}

#[test]
fn headers_are_strict() {
    let read = |header: &str| {
        let text = encoded(header, "{}", "c2ln");
        Token::read(text.as_bytes()).map(|token| token.key_id().to_owned())
    };
    assert_eq!(read(HEADER), Ok("k1".to_owned()));
    for (header, wanted) in [
        (r#"{"alg":"ES256","kid":"k1","kid":"k2"}"#, Cause::Malformed),
        (r#"{"alg":"ES256","\u006bid":"k2","kid":"k1"}"#, Cause::Malformed),
        (r#"{"alg":"ES256","kid":"k1","crit":["exp"]}"#, Cause::Malformed),
        (r#"{"alg":"ES256","kid":"k1","crit":[]}"#, Cause::Malformed),
        (r#"{"kid":"k1"}"#, Cause::Malformed),
        (r#"{"alg":["ES256"],"kid":"k1"}"#, Cause::Malformed),
        (r#"{"alg":"ES256","kid":1}"#, Cause::Malformed),
        (r#"{"alg":"ES256","kid":"k1","typ":null}"#, Cause::Malformed),
        (r#"["ES256"]"#, Cause::Malformed),
        ("", Cause::Malformed),
        (r#"{"alg":"ES256","kid":"k1"} x"#, Cause::Malformed),
        (r#"{"alg":"ES256"}"#, Cause::UnknownKey),
        (r#"{"alg":"ES256","kid":""}"#, Cause::UnknownKey),
    ] {
        assert_eq!(read(header), Err(wanted), "{header}");
    }
    let long = |length| read(&format!(r#"{{"alg":"ES256","kid":"{}"}}"#, "k".repeat(length)));
    assert_eq!(long(MAX_KEY_ID_BYTES).unwrap().len(), MAX_KEY_ID_BYTES);
    assert_eq!(long(MAX_KEY_ID_BYTES + 1), Err(Cause::UnknownKey));
}

#[test]
fn a_header_names_an_algorithm_and_chooses_none() {
    for alg in ["none", "None", "HS256", "HS512", "es256", "ES512", "ES256 ", ""] {
        let text = encoded(&serde_json::json!({"alg": alg, "kid": "k1"}).to_string(), "{}", "");
        let token = Token::read(text.as_bytes()).unwrap();
        assert!(Algorithm::ALL.into_iter().all(|algorithm| !token.is_by(algorithm)), "{alg}");
    }
    for algorithm in Algorithm::ALL {
        let header = serde_json::json!({"alg": algorithm.as_str(), "kid": "k1"}).to_string();
        let text = encoded(&header, "{}", "");
        let token = Token::read(text.as_bytes()).unwrap();
        assert!(Algorithm::ALL.into_iter().all(|known| token.is_by(known) == (known == algorithm)));
    }
}

#[test]
fn a_token_is_known_by_its_form() {
    for text in ["a.b.c", "..", "a..", "eyJ-_.eyJ.x9"] {
        assert!(has_form(text.as_bytes()), "{text}");
    }
    for text in ["", "a.b", "a.b.c.d", "a.b.c=", "a.b.c d", "a.b+.c", "proposer-7f3k", "a.b.\u{e9}"]
    {
        assert!(!has_form(text.as_bytes()), "{text}");
    }
    let sized = |length: usize| {
        let shortest = encoded(HEADER, "{}", "");
        let text = format!("{shortest}{}", "A".repeat(length - shortest.len()));
        Token::read(text.as_bytes()).map(drop)
    };
    assert_eq!(sized(MAX_TOKEN_BYTES), Ok(()));
    assert_eq!(sized(MAX_TOKEN_BYTES + 1), Err(Cause::Malformed));
}

#[test]
fn payloads_are_strict_and_in_one_encoding() {
    let read = |payload: &str| {
        let text = encoded(HEADER, payload, "c2ln");
        let token = Token::read(text.as_bytes()).unwrap();
        Claims::read(&token).map(drop)
    };
    assert_eq!(read("{}"), Ok(()));
    for payload in ["", "[]", "{", r#"{"exp":1,"exp":2}"#, r#"{"a":{"b":1,"b":1}}"#, "\u{feff}{}"] {
        assert_eq!(read(payload), Err(Cause::Malformed), "{payload}");
    }
    // `e30` is `{}`; `e31` would be too, to a reader that drops left-over bits.
    let header = URL_SAFE_NO_PAD.encode(HEADER);
    for payload in ["e31", "e30=", "e3", "e"] {
        let text = format!("{header}.{payload}.c2ln");
        let read = Token::read(text.as_bytes()).and_then(|token| Claims::read(&token));
        assert_eq!(read.map(drop), Err(Cause::Malformed), "{payload}");
    }
}

proptest! {
    /// Whatever the bytes are, reading ends, and never in a panic.
    #[test]
    fn any_text_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = has_form(&bytes);
        let _ = Token::read(&bytes).map(|token| Claims::read(&token).map(drop));
    }

    #[test]
    fn any_json_is_judged_without_a_panic(payload in r#"\{"(exp|nbf|iat|aud|sub|roles)":(-?[0-9]{1,40}(\.[0-9])?(e[0-9]{1,3})?|"[a-z ]{0,9}"|\[("a",){0,2}"b"\])\}"#) {
        let text = encoded(HEADER, &payload, "c2ln");
        let token = Token::read(text.as_bytes()).unwrap();
        if let Ok(claims) = Claims::read(&token) {
            let now = Timestamp::from_second(NOW).unwrap();
            prop_assert!(terms().judge(&claims, now).is_err());
        }
    }
}
