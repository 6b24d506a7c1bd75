//! Secrets: files read byte for byte, never arguments or environment.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use hkdf::Hkdf;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::domain::audit::Digest;

/// The least length of a secret, in bytes.
pub const MIN_SECRET_BYTES: usize = 32;
const MAX_SECRET_BYTES: u64 = 4096;
/// Fewer different bytes than this cannot be random: 32 random bytes have about 30.
const MIN_DIFFERENT_BYTES: usize = 8;

/// A secret. Zeroised on drop, never shown.
pub struct Secret(Zeroizing<Vec<u8>>);

/// Why a file is not taken as a secret. Never holds its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretFault {
    /// It cannot be read.
    Unreadable(std::io::ErrorKind),
    /// It is no regular file.
    NotAFile,
    /// Others on the machine may read it.
    WorldReadable(u32),
    /// It is shorter than [`MIN_SECRET_BYTES`].
    TooShort(usize),
    /// It is longer than any secret.
    TooLong,
    /// Its bytes are a pattern or an example that everybody knows.
    WellKnown,
    /// It holds what cannot be sent as a bearer credential; a line break at the end, mostly.
    NotPrintable,
}

impl Secret {
    /// Reads a secret file.
    ///
    /// # Errors
    ///
    /// See [`SecretFault`].
    pub fn read(path: &Path) -> Result<Self, SecretFault> {
        // Before it is opened: a pipe would keep whoever opens it waiting.
        let found = std::fs::metadata(path);
        if !found.map_err(|error| SecretFault::Unreadable(error.kind()))?.is_file() {
            return Err(SecretFault::NotAFile);
        }
        let file = File::open(path).map_err(|error| SecretFault::Unreadable(error.kind()))?;
        let metadata = file.metadata().map_err(|error| SecretFault::Unreadable(error.kind()))?;
        if !metadata.is_file() {
            return Err(SecretFault::NotAFile);
        }
        let mode = metadata.mode() & 0o777;
        if mode & 0o007 != 0 {
            return Err(SecretFault::WorldReadable(mode));
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(MIN_SECRET_BYTES * 4));
        file.take(MAX_SECRET_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| SecretFault::Unreadable(error.kind()))?;
        Self::from_bytes(bytes)
    }

    /// Judges the content of a secret.
    ///
    /// # Errors
    ///
    /// See [`SecretFault`].
    pub fn from_bytes(bytes: Zeroizing<Vec<u8>>) -> Result<Self, SecretFault> {
        if bytes.len() < MIN_SECRET_BYTES {
            return Err(SecretFault::TooShort(bytes.len()));
        }
        if bytes.len() as u64 > MAX_SECRET_BYTES {
            return Err(SecretFault::TooLong);
        }
        if is_well_known(&bytes) {
            return Err(SecretFault::WellKnown);
        }
        Ok(Self(bytes))
    }

    /// The secret as a bearer credential.
    ///
    /// # Errors
    ///
    /// `NotPrintable` where metadata could not carry it.
    pub fn as_credential(&self) -> Result<&[u8], SecretFault> {
        if self.0.iter().all(u8::is_ascii_graphic) {
            Ok(&self.0)
        } else {
            Err(SecretFault::NotPrintable)
        }
    }

    /// SHA-256 of the secret: equal for equal secrets, and as good as nothing to who guesses
    /// at 32 random bytes.
    #[must_use]
    pub fn print(&self) -> Digest {
        Digest(Sha256::digest(&*self.0).into())
    }

    /// Whether two secrets are one.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        use subtle::ConstantTimeEq as _;
        self.0.ct_eq(&other.0).into()
    }

    /// A key for one purpose: HKDF-SHA256 (RFC 5869) with empty salt and the purpose as info.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> Zeroizing<[u8; 32]> {
        let mut key = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(None, &self.0)
            .expand(purpose.as_bytes(), &mut *key)
            .unwrap_or_else(|_| unreachable!("HKDF-SHA256 gives up to 8,160 bytes"));
        key
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl SecretFault {
    /// What an operator should do about it.
    #[must_use]
    pub const fn mend(&self) -> &'static str {
        match self {
            Self::WorldReadable(_) => {
                "chmod 0600 the file, or give a Secret volume defaultMode: 0440"
            }
            Self::Unreadable(_) | Self::NotAFile => {
                "name a file that the gate's user can read; toolgate keygen FILE makes one"
            }
            Self::NotPrintable => {
                "write the file without a line break; toolgate keygen FILE makes one"
            }
            Self::TooShort(_) | Self::TooLong | Self::WellKnown => {
                "make a new one: toolgate keygen FILE"
            }
        }
    }
}

impl fmt::Display for SecretFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(kind) => write!(f, "the secret file cannot be read: {kind}"),
            Self::NotAFile => f.write_str("the secret is not a regular file"),
            Self::WorldReadable(mode) => {
                write!(f, "others may read the secret file (mode {mode:04o})")
            }
            Self::TooShort(length) => {
                write!(f, "the secret has {length} bytes; at least {MIN_SECRET_BYTES} are needed")
            }
            Self::TooLong => write!(f, "the secret has more than {MAX_SECRET_BYTES} bytes"),
            Self::WellKnown => f.write_str("the secret is a pattern or a published example"),
            Self::NotPrintable => f.write_str(
                "the secret holds a byte that metadata cannot carry as a credential (a line break at its end, perhaps)",
            ),
        }
    }
}

