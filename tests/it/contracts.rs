//! Every refusal of a policy, from case files with pinned messages.
//!
//! `tests/cases/contracts/NAME.yaml` holds cases, one a document; `NAME.txt`
//! beside it holds what loading them must say. A case has the fields
//!
//! - `about`: what it shows, the heading of its section in the text file;
//! - `files`: the policy directory, path to text, `{bytes: [N…]}`, or
//!   `{repeat: TEXT, times: N}` with TEXT under `before`, `inner`, `close` (as often) and `after`;
//! - `tool`: fields laid over the ordinary contract in `tool.yaml`, null to take one away;
//! - `schema`: short for `tool: {arguments_schema: …}`;
//! - `property`: short for a schema with one property called `value`;
//! - `persistent`: whether the process says `persistence: persistent`.
//!
//! With `TOOLGATE_UPDATE_CASES=1` the text files are written instead of compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use serde_json::{Map, Value, json};
use toolgate::config::Faults;
use toolgate::config::policy::{Loaded, Surroundings, load};
use toolgate::domain::refusal::Code;

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/contracts")
}

pub(crate) fn surroundings() -> Surroundings {
    Surroundings {
        upstreams: BTreeSet::from(["knowledge".to_owned()]),
        persistent: false,
        ticket_ttl: Duration::from_mins(5),
        skew: Duration::from_secs(30),
    }
}

/// The ordinary contract, with fields laid over it.
fn tool(over: &Value) -> Value {
    let mut tool = json!({
        "apiVersion": "toolgate.dev/v1",
        "kind": "Tool",
        "name": "look_up",
        "description": "Looks something up.",
        "effect": "read",
        "upstream": "knowledge",
        "arguments_schema": {"type": "object", "additionalProperties": false, "properties": {}},
    });
    for (name, value) in over.as_object().into_iter().flatten() {
        let fields = tool.as_object_mut().unwrap();
        match value {
            Value::Null => drop(fields.remove(name)),
            value => drop(fields.insert(name.clone(), value.clone())),
        }
    }
    tool
}

fn closed(property: &Value) -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": {"value": property}})
}

fn content(file: &Value) -> Vec<u8> {
    if let Some(text) = file.as_str() {
        return text.as_bytes().to_vec();
    }
    if let Some(times) = file["times"].as_u64() {
        let times = usize::try_from(times).unwrap();
        let part = |name: &str| file[name].as_str().unwrap_or_default();
        let (open, close) = (part("repeat").repeat(times), part("close").repeat(times));
        return [part("before"), &open, part("inner"), &close, part("after")].concat().into_bytes();
    }
    let bytes = file["bytes"].as_array().expect("text, times or bytes");
    bytes.iter().map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap()).collect()
}

pub(crate) fn write(directory: &Path, path: &str, bytes: &[u8]) {
    let path = directory.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn load_case(case: &Value) -> Result<Loaded, Faults> {
    let directory = tempfile::tempdir().unwrap();
    for (path, file) in case["files"].as_object().into_iter().flatten() {
        write(directory.path(), path, &content(file));
    }
    let mut over = case.get("tool").cloned().unwrap_or_else(|| Value::Object(Map::new()));
    if let Some(schema) = case.get("schema") {
        over["arguments_schema"] = schema.clone();
    }
    if let Some(property) = case.get("property") {
        over["arguments_schema"] = closed(property);
    }
    if ["tool", "schema", "property"].iter().any(|field| case.get(field).is_some()) {
        write(directory.path(), "tool.yaml", tool(&over).to_string().as_bytes());
    }
    let persistent = case["persistent"].as_bool().unwrap_or(false);
    load(directory.path(), &Surroundings { persistent, ..surroundings() })
}

fn told(outcome: &Result<Loaded, Faults>) -> String {
    match outcome {
        Ok(loaded) => {
            let warnings = loaded.warnings.iter().map(|warning| format!("warning: {warning}\n"));
            std::iter::once("accepted\n".to_owned()).chain(warnings).collect()
        }
        Err(faults) => {
            let told: Vec<String> = faults.as_slice().iter().map(ToString::to_string).collect();
            told.join("\n") + "\n"
        }
    }
}

fn codes(outcome: &Result<Loaded, Faults>) -> Vec<Code> {
    let faults = match outcome {
        Ok(loaded) => &loaded.warnings,
        Err(faults) => faults.as_slice(),
    };
    faults.iter().map(|fault| fault.code).collect()
}

/// The cases of all files, by file.
fn all_cases() -> BTreeMap<PathBuf, Vec<Value>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(cases()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path).unwrap();
            let cases = serde_saphyr::from_multiple::<Value>(&text);
            all.insert(path.clone(), cases.unwrap_or_else(|e| panic!("{}: {e}", path.display())));
        }
    }
    assert!(!all.is_empty());
    all
}

