//! What is said of a value that does not fit, at a cost that the value cannot choose.
//!
//! Whether a value fits is judged in time linear in it. To say why, the validator
//! collects what every branch found, branch by branch: with branches that lead
//! back to themselves that doubles with each level of the value, and a few hundred
//! bytes would take seconds and gigabytes. Schemas that could do so are explained
//! by their top-level members instead.

use std::collections::HashSet;

use serde_json::Value as Document;

use super::SchemaFault;
use super::lint;
use super::node::{APPLICATORS, Applies, Holds, Node, join};
use super::places::Place;
use crate::domain::json::{Object, Value};

/// Places of a schema, references followed, up to which every branch may be explained.
const MAX_UNROLLED: usize = 4_096;

/// Places of a schema up to which it is looked at this closely.
const MAX_PLACES: usize = 1_024;

/// Nested places, references followed: a bound of the stack.
const MAX_PATH: usize = 512;

/// Keywords of the kind below in one schema: each may double the work.
const MAX_REVISITS: usize = 8;

/// Keywords that judge one value by several schemas.
const BRANCHING: [&str; 10] = [
    "allOf",
    "anyOf",
    "contains",
    "dependentSchemas",
    "else",
    "if",
    "not",
    "oneOf",
    "propertyNames",
    "then",
];

/// Keywords that judge a value once more by what other keywords found.
const REVISITING: [&str; 2] = ["unevaluatedItems", "unevaluatedProperties"];

/// Whether all that the validator finds may be collected: the work for one place
/// of a value is bounded by the schema alone.
///
/// It is not where a branch leads back to itself, for there every level of a value
/// is judged twice as often as the level above.
pub(super) fn is_bounded(document: &Document) -> bool {
    let nodes = lint::all(document);
    if nodes.len() > MAX_PLACES || !unrolls(document) {
        return false;
    }
    let revisits = |node: &&Node<'_>| REVISITING.iter().any(|keyword| node.get(keyword).is_some());
    let revisiting: Vec<_> = nodes.iter().filter(revisits).collect();
    revisiting.len() <= MAX_REVISITS
        && !revisiting.iter().any(|node| leads_to(document, children(document, node), node.id()))
        && !nodes.iter().any(|node| leads_to(document, branches(document, node), node.id()))
}

/// The schema without what asks for several members at once, so that members can
/// be judged one at a time.
pub(super) fn for_single_members(document: &Document) -> Document {
    let mut document = document.clone();
    if let Some(keywords) = document.as_object_mut() {
        for keyword in ["required", "minProperties", "dependentRequired", "dependentSchemas"] {
            keywords.remove(keyword);
        }
    }
    document
}

/// The faults of the top-level members: those missing, and those that do not fit
/// by themselves. Empty where the fault lies in how members go together.
pub(super) fn by_members(
    document: &Document,
    value: &Value,
    fits_alone: impl Fn(&Value) -> bool,
) -> Vec<SchemaFault> {
    let Some(members) = value.as_object() else { return Vec::new() };
    let root = Place::root(document);
    let mut faults: Vec<SchemaFault> =
        missing(document, members).map(|name| fault("", "required", Some(name))).collect();
    for (name, value) in members {
        let single = Object::from_members(vec![(name.to_owned(), value.clone())]);
        if single.is_ok_and(|single| fits_alone(&Value::Object(single))) {
            continue;
        }
        faults.push(if root.member(name).is_some() {
            fault(&join("", [name]), keyword(document, name), None)
        } else {
            fault("", closing_keyword(document), None)
        });
    }
    faults
}

/// Whether the schema has few places with its references followed, each circle once.
fn unrolls(document: &Document) -> bool {
    let mut left = MAX_UNROLLED;
    let mut path = HashSet::new();
    unroll(document, &Node::root(document), &mut path, &mut left)
}

/// The path is no longer than there are nodes, which the caller has bounded.
fn unroll(
    document: &Document,
    node: &Node<'_>,
    path: &mut HashSet<usize>,
    left: &mut usize,
) -> bool {
    if *left == 0 || path.len() > MAX_PATH {
        return false;
    }
    *left -= 1;
    if !path.insert(node.id()) {
        return true;
    }
    let fits = children(document, node).iter().all(|child| unroll(document, child, path, left));
    path.remove(&node.id());
    fits
}

/// Everything that judges a value that the node judges, or a part of it.
fn children<'d>(document: &'d Document, node: &Node<'d>) -> Vec<Node<'d>> {
    let subschemas = node.subschemas().into_iter();
    let applied = subschemas.filter(|(applies, _)| *applies != Applies::Never);
    applied.map(|(_, node)| node).chain(node.reference(document)).collect()
}

/// What judges the same value beside something else.
fn branches<'d>(document: &'d Document, node: &Node<'d>) -> Vec<Node<'d>> {
    let kept = |holds| {
        move |(keyword, how, _): &&(&'static str, Holds, Applies)| {
            *how == holds && BRANCHING.contains(keyword)
        }
    };
    let one =
        APPLICATORS.iter().filter(kept(Holds::One)).filter_map(|(keyword, ..)| node.one(keyword));
    let list =
        APPLICATORS.iter().filter(kept(Holds::List)).flat_map(|(keyword, ..)| node.list(keyword));
    let map =
        APPLICATORS.iter().filter(kept(Holds::Map)).flat_map(|(keyword, ..)| node.map(keyword));
    let mut branches: Vec<_> = one.chain(list).chain(map.map(|(_, node)| node)).collect();
    // A reference with other schemas beside it is a branch as well.
    if node.subschemas().iter().any(|(applies, _)| *applies != Applies::Never) {
        branches.extend(node.reference(document));
    }
    branches
}

