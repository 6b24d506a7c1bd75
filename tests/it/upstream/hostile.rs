//! Handlers that break gRPC or HTTP/2, frame by frame.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use toolgate::adapters::upstream::{GrpcUpstreams, LinkState, UpstreamConfig};
use toolgate::ports::{Upstream, UpstreamFault};

use super::{Call, MAX_RESULT_BYTES, invoke, upstreams, within};
use crate::support::hostile::{
    Event, Hostile, Step, answer, continued_trailers, data, go_away, grpc_head, head, last_data,
    prefixed, reset, trailers,
};

const SECRET: &str = "hunter2";
/// An `InvokeResponse` whose `result_json` is `{}`.
const MESSAGE: &[u8] = b"\x0a\x02{}";
const OK: &[(&str, &str)] = &[("grpc-status", "0")];

const NO_STATUS: UpstreamFault = UpstreamFault::Unavailable { sent: true };
const MALFORMED_OK: UpstreamFault = UpstreamFault::Malformed { ok: true };
const MALFORMED: UpstreamFault = UpstreamFault::Malformed { ok: false };

/// Plays the script to one call, wants this of it, and wants the next call to work.
async fn expect(what: &str, script: Vec<Step>, wanted: Result<&str, UpstreamFault>) {
    let peer = Hostile::start([script, answer(MESSAGE)]).await;
    let upstreams = upstreams(&peer.endpoint());
    let got = invoke(&upstreams).await;
    assert!(!format!("{got:?}").contains(SECRET), "{what}");
    assert_eq!(got.as_deref().map_err(|fault| *fault), wanted, "{what}");
    assert_eq!(invoke(&upstreams).await.as_deref(), Ok("{}"), "the call after: {what}");
}

/// An `InvokeResponse` with these bytes as its `result_json`.
fn response_with(result_json: &[u8]) -> Vec<u8> {
    let mut message = vec![0x0a];
    prost::encoding::encode_varint(result_json.len() as u64, &mut message);
    message.extend_from_slice(result_json);
    message
}

