//! What a restart, a kill, other keys and another ledger make of tickets and records.

use std::fs;
use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use toolgate::adapters::ledger::{EmbeddedLedger, EmbeddedOptions};
use toolgate::domain::reason::Reason as Ended;
use toolgate::domain::watermark::Reading;
use toolgate::ports::Ledger as _;
use toolgate::proto::{CallContext, Effect, Outcome, Reason, ToolCall};

use tonic::Code;

use super::{Sides, draft, refund, sides, write_policy};
use crate::grpc::assert_refused;
use crate::support::journal;
use crate::support::process::{Process, run_text};
use crate::support::running::{
    Does, Options, World, call, channel, context, start_handler, until, write_config,
};

#[tokio::test]
async fn a_restart_forgets_nothing() {
    let mut world = World::start_with(Options::writes()).await;
    let before = sides(&world);
    let (done, _) = before.confirm(draft("done", "a")).await;
    let (open, _) = before.confirm(draft("open", "a")).await;
    let (revoked, id) = before.confirm(draft("revoked", "a")).await;
    before.revoke(&id).await.unwrap();
    assert_eq!(before.reason(&done).await, Reason::Ok);
    world.restart().await;
    let after = sides(&world);
    let replayed = after.execute(&done).await;
    assert_eq!(replayed.reason(), Reason::CallReplayed);
    assert_eq!(replayed.recorded.unwrap().reason(), Reason::Ok);
    assert_eq!(after.reason(&revoked).await, Reason::ConfirmationRevoked);
    assert_eq!(after.reason(&open).await, Reason::Ok);
    assert_eq!(world.handler.seen().len(), 2);
}

#[tokio::test]
async fn a_changed_contract_ends_its_tickets() {
    let policy = tempfile::tempdir().unwrap();
    write_policy(policy.path(), |text| text);
    let options = Options { policy: policy.path().to_owned(), ..Options::writes() };
    let mut world = World::start_with(options).await;
    let before = sides(&world);
    let (call, _) = before.confirm(draft("c1", "a")).await;
    let (other, _) = before.confirm(refund("c2", "a")).await;
    let stale = before.request(context(), draft("c3", "a")).await;
    let changed = |text: String| text.replace("Write the draft {/text}?", "Write {/text}?");
    write_policy(policy.path(), changed);
    world.restart().await;
    let after = sides(&world);
    assert_eq!(after.reason(&call).await, Reason::ConfirmationMismatch);
    assert!(after.issue(stale).await.unwrap_err().message().contains("previewed"));
    // The contract of the other is what it was.
    assert_eq!(after.reason(&other).await, Reason::Ok);
    let (again, _) = after.confirm(draft("c1", "a")).await;
    assert_eq!(after.reason(&again).await, Reason::Ok);
}

/// Names other confirmation keys, of which each has a file of its own.
fn set_keys(directory: &Path, ids: &[&str]) {
    use std::os::unix::fs::PermissionsExt as _;
    let file = directory.join("confirmation-2");
    fs::write(&file, "another-Rk7wB2xNq9Lt4Vz6Hc1Jm8Ys").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let keys: Vec<_> = ids
        .iter()
        .map(|id| {
            let file = if *id == "confirm-1" { "confirmation" } else { "confirmation-2" };
            format!("{{id: {id}, file: {file}}}")
        })
        .collect();
    let config = directory.join("toolgate.yaml");
    let text = fs::read_to_string(&config).unwrap();
    let (before, _) = text.split_once("confirmation: ").unwrap();
    fs::write(&config, format!("{before}confirmation: {{keys: [{}]}}\n", keys.join(", "))).unwrap();
}

