//! Points in the life of a request over a real connection: a dropped call (a
//! reset stream) and a connection that is cut.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::{Response, Status};
use toolgate::domain::reason::Reason;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{BatchMode, ExecuteResponse, ToolCall};

use crate::support::journal;
use crate::support::running::{Does, World, call, connect, execute, until};

/// How the caller goes.
#[derive(Debug, Clone, Copy)]
enum Goes {
    /// The call's future is dropped: its stream is reset, the connection stays.
    Reset,
    /// The connection is cut.
    Cut,
}

struct Caller {
    calling: JoinHandle<Result<Response<ExecuteResponse>, Status>>,
    cut: oneshot::Sender<()>,
}

impl Caller {
    /// Calls through a connection that can be cut.
    async fn call(world: &World, calls: Vec<ToolCall>) -> Self {
        let gate: String = world.running().addresses()[0].clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (cut, mut is_cut) = oneshot::channel();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(gate).await.unwrap();
            tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => {}
                // The sender dropped is no cut: the streams stay until they close.
                Ok(()) = &mut is_cut => {}
            }
        });
        let mut client: ToolGateClient<_> = connect(&address).await;
        let calling = tokio::spawn(async move {
            let mut request = execute(calls);
            request.get_mut().mode = BatchMode::Continue.into();
            let answer = client.execute(request).await;
            drop(client);
            answer
        });
        Self { calling, cut }
    }

    async fn go(self, how: Goes) {
        match how {
            Goes::Reset => {
                self.calling.abort();
                assert!(self.calling.await.unwrap_err().is_cancelled());
            }
            Goes::Cut => {
                self.cut.send(()).unwrap();
                self.calling.await.unwrap().unwrap_err();
            }
        }
    }
}

/// Waits for the request's end, restarts the gate on its journal and checks that no pair was left open.
async fn endings(world: &mut World) -> Vec<(String, u32, Reason)> {
    until("nothing is in flight", async || {
        world.metric("toolgate_requests_in_flight", &[]).await == 0
    })
    .await;
    until("no handler runs", async || world.handler.running() == 0).await;
    let counted = world.metric("toolgate_tool_calls_total", &[]).await;
    let ends = journal::endings(world.directory.path());
    assert_eq!(counted, i64::try_from(ends.len()).unwrap());
    world.restart().await;
    assert_eq!(journal::endings(world.directory.path()), ends, "recovery found a pair to close");
    ends
}

fn end(call: &str, attempt: u32, reason: Reason) -> (String, u32, Reason) {
    (call.to_owned(), attempt, reason)
}

#[tokio::test]
async fn a_caller_that_goes_while_the_handler_runs_cancels_the_read() {
    for how in [Goes::Reset, Goes::Cut] {
        let mut world = World::start().await;
        world.handler.set("slow", Does::Hang);
        let caller =
            Caller::call(&world, vec![call("c1", "slow", "{}"), call("c2", "patient", "{}")]).await;
        until("the handler is entered", async || world.handler.running() == 1).await;
        caller.go(how).await;
        assert_eq!(endings(&mut world).await, [end("c1", 1, Reason::Cancelled)], "{how:?}");
        assert_eq!(world.handler.seen().len(), 1, "{how:?}");
    }
}

#[tokio::test]
async fn a_caller_that_goes_during_a_later_call_leaves_the_earlier_ones_as_they_ended() {
    for how in [Goes::Reset, Goes::Cut] {
        let mut world = World::start().await;
        world.handler.set("slow", Does::Hang);
        let calls = vec![
            call("c1", "patient", "{}"),
            call("c2", "slow", "{}"),
            call("c3", "patient", "{}"),
        ];
        let caller = Caller::call(&world, calls).await;
        until("the second handler is entered", async || {
            world.handler.running() == 1 && world.handler.seen().len() == 2
        })
        .await;
        caller.go(how).await;
        let wanted = [end("c1", 1, Reason::Ok), end("c2", 1, Reason::Cancelled)];
        assert_eq!(endings(&mut world).await, wanted, "{how:?}");
    }
}

#[tokio::test]
async fn a_caller_that_goes_between_retries_ends_them() {
    for how in [Goes::Reset, Goes::Cut] {
        let mut world = World::start().await;
        world.handler.set("patient", Does::Hang);
        let caller = Caller::call(&world, vec![call("c1", "patient", "{}")]).await;
        until("the second attempt has started", async || world.handler.seen().len() >= 2).await;
        caller.go(how).await;
        let ends = endings(&mut world).await;
        assert_eq!(ends[0], end("c1", 1, Reason::AttemptDeadline), "{how:?}");
        // On a slow machine the second may have run out as well before the caller was seen to go.
        let (last, before) = ends.split_last().unwrap();
        assert!(matches!(last.2, Reason::Cancelled | Reason::AttemptDeadline), "{how:?}: {ends:?}");
        assert!(
            before.iter().all(|(.., reason)| *reason == Reason::AttemptDeadline),
            "{how:?}: {ends:?}"
        );
        assert_eq!(world.handler.seen().len(), ends.len(), "{how:?}");
    }
}

#[tokio::test]
async fn a_caller_that_goes_at_whatever_step_leaves_every_pair_closed() {
    // The runtime's own steps choose the points: the caller goes after that many of them.
    for how in [Goes::Reset, Goes::Cut] {
        let mut world = World::start().await;
        for steps in 0..40 {
            let calls = vec![
                call("c1", "patient", "{}"),
                call("c2", "nothing", "{}"),
                call("c3", "patient", "{}"),
            ];
            let caller = Caller::call(&world, calls).await;
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
            match how {
                Goes::Reset => caller.calling.abort(),
                Goes::Cut => drop(caller.cut.send(())),
            }
            drop(caller.calling.await);
        }
        let ends = endings(&mut world).await;
        assert!(
            ends.iter().all(|(call, _, reason)| match call.as_str() {
                "c2" => *reason == Reason::UnknownTool,
                _ => matches!(reason, Reason::Ok | Reason::Cancelled),
            }),
            "{how:?}: {ends:?}"
        );
    }
}
