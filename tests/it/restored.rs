//! Ledgers and journals that do not belong together.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;
use tokio_util::sync::DropGuard;
use tonic::Request;
use tonic::transport::Channel;
use toolgate::adapters::ledger::{EmbeddedLedger, EmbeddedOptions};
use toolgate::app::{Running, StartError};
use toolgate::config;
use toolgate::domain::watermark::Reading;
use toolgate::ports::Ledger as _;
use toolgate::proto::confirmations_client::ConfirmationsClient;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{CheckRequest, Effect, IssueRequest, Reason, ToolCall, ToolResult};

use crate::support::postgres;
use crate::support::process::{Process, run_text};
use crate::support::running::{
    CONFIRMER, Does, Handler, LEDGER, Options, call, channel, context, execute, start_handler,
    until, with_bearer, write_config,
};

const POLICY: &str = "\
apiVersion: toolgate.dev/v1
kind: Tool
name: send_reminder
description: Reminds somebody.
effect: write
upstream: handlers
confirmation: {prompt: 'Remind {/to}?'}
arguments_schema:
  type: object
  additionalProperties: false
  required: [to]
  properties: {to: {type: string, maxLength: 32}}
";

/// A directory with a configuration, and the handler that it names.
struct Place {
    directory: TempDir,
    handler: Handler,
    _upstream: DropGuard,
}

impl Place {
    async fn new() -> Self {
        let (handler, upstream, stop) = start_handler().await;
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("policy")).unwrap();
        fs::write(directory.path().join("policy/tools.yaml"), POLICY).unwrap();
        let options = Options { policy: "policy".into(), more: LEDGER, ..Options::default() };
        write_config(directory.path(), &upstream, &options);
        Self { directory, handler, _upstream: stop }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    async fn start(&self) -> Result<Running, StartError> {
        Running::start(config::load(&self.path("toolgate.yaml")).unwrap()).await
    }

    /// The ledger, while no gate has it.
    fn ledger(&self) -> EmbeddedLedger {
        let options = EmbeddedOptions::new(self.path("data/ledger"), Timestamp::now());
        EmbeddedLedger::open(&options).unwrap()
    }

    fn invocations(&self) -> usize {
        self.handler.seen().len()
    }
}

