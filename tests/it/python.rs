//! The wire contract as a Python backend meets it: generated stubs against a real gate.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use tokio_util::sync::DropGuard;

use crate::support::process::Process;
use crate::support::running::{Does, Handler, Options, start_handler, write_config};

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

/// The real binary before a handler, as a Python backend finds it.
struct Gate {
    process: Process,
    address: String,
    handler: Handler,
    directory: TempDir,
    _upstream: DropGuard,
}

impl Gate {
    /// With the demo's contracts, and these besides.
    async fn serving(more: &str) -> Self {
        let (handler, upstream, stop) = start_handler().await;
        let directory = tempfile::tempdir().unwrap();
        let policy = directory.path().join("policy");
        copy_demo_policy(&policy);
        fs::write(policy.join("more.yaml"), more).unwrap();
        // The field holds one item of the list; the quotes make it two.
        let listener = Some("127.0.0.1:0\", \"unix:run/gate.sock".to_owned());
        let options = Options { policy, listener, ..Options::writes() };
        let config = write_config(directory.path(), &upstream, &options);
        let (process, address, _) = Process::serving(&config).await;
        Self { process, address, handler, directory, _upstream: stop }
    }

    /// A script of `tests/python`, with stubs generated for it.
    fn script(&self, python: &Path, name: &str) -> Command {
        let stubs = self.directory.path().join("stubs");
        if !stubs.exists() {
            generate(python, &stubs);
        }
        let mut command = Command::new(python);
        command
            .arg(Path::new(ROOT).join("tests/python").join(name))
            .env("PYTHONPATH", stubs)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("TOOLGATE_ADDRESS", &self.address)
            .env("TOOLGATE_SOCKET", self.directory.path().join("run/gate.sock"))
            .env("TOOLGATE_SECRETS", self.directory.path());
        command
    }

    async fn stop(mut self) {
        self.process.terminate();
        assert_eq!(self.process.exit_code().await, Some(0), "{}", self.process.log());
    }
}

/// What a script prints, which may take its time.
async fn run(mut command: Command) -> String {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert_success(&output)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_is_served() {
    let Some(python) = python() else { return };
    let gate = Gate::serving(NOTE).await;
    gate.handler.set("search_knowledge_base", Does::Answer(MATCH.to_owned()));
    gate.handler.set("get_document_status", Does::Hang);

    let mut first = gate.script(&python, "first_call.py");
    first.arg(&gate.address).arg(gate.directory.path().join("proposer"));
    let printed = run(first).await;
    assert!(printed.starts_with("call-1 REASON_OK {\"matches\":"), "{printed}");

    let told = run(gate.script(&python, "test_gate.py")).await;
    assert!(told.trim_end().ends_with("OK") && !told.contains("Ran 0 tests"), "{told}");
    gate.stop().await;
}

/// What `docs/integration.md` shows: preview, ticket, write, and the same again.
#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_confirms_a_write() {
    let Some(python) = python() else { return };
    let gate = Gate::serving("").await;
    let drafted = r#"{"draft_id": "draft-1", "status": "drafted"}"#;
    gate.handler.set("create_support_draft", Does::Answer(drafted.to_owned()));

    let mut script = gate.script(&python, "confirmed_call.py");
    script
        .arg(&gate.address)
        .args(["proposer", "confirmer"].map(|role| gate.directory.path().join(role)));
    let printed = run(script).await;
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
    assert_eq!(gate.handler.seen().len(), 1);

    for role in ["proposer", "auditor"] {
        let mut script = gate.script(&python, "recorded_call.py");
        script.arg(&gate.address).arg(gate.directory.path().join(role)).arg("call-1");
        assert_eq!(run(script).await, "create_support_draft REASON_OK EFFECT_APPLIED\n");
    }
    let mut script = gate.script(&python, "recorded_call.py");
    script.arg(&gate.address).arg(gate.directory.path().join("auditor")).arg("call-2");
    let output = tokio::task::spawn_blocking(move || script.output().unwrap()).await.unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "nothing is recorded of it\n");
    gate.stop().await;
}

#[test]
fn the_documentation_shows_its_scripts_as_they_are_run() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/integration.md")).unwrap();
    for name in ["confirmed_call.py", "recorded_call.py"] {
        let script = fs::read_to_string(Path::new(ROOT).join("tests/python").join(name)).unwrap();
        assert!(page.contains(&format!("```python\n{script}```\n")), "{name} is shown otherwise");
    }
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
