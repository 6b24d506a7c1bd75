//! What a person is asked to confirm, checked when it is loaded.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::contract::Confirmation;
use crate::domain::prompt::Prompt;
use crate::domain::refusal::{Code, Finding};
use crate::domain::schema::{Schema, join};

/// A confirmation as the document says it.
pub(super) struct Draft<'a> {
    pub(super) prompt: &'a str,
    pub(super) not_shown: BTreeMap<&'a str, &'a str>,
    pub(super) confirm_by: Option<&'a str>,
}

/// Compiles a confirmation beside the schema of the arguments that it shows.
///
/// # Errors
///
/// Everything that is wrong with its prompt.
pub(super) fn compile(
    draft: &Draft<'_>,
    schema: &Schema,
    at: &str,
) -> Result<Confirmation, Vec<Finding>> {
    let prompt = Prompt::parse(draft.prompt)
        .map_err(|fault| vec![invalid(join(at, ["prompt"]), fault.message())])?;
    let findings = check(&prompt, draft, schema, at);
    if !findings.is_empty() {
        return Err(findings);
    }
    let not_shown = draft.not_shown.iter();
    Ok(Confirmation {
        prompt,
        not_shown: not_shown.map(|(&name, &reason)| (name.into(), reason.into())).collect(),
        confirm_by: draft.confirm_by.map(str::to_owned),
    })
}

fn check(prompt: &Prompt, draft: &Draft<'_>, schema: &Schema, at: &str) -> Vec<Finding> {
    let placeholders: BTreeSet<&str> = prompt.pointers().collect();
    let mut findings = Vec::new();
    for placeholder in placeholders.iter().filter(|placeholder| !schema.declares(placeholder)) {
        let problem = format!("the placeholder {{{placeholder}}} names no declared property");
        findings.push(invalid(join(at, ["prompt"]), &problem));
    }
    let excused: BTreeSet<&str> = draft.not_shown.keys().copied().collect();
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

fn invalid(pointer: String, problem: &str) -> Finding {
    let mend = "show declared properties as {/name}, and name the others under not_shown";
    Finding::new(pointer, Code::PromptInvalid, problem, mend)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    fn faults(prompt: &str, not_shown: &[(&'static str, &'static str)]) -> Vec<String> {
        let schema = Schema::compile(json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "order": { "type": "string", "maxLength": 20 },
                "note": { "type": "string", "maxLength": 20 },
            },
        }));
        let not_shown = not_shown.iter().copied().collect();
        let draft = Draft { prompt, not_shown, confirm_by: Some("manager") };
        match compile(&draft, &schema.unwrap(), "/confirmation") {
            Ok(confirmation) => {
                assert_eq!(confirmation.prompt.text(), prompt);
                assert_eq!(confirmation.confirm_by.as_deref(), Some("manager"));
                Vec::new()
            }
            Err(findings) => findings
                .into_iter()
                .map(|finding| format!("{} {}", finding.pointer, finding.problem))
                .collect(),
        }
    }

    #[test]
    fn a_prompt_shows_every_property_or_says_why_not() {
        assert!(faults("Refund {/order} ({/note})?", &[]).is_empty());
        assert!(faults("Refund {/order}?", &[("note", "for the clerk alone")]).is_empty());
        let incomplete = "/confirmation/prompt the prompt leaves out the property";
        assert_eq!(
            faults("Refund?", &[]),
            [format!("{incomplete} \"note\""), format!("{incomplete} \"order\"")]
        );
        assert_eq!(
            faults("{/order} {/note} {/sum}", &[("note", "shown"), ("more", "undeclared")]),
            [
                "/confirmation/prompt the placeholder {/sum} names no declared property",
                "/confirmation/not_shown/note the prompt shows this property",
                "/confirmation/not_shown/more no such property is declared",
            ]
        );
    }

    #[test]
    fn a_text_that_is_no_prompt_is_one_fault() {
        for (prompt, problem) in [
            ("{/order} }", "a } without its {"),
            ("{/order", "a { without its }"),
            ("{order}", "braces must hold a JSON Pointer such as {/name}"),
            (
                "{/order}{/note}",
                "a number could run together with what follows its placeholder; \
                 put a space or a word between them",
            ),
        ] {
            assert_eq!(faults(prompt, &[]), [format!("/confirmation/prompt {problem}")]);
        }
    }
}
