//! The journal as a stream: what a watcher is sent, and what it can rely on.

mod bounds;
mod tail;

use std::collections::BTreeSet;

use tonic::{Code, Request};
use toolgate::domain::audit::ReloadTrigger;
use toolgate::ports::Administration as _;
use toolgate::proto::confirmations_client::ConfirmationsClient;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::watch_response::Step;
use toolgate::proto::{
    CallContext, CheckRequest, ExecuteRequest, IssueRequest, RevokeRequest, ToolCall, WatchRequest,
};

use crate::grpc::assert_refused;
use crate::support::running::{
    CONFIRMER, LEDGER, Options, PROPOSER, World, call, channel, context, start_gate, start_handler,
    with_bearer, write_config,
};
use crate::support::watching::{Watching, events, from, place, written};

/// Every event is synced before it is answered, and a few dozen fill a segment.
const SMALL: &str = ", sync: all, segment_bytes: 65536";

async fn small_world() -> World {
    World::start_with(Options { audit: SMALL, ..Options::default() }).await
}

/// Executes one read of a tenant.
async fn read(world: &World, tenant: &str, tool: &str, id: &str) {
    let context = CallContext { tenant_id: tenant.to_owned(), ..context() };
    let calls = vec![call(id, tool, "{}")];
    let message = ExecuteRequest { context: Some(context), calls, mode: 0 };
    let request = with_bearer(Request::new(message), PROPOSER);
    world.client.clone().execute(request).await.unwrap();
}

fn segments(world: &World) -> usize {
    let directory = world.directory.path().join("data/journal/segments");
    std::fs::read_dir(directory).unwrap().count()
}

#[tokio::test]
async fn what_is_written_is_sent_as_it_stands_and_from_any_place() {
    let world = small_world().await;
    for number in 0..60 {
        read(&world, "tenant-1", "patient", &format!("c{number}")).await;
    }
    let written = written(world.directory.path());
    assert_eq!(written.len(), 120);
    let mut all = Watching::start(&world.channel, from(0)).await.unwrap();
    assert_eq!(events(&all.to(120).await), written);
    for first in 1..=120_usize {
        let message = WatchRequest { stop_at_head: true, ..from(first as u64) };
        let steps = Watching::start(&world.channel, message).await.unwrap().drain().await;
        assert_eq!(events(&steps), written[first - 1..], "{first}");
        assert_eq!(steps.len(), 121 - first);
    }
    let sent: i64 = 120 + (1..=120).sum::<i64>();
    assert_eq!(world.metric("toolgate_audit_events_sent_total", &[]).await, sent);
}

