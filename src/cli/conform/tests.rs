#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use super::*;

/// What is printed, and whether all agreed.
fn conform(lines: &str) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("v.jsonl");
    fs::write(&file, lines).unwrap();
    let mut out = Vec::new();
    let agreed = run(&[file], &mut out).unwrap();
    let directory = format!("{}/", directory.path().display());
    (agreed, String::from_utf8(out).unwrap().replace(&directory, ""))
}

#[test]
fn agreement_is_counted() {
    let (agreed, out) = conform(concat!(
        "{\"json\":\"{\\\"a\\\":1,\\\"a\\\":1e999}\",\"reject\":\"duplicate_key\"}\n",
        "{\"json\":\"{\\\"a\\\":1,\\\"a\\\":1e999}\",\"reject\":\"non_finite\"}\r\n",
        "\n",
        "{\"json\":\"{}\",\"canonical_hex\":\"6d303a\"}",
    ));
    assert_eq!(out, "v.jsonl: 3 agreed, 0 disagreed\ntotal: 3 agreed, 0 disagreed\n");
    assert!(agreed);
}

#[test]
fn disagreement_says_where_what_was_expected_and_what_was_computed() {
    let (agreed, out) = conform(concat!(
        "{\"json\":\"{}\",\"canonical_hex\":\"6d303b\"}\n",
        "{\"json\":\"{\",\"canonical_hex\":\"6d303a\"}\n",
        "{\"json\":\"{}\",\"reject\":\"syntax\"}\n",
        "{\"json\":\"[1e999]\",\"reject\":\"too_deep\"}\n",
        "{\"json\":\"[\",\"digest\":\"00\"}\n",
    ));
    assert_eq!(
        out,
        "v.jsonl:1: canonical_hex: expected 6d303b, computed 6d303a\n\
         v.jsonl:2: canonical_hex: expected 6d303a, computed reject syntax\n\
         v.jsonl:3: reject: expected syntax, computed accepted\n\
         v.jsonl:4: reject: expected too_deep, computed non_finite\n\
         v.jsonl:5: digest: expected 00, computed reject syntax\n\
         v.jsonl: 0 agreed, 5 disagreed\n\
         total: 0 agreed, 5 disagreed\n"
    );
    assert!(!agreed);
}

#[test]
fn a_line_that_is_no_vector_disagrees_and_says_what_to_mend() {
    for (line, wanted) in [
        ("x", "v.jsonl:1: not a vector: expected value"),
        ("{\"json\":\"{}\"}", "it expects nothing; give `reject`, or"),
        (
            "{\"json\":\"{}\",\"reject\":\"syntax\",\"digest\":\"\"}",
            "members of more than one kind",
        ),
        ("{\"json\":\"{}\",\"reject\":\"odd\"}", "`reject` is \"odd\"; it must be one of syntax, "),
        ("{\"json\":\"{}\",\"rejects\":\"syntax\"}", "unknown field `rejects`"),
        ("{\"reject\":\"syntax\"}", "missing field `json`"),
        ("{\"json\":{},\"reject\":\"syntax\"}", "expected a string"),
        ("{\"json\":\"\",\"summary\":{}}", "missing field `field_count`"),
    ] {
        let (agreed, out) = conform(line);
        assert!(!agreed);
        assert!(out.contains(wanted), "{line} gave {out}");
        assert!(out.ends_with("total: 0 agreed, 1 disagreed\n"), "{line} gave {out}");
    }
}

#[test]
fn no_cases_are_no_agreement() {
    let (agreed, out) = conform("\n \n");
    assert!(!agreed);
    assert_eq!(
        out,
        "v.jsonl: holds no vectors\nv.jsonl: 0 agreed, 1 disagreed\ntotal: 0 agreed, 1 disagreed\n"
    );
    assert!(!run(&[], &mut Vec::new()).unwrap());
    let mut out = Vec::new();
    assert!(!run(&["no/such.jsonl".into()], &mut out).unwrap());
    assert!(String::from_utf8(out).unwrap().starts_with("no/such.jsonl: cannot be read: "));
}

#[test]
fn texts_that_are_not_utf_8_are_checked_as_they_are() {
    for cause in ["syntax", "lone_surrogate"] {
        let line = format!("{{\"json\":\"{{\\\"\\ud800\\\":1}}\",\"reject\":\"{cause}\"}}");
        assert!(conform(&line).0, "{line}");
    }
    assert!(conform("{\"json\":\"{\\\"a\\\":1}\\u0000\",\"reject\":\"syntax\"}").0);
}

#[test]
fn both_limits_of_size_are_too_large() {
    let of = |length: usize, expected: &str| {
        conform(&format!(
            "{{\"json\":\"{{\\\"a\\\":\\\"{}\\\"}}\",{expected}}}",
            "A".repeat(length)
        ))
    };
    let framing = "m8187:k1:av8179:s8174:".len();
    let longest = MAX_CANONICAL_BYTES - framing;
    assert!(of(longest + 1, r#""reject":"too_large""#).0);
    assert!(!of(longest, r#""reject":"too_large""#).0);
    assert!(of(MAX_ARGUMENT_BYTES, r#""reject":"too_large""#).0);
}

#[test]
fn long_texts_are_shown_from_where_they_differ() {
    let (_, out) = conform(&format!(
        "{{\"json\":\"{{\\\"a\\\":\\\"{}\\\"}}\",\"canonical_hex\":\"6d\"}}",
        "A".repeat(1000),
    ));
    assert!(out.contains("expected 6d (from digit 0 of 2), computed 6d313031363a"), "{out}");
    assert!(out.lines().all(|line| line.len() < 450), "{out}");
}
