#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::sync::Arc;

use proptest::prelude::*;

use super::super::samples;
use super::*;
use crate::domain::audit::{Confirmed, Stamp};
use crate::domain::reason::{Effect, Outcome, Reason};

const JOURNAL: &str = "0190a8f0-0000-4000-8000-000000000000";

fn line_of(event: &Event) -> String {
    line_of_entry(&samples::entry(event.clone()))
}

fn line_of_entry(entry: &Entry) -> String {
    let mut line = Vec::new();
    write_record(&mut line, entry, JOURNAL, 7);
    write_mac(&mut line, &Digest([0xab; 32]));
    String::from_utf8(line).unwrap()
}

fn read(line: &str) -> Result<Event, RecordFault> {
    read_record(line.as_bytes()).map(|(entry, _)| match entry {
        Entry::Call(event) => Arc::unwrap_or_clone(event),
        Entry::Admin(_) => panic!("an administrative record"),
    })
}

#[test]
fn the_line_of_a_pair_is_this() {
    let counts = |field, scalar| {
        format!(
            r#"{{"field_count":{field},"scalar_count":{scalar},"collection_count":0,"redacted_field_count":0,"content_field_count":0,"identifier_field_count":0}}"#
        )
    };
    let hex = |byte: &str| byte.repeat(32);
    let context = r#""request_id":"req-1","user_id":"user-1","tenant_id":"tenant-1","conversation_id":"conversation-1","tool_call_id":"call-1","tool":"search""#;
    let started = format!(
        r#"{{"event":"tool_call_started","journal_id":"{JOURNAL}","sequence":7,"time":"2027-01-15T08:00:00.123456Z",{context},"suggested_tool_hash":"{}","attempt":1,"outcome":"started","arguments_summary":{},"arguments_digest":"{}","model_suggested":true,"policy_digest":"{}","audit_key_id":"k1","mac":"{}"}}"#,
        hex("01"),
        counts(2, 2),
        hex("02"),
        hex("03"),
        hex("ab"),
    );
    assert_eq!(line_of(&samples::started("call-1")), started);

    let mut event = samples::completed("call-1");
    event.trace_id =
        TraceId::new(*b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef");
    let completed = format!(
        r#"{{"event":"tool_call_completed","journal_id":"{JOURNAL}","sequence":7,"time":"2027-01-15T08:00:00.123456Z",{context},"suggested_tool_hash":"{}","attempt":1,"outcome":"success","reason":"OK","duration_ms":82.5,"arguments_summary":{},"arguments_digest":"{}","result_summary":{},"result_digest":"{}","model_suggested":true,"effect":"none","policy_digest":"{}","audit_key_id":"k1","trace_id":"0123456789abcdef0123456789abcdef","mac":"{}"}}"#,
        hex("01"),
        counts(2, 2),
        hex("02"),
        counts(1, 0),
        hex("04"),
        hex("03"),
        hex("ab"),
    );
    assert_eq!(line_of(&event), completed);
}

#[test]
fn the_longest_record_is_within_the_bound() {
    let mut event = samples::completed(&"c".repeat(128));
    let longest: Arc<str> = "\u{10ffff}".repeat(128).into();
    event.context = Arc::new(Context {
        request_id: Arc::clone(&longest),
        user_id: Arc::clone(&longest),
        tenant_id: Arc::clone(&longest),
        conversation_id: longest,
    });
    event.tool = "t".repeat(128).into();
    event.audit_key_id = "k".repeat(64).into();
    event.trace_id = TraceId::new([0xff; 16]);
    event.check().unwrap();
    assert!(line_of(&event).len() < MAX_RECORD_BYTES / 2);
}

#[test]
fn what_is_not_written_is_not_read() {
    let started = line_of(&samples::started("call-1"));
    let completed = line_of(&samples::completed("call-1"));
    let edits: &[(&str, &str, &str)] = &[
        // An unknown, a missing, a repeated and an ill-typed field.
        (&started, "\"attempt\":1,", "\"attempt\":1,\"arguments\":{},"),
        (&started, "\"attempt\":1,", ""),
        (&started, "\"attempt\":1,", "\"attempt\":1,\"attempt\":1,"),
        (&started, "\"attempt\":1,", "\"attempt\":\"1\","),
        (&started, "\"attempt\":1,", "\"attempt\":1.0,"),
        (&started, "\"field_count\":2,", "\"field_count\":2,\"note\":1,"),
        // An optional field as null, and the fields of the other event.
        (&started, "\"model_suggested\"", "\"result_digest\":null,\"model_suggested\""),
        (&started, "\"outcome\":\"started\",", "\"outcome\":\"started\",\"reason\":\"OK\","),
        (&started, "\"outcome\":\"started\",", "\"outcome\":\"started\",\"duration_ms\":0,"),
        (&started, "\"model_suggested\":true,", "\"model_suggested\":true,\"effect\":\"none\","),
        (&completed, "\"reason\":\"OK\",", ""),
        (&completed, "\"duration_ms\":82.5,", ""),
        (&completed, "\"effect\":\"none\",", ""),
        // Event, outcome and reason that do not fit each other.
        (&started, "tool_call_started", "tool_call_completed"),
        (&started, "tool_call_started", "tool_call_paused"),
        (&started, "\"outcome\":\"started\"", "\"outcome\":\"success\""),
        (&completed, "\"outcome\":\"success\"", "\"outcome\":\"error\""),
        (&completed, "\"outcome\":\"success\"", "\"outcome\":\"started\""),
        (&completed, "\"reason\":\"OK\"", "\"reason\":\"INTERNAL\""),
        (&completed, "\"reason\":\"OK\"", "\"reason\":\"FINE\""),
        // Values outside the closed set.
        (&started, "\"model_suggested\":true", "\"model_suggested\":false"),
        (&started, "\"attempt\":1,", "\"attempt\":0,"),
        (&started, "\"attempt\":1,", "\"attempt\":101,"),
        (&started, "\"tool\":\"search\"", "\"tool\":\"se arch\""),
        (&started, "\"user_id\":\"user-1\"", "\"user_id\":\"\""),
        (&started, "\"user_id\":\"user-1\"", "\"user_id\":\"a\\nb\""),
        (&completed, "\"effect\":\"none\"", "\"effect\":\"NONE\""),
        (&completed, "\"duration_ms\":82.5", "\"duration_ms\":-1"),
        (&completed, "\"duration_ms\":82.5", "\"duration_ms\":1e300"),
        // The right values in another form.
        (&completed, "\"duration_ms\":82.5", "\"duration_ms\":82.50"),
        (&completed, "\"duration_ms\":82.5", "\"duration_ms\":8.25e1"),
        (&started, ".123456Z", ".123456+00:00"),
        (&started, ".123456Z", ".1234561Z"),
        (&started, "\"user-1\"", "\"user\\u002d1\""),
        (&started, "{\"event\"", "{ \"event\""),
        (&started, "abab", "ABab"),
    ];
    assert!(read(&started).is_ok() && read(&completed).is_ok());
    for (line, from, to) in edits {
        let edited = line.replacen(from, to, 1);
        assert_ne!(&edited, line, "{from}");
        assert!(read(&edited).is_err(), "{from} -> {to}");
    }
    assert!(read(&format!("{started} ")).is_err());
    assert!(read(&format!("{started}{started}")).is_err());
}

#[test]
fn a_fault_names_the_field_and_no_value() {
    let line = line_of(&samples::started("call-1")).replace("\"search\"", "\"sk-live secret\"");
    let fault = read(&line).unwrap_err();
    assert_eq!(fault.to_string(), "its field tool is outside its closed set");
    let line =
        line_of(&samples::started("call-1")).replace("\"attempt\":1", "\"attempt\":\"secret\"");
    assert!(!read(&line).unwrap_err().to_string().contains("secret"));
}

#[test]
fn fields_that_contradict_each_other_are_named() {
    let line = line_of(&samples::completed("call-1"));
    let edits = [
        ("\"outcome\":\"success\"", "\"outcome\":\"error\"", "outcome"),
        ("\"model_suggested\":true", "\"model_suggested\":false", "model_suggested"),
        ("\"reason\":\"OK\"", "\"reason\":\"INTERNAL\"", "outcome"),
    ];
    for (from, to, field) in edits {
        assert_eq!(read(&line.replace(from, to)), Err(RecordFault::Field(field)));
    }
}

fn context_text() -> impl Strategy<Value = Arc<str>> {
    proptest::collection::vec(any::<char>(), 1..=128)
        .prop_map(|chars| Arc::from(chars.into_iter().collect::<String>()))
        .prop_filter("a context field", |text: &Arc<str>| {
            let other: Arc<str> = "x".into();
            let context = Context {
                request_id: Arc::clone(text),
                user_id: Arc::clone(&other),
                tenant_id: Arc::clone(&other),
                conversation_id: other,
            };
            context.check().is_ok()
        })
}

fn short_text() -> impl Strategy<Value = Arc<str>> {
    prop_oneof!["[ -~]{1,20}".prop_map(Arc::from), context_text()]
}

fn digests() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest)
}

