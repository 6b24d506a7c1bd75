//! Every instrument with its name, unit and help.
//!
//! The exporter appends `_total` to a counter's name and `_seconds` to that of
//! an instrument whose unit is `s`, so neither stands in the names here. It
//! writes no `HELP` line without a description.

use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{
    BoundCounter, BoundGauge, BoundHistogram, BoundUpDownCounter, Counter, Histogram, Meter,
};
use opentelemetry_sdk::metrics::{Instrument, Stream};

use super::JournalFailure;
use crate::domain::audit::{Digest, ReloadResult};
use crate::telemetry::readiness::Readiness;

pub(super) struct Instruments {
    pub(super) tool_calls: Counter<u64>,
    pub(super) tool_duration: Histogram<f64>,
    pub(super) refused: Counter<u64>,
    pub(super) callers: Counter<u64>,
    pub(super) issuer_keys: Counter<u64>,
    pub(super) shed: BoundCounter<u64>,
    pub(super) tls_reloads: Counter<u64>,
    pub(super) in_flight: BoundUpDownCounter<i64>,
    pub(super) append_duration: BoundHistogram<f64>,
    pub(super) journal_failures: Counter<u64>,
    pub(super) journal_head: BoundGauge<u64>,
    pub(super) upstream_failures: Counter<u64>,
    pub(super) confirmations: Counter<u64>,
    pub(super) ledger_duration: Histogram<f64>,
    pub(super) ledger_failures: Counter<u64>,
    pub(super) reloads: Counter<u64>,
    pub(super) last_reload_successful: BoundGauge<u64>,
    pub(super) last_reload_success: BoundGauge<f64>,
    pub(super) watchers: BoundUpDownCounter<i64>,
    pub(super) audit_events_sent: BoundCounter<u64>,
}

const TOOL_CALLS: &str = "toolgate_tool_calls";
const TOOL_DURATION: &str = "toolgate_tool_duration";

/// Upper bounds in seconds: refusals end below a millisecond, attempts by default within 2 s,
/// batches within 30 s.
const TOOL_BUCKETS: [f64; 18] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0,
    2.5, 5.0, 10.0, 30.0,
];

/// Upper bounds in seconds: from a write into the page cache to the 2 s after which a wait is
/// given up.
const APPEND_BUCKETS: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 2.0];

