//! What changes between two schemas of arguments, by property and keyword.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Bearing, Told, shown};
use crate::domain::schema::{join, percent_decode};

/// Schemas are at most 64 levels deep; references are followed once in a chain.
const MAX_DEPTH: usize = 64;

/// Keywords of which more lets more through.
const MOST: [&str; 6] =
    ["maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum", "maxContains"];
/// Keywords of which less lets more through.
const LEAST: [&str; 6] =
    ["minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum", "minContains"];
/// Keywords that only refuse: to add one narrows, to remove one widens.
const REFUSING: [&str; 5] = ["pattern", "format", "const", "multipleOf", "uniqueItems"];
/// Keywords that say something and check nothing.
const TELLING: [&str; 8] = [
    "title",
    "description",
    "examples",
    "default",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
];
/// Keywords that are compared by what they lead to.
const LEADING: [&str; 4] = ["properties", "required", "$ref", "$defs"];

/// Tells of every place where two schemas of arguments differ.
pub(super) fn arguments(old: &Value, new: &Value, told: &mut Told<'_>) {
    let before = told.changes.len();
    let mut comparison = Comparison { roots: (old, new), followed: BTreeSet::new(), told };
    comparison.nodes(old, new, "", 0);
    if old != new && told.changes.len() == before {
        let text = "the schema is written in another way, or changes where nothing is compared";
        told.add("argument_changed", Bearing::Either, text.to_owned());
    }
}

struct Comparison<'a, 't, 'c> {
    roots: (&'a Value, &'a Value),
    /// Pairs of references that were followed. Once is enough: what they lead to is
    /// the same wherever they stand, and a recursive schema leads on for ever.
    followed: BTreeSet<(&'a str, &'a str)>,
    told: &'t mut Told<'c>,
}

/// Takes what is not there for a schema that lets everything through.
static ANYTHING: Value = Value::Bool(true);

impl<'a> Comparison<'a, '_, '_> {
    fn nodes(&mut self, old: &'a Value, new: &'a Value, at: &str, depth: usize) {
        if depth > MAX_DEPTH || (old == new && !leads_on(old)) {
            return;
        }
        let (old, old_reference) = resolve(self.roots.0, old);
        let (new, new_reference) = resolve(self.roots.1, new);
        if let (Some(old), Some(new)) = (old_reference, new_reference)
            && !self.followed.insert((old, new))
        {
            return;
        }
        let (Value::Object(before), Value::Object(after)) = (old, new) else {
            if old != new {
                let text = format!("{}: the schema {} -> {}", place(at), shown(old), shown(new));
                self.told.add("argument_changed", Bearing::Either, text);
            }
            return;
        };
        self.references(before, after, at, depth);
        self.properties(before, after, at, depth);
        let keywords: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for keyword in keywords.into_iter().filter(|one| !LEADING.contains(&one.as_str())) {
            match (before.get(keyword), after.get(keyword)) {
                (Some(old), Some(new)) if keyword == "items" => {
                    self.nodes(old, new, &join(at, ["*"]), depth + 1);
                }
                (Some(old), Some(new)) if old == new => self.within(old, new, at, depth),
                (old, new) => self.keyword(keyword, old, new, at),
            }
        }
    }

    /// Compares what the references within two equal values lead to.
    fn within(&mut self, old: &'a Value, new: &'a Value, at: &str, depth: usize) {
        match (old, new) {
            (Value::Object(_), Value::Object(_)) => self.nodes(old, new, at, depth + 1),
            (Value::Array(old), Value::Array(new)) => {
                for (old, new) in old.iter().zip(new) {
                    self.within(old, new, at, depth + 1);
                }
            }
            _ => {}
        }
    }

    /// Compares what references beside other keywords lead to.
    fn references(
        &mut self,
        before: &'a Map<String, Value>,
        after: &'a Map<String, Value>,
        at: &str,
        depth: usize,
    ) {
        let target = |root: &'a Value, node: &'a Map<String, Value>| {
            let text = node.get("$ref").and_then(Value::as_str);
            (text, text.and_then(|text| lead(root, text)).unwrap_or(&ANYTHING))
        };
        let (old_reference, old) = target(self.roots.0, before);
        let (new_reference, new) = target(self.roots.1, after);
        if let (Some(old), Some(new)) = (old_reference, new_reference)
            && !self.followed.insert((old, new))
        {
            return;
        }
        self.nodes(old, new, at, depth + 1);
    }

