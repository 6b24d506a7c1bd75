//! The public keys of an issuer: JWK sets (RFC 7517) and PEM files, each key for one algorithm.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk};
use jsonwebtoken::{Algorithm as Library, DecodingKey, crypto};

use crate::domain::json::{Integers, Object, Value, parse_object};
use crate::domain::jwt::{Algorithm, MAX_KEY_ID_BYTES, Token};

/// The most bytes of a JWK set.
pub const MAX_JWKS_BYTES: usize = 256 * 1024;

/// The most bytes of a PEM file. A public RSA key of 8,192 bits has 1,500.
pub const MAX_PEM_BYTES: usize = 8 * 1024;

/// The most keys of one issuer.
pub const MAX_KEYS: usize = 64;

/// What the library verifies with (its `RSA_*_2048_8192_*`).
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// Where the keys of one issuer are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A JWK set, and the algorithms that its keys may be for.
    Jwks(PathBuf, Vec<Algorithm>),
    /// PEM files.
    Pem(Vec<PemFile>),
}

/// One public key in a file of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PemFile {
    /// Its `kid`.
    pub id: String,
    /// The algorithm it is for.
    pub algorithm: Algorithm,
    /// Where it is.
    pub path: PathBuf,
}

/// The keys of one issuer by `kid`. At least one.
#[derive(Clone)]
pub struct VerificationKeys(BTreeMap<String, VerificationKey>);

/// A public key, for one algorithm and no other.
#[derive(Clone)]
struct VerificationKey {
    algorithm: Algorithm,
    key: DecodingKey,
}

/// Why keys are not taken. Never holds a key; a `kid` is public.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyFault {
    /// Not a JWK set in strict JSON.
    NotJwks,
    /// More bytes or keys than the bound.
    TooLarge,
    /// A private key.
    Private(String),
    /// A shared secret.
    Symmetric(String),
    /// A key for signatures without an id, or with one that is too long.
    NoId,
    /// Two keys of one id.
    Twice(String),
    /// Fewer than 2,048 bits of RSA, or more than 8,192.
    Weak(String),
    /// Several of the configured algorithms fit, and the key names none.
    Ambiguous(String),
    /// Not a point, modulus or file of the key's kind.
    Broken(String),
    /// No key is left for a configured algorithm.
    Empty,
}

impl KeySource {
    /// The files to read.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::Jwks(path, _) => vec![path.clone()],
            Self::Pem(files) => files.iter().map(|file| file.path.clone()).collect(),
        }
    }

    /// How much of each to read at most.
    #[must_use]
    pub const fn max_bytes(&self) -> usize {
        match self {
            Self::Jwks(..) => MAX_JWKS_BYTES,
            Self::Pem(_) => MAX_PEM_BYTES,
        }
    }

    /// The keys in the contents of [`KeySource::paths`].
    ///
    /// # Errors
    ///
    /// The first [`KeyFault`].
    pub fn keys(&self, contents: &[Vec<u8>]) -> Result<VerificationKeys, KeyFault> {
        match self {
            Self::Jwks(_, algorithms) => {
                let bytes = contents.first().map_or(&[][..], Vec::as_slice);
                VerificationKeys::from_jwks(bytes, algorithms)
            }
            Self::Pem(files) => VerificationKeys::from_pem(
                files
                    .iter()
                    .zip(contents)
                    .map(|(file, bytes)| (&*file.id, file.algorithm, bytes.as_slice())),
            ),
        }
    }
}

