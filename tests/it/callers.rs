//! Who may call what, and what everybody else is told.

mod certificates;
mod processes;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use bytes::Bytes;
use tonic::{Code, Request, Response, Status};
use toolgate::domain::caller::{Role, Rpc};

use crate::grpc::assert_refused;
use crate::support::process::Process;
use crate::support::raw::send;
use crate::support::running::{
    AUDITOR, CONFIRMER, OPERATOR, Options, PROPOSER, World, call, channel, context, start_handler,
    until, with_bearer, write_config,
};
use prost::Message as _;
use toolgate::proto::{
    CheckRequest, ExecuteRequest, ExecuteStreamRequest, GetCallRequest, GetStatusRequest,
    IssueRequest, ListToolsRequest, ReloadRequest, RevokeRequest, WatchRequest,
};

const YES: bool = true;
const NO: bool = false;

/// Who may call what (semantics, section 9). Written out, not taken from the code under test.
const MAY: [(Role, &str, [Rpc; 10], [bool; 10]); 4] = [
    (Role::Proposer, PROPOSER, Rpc::ALL, [YES, YES, YES, YES, YES, NO, NO, NO, NO, NO]),
    (Role::Confirmer, CONFIRMER, Rpc::ALL, [NO, NO, YES, NO, NO, YES, YES, NO, NO, NO]),
    (Role::Auditor, AUDITOR, Rpc::ALL, [NO, NO, NO, NO, YES, NO, NO, NO, NO, YES]),
    (Role::Operator, OPERATOR, Rpc::ALL, [NO, NO, NO, NO, NO, NO, NO, YES, YES, NO]),
];

fn path(rpc: Rpc) -> String {
    let service = match rpc {
        Rpc::Execute | Rpc::ExecuteStream | Rpc::Check | Rpc::ListTools | Rpc::GetCall => {
            "ToolGate"
        }
        Rpc::Issue | Rpc::Revoke => "Confirmations",
        Rpc::GetStatus | Rpc::Reload => "Admin",
        Rpc::Watch => "Audit",
    };
    format!("/toolgate.v1.{service}/{}", rpc.name())
}

fn message(rpc: Rpc) -> Vec<u8> {
    let (context, calls) = (Some(context()), vec![call("c1", "patient", "{}")]);
    match rpc {
        Rpc::Execute => ExecuteRequest { context, calls, mode: 0 }.encode_to_vec(),
        // Its answer would be more than one message.
        Rpc::ExecuteStream => {
            ExecuteStreamRequest { context, calls: Vec::new(), mode: 0 }.encode_to_vec()
        }
        Rpc::Check => CheckRequest { context, calls }.encode_to_vec(),
        Rpc::ListTools => ListToolsRequest { context }.encode_to_vec(),
        Rpc::GetCall => {
            let tool_call_id = "c1".to_owned();
            GetCallRequest { context, tool_call_id }.encode_to_vec()
        }
        Rpc::Issue => {
            let call = calls.into_iter().next();
            let confirming_user_id = "user-1".to_owned();
            IssueRequest { context, call, confirming_user_id, ..<_>::default() }.encode_to_vec()
        }
        Rpc::Revoke => {
            let confirmation_id = "3f1c1e9e-6b1f-4a55-9d0b-0c8f0c6d2a11".to_owned();
            RevokeRequest { context, confirmation_id }.encode_to_vec()
        }
        Rpc::GetStatus => GetStatusRequest {}.encode_to_vec(),
        Rpc::Reload => ReloadRequest {}.encode_to_vec(),
        Rpc::Watch => WatchRequest { stop_at_head: true, ..<_>::default() }.encode_to_vec(),
    }
}

#[test]
fn the_table_is_whole_and_in_the_order_it_is_read() {
    assert_eq!(MAY.map(|(role, ..)| role), Role::ALL);
    assert_eq!(
        Rpc::ALL.map(Rpc::name),
        [
            "Execute",
            "ExecuteStream",
            "Check",
            "ListTools",
            "GetCall",
            "Issue",
            "Revoke",
            "GetStatus",
            "Reload",
            "Watch",
        ]
    );
}

#[tokio::test]
async fn each_role_may_call_its_methods_and_no_other() {
    let world = World::start().await;
    for (role, secret, rpcs, may) in MAY {
        for (rpc, may) in rpcs.into_iter().zip(may) {
            let answer =
                send(&world.channel, &path(rpc), with_bearer(Request::new(message(rpc)), secret))
                    .await;
            match answer {
                Ok(_) => assert!(may, "{role:?} {rpc:?}"),
                Err(status) if may && rpc == Rpc::ExecuteStream => {
                    assert_refused(&status, Code::InvalidArgument, "BATCH_EMPTY", None);
                }
                // This gate has no ledger: who may ask is told so, or of no call.
                Err(status) if may && rpc == Rpc::GetCall => {
                    assert_refused(&status, Code::NotFound, "CALL_NOT_RECORDED", None);
                }
                Err(status) if may => {
                    assert!(matches!(rpc, Rpc::Issue | Rpc::Revoke), "{rpc:?}: {status:?}");
                    assert_refused(&status, Code::Unavailable, "LEDGER_UNAVAILABLE", None);
                }
                Err(status) => {
                    assert!(!may, "{role:?} {rpc:?}: {status:?}");
                    assert_refused(&status, Code::PermissionDenied, "ROLE_MISSING", None);
                    assert_eq!(status.message(), "the caller's role does not include this method");
                }
            }
        }
    }
    // The proposer's Execute and the operator's Reload, and no other, left anything.
    assert_eq!(world.handler.seen().len(), 1);
    assert_eq!(world.journal().lines().count(), 3);
    let denied = |rpc: &'static str| {
        let labels = [("code", "PERMISSION_DENIED"), ("reason", "ROLE_MISSING"), ("rpc", rpc)];
        let world = &world;
        async move { world.metric("toolgate_requests_refused_total", &labels).await }
    };
    assert_eq!(
        (denied("Execute").await, denied("Check").await, denied("ListTools").await),
        (3, 2, 3)
    );
}

