//! Looking at the files from time to time.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::Reloader;
use crate::config::{self, Reads};
use crate::domain::audit::ReloadTrigger;
use crate::ports::Administration as _;

impl Reloader {
    /// Looks at everything that was loaded, for as long as it is polled, and
    /// reloads where it has changed and then stood still for one interval.
    ///
    /// A change is told by content, so that it does not matter how the files are
    /// written or mounted. Files that were tried and have faults are tried again
    /// once they change.
    pub(in crate::app) async fn follow_files(self, every: Duration) {
        let mut interval = tokio::time::interval(every);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = None;
        loop {
            interval.tick().await;
            let changed = self.changed().await;
            if changed.is_some() && changed == seen {
                // What came of it is told in log, metric and status.
                drop(self.reload(ReloadTrigger::Files).await);
                seen = None;
            } else {
                seen = changed;
            }
        }
    }

    /// What the files hold, where it is not what was tried last.
    async fn changed(&self) -> Option<Reads> {
        let tried = self.inner.turn.lock().await.source.reads.clone();
        let file = self.inner.told.file.clone();
        let look = move || (!tried.still_hold()).then(|| config::load_recorded(&file).1);
        tokio::task::spawn_blocking(look).await.ok().flatten()
    }
}
