//! Starts the audit sinks, and tells of them.

use std::path::Path;
use std::sync::Arc;

use super::StartError;
use crate::adapters::journal::JournalFiles;
use crate::adapters::sinks::{SinkConfig, Sinks};
use crate::ports::{AuditLog, Clock, SinkStatus};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::readiness::{Notice, Notices};

/// Starts the sinks, and lets metrics and probes ask for them.
pub(super) async fn start(
    configured: Vec<SinkConfig>,
    data: &Path,
    journal: &Arc<JournalFiles>,
    clock: &Arc<dyn Clock>,
    metrics: &Metrics,
) -> Result<(Sinks, Notices), StartError> {
    let log = Arc::clone(journal) as Arc<dyn AuditLog>;
    let sinks = Sinks::start(configured, data, log, clock).await.map_err(StartError::Sinks)?;
    let statuses = Arc::clone(sinks.statuses());
    metrics.watch_sinks(&statuses);
    let notices = Arc::new(move || {
        let is_one_behind = statuses().iter().any(SinkStatus::is_behind);
        is_one_behind.then_some(Notice::SinkBehind).into_iter().collect()
    });
    Ok((sinks, notices))
}
