//! Whatever is accepted, `serde_json` accepts with the same meaning, and it
//! survives being written and parsed again.

#![no_main]

#[path = "../../tests/it/json/oracle.rs"]
mod oracle;

use libfuzzer_sys::fuzz_target;
use toolgate::domain::canonical::canonical;
use toolgate::domain::json::{Integers, parse, to_json};

fuzz_target!(|text: &[u8]| {
    let safe = parse(text, usize::MAX, Integers::Safe);
    let wide = parse(text, usize::MAX, Integers::Wide);
    if let Ok(safe) = safe {
        assert_eq!(wide.as_ref(), Ok(&safe), "arguments are results too");
    }
    let Ok(value) = wide else { return };

    let theirs = serde_json::from_slice(text).expect("serde_json accepts what is accepted");
    assert!(oracle::is_same(&value, &theirs));

    let written = to_json(&value);
    let again = parse(written.as_bytes(), usize::MAX, Integers::Wide).expect("JSON was written");
    // Canonical bytes tell -0.0 from 0.0, which are equal as doubles.
    assert_eq!(canonical(&again), canonical(&value));
    assert_eq!(to_json(&again), written);
});
