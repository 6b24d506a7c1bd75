#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use super::*;
use crate::domain::audit::samples;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
const TICKET: TicketShown = TicketShown::Verified {
    confirmation_id: Uuid::from_u128(1),
    expires_at: Timestamp::constant(1_800_000_300, 0),
};

/// What stands in the ledger.
#[derive(Debug, Clone, Copy)]
enum Stored {
    Nothing,
    Running,
    Ended(Effect),
}

/// What comes as a ticket, and what is known of it.
#[derive(Debug, Clone, Copy)]
enum Shown {
    NotNeeded,
    Missing,
    Fresh,
    Spent,
    Revoked,
    Forgotten,
    /// Any reason of section 6 that admission found.
    Mismatch,
    Unexpected,
}

fn claim(shown: Shown) -> (Claim, TicketUse) {
    let (ticket, known) = match shown {
        Shown::NotNeeded => (TicketShown::NotNeeded, TicketUse::Unused),
        Shown::Missing => (TicketShown::Missing, TicketUse::Unused),
        Shown::Fresh => (TICKET, TicketUse::Unused),
        Shown::Spent => (TICKET, TicketUse::Spent),
        Shown::Revoked => (TICKET, TicketUse::Revoked),
        Shown::Forgotten => (TICKET, TicketUse::Forgotten),
        Shown::Mismatch => (TicketShown::Refused(Reason::ConfirmationMismatch), TicketUse::Unused),
        Shown::Unexpected => {
            (TicketShown::Refused(Reason::ConfirmationUnexpected), TicketUse::Unused)
        }
    };
    let claim = Claim {
        key: CallKey(Digest([1; 32])),
        hashes: ArgumentsHashes::new(
            ("a2".into(), Digest([2; 32])),
            vec![("a1".into(), Digest([1; 32]))],
        ),
        reads: false,
        handler_deduplicates: false,
        max_attempts: 1,
        kept: Duration::from_hours(24),
        ticket,
        started: Arc::new(samples::started("call-1")),
    };
    (claim, known)
}

fn record(claim: &Claim, stored: Stored) -> Option<Record> {
    let mut record = claim.open(Opening { first_attempt: 1 }, None, Uuid::from_u128(9), NOW);
    match stored {
        Stored::Nothing => return None,
        Stored::Running => {}
        Stored::Ended(effect) => record.state = State::Ended(ended(effect)),
    }
    Some(record)
}

fn ended(effect: Effect) -> Ended {
    Ended { reason: Reason::HandlerFailed, effect, at: NOW, result_digest: Some(Digest([3; 32])) }
}

/// Section 7's table. The answers: of a handler that does not deduplicate, and of
/// one that does; `None` runs the call.
#[test]
fn every_row_of_the_table() {
    use Reason::{
        CallInProgress as Running, CallReplayed as Replayed, ConfirmationConsumed as Consumed,
        ConfirmationExpired as Expired, ConfirmationMismatch as Mismatch,
        ConfirmationRequired as Required, ConfirmationRevoked as Revoked,
        ConfirmationUnexpected as Unexpected,
    };
    let columns = [
        Shown::NotNeeded,
        Shown::Fresh,
        Shown::Missing,
        Shown::Spent,
        Shown::Revoked,
        Shown::Forgotten,
        Shown::Mismatch,
        Shown::Unexpected,
    ];
    let by_ticket = [
        None,
        None,
        Some(Required),
        Some(Consumed),
        Some(Revoked),
        Some(Expired),
        Some(Mismatch),
        Some(Unexpected),
    ];
    let all = |reason| [Some(reason); 8];
    let fresh_only = [
        None,
        None,
        Some(Replayed),
        Some(Replayed),
        Some(Replayed),
        Some(Replayed),
        Some(Replayed),
        Some(Replayed),
    ];
    let rows = [
        (Stored::Nothing, by_ticket, by_ticket),
        (Stored::Running, all(Running), all(Running)),
        (Stored::Ended(Effect::None), by_ticket, by_ticket),
        (Stored::Ended(Effect::Unknown), all(Replayed), fresh_only),
        (Stored::Ended(Effect::Applied), all(Replayed), all(Replayed)),
    ];
    for (stored, plain, deduplicating) in rows {
        for (deduplicates, wanted) in [(false, plain), (true, deduplicating)] {
            for (shown, wanted) in columns.into_iter().zip(wanted) {
                let (mut claim, known) = claim(shown);
                claim.handler_deduplicates = deduplicates;
                let found = decide(record(&claim, stored).as_ref(), &claim, known, NOW);
                let wanted = match wanted {
                    None => {
                        let again = !matches!(stored, Stored::Nothing);
                        Ok(Opening { first_attempt: if again { 2 } else { 1 } })
                    }
                    Some(reason) => Err(Turned {
                        reason,
                        replay: match stored {
                            Stored::Ended(effect) if reason == Replayed => Some(ended(effect)),
                            _ => None,
                        },
                    }),
                };
                assert_eq!(found, wanted, "{stored:?}, {shown:?}, deduplicates: {deduplicates}");
            }
        }
    }
}

