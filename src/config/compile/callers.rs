//! Who may call, and what they show.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::{CALLER, CERTIFICATE, Compiler, ListenAt, ListenerConfig, PROCESS};
use crate::config::fields::{Fields, text_of};
use crate::config::secrets::Secret;
use crate::domain::caller::{Caller, Role, Roles, Tenants};
use crate::domain::identity::San;
use crate::domain::proposal::is_context_text;
use crate::domain::refusal::{Code, Finding};
use crate::grpc::callers::ProcessMatch;

/// The number that a process of a user seems to have whom this user namespace does not know.
const OVERFLOW_ID: u64 = 65_534;

/// A caller and what it shows.
#[derive(Debug)]
pub struct CallerConfig {
    /// What it may do.
    pub caller: Caller,
    /// What it shows.
    pub shows: Shows,
}

/// What a caller is known by.
#[derive(Debug)]
pub enum Shows {
    /// A bearer secret.
    Secret(Secret),
    /// Its process, on a Unix socket.
    Process(ProcessMatch),
    /// A name of its certificate.
    Certificate(San),
}

impl Compiler<'_> {
    pub(super) fn callers(
        &mut self,
        top: &Fields<'_>,
        listeners: &[ListenerConfig],
    ) -> Vec<CallerConfig> {
        let items = top.list("callers", &mut self.findings);
        if items.is_empty() && top.get("jwt").is_none() {
            self.find("/callers", Code::MissingField, "nobody may call", "make a secret with toolgate keygen FILE and add callers: [{role: proposer, secret_file: FILE}]");
        }
        let may_confirm_its_own = self.self_confirmation(top);
        let mut callers: Vec<CallerConfig> = Vec::with_capacity(items.len());
        for (pointer, item) in items {
            let Some(fields) = self.said(item, &pointer, &CALLER) else { continue };
            let roles = self.roles(&fields);
            let tenants = self.tenants(&fields);
            let shows = self.shows(&fields, listeners);
            let (Some(roles), Some(tenants), Some(shows)) = (roles, tenants, shows) else {
                continue;
            };
            if roles.may_confirm_its_own() && !may_confirm_its_own {
                self.find(
                    fields.at("roles"),
                    Code::InvalidValue,
                    "this caller could confirm what it has proposed itself",
                    "give each role a caller of its own, or add allow_self_confirmation: REASON at the top",
                );
            }
            if callers.iter().any(|other| other.shows.is_the_same_as(&shows)) {
                self.find(
                    pointer,
                    Code::InvalidValue,
                    "another caller is known by the same",
                    "write one caller with all of its roles: roles: [auditor, operator]",
                );
            }
            callers.push(CallerConfig { caller: Caller { roles, tenants, user: None }, shows });
        }
        callers
    }

    pub(super) fn self_confirmation(&mut self, top: &Fields<'_>) -> bool {
        // Text that is blank is no reason, and no text.
        top.text("allow_self_confirmation", &mut self.findings).is_some()
    }

    fn roles(&mut self, fields: &Fields<'_>) -> Option<Roles> {
        let words = Role::ALL.map(|role| (role.as_str(), role));
        match (fields.get("role"), fields.get("roles")) {
            (Some(_), None) => {
                let role = fields.word("role", &words, &mut self.findings)?;
                Some([role].into_iter().collect())
            }
            (None, Some(_)) => {
                let mut roles = Vec::new();
                for (pointer, item) in fields.list("roles", &mut self.findings) {
                    let word = text_of(item, &pointer, &mut self.findings)?;
                    let role = words.iter().find(|(name, _)| *name == word);
                    if role.is_none() {
                        self.find(
                            pointer,
                            Code::InvalidValue,
                            "this is no role",
                            "write some of proposer, confirmer, auditor, operator",
                        );
                    }
                    roles.push(role?.1);
                }
                if roles.is_empty() {
                    self.find(
                        fields.at("roles"),
                        Code::InvalidValue,
                        "a caller without a role may do nothing",
                        "write some of proposer, confirmer, auditor, operator",
                    );
                }
                Some(roles.into_iter().collect())
            }
            _ => {
                self.find(
                    fields.at("role"),
                    Code::MissingField,
                    "a caller has either role or roles",
                    "write role: proposer, or roles: [auditor, operator]",
                );
                None
            }
        }
    }

    pub(super) fn tenants(&mut self, fields: &Fields<'_>) -> Option<Tenants> {
        if fields.get("tenants").is_none() {
            return Some(Tenants::All);
        }
        let items = fields.list("tenants", &mut self.findings);
        let mut tenants: BTreeSet<Arc<str>> = BTreeSet::new();
        for (pointer, item) in &items {
            let text = text_of(item, pointer, &mut self.findings)?;
            if !is_context_text(text) {
                self.find(
                    pointer.clone(),
                    Code::InvalidValue,
                    "this is no tenant's id",
                    "write 1 to 128 characters without control or format characters",
                );
            }
            tenants.insert(text.into());
        }
        if items.is_empty() {
            self.find(
                fields.at("tenants"),
                Code::InvalidValue,
                "a caller without a tenant may do nothing",
                "name its tenants, or leave the field out for all of them",
            );
        }
        Some(Tenants::Only(Arc::new(tenants)))
    }

    fn shows(&mut self, fields: &Fields<'_>, listeners: &[ListenerConfig]) -> Option<Shows> {
        let shown: Vec<_> = ["secret_file", "process", "certificate"]
            .into_iter()
            .filter(|name| fields.get(name).is_some())
            .collect();
        match shown[..] {
            ["secret_file"] => {
                let secret = self.secret(fields, "secret_file")?;
                if let Err(fault) = secret.as_credential() {
                    self.secret_fault(fields.at("secret_file"), &fault);
                }
                Some(Shows::Secret(secret))
            }
            ["process"] => {
                let at = fields.at("process");
                let is_there = |listener: &ListenerConfig| {
                    matches!(listener.at, ListenAt::Unix(_)) && listener.ways.process
                };
                if !listeners.iter().any(is_there) {
                    self.no_way_in(at.clone(), "no listener is a Unix socket that takes processes");
                }
                self.process(&at, fields.get("process")?).map(Shows::Process)
            }
            ["certificate"] => {
                let at = fields.at("certificate");
                let is_there = |listener: &ListenerConfig| {
                    listener.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
                        && listener.ways.certificate
                };
                if !listeners.iter().any(is_there) {
                    self.no_way_in(at.clone(), "no listener verifies client certificates");
                }
                self.certificate(&at, fields.get("certificate")?).map(Shows::Certificate)
            }
            _ => {
                self.find(
                    fields.at("secret_file"),
                    Code::MissingField,
                    "a caller is known by exactly one of secret_file, process and certificate",
                    "make a secret with toolgate keygen FILE and write secret_file: FILE",
                );
                None
            }
        }
    }

    fn no_way_in(&mut self, pointer: String, problem: &str) {
        self.find(
            pointer,
            Code::InvalidValue,
            format!("this caller could never call: {problem}"),
            "add such a listener, or let the caller show something else",
        );
    }

    fn process(&mut self, pointer: &str, value: &Value) -> Option<ProcessMatch> {
        let fields = self.said(value, pointer, &PROCESS)?;
        let mut id = |name: &str| {
            fields.get(name)?;
            let id = fields.number(name, 0, 0..=u64::from(u32::MAX) - 1, &mut self.findings);
            if id == OVERFLOW_ID {
                self.findings.push(Finding::new(
                    fields.at(name),
                    Code::InvalidValue,
                    "whoever the gate's user namespace does not know has this number",
                    "run the caller under a number of its own",
                ));
            }
            u32::try_from(id).ok()
        };
        let process = ProcessMatch { uid: id("uid"), gid: id("gid") };
        if process.uid.is_none() && process.gid.is_none() {
            self.find(
                pointer,
                Code::MissingField,
                "every process would be this caller",
                "write uid: NUMBER, gid: NUMBER, or both",
            );
        }
        Some(process)
    }

    fn certificate(&mut self, pointer: &str, value: &Value) -> Option<San> {
        let fields = self.said(value, pointer, &CERTIFICATE)?;
        let spiffe = fields.text("spiffe", &mut self.findings);
        let dns = fields.text("dns", &mut self.findings);
        let (at, name) = match (spiffe, dns) {
            (Some(id), None) => (fields.at("spiffe"), San::spiffe(id)),
            (None, Some(name)) => (fields.at("dns"), San::dns(name)),
            _ => (pointer.to_owned(), None),
        };
        if name.is_none() {
            self.find(
                at,
                Code::InvalidValue,
                "this is not exactly one name",
                "write spiffe: spiffe://TRUST-DOMAIN/PATH, or dns: NAME without a wildcard",
            );
        }
        name
    }
}

impl Shows {
    /// Whether whoever shows one shows the other.
    fn is_the_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            // A shared secret has a finding of its own.
            (Self::Process(one), Self::Process(other)) => one == other,
            (Self::Certificate(one), Self::Certificate(other)) => one == other,
            _ => false,
        }
    }
}
