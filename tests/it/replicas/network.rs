//! The database stops, is killed, cut off or slow: what a caller gets.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::task::JoinHandle;
use toolgate::domain::reason::Reason as Ended;
use toolgate::proto::{AuditState, Effect, Reason, ToolCall, ToolResult};

use super::stage::{Replica, Stage};
use crate::support::journal;
use crate::support::postgres::{self, Server};
use crate::support::proxy::{Cut, Proxy, Way};
use crate::support::running::until;

/// A database of this test's own, a network in front of it, and one gate.
struct Scene<'a> {
    server: &'a Server,
    proxy: Proxy,
    stage: Stage<'a>,
    gate: Replica,
}

impl<'a> Scene<'a> {
    async fn new(server: &'a Server) -> Self {
        let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, server.port))).await;
        let stage = Stage::new(server, proxy.address.port(), 1).await;
        let gate = stage.serve(0).await;
        let scene = Self { server, proxy, stage, gate };
        let first = scene.confirmed("first").await;
        assert_eq!(scene.gate.reason(&first).await, "OK");
        scene
    }

    async fn confirmed(&self, id: &str) -> ToolCall {
        self.gate.client.confirmed(id, "write").await.unwrap()
    }

    fn effects(&self, id: &str) -> usize {
        self.stage.effects.attempts(id).len()
    }

    /// Asks until there is an answer that stays.
    async fn settled_answer(&self, call: &ToolCall) -> String {
        let mut reason = String::new();
        until("the database is back", async || {
            reason = self.gate.reason(call).await;
            !["LEDGER_FAILED", "LEDGER_UNAVAILABLE", "CALL_IN_PROGRESS"].contains(&&*reason)
        })
        .await;
        reason
    }

    /// A call whose handler has been entered, and waits to be told to go on.
    async fn under_way(&self, id: &str) -> JoinHandle<ToolResult> {
        let (call, client) = (self.confirmed(id).await, self.gate.client.clone());
        self.stage.effects.hold();
        let running = tokio::spawn(async move {
            client.execute(std::slice::from_ref(&call)).await.unwrap().results.remove(0)
        });
        until("the handler is entered", async || self.effects(id) == 1).await;
        running
    }

    /// Lets the handler answer: the caller has that, whatever the ledger does.
    async fn finish(&self, running: JoinHandle<ToolResult>) {
        self.stage.effects.go_on();
        let result = running.await.unwrap();
        assert_eq!((result.reason(), result.effect()), (Reason::Ok, Effect::Applied));
        assert_eq!(
            (result.audit(), &*result.result_json),
            (AuditState::Recorded, r#"{"id":"d-1"}"#)
        );
    }

    /// The call is recorded as done, once the gate has made up for what failed.
    async fn is_settled(&self, id: &str) {
        until("it is settled", async || {
            self.gate.recorded(id).await.is_some_and(|recorded| !recorded.running)
        })
        .await;
        let recorded = self.gate.recorded(id).await.unwrap();
        assert_eq!((recorded.reason(), recorded.effect()), (Reason::Ok, Effect::Applied));
        assert_eq!(self.effects(id), 1);
    }

    /// Nothing is wrong any more, and the journal has these ends.
    async fn ends(self, wanted: &[(&str, Ended)]) {
        self.gate.until_ready().await;
        let last = self.confirmed("last").await;
        assert_eq!(self.settled_answer(&last).await, "OK");
        self.gate.stop().await;
        self.stage.check_effects("at the end");
        let endings = journal::endings(self.stage.directory(0));
        for (id, reason) in wanted {
            let ending = ((*id).to_owned(), 1, *reason);
            assert!(endings.contains(&ending), "{ending:?} is not in {endings:?}");
        }
    }
}