#[tokio::test]
async fn every_status_that_was_sent_is_told_by_its_code() {
    let names = [
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    for (code, name) in (1..).zip(names) {
        let code = code.to_string();
        let status = [
            ("grpc-status", code.as_str()),
            ("grpc-message", "postgres://app:hunter2@db/%0A%1B[31m"),
            ("grpc-status-details-bin", "aHVudGVyMg"),
            ("x-internal", SECRET),
        ];
        let alone = [&[(":status", "200"), ("content-type", "application/grpc")], &status[..]];
        let wanted = Err(UpstreamFault::Status { code: name });
        expect(name, vec![trailers(&alone.concat())], wanted).await;
        let behind_a_message = vec![grpc_head(), data(&prefixed(MESSAGE)), trailers(&status)];
        expect(name, behind_a_message, wanted).await;
        let behind_a_piece = vec![grpc_head(), data(&prefixed(MESSAGE)[..6]), trailers(&status)];
        expect(name, behind_a_piece, wanted).await;
    }
}

#[tokio::test]
async fn a_sound_answer_is_taken_however_it_is_framed() {
    let split = prefixed(MESSAGE);
    let mut bytes: Vec<Step> = split.chunks(1).map(data).collect();
    bytes.insert(0, grpc_head());
    bytes.push(trailers(OK));
    expect("byte by byte", bytes, Ok("{}")).await;
    let noisy = [("grpc-status", "0"), ("grpc-message", SECRET), ("x-cost", "1")];
    let script = vec![grpc_head(), data(&prefixed(MESSAGE)), trailers(&noisy)];
    expect("OK with a message", script, Ok("{}")).await;
    let late_reset = [answer(MESSAGE), vec![reset(0)]].concat();
    expect("RST_STREAM(NO_ERROR) behind the answer", late_reset, Ok("{}")).await;
    let retiring = [vec![go_away(1, 0, "")], answer(MESSAGE)].concat();
    expect("GOAWAY that lets this call finish", retiring, Ok("{}")).await;
}

#[tokio::test]
async fn a_reset_is_no_status_whatever_its_code() {
    // 14 and above are codes that nobody defined.
    for code in 0..=15 {
        let what = format!("RST_STREAM({code})");
        expect(&what, vec![reset(code)], Err(NO_STATUS)).await;
        expect(&what, vec![grpc_head(), reset(code)], Err(NO_STATUS)).await;
        let in_message = vec![grpc_head(), data(&prefixed(MESSAGE)[..7]), reset(code)];
        expect(&what, in_message, Err(NO_STATUS)).await;
        let after_message = vec![grpc_head(), data(&prefixed(MESSAGE)), reset(code)];
        expect(&what, after_message, Err(NO_STATUS)).await;
    }
}

#[tokio::test]
async fn a_lost_connection_is_no_status() {
    let message = prefixed(MESSAGE);
    for (what, mut script) in [
        ("before the head", vec![]),
        ("behind the head", vec![grpc_head()]),
        ("in the prefix", vec![grpc_head(), data(&message[..3])]),
        ("in the message", vec![grpc_head(), data(&message[..7])]),
        ("before the trailers", vec![grpc_head(), data(&message)]),
        ("GOAWAY(NO_ERROR)", vec![go_away(0, 0, SECRET)]),
        ("GOAWAY(INTERNAL_ERROR)", vec![go_away(0, 2, SECRET)]),
        ("GOAWAY in the message", vec![grpc_head(), data(&message[..7]), go_away(1, 2, SECRET)]),
        ("not HTTP/2", vec![Step::Raw(b"HTTP/1.1 400 Bad Request hunter2\r\n\r\n".to_vec())]),
    ] {
        script.push(Step::Cut);
        expect(what, script, Err(NO_STATUS)).await;
    }
}

#[tokio::test]
async fn a_call_disowned_by_goaway_does_not_wait_for_the_connection_to_close() {
    let cut_message = vec![grpc_head(), data(&prefixed(MESSAGE)[..7])];
    for code in [0, 2, 11] {
        let what = format!("GOAWAY({code})");
        expect(&what, vec![go_away(0, code, SECRET)], Err(NO_STATUS)).await;
        let in_message = [cut_message.clone(), vec![go_away(0, code, SECRET)]].concat();
        expect(&what, in_message, Err(NO_STATUS)).await;
    }
}

#[tokio::test]
async fn an_answer_that_is_not_grpc_is_no_status() {
    let html = head(&[(":status", "200"), ("content-type", "text/html")]);
    let grpc_at = |status| head(&[(":status", status), ("content-type", "application/grpc")]);
    let message = prefixed(MESSAGE);
    let rest = [data(&message), trailers(OK)];
    for (what, first) in [
        ("an HTML page", html),
        ("HTTP 404", grpc_at("404")),
        ("HTTP 503", grpc_at("503")),
        ("HTTP 204", grpc_at("204")),
        ("no content type", head(&[(":status", "200")])),
    ] {
        expect(what, [vec![first], rest.to_vec()].concat(), Err(NO_STATUS)).await;
    }
    let no_trailers = vec![grpc_head(), last_data(&message)];
    expect("no trailers", no_trailers, Err(NO_STATUS)).await;
    let no_status = vec![grpc_head(), data(&message), trailers(&[("grpc-message", SECRET)])];
    expect("trailers without a status", no_status, Err(NO_STATUS)).await;
}

#[tokio::test]
async fn metadata_beyond_the_limit_is_never_kept() {
    let huge = SECRET.repeat(3_000);
    let (status, padding) = (("grpc-status", "13"), ("x-huge", huge.as_str()));
    let trailers_of = |fields: &[_]| [vec![grpc_head()], continued_trailers(fields)].concat();
    // HTTP/2 drops the fields behind the limit: a status before it was sent and seen.
    let internal = Err(UpstreamFault::Status { code: "INTERNAL" });
    expect("a status before the limit", trailers_of(&[status, padding]), internal).await;
    expect("a status behind the limit", trailers_of(&[padding, status]), Err(NO_STATUS)).await;
    let head = [(":status", "200"), ("content-type", "application/grpc"), status, padding];
    expect("a head beyond the limit", continued_trailers(&head), Err(NO_STATUS)).await;
    let raw = [("grpc-status", "13"), ("grpc-message", "hunter2\u{1b}[31m\r\n")];
    expect("control characters", vec![grpc_head(), trailers(&raw)], Err(NO_STATUS)).await;
}

#[tokio::test]
async fn an_ok_without_a_usable_message_is_malformed() {
    let message = prefixed(MESSAGE);
    let mut gzip = message.clone();
    gzip[0] = 1;
    let not_utf8 = response_with(b"hunter2\xff");
    let over = response_with(&[b' '; MAX_RESULT_BYTES + 1]);
    for (what, body, fault) in [
        ("no message", vec![], MALFORMED_OK),
        ("a cut message", message[..7].to_vec(), MALFORMED_OK),
        ("two messages", message.repeat(2), MALFORMED),
        ("a compressed message", gzip, MALFORMED),
        ("no protobuf", prefixed(b"\x0a\x7fhunter2"), MALFORMED_OK),
        ("another wire type", prefixed(b"\x08\x01"), MALFORMED_OK),
        ("not UTF-8", prefixed(&not_utf8), MALFORMED_OK),
        ("one byte too many", prefixed(&over), MALFORMED_OK),
    ] {
        let script = vec![grpc_head(), data(&body), trailers(OK)];
        expect(what, script, Err(fault)).await;
    }
    let only_ok = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "0")];
    expect("OK alone", vec![trailers(&only_ok)], Err(MALFORMED_OK)).await;
    let longest = response_with(&[b' '; MAX_RESULT_BYTES]);
    let longest_text = " ".repeat(MAX_RESULT_BYTES);
    expect("the limit", answer(&longest), Ok(&longest_text)).await;
}

