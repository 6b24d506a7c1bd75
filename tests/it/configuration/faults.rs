//! Broken configurations: every fault at once, and never a panic.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use toolgate::config;
use toolgate::config::FIELDS;

use super::{text, write};
use crate::jwt::signer::Signer;
use crate::support::certificates::{complete, pointer_of, with_postgres};
use crate::support::process::run_text;
use crate::support::running::{CONFIRMER, OPERATOR, Options, PROPOSER, write_config};

/// A directory with `tests/cases/configuration/broken.yaml`, a policy and secrets as broken as it.
fn broken() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    write(
        &at("policy/tool.yaml"),
        0o644,
        "apiVersion: toolgate.dev/v1\nkind: Tool\nname: run shell\ndescription: d\neffect: read\nupstream: nowhere\n\
         arguments_schema: {type: object, properties: {sql: {type: string}}}\n",
    );
    write(&at("keys/shared"), 0o600, "Q3vXz6Jm1Rt5Yp0Lb7Nd2Hs9Cf4GaW8k");
    write(&at("keys/short"), 0o600, "Q3vXz6Jm1Rt5");
    write(&at("keys/well-known"), 0o600, "0123456789abcdef0123456789abcdef");
    write(&at("keys/world-readable"), 0o644, "W8kq3vXz6Jm1Rt5Yp0Lb7Nd2Hs9Cf4Ga");
    write(&at("keys/line-break"), 0o600, "Jm1Rt5Yp0Lb7Nd2Hs9Cf4GaW8kQ3vXz6\n");
    fs::copy(cases().join("broken.yaml"), at("toolgate.yaml")).unwrap();
    directory
}

fn cases() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/configuration"))
}

#[test]
fn check_prints_every_fault_of_configuration_and_policy_at_once() {
    let directory = broken();
    let (code, out, log) = run_text(["check", text(&directory.path().join("toolgate.yaml"))]);
    assert_eq!((code, log.as_str()), (Some(1), ""));
    let told = out.replace(text(directory.path()), "DIR");
    let wanted = fs::read_to_string(cases().join("broken.txt")).unwrap();
    assert!(told == wanted, "broken.txt should be:\n{told}");
    for secret in ["Q3vXz6Jm1Rt5", "0123456789abcdef", "W8kq3vXz6"] {
        assert!(!out.contains(secret), "{out}");
    }
}

#[test]
fn serve_prints_the_same_and_leaves_nothing() {
    let directory = broken();
    let file = directory.path().join("toolgate.yaml");
    let (_, checked, _) = run_text(["check", text(&file)]);
    let (code, out, log) = run_text(["serve", "--config", text(&file)]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(log, format!("toolgate: the configuration has faults\n{checked}"));
    let names: BTreeSet<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["keys", "policy", "toolgate.yaml"].map(Into::into).into());
}

/// The faults as `POINTER CODE`, of a sound configuration after a change.
fn faults_after(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let (directory, mut document) = sound();
    change(&mut document);
    faults(&directory, &document)
}

pub fn sound() -> (TempDir, Value) {
    let directory = tempfile::tempdir().unwrap();
    let more = "limits: {in_flight: 8, max_request_bytes: 4096, max_connections: 8, max_connection_age: 1h, max_streams_per_connection: 8, journal_queue_events: 64, watchers: 8, drain: 1s}\n\
                reload: {poll: 5s}\n\
                log: {level: info}\n\
                ledger: {kind: embedded, single_replica: true}\n\
                confirmation: {keys: [{id: confirmation-1, file: confirmation}], ticket_ttl: 5m, skew: 30s}";
    let file = write_config(
        directory.path(),
        "http://127.0.0.1:7500",
        &Options { more, ..Options::default() },
    );
    let mut document = config::read(&file).unwrap();
    fs::write(directory.path().join("k.pem"), Signer::new("k", "ES256").pem()).unwrap();
    document["jwt"] = json!([{
        "issuer": "https://login.example", "audience": "toolgate", "typ": "JWT", "leeway": "30s",
        "jwks_file": null, "algorithms": null,
        "keys": [{"id": "k", "algorithm": "ES256", "file": "k.pem"}],
        "tenants": "any",
        "claims": {"tenant": null, "user": "sub", "roles": "scope", "user_roles": "groups"},
        "roles": {"bot": "proposer"},
    }]);
    document["audit"]["sync"] = json!("all");
    document["audit"]["segment_bytes"] = json!(1 << 20);
    document["upstreams"]["handlers"]["connect_timeout"] = json!("1s");
    assert_eq!(faults(&directory, &document), Vec::<String>::new());
    (directory, document)
}

