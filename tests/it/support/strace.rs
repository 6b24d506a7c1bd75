//! System calls of another process that fail or take their time, by strace.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// What a system call meets.
#[derive(Debug, Clone, Copy)]
pub enum Meets {
    /// It is not made, and fails with this error.
    Error(&'static str),
    /// It is made after so many milliseconds.
    Delay(u64),
}

/// Faults that a process meets. They end when this is dropped, and what was
/// held goes on.
pub struct Faults {
    strace: Child,
}

impl Faults {
    /// Whether the tests may do this: CI must have strace, but not every
    /// container's kernel lets one process trace another.
    pub fn are_possible() -> bool {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a test of system calls").to_owned();
        let mut command = Command::new("strace");
        command.arg("--version").stdout(Stdio::null());
        if !command.status().is_ok_and(|status| status.success()) {
            assert!(std::env::var_os("CI").is_none(), "CI needs strace");
            eprintln!("SKIPPED {name}: install strace");
            return false;
        }
        let mut idle = Command::new("sleep").arg("60").spawn().unwrap();
        let can = Self::attach(idle.id(), &["--trace=none"]).is_some();
        idle.kill().unwrap();
        idle.wait().unwrap();
        if !can {
            eprintln!("SKIPPED {name}: a process may not trace another");
        }
        can
    }

    /// Every sync of one file of the process from now on.
    pub fn of_syncs(process: u32, file: &Path, meets: Meets) -> Self {
        let meets = match meets {
            Meets::Error(name) => format!("error={name}"),
            Meets::Delay(milliseconds) => format!("delay_enter={milliseconds}ms"),
        };
        let inject = format!("--inject=fsync,fdatasync:{meets}");
        let arguments =
            ["--trace=fsync,fdatasync", &inject, &format!("--trace-path={}", file.display())];
        Self::attach(process, &arguments).expect("strace attaches")
    }

    fn attach(process: u32, arguments: &[&str]) -> Option<Self> {
        let strace = Command::new("strace")
            .args(["--follow-forks", "--output=/dev/null"])
            .arg(format!("--attach={process}"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut faults = Self { strace };
        let said = BufReader::new(faults.strace.stderr.take().unwrap()).lines();
        // "Process 7 attached", and more of them for each thread.
        let mut said = said.map_while(Result::ok);
        let attached = said.any(|line| line.contains(" attached"));
        // It must not be stopped by a pipe that nobody reads.
        std::thread::spawn(move || said.for_each(drop));
        attached.then_some(faults)
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        // It detaches first.
        let _ = kill_process(Pid::from_child(&self.strace), Signal::TERM);
        drop(self.strace.wait());
    }
}
