#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const CANARY: &str = "hunter2";

fn written(value: &Value) -> String {
    let mut out = String::new();
    write_field(&mut out, "fault", value);
    out
}

#[test]
fn credentials_leave_text_and_the_rest_stays() {
    let cases = [
        ("sent Bearer hunter2 twice", "sent Bearer [REDACTED] twice"),
        ("BEARER\thunter2", "BEARER\t[REDACTED]"),
        (r#"{"bearer":"hunter2"}"#, r#"{"bearer":"[REDACTED]"}"#),
        ("to https://u:hunter2@host/x now", "to https://[REDACTED]@host/x now"),
        ("to amqp://u:hunt/er@2@host now", "to amqp://[REDACTED]@host now"),
        ("a://b c://hunter2@d", "a://b c://[REDACTED]@d"),
        ("password=hunter2 attempt=3", "password=[REDACTED] attempt=3"),
        ("Db_PassWord = hunter2", "Db_PassWord = [REDACTED]"),
        ("pa\u{17f}\u{17f}word=hunter2", "pa\u{17f}\u{17f}word=[REDACTED]"),
        ("authorization: Basic hunter2\r\nx: hunter2", "authorization: [REDACTED]"),
        ("config.password: hunter2", "config.password: [REDACTED]"),
        (r#"{"password":"hunter2","b":2}"#, r#"{"password":"[REDACTED]","b":2}"#),
        (r#"{"api_token" : "hun\"ter2","b":2}"#, r#"{"api_token" : "[REDACTED]","b":2}"#),
        (r#"{"token":"x\\","b":2}"#, r#"{"token":"[REDACTED]","b":2}"#),
        (r#"{\"secret\":\"hunter2\",\"b\":2}"#, r#"{\"secret\":\"[REDACTED]\",\"b\":2}"#),
        ("token: Some(hunter2)", "token: [REDACTED]"),
        ("secret => 'hunter2' b", "secret => '[REDACTED]' b"),
        ("phone=+49 170 (12) 34-5 x=1", "phone=[REDACTED] x=1"),
        ("?mobile=0170&x=hunter2", "?mobile=[REDACTED]"),
        ("password=\"hunter2", "password=\"[REDACTED]"),
    ];
    for (given, wanted) in cases {
        assert_eq!(text(given), wanted, "{given}");
    }
}

#[test]
fn what_is_no_credential_stays() {
    for given in [
        "",
        "no secret here",
        "https://host/path?x=1",
        "keys/audit.secret: Permission denied",
        "/callers/0/token_file: no such file",
        "a forbearer",
        "tok=1, x: 2",
    ] {
        assert_eq!(text(given), given);
    }
}

#[test]
fn text_is_cut_after_it_was_redacted() {
    let long = "é".repeat(MAX_CHARS);
    assert_eq!(text(&long), long);

    let longer = text(&"é".repeat(MAX_CHARS + 1)).into_owned();
    assert_eq!(longer.chars().count(), MAX_CHARS);
    assert!(longer.ends_with("é[TRUNCATED]"));

    let astride = format!("{}s://u:{CANARY}{}@host", "x".repeat(2_000), "y".repeat(100));
    assert!(!text(&astride).contains(CANARY));
}

#[test]
fn members_of_secret_names_are_redacted_at_every_depth() {
    let value = json!({"a": [{"API-Token": {"b": CANARY}}, {"mobile": 170}], "c": 1});
    assert_eq!(
        written(&value),
        r#"{"a":[{"API-Token":"[REDACTED]"},{"mobile":"[REDACTED]"}],"c":1}"#
    );
    let mut out = String::new();
    write_field(&mut out, "token", &json!(CANARY));
    assert_eq!(out, r#""[REDACTED]""#);
}

#[test]
fn depth_is_bounded() {
    let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    assert_eq!(written(&nested(8)), "[[[[[[[[1]]]]]]]]");
    assert_eq!(written(&nested(9)), r#"[[[[[[[["[TRUNCATED]"]]]]]]]]"#);
}

#[test]
fn items_are_bounded() {
    let items = |value: &Value| {
        serde_json::from_str::<Value>(&written(value)).unwrap().as_array().unwrap().len()
    };
    assert_eq!(items(&json!(vec![0; 255])), 255);
    assert_eq!(items(&json!(vec![0; 256])), 255);
    let pairs = json!(vec![json!({"token": 1}); 300]);
    assert_eq!(items(&pairs), 128);
}

#[test]
fn a_record_stays_on_its_line() {
    let hostile =
        "\r\n\u{1b}[31m\u{7f}\u{85}\u{2028}\u{2029}\u{202e}\u{2066}\u{200f}\u{feff}\"\\\t";
    let out = written(&json!(hostile));
    assert_eq!(out, r#""\r\n\u001b[31m\u007f\u0085\u2028\u2029\u202e\u2066\u200f\ufeff\"\\\t""#);
    assert_eq!(serde_json::from_str::<String>(&out).unwrap(), hostile);
}

/// A pass that went back over its input would take minutes here.
#[test]
fn long_hostile_text_takes_linear_time() {
    let pieces = ["=", "token=", "a://", "bearer", "bearer ", "token:\\\"", "phone=1 ", "/:", "x@"];
    for piece in pieces {
        let long = piece.repeat(300_000 / piece.len());
        assert!(text(&long).chars().count() <= MAX_CHARS, "{piece}");
    }
}

proptest! {
    #[test]
    fn any_text_becomes_one_bounded_json_string(given in "\\PC*|[\\x00-\\x{2fff}]{0,64}") {
        let out = written(&json!(given));
        let back: String = serde_json::from_str(&out).unwrap();
        prop_assert!(back.chars().count() <= MAX_CHARS);
        prop_assert!(!out.chars().any(moves_the_cursor));
    }

    #[test]
    fn text_without_separators_is_unchanged(given in "[a-z0-9 ,;.]{0,64}") {
        prop_assume!(!given.contains("bearer"));
        prop_assert_eq!(text(&given), given.as_str());
    }

    /// Whatever stands around it, a credential in one of the known forms does not pass.
    #[test]
    fn a_credential_never_passes(
        before in "[ -~\\n]{0,40}[ \\n]",
        name in "[a-z_]{0,5}(authorization|PASSWORD|Secret|token|pHone|mobile)[a-z_]{0,5}",
        form in 0..8,
        after in "([ \\n][ -~\\n]{0,40})?",
    ) {
        let given = match form {
            0 => format!("{before}Bearer {CANARY}{after}"),
            1 => format!("{before}https://me:{CANARY}@host{after}"),
            2 => format!("{before}{name}={CANARY}{after}"),
            3 => format!("{before}{name}: {CANARY}{after}"),
            4 => format!("{before}{name}: Scheme {CANARY}{after}"),
            5 => format!("{before}{{\"{name}\":\"{CANARY}\"}}{after}"),
            6 => format!("{before}{{\\\"{name}\\\":\\\"{CANARY}\\\"}}{after}"),
            _ => format!("{before}{name}='a b {CANARY}'{after}"),
        };
        prop_assert!(!text(&given).contains(CANARY), "{} -> {}", given, text(&given));
    }

    #[test]
    fn redacting_again_finds_nothing_new(given in "[ -~]{0,80}") {
        let once = text(&given).into_owned();
        let twice = text(&once).into_owned();
        prop_assert_eq!(text(&twice), twice.as_str());
    }
}
