//! Started events that no completed event has closed.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::{AdminKind, Entry, Event, EventKind, Head};
use crate::domain::reason::{Effect, Outcome, Reason};

/// Follows a journal's events and remembers which pairs are open.
///
/// Its memory is that of the open pairs.
#[derive(Debug, Clone, Default)]
pub struct OpenPairs {
    watched: HashSet<CallName>,
    ended: Vec<Arc<Event>>,
    newest_recorded: Option<Timestamp>,
    open: HashMap<PairKey, VecDeque<u64>>,
    /// By their sequences.
    started: BTreeMap<u64, OpenPair>,
}

/// A started event that no completed event has closed.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenPair {
    /// The event.
    pub started: Arc<Event>,
    /// Where it is in the journal.
    pub at: Head,
}

/// Names one call: tenant, conversation and `tool_call_id`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallName([Arc<str>; 3]);

/// What the two events of a pair share, and no two pairs at one time should.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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

    /// Goes on after a part of the journal of which only this is still known.
    #[must_use]
    pub fn resume(
        open: impl IntoIterator<Item = OpenPair>,
        newest_recorded: Option<Timestamp>,
        watched: HashSet<CallName>,
    ) -> Self {
        let mut pairs = Self { newest_recorded, ..Self::watching(watched) };
        open.into_iter().for_each(|pair| pairs.begin(pair));
        pairs
    }

    /// Takes the next entry of the journal, which stands at this place.
    ///
    /// Where a caller used one request id twice at a time, a completed event
    /// closes the older pair, so that the number of open ones stays right.
    pub fn observe(&mut self, at: Head, entry: &Entry) {
        let event = match entry {
            Entry::Call(event) => event,
            Entry::Admin(event) => {
                if event.kind == AdminKind::ConfirmationRevoked {
                    self.newest_recorded = self.newest_recorded.max(Some(event.time));
                }
                return;
            }
        };
        match event.kind {
            EventKind::Started => self.begin(OpenPair { started: Arc::clone(event), at }),
            EventKind::Completed { reason, effect, .. } => {
                let started = self.close(&PairKey::of(event));
                if is_told_to_a_ledger(reason)
                    && (event.confirmation.is_some() || effect != Effect::None)
                {
                    // The ledger was shown when it started, not when it ended.
                    let time = started.map_or(event.time, |started| started.time);
                    self.newest_recorded = self.newest_recorded.max(Some(time));
                }
                if !self.watched.is_empty() && self.watched.contains(&CallName::of(event)) {
                    self.ended.push(Arc::clone(event));
                }
            }
        }
    }

    /// The started events of the pairs that are open, oldest first.
    #[must_use]
    pub fn into_started(self) -> Vec<Arc<Event>> {
        self.started.into_values().map(|pair| pair.started).collect()
    }

    /// The pairs that are open, oldest first.
    #[must_use]
    pub fn open(&self) -> impl ExactSizeIterator<Item = &OpenPair> {
        self.started.values()
    }

    /// The oldest open pair's place; `None` where none is open.
    #[must_use]
    pub fn first_open(&self) -> Option<u64> {
        self.started.keys().next().copied()
    }

    /// Watches no call any more.
    pub fn stop_watching(&mut self) {
        self.watched = HashSet::new();
    }

    /// Takes the completed events of the watched calls, oldest first.
    pub fn take_ended(&mut self) -> Vec<Arc<Event>> {
        std::mem::take(&mut self.ended)
    }

    /// When there last was what a ledger must know of: the start of a call that
    /// it recorded, one that still runs included, or a revocation.
    #[must_use]
    pub fn newest_recorded(&self) -> Option<Timestamp> {
        let started = self.started.values().map(|pair| &pair.started);
        let confirmed = started.filter(|event| event.confirmation.is_some());
        self.newest_recorded.max(confirmed.map(|event| event.time).max())
    }

    /// The same of what has ended, for [`OpenPairs::resume`].
    #[must_use]
    pub const fn newest_ended(&self) -> Option<Timestamp> {
        self.newest_recorded
    }

    fn begin(&mut self, pair: OpenPair) {
        let key = PairKey::of(&pair.started);
        self.open.entry(key).or_default().push_back(pair.at.sequence);
        self.started.insert(pair.at.sequence, pair);
    }

    fn close(&mut self, key: &PairKey) -> Option<Arc<Event>> {
        let numbers = self.open.get_mut(key)?;
        let oldest = numbers.pop_front();
        if numbers.is_empty() {
            self.open.remove(key);
        }
        self.started.remove(&oldest?).map(|pair| pair.started)
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
    use super::super::{AdminEvent, Confirmed, Digest, samples};
    use super::*;

    const fn at(sequence: u64) -> Head {
        Head { sequence, mac: Digest([0; 32]) }
    }

    fn open(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
        let mut pairs = OpenPairs::default();
        for (place, event) in (1..).zip(events) {
            pairs.observe(at(place), &samples::entry(event));
        }
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
            pairs.observe(at(1), &samples::entry(event));
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
        let then = |second| Some(Timestamp::constant(second, 0));
        let mut pairs = OpenPairs::default();
        pairs.observe(at(1), &confirmed(samples::started, 10));
        assert_eq!(pairs.newest_recorded(), then(10));
        // However long it ran: that is no time that the ledger was shown.
        pairs.observe(at(2), &confirmed(samples::completed, 600));
        assert_eq!(pairs.newest_recorded(), then(10));
        let Entry::Call(event) = confirmed(samples::started, 20) else { unreachable!() };
        let revoked = Entry::Admin(Arc::new(AdminEvent {
            kind: AdminKind::ConfirmationRevoked,
            time: event.time,
            context: Some(Arc::clone(&event.context)),
            confirmation_id: Some("c".into()),
            policy_digest: event.policy_digest,
            audit_key_id: Arc::clone(&event.audit_key_id),
            trace_id: None,
        }));
        pairs.observe(at(3), &revoked);
        assert_eq!(pairs.newest_recorded(), then(20));
    }

    #[test]
    fn what_is_resumed_goes_on_as_if_all_had_been_seen() {
        let events = ["a", "b", "a", "c"].map(samples::started);
        let mut whole = OpenPairs::default();
        for (place, event) in (1..).zip(events) {
            whole.observe(at(place), &samples::entry(event));
        }
        let known = (whole.open().cloned().collect::<Vec<_>>(), whole.newest_ended());
        let mut resumed = OpenPairs::resume(known.0, known.1, HashSet::new());
        for pairs in [&mut whole, &mut resumed] {
            assert_eq!(pairs.first_open(), Some(1));
            pairs.observe(at(5), &samples::entry(samples::completed("a")));
            assert_eq!(pairs.first_open(), Some(2));
            pairs.observe(at(6), &samples::entry(samples::completed("b")));
            assert_eq!(pairs.first_open(), Some(3));
        }
        assert_eq!(resumed.into_started(), whole.into_started());
    }

    #[test]
    fn equal_pairs_are_counted() {
        let started = samples::started("a");
        let events = [started.clone(), started.clone(), samples::completed("a")];
        assert_eq!(open(events), [started]);
    }
}
