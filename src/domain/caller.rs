//! Who may call which method (semantics, section 9).

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
        }
    }
}

impl Rpc {
    /// Every method.
    pub const ALL: [Self; 6] = [
        Self::Execute,
        Self::ExecuteStream,
        Self::Check,
        Self::ListTools,
        Self::Issue,
        Self::Revoke,
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
        }
    }
}