#[tokio::test]
async fn a_breach_of_form_ends_the_call_without_waiting_for_more() {
    for (what, body) in [
        ("4 GB announced", b"\0\xff\xff\xff\xffhunter2".to_vec()),
        ("a compressed message", vec![1]),
        ("the first byte of a second message", [prefixed(MESSAGE), vec![0]].concat()),
    ] {
        let mut peer = Hostile::start([vec![grpc_head(), data(&body)]]).await;
        let upstreams = upstreams(&peer.endpoint());
        assert_eq!(invoke(&upstreams).await, Err(MALFORMED), "{what}");
        // CANCEL: the peer is told to stop.
        peer.saw(&Event::Reset(8)).await;
    }
}

#[tokio::test]
async fn only_a_request_that_met_no_connection_was_not_sent() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let refused = upstreams(&format!("http://{address}"));
    let unsent = Err(UpstreamFault::Unavailable { sent: false });
    assert_eq!(refused.states().collect::<Vec<_>>(), [("tools", LinkState::Idle)]);
    assert_eq!(invoke(&refused).await, unsent);
    assert_eq!(refused.states().collect::<Vec<_>>(), [("tools", LinkState::Failed)]);

    let directory = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}/tools.sock", directory.path().display());
    assert_eq!(invoke(&upstreams(&socket)).await, unsent);

    let call = Call::to("not-registered");
    assert_eq!(refused.invoke(&call.delivery()).await, unsent);
}

