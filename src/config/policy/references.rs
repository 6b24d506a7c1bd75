//! One document out of a schema and the files that it references.
//!
//! Every referenced file stands once under `$defs`, named by its path, and every
//! `$ref` is rewritten to lead there. What the model is shown, what is compiled
//! and what is digested is this one document.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::files::{Files, is_json};
use crate::config::document::parse_json;
use crate::config::fault::Fault;
use crate::domain::refusal::{Code, Finding};
use crate::domain::schema::{
    MAX_SCHEMA_BYTES, is_too_deep, join, percent_decode, percent_encode, references,
};

/// The schema files of a directory, each parsed at most once.
pub(super) struct SchemaFiles<'a> {
    files: &'a Files,
    parsed: RefCell<BTreeMap<String, Result<Value, Finding>>>,
}

/// Where a schema starts.
pub(super) struct Start<'a> {
    /// The file that it stands in.
    pub(super) file: &'a str,
    /// How faults name that file.
    pub(super) label: &'a str,
    /// Where it stands in that file.
    pub(super) pointer: String,
    /// The schema, or the path of its file.
    pub(super) value: &'a Value,
}

/// A document with every reference inside it, and where its parts came from.
pub(super) struct Bundle {
    pub(super) document: Value,
    /// Whether every reference leads somewhere. Where not, a schema that
    /// refuses everything stands in, so that the rest can still be checked.
    pub(super) is_whole: bool,
    /// Pointer in the document, then label and pointer of its source; longest first.
    origins: Vec<(String, String, String)>,
}

impl Bundle {
    /// The file and pointer that a pointer in the document came from.
    pub(super) fn origin(&self, pointer: &str) -> (String, String) {
        let within = |(prefix, label, base): &(String, String, String)| {
            let rest = pointer.strip_prefix(prefix.as_str())?;
            (rest.is_empty() || rest.starts_with('/'))
                .then(|| (label.clone(), format!("{base}{rest}")))
        };
        self.origins.iter().find_map(within).unwrap_or_default()
    }
}

impl<'a> SchemaFiles<'a> {
    pub(super) fn new(files: &'a Files) -> Self {
        Self { files, parsed: RefCell::default() }
    }

    /// Gathers a schema with all that it references. `None` if a part of it cannot be had.
    pub(super) fn bundle(&self, start: &Start<'_>, faults: &mut Vec<Fault>) -> Option<Bundle> {
        let root = self.root(start, faults)?;
        let mut gathering = Gathering {
            schemas: self,
            root: &root,
            included: BTreeMap::new(),
            is_whole: true,
            faults,
        };
        let mut document = gathering.rewrite(&root);
        gathering.read_all()?;
        let Gathering { included, is_whole, .. } = gathering;
        let mut origins = vec![(String::new(), root.label.clone(), root.pointer.clone())];
        for (path, part) in included {
            origins.push((join("", ["$defs", &path]), path.clone(), String::new()));
            let Some(defs) = definitions(&mut document) else {
                // Where the schema itself was a bad reference, that was said.
                if is_whole {
                    faults.push(Fault::new(&root.label, no_definitions(&root.pointer)));
                }
                return None;
            };
            defs.insert(path, part.unwrap_or_default());
        }
        // The root is the start of every pointer, so it comes last.
        origins.reverse();
        Some(Bundle { document, is_whole, origins })
    }

    /// The schema itself: what stands in the contract, or the file named there.
    fn root(&self, start: &Start<'_>, faults: &mut Vec<Fault>) -> Option<Part> {
        let here = |finding: Finding| Fault::new(start.label, finding);
        let Value::String(path) = start.value else {
            if is_too_deep(start.value) {
                faults.push(here(too_deep(&start.pointer)));
                return None;
            }
            return Some(Part {
                file: start.file.to_owned(),
                label: start.label.to_owned(),
                pointer: start.pointer.clone(),
                document: start.value.clone(),
            });
        };
        let found = target(start.file, path, &start.pointer).and_then(|path| {
            let is_there = is_json(&path) && self.files.contains_key(&path);
            is_there.then_some(path).ok_or_else(|| no_file(&start.pointer))
        });
        let path = found.map_err(|finding| faults.push(here(finding))).ok()?;
        let document =
            self.parse(&path).map_err(|finding| faults.push(Fault::new(&path, finding))).ok()?;
        Some(Part::file(path, document))
    }

    fn parse(&self, path: &str) -> Result<Value, Finding> {
        let mut parsed = self.parsed.borrow_mut();
        let parse = || {
            let text = self.files.get(path).ok_or_else(|| no_file(""))?;
            let document = parse_json(text).map_err(|error| {
                let mend = "write one JSON document, each name once in an object";
                Finding::new("", Code::NotJson, format!("not strict JSON: {error}"), mend)
            })?;
            if is_too_deep(&document) { Err(too_deep("")) } else { Ok(document) }
        };
        parsed.entry(path.to_owned()).or_insert_with(parse).clone()
    }
}

/// One file's share of a bundle.
struct Part {
    file: String,
    label: String,
    pointer: String,
    document: Value,
}

