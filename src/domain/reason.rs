//! The one table of reasons.
//!
//! Everything that is said about a reason anywhere (wire enum, message for the
//! model, documentation, metrics) comes from [`Reason::row`], one exhaustive
//! match. `docs/reasons.md` is generated from it.

use std::fmt;

/// How a call or an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The proposal itself was wrong; no handler ran.
    Validation,
    /// The proposal was understood and refused; no handler ran.
    Denied,
    /// A deadline of the gate passed while the handler ran.
    Timeout,
    /// The handler answered within all limits.
    Success,
    /// The handler, the path to it, or the gate itself failed.
    Error,
}

impl Outcome {
    /// Every outcome, in the order of the metrics' documentation.
    pub const ALL: [Self; 5] =
        [Self::Validation, Self::Denied, Self::Timeout, Self::Success, Self::Error];

    /// The word in journal and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Validation => "validation",
            Self::Denied => "denied",
            Self::Timeout => "timeout",
            Self::Success => "success",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a call is known to have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing changed.
    None,
    /// The handler said that it applied the change.
    Applied,
    /// The handler may or may not have applied the change.
    Unknown,
}

impl Effect {
    /// What two attempts of one call changed together: applied if any, else
    /// unknown if any, else nothing.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Applied, _) | (_, Self::Applied) => Self::Applied,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::None, Self::None) => Self::None,
        }
    }

    /// The word in the journal.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Applied => "applied",
            Self::Unknown => "unknown",
        }
    }

    /// The effect of a word that [`Effect::as_str`] gives.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::None, Self::Applied, Self::Unknown]
            .into_iter()
            .find(|effect| effect.as_str() == word)
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The stable name, as on the wire without its `REASON_` prefix.
    pub code: &'static str,
    /// How a call with this reason ended.
    pub outcome: Outcome,
    /// What the model may be told. Fixed text: never a value or a secret.
    pub message: &'static str,
    /// Whether the same proposal may succeed later.
    pub retryable: bool,
    /// What a developer should know and do, for the documentation.
    pub advice: &'static str,
}

