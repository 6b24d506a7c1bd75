//! Issuers of the JWTs that callers may show.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::Compiler;
use super::callers::{CallerConfig, Shows};
use crate::adapters::watched::Watched;
use crate::config::fields::{Fields, text_of, wrong_type};
use crate::domain::caller::{Role, Roles, Tenants};
use crate::domain::jwt::{Claim, TenantsFrom, Terms, has_form};
use crate::domain::refusal::Code;
use crate::grpc::callers::jwt::MAX_ISSUERS;
use crate::grpc::callers::jwt_keys::{KeySource, VerificationKeys};

pub(super) const JWT: [&str; 10] = [
    "issuer",
    "audience",
    "jwks_file",
    "algorithms",
    "keys",
    "typ",
    "leeway",
    "tenants",
    "claims",
    "roles",
];
pub(super) const JWT_KEY: [&str; 3] = ["id", "algorithm", "file"];
pub(super) const JWT_CLAIMS: [&str; 4] = ["tenant", "user", "roles", "user_roles"];

const LEEWAY: Duration = Duration::from_secs(30);
const MAX_LEEWAY: Duration = Duration::from_mins(1);

/// An issuer, and the keys that it has now.
#[derive(Debug)]
pub struct JwtConfig {
    /// What its tokens must say.
    pub terms: Terms,
    /// Where its keys are.
    pub source: KeySource,
    /// What was there when the configuration was loaded.
    pub keys: VerificationKeys,
    /// To see when that changes.
    pub files: Watched,
}

