//! What was done to the first record that does not verify.
//!
//! The chain says only that a line is not the next record. What follows it says
//! more: whether the right record is still there, and whether the line after the
//! wrong one goes on from it. It is judged by what one act leaves; who has changed
//! many places is told of the first.

use std::path::Path;

use serde_json::Value;

use super::disk::Segment;
use super::error::OpenError;
use super::recovery::{Line, Lines};
use super::stop::Stop;
use crate::domain::audit::{Chain, Digest, Head};

/// What was done where the first record does not verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The record is not as it was written.
    Edited,
    /// It and those up to this one are gone.
    Deleted {
        /// The last of them.
        last: u64,
    },
    /// A later record stands in its place, and it follows further on.
    Moved {
        /// The record that stands there.
        found: u64,
    },
    /// A copy of an earlier record stands in its place.
    Repeated {
        /// The record that stands there once more.
        found: u64,
    },
    /// A line that was never written stands before it.
    Inserted,
    /// The file ends within it.
    Torn,
}

/// What the line at fault and those after it tell.
struct Findings {
    /// The sequence that the line claims.
    claims: Option<u64>,
    /// Whether the record that belongs there follows further on.
    follows: bool,
    /// Whether the next line goes on from this one, as if this were the record.
    goes_on: bool,
    torn: bool,
}

/// Says what was done to the record that comes next in the chain, of which this
/// line of this segment is not it.
pub(super) fn diagnose(
    chain: &Chain,
    segments: &[Segment],
    path: &Path,
    line: u64,
    stop: &Stop,
) -> Result<Act, OpenError> {
    let expected = chain.head().sequence + 1;
    let found = look(chain, segments, path, line, stop)?;
    Ok(match (found.claims, found.follows) {
        _ if found.torn => Act::Torn,
        (Some(claims), true) if claims > expected => Act::Moved { found: claims },
        (Some(claims), true) if claims < expected => Act::Repeated { found: claims },
        (_, true) => Act::Inserted,
        (Some(claims), false) if claims > expected && !found.goes_on => {
            Act::Deleted { last: claims - 1 }
        }
        (Some(claims), false) if claims < expected && !found.goes_on => {
            Act::Repeated { found: claims }
        }
        (_, false) => Act::Edited,
    })
}

fn look(
    chain: &Chain,
    segments: &[Segment],
    path: &Path,
    line: u64,
    stop: &Stop,
) -> Result<Findings, OpenError> {
    let mut found = Findings { claims: None, follows: false, goes_on: false, torn: false };
    let mut after: Option<Chain> = None;
    let mut is_next = false;
    for segment in segments.iter().skip_while(|segment| segment.path != path) {
        let mut lines = Lines::open(segment, 0)?;
        loop {
            stop.check()?;
            let number = lines.number + 1;
            let text = match lines.next()? {
                Line::End => break,
                Line::Torn => {
                    found.torn |= segment.path == path && number == line;
                    break;
                }
                Line::Whole(text) => text,
            };
            if segment.path == path && number < line {
                continue;
            }
            if segment.path == path && number == line {
                let (claims, mac) = claims_of(text);
                found.claims = claims;
                let sequence = chain.head().sequence + 1;
                after = mac.map(|mac| resume(chain, Head { sequence, mac }));
                is_next = true;
                continue;
            }
            if std::mem::take(&mut is_next)
                && let Some(after) = &mut after
            {
                found.goes_on = after.verify(text).is_ok();
            }
            if chain.clone().verify(text).is_ok() {
                found.follows = true;
                return Ok(found);
            }
        }
    }
    Ok(found)
}

fn resume(chain: &Chain, head: Head) -> Chain {
    Chain::resume(chain.keys().clone(), std::sync::Arc::clone(chain.journal_id()), head)
}

/// What a line says of itself, if it is JSON at all.
fn claims_of(line: &[u8]) -> (Option<u64>, Option<Digest>) {
    let value: Value = serde_json::from_slice(line).unwrap_or_default();
    let mac = value.get("mac").and_then(Value::as_str).and_then(Digest::from_hex);
    (value.get("sequence").and_then(Value::as_u64), mac)
}