#[test]
fn every_case_says_what_is_pinned() {
    let is_update = env::var_os("TOOLGATE_UPDATE_CASES").is_some();
    for (path, cases) in all_cases() {
        let sections = cases.iter().map(|case| {
            let known = ["about", "files", "tool", "schema", "property", "persistent"];
            let unknown = case.as_object().unwrap().keys().find(|k| !known.contains(&k.as_str()));
            assert_eq!(unknown, None, "{}", path.display());
            format!("# {}\n{}", case["about"].as_str().unwrap(), told(&load_case(case)))
        });
        let text = sections.collect::<Vec<_>>().join("\n");
        let pinned = path.with_extension("txt");
        if is_update {
            fs::write(&pinned, text).unwrap();
        } else {
            let wanted = fs::read_to_string(&pinned).unwrap_or_default();
            assert_eq!(text, wanted, "{}", pinned.display());
        }
    }
}

#[test]
fn every_code_has_a_case() {
    let met: BTreeSet<Code> =
        all_cases().values().flatten().flat_map(|case| codes(&load_case(case))).collect();
    // Those of the process configuration have theirs in `configuration`, those of
    // a reload in `reload`.
    let of_the_process = [
        Code::InvalidValue,
        Code::InsecureAddress,
        Code::SecretRefused,
        Code::KeyRefused,
        Code::FilesChanging,
        Code::RestartNeeded,
        Code::SignerMissing,
        Code::NotDurable,
    ];
    let mut missing = Code::ALL.to_vec();
    missing.retain(|code| !met.contains(code) && !of_the_process.contains(code));
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn names_of_codes_are_distinct() {
    let names: BTreeSet<_> = Code::ALL.iter().map(|code| code.name()).collect();
    assert_eq!(names.len(), Code::ALL.len());
    assert!(Code::ALL.iter().all(|code| Code::from_name(code.name()) == Some(*code)));
}

/// A mounted `ConfigMap`: links to files in a directory that is itself a hidden link.
#[cfg(unix)]
#[test]
fn a_config_map_is_a_policy_directory() {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().unwrap();
    let tool = tool(&json!({"arguments_schema": "arguments.json"})).to_string();
    write(directory.path(), "..2026_01_01/tool.yaml", tool.as_bytes());
    let schema = json!({"type": "object", "additionalProperties": false}).to_string();
    write(directory.path(), "..2026_01_01/arguments.json", schema.as_bytes());
    symlink("..2026_01_01", directory.path().join("..data")).unwrap();
    symlink("..data/tool.yaml", directory.path().join("tool.yaml")).unwrap();
    symlink("..data/arguments.json", directory.path().join("arguments.json")).unwrap();
    let loaded = load(directory.path(), &surroundings()).unwrap();
    assert_eq!(loaded.snapshot.contracts().len(), 1);
}

#[cfg(unix)]
#[test]
fn links_that_lead_nowhere_or_to_directories_are_faults() {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().unwrap();
    symlink("missing", directory.path().join("tool.yaml")).unwrap();
    symlink(".", directory.path().join("again")).unwrap();
    let faults = load(directory.path(), &surroundings()).unwrap_err();
    let found: Vec<_> =
        faults.as_slice().iter().map(|fault| (fault.file.as_str(), fault.code)).collect();
    let wanted = [("again", Code::UnreadableFile), ("tool.yaml", Code::UnreadableFile)];
    assert_eq!(found, wanted);
}

#[test]
fn a_directory_that_is_not_there_is_a_fault() {
    let directory = tempfile::tempdir().unwrap();
    let faults = load(&directory.path().join("missing"), &surroundings()).unwrap_err();
    assert_eq!(faults.as_slice()[0].code, Code::UnreadableFile);
}

#[test]
fn ten_thousand_contracts_load() {
    let directory = tempfile::tempdir().unwrap();
    let schema = closed(&json!({"$ref": "common.json#/$defs/id"}));
    write(
        directory.path(),
        "common.json",
        br#"{"$defs": {"id": {"type": "string", "maxLength": 9}}}"#,
    );
    for file in 0..100 {
        let documents: Vec<String> = (0..100)
            .map(|index| {
                let name = format!("tool.{file}.{index}");
                tool(&json!({"name": name, "arguments_schema": schema})).to_string()
            })
            .collect();
        let text = documents.join("\n---\n");
        write(directory.path(), &format!("{file}.yaml"), text.as_bytes());
    }
    let loaded = load(directory.path(), &surroundings()).unwrap();
    assert_eq!(loaded.snapshot.contracts().len(), 10_000);
    assert!(loaded.snapshot.contract("tool.99.99").is_some());
    assert!(loaded.snapshot.contract("tool.100.0").is_none());
}

#[test]
fn the_demo_policy_loads_without_a_warning() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/demo/policy");
    let loaded = load(&directory, &surroundings()).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(loaded.warnings, []);
    let names: Vec<_> = loaded.snapshot.contracts().map(|c| c.name.to_string()).collect();
    assert_eq!(names, ["create_support_draft", "get_document_status", "search_knowledge_base"]);
    let status = loaded.snapshot.contract("get_document_status").unwrap();
    let accepts = |text: &str| status.arguments_schema.is_valid(&parsed(text));
    assert!(accepts(r#"{"document_id": "a"}"#));
    assert!(!accepts(r#"{"document_id": ""}"#) && !accepts(r#"{"document_id": 7}"#));
    assert_eq!(status.limits.attempt_timeout, Duration::from_millis(500));
    assert_eq!(status.limits.max_attempts, 2);
}

fn parsed(text: &str) -> toolgate::domain::json::Value {
    let wide = toolgate::domain::json::Integers::Wide;
    toolgate::domain::json::parse(text.as_bytes(), 1 << 20, wide).unwrap()
}

/// What a model is shown must mean what the gate checks.
#[test]
fn the_text_of_a_schema_stands_alone_and_means_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = json!({
        "type": "object", "additionalProperties": false, "required": ["id"],
        "properties": {"id": {"$ref": "parts/a b.json#/$defs/id"}, "tree": {"$ref": "#/$defs/tree"}},
        "$defs": {"tree": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}}},
    });
    write(directory.path(), "schemas/arguments.json", arguments.to_string().as_bytes());
    let part = json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": {
        "id": {"anyOf": [{"$ref": "#/$defs/text"}, {"$ref": "../arguments.json#/properties/tree"}]},
        "text": {"type": "string", "maxLength": 3}}});
    write(directory.path(), "schemas/parts/a b.json", part.to_string().as_bytes());
    let tool = tool(&json!({"arguments_schema": "schemas/arguments.json"}));
    write(directory.path(), "tool.yaml", tool.to_string().as_bytes());
    let loaded =
        load(directory.path(), &surroundings()).unwrap_or_else(|faults| panic!("{faults}"));
    let schema = &loaded.snapshot.contract("look_up").unwrap().arguments_schema;

    let shown: Value = serde_json::from_str(schema.text()).unwrap();
    let alone = jsonschema::draft202012::new(&shown).unwrap();
    let instances = [
        (json!({"id": "abc"}), true),
        (json!({"id": "abcd"}), false),
        (json!({"id": [[], [[]]]}), true),
        (json!({"id": [[], [], []]}), false),
        (json!({"id": 1}), false),
        (json!({"tree": []}), false),
        (json!({"id": "a", "tree": [[], [[], []]]}), true),
        (json!({"id": "a", "tree": ["x"]}), false),
    ];
    for (instance, is_valid) in instances {
        assert_eq!(alone.is_valid(&instance), is_valid, "{instance}");
        assert_eq!(schema.is_valid(&parsed(&instance.to_string())), is_valid, "{instance}");
    }
}

