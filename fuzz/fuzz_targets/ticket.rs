//! No text without the key's MAC is believed, and no payload with it makes verification panic
//! or is believed beyond the form that claims are written in.

#![no_main]

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use sha2::Sha256;
use toolgate::domain::ticket::{
    Check, ConfirmationKey, ConfirmationKeys, RefusedTicket, Terms, verify,
};

const SIGNING: [u8; 32] = [7; 32];
const HEADER: &str = r#"{"alg":"HS256","kid":"k1","typ":"toolgate-confirmation+jwt"}"#;
const TERMS: Terms<'static> =
    Terms { ttl: Duration::from_secs(300), skew: Duration::from_secs(30), audience: "ledger-1" };

fn signed(payload: &[u8]) -> String {
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(HEADER), URL_SAFE_NO_PAD.encode(payload));
    let mut mac = Hmac::<Sha256>::new_from_slice(&SIGNING).expect("HMAC takes any key");
    mac.update(text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

fuzz_target!(|input: &[u8]| {
    let key = ConfirmationKey::new("k1".into(), &SIGNING, &[8; 32]).expect("a good id");
    let keys = ConfirmationKeys::new(vec![key]).expect("one key");
    let now = Timestamp::from_second(1_798_099_200).expect("a time");
    let judge = |text: &str| verify(&keys, text, &TERMS, now, |_| false).map(|_| ());

    if let Ok(text) = std::str::from_utf8(input) {
        let refused = judge(text).expect_err("nobody has signed it");
        assert!(refused.check() <= Check::Mac && refused.claims().is_none());
    }
    let checked = judge(&signed(input)).map_err(|refused: RefusedTicket| refused.check());
    assert!(checked.is_ok_and(|()| input.len() < 4096) || checked.is_err_and(|c| c != Check::Mac));
});
