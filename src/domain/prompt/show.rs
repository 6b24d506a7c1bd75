//! Values as a person can read them and nobody can disguise them.

use std::fmt::Write as _;

use unicode_general_category::{GeneralCategory, get_general_category};

use crate::domain::json::{Value, to_json};

/// How many combining marks may sit on one character. Living scripts need fewer;
/// piles of them cover the lines above and below.
const MAX_MARKS: u32 = 8;

/// The text of a value: compact JSON, in which what cannot be seen is escaped.
///
/// Strings stand in quotation marks; a quotation mark and a backslash within have a
/// backslash before them. As `\u{…}`, with the scalar value in hexadecimal
/// digits, stands every character that is invisible, or changes how others are
/// seen: controls, formats (all bidirectional ones among them), separators of
/// lines and paragraphs, spaces other than U+0020 and U+3000, every space right after
/// another, private, unassigned and blank characters, selectors of
/// variations, and marks with nothing to sit on. Characters newer than
/// the tables (Unicode 16) count as unassigned.
///
/// A string with letters or digits of a right-to-left script stands between U+2068 and U+2069
/// within its quotation marks, so that it turns nothing around it: `"א" to "ב"` would be
/// read from the other end. From a value these two come escaped alone.
///
/// Reading the text back gives the value.
#[must_use]
pub fn show(value: &Value) -> String {
    let mut out = String::new();
    write(value, Isolation::RightToLeft, &mut out);
    out
}

/// Which strings are kept from turning what stands around them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolation {
    /// Those of a right-to-left script, in a text that runs from left to right.
    RightToLeft,
    /// Every string, in a text that may run from right to left.
    Every,
}

impl Isolation {
    /// What a text of one's own asks of the values in it.
    pub(super) fn within(text: &str) -> Self {
        if text.chars().any(is_right_to_left) { Self::Every } else { Self::RightToLeft }
    }
}

/// Appends the text of a value. The stack is bounded by the depth of strict JSON.
pub(super) fn write(value: &Value, isolation: Isolation, out: &mut String) {
    match value {
        Value::String(text) => write_text(text, isolation, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                separate(index, out);
                write(item, isolation, out);
            }
            out.push(']');
        }
        Value::Object(object) => {
            out.push('{');
            for (index, (name, member)) in object.iter().enumerate() {
                separate(index, out);
                write_text(name, isolation, out);
                out.push(':');
                write(member, isolation, out);
            }
            out.push('}');
        }
        scalar => out.push_str(&to_json(scalar)),
    }
}

fn separate(index: usize, out: &mut String) {
    if index > 0 {
        out.push(',');
    }
}

fn write_text(text: &str, isolation: Isolation, out: &mut String) {
    let is_isolated = isolation == Isolation::Every || text.chars().any(is_right_to_left);
    out.push('"');
    if is_isolated {
        out.push('\u{2068}');
    }
    let mut before = Before::default();
    for c in text.chars() {
        match before.add(c) {
            Shown::AsIs => out.push(c),
            Shown::AfterBackslash => out.extend(['\\', c]),
            Shown::AsEscape => {
                // Writing to a String does not fail.
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    if is_isolated {
        out.push('\u{2069}');
    }
    out.push('"');
}

enum Shown {
    AsIs,
    AfterBackslash,
    AsEscape,
}

/// What of the characters before decides how the next one is shown.
#[derive(Default)]
struct Before {
    is_space: bool,
    /// How many marks the last character can still carry.
    marks: u32,
}

impl Before {
    fn add(&mut self, c: char) -> Shown {
        let follows_space = std::mem::take(&mut self.is_space);
        let marks = std::mem::take(&mut self.marks);
        match c {
            '"' | '\\' => Shown::AfterBackslash,
            ' ' | '\u{3000}' => {
                self.is_space = true;
                if follows_space { Shown::AsEscape } else { Shown::AsIs }
            }
            '!'..='~' => self.visible(MAX_MARKS),
            _ if is_hidden(c) => Shown::AsEscape,
            _ if !is_mark(c) => self.visible(MAX_MARKS),
            _ if marks > 0 => self.visible(marks - 1),
            _ => Shown::AsEscape,
        }
    }

    fn visible(&mut self, marks: u32) -> Shown {
        self.marks = marks;
        Shown::AsIs
    }
}

/// Shown as it is, and of a block of right-to-left scripts (bidirectional classes R, AL and AN,
/// with what is reserved for them).
fn is_right_to_left(c: char) -> bool {
    let is_of_block = matches!(c,
        '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{feff}'
        | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}');
    is_of_block && !is_hidden(c)
}

fn is_mark(c: char) -> bool {
    use GeneralCategory::{EnclosingMark, NonspacingMark, SpacingMark};
    matches!(get_general_category(c), EnclosingMark | NonspacingMark | SpacingMark)
}

fn is_hidden(c: char) -> bool {
    use GeneralCategory::{
        Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, SpaceSeparator, Surrogate,
        Unassigned,
    };
    is_blank(c)
        || matches!(
            get_general_category(c),
            Control
                | Format
                | LineSeparator
                | ParagraphSeparator
                | PrivateUse
                | SpaceSeparator
                | Surrogate
                | Unassigned
        )
}

/// Letters, marks and symbols that show nothing: fillers, selectors of variations, blanks
/// (`Default_Ignorable_Code_Point` beyond the categories above, and a few that only look empty).
fn is_blank(c: char) -> bool {
    matches!(c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{fffc}'
        | '\u{1d159}' | '\u{e0000}'..='\u{e0fff}')
}
