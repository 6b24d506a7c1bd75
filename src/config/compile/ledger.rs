//! Where spent tickets and recorded calls are remembered.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::{Compiler, LEDGER};
use crate::adapters::ledger::{PostgresOptions, PostgresTls};
use crate::config::fields::Fields;
use crate::domain::refusal::Code;

/// The ledger of a gate.
#[derive(Debug, Clone)]
pub enum LedgerConfig {
    /// In the data directory.
    Embedded {
        /// How far clocks may differ.
        skew: Duration,
    },
    /// In a database, shared by all replicas.
    Postgres(Box<PostgresOptions>),
}

pub(super) const POSTGRES: [&str; 9] = [
    "host",
    "port",
    "database",
    "user",
    "password_file",
    "tls",
    "connections",
    "connect_timeout",
    "takeover_after",
];
pub(super) const POSTGRES_TLS: [&str; 3] = ["ca", "certificate", "key"];

#[derive(Clone, Copy)]
enum Kind {
    Embedded,
    Postgres,
}

impl Compiler<'_> {
    pub(super) fn ledger(&mut self, value: &Value, skew: Duration) -> Option<LedgerConfig> {
        let fields = self.fields(value, "/ledger", &LEDGER)?;
        fields.required("kind", &mut self.findings);
        let kinds = [("embedded", Kind::Embedded), ("postgres", Kind::Postgres)];
        match fields.word("kind", &kinds, &mut self.findings)? {
            Kind::Embedded => {
                self.not_beside(&fields, "postgres", "an embedded ledger is no database");
                if !fields.boolean("single_replica", false, &mut self.findings) {
                    self.find(
                        "/ledger/single_replica",
                        Code::InvalidValue,
                        "an embedded ledger cannot see what other replicas have spent",
                        "run one replica alone and say so: single_replica: true; several share a ledger of kind postgres",
                    );
                }
                Some(LedgerConfig::Embedded { skew })
            }
            Kind::Postgres => {
                self.not_beside(&fields, "single_replica", "any number of replicas may share it");
                let value = fields.required("postgres", &mut self.findings)?;
                self.postgres(value, skew).map(|options| LedgerConfig::Postgres(Box::new(options)))
            }
        }
    }

    fn not_beside(&mut self, fields: &Fields<'_>, name: &str, why: &str) {
        if fields.get(name).is_some() {
            self.find(
                fields.at(name),
                Code::InvalidValue,
                format!("{name} does not go with this kind: {why}"),
                format!("remove {name}"),
            );
        }
    }

    fn postgres(&mut self, value: &Value, skew: Duration) -> Option<PostgresOptions> {
        let fields = self.said(value, "/ledger/postgres", &POSTGRES)?;
        let host = fields.required_text("host", &mut self.findings);
        let port = fields.number("port", 5_432, 1..=65_535, &mut self.findings);
        let database = fields.required_text("database", &mut self.findings);
        let user = fields.required_text("user", &mut self.findings);
        let password_file = fields.text("password_file", &mut self.findings);
        let password_file = password_file.map(|path| self.relative(path));
        let tls = fields.get("tls").map(|value| self.postgres_tls(&fields.at("tls"), value));
        let connections = fields.number("connections", 8, 1..=256, &mut self.findings);
        let connect_timeout = fields.duration(
            "connect_timeout",
            Duration::from_secs(2),
            Duration::from_millis(100)..=Duration::from_mins(1),
            &mut self.findings,
        );
        let takeover_after = fields.duration(
            "takeover_after",
            Duration::from_secs(30),
            Duration::from_secs(1)..=Duration::from_hours(1),
            &mut self.findings,
        );
        let tls = match tls {
            Some(tls) => Some(tls?),
            None => None,
        };
        let host = host?.to_owned();
        self.reachable(&host, tls.is_some());
        let options = PostgresOptions {
            host,
            port: u16::try_from(port).ok()?,
            database: database?.to_owned(),
            user: user?.to_owned(),
            password_file,
            tls,
            connections: usize::try_from(connections).ok()?,
            connect_timeout,
            takeover_after,
            skew,
        };
        if let Err((field, fault)) = options.check_files() {
            self.find(
                format!("/ledger/postgres/{field}"),
                Code::SecretRefused,
                fault.to_string(),
                if field == "password_file" {
                    "write the role's password into its first line, and chmod 0600 it"
                } else {
                    "write PEM: certificates in ca and certificate, and in key the private key to the first of these"
                },
            );
        }
        Some(options)
    }

    /// Passwords and records do not travel in clear text.
    fn reachable(&mut self, host: &str, has_tls: bool) {
        let is_socket = host.starts_with('/');
        let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if is_socket && has_tls {
            self.find(
                "/ledger/postgres/tls",
                Code::InvalidValue,
                "a Unix socket does not speak TLS",
                "leave tls out, or name a host",
            );
        } else if !is_socket && !is_loopback && !has_tls {
            self.find(
                "/ledger/postgres/tls",
                Code::InsecureAddress,
                "the database is on another machine, and what is sent there would travel in clear text",
                "add tls: {ca: FILE}, or use a Unix socket's directory, 127.0.0.1 or [::1]",
            );
        }
    }

    fn postgres_tls(&mut self, pointer: &str, value: &Value) -> Option<PostgresTls> {
        let fields = self.said(value, pointer, &POSTGRES_TLS)?;
        let ca = fields.required_text("ca", &mut self.findings);
        let certificate = fields.text("certificate", &mut self.findings);
        let key = fields.text("key", &mut self.findings);
        let path = |compiler: &Self, text: &str| -> PathBuf { compiler.relative(text) };
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((path(self, certificate), path(self, key))),
            (None, None) => None,
            (certificate, _) => {
                let missing = if certificate.is_some() { "key" } else { "certificate" };
                self.find(
                    fields.at(missing),
                    Code::MissingField,
                    format!("a certificate and its key come together, and {missing} is missing"),
                    format!("add {missing}: FILE, or leave both out"),
                );
                None
            }
        };
        Some(PostgresTls { ca: self.relative(ca?), identity })
    }
}