/// Sets the mode of a secret file that the gate itself writes.
pub(crate) const SECRET_FILE_MODE: u32 = 0o600;

/// Writes a new secret file, readable by its owner alone. Never overwrites.
///
/// # Errors
///
/// `AlreadyExists`, or what the operating system says.
pub fn write_new(path: &Path, content: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(SECRET_FILE_MODE)
        .open(path)?;
    // The mode at creation is cut by the umask, never widened; this makes it exact.
    file.set_permissions(std::fs::Permissions::from_mode(SECRET_FILE_MODE))?;
    file.write_all(content)?;
    file.sync_all()
}

/// 32 random bytes as 64 hexadecimal digits: a key and a credential at once.
///
/// # Errors
///
/// Where the operating system gives no randomness.
pub fn generate() -> Result<Zeroizing<String>, getrandom::Error> {
    use std::fmt::Write as _;
    let mut bytes = Zeroizing::new([0_u8; 32]);
    getrandom::fill(&mut *bytes)?;
    let mut text = Zeroizing::new(String::with_capacity(64));
    for byte in bytes.iter() {
        write!(text, "{byte:02x}").unwrap_or_else(|_| unreachable!("a String takes any text"));
    }
    Ok(text)
}

fn is_well_known(bytes: &[u8]) -> bool {
    let mut seen = [false; 256];
    for byte in bytes {
        seen[usize::from(*byte)] = true;
    }
    let different = seen.iter().filter(|seen| **seen).count();
    let counts_up = bytes.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1));
    let counts_down = bytes.windows(2).all(|pair| pair[1] == pair[0].wrapping_sub(1));
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    let example = [
        "changeme",
        "change-me",
        "change_me",
        "example",
        "password",
        "placeholder",
        "secret-key",
        "your-secret",
    ];
    different < MIN_DIFFERENT_BYTES
        || counts_up
        || counts_down
        || repeats(bytes)
        || example.iter().any(|word| text.contains(word))
}

/// Whether the bytes are one block of at most 16 over and over.
fn repeats(bytes: &[u8]) -> bool {
    (1..=16).any(|period| bytes.iter().zip(&bytes[period.min(bytes.len())..]).all(|(a, b)| a == b))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn judge(bytes: &[u8]) -> Result<Secret, SecretFault> {
        Secret::from_bytes(Zeroizing::new(bytes.to_vec()))
    }

    #[test]
    fn short_and_well_known_secrets_are_refused() {
        assert_eq!(judge(&[7; 31]).unwrap_err(), SecretFault::TooShort(31));
        let counting: Vec<u8> = (0..32).collect();
        let counting_on: Vec<u8> = (32..64).collect();
        let counting_down: Vec<u8> = (0..32).rev().collect();
        for known in [
            &[0; 32][..],
            &[0xff; 64],
            &counting,
            &counting_on,
            &counting_down,
            b"0123456789abcdef0123456789abcdef",
            b"please-changeme-please-changeme-1",
            b"My-Example-secret-of-32-bytes-or-so",
        ] {
            assert_eq!(judge(known).unwrap_err(), SecretFault::WellKnown, "{known:?}");
        }
    }

    #[test]
    fn a_generated_secret_passes_and_derives_different_keys() {
        let text = generate().unwrap();
        let secret = judge(text.as_bytes()).unwrap();
        assert!(secret.as_credential().is_ok());
        assert_ne!(*secret.derive("toolgate/audit/v1"), *secret.derive("toolgate/journal/v1"));
        assert!(!secret.is_same_as(&judge(generate().unwrap().as_bytes()).unwrap()));
    }

    #[test]
    fn derivation_is_hkdf_sha256_with_empty_salt() {
        // Computed with Python: HMAC(key = 32 zero bytes, secret), then HMAC(prk, info ‖ 01).
        let secret = judge(b"W8kq3vXz6Jm1Rt5Yp0Lb7Nd2Hs9Cf4Ga").unwrap();
        let hex = crate::domain::audit::Digest(*secret.derive("toolgate/audit/v1")).to_string();
        assert_eq!(hex, "e726ec4995976c9d6df2297ed2d93b4da973cd9586defdfab50ec459b20bbfa4");
    }

    #[test]
    fn a_line_break_is_no_credential() {
        let secret = judge(b"W8kq3vXz6Jm1Rt5Yp0Lb7Nd2Hs9Cf4Ga\n").unwrap();
        assert_eq!(secret.as_credential().unwrap_err(), SecretFault::NotPrintable);
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_and_a_written_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        write_new(&path, generate().unwrap().as_bytes()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(Secret::read(&path).is_ok());
        assert_eq!(
            write_new(&path, b"other").unwrap_err().kind(),
            std::io::ErrorKind::AlreadyExists
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
        assert_eq!(Secret::read(&path).unwrap_err(), SecretFault::WorldReadable(0o604));
        let missing = Secret::read(&directory.path().join("none")).unwrap_err();
        assert_eq!(missing, SecretFault::Unreadable(std::io::ErrorKind::NotFound));
        assert_eq!(Secret::read(directory.path()).unwrap_err(), SecretFault::NotAFile);
    }
}