fn summaries() -> impl Strategy<Value = PayloadSummary> {
    any::<[u32; 6]>().prop_map(|[a, b, c, d, e, f]| PayloadSummary {
        field_count: a,
        scalar_count: b,
        collection_count: c,
        redacted_field_count: d,
        content_field_count: e,
        identifier_field_count: f,
    })
}

fn kinds() -> impl Strategy<Value = EventKind> {
    let reasons = proptest::sample::select(Reason::ALL);
    let effects = proptest::sample::select(vec![Effect::None, Effect::Applied, Effect::Unknown]);
    let results = proptest::option::of((summaries(), digests()));
    let completed = (reasons, 0..=MAX_DURATION_US, (summaries(), digests()), results, effects)
        .prop_map(|(reason, duration_us, required, optional, effect)| {
            let result =
                if reason.outcome() == Outcome::Success { Some(required) } else { optional };
            EventKind::Completed {
                reason,
                duration_us,
                result_summary: result.map(|(summary, _)| summary),
                result_digest: result.map(|(_, digest)| digest),
                effect,
            }
        });
    prop_oneof![1 => Just(EventKind::Started), 3 => completed]
}

prop_compose! {
    fn confirmations()(
        id in any::<u128>(),
        by in short_text(),
        seconds in 0..253_402_200_000_i64,
        purpose in "[A-Za-z0-9][A-Za-z0-9_.-]{0,127}",
    ) -> Confirmed {
        Confirmed {
            confirmation_id: uuid::Uuid::from_u128(id).to_string().into(),
            confirmed_by_user_id: by,
            confirmed_at: Timestamp::from_second(seconds).unwrap(),
            expires_at: Timestamp::from_second(seconds + 300).unwrap(),
            purpose: purpose.into(),
        }
    }
}

