//! A database that has lost what a gate was told is there.

use toolgate::proto::Reason;

use super::stage::Stage;
use crate::support::postgres;
use crate::support::process::{Process, run_text};
use crate::support::proxy::Proxy;

/// The ticket is good again by the database, and no gate redeems it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_stops_and_stays_down_until_an_operator_has_renewed_the_ledger() {
    let Some(server) = postgres::server() else { return };
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port).parse().unwrap()).await;
    let stage = Stage::new(server, proxy.address.port(), 1).await;
    let mut replica = stage.serve(0).await;
    stage.database.sql("CREATE TABLE kept AS SELECT * FROM toolgate.work");
    let call = replica.client.confirmed("c1", "write").await.unwrap();
    assert_eq!(replica.run(&call).await.reason(), Reason::Ok);
    proxy.refuse();
    stage.database.sql(
        "DELETE FROM toolgate.tickets; DELETE FROM toolgate.calls; DELETE FROM toolgate.work;
         INSERT INTO toolgate.work SELECT * FROM kept",
    );
    proxy.pass();
    assert_eq!(replica.process.exit_code().await, Some(1));
    let log = replica.process.log();
    assert!(log.contains("the ledger's database lacks what it has acknowledged"), "{log}");
    assert!(log.contains("run toolgate ledger new-identity"), "{log}");

    for _ in 0..2 {
        let mut again = Process::serve(stage.config(0));
        assert_eq!(again.exit_code().await, Some(1), "{}", again.log());
        assert!(again.log().contains("the ledger is older than the journal"), "{}", again.log());
    }
    let config = stage.config(0).to_str().unwrap();
    let (code, out, log) = run_text(["ledger", "new-identity", "--config", config]);
    assert_eq!(code, Some(0), "{out}{log}");
    let replica = stage.serve(0).await;
    assert_eq!(replica.run(&call).await.reason(), Reason::ConfirmationOtherLedger);
    replica.stop().await;
    assert_eq!(stage.effects.len(), 1);
}
