//! One tool as loaded from disk, and the digest of all it says.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::audit::Digest;
use super::canonical::canonical;
use super::json::{MAX_SAFE_INTEGER, Object, Value, object};
use super::prompt::Prompt;
use super::schema::Schema;

/// Whether a tool changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolEffect {
    /// It only reads.
    Read,
    /// It has an effect.
    Write,
}

/// What one tool may be called with, how, and where it goes. Immutable.
#[derive(Debug)]
pub struct Contract {
    /// The name to propose.
    pub name: Arc<str>,
    /// What the tool does, for the model.
    pub description: String,
    /// Whether it changes anything.
    pub effect: ToolEffect,
    /// What the arguments must be.
    pub arguments_schema: Schema,
    /// What the result must be.
    pub result_schema: Option<Schema>,
    /// The registered upstream.
    pub upstream: Arc<str>,
    /// Bounds of one call.
    pub limits: ContractLimits,
    /// Whether an unavailable upstream is tried again (reads only).
    pub retry_unavailable: bool,
    /// Whether string values lose leading and trailing `White_Space`.
    pub trim_strings: bool,
    /// What a person confirms, for a tool that needs it.
    pub confirmation: Option<Confirmation>,
    /// Whether the handler applies one idempotency key once.
    pub handler_deduplicates: bool,
    /// Refusals of loading that this contract answers with a reason.
    pub exceptions: Vec<Exception>,
    /// Further member names whose values the audit redacts, case-folded.
    pub redact: Vec<String>,
    /// Covers all of the above: see [`Contract::seal`].
    pub digest: Digest,
}

/// Bounds of one call. All positive and finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContractLimits {
    /// How long one attempt may take.
    pub attempt_timeout: Duration,
    /// How often the gate tries, the first included.
    pub max_attempts: u32,
    /// Bytes of `arguments_json`.
    pub max_argument_bytes: usize,
    /// Bytes of `result_json`.
    pub max_result_bytes: usize,
    /// Canonical bytes of a call that needs a ticket or a record.
    pub max_authorised_bytes: usize,
    /// How long the ledger remembers a call that needs a record.
    pub record_kept: Duration,
}

/// What a person confirms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// Plain text with JSON-pointer placeholders, `{/question}`.
    pub prompt: Prompt,
    /// Declared properties that the prompt leaves out, with the reason.
    pub not_shown: Vec<(String, String)>,
    /// The user role that may confirm for somebody else.
    pub confirm_by: Option<String>,
}

/// A refusal of loading that the contract answers with a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// The stable name of the refusal's [`Code`](super::refusal::Code).
    pub code: String,
    /// Where it stands: the pointer in the contract, or `file#pointer` in a schema file.
    pub at: String,
    /// Why it is right here.
    pub reason: String,
}

impl Contract {
    /// Whether a call needs a ticket.
    #[must_use]
    pub fn needs_ticket(&self) -> bool {
        self.confirmation.is_some()
    }

    /// Whether a call needs a record in the ledger.
    #[must_use]
    pub fn needs_record(&self) -> bool {
        self.effect == ToolEffect::Write || self.needs_ticket()
    }

    /// The contract with its digest: SHA-256(`toolgate-contract-v1\0` ‖ C(everything it says)).
    ///
    /// Defaults are filled in, so that writing one out changes nothing. A schema
    /// stands with every file that it references once under `$defs`, named by
    /// its path. Exceptions and names are sorted: their order says nothing.
    #[must_use]
    pub fn seal(mut self) -> Self {
        let mut hash = Sha256::new_with_prefix(b"toolgate-contract-v1\0");
        hash.update(canonical(&self.statement()));
        self.digest = Digest(hash.finalize().into());
        self
    }