pub fn faults(directory: &TempDir, document: &Value) -> Vec<String> {
    match config::compile(document, &directory.path().join("toolgate.yaml")) {
        Ok(_) => Vec::new(),
        Err(faults) => faults
            .as_slice()
            .iter()
            .map(|fault| format!("{} {}", fault.pointer, fault.code))
            .collect(),
    }
}

#[test]
fn a_secret_serves_one_purpose() {
    let share = |file: &'static str| {
        move |document: &mut Value| document["callers"][1]["secret_file"] = json!(file)
    };
    assert_eq!(faults_after(share("proposer")), ["/callers SECRET_REFUSED"]);
    assert_eq!(faults_after(share("audit")), ["/callers SECRET_REFUSED"]);
    assert_eq!(faults_after(share("confirmation")), ["/callers SECRET_REFUSED"]);
    // Keys share with keys, and former ones with those that sign.
    let key = |file: &'static str| {
        move |document: &mut Value| {
            let keys = document["confirmation"]["keys"].as_array_mut().unwrap();
            keys.push(json!({"id": "confirmation-0", "file": file}));
        }
    };
    for file in ["audit", "confirmation", "confirmer"] {
        assert_eq!(faults_after(key(file)), ["/callers SECRET_REFUSED"], "{file}");
    }
    // The same bytes in another file are the same secret.
    let (directory, mut document) = sound();
    write(&directory.path().join("copy"), 0o600, PROPOSER);
    document["callers"][1]["secret_file"] = json!("copy");
    assert_eq!(faults(&directory, &document), ["/callers SECRET_REFUSED"]);
    // It is found beside other faults as well.
    document["audit"] = Value::Null;
    assert_eq!(faults(&directory, &document), ["/audit MISSING_FIELD", "/callers SECRET_REFUSED"]);
}

/// To open one waits for whoever writes to it.
#[test]
fn a_pipe_is_no_secret_file_and_keeps_nobody_waiting() {
    let (directory, document) = sound();
    let pipe = directory.path().join("operator");
    fs::remove_file(&pipe).unwrap();
    let made = std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status();
    assert!(made.unwrap().success());
    assert_eq!(faults(&directory, &document), ["/callers/3/secret_file SECRET_REFUSED"]);
}

#[test]
fn a_secret_file_is_judged_by_mode_length_content_and_kind() {
    let judge = |mode: u32, content: &[u8]| {
        let (directory, document) = sound();
        write(&directory.path().join("operator"), mode, content);
        faults(&directory, &document)
    };
    for mode in [0o600, 0o400, 0o440, 0o640, 0o660] {
        assert_eq!(
            judge(mode, OPERATOR.as_bytes()).len(),
            usize::from(OPERATOR.len() < 32),
            "{mode:o}"
        );
    }
    let refused = ["/callers/3/secret_file SECRET_REFUSED"];
    for mode in [0o604, 0o602, 0o601, 0o644, 0o666, 0o777] {
        assert_eq!(judge(mode, OPERATOR.as_bytes()), refused, "{mode:o}");
    }
    let long = format!("{CONFIRMER}{OPERATOR}").repeat(80);
    for content in [
        &b""[..],
        b"short",
        &[b'x'; 64],
        b"please-changeme-please-changeme-1",
        b"with a space, which no metadata may end with",
        b"\xff\xfeW8kq3vXz6Jm1Rt5Yp0Lb7Nd2Hs9Cf4Ga",
        long.as_bytes(),
    ] {
        assert_eq!(judge(0o600, content), refused, "{content:?}");
    }
    let (directory, document) = sound();
    fs::remove_file(directory.path().join("operator")).unwrap();
    assert_eq!(faults(&directory, &document), refused);
    fs::create_dir(directory.path().join("operator")).unwrap();
    assert_eq!(faults(&directory, &document), refused);
}

