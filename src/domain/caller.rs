//! Who may call which method, for whom (semantics, section 9).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::proposal::Context;
use super::record::Whose;
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
    /// The one user it is; `None`: a service, trusted to name users.
    pub user: Option<User>,
}

/// A user whom the caller's own credential names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Who.
    pub id: Arc<str>,
    /// The application's roles of this user, for confirmations.
    pub roles: Arc<[String]>,
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
    /// `ToolGate.GetCall`
    GetCall,
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
            Rpc::GetCall => matches!(self, Self::Proposer | Self::Auditor),
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

    /// The tenant, where the caller has one alone.
    #[must_use]
    pub fn only_tenant(&self) -> Option<&str> {
        match &self.tenants {
            Tenants::Only(tenants) if tenants.len() == 1 => tenants.first().map(|tenant| &**tenant),
            _ => None,
        }
    }

    /// Lets through a context that the caller may name in this method.
    ///
    /// A user is bound to itself, but not where it confirms: the conversation may be
    /// another's there, where the contract names a role that may confirm. Nor where
    /// it audits, which is about everybody's calls.
    ///
    /// # Errors
    ///
    /// `PERMISSION_DENIED` where its tenant, or its user, is not the caller's.
    pub fn speaks_for(&self, rpc: Rpc, context: &Context) -> Result<(), Refused> {
        if !self.sees(&context.tenant_id) {
            return Err(Refused::TenantNotCallers);
        }
        let confirms = rpc == Rpc::Issue || rpc == Rpc::Check && self.roles.has(Role::Confirmer);
        let audits = rpc == Rpc::GetCall && self.roles.has(Role::Auditor);
        match &self.user {
            Some(user) if !confirms && !audits && user.id != context.user_id => {
                Err(Refused::UserNotCallers("user_id"))
            }
            _ => Ok(()),
        }
    }

    /// Whose recorded calls the caller may ask for, in a context that it may name.
    #[must_use]
    pub fn asks_for<'a>(&self, context: &'a Context) -> Whose<'a> {
        if self.roles.has(Role::Auditor) { Whose::Everybody } else { Whose::User(&context.user_id) }
    }

    /// Who confirms, with their roles: where the caller's own credential says who that
    /// is, nobody else, with the roles that it says.
    ///
    /// # Errors
    ///
    /// `PERMISSION_DENIED` where another user is named, or a role that the user has not.
    pub fn confirming(
        &self,
        user_id: String,
        roles: Vec<String>,
    ) -> Result<(String, Vec<String>), Refused> {
        let Some(user) = &self.user else { return Ok((user_id, roles)) };
        if !user_id.is_empty() && *user.id != *user_id {
            return Err(Refused::UserNotCallers("confirming_user_id"));
        }
        if roles.iter().any(|role| !user.roles.contains(role)) {
            return Err(Refused::UserNotCallers("confirming_user_roles"));
        }
        Ok((user.id.to_string(), user.roles.to_vec()))
    }
}

impl Rpc {
    /// Every method.
    pub const ALL: [Self; 10] = [
        Self::Execute,
        Self::ExecuteStream,
        Self::Check,
        Self::ListTools,
        Self::GetCall,
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
            Self::GetCall => "GetCall",
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
                    Rpc::GetCall => proposer || held(Role::Auditor),
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
        let caller = |tenants| Caller { roles: Roles::default(), tenants, user: None };
        assert!(caller(Tenants::All).sees("south") && caller(Tenants::All).sees_everything());
        assert!(!caller(only.clone()).sees_everything());
        assert!(caller(only.clone()).sees("north"));
        for other in ["south", "North", "north ", ""] {
            assert!(!caller(only.clone()).sees(other), "{other}");
        }
    }

    #[test]
    fn a_user_is_bound_to_itself_but_in_the_conversation_that_it_confirms() {
        let named = |user: &str| Context {
            request_id: "request-1".into(),
            user_id: user.into(),
            tenant_id: "acme".into(),
            conversation_id: "conversation-1".into(),
        };
        let user = User { id: "alice".into(), roles: ["nurse".to_owned()].into() };
        for role in Role::ALL {
            let roles = [role].into_iter().collect();
            let caller = Caller { roles, tenants: Tenants::All, user: Some(user.clone()) };
            let service = Caller { user: None, ..caller.clone() };
            for rpc in Rpc::ALL {
                let is_free = rpc == Rpc::Issue
                    || (rpc, role) == (Rpc::Check, Role::Confirmer)
                    || (rpc, role) == (Rpc::GetCall, Role::Auditor);
                let wanted = if is_free { Ok(()) } else { Err(Refused::UserNotCallers("user_id")) };
                assert_eq!(caller.speaks_for(rpc, &named("bob")), wanted, "{role:?} {rpc:?}");
                assert_eq!(caller.speaks_for(rpc, &named("alice")), Ok(()));
                assert_eq!(service.speaks_for(rpc, &named("bob")), Ok(()));
            }
            let everybody = role == Role::Auditor;
            let whose = if everybody { Whose::Everybody } else { Whose::User("bob") };
            assert_eq!(caller.asks_for(&named("bob")), whose, "{role:?}");
            let themselves = Ok(("alice".to_owned(), vec!["nurse".to_owned()]));
            assert_eq!(caller.confirming(String::new(), Vec::new()), themselves);
            let field = Refused::UserNotCallers("confirming_user_roles");
            let roles = vec!["nurse".to_owned(), "doctor".to_owned()];
            assert_eq!(caller.confirming("alice".to_owned(), roles), Err(field));
        }
    }
}
