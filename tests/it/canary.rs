//! What a model, a user or an upstream says is nowhere to be found afterwards.
//!
//! Marked text, numbers, Booleans, member names and upstream messages go through
//! every outcome and every kind of bad request. Then the journal, the ledger, the
//! log at its most talkative, audit sinks, metrics, probes, and every answer are searched for
//! the marks, for the tickets that were issued, and for the secrets.

mod scenes;
mod search;
mod sinks;
mod watched;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Code, Request};
use toolgate::proto::confirmations_client::ConfirmationsClient;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{
    BatchMode, CallContext, CheckRequest, CheckResponse, ConfirmationPreview, ExecuteRequest,
    IssueRequest, Reason, ToolCall, ToolResult,
};

use crate::support::process::Process;
use crate::support::raw::send;
use crate::support::running::{
    AUDIT_KEY, AUDITOR, CONFIRMATION_KEY, CONFIRMER, Handler, LEDGER, Options, PROPOSER, channel,
    execute_within, start_handler, with_bearer, write_config,
};

use search::{Evidence, MARKED};

/// A tool with room for marks of every kind.
fn tool(name: &str, upstream: &str, more: &str) -> String {
    format!(
        "apiVersion: toolgate.dev/v1\nkind: Tool\nname: {name}\ndescription: d\neffect: read\nupstream: {upstream}\n{more}\n\
         arguments_schema:\n  type: object\n  additionalProperties: false\n  properties:\n    \
         text: {{type: string, maxLength: 64, pattern: '^[a-z0-9 -]*$'}}\n    number: {{type: number, maximum: 10000000}}\n    \
         integer: {{type: integer}}\n    flags: {{type: array, maxItems: 9, items: {{type: boolean}}}}\n    \
         kind: {{enum: [one, two]}}\n---\n"
    )
}

const SEND: &str = "confirmation: {prompt: '{/text}, {/number}, {/integer}, {/flags}, {/kind}'}";

fn write_policy(directory: &Path) -> PathBuf {
    let policy = directory.join("policy");
    fs::create_dir(&policy).unwrap();
    let limits = "apiVersion: toolgate.dev/v1\nkind: Policy\nlimits: {max_steps: 4, batch_total: 10s, min_attempt: 100ms}\n";
    fs::write(policy.join("policy.yaml"), limits).unwrap();
    let strict = "limits: {max_result_bytes: 4096}\nresult_schema: {type: object, additionalProperties: false, properties: {id: {type: integer, maximum: 5}}}";
    let tools = [
        tool("probe", "handlers", "limits: {max_argument_bytes: 512}"),
        tool("brief", "handlers", "limits: {attempt_timeout: 150ms, max_attempts: 2}"),
        tool("strict", "handlers", strict),
        tool("gone", "nowhere", ""),
        tool("send", "handlers", SEND).replace("effect: read", "effect: write"),
    ];
    fs::write(policy.join("tools.yaml"), tools.concat()).unwrap();
    policy
}

/// A context whose every field is marked: events may hold it, and nothing else.
fn marked_context() -> CallContext {
    CallContext {
        request_id: "canary-request".to_owned(),
        user_id: "canary-user".to_owned(),
        tenant_id: "canary-tenant".to_owned(),
        conversation_id: "canary-conversation".to_owned(),
    }
}

/// A gate in a process of its own, and what it answered.
struct Stage {
    handler: Handler,
    process: Process,
    channel: Channel,
    admin: SocketAddr,
    evidence: Evidence,
}

impl Stage {
    async fn execute(&mut self, calls: Vec<ToolCall>) -> Vec<Reason> {
        self.execute_within(calls, None).await
    }