/// The snapshot of a directory with these files.
fn snapshot(files: &[(&str, String)]) -> toolgate::domain::policy::PolicySnapshot {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in files {
        write(directory.path(), path, text.as_bytes());
    }
    load(
        directory.path(),
        &Surroundings {
            persistent: true,
            upstreams: BTreeSet::from(["knowledge".to_owned(), "other".to_owned()]),
            ..surroundings()
        },
    )
    .unwrap_or_else(|faults| panic!("{faults}"))
    .snapshot
}

fn tool_digest(over: &Value) -> String {
    let snapshot = snapshot(&[
        ("tool.yaml", tool(over).to_string()),
        ("s.json", closed(&json!({"type": "integer"})).to_string()),
    ]);
    snapshot.contracts().next().unwrap().digest.to_string()
}

/// Tickets and journals name contracts by these digests: a change of the form
/// makes every ticket in flight invalid, and must be one that was meant.
#[test]
fn digests_are_pinned() {
    let over = json!({"arguments_schema": closed(&json!({"type": "string", "maxLength": 9}))});
    let snapshot = snapshot(&[("tool.yaml", tool(&over).to_string())]);
    assert_eq!(
        snapshot.contract("look_up").unwrap().digest.to_string(),
        "5bb4aae1f6e9d8d075f1a6bf3c9b232bd25ee67b784a787056598a91e69d10a8"
    );
    assert_eq!(
        snapshot.digest().to_string(),
        "dd4a5e055948fc11b11cd9e9fdd3ee7e10bcee8a3b22d656690ccf93d2f346f6"
    );
}

