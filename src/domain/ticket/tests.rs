#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod call;
mod claim_set;
mod forged;
mod keys;
mod times;

use proptest::prelude::*;

use super::*;
use crate::domain::json::object;
use crate::domain::reason::Reason;

/// 2026-12-24T08:00:00Z.
const NOW: i64 = 1_798_099_200;
const LEDGER: &str = "7d3f0a52-1c7b-4f6e-9f43-0f2f6f0c1a2b";
const TOOL: &str = "create_support_draft";
const TERMS: Terms<'static> =
    Terms { ttl: Duration::from_mins(5), skew: Duration::from_secs(30), audience: LEDGER };

/// A ticket as a person confirmed it, and the call that it is for.
struct Scene {
    keys: ConfirmationKeys,
    context: Context,
    arguments: Value,
}

impl Scene {
    fn new() -> Self {
        Self {
            keys: ConfirmationKeys::new(vec![key("k1", 0x40)]).unwrap(),
            context: context("tenant-a", "conversation-1", "user-ü"),
            arguments: object([("question", "Grüße, 退款?".into())]),
        }
    }

    fn call(&self) -> CallInHand<'_> {
        CallInHand {
            tool_call_id: "call_1",
            tool: TOOL,
            contract_digest: Digest([0xc0; 32]),
            context: &self.context,
            arguments: &self.arguments,
        }
    }

    fn issue(&self) -> Issued {
        issue(&self.keys, random_id(), &self.call(), "user-ü", &TERMS, at(NOW))
    }

    /// Any payload, signed with the right key.
    fn sign(&self, payload: &str) -> String {
        compact::sign(self.keys.current(), payload)
    }

    fn verify(&self, text: &str) -> Result<Verified<'_>, RefusedTicket> {
        verify(&self.keys, text, &TERMS, at(NOW), |_| false)
    }

    fn accept(&self, text: &str) -> Result<ConfirmedTicket, RefusedTicket> {
        self.verify(text)?.matches(&self.call())
    }

    /// The check that the ticket does not pass.
    fn refusal(&self, text: &str) -> Option<Check> {
        self.accept(text).err().map(|refused| refused.check())
    }
}

fn key(id: &str, first: u8) -> ConfirmationKey {
    let counting_from = |first: u8| std::array::from_fn(|index| first + index.to_le_bytes()[0]);
    ConfirmationKey::new(id.into(), &counting_from(first), &counting_from(first + 0x20)).unwrap()
}

fn context(tenant: &str, conversation: &str, user: &str) -> Context {
    Context {
        request_id: "request-1".into(),
        user_id: user.into(),
        tenant_id: tenant.into(),
        conversation_id: conversation.into(),
    }
}

