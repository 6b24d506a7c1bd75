//! Tools as function-calling data sets write them, closed and bounded into contracts.
//!
//! Their schemas come in many dialects: types called `dict`, `float` or
//! `List[str]`, free-form objects, Boolean `required` inside of properties,
//! keywords of no draft. What the calls at hand send decides where a schema
//! leaves a place open.

use serde_json::{Map, Value, json};

/// Deeper places take scalars only, so that recursive references end.
const MAX_LEVELS: usize = 8;
const SCALARS: [&str; 4] = ["string", "number", "boolean", "null"];

/// A name that a contract may have.
pub(crate) fn name(name: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
    let name: String = name.chars().map(fit).take(128).collect();
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) { name } else { format!("t{name}") }
}

/// A contract for a tool, given what calls of a name send.
pub(crate) fn contract(tool: &Value, samples: impl Fn(&str) -> Vec<Value>) -> Value {
    let function = tool.get("function").unwrap_or(tool);
    let name = name(function["name"].as_str().expect("a tool has a name"));
    let samples = samples(&name);
    let fields = ["parameters", "input_schema", "inputSchema", "arguments"];
    let parameters = fields.iter().find_map(|field| function.get(field)).unwrap_or(&Value::Null);
    let mut root = parameters.as_object().cloned().unwrap_or_default();
    root.insert("type".to_owned(), json!("object"));
    let root = Value::Object(root);
    let schema = Dialect { root: &root }.close(&root, &samples.iter().collect::<Vec<_>>(), 0);
    let description = function["description"].as_str().filter(|text| !text.trim().is_empty());
    json!({
        "apiVersion": "toolgate.dev/v1",
        "kind": "Tool",
        "name": name,
        "description": description.unwrap_or("A tool of a data set."),
        "effect": "read",
        "upstream": "knowledge",
        "arguments_schema": schema,
        "exceptions": [],
    })
}

/// A value whose type the schema does not take, if there is one.
pub(crate) fn misfit(schema: &Value) -> Option<Value> {
    let candidates = [json!({}), json!([]), json!(true), json!(0.5), json!("-"), Value::Null];
    candidates.into_iter().find(|candidate| !takes(schema, candidate))
}

/// The keyword that refuses a misfit.
pub(crate) fn keyword(schema: &Value) -> &'static str {
    let keywords = ["enum", "anyOf"];
    keywords.into_iter().find(|keyword| schema.get(keyword).is_some()).unwrap_or("type")
}

fn takes(schema: &Value, value: &Value) -> bool {
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(value);
    }
    if let Some(branches) = schema["anyOf"].as_array() {
        return branches.iter().any(|branch| takes(branch, value));
    }
    types_of(&schema["type"]).iter().any(|name| is_of(value, name))
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
        }
        name => type_name(value) == name,
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The JSON types that a dialect's `type` means. None for a word that means anything.
fn types_of(written: &Value) -> Vec<&'static str> {
    let mut types: Vec<&'static str> = match written {
        Value::Array(several) => several.iter().flat_map(types_of).collect(),
        Value::String(text) => words(text).into_iter().filter_map(|word| meaning(&word)).collect(),
        _ => Vec::new(),
    };
    types.sort_unstable();
    types.dedup();
    types
}

/// The alternatives of `int | None`, `Union[str, int]`, `string, optional`.
fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let inner = ["union[", "optional["].iter().find_map(|open| {
        text.strip_prefix(open)?.strip_suffix(']').map(|inner| (inner.to_owned(), *open))
    });
    let (text, is_optional) = match inner {
        Some((inner, open)) => (inner, open == "optional["),
        None => (text, false),
    };
    let mut words: Vec<String> = vec![String::new()];
    let mut depth = 0_i32;
    for c in text.chars() {
        match c {
            '[' | '<' | '(' | '{' => depth += 1,
            ']' | '>' | ')' | '}' => depth -= 1,
            '|' | ',' | '/' if depth == 0 => words.push(String::new()),
            c if depth == 0 => words.last_mut().expect("never empty").push(c),
            _ => {}
        }
    }
    if is_optional {
        words.push("null".to_owned());
    }
    words.into_iter().map(|word| word.trim().to_owned()).collect()
}

