//! Names that a model must not be able to fill.

use super::super::refusal::{Code, Finding};

/// Properties that the server fills in from the authenticated caller.
const SERVER: [&str; 7] = [
    "tenantid",
    "userid",
    "conversationid",
    "requestid",
    "confirmed",
    "confirmedbyuserid",
    "confirmationid",
];

/// Names of tools and properties that would run whatever they are given.
const EXECUTORS: [&str; 6] = ["sql", "command", "shell", "script", "code", "url"];

/// What is wrong with a property of this name, if anything.
pub(super) fn property(name: &str, pointer: &str) -> Option<Finding> {
    let folded = fold(name);
    if SERVER.contains(&folded.as_str()) {
        return Some(Finding::new(
            pointer,
            Code::ServerProperty,
            format!("the property {name:?} belongs to the server; a model must not fill it"),
            "remove it; the handler receives it with the call",
        ));
    }
    EXECUTORS.contains(&folded.as_str()).then(|| {
        Finding::new(
            pointer,
            Code::GenericExecutor,
            format!("the property {name:?} would let a model run or fetch whatever it likes"),
            "replace it by the few things that the tool is for",
        )
    })
}

/// Whether a tool of this name would run whatever it is given.
#[must_use]
pub fn is_generic_executor(tool: &str) -> bool {
    EXECUTORS.contains(&fold(tool).as_str())
}

/// Without case, `_` and `-`. Through upper case first, so that characters
/// outside ASCII whose upper or lower case is an ASCII letter (ſ, ı, the Kelvin
/// sign) do not make a different name.
fn fold(name: &str) -> String {
    let kept = name.chars().filter(|c| !matches!(c, '_' | '-'));
    kept.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_case_and_separators() {
        for name in ["tenant_id", "TenantID", "tenant-id", "T_e_N_a_N_t_i_d", "confirmed"] {
            let code = property(name, "").map(|finding| finding.code);
            assert_eq!(code, Some(Code::ServerProperty), "{name}");
        }
        for name in ["sql", "SQL", "s_q_l", "\u{17f}hell", "\u{17f}cr\u{131}pt", "URL"] {
            let code = property(name, "").map(|finding| finding.code);
            assert_eq!(code, Some(Code::GenericExecutor), "{name}");
        }
    }

    #[test]
    fn only_whole_names_are_refused() {
        for name in ["tenant", "my_tenant_id", "sql_dialect", "url2", "postcode", ""] {
            assert_eq!(property(name, ""), None, "{name}");
        }
    }
}
