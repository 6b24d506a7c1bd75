//! Clients that abuse HTTP/2, while another one goes on being served and the
//! gate's memory stays where it was.

use std::iter;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tempfile::TempDir;
use tokio_util::sync::DropGuard;
use toolgate::proto::Reason;
use toolgate::proto::tool_gate_client::ToolGateClient;

use crate::support::frames::{
    Answers, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, fields, frame, pour, request,
};
use crate::support::process::Process;
use crate::support::running::{
    Options, PROPOSER, call, channel, execute, get, metric, start_handler, write_config,
};

const PATH: &str = "/toolgate.v1.ToolGate/Execute";
/// What an attack may add to the gate's memory at its peak: less than a hundredth of what it sends.
const GROWTH: u64 = 48 << 20;
/// `ENHANCE_YOUR_CALM` (RFC 9113, section 7).
const CALM: u32 = 11;

/// A gate in a process of its own, and a client that behaves.
struct Besieged {
    process: Process,
    address: String,
    admin: SocketAddr,
    _directory: TempDir,
    _upstream: DropGuard,
}

impl Besieged {
    async fn start() -> Self {
        Self::start_with(&Options::default()).await
    }

    async fn start_with(options: &Options<'_>) -> Self {
        let (_, upstream, stop) = start_handler().await;
        let directory = tempfile::tempdir().unwrap();
        let config = write_config(directory.path(), &upstream, options);
        let (process, address, admin) = Process::serving(&config).await;
        Self { process, address, admin, _directory: directory, _upstream: stop }
    }

    /// Attacks on several connections at once. Gives the error codes of the GOAWAYs that came.
    async fn withstand<I>(
        &self,
        what: &str,
        answers: Answers,
        attack: impl Fn() -> I,
    ) -> Vec<Option<u32>>
    where
        I: Iterator<Item = Vec<u8>> + Send + 'static,
    {
        let before = self.process.peak_memory();
        let (over, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let healthy = tokio::spawn({
            let (over, served) = (Arc::clone(&over), Arc::clone(&served));
            let mut client = ToolGateClient::new(channel(&self.address).await);
            async move {
                loop {
                    let is_last = over.load(Ordering::SeqCst);
                    let answer = client.execute(execute(vec![call("c1", "patient", "{}")])).await;
                    let result = answer.unwrap().into_inner().results.remove(0);
                    assert_eq!(result.reason(), Reason::Ok);
                    served.fetch_add(1, Ordering::SeqCst);
                    if is_last {
                        return;
                    }
                }
            }
        });
        let attacks: Vec<_> = (0..4)
            .map(|_| {
                let (address, chunks) = (self.address.clone(), attack());
                tokio::spawn(async move { pour(&address, answers, chunks).await })
            })
            .collect();
        let mut closed = Vec::new();
        for attack in attacks {
            closed.push(attack.await.unwrap().and_then(|closed| closed.goaway));
        }
        over.store(true, Ordering::SeqCst);
        healthy.await.unwrap();
        let grown = self.process.peak_memory().saturating_sub(before);
        assert!(grown < GROWTH, "{what}: {grown} bytes more");
        assert!(served.load(Ordering::SeqCst) > 0);
        closed
    }
}

/// Odd stream numbers, from 1.
fn streams() -> impl Iterator<Item = u32> + Send + 'static {
    (0..25_000_u32).map(|number| number * 2 + 1)
}

fn open(stream: u32, flags: u8) -> Vec<u8> {
    let bearer = format!("Bearer {PROPOSER}");
    frame(HEADERS, END_HEADERS | flags, stream, &request(PATH, &[("authorization", &bearer)]))
}

#[tokio::test]
async fn streams_that_are_reset_at_once() {
    let gate = Besieged::start().await;
    let cancel = 8_u32.to_be_bytes();
    let attack =
        move || streams().map(move |id| [open(id, 0), frame(RST_STREAM, 0, id, &cancel)].concat());
    let closed = gate.withstand("rapid reset", Answers::Read, attack).await;
    assert!(closed.iter().all(|code| *code == Some(CALM)), "{closed:?}");

    // The first bytes of a message; all of them together fit the connection's window.
    let attack = move || {
        streams().map(move |id| {
            let data = frame(DATA, 0, id, &[0, 0]);
            [open(id, 0), data, frame(RST_STREAM, 0, id, &cancel)].concat()
        })
    };
    let closed = gate.withstand("open, write, reset", Answers::Read, attack).await;
    assert!(closed.iter().all(|code| *code == Some(CALM)), "{closed:?}");
}

