//! Completed tool calls, by tool and outcome.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundCounter, BoundHistogram, Counter, Histogram};

use crate::domain::audit::{Event, EventKind};
use crate::domain::reason::Outcome;

/// Counts completed calls against the tools of one policy snapshot.
///
/// Series are bound on their first use: 10,000 registered tools show nothing until they are
/// called, and a call takes no lock to find its own.
pub struct ToolMetrics {
    calls: Counter<u64>,
    duration: Histogram<f64>,
    registered: HashMap<Arc<str>, Series>,
    unknown: Series,
}

/// The series of one tool, a cell for each outcome.
type Series = [OnceLock<Bound>; Outcome::ALL.len()];

struct Bound {
    calls: BoundCounter<u64>,
    duration: BoundHistogram<f64>,
}

/// Which tool names have series of their own, over the life of the process.
pub(super) struct ToolRooms {
    capacity: usize,
    taken: Mutex<HashSet<Arc<str>>>,
}

/// Room for at least this many names, however few are registered at the start.
const LEAST_ROOMS: usize = 10_000;

impl ToolMetrics {
    pub(super) fn new(
        calls: Counter<u64>,
        duration: Histogram<f64>,
        registered: impl IntoIterator<Item = Arc<str>>,
    ) -> Self {
        let registered = registered.into_iter().map(|name| (name, Series::default())).collect();
        Self { calls, duration, registered, unknown: Series::default() }
    }

    /// Counts a completed event and observes its recorded duration. A started event counts nothing.
    ///
    /// A tool that the snapshot does not register is [`Event::UNKNOWN_TOOL`], whatever the event
    /// calls it.
    pub fn completed(&self, event: &Event) {
        let EventKind::Completed { reason, duration_us, .. } = event.kind else {
            return;
        };
        let outcome = reason.outcome();
        let (tool, series) = match self.registered.get_key_value(&event.tool) {
            Some((name, series)) => (&**name, series),
            None => (Event::UNKNOWN_TOOL, &self.unknown),
        };
        let bound = series[outcome as usize].get_or_init(|| self.bind(tool, outcome));
        bound.calls.add(1);
        bound.duration.record(Duration::from_micros(duration_us).as_secs_f64());
    }

    /// Counts recorded events as if they completed now, against the tools registered now.
    pub fn replay<'a>(&self, events: impl IntoIterator<Item = &'a Event>) {
        events.into_iter().for_each(|event| self.completed(event));
    }

    fn bind(&self, tool: &str, outcome: Outcome) -> Bound {
        // In the order of their keys, which spares the SDK a second entry for each series.
        let labels =
            [KeyValue::new("outcome", outcome.as_str()), KeyValue::new("tool", tool.to_owned())];
        Bound { calls: self.calls.bind(&labels), duration: self.duration.bind(&labels) }
    }
}

impl fmt::Debug for ToolMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolMetrics")
            .field("registered", &self.registered.len())
            .finish_non_exhaustive()
    }
}

impl ToolRooms {
    pub(super) fn new(registered: usize) -> Self {
        let capacity = registered.saturating_mul(2).max(LEAST_ROOMS);
        Self { capacity, taken: Mutex::default() }
    }

    /// How many series the rooms and the unknown tool need.
    pub(super) const fn series(&self) -> usize {
        self.capacity.saturating_add(1).saturating_mul(Outcome::ALL.len())
    }

    /// The names that have a room, taking free ones for those that are new.
    pub(super) fn admit<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Vec<Arc<str>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut admitted = Vec::new();
        for name in names {
            if let Some(known) = taken.get(name) {
                admitted.push(Arc::clone(known));
            } else if taken.len() < self.capacity {
                let name: Arc<str> = Arc::from(name);
                taken.insert(Arc::clone(&name));
                admitted.push(name);
            }
        }
        admitted
    }
}
