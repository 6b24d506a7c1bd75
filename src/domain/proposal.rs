//! What comes in: the caller's context and the model's proposals.

use std::sync::Arc;

/// Who asks, from the authenticated caller, never from a proposal.
///
/// Each field holds 1 to 128 characters without Cc, Cf, Zl, Zp.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Context {
    /// Correlates what one request of the application causes.
    pub request_id: Arc<str>,
    /// Whose conversation it is.
    pub user_id: Arc<str>,
    /// The tenant that everything is scoped by.
    pub tenant_id: Arc<str>,
    /// The conversation.
    pub conversation_id: Arc<str>,
}

/// A context field outside its form. Names the field, never its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextFault {
    /// The field.
    pub field: &'static str,
}

/// One suggested call. Untrusted text; grants nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The suggested id.
    pub tool_call_id: String,
    /// The suggested tool.
    pub name: String,
    /// The suggested arguments.
    pub arguments_json: String,
    /// The suggested number of the first attempt.
    pub attempt: Option<u32>,
    /// The confirmation ticket that came with it, if any.
    pub ticket: Option<String>,
}

/// How a batch goes on after a call that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchMode {
    /// All are admitted before any runs; the first that does not succeed ends the batch.
    StopOnFailure,
    /// Call by call; a failure stops nothing.
    Continue,
}

impl Context {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field outside its form.
    pub fn check(&self) -> Result<(), ContextFault> {
        let fields = [
            ("request_id", &self.request_id),
            ("user_id", &self.user_id),
            ("tenant_id", &self.tenant_id),
            ("conversation_id", &self.conversation_id),
        ];
        match fields.into_iter().find(|(_, text)| !is_context_text(text)) {
            Some((field, _)) => Err(ContextFault { field }),
            None => Ok(()),
        }
    }
}

pub(crate) fn is_context_text(text: &str) -> bool {
    // 128 characters are at most 512 bytes: longer text is not even counted.
    !text.is_empty()
        && text.len() <= 512
        && text.chars().count() <= 128
        && !text.chars().any(is_forbidden)
}

/// Cc, Cf, Zl and Zp of Unicode 17: what no identifier holds and no terminal should be sent.
pub(crate) fn is_forbidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{890}' | '\u{891}' | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}
