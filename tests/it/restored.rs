//! Ledgers and journals that do not belong together.

use std::fs;
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

use crate::support::process::Process;
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

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
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
