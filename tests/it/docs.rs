//! The documentation tells what the code does: generated where a table in the code says it, else compared.
//!
//! `UPDATE_DOCS=1 cargo test --test it docs` rewrites what is generated.

mod configuration;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use prost::Message as _;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use toolgate::domain::json::{Integers, parse};
use toolgate::domain::reason::{Outcome, Reason};
use toolgate::domain::refusal::Code;
use toolgate::domain::refused::Refused;
use toolgate::telemetry::logs;
use toolgate::telemetry::readiness::{NotReady, Notice};

use crate::support::policies;

#[test]
fn reasons_are_generated_from_the_tables() {
    let mut text = String::from(REASONS_HEAD);
    for outcome in
        [Outcome::Validation, Outcome::Denied, Outcome::Timeout, Outcome::Error, Outcome::Success]
    {
        write!(text, "\n### {outcome}\n\n{}\n", outcome_means(outcome)).unwrap();
        text.push_str(
            "\n| Reason | Retryable | For the model | For you |\n| --- | --- | --- | --- |\n",
        );
        for reason in Reason::ALL.iter().filter(|reason| reason.outcome() == outcome) {
            let row = reason.row();
            let retryable = if row.retryable { "yes" } else { "no" };
            writeln!(text, "| `{}` | {retryable} | {} | {} |", row.code, row.message, row.advice)
                .unwrap();
        }
    }
    text.push_str(STATUSES_HEAD);
    for refused in Refused::ALL {
        let row = refused.row();
        let reason = match refused {
            Refused::NotConfirmable(_) => "a result's reason".to_owned(),
            _ => format!("`{}`", row.reason),
        };
        writeln!(text, "| {reason} | `{}` | {} |", row.code.name(), row.message).unwrap();
    }
    generated("docs/reasons.md", None, &text);
}

#[test]
fn every_refusal_of_loading_is_documented() {
    let mut text = String::from("| Code | Exception | Meaning |\n| --- | --- | --- |\n");
    for code in Code::ALL {
        let row = code.row();
        let excusable = if row.excusable { "possible" } else { "no" };
        writeln!(text, "| `{}` | {excusable} | {} |", row.name, row.meaning).unwrap();
    }
    generated("docs/policy.md", Some("codes"), &text);
}

#[test]
fn every_field_of_the_log_is_documented() {
    let names: Vec<_> = logs::FIELDS.iter().map(|field| format!("`{field}`")).collect();
    let lines: Vec<_> = names.chunks(8).map(|names| names.join(", ")).collect();
    generated("docs/operations.md", Some("log fields"), &format!("{}\n", lines.join(",\n")));
}

#[test]
fn every_text_of_readiness_is_documented() {
    let text = read("docs/operations.md");
    let reasons = NotReady::ALL.map(NotReady::text);
    for line in reasons.into_iter().chain(Notice::ALL.map(Notice::text)) {
        assert!(text.contains(&format!("| `{line}` |")), "docs/operations.md lacks {line}");
    }
}

