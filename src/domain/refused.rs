//! The one table of refused requests: answers that are a status, not a result.
//!
//! A status other than OK means that no call of the request was reserved or
//! started, and leaves no audit pair; it is logged and counted.

use super::reason::Reason;

/// Why a request was refused as a whole. Stable: the `reason` of `google.rpc.ErrorInfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refused {
    /// No credentials, or none that the gate knows.
    Unauthenticated,
    /// The caller's role does not include this method.
    RoleMissing,
    /// The context names a tenant that the caller may not speak for.
    TenantNotCallers,
    /// This field names another user than the caller's own credential, or roles that they have not.
    UserNotCallers(&'static str),
    /// A context field is missing or outside its form.
    ContextInvalid(&'static str),
    /// The batch holds no call.
    BatchEmpty,
    /// An enum or field outside this version of the contract.
    RequestInvalid(&'static str),
    /// The `tool_call_id` that is asked for is outside its form.
    CallIdInvalid,
    /// The bytes are not a message of this method.
    Undecodable,
    /// The message is larger than the server takes.
    RequestTooLarge,
    /// The message did not arrive in time.
    RequestLate,
    /// No such method, or none in this encoding.
    NotServed,
    /// More requests run than `limits.in_flight` allows.
    Overloaded,
    /// The gate is shutting down.
    Draining,
    /// The journal cannot take events.
    JournalUnavailable,
    /// The ledger cannot remember what a named tool may need.
    LedgerUnavailable,
    /// What a person saw is not what would be confirmed now.
    PreviewStale,
    /// The call to confirm would be refused for this reason, or needs no ticket.
    NotConfirmable(Reason),
    /// This person may not confirm this call.
    MayNotConfirm,
    /// Another reload takes its time.
    ReloadRunning,
    /// The journal that is asked for is not the gate's.
    JournalUnknown,
    /// More watchers follow than `limits.watchers` allows.
    TooManyWatchers,
    /// A record of the journal cannot be read back.
    JournalUnreadable,
    /// There is no record of the call that is asked for, or it is another's.
    CallNotRecorded,
    /// A fault inside the gate.
    Internal,
}

/// gRPC status codes that refusals use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatusCode {
    /// 3
    InvalidArgument,
    /// 5
    NotFound,
    /// 7
    PermissionDenied,
    /// 8
    ResourceExhausted,
    /// 9
    FailedPrecondition,
    /// 12
    Unimplemented,
    /// 13
    Internal,
    /// 14
    Unavailable,
    /// 16
    Unauthenticated,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The stable `ErrorInfo.reason`.
    pub reason: &'static str,
    /// The status code.
    pub code: StatusCode,
    /// The status message. Fixed text.
    pub message: &'static str,
}

impl Refused {
    /// One of each, for documentation and tests.
    pub const ALL: [Self; 25] = [
        Self::Unauthenticated,
        Self::RoleMissing,
        Self::TenantNotCallers,
        Self::UserNotCallers("user_id"),
        Self::ContextInvalid("tenant_id"),
        Self::BatchEmpty,
        Self::RequestInvalid("mode"),
        Self::CallIdInvalid,
        Self::Undecodable,
        Self::RequestTooLarge,
        Self::RequestLate,
        Self::NotServed,
        Self::Overloaded,
        Self::Draining,
        Self::JournalUnavailable,
        Self::LedgerUnavailable,
        Self::PreviewStale,
        Self::NotConfirmable(Reason::CallReplayed),
        Self::MayNotConfirm,
        Self::ReloadRunning,
        Self::JournalUnknown,
        Self::TooManyWatchers,
        Self::JournalUnreadable,
        Self::CallNotRecorded,
        Self::Internal,
    ];

    /// What the table says.
    #[must_use]
    #[allow(clippy::too_many_lines, reason = "it is the one table, a row for each")]
    pub const fn row(self) -> Row {
        use StatusCode as Code;
        let (reason, code, message) = match self {
            Self::Unauthenticated => (
                "UNAUTHENTICATED",
                Code::Unauthenticated,
                "show exactly one identity that the gate knows: an authorization entry with Bearer and a caller secret, or a client certificate, or a process on the Unix socket",
            ),
            Self::RoleMissing => (
                "ROLE_MISSING",
                Code::PermissionDenied,
                "the caller's role does not include this method",
            ),
            Self::TenantNotCallers => (
                "TENANT_NOT_CALLERS",
                Code::PermissionDenied,
                "the context names a tenant that the caller may not speak for",
            ),
            Self::UserNotCallers(_) => (
                "USER_NOT_CALLERS",
                Code::PermissionDenied,
                "the caller's own credential names another user, or not these roles of theirs",
            ),
            Self::ContextInvalid(_) => (
                "CONTEXT_INVALID",
                Code::InvalidArgument,
                "a context field is missing or outside its form: 1 to 128 characters without control, format or separator characters",
            ),
            Self::BatchEmpty => {
                ("BATCH_EMPTY", Code::InvalidArgument, "the batch holds no call; send at least one")
            }
            Self::RequestInvalid(_) => (
                "REQUEST_INVALID",
                Code::InvalidArgument,
                "a field holds a value that this version of the contract does not have",
            ),
            // The reason that Execute has for it.
            Self::CallIdInvalid => (
                Reason::ProtocolInvalid.code(),
                Code::InvalidArgument,
                "the call's id is missing or outside its form: [A-Za-z0-9][A-Za-z0-9._:-]{0,127}",
            ),
            Self::Undecodable => (
                "UNDECODABLE",
                Code::InvalidArgument,
                "the bytes are not a message of this method; check that client and gate share toolgate.v1",
            ),
            Self::RequestTooLarge => (
                "REQUEST_TOO_LARGE",
                Code::ResourceExhausted,
                "the request is larger than limits.max_request_bytes",
            ),
            Self::RequestLate => (
                "REQUEST_LATE",
                Code::Unavailable,
                "the request's message was not there within 30 s of its head; send it whole",
            ),
            Self::NotServed => (
                "NOT_SERVED",
                Code::Unimplemented,
                "this version does not serve the method, or not in this encoding; reflection lists what it serves",
            ),
            Self::Overloaded => (
                "OVERLOADED",
                Code::ResourceExhausted,
                "too many requests run at once; retry after the given delay",
            ),
            Self::Draining => (
                "DRAINING",
                Code::Unavailable,
                "the gate is shutting down; retry on another connection",
            ),
            Self::JournalUnavailable => (
                "JOURNAL_UNAVAILABLE",
                Code::Unavailable,
                "the audit journal cannot take events now; nothing was run",
            ),
            Self::LedgerUnavailable => (
                "LEDGER_UNAVAILABLE",
                Code::Unavailable,
                "the ledger cannot remember calls now; nothing was run",
            ),
            Self::PreviewStale => (
                "PREVIEW_STALE",
                Code::FailedPrecondition,
                "what was previewed is not what would be confirmed now; check again and show the new preview",
            ),
            Self::NotConfirmable(reason) => (
                reason.code(),
                Code::FailedPrecondition,
                "a ticket for this call would be of no use, for the given reason",
            ),
            Self::MayNotConfirm => (
                "MAY_NOT_CONFIRM",
                Code::PermissionDenied,
                "only the user of the conversation, or a holder of the role that the contract names, may confirm this call",
            ),
            Self::ReloadRunning => (
                "RELOAD_RUNNING",
                Code::Unavailable,
                "another reload is running and takes long; ask again once it has ended",
            ),
            Self::JournalUnknown => (
                "JOURNAL_UNKNOWN",
                Code::NotFound,
                "the gate has another journal; ask without a journal_id for the present one from its beginning",
            ),
            Self::TooManyWatchers => (
                "TOO_MANY_WATCHERS",
                Code::ResourceExhausted,
                "as many watchers follow the journal as limits.watchers allows; retry later",
            ),
            Self::JournalUnreadable => (
                "JOURNAL_UNREADABLE",
                Code::Internal,
                "a record of the journal cannot be read back; the gate's log has the place",
            ),
            Self::CallNotRecorded => (
                "CALL_NOT_RECORDED",
                Code::NotFound,
                "no call of this id is recorded for this tenant, user and conversation",
            ),
            Self::Internal => {
                ("INTERNAL", Code::Internal, "a fault inside the gate; its log has the place")
            }
        };
        Row { reason, code, message }
    }

    /// The field that is at fault, where one is.
    #[must_use]
    pub const fn field(self) -> Option<&'static str> {
        match self {
            Self::ContextInvalid(field)
            | Self::RequestInvalid(field)
            | Self::UserNotCallers(field) => Some(field),
            Self::CallIdInvalid => Some("tool_call_id"),
            _ => None,
        }
    }
}

impl StatusCode {
    /// The code's canonical name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::NotFound => "NOT_FOUND",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}
