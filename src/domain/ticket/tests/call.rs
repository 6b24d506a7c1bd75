//! A good ticket held against another call.

use super::*;

#[test]
fn a_ticket_is_good_for_its_own_call_alone() {
    let scene = Scene::new();
    let issued = scene.issue();
    let arguments = object([("question", "Grüße, 退款".into())]);
    let contexts = [
        context("tenant-b", "conversation-1", "user-ü"),
        context("tenant-a", "conversation-2", "user-ü"),
        context("tenant-a", "conversation-1", "user-u\u{308}"),
    ];
    let call = scene.call();
    let cases = [
        (Check::CallId, CallInHand { tool_call_id: "call_2", ..call }),
        (Check::CallId, CallInHand { tool_call_id: "CALL_1", ..call }),
        (Check::Tool, CallInHand { tool: "create_support_drafts", ..call }),
        (Check::Tenant, CallInHand { context: &contexts[0], ..call }),
        (Check::Conversation, CallInHand { context: &contexts[1], ..call }),
        (Check::User, CallInHand { context: &contexts[2], ..call }),
        (Check::Contract, CallInHand { contract_digest: Digest([0xc1; 32]), ..call }),
        (Check::Arguments, CallInHand { arguments: &arguments, ..call }),
    ];
    for (check, other) in cases {
        let refused = scene.verify(&issued.ticket).unwrap().matches(&other).unwrap_err();
        assert_eq!(refused.check(), check);
        assert_eq!(refused.reason(), Reason::ConfirmationMismatch);
        assert_eq!(refused.claims(), Some(&issued.claims), "{check:?}: signed, so it may be kept");
    }
}

#[test]
fn another_request_of_the_same_conversation_may_carry_the_ticket() {
    let scene = Scene::new();
    let ticket = scene.issue().ticket;
    let context = Context { request_id: "request-2".into(), ..scene.context.clone() };
    let call = CallInHand { context: &context, ..scene.call() };
    assert!(scene.verify(&ticket).unwrap().matches(&call).is_ok());
}

#[test]
fn every_bit_of_a_digest_counts() {
    let scene = Scene::new();
    let ticket = scene.issue().ticket;
    for bit in 0..256 {
        let mut digest = scene.call().contract_digest;
        digest.0[bit / 8] ^= 1 << (bit % 8);
        let call = CallInHand { contract_digest: digest, ..scene.call() };
        let refused = scene.verify(&ticket).unwrap().matches(&call).unwrap_err();
        assert_eq!(refused.check(), Check::Contract, "bit {bit}");
    }
}

#[test]
fn values_that_look_alike_are_different_arguments() {
    let confirmed = object([("amount", Value::Integer(1)), ("note", "é".into())]);
    let scene = Scene { arguments: confirmed, ..Scene::new() };
    let ticket = scene.issue().ticket;
    for other in [
        object([("amount", Value::Double(1.5)), ("note", "é".into())]),
        object([("amount", "1".into()), ("note", "é".into())]),
        object([("amount", Value::Integer(1)), ("note", "e\u{301}".into())]),
        object([("amount", Value::Integer(1)), ("note", "é ".into())]),
        object([("amount", Value::Integer(1)), ("note", "é".into()), ("more", Value::Null)]),
        object([("amount", Value::Integer(1))]),
    ] {
        let call = CallInHand { arguments: &other, ..scene.call() };
        let refused = scene.verify(&ticket).unwrap().matches(&call).unwrap_err();
        assert_eq!(refused.check(), Check::Arguments, "{other:?}");
    }
}