    fn statement(&self) -> Value {
        let result_schema = self
            .result_schema
            .as_ref()
            .map_or(Value::Null, |schema| statement_of(schema.document()));
        let mut exceptions = self.exceptions.clone();
        exceptions.sort_by(|a, b| (&a.code, &a.at).cmp(&(&b.code, &b.at)));
        let mut redact = self.redact.clone();
        redact.sort();
        redact.dedup();
        object([
            ("name", text(&self.name)),
            ("description", text(&self.description)),
            ("effect", text(self.effect.as_str())),
            ("arguments_schema", statement_of(self.arguments_schema.document())),
            ("result_schema", result_schema),
            ("upstream", text(&self.upstream)),
            ("limits", self.limits.statement()),
            ("retry_unavailable", Value::Bool(self.retry_unavailable)),
            ("trim_strings", Value::Bool(self.trim_strings)),
            (
                "confirmation",
                self.confirmation.as_ref().map_or(Value::Null, Confirmation::statement),
            ),
            ("handler_deduplicates", Value::Bool(self.handler_deduplicates)),
            ("exceptions", Value::Array(exceptions.iter().map(Exception::statement).collect())),
            ("redact", Value::Array(redact.into_iter().map(Value::String).collect())),
        ])
    }
}

impl ToolEffect {
    /// The word in a contract.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl Default for ContractLimits {
    fn default() -> Self {
        Self {
            attempt_timeout: Duration::from_secs(2),
            max_attempts: 1,
            max_argument_bytes: 64 * 1024,
            max_result_bytes: 1024 * 1024,
            max_authorised_bytes: 8 * 1024,
            record_kept: Duration::from_hours(24),
        }
    }
}

impl ContractLimits {
    fn statement(&self) -> Value {
        object([
            ("attempt_timeout_ms", milliseconds(self.attempt_timeout)),
            ("max_attempts", count(self.max_attempts)),
            ("max_argument_bytes", count(self.max_argument_bytes)),
            ("max_result_bytes", count(self.max_result_bytes)),
            ("max_authorised_bytes", count(self.max_authorised_bytes)),
            ("record_kept_ms", milliseconds(self.record_kept)),
        ])
    }
}

impl Confirmation {
    fn statement(&self) -> Value {
        let mut not_shown = self.not_shown.clone();
        not_shown.sort();
        let not_shown = not_shown
            .iter()
            .map(|(name, reason)| object([("name", text(name)), ("reason", text(reason))]));
        object([
            ("prompt", text(self.prompt.text())),
            ("not_shown", Value::Array(not_shown.collect())),
            ("confirm_by", self.confirm_by.as_deref().map_or(Value::Null, text)),
        ])
    }
}

impl Exception {
    fn statement(&self) -> Value {
        object([("code", text(&self.code)), ("at", text(&self.at)), ("reason", text(&self.reason))])
    }
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

/// A number of any size as one that a statement may hold.
pub(super) fn count(count: impl TryInto<i64>) -> Value {
    Value::Integer(count.try_into().unwrap_or(i64::MAX))
}

pub(super) fn milliseconds(duration: Duration) -> Value {
    count(duration.as_millis())
}

/// A document of the policy as a value. Its integers may be wider than an argument's.
fn statement_of(document: &serde_json::Value) -> Value {
    match document {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => number_of(number),
        serde_json::Value::String(string) => text(string),
        serde_json::Value::Array(items) => Value::Array(items.iter().map(statement_of).collect()),
        serde_json::Value::Object(members) => {
            let members = members.iter().map(|(name, member)| (name.clone(), statement_of(member)));
            // The names of a map are distinct.
            Value::Object(Object::from_members(members.collect()).unwrap_or_default())
        }
    }
}

fn number_of(number: &serde_json::Number) -> Value {
    match (number.as_i64(), number.as_u64()) {
        (Some(integer), _) if integer.unsigned_abs() <= MAX_SAFE_INTEGER.unsigned_abs() => {
            Value::Integer(integer)
        }
        (None, None) => Value::Double(number.as_f64().unwrap_or_default()),
        _ => Value::WideInteger(number.to_string().into()),
    }
}
