//! Private PostgreSQL servers, from Debian's package.
//!
//! A server listens on a free port of 127.0.0.1, under TLS too, and on a Unix socket. It runs as a user
//! without rights, as PostgreSQL demands, and ends with the test process however that ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use uuid::Uuid;

use super::certificates::Authority;

const GUARDIAN: &str = include_str!("postgres/guardian.sh");
/// Below the ports that the kernel gives away, so that a stopped server's port stays free.
const PORTS: std::ops::Range<u16> = 16_000..32_000;
const TRIES: usize = 1_200;
const PAUSE: Duration = Duration::from_millis(25);
/// Its superuser.
const ADMIN: &str = "postgres";

/// A setting of the server, as in `postgresql.conf`.
pub type Setting<'a> = (&'a str, &'a str);

/// The server that tests share, each with databases of its own; nobody stops it.
///
/// None where PostgreSQL is not installed: then the test says that it is skipped, and fails in CI.
pub fn server() -> Option<&'static Server> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    SHARED
        .get_or_init(|| programs().map(|programs| Server::create(programs, &[])))
        .as_ref()
        .or_else(skip)
}

/// A PostgreSQL server. Dropping it ends it and removes its files.
pub struct Server {
    programs: PathBuf,
    /// Of its files, and of its Unix socket.
    pub directory: PathBuf,
    password: String,
    pub port: u16,
    guardian: Mutex<Guardian>,
}

struct Guardian {
    child: Child,
    /// Its end is the server's end.
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// A database of its own on a server, and the role that owns it. Dropped with this.
pub struct Database<'a> {
    pub server: &'a Server,
    pub user: String,
    pub password: String,
    pub name: String,
}

impl Server {
    /// The name that is in its certificate, and its address.
    pub const HOST: &'static str = "localhost";

