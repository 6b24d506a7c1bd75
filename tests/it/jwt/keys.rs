//! Which public keys are taken, and which are refused when they are read.

use serde_json::{Value, json};
use toolgate::domain::jwt::Algorithm;
use toolgate::grpc::callers::jwt_keys::{
    KeyFault, MAX_JWKS_BYTES, MAX_KEYS, MAX_PEM_BYTES, VerificationKeys,
};

use super::signer::{ALGORITHMS, Signer, pem};

fn read(keys: &[Value], algorithms: &[Algorithm]) -> Result<Vec<String>, KeyFault> {
    let text = json!({ "keys": keys }).to_string();
    let keys = VerificationKeys::from_jwks(text.as_bytes(), algorithms)?;
    Ok(keys.ids().map(str::to_owned).collect())
}

fn with(mut jwk: Value, name: &str, value: Value) -> Value {
    match value {
        Value::Null => drop(jwk.as_object_mut().unwrap().remove(name)),
        value => jwk[name] = value,
    }
    jwk
}

#[test]
fn keys_that_are_for_something_else_are_left_out() {
    let ours = Signer::new("ours", "ES256").jwk();
    let rsa = Signer::new("rsa", "RS256").jwk();
    for other in [
        with(rsa.clone(), "use", json!("enc")),
        with(with(rsa.clone(), "use", json!("enc")), "alg", json!("RSA-OAEP")),
        with(rsa.clone(), "key_ops", json!(["encrypt"])),
        with(rsa.clone(), "key_ops", json!("verify")),
        with(rsa.clone(), "alg", json!("PS512")),
        with(rsa.clone(), "alg", json!("HS256")),
        with(rsa.clone(), "alg", json!("none")),
        json!({"kty": "EC", "crv": "P-521", "kid": "x", "x": "AA", "y": "AA"}),
        json!({"kty": "EC", "crv": "secp256k1", "kid": "x", "x": "AA", "y": "AA"}),
        json!({"kty": "OKP", "crv": "Ed448", "kid": "x", "x": "AA"}),
        json!({"kty": "OKP", "crv": "X25519", "kid": "x", "x": "AA"}),
        json!({"kty": "AKP", "kid": "x"}),
        json!({}),
    ] {
        let keys = [other.clone(), ours.clone()];
        let algorithms = [Algorithm::Es256, Algorithm::Rs256];
        assert_eq!(read(&keys, &algorithms), Ok(vec!["ours".to_owned()]), "{other}");
        assert_eq!(read(&[other], &algorithms), Err(KeyFault::Empty));
    }
    assert_eq!(read(&[], &Algorithm::ALL), Err(KeyFault::Empty));
    // What fits is taken, and no algorithm that was not named.
    assert_eq!(read(&[rsa.clone(), ours.clone()], &[Algorithm::Rs256]), Ok(vec!["rsa".to_owned()]));
    for (members, value) in [("use", json!("sig")), ("key_ops", json!(["verify"]))] {
        read(&[with(rsa.clone(), members, value)], &[Algorithm::Rs256]).unwrap();
    }
}

#[test]
fn a_key_is_for_one_algorithm() {
    let rsa = with(Signer::new("rsa", "RS256").jwk(), "alg", Value::Null);
    read(std::slice::from_ref(&rsa), &[Algorithm::Ps384, Algorithm::Es256]).unwrap();
    let several = [Algorithm::Rs256, Algorithm::Ps256];
    assert_eq!(read(&[rsa], &several), Err(KeyFault::Ambiguous("rsa".to_owned())));
}

