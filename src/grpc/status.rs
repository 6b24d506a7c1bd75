//! From [`Refused`] to a gRPC status with `google.rpc` details.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::domain::refused::{Refused, StatusCode};

/// `ErrorInfo.domain`.
pub(super) const DOMAIN: &str = "toolgate.dev";

/// When an overloaded gate may be asked again.
const RETRY_DELAY: Duration = Duration::from_millis(200);

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        let row = refused.row();
        let mut details = ErrorDetails::with_error_info(row.reason, DOMAIN, HashMap::new());
        if let Some(field) = refused.field() {
            details.add_bad_request_violation(field, row.message);
        }
        if refused == Refused::Overloaded {
            details.set_retry_info(Some(RETRY_DELAY));
        }
        let message = match refused.field() {
            Some(field) => format!("{field}: {}", row.message),
            None => row.message.to_owned(),
        };
        let mut status = Self::with_error_details(code(row.code), message, details);
        status.set_source(Arc::new(Cause(refused)));
        status
    }
}

/// The refusal behind a status that this gate made; `None` where tonic made it.
pub(super) fn refusal_of(status: &Status) -> Option<Refused> {
    status.source()?.downcast_ref::<Cause>().map(|cause| cause.0)
}

/// Carries the refusal to the place that counts it. Never sent.
#[derive(Debug)]
struct Cause(Refused);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.row().reason)
    }
}

impl Error for Cause {}

const fn code(code: StatusCode) -> Code {
    match code {
        StatusCode::InvalidArgument => Code::InvalidArgument,
        StatusCode::NotFound => Code::NotFound,
        StatusCode::PermissionDenied => Code::PermissionDenied,
        StatusCode::ResourceExhausted => Code::ResourceExhausted,
        StatusCode::FailedPrecondition => Code::FailedPrecondition,
        StatusCode::Unimplemented => Code::Unimplemented,
        StatusCode::Internal => Code::Internal,
        StatusCode::Unavailable => Code::Unavailable,
        StatusCode::Unauthenticated => Code::Unauthenticated,
    }
}
