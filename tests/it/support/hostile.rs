//! A peer that speaks HTTP/2 frame by frame, as badly as a test wants.
//!
//! It writes whatever its scripts say, without any of the checks of a real
//! server, so that every breach of the protocol can be played to the byte.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A running peer. Each complete request, on whichever connection, takes the next script.
pub(crate) struct Hostile {
    address: SocketAddr,
    events: UnboundedReceiver<Event>,
}

/// What the peer saw.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A connection was accepted.
    Connected,
    /// A request came in full, and its script was played.
    Played,
    /// The client reset a stream with this code.
    Reset(u32),
    /// A connection ended.
    Closed,
}

/// One thing to do in answer to a request.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Writes a frame, on the call's stream or on the connection's.
    Frame { kind: u8, flags: u8, on_call: bool, payload: Vec<u8> },
    /// Writes these bytes as they are.
    Raw(Vec<u8>),
    /// Closes the connection.
    Cut,
}

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const PING: u8 = 0x6;
const GOAWAY: u8 = 0x7;
const CONTINUATION: u8 = 0x9;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

const PREFACE_BYTES: usize = 24;
const MAX_FRAME_BYTES: usize = 16_384;

impl Hostile {
    pub(crate) async fn start(scripts: impl IntoIterator<Item = Vec<Step>>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (report, events) = unbounded_channel();
        let scripts: Scripts = Arc::new(Mutex::new(scripts.into_iter().collect()));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let _ = report.send(Event::Connected);
                let (scripts, report) = (Arc::clone(&scripts), report.clone());
                tokio::spawn(async move {
                    converse(stream, scripts, &report).await;
                    let _ = report.send(Event::Closed);
                });
            }
        });
        Self { address, events }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits for this event, past any other.
    pub(crate) async fn saw(&mut self, wanted: &Event) {
        let wait = async { while self.events.recv().await.unwrap() != *wanted {} };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the event never came");
    }

    /// How many connections were accepted that no [`Hostile::saw`] has passed.
    pub(crate) fn count_connections(&mut self) -> usize {
        std::iter::from_fn(|| self.events.try_recv().ok())
            .filter(|event| *event == Event::Connected)
            .count()
    }
}

/// A sound answer: this message, then OK.
pub(crate) fn answer(message: &[u8]) -> Vec<Step> {
    vec![grpc_head(), data(&prefixed(message)), trailers(&[("grpc-status", "0")])]
}

/// A message behind its five bytes.
pub(crate) fn prefixed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], length.to_be_bytes().as_slice(), message].concat()
}

/// The head of a sound answer.
pub(crate) fn grpc_head() -> Step {
    head(&[(":status", "200"), ("content-type", "application/grpc")])
}

/// HEADERS that leave the stream open.
pub(crate) fn head(fields: &[(&str, &str)]) -> Step {
    frame(HEADERS, END_HEADERS, hpack(fields))
}

/// HEADERS that end the stream: trailers, or an answer without a body.
pub(crate) fn trailers(fields: &[(&str, &str)]) -> Step {
    frame(HEADERS, END_HEADERS | END_STREAM, hpack(fields))
}

/// The same over as many CONTINUATION frames as it takes.
pub(crate) fn continued_trailers(fields: &[(&str, &str)]) -> Vec<Step> {
    let block = hpack(fields);
    let mut parts: VecDeque<_> = block.chunks(MAX_FRAME_BYTES).map(<[u8]>::to_vec).collect();
    let mut steps = vec![frame(HEADERS, END_STREAM, parts.pop_front().unwrap())];
    steps.extend(parts.into_iter().map(|part| frame(CONTINUATION, 0, part)));
    if let Some(Step::Frame { flags, .. }) = steps.last_mut() {
        *flags |= END_HEADERS;
    }
    steps
}

/// DATA that leaves the stream open.
pub(crate) fn data(bytes: &[u8]) -> Step {
    frame(DATA, 0, bytes.to_vec())
}

/// DATA that ends the stream.
pub(crate) fn last_data(bytes: &[u8]) -> Step {
    frame(DATA, END_STREAM, bytes.to_vec())
}

/// `RST_STREAM` with an error code.
pub(crate) fn reset(code: u32) -> Step {
    frame(RST_STREAM, 0, code.to_be_bytes().to_vec())
}

/// GOAWAY with the last stream that counts, an error code and debug data.
pub(crate) fn go_away(last_stream: u32, code: u32, debug_data: &str) -> Step {
    let payload =
        [&last_stream.to_be_bytes(), code.to_be_bytes().as_slice(), debug_data.as_bytes()].concat();
    Step::Frame { kind: GOAWAY, flags: 0, on_call: false, payload }
}

type Scripts = Arc<Mutex<VecDeque<Vec<Step>>>>;

const fn frame(kind: u8, flags: u8, payload: Vec<u8>) -> Step {
    Step::Frame { kind, flags, on_call: true, payload }
}

/// Literal fields without indexing, names and values as they are (RFC 7541, 6.2.2).
fn hpack(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            hpack_length(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// An integer with a prefix of seven bits (RFC 7541, 5.1).
fn hpack_length(block: &mut Vec<u8>, length: usize) {
    if length < 127 {
        block.push(u8::try_from(length).unwrap());
        return;
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    block.push(u8::try_from(rest).unwrap());
}

/// One connection. Ends when the client is gone or a script cuts it.
async fn converse(mut stream: TcpStream, scripts: Scripts, report: &UnboundedSender<Event>) {
    let mut preface = [0; PREFACE_BYTES];
    if stream.read_exact(&mut preface).await.is_err() {
        return;
    }
    write_frame(&mut stream, SETTINGS, 0, 0, &[]).await;
    while let Some((kind, flags, id, payload)) = read_frame(&mut stream).await {
        match kind {
            SETTINGS if flags & ACK == 0 => write_frame(&mut stream, SETTINGS, ACK, 0, &[]).await,
            PING if flags & ACK == 0 => write_frame(&mut stream, PING, ACK, 0, &payload).await,
            RST_STREAM => {
                let code = u32::from_be_bytes(payload.as_slice().try_into().unwrap());
                let _ = report.send(Event::Reset(code));
            }
            HEADERS | DATA if flags & END_STREAM != 0 => {
                let script = scripts.lock().unwrap().pop_front().expect("a script for the call");
                let goes_on = play(&mut stream, id, script).await;
                let _ = report.send(Event::Played);
                if !goes_on {
                    return;
                }
            }
            _ => {}
        }
    }
}

/// Returns whether the connection goes on.
async fn play(stream: &mut TcpStream, call: u32, script: Vec<Step>) -> bool {
    for step in script {
        match step {
            Step::Frame { kind, flags, on_call, payload } => {
                write_frame(stream, kind, flags, if on_call { call } else { 0 }, &payload).await;
            }
            Step::Raw(bytes) => drop(stream.write_all(&bytes).await),
            Step::Cut => {
                // What was written arrives before the end does.
                let _ = stream.shutdown().await;
                return false;
            }
        }
    }
    true
}

/// A client that has given up already is no fault of the peer's.
async fn write_frame(stream: &mut TcpStream, kind: u8, flags: u8, id: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &id.to_be_bytes()].concat();
    let _ = stream.write_all(&[head.as_slice(), payload].concat()).await;
}

async fn read_frame(stream: &mut TcpStream) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, flags, id @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some((kind, flags, u32::from_be_bytes(id), payload))
}
