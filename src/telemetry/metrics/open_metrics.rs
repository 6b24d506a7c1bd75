//! The metrics of tool calls in the text format of `OpenMetrics`.

use std::fmt::Write as _;

use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::Metrics;

impl Metrics {
    /// The metrics of tool calls as `OpenMetrics` text, with its end mark.
    #[must_use]
    pub fn tool_calls_as_open_metrics(&self) -> String {
        let mut text = String::new();
        for family in self.inner.registry.gather() {
            if family.name().starts_with("toolgate_tool_") {
                write_family(&mut text, &family);
            }
        }
        text.push_str("# EOF\n");
        text
    }
}

fn write_family(text: &mut String, family: &MetricFamily) {
    // A counter's family has not the suffix that its samples have.
    let (name, kind) = match family.get_field_type() {
        MetricType::HISTOGRAM => (family.name(), "histogram"),
        _ => (family.name().trim_end_matches("_total"), "counter"),
    };
    line(text, format_args!("# TYPE {name} {kind}"));
    if name.ends_with("_seconds") {
        line(text, format_args!("# UNIT {name} seconds"));
    }
    line(text, format_args!("# HELP {name} {}", escape(family.help())));
    for metric in family.get_metric() {
        if kind == "histogram" {
            write_histogram(text, name, metric);
        } else {
            let value = metric.get_counter().get_value();
            line(text, format_args!("{name}_total{} {value:?}", labels(metric, None)));
        }
    }
}

fn write_histogram(text: &mut String, name: &str, metric: &Metric) {
    let histogram = metric.get_histogram();
    let count = histogram.get_sample_count();
    let bounds = histogram.get_bucket().iter();
    for bucket in bounds.filter(|bucket| bucket.upper_bound().is_finite()) {
        let at_most = labels(metric, Some(&format!("{:?}", bucket.upper_bound())));
        line(text, format_args!("{name}_bucket{at_most} {}", bucket.cumulative_count()));
    }
    line(text, format_args!("{name}_bucket{} {count}", labels(metric, Some("+Inf"))));
    line(text, format_args!("{name}_count{} {count}", labels(metric, None)));
    line(text, format_args!("{name}_sum{} {:?}", labels(metric, None), histogram.get_sample_sum()));
}

fn labels(metric: &Metric, at_most: Option<&str>) -> String {
    let own = metric.get_label().iter().map(|label| (label.name(), label.value()));
    let pairs = own.chain(at_most.map(|bound| ("le", bound)));
    let pairs: Vec<_> =
        pairs.map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}
