//! All contracts and limits, loaded together, immutable.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::audit::Digest;
use super::canonical::canonical;
use super::contract::{Contract, count, milliseconds};
use super::json::{Value, object};

/// What one call sees from its first check to its last event.
#[derive(Debug)]
pub struct PolicySnapshot {
    contracts: BTreeMap<Arc<str>, Arc<Contract>>,
    limits: PolicyLimits,
    digest: Digest,
}

/// Bounds of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyLimits {
    /// Calls in a batch, and attempts over a batch.
    pub max_steps: usize,
    /// How long a batch may take.
    pub batch_total: Duration,
    /// With less time left no attempt starts.
    pub min_attempt: Duration,
}

/// Two contracts of one policy carry this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameTwice(pub Arc<str>);

impl Default for PolicyLimits {
    fn default() -> Self {
        Self {
            max_steps: 8,
            batch_total: Duration::from_secs(30),
            min_attempt: Duration::from_millis(100),
        }
    }
}

impl PolicySnapshot {
    /// The policy of these sealed contracts, with its digest:
    /// SHA-256(`toolgate-policy-v1\0` ‖ C([sorted contract digests, rules, limits])).
    ///
    /// # Errors
    ///
    /// Two contracts of one name.
    pub fn new(
        contracts: impl IntoIterator<Item = Contract>,
        limits: PolicyLimits,
    ) -> Result<Self, NameTwice> {
        let mut by_name = BTreeMap::new();
        for contract in contracts {
            let name = Arc::clone(&contract.name);
            if by_name.insert(Arc::clone(&name), Arc::new(contract)).is_some() {
                return Err(NameTwice(name));
            }
        }
        let digest = digest(by_name.values().map(|contract| contract.digest), limits);
        Ok(Self { contracts: by_name, limits, digest })
    }

    /// The contract of a registered and visible name.
    #[must_use]
    pub fn contract(&self, name: &str) -> Option<&Arc<Contract>> {
        self.contracts.get(name)
    }

    /// All contracts in the order of their names.
    #[must_use]
    pub fn contracts(&self) -> impl ExactSizeIterator<Item = &Arc<Contract>> {
        self.contracts.values()
    }

    /// Bounds of one batch.
    #[must_use]
    pub const fn limits(&self) -> &PolicyLimits {
        &self.limits
    }

    /// Covers all contracts, rules and limits.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }
}

impl fmt::Display for NameTwice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "two contracts carry the name {}", self.0)
    }
}

impl std::error::Error for NameTwice {}

fn digest(contracts: impl Iterator<Item = Digest>, limits: PolicyLimits) -> Digest {
    let mut contracts: Vec<String> = contracts.map(|digest| digest.to_string()).collect();
    contracts.sort_unstable();
    let contracts = contracts.into_iter().map(Value::String).collect();
    let rules = Vec::new();
    let limits = object([
        ("max_steps", count(limits.max_steps)),
        ("batch_total_ms", milliseconds(limits.batch_total)),
        ("min_attempt_ms", milliseconds(limits.min_attempt)),
    ]);
    let statement = Value::Array(vec![Value::Array(contracts), Value::Array(rules), limits]);
    let mut hash = Sha256::new_with_prefix(b"toolgate-policy-v1\0");
    hash.update(canonical(&statement));
    Digest(hash.finalize().into())
}
