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
            if stands_still(&mut seen, self.changed().await) {
                // What came of it is told in log, metric and status.
                drop(self.reload(ReloadTrigger::Files).await);
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

/// Whether a change is the one that was seen at the look before: whoever writes
/// several files has finished, as far as anybody can tell.
fn stands_still<T: PartialEq>(seen: &mut Option<T>, changed: Option<T>) -> bool {
    let is_settled = changed.is_some() && *seen == changed;
    *seen = if is_settled { None } else { changed };
    is_settled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_taken_once_it_has_stood_still_for_one_look() {
        let mut seen = None;
        let looks =
            [None, Some(1), Some(2), Some(3), Some(3), None, Some(4), None, Some(4), Some(4)];
        let taken: Vec<bool> =
            looks.into_iter().map(|look| stands_still(&mut seen, look)).collect();
        let places: Vec<_> = (0..looks.len()).filter(|place| taken[*place]).collect();
        assert_eq!(places, [4, 9]);
    }
}
