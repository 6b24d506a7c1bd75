#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use serde_json::Value;
use tempfile::TempDir;
use tonic::Code;

use super::*;

const KNOWLEDGE: &str = r#"
tenants: [acme, Zürich]
knowledge_bases:
  - id: handbook
    documents:
      - {id: leave, title: Leave, file: docs/leave.md, status: published}
      - {id: slow, title: Slow, file: docs/leave.md, status: draft}
      - {id: broken, title: Broken, file: docs/leave.md, status: draft}
  - id: minutes
    documents:
      - {id: may, title: May, file: docs/may.md, status: archived}
faults:
  - {document_id: slow, first_attempt_delay: 2s}
  - {document_id: broken, internal_error: "postgres://app:hunter2@db/documents"}
"#;

const LEAVE: &str = "# Leave\nThirty days a year.\n# Sick leave\nTell your lead. 年假三十天。\n";

fn write_files(knowledge: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("docs")).unwrap();
    fs::write(directory.path().join("docs/leave.md"), LEAVE).unwrap();
    fs::write(directory.path().join("docs/may.md"), "# May\nThe lead was sick.\n").unwrap();
    fs::write(directory.path().join("knowledge.yaml"), knowledge).unwrap();
    directory
}

fn sample() -> SampleUpstream {
    let directory = write_files(KNOWLEDGE);
    SampleUpstream::load(&directory.path().join("knowledge.yaml"), directory.path().join("drafts"))
        .unwrap()
}

fn load_fault(knowledge: &str) -> String {
    let directory = write_files(knowledge);
    let path = directory.path().join("knowledge.yaml");
    let fault = SampleUpstream::load(&path, std::env::temp_dir().join("unused-drafts"))
        .err()
        .unwrap()
        .to_string();
    fault.replace(directory.path().to_str().unwrap(), "DIR")
}

async fn call(sample: &SampleUpstream, tenant: &str, tool: &str, arguments: &str) -> Answer {
    call_attempt(sample, tenant, tool, arguments, 1).await
}

type Answer = Result<Value, Status>;

async fn call_attempt(
    sample: &SampleUpstream,
    tenant: &str,
    tool: &str,
    arguments: &str,
    attempt: u32,
) -> Answer {
    let request = InvokeRequest {
        tool: tool.to_owned(),
        tenant_id: tenant.to_owned(),
        arguments_json: arguments.to_owned(),
        attempt,
        ..InvokeRequest::default()
    };
    let response = sample.invoke(Request::new(request)).await?;
    Ok(serde_json::from_str(&response.into_inner().result_json).unwrap())
}

#[tokio::test]
async fn search_stays_within_its_knowledge_base_and_tenant() {
    let sample = sample();
    let handbook = r#"{"query":"sick lead","knowledge_base_id":"handbook"}"#;
    let found = call(&sample, "Zürich", SEARCH, handbook).await.unwrap();
    let matches = found["matches"].as_array().unwrap();
    assert_eq!(matches.len(), 3);
    assert_eq!(matches[0]["document_id"], "leave");
    assert_eq!(matches[0]["title"], "Leave");
    assert!(matches[0]["excerpt"].as_str().unwrap().contains("Tell your lead."));
    assert!(matches[0]["score"].as_f64().unwrap() > 0.0);
    let minutes = r#"{"query":"sick","knowledge_base_id":"minutes"}"#;
    let found = call(&sample, "acme", SEARCH, minutes).await.unwrap();
    assert_eq!(found["matches"][0]["document_id"], "may");
    let chinese = r#"{"query":"年假","knowledge_base_id":"handbook"}"#;
    let found = call(&sample, "acme", SEARCH, chinese).await.unwrap();
    assert_eq!(found["matches"][0]["document_id"], "leave");

    let nothing = serde_json::json!({ "matches": [] });
    assert_eq!(call(&sample, "other", SEARCH, handbook).await.unwrap(), nothing);
    let unknown = r#"{"query":"sick","knowledge_base_id":"no-such"}"#;
    assert_eq!(call(&sample, "acme", SEARCH, unknown).await.unwrap(), nothing);
    assert_eq!((sample.calls().of(SEARCH), sample.calls().total()), (5, 5));
}

