//! What is told of a recorded call to somebody who asks for it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::{Ended, Record, State};
use crate::domain::reason::Effect;

/// Whose calls are told of, in the conversation that is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose<'a> {
    /// This user's.
    User(&'a str),
    /// Everybody's.
    Everybody,
}

/// A recorded call, as it is told: digests, identifiers and times, nothing that
/// the audit does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The tool.
    pub tool: Arc<str>,
    /// Whose conversation it is.
    pub user_id: Arc<str>,
    /// The ticket that it spent.
    pub confirmation_id: Option<Uuid>,
    /// When it was reserved last.
    pub reserved_at: Timestamp,
    /// What is known to have changed: of a running write, that nobody knows.
    pub effect: Effect,
    /// The last attempt's number; while it runs, that of its first one since it
    /// was reserved.
    pub attempt: u32,
    /// How it ended; `None` while it runs.
    pub ended: Option<Ended>,
    /// How long it is remembered yet: zero where it may be forgotten at any
    /// moment, `None` while it runs, which has no end.
    pub kept_for: Option<Duration>,
}

impl Record {
    /// What is told of it at `now`; nothing where it is another's, which is then
    /// the same as no record.
    #[must_use]
    pub fn told(&self, whose: Whose<'_>, now: Timestamp) -> Option<Told> {
        match whose {
            Whose::User(user_id) if *self.fingerprint.user_id != *user_id => return None,
            Whose::User(_) | Whose::Everybody => {}
        }
        let (effect, attempt, ended) = match &self.state {
            State::Running if self.reads => (Effect::None, self.started.attempt, None),
            State::Running => (Effect::Unknown, self.started.attempt, None),
            State::Ended(ended) => (ended.effect, self.last_attempt, Some(ended.clone())),
        };
        let left = |until: Timestamp| Duration::try_from(until.duration_since(now));
        Some(Told {
            tool: Arc::clone(&self.fingerprint.tool),
            user_id: Arc::clone(&self.fingerprint.user_id),
            confirmation_id: self.confirmation_id,
            reserved_at: self.reserved_at,
            effect,
            attempt,
            ended,
            kept_for: self.kept_until().map(|until| left(until).unwrap_or_default()),
        })
    }
}
