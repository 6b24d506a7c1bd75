//! A gate in a process of its own, which tests may signal and kill.

use std::io::{BufRead as _, BufReader, PipeWriter};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::running::until;

/// `toolgate serve` as a child. Killed when dropped.
pub struct Process {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts serving a configuration, without waiting for anything.
    pub fn serve(config: &Path) -> Self {
        Self::serve_to(config, None)
    }

    /// The same of a build with failpoints, which ends at one: `name[:nth]`.
    pub fn serve_to(config: &Path, failpoint: Option<&str>) -> Self {
        Self::start(config, failpoint, Stdio::null())
    }

    /// Starts serving, with standard output on a pipe of the test's.
    pub fn serve_printing(config: &Path, out: PipeWriter) -> Self {
        Self::start(config, None, out.into())
    }

    fn start(config: &Path, failpoint: Option<&str>, out: Stdio) -> Self {
        let mut child = command(["serve", "--config", config.to_str().unwrap()])
            .env_remove("TOOLGATE_FAILPOINT")
            .envs(failpoint.map(|name| ("TOOLGATE_FAILPOINT", name)))
            .stdout(out)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, kept) =
            (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&log));
        let reader = std::thread::spawn(move || {
            lines.for_each(|line| kept.lock().unwrap().push(line.unwrap()));
        });
        Self { child, log, reader: Some(reader) }
    }

    /// Starts serving and waits for both addresses: gRPC, then admin.
    pub async fn serving(config: &Path) -> (Self, String, SocketAddr) {
        let mut process = Self::serve(config);
        let (grpc, admin) = process.addresses().await;
        (process, grpc, admin)
    }

    /// Waits for both addresses: gRPC, then admin.
    pub async fn addresses(&mut self) -> (String, SocketAddr) {
        until("the process serves", async || {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended: {}", self.log());
            self.listener("admin serving").is_some()
        })
        .await;
        let admin = self.listener("admin serving").unwrap().parse().unwrap();
        (self.listener("serving").unwrap(), admin)
    }

    /// What was logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// The most memory that it has ever had resident, in bytes.
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// kill -9, and waits for the end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end and gives the exit code, with the log complete.
    pub async fn exit_code(&mut self) -> Option<i32> {
        until("the process ends", async || self.child.try_wait().unwrap().is_some()).await;
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.child.wait().unwrap().code()
    }

    fn listener(&self, message: &str) -> Option<String> {
        let log = self.log.lock().unwrap();
        let records = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut found = records.filter(|record| record["message"] == message);
        found.next().map(|record| record["listener"].as_str().unwrap().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs the program to its end, which must come: the exit code, and what it
/// wrote to both streams (less than a pipe holds).
pub fn run_text<'a>(arguments: impl IntoIterator<Item = &'a str>) -> (Option<i32>, String, String) {
    let mut command = command(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    for _ in 0..4_000 {
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            return (output.status.code(), text(output.stdout), text(output.stderr));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("it did not end: {command:?}");
}

fn command<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolgate"));
    command.args(arguments);
    command
}
