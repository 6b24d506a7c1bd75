//! The proof that arguments are typed, closed and bounded at every place.
//!
//! A *place* is what one value of the arguments is checked by: the schema that
//! declares it with everything that applies to the same value (`allOf`, `$ref`),
//! which must all hold, and the branches of `anyOf` and `oneOf`, of which one
//! must. For a place we find what may stand there, as the least of what must
//! all hold and the greatest of what may. `if`, `not`, `contains`,
//! `propertyNames` and `dependentSchemas` prove nothing; the properties that
//! they declare are places all the same, since `unevaluatedProperties` lets
//! them through.
//!
//! Places are found from the root by declared properties and items; the places
//! below one are proved on their own, so that recursion ends. What is not
//! proved is refused: a schema that is safe for a reason this file does not
//! know must say so more plainly.

use std::collections::{HashSet, VecDeque};

use serde_json::Value;

use super::declarations;
use super::node::Node;
use crate::domain::refusal::{Code, Finding};

/// The most schemas looked at over all places. Schemas that reference each
/// other in a lattice would otherwise cost exponential time, here and later.
const MAX_STEPS: usize = 200_000;

/// The most branches within branches at one place, which bounds the stack.
const MAX_BRANCHES: usize = 64;

/// Formats whose values the validator bounds in length, read from its source.
/// Not `time` and `date-time` (fractions of any length), nor `email`, `uri`.
const BOUNDED_FORMATS: [&str; 5] = ["date", "hostname", "ipv4", "ipv6", "uuid"];

static REFUSED: Value = Value::Bool(false);

/// Refusals of a schema for arguments.
#[must_use]
pub fn vet_arguments(document: &Value) -> Vec<Finding> {
    let mut vetting = Vetting {
        document,
        seen: HashSet::new(),
        waiting: VecDeque::new(),
        steps: 0,
        depth: 0,
        findings: Vec::new(),
    };
    vetting.check_root();
    vetting.check_places();
    declarations::check(document, &mut vetting.findings);
    vetting.findings.sort();
    vetting.findings.dedup();
    vetting.findings
}

/// How much of one JSON type may stand at a place, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    Refused,
    Bounded,
    Open,
}

/// What may stand at a place. The other types are bounded by themselves.
#[derive(Debug, Clone, Copy)]
struct Facts {
    is_typed: bool,
    string: Extent,
    array: Extent,
    object: Extent,
}

impl Facts {
    const NOTHING: Self = Self {
        is_typed: true,
        string: Extent::Refused,
        array: Extent::Refused,
        object: Extent::Refused,
    };

    fn both(self, other: Self) -> Self {
        Self {
            is_typed: self.is_typed || other.is_typed,
            string: self.string.min(other.string),
            array: self.array.min(other.array),
            object: self.object.min(other.object),
        }
    }

    fn either(self, other: Self) -> Self {
        Self {
            is_typed: self.is_typed && other.is_typed,
            string: self.string.max(other.string),
            array: self.array.max(other.array),
            object: self.object.max(other.object),
        }
    }
}

struct Vetting<'a> {
    document: &'a Value,
    /// Places met, each as the sorted ids of the schemas that it starts from.
    seen: HashSet<Vec<usize>>,
    waiting: VecDeque<Vec<Node<'a>>>,
    steps: usize,
    depth: usize,
    findings: Vec<Finding>,
}

impl<'a> Vetting<'a> {
    fn check_root(&mut self) {
        let root = Node::root(self.document);
        if root.get("type").and_then(Value::as_str) != Some("object") {
            self.findings.push(Finding::new(
                "",
                Code::RootNotObject,
                "arguments are always an object, and the schema does not say so",
                "add \"type\": \"object\"",
            ));
        }
        self.meet(vec![root]);
    }

    fn check_places(&mut self) {
        while let Some(place) = self.waiting.pop_front() {
            let pointer = place.first().map_or_else(String::new, |node| node.pointer.clone());
            let facts = self.prove(&[], place);
            if self.steps > MAX_STEPS {
                self.findings.push(Finding::new(
                    "",
                    Code::SchemaTooLarge,
                    format!("its references combine to more than {MAX_STEPS} schemas"),
                    "reference a schema from fewer places",
                ));
                return;
            }
            self.judge(&pointer, facts);
        }
    }

