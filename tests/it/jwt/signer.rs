//! Issuers of tokens, with keys made for the test.

use std::fmt::Write as _;
use std::sync::OnceLock;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair as _, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, crypto};
use serde_json::{Value, json};

/// Every algorithm that a key can be for, by its registered name.
pub const ALGORITHMS: [&str; 9] =
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];

/// A private key with its id and algorithm.
#[derive(Clone)]
pub struct Signer {
    pub kid: String,
    pub algorithm: Algorithm,
    private: EncodingKey,
    /// `SubjectPublicKeyInfo`.
    spki: Vec<u8>,
}

impl Signer {
    /// A new key. RSA keys, which take long to make, are one for all tests.
    pub fn new(kid: &str, algorithm: &str) -> Self {
        let algorithm: Algorithm = algorithm.parse().unwrap();
        let (private, spki) = match algorithm {
            Algorithm::ES256 => ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING),
            Algorithm::ES384 => ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING),
            Algorithm::EdDSA => ed25519(),
            _ => rsa(),
        };
        Self { kid: kid.to_owned(), algorithm, private, spki }
    }

    /// The same key under another id.
    pub fn called(&self, kid: &str) -> Self {
        Self { kid: kid.to_owned(), ..self.clone() }
    }

    pub fn name(&self) -> String {
        serde_json::to_value(self.algorithm).unwrap().as_str().unwrap().to_owned()
    }

    /// A token by this key with the usual header.
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_with(
            &json!({"alg": self.name(), "kid": self.kid, "typ": "JWT"}).to_string(),
            claims,
        )
    }

    /// A token by this key, whatever its header says.
    pub fn sign_with(&self, header: &str, claims: &Value) -> String {
        self.sign_texts(header, &claims.to_string())
    }

    pub fn sign_texts(&self, header: &str, payload: &str) -> String {
        let signed = signing_input(header, payload);
        let signature = crypto::sign(signed.as_bytes(), &self.private, self.algorithm).unwrap();
        format!("{signed}.{signature}")
    }

    /// The public key as a member of a JWK set.
    pub fn jwk(&self) -> Value {
        let pem = self.pem();
        let public = match self.algorithm {
            Algorithm::ES256 | Algorithm::ES384 => DecodingKey::from_ec_pem(pem.as_bytes()),
            Algorithm::EdDSA => DecodingKey::from_ed_pem(pem.as_bytes()),
            _ => DecodingKey::from_rsa_pem(pem.as_bytes()),
        };
        let mut jwk = Jwk::from_decoding_key(&public.unwrap(), Some(self.algorithm)).unwrap();
        jwk.common.key_id = Some(self.kid.clone());
        serde_json::to_value(jwk).unwrap()
    }

    /// The public key in a PEM file.
    pub fn pem(&self) -> String {
        pem("PUBLIC KEY", &self.spki)
    }
}

pub fn jwks<'a>(signers: impl IntoIterator<Item = &'a Signer>) -> String {
    let keys: Vec<_> = signers.into_iter().map(Signer::jwk).collect();
    json!({ "keys": keys }).to_string()
}

pub fn signing_input(header: &str, payload: &str) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload))
}

/// A token by a shared secret.
pub fn hs256(secret: &[u8], kid: &str, claims: &Value) -> String {
    let header = json!({"alg": "HS256", "kid": kid, "typ": "JWT"}).to_string();
    let signed = signing_input(&header, &claims.to_string());
    let key = EncodingKey::from_secret(secret).unwrap();
    let signature = crypto::sign(signed.as_bytes(), &key, Algorithm::HS256).unwrap();
    format!("{signed}.{signature}")
}

pub fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        writeln!(pem, "{}", std::str::from_utf8(line).unwrap()).unwrap();
    }
    pem + &format!("-----END {label}-----\n")
}

fn ecdsa(
    algorithm: &'static aws_lc_rs::signature::EcdsaSigningAlgorithm,
) -> (EncodingKey, Vec<u8>) {
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref()).unwrap();
    let spki: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    (EncodingKey::from_ec_der(pkcs8.as_ref()), spki.as_ref().to_vec())
}

fn ed25519() -> (EncodingKey, Vec<u8>) {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
    let spki: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    (EncodingKey::from_ed_der(pkcs8.as_ref()), spki.as_ref().to_vec())
}

fn rsa() -> (EncodingKey, Vec<u8>) {
    static KEY: OnceLock<(EncodingKey, Vec<u8>)> = OnceLock::new();
    let made = || {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        let pkcs8: Pkcs8V1Der<'_> = pair.as_der().unwrap();
        let private = pem("PRIVATE KEY", pkcs8.as_ref());
        let spki: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
        (EncodingKey::from_rsa_pem(private.as_bytes()).unwrap(), spki.as_ref().to_vec())
    };
    KEY.get_or_init(made).clone()
}
