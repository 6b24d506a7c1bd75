//! Which changes of a configuration a running gate cannot make.

use serde_json::Value;

use crate::domain::refusal::{Code, Finding};
use crate::domain::schema::join;

/// What a reload puts in force. Everything else is what the process was started with.
const LIVE: [&str; 4] = ["/policy", "/audit/keys", "/confirmation/keys", "/upstreams"];

/// A finding for every place where two configurations differ and a reload
/// cannot follow. They are compared as written: a default that is written out
/// differs from one that is left out.
#[must_use]
pub fn restart_needed(running: &Value, loaded: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    compare(running, loaded, "", &mut findings);
    findings
}

fn compare(running: &Value, loaded: &Value, at: &str, findings: &mut Vec<Finding>) {
    if running == loaded || LIVE.contains(&at) {
        return;
    }
    let (Value::Object(before), Value::Object(after)) = (running, loaded) else {
        findings.push(Finding::new(
            at,
            Code::RestartNeeded,
            "this has changed, and cannot change while the gate runs",
            "restart the gate, or put back what was there",
        ));
        return;
    };
    let added = after.keys().filter(|name| !before.contains_key(*name));
    for name in before.keys().chain(added) {
        let value = |of: &serde_json::Map<String, Value>| of.get(name).cloned().unwrap_or_default();
        compare(&value(before), &value(after), &join(at, [name.as_str()]), findings);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_place_that_cannot_change_is_named_and_no_other() {
        let running = json!({
            "listeners": ["127.0.0.1:7443"],
            "policy": "policy",
            "audit": {"keys": [1], "sync": "records"},
            "confirmation": {"keys": [1], "skew": "30s"},
            "upstreams": {"a": {}},
            "limits": null,
        });
        let pointers = |loaded: &Value| -> Vec<String> {
            restart_needed(&running, loaded).into_iter().map(|finding| finding.pointer).collect()
        };
        let live = json!({
            "listeners": ["127.0.0.1:7443"],
            "policy": "other",
            "audit": {"keys": [2, 1], "sync": "records"},
            "confirmation": {"keys": [], "skew": "30s"},
            "upstreams": {"b": {}},
        });
        assert_eq!(pointers(&live), [""; 0]);
        let other = json!({
            "listeners": ["127.0.0.1:7444"],
            "policy": "policy",
            "audit": {"keys": [1], "sync": "all"},
            "upstreams": {"a": {}},
            "limits": {"drain": "1s"},
            "log": {"level": "info"},
        });
        assert_eq!(
            pointers(&other),
            ["/audit/sync", "/confirmation", "/limits", "/listeners", "/log"]
        );
    }
}
