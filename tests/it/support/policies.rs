//! Policies that tests load as a gate does.

use std::path::Path;
use std::sync::Arc;

use toolgate::config::policy::{self, Surroundings};
use toolgate::domain::policy::PolicySnapshot;

/// `tests/cases/gate/policy`.
pub fn cases() -> Arc<PolicySnapshot> {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/gate/policy"))
}

/// `tests/cases/writes/policy`, before a data directory that outlives the process.
pub fn writes() -> Arc<PolicySnapshot> {
    let surroundings = Surroundings {
        upstreams: ["handlers".to_owned()].into(),
        persistent: true,
        ..Surroundings::default()
    };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/writes/policy");
    let loaded =
        policy::load(&directory, &surroundings).unwrap_or_else(|faults| panic!("{faults}"));
    Arc::new(loaded.snapshot)
}

/// A policy directory whose upstream is called `handlers`.
pub fn load(directory: &Path) -> Arc<PolicySnapshot> {
    let surroundings =
        Surroundings { upstreams: ["handlers".to_owned()].into(), ..Surroundings::default() };
    let loaded = policy::load(directory, &surroundings).unwrap_or_else(|faults| panic!("{faults}"));
    Arc::new(loaded.snapshot)
}

/// A policy of one contract.
pub fn single(contract: &str, upstream: &str) -> Arc<PolicySnapshot> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("tool.yaml"), contract).unwrap();
    let surroundings =
        Surroundings { upstreams: [upstream.to_owned()].into(), ..Surroundings::default() };
    let loaded =
        policy::load(directory.path(), &surroundings).unwrap_or_else(|faults| panic!("{faults}"));
    Arc::new(loaded.snapshot)
}
