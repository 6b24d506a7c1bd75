//! Reading the journal back while it is written.

use std::sync::Arc;

use async_trait::async_trait;

use super::Hold;
use crate::domain::audit::{Entry, Stamp};

/// The journal as its readers see it: only what no crash can take back.
pub trait AuditLog: Send + Sync {
    /// The journal's id.
    fn id(&self) -> &Arc<str>;

    /// The newest readable record; 0 before the first.
    fn head(&self) -> u64;

    /// Reads from this record on; from the oldest kept for 0. Costs nothing
    /// between two steps but the reader itself: no file, buffer or task.
    fn read_from(&self, sequence: u64) -> Box<dyn AuditReader>;

    /// Has retention keep every record after `taken` until [`Hold::take`] says
    /// that it is safe elsewhere, or the hold is dropped. Who holds nothing may
    /// meet a [`Step::Gap`].
    ///
    /// A hold protects from the moment it is made, so those that are known at the
    /// start are made before retention starts. `name` stands in logs and readiness.
    #[must_use = "dropping it releases the records"]
    fn hold(&self, name: &str, taken: u64) -> Hold;
}

/// A place in the journal that moves forward, each record passed exactly once.
#[async_trait]
pub trait AuditReader: Send {
    /// The next step. Waits for a record that is not readable yet. Dropping the
    /// future leaves the place where it was.
    ///
    /// # Errors
    ///
    /// [`Unreadable`]. The place does not move.
    async fn next(&mut self) -> Result<Step, Unreadable>;
}

/// One step of a reader.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The records that follow, in order, at least one; a bounded number.
    Records(Vec<(Entry, Stamp)>),
    /// Records that are no longer kept, from the first to the last of them.
    Gap {
        /// The first.
        first: u64,
        /// The last.
        last: u64,
    },
}

/// A record that is there cannot be read, or the journal was closed. The log has the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;
