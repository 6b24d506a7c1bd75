//! Keys that come, sign, verify and go while the gate serves.

use std::fs;
use std::path::Path;

use toolgate::proto::{KeyPurpose, Reason, ToolCall};

use super::{administrative, edit_config, failed, reload, status, write_secret};
use crate::support::journal;
use crate::support::running::{Does, Options, World, context};
use crate::writes::wire::{Sides, draft, sides};

/// Lists these keys of a purpose, the one that signs first; files are named as ids.
fn set_keys(directory: &Path, purpose: &str, ids: &[&str]) {
    let config = directory.join("toolgate.yaml");
    let text = fs::read_to_string(&config).unwrap();
    let list = |id: &&str| {
        let file = match *id {
            "audit-1" => "audit",
            "confirm-1" => "confirmation",
            other => other,
        };
        format!("{{id: {id}, file: {file}}}")
    };
    let keys = ids.iter().map(list).collect::<Vec<_>>().join(", ");
    let line = |line: &str| {
        if line.starts_with(&format!("{purpose}: ")) {
            format!("{purpose}: {{keys: [{keys}]}}")
        } else {
            line.to_owned()
        }
    };
    let text: Vec<_> = text.lines().map(line).collect();
    fs::write(config, text.join("\n")).unwrap();
}

async fn rotate(world: &World, purpose: &str, ids: &[&str]) {
    set_keys(world.directory.path(), purpose, ids);
    assert!(reload(&world.channel).await.unwrap().applied, "{ids:?}");
    let wanted: Vec<_> = ids.iter().map(ToString::to_string).collect();
    let wanted_purpose =
        if purpose == "audit" { KeyPurpose::Audit } else { KeyPurpose::Confirmation };
    let keys = status(&world.channel).await.keys;
    let keys = keys.into_iter().filter(|key| key.purpose() == wanted_purpose);
    let (found, signs): (Vec<_>, Vec<_>) = keys.map(|key| (key.id, key.signs)).unzip();
    assert_eq!(found, wanted);
    assert!(signs.iter().enumerate().all(|(place, signs)| *signs == (place == 0)));
}

/// A ticket of the key that signs now, for a call that nobody has made.
async fn confirmed(sides: &Sides, id: &str, key: &str) -> ToolCall {
    let bare = draft(id, "a");
    let preview = sides.check(context(), bare.clone()).await.preview.unwrap();
    assert_eq!(preview.key_id, key);
    sides.confirm(bare).await.0
}