#[test]
fn another_fingerprint_conflicts_whatever_else_holds() {
    type Change = fn(&mut Record);
    let changes: [Change; 4] = [
        |record| record.fingerprint.tool = "another".into(),
        |record| record.fingerprint.user_id = "another".into(),
        |record| record.fingerprint.arguments_hash = Digest([7; 32]),
        |record| record.fingerprint.key_id = "gone".into(),
    ];
    let stored = [
        Stored::Running,
        Stored::Ended(Effect::None),
        Stored::Ended(Effect::Unknown),
        Stored::Ended(Effect::Applied),
    ];
    for change in changes {
        for stored in stored {
            for shown in [Shown::Fresh, Shown::Missing, Shown::Spent, Shown::Mismatch] {
                let (claim, known) = claim(shown);
                let mut record = record(&claim, stored).unwrap();
                change(&mut record);
                assert_eq!(
                    decide(Some(&record), &claim, known, NOW),
                    Err(Turned::for_reason(Reason::CallIdConflict)),
                );
            }
        }
    }
}

#[test]
fn a_record_under_an_older_key_is_recognised_by_its_own_hash() {
    let (claim, known) = claim(Shown::Fresh);
    let mut record = record(&claim, Stored::Ended(Effect::Applied)).unwrap();
    record.fingerprint.key_id = "a1".into();
    record.fingerprint.arguments_hash = Digest([1; 32]);
    let reason = |record: &Record| decide(Some(record), &claim, known, NOW).unwrap_err().reason;
    assert_eq!(reason(&record), Reason::CallReplayed);
    // The right hash under the wrong key is no match.
    record.fingerprint.arguments_hash = Digest([2; 32]);
    assert_eq!(reason(&record), Reason::CallIdConflict);
}

#[test]
fn attempts_are_numbered_on_up_to_the_hundredth() {
    let opening = |asked, last, max_attempts| {
        let (mut claim, known) = claim(Shown::Fresh);
        claim.max_attempts = max_attempts;
        Arc::make_mut(&mut claim.started).attempt = asked;
        let mut record = record(&claim, Stored::Ended(Effect::None)).unwrap();
        record.last_attempt = last;
        decide(Some(&record), &claim, known, NOW)
            .map(|opening| opening.first_attempt)
            .map_err(|turned| (turned.reason, turned.replay.is_some()))
    };
    assert_eq!(opening(1, 3, 1), Ok(4));
    assert_eq!(opening(7, 3, 1), Ok(7));
    assert_eq!(opening(4, 3, 1), Ok(4));
    assert_eq!(opening(1, 99, 1), Ok(100));
    assert_eq!(opening(1, 97, 3), Ok(98));
    assert_eq!(opening(1, 98, 3), Err((Reason::CallReplayed, true)));
    assert_eq!(opening(1, 100, 1), Err((Reason::CallReplayed, true)));
}

#[test]
fn expiry_is_judged_in_whole_seconds_and_before_use() {
    for (second, nanosecond, wanted) in [
        (299, 999_999_999, None),
        (300, 0, Some(Reason::ConfirmationExpired)),
        (301, 0, Some(Reason::ConfirmationExpired)),
    ] {
        let now = Timestamp::new(1_800_000_000 + second, nanosecond).unwrap();
        let (fresh, known) = claim(Shown::Fresh);
        assert_eq!(decide(None, &fresh, known, now).err().map(|turned| turned.reason), wanted);
    }
    let late = Timestamp::constant(1_800_000_300, 0);
    for shown in [Shown::Spent, Shown::Revoked] {
        let (claim, known) = claim(shown);
        let reason = decide(None, &claim, known, late).unwrap_err().reason;
        assert_eq!(reason, Reason::ConfirmationExpired);
    }
}

#[test]
fn a_record_says_what_its_claim_said() {
    let (mut claim, _) = claim(Shown::Fresh);
    claim.max_attempts = 3;
    let record = claim.open(Opening { first_attempt: 4 }, None, Uuid::from_u128(9), NOW);
    assert_eq!(record.fingerprint.arguments_hash, Digest([2; 32]));
    assert_eq!(&*record.fingerprint.key_id, "a2");
    assert_eq!(record.confirmation_id, Some(Uuid::from_u128(1)));
    assert_eq!(record.started.attempt, 4, "the event that a successor would close");
    assert_eq!(record.last_attempt, 6, "what the attempts may have reached by then");
    assert_eq!(record.kept_until(), None, "a running record is never forgotten");
}

#[test]
fn a_reopened_record_keeps_what_was_changed_before() {
    let (claim, _) = claim(Shown::Fresh);
    for effect in [Effect::None, Effect::Unknown, Effect::Applied] {
        let before = record(&claim, Stored::Ended(effect));
        let opening = Opening { first_attempt: 2 };
        let again = claim.open(opening, before.as_ref(), Uuid::from_u128(10), NOW);
        assert_eq!(again.effect_before, effect);
    }
}

#[test]
fn the_key_is_of_tenant_conversation_and_call() {
    let context = |tenant: &str, conversation: &str, user: &str| Context {
        request_id: "r".into(),
        user_id: user.into(),
        tenant_id: tenant.into(),
        conversation_id: conversation.into(),
    };
    let key = CallKey::new(&context("t", "c", "u"), "call");
    assert_eq!(key, CallKey::new(&context("t", "c", "another"), "call"));
    assert_ne!(key, CallKey::new(&context("tc", "", "u"), "call"));
    assert_ne!(key, CallKey::new(&context("c", "t", "u"), "call"));
    assert_ne!(key, CallKey::new(&context("t", "c", "u"), "call2"));
}
