//! How large a value that fits a schema can become.

use serde_json::Value;

use super::node::Node;

/// Canonical bytes of a number, a Boolean or null at most, with a frame.
const SCALAR: u64 = 64;
/// Length prefix and tags of one string, item or member at most.
const FRAME: u64 = 24;
/// Deeper values do not parse.
const MAX_LEVELS: usize = 32;
/// The most schemas looked at.
const MAX_STEPS: usize = 20_000;
/// The most schemas within schemas, which bounds the stack.
const MAX_DEPTH: usize = 200;
/// Characters of a format that bounds its values.
const LONGEST_FORMAT: u64 = 253;

/// An upper bound of the canonical bytes, in a schema that has been vetted.
/// `None` if none was found: recursion may reach any depth, or the schema is large.
pub(super) fn max_canonical_bytes(document: &Value) -> Option<u64> {
    let mut sizing = Sizing { document, steps: 0, depth: 0 };
    sizing.place(&Node::root(document), 0).filter(|bytes| *bytes < 1 << 63)
}

struct Sizing<'a> {
    document: &'a Value,
    steps: usize,
    depth: usize,
}

impl<'a> Sizing<'a> {
    /// The bound of what one schema describes, `level` levels below the root.
    fn place(&mut self, node: &Node<'a>, level: usize) -> Option<u64> {
        self.steps += 1;
        if level > MAX_LEVELS || self.steps > MAX_STEPS || self.depth > MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let bound = self.bound(node, level);
        self.depth -= 1;
        bound
    }

    fn bound(&mut self, node: &Node<'a>, level: usize) -> Option<u64> {
        let mut own = if is_silent(node) { None } else { self.local(node, level) };
        let conjuncts = node.list("allOf").into_iter().chain(node.reference(self.document));
        for conjunct in conjuncts {
            own = least(own, self.place(&conjunct, level));
        }
        for keyword in ["anyOf", "oneOf"] {
            let branches = node.list(keyword);
            if !branches.is_empty() {
                let bounds: Option<Vec<u64>> =
                    branches.iter().map(|branch| self.place(branch, level)).collect();
                own = least(own, bounds.and_then(|bounds| bounds.into_iter().max()));
            }
        }
        own
    }

    /// The largest that the types named here can become under the keywords beside them.
    fn local(&mut self, node: &Node<'a>, level: usize) -> Option<u64> {
        if let Some(value) = node.get("const") {
            return Some(value_size(value));
        }
        if let Some(Value::Array(values)) = node.get("enum") {
            return values.iter().map(value_size).max();
        }
        let types = match node.get("type") {
            Some(Value::Array(types)) => types.iter().filter_map(Value::as_str).collect(),
            Some(Value::String(one)) => vec![one.as_str()],
            _ => Vec::new(),
        };
        let mut most = 0;
        for name in types {
            let size = match name {
                "string" => string_size(node),
                "array" => self.array_size(node, level),
                "object" => self.object_size(node, level),
                _ => Some(SCALAR),
            };
            most = most.max(size?);
        }
        Some(most)
    }

    fn array_size(&mut self, node: &Node<'a>, level: usize) -> Option<u64> {
        let count = node.get("maxItems")?.as_u64()?;
        let items = node.one("items").into_iter().chain(node.list("prefixItems"));
        let mut most = 0;
        for item in items.filter(|item| *item.schema != Value::Bool(false)) {
            most = most.max(self.place(&item, level + 1)?);
        }
        Some(most.saturating_add(FRAME).saturating_mul(count).saturating_add(FRAME))
    }

    fn object_size(&mut self, node: &Node<'a>, level: usize) -> Option<u64> {
        let mut sum = FRAME;
        let possible = node.map("properties").into_iter();
        for (name, member) in possible.filter(|(_, m)| *m.schema != Value::Bool(false)) {
            let name = u64::try_from(name.len()).unwrap_or(u64::MAX);
            let member = self.place(&member, level + 1)?;
            sum = sum.saturating_add(name).saturating_add(member).saturating_add(2 * FRAME);
        }
        // Members may also be declared by a schema beside this one.
        (node.get("additionalProperties") == Some(&Value::Bool(false))).then_some(sum)
    }
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Whether the schema leaves every bound to others.
fn is_silent(node: &Node<'_>) -> bool {
    ["type", "enum", "const"].iter().all(|keyword| node.get(keyword).is_none())
}

fn value_size(value: &Value) -> u64 {
    // Canonical form adds at most a frame to each byte of the text's tokens.
    u64::try_from(value.to_string().len()).unwrap_or(u64::MAX).saturating_mul(FRAME)
}

fn string_size(node: &Node<'_>) -> Option<u64> {
    let characters = match node.get("maxLength") {
        Some(length) => length.as_u64()?,
        None => node.get("format").map(|_| LONGEST_FORMAT)?,
    };
    Some(characters.saturating_mul(4).saturating_add(FRAME))
}
