//! Who gets the journal's events.

use std::time::Duration;

use serde_json::Value;

use super::Compiler;
use crate::adapters::sinks::otlp::{Headers, OtlpConfig, OtlpEndpoint, OtlpEndpointFault, OtlpTls};
use crate::adapters::sinks::{MAX_SINKS, SinkConfig, SinkKind};
use crate::config::fields::Fields;
use crate::domain::audit::is_key_id;
use crate::domain::refusal::Code;

pub(super) const SINK: [&str; 3] = ["name", "stdout", "otlp"];
pub(super) const OTLP: [&str; 6] =
    ["endpoint", "ca", "certificate", "key", "headers_file", "timeout"];

/// What OpenTelemetry's exporters wait.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Compiler<'_> {
    pub(super) fn sinks(&mut self, audit: &Fields<'_>) -> Vec<SinkConfig> {
        let items = audit.list("sinks", &mut self.findings);
        if items.len() > MAX_SINKS {
            self.find(
                audit.at("sinks"),
                Code::LimitOutOfBounds,
                format!("there are more than {MAX_SINKS} sinks"),
                "let one collector hand events on to the others",
            );
            return Vec::new();
        }
        for (index, (pointer, item)) in items.iter().enumerate() {
            let is_before = |name: &str| {
                let value = item.get(name).filter(|value| !value.is_null());
                let others = items.iter().take(index).filter_map(|(_, other)| other.get(name));
                value.is_some_and(|value| others.into_iter().any(|other| other == value))
            };
            if is_before("name") {
                self.find(
                    format!("{pointer}/name"),
                    Code::InvalidValue,
                    "another sink has this name",
                    "give each sink a name of its own: it names the file of its place",
                );
            }
            if is_before("stdout") {
                self.find(
                    format!("{pointer}/stdout"),
                    Code::InvalidValue,
                    "another sink writes to standard output",
                    "leave one of them out",
                );
            }
        }
        items.into_iter().filter_map(|(pointer, item)| self.sink(&pointer, item)).collect()
    }

    fn sink(&mut self, pointer: &str, item: &Value) -> Option<SinkConfig> {
        let fields = self.said(item, pointer, &SINK)?;
        let name = fields.required_text("name", &mut self.findings);
        if name.is_some_and(|name| !is_key_id(name)) {
            self.find(
                fields.at("name"),
                Code::InvalidValue,
                "the sink's name is outside its form",
                "use 1 to 64 of A-Z a-z 0-9 _ . - and begin with a letter or digit",
            );
        }
        let kind = match (fields.get("stdout"), fields.get("otlp")) {
            (Some(stdout), None) => {
                self.fields(stdout, &fields.at("stdout"), &[]).map(|_| SinkKind::Stdout)
            }
            (None, Some(otlp)) => self.otlp(&fields.at("otlp"), otlp).map(SinkKind::Otlp),
            (both, _) => {
                let problem = if both.is_some() {
                    "the sink is of two kinds"
                } else {
                    "the sink is of no kind"
                };
                self.find(
                    pointer,
                    Code::InvalidValue,
                    problem,
                    "write exactly one of stdout: {} and otlp: {endpoint: …}",
                );
                None
            }
        };
        Some(SinkConfig { name: name?.into(), kind: kind? })
    }

    fn otlp(&mut self, pointer: &str, value: &Value) -> Option<OtlpConfig> {
        let fields = self.said(value, pointer, &OTLP)?;
        let text = fields.required_text("endpoint", &mut self.findings);
        let endpoint = text.and_then(|text| self.otlp_endpoint(&fields.at("endpoint"), text));
        let tls = self.otlp_tls(&fields, text.is_some_and(|text| text.starts_with("https://")));
        let headers_file = fields.text("headers_file", &mut self.findings);
        let headers_file = headers_file.map(|file| self.relative(file));
        if let Some(Err(fault)) = headers_file.as_deref().map(Headers::read) {
            let at = fields.at("headers_file");
            self.find(at, Code::SecretRefused, fault.to_string(), fault.mend());
        }
        let bounds = Duration::from_millis(100)..=Duration::from_mins(1);
        let timeout = fields.duration("timeout", TIMEOUT, bounds, &mut self.findings);
        Some(OtlpConfig { endpoint: endpoint?, tls, headers_file, timeout })
    }

    fn otlp_endpoint(&mut self, pointer: &str, text: &str) -> Option<OtlpEndpoint> {
        let fault = match text.parse() {
            Ok(endpoint) => return Some(endpoint),
            Err(fault) => fault,
        };
        match fault {
            OtlpEndpointFault::Form => self.find(
                pointer,
                Code::InvalidValue,
                "this is no endpoint of OTLP over gRPC",
                "write https://HOST:4317, http://127.0.0.1:4317 or unix:/PATH, without a path behind the port",
            ),
            OtlpEndpointFault::ClearText => self.find(
                pointer,
                Code::InsecureAddress,
                "the audit trail would travel to another machine in clear text",
                "write https://HOST:4317 with ca: FILE, or reach a collector on this machine: http://127.0.0.1:4317, unix:/PATH",
            ),
        }
        None
    }

    /// What TLS needs, exactly where there is TLS.
    fn otlp_tls(&mut self, fields: &Fields<'_>, is_tls: bool) -> Option<OtlpTls> {
        let mut file = |name| fields.text(name, &mut self.findings);
        let (ca, certificate, key) = (file("ca"), file("certificate"), file("key"));
        if !is_tls {
            let given = [("ca", ca), ("certificate", certificate), ("key", key)];
            for (name, _) in given.into_iter().filter(|(_, value)| value.is_some()) {
                self.find(
                    fields.at(name),
                    Code::InvalidValue,
                    "this is for TLS, and the endpoint is not https",
                    "write endpoint: https://HOST:4317, or leave this out",
                );
            }
            return None;
        }
        if certificate.is_some() != key.is_some() {
            let missing = if key.is_some() { "certificate" } else { "key" };
            self.find(
                fields.at(missing),
                Code::MissingField,
                "a certificate and the key to it go together",
                "add the other file, or leave both out",
            );
        }
        let Some(ca) = ca else {
            if fields.get("ca").is_none() {
                self.find(
                    fields.at("ca"),
                    Code::MissingField,
                    "nothing says who vouches for the receiver",
                    "add ca: FILE with its authorities; those of the system are mostly in /etc/ssl/certs/ca-certificates.crt",
                );
            }
            return None;
        };
        let identity = certificate.zip(key);
        let identity = identity.map(|(one, other)| (self.relative(one), self.relative(other)));
        let tls = OtlpTls { ca: self.relative(ca), identity };
        if let Err(fault) = tls.read() {
            let at = fields.at(tls.field_of(&fault));
            self.find(at, Code::SecretRefused, fault.to_string(), fault.mend());
        }
        Some(tls)
    }
}