#[test]
fn a_ledger_and_confirmation_keys_come_together() {
    let without =
        |section: &'static str| faults_after(move |document| document[section] = Value::Null);
    assert_eq!(without("ledger"), ["/ledger MISSING_FIELD"]);
    assert_eq!(without("confirmation"), ["/confirmation MISSING_FIELD"]);
    let neither = faults_after(|document| {
        document["ledger"] = Value::Null;
        document["confirmation"] = Value::Null;
    });
    assert_eq!(neither, Vec::<String>::new());
}

#[test]
fn an_embedded_ledger_is_declared_to_serve_one_replica() {
    let replicas =
        |value: Value| faults_after(|document| document["ledger"]["single_replica"] = value);
    assert_eq!(replicas(json!(true)), Vec::<String>::new());
    for value in [Value::Null, json!(false), json!("true"), json!(1)] {
        let found = replicas(value.clone());
        let refused = "/ledger/single_replica INVALID_VALUE".to_owned();
        assert!(found.contains(&refused), "{value}: {found:?}");
    }
}

#[test]
fn tickets_have_whole_seconds() {
    for field in ["ticket_ttl", "skew"] {
        let with = |value: &'static str| {
            faults_after(|document| document["confirmation"][field] = json!(value))
        };
        for value in ["1s", "30s", "1m30s", "2000ms"] {
            assert_eq!(with(value), Vec::<String>::new(), "{field}: {value}");
        }
        let refused = [format!("/confirmation/{field} INVALID_VALUE")];
        for value in ["1500ms", "1s1ms"] {
            assert_eq!(with(value), refused, "{field}: {value}");
        }
    }
}

#[test]
fn only_loopback_and_unix_listeners_are_taken() {
    let listen =
        |address: &'static str| faults_after(|document| document["listeners"] = json!([address]));
    for address in [
        "127.0.0.1:0",
        "127.8.9.1:7443",
        "[::1]:7443",
        "unix:/run/toolgate/toolgate.sock",
        "unix:toolgate.sock",
    ] {
        assert_eq!(listen(address), Vec::<String>::new(), "{address}");
    }
    for address in [
        "0.0.0.0:7443",
        "[::]:7443",
        "10.0.0.1:7443",
        "192.168.1.1:1",
        "[fe80::1]:7443",
        "[::ffff:10.0.0.1]:7443",
        "255.255.255.255:1",
    ] {
        assert_eq!(listen(address), ["/listeners/0 INSECURE_ADDRESS"], "{address}");
    }
    for address in
        ["localhost:7443", "127.0.0.1", "7443", "http://127.0.0.1:7443", "127.0.0.1:65536"]
    {
        assert_eq!(listen(address), ["/listeners/0 INVALID_VALUE"], "{address}");
    }
}

#[test]
fn whatever_stands_in_a_field_is_taken_or_faulted_at_its_place() {
    let wrong = [
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(u64::MAX),
        json!(""),
        json!(" "),
        json!("\u{202e}x\n"),
        json!([]),
        json!([[]]),
        json!([null]),
        json!({}),
        json!({"a": {"b": null}}),
    ];
    let (directory, mut embedded) = sound();
    complete(&mut embedded, directory.path());
    let in_database = with_postgres(&embedded, directory.path());
    let mut faulted = 0;
    let mut missed = pointers(&embedded);
    missed.retain(|pointer| embedded.pointer(pointer).is_none());
    missed.retain(|pointer| in_database.pointer(pointer).is_none());
    assert_eq!(missed, Vec::<String>::new(), "in neither of the sound files");
    for document in [embedded, in_database] {
        assert_eq!(faults(&directory, &document), Vec::<String>::new());
        for pointer in pointers(&document) {
            if document.pointer(&pointer).is_none() {
                continue;
            }
            for value in &wrong {
                let mut changed = document.clone();
                *changed.pointer_mut(&pointer).unwrap() = value.clone();
                let found = catch_unwind(AssertUnwindSafe(|| faults(&directory, &changed)))
                    .unwrap_or_else(|_| panic!("{pointer} = {value} panics"));
                // What depends on the field may be faulted as well, but the field itself comes with it.
                // `apiVersion` is half of the kind, tokens have `tenants`
                // or a claim for them, and what a policy suffers is faulted in the policy.
                let places = [
                    pointer.as_str(),
                    "/kind ",
                    "/jwt/0/claims/tenant ",
                    "/jwt/0/tenants ",
                    " UNREADABLE_FILE",
                    " UNREGISTERED_UPSTREAM",
                ];
                let at_its_place = found.is_empty()
                    || found.iter().any(|fault| places.iter().any(|place| fault.contains(place)));
                assert!(at_its_place, "{pointer} = {value}: {found:?}");
                faulted += usize::from(!found.is_empty());
            }
            let mut extended = document.clone();
            if let Some(Value::Object(members)) = extended.pointer_mut(&pointer) {
                members.insert("surplus".to_owned(), json!(1));
                assert!(!faults(&directory, &extended).is_empty(), "{pointer}/surplus");
            }
        }
    }
    assert!(faulted > 600, "{faulted}");
}

