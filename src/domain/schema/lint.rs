//! What every schema must keep to, wherever it stands: known keywords, checked
//! formats, linear patterns, references that lead somewhere.

use std::collections::{HashMap, HashSet};

use jsonschema::Draft;
use serde_json::{Map, Value, json};

use super::node::{APPLICATORS, Applies, Node, join, resolve};
use super::validator::{PATTERN_BYTES, options};
use crate::domain::refusal::{Code, Finding};

/// The most levels of a schema. The validator recurses, and so do we.
pub(super) const MAX_LEVELS: usize = 64;

/// Keywords of Draft 2020-12 that hold no subschemas, and that we let pass.
const PLAIN_KEYWORDS: [&str; 34] = [
    "$comment",
    "$ref",
    "$schema",
    "const",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "dependentRequired",
    "deprecated",
    "description",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "readOnly",
    "required",
    "title",
    "type",
    "uniqueItems",
    "writeOnly",
];

/// Keywords that we refuse, with what to do instead.
const REFUSED_KEYWORDS: [(&str, &str); 11] = [
    ("$id", "remove it; a file is referenced by its path in the policy directory"),
    ("$anchor", "remove it, and reference the place by its JSON Pointer"),
    ("$dynamicAnchor", "remove it, and reference the place by its JSON Pointer"),
    ("$dynamicRef", "use $ref"),
    ("$recursiveAnchor", "remove it; it belongs to an older draft"),
    ("$recursiveRef", "use $ref"),
    ("$vocabulary", "remove it; the vocabulary is that of Draft 2020-12"),
    ("additionalItems", "use prefixItems and items"),
    ("definitions", "call it $defs"),
    ("dependencies", "use dependentRequired or dependentSchemas"),
    ("nullable", "use type: [\"…\", \"null\"]"),
];

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Whether the document is nested more than [`MAX_LEVELS`].
pub(super) fn is_too_deep(document: &Value) -> bool {
    let mut level = vec![document];
    for _ in 0..=MAX_LEVELS {
        level = level.into_iter().flat_map(inner).collect();
    }
    !level.is_empty()
}

fn inner(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(members) => members.values().collect(),
        _ => Vec::new(),
    }
}

/// Faults that make a document no schema that we can rely on.
pub(super) fn lint(document: &Value) -> Vec<Finding> {
    let nodes = all(document);
    let places: HashSet<usize> = nodes.iter().map(Node::id).collect();
    let mut findings = Vec::new();
    for node in &nodes {
        if let Some(keywords) = node.keywords() {
            check_keywords(node, keywords, &mut findings);
            check_dialect(node, &mut findings);
            check_reference(node, document, &places, &mut findings);
            check_format(node, &mut findings);
            check_patterns(node, keywords, &mut findings);
        }
    }
    findings.extend(circular(document, nodes));
    findings
}

/// Every schema of a document, wherever a keyword holds one.
pub(super) fn all(document: &Value) -> Vec<Node<'_>> {
    let mut nodes = Vec::new();
    let mut waiting = vec![Node::root(document)];
    while let Some(node) = waiting.pop() {
        waiting.extend(node.subschemas().into_iter().map(|(_, node)| node));
        nodes.push(node);
    }
    nodes
}

fn check_keywords(node: &Node<'_>, keywords: &Map<String, Value>, findings: &mut Vec<Finding>) {
    for keyword in keywords.keys() {
        let at = join(&node.pointer, [keyword.as_str()]);
        if let Some((_, mend)) = REFUSED_KEYWORDS.iter().find(|(refused, _)| refused == keyword) {
            let problem = format!("the keyword {keyword:?} is not accepted in a policy");
            findings.push(Finding::new(at, Code::RefusedKeyword, problem, *mend));
        } else if !is_known(keyword) {
            let problem =
                format!("Draft 2020-12 has no keyword {keyword:?}; it would check nothing");
            let mend = match nearest(keyword) {
                Some(known) => format!("did you mean {known:?}? Notes of your own start with x-"),
                None => "remove it; notes of your own start with x-".to_owned(),
            };
            findings.push(Finding::new(at, Code::UnknownKeyword, problem, mend));
        }
    }
}

