//! Objects whose members are sorted and unique, whatever order they came in.

use std::collections::BTreeMap;

use super::{JsonFault, Value};

/// The members of an object: sorted by the UTF-8 bytes of their names, each name once.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Object {
    members: Vec<(String, Value)>,
}

/// Iterates over names and values, in the order of the names' bytes.
pub type Members<'a> = std::iter::Map<
    std::slice::Iter<'a, (String, Value)>,
    fn(&'a (String, Value)) -> (&'a str, &'a Value),
>;

impl Object {
    /// Sorts the members by their names.
    ///
    /// Time is linear in the bytes of the names but for a logarithm over
    /// eight-byte integers, however many names begin alike.
    ///
    /// # Errors
    ///
    /// [`JsonFault::DuplicateKey`] if a name comes twice.
    pub fn from_members(members: Vec<(String, Value)>) -> Result<Self, JsonFault> {
        if members.is_sorted_by(|(a, _), (b, _)| a < b) {
            return Ok(Self { members });
        }
        let order = order_of_names(&members)?;
        let mut slots: Vec<_> = members.into_iter().map(Some).collect();
        let members = order.into_iter().filter_map(|place| slots[place.index].take()).collect();
        Ok(Self { members })
    }

    /// The value of this member.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        let found = self.members.binary_search_by(|(member, _)| member.as_str().cmp(name));
        found.ok().map(|index| &self.members[index].1)
    }

    /// Whether there is a member of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Names and values, in the order of the names' bytes.
    pub fn iter(&self) -> Members<'_> {
        self.members.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// How many members there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Replaces every value. Names, and so their order, stay.
    #[must_use]
    pub(super) fn map_values(mut self, mut change: impl FnMut(Value) -> Value) -> Self {
        for (_, value) in &mut self.members {
            let taken = std::mem::replace(value, Value::Null);
            *value = change(taken);
        }
        self
    }
}

/// An object of these members, in any order. The names are the program's own.
///
/// # Panics
///
/// If a name comes twice.
#[must_use]
pub fn object<const N: usize>(members: [(&'static str, Value); N]) -> Value {
    let members = members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    match Object::from_members(members) {
        Ok(object) => Value::Object(object),
        Err(_) => unreachable!("the names are distinct literals"),
    }
}

impl From<BTreeMap<String, Value>> for Object {
    fn from(members: BTreeMap<String, Value>) -> Self {
        // Strings are ordered by their bytes, and a map holds a name once.
        Self { members: members.into_iter().collect() }
    }
}

impl<'a> IntoIterator for &'a Object {
    type Item = (&'a str, &'a Value);
    type IntoIter = Members<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Object {
    type Item = (String, Value);
    type IntoIter = std::vec::IntoIter<(String, Value)>;

    fn into_iter(self) -> Self::IntoIter {
        self.members.into_iter()
    }
}

/// A member on its way to its place.
#[derive(Clone, Copy)]
struct Place {
    /// Seven bytes of the name, and how many bytes follow the part already compared.
    piece: u64,
    /// Where the member came.
    index: usize,
}

/// Bytes of a name that one [`Place::piece`] holds.
const PIECE: usize = 7;

/// The places of the members in the order of their names.
///
/// Comparing whole names would read long common beginnings again and again.
/// So members are sorted by seven bytes, and those that are equal so far by the
/// next seven: a byte of a name is loaded once.
fn order_of_names(members: &[(String, Value)]) -> Result<Vec<Place>, JsonFault> {
    let mut order: Vec<_> = (0..members.len()).map(|index| Place { piece: 0, index }).collect();
    let mut undecided = vec![(0..order.len(), 0)];
    while let Some((range, start)) = undecided.pop() {
        let group = &mut order[range.clone()];
        for place in &mut *group {
            place.piece = piece(members[place.index].0.as_bytes(), start);
        }
        group.sort_unstable_by_key(|place| place.piece);
        let mut first = range.start;
        for alike in group.chunk_by(|a, b| a.piece == b.piece) {
            let next = first + alike.len();
            if alike.len() > 1 {
                if alike[0].piece & 0xff <= PIECE as u64 {
                    return Err(JsonFault::DuplicateKey);
                }
                undecided.push((first..next, start + PIECE));
            }
            first = next;
        }
    }
    Ok(order)
}

/// The bytes of the name from `start`, so that integers compare as names do.
///
/// The lowest byte holds how many bytes there are, 8 for more than a piece: a
/// name that ends comes before one that goes on, even with U+0000.
fn piece(name: &[u8], start: usize) -> u64 {
    let rest = name.get(start..).unwrap_or_default();
    let mut bytes = [0; 8];
    let held = rest.len().min(PIECE);
    bytes[..held].copy_from_slice(&rest[..held]);
    bytes[PIECE] = if rest.len() > PIECE { 8 } else { held.to_le_bytes()[0] };
    u64::from_be_bytes(bytes)
}
