//! Started events that no completed event has closed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::{Event, EventKind};
use crate::domain::reason::{Effect, Reason};

/// Follows a journal's events and remembers which pairs are open.
///
/// Its memory is that of the open pairs.
#[derive(Debug, Default)]
pub struct OpenPairs {
    seen: u64,
    open: HashMap<PairKey, VecDeque<u64>>,
    started: BTreeMap<u64, Event>,
}

/// What the two events of a pair share, and no two pairs at one time should.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PairKey {
    tenant_id: Arc<str>,
    conversation_id: Arc<str>,
    tool_call_id: Arc<str>,
    request_id: Arc<str>,
    attempt: u32,
}

impl OpenPairs {
    /// Takes the next event of the journal.
    ///
    /// Where a caller used one request id twice at a time, a completed event
    /// closes the older pair, so that the number of open ones stays right.
    pub fn observe(&mut self, event: Event) {
        let key = PairKey::of(&event);
        match event.kind {
            EventKind::Started => {
                self.seen += 1;
                self.open.entry(key).or_default().push_back(self.seen);
                self.started.insert(self.seen, event);
            }
            EventKind::Completed { .. } => self.close(&key),
        }
    }

    /// The started events of the pairs that are open, oldest first.
    #[must_use]
    pub fn into_started(self) -> Vec<Event> {
        self.started.into_values().collect()
    }

    fn close(&mut self, key: &PairKey) {
        let Some(numbers) = self.open.get_mut(key) else { return };
        if let Some(oldest) = numbers.pop_front() {
            self.started.remove(&oldest);
        }
        if numbers.is_empty() {
            self.open.remove(key);
        }
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

/// The completed events of pairs whose process died: `error`/`PROCESS_LOST`.
///
/// The effect is NONE, which is right for reads. How long the attempt ran is not
/// known; the duration is 0, so that no wait for a restart enters a metric.
#[must_use]
pub fn close_lost(open: &[Event], now: Timestamp) -> Vec<Event> {
    let lost = EventKind::Completed {
        reason: Reason::ProcessLost,
        duration_us: 0,
        result_summary: None,
        result_digest: None,
        effect: Effect::None,
    };
    open.iter().map(|started| started.completed(now, lost.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn open(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
        let mut pairs = OpenPairs::default();
        events.into_iter().for_each(|event| pairs.observe(event));
        pairs.into_started()
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
    fn equal_pairs_are_counted() {
        let started = samples::started("a");
        let events = [started.clone(), started.clone(), samples::completed("a")];
        assert_eq!(open(events), [started]);
    }

    #[test]
    fn a_lost_pair_ends_as_an_error_without_effect_or_duration() {
        let started = samples::started("a");
        let now = started.time + jiff::SignedDuration::from_secs(3_600);
        let closed = close_lost(std::slice::from_ref(&started), now);
        let kind = EventKind::Completed {
            reason: Reason::ProcessLost,
            duration_us: 0,
            result_summary: None,
            result_digest: None,
            effect: Effect::None,
        };
        assert_eq!(closed, [Event { kind, time: now, ..started.clone() }]);
        assert_eq!(open([started].into_iter().chain(closed)), []);
    }
}
