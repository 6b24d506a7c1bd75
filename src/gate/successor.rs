//! Ending the calls of gates that have died, where several share a ledger.

use std::sync::Arc;

use super::held::Held;
use super::pair::append;
use super::{Gate, held};
use crate::domain::audit::Entry;
use crate::domain::record::Record;
use crate::domain::recovery;
use crate::failpoint::failpoint;
use crate::ports::Durability;

impl Gate {
    /// Closes the pair of every call that this gate has taken over, in its own
    /// journal and from the context that the ledger keeps, and settles it. What
    /// fails on the way is tried again the next time: the event may then be there
    /// twice, and is never missing.
    pub(super) async fn end_taken_over(&self, recorder: &Held) {
        for (key, record) in recorder.take_over().await {
            if self.close_for_another(&record).await.is_none() {
                return;
            }
            failpoint!("taken-over-not-settled");
            let (ended, last_attempt) =
                recovery::settle_unwitnessed(&record, self.ports.clock.now());
            let settled =
                held::settlement(ended.reason, ended.effect, ended.at, None, last_attempt);
            recorder.settle(record.reservation_id, key, settled).await;
        }
    }

    async fn close_for_another(&self, record: &Record) -> Option<()> {
        let now = self.ports.clock.now();
        let closed = Arc::new(recovery::close_pair(&record.started, Some(record), now));
        let entries = vec![Entry::Call(Arc::clone(&closed))];
        let appended =
            append(&*self.ports.journal, &self.metrics, entries, Durability::Synced).await;
        appended.ok()?;
        self.in_force().tool_metrics.completed(&closed);
        tracing::warn!(
            tool = &*closed.tool,
            tool_call_id = &*closed.tool_call_id,
            "closed a call that another gate was running when it died"
        );
        Some(())
    }
}