fn leads_to<'d>(document: &'d Document, mut waiting: Vec<Node<'d>>, target: usize) -> bool {
    let mut seen = HashSet::new();
    while let Some(node) = waiting.pop() {
        if node.id() == target {
            return true;
        }
        if seen.insert(node.id()) {
            waiting.extend(children(document, &node));
        }
    }
    false
}

fn missing<'d>(document: &'d Document, members: &Object) -> impl Iterator<Item = &'d str> {
    let required = document.get("required").and_then(Document::as_array);
    let names = required.into_iter().flatten().filter_map(Document::as_str);
    names.filter(|name| !members.contains(name))
}

/// What a declared member is judged by, as far as one word says it.
fn keyword(document: &Document, name: &str) -> &'static str {
    let mut node = Node::root(document).named("properties", name);
    // References in place are few: longer chains are refused when the schema is loaded.
    for _ in 0..64 {
        let Some(found) = node else { break };
        for keyword in ["oneOf", "anyOf", "allOf", "not", "if", "type", "enum", "const"] {
            if found.get(keyword).is_some() {
                return keyword;
            }
        }
        node = found.reference(document);
    }
    "properties"
}

fn closing_keyword(document: &Document) -> &'static str {
    let is_unevaluated = document.get("unevaluatedProperties").is_some();
    if is_unevaluated { "unevaluatedProperties" } else { "additionalProperties" }
}

fn fault(pointer: &str, keyword: &str, missing: Option<&str>) -> SchemaFault {
    SchemaFault {
        pointer: pointer.to_owned(),
        keyword: keyword.to_owned(),
        missing: missing.map(str::to_owned),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::Schema;
    use super::*;
    use crate::domain::json::{Integers, parse};

    fn value(text: &str) -> Value {
        parse(text.as_bytes(), 1 << 20, Integers::Safe).unwrap()
    }

    fn told(schema: &str, text: &str) -> Vec<(String, String, Option<String>)> {
        let schema = Schema::compile(serde_json::from_str(schema).unwrap()).unwrap();
        let faults = schema.validate(&value(text)).unwrap_err();
        faults.into_iter().map(|fault| (fault.pointer, fault.keyword, fault.missing)).collect()
    }

    /// A Boolean filter: each level could be either of two branches that hold the next.
    const FILTER: &str = r##"{"type":"object","additionalProperties":false,"required":["filter","page"],
        "properties":{"filter":{"$ref":"#/$defs/N"},"page":{"type":"integer"}},"$defs":{"N":{"oneOf":[
        {"type":"object","additionalProperties":false,"required":["op","args"],"properties":
            {"op":{"const":"and"},"args":{"type":"array","maxItems":9,"items":{"$ref":"#/$defs/N"}}}},
        {"type":"object","additionalProperties":false,"required":["op","args"],"properties":
            {"op":{"const":"or"},"args":{"type":"array","maxItems":9,"items":{"$ref":"#/$defs/N"}}}},
        {"type":"object","additionalProperties":false,"required":["field"],"properties":
            {"field":{"type":"string","maxLength":9}}}]}}}"##;

    /// Members that are evaluated again at every level.
    const UNEVALUATED: &str = r##"{"type":"object","properties":{"n":{"$ref":"#/$defs/N"}},
        "$defs":{"B":{"type":"object","properties":{"v":{"type":"string"}}},
        "N":{"type":"object","unevaluatedProperties":false,"allOf":[{"$ref":"#/$defs/B"}],
        "properties":{"c":{"$ref":"#/$defs/N"}}}}}"##;

    #[test]
    fn what_could_double_with_each_level_is_explained_by_members() {
        assert!(!is_bounded(&serde_json::from_str(FILTER).unwrap()));
        assert!(!is_bounded(&serde_json::from_str(UNEVALUATED).unwrap()));
        let nested = (0..15).fold(r#"{"field":7}"#.to_owned(), |inner, _| {
            format!(r#"{{"op":"or","args":[{inner},{{"field":"a"}}]}}"#)
        });
        let text = format!(r#"{{"filter":{nested},"extra":1}}"#);
        let expected = [
            (String::new(), "additionalProperties".to_owned(), None),
            (String::new(), "required".to_owned(), Some("page".to_owned())),
            ("/filter".to_owned(), "oneOf".to_owned(), None),
        ];
        // With every branch collected this would not end: two to the fifteenth of them.
        assert_eq!(told(FILTER, &text), expected);
        let deep = (0..30).fold(r#"{"v":1}"#.to_owned(), |inner, _| format!(r#"{{"c":{inner}}}"#));
        let fault = ("/n".to_owned(), "allOf".to_owned(), None);
        assert_eq!(told(UNEVALUATED, &format!(r#"{{"n":{deep}}}"#)), [fault]);
    }

    #[test]
    fn what_cannot_is_explained_in_full() {
        let tree = r##"{"type":"object","properties":{"n":{"$ref":"#/$defs/N"}},"$defs":{"N":
            {"type":"object","properties":{"v":{"type":"string"},"c":{"$ref":"#/$defs/N"}}}}}"##;
        let fault = ("/n/c/c/v".to_owned(), "type".to_owned(), None);
        assert_eq!(told(tree, r#"{"n":{"c":{"c":{"v":1}}}}"#), [fault]);
        let either = r##"{"type":"object","properties":{"id":{"anyOf":[{"$ref":"#/$defs/I"},{"type":"null"}]}},
            "$defs":{"I":{"type":"string"}}}"##;
        assert!(is_bounded(&serde_json::from_str(either).unwrap()));
        assert_eq!(told(either, r#"{"id":1}"#), [("/id".to_owned(), "anyOf".to_owned(), None)]);
    }
}