#[tokio::test]
async fn calls_share_one_connection_and_replace_it_when_it_closes() {
    let first: Vec<_> = std::iter::repeat_n(answer(MESSAGE), 20).collect();
    let closing = [answer(MESSAGE), vec![Step::Cut]].concat();
    let scripts = first.into_iter().chain([closing, answer(MESSAGE)]);
    let mut peer = Hostile::start(scripts).await;
    let upstreams = upstreams(&peer.endpoint());
    let together: Vec<_> = (0..20).map(|_| invoke(&upstreams)).collect();
    for answer in futures_util::future::join_all(together).await {
        assert_eq!(answer.as_deref(), Ok("{}"));
    }
    assert_eq!(peer.count_connections(), 1);
    assert_eq!(invoke(&upstreams).await.as_deref(), Ok("{}"));
    within(async {
        while upstreams.states().any(|(_, state)| state == LinkState::Connected) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(invoke(&upstreams).await.as_deref(), Ok("{}"));
    assert_eq!(peer.count_connections(), 1, "the one that took the closed one's place");
}

#[tokio::test]
async fn a_call_dropped_while_connecting_leaves_its_connection_to_the_next() {
    let mut peer = Hostile::start([answer(MESSAGE)]).await;
    let upstreams = upstreams(&peer.endpoint());
    tokio::select! {
        biased;
        answer = invoke(&upstreams) => panic!("{answer:?}"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(upstreams.states().collect::<Vec<_>>(), [("tools", LinkState::Connecting)]);
    assert_eq!(invoke(&upstreams).await.as_deref(), Ok("{}"));
    assert_eq!(peer.count_connections(), 1);
    assert_eq!(upstreams.states().collect::<Vec<_>>(), [("tools", LinkState::Connected)]);
    drop(upstreams);
    peer.saw(&Event::Closed).await;
}

/// Nobody accepts, and more than the backlog takes are waiting already.
#[tokio::test]
async fn connecting_is_given_up_in_time() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let _listener = socket.listen(1).unwrap();
    let waiting: Vec<_> = (0..8).map(|_| tokio::spawn(TcpStream::connect(address))).collect();
    tokio::task::yield_now().await;
    let upstreams = upstreams(&format!("http://{address}"));
    tokio::time::pause();
    assert_eq!(invoke(&upstreams).await, Err(UpstreamFault::Unavailable { sent: false }));
    assert_eq!(upstreams.states().collect::<Vec<_>>(), [("tools", LinkState::Failed)]);
    drop(waiting);
}

#[tokio::test]
async fn dropping_a_call_resets_its_stream() {
    let dripping = vec![grpc_head(), data(&prefixed(MESSAGE)[..6])];
    for (what, script) in [("a silent peer", vec![]), ("a dripping peer", dripping)] {
        let mut peer = Hostile::start([script, answer(MESSAGE)]).await;
        let upstreams = upstreams(&peer.endpoint());
        tokio::select! {
            answer = invoke(&upstreams) => panic!("{what}: {answer:?}"),
            () = peer.saw(&Event::Played) => {}
        }
        peer.saw(&Event::Reset(8)).await;
        assert_eq!(invoke(&upstreams).await.as_deref(), Ok("{}"), "{what}");
        assert_eq!(peer.count_connections(), 0, "{what}: the connection is kept");
    }
}

/// The gate's own timer must be the only one. Time is stopped once the call is on
/// its way, so that only timers can move it.
#[tokio::test]
async fn no_timer_in_the_adapter_ends_a_call() {
    let mut peer = Hostile::start([vec![]]).await;
    let mut config = UpstreamConfig::new(peer.endpoint().parse().unwrap());
    config.keep_alive_interval = Duration::from_secs(1_000_000);
    let upstreams = GrpcUpstreams::new([(Arc::from("tools"), config)]);
    let mut call = Call::new();
    call.timeout = Duration::from_millis(100);
    let delivery = call.delivery();
    let mut pending = upstreams.invoke(&delivery);
    tokio::select! {
        answer = &mut pending => panic!("{answer:?}"),
        () = peer.saw(&Event::Played) => {}
    }
    tokio::time::pause();
    for wait in [call.timeout, Duration::from_millis(100), Duration::from_secs(100_000)] {
        assert!(tokio::time::timeout(wait, &mut pending).await.is_err(), "{wait:?}");
    }
}

#[tokio::test]
async fn a_silent_connection_is_given_up_by_its_keep_alive() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let mut config = UpstreamConfig::new(endpoint.parse().unwrap());
    config.keep_alive_interval = Duration::from_secs(5);
    config.keep_alive_timeout = Duration::from_secs(5);
    let upstreams = GrpcUpstreams::new([(Arc::from("tools"), config)]);
    let call = Call::new();
    let delivery = call.delivery();
    let mut pending = upstreams.invoke(&delivery);
    let accepted = tokio::select! {
        answer = &mut pending => panic!("{answer:?}"),
        // A peer that accepts and never reads.
        accepted = async {
            let (stream, _) = listener.accept().await.unwrap();
            stream.readable().await.unwrap();
            stream
        } => accepted,
    };
    tokio::time::pause();
    assert_eq!(within(pending).await, Err(NO_STATUS));
    drop(accepted);
}
