//! The declared places of a schema: which pointers into a value may be named.

use serde_json::Value;

use crate::domain::json::Value as Instance;

use super::node::{Applies, Node, join, tokens};

/// The schemas that say something about one value.
#[derive(Clone)]
pub(super) struct Place<'a> {
    document: &'a Value,
    nodes: Vec<Node<'a>>,
}

impl<'a> Place<'a> {
    /// The place of a whole value.
    pub(super) fn root(document: &'a Value) -> Self {
        Self::of(document, vec![Node::root(document)])
    }

    /// The place of a member, if its name is declared.
    pub(super) fn member(&self, name: &str) -> Option<Self> {
        let nodes: Vec<_> =
            self.nodes.iter().filter_map(|node| node.named("properties", name)).collect();
        (!nodes.is_empty()).then(|| Self::of(self.document, nodes))
    }

    /// The place of the items of an array.
    pub(super) fn items(&self) -> Self {
        let below = |node: &Node<'a>| {
            node.one("items").into_iter().chain(node.list("prefixItems")).collect::<Vec<_>>()
        };
        Self::of(self.document, self.nodes.iter().flat_map(below).collect())
    }

    /// The names of all declared members, sorted.
    pub(super) fn names(&self) -> Vec<&'a str> {
        let mut names: Vec<_> = self
            .nodes
            .iter()
            .flat_map(|node| node.map("properties"))
            .map(|(name, _)| name)
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The longest start of a pointer that names declared members and items only.
    ///
    /// A token is taken for an item where the instance has an array; without an
    /// instance, where the place declares items and no such member.
    pub(super) fn declared_start(&self, pointer: &str, instance: Option<&Instance>) -> String {
        let mut place = self.clone();
        let mut instance = instance;
        let mut declared = String::new();
        for token in tokens(pointer) {
            if let Some(member) = place.member(&token) {
                place = member;
            } else if is_index(&token) && instance.is_none_or(is_array) {
                place = place.items();
                if place.nodes.is_empty() {
                    break;
                }
            } else {
                break;
            }
            instance = instance.and_then(|instance| below(instance, &token));
            declared = join(&declared, [token.as_str()]);
        }
        declared
    }

    /// These schemas with everything that may apply to the same value.
    fn of(document: &'a Value, start: Vec<Node<'a>>) -> Self {
        let mut nodes: Vec<Node<'a>> = Vec::new();
        let mut waiting = start;
        while let Some(node) = waiting.pop() {
            if nodes.iter().any(|known| known.id() == node.id()) {
                continue;
            }
            let in_place = node.subschemas().into_iter().filter(|(a, _)| *a == Applies::InPlace);
            waiting.extend(in_place.map(|(_, node)| node));
            waiting.extend(node.reference(document));
            nodes.push(node);
        }
        Self { document, nodes }
    }
}

fn is_array(instance: &Instance) -> bool {
    matches!(instance, Instance::Array(_))
}

fn below<'v>(instance: &'v Instance, token: &str) -> Option<&'v Instance> {
    match instance {
        Instance::Array(items) => items.get(token.parse::<usize>().ok()?),
        instance => instance.get(token),
    }
}

fn is_index(token: &str) -> bool {
    !token.is_empty() && token.len() <= 9 && token.bytes().all(|byte| byte.is_ascii_digit())
}
