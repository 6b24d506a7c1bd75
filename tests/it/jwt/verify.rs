//! Tokens against keys, without a gate around them.

use jiff::Timestamp;
use serde_json::{Value, json};
use toolgate::domain::caller::Role;
use toolgate::domain::jwt::{Algorithm, Cause, Claim, Holder, TenantsFrom, Terms};
use toolgate::grpc::callers::jwt::Issuers;
use toolgate::grpc::callers::jwt_keys::VerificationKeys;

use super::signer::{ALGORITHMS, Signer, hs256, jwks, signing_input};

const NOW: i64 = 1_800_000_000;
const ISSUER: &str = "https://login.example";

fn terms(issuer: &str, audience: &str) -> Terms {
    Terms {
        issuer: issuer.to_owned(),
        audiences: vec![audience.to_owned()],
        types: None,
        leeway: 0,
        tenants: TenantsFrom::Claim(Claim::new("tenant")),
        user: Some(Claim::new("sub")),
        roles_claim: Claim::new("roles"),
        roles: [("bot".to_owned(), [Role::Proposer].into_iter().collect())].into(),
        user_roles: None,
        allows_self_confirmation: false,
    }
}

fn claims(issuer: &str, audience: &str) -> Value {
    json!({
        "iss": issuer, "aud": audience, "exp": NOW + 60, "tenant": "acme", "sub": "alice",
        "roles": "bot",
    })
}

fn usual() -> Value {
    claims(ISSUER, "toolgate")
}

fn keys(signers: &[&Signer]) -> VerificationKeys {
    VerificationKeys::from_jwks(jwks(signers.iter().copied()).as_bytes(), &Algorithm::ALL).unwrap()
}

fn issuers(signers: &[&Signer]) -> Issuers {
    Issuers::new([(terms(ISSUER, "toolgate"), keys(signers))])
}

fn verify(issuers: &Issuers, token: &str) -> Result<Holder, Cause> {
    issuers.verify(token.as_bytes(), Timestamp::from_second(NOW).unwrap())
}

#[test]
fn every_algorithm_verifies_from_a_jwk_set_and_from_a_file() {
    for (name, algorithm) in ALGORITHMS.into_iter().zip(Algorithm::ALL) {
        assert_eq!(name, algorithm.as_str());
        let signer = Signer::new("k1", name);
        let from_pem =
            VerificationKeys::from_pem([("k1", algorithm, signer.pem().as_bytes())]).unwrap();
        for keys in [keys(&[&signer]), from_pem] {
            let issuers = Issuers::new([(terms(ISSUER, "toolgate"), keys)]);
            let token = signer.sign(&usual());
            assert_eq!(verify(&issuers, &token).unwrap().user.as_deref(), Some("alice"), "{name}");
            // Another key's signature, by the same algorithm, or none.
            let (input, _) = token.rsplit_once('.').unwrap();
            let other = match name {
                "ES256" | "ES384" | "EdDSA" => Signer::new("k1", name).sign(&usual()),
                _ => signer.sign(&json!({"other": "payload"})),
            };
            let (_, signature) = other.rsplit_once('.').unwrap();
            for signature in [signature, "", "AA"] {
                let forged = format!("{input}.{signature}");
                assert_eq!(verify(&issuers, &forged), Err(Cause::Signature), "{name}");
            }
        }
    }
}

/// What the header names is only ever compared with what the key is for.
#[test]
fn the_algorithm_is_the_keys_whatever_the_header_says() {
    let signers = ["RS256", "ES256", "EdDSA"].map(|name| Signer::new(name, name));
    let issuers = issuers(&signers.each_ref());
    for signer in &signers {
        for alg in
            ["none", "None", "NONE", "HS256", "HS384", "RS256", "PS256", "ES256", "ES384", "EdDSA"]
        {
            let header = json!({"alg": alg, "kid": signer.kid}).to_string();
            let wanted = if alg == signer.name() { Ok(()) } else { Err(Cause::Algorithm) };
            let token = signer.sign_with(&header, &usual());
            assert_eq!(verify(&issuers, &token).map(drop), wanted, "{} {alg}", signer.kid);
            let unsigned = signing_input(&header, &usual().to_string()) + ".";
            verify(&issuers, &unsigned).unwrap_err();
        }
    }
    // The RSA key signs PS256 as well: the gate does not take it for that.
    let pss = Signer::new("RS256", "PS256").sign(&usual());
    assert_eq!(verify(&issuers, &pss), Err(Cause::Algorithm));
    // Nor is a signature taken that is by another algorithm than the header says.
    let header = json!({"alg": "RS256", "kid": "RS256"}).to_string();
    for name in ["PS256", "RS384", "ES256"] {
        let token = Signer::new("RS256", name).sign_with(&header, &usual());
        assert_eq!(verify(&issuers, &token), Err(Cause::Signature), "{name}");
    }
}

/// The public key is known to everybody: it must not pass for a shared secret.
#[test]
fn a_public_key_is_no_secret_to_sign_with() {
    for name in ["RS256", "ES256", "EdDSA"] {
        let signer = Signer::new("k1", name);
        let issuers = issuers(&[&signer]);
        let (pem, jwk) = (signer.pem(), signer.jwk().to_string());
        for secret in [pem.as_str(), pem.trim_end(), jwk.as_str()] {
            let token = hs256(secret.as_bytes(), "k1", &usual());
            assert_eq!(verify(&issuers, &token), Err(Cause::Algorithm), "{name}");
            // And with the header that the key wants.
            let signature = token.rsplit_once('.').unwrap().1;
            let header = json!({"alg": name, "kid": "k1"}).to_string();
            let token = signing_input(&header, &usual().to_string()) + "." + signature;
            assert_eq!(verify(&issuers, &token), Err(Cause::Signature), "{name}");
        }
    }
}

