//! Real tools and real calls of a function-calling benchmark, as contracts.
//!
//! Each row of `tool-calls/bfcl.jsonl` under `TOOLGATE_TEST_DATA` lists tools in
//! the loose dialects of model vendors, and calls that fit them. Each row becomes
//! a policy directory; its calls must be admitted, and near misses refused at
//! the right place.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{env, fs};

use serde_json::{Map, Value, json};
use toolgate::config::Faults;
use toolgate::config::policy::{Loaded, load};
use toolgate::domain::contract::Contract;
use toolgate::domain::json::{Integers, Value as Parsed, normalise, parse};
use toolgate::domain::policy::PolicySnapshot;
use toolgate::domain::schema::SchemaFault;

use crate::contracts::{surroundings, write};
use crate::dialect;

/// The rows, or nothing where the data is not at hand.
fn rows() -> Vec<Value> {
    let Some(data) = env::var_os("TOOLGATE_TEST_DATA") else {
        assert!(env::var_os("CI").is_none(), "TOOLGATE_TEST_DATA must be set where CI is");
        eprintln!("SKIPPED bfcl: TOOLGATE_TEST_DATA is not set");
        return Vec::new();
    };
    let path = PathBuf::from(data).join("tool-calls/bfcl.jsonl");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let rows = text.lines().filter(|line| !line.trim().is_empty());
    let rows: Vec<Value> = rows.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!rows.is_empty(), "{} holds nothing", path.display());
    rows
}

struct Call {
    tool: String,
    arguments: Value,
}

fn calls(row: &Value) -> Vec<Call> {
    let calls = row["calls"].as_array().unwrap();
    calls
        .iter()
        .map(|call| Call {
            tool: dialect::name(call["name"].as_str().unwrap()),
            arguments: match &call["arguments"] {
                Value::String(text) => serde_json::from_str(text).unwrap(),
                arguments => arguments.clone(),
            },
        })
        .collect()
}

/// The row's tools as a policy. Refusals that a reason can answer are answered.
fn policy(row: &Value, calls: &[Call]) -> PolicySnapshot {
    let mut contracts: Vec<Value> = Vec::new();
    for tool in row["tools"].as_array().unwrap() {
        let samples = |name: &str| {
            let fitting = calls.iter().filter(|call| call.tool == name);
            fitting.map(|call| call.arguments.clone()).collect::<Vec<_>>()
        };
        let contract = dialect::contract(tool, samples);
        if contracts.iter().all(|known| known["name"] != contract["name"]) {
            contracts.push(contract);
        }
    }
    let loaded = match load_all(&contracts) {
        Ok(loaded) => loaded,
        Err(faults) => {
            answer(&faults, &mut contracts);
            load_all(&contracts).unwrap_or_else(|faults| panic!("{}: {faults}", row["id"]))
        }
    };
    loaded.snapshot
}

fn load_all(contracts: &[Value]) -> Result<Loaded, Faults> {
    let directory = tempfile::tempdir().unwrap();
    for (index, contract) in contracts.iter().enumerate() {
        write(directory.path(), &format!("{index}.yaml"), contract.to_string().as_bytes());
    }
    load(directory.path(), &surroundings())
}

fn answer(faults: &Faults, contracts: &mut [Value]) {
    for fault in faults.as_slice().iter().filter(|fault| fault.code.is_excusable()) {
        let index: usize = fault.file.strip_suffix(".yaml").unwrap().parse().unwrap();
        let exception =
            json!({"code": fault.code.name(), "at": fault.pointer, "reason": "A benchmark's."});
        contracts[index]["exceptions"].as_array_mut().unwrap().push(exception);
    }
}

/// As the gate does it: strict JSON, normalised, checked.
fn check(contract: &Contract, arguments: &Value) -> Result<(), Vec<SchemaFault>> {
    let text = arguments.to_string();
    let most = contract.limits.max_argument_bytes;
    let parsed: Parsed = parse(text.as_bytes(), most, Integers::Safe).unwrap();
    contract.arguments_schema.validate(&normalise(parsed, contract.trim_strings))
}

#[track_caller]
fn assert_refused(
    contract: &Contract,
    arguments: &Value,
    pointer: &str,
    keyword: &str,
    missing: Option<&str>,
) {
    let wanted = SchemaFault {
        pointer: pointer.to_owned(),
        keyword: keyword.to_owned(),
        missing: missing.map(str::to_owned),
    };
    let faults = check(contract, arguments).expect_err("the call must be refused");
    assert!(faults.contains(&wanted), "{}: wanted {wanted:?}, found {faults:?}", contract.name);
}

