//! What the ledger has recorded of a call.

use super::Gate;
use crate::domain::proposal::Context;
use crate::domain::record::{CallKey, Told, Whose};
use crate::domain::refused::Refused;

impl Gate {
    /// What is recorded of a call, for who may hear of it. It stands until the
    /// call changes, which it may do before this is read. Answered while the gate
    /// drains: it is what clients ask that were cut off.
    ///
    /// # Errors
    ///
    /// [`Refused::CallNotRecorded`] alike where there is no record and where it is
    /// of somebody else; [`Refused::LedgerUnavailable`] where nobody knows.
    pub async fn recorded_call(
        &self,
        context: &Context,
        tool_call_id: &str,
        whose: Whose<'_>,
    ) -> Result<Told, Refused> {
        // Without a ledger nothing was ever run that needs a record.
        let recorder = self.recorder.as_ref().ok_or(Refused::CallNotRecorded)?;
        let record = recorder.record(CallKey::new(context, tool_call_id)).await?;
        let told = record.and_then(|record| record.told(whose, self.ports.clock.now()));
        told.ok_or(Refused::CallNotRecorded)
    }
}