/// A place for each field of the reference that the sound file holds.
fn pointers(document: &Value) -> Vec<String> {
    FIELDS
        .iter()
        .flat_map(|(place, names)| names.iter().map(move |name| format!("{place}/{name}")))
        .map(|place| pointer_of(document, &place))
        .collect()
}

#[test]
fn a_file_that_is_no_single_strict_document_is_faulted() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("toolgate.yaml");
    let (code, out, _) = run_text(["check", text(&file)]);
    assert_eq!(code, Some(1));
    assert!(out.starts_with(&format!("{}: UNREADABLE_FILE: ", file.display())), "{out}");
    for (content, fault) in [
        ("", "NOT_YAML"),
        ("a: 1\n---\nb: 2\n", "NOT_YAML"),
        ("kind: Gate\nkind: Gate\n", "NOT_YAML"),
        ("kind: &x Gate\nadmin: *x\n", "NOT_YAML"),
        ("[", "NOT_YAML"),
        ("7\n", "WRONG_TYPE"),
    ] {
        fs::write(&file, content).unwrap();
        let (code, out, _) = run_text(["check", text(&file)]);
        assert_eq!(code, Some(1), "{content:?}");
        assert!(
            out.contains(&format!(": {fault}: ")) && out.ends_with("1 fault: nothing is loaded\n"),
            "{content:?}: {out}"
        );
    }
}

#[test]
fn a_database_on_another_machine_is_reached_under_tls() {
    let (directory, mut document) = sound();
    complete(&mut document, directory.path());
    let document = with_postgres(&document, directory.path());
    let found = |change: &dyn Fn(&mut Value)| {
        let mut document = document.clone();
        change(&mut document["ledger"]["postgres"]);
        faults(&directory, &document)
    };
    let none = Vec::<String>::new();
    let without_tls = |host: &'static str| {
        found(&|postgres| {
            postgres["host"] = json!(host);
            postgres.as_object_mut().unwrap().remove("tls");
        })
    };
    for host in ["127.0.0.1", "::1", "/run/postgresql"] {
        assert_eq!(without_tls(host), none, "{host}");
    }
    for host in ["10.0.0.1", "db.example.org", "localhost", "run/postgresql"] {
        assert_eq!(without_tls(host), ["/ledger/postgres/tls INSECURE_ADDRESS"], "{host}");
    }
    let on_a_socket = found(&|postgres| postgres["host"] = json!("/run/postgresql"));
    assert_eq!(on_a_socket, ["/ledger/postgres/tls INVALID_VALUE"]);

    let password = directory.path().join("postgres-password");
    for (content, mode) in [("", 0o600), ("\nword", 0o600), ("password", 0o604)] {
        write(&password, mode, content);
        let wanted = ["/ledger/postgres/password_file SECRET_REFUSED"];
        assert_eq!(found(&|_| ()), wanted, "{content:?} {mode:o}");
    }
    write(&password, 0o640, "short\r\nanything");
    assert_eq!(found(&|_| ()), none);
}
