//! From an admitted call to an authorised one: its size, its ticket, its record (semantics,
//! sections 3, 6 and 7).

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::admission::Refusal;
use super::audit::{Confirmed, Scope};
use super::canonical::canonical;
use super::contract::Contract;
use super::json::to_json;
use super::reason::Reason;
use super::record::{
    ArgumentsHashes, CallKey, Claim, Opening, Record, TicketShown, TicketUse, Turned, decide,
};
use super::stages::{Admitted, Authorised};
use super::ticket::{self, CallInHand, Claims, ConfirmationKeys, RefusedTicket, Terms};

/// What every confirmation of this process is judged by.
#[derive(Debug)]
pub struct Confirmations {
    /// The keys: the first signs, all verify.
    pub keys: ConfirmationKeys,
    /// How long a ticket is valid.
    pub ticket_ttl: Duration,
    /// How far clocks may differ.
    pub skew: Duration,
}

/// A call whose size and ticket were judged, and what it asks of the ledger, if it needs it.
#[derive(Debug)]
pub struct Judged {
    admitted: Admitted,
    claim: Option<Box<Claim>>,
}

/// What a person is asked to confirm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// The contract's prompt, rendered from the arguments.
    pub prompt: String,
    /// The arguments as validated, hashed and sent.
    pub arguments_json: String,
    /// Their hash under the current key.
    pub arguments_hash: super::audit::Digest,
    /// That key.
    pub key_id: Arc<str>,
    /// The contract in force.
    pub contract_digest: super::audit::Digest,
}

impl Confirmations {
    /// The terms of tickets whose use this ledger remembers.
    #[must_use]
    pub const fn terms<'a>(&self, ledger_id: &'a str) -> Terms<'a> {
        Terms { ttl: self.ticket_ttl, skew: self.skew, audience: ledger_id }
    }
}

impl Judged {
    /// A plain read: it needs no record, and brings no ticket.
    ///
    /// # Errors
    ///
    /// `CONFIRMATION_UNEXPECTED` for a ticket that nobody asked for. A call that
    /// needs a record is `LEDGER_FAILED` here: without a ledger nothing can be kept.
    pub fn plain(admitted: Admitted, ticket: Option<&str>) -> Result<Self, Box<Refusal>> {
        if admitted.contract().needs_record() {
            return Err(admitted.refuse(Reason::LedgerFailed));
        }
        if ticket.is_some() {
            return Err(admitted.refuse(Reason::ConfirmationUnexpected));
        }
        Ok(Self { admitted, claim: None })
    }

    /// A call that needs a record: within `max_authorised_bytes`, its ticket
    /// judged by itself and against the call in hand. Whether the ticket was
    /// spent or revoked, only the ledger knows.
    ///
    /// # Errors
    ///
    /// `ARGUMENTS_TOO_LARGE`.
    pub fn recorded(
        mut admitted: Admitted,
        ticket: Option<&str>,
        scope: &Scope,
        confirmations: &Confirmations,
        ledger_id: &str,
        now: Timestamp,
    ) -> Result<Self, Box<Refusal>> {
        check_size(&admitted)?;
        let shown = show(&admitted, ticket, scope, confirmations, ledger_id, now);
        if let Some(claims) = shown.claims() {
            // The MAC has verified: from here on the audit may name the ticket.
            admitted.confirm(Arc::new(claims.into()));
        }
        let claim = claim(&admitted, shown.ticket(), scope, confirmations, now);
        Ok(Self { admitted, claim: Some(Box::new(claim)) })
    }

    /// The call.
    #[must_use]
    pub const fn admitted(&self) -> &Admitted {
        &self.admitted
    }

    /// What the call asks of the ledger.
    #[must_use]
    pub fn claim(&self) -> Option<&Claim> {
        self.claim.as_deref()
    }

    /// Authorises the call by what a look into the ledger has shown. Only the
    /// reservation decides; this refuses early what it would refuse.
    ///
    /// # Errors
    ///
    /// The row of section 7's table that does not run the call.
    pub fn authorise(
        self,
        record: Option<&Record>,
        ticket: TicketUse,
        now: Timestamp,
    ) -> Result<Authorised, Box<Refusal>> {
        let Some(mut claim) = self.claim else {
            return Ok(Authorised::plain(self.admitted));
        };
        match decide(record, &claim, ticket, now) {
            Ok(Opening { first_attempt }) => {
                if claim.started.attempt != first_attempt {
                    let mut renumbered = (*claim.started).clone();
                    renumbered.attempt = first_attempt;
                    claim.started = Arc::new(renumbered);
                }
                Ok(Authorised::claiming(self.admitted, claim))
            }
            Err(turned) => Err(self.admitted.turn(turned)),
        }
    }

    /// Whether a ticket issued now would let the call run.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn would_run_confirmed(
        mut self,
        record: Option<&Record>,
        now: Timestamp,
    ) -> Result<Admitted, Turned> {
        if let Some(claim) = &mut self.claim {
            let never = Timestamp::MAX;
            claim.ticket =
                TicketShown::Verified { confirmation_id: Uuid::nil(), expires_at: never };
            decide(record, claim, TicketUse::Unused, now)?;
        }
        Ok(self.admitted)
    }
}