/// Behind a network of the test's own, or on a server that only this test has.
macro_rules! scene {
    ($scene:ident) => {
        let Some(server) = postgres::server() else { return };
        let $scene = Scene::new(server).await;
    };
    ($scene:ident, own $server:ident) => {
        let Some($server) = Server::start_own(&[]) else { return };
        let $scene = Scene::new(&$server).await;
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_whose_commit_is_not_acknowledged_counts_as_spent() {
    scene!(scene);
    let call = scene.confirmed("c1").await;
    scene.proxy.cut_once(Cut::Unanswered(b"COMMIT".to_vec()));
    let result = scene.gate.run(&call).await;
    assert_eq!((result.reason(), result.effect()), (Reason::LedgerFailed, Effect::None));
    assert_eq!((scene.proxy.cuts(), scene.effects("c1")), (1, 0));
    // For good: whoever holds the ticket now learns that, and may ask for another.
    assert_eq!(scene.settled_answer(&call).await, "CONFIRMATION_CONSUMED");
    let fresh = scene.confirmed("c1").await;
    assert_eq!(scene.settled_answer(&fresh).await, "OK");
    assert_eq!(scene.effects("c1"), 1);
    scene.ends(&[("c1", Ended::LedgerFailed)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_whose_commit_never_arrives_runs_nothing() {
    scene!(scene);
    let call = scene.confirmed("c1").await;
    scene.proxy.cut_once(Cut::Before(b"COMMIT".to_vec()));
    let result = scene.gate.run(&call).await;
    assert_eq!((result.reason(), result.effect()), (Reason::LedgerFailed, Effect::None));
    assert_eq!((scene.proxy.cuts(), scene.effects("c1")), (1, 0));
    // The ticket was not spent, and is good for the one call that it is for.
    assert_eq!(scene.settled_answer(&call).await, "OK");
    assert_eq!(scene.settled_answer(&call).await, "CALL_REPLAYED");
    assert_eq!(scene.effects("c1"), 1);
    scene.ends(&[("c1", Ended::LedgerFailed), ("c1", Ended::Ok)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_is_cut_off_is_made_up_for() {
    for cut in [Cut::Before, Cut::Unanswered] {
        scene!(scene);
        let running = scene.under_way("c1").await;
        scene.proxy.cut_once(cut(b"COMMIT".to_vec()));
        scene.finish(running).await;
        scene.is_settled("c1").await;
        assert_eq!(scene.proxy.cuts(), 1);
        scene.ends(&[("c1", Ended::Ok)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_stops_or_dies_refuses_until_it_is_back() {
    scene!(scene, own server);
    for (id, end) in [("c1", Server::stop as fn(&Server)), ("c2", Server::kill)] {
        let call = scene.confirmed(id).await;
        end(scene.server);
        let reason = scene.gate.reason(&call).await;
        assert!(["LEDGER_FAILED", "LEDGER_UNAVAILABLE"].contains(&&*reason), "{reason}");
        scene.gate.until_readiness("ledger down").await;
        assert_eq!(scene.gate.reason(&call).await, "LEDGER_UNAVAILABLE");
        assert_eq!(scene.effects(id), 0);
        scene.server.start();
        // By itself, and with the ticket that was never spent.
        scene.gate.until_ready().await;
        assert_eq!(scene.settled_answer(&call).await, "OK");
        assert_eq!(scene.effects(id), 1);
    }
    scene.ends(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_when_a_call_ends_hears_of_it_later() {
    scene!(scene, own server);
    for (id, end) in [("c1", Server::stop as fn(&Server)), ("c2", Server::kill)] {
        let running = scene.under_way(id).await;
        end(scene.server);
        scene.finish(running).await;
        scene.server.start();
        scene.is_settled(id).await;
    }
    scene.ends(&[("c1", Ended::Ok), ("c2", Ended::Ok)]).await;
}

/// And where it is away until the gate has ended: the next start has the journal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_could_not_be_settled_is_settled_by_the_next_start() {
    scene!(scene, own server);
    let running = scene.under_way("c1").await;
    scene.server.stop();
    scene.finish(running).await;
    let Scene { server, proxy, stage, gate } = scene;
    gate.stop().await;
    server.start();
    let gate = stage.serve(0).await;
    let scene = Scene { server, proxy, stage, gate };
    scene.is_settled("c1").await;
    scene.ends(&[("c1", Ended::Ok)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_does_not_answer_is_given_up_in_time() {
    scene!(scene, own server);
    // The network, either way, and the server itself.
    for id in ["c1", "c2", "c3"] {
        let call = scene.confirmed(id).await;
        match id {
            "c1" => scene.proxy.hang(Way::Up),
            "c2" => scene.proxy.hang(Way::Down),
            _ => scene.server.freeze(),
        }
        let reason = scene.gate.reason(&call).await;
        assert!(["LEDGER_FAILED", "LEDGER_UNAVAILABLE"].contains(&&*reason), "{id}: {reason}");
        assert_eq!(scene.effects(id), 0);
        scene.proxy.pass();
        scene.server.thaw();
        let reason = scene.settled_answer(&call).await;
        assert!(["OK", "CONFIRMATION_CONSUMED"].contains(&&*reason), "{id}: {reason}");
        assert_eq!(scene.effects(id), usize::from(reason == "OK"));
    }
    // And where a call has run meanwhile.
    let running = scene.under_way("c4").await;
    scene.proxy.hang(Way::Down);
    scene.finish(running).await;
    scene.proxy.pass();
    scene.is_settled("c4").await;
    scene.ends(&[("c4", Ended::Ok)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_network_makes_slow_answers_and_no_others() {
    scene!(scene);
    let call = scene.confirmed("c1").await;
    scene.proxy.slow(Duration::from_millis(25));
    assert_eq!(scene.gate.reason(&call).await, "OK");
    assert_eq!(scene.gate.reason(&call).await, "CALL_REPLAYED");
    scene.proxy.pass();
    scene.ends(&[("c1", Ended::Ok)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_are_made_anew() {
    scene!(scene);
    for id in ["c1", "c2", "c3"] {
        let call = scene.confirmed(id).await;
        scene.proxy.cut();
        assert_eq!(scene.settled_answer(&call).await, "OK");
        assert_eq!(scene.effects(id), 1);
        scene.gate.until_ready().await;
    }
    scene.ends(&[("c1", Ended::Ok), ("c2", Ended::Ok), ("c3", Ended::Ok)]).await;
}
