//! How a subcommand reaches a running gate.

use std::path::PathBuf;

use clap::Args;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt as _;

use super::Failure;
use crate::config::Secret;
use crate::domain::proposal::is_forbidden;

/// Where the gate is, and who asks.
#[derive(Debug, Clone, Args)]
pub struct GateAddress {
    /// The gate's address: HOST:PORT, or unix:PATH
    #[arg(long, default_value = "127.0.0.1:7443", value_name = "ADDRESS")]
    gate: String,
    /// The secret of a caller whose role allows this
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
}

/// A connection to a gate, and the credential that is shown on it.
pub(super) struct Connected {
    channel: Channel,
    bearer: MetadataValue<Ascii>,
}

impl GateAddress {
    /// Reads the secret and connects.
    ///
    /// # Errors
    ///
    /// Why the file is no caller's secret, or why the gate cannot be reached.
    pub(super) async fn connect(&self) -> Result<Connected, Failure> {
        let named = |fault: &dyn std::fmt::Display| {
            Failure::new(format!("{}: {fault}", self.secret_file.display()))
        };
        let secret = Secret::read(&self.secret_file).map_err(|fault| named(&fault))?;
        let credential = secret.as_credential().map_err(|fault| named(&fault))?;
        let mut bearer = MetadataValue::try_from([b"Bearer ", credential].concat())?;
        bearer.set_sensitive(true);
        let is_socket = self.gate.starts_with("unix:");
        let uri = if is_socket { self.gate.clone() } else { format!("http://{}", self.gate) };
        let channel = Endpoint::from_shared(uri)?.connect().await.map_err(|error| {
            let Failure(cause) = Failure::from(error);
            Failure::new(format!("the gate at {} cannot be reached: {cause}", self.gate))
        })?;
        Ok(Connected { channel, bearer })
    }
}

impl Connected {
    /// The connection, for a client of one of the gate's services.
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A request that shows the credential.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.bearer.clone());
        request
    }
}

/// What the gate answered instead, for the operator.
///
/// By value, as a closure of `map_err` takes it.
#[allow(clippy::needless_pass_by_value, reason = "map_err hands the status over")]
pub(super) fn told(status: tonic::Status) -> Failure {
    let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
    let text = format!("the gate answered {:?} {reason}: {}", status.code(), status.message());
    // Whoever answers there: a terminal is sent no control character.
    Failure::new(text.replace(is_forbidden, "\u{fffd}"))
}

/// Whether asking again may help: the connection broke, or the gate says that it is not for good.
pub(super) fn may_pass(status: &tonic::Status) -> bool {
    // A status without a reason is the transport's.
    status.get_details_error_info().is_none()
        || matches!(status.code(), tonic::Code::Unavailable | tonic::Code::ResourceExhausted)
}