impl VerificationKeys {
    /// The keys of a JWK set that are for a signature by one of `algorithms`.
    ///
    /// Others, for encryption or of kinds unknown here, are left out as section 5 of
    /// RFC 7517 wants it; private and symmetric ones are refused: they do not belong
    /// into a file that is handed out.
    ///
    /// # Errors
    ///
    /// The first [`KeyFault`].
    pub fn from_jwks(bytes: &[u8], algorithms: &[Algorithm]) -> Result<Self, KeyFault> {
        if bytes.len() > MAX_JWKS_BYTES {
            return Err(KeyFault::TooLarge);
        }
        let set =
            parse_object(bytes, MAX_JWKS_BYTES, Integers::Wide).map_err(|_| KeyFault::NotJwks)?;
        let items = set.get("keys").and_then(Value::as_array).ok_or(KeyFault::NotJwks)?;
        if items.len() > MAX_KEYS {
            return Err(KeyFault::TooLarge);
        }
        let mut keys = BTreeMap::new();
        for item in items {
            let jwk = item.as_object().ok_or(KeyFault::NotJwks)?;
            if let Some((id, key)) = read_jwk(jwk, algorithms)?
                && keys.insert(id.clone(), key).is_some()
            {
                return Err(KeyFault::Twice(id));
            }
        }
        if keys.is_empty() { Err(KeyFault::Empty) } else { Ok(Self(keys)) }
    }

    /// Keys from PEM files (`-----BEGIN PUBLIC KEY-----`, RFC 7468, section 13), each
    /// with its id and algorithm.
    ///
    /// # Errors
    ///
    /// The first [`KeyFault`].
    pub fn from_pem<'a>(
        files: impl IntoIterator<Item = (&'a str, Algorithm, &'a [u8])>,
    ) -> Result<Self, KeyFault> {
        let mut keys = BTreeMap::new();
        for (id, algorithm, pem) in files {
            let key = VerificationKey::from_pem(id, algorithm, pem)?;
            if keys.insert(id.to_owned(), key).is_some() {
                return Err(KeyFault::Twice(id.to_owned()));
            }
        }
        if keys.is_empty() { Err(KeyFault::Empty) } else { Ok(Self(keys)) }
    }

    /// The algorithm of the key of this id; `None` where there is none.
    pub(super) fn algorithm(&self, key_id: &str) -> Option<Algorithm> {
        self.0.get(key_id).map(|key| key.algorithm)
    }

    /// Whether the key that the token names has signed it, by the algorithm that the
    /// key is for, whatever the token says of one.
    pub(super) fn verify(&self, token: &Token<'_>) -> bool {
        self.0.get(token.key_id()).is_some_and(|VerificationKey { algorithm, key }| {
            let signed = token.signed().as_bytes();
            crypto::verify(token.signature(), signed, key, library(*algorithm)).unwrap_or(false)
        })
    }

    /// The ids, in order.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl VerificationKey {
    fn from_pem(id: &str, algorithm: Algorithm, pem: &[u8]) -> Result<Self, KeyFault> {
        let broken = || KeyFault::Broken(id.to_owned());
        if pem.len() > MAX_PEM_BYTES {
            return Err(KeyFault::TooLarge);
        }
        let text = std::str::from_utf8(pem).map_err(|_| broken())?;
        if text.contains("PRIVATE KEY-----") {
            return Err(KeyFault::Private(id.to_owned()));
        }
        // The library takes the first block, of certificates too.
        let labels: Vec<_> = text.lines().filter(|line| line.starts_with("-----BEGIN ")).collect();
        if labels != ["-----BEGIN PUBLIC KEY-----"] {
            return Err(broken());
        }
        let key = match Kind::of(algorithm) {
            Kind::Rsa => DecodingKey::from_rsa_pem(pem),
            Kind::P256 | Kind::P384 => DecodingKey::from_ec_pem(pem),
            Kind::Ed25519 => DecodingKey::from_ed_pem(pem),
        };
        let key = key.map_err(|_| broken())?;
        // Read back as a JWK, whose parts are then judged as those of any other.
        let read_back = Jwk::from_decoding_key(&key, None).map_err(|_| broken())?;
        let fits = match (Kind::of(algorithm), &read_back.algorithm) {
            (Kind::Rsa, AlgorithmParameters::RSA(rsa)) => {
                check_rsa(id, &rsa.n, &rsa.e)?;
                true
            }
            (Kind::P256, AlgorithmParameters::EllipticCurve(point)) => {
                point.curve == jsonwebtoken::jwk::EllipticCurve::P256
            }
            (Kind::P384, AlgorithmParameters::EllipticCurve(point)) => {
                point.curve == jsonwebtoken::jwk::EllipticCurve::P384
            }
            (Kind::Ed25519, AlgorithmParameters::OctetKeyPair(_)) => true,
            _ => false,
        };
        if fits { Ok(Self { algorithm, key }) } else { Err(broken()) }
    }
}

