//! What this start has committed, so that a database that lacks some of it is found.
//!
//! A fail-over or a restore loses the newest commits, and with them the use of
//! tickets. Every connection therefore counts its commits in a row of its own,
//! which nobody else waits for; what was acknowledged is remembered here, and
//! looked for on every new connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_postgres::Client;

use super::error::Fault;

/// The commits of one start.
#[derive(Debug, Default)]
pub(super) struct Work(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: i64,
    slots: i32,
    free: Vec<i32>,
    acknowledged: BTreeMap<i32, i64>,
}

/// The row of one connection, given back when that ends.
#[derive(Debug)]
pub(super) struct Slot {
    number: i32,
    work: Arc<Work>,
}

impl Work {
    pub(super) fn slot(self: &Arc<Self>) -> Slot {
        let mut state = self.lock();
        let number = state.free.pop().unwrap_or_else(|| {
            state.slots += 1;
            state.slots
        });
        Slot { number, work: Arc::clone(self) }
    }

    /// Whether a database has everything that was acknowledged until now.
    pub(super) async fn check(&self, client: &Client, epoch: i32) -> Result<(), Fault> {
        let acknowledged = self.lock().acknowledged.clone();
        if acknowledged.is_empty() {
            return Ok(());
        }
        let mut found = BTreeMap::new();
        for row in client.query(DONE, &[&epoch]).await? {
            found.insert(row.try_get::<_, i32>(0)?, row.try_get::<_, i64>(1)?);
        }
        let is_there =
            |(slot, number): (&i32, &i64)| found.get(slot).is_some_and(|it| it >= number);
        if acknowledged.iter().all(is_there) { Ok(()) } else { Err(Fault::WentBack) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    pub(super) const fn number(&self) -> i32 {
        self.number
    }

    /// The number of the next commit.
    pub(super) fn next(&self) -> i64 {
        let mut state = self.work.lock();
        state.last += 1;
        state.last
    }

    pub(super) fn acknowledge(&self, commit: i64) {
        self.work.lock().acknowledged.insert(self.number, commit);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.work.lock().free.push(self.number);
    }
}

const DONE: &str = "SELECT slot, number FROM toolgate.work WHERE epoch = $1";
