//! Who may call which method, for whom (semantics, section 9).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::proposal::Context;
use super::refused::Refused;

/// What a principal may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Proposes: the chatbot backend.
    Proposer,
    /// Confirms: the confirmation page's backend.
    Confirmer,
    /// Reads the audit.
    Auditor,
    /// Looks after the gate.
    Operator,
}

/// A set of roles.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u8);

/// The tenants that a principal may speak for and hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tenants {
    /// Every one: it is trusted to name the right one.
    All,
    /// These alone.
    Only(Arc<BTreeSet<Arc<str>>>),
}

/// An authenticated principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// What it may do.
    pub roles: Roles,
    /// For whom.
    pub tenants: Tenants,
}

/// A method that needs a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rpc {
    /// `ToolGate.Execute`
    Execute,
    /// `ToolGate.ExecuteStream`
    ExecuteStream,
    /// `ToolGate.Check`
    Check,
    /// `ToolGate.ListTools`
    ListTools,
    /// `Confirmations.Issue`
    Issue,
    /// `Confirmations.Revoke`
    Revoke,
    /// `Admin.GetStatus`
    GetStatus,
    /// `Admin.Reload`
    Reload,
    /// `Audit.Watch`
    Watch,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Proposer, Self::Confirmer, Self::Auditor, Self::Operator];

    /// The word in configuration and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proposer => "proposer",
            Self::Confirmer => "confirmer",
            Self::Auditor => "auditor",
            Self::Operator => "operator",
        }
    }

    /// Whether the role includes the method.
    #[must_use]
    pub const fn may_call(self, rpc: Rpc) -> bool {
        match rpc {
            Rpc::Execute | Rpc::ExecuteStream | Rpc::ListTools => matches!(self, Self::Proposer),
            Rpc::Check => matches!(self, Self::Proposer | Self::Confirmer),
            Rpc::Issue | Rpc::Revoke => matches!(self, Self::Confirmer),
            Rpc::GetStatus | Rpc::Reload => matches!(self, Self::Operator),
            Rpc::Watch => matches!(self, Self::Auditor),
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl Roles {
    /// Whether a role is among them.
    #[must_use]
    pub const fn has(self, role: Role) -> bool {
        self.0 & role.bit() != 0
    }

    /// Whether any of them includes the method.
    #[must_use]
    pub fn may_call(self, rpc: Rpc) -> bool {
        self.iter().any(|role| role.may_call(rpc))
    }

    /// Whether their holder could confirm what it has proposed.
    #[must_use]
    pub const fn may_confirm_its_own(self) -> bool {
        self.has(Role::Proposer) && self.has(Role::Confirmer)
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(move |role| self.has(*role))
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        Self(roles.into_iter().fold(0, |bits, role| bits | role.bit()))
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Role::as_str)).finish()
    }
}

impl Caller {
    /// Lets the caller through to a method of its roles.
    ///
    /// # Errors
    ///
    /// `PERMISSION_DENIED` otherwise.
    pub fn require(&self, rpc: Rpc) -> Result<(), Refused> {
        if self.roles.may_call(rpc) { Ok(()) } else { Err(Refused::RoleMissing) }
    }

    /// Whether the caller may hear of a tenant.
    #[must_use]
    pub fn sees(&self, tenant_id: &str) -> bool {
        match &self.tenants {
            Tenants::All => true,
            Tenants::Only(tenants) => tenants.contains(tenant_id),
        }
    }

    /// Whether the caller may hear of what concerns the gate as a whole, and so every tenant.
    #[must_use]
    pub fn sees_everything(&self) -> bool {
        self.tenants == Tenants::All
    }

    /// Lets through a context that the caller may speak for.
    ///
    /// # Errors
    ///
    /// `PERMISSION_DENIED` where its tenant is not the caller's.
    pub fn speaks_for(&self, context: &Context) -> Result<(), Refused> {
        if self.sees(&context.tenant_id) { Ok(()) } else { Err(Refused::TenantNotCallers) }
    }
}

impl Rpc {
    /// Every method.
    pub const ALL: [Self; 9] = [
        Self::Execute,
        Self::ExecuteStream,
        Self::Check,
        Self::ListTools,
        Self::Issue,
        Self::Revoke,
        Self::GetStatus,
        Self::Reload,
        Self::Watch,
    ];

    /// The method's name, as a label and in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Execute => "Execute",
            Self::ExecuteStream => "ExecuteStream",
            Self::Check => "Check",
            Self::ListTools => "ListTools",
            Self::Issue => "Issue",
            Self::Revoke => "Revoke",
            Self::GetStatus => "GetStatus",
            Self::Reload => "Reload",
            Self::Watch => "Watch",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every set of roles, by the bits of its place, × every method.
    #[test]
    fn a_set_of_roles_may_do_what_one_of_them_may() {
        for bits in 0..16_u8 {
            let held = |role: Role| {
                bits & (1 << Role::ALL.iter().position(|r| *r == role).unwrap_or(9)) != 0
            };
            let roles: Roles = Role::ALL.into_iter().filter(|role| held(*role)).collect();
            let (proposer, confirmer) = (held(Role::Proposer), held(Role::Confirmer));
            for rpc in Rpc::ALL {
                let wanted = match rpc {
                    Rpc::Execute | Rpc::ExecuteStream | Rpc::ListTools => proposer,
                    Rpc::Check => proposer || confirmer,
                    Rpc::Issue | Rpc::Revoke => confirmer,
                    Rpc::GetStatus | Rpc::Reload => held(Role::Operator),
                    Rpc::Watch => held(Role::Auditor),
                };
                assert_eq!(roles.may_call(rpc), wanted, "{roles:?} {rpc:?}");
            }
            assert_eq!(roles.may_confirm_its_own(), proposer && confirmer);
            assert_eq!(roles.is_empty(), bits == 0);
        }
    }

    #[test]
    fn tenants_bound_what_is_seen() {
        let only = Tenants::Only(Arc::new(BTreeSet::from(["north".into()])));
        let caller = |tenants| Caller { roles: Roles::default(), tenants };
        assert!(caller(Tenants::All).sees("south") && caller(Tenants::All).sees_everything());
        assert!(!caller(only.clone()).sees_everything());
        assert!(caller(only.clone()).sees("north"));
        for other in ["south", "North", "north ", ""] {
            assert!(!caller(only.clone()).sees(other), "{other}");
        }
    }
}
