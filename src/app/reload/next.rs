//! What a reload would put in force, built aside and held against what runs.

use std::sync::Arc;

use super::Turn;
use crate::adapters::upstream::GrpcUpstreams;
use crate::app::caller_secrets;
use crate::app::keys::{KnownKey, audit_keys, confirmation_keys, known_keys};
use crate::config::{Config, Fault, Faults, Source, restart_needed};
use crate::domain::audit::{AuditKey, Digest, JournalKeys, KeyChange, KeyPurpose};
use crate::domain::authorisation::Confirmations;
use crate::domain::policy::PolicySnapshot;
use crate::domain::refusal::{Code, Finding};
use crate::gate::Terms;
use crate::ports::Upstream;

/// Whole: nothing of it can have a fault any more.
pub(super) struct Next {
    policy: Arc<PolicySnapshot>,
    key: AuditKey,
    confirmations: Option<Arc<Confirmations>>,
    pub(super) journal_keys: JournalKeys,
    pub(super) keys: Vec<KnownKey>,
    pub(super) upstreams: Arc<GrpcUpstreams>,
    pub(super) source: Source,
}

impl Next {
    /// Builds everything of a configuration that may change.
    ///
    /// # Errors
    ///
    /// What has changed that may not.
    pub(super) fn build(
        config: Config,
        turn: &Turn,
        running: &[KnownKey],
        upstreams: &GrpcUpstreams,
    ) -> Result<Self, Faults> {
        let name = config.source.file.to_string_lossy().into_owned();
        let fault = |finding| Fault::new(&name, finding);
        let mut findings = restart_needed(&turn.source.document, &config.source.document);
        if !findings.iter().any(|finding| finding.pointer == "/callers") {
            // Their files may have changed where the list has not.
            findings
                .extend(changed_callers(&turn.caller_secrets, &caller_secrets(&config.callers)));
        }
        let confirmation = config.confirmation.as_ref().map(|terms| &terms.secrets);
        let keys_fault = |keys: crate::domain::ticket::KeysFault| {
            let mend = "give every key an id of its own";
            Faults::one(fault(Finding::new(
                "/confirmation/keys",
                Code::SecretRefused,
                keys.to_string(),
                mend,
            )))
        };
        let keys = known_keys(&config.audit_secrets, confirmation).map_err(keys_fault)?;
        findings.extend(replaced_keys(running, &keys));
        if let Some(faults) = Faults::collect(findings.into_iter().map(fault).collect()) {
            return Err(faults);
        }
        let (key, journal_keys) = audit_keys(&config.audit_secrets);
        let confirmations = match config.confirmation {
            None => None,
            Some(terms) => {
                let keys = confirmation_keys(&terms.secrets).map_err(keys_fault)?;
                let (ticket_ttl, skew) = (terms.ticket_ttl, terms.skew);
                Some(Arc::new(Confirmations { keys, ticket_ttl, skew }))
            }
        };
        let registered =
            config.upstreams.into_iter().map(|(name, upstream)| (name.into(), upstream));
        Ok(Self {
            policy: Arc::new(config.policy.snapshot),
            key,
            confirmations,
            journal_keys,
            keys,
            upstreams: Arc::new(upstreams.followed_by(registered)),
            source: config.source,
        })
    }

    /// What the gate is to put in force.
    pub(super) fn terms(&self) -> Terms {
        Terms {
            policy: Arc::clone(&self.policy),
            key: self.key.clone(),
            confirmations: self.confirmations.clone(),
            upstream: Arc::clone(&self.upstreams) as Arc<dyn Upstream>,
        }
    }
}

/// Keys that come, go, or sign from now on, each with what it is for.
pub(super) fn changed_keys(
    before: &[KnownKey],
    after: &[KnownKey],
) -> Vec<(KeyChange, KeyPurpose, Arc<str>)> {
    let is_of = |key: &KnownKey| {
        let (purpose, id) = (key.purpose, Arc::clone(&key.id));
        move |other: &&KnownKey| other.purpose == purpose && other.id == id
    };
    let told = |change, key: &KnownKey| (change, key.purpose, Arc::clone(&key.id));
    let mut changes = Vec::new();
    for key in after {
        let was = before.iter().find(is_of(key));
        if was.is_none() {
            changes.push(told(KeyChange::Added, key));
        }
        if key.signs && !was.is_some_and(|was| was.signs) {
            changes.push(told(KeyChange::Signs, key));
        }
    }
    let gone = before.iter().filter(|key| !after.iter().any(|other| is_of(key)(&other)));
    changes.extend(gone.map(|key| told(KeyChange::Removed, key)));
    changes
}

/// An id stands for one secret: another under the same id would disown what it signed.
fn replaced_keys(before: &[KnownKey], after: &[KnownKey]) -> Vec<Finding> {
    let replaced = after.iter().filter(|key| {
        let is_other = |was: &&KnownKey| was.purpose == key.purpose && was.id == key.id;
        before.iter().find(is_other).is_some_and(|was| was.print != key.print)
    });
    let finding = |key: &KnownKey| {
        Finding::new(
            format!("/{}/keys", key.purpose.as_str()),
            Code::SecretRefused,
            format!("the secret of the key {} is another than before", key.id),
            "put the file back, and give the new secret a key with an id of its own",
        )
    };
    replaced.map(finding).collect()
}

fn changed_callers(before: &[Digest], after: &[Digest]) -> Option<Finding> {
    (before != after).then(|| {
        Finding::new(
            "/callers",
            Code::RestartNeeded,
            "a caller's secret has changed, and cannot change while the gate runs",
            "restart the gate, or put back what was there",
        )
    })
}