#[test]
fn every_byte_of_a_token_counts() {
    let signer = Signer::new("k1", "ES256");
    let issuers = issuers(&[&signer]);
    let token = signer.sign(&usual());
    verify(&issuers, &token).unwrap();
    for index in 0..token.len() {
        for byte in [b'A', b'_', b'.', token.as_bytes()[index] ^ 1, token.as_bytes()[index] ^ 0x80]
        {
            let mut forged = token.as_bytes().to_vec();
            if forged[index] == byte {
                continue;
            }
            forged[index] = byte;
            let judged = issuers.verify(&forged, Timestamp::from_second(NOW).unwrap());
            judged.map(drop).unwrap_err();
        }
        let cut = &token[..index];
        verify(&issuers, cut).unwrap_err();
    }
    for longer in
        [format!("{token}A"), format!("{token}="), format!("{token}.A"), format!(" {token}")]
    {
        verify(&issuers, &longer).unwrap_err();
    }
}

#[test]
fn a_key_is_good_for_its_own_issuer_and_id_alone() {
    let [ours, theirs, unknown] =
        ["ours", "theirs", "unknown"].map(|kid| Signer::new(kid, "ES256"));
    let other = "https://other.example";
    let issuers = Issuers::new([
        (terms(ISSUER, "toolgate"), keys(&[&ours])),
        (terms(other, "toolgate"), keys(&[&theirs])),
    ]);
    let judge = |token: String| verify(&issuers, &token).map(drop);
    assert_eq!(judge(ours.sign(&usual())), Ok(()));
    assert_eq!(judge(theirs.sign(&claims(other, "toolgate"))), Ok(()));
    // One issuer's key says that it is the other.
    assert_eq!(judge(theirs.sign(&usual())), Err(Cause::Issuer));
    assert_eq!(judge(ours.sign(&claims(other, "toolgate"))), Err(Cause::Issuer));
    // The right key under another's id, and an id that nobody has.
    assert_eq!(judge(ours.called("theirs").sign(&usual())), Err(Cause::Signature));
    assert_eq!(judge(ours.called("OURS").sign(&usual())), Err(Cause::UnknownKey));
    assert_eq!(judge(unknown.sign(&usual())), Err(Cause::UnknownKey));
    // A key that comes with the token is nobody's.
    for member in ["jwk", "jku", "x5c", "x5u"] {
        let mut header = json!({"alg": "ES256", "kid": "ours"});
        header[member] = if member == "jwk" { unknown.jwk() } else { json!("https://x.example") };
        let token = unknown.called("ours").sign_with(&header.to_string(), &usual());
        assert_eq!(judge(token), Err(Cause::Signature), "{member}");
    }
}

#[test]
fn issuers_with_keys_of_one_id_are_told_apart_by_the_signature() {
    let [first, second] = [Signer::new("1", "ES256"), Signer::new("1", "ES256")];
    let other = "https://other.example";
    let issuers = Issuers::new([
        (terms(ISSUER, "toolgate"), keys(&[&first])),
        (terms(other, "toolgate"), keys(&[&second])),
    ]);
    let judge = |token: String| verify(&issuers, &token).map(drop);
    assert_eq!(judge(first.sign(&usual())), Ok(()));
    assert_eq!(judge(second.sign(&claims(other, "toolgate"))), Ok(()));
    assert_eq!(judge(second.sign(&usual())), Err(Cause::Issuer));
}

/// One issuer for services and for people, by audience.
#[test]
fn a_token_for_two_entries_is_for_neither() {
    let signer = Signer::new("k1", "ES256");
    let issuers = Issuers::new([
        (terms(ISSUER, "toolgate"), keys(&[&signer])),
        (Terms { user: None, ..terms(ISSUER, "people") }, keys(&[&signer])),
    ]);
    let judge = |audience: Value| {
        let mut claims = usual();
        claims["aud"] = audience;
        verify(&issuers, &signer.sign(&claims)).map(|holder| holder.user.is_some())
    };
    assert_eq!(judge(json!("toolgate")), Ok(true));
    assert_eq!(judge(json!(["people", "else"])), Ok(false));
    assert_eq!(judge(json!(["people", "toolgate"])), Err(Cause::Audience));
    assert_eq!(judge(json!("else")), Err(Cause::Audience));
}

#[test]
fn a_replaced_key_denies_at_once() {
    let [old, new] = ["old", "new"].map(|kid| Signer::new(kid, "EdDSA"));
    let issuers = issuers(&[&old]);
    let judge = |signer: &Signer| verify(&issuers, &signer.sign(&usual())).map(drop);
    assert_eq!((judge(&old), judge(&new)), (Ok(()), Err(Cause::UnknownKey)));
    issuers.replace_keys(0, keys(&[&old, &new]));
    assert_eq!((judge(&old), judge(&new)), (Ok(()), Ok(())));
    issuers.replace_keys(0, keys(&[&new]));
    assert_eq!((judge(&old), judge(&new)), (Err(Cause::UnknownKey), Ok(())));
    issuers.replace_keys(1, keys(&[&old]));
    assert_eq!(judge(&old), Err(Cause::UnknownKey), "there is no issuer of this index");
}