fn meaning(word: &str) -> Option<&'static str> {
    Some(match word {
        "dict" | "object" | "map" | "hashmap" | "record" | "mapping" | "dictionary" | "struct"
        | "json" => "object",
        "float" | "double" | "decimal" | "number" | "num" | "real" | "numeric" => "number",
        "int" | "integer" | "long" | "short" | "byte" | "bigint" | "int32" | "int64" => "integer",
        "str" | "string" | "text" | "char" | "date" | "datetime" | "time" | "varchar" | "uuid" => {
            "string"
        }
        "bool" | "boolean" => "boolean",
        "list" | "array" | "tuple" | "set" | "sequence" | "arraylist" | "vector" => "array",
        "none" | "null" | "nonetype" | "nil" | "void" | "undefined" => "null",
        _ => return None,
    })
}

struct Dialect<'a> {
    root: &'a Value,
}

impl Dialect<'_> {
    /// A closed and bounded schema that takes the samples.
    fn close(&self, written: &Value, samples: &[&Value], level: usize) -> Value {
        let node = self.flatten(written, 0);
        if let Some(values) = node.get("enum").and_then(Value::as_array)
            && !values.is_empty()
        {
            return enumeration(values, samples);
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(branches) = node.get(keyword).and_then(Value::as_array)
                && level < MAX_LEVELS
            {
                return self.alternatives(branches, samples, level);
            }
        }
        let types = types(&node, samples, level);
        let mut closed = Map::new();
        if let Some(text) = node.get("description").and_then(Value::as_str) {
            closed.insert("description".to_owned(), json!(text));
        }
        let one = if types.len() == 1 { json!(types[0]) } else { json!(types) };
        closed.insert("type".to_owned(), one);
        if types.contains(&"string") {
            closed.insert("maxLength".to_owned(), json!(longest(samples).max(256)));
        }
        if types.contains(&"array") {
            self.close_array(&node, samples, level, &mut closed);
        }
        if types.contains(&"object") {
            self.close_object(&node, samples, level, &mut closed);
        }
        Value::Object(closed)
    }

    /// The members of a schema with those of its references and `allOf`.
    fn flatten(&self, written: &Value, depth: usize) -> Map<String, Value> {
        let mut node = written.as_object().cloned().unwrap_or_default();
        let referenced = node.remove("$ref").and_then(|reference| {
            self.root.pointer(reference.as_str()?.strip_prefix('#')?).cloned()
        });
        let parts = match node.remove("allOf") {
            Some(Value::Array(parts)) => parts,
            _ => Vec::new(),
        };
        for part in referenced.into_iter().chain(parts).filter(|_| depth < MAX_LEVELS) {
            for (keyword, value) in self.flatten(&part, depth + 1) {
                match (node.get_mut(&keyword), value) {
                    (Some(Value::Object(ours)), Value::Object(theirs)) => ours.extend(theirs),
                    (Some(Value::Array(ours)), Value::Array(theirs)) => ours.extend(theirs),
                    (Some(_), _) => {}
                    (None, value) => drop(node.insert(keyword, value)),
                }
            }
        }
        node
    }

    fn alternatives(&self, branches: &[Value], samples: &[&Value], level: usize) -> Value {
        let mut closed: Vec<Value> = branches
            .iter()
            .map(|branch| {
                let types = types_of(&Value::Object(self.flatten(branch, 0))["type"]);
                let fitting: Vec<_> = samples
                    .iter()
                    .copied()
                    .filter(|s| types.is_empty() || types.iter().any(|name| is_of(s, name)))
                    .collect();
                self.close(branch, &fitting, level + 1)
            })
            .collect();
        let left: Vec<_> = samples
            .iter()
            .copied()
            .filter(|sample| !closed.iter().any(|branch| takes(branch, sample)))
            .collect();
        if !left.is_empty() {
            closed.push(self.close(&json!({}), &left, level + 1));
        }
        json!({"anyOf": closed})
    }

    fn close_array(
        &self,
        node: &Map<String, Value>,
        samples: &[&Value],
        level: usize,
        closed: &mut Map<String, Value>,
    ) {
        let arrays: Vec<&Vec<Value>> = samples.iter().filter_map(|s| s.as_array()).collect();
        let items: Vec<&Value> = arrays.iter().copied().flatten().collect();
        let longest = arrays.iter().map(|array| array.len()).max().unwrap_or(0);
        let schema = match node.get("items") {
            Some(Value::Array(several)) => json!({"anyOf": several}),
            Some(one) => one.clone(),
            None => item_type(node),
        };
        closed.insert("maxItems".to_owned(), json!(longest.max(64)));
        closed.insert("items".to_owned(), self.close(&schema, &items, level + 1));
    }

    fn close_object(
        &self,
        node: &Map<String, Value>,
        samples: &[&Value],
        level: usize,
        closed: &mut Map<String, Value>,
    ) {
        let objects: Vec<_> = samples.iter().filter_map(|sample| sample.as_object()).collect();
        let mut declared = properties(node);
        for name in objects.iter().flat_map(|object| object.keys()) {
            // A free-form object is the members that its calls use.
            let free = node.get("additionalProperties").cloned().unwrap_or_default();
            declared.entry(name.clone()).or_insert(free);
        }
        let listed = node.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_required = |name: &str| {
            let is_marked = declared[name]["required"] == json!(true);
            (is_marked || listed.contains(&json!(name)))
                && objects.iter().all(|object| object.contains_key(name))
        };
        let required: Vec<&String> = declared.keys().filter(|name| is_required(name)).collect();
        let close = |(name, schema): (&String, &Value)| {
            let samples: Vec<_> = objects.iter().filter_map(|object| object.get(name)).collect();
            (name.clone(), self.close(schema, &samples, level + 1))
        };
        let properties: Map<String, Value> = declared.iter().map(close).collect();
        closed.insert("required".to_owned(), json!(required));
        closed.insert("properties".to_owned(), Value::Object(properties));
        closed.insert("additionalProperties".to_owned(), json!(false));
    }
}

