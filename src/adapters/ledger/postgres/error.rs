//! Why a ledger on PostgreSQL cannot be used, and what an operator does about it.

use std::error::Error as _;
use std::fmt;
use std::path::PathBuf;

use deadpool::managed::PoolError;
use tokio_postgres::error::SqlState;

use super::migrate::{FORM, FormFault};
use crate::adapters::ledger::format::FormatFault;

/// Why no connection was made. Holds nothing that a server has said beyond its code.
#[derive(Debug)]
pub enum ConnectFault {
    /// A file cannot be read.
    Unreadable(PathBuf, std::io::ErrorKind),
    /// A file is not what it should be.
    File(PathBuf, &'static str),
    /// The server cannot be reached, does not know the role, or does not know the database.
    Database(DatabaseFault),
    /// It took too long.
    Late,
    /// A setting of the server by which committed transactions can be lost.
    NotDurable(&'static str),
    /// The role's commits do not wait for the standbys that the server names.
    NotReplicated,
    /// The server takes no writes: it is a standby.
    Standby,
    /// The database does not have the form that this version needs.
    Form(FormFault),
}

/// What a database has answered, or where the way to it broke.
#[derive(Debug)]
pub struct DatabaseFault {
    /// SQLSTATE, where the server has answered.
    pub(super) code: Option<String>,
    /// What failed, in words of the library or the system: never the server's.
    text: String,
}

/// Why an operation was not done.
#[derive(Debug)]
pub(super) enum Fault {
    /// No connection could be made.
    Connect(ConnectFault),
    /// The database failed, or the way to it.
    Database(DatabaseFault),
    /// It took too long.
    Late,
    /// A successor has taken over.
    Fenced,
    /// The database lacks what it has acknowledged.
    WentBack,
    /// What is stored is not what was written. Names a field, never a value.
    Content(&'static str),
}

/// Why a ledger does not open. Nothing that it remembers was changed.
#[derive(Debug)]
pub enum PostgresError {
    /// No connection could be made that a gate may use.
    Connect(ConnectFault),
    /// The database failed.
    Database(DatabaseFault),
    /// What is stored cannot be read.
    Content(&'static str),
    /// A gate is running on it.
    InUse(i32),
    /// It lacks what it has acknowledged to a gate.
    Lacks,
}

impl From<tokio_postgres::Error> for DatabaseFault {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code().map(|code| code.code().to_owned());
        let text = if code.is_some() {
            String::new()
        } else {
            // The library's own words, and those of the system below it.
            let mut text = error.to_string();
            if let Some(source) = error.source()
                && !text.contains(&source.to_string())
            {
                text = format!("{text}: {source}");
            }
            if text.contains("does not allow writes") {
                "the server is a standby; name the primary".to_owned()
            } else {
                text
            }
        };
        Self { code, text }
    }
}

impl From<tokio_postgres::Error> for ConnectFault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

impl From<tokio_postgres::Error> for PostgresError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

impl From<ConnectFault> for Fault {
    fn from(fault: ConnectFault) -> Self {
        Self::Connect(fault)
    }
}

impl From<ConnectFault> for PostgresError {
    fn from(fault: ConnectFault) -> Self {
        Self::Connect(fault)
    }
}

impl From<FormatFault> for Fault {
    fn from(fault: FormatFault) -> Self {
        Self::Content(fault.0)
    }
}

impl From<Fault> for PostgresError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Connect(fault) => Self::Connect(fault),
            Fault::Database(fault) => Self::Database(fault),
            Fault::Late | Fault::Fenced | Fault::WentBack => Self::Connect(ConnectFault::Late),
            Fault::Content(field) => Self::Content(field),
        }
    }
}

impl From<PoolError<Fault>> for Fault {
    fn from(error: PoolError<Fault>) -> Self {
        match error {
            PoolError::Backend(fault) => fault,
            _ => Self::Late,
        }
    }
}