#[tokio::test]
async fn streams_that_the_gate_has_to_reset() {
    let gate = Besieged::start().await;
    // An increment of 0 is an error of the stream (RFC 9113, section 6.9).
    let attack =
        || streams().map(|id| [open(id, 0), frame(WINDOW_UPDATE, 0, id, &[0; 4])].concat());
    let closed = gate.withstand("made to reset", Answers::Read, attack).await;
    assert!(closed.iter().all(Option::is_some), "{closed:?}");
}

#[tokio::test]
async fn header_blocks_without_an_end() {
    let gate = Besieged::start().await;
    for (what, size) in [("large", 16_000), ("small", 16), ("empty", 0)] {
        let attack = move || {
            let block = fields([("x", &*"y".repeat(size))]);
            let block = if size == 0 { Vec::new() } else { block };
            let first = frame(HEADERS, END_STREAM, 1, &request(PATH, &[]));
            let more = frame(CONTINUATION, 0, 1, &block);
            let more = more.repeat((64 << 10) / more.len());
            iter::once(first).chain(iter::repeat_n(more, 4_000))
        };
        let closed = gate.withstand(what, Answers::Read, attack).await;
        assert!(closed.iter().all(Option::is_some), "{what}: {closed:?}");
    }
}

#[tokio::test]
async fn header_lists_beyond_the_limit() {
    let gate = Besieged::start().await;
    let attack = || {
        let more: Vec<_> =
            (0..15).map(|number| (format!("x-{number}"), "y".repeat(1_000))).collect();
        let more: Vec<_> = more.iter().map(|(name, value)| (&**name, &**value)).collect();
        let block = request(PATH, &more);
        let rest = fields([("x-last", &*"z".repeat(8_000))]);
        streams().take(4_000).map(move |id| {
            let first = frame(HEADERS, END_STREAM, id, &block);
            [first, frame(CONTINUATION, END_HEADERS, id, &rest)].concat()
        })
    };
    gate.withstand("huge headers", Answers::Read, attack).await;
}

#[tokio::test]
async fn frames_that_carry_nothing() {
    let gate = Besieged::start().await;
    let empty = || {
        let empty = frame(DATA, 0, 1, &[]);
        let empty = empty.repeat((64 << 10) / empty.len());
        iter::once(open(1, 0)).chain(iter::repeat_n(empty, 500))
    };
    gate.withstand("empty DATA", Answers::Read, empty).await;
    for answers in [Answers::Read, Answers::Unread] {
        for (what, one) in [
            ("pings", frame(PING, 0, 0, &[7; 8])),
            ("settings", frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100])),
        ] {
            let flood = move || iter::repeat_n(one.repeat((64 << 10) / one.len()), 500);
            gate.withstand(what, answers, flood).await;
        }
    }
}

/// Not an attack, and ended the same way in the end: with a GOAWAY of no error.
#[tokio::test]
async fn a_connection_that_is_old_takes_nothing_more_and_ends() {
    let options = Options { more: "limits: {max_connection_age: 1s}", ..Options::default() };
    let gate = Besieged::start_with(&options).await;
    let mut client = ToolGateClient::new(channel(&gate.address).await);
    let address = gate.address.clone();
    let idle =
        tokio::spawn(async move { pour(&address, Answers::Awaited(1), iter::empty()).await });
    // A client of gRPC, whose connection is older still, does not notice.
    while !idle.is_finished() {
        client.execute(execute(vec![call("c1", "patient", "{}")])).await.unwrap();
    }
    assert_eq!(idle.await.unwrap().expect("a GOAWAY").goaway, Some(0));
    client.execute(execute(vec![call("c1", "patient", "{}")])).await.unwrap();
}

#[tokio::test]
async fn a_compressed_message_is_not_inflated() {
    let gate = Besieged::start().await;
    let bearer = format!("Bearer {PROPOSER}");
    // A gzip stream that inflates to a thousand times its size; one byte of it is one too many.
    let mut message = vec![1];
    message.extend(1_000_u32.to_be_bytes());
    message.extend([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3]);
    message.resize(1_005, 0);
    let attack = move || {
        let block = request(PATH, &[("authorization", &*bearer), ("grpc-encoding", "gzip")]);
        let message = message.clone();
        streams().take(60).map(move |id| {
            let head = frame(HEADERS, END_HEADERS, id, &block);
            [head, frame(DATA, END_STREAM, id, &message)].concat()
        })
    };
    let closed = gate.withstand("gzip", Answers::Awaited(60), attack).await;
    assert!(closed.iter().all(Option::is_none), "every one was answered: {closed:?}");
    let metrics = get(gate.admin, "/metrics").await;
    let refused = [("rpc", "Execute"), ("reason", "NOT_SERVED")];
    assert_eq!(metric(&metrics, "toolgate_requests_refused_total", &refused), 240);
}