impl Compiler<'_> {
    pub(super) fn jwt(&mut self, top: &Fields<'_>, callers: &[CallerConfig]) -> Vec<JwtConfig> {
        let excused = self.self_confirmation(top);
        let items = top.list("jwt", &mut self.findings);
        if items.len() > MAX_ISSUERS {
            self.find(
                "/jwt",
                Code::LimitOutOfBounds,
                format!("there are more than {MAX_ISSUERS} issuers"),
                "leave those whose tokens callers of this gate show",
            );
            return Vec::new();
        }
        let mut issuers: Vec<JwtConfig> = Vec::with_capacity(items.len());
        for (pointer, item) in items {
            let Some(issuer) = self.issuer(&pointer, item, excused) else { continue };
            let is_shared = |other: &&JwtConfig| {
                let named = |audience| other.terms.audiences.contains(audience);
                other.terms.issuer == issuer.terms.issuer
                    && issuer.terms.audiences.iter().any(named)
            };
            if issuers.iter().find(is_shared).is_some() {
                self.find(
                    format!("{pointer}/audience"),
                    Code::InvalidValue,
                    "another entry takes the same tokens: it has this issuer and one of these audiences",
                    "write one entry for each issuer, or give each its own audience",
                );
            }
            issuers.push(issuer);
        }
        let is_token = |caller: &CallerConfig| match &caller.shows {
            Shows::Secret(secret) => secret.as_credential().is_ok_and(has_form),
            _ => false,
        };
        if !issuers.is_empty() && callers.iter().any(is_token) {
            self.find(
                "/callers",
                Code::SecretRefused,
                "a caller's secret has the form of a token, and would be judged as one",
                "make a new one: toolgate keygen FILE",
            );
        }
        issuers
    }

    /// Every part is compiled before any may be missing.
    fn issuer(&mut self, pointer: &str, item: &Value, excused: bool) -> Option<JwtConfig> {
        let fields = self.fields(item, pointer, &JWT)?;
        let issuer = fields.required_text("issuer", &mut self.findings);
        fields.required("audience", &mut self.findings);
        let audiences = self.one_or_several(&fields, "audience");
        let keys = self.issuer_keys(&fields);
        let types = fields.get("typ").map(|_| self.one_or_several(&fields, "typ"));
        let leeway =
            fields.duration("leeway", LEEWAY, Duration::ZERO..=MAX_LEEWAY, &mut self.findings);
        if leeway.subsec_nanos() != 0 {
            self.find(
                fields.at("leeway"),
                Code::InvalidValue,
                "a token's times are compared in whole seconds",
                "write a number of whole seconds, such as 30s",
            );
        }
        let none = Value::Object(serde_json::Map::new());
        let claims = fields.required("claims", &mut self.findings).unwrap_or(&none);
        let claims = self.fields(claims, &fields.at("claims"), &JWT_CLAIMS)?;
        let claim =
            |name, compiler: &mut Self| claims.text(name, &mut compiler.findings).map(Claim::new);
        let tenants = self.issuer_tenants(&fields, &claims);
        let user = claim("user", self);
        let user_roles = claim("user_roles", self);
        if user_roles.is_some() && user.is_none() {
            self.find(
                claims.at("user"),
                Code::MissingField,
                "there are a user's roles, and no user who has them",
                "name the claim with the user, such as user: sub",
            );
        }
        let roles_claim = claims.required_text("roles", &mut self.findings).map(Claim::new);
        let roles = self.role_map(&fields, excused);
        let (source, files, keys) = keys?;
        let terms = Terms {
            issuer: issuer?.to_owned(),
            audiences,
            types,
            leeway: i64::try_from(leeway.as_secs()).unwrap_or(0),
            tenants: tenants?,
            user,
            roles_claim: roles_claim?,
            roles,
            user_roles,
            allows_self_confirmation: excused,
        };
        Some(JwtConfig { terms, source, keys, files })
    }

    /// A text, or a list of at least one.
    fn one_or_several(&mut self, fields: &Fields<'_>, name: &str) -> Vec<String> {
        let texts = match fields.get(name) {
            None => return Vec::new(),
            Some(Value::Array(_)) => {
                let items = fields.list(name, &mut self.findings);
                items
                    .into_iter()
                    .filter_map(|(pointer, item)| text_of(item, &pointer, &mut self.findings))
                    .map(str::to_owned)
                    .collect()
            }
            Some(value) => {
                let text = text_of(value, &fields.at(name), &mut self.findings);
                text.map(str::to_owned).into_iter().collect::<Vec<_>>()
            }
        };
        if texts.is_empty() {
            self.find(
                fields.at(name),
                Code::MissingField,
                format!("{name} names nothing"),
                format!("write {name}: TEXT, or a list of several"),
            );
        }
        texts
    }

    /// Who the tokens may speak for must be said, one way or another.
    fn issuer_tenants(&mut self, fields: &Fields<'_>, claims: &Fields<'_>) -> Option<TenantsFrom> {
        let claim = claims.text("tenant", &mut self.findings).map(Claim::new);
        match (claim, fields.get("tenants")) {
            (Some(claim), None) => Some(TenantsFrom::Claim(claim)),
            (None, Some(Value::String(word))) if word == "any" => {
                Some(TenantsFrom::Fixed(Tenants::All))
            }
            (None, Some(Value::Array(_))) => self.tenants(fields).map(TenantsFrom::Fixed),
            (None, None) => {
                self.find(
                    claims.at("tenant"),
                    Code::MissingField,
                    "nothing says which tenants these tokens may speak for",
                    "name the claim with the tenant; or, for services without one, write tenants: [NAME] or tenants: any beside claims",
                );
                None
            }
            (None, Some(_)) => {
                let mend = "write tenants: [NAME, …] or tenants: any";
                self.findings.push(wrong_type(&fields.at("tenants"), "a list or any", mend));
                None
            }
            (Some(_), Some(_)) => {
                self.find(
                    fields.at("tenants"),
                    Code::InvalidValue,
                    "the tenants are both in a claim and fixed here",
                    "keep claims.tenant, or keep tenants",
                );
                None
            }
        }
    }

    /// `{VALUE: proposer}` or `{VALUE: [auditor, operator]}`: what gives which roles.
    fn role_map(&mut self, fields: &Fields<'_>, excused: bool) -> BTreeMap<String, Roles> {
        let Some(value) = fields.required("roles", &mut self.findings) else {
            return BTreeMap::new();
        };
        let members = value.as_object().filter(|members| !members.is_empty());
        let Some(members) = members else {
            let mend = "write roles: {VALUE OF THE CLAIM: proposer}";
            self.findings.push(wrong_type(&fields.at("roles"), "a mapping to roles", mend));
            return BTreeMap::new();
        };
        let mut map = BTreeMap::new();
        for (name, value) in members {
            let pointer = crate::domain::schema::join(&fields.at("roles"), [name.as_str()]);
            let words = match value {
                Value::Array(items) => items.as_slice(),
                word => std::slice::from_ref(word),
            };
            let find = |word: &Value| Role::ALL.into_iter().find(|role| *word == role.as_str());
            let found: Vec<_> = words.iter().filter_map(find).collect();
            if found.is_empty() || found.len() != words.len() {
                let wanted = Role::ALL.map(Role::as_str).join(" or ");
                let mend = "name one role, or a list of them";
                self.findings.push(wrong_type(&pointer, &wanted, mend));
            }
            let roles: Roles = found.into_iter().collect();
            if roles.may_confirm_its_own() && !excused {
                self.find(
                    pointer,
                    Code::InvalidValue,
                    "whoever has this could confirm what they propose themselves",
                    "map it to one of the two; or, where that is meant, add allow_self_confirmation: <reason> at the top level",
                );
            }
            map.insert(name.clone(), roles);
        }
        map
    }
}
