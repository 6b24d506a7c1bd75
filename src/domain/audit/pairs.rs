//! Started events that no completed event has closed.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::{AdminKind, Entry, Event, EventKind};
use crate::domain::reason::{Effect, Outcome, Reason};

/// Follows a journal's events and remembers which pairs are open.
///
/// Its memory is that of the open pairs.
#[derive(Debug, Default)]
pub struct OpenPairs {
    watched: HashSet<CallName>,
    ended: Vec<Arc<Event>>,
    newest_recorded: Option<Timestamp>,
    seen: u64,
    open: HashMap<PairKey, VecDeque<u64>>,
    started: BTreeMap<u64, Arc<Event>>,
}

/// Names one call: tenant, conversation and `tool_call_id`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallName([Arc<str>; 3]);

/// What the two events of a pair share, and no two pairs at one time should.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PairKey {
    tenant_id: Arc<str>,
    conversation_id: Arc<str>,
    tool_call_id: Arc<str>,
    request_id: Arc<str>,
    attempt: u32,
}

impl CallName {
    /// The call of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        Self([
            Arc::clone(&event.context.tenant_id),
            Arc::clone(&event.context.conversation_id),
            Arc::clone(&event.tool_call_id),
        ])
    }
}

impl OpenPairs {
    /// Also keeps the completed events of these calls.
    #[must_use]
    pub fn watching(calls: HashSet<CallName>) -> Self {
        Self { watched: calls, ..Self::default() }
    }

    /// Takes the next entry of the journal.
    ///
    /// Where a caller used one request id twice at a time, a completed event
    /// closes the older pair, so that the number of open ones stays right.
    pub fn observe(&mut self, entry: Entry) {
        let event = match entry {
            Entry::Call(event) => event,
            Entry::Admin(event) => {
                if event.kind == AdminKind::ConfirmationRevoked {
                    self.newest_recorded = self.newest_recorded.max(Some(event.time));
                }
                return;
            }
        };
        let key = PairKey::of(&event);
        match event.kind {
            EventKind::Started => {
                self.seen += 1;
                self.open.entry(key).or_default().push_back(self.seen);
                self.started.insert(self.seen, event);
            }
            EventKind::Completed { reason, effect, .. } => {
                let started = self.close(&key);
                if is_told_to_a_ledger(reason)
                    && (event.confirmation.is_some() || effect != Effect::None)
                {
                    // The ledger was shown when it started, not when it ended.
                    let time = started.map_or(event.time, |started| started.time);
                    self.newest_recorded = self.newest_recorded.max(Some(time));
                }
                if self.watched.contains(&CallName::of(&event)) {
                    self.ended.push(event);
                }
            }
        }
    }

    /// The started events of the pairs that are open, oldest first.
    #[must_use]
    pub fn into_started(self) -> Vec<Arc<Event>> {
        self.started.into_values().collect()
    }

    /// Takes the completed events of the watched calls, oldest first.
    pub fn take_ended(&mut self) -> Vec<Arc<Event>> {
        std::mem::take(&mut self.ended)
    }

    /// When there last was what a ledger must know of: the start of a call that
    /// it recorded, one that still runs included, or a revocation.
    #[must_use]
    pub fn newest_recorded(&self) -> Option<Timestamp> {
        let confirmed = self.started.values().filter(|event| event.confirmation.is_some());
        self.newest_recorded.max(confirmed.map(|event| event.time).max())
    }

    fn close(&mut self, key: &PairKey) -> Option<Arc<Event>> {
        let numbers = self.open.get_mut(key)?;
        let oldest = numbers.pop_front();
        if numbers.is_empty() {
            self.open.remove(key);
        }
        self.started.remove(&oldest?)
    }
}

impl PairKey {
    fn of(event: &Event) -> Self {
        Self {
            tenant_id: Arc::clone(&event.context.tenant_id),
            conversation_id: Arc::clone(&event.context.conversation_id),
            tool_call_id: Arc::clone(&event.tool_call_id),
            request_id: Arc::clone(&event.context.request_id),
            attempt: event.attempt,
        }
    }
}

