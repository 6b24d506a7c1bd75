//! Who still needs records of the journal that retention would delete.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Every reader that retention waits for. Clones share one list.
#[derive(Debug, Clone, Default)]
pub struct Holds(Arc<Mutex<Vec<Held>>>);

/// One reader that retention waits for, until this is dropped.
#[derive(Debug)]
pub struct Hold {
    holds: Holds,
    /// Which of the list: a name may be there twice.
    held: Arc<str>,
}

/// How far one reader has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Whose it is, as logs and readiness name it.
    pub name: Arc<str>,
    /// The newest record that is safe with the reader, and all before it.
    pub taken: u64,
}

impl Holds {
    /// Has retention keep what comes after `taken` for a reader of this name.
    #[must_use = "dropping it releases the records"]
    pub fn hold(&self, name: &str, taken: u64) -> Hold {
        let held: Arc<str> = name.into();
        self.lock().push(Held { name: Arc::clone(&held), taken });
        Hold { holds: self.clone(), held }
    }

    /// The reader that is furthest behind.
    #[must_use]
    pub fn least(&self) -> Option<Held> {
        self.lock().iter().min_by_key(|held| held.taken).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    /// All up to and with this record is safe elsewhere. It never goes back:
    /// a sequence before one that was named already changes nothing.
    pub fn take(&self, sequence: u64) {
        if let Some(held) = self.holds.lock().iter_mut().find(|held| self.is(held)) {
            held.taken = held.taken.max(sequence);
        }
    }

    fn is(&self, held: &Held) -> bool {
        Arc::ptr_eq(&held.name, &self.held)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut all = self.holds.lock();
        all.retain(|held| !self.is(held));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn least(holds: &Holds) -> Option<(String, u64)> {
        holds.least().map(|held| (held.name.to_string(), held.taken))
    }

    #[test]
    fn the_reader_furthest_behind_decides_until_it_is_dropped() {
        let holds = Holds::default();
        assert_eq!(least(&holds), None);
        let slow = holds.hold("slow", 0);
        let fast = holds.hold("fast", 7);
        assert_eq!(least(&holds), Some(("slow".to_owned(), 0)));
        slow.take(9);
        assert_eq!(least(&holds), Some(("fast".to_owned(), 7)));
        drop(fast);
        assert_eq!(least(&holds), Some(("slow".to_owned(), 9)));
        drop(slow);
        assert_eq!(least(&holds), None);
    }

    #[test]
    fn a_hold_never_goes_back() {
        let holds = Holds::default();
        let hold = holds.hold("sink", 5);
        hold.take(3);
        assert_eq!(least(&holds), Some(("sink".to_owned(), 5)));
    }

    #[test]
    fn two_of_one_name_are_two() {
        let holds = Holds::default();
        let (first, second) = (holds.hold("sink", 1), holds.hold("sink", 1));
        first.take(8);
        assert_eq!(least(&holds), Some(("sink".to_owned(), 1)));
        drop(second);
        assert_eq!(least(&holds), Some(("sink".to_owned(), 8)));
    }
}
