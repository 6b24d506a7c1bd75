//! `JSONTestSuite` (Nicolas Seriot, MIT): 318 files that say in their names whether a
//! parser of RFC 8259 must accept (`y_`), must refuse (`n_`) or may choose (`i_`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs};

use toolgate::domain::json::{Integers, JsonFault, parse};

use super::MAX_BYTES;

/// What becomes of files: a fault, or none where they are accepted.
struct Ruling {
    found: Option<JsonFault>,
    /// The rule of the gate that decides.
    rule: &'static str,
    files: &'static [&'static str],
}

/// The `y_` files that the gate refuses, and every `i_` file.
const PINNED: &[Ruling] = &[
    Ruling {
        found: Some(JsonFault::DuplicateKey),
        rule: "a member name comes once in an object",
        files: &["y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json"],
    },
    Ruling {
        found: None,
        rule: "a number becomes the nearest double, which may be zero",
        files: &["i_number_double_huge_neg_exp.json", "i_number_real_underflow.json"],
    },
    Ruling {
        found: Some(JsonFault::NonFinite),
        rule: "the double of a number is finite",
        files: &[
            "i_number_huge_exp.json",
            "i_number_neg_int_huge_exp.json",
            "i_number_pos_double_huge_exp.json",
            "i_number_real_neg_overflow.json",
            "i_number_real_pos_overflow.json",
        ],
    },
    Ruling {
        found: Some(JsonFault::IntegerOutOfRange),
        rule: "an integer is within ±(2^53−1)",
        files: &[
            "i_number_too_big_neg_int.json",
            "i_number_too_big_pos_int.json",
            "i_number_very_big_negative_int.json",
        ],
    },
    Ruling {
        found: Some(JsonFault::LoneSurrogate),
        rule: "a surrogate escape has its pair",
        files: &[
            "i_object_key_lone_2nd_surrogate.json",
            "i_string_1st_surrogate_but_2nd_missing.json",
            "i_string_1st_valid_surrogate_2nd_invalid.json",
            "i_string_incomplete_surrogate_and_escape_valid.json",
            "i_string_incomplete_surrogate_pair.json",
            "i_string_incomplete_surrogates_escape_valid.json",
            "i_string_invalid_lonely_surrogate.json",
            "i_string_invalid_surrogate.json",
            "i_string_inverted_surrogates_U+1D11E.json",
            "i_string_lone_second_surrogate.json",
        ],
    },
    Ruling {
        found: Some(JsonFault::Syntax),
        rule: "the text is UTF-8",
        files: &[
            "i_string_UTF-16LE_with_BOM.json",
            "i_string_UTF-8_invalid_sequence.json",
            "i_string_UTF8_surrogate_U+D800.json",
            "i_string_invalid_utf-8.json",
            "i_string_iso_latin_1.json",
            "i_string_lone_utf8_continuation_byte.json",
            "i_string_not_in_unicode_range.json",
            "i_string_overlong_sequence_2_bytes.json",
            "i_string_overlong_sequence_6_bytes.json",
            "i_string_overlong_sequence_6_bytes_null.json",
            "i_string_truncated-utf-8.json",
            "i_string_utf16BE_no_BOM.json",
            "i_string_utf16LE_no_BOM.json",
        ],
    },
    Ruling {
        found: Some(JsonFault::TooDeep),
        rule: "a value is at most 32 levels below the root",
        files: &["i_structure_500_nested_arrays.json"],
    },
    Ruling {
        found: Some(JsonFault::Syntax),
        rule: "the text has no byte-order mark",
        files: &["i_structure_UTF-8_BOM_empty_object.json"],
    },
];

#[test]
fn every_file_behaves_as_its_name_says() {
    let Some(directory) = env::var_os("TOOLGATE_TEST_DATA") else {
        assert!(env::var_os("CI").is_none(), "TOOLGATE_TEST_DATA must be set where CI is");
        eprintln!("SKIPPED: set TOOLGATE_TEST_DATA to the directory of json-parsing/test_parsing");
        return;
    };
    let directory = PathBuf::from(directory).join("json-parsing/test_parsing");
    let mut pinned = pinned_files();
    let mut wrong = Vec::new();
    let mut files = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let found = parse(&fs::read(&path).unwrap(), MAX_BYTES, Integers::Safe).err();
        files += 1;
        let ruling = pinned.remove(name.as_str());
        let right = match (ruling, name.as_bytes()[0]) {
            // A `y_` file that is accepted needs no ruling, and an `n_` file can have none.
            (Some(ruling), b'y') => ruling.found.is_some() && found == ruling.found,
            (Some(ruling), b'i') => found == ruling.found,
            (None, b'y') => found.is_none(),
            (None, b'n') => found.is_some(),
            _ => false,
        };
        if !right {
            wrong.push(format!("{name}: {found:?}, by the rule {:?}", ruling.map(|r| r.rule)));
        }
    }
    wrong.sort_unstable();
    assert!(wrong.is_empty(), "not as named or pinned:\n{}", wrong.join("\n"));
    assert!(pinned.is_empty(), "pinned, but not there: {:?}", pinned.keys());
    assert_eq!(files, 318, "files of the suite");
}

fn pinned_files() -> BTreeMap<&'static str, &'static Ruling> {
    let mut pinned = BTreeMap::new();
    for ruling in PINNED {
        for file in ruling.files {
            assert!(pinned.insert(*file, ruling).is_none(), "{file} is pinned twice");
        }
    }
    pinned
}
