//! People who confirm with a token of their own, and issuers who change their keys.

use serde_json::json;
use tonic::{Code, Status};
use toolgate::proto::confirmations_client::ConfirmationsClient;
use toolgate::proto::{CallContext, IssueRequest, IssueResponse, Reason, RevokeRequest, ToolCall};

use super::signer::{Signer, jwks};
use super::stage::{Stage, person, service, with};
use crate::grpc::assert_refused;
use crate::support::running::{CONFIRMER, call, context, until, with_bearer};

fn write(id: &str, tool: &str) -> ToolCall {
    call(id, tool, r#"{"text": "a"}"#)
}

impl Stage {
    /// Has the bearer see the call and confirm it, as the change says.
    async fn confirm(
        &self,
        token: &str,
        call: ToolCall,
        change: impl FnOnce(&mut IssueRequest),
    ) -> Result<IssueResponse, Status> {
        let checked = self.check(token, context(), call.clone()).await?;
        let preview = checked.verdicts.into_iter().next().unwrap().preview.unwrap();
        let mut message = IssueRequest {
            context: Some(context()),
            call: Some(call),
            arguments_hash: preview.arguments_hash,
            key_id: preview.key_id,
            contract_digest: preview.contract_digest,
            ..IssueRequest::default()
        };
        change(&mut message);
        self.issue(token, message).await
    }
}

#[tokio::test]
async fn a_person_confirms_with_their_own_token_and_another_proposes() {
    let stage = Stage::start().await;
    let person = stage.people.sign(&person("user-1", &[]));
    // Without naming themselves, and naming themselves.
    for (id, named) in [("c1", ""), ("c2", "user-1")] {
        let confirmed = stage
            .confirm(&person, write(id, "draft"), |message| {
                named.clone_into(&mut message.confirming_user_id);
            })
            .await
            .unwrap();
        let claims = confirmed.claims.unwrap();
        assert_eq!((&*claims.user_id, &*claims.confirmed_by_user_id), ("user-1", "user-1"));
        let call = ToolCall { confirmation_ticket: confirmed.ticket, ..write(id, "draft") };
        // The person may not run it.
        let status = stage.execute(&person, context(), vec![call.clone()]).await.unwrap_err();
        assert_refused(&status, Code::PermissionDenied, "ROLE_MISSING", None);
        let token = stage.services.sign(&service());
        let response = stage.execute(&token, context(), vec![call]).await.unwrap();
        assert_eq!(response.results[0].reason(), Reason::Ok);
    }
}

#[tokio::test]
async fn nobody_confirms_as_somebody_else() {
    let stage = Stage::start().await;
    let sign = |user: &str, groups: &[&str]| stage.people.sign(&person(user, groups));
    let supervisor = sign("boss", &["supervisor", "staff"]);
    let denied = |answer: Result<IssueResponse, Status>, reason: &str, field: Option<&str>| {
        assert_refused(&answer.unwrap_err(), Code::PermissionDenied, reason, field);
    };
    // Who names another user, or roles that their token does not have.
    let answer = stage
        .confirm(&supervisor, write("c1", "refund"), |message| {
            "user-1".clone_into(&mut message.confirming_user_id);
        })
        .await;
    denied(answer, "USER_NOT_CALLERS", Some("confirming_user_id"));
    let answer = stage
        .confirm(&sign("mate", &["staff"]), write("c1", "refund"), |message| {
            message.confirming_user_roles = vec!["supervisor".to_owned()];
        })
        .await;
    denied(answer, "USER_NOT_CALLERS", Some("confirming_user_roles"));
    // In another's conversation: without the role that the contract names, or where it names none.
    let plain = |_: &mut IssueRequest| ();
    let mate = sign("mate", &["staff"]);
    denied(stage.confirm(&mate, write("c1", "refund"), plain).await, "MAY_NOT_CONFIRM", None);
    denied(stage.confirm(&supervisor, write("c1", "draft"), plain).await, "MAY_NOT_CONFIRM", None);
    // In another tenant, whoever they are.
    let elsewhere = with(person("user-1", &["supervisor"]), "org", json!("tenant-2"));
    let status = stage.check(&stage.people.sign(&elsewhere), context(), write("c1", "draft")).await;
    assert_refused(&status.unwrap_err(), Code::PermissionDenied, "TENANT_NOT_CALLERS", None);
    assert!(stage.world.journal().is_empty(), "no ticket was issued");

    // With the role that the contract names, which is the token's and need not be sent.
    let issued = stage.confirm(&supervisor, write("c1", "refund"), plain).await.unwrap();
    let claims = issued.claims.unwrap();
    assert_eq!((&*claims.user_id, &*claims.confirmed_by_user_id), ("user-1", "boss"));
    // A trusted page names who confirms, as ever.
    let issued = stage
        .confirm(CONFIRMER, write("c2", "refund"), |message| {
            "chef".clone_into(&mut message.confirming_user_id);
            message.confirming_user_roles = vec!["supervisor".to_owned()];
        })
        .await
        .unwrap();
    assert_eq!(issued.claims.unwrap().confirmed_by_user_id, "chef");
}

#[tokio::test]
async fn who_revokes_is_who_the_token_says() {
    let stage = Stage::start().await;
    let token = stage.people.sign(&person("user-1", &[]));
    let issued = stage.confirm(&token, write("c1", "draft"), |_| ()).await.unwrap();
    let confirmation_id = issued.claims.unwrap().confirmation_id;
    let revoke = async |token: &str, user: &str| {
        let context = CallContext { user_id: user.to_owned(), ..context() };
        let message =
            RevokeRequest { context: Some(context), confirmation_id: confirmation_id.clone() };
        let request = with_bearer(tonic::Request::new(message), token);
        ConfirmationsClient::new(stage.world.channel.clone()).revoke(request).await
    };
    let other = stage.people.sign(&person("user-2", &[]));
    let status = revoke(&other, "user-1").await.unwrap_err();
    assert_refused(&status, Code::PermissionDenied, "USER_NOT_CALLERS", Some("user_id"));
    revoke(&token, "user-1").await.unwrap();
    let call = ToolCall { confirmation_ticket: issued.ticket, ..write("c1", "draft") };
    let service = stage.services.sign(&service());
    let response = stage.execute(&service, context(), vec![call]).await.unwrap();
    assert_eq!(response.results[0].reason(), Reason::ConfirmationRevoked);
}

#[tokio::test]
async fn changed_keys_are_taken_while_the_gate_runs_and_bad_ones_are_not() {
    let stage = Stage::start().await;
    let new = Signer::new("people-2", "ES256");
    let claims = person("user-1", &[]);
    // An EC key is for none of this issuer's algorithms; an RSA key under a new id is.
    let next = stage.people.called("people-2");
    let is_taken = async |signer: &Signer| {
        stage.check(&signer.sign(&claims), context(), write("c1", "draft")).await.is_ok()
    };
    assert_eq!((is_taken(&stage.people).await, is_taken(&next).await), (true, false));

    stage.replace_people(&jwks([&stage.people, &next, &new]));
    until("the new key is taken", async || is_taken(&next).await).await;
    assert!(is_taken(&stage.people).await);
    assert!(!is_taken(&new.called("people-3")).await);

    let reloads = async |result| {
        stage.world.metric("toolgate_issuer_key_reloads_total", &[("result", result)]).await
    };
    assert_eq!((reloads("taken").await, reloads("refused").await), (1, 0));
    for (count, bad) in [(1, "{"), (2, &*jwks([&new])), (3, r#"{"keys":[{"kty":"oct","k":"AA"}]}"#)]
    {
        stage.replace_people(bad);
        until("the bad keys are seen", async || reloads("refused").await == count).await;
        assert!(is_taken(&stage.people).await && is_taken(&next).await, "{bad}");
    }

    // What is removed denies as soon as that is read.
    stage.replace_people(&jwks([&next]));
    until("the old key is gone", async || !is_taken(&stage.people).await).await;
    assert!(is_taken(&next).await);
    assert_eq!((reloads("taken").await, reloads("refused").await), (2, 3));
    assert!(stage.judged("jwt", "unknown_key").await > 0);
}
