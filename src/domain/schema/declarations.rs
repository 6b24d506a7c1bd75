//! Names that arguments must not have, and members that they must not be free to name.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::names;
use super::node::{Applies, Node, join};
use crate::domain::refusal::{Code, Finding};

/// Refusals of the schemas that arguments can meet, those of unused definitions aside.
pub(super) fn check(document: &Value, findings: &mut Vec<Finding>) {
    let mut seen = HashSet::new();
    let mut waiting = vec![Node::root(document)];
    while let Some(node) = waiting.pop() {
        if !seen.insert(node.id()) {
            continue;
        }
        check_names(&node, findings);
        check_maps(&node, findings);
        let reachable =
            node.subschemas().into_iter().filter(|(applies, _)| *applies != Applies::Never);
        waiting.extend(reachable.map(|(_, node)| node));
        waiting.extend(node.reference(document));
    }
}

fn check_maps(node: &Node<'_>, findings: &mut Vec<Finding>) {
    let is_open = |keyword: &&str| node.get(keyword).is_some_and(|v| *v != Value::Bool(false));
    let open = ["additionalProperties", "unevaluatedProperties"].into_iter().filter(is_open);
    for keyword in open.chain(node.get("patternProperties").map(|_| "patternProperties")) {
        findings.push(Finding::new(
            join(&node.pointer, [keyword]),
            Code::OpenObject,
            format!("{keyword:?} lets a model name members that nobody declared"),
            "declare every member under \"properties\", or take a list of name and value",
        ));
    }
}

fn check_names(node: &Node<'_>, findings: &mut Vec<Finding>) {
    let Some(keywords) = node.keywords() else { return };
    let is_declared = |name: &str| node.named("properties", name).is_some();
    for keyword in ["properties", "dependentSchemas", "dependentRequired"] {
        for name in keywords.get(keyword).and_then(Value::as_object).into_iter().flat_map(Map::keys)
        {
            // One refusal for a name is enough, where it is declared.
            if keyword == "properties" || !is_declared(name) {
                findings.extend(names::property(name, &join(&node.pointer, [keyword, name])));
            }
        }
    }
    let mut check_list = |list: &Value, pointer: &str| {
        for (index, name) in list.as_array().into_iter().flatten().enumerate() {
            let name = name.as_str().unwrap_or_default();
            if !is_declared(name) {
                let at = join(pointer, [index.to_string().as_str()]);
                findings.extend(names::property(name, &at));
            }
        }
    };
    if let Some(list) = keywords.get("required") {
        check_list(list, &join(&node.pointer, ["required"]));
    }
    let lists = keywords.get("dependentRequired").and_then(Value::as_object);
    for (name, list) in lists.into_iter().flatten() {
        check_list(list, &join(&node.pointer, ["dependentRequired", name]));
    }
    for keyword in ["const", "enum"] {
        if let Some(value) = keywords.get(keyword) {
            check_value(value, &join(&node.pointer, [keyword]), findings);
        }
    }
}

/// Member names inside of values that a model may send as they are.
fn check_value(value: &Value, pointer: &str, findings: &mut Vec<Finding>) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                check_value(item, &join(pointer, [index.to_string().as_str()]), findings);
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                let at = join(pointer, [name.as_str()]);
                findings.extend(names::property(name, &at));
                check_value(member, &at, findings);
            }
        }
        _ => {}
    }
}