macro_rules! reasons {
    ($( $variant:ident = $code:literal, $outcome:ident, $retry:literal, $message:literal, $advice:literal; )+) => {
        /// Why a call ended as it did. Stable: programs switch on it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $( #[doc = $advice] $variant, )+
        }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )+ ];

            /// What the table says about this reason.
            #[must_use]
            pub const fn row(self) -> Row {
                match self {
                    $( Self::$variant => Row {
                        code: $code,
                        outcome: Outcome::$outcome,
                        message: $message,
                        retryable: $retry,
                        advice: $advice,
                    }, )+
                }
            }

            /// The reason of this stable name, if there is one.
            #[must_use]
            pub fn from_code(code: &str) -> Option<Self> {
                match code {
                    $( $code => Some(Self::$variant), )+
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    ProtocolInvalid = "PROTOCOL_INVALID", Validation, false,
        "The tool call is malformed. Give it a valid tool_call_id, a tool name and, if any, an attempt from 1 to 100.",
        "A `tool_call_id`, `name` or `attempt` is outside its form. The whole batch is refused. Mend the code that builds the request.";
    DuplicateCallId = "DUPLICATE_CALL_ID", Validation, false,
        "Two tool calls of this batch carry the same tool_call_id. Give every call its own.",
        "Two calls of one batch carry one `tool_call_id`. The whole batch is refused. Mend the code that builds the request.";
    UnknownTool = "UNKNOWN_TOOL", Validation, false,
        "There is no such tool. Use one of the tools that were offered.",
        "The name is not registered, or not visible to this caller. Offer the model only what `ListTools` returns.";
    ArgumentsNotJson = "ARGUMENTS_NOT_JSON", Validation, false,
        "The arguments are not one strict JSON object.",
        "The arguments break the strict JSON rules; the message names which. Let the model propose again.";
    ArgumentsInvalid = "ARGUMENTS_INVALID", Validation, false,
        "The arguments do not fit the tool's schema. Correct the named places and propose again.",
        "The arguments break the tool's schema; `faults` names places and keywords. Let the model propose again.";
    StepBudgetExceeded = "STEP_BUDGET_EXCEEDED", Denied, false,
        "Too many tool calls at once. Propose fewer.",
        "The batch holds more calls than `max_steps`. The whole batch is refused. Send fewer calls.";
    DeadlineTooShort = "DEADLINE_TOO_SHORT", Denied, true,
        "There was not enough time left to run this tool call.",
        "Less than `min_attempt` was left of the caller's deadline or of the batch total. Retry with a longer deadline or fewer calls.";
    RuleDenied = "RULE_DENIED", Denied, false,
        "A rule of the policy refuses this tool call.",
        "A rule of the policy refused the call. The rule's own text is the message.";
    ArgumentsTooLarge = "ARGUMENTS_TOO_LARGE", Denied, false,
        "The arguments are too large for a call that a person must confirm. Shorten them.",
        "The canonical arguments exceed the contract's `max_authorised_bytes`. Shorten them, or raise the limit.";
    ConfirmationRequired = "CONFIRMATION_REQUIRED", Denied, true,
        "A person must confirm this tool call first.",
        "The call needs a confirmation ticket. Show the preview of `Check`, then issue a ticket.";
    ConfirmationInvalid = "CONFIRMATION_INVALID", Denied, false,
        "The confirmation is not valid.",
        "The ticket is not one of this gate's, or its key was removed. Ask the person again.";
    ConfirmationExpired = "CONFIRMATION_EXPIRED", Denied, true,
        "The confirmation has expired. A person must confirm again.",
        "The ticket's time is over. Ask the person again.";
    ConfirmationNotYetValid = "CONFIRMATION_NOT_YET_VALID", Denied, false,
        "The confirmation is not valid yet.",
        "The ticket was issued in the future by more than the allowed skew. Check the clocks.";
    ConfirmationMismatch = "CONFIRMATION_MISMATCH", Denied, false,
        "The confirmation belongs to a different tool call.",
        "The ticket confirms another call, tool, argument, user, conversation, tenant or contract. Ask the person again.";
    ConfirmationOtherLedger = "CONFIRMATION_OTHER_LEDGER", Denied, true,
        "The confirmation has lost its validity. A person must confirm again.",
        "The ticket belongs to a ledger that is gone. Ask the person again.";
    ConfirmationRevoked = "CONFIRMATION_REVOKED", Denied, false,
        "The confirmation was withdrawn.",
        "The ticket was revoked. Ask the person again if the call is still wanted.";
    ConfirmationConsumed = "CONFIRMATION_CONSUMED", Denied, false,
        "The confirmation was used before. A person must confirm again.",
        "The ticket was spent. Ask the person again.";
    ConfirmationUnexpected = "CONFIRMATION_UNEXPECTED", Denied, false,
        "This tool call takes no confirmation.",
        "A ticket came with a call that needs none. Mend the code that builds the request.";
    CallIdConflict = "CALL_ID_CONFLICT", Denied, false,
        "This tool_call_id belongs to a different tool call. Use a new one.",
        "The conversation has a record of this `tool_call_id` for another tool, user or other arguments. Use a new id.";
    CallInProgress = "CALL_IN_PROGRESS", Denied, true,
        "This tool call is still running.",
        "The same call is running now. Ask again later with the same request.";
    CallReplayed = "CALL_REPLAYED", Denied, false,
        "This tool call has already ended.",
        "The call has ended; the recorded outcome and effect are returned and no handler ran.";
    ClockUntrusted = "CLOCK_UNTRUSTED", Denied, false,
        "The gate cannot judge confirmations now.",
        "The clock is behind the ledger's high-water mark. An operator must look.";
    RateLimited = "RATE_LIMITED", Denied, true,
        "Too many tool calls in a short time. Wait before the next.",
        "A rate limit is used up. Wait for `retry_after`.";
    QuotaExceeded = "QUOTA_EXCEEDED", Denied, true,
        "The quota for this tool call is used up.",
        "A quota is used up. Wait for `retry_after`.";
    ConcurrencyLimited = "CONCURRENCY_LIMITED", Denied, true,
        "Too many of these tool calls run at once. Wait before the next.",
        "A concurrency limit is reached. Retry shortly.";
    AttemptDeadline = "ATTEMPT_DEADLINE", Timeout, true,
        "The tool did not answer in time.",
        "The attempt's own time ran out on the last attempt. A read, or a write whose handler deduplicates, may be retried.";
    CallerDeadline = "CALLER_DEADLINE", Timeout, true,
        "The time for this request ran out while the tool was running.",
        "The caller's deadline or the batch total cut the attempt short. Retry with a longer deadline or fewer calls.";
    HandlerFailed = "HANDLER_FAILED", Error, false,
        "The tool failed.",
        "The handler answered with a status other than OK. Its message reaches nobody; look into the handler's own log.";
    UpstreamUnavailable = "UPSTREAM_UNAVAILABLE", Error, true,
        "The tool cannot be reached now.",
        "The handler could not be reached, or the connection ended without a status.";
    ResultInvalid = "RESULT_INVALID", Error, false,
        "The tool gave an answer that cannot be used.",
        "The handler's result is not one strict JSON object, is too large, or breaks the result schema. It is withheld. Mend the handler or the contract.";
    Cancelled = "CANCELLED", Error, false,
        "The tool call was cancelled.",
        "The caller went away while the call ran.";
    LedgerFailed = "LEDGER_FAILED", Error, false,
        "The gate cannot run this tool call now.",
        "The ledger failed or did not answer in time. No handler ran.";
    AuditStartedFailed = "AUDIT_STARTED_FAILED", Error, false,
        "The gate cannot run this tool call now.",
        "The started event could not be made durable. No handler ran. Look at the journal's disk.";
    AuditConstructionFailed = "AUDIT_CONSTRUCTION_FAILED", Error, false,
        "The gate cannot run this tool call now.",
        "An audit event could not be built. No handler ran. Please report this.";
    ProcessLost = "PROCESS_LOST", Error, false,
        "The gate stopped while the tool was running.",
        "The process died while the call ran. What it changed is unknown, unless the effect says otherwise.";
    Internal = "INTERNAL", Error, false,
        "The gate failed on this tool call.",
        "A fault inside the gate. The log has its place. Please report this.";
    Ok = "OK", Success, false,
        "The tool call succeeded.",
        "The handler answered within all limits.";
}

impl Reason {
    /// The stable name.
    #[must_use]
    pub const fn code(self) -> &'static str {
        self.row().code
    }

    /// Whether it says that a ticket did not let a call run.
    #[must_use]
    pub const fn is_of_a_confirmation(self) -> bool {
        matches!(
            self,
            Self::ConfirmationRequired
                | Self::ConfirmationInvalid
                | Self::ConfirmationExpired
                | Self::ConfirmationNotYetValid
                | Self::ConfirmationMismatch
                | Self::ConfirmationOtherLedger
                | Self::ConfirmationRevoked
                | Self::ConfirmationConsumed
                | Self::ConfirmationUnexpected
        )
    }

    /// How a call with this reason ended.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        self.row().outcome
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}
