//! What a handler's result must be before anybody sees it (semantics, section 7).

use super::contract::Contract;
use super::json::{self, Integers, JsonFault, Value};
use super::schema::SchemaFault;

/// Why a result is withheld. Holds no value, and no name that the schema does not declare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultFault {
    /// It is not one strict JSON object within the contract's size.
    Json(JsonFault),
    /// It breaks the result schema.
    Schema(Vec<SchemaFault>),
}

/// Judges a result: one strict JSON object within the contract's size that fits its result schema.
///
/// # Errors
///
/// See [`ResultFault`].
pub fn judge(contract: &Contract, text: &str) -> Result<Value, ResultFault> {
    let limit = contract.limits.max_result_bytes;
    let value = json::parse_object(text.as_bytes(), limit, Integers::Wide)
        .map(Value::Object)
        .map_err(ResultFault::Json)?;
    match contract.result_schema.as_ref().map(|schema| schema.validate(&value)) {
        Some(Err(faults)) => Err(ResultFault::Schema(faults)),
        Some(Ok(())) | None => Ok(value),
    }
}

impl ResultFault {
    /// The rule of strict JSON, or the keyword of the first fault of the schema.
    #[must_use]
    pub fn rule(&self) -> &str {
        match self {
            Self::Json(fault) => fault.as_str(),
            Self::Schema(faults) => faults.first().map_or("", |fault| &fault.keyword),
        }
    }

    /// The place of that fault, the nearest that the schema declares; empty for the whole.
    #[must_use]
    pub fn pointer(&self) -> &str {
        match self {
            Self::Json(_) => "",
            Self::Schema(faults) => faults.first().map_or("", |fault| &fault.pointer),
        }
    }
}
