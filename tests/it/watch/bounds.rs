//! What watchers cannot do to a gate.

use tonic::Code;

use crate::grpc::assert_refused;
use crate::support::journal;
use crate::support::process::Process;
use crate::support::running::{
    Options, World, call, channel, execute, get, metric, start_handler, until, write_config,
};
use crate::support::watching::{Watching, events, from, written};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_that_never_read_hold_up_nothing() {
    const IDLE: usize = 1_000;
    const OF_A_CONNECTION: usize = 200;
    const CALLS: usize = 150;
    let world = super::small_world().await;
    // On connections of their own: what they do not read fills a window, too.
    let mut idle = Vec::with_capacity(IDLE);
    for _ in 0..IDLE / OF_A_CONNECTION {
        let channel = channel(&world.running().addresses()[0]).await;
        for _ in 0..OF_A_CONNECTION {
            idle.push(Watching::start(&channel, from(0)).await.unwrap());
        }
    }
    // Their windows fill, and the gate goes on.
    for number in 0..CALLS {
        super::read(&world, "tenant-1", "patient", &format!("c{number}")).await;
    }
    let written = written(world.directory.path());
    assert_eq!(written.len(), 2 * CALLS);
    assert_eq!(world.metric("toolgate_watchers", &[]).await, 1_000);
    let channel = channel(&world.running().addresses()[0]).await;
    let mut keen = Watching::start(&channel, from(0)).await.unwrap();
    assert_eq!(events(&keen.to(2 * CALLS as u64).await), written);
    // The first of the idle ones reads at last, and has lost nothing.
    let mut late = idle.swap_remove(0);
    drop(idle);
    assert_eq!(events(&late.to(2 * CALLS as u64).await), written);
    drop((keen, late));
    until("nobody watches", async || world.metric("toolgate_watchers", &[]).await == 0).await;
}

#[tokio::test]
async fn there_are_no_more_than_the_configuration_allows() {
    let options = Options { more: "limits: {watchers: 2}", ..Options::default() };
    let world = World::start_with(options).await;
    let first = Watching::start(&world.channel, from(0)).await.unwrap();
    let _second = Watching::start(&world.channel, from(7)).await.unwrap();
    let status = Watching::start(&world.channel, from(0)).await.err().unwrap();
    assert_refused(&status, Code::ResourceExhausted, "TOO_MANY_WATCHERS", None);
    let labels = [("rpc", "Watch"), ("reason", "TOO_MANY_WATCHERS")];
    assert_eq!(world.metric("toolgate_requests_refused_total", &labels).await, 1);
    drop(first);
    until("a place is free", async || Watching::start(&world.channel, from(0)).await.is_ok()).await;
    // Calls are not counted with them.
    world.client.clone().execute(execute(vec![call("c", "patient", "{}")])).await.unwrap();
}

#[tokio::test]
async fn a_gate_that_stops_ends_its_watchers_after_the_last_call() {
    let (_handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let options = Options { audit: super::SMALL, ..Options::default() };
    let config = write_config(directory.path(), &upstream, &options);
    let (mut process, grpc, admin) = Process::serving(&config).await;
    let channel = channel(&grpc).await;
    let mut client = toolgate::proto::tool_gate_client::ToolGateClient::new(channel.clone());
    let mut following = Watching::start(&channel, from(0)).await.unwrap();
    let mut waiting = Watching::start(&channel, from(1_000)).await.unwrap();
    let _unread = Watching::start(&channel, from(0)).await.unwrap();
    client.execute(execute(vec![call("c1", "patient", "{}")])).await.unwrap();
    assert_eq!(metric(&get(admin, "/metrics").await, "toolgate_watchers", &[]), 3);
    assert_eq!(following.to(2).await.len(), 2);
    process.terminate();
    for stream in [&mut following, &mut waiting] {
        let status = stream.next().await.unwrap_err();
        assert_refused(&status, Code::Unavailable, "DRAINING", None);
    }
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    assert_eq!(journal::endings(directory.path()).len(), 1);
}
