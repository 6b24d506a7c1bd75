//! What one request sees from its first check to its last event, swapped whole.

use std::sync::Arc;

use super::Gate;
use crate::domain::audit::{AuditKey, Scope};
use crate::domain::authorisation::Confirmations;
use crate::domain::policy::PolicySnapshot;
use crate::domain::proposal::Context;
use crate::domain::stages::TraceContext;
use crate::ports::Upstream;
use crate::telemetry::metrics::{Metrics, ToolMetrics};

/// Everything that a reload may change. A request takes it once.
#[derive(Clone)]
pub struct Terms {
    /// The policy.
    pub policy: Arc<PolicySnapshot>,
    /// The audit key that digests.
    pub key: AuditKey,
    /// Keys and terms of tickets, for a gate that has a ledger.
    pub confirmations: Option<Arc<Confirmations>>,
    /// The registered handlers.
    pub upstream: Arc<dyn Upstream>,
}

/// Terms in force, with the counters of their tools.
pub(super) struct InForce {
    pub(super) terms: Terms,
    pub(super) tool_metrics: Arc<ToolMetrics>,
}

impl InForce {
    /// Makes room for the tools' series, and shows the policy's digest from now on.
    pub(super) fn new(terms: Terms, metrics: &Metrics) -> Arc<Self> {
        metrics.policy_loaded(terms.policy.digest());
        let names = terms.policy.contracts().map(|contract| &*contract.name);
        Arc::new(Self { tool_metrics: Arc::new(metrics.tools(names)), terms })
    }

    pub(super) fn policy(&self) -> &PolicySnapshot {
        &self.terms.policy
    }

    pub(super) fn scope(&self, context: Arc<Context>, trace: Option<&TraceContext>) -> Scope {
        Scope {
            context,
            policy_digest: self.terms.policy.digest(),
            key: self.terms.key.clone(),
            trace_id: trace.map(|trace| trace.trace_id),
        }
    }
}

impl Gate {
    /// The policy in force. Two calls of this may see two policies: who compares
    /// or combines asks once.
    #[must_use]
    pub fn policy(&self) -> Arc<PolicySnapshot> {
        Arc::clone(&self.in_force().terms.policy)
    }

    /// The terms in force.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.in_force().terms.clone()
    }

    /// Puts other terms in force, whole: requests that have begun end on theirs,
    /// later ones see these and nothing of the former.
    pub fn put_in_force(&self, terms: Terms) {
        let next = InForce::new(terms, &self.metrics);
        *self.in_force.write().unwrap_or_else(std::sync::PoisonError::into_inner) = next;
    }

    /// What a request takes once, before its first check.
    pub(super) fn in_force(&self) -> Arc<InForce> {
        // Nothing that can panic runs under the lock: it holds one pointer.
        Arc::clone(&self.in_force.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}