#[tokio::test]
async fn a_watcher_follows_into_further_segments_and_over_a_restart() {
    let mut world = small_world().await;
    let mut watching = Watching::start(&world.channel, from(0)).await.unwrap();
    let mut seen = Vec::new();
    for number in 0..100 {
        read(&world, "tenant-1", "patient", &format!("c{number}")).await;
        seen.extend(watching.to(2 * number + 2).await);
    }
    assert!(segments(&world) > 1);
    assert_eq!(events(&seen), written(world.directory.path()));

    drop(watching);
    world.restart().await;
    let last = place(seen.last().unwrap());
    let mut again = Watching::start(&world.channel, from(last + 1)).await.unwrap();
    read(&world, "tenant-1", "patient", "later").await;
    seen.extend(again.to(last + 2).await);
    assert_eq!(events(&seen), written(world.directory.path()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watchers_from_everywhere_get_each_event_once_while_calls_run() {
    const WATCHERS: u64 = 24;
    const CALLS: u64 = 150;
    let world = small_world().await;
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|number| {
            let (channel, first) = (world.channel.clone(), number * 11);
            tokio::spawn(async move {
                let mut watching = Watching::start(&channel, from(first)).await.unwrap();
                (first, watching.to(2 * CALLS).await)
            })
        })
        .collect();
    let callers = (0..3).map(|caller| {
        let world = &world;
        async move {
            for number in 0..CALLS / 3 {
                read(world, "tenant-1", "patient", &format!("c{caller}-{number}")).await;
            }
        }
    });
    futures_util::future::join_all(callers).await;
    let written = written(world.directory.path());
    assert_eq!(written.len() as u64, 2 * CALLS);
    for watcher in watchers {
        let (first, steps) = watcher.await.unwrap();
        let first = usize::try_from(first).unwrap().max(1);
        assert_eq!(events(&steps), written[first - 1..], "from {first}");
    }
}

#[tokio::test]
async fn filters_let_through_exactly_what_they_name() {
    let world = small_world().await;
    for number in 0..90 {
        let tenant = ["tenant-1", "tenant-2", "tenant-3"][number % 3];
        let tool = ["patient", "echo", "no-such-tool"][number / 3 % 3];
        read(&world, tenant, tool, &format!("c{number}")).await;
    }
    let written = written(world.directory.path());
    let tools: BTreeSet<_> = written.iter().map(|record| &*record[4]).collect();
    assert_eq!(tools, ["echo", "patient", "unknown"].into());
    let cases: [(&[&str], &[&str]); 8] = [
        (&[], &[]),
        (&["tenant-2"], &[]),
        (&["tenant-1", "tenant-3", "tenant-3"], &[]),
        (&["tenant-9"], &[]),
        (&[], &["echo"]),
        (&[], &["patient", "unknown"]),
        (&["tenant-1"], &["echo"]),
        (&["tenant-1", "tenant-2"], &["echo", "patient"]),
    ];
    for (tenants, tools) in cases {
        let message = WatchRequest {
            tenant_ids: tenants.iter().map(ToString::to_string).collect(),
            tools: tools.iter().map(ToString::to_string).collect(),
            stop_at_head: true,
            ..WatchRequest::default()
        };
        let passes = |record: &&Vec<String>| {
            (tenants.is_empty() || tenants.contains(&&*record[3]))
                && (tools.is_empty() || tools.contains(&&*record[4]))
        };
        let wanted: Vec<_> = written.iter().filter(passes).cloned().collect();
        let mut watching = Watching::start(&world.channel, message.clone()).await.unwrap();
        let steps = watching.drain().await;
        assert_eq!(events(&steps), wanted, "{tenants:?} {tools:?}");
        // From every step on, whoever goes on after it gets the rest and nothing twice.
        for (number, step) in steps.iter().enumerate().step_by(7) {
            let message = WatchRequest { sequence: place(step) + 1, ..message.clone() };
            let rest = Watching::start(&world.channel, message).await.unwrap().drain().await;
            assert_eq!(events(&rest), events(&steps[number + 1..]));
        }
    }
}

#[tokio::test]
async fn an_auditor_of_some_tenants_is_sent_theirs_alone() {
    let (_handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let options = Options { audit: SMALL, ..Options::default() };
    let config = write_config(directory.path(), &upstream, &options);
    let text = std::fs::read_to_string(&config).unwrap();
    let (every, some) = ("{role: auditor,", "{role: auditor, tenants: [tenant-2, tenant-3],");
    assert!(text.contains(every));
    std::fs::write(&config, text.replace(every, some)).unwrap();
    let gate = start_gate(&config).await;
    let channel = channel(&gate.addresses()[0]).await;
    for number in 0..12 {
        let tenant_id = format!("tenant-{}", number % 4);
        let context = CallContext { tenant_id, ..context() };
        let calls = vec![call("c", "patient", "{}")];
        let message = ExecuteRequest { context: Some(context), calls, mode: 0 };
        let request = with_bearer(Request::new(message), PROPOSER);
        ToolGateClient::new(channel.clone()).execute(request).await.unwrap();
    }
    // Of no tenant, and so not theirs.
    gate.reloader().reload(ReloadTrigger::Signal).await.unwrap();
    let written = written(directory.path());
    for (asked, seen) in [
        (&[][..], &["tenant-2", "tenant-3"][..]),
        (&["tenant-1"], &[]),
        (&["tenant-1", "tenant-3"], &["tenant-3"]),
    ] {
        let tenant_ids = asked.iter().map(ToString::to_string).collect();
        let message = WatchRequest { tenant_ids, stop_at_head: true, ..from(0) };
        let steps = Watching::start(&channel, message).await.unwrap().drain().await;
        let wanted = written.iter().filter(|record| seen.contains(&&*record[3]));
        assert_eq!(events(&steps), wanted.cloned().collect::<Vec<_>>(), "{asked:?}");
        // Where something passed, its place is told; where nothing did, how far was read.
        let end = if seen.is_empty() { 25 } else { 24 };
        assert_eq!(place(steps.last().unwrap()), end, "{asked:?}");
    }
    gate.stop().await;
}

#[tokio::test]
async fn where_nothing_passes_progress_says_how_far_it_went() {
    let world = small_world().await;
    let tenant_ids = vec!["tenant-2".to_owned()];
    let mut watching =
        Watching::start(&world.channel, WatchRequest { tenant_ids, ..from(0) }).await.unwrap();
    for number in 0..100 {
        read(&world, "tenant-1", "patient", &format!("c{number}")).await;
    }
    let mut last = 0;
    while last < 200 {
        let Some(Step::Progress(progress)) = watching.next().await.unwrap() else { panic!() };
        assert!(progress.sequence > last);
        assert_eq!(progress.journal_id, written(world.directory.path())[0][1]);
        last = progress.sequence;
    }
    read(&world, "tenant-2", "patient", "mine").await;
    let steps = watching.to(202).await;
    assert_eq!(events(&steps), written(world.directory.path())[200..]);
    assert_eq!(steps.len(), 2, "no progress beside events: {steps:?}");
}

#[tokio::test]
async fn what_people_did_is_sent_too() {
    let world =
        World::start_with(Options { more: LEDGER, audit: SMALL, ..Options::writes() }).await;
    let wanted = call("d1", "draft", r#"{"text":"x"}"#);
    let id = confirm(&world, wanted).await;
    let revoke = RevokeRequest { context: Some(context()), confirmation_id: id.clone() };
    ConfirmationsClient::new(world.channel.clone())
        .revoke(with_bearer(Request::new(revoke), CONFIRMER))
        .await
        .unwrap();
    let steps = Watching::start(&world.channel, from(0)).await.unwrap().to(2).await;
    assert_eq!(events(&steps), written(world.directory.path()));
    let [Step::AdministrativeEvent(issued), Step::AdministrativeEvent(revoked)] = &steps[..] else {
        panic!("{steps:?}");
    };
    assert_eq!((&*issued.tool, &*issued.tool_call_id), ("draft", "d1"));
    assert_eq!((&issued.confirmation_id, &revoked.confirmation_id), (&id, &id));
    assert_eq!(issued.confirmed_by_user_id, "user-1");
    let confirmed_at = issued.confirmed_at.unwrap().seconds;
    assert!(issued.confirmation_expires_at.unwrap().seconds > confirmed_at);
    assert_eq!((&*revoked.tool, revoked.confirmed_at), ("", None));

    let tools = vec!["draft".to_owned()];
    let message = WatchRequest { tools, stop_at_head: true, ..from(0) };
    let steps = Watching::start(&world.channel, message).await.unwrap().drain().await;
    assert_eq!(events(&steps), written(world.directory.path())[..1], "revoking names no tool");
}

/// Issues a ticket for a call and gives its id.
async fn confirm(world: &World, call: ToolCall) -> String {
    let check = CheckRequest { context: Some(context()), calls: vec![call.clone()] };
    let check = with_bearer(Request::new(check), CONFIRMER);
    let checked = world.client.clone().check(check).await.unwrap().into_inner();
    let preview = checked.verdicts[0].preview.clone().unwrap_or_else(|| panic!("{checked:?}"));
    let issue = IssueRequest {
        confirming_user_id: context().user_id,
        context: Some(context()),
        call: Some(call),
        arguments_hash: preview.arguments_hash,
        key_id: preview.key_id,
        contract_digest: preview.contract_digest,
        ..IssueRequest::default()
    };
    let mut confirmations = ConfirmationsClient::new(world.channel.clone());
    let issued = confirmations.issue(with_bearer(Request::new(issue), CONFIRMER)).await.unwrap();
    issued.into_inner().claims.unwrap().confirmation_id
}

#[tokio::test]
async fn what_is_not_there_yet_is_waited_for() {
    let world = small_world().await;
    let mut ahead = Watching::start(&world.channel, from(4)).await.unwrap();
    let never = Watching::start(&world.channel, from(u64::MAX)).await.unwrap();
    for id in ["c1", "c2", "c3"] {
        read(&world, "tenant-1", "patient", id).await;
    }
    assert_eq!(events(&ahead.to(6).await), written(world.directory.path())[3..]);
    for beyond in [7, 8, u64::MAX] {
        let message = WatchRequest { stop_at_head: true, ..from(beyond) };
        let steps = Watching::start(&world.channel, message).await.unwrap().drain().await;
        assert_eq!(steps, [], "{beyond}");
    }
    drop(never);
}

#[tokio::test]
async fn requests_that_cannot_be_meant_are_refused() {
    let world = small_world().await;
    read(&world, "tenant-1", "patient", "c1").await;
    let journal_id = written(world.directory.path())[0][1].clone();
    let known = WatchRequest { journal_id: journal_id.clone(), ..from(1) };
    assert_eq!(Watching::start(&world.channel, known).await.unwrap().to(2).await.len(), 2);

    let texts = |text: &str, count| vec![text.to_owned(); count];
    let cases = [
        (
            WatchRequest { journal_id: journal_id.to_uppercase(), ..from(1) },
            Code::NotFound,
            "JOURNAL_UNKNOWN",
            None,
        ),
        (
            WatchRequest { tenant_ids: texts("a\n", 1), ..from(0) },
            Code::InvalidArgument,
            "REQUEST_INVALID",
            Some("tenant_ids"),
        ),
        (
            WatchRequest { tenant_ids: texts("a", 257), ..from(0) },
            Code::InvalidArgument,
            "REQUEST_INVALID",
            Some("tenant_ids"),
        ),
        (
            WatchRequest { tools: texts("", 1), ..from(0) },
            Code::InvalidArgument,
            "REQUEST_INVALID",
            Some("tools"),
        ),
    ];
    for (message, code, reason, field) in cases {
        let status = Watching::start(&world.channel, message).await.err().unwrap();
        assert_refused(&status, code, reason, field);
    }
    let most = WatchRequest { tenant_ids: texts("tenant-1", 256), ..from(1) };
    assert_eq!(Watching::start(&world.channel, most).await.unwrap().to(2).await.len(), 2);
}
