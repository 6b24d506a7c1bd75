#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use uuid::Uuid;

use super::*;
use crate::domain::json::object;
use crate::domain::proposal::Context;
use crate::domain::ticket::{CallInHand, ConfirmationKey, Terms, issue};

/// 2026-12-24T08:00:00Z.
const NOW: i64 = 1_798_099_200;
const DIGEST: Digest = Digest([0xc0; 32]);

fn keys(first: u8) -> ConfirmationKeys {
    let key = |first: u8| std::array::from_fn(|index| first + index.to_le_bytes()[0]);
    let key = ConfirmationKey::new("k1".into(), &key(first), &key(first + 0x20)).unwrap();
    ConfirmationKeys::new(vec![key]).unwrap()
}

fn ticket(user: &str) -> String {
    let context = Context {
        request_id: "request-1".into(),
        user_id: user.into(),
        tenant_id: "tenant-a".into(),
        conversation_id: "conversation-1".into(),
    };
    let call = CallInHand {
        tool_call_id: "call_1",
        tool: "create_support_draft",
        contract_digest: DIGEST,
        context: &context,
        arguments: &object([("question", "?".into())]),
    };
    let terms =
        Terms { ttl: Duration::from_mins(5), skew: Duration::from_secs(30), audience: "ledger-1" };
    let id = Uuid::try_parse("0b9c2f7e-53a4-4d61-8a5e-2f6f1c7d9e10").unwrap();
    issue(&keys(0x40), id, &call, "manager-1", &terms, at(NOW)).ticket
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A judge to change one thing of.
struct Bench {
    keys: ConfirmationKeys,
    ttl: u64,
    contract: Option<Digest>,
    now: i64,
}

impl Bench {
    fn new() -> Self {
        Self { keys: keys(0x40), ttl: 300, contract: Some(DIGEST), now: NOW + 12 }
    }

    fn inspect(&self, text: &str) -> (bool, String) {
        let judge = Judge {
            keys: &self.keys,
            ttl: Duration::from_secs(self.ttl),
            skew: Duration::from_secs(30),
            contract_digest: &|tool| self.contract.filter(|_| tool == "create_support_draft"),
        };
        run(text, Some(&judge), self.now)
    }
}

fn run(text: &str, judge: Option<&Judge<'_>>, now: i64) -> (bool, String) {
    let mut out = Vec::new();
    let is_good = inspect(text, judge, at(now), &mut out).unwrap();
    (is_good, String::from_utf8(out).unwrap())
}

#[test]
fn without_keys_a_ticket_is_shown_and_nothing_of_it_believed() {
    let (is_readable, shown) = run(&ticket("user-1"), None, NOW + 12);
    assert!(is_readable);
    let hash = shown.lines().find(|line| line.contains("arguments_hash")).unwrap();
    let expected = format!(
        r#"UNVERIFIED: no keys were given, and anybody can write what is below. Give the configuration to verify it.

header
  alg              "HS256"
  kid              "k1"
  typ              "toolgate-confirmation+jwt"

claims
{hash}
  aud              "ledger-1"
  contract_digest  "{DIGEST}"
  conversation_id  "conversation-1"
  exp              1798099500 (2026-12-24T08:05:00Z, in 288 s)
  iat              1798099200 (2026-12-24T08:00:00Z, 12 s ago)
  jti              "0b9c2f7e-53a4-4d61-8a5e-2f6f1c7d9e10"
  purpose          "create_support_draft"
  sub              "manager-1"
  tenant_id        "tenant-a"
  tool             "create_support_draft"
  tool_call_id     "call_1"
  user_id          "user-1"
"#
    );
    assert_eq!(shown, expected);
}

#[test]
fn with_the_configuration_every_check_is_listed() {
    let (is_good, shown) = Bench::new().inspect(&ticket("user-1"));
    assert!(is_good);
    assert!(shown.starts_with("VERIFIED: "), "{shown}");
    let (_, checks) = shown.split_once("\nchecks\n").unwrap();
    assert_eq!(
        checks,
        "  ok       size and shape
  ok       header of a known key
  ok       signature, by the key k1
  ok       set, types and forms of the claims
  ok       exp is iat and the lifetime
  ok       not expired
  ok       not from the future
  -        aud is this ledger: needs the ledger
  -        not revoked: needs the ledger
  -        tool_call_id: needs the call
  ok       tool
  ok       purpose
  -        tenant_id: needs the call
  -        conversation_id: needs the call
  -        user_id: needs the call
  ok       contract_digest
  -        arguments_hash: needs the call

Good for the call that it names, unless it is spent or revoked or another ledger's.
"
    );
}

#[test]
fn a_refusal_says_which_check_why_and_what_to_do() {
    let bench = Bench::new;
    let cases = [
        (
            Bench { keys: keys(0x80), ..bench() },
            "signature: text or key were changed since it was signed",
            "CONFIRMATION_INVALID",
        ),
        (
            Bench { ttl: 600, ..bench() },
            "exp is iat and the lifetime: it lives for 300 s, and this gate issues for 600 s",
            "CONFIRMATION_INVALID",
        ),
        (
            Bench { now: NOW + 312, ..bench() },
            "not expired: 2026-12-24T08:05:00Z, 12 s ago",
            "CONFIRMATION_EXPIRED",
        ),
        (
            Bench { now: NOW - 31, ..bench() },
            "not from the future: 2026-12-24T08:00:00Z, in 31 s, and the skew is 30 s",
            "CONFIRMATION_NOT_YET_VALID",
        ),
        (
            Bench { contract: None, ..bench() },
            "tool: the policy has no such tool",
            "CONFIRMATION_MISMATCH",
        ),
        (
            Bench { contract: Some(Digest([1; 32])), ..bench() },
            "contract_digest: the tool's contract was changed since the person confirmed",
            "CONFIRMATION_MISMATCH",
        ),
    ];
    for (bench, why, reason) in cases {
        let (is_good, shown) = bench.inspect(&ticket("user-1"));
        assert!(!is_good);
        assert!(shown.contains(&format!("\n  refused  {why}\n")), "{why}\n{shown}");
        assert!(shown.contains(&format!("\nRefused: {reason}. ")), "{shown}");
        assert_eq!(shown.starts_with("UNVERIFIED"), why.starts_with("signature"), "{shown}");
        let (_, after) = shown.split_once("  refused  ").unwrap();
        assert!(!after.contains("\n  ok "), "{shown}");
    }
}

#[test]
fn a_key_that_was_removed_is_told_from_a_forgery() {
    let text = ticket("user-1");
    let payload = text.split('.').nth(1).unwrap();
    let header =
        URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","kid":"k0","typ":"toolgate-confirmation+jwt"}"#);
    let (is_good, shown) = Bench::new().inspect(&format!("{header}.{payload}.{}", "A".repeat(43)));
    assert!(!is_good && shown.starts_with("UNVERIFIED"));
    assert!(shown.contains("refused  header of a known key: the keys known here are k1\n"));
}

#[test]
fn what_a_forger_writes_cannot_move_the_cursor_or_add_a_line() {
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let claims = r#"{"aud\u001b[2J":"x\nVERIFIED: ok","iat":"\u202e","exp":99999999999999}"#;
    let (_, shown) = run(&format!("{}.{}.", encode("{}"), encode(claims)), None, NOW);
    assert!(shown.starts_with("UNVERIFIED"));
    assert!(shown.lines().all(|line| !line.starts_with("VERIFIED")));
    assert!(shown.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'), "{shown:?}");
    assert!(shown.contains("exp              99999999999999\n"), "{shown}");
}

#[test]
fn what_is_no_ticket_is_said_so() {
    for text in ["", "a.b.c", "not a ticket", &"A".repeat(5000), "e30.e30", "W10.e30."] {
        let (is_readable, shown) = run(text, None, NOW);
        let is_ticket = text == "e30.e30.";
        assert_eq!(is_readable, is_ticket, "{text}");
        assert!(shown.starts_with("This is no ticket: "), "{shown}");
        let (is_good, shown) = Bench::new().inspect(text);
        assert!(!is_good);
        assert!(shown.starts_with("This is no ticket: "), "{shown}");
        assert!(shown.contains("\n  refused  size and shape: "), "{shown}");
    }
}
