//! What a gate makes of tokens: who is let in, as whom, and what everybody else is told.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tonic::{Code, Request, Status};
use toolgate::proto::{CallContext, ExecuteRequest, Reason};

use super::signer::{Signer, hs256, signing_input};
use super::stage::{PEOPLE, SERVICES, Stage, now, person, service, with};
use crate::grpc::assert_refused;
use crate::support::running::{CONFIRMER, PROPOSER, call, context};

const READ: &str = "search";

#[tokio::test]
async fn a_token_speaks_for_its_user_and_tenants() {
    let stage = Stage::start().await;
    let token = stage.services.sign(&service());
    let run = async |context: CallContext| {
        let calls = vec![call(&context.request_id.clone(), READ, r#"{"text":"a"}"#)];
        stage.execute(&token, context, calls).await
    };
    let named = |request: &str, user: &str, tenant: &str| CallContext {
        request_id: request.to_owned(),
        user_id: user.to_owned(),
        tenant_id: tenant.to_owned(),
        ..context()
    };
    for (request, user, tenant) in
        [("r1", "user-1", "tenant-1"), ("r2", "user-1", "tenant-2"), ("r3", "", "tenant-1")]
    {
        let response = run(named(request, user, tenant)).await.unwrap();
        assert_eq!(response.results[0].reason(), Reason::Ok);
        let event = &response.events[0];
        let tenant = if tenant.is_empty() { "tenant-1" } else { tenant };
        assert_eq!((&*event.user_id, &*event.tenant_id), ("user-1", tenant));
    }
    for (user, tenant, field) in [
        ("user-2", "tenant-1", "user_id"),
        ("User-1", "tenant-1", "user_id"),
        ("user-1", "tenant-3", "tenant_id"),
        ("", "tenant-3", "tenant_id"),
    ] {
        let status = run(named("r4", user, tenant)).await.unwrap_err();
        match field {
            "tenant_id" => {
                assert_refused(&status, Code::PermissionDenied, "TENANT_NOT_CALLERS", None);
            }
            user => {
                assert_refused(&status, Code::PermissionDenied, "USER_NOT_CALLERS", Some(user));
            }
        }
        assert!(!format!("{status:?}").contains("user-1"), "{status:?}");
    }
    // Of several tenants it must say which.
    let status = run(named("r5", "user-1", "")).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "CONTEXT_INVALID", Some("tenant_id"));
    // Of one it need not.
    let single = stage.services.sign(&with(service(), "tenants", json!("tenant-9")));
    let calls = vec![call("c6", READ, r#"{"text":"a"}"#)];
    let response = stage.execute(&single, named("r6", "", ""), calls).await.unwrap();
    assert_eq!(response.events[0].tenant_id, "tenant-9");
    let handler = stage.world.handler.seen();
    assert_eq!(handler.len(), 4);
}

#[tokio::test]
async fn roles_are_those_of_the_map() {
    let stage = Stage::start().await;
    let run = async |claims: &Value| {
        let token = stage.services.sign(claims);
        let executed =
            stage.execute(&token, context(), vec![call("c1", READ, r#"{"text":"a"}"#)]).await;
        executed.map(|response| response.results[0].reason())
    };
    assert_eq!(run(&service()).await.unwrap(), Reason::Ok);
    for scope in [json!(null), json!(""), json!("proposer operator"), json!(["page"])] {
        let status = run(&with(service(), "scope", scope)).await.unwrap_err();
        assert_refused(&status, Code::PermissionDenied, "ROLE_MISSING", None);
    }
    // Who could confirm what they propose is nobody.
    let status = run(&with(service(), "scope", json!("chat page"))).await.unwrap_err();
    assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
    assert_eq!(stage.judged("jwt", "claims").await, 1);
}

/// Tokens that are refused, each with the word that the log and the metric give.
fn refused(stage: &Stage) -> Vec<(&'static str, String)> {
    let (services, people) = (&stage.services, &stage.people);
    let changed = |name: &str, value: Value| services.sign(&with(service(), name, value));
    let with_header = |header: Value| services.sign_with(&header.to_string(), &service());
    let text = |header: &str, payload: &str| services.sign_texts(header, payload);
    let usual = r#"{"alg":"ES256","kid":"services-1","typ":"JWT"}"#;
    let payload = service().to_string();
    let unsigned = |alg: &str| {
        let header = json!({"alg": alg, "kid": "services-1", "typ": "JWT"}).to_string();
        signing_input(&header, &payload) + "."
    };
    let token = services.sign(&service());
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let other = people.sign(&person("user-1", &[]));
    vec![
        ("audience", changed("aud", json!("other"))),
        ("audience", changed("aud", json!("toolgate-people"))),
        ("audience", changed("aud", json!(null))),
        ("issuer", changed("iss", json!(PEOPLE))),
        ("issuer", changed("iss", json!(format!("{SERVICES}/")))),
        ("issuer", changed("iss", json!(null))),
        ("issuer", people.sign(&service())),
        ("algorithm", unsigned("none")),
        ("algorithm", unsigned("nOnE")),
        ("signature", unsigned("ES256")),
        ("algorithm", hs256(services.pem().as_bytes(), "services-1", &service())),
        ("algorithm", hs256(people.pem().as_bytes(), "people-1", &person("user-1", &[]))),
        // An ES256 token under the id of an RS256 key.
        ("algorithm", services.called("people-1").sign(&service())),
        ("unknown_key", services.called("services-2").sign(&service())),
        ("unknown_key", with_header(json!({"alg": "ES256", "typ": "JWT"}))),
        ("signature", Signer::new("services-1", "ES256").sign(&service())),
        ("signature", Signer::new("people-1", "ES256").called("services-1").sign(&service())),
        ("expired", changed("exp", json!(now() - 31))),
        ("expired", changed("exp", json!(0))),
        ("not_yet_valid", changed("nbf", json!(now() + 300))),
        ("not_yet_valid", changed("iat", json!(now() + 300))),
        ("claims", changed("exp", json!(null))),
        ("claims", changed("exp", json!((now() + 600).to_string()))),
        ("claims", changed("sub", json!(null))),
        ("claims", changed("tenants", json!([]))),
        ("claims", changed("scope", json!({"chat": true}))),
        ("typ", with_header(json!({"alg": "ES256", "kid": "services-1", "typ": "logout+jwt"}))),
        (
            "malformed",
            with_header(json!({"alg": "ES256", "kid": "services-1", "crit": ["exp"], "exp": 1})),
        ),
        ("malformed", text(r#"{"alg":"ES256","kid":"services-1","kid":"services-1"}"#, &payload)),
        ("malformed", text(usual, &payload.replacen('{', r#"{"sub":"user-1","#, 1))),
        ("malformed", text(usual, &payload.replacen('{', r#"{"x":{"y":1,"y":1},"#, 1))),
        ("malformed", text(usual, "[]")),
        ("malformed", changed("pad", json!("x".repeat(8_192)))),
        ("malformed", "..".to_owned()),
        ("malformed", "a.b.c".to_owned()),
        // Another token's payload or signature.
        ("signature", format!("{signed}.{}", other.rsplit_once('.').unwrap().1)),
        (
            "signature",
            format!("{}.{signature}", signing_input(usual, &person("x", &[]).to_string())),
        ),
    ]
}

#[tokio::test]
async fn every_bad_token_is_answered_alike_and_logged_and_counted_apart() {
    let stage = Stage::start().await;
    let mut answers = BTreeSet::new();
    let mut counts = std::collections::BTreeMap::new();
    for (word, token) in refused(&stage) {
        let calls = vec![call("c1", READ, r#"{"text":"a"}"#)];
        let status = stage.execute(&token, context(), calls).await.unwrap_err();
        assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
        answers.insert(shape(&status));
        *counts.entry(word).or_insert(0) += 1;
        assert_eq!(stage.judged("jwt", word).await, counts[word], "{word}: {token}");
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(counts.len(), 10, "every cause");
    assert!(stage.world.handler.seen().is_empty());
    assert_eq!(stage.world.journal(), "");
}

#[tokio::test]
async fn a_token_stands_alone_and_secrets_work_beside_it() {
    let stage = Stage::start().await;
    let token = stage.services.sign(&service());
    let calls = || vec![call("c1", READ, r#"{"text":"a"}"#)];
    stage.execute(&token, context(), calls()).await.unwrap();
    stage.execute(PROPOSER, context(), calls()).await.unwrap();
    let status = stage.execute(CONFIRMER, context(), calls()).await.unwrap_err();
    assert_refused(&status, Code::PermissionDenied, "ROLE_MISSING", None);
    // Two entries are nobody's, whatever they are.
    for second in [token.as_str(), PROPOSER] {
        let message = ExecuteRequest { context: Some(context()), calls: calls(), mode: 0 };
        let mut request = Request::new(message);
        for credential in [token.as_str(), second] {
            let entry = format!("Bearer {credential}").parse().unwrap();
            request.metadata_mut().append("authorization", entry);
        }
        let status = stage.world.client.clone().execute(request).await.unwrap_err();
        assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
    }
    assert_eq!(stage.judged("none", "unknown").await, 2);
}

/// All of an answer but the time of day.
fn shape(status: &Status) -> String {
    let mut metadata = status.metadata().clone();
    metadata.remove("date");
    format!("{:?} {} {:?} {metadata:?}", status.code(), status.message(), status.details())
}