#[tokio::test]
async fn a_status_describes_the_document() {
    let sample = sample();
    let status = call(&sample, "acme", STATUS, r#"{"document_id":"leave"}"#).await.unwrap();
    let wanted = serde_json::json!({
        "document_id": "leave", "title": "Leave", "status": "published",
        "bytes": LEAVE.len(), "sections": 2,
    });
    assert_eq!(status, wanted);
    for (tenant, id) in [("acme", "no-such"), ("other", "leave")] {
        let arguments = format!(r#"{{"document_id":"{id}"}}"#);
        let status = call(&sample, tenant, STATUS, &arguments).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn faults_happen_as_listed() {
    let sample = sample();
    let slow = r#"{"document_id":"slow"}"#;
    let first = tokio::time::timeout(
        std::time::Duration::from_millis(1_999),
        call_attempt(&sample, "acme", STATUS, slow, 1),
    );
    assert!(first.await.is_err(), "the first attempt is slow");
    let before = tokio::time::Instant::now();
    call_attempt(&sample, "acme", STATUS, slow, 2).await.unwrap();
    assert_eq!(tokio::time::Instant::now(), before, "the second is not");
    let broken = call(&sample, "acme", STATUS, r#"{"document_id":"broken"}"#).await.unwrap_err();
    assert_eq!(broken.code(), Code::Internal);
    assert!(broken.message().contains("hunter2"), "the gate's withholding is worth showing");
}

#[tokio::test]
async fn what_is_no_call_of_a_tool_is_refused() {
    let sample = sample();
    for (tool, arguments, code) in [
        ("run_shell", "{}", Code::Unimplemented),
        (STATUS, r#"{"document_id":7}"#, Code::InvalidArgument),
        (STATUS, r#"{"document_id":"leave","tenant_id":"x"}"#, Code::InvalidArgument),
        (SEARCH, r#"{"query":"x"}"#, Code::InvalidArgument),
        (SEARCH, "", Code::InvalidArgument),
    ] {
        let status = call(&sample, "acme", tool, arguments).await.unwrap_err();
        assert_eq!(status.code(), code, "{tool} {arguments}");
    }
    assert_eq!(sample.calls().of("run_shell"), 1);
}

#[test]
fn loading_says_what_to_mend() {
    let missing = load_fault(&KNOWLEDGE.replace("docs/may.md", "docs/june.md"));
    assert!(
        missing.starts_with(
            "DIR/knowledge.yaml#/knowledge_bases/1/documents/0/file: DIR/docs/june.md cannot be read:"
        ),
        "{missing}"
    );
    assert_eq!(
        load_fault(&KNOWLEDGE.replace("id: may", "id: leave")),
        "DIR/knowledge.yaml#/knowledge_bases/1/documents/0/id: is used twice; choose another"
    );
    assert_eq!(
        load_fault(&KNOWLEDGE.replace("id: minutes", "id: handbook")),
        "DIR/knowledge.yaml#/knowledge_bases/1/id: is used twice; choose another"
    );
    assert_eq!(
        load_fault(&KNOWLEDGE.replace("document_id: slow", "document_id: no-such")),
        "DIR/knowledge.yaml#/faults/0/document_id: is no listed document; list it or remove the fault"
    );
    for wrong in ["soon", "-2s"] {
        assert_eq!(
            load_fault(&KNOWLEDGE.replace("2s", &format!("\"{wrong}\""))),
            "DIR/knowledge.yaml#/faults/0/first_attempt_delay: is no duration; write one like 2s or 500ms"
        );
    }
    assert!(load_fault("tenants: 7").starts_with("DIR/knowledge.yaml: is no knowledge file"));
}

#[tokio::test]
async fn the_server_serves_until_stopped() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let sample = sample();
    let calls = sample.calls();
    let server = tokio::spawn(sample.serve(listener, stop.clone()));
    let mut client =
        crate::proto::tool_handler_client::ToolHandlerClient::connect(format!("http://{address}"))
            .await
            .unwrap();
    let request = InvokeRequest {
        tool: STATUS.to_owned(),
        tenant_id: "acme".to_owned(),
        arguments_json: r#"{"document_id":"may"}"#.to_owned(),
        attempt: 1,
        ..InvokeRequest::default()
    };
    let response = client.invoke(request).await.unwrap().into_inner();
    assert!(response.result_json.contains(r#""status":"archived""#));
    assert_eq!((calls.of(STATUS), calls.total()), (1, 1));
    drop(client);
    stop.cancel();
    server.await.unwrap().unwrap();
}