impl Instruments {
    #[allow(clippy::too_many_lines, reason = "one entry for each instrument")]
    pub(super) fn new(
        meter: &Meter,
        version: &'static str,
        policy: Arc<Mutex<Option<Digest>>>,
    ) -> Self {
        observe_policy(meter, policy);
        observe_build(meter, version);
        let instruments = Self {
            tool_calls: meter
                .u64_counter(TOOL_CALLS)
                .with_description("Completed tool calls: attempts and refusals, by how they ended.")
                .build(),
            tool_duration: meter
                .f64_histogram(TOOL_DURATION)
                .with_unit("s")
                .with_description("Recorded duration of completed tool calls.")
                .with_boundaries(TOOL_BUCKETS.to_vec())
                .build(),
            refused: meter
                .u64_counter("toolgate_requests_refused")
                .with_description("Requests answered with a gRPC status other than OK.")
                .build(),
            callers: meter
                .u64_counter("toolgate_callers_unknown")
                .with_description(
                    "Requests whose caller was not recognised, by what it showed and why not.",
                )
                .build(),
            issuer_keys: meter
                .u64_counter("toolgate_issuer_key_reloads")
                .with_description(
                    "Changes of an issuer's key files: taken, or refused and the old keys kept.",
                )
                .build(),
            shed: meter
                .u64_counter("toolgate_requests_shed")
                .with_description("Requests turned away because too many were in flight.")
                .build()
                .bind(&[]),
            tls_reloads: meter
                .u64_counter("toolgate_tls_reloads")
                .with_description("Changed certificates, keys and authorities of listeners, by whether they were taken.")
                .build(),
            in_flight: meter
                .i64_up_down_counter("toolgate_requests_in_flight")
                .with_description("Requests between their start and their answer.")
                .build()
                .bind(&[]),
            append_duration: meter
                .f64_histogram("toolgate_journal_append_duration")
                .with_unit("s")
                .with_description("How long callers waited for the journal.")
                .with_boundaries(APPEND_BUCKETS.to_vec())
                .build()
                .bind(&[]),
            journal_failures: meter
                .u64_counter("toolgate_journal_failures")
                .with_description("Appends that the journal did not answer with stamps.")
                .build(),
            journal_head: meter
                .u64_gauge("toolgate_journal_head_sequence")
                .with_description("Sequence of the last event known to be in the journal.")
                .build()
                .bind(&[]),
            upstream_failures: meter
                .u64_counter("toolgate_upstream_failures")
                .with_description("Attempts that an upstream left without a usable result.")
                .build(),
            confirmations: meter
                .u64_counter("toolgate_confirmations")
                .with_description(
                    "Tickets issued, revoked and spent, and calls that a ticket did not let run.",
                )
                .build(),
            ledger_duration: meter
                .f64_histogram("toolgate_ledger_operation_duration")
                .with_unit("s")
                .with_description("How long callers waited for the ledger.")
                .with_boundaries(APPEND_BUCKETS.to_vec())
                .build(),
            ledger_failures: meter
                .u64_counter("toolgate_ledger_failures")
                .with_description("Operations that the ledger did not answer.")
                .build(),
            reloads: meter
                .u64_counter("toolgate_reloads")
                .with_description("Reloads of configuration and policy, by what came of them.")
                .build(),
            last_reload_successful: meter
                .u64_gauge("toolgate_last_reload_successful")
                .with_description("1 unless the last reload failed.")
                .build()
                .bind(&[]),
            last_reload_success: meter
                .f64_gauge("toolgate_last_reload_success_timestamp")
                .with_unit("s")
                .with_description("When what is in force was last found whole, in Unix time.")
                .build()
                .bind(&[]),
            watchers: meter
                .i64_up_down_counter("toolgate_watchers")
                .with_description("Streams that follow the journal.")
                .build()
                .bind(&[]),
            audit_events_sent: meter
                .u64_counter("toolgate_audit_events_sent")
                .with_description("Events handed to the streams that follow the journal.")
                .build()
                .bind(&[]),
        };
        instruments.show_zeros();
        instruments
    }

    /// Shows the series that are few and known from the start, so that a rate sees their first step.
    fn show_zeros(&self) {
        self.shed.add(0);
        self.in_flight.add(0);
        self.last_reload_successful.record(1);
        for result in ReloadResult::ALL {
            self.reloads.add(0, &[KeyValue::new("result", result.as_str())]);
        }
        self.watchers.add(0);
        self.audit_events_sent.add(0);
        for result in ["taken", "refused"] {
            self.issuer_keys.add(0, &[KeyValue::new("result", result)]);
        }
        for failure in JournalFailure::ALL {
            self.journal_failures.add(0, &[KeyValue::new("kind", failure.as_str())]);
        }
    }
}

/// The view that gives the two tool instruments room for `series` series instead of the SDK's 2,000.
pub(super) fn series_limits(
    series: usize,
) -> impl Fn(&Instrument) -> Option<Stream> + Send + Sync + 'static {
    move |instrument| match instrument.name() {
        TOOL_CALLS | TOOL_DURATION => Stream::builder().with_cardinality_limit(series).build().ok(),
        _ => None,
    }
}

pub(super) fn observe_ready(meter: &Meter, readiness: Readiness) {
    meter
        .u64_observable_gauge("toolgate_ready")
        .with_description("1 if the gate takes new work, else 0.")
        .with_callback(move |gauge| gauge.observe(u64::from(readiness().is_empty()), &[]))
        .build();
}

/// Observed, not recorded: a digest that is no longer in force leaves the exposition.
fn observe_policy(meter: &Meter, policy: Arc<Mutex<Option<Digest>>>) {
    meter
        .u64_observable_gauge("toolgate_policy_info")
        .with_description("1, with the digest of the policy in force.")
        .with_callback(move |gauge| {
            let digest = *policy.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(digest) = digest {
                gauge.observe(1, &[KeyValue::new("policy_digest", digest.to_string())]);
            }
        })
        .build();
}

fn observe_build(meter: &Meter, version: &'static str) {
    meter
        .u64_observable_gauge("toolgate_build_info")
        .with_description("1, with the version of this build.")
        .with_callback(move |gauge| gauge.observe(1, &[KeyValue::new("version", version)]))
        .build();
}
