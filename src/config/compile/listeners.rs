//! Where clients reach the gate.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;

use super::{Compiler, LISTENER, TLS};
use crate::config::fields::{Fields, text_of};
use crate::domain::refusal::Code;
use crate::grpc::callers::Ways;
use crate::grpc::tls::{Tls, TlsFiles};

/// One listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Where it binds.
    pub at: ListenAt,
    /// How it speaks TLS, if it does.
    pub tls: Option<TlsFiles>,
    /// Which ways in it has.
    pub ways: Ways,
}

/// Where a listener binds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAt {
    /// TCP: loopback, or under TLS.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Compiler<'_> {
    pub(super) fn listeners(&mut self, top: &Fields<'_>) -> Vec<ListenerConfig> {
        let items = top.list("listeners", &mut self.findings);
        if items.is_empty() {
            self.find(
                "/listeners",
                Code::MissingField,
                "there is no listener",
                "add listeners: [unix:/run/toolgate/toolgate.sock] or [127.0.0.1:7443]",
            );
        }
        items.into_iter().filter_map(|(pointer, item)| self.listener(&pointer, item)).collect()
    }

    /// An address alone, or a mapping of it and what is said of it.
    fn listener(&mut self, pointer: &str, item: &Value) -> Option<ListenerConfig> {
        if !item.is_object() {
            let text = text_of(item, pointer, &mut self.findings)?;
            return self.listen_at(pointer, text, None, Ways::ALL);
        }
        let fields = self.said(item, pointer, &LISTENER)?;
        let tls = fields.get("tls").map(|value| self.tls(&fields.at("tls"), value));
        let ways = self.ways(&fields);
        let text = fields.required_text("address", &mut self.findings)?;
        let tls = match tls {
            Some(tls) => Some(tls?),
            None => None,
        };
        self.listen_at(&fields.at("address"), text, tls, ways)
    }

    fn listen_at(
        &mut self,
        pointer: &str,
        text: &str,
        tls: Option<TlsFiles>,
        ways: Ways,
    ) -> Option<ListenerConfig> {
        if let Some(path) = text.strip_prefix("unix:") {
            if tls.is_some() {
                self.find(
                    pointer,
                    Code::InvalidValue,
                    "a Unix socket does not speak TLS: the kernel says who is at its other end",
                    "leave tls out, or listen on TCP",
                );
            }
            return Some(ListenerConfig {
                at: ListenAt::Unix(self.relative(path)),
                tls: None,
                ways,
            });
        }
        let address = self.address(pointer, text)?;
        if tls.is_none() && !address.ip().is_loopback() {
            self.find(
                pointer,
                Code::InsecureAddress,
                "the address can be reached from other machines, and what callers show there would travel in clear text",
                "use unix:/run/toolgate/toolgate.sock, 127.0.0.1 or [::1], or write {address: …, tls: {certificate: FILE, key: FILE}}",
            );
        }
        Some(ListenerConfig { at: ListenAt::Tcp(address), tls, ways })
    }

    fn tls(&mut self, pointer: &str, value: &Value) -> Option<TlsFiles> {
        let fields = self.said(value, pointer, &TLS)?;
        let certificate = fields.required_text("certificate", &mut self.findings);
        let key = fields.required_text("key", &mut self.findings);
        let client_ca = fields.text("client_ca", &mut self.findings);
        let files = TlsFiles {
            certificate: self.relative(certificate?),
            key: self.relative(key?),
            client_ca: client_ca.map(|path| self.relative(path)),
        };
        match Tls::open(files.clone()) {
            Ok(_) => Some(files),
            Err(fault) => {
                let at = fields.at(files.field_of(&fault));
                self.find(at, Code::SecretRefused, fault.to_string(), fault.mend());
                None
            }
        }
    }

    /// The fields of a mapping in which a name with nothing behind it must not mean
    /// what leaving it out means: clear text, say, or every tenant.
    pub(super) fn said<'v>(
        &mut self,
        value: &'v Value,
        pointer: &str,
        known: &[&str],
    ) -> Option<Fields<'v>> {
        let fields = self.fields(value, pointer, known)?;
        let empty = value.as_object()?.iter().filter(|(_, value)| value.is_null());
        for (name, _) in empty {
            self.find(
                fields.at(name),
                Code::WrongType,
                "there is nothing in it",
                format!("say what {name} is, or leave it out"),
            );
        }
        Some(fields)
    }

    fn ways(&mut self, fields: &Fields<'_>) -> Ways {
        if fields.get("ways").is_none() {
            return Ways::ALL;
        }
        let mut ways = Ways { secret: false, process: false, certificate: false };
        let items = fields.list("ways", &mut self.findings);
        if items.is_empty() {
            self.find(
                fields.at("ways"),
                Code::InvalidValue,
                "a listener without a way in lets nobody in",
                "leave ways out for all of them, or name some of secret, process, certificate",
            );
        }
        for (pointer, item) in items {
            match text_of(item, &pointer, &mut self.findings) {
                Some("secret") => ways.secret = true,
                Some("process") => ways.process = true,
                Some("certificate") => ways.certificate = true,
                Some(_) => self.find(
                    pointer,
                    Code::InvalidValue,
                    "this is no way in",
                    "write secret, process or certificate",
                ),
                None => {}
            }
        }
        ways
    }
}

impl fmt::Display for ListenAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