#[tokio::test]
async fn a_confirmation_key_is_rotated_without_refusing_a_ticket_that_is_out() {
    let world = World::start_with(Options::writes()).await;
    world.handler.set("draft", Does::Answer(r#"{"id": 7}"#.to_owned()));
    let sides = sides(&world);
    write_secret(world.directory.path(), "confirm-2", "another-Rk7wB2xNq9Lt4Vz6Hc1Jm8Ys");
    let old = ["o1", "o2", "o3", "o4"];
    let mut of_the_old = Vec::new();
    for id in old {
        of_the_old.push(confirmed(&sides, id, "confirm-1").await);
    }
    let recorded = confirmed(&sides, "recorded", "confirm-1").await;
    assert_eq!(sides.reason(&recorded).await, Reason::Ok);

    // The new one is known everywhere before it signs anything.
    rotate(&world, "confirmation", &["confirm-1", "confirm-2"]).await;
    assert_eq!(sides.reason(&of_the_old[0]).await, Reason::Ok);
    let between = confirmed(&sides, "between", "confirm-1").await;

    rotate(&world, "confirmation", &["confirm-2", "confirm-1"]).await;
    assert_eq!(sides.reason(&of_the_old[1]).await, Reason::Ok);
    assert_eq!(sides.reason(&between).await, Reason::Ok);
    let of_the_new = confirmed(&sides, "n1", "confirm-2").await;
    assert_eq!(sides.reason(&recorded).await, Reason::CallReplayed);
    let stale = sides.request(context(), draft("stale", "a")).await;

    // The removed one denies at once; what the other signed still runs.
    rotate(&world, "confirmation", &["confirm-2"]).await;
    assert_eq!(sides.reason(&of_the_old[2]).await, Reason::ConfirmationInvalid);
    assert_eq!(sides.reason(&of_the_new).await, Reason::Ok);
    // Nobody can tell any more whether it is the same call.
    assert_eq!(sides.reason(&recorded).await, Reason::CallIdConflict);
    // The preview was the new key's already.
    assert!(sides.issue(stale).await.is_ok());

    // One that comes back verifies again: its secret was never the gate's to forget.
    rotate(&world, "confirmation", &["confirm-2", "confirm-1"]).await;
    assert_eq!(sides.reason(&of_the_old[3]).await, Reason::Ok);
    assert_eq!(
        administrative(world.directory.path()),
        [
            "reload applied request",
            "key_added confirmation confirm-2",
            "reload applied request",
            "key_signs confirmation confirm-2",
            "reload applied request",
            "key_removed confirmation confirm-1",
            "reload applied request",
            "key_added confirmation confirm-1",
        ]
    );
}

#[tokio::test]
async fn a_preview_of_a_key_that_no_longer_signs_is_stale() {
    let world = World::start_with(Options::writes()).await;
    let sides = sides(&world);
    write_secret(world.directory.path(), "confirm-2", "another-Rk7wB2xNq9Lt4Vz6Hc1Jm8Ys");
    let request = sides.request(context(), draft("c1", "a")).await;
    rotate(&world, "confirmation", &["confirm-2", "confirm-1"]).await;
    let status = sides.issue(request).await.unwrap_err();
    crate::grpc::assert_refused(&status, tonic::Code::FailedPrecondition, "PREVIEW_STALE", None);
}

#[tokio::test]
async fn an_audit_key_is_rotated_and_every_record_verifies_at_the_next_start() {
    let mut world = World::start_with(Options::writes()).await;
    let sides_before = sides(&world);
    write_secret(world.directory.path(), "audit-2", "audit-2-Hc6Yd1Gs3Vt8xN2kLq5Rz7Wb9Jm4");
    sides_before.reason(&draft("c1", "a")).await;
    rotate(&world, "audit", &["audit-1", "audit-2"]).await;
    sides_before.reason(&draft("c2", "a")).await;
    rotate(&world, "audit", &["audit-2", "audit-1"]).await;
    sides_before.reason(&draft("c3", "a")).await;

    // Without the first the journal of before would be lost: that is refused now, not then.
    set_keys(world.directory.path(), "audit", &["audit-2"]);
    failed(&world, &["SIGNER_MISSING"]).await;
    // And without the second what was written since.
    set_keys(world.directory.path(), "audit", &["audit-1"]);
    failed(&world, &["SIGNER_MISSING"]).await;
    set_keys(world.directory.path(), "audit", &["audit-2", "audit-1"]);
    sides_before.reason(&draft("c4", "a")).await;
    let records = journal::records(world.directory.path());
    let key_of = |call: &str| {
        let record = records.iter().find(|record| record["tool_call_id"] == call).unwrap();
        record["audit_key_id"].as_str().unwrap().to_owned()
    };
    assert_eq!(["c1", "c2", "c3", "c4"].map(key_of), ["audit-1", "audit-1", "audit-2", "audit-2"]);
    world.restart().await;
    sides(&world).reason(&draft("c5", "a")).await;
    world.stop().await;
    // The first key alone reads up to the change, and the start says where it ends.
    set_keys(world.directory.path(), "audit", &["audit-1"]);
    let config = toolgate::config::load(&world.directory.path().join("toolgate.yaml")).unwrap();
    let error = toolgate::app::Running::start(config).await.err().expect("it does not start");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("does not verify"));
}

#[tokio::test]
async fn a_key_of_a_journal_without_records_can_be_replaced() {
    let mut world = World::start_with(Options::writes()).await;
    world.stop().await;
    write_secret(world.directory.path(), "audit-2", "audit-2-Hc6Yd1Gs3Vt8xN2kLq5Rz7Wb9Jm4");
    edit_config(
        world.directory.path(),
        "{id: audit-1, file: audit}",
        "{id: audit-2, file: audit-2}",
    );
    world.restart().await;
    assert_eq!(sides(&world).reason(&draft("c1", "a")).await, Reason::ConfirmationRequired);
}