#[test]
fn what_is_not_public_is_refused_wherever_it_stands() {
    let ours = Signer::new("ours", "ES256").jwk();
    for name in ["RS256", "ES384", "EdDSA"] {
        let public = Signer::new("leaked", name).jwk();
        for member in ["d", "p", "q", "dp", "dq", "qi", "oth"] {
            let leaked = with(public.clone(), member, json!("AQAB"));
            // Though it is not even one that would be used.
            for leaked in [with(leaked.clone(), "use", json!("enc")), leaked] {
                let fault = read(&[ours.clone(), leaked], &[Algorithm::Es256]).unwrap_err();
                assert_eq!(fault, KeyFault::Private("leaked".to_owned()), "{member}");
            }
        }
    }
    for secret in [
        json!({"kty": "oct", "kid": "shared", "k": "c2VjcmV0"}),
        json!({"kty": "oct", "kid": "shared", "alg": "HS256"}),
        json!({"kty": "RSA", "kid": "shared", "k": "c2VjcmV0"}),
    ] {
        let fault = read(&[ours.clone(), secret], &Algorithm::ALL).unwrap_err();
        assert_eq!(fault, KeyFault::Symmetric("shared".to_owned()));
    }
}

#[test]
fn weak_and_broken_keys_are_refused() {
    let rsa = Signer::new("k", "RS256").jwk();
    let judge = |name: &str, text: &str| {
        read(&[with(rsa.clone(), name, json!(text))], &[Algorithm::Rs256]).map(drop)
    };
    let number = |bytes: &[u8]| {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
    };
    let weak = || Err(KeyFault::Weak("k".to_owned()));
    let broken = || Err(KeyFault::Broken("k".to_owned()));
    let modulus = |bytes: usize, first: u8| {
        let mut modulus = vec![0xff; bytes];
        modulus[0] = first;
        number(&modulus)
    };
    for (n, wanted) in [
        (modulus(256, 0x80), Ok(())),
        (modulus(256, 0x7f), weak()),
        (modulus(128, 0xff), weak()),
        // Leading zeros make nothing longer.
        (number(&[vec![0; 128], vec![0xff; 128]].concat()), weak()),
        (modulus(1_024, 0xff), Ok(())),
        (modulus(1_025, 0x01), weak()),
        (number(&[]), weak()),
        ("n?".to_owned(), broken()),
    ] {
        assert_eq!(judge("n", &n), wanted, "{n}");
    }
    for (e, wanted) in [
        (number(&[1]), weak()),
        (number(&[0, 1]), weak()),
        (number(&[2]), weak()),
        (number(&[]), weak()),
        ("AQAB=".to_owned(), broken()),
        (number(&[3]), Ok(())),
    ] {
        assert_eq!(judge("e", &e), wanted, "{e}");
    }
    for (name, algorithm, member) in [
        ("ES256", Algorithm::Es256, "x"),
        ("ES384", Algorithm::Es384, "y"),
        ("EdDSA", Algorithm::EdDsa, "x"),
        ("RS256", Algorithm::Rs256, "n"),
    ] {
        let jwk = Signer::new("k", name).jwk();
        for value in [json!(7), Value::Null, json!("=")] {
            let found = read(&[with(jwk.clone(), member, value)], &[algorithm]);
            assert_eq!(found.map(drop), broken(), "{name}");
        }
    }
    let short = with(Signer::new("k", "ES256").jwk(), "x", json!(number(&[1; 31])));
    assert_eq!(read(&[short], &[Algorithm::Es256]).map(drop), broken());
}

#[test]
fn ids_are_there_and_different() {
    let jwk = Signer::new("k", "ES256").jwk();
    let with_id = |value| read(&[with(jwk.clone(), "kid", value)], &Algorithm::ALL).map(drop);
    for id in [Value::Null, json!(""), json!(7), json!("k".repeat(257))] {
        assert_eq!(with_id(id), Err(KeyFault::NoId));
    }
    assert_eq!(with_id(json!("k".repeat(256))), Ok(()));
    let twice = [jwk, Signer::new("k", "EdDSA").jwk()];
    assert_eq!(read(&twice, &Algorithm::ALL), Err(KeyFault::Twice("k".to_owned())));
}