/// Whether Draft 2020-12 knows the keyword, or it is a note of the author's.
pub(super) fn is_known(keyword: &str) -> bool {
    keyword.starts_with("x-")
        || PLAIN_KEYWORDS.contains(&keyword)
        || APPLICATORS.iter().any(|(known, ..)| *known == keyword)
}

/// The known keyword that differs only in case, separators or one letter.
fn nearest(keyword: &str) -> Option<&'static str> {
    let known = PLAIN_KEYWORDS.into_iter().chain(APPLICATORS.into_iter().map(|(known, ..)| known));
    known.into_iter().find(|known| {
        let fold = |text: &str| text.to_lowercase().replace(['_', '-', '$'], "");
        fold(known) == fold(keyword) || is_one_edit_apart(known, keyword)
    })
}

fn is_one_edit_apart(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let start = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[start..], &b[start..]);
    let end = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[..a.len() - end], &b[..b.len() - end]);
    a.len() <= 1 && b.len() <= 1 || a.len() == 2 && b.len() == 2 && a[0] == b[1] && a[1] == b[0]
}

fn check_dialect(node: &Node<'_>, findings: &mut Vec<Finding>) {
    let Some(dialect) = node.get("$schema") else { return };
    if dialect.as_str().is_none_or(|dialect| dialect.trim_end_matches('#') != DIALECT) {
        findings.push(Finding::new(
            join(&node.pointer, ["$schema"]),
            Code::RefusedKeyword,
            "the schema names a dialect other than Draft 2020-12",
            format!("remove it, or write \"$schema\": \"{DIALECT}\""),
        ));
    }
}

/// A reference must lead to a place where a keyword holds a schema: anything
/// else in the document is not checked as one.
fn check_reference(
    node: &Node<'_>,
    document: &Value,
    places: &HashSet<usize>,
    findings: &mut Vec<Finding>,
) {
    let Some(reference) = node.get("$ref").and_then(Value::as_str) else { return };
    if resolve(document, reference).is_none_or(|target| !places.contains(&target.id())) {
        findings.push(Finding::new(
            join(&node.pointer, ["$ref"]),
            Code::ReferenceDangling,
            format!("there is no schema at {reference:?}"),
            "reference a JSON Pointer that leads to a schema, such as \"#/$defs/name\"",
        ));
    }
}

fn check_format(node: &Node<'_>, findings: &mut Vec<Finding>) {
    let Some(format) = node.get("format").and_then(Value::as_str) else { return };
    if !is_asserted(format) {
        findings.push(Finding::new(
            join(&node.pointer, ["format"]),
            Code::FormatNotAsserted,
            format!("the format {format:?} is not checked"),
            "use a checked format (date, date-time, time, duration, uuid, email, hostname, ipv4, \
             ipv6, uri, uri-reference, iri, json-pointer …) or a pattern",
        ));
    }
}

/// `regex` is left out: checking it compiles and remembers what a model wrote.
fn is_asserted(format: &str) -> bool {
    format != "regex" && jsonschema::options().is_known_format(Draft::Draft202012, format)
}

fn check_patterns(node: &Node<'_>, keywords: &Map<String, Value>, findings: &mut Vec<Finding>) {
    if let Some(pattern) = keywords.get("pattern").and_then(Value::as_str)
        && !is_linear(pattern)
    {
        findings.push(not_linear(join(&node.pointer, ["pattern"])));
    }
    if let Some(patterns) = keywords.get("patternProperties").and_then(Value::as_object) {
        for pattern in patterns.keys().filter(|pattern| !is_linear(pattern)) {
            findings.push(not_linear(join(&node.pointer, ["patternProperties", pattern])));
        }
    }
}

