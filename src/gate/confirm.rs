//! Confirmations: what a person is shown, and the ticket once they have agreed.

use std::sync::Arc;

use jiff::Timestamp;
use uuid::Uuid;

use super::held::Held;
use super::in_force::InForce;
use super::{Gate, Verdict, pair};
use crate::domain::admission::{self, Refusal};
use crate::domain::audit::{AdminKind, Confirmed, Entry, Scope};
use crate::domain::authorisation::{Confirmations, Preview, call_in_hand};
use crate::domain::proposal::{Context, Proposal};
use crate::domain::reason::Reason;
use crate::domain::refused::Refused;
use crate::domain::stages::{Admitted, TraceContext};
use crate::domain::ticket::{self, Issued};
use crate::domain::watermark::ClockState;
use crate::ports::{Durability, Revoked};

/// A call that a person has confirmed, and the preview that they saw.
#[derive(Debug)]
pub struct IssueRequest {
    /// From the authenticated caller.
    pub context: Arc<Context>,
    /// The complete proposal.
    pub proposal: Proposal,
    /// Who confirmed.
    pub confirming_user_id: String,
    /// Their roles.
    pub confirming_user_roles: Vec<String>,
    /// From the preview, in hex.
    pub arguments_hash: String,
    /// From the preview.
    pub key_id: String,
    /// From the preview, in hex.
    pub contract_digest: String,
    /// W3C trace context to record.
    pub trace: Option<TraceContext>,
}

/// A recorded revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revocation {
    /// When it was recorded.
    pub revoked_at: Timestamp,
    /// Whether the ticket had been spent before.
    pub was_spent: bool,
}

impl IssueRequest {
    /// Whether the person saw what would be confirmed now.
    fn saw(&self, current: &Preview) -> bool {
        self.arguments_hash == current.arguments_hash.to_string()
            && self.key_id == *current.key_id
            && self.contract_digest == current.contract_digest.to_string()
    }
}

impl Gate {
    /// Issues a ticket for exactly the call that was previewed, and records that.
    ///
    /// # Errors
    ///
    /// Why there is none. Nothing is recorded of it.
    pub async fn issue(self: &Arc<Self>, request: IssueRequest) -> Result<Issued, Refused> {
        let gate = Arc::clone(self);
        // A task of its own: what is under way is recorded, whoever still waits for it.
        let task = self.tasks.spawn(async move { gate.issue_recorded(request).await });
        task.await.map_err(|_| Refused::Internal)?
    }

    async fn issue_recorded(&self, request: IssueRequest) -> Result<Issued, Refused> {
        let in_force = self.in_force();
        let (recorder, confirmations) = self.confirming(&in_force)?;
        if self.is_draining() {
            return Err(Refused::Draining);
        }
        if !self.ports.journal.is_ready() {
            return Err(Refused::JournalUnavailable);
        }
        let scope = in_force.scope(Arc::clone(&request.context), request.trace.as_ref());
        let proposals = std::slice::from_ref(&request.proposal);
        admission::check_batch(&scope, in_force.policy(), proposals)
            .map_err(|refused| Refused::NotConfirmable(refused.refusal.reason))?;
        let (admitted, now) = self.confirmable(&in_force, &scope, &request.proposal).await?;
        let confirmation = admitted
            .contract()
            .confirmation
            .as_ref()
            .ok_or(Refused::NotConfirmable(Reason::ConfirmationUnexpected))?;
        let current = Preview::of(&admitted, confirmations);
        if !current.is_some_and(|current| request.saw(&current)) {
            return Err(Refused::PreviewStale);
        }
        let roles = request.confirming_user_roles.iter().map(String::as_str);
        let user = &scope.context.user_id;
        ticket::may_confirm(confirmation, user, &request.confirming_user_id, roles)
            .map_err(|_| Refused::MayNotConfirm)?;
        let ledger_id = recorder.ledger.id();
        let issued = ticket::issue(
            &confirmations.keys,
            Uuid::new_v4(),
            &call_in_hand(&admitted, &scope),
            &request.confirming_user_id,
            &confirmations.terms(&ledger_id),
            now,
        );
        let kind = AdminKind::issued(&Confirmed::from(&issued.claims), &issued.claims.tool_call_id);
        self.record_admin(&scope, &issued.claims.confirmation_id, kind).await?;
        self.metrics.confirmation("issued");
        Ok(issued)
    }