#[tokio::test]
async fn a_former_key_verifies_and_a_removed_one_denies() {
    let mut world = World::start_with(Options::writes()).await;
    let before = sides(&world);
    let (done, _) = before.confirm(draft("done", "a")).await;
    assert_eq!(before.reason(&done).await, Reason::Ok);
    let (first, _) = before.confirm(draft("c1", "a")).await;
    let (second, _) = before.confirm(draft("c2", "a")).await;

    set_keys(world.directory.path(), &["confirm-2", "confirm-1"]);
    world.restart().await;
    let rotated = sides(&world);
    assert_eq!(rotated.reason(&first).await, Reason::Ok);
    assert_eq!(rotated.reason(&done).await, Reason::CallReplayed);
    let preview = rotated.check(context(), draft("c3", "a")).await.preview.unwrap();
    assert_eq!(preview.key_id, "confirm-2");

    set_keys(world.directory.path(), &["confirm-2"]);
    world.restart().await;
    let removed = sides(&world);
    assert_eq!(removed.reason(&second).await, Reason::ConfirmationInvalid);
    // Nobody can tell any more whether it is the same call.
    assert_eq!(removed.reason(&done).await, Reason::CallIdConflict);
    // This one was recorded under the key that has stayed.
    assert_eq!(removed.reason(&first).await, Reason::CallReplayed);
}

#[tokio::test]
async fn a_write_that_a_killed_gate_was_running_is_never_run_again() {
    let (handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy");
    // Long enough to be killed in.
    write_policy(&policy, |text| text.replace("attempt_timeout: 1s", "attempt_timeout: 9s"));
    let config =
        write_config(directory.path(), &upstream, &Options { policy, ..Options::writes() });
    handler.set("refund", Does::Hang);
    let (mut process, grpc, _) = Process::serving(&config).await;
    let before = Sides::new(channel(&grpc).await);
    let (lost, _) = before.confirm(refund("lost", "a")).await;
    let (rest, _) = before.confirm(refund("rest", "a")).await;
    let running = tokio::spawn({
        let (sides, calls) = (before.clone(), vec![lost.clone(), rest.clone()]);
        async move { sides.execute_in(context(), calls).await }
    });
    until("the handler is entered", async || handler.running() == 1).await;
    // Who asks meanwhile leaves a pair under the same name, and in another request.
    let asked = CallContext { request_id: "request-2".to_owned(), ..context() };
    let asked = before.execute_in(asked, vec![lost.clone()]).await;
    assert_eq!(asked.results[0].reason(), Reason::CallInProgress);
    process.kill();
    assert!(running.await.is_err(), "the request was cut off");

    let (mut process, grpc, _) = Process::serving(&config).await;
    let after = Sides::new(channel(&grpc).await);
    let replayed = after.execute(&lost).await;
    assert_eq!((replayed.reason(), replayed.effect()), (Reason::CallReplayed, Effect::Unknown));
    let recorded = replayed.recorded.unwrap();
    assert_eq!((recorded.outcome(), recorded.reason()), (Outcome::Error, Reason::ProcessLost));
    assert_eq!(recorded.effect(), Effect::Unknown);
    // A fresh ticket opens nothing either, and is not given.
    let bare = ToolCall { confirmation_ticket: String::new(), ..lost.clone() };
    assert_eq!(after.reason(&bare).await, Reason::CallReplayed);
    let request = after.request(context(), bare).await;
    assert!(after.issue(request).await.is_err());
    // The next of the batch, which went call by call, was not reserved.
    handler.set("refund", Does::Answer("{}".to_owned()));
    assert_eq!(after.reason(&rest).await, Reason::Ok);
    assert_eq!(handler.seen().len(), 2);

    process.terminate();
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    let ends = journal::endings(directory.path());
    let lost: Vec<_> = ends.iter().filter(|end| end.0 == "lost").map(|end| end.2).collect();
    assert_eq!(
        lost,
        [Ended::CallInProgress, Ended::ProcessLost, Ended::CallReplayed, Ended::CallReplayed]
    );
    let records = journal::records(directory.path());
    let closed = records.iter().find(|record| record["reason"] == "PROCESS_LOST").unwrap();
    assert_eq!((&closed["effect"], &closed["outcome"]), (&"unknown".into(), &"error".into()));
}

fn ledger(directory: &Path) -> std::path::PathBuf {
    directory.join("data/ledger")
}

#[tokio::test]
async fn tickets_die_with_their_ledger() {
    let mut world = World::start_with(Options::writes()).await;
    let (call, _) = sides(&world).confirm(draft("c1", "a")).await;
    world.stop().await;
    fs::remove_dir_all(ledger(world.directory.path())).unwrap();
    world.restart().await;
    let after = sides(&world);
    let result = after.execute(&call).await;
    assert_eq!((result.reason(), result.retryable), (Reason::ConfirmationOtherLedger, true));
    let (call, _) = after.confirm(draft("c1", "a")).await;
    assert_eq!(after.reason(&call).await, Reason::Ok);
    world.stop().await;

    // Now the journal tells of a call that a new ledger would know nothing of.
    fs::remove_dir_all(ledger(world.directory.path())).unwrap();
    assert_does_not_start(world.directory.path());
}

/// How old the copy is that somebody restores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    /// Two hours, and no gate had started on it.
    LongAgo,
    /// A moment, and a gate had been stopped before.
    JustNow,
}