impl Part {
    fn file(path: String, document: Value) -> Self {
        Self { file: path.clone(), label: path, pointer: String::new(), document }
    }
}

struct Gathering<'a, 'f> {
    schemas: &'a SchemaFiles<'a>,
    root: &'a Part,
    /// Files by path, `None` until they are read.
    included: BTreeMap<String, Option<Value>>,
    is_whole: bool,
    faults: &'f mut Vec<Fault>,
}

impl Gathering<'_, '_> {
    /// Reads the files that are referenced until none is left, or they are too
    /// many to use. `None` if one cannot be read.
    fn read_all(&mut self) -> Option<()> {
        let mut size = 0;
        let mut is_read = true;
        while size <= MAX_SCHEMA_BYTES
            && let Some(path) = self.next()
        {
            let read = match self.schemas.parse(&path) {
                Ok(document) => self.rewrite(&Part::file(path.clone(), document)),
                Err(finding) => {
                    self.faults.push(Fault::new(&path, finding));
                    is_read = false;
                    Value::Null
                }
            };
            size += read.to_string().len();
            self.included.insert(path, Some(read));
        }
        is_read.then_some(())
    }

    fn next(&self) -> Option<String> {
        let waiting = self.included.iter().find(|(_, document)| document.is_none());
        waiting.map(|(path, _)| path.clone())
    }

    /// The document with each `$ref` leading into the bundle.
    fn rewrite(&mut self, part: &Part) -> Value {
        let mut document = part.document.clone();
        for (pointer, reference) in references(&part.document) {
            let place = join(&pointer, ["$ref"]);
            match self.lead(part, &reference, &format!("{}{place}", part.pointer)) {
                Ok(inside) => {
                    if let Some(text) = document.pointer_mut(&place) {
                        *text = Value::String(inside);
                    }
                }
                Err(finding) => {
                    self.faults.push(Fault::new(&part.label, finding));
                    self.is_whole = false;
                    if let Some(schema) = document.pointer_mut(&pointer) {
                        *schema = Value::Bool(false);
                    }
                }
            }
        }
        document
    }

    fn lead(&mut self, part: &Part, reference: &str, at: &str) -> Result<String, Finding> {
        let (file, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let fragment = percent_decode(fragment).ok_or_else(|| dangling(at, reference))?;
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return Err(dangling(at, reference));
        }
        let path = if file.is_empty() { part.file.clone() } else { target(&part.file, file, at)? };
        let is_root = path == self.root.file && (file.is_empty() || self.root.pointer.is_empty());
        if is_root {
            return Ok(format!("#{}", percent_encode(&fragment)));
        }
        self.include(&path, at)?;
        let inside = format!("{}{fragment}", join("", ["$defs", &path]));
        Ok(format!("#{}", percent_encode(&inside)))
    }

    fn include(&mut self, path: &str, at: &str) -> Result<(), Finding> {
        if !is_json(path) || !self.schemas.files.contains_key(path) {
            return Err(no_file(at));
        }
        let taken = self.root.document.pointer(&join("", ["$defs", path])).is_some();
        if taken {
            return Err(Finding::new(
                at,
                Code::SchemaInvalid,
                format!("\"$defs\" already has a member called {path:?}, like the file"),
                "rename the member",
            ));
        }
        self.included.entry(path.to_owned()).or_insert(None);
        Ok(())
    }
}

/// Where the files go that a schema references.
fn definitions(document: &mut Value) -> Option<&mut Map<String, Value>> {
    let keywords = document.as_object_mut()?;
    keywords.entry("$defs").or_insert_with(|| Map::new().into()).as_object_mut()
}

fn no_definitions(at: &str) -> Finding {
    Finding::new(
        at,
        Code::SchemaInvalid,
        "the schema or its \"$defs\" is not an object, and cannot take what it references",
        "make both an object",
    )
}

/// The path, within the policy directory, of a file named in another.
fn target(from: &str, named: &str, at: &str) -> Result<String, Finding> {
    let outside = || {
        Finding::new(
            at,
            Code::ReferenceOutside,
            format!("{named:?} leaves the policy directory"),
            "copy the schema into the policy directory and name it by a relative path",
        )
    };
    let path = percent_decode(named).ok_or_else(outside)?;
    if path.starts_with('/') || path.contains([':', '\\', '\0']) {
        return Err(outside());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop().ok_or_else(outside)?;
            }
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

fn no_file(at: &str) -> Finding {
    Finding::new(
        at,
        Code::ReferenceDangling,
        "the policy directory has no such file",
        "name a .json file by its path relative to the file that names it",
    )
}

fn dangling(at: &str, reference: &str) -> Finding {
    Finding::new(
        at,
        Code::ReferenceDangling,
        format!("there is no schema at {reference:?}"),
        "reference a JSON Pointer that leads to a schema, such as \"#/$defs/name\"",
    )
}

fn too_deep(at: &str) -> Finding {
    Finding::new(
        at,
        Code::SchemaTooDeep,
        "the schema is nested more than 64 levels",
        "move inner parts to \"$defs\" and reference them",
    )
}