#[test]
fn a_set_is_strict_json_and_bounded() {
    let jwk = Signer::new("k", "ES256").jwk().to_string();
    let judge =
        |text: &str| VerificationKeys::from_jwks(text.as_bytes(), &Algorithm::ALL).map(drop);
    assert_eq!(judge(&format!(r#"{{"keys":[{jwk}]}}"#)), Ok(()));
    for text in [
        String::new(),
        jwk.clone(),
        format!("[{jwk}]"),
        format!(r#"{{"keys":{jwk}}}"#),
        format!(r#"{{"keys":[{jwk}],"keys":[]}}"#),
        format!(r#"{{"keys":[{jwk}]"#),
        r#"{"keys":["text"]}"#.to_owned(),
        format!(r#"{{"keys":[{}]}}"#, jwk.replace(r#""kid":"k""#, r#""kid":"k","kid":"j""#)),
    ] {
        assert_eq!(judge(&text), Err(KeyFault::NotJwks), "{text}");
    }
    let many = |count| read(&vec![json!({}); count], &Algorithm::ALL).unwrap_err();
    assert_eq!((many(MAX_KEYS), many(MAX_KEYS + 1)), (KeyFault::Empty, KeyFault::TooLarge));
    let padded = |length: usize| {
        let text = format!(r#"{{"keys":[{jwk}]}}"#);
        judge(&(text.clone() + &" ".repeat(length - text.len())))
    };
    assert_eq!(padded(MAX_JWKS_BYTES), Ok(()));
    assert_eq!(padded(MAX_JWKS_BYTES + 1), Err(KeyFault::TooLarge));
}

#[test]
fn a_pem_file_holds_one_public_key_of_its_algorithms_kind() {
    let judge = |algorithm, text: &str| {
        VerificationKeys::from_pem([("k", algorithm, text.as_bytes())]).map(drop)
    };
    let broken = || Err(KeyFault::Broken("k".to_owned()));
    for (name, own) in ALGORITHMS.into_iter().zip(Algorithm::ALL) {
        let text = Signer::new("k", name).pem();
        for algorithm in Algorithm::ALL {
            let is_rsa = |name: &str| name.starts_with("RS") || name.starts_with("PS");
            let fits = own == algorithm || is_rsa(name) && is_rsa(algorithm.as_str());
            let wanted = if fits { Ok(()) } else { broken() };
            assert_eq!(judge(algorithm, &text), wanted, "{name} {algorithm:?}");
        }
        let label = |label: &str| text.replace("PUBLIC KEY", label);
        for refused in [
            String::new(),
            label("CERTIFICATE"),
            label("RSA PUBLIC KEY"),
            format!("{text}{text}"),
            text.replace("-----END PUBLIC KEY-----", ""),
            text.replacen("\nM", "\n!", 1),
        ] {
            assert_eq!(judge(own, &refused), broken(), "{name}: {refused}");
        }
        for private in ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY"]
        {
            assert_eq!(judge(own, &label(private)), Err(KeyFault::Private("k".to_owned())));
            let both = label(private) + &text;
            assert_eq!(judge(own, &both), Err(KeyFault::Private("k".to_owned())));
        }
        let long = text.clone() + &" ".repeat(MAX_PEM_BYTES);
        assert_eq!(judge(own, &long), Err(KeyFault::TooLarge));
    }
    assert_eq!(
        judge(Algorithm::Rs256, &pem("PUBLIC KEY", &weak_spki())),
        Err(KeyFault::Weak("k".to_owned()))
    );
    let text = Signer::new("k", "ES256").pem();
    let twice = [("k", Algorithm::Es256, text.as_bytes()); 2];
    assert_eq!(VerificationKeys::from_pem(twice).map(drop), Err(KeyFault::Twice("k".to_owned())));
    assert_eq!(VerificationKeys::from_pem([]).map(drop), Err(KeyFault::Empty));
}

/// A key of 1,024 bits: 2^1023 + 1 and the exponent 65,537 in DER.
fn weak_spki() -> Vec<u8> {
    let head = "30819f300d06092a864886f70d010101050003818d0030818902818100";
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let mut der: Vec<u8> = head.as_bytes().chunks(2).map(byte).collect();
    der.push(0x80);
    der.extend([0; 126]);
    der.extend([0x01, 0x02, 0x03, 0x01, 0x00, 0x01]);
    der
}
