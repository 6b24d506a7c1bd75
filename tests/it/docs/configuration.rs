//! `docs/configuration.md` against the compiler of configurations.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;
use toolgate::config::{self, FIELDS, Faults};

use super::{first_cells, read};
use crate::jwt::signer::Signer;
use crate::support::certificates::{complete, pointer_of, with_postgres};
use crate::support::running::{LEDGER, Options, write_config};

/// What a ledger in a database has.
const POSTGRES: &str = "/ledger/postgres/";

/// A row of the reference: a place, its type, its default and its bounds.
struct Row {
    place: String,
    kind: String,
    default: String,
    bounds: String,
}

/// A configuration that is sound, to change.
struct Sound {
    folder: TempDir,
    file: PathBuf,
    document: Value,
}

#[test]
fn exactly_the_fields_there_are_are_documented() {
    let fields = FIELDS
        .iter()
        .flat_map(|(place, names)| names.iter().map(move |name| format!("{place}/{name}")));
    let documented: BTreeSet<_> = first_cells(&read("docs/configuration.md"));
    assert_eq!(
        documented,
        fields.collect(),
        "docs/configuration.md (left) and config::FIELDS (right)"
    );
}

#[test]
fn documented_bounds_are_those_in_force() {
    let sound = Sound::new();
    let mut checked = 0;
    for row in rows().iter().filter(|row| matches!(row.kind.as_str(), "number" | "duration")) {
        let (least, most) = row.bounds.split_once(" to ").expect(&row.place);
        let value = |text: &str, step: i64| match row.kind.as_str() {
            "number" => json!(text.replace(',', "").parse::<i64>().unwrap() + step),
            _ => json!(format!("{}ms", milliseconds(text) + step)),
        };
        for (text, step, is_within) in
            [(least, 0, true), (least, -1, false), (most, 0, true), (most, 1, false)]
        {
            let faults = sound.with(&row.place, value(text, step)).err();
            let is_refused = faults.is_some_and(|faults| {
                faults.as_slice().iter().any(|fault| is_at(&fault.pointer, &row.place))
            });
            assert_eq!(is_refused, !is_within, "{} at {}", row.place, value(text, step));
        }
        checked += 1;
    }
    assert_eq!(checked, 25);
}

#[test]
fn documented_defaults_are_those_in_force() {
    let sound = Sound::new();
    let without = sound.with("", Value::Null).unwrap();
    let without_in_database = sound.with("/ledger/postgres/user", json!("gate")).unwrap();
    let mut checked = 0;
    for row in rows().iter().filter(|row| !["required", "optional"].contains(&row.default.as_str()))
    {
        let said = match row.kind.as_str() {
            "number" => json!(row.default.replace(',', "").parse::<i64>().unwrap()),
            _ => json!(row.default),
        };
        let without = if row.place.starts_with(POSTGRES) { &without_in_database } else { &without };
        assert_eq!(sound.with(&row.place, said).unwrap(), *without, "{}", row.place);
        checked += 1;
    }
    assert_eq!(checked, 22);
    // What is compared does tell defaults apart.
    assert_ne!(sound.with("/limits/drain", json!("19s")).unwrap(), without);
    assert_ne!(sound.with("/confirmation/ticket_ttl", json!("299s")).unwrap(), without);
    assert_ne!(sound.with("/confirmation/skew", json!("29s")).unwrap(), without);
    assert_ne!(sound.with("/jwt/*/leeway", json!("29s")).unwrap(), without);
    let in_database = |name, value| sound.with(&format!("{POSTGRES}{name}"), value).unwrap();
    assert_ne!(in_database("port", json!(5_433)), without_in_database);
    assert_ne!(in_database("connections", json!(9)), without_in_database);
    assert_ne!(in_database("connect_timeout", json!("3s")), without_in_database);
    assert_ne!(in_database("takeover_after", json!("31s")), without_in_database);
    assert_ne!(sound.with("/log/level", json!("warn")).unwrap(), without);
    assert_ne!(sound.with("/audit/sinks/*/otlp/timeout", json!("9s")).unwrap(), without);
    assert_ne!(sound.with("/audit/sync", json!("all")).unwrap(), without);
    assert_ne!(sound.with("/audit/segment_age", json!("23h")).unwrap(), without);
    assert_ne!(sound.with("/upstreams/*/connect_timeout", json!("2s")).unwrap(), without);
}

#[test]
fn what_is_required_is_missed() {
    let sound = Sound::new();
    for row in rows().iter().filter(|row| row.default == "required") {
        let faults = sound.with(&row.place, Value::Null).expect_err(&row.place);
        // The head of a document is judged as one.
        let place = if row.place == "/apiVersion" { "/kind" } else { &row.place };
        let told = faults.as_slice().iter().any(|fault| is_at(&fault.pointer, place));
        assert!(told, "{}: {faults}", row.place);
    }
}

#[test]
fn the_example_names_every_field() {
    let text = read("docs/configuration.md");
    let examples = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let example: String = examples.collect();
    for (_, names) in FIELDS {
        for name in *names {
            assert!(example.contains(&format!("{name}:")), "the example lacks {name}");
        }
    }
}

impl Sound {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { more: LEDGER, ..Options::default() };
        let file = write_config(folder.path(), "http://127.0.0.1:7500", &options);
        let mut document = config::read(&file).unwrap();
        complete(&mut document, folder.path());
        std::fs::write(folder.path().join("k.pem"), Signer::new("k", "ES256").pem()).unwrap();
        document["jwt"] = json!([{
            "issuer": "https://login.example", "audience": "toolgate",
            "keys": [{"id": "k", "algorithm": "ES256", "file": "k.pem"}],
            "claims": {"tenant": "tenant", "roles": "roles"}, "roles": {"bot": "proposer"},
        }]);
        Self { folder, file, document }
    }

    /// What is compiled with this value at this place; `*` stands for the first that has it.
    fn with(&self, place: &str, value: Value) -> Result<String, Faults> {
        let mut document = if place.starts_with(POSTGRES) {
            with_postgres(&self.document, self.folder.path())
        } else {
            self.document.clone()
        };
        if !place.is_empty() {
            let pointer = pointer_of(&document, place);
            let mut at = &mut document;
            for part in pointer[1..].split('/') {
                at = match at {
                    Value::Array(items) => &mut items[part.parse::<usize>().unwrap()],
                    at => &mut at[part],
                };
            }
            *at = value;
        }
        config::compile(&document, &self.file).map(|config| format!("{config:?}"))
    }
}

/// The rows of the tables `| Field | Type | Default | Bounds | Meaning |`.
fn rows() -> Vec<Row> {
    let text = read("docs/configuration.md");
    let rows = text.lines().filter(|line| line.starts_with("| `/"));
    let rows = rows.map(|line| {
        let cells: Vec<_> = line
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().trim_matches('`').to_owned())
            .collect();
        let [place, kind, default, bounds, _] = <[String; 5]>::try_from(cells).expect(line);
        Row { place, kind, default, bounds }
    });
    rows.collect()
}

/// `/audit/keys/0/id` stands at `/audit/keys/*/id`.
fn is_at(pointer: &str, place: &str) -> bool {
    let parts = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
    let (pointer, place) = (parts(pointer), parts(place));
    pointer.len() == place.len()
        && pointer.iter().zip(&place).all(|(found, wanted)| wanted == "*" || found == wanted)
}

fn milliseconds(text: &str) -> i64 {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        unit => panic!("{unit}"),
    };
    digits.parse::<i64>().unwrap() * unit
}
