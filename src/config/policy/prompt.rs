//! What a person is asked to confirm, checked when it is loaded.
//!
//! A prompt is plain text with placeholders `{/pointer}`. Braces mean nothing else.

use std::collections::BTreeSet;

use crate::domain::contract::Confirmation;
use crate::domain::refusal::{Code, Finding};
use crate::domain::schema::{Schema, join};

/// Refusals of a confirmation beside the schema of the arguments that it shows.
pub(super) fn check(confirmation: &Confirmation, schema: &Schema, at: &str) -> Vec<Finding> {
    let placeholders = match placeholders(&confirmation.prompt) {
        Ok(placeholders) => placeholders,
        Err(problem) => return vec![invalid(join(at, ["prompt"]), problem)],
    };
    let mut findings = Vec::new();
    for placeholder in placeholders.iter().filter(|placeholder| !schema.declares(placeholder)) {
        let problem = format!("the placeholder {{{placeholder}}} names no declared property");
        findings.push(invalid(join(at, ["prompt"]), &problem));
    }
    let excused: BTreeSet<&str> =
        confirmation.not_shown.iter().map(|(name, _)| name.as_str()).collect();
    let declared = schema.property_names();
    for name in &declared {
        // A placeholder below a property shows a part of it, and leaves out the rest.
        let is_shown = placeholders.contains(join("", [*name]).as_str());
        if !is_shown && !excused.contains(name) {
            findings.push(Finding::new(
                join(at, ["prompt"]),
                Code::PromptIncomplete,
                format!("the prompt leaves out the property {name:?}"),
                format!("add {{{}}} to it, or give a reason under not_shown", join("", [*name])),
            ));
        }
        if is_shown && excused.contains(name) {
            findings.push(invalid(join(at, ["not_shown", name]), "the prompt shows this property"));
        }
    }
    for name in excused.iter().filter(|name| !declared.contains(name)) {
        findings.push(invalid(join(at, ["not_shown", name]), "no such property is declared"));
    }
    findings
}

/// The pointers between braces.
fn placeholders(prompt: &str) -> Result<BTreeSet<String>, &'static str> {
    let mut found = BTreeSet::new();
    let mut rest = prompt;
    while let Some(start) = rest.find(['{', '}']) {
        let inside = rest[start..].strip_prefix('{').ok_or("a } without its {")?;
        let end = inside.find(['{', '}']).filter(|end| inside[*end..].starts_with('}'));
        let pointer = &inside[..end.ok_or("a { without its }")?];
        if !is_pointer(pointer) {
            return Err("braces must hold a JSON Pointer such as {/name}");
        }
        found.insert(pointer.to_owned());
        rest = &inside[pointer.len() + 1..];
    }
    Ok(found)
}

/// RFC 6901, without the pointer to everything.
fn is_pointer(text: &str) -> bool {
    text.starts_with('/')
        && text.split('~').skip(1).all(|rest| rest.starts_with('0') || rest.starts_with('1'))
}

fn invalid(pointer: String, problem: &str) -> Finding {
    let mend = "show declared properties as {/name}, and name the others under not_shown";
    Finding::new(pointer, Code::PromptInvalid, problem, mend)
}
