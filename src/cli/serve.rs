//! `toolgate serve`: serve until told to stop, then drain.

use std::path::PathBuf;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Failure, runtime};
use crate::adapters::ledger::Lost;
use crate::app::Running;
use crate::config;
use crate::domain::audit::ReloadTrigger;
use crate::ports::Administration as _;
use crate::telemetry::logs;

/// Serves the configuration.
#[derive(Debug, clap::Args)]
pub struct Serve {
    /// The configuration file
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
}

impl Serve {
    /// Serves until SIGTERM or SIGINT, then drains. SIGHUP loads everything again.
    ///
    /// # Errors
    ///
    /// Every fault of the configuration, or why the gate could not start.
    pub fn run(self) -> Result<bool, Failure> {
        let config = config::load(&self.config)
            .map_err(|faults| Failure::new(format!("the configuration has faults\n{faults}")))?;
        logs::init(std::io::stderr(), config.log_level)?;
        for warning in &config.policy.warnings {
            tracing::warn!(
                file = warning.file,
                pointer = warning.pointer,
                fault = warning.code.name(),
                "policy warning",
            );
        }
        let runtime = runtime()?;
        let done = runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut hangup = signal(SignalKind::hangup())?;
            let running = tokio::select! {
                running = Running::start(config) => running?,
                // A start may take long, and has nothing to drain.
                signal = first_of(&mut terminate, &mut interrupt) => {
                    tracing::info!(signal, "stopped before it served");
                    return Ok(true);
                }
            };
            let reloader = running.reloader().clone();
            let reloads = tokio::spawn(async move {
                // Signals that come meanwhile are one.
                while hangup.recv().await.is_some() {
                    // What came of it is told in log, metric and status.
                    drop(reloader.reload(ReloadTrigger::Signal).await);
                }
            });
            let signal = tokio::select! {
                signal = first_of(&mut terminate, &mut interrupt) => Ok(signal),
                lost = running.lost() => Err(lost),
            };
            reloads.abort();
            tracing::info!(signal = signal.ok(), "draining");
            running.stop().await;
            tracing::info!("stopped");
            match signal {
                Ok(_) => Ok(true),
                Err(Lost::TakenOver) => Err(Failure::new(
                    "another gate has taken over what this one was running: start it again",
                )),
                Err(Lost::WentBack) => Err(Failure::new(
                    "the ledger's database lacks what it has acknowledged, as after a restore or a \
                     fail-over to a standby that lags: spent tickets may be good again. Stop all \
                     gates, run toolgate ledger new-identity, and start them",
                )),
            }
        });
        // A thread that hangs on the disk is left behind: everything else has ended.
        runtime.shutdown_background();
        done
    }
}

/// The signal that comes first, by its name.
async fn first_of(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
