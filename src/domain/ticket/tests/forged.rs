//! Tickets that the gate did not sign, or not like this.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};

use super::*;

const TYP: &str = "toolgate-confirmation+jwt";

fn encode(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

fn segments(ticket: &str) -> [String; 3] {
    let segments: Vec<String> = ticket.split('.').map(str::to_owned).collect();
    segments.try_into().unwrap()
}

/// A ticket with this header segment and the MAC that the right key makes of it.
fn with_header(scene: &Scene, header: &str) -> String {
    let [_, payload, _] = segments(&scene.issue().ticket);
    let signed = format!("{header}.{payload}");
    let mac = URL_SAFE_NO_PAD.encode(scene.keys.current().sign(&signed).0);
    format!("{signed}.{mac}")
}

#[test]
fn every_byte_of_the_text_changed_alone_is_refused_before_any_claim_is_read() {
    let scene = Scene::new();
    let ticket = scene.issue().ticket;
    for index in 0..ticket.len() {
        for replacement in *b"Aq-_.=+ \x7f" {
            let mut bytes = ticket.clone().into_bytes();
            if bytes[index] == replacement {
                continue;
            }
            bytes[index] = replacement;
            let forged = String::from_utf8(bytes).unwrap();
            let refused = scene.verify(&forged).unwrap_err();
            assert_eq!(refused.reason(), Reason::ConfirmationInvalid, "{index}");
            assert!(refused.check() <= Check::Mac && refused.claims().is_none(), "{index}");
        }
    }
}

#[test]
fn every_decoded_byte_changed_alone_is_refused() {
    let scene = Scene::new();
    let original = segments(&scene.issue().ticket);
    let expected = [Check::Header, Check::Mac, Check::Mac];
    for (segment, check) in expected.into_iter().enumerate() {
        let decoded = URL_SAFE_NO_PAD.decode(&original[segment]).unwrap();
        for index in 0..decoded.len() {
            for bit in 0..8 {
                let mut changed = decoded.clone();
                changed[index] ^= 1 << bit;
                let mut forged = original.clone();
                forged[segment] = URL_SAFE_NO_PAD.encode(changed);
                let refused = scene.verify(&forged.join(".")).unwrap_err();
                assert_eq!(refused.check(), check, "segment {segment}, byte {index}, bit {bit}");
            }
        }
    }
}

#[test]
fn a_header_is_the_one_constant_even_where_the_right_key_signed_another() {
    let scene = Scene::new();
    let right = format!(r#"{{"alg":"HS256","kid":"k1","typ":"{TYP}"}}"#);
    assert_eq!(scene.refusal(&with_header(&scene, &encode(&right))), None);
    for header in [
        format!(r#"{{"alg":"none","kid":"k1","typ":"{TYP}"}}"#),
        format!(r#"{{"alg":"HS512","kid":"k1","typ":"{TYP}"}}"#),
        format!(r#"{{"alg":"RS256","kid":"k1","typ":"{TYP}"}}"#),
        format!(r#"{{"alg":"hs256","kid":"k1","typ":"{TYP}"}}"#),
        format!(r#"{{"kid":"k1","alg":"HS256","typ":"{TYP}"}}"#),
        format!(r#"{{"alg":"HS256","typ":"{TYP}","kid":"k1"}}"#),
        format!(r#"{{"alg":"HS256","kid":"k2","typ":"{TYP}"}}"#),
        format!(r#"{{"alg":"HS256","kid":"","typ":"{TYP}"}}"#),
        format!(r#"{{"alg":"HS256","typ":"{TYP}"}}"#),
        format!(r#"{{"alg":"HS256","kid":"\u006b1","typ":"{TYP}"}}"#),
        format!(r#"{{"alg":"HS256","kid":"k1","typ":"{TYP}","crit":[]}}"#),
        format!(r#"{{"alg":"HS256","alg":"HS256","kid":"k1","typ":"{TYP}"}}"#),
        format!(r#"{{"alg": "HS256","kid":"k1","typ":"{TYP}"}}"#),
        format!("{right} "),
        r#"{"alg":"HS256","kid":"k1","typ":"JWT"}"#.to_owned(),
        r#"{"alg":"HS256","kid":"k1"}"#.to_owned(),
        "{}".to_owned(),
    ] {
        let forged = with_header(&scene, &encode(&header));
        assert_eq!(scene.refusal(&forged), Some(Check::Header), "{header}");
    }
}

#[test]
fn a_ticket_without_a_signature_is_refused() {
    let scene = Scene::new();
    let [header, payload, _] = segments(&scene.issue().ticket);
    let none = encode(&format!(r#"{{"alg":"none","kid":"k1","typ":"{TYP}"}}"#));
    assert_eq!(scene.refusal(&format!("{header}.{payload}.")), Some(Check::Shape));
    assert_eq!(scene.refusal(&format!("{none}.{payload}.")), Some(Check::Shape));
}

#[test]
fn there_are_three_segments_of_unpadded_base64url_within_the_size() {
    let scene = Scene::new();
    let ticket = scene.issue().ticket;
    let [header, payload, mac] = segments(&ticket);
    for text in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "...".to_owned(),
        format!("{header}.{payload}"),
        format!("{ticket}."),
        format!(".{ticket}"),
        format!("{ticket}.{mac}"),
        format!("{header}..{mac}"),
        format!(".{payload}.{mac}"),
        format!("{ticket}="),
        format!("{header}=.{payload}.{mac}"),
        format!("{header}.{payload}=.{mac}"),
        format!("{ticket}\n"),
        format!(" {ticket}"),
        format!("{header}.{payload}ü.{mac}"),
        format!("{header}.{payload}.{}", &mac[..42]),
        format!("{header}.{payload}.{mac}A"),
        "\u{feff}".to_owned() + &ticket,
        "ü".repeat(100),
        format!("{header}.{}.{mac}", "A".repeat(MAX_TICKET_BYTES)),
        ".".repeat(MAX_TICKET_BYTES + 1),
        "x".repeat(1 << 20),
    ] {
        let shown: String = text.chars().take(80).collect();
        assert_eq!(scene.refusal(&text), Some(Check::Shape), "{shown:?}");
    }
    let longest = MAX_TICKET_BYTES - header.len() - mac.len() - 2;
    let text = format!("{header}.{}.{mac}", "A".repeat(longest));
    assert_eq!(scene.refusal(&text), Some(Check::Mac));
    let text = format!("{header}.{}.{mac}", "A".repeat(longest + 1));
    assert_eq!(scene.refusal(&text), Some(Check::Shape));
}

#[test]
fn a_mac_has_one_encoding() {
    let scene = Scene::new();
    let ticket = scene.issue().ticket;
    let [header, payload, mac] = segments(&ticket);
    let bytes = URL_SAFE_NO_PAD.decode(&mac).unwrap();
    // The last of 43 characters holds four bits; its two lowest are left over and must be 0.
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let last = alphabet.find(mac.chars().last().unwrap()).unwrap();
    assert_eq!(last % 4, 0);
    for left_over in 1..4 {
        let other = format!("{}{}", &mac[..42], &alphabet[last + left_over..][..1]);
        assert_eq!(
            scene.refusal(&format!("{header}.{payload}.{other}")),
            Some(Check::Shape),
            "{left_over}"
        );
    }
    for other in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE.encode(&bytes)] {
        assert_eq!(
            scene.refusal(&format!("{header}.{payload}.{other}")),
            (other != mac).then_some(Check::Shape)
        );
    }
    assert!(mac.contains(['-', '_']), "or the standard alphabet is not told from this one");
}

#[test]
fn a_payload_has_one_encoding_even_where_the_right_key_signed_another() {
    let scene = Scene::new();
    let issued = scene.issue();
    let [header, ..] = segments(&issued.ticket);
    let sign_segment = |payload: &str| {
        let signed = format!("{header}.{payload}");
        let mac = URL_SAFE_NO_PAD.encode(scene.keys.current().sign(&signed).0);
        format!("{signed}.{mac}")
    };
    let mut json = issued.claims.to_json();
    while json.len() % 3 != 1 {
        json.push(' ');
    }
    let payload = encode(&json);
    assert_eq!(scene.refusal(&sign_segment(&payload)), None);
    let last = payload.chars().last().unwrap();
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let next = &alphabet[alphabet.find(last).unwrap() + 1..][..1];
    let left_over = format!("{}{next}", &payload[..payload.len() - 1]);
    assert_eq!(scene.refusal(&sign_segment(&left_over)), Some(Check::Claims));
    let too_long = format!("{}A", &payload[..payload.len() - 1]) + "AAA";
    assert_eq!(scene.refusal(&sign_segment(&too_long)), Some(Check::Claims));
}

#[test]
fn a_payload_that_is_not_signed_is_never_read() {
    let scene = Scene::new();
    let [header, payload, mac] = segments(&scene.issue().ticket);
    let expired = issue(&scene.keys, random_id(), &scene.call(), "user-ü", &TERMS, at(NOW - 900));
    let payload_of = |issued: &Issued| segments(&issued.ticket)[1].clone();
    let other = CallInHand { tool_call_id: "call_2", ..scene.call() };
    let moved = issue(&scene.keys, random_id(), &other, "user-ü", &TERMS, at(NOW));
    // Each of these says what is wrong with it once it is signed; unsigned, all say the same.
    for unsigned in [
        payload_of(&expired),
        payload_of(&moved),
        encode("{}"),
        encode("{"),
        encode(&"[".repeat(2000)),
        format!("{payload}AAAA"),
    ] {
        let text = format!("{header}.{unsigned}.{mac}");
        let refused = verify(&scene.keys, &text, &TERMS, at(NOW), |_| {
            unreachable!("nobody is asked about an unsigned claim")
        });
        let refused = refused.unwrap_err();
        assert_eq!(refused.check(), Check::Mac);
        assert!(refused.claims().is_none());
    }
    assert_eq!(scene.refusal(&expired.ticket), Some(Check::Expiry));
    assert_eq!(scene.refusal(&moved.ticket), Some(Check::CallId));
}
