//! The closed set of claims.

use std::sync::Arc;

use uuid::{Uuid, Variant, Version};

use super::compact;
use crate::domain::audit::{Digest, is_call_id, is_tool_name};
use crate::domain::json::{Object, Value, object, to_json};
use crate::domain::proposal::is_context_text;

/// The longest `aud`, in bytes.
pub(super) const MAX_AUDIENCE: usize = 64;

/// What a ticket says. Proves nothing by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// `jti`: a random UUID, in lower case with hyphens.
    pub confirmation_id: Arc<str>,
    /// The call's id.
    pub tool_call_id: Arc<str>,
    /// The tool.
    pub tool: Arc<str>,
    /// The keyed hash of the arguments, under the key that signs.
    pub arguments_hash: Digest,
    /// The contract that the person saw in force.
    pub contract_digest: Digest,
    /// The tenant.
    pub tenant_id: Arc<str>,
    /// The conversation.
    pub conversation_id: Arc<str>,
    /// Whose conversation it is.
    pub user_id: Arc<str>,
    /// `sub`: who confirmed.
    pub confirmed_by_user_id: Arc<str>,
    /// `iat`, in seconds since 1970.
    pub confirmed_at: i64,
    /// `exp`, in seconds since 1970.
    pub expires_at: i64,
    /// What the confirmation is good for: the tool's name.
    pub purpose: Arc<str>,
    /// `aud`: the ledger that remembers its use.
    pub audience: Arc<str>,
}

/// The names of all claims.
const NAMES: [&str; 13] = [
    "arguments_hash",
    "aud",
    "contract_digest",
    "conversation_id",
    "exp",
    "iat",
    "jti",
    "purpose",
    "sub",
    "tenant_id",
    "tool",
    "tool_call_id",
    "user_id",
];

impl Claims {
    /// The payload: compact JSON, its members in the order of their names' bytes.
    pub(super) fn to_json(&self) -> String {
        to_json(&object([
            ("arguments_hash", self.arguments_hash.to_string().into()),
            ("aud", (*self.audience).into()),
            ("contract_digest", self.contract_digest.to_string().into()),
            ("conversation_id", (*self.conversation_id).into()),
            ("exp", Value::Integer(self.expires_at)),
            ("iat", Value::Integer(self.confirmed_at)),
            ("jti", (*self.confirmation_id).into()),
            ("purpose", (*self.purpose).into()),
            ("sub", (*self.confirmed_by_user_id).into()),
            ("tenant_id", (*self.tenant_id).into()),
            ("tool", (*self.tool).into()),
            ("tool_call_id", (*self.tool_call_id).into()),
            ("user_id", (*self.user_id).into()),
        ]))
    }

    /// Reads a payload segment whose MAC has verified: strict JSON, the closed set,
    /// each claim of its type and within the form that it has in the audit.
    ///
    /// The order of the members and white space between them are free: they say
    /// nothing, and the MAC covers them.
    pub(super) fn read(payload: &str) -> Option<Self> {
        let claims = compact::object(payload)?;
        if claims.len() != NAMES.len() || NAMES.iter().any(|name| !claims.contains(name)) {
            return None;
        }
        Some(Self {
            confirmation_id: text(&claims, "jti", is_random_uuid)?,
            tool_call_id: text(&claims, "tool_call_id", is_call_id)?,
            tool: text(&claims, "tool", is_tool_name)?,
            arguments_hash: Digest::from_hex(claims.get("arguments_hash")?.as_str()?)?,
            contract_digest: Digest::from_hex(claims.get("contract_digest")?.as_str()?)?,
            tenant_id: text(&claims, "tenant_id", is_context_text)?,
            conversation_id: text(&claims, "conversation_id", is_context_text)?,
            user_id: text(&claims, "user_id", is_context_text)?,
            confirmed_by_user_id: text(&claims, "sub", is_context_text)?,
            confirmed_at: claims.get("iat")?.as_integer()?,
            expires_at: claims.get("exp")?.as_integer()?,
            purpose: text(&claims, "purpose", is_tool_name)?,
            audience: text(&claims, "aud", is_audience)?,
        })
    }
}

fn text(claims: &Object, name: &str, has_form: fn(&str) -> bool) -> Option<Arc<str>> {
    claims.get(name)?.as_str().filter(|text| has_form(text)).map(Arc::from)
}

fn is_audience(text: &str) -> bool {
    text.len() <= MAX_AUDIENCE && is_context_text(text)
}

/// Version 4 of RFC 9562, as the gate writes it.
fn is_random_uuid(text: &str) -> bool {
    Uuid::try_parse(text).is_ok_and(|id| {
        id.get_version() == Some(Version::Random)
            && id.get_variant() == Variant::RFC4122
            && *id.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == *text
    })
}
