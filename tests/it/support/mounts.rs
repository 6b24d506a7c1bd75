//! File systems of a test's own, which are small, cannot be written, or break.
//!
//! Mounting takes root, or sudo without a password, and a kernel that lets even
//! root do it: in many containers it does not. Then the test says that it is
//! skipped, also in CI, which cannot change that.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mounted file system. Unmounted when dropped.
pub struct Mount {
    at: PathBuf,
}

impl Mount {
    /// A file system in memory that holds so many MiB at most, on a directory
    /// that is made. None where the test cannot mount.
    pub fn small(at: &Path, mebibytes: usize) -> Option<Self> {
        Self::at(at, &["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
    }

    /// A file system in a file beside the directory, which [`Mount::abort`] breaks.
    pub fn breakable(at: &Path, mebibytes: u64) -> Option<Self> {
        let image = image(at);
        File::create(&image).unwrap().set_len(mebibytes * 1024 * 1024).unwrap();
        fs::create_dir_all(at).unwrap();
        let mut program = Command::new("/usr/sbin/mkfs.ext4");
        let made = program.args(["-q", "-F"]).arg(&image).stderr(Stdio::null()).status();
        if !made.is_ok_and(|status| status.success()) {
            return skip("there is no mkfs.ext4");
        }
        Self::at(at, &["-o", "loop", image.to_str().unwrap()])
    }

    fn at(at: &Path, arguments: &[&str]) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        if !as_root("mount", arguments, at) {
            return skip("the test cannot mount a file system");
        }
        let mount = Self { at: at.to_owned() };
        let own = format!("{}", rustix::process::geteuid().as_raw());
        assert!(as_root("chown", &[&own], at));
        assert!(as_root("chmod", &["0700"], at));
        Some(mount)
    }

    /// Nothing can be written to it from now on, whoever has it open.
    pub fn set_read_only(&self) {
        assert!(as_root("mount", &["-o", "remount,ro"], &self.at));
    }

    pub fn set_writable(&self) {
        assert!(as_root("mount", &["-o", "remount,rw"], &self.at));
    }

    /// What the kernel does with a file system whose disk fails: from now on
    /// nothing can be written to it, also by who has a file open.
    pub fn abort(&self) {
        assert!(as_root("mount", &["-o", "remount,abort"], &self.at));
    }

    /// What an administrator does with it then: nobody may have a file open.
    pub fn repair(self) -> Self {
        assert!(as_root("umount", &[], &self.at));
        let image = image(&self.at);
        // 1: there was something to mend.
        let mut check = Command::new("/usr/sbin/e2fsck");
        let checked = check.args(["-f", "-y"]).arg(&image).output().unwrap();
        assert!(checked.status.code().is_some_and(|code| code <= 1), "{checked:?}");
        let at = self.at.clone();
        assert!(as_root("mount", &["-o", "loop", image.to_str().unwrap()], &at));
        self
    }

    /// Takes all the room that is left.
    pub fn fill(&self) {
        let mut ballast = File::create(self.ballast()).unwrap();
        // At last byte by byte: a file system may round.
        for piece in [1 << 20, 1 << 12, 1] {
            while ballast.write_all(&vec![0x5a; piece]).is_ok() {}
        }
    }

    /// Gives it back.
    pub fn clear(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.at.join("ballast")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Also where a process still has a file open.
        as_root("umount", &["--lazy"], &self.at);
    }
}

/// Beside the directory.
fn image(at: &Path) -> PathBuf {
    let name = at.file_name().unwrap().to_str().unwrap();
    at.parent().unwrap().join(format!("{name}.image"))
}

fn as_root(program: &str, arguments: &[&str], at: &Path) -> bool {
    let mut command = if rustix::process::geteuid().is_root() {
        Command::new(program)
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["--non-interactive", program]);
        sudo
    };
    command.args(arguments).arg(at);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn skip<T>(why: &str) -> Option<T> {
    let thread = std::thread::current();
    eprintln!("SKIPPED {}: {why}", thread.name().unwrap_or("a test of file systems"));
    None
}