    /// Checks, then executes; keeps both answers without what may be marked.
    async fn execute_within(
        &mut self,
        calls: Vec<ToolCall>,
        time: Option<Duration>,
    ) -> Vec<Reason> {
        let mut client = ToolGateClient::new(self.channel.clone());
        let request = CheckRequest { context: Some(marked_context()), calls: calls.clone() };
        let checked = client.check(with_bearer(Request::new(request), PROPOSER)).await.unwrap();
        self.evidence.keep_metadata("Check", checked.metadata());
        self.keep_checked(checked.into_inner());

        let message = ExecuteRequest {
            context: Some(marked_context()),
            calls,
            mode: BatchMode::Continue.into(),
        };
        let request = || with_bearer(Request::new(message.clone()), PROPOSER);
        let response = match time {
            None => client.execute(request()).await.unwrap(),
            Some(time) => execute_within(&mut client, time, request).await,
        };
        self.evidence.keep_metadata("Execute", response.metadata());
        let mut response = response.into_inner();
        let reasons: Vec<_> = response.results.iter().map(ToolResult::reason).collect();
        for result in &mut response.results {
            let relayed = std::mem::take(&mut result.result_json);
            assert_eq!(
                MARKED.is_in(relayed.as_bytes()),
                result.reason() == Reason::Ok,
                "{relayed}"
            );
        }
        for event in &mut response.events {
            let context = marked_context();
            // The user confirms for themselves.
            if event.confirmed_by_user_id == context.user_id {
                event.confirmed_by_user_id.clear();
            }
            let fields = [
                &mut event.request_id,
                &mut event.user_id,
                &mut event.tenant_id,
                &mut event.conversation_id,
            ];
            let wanted =
                [context.request_id, context.user_id, context.tenant_id, context.conversation_id];
            assert_eq!(fields.map(std::mem::take), wanted);
        }
        self.evidence.keep_message("Execute", &response);
        reasons
    }

    /// Keeps what was checked, but for the previews: these say what is to be confirmed.
    fn keep_checked(&mut self, mut checked: CheckResponse) -> Vec<Option<ConfirmationPreview>> {
        let previews = checked.verdicts.iter_mut().map(|verdict| verdict.preview.take());
        let previews: Vec<_> = previews.collect();
        for preview in previews.iter().flatten() {
            assert!(MARKED.is_in(preview.prompt.as_bytes()), "{preview:?}");
        }
        self.evidence.keep_message("Check", &checked);
        previews
    }

    /// The call with a ticket for it, which is kept from the evidence as a secret.
    async fn confirmed(&mut self, call: ToolCall) -> ToolCall {
        let issue = self.issue_request(call.clone()).await;
        let issued = ConfirmationsClient::new(self.channel.clone())
            .issue(with_bearer(Request::new(issue), CONFIRMER))
            .await
            .unwrap();
        self.evidence.keep_metadata("Issue", issued.metadata());
        let ticket = issued.into_inner().ticket;
        // The header is the same for all, and known to everybody.
        ticket.split('.').skip(1).for_each(|part| self.evidence.search_for(part));
        ToolCall { confirmation_ticket: ticket, ..call }
    }

    /// A request for a ticket, by the confirmer's own preview.
    async fn issue_request(&mut self, call: ToolCall) -> IssueRequest {
        let check = CheckRequest { context: Some(marked_context()), calls: vec![call.clone()] };
        let checked = ToolGateClient::new(self.channel.clone())
            .check(with_bearer(Request::new(check), CONFIRMER))
            .await
            .unwrap();
        let preview = self.keep_checked(checked.into_inner()).remove(0).unwrap();
        IssueRequest {
            context: Some(marked_context()),
            call: Some(call),
            confirming_user_id: marked_context().user_id,
            confirming_user_roles: vec!["canary-role".to_owned()],
            arguments_hash: preview.arguments_hash,
            key_id: preview.key_id,
            contract_digest: preview.contract_digest,
        }
    }

    async fn refuse(&mut self, path: &str, request: Request<Vec<u8>>) -> Code {
        let status = send(&self.channel, path, request).await.unwrap_err();
        self.evidence.keep_status(path, &status);
        status.code()
    }
}

