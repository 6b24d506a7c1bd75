//! Connections: how one is made, and what must hold of the server at its other end.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use deadpool::managed::{self, RecycleError, RecycleResult};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::task::JoinHandle;
use tokio_postgres::config::{ChannelBinding, SslMode, TargetSessionAttrs};
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;
use zeroize::Zeroizing;

use super::error::{ConnectFault, Fault};
use super::migrate::Form;
use super::owner::{Identity, Owner};
use super::statements::Statements;
use super::work::{Slot, Work};

/// How a database is reached.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// A DNS name, an IP address, or the directory of a Unix socket.
    pub host: String,
    /// Its port, of a socket's name as well.
    pub port: u16,
    /// The database.
    pub database: String,
    /// The role to log in as.
    pub user: String,
    /// Its password, read whenever a connection is made. Without it the server
    /// knows the role otherwise, by a certificate or by the process.
    pub password_file: Option<PathBuf>,
    /// TLS, which is then required.
    pub tls: Option<PostgresTls>,
    /// The most connections for operations; one more shows that the gate is alive.
    pub connections: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a gate must be gone before another takes over its calls.
    pub takeover_after: Duration,
    /// How far clocks may be apart.
    pub skew: Duration,
}

/// The PEM files of a connection under TLS. The server's name is always verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresTls {
    /// Authorities that vouch for the server.
    pub ca: PathBuf,
    /// What the gate shows of itself: a certificate chain and the key to it.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A statement on the server is ended after this long, so that nobody waits in
/// vain: the gate gives up after 2 s.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Files of certificates and passwords are no longer.
const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_PASSWORD_BYTES: u64 = 4_096;

/// Makes connections of one kind.
pub(super) struct Connector {
    config: Config,
    password_file: Option<PathBuf>,
    tls: Option<PostgresTls>,
    connect_timeout: Duration,
}

/// A connection, set up and judged. Dropping it closes it.
pub(super) struct Connection {
    pub(super) client: Client,
    _io: AbortOnDropHandle<()>,
}

/// A connection for operations, with their statements.
pub(super) struct Working {
    pub(super) connection: Connection,
    pub(super) statements: Statements,
    pub(super) slot: Slot,
}

/// Makes connections for operations, each of which has seen the present owner.
pub(super) struct Manager {
    pub(super) connector: Arc<Connector>,
    pub(super) owner: Owner,
    pub(super) id: Identity,
    /// The sign of life that the database is known to have.
    pub(super) beats: Arc<AtomicI64>,
    pub(super) work: Arc<Work>,
}

pub(super) type Pool = managed::Pool<Manager>;

impl fmt::Display for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}, port {}", self.database, self.host, self.port)
    }
}

impl PostgresOptions {
    /// Judges the files that a connection reads.
    ///
    /// # Errors
    ///
    /// The first that cannot be used, with the place of its field.
    pub fn check_files(&self) -> Result<(), (&'static str, ConnectFault)> {
        if let Some(path) = &self.password_file {
            read_password(path).map_err(|fault| ("password_file", fault))?;
        }
        if let Some(tls) = &self.tls {
            tls.compile().map_err(|fault| (tls.field_of(&fault), fault))?;
        }
        Ok(())
    }
}

impl Connector {
    pub(super) fn new(options: &PostgresOptions) -> Self {
        let mut config = Config::new();
        if options.host.starts_with('/') {
            config.host_path(&options.host);
        } else {
            config.host(&options.host);
        }
        config
            .port(options.port)
            .dbname(&options.database)
            .user(&options.user)
            .application_name(concat!("toolgate ", env!("CARGO_PKG_VERSION")))
            .connect_timeout(options.connect_timeout)
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(10));
        match &options.tls {
            Some(_) => config.ssl_mode(SslMode::Require).channel_binding(ChannelBinding::Prefer),
            None => config.ssl_mode(SslMode::Disable).channel_binding(ChannelBinding::Disable),
        };
        Self {
            config,
            password_file: options.password_file.clone(),
            tls: options.tls.clone(),
            connect_timeout: options.connect_timeout,
        }
    }

    /// Connects, and sets the session's bounds. Files are read again each time.
    pub(super) async fn connect(&self) -> Result<Connection, ConnectFault> {
        let mut config = self.config.clone();
        if let Some(path) = &self.password_file {
            config.password(&*read_password(path)?);
        }
        let (client, io) = match &self.tls {
            None => {
                let connecting = self.in_time(config.connect(NoTls)).await?;
                (connecting.0, spawn(connecting.1))
            }
            Some(files) => {
                let tls = MakeRustlsConnect::new(files.compile()?);
                let connecting = self.in_time(config.connect(tls)).await?;
                (connecting.0, spawn(connecting.1))
            }
        };
        let connection = Connection { client, _io: AbortOnDropHandle::new(io) };
        self.in_time(connection.client.batch_execute(&session())).await?;
        Ok(connection)
    }

    /// Connects to a database that a gate may use: durable, of a form that this
    /// version can use.
    pub(super) async fn connect_to_ledger(&self) -> Result<Connection, ConnectFault> {
        let connection = self.connect().await?;
        let judged = async {
            let client = &connection.client;
            let row = client.query_one(DURABILITY, &[]).await?;
            let settings: [String; 3] = [row.try_get(0)?, row.try_get(1)?, row.try_get(3)?];
            if settings[0] == "off" {
                return Err(ConnectFault::NotDurable("fsync"));
            }
            if settings[1] == "off" {
                return Err(ConnectFault::NotDurable("synchronous_commit"));
            }
            if settings[1] == "local" && !settings[2].trim().is_empty() {
                return Err(ConnectFault::NotReplicated);
            }
            // What was judged holds for this session, whatever is set later.
            let keep = "SELECT set_config('synchronous_commit', $1, false)";
            client.execute(keep, &[&settings[1]]).await?;
            if row.try_get::<_, bool>(2)? {
                return Err(ConnectFault::Standby);
            }
            Form::check(Form::read(client).await?).map_err(ConnectFault::Form)
        };
        match tokio::time::timeout(self.connect_timeout, judged).await {
            Ok(judged) => judged?,
            Err(_) => return Err(ConnectFault::Late),
        }
        Ok(connection)
    }

    /// The wait of the library alone does not bound a server that accepts and says nothing.
    async fn in_time<T>(
        &self,
        connecting: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, ConnectFault> {
        match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(connected) => Ok(connected?),
            Err(_) => Err(ConnectFault::Late),
        }
    }
}