    /// Revokes a ticket, and records that.
    ///
    /// # Errors
    ///
    /// Where the revocation is not durable.
    pub async fn revoke(
        self: &Arc<Self>,
        context: &Arc<Context>,
        confirmation_id: Uuid,
    ) -> Result<Revocation, Refused> {
        let (gate, context) = (Arc::clone(self), Arc::clone(context));
        // As for issuing: a revocation that took effect has its event.
        let task =
            self.tasks.spawn(async move { gate.revoke_recorded(&context, confirmation_id).await });
        task.await.map_err(|_| Refused::Internal)?
    }

    async fn revoke_recorded(
        &self,
        context: &Arc<Context>,
        confirmation_id: Uuid,
    ) -> Result<Revocation, Refused> {
        let in_force = self.in_force();
        let (recorder, confirmations) = self.confirming(&in_force)?;
        if !self.ports.journal.is_ready() {
            return Err(Refused::JournalUnavailable);
        }
        let revoked_at = self.ports.clock.now();
        let revoked = recorder.revoke(confirmation_id, confirmations, revoked_at).await?;
        let scope = in_force.scope(Arc::clone(context), None);
        let id = confirmation_id.hyphenated().to_string();
        self.record_admin(&scope, &id.into(), AdminKind::ConfirmationRevoked).await?;
        Ok(Revocation { revoked_at, was_spent: revoked == Revoked::Spent })
    }

    pub(super) async fn judge_alone(
        &self,
        in_force: &InForce,
        scope: &Scope,
        proposal: &Proposal,
    ) -> Verdict {
        match self.authorise(in_force, scope, proposal).await {
            Ok(_) => Verdict::Admitted(self.preview(in_force, scope, proposal)),
            Err(refusal) => Verdict::Refused(refusal, self.preview(in_force, scope, proposal)),
        }
    }

    /// The ledger, and the keys and terms of the tickets whose use it remembers.
    fn confirming<'a>(
        &'a self,
        in_force: &'a InForce,
    ) -> Result<(&'a Held, &'a Confirmations), Refused> {
        match (&self.recorder, &in_force.terms.confirmations) {
            (Some(recorder), Some(confirmations)) => Ok((recorder, confirmations)),
            _ => Err(Refused::LedgerUnavailable),
        }
    }

    /// What a person would be asked to confirm, for a call that needs it.
    fn preview(&self, in_force: &InForce, scope: &Scope, proposal: &Proposal) -> Option<Preview> {
        let (recorder, confirmations) = self.confirming(in_force).ok()?;
        let admitted = admission::admit(scope, in_force.policy(), proposal).ok()?;
        let now = self.ports.clock.now();
        let judged = recorder.judge(admitted, None, scope, confirmations, now).ok()?;
        Preview::of(judged.admitted(), confirmations)
    }

    /// The call, if a ticket issued for it now would let it run, and that time: the
    /// ledger was shown it, so that a revocation outlives what is issued by it.
    async fn confirmable(
        &self,
        in_force: &InForce,
        scope: &Scope,
        proposal: &Proposal,
    ) -> Result<(Admitted, Timestamp), Refused> {
        let (recorder, confirmations) = self.confirming(in_force)?;
        let refused = |refusal: Box<Refusal>| Refused::NotConfirmable(refusal.reason);
        let admitted = admission::admit(scope, in_force.policy(), proposal).map_err(refused)?;
        if !admitted.contract().needs_ticket() {
            return Err(Refused::NotConfirmable(Reason::ConfirmationUnexpected));
        }
        let reading = self.reading();
        let state = recorder.observe(reading).await.ok_or(Refused::LedgerUnavailable)?;
        self.note_clock(state);
        if state == ClockState::Behind {
            return Err(Refused::NotConfirmable(Reason::ClockUntrusted));
        }
        let now = reading.now;
        let judged = recorder.judge(admitted, None, scope, confirmations, now).map_err(refused)?;
        let found = recorder.find(&judged).await.map_err(|_| Refused::LedgerUnavailable)?;
        judged
            .would_run_confirmed(found.record.as_ref(), now)
            .map(|admitted| (admitted, now))
            .map_err(|turned| Refused::NotConfirmable(turned.reason))
    }

    /// Makes an administrative event durable before what it tells of is answered.
    async fn record_admin(
        &self,
        scope: &Scope,
        confirmation_id: &Arc<str>,
        kind: AdminKind,
    ) -> Result<(), Refused> {
        let event = scope.administrative(Arc::clone(confirmation_id), kind, self.ports.clock.now());
        let entries = vec![Entry::Admin(Arc::new(event))];
        pair::append(&*self.ports.journal, &self.metrics, entries, Durability::Synced)
            .await
            .map(|_| ())
            .map_err(|_| Refused::JournalUnavailable)
    }
}