/// Whether a call that ended so was reserved. A refusal tells what a ledger said,
/// and what failed before a handler was called may not have reached it.
fn is_told_to_a_ledger(reason: Reason) -> bool {
    !matches!(reason.outcome(), Outcome::Denied | Outcome::Validation)
        && !matches!(
            reason,
            Reason::LedgerFailed | Reason::AuditStartedFailed | Reason::AuditConstructionFailed
        )
}

#[cfg(test)]
mod tests {
    use super::super::{AdminEvent, Confirmed, samples};
    use super::*;

    fn open(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
        let mut pairs = OpenPairs::default();
        events.into_iter().for_each(|event| pairs.observe(Entry::Call(Arc::new(event))));
        pairs.into_started().into_iter().map(Arc::unwrap_or_clone).collect()
    }

    #[test]
    fn a_pair_is_open_until_its_own_completed_event() {
        let (a, b) = (samples::started("a"), samples::started("b"));
        assert_eq!(open([a.clone(), b.clone()]), [a.clone(), b.clone()]);
        assert_eq!(open([a.clone(), b.clone(), samples::completed("a")]), std::slice::from_ref(&b));
        assert_eq!(open([a, b, samples::completed("b"), samples::completed("a")]), []);
    }

    #[test]
    fn another_attempt_request_or_tenant_is_another_pair() {
        let started = samples::started("a");
        let mut attempt = samples::completed("a");
        attempt.attempt = 2;
        let change = |change: fn(&mut crate::domain::proposal::Context)| {
            let mut event = samples::completed("a");
            change(Arc::make_mut(&mut event.context));
            event
        };
        let others = [
            attempt,
            change(|context| context.request_id = "other".into()),
            change(|context| context.tenant_id = "other".into()),
            change(|context| context.conversation_id = "other".into()),
        ];
        for other in others {
            assert_eq!(open([started.clone(), other]), std::slice::from_ref(&started));
        }
    }

    #[test]
    fn a_refusal_is_nothing_that_a_ledger_must_know_of() {
        let newest = |reason| {
            let mut event = samples::completed("a");
            if let EventKind::Completed { reason: told, effect, .. } = &mut event.kind {
                (*told, *effect) = (reason, Effect::Applied);
            }
            let mut pairs = OpenPairs::default();
            pairs.observe(samples::entry(event));
            pairs.newest_recorded()
        };
        assert_eq!(newest(Reason::Ok), Some(samples::completed("a").time));
        assert_eq!(newest(Reason::CallReplayed), None);
    }

    #[test]
    fn a_ledger_must_know_of_a_confirmed_call_from_its_start_on() {
        let confirmed = |kind: fn(&str) -> Event, second| {
            let mut event = kind("a");
            event.time = Timestamp::constant(second, 0);
            event.confirmation = Some(Arc::new(Confirmed {
                confirmation_id: "c".into(),
                confirmed_by_user_id: "user-1".into(),
                confirmed_at: Timestamp::UNIX_EPOCH,
                expires_at: Timestamp::UNIX_EPOCH,
                purpose: "search".into(),
            }));
            Entry::Call(Arc::new(event))
        };
        let at = |second| Some(Timestamp::constant(second, 0));
        let mut pairs = OpenPairs::default();
        pairs.observe(confirmed(samples::started, 10));
        assert_eq!(pairs.newest_recorded(), at(10));
        // However long it ran: that is no time that the ledger was shown.
        pairs.observe(confirmed(samples::completed, 600));
        assert_eq!(pairs.newest_recorded(), at(10));
        let Entry::Call(event) = confirmed(samples::started, 20) else { unreachable!() };
        pairs.observe(Entry::Admin(Arc::new(AdminEvent {
            kind: AdminKind::ConfirmationRevoked,
            time: event.time,
            context: Some(Arc::clone(&event.context)),
            confirmation_id: Some("c".into()),
            policy_digest: event.policy_digest,
            audit_key_id: Arc::clone(&event.audit_key_id),
            trace_id: None,
        })));
        assert_eq!(pairs.newest_recorded(), at(20));
    }

    #[test]
    fn equal_pairs_are_counted() {
        let started = samples::started("a");
        let events = [started.clone(), started.clone(), samples::completed("a")];
        assert_eq!(open(events), [started]);
    }
}
