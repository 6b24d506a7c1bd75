//! Canonical bytes decode to the value that they came from, so no two values share them.

#![no_main]

#[path = "../../tests/it/json/decoder.rs"]
mod decoder;

use libfuzzer_sys::fuzz_target;
use toolgate::domain::canonical::canonical;
use toolgate::domain::json::{Integers, parse, to_json};

fuzz_target!(|input: &[u8]| {
    if let Ok(value) = parse(input, usize::MAX, Integers::Wide) {
        let decoded = decoder::decode(&canonical(&value)).expect("canonical bytes decode");
        assert_eq!(to_json(&decoded), to_json(&value));
    }
});