impl Preview {
    /// What a person should see before they confirm this call; `None` for one
    /// that needs no confirmation.
    #[must_use]
    pub fn of(admitted: &Admitted, confirmations: &Confirmations) -> Option<Self> {
        let confirmation = admitted.contract().confirmation.as_ref()?;
        let key = confirmations.keys.current();
        Some(Self {
            prompt: confirmation.prompt.render(admitted.arguments()),
            arguments_json: to_json(admitted.arguments()),
            arguments_hash: key.arguments_hash(admitted.arguments()),
            key_id: Arc::clone(key.id()),
            contract_digest: admitted.contract().digest,
        })
    }
}

impl From<&Claims> for Confirmed {
    fn from(claims: &Claims) -> Self {
        let time = |seconds| Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
        Self {
            confirmation_id: Arc::clone(&claims.confirmation_id),
            confirmed_by_user_id: Arc::clone(&claims.confirmed_by_user_id),
            confirmed_at: time(claims.confirmed_at),
            expires_at: time(claims.expires_at),
            purpose: Arc::clone(&claims.purpose),
        }
    }
}

/// The call as tickets are issued for it and held against it.
#[must_use]
pub fn call_in_hand<'a>(admitted: &'a Admitted, scope: &'a Scope) -> CallInHand<'a> {
    CallInHand {
        tool_call_id: &admitted.subject().tool_call_id,
        tool: &admitted.contract().name,
        contract_digest: admitted.contract().digest,
        context: &scope.context,
        arguments: admitted.arguments(),
    }
}

/// Refused beyond, never truncated: what a person confirms is what is hashed.
fn check_size(admitted: &Admitted) -> Result<(), Box<Refusal>> {
    let limit = admitted.contract().limits.max_authorised_bytes;
    if canonical(admitted.arguments()).len() > limit {
        return Err(admitted.refuse(Reason::ArgumentsTooLarge));
    }
    Ok(())
}

/// What came of the ticket that was shown.
enum Shown {
    Nothing(TicketShown),
    Genuine(Box<Claims>, TicketShown),
}

impl Shown {
    fn claims(&self) -> Option<&Claims> {
        match self {
            Self::Nothing(_) => None,
            Self::Genuine(claims, _) => Some(&**claims),
        }
    }

    const fn ticket(&self) -> TicketShown {
        match self {
            Self::Nothing(shown) | Self::Genuine(_, shown) => *shown,
        }
    }
}

fn show(
    admitted: &Admitted,
    ticket: Option<&str>,
    scope: &Scope,
    confirmations: &Confirmations,
    ledger_id: &str,
    now: Timestamp,
) -> Shown {
    let needed = admitted.contract().needs_ticket();
    let text = match (ticket, needed) {
        (None, true) => return Shown::Nothing(TicketShown::Missing),
        (None, false) => return Shown::Nothing(TicketShown::NotNeeded),
        (Some(_), false) => {
            return Shown::Nothing(TicketShown::Refused(Reason::ConfirmationUnexpected));
        }
        (Some(text), true) => text,
    };
    let terms = confirmations.terms(ledger_id);
    // Revocation is the ledger's to know, and is asked of it with the record.
    let verified = ticket::verify(&confirmations.keys, text, &terms, now, |_| false)
        .and_then(|verified| verified.matches(&call_in_hand(admitted, scope)));
    match verified {
        Ok(confirmed) => {
            let claims = confirmed.claims().clone();
            let shown = verified_ticket(&claims);
            Shown::Genuine(Box::new(claims), shown)
        }
        Err(refused) => refused_ticket(&refused),
    }
}

fn verified_ticket(claims: &Claims) -> TicketShown {
    let expires_at = Timestamp::from_second(claims.expires_at).ok();
    match (Uuid::parse_str(&claims.confirmation_id).ok(), expires_at) {
        (Some(confirmation_id), Some(expires_at)) => {
            TicketShown::Verified { confirmation_id, expires_at }
        }
        _ => TicketShown::Refused(Reason::ConfirmationInvalid),
    }
}

fn refused_ticket(refused: &RefusedTicket) -> Shown {
    let shown = TicketShown::Refused(refused.reason());
    match refused.claims() {
        Some(claims) => Shown::Genuine(Box::new(claims.clone()), shown),
        None => Shown::Nothing(shown),
    }
}

fn claim(
    admitted: &Admitted,
    ticket: TicketShown,
    scope: &Scope,
    confirmations: &Confirmations,
    now: Timestamp,
) -> Claim {
    let contract: &Contract = admitted.contract();
    let mut hashes = confirmations.keys.arguments_hashes(admitted.arguments()).into_iter();
    let pair = |hash: ticket::ArgumentsHash| (hash.key_id, hash.hash);
    let current = hashes.next().map_or_else(|| unreachable!("there is a current key"), pair);
    Claim {
        key: CallKey::new(&scope.context, &admitted.subject().tool_call_id),
        hashes: ArgumentsHashes::new(current, hashes.map(pair).collect()),
        reads: contract.effect == super::contract::ToolEffect::Read,
        handler_deduplicates: contract.handler_deduplicates,
        max_attempts: contract.limits.max_attempts,
        kept: contract.limits.record_kept,
        ticket,
        started: Arc::new(scope.started(admitted.subject(), admitted.first_attempt(), now)),
    }
}