fn admin_kinds() -> impl Strategy<Value = AdminKind> {
    use crate::domain::audit::{KeyChange, KeyPurpose, ReloadResult, ReloadTrigger};
    use proptest::sample::select;
    let reloads = (select(ReloadResult::ALL), select(ReloadTrigger::ALL), digests()).prop_map(
        |(result, trigger, policy_digest_before)| AdminKind::Reload {
            result,
            trigger,
            policy_digest_before,
        },
    );
    let keys = (select(KeyChange::ALL), select(KeyPurpose::ALL), "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
        .prop_map(|(change, purpose, id)| AdminKind::Key { change, purpose, key_id: id.into() });
    let issued = (confirmations(), "[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
        .prop_map(|(confirmed, id)| AdminKind::issued(&confirmed, &Arc::from(id.as_str())));
    prop_oneof![issued, Just(AdminKind::ConfirmationRevoked), reloads, keys]
}

prop_compose! {
    fn administrative()(
        kind in admin_kinds(),
        id in any::<u128>(),
        seconds in 0..253_402_200_000_i64,
        ids in (short_text(), short_text(), short_text(), short_text()),
        policy_digest in digests(),
        trace in any::<Option<[u8; 16]>>(),
    ) -> AdminEvent {
        let of_a_call = kind.is_of_a_confirmation();
        let context = Context {
            request_id: ids.0,
            user_id: ids.1,
            tenant_id: ids.2,
            conversation_id: ids.3,
        };
        AdminEvent {
            kind,
            time: Timestamp::from_second(seconds).unwrap(),
            context: of_a_call.then(|| Arc::new(context)),
            confirmation_id: of_a_call.then(|| uuid::Uuid::from_u128(id).to_string().into()),
            policy_digest,
            audit_key_id: "k1".into(),
            trace_id: trace.and_then(TraceId::new),
        }
    }
}

prop_compose! {
    fn events()(
        kind in kinds(),
        time in (-62_135_596_800_000_000_i64..253_402_200_000_000_000),
        ids in (short_text(), short_text(), short_text(), short_text()),
        tool_call_id in "[A-Za-z0-9][A-Za-z0-9._:-]{0,127}",
        tool in "[A-Za-z0-9][A-Za-z0-9_.-]{0,127}",
        audit_key_id in "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
        attempt in 1..=100_u32,
        arguments_summary in summaries(),
        hashes in (digests(), digests(), digests()),
        trace in any::<Option<[u8; 16]>>(),
        confirmation in proptest::option::of(confirmations()),
    ) -> Event {
        Event {
            kind,
            time: Timestamp::from_microsecond(time).unwrap(),
            context: Arc::new(Context {
                request_id: ids.0,
                user_id: ids.1,
                tenant_id: ids.2,
                conversation_id: ids.3,
            }),
            tool_call_id: tool_call_id.into(),
            tool: tool.into(),
            suggested_tool_hash: hashes.0,
            attempt,
            arguments_summary,
            arguments_digest: hashes.1,
            policy_digest: hashes.2,
            audit_key_id: audit_key_id.into(),
            confirmation: confirmation.map(Arc::new),
            trace_id: trace.and_then(TraceId::new),
        }
    }
}

proptest! {
    #[test]
    fn a_record_written_and_read_is_the_same(event in events(), sequence in any::<u64>(), mac in digests()) {
        let mut line = Vec::new();
        let entry = samples::entry(event);
        write_record(&mut line, &entry, JOURNAL, sequence);
        write_mac(&mut line, &mac);
        prop_assert!(!line.contains(&b'\n'));
        prop_assert!(line.len() <= MAX_RECORD_BYTES);
        let stamp = Stamp { journal_id: JOURNAL.into(), sequence, mac };
        prop_assert_eq!(read_record(&line), Ok((entry, stamp)));
    }
}

proptest! {
    #[test]
    fn an_administrative_record_written_and_read_is_the_same(event in administrative()) {
        let entry = Entry::Admin(Arc::new(event));
        let line = line_of_entry(&entry);
        prop_assert_eq!(read_record(line.as_bytes()).map(|(entry, _)| entry), Ok(entry));
        // A field of the other kind is never passed over.
        let longer = line.replacen(",\"policy_digest\"", ",\"tool\":\"x\",\"policy_digest\"", 1);
        prop_assert!(read_record(longer.as_bytes()).is_err());
        for field in ["\"note\":\"x\"", "\"key_id\":\"x\"", "\"user_id\":\"x\""] {
            let longer = line.replacen(",\"policy_digest\"", &format!(",{field},\"policy_digest\""), 1);
            prop_assert!(read_record(longer.as_bytes()).is_err());
        }
    }
}

#[test]
fn the_lines_of_a_reload_and_of_a_key_are_these() {
    use crate::domain::audit::{KeyChange, KeyPurpose, ReloadResult, ReloadTrigger};
    let line = |kind| {
        line_of_entry(&Entry::Admin(Arc::new(AdminEvent {
            kind,
            time: Timestamp::constant(1_800_000_000, 0),
            context: None,
            confirmation_id: None,
            policy_digest: Digest([3; 32]),
            audit_key_id: "k1".into(),
            trace_id: None,
        })))
    };
    let head = |event: &str| {
        format!(
            r#"{{"event":"{event}","journal_id":"{JOURNAL}","sequence":7,"time":"2027-01-15T08:00:00.000000Z""#
        )
    };
    let hex = |byte: &str| byte.repeat(32);
    let tail =
        format!(r#""policy_digest":"{}","audit_key_id":"k1","mac":"{}"}}"#, hex("03"), hex("ab"));
    let reload = line(AdminKind::Reload {
        result: ReloadResult::Applied,
        trigger: ReloadTrigger::Files,
        policy_digest_before: Digest([2; 32]),
    });
    assert_eq!(
        reload,
        format!(
            r#"{},"reload_result":"applied","reload_trigger":"files","policy_digest_before":"{}",{tail}"#,
            head("reload"),
            hex("02")
        )
    );
    let key = line(AdminKind::Key {
        change: KeyChange::Removed,
        purpose: KeyPurpose::Confirmation,
        key_id: "c1".into(),
    });
    assert_eq!(
        key,
        format!(r#"{},"key_purpose":"confirmation","key_id":"c1",{tail}"#, head("key_removed"))
    );
    for (line, from, to) in [
        (&reload, "applied", "done"),
        (&reload, "files", "somebody"),
        (&key, "\"c1\"", "\"c 1\""),
        (&key, "key_removed", "key_lost"),
        (&key, "\"confirmation\"", "\"other\""),
    ] {
        assert!(read_record(line.replace(from, to).as_bytes()).is_err(), "{to}");
    }
}

#[test]
fn a_finer_time_and_a_longer_duration_are_cut() {
    let mut event = samples::completed("call-1");
    event.time = Timestamp::constant(1_800_000_000, 999_999_999);
    if let EventKind::Completed { duration_us, .. } = &mut event.kind {
        *duration_us = u64::MAX;
    }
    let line = line_of(&event);
    assert!(line.contains("\"time\":\"2027-01-15T08:00:00.999999Z\""), "{line}");
    assert!(line.contains("\"duration_ms\":1000000000000,"), "{line}");
    assert!(read(&line).is_ok());
}
