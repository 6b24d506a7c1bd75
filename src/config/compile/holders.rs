//! Who holds which secret: audit keys and callers.

use std::sync::Arc;

use super::{AUDIT, CALLER, Compiler, KEY};
use crate::config::fields::Fields;
use crate::config::secrets::{Secret, SecretFault};
use crate::domain::audit::is_key_id;
use crate::domain::caller::Role;
use crate::domain::refusal::Code;
use crate::ports::Durability;

/// The audit's part of the configuration.
pub(super) struct Audit {
    pub(super) keys: Vec<(Arc<str>, Secret)>,
    pub(super) read_durability: Durability,
    pub(super) segment_bytes: u64,
}

impl Compiler<'_> {
    pub(super) fn audit(&mut self, top: &Fields<'_>) -> Option<Audit> {
        let value = top.required("audit", &mut self.findings)?;
        let fields = self.fields(value, "/audit", &AUDIT)?;
        let words = [("records", Durability::Written), ("all", Durability::Synced)];
        let read_durability =
            fields.word("sync", &words, &mut self.findings).unwrap_or(Durability::Written);
        let segment_bytes =
            fields.number("segment_bytes", 64 << 20, 64 << 10..=1 << 40, &mut self.findings);
        Some(Audit { keys: self.keys(&fields), read_durability, segment_bytes })
    }

    fn keys(&mut self, audit: &Fields<'_>) -> Vec<(Arc<str>, Secret)> {
        let items = audit.list("keys", &mut self.findings);
        if items.is_empty() {
            self.find(
                "/audit/keys",
                Code::MissingField,
                "there is no audit key",
                "make one with toolgate keygen FILE and add keys: [{id: …, file: FILE}]",
            );
        }
        let mut keys: Vec<(Arc<str>, Secret)> = Vec::with_capacity(items.len());
        for (pointer, item) in items {
            let Some(fields) = self.fields(item, &pointer, &KEY) else { continue };
            let id = fields.required_text("id", &mut self.findings).unwrap_or("");
            if !is_key_id(id) {
                self.find(
                    fields.at("id"),
                    Code::InvalidValue,
                    "the id is outside its form",
                    "use 1 to 64 of A-Z a-z 0-9 _ . - and begin with a letter or digit",
                );
            } else if keys.iter().any(|(other, _)| **other == *id) {
                self.find(
                    fields.at("id"),
                    Code::InvalidValue,
                    "the id is used twice",
                    "give every key its own id",
                );
            }
            if let Some(secret) = self.secret(&fields, "file") {
                keys.push((id.into(), secret));
            }
        }
        keys
    }

    pub(super) fn callers(&mut self, top: &Fields<'_>) -> Vec<(Role, Secret)> {
        let items = top.list("callers", &mut self.findings);
        if items.is_empty() {
            self.find("/callers", Code::MissingField, "nobody may call", "make a secret with toolgate keygen FILE and add callers: [{role: proposer, secret_file: FILE}]");
        }
        let mut callers = Vec::with_capacity(items.len());
        for (pointer, item) in items {
            let Some(fields) = self.fields(item, &pointer, &CALLER) else { continue };
            fields.required("role", &mut self.findings);
            let role = fields.word(
                "role",
                &Role::ALL.map(|role| (role.as_str(), role)),
                &mut self.findings,
            );
            let Some(secret) = self.secret(&fields, "secret_file") else { continue };
            if let Err(fault) = secret.as_credential() {
                self.secret_fault(fields.at("secret_file"), &fault);
            }
            callers.extend(role.map(|role| (role, secret)));
        }
        callers
    }

    fn secret(&mut self, fields: &Fields<'_>, name: &str) -> Option<Secret> {
        let path = fields.required_text(name, &mut self.findings)?;
        Secret::read(&self.relative(path))
            .map_err(|fault| self.secret_fault(fields.at(name), &fault))
            .ok()
    }

    fn secret_fault(&mut self, pointer: String, fault: &SecretFault) {
        self.find(pointer, Code::SecretRefused, fault.to_string(), fault.mend());
    }

    /// One secret for two purposes would let the holder of one act as the other.
    pub(super) fn shared_secrets(
        &mut self,
        keys: &[(Arc<str>, Secret)],
        callers: &[(Role, Secret)],
    ) {
        let keys = keys.iter().map(|(id, secret)| (format!("the audit key {id}"), secret));
        let callers = callers
            .iter()
            .map(|(role, secret)| (format!("a caller of role {}", role.as_str()), secret));
        let all: Vec<_> = keys.chain(callers).collect();
        for (index, (name, secret)) in all.iter().enumerate() {
            if let Some((other, _)) =
                all[..index].iter().find(|(_, other)| other.is_same_as(secret))
            {
                self.find(
                    "/callers",
                    Code::SecretRefused,
                    format!("{other} and {name} share one secret"),
                    "give each its own: toolgate keygen FILE",
                );
            }
        }
    }
}
