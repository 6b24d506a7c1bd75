//! `toolgate diff`: cases as data, and what the command answers.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolgate::config::policy;
use toolgate::domain::policy_diff::{Bearing, Change, PolicyDiff};

use crate::support::process::run_text;
use crate::support::running::{LEDGER, Options, write_config};
use crate::support::script;

/// Tools before and after, each as the base with these fields; and what is told.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    about: String,
    old: Vec<Map<String, Value>>,
    new: Vec<Map<String, Value>>,
    new_policy: Option<Value>,
    #[serde(default)]
    want: Vec<String>,
    #[serde(default)]
    tickets_end: Vec<String>,
}

/// Properties before and after.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    about: String,
    properties: Value,
    #[serde(default)]
    required: Vec<String>,
    defs: Option<Value>,
    to: Value,
    #[serde(default)]
    to_required: Vec<String>,
    to_defs: Option<Value>,
    want: Vec<String>,
}

fn base() -> Value {
    json!({
        "apiVersion": "toolgate.dev/v1",
        "kind": "Tool",
        "name": "refund",
        "description": "Refunds an order.",
        "effect": "write",
        "upstream": "handlers",
        "arguments_schema": {
            "type": "object",
            "additionalProperties": false,
            "required": ["order"],
            "properties": {"order": {"type": "string", "maxLength": 20}},
        },
        "confirmation": {"prompt": "Refund {/order}?"},
    })
}

fn write_policy(directory: &Path, tools: &[Map<String, Value>], limits: Option<&Value>) {
    fs::create_dir_all(directory).unwrap();
    for (number, changes) in tools.iter().enumerate() {
        let mut tool = base();
        for (name, value) in changes {
            tool[name] = value.clone();
        }
        fs::write(directory.join(format!("tool-{number}.yaml")), tool.to_string()).unwrap();
    }
    if let Some(limits) = limits {
        let policy = json!({"apiVersion": "toolgate.dev/v1", "kind": "Policy", "limits": limits});
        fs::write(directory.join("policy.yaml"), policy.to_string()).unwrap();
    }
}

fn compare(old: &Path, new: &Path) -> PolicyDiff {
    let load = |directory| {
        policy::load_alone(directory).unwrap_or_else(|faults| panic!("{faults}")).snapshot
    };
    PolicyDiff::between(&load(old), &load(new))
}

fn mark(bearing: Bearing) -> char {
    match bearing {
        Bearing::Narrower => '-',
        Bearing::Wider => '+',
        Bearing::Either => '~',
        Bearing::Neither => '.',
    }
}

fn cases(of: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/diff").join(of)
}

#[test]
fn every_change_of_a_tool_is_told_in_words() {
    let text = fs::read_to_string(cases("tools.yaml")).unwrap();
    let all: Vec<Case> = serde_saphyr::from_str(&text).unwrap();
    assert!(all.len() > 12);
    let mut differences = String::new();
    for case in all {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (directory.path().join("old"), directory.path().join("new"));
        write_policy(&old, &case.old, None);
        write_policy(&new, &case.new, case.new_policy.as_ref());
        let diff = compare(&old, &new);
        let line = |change: &Change| {
            let tool = change.tool.as_deref().unwrap_or_default();
            format!("{} {tool} {}: {}", mark(change.bearing), change.kind, change.text)
        };
        let told: Vec<_> = diff.changes.iter().map(line).collect();
        let ends: Vec<_> = diff.tickets_end.iter().map(ToString::to_string).collect();
        script::compare(&mut differences, &case.about, &case.want, &told);
        script::compare(
            &mut differences,
            &format!("{}: tickets", case.about),
            &case.tickets_end,
            &ends,
        );
        assert_eq!(diff.is_empty(), case.want.is_empty(), "{}", case.about);
        assert_eq!(diff.is_empty(), diff.before == diff.after, "{}", case.about);
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn every_change_of_an_argument_is_told_by_property_and_keyword() {
    let text = fs::read_to_string(cases("arguments.yaml")).unwrap();
    let all: Vec<Arguments> = serde_saphyr::from_str(&text).unwrap();
    assert!(all.len() > 10);
    let mut differences = String::new();
    for case in all {
        let directory = tempfile::tempdir().unwrap();
        let write = |name, properties: &Value, required: &[String], defs: Option<&Value>| {
            let mut schema = json!({
                "type": "object",
                "additionalProperties": false,
                "required": required,
                "properties": properties,
            });
            if let Some(defs) = defs {
                schema["$defs"] = defs.clone();
            }
            let read = json!({"effect": "read", "confirmation": null, "arguments_schema": schema});
            let Value::Object(read) = read else { unreachable!() };
            write_policy(&directory.path().join(name), &[read], None);
        };
        write("old", &case.properties, &case.required, case.defs.as_ref());
        write("new", &case.to, &case.to_required, case.to_defs.as_ref());
        let diff = compare(&directory.path().join("old"), &directory.path().join("new"));
        let line =
            |change: &Change| format!("{} {}: {}", mark(change.bearing), change.kind, change.text);
        let told: Vec<_> = diff.changes.iter().map(line).collect();
        script::compare(&mut differences, &case.about, &case.want, &told);
        assert!(diff.tickets_end.is_empty());
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn the_command_answers_as_diff_does() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    let tool = |value: Value| match value {
        Value::Object(members) => members,
        _ => unreachable!(),
    };
    write_policy(Path::new(&at("old")), &[tool(json!({}))], None);
    write_policy(Path::new(&at("new")), &[tool(json!({"description": "Refunds."}))], None);
    let (code, out, _) = run_text(["diff", &at("old"), &at("old")]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.starts_with("no change: policy "), "{out}");

    let (code, out, _) = run_text(["diff", &at("old"), &at("new")]);
    assert_eq!(code, Some(1), "{out}");
    let rest: Vec<_> = out.lines().skip(1).collect();
    assert_eq!(
        rest,
        [
            "refund",
            "  . the description for the model changes",
            "tickets that are out end: refund",
            "1 change (- refuses more, + lets more through, ~ either, . neither)",
        ]
    );
    let (code, out, _) = run_text(["diff", &at("old"), &at("new"), "--output", "json"]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, told["changes"][0]["kind"].as_str()), (Some(1), Some("description")));
    assert_eq!(told["tickets_end"], json!(["refund"]));

    fs::write(Path::new(&at("new")).join("tool-0.yaml"), "name: [").unwrap();
    let (code, out, told) = run_text(["diff", &at("old"), &at("new")]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(told.contains("NOT_YAML"), "{told}");
    let (code, _, _) = run_text(["diff", &at("old"), &at("nowhere")]);
    assert_eq!(code, Some(2));
}

#[test]
fn two_configurations_tell_what_needs_a_restart() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = Options { more: LEDGER, ..Options::default() };
    let old_file = write_config(old.path(), "http://127.0.0.1:7500", &options);
    let new_file = write_config(new.path(), "http://127.0.0.1:7501", &options);
    let compare = || run_text(["diff", old_file.to_str().unwrap(), new_file.to_str().unwrap()]);
    // Upstreams change live, and no contract is another.
    assert_eq!(compare().0, Some(0));
    let text = fs::read_to_string(&new_file).unwrap();
    fs::write(&new_file, text.replace("admin: 127.0.0.1:0", "admin: 127.0.0.1:9464")).unwrap();
    let (code, out, _) = compare();
    assert_eq!(code, Some(1));
    assert!(out.contains("needs a restart: /admin\n"), "{out}");
}
