//! What a log record says.

use opentelemetry_proto::tonic::logs::v1::SeverityNumber;
use serde_json::{Value, json};
use toolgate::domain::audit::ReloadTrigger;
use toolgate::ports::Administration as _;

use super::{a_call, journal, world};
use crate::support::collector::{Collector, Received, line};
use crate::support::running::{Does, call, execute};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// The record as the journal's line: what stands beside the attributes put back.
fn as_line(received: &Received) -> Value {
    let record = &received.record;
    let mut line = line(received);
    let name = record.event_name.strip_prefix("toolgate.").unwrap();
    line.insert("event".to_owned(), json!(name));
    let time = i128::from(record.time_unix_nano);
    let time = jiff::Timestamp::from_nanosecond(time).unwrap();
    line.insert("time".to_owned(), json!(format!("{time:.6}")));
    if !record.trace_id.is_empty() {
        let id = u128::from_be_bytes(record.trace_id.clone().try_into().unwrap());
        line.insert("trace_id".to_owned(), json!(format!("{id:032x}")));
    }
    Value::Object(line)
}

/// `82` and `82.0` are one duration.
fn with_doubles(mut line: Value) -> Value {
    if let Some(duration) = line.get_mut("duration_ms") {
        *duration = json!(duration.as_f64().unwrap());
    }
    line
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_holds_the_journals_line_and_nothing_else() {
    let collector = Collector::default();
    let (mut world, _listening) = world(&collector).await;
    world.handler.set("echo", Does::Fail(tonic::Status::internal("text of the handler's")));
    let mut request = execute(vec![a_call("c1"), call("c2", "echo", r#"{"text":"hello"}"#)]);
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    world.client.execute(request).await.unwrap();
    world.client.execute(execute(vec![call("c3", "nobody", "{}")])).await.unwrap();
    world.running().reloader().clone().reload(ReloadTrigger::Signal).await.unwrap();

    let journal = journal(&world);
    assert_eq!(journal.len(), 7);
    collector.until_taken(7).await;
    let taken = collector.taken();
    let lines: Vec<_> = taken.iter().map(as_line).collect();
    assert_eq!(lines, journal.iter().cloned().map(with_doubles).collect::<Vec<_>>());
    let severities: Vec<_> = taken.iter().map(|one| one.record.severity_number()).collect();
    let (info, warn, error) = (SeverityNumber::Info, SeverityNumber::Warn, SeverityNumber::Error);
    assert_eq!(severities, [info, info, info, error, info, warn, info]);
    assert_eq!(taken[3].record.severity_text, "ERROR");
    for received in &taken {
        assert!(received.record.observed_time_unix_nano >= received.record.time_unix_nano);
        assert!(received.record.body.is_none() && received.record.span_id.is_empty());
        assert!(received.attributes.keys().all(|name| name.starts_with("toolgate.")));
    }
    assert_eq!(as_line(&taken[0])["trace_id"], TRACE);
    let id = &journal[0]["journal_id"];
    let resource = json!({
        "service.name": "toolgate",
        "service.version": env!("CARGO_PKG_VERSION"),
        "service.instance.id": id,
    });
    let agent = concat!("toolgate/", env!("CARGO_PKG_VERSION"));
    for metadata in collector.metadata() {
        assert!(metadata.get("user-agent").unwrap().to_str().unwrap().starts_with(agent));
    }
    assert!(collector.resources().iter().all(|one| json!(one) == resource));
    world.stop().await;
}