fn reminder(id: &str) -> ToolCall {
    call(id, "send_reminder", r#"{"to": "anna"}"#)
}

/// The call with a ticket for it.
async fn confirmed(channel: &Channel, call: ToolCall) -> ToolCall {
    let check = CheckRequest { context: Some(context()), calls: vec![call.clone()] };
    let checked = ToolGateClient::new(channel.clone())
        .check(with_bearer(Request::new(check), CONFIRMER))
        .await
        .unwrap();
    let preview = checked.into_inner().verdicts.remove(0).preview.unwrap();
    let issue = IssueRequest {
        context: Some(context()),
        call: Some(call.clone()),
        confirming_user_id: context().user_id,
        confirming_user_roles: Vec::new(),
        arguments_hash: preview.arguments_hash,
        key_id: preview.key_id,
        contract_digest: preview.contract_digest,
    };
    let issued = ConfirmationsClient::new(channel.clone())
        .issue(with_bearer(Request::new(issue), CONFIRMER))
        .await
        .unwrap();
    ToolCall { confirmation_ticket: issued.into_inner().ticket, ..call }
}

async fn run(channel: &Channel, call: ToolCall) -> ToolResult {
    let response = ToolGateClient::new(channel.clone()).execute(execute(vec![call])).await;
    response.unwrap().into_inner().results.remove(0)
}

async fn of(gate: &Running) -> Channel {
    channel(&gate.addresses()[0]).await
}

#[tokio::test]
async fn a_restored_ledger_needs_a_new_identity_and_voids_the_tickets_that_are_out() {
    let place = Place::new().await;
    fs::create_dir(place.path("data")).unwrap();
    let an_hour_ago = Timestamp::now() - SignedDuration::from_hours(1);
    let ledger = place.ledger();
    ledger
        .observe(Reading { now: an_hour_ago, monotonic: std::time::Duration::ZERO })
        .await
        .unwrap();
    drop(ledger);
    copy(&place.path("data/ledger"), &place.path("copy"));

    let gate = place.start().await.unwrap();
    let spent = confirmed(&of(&gate).await, reminder("call-1")).await;
    let unspent = confirmed(&of(&gate).await, reminder("call-2")).await;
    assert_eq!(run(&of(&gate).await, spent.clone()).await.reason(), Reason::Ok);
    gate.stop().await;

    fs::remove_dir_all(place.path("data/ledger")).unwrap();
    copy(&place.path("copy"), &place.path("data/ledger"));
    assert!(matches!(place.start().await, Err(StartError::LedgerOld)), "spent tickets forgotten");

    place.ledger().new_identity(Timestamp::now()).await.unwrap();
    let gate = place.start().await.unwrap();
    for ticket in [spent, unspent] {
        let result = run(&of(&gate).await, ticket).await;
        assert_eq!(result.reason(), Reason::ConfirmationOtherLedger);
    }
    assert_eq!(place.invocations(), 1);
    let again = confirmed(&of(&gate).await, reminder("call-2")).await;
    assert_eq!(run(&of(&gate).await, again).await.reason(), Reason::Ok);
    gate.stop().await;
    place.start().await.unwrap().stop().await;
}

#[tokio::test]
async fn a_lost_ledger_is_not_replaced_unnoticed() {
    let place = Place::new().await;
    let gate = place.start().await.unwrap();
    let ticket = confirmed(&of(&gate).await, reminder("call-1")).await;
    assert_eq!(run(&of(&gate).await, ticket).await.reason(), Reason::Ok);
    gate.stop().await;
    fs::remove_dir_all(place.path("data/ledger")).unwrap();
    assert!(matches!(place.start().await, Err(StartError::LedgerOld)));
    place.ledger().new_identity(Timestamp::now()).await.unwrap();
    place.start().await.unwrap().stop().await;
}

#[tokio::test]
async fn a_call_whose_journal_is_gone_may_have_had_its_effect() {
    let place = Place::new().await;
    place.handler.set("send_reminder", Does::Hang);
    let (mut process, grpc, _) = Process::serving(&place.path("toolgate.yaml")).await;
    let killed = confirmed(&channel(&grpc).await, reminder("call-1")).await;
    let mut client = ToolGateClient::new(channel(&grpc).await);
    let request = execute(vec![killed.clone()]);
    tokio::spawn(async move { client.execute(request).await });
    until("the handler is entered", async || place.handler.running() == 1).await;
    process.kill();

    fs::rename(place.path("data/journal"), place.path("archive")).unwrap();
    let gate = place.start().await.unwrap();
    let result = run(&of(&gate).await, killed).await;
    assert_eq!(result.reason(), Reason::CallReplayed);
    let recorded = result.recorded.unwrap();
    assert_eq!((recorded.reason(), recorded.effect()), (Reason::ProcessLost, Effect::Unknown));
    assert_eq!(place.invocations(), 1, "nothing is run again");
    gate.stop().await;
}

#[tokio::test]
async fn a_ledger_is_not_left_out_unnoticed() {
    let place = Place::new().await;
    place.start().await.unwrap().stop().await;
    // No tool needs it any more, and calls of former tools may still be running in it.
    let config = fs::read_to_string(place.path("toolgate.yaml")).unwrap();
    fs::write(place.path("toolgate.yaml"), config.replace(LEDGER, "")).unwrap();
    let read = POLICY
        .replace("effect: write", "effect: read")
        .replace("confirmation: {prompt: 'Remind {/to}?'}\n", "");
    fs::write(place.path("policy/tools.yaml"), read).unwrap();
    assert!(matches!(place.start().await, Err(StartError::LedgerLeftOut)));
    fs::rename(place.path("data/ledger"), place.path("aside")).unwrap();
    let gate = place.start().await.unwrap();
    assert_eq!(run(&of(&gate).await, reminder("c1")).await.reason(), Reason::Ok);
    gate.stop().await;
}

/// One gate's ledger beside another's journal, whichever of the two was put there.
#[tokio::test]
async fn a_ledger_and_a_journal_of_two_gates_do_not_start() {
    let (one, other) = (Place::new().await, Place::new().await);
    let mut spent = Vec::new();
    for place in [&one, &other] {
        let gate = place.start().await.unwrap();
        let call = confirmed(&of(&gate).await, reminder("call-1")).await;
        assert_eq!(run(&of(&gate).await, call.clone()).await.reason(), Reason::Ok);
        spent.push(call);
        gate.stop().await;
    }
    for part in ["ledger", "journal"] {
        let (data, aside) = (one.path("data").join(part), one.path("aside"));
        fs::rename(&data, &aside).unwrap();
        copy(&other.path("data").join(part), &data);
        assert!(matches!(one.start().await, Err(StartError::LedgerOld)), "the {part} of another");
        fs::remove_dir_all(&data).unwrap();
        fs::rename(&aside, &data).unwrap();
    }
    // With its own again it is what it was, and knows no tickets of the other.
    let gate = one.start().await.unwrap();
    assert_eq!(run(&of(&gate).await, spent.remove(0)).await.reason(), Reason::CallReplayed);
    let fresh = confirmed(&of(&gate).await, reminder("call-2")).await;
    gate.stop().await;
    let gate = other.start().await.unwrap();
    let stranger = run(&of(&gate).await, fresh).await;
    assert_eq!(stranger.reason(), Reason::ConfirmationOtherLedger);
    gate.stop().await;
    assert_eq!((one.invocations(), other.invocations()), (1, 1));
}

/// Nothing in an older pair contradicts the other half: what is out is voided by
/// the new identity that every restore needs.
#[tokio::test]
async fn both_restored_start_and_a_new_identity_voids_what_is_out() {
    let place = Place::new().await;
    place.start().await.unwrap().stop().await;
    copy(&place.path("data"), &place.path("copy"));
    let gate = place.start().await.unwrap();
    let spent = confirmed(&of(&gate).await, reminder("call-1")).await;
    let unspent = confirmed(&of(&gate).await, reminder("call-2")).await;
    assert_eq!(run(&of(&gate).await, spent.clone()).await.reason(), Reason::Ok);
    gate.stop().await;
    fs::remove_dir_all(place.path("data")).unwrap();
    copy(&place.path("copy"), &place.path("data"));

    place.ledger().new_identity(Timestamp::now()).await.unwrap();
    let gate = place.start().await.unwrap();
    for call in [spent, unspent] {
        let result = run(&of(&gate).await, call).await;
        assert_eq!(result.reason(), Reason::ConfirmationOtherLedger);
    }
    let fresh = confirmed(&of(&gate).await, reminder("call-3")).await;
    assert_eq!(run(&of(&gate).await, fresh).await.reason(), Reason::Ok);
    assert_eq!(place.invocations(), 2);
    gate.stop().await;
}

/// What is no ledger, or none that a gate has left, is not written over.
#[tokio::test]
async fn a_ledger_that_was_damaged_does_not_start_and_stays_as_it_is() {
    let place = Place::new().await;
    let gate = place.start().await.unwrap();
    let spent = confirmed(&of(&gate).await, reminder("call-1")).await;
    assert_eq!(run(&of(&gate).await, spent.clone()).await.reason(), Reason::Ok);
    gate.stop().await;
    let file = place.path("data/ledger/ledger.redb");
    let sound = fs::read(&file).unwrap();
    let flipped = {
        let mut bytes = sound.clone();
        let place = bytes.len() / 2;
        bytes.iter_mut().skip(place).take(4_096).for_each(|byte| *byte ^= 0xff);
        bytes
    };
    for damaged in [&flipped[..], &sound[..sound.len() / 2], b"no ledger", b""] {
        fs::write(&file, damaged).unwrap();
        match place.start().await {
            Err(StartError::Ledger(_) | StartError::LedgerOld) => {}
            // Pages that nothing is kept in may hold anything.
            Ok(gate) => {
                let result = run(&of(&gate).await, spent.clone()).await;
                assert_eq!(result.reason(), Reason::CallReplayed, "{} bytes", damaged.len());
                gate.stop().await;
            }
            Err(other) => panic!("{other}"),
        }
        assert_eq!(place.invocations(), 1, "{} bytes", damaged.len());
    }
    fs::write(&file, &sound).unwrap();
    place.start().await.unwrap().stop().await;
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The way that docs/operations.md describes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_back_from_a_database_is_a_new_identity() {
    let Some(server) = postgres::server() else { return };
    let (place, database) = (Place::new().await, server.database());
    let file = place.path("toolgate.yaml");
    let config = file.to_str().unwrap();
    let embedded = fs::read_to_string(&file).unwrap();
    let shared = format!(
        "{{kind: postgres, postgres: {{host: 127.0.0.1, port: {}, database: {}, user: {}, \
         password_file: database}}}}",
        server.port, database.name, database.user
    );
    let kind = "{kind: embedded, single_replica: true}";
    assert!(embedded.contains(kind));
    fs::write(&file, embedded.replace(kind, &shared)).unwrap();
    fs::write(place.path("database"), &database.password).unwrap();
    fs::set_permissions(place.path("database"), fs::Permissions::from_mode(0o600)).unwrap();
    let (code, _, log) = run_text(["ledger", "migrate", "--config", config]);
    assert_eq!(code, Some(0), "{log}");
    let gate = place.start().await.unwrap();
    let spent = confirmed(&of(&gate).await, reminder("call-1")).await;
    let unspent = confirmed(&of(&gate).await, reminder("call-2")).await;
    assert_eq!(run(&of(&gate).await, spent.clone()).await.reason(), Reason::Ok);
    gate.stop().await;

    fs::write(&file, embedded).unwrap();
    assert!(matches!(place.start().await, Err(StartError::LedgerOld)));
    fs::remove_dir_all(place.path("data/ledger")).unwrap();
    // Nothing of this is for `ledger migrate`, which says what is.
    let (code, _, log) = run_text(["ledger", "migrate", "--config", config]);
    assert_eq!(code, Some(1));
    assert!(log.contains("nothing to migrate") && log.contains("ledger new-identity"), "{log}");
    assert!(!place.path("data/ledger").exists());

    let (code, _, log) = run_text(["ledger", "new-identity", "--config", config]);
    assert_eq!(code, Some(0), "{log}");
    let gate = place.start().await.unwrap();
    for ticket in [spent, unspent] {
        let result = run(&of(&gate).await, ticket).await;
        assert_eq!(result.reason(), Reason::ConfirmationOtherLedger);
    }
    let again = confirmed(&of(&gate).await, reminder("call-2")).await;
    assert_eq!(run(&of(&gate).await, again).await.reason(), Reason::Ok);
    assert_eq!(place.invocations(), 2);
    gate.stop().await;
}