impl Copied {
    /// Leaves a ledger, and a copy of it.
    async fn leave(self, config: &Path) {
        let directory = config.parent().unwrap();
        let home = ledger(directory);
        if self == Self::JustNow {
            let (mut process, _, _) = Process::serving(config).await;
            process.terminate();
            assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
        } else {
            fs::create_dir(directory.join("data")).unwrap();
            let then = Timestamp::now() - SignedDuration::from_hours(2);
            let old = EmbeddedLedger::open(&EmbeddedOptions::new(home.clone(), then)).unwrap();
            old.observe(Reading { now: then, monotonic: Duration::ZERO }).await.unwrap();
        }
        copy_files(&home, &directory.join("copy"));
    }
}

fn restore(directory: &Path) {
    fs::remove_dir_all(ledger(directory)).unwrap();
    copy_files(&directory.join("copy"), &ledger(directory));
}

#[tokio::test]
async fn a_ledger_older_than_the_journal_does_not_start() {
    for copied in [Copied::LongAgo, Copied::JustNow] {
        for what in ["ended", "running", "revoked"] {
            let (handler, upstream, _stop) = start_handler().await;
            let directory = tempfile::tempdir().unwrap();
            let config = write_config(directory.path(), &upstream, &Options::writes());
            copied.leave(&config).await;

            let (mut process, grpc, _) = Process::serving(&config).await;
            let sides = Sides::new(channel(&grpc).await);
            let (call, id) = sides.confirm(draft("c1", "a")).await;
            match what {
                "ended" => assert_eq!(sides.reason(&call).await, Reason::Ok),
                "running" => {
                    handler.set("draft", Does::Hang);
                    let sides = sides.clone();
                    drop(tokio::spawn(async move { sides.execute(&call).await }));
                    until("the handler is entered", async || handler.running() == 1).await;
                }
                _ => assert!(!sides.revoke(&id).await.unwrap().was_spent),
            }
            process.kill();
            drop(process);

            restore(directory.path());
            // However often it is tried.
            for _ in 0..3 {
                assert_does_not_start(directory.path());
            }
            // Believing the clock does not change what was forgotten.
            let config = config.to_str().unwrap();
            let (code, _, log) = run_text(["ledger", "clock", "--config", config, "--accept"]);
            assert_eq!(code, Some(0), "{log}");
            assert_does_not_start(directory.path());
        }
    }
}

