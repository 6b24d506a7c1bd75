//! Confirmed writes whose gate dies: at most one effect for a ticket, and none
//! that the journal and the ledger do not answer for.
//!
//! - [`killed`]: kill -9 while a handler runs.
//! - [`points`]: the process ends at every place between admission and response,
//!   and in recovery itself. Needs `--features failpoints`.
//! - `retention`: the process ends between the steps of deleting. Needs the same.
//! - [`load`]: kill -9 at any moment under load, again and again.
//!
//! kill -9 does not lose the page cache: what is written and not synced is
//! still there. That syncs are made is tested apart, with disks that forget.

pub mod after;
pub mod handler;
mod killed;
pub mod load;
#[cfg(feature = "failpoints")]
mod points;
#[cfg(feature = "failpoints")]
mod retention;
pub mod world;

/// Every failpoint by name, as the tests below use them.
const POINTS: &[&str] = &[
    "admitted-not-reserved",
    "reserving-not-committed",
    "reserved-not-started",
    "started-not-reserved",
    "started-not-called",
    "called-not-completed",
    "written-not-synced",
    "completed-not-settled",
    "settled-not-completed",
    "settling-not-committed",
    "between-attempts",
    "release-not-begun",
    "releasing-not-committed",
    "released-not-answered",
    "ended-not-answered",
    "journal-not-opened",
    "pairs-not-closed",
    "some-pairs-closed",
    "pairs-closed-not-settled",
    "some-calls-settled",
    "settled-not-counted",
    "counted-not-told",
    "taken-over-not-settled",
    "checkpoint-written",
    "anchored-not-deleted",
    "some-segments-deleted",
    "sink-delivered",
    "sink-cursor-written",
];

#[test]
fn failpoints_are_in_builds_that_ask_for_them_and_in_no_other() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_toolgate")).unwrap();
    let program = String::from_utf8_lossy(&program);
    for name in POINTS.iter().chain(&["TOOLGATE_FAILPOINT"]) {
        assert_eq!(program.contains(name), cfg!(feature = "failpoints"), "{name}");
    }
}