fn not_linear(pointer: String) -> Finding {
    Finding::new(
        pointer,
        Code::PatternNotLinear,
        format!(
            "the pattern is no regular expression that runs in linear time within {} KiB",
            PATTERN_BYTES / 1024
        ),
        "write it without look-around and back-references, and with smaller counts",
    )
}

/// Asks the engine that will run the pattern, under the limits that will hold.
fn is_linear(pattern: &str) -> bool {
    options().build(&json!({ "pattern": pattern })).is_ok()
}

/// References that lead back to their own schema without entering the instance.
fn circular<'a>(document: &'a Value, nodes: Vec<Node<'a>>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut state = HashMap::new();
    for node in nodes {
        follow(document, node, &mut state, &mut findings);
    }
    findings
}

/// What is known of a schema whose in-place schemas are followed.
#[derive(Clone, Copy)]
enum Visit {
    Open,
    /// With the longest chain of schemas that start here and apply in place.
    Done(usize),
}

/// A schema on the way, with the in-place schemas that are still to follow.
struct Step<'a> {
    node: Node<'a>,
    left: Vec<Node<'a>>,
    longest: usize,
}

/// Walks everything that applies in place, depth first. The path is kept apart
/// from the call stack: a chain of references may be long.
fn follow<'a>(
    document: &'a Value,
    start: Node<'a>,
    state: &mut HashMap<usize, Visit>,
    findings: &mut Vec<Finding>,
) {
    let mut path = Vec::new();
    enter(document, start, state, &mut path, findings);
    while let Some(step) = path.last_mut() {
        if let Some(next) = step.left.pop() {
            enter(document, next, state, &mut path, findings);
            continue;
        }
        let length = step.longest + 1;
        state.insert(step.node.id(), Visit::Done(length));
        if length == MAX_LEVELS + 1 {
            findings.push(Finding::new(
                step.node.pointer.as_str(),
                Code::SchemaTooDeep,
                format!("more than {MAX_LEVELS} schemas lead from one to the next here"),
                "reference the last of them",
            ));
        }
        path.pop();
        if let Some(before) = path.last_mut() {
            before.longest = before.longest.max(length);
        }
    }
}

fn enter<'a>(
    document: &'a Value,
    node: Node<'a>,
    state: &mut HashMap<usize, Visit>,
    path: &mut Vec<Step<'a>>,
    findings: &mut Vec<Finding>,
) {
    match state.get(&node.id()) {
        Some(Visit::Done(length)) => {
            if let Some(before) = path.last_mut() {
                before.longest = before.longest.max(*length);
            }
        }
        Some(Visit::Open) => findings.push(Finding::new(
            node.pointer,
            Code::ReferenceCircular,
            "the schema applies itself to the same place of the instance",
            "put the reference below a property or under items",
        )),
        None => {
            state.insert(node.id(), Visit::Open);
            let in_place = node.subschemas().into_iter().filter(|(a, _)| *a == Applies::InPlace);
            let left = in_place.map(|(_, node)| node).chain(node.reference(document)).collect();
            path.push(Step { node, left, longest: 0 });
        }
    }
}

/// What the meta-schema has against the document.
pub(super) fn meta(document: &Value) -> Vec<Finding> {
    let validator = jsonschema::draft202012::meta::validator();
    if validator.is_valid(document) {
        return Vec::new();
    }
    let fault = |error: jsonschema::ValidationError<'_>| {
        let problem: String = error.masked().to_string().chars().take(200).collect();
        Finding::new(
            error.instance_path().as_str(),
            Code::SchemaInvalid,
            format!("not a valid Draft 2020-12 schema: {problem}"),
            if error.instance_path().as_str().ends_with("/type") {
                "use null, boolean, integer, number, string, array or object, or a list of these"
            } else {
                "correct it after https://json-schema.org/draft/2020-12/json-schema-validation"
            },
        )
    };
    validator.iter_errors(document).take(16).map(fault).collect()
}