#[tokio::test]
async fn nothing_that_was_said_is_found_anywhere() {
    let (handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let policy = write_policy(directory.path());
    let sinks = sinks::Sinks::start(directory.path()).await;
    let config = write_config(
        directory.path(),
        &upstream,
        &Options {
            policy,
            more: &format!("log: {{level: debug}}\n{LEDGER}"),
            audit: &sinks.audit,
            ..Options::default()
        },
    );
    let mut process = Process::serve_printing(&config, sinks.out());
    let (grpc, admin) = process.addresses().await;
    let channel = channel(&grpc).await;
    let mut stage = Stage { handler, process, channel, admin, evidence: Evidence::default() };
    for secret in [PROPOSER, CONFIRMER, AUDITOR, AUDIT_KEY, CONFIRMATION_KEY, sinks::TOKEN] {
        stage.evidence.search_for(secret);
    }

    scenes::marked_arguments_are_refused(&mut stage).await;
    scenes::marked_attempts_end(&mut stage).await;
    scenes::a_marked_call_is_cancelled(&mut stage).await;
    scenes::marked_writes_are_confirmed(&mut stage).await;
    scenes::marked_confirmations_are_refused(&mut stage).await;
    scenes::marked_requests_are_refused(&mut stage).await;
    watched::the_journal_is_watched(&mut stage).await;
    scenes::admin_requests_are_marked(&mut stage).await;

    stage.process.terminate();
    assert_eq!(stage.process.exit_code().await, Some(0), "{}", stage.process.log());
    let log = stage.process.log();
    assert!(log.lines().count() > 20, "the log says something: {log}");
    stage.evidence.keep("log", log);
    let events = keep_data(&mut stage.evidence, &directory.path().join("data"));
    assert!(events > 40, "{events} events");
    sinks.keep(&mut stage.evidence, events);
    stage.evidence.assert_clean();
}

/// Keeps every file of the data directory, events without their context; says how many events there were.
fn keep_data(evidence: &mut Evidence, directory: &Path) -> usize {
    let mut events = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            events += keep_data(evidence, &path);
            continue;
        }
        if path.extension().is_some_and(|extension| extension == "redb") {
            evidence.keep(&path.to_string_lossy(), without_context(fs::read(&path).unwrap()));
            continue;
        }
        let mut text = fs::read_to_string(&path).unwrap();
        if path.parent().unwrap().ends_with("segments") {
            events += text.lines().count();
            text = without_ids(text);
        }
        evidence.keep(&path.to_string_lossy(), text);
    }
    events
}

/// Lines of events without the ids of the context, which each of them holds.
fn without_ids(mut text: String) -> String {
    let context = marked_context();
    let ids = [
        ("request_id", context.request_id),
        ("user_id", context.user_id),
        ("tenant_id", context.tenant_id),
        ("conversation_id", context.conversation_id),
    ];
    for (field, id) in ids {
        let member = format!(r#""{field}":"{id}""#);
        assert_eq!(text.matches(&member).count(), text.lines().count());
        text = text.replace(&member, "");
    }
    let confirmed_by = format!(r#""confirmed_by_user_id":"{}""#, marked_context().user_id);
    assert!(text.contains(&confirmed_by), "a confirmation is on record");
    text.replace(&confirmed_by, "")
}

/// The ledger's pages without the ids of the context, which its records hold.
fn without_context(mut pages: Vec<u8>) -> Vec<u8> {
    let context = marked_context();
    for id in [context.request_id, context.user_id, context.tenant_id, context.conversation_id] {
        let mut found = 0;
        while let Some(at) = pages.windows(id.len()).position(|window| window == id.as_bytes()) {
            pages[at..at + id.len()].fill(b'-');
            found += 1;
        }
        assert!(found > 0, "the ledger holds no {id}");
    }
    pages
}
