//! Where an issuer's public keys are, and whether they will do.

use serde_json::Value;

use super::Compiler;
use super::jwt::JWT_KEY;
use crate::adapters::watched::Watched;
use crate::config::fields::{Fields, wrong_type};
use crate::domain::jwt::{Algorithm, MAX_KEY_ID_BYTES};
use crate::domain::refusal::Code;
use crate::grpc::callers::jwt_keys::{KeySource, MAX_KEYS, PemFile, VerificationKeys};

impl Compiler<'_> {
    /// A JWK set with its algorithms, or PEM files; read at once.
    pub(super) fn issuer_keys(
        &mut self,
        fields: &Fields<'_>,
    ) -> Option<(KeySource, Watched, VerificationKeys)> {
        let (place, source) = match (fields.get("jwks_file"), fields.get("keys")) {
            (Some(_), None) => ("jwks_file", self.jwks(fields)?),
            (None, Some(_)) => ("keys", self.pem_files(fields)?),
            (None, None) => {
                self.find(
                    fields.at("keys"),
                    Code::MissingField,
                    "there is no key to verify this issuer's tokens with",
                    "add keys: [{id: KID, algorithm: ES256, file: PUBLIC.pem}], or jwks_file: FILE and algorithms: [RS256]",
                );
                return None;
            }
            (Some(_), Some(_)) => {
                self.find(
                    fields.at("jwks_file"),
                    Code::InvalidValue,
                    "the keys are both in a JWK set and in files of their own",
                    "keep jwks_file, or keep keys",
                );
                return None;
            }
        };
        let files = Watched::read(source.paths(), source.max_bytes());
        match files.contents() {
            Err(fault) => {
                self.find(
                    fields.at(place),
                    Code::UnreadableFile,
                    fault.to_string(),
                    "name a file that the gate's user can read",
                );
                None
            }
            Ok(contents) => match source.keys(contents) {
                Ok(keys) => Some((source, files, keys)),
                Err(fault) => {
                    self.find(fields.at(place), Code::KeyRefused, fault.to_string(), fault.mend());
                    None
                }
            },
        }
    }

    fn jwks(&mut self, fields: &Fields<'_>) -> Option<KeySource> {
        let path = fields.text("jwks_file", &mut self.findings);
        fields.required("algorithms", &mut self.findings);
        let items = fields.list("algorithms", &mut self.findings);
        let count = items.len();
        let algorithms: Vec<_> = items
            .into_iter()
            .filter_map(|(pointer, item)| self.algorithm(&pointer, item))
            .collect();
        if count == 0 {
            self.find(
                fields.at("algorithms"),
                Code::MissingField,
                "no algorithm is named, and none is taken from a token",
                "write algorithms: [RS256], or what the issuer signs with",
            );
        }
        let is_whole = count > 0 && algorithms.len() == count;
        path.filter(|_| is_whole).map(|path| KeySource::Jwks(self.relative(path), algorithms))
    }

    fn pem_files(&mut self, fields: &Fields<'_>) -> Option<KeySource> {
        if fields.get("algorithms").is_some() {
            self.find(
                fields.at("algorithms"),
                Code::InvalidValue,
                "each of the keys names its algorithm",
                "remove it",
            );
        }
        let items = fields.list("keys", &mut self.findings);
        let count = items.len();
        if count == 0 || count > MAX_KEYS {
            self.find(
                fields.at("keys"),
                Code::LimitOutOfBounds,
                format!("there must be 1 to {MAX_KEYS} keys"),
                "write keys: [{id: KID, algorithm: ES256, file: PUBLIC.pem}]",
            );
            return None;
        }
        let files: Vec<_> =
            items.into_iter().filter_map(|(pointer, item)| self.pem_file(&pointer, item)).collect();
        (files.len() == count).then_some(KeySource::Pem(files))
    }

    fn pem_file(&mut self, pointer: &str, item: &Value) -> Option<PemFile> {
        let fields = self.fields(item, pointer, &JWT_KEY)?;
        let id = fields.required_text("id", &mut self.findings);
        if id.is_some_and(|id| id.len() > MAX_KEY_ID_BYTES) {
            self.find(
                fields.at("id"),
                Code::InvalidValue,
                format!("the id has more than {MAX_KEY_ID_BYTES} bytes"),
                "write the kid of the issuer's tokens",
            );
        }
        let algorithm = fields
            .required("algorithm", &mut self.findings)
            .and_then(|value| self.algorithm(&fields.at("algorithm"), value));
        let path = fields.required_text("file", &mut self.findings);
        let (id, path) = (id?.to_owned(), self.relative(path?));
        Some(PemFile { id, algorithm: algorithm?, path })
    }

    fn algorithm(&mut self, pointer: &str, value: &Value) -> Option<Algorithm> {
        let found = Algorithm::ALL.into_iter().find(|algorithm| *value == algorithm.as_str());
        if found.is_none() {
            let names = Algorithm::ALL.map(Algorithm::as_str).join(", ");
            let mend =
                "name what the issuer signs with; shared secrets (HS256) and none are not taken";
            self.findings.push(wrong_type(pointer, &format!("one of {names}"), mend));
        }
        found
    }
}