    fn properties(
        &mut self,
        before: &'a Map<String, Value>,
        after: &'a Map<String, Value>,
        at: &str,
        depth: usize,
    ) {
        let (old, new) = (members(before), members(after));
        let (was_required, is_required) = (required(before), required(after));
        let names: BTreeSet<&str> = old
            .keys()
            .chain(new.keys())
            .copied()
            .chain(was_required.iter().copied())
            .chain(is_required.iter().copied())
            .collect();
        for name in names {
            let place = join(at, [name]);
            let now = is_required.contains(name);
            match (old.get(name), new.get(name)) {
                (None, Some(_)) if now => self.tell(
                    "argument_added",
                    Bearing::Narrower,
                    format!("property {place} is added, and required"),
                ),
                (None, Some(_)) => self.tell(
                    "argument_added",
                    Bearing::Wider,
                    format!("property {place} is added"),
                ),
                (Some(_), None) => self.tell(
                    "argument_removed",
                    Bearing::Narrower,
                    format!("property {place} is removed"),
                ),
                (before, after) => {
                    match (was_required.contains(name), now) {
                        (false, true) => self.tell(
                            "argument_required",
                            Bearing::Narrower,
                            format!("property {place} is required now"),
                        ),
                        (true, false) => self.tell(
                            "argument_optional",
                            Bearing::Wider,
                            format!("property {place} is optional now"),
                        ),
                        _ => {}
                    }
                    if let (Some(before), Some(after)) = (before, after) {
                        self.nodes(before, after, &place, depth + 1);
                    }
                }
            }
        }
    }

    fn keyword(&mut self, keyword: &str, old: Option<&Value>, new: Option<&Value>, at: &str) {
        let bearing = bearing(keyword, old, new);
        let kind = match bearing {
            Bearing::Narrower => "argument_tightened",
            Bearing::Wider => "argument_loosened",
            Bearing::Either => "argument_changed",
            Bearing::Neither => "argument_described",
        };
        let show = |value: Option<&Value>| value.map_or_else(|| "none".to_owned(), shown);
        let text = format!("{}: {keyword} {} -> {}", place(at), show(old), show(new));
        self.tell(kind, bearing, text);
    }

    fn tell(&mut self, kind: &'static str, bearing: Bearing, text: String) {
        self.told.add(kind, bearing, text);
    }
}

fn place(at: &str) -> String {
    if at.is_empty() { "the arguments".to_owned() } else { format!("property {at}") }
}

/// Which way the change of one keyword goes.
fn bearing(keyword: &str, old: Option<&Value>, new: Option<&Value>) -> Bearing {
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    if TELLING.contains(&keyword) {
        return Bearing::Neither;
    }
    let only_refuses = MOST.contains(&keyword)
        || LEAST.contains(&keyword)
        || REFUSING.contains(&keyword)
        || ["enum", "type"].contains(&keyword);
    match (old, new) {
        (None, Some(_)) if only_refuses => Bearing::Narrower,
        (Some(_), None) if only_refuses => Bearing::Wider,
        _ => match (number(old), number(new)) {
            (Some(old), Some(new)) if MOST.contains(&keyword) => Bearing::of_most(&old, &new),
            (Some(old), Some(new)) if LEAST.contains(&keyword) => Bearing::of_most(&new, &old),
            _ if keyword == "enum" || keyword == "type" => sets(&values(old), &values(new)),
            _ if keyword == "uniqueItems" && new == Some(&Value::Bool(true)) => Bearing::Narrower,
            _ if keyword == "uniqueItems" => Bearing::Wider,
            _ => Bearing::Either,
        },
    }
}

/// Of what one of several values, or one of several types, may be.
fn sets(old: &[String], new: &[String]) -> Bearing {
    let is_within = |inner: &[String], outer: &[String]| inner.iter().all(|one| takes(outer, one));
    match (is_within(new, old), is_within(old, new)) {
        (true, true) => Bearing::Neither,
        (true, false) => Bearing::Narrower,
        (false, true) => Bearing::Wider,
        (false, false) => Bearing::Either,
    }
}

/// An integer is a number.
fn takes(all: &[String], one: &String) -> bool {
    let is_number = || all.iter().any(|other| other == "\"number\"");
    all.contains(one) || (one == "\"integer\"" && is_number())
}

fn values(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::Array(items)) => items.iter().map(ToString::to_string).collect(),
        Some(one) => vec![one.to_string()],
        None => Vec::new(),
    }
}

fn members(node: &Map<String, Value>) -> std::collections::BTreeMap<&str, &Value> {
    let members = node.get("properties").and_then(Value::as_object);
    members.into_iter().flatten().map(|(name, value)| (name.as_str(), value)).collect()
}

fn required(node: &Map<String, Value>) -> BTreeSet<&str> {
    let names = node.get("required").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether two equal nodes may differ in what they lead to.
fn leads_on(node: &Value) -> bool {
    match node {
        Value::Object(members) => members.contains_key("$ref") || members.values().any(leads_on),
        Value::Array(items) => items.iter().any(leads_on),
        _ => false,
    }
}

/// What a node that is nothing but a reference leads to, and the last reference on the way.
fn resolve<'a>(root: &'a Value, node: &'a Value) -> (&'a Value, Option<&'a str>) {
    let (mut node, mut last) = (node, None);
    for _ in 0..MAX_DEPTH {
        let Value::Object(members) = node else { break };
        let is_alone = |name: &String| name == "$ref" || TELLING.contains(&name.as_str());
        let Some(text) = members.get("$ref").and_then(Value::as_str) else { break };
        if !members.keys().all(is_alone) {
            break;
        }
        // Loading has found every reference to lead into the document.
        let Some(target) = lead(root, text) else { break };
        (node, last) = (target, Some(text));
    }
    (node, last)
}

fn lead<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(&percent_decode(reference.strip_prefix('#')?)?)
}