#[test]
fn every_message_of_the_log_is_documented() {
    let text = read("docs/operations.md");
    let mut seen = 0;
    for file in walk("src").into_iter().filter(|file| !is_test_or_demo(file)) {
        for event in fs::read_to_string(file).unwrap().split("tracing::").skip(1) {
            let level =
                ["error!(", "warn!(", "info!("].iter().find_map(|level| event.strip_prefix(level));
            let Some(call) = level else { continue };
            // The message is the last literal of the call.
            let message = call.split(");").next().unwrap().rsplit('"').nth(1).unwrap();
            assert!(text.contains(&format!("`{message}`")), "docs/operations.md lacks {message:?}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn every_dependency_has_its_reason() {
    let mut section = String::new();
    let manifest = read("Cargo.toml");
    let mut dependencies = BTreeSet::new();
    for line in manifest.lines() {
        if let Some(name) = line.strip_prefix('[') {
            name.trim_end_matches(']').clone_into(&mut section);
        } else if section.ends_with("dependencies")
            && let Some((name, _)) = line.split_once(" = ")
        {
            dependencies.insert(name.to_owned());
        }
    }
    assert!(dependencies.len() > 30, "{dependencies:?}");
    let documented = first_cells(section_of("docs/decisions.md", "## Dependencies").as_str());
    assert_eq!(documented, dependencies, "docs/decisions.md (left) and Cargo.toml (right)");
}

#[test]
fn every_entry_of_the_top_level_has_its_reason() {
    let documented = first_cells(section_of("docs/decisions.md", "## Top level").as_str());
    let ours = ["Cargo.toml", "build.rs", "proto", "src", "tests", "deploy", "README.md"];
    let not_kept = [".git", "target", ".idea", ".vscode"];
    for entry in fs::read_dir(root("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let known =
            [&ours[..], &not_kept].concat().contains(&name.as_str()) || documented.contains(&name);
        assert!(known, "docs/decisions.md gives no reason for {name} in the top level");
    }
}

#[test]
fn what_the_threat_model_cites_is_there() {
    let code: String = walk("src")
        .into_iter()
        .chain(walk("tests"))
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let mut cited = 0;
    for row in read("docs/threat-model.md").lines().filter(|line| line.starts_with("| ")) {
        let shown_by = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        for name in shown_by.split('`').skip(1).step_by(2) {
            let is_there = if name.contains('/') {
                root(name).exists()
            } else {
                code.contains(&format!("fn {name}("))
            };
            assert!(is_there, "docs/threat-model.md cites {name}, which is not there");
            cited += 1;
        }
    }
    assert!(cited > 20, "{cited}");
}

#[test]
fn the_confirmation_of_the_policy_page_asks_what_it_shows() {
    let page = section_of("docs/policy.md", "## Confirmation");
    let block = |kind: &str| {
        page.split(&format!("```{kind}\n")).nth(1).unwrap().split("```").next().unwrap()
    };
    let policy = policies::single(block("yaml"), "orders");
    let contract = policy.contract("refund.create").unwrap();
    let arguments = parse(br#"{"order": "A-77", "amount": 1250}"#, 64, Integers::Safe).unwrap();
    let prompt = &contract.confirmation.as_ref().unwrap().prompt;
    assert_eq!(prompt.render(&arguments) + "\n", block("text"));
}

#[test]
fn links_lead_somewhere() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                document.clone()
            } else {
                document.parent().unwrap().join(file)
            };
            assert!(target.exists(), "{} links to {link}", document.display());
            let text = if heading.is_empty() {
                String::new()
            } else {
                fs::read_to_string(&target).unwrap()
            };
            let found = heading.is_empty()
                || text.lines().any(|line| anchor(line).as_deref() == Some(heading));
            assert!(found, "{} links to {link}, which has no such heading", document.display());
        }
    }
}

#[test]
fn lines_fit_a_screen() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for line in text.lines().filter(|line| !line.starts_with('|')) {
            assert!(line.chars().count() <= 160, "{}: {line}", document.display());
        }
    }
}

/// Comments are found in the descriptors by place.
#[test]
fn reflection_shows_each_method_its_own_comment() {
    let served = FileDescriptorSet::decode(toolgate::proto::SERVED_DESCRIPTORS).unwrap();
    for (name, methods) in [
        ("tool_gate", &["Execute", "ExecuteStream", "Check", "ListTools", "GetCall"][..]),
        ("confirmations", &["Issue", "Revoke"]),
        ("admin", &["GetStatus", "Reload"]),
    ] {
        let path = format!("toolgate/v1/{name}.proto");
        let file = served.file.iter().find(|file| file.name() == path).unwrap();
        let source = read(&format!("proto/{path}"));
        let [service] = &file.service[..] else { panic!("one service is served in {path}") };
        let names: Vec<_> =
            service.method.iter().map(prost_types::MethodDescriptorProto::name).collect();
        assert_eq!(names, methods);
        for (place, name) in (0..).zip(names) {
            let comment = comment_at(file, &[6, 0, 2, place]);
            assert_eq!(comment, comment_above(&source, &format!("rpc {name}(")), "{name}");
        }
    }
}

/// The comment that reflection shows at a place of a file.
fn comment_at(file: &FileDescriptorProto, place: &[i32]) -> String {
    let info = file.source_code_info.as_ref().unwrap();
    let location = info.location.iter().find(|location| location.path == place).unwrap();
    location.leading_comments().lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// The comment that stands above a line of a source file.
fn comment_above(source: &str, line: &str) -> String {
    let above: Vec<_> = source.lines().take_while(|other| !other.contains(line)).collect();
    let comment = above.into_iter().rev().map_while(|line| line.trim().strip_prefix("// "));
    comment.collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" ")
}

