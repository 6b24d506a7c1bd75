//! The places of a schema document: where each keyword's subschemas stand.

use std::fmt::Write;

use serde_json::{Map, Value};

/// A schema and where it stands in its document.
#[derive(Debug, Clone)]
pub(super) struct Node<'a> {
    pub(super) schema: &'a Value,
    /// JSON Pointer from the document's root.
    pub(super) pointer: String,
}

/// How a keyword's subschemas relate to the instance that the schema describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Applies {
    /// To the same instance.
    InPlace,
    /// To a member, an item or a name.
    Inside,
    /// Not by itself: `$defs`.
    Never,
}

/// How many subschemas a keyword holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    One,
    List,
    Map,
}

/// Every keyword of Draft 2020-12 that holds subschemas.
pub(super) const APPLICATORS: [(&str, Holds, Applies); 18] = [
    ("$defs", Holds::Map, Applies::Never),
    ("additionalProperties", Holds::One, Applies::Inside),
    ("allOf", Holds::List, Applies::InPlace),
    ("anyOf", Holds::List, Applies::InPlace),
    ("contains", Holds::One, Applies::Inside),
    ("dependentSchemas", Holds::Map, Applies::InPlace),
    ("else", Holds::One, Applies::InPlace),
    ("if", Holds::One, Applies::InPlace),
    ("items", Holds::One, Applies::Inside),
    ("not", Holds::One, Applies::InPlace),
    ("oneOf", Holds::List, Applies::InPlace),
    ("patternProperties", Holds::Map, Applies::Inside),
    ("prefixItems", Holds::List, Applies::Inside),
    ("properties", Holds::Map, Applies::Inside),
    ("propertyNames", Holds::One, Applies::Inside),
    ("then", Holds::One, Applies::InPlace),
    ("unevaluatedItems", Holds::One, Applies::Inside),
    ("unevaluatedProperties", Holds::One, Applies::Inside),
];

impl<'a> Node<'a> {
    pub(super) fn root(document: &'a Value) -> Self {
        Self { schema: document, pointer: String::new() }
    }

    /// The same for two nodes only if they are one place of one document.
    pub(super) fn id(&self) -> usize {
        std::ptr::from_ref(self.schema).addr()
    }

    pub(super) fn keywords(&self) -> Option<&'a Map<String, Value>> {
        self.schema.as_object()
    }

    pub(super) fn get(&self, keyword: &str) -> Option<&'a Value> {
        self.schema.as_object()?.get(keyword)
    }

    /// The subschema of a keyword that holds one.
    pub(super) fn one(&self, keyword: &str) -> Option<Self> {
        let schema = self.get(keyword)?;
        Some(Self { schema, pointer: join(&self.pointer, [keyword]) })
    }

    /// The subschemas of a keyword that holds a list.
    pub(super) fn list(&self, keyword: &str) -> Vec<Self> {
        let Some(Value::Array(schemas)) = self.get(keyword) else { return Vec::new() };
        let at = |(index, schema): (usize, &'a Value)| Self {
            schema,
            pointer: join(&self.pointer, [keyword, &index.to_string()]),
        };
        schemas.iter().enumerate().map(at).collect()
    }

    /// The names and subschemas of a keyword that holds a map.
    pub(super) fn map(&self, keyword: &str) -> Vec<(&'a str, Self)> {
        let Some(Value::Object(schemas)) = self.get(keyword) else { return Vec::new() };
        let at = |(name, schema): (&'a String, &'a Value)| {
            let pointer = join(&self.pointer, [keyword, name]);
            (name.as_str(), Self { schema, pointer })
        };
        schemas.iter().map(at).collect()
    }

    /// The subschema of one name in a keyword that holds a map.
    pub(super) fn named(&self, keyword: &str, name: &str) -> Option<Self> {
        let schema = self.get(keyword)?.as_object()?.get(name)?;
        Some(Self { schema, pointer: join(&self.pointer, [keyword, name]) })
    }

    /// All subschemas that stand directly in this one.
    pub(super) fn subschemas(&self) -> Vec<(Applies, Self)> {
        let Some(keywords) = self.keywords() else { return Vec::new() };
        let held = |(keyword, holds, applies): (&str, Holds, Applies)| {
            let nodes = match holds {
                Holds::One => self.one(keyword).into_iter().collect(),
                Holds::List => self.list(keyword),
                Holds::Map => self.map(keyword).into_iter().map(|(_, node)| node).collect(),
            };
            nodes.into_iter().map(move |node| (applies, node)).collect::<Vec<_>>()
        };
        APPLICATORS
            .into_iter()
            .filter(|(keyword, ..)| keywords.contains_key(*keyword))
            .flat_map(held)
            .collect()
    }

    /// Where `$ref` leads, if this schema has one that leads somewhere.
    pub(super) fn reference(&self, document: &'a Value) -> Option<Self> {
        resolve(document, self.get("$ref")?.as_str()?)
    }
}

/// The schema that a reference within one document names.
pub(super) fn resolve<'a>(document: &'a Value, reference: &str) -> Option<Node<'a>> {
    let pointer = percent_decode(reference.strip_prefix('#')?)?;
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return None;
    }
    let schema = document.pointer(&pointer)?;
    (schema.is_object() || schema.is_boolean()).then_some(Node { schema, pointer })
}

/// A JSON Pointer with further tokens, escaped.
#[must_use]
pub fn join<'t>(pointer: &str, tokens: impl IntoIterator<Item = &'t str>) -> String {
    let mut joined = pointer.to_owned();
    for token in tokens {
        joined.push('/');
        for c in token.chars() {
            match c {
                '~' => joined.push_str("~0"),
                '/' => joined.push_str("~1"),
                c => joined.push(c),
            }
        }
    }
    joined
}

/// The tokens of a JSON Pointer, unescaped.
pub fn tokens(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"))
}

/// A URI fragment's text. `None` if an escape is broken or the text is not UTF-8.
#[must_use]
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// A JSON Pointer as a URI fragment.
#[must_use]
pub fn percent_encode(pointer: &str) -> String {
    let mut encoded = String::with_capacity(pointer.len());
    for byte in pointer.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