/// Kinds of keys, each for some of the algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

impl Kind {
    const fn of(algorithm: Algorithm) -> Self {
        use Algorithm as A;
        match algorithm {
            A::Rs256 | A::Rs384 | A::Rs512 | A::Ps256 | A::Ps384 | A::Ps512 => Self::Rsa,
            A::Es256 => Self::P256,
            A::Es384 => Self::P384,
            A::EdDsa => Self::Ed25519,
        }
    }

    /// The kind that a JWK says it is; `None` where none of them.
    fn of_jwk(jwk: &Object) -> Option<Self> {
        match (text(jwk, "kty")?, text(jwk, "crv")) {
            ("RSA", _) => Some(Self::Rsa),
            ("EC", Some("P-256")) => Some(Self::P256),
            ("EC", Some("P-384")) => Some(Self::P384),
            ("OKP", Some("Ed25519")) => Some(Self::Ed25519),
            _ => None,
        }
    }
}

/// Members of a JWK that only a private key has (RFC 7518, section 6; RFC 8037, section 2).
const PRIVATE: [&str; 7] = ["d", "p", "q", "dp", "dq", "qi", "oth"];

/// One key of a set with its id; `None` where it is for nothing that is configured.
fn read_jwk(
    jwk: &Object,
    algorithms: &[Algorithm],
) -> Result<Option<(String, VerificationKey)>, KeyFault> {
    let name = || text(jwk, "kid").unwrap_or("without an id").to_owned();
    if text(jwk, "kty") == Some("oct") || jwk.contains("k") {
        return Err(KeyFault::Symmetric(name()));
    }
    if PRIVATE.iter().any(|member| jwk.contains(member)) {
        return Err(KeyFault::Private(name()));
    }
    let Some(kind) = Kind::of_jwk(jwk).filter(|_| is_to_verify(jwk)) else { return Ok(None) };
    let named = jwk.get("alg");
    let mut fitting = algorithms.iter().copied().filter(|algorithm| {
        Kind::of(*algorithm) == kind
            && named.is_none_or(|name| name.as_str() == Some(algorithm.as_str()))
    });
    let Some(algorithm) = fitting.next() else { return Ok(None) };
    if fitting.next().is_some() {
        return Err(KeyFault::Ambiguous(name()));
    }
    let id = text(jwk, "kid")
        .filter(|id| !id.is_empty() && id.len() <= MAX_KEY_ID_BYTES)
        .ok_or(KeyFault::NoId)?;
    let broken = || KeyFault::Broken(name());
    let part = |name| text(jwk, name).ok_or_else(broken);
    // Coordinates have their full length (RFC 7518, section 6.2.1.2).
    let coordinate = |name, bytes| {
        let text = part(name)?;
        let decoded = URL_SAFE_NO_PAD.decode(text).ok().filter(|found| found.len() == bytes);
        decoded.map(|_| text).ok_or_else(broken)
    };
    let key = match kind {
        Kind::Rsa => {
            let (n, e) = (part("n")?, part("e")?);
            check_rsa(id, n, e)?;
            DecodingKey::from_rsa_components(n, e)
        }
        Kind::P256 => DecodingKey::from_ec_components(coordinate("x", 32)?, coordinate("y", 32)?),
        Kind::P384 => DecodingKey::from_ec_components(coordinate("x", 48)?, coordinate("y", 48)?),
        Kind::Ed25519 => DecodingKey::from_ed_components(coordinate("x", 32)?),
    };
    Ok(Some((id.to_owned(), VerificationKey { algorithm, key: key.map_err(|_| broken())? })))
}

/// Whether `use` and `key_ops`, where they are there, allow to verify signatures.
fn is_to_verify(jwk: &Object) -> bool {
    let is_for_signatures = jwk.get("use").is_none_or(|value| value.as_str() == Some("sig"));
    let may_verify = jwk.get("key_ops").is_none_or(|value| {
        let operations = value.as_array().unwrap_or_default();
        operations.iter().any(|operation| operation.as_str() == Some("verify"))
    });
    is_for_signatures && may_verify
}

