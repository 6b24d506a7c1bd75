//! Reading the line of an administrative event.

use std::sync::Arc;

use serde::Deserialize;

use super::{RecordFault, read_digest, read_time, read_trace_id};
use crate::domain::audit::{
    AdminEvent, AdminKind, Entry, KeyChange, KeyPurpose, ReloadResult, ReloadTrigger, Stamp,
};
use crate::domain::proposal::Context;

/// The fields of all administrative records. A field of another kind than the
/// record's is a fault by the form: writing would leave it out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdminFields {
    event: String,
    journal_id: String,
    sequence: u64,
    time: String,
    request_id: Option<String>,
    user_id: Option<String>,
    tenant_id: Option<String>,
    conversation_id: Option<String>,
    tool_call_id: Option<String>,
    tool: Option<String>,
    confirmation_id: Option<String>,
    confirmed_by_user_id: Option<String>,
    confirmed_at: Option<String>,
    confirmation_expires_at: Option<String>,
    reload_result: Option<String>,
    reload_trigger: Option<String>,
    policy_digest_before: Option<String>,
    key_purpose: Option<String>,
    key_id: Option<String>,
    policy_digest: String,
    audit_key_id: String,
    trace_id: Option<String>,
    mac: String,
}

impl AdminFields {
    pub(super) fn into_record(self) -> Result<(Entry, Stamp), RecordFault> {
        let kind = self.kind()?;
        let context = self.context()?;
        let stamp = Stamp {
            journal_id: self.journal_id.into(),
            sequence: self.sequence,
            mac: read_digest("mac", &self.mac)?,
        };
        let event = AdminEvent {
            kind,
            time: read_time("time", &self.time)?,
            context,
            confirmation_id: self.confirmation_id.map(Arc::from),
            policy_digest: read_digest("policy_digest", &self.policy_digest)?,
            audit_key_id: self.audit_key_id.into(),
            trace_id: self.trace_id.as_deref().map(read_trace_id).transpose()?,
        };
        Ok((Entry::Admin(Arc::new(event)), stamp))
    }

    /// The four fields of a context, which stand together or not at all.
    fn context(&self) -> Result<Option<Arc<Context>>, RecordFault> {
        if self.request_id.is_none() {
            return Ok(None);
        }
        Ok(Some(Arc::new(Context {
            request_id: field("request_id", self.request_id.as_ref())?.into(),
            user_id: field("user_id", self.user_id.as_ref())?.into(),
            tenant_id: field("tenant_id", self.tenant_id.as_ref())?.into(),
            conversation_id: field("conversation_id", self.conversation_id.as_ref())?.into(),
        })))
    }

    fn kind(&self) -> Result<AdminKind, RecordFault> {
        match self.event.as_str() {
            "confirmation_revoked" => Ok(AdminKind::ConfirmationRevoked),
            "confirmation_issued" => self.issued(),
            "reload" => Ok(AdminKind::Reload {
                result: word(
                    "reload_result",
                    self.reload_result.as_ref(),
                    ReloadResult::from_word,
                )?,
                trigger: word(
                    "reload_trigger",
                    self.reload_trigger.as_ref(),
                    ReloadTrigger::from_word,
                )?,
                policy_digest_before: read_digest(
                    "policy_digest_before",
                    field("policy_digest_before", self.policy_digest_before.as_ref())?,
                )?,
            }),
            event => Ok(AdminKind::Key {
                change: KeyChange::from_word(event).ok_or(RecordFault::Field("event"))?,
                purpose: word("key_purpose", self.key_purpose.as_ref(), KeyPurpose::from_word)?,
                key_id: field("key_id", self.key_id.as_ref())?.into(),
            }),
        }
    }

    fn issued(&self) -> Result<AdminKind, RecordFault> {
        Ok(AdminKind::ConfirmationIssued {
            tool_call_id: field("tool_call_id", self.tool_call_id.as_ref())?.into(),
            tool: field("tool", self.tool.as_ref())?.into(),
            confirmed_by_user_id: field(
                "confirmed_by_user_id",
                self.confirmed_by_user_id.as_ref(),
            )?
            .into(),
            confirmed_at: read_time(
                "confirmed_at",
                field("confirmed_at", self.confirmed_at.as_ref())?,
            )?,
            confirmation_expires_at: read_time(
                "confirmation_expires_at",
                field("confirmation_expires_at", self.confirmation_expires_at.as_ref())?,
            )?,
        })
    }
}

fn field<'a>(name: &'static str, value: Option<&'a String>) -> Result<&'a str, RecordFault> {
    value.map(String::as_str).ok_or(RecordFault::Field(name))
}

fn word<T>(
    name: &'static str,
    value: Option<&String>,
    from_word: impl Fn(&str) -> Option<T>,
) -> Result<T, RecordFault> {
    from_word(field(name, value)?).ok_or(RecordFault::Field(name))
}