#[test]
fn every_listed_call_is_admitted() {
    for row in rows() {
        let calls = calls(&row);
        let policy = policy(&row, &calls);
        for call in &calls {
            let contract = policy.contract(&call.tool).unwrap_or_else(|| panic!("{}", row["id"]));
            let checked = check(contract, &call.arguments);
            assert_eq!(checked, Ok(()), "{}: {} {}", row["id"], call.tool, call.arguments);
        }
    }
}

#[test]
fn near_misses_are_refused_where_they_miss() {
    let (mut dropped, mut wrong, mut calls_seen) = (0, 0, 0);
    for row in rows() {
        let calls = calls(&row);
        let policy = policy(&row, &calls);
        for call in &calls {
            let contract = policy.contract(&call.tool).unwrap();
            let schema = contract.arguments_schema.document();
            calls_seen += 1;
            for pointer in objects(&call.arguments, schema, "") {
                let mut more = call.arguments.clone();
                let object = more.pointer_mut(&pointer).unwrap();
                object["a_member_nobody_declared"] = json!(1);
                assert_refused(contract, &more, &pointer, "additionalProperties", None);
            }
            for name in schema["required"].as_array().into_iter().flatten() {
                let name = name.as_str().unwrap();
                let mut fewer = call.arguments.clone();
                fewer.as_object_mut().unwrap().remove(name).unwrap();
                assert_refused(contract, &fewer, "", "required", Some(name));
                dropped += 1;
            }
            for (name, _) in call.arguments.as_object().unwrap() {
                let property = &schema["properties"][name];
                let Some(other) = dialect::misfit(property) else { continue };
                let mut mistyped = call.arguments.clone();
                mistyped[name] = other;
                let at = toolgate::domain::schema::join("", [name.as_str()]);
                assert_refused(contract, &mistyped, &at, dialect::keyword(property), None);
                wrong += 1;
            }
            assert!(policy.contract(&format!("{}_", call.tool)).is_none());
        }
    }
    assert!(calls_seen == 0 || dropped > 0 && wrong > 0);
}

/// The objects within arguments whose schema is plainly that of one object.
fn objects(value: &Value, schema: &Value, at: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    if let Value::Object(members) = value
        && schema["type"] == "object"
    {
        found.insert(at.to_owned());
        for (name, member) in members {
            let below = toolgate::domain::schema::join(at, [name.as_str()]);
            found.extend(objects(member, &schema["properties"][name], &below));
        }
    }
    if let Value::Array(items) = value
        && schema["type"] == "array"
    {
        for (index, item) in items.iter().enumerate() {
            found.extend(objects(item, &schema["items"], &format!("{at}/{index}")));
        }
    }
    found
}

#[test]
fn odd_dialects_become_contracts() {
    let tool = json!({"name": "odd tool/1", "parameters": {"type": "dict", "properties": {
        "a": {"type": "float"}, "b": {"type": "tuple", "items": {"type": "any"}},
        "c": {"type": "List[str]"}, "d": {"type": "Optional[int]"}, "e": {"type": "dict"},
        "f": {"type": ["string", "none"], "optional": true}, "g": {"enum": [" x", 1]},
        "h": {"type": "string", "nullable": true, "format": "phone"}, "i": true, "j": null,
        "k": {"type": "array", "items": [{"type": "int"}, {"type": "str"}]},
        "l": {"$ref": "#/$defs/l"}, "m": {"anyOf": [{"type": "integer"}, {"type": "dict"}]},
        "n": {"type": "object", "additionalProperties": {"type": "int"}},
        "url": {"type": "string"}, "o": {"type": "str | None", "required": true}},
        "required": ["a", "missing"], "$defs": {"l": {"type": "bool"}}}});
    let arguments = json!({"a": 1, "b": [1, "x"], "c": ["y"], "d": null, "e": {"free": {"form": [1]}},
        "f": null, "g": "x", "h": null, "i": 2.5, "j": "anything", "k": [1, "z"], "l": true, "m": {"q": 1},
        "n": {"x": 1}, "url": "here", "o": null});
    let row = json!({"id": "odd", "tools": [tool],
        "calls": [{"name": "odd tool/1", "arguments": arguments.to_string()}]});
    let calls = calls(&row);
    let policy = policy(&row, &calls);
    let contract = policy.contract("odd_tool_1").unwrap();
    assert_eq!(check(contract, &arguments), Ok(()));
    let mut more = arguments;
    more["e"]["free"]["more"] = Value::Object(Map::new());
    assert_refused(contract, &more, "/e/free", "additionalProperties", None);
}