impl fmt::Display for DatabaseFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => {
                write!(f, "the server answered SQLSTATE {code}, {}", meaning(code))
            }
            None => f.write_str(&self.text),
        }
    }
}

/// The codes that a configuration can bring about.
fn meaning(code: &str) -> &'static str {
    let is = |state: &SqlState| state.code() == code;
    if is(&SqlState::INVALID_PASSWORD) || is(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) {
        "it does not know the role, or was shown the wrong secret; look at user, password_file and pg_hba.conf"
    } else if is(&SqlState::INVALID_CATALOG_NAME) {
        "there is no such database"
    } else if is(&SqlState::INSUFFICIENT_PRIVILEGE) {
        "the role may not do this: see the grants in docs/operations.md"
    } else if is(&SqlState::TOO_MANY_CONNECTIONS) {
        "it has no connection left: max_connections is less than what all gates take together"
    } else if is(&SqlState::QUERY_CANCELED) || is(&SqlState::LOCK_NOT_AVAILABLE) {
        "it took too long"
    } else if is(&SqlState::DUPLICATE_SCHEMA) {
        "the schema toolgate is there, and holds no ledger; run toolgate ledger migrate as its \
         owner, or have it dropped"
    } else if is(&SqlState::DISK_FULL) {
        "its disk is full"
    } else if is(&SqlState::ADMIN_SHUTDOWN) || is(&SqlState::CANNOT_CONNECT_NOW) {
        "it is stopping or starting"
    } else {
        "see the appendix of the PostgreSQL manual"
    }
}

impl fmt::Display for ConnectFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(path, kind) => {
                write!(f, "{}: the file cannot be read: {kind}", path.display())
            }
            Self::File(path, wrong) => write!(f, "{}: {wrong}", path.display()),
            Self::Database(fault) => fault.fmt(f),
            Self::Late => f.write_str("the server did not answer within connect_timeout"),
            Self::NotDurable(setting) => write!(
                f,
                "{setting} is off: a crash of the server could lose tickets that were spent; set \
                 {setting} = on, for this role at least"
            ),
            Self::NotReplicated => f.write_str(
                "synchronous_commit is local, and synchronous_standby_names is set: a fail-over \
                 could lose tickets that were spent; set synchronous_commit = on for this role",
            ),
            Self::Standby => f.write_str("the server is a standby; name the primary"),
            Self::Form(FormFault::None) => f.write_str(
                "the database holds no ledger; make one with toolgate ledger migrate --config FILE",
            ),
            Self::Form(FormFault::Older(found)) => write!(
                f,
                "the ledger has form {found}, and this version needs {FORM}; run toolgate ledger \
                 migrate --config FILE with this version before it is rolled out"
            ),
            Self::Form(FormFault::Newer(found)) => write!(
                f,
                "the ledger has form {found}, which this version cannot use any more (it knows \
                 {FORM}); run the newer version"
            ),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(fault) => fault.fmt(f),
            Self::Database(fault) => fault.fmt(f),
            Self::Late => f.write_str("the database did not answer in time"),
            Self::Fenced => f.write_str("another gate has taken over"),
            Self::WentBack => f.write_str("the database lacks what it has acknowledged"),
            Self::Content(field) => write!(f, "the stored {field} cannot be read"),
        }
    }
}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(fault) => fault.fmt(f),
            Self::Database(fault) => fault.fmt(f),
            Self::Content(field) => write!(
                f,
                "the stored {field} cannot be read: was the database written to by hand, or by a \
                 newer version?"
            ),
            Self::Lacks => f.write_str(
                "the ledger lacks what it has acknowledged to a gate, as after a restore or a \
                 fail-over to a standby that lags: spent tickets may be good again. Stop all \
                 gates, run toolgate ledger new-identity, and start them",
            ),
            Self::InUse(gates) => write!(
                f,
                "{gates} of the gates on this ledger are running; stop them all first: their \
                 tickets would die under them"
            ),
        }
    }
}

impl std::error::Error for ConnectFault {}
impl std::error::Error for PostgresError {}