/// A modulus of a length that is safe and can be verified with, and an odd exponent above 1.
fn check_rsa(id: &str, n: &str, e: &str) -> Result<(), KeyFault> {
    let decode =
        |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| KeyFault::Broken(id.to_owned()));
    let (n, e) = (decode(n)?, decode(e)?);
    let (n, e) = (significant(&n), significant(&e));
    let bits = n.len() * 8 - n.first().map_or(0, |byte| byte.leading_zeros() as usize);
    let is_exponent = e.last().is_some_and(|last| last % 2 == 1) && e != [1];
    if !RSA_BITS.contains(&bits) || !is_exponent {
        return Err(KeyFault::Weak(id.to_owned()));
    }
    Ok(())
}

/// A big-endian number without leading zeros.
fn significant(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

fn text<'o>(object: &'o Object, name: &str) -> Option<&'o str> {
    object.get(name).and_then(Value::as_str)
}

const fn library(algorithm: Algorithm) -> Library {
    match algorithm {
        Algorithm::Rs256 => Library::RS256,
        Algorithm::Rs384 => Library::RS384,
        Algorithm::Rs512 => Library::RS512,
        Algorithm::Ps256 => Library::PS256,
        Algorithm::Ps384 => Library::PS384,
        Algorithm::Ps512 => Library::PS512,
        Algorithm::Es256 => Library::ES256,
        Algorithm::Es384 => Library::ES384,
        Algorithm::EdDsa => Library::EdDSA,
    }
}

impl KeyFault {
    /// What an operator should do about it.
    #[must_use]
    pub const fn mend(&self) -> &'static str {
        match self {
            Self::NotJwks => {
                "save the issuer's JWK set as it is: {\"keys\": [{\"kty\": …, \"kid\": …, …}]}"
            }
            Self::TooLarge => "leave only the keys that sign tokens for this gate",
            Self::Private(_) => {
                "take the private part out at once, and treat the key as known to others"
            }
            Self::Symmetric(_) => {
                "have the issuer sign with an asymmetric key: RS256, PS256, ES256 or EdDSA"
            }
            Self::NoId => "have the issuer give every key a kid of 1 to 256 bytes",
            Self::Twice(_) => "give every key its own id",
            Self::Weak(_) => "have the issuer make an RSA key of 2048 bits or more, or use ES256",
            Self::Ambiguous(_) => {
                "name one algorithm for keys of this kind, or have the issuer name it in the key"
            }
            Self::Broken(_) => {
                "write the public key again, of the kind that its algorithm needs: openssl pkey -pubout"
            }
            Self::Empty => "name the algorithms that the issuer signs with, and its public keys",
        }
    }
}

impl fmt::Display for KeyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJwks => f.write_str("this is no JWK set in strict JSON"),
            Self::TooLarge => write!(
                f,
                "there is more than {MAX_KEYS} keys or {MAX_JWKS_BYTES} bytes of them ({MAX_PEM_BYTES} of a PEM file)"
            ),
            Self::Private(id) => write!(f, "the key {id:?} is a private key"),
            Self::Symmetric(id) => {
                write!(f, "the key {id:?} is symmetric: who verifies with it could sign")
            }
            Self::NoId => f.write_str("a key has no kid, or one that is too long"),
            Self::Twice(id) => write!(f, "the key id {id:?} is used twice"),
            Self::Weak(id) => {
                write!(f, "the RSA key {id:?} is outside 2048 to 8192 bits, or has a weak exponent")
            }
            Self::Ambiguous(id) => {
                write!(f, "the key {id:?} could be for more than one of the algorithms")
            }
            Self::Broken(id) => {
                write!(f, "the key {id:?} is no public key of its algorithm's kind")
            }
            Self::Empty => f.write_str("there is no key for any of the algorithms"),
        }
    }
}

impl fmt::Debug for VerificationKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}