    fn judge(&mut self, pointer: &str, facts: Facts) {
        if !facts.is_typed {
            if !pointer.is_empty() {
                self.findings.push(Finding::new(
                    pointer,
                    Code::UntypedNode,
                    "a place that may hold a value of any type",
                    "add \"type\", \"enum\" or \"const\"",
                ));
            }
            return;
        }
        if facts.string == Extent::Open {
            self.findings.push(Finding::new(
                pointer,
                Code::UnboundedString,
                "a string without maxLength, enum, const or a bounded format",
                "add \"maxLength\": the most characters that make sense here",
            ));
        }
        if facts.array == Extent::Open {
            self.findings.push(Finding::new(
                pointer,
                Code::UnboundedArray,
                "an array without maxItems, or without a schema for every item",
                "add \"maxItems\" and \"items\"",
            ));
        }
        if facts.object == Extent::Open {
            self.findings.push(Finding::new(
                pointer,
                Code::OpenObject,
                "an object that may hold members that nobody declared",
                "add \"additionalProperties\": false",
            ));
        }
    }

    /// What may stand where all of `context` and all of `further` must hold.
    /// Finds the places below that `further` declares.
    fn prove(&mut self, context: &[Node<'a>], further: Vec<Node<'a>>) -> Facts {
        let known: HashSet<usize> = context.iter().map(Node::id).collect();
        let further = self.conjuncts(further, known);
        let all: Vec<Node<'a>> = further.iter().chain(context).cloned().collect();
        self.steps += all.len();
        let mut facts = facts_of(&all);
        if further.is_empty() || self.steps > MAX_STEPS {
            return facts;
        }
        if self.depth == MAX_BRANCHES {
            // Too deep to go on: counted as too large.
            self.steps = MAX_STEPS + 1;
            return facts;
        }
        self.depth += 1;
        if !all.iter().any(is_enumerated) {
            self.meet_properties(&further, &all);
            self.meet_items(&further, &all);
        }
        for node in &further {
            for keyword in ["anyOf", "oneOf"] {
                let branches = node.list(keyword);
                if !branches.is_empty() {
                    let possible = branches
                        .into_iter()
                        .map(|branch| self.prove(&all, vec![branch]))
                        .fold(Facts::NOTHING, Facts::either);
                    facts = facts.both(possible);
                }
            }
            for condition in conditions(node) {
                // Only for the places below: a condition proves nothing here.
                self.prove(&all, vec![condition]);
            }
        }
        self.depth -= 1;
        facts
    }

    /// The schemas themselves with everything that must hold beside them.
    fn conjuncts(&self, start: Vec<Node<'a>>, mut known: HashSet<usize>) -> Vec<Node<'a>> {
        let mut waiting: VecDeque<Node<'a>> = start.into();
        let mut conjuncts = Vec::new();
        while let Some(node) = waiting.pop_front() {
            if known.insert(node.id()) {
                waiting.extend(node.list("allOf"));
                match node.reference(self.document) {
                    Some(target) => waiting.push_back(target),
                    // Refused as such; here it must not look like a place for anything.
                    None if node.get("$ref").is_some() => {
                        conjuncts.push(Node { schema: &REFUSED, pointer: node.pointer.clone() });
                    }
                    None => {}
                }
                conjuncts.push(node);
            }
        }
        conjuncts
    }

    fn meet_properties(&mut self, further: &[Node<'a>], all: &[Node<'a>]) {
        for declaring in further {
            for (name, first) in declaring.map("properties") {
                let others = all.iter().filter_map(|node| node.named("properties", name));
                self.meet(std::iter::once(first).chain(others).collect());
            }
        }
    }

    fn meet_items(&mut self, further: &[Node<'a>], all: &[Node<'a>]) {
        let declares =
            |node: &Node<'_>| node.get("items").is_some() || node.get("prefixItems").is_some();
        if !further.iter().any(declares) {
            return;
        }
        let prefixes: Vec<_> = all.iter().map(|node| (node, node.list("prefixItems"))).collect();
        for index in 0..=longest_prefix(all) {
            let at = |(node, prefix): &(&Node<'a>, Vec<Node<'a>>)| match prefix.get(index) {
                Some(item) => Some(item.clone()),
                None => node.one("items"),
            };
            // The last round has left every prefix behind: all other items.
            self.meet(prefixes.iter().filter_map(at).collect());
        }
    }

    fn meet(&mut self, place: Vec<Node<'a>>) {
        let mut ids: Vec<usize> = place.iter().map(Node::id).collect();
        ids.sort_unstable();
        ids.dedup();
        if !place.is_empty() && self.seen.insert(ids) {
            self.waiting.push_back(place);
        }
    }
}

/// What may stand where all of these hold, branches left aside.
fn facts_of(all: &[Node<'_>]) -> Facts {
    let is_enumerated = all.iter().any(is_enumerated);
    let extent = |name: &str, is_bounded: bool| {
        if !all.iter().all(|node| allows(node, name)) {
            Extent::Refused
        } else if is_enumerated || is_bounded {
            Extent::Bounded
        } else {
            Extent::Open
        }
    };
    Facts {
        is_typed: all.iter().any(is_typed),
        string: extent("string", all.iter().any(bounds_strings)),
        array: extent("array", all.iter().any(|node| limit(node).is_some()) && covers_items(all)),
        object: extent("object", all.iter().any(is_closed)),
    }
}

fn is_enumerated(node: &Node<'_>) -> bool {
    node.get("enum").is_some_and(Value::is_array) || node.get("const").is_some()
}

fn is_typed(node: &Node<'_>) -> bool {
    *node.schema == Value::Bool(false) || node.get("type").is_some() || is_enumerated(node)
}

/// Whether the schema by itself lets values of a type through.
fn allows(node: &Node<'_>, name: &str) -> bool {
    let is_named = |types: &Value| match types {
        Value::String(one) => one == name,
        Value::Array(several) => several.iter().any(|one| one == name),
        _ => true,
    };
    let is_listed = |values: &Value| match values {
        Value::Array(values) => values.iter().any(|value| type_of(value) == name),
        _ => true,
    };
    *node.schema != Value::Bool(false)
        && node.get("type").is_none_or(is_named)
        && node.get("enum").is_none_or(is_listed)
        && node.get("const").is_none_or(|value| type_of(value) == name)
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn bounds_strings(node: &Node<'_>) -> bool {
    node.get("maxLength").is_some_and(is_count)
        || node
            .get("format")
            .and_then(Value::as_str)
            .is_some_and(|format| BOUNDED_FORMATS.contains(&format))
}

fn is_count(value: &Value) -> bool {
    value.as_f64().is_some_and(|count| count >= 0.0 && count.is_finite())
}

fn limit(node: &Node<'_>) -> Option<u64> {
    let limit = node.get("maxItems")?;
    limit.as_u64().or_else(|| is_count(limit).then_some(u64::MAX))
}

/// Whether every item has a schema: beyond the prefixes, or because there is nothing beyond.
fn covers_items(all: &[Node<'_>]) -> bool {
    let most = all.iter().filter_map(limit).min().unwrap_or(u64::MAX);
    all.iter().any(|node| node.get("items").is_some())
        || usize::try_from(most).is_ok_and(|most| most <= longest_prefix(all))
}

fn longest_prefix(all: &[Node<'_>]) -> usize {
    all.iter()
        .filter_map(|node| node.get("prefixItems")?.as_array().map(Vec::len))
        .max()
        .unwrap_or(0)
}

fn is_closed(node: &Node<'_>) -> bool {
    ["additionalProperties", "unevaluatedProperties"]
        .iter()
        .any(|keyword| node.get(keyword) == Some(&Value::Bool(false)))
}

/// Subschemas that may apply to the same value and prove nothing about it.
fn conditions<'a>(node: &Node<'a>) -> Vec<Node<'a>> {
    let single = ["if", "then", "else"].into_iter().filter_map(|keyword| node.one(keyword));
    let dependent = node.map("dependentSchemas").into_iter().map(|(_, schema)| schema);
    single.chain(dependent).collect()
}
