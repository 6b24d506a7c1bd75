//! Listeners, what they speak TLS with, and the callers that they know.

use std::sync::Arc;
use std::time::Duration;

use super::StartError;
use crate::config::{CallerConfig, ListenAt, ListenerConfig, Shows};
use crate::grpc::callers::Callers;
use crate::grpc::callers::jwt::Issuers;
use crate::grpc::listeners::Listener;
use crate::grpc::tls::Tls;
use crate::ports::Clock;
use crate::telemetry::metrics::Metrics;

/// How soon TLS follows its files.
const TLS_INTERVAL: Duration = Duration::from_secs(5);

pub(super) fn callers(
    configured: &[CallerConfig],
    tokens: Arc<Issuers>,
    clock: &Arc<dyn Clock>,
) -> Callers {
    let mut callers = Callers::default();
    for CallerConfig { caller, shows } in configured {
        let caller = caller.clone();
        match shows {
            // Loading has refused secrets that no metadata could carry.
            Shows::Secret(secret) => {
                if let Ok(credential) = secret.as_credential() {
                    callers.add_secret(credential, caller);
                }
            }
            Shows::Process(process) => callers.add_process(*process, caller),
            Shows::Certificate(name) => callers.add_certificate(name.clone(), caller),
        }
    }
    callers.take_tokens(tokens, Arc::clone(clock));
    callers
}

/// The listeners, and what some of them speak TLS with.
pub(super) async fn bind(
    configured: &[ListenerConfig],
) -> Result<(Vec<Listener>, Vec<Arc<Tls>>), StartError> {
    let mut listeners = Vec::with_capacity(configured.len());
    let mut all_tls = Vec::new();
    for ListenerConfig { at, tls, ways } in configured {
        let bound = match (at, tls) {
            (ListenAt::Unix(path), _) => Listener::unix(path, *ways),
            (ListenAt::Tcp(address), None) => Listener::tcp(*address, *ways).await,
            (ListenAt::Tcp(address), Some(files)) => {
                let tls = Arc::new(Tls::open(files.clone()).map_err(StartError::Tls)?);
                all_tls.push(Arc::clone(&tls));
                Listener::tls(*address, *ways, tls).await
            }
        };
        let bound = bound.map_err(|source| StartError::Bind { address: at.to_string(), source });
        listeners.push(bound?);
    }
    Ok((listeners, all_tls))
}

/// Lets TLS follow its files, for as long as it is polled.
pub(super) async fn keep_tls(all: Vec<Arc<Tls>>, metrics: Metrics) {
    if all.is_empty() {
        return;
    }
    let mut interval = tokio::time::interval(TLS_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        for tls in &all {
            let tls = Arc::clone(tls);
            match tokio::task::spawn_blocking(move || tls.reload()).await {
                Ok(Ok(false)) | Err(_) => {}
                Ok(Ok(true)) => {
                    metrics.tls_reloaded(true);
                    tracing::info!("certificates were reloaded");
                }
                Ok(Err(fault)) => {
                    metrics.tls_reloaded(false);
                    tracing::error!(%fault, "certificates were not reloaded; the former stay");
                }
            }
        }
    }
}
