//! What the audit sinks tell of themselves, read at each scrape.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use crate::ports::{SinkStatus, SinkStatuses};

/// Sets up every instrument of the sinks. Their names come from the configuration.
pub(super) fn observe(meter: &Meter, sinks: &SinkStatuses) {
    counter(
        meter,
        sinks,
        "toolgate_sink_events_delivered",
        "Events that an audit sink's receiver has taken, repeated ones again.",
        |sink| sink.delivered,
    );
    counter(
        meter,
        sinks,
        "toolgate_sink_events_rejected",
        "Events that an audit sink's receiver will never take.",
        |sink| sink.rejected,
    );
    counter(
        meter,
        sinks,
        "toolgate_sink_events_missed",
        "Events that were gone from the journal before an audit sink could send them.",
        |sink| sink.missed,
    );
    let told = Arc::clone(sinks);
    meter
        .u64_observable_counter("toolgate_sink_failures")
        .with_description("What went wrong on an audit sink's way, each try counted.")
        .with_callback(move |counter| {
            for sink in told() {
                for (kind, count) in &sink.failures {
                    counter.observe(*count, &[KeyValue::new("kind", *kind), label(&sink)]);
                }
            }
        })
        .build();
    let told = Arc::clone(sinks);
    meter
        .u64_observable_gauge("toolgate_sink_lag_events")
        .with_description("Events in the journal that an audit sink's receiver has not taken yet.")
        .with_callback(move |gauge| {
            for sink in told() {
                gauge.observe(sink.lag, &[label(&sink)]);
            }
        })
        .build();
    let told = Arc::clone(sinks);
    meter
        .f64_observable_gauge("toolgate_sink_last_success_timestamp")
        .with_unit("s")
        .with_description("When an audit sink's receiver last took an event, in Unix time.")
        .with_callback(move |gauge| {
            for sink in told() {
                if let Some(at) = sink.last_success {
                    gauge.observe(at.as_duration().as_secs_f64(), &[label(&sink)]);
                }
            }
        })
        .build();
}

fn counter(
    meter: &Meter,
    sinks: &SinkStatuses,
    name: &'static str,
    help: &'static str,
    value: impl Fn(&SinkStatus) -> u64 + Send + Sync + 'static,
) {
    let sinks = Arc::clone(sinks);
    meter
        .u64_observable_counter(name)
        .with_description(help)
        .with_callback(move |counter| {
            for sink in sinks() {
                counter.observe(value(&sink), &[label(&sink)]);
            }
        })
        .build();
}

fn label(sink: &SinkStatus) -> KeyValue {
    KeyValue::new("sink", sink.name.to_string())
}