    /// A server for one test, which may stop it; None as of [`server`].
    pub fn start_own(settings: &[Setting<'_>]) -> Option<Self> {
        programs().map(|programs| Self::create(programs, settings)).or_else(skip)
    }

    fn create(programs: PathBuf, settings: &[Setting<'_>]) -> Self {
        // A Unix socket's path has at most 107 bytes, so this is not below TMPDIR.
        let directory =
            tempfile::Builder::new().prefix("toolgate-pg-").tempdir_in("/tmp").unwrap().keep();
        give(&directory);
        let guardian = Guardian::start(&programs, &directory);
        let password = Uuid::new_v4().simple().to_string();
        let mut server =
            Self { programs, directory, password, port: 0, guardian: Mutex::new(guardian) };
        server.initialise(settings);
        // Another process may take the port between the look and the start.
        for _ in 0..5 {
            server.port = free_port();
            if server.try_start() {
                return server;
            }
        }
        panic!("PostgreSQL does not start: {}", server.log());
    }

    fn initialise(&self, settings: &[Setting<'_>]) {
        let file = |name: &str| self.directory.join(name);
        fs::write(file("password"), &self.password).unwrap();
        fs::set_permissions(file("password"), fs::Permissions::from_mode(0o600)).unwrap();
        let authority = Authority::new();
        authority.server_at(&[Self::HOST, "127.0.0.1"]).write(&self.directory, "server");
        fs::write(self.ca(), &authority.pem).unwrap();
        give(&file("password"));
        give(&file("server.key"));

        assert_eq!(self.command("initialise"), "initialised");

        let own = self.directory.to_str().unwrap();
        let (certificate, key) = (format!("{own}/server.crt"), format!("{own}/server.key"));
        let mut all = vec![
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", own),
            ("ssl", "on"),
            ("ssl_cert_file", &certificate),
            ("ssl_key_file", &key),
            // Many tests at once, on a small machine.
            ("max_connections", "300"),
            ("shared_buffers", "32MB"),
            ("max_wal_size", "128MB"),
        ];
        // The last of equal ones counts.
        all.extend(settings);
        let lines: Vec<_> = all.iter().map(|(name, value)| format!("{name} = '{value}'")).collect();
        fs::write(file("data/postgresql.conf"), lines.join("\n"))
            .unwrap_or_else(|error| panic!("{error}; initdb: {}", self.log()));
    }

    /// Stops it as an operator does: transactions are rolled back, and what is committed is on disk.
    pub fn stop(&self) {
        assert_eq!(self.command("stop"), "stopped");
    }

    /// kill -9 to all of its processes at once.
    pub fn kill(&self) {
        assert_eq!(self.command("kill"), "killed");
    }

    /// Starts one that was stopped or killed, and waits until it answers. The port stays.
    pub fn start(&self) {
        assert!(self.try_start(), "PostgreSQL does not start again: {}", self.log());
    }

    /// Stops all of its processes where they are: connections stay, and nothing answers.
    pub fn freeze(&self) {
        assert_eq!(self.command("freeze"), "frozen");
    }

    pub fn thaw(&self) {
        assert_eq!(self.command("thaw"), "thawed");
    }

    /// The authority of its certificate, in PEM.
    pub fn ca(&self) -> PathBuf {
        self.directory.join("ca.crt")
    }

    /// What its superuser connects with, over the Unix socket; libpq and `tokio-postgres` read it.
    pub fn admin(&self) -> String {
        format!(
            "host={} port={} user={ADMIN} password={} dbname=postgres",
            self.directory.display(),
            self.port,
            self.password
        )
    }

    /// A new database.
    pub fn database(&self) -> Database<'_> {
        let name = format!("t{}", Uuid::new_v4().simple());
        let password = Uuid::new_v4().simple().to_string();
        self.sql(&format!("CREATE ROLE {name} LOGIN PASSWORD '{password}'"));
        self.sql(&format!("CREATE DATABASE {name} OWNER {name}"));
        Database { server: self, user: name.clone(), password, name }
    }

    /// Runs a statement as superuser: rows by line, columns by `|`.
    pub fn sql(&self, statement: &str) -> String {
        self.try_sql(&self.admin(), statement)
            .unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// The same of whom a connection string names, or PostgreSQL's complaint.
    pub fn try_sql(&self, connection: &str, statement: &str) -> Result<String, String> {
        let output = Command::new(self.programs.join("psql"))
            .env_clear()
            // A server that a test has frozen does not freeze the test.
            .env("PGCONNECT_TIMEOUT", "10")
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", connection])
            .args(["-c", statement])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// What the server logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Whether it came up.
    fn try_start(&self) -> bool {
        let pid = self.command(&format!("start {}", self.port));
        let ready = || {
            // Its first line is the process, its last one how far that is.
            let file = fs::read_to_string(self.directory.join("data/postmaster.pid")).ok()?;
            let ready = file.lines().nth(7)?.trim() == "ready";
            (ready && file.lines().next()? == pid).then_some(())
        };
        for _ in 0..TRIES {
            if ready().is_some() {
                return true;
            }
            if has_ended(&pid) {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        false
    }

    fn command(&self, command: &str) -> String {
        self.guardian.lock().unwrap().command(command)
    }
}

impl Guardian {
    fn start(programs: &Path, directory: &Path) -> Self {
        let mut child = unprivileged("/bin/sh")
            .args(["-c", GUARDIAN, "sh"])
            .args([directory, programs])
            // A terminal's interrupt ends the tests, and only then this.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, commands, answers }
    }

    fn command(&mut self, command: &str) -> String {
        writeln!(self.commands.as_ref().unwrap(), "{command}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.commands.take());
        // It removes the files last.
        drop(self.child.wait());
    }
}

impl Database<'_> {
    /// What its owner connects with, over the Unix socket.
    pub fn connection(&self) -> String {
        format!(
            "host={} port={} user={} password={} dbname={}",
            self.server.directory.display(),
            self.server.port,
            self.user,
            self.password,
            self.name
        )
    }

    /// Runs a statement as the owner: rows by line, columns by `|`.
    pub fn sql(&self, statement: &str) -> String {
        self.try_sql(statement).unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// The same, or PostgreSQL's complaint.
    pub fn try_sql(&self, statement: &str) -> Result<String, String> {
        self.server.try_sql(&self.connection(), statement)
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // The server may be stopped. With its data go the files, which tests have no use for.
        let (admin, name) = (self.server.admin(), &self.name);
        drop(self.server.try_sql(&admin, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")));
    }
}

fn skip<T>() -> Option<T> {
    assert!(std::env::var_os("CI").is_none(), "CI needs Debian's package postgresql");
    let thread = std::thread::current();
    eprintln!(
        "SKIPPED {}: install Debian's package postgresql",
        thread.name().unwrap_or("a test of PostgreSQL")
    );
    None
}

/// The directory of the newest version that is installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .map(|entry| entry.unwrap().path())
        .filter_map(|path| Some((path.file_name()?.to_str()?.parse().ok()?, path.join("bin"))))
        .collect();
    versions.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = versions.into_iter().rev().map(|(_, path)| path);
    let mut all = versions.chain(std::env::split_paths(&path));
    all.find(|path| ["initdb", "postgres", "psql"].iter().all(|name| path.join(name).is_file()))
}

fn free_port() -> u16 {
    let ports: Vec<u16> = PORTS.collect();
    let start = Uuid::new_v4().as_u128() % ports.len() as u128;
    let mut ports = ports.iter().cycle().skip(usize::try_from(start).unwrap()).take(ports.len());
    *ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, **port)).is_ok()).unwrap()
}

/// Whether a process is no more, or only waits to be asked how it ended.
fn has_ended(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// A command that runs without root's rights.
fn unprivileged(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C").current_dir("/");
    command.stdin(Stdio::null());
    if let Some((user, group)) = other_user() {
        command.uid(user).gid(group);
    }
    command
}

/// Gives a file to the user that the server runs as.
fn give(file: &Path) {
    if let Some((user, group)) = other_user() {
        chown(file, Some(user), Some(group)).unwrap();
    }
}

/// Where the tests are root: the user and group that the server gets.
fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let ids = |name: &str| {
        let mut fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let user = fields.find(|fields| fields[0] == name)?;
        Some((user[2].parse().unwrap(), user[3].parse().unwrap()))
    };
    Some(ids("postgres").or_else(|| ids("nobody")).expect("a user without rights"))
}
