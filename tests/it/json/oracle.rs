//! What `serde_json` makes of a text, compared with what the gate makes of it.

use toolgate::domain::json::Value;

/// Whether both parsers gave the same meaning.
pub(super) fn is_same(ours: &Value, theirs: &serde_json::Value) -> bool {
    use serde_json::Value as Theirs;

    match (ours, theirs) {
        (Value::Null, Theirs::Null) => true,
        (Value::Bool(ours), Theirs::Bool(theirs)) => ours == theirs,
        // The other parser makes -0 the double that it is in JavaScript.
        (Value::Integer(0), Theirs::Number(theirs)) => theirs.as_f64() == Some(0.0),
        (Value::Integer(ours), Theirs::Number(theirs)) => theirs.as_i64() == Some(*ours),
        (Value::WideInteger(ours), Theirs::Number(theirs)) => {
            let integer = theirs.as_i128().is_some_and(|theirs| ours.parse() == Ok(theirs));
            // Beyond 64 bits the other parser has a double.
            let ours = ours.parse().unwrap();
            integer || theirs.as_f64().is_some_and(|theirs| is_close(ours, theirs))
        }
        (Value::Double(ours), Theirs::Number(theirs)) => {
            theirs.as_f64().is_some_and(|theirs| is_close(*ours, theirs))
        }
        (Value::String(ours), Theirs::String(theirs)) => ours == theirs,
        (Value::Array(ours), Theirs::Array(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().zip(theirs).all(|(ours, theirs)| is_same(ours, theirs))
        }
        (Value::Object(ours), Theirs::Object(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().all(|(name, ours)| {
                    theirs.get(name).is_some_and(|theirs| is_same(ours, theirs))
                })
        }
        _ => false,
    }
}

/// Without its feature `float_roundtrip`, `serde_json` may be off by a unit in the last place.
fn is_close(ours: f64, theirs: f64) -> bool {
    ours.is_sign_negative() == theirs.is_sign_negative()
        && ours.to_bits().abs_diff(theirs.to_bits()) <= 1
}
