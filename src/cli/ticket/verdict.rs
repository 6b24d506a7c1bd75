//! The gate's verification of a ticket, check by check.

use std::io::{self, Write};

use jiff::Timestamp;

use super::{Judge, from};
use crate::domain::ticket::{Check, Claims, RefusedTicket, Terms, verify};

/// What the gate's verification said.
pub(super) struct Verdict<'a> {
    judge: &'a Judge<'a>,
    /// The key that signed it.
    key_id: Option<String>,
    claims: Option<Claims>,
    refused: Option<Check>,
}

impl<'a> Verdict<'a> {
    pub(super) fn of(text: &str, judge: &'a Judge<'a>, audience: &str, now: Timestamp) -> Self {
        // The ledger is the running gate's: the ticket's own audience is as good as any here.
        let terms = Terms { ttl: judge.ttl, skew: judge.skew, audience };
        match verify(judge.keys, text, &terms, now, |_| false) {
            Ok(verified) => {
                let claims = verified.claims();
                Self {
                    judge,
                    key_id: Some(verified.key_id().to_string()),
                    refused: differs_from_policy(claims, judge),
                    claims: Some(claims.clone()),
                }
            }
            Err(refused) => Self {
                judge,
                key_id: None,
                refused: Some(RefusedTicket::check(&refused)),
                claims: refused.claims().cloned(),
            },
        }
    }

    pub(super) fn headline(verdict: Option<&Self>) -> &'static str {
        match verdict {
            Some(verdict) if verdict.is_signed() => {
                "VERIFIED: this gate signed the ticket; what it says is below."
            }
            Some(_) => "UNVERIFIED: this gate did not sign the text; believe nothing below.",
            None => {
                "UNVERIFIED: no keys were given, and anybody can write what is below. \
                 Give the configuration to verify it."
            }
        }
    }

    fn is_signed(&self) -> bool {
        self.refused.is_none_or(|check| check > Check::Mac)
    }

    /// Whether nothing refuses it.
    pub(super) fn print(&self, now: Timestamp, out: &mut dyn Write) -> io::Result<bool> {
        writeln!(out, "\nchecks")?;
        for check in Check::ALL {
            let (word, text) = self.state(check, now);
            writeln!(out, "  {word:<8} {text}")?;
        }
        match self.refused {
            Some(check) => {
                let row = check.reason().row();
                writeln!(out, "\nRefused: {}. {}", row.code, row.advice)?;
            }
            None => writeln!(
                out,
                "\nGood for the call that it names, unless it is spent or revoked or another ledger's."
            )?,
        }
        Ok(self.refused.is_none())
    }

    fn state(&self, check: Check, now: Timestamp) -> (&'static str, String) {
        let name = name_of(check);
        match self.refused {
            Some(refused) if check == refused => ("refused", self.why(check, now)),
            Some(refused) if check > refused => ("-", format!("{name}: not reached")),
            _ if needs_call(check) => ("-", format!("{name}: needs the call")),
            _ if needs_ledger(check) => ("-", format!("{name}: needs the ledger")),
            _ => match (&self.key_id, check) {
                (Some(key_id), Check::Mac) => ("ok", format!("{name}, by the key {key_id}")),
                _ => ("ok", name.to_owned()),
            },
        }
    }

    /// What is wrong, in this ticket's terms.
    fn why(&self, check: Check, now: Timestamp) -> String {
        let name = name_of(check);
        let seen = |time: i64| match Timestamp::from_second(time) {
            Ok(time) => format!("{time}, {}", from(now, time)),
            Err(_) => "a time beyond all calendars".to_owned(),
        };
        match (check, &self.claims) {
            (Check::Expiry, Some(claims)) => format!("{name}: {}", seen(claims.expires_at)),
            (Check::ConfirmedAt, Some(claims)) => format!(
                "{name}: {}, and the skew is {} s",
                seen(claims.confirmed_at),
                self.judge.skew.as_secs()
            ),
            (Check::Lifetime, Some(claims)) => format!(
                "{name}: it lives for {} s, and this gate issues for {} s",
                claims.expires_at.saturating_sub(claims.confirmed_at),
                self.judge.ttl.as_secs()
            ),
            (Check::Header, _) => {
                let known: Vec<&str> = self.judge.keys.ids().map(|id| &**id).collect();
                format!("{name}: the keys known here are {}", known.join(", "))
            }
            _ => format!("{name}: {}", fault_of(check)),
        }
    }
}

/// What of the call the policy alone can tell.
fn differs_from_policy(claims: &Claims, judge: &Judge<'_>) -> Option<Check> {
    let in_force = (judge.contract_digest)(&claims.tool);
    match in_force {
        None => Some(Check::Tool),
        Some(_) if claims.purpose != claims.tool => Some(Check::Purpose),
        Some(digest) if digest != claims.contract_digest => Some(Check::Contract),
        Some(_) => None,
    }
}

const fn needs_call(check: Check) -> bool {
    matches!(
        check,
        Check::CallId | Check::Tenant | Check::Conversation | Check::User | Check::Arguments
    )
}

const fn needs_ledger(check: Check) -> bool {
    matches!(check, Check::Ledger | Check::Revocation)
}

const fn name_of(check: Check) -> &'static str {
    match check {
        Check::Shape => "size and shape",
        Check::Header => "header of a known key",
        Check::Mac => "signature",
        Check::Claims => "set, types and forms of the claims",
        Check::Lifetime => "exp is iat and the lifetime",
        Check::Expiry => "not expired",
        Check::ConfirmedAt => "not from the future",
        Check::Ledger => "aud is this ledger",
        Check::Revocation => "not revoked",
        Check::CallId => "tool_call_id",
        Check::Tool => "tool",
        Check::Purpose => "purpose",
        Check::Tenant => "tenant_id",
        Check::Conversation => "conversation_id",
        Check::User => "user_id",
        Check::Contract => "contract_digest",
        Check::Arguments => "arguments_hash",
    }
}

/// What is wrong where there is nothing of this ticket to add.
const fn fault_of(check: Check) -> &'static str {
    match check {
        Check::Shape => "not three segments of base64url without padding, or too long",
        Check::Mac => "text or key were changed since it was signed",
        Check::Claims => "one is missing, added, twice, of another type or outside its form",
        Check::Tool => "the policy has no such tool",
        Check::Purpose => "it names another tool than the ticket",
        Check::Contract => "the tool's contract was changed since the person confirmed",
        _ => "it differs",
    }
}