/// Authorisation entries of which none is a known caller's.
fn bad_credentials() -> Vec<Vec<Vec<u8>>> {
    let one = |text: &str| vec![text.as_bytes().to_vec()];
    let known = format!("Bearer {PROPOSER}");
    vec![
        vec![],
        one(""),
        one("Bearer"),
        one("Bearer "),
        one("Bearer  "),
        one(PROPOSER),
        one(&format!("Basic {PROPOSER}")),
        one(&format!("Token {PROPOSER}")),
        // As long as the right scheme.
        one(&format!("Digest {PROPOSER}")),
        one(&format!("Bearer\t{PROPOSER}")),
        one(&format!("Bearer  {PROPOSER}")),
        one(&format!("Bearer {PROPOSER} ")[..known.len() - 1]),
        one(&format!("Bearer {PROPOSER}x")),
        one(&format!("Bearer {}", PROPOSER.to_uppercase())),
        one(&format!("Bearer {PROPOSER},Bearer {PROPOSER}")),
        one("Bearer hunter2-hunter2-hunter2-hunter2"),
        one(&format!("Bearer {}", "x".repeat(4_096))),
        one(&format!("Bearer {}", "x".repeat(4_097))),
        one(&format!("Bearer {}", "x".repeat(12_000))),
        vec![b"Bearer \xff\xfe\xfd".to_vec()],
        vec![known.clone().into_bytes(), known.clone().into_bytes()],
        vec![known.clone().into_bytes(), b"Bearer other".to_vec()],
        vec![b"Basic x".to_vec(), known.into_bytes()],
    ]
}

fn with_entries(body: Vec<u8>, entries: &[Vec<u8>]) -> Request<Vec<u8>> {
    let mut headers = http::HeaderMap::new();
    for entry in entries {
        headers.append("authorization", http::HeaderValue::from_bytes(entry).unwrap());
    }
    let mut request = Request::new(body);
    *request.metadata_mut() = tonic::metadata::MetadataMap::from_headers(headers);
    request
}

#[tokio::test]
async fn without_one_known_credential_nothing_is_decoded_and_the_answer_is_always_the_same() {
    let world = World::start().await;
    let mut answers = BTreeSet::new();
    let mut count = 0_u32;
    for entries in bad_credentials() {
        // A sound message, one that would be refused as undecodable, and one that would be too large.
        for body in [message(Rpc::Execute), vec![0xff; 40], vec![0; (1 << 20) + 1]] {
            for rpc in Rpc::ALL {
                let status = send(&world.channel, &path(rpc), with_entries(body.clone(), &entries))
                    .await
                    .unwrap_err();
                assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
                answers.insert(shape(&status));
                count += 1;
            }
        }
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(
        world.metric("toolgate_requests_refused_total", &[("reason", "UNAUTHENTICATED")]).await,
        i64::from(count)
    );
    assert_eq!(world.metric("toolgate_requests_refused_total", &[]).await, i64::from(count));
    let unknown = async |way| world.metric("toolgate_callers_unknown_total", way).await;
    let (none, secret) = (unknown(&[("way", "none")]).await, unknown(&[("way", "secret")]).await);
    assert!(none > 0 && secret > 0);
    assert_eq!(none + secret, i64::from(count));
    assert_eq!(unknown(&[]).await, i64::from(count));
    assert_eq!(world.journal(), "");
}

#[tokio::test]
async fn the_scheme_is_read_without_case() {
    let world = World::start().await;
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let entry = format!("{scheme} {PROPOSER}").into_bytes();
        let answer: Result<Response<Bytes>, Status> = send(
            &world.channel,
            &path(Rpc::ListTools),
            with_entries(message(Rpc::ListTools), &[entry]),
        )
        .await;
        answer.unwrap();
    }
}

#[tokio::test]
async fn nothing_of_a_credential_is_logged_or_counted() {
    let (_handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let options = Options { more: "log: {level: debug}", ..Options::default() };
    let config = write_config(directory.path(), &upstream, &options);
    let (mut process, grpc, admin) = Process::serving(&config).await;
    let channel = channel(&grpc).await;
    for secret in ["hunter2-hunter2-hunter2-hunter2", PROPOSER, CONFIRMER, AUDITOR] {
        let request = with_bearer(Request::new(message(Rpc::Execute)), secret);
        drop(send(&channel, &path(Rpc::Execute), request).await);
        let entry = format!("Basic {secret}").into_bytes();
        send(&channel, &path(Rpc::Execute), with_entries(vec![0xff], &[entry])).await.unwrap_err();
    }
    let metrics = metrics(admin).await;
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0));
    let log = process.log();
    assert!(log.contains(r#""reason":"UNAUTHENTICATED""#), "{log}");
    for text in [log, metrics] {
        for secret in ["hunter2", PROPOSER, CONFIRMER, AUDITOR, OPERATOR, "Basic"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
    }
}

async fn metrics(admin: SocketAddr) -> String {
    let mut text = String::new();
    until("the refusals are counted", async || {
        text = crate::support::running::get(admin, "/metrics").await;
        text.contains("UNAUTHENTICATED")
    })
    .await;
    text
}

/// All of an answer but the time of day.
fn shape(status: &Status) -> String {
    let mut metadata = status.metadata().clone();
    metadata.remove("date");
    format!("{:?} {} {:?} {metadata:?}", status.code(), status.message(), status.details())
}