#[tokio::test]
async fn what_ran_while_a_lost_ledger_was_there_may_have_had_its_effect() {
    for is_restored in [false, true] {
        let (handler, upstream, _stop) = start_handler().await;
        let directory = tempfile::tempdir().unwrap();
        let config = write_config(directory.path(), &upstream, &Options::writes());
        Copied::JustNow.leave(&config).await;
        handler.set("refund", Does::Hang);
        handler.set("search", Does::Hang);
        let (mut process, grpc, _) = Process::serving(&config).await;
        let sides = Sides::new(channel(&grpc).await);
        let (write, _) = sides.confirm(refund("write", "a")).await;
        for call in [write, call("read", "search", r#"{"text": "a"}"#)] {
            let sides = sides.clone();
            drop(tokio::spawn(async move { sides.execute(&call).await }));
        }
        until("both handlers are entered", async || handler.running() == 2).await;
        process.kill();
        drop(process);

        fs::remove_dir_all(ledger(directory.path())).unwrap();
        if is_restored {
            copy_files(&directory.path().join("copy"), &ledger(directory.path()));
        }
        assert_does_not_start(directory.path());
        let text = config.to_str().unwrap();
        let (code, _, log) = run_text(["ledger", "new-identity", "--config", text]);
        assert_eq!(code, Some(0), "{log}");
        let (mut process, _, _) = Process::serving(&config).await;
        process.terminate();
        assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
        let records = journal::records(directory.path());
        let effect = |id: &str| {
            let mut closed = records.iter().filter(|record| {
                record["tool_call_id"] == id && record["reason"] == "PROCESS_LOST"
            });
            closed.next().map(|record| record["effect"].clone())
        };
        assert_eq!(effect("write"), Some("unknown".into()));
        assert_eq!(effect("read"), Some("none".into()));
    }
}

#[tokio::test]
async fn a_clock_behind_the_ledger_denies_until_it_is_accepted() {
    let mut world = World::start_with(Options::writes()).await;
    world.stop().await;
    // Somebody has run the gate while the clock was an hour ahead.
    let home = ledger(world.directory.path());
    let ahead = Timestamp::now() + SignedDuration::from_hours(1);
    let once = EmbeddedLedger::open(&EmbeddedOptions::new(home, ahead)).unwrap();
    once.accept_clock(Reading { now: ahead, monotonic: Duration::ZERO }).await.unwrap();
    drop(once);

    world.restart().await;
    let behind = sides(&world);
    let note = call("c1", "note", r#"{"text": "a"}"#);
    assert_eq!(behind.reason(&note).await, Reason::ClockUntrusted);
    assert_eq!(behind.reason(&call("c2", "search", r#"{"text": "a"}"#)).await, Reason::Ok);
    until("readiness says so", async || world.admin("/readyz").await.contains("clock")).await;
    let verdict = behind.check(context(), draft("c3", "a")).await;
    assert_eq!((verdict.admitted, verdict.reason()), (false, Reason::ClockUntrusted));
    let verdict = behind.check(context(), note.clone()).await;
    assert_eq!((verdict.admitted, verdict.reason()), (false, Reason::ClockUntrusted));
    let request = behind.request(context(), draft("c3", "a")).await;
    let refused = behind.issue(request).await.unwrap_err();
    assert_refused(&refused, Code::FailedPrecondition, "CLOCK_UNTRUSTED", None);
    assert_eq!(world.handler.seen().len(), 1);
    world.stop().await;

    let config = world.directory.path().join("toolgate.yaml");
    let config = config.to_str().unwrap();
    let (code, shown, log) = run_text(["ledger", "clock", "--config", config]);
    assert_eq!(code, Some(0), "{log}");
    assert!(shown.contains("high-water mark") && !shown.contains("accepted"), "{shown}");
    let (code, shown, log) = run_text(["ledger", "clock", "--config", config, "--accept"]);
    assert_eq!(code, Some(0), "{log}");
    assert!(shown.contains("accepted"), "{shown}");
    world.restart().await;
    assert_eq!(sides(&world).reason(&note).await, Reason::Ok);
}

#[tokio::test]
async fn looking_at_the_clock_makes_no_ledger() {
    let (_handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &Options::writes());
    for more in [&[][..], &["--accept"]] {
        let arguments = ["ledger", "clock", "--config", config.to_str().unwrap()];
        let (code, shown, log) = run_text(arguments.iter().chain(more).copied());
        assert_eq!((code, &*shown), (Some(1), ""), "{log}");
        assert!(log.contains("data/ledger: there is no ledger yet"), "{log}");
        assert!(!directory.path().join("data").exists());
    }
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn assert_does_not_start(directory: &Path) {
    let config = directory.join("toolgate.yaml");
    let (code, _, log) = run_text(["serve", "--config", config.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("the ledger is older than the journal beside it"), "{log}");
}
