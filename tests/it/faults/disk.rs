//! Disks without room, and such as cannot be written.

use std::sync::Arc;

use tokio::sync::Notify;
use toolgate::domain::reason::Reason as Ended;
use toolgate::proto::{AuditState, Effect, Reason, ToolCall};

use super::stage::{Gate, Place, Told, reason_of};
use crate::support::journal;
use crate::support::mounts::Mount;
use crate::support::running::{Does, context, until};
use crate::writes::wire::draft;

/// More calls than what is left of a page of the file system holds events of.
const CALLS: usize = 12;

async fn tickets(gate: &Gate) -> Vec<ToolCall> {
    let mut calls = Vec::new();
    for number in 0..CALLS {
        calls.push(gate.confirmed(&format!("c{number}")).await);
    }
    calls
}

/// Runs one after the other until one is refused as a whole: what each was told.
async fn until_refused<'a>(
    gate: &Gate,
    calls: &'a [ToolCall],
    refusal: &str,
) -> Vec<(&'a ToolCall, Told)> {
    let mut all = Vec::new();
    for call in calls {
        let told = gate.run(call).await;
        let is_last = matches!(told, Told::Refused(_));
        all.push((call, told));
        if is_last {
            assert_eq!(all.last().unwrap().1.reason(), refusal);
            return all;
        }
    }
    panic!("none of them was refused: {all:?}");
}

