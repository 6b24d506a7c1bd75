//! The golden vectors, checked as `toolgate conform` does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::path::PathBuf;

use toolgate::cli::conform;

#[test]
fn every_vector_agrees() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let files = ["canonical.jsonl", "audit.jsonl"].map(|name| directory.join(name));
    let mut out = Vec::new();
    let agreed = conform::run(&files, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(agreed, "{out}");
    assert!(out.ends_with("total: 106 agreed, 0 disagreed\n"), "{out}");
}
