//! Files that change by themselves: mounted and signalled, and states in between.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use toolgate::domain::audit::{ReloadResult, ReloadTrigger};
use toolgate::ports::Administration as _;

use super::{Policies, administrative, failed, status, tools, write_policy};
use crate::support::policies;
use crate::support::process::Process;
use crate::support::running::{
    Options, World, channel, get, metric, start_handler, until, write_config,
};

/// A mounted `ConfigMap`: visible links into `..data`, a link to a directory of one version.
struct ConfigMap {
    directory: tempfile::TempDir,
}

impl ConfigMap {
    fn new(fillers: usize) -> Self {
        let map = Self { directory: tempfile::tempdir().unwrap() };
        for (version, name, steps) in [("..v1", "a", 4), ("..v2", "a", 5)] {
            write_policy(&map.path().join(version), name, steps, fillers);
        }
        // Every file of the second version says another thing.
        for entry in fs::read_dir(map.path().join("..v2")).unwrap() {
            let file = entry.unwrap().path();
            let text = fs::read_to_string(&file).unwrap();
            fs::write(&file, text.replace("Of policy a.", "Of its second version.")).unwrap();
        }
        map.swap("..v1");
        for entry in fs::read_dir(map.path().join("..v1")).unwrap() {
            let name = entry.unwrap().file_name();
            symlink(Path::new("..data").join(&name), map.path().join(&name)).unwrap();
        }
        map
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn swap(&self, version: &str) {
        swap(self.path(), version);
    }

    fn options(&self) -> Options<'static> {
        Options { policy: self.path().to_owned(), ..Options::default() }
    }
}

/// What a kubelet does: a new link beside, moved over the old one.
fn swap(map: &Path, version: &str) {
    symlink(version, map.join("..data_tmp")).unwrap();
    fs::rename(map.join("..data_tmp"), map.join("..data")).unwrap();
}

#[tokio::test]
async fn a_config_map_that_is_swapped_comes_into_force_by_itself() {
    let map = ConfigMap::new(1);
    let world = World::start_with(Options { more: "reload: {poll: 100ms}", ..map.options() }).await;
    let (first, _) = tools(&world).await;
    map.swap("..v2");
    until("the second version is in force", async || tools(&world).await.0 != first).await;
    let second = tools(&world).await.0;
    assert_eq!(second, policies::load(&map.path().join("..v2")).digest().to_string());
    // What cannot be loaded is tried once, however often it is looked at.
    let bad = map.path().join("..v3");
    write_policy(&bad, "a", 4, 1);
    fs::write(bad.join("common.yaml"), "name: [").unwrap();
    map.swap("..v3");
    until("the third is refused", async || {
        status(&world.channel).await.last_failed_reload.is_some()
    })
    .await;
    map.swap("..v1");
    until("the first is in force again", async || tools(&world).await.0 == first).await;
    assert_eq!(
        administrative(world.directory.path()),
        ["reload applied files", "reload failed files", "reload applied files"]
    );
}

#[tokio::test]
async fn without_an_interval_nobody_looks() {
    let policies = Policies::new();
    let world = World::start_with(policies.options()).await;
    assert!(
        toolgate::config::load(&world.directory.path().join("toolgate.yaml"))
            .unwrap()
            .poll
            .is_none()
    );
}

/// Readings that a swap falls into are made again: no policy of two versions is ever in force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixture_of_two_versions_never_comes_into_force() {
    let map = ConfigMap::new(40);
    let world = World::start_with(map.options()).await;
    let whole = ["..v1", "..v2"].map(|version| policies::load(&map.path().join(version)).digest());
    assert_ne!(whole[0], whole[1]);
    let stop = Arc::new(AtomicBool::new(false));
    let swapping = std::thread::spawn({
        let (path, stop) = (map.path().to_owned(), Arc::clone(&stop));
        move || {
            let mut swaps = 0;
            while !stop.load(Ordering::SeqCst) {
                swap(&path, if swaps % 2 == 0 { "..v2" } else { "..v1" });
                swaps += 1;
                // Few readings are as short as this, and some are.
                std::thread::park_timeout(std::time::Duration::from_micros(
                    300 + 900 * (swaps % 9),
                ));
            }
            swaps
        }
    });
    let mut results = Vec::new();
    for _ in 0..25 {
        let report = world.running().reloader().reload(ReloadTrigger::Request).await.unwrap();
        assert!(whole.contains(&report.policy_digest), "a mixture is in force");
        assert!(report.faults.iter().all(|fault| fault.code.name() == "FILES_CHANGING"));
        results.push(report.result);
    }
    stop.store(true, Ordering::SeqCst);
    assert!(swapping.join().unwrap() > 25);
    // Once the files stand still they are taken as they are.
    map.swap("..v2");
    let report = world.running().reloader().reload(ReloadTrigger::Request).await.unwrap();
    assert_ne!(report.result, ReloadResult::Failed);
    assert_eq!(tools(&world).await.0, whole[1].to_string());
}

#[tokio::test]
async fn a_signal_reloads_the_real_gate_and_a_fault_is_logged() {
    let (_handler, upstream, _stop) = start_handler().await;
    let policies = Policies::new();
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &policies.options());
    let (mut process, grpc, admin) = Process::serving(&config).await;
    let channel = channel(&grpc).await;
    let first = status(&channel).await.policy_digest;

    policies.switch("b");
    process.signal(Signal::HUP);
    until("the signal is followed", async || status(&channel).await.policy_digest != first).await;
    let second = status(&channel).await.policy_digest;
    let broken: PathBuf = policies.directory.path().join("b/common.yaml");
    fs::write(&broken, "name: [hunter2").unwrap();
    process.signal(Signal::HUP);
    until("the fault is counted", async || {
        let exposition = get(admin, "/metrics").await;
        metric(&exposition, "toolgate_reloads_total", &[("result", "failed")]) == 1
    })
    .await;
    assert_eq!(status(&channel).await.policy_digest, second);
    assert!(get(admin, "/readyz").await.starts_with("HTTP/1.1 200"));
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0));
    let log = process.log();
    for wanted in [
        r#""message":"reload applied""#,
        r#""message":"reload failed; what was in force stays in force""#,
        r#""message":"reload fault""#,
        r#""fault":"NOT_YAML""#,
        "common.yaml",
    ] {
        assert!(log.contains(wanted), "{wanted} is not in {log}");
    }
    assert!(!log.contains("hunter2"), "{log}");
    assert_eq!(administrative(directory.path()), ["reload applied signal", "reload failed signal"]);
}

#[tokio::test]
async fn files_that_never_stand_still_are_a_fault() {
    let policies = Policies::new();
    let world = World::start_with(policies.options()).await;
    // A file that is another each time it is read.
    let restless = policies.directory.path().join("a/notes.json");
    symlink("/proc/sys/kernel/random/uuid", &restless).unwrap();
    let report = failed(&world, &["FILES_CHANGING"]).await;
    assert!(report.faults[0].problem.contains("5 times"), "{}", report.faults[0].problem);
    fs::remove_file(&restless).unwrap();
    // A file that no contract names is no part of the policy.
    fs::write(&restless, "{}").unwrap();
    let report = world.running().reloader().reload(ReloadTrigger::Signal).await.unwrap();
    assert_eq!(report.result, ReloadResult::Unchanged);
}
