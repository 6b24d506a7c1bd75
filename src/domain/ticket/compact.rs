//! The compact serialisation: three segments of base64url, signed as they stand.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq as _;

use super::check::Check;
use super::keys::{ConfirmationKey, ConfirmationKeys};
use crate::domain::json::{Integers, Object, parse_object};

/// The most bytes of a ticket.
pub const MAX_TICKET_BYTES: usize = 4096;

/// The key whose ticket this is, and the payload that it signed, still encoded.
///
/// # Errors
///
/// `Shape`, `Header` or `Mac`. Nothing of the payload decides which.
pub(super) fn authenticate<'k, 't>(
    keys: &'k ConfirmationKeys,
    text: &'t str,
) -> Result<(&'k ConfirmationKey, &'t str), Check> {
    let segments = Segments::split(text).ok_or(Check::Shape)?;
    let key = keys.with_header(segments.header).ok_or(Check::Header)?;
    let mac = key.sign(segments.signed).0;
    if mac.ct_eq(&segments.mac).into() { Ok((key, segments.payload)) } else { Err(Check::Mac) }
}

/// The ticket with this payload.
pub(super) fn sign(key: &ConfirmationKey, payload: &str) -> String {
    let mut text = format!("{}.", key.header());
    URL_SAFE_NO_PAD.encode_string(payload, &mut text);
    let mac = key.sign(&text);
    text.push('.');
    URL_SAFE_NO_PAD.encode_string(mac.0, &mut text);
    text
}

pub(super) fn encode(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

/// The strict JSON object in a segment.
pub(super) fn object(segment: &str) -> Option<Object> {
    let bytes = decode(segment)?;
    parse_object(&bytes, MAX_TICKET_BYTES, Integers::Safe).ok()
}

/// The bytes of a segment in the one encoding they have: no padding, no bits left over.
fn decode(segment: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(segment).ok()
}

struct Segments<'t> {
    /// Header and payload with the full stop between them.
    signed: &'t str,
    header: &'t str,
    payload: &'t str,
    mac: [u8; 32],
}

impl<'t> Segments<'t> {
    fn split(text: &'t str) -> Option<Self> {
        if text.len() > MAX_TICKET_BYTES {
            return None;
        }
        let (signed, mac) = text.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let is_encoded = |segment: &str| !segment.is_empty() && segment.bytes().all(is_base64url);
        if !is_encoded(header) || !is_encoded(payload) {
            return None;
        }
        let mac = decode(mac)?.try_into().ok()?;
        Some(Self { signed, header, payload, mac })
    }
}

fn is_base64url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}