impl managed::Manager for Manager {
    type Type = Working;
    type Error = Fault;

    async fn create(&self) -> Result<Working, Fault> {
        Box::pin(self.make()).await
    }

    async fn recycle(&self, it: &mut Working, _: &managed::Metrics) -> RecycleResult<Fault> {
        if it.connection.client.is_closed() {
            return Err(RecycleError::Backend(Fault::Late));
        }
        Ok(())
    }
}

impl Manager {
    async fn make(&self) -> Result<Working, Fault> {
        let connection = self.connector.connect_to_ledger().await?;
        // A database that was put back to an earlier state has forgotten what was spent.
        let owner = self.id.of(self.owner);
        owner.check(&connection.client, self.beats.load(Ordering::SeqCst)).await?;
        self.work.check(&connection.client, owner.epoch).await?;
        let statements = Statements::prepare(&connection.client).await?;
        Ok(Working { connection, statements, slot: self.work.slot() })
    }
}

impl PostgresTls {
    fn field_of(&self, fault: &ConnectFault) -> &'static str {
        match (fault, &self.identity) {
            (
                ConnectFault::Unreadable(path, _) | ConnectFault::File(path, _),
                Some((certificate, key)),
            ) => {
                if path == key {
                    "tls/key"
                } else if path == certificate {
                    "tls/certificate"
                } else {
                    "tls/ca"
                }
            }
            _ => "tls/ca",
        }
    }

    /// # Errors
    ///
    /// A file that cannot be read, or holds something else.
    pub(super) fn compile(&self) -> Result<ClientConfig, ConnectFault> {
        let fault = |path: &Path, wrong| ConnectFault::File(path.to_owned(), wrong);
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots.add(certificate).map_err(|_| fault(&self.ca, "it holds no certificate"))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| fault(&self.ca, "TLS cannot be set up"))?
            .with_root_certificates(roots);
        let Some((certificate, key)) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let bytes = Zeroizing::new(read(key, MAX_FILE_BYTES)?);
        let private = PrivateKeyDer::from_pem_slice(&bytes)
            .map_err(|_| fault(key, "it holds no private key"))?;
        builder
            .with_client_auth_cert(certificates(certificate)?, private)
            .map_err(|_| fault(key, "it is not the key to the certificate"))
    }
}

/// What holds of every session: nothing waits longer than somebody waits for it.
fn session() -> String {
    let milliseconds = STATEMENT_TIMEOUT.as_millis();
    let mut settings = String::new();
    for (name, value) in [
        ("statement_timeout", milliseconds.to_string()),
        ("lock_timeout", milliseconds.to_string()),
        ("idle_in_transaction_session_timeout", "5000".to_owned()),
        ("tcp_keepalives_idle", "10".to_owned()),
        ("tcp_keepalives_interval", "5".to_owned()),
        ("tcp_keepalives_count", "3".to_owned()),
        ("client_min_messages", "warning".to_owned()),
        ("search_path", "''".to_owned()),
        ("default_transaction_isolation", "'read committed'".to_owned()),
    ] {
        // Writing to a String cannot fail.
        let _ = writeln!(settings, "SET {name} = {value};");
    }
    settings
}

const DURABILITY: &str = "SELECT current_setting('fsync'), current_setting('synchronous_commit'), \
                          pg_is_in_recovery(), current_setting('synchronous_standby_names')";

fn spawn<S, T>(io: tokio_postgres::Connection<S, T>) -> JoinHandle<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    // Whoever waits for an answer is told of its end.
    tokio::spawn(async move { drop(io.await) })
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, ConnectFault> {
    use std::io::Read as _;
    let fault = |wrong| ConnectFault::File(path.to_owned(), wrong);
    let unreadable =
        |error: std::io::Error| ConnectFault::Unreadable(path.to_owned(), error.kind());
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > most { Err(fault("it is too long")) } else { Ok(bytes) }
}

/// The password: the file's first line.
pub(super) fn read_password(path: &Path) -> Result<Zeroizing<Vec<u8>>, ConnectFault> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path)
        .map_err(|error| ConnectFault::Unreadable(path.to_owned(), error.kind()))?;
    if !metadata.is_file() {
        return Err(ConnectFault::File(path.to_owned(), "it is no regular file"));
    }
    if metadata.mode() & 0o007 != 0 {
        return Err(ConnectFault::File(path.to_owned(), "others on the machine may read it"));
    }
    let bytes = Zeroizing::new(read(path, MAX_PASSWORD_BYTES)?);
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err(ConnectFault::File(path.to_owned(), "it holds no password"));
    }
    Ok(Zeroizing::new(line.to_vec()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectFault> {
    let bytes = read(path, MAX_FILE_BYTES)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(ConnectFault::File(path.to_owned(), "it holds no certificate in PEM")),
    }
}