#[tokio::test]
async fn a_journal_without_room_refuses_and_owes_nothing_once_there_is_room() {
    let place = Place::new().await;
    let Some(mount) = Mount::small(&place.data(Some("journal")), 64) else { return };
    let gate = place.serve().await;
    let done = gate.confirmed("done").await;
    assert!(gate.run(&done).await.is_done());
    let calls = tickets(&gate).await;
    // One is with its handler when the room ends.
    let go = Arc::new(Notify::new());
    place.handler.set("draft", Does::Wait(Arc::clone(&go), r#"{"id": 7}"#.to_owned()));
    let (under_way, sides) = (gate.confirmed("under-way").await, gate.sides.clone());
    let running = tokio::spawn(async move { sides.execute(&under_way).await });
    until("the handler is entered", async || place.handler.running() == 1).await;
    mount.fill();
    go.notify_one();
    let under_way = running.await.unwrap();
    assert_eq!((under_way.reason(), under_way.effect()), (Reason::Ok, Effect::Applied));
    let is_withheld = under_way.audit() == AuditState::CompletedFailed;
    assert_eq!(under_way.result_json.is_empty(), is_withheld, "{under_way:?}");
    place.handler.set("draft", Does::Answer("{}".to_owned()));

    let told = until_refused(&gate, &calls, "JOURNAL_UNAVAILABLE").await;
    gate.until_readiness("journal ").await;
    assert_eq!(gate.read("read").await.reason(), "JOURNAL_UNAVAILABLE");
    let request = gate.sides.request(context(), draft("c99", "a")).await;
    assert_eq!(reason_of(&gate.sides.issue(request).await.unwrap_err()), "JOURNAL_UNAVAILABLE");
    // What is recorded is told all the same.
    assert_eq!(gate.recorded("done").await.unwrap().reason(), Reason::Ok);

    mount.clear();
    gate.until_readiness("200 OK").await;
    let mut wanted =
        vec![("done".to_owned(), 1, Ended::Ok), ("under-way".to_owned(), 1, Ended::Ok)];
    for (call, told) in &told {
        let id = call.tool_call_id.as_str();
        let (effects, reason) = (place.effects(id), told.reason());
        let again = gate.run(call).await;
        match &*reason {
            "OK" => {
                assert_eq!((effects, &*again.reason()), (1, "CALL_REPLAYED"), "{id}");
                assert_eq!(gate.recorded(id).await.unwrap().effect(), Effect::Applied);
                wanted.push((id.to_owned(), 1, Ended::Ok));
            }
            "AUDIT_STARTED_FAILED" => {
                assert_eq!((effects, &*again.reason()), (0, "CONFIRMATION_CONSUMED"), "{id}");
                assert_eq!(told.result().effect(), Effect::None);
                wanted.push((id.to_owned(), 1, Ended::AuditStartedFailed));
            }
            "JOURNAL_UNAVAILABLE" => {
                assert!(effects == 0 && again.is_done(), "{id}: {again:?}");
                wanted.push((id.to_owned(), 1, Ended::Ok));
            }
            other => panic!("{id}: {other}"),
        }
    }
    gate.stop().await;
    // Every end that was told, whether or not it could be written then.
    let endings = journal::endings(place.directory.path());
    for ending in wanted {
        assert!(endings.contains(&ending), "{ending:?} is not in {endings:?}");
    }
    place.serve().await.stop().await;
}

#[tokio::test]
async fn a_journal_closes_before_its_disk_is_full_and_opens_by_itself() {
    let place = Place::leaving(8 << 20).await;
    let directory = place.data(Some("journal"));
    let Some(_mount) = Mount::small(&directory, 32) else { return };
    let gate = place.serve().await;
    let go = Arc::new(Notify::new());
    place.handler.set("draft", Does::Wait(Arc::clone(&go), r#"{"id": 7}"#.to_owned()));
    let (under_way, sides) = (gate.confirmed("under-way").await, gate.sides.clone());
    let running = tokio::spawn(async move { sides.execute(&under_way).await });
    until("the handler is entered", async || place.handler.running() == 1).await;
    let ballast = directory.join("ballast");
    std::fs::write(&ballast, vec![0x5a; 26 << 20]).unwrap();
    gate.until_readiness("journal full: less than audit.min_free_bytes").await;
    assert_eq!(gate.read("read").await.reason(), "JOURNAL_UNAVAILABLE");
    // What runs ends as if nothing were: its events have the room that is left.
    go.notify_one();
    let under_way = running.await.unwrap();
    assert_eq!((under_way.reason(), under_way.audit()), (Reason::Ok, AuditState::Recorded));
    assert_eq!(under_way.result_json, r#"{"id": 7}"#);
    std::fs::remove_file(ballast).unwrap();
    gate.until_readiness("200 OK").await;
    assert!(gate.read("read").await.is_done());
    let log = gate.process.log();
    for message in ["the journal's disk is almost full", "the journal's disk has room again"] {
        assert_eq!(log.matches(message).count(), 1, "{log}");
    }
    assert!(!log.contains("the journal cannot be written"), "{log}");
    gate.stop().await;
    journal::endings(place.directory.path());
}

#[tokio::test]
async fn a_ledger_without_room_refuses_writes_alone_until_a_restart() {
    let place = Place::new().await;
    let Some(mount) = Mount::small(&place.data(Some("ledger")), 256) else { return };
    let gate = place.serve().await;
    let done = gate.confirmed("done").await;
    assert!(gate.run(&done).await.is_done());
    let calls = tickets(&gate).await;
    mount.fill();
    let told = until_refused(&gate, &calls, "LEDGER_UNAVAILABLE").await;
    gate.until_readiness("ledger down").await;
    assert!(gate.read("read").await.is_done(), "a read needs no ledger");
    assert_eq!(gate.run(&done).await.reason(), "LEDGER_UNAVAILABLE");

    // It does not know any more what is on its disk: a restart does.
    mount.clear();
    assert_eq!(gate.run(&done).await.reason(), "LEDGER_UNAVAILABLE");
    gate.stop().await;
    let gate = place.serve().await;
    assert_eq!(gate.recorded("done").await.unwrap().effect(), Effect::Applied);
    for (call, told) in &told {
        let id = call.tool_call_id.as_str();
        let (effects, reason) = (place.effects(id), told.reason());
        let again = gate.run(call).await.reason();
        match &*reason {
            // Also where it could not be settled: the journal knows.
            "OK" => assert_eq!((effects, &*again), (1, "CALL_REPLAYED"), "{id}"),
            // Nobody knows whether the ticket was spent; the handler did not see it.
            "LEDGER_FAILED" => {
                assert_eq!(effects, 0, "{id}");
                assert!(["OK", "CONFIRMATION_CONSUMED"].contains(&&*again), "{id}: {again}");
            }
            "LEDGER_UNAVAILABLE" => assert_eq!((effects, &*again), (0, "OK"), "{id}"),
            other => panic!("{id}: {other}"),
        }
        assert!(place.effects(id) <= 1, "{id}");
    }
    gate.stop().await;
    journal::endings(place.directory.path());
}

#[tokio::test]
async fn a_data_directory_that_cannot_be_written_does_not_start() {
    let place = Place::new().await;
    let Some(mount) = Mount::small(&place.data(None), 256) else { return };
    let read_only = async || {
        mount.set_read_only();
        let log = place.fails_to_serve().await;
        mount.set_writable();
        assert!(log.contains("Read-only file system"), "{log}");
        assert!(log.contains(place.data(None).to_str().unwrap()), "{log}");
    };
    // Neither a new one, nor one that a gate has left.
    read_only().await;
    let gate = place.serve().await;
    let done = gate.confirmed("done").await;
    assert!(gate.run(&done).await.is_done());
    gate.stop().await;
    read_only().await;
    let gate = place.serve().await;
    assert_eq!(gate.recorded("done").await.unwrap().effect(), Effect::Applied);
    gate.stop().await;
}

#[tokio::test]
async fn a_file_system_that_breaks_under_a_gate_loses_nothing_that_was_answered() {
    let place = Place::new().await;
    let Some(mount) = Mount::breakable(&place.data(None), 256) else { return };
    let gate = place.serve().await;
    let done = gate.confirmed("done").await;
    assert!(gate.run(&done).await.is_done());
    let calls = [gate.confirmed("c1").await, gate.confirmed("c2").await];
    mount.abort();
    for call in &calls {
        let reason = gate.run(call).await.reason();
        let closed =
            ["AUDIT_STARTED_FAILED", "LEDGER_FAILED", "LEDGER_UNAVAILABLE", "JOURNAL_UNAVAILABLE"];
        assert!(closed.contains(&&*reason), "{reason}");
    }
    gate.until_readiness("ledger down").await;
    gate.until_readiness("journal down").await;
    assert_eq!(gate.read("read").await.reason(), "JOURNAL_UNAVAILABLE");
    assert_eq!((place.effects("c1"), place.effects("c2")), (0, 0));
    // It ends, and says what could not be written.
    let mut process = gate.process;
    process.terminate();
    assert!(process.exit_code().await.is_some());

    let _mount = mount.repair();
    let gate = place.serve().await;
    assert_eq!(gate.recorded("done").await.unwrap().effect(), Effect::Applied);
    assert_eq!(gate.run(&done).await.reason(), "CALL_REPLAYED");
    for call in &calls {
        let reason = gate.run(call).await.reason();
        assert!(["OK", "CONFIRMATION_CONSUMED"].contains(&&*reason), "{reason}");
        assert!(place.effects(&call.tool_call_id) <= 1);
    }
    gate.stop().await;
    journal::endings(place.directory.path());
}
