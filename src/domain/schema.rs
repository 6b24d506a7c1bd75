//! JSON Schema, Draft 2020-12, over the gate's own values.
//!
//! A schema is one document with every reference inside it: nothing is fetched
//! and nothing is compiled while calls run. Formats are asserted; patterns run
//! in linear time.

mod declarations;
mod explain;
mod lint;
mod names;
mod node;
mod places;
mod size;
mod validator;
mod vet;

#[cfg(test)]
mod tests;

use std::fmt;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{ValidationError, Validator};

use super::json::Value;
use super::refusal::{Code, Finding};
use places::Place;
use validator::Gate;

pub use names::is_generic_executor;
pub use node::{join, percent_decode, percent_encode, tokens};
pub use vet::vet_arguments;

/// The most bytes of a schema's text with everything that it references.
pub const MAX_SCHEMA_BYTES: usize = 256 * 1024;

/// The most faults that one validation reports.
const MAX_FAULTS: usize = 16;

/// The most values of which all faults are looked for.
const MAX_VALUES: usize = 4_096;

/// A compiled schema and its text.
pub struct Schema {
    document: serde_json::Value,
    text: String,
    validator: Validator<Gate>,
    /// Judges members one at a time, where collecting all faults has no bound.
    members: Option<Box<Validator<Gate>>>,
}

/// One fault that a schema found: by place and keyword, never a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFault {
    /// JSON Pointer to the nearest declared place.
    pub pointer: String,
    /// The keyword that refused.
    pub keyword: String,
    /// For `required`: the declared name that is missing.
    pub missing: Option<String>,
}

impl Schema {
    /// Compiles a document that holds every schema it references.
    ///
    /// # Errors
    ///
    /// Everything that makes it no schema to rely on: depth and size, unknown
    /// keywords, formats and patterns that cannot be checked, references that
    /// lead nowhere or in a circle, and what the meta-schema says.
    pub fn compile(document: serde_json::Value) -> Result<Self, Vec<Finding>> {
        if lint::is_too_deep(&document) {
            return Err(vec![Finding::new(
                "",
                Code::SchemaTooDeep,
                format!("the schema is nested more than {} levels", lint::MAX_LEVELS),
                "move inner parts to \"$defs\" and reference them",
            )]);
        }
        let text = document.to_string();
        if text.len() > MAX_SCHEMA_BYTES {
            return Err(vec![Finding::new(
                "",
                Code::SchemaTooLarge,
                format!("with everything it references it has more than {MAX_SCHEMA_BYTES} bytes"),
                "split the tool, or shorten its schema",
            )]);
        }
        let mut findings = lint::lint(&document);
        if findings.is_empty() {
            // Only now: building follows references that might go in a circle.
            // It asks the meta-schema itself, which is asked again for all it says.
            match validator::options().build(&document) {
                Ok(validator) => match single_members(&document) {
                    Ok(members) => return Ok(Self { document, text, validator, members }),
                    Err(error) => findings.extend(not_built(&error, &document)),
                },
                Err(error) => findings.extend(not_built(&error, &document)),
            }
        } else {
            findings.extend(lint::meta(&document));
        }
        findings.sort();
        findings.dedup();
        Err(findings)
    }

    /// The schema as compact JSON text, with every reference inside it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The schema, with every reference inside it.
    #[must_use]
    pub fn document(&self) -> &serde_json::Value {
        &self.document
    }

