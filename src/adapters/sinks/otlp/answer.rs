//! What a status of the receiver means for the events that it answers.

use std::error::Error as _;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::adapters::code::code_name;
use crate::adapters::sinks::peer::{NotTaken, SinkFault};

/// Only what the receiver says of the events themselves may cost an event.
///
/// The protocol counts more statuses as final than these (OTLP/gRPC, "Failures"):
/// credentials that have expired, a method that is not there, a fault of the
/// receiver's. They say nothing of the events, and a telemetry client would drop
/// them; an audit trail waits until they are mended.
pub(super) fn of(status: &Status) -> NotTaken {
    // The transport's own status, not one that came over it.
    if status.source().is_some() {
        return NotTaken::Later { fault: SinkFault::Unreachable, wait: None };
    }
    let fault = SinkFault::Status(code_name(status.code()));
    let wait = status.get_details_retry_info().and_then(|info| info.retry_delay);
    match status.code() {
        Code::InvalidArgument => NotTaken::Refused,
        // Without a time to come back, it is this request that is too much.
        Code::ResourceExhausted | Code::OutOfRange if wait.is_none() => NotTaken::TooMany(fault),
        _ => NotTaken::Later { fault, wait },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;

    #[test]
    fn only_invalid_argument_costs_an_event() {
        for number in 1..=16 {
            let code = Code::from_i32(number);
            let later = NotTaken::Later { fault: SinkFault::Status(code_name(code)), wait: None };
            let wanted = match code {
                Code::InvalidArgument => NotTaken::Refused,
                Code::ResourceExhausted | Code::OutOfRange => {
                    NotTaken::TooMany(SinkFault::Status(code_name(code)))
                }
                _ => later,
            };
            assert_eq!(of(&Status::new(code, "text")), wanted, "{code:?}");
        }
    }

    #[test]
    fn a_time_to_come_back_is_kept() {
        let wait = Some(Duration::from_secs(7));
        for code in [Code::ResourceExhausted, Code::Unavailable] {
            let details = ErrorDetails::with_retry_info(wait);
            let status = <Status as StatusExt>::with_error_details(code, "", details);
            let fault = SinkFault::Status(code_name(code));
            assert_eq!(of(&status), NotTaken::Later { fault, wait });
        }
    }
}