/// The types of a place: as written, as its other keywords imply, and as sent.
fn types(node: &Map<String, Value>, samples: &[&Value], level: usize) -> Vec<&'static str> {
    let mut types = node.get("type").map(types_of).unwrap_or_default();
    if types.is_empty() && node.get("properties").is_some() {
        types.push("object");
    }
    if types.is_empty() && node.get("items").is_some() {
        types.push("array");
    }
    if node.get("nullable") == Some(&json!(true)) {
        types.push("null");
    }
    if types.is_empty() && samples.is_empty() {
        types.extend(SCALARS);
    }
    for sample in samples {
        if !types.iter().any(|name| is_of(sample, name)) {
            types.push(type_name(sample));
        }
    }
    if level >= MAX_LEVELS && samples.is_empty() {
        types = SCALARS.to_vec();
    }
    types.sort_unstable();
    types.dedup();
    types
}

/// What `List[str]` says about its items.
fn item_type(node: &Map<String, Value>) -> Value {
    let text = node.get("type").and_then(Value::as_str).unwrap_or_default();
    let inner = text.split_once(['[', '<']).and_then(|(_, rest)| rest.strip_suffix([']', '>']));
    inner.map_or_else(|| json!({}), |inner| json!({"type": inner}))
}

/// Properties as a mapping, or as a list of named ones.
fn properties(node: &Map<String, Value>) -> Map<String, Value> {
    match node.get("properties") {
        Some(Value::Object(properties)) => properties.clone(),
        Some(Value::Array(listed)) => listed
            .iter()
            .filter_map(|property| Some((property["name"].as_str()?.to_owned(), property.clone())))
            .collect(),
        _ => Map::new(),
    }
}

fn enumeration(values: &[Value], samples: &[&Value]) -> Value {
    let mut all: Vec<Value> = Vec::new();
    for value in values.iter().chain(samples.iter().copied()) {
        let value = trimmed(value);
        if !all.contains(&value) {
            all.push(value);
        }
    }
    json!({"enum": all})
}

/// Arguments lose outer white space before they are compared.
fn trimmed(value: &Value) -> Value {
    match value {
        Value::String(text) => json!(text.trim()),
        Value::Array(items) => items.iter().map(trimmed).collect(),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| (name.clone(), trimmed(value)));
            Value::Object(members.collect())
        }
        value => value.clone(),
    }
}

fn longest(samples: &[&Value]) -> usize {
    let texts = samples.iter().filter_map(|sample| sample.as_str());
    texts.map(|text| text.chars().count()).max().unwrap_or(0)
}
