//! Whether a ledger and the journal beside it have seen the same life (semantics, section 6).
//!
//! A ledger that was restored alone has forgotten what was spent since. No clock
//! tells: so every start counts the ledger up, first in the ledger and then in
//! the journal. The two are equal, or the ledger is one ahead after a start that
//! died between the two writes; a ledger that is behind is older than the journal.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// How far the journal's clock may be ahead of what a ledger was shown: it is
/// shown the time every 10 s, and a disk takes its own.
const UNSEEN: SignedDuration = SignedDuration::from_secs(30);

/// A ledger at one of its starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// Which ledger.
    pub ledger_id: Arc<str>,
    /// How often a gate has started on it, under this id and earlier ones.
    pub number: u64,
}

/// A ledger as a start finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerFound {
    /// Its last start.
    pub generation: Generation,
    /// Whether other gates start on it as well, each with a journal of its own.
    pub is_shared: bool,
    /// Whether an operator has given it a new identity.
    pub renewed: Renewed,
    /// The latest time that it was shown. Not its high-water mark: that stands
    /// still behind a clock that has stepped ahead, while calls go on.
    pub seen: Option<Timestamp>,
}

/// When an operator last gave a ledger a new identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// Never, or starts ago.
    Not,
    /// Since the ledger's last start.
    SinceLastStart,
    /// Then.
    At(Timestamp),
}

/// A journal as the same start finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalFound {
    /// The ledger that was beside it at its last start, if one was.
    pub beside: Option<Generation>,
    /// When there last was what a ledger must know of.
    pub newest_recorded: Option<Timestamp>,
}

/// What each of the two witnesses can be believed to know of the last run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Witnesses {
    /// A call that the ledger has no record of was never reserved.
    pub ledger_is_whole: bool,
    /// An attempt that the journal has no event of was never started.
    pub journal_is_whole: bool,
}

/// The ledger has forgotten what the journal tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerOld;

/// Holds a ledger against the journal beside it.
///
/// # Errors
///
/// The ledger is older, or is another one that no operator has renewed while
/// there is what it must know of.
pub fn compare(ledger: &LedgerFound, journal: &JournalFound) -> Result<Witnesses, LedgerOld> {
    let Some(beside) = &journal.beside else {
        return if ledger.was_not_shown(journal.newest_recorded) {
            Err(LedgerOld)
        } else {
            Ok(Witnesses { ledger_is_whole: true, journal_is_whole: false })
        };
    };
    let number = ledger.generation.number;
    if beside.ledger_id == ledger.generation.ledger_id {
        // The second finds a copy that was taken while the gate ran.
        if number < beside.number || ledger.was_not_shown(journal.newest_recorded) {
            return Err(LedgerOld);
        }
        // Where others start as well, the ledger knows which calls are this journal's.
        let journal_is_whole = ledger.is_shared || number <= beside.number.saturating_add(1);
        return Ok(Witnesses { ledger_is_whole: true, journal_is_whole });
    }
    if !ledger.renewed.covers(journal.newest_recorded) {
        return Err(LedgerOld);
    }
    Ok(Witnesses { ledger_is_whole: false, journal_is_whole: false })
}

impl Renewed {
    /// Whether the operator knew of everything that a ledger must know of.
    fn covers(self, newest_recorded: Option<Timestamp>) -> bool {
        match (self, newest_recorded) {
            (_, None) | (Self::SinceLastStart, Some(_)) => true,
            (Self::At(renewed), Some(newest)) => newest <= renewed,
            (Self::Not, Some(_)) => false,
        }
    }
}

impl LedgerFound {
    /// Whether there was what it must know of, long after it was last shown the time.
    fn was_not_shown(&self, newest_recorded: Option<Timestamp>) -> bool {
        match (self.seen, newest_recorded) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(seen), Some(newest)) => newest.duration_since(seen) > UNSEEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEN: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn generation(ledger_id: &str, number: u64) -> Generation {
        Generation { ledger_id: ledger_id.into(), number }
    }

    fn ledger(id: &str, number: u64) -> LedgerFound {
        LedgerFound {
            generation: generation(id, number),
            is_shared: false,
            renewed: Renewed::Not,
            seen: Some(THEN),
        }
    }

    fn journal(beside: Option<Generation>) -> JournalFound {
        JournalFound { beside, newest_recorded: Some(THEN) }
    }

    const WHOLE: Witnesses = Witnesses { ledger_is_whole: true, journal_is_whole: true };

    #[test]
    fn a_ledger_behind_its_journal_is_old_whatever_the_clocks_say() {
        let beside = journal(Some(generation("l", 7)));
        for (number, wanted) in [
            (0, Err(LedgerOld)),
            (6, Err(LedgerOld)),
            (7, Ok(WHOLE)),
            (8, Ok(WHOLE)),
            (9, Ok(Witnesses { journal_is_whole: false, ..WHOLE })),
            (u64::MAX, Ok(Witnesses { journal_is_whole: false, ..WHOLE })),
        ] {
            assert_eq!(compare(&ledger("l", number), &beside), wanted, "{number}");
        }
    }

    #[test]
    fn a_copy_of_the_same_run_is_found_by_the_time_it_was_shown() {
        let at = |second: i64| JournalFound {
            newest_recorded: Some(Timestamp::constant(1_800_000_000 + second, 0)),
            ..journal(Some(generation("l", 7)))
        };
        assert_eq!(compare(&ledger("l", 7), &at(30)), Ok(WHOLE));
        assert_eq!(compare(&ledger("l", 7), &at(31)), Err(LedgerOld));
        let never = LedgerFound { seen: None, ..ledger("l", 7) };
        assert_eq!(compare(&never, &at(0)), Err(LedgerOld));
    }

    #[test]
    fn on_a_shared_ledger_the_starts_of_others_count_as_well() {
        let beside = journal(Some(generation("l", 7)));
        let shared = |number| LedgerFound { is_shared: true, ..ledger("l", number) };
        assert_eq!(compare(&shared(6), &beside), Err(LedgerOld));
        assert_eq!(compare(&shared(7), &beside), Ok(WHOLE));
        assert_eq!(compare(&shared(70), &beside), Ok(WHOLE));
    }

    #[test]
    fn another_ledger_must_be_renewed_where_there_is_what_it_must_know() {
        let beside = journal(Some(generation("l", 7)));
        let apart = Ok(Witnesses { ledger_is_whole: false, journal_is_whole: false });
        assert_eq!(compare(&ledger("other", 9), &beside), Err(LedgerOld));
        for (renewed, wanted) in [
            (Renewed::SinceLastStart, apart),
            (Renewed::At(THEN), apart),
            (Renewed::At(Timestamp::constant(1_799_999_999, 0)), Err(LedgerOld)),
        ] {
            let other = LedgerFound { renewed, ..ledger("other", 1) };
            assert_eq!(compare(&other, &beside), wanted, "{renewed:?}");
        }
        let nothing = JournalFound { newest_recorded: None, ..beside };
        assert_eq!(compare(&ledger("other", 0), &nothing), apart);
    }

    #[test]
    fn beside_a_journal_that_knew_no_ledger_the_ledger_is_whole_and_the_journal_is_not() {
        let alone = JournalFound { beside: None, newest_recorded: None };
        let wanted = Ok(Witnesses { ledger_is_whole: true, journal_is_whole: false });
        assert_eq!(compare(&ledger("l", 3), &alone), wanted);
        let never = LedgerFound { seen: None, ..ledger("l", 0) };
        assert_eq!(compare(&never, &journal(None)), Err(LedgerOld));
    }
}