    /// Whether a value fits.
    #[must_use]
    pub fn is_valid(&self, value: &Value) -> bool {
        self.validator.is_valid(value)
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// At most 16 faults, sorted, each once; at least one.
    pub fn validate(&self, value: &Value) -> Result<(), Vec<SchemaFault>> {
        if self.validator.is_valid(value) {
            return Ok(());
        }
        let mut faults = match &self.members {
            Some(members) => {
                explain::by_members(&self.document, value, |single| members.is_valid(single))
            }
            None => self.collect(value),
        };
        faults.sort_by(|a, b| {
            (&a.pointer, &a.keyword, &a.missing).cmp(&(&b.pointer, &b.keyword, &b.missing))
        });
        faults.dedup();
        faults.truncate(MAX_FAULTS);
        if faults.is_empty() {
            // The quick check refused: whatever the slow one thinks, this is no success.
            let keyword = "schema".to_owned();
            faults.push(SchemaFault { pointer: String::new(), keyword, missing: None });
        }
        Err(faults)
    }

    /// What the validator finds, each once, up to the bound.
    fn collect(&self, value: &Value) -> Vec<SchemaFault> {
        let root = Place::root(&self.document);
        let mut faults: Vec<SchemaFault> = Vec::new();
        for error in self.errors(value) {
            let fault = fault(&error, &root, value);
            if !faults.contains(&fault) {
                faults.push(fault);
            }
            if faults.len() == MAX_FAULTS {
                break;
            }
        }
        faults
    }

    /// The errors of a value: all, or of a large one the first. The validator
    /// finds all of them before it hands out one, and each costs memory.
    fn errors<'v>(&'v self, value: &'v Value) -> Vec<ValidationError<'v>> {
        if holds_more_than(value, MAX_VALUES) {
            self.validator.validate(value).err().into_iter().collect()
        } else {
            self.validator.iter_errors(value).collect()
        }
    }

    /// The names of the properties that the root declares, sorted.
    #[must_use]
    pub fn property_names(&self) -> Vec<&str> {
        Place::root(&self.document).names()
    }

    /// Whether a JSON Pointer names a declared place.
    #[must_use]
    pub fn declares(&self, pointer: &str) -> bool {
        Place::root(&self.document).declared_start(pointer, None) == pointer
    }

    /// An upper bound of the canonical bytes of a value that fits. `None` if there is none.
    #[must_use]
    pub fn max_canonical_bytes(&self) -> Option<u64> {
        size::max_canonical_bytes(&self.document)
    }
}

/// Every `$ref` of a document: the pointer of the schema that holds it, and its text.
#[must_use]
pub fn references(document: &serde_json::Value) -> Vec<(String, String)> {
    let reference = |node: node::Node<'_>| {
        let text = node.get("$ref")?.as_str()?.to_owned();
        Some((node.pointer, text))
    };
    lint::all(document).into_iter().filter_map(reference).collect()
}

/// Whether a document is nested too deep for a schema. To be asked before anything else.
#[must_use]
pub fn is_too_deep(document: &serde_json::Value) -> bool {
    lint::is_too_deep(document)
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schema").field(&self.text).finish()
    }
}

/// A second validator where faults cannot be collected in bounded work.
fn single_members(
    document: &serde_json::Value,
) -> Result<Option<Box<Validator<Gate>>>, ValidationError<'static>> {
    if explain::is_bounded(document) {
        return Ok(None);
    }
    validator::options().build(&explain::for_single_members(document)).map(Box::new).map(Some)
}

fn holds_more_than(value: &Value, most: usize) -> bool {
    let mut left = most;
    let mut waiting = vec![value];
    while let Some(value) = waiting.pop() {
        if left == 0 {
            return true;
        }
        left -= 1;
        match value {
            Value::Array(items) => waiting.extend(items.iter().take(left + 1)),
            Value::Object(members) => {
                waiting.extend(members.iter().take(left + 1).map(|(_, member)| member));
            }
            _ => {}
        }
    }
    false
}

fn not_built(error: &ValidationError<'_>, document: &serde_json::Value) -> Vec<Finding> {
    let said = lint::meta(document);
    if !said.is_empty() {
        return said;
    }
    let problem = format!("the schema does not compile: {}", error.masked());
    let at = error.instance_path().as_str();
    vec![Finding::new(at, Code::SchemaInvalid, problem, "write it more plainly")]
}

fn fault(error: &ValidationError<'_>, root: &Place<'_>, value: &Value) -> SchemaFault {
    let missing = match error.kind() {
        ValidationErrorKind::Required { property } => property.as_str().map(str::to_owned),
        _ => None,
    };
    let path: Vec<String> = tokens(error.schema_path().as_str()).collect();
    let keyword = match error.kind() {
        // The keyword whose subschema is `false`: `additionalProperties`, `items`, `properties` …
        ValidationErrorKind::FalseSchema => {
            path.iter().rev().find(|token| lint::is_known(token)).cloned()
        }
        // Its path is that of the schema for names, which says nothing about the object.
        ValidationErrorKind::PropertyNames { .. } => None,
        _ => path.last().filter(|token| lint::is_known(token)).cloned(),
    };
    SchemaFault {
        pointer: root.declared_start(error.instance_path().as_str(), Some(value)),
        keyword: keyword.unwrap_or_else(|| error.kind().keyword().to_owned()),
        missing,
    }
}
