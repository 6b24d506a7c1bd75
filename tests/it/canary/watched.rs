//! What a watcher is told of marked calls.

use prost::Message as _;
use tonic::{Code, Request};
use toolgate::proto::WatchRequest;
use toolgate::proto::watch_response::Step;

use super::{Stage, marked_context};
use crate::support::running::{AUDITOR, with_bearer};
use crate::support::watching::Watching;

/// Keeps every event that the journal's watchers get, without its context.
pub async fn the_journal_is_watched(stage: &mut Stage) {
    let message = WatchRequest { stop_at_head: true, ..WatchRequest::default() };
    let steps = Watching::start(&stage.channel, message).await.unwrap().drain().await;
    assert!(steps.len() > 40, "{} events", steps.len());
    let context = marked_context();
    let wanted =
        [context.request_id, context.user_id.clone(), context.tenant_id, context.conversation_id];
    let (mut confirmed, mut administrative) = (0, 0);
    for step in steps {
        match step {
            Step::Event(mut event) => {
                let ids = [
                    &mut event.request_id,
                    &mut event.user_id,
                    &mut event.tenant_id,
                    &mut event.conversation_id,
                ];
                assert_eq!(ids.map(std::mem::take), wanted);
                if event.confirmed_by_user_id == context.user_id {
                    event.confirmed_by_user_id.clear();
                    confirmed += 1;
                }
                stage.evidence.keep_message("Watch", &event);
            }
            Step::AdministrativeEvent(mut event) => {
                let ids = [
                    &mut event.request_id,
                    &mut event.user_id,
                    &mut event.tenant_id,
                    &mut event.conversation_id,
                ];
                assert_eq!(ids.map(std::mem::take), wanted);
                event.confirmed_by_user_id.clear();
                administrative += 1;
                stage.evidence.keep_message("Watch", &event);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(confirmed > 0 && administrative > 0);
    for message in [
        WatchRequest { journal_id: "canary".to_owned(), ..WatchRequest::default() },
        WatchRequest { tenant_ids: vec!["canary\n".to_owned()], ..WatchRequest::default() },
        WatchRequest { tools: vec!["canary canary".to_owned()], ..WatchRequest::default() },
    ] {
        let request = with_bearer(Request::new(message.encode_to_vec()), AUDITOR);
        let code = stage.refuse("/toolgate.v1.Audit/Watch", request).await;
        assert!(matches!(code, Code::NotFound | Code::InvalidArgument), "{code:?}");
    }
}
