//! Lifetime, clocks, ledger and revocation.

use super::*;

fn check_at(scene: &Scene, text: &str, now: Timestamp) -> Option<Check> {
    verify(&scene.keys, text, &TERMS, now, |_| false).err().map(|refused| refused.check())
}

#[test]
fn a_ticket_lives_for_its_lifetime_and_no_longer() {
    let scene = Scene::new();
    let ticket = scene.issue().ticket;
    for (later, check) in [
        (0, None),
        (299, None),
        (300, Some(Check::Expiry)),
        (301, Some(Check::Expiry)),
        (1_000_000, Some(Check::Expiry)),
    ] {
        assert_eq!(check_at(&scene, &ticket, at(NOW + later)), check, "+{later} s");
    }
    // The present is floored: the last second counts to its end.
    let end = Timestamp::new(NOW + 299, 999_999_999).unwrap();
    assert_eq!(check_at(&scene, &ticket, end), None);
}

#[test]
fn a_ticket_from_the_future_is_good_within_the_skew() {
    let scene = Scene::new();
    let ticket = scene.issue().ticket;
    for (earlier, check) in
        [(29, None), (30, None), (31, Some(Check::ConfirmedAt)), (400, Some(Check::ConfirmedAt))]
    {
        assert_eq!(check_at(&scene, &ticket, at(NOW - earlier)), check, "iat at now + {earlier} s");
    }
    // The present is floored here as well: this is the thirty-first second before.
    let before = Timestamp::new(NOW - 31, 999_999_999).unwrap();
    assert_eq!(check_at(&scene, &ticket, before), Some(Check::ConfirmedAt));
}

#[test]
fn a_ticket_is_stamped_with_whole_seconds() {
    let scene = Scene::new();
    for (second, nano, stamped) in
        [(NOW, 999_999_999, NOW), (NOW, 0, NOW), (0, 1, 0), (0, -1, -1), (-1, -1, -2), (-1, 0, -1)]
    {
        let now = Timestamp::new(second, nano).unwrap();
        let issued = issue(&scene.keys, random_id(), &scene.call(), "user-ü", &TERMS, now);
        assert_eq!(issued.claims.confirmed_at, stamped);
        assert_eq!(issued.claims.expires_at, stamped + 300);
    }
}

#[test]
fn another_lifetime_refuses_what_was_issued_under_this_one() {
    let scene = Scene::new();
    let ticket = scene.issue().ticket;
    for seconds in [0, 299, 301, u64::MAX] {
        let terms = Terms { ttl: Duration::from_secs(seconds), ..TERMS };
        let refused = verify(&scene.keys, &ticket, &terms, at(NOW), |_| false).unwrap_err();
        assert_eq!(refused.check(), Check::Lifetime, "{seconds}");
        assert_eq!(refused.reason(), Reason::ConfirmationInvalid);
    }
}

#[test]
fn a_ticket_dies_with_its_ledger() {
    let scene = Scene::new();
    let ticket = scene.issue().ticket;
    for audience in ["", "7d3f0a52-1c7b-4f6e-9f43-0f2f6f0c1a2c", &LEDGER.to_uppercase()] {
        let terms = Terms { audience, ..TERMS };
        let refused = verify(&scene.keys, &ticket, &terms, at(NOW), |_| false).unwrap_err();
        assert_eq!(refused.check(), Check::Ledger);
        assert_eq!(refused.reason(), Reason::ConfirmationOtherLedger);
    }
}

#[test]
fn a_revoked_ticket_is_refused_by_its_id() {
    let scene = Scene::new();
    let issued = scene.issue();
    let is_revoked = |id: &str| {
        assert_eq!(id, &*issued.claims.confirmation_id);
        true
    };
    let refused = verify(&scene.keys, &issued.ticket, &TERMS, at(NOW), is_revoked).unwrap_err();
    assert_eq!(refused.check(), Check::Revocation);
    assert_eq!(refused.reason(), Reason::ConfirmationRevoked);
    assert_eq!(refused.claims(), Some(&issued.claims));
}

/// One ticket with every fault: each is told only when those before it are mended.
#[test]
fn the_checks_are_made_in_their_order() {
    let scene = Scene::new();
    let issued = |now| issue(&scene.keys, random_id(), &scene.call(), "user-ü", &TERMS, at(now));
    let old = issued(NOW - 300).ticket;
    let early = issued(NOW + 31).ticket;
    let other = "another ledger";
    let check = |text: &str, ttl, audience| {
        let terms = Terms { ttl: Duration::from_secs(ttl), audience, ..TERMS };
        verify(&scene.keys, text, &terms, at(NOW), |_| true).unwrap_err().check()
    };
    assert_eq!(check(&old, 301, other), Check::Lifetime);
    assert_eq!(check(&old, 300, other), Check::Expiry);
    assert_eq!(check(&early, 300, other), Check::ConfirmedAt);
    assert_eq!(check(&issued(NOW).ticket, 300, other), Check::Ledger);
    assert_eq!(check(&issued(NOW).ticket, 300, LEDGER), Check::Revocation);
}
