//! From `toolgate.yaml` to a configuration that can be started, or to every fault
//! of it and of the policy it names.
//!
//! `docs/configuration.md` is the reference; a test holds it and [`FIELDS`] together.

mod callers;
mod holders;
mod journal;
mod jwt;
mod jwt_keys;
mod ledger;
mod listeners;
mod sinks;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tracing::level_filters::LevelFilter;

use super::fault::{Fault, Faults};
use super::fields::Fields;
use super::policy::{self, Loaded, Surroundings};
use super::reads::{Place, Reads, Source};
use super::secrets::Secret;
use crate::adapters::sinks::SinkConfig;
use crate::adapters::upstream::{Endpoint, UpstreamConfig};
use crate::domain::audit::is_key_id;
use crate::domain::refusal::{Code, Finding};
use crate::grpc::server::TransportLimits;
use crate::ports::Durability;

pub use callers::{CallerConfig, Shows};
pub use journal::JournalConfig;
pub use jwt::JwtConfig;
pub use ledger::LedgerConfig;
pub use listeners::{ListenAt, ListenerConfig};

/// Every field of the configuration, by its place. For the reference and its test.
pub const FIELDS: &[(&str, &[&str])] = &[
    ("", &TOP),
    ("/data", &DATA),
    ("/audit", &AUDIT),
    ("/audit/keys/*", &KEY),
    ("/audit/retention", &journal::RETENTION),
    ("/audit/sinks/*", &sinks::SINK),
    ("/audit/sinks/*/otlp", &sinks::OTLP),
    ("/ledger", &LEDGER),
    ("/ledger/postgres", &ledger::POSTGRES),
    ("/ledger/postgres/tls", &ledger::POSTGRES_TLS),
    ("/confirmation", &CONFIRMATION),
    ("/confirmation/keys/*", &KEY),
    ("/listeners/*", &LISTENER),
    ("/listeners/*/tls", &TLS),
    ("/callers/*", &CALLER),
    ("/jwt/*", &jwt::JWT),
    ("/jwt/*/keys/*", &jwt::JWT_KEY),
    ("/jwt/*/claims", &jwt::JWT_CLAIMS),
    ("/callers/*/process", &PROCESS),
    ("/callers/*/certificate", &CERTIFICATE),
    ("/upstreams/*", &UPSTREAM),
    ("/limits", &LIMITS),
    ("/reload", &RELOAD),
    ("/log", &LOG),
];

const TOP: [&str; 16] = [
    "apiVersion",
    "kind",
    "listeners",
    "admin",
    "policy",
    "data",
    "audit",
    "ledger",
    "confirmation",
    "callers",
    "allow_self_confirmation",
    "jwt",
    "upstreams",
    "limits",
    "reload",
    "log",
];
const DATA: [&str; 2] = ["directory", "persistence"];
const AUDIT: [&str; 7] =
    ["keys", "sync", "segment_bytes", "segment_age", "min_free_bytes", "retention", "sinks"];
const LEDGER: [&str; 3] = ["kind", "single_replica", "postgres"];
const CONFIRMATION: [&str; 3] = ["keys", "ticket_ttl", "skew"];
const KEY: [&str; 2] = ["id", "file"];
const LISTENER: [&str; 3] = ["address", "tls", "ways"];
const TLS: [&str; 3] = ["certificate", "key", "client_ca"];
const CALLER: [&str; 6] = ["role", "roles", "tenants", "secret_file", "process", "certificate"];
const PROCESS: [&str; 2] = ["uid", "gid"];
const CERTIFICATE: [&str; 2] = ["spiffe", "dns"];
const UPSTREAM: [&str; 2] = ["endpoint", "connect_timeout"];
const LIMITS: [&str; 8] = [
    "in_flight",
    "max_request_bytes",
    "max_connections",
    "max_connection_age",
    "max_streams_per_connection",
    "journal_queue_events",
    "watchers",
    "drain",
];
const RELOAD: [&str; 1] = ["poll"];
const LOG: [&str; 1] = ["level"];

/// Defaults of semantics, section 10.
const TICKET_TTL: Duration = Duration::from_mins(5);
const SKEW: Duration = Duration::from_secs(30);