/// `SHA-256(toolgate-policy-v1\0 ‖ C([sorted contract digests, rules, limits]))`, by hand.
#[test]
fn the_policy_digest_is_that_of_the_sorted_contract_digests() {
    use sha2::{Digest as _, Sha256};
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let texts: Vec<String> =
        names.iter().map(|name| tool(&json!({"name": name})).to_string()).collect();
    let snapshot = snapshot(&[("tools.yaml", texts.join("\n---\n"))]);
    let mut digests: Vec<String> =
        snapshot.contracts().map(|contract| contract.digest.to_string()).collect();
    assert!(!digests.is_sorted(), "by name they would not show the order");
    digests.sort();
    let limits = json!({"max_steps": 8, "batch_total_ms": 30_000, "min_attempt_ms": 100});
    let statement = parsed(&json!([digests, [], limits]).to_string());
    let mut hash = Sha256::new_with_prefix(b"toolgate-policy-v1\0");
    hash.update(toolgate::domain::canonical::canonical(&statement));
    let wanted: [u8; 32] = hash.finalize().into();
    assert_eq!(snapshot.digest().0, wanted);
}

#[test]
fn every_field_counts_in_the_digest() {
    let confirmation = json!({"prompt": "Sure?", "confirm_by": "a", "not_shown": {"value": "x"}});
    let base = json!({
        "effect": "write", "confirmation": confirmation, "result_schema": "s.json",
        "arguments_schema": closed(&json!({"type": "integer"})),
        "redact": ["pin"], "handler_deduplicates": true,
    });
    let changes = [
        json!({"name": "other"}),
        json!({"description": "Other."}),
        json!({"effect": "read"}),
        json!({"upstream": "other"}),
        json!({"arguments_schema": closed(&json!({"type": "number"}))}),
        json!({"arguments_schema": closed(&json!({"type": "integer", "x-note": 1.0}))}),
        json!({"arguments_schema": closed(&json!({"type": "integer", "x-note": 1}))}),
        json!({"arguments_schema": closed(&json!({"type": "integer", "x-note": 9_007_199_254_740_993_u64}))}),
        json!({"result_schema": null}),
        json!({"result_schema": closed(&json!({"type": "boolean"}))}),
        json!({"limits": {"attempt_timeout": "3s"}}),
        json!({"limits": {"max_attempts": 2}}),
        json!({"limits": {"max_argument_bytes": 1}}),
        json!({"limits": {"max_result_bytes": 1}}),
        json!({"limits": {"max_authorised_bytes": 1}}),
        json!({"limits": {"record_kept": "25h"}}),
        json!({"effect": "read", "retry_on": ["unavailable"]}),
        json!({"trim_strings": false}),
        json!({"handler_deduplicates": false}),
        json!({"confirmation": {"prompt": "Sure.", "confirm_by": "a", "not_shown": {"value": "x"}}}),
        json!({"confirmation": {"prompt": "Sure?", "confirm_by": "b", "not_shown": {"value": "x"}}}),
        json!({"confirmation": {"prompt": "Sure?", "not_shown": {"value": "x"}}}),
        json!({"confirmation": {"prompt": "Sure?", "confirm_by": "a", "not_shown": {"value": "y"}}}),
        json!({"confirmation": null, "exceptions": [{"code": "NO_CONFIRMATION", "at": "/effect", "reason": "x"}]}),
        json!({"confirmation": null, "exceptions": [{"code": "NO_CONFIRMATION", "at": "/effect", "reason": "y"}]}),
        json!({"redact": ["pin", "puk"]}),
        json!({"redact": null}),
    ];
    let mut digests = BTreeSet::from([tool_digest(&base)]);
    for change in &changes {
        let mut over = base.clone();
        over.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert!(digests.insert(tool_digest(&over)), "{change} does not count");
    }
}

