//! The compact serialisation (RFC 7515, section 7.1) and the header.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{Algorithm, Cause, MAX_KEY_ID_BYTES, MAX_TOKEN_BYTES};
use crate::domain::json::{Integers, Object, parse_object};

/// A token whose signature nobody has verified yet. Of its payload nothing can be read.
#[derive(Debug)]
pub struct Token<'t> {
    key_id: String,
    algorithm: Option<Algorithm>,
    kind: Option<String>,
    signed: &'t str,
    payload: &'t str,
    signature: &'t str,
}

/// Whether a bearer credential has the form of a JWS: three segments of base64url,
/// whatever is in them. What has it is judged as a token and never as a secret.
#[must_use]
pub fn has_form(credential: &[u8]) -> bool {
    let mut segments = credential.split(|byte| *byte == b'.');
    let is_encoded = |segment: &[u8]| segment.iter().copied().all(is_base64url);
    let mut next = || segments.next().is_some_and(is_encoded);
    next() && next() && next() && segments.next().is_none()
}

impl<'t> Token<'t> {
    /// Splits a token and reads its header.
    ///
    /// # Errors
    ///
    /// [`Cause::Malformed`], or [`Cause::UnknownKey`] without a `kid`.
    pub fn read(text: &'t [u8]) -> Result<Self, Cause> {
        if text.len() > MAX_TOKEN_BYTES || !has_form(text) {
            return Err(Cause::Malformed);
        }
        let text = std::str::from_utf8(text).map_err(|_| Cause::Malformed)?;
        let (signed, signature) = text.rsplit_once('.').ok_or(Cause::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(Cause::Malformed)?;
        let header = object(header)?;
        // No extension is understood here, so a critical one refuses the token (RFC 7515, 4.1.11).
        if header.contains("crit") {
            return Err(Cause::Malformed);
        }
        let text_of = |name| match header.get(name) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or(Cause::Malformed),
        };
        let algorithm = text_of("alg")?.ok_or(Cause::Malformed)?;
        let kind = text_of("typ")?.map(str::to_owned);
        let key_id = text_of("kid")?
            .filter(|id| !id.is_empty() && id.len() <= MAX_KEY_ID_BYTES)
            .ok_or(Cause::UnknownKey)?
            .to_owned();
        let algorithm = Algorithm::ALL.into_iter().find(|known| known.as_str() == algorithm);
        Ok(Self { key_id, algorithm, kind, signed, payload, signature })
    }

    /// The `kid`.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Whether the header names this algorithm. It never chooses one.
    #[must_use]
    pub fn is_by(&self, algorithm: Algorithm) -> bool {
        self.algorithm == Some(algorithm)
    }

    /// The bytes that were signed: header and payload as they stand.
    #[must_use]
    pub const fn signed(&self) -> &'t str {
        self.signed
    }

    /// The signature, in base64url.
    #[must_use]
    pub const fn signature(&self) -> &'t str {
        self.signature
    }

    /// The header's `typ`.
    pub(super) fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// The payload, still encoded.
    pub(super) const fn payload(&self) -> &'t str {
        self.payload
    }
}

/// The strict JSON object in a segment, in the one encoding it has.
pub(super) fn object(segment: &str) -> Result<Object, Cause> {
    let bytes = URL_SAFE_NO_PAD.decode(segment).map_err(|_| Cause::Malformed)?;
    parse_object(&bytes, MAX_TOKEN_BYTES, Integers::Wide).map_err(|_| Cause::Malformed)
}

const fn is_base64url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}