const REASONS_HEAD: &str = "\
# Reasons

Generated from `src/domain/reason.rs` and `src/domain/refused.rs` by `UPDATE_DOCS=1 cargo test --test it docs`.

`Execute` answers in one of two ways. A *result* tells what became of one call: an outcome, a reason, a fixed
sentence for the model. A *status* other than OK means that no call of the request was reserved or started.

## Results

On the wire a reason is `REASON_` and its name. Names are stable: programs may switch on them. \"Retryable\" means
that the same proposal may succeed later. A call that a batch never reached has the outcome `NOT_RUN` and no reason.

For a write, a result is retryable only where its effect is NONE or the handler deduplicates; `retryable` of the
result itself says so. Where the ticket was spent, a retry needs a fresh one.

`RULE_DENIED`, `RATE_LIMITED`, `QUOTA_EXCEEDED` and `CONCURRENCY_LIMITED` are part of the contract, but this version gives
none of them. `PROCESS_LOST` stands in the journal and in what is `recorded` of a call: nobody is left to be answered.
";

const STATUSES_HEAD: &str = "
## Statuses

Each carries `google.rpc.ErrorInfo` with the domain `toolgate.dev` and this reason. Where one field is at fault,
`google.rpc.BadRequest` names it, and the message begins with its name. `OVERLOADED` carries `google.rpc.RetryInfo`.

| Reason | Status | Message |
| --- | --- | --- |
";

const fn outcome_means(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Validation => "The proposal itself was wrong; no handler ran.",
        Outcome::Denied => "The proposal was understood and refused; no handler ran.",
        Outcome::Timeout => "A deadline of the gate passed while the handler ran.",
        Outcome::Error => "The handler, the path to it, or the gate itself failed.",
        Outcome::Success => "The handler answered within all limits.",
    }
}

/// Compares a document, or the part between its markers, with what it should be; or writes it.
fn generated(document: &str, part: Option<&str>, wanted: &str) {
    let text = fs::read_to_string(root(document)).unwrap_or_default();
    let wanted = match part {
        None => wanted.to_owned(),
        Some(part) => {
            let (begin, end) =
                (format!("<!-- generated: {part} -->\n"), format!("<!-- end: {part} -->\n"));
            let (head, rest) = text.split_once(&begin).expect("the begin of the generated part");
            let (_, tail) = rest.split_once(&end).expect("the end of the generated part");
            format!("{head}{begin}{wanted}{end}{tail}")
        }
    };
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(root(document), &wanted).unwrap();
        return;
    }
    assert!(text == wanted, "{document} is out of date: UPDATE_DOCS=1 cargo test --test it docs");
}

/// What stands between backticks at the start of a table's rows.
fn first_cells(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned()).collect()
}

fn section_of(document: &str, heading: &str) -> String {
    let text = read(document);
    let lines = text.lines().skip_while(|line| *line != heading).skip(1);
    lines
        .take_while(|line| !line.starts_with("## "))
        .fold(String::new(), |text, line| text + line + "\n")
}

/// How a heading is linked to: lower case, words joined by hyphens, other marks dropped.
fn anchor(line: &str) -> Option<String> {
    let heading =
        line.starts_with('#').then(|| line.trim_start_matches('#').trim().to_lowercase())?;
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}

fn documents() -> Vec<PathBuf> {
    let mut found = walk("docs");
    found.extend(["README.md", "CHANGELOG.md"].map(root));
    found
}

fn is_test_or_demo(file: &Path) -> bool {
    let path = file.to_string_lossy();
    path.ends_with("tests.rs") || path.contains("/tests/") || path.contains("/cli/demo/")
}

fn read(document: &str) -> String {
    fs::read_to_string(root(document)).unwrap()
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn walk(folder: &str) -> Vec<PathBuf> {
    let mut waiting = vec![root(folder)];
    let mut found = Vec::new();
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let is_text =
                path.extension().is_some_and(|kind| kind == "rs" || kind == "md" || kind == "py");
            if path.is_dir() {
                waiting.push(path);
            } else if is_text {
                found.push(path);
            }
        }
    }
    found
}
