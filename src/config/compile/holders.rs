//! Keys of audit and confirmation, and the ledger.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{
    AUDIT, CONFIRMATION, CallerConfig, Compiler, ConfirmationConfig, JournalConfig, KEY,
    KeySecrets, LedgerConfig, SKEW, Shows, TICKET_TTL,
};
use crate::adapters::sinks::SinkConfig;
use crate::config::fields::Fields;
use crate::config::reads::Place;
use crate::config::secrets::{Secret, SecretFault};
use crate::domain::audit::is_key_id;
use crate::domain::caller::Role;
use crate::domain::refusal::Code;
use crate::ports::Durability;

/// Keys of one purpose at once. A reload that replaces all of both purposes must
/// fit into the smallest queue of the journal, an event each.
const MAX_KEYS: usize = 8;

/// The audit's part of the configuration.
pub(super) struct Audit {
    pub(super) secrets: Option<KeySecrets>,
    pub(super) read_durability: Durability,
    pub(super) journal: JournalConfig,
    pub(super) sinks: Vec<SinkConfig>,
}

impl Compiler<'_> {
    pub(super) fn audit(&mut self, top: &Fields<'_>) -> Option<Audit> {
        let value = top.required("audit", &mut self.findings)?;
        let fields = self.fields(value, "/audit", &AUDIT)?;
        let words = [("records", Durability::Written), ("all", Durability::Synced)];
        let read_durability =
            fields.word("sync", &words, &mut self.findings).unwrap_or(Durability::Written);
        let journal = self.journal(&fields);
        let secrets = self.keys(&fields, "audit");
        Some(Audit { secrets, read_durability, journal, sinks: self.sinks(&fields) })
    }

    /// Tickets and the ledger that remembers them: either both or neither.
    pub(super) fn confirmation(&mut self, top: &Fields<'_>) -> Option<ConfirmationConfig> {
        match (top.get("ledger"), top.get("confirmation")) {
            (None, None) => None,
            (Some(ledger), None) => {
                self.ledger(ledger, SKEW);
                self.find(
                    "/confirmation",
                    Code::MissingField,
                    "there is a ledger, and no key for the tickets that it remembers",
                    "make one with toolgate keygen FILE and add confirmation: {keys: [{id: …, file: FILE}]}",
                );
                None
            }
            (ledger, Some(value)) => {
                if ledger.is_none() {
                    self.find(
                        "/ledger",
                        Code::MissingField,
                        "there are confirmation keys, and no ledger to remember the tickets' use",
                        "add ledger: {kind: embedded, single_replica: true}",
                    );
                }
                self.terms(value, ledger)
            }
        }
    }

    fn terms(&mut self, value: &Value, ledger: Option<&Value>) -> Option<ConfirmationConfig> {
        let fields = self.fields(value, "/confirmation", &CONFIRMATION)?;
        let secrets = self.keys(&fields, "confirmation");
        let ticket_ttl = fields.duration(
            "ticket_ttl",
            TICKET_TTL,
            Duration::from_secs(1)..=Duration::from_hours(1),
            &mut self.findings,
        );
        let skew = fields.duration(
            "skew",
            SKEW,
            Duration::from_secs(1)..=Duration::from_mins(5),
            &mut self.findings,
        );
        for (name, duration) in [("ticket_ttl", ticket_ttl), ("skew", skew)] {
            if duration.subsec_nanos() != 0 {
                self.find(
                    fields.at(name),
                    Code::InvalidValue,
                    "a ticket's times are whole seconds",
                    "write a number of whole seconds, such as 30s or 5m",
                );
            }
        }
        // One that is missing or at fault was told, and the keys are judged all the same.
        let ledger = ledger.and_then(|value| self.ledger(value, skew));
        let ledger = ledger.unwrap_or(LedgerConfig::Embedded { skew });
        Some(ConfirmationConfig { secrets: secrets?, ticket_ttl, skew, ledger })
    }

    /// The keys of one purpose, the first of which signs.
    fn keys(&mut self, holder: &Fields<'_>, purpose: &str) -> Option<KeySecrets> {
        let items = holder.list("keys", &mut self.findings);
        if items.is_empty() {
            self.find(
                holder.at("keys"),
                Code::MissingField,
                format!("there is no {purpose} key"),
                "make one with toolgate keygen FILE and add keys: [{id: …, file: FILE}]",
            );
        }
        if items.len() > MAX_KEYS {
            self.find(
                holder.at("keys"),
                Code::LimitOutOfBounds,
                format!("there are {} {purpose} keys; at most {MAX_KEYS} are taken", items.len()),
                "remove those whose tickets, calls and records are over",
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
        let mut keys = keys.into_iter();
        Some(KeySecrets { current: keys.next()?, former: keys.collect() })
    }

    pub(super) fn secret(&mut self, fields: &Fields<'_>, name: &str) -> Option<Secret> {
        let path = fields.required_text(name, &mut self.findings)?;
        Place::read_secret(&self.relative(path), &mut self.reads)
            .map_err(|fault| self.secret_fault(fields.at(name), &fault))
            .ok()
    }

    pub(super) fn secret_fault(&mut self, pointer: String, fault: &SecretFault) {
        self.find(pointer, Code::SecretRefused, fault.to_string(), fault.mend());
    }

    /// One secret for two purposes would let the holder of one act as the other.
    pub(super) fn shared_secrets(
        &mut self,
        audit: Option<&Audit>,
        confirmation: Option<&ConfirmationConfig>,
        callers: &[CallerConfig],
    ) {
        let audit = audit.and_then(|audit| audit.secrets.as_ref());
        let confirmation = confirmation.map(|terms| &terms.secrets);
        let keys = [("audit", audit), ("confirmation", confirmation)]
            .into_iter()
            .filter_map(|(purpose, secrets)| Some((purpose, secrets?)))
            .flat_map(|(purpose, secrets)| {
                let all = std::iter::once(&secrets.current).chain(&secrets.former);
                all.map(move |(id, secret)| (format!("the {purpose} key {id}"), secret))
            });
        let callers = callers.iter().filter_map(|CallerConfig { caller, shows }| match shows {
            Shows::Secret(secret) => {
                let roles: Vec<_> = caller.roles.iter().map(Role::as_str).collect();
                Some((format!("a caller of role {}", roles.join(" and ")), secret))
            }
            Shows::Process(_) | Shows::Certificate(_) => None,
        });
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
