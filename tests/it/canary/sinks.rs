//! What audit sinks send of marked calls.

use std::fs;
use std::io::{PipeReader, PipeWriter, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread::JoinHandle;

use prost::Message as _;
use tonic::Status;

use super::{Evidence, marked_context, without_ids};
use crate::support::collector::{Collector, Does, Listening};

/// What the gate shows to the collector.
pub const TOKEN: &str = "collector-Wq8mT3xVb6Kd1Rz9Lf4Hs7Yp";

/// A collector whose answers are marked, and whatever reads standard output.
pub struct Sinks {
    pub audit: String,
    collector: Collector,
    _listening: Listening,
    out: PipeWriter,
    printed: JoinHandle<String>,
}

impl Sinks {
    pub async fn start(directory: &Path) -> Self {
        let collector = Collector::default();
        collector.then([
            Does::Answer(Status::unavailable("canary 8675309")),
            Does::Answer(Status::unauthenticated("canary 8675309")),
            Does::Reject(1),
        ]);
        let listening = collector.listen().await;
        let headers = directory.join("headers");
        fs::write(&headers, format!("authorization: Bearer {TOKEN}\n")).unwrap();
        fs::set_permissions(&headers, fs::Permissions::from_mode(0o600)).unwrap();
        let audit = format!(
            ", sinks: [{{name: lines, stdout: {{}}}}, \
             {{name: collector, otlp: {{endpoint: \"http://{}\", headers_file: headers}}}}]",
            listening.address
        );
        let (reader, out) = std::io::pipe().unwrap();
        let printed = std::thread::spawn(move || read(reader));
        Self { audit, collector, _listening: listening, out, printed }
    }

    /// Another end of the pipe, for the gate.
    pub fn out(&self) -> PipeWriter {
        self.out.try_clone().unwrap()
    }

    /// Keeps everything that was sent of all these events, without its context.
    pub fn keep(self, evidence: &mut Evidence, events: usize) {
        drop(self.out);
        let printed = self.printed.join().unwrap();
        assert_eq!(printed.lines().count(), events);
        evidence.keep("standard output", without_ids(printed));
        let bearer = format!("Bearer {TOKEN}");
        let metadata = self.collector.metadata();
        assert!(metadata.iter().all(|one| one.get("authorization").unwrap() == bearer.as_str()));
        let taken = self.collector.taken();
        assert_eq!(taken.len(), events);
        let context = marked_context();
        let ids = ["request_id", "user_id", "tenant_id", "conversation_id"];
        let ids = ids.map(|name| format!("toolgate.{name}"));
        for mut received in taken {
            let found = ids.clone().map(|name| received.attributes[&name].clone());
            let wanted = [
                &context.request_id,
                &context.user_id,
                &context.tenant_id,
                &context.conversation_id,
            ];
            assert_eq!(found, wanted.map(|id| serde_json::Value::from(id.as_str())));
            received.record.attributes.retain(|pair| {
                !ids.contains(&pair.key) && pair.key != "toolgate.confirmed_by_user_id"
            });
            evidence.keep("OTLP", received.record.encode_to_vec());
            evidence.keep("OTLP", format!("{:?}", received.record));
        }
    }
}

fn read(mut reader: PipeReader) -> String {
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text
}
