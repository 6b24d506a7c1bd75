//! Several keys, new and old.

use super::*;

fn keys(keys: &[&ConfirmationKey]) -> ConfirmationKeys {
    ConfirmationKeys::new(keys.iter().map(|key| (*key).clone()).collect()).unwrap()
}

#[test]
fn a_rotated_key_verifies_until_it_is_removed() {
    let (old, new) = (key("k1", 0x40), key("k2", 0x80));
    let scene = Scene::new();
    let ticket = scene.issue().ticket;
    let accept = |keys: &ConfirmationKeys, text: &str| {
        let verified = verify(keys, text, &TERMS, at(NOW + 100), |_| false)?;
        verified.matches(&scene.call())
    };
    // Rotated while the ticket was under way: its hash is recomputed under its own key.
    let rotated = keys(&[&new, &old]);
    assert_eq!(**accept(&rotated, &ticket).unwrap().key_id(), *"k1");
    let newer = issue(&rotated, random_id(), &scene.call(), "user-ü", &TERMS, at(NOW)).ticket;
    assert_eq!(**accept(&rotated, &newer).unwrap().key_id(), *"k2");
    // Removed: denied at once, with nothing of it told.
    let refused = accept(&keys(&[&new]), &ticket).unwrap_err();
    assert_eq!(refused.check(), Check::Header);
    assert_eq!(refused.reason(), Reason::ConfirmationInvalid);
    assert!(refused.claims().is_none());
    assert!(accept(&keys(&[&new]), &newer).is_ok());
}

#[test]
fn an_id_with_another_key_behind_it_signs_nothing() {
    let scene = Scene::new();
    let impostor = keys(&[&key("k1", 0x80)]);
    let ticket = issue(&impostor, random_id(), &scene.call(), "user-ü", &TERMS, at(NOW)).ticket;
    assert_eq!(scene.refusal(&ticket), Some(Check::Mac));
}

#[test]
fn arguments_are_hashed_under_every_key_the_signing_one_first() {
    let (old, new) = (key("k1", 0x40), key("k2", 0x80));
    let arguments = object([("question", "?".into())]);
    let hashes = keys(&[&new, &old]).arguments_hashes(&arguments);
    let expected = [&new, &old].map(|key| ArgumentsHash {
        key_id: Arc::clone(key.id()),
        hash: key.arguments_hash(&arguments),
    });
    assert_eq!(hashes, expected);
    assert_ne!(hashes[0].hash, hashes[1].hash);
}

#[test]
fn keys_have_ids_that_differ_and_there_is_one() {
    let fault = |ids: &[&str]| {
        ConfirmationKeys::new(ids.iter().map(|id| key(id, 0)).collect()).unwrap_err()
    };
    assert_eq!(fault(&[]), KeysFault::Empty);
    assert_eq!(fault(&["a", "b", "a"]), KeysFault::IdTwice("a".into()));
    for id in ["", "-a", "a b", "a\"", "ä", &"k".repeat(65)] {
        let fault = ConfirmationKey::new(id.into(), &[1; 32], &[2; 32]).unwrap_err();
        assert_eq!(fault, KeysFault::BadId(id.into()));
    }
    let keys = keys(&[&key("a", 0), &key("B.2_c-d", 1)]);
    assert_eq!(**keys.current().id(), *"a");
    assert_eq!(keys.get("B.2_c-d").map(|key| &**key.id()), Some("B.2_c-d"));
    assert!(keys.get("b.2_c-d").is_none());
}

#[test]
fn keys_show_their_ids_alone() {
    let key = key("k1", 0x40);
    assert_eq!(format!("{key:?}"), r#"ConfirmationKey { id: "k1", .. }"#);
    assert_eq!(format!("{:?}", keys(&[&key])), r#"["k1"]"#);
    let scene = Scene::new();
    let ticket = scene.issue().ticket;
    let shown = format!("{:?}", scene.verify(&ticket).unwrap());
    assert!(shown.ends_with(r#"key: ConfirmationKey { id: "k1", .. } }"#), "{shown}");
}
