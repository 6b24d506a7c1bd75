//! The wire contract as a Python backend meets it: generated stubs against a real gate.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::running::{Does, LEDGER, Options, World};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const MODULES: &str = "import grpc, grpc_tools, grpc_reflection, grpc_health, grpc_status";
const MATCH: &str = r#"{"matches": [
    {"document_id": "operations", "title": "Operating ToolGate", "excerpt": "SIGTERM drains.", "score": 1.5}
]}"#;
/// The confirmed write that the script makes.
const NOTE: &str = r#"
apiVersion: toolgate.dev/v1
kind: Tool
name: create_note
description: Keeps a note.
effect: write
upstream: handlers
confirmation: {prompt: "Note {/text}?"}
arguments_schema:
  type: object
  additionalProperties: false
  required: [text]
  properties: {text: {type: string, maxLength: 64}}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_is_served() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let stubs = folder.path().join("stubs");
    generate(&python, &stubs);
    let policy = folder.path().join("policy");
    copy_demo_policy(&policy);
    fs::write(policy.join("create_note.yaml"), NOTE).unwrap();
    // The field holds one item of the list; the quotes make it two.
    let listener = Some("127.0.0.1:0\", \"unix:run/gate.sock".to_owned());
    let world = World::start_with(Options { policy, listener, ..Options::writes() }).await;
    world.handler.set("search_knowledge_base", Does::Answer(MATCH.to_owned()));
    world.handler.set("get_document_status", Does::Hang);

    let address = world.running().addresses()[0].clone();
    let secrets = world.directory.path().to_owned();
    let socket = world.directory.path().join("run/gate.sock");
    let played = tokio::task::spawn_blocking(move || {
        let script = |name: &str| {
            let mut command = Command::new(&python);
            command
                .arg(Path::new(ROOT).join("tests/python").join(name))
                .env("PYTHONPATH", &stubs)
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .env("TOOLGATE_ADDRESS", &address)
                .env("TOOLGATE_SOCKET", &socket)
                .env("TOOLGATE_SECRETS", &secrets);
            command
        };
        let first =
            script("first_call.py").arg(&address).arg(secrets.join("proposer")).output().unwrap();
        let rest = script("test_gate.py").output().unwrap();
        (first, rest)
    });
    let (first, rest) = played.await.unwrap();

    let printed = assert_success(&first);
    assert!(printed.starts_with("call-1 REASON_OK {\"matches\":"), "{printed}");
    let told = assert_success(&rest);
    assert!(told.trim_end().ends_with("OK") && !told.contains("Ran 0 tests"), "{told}");
}

/// What `docs/integration.md` shows: preview, ticket, write, and the same again.
#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_confirms_a_write() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let stubs = folder.path().join("stubs");
    generate(&python, &stubs);
    let policy = folder.path().join("policy");
    copy_demo_policy(&policy);
    let world = World::start_with(Options { policy, more: LEDGER, ..Options::default() }).await;
    let drafted = r#"{"draft_id": "draft-1", "status": "drafted"}"#;
    world.handler.set("create_support_draft", Does::Answer(drafted.to_owned()));

    let mut command = Command::new(&python);
    command
        .arg(Path::new(ROOT).join("tests/python/confirmed_call.py"))
        .arg(&world.running().addresses()[0])
        .args(["proposer", "confirmer"].map(|role| world.directory.path().join(role)))
        .env("PYTHONPATH", &stubs)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let played = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let printed = assert_success(&played);
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(
        lines,
        [
            "Create a draft to the support team with this question?",
            "\"Are lone surrogates refused?\"",
            &format!("REASON_OK EFFECT_APPLIED {drafted}"),
            "REASON_CALL_REPLAYED EFFECT_APPLIED This tool call has already ended.",
        ]
    );
    assert_eq!(world.handler.seen().len(), 1);
}

#[test]
fn the_documentation_shows_the_confirmed_call_as_it_is_run() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/integration.md")).unwrap();
    let script =
        fs::read_to_string(Path::new(ROOT).join("tests/python/confirmed_call.py")).unwrap();
    assert!(
        page.contains(&format!("```python\n{script}```\n")),
        "docs/integration.md shows another script"
    );
}

#[test]
fn the_readme_shows_the_first_call_as_it_is_run() {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let script = fs::read_to_string(Path::new(ROOT).join("tests/python/first_call.py")).unwrap();
    assert!(
        readme.contains(&format!("```python\n{script}```\n")),
        "README.md shows another script"
    );
}

/// A Python with what the scripts import, or a loud nothing.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("TOOLGATE_PYTHON").unwrap_or_else(|| OsString::from("python3"));
    let found = Command::new(&named)
        .args(["-c", MODULES])
        .output()
        .is_ok_and(|output| output.status.success());
    if found {
        return Some(PathBuf::from(named));
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "CI needs a Python with tests/python/requirements.txt; name it in TOOLGATE_PYTHON"
    );
    eprintln!(
        "SKIPPED the Python client: python3 (or TOOLGATE_PYTHON) lacks what tests/python/requirements.txt lists"
    );
    None
}

/// Stubs as a backend engineer generates them.
fn generate(python: &Path, into: &Path) {
    fs::create_dir(into).unwrap();
    let proto = Path::new(ROOT).join("proto");
    let mut files: Vec<_> = fs::read_dir(proto.join("toolgate/v1"))
        .unwrap()
        .map(|entry| Path::new("toolgate/v1").join(entry.unwrap().file_name()))
        .collect();
    files.sort();
    let output = Command::new(python)
        .args(["-m", "grpc_tools.protoc", "-I."])
        .arg(format!("--python_out={}", into.display()))
        .arg(format!("--grpc_python_out={}", into.display()))
        .args(files)
        .current_dir(proto)
        .output()
        .unwrap();
    assert_success(&output);
}

/// The demo's contracts, before the upstream that a test's gate knows.
fn copy_demo_policy(into: &Path) {
    let from = Path::new(ROOT).join("deploy/demo/policy");
    let mut waiting = vec![from.clone()];
    while let Some(directory) = waiting.pop() {
        fs::create_dir_all(into.join(directory.strip_prefix(&from).unwrap())).unwrap();
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let text = text.replace("upstream: knowledge", "upstream: handlers");
            fs::write(into.join(path.strip_prefix(&from).unwrap()), text).unwrap();
        }
    }
}

/// What a process that succeeded printed, standard error last.
fn assert_success(output: &Output) -> String {
    let text =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat();
    assert!(output.status.success(), "{text}");
    text
}