/// A configuration and policy without a fault.
#[derive(Debug)]
pub struct Config {
    /// Where clients reach the gate.
    pub listeners: Vec<ListenerConfig>,
    /// Where metrics and probes are.
    pub admin: SocketAddr,
    /// The policy.
    pub policy: Loaded,
    /// The data directory.
    pub data: PathBuf,
    /// Whether it outlives the pod.
    pub persistent: bool,
    /// The secrets behind digests and chain.
    pub audit_secrets: KeySecrets,
    /// How durable the events of plain reads and refusals are.
    pub read_durability: Durability,
    /// The files of the journal.
    pub journal: JournalConfig,
    /// Who gets the journal's events.
    pub sinks: Vec<SinkConfig>,
    /// Who may call.
    pub callers: Vec<CallerConfig>,
    /// Whose tokens callers may show.
    pub jwt: Vec<JwtConfig>,
    /// The registered handlers.
    pub upstreams: BTreeMap<String, UpstreamConfig>,
    /// Requests at once.
    pub in_flight: usize,
    /// Events that may wait for the journal's writer.
    pub journal_queue_events: usize,
    /// Streams that may follow the journal at once.
    pub watchers: usize,
    /// Bounds of each listener.
    pub transport: TransportLimits,
    /// How long running requests may take after SIGTERM.
    pub drain: Duration,
    /// How much is logged.
    pub log_level: LevelFilter,
    /// What writes and confirmations need; `None`: the gate serves plain reads only.
    pub confirmation: Option<ConfirmationConfig>,
    /// How often the files are looked at; `None`: reloads are asked for.
    pub poll: Option<Duration>,
    /// Where it came from.
    pub source: Source,
}

/// Secrets of one purpose with their ids.
#[derive(Debug)]
pub struct KeySecrets {
    /// Signs.
    pub current: (Arc<str>, Secret),
    /// Still verify what they signed before.
    pub former: Vec<(Arc<str>, Secret)>,
}

/// Tickets, and the ledger that remembers their use.
#[derive(Debug)]
pub struct ConfirmationConfig {
    /// The secrets behind tickets and arguments hashes.
    pub secrets: KeySecrets,
    /// How long a ticket is valid, in whole seconds.
    pub ticket_ttl: Duration,
    /// How far clocks may differ, in whole seconds.
    pub skew: Duration,
    /// Where their use is remembered.
    pub ledger: LedgerConfig,
}

/// Compiles a configuration and loads the policy it names. Paths are relative to `file`.
///
/// # Errors
///
/// Every fault of both.
pub fn compile(document: &Value, file: &Path) -> Result<Config, Faults> {
    compile_recorded(document, file, Reads::default()).0
}

/// The same, and everything that was read, beside what was read before.
pub(super) fn compile_recorded(
    document: &Value,
    file: &Path,
    reads: Reads,
) -> (Result<Config, Faults>, Reads) {
    let mut compiler = Compiler { file, findings: Vec::new(), policy_faults: Vec::new(), reads };
    let config = compiler.config(document);
    let name = file.to_string_lossy();
    let mut faults = compiler.policy_faults;
    faults.extend(compiler.findings.into_iter().map(|finding| Fault::new(&name, finding)));
    let outcome = match (config, Faults::collect(faults)) {
        (_, Some(faults)) => Err(faults),
        (Some(mut config), None) => {
            config.source.reads.clone_from(&compiler.reads);
            Ok(config)
        }
        (None, None) => unreachable!("what is missing was found to be missing"),
    };
    (outcome, compiler.reads)
}

struct Compiler<'a> {
    file: &'a Path,
    findings: Vec<Finding>,
    policy_faults: Vec<Fault>,
    reads: Reads,
}