#[test]
fn what_says_the_same_has_one_digest() {
    let yaml = "\
# A comment.
kind: Tool
apiVersion: \"toolgate.dev/v1\"
upstream:   knowledge
effect: read
description: 'Looks something up.'
arguments_schema:
    properties: {}
    additionalProperties: false
    type: object
limits: {max_attempts: 1, attempt_timeout: 2000ms}
trim_strings: true
name: look_up
redact: []
";
    let plain = snapshot(&[("tool.yaml", tool(&json!({})).to_string())]);
    let written_out = snapshot(&[("a/b.yaml", yaml.to_owned())]);
    assert_eq!(plain.digest(), written_out.digest());
    let inline = closed(&json!({"type": "integer"}));
    assert_eq!(
        tool_digest(&json!({"arguments_schema": "s.json"})),
        tool_digest(&json!({"arguments_schema": inline})),
    );
    let names = json!({"redact": ["PIN", "puk", "pin"]});
    assert_eq!(tool_digest(&names), tool_digest(&json!({"redact": ["puk", "pin"]})));
}

#[test]
fn the_policy_digest_covers_contracts_and_limits() {
    let tools = |first: &str, second: &str| {
        let text = |name: &str| tool(&json!({"name": name})).to_string();
        vec![("a.yaml", text(first)), ("b.yaml", text(second))]
    };
    let base = snapshot(&tools("one", "two")).digest();
    assert_eq!(snapshot(&tools("two", "one")).digest(), base, "the order of files says nothing");
    let joined: Vec<String> = tools("two", "one").into_iter().map(|(_, text)| text).collect();
    assert_eq!(snapshot(&[("c.yaml", joined.join("\n---\n"))]).digest(), base);

    let mut digests = BTreeSet::from([base.to_string()]);
    digests.insert(snapshot(&tools("one", "three")).digest().to_string());
    digests.insert(snapshot(&tools("one", "two")[..1]).digest().to_string());
    for limits in ["max_steps: 9", "batch_total: 31s", "min_attempt: 101ms"] {
        let policy = format!("apiVersion: toolgate.dev/v1\nkind: Policy\nlimits: {{{limits}}}");
        let mut files = tools("one", "two");
        files.push(("policy.yaml", policy));
        digests.insert(snapshot(&files).digest().to_string());
    }
    assert_eq!(digests.len(), 6);
    let mut files = tools("one", "two");
    files.push(("policy.yaml", "apiVersion: toolgate.dev/v1\nkind: Policy".to_owned()));
    assert_eq!(snapshot(&files).digest(), base, "defaults written out say the same");
}