fn random_id() -> Uuid {
    Uuid::try_parse("0b9c2f7e-53a4-4d61-8a5e-2f6f1c7d9e10").unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A ticket computed by another program (Python: hmac, hashlib, base64, json), from
/// signing key 40 41 … 5f and arguments key 60 61 … 7f.
const GOLDEN: &str = include_str!("tests/golden.txt").trim_ascii_end();
const GOLDEN_TIME: i64 = 1_798_104_000;

#[test]
fn a_ticket_is_byte_for_byte_what_another_program_makes_of_the_same_claims() {
    let scene = Scene::new();
    let issued = issue(&scene.keys, random_id(), &scene.call(), "user-ü", &TERMS, at(GOLDEN_TIME));
    assert_eq!(issued.ticket, GOLDEN);
    let hash = "84d0b7d2ff333f5b1b41ef6b8318a92481cdcea5948a454d1fc704149c27ee1c";
    assert_eq!(issued.claims.arguments_hash.to_string(), hash);
}

#[test]
fn what_was_issued_is_accepted_and_says_what_was_confirmed() {
    let scene = Scene::new();
    let issued = scene.issue();
    let confirmed = scene.accept(&issued.ticket).unwrap();
    assert_eq!(*confirmed.claims(), issued.claims);
    assert_eq!(**confirmed.key_id(), *"k1");
    assert_eq!(issued.claims.expires_at, issued.claims.confirmed_at + 300);
    assert_eq!(*issued.claims.purpose, *issued.claims.tool);
}

#[test]
fn an_issued_ticket_is_shown_by_its_claims_alone() {
    let issued = Scene::new().issue();
    let shown = format!("{issued:?}");
    assert!(shown.contains(&*issued.claims.confirmation_id));
    assert!(!shown.contains(&issued.ticket) && !shown.contains("eyJ"));
}

#[test]
fn the_longest_ticket_fits_its_size() {
    let wide = "\u{1f600}".repeat(128);
    let scene = Scene {
        keys: ConfirmationKeys::new(vec![key(&"k".repeat(64), 0)]).unwrap(),
        context: context(&wide, &wide, &wide),
        arguments: Value::Object(crate::domain::json::Object::default()),
    };
    let (id, tool) = ("i".repeat(128), "t".repeat(128));
    let call = CallInHand { tool_call_id: &id, tool: &tool, ..scene.call() };
    let audience = "a".repeat(claims::MAX_AUDIENCE);
    let terms = Terms { audience: &audience, ..TERMS };
    let issued = issue(&scene.keys, random_id(), &call, &wide, &terms, at(NOW));
    assert!(issued.ticket.len() <= MAX_TICKET_BYTES, "{}", issued.ticket.len());
    let verified = verify(&scene.keys, &issued.ticket, &terms, at(NOW), |_| false).unwrap();
    assert!(verified.matches(&call).is_ok());
}

#[test]
fn who_may_confirm() {
    let confirmation = |role: Option<&str>| Confirmation {
        prompt: crate::domain::prompt::Prompt::parse("Sure?").unwrap(),
        not_shown: Vec::new(),
        confirm_by: role.map(str::to_owned),
    };
    let cases = [
        (None, "user-1", &[][..], true),
        (None, "user-2", &[], false),
        // A role means nothing where the contract names none.
        (None, "user-2", &["manager", ""], false),
        (Some("manager"), "user-1", &[], true),
        (Some("manager"), "user-2", &["clerk", "manager"], true),
        (Some("manager"), "user-2", &["clerk", "Manager", "managers"], false),
        (Some("manager"), "user-2", &[], false),
        (Some("manager"), "", &[], false),
    ];
    for (role, confirmed_by, roles, may) in cases {
        let answer =
            may_confirm(&confirmation(role), "user-1", confirmed_by, roles.iter().copied());
        assert_eq!(answer.is_ok(), may, "{role:?} {confirmed_by:?} {roles:?}");
    }
}

#[test]
fn every_check_has_the_reason_of_its_kind_and_stands_in_order() {
    assert!(Check::ALL.is_sorted());
    let reasons: Vec<Reason> = Check::ALL.into_iter().map(Check::reason).collect();
    let expected = [
        vec![Reason::ConfirmationInvalid; 5],
        vec![
            Reason::ConfirmationExpired,
            Reason::ConfirmationNotYetValid,
            Reason::ConfirmationOtherLedger,
            Reason::ConfirmationRevoked,
        ],
        vec![Reason::ConfirmationMismatch; 8],
    ]
    .concat();
    assert_eq!(reasons, expected);
}

/// Any text that a field of a context can hold.
fn context_text() -> impl Strategy<Value = String> {
    let c = any::<char>().prop_filter("a field holds none of Cc, Cf, Zl, Zp", |c| {
        crate::domain::proposal::is_context_text(&c.to_string())
    });
    prop::collection::vec(c, 1..=128).prop_map(|text| text.into_iter().collect())
}

proptest! {
    #[test]
    fn whatever_the_context_a_ticket_is_good_for_its_own_call(
        tenant in context_text(), conversation in context_text(), user in context_text(),
        confirmed_by in context_text(), text in any::<String>(), seconds in 0..4_000_000_000_i64,
        nanos in 0..1_000_000_000_i32,
    ) {
        let scene = Scene {
            context: context(&tenant, &conversation, &user),
            arguments: object([("text", text.as_str().into())]),
            ..Scene::new()
        };
        let now = Timestamp::new(seconds, nanos).unwrap();
        let issued = issue(&scene.keys, random_id(), &scene.call(), &confirmed_by, &TERMS, now);
        let verified = verify(&scene.keys, &issued.ticket, &TERMS, now, |_| false).unwrap();
        let confirmed = verified.matches(&scene.call()).unwrap();
        prop_assert_eq!(confirmed.claims(), &issued.claims);
        prop_assert_eq!(issued.claims.confirmed_at, seconds);
    }

    #[test]
    fn no_text_is_a_ticket_by_chance(text in any::<String>(), segments in "[A-Za-z0-9_-]{0,90}\\.[A-Za-z0-9_-]{0,90}\\.[A-Za-z0-9_-]{43}") {
        let scene = Scene::new();
        for text in [text, segments] {
            let refused = scene.verify(&text).unwrap_err();
            prop_assert!(refused.check() < Check::Claims && refused.claims().is_none());
        }
    }
}