impl Compiler<'_> {
    /// Every part is compiled before any may be missing, so that all faults are found.
    fn config(&mut self, document: &Value) -> Option<Config> {
        let top = self.fields(document, "", &TOP)?;
        self.kind(&top);
        let listeners = self.listeners(&top);
        let admin = self.admin(&top);
        let data = self.data(&top);
        let audit = self.audit(&top);
        let callers = self.callers(&top, &listeners);
        let jwt = self.jwt(&top, &callers);
        let confirmation = self.confirmation(&top);
        self.shared_secrets(audit.as_ref(), confirmation.as_ref(), &callers);
        let upstreams = self.upstreams(&top);
        let limits = self.limits(&top);
        let poll = self.poll(&top);
        let log_level = self.log_level(&top);
        let persistent = data.as_ref().is_some_and(|(_, persistent)| *persistent);
        let policy = self.policy(&top, persistent, confirmation.as_ref());

        let (data, persistent) = data?;
        let audit = audit?;
        let limits = limits?;
        Some(Config {
            listeners,
            admin: admin?,
            policy: policy?,
            data,
            persistent,
            audit_secrets: audit.secrets?,
            read_durability: audit.read_durability,
            journal: audit.journal,
            sinks: audit.sinks,
            callers,
            jwt,
            upstreams: upstreams?,
            in_flight: limits.in_flight,
            journal_queue_events: limits.journal_queue_events,
            watchers: limits.watchers,
            transport: limits.transport,
            drain: limits.drain,
            log_level,
            confirmation,
            poll,
            source: Source {
                file: self.file.to_owned(),
                document: document.clone(),
                reads: Reads::default(),
            },
        })
    }

    fn kind(&mut self, top: &Fields<'_>) {
        let is = |name, wanted| top.get(name).and_then(Value::as_str) == Some(wanted);
        if !is("apiVersion", policy::API_VERSION) || !is("kind", "Gate") {
            self.find(
                "/kind",
                Code::UnknownKind,
                "this is no configuration of a gate",
                format!("begin the file with apiVersion: {} and kind: Gate", policy::API_VERSION),
            );
        }
    }

    fn admin(&mut self, top: &Fields<'_>) -> Option<SocketAddr> {
        let text = top.required_text("admin", &mut self.findings)?;
        self.address("/admin", text)
    }

    fn address(&mut self, pointer: &str, text: &str) -> Option<SocketAddr> {
        let address = text.parse().ok();
        if address.is_none() {
            self.find(
                pointer,
                Code::InvalidValue,
                "this is no address",
                "write an IP address and a port, such as 127.0.0.1:9464",
            );
        }
        address
    }

    fn data(&mut self, top: &Fields<'_>) -> Option<(PathBuf, bool)> {
        let value = top.required("data", &mut self.findings)?;
        let fields = self.fields(value, "/data", &DATA)?;
        let directory = fields.required_text("directory", &mut self.findings);
        fields.required("persistence", &mut self.findings);
        let words = [("ephemeral", false), ("persistent", true)];
        let persistent = fields.word("persistence", &words, &mut self.findings);
        Some((self.relative(directory?), persistent?))
    }

    fn upstreams(&mut self, top: &Fields<'_>) -> Option<BTreeMap<String, UpstreamConfig>> {
        let value = top.required("upstreams", &mut self.findings)?;
        let Value::Object(members) = value else {
            self.find(
                "/upstreams",
                Code::WrongType,
                "this must be a mapping",
                "write upstreams: {NAME: {endpoint: http://127.0.0.1:7500}}",
            );
            return None;
        };
        let mut upstreams = BTreeMap::new();
        for (name, value) in members {
            let pointer = crate::domain::schema::join("/upstreams", [name.as_str()]);
            if !is_key_id(name) {
                self.find(
                    &pointer,
                    Code::InvalidValue,
                    "the upstream's name is outside its form",
                    "use 1 to 64 of A-Z a-z 0-9 _ . - and begin with a letter or digit",
                );
            }
            let Some(fields) = self.fields(value, &pointer, &UPSTREAM) else { continue };
            let connect_timeout = fields.duration(
                "connect_timeout",
                Duration::from_secs(1),
                Duration::from_millis(1)..=Duration::from_mins(1),
                &mut self.findings,
            );
            let Some(endpoint) = fields.required_text("endpoint", &mut self.findings) else {
                continue;
            };
            match endpoint.parse::<Endpoint>() {
                Ok(endpoint) => {
                    upstreams.insert(
                        name.clone(),
                        UpstreamConfig { connect_timeout, ..UpstreamConfig::new(endpoint) },
                    );
                }
                Err(fault) => self.find(
                    fields.at("endpoint"),
                    Code::InvalidValue,
                    fault.to_string(),
                    "write http://HOST:PORT or unix:/PATH",
                ),
            }
        }
        Some(upstreams)
    }

    fn limits(&mut self, top: &Fields<'_>) -> Option<Limits> {
        let none = Value::Object(serde_json::Map::new());
        let fields = self.fields(top.get("limits").unwrap_or(&none), "/limits", &LIMITS)?;
        let max_connection_age = fields.duration(
            "max_connection_age",
            Duration::from_hours(1),
            Duration::from_secs(1)..=Duration::from_hours(24),
            &mut self.findings,
        );
        let mut number =
            |name, default, bounds| fields.number(name, default, bounds, &mut self.findings);
        let transport = TransportLimits {
            max_request_bytes: to_usize(number("max_request_bytes", 1 << 20, 1 << 10..=64 << 20)),
            max_connections: to_usize(number("max_connections", 1_024, 1..=65_536)),
            max_connection_age,
            max_streams_per_connection: u32::try_from(number(
                "max_streams_per_connection",
                256,
                1..=65_536,
            ))
            .ok()?,
        };
        let in_flight = to_usize(number("in_flight", 256, 1..=65_536));
        let journal_queue_events = to_usize(number("journal_queue_events", 8_192, 64..=1 << 20));
        let watchers = to_usize(number("watchers", 1_024, 1..=65_536));
        let bounds = Duration::from_millis(1)..=Duration::from_mins(10);
        let drain = fields.duration("drain", Duration::from_secs(20), bounds, &mut self.findings);
        Some(Limits { in_flight, journal_queue_events, watchers, transport, drain })
    }

    /// How often the files are looked at, if at all.
    fn poll(&mut self, top: &Fields<'_>) -> Option<Duration> {
        let fields = self.fields(top.get("reload")?, "/reload", &RELOAD)?;
        fields.get("poll")?;
        let bounds = Duration::from_millis(100)..=Duration::from_hours(1);
        Some(fields.duration("poll", Duration::from_secs(5), bounds, &mut self.findings))
    }

    fn log_level(&mut self, top: &Fields<'_>) -> LevelFilter {
        let levels = [
            ("error", LevelFilter::ERROR),
            ("warn", LevelFilter::WARN),
            ("info", LevelFilter::INFO),
            ("debug", LevelFilter::DEBUG),
        ];
        let level = top
            .get("log")
            .and_then(|value| self.fields(value, "/log", &LOG))
            .and_then(|fields| fields.word("level", &levels, &mut self.findings));
        level.unwrap_or(LevelFilter::INFO)
    }

    fn policy(
        &mut self,
        top: &Fields<'_>,
        persistent: bool,
        confirmation: Option<&ConfirmationConfig>,
    ) -> Option<Loaded> {
        let directory = top.required_text("policy", &mut self.findings)?;
        let registered = top.get("upstreams").and_then(Value::as_object);
        let surroundings = Surroundings {
            upstreams: registered.into_iter().flatten().map(|(name, _)| name.clone()).collect(),
            persistent,
            ticket_ttl: confirmation.map_or(TICKET_TTL, |terms| terms.ticket_ttl),
            skew: confirmation.map_or(SKEW, |terms| terms.skew),
        };
        let directory = self.relative(directory);
        let (loaded, print) = policy::load_and_print(&directory, &surroundings);
        self.reads.note(Place::Policy(directory.clone()), print);
        match loaded {
            Ok(loaded) => {
                self.check_ledger(top, &loaded);
                Some(loaded)
            }
            Err(faults) => {
                self.policy_faults = faults.within(&directory);
                None
            }
        }
    }

    /// What needs the ledger is not offered by a gate that has none.
    fn check_ledger(&mut self, top: &Fields<'_>, loaded: &Loaded) {
        let needy = loaded.snapshot.contracts().find(|contract| contract.needs_record());
        if let (None, Some(contract)) = (top.get("ledger"), needy) {
            self.find(
                "/ledger",
                Code::MissingField,
                format!("the tool {} needs a ledger, and there is none", contract.name),
                "add ledger: {kind: embedded, single_replica: true} and confirmation: {keys: […]}",
            );
        }
    }

    fn fields<'v>(
        &mut self,
        value: &'v Value,
        pointer: &str,
        known: &[&str],
    ) -> Option<Fields<'v>> {
        Fields::of(value, pointer, known, &mut self.findings)
    }

    fn relative(&self, path: impl AsRef<Path>) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(path)
    }

    fn find(
        &mut self,
        pointer: impl Into<String>,
        code: Code,
        problem: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.findings.push(Finding::new(pointer, code, problem, mend));
    }
}

struct Limits {
    in_flight: usize,
    journal_queue_events: usize,
    watchers: usize,
    transport: TransportLimits,
    drain: Duration,
}

/// Bounds keep every number far below any `usize`.
fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
