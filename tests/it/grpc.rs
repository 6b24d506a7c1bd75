//! The public contract over a real connection, as `proto/` tells it.

mod answers;
mod catalogue;
mod check;
mod listeners;
mod metadata;
mod record;
mod refused;
mod streamed;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

pub const EXECUTE: &str = "/toolgate.v1.ToolGate/Execute";
pub const CHECK: &str = "/toolgate.v1.ToolGate/Check";

/// A refusal of the gate's own: its code, its `ErrorInfo`, its field, and nothing of tonic's.
pub fn assert_refused(status: &Status, code: Code, reason: &str, field: Option<&str>) {
    assert_eq!(status.code(), code, "{status:?}");
    let info =
        status.get_details_error_info().unwrap_or_else(|| panic!("no ErrorInfo: {status:?}"));
    assert_eq!((info.domain.as_str(), info.reason.as_str()), ("toolgate.dev", reason));
    assert!(info.metadata.is_empty());
    let fields =
        status.get_details_bad_request().map_or_else(Vec::new, |request| request.field_violations);
    let fields: Vec<_> = fields.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(fields, field.into_iter().collect::<Vec<_>>(), "{status:?}");
}
